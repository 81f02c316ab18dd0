//! How fast a device's memory is: a short copy on the device, timed by its own clock.
//!
//!   a ─ copy ─► b      once to warm up, then a few times: the fastest counts, each byte as read and as written
//!
//! Not a limit: a kernel that reads more than it writes may be a little faster than a copy.

use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::driver::DriverKind;
use crate::error::Result;
use crate::pool::MemoryPool;
use crate::stream::Stream;

/// Bytes of each buffer: several times the largest cache.
const BYTES: u64 = 256 << 20;
/// Less than this says more about caches than about memory.
const LEAST_BYTES: u64 = 16 << 20;
const COPIES: u32 = 5;

/// Bytes of its memory that the device reads and writes in a second. Nothing on the simulated device, and where `pool` has no
/// room to spare. Waits for the device, a few milliseconds.
///
/// # Errors
/// What the device says.
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
    let mut best = f64::INFINITY;
    for pair in marks.windows(2) {
        best = best.min(f64::from(pair[1].ms_since(&pair[0])?) / 1e3);
    }
    Ok((best > 0.0 && best.is_finite()).then(|| 2.0 * bytes as f64 / best))
}
