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
//! Memory   of a feeder is counted in the session's pool; if that is exhausted, a feeder decodes fewer rows at once.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use millpond_memory::recorder;
use millpond_parquet::PageError;
use tokio::task::JoinSet;

use crate::column::{ColumnInfo, Form, storage};
use crate::device::host_memory::HostHold;
use crate::device::workers::off_workers;
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::error::panics;
use crate::options::Fallback;
use crate::parquet::{
    Chunks, Columns, Decoded, Decoding, DeviceColumn, Interning, ParquetScan, Refused, Room, Target, Together,
    Undecoded, Unit, Units, Worth,
};
use crate::profile::metric;
use crate::profile::{self, step};
use crate::program::segment_run::SegmentRun;
use crate::source::codes::Codes;
use crate::source::extent::Sending;
use crate::source::parquet::device::Sent;
use crate::source::parquet::rows::{DecodedRows, Of};
use crate::source::upload;

/// Minimum number of rows decoded at once, regardless of the session's pool.
const LEAST_ROWS: usize = 1 << 13;

/// Maximum rows of row groups that are decoded together, on the device and on the host.
const MOST_TOGETHER: u64 = 1 << 22;
const MOST_ON_HOST: u64 = 1 << 20;

/// Feeds all rows of the scan `input`, source `source` of a segment.
pub(super) async fn feed(
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
        is_told_more: scan.is_told_more(),
        on_device,
        on_host: used.iter().map(|_| AtomicBool::new(false)).collect(),
        scan,
        units: Mutex::new(units.into()),
        room: Room::of(&run.context.engine),
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
        upload::feed::feed(segment, source, &feeding.scan.of_files(files), metrics).await?;
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
    scan: ParquetScan,
    units: Mutex<VecDeque<Units>>,
    /// Operators above may exclude row groups during the read.
    is_told_more: bool,
    /// Pages are uploaded as stored in the file, if the device has kernels for them.
    on_device: bool,
    /// By the scan's columns: set once the kernels have refused a page.
    on_host: Vec<AtomicBool>,
    room: Arc<Room>,
    worth: Worth,
}

/// Why a row group was not decoded completely.
enum Stopped {
    Failed(Failure),
    Page(PageError),
}

impl<F: Into<Failure>> From<F> for Stopped {
    fn from(failure: F) -> Self {
        Self::Failed(failure.into())
    }
}

impl From<Undecoded> for Stopped {
    fn from(undecoded: Undecoded) -> Self {
        match undecoded {
            Undecoded::Page(error) => Self::Page(error),
            Undecoded::Range => Self::Failed(Failure::Ranges),
            Undecoded::Codes(failure) => Self::Failed(failure),
        }
    }
}

impl Feeding {
    fn next(&self) -> Option<Units> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Feeds row groups until none are left.
    async fn feed(&self) -> Result<(), Failure> {
        let run = self.sending.run();
        let mut codes = Codes::of(run, self.sending.source);
        let mut held = run.context.host_memory("scan");
        while let Some(mut units) = self.next() {
            if self.sending.segment.has_enough() {
                return Ok(());
            }
            if self.is_told_more {
                units.retain(|unit| self.scan.may_have_rows(&unit.file, unit.row_group));
            }
            let count = |name| MetricBuilder::new(&self.sending.metrics).global_counter(name);
            let left_out = units.ask_dictionaries(&self.scan, &self.worth, &self.room).await;
            if left_out > 0 {
                count(metric::ROWS_BY_DICTIONARY).add(left_out as usize);
            }
            if units.is_empty() {
                continue;
            }
            let mut sent = 0;
            match self.units(&units, &mut codes, &mut held, &mut sent).await {
                Ok(()) => count(metric::ROW_GROUPS).add(units.iter().count()),
                Err(Stopped::Failed(failure)) => return Err(failure),
                Err(Stopped::Page(error)) => {
                    let location = &units.file().file.object_meta.location;
                    run.context
                        .notes
                        .note_once(format!("file {location}: {error} – DataFusion read it"), Fallback::Allow);
                    for rest in units.rest(&self.scan, sent, units.rows() - sent) {
                        count(metric::FOREIGN_ROW_GROUPS).add(1);
                        let (segment, source) = (&self.sending.segment, self.sending.source);
                        upload::feed::feed(segment, source, &rest, &self.sending.metrics).await?;
                    }
                }
            }
            held.free();
        }
        Ok(())
    }

