//! Sort keys, and their position in the long number that encodes a row. Device side: `cuda/keys.cuh`.
//!
//! ```text
//!   [price 0..=9999 desc, NULL possible] [day 10..=40]      1 + 14 + 5 bits
//!    NULL│ 9999 - price                  │ day - 10         fields end at bit 19, 5 and 0
//! ```

use millpond_memory::DeviceView;

use crate::codegen::ir::{Physical, Range};
use crate::error::KernelError;
use crate::tune;

/// Bytes of `struct SortKey` in keys.cuh.
pub(super) const KEY_BYTES: usize = 64;
/// Alignment of `struct Keys` in keys.cuh.
pub(crate) const PARAMETER_ALIGNMENT: usize = 16;
/// Bytes of the descriptors that fit [`Layout::parameter`].
pub(super) const FEW_BYTES: usize = tune::SORT_FEW_KEYS as usize * KEY_BYTES;

/// Number of a type in `enum Kind` of keys.cuh.
pub(crate) fn kind(physical: Physical) -> u32 {
    match physical {
        Physical::Bit => 0,
        Physical::U8 => 1,
        Physical::U16 => 2,
        Physical::U32 => 3,
        Physical::U64 => 4,
        Physical::I8 => 5,
        Physical::I16 => 6,
        Physical::I32 => 7,
        Physical::I64 => 8,
        Physical::I128 => 9,
        Physical::F32 => 10,
        Physical::F64 => 11,
        Physical::View => 12,
        // `SortKey::check` refuses these types: offsets have no order.
        Physical::Text | Physical::LongText => u32::MAX,
    }
}

/// One sort key.
#[derive(Debug, Clone)]
pub struct SortKey {
    pub values: DeviceView,
    /// Type of the values. For views ([`Physical::View`]) the launch must list the buffers that they point into
    /// (`reached` of [`Sort::run`](super::Sort::run)).
    pub physical: Physical,
    /// `None`: no row is NULL.
    pub validity: Option<DeviceView>,
    /// For dictionary codes (U8, U16, U32): the rank (u32) of each code. Rows are sorted by rank.
    pub ranks: Option<DeviceView>,
    /// Proven range of the integers to be sorted (of the ranks, if present): fewer bits mean fewer passes. Values
    /// outside the range make the order wrong, but access no other memory.
    pub range: Option<Range>,
    pub descending: bool,
    pub nulls_first: bool,
}

impl SortKey {
    /// Ascending, NULLS LAST, no NULLs, any values.
    pub fn new(values: &DeviceView, physical: Physical) -> SortKey {
        let values = values.clone();
        SortKey { values, physical, validity: None, ranks: None, range: None, descending: false, nulls_first: false }
    }

    /// Number of the key's type in `enum Kind` of keys.cuh.
    fn code(&self) -> u32 {
        kind(self.physical)
    }

    /// Bytes of the values of `rows` rows.
    pub(super) fn value_bytes(&self, rows: u64) -> u64 {
        match self.physical {
            Physical::Bit => rows.div_ceil(32) * 4,
            physical => physical.value_bytes(rows),
        }
    }

    /// Base that is subtracted from the values, and the bits of the difference.
    fn low_and_bits(&self) -> (i128, u32) {
        match self.physical {
            Physical::Bit => return (0, 1),
            Physical::F32 => return (0, 32),
            Physical::F64 | Physical::View | Physical::Text | Physical::LongText => return (0, 64),
            _ => {}
        }
        let stored = if self.ranks.is_some() { Physical::U32 } else { self.physical };
        let all = stored.bounds().unwrap_or(Range { low: i128::MIN, high: i128::MAX });
        let range = match self.range {
            Some(range) if all.low <= range.low && range.low <= range.high && range.high <= all.high => range,
            _ => all,
        };
        let span = (range.high as u128).wrapping_sub(range.low as u128);
        (range.low, 128 - span.leading_zeros())
    }

    /// Returns an error for types without an order.
    pub(super) fn check(&self, what: &'static str) -> Result<(), KernelError> {
        let codes = [Physical::U8, Physical::U16, Physical::U32];
        let why = match self.physical {
            Physical::Text | Physical::LongText => "texts are sorted by their views".to_string(),
            physical if self.ranks.is_some() && !codes.contains(&physical) => {
                format!("ranks are for dictionary codes, not for {physical:?}")
            }
            _ => return Ok(()),
        };
        Err(KernelError::Shape { what, why })
    }
}

/// Positions of the keys in the number of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// Per key in the number: bits between the end of the key and the end of the number.
    positions: Vec<u32>,
    /// Bits of the number.
    pub bits: u32,
    /// Index of the first key that the leading 64 bits do not hold completely.
    pub resume: u32,
    /// True if rows with equal numbers are equal.
    pub whole: bool,
}

impl Layout {
    pub fn of(keys: &[SortKey]) -> Layout {
        // A string is encoded by its first bytes and ends the number.
        let strings = keys.iter().position(|key| key.physical == Physical::View);
        let encoded = strings.map_or(keys.len(), |at| at + 1);
        let width = |key: &SortKey| key.low_and_bits().1 + u32::from(key.validity.is_some());
        let bits = keys[..encoded].iter().map(width).sum();
        let mut left = bits;
        let mut resume = encoded as u32;
        let mut positions = Vec::with_capacity(encoded);
        for (index, key) in keys[..encoded].iter().enumerate() {
            left -= width(key);
            positions.push(left);
            if bits - left > 64 {
                resume = resume.min(index as u32);
            }
        }
        if let Some(at) = strings {
            resume = resume.min(at as u32);
        }
        Layout { positions, bits, resume, whole: strings.is_none() }
    }

    /// Number of keys in the number.
    pub fn encoded(&self) -> u32 {
        self.positions.len() as u32
    }

    /// Bit at which the leading word begins.
    pub fn leading(&self) -> u32 {
        self.bits.saturating_sub(64)
    }

    /// `struct Keys` of keys.cuh: the descriptors `few`, or the address of `many`.
    pub fn parameter(&self, few: &[u8], many: Option<&DeviceView>, count: usize) -> Vec<u8> {
        let mut bytes = few.to_vec();
        bytes.resize(FEW_BYTES, 0);
        bytes.extend(many.map_or(0, |view| view.address().0).to_le_bytes());
        for number in [count as u32, self.encoded(), self.leading(), self.resume] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(PARAMETER_ALIGNMENT), 0);
        bytes
    }

    /// Descriptors of `keys`, in the format of keys.cuh.
    pub fn descriptors(&self, keys: &[SortKey]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(keys.len() * KEY_BYTES);
        for (index, key) in keys.iter().enumerate() {
            let address = |view: &Option<DeviceView>| view.as_ref().map_or(0, |view| view.address().0);
            // A key after a string is not part of the number; it is compared as if it were encoded on its own.
            let (low, own) = key.low_and_bits();
            let position = self.positions.get(index).copied().unwrap_or(0);
            bytes.extend(key.values.address().0.to_le_bytes());
            bytes.extend(address(&key.validity).to_le_bytes());
            bytes.extend(address(&key.ranks).to_le_bytes());
            bytes.extend(0u64.to_le_bytes());
            bytes.extend(low.to_le_bytes());
            bytes.extend(key.code().to_le_bytes());
            bytes.extend((u32::from(key.descending) | u32::from(key.nulls_first) << 1).to_le_bytes());
            bytes.extend(position.to_le_bytes());
            bytes.extend(own.to_le_bytes());
        }
        bytes
    }
}
