//! The driver's stream-ordered pool: `cudaMallocAsync`, from a pool of our own or from one that others have, too.
//!
//! Pool       an own one by default: raising the threshold of the device's default pool would change other libraries in
//!            the process. A shared pool is taken as it is, and not destroyed.
//! Reuse      the driver's three policies; internal dependencies are off in an own pool, so that plans repeat.
//! Kept       everything, by default: CUDA's own threshold of 0 gives memory back at every synchronisation.
//! Host       a pool on a NUMA node of the host is accessible only to the host by default: access is enabled for the
//!            device at creation.

use std::num::NonZeroUsize;

use super::{DeviceMemoryResource, RawAllocation, ResourceStatistics, check_device};
use crate::device::Device;
use crate::driver::{Driver, HandleTypes, PoolAttribute, PoolHandle, PoolLocation, PoolProperties, Site};
use crate::error::{DriverCode, DriverError, MemoryError, Result};
use crate::pool::{DriverPool, Location, MaxSize, PoolAttributes, ReleaseThreshold, ReusePolicy};
use crate::stream::Stream;
use crate::units::ByteSize;

/// Creation options and initial attributes of the driver's pool.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CudaAsyncOptions {
    pub pool: DriverPool,
    pub location: Location,
    pub max: MaxSize,
    pub handle_types: HandleTypes,
    /// `None` is everything for an own pool; a shared one is left as it is.
    pub threshold: Option<ReleaseThreshold>,
    /// `None` is the default for an own pool; a shared one is left as it is.
    pub reuse: Option<ReusePolicy>,
}

impl CudaAsyncOptions {
    /// The first property that was asked for, in words.
    pub(crate) fn first_property(&self) -> Option<&'static str> {
        let asked = [
            (self.pool != DriverPool::Own, "a shared pool of the driver's"),
            (self.location != Location::Device, "a pool on the host"),
            (self.max != MaxSize::Unlimited, "a maximum size"),
            (!self.handle_types.is_none(), "an export to other processes"),
            (self.threshold.is_some(), "a release threshold"),
            (self.reuse.is_some(), "a policy of reuse"),
        ];
        asked.into_iter().find_map(|(asked, what)| asked.then_some(what))
    }
}

#[derive(Debug)]
enum Handle {
    /// Destroyed with the resource.
    Own(PoolHandle),
    /// The device's default pool.
    Default(PoolHandle),
    /// Whichever is current.
    Current,
}

#[derive(Debug)]
pub struct CudaAsyncMemoryResource {
    name: &'static str,
    device: Device,
    handle: Handle,
    location: Location,
    max: MaxSize,
    handle_types: HandleTypes,
}

fn refused<T>(what: &'static str, rule: impl Into<Box<str>>) -> Result<T> {
    Err(MemoryError::PoolRule { what, rule: rule.into() })
}

// 1. Making one.
impl CudaAsyncMemoryResource {
    pub fn new(
        device: &Device,
        max: Option<ByteSize>,
        threshold: ReleaseThreshold,
        reuse: ReusePolicy,
    ) -> Result<Self> {
        let options = CudaAsyncOptions {
            max: max.map_or(MaxSize::Unlimited, MaxSize::Bytes),
            threshold: Some(threshold),
            reuse: Some(reuse),
            ..CudaAsyncOptions::default()
        };
        Self::with_options(device, &options)
    }

    /// # Errors
    /// [`MemoryError::PoolRule`] for what CUDA's pools do not do, or what the driver says.
    pub fn with_options(device: &Device, options: &CudaAsyncOptions) -> Result<Self> {
        Self::check_support(device)?;
        let resource = match options.pool {
            DriverPool::Own => Self::create("cuda_async", device, options)?,
            shared => Self::share(device, shared, options)?,
        };
        // Attributes are set before the first use; an error destroys an own pool with the resource.
        if !matches!(resource.handle, Handle::Own(_)) {
            if let Some(threshold) = options.threshold {
                resource.raise_shared_threshold(threshold)?;
            }
            if let Some(reuse) = options.reuse {
                resource.set_reuse(reuse)?;
            }
            return Ok(resource);
        }
        match options.threshold {
            // An exportable pool keeps all memory and ignores the threshold.
            None if !options.handle_types.is_none() => {}
            threshold => resource.set_threshold(threshold.unwrap_or_default())?,
        }
        resource.set_reuse(options.reuse.unwrap_or_default())?;
        Ok(resource)
    }

