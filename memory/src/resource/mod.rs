//! Where device memory comes from: the strategies that are compared on whole workloads.
//!
//!   MemoryPool ──► adaptors ──► dyn DeviceMemoryResource
//!                               ├── cuda                  cuMemAlloc and cuMemFree: every free waits on the host
//!                               ├── cuda_async_default    the driver's pool, untuned: releases at each synchronization
//!                               ├── cuda_async            the driver's pool, tuned; the default
//!                               ├── caching               free lists per stream over large segments, as in PyTorch
//!                               ├── arena                 a bump per stream
//!                               └── binning               small sizes from slabs, the rest from the driver's pool
//!
//! Order      a resource allocates and frees memory in the order of a stream. A resource that caches freed memory
//!            stores the position of the free; another stream reuses the memory only after a wait for that position.
//! Sizes      a suballocator rounds up to 256 bytes; what it hands out says the bytes that were asked for.
//! Limits     and counts are the pool's, or those of an adaptor (`adaptor`), around any resource.

mod arena;
mod binning;
mod bump;
mod caching;
mod cuda;
mod cuda_async;
mod free_list;
mod slab;
mod strategy;

use std::fmt;
use std::num::NonZeroUsize;

pub use arena::{ArenaMark, ArenaMemoryResource, ArenaOptions};
pub use binning::{BinningMemoryResource, BinningOptions};
pub use caching::{CachingMemoryResource, CachingOptions, TakeOver};
pub use cuda::CudaMemoryResource;
pub use cuda_async::{CudaAsyncMemoryResource, CudaAsyncOptions};
pub use strategy::Strategy;

use crate::device::Device;
use crate::driver::{DevicePtr, Site};
use crate::error::{MemoryError, Result};
use crate::ids::StreamId;
use crate::order::{Position, Waited};
use crate::stream::Stream;
use crate::units::ByteSize;

/// Bytes of a resource. Neither cloned nor made outside this crate, so they are given back once.
#[derive(Debug, PartialEq, Eq)]
pub struct RawAllocation {
    pub(crate) ptr: DevicePtr,
    pub(crate) len: NonZeroUsize,
}

impl RawAllocation {
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    pub fn len(&self) -> NonZeroUsize {
        self.len
    }
}

/// What a resource holds, in its own view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceStatistics {
    /// Physical memory taken from the device.
    pub reserved: ByteSize,
    pub reserved_peak: ByteSize,
    /// Handed out and not yet reusable.
    pub used: ByteSize,
    pub used_peak: ByteSize,
    /// Pieces that one stream freed and another was given. 0 where the driver does it.
    pub cross_stream_reuses: u64,
    /// Waits that those needed and that reached the driver.
    pub waits_inserted: u64,
}

/// A strategy of device memory.
pub trait DeviceMemoryResource: Send + Sync + fmt::Debug {
    /// Its name in options and reports.
    fn name(&self) -> &'static str;
    fn device(&self) -> &Device;
    /// Allocates in the order of `stream`, aligned to 256 bytes at least.
    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation>;
    /// Takes `raw` back in the order of `stream`, which comes after every use of it.
    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()>;
    /// Gives what is cached and unused beyond `keep` back to the device; the driver has seen the frees finish.
    fn trim(&self, keep: ByteSize) -> Result<()>;
    /// Nothing of it is in use, as at the end of a query: what only this pattern of use can reuse goes back, in stream
    /// order. Never waits.
    fn end_of_query(&self) -> Result<()> {
        Ok(())
    }

    /// Returns about `want` cached, unused bytes to the device, and returns the number of bytes released. Never waits:
    /// memory whose free the driver has not seen finish is kept. For another pool that is short of memory.
    fn reclaim(&self, want: ByteSize) -> Result<ByteSize> {
        let _ = want;
        Ok(ByteSize::ZERO)
    }
    fn statistics(&self) -> Result<ResourceStatistics>;
    /// Starts new peaks at what is held now.
    fn reset_peaks(&self) -> Result<()>;
}

// What every strategy needs.

fn check_device(device: &Device, stream: &Stream) -> Result<()> {
    if stream.device() == device {
        return Ok(());
    }
    Err(MemoryError::ForeignDevice { what: "a memory resource", stream: stream.id() })
}

/// `len` rounded up to a multiple of `unit`, which is one of 256.
fn round_up(len: NonZeroUsize, unit: u64) -> Result<u64> {
    let rounded = (len.get() as u64).checked_next_multiple_of(unit).filter(|&rounded| usize::try_from(rounded).is_ok());
    rounded.ok_or(MemoryError::Range { what: "an allocation", offset: 0, wanted: len.get(), len: usize::MAX })
}

fn length(bytes: u64) -> NonZeroUsize {
    let bytes = usize::try_from(bytes).ok().and_then(NonZeroUsize::new);
    bytes.expect("segments are not empty, and rounded sizes were checked to fit")
}

/// Keeps the newest position of each stream.
fn note(positions: &mut Vec<Position>, position: Position) {
    match positions.iter_mut().find(|known| known.stream == position.stream) {
        Some(known) => known.seq = known.seq.max(position.seq),
        None => positions.push(position),
    }
}

/// A piece that goes back to the resource it came from, and what its free comes after.
#[derive(Debug, PartialEq, Eq)]
struct Released {
    base: u64,
    after: Vec<Position>,
}

/// Returns `raw` to `upstream`, on a stream that is ordered after everything in `after`: `home` if `after` is empty.
fn give_back(
    upstream: &dyn DeviceMemoryResource,
    raw: RawAllocation,
    after: &[Position],
    home: StreamId,
    site: Site,
) -> Result<()> {
    let device = upstream.device();
    let on = after.first().map_or(home, |first| first.stream);
    let stream = Stream::of(device, device.stream_cell(on)?, device.scope().clone());
    for position in after {
        stream.free_after(*position)?;
    }
    upstream.deallocate(raw, &stream, site)
}

/// Makes `stream` come after `position`, and says whether that took a wait.
fn come_after(stream: &Stream, position: Position) -> Result<bool> {
    Ok(stream.wait_for(position)? == Waited::Inserted)
}
