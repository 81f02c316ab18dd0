//! Bytes that a pool has handed out, and bytes whose free is pending.
//!
//!   take ──► live ── freed at position p ──► pending(p) ── the host saw p ────────────────► free for all streams
//!     ▲                                          └──────── a stream ordered after p ────► live again, for that stream
//!     └── at most: live + pending ≤ limit
//!
//! Exact      in any execution order, bytes in use at one time stay within the limit: a free counts for all streams
//!            once the device has reached it, and before that only for streams ordered after it. (The driver may serve
//!            such a stream with other bytes than the freed ones; its reservation can be larger.)
//! Pending    per stream, a bounded number of entries: neighbors merge behind the later position.
//! Threads    the limit is one atomic step; the entries are behind a lock per group of streams, held for list
//!            operations.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::Device;
use crate::few::Few;
use crate::gauge::Gauge;
use crate::ids::StreamId;
use crate::order::Position;
use crate::units::ByteSize;

const SHARDS: usize = 16;

/// Maximum number of entries per stream before neighbors merge.
const MOST_ENTRIES: usize = 128;

#[derive(Clone, Copy, Debug)]
struct Entry {
    seq: u64,
    bytes: u64,
    /// Bytes freed by the whole pool before this entry: defines the order of waits.
    stamp: u64,
}

#[derive(Debug)]
struct Lane {
    stream: StreamId,
    entries: VecDeque<Entry>,
}

impl Lane {
    fn push(&mut self, entry: Entry) {
        match self.entries.back() {
            // Threads that free on one stream may arrive here in another order than they submitted.
            Some(last) if last.seq > entry.seq => {
                let place = self.entries.partition_point(|other| other.seq <= entry.seq);
                self.entries.insert(place, entry);
            }
            _ => self.entries.push_back(entry),
        }
        if self.entries.len() >= MOST_ENTRIES {
            let merged = self.entries.make_contiguous().chunks(2).map(|pair| Entry {
                seq: pair.last().expect("chunks are not empty").seq,
                bytes: pair.iter().map(|entry| entry.bytes).sum(),
                stamp: pair[0].stamp,
            });
            self.entries = merged.collect();
        }
    }

    /// Removes entries that `passed` accepts, and returns their bytes.
    fn retire(&mut self, passed: impl Fn(Position) -> bool) -> u64 {
        let mut bytes = 0;
        while let Some(entry) = self.entries.front() {
            if !passed(Position { stream: self.stream, seq: entry.seq }) {
                break;
            }
            bytes += entry.bytes;
            self.entries.pop_front();
        }
        bytes
    }
}

/// Bytes taken: fresh ones, and pending ones that are reused.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    fresh: u64,
    reused: Few<(StreamId, Entry)>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Bytes handed out and not freed.
    used: Gauge,
    /// Bytes freed, but not known to be reached by the device.
    pending: Gauge,
    /// Sum of both, which the limit bounds.
    held: AtomicU64,
    allocated_total: AtomicU64,
    freed_total: AtomicU64,
    shards: [Mutex<Vec<Lane>>; SHARDS],
}

impl Ledger {
    pub(crate) fn used(&self) -> ByteSize {
        self.used.level()
    }

    pub(crate) fn used_peak(&self) -> ByteSize {
        self.used.peak()
    }

    pub(crate) fn pending(&self) -> ByteSize {
        self.pending.level()
    }

    pub(crate) fn pending_peak(&self) -> ByteSize {
        self.pending.peak()
    }

    pub(crate) fn held(&self) -> ByteSize {
        ByteSize(self.held.load(Relaxed))
    }

    pub(crate) fn allocated_total(&self) -> u64 {
        self.allocated_total.load(Relaxed)
    }

    pub(crate) fn freed_total(&self) -> u64 {
        self.freed_total.load(Relaxed)
    }

    pub(crate) fn reset_peaks(&self) {
        self.used.reset_peak();
        self.pending.reset_peak();
    }

    fn shard(&self, stream: StreamId) -> MutexGuard<'_, Vec<Lane>> {
        self.shards[stream.index as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, bytes: u64, limit: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        let grow = |held: u64| held.checked_add(bytes).filter(|&sum| sum <= limit);
        self.held.fetch_update(Relaxed, Relaxed, grow).is_ok()
    }

