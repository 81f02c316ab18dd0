//! Random queries, a device against DataFusion: a difference is a bug.
//!
//! ```text
//!   seed ─► tables                        ┌─► same
//!     └──► query 0, 1, 2, … ─► lab ───────┤
//!                                         └─► differs ─► reduced ─► a line to paste, and what is wrong
//! ```
//!
//! Pairs   half of the queries have a twin with other constants (`pair.rs`): the two run in turn, on one session.
//! Tables  of a tenth tables are made, which take over what runs of the query have found, right or wrong.
//! Again   `cargo fuzz-sql --seed S --first N --queries 1` makes the same tables and the same query again.
//! Floats  within the tolerance of [`millpond_queries::answer`]; everything else exactly.

pub mod constant;
pub mod data;
pub mod devices;
pub mod expr;
pub mod lab;
mod made;
pub mod pair;
pub mod query;
pub mod rng;
pub mod source;
pub mod ty;
pub mod variant;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond::DeviceChoice;
use millpond::datafusion::error::{DataFusionError, Result};
use millpond::device::Engine;

use self::devices::Devices;
use self::lab::{Kind, Lab, Operators, Verdict};
use self::pair::Outcome;
use self::query::Query;
use self::variant::{Trial, VARIANTS};

/// Options of a fuzz run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    pub seed: u64,
    /// Devices compared with DataFusion: simulated devices, one per worker and variant, or one device shared by all.
    pub device: DeviceChoice,
    /// Number of the first query.
    pub first: u64,
    pub queries: u64,
    /// Give up after this many differences.
    pub differences: usize,
    /// Further runs for making a query that differs smaller, and as many for its rows.
    pub reduce_runs: usize,
    /// Queries that run at a time, each with sessions and tables of its own.
    pub workers: u64,
    /// The variant of all queries; `None` for each of them in turn.
    pub variant: Option<usize>,
    /// Print every query.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        let device = DeviceChoice::Sim;
        let (differences, reduce_runs) = (10, 400);
        Self {
            seed: 1,
            device,
            first: 0,
            queries: 1000,
            differences,
            reduce_runs,
            workers: 2,
            variant: None,
            verbose: false,
        }
    }
}

/// Queries that failed on a side where that is allowed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Failures {
    pub both: u64,
    pub cpu_alone: u64,
    pub device_alone: u64,
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
    pub failures: Failures,
    /// Queries that ran in turn with a twin, and those of them whose two answers are not equal.
    pub pairs: u64,
    pub pairs_apart: u64,
    /// Queries of which tables were made.
    pub made: u64,
    /// One paragraph per difference.
    pub differences: Vec<String>,
    /// Why operators stayed on the CPU, and how often; names of columns and functions are part of a reason.
    pub reasons: BTreeMap<String, u64>,
    /// Operators of the same ones.
    pub operators: Operators,
}

impl Summary {
    fn add(&mut self, other: Summary) {
        self.queries += other.queries;
        self.same += other.same;
        self.wholly_on_device += other.wholly_on_device;
        self.not_on_device += other.not_on_device;
        self.failures.both += other.failures.both;
        self.failures.cpu_alone += other.failures.cpu_alone;
        self.failures.device_alone += other.failures.device_alone;
        self.pairs += other.pairs;
        self.pairs_apart += other.pairs_apart;
        self.made += other.made;
        self.differences.extend(other.differences);
        for (reason, times) in other.reasons {
            *self.reasons.entry(reason).or_default() += times;
        }
        for (name, (device, cpu)) in other.operators {
            let counts = self.operators.entry(name).or_default();
            *counts = (counts.0 + device, counts.1 + cpu);
        }
    }

