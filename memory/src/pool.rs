//! The pool that a device's queries share: a limit, counts, and a resource behind them.
//!
//!   DeviceBuffer::new ─► limit? ─► resource.allocate ─► counted under the stream's scope
//!                          │ no          │ no
//!                          └─────────────┴─► wait for frees, trim, ask the holders (`on_pressure`), else OutOfMemory
//!
//! Limit      bytes handed out, each allocation rounded up to 256; three quarters of what is free at start, by default.
//! Kept       what is freed stays with the pool up to the release threshold (all of it, by default); `trim_to` gives it back.
//! Frees      count as free for who comes after them in stream order, and for everyone once the device has come to them.
//! Short      what happens when memory runs out is in `pressure`.
//! Threads    one atomic for the limit; no lock on the way to the resource.

use std::fmt;
use std::sync::Arc;

use crate::adaptor::LoggingResourceAdaptor;
use crate::device::Device;
use crate::driver::{DriverCode, DriverError};
use crate::error::Result;
use crate::log::MemoryLog;
use crate::pressure::PressureState;
use crate::resource::{CudaAsyncMemoryResource, DeviceMemoryResource, ResourceStatistics, Strategy};
use crate::units::ByteSize;

/// How much unused memory the driver's pool keeps at a synchronisation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReleaseThreshold {
    /// Everything: memory goes back only by `trim_to`.
    #[default]
    Max,
    Bytes(ByteSize),
    /// What the driver starts with, 0 so far: every synchronisation may give everything back.
    DriverDefault,
}

/// When the driver's pool may reuse what one stream freed for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReusePolicy {
    /// When an event chain orders the free before the allocation.
    pub follow_event_dependencies: bool,
    /// When the freeing stream has in fact passed the free. Addresses then vary from run to run.
    pub opportunistic: bool,
    /// By making the allocating stream wait for the freeing one.
    pub internal_dependencies: bool,
}

impl Default for ReusePolicy {
    fn default() -> Self {
        ReusePolicy { follow_event_dependencies: true, opportunistic: true, internal_dependencies: false }
    }
}

/// The driver's own view of its pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolAttributes {
    pub release_threshold: ByteSize,
    pub reuse: ReusePolicy,
    pub reserved_current: ByteSize,
    pub reserved_high: ByteSize,
    /// Includes frees that the device has not come to yet.
    pub used_current: ByteSize,
    pub used_high: ByteSize,
}

pub struct MemoryPoolBuilder {
    device: Device,
    limit: Option<ByteSize>,
    threshold: ReleaseThreshold,
    reuse: ReusePolicy,
    strategy: Strategy,
    resource: Option<Arc<dyn DeviceMemoryResource>>,
    log: Option<Arc<MemoryLog>>,
}

impl MemoryPoolBuilder {
    /// The most the pool hands out at once. By default three quarters of what is free on the device now.
    pub fn limit(mut self, limit: ByteSize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Where the memory comes from. The release threshold and the reuse policy are those of `cuda_async`; the other
    /// strategies come with their own.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Takes the memory from `resource`: a strategy with options of its own, or one inside adaptors.
    pub fn resource(mut self, resource: Arc<dyn DeviceMemoryResource>) -> Self {
        self.resource = Some(resource);
        self
    }

    /// Logs what is allocated and freed, and what the device's streams do with it.
    pub fn log(mut self, log: Arc<MemoryLog>) -> Self {
        self.log = Some(log);
        self
    }

    pub fn release_threshold(mut self, threshold: ReleaseThreshold) -> Self {
        self.threshold = threshold;
        self
    }

    pub fn reuse(mut self, reuse: ReusePolicy) -> Self {
        self.reuse = reuse;
        self
    }

    pub fn build(self) -> Result<MemoryPool> {
        let limit = match self.limit {
            Some(limit) => limit,
            None => ByteSize(self.device.memory_info()?.free_bytes / 4 * 3),
        };
        let (resource, driver_pool) = match (self.resource, self.strategy) {
            (Some(resource), _) if *resource.device() != self.device => {
                let detail = format!("the resource {} is of another device than the pool", resource.name());
                return Err(DriverError::new("MemoryPool", DriverCode::INVALID_DEVICE).with_detail(detail).into());
            }
            (Some(resource), _) => (resource, None),
            // The driver's own maximum is left alone: it would fail before our holders were asked.
            (None, Strategy::CudaAsync) => {
                let pool = CudaAsyncMemoryResource::new(&self.device, None, self.threshold, self.reuse)?;
                let pool = Arc::new(pool);
                (Arc::clone(&pool) as Arc<dyn DeviceMemoryResource>, Some(pool))
            }
            (None, Strategy::CudaAsyncDefault) => {
                let pool = Arc::new(CudaAsyncMemoryResource::untuned(&self.device)?);
                (Arc::clone(&pool) as Arc<dyn DeviceMemoryResource>, Some(pool))
            }
            (None, strategy) => (strategy.create(&self.device)?, None),
        };
        let resource = match self.log {
            Some(log) => {
                if self.device.log_to(&log).is_err() {
                    let detail = format!("{} has a log already; open it once for each log", self.device.id());
                    return Err(DriverError::new("MemoryPool", DriverCode::NOT_PERMITTED).with_detail(detail).into());
                }
                Arc::new(LoggingResourceAdaptor::with_log(resource, log))
            }
            None => resource,
        };
        let inner = PoolInner { device: self.device, resource, driver_pool, limit, pressure: PressureState::default() };
        let inner = Arc::new(inner);
        inner.device.siblings().join(&inner);
        Ok(MemoryPool { inner })
    }
}

pub(crate) struct PoolInner {
    pub(crate) device: Device,
    pub(crate) resource: Arc<dyn DeviceMemoryResource>,
    /// The resource once more, where it is a pool of the driver's.
    driver_pool: Option<Arc<CudaAsyncMemoryResource>>,
    pub(crate) limit: ByteSize,
    /// What is handed out: counts, and who is asked when memory runs out.
    pub(crate) pressure: PressureState,
}

/// Device memory for the queries of one device. Clones share it.
#[derive(Clone)]
pub struct MemoryPool {
    pub(crate) inner: Arc<PoolInner>,
}

impl MemoryPool {
    pub fn builder(device: &Device) -> MemoryPoolBuilder {
        MemoryPoolBuilder {
            device: device.clone(),
            limit: None,
            threshold: ReleaseThreshold::default(),
            reuse: ReusePolicy::default(),
            strategy: Strategy::default(),
            resource: None,
            log: None,
        }
    }

