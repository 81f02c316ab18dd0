//! Bandwidth of a device's memory, and of the link to it: short copies, timed by the device's clock.
//!
//!   a ─ copy ─► b           one warm-up, then several runs: the fastest counts, each byte as read and as written
//!   pinned ─ copy ─► a      likewise, each byte once
//!
//! Not a limit: a kernel that reads more than it writes may be a little faster than a copy.

use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::driver::{DriverKind, HostKind};
use crate::error::Result;
use crate::event::TimeMark;
use crate::pinned::PinnedPool;
use crate::pool::MemoryPool;
use crate::stream::Stream;

/// Bytes of each buffer: several times the largest cache.
const BYTES: u64 = 256 << 20;
/// Minimum bytes of a buffer; fewer would measure caches instead of memory.
const LEAST_BYTES: u64 = 16 << 20;
const COPIES: u32 = 5;
/// Bytes of a copy over the link, the size queries use.
const LINK_BYTES: usize = 32 << 20;

/// Bytes of its memory that the device reads and writes per second. `None` on the simulated device, and if `pool` has
/// too little free memory. Waits for the device, a few milliseconds.
///
/// # Errors
/// Errors of the device.
pub fn memory_bandwidth(device: &Device, pool: &MemoryPool) -> Result<Option<f64>> {
    if device.driver().kind() == DriverKind::Sim {
        return Ok(None);
    }
    let free = device.memory_info()?.free_bytes.min(pool.limit().saturating_sub(pool.used_bytes()).as_u64());
    let bytes = BYTES.min(free / 8);
    if bytes < LEAST_BYTES {
        return Ok(None);
    }
    let stream = Stream::new(device)?;
    let a = DeviceBuffer::zeroed(bytes as usize, &stream, pool)?;
    let b = DeviceBuffer::new(bytes as usize, &stream, pool)?;
    a.copy_to(&b, &stream)?;
    let mut marks = vec![stream.mark_time()?];
    for _ in 0..COPIES {
        a.copy_to(&b, &stream)?;
        marks.push(stream.mark_time()?);
    }
    stream.record()?.wait_uncounted()?;
    Ok(fastest(&marks)?.map(|seconds| 2.0 * bytes as f64 / seconds))
}

/// Bytes per second from pinned memory to the device on an idle link. `None` on the simulated device. Waits for the
/// device, some milliseconds.
///
/// # Errors
/// Errors of the device, including a lack of memory for the copy.
pub fn link_bandwidth(device: &Device, pool: &MemoryPool, pinned: &PinnedPool) -> Result<Option<f64>> {
    if device.driver().kind() == DriverKind::Sim {
        return Ok(None);
    }
    let stream = Stream::new(device)?;
    let to = DeviceBuffer::new(LINK_BYTES, &stream, pool)?;
    let mut from = pinned.take_now(HostKind::Upload, LINK_BYTES)?;
    from.write()?.fill(1);
    let mut marks = vec![];
    for _ in 0..=COPIES {
        from.enqueue_to_device(0..LINK_BYTES, to.as_view(), &stream)?;
        marks.push(stream.mark_time()?);
    }
    stream.record()?.wait_uncounted()?;
    Ok(fastest(&marks)?.map(|seconds| LINK_BYTES as f64 / seconds))
}

/// Shortest time between two marks in seconds; `None` if it is not positive.
fn fastest(marks: &[TimeMark]) -> Result<Option<f64>> {
    let mut best = f64::INFINITY;
    for pair in marks.windows(2) {
        best = best.min(f64::from(pair[1].ms_since(&pair[0])?) / 1e3);
    }
    Ok((best > 0.0 && best.is_finite()).then_some(best))
}
