//! Sets a column to one value, or to its row numbers. Device side: `cuda/fill.cu`.

use millpond_memory::{DeviceView, Stream};

use crate::error::KernelError;
use crate::image::Images;
use crate::rows::{Rows, expect_bytes, striding};
use crate::{Launch, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Sets the first `rows` values of `out` to `value`, whose little-endian bytes decide the width: 1, 2, 4, 8 or 16.
///
/// | name  | length          | unit   |
/// |-------|-----------------|--------|
/// | `out` | at least `rows` | values |
///
/// # Errors
/// [`KernelError::Shape`] if `out` is too short, or for another width.
pub fn fill(images: &Images, value: &[u8], rows: &Rows, out: &DeviceView, on: &Stream) -> Result<()> {
    let name = match value.len() {
        1 => "fill_1",
        2 => "fill_2",
        4 => "fill_4",
        8 => "fill_8",
        16 => "fill_16",
        other => {
            return Err(KernelError::Shape { what: "fill", why: format!("no kernel for values of {other} bytes") });
        }
    };
    expect_bytes("fill", "out", out, rows.upper_bound() * value.len() as u64)?;
    let kernel = images.kernel("fill", name)?;
    let launch = Launch::new(&kernel, striding(images.device(), rows.upper_bound(), tune::MOVE_THREADS));
    rows.put(launch.write(out).bytes(value, value.len())).submit(on)?;
    Ok(())
}

/// Sets the first `rows` bits of the bitmap `out`, and those behind them in the last word to 0.
///
/// # Errors
/// [`KernelError::Shape`] if `out` has fewer than `rows` bits, rounded up to whole 32-bit words.
pub fn fill_bits(images: &Images, value: bool, rows: &Rows, out: &DeviceView, on: &Stream) -> Result<()> {
    expect_bytes("fill_bits", "out", out, rows.upper_bound().div_ceil(32) * 4)?;
    let kernel = images.kernel("fill", "fill_bits")?;
    let launch = Launch::new(&kernel, striding(images.device(), rows.upper_bound().div_ceil(32), tune::MOVE_THREADS));
    rows.put(launch.write(out).value(u32::from(value))).submit(on)?;
    Ok(())
}

/// Writes `first`, `first + 1`, … as u32.
///
/// # Errors
/// [`KernelError::Shape`] if `out` has fewer than `rows` words.
pub fn iota(images: &Images, first: u32, rows: &Rows, out: &DeviceView, on: &Stream) -> Result<()> {
    expect_bytes("iota", "out", out, rows.upper_bound() * 4)?;
    let kernel = images.kernel("fill", "iota_4")?;
    let launch = Launch::new(&kernel, striding(images.device(), rows.upper_bound(), tune::MOVE_THREADS));
    rows.put(launch.write(out).value(first)).submit(on)?;
    Ok(())
}
