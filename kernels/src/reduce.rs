//! Count, sum, min and max of a column in one pass. Device side: `cuda/reduce.cu`.

use millpond_memory::{DeviceView, Stream};

use crate::codegen::ir::Physical;
use crate::error::KernelError;
use crate::image::Images;
use crate::rows::{Rows, bitmap_words, expect_bytes, striding};
use crate::{Launch, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Bytes of a [`Reduction`] on the device.
pub const RESULT_BYTES: u64 = 64;
/// Bytes of scratch: a ticket, then one partial result per thread block.
pub const SCRATCH_BYTES: u64 = 64 + tune::REDUCE_MAX_BLOCKS as u64 * RESULT_BYTES;

/// What [`reduce`] writes, read back from its bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reduction {
    /// `sum` is modulo 2¹²⁸. With no valid value all are 0.
    Integers { count: u64, min: i128, max: i128, sum: i128 },
    /// f32 values come as f64. The order is IEEE 754's total order, from -NaN to NaN.
    Floats { count: u64, min: f64, max: f64, sum: f64 },
}

impl Reduction {
    /// Reads the [`RESULT_BYTES`] bytes that [`reduce`] wrote for a column of this kind; `None` if there are fewer.
    pub fn from_bytes(bytes: &[u8], physical: Physical) -> Option<Reduction> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let wide = |at: usize| Some(i128::from_le_bytes(bytes.get(at..at + 16)?.try_into().ok()?));
        let count = word(0)?;
        Some(match physical {
            Physical::F32 | Physical::F64 => {
                let float = |at| word(at).map(f64::from_bits);
                Reduction::Floats { count, min: float(16)?, max: float(32)?, sum: float(48)? }
            }
            _ => Reduction::Integers { count, min: wide(16)?, max: wide(32)?, sum: wide(48)? },
        })
    }
}

/// Reduces the valid values of a column; `validity` `None` means that all are.
///
/// | name       | length            | unit                                                     |
/// |------------|-------------------|----------------------------------------------------------|
/// | `input`    | at least `rows`   | values of `physical`; bitmaps are counted by `bitmap`    |
/// | `validity` | at least `rows`   | bits, in whole 32-bit words                              |
/// | `out`      | [`RESULT_BYTES`]  | bytes, read by [`Reduction::from_bytes`]; 16-byte aligned |
/// | `scratch`  | [`SCRATCH_BYTES`] | bytes; prepared here; 16-byte aligned                    |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit, or for bitmaps.
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
    // The numbers of `enum Kind` in reduce.cu.
    let (name, kind) = match physical {
        Physical::I8 => ("reduce_integers", 0u32),
        Physical::I16 => ("reduce_integers", 1),
        Physical::I32 => ("reduce_integers", 2),
        Physical::I64 => ("reduce_integers", 3),
        Physical::U8 => ("reduce_integers", 4),
        Physical::U16 => ("reduce_integers", 5),
        Physical::U32 => ("reduce_integers", 6),
        Physical::U64 => ("reduce_integers", 7),
        Physical::I128 => ("reduce_integers", 8),
        Physical::F32 => ("reduce_floats", 9),
        Physical::F64 => ("reduce_floats", 10),
        Physical::Bit => return Err(KernelError::Shape { what: "reduce", why: "no kernel for bitmaps".into() }),
        Physical::Text | Physical::View => {
            return Err(KernelError::Shape { what: "reduce", why: "no kernel for texts".into() });
        }
    };
    expect_bytes(name, "input", input, physical.value_bytes(rows.upper_bound()))?;
    let validity = validity.map(|validity| bitmap_words(name, "validity", validity, rows)).transpose()?;
    expect_bytes(name, "out", out, RESULT_BYTES)?;
    expect_bytes(name, "scratch", scratch, SCRATCH_BYTES)?;
    scratch.view(0..8)?.fill(0, on)?;
    let kernel = images.kernel("reduce", name)?;
    let mut config = striding(images.device(), rows.upper_bound(), tune::REDUCE_THREADS);
    // No rows still give a result.
    config.grid[0] = config.grid[0].clamp(1, tune::REDUCE_MAX_BLOCKS);
    let launch = Launch::new(&kernel, config).read(input).value(kind);
    let launch = match &validity {
        Some(validity) => launch.read(validity),
        None => launch.value(0u64),
    };
    rows.put(launch.write(out).write(scratch)).submit(on)?;
    Ok(())
}
