//! Many sessions on one device for a stated time: do answers, memory, handles and files stay as they should?
//!
//! ```text
//!   seed ─► sessions 0 … n ─► statements ─► one device ─► answers, against the CPU's ─┐
//!                                              │                                      ├─► Report: what differs, what
//!                                                                                         grows, what is left
//!             at even times ─► a Sighting ◄────┴──── /proc, pools, caches, folders ───┘
//! ```
//!
//! One      device, pool, store and cache of pipelines, shared as
//!          [`with_engine`](millpond::session::MillpondBuilder::with_engine) has it.
//! Judged   answers are the CPU's; no findings; nothing grows by more than its bound after a third of the time
//!          ([`judge`], [`FIGURES`]).
//! Left     when all sessions are dropped: no byte of the pool in use, nothing pinned on its way, no temporary file, no
//!          device.
//! Again    the seed gives each session the same statements again; how they meet is up to the machine.

pub mod judge;
pub mod session;
pub mod sighting;
pub mod workload;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use millpond::datafusion::error::Result;
use millpond::device::Engine;
use millpond::store::Store;
use millpond::{MillpondOptions, QueryReport};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::judge::{Bound, Trend};
use self::sighting::{FIGURES, Figure, OF_A_THREAD, RESIDENT, Sighting, files_below, most_threads};
use self::workload::{Source, Workload};
use crate::fuzz::lab::note_panics;

/// Options of a soak run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Initial options of each session.
    pub millpond: MillpondOptions,
    pub seconds: u64,
    /// Sessions at a time.
    pub sessions: usize,
    pub seed: u64,
    /// Sessions take them in turn.
    pub sources: Vec<Source>,
    /// Time between sightings.
    pub every: Duration,
}

impl Options {
    /// A sixtieth of the time, and at least a second.
    pub fn every_of(seconds: u64) -> Duration {
        Duration::from_secs_f64((seconds as f64 / 60.0).max(1.0))
    }
}

/// Totals of all sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Sessions that were opened.
    pub sessions: u64,
    /// Statements with equal answers.
    pub same: u64,
    /// Those that fail on both sides, and those that one side may refuse: see [`Verdict`](crate::fuzz::lab::Verdict).
    pub both_fail: u64,
    pub one_fails: u64,
    pub cancelled: u64,
    /// Tables that were made of an answer, and dropped.
    pub made: u64,
    /// Options that were set.
    pub set: u64,
    /// Statements that launched a kernel.
    pub on_device: u64,
    /// Findings of the simulated device.
    pub findings: u64,
    /// Number of failed statements; only the first [`FAILURES_TOLD`] are reported.
    pub failures: u64,
}

impl Tally {
    pub fn statements(&self) -> u64 {
        self.same + self.both_fail + self.one_fails + self.cancelled + self.failures
    }
}

/// A statement that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub workload: String,
    /// Number of the worker and of its statement: the same under the same seed.
    pub session: usize,
    pub statement: u64,
    /// Settings of the session.
    pub settings: Vec<String>,
    pub text: String,
    pub what: String,
}

/// Maximum number of failures reported: more add no information.
pub const FAILURES_TOLD: usize = 20;
/// Notes have numbers in them.
const NOTES_TOLD: usize = 40;

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Report {
    pub device: String,
    pub seconds: f64,
    /// Ended early, on request.
    pub interrupted: bool,
    pub tally: Tally,
    pub failures: Vec<Failure>,
    /// Notes of statements, such as the reason for a fallback, with their counts.
    pub notes: BTreeMap<String, u64>,
    pub seen: Vec<Sighting>,
    /// Trend of each figure that is judged or reported.
    pub trends: Vec<(&'static str, Option<Trend>)>,
    /// Resources that should have been released with the sessions.
    pub left: Vec<String>,
}

impl Report {
    /// Defects, one line each.
    pub fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.tally.failures > 0 {
            wrong.push(format!("{} statements are not as they should be", self.tally.failures));
        }
        if self.tally.findings > 0 {
            wrong.push(format!("{} findings of the simulated device", self.tally.findings));
        }
        for (name, trend) in &self.trends {
            if let Some(Trend::Grows { middle, last, bound }) = trend {
                wrong.push(format!("{name} grow from {middle:.0} to {last:.0}, by more than {bound:.0}"));
            }
        }
        wrong.extend(self.left.iter().cloned());
        if !self.interrupted && self.tally.on_device == 0 {
            wrong.push("no statement ran on the device".to_string());
        }
        wrong
    }
}

