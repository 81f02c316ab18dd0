//! Checks a folder of gpu-bdb tables against docs/gpu-bdb-data.md: `cargo run --release -p millpond-data --example
//! gpu_bdb_check -- DIR`
//!
//! Prints every broken promise (with `--all` also the kept ones) and the digest of each table; exits with 1 if one is
//! broken.

#[path = "../tests/acceptance/mod.rs"]
mod acceptance;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let all = arguments.iter().any(|argument| argument == "--all");
    let Some(folder) = arguments.iter().find(|argument| !argument.starts_with("--")) else {
        eprintln!("usage: gpu_bdb_check DIR [--all]");
        return ExitCode::from(2);
    };
    let report = match acceptance::check(&acceptance::Folder::new(folder)) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(4);
        }
    };
    let broken = report.findings.iter().filter(|finding| !finding.kept).count();
    for finding in report.findings.iter().filter(|finding| all || !finding.kept) {
        println!("{} {}", if finding.kept { "kept  " } else { "BROKEN" }, finding.text);
    }
    println!("{} promises, {broken} broken", report.findings.len());
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}
