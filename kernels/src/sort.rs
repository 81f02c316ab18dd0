//! Sorts rows by any number of keys; the result is the row numbers in order. Device side: `cuda/sort.cu`.
//!
//! ```text
//!   keys  [price desc, name]  ──►  rows  [7, 2, 0, …]  ──gather──►  sorted columns
//! ```
//!
//! NULL     first or last, by key.
//! Order    stable. Floats by IEEE 754's total order, which is DataFusion's: -NaN, …, -0, +0, …, NaN. Strings by bytes.
//! Memory   [`scratch_bytes`]; nothing beyond the descriptors for up to [`tune::SORT_TILE_ROWS`] rows.
//! Waits    never.

use millpond_memory::{DeviceView, Stream};

use crate::codegen::ir::Physical;
use crate::error::KernelError;
use crate::image::Images;
use crate::rows::{Rows, bitmap_words, expect_bytes};
use crate::{Launch, LaunchConfig, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Bytes of one key's descriptor on the device.
pub const KEY_BYTES: u64 = 32;

/// How the values of a key lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyValues {
    Plain(Physical),
    /// 16-byte string views; the launch must know the buffers that they point into ([`sort`]'s `reached`).
    Views,
}

/// One sort key.
#[derive(Debug, Clone)]
pub struct SortKey {
    pub values: DeviceView,
    pub kind: KeyValues,
    /// `None`: no row is NULL.
    pub validity: Option<DeviceView>,
    /// For dictionary codes (U8, U16, U32): the rank (u32) of each code, which is what sorts.
    pub ranks: Option<DeviceView>,
    pub descending: bool,
    pub nulls_first: bool,
}

impl SortKey {
    /// Ascending, NULLS LAST, no NULLs.
    pub fn new(values: &DeviceView, kind: KeyValues) -> SortKey {
        let values = values.clone();
        SortKey { values, kind, validity: None, ranks: None, descending: false, nulls_first: false }
    }

    /// The number of `enum Kind` in sort.cu.
    fn code(&self) -> u32 {
        match self.kind {
            KeyValues::Plain(Physical::Bit) => 0,
            KeyValues::Plain(Physical::U8) => 1,
            KeyValues::Plain(Physical::U16) => 2,
            KeyValues::Plain(Physical::U32) => 3,
            KeyValues::Plain(Physical::U64) => 4,
            KeyValues::Plain(Physical::I8) => 5,
            KeyValues::Plain(Physical::I16) => 6,
            KeyValues::Plain(Physical::I32) => 7,
            KeyValues::Plain(Physical::I64) => 8,
            KeyValues::Plain(Physical::I128) => 9,
            KeyValues::Plain(Physical::F32) => 10,
            KeyValues::Plain(Physical::F64) => 11,
            KeyValues::Views | KeyValues::Plain(Physical::View) => 12,
            // Refused before a descriptor is used: offsets have no order of their own.
            KeyValues::Plain(Physical::Text) => u32::MAX,
        }
    }

    /// Bytes of values that `rows` rows have.
    fn value_bytes(&self, rows: u64) -> u64 {
        match self.kind {
            KeyValues::Plain(Physical::Bit) => rows.div_ceil(32) * 4,
            KeyValues::Plain(physical) => physical.value_bytes(rows),
            KeyValues::Views => rows * 16,
        }
    }
}

/// The descriptors of `keys`, to be uploaded: [`KEY_BYTES`] each.
pub fn descriptors(keys: &[SortKey]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(keys.len() * KEY_BYTES as usize);
    for key in keys {
        let address = |view: &Option<DeviceView>| view.as_ref().map_or(0, |view| view.address().0);
        bytes.extend(key.values.address().0.to_le_bytes());
        bytes.extend(address(&key.validity).to_le_bytes());
        bytes.extend(address(&key.ranks).to_le_bytes());
        bytes.extend(key.code().to_le_bytes());
        bytes.extend((u32::from(key.descending) | u32::from(key.nulls_first) << 1).to_le_bytes());
    }
    bytes
}

/// Bytes of scratch that `rows` rows need: none up to a tile, else two lists of words and one of rows.
pub fn scratch_bytes(rows: u64) -> u64 {
    if rows <= u64::from(tune::SORT_TILE_ROWS) { 0 } else { list_bytes(rows, 8) * 2 + list_bytes(rows, 4) }
}

/// Lists in the scratch begin at multiples of 256 bytes.
fn list_bytes(rows: u64, width: u64) -> u64 {
    (rows * width).next_multiple_of(256)
}

