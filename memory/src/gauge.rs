//! A level in bytes, and its maximum.
//!
//! Exact      the level changes in one atomic step, and the peak is the largest level reached by a step.
//! Threads    a reader may briefly see a level without its peak. A reset never leaves the peak below the level: a
//!            change after `reset_peak` read the level sees the new peak, and an earlier change is included in that
//!            level.

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

    /// Raises the level unless it would exceed `limit`.
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

    /// Most levels are below the peak, so a load is usually enough.
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

    /// Resets the peak to the current level.
    pub(crate) fn reset_peak(&self) {
        self.peak.store(self.level.load(Relaxed), Relaxed);
        let level = self.level.fetch_add(0, AcqRel);
        self.peak.fetch_max(level, Relaxed);
    }
}
