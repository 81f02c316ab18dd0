//! What runs: a device subtree compiled into pipelines, and one run of them.
//!
//!   DownloadExec ─ DeviceAggregateExec ─ DeviceFilterExec ─ UploadExec
//!        └─► Program  [ upload → filter → aggregate ] [ groups → averages → materialise ]
//!               └─► Run   feeders · dictionaries · state · results          one per execution; nothing outlives it
//!
//! Trouble  out of memory, a lost device or an error flag before the first batch re-runs the CPU subplan, with a note.

pub mod compile;

use std::sync::Arc;

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::{StreamExt, TryStreamExt, stream};

use crate::error::EngineError;
use crate::exec::DownloadExec;
use crate::options::{Fallback, MillpondOptions};

pub use compile::{LoweredSegment, Program, Segment, Sink, SortKey, Stage};

/// Why a run stopped before it gave anything.
#[derive(Debug, Clone)]
pub struct Trouble {
    pub what: String,
    pub out_of_memory: bool,
    pub lost: bool,
}

/// Starts a run of the subtree below `download`; its work begins with the first poll.
pub fn execute(download: &DownloadExec, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
    let schema = download.schema();
    let download = download.clone();
    let started = async move {
        let program = Program::of(download.input())?;
        let trouble = Trouble {
            what: format!("programs of {} segments do not run yet", program.segments.len()),
            out_of_memory: false,
            lost: false,
        };
        take_over(&download, context, trouble)
    };
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream::once(started).try_flatten())))
}

/// The CPU runs the subplan that the device could not finish, or the query ends with the trouble.
fn take_over(
    download: &DownloadExec,
    context: Arc<TaskContext>,
    trouble: Trouble,
) -> Result<SendableRecordBatchStream> {
    let options = context.session_config().options().extensions.get::<MillpondOptions>();
    let fallback = options.map_or(Fallback::Allow, |options| options.fallback);
    if fallback == Fallback::Error {
        return Err(trouble.into_error());
    }
    let note = format!("{} – ran this part again on the CPU", trouble.what);
    if fallback == Fallback::Warn {
        tracing::warn!("{note}");
    }
    download.note(note);
    let mut cpu = reset_plan_states(Arc::clone(download.cpu()))?;
    if cpu.output_partitioning().partition_count() > 1 {
        cpu = match cpu.properties().output_ordering().cloned() {
            Some(order) => Arc::new(
                datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec::new(order, cpu),
            ),
            None => Arc::new(CoalescePartitionsExec::new(cpu)),
        };
    }
    cpu.execute(0, context)
}

impl Trouble {
    fn into_error(self) -> DataFusionError {
        let Trouble { what, out_of_memory, lost } = self;
        let error = EngineError::DeviceTrouble { what, forbidden: true, lost, out_of_memory };
        match out_of_memory {
            true => DataFusionError::ResourcesExhausted(error.to_string()),
            false => error.into(),
        }
    }
}
