//! Builds a pool: all invalid settings are refused here, with the rule.
//!
//!   builder(&device) ─ limit ─ strategy | resource ─ log ─┐
//!                     └ driver_pool · location · max_size · export · release_threshold · reuse · prime ─► build
//!
//! Properties   in the second line belong to the driver's pool: they need `Strategy::CudaAsync`, which is the default.

use std::panic::Location as CodeLocation;
use std::sync::Arc;

use super::{DriverPool, Location, MaxSize, MemoryPool, ReleaseThreshold, ReusePolicy};
use crate::adaptor::LoggingResourceAdaptor;
use crate::device::Device;
use crate::driver::{DriverCode, DriverError, HandleTypes};
use crate::error::{MemoryError, Result};
use crate::log::MemoryLog;
use crate::resource::{CudaAsyncMemoryResource, CudaAsyncOptions, DeviceMemoryResource, Strategy};
use crate::stream::Stream;
use crate::units::ByteSize;

#[must_use = "a builder makes nothing until `build`"]
pub struct MemoryPoolBuilder {
    device: Device,
    limit: Option<ByteSize>,
    options: CudaAsyncOptions,
    prime: ByteSize,
    /// `None` is the default strategy that the device supports.
    strategy: Option<Strategy>,
    resource: Option<Arc<dyn DeviceMemoryResource>>,
    log: Option<Arc<MemoryLog>>,
}

fn refused<T>(what: &'static str, rule: impl Into<Box<str>>) -> Result<T> {
    Err(MemoryError::PoolRule { what, rule: rule.into() })
}

impl MemoryPoolBuilder {
    pub(super) fn new(device: &Device) -> Self {
        MemoryPoolBuilder {
            device: device.clone(),
            limit: None,
            options: CudaAsyncOptions::default(),
            prime: ByteSize::ZERO,
            strategy: None,
            resource: None,
            log: None,
        }
    }

    /// Maximum bytes handed out at once. Default: three quarters of the device's free memory at this time.
    pub fn limit(mut self, limit: ByteSize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Source of the memory; `cuda_async` by default, and `cuda` on a device without pools. The properties of the
    /// driver's pool apply to `cuda_async`; the other strategies have their own.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = Some(strategy);
        self
    }

    /// Allocates from `resource`: a strategy with specific options, or one inside adaptors.
    pub fn resource(mut self, resource: Arc<dyn DeviceMemoryResource>) -> Self {
        self.resource = Some(resource);
        self
    }

    /// Logs allocations and frees, and their uses on the device's streams.
    pub fn log(mut self, log: Arc<MemoryLog>) -> Self {
        self.log = Some(log);
        self
    }

    /// Allocates from the device's default or current pool, which the rest of the process shares.
    pub fn driver_pool(mut self, pool: DriverPool) -> Self {
        self.options.pool = pool;
        self
    }

    /// Location of the memory. A pool on the host is accessible to the device.
    pub fn location(mut self, location: Location) -> Self {
        self.options.location = location;
        self
    }

    /// Driver's maximum for the pool. Reaching it fails without calling the holders of spare memory, unlike `limit`.
    pub fn max_size(mut self, max: MaxSize) -> Self {
        self.options.max = max;
        self
    }

    /// Allows other processes to share the pool. It then never frees memory to the device.
    pub fn export(mut self, types: HandleTypes) -> Self {
        self.options.handle_types = types;
        self
    }

    /// Unused memory that the pool keeps at a synchronization: all of it by default. A shared pool's threshold is
    /// raised only if it is not set yet, and unchanged by default.
    pub fn release_threshold(mut self, threshold: ReleaseThreshold) -> Self {
        self.options.threshold = Some(threshold);
        self
    }

    /// Conditions under which memory freed on one stream serves another. Default: no internal dependencies, so that
    /// plans repeat; a shared pool's policy is unchanged.
    pub fn reuse(mut self, reuse: ReusePolicy) -> Self {
        self.options.reuse = Some(reuse);
        self
    }

