//! What everyone needs who does something for a run: the device, the options, the door to its memory, tags, counts.
//!
//! Memory   is taken through one door, which has it promised by the governor first.

use std::sync::Arc;

use datafusion::execution::TaskContext;
use millpond_kernels::KernelError;
use millpond_kernels::codegen::ir::PipelineSpec;
use millpond_kernels::pipeline::Pipeline;
use millpond_memory::Scope;

use crate::device::Engine;
use crate::device::host_memory::HostHold;
use crate::device::memory::MemoryDoor;
use crate::looks::Looks;
use crate::options::{Fallback, MillpondOptions, ParquetDecoder};
use crate::program::counts::Tally;
use crate::subqueries::Subqueries;
use crate::workers::off_workers;

/// Where a run tells what a user should hear of.
pub trait Notes: Send + Sync {
    /// Notes what the CPU took over, once; where fallbacks are to be warned of, as a warning, too.
    fn note_once(&self, note: String, fallback: Fallback);
}

/// What a run works with.
pub struct RunContext {
    pub engine: Arc<Engine>,
    pub options: MillpondOptions,
    pub task: Arc<TaskContext>,
    pub scope: Scope,
    /// Under what its buffers are counted, and named when memory runs out.
    pub tags: Tags,
    /// Counts what the run does. Who launches a pipeline of its own adds to [`launches`](Tally::launches).
    pub tally: Arc<Tally>,
    pub memory: MemoryDoor,
    /// Where its subqueries have their values.
    pub subqueries: Subqueries,
    /// Its files, as its planning has seen them.
    pub(crate) looks: Option<Arc<Looks>>,
    pub(crate) notes: Arc<dyn Notes>,
    /// Counts the run as under way until the last of its tasks has let go of this: also those that it has given up.
    _under_way: Option<Box<dyn Send + Sync>>,
}

/// The kinds of buffers of a run.
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
    /// For a run on `engine`, whose buffers are counted under `scope`.
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

    /// The same for a run whose subqueries have containers of its own, and whose planning has seen its files.
    pub fn planned_with(self, subqueries: &Subqueries, looks: Option<Arc<Looks>>) -> Self {
        Self { subqueries: subqueries.clone(), looks, ..self }
    }

    /// The same for a run that has ended when `under_way` is dropped.
    pub fn counted_by(self, under_way: Box<dyn Send + Sync>) -> Self {
        Self { _under_way: Some(under_way), ..self }
    }

    /// For work on a device that belongs to no query's run. The engine is to be told when it has ended.
    pub fn apart(engine: &Arc<Engine>, task: &Arc<TaskContext>) -> Self {
        struct Unheard;
        impl Notes for Unheard {
            fn note_once(&self, _note: String, _fallback: Fallback) {}
        }
        Self::new(engine, task, engine.query_scope(), &Arc::default(), Arc::new(Unheard))
    }

    /// Pages of Parquet files go to the device as they are, where it has kernels for them.
    pub fn decodes_on_device(&self) -> bool {
        match self.options.parquet_decoder {
            ParquetDecoder::Auto => !self.engine.is_simulated(),
            ParquetDecoder::Host => false,
            ParquetDecoder::Device => true,
        }
    }

    /// What the session's own memory pool holds for this run's bytes on the host: none at first.
    pub fn host_memory(&self, what: &str) -> HostHold {
        HostHold::new(&format!("millpond {} {what}", self.scope.path()), &self.task.runtime_env().memory_pool)
    }

    /// The pipeline of a spec, noted as used by this run. One that is not there yet is assembled beside the runtime's tasks.
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
