//! A column that stays on the device: one extent of all its rows, in the width that its values need.
//!
//!   chunks, each in a width of its own ─► [ values ] [ validity ]        dictionaries sorted: a code is its rank
//!
//! Memory   promised by the governor, as long as the column is stored. Chunks are there until the last column is made of them.
//! Waits    for pinned memory, where a table of codes goes up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::compute::{sort_to_indices, take};
use datafusion::arrow::datatypes::DataType;
use millpond_kernels::codegen::ir::{MAX_TEXT_BYTES, Physical, Range, Repr, Ty};
use millpond_kernels::pipeline::ColumnInput;
use millpond_kernels::store::{self as kernels, Stored};
use millpond_memory::{DeviceBuffer, DeviceView, HostKind, Reservation, Scope, Stream};

use crate::column::dictionary::SharedDictionary;
use crate::column::facts::Facts;
use crate::column::{plain_repr, storage};
use crate::device::Engine;
use crate::program::failure::Failure;
use crate::store::Entry;

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

/// A column that stays.
#[derive(Debug)]
pub struct StoredColumn {
    /// No other column has it.
    pub number: u64,
    /// In the scan for which it was loaded.
    pub name: String,
    loaded: Instant,
    pub form: ColumnForm,
    /// The device type, with the range of its values.
    pub ty: Ty,
    pub facts: Facts,
    /// Of codes; its values are sorted.
    pub dictionary: Option<SharedDictionary>,
    values: DeviceView,
    validity: Option<DeviceView>,
    base: i64,
    pub bytes: u64,
    /// The same with what fills the pool's units.
    pub allocated: u64,
    _promise: Reservation,
    /// Runs that have read it, and when the last one began.
    pub uses: AtomicU64,
    pub last_used: AtomicU64,
}

/// Some rows of a column, on the device.
pub(super) struct Piece {
    pub values: DeviceView,
    pub validity: Option<DeviceView>,
    pub stored: Stored,
    pub facts: Facts,
}

/// A column of which all pieces are there.
pub(super) struct Whole {
    pub name: String,
    pub form: ColumnForm,
    pub data_type: DataType,
    /// In the order of the rows.
    pub pieces: Vec<Piece>,
    /// The values behind the codes of the pieces.
    pub values: Option<ArrayRef>,
}

impl Whole {
    fn facts(&self) -> Facts {
        self.pieces.iter().fold(Facts::default(), |facts, piece| facts.then(piece.facts))
    }

    /// The device type of all values.
    fn ty(&self, facts: &Facts) -> Ty {
        let codes = self.values.as_ref().map(|values| Range::new(0, values.len().max(1) as i128 - 1));
        ty_of(self.form, &self.data_type, facts.nulls > 0, codes.or(facts.range))
    }

    fn text_bytes(&self, rows: u64) -> u64 {
        let bytes = |piece: &Piece| piece.values.len() as u64 - (piece.facts.rows + 1) * 4;
        (rows + 1) * 4 + self.pieces.iter().map(bytes).sum::<u64>()
    }

    /// Bytes of values and of validity; `None` for texts that are longer than offsets reach.
    pub(super) fn sizes(&self) -> Option<(u64, u64)> {
        let facts = self.facts();
        let bitmap = facts.rows.div_ceil(32) * 4;
        let values = match storage(self.ty(&facts)).0 {
            Physical::Bit => bitmap,
            Physical::Text => self.text_bytes(facts.rows),
            physical => physical.value_bytes(facts.rows),
        };
        if self.form == ColumnForm::Text && values > u64::from(MAX_TEXT_BYTES) {
            return None;
        }
        Some((values.max(1), if facts.nulls > 0 { bitmap } else { 0 }))
    }

