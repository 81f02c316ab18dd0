//! The happens-before relation of the PTX memory model, between threads of one launch.
//!
//!   block 0 thread 0     st data · fence · st.relaxed flag ──message──►  flag
//!   block 1 thread 9     ld.relaxed flag ◄─────── flag · fence · ld data     ordered: thread 9's view covers the store
//!
//! Clock      one per block, advanced by every barrier, fence and release. An access records its thread and the clock.
//! Barriers   order all threads of the block up to the clock (`full`), or those of a warp (`sync`); knowledge of single
//!            threads is in their views.
//! Releases   store the releasing thread's view at the address (a message). Read-modify-writes keep older messages.
//! Acquires   merge the message into the reader's view. A relaxed read keeps it pending until a fence.
//! Fences     of two `fence.sc` the second knows what the first knew, without a message. That rules out old values (see
//!            `history`) but not races, because the fences might have run in the other order.
//! Shuffles   votes and matches do not order accesses, as PTX specifies; `bar.warp.sync` does.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

/// A thread at a clock, and the layout of its warp's access in a sector. Zero means no access.
///
///   bit 0 set · 3 bits shift · 10 bits thread (warp · 32 + lane) · 24 bits block · 26 bits clock
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Epoch(pub u64);

/// A single lane accessed all bytes.
pub(super) const ONE_LANE: u32 = 5;
/// Accessed by several lanes of the warp; the lane numbers are not recorded.
const SOME_LANE: u32 = 6;
/// A single lane, by a strong access of block scope.
pub(super) const BLOCK_SCOPE: u32 = 7;

/// Mask of the bits of a block number in an epoch.
pub(super) const BLOCK_NUMBER: u32 = 0xFF_FFFF;
/// Maximum clock: later clocks saturate to it, which can only hide a race.
const LAST_CLOCK: u32 = (1 << 26) - 1;

impl Epoch {
    pub const NONE: Epoch = Epoch(0);

    #[inline(always)]
    pub fn new(block: u32, warp: u32, lane: u32, shift: u32, clock: u32) -> Epoch {
        Epoch(
            1 | u64::from(shift) << 1
                | u64::from(warp << 5 | lane & 31) << 4
                | u64::from(block & BLOCK_NUMBER) << 14
                | u64::from(clock.min(LAST_CLOCK)) << 38,
        )
    }

    #[inline(always)]
    pub fn is_some(self) -> bool {
        self.0 != 0
    }

    #[inline(always)]
    pub fn shift(self) -> u32 {
        (self.0 >> 1) as u32 & 7
    }

    #[inline(always)]
    pub fn thread(self) -> u32 {
        (self.0 >> 4) as u32 & 1023
    }

    #[inline(always)]
    pub fn warp(self) -> u32 {
        (self.0 >> 9) as u32 & 31
    }

    #[inline(always)]
    pub fn block(self) -> u32 {
        (self.0 >> 14) as u32 & BLOCK_NUMBER
    }

    #[inline(always)]
    pub fn clock(self) -> u32 {
        (self.0 >> 38) as u32
    }

    /// Whether thread, warp and layout are equal, at any clock.
    #[inline(always)]
    pub fn same_place(self, other: Epoch) -> bool {
        (self.0 ^ other.0) << 26 == 0
    }

    pub fn some_lane(self) -> Epoch {
        Epoch(self.0 & !(7 << 1) & !(31 << 4) | u64::from(SOME_LANE) << 1)
    }

    /// The lane that accessed a byte of the sector.
    #[inline(always)]
    pub fn lane_at(self, byte: u32) -> Option<u32> {
        match self.shift() {
            shift @ 0..=5 => Some((self.thread() + (byte >> shift)) & 31),
            SOME_LANE => None,
            _ => Some(self.thread() & 31),
        }
    }

    /// The epoch of one byte, with a single lane.
    pub fn at(self, byte: u32) -> Epoch {
        match self.lane_at(byte) {
            Some(lane) if self.shift() < ONE_LANE => {
                Epoch(self.0 & !(7 << 1) & !(31 << 4) | u64::from(ONE_LANE) << 1 | u64::from(lane) << 4)
            }
            _ => self,
        }
    }
}

/// Knowledge of a thread beyond its barriers: sorted (thread, warp or block; up to which clock).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    entries: Vec<(u64, u32)>,
}

const WHOLE_BLOCK: u64 = 0;
/// Flag in a key: known only by the order of two `fence.sc`.
const BY_FENCE: u64 = 1 << 63;

fn warp_key(block: u32, warp: u32) -> u64 {
    u64::from(block) << 12 | u64::from(warp + 1)
}

fn thread_key(block: u32, thread: u32) -> u64 {
    u64::from(block) << 12 | 1024 | u64::from(thread)
}

impl View {
    /// A view of a few entries in any order.
    pub fn of(mut entries: Vec<(u64, u32)>) -> View {
        entries.retain(|&(_, clock)| clock > 0);
        entries.sort_unstable();
        View { entries }
    }

    fn clock(&self, key: u64) -> u32 {
        self.entries.binary_search_by_key(&key, |entry| entry.0).map_or(0, |at| self.entries[at].1)
    }

