//! Dictionaries of the string columns of a program's sources: owned by the columns, shared by all runs that read them.
//!
//!   prepared program ─ source 0, column 3 ─► interner ◄─ run 1 ─ run 2 …       values are added, and none is ever taken away
//!
//! A run that begins finds the values that earlier ones have met; codes and sizes it relies on only grow while it goes on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::arrow::array::{Array, ArrayRef, UInt32Array};

use crate::column::interner::Interner;
use crate::program::failure::Failure;

/// A dictionary, shared.
#[derive(Debug, Clone)]
pub struct SharedDictionary(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    values: Mutex<Interner>,
    /// Rows that readers have looked up.
    rows: AtomicUsize,
    /// The most values that were interned while it was locked once.
    most_locked: AtomicUsize,
}

impl SharedDictionary {
    /// An empty one, for at most `most` values.
    pub(crate) fn new(most: usize) -> Self {
        let (rows, most_locked) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self(Arc::new(Shared { values: Mutex::new(Interner::new(most)), rows, most_locked }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Interner> {
        self.0.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The codes of a few values, of which there may be `most` from now on. It is locked meanwhile.
    pub(crate) fn add(&self, values: &ArrayRef, most: usize) -> Result<UInt32Array, Failure> {
        self.0.most_locked.fetch_max(values.len(), Ordering::Relaxed);
        let mut interner = self.lock();
        interner.allow(most);
        interner.codes(values)
    }

    /// Adds rows that a reader looks up.
    pub(crate) fn count_rows(&self, rows: usize) {
        self.0.rows.fetch_add(rows, Ordering::Relaxed);
    }

    /// Rows that readers have looked up.
    pub(crate) fn rows(&self) -> usize {
        self.0.rows.load(Ordering::Relaxed)
    }

    /// The most values that were interned while it was locked once. For tests.
    #[cfg(test)]
    pub(crate) fn most_locked(&self) -> usize {
        self.0.most_locked.load(Ordering::Relaxed)
    }
}

/// The dictionaries of the columns of a program's sources, by source and column. Clones share them.
#[derive(Clone, Default)]
pub struct SourceDictionaries(Arc<Mutex<HashMap<(usize, usize), SharedDictionary>>>);

impl SourceDictionaries {
    /// The same, but for some columns that have one of their own.
    pub fn with(&self, own: impl Iterator<Item = ((usize, usize), SharedDictionary)>) -> Self {
        let mut own = own.peekable();
        if own.peek().is_none() {
            return self.clone();
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.extend(own);
        Self(Arc::new(Mutex::new(all)))
    }

    /// The dictionary of a column, empty where no run has read it yet.
    pub fn of(&self, column: (usize, usize)) -> SharedDictionary {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(column).or_insert_with(|| SharedDictionary::new(0)).clone()
    }
}
