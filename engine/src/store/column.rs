//! A stored column on the device: one extent with all its rows, in the width that its values need.
//!
//!   chunks, each with its own width ─► [ values ] [ validity ]        dictionaries sorted: a code is its rank
//!
//! Memory   is reserved with the governor while the column is stored. Chunks exist until the last column is assembled
//!          from them.
//! Waits    for pinned memory, if a table of codes is uploaded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use datafusion::arrow::compute::{concat, sort_to_indices, take};
use datafusion::arrow::datatypes::DataType;
use millpond_kernels::codegen::ir::{Physical, Range, Repr, Ty};
use millpond_kernels::pipeline::ColumnInput;
use millpond_kernels::store::{self as kernels, Stored};
use millpond_memory::{DeviceBuffer, DeviceView, HostKind, Reservation, Resident, Scope, Stream};

use crate::column::dictionary::SharedDictionary;
use crate::column::facts::Facts;
use crate::column::{plain_repr, storage};
use crate::device::Engine;
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::store::entry::Entry;
use crate::store::kept_lookups::KeptLookups;

/// Minimum bytes for lookup tables over the dictionary of a column.
const LEAST_ROOM: u64 = 1 << 20;

/// Storage form of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnForm {
    /// Numbers, dates, times, booleans.
    Plain,
    /// Codes of a dictionary.
    Codes,
    /// Offsets and text bytes.
    Text,
}

/// Description of a stored column, in either tier.
#[derive(Debug)]
pub struct About {
    /// Unique number of the column.
    pub number: u64,
    /// Name in the scan for which it was loaded.
    pub name: String,
    loaded: Instant,
    pub form: ColumnForm,
    /// Device type, with the range of its values.
    pub ty: Ty,
    pub facts: Facts,
    /// Number of distinct integers, if known; determined after the column is stored.
    pub(super) distinct: OnceLock<Option<u64>>,
    /// Sorted dictionary of a coded column.
    pub dictionary: Option<SharedDictionary>,
    pub(super) base: i64,
    /// Offsets are 64-bit because the text exceeds the 32-bit limit.
    pub long: bool,
    /// Facts and text bytes of its rows, file by file.
    parts: Vec<Part>,
    pub bytes: u64,
    /// Number of runs that have read it, and the start time of the last one.
    pub uses: AtomicU64,
    pub last_used: AtomicU64,
}

/// A stored column on the device.
#[derive(Debug)]
pub struct StoredColumn {
    /// Its description.
    pub about: Arc<About>,
    values: DeviceView,
    validity: Option<DeviceView>,
    /// Bytes allocated, including padding to the pool's units.
    allocated: u64,
    /// Lookup tables over its dictionary.
    pub(super) lookups: KeptLookups,
    held: Held,
}

/// Owner of a column's device bytes.
#[derive(Debug)]
pub(super) enum Held {
    /// The column owns the bytes and their reservation.
    Promise(Reservation),
    /// The bytes are borrowed from their owner.
    Lent { _from: Resident },
}

/// Rows of one file in a column.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    facts: Facts,
    text_bytes: u64,
}

/// A range of rows of a column on the device.
#[derive(Debug)]
pub(super) struct Piece {
    /// Values; for texts, their offsets.
    pub values: DeviceView,
    pub texts: Option<DeviceView>,
    pub validity: Option<DeviceView>,
    /// Number of bits of earlier rows in the first word of bitmaps.
    pub bits_before: u32,
    pub stored: Stored,
    pub facts: Facts,
    /// Index of the file in the table.
    pub file: usize,
    /// Index of the codes' dictionary in the column's [`dictionaries`](Whole::dictionaries).
    pub dictionary: usize,
}

/// A column with all its pieces.
pub(super) struct Whole {
    pub name: String,
    pub form: ColumnForm,
    pub data_type: DataType,
    /// Number of files of the table.
    pub files: usize,
    /// In row order.
    pub pieces: Vec<Piece>,
    /// Dictionary values of the pieces' codes.
    pub dictionaries: Option<Merged>,
}

