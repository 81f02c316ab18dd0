//! Counts the calls that are inside, and can be shut for good.
//!
//!   enter ─► counted ─► open? ─ yes ─► inside ─► leave: counted out          shut ─► later calls are refused
//!                         └─ no ──► counted out, refused                          └► `calls` falls to zero, and stays there
//!
//! Order      entering changes a count and then reads the gate; shutting changes the gate and then the count (by zero). The later of two
//!            changes to one count sees what the earlier one's thread did before: a call is refused, or it is counted. What a call did
//!            is done before its count is seen to fall.
//! Cost       two atomic steps for a call, on a count that it shares with few other threads.
//! Pure       no driver, no clock: atomics come from `sync`, so that loom can try every interleaving.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Why a gate is shut: any number but zero.
pub(crate) type Reason = u64;

/// A count on cache lines of its own.
#[repr(align(128))]
struct Count(AtomicU64);

/// A gate with `SHARDS` counts.
pub(crate) struct Gate<const SHARDS: usize> {
    /// The reason, or zero while it is open.
    shut: AtomicU64,
    counts: [Count; SHARDS],
}

impl<const SHARDS: usize> Gate<SHARDS> {
    pub(crate) fn new() -> Self {
        Gate { shut: AtomicU64::new(0), counts: std::array::from_fn(|_| Count(AtomicU64::new(0))) }
    }

    /// Counts a call in; refused with the reason once the gate is shut.
    pub(crate) fn enter(&self, shard: usize) -> Result<(), Reason> {
        let Count(count) = &self.counts[shard];
        count.fetch_add(1, Ordering::AcqRel);
        match self.shut.load(Ordering::Acquire) {
            0 => Ok(()),
            reason => {
                count.fetch_sub(1, Ordering::Release);
                Err(reason)
            }
        }
    }

    /// Counts out a call that was counted in under the same shard.
    pub(crate) fn leave(&self, shard: usize) {
        self.counts[shard].0.fetch_sub(1, Ordering::Release);
    }

    /// Shuts the gate. The first reason stays.
    pub(crate) fn shut(&self, reason: Reason) {
        let _ = self.shut.compare_exchange(0, reason, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The reason for which it is shut.
    pub(crate) fn reason(&self) -> Option<Reason> {
        Some(self.shut.load(Ordering::Acquire)).filter(|&reason| reason != 0)
    }

    /// Calls that are inside under a shard. Once the gate is shut and this was zero, it has none for good; one that is being refused may
    /// be counted for a moment.
    pub(crate) fn calls(&self, shard: usize) -> u64 {
        // A change, not a load: see Order.
        self.counts[shard].0.fetch_add(0, Ordering::AcqRel)
    }
}