    /// Takes `bytes` that are free for all streams.
    pub(crate) fn take(&self, bytes: u64, limit: u64) -> bool {
        if !self.hold(bytes, limit) {
            return false;
        }
        self.used.raise(bytes);
        true
    }

    /// Takes `bytes`, preferably pending ones at positions that `after` accepts, starting with those of `own`: a stream
    /// that allocates and frees at the limit searches no further.
    pub(crate) fn take_after(
        &self,
        bytes: u64,
        limit: u64,
        own: StreamId,
        after: impl Fn(Position) -> bool,
    ) -> Option<Taken> {
        let mut taken = Taken::default();
        let mut missing = bytes;
        for step in 0..SHARDS {
            if missing == 0 {
                break;
            }
            let shard = &self.shards[(own.index as usize + step) % SHARDS];
            let mut lanes = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for lane in lanes.iter_mut() {
                while missing > 0
                    && let Some(front) = lane.entries.front_mut()
                    && after(Position { stream: lane.stream, seq: front.seq })
                {
                    let part = front.bytes.min(missing);
                    taken.reused.push((lane.stream, Entry { bytes: part, ..*front }));
                    front.bytes -= part;
                    missing -= part;
                    if front.bytes == 0 {
                        lane.entries.pop_front();
                    }
                }
            }
        }
        if !self.hold(missing, limit) {
            self.put_back(&taken.reused);
            return None;
        }
        taken.fresh = missing;
        self.pending.lower(bytes - missing);
        self.used.raise(bytes);
        Some(taken)
    }

    fn put_back(&self, entries: &Few<(StreamId, Entry)>) {
        for (stream, entry) in entries.iter() {
            self.push(*stream, *entry);
        }
    }

    fn push(&self, stream: StreamId, entry: Entry) {
        let mut lanes = self.shard(stream);
        match lanes.iter_mut().find(|lane| lane.stream == stream) {
            Some(lane) => lane.push(entry),
            None => lanes.push(Lane { stream, entries: VecDeque::from([entry]) }),
        }
    }

    /// Reverts a `take` whose allocation failed.
    pub(crate) fn undo(&self, bytes: u64) {
        self.used.lower(bytes);
        self.held.fetch_sub(bytes, Relaxed);
    }

    /// Reverts a `take_after` whose allocation failed.
    pub(crate) fn undo_taken(&self, taken: Taken) {
        let reused: u64 = taken.reused.iter().map(|(_, entry)| entry.bytes).sum();
        self.pending.raise(reused);
        self.put_back(&taken.reused);
        self.used.lower(taken.fresh + reused);
        self.held.fetch_sub(taken.fresh, Relaxed);
    }

    /// Counts a successful allocation.
    pub(crate) fn allocated(&self, bytes: u64) {
        self.allocated_total.fetch_add(bytes, Relaxed);
    }

    /// Counts a submitted free that the device reaches by `position`.
    pub(crate) fn freed(&self, bytes: u64, position: Position) {
        self.pending.raise(bytes);
        self.used.lower(bytes);
        let stamp = self.freed_total.fetch_add(bytes, Relaxed);
        self.push(position.stream, Entry { seq: position.seq, bytes, stamp });
    }

    /// Counts bytes that are lost without a free.
    pub(crate) fn gone(&self, bytes: u64) {
        self.undo(bytes);
    }

    /// Releases pending bytes that the host saw reached to all streams. Returns their number.
    pub(crate) fn retire(&self, device: &Device) -> u64 {
        self.retire_if(|position| device.host_is_after(position))
    }

    fn retire_if(&self, passed: impl Fn(Position) -> bool) -> u64 {
        let mut bytes = 0;
        for shard in &self.shards {
            let mut lanes = shard.lock().unwrap_or_else(PoisonError::into_inner);
            bytes += lanes.iter_mut().map(|lane| lane.retire(&passed)).sum::<u64>();
        }
        self.pending.lower(bytes);
        self.held.fetch_sub(bytes, Relaxed);
        bytes
    }

