//! A column of a kept table: on the device, or in host memory; there is no other copy.
//!
//!   stored column ─► group of the spiller ─┬─ lend ─► stored column: a run reads it on the device
//!                                          └─ home ─► Arrow, some rows at a time, from either memory
//!
//! Memory   its reservation moves with it: device bytes while it is on the device, host bytes while it is spilled.
//! Waits    for downloads; rows of a spilled column are read from host memory, without device memory.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{ColumnStatistics, ScalarValue, stats::Precision};
use millpond_kernels::codegen::ir::Physical;
use millpond_memory::spill::SpillState;
use millpond_memory::{ByteSize, HostKind, MemoryError, Scope, SpillHandle, Stream};

use crate::column::dictionary::SharedDictionary;
use crate::column::layout::{read_array, with_base};
use crate::column::{number_repr, text, value_type};
use crate::device::Engine;
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::store::column::{About, Held, StoredColumn};
use crate::store::entry::Entry;

/// A column of a kept table.
pub(super) struct MadeColumn {
    pub about: Arc<About>,
    data_type: DataType,
    /// All values of the dictionary, once converted to Arrow.
    texts: OnceLock<ArrayRef>,
    /// Values, and validity if there is a NULL.
    views: SpillHandle,
}

/// Columns are spilled before the data of running queries, like columns of files.
const PRIORITY: i32 = -1;
/// Polling interval for copies in flight to host memory.
const SOON: Duration = Duration::from_micros(50);
/// Divisor of the pinned memory limit that bounds a single copy.
const PINNED_SHARE: usize = 4;

/// Indices of a column's views in its spill group.
const VALUES: usize = 0;
const VALIDITY: usize = 1;

impl MadeColumn {
    /// Takes over a newly stored column for the table; `now` is the store's time.
    ///
    /// # Errors
    /// The memory's.
    pub fn new(stored: StoredColumn, data_type: DataType, now: u64, engine: &Engine) -> Result<Self, MemoryError> {
        let (about, views, held) = stored.into_parts();
        let views = match held {
            Held::Promise(promise) => engine.spiller().register_reserved(views, PRIORITY, promise)?,
            Held::Lent { .. } => engine.spiller().register(views, PRIORITY)?,
        };
        // The run that creates the column counts as a use.
        about.used(now);
        Ok(Self { about, data_type, texts: OnceLock::new(), views })
    }

    /// Lends the column to a run that begins at time `now`; it stays on the device while the result exists.
    ///
    /// # Errors
    /// Out of memory if it is spilled, or a lost device.
    pub fn lend(&self, now: u64, stream: &Stream) -> Result<StoredColumn, Failure> {
        let from = self.views.get(stream)?;
        self.about.used(now);
        StoredColumn::lent(Arc::clone(&self.about), from, self.views.bytes().as_u64())
    }

    /// Bytes currently on the device, including padding to the pool's units.
    pub fn device_bytes(&self) -> u64 {
        match self.views.state() {
            SpillState::Resident | SpillState::Moving => self.views.bytes().as_u64(),
            SpillState::Spilled | SpillState::Lost => 0,
        }
    }

