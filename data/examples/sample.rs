//! Rewrites the README's sample: `cargo sample`.

use std::path::Path;

fn main() -> Result<(), millpond_data::DataError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/sales.parquet");
    let file = millpond_data::sample::write(&path)?;
    println!(
        "{}: {} rows, {} row group(s), {} bytes",
        file.path.display(),
        file.num_rows,
        file.num_row_groups,
        file.bytes
    );
    Ok(())
}
