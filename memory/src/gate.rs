//! A gate that counts the calls inside, and can be shut permanently.
//!
//!   enter ─► counted ─► open? ─ yes ─► inside ─► leave: counted out     shut ─► later calls are refused
//!                         └─ no ──► counted out, refused                     └► `calls` falls to zero, and stays there
//!
//! Order      `enter` changes a count and then reads the gate; closing changes the gate and then reads the count by
//!            adding zero. Of two changes to one count, the later sees everything the earlier thread did before: a call
//!            is either refused or counted. The effects of a call happen before its count decreases.
//! Cost       two atomic steps per call, on a count that few threads share.
//! Pure       no driver, no clock: atomics come from `sync`, so that loom can test every interleaving.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Reason for which a gate is shut: any nonzero number.
pub(crate) type Reason = u64;

/// A count on its own cache lines.
#[repr(align(128))]
struct Count(AtomicU64);

/// A gate with `SHARDS` counts.
pub(crate) struct Gate<const SHARDS: usize> {
    /// The reason; zero while the gate is open.
    shut: AtomicU64,
    counts: [Count; SHARDS],
}

impl<const SHARDS: usize> Gate<SHARDS> {
    pub(crate) fn new() -> Self {
        Gate { shut: AtomicU64::new(0), counts: std::array::from_fn(|_| Count(AtomicU64::new(0))) }
    }

    /// Counts a call in, or returns the reason if the gate is shut.
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

    /// Counts out a call that entered under the same shard.
    pub(crate) fn leave(&self, shard: usize) {
        self.counts[shard].0.fetch_sub(1, Ordering::Release);
    }

    /// Shuts the gate. The first reason is kept.
    pub(crate) fn shut(&self, reason: Reason) {
        let _ = self.shut.compare_exchange(0, reason, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The reason for which the gate is shut.
    pub(crate) fn reason(&self) -> Option<Reason> {
        Some(self.shut.load(Ordering::Acquire)).filter(|&reason| reason != 0)
    }

    /// Number of calls inside under a shard. Once the gate is shut and this was zero, no call enters again; a call
    /// being refused may be counted for a moment.
    pub(crate) fn calls(&self, shard: usize) -> u64 {
        // A read-modify-write, not a load: see Order.
        self.counts[shard].0.fetch_add(0, Ordering::AcqRel)
    }
}
