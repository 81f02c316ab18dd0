//! Records where time goes: the host's steps, and the work submitted to the device.
//!
//! ```text
//!   Recorder ─ path("run", …) ─► Path ─ around(future) ─► on every thread that polls it
//!       │                                                  step("plan") … launches, copies, allocations, waits
//!       └─ recording ─► Recording { paths, spans, work }
//! ```
//!
//! Path     a sequence of activity, on any threads: a query, a run, a feeder. A path has a resting step.
//! Steps    at each moment a path is in one step: its most recently started open span, else its resting step. So the
//!          steps of a path add up to its lifetime, and all time is attributed ([`Recording::steps`]).
//! Group    a unit for counting launches and copies together: a segment of a run.
//! Device   launches, copies and fills are enclosed by two timed events. A launch on an idle stream includes the
//!          submission latency, some microseconds. The simulated device has no time; it counts sectors and
//!          instructions.
//! Off      without a recorder, the cost is one read of a thread-local variable, and no clock is read.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use crate::device::Device;
use crate::driver::{DriverKind, LaunchFigures};
use crate::event::TimeMark;
use crate::module::{Kernel, KernelAttributes};
use crate::stream::Stream;

/// Name of a path's activity.
pub type Step = &'static str;

/// The host waits for the device, or for space in memory that the device still uses.
pub const WAIT: Step = "wait";
/// The driver assembles a module, on this thread or on another one that began earlier.
pub const ASSEMBLE: Step = "assemble";
/// Device code is generated.
pub const GENERATE: Step = "generate";

/// A path that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// "query", "run", "feeder", …
    pub kind: &'static str,
    pub name: String,
    /// Path that was current when this one began.
    pub parent: Option<u32>,
    /// Step outside of all spans.
    pub rest: Step,
    /// Start in nanoseconds since the recorder began, like all times here.
    pub began_ns: u64,
    pub ended_ns: u64,
}

impl PathRecord {
    pub fn ns(&self) -> u64 {
        self.ended_ns - self.began_ns
    }
}

/// A timed step of a path. Spans of a path mostly nest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub path: u32,
    pub group: Option<u32>,
    pub step: Step,
    pub began_ns: u64,
    pub ended_ns: u64,
}

/// Kind of work.
#[derive(Clone, Debug)]
pub enum WorkKind {
    Launch(LaunchRecord),
    Upload,
    Download,
    /// Copy on the device.
    Copy,
    Fill,
    Allocate,
    Free,
    /// The host waited for the stream.
    Wait,
}

/// A launch of a kernel.
#[derive(Clone, Debug)]
pub struct LaunchRecord {
    pub kernel: Arc<str>,
    /// Function handle, which distinguishes kernels of the same name.
    pub function: u64,
    pub blocks: u64,
    pub threads: u32,
    /// Bytes of dynamic shared memory per block.
    pub shared_bytes: u32,
    /// Maximum number of rows that it processes, if its launcher set it.
    pub rows: Option<u64>,
    /// `None` once the device is lost.
    pub needs: Option<Needs>,
    /// On the simulated device, after it has run.
    pub figures: Option<LaunchFigures>,
}

/// Resources that a block of a kernel needs, and the number of blocks per multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    pub kernel: KernelAttributes,
    pub blocks_per_multiprocessor: u32,
}

/// A piece of work.
#[derive(Clone, Debug)]
pub struct Work {
    pub path: u32,
    pub group: Option<u32>,
    /// Index of the stream.
    pub stream: u32,
    pub kind: WorkKind,
    /// Bytes of its input and output buffers, each counted once: a kernel may access fewer.
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Time of the call on the host.
    pub began_ns: u64,
    pub ended_ns: u64,
    /// Time on the device, by its clock.
    pub device: Option<DeviceSpan>,
}

/// A time span on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpan {
    /// Start on the host's time axis, accurate to some tens of microseconds.
    pub began_ns: u64,
    pub ns: u64,
}

/// Recorded paths, spans, work and notes.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    pub paths: Vec<PathRecord>,
    /// Names of groups, by index.
    pub groups: Vec<String>,
    pub spans: Vec<Span>,
    pub work: Vec<Work>,
    /// Notes of paths, with the path's ID.
    pub notes: Vec<(u32, String)>,
}

