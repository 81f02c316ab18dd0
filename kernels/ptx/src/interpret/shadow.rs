//! Who touched each byte last, to find two touches in no order.
//!
//!   sector (32 bytes)   compact   one warp's row: write epoch + bytes, two read epochs + bytes
//!                       cells     per word or byte: write, two reads, strong write, strong read
//!
//! A streaming kernel's sectors stay compact: a whole row is one comparison. A sector turns into cells when strong accesses
//! touch it, or when writers share it.
//!
//! Misses   of many readers two are kept, the last and one of another block where there is one: a later write is compared
//!          with those. A strong read or write is compared with the last of its kind. Nothing ordered is ever reported.

use super::order::{BLOCK_SCOPE, Epoch, ONE_LANE, Observer};

/// Two touches in no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conflict {
    /// Offset of the byte in the memory.
    pub offset: usize,
    pub lane: u32,
    pub earlier: Epoch,
    pub earlier_lane: Option<u32>,
    /// What the earlier touch was.
    pub earlier_kind: &'static str,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    write: Epoch,
    read: Epoch,
    read2: Epoch,
    strong_write: Epoch,
    strong_read: Epoch,
}

/// Places in a sector's record: epochs, then masks of bytes.
const WRITE: usize = 0;
const READ: usize = 1;
const READ2: usize = 2;
/// Bytes written (low half) and bytes of `READ` (high half).
const MASKS: usize = 3;
/// Bytes of `READ2`.
const MASK2: usize = 4;

/// In place of a write epoch: the sector has cells, and `READ` is the number of the first.
const WORD_CELLS: u64 = u64::MAX;
const BYTE_CELLS: u64 = u64::MAX - 2;

/// The shadow of one memory: an allocation for a launch, or a block's shared memory.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    sectors: Vec<[u64; 5]>,
    cells: Vec<Cell>,
    /// Memory of one block: what lies before its last barrier can be forgotten.
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

    /// A warp reads or writes `bytes` from `offset` on; lane `first_lane` has the first `1 << shift` bytes, and so on.
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
            // The lane that byte 0 of this sector would belong to; lanes count modulo 32.
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

    /// One lane reads or writes up to 32 bytes of one sector.
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
        } else if read.same_moment(epoch) {
            set(sector, epoch.some_lane(), mask | read_mask);
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

    /// The first cell of a sector, and the bytes of a cell as a shift (0 or 2): makes cells where there are none, and
    /// cells of bytes where `mask` splits a word.
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
            self.cells.push(Cell { write, read, read2, ..Cell::default() });
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
            check(cell.strong_write, "atomic or strong write")?;
            if WRITES {
                check(cell.read, "read")?;
                check(cell.read2, "read")?;
                check(cell.strong_read, "strong read")?;
                *cell = Cell { write: now, ..Cell::default() };
            } else {
                cell.add_read(now, byte, lane, observer);
            }
        }
        Ok(())
    }

    /// One lane reads, writes, or both, by a strong access.
    #[inline]
    pub fn strong(
        &mut self,
        offset: usize,
        bytes: usize,
        lane: u32,
        (reads, writes): (bool, bool),
        block_scope: bool,
        observer: &Observer<'_>,
    ) -> Result<(), Conflict> {
        let mask = (u32::MAX >> (32 - bytes)) << (offset % 32);
        let shift = if block_scope { BLOCK_SCOPE } else { ONE_LANE };
        let epoch = Epoch::new(observer.block, observer.warp, lane, shift, observer.clock);
        let (first, shift) = self.cells_of(offset / 32, epoch, mask);
        let from = offset as u32 % 32;
        let mut byte = from & !((1 << shift) - 1);
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
                for earlier in [cell.read, cell.read2] {
                    if earlier.is_some() && !observer.ordered(earlier, byte, lane) {
                        return conflict(earlier, "read");
                    }
                }
            }
            // Strong accesses race with one another only where a scope leaves the other block out.
            for (earlier, matters) in [(cell.strong_write, true), (cell.strong_read, writes)] {
                let apart = earlier.is_some() && earlier.block() != observer.block;
                if matters
                    && apart
                    && (block_scope || earlier.shift() == BLOCK_SCOPE)
                    && !observer.ordered(earlier, byte, lane)
                {
                    return conflict(earlier, "strong access of block scope");
                }
            }
            if writes {
                cell.strong_write = epoch;
            }
            if reads && !writes {
                cell.strong_read = epoch;
            }
            byte += 1 << shift;
        }
        Ok(())
    }
}

impl Cell {
    #[inline]
    fn add_read(&mut self, now: Epoch, byte: u32, lane: u32, observer: &Observer<'_>) {
        if !self.read.is_some() || self.read.same_place(now) || observer.ordered(self.read, byte, lane) {
            self.read = now;
            return;
        }
        if !self.read2.is_some() || self.read.block() != now.block() || self.read2.block() == now.block() {
            self.read2 = self.read;
        }
        self.read = now;
    }
}

/// Whether the mask covers whole words only.
#[inline]
fn is_words(mask: u32) -> bool {
    let low = mask & 0x1111_1111;
    low * 15 == mask
}

/// Compares a row with an earlier one where they share bytes.
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
