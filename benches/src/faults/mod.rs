//! Allocations that fail, one after the other, in every query: no run may end in a wrong answer, a leak or a hang.
//!
//! ```text
//!   20 queries × { the n-th allocation fails once │ the n-th and all later ones, until something is freed } × every n
//!        └─► the right answer │ a clear error, or the CPU's answer with a note, where nothing is left to free
//! ```
//!
//! Again   `cargo fault-sweep --query Q --fault F --nth N` runs one case once more.
//! Sample  with a stride, every so many-th n, beginning at one that the seed chooses per query and fault.

pub mod lab;
pub mod queries;

use std::collections::BTreeMap;
use std::fmt;

use millpond::Fallback;
use millpond::datafusion::error::Result;

use self::lab::{Ended, Fault, Lab};
use self::queries::queries;
use crate::fuzz::rng::Rng;

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Only the query of this name.
    pub query: Option<String>,
    /// Only this fault.
    pub fault: Option<Fault>,
    /// Only this allocation.
    pub nth: Option<u64>,
    /// Every so many-th allocation.
    pub stride: u64,
    /// Chooses where a stride begins.
    pub seed: u64,
    /// Print every case.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { query: None, fault: None, nth: None, stride: 1, seed: 1, verbose: false }
    }
}

/// Counts of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    pub queries: u64,
    /// Allocations of these queries when nothing fails.
    pub allocations: u64,
    pub ended: BTreeMap<(&'static str, Ended), u64>,
    /// One line per case that is not as it should be.
    pub failures: Vec<String>,
}

impl Summary {
    /// Cases of `fault` that ended so.
    pub fn count(&self, fault: Fault, ended: Ended) -> u64 {
        self.ended.get(&(fault.name(), ended)).copied().unwrap_or(0)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} queries with {} allocations", self.queries, self.allocations)?;
        for fault in Fault::ALL {
            let [missed, answered, noted, refused] =
                [Ended::NotReached, Ended::Answered, Ended::Noted, Ended::Refused].map(|e| self.count(fault, e));
            write!(
                f,
                "\n  {:10} {answered} answered by the device, {noted} by the CPU with a note, {refused} clear errors, \
                 {missed} not reached",
                fault.name()
            )?;
        }
        write!(f, "\n  {} failures", self.failures.len())
    }
}

/// Runs the cases, telling `say` about each failure as it is found.
///
/// # Errors
/// When the sessions or tables cannot be made; a case that fails is an outcome.
pub async fn run(options: &Options, mut say: impl FnMut(&str)) -> Result<Summary> {
    let lab = Lab::open().await?;
    let mut summary = Summary::default();
    for (number, query) in queries().into_iter().enumerate() {
        if options.query.as_ref().is_some_and(|name| name != query.name) {
            continue;
        }
        let (expected, allocations) = match lab.expected(&query).await {
            Ok(expected) => expected,
            Err(why) => {
                summary.failures.push(format!("{} without a failure: {why}", query.name));
                say(&summary.failures[summary.failures.len() - 1]);
                continue;
            }
        };
        summary.queries += 1;
        summary.allocations += allocations;
        for fault in Fault::ALL.into_iter().filter(|fault| options.fault.is_none_or(|only| only == *fault)) {
            let stride = options.stride.max(1);
            let first = 1 + Rng::new(options.seed, number as u64 * 2 + fault as u64).draw() % stride;
            let all: Vec<u64> = match options.nth {
                Some(nth) => vec![nth],
                None => (first..=allocations).step_by(stride as usize).collect(),
            };
            for nth in all {
                for fallback in [Fallback::Allow, Fallback::Error] {
                    let case = format!(
                        "cargo fault-sweep --query {} --fault {} --nth {nth}    -- fallback {fallback}",
                        query.name,
                        fault.name()
                    );
                    match lab.judge(&query, &expected, fault, nth, fallback).await {
                        Ok(ended) => {
                            *summary.ended.entry((fault.name(), ended)).or_default() += 1;
                            if options.verbose {
                                say(&format!("{case}: {ended:?}"));
                            }
                        }
                        Err(why) => {
                            summary.failures.push(format!("{case}\n  {why}"));
                            say(&summary.failures[summary.failures.len() - 1]);
                        }
                    }
                }
            }
        }
    }
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sample of CI; `cargo fault-sweep` runs all of them.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn allocations_that_fail_leave_no_wrong_answer_and_nothing_behind() {
        let options = Options { stride: 5, seed: 0x5eed, ..Options::default() };
        let summary = run(&options, |line| println!("{line}")).await.expect("the lab opens");
        println!("{summary}");
        assert!(summary.failures.is_empty(), "{}", summary.failures.join("\n"));
        assert_eq!(summary.queries, 20);
        // One failure is cured by the next try.
        assert_eq!((summary.count(Fault::Once, Ended::Noted), summary.count(Fault::Once, Ended::Refused)), (0, 0));
        assert!(summary.count(Fault::Once, Ended::Answered) > 20, "{summary}");
        assert!(summary.count(Fault::UntilFree, Ended::Answered) > 0, "{summary}");
    }
}
