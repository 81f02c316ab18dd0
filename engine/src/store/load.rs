//! Reads columns of a scan and puts them on the device, to stay.
//!
//!   row groups ─ readers ─ decode ──► chunks: values in the width of their own range, codes, facts ─► pinned memory ─► device ─┐
//!   partitions ─ a reader each ─────► the same of up to 2^17 rows, where DataFusion reads                                      │
//!   strings    reader's own dictionary ── new values only ─────► the column's                                                  ├─► whole columns
//!   order      file by file, chunk by chunk                                                                                   ─┘
//!
//! Strings  a column whose first values are nearly all different is read again without a dictionary, and so are the others that show it.
//! Threads  each reader converts the rows that it decodes. It locks a column's dictionary only for values that are new to the reader.
//! Memory   on the device the chunks, until all columns are made of them; on the host a chunk of rows for each reader.
//! Width    each chunk has that of its own values: nothing is believed, so nothing can be wrong.
//! Ends     with an error of the file or of the device nothing stays; dropped, its readers end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use datafusion::arrow::array::{Array, ArrayRef, UInt32Array};
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::future::{BoxFuture, try_join_all};
use futures::{FutureExt, StreamExt};
use millpond_kernels::codegen::ir::{ColumnSpec, Physical, Range, Ty};
use millpond_kernels::store::Stored;
use millpond_memory::{HostKind, Reservation, Stream, recorder};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::column::dictionary::SharedDictionary;
use crate::column::facts::Facts;
use crate::column::layout::{ExtentLayout, Shape};
use crate::column::storage;
use crate::panics;
use crate::parquet::{Chunks, Decoded, Decoding, Interning, ParquetScan, Room, Target, Undecoded, Units, Values};
use crate::profile::{self, step};
use crate::program::context::RunContext;
use crate::program::failure::Failure;
use crate::program::interning::ReaderCodes;
use crate::store::column::{ColumnForm, Piece, ty_of};
use crate::store::distinct::Seen;
use crate::store::lock;
use crate::workers::off_workers;

/// Rows of a chunk, at most, where DataFusion reads, and where the decoder does.
const CHUNK_ROWS: usize = 1 << 17;
const UNIT_ROWS: usize = 1 << 18;

/// A column to be read.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub name: String,
    pub data_type: DataType,
    pub form: ColumnForm,
    /// The most values of a dictionary.
    pub most: usize,
    /// An expression needs a dictionary, however many values there are.
    pub needed: bool,
}

/// What came of reading.
pub(super) enum Read {
    /// All rows, on the device, with what is promised for them until all columns are made.
    Columns { columns: Vec<ReadColumn>, promises: Vec<Reservation> },
    /// These columns are better off without a dictionary: nothing was kept.
    Texts(Vec<usize>),
}

/// What was read of a column.
#[derive(Debug, Default)]
pub(super) struct ReadColumn {
    /// In the order of the rows.
    pub pieces: Vec<Piece>,
    /// The values behind codes.
    pub values: Option<ArrayRef>,
    /// How many different integers there are, if they were counted.
    pub distinct: Option<u64>,
}

/// A load under way, as its readers know it.
struct Loading {
    context: Arc<RunContext>,
    wanted: Vec<Wanted>,
    /// The dictionaries of columns of codes.
    dictionaries: Vec<Option<SharedDictionary>>,
    /// Columns that turned out to be better off without theirs.
    texts: Vec<AtomicBool>,
    /// The integers that were seen.
    seen: Vec<Seen>,
    /// Rows of a chunk, at most: of batches, and of a row group.
    chunk_rows: usize,
    unit_rows: usize,
    room: Arc<Room>,
}

/// A chunk on the device, by column, with what the governor promised for it.
struct Chunk {
    pieces: Vec<Piece>,
    promise: Reservation,
}

/// Why a reader stops.
enum Stopped {
    Failed(Failure),
    /// A column has turned out to be better off without a dictionary.
    Text,
}

impl<F: Into<Failure>> From<F> for Stopped {
    fn from(failure: F) -> Self {
        Self::Failed(failure.into())
    }
}

