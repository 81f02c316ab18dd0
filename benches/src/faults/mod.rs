//! Makes each driver call of every query fail in turn: no run may end in a wrong answer, a leak or a hang.
//!
//! ```text
//!   32 queries × 26 kinds of calls × { once │ until something is freed │ for ever │ lost │ late } × every n
//!        └─► the right answer │ the CPU's answer with a note │ a clear error, where the CPU may not take over
//! ```
//!
//! Again   `cargo fault-sweep --query Q --call C --fault F --nth N` runs one case once more.
//! Sample  some of the kinds and faults of each query, and of these some n, by a seed.

pub mod lab;
pub mod queries;

use std::collections::BTreeMap;
use std::fmt;

use millpond::Fallback;
use millpond::datafusion::error::Result;
use millpond_memory::driver::sim::CallKind;

use self::lab::{Case, Ended, Fault, Lab, Undisturbed};
use self::queries::queries;
use crate::fuzz::rng::Rng;

/// Options of a sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Only the query of this name.
    pub query: Option<String>,
    /// Only calls of this kind.
    pub call: Option<CallKind>,
    /// Only this fault.
    pub fault: Option<Fault>,
    /// Only this call.
    pub nth: Option<u64>,
    /// Maximum number of calls per kind, fault and query; `None` tests every call.
    pub sample: Option<usize>,
    /// Of the kinds and faults of each query, one in this many is tested.
    pub one_in: usize,
    /// Chooses the sample.
    pub seed: u64,
    /// Print every case.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        let (query, call, fault, nth) = (None, None, None, None);
        Self { query, call, fault, nth, sample: None, one_in: 1, seed: 1, verbose: false }
    }
}

/// Counts of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    pub queries: u64,
    /// Calls of these queries when nothing fails.
    pub calls: u64,
    pub ended: BTreeMap<(CallKind, Fault, Ended), u64>,
    /// One line per failed case.
    pub failures: Vec<String>,
}

impl Summary {
    /// Cases that ended so, of those that `of` chooses.
    pub fn count(&self, of: impl Fn(CallKind, Fault) -> bool, ended: Ended) -> u64 {
        self.ended.iter().filter(|((call, fault, how), _)| *how == ended && of(*call, *fault)).map(|(_, n)| n).sum()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} queries with {} calls", self.queries, self.calls)?;
        let line = |of: &dyn Fn(CallKind, Fault) -> bool| {
            let [missed, answered, noted, refused] =
                [Ended::NotReached, Ended::Answered, Ended::Noted, Ended::Refused].map(|ended| self.count(of, ended));
            format!(
                "{answered} answered by the device, {noted} by the CPU with a note, {refused} clear errors, {missed} not reached"
            )
        };
        for fault in Fault::ALL {
            write!(f, "\n  {:17} {}", fault.name(), line(&|_, of| of == fault))?;
        }
        for call in CallKind::ALL {
            write!(f, "\n  {:17} {}", format!("{call:?}"), line(&|of, _| of == *call))?;
        }
        write!(f, "\n  {} failures", self.failures.len())
    }
}

/// The cases of one query.
fn cases(options: &Options, number: u64, undisturbed: &Undisturbed) -> Vec<Case> {
    let mut rng = Rng::new(options.seed, number);
    let mut cases = Vec::new();
    for &call in CallKind::ALL.iter().filter(|call| options.call.is_none_or(|only| only == **call)) {
        for fault in Fault::ALL.into_iter().filter(|fault| options.fault.is_none_or(|only| only == *fault)) {
            let calls = undisturbed.calls(call, fault);
            if calls == 0 || !fault.is_of(call) || rng.below(options.one_in.max(1)) != 0 {
                continue;
            }
            let all: Vec<u64> = match (options.nth, options.sample) {
                (Some(nth), _) => vec![nth],
                (None, None) => (1..=calls).collect(),
                (None, Some(some)) => (0..some).map(|_| 1 + rng.draw() % calls).collect(),
            };
            for nth in all {
                let fallbacks = [Fallback::Allow, Fallback::Error];
                let some = if options.sample.is_some() { vec![rng.pick(&fallbacks)] } else { fallbacks.to_vec() };
                cases.extend(some.into_iter().map(|fallback| Case { call, fault, nth, fallback }));
            }
        }
    }
    cases
}

/// Runs the cases, telling `say` about each failure as it is found.
///
/// # Errors
/// When the sessions or tables cannot be made; a case that fails is an outcome.
pub async fn run(options: &Options, mut say: impl FnMut(&str)) -> Result<Summary> {
    let mut lab = Lab::open().await?;
    let mut summary = Summary::default();
    for (number, query) in (0..).zip(queries()) {
        if options.query.as_ref().is_some_and(|name| name != query.name) {
            continue;
        }
        let undisturbed = match lab.undisturbed(&query).await {
            Ok(undisturbed) => undisturbed,
            Err(why) => {
                summary.failures.push(format!("{} without a failure: {why}", query.name));
                say(&summary.failures[summary.failures.len() - 1]);
                continue;
            }
        };
        summary.queries += 1;
        summary.calls += undisturbed.fresh.values().sum::<u64>();
        for case in cases(options, number, &undisturbed) {
            let Case { call, fault, nth, fallback } = case;
            let again = format!(
                "cargo fault-sweep --query {} --call {call:?} --fault {} --nth {nth}    -- fallback {fallback}",
                query.name,
                fault.name()
            );
            match lab.judge(&query, &undisturbed.answer, case).await {
                Ok(ended) => {
                    *summary.ended.entry((call, fault, ended)).or_default() += 1;
                    if options.verbose {
                        say(&format!("{again}: {ended:?}"));
                    }
                }
                Err(why) => {
                    summary.failures.push(format!("{again}\n  {why}"));
                    say(&summary.failures[summary.failures.len() - 1]);
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
    async fn calls_that_fail_leave_no_wrong_answer_and_nothing_behind() {
        let options = Options { sample: Some(1), one_in: 4, seed: 0x5eed, ..Options::default() };
        let summary = run(&options, |line| println!("{line}")).await.expect("the lab opens");
        println!("{summary}");
        assert!(summary.failures.is_empty(), "{}", summary.failures.join("\n"));
        assert_eq!(summary.queries, queries().len() as u64);
        for fault in Fault::ALL {
            assert!(summary.ended.keys().any(|(_, of, _)| *of == fault), "no case of {fault:?}: {summary}");
        }
        // A device that is lost has answered nothing, and where the CPU may take over there are no errors.
        assert!(summary.count(|_, fault| fault == Fault::Once, Ended::Answered) > 20, "{summary}");
        assert!(summary.count(|_, fault| fault == Fault::Lost, Ended::Noted) > 0, "{summary}");
        assert!(summary.count(|_, fault| fault == Fault::Late, Ended::Refused) > 0, "{summary}");
    }

    /// Every allocation of a query, each failing once: the next try cures it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_allocation_that_fails_is_cured_by_the_next_try() {
        let call = Some(CallKind::Allocate);
        let options = Options { query: Some("q01".into()), call, fault: Some(Fault::Once), ..Options::default() };
        let summary = run(&options, |line| println!("{line}")).await.expect("the lab opens");
        assert!(summary.failures.is_empty(), "{}", summary.failures.join("\n"));
        assert_eq!((summary.count(|_, _| true, Ended::Noted), summary.count(|_, _| true, Ended::Refused)), (0, 0));
        assert!(summary.count(|_, _| true, Ended::Answered) > 20, "{summary}");
    }
}
