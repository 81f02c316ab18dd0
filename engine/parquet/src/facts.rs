//! Facts about the rows that were read, collected block by block.
//!
//!   3 4 7 7 9    rows 5   range 3..=9   sorted, not strictly   4 steps   ends 3 and 9
//!
//! Sortedness is tested until it is broken, then never again by the same reader: most columns break it at once.
//! The range of dictionary coded values is known to be the dictionary's as soon as both its ends were seen.

use crate::error::{PageError, Result};
use crate::native::{Native, extremes};

/// Facts about consecutive rows of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub rows: u64,
    pub nulls: u64,
    /// Range of the valid values, for integers. For codes: 0 and the largest code of any string passed to the caller,
    /// used or not.
    pub range: Option<(i128, i128)>,
    /// No integer is smaller than one before it, and none is NULL. False may also mean that it was not tested.
    pub sorted: bool,
    /// Sorted, and no integer equals the one before it.
    pub ascending: bool,
    /// Number of distinct integers, while they are sorted.
    pub steps: u64,
    /// The first and the last integer, while they are sorted.
    pub ends: Option<(i128, i128)>,
}

impl Default for Facts {
    /// Facts of no rows.
    fn default() -> Self {
        Self { rows: 0, nulls: 0, range: None, sorted: true, ascending: true, steps: 0, ends: None }
    }
}

impl Facts {
    /// Facts of rows of which only the number of NULLs is known.
    pub(crate) fn of_others(rows: u64, nulls: u64) -> Self {
        Self { rows, nulls, range: None, sorted: false, ascending: false, steps: 0, ends: None }
    }
}

/// Collects the facts of integers.
pub(crate) struct Tracker<N> {
    pub(crate) rows: u64,
    pub(crate) nulls: u64,
    least: N,
    most: N,
    is_sorted: bool,
    is_ascending: bool,
    steps: u64,
    ends: Option<(N, N)>,
    /// Range that valid values must lie within.
    allowed: Option<(i128, i128)>,
}

impl<N: Native> Tracker<N> {
    pub(crate) fn new(is_sorted: bool, allowed: Option<(i128, i128)>) -> Self {
        Self {
            rows: 0,
            nulls: 0,
            least: N::MOST,
            most: N::LEAST,
            is_sorted,
            is_ascending: is_sorted,
            steps: 0,
            ends: None,
            // A range that excludes nothing needs no test.
            allowed: allowed.filter(|(low, high)| *low > N::LEAST.wide() || *high < N::MOST.wide()),
        }
    }

    /// True if values from `low` to `high` cannot change the facts.
    pub(crate) fn knows(&self, low: N, high: N) -> bool {
        !self.is_sorted && self.least <= low && self.most >= high
    }

    pub(crate) fn is_sorted(&self) -> bool {
        self.is_sorted
    }

    /// Counts the rows of a block.
    pub(crate) fn count(&mut self, rows: usize, valid: usize) {
        self.rows += rows as u64;
        self.nulls += (rows - valid) as u64;
        self.is_sorted &= rows == valid;
    }

    /// Sees the valid values of a block that was counted.
    pub(crate) fn see(&mut self, values: &[N]) -> Result<()> {
        self.see_between(values, || extremes(values))
    }

    /// Like [`Self::see`], with a faster function for the extremes.
    pub(crate) fn see_between(&mut self, values: &[N], extremes: impl FnOnce() -> (N, N)) -> Result<()> {
        let (Some(first), Some(last)) = (values.first(), values.last()) else { return Ok(()) };
        if self.is_sorted {
            self.see_order(values);
        }
        let (least, most) = if self.is_sorted { (*first, *last) } else { extremes() };
        if self.allowed.is_some_and(|(low, high)| least.wide() < low || most.wide() > high) {
            return Err(PageError::OutOfRange);
        }
        self.least = if least < self.least { least } else { self.least };
        self.most = if most > self.most { most } else { self.most };
        Ok(())
    }

    fn see_order(&mut self, values: &[N]) {
        let (first, last) = (values[0], values[values.len() - 1]);
        let (mut descents, mut steps) = (0_u32, 1_u32);
        for (value, next) in values.iter().zip(&values[1..]) {
            descents += u32::from(next < value);
            steps += u32::from(next != value);
        }
        let mut is_sorted = descents == 0;
        let mut is_ascending = steps as usize == values.len();
        if let Some((_, before)) = self.ends {
            is_sorted &= before <= first;
            is_ascending &= before < first;
            steps -= u32::from(before == first);
        }
        self.is_sorted = is_sorted;
        self.is_ascending &= is_sorted && is_ascending;
        self.steps += u64::from(steps);
        self.ends = Some((self.ends.map_or(first, |(first, _)| first), last));
    }

    pub(crate) fn facts(&self) -> Facts {
        let is_sorted = self.is_sorted || self.rows == 0;
        Facts {
            rows: self.rows,
            nulls: self.nulls,
            range: (self.least <= self.most).then(|| (self.least.wide(), self.most.wide())),
            sorted: is_sorted,
            ascending: is_sorted && (self.is_ascending || self.rows == 0),
            steps: if is_sorted { self.steps } else { 0 },
            ends: self.ends.filter(|_| is_sorted).map(|(first, last)| (first.wide(), last.wide())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(blocks: &[&[i32]]) -> Facts {
        let mut tracker = Tracker::new(true, None);
        for block in blocks {
            tracker.count(block.len(), block.len());
            tracker.see(block).unwrap();
        }
        tracker.facts()
    }

    #[test]
    fn blocks_meet() {
        let of = |range, ascending, steps| {
            let rows = if ascending { steps } else { steps + 1 };
            Facts { rows, nulls: 0, range: Some(range), sorted: true, ascending, steps, ends: Some(range) }
        };
        assert_eq!(facts(&[&[3, 4], &[7, 9]]), of((3, 9), true, 4));
        assert_eq!(facts(&[&[3, 4], &[4, 9]]), of((3, 9), false, 3));
        assert_eq!(facts(&[&[3, 4], &[2, 9]]), Facts { range: Some((2, 9)), ..Facts::of_others(4, 0) });
        assert_eq!(facts(&[]), Facts::default());
    }

    #[test]
    fn values_outside_are_refused() {
        let mut tracker = Tracker::<i32>::new(true, Some((0, 9)));
        assert_eq!(tracker.see(&[0, 9]), Ok(()));
        assert_eq!(tracker.see(&[10]), Err(PageError::OutOfRange));
        assert_eq!(tracker.see(&[-1]), Err(PageError::OutOfRange));
    }
}
