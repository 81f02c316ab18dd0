//! Race detection: the last accesses to each byte, compared with each new access.
//!
//!   sector (32 bytes)   compact   one warp's row: write epoch + bytes, two read epochs + bytes
//!                       cells     per word or byte: write, two reads, two strong writes, two strong reads
//!
//! Sectors of a streaming kernel stay compact: a whole row is one comparison. A sector is expanded to cells by a strong
//! access or by several writers.
//!
//! Misses   of many readers two are kept: the last one and, if possible, one of another block; a later write is
//!          compared with those two. Likewise for strong reads and writes. Reads of different bytes of a sector by one
//!          warp count as the first of them. Ordered accesses are never reported.

use super::order::{BLOCK_SCOPE, Epoch, ONE_LANE, Observer};

/// Two accesses without an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conflict {
    /// Offset of the byte in the memory region.
    pub offset: usize,
    pub lane: u32,
    pub earlier: Epoch,
    pub earlier_lane: Option<u32>,
    /// Kind of the earlier access.
    pub earlier_kind: &'static str,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    write: Epoch,
    /// By kind: the last access, and an earlier one not ordered before it, preferably of another block.
    reads: [Epoch; 2],
    strong_writes: [Epoch; 2],
    strong_reads: [Epoch; 2],
}

/// Fields of a sector's record: epochs, then byte masks.
const WRITE: usize = 0;
const READ: usize = 1;
const READ2: usize = 2;
/// Bytes of `WRITE` (low half) and of `READ` (high half).
const MASKS: usize = 3;
/// Bytes of `READ2`.
const MASK2: usize = 4;

/// Marker in place of a write epoch: the sector has cells, and `READ` is the index of the first.
const WORD_CELLS: u64 = u64::MAX;
const BYTE_CELLS: u64 = u64::MAX - 2;

/// Shadow of one memory region: an allocation during a launch, or a block's shared memory.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    sectors: Vec<[u64; 5]>,
    cells: Vec<Cell>,
    /// Memory of a single block: accesses before its last barrier may be dropped.
    one_block: bool,
}

impl Shadow {
    pub fn new(bytes: usize, one_block: bool) -> Shadow {
        Shadow { sectors: vec![[0; 5]; bytes.div_ceil(32)], cells: Vec::new(), one_block }
    }

    pub fn clear(&mut self) {
        self.sectors.fill([0; 5]);
        self.cells.clear();
    }

