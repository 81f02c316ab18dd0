//! An append-only dictionary: strings to codes, in order of first appearance; nested values by their row-format bytes.
//!
//!   bytes   A I R F O B M A I L        ends   3 6 10        slots   [ – | tag 1 | – | tag 0 | tag 2 | – … ]
//!   view ─► seen before? ── yes ─► code                     one lookup in a small table of views
//!                        └─ no ──► hash ─► slot ─► bytes    linear probing, at most half full
//!
//! Views    a view of a string of up to 12 bytes contains the string; a longer view has a meaning only within its own
//!          array, where equal views are equal strings. Pages with a Parquet dictionary repeat many views.
//! Memory   the bytes once, plus 16 to 40 bytes per value; at most 1 GiB of bytes.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, StringArray, UInt32Array, UInt32Builder, downcast_dictionary_array,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, UInt32Type};
use datafusion::error::Result;

use crate::column::{is_characters, is_nested, nested, packed};
use crate::error::EngineError;
use crate::error::failure::Failure;

/// An append-only dictionary.
#[derive(Debug)]
pub(crate) struct Interner {
    bytes: Vec<u8>,
    /// End offset of each value.
    ends: Vec<usize>,
    /// Hash table; its size is a power of two, or zero while there is no value.
    slots: Vec<Slot>,
    /// Recently used views and their codes, each at the position of its hash.
    seen: Vec<Seen>,
    /// Number of arrays so far.
    arrays: u64,
    /// Maximum number of values.
    most: usize,
}

/// A value, with part of its hash.
#[derive(Debug, Clone, Copy)]
struct Slot {
    tag: u32,
    code: u32,
}

/// Code of an empty slot: no dictionary has this many values.
const EMPTY: Slot = Slot { tag: 0, code: u32::MAX };

/// A view and its code.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    view: u128,
    /// Number of the array that the view belongs to, from 1; 0 for an empty entry.
    array: u64,
    code: u32,
}

/// Number of cached views, a power of two. Six times as fast as hashing for columns with few values, and as fast for
/// others.
const SEEN: usize = 1 << 10;
/// Maximum length of a string that is stored in its view.
const INLINE_BYTES: usize = 12;
/// Maximum bytes of all values: an array of them has 32-bit offsets.
const MOST_BYTES: usize = 1 << 30;

/// View of a short string.
fn inline_view(value: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    bytes[0] = value.len() as u8;
    bytes[4..4 + value.len()].copy_from_slice(value);
    u128::from_le_bytes(bytes)
}

