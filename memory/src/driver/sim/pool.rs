//! A stream-ordered memory pool: segments from the device, cut into blocks that come back with the moment of their
//! free.
//!
//!   segment   │ live │ free, after (17, 4) │ live │ free, any stream │
//!                      └─ stream 17 may take it at once; others when a policy allows it
//!
//! Reuse      same stream · the host has seen the free · an event chain orders it · it has run in fact (opportunistic,
//!            by the seed) · else a wait for it is inserted (internal dependency). Each policy can be switched off.
//! Remapping  pages that the device is done with become one range at a new address, before more memory is asked for.
//! Growth     a segment at a time; whole free segments are given back at a synchronisation above the threshold, by
//!            trim, or to make room for a larger one.
//! Pending    a free that has not run serves its own stream at its own address. Pages under it neither move nor go.
//! Pure       no device, no queue: the caller says what has finished and who is ordered after what.

use super::clock::{Epoch, Moment};
use super::fault::Random;
use crate::driver::PoolHandle;
use std::collections::{BTreeMap, BTreeSet};

/// Blocks are multiples of this, and aligned to it.
pub(super) const BLOCK_BYTES: u64 = 512;

/// A free part of a segment.
#[derive(Debug, Clone)]
struct Free {
    len: u64,
    segment: u64,
    /// The free that must come first; `None` if every stream is ordered after it.
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

/// Where a pool's memory comes from.
pub(super) trait Ground {
    /// Maps `bytes` of physical memory at a new address. `None` if the device lacks the memory.
    fn grow(&mut self, bytes: u64) -> Option<u64>;
    /// An address range for memory that the pool has already.
    fn address(&mut self, bytes: u64) -> u64;
    /// Returns physical memory to the device.
    fn give_back(&mut self, bytes: u64);
}

/// A block that was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) base: u64,
    pub(super) len: u64,
    /// Free that the allocation must wait for (internal dependency).
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
    /// Where it lies. A pool of the host is looked after by the first device that was open when it was made.
    pub(super) device: u32,
    /// A NUMA node, for a pool of the host: it lets in `peers` alone.
    pub(super) host_node: Option<u32>,
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
            host_node: None,
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

    /// Its device, and whether its memory is the host's instead.
    pub(super) fn place(&self) -> (u32, bool) {
        (self.device, self.host_node.is_some())
    }

