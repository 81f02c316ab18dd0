//! A stream-ordered memory pool: segments from the device, cut into blocks that come back with the moment of their free.
//!
//!   segment   │ live │ free, after (17, 4) │ live │ free, anybody │
//!                      └─ stream 17 may take it at once; others when a policy allows it
//!
//! Reuse      same stream · the host has seen the free · an event chain orders it · it has run in fact (opportunistic, by
//!            the seed) · else a wait for it is inserted (internal dependency). Each policy can be switched off.
//! Growth     a segment at a time; whole free segments are given back at a synchronisation above the threshold, by trim,
//!            or to make room for a larger one (the driver remaps such pages).
//! Pure       no device, no queue: the caller says what has finished and who is ordered after what.

use super::clock::{Epoch, Moment};
use super::fault::Random;
use crate::driver::PoolHandle;
use std::collections::{BTreeMap, BTreeSet};

/// Blocks are multiples of this, and aligned to it.
pub(super) const BLOCK_BYTES: u64 = 512;

/// A part of a segment that nobody has.
#[derive(Debug, Clone)]
struct Free {
    len: u64,
    segment: u64,
    /// The free that must come first; `None` when everybody is ordered after it.
    after: Option<Epoch>,
    /// Bytes of it that still count as used, because that free has not run.
    counted: u64,
}

/// What the caller knows about order.
pub(super) struct Knowledge<'a> {
    /// The allocation itself.
    pub(super) moment: &'a Moment,
    /// Whether an operation has run.
    pub(super) finished: &'a dyn Fn(Epoch) -> bool,
    /// Whether the host has seen it finish.
    pub(super) host_saw: &'a dyn Fn(Epoch) -> bool,
}

/// A block that was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) base: u64,
    pub(super) len: u64,
    /// The allocation must wait for this free: an internal dependency.
    pub(super) wait_for: Option<Epoch>,
}

/// Which kinds of reuse across streams are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reuse {
    pub(super) follow_events: bool,
    pub(super) opportunistic: bool,
    pub(super) internal_dependencies: bool,
}

/// Whether other processes know a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    No,
    Exportable,
    /// Another process's pool: it hands out nothing, and counts what was opened.
    Imported {
        from: PoolHandle,
    },
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) device: u32,
    pub(super) max_bytes: u64,
    pub(super) release_threshold: u64,
    pub(super) reuse: Reuse,
    /// Devices that may touch its memory beside its own.
    pub(super) peers: BTreeSet<u32>,
    pub(super) sharing: Sharing,
    /// Destroyed: gone when the last block is back.
    pub(super) closing: bool,
    /// Bytes that segments are rounded up to.
    page_bytes: u64,
    segments: BTreeMap<u64, u64>,
    free: BTreeMap<u64, Free>,
    /// Live blocks, in program order, with the segment they lie in.
    live: BTreeMap<u64, (u64, u64)>,
    reserved: u64,
    reserved_high: u64,
    used: u64,
    used_high: u64,
}

