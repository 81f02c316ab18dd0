//! Parquet files, a device against DataFusion: `cargo parquet-matrix [--first N] [--cases M] [--files DIR] …`.

use std::path::PathBuf;
use std::process::ExitCode;

use millpond::DeviceChoice;
use millpond_bench::matrix::{Input, Options, run};
use millpond_data::matrix::cases;

const USAGE: &str = "cargo parquet-matrix [--first N] [--cases M] [--seed S] [--device sim|cuda|cuda:N] [--differences N] [--workers N]
cargo parquet-matrix --files DIR|FILE [--seed S] …    reads the Parquet files of a folder and of those in it
Each generated file is read on the CPU and on the device: with its cache off and pages decoded by the host and by the device, then with
columns that are stored and found stored. The seed draws the reader's options and the schedule of the simulated device.
Exit code 0: no difference; 1: differences; 2: usage.";

struct Arguments {
    options: Options,
    first: usize,
    cases: usize,
    files: Option<PathBuf>,
}

fn arguments(mut arguments: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut all = Arguments { options: Options::default(), first: 0, cases: usize::MAX, files: None };
    while let Some(name) = arguments.next() {
        let value = arguments.next()?;
        match name.as_str() {
            "--first" => all.first = value.parse().ok()?,
            "--cases" => all.cases = value.parse().ok()?,
            "--files" => all.files = Some(value.into()),
            "--seed" => all.options.seed = value.parse().ok()?,
            "--differences" => all.options.differences = value.parse().ok()?,
            "--workers" => all.options.workers = value.parse().ok()?,
            "--device" => {
                all.options.device = match value.parse().ok()? {
                    DeviceChoice::Auto => DeviceChoice::Cuda(0),
                    DeviceChoice::Cpu => return None,
                    device => device,
                }
            }
            _ => return None,
        }
    }
    Some(all)
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(Arguments { options, first, cases: num_cases, files }) = arguments(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    // Its reader panics over bytes that are no text.
    millpond::error::panics::note_panics();
    let inputs = match files {
        Some(path) => Input::files(&path),
        None => Ok(cases().into_iter().skip(first).take(num_cases).map(Input::Case).collect()),
    };
    let summary = match inputs {
        Ok(inputs) => run(inputs, options, |line| eprintln!("{line}")).await,
        Err(error) => Err(error),
    };
    match summary {
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        Ok(summary) => {
            println!("{summary}");
            if summary.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}