impl Recording {
    /// Steps of a path in order of first occurrence, with the nanoseconds in each: they add up to the path's lifetime.
    pub fn steps(&self, path: u32) -> Vec<(Step, u64)> {
        let mut steps: Vec<(Step, u64)> = Vec::new();
        for (step, began, ended) in self.pieces(path) {
            match steps.iter_mut().find(|(known, _)| *known == step) {
                Some((_, ns)) => *ns += ended - began,
                None => steps.push((step, ended - began)),
            }
        }
        steps
    }

    /// The lifetime of a path, split where its step changes: each piece begins where the previous one ends.
    pub fn pieces(&self, path: u32) -> Vec<(Step, u64, u64)> {
        let Some(record) = self.paths.get(path as usize) else { return Vec::new() };
        let spans: Vec<&Span> = self.spans.iter().filter(|span| span.path == path).collect();
        let inside = |ns: u64| ns.clamp(record.began_ns, record.ended_ns);
        let mut changes: Vec<(u64, bool, usize)> = Vec::with_capacity(spans.len() * 2);
        for (index, span) in spans.iter().enumerate() {
            let (began, ended) = (inside(span.began_ns), inside(span.ended_ns));
            if began < ended {
                changes.extend([(began, true, index), (ended, false, index)]);
            }
        }
        changes.sort_unstable();
        // The most recently started span defines the step; of two that started together, the one that ends first.
        let rank = |index: usize| (spans[index].began_ns, u64::MAX - spans[index].ended_ns, index);
        let mut open = BTreeSet::new();
        let mut pieces: Vec<(Step, u64, u64)> = Vec::new();
        let mut since = record.began_ns;
        let mut piece = |open: &BTreeSet<(u64, u64, usize)>, from: u64, to: u64| {
            let step = open.last().map_or(record.rest, |(_, _, index)| spans[*index].step);
            match pieces.last_mut() {
                _ if from == to => {}
                Some((last, _, end)) if *last == step => *end = to,
                _ => pieces.push((step, from, to)),
            }
        };
        for (at, begins, index) in changes {
            piece(&open, since, at);
            since = at;
            match begins {
                true => open.insert(rank(index)),
                false => open.remove(&rank(index)),
            };
        }
        piece(&open, since, record.ended_ns);
        pieces
    }
}

/// Key: function, threads per block, shared memory.
type KnownNeeds = HashMap<(u64, u32, u32), Option<Needs>>;

/// Submitted work, with handles for reading its remaining figures later.
struct Submitted {
    work: Work,
    marks: Option<(TimeMark, TimeMark)>,
    kernel: Option<Kernel>,
    figures: Option<Arc<OnceLock<LaunchFigures>>>,
}

/// First reading of a device's clock, with the host's time.
struct Zero {
    device: Device,
    mark: TimeMark,
    host_ns: u64,
}

#[derive(Default)]
struct Log {
    paths: Vec<PathRecord>,
    groups: Vec<String>,
    spans: Vec<Span>,
    work: Vec<Submitted>,
    notes: Vec<(u32, String)>,
    zeros: Vec<Zero>,
}

struct Inner {
    began: Instant,
    log: Mutex<Log>,
}

