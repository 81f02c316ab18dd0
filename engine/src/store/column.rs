//! A column that stays on the device: one extent of all its rows, in the width that its values need.
//!
//!   chunks, each in a width of its own ─► [ values ] [ validity ]        dictionaries sorted: a code is its rank
//!
//! Memory   promised by the governor, as long as the column is stored. Chunks are there until the last column is made of them.
//! Waits    for pinned memory, where a table of codes goes up.

use std::ops::Deref;
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
use crate::program::failure::Failure;
use crate::store::entry::Entry;
use crate::store::kept_lookups::KeptLookups;

/// Room for lookup tables over the dictionary of a small column.
const LEAST_ROOM: u64 = 1 << 20;

/// In which form the values of a column lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnForm {
    /// Numbers, dates, times, booleans.
    Plain,
    /// Codes of a dictionary.
    Codes,
    /// Offsets and bytes.
    Text,
}

/// What is known of a column that stays, in whichever tier.
#[derive(Debug)]
pub struct About {
    /// No other column has it.
    pub number: u64,
    /// In the scan for which it was loaded.
    pub name: String,
    loaded: Instant,
    pub form: ColumnForm,
    /// The device type, with the range of its values.
    pub ty: Ty,
    pub facts: Facts,
    /// How many different integers there are, if that is known; found once the column is stored.
    pub(super) distinct: OnceLock<Option<u64>>,
    /// Of codes; its values are sorted.
    pub dictionary: Option<SharedDictionary>,
    pub(super) base: i64,
    /// Its texts are so many bytes that offsets have 64 bits.
    pub long: bool,
    /// Its rows, file by file.
    parts: Vec<Part>,
    pub bytes: u64,
    /// Runs that have read it, and when the last one began.
    pub uses: AtomicU64,
    pub last_used: AtomicU64,
}

/// A column that stays, on the device.
#[derive(Debug)]
pub struct StoredColumn {
    pub(super) about: Arc<About>,
    values: DeviceView,
    validity: Option<DeviceView>,
    /// Its bytes with what fills the pool's units.
    allocated: u64,
    /// Over its dictionary.
    pub(super) lookups: KeptLookups,
    held: Held,
}

/// What keeps a column's bytes on the device.
#[derive(Debug)]
pub(super) enum Held {
    /// They were promised.
    Promise(Reservation),
    /// They are lent by who has them.
    Lent { _from: Resident },
}

impl Deref for StoredColumn {
    type Target = About;

    fn deref(&self) -> &About {
        &self.about
    }
}

/// The rows of one file in a column.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    facts: Facts,
    text_bytes: u64,
}

/// Some rows of a column, on the device.
#[derive(Debug)]
pub(super) struct Piece {
    /// Of texts, their offsets.
    pub values: DeviceView,
    pub texts: Option<DeviceView>,
    pub validity: Option<DeviceView>,
    /// Bits of earlier rows in the first word of what lies in bits.
    pub bits_before: u32,
    pub stored: Stored,
    pub facts: Facts,
    /// The file of the table.
    pub file: usize,
    /// Whose codes they are, of the column's [`dictionaries`](Whole::dictionaries).
    pub dictionary: usize,
}

/// A column of which all pieces are there.
pub(super) struct Whole {
    pub name: String,
    pub form: ColumnForm,
    pub data_type: DataType,
    /// Files of the table.
    pub files: usize,
    /// In the order of the rows.
    pub pieces: Vec<Piece>,
    /// The values behind the codes of the pieces.
    pub dictionaries: Option<Merged>,
}

/// Dictionaries as one.
#[derive(Debug)]
pub(super) struct Merged {
    sorted: SharedDictionary,
    /// Of each dictionary, the place of each of its values in that one: 32-bit numbers.
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

    /// Rows of each file.
    pub(super) fn rows(&self) -> Vec<u64> {
        self.parts().iter().map(|part| part.facts.rows).collect()
    }

    /// What it takes to read it.
    pub(super) fn effort(&self) -> u64 {
        effort(self.form, self.facts().rows)
    }

    /// The device type of all values.
    fn ty(&self, facts: &Facts) -> Ty {
        let codes = self.dictionaries.as_ref().map(|of| Range::new(0, of.len().max(1) as i128 - 1));
        ty_of(self.form, &self.data_type, facts.nulls > 0, codes.or(facts.range))
    }

