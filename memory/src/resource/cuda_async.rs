//! The driver's stream-ordered pool: `cudaMallocAsync` from an explicit pool of our own.
//!
//! Pool       an own one: raising the threshold of the device's default pool would change other libraries in the process.
//! Reuse      the driver's three policies; internal dependencies are off, so that plans repeat.
//! Kept       everything, by default: CUDA's own threshold of 0 gives memory back at every synchronisation.

use std::num::NonZeroUsize;

use super::{DeviceMemoryResource, RawAllocation, ResourceStatistics, check_device};
use crate::device::Device;
use crate::driver::{PoolAttribute, PoolHandle, PoolProperties, Site};
use crate::error::{DriverCode, DriverError, MemoryError, Result};
use crate::pool::{PoolAttributes, ReleaseThreshold, ReusePolicy};
use crate::stream::Stream;
use crate::units::ByteSize;

#[derive(Debug)]
pub struct CudaAsyncMemoryResource {
    name: &'static str,
    device: Device,
    pool: PoolHandle,
}

impl CudaAsyncMemoryResource {
    pub fn new(
        device: &Device,
        max: Option<ByteSize>,
        threshold: ReleaseThreshold,
        reuse: ReusePolicy,
    ) -> Result<Self> {
        let resource = Self::create("cuda_async", device, max)?;
        resource.set_threshold(threshold)?;
        resource.set_reuse(reuse)?;
        Ok(resource)
    }

    /// A pool as the driver makes it: it gives memory back at every synchronisation, and reuses it by all three policies.
    pub fn untuned(device: &Device) -> Result<Self> {
        let resource = Self::create("cuda_async_default", device, None)?;
        // What drivers start with so far; said, so that the line in a plot keeps its meaning.
        resource.set_threshold(ReleaseThreshold::Bytes(ByteSize::ZERO))?;
        Ok(resource)
    }

    fn create(name: &'static str, device: &Device, max: Option<ByteSize>) -> Result<Self> {
        device.alive()?;
        if !device.limits().memory_pools {
            let error = DriverError::new("cuMemPoolCreate", DriverCode::NOT_SUPPORTED)
                .with_detail("the device has no memory pools (a virtual GPU may lack them); choose cuda or caching");
            return Err(MemoryError::Driver { error, stream: None });
        }
        let properties = PoolProperties { max_bytes: max.map(ByteSize::as_u64), ..PoolProperties::on(device.id()) };
        let pool = device.check(device.driver().pool_create(&properties))?;
        Ok(CudaAsyncMemoryResource { name, device: device.clone(), pool })
    }

    fn set(&self, attribute: PoolAttribute, value: u64) -> Result<()> {
        self.device.alive()?;
        self.device.check(self.device.driver().pool_set_attribute(self.pool, attribute, value))
    }

    fn get(&self, attribute: PoolAttribute) -> Result<u64> {
        self.device.alive()?;
        self.device.check(self.device.driver().pool_attribute(self.pool, attribute))
    }

    pub(crate) fn set_threshold(&self, threshold: ReleaseThreshold) -> Result<()> {
        match threshold {
            ReleaseThreshold::DriverDefault => Ok(()),
            ReleaseThreshold::Max => self.set(PoolAttribute::ReleaseThreshold, u64::MAX),
            ReleaseThreshold::Bytes(bytes) => self.set(PoolAttribute::ReleaseThreshold, bytes.as_u64()),
        }
    }

    pub(crate) fn set_reuse(&self, reuse: ReusePolicy) -> Result<()> {
        self.set(PoolAttribute::ReuseFollowEventDependencies, reuse.follow_event_dependencies.into())?;
        self.set(PoolAttribute::ReuseAllowOpportunistic, reuse.opportunistic.into())?;
        self.set(PoolAttribute::ReuseAllowInternalDependencies, reuse.internal_dependencies.into())
    }

    pub(crate) fn attributes(&self) -> Result<PoolAttributes> {
        let flag = |attribute| self.get(attribute).map(|value| value != 0);
        let bytes = |attribute| self.get(attribute).map(ByteSize);
        Ok(PoolAttributes {
            release_threshold: bytes(PoolAttribute::ReleaseThreshold)?,
            reuse: ReusePolicy {
                follow_event_dependencies: flag(PoolAttribute::ReuseFollowEventDependencies)?,
                opportunistic: flag(PoolAttribute::ReuseAllowOpportunistic)?,
                internal_dependencies: flag(PoolAttribute::ReuseAllowInternalDependencies)?,
            },
            reserved_current: bytes(PoolAttribute::ReservedCurrent)?,
            reserved_high: bytes(PoolAttribute::ReservedHigh)?,
            used_current: bytes(PoolAttribute::UsedCurrent)?,
            used_high: bytes(PoolAttribute::UsedHigh)?,
        })
    }
}

impl DeviceMemoryResource for CudaAsyncMemoryResource {
    fn name(&self) -> &'static str {
        self.name
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        check_device(&self.device, stream)?;
        let (ptr, _) = stream.submit(|driver, on| driver.pool_alloc(self.pool, len, on, site))?;
        Ok(RawAllocation { ptr, len })
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        check_device(&self.device, stream)?;
        stream.submit(|driver, on| driver.free_async(raw.ptr, on, site)).map(|_| ())
    }

    fn trim(&self, keep: ByteSize) -> Result<()> {
        self.device.alive()?;
        self.device.check(self.device.driver().pool_trim(self.pool, keep.as_u64()))
    }

    fn reclaim(&self, want: ByteSize) -> Result<ByteSize> {
        let before = ByteSize(self.get(PoolAttribute::ReservedCurrent)?);
        self.trim(before.saturating_sub(want))?;
        Ok(before.saturating_sub(ByteSize(self.get(PoolAttribute::ReservedCurrent)?)))
    }

    fn statistics(&self) -> Result<ResourceStatistics> {
        let PoolAttributes { reserved_current, reserved_high, used_current, used_high, .. } = self.attributes()?;
        Ok(ResourceStatistics {
            reserved: reserved_current,
            reserved_peak: reserved_high,
            used: used_current,
            used_peak: used_high,
            ..ResourceStatistics::default()
        })
    }

    fn reset_peaks(&self) -> Result<()> {
        self.set(PoolAttribute::ReservedHigh, 0)?;
        self.set(PoolAttribute::UsedHigh, 0)
    }
}

impl Drop for CudaAsyncMemoryResource {
    fn drop(&mut self) {
        if self.device.is_lost() {
            return;
        }
        if let Err(error) = self.device.check(self.device.driver().pool_destroy(self.pool)) {
            self.device.report(error);
        }
    }
}
