//! Converts the rows of a result to stored columns.
//!
//!   parts ── scanned: rows, NULLs, ranges, text bytes; one wait ──► pieces ── in their values' width ──► MadeRows
//!
//! NULL     rows keep their stored values, which are not counted as values or in ranges.
//! Texts    views become dense bytes; codes keep a sorted and complete dictionary, and otherwise become ranks in a new
//!          one.
//! Memory   holds the columns and the parts at the same time. If that does not fit, the result is downloaded.
//! Waits    once for the scan's results, and for pinned memory.

use std::collections::HashSet;
use std::ops::Range as Bytes;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_kernels::codegen::ir::{MAX_TEXT_BYTES, Physical, Range, Repr};
use millpond_kernels::layout::{OutputColumn, OutputLayout};
use millpond_kernels::reduce::{RESULT_BYTES, Reduction, SCRATCH_BYTES, reduce};
use millpond_kernels::store::{self as kernels, Stored};
use millpond_kernels::text::{self, Working};
use millpond_kernels::{Rows, pipeline::ExtentInput};
use millpond_memory::{ByteSize, DeviceBuffer, DeviceView, HostKind, Request, Reservation, Stream};

use crate::column::facts::Facts;
use crate::column::interner::Interner;
use crate::column::{ColumnInfo, DictionaryId, Form, plain_repr};
use crate::device::Engine;
use crate::error::failure::{Failure, control_words, flagged};
use crate::options::Cache;
use crate::program::keeper::{Inspected, Keeps, complete_dictionary};
use crate::program::part::Part;
use crate::program::run::Run;
use crate::store::capacity::{Newcomers, budget};
use crate::store::column::{ColumnForm, Merged, Piece, Whole};
use crate::store::made::column::MadeColumn;
use crate::store::made::{Home, MadeRows};
use crate::store::owners::Owners;
use crate::store::{Store, lock};

/// Keeps one result on the device.
pub struct Keeper {
    engine: Arc<Engine>,
    table: String,
    schema: SchemaRef,
    /// Rows of the table that this one replaces.
    replaced: Option<Arc<MadeRows>>,
    made: Mutex<Option<Arc<MadeRows>>>,
}

/// Maximum dictionary values per row, in addition to [`VALUES_AT_LEAST`]: beyond that, lookups of all its values would
/// cost more than downloading the rows.
const VALUES_A_ROW: u64 = 4;
const VALUES_AT_LEAST: u64 = 1 << 16;
/// Divisor of the pinned memory limit that bounds the scan's results.
const PINNED_SHARE: usize = 4;

impl Keeper {
    /// Keeper for table `table` with this schema, which replaces `replaced`.
    pub fn new(engine: &Arc<Engine>, table: String, schema: SchemaRef, replaced: Option<Arc<MadeRows>>) -> Self {
        Self { engine: Arc::clone(engine), table, schema, replaced, made: Mutex::default() }
    }

    /// The rows, if they were kept.
    pub fn made(&self) -> Option<Arc<MadeRows>> {
        lock(&self.made).take()
    }

    /// True if the result's columns match the table's and can all be stored.
    fn fits(&self, run: &Run, parts: &[Part]) -> bool {
        let fields = run.prepared.program.schema.fields();
        let same = fields.iter().map(|field| field.data_type()).eq(self.schema.fields().iter().map(|f| f.data_type()));
        let stored = |part: &Part| {
            let columns = part.outputs.iter().enumerate();
            columns.clone().all(|(at, info)| part.column(at).and_then(|column| form_of(info, column)).is_some())
                && part
                    .outputs
                    .iter()
                    .map(|info| &info.form)
                    .zip(&parts[0].outputs)
                    .all(|(form, first)| alike(form, &first.form))
        };
        same && !fields.is_empty() && parts.iter().all(|part| part.outputs.len() == fields.len() && stored(part))
    }
}

