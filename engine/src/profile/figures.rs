//! Evaluation of a recording: steps of a query, segments, kernels.
//!
//! ```text
//!   paths, spans ─► steps of the query · steps of feeders and readers
//!   work ─ by group ─► segments          work ─ by kernel ─► kernels
//! ```
//!
//! Concurrent runs share their time, so that steps add up to the wall time and no time counts twice.

use std::collections::HashMap;

use millpond_memory::driver::LaunchFigures;
use millpond_memory::recorder::{Recording, Step, Work, WorkKind};

use super::{ATTEMPT, DeviceFacts, step};

/// Time profile of one query.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// The name of the device; `None` on the CPU.
    pub device: Option<String>,
    /// Memory bandwidth of the device in bytes per second, measured by a copy; `None` on the simulated device.
    pub memory_bandwidth: Option<f64>,
    /// Nanoseconds from the start of planning to the report.
    pub wall_ns: u64,
    /// Steps of the query's own path; they add up to `wall_ns`.
    pub steps: Vec<(Step, u64)>,
    /// Time of threads that feed the device.
    pub feeding: Feeding,
    /// In order of their start.
    pub segments: Vec<SegmentProfile>,
    /// In the order of their first launches.
    pub kernels: Vec<KernelProfile>,
    /// Attempts of all runs: one per run, if no run had to restart.
    pub attempts: usize,
    /// Why attempts failed, which the next attempts learnt.
    pub learnt: Vec<String>,
    /// The complete recording.
    pub recording: Recording,
}

/// Work of feeders and readers, totaled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Feeding {
    /// Number of threads that upload batches.
    pub feeders: usize,
    /// Number of threads that read files.
    pub readers: usize,
    /// Total nanoseconds of their lifetimes; `steps` add up to it.
    pub ns: u64,
    /// Nanoseconds by step.
    pub steps: Vec<(Step, u64)>,
}

/// Figures of launches, copies and fills.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SegmentProfile {
    /// The segment's operators.
    pub name: String,
    /// Number of kernel launches.
    pub launches: u64,
    /// Nanoseconds of launches and fills on the device's clock; `None` on the simulated device.
    pub device_ns: Option<u64>,
    /// Bytes of the buffers passed for reading.
    pub bytes_read: u64,
    /// Bytes of the buffers passed for writing.
    pub bytes_written: u64,
    /// Bytes copied to the device.
    pub uploaded_bytes: u64,
    /// Bytes copied from the device.
    pub downloaded_bytes: u64,
    /// Nanoseconds of copies to and from the device.
    pub transfer_ns: Option<u64>,
    /// Input rows of the launches that report them.
    pub rows: u64,
    /// Counters of the simulated device for these launches; `None` on a real device.
    pub figures: Option<LaunchFigures>,
}

impl SegmentProfile {
    /// Bytes read and written per second of device time.
    pub fn bytes_per_second(&self) -> Option<f64> {
        let ns = self.device_ns.filter(|ns| *ns > 0)?;
        Some((self.bytes_read + self.bytes_written) as f64 * 1e9 / ns as f64)
    }
}

/// A launched kernel.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KernelProfile {
    /// The kernel's name.
    pub name: String,
    /// Segment of its first launch.
    pub segment: Option<String>,
    /// Number of launches.
    pub launches: u64,
    /// Rows of its input.
    pub rows: u64,
    /// Nanoseconds on the device.
    pub device_ns: Option<u64>,
    /// Threads per block.
    pub threads: u32,
    /// Registers per thread. This and the following figures are 0 once the device is lost.
    pub registers: u32,
    /// Bytes of local memory per thread.
    pub local_bytes: u32,
    /// Bytes of shared memory that the kernel declares.
    pub static_shared_bytes: u32,
    /// Bytes of shared memory that the launch adds.
    pub dynamic_shared_bytes: u32,
    /// Number of blocks that a multiprocessor holds at once.
    pub blocks_per_multiprocessor: u32,
    /// Counters of the simulated device; `None` on a real device.
    pub figures: Option<LaunchFigures>,
}

fn add_figures(sum: &mut Option<LaunchFigures>, figures: Option<LaunchFigures>) {
    let Some(figures) = figures else { return };
    let sum = sum.get_or_insert_default();
    sum.warp_instructions += figures.warp_instructions;
    sum.lane_instructions += figures.lane_instructions;
    sum.sectors_read += figures.sectors_read;
    sum.sectors_written += figures.sectors_written;
    sum.sectors_atomic += figures.sectors_atomic;
}

fn add_ns(sum: &mut Option<u64>, work: &Work) {
    if let Some(device) = work.device {
        *sum.get_or_insert_default() += device.ns;
    }
}

impl Profile {
    /// Evaluates the whole recording. Its first path is that of the query.
    pub(super) fn of(recording: Recording, device: Option<DeviceFacts>) -> Self {
        let runs: Vec<u32> = paths(&recording, "run");
        let (wall_ns, steps) = match recording.paths.first() {
            Some(query) => (query.ns(), query_steps(&recording, 0, &runs)),
            None => (0, vec![]),
        };
        Self { wall_ns, steps, ..Self::by_work(recording, device, &runs) }
    }

