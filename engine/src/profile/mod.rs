//! Time profiles of queries, recorded on request.
//!
//! ```text
//!   Profiler ─ around(plan and run) ─► query   plan │ place │ cpu …                            the caller's own path
//!       │                               └─ run     prepare │ generate │ assemble │ feed │ launch │ wait │ download │ …
//!       │                                   ├─ feeder   open │ read │ decode │ intern │ narrow │ copy │ launch │ wait
//!       │                                   └─ reader   open │ read │ decode │ room       ahead of a feeder
//!       └─ finish ─► Profile ─► EXPLAIN ANALYZE, `run --json`, `--trace`
//! ```
//!
//! Query    the steps of its runs count as its own while they are active; concurrent runs share the time. So its steps
//!          add up to its wall time. Under feeding, the steps of all feeders and readers add up to their total
//!          lifetime.
//! Request  by a [`Profiler`] or by EXPLAIN ANALYZE. Otherwise a hook only reads a thread-local variable; there is no
//!          hook per row or batch.
//! Hooks    are single calls at the measured places; their meaning is defined here.

mod figures;
#[doc(hidden)]
pub mod metric;
mod reads;
mod text;

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::execution::TaskContext;
use datafusion::execution::context::SessionContext;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricValue};
use futures::future::BoxFuture;
use millpond_memory::recorder::{self, Path, Recorder, Step};

pub use figures::{Feeding, KernelProfile, Profile, SegmentProfile};
pub use millpond_memory::recorder::{LaunchRecord, PathRecord, Recording, Work, WorkKind};
pub(crate) use reads::timed_reads;
pub use text::{kernel_text, segment_text, steps_text};

/// Steps of a query's own path. `wait`, `generate` and `assemble` are defined by the memory layer.
pub mod step {
    use millpond_memory::recorder::Step;

    /// DataFusion plans.
    pub const PLAN: Step = "plan";
    /// Parts of the plan are placed on the device.
    pub const PLACE: Step = "place";
    /// Operators above the borders run, or the consumer of the result.
    pub const CPU: Step = "cpu";
    /// A run is prepared and lowered.
    pub const PREPARE: Step = "prepare";
    /// The run waits for its feeders.
    pub const FEED: Step = "feed";
    /// Launches are prepared and submitted, including their memory.
    pub const LAUNCH: Step = "launch";
    /// A result is downloaded and converted to Arrow.
    pub const DOWNLOAD: Step = "download";
    /// A result waits for the operators above to take it.
    pub const DELIVER: Step = "deliver";
    /// The host waits for the device, or for pinned memory that the device still uses.
    pub const WAIT: Step = millpond_memory::recorder::WAIT;
    /// PTX is generated.
    pub const GENERATE: Step = millpond_memory::recorder::GENERATE;
    /// The driver assembles PTX.
    pub const ASSEMBLE: Step = millpond_memory::recorder::ASSEMBLE;

    /// A feeder waits for its reader to decode rows.
    pub const ROWS: Step = "rows";
    /// A reader waits for its feeder to take its rows.
    pub const ROOM: Step = "room";
    /// A file is opened: its footer and page index.
    pub const OPEN: Step = "open";
    /// A reader waits for bytes of a file.
    pub const READ: Step = "read";
    /// A thread decompresses and decodes, applies the scan's filters, and runs CPU operators below the border.
    pub const DECODE: Step = "decode";
    /// Strings are interned.
    pub const INTERN: Step = "intern";
    /// Values are checked and written into pinned memory, in the width of the device's columns.
    pub const NARROW: Step = "narrow";
    /// Device memory is allocated for them, and the copy is submitted.
    pub const COPY: Step = "copy";
}

/// Records the time profile of a query, from its creation on.
#[derive(Debug, Clone)]
pub struct Profiler {
    path: Path,
}

impl Profiler {
    /// Starts a query's path now.
    pub fn begin(query: impl Into<String>) -> Self {
        Self { path: Recorder::new().path("query", query, step::CPU) }
    }

    /// Records `future`, which plans and runs the query, or a part of it.
    pub fn around<F: Future>(&self, future: F) -> impl Future<Output = F::Output> {
        self.path.around(future)
    }

    /// Ends the query and returns its profile. Its time ends with its last report, or now if there is none.
    pub(crate) fn finish(&self, device: Option<DeviceFacts>) -> Profile {
        Profile::of(self.path.recorder().recording(), device)
    }
}

/// Device facts for a profile.
#[derive(Debug, Clone)]
pub(crate) struct DeviceFacts {
    pub name: String,
    pub memory_bandwidth: Option<f64>,
}

/// True for statements that request a profile by themselves: EXPLAIN ANALYZE.
pub fn is_asked_by(sql: &str) -> bool {
    let code = sql.lines().filter(|line| !line.trim_start().starts_with("--"));
    let mut words = code.flat_map(str::split_whitespace);
    let mut is = |wanted: &str| words.next().is_some_and(|word| word.eq_ignore_ascii_case(wanted));
    is("explain") && is("analyze")
}

/// Extension of a task context: the path of the query.
struct Asked(Path);