/// Storage form of a result column.
fn form_of(info: &ColumnInfo, column: &OutputColumn) -> Option<ColumnForm> {
    match &info.form {
        Form::Codes(..) => Some(ColumnForm::Codes),
        Form::Plain(ty) if ty.repr == Repr::Text => (column.physical == Physical::View).then_some(ColumnForm::Text),
        Form::Plain(ty) => (plain_repr(&info.data_type) == Some(ty.repr)).then_some(ColumnForm::Plain),
        Form::Lists(..) | Form::Unsupported(_) => None,
    }
}

/// True if columns of these forms can be pieces of one column.
fn alike(a: &Form, b: &Form) -> bool {
    match (a, b) {
        (Form::Codes(_, a), Form::Codes(_, b)) => a == b,
        (Form::Plain(a), Form::Plain(b)) => a.repr == b.repr,
        _ => false,
    }
}

impl Keeps for Keeper {
    fn look<'a>(
        &'a self,
        run: &'a Arc<Run>,
        parts: &'a [Part],
        stream: &'a Stream,
    ) -> BoxFuture<'a, Result<Option<Box<dyn Inspected + 'a>>, Failure>> {
        async move {
            if parts.is_empty() || !self.fits(run, parts) {
                return Ok(None);
            }
            let stream = stream.with_scope(&run.context.tags.output);
            let Some(looked) = InspectedParts::at(run, parts, &stream).await? else { return Ok(None) };
            Ok(Some(Box::new(Keeping { keeper: self, run, looked, stream }) as Box<dyn Inspected>))
        }
        .boxed()
    }
}

/// A result that may be kept.
struct Keeping<'a> {
    keeper: &'a Keeper,
    run: &'a Run,
    looked: InspectedParts<'a>,
    stream: Stream,
}

impl Inspected for Keeping<'_> {
    fn keep<'a>(self: Box<Self>) -> BoxFuture<'a, Result<bool, Failure>>
    where
        Self: 'a,
    {
        async move {
            let Self { keeper, run, looked, stream } = *self;
            let rows: u64 = looked.parts.iter().map(|part| part.rows).sum();
            // An empty result is not kept.
            if rows == 0 || rows > run.context.options.most_cached_rows() {
                return Ok(false);
            }
            let Some((columns, _texts)) = looked.columns(run, &keeper.schema, rows, &stream)? else {
                return Ok(false);
            };
            let made = keeper.store(run, columns, rows, &stream).await?;
            let stays = made.is_some();
            *lock(&keeper.made) = made;
            Ok(stays)
        }
        .boxed()
    }
}

impl Keeper {
    /// Stores the columns; `None` if they do not fit.
    async fn store(
        &self,
        run: &Run,
        columns: Vec<Whole>,
        rows: u64,
        stream: &Stream,
    ) -> Result<Option<Arc<MadeRows>>, Failure> {
        let store = Store::of(&self.engine);
        let short_text = run.context.options.short_text_bytes();
        let bytes = |column: &Whole| column.sizes(short_text);
        let sizes: Vec<u64> = columns.iter().map(bytes).map(|(values, validity)| values + validity).collect();
        let effort = columns.iter().map(Whole::effort).sum();
        let new = Newcomers { bytes: sizes.iter().sum(), effort: Some(effort) };
        let make_space = || store.make_space(new, budget(&run.context), &HashSet::new());
        // Once the new table is registered, the replaced one is unused, so it is spilled first.
        let space = make_space().or_else(|| {
            self.replaced.as_ref()?.leave();
            make_space()
        });
        let Some(_space) = space else { return Ok(None) };
        let now = store.now();
        let mut made = Vec::with_capacity(columns.len());
        for ((whole, bytes), field) in columns.into_iter().zip(sizes).zip(self.schema.fields()) {
            let wanted = Request::device(ByteSize(bytes.next_multiple_of(256))).spillable();
            let promise = store.participant.try_reserve(wanted)?;
            let number = store.numbers.fetch_add(1, Ordering::Relaxed);
            let stored = whole.store((number, short_text, None), promise, &self.engine, (stream, &store.scope)).await?;
            made.push(MadeColumn::new(stored, field.data_type().clone(), now, &self.engine)?);
        }
        let owners = Owners::default();
        owners.add(run.context.task.session_config());
        let made = Arc::new(MadeRows {
            number: store.numbers.fetch_add(1, Ordering::Relaxed),
            table: self.table.clone(),
            schema: Arc::clone(&self.schema),
            rows,
            engine: Arc::clone(&self.engine),
            columns: made,
            owners,
            home: Mutex::new(Home::default()),
        });
        store.keep_in_mind(&made);
        if run.context.options.cache == Cache::Host {
            made.leave();
        }
        Ok(Some(made))
    }
}

