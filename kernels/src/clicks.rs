//! Sessions, earlier rows and row pairs over rows sorted by their keys. Device side: `cuda/clicks.cu`.
//!
//! ```text
//!   sort ─ order ─┬─ sessions   row number, session                               of each row
//!                 ├─ before     position in the order, number of earlier rows     of each anchor with earlier rows
//!                 └─ distinct   row number ─ after   position, number of later rows      of each row with later rows
//! ```
//!
//! NULL     equals NULL: callers remove rows without a key before the sort.
//! Keys     at most [`tune::SORT_FEW_KEYS`], including the time and the anchor. Dictionary codes need no ranks: only
//!          equality counts.
//! Times    integers of up to 64 bits. Distances are unsigned 64-bit numbers, so that no difference overflows.
//! Order    results are in row order.
//! Waits    never: the number of results stays on the device.

use millpond_memory::{DeviceView, Stream};

use crate::codegen::ir::{Repr, Ty};
use crate::error::KernelError;
use crate::image::Images;
use crate::layout::OutputLayout;
use crate::pipeline::{ExtentInput, ExtentRows};
use crate::rows::{Rows, expect_bytes};
use crate::sort::{SortKey, check_keys, with_few_keys};
use crate::{Launch, LaunchConfig, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Rows that a thread block processes per step.
const TILE_ROWS: u64 = tune::SCAN_THREADS as u64 * 4;

/// Rows in key order.
#[derive(Clone, Copy)]
pub struct Sorted<'a> {
    /// Row numbers (u32) in its only column: the order of a [`Sort`](crate::sort::Sort), or the result of [`distinct`].
    pub order: &'a ExtentInput,
    /// Key columns, indexed by row number.
    pub keys: &'a [SortKey],
    /// Byte buffers of string views among the keys.
    pub reached: &'a [DeviceView],
}

/// Condition for rows before an anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Near {
    /// Maximum number of earlier rows.
    pub most: u32,
    /// Maximum distance in time from the anchor.
    pub within: Option<u64>,
}

/// Layout of the results of up to `rows` rows: a control block with their number, then `columns` columns of u32.
pub fn layout(columns: usize, rows: u64) -> OutputLayout {
    OutputLayout::new(&vec![Ty::new(Repr::U32); columns], rows, rows.div_ceil(TILE_ROWS))
}

/// Writes the number of each row and its session, counted from 0 within its key. The last key is the time; a row more
/// than `gap` after the previous row begins a session.
///
/// | name     | length                     | unit  |
/// |----------|----------------------------|-------|
/// | `output` | of [`layout`]`(2, rows)`   | bytes |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit, if there are too many keys, or no key besides the time.
pub fn sessions(images: &Images, rows: Sorted<'_>, gap: u64, output: &DeviceView, on: &Stream) -> Result<()> {
    let out = Output::new("sessions", 2, rows, 2, output)?;
    launch(images, "clicks_sessions", rows, |launch| launch.value(gap), out, on)
}

/// Writes the number of each row whose keys differ from those of the previous row.
///
/// | name     | length                     | unit  |
/// |----------|----------------------------|-------|
/// | `output` | of [`layout`]`(1, rows)`   | bytes |
///
/// # Errors
/// As [`sessions`].
pub fn distinct(images: &Images, rows: Sorted<'_>, output: &DeviceView, on: &Stream) -> Result<()> {
    let out = Output::new("distinct rows", 1, rows, 1, output)?;
    launch(images, "clicks_distinct", rows, |launch| launch, out, on)
}

