//! Which bytes of a caching resource are free, behind which position, and next to what.
//!
//!   segment   [ live 512 | free (S, 7) 1024 | free (T, 3) 256 | live 2048 | free (anyone) 4352 ]
//!
//!   free      S next to S       one block behind the later of both positions
//!             anyone next to S  one block of S: to wait for nothing too little is worse than a little too much
//!             S next to T       stay apart until both have passed (`settle`); then they are anyone's, and merge
//!   take      the smallest block that fits; what is left of it stays where it was, behind the same position
//!
//! Pure       no driver, no lock, no clock: whether a position has passed is the caller's to say.
//! Lists      one per (whose order, kind of segment), by length and address: best fit in logarithmic time.
//! Invariants segments are tiled exactly by blocks · free blocks and lists agree · bytes live + bytes free = bytes
//! held.
//!            check() asserts all three.

use std::collections::{BTreeMap, BTreeSet};

use super::{Released, note};
use crate::ids::StreamId;
use crate::order::Position;

/// Small and large requests have segments of their own, so that a small one never splits a large hole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    Small,
    Large,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Live,
    /// Behind a position; behind none, it is anyone's.
    Free(Option<Position>),
}

#[derive(Debug)]
struct Block {
    len: u64,
    segment: u64,
    state: State,
}

#[derive(Debug)]
struct Segment {
    len: u64,
    kind: Kind,
    live: u64,
}

/// Whose order a free block is in.
type Owner = Option<StreamId>;

/// How many blocks of one list are asked about before the next list has its turn.
const LOOKS: usize = 4;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) ptr: u64,
    /// What its next use comes after.
    pub(super) after: Option<Position>,
}

#[derive(Debug, Default)]
pub(super) struct FreeList {
    /// Every block, live and free, by address.
    blocks: BTreeMap<u64, Block>,
    segments: BTreeMap<u64, Segment>,
    lists: BTreeMap<(Owner, Kind), BTreeSet<(u64, u64)>>,
    live_bytes: u64,
    free_bytes: u64,
}

impl FreeList {
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Takes in a segment, which is usable behind `after`.
    pub(super) fn add_segment(&mut self, base: u64, len: u64, kind: Kind, after: Option<Position>) {
        self.segments.insert(base, Segment { len, kind, live: 0 });
        self.free_bytes += len;
        self.insert_free(base, len, base, after);
    }

    /// The smallest fitting block that is in the order of `stream`, or anyone's.
    pub(super) fn take_own(&mut self, stream: StreamId, kind: Kind, wanted: u64, least_rest: u64) -> Option<Taken> {
        let fitting = |owner| self.lists.get(&(owner, kind))?.range((wanted, 0)..).next().copied();
        // Its own on a tie: those of anyone fit every stream.
        let best = [fitting(Some(stream)), fitting(None)].into_iter().flatten().min_by_key(|(len, _)| *len)?;
        Some(self.take(best.1, wanted, least_rest))
    }

    /// The smallest fitting block in the order of another stream, among those whose position is `allowed`.
    pub(super) fn take_other(
        &mut self,
        stream: StreamId,
        kind: Kind,
        wanted: u64,
        least_rest: u64,
        mut allowed: impl FnMut(Position) -> bool,
    ) -> Option<Taken> {
        let others = self.lists.iter().filter(|((owner, of), _)| *of == kind && owner.is_some_and(|o| o != stream));
        let best = others
            .filter_map(|(_, list)| {
                let fitting = list.range((wanted, 0)..).take(LOOKS);
                fitting.copied().find(|(_, ptr)| matches!(self.blocks[ptr].state, State::Free(Some(p)) if allowed(p)))
            })
            .min()?;
        Some(self.take(best.1, wanted, least_rest))
    }

