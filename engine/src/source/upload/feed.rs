//! Feeder tasks: DataFusion's partitions become extents.
//!
//!   partitions 0, 4, 8 ── a task each ──► feeder 0 ─ collect ─ intern ─ narrow into pinned memory ─ copy ─ launch      own stream
//!   partitions 1, 5, 9 ──► feeder 1 ─ …
//!
//! Order    none between feeders. All partitions are polled, whatever happens to the others: a partitioned join below may
//!          wait for all of them.
//! Memory   an extent per feeder in pinned memory; device memory is freed in stream order behind its launch.
//! Short    of device memory, a feeder waits until it is the only one with an extent under way; then it takes half the rows,
//!          and half of that; in the end it waits for other queries. Later extents stay small.
//! Trouble  in a program without a sink of its own, costs an extent, not the run: the CPU takes over its rows.
//! Waits    for pinned memory, and in a program without a sink of its own for each extent's result.

use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows};
use millpond_memory::{HostKind, MemoryError, Stream, recorder};
use tokio::sync::RwLockWriteGuard;
use tokio::task::JoinSet;

use crate::column::layout::ExtentLayout;
use crate::column::{ColumnInfo, storage};
use crate::device::host_memory::HostHold;
use crate::error::EngineError;
use crate::options::Fallback;
use crate::profile::{self, step};
use crate::program::extents::SegmentRun;
use crate::program::failure::Failure;
use crate::program::run::Run;
use crate::program::texts;
use crate::{metric, panics};

/// Batches of a partition that are read before they are wanted.
const BATCHES_AHEAD: usize = 2;

/// An extent is not made smaller than this.
const LEAST_ROWS: usize = 64;

/// Feeds all rows of `input`, the plan below upload `upload`, to a segment.
pub(super) async fn feed(
    segment: &Arc<SegmentRun>,
    upload: usize,
    input: &Arc<dyn ExecutionPlan>,
    metrics: &ExecutionPlanMetricsSet,
) -> Result<(), Failure> {
    let partitions = input.output_partitioning().partition_count();
    let feeders = segment.run.options.partitions.min(partitions).max(1);
    let mut tasks = JoinSet::new();
    let input = &profile::timed_reads(input);
    for feeder in 0..feeders {
        let mine: Vec<usize> = (feeder..partitions).step_by(feeders).collect();
        let feeder = Feeder { segment: Arc::clone(segment), upload, metrics: metrics.clone() };
        let input = Arc::clone(input);
        let feeding = async move { feeder.run_all(&input, mine).await };
        tasks.spawn(profile::beside("feeder", step::ROWS, feeding));
    }
    // Dropping the set, when a feeder fails or the run is dropped, ends the others.
    while let Some(joined) = tasks.join_next().await {
        joined.map_err(|error| Failure::from(panics::task_ended(error)))??;
    }
    Ok(())
}

/// Feeds rows of one upload to one segment.
struct Feeder {
    segment: Arc<SegmentRun>,
    upload: usize,
    metrics: ExecutionPlanMetricsSet,
}

impl Feeder {
    fn run(&self) -> &Run {
        &self.segment.run
    }

