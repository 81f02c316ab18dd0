//! Capture and graphs.

use std::ffi::{c_int, c_uint, c_void};

use millpond_memory::driver::{
    CaptureMode, CaptureStatus, Driver, DriverCode, GraphExecHandle, GraphHandle, GraphMemoryAttribute,
};

use crate::device::device;
use crate::order::{opaque, stream};
use crate::shim::{current, site};
use crate::{Answer, Out, exports, give};

fn graph(handle: *mut c_void) -> GraphHandle {
    GraphHandle(handle.addr() as u64)
}

fn exec(handle: *mut c_void) -> GraphExecHandle {
    GraphExecHandle(handle.addr() as u64)
}

/// `CUgraphMem_attribute`.
fn attribute(number: c_uint) -> Answer<GraphMemoryAttribute> {
    Ok(match number {
        0 => GraphMemoryAttribute::UsedCurrent,
        1 => GraphMemoryAttribute::UsedHigh,
        2 => GraphMemoryAttribute::ReservedCurrent,
        3 => GraphMemoryAttribute::ReservedHigh,
        _ => return Err(DriverCode::INVALID_VALUE.into()),
    })
}

/// `CUstreamCaptureMode`.
fn capture_mode(number: c_uint) -> Answer<CaptureMode> {
    Ok(match number {
        0 => CaptureMode::Global,
        1 => CaptureMode::ThreadLocal,
        2 => CaptureMode::Relaxed,
        _ => return Err(DriverCode::INVALID_VALUE.into()),
    })
}

exports! {
    fn cuStreamBeginCapture_v2(shim, handle: *mut c_void, mode: c_uint) {
        current()?;
        Ok(shim.driver.stream_capture_begin(stream(handle), capture_mode(mode)?)?)
    }

    fn cuThreadExchangeStreamCaptureMode(shim, mode: Option<&mut c_uint>) {
        let mode = mode.ok_or(DriverCode::INVALID_VALUE)?;
        *mode = match shim.driver.thread_capture_mode(capture_mode(*mode)?)? {
            CaptureMode::Global => 0,
            CaptureMode::ThreadLocal => 1,
            CaptureMode::Relaxed => 2,
        };
        Ok(())
    }

    fn cuStreamEndCapture(shim, handle: *mut c_void, made: Out<'_, *mut c_void>) {
        current()?;
        give(made, opaque(shim.driver.stream_capture_end(stream(handle))?.0))
    }

    fn cuStreamGetCaptureInfo_v2(
        shim,
        handle: *mut c_void,
        status: Out<'_, c_uint>,
        id: Out<'_, u64>,
        graph: Out<'_, *mut c_void>,
        nodes: Out<'_, *const c_void>,
        num_nodes: Out<'_, usize>,
    ) {
        current()?;
        // Nodes of a capture are internal to the simulated device.
        if graph.is_some() || nodes.is_some() || num_nodes.is_some() {
            return Err(DriverCode::NOT_SUPPORTED.into());
        }
        let (number, capture) = match shim.driver.stream_capture_status(stream(handle))? {
            CaptureStatus::None => (0, 0),
            CaptureStatus::Active { id } => (1, id),
            CaptureStatus::Invalidated => (2, 0),
        };
        if let Some(id) = id {
            id.write(capture);
        }
        give(status, number)
    }

    fn cuGraphDestroy(shim, handle: *mut c_void) {
        Ok(shim.driver.graph_destroy(graph(handle))?)
    }

    fn cuGraphInstantiateWithFlags(shim, made: Out<'_, *mut c_void>, from: *mut c_void, flags: u64) {
        if flags != 0 {
            return Err(DriverCode::NOT_SUPPORTED.into());
        }
        give(made, opaque(shim.driver.graph_instantiate(graph(from))?.0))
    }

    fn cuGraphExecDestroy(shim, handle: *mut c_void) {
        Ok(shim.driver.graph_exec_destroy(exec(handle))?)
    }

    fn cuGraphLaunch(shim, handle: *mut c_void, on: *mut c_void) {
        current()?;
        shim.driver.graph_launch(exec(handle), stream(on), site())?;
        shim.submitted();
        Ok(())
    }

    fn cuDeviceGetGraphMemAttribute(shim, handle: c_int, number: c_uint, value: Out<'_, u64>) {
        give(value, shim.driver.graph_memory_attribute(device(handle)?, attribute(number)?)?)
    }

    fn cuDeviceSetGraphMemAttribute(shim, handle: c_int, number: c_uint, value: Option<&u64>) {
        let value = *value.ok_or(DriverCode::INVALID_VALUE)?;
        Ok(shim.driver.graph_memory_set_attribute(device(handle)?, attribute(number)?, value)?)
    }

    fn cuDeviceGraphMemTrim(shim, handle: c_int) {
        Ok(shim.driver.graph_memory_trim(device(handle)?)?)
    }
}
