//! Admission to and eviction from the column store.
//!
//!   benefit    number of uses, discounted by age · cost of reading again · per byte        a new column counts one use
//!   admission  if the column fits after evicting columns with less benefit
//!   eviction   lowest benefit first, never while a run reads the column; to host memory, if there is any
//!
//! Memory   when the device runs out of memory, columns are evicted before any query fails, regardless of benefit.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millpond_memory::{ByteSize, MemoryError, Spillable};

use crate::program::context::RunContext;
use crate::store::column::{ColumnForm, StoredColumn};
use crate::store::{Store, Table, lock};

/// Columns to be stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Newcomers {
    pub bytes: u64,
    /// Cost of reading them; `None` if unknown: then they count as more beneficial than any other.
    pub effort: Option<u64>,
}

impl Newcomers {
    fn worth(self) -> f64 {
        self.effort.map_or(f64::INFINITY, |effort| effort as f64 / self.bytes.max(1) as f64)
    }
}

/// Maximum bytes of stored columns.
pub(super) fn budget(context: &RunContext) -> u64 {
    match context.options.cache_bytes as u64 {
        0 => context.engine.pool().limit().as_u64() / 10 * 6,
        bytes => bytes,
    }
}

impl Store {
    /// True if the columns would fit in the budget after all possible evictions. Columns with numbers in `going` are
    /// dropped anyway.
    pub(super) fn could_fit(&self, new: Newcomers, budget: u64, going: &HashSet<u64>) -> bool {
        let stays = |of: &Candidate| !going.contains(&of.column.about.number) && !of.may_leave_for(new);
        let staying: u64 = self.columns().iter().filter(|of| stays(of)).map(|of| of.bytes).sum();
        let made: u64 = self.made().iter().map(|rows| rows.staying_bytes(self.now(), new.worth())).sum();
        staying + made + new.bytes <= budget
    }

    /// Evicts columns with less benefit than the new ones, until these and other pending ones fit in the budget; `None`
    /// if they cannot.
    pub(super) fn make_space(&self, new: Newcomers, budget: u64, going: &HashSet<u64>) -> Option<Space<'_>> {
        let mut coming = lock(&self.coming);
        let wanted = Newcomers { bytes: new.bytes + *coming, ..new };
        let worth = new.worth();
        let mut columns = self.columns();
        columns.retain(|of| !going.contains(&of.column.about.number));
        let (now, made) = (self.now(), self.made());
        // Columns of kept tables may be spilled and restored meanwhile.
        let made_bytes = self.made_bytes();
        let mut used = columns.iter().map(|of| of.bytes).sum::<u64>() + made_bytes;
        columns.retain(|of| of.is_idle() && of.worth < worth);
        let staying_made: u64 = made.iter().map(|rows| rows.staying_bytes(now, worth)).sum();
        let leaving = columns.iter().map(|of| of.bytes).sum::<u64>() + made_bytes.saturating_sub(staying_made);
        if used - leaving + wanted.bytes > budget {
            return None;
        }
        columns.sort_by(|a, b| a.worth.total_cmp(&b.worth));
        for of in columns {
            if used + wanted.bytes <= budget {
                break;
            }
            used -= of.bytes;
            self.leave(of);
        }
        // Rows of a kept table cannot be read again from elsewhere: they are spilled only as a last resort.
        for rows in made {
            let before = rows.device_bytes();
            let left = || used.saturating_sub(before.saturating_sub(rows.device_bytes()));
            rows.leave_until(now, worth, || left() + wanted.bytes <= budget);
            used = left();
        }
        if used + wanted.bytes > budget {
            return None;
        }
        *coming = wanted.bytes;
        Some(Space { store: self, bytes: new.bytes })
    }

    /// Evicts a column from the device, to host memory if it fits there.
    fn leave(&self, of: Candidate) {
        if !of.table.is_old.load(Ordering::Relaxed) {
            self.keep_on_host(&of.table, of.key, &of.column);
        }
        lock(&of.table.stored).columns.remove(&of.key);
    }
}

/// Space granted to columns, until they are stored or have failed.
pub(super) struct Space<'s> {
    store: &'s Store,
    bytes: u64,
}

impl Drop for Space<'_> {
    fn drop(&mut self) {
        *lock(&self.store.coming) -= self.bytes;
    }
}

/// A column that may be evicted.
pub(super) struct Candidate {
    pub table: Arc<Table>,
    pub key: (usize, ColumnForm),
    pub column: Arc<StoredColumn>,
    pub worth: f64,
    /// Bytes freed by its eviction.
    pub bytes: u64,
}

impl Candidate {
    /// True if no run reads it: the only references are those of its table and of this candidate.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.column) <= 2
    }

    /// True if it may be evicted for new columns.
    fn may_leave_for(&self, new: Newcomers) -> bool {
        self.is_idle() && self.worth < new.worth()
    }
}

impl Spillable for Store {
    fn tag(&self) -> String {
        "store".to_string()
    }

    fn spillable_bytes(&self) -> ByteSize {
        ByteSize(self.columns().iter().filter(|of| of.is_idle()).map(|of| of.bytes).sum())
    }

    /// Columns are spilled before the data of running queries.
    fn priority(&self) -> i32 {
        -1
    }

    fn spill(&self, wanted: ByteSize) -> Result<ByteSize, MemoryError> {
        let mut idle: Vec<Candidate> = self.columns().into_iter().filter(Candidate::is_idle).collect();
        idle.sort_by(|a, b| a.worth.total_cmp(&b.worth));
        let mut freed = 0;
        for of in idle {
            if freed >= wanted.as_u64() {
                break;
            }
            freed += of.bytes;
            self.leave(of);
        }
        Ok(ByteSize(freed))
    }
}
