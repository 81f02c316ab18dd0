//! CUDA graphs: work that is captured instead of run, and its effect on memory.
//!
//!   Stream ─ begin capture ─► Active ─ end ─► None       work becomes nodes of a graph, which runs at every launch
//!                               └ a rule is broken ─► Invalidated ─ end ─► None, with an error
//!
//! Supported  detecting whether a stream is captured; the driver's memory for graphs: `graph_memory`,
//!            `trim_graph_memory`; allocation inside a capture through the C interface (`ffi`), from memory kept for
//!            the graph.
//! Refused    everything else on a captured stream, with [`MemoryError::Capturing`]: work, allocations, waits, events,
//!            words and host waits. A graph replays the captured addresses and edges, but the order maintained here
//!            (positions, uses of buffers) holds for one run. The refusal precedes any driver call, so the capture
//!            continues.
//! Frees      of memory that a captured stream used are deferred until the capture ends: inside, they would free it at
//!            every replay. The next allocation or trim of the pool performs them, or `MemoryPool::finish_frees`.
//! Device     a wait for the whole device would break the capture, and is refused while a capture is known.
//! Threads    the poller, and every thread during an event query or event wait, relax their capture mode
//!            (`thread_capture_mode`), so that they break no capture, of this thread or another.
//! Memset     nodes built by hand cannot use memory of a pool (S1.48): see `check_memset_node`. A memset captured from
//!            a stream can.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::buffer::DeviceView;
use crate::device::Device;
use crate::driver::{CaptureStatus, DriverCode, DriverError, GraphMemoryAttribute, Site};
use crate::error::{MemoryError, Result};
use crate::ids::StreamId;
use crate::order::Position;
use crate::pool::MemoryPool;
use crate::resource::RawAllocation;
use crate::stream::Stream;
use crate::units::ByteSize;

/// Memory the driver holds for the graphs of a device, in a separate pool that no other pool's trim affects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GraphMemory {
    /// Bytes that launched graphs use now.
    pub used_current: ByteSize,
    pub used_high: ByteSize,
    /// Bytes taken from the system.
    pub reserved_current: ByteSize,
    pub reserved_high: ByteSize,
}

/// Returns the memory held by graphs of the device.
pub fn graph_memory(device: &Device) -> Result<GraphMemory> {
    device.alive()?;
    let get = |attribute| device.check(device.driver().graph_memory_attribute(device.id(), attribute)).map(ByteSize);
    Ok(GraphMemory {
        used_current: get(GraphMemoryAttribute::UsedCurrent)?,
        used_high: get(GraphMemoryAttribute::UsedHigh)?,
        reserved_current: get(GraphMemoryAttribute::ReservedCurrent)?,
        reserved_high: get(GraphMemoryAttribute::ReservedHigh)?,
    })
}

/// Resets the high watermarks to the current values.
pub fn reset_graph_memory_high(device: &Device) -> Result<()> {
    device.alive()?;
    for high in [GraphMemoryAttribute::UsedHigh, GraphMemoryAttribute::ReservedHigh] {
        device.check(device.driver().graph_memory_set_attribute(device.id(), high, 0))?;
    }
    Ok(())
}

/// Frees unused graph memory to the system. Returns the bytes freed.
pub fn trim_graph_memory(device: &Device) -> Result<ByteSize> {
    let before = graph_memory(device)?.reserved_current;
    device.check(device.driver().graph_memory_trim(device.id()))?;
    Ok(before.saturating_sub(graph_memory(device)?.reserved_current))
}

/// Checks whether a memset node built by hand may use these bytes.
///
/// # Errors
/// If they belong to a pool of the driver (S1.48): capture the memset from a stream instead.
pub fn check_memset_node(view: &DeviceView) -> Result<()> {
    let device = view.device();
    device.alive()?;
    if view.is_empty() {
        return Ok(());
    }
    match device.check(device.driver().pointer_attributes(view.address()))?.pool {
        None => Ok(()),
        Some(_) => {
            let error = DriverError::new("cuGraphAddMemsetNode", DriverCode::INVALID_VALUE)
                .with_detail("memory of a pool cannot be named by a memset node; capture the memset from a stream");
            Err(MemoryError::Driver { error, stream: None })
        }
    }
}

/// A free deferred to the end of a capture.
#[derive(Debug)]
struct Waiting {
    raw: RawAllocation,
    after: Vec<Position>,
    on: StreamId,
    site: Site,
}

/// Deferred frees of a pool.
#[derive(Debug, Default)]
pub(crate) struct PutOff {
    waiting: Mutex<Vec<Waiting>>,
    count: AtomicUsize,
}

impl Drop for PutOff {
    fn drop(&mut self) {
        let left = self.waiting.get_mut().unwrap_or_else(PoisonError::into_inner).len();
        if left > 0 {
            tracing::warn!(left, "a pool is gone before the captures that put its frees off: they are leaked");
        }
    }
}

impl MemoryPool {
    /// Frees `raw` behind `after`, on stream `on`, once none of these streams is captured any more.
    pub(crate) fn put_off(&self, raw: RawAllocation, after: Vec<Position>, on: StreamId, site: Site) {
        let list = &self.inner.put_off;
        let mut waiting = list.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(Waiting { raw, after, on, site });
        list.count.store(waiting.len(), Ordering::Relaxed);
    }

    /// Number of frees deferred to the end of a capture.
    pub fn frees_put_off(&self) -> usize {
        self.inner.put_off.count.load(Ordering::Relaxed)
    }

    /// Performs deferred frees whose captures have ended. The device stores their errors.
    pub fn finish_frees(&self) {
        let list = &self.inner.put_off;
        if list.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut waiting = list.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for free in std::mem::take(&mut *waiting) {
            match self.behind(&free) {
                Err(error) if error.is_capturing() => waiting.push(free),
                Err(error) => {
                    self.abandon(free.raw);
                    self.device().report(error);
                }
                Ok(stream) => {
                    if let Err(error) = self.deallocate(free.raw, &stream, free.site) {
                        self.device().report(error);
                    }
                }
            }
        }
        list.count.store(waiting.len(), Ordering::Relaxed);
    }

    fn behind(&self, free: &Waiting) -> Result<Stream> {
        let device = self.device();
        let stream = Stream::of(device, device.stream_cell(free.on)?, device.scope().clone());
        stream.usable("a free")?;
        for position in &free.after {
            stream.wait_for(*position)?;
        }
        Ok(stream)
    }
}

impl Stream {
    /// Whether work submitted to the stream would run or become part of a graph. Costs a driver call if a capture is
    /// possible.
    pub fn capture_status(&self) -> Result<CaptureStatus> {
        self.device().alive()?;
        self.device().capture_status_of(self.cell())
    }

    /// Announces that a capture of this stream begins or has ended. Call it when passing the raw handle to another
    /// library: calls that cannot be captured are refused meanwhile. External streams are always queried.
    pub fn expect_capture(&self, expected: bool) {
        if !self.is_external() {
            self.cell().may_capture.store(expected, Ordering::Relaxed);
        }
    }
}
