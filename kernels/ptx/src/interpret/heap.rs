//! Device memory: live allocations, their bytes, and which bytes have been written.
//!
//!   base ─► │ bytes        │ 3 1 4 1 ▒ ▒ ▒ ▒ │      ▒ poison: a byte never written
//!           │ initialised  │ 1 1 1 1 0 0 0 0 │      one bit per byte
//!
//! Addresses  are chosen by the caller, from [`Heap::LOWEST`] up: lower addresses are the generic windows of shared,
//!            local and parameter memory. Leave gaps between allocations, so that accesses past an end are found.
//! Errors     contain the address; the heap is unchanged.

use std::collections::BTreeMap;

/// Device memory of one simulated device.
#[derive(Debug, Default)]
pub struct Heap {
    by_base: BTreeMap<u64, u32>,
    slots: Vec<Allocation>,
    vacant: Vec<u32>,
    live_bytes: u64,
}

/// A live allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocationInfo {
    pub base: u64,
    pub len: u64,
}

/// Content of fresh bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Every byte has this value; reading it before a write is a fault.
    Uninitialised(u8),
    /// Every byte has this value and counts as written.
    Initialised(u8),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    #[error("{len} bytes at {address:#x} do not lie in one live allocation")]
    OutOfBounds { address: u64, len: u64 },
    #[error("an allocation of {len} bytes at {base:#x} overlaps the live one of {other_len} bytes at {other:#x}")]
    Overlap { base: u64, len: u64, other: u64, other_len: u64 },
    #[error(
        "an allocation of {len} bytes cannot lie at {base:#x}: device memory starts at {:#x}, and has at least a byte",
        Heap::LOWEST
    )]
    BadPlace { base: u64, len: u64 },
    #[error("nothing is allocated at {address:#x}")]
    NotAllocated { address: u64 },
}

#[derive(Debug, Default)]
pub(super) struct Allocation {
    pub(super) base: u64,
    pub(super) bytes: Vec<u8>,
    /// One bit per byte, least significant first.
    pub(super) initialised: Vec<u64>,
}

impl Heap {
    /// Lowest address of an allocation.
    pub const LOWEST: u64 = 0x1000_0000;

    pub fn new() -> Heap {
        Heap::default()
    }