    /// Bytes of offsets, one more than rows, and of texts.
    fn text_bytes(&self, physical: Physical) -> u64 {
        let bytes: u64 = self.pieces.iter().map(Piece::text_bytes).sum();
        (self.facts().rows + 1) * u64::from(physical.width()) + bytes
    }

    /// How its values lie, with what is subtracted from each. Texts of more than `short_text` bytes with their offsets have long ones.
    fn storage(&self, short_text: u64) -> (Physical, i64) {
        match storage(self.ty(&self.facts())) {
            (Physical::Text, base) if self.text_bytes(Physical::Text) > short_text => (Physical::LongText, base),
            short => short,
        }
    }

    /// Bytes of values and of validity.
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

    /// Puts the pieces together. Where different integers have to be counted, `count`, 8 bytes of zeros, will have the number, and nothing is
    /// known of it before [`About::count_is`] is told. What is launched counts as the stream's, what stays as the scope's. `short_text` as in
    /// [`sizes`](Self::sizes).
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
    /// A column that comes back from the host: its values, and its validity where it has one.
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

    /// A column that is lent: its values, and its validity where it has one.
    ///
    /// # Errors
    /// An internal one, for a column without values.
    pub(super) fn lent(about: Arc<About>, from: Resident, allocated: u64) -> Result<Self, Failure> {
        let mut views = from.iter().cloned();
        let values = views.next().ok_or_else(|| EngineError::internal("a column has values"))?;
        let validity = views.next();
        let held = Held::Lent { _from: from };
        Ok(Self { about, values, validity, allocated, lookups: KeptLookups::default(), held })
    }

    /// What is known of it, its views, and what was promised for them.
    pub(super) fn into_parts(self) -> (Arc<About>, Vec<DeviceView>, Held) {
        let views = std::iter::once(self.values).chain(self.validity).collect();
        (self.about, views, self.held)
    }

    /// Its values, and its validity where it has one.
    pub(super) fn views(&self) -> impl Iterator<Item = &DeviceView> {
        [&self.values].into_iter().chain(&self.validity)
    }

    /// Rows `first..first + rows` as the input of a pipeline; `first` is a multiple of 32. Texts are there whole, or not at all.
    ///
    /// # Errors
    /// The memory's, for rows that are not there.
    pub fn input(&self, first: u64, rows: u64) -> Result<ColumnInput, Failure> {
        let bits = |view: &DeviceView| view.view((first / 8) as usize..((first / 32 + rows.div_ceil(32)) * 4) as usize);
        let values = match self.physical() {
            Physical::Text | Physical::LongText => self.values.clone(),
            Physical::Bit => bits(&self.values)?,
            physical => {
                let width = u64::from(physical.width());
                self.values.view((first * width) as usize..((first + rows) * width) as usize)?
            }
        };
        Ok(ColumnInput { values, validity: self.validity.as_ref().map(bits).transpose()?, base: self.base })
    }

    /// What it holds on the device, lookup tables included.
    pub fn held_bytes(&self) -> u64 {
        self.bytes + self.lookups.bytes()
    }

    /// The same as the pool counts it, with what fills its units.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated + self.lookups.allocated_bytes()
    }

    /// Lookup tables may take as much as it takes itself; a small one's may take more.
    pub(super) fn room_for_lookups(&self) -> u64 {
        self.bytes.max(LEAST_ROOM)
    }

    /// The rows of its file `from`, to become those of file `file` in another column, where their dictionary is number `dictionary`.
    ///
    /// # Errors
    /// The memory's, for rows that are not there.
    pub(super) fn piece(&self, from: usize, file: usize, dictionary: usize) -> Result<Piece, Failure> {
        let (before, part) = (&self.parts[..from], self.parts[from]);
        let first: u64 = before.iter().map(|part| part.facts.rows).sum();
        let end = first + part.facts.rows;
        let bits = |view: &DeviceView| view.view((first / 32 * 4) as usize..(end.div_ceil(32) * 4) as usize);
        let physical = self.physical();
        let width = u64::from(physical.width());
        let mut texts = None;
        let values = match physical {
            Physical::Bit => bits(&self.values)?,
            Physical::Text | Physical::LongText => {
                let start = (self.facts.rows + 1) * width + before.iter().map(|part| part.text_bytes).sum::<u64>();
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
            stored: Stored { physical, base: self.base },
            facts: part.facts,
            file,
            dictionary,
        })
    }

    /// Rows of its file `file`.
    pub(super) fn rows_of(&self, file: usize) -> u64 {
        self.parts[file].facts.rows
    }
}