    /// Where its memory comes from.
    pub fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.inner.resource
    }

    fn driver_pool(&self, call: &'static str) -> Result<&CudaAsyncMemoryResource> {
        self.inner.driver_pool.as_deref().ok_or_else(|| {
            let detail = format!("{} is not a pool of the driver's", self.inner.resource.name());
            DriverError::new(call, DriverCode::NOT_SUPPORTED).with_detail(detail).into()
        })
    }

    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    pub fn limit(&self) -> ByteSize {
        self.inner.limit
    }

    /// Bytes handed out and not freed.
    pub fn used_bytes(&self) -> ByteSize {
        self.inner.pressure.ledger.used()
    }

    /// The most that was ever handed out, since `reset_high`.
    pub fn peak_bytes(&self) -> ByteSize {
        self.inner.pressure.ledger.used_peak()
    }

    /// What the limit leaves.
    pub fn free_bytes(&self) -> ByteSize {
        self.limit().saturating_sub(self.used_bytes())
    }

    /// The driver's own view of its pool.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` where the memory does not come from a pool of the driver's; so for the two setters below.
    pub fn attributes(&self) -> Result<PoolAttributes> {
        self.driver_pool("cuMemPoolGetAttribute")?.attributes()
    }

    pub fn statistics(&self) -> Result<ResourceStatistics> {
        self.inner.resource.statistics()
    }

    pub fn set_release_threshold(&self, threshold: ReleaseThreshold) -> Result<()> {
        self.driver_pool("cuMemPoolSetAttribute")?.set_threshold(threshold)
    }

    pub fn set_reuse(&self, reuse: ReusePolicy) -> Result<()> {
        self.driver_pool("cuMemPoolSetAttribute")?.set_reuse(reuse)
    }

    /// Starts new peaks, the driver's and our own.
    pub fn reset_high(&self) -> Result<()> {
        self.inner.pressure.ledger.reset_peaks();
        self.inner.resource.reset_peaks()
    }

    /// Gives unused memory beyond `keep` back to the device, once what runs has finished. Returns how much went.
    /// Blocks; for the time between queries, and for pressure.
    pub fn trim_to(&self, keep: ByteSize) -> Result<ByteSize> {
        // The driver gives back only what it knows to be free.
        self.inner.device.synchronize()?;
        let before = self.inner.resource.statistics()?.reserved;
        self.inner.resource.trim(keep)?;
        Ok(before.saturating_sub(self.inner.resource.statistics()?.reserved))
    }

    /// A query has ended. Where nothing is in use any more, the resource may rearrange what it keeps. Never waits.
    pub fn end_of_query(&self) -> Result<()> {
        if self.used_bytes() > ByteSize::ZERO { Ok(()) } else { self.inner.resource.end_of_query() }
    }
}

impl fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool of {}: {} used of {}", self.device().id(), self.used_bytes(), self.limit())
    }
}
