//! Count, sum, min and max of a column of integers in one pass. Device side: `cuda/reduce.cu`.

use millpond_memory::{DeviceView, Stream};

use crate::codegen::ir::Physical;
use crate::error::KernelError;
use crate::image::Images;
use crate::rows::{Rows, bitmap_words, expect_bytes, striding};
use crate::{Launch, abi, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Bytes of a [`Reduction`] on the device.
pub const RESULT_BYTES: u64 = 64;
/// Bytes of scratch: a ticket, then one partial result per thread block.
pub const SCRATCH_BYTES: u64 = 64 + tune::REDUCE_MAX_BLOCKS as u64 * RESULT_BYTES;

/// Result of [`reduce`], read from its bytes. Without a valid value all fields are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduction {
    pub count: u64,
    pub min: i128,
    pub max: i128,
    /// Sum modulo 2¹²⁸.
    pub sum: i128,
}

impl Reduction {
    /// Reads the [`RESULT_BYTES`] bytes that [`reduce`] wrote; `None` if there are fewer.
    pub fn from_bytes(bytes: &[u8]) -> Option<Reduction> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let wide = |at: usize| Some(i128::from_le_bytes(bytes.get(at..at + 16)?.try_into().ok()?));
        Some(Reduction { count: word(0)?, min: wide(16)?, max: wide(32)?, sum: wide(48)? })
    }
}

/// Reduces the valid values of a column; without `validity` all values are valid.
///
/// | name       | length            | unit                                                     |
/// |------------|-------------------|----------------------------------------------------------|
/// | `input`    | at least `rows`   | integers of `physical`                                   |
/// | `validity` | at least `rows`   | bits, in whole 32-bit words                              |
/// | `out`      | [`RESULT_BYTES`]  | bytes, read by [`Reduction::from_bytes`]; 16-byte aligned |
/// | `scratch`  | [`SCRATCH_BYTES`] | bytes; prepared here; 16-byte aligned                    |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit, or if the values are not integers.
#[expect(clippy::too_many_arguments, reason = "inputs, outputs, scratch, stream, as in every launcher")]
pub fn reduce(
    images: &Images,
    input: &DeviceView,
    physical: Physical,
    validity: Option<&DeviceView>,
    rows: &Rows,
    out: &DeviceView,
    scratch: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let no_kernel = || KernelError::Shape { what: "reduce", why: format!("no kernel for values of {physical:?}") };
    let kind = abi::integer_kind(physical).ok_or_else(no_kernel)?;
    expect_bytes("reduce", "input", input, physical.value_bytes(rows.upper_bound()))?;
    let validity = validity.map(|validity| bitmap_words("reduce", "validity", validity, rows)).transpose()?;
    expect_bytes("reduce", "out", out, RESULT_BYTES)?;
    expect_bytes("reduce", "scratch", scratch, SCRATCH_BYTES)?;
    scratch.view(0..8)?.fill(0, on)?;
    let kernel = images.kernel("reduce", "reduce_integers")?;
    let mut config = striding(images.device(), rows.upper_bound(), tune::REDUCE_THREADS);
    // A launch over no rows still writes a result.
    config.grid[0] = config.grid[0].clamp(1, tune::REDUCE_MAX_BLOCKS);
    let launch = Launch::new(&kernel, config).read(input).value(kind);
    let launch = match &validity {
        Some(validity) => launch.read(validity),
        None => launch.value(0u64),
    };
    rows.put(launch.write(out).write(scratch)).submit(on)?;
    Ok(())
}
