//! Reads columns of a scan and stores them on the device.
//!
//!   row groups ─ readers ─ pages, host-decoded columns ─► pinned memory ─► device ─ decode ─► chunks, facts ─┐
//!   partitions ─ one reader each ─ up to 2^17 rows, if DataFusion reads ─► pinned memory ─► device ──────────┤
//!   strings    reader's own dictionary ── only new values ─────► the column's                                ├► whole
//!   order      file by file, chunk by chunk                                                                 ─┘
//!
//! Strings  if the first values of a column are nearly all distinct, it is read again without a dictionary, together
//!          with other such columns.
//! Threads  each reader converts the rows that it decodes. It locks a column's dictionary only to add values that are
//!          new to the reader.
//! Memory   on the device the chunks, until all columns are assembled; on the host one chunk of rows per reader.
//! Width    each chunk has the width of its own values, or of its row groups' statistics: if a value is out of range,
//!          the chunk is decoded again.
//! Ends     after an error of a file or of the device, nothing is stored; when the load is dropped, its readers end.

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
use millpond_kernels::parquet::Facts as DeviceFacts;
use millpond_kernels::store::Stored;
use millpond_memory::{HostKind, Reservation, Stream, recorder};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::column::dictionary::SharedDictionary;
use crate::column::facts::Facts;
use crate::column::layout::ExtentLayout;
use crate::column::storage;
use crate::device::workers::off_workers;
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::error::panics;
use crate::parquet::{
    Chunks, Columns, Decoded, Decoding, DeviceColumn, Interning, OnDevice, ParquetScan, Refused, Room, Spec, Target,
    Together, Undecoded, Units, Up, Values,
};
use crate::profile::{self, step};
use crate::program::context::RunContext;
use crate::program::interning::ReaderCodes;
use crate::store::column::{ColumnForm, Piece, ty_of};
use crate::store::lock;

/// Maximum rows of a chunk: if DataFusion reads, if the host decodes, and if the device decodes.
const CHUNK_ROWS: usize = 1 << 17;
const UNIT_ROWS: usize = 1 << 18;
const DEVICE_ROWS: usize = 1 << 21;
/// Minimum rows of a chunk, however small pinned memory is.
const LEAST_ROWS: u64 = 1 << 13;

/// A column to read.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub name: String,
    pub data_type: DataType,
    pub form: ColumnForm,
    /// Maximum number of dictionary values.
    pub most: usize,
    /// An expression requires a dictionary, whatever the number of values.
    pub needed: bool,
}

/// Result of a read.
pub(super) enum Read {
    /// All rows on the device, with their reservations, which are held until all columns are assembled.
    Columns { columns: Vec<ReadColumn>, promises: Vec<Reservation> },
    /// These columns are better without a dictionary; nothing was stored.
    Texts(Vec<usize>),
}

/// The rows read of a column.
#[derive(Debug, Default)]
pub(super) struct ReadColumn {
    /// In row order.
    pub pieces: Vec<Piece>,
    /// Dictionary values of the codes.
    pub values: Option<ArrayRef>,
}

/// State of a load, shared by its readers.
struct Loading {
    context: Arc<RunContext>,
    wanted: Vec<Wanted>,
    /// Dictionaries of the coded columns.
    dictionaries: Vec<Option<SharedDictionary>>,
    /// Columns found to be better without a dictionary.
    texts: Vec<AtomicBool>,
    /// Columns that the device decodes, until it refuses one of their pages.
    on_device: Vec<AtomicBool>,
    /// Maximum rows of a chunk: of batches, and of a row group.
    chunk_rows: usize,
    unit_rows: usize,
    room: Arc<Room>,
}

/// A chunk on the device, by column, with its reservation.
struct Chunk {
    pieces: Vec<Piece>,
    promise: Reservation,
}

/// Result of storing rows on the device.
enum Put {
    Done(Chunk),
    /// The host has to decode some columns.
    Refused(Refused),
    /// The chunks must be moved out of pinned memory.
    Unpin,
}