/// Dictionaries merged into one.
#[derive(Debug)]
pub(super) struct Merged {
    sorted: SharedDictionary,
    /// For each dictionary, the rank of each of its values in the merged one, as 32-bit numbers.
    ranks: Vec<Vec<u8>>,
}

impl Piece {
    fn text_bytes(&self) -> u64 {
        self.texts.as_ref().map_or(0, |texts| texts.len() as u64)
    }
}

impl Whole {
    fn facts(&self) -> Facts {
        self.pieces.iter().fold(Facts::default(), |facts, piece| facts.then(piece.facts))
    }

    fn parts(&self) -> Vec<Part> {
        let mut parts = vec![Part::default(); self.files];
        for piece in &self.pieces {
            let part = &mut parts[piece.file];
            part.facts = part.facts.then(piece.facts);
            part.text_bytes += piece.text_bytes();
        }
        parts
    }

    /// Number of rows of each file.
    pub(super) fn rows(&self) -> Vec<u64> {
        self.parts().iter().map(|part| part.facts.rows).collect()
    }

    /// Cost of reading it.
    pub(super) fn effort(&self) -> u64 {
        effort(self.form, self.facts().rows)
    }

    /// Device type of all values.
    fn ty(&self, facts: &Facts) -> Ty {
        let codes = self.dictionaries.as_ref().map(|of| Range::new(0, of.len().max(1) as i128 - 1));
        ty_of(self.form, &self.data_type, facts.nulls > 0, codes.or(facts.range))
    }

    /// Bytes of the offsets, one more than rows, and of the texts.
    fn text_bytes(&self, physical: Physical) -> u64 {
        let bytes: u64 = self.pieces.iter().map(Piece::text_bytes).sum();
        (self.facts().rows + 1) * u64::from(physical.width()) + bytes
    }

    /// Physical type of its values, and the base subtracted from each. Texts with more than `short_text` bytes
    /// including offsets get 64-bit offsets.
    fn storage(&self, short_text: u64) -> (Physical, i64) {
        match storage(self.ty(&self.facts())) {
            (Physical::Text, base) if self.text_bytes(Physical::Text) > short_text => (Physical::LongText, base),
            short => short,
        }
    }

    /// Bytes of the values and of the validity.
    pub(super) fn sizes(&self, short_text: u64) -> (u64, u64) {
        let facts = self.facts();
        let bitmap = facts.rows.div_ceil(32) * 4;
        let values = match self.storage(short_text).0 {
            Physical::Bit => bitmap,
            texts @ (Physical::Text | Physical::LongText) => self.text_bytes(texts),
            physical => physical.value_bytes(facts.rows),
        };
        (values.max(1), if facts.nulls > 0 { bitmap } else { 0 })
    }