    /// Position of the oldest free that is not yet reached.
    pub(crate) fn oldest(&self) -> Option<Position> {
        let mut oldest: Option<(u64, Position)> = None;
        for shard in &self.shards {
            for lane in shard.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                if let Some(front) = lane.entries.front()
                    && oldest.is_none_or(|(stamp, _)| front.stamp < stamp)
                {
                    oldest = Some((front.stamp, Position { stream: lane.stream, seq: front.seq }));
                }
            }
        }
        oldest.map(|(_, position)| position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    fn at(index: u32, seq: u64) -> Position {
        Position { stream: StreamId { device_serial: 0, index }, seq }
    }

    #[test]
    fn a_free_counts_for_who_comes_after_it_and_for_everyone_once_it_is_reached() {
        let ledger = Ledger::default();
        assert!(ledger.take(600, LIMIT) && ledger.take(400, LIMIT) && !ledger.take(1, LIMIT));
        ledger.freed(600, at(1, 7));
        assert_eq!((ledger.used(), ledger.pending(), ledger.held()), (ByteSize(400), ByteSize(600), ByteSize(1000)));
        assert!(!ledger.take(1, LIMIT), "nobody knows that it is reached");
        assert!(
            ledger.take_after(100, LIMIT, at(2, 0).stream, |p| p.stream.index == 2).is_none(),
            "another stream is not ordered after it"
        );
        let taken = ledger.take_after(100, LIMIT, at(2, 0).stream, |p| p.stream.index == 1 && p.seq <= 7).unwrap();
        assert_eq!((taken.fresh, ledger.pending(), ledger.held()), (0, ByteSize(500), ByteSize(1000)));
        ledger.undo_taken(taken);
        assert_eq!((ledger.used(), ledger.pending(), ledger.held()), (ByteSize(400), ByteSize(600), ByteSize(1000)));
        assert_eq!(ledger.retire_if(|p| p.seq <= 6), 0);
        assert_eq!(ledger.retire_if(|p| p.seq <= 7), 600);
        assert!(ledger.take(600, LIMIT));
        assert_eq!(ledger.used_peak(), ByteSize(1000));
    }

    #[test]
    fn part_of_what_is_taken_may_be_pending_and_part_free() {
        let ledger = Ledger::default();
        assert!(ledger.take(800, LIMIT));
        ledger.freed(800, at(0, 1));
        let taken = ledger.take_after(900, LIMIT, at(0, 0).stream, |_| true).unwrap();
        assert_eq!((taken.fresh, ledger.used(), ledger.pending()), (100, ByteSize(900), ByteSize::ZERO));
        assert!(ledger.take_after(200, LIMIT, at(0, 0).stream, |_| true).is_none());
        ledger.undo_taken(taken);
        assert_eq!((ledger.held(), ledger.pending()), (ByteSize(800), ByteSize(800)));
    }

    #[test]
    fn many_frees_are_kept_in_few_entries_behind_later_positions() {
        let ledger = Ledger::default();
        for seq in 0..10_000 {
            assert!(ledger.take(1, u64::MAX));
            ledger.freed(1, at(3, seq));
        }
        let entries = ledger.shard(at(3, 0).stream)[0].entries.len();
        assert!(entries < MOST_ENTRIES, "{entries}");
        assert_eq!(ledger.pending(), ByteSize(10_000));
        let early = ledger.retire_if(|p| p.seq < 5_000);
        assert!(early <= 5_000, "{early}: never too early");
        assert_eq!(early + ledger.retire_if(|p| p.seq < 10_000), 10_000);
        assert!(ledger.oldest().is_none());
    }

    #[test]
    fn the_oldest_free_is_the_first_that_was_submitted() {
        let ledger = Ledger::default();
        assert!(ledger.take(30, LIMIT));
        for position in [at(5, 90), at(2, 3), at(5, 91)] {
            ledger.freed(10, position);
        }
        assert_eq!(ledger.oldest(), Some(at(5, 90)));
        ledger.retire_if(|p| p == at(5, 90));
        assert_eq!(ledger.oldest(), Some(at(2, 3)));
    }
}