    /// Puts the pieces together; what is launched counts as the stream's, what stays as the scope's.
    pub(super) async fn store(
        self,
        number: u64,
        promise: Reservation,
        engine: &Engine,
        (stream, scope): (&Stream, &Scope),
    ) -> Result<StoredColumn, Failure> {
        let facts = self.facts();
        let ty = self.ty(&facts);
        let (physical, base) = storage(ty);
        let (value_bytes, validity_bytes) = self.sizes().unwrap_or_default();
        let to = Stored { physical, base };
        let mut allocated = 0;
        let mut new = |bytes: u64| {
            let buffer = DeviceBuffer::zeroed(bytes as usize, &stream.with_scope(scope), &engine.pool)?;
            allocated += buffer.allocated_bytes().as_u64();
            Ok::<_, Failure>(buffer.as_view().clone())
        };
        let values = new(value_bytes)?;
        let validity = if validity_bytes > 0 { Some(new(validity_bytes)?) } else { None };
        let (dictionary, remap) = match &self.values {
            Some(values) => {
                let (sorted, ranks) = sorted(values)?;
                (Some(sorted), Some(upload(&ranks, engine, stream).await?))
            }
            None => (None, None),
        };
        let (mut first, mut text_at) = (0_u64, (facts.rows + 1) * 4);
        for piece in &self.pieces {
            let rows = piece.facts.rows;
            match physical {
                Physical::Bit => kernels::bits(&engine.images, Some(&piece.values), &values, first, rows, stream)?,
                Physical::Text => {
                    let offsets = (rows as usize + 1) * 4;
                    let bytes = piece.values.len() - offsets;
                    let at = first as usize * 4;
                    let out = values.view(at..at + offsets)?;
                    kernels::offsets(&engine.images, &piece.values, &out, text_at as u32, rows, stream)?;
                    let to = values.view(text_at as usize..text_at as usize + bytes)?;
                    piece.values.view(offsets..offsets + bytes)?.copy_to(&to, stream)?;
                    text_at += bytes as u64;
                }
                _ => {
                    let width = u64::from(physical.width());
                    let out = values.view((first * width) as usize..((first + rows) * width) as usize)?;
                    let remap = remap.as_ref().map(DeviceBuffer::as_view);
                    kernels::values(&engine.images, &piece.values, piece.stored, remap, &out, to, rows, stream)?;
                }
            }
            if let Some(out) = &validity {
                kernels::bits(&engine.images, piece.validity.as_ref(), out, first, rows, stream)?;
            }
            first += rows;
        }
        Ok(StoredColumn {
            number,
            name: self.name,
            loaded: Instant::now(),
            form: self.form,
            ty,
            facts,
            dictionary,
            values,
            validity,
            base,
            bytes: value_bytes + validity_bytes,
            allocated,
            _promise: promise,
            uses: AtomicU64::new(0),
            last_used: AtomicU64::new(0),
        })
    }
}

impl StoredColumn {
    /// Rows `first..first + rows` as the input of a pipeline; `first` is a multiple of 32. Texts are there whole, or not at all.
    ///
    /// # Errors
    /// The memory's, for rows that are not there.
    pub fn input(&self, first: u64, rows: u64) -> Result<ColumnInput, Failure> {
        let bits = |view: &DeviceView| view.view((first / 8) as usize..((first / 32 + rows.div_ceil(32)) * 4) as usize);
        let values = match storage(self.ty).0 {
            Physical::Text => self.values.clone(),
            Physical::Bit => bits(&self.values)?,
            physical => {
                let width = u64::from(physical.width());
                self.values.view((first * width) as usize..((first + rows) * width) as usize)?
            }
        };
        Ok(ColumnInput { values, validity: self.validity.as_ref().map(bits).transpose()?, base: self.base })
    }

    /// Runs that have read it, the fewer the longer ago the last one was. A column that comes is worth 1.
    pub fn worth(&self, now: u64) -> f64 {
        let age = now.saturating_sub(self.last_used.load(Ordering::Relaxed));
        self.uses.load(Ordering::Relaxed) as f64 / (1.0 + age as f64)
    }

    /// What `millpond_cache()` lists of it.
    pub(super) fn entry(&self, table: String) -> Entry {
        let mut facts = Vec::new();
        match (self.form, self.ty.range) {
            (ColumnForm::Plain, Some(range)) => facts.push(format!("{}..={}", range.low, range.high)),
            (ColumnForm::Codes, _) => {
                let values = self.dictionary.as_ref().map_or(0, |dictionary| dictionary.lock().len());
                facts.push(format!("{values} values, sorted"));
            }
            (ColumnForm::Text, _) => facts.push("texts".to_string()),
            (ColumnForm::Plain, None) => {}
        }
        if self.facts.nulls > 0 {
            facts.push(format!("{} NULL", self.facts.nulls));
        }
        match (self.facts.is_dense(), self.facts.ascending, self.facts.sorted) {
            (true, ..) => facts.push("dense".to_string()),
            (_, true, _) => facts.push("ascending".to_string()),
            (_, _, true) => facts.push("sorted".to_string()),
            _ => {}
        }
        let physical = storage(self.ty).0;
        let width = (!matches!(physical, Physical::Text | Physical::Bit)).then(|| physical.width());
        Entry {
            table,
            column: self.name.clone(),
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

/// A dictionary of these values in their order, and the place of each in it.
fn sorted(values: &ArrayRef) -> Result<(SharedDictionary, Vec<u8>), Failure> {
    let order = sort_to_indices(values, None, None)?;
    let mut ranks = vec![0_u8; values.len().max(1) * 4];
    for (rank, at) in order.values().iter().enumerate() {
        let at = *at as usize * 4;
        ranks[at..at + 4].copy_from_slice(&(rank as u32).to_le_bytes());
    }
    let sorted = take(values, &order, None)?;
    let dictionary = SharedDictionary::new(values.len());
    dictionary.lock().codes(&sorted)?;
    Ok((dictionary, ranks))
}

/// Uploads a table, once there is pinned memory for it.
async fn upload(bytes: &[u8], engine: &Engine, stream: &Stream) -> Result<DeviceBuffer, Failure> {
    let mut staging = engine.pinned.take(HostKind::Upload, bytes.len()).await?;
    staging.write()?[..bytes.len()].copy_from_slice(bytes);
    let buffer = DeviceBuffer::new(bytes.len(), stream, &engine.pool)?;
    staging.enqueue_to_device(0..bytes.len(), buffer.as_view(), stream)?;
    Ok(buffer)
}