    /// Assembles the pieces. If distinct integers have to be counted, the number will be in `count`, 8 zeroed bytes,
    /// and is unknown until [`About::count_is`] is called. Temporary memory is counted under the stream's scope, stored
    /// memory under `scope`. `short_text` is as in [`sizes`](Self::sizes).
    pub(super) async fn store(
        self,
        (number, short_text, count): (u64, u64, Option<DeviceView>),
        promise: Reservation,
        engine: &Engine,
        (stream, scope): (&Stream, &Scope),
    ) -> Result<StoredColumn, Failure> {
        let facts = self.facts();
        let ty = self.ty(&facts);
        let (physical, base) = self.storage(short_text);
        let (value_bytes, validity_bytes) = self.sizes(short_text);
        let to = Stored { physical, base };
        let mut allocated = 0;
        let mut new = |bytes: u64| {
            let buffer = DeviceBuffer::zeroed(bytes as usize, &stream.with_scope(scope), &engine.pool)?;
            allocated += buffer.allocated_bytes().as_u64();
            Ok::<_, Failure>(buffer.as_view().clone())
        };
        let values = new(value_bytes)?;
        let validity = if validity_bytes > 0 { Some(new(validity_bytes)?) } else { None };
        let mut remaps = Vec::new();
        for ranks in self.dictionaries.iter().flat_map(|of| &of.ranks) {
            remaps.push(upload(ranks, engine, stream).await?);
        }
        let offset_bytes = u64::from(physical.width());
        let (mut first, mut text_at) = (0_u64, (facts.rows + 1) * offset_bytes);
        for piece in &self.pieces {
            let rows = piece.facts.rows;
            match physical {
                Physical::Bit => {
                    let (from, before) = (Some(&piece.values), piece.bits_before);
                    kernels::bits(&engine.images, from, before, &values, first, rows, stream)?;
                }
                Physical::Text | Physical::LongText => {
                    let out = (first * offset_bytes) as usize..((first + rows + 1) * offset_bytes) as usize;
                    let (from, out, images) = (piece.stored.physical, values.view(out)?, &engine.images);
                    kernels::offsets(images, &piece.values, from, &out, physical, text_at, rows, stream)?;
                    if let Some(texts) = piece.texts.as_ref().filter(|texts| !texts.is_empty()) {
                        let to = values.view(text_at as usize..text_at as usize + texts.len())?;
                        texts.copy_to(&to, stream)?;
                    }
                    text_at += piece.text_bytes();
                }
                _ => {
                    let width = u64::from(physical.width());
                    let out = values.view((first * width) as usize..((first + rows) * width) as usize)?;
                    let remap = remaps.get(piece.dictionary).map(DeviceBuffer::as_view);
                    kernels::values(&engine.images, &piece.values, piece.stored, remap, &out, to, rows, stream)?;
                }
            }
            if let Some(out) = &validity {
                let (from, before) = (piece.validity.as_ref(), piece.bits_before);
                kernels::bits(&engine.images, from, before, out, first, rows, stream)?;
            }
            first += rows;
        }
        let input = ColumnInput { values: values.clone(), validity: validity.clone(), base };
        let distinct = OnceLock::new();
        let steps = facts.distinct_if_sorted().filter(|_| facts.range.is_some());
        let is_counted = match count.filter(|_| self.form == ColumnForm::Plain && steps.is_none()) {
            Some(count) => count_different(&input, physical, &facts, &count, engine, (stream, scope))?,
            None => false,
        };
        if !is_counted {
            distinct.get_or_init(|| steps);
        }
        let parts = self.parts();
        let about = About {
            number,
            name: self.name,
            loaded: Instant::now(),
            form: self.form,
            ty,
            facts,
            distinct,
            dictionary: self.dictionaries.map(|of| of.sorted),
            base,
            long: physical == Physical::LongText,
            parts,
            bytes: value_bytes + validity_bytes,
            uses: AtomicU64::new(0),
            last_used: AtomicU64::new(0),
        };
        let (about, held) = (Arc::new(about), Held::Promise(promise));
        Ok(StoredColumn { about, values, validity, allocated, lookups: KeptLookups::default(), held })
    }
}

impl StoredColumn {
    /// A column restored from host memory: its values, and its validity if it has one.
    pub(super) fn back(
        about: Arc<About>,
        views: Vec<DeviceView>,
        allocated: u64,
        promise: Reservation,
    ) -> Result<Self, Failure> {
        let mut views = views.into_iter();
        let values = views.next().ok_or_else(|| EngineError::internal("a column has values"))?;
        let (validity, held) = (views.next(), Held::Promise(promise));
        Ok(Self { about, values, validity, allocated, lookups: KeptLookups::default(), held })
    }

    /// A borrowed column: its values, and its validity if it has one.
    ///
    /// # Errors
    /// An internal error for a column without values.
    pub(super) fn lent(about: Arc<About>, from: Resident, allocated: u64) -> Result<Self, Failure> {
        let mut views = from.iter().cloned();
        let values = views.next().ok_or_else(|| EngineError::internal("a column has values"))?;
        let validity = views.next();
        let held = Held::Lent { _from: from };
        Ok(Self { about, values, validity, allocated, lookups: KeptLookups::default(), held })
    }

