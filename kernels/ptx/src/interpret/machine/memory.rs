//! Loads and stores: where an address leads, whether it may be touched, and the bytes.
//!
//!   addresses of 32 lanes ─► space ─► row (neighbours side by side): one check, one copy
//!                                  ├► uniform (all the same):        one check, one load
//!                                  └► scattered:                     lane after lane
//!
//! Windows  generic addresses below [`Heap::LOWEST`] lead to shared, local and parameter memory; the rest is the heap.
//! Strong   accesses go lane after lane: each may carry a message (see `order`).

use super::block::{Common, memory_tag};
use super::warp::{Group, Warp, blend, lanes_of};
use super::{FaultKind, LOCAL_WINDOW, Machine, PARAM_WINDOW, SHARED_WINDOW, Track, Trouble, WINDOWS_END};
use crate::interpret::Footprint;
use crate::interpret::alu::{Row, Source};
use crate::interpret::footprint::SECTOR_BYTES;
use crate::interpret::heap::{AllocationInfo, Heap, first_clear, set_bits};
use crate::interpret::op::{Access, MemorySpace, Scope, Strength};
use crate::interpret::order::{Mark, Message, Observer, join};
use crate::interpret::shadow::{Conflict, Shadow};
use std::rc::Rc;

/// What to add to an address of a space to make it generic.
pub(super) fn window(space: MemorySpace) -> u64 {
    match space {
        MemorySpace::Shared => SHARED_WINDOW,
        MemorySpace::Local { .. } => LOCAL_WINDOW,
        MemorySpace::Param => PARAM_WINDOW,
        MemorySpace::Global | MemorySpace::Const | MemorySpace::Generic => 0,
    }
}

/// The space that a generic address leads to.
fn space_of(address: u64) -> MemorySpace {
    if address >= WINDOWS_END {
        MemorySpace::Global
    } else if address >= PARAM_WINDOW {
        MemorySpace::Param
    } else if address >= LOCAL_WINDOW {
        MemorySpace::Local { frame: false }
    } else if address >= SHARED_WINDOW {
        MemorySpace::Shared
    } else {
        MemorySpace::Global
    }
}

pub(super) fn is_in(address: u64, space: MemorySpace) -> bool {
    let found = space_of(address);
    match space {
        MemorySpace::Const | MemorySpace::Global | MemorySpace::Generic => found == MemorySpace::Global,
        MemorySpace::Local { .. } => found == MemorySpace::Local { frame: false },
        other => found == other,
    }
}

/// How the addresses of the active lanes lie.
enum Pattern {
    /// Lanes `first ..` side by side.
    Row {
        first: u32,
        lanes: u32,
    },
    Uniform,
    Scattered,
}

#[inline]
fn pattern(addresses: &Row, mask: u32, unit: u64) -> Pattern {
    let first = mask.trailing_zeros();
    let start = addresses[first as usize];
    if mask == u32::MAX {
        let mut row = true;
        let mut same = true;
        for (lane, &address) in addresses.iter().enumerate() {
            row &= address == start.wrapping_add(lane as u64 * unit);
            same &= address == start;
        }
        return if row {
            Pattern::Row { first: 0, lanes: 32 }
        } else if same {
            Pattern::Uniform
        } else {
            Pattern::Scattered
        };
    }
    let lanes = mask.count_ones();
    if mask >> first == u32::MAX >> (32 - lanes)
        && (0..lanes).all(|n| addresses[(first + n) as usize] == start.wrapping_add(u64::from(n) * unit))
    {
        return Pattern::Row { first, lanes };
    }
    if lanes_of(mask).all(|lane| addresses[lane] == start) { Pattern::Uniform } else { Pattern::Scattered }
}

/// A memory that lanes share, for one access.
pub(super) struct Region<'m> {
    /// The address of the first byte, and what to add for messages to people.
    base: u64,
    pub bytes: &'m mut [u8],
    written: &'m mut [u64],
    shadow: Option<&'m mut Shadow>,
    footprint: Option<&'m mut Footprint>,
    check_written: bool,
    shared: bool,
    /// The instruction that reaches it.
    step: u32,
}

/// What an access does, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Read,
    Write,
    Update,
}

impl Doing {
    fn word(self) -> &'static str {
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