    /// Spills the column to host memory, unless a run reads it or host memory is full.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn leave(&self) -> Result<ByteSize, MemoryError> {
        self.views.spill()
    }

    /// Its row in `millpond_cache()`.
    pub fn entry(&self, table: &str) -> Entry {
        let tier = match self.views.state() {
            SpillState::Resident | SpillState::Moving => "device",
            SpillState::Spilled => "host",
            SpillState::Lost => "lost",
        };
        self.about.entry(table.to_string(), tier)
    }

    /// Its statistics, which are exact.
    pub fn statistics(&self) -> ColumnStatistics {
        let mut known = ColumnStatistics::new_unknown();
        known.null_count = Precision::Exact(self.about.facts.nulls as usize);
        let scalar = |value: i128| {
            number_repr(&self.data_type)?;
            let array = read_array(&self.data_type, Physical::I128, 1, &value.to_le_bytes(), None, None).ok()?;
            ScalarValue::try_from_array(&array, 0).ok()
        };
        if let Some((low, high)) =
            self.about.facts.range.and_then(|range| Some((scalar(range.low)?, scalar(range.high)?)))
        {
            (known.min_value, known.max_value) = (Precision::Exact(low), Precision::Exact(high));
        }
        known
    }

    /// Converts rows `first..first + rows` to Arrow; `first` is a multiple of 32.
    ///
    /// # Errors
    /// The memory's; Arrow's, if texts exceed the limit of an array.
    pub async fn home(&self, first: u64, rows: u64, engine: &Engine, scope: &Scope) -> Result<ArrayRef, Failure> {
        let bits = (first / 8) as usize..(first / 8 + rows.div_ceil(8)) as usize;
        let validity = match self.about.facts.nulls {
            0 => None,
            _ => Some(self.read(VALIDITY, bits.clone(), engine, scope).await?),
        };
        let (validity, count) = (validity.as_deref(), rows as usize);
        let physical = self.about.physical();
        if matches!(physical, Physical::Text | Physical::LongText) {
            let width = u64::from(physical.width());
            let offsets = (first * width) as usize..((first + rows + 1) * width) as usize;
            let offsets = self.read(VALUES, offsets, engine, scope).await?;
            let offsets: Vec<u64> = match physical {
                Physical::Text => offsets.as_chunks::<4>().0.iter().map(|at| u32::from_le_bytes(*at).into()).collect(),
                _ => offsets.as_chunks::<8>().0.iter().map(|at| u64::from_le_bytes(*at)).collect(),
            };
            let (Some(start), Some(end)) = (offsets.first(), offsets.last()) else {
                return Err(EngineError::internal("texts have an offset more than rows").into());
            };
            let bytes = self.read(VALUES, *start as usize..*end as usize, engine, scope).await?;
            let ends: Vec<u8> = offsets[1..].iter().flat_map(|end| (end - start).to_le_bytes()).collect();
            return Ok(text::read(&self.data_type, count, &ends, &bytes, validity)?);
        }
        if physical == Physical::Bit {
            let values = self.read(VALUES, bits, engine, scope).await?;
            return Ok(read_array(&self.data_type, physical, count, &values, validity, None)?);
        }
        let width = u64::from(physical.width());
        let values = (first * width) as usize..((first + rows) * width) as usize;
        let mut values = self.read(VALUES, values, engine, scope).await?;
        let mut physical = physical;
        if self.about.base != 0 {
            (values, physical) = (with_base(physical, self.about.base, &values, count), Physical::I128);
        }
        let texts = self.about.dictionary.as_ref().map(|dictionary| self.texts_of(dictionary)).transpose()?;
        Ok(read_array(&self.data_type, physical, count, &values, validity, texts.as_ref())?)
    }

    /// Dictionary values of its codes.
    fn texts_of(&self, dictionary: &SharedDictionary) -> Result<ArrayRef, Failure> {
        if let Some(texts) = self.texts.get() {
            return Ok(texts.clone());
        }
        let texts = dictionary.lock().array(0, value_type(&self.data_type))?;
        Ok(self.texts.get_or_init(|| texts).clone())
    }

    /// Reads bytes of a view from the device or from host memory.
    async fn read(
        &self,
        view: usize,
        range: Range<usize>,
        engine: &Engine,
        scope: &Scope,
    ) -> Result<Vec<u8>, MemoryError> {
        let mut bytes = vec![0; range.len()];
        loop {
            match self.views.read_spilled(view, range.start, &mut bytes) {
                Ok(true) => return Ok(bytes),
                Ok(false) => break,
                Err(MemoryError::HostBusy(_)) => tokio::time::sleep(SOON).await,
                Err(error) => return Err(error),
            }
        }
        let stream = engine.streams.take(scope)?;
        let views = self.views.get(&stream)?;
        let most = (engine.pinned().limit().as_u64() as usize / PINNED_SHARE).max(1);
        let mut from = range.start;
        for piece in bytes.chunks_mut(most) {
            let mut staging = engine.pinned().take(HostKind::Download, piece.len()).await?;
            staging.enqueue_to_host(0..piece.len(), &views[view].view(from..from + piece.len())?, &stream)?;
            piece.copy_from_slice(&staging.idle()?.await?.read()?);
            from += piece.len();
        }
        Ok(bytes)
    }
}
