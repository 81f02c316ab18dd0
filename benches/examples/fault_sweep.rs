//! Every allocation of twenty queries fails once, in turn: `cargo fault-sweep [--query Q] [--fault F] [--nth N] …`.

use std::process::ExitCode;

use millpond_bench::faults::lab::Fault;
use millpond_bench::faults::{Options, run};

const USAGE: &str =
    "cargo fault-sweep [--query NAME] [--fault once|until-free] [--nth N] [--stride N] [--seed S] [--verbose]
Exit code 0: every run ended as it should; 1: some did not; 2: usage.";

fn arguments(mut arguments: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options::default();
    while let Some(name) = arguments.next() {
        if name == "--verbose" {
            options.verbose = true;
            continue;
        }
        let value = arguments.next()?;
        match name.as_str() {
            "--query" => options.query = Some(value),
            "--fault" => options.fault = Some(Fault::ALL.into_iter().find(|fault| fault.name() == value)?),
            "--nth" => options.nth = Some(value.parse().ok()?),
            "--stride" => options.stride = value.parse().ok()?,
            "--seed" => options.seed = value.parse().ok()?,
            _ => return None,
        }
    }
    Some(options)
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(options) = arguments(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&options, |line| println!("{line}")).await {
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        Ok(summary) if summary.queries == 0 && summary.failures.is_empty() => {
            eprintln!("no query has that name\n{USAGE}");
            ExitCode::from(2)
        }
        Ok(summary) => {
            println!("{summary}");
            if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}
