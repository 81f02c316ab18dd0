//! Compares allocation strategies on one device: their cost, and the memory they hold.
//!
//!   pattern × case × subject      loop · 16 MiB · caching     streams · 8 streams · cuda_async     reuse · … · all off
//!     round 1   subject a: fresh, warmed up, measured ─ subject b: … ─ subject c
//!     round 2   subject b ─ subject c ─ subject a          each round begins with another subject
//!
//! Peak       from the first warm-up: the footprint of a fresh resource. Reading it is excluded from all other figures.
//! Time       of the calls on the host, by the host's clock, on a real device. The simulated device has only counts,
//!            which depend on nothing but the seed.
//! Budget     shared by all passes; a late pass is cut short: its figures are per step, and it is marked as cut.
//! Short      an allocation that finds no memory counts as a failure; the pattern continues.
//! After      every resource is dropped when its turn ends, and has freed everything.

mod bandwidth;
mod events;
mod pattern;
mod samples;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use bandwidth::{link_bandwidth, memory_bandwidth};
pub use events::EventFigure;
pub use pattern::Work;
pub use samples::{Samples, Summary};

use crate::device::Device;
use crate::driver::DriverKind;
use crate::error::Result;
use crate::pool::{MemoryPool, ReleaseThreshold, ReusePolicy};
use crate::replay::Footprint;
use crate::resource::{DeviceMemoryResource, Strategy};
use crate::units::ByteSize;
use pattern::{Meter, Rig};

macro_rules! patterns {
    ($($(#[doc = $doc:literal])* $pattern:ident = $name:literal)*) => {
        /// Allocation pattern to measure.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Pattern {
            $($(#[doc = $doc])* $pattern,)*
        }

        impl Pattern {
            pub const ALL: [Pattern; [$($name),*].len()] = [$(Pattern::$pattern),*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Pattern::$pattern => $name,)*
                }
            }

            /// Description of the pattern for people.
            pub fn claim(self) -> &'static str {
                match self {
                    $(Pattern::$pattern => concat!($($doc),*).trim_ascii(),)*
                }
            }
        }
    };
}

patterns! {
    /// one size, allocated and freed without a wait in between
    Sizes = "sizes"
    /// events and waits, of the driver and of the layer above it
    Events = "events"
    /// one stream: allocate, write, free, synchronise, a hundred times
    Loop = "loop"
    /// several streams: allocate and write on one, hand over to the next, which reads and frees
    Streams = "streams"
    /// sizes and lifetimes by chance: 73 of 100 calls allocate, below a cap
    Random = "random"
    /// the log of three TPC-H queries (1, 6 and 18 at scale 0.01), replayed with its streams
    Query = "query"
    /// the driver's pool with release thresholds of 0, a quarter, three quarters and everything, in the loop
    Threshold = "threshold"
    /// the driver's pool with each policy of reuse on and off, over four streams
    Reuse = "reuse"
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Pattern {
    type Err = String;

    /// # Errors
    /// If the name is unknown: the valid names.
    fn from_str(name: &str) -> Result<Self, String> {
        let found = Pattern::ALL.into_iter().find(|pattern| pattern.name() == name);
        found.ok_or_else(|| {
            let [most @ .., last] = Pattern::ALL.map(Pattern::name);
            format!("{} or {last}", most.join(", "))
        })
    }
}

/// Options of a measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeasureOptions {
    pub strategies: Vec<Strategy>,
    pub patterns: Vec<Pattern>,
    /// Measured passes of each cell on a real device; the simulated device needs one.
    pub rounds: u32,
    /// Approximate total time of all passes on a real device.
    pub budget: Duration,
    pub seed: u64,
}

impl Default for MeasureOptions {
    fn default() -> Self {
        MeasureOptions {
            strategies: Strategy::ALL.to_vec(),
            patterns: Pattern::ALL.to_vec(),
            rounds: 5,
            budget: Duration::from_secs(40),
            seed: 1,
        }
    }
}