/// Collects the activity of its paths.
#[derive(Clone)]
pub struct Recorder {
    inner: Arc<Inner>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// Creates a recorder whose time starts now.
    pub fn new() -> Self {
        Recorder { inner: Arc::new(Inner { began: Instant::now(), log: Mutex::default() }) }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.inner.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds since the recorder began.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.inner.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Begins a path with resting step `rest`. Its parent is this thread's current path, if that belongs to this
    /// recorder.
    pub fn path(&self, kind: &'static str, name: impl Into<String>, rest: Step) -> Path {
        let from = current().filter(|path| path.recorder.is(self));
        let now = self.now_ns();
        let (name, parent) = (name.into(), from.as_ref().map(|path| path.id));
        let mut log = self.log();
        log.paths.push(PathRecord { kind, name, parent, rest, began_ns: now, ended_ns: u64::MAX });
        let id = log.paths.len() as u32 - 1;
        drop(log);
        Path { recorder: self.clone(), id, group: from.and_then(|path| path.group) }
    }

    /// True for clones of one recorder.
    pub fn is(&self, other: &Recorder) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns everything recorded so far. Work that the device has not reached has no device time, and active paths
    /// end now.
    pub fn recording(&self) -> Recording {
        let now = self.now_ns();
        let log = self.log();
        let mut needs = HashMap::new();
        let work = log.work.iter().map(|submitted| submitted.resolved(&log.zeros, &mut needs)).collect();
        let ended = |path: &PathRecord| PathRecord { ended_ns: path.ended_ns.min(now), ..path.clone() };
        let paths = log.paths.iter().map(ended).collect();
        Recording { paths, groups: log.groups.clone(), spans: log.spans.clone(), work, notes: log.notes.clone() }
    }

    /// Reads the device's clock once, so that its times can be mapped to the host's axis.
    fn see_clock(&self, stream: &Stream) {
        if self.log().zeros.iter().any(|zero| zero.device == *stream.device()) {
            return;
        }
        let host_ns = self.now_ns();
        if let Ok(mark) = stream.mark_time() {
            self.log().zeros.push(Zero { device: stream.device().clone(), mark, host_ns });
        }
    }

    fn span(&self, span: Span) {
        self.log().spans.push(span);
    }

    fn submitted(&self, submitted: Submitted) {
        self.log().work.push(submitted);
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log();
        write!(f, "recorder of {} paths, {} spans, {} works", log.paths.len(), log.spans.len(), log.work.len())
    }
}

impl Submitted {
    fn resolved(&self, zeros: &[Zero], needs: &mut KnownNeeds) -> Work {
        let mut work = self.work.clone();
        let ns =
            |from: &TimeMark, to: &TimeMark| to.ms_since(from).ok().map(|ms| (f64::from(ms).max(0.0) * 1e6) as u64);
        if let Some((start, end)) = &self.marks
            && let Some(zero) = zeros.iter().find(|zero| start.is_of(&zero.device))
            && let (Some(since), Some(took)) = (ns(&zero.mark, start), ns(start, end))
        {
            work.device = Some(DeviceSpan { began_ns: zero.host_ns + since, ns: took });
        }
        if let (WorkKind::Launch(launch), Some(kernel)) = (&mut work.kind, &self.kernel) {
            launch.figures = self.figures.as_ref().and_then(|figures| figures.get().copied());
            let (threads, shared) = (launch.threads, launch.shared_bytes);
            let ask = || {
                let blocks_per_multiprocessor = kernel.occupancy(threads, shared).ok()?;
                Some(Needs { kernel: kernel.attributes().ok()?, blocks_per_multiprocessor })
            };
            launch.needs = *needs.entry((launch.function, threads, shared)).or_insert_with(ask);
        }
        work
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Path>> = const { RefCell::new(None) };
}

/// The current path of this thread.
pub fn current() -> Option<Path> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Begins a step of this thread's current path; it ends when the returned value is dropped.
#[inline]
pub fn step(step: Step) -> Option<InStep> {
    current().map(|path| path.step(step))
}

/// Awaits `future` as a step of this thread's current path.
pub async fn during<F: Future>(step: Step, future: F) -> F::Output {
    let _step = self::step(step);
    future.await
}

/// Awaits `future`; its path is in `step` while a thread polls it, but not while it is pending.
pub async fn polled<F: Future>(step: Step, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        let _step = self::step(step);
        future.as_mut().poll(context)
    })
    .await
}

/// A sequence of activity.
#[derive(Clone)]
pub struct Path {
    recorder: Recorder,
    id: u32,
    group: Option<u32>,
}

impl Path {
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Index in the recording.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The same path, with later work in the group `name`.
    pub fn in_group(&self, name: &str) -> Path {
        let mut log = self.recorder.log();
        let known = log.groups.iter().position(|known| known == name);
        let group = known.unwrap_or_else(|| {
            log.groups.push(name.to_string());
            log.groups.len() - 1
        });
        drop(log);
        Path { group: Some(group as u32), ..self.clone() }
    }

    /// Adds a note.
    pub fn note(&self, note: impl Into<String>) {
        self.recorder.log().notes.push((self.id, note.into()));
    }

    /// Begins a step; it ends when the returned value is dropped.
    pub fn step(&self, step: Step) -> InStep {
        InStep { began_ns: self.recorder.now_ns(), path: self.clone(), step }
    }

    /// Makes this the thread's current path until the returned value is dropped.
    pub fn enter(&self) -> Entered {
        Entered { before: CURRENT.with(|current| current.replace(Some(self.clone()))), stays: std::marker::PhantomData }
    }

    /// Wraps `future` so that it is polled on this path.
    pub fn around<F: Future>(&self, future: F) -> Around<F> {
        Around { future: Some(Box::pin(future)), path: self.clone(), ends: false }
    }

