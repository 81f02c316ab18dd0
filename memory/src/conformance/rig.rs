//! What a claim works with: a resource of one strategy, streams, and verbs that make no order of their own.
//!
//!   allocate ─ fill ─ copy ─ free      one driver call each, on the named stream; only `wait_for`, `record` and
//!                                      `synchronize` of a stream order anything
//!
//! Buffers    a `DeviceBuffer` of `pool` orders itself; the bare verbs are for claims about the order that it needs.

use std::num::NonZeroUsize;
use std::panic::Location;

use crate::checks::{CheckError, CheckRig, same};
use crate::device::Device;
use crate::driver::{CopyOp, DevicePtr, Driver, DriverError, DriverKind, HostKind, HostSpan};
use crate::pool::{ReleaseThreshold, ReusePolicy};
use crate::resource::{CudaAsyncMemoryResource, DeviceMemoryResource, RawAllocation, Strategy};
use crate::stream::Stream;
use crate::units::ByteSize;

pub(super) const MIB: usize = 1 << 20;

pub(super) type Outcome<T = ()> = std::result::Result<T, CheckError>;

/// True on a device that interprets kernels, behind whichever driver.
pub(super) fn is_simulated(device: &Device) -> bool {
    device.driver().kind() == DriverKind::Sim || device.limits().name.starts_with("simulated device")
}

/// A resource, a pool over it, four streams, and verbs.
pub struct Rig {
    pub(super) base: CheckRig,
    strategy: Strategy,
    other: Option<Device>,
}

impl Rig {
    /// A rig on `device`; a claim about two devices or processes is given the `other` one.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &Device, strategy: Strategy, other: Option<Device>) -> Outcome<Self> {
        Ok(Rig { base: CheckRig::with(device, strategy)?, strategy, other })
    }

    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Nothing is in use, no drop reported an error, and the resource gives back all it keeps.
    pub(super) fn finish(self) -> Outcome {
        self.base.device.synchronize()?;
        self.base.pool.trim_to(ByteSize::ZERO)?;
        let left = self.base.pool.statistics()?;
        same("what the resource holds after a trim", (left.used, left.reserved), (ByteSize::ZERO, ByteSize::ZERO))?;
        self.base.finish()
    }

    /// The other device, or the same one in another process.
    pub(super) fn other(&self) -> Outcome<&Device> {
        self.other
            .as_ref()
            .ok_or_else(|| CheckError::Wrong("a claim about two devices or processes was given one".into()))
    }

    pub(super) fn resource(&self) -> &dyn DeviceMemoryResource {
        &**self.base.pool.resource()
    }

    pub(super) fn driver(&self) -> &dyn Driver {
        &**self.base.device.driver()
    }

    /// True where the simulated device answers, so that what CUDA may do is what it does.
    pub(super) fn is_simulated(&self) -> bool {
        is_simulated(&self.base.device)
    }

    /// True if queued work runs only when the host waits.
    pub(super) fn is_lazy(&self) -> bool {
        self.driver().kind() == DriverKind::Sim
    }

    /// A pool of the driver of its own, of at most `max`.
    pub(super) fn own_pool(
        &self,
        max: Option<ByteSize>,
        threshold: ReleaseThreshold,
        reuse: ReusePolicy,
    ) -> Outcome<CudaAsyncMemoryResource> {
        Ok(CudaAsyncMemoryResource::new(&self.base.device, max, threshold, reuse)?)
    }

    // Verbs.

    #[track_caller]
    pub(super) fn allocate(&self, len: usize, on: &Stream) -> Outcome<RawAllocation> {
        allocate(self.resource(), len, on)
    }

    #[track_caller]
    pub(super) fn free(&self, raw: RawAllocation, on: &Stream) -> Outcome {
        Ok(self.resource().deallocate(raw, on, Location::caller())?)
    }

    /// Sets every byte of an allocation.
    #[track_caller]
    pub(super) fn fill(&self, raw: &RawAllocation, byte: u8, on: &Stream) -> Outcome {
        fill(raw.ptr(), raw.len().get(), byte, on)
    }

    #[track_caller]
    pub(super) fn copy(&self, from: &RawAllocation, to: &RawAllocation, on: &Stream) -> Outcome {
        let copy = CopyOp::DeviceToDevice { from: from.ptr(), to: to.ptr(), len: from.len().get() };
        let site = Location::caller();
        on.submit(|driver, on| driver.copy(&copy, on, site))?;
        Ok(())
    }

    /// Every byte of an allocation is `byte`, read on `on`; waits for it.
    #[track_caller]
    pub(super) fn expect(&self, what: &str, raw: &RawAllocation, byte: u8, on: &Stream) -> Outcome {
        let bytes = read(raw.ptr(), raw.len(), on)?;
        same(&format!("a foreign byte of {what}"), bytes.into_iter().find(|&found| found != byte), None)
    }

    /// A call of the driver's, judged as the device judges it.
    pub(super) fn call<T>(&self, result: std::result::Result<T, DriverError>) -> Outcome<T> {
        Ok(self.base.device.check(result)?)
    }
}

#[track_caller]
pub(super) fn allocate(from: &dyn DeviceMemoryResource, len: usize, on: &Stream) -> Outcome<RawAllocation> {
    let len = NonZeroUsize::new(len).ok_or_else(|| CheckError::Wrong("a claim allocates no bytes".into()))?;
    Ok(from.allocate(len, on, Location::caller())?)
}

#[track_caller]
pub(super) fn fill(ptr: DevicePtr, len: usize, byte: u8, on: &Stream) -> Outcome {
    let site = Location::caller();
    on.submit(|driver, on| driver.fill(ptr, byte, len, on, site))?;
    Ok(())
}

/// The bytes at `ptr`, read on `on` and waited for.
#[track_caller]
pub(super) fn read(ptr: DevicePtr, len: NonZeroUsize, on: &Stream) -> Outcome<Vec<u8>> {
    let site = Location::caller();
    let device = on.device();
    let block = device.check(device.driver().host_alloc(device.id(), len, HostKind::Download, site))?;
    let to = HostSpan::new(&block, 0, len.get())?;
    on.submit(|driver, on| driver.copy(&CopyOp::DeviceToHost { from: ptr, to }, on, site))?;
    on.synchronize()?;
    let bytes = block.read()?.to_vec();
    device.check(device.driver().host_free(&block, site))?;
    Ok(bytes)
}

/// `Ok` if it was refused for want of memory.
pub(super) fn out_of_memory<T>(what: &str, result: Outcome<T>) -> Outcome {
    match result {
        Err(CheckError::Memory(error)) if error.is_out_of_memory() => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(CheckError::Wrong(format!("{what} is not out of memory"))),
    }
}

/// `Ok` if it was refused, and the device still works.
pub(super) fn refused<T, E: Into<CheckError>>(
    what: &str,
    device: &Device,
    result: std::result::Result<T, E>,
) -> Outcome {
    match result.map_err(Into::into) {
        Ok(_) => Err(CheckError::Wrong(format!("{what} is not refused"))),
        Err(CheckError::Memory(error)) if error.is_device_lost() || device.is_lost() => Err(error.into()),
        Err(_) => Ok(()),
    }
}
