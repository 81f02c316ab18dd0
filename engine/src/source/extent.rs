//! Uploads rows to the device, extent by extent.
//!
//!   rows ─► turn ─► staging: pinned, narrowed values ─► device memory ─► pipeline
//!
//! Memory   one extent in pinned memory per turn; device memory is freed in stream order after its launch.
//! Short    of device memory, a feeder waits until no other extent is in flight; then it halves the rows repeatedly,
//!          and finally waits for other queries. Later extents stay small.
//! Trouble  in a streaming program costs one extent instead of the run: the CPU processes its rows.
//! Waits    for a turn, for pinned memory, and in a streaming program for each extent's result. While waiting for
//!          pinned memory, no pinned memory and no device memory is held.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use futures::future::BoxFuture;
use millpond_kernels::codegen::ir::ColumnSpec;
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows};
use millpond_memory::{DeviceBuffer, HostKind, MemoryError, Reservation, Stream, recorder};
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphorePermit};

use crate::column::layout::ExtentLayout;
use crate::column::{ColumnInfo, storage};
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::options::Fallback;
use crate::profile::metric;
use crate::profile::{self, step};
use crate::program::run::Run;
use crate::program::segment_run::SegmentRun;
use crate::program::texts;

/// Minimum rows of an extent.
const LEAST_ROWS: usize = 64;

/// Minimum and maximum number of feeders assumed when memory is divided among them.
const FEEDERS: std::ops::RangeInclusive<usize> = 4..=64;

/// Rows on the host that will form an extent.
pub(super) trait HostRows: Sized + Send + Sync {
    fn len(&self) -> usize;

    /// Splits the rows after the first `first`.
    fn halves(&self, first: usize) -> (Self, Self);

    /// Layout of the used columns in an extent, stored as `specs` says.
    fn layout(&self, specs: &[ColumnSpec], used: &[bool]) -> ExtentLayout;

    /// Writes column `index` into `out`, the buffer of the whole extent.
    ///
    /// # Errors
    /// [`Failure::Ranges`] for a value outside the column's spec.
    fn write(
        &self,
        layout: &ExtentLayout,
        out: &mut [u8],
        index: usize,
        spec: &ColumnSpec,
        base: i64,
    ) -> Result<(), Failure>;

    /// The rows as batches.
    ///
    /// # Errors
    /// DataFusion's, if they are read again.
    fn batches(&self) -> BoxFuture<'_, Result<Vec<RecordBatch>, Failure>>;
}

/// Path of a source's rows to a segment, shared by its feeders.
pub(super) struct Sending {
    pub segment: Arc<SegmentRun>,
    /// Index of the source in the segment's program.
    pub source: usize,
    pub metrics: ExecutionPlanMetricsSet,
    /// Maximum rows and decoded bytes of an extent; and maximum rows if the device decodes them, which needs no pinned
    /// memory for the values.
    most_rows: usize,
    most_rows_on_device: usize,
    pub most_bytes: usize,
    /// A feeder holds a permit while it sends an extent.
    turns: Semaphore,
    /// Idle streams.
    streams: Mutex<Vec<Stream>>,
}

/// Held while an extent is sent.
pub(super) struct Turn<'a> {
    sending: &'a Sending,
    stream: Option<Stream>,
    _permit: SemaphorePermit<'a>,
    /// Excludes feeders that require exclusive use of the memory.
    _gate: RwLockReadGuard<'a, ()>,
}

impl Turn<'_> {
    pub fn stream(&self) -> &Stream {
        self.stream.as_ref().expect("a turn has its stream until it ends")
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.sending.streams.lock().unwrap_or_else(PoisonError::into_inner).extend(self.stream.take());
    }
}

