//! Files of other writers: parquet-rs reads them, so that our decoders can be compared with it.
//!
//! ```text
//!   foreign/files                       readable, and row_id counts    parquet-testing            readable, and flat
//!   those in REFUSED                    an error                       parquet-testing/refused    an error
//!                                                                      parquet-testing/bad_data   an error or rows
//! ```

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int32Type;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::errors::ParquetError;

/// Files of DuckDB in version 2 that parquet-rs rejects: DuckDB computes deltas of INT32 in 64 bits.
const REFUSED: [&str; 2] = [
    "duckdb-0099-int32-v2-lz4-nulls_runs-rows1000.parquet",
    "duckdb-0102-uint32-v2-brotli-nulls_none-rows2500-page1024b-group2048.parquet",
];

/// Parquet files of a folder, by name.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "parquet"));
    files.sort();
    assert!(!files.is_empty(), "no Parquet files in {}", folder.display());
    files
}

fn foreign(name: &str) -> Vec<PathBuf> {
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("foreign").join(name))
}

fn read(path: &Path) -> Result<Vec<RecordBatch>, ParquetError> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?.build()?;
    Ok(reader.collect::<Result<_, _>>()?)
}

fn num_rows(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

#[test]
fn files_of_make_py_are_read_and_count_their_rows() {
    let files = foreign("files");
    let num_bytes: u64 = files.iter().map(|path| path.metadata().expect("size").len()).sum();
    assert!((60..=64).contains(&files.len()) && num_bytes <= 600_000, "{} files, {num_bytes} bytes", files.len());
    for path in files {
        let name = path.file_name().expect("name").to_string_lossy();
        if REFUSED.contains(&name.as_ref()) {
            let error = read(&path).expect_err(&name).to_string();
            assert!(error.contains("Invalid delta bit width 33"), "{name}: {error}");
            continue;
        }
        let batches = read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let num_rows = num_rows(&batches);
        assert!(name.contains(&format!("-rows{num_rows}")), "{name}: {num_rows} rows");
        let row_ids = batches.iter().flat_map(|batch| {
            batch.column_by_name("row_id").expect("row_id").as_primitive::<Int32Type>().values().to_vec()
        });
        assert!(row_ids.eq(0..num_rows as i32), "{name}");
    }
}

#[test]
fn files_of_parquet_testing_are_read_and_flat() {
    for path in foreign("parquet-testing") {
        let batches = read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut fields = batches.iter().flat_map(|batch| batch.schema_ref().fields().iter());
        assert!(fields.all(|field| !field.data_type().is_nested()), "{}", path.display());
    }
}

#[test]
fn refused_files_are_an_error() {
    for path in foreign("parquet-testing/refused") {
        assert!(read(&path).is_err(), "{}: parquet-rs reads it now; move it to the others", path.display());
    }
}

#[test]
fn broken_files_never_panic() {
    // One file is readable: its dictionary codes have zero bits, which the format does not forbid.
    let read: Vec<usize> = foreign("parquet-testing/bad_data")
        .iter()
        .filter_map(|path| read(path).ok())
        .map(|rows| num_rows(&rows))
        .collect();
    assert_eq!(read, [21_186]);
}
