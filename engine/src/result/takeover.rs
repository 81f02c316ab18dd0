//! A run and its aftermath: its batches, its counts, and the CPU's run if the device failed.
//!
//! Trouble  before the first batch (out of memory, a lost device, an error flag) runs the CPU subplan, with a note.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::metrics::MetricBuilder;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::stream::{RecordBatchReceiverStream, RecordBatchStreamAdapter};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use millpond_memory::{Scope, recorder};

use crate::error::EngineError;
use crate::error::failure::{Failure, Trouble};
use crate::options::{Fallback, MillpondOptions};
use crate::profile;
use crate::profile::metric;
use crate::program::attempts::{self, Runs};
use crate::program::counts::Tally;
use crate::program::results::Output;
use crate::result::node::DownloadExec;
use crate::source::reset::ready_again;

/// Number of batches queued between the run and its consumer.
const BATCHES_AHEAD: usize = 2;

/// Starts a run of the subtree below `download`; its work begins with the first poll.
pub fn execute(download: &DownloadExec, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
    let schema = download.schema();
    let download = download.clone();
    let started = async move {
        // The stream owns the host task: dropping it ends the run.
        let mut builder = RecordBatchReceiverStream::builder(download.schema(), BATCHES_AHEAD);
        let sender = builder.tx();
        let batch_rows = context.session_config().batch_size();
        let out = Output { sender, sent: Arc::default(), batch_rows, is_mute: false };
        let run = host_task(download.clone(), Arc::clone(&context), out);
        builder.spawn(profile::run(&context, download.analyzed(), run));
        Ok::<_, DataFusionError>(builder.build())
    };
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream::once(started).try_flatten())))
}