    /// Takes a block back, behind `after`. Returns its length, or `None` if nothing live begins there.
    pub(super) fn free(&mut self, ptr: u64, after: Option<Position>) -> Option<u64> {
        let block = self.blocks.get(&ptr).filter(|block| block.state == State::Live)?;
        let (len, segment) = (block.len, block.segment);
        self.blocks.remove(&ptr);
        self.segments.get_mut(&segment).expect("blocks lie in segments").live -= 1;
        self.live_bytes -= len;
        self.free_bytes += len;
        self.insert_free(ptr, len, segment, after);
        Some(len)
    }

    /// Makes blocks whose position has passed anyone's, so that they merge with every neighbour that is.
    pub(super) fn settle(&mut self, mut passed: impl FnMut(Position) -> bool) {
        let settled: Vec<u64> = self
            .blocks
            .iter()
            .filter(|(_, block)| matches!(block.state, State::Free(Some(position)) if passed(position)))
            .map(|(ptr, _)| *ptr)
            .collect();
        for &ptr in &settled {
            self.unlist(ptr);
            let block = self.blocks.get_mut(&ptr).expect("listed a moment ago");
            block.state = State::Free(None);
            let (len, segment) = (block.len, block.segment);
            self.list(ptr, len, segment, None);
        }
        // Merging after all of them are known: a block between two settled ones takes no position from either.
        for ptr in settled {
            // It may be part of its left neighbour by now.
            if let Some(Block { len, segment, state: State::Free(None) }) = self.blocks.get(&ptr) {
                let (len, segment) = (*len, *segment);
                self.unlist(ptr);
                self.blocks.remove(&ptr);
                self.insert_free(ptr, len, segment, None);
            }
        }
    }

    /// Lets go of segments without live blocks, largest first, as long as more than `keep` bytes are free.
    pub(super) fn release(&mut self, keep: u64) -> Vec<Released> {
        let mut idle: Vec<(u64, u64)> =
            self.segments.iter().filter(|(_, segment)| segment.live == 0).map(|(base, s)| (s.len, *base)).collect();
        idle.sort_unstable();
        let mut released = Vec::new();
        while self.free_bytes > keep
            && let Some((len, base)) = idle.pop()
        {
            let pieces: Vec<u64> = self.blocks.range(base..base + len).map(|(ptr, _)| *ptr).collect();
            let mut after: Vec<Position> = Vec::new();
            for ptr in pieces {
                self.unlist(ptr);
                if let Some(Block { state: State::Free(Some(position)), .. }) = self.blocks.remove(&ptr) {
                    note(&mut after, position);
                }
            }
            self.segments.remove(&base);
            self.free_bytes -= len;
            released.push(Released { base, after });
        }
        released
    }

    /// Panics on a broken invariant.
    pub(super) fn check(&self) {
        let (mut live, mut free, mut listed) = (0, 0, 0);
        for (&base, segment) in &self.segments {
            let (mut at, mut live_blocks) = (base, 0);
            for (&ptr, block) in self.blocks.range(base..base + segment.len) {
                assert_eq!((ptr, block.segment), (at, base), "a segment is tiled exactly");
                assert!(block.len > 0, "no block is empty");
                at += block.len;
                match block.state {
                    State::Live => {
                        live += block.len;
                        live_blocks += 1;
                    }
                    State::Free(after) => {
                        free += block.len;
                        listed += 1;
                        let list = &self.lists[&(after.map(|p| p.stream), segment.kind)];
                        assert!(list.contains(&(block.len, ptr)), "a free block is in its list");
                    }
                }
            }
            assert_eq!(at, base + segment.len, "a segment is tiled to its end");
            assert_eq!(live_blocks, segment.live, "a segment knows its live blocks");
        }
        assert_eq!((live, free), (self.live_bytes, self.free_bytes), "bytes live and free add up");
        assert_eq!(listed, self.lists.values().map(BTreeSet::len).sum::<usize>(), "only free blocks are in lists");
    }

