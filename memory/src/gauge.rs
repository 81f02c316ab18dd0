//! A level in bytes, and the highest it ever was.
//!
//! Exact      the level moves in one atomic step, and the peak is the largest level that a step reached.
//! Threads    a reader may see a level without its peak for a moment. A peak that starts anew is never left below the level:
//!            whoever moves the level after `reset_peak` looked at it sees the new peak, and whoever did before is seen.

use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{AcqRel, Relaxed};
use crate::units::ByteSize;

#[derive(Debug, Default)]
pub(crate) struct Gauge {
    level: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    pub(crate) fn raise(&self, bytes: u64) {
        self.reached(self.level.fetch_add(bytes, AcqRel) + bytes);
    }

    /// Raises the level unless it would pass `limit`.
    pub(crate) fn raise_within(&self, bytes: u64, limit: u64) -> bool {
        let grow = |level: u64| level.checked_add(bytes).filter(|&level| level <= limit);
        match self.level.fetch_update(AcqRel, Relaxed, grow) {
            Ok(before) => {
                self.reached(before + bytes);
                true
            }
            Err(_) => false,
        }
    }

    /// Most levels are below the peak: a load is enough then.
    fn reached(&self, level: u64) {
        if level > self.peak.load(Relaxed) {
            self.peak.fetch_max(level, Relaxed);
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
        let level = self.level.fetch_add(0, AcqRel);
        self.peak.fetch_max(level, Relaxed);
    }
}
