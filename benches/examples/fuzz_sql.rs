//! Random SQL, a device against DataFusion: `cargo fuzz-sql [--device cuda] [--seed S] [--first N] [--queries N] …`.
//!
//! The binary needs neither git nor the source: the seed is an argument, and everything else follows from it.

use std::process::ExitCode;

use millpond::DeviceChoice;
use millpond_bench::fuzz::devices::Devices;
use millpond_bench::fuzz::lab::Lab;
use millpond_bench::fuzz::variant::variant_of;
use millpond_bench::fuzz::{Options, run};

const USAGE: &str =
    "cargo fuzz-sql [--device sim|cuda|cuda:N] [--seed S] [--first N] [--queries N] [--differences N] [--reduce-runs N]
               [--workers N] [--variant N|bounds] [--verbose]
cargo fuzz-sql --seed S --variant N --sql TEXT    prints both answers to one query over the tables of a seed
Queries run under the variants of sessions in turn. --variant N runs all of them under the N-th; bounds is the one that stores short
tables and columns of few texts alone. Half of the queries run in turn with a twin that has other constants; of a tenth, tables are made.
Numbers may be hexadecimal (0x5eed). A CUDA device is shared by all workers, of which there are 8 if not said otherwise.
Exit code 0: no difference; 1: differences; 2: usage.";

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

struct Arguments {
    options: Options,
    sql: Option<String>,
}

fn arguments(mut arguments: impl Iterator<Item = String>) -> Option<Arguments> {
    let (mut options, mut sql, mut workers) = (Options::default(), None, None);
    while let Some(name) = arguments.next() {
        if name == "--verbose" {
            options.verbose = true;
            continue;
        }
        if name == "--sql" {
            sql = Some(arguments.next()?);
            continue;
        }
        if name == "--device" {
            options.device = match arguments.next()?.parse().ok()? {
                DeviceChoice::Auto => DeviceChoice::Cuda(0),
                DeviceChoice::Cpu => return None,
                device => device,
            };
            continue;
        }
        if name == "--variant" {
            options.variant = Some(variant_of(&arguments.next()?)?);
            continue;
        }
        let value = number(&arguments.next()?)?;
        match name.as_str() {
            "--seed" => options.seed = value,
            "--first" => options.first = value,
            "--queries" => options.queries = value,
            "--differences" => options.differences = usize::try_from(value).ok()?,
            "--workers" => workers = Some(value.max(1)),
            "--reduce-runs" => options.reduce_runs = usize::try_from(value).ok()?,
            _ => return None,
        }
    }
    // A GPU assembles the kernels of a query for some ten milliseconds, on one core.
    let default = if options.device == DeviceChoice::Sim { options.workers } else { 8 };
    options.workers = workers.unwrap_or(default);
    Some(Arguments { options, sql })
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(Arguments { options, sql }) = arguments(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if let Some(sql) = sql {
        let lab = match Devices::open(options.device) {
            Ok(devices) => Lab::open(options.seed, &devices).await,
            Err(error) => Err(error),
        };
        return match lab {
            Ok(lab) => {
                println!("{}", lab.both(&sql, options.variant.unwrap_or(0)).await);
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    match run(options, |line| println!("{line}")).await {
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        Ok(summary) => {
            let mut reasons: Vec<_> = summary.reasons.iter().collect();
            reasons.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
            for (reason, times) in reasons.iter().take(if options.verbose { 60 } else { 12 }) {
                println!("{times:5} × {reason}");
            }
            println!("{}\n{summary}", summary.operators_text());
            if summary.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}