/// Writes the position of each anchor in the order and the number of rows directly before it that have its key and
/// satisfy `near`, if that number is not 0. After the keys, `rows.keys` holds the time (if `near.within` is set) and
/// the anchor flag (a bit).
///
/// | name     | length                     | unit  |
/// |----------|----------------------------|-------|
/// | `output` | of [`layout`]`(2, rows)`   | bytes |
///
/// # Errors
/// As [`sessions`].
pub fn before(images: &Images, rows: Sorted<'_>, near: Near, output: &DeviceView, on: &Stream) -> Result<()> {
    let others = 1 + usize::from(near.within.is_some());
    let out = Output::new("earlier rows", others + 1, rows, 2, output)?;
    let keys = (rows.keys.len() - others) as u32;
    let within = near.within.unwrap_or(0);
    launch(images, "clicks_before", rows, |launch| launch.value(keys).value(near.most).value(within), out, on)
}

/// Writes the position of each row in the order and the number of later rows with its key, if that number is not 0.
///
/// | name     | length                     | unit  |
/// |----------|----------------------------|-------|
/// | `output` | of [`layout`]`(2, rows)`   | bytes |
///
/// # Errors
/// As [`sessions`].
pub fn after(images: &Images, rows: Sorted<'_>, output: &DeviceView, on: &Stream) -> Result<()> {
    let out = Output::new("later rows", 1, rows, 2, output)?;
    launch(images, "clicks_after", rows, |launch| launch, out, on)
}

/// Destination of results.
struct Output {
    /// Part of the buffer that is zeroed first.
    cleared: DeviceView,
    /// The control block, and one status word per tile.
    control: DeviceView,
    columns: Vec<DeviceView>,
}

impl Output {
    /// Output with `columns` columns; checks that there are at least `least` keys.
    fn new(what: &'static str, least: usize, rows: Sorted<'_>, columns: usize, output: &DeviceView) -> Result<Self> {
        let most = tune::SORT_FEW_KEYS as usize;
        if !(least..=most).contains(&rows.keys.len()) {
            let why = format!("{} keys, where there may be {least} to {most}", rows.keys.len());
            return Err(KernelError::Shape { what, why });
        }
        let bound = rows.order.rows.upper_bound();
        check_keys(what, rows.keys, bound)?;
        let layout = layout(columns, bound);
        expect_bytes(what, "the output", output, layout.bytes as u64)?;
        let end = OutputLayout::CONTROL.end + 8 * layout.num_tiles as usize;
        let column = |column: &crate::layout::OutputColumn| output.view(column.values.clone());
        Ok(Self {
            cleared: output.view(0..layout.zeroed_bytes)?,
            control: output.view(0..end)?,
            columns: layout.columns.iter().map(column).collect::<millpond_memory::Result<_>>()?,
        })
    }
}

fn launch(
    images: &Images,
    kernel: &'static str,
    rows: Sorted<'_>,
    numbers: impl FnOnce(Launch<'_>) -> Launch<'_>,
    out: Output,
    on: &Stream,
) -> Result<()> {
    let bound = rows.order.rows.upper_bound();
    let shape = |why: &str| KernelError::Shape { what: kernel, why: why.into() };
    let [Some(order)] = rows.order.columns.as_slice() else { return Err(shape("an order is one column")) };
    expect_bytes(kernel, "the order", &order.values, bound * 4)?;
    out.cleared.fill(0, on)?;
    let limits = images.device().limits();
    // Blocks take tiles by ticket, so more blocks than can be resident are useless.
    let resident = limits.multiprocessors * (limits.max_threads_per_multiprocessor / tune::SCAN_THREADS).max(1);
    let blocks = bound.div_ceil(TILE_ROWS).clamp(1, u64::from(resident)) as u32;
    let kernel = images.kernel("clicks", kernel)?;
    let launch = Launch::new(&kernel, LaunchConfig::linear(blocks, tune::SCAN_THREADS));
    let launch = numbers(with_few_keys(launch, rows.keys, rows.reached)).read(&order.values);
    let launch = match &rows.order.rows {
        ExtentRows::OnDevice { control, .. } => launch.read(control),
        ExtentRows::Known(_) => launch.value(0u64),
    };
    let launch = out.columns.iter().fold(launch.write(&out.control), |launch, column| launch.write(column));
    Rows::try_from(&rows.order.rows)?.put(launch).submit(on)?;
    Ok(())
}