    fn take(&mut self, ptr: u64, wanted: u64, least_rest: u64) -> Taken {
        self.unlist(ptr);
        let block = self.blocks.get_mut(&ptr).expect("lists hold blocks");
        let State::Free(after) = block.state else { unreachable!("lists hold free blocks") };
        let (len, segment) = (block.len, block.segment);
        let rest = len - wanted;
        let given = if rest >= least_rest && rest > 0 { wanted } else { len };
        block.state = State::Live;
        block.len = given;
        if given < len {
            let rest = Block { len: len - given, segment, state: State::Free(after) };
            self.blocks.insert(ptr + given, rest);
            self.list(ptr + given, len - given, segment, after);
        }
        self.segments.get_mut(&segment).expect("blocks lie in segments").live += 1;
        self.free_bytes -= given;
        self.live_bytes += given;
        Taken { ptr, after }
    }

    /// Adds a free block, merged with the neighbours that it may merge with.
    fn insert_free(&mut self, mut ptr: u64, mut len: u64, segment: u64, mut after: Option<Position>) {
        let left = self.blocks.range(..ptr).next_back().filter(|(at, b)| **at + b.len == ptr && b.segment == segment);
        if let Some((&at, &Block { len: left_len, state: State::Free(other), .. })) = left
            && let Some(both) = merged(other, after)
        {
            self.unlist(at);
            self.blocks.remove(&at);
            (ptr, len, after) = (at, left_len + len, both);
        }
        if let Some(&Block { len: right_len, segment: of, state: State::Free(other) }) = self.blocks.get(&(ptr + len))
            && of == segment
            && let Some(both) = merged(after, other)
        {
            self.unlist(ptr + len);
            self.blocks.remove(&(ptr + len));
            (len, after) = (len + right_len, both);
        }
        self.blocks.insert(ptr, Block { len, segment, state: State::Free(after) });
        self.list(ptr, len, segment, after);
    }

    fn list(&mut self, ptr: u64, len: u64, segment: u64, after: Option<Position>) {
        let kind = self.segments[&segment].kind;
        self.lists.entry((after.map(|p| p.stream), kind)).or_default().insert((len, ptr));
    }

    fn unlist(&mut self, ptr: u64) {
        let block = &self.blocks[&ptr];
        let State::Free(after) = block.state else { return };
        let key = (after.map(|p| p.stream), self.segments[&block.segment].kind);
        if let Some(list) = self.lists.get_mut(&key) {
            list.remove(&(block.len, ptr));
        }
    }
}

