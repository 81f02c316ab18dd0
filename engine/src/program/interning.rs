//! Codes of a reader's strings: a dictionary that several readers share, behind a private cache.
//!
//!   batch ─ own interner ─► own codes ─ table ─► codes of the shared dictionary
//!                 └─ values new to this reader, up to 1,000 at a time ─► shared dictionary, locked for these alone
//!
//! NULL     has no code; the slot of a NULL has code 0.
//! Order    codes are assigned in order of first appearance among all readers, so they differ from run to run; answers
//!          do not.
//! Memory   the cache is emptied beyond 2^17 values or 32 MiB: it only saves lookups.
//! Threads  each reader has its own cache. No lock is held while rows are scanned.

use datafusion::arrow::array::{Array, ArrayRef, UInt32Array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::DataType;

use crate::column::dictionary::SharedDictionary;
use crate::column::interner::Interner;
use crate::error::failure::Failure;
use crate::program::texts;

/// Maximum number of values interned under one lock of the shared dictionary.
const VALUES_LOCKED: usize = 1000;
/// Maximum number of values in a reader's cache, and of their bytes; beyond these it is emptied.
const CACHED_VALUES: usize = 1 << 17;
const CACHED_BYTES: usize = 32 << 20;

/// One reader's codes of one column.
pub(crate) struct ReaderCodes {
    shared: SharedDictionary,
    cache: Interner,
    /// The shared code of each code of the cache.
    codes: Vec<u32>,
}

impl ReaderCodes {
    /// Codes of the dictionary `shared`.
    pub fn new(shared: SharedDictionary) -> Self {
        Self { shared, cache: Interner::new(usize::MAX), codes: vec![] }
    }

    /// The codes of a batch's strings, NULL where one is NULL. The dictionary may grow to `most` values.
    ///
    /// # Errors
    /// There are more, or they take too many bytes: see [`is_full`](Self::is_full).
    pub fn codes(&mut self, array: &ArrayRef, most: usize) -> Result<UInt32Array, Failure> {
        self.count_rows(array.len());
        let (codes, nulls) = self.shared_codes(array, most)?;
        Ok(UInt32Array::new(codes.into(), nulls))
    }

    /// Codes of values that are not rows: of a dictionary page, or of rows that [`count_rows`](Self::count_rows)
    /// counts.
    ///
    /// # Errors
    /// As for [`codes`](Self::codes).
    pub fn of_values(&mut self, values: &ArrayRef, most: usize) -> Result<Vec<u32>, Failure> {
        Ok(self.shared_codes(values, most)?.0)
    }

    /// Counts rows whose values are looked up.
    pub fn count_rows(&self, rows: usize) {
        self.shared.count_rows(rows);
    }

    fn shared_codes(&mut self, array: &ArrayRef, most: usize) -> Result<(Vec<u32>, Option<NullBuffer>), Failure> {
        if self.cache.len() > CACHED_VALUES || self.cache.bytes() > CACHED_BYTES {
            self.cache = Interner::new(usize::MAX);
            self.codes.clear();
        }
        let own = self.cache.codes(array)?;
        self.share(most)?;
        // The slot of a NULL may hold no code of the cache.
        let shared = |code: &u32| self.codes.get(*code as usize).copied().unwrap_or(0);
        Ok((own.values().iter().map(shared).collect(), own.nulls().cloned()))
    }

    /// Looks up the shared codes of the cache's new values.
    fn share(&mut self, most: usize) -> Result<(), Failure> {
        if self.codes.len() == self.cache.len() {
            return Ok(());
        }
        let new = self.cache.array(self.codes.len(), &DataType::Binary)?;
        for first in (0..new.len()).step_by(VALUES_LOCKED) {
            let some = new.slice(first, VALUES_LOCKED.min(new.len() - first));
            self.codes.extend_from_slice(self.shared.add(&some, most)?.values());
        }
        Ok(())
    }

    /// True when another value may not fit.
    pub fn is_full(&self) -> bool {
        self.cache.is_full() || self.shared.lock().is_full()
    }

    /// True if the column is better off without a dictionary, judged by the rows of all readers so far.
    pub fn nearly_all_different(&self) -> bool {
        let rows = self.shared.rows();
        texts::may_tell_difference(rows) && texts::nearly_all_different(self.shared.lock().len(), rows)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{AsArray, StringArray, StringViewArray};

    use super::*;

    fn strings(values: impl Iterator<Item = Option<String>>) -> ArrayRef {
        Arc::new(values.collect::<StringViewArray>())
    }

    /// The strings that codes stand for.
    fn back(shared: &SharedDictionary, codes: &UInt32Array) -> Vec<Option<String>> {
        let values = shared.lock().array(0, &DataType::Utf8).expect("strings");
        let values = values.as_string::<i32>();
        codes.iter().map(|code| code.map(|code| values.value(code as usize).to_string())).collect()
    }

    #[test]
    fn readers_beside_each_other_agree_on_codes_and_lock_for_few_values() {
        const READERS: usize = 4;
        let shared = SharedDictionary::new(0);
        let rows = |reader: usize| {
            (0..40_000).map(move |row| (row % 7 != 0).then(|| format!("v{}", (row * 3 + reader) % 30_000)))
        };
        std::thread::scope(|scope| {
            for reader in 0..READERS {
                let shared = shared.clone();
                scope.spawn(move || {
                    let mut codes = ReaderCodes::new(shared.clone());
                    let all: Vec<Option<String>> = rows(reader).collect();
                    for some in all.chunks(8192) {
                        let given = codes.codes(&strings(some.iter().cloned()), 1 << 20).expect("few values");
                        assert_eq!(back(&shared, &given), some);
                    }
                });
            }
        });
        let different: std::collections::HashSet<String> = (0..READERS).flat_map(rows).flatten().collect();
        assert_eq!((shared.lock().len(), shared.rows()), (different.len(), READERS * 40_000));
        let locked = shared.most_locked();
        assert!((1..=VALUES_LOCKED).contains(&locked), "{locked} values were interned under one lock");
    }

    #[test]
    fn an_emptied_cache_gives_the_same_codes() {
        let shared = SharedDictionary::new(0);
        let mut codes = ReaderCodes::new(shared.clone());
        let few = strings(["b", "a"].into_iter().map(|value| Some(value.to_string())));
        let before = codes.codes(&few, 1 << 20).expect("few values");
        let many = strings((0..=CACHED_VALUES).map(|value| Some(value.to_string())));
        codes.codes(&many, 1 << 20).expect("room");
        assert_eq!(codes.codes(&few, 1 << 20).expect("few values"), before);
        assert_eq!(codes.codes.len(), 2, "the cache was emptied");
    }

    #[test]
    fn a_dictionary_without_room_says_so_and_goes_on_when_it_may() {
        let shared = SharedDictionary::new(0);
        let mut codes = ReaderCodes::new(shared.clone());
        let array: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
        assert!(codes.codes(&array, 2).is_err());
        assert!(codes.is_full());
        let given = codes.codes(&array, 3).expect("room");
        assert_eq!(back(&shared, &given), ["a", "b", "c"].map(|value| Some(value.to_string())));
    }

    #[test]
    fn many_different_values_are_seen_by_the_rows_of_all_readers() {
        let shared = SharedDictionary::new(0);
        let (mut one, mut other) = (ReaderCodes::new(shared.clone()), ReaderCodes::new(shared));
        let array = |from: usize| strings((from..from + 40_000).map(|value| Some(value.to_string())));
        one.codes(&array(0), 1 << 20).expect("room");
        assert!(!one.nearly_all_different(), "too few rows to tell");
        other.codes(&array(40_000), 1 << 20).expect("room");
        assert!(one.nearly_all_different() && other.nearly_all_different());
    }
}
