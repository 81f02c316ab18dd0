//! Pools, allocations, pinned memory, copies.

use std::ffi::{c_int, c_uint, c_void};
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, IntoRawFd};

use millpond_memory::driver::{
    CopyOp, DeviceId, DevicePtr, Driver, DriverCode, HandleTypes, HostKind, MemoryType, PoolAccess, PoolAttribute,
    PoolHandle, PoolLocation, PoolProperties,
};

use crate::device::device;
use crate::order::{opaque, stream};
use crate::shim::{context_of, current, device_of, site};
use crate::{Answer, Out, exports, give};

// Values from cuda.h.
const ALLOCATION_TYPE_PINNED: c_int = 1;
const LOCATION_TYPE_DEVICE: c_int = 1;
const LOCATION_TYPE_HOST_NUMA: c_int = 3;
const HANDLE_TYPE_POSIX_FD: c_uint = 1;
const ACCESS_NONE: c_int = 0;
const ACCESS_READ: c_int = 1;
const ACCESS_READWRITE: c_int = 3;
/// Value of `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL` for memory that is not on a device.
const HOST_ORDINAL: c_int = -2;
const MEMORY_TYPE_HOST: c_uint = 1;
const MEMORY_TYPE_DEVICE: c_uint = 2;
const HOST_ALLOC_DEVICEMAP: c_uint = 2;
const HOST_ALLOC_WRITECOMBINED: c_uint = 4;
const HOST_ALLOC_ALL: c_uint = 7;