impl Sending {
    pub fn new(segment: &Arc<SegmentRun>, source: usize, feeders: usize, metrics: &ExecutionPlanMetricsSet) -> Self {
        let run = &segment.run;
        let share = feeders.clamp(*FEEDERS.start(), *FEEDERS.end());
        let batch_bytes = run.context.options.batch_bytes / (share / FEEDERS.start());
        let texts = run.prepared.sources[source].columns.iter().any(ColumnInfo::is_text);
        let device = run.context.engine.pool.limit().as_u64();
        let limit = device.min(run.context.engine.pinned.limit().as_u64());
        let rows = |limit| rows_of_an_extent(run, source, (batch_bytes, limit), share);
        Self {
            segment: Arc::clone(segment),
            source,
            metrics: metrics.clone(),
            most_rows: rows(limit),
            most_rows_on_device: rows(device),
            most_bytes: if texts { batch_bytes } else { usize::MAX },
            turns: Semaphore::new(run.context.options.partitions.min(feeders).max(1)),
            streams: Mutex::default(),
        }
    }

    pub fn run(&self) -> &Run {
        &self.segment.run
    }

    /// Current maximum rows of an extent.
    pub fn most_rows(&self) -> usize {
        self.most_rows.min(self.run().extent_rows())
    }

    /// Uploads rows as one extent, or as several if memory is short.
    pub async fn extents(&self, rows: impl HostRows) -> Result<(), Failure> {
        if rows.len() == 0 {
            return Ok(());
        }
        let ended = |_| EngineError::internal("turns end with their feeders");
        let _turn = recorder::during(step::WAIT, self.turns.acquire()).await.map_err(ended)?;
        let free = || self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stream = free().pop();
        let done = self.extents_on(rows, &mut stream).await;
        free().extend(stream);
        done
    }

    /// Uploads rows while holding a turn. The stream is taken with the first extent, so that a lost device costs only
    /// an extent.
    async fn extents_on(&self, rows: impl HostRows, stream: &mut Option<Stream>) -> Result<(), Failure> {
        let _step = recorder::step(step::LAUNCH);
        let run = self.run();
        let mut waiting = vec![rows];
        let mut alone: Option<RwLockWriteGuard<'_, ()>> = None;
        let mut in_turn = false;
        while let Some(rows) = waiting.pop() {
            let gate = recorder::during(step::WAIT, run.gate.read());
            let beside = if alone.is_none() { Some(gate.await) } else { None };
            let done = match self.stream(stream) {
                Ok(stream) => self.extent(&rows, stream, in_turn).await,
                Err(failure) => Err(failure),
            };
            let Err(failure) = done else { continue };
            drop(beside);
            if !failure.is_out_of_memory() {
                self.instead(failure, &rows.batches().await?).await?;
                continue;
            }
            if alone.is_none() {
                alone = Some(recorder::during(step::WAIT, run.gate.write()).await);
                waiting.push(rows);
            } else if rows.len() > LEAST_ROWS {
                let half = rows.len().div_ceil(2);
                run.smaller_extents(half.max(LEAST_ROWS));
                let (first, second) = rows.halves(half);
                waiting.extend([second, first]);
            } else if !in_turn {
                in_turn = true;
                waiting.push(rows);
            } else {
                self.instead(failure, &rows.batches().await?).await?;
            }
        }
        Ok(())
    }