    /// Records a read or write of `bytes` from `offset` on by a warp; each lane from `first_lane` has `1 << shift`
    /// bytes.
    #[inline]
    pub fn row<const WRITES: bool>(
        &mut self,
        offset: usize,
        bytes: usize,
        first_lane: u32,
        shift: u32,
        observer: &Observer<'_>,
    ) -> Result<(), Conflict> {
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let start = at & !31;
            let stop = (start + 32).min(end);
            let mask = (u32::MAX >> (32 - (stop - at))) << (at - start);
            // The lane that byte 0 of this sector would belong to, modulo 32.
            let lane = first_lane.wrapping_add(((start as i64 - offset as i64) >> shift) as u32);
            let epoch = Epoch::new(observer.block, observer.warp, lane, shift, observer.clock);
            if WRITES {
                self.write(start / 32, epoch, mask, observer)?;
            } else {
                self.read(start / 32, epoch, mask, observer)?;
            }
            at = stop;
        }
        Ok(())
    }

    /// Records a read or write of one lane, up to 32 bytes of one sector.
    #[inline]
    pub fn lane<const WRITES: bool>(
        &mut self,
        offset: usize,
        bytes: usize,
        lane: u32,
        observer: &Observer<'_>,
    ) -> Result<(), Conflict> {
        let mask = (u32::MAX >> (32 - bytes)) << (offset % 32);
        let epoch = Epoch::new(observer.block, observer.warp, lane, ONE_LANE, observer.clock);
        if WRITES {
            self.write(offset / 32, epoch, mask, observer)
        } else {
            self.read(offset / 32, epoch, mask, observer)
        }
    }

    #[inline]
    fn read(&mut self, index: usize, epoch: Epoch, mask: u32, observer: &Observer<'_>) -> Result<(), Conflict> {
        let sector = &mut self.sectors[index];
        if sector[WRITE] != 0 {
            if sector[WRITE] >= BYTE_CELLS {
                return self.touch_cells::<false>(index, epoch, mask, observer);
            }
            let overlap = sector[MASKS] as u32 & mask;
            compare(Epoch(sector[WRITE]), overlap, epoch, index, "write", observer)?;
        }
        let read = Epoch(sector[READ]);
        let read_mask = (sector[MASKS] >> 32) as u32;
        let set = |sector: &mut [u64; 5], epoch: Epoch, mask: u32| {
            sector[READ] = epoch.0;
            sector[MASKS] = sector[MASKS] & 0xFFFF_FFFF | u64::from(mask) << 32;
        };
        if read == Epoch::NONE || read == epoch {
            set(sector, epoch, mask | if read == epoch { read_mask } else { 0 });
        } else if (read.same_place(epoch) && read_mask & !mask == 0)
            || (self.one_block && read.clock() <= observer.full)
        {
            set(sector, epoch, mask);
        } else if read.warp() == epoch.warp() && read.block() == epoch.block() {
            // Several rows of one warp count as one read at the time of the first.
            let merged = if read.same_place(epoch) { read } else { read.some_lane() };
            set(sector, merged, mask | read_mask);
        } else {
            let read2 = Epoch(sector[READ2]);
            if read2 == Epoch::NONE || read.block() != epoch.block() || read2.block() == epoch.block() {
                sector[READ2] = read.0;
                sector[MASK2] = u64::from(read_mask);
            }
            set(sector, epoch, mask);
        }
        Ok(())
    }

    #[inline]
    fn write(&mut self, index: usize, epoch: Epoch, mask: u32, observer: &Observer<'_>) -> Result<(), Conflict> {
        let sector = &mut self.sectors[index];
        if sector[WRITE] >= BYTE_CELLS {
            return self.touch_cells::<true>(index, epoch, mask, observer);
        }
        let write = Epoch(sector[WRITE]);
        let write_mask = sector[MASKS] as u32;
        if write.is_some() && write != epoch {
            compare(write, write_mask & mask, epoch, index, "write", observer)?;
        }
        if sector[READ] != 0 {
            compare(Epoch(sector[READ]), (sector[MASKS] >> 32) as u32 & mask, epoch, index, "read", observer)?;
        }
        if sector[READ2] != 0 {
            compare(Epoch(sector[READ2]), sector[MASK2] as u32 & mask, epoch, index, "read", observer)?;
        }
        let new_mask =
            if write == Epoch::NONE || write_mask & !mask == 0 || (self.one_block && write.clock() <= observer.full) {
                mask
            } else if write == epoch {
                mask | write_mask
            } else {
                return self.touch_cells::<true>(index, epoch, mask, observer);
            };
        sector[WRITE] = epoch.0;
        sector[MASKS] = sector[MASKS] >> 32 << 32 | u64::from(new_mask);
        Ok(())
    }

    /// Index of the first cell of a sector, and the bytes per cell as a shift (0 or 2). Creates cells if necessary, and
    /// splits them into bytes if `mask` splits a word.
    fn cells_of(&mut self, index: usize, epoch: Epoch, mask: u32) -> (usize, u32) {
        let narrow = !is_words(mask) || epoch.shift() < 2;
        let sector = self.sectors[index];
        match sector[WRITE] {
            BYTE_CELLS => return (sector[READ] as usize, 0),
            WORD_CELLS if !narrow => return (sector[READ] as usize, 2),
            WORD_CELLS => {
                let (old, first) = (sector[READ] as usize, self.cells.len());
                for byte in 0..32 {
                    let cell = self.cells[old + byte / 4];
                    self.cells.push(cell);
                }
                self.sectors[index][WRITE] = BYTE_CELLS;
                self.sectors[index][READ] = first as u64;
                return (first, 0);
            }
            _ => {}
        }
        let records = [
            (Epoch(sector[WRITE]), sector[MASKS] as u32),
            (Epoch(sector[READ]), (sector[MASKS] >> 32) as u32),
            (Epoch(sector[READ2]), sector[MASK2] as u32),
        ];
        let narrow = narrow || records.iter().any(|(e, m)| e.is_some() && (!is_words(*m) || e.shift() < 2));
        let shift = if narrow { 0 } else { 2 };
        let first = self.cells.len();
        for number in 0..32 >> shift {
            let byte = number << shift;
            let at = |(epoch, mask): (Epoch, u32)| {
                if epoch.is_some() && mask >> byte & 1 == 1 { epoch.at(byte) } else { Epoch::NONE }
            };
            let [write, read, read2] = records.map(at);
            self.cells.push(Cell { write, reads: [read, read2], ..Cell::default() });
        }
        self.sectors[index] = [if narrow { BYTE_CELLS } else { WORD_CELLS }, first as u64, 0, 0, 0];
        (first, shift)
    }

    #[inline(never)]
    fn touch_cells<const WRITES: bool>(
        &mut self,
        index: usize,
        epoch: Epoch,
        mask: u32,
        observer: &Observer<'_>,
    ) -> Result<(), Conflict> {
        let (first, shift) = self.cells_of(index, epoch, mask);
        for number in 0..32 >> shift {
            let byte = number << shift;
            if mask >> byte & 1 == 0 {
                continue;
            }
            let now = epoch.at(byte);
            let lane = now.thread() & 31;
            let cell = &mut self.cells[first + number as usize];
            let check = |earlier: Epoch, earlier_kind| {
                if !earlier.is_some() || observer.ordered(earlier, byte, lane) {
                    return Ok(());
                }
                let offset = index * 32 + byte as usize;
                Err(Conflict { offset, lane, earlier, earlier_lane: earlier.lane_at(byte), earlier_kind })
            };
            check(cell.write, "write")?;
            for earlier in cell.strong_writes {
                check(earlier, "atomic or strong write")?;
            }
            if WRITES {
                for (read, strong_read) in cell.reads.into_iter().zip(cell.strong_reads) {
                    check(read, "read")?;
                    check(strong_read, "strong read")?;
                }
                *cell = Cell { write: now, ..Cell::default() };
            } else {
                keep(&mut cell.reads, now, byte, lane, observer);
            }
        }
        Ok(())
    }

    /// Records a strong read, write, or both, of one lane. Returns the previous strong write of these bytes; none if
    /// they had several, or if a plain write is newer.
    #[inline]
    pub fn strong(
        &mut self,
        offset: usize,
        bytes: usize,
        lane: u32,
        (reads, writes): (bool, bool),
        block_scope: bool,
        observer: &Observer<'_>,
    ) -> Result<Epoch, Conflict> {
        let mask = (u32::MAX >> (32 - bytes)) << (offset % 32);
        let shift = if block_scope { BLOCK_SCOPE } else { ONE_LANE };
        let epoch = Epoch::new(observer.block, observer.warp, lane, shift, observer.clock);
        let (first, shift) = self.cells_of(offset / 32, epoch, mask);
        let from = offset as u32 % 32;
        let mut byte = from & !((1 << shift) - 1);
        let mut last_write = self.cells[first + (byte >> shift) as usize].strong_writes[0];
        while byte < from + bytes as u32 {
            let cell = &mut self.cells[first + (byte >> shift) as usize];
            let conflict = |earlier: Epoch, earlier_kind| {
                let offset = offset & !31 | byte as usize;
                Err(Conflict { offset, lane, earlier, earlier_lane: earlier.lane_at(byte), earlier_kind })
            };
            if cell.write.is_some() && !observer.ordered(cell.write, byte, lane) {
                return conflict(cell.write, "write");
            }
            if writes {
                for earlier in cell.reads {
                    if earlier.is_some() && !observer.ordered(earlier, byte, lane) {
                        return conflict(earlier, "read");
                    }
                }
            }
            // Strong accesses race only if the scope of one of them excludes the other's block.
            let strong_reads = if writes { cell.strong_reads } else { [Epoch::NONE; 2] };
            for earlier in cell.strong_writes.into_iter().chain(strong_reads) {
                if earlier.is_some()
                    && earlier.block() != observer.block
                    && (block_scope || earlier.shift() == BLOCK_SCOPE)
                    && !observer.ordered(earlier, byte, lane)
                {
                    return conflict(earlier, "strong access of block scope");
                }
            }
            if cell.strong_writes[0] != last_write {
                last_write = Epoch::NONE;
            }
            if writes {
                keep(&mut cell.strong_writes, epoch, byte, lane, observer);
            } else if reads {
                keep(&mut cell.strong_reads, epoch, byte, lane, observer);
            }
            byte += 1 << shift;
        }
        Ok(last_write)
    }
}