/// Reads all rows of `plan`, whose columns are `wanted`, and whose partitions are of these `files`. Each reader has one of `turns`.
pub(super) async fn read(
    context: &Arc<RunContext>,
    (plan, files): (&Arc<dyn ExecutionPlan>, &[usize]),
    wanted: &[Wanted],
    turns: &Arc<Semaphore>,
) -> Result<Read, Failure> {
    let dictionary = |of: &Wanted| (of.form == ColumnForm::Codes).then(|| SharedDictionary::new(of.most));
    let loading = Arc::new(Loading {
        context: Arc::clone(context),
        dictionaries: wanted.iter().map(dictionary).collect(),
        wanted: wanted.to_vec(),
        texts: wanted.iter().map(|_| AtomicBool::new(false)).collect(),
        seen: wanted.iter().map(|_| Seen::default()).collect(),
        chunk_rows: CHUNK_ROWS.min(context.options.max_batch_rows()),
        unit_rows: UNIT_ROWS.min(context.options.max_batch_rows()),
        room: Room::of(&context.engine),
    });
    let mut tasks = JoinSet::new();
    match ParquetScan::of(plan) {
        Ok(scan) => loading.begin_units(scan, turns, &mut tasks).await?,
        Err(_) => loading.begin_partitions(plan, turns, &mut tasks),
    }
    let mut chunks: BTreeMap<Place, Vec<Chunk>> = BTreeMap::new();
    // Dropping the set, when a reader fails or the run is dropped, ends the others.
    while let Some(joined) = tasks.join_next().await {
        match joined.map_err(|error| Failure::from(panics::task_ended(error)))? {
            Ok(of) => chunks.extend(of),
            Err(Stopped::Failed(failure)) => return Err(failure),
            Err(Stopped::Text) => return Ok(Read::Texts(loading.texts())),
        }
    }
    let mut columns: Vec<ReadColumn> = Vec::with_capacity(wanted.len());
    for ((of, dictionary), seen) in wanted.iter().zip(&loading.dictionaries).zip(&loading.seen) {
        let values = match dictionary {
            Some(dictionary) => Some(dictionary.lock().array(0, &DataType::Binary)?),
            None => None,
        };
        let distinct = if of.form == ColumnForm::Plain { seen.count() } else { None };
        columns.push(ReadColumn { pieces: vec![], values, distinct });
    }
    let mut promises = vec![];
    for ((partition, _), chunks) in chunks {
        for chunk in chunks {
            for (column, piece) in columns.iter_mut().zip(chunk.pieces) {
                column.pieces.push(Piece { file: files[partition], ..piece });
            }
            promises.push(chunk.promise);
        }
    }
    Ok(Read::Columns { columns, promises })
}

/// Where chunks belong: their partition, and which of its row groups they are.
type Place = (usize, usize);
/// What a reader has read.
type ReadChunks = Result<Vec<(Place, Vec<Chunk>)>, Stopped>;

impl Loading {
    /// The columns that are better off without a dictionary, as far as is known.
    fn texts(&self) -> Vec<usize> {
        (0..self.texts.len()).filter(|column| self.texts[*column].load(Ordering::Relaxed)).collect()
    }

    /// A reader for each partition, where DataFusion reads.
    fn begin_partitions(
        self: &Arc<Self>,
        plan: &Arc<dyn ExecutionPlan>,
        turns: &Arc<Semaphore>,
        tasks: &mut JoinSet<ReadChunks>,
    ) {
        let plan = profile::timed_reads(plan);
        for partition in 0..plan.output_partitioning().partition_count() {
            let (loading, plan, turns) = (Arc::clone(self), Arc::clone(&plan), Arc::clone(turns));
            let reading = async move {
                let _turn = turns.acquire_owned().await;
                Ok(vec![((partition, 0), loading.read_partition(&plan, partition).await?)])
            };
            tasks.spawn(profile::beside("reader", step::READ, reading));
        }
    }

