//! Fetches values by row number. Device side: `cuda/gather.cu`.

use millpond_memory::{DeviceView, Stream};

use crate::error::KernelError;
use crate::image::Images;
use crate::rows::{Rows, expect_bytes, striding};
use crate::{Launch, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Writes `out[i] = input[map[i]]` for `rows` values of `width` bytes: 1, 2, 4, 8 or 16.
///
/// | name    | length          | unit                                     |
/// |---------|-----------------|------------------------------------------|
/// | `input` | any             | values                                   |
/// | `map`   | at least `rows` | u32 row numbers below the input's length |
/// | `out`   | at least `rows` | values; apart from `input`               |
///
/// Sixteen-byte string views keep pointing at the same bytes.
///
/// # Errors
/// [`KernelError::Shape`] if `map` or `out` is too short, or for another width.
pub fn gather(
    images: &Images,
    input: &DeviceView,
    width: u32,
    map: &DeviceView,
    rows: &Rows,
    out: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let name = match width {
        1 => "gather_1",
        2 => "gather_2",
        4 => "gather_4",
        8 => "gather_8",
        16 => "gather_16",
        other => {
            return Err(KernelError::Shape { what: "gather", why: format!("no kernel for values of {other} bytes") });
        }
    };
    expect_bytes("gather", "map", map, rows.upper_bound() * 4)?;
    expect_bytes("gather", "out", out, rows.upper_bound() * u64::from(width))?;
    let kernel = images.kernel("gather", name)?;
    let launch = Launch::new(&kernel, striding(images.device(), rows.upper_bound(), tune::MOVE_THREADS));
    rows.put(launch.read(input).read(map).write(out)).submit(on)?;
    Ok(())
}

/// The same for bitmaps: bit `i` of `out` is bit `map[i]` of `input`. Bits behind the last row become 0.
///
/// # Errors
/// [`KernelError::Shape`] if `map` is too short, or `out` has fewer than `rows` bits rounded up to whole 32-bit words.
pub fn gather_bits(
    images: &Images,
    input: &DeviceView,
    map: &DeviceView,
    rows: &Rows,
    out: &DeviceView,
    on: &Stream,
) -> Result<()> {
    expect_bytes("gather_bits", "map", map, rows.upper_bound() * 4)?;
    expect_bytes("gather_bits", "out", out, rows.upper_bound().div_ceil(32) * 4)?;
    let kernel = images.kernel("gather", "gather_bits")?;
    let launch = Launch::new(&kernel, striding(images.device(), rows.upper_bound(), tune::MOVE_THREADS));
    rows.put(launch.read(input.padded()).read(map).write(out)).submit(on)?;
    Ok(())
}
