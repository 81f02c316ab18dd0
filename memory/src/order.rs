//! Tracks which work is already ordered after which, to save driver calls.
//!
//!   stream A   1 ─ 2 ─ 3 ─(event)            B waits for A·2: takes the event behind A·3, joins its whole clock
//!                         ╲
//!   stream B   1 ───────── wait ─ 3          B's clock: A=3 B=2
//!                                  ╲
//!   stream C   ─────────────────── wait      C waits for B·3: C's clock A=3 B=3, so waiting for A·1 costs nothing now
//!
//! Clock      of a stream: for each stream, the newest position that this one is ordered after. Joined by maximum.
//! Elision    `wait_for(p)` makes no driver call if the clock, or the work the host saw complete, covers `p`.
//! A wait     is work of its stream as well: a later wait for that stream includes everything it waited for.
//! Events     are immutable once recorded; a short ring keeps the newest ones of each stream, so that waits share them.
//! Locks      one stream's at a time, held across the driver call that it orders; never two at once.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::StreamId;

/// A point in a stream: everything submitted up to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Position {
    pub(crate) stream: StreamId,
    pub(crate) seq: u64,
}

impl Position {
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    pub fn seq(&self) -> u64 {
        self.seq
    }
}

/// Cost of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// Already implied: no driver call.
    Elided,
    Inserted,
}

/// Newest position per stream of a device. Streams beyond the end are at 0.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct VectorClock(Vec<u64>);

impl VectorClock {
    pub fn get(&self, stream: u32) -> u64 {
        self.0.get(stream as usize).copied().unwrap_or(0)
    }

    pub fn raise(&mut self, stream: u32, seq: u64) {
        let index = stream as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] = self.0[index].max(seq);
    }

    pub fn join(&mut self, other: &VectorClock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    pub fn covers(&self, stream: u32, seq: u64) -> bool {
        self.get(stream) >= seq
    }
}

/// An event behind everything up to `seq`, with the stream's clock at that point.
#[derive(Clone, Debug)]
pub struct Mark<E> {
    pub seq: u64,
    pub snapshot: Arc<VectorClock>,
    pub event: E,
}

/// Number of events that a stream keeps for waits to share.
const RING: usize = 8;

/// The order known to one stream. `E` is an event; tests use plain numbers.
#[derive(Debug)]
pub struct OrderTracker<E> {
    index: u32,
    seq: u64,
    clock: VectorClock,
    ring: VecDeque<Mark<E>>,
}

impl<E> OrderTracker<E> {
    pub fn new(index: u32) -> Self {
        OrderTracker { index, seq: 0, clock: VectorClock::default(), ring: VecDeque::new() }
    }

    pub fn seq(&self) -> u64 {
        self.seq
    }
}

impl<E: Clone> OrderTracker<E> {
    pub fn clock(&self) -> &VectorClock {
        &self.clock
    }

    /// Counts submitted work. Returns its number.
    pub fn submitted(&mut self) -> u64 {
        self.seq += 1;
        self.clock.raise(self.index, self.seq);
        self.seq
    }

    /// True if everything up to `seq` of `stream` is ordered before this stream's next work.
    pub fn is_after(&self, stream: u32, seq: u64) -> bool {
        stream == self.index || self.clock.covers(stream, seq)
    }

    /// The oldest kept event behind `seq`.
    pub fn mark_behind(&self, seq: u64) -> Option<&Mark<E>> {
        self.ring.iter().find(|mark| mark.seq >= seq)
    }

    /// The kept events, oldest first.
    pub fn marks(&self) -> impl Iterator<Item = &Mark<E>> {
        self.ring.iter()
    }

    /// Adds an event recorded behind everything submitted so far.
    pub fn recorded(&mut self, event: E) -> Mark<E> {
        let mark = Mark { seq: self.seq, snapshot: Arc::new(self.clock.clone()), event };
        if self.ring.len() == RING {
            self.ring.pop_front();
        }
        self.ring.push_back(mark.clone());
        mark
    }

    /// Counts a wait of this stream for `mark` of another: later work of this stream is ordered after the mark's whole
    /// clock.
    pub fn waited(&mut self, mark: &Mark<E>) {
        self.clock.join(&mark.snapshot);
        self.submitted();
    }

    /// Joins `clock`, which the host saw complete, because later submissions are ordered after it.
    pub fn host_saw(&mut self, clock: &VectorClock) {
        self.clock.join(clock);
    }
}