/// Adds an access to the two kept accesses of its kind.
#[inline]
fn keep(kept: &mut [Epoch; 2], now: Epoch, byte: u32, lane: u32, observer: &Observer<'_>) {
    let [last, other] = *kept;
    let loses = last.is_some() && !last.same_place(now) && !observer.ordered(last, byte, lane);
    if loses && (!other.is_some() || last.block() != now.block() || other.block() == now.block()) {
        kept[1] = last;
    }
    kept[0] = now;
}

/// Whether the mask covers whole words only.
#[inline]
fn is_words(mask: u32) -> bool {
    let low = mask & 0x1111_1111;
    low * 15 == mask
}

/// Compares a row with an earlier one on their common bytes.
#[inline]
fn compare(
    earlier: Epoch,
    overlap: u32,
    now: Epoch,
    index: usize,
    earlier_kind: &'static str,
    observer: &Observer<'_>,
) -> Result<(), Conflict> {
    if overlap == 0 || earlier.same_place(now) {
        return Ok(());
    }
    if earlier.block() == observer.block
        && (earlier.clock() <= observer.full || (earlier.warp() == observer.warp && earlier.clock() <= observer.sync))
    {
        return Ok(());
    }
    let mut rest = overlap;
    while rest != 0 {
        let byte = rest.trailing_zeros();
        rest &= rest - 1;
        let Some(lane) = now.lane_at(byte) else { continue };
        if !observer.ordered(earlier, byte, lane) {
            let offset = index * 32 + byte as usize;
            return Err(Conflict { offset, lane, earlier, earlier_lane: earlier.lane_at(byte), earlier_kind });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpret::order::{LaneViews, View, join};
    use proptest::prelude::*;
    use std::rc::Rc;

    /// One access or synchronization of a trace.
    #[derive(Debug, Clone)]
    enum Event {
        /// (block, warp, lane, offset, size as a power of two, writes)
        One(u32, u32, u32, usize, u32, bool),
        /// (block, warp, offset in elements, size as a power of two, writes): all 32 lanes, adjacent.
        Row(u32, u32, usize, u32, bool),
        /// Like `One`, by a strong access.
        Strong(u32, u32, u32, usize, u32, bool),
        /// Barrier of all threads of a block.
        Barrier(u32),
        /// Barrier of the lanes of a warp.
        WarpBarrier(u32, u32),
        /// Lane 0 of warp 0 of block `to` learns all knowledge of lane 0 of warp 0 of block `from`.
        Message(u32, u32),
    }

    const BYTES: usize = 512;
    const THREADS: usize = 2 * 64;

    fn thread(block: u32, warp: u32, lane: u32) -> usize {
        block as usize * 64 + warp as usize * 32 + lane as usize
    }

    /// Reference: full vector clocks of all threads and all accesses to every byte.
    struct Plain {
        clocks: Vec<[u32; THREADS]>,
        accesses: Vec<Vec<(usize, u32, bool, bool)>>,
    }

    impl Plain {
        fn new() -> Plain {
            let mut clocks = vec![[0; THREADS]; THREADS];
            (0..THREADS).for_each(|t| clocks[t][t] = 1);
            Plain { clocks, accesses: vec![Vec::new(); BYTES] }
        }

        fn meet(&mut self, threads: std::ops::Range<usize>) {
            let mut joined = [0; THREADS];
            for t in threads.clone() {
                (0..THREADS).for_each(|n| joined[n] = joined[n].max(self.clocks[t][n]));
            }
            for t in threads {
                self.clocks[t] = joined;
                self.clocks[t][t] += 1;
            }
        }

        fn message(&mut self, from: usize, to: usize) {
            for n in 0..THREADS {
                self.clocks[to][n] = self.clocks[to][n].max(self.clocks[from][n]);
            }
            self.clocks[from][from] += 1;
        }

        /// Records the access and returns whether it races with an earlier one.
        fn touch(&mut self, t: usize, bytes: std::ops::Range<usize>, writes: bool, strong: bool) -> bool {
            let mut race = false;
            for byte in bytes {
                let races = |&(other, clock, other_wrote, other_strong): &(usize, u32, bool, bool)| {
                    let conflict = (other_wrote || writes) && !(strong && other_strong);
                    conflict && other != t && self.clocks[t][other] < clock
                };
                race |= self.accesses[byte].iter().any(races);
                self.accesses[byte].push((t, self.clocks[t][t], writes, strong));
            }
            race
        }
    }

    /// Clocks and views as `machine` keeps them.
    struct Fast {
        shadow: Shadow,
        clock: [u32; 2],
        full: [u32; 2],
        sync: [[u32; 2]; 2],
        views: [[LaneViews; 2]; 2],
    }

    impl Fast {
        fn with<R>(&mut self, block: u32, warp: u32, act: impl FnOnce(&mut Shadow, &Observer<'_>) -> R) -> R {
            let (b, w) = (block as usize, warp as usize);
            let observer = Observer {
                block,
                warp,
                clock: self.clock[b],
                full: self.full[b],
                sync: self.sync[b][w],
                views: Some(&self.views[b][w]),
                launch: (0, 2),
            };
            act(&mut self.shadow, &observer)
        }

        fn spread(&mut self, block: usize, warps: std::ops::Range<usize>) {
            let mut merged = None;
            for warp in warps.clone() {
                for view in &self.views[block][warp].known {
                    merged = join(&merged, view);
                }
            }
            for warp in warps {
                self.views[block][warp].known = std::array::from_fn(|_| merged.clone());
            }
        }

        fn message(&mut self, from: u32, to: u32) {
            let (b, t) = (from as usize, to as usize);
            let mut mark = crate::interpret::order::Mark {
                block: from,
                clock: self.clock[b],
                full: self.full[b],
                sync: self.sync[b][0],
                view: self.views[b][0].known[0].clone(),
                ..Default::default()
            };
            let published: Option<Rc<View>> = Some(mark.publish());
            self.clock[b] += 1;
            let known = &mut self.views[t][0].known[0];
            *known = join(known, &published);
        }
    }

    fn event() -> impl Strategy<Value = Event> {
        let block = 0..2_u32;
        prop_oneof![
            6 => (block.clone(), 0..2_u32, 0..32_u32, 0..16_usize, 0..4_u32, any::<bool>())
                .prop_map(|(b, w, l, at, size, writes)| Event::One(b, w, l, at << size, size, writes)),
            3 => (block.clone(), 0..2_u32, 0..32_u32, 0..16_usize, 0..4_u32, any::<bool>())
                .prop_map(|(b, w, l, at, size, writes)| Event::Strong(b, w, l, at << size, size, writes)),
            4 => (block.clone(), 0..2_u32, 0..33_usize, 0..4_u32, any::<bool>())
                .prop_map(|(b, w, at, size, writes)| Event::Row(b, w, at, size, writes)),
            3 => block.clone().prop_map(Event::Barrier),
            2 => (block.clone(), 0..2_u32).prop_map(|(b, w)| Event::WarpBarrier(b, w)),
            3 => block.prop_map(|b| Event::Message(b, 1 - b)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Every conflict of the shadow is a race of the reference; races of two threads at one word are all found.
        #[test]
        fn conflicts_are_races_and_races_of_two_threads_at_a_word_are_conflicts(
            events in prop::collection::vec(event(), 1..40),
            two in any::<bool>(),
            one_block in any::<bool>(),
        ) {
            let block_of = |block: u32| if one_block { 0 } else { block };
            let mut plain = Plain::new();
            let mut fast = Fast {
                shadow: Shadow::new(BYTES, one_block),
                clock: [1; 2],
                full: [0; 2],
                sync: [[0; 2]; 2],
                views: Default::default(),
            };
            for event in events {
                let (raced, found) = match event {
                    Event::One(block, warp, lane, at, size, writes) => {
                        let (block, (warp, lane)) = (block_of(block), if two { (0, 0) } else { (warp, lane) });
                        let (at, len) = if two { (8, 4) } else { (at, 1 << size) };
                        let raced = plain.touch(thread(block, warp, lane), at..at + len, writes, false);
                        let found = fast.with(block, warp, |shadow, observer| match writes {
                            true => shadow.lane::<true>(at, len, lane, observer),
                            false => shadow.lane::<false>(at, len, lane, observer),
                        });
                        (raced, found)
                    }
                    Event::Strong(block, warp, lane, at, size, writes) => {
                        let (block, (warp, lane)) = (block_of(block), if two { (0, 0) } else { (warp, lane) });
                        let (at, len) = if two { (8, 4) } else { (at, 1 << size) };
                        let raced = plain.touch(thread(block, warp, lane), at..at + len, writes, true);
                        let found = fast.with(block, warp, |shadow, observer| {
                            shadow.strong(at, len, lane, (true, writes), false, observer).map(|_| ())
                        });
                        (raced, found)
                    }
                    Event::Row(..) if two => continue,
                    Event::Row(block, warp, at, size, writes) => {
                        let block = block_of(block);
                        let (at, unit) = ((at << size).min(BYTES - (32 << size)), 1_usize << size);
                        let mut raced = false;
                        for lane in 0..32 {
                            let from = at + lane as usize * unit;
                            raced |= plain.touch(thread(block, warp, lane), from..from + unit, writes, false);
                        }
                        let found = fast.with(block, warp, |shadow, observer| match writes {
                            true => shadow.row::<true>(at, 32 * unit, 0, size, observer),
                            false => shadow.row::<false>(at, 32 * unit, 0, size, observer),
                        });
                        (raced, found)
                    }
                    Event::Barrier(block) => {
                        let b = block_of(block) as usize;
                        plain.meet(b * 64..b * 64 + 64);
                        fast.spread(b, 0..2);
                        fast.full[b] = fast.clock[b];
                        fast.clock[b] += 1;
                        continue;
                    }
                    Event::WarpBarrier(block, warp) => {
                        let (b, w) = (block_of(block) as usize, warp as usize);
                        plain.meet(b * 64 + w * 32..b * 64 + w * 32 + 32);
                        fast.spread(b, w..w + 1);
                        fast.sync[b][w] = fast.clock[b];
                        fast.clock[b] += 1;
                        continue;
                    }
                    Event::Message(..) if one_block => continue,
                    Event::Message(from, to) => {
                        plain.message(thread(from, 0, 0), thread(to, 0, 0));
                        fast.message(from, to);
                        continue;
                    }
                };
                prop_assert!(raced || found.is_ok(), "no race, but {found:?}");
                if two {
                    prop_assert!(!raced || found.is_err(), "a race that is not found");
                }
                if raced || found.is_err() {
                    break;
                }
            }
        }
    }
}