    /// Evaluates one run, including the earlier steps on the query's path.
    pub(super) fn of_run(mut recording: Recording, run: u32, device: DeviceFacts) -> Self {
        let mut steps = match recording.paths[run as usize].parent {
            Some(query) => recording.steps(query),
            None => vec![],
        };
        steps.retain(|(step, _)| matches!(*step, step::PLAN | step::PLACE));
        steps.extend(recording.steps(run));
        let wall_ns = steps.iter().map(|(_, ns)| ns).sum();
        let belongs = |path: u32| {
            let parents = std::iter::successors(Some(path), |path| recording.paths[*path as usize].parent);
            parents.into_iter().any(|path| path == run)
        };
        let work = recording.work.iter().filter(|work| belongs(work.path)).cloned().collect();
        let mine: Vec<bool> = (0..recording.paths.len() as u32).map(belongs).collect();
        recording.work = work;
        recording.notes.retain(|(path, _)| mine[*path as usize]);
        recording.paths.iter_mut().zip(mine).filter(|(_, mine)| !mine).for_each(|(path, _)| path.kind = "other");
        Self { wall_ns, steps, ..Self::by_work(recording, Some(device), &[run]) }
    }

    fn by_work(recording: Recording, device: Option<DeviceFacts>, runs: &[u32]) -> Self {
        let mut segments: Vec<SegmentProfile> = Vec::new();
        let mut kernels: Vec<KernelProfile> = Vec::new();
        let (mut of_group, mut of_kernel) = (HashMap::new(), HashMap::new());
        // Runs are numbered in the order of their paths; a single run has no number.
        let name = |group: Option<u32>| match group {
            None => "outside of segments".to_string(),
            Some(group) => run_numbered(&recording.groups[group as usize], runs),
        };
        let of_device = |work: &&Work| !matches!(work.kind, WorkKind::Allocate | WorkKind::Free | WorkKind::Wait);
        for work in recording.work.iter().filter(of_device) {
            let index = *of_group.entry(work.group).or_insert_with(|| {
                segments.push(SegmentProfile { name: name(work.group), ..SegmentProfile::default() });
                segments.len() - 1
            });
            let segment = &mut segments[index];
            match &work.kind {
                WorkKind::Upload => segment.uploaded_bytes += work.bytes_written,
                WorkKind::Download => segment.downloaded_bytes += work.bytes_read,
                _ => {
                    segment.bytes_read += work.bytes_read;
                    segment.bytes_written += work.bytes_written;
                }
            }
            match &work.kind {
                WorkKind::Upload | WorkKind::Download => add_ns(&mut segment.transfer_ns, work),
                _ => add_ns(&mut segment.device_ns, work),
            }
            let WorkKind::Launch(launch) = &work.kind else { continue };
            segment.launches += 1;
            let index = *of_kernel.entry(launch.function).or_insert_with(|| {
                let name = launch.kernel.to_string();
                let segment = work.group.map(|_| segment.name.clone());
                kernels.push(KernelProfile { name, segment, threads: launch.threads, ..KernelProfile::default() });
                kernels.len() - 1
            });
            let kernel = &mut kernels[index];
            kernel.launches += 1;
            add_ns(&mut kernel.device_ns, work);
            if let Some(needs) = launch.needs {
                kernel.registers = needs.kernel.registers;
                kernel.local_bytes = needs.kernel.local_bytes;
                kernel.static_shared_bytes = needs.kernel.static_shared_bytes;
                kernel.dynamic_shared_bytes = launch.shared_bytes;
                kernel.blocks_per_multiprocessor = needs.blocks_per_multiprocessor;
            }
            if let Some(rows) = launch.rows {
                segment.rows += rows;
                kernel.rows += rows;
                add_figures(&mut segment.figures, launch.figures);
                add_figures(&mut kernel.figures, launch.figures);
            }
        }
        let (begun, learnt): (Vec<_>, Vec<_>) = recording.notes.iter().partition(|(_, note)| note == ATTEMPT);
        let (attempts, learnt) = (begun.len(), learnt.into_iter().map(|(_, note)| note.clone()).collect());
        Self {
            memory_bandwidth: device.as_ref().and_then(|device| device.memory_bandwidth),
            device: device.map(|device| device.name),
            feeding: feeding(&recording),
            segments,
            kernels,
            attempts,
            learnt,
            recording,
            ..Self::default()
        }
    }

    /// Number of launches of all segments.
    pub fn launches(&self) -> u64 {
        self.segments.iter().map(|segment| segment.launches).sum()
    }
}

fn paths(recording: &Recording, kind: &str) -> Vec<u32> {
    let paths = recording.paths.iter().zip(0..).filter(|(path, _)| path.kind == kind);
    paths.map(|(_, index)| index).collect()
}

