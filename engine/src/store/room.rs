//! Room for columns: who may come, and who leaves for it.
//!
//!   worth   how often it is read, the less the longer ago · what it takes to read it again · per byte        one that comes is read once
//!   comes   if it fits when columns that are worth less than it have left
//!   leaves  those that are worth least first, and none that a run is reading; for host memory, where there is some
//!
//! Memory   when the device's runs out, columns leave before any query fails, whatever they are worth.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millpond_memory::{ByteSize, MemoryError, Spillable};

use crate::program::context::RunContext;
use crate::store::column::{ColumnForm, StoredColumn};
use crate::store::{Store, Table, lock};

/// Columns that want to come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Newcomers {
    pub bytes: u64,
    /// What it takes to read them; `None` if that is not known: then they are worth more than any.
    pub effort: Option<u64>,
}

impl Newcomers {
    fn worth(self) -> f64 {
        self.effort.map_or(f64::INFINITY, |effort| effort as f64 / self.bytes.max(1) as f64)
    }
}

/// Most bytes of stored columns.
pub(super) fn budget(context: &RunContext) -> u64 {
    match context.options.cache_bytes as u64 {
        0 => context.engine.pool().limit().as_u64() / 10 * 6,
        bytes => bytes,
    }
}

impl Store {
    /// True if these may become stored within the budget, whoever must leave for it. Columns of the numbers in `going` leave anyway.
    pub(super) fn could_fit(&self, new: Newcomers, budget: u64, going: &HashSet<u64>) -> bool {
        let stays = |of: &Candidate| !going.contains(&of.column.number) && !of.may_leave_for(new);
        let staying: u64 = self.columns().iter().filter(|of| stays(of)).map(|of| of.bytes).sum();
        let made: u64 = self.made().iter().map(|rows| rows.staying_bytes(self.now(), new.worth())).sum();
        staying + made + new.bytes <= budget
    }

    /// Makes columns leave that are worth less than new ones, until these fit into the budget beside what else is coming; `None` if
    /// they cannot.
    pub(super) fn make_room(&self, new: Newcomers, budget: u64, going: &HashSet<u64>) -> Option<Room<'_>> {
        let mut coming = lock(&self.coming);
        let wanted = Newcomers { bytes: new.bytes + *coming, ..new };
        let worth = new.worth();
        let mut columns = self.columns();
        columns.retain(|of| !going.contains(&of.column.number));
        let (now, made) = (self.now(), self.made());
        // Columns of made tables come and go meanwhile.
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
        // What a query has made is not read again from anywhere: it goes to host memory when nothing else can go.
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
        Some(Room { store: self, bytes: new.bytes })
    }

    /// A column leaves the device: for the host, if there is room for it.
    fn leave(&self, of: Candidate) {
        if !of.table.is_old.load(Ordering::Relaxed) {
            self.keep_on_host(&of.table, of.key, &of.column);
        }
        lock(&of.table.stored).columns.remove(&of.key);
    }
}

/// Room for columns on their way into a table, until they are there or have failed.
pub(super) struct Room<'s> {
    store: &'s Store,
    bytes: u64,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        *lock(&self.store.coming) -= self.bytes;
    }
}

/// A column that may have to leave.
pub(super) struct Candidate {
    pub table: Arc<Table>,
    pub key: (usize, ColumnForm),
    pub column: Arc<StoredColumn>,
    pub worth: f64,
    /// What goes with it.
    pub bytes: u64,
}

impl Candidate {
    /// Nobody is reading it: the table has it, and this candidate.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.column) <= 2
    }

    /// It makes room for columns that come.
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

    /// Columns go before anything that a query is working on.
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
