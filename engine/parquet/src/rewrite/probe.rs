//! Finds out what a column is like from its first rows: whether a dictionary pays, and whether its integers are sorted.
//!
//! ```text
//!   3 3 4 4 9 …      few values, sorted     ► dictionary, unless nearly each value is new
//!   1 2 3 4 5 …      many values, sorted    ► DELTA_BINARY_PACKED
//!   "a quick fox" …  many values            ► no dictionary
//! ```
//!
//! Later rows may be different. A dictionary that they overflow is found by the writer; integers that are no longer sorted take
//! more bytes and stay right.

use std::collections::HashSet;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};

use super::layout::{DICTIONARY_BYTES, Hint};

/// Distinct values × this may not be more than the values: else a dictionary saves nothing.
const LEAST_USES: usize = 2;
/// Sorted integers with fewer uses of each value are keys: their differences are smaller than codes and a dictionary.
const MOST_USES_OF_KEY: usize = 16;

/// Collects what rows show.
pub(super) struct Probe {
    converter: RowConverter,
    is_integer: bool,
    /// Bytes that a dictionary needs for each value beside its own, and of values of fixed width.
    entry_bytes: usize,
    fixed_bytes: Option<usize>,
    distinct: HashSet<Box<[u8]>>,
    dictionary_bytes: usize,
    values: usize,
    is_sorted: bool,
    last: Option<Box<[u8]>>,
}

impl Probe {
    /// A probe of a flat column; `None` of other types.
    pub(super) fn new(data_type: &DataType) -> Option<Self> {
        let values = match data_type {
            DataType::Dictionary(_, values) => values.as_ref(),
            other => other,
        };
        if values.is_nested() || matches!(values, DataType::Boolean | DataType::Null) {
            return None;
        }
        let is_integer = values.is_integer() || values.is_temporal() || is_short_decimal(values);
        let fixed_bytes = match values {
            DataType::FixedSizeBinary(bytes) => usize::try_from(*bytes).ok(),
            other => other.primitive_width(),
        };
        Some(Self {
            converter: RowConverter::new(vec![SortField::new(data_type.clone())]).ok()?,
            is_integer,
            entry_bytes: if fixed_bytes.is_some() { 0 } else { 4 },
            fixed_bytes,
            distinct: HashSet::new(),
            dictionary_bytes: 0,
            values: 0,
            is_sorted: is_integer,
            last: None,
        })
    }

    /// Looks at more rows. Returns false once more rows would change nothing.
    pub(super) fn see(&mut self, array: &ArrayRef) -> Result<bool, ArrowError> {
        let rows = self.converter.convert_columns(std::slice::from_ref(array))?;
        let nulls = array.logical_nulls();
        self.is_sorted &= nulls.as_ref().is_none_or(|nulls| nulls.null_count() == 0);
        for (index, row) in rows.iter().enumerate() {
            if nulls.as_ref().is_some_and(|nulls| nulls.is_null(index)) {
                continue;
            }
            let row = row.as_ref();
            self.values += 1;
            if self.is_sorted {
                let is_next = self.last.as_deref().is_none_or(|last| last <= row);
                self.is_sorted = is_next;
                if self.last.as_deref() == Some(row) {
                    continue;
                }
                self.last = Some(row.into());
            }
            if self.is_small() && !self.distinct.contains(row) {
                self.distinct.insert(row.into());
                // A row has a byte or more around its value, so this is never too little.
                self.dictionary_bytes += self.entry_bytes + self.fixed_bytes.unwrap_or(row.len());
            }
        }
        Ok(self.is_small() || self.is_sorted)
    }

    fn is_small(&self) -> bool {
        self.dictionary_bytes < DICTIONARY_BYTES
    }

    pub(super) fn hint(&self) -> Hint {
        let distinct = self.distinct.len();
        // Values are not counted any more once there are too many.
        let is_key =
            self.is_integer && self.is_sorted && (!self.is_small() || distinct * MOST_USES_OF_KEY >= self.values);
        let is_few = self.is_small() && distinct * LEAST_USES <= self.values;
        Hint { dictionary: Some(is_few && !is_key), sorted: is_key, bloom_filter: false }
    }
}

/// Decimals that are stored as integers.
fn is_short_decimal(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Decimal32(precision, _) | DataType::Decimal64(precision, _) | DataType::Decimal128(precision, _)
            if *precision <= 18
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int64Array, StringArray};

    use super::*;

    fn hint(array: ArrayRef) -> (Option<bool>, bool) {
        let mut probe = Probe::new(array.data_type()).unwrap();
        probe.see(&array).unwrap();
        let hint = probe.hint();
        (hint.dictionary, hint.sorted)
    }

    #[test]
    fn values_choose_the_encoding() {
        let numbers = |value: fn(i64) -> i64| Arc::new(Int64Array::from_iter_values((0..300_000).map(value)));
        assert_eq!(hint(numbers(|i| i)), (Some(false), true), "a key");
        assert_eq!(hint(numbers(|i| i / 4)), (Some(false), true), "a key with repeats");
        assert_eq!(hint(numbers(|i| i / 1_000)), (Some(true), false), "few values, sorted");
        assert_eq!(hint(numbers(|i| i % 7)), (Some(true), false), "few values");
        assert_eq!(hint(numbers(|i| i * 7_919 % 300_007)), (Some(false), false), "many values");
        let some = Int64Array::from_iter((0..1_000).map(|i| (i % 2 == 0).then_some(i)));
        assert_eq!(hint(Arc::new(some)), (Some(false), false), "NULLs are not sorted");
        let text = |value: fn(u32) -> String| Arc::new(StringArray::from_iter_values((0..50_000).map(value)));
        assert_eq!(hint(text(|i| format!("shop {}", i % 99))), (Some(true), false));
        assert_eq!(hint(text(|i| format!("order number {i}"))), (Some(false), false));
        assert_eq!(hint(Arc::new(Float64Array::from_iter_values((0..1_000).map(f64::from)))), (Some(false), false));
    }
}