    /// Its description, its views, and the owner of their bytes.
    pub(super) fn into_parts(self) -> (Arc<About>, Vec<DeviceView>, Held) {
        let views = std::iter::once(self.values).chain(self.validity).collect();
        (self.about, views, self.held)
    }

    /// Its values, and its validity if it has one.
    pub(super) fn views(&self) -> impl Iterator<Item = &DeviceView> {
        [&self.values].into_iter().chain(&self.validity)
    }

    /// Rows `first..first + rows` as a pipeline input; `first` is a multiple of 32. Texts are always passed as a whole.
    ///
    /// # Errors
    /// The memory's, if the rows are out of range.
    pub fn input(&self, first: u64, rows: u64) -> Result<ColumnInput, Failure> {
        let bits = |view: &DeviceView| view.view((first / 8) as usize..((first / 32 + rows.div_ceil(32)) * 4) as usize);
        let values = match self.about.physical() {
            Physical::Text | Physical::LongText => self.values.clone(),
            Physical::Bit => bits(&self.values)?,
            physical => {
                let width = u64::from(physical.width());
                self.values.view((first * width) as usize..((first + rows) * width) as usize)?
            }
        };
        Ok(ColumnInput { values, validity: self.validity.as_ref().map(bits).transpose()?, base: self.about.base })
    }

    /// Bytes on the device, including lookup tables.
    pub fn held_bytes(&self) -> u64 {
        self.about.bytes + self.lookups.bytes()
    }

    /// Bytes on the device as counted by the pool, including padding.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated + self.lookups.allocated_bytes()
    }

    /// Maximum bytes of its lookup tables: its own size, or a minimum for small columns.
    pub(super) fn space_for_lookups(&self) -> u64 {
        self.about.bytes.max(LEAST_ROOM)
    }

    /// Rows of its file `from` as a piece for file `file` of another column, with dictionary number `dictionary`.
    ///
    /// # Errors
    /// The memory's, if the rows are out of range.
    pub(super) fn piece(&self, from: usize, file: usize, dictionary: usize) -> Result<Piece, Failure> {
        let (before, part) = (&self.about.parts[..from], self.about.parts[from]);
        let first: u64 = before.iter().map(|part| part.facts.rows).sum();
        let end = first + part.facts.rows;
        let bits = |view: &DeviceView| view.view((first / 32 * 4) as usize..(end.div_ceil(32) * 4) as usize);
        let physical = self.about.physical();
        let width = u64::from(physical.width());
        let mut texts = None;
        let values = match physical {
            Physical::Bit => bits(&self.values)?,
            Physical::Text | Physical::LongText => {
                let start =
                    (self.about.facts.rows + 1) * width + before.iter().map(|part| part.text_bytes).sum::<u64>();
                texts = Some(self.values.view(start as usize..(start + part.text_bytes) as usize)?);
                self.values.view((first * width) as usize..((end + 1) * width) as usize)?
            }
            _ => self.values.view((first * width) as usize..(end * width) as usize)?,
        };
        Ok(Piece {
            values,
            texts,
            validity: self.validity.as_ref().map(bits).transpose()?,
            bits_before: (first % 32) as u32,
            stored: Stored { physical, base: self.about.base },
            facts: part.facts,
            file,
            dictionary,
        })
    }

    /// Number of rows of its file `file`.
    pub(super) fn rows_of(&self, file: usize) -> u64 {
        self.about.parts[file].facts.rows
    }
}

impl About {
    /// Benefit per byte of keeping it: its number of uses, discounted by the time since the last one, times the cost of
    /// reading it again.
    pub fn worth(&self, now: u64) -> f64 {
        let age = now.saturating_sub(self.last_used.load(Ordering::Relaxed));
        let often = self.uses.load(Ordering::Relaxed) as f64 / (1.0 + age as f64);
        often * self.worth_when_new()
    }

    /// Benefit per byte of a new column, which counts as used once.
    pub fn worth_when_new(&self) -> f64 {
        self.effort() as f64 / self.bytes.max(1) as f64
    }