    /// Like `around`; the path ends with the future.
    pub fn life<F: Future>(self, future: F) -> Around<F> {
        Around { future: Some(Box::pin(future)), path: self, ends: true }
    }

    /// Ends the path now. A repeated call moves the end.
    pub fn end(&self) {
        let now = self.recorder.now_ns();
        if let Some(record) = self.recorder.log().paths.get_mut(self.id as usize) {
            record.ended_ns = now;
        }
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path {}", self.id)
    }
}

/// A step that lasts until this is dropped, on any thread.
#[must_use = "a step ends when this is dropped"]
pub struct InStep {
    path: Path,
    step: Step,
    began_ns: u64,
}

impl Drop for InStep {
    fn drop(&mut self) {
        let Path { recorder, id, group } = &self.path;
        let (path, group, step, began_ns) = (*id, *group, self.step, self.began_ns);
        recorder.span(Span { path, group, step, began_ns, ended_ns: recorder.now_ns() });
    }
}

/// Marks that a thread is on a path.
#[must_use = "the thread leaves the path when this is dropped"]
pub struct Entered {
    before: Option<Path>,
    /// Makes the type bound to its thread.
    stays: std::marker::PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.before.take();
        // An exiting thread has no thread-local variables any more, and is on no path.
        let _ = CURRENT.try_with(|current| current.replace(before));
    }
}

/// A future on a path.
pub struct Around<F: Future> {
    /// `None` once dropped.
    future: Option<Pin<Box<F>>>,
    path: Path,
    ends: bool,
}

impl<F: Future> Future for Around<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _on = self.path.enter();
        let future = self.future.as_mut().expect("a future is there until it is dropped");
        future.as_mut().poll(context)
    }
}

impl<F: Future> Drop for Around<F> {
    fn drop(&mut self) {
        let on = self.path.enter();
        drop(self.future.take());
        drop(on);
        if self.ends {
            self.path.end();
        }
    }
}

/// Dimensions of a kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct LaunchShape {
    pub blocks: u64,
    pub threads: u32,
    pub shared_bytes: u32,
    pub rows: Option<u64>,
}

/// Work that a thread on a path is about to submit.
#[must_use = "work is recorded when it has been submitted"]
pub struct Submission {
    path: Path,
    stream: Stream,
    began_ns: u64,
    start: Option<TimeMark>,
    figures: Option<Arc<OnceLock<LaunchFigures>>>,
}

impl Submission {
    /// Call before work is submitted to `stream`; `None` if nothing is recorded.
    #[inline]
    pub fn begin(stream: &Stream) -> Option<Submission> {
        current().map(|path| Self::on(path, stream))
    }

    fn on(path: Path, stream: &Stream) -> Submission {
        let simulated = stream.device().driver().kind() == DriverKind::Sim;
        let mut start = None;
        if !simulated {
            path.recorder.see_clock(stream);
            start = stream.mark_time().ok();
        }
        let figures = simulated.then(Arc::default);
        Submission { began_ns: path.recorder.now_ns(), path, stream: stream.clone(), start, figures }
    }

    /// Cell in which the simulated device stores the counts of a launch.
    pub fn figures(&self) -> Option<&Arc<OnceLock<LaunchFigures>>> {
        self.figures.as_ref()
    }

    /// Records a submitted copy or fill.
    pub(crate) fn submitted(self, kind: WorkKind, bytes_read: u64, bytes_written: u64) {
        self.record(kind, None, bytes_read, bytes_written);
    }

    /// Records a submitted launch of `kernel`.
    pub fn launched(self, kernel: &Kernel, launch: LaunchShape, bytes_read: u64, bytes_written: u64) {
        let LaunchShape { blocks, threads, shared_bytes, rows } = launch;
        let (function, name) = (kernel.function().0, kernel.name().into());
        let launch =
            LaunchRecord { kernel: name, function, blocks, threads, shared_bytes, rows, needs: None, figures: None };
        self.record(WorkKind::Launch(launch), Some(kernel.clone()), bytes_read, bytes_written);
    }