/// Results of scanning the parts of a result.
struct InspectedParts<'p> {
    parts: Vec<LookedPart<'p>>,
}

struct LookedPart<'p> {
    part: &'p Part,
    extent: ExtentInput,
    rows: u64,
    columns: Vec<LookedColumn>,
}

/// Scan results of a column, and their positions.
#[derive(Default)]
struct LookedColumn {
    /// Position of its reduction among the results.
    reduction: Option<Bytes<usize>>,
    /// Position of its validity, for columns that cannot be reduced.
    bits: Option<Bytes<usize>>,
    text: Option<LookedText>,
    nulls: u64,
    range: Option<Range>,
}

/// A column of string views: the bytes of its texts, and their end positions.
struct LookedText {
    views: DeviceView,
    place: Working,
    working: DeviceBuffer,
    control: Bytes<usize>,
    bytes: usize,
    _promise: Reservation,
}

/// Bytes to copy to the host, view by view.
#[derive(Default)]
struct Wanted {
    views: Vec<DeviceView>,
    bytes: usize,
}

impl Wanted {
    fn add(&mut self, view: DeviceView) -> Bytes<usize> {
        let start = self.bytes;
        self.bytes += view.len();
        self.views.push(view);
        start..self.bytes
    }
}

impl<'p> InspectedParts<'p> {
    /// Scans parts; `None` if the results exceed the limit.
    async fn at(run: &Run, parts: &'p [Part], stream: &Stream) -> Result<Option<Self>, Failure> {
        let columns: usize = parts.iter().map(|part| part.outputs.len()).sum();
        let results = (columns * RESULT_BYTES as usize).next_multiple_of(256);
        let scratch = results..results + SCRATCH_BYTES as usize;
        let (reductions, _promise) = run.context.memory.take(scratch.end, &run.context.tags.output, stream)?;
        let scratch = reductions.view(scratch)?;
        let mut wanted = Wanted::default();
        let mut looked = Vec::with_capacity(parts.len());
        let mut result = 0;
        for part in parts {
            let extent = part.as_extent()?;
            let control = wanted.add(part.buffer.view(OutputLayout::CONTROL)?);
            let mut columns = Vec::with_capacity(part.outputs.len());
            for at in 0..part.outputs.len() {
                let out = reductions.view(result..result + RESULT_BYTES as usize)?;
                result += RESULT_BYTES as usize;
                columns.push(look_at(run, part, &extent, at, (&out, &scratch), &mut wanted, stream)?);
            }
            looked.push((LookedPart { part, extent, rows: 0, columns }, control));
        }
        let engine = &run.context.engine;
        if wanted.bytes > engine.pinned().limit().as_u64() as usize / PINNED_SHARE {
            return Ok(None);
        }
        let mut staging = engine.pinned().take(HostKind::Download, wanted.bytes).await?;
        let mut to = 0;
        for view in &wanted.views {
            staging.enqueue_to_host(to..to + view.len(), view, stream)?;
            to += view.len();
        }
        let staging = staging.idle()?.await?;
        let bytes = staging.read()?;
        let found = looked.into_iter().map(|(part, control)| part.found(&bytes, control)).collect::<Result<_, _>>()?;
        Ok(Some(Self { parts: found }))
    }

