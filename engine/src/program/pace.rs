//! How large bites of the input are: as large as planned, until memory runs out.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::RwLock;

/// How a run goes on that has found no memory for an extent.
pub struct Pace {
    /// Held shared by who has an extent under way, alone by who found no memory for one.
    pub gate: RwLock<()>,
    rows: AtomicUsize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { gate: RwLock::new(()), rows: AtomicUsize::new(usize::MAX) }
    }
}

impl Pace {
    /// Rows of an extent, at most.
    pub fn extent_rows(&self) -> usize {
        self.rows.load(Ordering::Relaxed)
    }

    /// Later extents have no more than so many rows.
    pub fn slow_down(&self, rows: usize) {
        self.rows.fetch_min(rows, Ordering::Relaxed);
    }
}
