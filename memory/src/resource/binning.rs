//! Small sizes from slabs of equal slots, the rest from the resource below.
//!
//!   bytes     1..256  ..512  ..1024   …   ..64 KiB │ more
//!             bin 0   bin 1  bin 2    …   bin 8    │ the driver's pool
//!             one slab of about a MiB at a time ───┘
//!
//! For        queries that make thousands of small allocations, where a driver call each is what they wait for.
//! Order      a slot keeps the position of its free. Another stream takes it if it is ordered after that already; with
//!            a wait, only when there is no memory for a new slab.
//! Threads    a lock per bin, held for list work only.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::slab::Slots;
use super::{DeviceMemoryResource, RawAllocation, ResourceStatistics, check_device, come_after, give_back, length};
use crate::buffer::ALIGNMENT;
use crate::device::Device;
use crate::driver::{DevicePtr, Site};
use crate::error::{MemoryError, Result};
use crate::gauge::Gauge;
use crate::ids::StreamId;
use crate::order::Position;
use crate::stream::Stream;
use crate::units::ByteSize;

/// A slab has this many slots at least.
const LEAST_SLOTS: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BinningOptions {
    /// The largest bin; a power of two.
    pub largest: ByteSize,
    /// About what a bin grows by.
    pub slab: ByteSize,
}

impl Default for BinningOptions {
    fn default() -> Self {
        BinningOptions { largest: ByteSize::kib(64), slab: ByteSize::mib(1) }
    }
}

#[derive(Debug)]
struct Bin {
    slots: Slots,
    slabs: HashMap<u64, (RawAllocation, StreamId)>,
}

#[derive(Debug)]
pub struct BinningMemoryResource {
    upstream: Arc<dyn DeviceMemoryResource>,
    options: BinningOptions,
    bins: Vec<Mutex<Bin>>,
    /// Slots that are handed out, in bytes, and slabs.
    live: Gauge,
    held: Gauge,
    reuses: AtomicU64,
    waits: AtomicU64,
}

impl BinningMemoryResource {
    /// Takes slabs, and everything large, from `upstream`.
    pub fn new(upstream: Arc<dyn DeviceMemoryResource>, options: BinningOptions) -> Self {
        let least = ALIGNMENT as u64;
        let largest = options.largest.as_u64().clamp(least, 1 << 30).next_power_of_two();
        let sizes = std::iter::successors(Some(least), |size| Some(size * 2)).take_while(|size| *size <= largest);
        let bin = |size| Mutex::new(Bin { slots: Slots::new(size), slabs: HashMap::new() });
        BinningMemoryResource {
            upstream,
            options: BinningOptions { largest: ByteSize(largest), ..options },
            bins: sizes.map(bin).collect(),
            live: Gauge::default(),
            held: Gauge::default(),
            reuses: 0.into(),
            waits: 0.into(),
        }
    }

    /// Panics on a broken invariant. For tests.
    pub fn check(&self) {
        let (mut held, mut live) = (0, 0);
        for index in 0..self.bins.len() {
            let bin = self.bin(index);
            bin.slots.check();
            live += bin.slots.live() * bin.slots.size();
            held += bin.slabs.values().map(|(raw, _)| raw.len.get() as u64).sum::<u64>();
        }
        assert_eq!((held, live), (self.held.level().as_u64(), self.live.level().as_u64()), "bins and counts agree");
    }

