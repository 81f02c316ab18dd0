//! Classifies a column by its first rows: whether a dictionary pays, and whether its integers are sorted.
//!
//! ```text
//!   3 3 4 4 9 …      few values, sorted     ► dictionary, unless nearly each value is new
//!   1 2 3 4 5 …      many values, sorted    ► DELTA_BINARY_PACKED
//!   "a quick fox" …  many values            ► no dictionary
//! ```
//!
//! Later rows may be different. A dictionary that they overflow is found by the writer; integers that are no longer
//! sorted take more bytes and stay right.

use std::collections::HashSet;

use parquet::basic::Type as Physical;
use parquet::data_type::AsBytes;

use super::layout::{DICTIONARY_BYTES, Hint};

/// Distinct values × this may not be more than the values: else a dictionary saves nothing.
const LEAST_USES: usize = 2;
/// Sorted integers with fewer uses of each value are keys: their differences are smaller than codes and a dictionary.
const MOST_USES_OF_KEY: usize = 16;

/// Statistics of the values seen.
pub(super) struct Probe<V> {
    is_integer: bool,
    /// False of Booleans, which have no dictionary.
    has_dictionary: bool,
    /// Bytes that a dictionary needs for each value beside its own.
    entry_bytes: usize,
    distinct: HashSet<Box<[u8]>>,
    dictionary_bytes: usize,
    values: usize,
    is_sorted: bool,
    last: Option<V>,
}

impl<V: AsBytes + PartialOrd + Clone> Probe<V> {
    /// A probe of values of that type.
    pub(super) fn new(physical: Physical) -> Self {
        let is_integer = matches!(physical, Physical::INT32 | Physical::INT64);
        Self {
            is_integer,
            has_dictionary: physical != Physical::BOOLEAN,
            entry_bytes: if physical == Physical::BYTE_ARRAY { 4 } else { 0 },
            distinct: HashSet::new(),
            dictionary_bytes: 0,
            values: 0,
            is_sorted: is_integer,
            last: None,
        }
    }

    /// Looks at more values, those of the next rows; `is_whole` if each row has one. Returns false once more would
    /// change nothing.
    pub(super) fn see(&mut self, values: &[V], is_whole: bool) -> bool {
        self.is_sorted &= is_whole;
        for value in values {
            self.values += 1;
            if self.is_sorted {
                self.is_sorted = self.last.as_ref().is_none_or(|last| last <= value);
                if self.last.as_ref() == Some(value) {
                    continue;
                }
                self.last = Some(value.clone());
            }
            let bytes = value.as_bytes();
            if self.is_small() && !self.distinct.contains(bytes) {
                self.distinct.insert(bytes.into());
                self.dictionary_bytes += self.entry_bytes + bytes.len();
            }
        }
        self.has_dictionary && (self.is_small() || self.is_sorted)
    }

    fn is_small(&self) -> bool {
        self.dictionary_bytes < DICTIONARY_BYTES
    }

    pub(super) fn hint(&self) -> Hint {
        let distinct = self.distinct.len();
        // Values are not counted any more once there are too many.
        let is_key =
            self.is_integer && self.is_sorted && (!self.is_small() || distinct * MOST_USES_OF_KEY >= self.values);
        let is_few = self.has_dictionary && self.is_small() && distinct * LEAST_USES <= self.values;
        Hint { dictionary: Some(is_few && !is_key), sorted: is_key, ..Hint::default() }
    }
}

#[cfg(test)]
mod tests {
    use parquet::data_type::ByteArray;

    use super::*;

    fn hint<V: AsBytes + PartialOrd + Clone>(
        physical: Physical,
        values: Vec<V>,
        is_whole: bool,
    ) -> (Option<bool>, bool) {
        let mut probe = Probe::new(physical);
        probe.see(&values, is_whole);
        let hint = probe.hint();
        (hint.dictionary, hint.sorted)
    }

    #[test]
    fn values_choose_the_encoding() {
        let numbers = |value: fn(i64) -> i64| hint(Physical::INT64, (0..300_000).map(value).collect(), true);
        assert_eq!(numbers(|i| i), (Some(false), true), "a key");
        assert_eq!(numbers(|i| i / 4), (Some(false), true), "a key with repeats");
        assert_eq!(numbers(|i| i / 1_000), (Some(true), false), "few values, sorted");
        assert_eq!(numbers(|i| i % 7), (Some(true), false), "few values");
        assert_eq!(numbers(|i| i * 7_919 % 300_007), (Some(false), false), "many values");
        assert_eq!(
            hint(Physical::INT64, (0..1_000_i64).collect(), false),
            (Some(false), false),
            "NULLs are not sorted"
        );
        let texts = |value: fn(u32) -> String| {
            let values = (0..50_000).map(|i| ByteArray::from(value(i).into_bytes()));
            hint(Physical::BYTE_ARRAY, values.collect(), true)
        };
        assert_eq!(texts(|i| format!("shop {}", i % 99)), (Some(true), false));
        assert_eq!(texts(|i| format!("order number {i}")), (Some(false), false));
        assert_eq!(hint(Physical::DOUBLE, (0..1_000).map(f64::from).collect(), true), (Some(false), false));
        assert_eq!(hint(Physical::BOOLEAN, vec![true; 1_000], true), (Some(false), false));
    }
}