    /// Readers that take one row group after the other, and one for each file that DataFusion reads.
    async fn begin_units(
        self: &Arc<Self>,
        scan: ParquetScan,
        turns: &Arc<Semaphore>,
        tasks: &mut JoinSet<ReadChunks>,
    ) -> Result<(), Failure> {
        let (unseen, used) = (ExecutionPlanMetricsSet::new(), vec![true; self.wanted.len()]);
        let opening = (0..scan.partitions()).map(|partition| {
            let (scan, used, unseen) = (&scan, &used, &unseen);
            async move { scan.open((Some(partition), used), &self.context.task, unseen).await }.boxed()
        });
        let opening: Vec<BoxFuture<'_, _>> = opening.collect();
        let opened = recorder::during(step::OPEN, try_join_all(opening)).await.map_err(Failure::Input)?;
        let (mut units, num_partitions) = (VecDeque::new(), opened.len().max(1));
        let readers = self.context.task.session_config().target_partitions().max(1);
        for (partition, opened) in opened.into_iter().enumerate() {
            let together = Units::together(opened.units, readers.div_ceil(num_partitions), self.unit_rows as u64);
            let num_units = together.len();
            units.extend(together.into_iter().enumerate().map(|(at, units)| ((partition, at), units)));
            for (at, (file, _)) in opened.foreign.into_iter().enumerate() {
                let (loading, turns, plan) = (Arc::clone(self), Arc::clone(turns), scan.of_files(vec![file]));
                let reading = async move {
                    let _turn = turns.acquire_owned().await;
                    Ok(vec![((partition, num_units + at), loading.read_partition(&plan, 0).await?)])
                };
                tasks.spawn(profile::beside("reader", step::READ, reading));
            }
        }
        let readers = readers.min(units.len().max(1));
        let (units, scan) = (Arc::new(Mutex::new(units)), Arc::new(scan));
        for _ in 0..readers {
            let (loading, turns) = (Arc::clone(self), Arc::clone(turns));
            let (units, scan) = (Arc::clone(&units), Arc::clone(&scan));
            let reading = async move {
                let own = |of: &Option<SharedDictionary>| of.clone().map(ReaderCodes::new);
                let mut own: Vec<Option<ReaderCodes>> = loading.dictionaries.iter().map(own).collect();
                let (mut chunks, mut stream) = (Vec::new(), None);
                let next = || lock(&units).pop_front();
                while let Some((place, units)) = next() {
                    let _turn = Arc::clone(&turns).acquire_owned().await;
                    chunks.push((place, loading.read_units(&scan, &units, &mut own, &mut stream).await?));
                }
                Ok(chunks)
            };
            tasks.spawn(profile::beside("reader", step::READ, reading));
        }
        Ok(())
    }

    /// The rows of row groups.
    async fn read_units(
        &self,
        scan: &ParquetScan,
        units: &Units,
        own: &mut [Option<ReaderCodes>],
        stream: &mut Option<Stream>,
    ) -> Result<Vec<Chunk>, Stopped> {
        let mut chunks = Vec::new();
        let read = units.read(&self.room).await.map_err(Failure::Input)?;
        let mut held = self.context.host_memory("load");
        let (mut first, mut wrong) = (0, read.as_ref().is_err());
        while let (Ok(read), true, false) = (&read, first < units.rows(), wrong) {
            let rows = (units.rows() - first).min(self.unit_rows as u64) as usize;
            // It is about to be here, whatever others hold.
            held.grow(read.iter().map(Chunks::bytes).sum());
            let parts = units.parts(first, rows as u64);
            let decoding = Decoding { units, chunks: read, parts: &parts, rows, room: &self.room };
            let decoded = off_workers(|| self.decode(&decoding, own));
            // All columns were looked at: reading begins again once, not for each of them.
            if !self.texts().is_empty() {
                return Err(Stopped::Text);
            }
            match decoded {
                Ok(decoded) => {
                    held.grow(decoded.iter().map(Decoded::bytes).sum());
                    chunks.push(self.put(&decoded, rows, stream).await?);
                    first += rows as u64;
                }
                Err(Undecoded::Page(_) | Undecoded::Range) => wrong = true,
                Err(Undecoded::Codes(failure)) => return Err(failure.into()),
            }
            held.free();
        }
        if wrong {
            for rest in units.rest(scan, first, units.rows() - first) {
                chunks.extend(self.read_partition(&rest, 0).await?);
            }
        }
        Ok(chunks)
    }