/// The run and its aftermath.
async fn host_task(download: DownloadExec, context: Arc<TaskContext>, mut out: Output) -> Result<()> {
    let options = context.session_config().options().extensions.get::<MillpondOptions>();
    let engine = download.engine();
    engine.check_process()?;
    let skipping = options.is_some_and(|options| options.debug_sim_skip_launches);
    let plan = skipping.then(|| download.key());
    // Dropped last: a waiter for the end of the run then finds its counts recorded and the device free.
    let under_way = download.run_begins();
    let mut turn = engine.null_device.begin(engine.simulated().map(|sim| &**sim), plan)?;
    out.is_mute = turn.skips();
    let scope = download.engine().query_scope();
    let record = Record { download: download.clone(), scope: scope.clone(), tally: Arc::default(), out: out.clone() };
    let run = attempts::run(&download, &context, &scope, &record.tally, &out);
    let ended = recorder::during(profile::step::PREPARE, run).await;
    let (attempts, answers) = (&record.tally.attempts, &record.tally.answers_kept);
    if ended.is_ok() && attempts.load(Ordering::Relaxed) == 1 && answers.load(Ordering::Relaxed) == 0 {
        turn.is_steady();
    }
    drop(record);
    let skipped = turn.skips();
    drop(turn);
    drop(under_way);
    let fallback = options.map_or(Fallback::Allow, |options| options.fallback);
    let sent = out.sent.load(Ordering::Relaxed) > 0;
    let mut trouble = match ended {
        Ok(()) if skipped => return Err(EngineError::LaunchesSkipped { trouble: None }.into()),
        Ok(()) | Err(Failure::Cancelled) => return Ok(()),
        // The CPU's run may never read the input that failed.
        Err(Failure::Input(error)) if fallback != Fallback::Error && !sent && spares_rows(download.cpu()) => {
            Trouble { what: error.strip_backtrace(), ..Trouble::default() }
        }
        Err(Failure::Input(error)) => return Err(error),
        Err(Failure::Surprise) => {
            Trouble { what: "what was found of the plan kept changing".into(), ..Trouble::default() }
        }
        Err(Failure::Ranges | Failure::Dictionaries(_) | Failure::Ranks | Failure::Texts(_) | Failure::Arena) => {
            Trouble { what: "values left the ranges that statistics gave".into(), ..Trouble::default() }
        }
        Err(Failure::Trouble(trouble) | Failure::Midway(trouble) | Failure::Pinned(trouble)) => trouble,
    };
    if skipped {
        return Err(EngineError::LaunchesSkipped { trouble: Some(trouble.what) }.into());
    }
    // Once a batch has been sent, the CPU cannot start over.
    if fallback == Fallback::Error || sent {
        // An error of the query itself is reported in DataFusion's words with its values, which only DataFusion can
        // produce.
        if trouble.sql.is_some() {
            let mut batches = cpu(&download, context)?;
            while let Some(batch) = batches.next().await {
                batch?;
            }
            // DataFusion evaluates no such row, so the error is the device's.
            trouble.sql = None;
        }
        return Err(trouble.into_error(fallback));
    }
    download.note_once(format!("{} – ran this part again on the CPU", trouble.what), fallback);
    MetricBuilder::new(download.metrics_set()).global_counter(metric::TAKEN_OVER).add(1);
    let mut batches = cpu(&download, context)?;
    while let Some(batch) = batches.next().await {
        let batch = batch?;
        if out.sender.send(Ok(batch)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// True if DataFusion may leave part of a plan's input unread: a side of a join whose other side is empty, or rows
/// beyond a limit.
fn spares_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.children().len() > 1 || plan.fetch().is_some() || plan.children().into_iter().any(spares_rows)
}

/// The CPU subplan of the device subtree, with one partition.
fn cpu(download: &DownloadExec, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
    let mut cpu = ready_again(download.subqueries().rewrite(download.cpu())?)?;
    if cpu.output_partitioning().partition_count() > 1 {
        cpu = match cpu.properties().output_ordering().cloned() {
            Some(order) => Arc::new(SortPreservingMergeExec::new(order, cpu)),
            None => Arc::new(CoalescePartitionsExec::new(cpu)),
        };
    }
    cpu.execute(0, context)
}

/// Records a run's counts in the metrics when the run ends for any reason.
struct Record {
    download: DownloadExec,
    scope: Scope,
    tally: Arc<Tally>,
    out: Output,
}

impl Drop for Record {
    fn drop(&mut self) {
        let counters = self.scope.counters();
        let metrics = self.download.metrics_set();
        let count = |name: &'static str, n: u64| MetricBuilder::new(metrics).global_counter(name).add(n as usize);
        MetricBuilder::new(metrics).output_rows(0).add(self.out.sent.load(Ordering::Relaxed) as usize);
        count(metric::LAUNCHES, counters.launches);
        let (pipelines, ptx_instructions) = self.tally.pipelines();
        count(metric::PIPELINE_LAUNCHES, self.tally.launches.load(Ordering::Relaxed));
        count(metric::PIPELINES, pipelines);
        count(metric::PTX_INSTRUCTIONS, ptx_instructions);
        count(metric::SEGMENTS, self.tally.segments.load(Ordering::Relaxed));
        count(metric::ATTEMPTS, self.tally.attempts.load(Ordering::Relaxed));
        count(metric::LOWERINGS, self.tally.lowerings.load(Ordering::Relaxed));
        count(metric::STATISTICS_READ, self.tally.statistics_read.load(Ordering::Relaxed));
        count(metric::PREPARE_NS, self.tally.prepare_ns.load(Ordering::Relaxed));
        count(metric::HOST_WAITS, counters.host_waits);
        count(metric::ALLOCATIONS, counters.allocations);
        count(metric::ALLOCATED_BYTES, counters.allocated_bytes);
        if counters.allocator_ns > 0 {
            count(metric::ALLOCATOR_NS, counters.allocator_ns);
        }
        count(metric::UPLOADED_BYTES, counters.uploaded_bytes);
        count(metric::DOWNLOADED_BYTES, counters.downloaded_bytes);
        count(metric::PEAK_BYTES, counters.peak_bytes);
        count(metric::SPILLED_BYTES, counters.spilled_bytes);
        count(metric::RESTORED_BYTES, counters.restored_bytes);
        self.download.engine().query_ended();
    }
}