    /// Whether kernels of a device may touch its memory.
    pub(super) fn lets_in(&self, device: u32) -> bool {
        self.host_node.is_none() && self.device == device || self.peers.contains(&device)
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

    /// Counts an imported allocation.
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

    /// Hands out a block of at least `bytes`. `None` is out of memory.
    pub(super) fn allocate(
        &mut self,
        bytes: u64,
        knowledge: &Knowledge<'_>,
        random: &mut Random,
        ground: &mut dyn Ground,
    ) -> Option<Block> {
        let len = bytes.checked_next_multiple_of(BLOCK_BYTES)?;
        // 1. Reuse. Whether the driver notices that a free has run is its own affair: a coin for each block.
        let luck: BTreeSet<u64> = self.free.keys().copied().filter(|_| random.below(4) > 0).collect();
        if let Some(base) = self.choose(len, random, |base, free| self.may_take(free, knowledge, luck.contains(&base)))
        {
            return Some(self.take(base, len, None));
        }
        if self.sharing == Sharing::No
            && let Some(base) = self.remap(len, knowledge, &|base| luck.contains(&base), ground)
        {
            return Some(self.take(base, len, None));
        }
        // 2. Growth; when there is no more, the driver looks closer at what has been freed.
        if let Some(base) = self.grow(len, ground) {
            return Some(self.take(base, len, None));
        }
        if let Some(base) = self.choose(len, random, |_, free| self.may_take(free, knowledge, true)) {
            return Some(self.take(base, len, None));
        }
        if self.sharing == Sharing::No
            && let Some(base) = self.remap(len, knowledge, &|_| true, ground)
        {
            return Some(self.take(base, len, None));
        }
        if self.sharing == Sharing::No
            && self.release(0, &|pool, free| pool.may_move(free, knowledge, true), ground) > 0
            && let Some(base) = self.grow(len, ground)
        {
            return Some(self.take(base, len, None));
        }
        // 3. A wait for another stream's free.
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

    /// Whether the pages under a free block can be remapped or released: it may be reused, and its last use finished.
    fn may_move(&self, free: &Free, knowledge: &Knowledge<'_>, lucky: bool) -> bool {
        self.may_take(free, knowledge, lucky) && free.after.is_none_or(knowledge.finished)
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

    fn grow(&mut self, len: u64, ground: &mut dyn Ground) -> Option<u64> {
        let bytes = len.checked_next_multiple_of(self.page_bytes)?;
        if self.reserved.checked_add(bytes)? > self.max_bytes {
            return None;
        }
        let base = ground.grow(bytes)?;
        self.add_segment(base, bytes);
        self.reserved += bytes;
        self.reserved_high = self.reserved_high.max(self.reserved);
        Some(base)
    }

    fn add_segment(&mut self, base: u64, bytes: u64) {
        self.segments.insert(base, bytes);
        self.free.insert(base, Free { len: bytes, segment: base, after: None, counted: 0 });
    }

    /// Makes one range of free pages from here and there, if they are enough.
    fn remap(
        &mut self,
        len: u64,
        knowledge: &Knowledge<'_>,
        lucky: &dyn Fn(u64) -> bool,
        ground: &mut dyn Ground,
    ) -> Option<u64> {
        let mut needed = len.checked_next_multiple_of(self.page_bytes)?;
        let bytes = needed;
        let mut pages = Vec::new();
        for (&segment, &segment_len) in &self.segments {
            for (start, end) in self.idle_runs(segment, segment_len, knowledge, lucky) {
                // Pages count from the start of the segment.
                let start = segment + (start - segment).next_multiple_of(self.page_bytes);
                let end = segment + (end - segment) / self.page_bytes * self.page_bytes;
                let taken = end.saturating_sub(start).min(needed);
                if taken > 0 {
                    pages.push((segment, start, start + taken));
                    needed -= taken;
                }
            }
        }
        if needed > 0 {
            return None;
        }
        // From the back, so that the numbers of the segments before stay what they are.
        for (segment, start, end) in pages.into_iter().rev() {
            self.carve(segment, start, end);
        }
        let base = ground.address(bytes);
        self.add_segment(base, bytes);
        Some(base)
    }

    /// Stretches of a segment in which all is free and may move.
    fn idle_runs(
        &self,
        segment: u64,
        len: u64,
        knowledge: &Knowledge<'_>,
        lucky: &dyn Fn(u64) -> bool,
    ) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (&base, free) in self.free.range(segment..segment + len) {
            if !self.may_move(free, knowledge, lucky(base)) {
                continue;
            }
            match runs.last_mut() {
                Some((_, end)) if *end == base => *end = base + free.len,
                _ => runs.push((base, base + free.len)),
            }
        }
        runs
    }

    /// Takes free pages out of a segment, which falls into what is before and what is after them.
    fn carve(&mut self, segment: u64, start: u64, end: u64) {
        let len = self.segments.remove(&segment).expect("the segment of the pages");
        let segment_end = segment + len;
        let cut: Vec<u64> = self.free.range(segment..end).map(|(&base, _)| base).collect();
        for base in cut {
            let free = self.free[&base].clone();
            let free_end = base + free.len;
            if free_end <= start {
                continue;
            }
            self.free.remove(&base);
            // All of it has run; what of it was still counted, because a piece was taken before its end, is so no more.
            self.used -= free.counted;
            let free = Free { counted: 0, ..free };
            if base < start {
                self.free.insert(base, Free { len: start - base, ..free.clone() });
            }
            if free_end > end {
                self.free.insert(end, Free { len: free_end - end, ..free });
            }
        }
        if start > segment {
            self.segments.insert(segment, start - segment);
        }
        if end < segment_end {
            self.segments.insert(end, segment_end - end);
            self.free.range_mut(end..segment_end).for_each(|(_, free)| free.segment = end);
            self.live.range_mut(end..segment_end).for_each(|(_, (_, of))| *of = end);
        }
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
    pub(super) fn synchronised(&mut self, host_saw: &dyn Fn(Epoch) -> bool, ground: &mut dyn Ground) {
        self.retire(host_saw);
        // Physical memory that other processes may have mapped stays.
        let keep = match (self.closing, self.sharing) {
            (true, _) => 0,
            (false, Sharing::No) => self.release_threshold,
            (false, _) => u64::MAX,
        };
        self.release(keep, &|_, free| free.after.is_none(), ground);
    }

    /// Gives back unused segments beyond `keep` bytes.
    pub(super) fn trim(&mut self, keep: u64, host_saw: &dyn Fn(Epoch) -> bool, ground: &mut dyn Ground) -> u64 {
        self.retire(host_saw);
        let keep = if self.sharing == Sharing::No { keep } else { u64::MAX };
        self.release(keep, &|_, free| free.after.is_none(), ground)
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

    fn release(&mut self, keep: u64, allowed: &dyn Fn(&Self, &Free) -> bool, ground: &mut dyn Ground) -> u64 {
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
            ground.give_back(len);
        }
        released
    }

    /// Ends the pool: every segment goes back.
    pub(super) fn dissolve(&mut self, ground: &mut dyn Ground) {
        std::mem::take(&mut self.segments).into_values().for_each(|len| ground.give_back(len));
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

    /// A pool on a device with limited memory; no operation has finished unless a test marks it.
    struct World {
        pool: Pool,
        random: Random,
        ground: Earth,
        finished: Clock,
        host: Clock,
    }

    /// Limited memory and unlimited addresses.
    struct Earth {
        free: u64,
        next_base: u64,
    }

    impl Ground for Earth {
        fn grow(&mut self, bytes: u64) -> Option<u64> {
            self.free = self.free.checked_sub(bytes)?;
            Some(self.address(bytes))
        }

        fn address(&mut self, bytes: u64) -> u64 {
            self.next_base += 2 * bytes;
            self.next_base
        }

        fn give_back(&mut self, bytes: u64) {
            self.free += bytes;
        }
    }

    impl World {
        fn new(device_bytes: u64) -> Self {
            Self {
                pool: Pool::new(0, u64::MAX, PAGE),
                random: Random::new(7),
                ground: Earth { free: device_bytes, next_base: 1 << 32 },
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
            let block = self.pool.allocate(
                bytes,
                &Knowledge {
                    moment: &moment,
                    finished: &|epoch| self.finished.has_passed(epoch),
                    host_saw: &|epoch| self.host.has_passed(epoch),
                },
                &mut self.random,
                &mut self.ground,
            );
            self.pool.check();
            block
        }

        /// The free runs.
        fn run(&mut self, block: Block, epoch: Epoch) {
            self.finished.advance(epoch);
            self.pool.free_has_run(block.base, block.len);
            self.pool.check();
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
        let World { pool, ground, .. } = &mut world;
        pool.synchronised(&|_| false, ground);
        assert_eq!((pool.reserved(), ground.free), (4 * PAGE, 4 * PAGE), "nobody has seen the frees");
        pool.synchronised(&|_| true, ground);
        assert_eq!((pool.reserved(), pool.used(), ground.free), (2 * PAGE, 0, 6 * PAGE));
        assert_eq!(pool.reserved_high(), 4 * PAGE);
        assert_eq!(pool.trim(0, &|_| true, ground), 2 * PAGE);
        world.pool.reset_reserved_high();
        assert_eq!((world.pool.reserved(), world.pool.reserved_high()), (0, 0));
    }

    /// Eight pages, every other one free: four of them make one range of four, and nothing is asked of the device.
    #[test]
    fn scattered_pages_become_one_range_once_the_device_is_done_with_them() {
        let mut world = World::new(8 * PAGE);
        world.pool.reuse = only(false, false, false);
        let whole = world.allocate(8 * PAGE, 0, &[]).unwrap();
        world.free(whole, 0, 1);
        // The stream cuts what it has just freed into blocks, two to a page and a half.
        let blocks: Vec<Block> = (0..8).map(|_| world.allocate(PAGE, 0, &[]).unwrap()).collect();
        let freed: Vec<(Block, Epoch)> = (2..)
            .zip(&blocks)
            .filter(|(seq, _)| seq % 2 == 0)
            .map(|(seq, block)| (*block, world.free(*block, 0, seq)))
            .collect();
        assert!(world.allocate(4 * PAGE, 0, &[]).is_none(), "the frees have not run, and no range is long enough");
        for (block, epoch) in freed {
            world.run(block, epoch);
        }
        assert!(world.allocate(4 * PAGE, 1, &[]).is_none(), "another stream needs a policy");
        let large = world.allocate(4 * PAGE, 0, &[]).unwrap();
        assert!(large.base >= whole.base + 8 * PAGE, "at a new address");
        assert_eq!((world.pool.reserved(), world.pool.reserved_high()), (8 * PAGE, 8 * PAGE));
        assert_eq!((world.pool.used(), world.ground.free), (8 * PAGE, 0));
        world.free(large, 0, 20);
        for (seq, block) in (21..).zip(blocks.into_iter().skip(1).step_by(2)) {
            world.free(block, 0, seq);
        }
        let World { pool, ground, .. } = &mut world;
        assert_eq!(pool.trim(0, &|_| true, ground), 8 * PAGE);
        assert_eq!(ground.free, 8 * PAGE);
    }

    /// A page that is only half free stays where it is.
    #[test]
    fn pages_move_whole() {
        let mut world = World::new(2 * PAGE);
        let halves: Vec<Block> = (0..4).map(|_| world.allocate(PAGE / 2, 0, &[]).unwrap()).collect();
        for (seq, &block) in (1..).zip(&halves).step_by(2) {
            let epoch = world.free(block, 0, seq);
            world.run(block, epoch);
        }
        assert!(world.allocate(PAGE, 0, &[]).is_none(), "half of each page is free");
    }

    #[test]
    fn free_segments_make_room_for_a_larger_block() {
        let mut world = World::new(5 * PAGE);
        let small: Vec<Block> = (0..4).map(|_| world.allocate(PAGE, 0, &[]).unwrap()).collect();
        let freed: Vec<(Block, Epoch)> =
            (1..).zip(small).map(|(seq, block)| (block, world.free(block, 0, seq))).collect();
        assert!(world.allocate(5 * PAGE, 0, &[]).is_none(), "the device still uses them");
        for (block, epoch) in freed {
            world.run(block, epoch);
        }
        assert!(world.allocate(5 * PAGE, 0, &[]).is_some());
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
                let World { pool, ground, host, .. } = &mut world;
                pool.synchronised(&|epoch| host.has_passed(epoch), ground);
                pool.check();
            }
        }
        assert!(world.pool.used_high() > 0);
    }
}