    /// Columns of all parts, and the reservations of text buffers, which must be held until the columns are stored;
    /// `None` if a column has no form.
    #[expect(clippy::type_complexity, reason = "columns, and what they reach")]
    fn columns(
        &self,
        run: &Run,
        schema: &SchemaRef,
        rows: u64,
        stream: &Stream,
    ) -> Result<Option<(Vec<Whole>, Vec<Reservation>)>, Failure> {
        let (mut wholes, mut promises) = (Vec::with_capacity(schema.fields().len()), Vec::new());
        let Some(first) = self.parts.first() else { return Ok(None) };
        for (at, (field, info)) in schema.fields().iter().zip(&first.part.outputs).enumerate() {
            let Some(form) = first.part.column(at).and_then(|column| form_of(info, column)) else { return Ok(None) };
            let dictionaries = match info.form {
                Form::Codes(_, id) => match coded(run, id, rows)? {
                    Some(dictionary) => Some(dictionary),
                    None => return Ok(None),
                },
                _ => None,
            };
            let mut pieces = Vec::with_capacity(self.parts.len());
            for part in self.parts.iter().filter(|part| part.rows > 0) {
                match part.piece(run, at, stream)? {
                    Some((piece, promise)) => {
                        pieces.push(piece);
                        promises.extend(promise);
                    }
                    None => return Ok(None),
                }
            }
            let (name, data_type): (String, DataType) = (field.name().clone(), field.data_type().clone());
            wholes.push(Whole { name, form, data_type, files: 1, pieces, dictionaries });
        }
        Ok(Some((wholes, promises)))
    }
}

/// Launches the scan for NULLs, range and text bytes of a column, and records the results to copy to the host.
fn look_at(
    run: &Run,
    part: &Part,
    extent: &ExtentInput,
    at: usize,
    (out, scratch): (&DeviceView, &DeviceView),
    wanted: &mut Wanted,
    stream: &Stream,
) -> Result<LookedColumn, Failure> {
    let mut looked = LookedColumn::default();
    let (Some(column), Some(input)) = (part.column(at), part.input(at)?) else { return Ok(looked) };
    let images = &run.context.engine.images;
    let rows = Rows::try_from(&extent.rows)?;
    if column.physical == Physical::View {
        let place = Working::new(extent.rows.upper_bound());
        let (working, promise) = run.context.memory.take(place.bytes(), &run.context.tags.output, stream)?;
        text::dense_ends(images, &input.values, &extent.rows, working.as_view(), stream)?;
        let control = wanted.add(working.view(Working::CONTROL)?);
        let views = input.values.clone();
        looked.text = Some(LookedText { views, place, working, control, bytes: 0, _promise: promise });
    }
    // If only NULLs are counted, any integer type of the same width works.
    let (physical, ranged) = match column.physical {
        Physical::F32 => (Physical::U32, false),
        Physical::F64 => (Physical::U64, false),
        Physical::View => (Physical::I128, false),
        other => (other, true),
    };
    let validity = input.validity.as_ref();
    match column.physical {
        Physical::Bit | Physical::Text | Physical::LongText => {
            let bits = validity.map(|bits| bits.view(0..extent.rows.upper_bound().div_ceil(8) as usize)).transpose()?;
            looked.bits = bits.map(|bits| wanted.add(bits));
        }
        _ if ranged || validity.is_some() => {
            reduce(images, &input.values, physical, validity, &rows, out, scratch, stream)?;
            looked.reduction = Some(wanted.add(out.clone()));
        }
        _ => {}
    }
    Ok(looked)
}

