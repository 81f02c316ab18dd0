//! The pool that a device's queries share: a limit, counts, and a resource behind them.
//!
//!   DeviceBuffer::new ─► limit? ─► resource.allocate ─► counted under the stream's scope
//!                          │ no          │ no
//!                          └─────────────┴─► wait for frees, trim, ask the holders (`on_pressure`), else OutOfMemory
//!
//! Limit      bytes handed out, each allocation rounded up to 256; three quarters of what is free at start, by default. It is
//!            lower for a while when the device could not give that much: others use it, too.
//! Kept       what is freed stays with the pool up to the release threshold (all of it, by default); `trim_to` gives it back.
//! Frees      count as free for who comes after them in stream order, and for everyone once the device has come to them.
//! Short      what happens when memory runs out is in `pressure`.
//! Threads    one atomic for the limit; no lock on the way to the resource.

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

/// A limit is not lowered further: pieces below would cost more than a try that fails.
const LEAST_LIMIT: ByteSize = ByteSize::mib(64);

pub(crate) struct PoolInner {
    pub(crate) device: Device,
    pub(crate) resource: Arc<dyn DeviceMemoryResource>,
    /// The resource once more, where it is a pool of the driver's.
    driver_pool: Option<Arc<CudaAsyncMemoryResource>>,
    /// Other devices with access to all of it. Access is never taken back.
    pub(crate) peers: Mutex<BTreeSet<DeviceId>>,
    /// What it was made with.
    pub(crate) limit: ByteSize,
    /// What of that the device has room for, as far as an allocation that failed could see; the limit itself at first.
    pub(crate) room: AtomicU64,
    /// What is handed out: counts, and who is asked when memory runs out.
    pub(crate) pressure: PressureState,
    /// Frees that wait for the end of a capture.
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

    /// The device's default pool, as it is: shared with whatever else is in the process.
    pub fn default_of(device: &Device) -> Result<MemoryPool> {
        MemoryPool::builder(device).driver_pool(DriverPool::DeviceDefault).build()
    }

    /// Whichever pool is the device's current one at each allocation, as it is.
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

    /// Where its memory comes from.
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

    /// The most it hands out now: what it was made with, or less where the device had no more when it was asked.
    pub fn limit(&self) -> ByteSize {
        ByteSize(self.inner.room.load(Relaxed))
    }

    /// The most it was made to hand out.
    pub fn configured_limit(&self) -> ByteSize {
        self.inner.limit
    }

    /// The device had no room although the limit had: from now on the limit is what is used and what the device still has.
    pub(crate) fn lower_limit(&self, device_free: ByteSize) {
        let least = LEAST_LIMIT.min(self.inner.limit);
        let room = (self.used_bytes() + device_free).max(least);
        let before = ByteSize(self.inner.room.fetch_min(room.as_u64(), Relaxed));
        if room < before {
            tracing::warn!(limit = %room, before = %before, "the device has less memory left than the pool's limit: others use it");
        }
    }

    /// Nothing is used any more: others may have gone.
    fn restore_limit(&self) {
        if self.used_bytes() == ByteSize::ZERO {
            self.inner.room.store(self.inner.limit.as_u64(), Relaxed);
        }
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

    /// Makes this the device's current pool: what allocates without naming one, in the whole process, takes from it. When it
    /// is dropped the default pool takes its place.
    ///
    /// # Errors
    /// [`MemoryError::PoolRule`] for a pool that does not lie on `device`: a current pool is always local to its device.
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
    /// [`MemoryError::PoolRule`] for a pool that other processes may share, which keeps everything, and for a shared pool
    /// whose threshold somebody has set already.
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
        if let Some(pool) = &self.inner.driver_pool {
            pool.check_may_give_back("trimming a pool")?;
        }
        self.finish_frees();
        // The driver gives back only what it knows to be free.
        self.inner.device.synchronize()?;
        let before = self.inner.resource.statistics()?.reserved;
        self.inner.resource.trim(keep)?;
        self.restore_limit();
        Ok(before.saturating_sub(self.inner.resource.statistics()?.reserved))
    }

    /// A query has ended. Where nothing is in use any more, the resource may rearrange what it keeps. Never waits.
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
