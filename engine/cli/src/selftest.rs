//! `millpond selftest`: one line per check of a device, and a total.
//!
//! ```text
//!   ok     memory/copies         bytes go up and come home, whatever their number
//!   skip   ipc/two_processes     a pool and an allocation reach another process: needs a second process
//!   FAILED kernels/sort          rows are sorted by several keys, …: the order of 33 rows is …
//!   ok     sql/random            500 random queries give DataFusion's answers (--seed 0x1)
//!   90 checks on simulated device: 88 passed, 1 failed, 1 skipped
//! ```

use std::sync::Arc;

use millpond::device::Engine;
use millpond::{Millpond, SelftestOptions};
use millpond_bench::fuzz;

use crate::args::{SelftestArgs, SessionArgs};
use crate::error::{CliError, Exit};
use crate::session;

/// Number of random queries in a self-test, and in a thorough one.
const QUERIES: u64 = 500;
const MANY_QUERIES: u64 = 5_000;
/// Name of the check that runs random queries.
const RANDOM: &str = "sql/random";

/// Runs the checks; `Ok` carries exit 1 if one failed.
///
/// # Errors
/// Exit 3 if there is no device to test, and the errors of opening a session.
pub async fn run(args: &SelftestArgs, session: &SessionArgs) -> Result<Exit, CliError> {
    let session: Millpond = session::open(session, None).await?;
    let Some(engine) = session.engine() else {
        let reason = session.device_note().unwrap_or("the CPU needs no test").trim_end_matches('.');
        let message = format!("there is no device to test: {reason}; use --device sim for the simulated device");
        return Err(CliError { exit: Exit::Device, message });
    };
    let print = |name: &str, claim: &str, skipped: Option<&str>, result: &Result<(), String>| match (result, skipped) {
        (Ok(()), None) => println!("ok     {name:34} {claim}"),
        (Ok(()), Some(why)) => println!("skip   {name:34} {claim}: {why}"),
        (Err(why), _) => println!("FAILED {name:34} {claim}: {why}"),
    };
    let only = args.only.clone().unwrap_or_default();
    let options = SelftestOptions { thorough: args.thorough, seed: args.seed, only };
    let outcomes = millpond::selftest(&session, options.clone(), |outcome| {
        print(outcome.name, outcome.claim, outcome.skipped, &outcome.result);
    })
    .await?;
    let mut failed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
    let mut total = outcomes.len();
    if options.wants(RANDOM) {
        let queries = args.queries.unwrap_or(if args.thorough { MANY_QUERIES } else { QUERIES });
        let claim = format!("{queries} random queries give DataFusion's answers (--seed {:#x})", args.seed);
        let random = random_queries(engine, args.seed, queries).await;
        print(RANDOM, &claim, None, &random);
        (failed, total) = (failed + usize::from(random.is_err()), total + 1);
    }
    if total == 0 {
        return Err(CliError::usage(format!("no check begins with '{}'; selftest alone lists them all", options.only)));
    }
    let skipped = outcomes.iter().filter(|outcome| outcome.result.is_ok() && outcome.skipped.is_some()).count();
    let passed = total - failed - skipped;
    println!("{total} checks on {}: {passed} passed, {failed} failed, {skipped} skipped", engine.name());
    Ok(if failed == 0 { Exit::Ok } else { Exit::Sql })
}

/// Runs random queries on the device; `Err` describes the first differences, and how to run each again.
async fn random_queries(engine: &Arc<Engine>, seed: u64, queries: u64) -> Result<(), String> {
    // On a real device, assembling a query's kernels takes about ten milliseconds on one core. Findings of the
    // simulated device are attributed to a query only if one query runs at a time.
    let workers = if engine.is_simulated() { 1 } else { 8 };
    let options = fuzz::Options { seed, queries, workers, differences: 3, reduce_runs: 60, ..fuzz::Options::default() };
    let summary = fuzz::run_on(Arc::clone(engine), options, |_| ()).await.map_err(|e| e.strip_backtrace())?;
    if !summary.differences.is_empty() {
        return Err(summary.differences.join("\n"));
    }
    // If nearly all queries fall back to the CPU, the check proves nothing.
    match summary.wholly_on_device * 10 < summary.queries {
        true => Err(format!("too few of them run on the device: {summary}")),
        false => Ok(()),
    }
}
