//! Compaction without an order of tiles: selected values, or their row numbers, into an arena. Device side: `cuda/pick.cu`.
//!
//! ```text
//!   select   [ a c d j ]            one array as long as the input could need; tiles wait for each other's counts
//!   pick     [ j . . . a c d . ]    an arena of the size that is needed; tiles are written as they come, a run each
//! ```
//!
//! Order      of the rows inside a run; runs lie in the directory in the order of their tiles, so that whoever needs the order
//!            of the input reads them one after the other.
//! Memory     the arena's; [`BumpOutcome::fits`](millpond_memory::BumpOutcome::fits) says whether it was enough. With
//!            [`DeviceBumpArena::filled_by`] it is made as large as it has to be, in a second run at most.
//! Waits      never, here.

use millpond_memory::{DeviceBumpArena, DeviceView, Stream};

use crate::error::KernelError;
use crate::image::Images;
use crate::rows::{Rows, bitmap_words, expect_bytes};
use crate::{Launch, LaunchConfig, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Bytes of one entry of the directory.
const RUN_BYTES: u64 = 16;

/// The selected values of one tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Where they begin in the arena, in bytes; `None` if the arena had no room for them.
    pub start: Option<u64>,
    /// How many there are.
    pub count: u64,
}

impl Run {
    /// The entries of a directory that was brought home.
    pub fn list(directory: &[u8]) -> Vec<Run> {
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        let (entries, _) = directory.as_chunks::<{ RUN_BYTES as usize }>();
        entries
            .iter()
            .map(|entry| {
                let (start, count) = entry.split_at(8);
                Run { start: Some(word(start)).filter(|start| *start != u64::MAX), count: word(count) }
            })
            .collect()
    }
}

/// Bytes of the directory for `rows` rows: an entry for each tile.
pub fn directory_bytes(rows: u64) -> u64 {
    rows.div_ceil(u64::from(tune::SELECT_TILE_ROWS)) * RUN_BYTES
}

/// Bytes of arena that are always enough for `rows` values of `width` bytes.
pub fn most_bytes(rows: u64, width: u32) -> u64 {
    let tile = u64::from(tune::SELECT_TILE_ROWS);
    let bytes = |rows: u64| (rows * u64::from(width)).next_multiple_of(256);
    rows / tile * bytes(tile) + bytes(rows % tile)
}

/// Appends the values whose mask bit is set to `arena`, a run for each tile of rows.
///
/// | name        | length                        | unit                                              |
/// |-------------|-------------------------------|---------------------------------------------------|
/// | `input`     | at least `rows`               | values of `width` bytes: 1, 2, 4, 8 or 16         |
/// | `mask`      | at least `rows`               | bits, in whole 32-bit words                       |
/// | `arena`     | any                           | shared: others may append at the same time        |
/// | `directory` | [`directory_bytes`]`(rows)`   | bytes: for each tile a [`Run`]                    |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit, or for another width.
#[expect(clippy::too_many_arguments, reason = "inputs, outputs, stream, as in every launcher")]
pub fn pick(
    images: &Images,
    input: &DeviceView,
    width: u32,
    mask: &DeviceView,
    rows: &Rows,
    arena: &DeviceBumpArena,
    directory: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let name = match width {
        1 => "pick_1",
        2 => "pick_2",
        4 => "pick_4",
        8 => "pick_8",
        16 => "pick_16",
        other => {
            return Err(KernelError::Shape { what: "pick", why: format!("no kernel for values of {other} bytes") });
        }
    };
    expect_bytes("pick", "input", input, rows.upper_bound().saturating_mul(u64::from(width)))?;
    run(images, name, Some(input), mask, rows, arena, directory, on)
}

/// Appends the row numbers (u32) whose mask bit is set; lengths as for [`pick`].
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit, or beyond 2³² rows.
pub fn pick_rows(
    images: &Images,
    mask: &DeviceView,
    rows: &Rows,
    arena: &DeviceBumpArena,
    directory: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let limit = 1 << 32;
    if rows.upper_bound() > limit {
        let why = format!("{} rows are more than the {limit} that it can number", rows.upper_bound());
        return Err(KernelError::Shape { what: "pick_rows", why });
    }
    run(images, "pick_rows", None, mask, rows, arena, directory, on)
}

#[expect(clippy::too_many_arguments, reason = "inputs, outputs, stream, as in every launcher")]
fn run(
    images: &Images,
    name: &'static str,
    input: Option<&DeviceView>,
    mask: &DeviceView,
    rows: &Rows,
    arena: &DeviceBumpArena,
    directory: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let wanted = directory_bytes(rows.upper_bound());
    let mask = bitmap_words(name, "mask", mask, rows)?;
    expect_bytes(name, "directory", directory, wanted)?;
    let directory = directory.view(0..wanted as usize)?;
    let kernel = images.kernel("pick", name)?;
    let limits = images.device().limits();
    let resident = limits.multiprocessors * (limits.max_threads_per_multiprocessor / tune::SELECT_THREADS).max(1);
    let tiles = rows.upper_bound().div_ceil(u64::from(tune::SELECT_TILE_ROWS));
    let blocks = tiles.min(u64::from(resident)) as u32;
    let mut launch = Launch::new(&kernel, LaunchConfig::linear(blocks, tune::SELECT_THREADS));
    if let Some(input) = input {
        launch = launch.read(input);
    }
    let launch = launch.read(&mask).share(arena.bytes()).value(arena.capacity().as_u64()).share(arena.cursor());
    rows.put(launch.write(&directory)).submit(on)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_can_be_needed_rounds_every_run() {
        let tile = u64::from(tune::SELECT_TILE_ROWS);
        assert_eq!([0, 1, 64, 65].map(|rows| most_bytes(rows, 4)), [0, 256, 256, 512]);
        assert_eq!(most_bytes(2 * tile + 1, 1), 2 * tile + 256);
        assert_eq!([0, 1, tile, tile + 1].map(directory_bytes), [0, 16, 16, 32]);
    }

    #[test]
    fn a_directory_is_read_in_little_endian() {
        let mut bytes = [0u8; 32];
        bytes[1] = 1;
        bytes[8] = 3;
        bytes[16..24].fill(0xff);
        bytes[24] = 9;
        assert_eq!(Run::list(&bytes), [Run { start: Some(256), count: 3 }, Run { start: None, count: 9 }]);
    }
}