    /// Whether the access happened before this view.
    pub fn covers(&self, epoch: Epoch, byte: u32) -> bool {
        let (block, clock) = (epoch.block(), epoch.clock());
        if self.clock(u64::from(block) << 12 | WHOLE_BLOCK) >= clock
            || self.clock(warp_key(block, epoch.warp())) >= clock
        {
            return true;
        }
        match epoch.lane_at(byte) {
            Some(lane) => self.clock(thread_key(block, epoch.warp() << 5 | lane)) >= clock,
            None => (0..32).any(|lane| self.clock(thread_key(block, epoch.warp() << 5 | lane)) >= clock),
        }
    }

    /// Whether the access happened before this view, by messages or by the order of fences.
    fn knows(&self, epoch: Epoch) -> bool {
        self.covers(epoch, 0) || self.clock(BY_FENCE | u64::from(epoch.block()) << 12) >= epoch.clock()
    }

    /// Whether the view includes any work of a block at this clock or later.
    fn knows_of(&self, block: u32, clock: u32) -> bool {
        [0, BY_FENCE].into_iter().any(|how| {
            let first = how | u64::from(block) << 12;
            let from = self.entries.partition_point(|entry| entry.0 < first);
            self.entries[from..].iter().take_while(|entry| entry.0 < first + (1 << 12)).any(|entry| entry.1 >= clock)
        })
    }

    /// The part of this view that a later `fence.sc` learns: whole blocks, to keep the view of all fences small.
    pub fn by_fence(&self) -> View {
        let mut entries: Vec<(u64, u32)> = Vec::new();
        let keys = self.entries.iter().map(|&(key, clock)| (BY_FENCE | key >> 12 << 12, clock));
        entries.extend(keys);
        entries.sort_unstable();
        entries.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            kept.1 = if same { kept.1.max(later.1) } else { kept.1 };
            same
        });
        View { entries }
    }

    fn includes(&self, other: &View) -> bool {
        other.entries.len() <= self.entries.len() && other.entries.iter().all(|&(key, clock)| self.clock(key) >= clock)
    }
}

/// The union of two views.
pub(super) fn join(a: &Option<Rc<View>>, b: &Option<Rc<View>>) -> Option<Rc<View>> {
    let (a, b) = match (a, b) {
        (None, other) | (other, None) => return other.clone(),
        (Some(a), Some(b)) if Rc::ptr_eq(a, b) => return Some(a.clone()),
        (Some(a), Some(b)) => (a, b),
    };
    if a.includes(b) {
        return Some(a.clone());
    }
    let (mut left, mut right) = (a.entries.iter().peekable(), b.entries.iter().peekable());
    let mut entries = Vec::with_capacity(a.entries.len() + b.entries.len());
    loop {
        match (left.peek(), right.peek()) {
            (Some(x), Some(y)) if x.0 == y.0 => {
                entries.push((x.0, x.1.max(y.1)));
                left.next();
                right.next();
            }
            (Some(x), Some(y)) if x.0 < y.0 => entries.extend(left.next()),
            (Some(_), None) => entries.extend(left.next()),
            (_, Some(_)) => entries.extend(right.next()),
            (None, None) => break,
        }
    }
    Some(Rc::new(View { entries }))
}

/// State of a thread at a fence or release: the view that a message would carry.
#[derive(Debug, Clone, Default)]
pub(super) struct Mark {
    pub block: u32,
    pub thread: u32,
    pub clock: u32,
    pub full: u32,
    pub sync: u32,
    pub view: Option<Rc<View>>,
    /// Whether the fence or release has block scope.
    pub block_scope: bool,
    pub published: Option<Rc<View>>,
}

impl Mark {
    pub fn publish(&mut self) -> Rc<View> {
        if let Some(view) = &self.published {
            return view.clone();
        }
        let own = View::of(vec![
            (u64::from(self.block) << 12 | WHOLE_BLOCK, self.full),
            (warp_key(self.block, self.thread >> 5), self.sync),
            (thread_key(self.block, self.thread), self.clock),
        ]);
        let view = join(&self.view, &Some(Rc::new(own))).unwrap_or_default();
        self.published = Some(view.clone());
        view
    }
}

/// Views of a warp's lanes, created when a lane first learns of work through a message.
#[derive(Debug, Default)]
pub(super) struct LaneViews {
    pub known: [Option<Rc<View>>; 32],
    /// By lane, the last message taken: a polling thread takes the same message again and again.
    pub taken: [Option<Rc<View>>; 32],
    /// By lane, messages read by relaxed loads, pending until a fence.
    pub pending: [Option<Rc<View>>; 32],
    /// By lane, the last fence, which later strong stores publish.
    pub fence: [Option<Box<Mark>>; 32],
}

/// A message at an address.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub view: Rc<View>,
    /// If set, only threads of this block may take the message.
    pub only_block: Option<u32>,
}

/// Hashes by multiplication and rotation, which suffice for addresses.
#[derive(Default)]
pub(super) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }
}

/// Messages by address; for shared memory the key has the block in its upper half.
pub(super) type Messages = HashMap<u64, Message, BuildHasherDefault<AddressHasher>>;