    fn bin(&self, index: usize) -> MutexGuard<'_, Bin> {
        self.bins[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bin for `len` bytes, if they are not too many.
    fn bin_of(&self, len: NonZeroUsize) -> Option<usize> {
        let len = len.get() as u64;
        let unit = ALIGNMENT as u64;
        (len <= self.options.largest.as_u64())
            .then(|| (len.max(unit).next_power_of_two() / unit).trailing_zeros() as usize)
    }

    fn grow(&self, index: usize, stream: &Stream, site: Site) -> Result<u64> {
        let size = (ALIGNMENT as u64) << index;
        let slots = (self.options.slab.as_u64() / size).max(LEAST_SLOTS);
        let raw = self.upstream.allocate(length(slots * size), stream, site)?;
        let (base, position) = (raw.ptr.0, stream.position());
        self.held.raise(slots * size);
        let mut bin = self.bin(index);
        bin.slots.add_slab(base, slots, position);
        bin.slabs.insert(base, (raw, stream.id()));
        Ok(bin.slots.take_own(stream.id()).expect("the slab is in the stream's own list"))
    }

    fn find(&self, index: usize, stream: &Stream, site: Site) -> Result<(u64, Option<Position>)> {
        let on = stream.id();
        {
            let slots = &mut self.bin(index).slots;
            if let Some(ptr) = slots.take_own(on) {
                return Ok((ptr, None));
            }
            if let Some((ptr, after)) = slots.take_other(on, |position| stream.is_after(position)) {
                return Ok((ptr, Some(after)));
            }
        }
        let full = match self.grow(index, stream, site) {
            Err(error) if error.is_out_of_memory() => error,
            grown => return grown.map(|ptr| (ptr, None)),
        };
        let taken = self.bin(index).slots.take_other(on, |_| true);
        if let Some((ptr, after)) = taken {
            return Ok((ptr, Some(after)));
        }
        self.release(0)?;
        match self.grow(index, stream, site) {
            Err(error) if error.is_out_of_memory() => Err(full),
            grown => grown.map(|ptr| (ptr, None)),
        }
    }

    /// Gives slabs without live slots back, as long as more than `keep` bytes are free in slabs. Returns
    /// how many slabs went.
    fn release(&self, keep: u64) -> Result<usize> {
        let (mut first, mut count) = (Ok(()), 0);
        for index in 0..self.bins.len() {
            let mut guard = self.bin(index);
            let bin = &mut *guard;
            let own = bin.slabs.values().map(|(raw, _)| raw.len.get() as u64).sum::<u64>();
            let others = self.held.level().as_u64().saturating_sub(own);
            let released = bin.slots.release(keep.saturating_sub(others));
            let slabs: Vec<_> = released
                .into_iter()
                .filter_map(|released| Some((bin.slabs.remove(&released.base)?, released.after)))
                .collect();
            drop(guard);
            for ((raw, home), after) in slabs {
                self.held.lower(raw.len.get() as u64);
                let done = give_back(&*self.upstream, raw, &after, home, Location::caller());
                first = first.and(done);
                count += 1;
            }
        }
        first.map(|()| count)
    }
}

impl DeviceMemoryResource for BinningMemoryResource {
    fn name(&self) -> &'static str {
        "binning"
    }

    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        check_device(self.device(), stream)?;
        let Some(index) = self.bin_of(len) else {
            let allocated = self.upstream.allocate(len, stream, site);
            if !allocated.as_ref().is_err_and(MemoryError::is_out_of_memory) {
                return allocated;
            }
            self.release(0)?;
            return self.upstream.allocate(len, stream, site);
        };
        self.device().alive()?;
        let (ptr, after) = self.find(index, stream, site)?;
        if let Some(position) = after {
            match come_after(stream, position) {
                Ok(waited) => {
                    self.reuses.fetch_add(1, Relaxed);
                    self.waits.fetch_add(waited.into(), Relaxed);
                }
                Err(error) => {
                    self.bin(index).slots.free(ptr, position);
                    return Err(error);
                }
            }
        }
        self.live.raise((ALIGNMENT as u64) << index);
        Ok(RawAllocation { ptr: DevicePtr(ptr), len })
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        check_device(self.device(), stream)?;
        let Some(index) = self.bin_of(raw.len) else {
            return self.upstream.deallocate(raw, stream, site);
        };
        let position = stream.position();
        if !self.bin(index).slots.free(raw.ptr.0, position) {
            return Err(MemoryError::NotHandedOut { resource: self.name(), ptr: raw.ptr, site });
        }
        self.live.lower((ALIGNMENT as u64) << index);
        Ok(())
    }

    fn trim(&self, keep: ByteSize) -> Result<()> {
        self.device().alive()?;
        if self.release(keep.as_u64())? > 0 {
            // The resource below gives back what it knows to be free.
            self.device().synchronize()?;
        }
        self.upstream.trim(keep)
    }

    /// What is reserved is the resource below's; slots that are free count as free.
    fn statistics(&self) -> Result<ResourceStatistics> {
        let below = self.upstream.statistics()?;
        let idle = self.held.level().saturating_sub(self.live.level());
        Ok(ResourceStatistics {
            used: below.used.saturating_sub(idle),
            cross_stream_reuses: below.cross_stream_reuses + self.reuses.load(Relaxed),
            waits_inserted: below.waits_inserted + self.waits.load(Relaxed),
            ..below
        })
    }

    /// The resource below gives back what of it the driver has seen freed.
    fn reclaim(&self, want: ByteSize) -> Result<ByteSize> {
        self.device().alive()?;
        self.release(0)?;
        self.upstream.reclaim(want)
    }

    fn reset_peaks(&self) -> Result<()> {
        self.live.reset_peak();
        self.held.reset_peak();
        self.upstream.reset_peaks()
    }
}

impl Drop for BinningMemoryResource {
    fn drop(&mut self) {
        let device = self.device().clone();
        if device.is_lost() {
            return;
        }
        if let Err(error) = self.release(0) {
            device.report(error);
        }
        let leaked = self.live.level();
        if leaked > ByteSize::ZERO {
            tracing::warn!(%leaked, resource = "binning", "slots were never given back; their slabs are leaked");
        }
    }
}
