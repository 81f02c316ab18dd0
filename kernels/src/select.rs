//! Stable compaction: the selected values, or their row numbers, to the front. Device side: `cuda/select.cu`.

use millpond_memory::{DeviceView, Stream};

use crate::error::KernelError;
use crate::image::Images;
use crate::rows::{Rows, bitmap_words, expect_bytes};
use crate::{Launch, LaunchConfig, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Bytes of scratch that `rows` rows need: the ticket and one status word per tile.
pub fn scratch_bytes(rows: u64) -> u64 {
    8 + 8 * rows.div_ceil(u64::from(tune::SELECT_TILE_ROWS)).max(1)
}

/// Moves the values whose mask bit is set to the front of `out`, keeping their order, and writes their number.
///
/// | name       | length                  | unit                                                    |
/// |------------|-------------------------|---------------------------------------------------------|
/// | `input`    | at least `rows`         | values of `width` bytes: 1, 2, 4, 8 or 16               |
/// | `mask`     | at least `rows`         | bits, in whole 32-bit words                             |
/// | `out`      | at least the selected   | values; those past them are left untouched              |
/// | `selected` | 8                       | bytes: the number, a u64                                |
/// | `scratch`  | [`scratch_bytes`]`(rows)` | bytes; zeroed here                                    |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit, or for another width.
#[expect(clippy::too_many_arguments, reason = "inputs, outputs, scratch, stream, as in every launcher")]
pub fn select(
    images: &Images,
    input: &DeviceView,
    width: u32,
    mask: &DeviceView,
    rows: &Rows,
    out: &DeviceView,
    selected: &DeviceView,
    scratch: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let name = match width {
        1 => "select_1",
        2 => "select_2",
        4 => "select_4",
        8 => "select_8",
        16 => "select_16",
        other => {
            return Err(KernelError::Shape { what: "select", why: format!("no kernel for values of {other} bytes") });
        }
    };
    expect_bytes("select", "input", input, rows.upper_bound() * u64::from(width))?;
    run(images, name, Some(input), mask, rows, out, selected, scratch, on)
}

/// Writes the row numbers (u32) whose mask bit is set, in order, and their number; lengths as for [`select`].
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit, or beyond 2³² rows.
pub fn select_rows(
    images: &Images,
    mask: &DeviceView,
    rows: &Rows,
    out: &DeviceView,
    selected: &DeviceView,
    scratch: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let limit = 1 << 32;
    if rows.upper_bound() > limit {
        let why = format!("{} rows are more than the {limit} that it can number", rows.upper_bound());
        return Err(KernelError::Shape { what: "select_rows", why });
    }
    run(images, "select_rows", None, mask, rows, out, selected, scratch, on)
}

#[expect(clippy::too_many_arguments, reason = "inputs, outputs, scratch, stream, as in every launcher")]
fn run(
    images: &Images,
    name: &'static str,
    input: Option<&DeviceView>,
    mask: &DeviceView,
    rows: &Rows,
    out: &DeviceView,
    selected: &DeviceView,
    scratch: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let scratch_wanted = scratch_bytes(rows.upper_bound());
    let mask = bitmap_words(name, "mask", mask, rows)?;
    expect_bytes(name, "selected", selected, 8)?;
    expect_bytes(name, "scratch", scratch, scratch_wanted)?;
    let scratch = scratch.view(0..scratch_wanted as usize)?;
    scratch.fill(0, on)?;
    let kernel = images.kernel("select", name)?;
    let limits = images.device().limits();
    // Tiles are taken by ticket, so no more thread blocks than can be resident are of use.
    let resident = limits.multiprocessors * (limits.max_threads_per_multiprocessor / tune::SELECT_THREADS).max(1);
    let tiles = rows.upper_bound().div_ceil(u64::from(tune::SELECT_TILE_ROWS)).max(1);
    let blocks = tiles.min(u64::from(resident)) as u32;
    let mut launch = Launch::new(&kernel, LaunchConfig::linear(blocks, tune::SELECT_THREADS));
    if let Some(input) = input {
        launch = launch.read(input);
    }
    rows.put(launch.read(&mask).write(out).write(selected).write(&scratch)).submit(on)?;
    Ok(())
}

/// Writes to `out` (a u64) how many of `rows` are left after skipping `skip` and taking at most `fetch`.
///
/// # Errors
/// [`KernelError::Shape`] if `out` has fewer than 8 bytes.
pub fn limit_count(images: &Images, rows: &Rows, skip: u64, fetch: u64, out: &DeviceView, on: &Stream) -> Result<()> {
    expect_bytes("limit_count", "out", out, 8)?;
    let kernel = images.kernel("select", "limit_count")?;
    let launch = Launch::new(&kernel, LaunchConfig::linear(1, 32));
    rows.put(launch.value(skip).value(fetch).write(out)).submit(on)?;
    Ok(())
}