    /// Adds the live allocation `base .. base + len`.
    ///
    /// # Errors
    /// [`HeapError::Overlap`], [`HeapError::BadPlace`].
    pub fn allocate(&mut self, base: u64, len: u64, fill: Fill) -> Result<(), HeapError> {
        if base < Heap::LOWEST || len == 0 || base.checked_add(len).is_none() {
            return Err(HeapError::BadPlace { base, len });
        }
        if let Some((&other, &slot)) = self.by_base.range(..base + len).next_back() {
            let other_len = self.slots[slot as usize].bytes.len() as u64;
            if other + other_len > base {
                return Err(HeapError::Overlap { base, len, other, other_len });
            }
        }
        let (byte, word) = match fill {
            Fill::Uninitialised(byte) => (byte, 0),
            Fill::Initialised(byte) => (byte, u64::MAX),
        };
        let allocation =
            Allocation { base, bytes: vec![byte; len as usize], initialised: vec![word; len.div_ceil(64) as usize] };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot as usize] = allocation;
                slot
            }
            None => {
                self.slots.push(allocation);
                self.slots.len() as u32 - 1
            }
        };
        self.by_base.insert(base, slot);
        self.live_bytes += len;
        Ok(())
    }

    /// Frees the allocation that starts at `base`.
    ///
    /// # Errors
    /// [`HeapError::NotAllocated`] if no live allocation starts there.
    pub fn free(&mut self, base: u64) -> Result<AllocationInfo, HeapError> {
        let slot = self.by_base.remove(&base).ok_or(HeapError::NotAllocated { address: base })?;
        let allocation = std::mem::take(&mut self.slots[slot as usize]);
        self.vacant.push(slot);
        let len = allocation.bytes.len() as u64;
        self.live_bytes -= len;
        Ok(AllocationInfo { base, len })
    }

    /// The live allocation that contains `address`.
    pub fn find(&self, address: u64) -> Option<AllocationInfo> {
        let info = self.nearest(address)?;
        (address - info.base < info.len).then_some(info)
    }

    /// The last live allocation that starts at or below `address`: it contains the address or ends below it.
    pub fn nearest(&self, address: u64) -> Option<AllocationInfo> {
        let (&base, &slot) = self.by_base.range(..=address).next_back()?;
        Some(AllocationInfo { base, len: self.slots[slot as usize].bytes.len() as u64 })
    }

    /// All live allocations, by address.
    pub fn allocations(&self) -> impl Iterator<Item = AllocationInfo> + '_ {
        self.by_base
            .iter()
            .map(|(&base, &slot)| AllocationInfo { base, len: self.slots[slot as usize].bytes.len() as u64 })
    }

    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Reads bytes, whether or not they were written.
    ///
    /// # Errors
    /// [`HeapError::OutOfBounds`], as all methods below.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), HeapError> {
        let (slot, offset) = self.locate(address, out.len() as u64)?;
        out.copy_from_slice(&self.slots[slot as usize].bytes[offset..offset + out.len()]);
        Ok(())
    }

    /// The bytes, whether or not they were written.
    pub fn bytes(&self, address: u64, len: u64) -> Result<&[u8], HeapError> {
        let (slot, offset) = self.locate(address, len)?;
        Ok(&self.slots[slot as usize].bytes[offset..offset + len as usize])
    }

    /// Writes bytes and marks them as written.
    pub fn write(&mut self, address: u64, data: &[u8]) -> Result<(), HeapError> {
        let (slot, offset) = self.locate(address, data.len() as u64)?;
        let allocation = &mut self.slots[slot as usize];
        allocation.bytes[offset..offset + data.len()].copy_from_slice(data);
        set_bits(&mut allocation.initialised, offset, data.len(), true);
        Ok(())
    }

    /// Writes `count` repetitions of `pattern`: a memset with a pattern of any length.
    pub fn set(&mut self, address: u64, pattern: &[u8], count: u64) -> Result<(), HeapError> {
        let len = count.checked_mul(pattern.len() as u64).ok_or(HeapError::OutOfBounds { address, len: u64::MAX })?;
        let (slot, offset) = self.locate(address, len)?;
        let allocation = &mut self.slots[slot as usize];
        let bytes = &mut allocation.bytes[offset..offset + len as usize];
        match pattern {
            [] => return Ok(()),
            [byte] => bytes.fill(*byte),
            _ => bytes.chunks_exact_mut(pattern.len()).for_each(|chunk| chunk.copy_from_slice(pattern)),
        }
        set_bits(&mut allocation.initialised, offset, len as usize, true);
        Ok(())
    }

    /// Fills with `byte` and marks the bytes as unwritten.
    pub fn poison(&mut self, address: u64, len: u64, byte: u8) -> Result<(), HeapError> {
        let (slot, offset) = self.locate(address, len)?;
        let allocation = &mut self.slots[slot as usize];
        allocation.bytes[offset..offset + len as usize].fill(byte);
        set_bits(&mut allocation.initialised, offset, len as usize, false);
        Ok(())
    }

    /// Copies bytes and their written marks. The two ranges may overlap.
    pub fn copy(&mut self, to: u64, from: u64, len: u64) -> Result<(), HeapError> {
        self.locate(to, len)?;
        let (slot, offset) = self.locate(from, len)?;
        let source = &self.slots[slot as usize];
        let data = source.bytes[offset..offset + len as usize].to_vec();
        let written: Vec<(usize, usize)> = {
            let mut runs: Vec<(usize, usize)> = Vec::new();
            let mut at = offset;
            while at < offset + len as usize {
                if at % 64 == 0 && at + 64 <= offset + len as usize && source.initialised[at / 64] == u64::MAX {
                    push_run(&mut runs, at - offset, 64);
                    at += 64;
                    continue;
                }
                if source.initialised[at / 64] >> (at % 64) & 1 == 1 {
                    push_run(&mut runs, at - offset, 1);
                }
                at += 1;
            }
            runs
        };
        let (slot, offset) = self.locate(to, len)?;
        let target = &mut self.slots[slot as usize];
        target.bytes[offset..offset + len as usize].copy_from_slice(&data);
        set_bits(&mut target.initialised, offset, len as usize, false);
        for (start, count) in written {
            set_bits(&mut target.initialised, offset + start, count, true);
        }
        Ok(())
    }

    /// The first byte of the range that was never written.
    pub fn first_uninitialised(&self, address: u64, len: u64) -> Result<Option<u64>, HeapError> {
        let (slot, offset) = self.locate(address, len)?;
        let allocation = &self.slots[slot as usize];
        Ok(first_clear(&allocation.initialised, offset, len as usize).map(|at| allocation.base + at as u64))
    }

    /// Marks bytes as written without changing them, for memory filled from outside.
    pub fn mark_initialised(&mut self, address: u64, len: u64) -> Result<(), HeapError> {
        let (slot, offset) = self.locate(address, len)?;
        set_bits(&mut self.slots[slot as usize].initialised, offset, len as usize, true);
        Ok(())
    }

    fn locate(&self, address: u64, len: u64) -> Result<(u32, usize), HeapError> {
        let refused = HeapError::OutOfBounds { address, len };
        let Some((&base, &slot)) = self.by_base.range(..=address).next_back() else { return Err(refused) };
        let offset = address - base;
        let have = self.slots[slot as usize].bytes.len() as u64;
        if offset <= have && len <= have - offset { Ok((slot, offset as usize)) } else { Err(refused) }
    }

    /// The slot of the allocation that contains `address`, for accesses of the machine.
    pub(super) fn slot_of(&self, address: u64) -> Option<u32> {
        let (&base, &slot) = self.by_base.range(..=address).next_back()?;
        (address - base < self.slots[slot as usize].bytes.len() as u64).then_some(slot)
    }

    pub(super) fn slot(&self, slot: u32) -> &Allocation {
        &self.slots[slot as usize]
    }

    pub(super) fn slot_mut(&mut self, slot: u32) -> &mut Allocation {
        &mut self.slots[slot as usize]
    }

    pub(super) fn num_slots(&self) -> usize {
        self.slots.len()
    }
}