    async fn run_all(&self, input: &Arc<dyn ExecutionPlan>, partitions: Vec<usize>) -> Result<(), Failure> {
        let run = self.run();
        // Every partition has a task of its own, so that reading and decoding use more cores than there are feeders. Dropping the
        // stream ends them.
        let mut readers = RecordBatchReceiverStream::builder(input.schema(), BATCHES_AHEAD * partitions.len().max(1));
        for partition in partitions {
            let opened = profile::timed(step::OPEN, || input.execute(partition, Arc::clone(&run.task)));
            let mut stream = opened.map_err(Failure::Input)?;
            let batches = readers.tx();
            let reading = async move {
                let path = recorder::current();
                while let Some(batch) = profile::decoded(&path, stream.next()).await {
                    let failed = batch.is_err();
                    let _step = path.as_ref().map(|path| path.step(step::ROOM));
                    if batches.send(batch).await.is_err() || failed {
                        break;
                    }
                }
                Ok(())
            };
            readers.spawn(profile::beside("reader", step::READ, reading));
        }
        let mut batches = readers.build();
        let rows_metric = MetricBuilder::new(&self.metrics).global_counter("output_rows");
        let mut stream = None;
        let planned = self.rows_of_an_extent();
        let texts = run.prepared.sources[self.upload].columns.iter().any(ColumnInfo::is_text);
        let most_bytes = if texts { run.options.batch_bytes } else { usize::MAX };
        let mut collected = Collected::new(run);
        while let Some(batch) = batches.next().await {
            let mut batch = batch.map_err(Failure::Input)?;
            rows_metric.add(batch.num_rows());
            while batch.num_rows() > 0 {
                let most = planned.min(run.extent_rows());
                let taken = batch.num_rows().min(most.saturating_sub(collected.rows));
                if taken == 0 || collected.is_full(most_bytes) || !collected.add(batch.slice(0, taken))? {
                    self.extents(collected.take(), &mut stream).await?;
                    collected.free();
                    continue;
                }
                batch = batch.slice(taken, batch.num_rows() - taken);
            }
            if self.segment.has_enough() {
                return Ok(());
            }
        }
        if collected.rows > 0 {
            self.extents(collected.take(), &mut stream).await?;
        }
        Ok(())
    }
}

/// Batches of an extent to be, with what the session's memory pool holds for them.
struct Collected {
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
    held: HostHold,
}

impl Collected {
    fn new(run: &Run) -> Self {
        Self { batches: vec![], rows: 0, bytes: 0, held: run.host_memory("extents") }
    }

    /// Adds a batch; false if the session's pool has no room for it beside what was collected. A first batch is here already,
    /// and goes up next, so it is counted whatever others hold, unless the pool could never hold it.
    fn add(&mut self, batch: RecordBatch) -> Result<bool, Failure> {
        let bytes = slice_bytes(&batch);
        if !self.held.try_grow(bytes) {
            if self.rows > 0 {
                return Ok(false);
            }
            if !self.held.could_hold(bytes) {
                return Err(Failure::from(self.held.refused()));
            }
            self.held.grow(bytes);
        }
        self.rows += batch.num_rows();
        self.bytes += bytes;
        self.batches.push(batch);
        Ok(true)
    }

    /// True when texts have made the rows at hand larger than planned.
    fn is_full(&self, most: usize) -> bool {
        self.bytes >= most
    }

    /// The batches; what is held for them stays until `free`.
    fn take(&mut self) -> Vec<RecordBatch> {
        (self.rows, self.bytes) = (0, 0);
        std::mem::take(&mut self.batches)
    }

    fn free(&mut self) {
        self.held.free();
    }
}

/// Bytes of a batch's own rows, about; slices share their buffers.
fn slice_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|array| array.to_data().get_slice_memory_size().unwrap_or(0)).sum()
}

impl Feeder {
    /// Sends rows up as one extent, or as several where memory is short. The feeder's stream is taken with the first of them: a
    /// device that is lost by then costs an extent.
    async fn extents(&self, batches: Vec<RecordBatch>, stream: &mut Option<Stream>) -> Result<(), Failure> {
        let _step = recorder::step(step::LAUNCH);
        let run = self.run();
        let mut waiting = vec![batches];
        let mut alone: Option<RwLockWriteGuard<'_, ()>> = None;
        let mut in_turn = false;
        while let Some(batches) = waiting.pop() {
            let gate = recorder::during(step::WAIT, run.gate.read());
            let beside = if alone.is_none() { Some(gate.await) } else { None };
            let done = match self.stream(stream) {
                Ok(stream) => self.extent(&batches, stream, in_turn).await,
                Err(failure) => Err(failure),
            };
            let Err(failure) = done else { continue };
            drop(beside);
            if !failure.is_out_of_memory() {
                self.instead(failure, &batches).await?;
                continue;
            }
            let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
            if alone.is_none() {
                alone = Some(recorder::during(step::WAIT, run.gate.write()).await);
                waiting.push(batches);
            } else if rows > LEAST_ROWS {
                let half = rows.div_ceil(2);
                run.smaller_extents(half.max(LEAST_ROWS));
                let (first, second) = halves(&batches, half);
                waiting.extend([second, first]);
            } else if !in_turn {
                in_turn = true;
                waiting.push(batches);
            } else {
                self.instead(failure, &batches).await?;
            }
        }
        Ok(())
    }

