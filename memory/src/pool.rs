//! The memory pool of a device's queries: a limit, counts, and a resource.
//!
//!   DeviceBuffer::new ─► limit? ─► resource.allocate ─► counted under the stream's scope
//!                          │ no          │ no
//!                          └─────────────┴─► wait for frees, trim, call the holders (`pressure`), else OutOfMemory
//!
//! Limit      on bytes handed out, each allocation rounded up to 256; three quarters of the initially free memory by
//!            default. It is lowered temporarily when the device runs out earlier, because other processes use it, too.
//! Kept       freed memory stays in the pool up to the release threshold (all of it, by default); `trim_to` frees it.
//! Frees      count as free for work ordered after them in stream order, and for all streams once the device has
//!            reached them.
//! Short      `pressure` describes the steps when memory runs out.
//! Threads    one atomic for the limit; no lock before the call of the resource.

mod builder;
mod properties;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

pub use builder::MemoryPoolBuilder;
pub use properties::{DriverPool, Location, MaxSize, PoolAttributes, ReleaseThreshold, ReusePolicy};

use crate::device::Device;
use crate::driver::{DeviceId, DriverCode, DriverError};
use crate::error::{MemoryError, Result};
use crate::graph::PutOff;
use crate::pressure::PressureState;
use crate::resource::{CudaAsyncMemoryResource, DeviceMemoryResource, ResourceStatistics};
use crate::units::ByteSize;

/// Minimum of a lowered limit: working in smaller pieces would cost more than a failed attempt.
const LEAST_LIMIT: ByteSize = ByteSize::mib(64);

pub(crate) struct PoolInner {
    pub(crate) device: Device,
    pub(crate) resource: Arc<dyn DeviceMemoryResource>,
    /// The resource again, if it is a pool of the driver.
    driver_pool: Option<Arc<CudaAsyncMemoryResource>>,
    /// Other devices with access to the whole pool. Access is never revoked.
    pub(crate) peers: Mutex<BTreeSet<DeviceId>>,
    /// Configured limit.
    pub(crate) limit: ByteSize,
    /// Effective limit: lowered when the device runs out before the configured limit.
    pub(crate) room: AtomicU64,
    /// Counts of bytes handed out, and callbacks for when memory runs out.
    pub(crate) pressure: PressureState,
    /// Frees deferred to the end of a capture.
    pub(crate) put_off: PutOff,
}

/// Device memory for the queries of one device. Clones share it.
#[derive(Clone)]
pub struct MemoryPool {
    pub(crate) inner: Arc<PoolInner>,
}

impl MemoryPool {
    pub fn builder(device: &Device) -> MemoryPoolBuilder {
        MemoryPoolBuilder::new(device)
    }

    /// The device's default pool, unchanged: shared with all other code of the process.
    pub fn default_of(device: &Device) -> Result<MemoryPool> {
        MemoryPool::builder(device).driver_pool(DriverPool::DeviceDefault).build()
    }

    /// The device's current pool at each allocation, unchanged.
    pub fn current_of(device: &Device) -> Result<MemoryPool> {
        MemoryPool::builder(device).driver_pool(DriverPool::DeviceCurrent).build()
    }

    fn from_parts(
        device: Device,
        resource: Arc<dyn DeviceMemoryResource>,
        driver_pool: Option<Arc<CudaAsyncMemoryResource>>,
        limit: ByteSize,
    ) -> MemoryPool {
        let (pressure, peers, put_off) = (PressureState::default(), Mutex::default(), PutOff::default());
        let room = AtomicU64::new(limit.as_u64());
        let inner = PoolInner { device, resource, driver_pool, limit, room, pressure, peers, put_off };
        let inner = Arc::new(inner);
        inner.device.siblings().join(&inner);
        MemoryPool { inner }
    }

