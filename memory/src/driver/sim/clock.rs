//! Vector clocks: determine which operation is ordered before which, independent of wall time.
//!
//! ```text
//!   stream 0   a ─ b ─ record ─────── c            clock of stream 1 after the wait: [3, 1]
//!                        └──────┐                  so a and b (0, 1..2) are before d, and c (0, 4) is not
//!   stream 1             wait ──┴─ d
//! ```
//!
//! Lanes     one per stream, numbered from zero; a lane is used again only when the host has seen its end.
//! Cost      one comparison per question; joining costs one step per lane.

use std::sync::Arc;

/// One operation: the `seq`-th that was submitted to a lane. The first has number 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Epoch {
    pub(super) lane: u32,
    pub(super) seq: u64,
}

/// For each lane, the last operation that is known to be over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Clock {
    seqs: Vec<u64>,
}

impl Clock {
    /// The last operation of `lane` that this clock is ordered after; 0 is none.
    pub(super) fn get(&self, lane: u32) -> u64 {
        self.seqs.get(lane as usize).copied().unwrap_or(0)
    }

    /// Whether `epoch` is ordered before the owner of this clock.
    pub(super) fn has_passed(&self, epoch: Epoch) -> bool {
        self.get(epoch.lane) >= epoch.seq
    }

    /// Raises one lane. Returns whether the clock changed.
    pub(super) fn advance(&mut self, epoch: Epoch) -> bool {
        let lane = epoch.lane as usize;
        if self.seqs.len() <= lane {
            self.seqs.resize(lane + 1, 0);
        }
        let news = self.seqs[lane] < epoch.seq;
        self.seqs[lane] = self.seqs[lane].max(epoch.seq);
        news
    }

    /// Merges `other` into this clock. Returns whether the clock changed.
    pub(super) fn join(&mut self, other: &Clock) -> bool {
        if self.seqs.len() < other.seqs.len() {
            self.seqs.resize(other.seqs.len(), 0);
        }
        let mut news = false;
        for (mine, theirs) in self.seqs.iter_mut().zip(&other.seqs) {
            if *mine < *theirs {
                *mine = *theirs;
                news = true;
            }
        }
        news
    }
}

/// An operation together with all that it is ordered after.
///
/// Its own lane is left out of `seen`, so that the operations of a stream share one clock until a wait changes it.
#[derive(Debug, Clone)]
pub(super) struct Moment {
    pub(super) epoch: Epoch,
    pub(super) seen: Arc<Clock>,
}

impl Moment {
    /// Whether `epoch` is ordered before this operation, or is this operation.
    pub(super) fn is_after(&self, epoch: Epoch) -> bool {
        if epoch.lane == self.epoch.lane { epoch.seq <= self.epoch.seq } else { self.seen.has_passed(epoch) }
    }

    /// Clock of a waiter for this operation: the operation and everything ordered before it.
    pub(super) fn knowledge(&self) -> Clock {
        let mut clock = (*self.seen).clone();
        clock.advance(self.epoch);
        clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(lane: u32, seq: u64) -> Epoch {
        Epoch { lane, seq }
    }

    #[test]
    fn nothing_has_passed_on_a_fresh_clock() {
        let clock = Clock::default();
        assert!(!clock.has_passed(epoch(0, 1)));
        assert_eq!(clock.get(7), 0);
    }

    #[test]
    fn a_wait_orders_the_past_of_the_record_and_nothing_later() {
        let record = Moment { epoch: epoch(0, 3), seen: Arc::default() };
        let waiter = Moment { epoch: epoch(1, 1), seen: Arc::new(record.knowledge()) };
        assert!(waiter.is_after(epoch(0, 1)) && waiter.is_after(epoch(0, 3)));
        assert!(!waiter.is_after(epoch(0, 4)));
        assert!(!record.is_after(epoch(1, 1)));
    }

    #[test]
    fn order_is_transitive_over_lanes() {
        let a = Moment { epoch: epoch(0, 5), seen: Arc::default() };
        let b = Moment { epoch: epoch(1, 2), seen: Arc::new(a.knowledge()) };
        let c = Moment { epoch: epoch(2, 1), seen: Arc::new(b.knowledge()) };
        assert!(c.is_after(epoch(0, 5)) && c.is_after(epoch(1, 2)));
        assert!(!c.is_after(epoch(0, 6)) && !c.is_after(epoch(1, 3)));
    }

    #[test]
    fn joining_and_advancing_tell_what_is_news() {
        let mut clock = Clock::default();
        assert!(clock.advance(epoch(2, 4)));
        assert!(!clock.advance(epoch(2, 3)));
        let mut other = Clock::default();
        assert!(other.join(&clock));
        assert!(!other.join(&clock));
        assert_eq!((other.get(0), other.get(2)), (0, 4));
    }
}
