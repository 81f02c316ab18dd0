//! Refuses what would pass a limit. For tests that need out-of-memory, and for a share of a device.
//!
//! Counts     each allocation rounded up to 256 bytes, on the way out and on the way back alike.
//! Errors     `MemoryError::OutOfMemory`, naming the largest holders.

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::buffer::ALIGNMENT;
use crate::device::Device;
use crate::driver::Site;
use crate::error::{MemoryError, OomSnapshot, Result};
use crate::gauge::Gauge;
use crate::resource::{DeviceMemoryResource, RawAllocation, ResourceStatistics};
use crate::stream::Stream;
use crate::units::ByteSize;

#[derive(Debug)]
pub struct LimitingResourceAdaptor {
    upstream: Arc<dyn DeviceMemoryResource>,
    limit: ByteSize,
    used: Gauge,
}

impl LimitingResourceAdaptor {
    pub fn new(upstream: Arc<dyn DeviceMemoryResource>, limit: ByteSize) -> Self {
        LimitingResourceAdaptor { upstream, limit, used: Gauge::default() }
    }

    pub fn limit(&self) -> ByteSize {
        self.limit
    }

    /// What counts against the limit.
    pub fn used_bytes(&self) -> ByteSize {
        self.used.level()
    }

    fn counted(len: NonZeroUsize) -> u64 {
        (len.get() as u64).checked_next_multiple_of(ALIGNMENT as u64).unwrap_or(u64::MAX)
    }
}

impl DeviceMemoryResource for LimitingResourceAdaptor {
    fn name(&self) -> &'static str {
        self.upstream.name()
    }

    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        let bytes = Self::counted(len);
        if !self.used.raise_within(bytes, self.limit.as_u64()) {
            let (used, holders) = (self.used.level(), self.device().scope().largest_holders(3));
            let snapshot = Box::new(OomSnapshot { used, holders, ..OomSnapshot::default() });
            let (wanted, free) = (ByteSize(bytes), self.limit.saturating_sub(used));
            return Err(MemoryError::OutOfMemory { wanted, free, limit: self.limit, snapshot });
        }
        self.upstream.allocate(len, stream, site).inspect_err(|_| self.used.lower(bytes))
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        let bytes = Self::counted(raw.len);
        // What could not be given back is still held.
        self.upstream.deallocate(raw, stream, site)?;
        self.used.lower(bytes);
        Ok(())
    }

    fn trim(&self, keep: ByteSize) -> Result<()> {
        self.upstream.trim(keep)
    }

    fn end_of_query(&self) -> Result<()> {
        self.upstream.end_of_query()
    }

    fn reclaim(&self, want: ByteSize) -> Result<ByteSize> {
        self.upstream.reclaim(want)
    }

    fn statistics(&self) -> Result<ResourceStatistics> {
        self.upstream.statistics()
    }

    fn reset_peaks(&self) -> Result<()> {
        self.used.reset_peak();
        self.upstream.reset_peaks()
    }
}
