//! The pool that a device's queries share: a limit, counts, and a resource behind them.
//!
//!   DeviceBuffer::new ─► limit? ─► resource.allocate ─► counted under the stream's scope
//!                          │ no          │ no
//!                          └─────────────┴─► wait for frees, trim, ask the holders (`on_pressure`), else OutOfMemory
//!
//! Limit      bytes handed out, each allocation rounded up to 256; three quarters of what is free at start, by default.
//! Kept       what is freed stays with the pool up to the release threshold (all of it, by default); `trim_to` gives it back.
//! Frees      count as free when they are submitted: later work in stream order may have the bytes.
//! Waits      only when memory runs out: for frees that the device has not come to, before an allocation fails.
//! Threads    one atomic for the limit; no lock on the way to the resource.

use std::cell::Cell;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::Device;
use crate::driver::{DriverCode, DriverError, Site};
use crate::error::{MemoryError, Result};
use crate::resource::{CudaAsyncMemoryResource, DeviceMemoryResource, RawAllocation, ResourceStatistics, Strategy};
use crate::stream::Stream;
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

/// What a holder of spare memory is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pressure {
    pub wanted: ByteSize,
    /// Counts from 0; a holder may give up more the longer it takes.
    pub attempt: u32,
}

/// Gives spare memory up and says how many bytes. Never called twice at once on one thread; must not wait for a query.
type PressureHook = Arc<dyn Fn(Pressure) -> ByteSize + Send + Sync>;

/// How many times the holders are asked before an allocation fails.
const MAX_PRESSURE_ATTEMPTS: u32 = 8;

thread_local! {
    static UNDER_PRESSURE: Cell<bool> = const { Cell::new(false) };
}

pub struct MemoryPoolBuilder {
    device: Device,
    limit: Option<ByteSize>,
    threshold: ReleaseThreshold,
    reuse: ReusePolicy,
    strategy: Strategy,
    resource: Option<Arc<dyn DeviceMemoryResource>>,
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
        let inner = PoolInner {
            device: self.device,
            resource,
            driver_pool,
            limit,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            hooks: Mutex::default(),
        };
        Ok(MemoryPool { inner: Arc::new(inner) })
    }
}

struct PoolInner {
    device: Device,
    resource: Arc<dyn DeviceMemoryResource>,
    /// The resource once more, where it is a pool of the driver's.
    driver_pool: Option<Arc<CudaAsyncMemoryResource>>,
    limit: ByteSize,
    used: AtomicU64,
    peak: AtomicU64,
    hooks: Mutex<Vec<PressureHook>>,
}

/// Device memory for the queries of one device. Clones share it.
#[derive(Clone)]
pub struct MemoryPool {
    inner: Arc<PoolInner>,
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
        ByteSize(self.inner.used.load(Ordering::Relaxed))
    }

    /// The most that was ever handed out, since `reset_high`.
    pub fn peak_bytes(&self) -> ByteSize {
        ByteSize(self.inner.peak.load(Ordering::Relaxed))
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
        self.inner.peak.store(self.inner.used.load(Ordering::Relaxed), Ordering::Relaxed);
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

    /// Asks `hook` for memory before an allocation fails.
    pub fn on_pressure(&self, hook: impl Fn(Pressure) -> ByteSize + Send + Sync + 'static) {
        self.inner.hooks.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(hook));
    }

    /// Allocates `len` bytes in the order of `stream`, counted under its scope.
    pub(crate) fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        if stream.device() != self.device() {
            return Err(MemoryError::ForeignDevice { what: "the memory pool", stream: stream.id() });
        }
        let bytes = len.get() as u64;
        let mut attempt = 0;
        while !self.reserve(bytes) {
            self.relieve(bytes, &mut attempt)?;
        }
        match self.allocate_reserved(len, stream, site) {
            Ok(raw) => {
                stream.scope().allocated(bytes);
                Ok(raw)
            }
            Err(error) => {
                self.inner.used.fetch_sub(bytes, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    fn allocate_reserved(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        let allocate = || match self.inner.resource.allocate(len, stream, site) {
            Err(error) if error.is_out_of_memory() => Ok(None),
            other => other.map(Some),
        };
        if let Some(raw) = allocate()? {
            return Ok(raw);
        }
        // Frees that were submitted may not have been come to: waiting for them is often enough.
        stream.synchronize()?;
        if let Some(raw) = allocate()? {
            return Ok(raw);
        }
        self.trim_to(ByteSize::ZERO)?;
        let mut attempt = 0;
        loop {
            if let Some(raw) = allocate()? {
                return Ok(raw);
            }
            self.relieve(len.get() as u64, &mut attempt)?;
            stream.synchronize()?;
        }
    }

    /// Takes `bytes` of the limit.
    fn reserve(&self, bytes: u64) -> bool {
        let limit = self.inner.limit.as_u64();
        let grow = |used: u64| used.checked_add(bytes).filter(|&total| total <= limit);
        match self.inner.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow) {
            Ok(before) => {
                self.inner.peak.fetch_max(before + bytes, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Asks the holders of spare memory; an error when none gives any.
    fn relieve(&self, wanted: u64, attempt: &mut u32) -> Result<()> {
        let hooks = self.inner.hooks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let nested = UNDER_PRESSURE.replace(true);
        let pressure = Pressure { wanted: ByteSize(wanted), attempt: *attempt };
        let given = if nested || *attempt >= MAX_PRESSURE_ATTEMPTS {
            ByteSize::ZERO
        } else {
            hooks.iter().map(|hook| hook(pressure)).sum()
        };
        UNDER_PRESSURE.set(nested);
        *attempt += 1;
        if given > ByteSize::ZERO { Ok(()) } else { Err(self.out_of_memory(ByteSize(wanted))) }
    }

    fn out_of_memory(&self, wanted: ByteSize) -> MemoryError {
        let mut free = self.free_bytes();
        if let Ok(info) = self.inner.device.memory_info() {
            let reusable = self.statistics().map(|s| s.reserved.saturating_sub(s.used)).unwrap_or_default();
            free = free.min(ByteSize(info.free_bytes) + reusable);
        }
        let holders = self.inner.device.scope().largest_holders(3);
        MemoryError::OutOfMemory { wanted, free, limit: self.limit(), holders }
    }

    /// Gives `raw` back in the order of `stream`.
    pub(crate) fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        self.inner.used.fetch_sub(raw.len.get() as u64, Ordering::Relaxed);
        self.inner.resource.deallocate(raw, stream, site)
    }

    /// `raw` is gone with its device, or cannot be freed safely.
    pub(crate) fn abandon(&self, raw: RawAllocation) {
        self.inner.used.fetch_sub(raw.len.get() as u64, Ordering::Relaxed);
    }
}

impl fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool of {}: {} used of {}", self.device().id(), self.used_bytes(), self.limit())
    }
}