    /// A line per operator: how many of them ran on the device.
    pub fn operators_text(&self) -> String {
        let line = |(name, (device, cpu)): (&String, &(u64, u64))| {
            let all = device + cpu;
            format!("{name}: {device} of {all} on the device ({:.0} %)", 100.0 * *device as f64 / all.max(1) as f64)
        };
        self.operators.iter().map(line).collect::<Vec<_>>().join("\n")
    }

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
             {} answered where DataFusion fails over unneeded rows, {} fail where DataFusion does not need the rows, {} differ; {:.0} % wholly on the device; \
             {} in turn with a twin of other constants, {} of these with another answer; of {} tables were made",
            self.queries,
            self.same,
            self.wholly_on_device,
            self.not_on_device,
            self.failures.both,
            self.failures.cpu_alone,
            self.failures.device_alone,
            self.differences.len(),
            self.share_on_device() * 100.0,
            self.pairs,
            self.pairs_apart,
            self.made
        )
    }
}

/// Runs the queries, telling `say` about the run, and about each difference as it is found.
///
/// # Errors
/// When the device, the sessions or the tables cannot be made; a query's failure is an outcome.
pub async fn run(options: Options, say: impl Fn(&str) + Clone + Send + 'static) -> Result<Summary> {
    run_over(options, Devices::open(options.device)?, say).await
}

/// The same as [`run`] on an open device; `options.device` is not read.
///
/// # Errors
/// Those of [`run`].
pub async fn run_on(
    engine: Arc<Engine>,
    options: Options,
    say: impl Fn(&str) + Clone + Send + 'static,
) -> Result<Summary> {
    run_over(options, Devices::around(engine)?, say).await
}

async fn run_over(options: Options, devices: Devices, say: impl Fn(&str) + Clone + Send + 'static) -> Result<Summary> {
    let options = Options { device: devices.choice(), ..options };
    let Options { seed, first, queries, workers, .. } = options;
    let variants = match options.variant {
        Some(variant) => format!("variant {variant}, {:?}", VARIANTS[variant]),
        None => format!("{} variants in turn", VARIANTS.len()),
    };
    say(&format!(
        "seed {seed:#x}: queries {first} to {} over {}, {workers} at a time, under {variants}",
        (first + queries).saturating_sub(1),
        devices.name(),
    ));
    let (found, devices) = (Arc::new(AtomicUsize::new(0)), Arc::new(devices));
    let workers: Vec<_> = (0..workers.clamp(1, queries.max(1)))
        .map(|worker| tokio::spawn(work(options, worker, Arc::clone(&devices), Arc::clone(&found), say.clone())))
        .collect();
    let mut summary = Summary::default();
    for worker in workers {
        summary.add(worker.await.map_err(|panic| DataFusionError::External(Box::new(panic)))??);
    }
    for wrong in devices.left().await {
        say(&wrong);
        summary.differences.push(wrong);
    }
    Ok(summary)
}

/// Every `options.workers`-th query.
async fn work(
    options: Options,
    worker: u64,
    devices: Arc<Devices>,
    found: Arc<AtomicUsize>,
    say: impl Fn(&str),
) -> Result<Summary> {
    let lab = Lab::open(options.seed, &devices).await?;
    let mut summary = Summary::default();
    let workers = options.workers.clamp(1, options.queries.max(1)) as usize;
    let numbers = (options.first + worker..options.first + options.queries).step_by(workers);
    for number in numbers {
        if found.load(Ordering::Relaxed) >= options.differences {
            break;
        }
        let mut trial = Trial::of(options.seed, number, options.variant);
        let query = trial.query(options.seed, number);
        let twin = query.twin().sql();
        if twin == query.sql() {
            trial.pair = None;
        }
        if options.verbose {
            say(&format!("{number}: {}", query.sql()));
        }
        let verdict = match trial.pair {
            None => {
                summary.made += u64::from(trial.made.is_some());
                lab.judge(&query, trial).await
            }
            Some(order) => {
                if options.verbose {
                    say(&format!("{number}, its twin: {twin}"));
                }
                let Outcome { verdict, apart } = lab.judge_pair(&query, trial.variant, order).await;
                summary.pairs += 1;
                summary.pairs_apart += u64::from(apart);
                verdict
            }
        };
        summary.queries += 1;
        match verdict {
            Verdict::Same { wholly, none, reasons, operators, .. } => {
                let one = Summary {
                    same: 1,
                    wholly_on_device: u64::from(wholly),
                    not_on_device: u64::from(none),
                    reasons: reasons.into_iter().map(|reason| (reason, 1)).collect(),
                    operators,
                    ..Summary::default()
                };
                summary.add(one);
            }
            Verdict::BothFail { message } => {
                summary.failures.both += 1;
                if options.verbose {
                    say(&format!("{number} fails on both sides: {message}"));
                }
            }
            Verdict::DeviceAnswersAlone { .. } => summary.failures.cpu_alone += 1,
            Verdict::DeviceFailsAlone { message } => {
                summary.failures.device_alone += 1;
                if options.verbose {
                    say(&format!("{number} fails on the device alone: {message}"));
                }
            }
            Verdict::Differs { kind, message } => {
                found.fetch_add(1, Ordering::Relaxed);
                let (smallest, why) = lab.reduce(&query, trial, kind, options.reduce_runs).await;
                let why = if why.is_empty() { message } else { why };
                let rows = lab.reduce_rows(&smallest, trial, kind, options.reduce_runs).await?;
                let again = arguments(&options, &devices, trial);
                let text = report(&options, &again, (number, trial, kind), (&query, &smallest), (&why, &rows));
                say(&text);
                summary.differences.push(text);
            }
        }
    }
    Ok(summary)
}

