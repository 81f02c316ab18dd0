//! Combines and counts bitmaps. Device side: `cuda/bitmap.cu`.

use millpond_memory::{DeviceView, Stream};

use crate::error::KernelError;
use crate::image::Images;
use crate::rows::{Rows, bitmap_words, expect_bytes, striding};
use crate::{Launch, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// How two bitmaps are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    And,
    Or,
    /// The bits of the first that are not in the second.
    AndNot,
}

/// Combines `rows` bits of `a` and `b` into `out`, which may be one of them. Bits behind the last row become 0.
///
/// All three are whole 32-bit words, at least `rows` bits.
///
/// # Errors
/// [`KernelError::Shape`] if one is too short.
pub fn combine(
    images: &Images,
    how: Combine,
    a: &DeviceView,
    b: &DeviceView,
    rows: &Rows,
    out: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let name = match how {
        Combine::And => "bitmap_and",
        Combine::Or => "bitmap_or",
        Combine::AndNot => "bitmap_and_not",
    };
    let (a, b) = (bitmap_words(name, "a", a, rows)?, bitmap_words(name, "b", b, rows)?);
    expect_bytes(name, "out", out, rows.upper_bound().div_ceil(32) * 4)?;
    let kernel = images.kernel("bitmap", name)?;
    let launch = Launch::new(&kernel, striding(images.device(), rows.upper_bound().div_ceil(32), tune::MOVE_THREADS));
    rows.put(launch.read(&a).read(&b).write(out)).submit(on)?;
    Ok(())
}

/// Inverts `rows` bits of `a` into `out`, which may be `a`. Bits behind the last row become 0.
///
/// # Errors
/// [`KernelError::Shape`] if one is too short.
pub fn not(images: &Images, a: &DeviceView, rows: &Rows, out: &DeviceView, on: &Stream) -> Result<()> {
    let a = bitmap_words("bitmap_not", "a", a, rows)?;
    expect_bytes("bitmap_not", "out", out, rows.upper_bound().div_ceil(32) * 4)?;
    let kernel = images.kernel("bitmap", "bitmap_not")?;
    let launch = Launch::new(&kernel, striding(images.device(), rows.upper_bound().div_ceil(32), tune::MOVE_THREADS));
    rows.put(launch.read(&a).write(out)).submit(on)?;
    Ok(())
}

/// Writes the number of set bits among the first `rows` to `out`, a u64.
///
/// # Errors
/// [`KernelError::Shape`] if one is too short.
pub fn count(images: &Images, a: &DeviceView, rows: &Rows, out: &DeviceView, on: &Stream) -> Result<()> {
    let a = bitmap_words("bitmap_count", "a", a, rows)?;
    expect_bytes("bitmap_count", "out", out, 8)?;
    out.view(0..8)?.fill(0, on)?;
    let kernel = images.kernel("bitmap", "bitmap_count")?;
    let launch = Launch::new(&kernel, striding(images.device(), rows.upper_bound().div_ceil(32), tune::MOVE_THREADS));
    rows.put(launch.read(&a).write(out)).submit(on)?;
    Ok(())
}
