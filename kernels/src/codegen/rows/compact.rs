//! Ordered compaction in one pass: computes the output row of each kept row.
//!
//! ```text
//!   tile     ticket ─► rows ─► keep 1 0 1 1 0 …          a tile is one row per thread
//!   place    rows before this tile (look-back) + earlier warps of the tile + kept lanes before this lane
//! ```
//!
//! ```text
//!   status   [prefix 17][prefix 40][sum 9][ … ]          one word per tile: two state bits, 62 bits of rows
//!            a warp reads 32 predecessors at a time, back to the nearest prefix
//! ```
//!
//! Progress  tiles are numbered by a ticket, so every predecessor of a tile has started.
//! Order     a status word carries its value with its state, so relaxed accesses suffice.
//! Room      if the output has room for fewer rows than pass, the first rows are written and all are counted.
//! Bits      flags of kept rows are packed within the warp and merged into the bitmap by atomic OR; it must be zeroed.
//! After     Merrill & Garland 2016, single-pass scan with decoupled look-back.

use millpond_ptx::ast::{Space, Type};
use millpond_ptx::build::{Atomic, Callee, Compare, FunctionBuilder, ModuleBuilder, Reg, Symbol, Value};

use crate::abi;
use crate::tune;

const WARPS: u64 = tune::COMPACT_THREADS as u64 / 32;
/// The word counts only the rows of the tile.
const SUM: u64 = 1 << 62;
/// The word counts the rows of the tile and of all tiles before it.
const PREFIX: u64 = 2 << 62;
const ROWS: u64 = SUM - 1;

/// Shared memory and registers of a compacting kernel.
pub(crate) struct Compaction {
    tile: Symbol,
    counts: Symbol,
    offsets: Symbol,
    base: Symbol,
    flags: Symbol,
    /// Function for the first warp, see [`place_tile`].
    place_tile: Callee,
    control: Reg,
    num_tiles: Reg,
    /// Number of rows that fit the output (U64); `None`: all rows fit.
    room: Option<Reg>,
    pub thread: Reg,
    warp: Reg,
    lane: Reg,
    first_lane: Reg,
}

/// Output positions of this warp's rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    /// Output row of the first kept row of the warp (U64).
    warp_first: Reg,
    /// Kept rows of the warp (U32).
    count: Reg,
    /// Kept lanes before this one (U32).
    rank: Reg,
    /// Output row of this thread, if it keeps its row (U64).
    pub index: Reg,
    /// True if the thread keeps its row and the output has room for it.
    pub kept: Reg,
}

impl Compaction {
    /// Prepares the compaction; all threads of every block must call it first. `control` is the control block of the
    /// output (U64), `room` the number of rows that fit (U64), unless all fit.
    pub(crate) fn new(
        module: &mut ModuleBuilder,
        f: &mut FunctionBuilder,
        control: Reg,
        num_tiles: Reg,
        room: Option<Reg>,
        flags: bool,
    ) -> Compaction {
        let tile = module.variable(Space::Shared, Type::U32, "tile", 1);
        let counts = module.variable(Space::Shared, Type::U32, "warp_counts", WARPS);
        let offsets = module.variable(Space::Shared, Type::U32, "warp_offsets", WARPS);
        let base = module.variable(Space::Shared, Type::U64, "tile_base", 1);
        let words = if flags { tune::COMPACT_THREADS as u64 } else { 1 };
        let flags = module.variable(Space::Shared, Type::U32, "row_flags", words);
        let place_tile = place_tile(module, &counts, &offsets, &base);
        let thread = f.thread_index();
        let warp = f.shr(thread, 5);
        let lane = f.and(thread, 31u32);
        let first_lane = f.setp(Compare::Eq, lane, 0u32);
        Compaction {
            tile,
            counts,
            offsets,
            base,
            flags,
            place_tile,
            control,
            num_tiles,
            room,
            thread,
            warp,
            lane,
            first_lane,
        }
    }

    /// Takes the next tile; leaves the enclosing loop if no tile is left.
    pub(crate) fn next_tile(&self, f: &mut FunctionBuilder) -> Reg {
        let first = f.setp(Compare::Eq, self.thread, 0u32);
        f.if_(first, |f| {
            let ticket = self.control.at(abi::CONTROL_TICKET as i64);
            let tile = f.atomic(Atomic::Add, Space::Global, Type::U32, ticket, 1u32);
            f.store(Space::Shared, Type::U32, &self.tile, tile);
        });
        f.barrier();
        let tile = f.load(Space::Shared, Type::U32, &self.tile);
        let none = f.setp(Compare::Ge, tile, self.num_tiles);
        f.break_if(none);
        tile
    }

