//! How many different integers a column has, counted while it is loaded: a bit for each number of its range.
//!
//!   chunk   7 3 3 9     ..1 0 0 0 1 0 1..  ─┐ of all readers
//!   chunk   4 9         ..0 1 0 0 0 0 1..  ─┴─► ..1 1 0 0 1 0 1..    4 different: of 6 rows, not unique
//!
//! Given up   where the range takes more than a mebibyte of bits: such columns are sorted, and counted by their steps, or not counted.
//! Threads    each reader marks its own chunk; the column's bits are locked while words are put together.

use std::sync::Mutex;

use datafusion::arrow::array::ArrayRef;
use datafusion::error::Result;

use crate::column::facts::{Facts, mark, mark_stored};
use crate::parquet::{Decoded, Values};
use crate::store::lock;

/// Bits for one column, at most.
const MOST_BITS: i64 = 1 << 23;

/// The integers that a column was seen to have.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Nothing,
    /// From `low` on, a multiple of 64.
    Bits {
        low: i64,
        words: Vec<u64>,
    },
    GivenUp,
}

impl Seen {
    /// Notes the values of a chunk, of which these facts are true.
    pub(super) fn add<'a>(&self, facts: &Facts, mut arrays: impl Iterator<Item = &'a ArrayRef>) -> Result<()> {
        self.note(facts, |low, own| arrays.try_for_each(|array| mark(array, low, own)))
    }

    /// Notes values of which these facts are true; `mark` sets their bits, from a number on.
    fn note(&self, facts: &Facts, mark: impl FnOnce(i64, &mut [u64]) -> Result<()>) -> Result<()> {
        // Of no valid values there is nothing to note.
        let Some(range) = facts.range else { return Ok(()) };
        let whole = |bound: i128| i64::try_from(bound).ok().filter(|bound| bound.unsigned_abs() < 1 << 62);
        let (Some(low), Some(high)) = (whole(range.low), whole(range.high)) else {
            *lock(&self.0) = State::GivenUp;
            return Ok(());
        };
        let low = low.div_euclid(64) * 64;
        let num_words = |low: i64, high: i64| ((high - low) / 64 + 1) as usize;
        if high - low >= MOST_BITS {
            *lock(&self.0) = State::GivenUp;
            return Ok(());
        }
        if lock(&self.0).knows_all(low, num_words(low, high)) {
            return Ok(());
        }
        let mut own = vec![0_u64; num_words(low, high)];
        mark(low, &mut own)?;
        let mut state = lock(&self.0);
        if let State::Nothing = *state {
            *state = State::Bits { low, words: own };
            return Ok(());
        }
        let State::Bits { low: first, words } = &mut *state else { return Ok(()) };
        let (least, most) = (low.min(*first), (low + own.len() as i64 * 64).max(*first + words.len() as i64 * 64));
        if most - least > MOST_BITS {
            *state = State::GivenUp;
            return Ok(());
        }
        let before = ((*first - least) / 64) as usize;
        words.splice(0..0, std::iter::repeat_n(0, before));
        words.resize(((most - least) / 64) as usize, 0);
        *first = least;
        let at = ((low - least) / 64) as usize;
        words[at..].iter_mut().zip(own).for_each(|(word, own)| *word |= own);
        Ok(())
    }

    /// The same for values as they are stored.
    pub(super) fn add_decoded(&self, of: &Decoded) {
        let Values::Fixed { physical, base, bytes } = &of.values else { return };
        let noted = self.note(&of.facts, |low, own| {
            mark_stored((*physical, *base), bytes, of.validity.as_deref(), low, own);
            Ok(())
        });
        debug_assert!(noted.is_ok(), "marking returns no error");
    }

    /// Different values so far; `None` if they are not counted.
    pub(super) fn count(&self) -> Option<u64> {
        match &*lock(&self.0) {
            State::Nothing => Some(0),
            State::Bits { words, .. } => Some(words.iter().map(|word| u64::from(word.count_ones())).sum()),
            State::GivenUp => None,
        }
    }
}

impl State {
    /// Nothing within these words would be new.
    fn knows_all(&self, low: i64, num_words: usize) -> bool {
        match self {
            Self::Nothing => false,
            Self::GivenUp => true,
            Self::Bits { low: first, words } => {
                let at = (low - *first) / 64;
                let end = at + num_words as i64;
                at >= 0
                    && end <= words.len() as i64
                    && words[at as usize..end as usize].iter().all(|word| *word == u64::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use datafusion::arrow::array::{Decimal128Array, Int64Array, UInt64Array};

    use super::*;

    fn add(seen: &Seen, array: ArrayRef) {
        let facts = Facts::of(&array).expect("facts");
        seen.add(&facts, [&array].into_iter()).expect("counted");
    }

    fn integers(values: &[Option<i64>]) -> ArrayRef {
        Arc::new(values.iter().copied().collect::<Int64Array>())
    }

    #[test]
    fn what_chunks_have_is_counted_once() {
        let seen = Seen::default();
        let mut expected = BTreeSet::new();
        assert_eq!(seen.count(), Some(0));
        // Up, down, around what is known, within it, across zero, at the ends of words.
        for (from, rows, step) in
            [(1000, 500, 1), (4000, 10, 7), (-300, 90, 3), (990, 700, 1), (-64, 128, 1), (1023, 2, 1), (0, 0, 1)]
        {
            let values: Vec<i64> = (0..rows).map(|row| from + row * step).collect();
            expected.extend(values.iter().copied());
            // What lies below a NULL is no value.
            let with_nulls: Vec<Option<i64>> = values.iter().copied().map(Some).chain([None]).collect();
            add(&seen, integers(&with_nulls));
            assert_eq!(seen.count(), Some(expected.len() as u64), "{rows} rows from {from}");
        }
    }

    #[test]
    fn wide_ranges_are_not_counted() {
        for far in [1 << 23, 1 << 40, i64::MAX, i64::MIN] {
            let seen = Seen::default();
            add(&seen, integers(&[Some(5), Some(far)]));
            assert_eq!(seen.count(), None, "5 and {far} in one chunk");
            let seen = Seen::default();
            add(&seen, integers(&[Some(5)]));
            add(&seen, integers(&[Some(far)]));
            assert_eq!(seen.count(), None, "5 and {far} in two chunks");
            add(&seen, integers(&[Some(6)]));
            assert_eq!(seen.count(), None);
        }
        let seen = Seen::default();
        add(&seen, Arc::new(UInt64Array::from(vec![u64::MAX, 0])));
        assert_eq!(seen.count(), None);
        let seen = Seen::default();
        add(&seen, Arc::new(Decimal128Array::from(vec![-7_i128, 7, 7])));
        assert_eq!(seen.count(), Some(2));
    }
}