/// Why a reader stopped.
enum Stopped {
    Failed(Failure),
    /// A column was found to be better without a dictionary.
    Text,
}

impl<F: Into<Failure>> From<F> for Stopped {
    fn from(failure: F) -> Self {
        Self::Failed(failure.into())
    }
}

/// Reads all rows of `plan`, which has the columns `wanted` and one partition per file in `files`. Each reader holds
/// one of `turns`.
pub(super) async fn read(
    context: &Arc<RunContext>,
    (plan, files): (&Arc<dyn ExecutionPlan>, &[usize]),
    wanted: &[Wanted],
    turns: &Arc<Semaphore>,
) -> Result<Read, Failure> {
    let decodes = context.decodes_on_device();
    let dictionary = |of: &Wanted| (of.form == ColumnForm::Codes).then(|| SharedDictionary::new(of.most));
    let loading = Arc::new(Loading {
        context: Arc::clone(context),
        dictionaries: wanted.iter().map(dictionary).collect(),
        wanted: wanted.to_vec(),
        texts: wanted.iter().map(|_| AtomicBool::new(false)).collect(),
        on_device: wanted.iter().map(|_| AtomicBool::new(decodes)).collect(),
        chunk_rows: CHUNK_ROWS.min(context.options.max_batch_rows()),
        unit_rows: if decodes { DEVICE_ROWS } else { UNIT_ROWS }.min(context.options.max_batch_rows()),
        room: Room::of(&context.engine),
    });
    let mut tasks = JoinSet::new();
    match ParquetScan::of(plan) {
        Ok(scan) => loading.begin_units(scan, turns, &mut tasks).await?,
        Err(_) => loading.begin_partitions(plan, turns, &mut tasks),
    }
    let mut chunks: BTreeMap<Place, Vec<Chunk>> = BTreeMap::new();
    // If a reader fails or the run is dropped, dropping the set ends the others.
    while let Some(joined) = tasks.join_next().await {
        match joined.map_err(|error| Failure::from(panics::task_ended(error)))? {
            Ok(of) => chunks.extend(of),
            Err(Stopped::Failed(failure)) => return Err(failure),
            Err(Stopped::Text) => return Ok(Read::Texts(loading.texts())),
        }
    }
    let mut columns: Vec<ReadColumn> = Vec::with_capacity(wanted.len());
    for dictionary in &loading.dictionaries {
        let values = match dictionary {
            Some(dictionary) => Some(dictionary.lock().array(0, &DataType::Binary)?),
            None => None,
        };
        columns.push(ReadColumn { pieces: vec![], values });
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

/// Position of chunks: the partition, and the index of the row group within it.
type Place = (usize, usize);
/// Result of a reader.
type ReadChunks = Result<Vec<(Place, Vec<Chunk>)>, Stopped>;

impl Loading {
    /// Columns known to be better without a dictionary.
    fn texts(&self) -> Vec<usize> {
        (0..self.texts.len()).filter(|column| self.texts[*column].load(Ordering::Relaxed)).collect()
    }

    /// Starts a reader for each partition, if DataFusion reads.
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

    /// Starts readers that take row groups in turn, and one for each file that DataFusion reads.
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
        let readers = readers(&self.context);
        for (partition, opened) in opened.into_iter().enumerate() {
            let readers = readers.div_ceil(num_partitions);
            let limits = Together { readers, most_rows: self.unit_rows as u64 };
            let together = Units::together(opened.units, limits);
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

    /// Reads the rows of row groups.
    async fn read_units(
        &self,
        scan: &ParquetScan,
        units: &Units,
        own: &mut [Option<ReaderCodes>],
        stream: &mut Option<Stream>,
    ) -> Result<Vec<Chunk>, Stopped> {
        let mut chunks = Vec::new();
        let decodes = self.on_device.iter().any(|column| column.load(Ordering::Relaxed)) && units.has_device_form();
        let host_rows = UNIT_ROWS.min(self.unit_rows) as u64;
        let mut most = if decodes { self.unit_rows as u64 } else { host_rows };
        let pinned = decodes.then_some(&self.context.engine.pinned);
        let mut read = units.read(&self.room, pinned).await.map_err(Failure::Input)?;
        let mut held = self.context.host_memory("load");
        let (mut first, mut wrong) = (0, read.as_ref().is_err());
        let mut may_be_on_device = true;
        while let (Ok(read), true, false) = (&mut read, first < units.rows(), wrong) {
            let rows = (units.rows() - first).min(most) as usize;
            // The bytes already exist, so they are counted even beyond the limit.
            held.grow(read.iter().map(Chunks::bytes).sum());
            let parts = units.parts(first, rows as u64);
            let decoding = Decoding { units, chunks: read, parts: &parts, rows, room: &self.room };
            let decoded = off_workers(|| self.decode(&decoding, own, may_be_on_device));
            // All columns have been examined, so that the read restarts once for all of them.
            if !self.texts().is_empty() {
                return Err(Stopped::Text);
            }
            match decoded {
                Ok((columns, specs)) => {
                    held.grow(columns.host.iter().flatten().map(Decoded::bytes).sum());
                    let put = match self.put(&decoding, &columns, &specs, stream).await {
                        Err(Stopped::Failed(failure)) if is_short(&failure, &columns, rows) => {
                            most = (rows as u64 / 2).max(LEAST_ROWS).min(host_rows);
                            Put::Refused(Refused::default())
                        }
                        put => put?,
                    };
                    match put {
                        Put::Done(chunk) => {
                            chunks.push(chunk);
                            first += rows as u64;
                        }
                        Put::Unpin => read.iter_mut().for_each(|chunks| chunks.unpin(&self.room)),
                        Put::Refused(refused) => {
                            refused.columns.iter().for_each(|at| self.on_device[*at].store(false, Ordering::Relaxed));
                            may_be_on_device = !refused.columns.is_empty();
                            if !may_be_on_device {
                                most = most.min(host_rows);
                            }
                        }
                    }
                }
                Err(Undecoded::Page(_) | Undecoded::Range) => wrong = true,
                Err(Undecoded::Codes(failure)) => return Err(failure.into()),
            }
            held.free();
        }
        drop(read);
        if wrong {
            for rest in units.rest(scan, first, units.rows() - first) {
                chunks.extend(self.read_partition(&rest, 0).await?);
            }
        }
        Ok(chunks)
    }

    /// Decodes rows, or describes them for the device: each column in the width of its chunks' statistics, otherwise in
    /// the width of its values.
    fn decode(
        &self,
        decoding: &Decoding<'_>,
        own: &mut [Option<ReaderCodes>],
        may_be_on_device: bool,
    ) -> Result<(Columns, Vec<Spec>), Undecoded> {
        let _step = recorder::step(step::DECODE);
        let mut columns = Columns { host: Vec::with_capacity(self.wanted.len()), device: vec![] };
        let mut specs = Vec::with_capacity(self.wanted.len());
        for (at, (wanted, own)) in self.wanted.iter().zip(own).enumerate() {
            let on_device = may_be_on_device && self.on_device[at].load(Ordering::Relaxed);
            let one = |target: Target, may_be_null: bool, mut codes: Option<&mut Interning<'_>>| {
                if on_device && let Some(column) = decoding.on_device(at, target, codes.as_deref_mut())? {
                    return Ok(Either::Device(column));
                }
                decoding.column(at, (target, may_be_null), codes).map(Either::Host)
            };
            let of = match (wanted.form, own) {
                (ColumnForm::Codes, Some(own)) => {
                    if !wanted.needed && decoding.is_mostly_text(at) {
                        self.texts[at].store(true, Ordering::Relaxed);
                    }
                    if self.texts[at].load(Ordering::Relaxed) {
                        continue;
                    }
                    let of = one(Target::Codes, true, Some(&mut Interning::new(own, wanted.most, wanted.needed)));
                    let full = matches!(of, Err(Undecoded::Codes(_))) && own.is_full();
                    let given_up = matches!(of, Err(Undecoded::Codes(Failure::Texts(_))));
                    if given_up || !wanted.needed && (full || own.nearly_all_different()) {
                        self.texts[at].store(true, Ordering::Relaxed);
                        continue;
                    }
                    of?
                }
                (ColumnForm::Text, _) => one(Target::Text, true, None)?,
                _ => {
                    let (range, may_be_null) = decoding.units.bounds(at);
                    // The statistics may be wrong.
                    match self.fixed(decoding, at, range, may_be_null, on_device) {
                        Err(Undecoded::Range) => self.fixed(decoding, at, None, true, false)?,
                        of => of?,
                    }
                }
            };
            specs.push(self.spec(at, &of, decoding));
            columns.host.push(match of {
                Either::Host(decoded) => Some(decoded),
                Either::Device(column) => {
                    columns.device.push((at, column));
                    None
                }
            });
        }
        Ok((columns, specs))
    }

    /// A column of numbers or bits whose valid values are in `range`.
    fn fixed(
        &self,
        decoding: &Decoding<'_>,
        at: usize,
        range: Option<Range>,
        may_be_null: bool,
        on_device: bool,
    ) -> Result<Either, Undecoded> {
        let (physical, base) = storage(self.within(at, range, may_be_null));
        let target = Target::Fixed { physical, base, range };
        // No kernel computes the range of 128-bit integers.
        if on_device
            && physical != Physical::I128
            && let Some(column) = decoding.on_device(at, target, None)?
        {
            return Ok(Either::Device(column));
        }
        decoding.column(at, (target, may_be_null), None).map(Either::Host)
    }

    /// Device type of values in a range, if one is known.
    fn within(&self, at: usize, range: Option<Range>, may_be_null: bool) -> Ty {
        let wanted = &self.wanted[at];
        let within = ty_of(wanted.form, &wanted.data_type, may_be_null, range);
        if range.is_none() { Ty::new(within.repr).nullable(within.nullable) } else { within }
    }

    /// Layout of a column on the device.
    fn spec(&self, at: usize, of: &Either, decoding: &Decoding<'_>) -> Spec {
        let wanted = &self.wanted[at];
        match of {
            Either::Host(of) => match &of.values {
                Values::Fixed { physical, base, .. } => {
                    let repr = ty_of(wanted.form, &wanted.data_type, false, None).repr;
                    let ty = Ty::new(repr).nullable(of.facts.nulls > 0);
                    (ColumnSpec { physical: *physical, has_base: *base != 0, ty }, *base)
                }
                _ => spec(wanted, &of.facts),
            },
            Either::Device(column) => {
                let (range, may_be_null) = decoding.units.bounds(at);
                let ty = match wanted.form {
                    ColumnForm::Codes => self.within(at, Some(Range::new(0, column.most_code().into())), true),
                    ColumnForm::Text => self.within(at, None, true),
                    ColumnForm::Plain => self.within(at, range, may_be_null),
                };
                let (physical, base) = storage(ty);
                (ColumnSpec { physical, has_base: base != 0, ty }, base)
            }
        }
    }

    /// Stores rows on the device; returns the columns that the host has to decode, if any.
    async fn put(
        &self,
        decoding: &Decoding<'_>,
        columns: &Columns,
        specs: &[Spec],
        stream: &mut Option<Stream>,
    ) -> Result<Put, Stopped> {
        let (context, rows) = (&self.context, decoding.rows);
        let stream = match stream {
            Some(stream) => stream,
            None => stream.insert(context.engine.streams.take(&context.tags.extents)?),
        };
        let up = match decoding.up(context, columns, specs, (stream, true)).await? {
            Up::Yes(up) => up,
            Up::No(refused) => return Ok(Put::Refused(refused)),
            Up::Unpin => return Ok(Put::Unpin),
        };
        let OnDevice { buffer: _, promise, inputs, facts } = *up;
        let mut of_device = columns.device.iter().zip(facts);
        let mut pieces = Vec::with_capacity(specs.len());
        for ((host, input), (spec, base)) in columns.host.iter().zip(inputs).zip(specs) {
            let Some(input) = input else { continue };
            let (facts, text_bytes) = match host {
                Some(of) => (of.facts, None),
                None => {
                    let Some(((at, column), Some(found))) = of_device.next() else {
                        return Err(EngineError::internal("the device finds the facts of what it decodes").into());
                    };
                    let facts = match self.wanted[*at].form {
                        ColumnForm::Codes => Facts::of_codes(rows as u64, found.nulls, column.most_code()),
                        ColumnForm::Text => Facts::of_others(rows as u64, found.nulls),
                        ColumnForm::Plain => facts_of_numbers(rows as u64, (spec, *base), &found),
                    };
                    (facts, Some(found.text_bytes as usize))
                }
            };
            let (mut values, mut texts) = (input.values, None);
            if spec.physical == Physical::Text {
                let offsets = (rows + 1) * 4;
                let end = text_bytes.map_or(values.len(), |bytes| offsets + bytes);
                texts = Some(values.view(offsets..end)?);
                values = values.view(0..offsets)?;
            }
            pieces.push(Piece {
                values,
                texts,
                validity: input.validity.filter(|_| facts.nulls > 0),
                bits_before: 0,
                stored: Stored { physical: spec.physical, base: *base },
                facts,
                file: 0,
                dictionary: 0,
            });
        }
        Ok(Put::Done(Chunk { pieces, promise }))
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
                    // The chunk or the session's pool is full: the collected rows are uploaded.
                    chunks.push(self.chunk(&collected, &mut own, &mut stream).await?);
                    collected.clear();
                    rows = 0;
                    held.free();
                    continue;
                }
                if !has_room {
                    // The batch already exists, so it is counted even beyond the limit.
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

    /// Stores rows on the device.
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
        // All columns have been examined, so that the read restarts once for all of them.
        if !self.texts().is_empty() {
            return Err(Stopped::Text);
        }
        let narrowing = recorder::step(step::NARROW);
        let mut facts = Vec::with_capacity(coded.len());
        for (column, (wanted, codes)) in self.wanted.iter().zip(&coded).enumerate() {
            let arrays = || batches.iter().map(|batch| batch.column(column));
            let of = facts_of(wanted, arrays(), codes)?;
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

    /// Uploads the bytes that `write` writes, as pieces of the columns.
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

    /// Codes of a chunk's strings in the column's dictionary; incomplete once the column is found to be better without
    /// one.
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

/// Number of concurrent readers.
pub(super) fn readers(context: &RunContext) -> usize {
    context.task.session_config().target_partitions().max(1)
}

/// A column that the host has decoded, or that the device will decode.
enum Either {
    Host(Decoded),
    Device(DeviceColumn),
}

/// True if the rows may fit once the host decodes them, fewer at a time.
fn is_short(failure: &Failure, columns: &Columns, rows: usize) -> bool {
    let device = !columns.device.is_empty();
    match failure {
        Failure::Pinned(_) => device || rows as u64 > LEAST_ROWS,
        failure => failure.is_out_of_memory() && device,
    }
}

/// Facts about numbers that the device has decoded.
fn facts_of_numbers(rows: u64, (spec, base): (&ColumnSpec, i64), of: &DeviceFacts) -> Facts {
    if !spec.ty.repr.is_integer() {
        return Facts::of_others(rows, of.nulls);
    }
    let ends = of.range.map(|(low, high)| (low + i128::from(base), high + i128::from(base)));
    let range = ends.map(|(low, high)| Range::new(low, high));
    let (sorted, ascending) = (of.is_sorted(), of.is_ascending(rows));
    Facts::decoded((rows, of.nulls, range), (sorted, ascending, of.rises + 1), ends.filter(|_| sorted))
}

/// Facts about a column's values in a chunk.
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

/// Storage of such values in a chunk.
fn spec(wanted: &Wanted, facts: &Facts) -> (ColumnSpec, i64) {
    let within = ty_of(wanted.form, &wanted.data_type, facts.nulls > 0, facts.range);
    let (physical, base) = storage(within);
    // The range was computed from these values, so it needs no check.
    let ty = Ty::new(within.repr).nullable(within.nullable);
    (ColumnSpec { physical, has_base: base != 0, ty }, base)
}
