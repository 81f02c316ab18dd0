//! Feeders: each takes the next row group, decodes it, and uploads the rows.
//!
//!   row groups that may match ─┬─► feeder: read ─ codes ─ numbers ──► extents          small ones are combined
//!                              ├─► feeder: …
//!                              └─► invalid bytes ─┐
//!   files that the decoder does not support ──────┴─► DataFusion ─► upload's feeders
//!
//! Order    none.
//! Threads  one feeder per partition that the session reads concurrently. Row groups that joins have excluded meanwhile
//!          are not read.
//! Few      rows pass the predicate? Rows excluded by its columns' dictionaries are not decoded.
//! Short    of device memory, the host decodes: its extents can be halved.
//! Memory   of a feeder is counted in the session's pool; if that is exhausted, a feeder decodes fewer rows at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use millpond_kernels::pipeline::{ExtentInput, ExtentRows};
use millpond_memory::Stream;
use tokio::task::JoinSet;

use crate::column::{ColumnInfo, Form, storage};
use crate::device::host_memory::HostHold;
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::error::panics;
use crate::options::Fallback;
use crate::parquet::{
    ColumnLayout, Columns, Decoding, Destination, Outcome, ParquetScan, Reader, Reading, Refused, Rest, Spec, Target,
    Together, Unit, Units, Worth,
};
use crate::profile::metric;
use crate::profile::{self, step};
use crate::program::segment_run::SegmentRun;
use crate::source::codes;
use crate::source::extent::{Sending, Turn};
use crate::source::parquet::rows::{DecodedRows, Of};
use crate::source::upload;

/// Minimum number of rows decoded at once, regardless of the session's pool.
const LEAST_ROWS: usize = 1 << 13;

/// Maximum rows of row groups that are decoded together, on the device and on the host.
const MOST_TOGETHER: u64 = 1 << 22;
const MOST_ON_HOST: u64 = 1 << 20;

/// Feeds all rows of the scan `input`, source `source` of a segment.
pub(in crate::source) async fn feed(
    segment: &Arc<SegmentRun>,
    source: usize,
    input: &Arc<dyn ExecutionPlan>,
    metrics: &ExecutionPlanMetricsSet,
) -> Result<(), Failure> {
    let run = &segment.run;
    let scan =
        ParquetScan::of(input).map_err(|_| EngineError::internal("the scan was looked at when it was placed"))?;
    let used = &run.prepared.used[source];
    let opening = {
        let (scan, used, task, metrics) = (scan.clone(), used.clone(), Arc::clone(&run.context.task), metrics.clone());
        async move { scan.open((None, &used), &task, &metrics).await }
    };
    let opened = profile::beside("reader", step::OPEN, opening).await.map_err(Failure::Input)?;
    let readers = run.context.task.session_config().target_partitions().max(1);
    let on_device = run.context.decodes_on_device();
    let most = if on_device { MOST_TOGETHER } else { MOST_ON_HOST };
    let limits = Together { readers, most_rows: most.min(run.context.options.max_batch_rows() as u64) };
    let units = Units::together(opened.units, limits);
    let feeders = readers.min(units.len().max(1));
    let feeding = Arc::new(Feeding {
        sending: Sending::new(segment, source, feeders, metrics),
        may_be_narrowed: scan.may_be_narrowed(),
        reading: Reading::new(scan, &run.context.engine, used.len(), on_device),
        units: Mutex::new(units.into()),
        worth: Worth::default(),
    });
    for (file, why) in &opened.foreign {
        let note = format!("file {}: {why} – DataFusion read it", file.object_meta.location);
        run.context.notes.note_once(note, Fallback::Allow);
    }
    let files: Vec<_> = opened.foreign.into_iter().map(|(file, _)| file).collect();
    let mut tasks = JoinSet::new();
    for _ in 0..feeders {
        let feeding = Arc::clone(&feeding);
        tasks.spawn(profile::beside("feeder", step::LAUNCH, async move { feeding.feed().await }));
    }
    if !files.is_empty() {
        let foreign = MetricBuilder::new(metrics).global_counter(metric::FOREIGN_FILES);
        foreign.add(files.len());
        upload::feed::feed(segment, source, &feeding.reading.scan.of_files(files), metrics).await?;
    }
    // If a feeder fails or the run is dropped, dropping the set ends the others.
    while let Some(joined) = tasks.join_next().await {
        joined.map_err(|error| Failure::from(panics::task_ended(error)))??;
    }
    Ok(())
}

/// State shared by the feeders of one scan.
struct Feeding {
    sending: Sending,
    reading: Reading,
    units: Mutex<VecDeque<Units>>,
    /// Operators above may exclude row groups during the read.
    may_be_narrowed: bool,
    worth: Worth,
}