impl Pool {
    /// An empty pool with CUDA's defaults: threshold 0, all reuse on.
    pub(super) fn new(device: u32, max_bytes: u64, page_bytes: u64) -> Self {
        Self {
            device,
            max_bytes,
            release_threshold: 0,
            reuse: Reuse { follow_events: true, opportunistic: true, internal_dependencies: true },
            peers: BTreeSet::new(),
            sharing: Sharing::No,
            closing: false,
            page_bytes,
            segments: BTreeMap::new(),
            free: BTreeMap::new(),
            live: BTreeMap::new(),
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
        }
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    pub(super) fn reserved_high(&self) -> u64 {
        self.reserved_high
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn used_high(&self) -> u64 {
        self.used_high
    }

    pub(super) fn reset_reserved_high(&mut self) {
        self.reserved_high = self.reserved;
    }

    pub(super) fn reset_used_high(&mut self) {
        self.used_high = self.used;
    }

    pub(super) fn num_live(&self) -> usize {
        self.live.len()
    }

    /// Somebody's allocation was opened here.
    pub(super) fn imported(&mut self, bytes: u64) {
        self.used += bytes;
        self.reserved += bytes;
        self.used_high = self.used_high.max(self.used);
        self.reserved_high = self.reserved_high.max(self.reserved);
    }

    /// It was freed here.
    pub(super) fn unmapped(&mut self, bytes: u64) {
        self.used -= bytes;
        self.reserved -= bytes;
    }

    /// Whether a free has been submitted that has not run.
    pub(super) fn has_pending_frees(&self) -> bool {
        self.free.values().any(|free| free.counted > 0)
    }

    /// Hands out a block of at least `bytes`. `grow` brings a segment of exactly so many bytes from the device, or refuses;
    /// `give_back` takes one. `None` is out of memory.
    pub(super) fn allocate(
        &mut self,
        bytes: u64,
        knowledge: &Knowledge<'_>,
        random: &mut Random,
        grow: &mut dyn FnMut(u64) -> Option<u64>,
        give_back: &mut dyn FnMut(u64, u64),
    ) -> Option<Block> {
        let len = bytes.checked_next_multiple_of(BLOCK_BYTES)?;
        // 1. Reuse. Whether the driver notices that a free has run is its own affair: a coin for each block.
        let luck: BTreeSet<u64> = self.free.keys().copied().filter(|_| random.below(4) > 0).collect();
        if let Some(base) = self.choose(len, random, |base, free| self.may_take(free, knowledge, luck.contains(&base)))
        {
            return Some(self.take(base, len, None));
        }
        // 2. Growth; when the device is full, whole free segments make room.
        if let Some(base) = self.grow(len, grow) {
            return Some(self.take(base, len, None));
        }
        if let Some(base) = self.choose(len, random, |_, free| self.may_take(free, knowledge, true)) {
            return Some(self.take(base, len, None));
        }
        if self.sharing == Sharing::No
            && self.release(0, &|pool, free| pool.may_take(free, knowledge, true), give_back) > 0
            && let Some(base) = self.grow(len, grow)
        {
            return Some(self.take(base, len, None));
        }
        // 3. A wait for somebody else's free.
        if self.reuse.internal_dependencies
            && let Some(base) = self.choose(len, random, |_, free| free.after.is_some())
        {
            let after = self.free[&base].after;
            return Some(self.take(base, len, after));
        }
        None
    }

    fn may_take(&self, free: &Free, knowledge: &Knowledge<'_>, lucky: bool) -> bool {
        let Some(after) = free.after else { return true };
        after.lane == knowledge.moment.epoch.lane
            || (knowledge.host_saw)(after)
            || self.reuse.follow_events && knowledge.moment.is_after(after)
            || self.reuse.opportunistic && lucky && (knowledge.finished)(after)
    }

    /// One of the three smallest free blocks that fit and are allowed.
    fn choose(&self, len: u64, random: &mut Random, allowed: impl Fn(u64, &Free) -> bool) -> Option<u64> {
        let mut fitting: Vec<(u64, u64)> = self
            .free
            .iter()
            .filter(|(base, free)| free.len >= len && allowed(**base, free))
            .map(|(base, free)| (free.len, *base))
            .collect();
        fitting.sort_unstable();
        fitting.truncate(3);
        fitting.get(random.below(fitting.len() as u64) as usize).map(|&(_, base)| base)
    }

    fn grow(&mut self, len: u64, grow: &mut dyn FnMut(u64) -> Option<u64>) -> Option<u64> {
        let bytes = len.checked_next_multiple_of(self.page_bytes)?;
        if self.reserved.checked_add(bytes)? > self.max_bytes {
            return None;
        }
        let base = grow(bytes)?;
        self.segments.insert(base, bytes);
        self.free.insert(base, Free { len: bytes, segment: base, after: None, counted: 0 });
        self.reserved += bytes;
        self.reserved_high = self.reserved_high.max(self.reserved);
        Some(base)
    }

    fn take(&mut self, base: u64, len: u64, wait_for: Option<Epoch>) -> Block {
        let mut free = self.free.remove(&base).expect("the chosen block is free");
        let counted = free.counted.min(len);
        free.counted -= counted;
        self.used = self.used - counted + len;
        self.used_high = self.used_high.max(self.used);
        self.live.insert(base, (len, free.segment));
        if free.len > len {
            free.len -= len;
            self.free.insert(base + len, free);
        }
        Block { base, len, wait_for }
    }

    /// Takes a block back. It is free for the same stream at once, and for others after `after`; with `None`, for all.
    pub(super) fn free(&mut self, base: u64, after: Option<Epoch>) {
        let Some((len, segment)) = self.live.remove(&base) else { return };
        if after.is_none() {
            self.used -= len;
        }
        let counted = if after.is_some() { len } else { 0 };
        self.free.insert(base, Free { len, segment, after, counted });
        self.merge_around(base);
    }

    /// The free of the block at `base` has run.
    pub(super) fn free_has_run(&mut self, base: u64, len: u64) {
        if let Some((start, free)) = self.free.range_mut(..=base).next_back()
            && base < start + free.len
        {
            let counted = free.counted.min(len);
            free.counted -= counted;
            self.used -= counted;
        }
    }

    /// Forgets orders that the host has seen fulfilled, and gives back what is above the threshold: at every
    /// synchronisation.
    pub(super) fn synchronised(&mut self, host_saw: &dyn Fn(Epoch) -> bool, give_back: &mut dyn FnMut(u64, u64)) {
        self.retire(host_saw);
        // Physical memory that other processes may have mapped stays.
        let keep = match (self.closing, self.sharing) {
            (true, _) => 0,
            (false, Sharing::No) => self.release_threshold,
            (false, _) => u64::MAX,
        };
        self.release(keep, &|_, free| free.after.is_none(), give_back);
    }

    /// Gives back unused segments beyond `keep` bytes.
    pub(super) fn trim(
        &mut self,
        keep: u64,
        host_saw: &dyn Fn(Epoch) -> bool,
        give_back: &mut dyn FnMut(u64, u64),
    ) -> u64 {
        self.retire(host_saw);
        let keep = if self.sharing == Sharing::No { keep } else { u64::MAX };
        self.release(keep, &|_, free| free.after.is_none(), give_back)
    }

    fn retire(&mut self, host_saw: &dyn Fn(Epoch) -> bool) {
        let mut retired = Vec::new();
        for (base, free) in &mut self.free {
            if free.after.is_some_and(host_saw) {
                self.used -= free.counted;
                (free.after, free.counted) = (None, 0);
                retired.push(*base);
            }
        }
        for base in retired {
            self.merge_around(base);
        }
    }

    /// Joins a free block with its neighbours in the segment, where the same order holds for both.
    fn merge_around(&mut self, base: u64) {
        let Some(mut this) = self.free.remove(&base) else { return };
        let mut base = base;
        let mergeable = |a: &Free, b: &Free| {
            a.segment == b.segment && a.after.map(|epoch| epoch.lane) == b.after.map(|epoch| epoch.lane)
        };
        let absorb = |this: &mut Free, other: Free| {
            this.len += other.len;
            this.counted += other.counted;
            this.after = this.after.max(other.after);
        };
        if let Some((&before, free)) = self.free.range(..base).next_back()
            && before + free.len == base
            && mergeable(free, &this)
            && let Some(free) = self.free.remove(&before)
        {
            absorb(&mut this, free);
            base = before;
        }
        let after = base + this.len;
        if let Some(free) = self.free.get(&after)
            && mergeable(free, &this)
            && let Some(free) = self.free.remove(&after)
        {
            absorb(&mut this, free);
        }
        self.free.insert(base, this);
    }

    fn release(
        &mut self,
        keep: u64,
        allowed: &dyn Fn(&Self, &Free) -> bool,
        give_back: &mut dyn FnMut(u64, u64),
    ) -> u64 {
        let mut released = 0;
        let segments: Vec<(u64, u64)> = self.segments.iter().map(|(&base, &len)| (base, len)).collect();
        for (segment, len) in segments {
            if self.reserved - len < keep {
                continue;
            }
            let parts: Vec<u64> = self.free.range(segment..segment + len).map(|(&base, _)| base).collect();
            let free: u64 = parts.iter().map(|base| self.free[base].len).sum();
            if free < len || !parts.iter().all(|base| allowed(self, &self.free[base])) {
                continue;
            }
            for base in parts {
                if let Some(free) = self.free.remove(&base) {
                    self.used -= free.counted;
                }
            }
            self.segments.remove(&segment);
            self.reserved -= len;
            released += len;
            give_back(segment, len);
        }
        released
    }

    /// Ends the pool: every segment goes back.
    pub(super) fn dissolve(&mut self, give_back: &mut dyn FnMut(u64, u64)) {
        for (base, len) in std::mem::take(&mut self.segments) {
            give_back(base, len);
        }
        self.free.clear();
        (self.reserved, self.used) = (0, 0);
    }

    /// Panics on a broken invariant: segments are tiled exactly by live and free blocks, and the sums agree.
    #[cfg(test)]
    fn check(&self) {
        let mut tiled: BTreeMap<u64, u64> = BTreeMap::new();
        let blocks = self.live.iter().map(|(base, (len, segment))| (*base, *len, *segment));
        let mut all: Vec<_> =
            blocks.chain(self.free.iter().map(|(base, free)| (*base, free.len, free.segment))).collect();
        all.sort_unstable();
        for (base, len, segment) in all {
            let at = tiled.entry(segment).or_insert(segment);
            assert_eq!(*at, base, "a gap or an overlap at {base:#x}");
            *at += len;
        }
        for (base, len) in &self.segments {
            assert_eq!(tiled.get(base), Some(&(base + len)));
        }
        assert_eq!(self.reserved, self.segments.values().sum::<u64>());
        let live: u64 = self.live.values().map(|(len, _)| len).sum();
        let counted: u64 = self.free.values().map(|free| free.counted).sum();
        assert_eq!(self.used, live + counted);
        assert!(self.used <= self.reserved);
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::Clock;
    use super::*;
    use std::sync::Arc;

    const PAGE: u64 = 1 << 16;

    /// A pool over a device of so many bytes, where nothing has run unless said.
    struct World {
        pool: Pool,
        random: Random,
        device_free: u64,
        next_base: u64,
        finished: Clock,
        host: Clock,
    }

    impl World {
        fn new(device_bytes: u64) -> Self {
            Self {
                pool: Pool::new(0, u64::MAX, PAGE),
                random: Random::new(7),
                device_free: device_bytes,
                next_base: 1 << 32,
                finished: Clock::default(),
                host: Clock::default(),
            }
        }

        fn allocate(&mut self, bytes: u64, lane: u32, seen: &[Epoch]) -> Option<Block> {
            let mut clock = Clock::default();
            for epoch in seen {
                clock.advance(*epoch);
            }
            let moment = Moment { epoch: Epoch { lane, seq: 1000 }, seen: Arc::new(clock) };
            let (device_free, next_base) = (std::cell::Cell::new(self.device_free), &mut self.next_base);
            let block = self.pool.allocate(
                bytes,
                &Knowledge {
                    moment: &moment,
                    finished: &|epoch| self.finished.has_passed(epoch),
                    host_saw: &|epoch| self.host.has_passed(epoch),
                },
                &mut self.random,
                &mut |len| {
                    device_free.set(device_free.get().checked_sub(len)?);
                    *next_base += 2 * len;
                    Some(*next_base)
                },
                &mut |_, len| device_free.set(device_free.get() + len),
            );
            self.device_free = device_free.get();
            self.pool.check();
            block
        }

        fn free(&mut self, block: Block, lane: u32, seq: u64) -> Epoch {
            let epoch = Epoch { lane, seq };
            self.pool.free(block.base, Some(epoch));
            self.pool.check();
            epoch
        }
    }

    fn only(follow_events: bool, opportunistic: bool, internal_dependencies: bool) -> Reuse {
        Reuse { follow_events, opportunistic, internal_dependencies }
    }

    #[test]
    fn the_same_stream_reuses_at_once() {
        let mut world = World::new(PAGE);
        world.pool.reuse = only(false, false, false);
        let a = world.allocate(PAGE, 0, &[]).unwrap();
        world.free(a, 0, 1);
        assert_eq!(world.pool.used(), PAGE, "a free that has not run still counts");
        let b = world.allocate(PAGE, 0, &[]).unwrap();
        assert_eq!(a.base, b.base);
        assert_eq!((world.pool.used(), world.pool.used_high()), (PAGE, PAGE));
        world.pool.free_has_run(a.base, a.len);
        assert_eq!(world.pool.used(), PAGE, "the block has a new owner");
    }

    #[test]
    fn another_stream_needs_a_policy_or_the_host() {
        for (reuse, seen, finished, host, expected) in [
            (only(false, false, false), false, false, false, false),
            (only(true, false, false), true, false, false, true),
            (only(false, true, true), true, false, false, true),
            (only(false, true, false), true, false, false, false),
            (only(true, false, false), false, true, false, false),
            (only(false, true, false), false, true, false, true),
            (only(false, false, false), false, true, true, true),
        ] {
            let mut world = World::new(PAGE);
            world.pool.reuse = reuse;
            let a = world.allocate(PAGE, 0, &[]).unwrap();
            let epoch = world.free(a, 0, 1);
            if finished {
                world.finished.advance(epoch);
            }
            if host {
                world.host.advance(epoch);
            }
            let seen = if seen { vec![epoch] } else { Vec::new() };
            let b = world.allocate(PAGE, 1, &seen);
            assert_eq!(b.is_some(), expected, "{reuse:?}");
            let waits = b.is_some_and(|b| b.wait_for == Some(epoch));
            assert_eq!(waits, reuse == only(false, true, true), "only the internal dependency waits");
        }
    }

    #[test]
    fn a_synchronisation_gives_back_what_is_above_the_threshold() {
        let mut world = World::new(8 * PAGE);
        let blocks: Vec<Block> = (0..4).map(|_| world.allocate(PAGE, 0, &[]).unwrap()).collect();
        world.pool.release_threshold = 2 * PAGE;
        for (seq, block) in (1..).zip(&blocks) {
            world.free(*block, 0, seq);
        }
        let saw = |_: Epoch| false;
        world.pool.synchronised(&saw, &mut |_, _| panic!("nobody has seen the frees"));
        world.pool.synchronised(&|_| true, &mut |_, _| ());
        assert_eq!((world.pool.reserved(), world.pool.used()), (2 * PAGE, 0));
        assert_eq!(world.pool.reserved_high(), 4 * PAGE);
        assert_eq!(world.pool.trim(0, &|_| true, &mut |_, _| ()), 2 * PAGE);
        world.pool.reset_reserved_high();
        assert_eq!((world.pool.reserved(), world.pool.reserved_high()), (0, 0));
    }

    #[test]
    fn free_segments_make_room_for_a_larger_block() {
        let mut world = World::new(4 * PAGE);
        let small: Vec<Block> = (0..4).map(|_| world.allocate(PAGE, 0, &[]).unwrap()).collect();
        for (seq, block) in (1..).zip(small) {
            world.free(block, 0, seq);
        }
        assert!(world.allocate(4 * PAGE, 0, &[]).is_some());
    }

    #[test]
    fn random_use_keeps_the_invariants() {
        let mut world = World::new(64 * PAGE);
        let mut random = Random::new(3);
        let mut live: Vec<Block> = Vec::new();
        let mut frees: Vec<(Epoch, Block)> = Vec::new();
        for seq in 1..3000 {
            let lane = random.below(3) as u32;
            if random.coin() {
                live.extend(world.allocate(1 + random.below(2 * PAGE), lane, &[]));
            } else if !live.is_empty() {
                let block = live.swap_remove(random.below(live.len() as u64) as usize);
                frees.push((world.free(block, lane, seq), block));
            }
            if random.below(5) == 0 {
                for (epoch, block) in frees.drain(..) {
                    world.finished.advance(epoch);
                    world.pool.free_has_run(block.base, block.len);
                    world.pool.check();
                    world.host.advance(epoch);
                }
                let mut back = 0;
                world.pool.synchronised(&|epoch| world.host.has_passed(epoch), &mut |_, len| back += len);
                world.device_free += back;
                world.pool.check();
            }
        }
        assert!(world.pool.used_high() > 0);
    }
}