/// Results of one resource in one case of a pattern.
#[derive(Clone, PartialEq, Debug)]
pub struct Cell {
    pub pattern: Pattern,
    pub case: String,
    pub subject: String,
    pub rounds: u32,
    /// Number of steps: laps of the loop or of all streams, calls of the random pattern, queries.
    pub steps: u64,
    pub allocations: u64,
    pub frees: u64,
    /// Allocations that found no memory, over all passes.
    pub failures: u64,
    pub driver_calls: u64,
    pub host_waits: u64,
    pub peak: Footprint,
    /// `None` on the simulated device.
    pub allocate: Option<Summary>,
    pub free: Option<Summary>,
    pub step: Option<Summary>,
    /// Median step of each round.
    pub round_medians_ns: Vec<u64>,
    /// A measured pass exceeded its time: there are fewer steps than planned.
    pub cut: bool,
    /// The pass that the peak was measured in exceeded its time.
    pub peak_cut: bool,
    /// Cost per step (on the simulated device: driver calls) relative to the `cuda` strategy in the same case.
    pub against_cuda: Option<f64>,
    pub against_cuda_async: Option<f64>,
    /// Reason for missing figures.
    pub problem: Option<String>,
}

impl Cell {
    pub fn driver_calls_per_step(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.driver_calls as f64 / self.steps as f64)
    }

    pub fn host_waits_per_step(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.host_waits as f64 / self.steps as f64)
    }

    fn cost(&self, timed: bool) -> Option<f64> {
        if timed { self.step.map(|step| step.median_ns as f64) } else { self.driver_calls_per_step() }
    }
}

/// All figures of a run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Measurements {
    /// False on the simulated device: only counts.
    pub timed: bool,
    /// Time of reading the clock, which is included in every call. `None` on the simulated device.
    pub clock: Option<Summary>,
    pub cells: Vec<Cell>,
    pub events: Vec<EventFigure>,
}

/// Subject of comparison within a case.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Subject {
    Strategy(Strategy),
    Threshold(ReleaseThreshold, &'static str),
    Reuse(ReusePolicy, &'static str),
}

impl Subject {
    fn name(&self) -> &'static str {
        match self {
            Subject::Strategy(strategy) => strategy.name(),
            Subject::Threshold(_, name) | Subject::Reuse(_, name) => name,
        }
    }

    fn create(&self, device: &Device) -> Result<Arc<dyn DeviceMemoryResource>> {
        let pool = MemoryPool::builder(device).strategy(Strategy::CudaAsync);
        let pool = match *self {
            Subject::Strategy(strategy) => return strategy.create(device),
            Subject::Threshold(threshold, _) => pool.release_threshold(threshold),
            Subject::Reuse(reuse, _) => pool.reuse(reuse),
        };
        Ok(Arc::clone(pool.build()?.resource()))
    }
}

struct Case {
    pattern: Pattern,
    work: Work,
    subjects: Vec<Subject>,
    rounds: u32,
}

impl Case {
    /// Relative share of the time budget for one pass: patterns that hold much memory take longer to reach their peak.
    fn share(&self) -> u32 {
        match self.work {
            Work::Random { .. } => 12,
            Work::Loop { bytes, .. } if bytes >= 256 << 20 => 6,
            _ => 1,
        }
    }
}

/// Sizes of the patterns: by the memory of the device, and small where every byte is simulated.
struct Scale {
    timed: bool,
    free: u64,
    total: u64,
}

impl Scale {
    fn sizes(&self, real: &[usize], simulated: &[usize]) -> Vec<usize> {
        let sizes = if self.timed { real } else { simulated };
        sizes.iter().copied().filter(|&bytes| bytes as u64 <= self.free / 4).collect()
    }

    fn laps(&self) -> u32 {
        if self.timed { 100 } else { 20 }
    }

    fn works(&self, pattern: Pattern) -> Vec<Work> {
        const KIB: usize = 1 << 10;
        const MIB: usize = 1 << 20;
        const GIB: usize = 1 << 30;
        let laps = self.laps();
        let of_loop = |real: &[usize]| {
            let sizes = self.sizes(real, &[4 * KIB, 256 * KIB]);
            sizes.into_iter().map(|bytes| Work::Loop { bytes, laps }).collect()
        };
        let bytes = if self.timed { MIB } else { 16 * KIB };
        match pattern {
            Pattern::Sizes => {
                let real = [256, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, GIB];
                let sizes = self.sizes(&real, &[256, 4 * KIB, 64 * KIB, MIB]);
                sizes.into_iter().map(|bytes| Work::Sizes { bytes, laps }).collect()
            }
            Pattern::Events => Vec::new(),
            Pattern::Loop => of_loop(&[64 * KIB, 16 * MIB, GIB]),
            Pattern::Threshold => of_loop(&[16 * MIB, GIB]),
            Pattern::Streams => {
                [1, 2, 4, 8, 16].map(|streams| Work::Streams { streams, bytes, laps: laps / 2 }).to_vec()
            }
            Pattern::Reuse => vec![Work::Streams { streams: 4, bytes, laps: laps / 2 }],
            Pattern::Random => {
                let (most, cap) = match self.timed {
                    // RMM's sizes: up to 1 GiB, and 16,000 MiB at once; less on a small device.
                    true => (GIB as u64, (16_000 << 20).min(self.free / 6)),
                    false => (256 << 10, (16 << 20).min(self.free / 6)),
                };
                let most = most.min(cap / 4).max(2 << 10);
                let calls = if self.timed { 400 } else { 300 };
                vec![Work::Random { least: KIB, most: most as usize, cap, calls }]
            }
            Pattern::Query => vec![Work::Query],
        }
    }

