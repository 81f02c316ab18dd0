//! Random queries, the simulated device against DataFusion: a difference is a bug.
//!
//! ```text
//!   seed ─► tables                        ┌─► same
//!     └──► query 0, 1, 2, … ─► lab ───────┤
//!                                         └─► differs ─► reduced ─► a line to paste, and what is wrong
//! ```
//!
//! Again   `cargo fuzz-sql --seed S --first N --queries 1` makes the same tables and the same query again.
//! Floats  within the tolerance of [`millpond_queries::answer`]; everything else exactly.

pub mod data;
pub mod expr;
pub mod lab;
pub mod query;
pub mod rng;
pub mod ty;

use std::collections::BTreeMap;
use std::fmt;

use millpond::datafusion::error::Result;

use self::lab::{Lab, Verdict};
use self::query::Query;

/// What to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    pub seed: u64,
    /// Number of the first query.
    pub first: u64,
    pub queries: u64,
    /// Give up after this many differences.
    pub differences: usize,
    /// Further runs for making a query that differs smaller.
    pub reduce_runs: usize,
    /// Print every query.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1, first: 0, queries: 1000, differences: 10, reduce_runs: 400, verbose: false }
    }
}

/// Counts of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    pub queries: u64,
    pub same: u64,
    /// Of the same ones: every operator ran on the device.
    pub wholly_on_device: u64,
    /// Of the same ones: nothing ran on the device.
    pub not_on_device: u64,
    pub both_fail: u64,
    pub device_answers_alone: u64,
    /// One paragraph per difference.
    pub differences: Vec<String>,
    /// Why operators stayed on the CPU, and how often; names of columns and functions are part of a reason.
    pub reasons: BTreeMap<String, u64>,
}

impl Summary {
    /// The share of the queries that ran wholly on the device.
    pub fn share_on_device(&self) -> f64 {
        self.wholly_on_device as f64 / self.queries.max(1) as f64
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} queries: {} same ({} wholly on the device, {} not at all), {} fail on both sides, \
             {} answered where DataFusion fails over unneeded rows, {} differ; {:.0} % wholly on the device",
            self.queries,
            self.same,
            self.wholly_on_device,
            self.not_on_device,
            self.both_fail,
            self.device_answers_alone,
            self.differences.len(),
            self.share_on_device() * 100.0
        )
    }
}

/// Runs the queries, telling `say` about each difference as it is found.
///
/// # Errors
/// When the sessions or tables cannot be made; a query's failure is an outcome.
pub async fn run(options: Options, mut say: impl FnMut(&str)) -> Result<Summary> {
    let lab = Lab::open(options.seed).await?;
    let mut summary = Summary::default();
    for number in options.first..options.first + options.queries {
        let query = Query::random(options.seed, number);
        let variant = number as usize % lab::VARIANTS.len();
        if options.verbose {
            say(&format!("{number}: {}", query.sql()));
        }
        let verdict = lab.judge(&query, variant).await;
        summary.queries += 1;
        match verdict {
            Verdict::Same { wholly, none, reasons, .. } => {
                summary.same += 1;
                summary.wholly_on_device += u64::from(wholly);
                summary.not_on_device += u64::from(none);
                for reason in reasons {
                    *summary.reasons.entry(reason).or_default() += 1;
                }
            }
            Verdict::BothFail { message } => {
                summary.both_fail += 1;
                if options.verbose {
                    say(&format!("{number} fails on both sides: {message}"));
                }
            }
            Verdict::DeviceAnswersAlone { .. } => summary.device_answers_alone += 1,
            Verdict::Differs { kind, message } => {
                let (smallest, why) = lab.reduce(&query, variant, kind, options.reduce_runs).await;
                let why = if why.is_empty() { message } else { why };
                let text = format!(
                    "{kind:?} differs: cargo fuzz-sql --seed {:#x} --first {number} --queries 1    -- {:?}\n  \
                     query    {}\n  smallest {}\n  because  {why}",
                    options.seed,
                    lab::VARIANTS[variant],
                    query.sql(),
                    smallest.sql(),
                );
                say(&text);
                summary.differences.push(text);
                if summary.differences.len() >= options.differences {
                    break;
                }
            }
        }
    }
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sample of CI; `cargo fuzz-sql` runs longer ones.
    #[tokio::test(flavor = "multi_thread")]
    async fn random_queries_give_the_answers_of_the_cpu() {
        let options = Options { seed: 0x5eed, queries: 1000, differences: 3, reduce_runs: 100, ..Options::default() };
        let summary = run(options, |line| println!("{line}")).await.expect("the lab opens");
        println!("{summary}");
        assert!(summary.differences.is_empty(), "{}", summary.differences.join("\n"));
        assert!(summary.share_on_device() > 0.3, "the generator no longer exercises the device: {summary}");
        assert!(summary.both_fail * 3 < summary.queries, "too many queries fail on both sides: {summary}");
    }
}
