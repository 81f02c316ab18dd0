//! Slots of one size, cut from slabs: which are free, and behind which position.
//!
//!   slab   [ live | free (S,7) | free (T,3) | live | ... ]
//!   S      takes its newest free slot; another stream's oldest, if it is ordered after it
//!
//! Pure       no driver, no lock, no clock: whether a position is ordered is the caller's to say.

use std::collections::{BTreeMap, HashSet, VecDeque};

use super::{Released, note};
use crate::ids::StreamId;
use crate::order::Position;

#[derive(Debug)]
struct Slab {
    slots: u64,
    live: HashSet<u64>,
}

#[derive(Debug)]
pub(super) struct Slots {
    size: u64,
    slabs: BTreeMap<u64, Slab>,
    /// By the stream that freed them, oldest first.
    free: BTreeMap<StreamId, VecDeque<(u64, Position)>>,
    live: u64,
}

impl Slots {
    pub(super) fn new(size: u64) -> Self {
        Slots { size, slabs: BTreeMap::new(), free: BTreeMap::new(), live: 0 }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Cuts a slab, which is usable behind `after`.
    pub(super) fn add_slab(&mut self, base: u64, slots: u64, after: Position) {
        self.slabs.insert(base, Slab { slots, live: HashSet::new() });
        let list = self.free.entry(after.stream).or_default();
        // The newest is taken first: lowest addresses at the end.
        (0..slots).rev().for_each(|slot| list.push_back((base + slot * self.size, after)));
    }

    pub(super) fn take_own(&mut self, stream: StreamId) -> Option<u64> {
        let (ptr, _) = self.free.get_mut(&stream)?.pop_back()?;
        self.taken(ptr);
        Some(ptr)
    }

    /// The oldest free slot of another stream, if its position is `allowed`.
    pub(super) fn take_other(
        &mut self,
        stream: StreamId,
        mut allowed: impl FnMut(Position) -> bool,
    ) -> Option<(u64, Position)> {
        let others = self.free.iter_mut().filter(|(owner, _)| **owner != stream);
        let list = others.map(|(_, list)| list).find(|list| list.front().is_some_and(|(_, after)| allowed(*after)))?;
        let (ptr, after) = list.pop_front()?;
        self.taken(ptr);
        Some((ptr, after))
    }

    /// Takes a slot back, behind `after`. False if nothing live begins there.
    pub(super) fn free(&mut self, ptr: u64, after: Position) -> bool {
        let Some(slab) = self.slab_of(ptr) else { return false };
        if !slab.live.remove(&ptr) {
            return false;
        }
        self.live -= 1;
        self.free.entry(after.stream).or_default().push_back((ptr, after));
        true
    }

    /// Lets go of slabs without live slots, as long as more than `keep` bytes of them are held.
    pub(super) fn release(&mut self, keep: u64) -> Vec<Released> {
        let idle = self.slabs.iter().filter(|(_, slab)| slab.live.is_empty());
        let mut idle: Vec<(u64, u64)> = idle.map(|(base, slab)| (*base, slab.slots * self.size)).collect();
        let mut bytes: u64 = idle.iter().map(|(_, len)| len).sum();
        let mut released = Vec::new();
        while bytes > keep
            && let Some((base, len)) = idle.pop()
        {
            self.slabs.remove(&base);
            bytes -= len;
            let mut after = Vec::new();
            for list in self.free.values_mut() {
                list.retain(|(ptr, position)| {
                    let inside = *ptr >= base && *ptr - base < len;
                    if inside {
                        note(&mut after, *position);
                    }
                    !inside
                });
            }
            released.push(Released { base, after });
        }
        released
    }

    /// Panics on a broken invariant.
    pub(super) fn check(&self) {
        let free: Vec<u64> = self.free.values().flatten().map(|(ptr, _)| *ptr).collect();
        let live: Vec<u64> = self.slabs.values().flat_map(|slab| &slab.live).copied().collect();
        let slots: u64 = self.slabs.values().map(|slab| slab.slots).sum();
        assert_eq!(live.len() as u64, self.live, "live slots are counted");
        let all: HashSet<u64> = free.iter().chain(&live).copied().collect();
        assert_eq!(
            (all.len() as u64, (free.len() + live.len()) as u64),
            (slots, slots),
            "each slot is live or free, once"
        );
        for ptr in all {
            let (base, slab) = self.slabs.range(..=ptr).next_back().expect("slots lie in slabs");
            assert!((ptr - base).is_multiple_of(self.size) && (ptr - base) / self.size < slab.slots);
        }
    }

    fn taken(&mut self, ptr: u64) {
        self.slab_of(ptr).expect("slots lie in slabs").live.insert(ptr);
        self.live += 1;
    }

    fn slab_of(&mut self, ptr: u64) -> Option<&mut Slab> {
        let size = self.size;
        let (base, slab) = self.slabs.range_mut(..=ptr).next_back()?;
        (ptr - base < slab.slots * size).then_some(slab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(index: u32) -> StreamId {
        StreamId { device_serial: 0, index }
    }

    fn at(index: u32, seq: u64) -> Position {
        Position { stream: stream(index), seq }
    }

    #[test]
    fn a_stream_takes_its_newest_and_anothers_oldest() {
        let mut slots = Slots::new(256);
        slots.add_slab(0, 3, at(0, 1));
        let taken: Vec<u64> = std::iter::from_fn(|| slots.take_own(stream(0))).collect();
        assert_eq!(taken, [0, 256, 512]);
        for (seq, ptr) in taken.into_iter().enumerate() {
            assert!(slots.free(ptr, at(0, 10 + seq as u64)));
        }
        slots.check();
        assert_eq!(slots.take_other(stream(1), |after| after.seq < 10), None);
        assert_eq!(slots.take_other(stream(1), |after| after.seq <= 10), Some((0, at(0, 10))));
        assert_eq!(slots.take_own(stream(0)), Some(512));
        assert_eq!(slots.take_own(stream(1)), None);
        slots.check();
    }

    #[test]
    fn only_what_is_live_can_be_freed() {
        let mut slots = Slots::new(256);
        slots.add_slab(4096, 2, at(0, 1));
        let ptr = slots.take_own(stream(0)).unwrap();
        assert!(!slots.free(ptr + 1, at(0, 2)) && !slots.free(0, at(0, 2)) && !slots.free(4096 + 512, at(0, 2)));
        assert!(slots.free(ptr, at(0, 2)));
        assert!(!slots.free(ptr, at(0, 2)));
    }

    #[test]
    fn idle_slabs_go_with_the_positions_of_all_their_slots() {
        let mut slots = Slots::new(256);
        slots.add_slab(0, 2, at(0, 1));
        slots.add_slab(4096, 2, at(0, 2));
        let taken: Vec<u64> = std::iter::from_fn(|| slots.take_own(stream(0))).collect();
        slots.free(taken[0], at(1, 7));
        slots.free(taken[1], at(2, 8));
        slots.free(taken[2], at(0, 9));
        let base = taken[0].min(taken[1]);
        assert!(slots.release(512).is_empty(), "that much may stay");
        assert_eq!(slots.release(0), [Released { base, after: vec![at(1, 7), at(2, 8)] }]);
        slots.check();
        assert_eq!(slots.live(), 1);
    }
}