    /// Decodes rows: each column in the width that its chunks' statistics promise, else in its own.
    fn decode(&self, decoding: &Decoding<'_>, own: &mut [Option<ReaderCodes>]) -> Result<Vec<Decoded>, Undecoded> {
        let _step = recorder::step(step::DECODE);
        let mut decoded = Vec::with_capacity(self.wanted.len());
        for (column, (wanted, own)) in self.wanted.iter().zip(own).enumerate() {
            let one = |target: Target, may_be_null: bool, codes: Option<&mut Interning<'_>>| {
                decoding.column(column, (target, may_be_null), codes)
            };
            let of = match (wanted.form, own) {
                (ColumnForm::Codes, Some(own)) => {
                    if self.texts[column].load(Ordering::Relaxed) {
                        continue;
                    }
                    let of = one(Target::Codes, true, Some(&mut Interning::new(own, wanted.most, wanted.needed)));
                    let full = matches!(of, Err(Undecoded::Codes(_))) && own.is_full();
                    let given_up = matches!(of, Err(Undecoded::Codes(Failure::Texts(_))));
                    if given_up || !wanted.needed && (full || own.nearly_all_different()) {
                        self.texts[column].store(true, Ordering::Relaxed);
                        continue;
                    }
                    of?
                }
                (ColumnForm::Text, _) => one(Target::Text, true, None)?,
                _ => {
                    let (range, may_be_null) = decoding.units.bounds(column);
                    let target = |range: Option<Range>, may_be_null: bool| {
                        let within = ty_of(wanted.form, &wanted.data_type, may_be_null, range);
                        let within = if range.is_none() { Ty::new(within.repr) } else { within };
                        let (physical, base) = storage(within);
                        Target::Fixed { physical, base, range }
                    };
                    // Statistics may be wrong.
                    let of = match one(target(range, may_be_null), may_be_null, None) {
                        Err(Undecoded::Range) => one(target(None, true), true, None)?,
                        of => of?,
                    };
                    self.seen[column].add_decoded(&of);
                    of
                }
            };
            decoded.push(of);
        }
        Ok(decoded)
    }

    /// Puts decoded rows on the device.
    async fn put(&self, decoded: &[Decoded], rows: usize, stream: &mut Option<Stream>) -> Result<Chunk, Stopped> {
        let facts: Vec<Facts> = decoded.iter().map(|of| of.facts).collect();
        let spec = |(wanted, of): (&Wanted, &Decoded)| match &of.values {
            Values::Fixed { physical, base, .. } => {
                let repr = ty_of(wanted.form, &wanted.data_type, false, None).repr;
                let ty = Ty::new(repr).nullable(of.facts.nulls > 0);
                (ColumnSpec { physical: *physical, has_base: *base != 0, ty }, *base)
            }
            _ => spec(wanted, &of.facts),
        };
        let specs: Vec<(ColumnSpec, i64)> = self.wanted.iter().zip(decoded).map(spec).collect();
        let shapes: Vec<Option<Shape>> =
            decoded.iter().zip(&specs).map(|(of, (spec, _))| Some(of.shape(spec.physical, 0, rows))).collect();
        let layout = ExtentLayout::of(rows, &shapes);
        self.send(&layout, &specs, facts, stream, |out| {
            for ((column, of), (spec, base)) in decoded.iter().enumerate().zip(&specs) {
                let range = of.facts.range.unwrap_or(Range::new(0, i128::from(u32::MAX)));
                let Some(region) = &layout.columns[column] else { continue };
                of.write(out, region, (0, rows), (spec.physical, *base, range))?;
            }
            Ok(())
        })
        .await
    }

    async fn read_partition(&self, plan: &Arc<dyn ExecutionPlan>, partition: usize) -> Result<Vec<Chunk>, Stopped> {
        let context = &self.context;
        let opened = profile::timed(step::OPEN, || plan.execute(partition, Arc::clone(&context.task)));
        let mut batches = opened.map_err(Failure::Input)?;
        let path = recorder::current();
        let mut held = context.host_memory("load");
        let own = |of: &Option<SharedDictionary>| of.clone().map(ReaderCodes::new);
        let mut own: Vec<Option<ReaderCodes>> = self.dictionaries.iter().map(own).collect();
        let (mut chunks, mut stream) = (Vec::new(), None);
        let (mut collected, mut rows): (Vec<RecordBatch>, usize) = (vec![], 0);
        while let Some(batch) = profile::decoded(&path, batches.next()).await {
            let mut batch = batch.map_err(Failure::Input)?;
            while batch.num_rows() > 0 {
                let taken = batch.num_rows().min(self.chunk_rows - rows);
                let bytes = batch.get_array_memory_size() * taken / batch.num_rows();
                let has_room = held.try_grow(bytes);
                if taken == 0 || !has_room && rows > 0 {
                    // The chunk is full, or the session's pool: what is at hand goes up.
                    chunks.push(self.chunk(&collected, &mut own, &mut stream).await?);
                    collected.clear();
                    rows = 0;
                    held.free();
                    continue;
                }
                if !has_room {
                    // It is here already.
                    held.grow(bytes);
                }
                collected.push(batch.slice(0, taken));
                rows += taken;
                batch = batch.slice(taken, batch.num_rows() - taken);
            }
        }
        if rows > 0 {
            chunks.push(self.chunk(&collected, &mut own, &mut stream).await?);
        }
        Ok(chunks)
    }

    /// Puts rows on the device.
    async fn chunk(
        &self,
        batches: &[RecordBatch],
        own: &mut [Option<ReaderCodes>],
        stream: &mut Option<Stream>,
    ) -> Result<Chunk, Stopped> {
        let mut coded: Vec<Vec<UInt32Array>> = Vec::with_capacity(own.len());
        {
            let _step = recorder::step(step::INTERN);
            for (column, own) in own.iter_mut().enumerate() {
                coded.push(match own {
                    Some(own) => self.codes(column, batches, own)?,
                    None => vec![],
                });
            }
        }
        // All columns were looked at: reading begins again once, not for each of them.
        if !self.texts().is_empty() {
            return Err(Stopped::Text);
        }
        let narrowing = recorder::step(step::NARROW);
        let mut facts = Vec::with_capacity(coded.len());
        for (column, (wanted, codes)) in self.wanted.iter().zip(&coded).enumerate() {
            let arrays = || batches.iter().map(|batch| batch.column(column));
            let of = facts_of(wanted, arrays(), codes)?;
            if wanted.form == ColumnForm::Plain {
                self.seen[column].add(&of, arrays()).map_err(Failure::from)?;
            }
            facts.push(of);
        }
        let specs: Vec<(ColumnSpec, i64)> =
            self.wanted.iter().zip(&facts).map(|(wanted, facts)| spec(wanted, facts)).collect();
        let only: Vec<ColumnSpec> = specs.iter().map(|(spec, _)| *spec).collect();
        let layout = ExtentLayout::new(batches, &only, &vec![true; only.len()]);
        drop(narrowing);
        self.send(&layout, &specs, facts, stream, |bytes| {
            for (column, ((spec, base), codes)) in specs.iter().zip(coded).enumerate() {
                let mut codes = codes.into_iter();
                let next = |_: &ArrayRef| {
                    let missing = || crate::EngineError::internal("every batch's strings were interned").into();
                    codes.next().ok_or_else(missing)
                };
                let written = layout.write(bytes, column, spec, *base, batches, next).map_err(Failure::from)?;
                let kept = "a chunk's facts hold for its values";
                written.map_err(|_| Failure::from(crate::EngineError::internal(kept)))?;
            }
            Ok(())
        })
        .await
    }

    /// Sends what `write` writes to the device, as pieces of the columns.
    async fn send(
        &self,
        layout: &ExtentLayout,
        specs: &[(ColumnSpec, i64)],
        facts: Vec<Facts>,
        stream: &mut Option<Stream>,
        write: impl FnOnce(&mut [u8]) -> Result<(), Failure>,
    ) -> Result<Chunk, Stopped> {
        let context = &self.context;
        let mut staging = context.engine.pinned.take(HostKind::Upload, layout.bytes).await?;
        {
            let _step = recorder::step(step::NARROW);
            write(&mut staging.write()?)?;
        }
        let stream = match stream {
            Some(stream) => stream,
            None => stream.insert(context.engine.streams.take(&context.tags.extents)?),
        };
        let _step = recorder::step(step::COPY);
        let (buffer, promise) = context.memory.take(layout.bytes, &context.tags.extents, stream)?;
        staging.enqueue_to_device(0..layout.bytes, buffer.as_view(), stream)?;
        let mut pieces = Vec::with_capacity(specs.len());
        for ((region, (spec, base)), facts) in layout.columns.iter().zip(specs).zip(facts) {
            let Some(region) = region else { continue };
            let (mut values, mut texts) = (region.values.clone(), None);
            if spec.physical == Physical::Text {
                let offsets = values.start + (facts.rows as usize + 1) * 4;
                texts = Some(buffer.view(offsets..values.end)?);
                values.end = offsets;
            }
            pieces.push(Piece {
                values: buffer.view(values)?,
                texts,
                validity: region.validity.clone().map(|range| buffer.view(range)).transpose()?,
                bits_before: 0,
                stored: Stored { physical: spec.physical, base: *base },
                facts,
                file: 0,
                dictionary: 0,
            });
        }
        Ok(Chunk { pieces, promise })
    }

    /// The codes of a chunk's strings, in the column's dictionary; fewer once the column is known to be better off without one.
    fn codes(
        &self,
        column: usize,
        batches: &[RecordBatch],
        own: &mut ReaderCodes,
    ) -> Result<Vec<UInt32Array>, Stopped> {
        let wanted = &self.wanted[column];
        let mut coded = Vec::with_capacity(batches.len());
        let text = &self.texts[column];
        for batch in batches {
            if text.load(Ordering::Relaxed) {
                break;
            }
            match own.codes(batch.column(column), wanted.most) {
                Err(_) if !wanted.needed && own.is_full() => text.store(true, Ordering::Relaxed),
                codes => coded.push(codes?),
            }
            if !wanted.needed && own.nearly_all_different() {
                text.store(true, Ordering::Relaxed);
            }
        }
        Ok(coded)
    }
}

