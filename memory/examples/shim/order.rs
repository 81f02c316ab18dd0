//! Streams and events.

use std::ffi::{c_int, c_uint, c_void};

use millpond_memory::driver::sim::SimDriver;
use millpond_memory::driver::{DeviceId, Driver, DriverCode, EventFlags, EventHandle, StreamHandle, StreamPriority};

use crate::shim::{context_of, current, site};
use crate::{Out, exports, finished, give};

// Values from cuda.h.
const STREAM_NON_BLOCKING: c_uint = 1;
const LEGACY_STREAM: usize = 1;
const EVENT_BLOCKING_SYNC: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;
const EVENT_INTERPROCESS: c_uint = 4;

/// `CUipcEventHandle`.
#[repr(C)]
pub struct EventForOthers {
    reserved: [u8; 64],
}

/// Null and 1 are the legacy default stream of the current device.
pub(crate) fn stream(handle: *mut c_void) -> StreamHandle {
    match (handle.addr(), current()) {
        (0 | LEGACY_STREAM, Ok(device)) => SimDriver::default_stream(device),
        (address, _) => StreamHandle(address as u64),
    }
}

fn event(handle: *mut c_void) -> EventHandle {
    EventHandle(handle.addr() as u64)
}

/// Represents handles of the simulated driver as pointers, which are never dereferenced.
pub(crate) fn opaque(handle: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(handle as usize)
}

exports! {
    fn cuStreamCreateWithPriority(shim, handle: Out<'_, *mut c_void>, flags: c_uint, priority: c_int) {
        let device = current()?;
        match flags {
            STREAM_NON_BLOCKING => {}
            // Streams that synchronize with the default stream are not simulated.
            0 => return Err(DriverCode::NOT_SUPPORTED.into()),
            _ => return Err(DriverCode::INVALID_VALUE.into()),
        }
        let priority = if priority < 0 { StreamPriority::High } else { StreamPriority::Normal };
        give(handle, opaque(shim.driver.stream_create(device, priority)?.0))
    }

    fn cuStreamDestroy_v2(shim, handle: *mut c_void) {
        current()?;
        Ok(shim.driver.stream_destroy(stream(handle))?)
    }

    fn cuStreamQuery(shim, handle: *mut c_void) {
        current()?;
        finished(shim.driver.stream_query(stream(handle))?)
    }

    fn cuStreamSynchronize(shim, handle: *mut c_void) {
        current()?;
        Ok(shim.driver.stream_synchronize(stream(handle))?)
    }

    fn cuStreamGetCtx(shim, handle: *mut c_void, context: Out<'_, *mut c_void>) {
        // The shim creates all streams in primary contexts: only the simulated device knows the owner of this one.
        let known = (0..shim.driver.device_count()?)
            .map(DeviceId)
            .find(|&device| shim.driver.stream_wrap(device, handle.addr() as u64).is_ok());
        let device = match handle.addr() {
            0..=2 => current()?,
            _ => known.ok_or(DriverCode::INVALID_HANDLE)?,
        };
        give(context, context_of(device))
    }

    fn cuStreamGetId(shim, handle: *mut c_void, id: Out<'_, u64>) {
        current()?;
        give(id, shim.driver.stream_id(stream(handle))?)
    }

    fn cuStreamWaitEvent(shim, handle: *mut c_void, after: *mut c_void, flags: c_uint) {
        current()?;
        if flags != 0 {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        shim.driver.stream_wait(stream(handle), event(after), site())?;
        shim.submitted();
        Ok(())
    }

    fn cuEventCreate(shim, handle: Out<'_, *mut c_void>, flags: c_uint) {
        let device = current()?;
        if flags & !(EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING | EVENT_INTERPROCESS) != 0 {
            return Err(DriverCode::INVALID_VALUE.into());
        }
        let flags = EventFlags {
            timing: flags & EVENT_DISABLE_TIMING == 0,
            interprocess: flags & EVENT_INTERPROCESS != 0,
        };
        give(handle, opaque(shim.driver.event_create(device, flags)?.0))
    }

    fn cuIpcGetEventHandle(shim, handle: Out<'_, EventForOthers>, of: *mut c_void) {
        current()?;
        give(handle, EventForOthers { reserved: shim.driver.event_ipc_handle(event(of))? })
    }

    fn cuIpcOpenEventHandle(shim, handle: Out<'_, *mut c_void>, from: EventForOthers) {
        give(handle, opaque(shim.driver.event_open_ipc(current()?, &from.reserved)?.0))
    }

    fn cuEventDestroy_v2(shim, handle: *mut c_void) {
        current()?;
        Ok(shim.driver.event_destroy(event(handle))?)
    }

    fn cuEventRecord(shim, handle: *mut c_void, on: *mut c_void) {
        current()?;
        shim.driver.event_record(event(handle), stream(on), site())?;
        shim.submitted();
        Ok(())
    }

    fn cuEventQuery(shim, handle: *mut c_void) {
        current()?;
        finished(shim.driver.event_query(event(handle))?)
    }

    fn cuEventSynchronize(shim, handle: *mut c_void) {
        current()?;
        Ok(shim.driver.event_synchronize(event(handle))?)
    }

    fn cuEventElapsedTime(shim, ms: Out<'_, f32>, start: *mut c_void, end: *mut c_void) {
        current()?;
        give(ms, shim.driver.event_elapsed_ms(event(start), event(end))?)
    }
}
