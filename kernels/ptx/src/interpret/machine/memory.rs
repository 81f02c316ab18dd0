//! Loads and stores: address resolution, access checks and data.
//!
//!   addresses of 32 lanes ─► space ─► row (contiguous lanes):      one check, one copy
//!                                  ├► uniform (one address):       one check, one load
//!                                  └► scattered:                   one lane at a time
//!
//! Windows  generic addresses below [`Heap::LOWEST`] map to shared, local and parameter memory; others are in the heap.
//! Strong   accesses are in `strong`, local and parameter memory in `local`.

use super::block::Common;
use super::region::{Coordinates, Doing, Region};
use super::warp::{Group, Warp, blend, lanes_of};
use super::{FaultKind, LOCAL_WINDOW, Machine, PARAM_WINDOW, SHARED_WINDOW, Trouble, WINDOWS_END};
use crate::interpret::alu::{Row, Source};
use crate::interpret::op::{Access, MemorySpace};
use crate::interpret::order::Observer;

/// Offset from an address of a space to its generic address.
pub(super) fn window(space: MemorySpace) -> u64 {
    match space {
        MemorySpace::Shared => SHARED_WINDOW,
        MemorySpace::Local { .. } => LOCAL_WINDOW,
        MemorySpace::Param => PARAM_WINDOW,
        MemorySpace::Global | MemorySpace::Const | MemorySpace::Generic => 0,
    }
}

/// Space of a generic address.
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

/// Layout of the addresses of the active lanes.
enum Pattern {
    /// Lanes `first ..` at consecutive addresses.
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

/// One element of `SIZE` bytes, zero-extended.
#[inline(always)]
fn element<const SIZE: usize>(bytes: &[u8; SIZE]) -> u64 {
    let mut word = [0; 8];
    word[..SIZE].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Loads every `stride`-th element from byte `at` on into consecutive lanes.
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
pub(super) fn extend(value: u64, size: u8, bits: u8) -> u64 {
    let shift = 64 - 8 * u32::from(size);
    ((value << shift) as i64 >> shift) as u64 & (u64::MAX >> (64 - u32::from(bits)))
}

impl Machine<'_> {
    /// The addresses of all lanes.
    #[inline]
    pub(super) fn addresses(&self, warp: &Warp, group: Group, base: Source, offset: i64, narrow: bool) -> Row {
        let base = base.row(&warp.registers[group.frame..], &self.grid.constants);
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

    /// Splits lanes by the space of their generic addresses, and makes the addresses relative to the space.
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
        let Warp { registers, views, index, sync, .. } = warp;
        let observer = Warp::observer(*index, *sync, views, common);
        let mut region = self.shared_region(common);
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
        warp.reads = warp.reads.saturating_add(1);
        let coordinates = self.coordinates();
        let observer = Warp::observer(warp.index, warp.sync, &warp.views, common);
        let registers = &mut warp.registers;
        let unit = u64::from(access.size) * u64::from(access.count);
        let first = mask.trailing_zeros();
        let start = addresses[first as usize];
        match pattern(addresses, mask, unit) {
            Pattern::Row { first, lanes } => {
                let mut region = self.region(group.pc, start, unit, first, Doing::Read)?;
                if region.holds(start, u64::from(lanes) * unit) {
                    let lanes = (first, lanes);
                    return load_row(&mut region, &coordinates, access, registers, group, addresses, lanes, &observer);
                }
            }
            Pattern::Uniform => {
                let mut region = self.region(group.pc, start, unit, first, Doing::Read)?;
                return load_uniform(&mut region, &coordinates, access, registers, group, addresses, mask, &observer);
            }
            Pattern::Scattered => {}
        }
        // One lane and one allocation at a time: a row may even continue into the next allocation.
        let mut pending = mask;
        while pending != 0 {
            let first = pending.trailing_zeros();
            let mut region = self.region(group.pc, addresses[first as usize], unit, first, Doing::Read)?;
            for lane in lanes_of(pending) {
                if region.has(addresses[lane]) {
                    load_lane(&mut region, &coordinates, access, registers, group, addresses[lane], lane, &observer)?;
                    pending &= !(1 << lane);
                }
            }
        }
        Ok(())
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
        let observer = Warp::observer(warp.index, warp.sync, &warp.views, common);
        let mut region = self.shared_region(common);
        let values = Values { access, registers: &warp.registers[group.frame..], constants: &self.grid.constants };
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
        let constants = std::mem::take(&mut self.grid.constants);
        let values = Values { access, registers: &warp.registers[group.frame..], constants: &constants };
        let result = self.store_rows(group.pc, &coordinates, &values, addresses, mask, &observer);
        self.grid.constants = constants;
        result
    }

    fn store_rows(
        &mut self,
        step: u32,
        coordinates: &Coordinates,
        values: &Values<'_>,
        addresses: &Row,
        mask: u32,
        observer: &Observer<'_>,
    ) -> Result<(), Box<Trouble>> {
        let unit = u64::from(values.access.size) * u64::from(values.access.count);
        if let Pattern::Row { first, lanes } = pattern(addresses, mask, unit) {
            let start = addresses[first as usize];
            let mut region = self.region(step, start, unit, first, Doing::Write)?;
            if region.holds(start, u64::from(lanes) * unit) {
                return store_row(&mut region, coordinates, values, addresses, (first, lanes), observer);
            }
        }
        let mut pending = mask;
        while pending != 0 {
            let first = pending.trailing_zeros();
            let mut region = self.region(step, addresses[first as usize], unit, first, Doing::Write)?;
            for lane in lanes_of(pending) {
                if region.has(addresses[lane]) {
                    store_lane(&mut region, coordinates, values, addresses, lane, mask, observer)?;
                    pending &= !(1 << lane);
                }
            }
        }
        Ok(())
    }
}

/// Register row of element `number`.
#[inline(always)]
pub(super) fn destination(access: &Access, number: usize) -> Option<usize> {
    access.values[number].as_register().map(|row| row as usize)
}

pub(super) fn destinations(access: &Access) -> impl Iterator<Item = (usize, usize)> + '_ {
    (0..usize::from(access.count)).filter_map(|number| Some((number, destination(access, number)?)))
}

/// Values of a store.
pub(super) struct Values<'a> {
    pub access: &'a Access,
    pub registers: &'a [Row],
    pub constants: &'a [Row],
}

impl Values<'_> {
    pub fn put(&self, region: &mut Region<'_>, offset: usize, lane: usize) {
        let size = usize::from(self.access.size);
        for number in 0..usize::from(self.access.count) {
            let value = self.access.values[number].row(self.registers, self.constants)[lane];
            put(region.bytes, offset + number * size, size, value);
        }
        region.mark_written(offset, size * usize::from(self.access.count));
    }

    /// Whether another lane stores equal values to the same address.
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
            // Some lane exceeds the end of the allocation: find it.
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

/// Loads the elements of one lane into its registers.
#[inline]
pub(super) fn fetch(
    region: &Region<'_>,
    access: &Access,
    registers: &mut [Row],
    group: Group,
    offset: usize,
    lane: usize,
) {
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
        // Lanes of one store may write equal values to one address without a race.
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