    /// A pool as the driver makes it: it gives memory back at every synchronisation, and reuses it by all three
    /// policies.
    pub fn untuned(device: &Device) -> Result<Self> {
        Self::check_support(device)?;
        let resource = Self::create("cuda_async_default", device, &CudaAsyncOptions::default())?;
        // What drivers start with so far; said, so that the line in a plot keeps its meaning.
        resource.set_threshold(ReleaseThreshold::Bytes(ByteSize::ZERO))?;
        Ok(resource)
    }

    fn check_support(device: &Device) -> Result<()> {
        device.alive()?;
        if device.limits().memory_pools {
            return Ok(());
        }
        let error = DriverError::new("cuMemPoolCreate", DriverCode::NOT_SUPPORTED)
            .with_detail("the device has no memory pools (a virtual GPU may lack them); choose cuda or caching");
        Err(MemoryError::Driver { error, stream: None })
    }

    fn create(name: &'static str, device: &Device, options: &CudaAsyncOptions) -> Result<Self> {
        const HOST: &str = "a pool on the host";
        let CudaAsyncOptions { location, max, handle_types, .. } = *options;
        if max == MaxSize::Bytes(ByteSize::ZERO) {
            return refused("a maximum size of 0", "to the driver it means no maximum; leave `max_size` out for that");
        }
        if let Location::HostNuma(node) = location
            && device.limits().host_numa_pools == Some(false)
        {
            let rule = format!("{} says that it cannot have one (NUMA node {node} was asked for)", device.id());
            return refused(HOST, rule);
        }
        if !device.limits().pool_handle_types.contains(handle_types) {
            let rule = format!(
                "{} exports pools by handle types {:#x}, and {:#x} was asked for",
                device.id(),
                device.limits().pool_handle_types.0,
                handle_types.0
            );
            return refused("an export to other processes", rule);
        }
        let properties = PoolProperties {
            location: match location {
                Location::Device => PoolLocation::Device(device.id()),
                Location::HostNuma(node) => PoolLocation::HostNuma(node),
            },
            max_bytes: match max {
                MaxSize::Unlimited => None,
                MaxSize::Bytes(max) => Some(max.as_u64()),
            },
            handle_types,
        };
        let pool = device.check(device.driver().pool_create(&properties))?;
        let resource = Self { name, device: device.clone(), handle: Handle::Own(pool), location, max, handle_types };
        if location != Location::Device {
            device.check(device.driver().pool_set_access(pool, device.id(), true))?;
        }
        Ok(resource)
    }

    fn share(device: &Device, pool: DriverPool, options: &CudaAsyncOptions) -> Result<Self> {
        let made_with = CudaAsyncOptions { pool: DriverPool::Own, threshold: None, reuse: None, ..options.clone() };
        if let Some(property) = made_with.first_property() {
            let rule = format!(
                "it is decided when a pool is made, and {} is there already; leave `driver_pool` out for a pool of its own",
                pool.words()
            );
            return refused(property, rule);
        }
        let (name, handle) = match pool {
            DriverPool::DeviceCurrent => ("cuda_async_current", Handle::Current),
            DriverPool::DeviceDefault | DriverPool::Own => {
                let pool = device.check(device.driver().device_default_pool(device.id()))?;
                ("cuda_async_shared", Handle::Default(pool))
            }
        };
        let (location, max, handle_types) = (Location::Device, MaxSize::Unlimited, HandleTypes::NONE);
        Ok(Self { name, device: device.clone(), handle, location, max, handle_types })
    }
}

// 2. Telling and asking.
impl CudaAsyncMemoryResource {
    /// The driver's pool; of the current one, what it is now.
    pub(crate) fn handle(&self) -> Result<PoolHandle> {
        match self.handle {
            Handle::Own(pool) | Handle::Default(pool) => Ok(pool),
            Handle::Current => self.device.check(self.device.driver().device_current_pool(self.device.id())),
        }
    }

    /// Whether `handle` may be another one next time.
    pub(crate) fn is_current(&self) -> bool {
        matches!(self.handle, Handle::Current)
    }