    /// Source of the pool's memory.
    pub fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.inner.resource
    }

    pub(crate) fn driver_pool(&self, call: &'static str) -> Result<&CudaAsyncMemoryResource> {
        self.inner.driver_pool.as_deref().ok_or_else(|| {
            let detail = format!("{} is not a pool of the driver's", self.inner.resource.name());
            DriverError::new(call, DriverCode::NOT_SUPPORTED).with_detail(detail).into()
        })
    }

    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Effective limit: the configured one, or less if the device ran out before it.
    pub fn limit(&self) -> ByteSize {
        ByteSize(self.inner.room.load(Relaxed))
    }

    /// Configured limit.
    pub fn configured_limit(&self) -> ByteSize {
        self.inner.limit
    }

    /// Lowers the limit to the used bytes plus the device's free memory, after the device ran out before the limit.
    pub(crate) fn lower_limit(&self, device_free: ByteSize) {
        let least = LEAST_LIMIT.min(self.inner.limit);
        let room = (self.used_bytes() + device_free).max(least);
        let before = ByteSize(self.inner.room.fetch_min(room.as_u64(), Relaxed));
        if room < before {
            tracing::warn!(limit = %room, before = %before, "the device has less memory left than the pool's limit: others use it");
        }
    }

    /// Restores the configured limit once no memory is used: other users of the device may have gone.
    fn restore_limit(&self) {
        if self.used_bytes() == ByteSize::ZERO {
            self.inner.room.store(self.inner.limit.as_u64(), Relaxed);
        }
    }

    /// Bytes handed out and not freed.
    pub fn used_bytes(&self) -> ByteSize {
        self.inner.pressure.ledger.used()
    }

    /// Maximum of bytes handed out since `reset_high`.
    pub fn peak_bytes(&self) -> ByteSize {
        self.inner.pressure.ledger.used_peak()
    }

    /// Bytes left below the limit.
    pub fn free_bytes(&self) -> ByteSize {
        self.limit().saturating_sub(self.used_bytes())
    }

    /// The driver's attributes of its pool.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if the memory does not come from a pool of the driver; likewise for the two setters below.
    pub fn attributes(&self) -> Result<PoolAttributes> {
        self.driver_pool("cuMemPoolGetAttribute")?.attributes()
    }

    /// Makes this the device's current pool: allocations without an explicit pool, in the whole process, use it. When
    /// it is dropped, the default pool replaces it.
    ///
    /// # Errors
    /// [`MemoryError::PoolRule`] for a pool that is not located on `device`: a current pool is always local to its
    /// device.
    pub fn set_current(&self, device: &Device) -> Result<()> {
        let pool = self.driver_pool("cuDeviceSetMemPool")?;
        let what = "making a pool the current one";
        let elsewhere = match pool.location() {
            Location::HostNuma(node) => Some(format!("host NUMA node {node}")),
            Location::Device if device != self.device() => Some(self.device().id().to_string()),
            Location::Device => None,
        };
        if let Some(place) = elsewhere {
            let rule = format!("the current pool of {} must lie on it, and this one lies on {place}", device.id());
            return Err(MemoryError::PoolRule { what, rule: rule.into() });
        }
        device.alive()?;
        device.check(device.driver().device_set_current_pool(device.id(), pool.handle()?))
    }

    pub fn statistics(&self) -> Result<ResourceStatistics> {
        self.inner.resource.statistics()
    }

    /// # Errors
    /// [`MemoryError::PoolRule`] for a pool that other processes may share, which keeps all its memory, and for a
    /// shared pool whose threshold is already set.
    pub fn set_release_threshold(&self, threshold: ReleaseThreshold) -> Result<()> {
        self.driver_pool("cuMemPoolSetAttribute")?.set_threshold(threshold)
    }

    pub fn set_reuse(&self, reuse: ReusePolicy) -> Result<()> {
        self.driver_pool("cuMemPoolSetAttribute")?.set_reuse(reuse)
    }

    /// Resets the peaks, the driver's and the pool's own.
    pub fn reset_high(&self) -> Result<()> {
        self.inner.pressure.ledger.reset_peaks();
        self.inner.resource.reset_peaks()
    }

    /// Frees unused memory beyond `keep` to the device, once running work has finished. Returns the bytes freed.
    /// Blocks; for use between queries, and under memory pressure.
    pub fn trim_to(&self, keep: ByteSize) -> Result<ByteSize> {
        if let Some(pool) = &self.inner.driver_pool {
            pool.check_may_give_back("trimming a pool")?;
        }
        self.finish_frees();
        // The driver frees only memory that it knows to be unused.
        self.inner.device.synchronize()?;
        let before = self.inner.resource.statistics()?.reserved;
        self.inner.resource.trim(keep)?;
        self.restore_limit();
        Ok(before.saturating_sub(self.inner.resource.statistics()?.reserved))
    }

    /// Call at the end of a query. If no memory is in use, the resource may reorganize its free memory. Never waits.
    pub fn end_of_query(&self) -> Result<()> {
        self.restore_limit();
        if self.used_bytes() > ByteSize::ZERO { Ok(()) } else { self.inner.resource.end_of_query() }
    }
}

impl fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool of {}: {} used of {}", self.device().id(), self.used_bytes(), self.limit())
    }
}