/// What is true of a column's values in a chunk.
fn facts_of<'a>(
    wanted: &Wanted,
    arrays: impl Iterator<Item = &'a ArrayRef>,
    codes: &[UInt32Array],
) -> Result<Facts, Failure> {
    let mut all = Facts::default();
    let mut codes = codes.iter();
    for array in arrays {
        let (rows, nulls) = (array.len() as u64, array.logical_null_count() as u64);
        all = all.then(match (wanted.form, codes.next()) {
            (ColumnForm::Codes, Some(codes)) => {
                Facts::of_codes(rows, codes.null_count() as u64, codes.values().iter().copied().max().unwrap_or(0))
            }
            (ColumnForm::Plain, _) => Facts::of(array)?,
            _ => Facts::of_others(rows, nulls),
        });
    }
    Ok(all)
}

/// How such values are stored in a chunk.
fn spec(wanted: &Wanted, facts: &Facts) -> (ColumnSpec, i64) {
    let within = ty_of(wanted.form, &wanted.data_type, facts.nulls > 0, facts.range);
    let (physical, base) = storage(within);
    // The range holds, because it was found in these values: nothing checks it again.
    let ty = Ty::new(within.repr).nullable(within.nullable);
    (ColumnSpec { physical, has_base: base != 0, ty }, base)
}