/// Context for a query's tasks, with the path of the current thread.
pub(crate) fn task_context(context: &SessionContext) -> Arc<TaskContext> {
    let Some(path) = recorder::current() else { return context.task_ctx() };
    let task = TaskContext::from(context);
    let config = task.session_config().clone().with_extension(Arc::new(Asked(path)));
    Arc::new(task.with_session_config(config))
}

/// Context for the tasks of a recorded query, and its profiler: the existing one, else a new one that records from now
/// on.
pub(crate) fn recorded(context: &Arc<TaskContext>) -> (Arc<TaskContext>, Profiler) {
    if let Some(asked) = context.session_config().get_extension::<Asked>() {
        return (Arc::clone(context), Profiler { path: asked.0.clone() });
    }
    let profiler = Profiler::begin("query");
    let config = context.session_config().clone().with_extension(Arc::new(Asked(profiler.path.clone())));
    let task = TaskContext::new(
        context.task_id(),
        context.session_id(),
        config,
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        context.runtime_env(),
    );
    (Arc::new(task), profiler)
}

/// Profiles of the runs of a border, without their recordings.
pub(crate) type RunProfiles = Arc<Mutex<Vec<Profile>>>;

/// A border whose runs write their time profile to its metrics.
pub(crate) struct Border {
    pub metrics: ExecutionPlanMetricsSet,
    /// Profiles of the runs that have ended.
    pub runs: RunProfiles,
    /// Called when a run has ended.
    pub device: Box<dyn FnOnce() -> DeviceFacts + Send>,
}

/// Runs `run` on a path of its own if a profile is requested, for the query or, by EXPLAIN ANALYZE, for the border.
pub(crate) fn run<F>(context: &TaskContext, border: Option<Border>, run: F) -> BoxFuture<'static, F::Output>
where
    F: Future + Send + 'static,
{
    let begin = |recorder: &Recorder| recorder.path("run", "run", step::CPU);
    let path = match context.session_config().get_extension::<Asked>() {
        Some(asked) => {
            let _on = asked.0.enter();
            begin(asked.0.recorder())
        }
        None if border.is_some() => begin(&Recorder::new()),
        None => return Box::pin(run),
    };
    Box::pin(async move {
        let ended = path.clone().life(run).await;
        if let Some(Border { metrics, runs, device }) = border {
            let profile = Profile::of_run(path.recorder().recording(), path.id(), device());
            for (name, value) in text::lines(&profile) {
                let value = Arc::new(text::Line(value));
                MetricBuilder::new(&metrics).build(MetricValue::Custom { name: name.into(), value });
            }
            let mut runs = runs.lock().unwrap_or_else(PoisonError::into_inner);
            runs.push(Profile { recording: Recording::default(), ..profile });
        }
        ended
    })
}

/// Work of the named segment: its launches, and everything that belongs to no other step.
pub(crate) async fn segment<F: Future>(name: impl FnOnce() -> String, work: F) -> F::Output {
    let Some(path) = recorder::current() else { return work.await };
    let path = path.in_group(&format!("run {} · {}", path.id(), name()));
    path.around(recorder::during(step::LAUNCH, work)).await
}

/// A concurrent task of the current run, which rests in the step `rest`.
pub(crate) fn beside<F>(kind: &'static str, rest: Step, task: F) -> BoxFuture<'static, F::Output>
where
    F: Future + Send + 'static,
{
    match recorder::current() {
        None => Box::pin(task),
        Some(path) => Box::pin(path.recorder().path(kind, kind, rest).life(task)),
    }
}

/// Like `beside`, for work on a thread of its own.
pub(crate) fn beside_call<T>(kind: &'static str, rest: Step, call: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let path = recorder::current().map(|path| path.recorder().path(kind, kind, rest));
    move || {
        let on = path.as_ref().map(Path::enter);
        let value = call();
        drop(on);
        path.iter().for_each(Path::end);
        value
    }
}

/// The next batch of a reader, given its path: without a profile, a batch costs nothing.
pub(crate) async fn decoded<F: Future>(path: &Option<Path>, next: F) -> F::Output {
    match path {
        None => next.await,
        Some(_) => recorder::polled(step::DECODE, next).await,
    }
}

/// Runs `call` as a step of the current thread's path.
pub(crate) fn timed<T>(step: Step, call: impl FnOnce() -> T) -> T {
    let _step = recorder::step(step);
    call()
}

/// Note at the start of an attempt.
const ATTEMPT: &str = "an attempt begins";

/// An attempt to run a program. If it fails, the reason is recorded, which the next attempt has learnt.
pub(crate) async fn attempt<T, E>(attempt: impl Future<Output = Result<T, E>>, why: fn(&E) -> String) -> Result<T, E> {
    let path = recorder::current();
    path.iter().for_each(|path| path.note(ATTEMPT));
    attempt.await.inspect_err(|failure| path.iter().for_each(|path| path.note(why(failure))))
}

#[cfg(test)]
mod tests {
    use super::is_asked_by;

    #[test]
    fn explain_analyze_asks_and_nothing_else_does() {
        for sql in ["EXPLAIN ANALYZE SELECT 1", "-- why\n  explain\n analyze verbose SELECT 1"] {
            assert!(is_asked_by(sql), "{sql}");
        }
        for sql in ["EXPLAIN SELECT 1", "ANALYZE", "SELECT 'explain analyze'", ""] {
            assert!(!is_asked_by(sql), "{sql}");
        }
    }
}