    /// Physical type of its values.
    pub(super) fn physical(&self) -> Physical {
        if self.long { Physical::LongText } else { storage(self.ty).0 }
    }

    /// True while its distinct integers are being counted.
    pub(super) fn is_counting(&self) -> bool {
        self.distinct.get().is_none()
    }

    /// Sets the number of distinct integers.
    pub(super) fn count_is(&self, different: u64) {
        self.distinct.get_or_init(|| Some(different));
    }

    /// Number of distinct integers, if known.
    fn distinct(&self) -> Option<u64> {
        self.distinct.get().copied().flatten()
    }

    /// Number of distinct values without NULL, if known.
    pub fn different(&self) -> Option<u64> {
        let values = |dictionary: &SharedDictionary| dictionary.lock().len() as u64;
        self.distinct().or_else(|| self.dictionary.as_ref().map(values))
    }

    /// True if all its rows have distinct integers and none is NULL.
    pub fn is_unique(&self) -> bool {
        self.facts.nulls == 0 && self.distinct() == Some(self.facts.rows)
    }

    /// Cost of reading it.
    pub(super) fn effort(&self) -> u64 {
        effort(self.form, self.facts.rows)
    }

    /// Its row in `millpond_cache()`.
    pub(super) fn entry(&self, table: String, tier: &'static str) -> Entry {
        let mut facts = Vec::new();
        match (self.form, self.ty.range) {
            (ColumnForm::Plain, Some(range)) => facts.push(format!("{}..={}", range.low, range.high)),
            (ColumnForm::Codes, _) => {
                let values = self.dictionary.as_ref().map_or(0, |dictionary| dictionary.lock().len());
                facts.push(format!("{values} values, sorted"));
            }
            (ColumnForm::Text, _) => facts.push(if self.long { "long texts" } else { "texts" }.to_string()),
            (ColumnForm::Plain, None) => {}
        }
        if self.facts.nulls > 0 {
            facts.push(format!("{} NULL", self.facts.nulls));
        }
        match (self.facts.is_dense(), self.facts.ascending, self.facts.sorted) {
            (true, ..) => facts.push("dense".to_string()),
            (_, true, _) => facts.push("ascending".to_string()),
            (_, _, true) => facts.push("sorted".to_string()),
            _ if self.is_unique() => facts.push("unique".to_string()),
            _ => {}
        }
        if let Some(distinct) = self.distinct().filter(|_| !self.is_unique()) {
            facts.push(format!("{distinct} different"));
        }
        let physical = self.physical();
        let has_width = !matches!(physical, Physical::Text | Physical::LongText | Physical::Bit);
        let width = has_width.then(|| physical.width());
        Entry {
            table,
            column: self.name.clone(),
            tier,
            bytes: self.bytes,
            width,
            facts: facts.join(", "),
            hits: self.uses.load(Ordering::Relaxed),
            age: self.loaded.elapsed(),
        }
    }

    /// Records a use by a run at time `now`.
    pub fn used(&self, now: u64) {
        self.uses.fetch_add(1, Ordering::Relaxed);
        self.last_used.fetch_max(now, Ordering::Relaxed);
    }
}

/// Cost of reading `rows` values: strings are decoded, hashed and compared.
fn effort(form: ColumnForm, rows: u64) -> u64 {
    match form {
        ColumnForm::Plain => rows,
        ColumnForm::Codes | ColumnForm::Text => 4 * rows,
    }
}

/// Device type of values in this form and range. A column without integers gets the range of 0.
pub(super) fn ty_of(form: ColumnForm, data_type: &DataType, nullable: bool, range: Option<Range>) -> Ty {
    let repr = match form {
        ColumnForm::Codes => Repr::U32,
        ColumnForm::Text => Repr::Text,
        ColumnForm::Plain => plain_repr(data_type).unwrap_or(Repr::Bool),
    };
    let ty = Ty::new(repr).nullable(nullable);
    match range {
        Some(range) => ty.within(range.low, range.high),
        None if repr.is_integer() => ty.within(0, 0),
        None => ty,
    }
}

