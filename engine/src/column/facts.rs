//! Facts about a column's values: collected chunk by chunk while the values are converted, then merged.
//!
//!   chunk 0   3 4 7    range 3..=7  sorted  strictly ─┐
//!   chunk 1   7 9      range 7..=9  sorted  strictly ─┴─► 3 4 7 7 9    range 3..=9  sorted

use datafusion::arrow::array::types::*;
use datafusion::arrow::array::{Array, ArrayRef, ArrowPrimitiveType};
use datafusion::arrow::datatypes::{DataType, IntervalUnit, TimeUnit};
use datafusion::error::Result;
use millpond_kernels::codegen::ir::Range;

use crate::column::layout::{Narrow, by_type, primitive, stored};

/// Facts about consecutive rows of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub rows: u64,
    pub nulls: u64,
    /// Range of the valid values, if they are integers on the device.
    pub range: Option<Range>,
    /// No integer is smaller than its predecessor, and none is NULL.
    pub sorted: bool,
    /// `sorted`, and no integer is equal to its predecessor.
    pub ascending: bool,
    /// Number of distinct integers while they are sorted.
    steps: u64,
    /// First and last integer while they are sorted.
    ends: Option<(i128, i128)>,
}

impl Default for Facts {
    /// Facts about zero rows.
    fn default() -> Self {
        Self { rows: 0, nulls: 0, range: None, sorted: true, ascending: true, steps: 0, ends: None }
    }
}

impl Facts {
    /// Facts about rows of which only the NULL count is known: floats, booleans, strings.
    pub fn of_others(rows: u64, nulls: u64) -> Self {
        Self { rows, nulls, range: None, sorted: false, ascending: false, steps: 0, ends: None }
    }

    /// Facts about dictionary codes of at most `most`.
    pub fn of_codes(rows: u64, nulls: u64, most: u32) -> Self {
        Self { range: Some(Range::new(0, i128::from(most))), ..Self::of_others(rows, nulls) }
    }

    /// Facts as a decoder found them: rows, NULLs and range; whether the values are sorted and ascending, and the
    /// number of distinct values while sorted; the first and the last value.
    pub fn decoded(
        (rows, nulls, range): (u64, u64, Option<Range>),
        (sorted, ascending, steps): (bool, bool, u64),
        ends: Option<(i128, i128)>,
    ) -> Self {
        Self { rows, nulls, range, sorted, ascending, steps: if sorted { steps } else { 0 }, ends }
    }

    /// Facts about rows that all hold one integer.
    pub fn constant(rows: u64, value: i128) -> Self {
        let (range, ends) = (Some(Range::new(value, value)), Some((value, value)));
        Self { rows, nulls: 0, range, sorted: true, ascending: rows <= 1, steps: 1, ends }
    }

    /// Facts about an array's values.
    ///
    /// # Errors
    /// Arrow's, for a dictionary that cannot be unpacked.
    pub fn of(array: &ArrayRef) -> Result<Self> {
        let array = &stored(array)?;
        macro_rules! integers {
            ($ty:ty) => {
                of_integers::<$ty>(array)
            };
        }
        Ok(by_type!(array.data_type(), integers, {
            _ => Self::of_others(array.len() as u64, array.logical_null_count() as u64)
        }))
    }

    /// Facts about these rows followed by the rows of `next`.
    pub fn then(self, next: Self) -> Self {
        if self.rows == 0 || next.rows == 0 {
            return if self.rows == 0 { next } else { self };
        }
        let meets = self.ends.zip(next.ends).map(|((_, last), (first, _))| last.cmp(&first));
        let sorted = self.sorted && next.sorted && meets.is_some_and(|order| order.is_le());
        let ascending = self.ascending && next.ascending && meets.is_some_and(|order| order.is_lt());
        let steps =
            if sorted { self.steps + next.steps - u64::from(meets.is_some_and(|order| order.is_eq())) } else { 0 };
        let ends = self.ends.zip(next.ends).map(|((first, _), (_, last))| (first, last)).filter(|_| sorted);
        let range = match (self.range, next.range) {
            (Some(a), Some(b)) => Some(a.union(b)),
            (a, b) => a.or(b),
        };
        Self { rows: self.rows + next.rows, nulls: self.nulls + next.nulls, range, sorted, ascending, steps, ends }
    }