fn push_run(runs: &mut Vec<(usize, usize)>, start: usize, count: usize) {
    match runs.last_mut() {
        Some((first, length)) if *first + *length == start => *length += count,
        _ => runs.push((start, count)),
    }
}

/// The bits `low .. high` of one word.
#[inline(always)]
fn word_mask(low: usize, high: usize) -> u64 {
    (u64::MAX >> (64 - (high - low))) << low
}

/// Sets or clears the bits `start .. start + len`.
#[inline]
pub(super) fn set_bits(words: &mut [u64], start: usize, len: usize, value: bool) {
    let (mut at, end) = (start, start + len);
    while at < end {
        let word = at / 64;
        let high = (end - word * 64).min(64);
        let mask = word_mask(at % 64, high);
        if value {
            words[word] |= mask;
        } else {
            words[word] &= !mask;
        }
        at = word * 64 + high;
    }
}

/// The first clear bit of `start .. start + len`.
#[inline]
pub(super) fn first_clear(words: &[u64], start: usize, len: usize) -> Option<usize> {
    let (mut at, end) = (start, start + len);
    while at < end {
        let word = at / 64;
        let high = (end - word * 64).min(64);
        let missing = !words[word] & word_mask(at % 64, high);
        if missing != 0 {
            return Some(word * 64 + missing.trailing_zeros() as usize);
        }
        at = word * 64 + high;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x7_0000_0000;

    #[test]
    fn fresh_bytes_count_as_never_written_until_written() {
        let mut heap = Heap::new();
        heap.allocate(BASE, 300, Fill::Uninitialised(0xAB)).unwrap();
        assert_eq!(heap.first_uninitialised(BASE, 300).unwrap(), Some(BASE));
        heap.write(BASE, &[1; 130]).unwrap();
        assert_eq!(heap.first_uninitialised(BASE, 130).unwrap(), None);
        assert_eq!(heap.first_uninitialised(BASE, 131).unwrap(), Some(BASE + 130));
        let mut two = [0; 2];
        heap.read(BASE + 129, &mut two).unwrap();
        assert_eq!(two, [1, 0xAB]);
    }

    #[test]
    fn copies_carry_what_was_written() {
        let mut heap = Heap::new();
        heap.allocate(BASE, 256, Fill::Uninitialised(0)).unwrap();
        heap.allocate(BASE + 512, 256, Fill::Initialised(9)).unwrap();
        heap.write(BASE + 3, &[7; 100]).unwrap();
        heap.copy(BASE + 512 + 1, BASE, 200).unwrap();
        assert_eq!(heap.first_uninitialised(BASE + 512, 256).unwrap(), Some(BASE + 513));
        assert_eq!(heap.first_uninitialised(BASE + 516, 100).unwrap(), None);
        assert_eq!(heap.first_uninitialised(BASE + 516, 101).unwrap(), Some(BASE + 616));
        assert_eq!(heap.bytes(BASE + 515, 2).unwrap(), [0, 7]);
    }

    #[test]
    fn overlaps_and_strangers_are_refused() {
        let mut heap = Heap::new();
        heap.allocate(BASE, 256, Fill::Initialised(0)).unwrap();
        assert!(matches!(heap.allocate(BASE + 255, 1, Fill::Initialised(0)), Err(HeapError::Overlap { .. })));
        assert!(matches!(heap.allocate(BASE - 1, 2, Fill::Initialised(0)), Err(HeapError::Overlap { .. })));
        assert!(matches!(heap.allocate(64, 2, Fill::Initialised(0)), Err(HeapError::BadPlace { .. })));
        assert!(matches!(heap.write(BASE + 250, &[0; 7]), Err(HeapError::OutOfBounds { .. })));
        assert!(matches!(heap.free(BASE + 1), Err(HeapError::NotAllocated { .. })));
        assert_eq!(heap.free(BASE).unwrap().len, 256);
        assert_eq!((heap.live_bytes(), heap.find(BASE)), (0, None));
    }
}
