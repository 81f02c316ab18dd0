//! Writes chunks of a column at their offset in the whole column. Device side: `cuda/store.cu`.
//!
//!   chunk (u8 from 100) ─┐
//!   chunk (u16 from -5) ─┴─► column (u16 from -5)        values, codes through a table, bits, offsets of texts
//!
//! Waits  never.

use millpond_memory::{DeviceView, Stream};

use crate::codegen::ir::Physical;
use crate::error::KernelError;
use crate::image::Images;
use crate::rows::{Rows, bitmap_words, expect_bytes, striding};
use crate::{Launch, abi, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Physical type of a chunk's or a column's values, and the base that was subtracted from each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    pub physical: Physical,
    pub base: i64,
}

/// Number of a width for the kernel; floats are moved as bits.
fn kind(physical: Physical) -> Result<u32> {
    let integers = match physical {
        Physical::F32 => Physical::U32,
        Physical::F64 => Physical::U64,
        other => other,
    };
    let no_kernel = || KernelError::Shape { what: "store_values", why: format!("no kernel for {physical:?}") };
    abi::integer_kind(integers).ok_or_else(no_kernel)
}

/// Writes `rows` values of a chunk to `out`, in the column's width and with its base subtracted. With `remap` the
/// values are codes, and the code's entry in `remap` is written; a code without an entry belongs to a NULL row and
/// becomes 0.
///
/// | name    | length                      | unit                                      |
/// |---------|-----------------------------|-------------------------------------------|
/// | `input` | at least `rows`             | values of `from.physical`                 |
/// | `remap` | more than the largest code  | u32                                       |
/// | `out`   | at least `rows`             | values of `to.physical`: view of the chunk |
///
/// Every value minus the column's base must fit the column's width; other values are truncated.
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit, or if the values have no fixed width.
#[expect(clippy::too_many_arguments, reason = "inputs, outputs, stream, as in every launcher")]
pub fn values(
    images: &Images,
    input: &DeviceView,
    from: Stored,
    remap: Option<&DeviceView>,
    out: &DeviceView,
    to: Stored,
    rows: u64,
    on: &Stream,
) -> Result<()> {
    let kind = kind(from.physical)?;
    self::kind(to.physical)?;
    expect_bytes("store_values", "input", input, from.physical.value_bytes(rows))?;
    expect_bytes("store_values", "out", out, to.physical.value_bytes(rows))?;
    let kernel = images.kernel("store", "store_values")?;
    let launch = Launch::new(&kernel, striding(images.device(), rows, tune::STORE_THREADS));
    let launch = launch.read(input).value(kind).value(from.base);
    let launch = match remap {
        Some(remap) => launch.read(remap).value(remap.len() as u64 / 4),
        None => launch.value(0u64).value(0u64),
    };
    let launch = launch.write(out).value(to.physical.width()).value(to.base);
    Rows::known(rows).put(launch).submit(on)?;
    Ok(())
}

/// Sets the bits of a chunk in a column's bitmap, whose bits of the chunk are zero before; sets all of them if `input`
/// is `None`. The first `before` bits of the input (fewer than 32) belong to rows before the chunk.
///
/// | name    | length                   | unit                             |
/// |---------|--------------------------|----------------------------------|
/// | `input` | at least `before + rows` | bits, in whole 32-bit words      |
/// | `out`   | at least `first + rows`  | bits, in whole 32-bit words      |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit, or if `before` is 32 or more.
pub fn bits(
    images: &Images,
    input: Option<&DeviceView>,
    before: u32,
    out: &DeviceView,
    first: u64,
    rows: u64,
    on: &Stream,
) -> Result<()> {
    if before >= 32 {
        let why = format!("{before} bits before a chunk are more than a word's");
        return Err(KernelError::Shape { what: "store_bits", why });
    }
    let all = Rows::known(rows);
    let read = Rows::known(u64::from(before) + rows);
    let input = input.map(|input| bitmap_words("store_bits", "input", input, &read)).transpose()?;
    let out = bitmap_words("store_bits", "out", out, &Rows::known(first + rows))?;
    let kernel = images.kernel("store", "store_bits")?;
    let launch = Launch::new(&kernel, striding(images.device(), rows.div_ceil(32), tune::STORE_THREADS));
    let launch = match &input {
        Some(input) => launch.read(input),
        None => launch.value(0u64),
    };
    all.put(launch.value(before).write(&out).value(first)).submit(on)?;
    Ok(())
}