/// State shared by the sessions.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) engine: Arc<Engine>,
    pub(crate) workloads: Vec<Arc<Workload>>,
    /// Folder for the sessions' files.
    pub(crate) temporary: tempfile::TempDir,
    /// Plans that each session keeps.
    pub(crate) plans: Vec<AtomicU64>,
    tally: Mutex<Tally>,
    failures: Mutex<Vec<Failure>>,
    notes: Mutex<BTreeMap<String, u64>>,
}

impl Shared {
    pub(crate) fn tally(&self, change: impl FnOnce(&mut Tally)) {
        change(&mut lock(&self.tally));
    }

    fn tallied(&self) -> Tally {
        *lock(&self.tally)
    }

    /// Counts what a statement's report says.
    pub(crate) fn count(&self, report: &QueryReport) {
        self.tally(|tally| {
            tally.on_device += u64::from(report.launches > 0);
            tally.findings += report.findings.len() as u64;
        });
        let mut notes = lock(&self.notes);
        for note in &report.notes {
            if notes.len() < NOTES_TOLD || notes.contains_key(note) {
                *notes.entry(note.clone()).or_default() += 1;
            }
        }
    }

    pub(crate) fn fail(&self, failure: Failure) {
        self.tally(|tally| tally.failures += 1);
        let mut failures = lock(&self.failures);
        if failures.len() < FAILURES_TOLD {
            failures.push(failure);
        }
    }

    fn sighting(&self, began: Instant) -> Sighting {
        // Findings that no report took: a query that failed or was dropped leaves them to the next caller.
        let findings = self.engine.take_findings();
        if let Some(first) = findings.first() {
            self.tally(|tally| tally.findings += findings.len() as u64);
            let (workload, what) = ("any".to_string(), first.clone());
            let text = "of a statement that failed or was cancelled".to_string();
            self.fail(Failure { workload, session: 0, statement: 0, settings: Vec::new(), text, what });
        }
        let tally = self.tallied();
        Sighting {
            at_ms: began.elapsed().as_millis() as u64,
            statements: tally.statements(),
            findings: tally.findings,
            plans: self.plans.iter().map(|plans| plans.load(Ordering::Relaxed)).sum(),
            ..Sighting::now(&self.engine, self.temporary.path())
        }
    }
}

/// Longest time that sessions and what they left may take to end.
const ENDING: Duration = Duration::from_secs(60);

/// Runs sessions until the time is over or `stop` is set, telling `tell` every sighting. Takes the last hold of the
/// device.
///
/// # Errors
/// When a workload or the folder for temporary files cannot be made; what goes wrong later is part of the report.
pub async fn run(
    options: Options,
    engine: Arc<Engine>,
    stop: Arc<AtomicBool>,
    mut tell: impl FnMut(&Sighting),
) -> Result<Report> {
    note_panics();
    let mut workloads = Vec::new();
    for source in options.sources.clone() {
        workloads.push(Arc::new(Workload::open(source).await?));
    }
    let sessions = options.sessions.max(1);
    let (seconds, every) = (options.seconds, options.every);
    let shared = Arc::new(Shared {
        options,
        engine,
        workloads,
        temporary: tempfile::tempdir()?,
        plans: (0..sessions).map(|_| AtomicU64::new(0)).collect(),
        tally: Mutex::default(),
        failures: Mutex::default(),
        notes: Mutex::default(),
    });
    let (end, ended) = watch::channel(false);
    let mut workers = JoinSet::new();
    for number in 0..sessions {
        let (shared, mut ended) = (Arc::clone(&shared), ended.clone());
        workers.spawn(async move {
            tokio::select! {
                biased;
                _ = ended.wait_for(|ended| *ended) => {}
                () = session::sessions(&shared, number) => {}
            }
        });
    }
    let (began, whole) = (Instant::now(), Duration::from_secs(seconds));
    let mut seen = Vec::new();
    let asked = || stop.load(Ordering::Relaxed);
    while began.elapsed() < whole && !asked() {
        if began.elapsed() >= every * (seen.len() as u32 + 1) {
            seen.push(shared.sighting(began));
            seen.last().iter().for_each(|last| tell(last));
        }
        tokio::time::sleep(Duration::from_millis(50).min(every)).await;
    }
    let (seconds, interrupted) = (began.elapsed().as_secs_f64(), asked());
    let _ = end.send(true);
    let mut left = Vec::new();
    let joining = async {
        while let Some(worker) = workers.join_next().await {
            left.extend(worker.err().map(|error| format!("a session: {error}")));
        }
    };
    let joined = tokio::time::timeout(ENDING, joining).await;
    drop(workers);
    if joined.is_err() {
        left.push(format!("a session does not end within {} seconds", ENDING.as_secs()));
    }
    left.extend(in_use(&shared).await);
    let (last, device) = (shared.sighting(began), shared.engine.name().to_string());
    seen.push(last);
    let files = files_below(shared.temporary.path());
    if files > 0 {
        left.push(format!("{files} temporary files stay"));
    }
    // The last one is of a device at rest.
    let trends = trends(&seen[..seen.len() - 1]);
    let threads = seen.iter().map(|seen| seen.threads).max().unwrap_or(0);
    if threads > most_threads(sessions) {
        left.push(format!("{threads} threads of {sessions} sessions, more than {}", most_threads(sessions)));
    }
    let (tally, failures) = (shared.tallied(), std::mem::take(&mut *lock(&shared.failures)));
    let notes = std::mem::take(&mut *lock(&shared.notes));
    let engine = Arc::downgrade(&shared.engine);
    drop(shared);
    if !is_gone(&engine).await {
        left.push("the device stays open".to_string());
    }
    Ok(Report { device, seconds, interrupted, tally, failures, notes, seen, trends, left })
}

