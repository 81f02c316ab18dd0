//! Shared or global memory as one access sees it: an allocation, or a block's shared memory.
//!
//!   bytes      the values
//!   written    one bit per written byte
//!   shadow     the last accesses
//!   footprint  the sectors accessed by the launch
//!
//! Faults  contain the operation, the address and the allocation.

use super::block::Common;
use super::{FaultKind, Machine, Trouble};
use crate::interpret::footprint::SECTOR_BYTES;
use crate::interpret::heap::{AllocationInfo, Heap, first_clear, set_bits};
use crate::interpret::op::Scope;
use crate::interpret::order::{BLOCK_NUMBER, Epoch, Observer};
use crate::interpret::shadow::{Conflict, Shadow};
use crate::interpret::{Footprint, Launch};

/// Memory of one access: an allocation, or a block's shared memory.
pub(super) struct Region<'m> {
    /// Address of the first byte.
    pub base: u64,
    pub bytes: &'m mut [u8],
    written: &'m mut [u64],
    pub shadow: Option<&'m mut Shadow>,
    footprint: Option<&'m mut Footprint>,
    check_written: bool,
    shared: bool,
    /// Step of the accessing instruction.
    step: u32,
}

/// Operation of an access, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Read,
    Write,
    Update,
}

impl Doing {
    pub fn word(self) -> &'static str {
        match self {
            Doing::Read => "reading",
            Doing::Write => "writing",
            Doing::Update => "updating",
        }
    }
}

impl Region<'_> {
    fn allocation(&self) -> Option<AllocationInfo> {
        (!self.shared).then_some(AllocationInfo { base: self.base, len: self.bytes.len() as u64 })
    }

    fn name(&self) -> &'static str {
        if self.shared { "shared memory" } else { "global memory" }
    }

    /// Whether the byte at `address` is inside.
    #[inline]
    pub fn has(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.bytes.len() as u64
    }

    /// Whether all `bytes` bytes at `address` are inside.
    #[inline]
    pub fn holds(&self, address: u64, bytes: u64) -> bool {
        let offset = address.wrapping_sub(self.base);
        let len = self.bytes.len() as u64;
        offset <= len && bytes <= len - offset
    }

    /// Checks that `bytes` bytes at `address` are inside and aligned, and returns their offset.
    #[inline]
    pub fn check(&self, address: u64, bytes: u64, align: u64, lane: u32, doing: Doing) -> Result<usize, Box<Trouble>> {
        let offset = address.wrapping_sub(self.base);
        if !self.holds(address, bytes) {
            return Err(self.outside(address, bytes.min(align), lane, doing));
        }
        if address & (align - 1) != 0 {
            return Err(misaligned(address, align, lane, doing, self.allocation()));
        }
        Ok(offset as usize)
    }

    fn outside(&self, address: u64, bytes: u64, lane: u32, doing: Doing) -> Box<Trouble> {
        let message = format!("{} {bytes} bytes at {address:#x} of {}", doing.word(), self.name());
        let mut trouble = Trouble::new(FaultKind::OutOfBounds, lane, message);
        if self.shared {
            trouble.message += &format!(", which has {} bytes here", self.bytes.len());
        }
        trouble.address = Some(address);
        trouble.allocation = self.allocation();
        trouble
    }

    fn never_written(&self, offset: usize, size: u64, first_offset: usize, first_lane: u32, unit: u64) -> Box<Trouble> {
        let lane = first_lane + ((offset - first_offset) as u64 / unit.max(1)) as u32;
        let address = self.base + offset as u64;
        let mut trouble = Trouble::new(
            FaultKind::Uninitialised,
            lane.min(31),
            format!("reading {size} bytes of {}: nothing wrote the byte at {address:#x}", self.name()),
        );
        trouble.address = Some(address);
        trouble.allocation = self.allocation();
        trouble
    }

    #[inline]
    pub fn check_written(
        &self,
        offset: usize,
        len: usize,
        size: u64,
        lane: u32,
        unit: u64,
    ) -> Result<(), Box<Trouble>> {
        if self.check_written
            && let Some(at) = first_clear(self.written, offset, len)
        {
            return Err(self.never_written(at, size, offset, lane, unit));
        }
        Ok(())
    }

    #[inline]
    pub fn mark_written(&mut self, offset: usize, len: usize) {
        set_bits(self.written, offset, len, true);
    }

    #[inline]
    pub fn mark_footprint(&mut self, offset: usize, len: usize, kind: Doing) {
        if let Some(footprint) = &mut self.footprint {
            let (first, last) = (offset as u64 / SECTOR_BYTES, (offset + len - 1) as u64 / SECTOR_BYTES);
            match kind {
                Doing::Read => footprint.reads.insert(first, last),
                Doing::Write => footprint.writes.insert(first, last),
                Doing::Update => footprint.atomics.insert(first, last),
            }
            footprint.first_steps[kind as usize].get_or_insert(self.step);
        }
    }

    pub fn race(
        &self,
        machine: &Coordinates,
        conflict: Conflict,
        observer: &Observer<'_>,
        doing: &str,
    ) -> Box<Trouble> {
        let earlier = conflict.earlier;
        let kind = if self.shared { FaultKind::SharedRace } else { FaultKind::GlobalRace };
        let address = self.base + conflict.offset as u64;
        let who = match conflict.earlier_lane {
            Some(lane) => {
                let [x, y, z] = machine.thread(earlier.warp() * 32 + lane);
                format!("thread ({x}, {y}, {z})")
            }
            None => format!("a thread of warp {}", earlier.warp()),
        };
        let place = if earlier.block() == observer.block {
            "the same block".to_string()
        } else {
            let [x, y, z] = machine.block(earlier.block());
            format!("block ({x}, {y}, {z})")
        };
        let message = format!(
            "a {doing} of the byte at {address:#x} of {}, and a {} by {who} of {place}: nothing orders the two",
            self.name(),
            conflict.earlier_kind
        );
        let mut trouble = Trouble::new(kind, conflict.lane, message);
        trouble.address = Some(address);
        trouble.allocation = self.allocation();
        trouble
    }

    /// Records a strong access of one lane. Returns the previous strong write, as `Shadow::strong` does.
    pub fn touch_strong(
        &mut self,
        machine: &Coordinates,
        (offset, bytes, lane): (usize, usize, u32),
        (reads, writes): (bool, bool),
        scope: Scope,
        observer: &Observer<'_>,
    ) -> Result<Epoch, Box<Trouble>> {
        self.mark_footprint(offset, bytes, Doing::Update);
        let Some(shadow) = &mut self.shadow else { return Ok(Epoch::NONE) };
        let result = shadow.strong(offset, bytes, lane, (reads, writes), scope == Scope::Block, observer);
        result.map_err(|conflict| self.race(machine, conflict, observer, "strong access"))
    }

    /// Whether all these bytes were written.
    pub fn is_written(&self, offset: usize, len: usize) -> bool {
        first_clear(self.written, offset, len).is_none()
    }
}