impl LookedPart<'_> {
    /// Completes the part with the results copied to the host.
    fn found(mut self, bytes: &[u8], control: Bytes<usize>) -> Result<Self, Failure> {
        let words = |range: &Bytes<usize>| control_words(bytes.get(range.clone()).unwrap_or(&[]));
        let (error, rows) = words(&control)?;
        flagged(error)?;
        let most = self.part.layout.rows_upper_bound;
        if rows > most {
            return Err(Failure::trouble(format!("the device says {rows} rows of at most {most}")));
        }
        self.rows = rows;
        for (column, info) in self.columns.iter_mut().zip(&self.part.outputs) {
            if let Some(text) = &mut column.text {
                text.bytes = words(&text.control)?.1 as usize;
            }
            if let Some(reduced) =
                column.reduction.as_ref().and_then(|at| Reduction::from_bytes(bytes.get(at.clone()).unwrap_or(&[])))
            {
                column.nulls = rows.saturating_sub(reduced.count);
                let is_number = matches!(info.form, Form::Plain(ty) if ty.repr.is_integer());
                column.range = (is_number && reduced.count > 0).then(|| Range::new(reduced.min, reduced.max));
            }
            if let Some(bits) = &column.bits {
                let bits = bytes.get(bits.clone()).unwrap_or(&[]);
                let set = |row: u64| bits.get((row / 8) as usize).is_some_and(|byte| byte >> (row % 8) & 1 == 1);
                column.nulls = (0..rows).filter(|row| !set(*row)).count() as u64;
            }
        }
        Ok(self)
    }

    /// Column `at` as a piece of a stored column, with its reservation; `None` if its texts are too long.
    fn piece(&self, run: &Run, at: usize, stream: &Stream) -> Result<Option<(Piece, Option<Reservation>)>, Failure> {
        let looked = &self.columns[at];
        let (Some(column), Some(input)) = (self.part.column(at), self.part.input(at)?) else { return Ok(None) };
        let mut facts = Facts::of_others(self.rows, looked.nulls);
        facts.range = looked.range;
        let validity = input.validity.filter(|_| looked.nulls > 0);
        let Some(text) = &looked.text else {
            let stored = Stored { physical: column.physical, base: 0 };
            return Ok(Some((piece(input.values, None, validity, stored, facts), None)));
        };
        let offsets = (self.rows as usize + 1) * 4;
        if offsets + text.bytes > MAX_TEXT_BYTES as usize {
            return Ok(None);
        }
        let (buffer, promise) = run.context.memory.take(offsets + text.bytes, &run.context.tags.output, stream)?;
        let images = &run.context.engine.images;
        // Each text ends where the next one begins.
        buffer.view(0..4)?.fill(0, stream)?;
        let ends = text.place.ends();
        let ends = text.working.view(ends.start..ends.start + self.rows as usize * 8)?;
        let (from, to) = (Physical::U64, Physical::U32);
        let (from, to) = (Stored { physical: from, base: 0 }, Stored { physical: to, base: 0 });
        kernels::values(images, &ends, from, None, &buffer.view(4..offsets)?, to, self.rows, stream)?;
        let mut texts = None;
        if text.bytes > 0 {
            let dense = buffer.view(offsets..offsets + text.bytes)?;
            let working = text.working.as_view();
            text::pack(images, &text.views, &run.reached.all(), &self.extent.rows, working, &dense, stream)?;
            texts = Some(dense);
        }
        let stored = Stored { physical: Physical::Text, base: 0 };
        Ok(Some((piece(buffer.view(0..offsets)?, texts, validity, stored, facts), Some(promise))))
    }
}

/// A piece with all rows of a part.
fn piece(
    values: DeviceView,
    texts: Option<DeviceView>,
    validity: Option<DeviceView>,
    stored: Stored,
    facts: Facts,
) -> Piece {
    Piece { values, texts, validity, bits_before: 0, stored, facts, file: 0, dictionary: 0 }
}

/// Dictionary of a result's codes; `None` if it is too large for the number of rows, or contains NULLs.
fn coded(run: &Run, id: DictionaryId, rows: u64) -> Result<Option<Merged>, Failure> {
    let most = rows.saturating_mul(VALUES_A_ROW).saturating_add(VALUES_AT_LEAST) as usize;
    if let Some(dictionary) = complete_dictionary(run, id) {
        let few = dictionary.lock().len() <= most;
        return Ok(few.then(|| Merged::complete(dictionary)));
    }
    let values = run.values(id)?;
    if values.len() > most || values.logical_null_count() > 0 {
        return Ok(None);
    }
    // Converts the values to bytes, ordered by code.
    let mut interner = Interner::new(values.len());
    let Ok(codes) = interner.codes(&values) else { return Ok(None) };
    let distinct = interner.array(0, &DataType::Binary)?;
    Merged::of(&[take(&distinct, &codes, None)?])
}
