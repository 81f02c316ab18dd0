//! Every call of the driver fails, in turn, under 31 queries: `cargo fault-sweep [--query Q] [--call C] [--fault F]
//! [--nth N] …`.

use std::process::ExitCode;

use millpond_bench::faults::lab::Fault;
use millpond_bench::faults::{Options, run};
use millpond_memory::driver::sim::CallKind;

const USAGE: &str = "cargo fault-sweep [--query NAME] [--call KIND] [--fault once|until-free|forever|lost|late] [--nth N]
                  [--sample N] [--one-in N] [--seed S] [--verbose]
KIND is Allocate, StreamCreate, EventRecord, Launch, … as `CallKind` names them. --sample takes so many calls of each kind, fault and
query; --one-in takes one of so many kinds and faults.
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
            "--call" => options.call = Some(*CallKind::ALL.iter().find(|call| format!("{call:?}") == value)?),
            "--sample" => options.sample = Some(value.parse().ok()?),
            "--one-in" => options.one_in = value.parse().ok()?,
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