/// Hash of bytes, eight per step: exclusive or, multiply, shift. Fast, but not resistant to an adversary.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, word: u64| {
        let mixed = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 29)
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = (bytes.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for word in words {
        hash = step(hash, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    hash = step(hash, u64::from_le_bytes(last)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 32)
}

impl Interner {
    /// Empty interner for at most `most` values.
    pub fn new(most: usize) -> Self {
        Self { bytes: vec![], ends: vec![], slots: vec![], seen: vec![], arrays: 0, most }
    }

    /// Raises the maximum number of values to `most`.
    pub fn allow(&mut self, most: usize) {
        self.most = most;
    }

    /// Number of values so far.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all values.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// True when another value may not fit.
    pub fn is_full(&self) -> bool {
        self.len() >= self.most || self.bytes.len() > MOST_BYTES / 2
    }

    fn value(&self, code: usize) -> &[u8] {
        let start = if code == 0 { 0 } else { self.ends[code - 1] };
        &self.bytes[start..self.ends[code]]
    }

    /// Slot of the value, or the free slot for it.
    fn find(&self, value: &[u8], hash: u64) -> usize {
        let (mask, tag) = (self.slots.len() - 1, (hash >> 32) as u32);
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.code == EMPTY.code || (slot.tag == tag && self.value(slot.code as usize) == value) {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    fn code(&mut self, value: &[u8]) -> Result<u32, Failure> {
        if self.len() * 2 >= self.slots.len() {
            self.grow();
        }
        let hash = hash(value);
        let at = self.find(value, hash);
        if self.slots[at].code != EMPTY.code {
            return Ok(self.slots[at].code);
        }
        if self.len() >= self.most || self.bytes.len() + value.len() > MOST_BYTES {
            let (values, most) = (self.len(), self.most);
            return Err(Failure::trouble(match values < most {
                true => format!("the {values} different values of a dictionary take {} bytes", self.bytes.len()),
                false => format!("a dictionary has more than {most} different values"),
            }));
        }
        let code = self.len() as u32;
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len());
        self.slots[at] = Slot { tag: (hash >> 32) as u32, code };
        Ok(code)
    }

    fn grow(&mut self) {
        let slots = (self.slots.len() * 4).max(64);
        self.slots.clear();
        self.slots.resize(slots, EMPTY);
        for code in 0..self.len() {
            let hash = hash(self.value(code));
            let mut at = hash as usize & (slots - 1);
            while self.slots[at].code != EMPTY.code {
                at = (at + 1) & (slots - 1);
            }
            self.slots[at] = Slot { tag: (hash >> 32) as u32, code: code as u32 };
        }
    }

    /// Code of the string that `view` represents.
    fn seen<'v>(&mut self, view: u128, value: impl FnOnce() -> &'v [u8]) -> Result<u32, Failure> {
        let folded = (view as u64 ^ (view >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (folded >> (64 - SEEN.trailing_zeros())) as usize;
        let Seen { view: known, array, code } = self.seen[place];
        if known == view && array != 0 && (array == self.arrays || view as u32 as usize <= INLINE_BYTES) {
            return Ok(code);
        }
        let code = self.code(value())?;
        self.seen[place] = Seen { view, array: self.arrays, code };
        Ok(code)
    }

    /// Codes of an array of strings, bytes or nested values; NULL where the array is NULL.
    pub fn codes(&mut self, array: &ArrayRef) -> Result<UInt32Array, Failure> {
        let array = match array.data_type() {
            DataType::Dictionary(..) => return self.dictionary_codes(array),
            DataType::Utf8 => cast(array, &DataType::Binary)?,
            DataType::LargeUtf8 => cast(array, &DataType::LargeBinary)?,
            DataType::Utf8View => cast(array, &DataType::BinaryView)?,
            DataType::FixedSizeBinary(_) => cast(array, &DataType::Binary)?,
            DataType::RunEndEncoded(_, values) => return self.codes(&cast(array, values.data_type())?),
            of if is_nested(of) => return self.nested_codes(array),
            _ => Arc::clone(array),
        };
        self.seen.resize(SEEN, Seen::default());
        self.arrays += 1;
        let mut codes: Vec<u32> = Vec::with_capacity(array.len());
        macro_rules! each {
            ($values:expr) => {
                for value in $values.iter() {
                    codes.push(match value {
                        Some(value) if value.len() <= INLINE_BYTES => self.seen(inline_view(value), || value)?,
                        Some(value) => self.code(value)?,
                        None => 0,
                    });
                }
            };
        }
        match array.data_type() {
            DataType::Binary => each!(array.as_binary::<i32>()),
            DataType::LargeBinary => each!(array.as_binary::<i64>()),
            DataType::BinaryView => {
                let strings = array.as_binary_view();
                for (row, view) in strings.views().iter().enumerate() {
                    codes.push(match strings.is_valid(row) {
                        true => self.seen(*view, || strings.value(row))?,
                        false => 0,
                    });
                }
            }
            other => return Err(EngineError::internal(format!("{other} is no string")).into()),
        }
        Ok(UInt32Array::new(codes.into(), array.logical_nulls()))
    }

    /// Codes of lists, structures or maps, by their bytes in Arrow's row format.
    fn nested_codes(&mut self, array: &ArrayRef) -> Result<UInt32Array, Failure> {
        let (rows, nulls) = (nested::rows(array)?, array.logical_nulls());
        let mut codes: Vec<u32> = Vec::with_capacity(array.len());
        for (row, value) in rows.iter().enumerate() {
            let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
            codes.push(if is_null { 0 } else { self.code(value.data())? });
        }
        Ok(UInt32Array::new(codes.into(), nulls))
    }

    fn dictionary_codes(&mut self, array: &ArrayRef) -> Result<UInt32Array, Failure> {
        let array: &dyn Array = array.as_ref();
        let (values, keys) = downcast_dictionary_array!(
            array => (Arc::clone(array.values()), cast(array.keys(), &DataType::UInt32)?),
            other => return Err(EngineError::internal(format!("{other} is no dictionary")).into())
        );
        let codes = self.codes(&values)?;
        let keys = keys.as_primitive::<UInt32Type>();
        let mut mapped = UInt32Builder::with_capacity(keys.len());
        for key in keys.iter() {
            mapped.append_option(key.and_then(|key| codes.is_valid(key as usize).then(|| codes.value(key as usize))));
        }
        Ok(mapped.finish())
    }

    /// Values from code `from` on, as an array of `data_type`.
    pub fn array(&self, from: usize, data_type: &DataType) -> Result<ArrayRef> {
        if is_nested(data_type) {
            return nested::array((from..self.len()).map(|code| self.value(code)), data_type);
        }
        let binary = BinaryArray::from_iter((from..self.len()).map(|code| Some(self.value(code))));
        let plain: ArrayRef = match is_characters(data_type) {
            // The bytes come from strings, so this check cannot fail; it is linear in the dictionary, not in the rows.
            true => Arc::new(StringArray::try_from_binary(binary)?),
            false => Arc::new(binary),
        };
        packed(plain, data_type)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{DictionaryArray, StringViewArray};
    use datafusion::arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn views_of_other_arrays_are_other_strings() {
        let mut interner = Interner::new(100);
        // Equal views in both arrays: equal length, prefix and offset. A short string is stored in its view.
        let one: ArrayRef =
            Arc::new(StringViewArray::from(vec![Some("a long string, one"), Some("b"), None, Some("")]));
        let two: ArrayRef = Arc::new(StringViewArray::from(vec![Some("a long string, two"), Some("b"), Some("")]));
        let again: ArrayRef = Arc::new(StringArray::from(vec![Some("b"), Some("a long string, one"), None]));
        let codes = |interner: &mut Interner, array: &ArrayRef| -> Vec<Option<u32>> {
            interner.codes(array).expect("few values").iter().collect()
        };
        assert_eq!(codes(&mut interner, &one), [Some(0), Some(1), None, Some(2)]);
        assert_eq!(codes(&mut interner, &two), [Some(3), Some(1), Some(2)]);
        assert_eq!(codes(&mut interner, &again), [Some(1), Some(0), None]);
        assert_eq!(codes(&mut interner, &one.slice(1, 2)), [Some(1), None]);
    }

    #[test]
    fn many_values_keep_their_codes() {
        let mut interner = Interner::new(10_000);
        let value = |i: usize| format!("{}{i}", "v".repeat(i % 40));
        let array: ArrayRef = Arc::new((0..10_000).map(|i| Some(value(i))).collect::<StringViewArray>());
        let codes = interner.codes(&array).expect("as many as are allowed");
        assert_eq!(codes.values().to_vec(), (0..10_000).collect::<Vec<u32>>());
        assert_eq!(interner.codes(&array).expect("none is new"), codes);
        assert_eq!((interner.len(), interner.is_full()), (10_000, true));
        let back = interner.array(9_998, &DataType::Utf8View).expect("an array");
        assert_eq!(back.as_string_view().iter().collect::<Vec<_>>(), [Some(&*value(9_998)), Some(&*value(9_999))]);
        let one: ArrayRef = Arc::new(StringArray::from(vec!["another"]));
        assert!(interner.codes(&one).is_err());
        interner.allow(10_001);
        assert_eq!(interner.codes(&one).expect("it may").values().to_vec(), [10_000]);
    }

    #[test]
    fn a_key_of_a_dictionary_gives_the_code_of_its_value() {
        let mut interner = Interner::new(100);
        let array: ArrayRef = Arc::new(
            vec![Some("b"), None, Some("a"), Some("b"), Some("b")].into_iter().collect::<DictionaryArray<Int32Type>>(),
        );
        let codes: Vec<Option<u32>> = interner.codes(&array).expect("few values").iter().collect();
        assert_eq!(codes, [Some(0), None, Some(1), Some(0), Some(0)]);
        assert_eq!(interner.len(), 2);
    }
}