pub(super) fn misaligned(
    address: u64,
    align: u64,
    lane: u32,
    doing: Doing,
    allocation: Option<AllocationInfo>,
) -> Box<Trouble> {
    let message = format!("{} {align} bytes at {address:#x}, which is no multiple of {align}", doing.word());
    let mut trouble = Trouble::new(FaultKind::Misaligned, lane, message);
    trouble.address = Some(address);
    trouble.allocation = allocation;
    trouble
}

/// Converts block and thread numbers to coordinates, for messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Coordinates {
    grid: [u32; 3],
    block: [u32; 3],
    first_block: u32,
}

impl Coordinates {
    fn thread(&self, number: u32) -> [u32; 3] {
        [number % self.block[0], number / self.block[0] % self.block[1], number / self.block[0] / self.block[1]]
    }

    fn block(&self, number: u32) -> [u32; 3] {
        let number = number.wrapping_sub(self.first_block) & BLOCK_NUMBER;
        [number % self.grid[0], number / self.grid[0] % self.grid[1], number / self.grid[0] / self.grid[1]]
    }
}

impl Machine<'_> {
    /// The allocation that contains `address`, as a region.
    #[inline]
    pub(super) fn region(
        &mut self,
        step: u32,
        address: u64,
        bytes: u64,
        lane: u32,
        doing: Doing,
    ) -> Result<Region<'_>, Box<Trouble>> {
        let hint = self.grid.hints[step as usize];
        let fits = |slot: u32, heap: &Heap| {
            let allocation = heap.slot(slot);
            address.wrapping_sub(allocation.base) < allocation.bytes.len() as u64
        };
        let slot = if (hint as usize) < self.heap.num_slots() && fits(hint, self.heap) {
            hint
        } else {
            match self.heap.slot_of(address) {
                Some(slot) => {
                    self.grid.hints[step as usize] = slot;
                    slot
                }
                None => return Err(self.nowhere(address, bytes, lane, doing)),
            }
        };
        let checks = self.options.checks;
        let allocation = self.heap.slot_mut(slot);
        let footprint = self.grid.footprints[slot as usize].get_or_insert_with(|| {
            let (base, len) = (allocation.base, allocation.bytes.len() as u64);
            Box::new(Footprint { base, len, ..Footprint::default() })
        });
        let shadow = &mut self.shadows[slot as usize];
        if checks.global_races && shadow.is_none() {
            *shadow = Some(Shadow::new(allocation.bytes.len(), false));
        }
        Ok(Region {
            base: allocation.base,
            bytes: &mut allocation.bytes,
            written: &mut allocation.initialised,
            shadow: shadow.as_mut(),
            footprint: Some(footprint),
            check_written: checks.initialised,
            shared: false,
            step,
        })
    }

    #[cold]
    fn nowhere(&self, address: u64, bytes: u64, lane: u32, doing: Doing) -> Box<Trouble> {
        let message = format!("{} {bytes} bytes at {address:#x}, where nothing is allocated", doing.word());
        let mut trouble = Trouble::new(FaultKind::OutOfBounds, lane, message);
        trouble.address = Some(address);
        trouble.allocation = self.heap.nearest(address);
        trouble
    }

    pub(super) fn shared_region<'m>(&self, common: &'m mut Common) -> Region<'m> {
        let checks = self.options.checks;
        Region {
            base: 0,
            bytes: &mut common.shared,
            written: &mut common.shared_written,
            shadow: checks.shared_races.then_some(&mut common.shadow),
            footprint: None,
            check_written: checks.initialised,
            shared: true,
            step: 0,
        }
    }

    pub(super) fn coordinates(&self) -> Coordinates {
        let Launch { grid, block, .. } = self.grid.launch;
        Coordinates { grid, block, first_block: self.grid.blocks.0 }
    }
}