/// Trend of each figure. Each further thread adds a heap.
fn trends(seen: &[Sighting]) -> Vec<(&'static str, Option<Trend>)> {
    let series = |of: fn(&Sighting) -> u64| seen.iter().map(|seen| of(seen) as f64).collect::<Vec<_>>();
    let threads = judge::judge(&series(|seen| seen.threads), Bound::of(0.0)).gained();
    let trend = |(name, of, bound): Figure| {
        let more = if name == RESIDENT { threads * OF_A_THREAD } else { 0.0 };
        (name, bound.map(|bound| judge::judge(&series(of), bound.and(more))))
    };
    FIGURES.map(trend).to_vec()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Resources in use although no session exists. Waits until dropped statements have released theirs.
async fn in_use(shared: &Shared) -> Vec<String> {
    let engine = &shared.engine;
    Store::of(engine).clear();
    let used = || (engine.pool().used_bytes().as_u64(), engine.pinned().statistics().lent.as_u64());
    let began = Instant::now();
    while used() != (0, 0) && began.elapsed() < ENDING {
        tokio::time::sleep(Duration::from_millis(10)).await;
        // A run that came to its end meanwhile may have stored what it read.
        Store::of(engine).clear();
    }
    let mut left = Vec::new();
    match used() {
        (0, 0) => {}
        (device, pinned) => {
            left.push(format!("{device} bytes of the pool and {pinned} bytes of pinned memory stay in use"));
        }
    }
    if engine.device().is_lost() {
        left.push("the device was lost".to_string());
    }
    let errors = engine.device().take_errors();
    if let Some(error) = errors.first() {
        left.push(format!("{} errors in drops; the first: {error}", errors.len()));
    }
    left
}

/// True once no session holds the device.
async fn is_gone(engine: &Weak<Engine>) -> bool {
    let began = Instant::now();
    while engine.strong_count() > 0 && began.elapsed() < ENDING {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    engine.strong_count() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Sixty sightings, from these figures of each.
    fn seen(of: impl Fn(u64) -> (u64, u64, u64)) -> Vec<Sighting> {
        let one = |n| {
            let (resident_bytes, threads, descriptors) = of(n);
            Sighting { at_ms: n * 1000, resident_bytes, threads, descriptors, ..Sighting::default() }
        };
        (0..60).map(one).collect()
    }

    fn growing(seen: &[Sighting]) -> Vec<&'static str> {
        let grows =
            |(name, trend): (&'static str, Option<Trend>)| trend.is_some_and(|trend| trend.grows()).then_some(name);
        trends(seen).into_iter().filter_map(grows).collect()
    }

    #[test]
    fn memory_and_handles_that_grow_are_told_by_name() {
        assert_eq!(growing(&seen(|_| (500 * MIB, 40, 16))), Vec::<&str>::new());
        assert_eq!(growing(&seen(|n| (500 * MIB + 5 * n * MIB, 40, 16))), ["resident bytes"]);
        assert_eq!(growing(&seen(|n| (500 * MIB, 40, 16 + n / 6))), ["descriptors"]);
    }

    #[test]
    fn threads_bring_their_heaps() {
        // 20 threads more from third to third, with 18 MiB each; and without a thread more.
        assert_eq!(growing(&seen(|n| (500 * MIB + 18 * n * MIB, 40 + n, 16))), Vec::<&str>::new());
        assert_eq!(growing(&seen(|n| (500 * MIB + 18 * n * MIB, 40, 16))), ["resident bytes"]);
    }
}
