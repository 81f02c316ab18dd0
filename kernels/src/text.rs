//! Texts that lie anywhere, copied into one dense run of bytes. Device side: `cuda/text.cu`.
//!
//! ```text
//!   views   [3: "abc"] [0:] [14: → 0x7f…]        what a pipeline writes for a column of texts
//!   sizes   [3, 0, 14]  ──►  control block: 17 bytes │ ends [3, 3, 17]      dense_ends: two launches
//!   pack    "abc" + 14 bytes from 0x7f…                                     once the host knows how many bytes to allocate
//! ```
//!
//! Memory   callers allocate: [`working_bytes`], then as many bytes as the control block says.
//! Waits    never, here.

use std::ops::Range;

use millpond_memory::{DeviceView, Stream};

use crate::error::KernelError;
use crate::image::Images;
use crate::pipeline::ExtentRows;
use crate::rows::{Rows, expect_bytes, striding};
use crate::{Launch, abi, scan, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Bytes of a view.
const VIEW_BYTES: u64 = 16;

/// Where things lie in the working memory for up to so many texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Working {
    rows: u64,
}

impl Working {
    pub fn new(rows: u64) -> Working {
        Working { rows }
    }

    /// Error word and number of bytes: [`abi::CONTROL_RESULT_BYTES`] are what the host wants.
    pub const CONTROL: Range<usize> = 0..abi::CONTROL_BYTES as usize;

    /// Where each text ends in the dense bytes (u64 per row).
    pub fn ends(&self) -> Range<usize> {
        abi::CONTROL_BYTES as usize..scan::expansion_bytes(self.rows) as usize
    }

    fn sizes(&self) -> Range<usize> {
        let start = (scan::expansion_bytes(self.rows) as usize).next_multiple_of(256);
        start..start + self.rows as usize * 4
    }

    fn scratch(&self) -> Range<usize> {
        let start = self.sizes().end.next_multiple_of(256);
        start..start + scan::scratch_bytes(self.rows) as usize
    }

    /// Length of the allocation.
    pub fn bytes(&self) -> usize {
        self.scratch().end.next_multiple_of(256)
    }
}

/// Writes where each text ends once all lie one behind the other, and how many bytes they take, to `working`. An error of the
/// kernel that made the views is taken over.
///
/// | name      | length            | unit                                  |
/// |-----------|-------------------|---------------------------------------|
/// | `views`   | at least `rows`   | 16-byte views; of no bytes where NULL |
/// | `working` | [`Working::bytes`] | bytes                                |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn dense_ends(
    images: &Images,
    views: &DeviceView,
    rows: &ExtentRows,
    working: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let place = Working::new(rows.upper_bound());
    expect_bytes("text_sizes", "views", views, rows.upper_bound() * VIEW_BYTES)?;
    expect_bytes("text_sizes", "working", working, place.bytes() as u64)?;
    let sizes = working.view(place.sizes())?;
    let kernel = images.kernel("text", "text_sizes")?;
    let launch = Launch::new(&kernel, striding(images.device(), rows.upper_bound(), tune::MOVE_THREADS));
    Rows::try_from(rows)?.put(launch.read(views).write(&sizes)).submit(on)?;
    let expansion = working.view(0..place.ends().end)?;
    scan::running_sums(images, &sizes, rows, &expansion, &working.view(place.scratch())?, on)
}

/// Copies the texts to `out`, one behind the other, as [`dense_ends`] placed them.
///
/// | name      | length             | unit                                                        |
/// |-----------|--------------------|-------------------------------------------------------------|
/// | `views`   | at least `rows`    | 16-byte views                                               |
/// | `reached` | any                | the buffers that the views lead to                          |
/// | `working` | [`Working::bytes`] | what [`dense_ends`] wrote                                   |
/// | `out`     | the control block's number of bytes | bytes                                      |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn pack(
    images: &Images,
    views: &DeviceView,
    reached: &[DeviceView],
    rows: &ExtentRows,
    working: &DeviceView,
    out: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let place = Working::new(rows.upper_bound());
    expect_bytes("text_pack", "views", views, rows.upper_bound() * VIEW_BYTES)?;
    expect_bytes("text_pack", "working", working, place.bytes() as u64)?;
    let kernel = images.kernel("text", "text_pack")?;
    let launch = Launch::new(&kernel, striding(images.device(), rows.upper_bound(), tune::MOVE_THREADS));
    let launch = launch.read(views).read(working.view(place.ends())?).write(out);
    let launch = reached.iter().fold(Rows::try_from(rows)?.put(launch), |launch, view| launch.reads(view.padded()));
    launch.submit(on)?;
    Ok(())
}