    /// Feeds the rows of row groups; `sent` counts the uploaded rows.
    async fn units(
        &self,
        units: &Units,
        codes: &mut Codes,
        held: &mut HostHold,
        sent: &mut u64,
    ) -> Result<(), Stopped> {
        let run = self.sending.run();
        let (columns, used) = (self.columns(), &run.prepared.used[self.sending.source]);
        units.iter().try_for_each(|unit| self.check_unused(unit, columns, used))?;
        // A feeder that holds pinned memory must not wait for a feeder that waits for pinned memory, so it acquires its
        // turn first. Nor may it wait for the consumer of the result, whose downloads need pinned memory: in streaming
        // runs, rows are read into ordinary memory.
        let is_pinned = self.on_device && !run.streams_out() && units.has_device_form();
        let mut turn = if is_pinned { Some(self.sending.turn().await?) } else { None };
        let read =
            units.read(&self.room, is_pinned.then_some(&run.context.engine.pinned)).await.map_err(Failure::Input)?;
        let mut chunks = read.map_err(Stopped::Page)?;
        let bytes = chunks.iter().map(Chunks::bytes).sum();
        held.grow(bytes);
        let row_bytes = self.row_bytes(units, columns, used);
        while *sent < units.rows() {
            let left = (units.rows() - *sent) as usize;
            let rows = self.rows_now((left, is_pinned), row_bytes, held)?;
            if self.sending.segment.has_enough() {
                return Ok(());
            }
            let parts = units.parts(*sent, rows as u64);
            let decoding = Decoding { units, chunks: &chunks, parts: &parts, rows, room: &self.room };
            let columns = off_workers(|| self.decode(&decoding, codes))?;
            let sent_up = match columns.device.is_empty() {
                true => Sent::No(Refused::default()),
                false => {
                    let turn = match &turn {
                        Some(turn) => turn,
                        None => turn.insert(self.sending.turn().await?),
                    };
                    self.sending.decode_up(&decoding, &columns, turn).await?
                }
            };
            if let Sent::Unpin = sent_up {
                chunks.iter_mut().for_each(|chunks| chunks.unpin(&self.room));
                held.free();
                held.grow(bytes);
                continue;
            }
            MetricBuilder::new(&self.sending.metrics).global_counter("output_rows").add(rows);
            if let Sent::No(refused) = sent_up {
                refused.columns.iter().for_each(|column| self.on_host[*column].store(true, Ordering::Relaxed));
                let decoded = off_workers(|| self.decode_rest(&decoding, columns, codes))?;
                let of = Of { units: units.clone(), scan: self.scan.clone(), task: Arc::clone(&run.context.task) };
                chunks.iter_mut().for_each(|chunks| chunks.unpin(&self.room));
                drop(turn.take());
                self.sending.extents(DecodedRows::new(decoded, (*sent, rows), of)).await?;
            }
            *sent += rows as u64;
            held.free();
            held.grow(bytes);
        }
        Ok(())
    }

    fn columns(&self) -> &[ColumnInfo] {
        &self.sending.run().prepared.sources[self.sending.source].columns
    }

