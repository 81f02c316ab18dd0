//! Graphs: work that is captured instead of run, and what that means for memory.
//!
//!   Stream ─ begin capture ─► Active ─ end ─► None          work becomes nodes of a graph, run later, as often as it is launched
//!                               └ a rule is broken ─► Invalidated ─ end ─► None, with an error
//!
//! Supported  telling whether a stream is captured; the memory that the driver keeps for graphs: `graph_memory`,
//!            `trim_graph_memory`; allocation inside a capture through the C interface (`ffi`), from memory kept for the graph.
//! Refused    everything else on a captured stream, with [`MemoryError::Capturing`]: work, allocations, waits, events, words and
//!            waits of the host. A graph is replayed with the addresses and edges it was captured with, and the order kept here
//!            (positions, uses of buffers) holds for one run. Refusing is before any driver call, so the capture goes on.
//! Frees      of memory that a captured stream used are put off until the capture is over: inside, they would free it at every
//!            replay. The next allocation or trim of the pool does them, or `MemoryPool::finish_frees`.
//! Device     a wait for the whole device would break the capture, and is refused while one is known of.
//! Threads    our poller, and every thread while it asks about an event of ours or waits for one, declare themselves harmless
//!            (`thread_capture_mode`): that breaks no capture, of this thread or another.
//! Memset     nodes made by hand do not take memory of a pool (S1.48): `check_memset_node` says so. A memset that is captured
//!            from a stream does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::buffer::DeviceView;
use crate::device::Device;
use crate::driver::{CaptureStatus, DriverCode, DriverError, GraphMemoryAttribute, Site};
use crate::error::{MemoryError, Result};
use crate::order::Position;
use crate::pool::MemoryPool;
use crate::resource::RawAllocation;
use crate::stream::{Stream, StreamId};
use crate::units::ByteSize;

/// What the driver holds for the graphs of a device: in a pool of its own, which no other pool's trim reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GraphMemory {
    /// Bytes that launched graphs use now.
    pub used_current: ByteSize,
    pub used_high: ByteSize,
    /// Bytes taken from the system.
    pub reserved_current: ByteSize,
    pub reserved_high: ByteSize,
}

/// What graphs of the device hold.
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

/// Starts new watermarks at what graphs hold now.
pub fn reset_graph_memory_high(device: &Device) -> Result<()> {
    device.alive()?;
    for high in [GraphMemoryAttribute::UsedHigh, GraphMemoryAttribute::ReservedHigh] {
        device.check(device.driver().graph_memory_set_attribute(device.id(), high, 0))?;
    }
    Ok(())
}

/// Gives back to the system what no graph uses. Returns how much went.
pub fn trim_graph_memory(device: &Device) -> Result<ByteSize> {
    let before = graph_memory(device)?.reserved_current;
    device.check(device.driver().graph_memory_trim(device.id()))?;
    Ok(before.saturating_sub(graph_memory(device)?.reserved_current))
}

/// Whether a memset node made by hand may name these bytes.
///
/// # Errors
/// Not if they are from a pool of the driver's (S1.48): capture the memset from a stream instead.
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

/// A free that waits for the end of a capture.
#[derive(Debug)]
struct Waiting {
    raw: RawAllocation,
    after: Vec<Position>,
    on: StreamId,
    site: Site,
}

/// The frees of a pool that wait for the end of a capture.
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
    /// Frees `raw` behind `after`, on the stream `on`, once none of them is captured any more.
    pub(crate) fn put_off(&self, raw: RawAllocation, after: Vec<Position>, on: StreamId, site: Site) {
        let list = &self.inner.put_off;
        let mut waiting = list.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(Waiting { raw, after, on, site });
        list.count.store(waiting.len(), Ordering::Relaxed);
    }

    /// How many frees wait for the end of a capture.
    pub fn frees_put_off(&self) -> usize {
        self.inner.put_off.count.load(Ordering::Relaxed)
    }

    /// Does the frees that waited for the end of a capture, where it has come. The device keeps their errors.
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
    /// Whether what is submitted to the stream would run or become part of a graph. Costs a driver call where that can be.
    pub fn capture_status(&self) -> Result<CaptureStatus> {
        self.device().alive()?;
        self.device().capture_status_of(self.cell())
    }

    /// A capture of one of our streams begins or has ended: whoever passes the raw handle to another library says so here,
    /// and everything that cannot be captured is refused meanwhile. Streams of others are always asked.
    pub fn expect_capture(&self, expected: bool) {
        if !self.is_external() {
            self.cell().may_capture.store(expected, Ordering::Relaxed);
        }
    }
}
