//! Running sums of counts, for operators that turn one row into several. Device side: `cuda/scan.cu`.
//!
//! ```text
//!   counts [2, 0, 3]  ──►  control block: 5 rows │ ends [2, 2, 5]        what an expanded pipeline reads
//! ```

use millpond_memory::{DeviceView, Stream};

use crate::error::KernelError;
use crate::image::Images;
use crate::pipeline::ExtentRows;
use crate::rows::{Rows, expect_bytes};
use crate::{Launch, LaunchConfig, abi, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Rows that a thread block scans per step.
const TILE_ROWS: u64 = tune::SCAN_THREADS as u64 * 4;

/// Bytes of an expansion of `rows` rows: a control block, then a running sum (u64) per row.
pub fn expansion_bytes(rows: u64) -> u64 {
    abi::CONTROL_BYTES + 8 * rows
}

/// Bytes of scratch for `rows` rows: the ticket and one status word per tile.
pub fn scratch_bytes(rows: u64) -> u64 {
    8 + 8 * rows.div_ceil(TILE_ROWS).max(1)
}

/// Writes the running sums of `counts`, the number of source rows, and the last sum as the row count after the
/// expansion. Takes over an error of the kernel that wrote the rows.
///
/// | name        | length                       | unit                                                       |
/// |-------------|------------------------------|------------------------------------------------------------|
/// | `counts`    | at least `rows`              | u32                                                        |
/// | `expansion` | [`expansion_bytes`]`(rows)`  | bytes; for [`Expansion`](crate::join::Expansion)           |
/// | `scratch`   | [`scratch_bytes`]`(rows)`    | bytes; zeroed here                                         |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn running_sums(
    images: &Images,
    counts: &DeviceView,
    rows: &ExtentRows,
    expansion: &DeviceView,
    scratch: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let bound = rows.upper_bound();
    expect_bytes("running_sums", "counts", counts, bound * 4)?;
    expect_bytes("running_sums", "expansion", expansion, expansion_bytes(bound))?;
    expect_bytes("running_sums", "scratch", scratch, scratch_bytes(bound))?;
    let scratch = scratch.view(0..scratch_bytes(bound) as usize)?;
    scratch.fill(0, on)?;
    let control = expansion.view(0..abi::CONTROL_BYTES as usize)?;
    control.fill(0, on)?;
    let ends = expansion.view(abi::CONTROL_BYTES as usize..expansion_bytes(bound) as usize)?;
    let kernel = images.kernel("scan", "scan_counts")?;
    let limits = images.device().limits();
    // Blocks take tiles by ticket, so more blocks than can be resident are useless.
    let resident = limits.multiprocessors * (limits.max_threads_per_multiprocessor / tune::SCAN_THREADS).max(1);
    let blocks = bound.div_ceil(TILE_ROWS).max(1).min(u64::from(resident)) as u32;
    let launch = Launch::new(&kernel, LaunchConfig::linear(blocks, tune::SCAN_THREADS));
    let launch = launch.read(counts).write(&control).write(&ends).write(&scratch);
    let launch = match rows {
        ExtentRows::OnDevice { control, .. } => launch.read(control),
        ExtentRows::Known(_) => launch.value(0u64),
    };
    Rows::try_from(rows)?.put(launch).submit(on)?;
    Ok(())
}