    fn stream<'s>(&self, slot: &'s mut Option<Stream>) -> Result<&'s Stream, Failure> {
        let stream = match slot.take() {
            Some(stream) => stream,
            None => self.run().context.engine.streams.take(&self.run().context.tags.extents)?,
        };
        Ok(slot.insert(stream))
    }

    /// In a streaming run, an extent that the device cannot finish does not restart the run, which is impossible after
    /// the first rows: the CPU runs its filters and projections over `batches`. Otherwise the failure is that of the
    /// run.
    pub async fn instead(&self, failure: Failure, batches: &[RecordBatch]) -> Result<(), Failure> {
        let run = self.run();
        let what = match &failure {
            Failure::Trouble(trouble) | Failure::Pinned(trouble) => trouble.what.clone(),
            Failure::Ranges | Failure::Dictionaries(_) | Failure::Texts(_) if run.results.has_left() => {
                "values left the ranges that statistics gave".to_string()
            }
            _ => return Err(failure),
        };
        if !run.streams_out() || run.context.options.fallback == Fallback::Error {
            return Err(failure);
        }
        run.context.notes.note_once(format!("{what} – ran those rows on the CPU"), run.context.options.fallback);
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

    /// Uploads one extent and runs the pipeline over it. Running out of memory for it has no side effects.
    async fn extent(&self, rows: &impl HostRows, stream: &Stream, in_turn: bool) -> Result<(), Failure> {
        let run = self.run();
        let used = &run.prepared.used[self.source];
        // Strings are interned at this point: the pipeline may depend on the dictionary's size.
        let prepared = self.segment.ready(rows.len() as u64).await?;
        self.segment.check_bounds(prepared)?;
        let specs = &prepared.shape.lowered.first().spec.columns;
        let layout = rows.layout(specs, used);

        // No device memory is held while waiting for pinned memory.
        let mut pinned_held = run.context.host_memory("staging");
        match (pinned_held.try_grow(layout.bytes), in_turn) {
            (true, _) => {}
            // The smallest extent proceeds regardless of other reservations.
            (false, true) => pinned_held.grow(layout.bytes),
            (false, false) => return Err(Failure::from(pinned_held.refused())),
        }
        let mut staging = run.context.engine.pinned.take(HostKind::Upload, layout.bytes).await?;
        let mut bases = vec![0_i64; specs.len()];
        {
            let _step = recorder::step(step::NARROW);
            let mut bytes = staging.write()?;
            for (index, spec) in specs.iter().enumerate() {
                if spec.has_base {
                    bases[index] = spec.ty.range.and_then(|range| i64::try_from(range.low).ok()).unwrap_or(0);
                }
                rows.write(&layout, &mut bytes, index, spec, bases[index])?;
            }
        }
        let (memory, tag) = (&run.context.memory, &run.context.tags.extents);
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
        let extent = ExtentInput { rows: ExtentRows::Known(layout.rows as u64), columns: inputs };
        self.process(extent, (buffer, promise), stream).await?;
        drop(pinned_held);
        Ok(())
    }

    /// Launches the pipeline over an uploaded extent in `buffer`.
    pub async fn process(
        &self,
        extent: ExtentInput,
        (buffer, promise): (DeviceBuffer, Reservation),
        stream: &Stream,
    ) -> Result<(), Failure> {
        let run = self.run();
        let (columns, used) = (&run.prepared.sources[self.source].columns, &run.prepared.used[self.source]);
        // Views may refer to the texts of this extent while it is processed, and as long as the segment's rows are
        // kept.
        let texts = columns.iter().zip(used).any(|(column, used)| *used && ColumnInfo::is_text(column));
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
        MetricBuilder::new(&self.metrics).global_counter(metric::EXTENTS).add(1);
        Ok(())
    }

    /// Current maximum rows of an extent that the device decodes.
    pub fn most_rows_on_device(&self) -> usize {
        self.most_rows_on_device.min(self.run().extent_rows())
    }

    /// Acquires a turn with a stream.
    pub async fn turn(&self) -> Result<Turn<'_>, Failure> {
        let ended = |_| EngineError::internal("turns end with their feeders");
        let permit = recorder::during(step::WAIT, self.turns.acquire()).await.map_err(ended)?;
        let gate = recorder::during(step::WAIT, self.run().gate.read()).await;
        let free = self.streams.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let stream = match free {
            Some(stream) => stream,
            None => self.run().context.engine.streams.take(&self.run().context.tags.extents)?,
        };
        Ok(Turn { sending: self, stream: Some(stream), _permit: permit, _gate: gate })
    }
}

/// Rows of an extent within the options and the memory limit: every feeder has one extent in flight and the next one
/// started, and there is space for outputs.
fn rows_of_an_extent(run: &Run, source: usize, (batch_bytes, limit): (usize, u64), feeders: usize) -> usize {
    let (columns, used) = (&run.prepared.sources[source].columns, &run.prepared.used[source]);
    let columns = columns.iter().zip(used).filter(|(_, used)| **used);
    let widths = columns.filter_map(|(column, _)| {
        let bytes = if column.is_text() { texts::TYPICAL_BYTES } else { 0 };
        Some(storage(column.ty().ok()?).0.width().max(1) as usize + bytes)
    });
    let row_bytes = widths.sum::<usize>().max(1);
    let share = usize::try_from(limit).unwrap_or(usize::MAX) / (feeders * 4);
    (batch_bytes.min(share) / row_bytes).clamp(1, run.context.options.max_batch_rows())
}