/// Writes the offsets of a chunk's texts, the first of which begins at byte `start` of the column, and then the end of
/// the last text. Offsets have the width of [`Physical::Text`] or of [`Physical::LongText`].
///
/// | name    | length                | unit                                     |
/// |---------|-----------------------|------------------------------------------|
/// | `input` | at least `rows` and 1 | of `from`: offsets with any base         |
/// | `out`   | at least `rows` and 1 | of `to`: view of the chunk               |
///
/// Offsets that are too large for the column are truncated.
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit, or for types without offsets.
#[expect(clippy::too_many_arguments, reason = "inputs, outputs, stream, as in every launcher")]
pub fn offsets(
    images: &Images,
    input: &DeviceView,
    from: Physical,
    out: &DeviceView,
    to: Physical,
    start: u64,
    rows: u64,
    on: &Stream,
) -> Result<()> {
    let integers = |texts: Physical| match texts {
        Physical::Text => Ok(Physical::U32),
        Physical::LongText => Ok(Physical::U64),
        other => Err(KernelError::Shape { what: "store_offsets", why: format!("{other:?} has no offsets") }),
    };
    let (from, to) = (integers(from)?, integers(to)?);
    expect_bytes("store_offsets", "input", input, from.value_bytes(rows + 1))?;
    expect_bytes("store_offsets", "out", out, to.value_bytes(rows + 1))?;
    let kernel = images.kernel("store", "store_offsets")?;
    let launch = Launch::new(&kernel, striding(images.device(), rows + 1, tune::STORE_THREADS));
    let launch = launch.read(input).value(kind(from)?).write(out).value(to.width()).value(start);
    Rows::known(rows).put(launch).submit(on)?;
    Ok(())
}

/// Counts the distinct integers among `rows` values, which were stored with `base` subtracted and are at least `low`:
/// each value sets its bit, then the set bits are counted.
///
/// | name       | length                  | unit                                                         |
/// |------------|-------------------------|--------------------------------------------------------------|
/// | `input`    | at least `rows`         | integers of `from.physical`                                  |
/// | `validity` | at least `rows`         | bits, in whole 32-bit words; `None`: no value is NULL        |
/// | `bits`     | a multiple of 8 bytes   | a bit for each integer from `low` on, zeroed by the caller   |
/// | `count`    | 1                       | u64, zeroed by the caller                                    |
///
/// Integers without a bit are not counted.
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit, or if the values are not integers.
#[expect(clippy::too_many_arguments, reason = "inputs, outputs, stream, as in every launcher")]
pub fn count_different(
    images: &Images,
    input: &DeviceView,
    from: Stored,
    validity: Option<&DeviceView>,
    low: i64,
    bits: &DeviceView,
    count: &DeviceView,
    rows: u64,
    on: &Stream,
) -> Result<()> {
    let what = "store_mark";
    let all = Rows::known(rows);
    let kind = abi::integer_kind(from.physical)
        .ok_or_else(|| KernelError::Shape { what, why: format!("{:?} are no integers", from.physical) })?;
    expect_bytes(what, "input", input, from.physical.value_bytes(rows))?;
    expect_bytes(what, "bits", bits, (bits.len() as u64).next_multiple_of(8))?;
    expect_bytes(what, "count", count, 8)?;
    let validity = validity.map(|validity| bitmap_words(what, "validity", validity, &all)).transpose()?;
    let kernel = images.kernel("store", what)?;
    let launch = Launch::new(&kernel, striding(images.device(), rows, tune::STORE_THREADS));
    let launch = launch.read(input).value(kind);
    let launch = match &validity {
        Some(validity) => launch.read(validity),
        None => launch.value(0u64),
    };
    let shift = from.base.wrapping_sub(low);
    all.put(launch.value(shift).write(bits).value(bits.len() as u64 * 8)).submit(on)?;
    let words = Rows::known(bits.len() as u64 / 4);
    let kernel = images.kernel("store", "store_count")?;
    let launch = Launch::new(&kernel, striding(images.device(), bits.len() as u64 / 4, tune::STORE_THREADS));
    words.put(launch.read(bits).write(count)).submit(on)?;
    Ok(())
}
