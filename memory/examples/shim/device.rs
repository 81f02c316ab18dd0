//! The library, its devices and their contexts.

use std::ffi::{c_char, c_int, c_uint, c_void};

use millpond_memory::driver::{DeviceAttribute, DeviceId, Driver, DriverCode};

use crate::leaving::Registers;
use crate::shim::{context_of, current, make_current};
use crate::{Answer, Out, exports, give};

/// Reported instead of the simulated device's name, to show that no GPU is behind it.
const NAME: &str = "simulated device behind a libcuda for tests";

pub(crate) fn device(handle: c_int) -> Answer<DeviceId> {
    Ok(DeviceId(u32::try_from(handle).map_err(|_| DriverCode::INVALID_DEVICE)?))
}

/// `CUdevice_attribute` of cuda.h.
fn attribute(number: c_int) -> Answer<DeviceAttribute> {
    Ok(match number {
        1 => DeviceAttribute::MaxThreadsPerBlock,
        5 => DeviceAttribute::MaxGridDimX,
        8 => DeviceAttribute::MaxSharedMemoryPerBlock,
        10 => DeviceAttribute::WarpSize,
        13 => DeviceAttribute::ClockRateKhz,
        16 => DeviceAttribute::MultiprocessorCount,
        18 => DeviceAttribute::Integrated,
        36 => DeviceAttribute::MemoryClockRateKhz,
        37 => DeviceAttribute::GlobalMemoryBusWidthBits,
        38 => DeviceAttribute::L2CacheBytes,
        39 => DeviceAttribute::MaxThreadsPerMultiprocessor,
        41 => DeviceAttribute::UnifiedAddressing,
        75 => DeviceAttribute::ComputeCapabilityMajor,
        76 => DeviceAttribute::ComputeCapabilityMinor,
        81 => DeviceAttribute::MaxSharedMemoryPerMultiprocessor,
        82 => DeviceAttribute::MaxRegistersPerMultiprocessor,
        97 => DeviceAttribute::MaxSharedMemoryPerBlockOptin,
        115 => DeviceAttribute::MemoryPoolsSupported,
        119 => DeviceAttribute::MemoryPoolSupportedHandleTypes,
        122 => DeviceAttribute::StreamMemoryOperations,
        134 => DeviceAttribute::HostNumaId,
        142 => DeviceAttribute::HostNumaMemoryPoolsSupported,
        _ => return Err(DriverCode::INVALID_VALUE.into()),
    })
}

exports! {
    fn cuDriverGetVersion(shim, version: Out<'_, c_int>) {
        give(version, shim.options.version)
    }

    fn cuInit(shim, flags: c_uint) {
        if flags != 0 {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        shim.initialise()
    }

    fn cuDeviceGetCount(shim, count: Out<'_, c_int>) {
        give(count, shim.driver.device_count()? as c_int)
    }

    fn cuDeviceGet(shim, handle: Out<'_, c_int>, ordinal: c_int) {
        if device(ordinal)?.0 >= shim.driver.device_count()? {
            return Err(DriverCode::INVALID_DEVICE.into());
        }
        give(handle, ordinal)
    }

    fn cuDeviceGetName(shim, name: *mut c_char, len: c_int, handle: c_int) {
        shim.driver.device_info(device(handle)?)?;
        let room = usize::try_from(len).unwrap_or(0);
        if name.is_null() || room == 0 {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        let text = &NAME.as_bytes()[..NAME.len().min(room - 1)];
        // SAFETY: `name` is writable for `len` bytes; the text and its terminating zero are shorter.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len());
            name.add(text.len()).write(0);
        }
        Ok(())
    }

    fn cuDeviceTotalMem_v2(shim, bytes: Out<'_, usize>, handle: c_int) {
        give(bytes, shim.driver.device_info(device(handle)?)?.total_bytes as usize)
    }

    fn cuDeviceGetAttribute(shim, value: Out<'_, c_int>, number: c_int, handle: c_int) {
        give(value, shim.driver.attribute(device(handle)?, attribute(number)?)?)
    }

    fn cuDeviceCanAccessPeer(shim, can: Out<'_, c_int>, handle: c_int, peer: c_int) {
        give(can, shim.driver.can_access_peer(device(handle)?, device(peer)?)?.into())
    }

    fn cuDevicePrimaryCtxRetain(shim, context: Out<'_, *mut c_void>, handle: c_int) {
        let device = device(handle)?;
        shim.driver.device_open(device)?;
        Registers::FirstContext.now();
        give(context, context_of(device))
    }

    fn cuDevicePrimaryCtxRelease_v2(shim, handle: c_int) {
        Ok(shim.driver.device_close(device(handle)?)?)
    }

    fn cuCtxSetCurrent(_shim, context: *mut c_void) {
        make_current(context)
    }

    fn cuCtxGetCurrent(_shim, context: Out<'_, *mut c_void>) {
        give(context, current().map_or(std::ptr::null_mut(), context_of))
    }

    fn cuCtxSynchronize(shim) {
        Ok(shim.driver.device_synchronize(current()?)?)
    }

    fn cuCtxGetStreamPriorityRange(_shim, least: Out<'_, c_int>, greatest: Out<'_, c_int>) {
        current()?;
        give(least, 0)?;
        give(greatest, -5)
    }

    fn cuMemGetInfo_v2(shim, free: Out<'_, usize>, total: Out<'_, usize>) {
        let memory = shim.driver.memory_info(current()?)?;
        give(free, memory.free_bytes as usize)?;
        give(total, memory.total_bytes as usize)
    }
}
