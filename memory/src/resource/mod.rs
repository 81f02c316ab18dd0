//! Where device memory comes from: the strategies that are compared on whole workloads.
//!
//!   MemoryPool ──► dyn DeviceMemoryResource ◄── CudaAsyncMemoryResource      the driver's stream-ordered pool
//!
//! Order      a resource hands memory out, and takes it back, in the order of a stream.
//! Limits     and counts are the pool's, around any resource.

mod cuda_async;

use std::fmt;
use std::num::NonZeroUsize;

pub use cuda_async::CudaAsyncMemoryResource;

use crate::driver::{DevicePtr, Site};
use crate::error::Result;
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
}

/// A strategy of device memory.
pub trait DeviceMemoryResource: Send + Sync + fmt::Debug {
    /// Its name in options and reports.
    fn name(&self) -> &'static str;
    /// Allocates in the order of `stream`, aligned to 256 bytes at least.
    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation>;
    /// Takes `raw` back in the order of `stream`, which comes after every use of it.
    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()>;
    /// Gives what is cached and unused beyond `keep` back to the device; the driver has seen the frees finish.
    fn trim(&self, keep: ByteSize) -> Result<()>;
    fn statistics(&self) -> Result<ResourceStatistics>;
}