    /// The plan may count the values of an unused column by counting rows: the column must not contain unexpected
    /// NULLs.
    fn check_unused(&self, unit: &Unit, columns: &[ColumnInfo], used: &[bool]) -> Result<(), Failure> {
        let schema = self.scan.table().table_schema();
        for ((at, column), used) in self.scan.columns.iter().zip(columns).zip(used) {
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

    /// Number of rows to decode next, of `left`: as many as an extent and the session's pool can hold.
    fn rows_now(
        &self,
        (left, is_pinned): (usize, bool),
        row_bytes: usize,
        held: &mut HostHold,
    ) -> Result<usize, Failure> {
        let bytes = |rows: usize| rows.saturating_mul(row_bytes);
        let most = if is_pinned { self.sending.most_rows_on_device() } else { self.sending.most_rows() };
        let mut rows = left.min(most).min((self.sending.most_bytes / row_bytes).max(1));
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
        Ok(rows)
    }

    /// Decodes all columns except those left to the device; coded columns first, because they may turn out to be better
    /// without codes.
    fn decode(&self, decoding: &Decoding<'_>, codes: &mut Codes) -> Result<Columns, Stopped> {
        let (run, columns) = (self.sending.run(), self.columns());
        let used = &run.prepared.used[self.sending.source];
        let _step = recorder::step(step::DECODE);
        let on_device = |index: usize, target: Target, codes: Option<&mut Interning<'_>>| match self.on_device
            && !self.on_host[index].load(Ordering::Relaxed)
        {
            true => decoding.on_device(index, target, codes),
            false => Ok(None),
        };
        let mut wrong = None;
        let coded = codes.intern(run, |index, codes, (most, needed)| {
            let mut interning = Interning::new(codes, most, needed);
            let decoded = match on_device(index, Target::Codes, Some(&mut interning)) {
                Ok(Some(column)) => Ok(Either::Device(column)),
                Ok(None) => self.column(decoding, index, Target::Codes, Some(&mut interning)).map(Either::Host),
                Err(undecoded) => Err(undecoded),
            };
            decoded.map_err(|undecoded| undecoded.into_failure(&mut wrong))
        });
        if let Some(error) = wrong {
            return Err(Stopped::Page(error));
        }
        let mut all = Columns { host: Vec::with_capacity(columns.len()), device: vec![] };
        for (index, (info, coded)) in columns.iter().zip(coded?).enumerate() {
            let either = match (coded, target(info)) {
                (Some(coded), _) => Some(coded),
                (None, Some(target)) if used[index] => match on_device(index, target, None)? {
                    Some(column) => Some(Either::Device(column)),
                    None => Some(Either::Host(self.column(decoding, index, target, None)?)),
                },
                _ => None,
            };
            all.host.push(match either {
                Some(Either::Host(decoded)) => Some(decoded),
                Some(Either::Device(column)) => {
                    all.device.push((index, column));
                    None
                }
                None => None,
            });
        }
        Ok(all)
    }

    /// Decodes the columns that were left to the device.
    fn decode_rest(
        &self,
        decoding: &Decoding<'_>,
        columns: Columns,
        codes: &mut Codes,
    ) -> Result<Vec<Option<Decoded>>, Stopped> {
        let left: HashSet<usize> = columns.device.iter().map(|(index, _)| *index).collect();
        let mut decoded = columns.host;
        let mut wrong = None;
        let coded = codes.intern(self.sending.run(), |index, codes, (most, needed)| {
            if !left.contains(&index) {
                return Ok(None);
            }
            let decoded = self.column(decoding, index, Target::Codes, Some(&mut Interning::new(codes, most, needed)));
            decoded.map(Some).map_err(|undecoded| undecoded.into_failure(&mut wrong))
        });
        if let Some(error) = wrong {
            return Err(Stopped::Page(error));
        }
        for ((index, coded), info) in coded?.into_iter().enumerate().zip(self.columns()) {
            match (coded.flatten(), target(info)) {
                (Some(coded), _) => decoded[index] = Some(coded),
                (None, Some(target)) if left.contains(&index) => {
                    decoded[index] = Some(self.column(decoding, index, target, None)?);
                }
                _ => {}
            }
        }
        Ok(decoded)
    }

    fn column(
        &self,
        decoding: &Decoding<'_>,
        index: usize,
        target: Target,
        codes: Option<&mut Interning<'_>>,
    ) -> Result<Decoded, Undecoded> {
        let may_be_null = self.columns()[index].ty().is_ok_and(|ty| ty.nullable);
        decoding.column(index, (target, may_be_null), codes)
    }
}

/// A column that the host has decoded, or that the device will decode.
enum Either {
    Host(Decoded),
    Device(DeviceColumn),
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