/// The one position that is behind both, if there is one.
fn merged(a: Option<Position>, b: Option<Position>) -> Option<Option<Position>> {
    match (a, b) {
        (Some(a), Some(b)) if a.stream != b.stream => None,
        (Some(a), Some(b)) => Some(Some(Position { seq: a.seq.max(b.seq), ..a })),
        (one, other) => Some(one.or(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const UNIT: u64 = 256;

    fn stream(index: u32) -> StreamId {
        StreamId { device_serial: 0, index }
    }

    fn at(index: u32, seq: u64) -> Position {
        Position { stream: stream(index), seq }
    }

    fn list_of(units: u64) -> FreeList {
        let mut list = FreeList::default();
        list.add_segment(0x10000, units * UNIT, Kind::Small, None);
        list
    }

    fn take(list: &mut FreeList, of: u32, units: u64) -> u64 {
        list.take_own(stream(of), Kind::Small, units * UNIT, UNIT).unwrap().ptr
    }

    #[test]
    fn remainder_of_a_split_inherits_the_position() {
        let mut list = list_of(8);
        let whole = take(&mut list, 0, 8);
        list.free(whole, Some(at(0, 7)));
        let part = list.take_other(stream(1), Kind::Small, 2 * UNIT, UNIT, |_| true).unwrap();
        assert_eq!(part.after, Some(at(0, 7)));
        assert!(list.take_own(stream(1), Kind::Small, UNIT, UNIT).is_none(), "the rest still belongs to stream 0");
        let rest = list.take_other(stream(1), Kind::Small, 6 * UNIT, UNIT, |p| p == at(0, 7)).unwrap();
        assert_eq!((rest.ptr, rest.after), (part.ptr + 2 * UNIT, Some(at(0, 7))));
        list.check();
    }

    #[test]
    fn neighbours_of_one_stream_merge_behind_the_later_position() {
        let mut list = list_of(4);
        let (a, b) = (take(&mut list, 0, 2), take(&mut list, 0, 2));
        list.free(a, Some(at(0, 9)));
        list.free(b, Some(at(0, 3)));
        let whole = list.take_own(stream(0), Kind::Small, 4 * UNIT, UNIT).unwrap();
        assert_eq!(whole, Taken { ptr: a, after: Some(at(0, 9)) });
        list.check();
    }

    #[test]
    fn neighbours_of_different_streams_merge_only_once_both_have_passed() {
        let mut list = list_of(6);
        let blocks = [0, 1, 0].map(|of| (take(&mut list, of, 2), of));
        for (seq, (ptr, of)) in blocks.into_iter().enumerate() {
            list.free(ptr, Some(at(of, seq as u64)));
        }
        let whole = |list: &mut FreeList| list.take_own(stream(0), Kind::Small, 6 * UNIT, UNIT);
        assert!(whole(&mut list).is_none());
        list.settle(|position| position.stream == stream(0));
        list.check();
        assert!(whole(&mut list).is_none(), "stream 1 is still busy in the middle");
        list.settle(|_| true);
        list.check();
        assert_eq!(whole(&mut list), Some(Taken { ptr: blocks[0].0, after: None }));
    }

    #[test]
    fn segments_go_only_without_live_blocks_and_name_all_positions() {
        let mut list = list_of(4);
        list.add_segment(0x20000, 8 * UNIT, Kind::Small, Some(at(2, 1)));
        let (a, b) = (take(&mut list, 0, 2), take(&mut list, 0, 2));
        assert_eq!(list.release(0), [Released { base: 0x20000, after: vec![at(2, 1)] }]);
        list.free(a, Some(at(0, 5)));
        assert!(list.release(0).is_empty());
        list.free(b, Some(at(1, 6)));
        assert!(list.release(4 * UNIT).is_empty(), "that much may stay");
        assert_eq!(list.release(0), [Released { base: a, after: vec![at(0, 5), at(1, 6)] }]);
        assert_eq!((list.live_bytes(), list.free_bytes()), (0, 0));
        list.check();
    }

    #[test]
    fn only_what_is_live_can_be_freed() {
        let mut list = list_of(4);
        let a = take(&mut list, 0, 2);
        assert_eq!(list.free(a + UNIT, None), None);
        assert_eq!(list.free(a, None), Some(2 * UNIT));
        assert_eq!(list.free(a, None), None);
    }

    #[test]
    fn a_rest_below_the_least_stays_with_the_block() {
        let mut list = FreeList::default();
        list.add_segment(0, 10 * UNIT, Kind::Large, None);
        let block = list.take_own(stream(0), Kind::Large, 8 * UNIT, 4 * UNIT).unwrap();
        assert_eq!(list.free(block.ptr, None), Some(10 * UNIT));
    }

    /// What a block's next user must come after, unit by unit: the newest free of each stream since a use began there.
    #[derive(Default)]
    struct Model {
        units: HashMap<u64, Vec<Position>>,
        live: Vec<(u64, u64)>,
        segments: HashMap<u64, u64>,
    }

    #[derive(Clone, Debug)]
    enum Op {
        Take { of: u32, units: u64, steal: bool },
        Free { which: prop::sample::Index, of: u32 },
        Settle { upto: u64 },
        Release { keep: u64 },
        Grow { of: u32, units: u64 },
    }

    fn op() -> impl proptest::strategy::Strategy<Value = Op> {
        prop_oneof![
            4 => (0..3u32, 1..12u64, any::<bool>()).prop_map(|(of, units, steal)| Op::Take { of, units, steal }),
            4 => (any::<prop::sample::Index>(), 0..3u32).prop_map(|(which, of)| Op::Free { which, of }),
            1 => (0..60u64).prop_map(|upto| Op::Settle { upto }),
            1 => (0..64u64).prop_map(|keep| Op::Release { keep }),
            1 => (0..3u32, 1..40u64).prop_map(|(of, units)| Op::Grow { of, units }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Blocks never overlap, nothing is lost, and a block is handed out behind every free of every byte in it.
        #[test]
        fn agrees_with_a_model_of_single_units(ops in proptest::collection::vec(op(), 1..120)) {
            let mut list = FreeList::default();
            let mut model = Model::default();
            let mut next_base = UNIT * 100;
            for (seq, op) in ops.into_iter().enumerate() {
                let seq = seq as u64;
                match op {
                    Op::Grow { of, units } => {
                        list.add_segment(next_base, units * UNIT, Kind::Small, Some(at(of, seq)));
                        model.segments.insert(next_base, units);
                        for unit in 0..units {
                            model.units.insert(next_base / UNIT + unit, vec![at(of, seq)]);
                        }
                        // Now touching the next one, now not.
                        next_base += (units + seq % 2) * UNIT;
                    }
                    Op::Take { of, units, steal } => {
                        let wanted = units * UNIT;
                        let taken = if steal {
                            list.take_other(stream(of), Kind::Small, wanted, UNIT, |_| true)
                        } else {
                            list.take_own(stream(of), Kind::Small, wanted, UNIT)
                        };
                        let Some(taken) = taken else { continue };
                        for &(ptr, len) in &model.live {
                            prop_assert!(taken.ptr + wanted <= ptr || ptr + len <= taken.ptr, "overlap");
                        }
                        if !steal {
                            prop_assert!(taken.after.is_none_or(|p| p.stream == stream(of)));
                        }
                        for unit in taken.ptr / UNIT..(taken.ptr + wanted) / UNIT {
                            let before = model.units.get(&unit).expect("inside a segment");
                            for position in before {
                                prop_assert!(
                                    taken.after.is_some_and(|p| p.stream == position.stream && p.seq >= position.seq),
                                    "{taken:?} forgets {position:?}"
                                );
                            }
                        }
                        model.live.push((taken.ptr, wanted));
                    }
                    Op::Free { which, of } => {
                        if model.live.is_empty() { continue }
                        let (ptr, len) = model.live.swap_remove(which.index(model.live.len()));
                        prop_assert_eq!(list.free(ptr, Some(at(of, seq))), Some(len));
                        for unit in ptr / UNIT..(ptr + len) / UNIT {
                            // The free comes after all that the block's user came after.
                            model.units.insert(unit, vec![at(of, seq)]);
                        }
                    }
                    Op::Settle { upto } => {
                        list.settle(|position| position.seq <= upto);
                        for positions in model.units.values_mut() {
                            positions.retain(|position| position.seq > upto);
                        }
                    }
                    Op::Release { keep } => {
                        for released in list.release(keep * UNIT) {
                            let units = model.segments.remove(&released.base).expect("a segment");
                            for unit in released.base / UNIT..released.base / UNIT + units {
                                for position in model.units.remove(&unit).expect("a unit of the segment") {
                                    prop_assert!(
                                        released.after.iter().any(|p| p.stream == position.stream && p.seq >= position.seq)
                                    );
                                }
                            }
                        }
                        if keep == 0 {
                            prop_assert!(!model.live.is_empty() || list.free_bytes() == 0);
                        }
                    }
                }
                list.check();
                prop_assert_eq!(list.live_bytes(), model.live.iter().map(|(_, len)| len).sum::<u64>());
            }
        }
    }
}