    fn subjects(&self, pattern: Pattern, strategies: &[Strategy]) -> Vec<Subject> {
        let share = |percent: u64| ReleaseThreshold::Bytes(ByteSize(self.total / 100 * percent));
        match pattern {
            Pattern::Threshold => vec![
                Subject::Threshold(share(0), "threshold 0"),
                Subject::Threshold(share(25), "threshold 25 %"),
                Subject::Threshold(share(75), "threshold 75 %"),
                Subject::Threshold(ReleaseThreshold::Max, KEPT),
            ],
            Pattern::Reuse => {
                let policy = |events, opportunistic, internal| ReusePolicy {
                    follow_event_dependencies: events,
                    opportunistic,
                    internal_dependencies: internal,
                };
                vec![
                    Subject::Reuse(policy(false, false, false), "all off"),
                    Subject::Reuse(policy(true, false, false), "events"),
                    Subject::Reuse(policy(false, true, false), "opportunistic"),
                    Subject::Reuse(policy(false, false, true), "internal"),
                    Subject::Reuse(policy(true, true, false), TUNED),
                    Subject::Reuse(policy(true, true, true), "all on"),
                ]
            }
            _ => strategies.iter().map(|strategy| Subject::Strategy(*strategy)).collect(),
        }
    }
}

/// Labels of the threshold and of the policy that match `cuda_async`.
const KEPT: &str = "threshold max";
const TUNED: &str = "events + opportunistic";

/// Rounds of the reuse pattern, whose comparison includes the variance and needs more passes.
const REUSE_ROUNDS: u32 = 20;

/// Measures according to `options`, and passes each finished cell to `seen`.
///
/// # Errors
/// If the device is lost. Failures of a single strategy are recorded as problems of its cells.
pub fn measure(device: &Device, options: &MeasureOptions, mut seen: impl FnMut(&Cell)) -> Result<Measurements> {
    let timed = device.driver().kind() == DriverKind::Cuda;
    let info = device.memory_info()?;
    let scale = Scale { timed, free: info.free_bytes, total: info.total_bytes };
    let rounds = if timed { options.rounds.max(1) } else { 1 };
    let mut cases = Vec::new();
    for pattern in &options.patterns {
        for work in scale.works(*pattern) {
            let subjects = scale.subjects(*pattern, &options.strategies);
            let rounds = if timed && *pattern == Pattern::Reuse { rounds.max(REUSE_ROUNDS) } else { rounds };
            cases.push(Case { pattern: *pattern, work, subjects, rounds });
        }
    }
    let mut run = Run {
        device,
        rig: Rig::new(device, options.seed)?,
        timed,
        ends: Instant::now() + options.budget,
        shares_left: cases.iter().map(|case| case.share() * 2 * case.rounds * case.subjects.len() as u32).sum(),
    };
    let clock = if timed { clock() } else { None };
    let mut measured = Measurements { timed, clock, ..Measurements::default() };
    for case in &cases {
        let mut cells = run.case(case)?;
        compare(&mut cells, timed);
        cells.iter().for_each(&mut seen);
        measured.cells.extend(cells);
    }
    if options.patterns.contains(&Pattern::Events) {
        measured.events = events::figures(device, timed)?;
    }
    drop(run);
    device.synchronize()?;
    Ok(measured)
}

fn clock() -> Option<Summary> {
    let mut samples = Samples::default();
    for _ in 0..1000 {
        samples.push(pattern::nanos(Instant::now()));
    }
    samples.summary()
}