    /// Allocates this many bytes from the device in advance, so that the first queries need not. Waits for them once.
    pub fn prime(mut self, bytes: ByteSize) -> Self {
        self.prime = bytes;
        self
    }

    /// # Errors
    /// [`MemoryError::PoolRule`] for settings that CUDA's pools do not support; errors of the driver.
    pub fn build(self) -> Result<MemoryPool> {
        let limit = self.the_limit()?;
        let strategy = self.the_strategy();
        let (resource, driver_pool) = match (self.resource, strategy) {
            (Some(resource), _) if *resource.device() != self.device => {
                let detail = format!("the resource {} is of another device than the pool", resource.name());
                return Err(DriverError::new("MemoryPool", DriverCode::INVALID_DEVICE).with_detail(detail).into());
            }
            (None, Strategy::CudaAsync) => {
                let pool = Arc::new(CudaAsyncMemoryResource::with_options(&self.device, &self.options)?);
                (Arc::clone(&pool) as Arc<dyn DeviceMemoryResource>, Some(pool))
            }
            (resource, strategy) => {
                if let Some(property) = self.options.first_property() {
                    let name = resource.as_ref().map_or(strategy.name(), |resource| resource.name());
                    let rule = format!(
                        "it is a property of a pool of the driver's, and `{name}` brings its own memory; use the strategy \
                         `{}` without a resource",
                        Strategy::CudaAsync
                    );
                    return refused(property, rule);
                }
                match (resource, strategy) {
                    (Some(resource), _) => (resource, None),
                    (None, Strategy::CudaAsyncDefault) => {
                        let pool = Arc::new(CudaAsyncMemoryResource::untuned(&self.device)?);
                        (Arc::clone(&pool) as Arc<dyn DeviceMemoryResource>, Some(pool))
                    }
                    (None, strategy) => (strategy.create(&self.device)?, None),
                }
            }
        };
        if self.prime > ByteSize::ZERO {
            prime(&self.device, &*resource, self.prime)?;
        }
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
        Ok(MemoryPool::from_parts(self.device, resource, driver_pool, limit))
    }

    /// Falls back to a strategy without pools on a device without them (such as some virtual GPUs), unless a pool was
    /// requested.
    fn the_strategy(&self) -> Strategy {
        if let Some(strategy) = self.strategy {
            return strategy;
        }
        let strategy = Strategy::default();
        if self.device.limits().memory_pools || self.resource.is_some() || self.options.first_property().is_some() {
            return strategy;
        }
        tracing::warn!(
            device = %self.device.id(),
            "the device has no memory pools: memory comes from `{}`, where every free waits on the host; `{}` waits less",
            Strategy::Cuda,
            Strategy::Caching
        );
        Strategy::Cuda
    }

    fn the_limit(&self) -> Result<ByteSize> {
        match (self.limit, self.options.location, self.options.max) {
            (Some(limit), ..) => Ok(limit),
            (None, Location::Device, _) => Ok(ByteSize(self.device.memory_info()?.free_bytes / 4 * 3)),
            (None, Location::HostNuma(_), MaxSize::Bytes(max)) => Ok(max),
            (None, Location::HostNuma(_), MaxSize::Unlimited) => refused(
                "a pool on the host without a limit",
                "how much of the host's memory it may take is not the device's to say; give it `limit` or `max_size`",
            ),
        }
    }
}

/// Allocates `bytes` from the device and frees them into the pool.
fn prime(device: &Device, resource: &dyn DeviceMemoryResource, bytes: ByteSize) -> Result<()> {
    let len = usize::try_from(bytes.as_u64()).unwrap_or(usize::MAX);
    let Some(len) = std::num::NonZeroUsize::new(len) else { return Ok(()) };
    let stream = Stream::new(device)?;
    let site = CodeLocation::caller();
    let raw = resource.allocate(len, &stream, site)?;
    resource.deallocate(raw, &stream, site)?;
    stream.synchronize()
}