/// Writes to `out` the numbers (u32) of `rows` rows in the order of `keys`; equal rows stay in their old order.
///
/// | name          | length                    | unit                                                        |
/// |---------------|---------------------------|-------------------------------------------------------------|
/// | `keys`        | one or more               | each column at least `rows` values                          |
/// | `descriptors` | [`KEY_BYTES`] per key     | bytes on the device: what [`descriptors`] gives, uploaded   |
/// | `reached`     | any                       | the byte buffers of string views                            |
/// | `out`         | at least `rows`           | u32                                                         |
/// | `scratch`     | [`scratch_bytes`]`(rows)` | bytes                                                       |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit, from 2³² - 1 rows on, and for ranks of values that are no
/// codes.
#[expect(clippy::too_many_arguments, reason = "inputs, outputs, scratch, stream, as in every launcher")]
pub fn sort(
    images: &Images,
    keys: &[SortKey],
    descriptors: &DeviceView,
    reached: &[DeviceView],
    rows: &Rows,
    out: &DeviceView,
    scratch: Option<&DeviceView>,
    on: &Stream,
) -> Result<()> {
    let bound = rows.upper_bound();
    let limit = u64::from(u32::MAX) - 1;
    if bound > limit {
        let why = format!("{bound} rows are more than the {limit} that it can number");
        return Err(KernelError::Shape { what: "sort", why });
    }
    for key in keys {
        if key.kind == KeyValues::Plain(Physical::Text) {
            let why = "texts are sorted by their views".to_string();
            return Err(KernelError::Shape { what: "sort", why });
        }
        expect_bytes("sort", "a key", &key.values.padded(), key.value_bytes(bound))?;
        if let Some(validity) = &key.validity {
            bitmap_words("sort", "a key's validity", validity, rows)?;
        }
        let codes = [Physical::U8, Physical::U16, Physical::U32].map(KeyValues::Plain);
        if key.ranks.is_some() && !codes.contains(&key.kind) {
            let why = format!("ranks are for dictionary codes, not for {:?}", key.kind);
            return Err(KernelError::Shape { what: "sort", why });
        }
    }
    expect_bytes("sort", "descriptors", descriptors, keys.len() as u64 * KEY_BYTES)?;
    expect_bytes("sort", "out", out, bound * 4)?;
    if bound == 0 {
        return Ok(());
    }
    let sorter = Sorter { images, keys, descriptors, reached, rows, on };
    let tiles = bound.div_ceil(u64::from(tune::SORT_TILE_ROWS)) as u32;
    let passes = tiles.next_power_of_two().trailing_zeros();
    if passes == 0 {
        return sorter.tile(None, out, tiles);
    }
    let Some(scratch) = scratch else {
        let wanted = scratch_bytes(bound);
        return Err(KernelError::Shape { what: "sort", why: format!("{wanted} bytes of scratch are needed") });
    };
    expect_bytes("sort", "scratch", scratch, scratch_bytes(bound))?;
    let (wide, narrow) = (list_bytes(bound, 8) as usize, list_bytes(bound, 4) as usize);
    let words = [scratch.view(0..wide)?, scratch.view(wide..2 * wide)?];
    let spare = scratch.view(2 * wide..2 * wide + narrow)?;
    // The lists change places with every pass; the last pass must write to `out`.
    let lists = if passes.is_multiple_of(2) { [out, &spare] } else { [&spare, out] };
    sorter.tile(Some(&words[0]), lists[0], tiles)?;
    for pass in 0..passes {
        let (from, to) = (pass as usize % 2, (pass as usize + 1) % 2);
        let run = u64::from(tune::SORT_TILE_ROWS) << pass;
        sorter.merge(run, (&words[from], lists[from]), (&words[to], lists[to]), tiles)?;
    }
    Ok(())
}

/// What all launches of one sort have in common.
struct Sorter<'a> {
    images: &'a Images,
    keys: &'a [SortKey],
    descriptors: &'a DeviceView,
    reached: &'a [DeviceView],
    rows: &'a Rows,
    on: &'a Stream,
}

impl Sorter<'_> {
    /// Adds the keys' parameters, and the buffers that they lead to.
    fn keys<'k>(&self, launch: Launch<'k>) -> Launch<'k> {
        let mut launch = launch.read(self.descriptors).value(self.keys.len() as u32);
        for key in self.keys {
            // The last word of a bitmap may lie in the padding.
            launch = launch.reads(key.values.padded());
            for view in key.validity.iter().chain(&key.ranks) {
                launch = launch.reads(view.padded());
            }
        }
        self.reached.iter().fold(launch, |launch, view| launch.reads(view))
    }

    fn tile(&self, words: Option<&DeviceView>, out: &DeviceView, tiles: u32) -> Result<()> {
        let kernel = self.images.kernel("sort", "sort_tile")?;
        let launch = self.keys(Launch::new(&kernel, LaunchConfig::linear(tiles, tune::SORT_THREADS)));
        let launch = match words {
            Some(words) => launch.write(words),
            None => launch.value(0u64),
        };
        self.rows.put(launch.write(out)).submit(self.on)?;
        Ok(())
    }

    fn merge(
        &self,
        run: u64,
        from: (&DeviceView, &DeviceView),
        to: (&DeviceView, &DeviceView),
        tiles: u32,
    ) -> Result<()> {
        let kernel = self.images.kernel("sort", "sort_merge")?;
        let launch = self.keys(Launch::new(&kernel, LaunchConfig::linear(tiles, tune::SORT_THREADS))).value(run);
        let launch = launch.read(from.0).read(from.1).write(to.0).write(to.1);
        self.rows.put(launch).submit(self.on)?;
        Ok(())
    }
}