    fn stream<'s>(&self, slot: &'s mut Option<Stream>) -> Result<&'s Stream, Failure> {
        let stream = match slot.take() {
            Some(stream) => stream,
            None => self.run().engine.streams.take(&self.run().tags.extents)?,
        };
        Ok(slot.insert(stream))
    }

    /// Where rows leave as they come, an extent that the device cannot finish is no reason to begin again, and after the first
    /// rows it could not: its filters and projections run on the CPU, over the rows at hand. Otherwise the failure is the run's.
    async fn instead(&self, failure: Failure, batches: &[RecordBatch]) -> Result<(), Failure> {
        let run = self.run();
        let what = match &failure {
            Failure::Trouble(trouble) | Failure::Pinned(trouble) => trouble.what.clone(),
            Failure::Ranges | Failure::Dictionaries(_) | Failure::Texts(_) if run.results.has_left() => {
                "values left the ranges that statistics gave".to_string()
            }
            _ => return Err(failure),
        };
        if !run.streams_out() || run.options.fallback == Fallback::Error {
            return Err(failure);
        }
        run.notes.note_once(format!("{what} – ran those rows on the CPU"), run.options.fallback);
        for batch in batches {
            let mut batch = batch.clone();
            for stage in &run.prepared.program.segments[0].stages {
                batch = stage.on_cpu(&batch).map_err(Failure::Input)?;
            }
            let columns = batch.columns().to_vec();
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            let batch = RecordBatch::try_new_with_options(Arc::clone(&run.prepared.program.schema), columns, &options)?;
            run.results.send(batch).await?;
        }
        Ok(())
    }
}

/// The first `rows` rows, and the others.
fn halves(batches: &[RecordBatch], rows: usize) -> (Vec<RecordBatch>, Vec<RecordBatch>) {
    let (mut first, mut second, mut left) = (Vec::new(), Vec::new(), rows);
    for batch in batches {
        let taken = batch.num_rows().min(left);
        left -= taken;
        if taken > 0 {
            first.push(batch.slice(0, taken));
        }
        if taken < batch.num_rows() {
            second.push(batch.slice(taken, batch.num_rows() - taken));
        }
    }
    (first, second)
}

impl Feeder {
    /// Rows that the options allow in an extent, and the limits of device and pinned memory: every feeder has one under way,
    /// the next one begun, and room for an output.
    fn rows_of_an_extent(&self) -> usize {
        let run = self.run();
        let (columns, used) = (&run.prepared.sources[self.upload].columns, &run.prepared.used[self.upload]);
        let columns = columns.iter().zip(used).filter(|(_, used)| **used);
        let widths = columns.filter_map(|(column, _)| {
            let bytes = if column.is_text() { texts::TYPICAL_BYTES } else { 0 };
            Some(storage(column.ty().ok()?).0.width().max(1) as usize + bytes)
        });
        let row_bytes = widths.sum::<usize>().max(1);
        let limit = run.engine.pool.limit().as_u64().min(run.engine.pinned.limit().as_u64());
        let share = usize::try_from(limit).unwrap_or(usize::MAX) / (run.options.partitions * 4);
        (run.options.batch_bytes.min(share) / row_bytes).clamp(1, run.options.max_batch_rows())
    }