    /// Number of distinct integers, if the rows are sorted.
    pub fn distinct_if_sorted(&self) -> Option<u64> {
        (self.sorted && self.range.is_some()).then_some(self.steps)
    }

    /// True if every integer of the range occurs exactly once.
    pub fn is_dense(&self) -> bool {
        let span = |range: Range| range.high.checked_sub(range.low).and_then(|span| span.checked_add(1));
        self.ascending && self.range.and_then(span) == Some(i128::from(self.rows))
    }
}

fn of_integers<T: ArrowPrimitiveType>(array: &ArrayRef) -> Facts
where
    T::Native: Narrow,
{
    let array = primitive::<T>(array);
    let values: &[T::Native] = array.values();
    let (mut least, mut most) = (T::Native::MOST, T::Native::LEAST);
    let mut see = |v: T::Native| {
        least = if v < least { v } else { least };
        most = if v > most { v } else { most };
    };
    let nulls = array.null_count() as u64;
    match array.nulls().filter(|_| nulls > 0) {
        None => values.iter().for_each(|v| see(*v)),
        Some(valid) => valid.valid_indices().for_each(|row| see(values[row])),
    }
    let range = (least <= most).then(|| Range::new(least.wide(), most.wide()));
    // Most unsorted columns are detected within their first values.
    let sorted = nulls == 0 && values.is_sorted();
    let ascending = sorted && values.is_sorted_by(|a, b| a < b);
    let ends = match (sorted, values) {
        (true, [first, .., last]) => Some((first.wide(), last.wide())),
        (true, [one]) => Some((one.wide(), one.wide())),
        _ => None,
    };
    let steps = match sorted {
        true => values.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64 + u64::from(!values.is_empty()),
        false => 0,
    };
    Facts { rows: values.len() as u64, nulls, range, sorted, ascending, steps, ends }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{Decimal128Array, Int32Array, StringArray};

    use super::*;

    fn facts(values: &[Option<i32>]) -> Facts {
        Facts::of(&(Arc::new(Int32Array::from(values.to_vec())) as ArrayRef)).expect("facts")
    }

    fn told(of: Facts) -> (Option<(i128, i128)>, u64, bool, bool, bool) {
        (of.range.map(|range| (range.low, range.high)), of.nulls, of.sorted, of.ascending, of.is_dense())
    }

    #[test]
    fn of_chunks_they_are_those_of_all_rows() {
        let (a, b, c) = (facts(&[Some(3), Some(4)]), facts(&[Some(5)]), facts(&[Some(5), Some(9)]));
        assert_eq!(told(a.then(b)), (Some((3, 5)), 0, true, true, true));
        assert_eq!(told(a.then(b).then(c)), (Some((3, 9)), 0, true, false, false));
        assert_eq!(told(a.then(c)), (Some((3, 9)), 0, true, true, false));
        assert_eq!(told(b.then(a)), (Some((3, 5)), 0, false, false, false));
        assert_eq!(told(Facts::default().then(a)), told(a));
        let distinct = |of: Facts| of.distinct_if_sorted();
        assert_eq!([a, a.then(b), a.then(b).then(c), b.then(a)].map(distinct), [Some(2), Some(3), Some(4), None]);
        assert_eq!(a.then(Facts::default()), a);
    }

    #[test]
    fn nulls_are_in_no_range_and_no_order() {
        assert_eq!(told(facts(&[Some(7), None, Some(-2)])), (Some((-2, 7)), 1, false, false, false));
        assert_eq!(told(facts(&[None, None])), (None, 2, false, false, false));
        assert_eq!(told(facts(&[None]).then(facts(&[Some(1)]))), (Some((1, 1)), 1, false, false, false));
    }

    #[test]
    fn other_values_have_no_range() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
        assert_eq!(Facts::of(&texts).expect("facts"), Facts::of_others(2, 1));
        let decimals: ArrayRef = Arc::new(Decimal128Array::from(vec![i128::MIN / 4, 5]));
        assert_eq!(Facts::of(&decimals).expect("facts").range, Some(Range::new(i128::MIN / 4, 5)));
    }
}