    /// The offset of `bytes` bytes at `address`, all inside and aligned.
    #[inline]
    pub fn check(&self, address: u64, bytes: u64, align: u64, lane: u32, doing: Doing) -> Result<usize, Box<Trouble>> {
        let offset = address.wrapping_sub(self.base);
        let len = self.bytes.len() as u64;
        if offset > len || bytes > len - offset {
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
    fn mark_footprint(&mut self, offset: usize, len: usize, kind: Doing) {
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

    fn race(&self, machine: &Coordinates, conflict: Conflict, observer: &Observer<'_>, doing: &str) -> Box<Trouble> {
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

    /// A strong access of one lane.
    pub fn touch_strong(
        &mut self,
        machine: &Coordinates,
        (offset, bytes, lane): (usize, usize, u32),
        (reads, writes): (bool, bool),
        scope: Scope,
        observer: &Observer<'_>,
    ) -> Result<(), Box<Trouble>> {
        self.mark_footprint(offset, bytes, Doing::Update);
        if let Some(shadow) = &mut self.shadow {
            let result = shadow.strong(offset, bytes, lane, (reads, writes), scope == Scope::Block, observer);
            if let Err(conflict) = result {
                return Err(self.race(machine, conflict, observer, "strong access"));
            }
        }
        Ok(())
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

/// Numbers to coordinates, for messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Coordinates {
    grid: [u32; 3],
    block: [u32; 3],
}

impl Coordinates {
    fn thread(&self, number: u32) -> [u32; 3] {
        [number % self.block[0], number / self.block[0] % self.block[1], number / self.block[0] / self.block[1]]
    }

    fn block(&self, number: u32) -> [u32; 3] {
        [number % self.grid[0], number / self.grid[0] % self.grid[1], number / self.grid[0] / self.grid[1]]
    }
}

/// One element of `SIZE` bytes, zero-extended.
#[inline(always)]
fn element<const SIZE: usize>(bytes: &[u8; SIZE]) -> u64 {
    let mut word = [0; 8];
    word[..SIZE].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Every `stride`-th element, starting at byte `at`, into lanes one after the other.
#[inline]
fn gather<const SIZE: usize>(bytes: &[u8], stride: usize, at: usize, to: &mut [u64]) {
    if stride == SIZE {
        for (lane, bytes) in to.iter_mut().zip(bytes.as_chunks::<SIZE>().0) {
            *lane = element(bytes);
        }
        return;
    }
    for (lane, unit) in to.iter_mut().zip(bytes.chunks_exact(stride)) {
        if let Some(bytes) = unit[at..].first_chunk::<SIZE>() {
            *lane = element(bytes);
        }
    }
}

#[inline]
fn spread<const SIZE: usize>(bytes: &mut [u8], stride: usize, at: usize, from: &[u64]) {
    if stride == SIZE {
        for (lane, bytes) in from.iter().zip(bytes.as_chunks_mut::<SIZE>().0) {
            bytes.copy_from_slice(&lane.to_le_bytes()[..SIZE]);
        }
        return;
    }
    for (lane, unit) in from.iter().zip(bytes.chunks_exact_mut(stride)) {
        unit[at..at + SIZE].copy_from_slice(&lane.to_le_bytes()[..SIZE]);
    }
}

/// An element of 1, 2, 4 or 8 bytes.
#[inline]
pub(super) fn get(bytes: &[u8], offset: usize, size: usize) -> u64 {
    let mut word = [0; 8];
    word[..size].copy_from_slice(&bytes[offset..offset + size]);
    u64::from_le_bytes(word)
}

#[inline]
pub(super) fn put(bytes: &mut [u8], offset: usize, size: usize, value: u64) {
    bytes[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
}

/// Sign-extends `size` bytes to `bits` bits.
#[inline(always)]
fn extend(value: u64, size: u8, bits: u8) -> u64 {
    let shift = 64 - 8 * u32::from(size);
    ((value << shift) as i64 >> shift) as u64 & (u64::MAX >> (64 - u32::from(bits)))
}

impl Machine<'_> {
    pub(super) fn coordinates(&self) -> Coordinates {
        Coordinates { grid: self.launch.grid, block: self.launch.block }
    }

    /// The allocation that holds `address`, as a region.
    #[inline]
    pub(super) fn region(
        &mut self,
        step: u32,
        address: u64,
        bytes: u64,
        lane: u32,
        doing: Doing,
    ) -> Result<Region<'_>, Box<Trouble>> {
        let hint = self.hints[step as usize];
        let fits = |slot: u32, heap: &Heap| {
            let allocation = heap.slot(slot);
            address.wrapping_sub(allocation.base) < allocation.bytes.len() as u64
        };
        let slot = if (hint as usize) < self.heap.num_slots() && fits(hint, self.heap) {
            hint
        } else {
            match self.heap.slot_of(address) {
                Some(slot) => {
                    self.hints[step as usize] = slot;
                    slot
                }
                None => return Err(self.nowhere(address, bytes, lane, doing)),
            }
        };
        let checks = self.options.checks;
        let allocation = self.heap.slot_mut(slot);
        let track = &mut self.tracks[slot as usize];
        if track.footprint.is_none() {
            *track = Track {
                footprint: Some(Box::new(Footprint {
                    base: allocation.base,
                    len: allocation.bytes.len() as u64,
                    ..Footprint::default()
                })),
                shadow: checks.global_races.then(|| Shadow::new(allocation.bytes.len(), false)),
            };
        }
        Ok(Region {
            base: allocation.base,
            bytes: &mut allocation.bytes,
            written: &mut allocation.initialised,
            shadow: track.shadow.as_mut(),
            footprint: track.footprint.as_deref_mut(),
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

    /// The addresses of all lanes.
    #[inline]
    pub(super) fn addresses(&self, warp: &Warp, group: Group, base: Source, offset: i64, narrow: bool) -> Row {
        let base = base.row(&warp.registers[group.frame..], &self.constants);
        let mut addresses = *base;
        for address in &mut addresses {
            *address = address.wrapping_add_signed(offset);
        }
        if narrow {
            for address in &mut addresses {
                *address &= 0xFFFF_FFFF;
            }
        }
        addresses
    }

    /// Splits lanes by the space that their generic addresses lead to, and makes the addresses relative to it.
    pub(super) fn split(addresses: &mut Row, mask: u32) -> [(MemorySpace, u32); 4] {
        let spaces =
            [MemorySpace::Global, MemorySpace::Shared, MemorySpace::Local { frame: false }, MemorySpace::Param];
        let mut parts = spaces.map(|space| (space, 0));
        let low = addresses.iter().any(|&address| address < WINDOWS_END);
        if !low {
            parts[0].1 = mask;
            return parts;
        }
        for lane in lanes_of(mask) {
            let space = space_of(addresses[lane]);
            for part in &mut parts {
                if part.0 == space {
                    part.1 |= 1 << lane;
                }
            }
            addresses[lane] = addresses[lane].wrapping_sub(window(space));
        }
        parts
    }

    pub(super) fn load(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        mask: u32,
    ) -> Result<(), Box<Trouble>> {
        let mut addresses = self.addresses(warp, group, access.base, access.offset, access.narrow);
        match access.space {
            MemorySpace::Global | MemorySpace::Const => self.load_global(common, warp, access, group, &addresses, mask),
            MemorySpace::Shared => self.load_shared(common, warp, access, group, &addresses, mask),
            MemorySpace::Local { frame } => self.load_local(warp, access, group, &addresses, mask, frame),
            MemorySpace::Param => self.load_param(warp, access, group, &addresses, mask),
            MemorySpace::Generic => {
                for (space, mask) in Machine::split(&mut addresses, mask) {
                    if mask == 0 {
                        continue;
                    }
                    match space {
                        MemorySpace::Shared => self.load_shared(common, warp, access, group, &addresses, mask)?,
                        MemorySpace::Local { .. } => self.load_local(warp, access, group, &addresses, mask, false)?,
                        MemorySpace::Param => self.load_param(warp, access, group, &addresses, mask)?,
                        _ => self.load_global(common, warp, access, group, &addresses, mask)?,
                    }
                }
                Ok(())
            }
        }
    }

    pub(super) fn store(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        mask: u32,
    ) -> Result<(), Box<Trouble>> {
        self.progress();
        let mut addresses = self.addresses(warp, group, access.base, access.offset, access.narrow);
        let read_only = |space: &str| {
            let lane = mask.trailing_zeros();
            let mut trouble = Trouble::new(FaultKind::ReadOnly, lane, format!("a store to {space} memory"));
            trouble.address = Some(addresses[lane as usize]);
            Err(trouble)
        };
        match access.space {
            MemorySpace::Const => read_only("constant"),
            MemorySpace::Param => read_only("parameter"),
            MemorySpace::Global => self.store_global(common, warp, access, group, &addresses, mask),
            MemorySpace::Shared => self.store_shared(common, warp, access, group, &addresses, mask),
            MemorySpace::Local { frame } => self.store_local(warp, access, group, &addresses, mask, frame),
            MemorySpace::Generic => {
                for (space, mask) in Machine::split(&mut addresses, mask) {
                    if mask == 0 {
                        continue;
                    }
                    match space {
                        MemorySpace::Shared => self.store_shared(common, warp, access, group, &addresses, mask)?,
                        MemorySpace::Local { .. } => self.store_local(warp, access, group, &addresses, mask, false)?,
                        MemorySpace::Param => {
                            let lane = mask.trailing_zeros();
                            return Err(Trouble::new(FaultKind::ReadOnly, lane, "a store to parameter memory"));
                        }
                        _ => self.store_global(common, warp, access, group, &addresses, mask)?,
                    }
                }
                Ok(())
            }
        }
    }

    fn load_shared(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
    ) -> Result<(), Box<Trouble>> {
        if access.strength.scope.is_some() {
            return self.load_strong(common, warp, access, group, addresses, mask, true);
        }
        let coordinates = self.coordinates();
        let observer = (common.number & 0xFF_FFFF, warp.index, common.clock, common.full, warp.sync);
        let mut region = self.shared_region(common);
        let Warp { registers, views, .. } = warp;
        let (block, warp, clock, full, sync) = observer;
        let observer = Observer { block, warp, clock, full, sync, views: views.as_deref() };
        match pattern(addresses, mask, u64::from(access.size) * u64::from(access.count)) {
            Pattern::Row { first, lanes } => {
                load_row(&mut region, &coordinates, access, registers, group, addresses, (first, lanes), &observer)
            }
            Pattern::Uniform => {
                load_uniform(&mut region, &coordinates, access, registers, group, addresses, mask, &observer)
            }
            Pattern::Scattered => {
                for lane in lanes_of(mask) {
                    load_lane(&mut region, &coordinates, access, registers, group, addresses[lane], lane, &observer)?;
                }
                Ok(())
            }
        }
    }

    fn load_global(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
    ) -> Result<(), Box<Trouble>> {
        if access.strength.scope.is_some() {
            return self.load_strong(common, warp, access, group, addresses, mask, false);
        }
        let coordinates = self.coordinates();
        let observer = Warp::observer(warp.index, warp.sync, &warp.views, common);
        let registers = &mut warp.registers;
        let unit = u64::from(access.size) * u64::from(access.count);
        let shape = pattern(addresses, mask, unit);
        let first = mask.trailing_zeros();
        match shape {
            Pattern::Row { first, lanes } => {
                let mut region = self.region(group.pc, addresses[first as usize], unit, first, Doing::Read)?;
                load_row(&mut region, &coordinates, access, registers, group, addresses, (first, lanes), &observer)
            }
            Pattern::Uniform => {
                let mut region = self.region(group.pc, addresses[first as usize], unit, first, Doing::Read)?;
                load_uniform(&mut region, &coordinates, access, registers, group, addresses, mask, &observer)
            }
            Pattern::Scattered => {
                let mut pending = mask;
                while pending != 0 {
                    let first = pending.trailing_zeros();
                    let mut region = self.region(group.pc, addresses[first as usize], unit, first, Doing::Read)?;
                    let (base, len) = (region.base, region.bytes.len() as u64);
                    for lane in lanes_of(pending) {
                        if addresses[lane].wrapping_sub(base) < len {
                            let at = addresses[lane];
                            load_lane(&mut region, &coordinates, access, registers, group, at, lane, &observer)?;
                            pending &= !(1 << lane);
                        }
                    }
                }
                Ok(())
            }
        }
    }

    fn store_shared(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
    ) -> Result<(), Box<Trouble>> {
        if access.strength.scope.is_some() {
            return self.store_strong(common, warp, access, group, addresses, mask, true);
        }
        let coordinates = self.coordinates();
        let (block, clock, full) = (common.number & 0xFF_FFFF, common.clock, common.full);
        let observer = Observer { block, warp: warp.index, clock, full, sync: warp.sync, views: warp.views.as_deref() };
        let mut region = self.shared_region(common);
        let values = Values { access, registers: &warp.registers[group.frame..], constants: &self.constants };
        match pattern(addresses, mask, u64::from(access.size) * u64::from(access.count)) {
            Pattern::Row { first, lanes } => {
                store_row(&mut region, &coordinates, &values, addresses, (first, lanes), &observer)
            }
            _ => {
                for lane in lanes_of(mask) {
                    store_lane(&mut region, &coordinates, &values, addresses, lane, mask, &observer)?;
                }
                Ok(())
            }
        }
    }

    fn store_global(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
    ) -> Result<(), Box<Trouble>> {
        if access.strength.scope.is_some() {
            return self.store_strong(common, warp, access, group, addresses, mask, false);
        }
        let coordinates = self.coordinates();
        let observer = Warp::observer(warp.index, warp.sync, &warp.views, common);
        let unit = u64::from(access.size) * u64::from(access.count);
        let constants = std::mem::take(&mut self.constants);
        let values = Values { access, registers: &warp.registers[group.frame..], constants: &constants };
        let result = match pattern(addresses, mask, unit) {
            Pattern::Row { first, lanes } => {
                self.region(group.pc, addresses[first as usize], unit, first, Doing::Write).and_then(|mut region| {
                    store_row(&mut region, &coordinates, &values, addresses, (first, lanes), &observer)
                })
            }
            _ => self.store_scattered(group.pc, &coordinates, &values, addresses, mask, &observer),
        };
        self.constants = constants;
        result
    }

    fn store_scattered(
        &mut self,
        step: u32,
        coordinates: &Coordinates,
        values: &Values<'_>,
        addresses: &Row,
        mask: u32,
        observer: &Observer<'_>,
    ) -> Result<(), Box<Trouble>> {
        let unit = u64::from(values.access.size) * u64::from(values.access.count);
        let mut pending = mask;
        while pending != 0 {
            let first = pending.trailing_zeros();
            let mut region = self.region(step, addresses[first as usize], unit, first, Doing::Write)?;
            let (base, len) = (region.base, region.bytes.len() as u64);
            for lane in lanes_of(pending) {
                if addresses[lane].wrapping_sub(base) < len {
                    store_lane(&mut region, coordinates, values, addresses, lane, mask, observer)?;
                    pending &= !(1 << lane);
                }
            }
        }
        Ok(())
    }

    /// Loads with `.relaxed`, `.acquire` or `.volatile`.
    #[expect(clippy::too_many_arguments, reason = "the parts of one access, each used once")]
    fn load_strong(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
        shared: bool,
    ) -> Result<(), Box<Trouble>> {
        let coordinates = self.coordinates();
        let unit = u64::from(access.size) * u64::from(access.count);
        let scope = access.strength.scope.unwrap_or(Scope::Device);
        for lane in lanes_of(mask) {
            let (number, address) = (common.number, addresses[lane]);
            let (block, clock, full) = (common.number & 0xFF_FFFF, common.clock, common.full);
            {
                let mut region = if shared {
                    self.shared_region(common)
                } else {
                    self.region(group.pc, address, unit, lane as u32, Doing::Read)?
                };
                let Warp { registers, views, index, sync, .. } = &mut *warp;
                let observer = Observer { block, warp: *index, clock, full, sync: *sync, views: views.as_deref() };
                let offset = region.check(address, unit, unit, lane as u32, Doing::Read)?;
                region.check_written(offset, unit as usize, unit, lane as u32, unit)?;
                let place = (offset, unit as usize, lane as u32);
                region.touch_strong(&coordinates, place, (true, false), scope, &observer)?;
                fetch(&region, access, registers, group, offset, lane);
            }
            self.take_message(warp, key(shared, number, address), number, lane, access.strength.acquire);
        }
        Ok(())
    }

    /// Stores with `.relaxed`, `.release` or `.volatile`.
    #[expect(clippy::too_many_arguments, reason = "the parts of one access, each used once")]
    fn store_strong(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
        shared: bool,
    ) -> Result<(), Box<Trouble>> {
        let coordinates = self.coordinates();
        let unit = u64::from(access.size) * u64::from(access.count);
        let scope = access.strength.scope.unwrap_or(Scope::Device);
        let constants = std::mem::take(&mut self.constants);
        for lane in lanes_of(mask) {
            let (number, address) = (common.number, addresses[lane]);
            let (block, clock, full) = (common.number & 0xFF_FFFF, common.clock, common.full);
            {
                let mut region = if shared {
                    self.shared_region(common)
                } else {
                    self.region(group.pc, address, unit, lane as u32, Doing::Write)?
                };
                let observer =
                    Observer { block, warp: warp.index, clock, full, sync: warp.sync, views: warp.views.as_deref() };
                let offset = region.check(address, unit, unit, lane as u32, Doing::Write)?;
                let place = (offset, unit as usize, lane as u32);
                region.touch_strong(&coordinates, place, (false, true), scope, &observer)?;
                let values = Values { access, registers: &warp.registers[group.frame..], constants: &constants };
                values.put(&mut region, offset, lane);
            }
            self.leave_message(common, warp, key(shared, number, address), lane, access.strength, false);
        }
        self.constants = constants;
        if access.strength.release {
            common.tick();
        }
        Ok(())
    }

    /// What a strong read finds at an address besides the value.
    pub(super) fn take_message(&mut self, warp: &mut Warp, key: u64, block: u32, lane: usize, acquire: bool) {
        if self.messages.is_empty() {
            return;
        }
        let Some(message) = self.messages.get(&key) else { return };
        if message.only_block.is_some_and(|only| only != block) {
            return;
        }
        let views = warp.views.get_or_insert_default();
        if !acquire {
            views.pending[lane] = join(&views.pending[lane], &Some(message.view.clone()));
            return;
        }
        if !views.taken[lane].as_ref().is_some_and(|taken| Rc::ptr_eq(taken, &message.view)) {
            views.known[lane] = join(&views.known[lane], &Some(message.view.clone()));
            views.taken[lane] = Some(message.view.clone());
        }
    }

    /// What a strong write leaves at an address besides the value.
    pub(super) fn leave_message(
        &mut self,
        common: &Common,
        warp: &mut Warp,
        key: u64,
        lane: usize,
        strength: Strength,
        update: bool,
    ) {
        let block_scope = strength.scope == Some(Scope::Block);
        let told = if strength.release {
            let mut mark = warp.mark(common, lane, block_scope);
            Some((mark.tell(), block_scope))
        } else {
            let fence = warp.views.as_mut().and_then(|views| views.fence[lane].as_mut());
            fence.map(|mark| (mark.tell(), mark.block_scope || block_scope))
        };
        match told {
            Some((view, block_scope)) => {
                let only_block = block_scope.then_some(common.number);
                let view = match self.messages.get(&key) {
                    Some(older) if update => join(&Some(older.view.clone()), &Some(view)).unwrap_or_default(),
                    _ => view,
                };
                self.messages.insert(key, Message { view, only_block });
            }
            // A plain value hides the message; a read-modify-write hands it on.
            None if !update && !self.messages.is_empty() => {
                self.messages.remove(&key);
            }
            None => {}
        }
    }

    pub(super) fn fence(
        &mut self,
        common: &mut Common,
        warp: &mut Warp,
        scope: Scope,
        mask: u32,
    ) -> Result<(), Box<Trouble>> {
        for lane in lanes_of(mask) {
            let views = warp.views.get_or_insert_default();
            if let Some(pending) = views.pending[lane].take() {
                views.known[lane] = join(&views.known[lane], &Some(pending));
            }
            let mark = warp.mark(common, lane, scope == Scope::Block);
            if let Some(views) = &mut warp.views {
                views.fence[lane] = Some(Box::new(mark));
            }
        }
        common.tick();
        Ok(())
    }

    fn load_param(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
    ) -> Result<(), Box<Trouble>> {
        let params = self.launch.params;
        let (size, unit) = (usize::from(access.size), u64::from(access.size) * u64::from(access.count));
        let first = mask.trailing_zeros() as usize;
        let uniform = lanes_of(mask).all(|lane| addresses[lane] == addresses[first]);
        for lane in lanes_of(mask) {
            let address = addresses[lane];
            if address > params.len() as u64 || unit > params.len() as u64 - address {
                let message = format!("reading {unit} bytes at {address} of {} bytes of parameters", params.len());
                return Err(Trouble::new(FaultKind::OutOfBounds, lane as u32, message));
            }
            if address % unit != 0 {
                return Err(misaligned(address, unit, lane as u32, Doing::Read, None));
            }
            for (number, to) in destinations(access) {
                let mut value = get(params, address as usize + number * size, size);
                if access.extend != 0 {
                    value = extend(value, access.size, access.extend);
                }
                let row = &mut warp.registers[group.frame + to];
                if uniform {
                    blend(row, &[value; 32], mask);
                } else {
                    row[lane] = value;
                }
            }
            if uniform {
                break;
            }
        }
        Ok(())
    }

    /// The word and the shift of an access to local memory.
    fn local_place(
        &self,
        warp: &Warp,
        address: u64,
        unit: u64,
        lane: usize,
        frame: bool,
        doing: Doing,
    ) -> Result<u64, Box<Trouble>> {
        let start = if frame { u64::from(warp.local_frame[lane]) * 8 } else { 0 };
        let words = self.image.functions[warp.function[lane] as usize].local_words;
        let end = u64::from(warp.local_frame[lane] + words) * 8;
        let at = address.wrapping_add(start);
        if at > end || unit > end - at {
            let message =
                format!("{} {unit} bytes at {address:#x} of local memory, which has {end} bytes here", doing.word());
            let mut trouble = Trouble::new(FaultKind::OutOfBounds, lane as u32, message);
            trouble.address = Some(address);
            return Err(trouble);
        }
        if at % unit != 0 {
            return Err(misaligned(at, unit, lane as u32, doing, None));
        }
        Ok(at)
    }

    fn load_local(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
        frame: bool,
    ) -> Result<(), Box<Trouble>> {
        let (size, unit) = (u64::from(access.size), u64::from(access.size) * u64::from(access.count));
        for lane in lanes_of(mask) {
            let at = self.local_place(warp, addresses[lane], unit, lane, frame, Doing::Read)?;
            for number in 0..u64::from(access.count) {
                let at = at + number * size;
                let (word, byte) = ((at / 8) as usize, (at % 8) as u32);
                let flags = ((1_u16 << size) - 1) as u8;
                if self.options.checks.initialised && warp.local_written[word][lane] >> byte & flags != flags {
                    let message = format!("reading {size} bytes at {at:#x} of local memory, which nothing wrote");
                    let mut trouble = Trouble::new(FaultKind::Uninitialised, lane as u32, message);
                    trouble.address = Some(at);
                    return Err(trouble);
                }
                let Some(to) = destination(access, number as usize) else { continue };
                let mut value = warp.local[word][lane] >> (byte * 8) & (u64::MAX >> (64 - size * 8));
                if access.extend != 0 {
                    value = extend(value, access.size, access.extend);
                }
                warp.registers[group.frame + to][lane] = value;
            }
        }
        Ok(())
    }

    fn store_local(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        group: Group,
        addresses: &Row,
        mask: u32,
        frame: bool,
    ) -> Result<(), Box<Trouble>> {
        let (size, unit) = (u64::from(access.size), u64::from(access.size) * u64::from(access.count));
        for lane in lanes_of(mask) {
            let at = self.local_place(warp, addresses[lane], unit, lane, frame, Doing::Write)?;
            for number in 0..u64::from(access.count) {
                let at = at + number * size;
                let (word, byte) = ((at / 8) as usize, (at % 8) as u32);
                let value = access.values[number as usize].row(&warp.registers[group.frame..], &self.constants)[lane];
                let keep = (u64::MAX >> (64 - size * 8)) << (byte * 8);
                let old = warp.local[word][lane];
                warp.local[word][lane] = old & !keep | value << (byte * 8) & keep;
                warp.local_written[word][lane] |= (((1_u16 << size) - 1) as u8) << byte;
            }
        }
        Ok(())
    }
}

impl Warp {
    /// What a lane would tell at this moment.
    fn mark(&self, common: &Common, lane: usize, block_scope: bool) -> Mark {
        Mark {
            block: common.number & 0xFF_FFFF,
            thread: self.index << 5 | lane as u32,
            clock: common.clock,
            full: common.full,
            sync: self.sync,
            view: self.views.as_ref().and_then(|views| views.known[lane].clone()),
            block_scope,
            ..Mark::default()
        }
    }
}

/// The key of an address among the messages.
pub(super) fn key(shared: bool, block: u32, address: u64) -> u64 {
    if shared { memory_tag(block) << 32 | address & 0xFFFF_FFFF } else { address }
}

/// The register row that element `number` goes to.
#[inline(always)]
fn destination(access: &Access, number: usize) -> Option<usize> {
    access.values[number].as_register().map(|row| row as usize)
}

fn destinations(access: &Access) -> impl Iterator<Item = (usize, usize)> + '_ {
    (0..usize::from(access.count)).filter_map(|number| Some((number, destination(access, number)?)))
}

/// The values of a store.
struct Values<'a> {
    access: &'a Access,
    registers: &'a [Row],
    constants: &'a [Row],
}

impl Values<'_> {
    fn put(&self, region: &mut Region<'_>, offset: usize, lane: usize) {
        let size = usize::from(self.access.size);
        for number in 0..usize::from(self.access.count) {
            let value = self.access.values[number].row(self.registers, self.constants)[lane];
            put(region.bytes, offset + number * size, size, value);
        }
        region.mark_written(offset, size * usize::from(self.access.count));
    }

    /// Whether another lane stores the same values to the same place.
    fn same(&self, lane: usize, other: usize) -> bool {
        (0..usize::from(self.access.count)).all(|number| {
            let row = self.access.values[number].row(self.registers, self.constants);
            row[lane] == row[other]
        })
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of one access, each used once")]
#[inline]
fn load_row(
    region: &mut Region<'_>,
    coordinates: &Coordinates,
    access: &Access,
    registers: &mut [Row],
    group: Group,
    addresses: &Row,
    (first, lanes): (u32, u32),
    observer: &Observer<'_>,
) -> Result<(), Box<Trouble>> {
    let unit = usize::from(access.size) * usize::from(access.count);
    let len = unit * lanes as usize;
    let address = addresses[first as usize];
    let offset = match region.check(address, len as u64, unit as u64, first, Doing::Read) {
        Ok(offset) => offset,
        Err(trouble) if trouble.kind == FaultKind::Misaligned => return Err(trouble),
        Err(_) => {
            // Some lane runs over an end: find it.
            for lane in lanes_of(u32::MAX >> (32 - lanes) << first) {
                load_lane(region, coordinates, access, registers, group, addresses[lane], lane, observer)?;
            }
            return Ok(());
        }
    };
    region.check_written(offset, len, unit as u64, first, unit as u64)?;
    region.mark_footprint(offset, len, Doing::Read);
    if let Some(shadow) = &mut region.shadow {
        let shift = unit.trailing_zeros();
        if let Err(conflict) = shadow.row::<false>(offset, len, first, shift, observer) {
            return Err(region.race(coordinates, conflict, observer, "read"));
        }
    }
    let bytes = &region.bytes[offset..offset + len];
    for number in 0..usize::from(access.count) {
        let Some(to) = destination(access, number) else { continue };
        let row = &mut registers[group.frame + to][first as usize..(first + lanes) as usize];
        let at = number * usize::from(access.size);
        match access.size {
            1 => gather::<1>(bytes, unit, at, row),
            2 => gather::<2>(bytes, unit, at, row),
            4 => gather::<4>(bytes, unit, at, row),
            _ => gather::<8>(bytes, unit, at, row),
        }
        if access.extend != 0 {
            row.iter_mut().for_each(|value| *value = extend(*value, access.size, access.extend));
        }
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the parts of one access, each used once")]
fn load_uniform(
    region: &mut Region<'_>,
    coordinates: &Coordinates,
    access: &Access,
    registers: &mut [Row],
    group: Group,
    addresses: &Row,
    mask: u32,
    observer: &Observer<'_>,
) -> Result<(), Box<Trouble>> {
    let first = mask.trailing_zeros() as usize;
    load_lane(region, coordinates, access, registers, group, addresses[first], first, observer)?;
    for (_, to) in destinations(access) {
        let row = &mut registers[group.frame + to];
        let value = row[first];
        blend(row, &[value; 32], mask);
    }
    Ok(())
}

/// The elements of one lane, into its registers.
#[inline]
fn fetch(region: &Region<'_>, access: &Access, registers: &mut [Row], group: Group, offset: usize, lane: usize) {
    let size = usize::from(access.size);
    for number in 0..usize::from(access.count) {
        let Some(to) = destination(access, number) else { continue };
        let mut value = get(region.bytes, offset + number * size, size);
        if access.extend != 0 {
            value = extend(value, access.size, access.extend);
        }
        registers[group.frame + to][lane] = value;
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of one access, each used once")]
#[inline]
fn load_lane(
    region: &mut Region<'_>,
    coordinates: &Coordinates,
    access: &Access,
    registers: &mut [Row],
    group: Group,
    address: u64,
    lane: usize,
    observer: &Observer<'_>,
) -> Result<(), Box<Trouble>> {
    let unit = usize::from(access.size) * usize::from(access.count);
    let offset = region.check(address, unit as u64, unit as u64, lane as u32, Doing::Read)?;
    region.check_written(offset, unit, unit as u64, lane as u32, unit as u64)?;
    region.mark_footprint(offset, unit, Doing::Read);
    if let Some(shadow) = &mut region.shadow
        && let Err(conflict) = shadow.lane::<false>(offset, unit, lane as u32, observer)
    {
        return Err(region.race(coordinates, conflict, observer, "read"));
    }
    fetch(region, access, registers, group, offset, lane);
    Ok(())
}

#[inline]
fn store_row(
    region: &mut Region<'_>,
    coordinates: &Coordinates,
    values: &Values<'_>,
    addresses: &Row,
    (first, lanes): (u32, u32),
    observer: &Observer<'_>,
) -> Result<(), Box<Trouble>> {
    let access = values.access;
    let unit = usize::from(access.size) * usize::from(access.count);
    let len = unit * lanes as usize;
    let address = addresses[first as usize];
    let offset = match region.check(address, len as u64, unit as u64, first, Doing::Write) {
        Ok(offset) => offset,
        Err(trouble) if trouble.kind == FaultKind::Misaligned => return Err(trouble),
        Err(_) => {
            let mask = u32::MAX >> (32 - lanes) << first;
            for lane in lanes_of(mask) {
                store_lane(region, coordinates, values, addresses, lane, mask, observer)?;
            }
            return Ok(());
        }
    };
    region.mark_footprint(offset, len, Doing::Write);
    if let Some(shadow) = &mut region.shadow {
        let shift = unit.trailing_zeros();
        if let Err(conflict) = shadow.row::<true>(offset, len, first, shift, observer) {
            return Err(region.race(coordinates, conflict, observer, "write"));
        }
    }
    region.mark_written(offset, len);
    let bytes = &mut region.bytes[offset..offset + len];
    for number in 0..usize::from(access.count) {
        let row = access.values[number].row(values.registers, values.constants);
        let row = &row[first as usize..(first + lanes) as usize];
        let at = number * usize::from(access.size);
        match access.size {
            1 => spread::<1>(bytes, unit, at, row),
            2 => spread::<2>(bytes, unit, at, row),
            4 => spread::<4>(bytes, unit, at, row),
            _ => spread::<8>(bytes, unit, at, row),
        }
    }
    Ok(())
}

#[inline]
fn store_lane(
    region: &mut Region<'_>,
    coordinates: &Coordinates,
    values: &Values<'_>,
    addresses: &Row,
    lane: usize,
    mask: u32,
    observer: &Observer<'_>,
) -> Result<(), Box<Trouble>> {
    let unit = usize::from(values.access.size) * usize::from(values.access.count);
    let address = addresses[lane];
    let offset = region.check(address, unit as u64, unit as u64, lane as u32, Doing::Write)?;
    region.mark_footprint(offset, unit, Doing::Write);
    if let Some(shadow) = &mut region.shadow
        && let Err(conflict) = shadow.lane::<true>(offset, unit, lane as u32, observer)
    {
        // Lanes of one store that put the same value in the same place do no harm.
        let twin = conflict.earlier_lane.is_some_and(|other| {
            conflict.earlier.block() == observer.block
                && conflict.earlier.warp() == observer.warp
                && conflict.earlier.clock() == observer.clock
                && mask >> other & 1 == 1
                && addresses[other as usize] == address
                && values.same(lane, other as usize)
        });
        if !twin {
            return Err(region.race(coordinates, conflict, observer, "write"));
        }
    }
    values.put(region, offset, lane);
    Ok(())
}