impl About {
    /// What its staying saves for each of its bytes: runs that have read it, the fewer the longer ago the last one was, times what it takes
    /// to read it again.
    pub fn worth(&self, now: u64) -> f64 {
        let age = now.saturating_sub(self.last_used.load(Ordering::Relaxed));
        let often = self.uses.load(Ordering::Relaxed) as f64 / (1.0 + age as f64);
        often * self.worth_when_new()
    }

    /// The same of a column that comes, which counts as read once.
    pub fn worth_when_new(&self) -> f64 {
        self.effort() as f64 / self.bytes.max(1) as f64
    }

    /// How its values lie.
    pub(super) fn physical(&self) -> Physical {
        if self.long { Physical::LongText } else { storage(self.ty).0 }
    }

    /// Its different integers are still counted.
    pub(super) fn is_counting(&self) -> bool {
        self.distinct.get().is_none()
    }

    /// They are so many.
    pub(super) fn count_is(&self, different: u64) {
        self.distinct.get_or_init(|| Some(different));
    }

    /// How many different integers it has, if that is known.
    fn distinct(&self) -> Option<u64> {
        self.distinct.get().copied().flatten()
    }

    /// How many different values it has, if that is known; NULL is none of them.
    pub fn different(&self) -> Option<u64> {
        let values = |dictionary: &SharedDictionary| dictionary.lock().len() as u64;
        self.distinct().or_else(|| self.dictionary.as_ref().map(values))
    }

    /// No two of its rows have the same integer, and none is NULL.
    pub fn is_unique(&self) -> bool {
        self.facts.nulls == 0 && self.distinct() == Some(self.facts.rows)
    }

    /// What it takes to read it.
    pub(super) fn effort(&self) -> u64 {
        effort(self.form, self.facts.rows)
    }

    /// What `millpond_cache()` lists of it.
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

    /// A run reads it at moment `now`.
    pub fn used(&self, now: u64) {
        self.uses.fetch_add(1, Ordering::Relaxed);
        self.last_used.fetch_max(now, Ordering::Relaxed);
    }
}

/// What it takes to read so many values: a string is decoded, hashed and compared.
fn effort(form: ColumnForm, rows: u64) -> u64 {
    match form {
        ColumnForm::Plain => rows,
        ColumnForm::Codes | ColumnForm::Text => 4 * rows,
    }
}

/// The device type of values in such a form and range. Of no integers at all the range is that of 0.
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

/// Bytes of values that are merged: an array of them has 32-bit offsets.
const MOST_BYTES: usize = 1 << 30;

impl Merged {
    /// The values of all dictionaries, arrays of binaries, in their order; `None` if they are too many bytes for one.
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
            // Equal values are neighbours.
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
            // What lies below a NULL is code 0, also where there is no value.
            ranks.push(if own.is_empty() { vec![0; 4] } else { bytes.collect() });
            rest = behind;
        }
        Ok(Some(Self { sorted, ranks }))
    }

    /// A dictionary whose codes stay as they are.
    pub(super) fn complete(sorted: SharedDictionary) -> Self {
        Self { sorted, ranks: vec![] }
    }

    /// Values.
    pub(super) fn len(&self) -> usize {
        self.sorted.lock().len()
    }
}

/// Bits with which the different integers of a column are counted, at most.
const MOST_BITS: i128 = 1 << 23;

/// Counts how many different integers a column has, where their range takes no more than a mebibyte of bits; false where it takes more.
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

/// Uploads a table, once there is pinned memory for it.
async fn upload(bytes: &[u8], engine: &Engine, stream: &Stream) -> Result<DeviceBuffer, Failure> {
    let mut staging = engine.pinned.take(HostKind::Upload, bytes.len()).await?;
    staging.write()?[..bytes.len()].copy_from_slice(bytes);
    let buffer = DeviceBuffer::new(bytes.len(), stream, &engine.pool)?;
    staging.enqueue_to_device(0..bytes.len(), buffer.as_view(), stream)?;
    Ok(buffer)
}