    /// Computes the output rows of the threads where `keep` is true. All threads of the block must call it.
    pub(crate) fn place(&self, f: &mut FunctionBuilder, tile: Reg, keep: Reg) -> Places {
        let ballot = f.ballot(keep);
        let before = f.special("%lanemask_lt");
        let before = f.and(ballot.view(Type::U32), before);
        let rank = f.popc(before);
        let count = f.popc(ballot);
        let counts = shared_address(f, &self.counts);
        let own = f.element32(counts, self.warp, 4);
        f.guarded(self.first_lane, true, |f| f.store(Space::Shared, Type::U32, own, count));
        f.barrier();
        let first_warp = f.setp(Compare::Eq, self.warp, 0u32);
        f.if_(first_warp, |f| {
            let room = self.room.map_or(u64::MAX.into(), Value::Reg);
            f.call(&self.place_tile, &[self.control.into(), tile.into(), self.num_tiles.into(), room]);
        });
        f.barrier();
        let base = f.load(Space::Shared, Type::U64, &self.base);
        let offsets = shared_address(f, &self.offsets);
        let offset = f.element32(offsets, self.warp, 4);
        let offset = f.load(Space::Shared, Type::U32, offset);
        let offset = f.convert(Type::U64, offset);
        let warp_first = f.add(base, offset);
        let wide = f.convert(Type::U64, rank);
        let index = f.add(warp_first, wide);
        let Some(room) = self.room else { return Places { warp_first, count, rank, index, kept: keep } };
        let before = f.min(warp_first, room);
        let left = f.sub(room, before);
        let wide = f.convert(Type::U64, count);
        let count = f.min(wide, left);
        let count = f.convert(Type::U32, count);
        let fits = f.setp(Compare::Lt, index, room);
        let kept = f.and(keep, fits);
        Places { warp_first, count, rank, index, kept }
    }

    /// Writes up to 32 flags of every kept row: bit `i` of `flags` (U32) goes to the bitmap at `bitmaps[i]`.
    /// All threads of the block must call it.
    pub(crate) fn write_flags(&self, f: &mut FunctionBuilder, places: &Places, flags: Reg, bitmaps: &[Reg]) {
        debug_assert!(bitmaps.len() <= 32);
        let shared = shared_address(f, &self.flags);
        let first = f.and(self.thread, !31u32);
        let mine = f.element32(shared, first, 4);
        let to = f.element32(mine, places.rank, 4);
        f.guarded(places.kept, true, |f| f.store(Space::Shared, Type::U32, to, flags));
        f.raw("bar.warp.sync", &[], &[0xffff_ffffu32.into()]);
        let packed = f.copy(Type::U32, 0u32);
        let from = f.element32(mine, self.lane, 4);
        let inside = f.setp(Compare::Lt, self.lane, places.count);
        f.guarded(inside, true, |f| f.load_into("ld.shared", Type::U32, packed, from));
        f.raw("bar.warp.sync", &[], &[0xffff_ffffu32.into()]);
        for (i, &bitmap) in bitmaps.iter().enumerate() {
            let bit = f.and(packed, 1u32 << i);
            let set = f.setp(Compare::Ne, bit, 0u32);
            let mask = f.ballot(set);
            merge_bits(f, mask, places.warp_first, bitmap, self.first_lane);
        }
    }
}

/// The function that the first warp of a block calls per tile: computes the offsets of the warps in the tile, and the
/// tile's own by look-back. It is shared by all kernels of a module: one call serves hundreds of rows, and waits for
/// other blocks anyway.
fn place_tile(module: &mut ModuleBuilder, counts: &Symbol, offsets: &Symbol, base: &Symbol) -> Callee {
    let mut f = FunctionBuilder::function("place_tile");
    let f = &mut f;
    let read = |f: &mut FunctionBuilder, name: &str, ty: Type| {
        let param = f.param(name, ty);
        f.load_param(&param)
    };
    let control = read(f, "control", Type::U64);
    let tile = read(f, "tile_number", Type::U32);
    let num_tiles = read(f, "num_tiles", Type::U32);
    let room = read(f, "room", Type::U64);
    // The first warp's threads are the first ones.
    let lane = f.thread_index();
    let first_lane = f.setp(Compare::Eq, lane, 0u32);
    let holds_warp = f.setp(Compare::Lt, lane, WARPS as u32);
    let own = f.copy(Type::U32, 0u32);
    let counts = shared_address(f, counts);
    let at = f.element32(counts, lane, 4);
    f.guarded(holds_warp, true, |f| f.load_into("ld.shared", Type::U32, own, at));
    // Inclusive scan over the lanes.
    let sum = f.copy(Type::U32, own);
    let distance = f.copy(Type::U32, 1u32);
    f.while_(
        |f| f.setp(Compare::Lt, distance, WARPS as u32),
        |f| {
            let other = f.shuffle("up", sum, distance, 0);
            let has = f.setp(Compare::Ge, lane, distance);
            let both = f.add(sum, other);
            f.guarded(has, true, |f| f.assign(sum, both));
            let next = f.shl(distance, 1);
            f.assign(distance, next);
        },
    );
    let offsets = shared_address(f, offsets);
    let at = f.element32(offsets, lane, 4);
    let before = f.sub(sum, own);
    f.guarded(holds_warp, true, |f| f.store(Space::Shared, Type::U32, at, before));
    let total = f.shuffle("idx", sum, WARPS as u32 - 1, 31);
    let total = f.convert(Type::U64, total);

    let status = f.add(control, abi::CONTROL_BYTES);
    let status = f.element(status, tile, 8);
    let prefix = f.copy(Type::U64, 0u64);
    let has_predecessors = f.setp(Compare::Ne, tile, 0u32);
    f.if_(has_predecessors, |f| {
        let word = f.or(total, SUM);
        f.guarded(first_lane, true, |f| f.store_with("st.relaxed.gpu.global", Type::U64, status, word));
        look_back(f, tile, lane, status, prefix);
    });
    let after = f.add(prefix, total);
    let word = f.or(after, PREFIX);
    let next_tile = f.add(tile, 1u32);
    let last = f.setp(Compare::Eq, next_tile, num_tiles);
    let last = f.and(last, first_lane);
    f.guarded(first_lane, true, |f| {
        f.store_with("st.relaxed.gpu.global", Type::U64, status, word);
        f.store(Space::Shared, Type::U64, base, prefix);
    });
    let rows = f.min(after, room);
    f.guarded(last, true, |f| {
        f.store(Space::Global, Type::U64, control.at(abi::CONTROL_ROWS as i64), rows);
        f.store(Space::Global, Type::U64, control.at(abi::CONTROL_PASSED as i64), after);
    });
    f.tidy();
    module.add(std::mem::replace(f, FunctionBuilder::function("place_tile")))
}

