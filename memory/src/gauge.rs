//! A level in bytes, and the highest it ever was.
//!
//! Exact      the level moves in one atomic step, and the peak is the largest level that a step reached.
//! Threads    relaxed atomics: a reader may see a level without its peak for a moment.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::units::ByteSize;

#[derive(Debug, Default)]
pub(crate) struct Gauge {
    level: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    pub(crate) fn raise(&self, bytes: u64) {
        let level = self.level.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(level, Relaxed);
    }

    /// Raises the level unless it would pass `limit`.
    pub(crate) fn raise_within(&self, bytes: u64, limit: u64) -> bool {
        let grow = |level: u64| level.checked_add(bytes).filter(|&level| level <= limit);
        match self.level.fetch_update(Relaxed, Relaxed, grow) {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    pub(crate) fn lower(&self, bytes: u64) {
        self.level.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn level(&self) -> ByteSize {
        ByteSize(self.level.load(Relaxed))
    }

    pub(crate) fn peak(&self) -> ByteSize {
        ByteSize(self.peak.load(Relaxed))
    }

    /// Starts a new peak at the level of now.
    pub(crate) fn reset_peak(&self) {
        self.peak.store(self.level.load(Relaxed), Relaxed);
    }
}