/// Maximum bytes of merged dictionaries: an array of them has 32-bit offsets.
const MOST_BYTES: usize = 1 << 30;

impl Merged {
    /// Merges dictionaries, given as binary arrays in order; `None` if they exceed the bytes of one array.
    pub(super) fn of(dictionaries: &[ArrayRef]) -> Result<Option<Self>, Failure> {
        let bytes = |values: &ArrayRef| values.as_binary::<i32>().value_data().len();
        if dictionaries.iter().map(bytes).sum::<usize>() > MOST_BYTES {
            return Ok(None);
        }
        if dictionaries.is_empty() {
            return Ok(Some(Self { sorted: SharedDictionary::new(0), ranks: vec![] }));
        }
        let arrays: Vec<&dyn Array> = dictionaries.iter().map(AsRef::as_ref).collect();
        let all = concat(&arrays)?;
        let order = sort_to_indices(&all, None, None)?;
        let values = all.as_binary::<i32>();
        let (mut rank_of, mut first) = (vec![0_u32; all.len()], Vec::<u32>::with_capacity(all.len()));
        for at in order.values() {
            // Equal values are adjacent after sorting.
            if first.last().is_none_or(|last| values.value(*last as usize) != values.value(*at as usize)) {
                first.push(*at);
            }
            rank_of[*at as usize] = first.len() as u32 - 1;
        }
        let sorted = SharedDictionary::new(first.len());
        sorted.lock().codes(&take(&all, &UInt32Array::from(first), None)?)?;
        let mut ranks = Vec::with_capacity(dictionaries.len());
        let mut rest = rank_of.as_slice();
        for of in dictionaries {
            let (own, behind) = rest.split_at(of.len());
            let bytes = own.iter().flat_map(|rank| rank.to_le_bytes());
            // A NULL row has code 0, even if the dictionary is empty.
            ranks.push(if own.is_empty() { vec![0; 4] } else { bytes.collect() });
            rest = behind;
        }
        Ok(Some(Self { sorted, ranks }))
    }

    /// A dictionary whose codes are kept.
    pub(super) fn complete(sorted: SharedDictionary) -> Self {
        Self { sorted, ranks: vec![] }
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.sorted.lock().len()
    }
}

/// Maximum number of bits for counting the distinct integers of a column.
const MOST_BITS: i128 = 1 << 23;

/// Counts the distinct integers of a column, if a bitmap of their range takes at most one mebibyte; false otherwise.
fn count_different(
    of: &ColumnInput,
    physical: Physical,
    facts: &Facts,
    count: &DeviceView,
    engine: &Engine,
    (stream, scope): (&Stream, &Scope),
) -> Result<bool, Failure> {
    let Some(range) = facts.range.filter(|_| physical.bounds().is_some()) else { return Ok(false) };
    let (span, low) = (range.high.saturating_sub(range.low), i64::try_from(range.low));
    let Some(low) = low.ok().filter(|_| span < MOST_BITS) else { return Ok(false) };
    let bits = DeviceBuffer::zeroed((span as usize / 64 + 1) * 8, &stream.with_scope(scope), &engine.pool);
    let bits = match bits.map_err(Failure::from) {
        Err(failure) if failure.is_out_of_memory() => return Ok(false),
        bits => bits?,
    };
    let (images, stored) = (&engine.images, Stored { physical, base: of.base });
    kernels::count_different(images, &of.values, stored, of.validity.as_ref(), low, &bits, count, facts.rows, stream)?;
    Ok(true)
}

/// Uploads a table, once pinned memory is available.
async fn upload(bytes: &[u8], engine: &Engine, stream: &Stream) -> Result<DeviceBuffer, Failure> {
    let mut staging = engine.pinned.take(HostKind::Upload, bytes.len()).await?;
    staging.write()?[..bytes.len()].copy_from_slice(bytes);
    let buffer = DeviceBuffer::new(bytes.len(), stream, &engine.pool)?;
    staging.enqueue_to_device(0..bytes.len(), buffer.as_view(), stream)?;
    Ok(buffer)
}