    pub fn location(&self) -> Location {
        self.location
    }

    pub fn max_size(&self) -> MaxSize {
        self.max
    }

    /// What it can be exported by.
    pub fn handle_types(&self) -> HandleTypes {
        self.handle_types
    }

    fn set(&self, attribute: PoolAttribute, value: u64) -> Result<()> {
        self.device.alive()?;
        self.device.check(self.device.driver().pool_set_attribute(self.handle()?, attribute, value))
    }

    fn get(&self, attribute: PoolAttribute) -> Result<u64> {
        self.device.alive()?;
        self.device.check(self.device.driver().pool_attribute(self.handle()?, attribute))
    }

    /// Memory that other processes may have mapped is never given back.
    pub(crate) fn check_may_give_back(&self, what: &'static str) -> Result<()> {
        if self.handle_types.is_none() {
            return Ok(());
        }
        refused(what, "it was made for export, and memory that other processes may have mapped is never given back")
    }

    /// The threshold in bytes; `None` is to leave it.
    fn resolve(&self, threshold: ReleaseThreshold) -> Result<Option<u64>> {
        const FRACTION: &str = "a release threshold as a fraction";
        Ok(match threshold {
            ReleaseThreshold::DriverDefault => None,
            ReleaseThreshold::Max => Some(u64::MAX),
            ReleaseThreshold::Bytes(bytes) => Some(bytes.as_u64()),
            ReleaseThreshold::Fraction(fraction) if !(0.0..=1.0).contains(&fraction) => {
                return refused(FRACTION, format!("it is between 0 and 1, and {fraction} was given"));
            }
            ReleaseThreshold::Fraction(fraction) => {
                let whole = match (self.max, self.location) {
                    (MaxSize::Bytes(max), _) => max,
                    (MaxSize::Unlimited, Location::Device) => self.device.limits().total_memory,
                    (MaxSize::Unlimited, Location::HostNuma(_)) => {
                        return refused(FRACTION, "a pool on the host needs a `max_size` for it to be a fraction of");
                    }
                };
                Some((whole.as_u64() as f64 * fraction) as u64)
            }
        })
    }

    /// Sets the threshold if it is still the driver's 0; a value set by other code stays.
    fn raise_shared_threshold(&self, threshold: ReleaseThreshold) -> Result<bool> {
        let Some(bytes) = self.resolve(threshold)? else { return Ok(true) };
        if self.get(PoolAttribute::ReleaseThreshold)? != 0 {
            return Ok(false);
        }
        self.set(PoolAttribute::ReleaseThreshold, bytes).map(|()| true)
    }

    pub(crate) fn set_threshold(&self, threshold: ReleaseThreshold) -> Result<()> {
        const WHAT: &str = "setting a release threshold";
        self.check_may_give_back(WHAT)?;
        if matches!(self.handle, Handle::Own(_)) {
            return match self.resolve(threshold)? {
                Some(bytes) => self.set(PoolAttribute::ReleaseThreshold, bytes),
                None => Ok(()),
            };
        }
        if self.raise_shared_threshold(threshold)? {
            return Ok(());
        }
        let rule = format!(
            "the pool is shared by the whole process, and somebody has set it to {} already; take a pool of your own",
            ByteSize(self.get(PoolAttribute::ReleaseThreshold)?)
        );
        refused(WHAT, rule)
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
        let allocate = |driver: &dyn Driver, on| match self.handle {
            Handle::Own(pool) | Handle::Default(pool) => driver.pool_alloc(pool, len, on, site),
            Handle::Current => driver.alloc_current(len, on, site),
        };
        let (ptr, _) = stream.submit(allocate)?;
        Ok(RawAllocation { ptr, len })
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        check_device(&self.device, stream)?;
        stream.submit(|driver, on| driver.free_async(raw.ptr, on, site)).map(|_| ())
    }

    fn trim(&self, keep: ByteSize) -> Result<()> {
        self.device.alive()?;
        self.device.check(self.device.driver().pool_trim(self.handle()?, keep.as_u64()))
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
        let Handle::Own(pool) = self.handle else { return };
        if self.device.is_lost() {
            return;
        }
        if let Err(error) = self.device.check(self.device.driver().pool_destroy(pool)) {
            self.device.report(error);
        }
    }
}