/// Further arguments of the command that repeats a query.
fn arguments(options: &Options, devices: &Devices, trial: Trial) -> String {
    let mut again = String::new();
    if let Some(variant) = options.variant {
        again += &format!(" --variant {variant}");
    }
    if devices.is_shared() {
        again += &format!(" --device {}", options.device);
    }
    if let Some(each) = trial.made {
        again += &format!("    -- as a table, with debug_surprises = {each}");
    }
    again
}

/// The paragraph of a difference: the command that repeats it, the query and the smallest one with their twins, why the
/// answers differ, and over which rows.
fn report(
    options: &Options,
    again: &str,
    (number, trial, kind): (u64, Trial, Kind),
    (query, smallest): (&Query, &Query),
    (why, rows): (&str, &str),
) -> String {
    let twin_of = |query: &Query| match trial.pair {
        Some(_) => format!("\n  its twin {}", query.twin().sql()),
        None => String::new(),
    };
    format!(
        "{kind:?} differs: cargo fuzz-sql --seed {:#x} --first {number} --queries 1{again}    -- {:?}\n  \
         query    {}{}\n  smallest {}{}\n  because  {why}\n  over     {rows}",
        options.seed,
        VARIANTS[trial.variant],
        query.sql(),
        twin_of(query),
        smallest.sql(),
        twin_of(smallest),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sample of CI; `cargo fuzz-sql` runs longer ones.
    #[tokio::test(flavor = "multi_thread")]
    async fn random_queries_give_the_answers_of_the_cpu() {
        let seed = millpond_data::seed::of_commit("MILLPOND_FUZZ_SEED");
        let options = Options { seed, queries: 1000, differences: 3, reduce_runs: 100, ..Options::default() };
        let summary = run(options, |line| println!("{line}")).await.expect("the lab opens");
        println!("{}\n{summary}", summary.operators_text());
        assert!(summary.differences.is_empty(), "{}", summary.differences.join("\n"));
        assert!(summary.share_on_device() > 0.15, "the generator no longer exercises the device: {summary}");
        assert!(
            summary.failures.device_alone * 100 < summary.queries,
            "rows that the answer does not need fail too often: {summary}"
        );
        assert!(summary.pairs * 5 > summary.queries, "too few queries have twins: {summary}");
        // Every seed is another sample: each limit is at least four standard deviations from the usual share.
        // Usual are pairs 0.48, tables 0.10 of all queries and another answer 0.22 of the pairs.
        assert!(summary.made * 16 > summary.queries, "of too few queries tables are made: {summary}");
        assert!(summary.pairs_apart * 8 > summary.pairs, "twins seldom have another answer: {summary}");
        assert!(summary.failures.both * 4 < summary.queries, "too many queries fail on both sides: {summary}");
    }
}
