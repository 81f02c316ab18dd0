//! Writes the gpu-bdb tables without the command line: `cargo run --release -p millpond-data --example gpu_bdb -- 1
//! DIR`.
//!
//! Prints one line per table; `millpond gen gpu-bdb` has all options.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use millpond_data::gpu_bdb::{Options, generate};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let scale = arguments.first().and_then(|scale| scale.parse().ok());
    let (Some(scale), Some(out)) = (scale, arguments.get(1)) else {
        eprintln!("usage: gpu_bdb SCALE DIR [THREADS]");
        return ExitCode::from(2);
    };
    let mut options = Options::new(scale, out);
    options.threads = arguments.get(2).and_then(|threads| threads.parse().ok()).unwrap_or(0);
    let start = Instant::now();
    let files = match generate(&options, &|_, _| ()) {
        Ok(files) => files,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(1);
        }
    };
    let mut tables: BTreeMap<String, (u64, usize, u64, usize)> = BTreeMap::new();
    for file in files {
        let table = file.path.parent().and_then(|folder| folder.file_name()).unwrap_or_default();
        let entry = tables.entry(table.to_string_lossy().into_owned()).or_default();
        *entry = (entry.0 + file.num_rows, entry.1 + file.num_row_groups, entry.2 + file.bytes, entry.3 + 1);
    }
    for (table, (rows, groups, bytes, files)) in tables {
        println!("{table}: {rows} rows, {groups} row groups, {bytes} bytes, {files} files");
    }
    eprintln!("{:.1} s", start.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}
