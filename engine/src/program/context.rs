//! State shared by all work of one run: device, options, memory, tags and counts.
//!
//! Memory   is allocated through one door, which reserves it with the governor first.

use std::sync::Arc;

use datafusion::execution::TaskContext;
use millpond_kernels::KernelError;
use millpond_kernels::codegen::ir::PipelineSpec;
use millpond_kernels::pipeline::Pipeline;
use millpond_memory::Scope;

use crate::device::Engine;
use crate::device::host_memory::HostHold;
use crate::device::memory::MemoryDoor;
use crate::device::workers::off_workers;
use crate::options::{Fallback, MillpondOptions, ParquetDecoder};
use crate::plan::snapshot::Looks;
use crate::plan::subqueries::Subqueries;
use crate::program::counts::Tally;

/// Receiver of notes to the user.
pub trait Notes: Send + Sync {
    /// Notes once what the CPU took over; also as a warning, if `fallback` demands warnings.
    fn note_once(&self, note: String, fallback: Fallback);
}

/// Shared state of one run.
pub struct RunContext {
    pub engine: Arc<Engine>,
    pub options: MillpondOptions,
    pub task: Arc<TaskContext>,
    pub scope: Scope,
    /// Names under which its buffers are counted, and which out-of-memory errors show.
    pub tags: Tags,
    /// Counters of the run. Code that launches a pipeline of its own adds to [`launches`](Tally::launches).
    pub tally: Arc<Tally>,
    pub memory: MemoryDoor,
    /// Values of its subqueries.
    pub subqueries: Subqueries,
    /// Snapshots of its files, as its planning has seen them.
    pub(crate) looks: Option<Arc<Looks>>,
    pub(crate) notes: Arc<dyn Notes>,
    /// Counts the run as active until its last task, an abandoned one included, drops this context.
    _under_way: Option<Box<dyn Send + Sync>>,
}

/// Tags for the kinds of buffers of a run.
pub struct Tags {
    pub extents: Scope,
    pub groups: Scope,
    pub output: Scope,
    pub sort: Scope,
    pub joins: Scope,
}

impl Tags {
    pub fn of(scope: &Scope) -> Self {
        let tag = |name| scope.child(name);
        let (extents, groups, output, sort) = (tag("extents"), tag("groups"), tag("output"), tag("sort"));
        Self { extents, groups, output, sort, joins: tag("joins") }
    }
}

impl RunContext {
    /// Context of a run on `engine`; its buffers are counted under `scope`.
    pub fn new(
        engine: &Arc<Engine>,
        task: &Arc<TaskContext>,
        scope: Scope,
        tally: &Arc<Tally>,
        notes: Arc<dyn Notes>,
    ) -> Self {
        let options = task.session_config().options().extensions.get::<MillpondOptions>().cloned().unwrap_or_default();
        Self {
            engine: Arc::clone(engine),
            options,
            task: Arc::clone(task),
            tags: Tags::of(&scope),
            tally: Arc::clone(tally),
            memory: MemoryDoor::new(&engine.pool, engine.governor.participant(scope.path(), 0)),
            subqueries: Subqueries::default(),
            looks: None,
            notes,
            scope,
            _under_way: None,
        }
    }

    /// Sets the run's own subquery values, and the file snapshots of its planning.
    pub fn planned_with(self, subqueries: &Subqueries, looks: Option<Arc<Looks>>) -> Self {
        Self { subqueries: subqueries.clone(), looks, ..self }
    }

    /// Sets the guard whose drop ends the run.
    pub fn counted_by(self, under_way: Box<dyn Send + Sync>) -> Self {
        Self { _under_way: Some(under_way), ..self }
    }

    /// Context for device work outside any query's run. The caller notifies the engine when the work has ended.
    pub fn apart(engine: &Arc<Engine>, task: &Arc<TaskContext>) -> Self {
        struct Unheard;
        impl Notes for Unheard {
            fn note_once(&self, _note: String, _fallback: Fallback) {}
        }
        Self::new(engine, task, engine.query_scope(), &Arc::default(), Arc::new(Unheard))
    }

    /// True if Parquet pages are uploaded as they are, where kernels can decode them.
    pub fn decodes_on_device(&self) -> bool {
        match self.options.parquet_decoder {
            ParquetDecoder::Auto => !self.engine.is_simulated(),
            ParquetDecoder::Host => false,
            ParquetDecoder::Device => true,
        }
    }

    /// Reservation for this run's host memory in the session's own memory pool; initially empty.
    pub fn host_memory(&self, what: &str) -> HostHold {
        HostHold::new(&format!("millpond {} {what}", self.scope.path()), &self.task.runtime_env().memory_pool)
    }

    /// The pipeline of a spec, counted as used by this run. A new one is assembled outside the runtime's worker
    /// threads.
    pub fn pipeline(&self, spec: &PipelineSpec) -> Result<Arc<Pipeline>, KernelError> {
        let pipelines = &self.engine.pipelines;
        let pipeline = match pipelines.known(spec) {
            Some(pipeline) => pipeline,
            None => off_workers(|| pipelines.pipeline(spec))?,
        };
        self.tally.note(&pipeline);
        Ok(pipeline)
    }
}
