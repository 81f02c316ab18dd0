//! Dictionaries of the string columns of a program's sources: owned by the columns, shared by all runs that read them.
//!
//!   prepared program ─ source 0, column 3 ─► interner ◄─ run 1 ─ run 2 …       values are added and never removed
//!
//! A new run reuses the values of earlier runs; codes and sizes that it relies on only grow while it runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::arrow::array::{Array, ArrayRef, UInt32Array};

use crate::column::interner::Interner;
use crate::error::failure::Failure;

/// Shared dictionary.
#[derive(Debug, Clone)]
pub struct SharedDictionary(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    values: Mutex<Interner>,
    /// Rows that readers have looked up.
    rows: AtomicUsize,
    /// Largest number of values interned under one lock.
    most_locked: AtomicUsize,
}

impl SharedDictionary {
    /// Empty dictionary for at most `most` values.
    pub(crate) fn new(most: usize) -> Self {
        let (rows, most_locked) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self(Arc::new(Shared { values: Mutex::new(Interner::new(most)), rows, most_locked }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Interner> {
        self.0.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the codes of a few values and raises the limit to `most` values. Holds the lock meanwhile.
    pub(crate) fn add(&self, values: &ArrayRef, most: usize) -> Result<UInt32Array, Failure> {
        self.0.most_locked.fetch_max(values.len(), Ordering::Relaxed);
        let mut interner = self.lock();
        interner.allow(most);
        interner.codes(values)
    }

    /// Counts rows that a reader looks up.
    pub(crate) fn count_rows(&self, rows: usize) {
        self.0.rows.fetch_add(rows, Ordering::Relaxed);
    }

    /// Rows that readers have looked up.
    pub(crate) fn rows(&self) -> usize {
        self.0.rows.load(Ordering::Relaxed)
    }

    /// Largest number of values interned under one lock. For tests.
    #[cfg(test)]
    pub(crate) fn most_locked(&self) -> usize {
        self.0.most_locked.load(Ordering::Relaxed)
    }
}

/// Dictionaries of the columns of a program's sources, by source and column. Clones share them.
#[derive(Clone, Default)]
pub struct SourceDictionaries(Arc<Mutex<HashMap<(usize, usize), SharedDictionary>>>);

impl SourceDictionaries {
    /// Copy of this map with private dictionaries for some columns.
    pub fn with(&self, own: impl Iterator<Item = ((usize, usize), SharedDictionary)>) -> Self {
        let mut own = own.peekable();
        if own.peek().is_none() {
            return self.clone();
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.extend(own);
        Self(Arc::new(Mutex::new(all)))
    }

    /// Dictionary of a column; empty if no run has read the column yet.
    pub fn of(&self, column: (usize, usize)) -> SharedDictionary {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(column).or_insert_with(|| SharedDictionary::new(0)).clone()
    }
}