/// Adds the rows of all tiles before `tile` to `prefix`; `status` is the address of the tile's own word.
fn look_back(f: &mut FunctionBuilder, tile: Reg, lane: Reg, status: Reg, prefix: Reg) {
    // Lane 0 reads the nearest predecessor.
    let distance = f.add(lane, 1u32);
    let back = f.mul_wide(distance, 8u32);
    let at = f.sub(status, back);
    let left = f.sub(tile.view(Type::S32), distance.view(Type::S32));
    f.loop_(|f| {
        // Before the first tile there is a virtual prefix of no rows.
        let exists = f.setp(Compare::Ge, left, 0);
        let word = f.copy(Type::U64, PREFIX);
        f.loop_(|f| {
            f.guarded(exists, true, |f| f.load_into("ld.relaxed.gpu.global", Type::U64, word, at));
            let missing = f.setp(Compare::Lt, word, SUM);
            let waiting = f.any(missing);
            let done = f.not(waiting);
            f.break_if(done);
        });
        let is_prefix = f.setp(Compare::Ge, word, PREFIX);
        let prefixes = f.ballot(is_prefix);
        let reversed = f.brev(prefixes);
        let nearest = f.clz(reversed);
        let counts = f.setp(Compare::Le, lane, nearest);
        let rows = f.and(word, ROWS);
        let rows = f.select(counts, rows, 0u64);
        let sum = f.copy(Type::U64, rows);
        let step = f.copy(Type::U32, 16u32);
        f.while_(
            |f| f.setp(Compare::Ne, step, 0u32),
            |f| {
                let other = f.shuffle64("bfly", sum, step, 31);
                let both = f.add(sum, other);
                f.assign(sum, both);
                let next = f.shr(step, 1);
                f.assign(step, next);
            },
        );
        let both = f.add(prefix, sum);
        f.assign(prefix, both);
        let found = f.setp(Compare::Ne, prefixes, 0u32);
        f.break_if(found);
        let next = f.sub(at, 32 * 8u64);
        f.assign(at, next);
        let next = f.sub(left, 32);
        f.assign(left, next);
    });
}

/// Sets the bits of `mask` in the bitmap at `bitmap`, from bit `first` (U64) on, if `when` is true.
pub(crate) fn merge_bits(f: &mut FunctionBuilder, mask: Reg, first: Reg, bitmap: Reg, when: Reg) {
    let word = f.shr(first, 5);
    let address = f.element(bitmap, word, 4);
    let shift = f.convert(Type::U32, first);
    let shift = f.and(shift, 31u32);
    let wide = f.convert(Type::U64, mask.view(Type::U32));
    let wide = f.shl(wide, shift);
    let (low, high) = f.unpack(wide);
    for (half, offset) in [(low, 0), (high, 4)] {
        let some = f.setp(Compare::Ne, half, 0u32);
        let some = f.and(some, when);
        f.guarded(some, true, |f| f.reduce(Atomic::Or, Space::Global, Type::B32, address.at(offset), half));
    }
}

/// 32-bit address of a shared variable.
pub(crate) fn shared_address(f: &mut FunctionBuilder, symbol: &Symbol) -> Reg {
    let wide = f.symbol_address(symbol);
    f.convert(Type::U32, wide)
}

/// 32-bit address arithmetic, for shared memory.
pub(crate) trait Element32 {
    /// `base + index * size`, all U32.
    fn element32(&mut self, base: Reg, index: Reg, size: u32) -> Reg;
}

impl Element32 for FunctionBuilder {
    fn element32(&mut self, base: Reg, index: Reg, size: u32) -> Reg {
        self.mad(index, size, base)
    }
}