impl Feeding {
    fn next(&self) -> Option<Units> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Feeds row groups until none are left.
    async fn feed(&self) -> Result<(), Failure> {
        let (run, scan) = (self.sending.run(), &self.reading.scan);
        let codes = codes::codes(run, self.sending.source);
        let mut reader = Reader { codes, held: run.context.host_memory("scan") };
        while let Some(mut units) = self.next() {
            if self.sending.segment.has_enough() {
                return Ok(());
            }
            if self.may_be_narrowed {
                units.retain(|unit| scan.may_have_rows(&unit.file, unit.row_group));
            }
            let count = |name| MetricBuilder::new(&self.sending.metrics).global_counter(name);
            let left_out = units.prune_by_dictionaries(scan, &self.worth, &self.reading.scratch).await;
            if left_out > 0 {
                count(metric::ROWS_BY_DICTIONARY).add(left_out as usize);
            }
            if units.is_empty() {
                continue;
            }
            let Some(rest) = self.units(&units, &mut reader).await? else {
                count(metric::ROW_GROUPS).add(units.iter().count());
                continue;
            };
            let error = rest.error.ok_or(Failure::Ranges)?;
            let location = &units.file().file.object_meta.location;
            run.context.notes.note_once(format!("file {location}: {error} – DataFusion read it"), Fallback::Allow);
            for plan in rest.plans {
                count(metric::FOREIGN_ROW_GROUPS).add(1);
                let (segment, source) = (&self.sending.segment, self.sending.source);
                upload::feed::feed(segment, source, &plan, &self.sending.metrics).await?;
            }
        }
        Ok(())
    }

    /// Feeds the rows of row groups, except those that cannot be decoded.
    async fn units(&self, units: &Units, reader: &mut Reader) -> Result<Option<Rest>, Failure> {
        let run = self.sending.run();
        let (columns, used) = (self.columns(), &run.prepared.used[self.sending.source]);
        units.iter().try_for_each(|unit| self.check_unused(unit, columns, used))?;
        // A feeder that holds pinned memory must not wait for a feeder that waits for pinned memory, so it acquires its
        // turn first. Nor may it wait for the consumer of the result, whose downloads need pinned memory: in streaming
        // runs, rows are read into ordinary memory.
        let is_pinned = self.reading.may_decode(units) && !run.streams_out();
        let turn = if is_pinned { Some(self.sending.turn().await?) } else { None };
        let row_bytes = self.row_bytes(units, columns, used);
        let mut feeder = Feeder { feeding: self, turn, row_bytes, is_pinned };
        self.reading.read((units, is_pinned.then_some(&run.context.engine.pinned)), reader, &mut feeder).await
    }

    /// Decodes rows on the device into one extent.
    ///
    /// # Errors
    /// [`Failure::Ranges`] if statistics were wrong, the device's if it is lost, the pipeline's.
    async fn decode_up(
        &self,
        decoding: &Decoding<'_>,
        columns: &Columns,
        stream: &Stream,
    ) -> Result<Outcome<()>, Failure> {
        let (sending, rows) = (&self.sending, decoding.rows as u64);
        let prepared = sending.segment.ready(rows).await?;
        sending.segment.check_bounds(prepared)?;
        let specs = prepared.shape.lowered.first().spec.columns.iter().map(|spec| {
            let low = spec.ty.range.filter(|_| spec.has_base).and_then(|range| i64::try_from(range.low).ok());
            (*spec, low.unwrap_or(0))
        });
        let specs: Vec<Spec> = specs.collect();
        let up = match decoding.up(&sending.run().context, columns, &specs, (stream, false)).await {
            Ok(Outcome::Done(up)) => up,
            Ok(Outcome::Refused(refused)) if refused.lied => return Err(Failure::Ranges),
            Ok(Outcome::Refused(refused)) => return Ok(Outcome::Refused(refused)),
            Ok(Outcome::Unpin) => return Ok(Outcome::Unpin),
            // Pages may exceed all of pinned memory: the host decodes them in pieces.
            Err(Failure::Pinned(_)) => return Ok(Outcome::Refused(Refused::default())),
            Err(failure) => return Err(failure),
        };
        let input = ExtentInput { rows: ExtentRows::Known(rows), columns: up.inputs };
        sending.process(input, (up.buffer, up.promise), stream).await?;
        let counter = |name| MetricBuilder::new(&sending.metrics).global_counter(name);
        counter(metric::COLUMNS_ON_DEVICE).add(columns.device.len());
        counter("output_rows").add(decoding.rows);
        Ok(Outcome::Done(()))
    }

    fn columns(&self) -> &[ColumnInfo] {
        &self.sending.run().prepared.sources[self.sending.source].columns
    }