/// Knowledge of a warp's threads at a memory access.
pub(super) struct Observer<'a> {
    pub block: u32,
    pub warp: u32,
    pub clock: u32,
    pub full: u32,
    pub sync: u32,
    pub views: Option<&'a LaneViews>,
    /// Blocks of the launch: first block and count.
    pub launch: (u32, u32),
}

impl Observer<'_> {
    /// Whether an earlier access to a byte of a sector cannot race with `lane`: it happened before, or it belongs to
    /// another launch, whose order is unknown here.
    #[inline]
    pub fn ordered(&self, earlier: Epoch, byte: u32, lane: u32) -> bool {
        self.happened_before(earlier, byte, lane)
            || earlier.block().wrapping_sub(self.launch.0) & BLOCK_NUMBER >= self.launch.1
    }

    #[inline]
    fn happened_before(&self, earlier: Epoch, byte: u32, lane: u32) -> bool {
        if earlier.block() == self.block {
            if earlier.clock() <= self.full {
                return true;
            }
            if earlier.warp() == self.warp
                && (earlier.clock() <= self.sync || earlier.lane_at(byte).is_none_or(|other| other == lane))
            {
                return true;
            }
        }
        match self.views {
            Some(views) => views.known[lane as usize].as_ref().is_some_and(|view| view.covers(earlier, byte)),
            None => false,
        }
    }

    /// Epoch of a strong access of a lane at the current clock.
    pub fn epoch(&self, lane: u32) -> Epoch {
        Epoch::new(self.block, self.warp, lane, ONE_LANE, self.clock)
    }

    fn view(&self, lane: u32) -> Option<&View> {
        self.views.and_then(|views| views.known[lane as usize].as_deref())
    }

    /// Whether an earlier access of one lane happened before this point of `lane`, including the order of fences.
    pub fn knows(&self, earlier: Epoch, lane: u32) -> bool {
        self.happened_before(earlier, 0, lane) || self.view(lane).is_some_and(|view| view.knows(earlier))
    }

    /// Whether `lane` has learned of any work of another block at this clock or later.
    pub fn knows_of(&self, block: u32, clock: u32, lane: u32) -> bool {
        self.view(lane).is_some_and(|view| view.knows_of(block, clock))
    }
}

/// View entries of lanes and warps, for barriers with partial participation.
pub(super) fn lanes_entry(block: u32, warp: u32, lane: u32, clock: u32) -> (u64, u32) {
    (thread_key(block, warp << 5 | lane), clock)
}

pub(super) fn warp_entry(block: u32, warp: u32, clock: u32) -> (u64, u32) {
    (warp_key(block, warp), clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_has_its_parts() {
        let epoch = Epoch::new(70_000, 31, 17, ONE_LANE, 12_345);
        assert_eq!((epoch.block(), epoch.warp(), epoch.thread(), epoch.clock()), (70_000, 31, 31 * 32 + 17, 12_345));
        assert_eq!(epoch.lane_at(31), Some(17));
        let row = Epoch::new(1, 2, 30, 2, 9);
        assert_eq!([0, 3, 4, 8, 12].map(|byte| row.lane_at(byte)), [30, 30, 31, 0, 1].map(Some));
        assert_eq!(row.at(8), Epoch::new(1, 2, 0, ONE_LANE, 9));
        assert_eq!(row.some_lane().lane_at(3), None);
        assert!(row.same_place(Epoch::new(1, 2, 30, 2, 10)) && !row.same_place(Epoch::new(1, 2, 29, 2, 9)));
    }

    #[test]
    fn a_view_covers_what_was_published_and_no_more() {
        let mut mark = Mark { block: 3, thread: 40, clock: 9, full: 4, sync: 6, ..Mark::default() };
        let view = mark.publish();
        let seen = |warp, lane, clock| view.covers(Epoch::new(3, warp, lane, ONE_LANE, clock), 0);
        assert!(seen(0, 0, 4) && !seen(0, 0, 5));
        assert!(seen(1, 0, 6) && !seen(1, 0, 7));
        assert!(seen(1, 8, 9) && !seen(1, 8, 10));
        assert!(!view.covers(Epoch::new(2, 0, 0, ONE_LANE, 1), 0));
        let other = Rc::new(View::of(vec![(thread_key(2, 0), 5)]));
        let both = join(&Some(view.clone()), &Some(other)).unwrap();
        assert!(both.covers(Epoch::new(2, 0, 0, ONE_LANE, 5), 0) && both.includes(&view));
    }

    #[test]
    fn what_fences_publish_is_known_and_orders_no_accesses() {
        let mut mark = Mark { block: 3, thread: 40, clock: 9, full: 4, sync: 6, ..Mark::default() };
        let view = mark.publish().by_fence();
        let at = |clock| Epoch::new(3, 1, 8, ONE_LANE, clock);
        assert!(view.knows(at(9)) && !view.knows(at(10)) && !view.covers(at(1), 0));
        assert!(view.knows_of(3, 9) && !view.knows_of(3, 10) && !view.knows_of(2, 1));
        assert_eq!(view.by_fence(), view);
    }
}