    /// One extent: up it goes, and the pipeline runs over it. When there is no memory for it, nothing has happened.
    async fn extent(&self, batches: &[RecordBatch], stream: &Stream, in_turn: bool) -> Result<(), Failure> {
        let run = self.run();
        let (columns, used) = (&run.prepared.sources[self.upload].columns, &run.prepared.used[self.upload]);
        // Strings first: the pipeline's shape may depend on how many values a dictionary has.
        let mut codes = profile::timed(step::INTERN, || run.interned(self.upload, batches))?;
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let prepared = self.segment.prepared(rows as u64)?;
        self.segment.check_bounds(&prepared)?;
        let specs = &prepared.lowered.first().spec.columns;
        let layout = ExtentLayout::new(batches, specs, used);
        let rows = layout.rows as u64;

        // What waits for pinned memory holds no device memory.
        let mut pinned_held = run.host_memory("staging");
        match (pinned_held.try_grow(layout.bytes), in_turn) {
            (true, _) => {}
            // The smallest of extents goes on, whatever others hold.
            (false, true) => pinned_held.grow(layout.bytes),
            (false, false) => return Err(Failure::from(pinned_held.refused())),
        }
        let mut staging = run.engine.pinned.take(HostKind::Upload, layout.bytes).await?;
        let mut bases = vec![0_i64; specs.len()];
        {
            let _step = recorder::step(step::NARROW);
            let mut bytes = staging.write()?;
            for (index, spec) in specs.iter().enumerate() {
                if spec.has_base {
                    bases[index] = spec.ty.range.and_then(|range| i64::try_from(range.low).ok()).unwrap_or(0);
                }
                let mut coded = std::mem::take(&mut codes[index]).into_iter();
                let next = |_: &ArrayRef| {
                    coded.next().ok_or_else(|| EngineError::internal("every batch's strings were interned").into())
                };
                let written = layout.write(&mut bytes, index, spec, bases[index], batches, next)?;
                written.map_err(|_| Failure::Ranges)?;
            }
        }
        let (memory, tag) = (&run.memory, &run.tags.extents);
        let (buffer, promise) = match in_turn {
            true => memory.take_in_turn(layout.bytes, tag, stream).await?,
            false => profile::timed(step::COPY, || memory.take(layout.bytes, tag, stream))?,
        };
        let copying = recorder::step(step::COPY);
        if layout.bytes > 0 {
            staging.enqueue_to_device(0..layout.bytes, buffer.as_view(), stream)?;
        }
        drop((staging, copying));
        let inputs = layout.columns.iter().zip(&bases).map(|(region, base)| {
            let Some(region) = region else { return Ok(None) };
            let validity = region.validity.clone().map(|range| buffer.view(range)).transpose()?;
            Ok(Some(ColumnInput { values: buffer.view(region.values.clone())?, validity, base: *base }))
        });
        let inputs = inputs.collect::<Result<Vec<_>, MemoryError>>()?;
        let extent = ExtentInput { rows: ExtentRows::Known(rows), columns: inputs };
        // Views may lead to the texts of this extent while it is processed, and as long as the segment's rows are kept.
        let texts = columns.iter().zip(used).any(|(column, used)| *used && column.is_text());
        if texts {
            let (bytes, mut promise) = (buffer.as_view().clone(), Some(promise));
            run.reached.keep(&bytes, promise.take());
            drop(buffer);
            let processed = self.segment.process(extent, stream, true).await;
            if processed.is_err() || !self.segment.keeps_texts() {
                run.reached.forget(&bytes);
            }
            processed?;
        } else {
            drop(buffer);
            self.segment.process(extent, stream, true).await?;
            drop(promise);
        }
        drop(pinned_held);
        MetricBuilder::new(&self.metrics).global_counter(metric::EXTENTS).add(1);
        Ok(())
    }
}
