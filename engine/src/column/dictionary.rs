//! Dictionaries of the string columns of a program's sources: owned by the columns, shared by all runs that read them.
//!
//!   prepared program ─ source 0, column 3 ─► interner ◄─ run 1 ─ run 2 …       values are added, and none is ever taken away
//!
//! A run that begins finds the values that earlier ones have met; codes and sizes it relies on only grow while it goes on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::column::interner::Interner;

/// A dictionary, shared.
#[derive(Debug, Clone)]
pub struct SharedDictionary(Arc<Mutex<Interner>>);

impl SharedDictionary {
    /// An empty one, for at most `most` values.
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Interner::new(most))))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Interner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
