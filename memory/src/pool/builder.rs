//! Makes a pool: everything that can be refused is refused here, with the rule.
//!
//!   MemoryPool::builder(&device) ─ limit ─ strategy | resource ─ log ─┐
//!                                 └ driver_pool · location · max_size · export · release_threshold · reuse · prime ─► build
//!
//! Properties   of the second line are those of the driver's pool: they need `Strategy::CudaAsync`, which is the default.

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
    /// `None` is the default, where the device can.
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

    /// The most the pool hands out at once. By default three quarters of what is free on the device now.
    pub fn limit(mut self, limit: ByteSize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Where the memory comes from; `cuda_async` by default, and `cuda` on a device without pools. The properties of the driver's pool are those of `cuda_async`; the other strategies
    /// come with their own.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = Some(strategy);
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

    /// Takes the memory from the device's default or current pool, which the rest of the process shares.
    pub fn driver_pool(mut self, pool: DriverPool) -> Self {
        self.options.pool = pool;
        self
    }

    /// Where the memory lies. A pool on the host is open to the device.
    pub fn location(mut self, location: Location) -> Self {
        self.options.location = location;
        self
    }

    /// The most that the driver lets the pool hold. It fails before the holders of spare memory are asked: `limit` does not.
    pub fn max_size(mut self, max: MaxSize) -> Self {
        self.options.max = max;
        self
    }

    /// Lets the pool be shared with other processes. It never gives memory back then.
    pub fn export(mut self, types: HandleTypes) -> Self {
        self.options.handle_types = types;
        self
    }

    /// What the pool keeps unused at a synchronisation: everything, by default. A shared pool's is raised only where nobody
    /// has set it yet, and by default left alone.
    pub fn release_threshold(mut self, threshold: ReleaseThreshold) -> Self {
        self.options.threshold = Some(threshold);
        self
    }

    /// When memory freed on one stream serves another. By default without internal dependencies, so that plans repeat; a
    /// shared pool's is left alone.
    pub fn reuse(mut self, reuse: ReusePolicy) -> Self {
        self.options.reuse = Some(reuse);
        self
    }

    /// Takes so many bytes from the device now, so that the first queries need not. Waits for them once.
    pub fn prime(mut self, bytes: ByteSize) -> Self {
        self.prime = bytes;
        self
    }

    /// # Errors
    /// [`MemoryError::PoolRule`] for what CUDA's pools do not do, or what the driver says.
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

    /// A device without pools (a virtual GPU may lack them) is used without, where nobody asked for one.
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

/// Takes `bytes` from the device and frees them into the pool.
fn prime(device: &Device, resource: &dyn DeviceMemoryResource, bytes: ByteSize) -> Result<()> {
    let len = usize::try_from(bytes.as_u64()).unwrap_or(usize::MAX);
    let Some(len) = std::num::NonZeroUsize::new(len) else { return Ok(()) };
    let stream = Stream::new(device)?;
    let site = CodeLocation::caller();
    let raw = resource.allocate(len, &stream, site)?;
    resource.deallocate(raw, &stream, site)?;
    stream.synchronize()
}