/// `CUmemLocation`.
#[repr(C)]
pub struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemPoolProps`.
#[repr(C)]
pub struct PoolProps {
    allocation_type: c_int,
    handle_types: c_int,
    location: Location,
    security: *mut c_void,
    max_bytes: usize,
    reserved: [u8; 56],
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub struct AccessDesc {
    location: Location,
    access: c_int,
}

/// `CUmemPoolPtrExportData`.
#[repr(C)]
pub struct PointerForOthers {
    reserved: [u8; 64],
}

const _: () = assert!(size_of::<PoolProps>() == 88 && size_of::<AccessDesc>() == 12);

fn pool(handle: *mut c_void) -> PoolHandle {
    PoolHandle(handle.addr() as u64)
}

fn not_zero(bytes: usize) -> Answer<NonZeroUsize> {
    Ok(NonZeroUsize::new(bytes).ok_or(DriverCode::INVALID_VALUE)?)
}

fn device_at(location: &Location) -> Answer<DeviceId> {
    match location {
        Location { kind: LOCATION_TYPE_DEVICE, id } => {
            Ok(DeviceId(u32::try_from(*id).map_err(|_| DriverCode::INVALID_DEVICE)?))
        }
        _ => Err(DriverCode::INVALID_VALUE.into()),
    }
}

fn place(location: &Location) -> Answer<PoolLocation> {
    match location {
        Location { kind: LOCATION_TYPE_HOST_NUMA, id } => {
            Ok(PoolLocation::HostNuma(u32::try_from(*id).map_err(|_| DriverCode::INVALID_VALUE)?))
        }
        location => Ok(PoolLocation::Device(device_at(location)?)),
    }
}

/// Checks the handle type and flags of a call.
fn posix(types: c_uint, flags: u64) -> Answer {
    if types == HANDLE_TYPE_POSIX_FD && flags == 0 { Ok(()) } else { Err(DriverCode::INVALID_VALUE.into()) }
}

/// Maps a `CUmemPool_attribute`; true if its value is an `int` rather than a `cuuint64_t`.
fn attribute(number: c_uint) -> Answer<(PoolAttribute, bool)> {
    Ok(match number {
        1 => (PoolAttribute::ReuseFollowEventDependencies, true),
        2 => (PoolAttribute::ReuseAllowOpportunistic, true),
        3 => (PoolAttribute::ReuseAllowInternalDependencies, true),
        4 => (PoolAttribute::ReleaseThreshold, false),
        5 => (PoolAttribute::ReservedCurrent, false),
        6 => (PoolAttribute::ReservedHigh, false),
        7 => (PoolAttribute::UsedCurrent, false),
        8 => (PoolAttribute::UsedHigh, false),
        _ => return Err(DriverCode::INVALID_VALUE.into()),
    })
}

exports! {
    fn cuMemPoolCreate(shim, handle: Out<'_, *mut c_void>, props: Option<&PoolProps>) {
        let props = props.ok_or(DriverCode::INVALID_VALUE)?;
        if props.allocation_type != ALLOCATION_TYPE_PINNED || !props.security.is_null() || props.reserved != [0; 56] {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        let max_bytes = Some(props.max_bytes as u64).filter(|&bytes| bytes > 0);
        let properties = PoolProperties {
            location: place(&props.location)?,
            max_bytes,
            handle_types: HandleTypes(props.handle_types as u32),
        };
        let made = shim.driver.pool_create(&properties)?;
        give(handle, opaque(made.0))
    }

    fn cuMemPoolDestroy(shim, handle: *mut c_void) {
        Ok(shim.driver.pool_destroy(pool(handle))?)
    }

    fn cuMemPoolGetAttribute(shim, handle: *mut c_void, number: c_uint, value: *mut c_void) {
        let (attribute, is_int) = attribute(number)?;
        let found = shim.driver.pool_attribute(pool(handle), attribute)?;
        if value.is_null() {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        // SAFETY: `value` is writable for the type that cuda.h defines for this attribute.
        unsafe {
            match is_int {
                true => value.cast::<c_int>().write(found as c_int),
                false => value.cast::<u64>().write(found),
            }
        }
        Ok(())
    }

    fn cuMemPoolSetAttribute(shim, handle: *mut c_void, number: c_uint, value: *mut c_void) {
        let (attribute, is_int) = attribute(number)?;
        if value.is_null() {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        // SAFETY: `value` points to the type that cuda.h defines for this attribute.
        let value = unsafe {
            match is_int {
                true => value.cast::<c_int>().read() as u64,
                false => value.cast::<u64>().read(),
            }
        };
        Ok(shim.driver.pool_set_attribute(pool(handle), attribute, value)?)
    }

    fn cuMemPoolTrimTo(shim, handle: *mut c_void, keep_bytes: usize) {
        Ok(shim.driver.pool_trim(pool(handle), keep_bytes as u64)?)
    }

    fn cuMemPoolSetAccess(shim, handle: *mut c_void, list: *const AccessDesc, count: usize) {
        if list.is_null() {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        // SAFETY: the caller's list has `count` entries.
        for entry in unsafe { std::slice::from_raw_parts(list, count) } {
            let accessible = match entry.access {
                ACCESS_READWRITE => true,
                ACCESS_NONE => false,
                _ => return Err(DriverCode::NOT_SUPPORTED.into()),
            };
            shim.driver.pool_set_access(pool(handle), device_at(&entry.location)?, accessible)?;
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(shim, access: Out<'_, c_int>, handle: *mut c_void, of: Option<&Location>) {
        let device = device_at(of.ok_or(DriverCode::INVALID_VALUE)?)?;
        let found = match shim.driver.pool_access(pool(handle), device)? {
            PoolAccess::None => ACCESS_NONE,
            PoolAccess::Read => ACCESS_READ,
            PoolAccess::ReadWrite => ACCESS_READWRITE,
        };
        give(access, found)
    }

    fn cuDeviceGetDefaultMemPool(shim, handle: Out<'_, *mut c_void>, of: c_int) {
        give(handle, opaque(shim.driver.device_default_pool(device(of)?)?.0))
    }

    fn cuDeviceGetMemPool(shim, handle: Out<'_, *mut c_void>, of: c_int) {
        give(handle, opaque(shim.driver.device_current_pool(device(of)?)?.0))
    }

    fn cuDeviceSetMemPool(shim, of: c_int, handle: *mut c_void) {
        Ok(shim.driver.device_set_current_pool(device(of)?, pool(handle))?)
    }

    fn cuMemPoolExportToShareableHandle(
        shim, descriptor: Out<'_, c_int>, handle: *mut c_void, types: c_uint, flags: u64
    ) {
        posix(types, flags)?;
        let to = descriptor.ok_or(DriverCode::INVALID_VALUE)?;
        to.write(shim.driver.pool_export(pool(handle))?.into_raw_fd());
        Ok(())
    }

    fn cuMemPoolImportFromShareableHandle(
        shim, handle: Out<'_, *mut c_void>, descriptor: *mut c_void, types: c_uint, flags: u64
    ) {
        posix(types, flags)?;
        let number = c_int::try_from(descriptor.addr()).ok().filter(|&number| number >= 0);
        let number = number.ok_or(DriverCode::INVALID_VALUE)?;
        // SAFETY: the caller's descriptor, which stays open during the call.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        give(handle, opaque(shim.driver.pool_import(current()?, descriptor)?.0))
    }

    fn cuMemPoolExportPointer(shim, data: Out<'_, PointerForOthers>, ptr: u64) {
        give(data, PointerForOthers { reserved: shim.driver.pool_export_pointer(DevicePtr(ptr))? })
    }

    fn cuMemPoolImportPointer(shim, ptr: Out<'_, u64>, handle: *mut c_void, data: Option<&PointerForOthers>) {
        let data = data.ok_or(DriverCode::INVALID_VALUE)?;
        give(ptr, shim.driver.pool_import_pointer(pool(handle), &data.reserved, site())?.0)
    }

    fn cuPointerGetAttribute(shim, value: *mut c_void, attribute: c_uint, ptr: u64) {
        if value.is_null() {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        let found = shim.driver.pointer_attributes(DevicePtr(ptr))?;
        let number = |number: c_int| {
            // SAFETY: `value` is writable for the `int` that cuda.h defines for this attribute.
            unsafe { value.cast::<c_int>().write(number) };
            Ok(())
        };
        let word = |word: u64| {
            // SAFETY: `value` is writable for the pointer or `size_t` that cuda.h defines for this attribute.
            unsafe { value.cast::<u64>().write(word) };
            Ok(())
        };
        match attribute {
            1 => word(found.context.map_or(0, |_| found.device.map_or(0, |device| context_of(device).addr() as u64))),
            2 => number(match found.memory {
                MemoryType::Host => MEMORY_TYPE_HOST,
                MemoryType::Device => MEMORY_TYPE_DEVICE,
                MemoryType::Other(other) => other,
            } as c_int),
            9 => number(found.device.map_or(HOST_ORDINAL, |device| device.0 as c_int)),
            11 => word(found.start.0),
            12 => word(found.len as u64),
            17 => word(found.pool.map_or(0, |pool| pool.0)),
            _ => Err(DriverCode::INVALID_VALUE.into()),
        }
    }

    fn cuMemAllocAsync(shim, ptr: Out<'_, u64>, bytes: usize, on: *mut c_void) {
        current()?;
        let made = shim.driver.alloc_current(not_zero(bytes)?, stream(on), site())?;
        shim.submitted();
        give(ptr, made.0)
    }

    fn cuMemAllocFromPoolAsync(shim, ptr: Out<'_, u64>, bytes: usize, from: *mut c_void, on: *mut c_void) {
        current()?;
        let made = shim.driver.pool_alloc(pool(from), not_zero(bytes)?, stream(on), site())?;
        shim.submitted();
        give(ptr, made.0)
    }

    fn cuMemFreeAsync(shim, ptr: u64, on: *mut c_void) {
        current()?;
        shim.driver.free_async(DevicePtr(ptr), stream(on), site())?;
        shim.submitted();
        Ok(())
    }

    fn cuMemAlloc_v2(shim, ptr: Out<'_, u64>, bytes: usize) {
        give(ptr, shim.driver.alloc_sync(current()?, not_zero(bytes)?, site())?.0)
    }

    fn cuMemFree_v2(shim, ptr: u64) {
        current()?;
        Ok(shim.driver.free_sync(DevicePtr(ptr), site())?)
    }

    fn cuMemHostAlloc(shim, memory: Out<'_, *mut c_void>, bytes: usize, flags: c_uint) {
        let device = current()?;
        if flags & !HOST_ALLOC_ALL != 0 {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        let kind = if flags & HOST_ALLOC_WRITECOMBINED != 0 { HostKind::Upload } else { HostKind::Download };
        let block = shim.driver.host_alloc(device, not_zero(bytes)?, kind, site())?;
        give(memory, std::ptr::with_exposed_provenance_mut(block.address() as usize))?;
        shim.add_block(block, flags & HOST_ALLOC_DEVICEMAP != 0);
        Ok(())
    }

    fn cuMemFreeHost(shim, memory: *mut c_void) {
        current()?;
        let block = shim.take_block(memory.addr() as u64)?;
        Ok(shim.driver.host_free(&block, site())?)
    }

    fn cuMemHostRegister_v2(shim, _memory: *mut c_void, _bytes: usize, _flags: c_uint) {
        let _ = shim;
        current()?;
        // Registration of ordinary memory is not simulated; callers fall back to `cuMemHostAlloc`.
        Err(DriverCode::NOT_SUPPORTED.into())
    }

    fn cuMemHostUnregister(shim, _memory: *mut c_void) {
        let _ = shim;
        current()?;
        Err(DriverCode::INVALID_VALUE.into())
    }

    fn cuMemHostGetDevicePointer_v2(shim, ptr: Out<'_, u64>, memory: *mut c_void, flags: c_uint) {
        current()?;
        if flags != 0 {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        // Addresses are unified: the device and the host use the same address for mapped memory.
        give(ptr, shim.span(memory.addr() as u64, 0, true)?.address())
    }

    fn cuMemcpyHtoDAsync_v2(shim, to: u64, from: *const c_void, len: usize, on: *mut c_void) {
        current()?;
        // Copies from ordinary memory, the driver's fallback without page-locked memory, are not simulated.
        let from = shim.span(from.addr() as u64, len, false)?;
        shim.driver.copy(&CopyOp::HostToDevice { from, to: DevicePtr(to) }, stream(on), site())?;
        shim.submitted();
        Ok(())
    }

    fn cuMemcpyDtoHAsync_v2(shim, to: *mut c_void, from: u64, len: usize, on: *mut c_void) {
        current()?;
        let to = shim.span(to.addr() as u64, len, false)?;
        shim.driver.copy(&CopyOp::DeviceToHost { from: DevicePtr(from), to }, stream(on), site())?;
        shim.submitted();
        Ok(())
    }

    fn cuMemcpyDtoDAsync_v2(shim, to: u64, from: u64, len: usize, on: *mut c_void) {
        current()?;
        let copy = CopyOp::DeviceToDevice { from: DevicePtr(from), to: DevicePtr(to), len };
        shim.driver.copy(&copy, stream(on), site())?;
        shim.submitted();
        Ok(())
    }

    fn cuMemcpyPeerAsync(
        shim, to: u64, to_context: *mut c_void, from: u64, from_context: *mut c_void, len: usize, on: *mut c_void
    ) {
        current()?;
        let copy = CopyOp::Peer {
            from: DevicePtr(from),
            from_device: device_of(from_context)?,
            to: DevicePtr(to),
            to_device: device_of(to_context)?,
            len,
        };
        shim.driver.copy(&copy, stream(on), site())?;
        shim.submitted();
        Ok(())
    }

    fn cuMemsetD8Async(shim, ptr: u64, byte: u8, len: usize, on: *mut c_void) {
        current()?;
        shim.driver.fill(DevicePtr(ptr), byte, len, stream(on), site())?;
        shim.submitted();
        Ok(())
    }

    fn cuStreamWriteValue32_v2(shim, on: *mut c_void, ptr: u64, value: u32, flags: c_uint) {
        current()?;
        if flags != 0 || !ptr.is_multiple_of(4) {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        // Words in device memory are not simulated; words in mapped host memory are.
        let word = shim.span(ptr, 4, true)?;
        word.block().claim_words().map_err(|_| DriverCode::INVALID_VALUE)?;
        shim.driver.write_word(&word, value, stream(on), site())?;
        shim.submitted();
        Ok(())
    }
}