    fn record(self, kind: WorkKind, kernel: Option<Kernel>, bytes_read: u64, bytes_written: u64) {
        let ended_ns = self.path.recorder.now_ns();
        let marks = self.start.and_then(|start| Some((start, self.stream.mark_time().ok()?)));
        let work = Work {
            path: self.path.id,
            group: self.path.group,
            stream: self.stream.id().index,
            kind,
            bytes_read,
            bytes_written,
            began_ns: self.began_ns,
            ended_ns,
            device: None,
        };
        self.path.recorder.submitted(Submitted { work, marks, kernel, figures: self.figures });
    }
}

/// A call of the host that is not stream work, such as an allocation.
#[must_use = "a call is recorded when it has returned"]
pub(crate) struct Call {
    path: Path,
    began_ns: u64,
}

impl Call {
    #[inline]
    pub(crate) fn begin() -> Option<Call> {
        current().map(|path| Call { began_ns: path.recorder.now_ns(), path })
    }

    pub(crate) fn returned(self, kind: WorkKind, stream: u32, bytes: u64) {
        let (path, group, began_ns) = (self.path.id, self.path.group, self.began_ns);
        let recorder = &self.path.recorder;
        let (bytes_read, bytes_written, ended_ns) = (0, bytes, recorder.now_ns());
        let work = Work { path, group, stream, kind, bytes_read, bytes_written, began_ns, ended_ns, device: None };
        recorder.submitted(Submitted { work, marks: None, kernel: None, figures: None });
    }
}

/// A wait of the host, from its first check to its last.
pub(crate) struct Waiting {
    _step: InStep,
    call: Option<Call>,
    stream: u32,
}

impl Waiting {
    #[inline]
    pub(crate) fn begin(stream: impl FnOnce() -> u32) -> Option<Waiting> {
        let path = current()?;
        let step = path.step(WAIT);
        Some(Waiting { call: Some(Call { began_ns: step.began_ns, path }), _step: step, stream: stream() })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            call.returned(WorkKind::Wait, self.stream, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(step: Step, began_ns: u64, ended_ns: u64) -> Span {
        Span { path: 0, group: None, step, began_ns, ended_ns }
    }

    fn recording(spans: Vec<Span>) -> Recording {
        let path =
            PathRecord { kind: "run", name: "r".into(), parent: None, rest: "rest", began_ns: 10, ended_ns: 100 };
        Recording { paths: vec![path], spans, ..Recording::default() }
    }

    #[test]
    fn the_steps_of_a_path_add_up_to_its_life() {
        let spans = vec![span("inner", 30, 40), span("outer", 20, 60), span("late", 90, 130), span("twice", 60, 60)];
        let recording = recording(spans);
        assert_eq!(
            recording.pieces(0),
            [
                ("rest", 10, 20),
                ("outer", 20, 30),
                ("inner", 30, 40),
                ("outer", 40, 60),
                ("rest", 60, 90),
                ("late", 90, 100)
            ]
        );
        let steps = recording.steps(0);
        assert_eq!(steps, [("rest", 40), ("outer", 30), ("inner", 10), ("late", 10)]);
        assert_eq!(steps.iter().map(|(_, ns)| ns).sum::<u64>(), recording.paths[0].ns());
    }

    #[test]
    fn spans_that_cross_give_the_time_to_the_one_that_began_last() {
        let recording = recording(vec![span("a", 10, 50), span("b", 30, 80), span("c", 80, 100)]);
        assert_eq!(recording.steps(0), [("a", 20), ("b", 50), ("c", 20)]);
        assert!(recording.steps(7).is_empty());
    }

    #[test]
    fn a_step_belongs_to_the_path_that_its_thread_is_on() {
        assert!(step("nobody").is_none());
        let recorder = Recorder::new();
        let query = recorder.path("query", "one", "rest");
        let on = query.enter();
        let run = recorder.path("run", "one", "rest");
        drop(step("of the query"));
        let inside = run.in_group("segment 0").enter();
        drop(step("of the run"));
        run.note("said");
        drop(inside);
        drop(step("of the query"));
        drop(on);
        assert!(step("nobody").is_none());
        run.end();
        let recording = recorder.recording();
        let seen: Vec<_> = recording.spans.iter().map(|span| (span.path, span.group, span.step)).collect();
        assert_eq!(seen, [(0, None, "of the query"), (1, Some(0), "of the run"), (0, None, "of the query")]);
        assert_eq!((recording.paths[1].parent, recording.paths[0].parent), (Some(0), None));
        assert_eq!((recording.groups, recording.notes), (vec!["segment 0".into()], vec![(1, "said".to_string())]));
    }
}