/// "run 2 · segment 0: …", with the run's index instead of its path ID; without the prefix if there is only one run.
fn run_numbered(group: &str, runs: &[u32]) -> String {
    let Some((run, rest)) = group.strip_prefix("run ").and_then(|name| name.split_once(" · ")) else {
        return group.to_string();
    };
    let place = run.parse().ok().and_then(|run: u32| runs.iter().position(|known| *known == run));
    match place {
        Some(place) if runs.len() > 1 => format!("run {} · {rest}", place + 1),
        _ => rest.to_string(),
    }
}

/// Totals of feeders and readers.
fn feeding(recording: &Recording) -> Feeding {
    let (feeders, readers) = (paths(recording, "feeder"), paths(recording, "reader"));
    let mut feeding = Feeding { feeders: feeders.len(), readers: readers.len(), ..Feeding::default() };
    for path in readers.into_iter().chain(feeders) {
        feeding.ns += recording.paths[path as usize].ns();
        for (step, ns) in recording.steps(path) {
            match feeding.steps.iter_mut().find(|(known, _)| *known == step) {
                Some((_, sum)) => *sum += ns,
                None => feeding.steps.push((step, ns)),
            }
        }
    }
    feeding
}

/// Steps of a query: its own, and while it rests, the steps of its runs; concurrent runs share the time.
fn query_steps(recording: &Recording, query: u32, runs: &[u32]) -> Vec<(Step, u64)> {
    let own = recording.pieces(query);
    let pieces: Vec<Vec<(Step, u64, u64)>> = runs.iter().map(|run| recording.pieces(*run)).collect();
    let mut cuts: Vec<u64> = own.iter().chain(pieces.iter().flatten()).flat_map(|(_, from, to)| [*from, *to]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut at = vec![0; pieces.len() + 1];
    let mut now = |pieces: &[(Step, u64, u64)], place: usize, from: u64| -> Option<Step> {
        while pieces.get(at[place]).is_some_and(|(_, _, to)| *to <= from) {
            at[place] += 1;
        }
        pieces.get(at[place]).filter(|(_, began, _)| *began <= from).map(|(step, ..)| *step)
    };
    let mut steps: Vec<(Step, f64)> = Vec::new();
    let mut add = |step: Step, ns: f64| match steps.iter_mut().find(|(known, _)| *known == step) {
        Some((_, sum)) => *sum += ns,
        None => steps.push((step, ns)),
    };
    for cut in cuts.windows(2) {
        let (from, ns) = (cut[0], (cut[1] - cut[0]) as f64);
        let Some(mine) = now(&own, pieces.len(), from) else { continue };
        let of_runs: Vec<Step> =
            pieces.iter().enumerate().filter_map(|(place, pieces)| now(pieces, place, from)).collect();
        match of_runs.len() {
            running if running > 0 && mine == recording.paths[query as usize].rest => {
                of_runs.iter().for_each(|step| add(step, ns / running as f64));
            }
            _ => add(mine, ns),
        }
    }
    steps.into_iter().map(|(step, ns)| (step, ns.round() as u64)).collect()
}

#[cfg(test)]
mod tests {
    use millpond_memory::recorder::{PathRecord, Span};

    use super::*;

    fn path(kind: &'static str, parent: Option<u32>, began_ns: u64, ended_ns: u64) -> PathRecord {
        PathRecord {
            kind,
            name: kind.into(),
            parent,
            rest: if kind == "query" { "cpu" } else { "prepare" },
            began_ns,
            ended_ns,
        }
    }

    fn span(path: u32, step: Step, began_ns: u64, ended_ns: u64) -> Span {
        Span { path, group: None, step, began_ns, ended_ns }
    }

    #[test]
    fn runs_at_once_share_the_time_and_all_of_it_has_a_name() {
        let paths = vec![
            path("query", None, 0, 1000),
            path("run", Some(0), 100, 500),
            path("run", Some(0), 300, 900),
            path("reader", Some(1), 100, 200),
        ];
        let spans = vec![span(0, "plan", 0, 90), span(1, "wait", 300, 500), span(2, "feed", 400, 900)];
        let notes = [(1, ATTEMPT), (1, "less is known"), (1, ATTEMPT)].map(|(path, note)| (path, note.to_string()));
        let profile = Profile::of(Recording { paths, spans, notes: notes.to_vec(), ..Recording::default() }, None);
        let expected = [("plan", 90), ("cpu", 110), ("prepare", 200 + 50), ("wait", 100), ("feed", 50 + 400)];
        assert_eq!(profile.steps, expected);
        assert_eq!(profile.steps.iter().map(|(_, ns)| ns).sum::<u64>(), profile.wall_ns);
        assert_eq!((profile.feeding.readers, profile.feeding.ns), (1, 100));
        assert_eq!((profile.attempts, profile.learnt), (2, vec!["less is known".to_string()]));
    }

    #[test]
    fn segments_of_several_runs_say_whose_they_are() {
        assert_eq!(run_numbered("run 7 · segment 0: a", &[3, 7]), "run 2 · segment 0: a");
        assert_eq!(run_numbered("run 7 · segment 0: a", &[7]), "segment 0: a");
    }
}