fn compare(cells: &mut [Cell], timed: bool) {
    let cost = |subjects: &[&str]| {
        let cell = cells.iter().find(|cell| subjects.contains(&cell.subject.as_str()))?;
        cell.cost(timed).filter(|cost| *cost > 0.0)
    };
    // In comparisons of the driver's pools, one of the pools equals cuda_async.
    let (cuda, cuda_async) = (cost(&[Strategy::Cuda.name()]), cost(&[Strategy::CudaAsync.name(), KEPT, TUNED]));
    for cell in cells {
        let against = |base: Option<f64>| Some(cell.cost(timed)? / base?);
        (cell.against_cuda, cell.against_cuda_async) = (against(cuda), against(cuda_async));
    }
}

struct Run<'a> {
    device: &'a Device,
    rig: Rig,
    timed: bool,
    ends: Instant,
    /// Shares of the remaining time that unfinished passes have.
    shares_left: u32,
}

impl Run<'_> {
    /// Deadline of the next pass; time that quick passes leave is shared by the others.
    fn deadline(&mut self, share: u32) -> Option<Instant> {
        let left = self.shares_left.max(share);
        self.shares_left = left - share;
        let now = Instant::now();
        self.timed.then(|| now + self.ends.saturating_duration_since(now) / left * share)
    }

    fn case(&mut self, case: &Case) -> Result<Vec<Cell>> {
        self.rig.prepare(case.work)?;
        let mut meters = vec![Meter::default(); case.subjects.len()];
        let mut cells: Vec<Cell> = case.subjects.iter().map(|subject| empty(case, *subject)).collect();
        for round in 0..case.rounds {
            for turn in 0..case.subjects.len() {
                let index = (turn + round as usize) % case.subjects.len();
                if cells[index].problem.is_some() {
                    self.shares_left = self.shares_left.saturating_sub(2 * case.share());
                    continue;
                }
                let turn = self.turn(case, case.subjects[index], &mut cells[index], &mut meters[index]);
                if let Err(error) = turn {
                    self.device.alive()?;
                    cells[index].problem = Some(error.to_string());
                }
            }
        }
        for (cell, meter) in cells.iter_mut().zip(meters) {
            cell.steps = meter.steps;
            cell.allocations = meter.allocations;
            cell.frees = meter.frees;
            cell.failures += meter.failures;
            (cell.allocate, cell.free) = (meter.allocate.summary(), meter.free.summary());
            cell.step = meter.step.summary();
        }
        Ok(cells)
    }

    /// Runs one round of one subject.
    fn turn(&mut self, case: &Case, subject: Subject, cell: &mut Cell, meter: &mut Meter) -> Result<()> {
        let resource = subject.create(self.device)?;
        let done = self.passes(case, &resource, cell, meter);
        drop(resource);
        // Memory freed by this resource must be available to the next one.
        done.and(self.device.synchronize())
    }

    fn passes(
        &mut self,
        case: &Case,
        resource: &Arc<dyn DeviceMemoryResource>,
        cell: &mut Cell,
        meter: &mut Meter,
    ) -> Result<()> {
        let first = cell.rounds == 0;
        let mut warm_up =
            Meter { deadline: self.deadline(case.share()), peak: first.then(Footprint::default), ..Meter::default() };
        self.rig.pass(case.work, resource, &mut warm_up)?;
        cell.peak = warm_up.peak.unwrap_or(cell.peak);
        cell.failures += warm_up.failures;

        let (calls, waits) = (self.device.driver_calls(), self.device.counters().host_waits);
        let mut measured = Meter { timed: self.timed, deadline: self.deadline(case.share()), ..Meter::default() };
        self.rig.pass(case.work, resource, &mut measured)?;
        cell.driver_calls += self.device.driver_calls() - calls;
        cell.host_waits += self.device.counters().host_waits - waits;
        cell.rounds += 1;
        cell.peak_cut |= first && warm_up.cut;
        cell.cut |= measured.cut;
        cell.round_medians_ns.extend(measured.step.summary().map(|summary| summary.median_ns));
        meter.add(measured);
        Ok(())
    }
}

fn empty(case: &Case, subject: Subject) -> Cell {
    Cell {
        pattern: case.pattern,
        case: case.work.to_string(),
        subject: subject.name().to_string(),
        rounds: 0,
        steps: 0,
        allocations: 0,
        frees: 0,
        failures: 0,
        driver_calls: 0,
        host_waits: 0,
        peak: Footprint::default(),
        allocate: None,
        free: None,
        step: None,
        round_medians_ns: Vec::new(),
        cut: false,
        peak_cut: false,
        against_cuda: None,
        against_cuda_async: None,
        problem: None,
    }
}
