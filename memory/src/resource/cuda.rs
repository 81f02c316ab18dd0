//! Memory without a stream: `cuMemAlloc` and `cuMemFree`, the line that every other strategy is compared with.
//!
//!   free ─► the host waits for the stream of the last use ─► cuMemFree, which waits for the device once more
//!
//! Order      fresh memory is usable everywhere at once. A free waits for its users itself: `cuMemFree` does not wait
//!            for memory of a pool, so callers need not distinguish the two.
//! Waits      at every free, on the host. That is the cost this strategy shows.
//! Kept       nothing.

use std::num::NonZeroUsize;

use super::{DeviceMemoryResource, RawAllocation, ResourceStatistics, check_device};
use crate::device::Device;
use crate::driver::Site;
use crate::error::Result;
use crate::gauge::Gauge;
use crate::stream::Stream;
use crate::units::ByteSize;

#[derive(Debug)]
pub struct CudaMemoryResource {
    device: Device,
    held: Gauge,
}

impl CudaMemoryResource {
    pub fn new(device: &Device) -> Self {
        CudaMemoryResource { device: device.clone(), held: Gauge::default() }
    }
}

impl DeviceMemoryResource for CudaMemoryResource {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        check_device(&self.device, stream)?;
        self.device.alive()?;
        let ptr = self.device.check(self.device.driver().alloc_sync(self.device.id(), len, site))?;
        self.held.raise(len.get() as u64);
        Ok(RawAllocation { ptr, len })
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        check_device(&self.device, stream)?;
        match stream.synchronize() {
            Err(error) if !error.is_capturing() && !error.is_device_lost() => {
                self.device.wait_without_event(stream.position()).map_err(|_| error)?;
            }
            waited => waited?,
        }
        self.device.check(self.device.driver().free_sync(raw.ptr, site))?;
        self.held.lower(raw.len.get() as u64);
        Ok(())
    }

    fn trim(&self, _keep: ByteSize) -> Result<()> {
        Ok(())
    }

    fn statistics(&self) -> Result<ResourceStatistics> {
        let (level, peak) = (self.held.level(), self.held.peak());
        Ok(ResourceStatistics {
            reserved: level,
            reserved_peak: peak,
            used: level,
            used_peak: peak,
            ..ResourceStatistics::default()
        })
    }

    fn reset_peaks(&self) -> Result<()> {
        self.held.reset_peak();
        Ok(())
    }
}