    /// The plan may count the values of an unused column by counting rows: the column must not contain unexpected
    /// NULLs.
    fn check_unused(&self, unit: &Unit, columns: &[ColumnInfo], used: &[bool]) -> Result<(), Failure> {
        let schema = self.reading.scan.table().table_schema();
        for ((at, column), used) in self.reading.scan.columns.iter().zip(columns).zip(used) {
            if *used || column.ty().is_ok_and(|ty| ty.nullable) || !schema.field(*at).is_nullable() {
                continue;
            }
            if unit.file.nulls(unit.row_group, schema.field(*at).name()) != Some(0) {
                return Err(Failure::Ranges);
            }
        }
        Ok(())
    }

    /// Approximate bytes per decoded row.
    fn row_bytes(&self, units: &Units, columns: &[ColumnInfo], used: &[bool]) -> usize {
        let bytes = |(index, column): (usize, &ColumnInfo)| match target(column) {
            Some(Target::Text) => 4 + units.text_bytes(index),
            Some(Target::Codes) => 4,
            Some(Target::Fixed { physical, .. }) => physical.width().max(1) as usize,
            None => 0,
        };
        let used = columns.iter().enumerate().filter(|(index, _)| used[*index]);
        used.map(bytes).sum::<usize>().max(1)
    }
}

/// A feeder's way of some row groups to the segment.
struct Feeder<'a> {
    feeding: &'a Feeding,
    /// Held from before chunks are read into pinned memory until the host has to send rows.
    turn: Option<Turn<'a>>,
    /// Approximate bytes of a decoded row.
    row_bytes: usize,
    is_pinned: bool,
}

impl Destination for Feeder<'_> {
    const DIVIDES: bool = true;

    /// As many rows as an extent and the session's pool can hold.
    fn rows(&mut self, left: usize, held: &mut HostHold) -> Result<Option<usize>, Failure> {
        let sending = &self.feeding.sending;
        let bytes = |rows: usize| rows.saturating_mul(self.row_bytes);
        let most = if self.is_pinned { sending.most_rows_on_device() } else { sending.most_rows() };
        let mut rows = left.min(most).min((sending.most_bytes / self.row_bytes).max(1));
        while !held.try_grow(bytes(rows)) {
            if rows <= LEAST_ROWS {
                if !held.could_hold(bytes(rows)) {
                    return Err(Failure::from(held.refused()));
                }
                held.grow(bytes(rows));
                break;
            }
            rows = (rows / 2).max(LEAST_ROWS);
        }
        Ok((!sending.segment.has_enough()).then_some(rows))
    }

    fn layouts(&self, _units: &Units, column: usize) -> [Option<ColumnLayout>; 2] {
        let (run, column_info) = (self.feeding.sending.run(), &self.feeding.columns()[column]);
        let target = target(column_info).filter(|_| run.prepared.used[self.feeding.sending.source][column]);
        let may_be_null = column_info.ty().is_ok_and(|ty| ty.nullable);
        [target.map(|target| ColumnLayout { target, may_be_null, may_be_on_device: true }), None]
    }

    fn give_up(&self, columns: &[usize]) -> Result<usize, Failure> {
        codes::give_up(self.feeding.sending.run(), self.feeding.sending.source, columns)
    }

    async fn put(&mut self, decoding: &Decoding<'_>, columns: &mut Columns) -> Result<Outcome<()>, Failure> {
        let sending = &self.feeding.sending;
        if !columns.device.is_empty() {
            let turn = match &self.turn {
                Some(turn) => turn,
                None => self.turn.insert(sending.turn().await?),
            };
            return match self.feeding.decode_up(decoding, columns, turn.stream()).await {
                // There are no side effects yet: after them, running out of memory is reported as another failure.
                Err(failure) if failure.is_out_of_memory() => Ok(Outcome::Refused(Refused::default())),
                outcome => outcome,
            };
        }
        // Sending waits for pinned memory.
        if decoding.is_pinned() {
            return Ok(Outcome::Unpin);
        }
        drop(self.turn.take());
        MetricBuilder::new(&sending.metrics).global_counter("output_rows").add(decoding.rows);
        let scan = self.feeding.reading.scan.clone();
        let of = Of { units: decoding.units.clone(), scan, task: Arc::clone(&sending.run().context.task) };
        let decoded = std::mem::take(&mut columns.host);
        sending.extents(DecodedRows::new(decoded, (decoding.first, decoding.rows), of)).await?;
        Ok(Outcome::Done(()))
    }
}

/// Target layout of a column; `None` without a device form.
fn target(column: &ColumnInfo) -> Option<Target> {
    match &column.form {
        Form::Codes(..) => Some(Target::Codes),
        Form::Plain(_) if column.is_text() => Some(Target::Text),
        Form::Plain(ty) => {
            let (physical, base) = storage(*ty);
            Some(Target::Fixed { physical, base, range: ty.range })
        }
        Form::Lists(..) | Form::Unsupported(_) => None,
    }
}
