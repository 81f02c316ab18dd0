//! Feeder tasks: DataFusion's partitions become extents.
//!
//!   partitions 0, 4, 8 ──► feeder 0 ─ collect ─ intern ─ narrow into pinned memory ─ copy ─ launch      own stream
//!   partitions 1, 5, 9 ──► feeder 1 ─ …
//!
//! Order    none between feeders. All partitions are polled, whatever happens to the others: a partitioned join below may
//!          wait for all of them.
//! Memory   an extent per feeder in pinned memory; device memory is freed in stream order behind its launch.
//! Waits    for pinned memory, and in a program without a sink of its own for each extent's result.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::arrow::array::{ArrayRef, UInt32Array};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::metrics::MetricBuilder;
use futures::StreamExt;
use futures::stream::select_all;
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows};
use millpond_memory::{DeviceBuffer, HostKind, MemoryError, Stream};
use tokio::task::JoinSet;

use super::run::{Failure, Part, Run};
use super::sort;
use crate::column::{Form, storage};
use crate::error::EngineError;
use crate::extent::ExtentLayout;
use crate::options::MAX_BATCH_ROWS;
use crate::report::metric;

/// Feeds all rows; gives the one part of a run that needs its rows in one extent.
pub(super) async fn feed(run: &Arc<Run>) -> Result<Option<Part>, Failure> {
    let partitions = run.input.output_partitioning().partition_count();
    let feeders = if run.one_extent() { 1 } else { run.options.partitions.min(partitions).max(1) };
    let mut tasks = JoinSet::new();
    for feeder in 0..feeders {
        let mine: Vec<usize> = (feeder..partitions).step_by(feeders).collect();
        let run = Arc::clone(run);
        tasks.spawn(async move { feeder_task(&run, mine).await });
    }
    // Dropping the set, when a feeder fails or the run is dropped, ends the others.
    let mut part = None;
    while let Some(joined) = tasks.join_next().await {
        let fed = joined.map_err(|e| Failure::trouble(format!("a feeder task ended early: {e}")))??;
        part = part.or(fed);
    }
    Ok(part)
}

async fn feeder_task(run: &Run, partitions: Vec<usize>) -> Result<Option<Part>, Failure> {
    let upload = run.program.upload();
    let mut streams = Vec::with_capacity(partitions.len());
    for partition in partitions {
        let stream = run.input.execute(partition, Arc::clone(&run.context)).map_err(Failure::Input)?;
        streams.push(stream);
    }
    let mut batches = select_all(streams);
    let rows_metric = MetricBuilder::new(upload.metrics_set()).global_counter("output_rows");
    let stream = run.engine.streams.take(&run.scope)?;
    let most = if run.one_extent() { MAX_BATCH_ROWS } else { rows_of_an_extent(run) };
    let mut collected: Vec<RecordBatch> = Vec::new();
    let mut rows = 0;
    let mut part = None;
    while let Some(batch) = batches.next().await {
        let mut batch = batch.map_err(Failure::Input)?;
        rows_metric.add(batch.num_rows());
        while batch.num_rows() > 0 {
            let taken = batch.num_rows().min(most - rows);
            collected.push(batch.slice(0, taken));
            batch = batch.slice(taken, batch.num_rows() - taken);
            rows += taken;
            if rows == most {
                if run.one_extent() {
                    return Err(Failure::trouble(format!("more than {most} rows to sort at once")));
                }
                extent(run, &std::mem::take(&mut collected), &stream).await?;
                rows = 0;
            }
        }
        if run.streams_out() && run.wanted() == 0 {
            return Ok(None);
        }
    }
    if rows > 0 {
        part = extent(run, &collected, &stream).await?;
    }
    Ok(part)
}

/// Rows that the options allow in an extent, and the limits of device and pinned memory: every feeder has one under way,
/// the next one begun, and room for an output.
fn rows_of_an_extent(run: &Run) -> usize {
    let columns = run.columns.iter().zip(&run.used).filter(|(_, used)| **used);
    let widths = columns.filter_map(|(column, _)| Some(storage(column.ty().ok()?).0.width().max(1) as usize));
    let row_bytes = widths.sum::<usize>().max(1);
    let limit = run.engine.pool.limit().as_u64().min(run.engine.pinned.limit().as_u64());
    let share = usize::try_from(limit).unwrap_or(usize::MAX) / (run.options.partitions * 4);
    (run.options.batch_bytes.min(share) / row_bytes).clamp(1, run.options.max_batch_rows())
}

/// One extent: up it goes, and the pipeline runs over it.
async fn extent(run: &Run, batches: &[RecordBatch], stream: &Stream) -> Result<Option<Part>, Failure> {
    // Strings first: the pipeline's shape may depend on how many values a dictionary has.
    let mut codes: Vec<Vec<UInt32Array>> = Vec::with_capacity(run.columns.len());
    {
        let mut tables = run.tables();
        for (index, column) in run.columns.iter().enumerate() {
            let mut arrays = Vec::new();
            if let (Form::Codes(_, id), true) = (&column.form, run.used[index]) {
                for batch in batches {
                    arrays.push(tables.intern(*id, batch.column(index))?);
                }
            }
            codes.push(arrays);
        }
    }
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let prepared = run.prepared(rows as u64)?;
    run.check_bounds(&prepared)?;
    let specs = &prepared.lowered.spec.columns;
    let layout = ExtentLayout::new(batches, specs, &run.used);
    let rows = layout.rows as u64;
    run.rows_fed.fetch_add(rows, Ordering::Relaxed);
    MetricBuilder::new(run.program.upload().metrics_set()).global_counter(metric::EXTENTS).add(1);

    let mut staging = run.engine.pinned.take(HostKind::Upload, layout.bytes).await?;
    let mut bases = vec![0_i64; specs.len()];
    {
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
    let buffer = DeviceBuffer::new(layout.bytes, stream, &run.engine.pool)?;
    if layout.bytes > 0 {
        staging.enqueue_to_device(0..layout.bytes, buffer.as_view(), stream)?;
    }
    drop(staging);
    let columns = layout.columns.iter().zip(&bases).map(|(region, base)| {
        let Some(region) = region else { return Ok(None) };
        let validity = region.validity.clone().map(|range| buffer.view(range)).transpose()?;
        Ok(Some(ColumnInput { values: buffer.view(region.values.clone())?, validity, base: *base }))
    });
    let columns = columns.collect::<Result<Vec<_>, MemoryError>>()?;
    let extent = ExtentInput { rows: ExtentRows::Known(rows), columns };
    drop(buffer);

    if prepared.lowered.aggregate.is_some() {
        run.accumulate(&prepared, extent, stream).await?;
        return Ok(None);
    }
    let part = run.materialised(&prepared.pipeline, &prepared.lowered, &extent, stream).await?;
    drop(extent);
    if run.one_extent() {
        return Ok(Some(sort::sorted(part, &prepared.lowered.sort_keys, &run.engine, stream)?));
    }
    let batch = run.downloaded(&part, stream, true).await?;
    drop(part);
    run.out.send(batch).await?;
    Ok(None)
}
