//! Fills memory with a pattern when it is handed out and when it comes back, in stream order.
//!
//!   allocate   CD CD CD CD ...    read before anything was written: large integers, floats that stand out
//!   free       DD DD DD DD ...    read after the free: the same
//!
//! For        wrong answers on a GPU. On the simulated device its own checks say more, and the fill counts as a write
//!            there: bytes that nothing else wrote are no finding any more.
//! Costs      two passes over all memory. Off unless asked for.

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::device::Device;
use crate::driver::Site;
use crate::error::Result;
use crate::resource::{DeviceMemoryResource, RawAllocation, ResourceStatistics};
use crate::stream::Stream;
use crate::units::ByteSize;

/// What fresh memory holds.
pub const FRESH: u8 = 0xCD;
/// What freed memory holds.
pub const FREED: u8 = 0xDD;

#[derive(Debug)]
pub struct PoisonResourceAdaptor {
    upstream: Arc<dyn DeviceMemoryResource>,
}

impl PoisonResourceAdaptor {
    pub fn new(upstream: Arc<dyn DeviceMemoryResource>) -> Self {
        PoisonResourceAdaptor { upstream }
    }

    fn fill(raw: &RawAllocation, byte: u8, stream: &Stream, site: Site) -> Result<()> {
        stream.submit(|driver, on| driver.fill(raw.ptr, byte, raw.len.get(), on, site)).map(|_| ())
    }
}

impl DeviceMemoryResource for PoisonResourceAdaptor {
    fn name(&self) -> &'static str {
        self.upstream.name()
    }

    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        let raw = self.upstream.allocate(len, stream, site)?;
        match Self::fill(&raw, FRESH, stream, site) {
            Ok(()) => Ok(raw),
            Err(error) => {
                self.upstream.deallocate(raw, stream, site)?;
                Err(error)
            }
        }
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        let filled = Self::fill(&raw, FREED, stream, site);
        self.upstream.deallocate(raw, stream, site)?;
        filled
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
        self.upstream.reset_peaks()
    }
}
