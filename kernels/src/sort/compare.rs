//! Merge sort: tiles sorted by comparison, then merged in passes. Device side: `cuda/sort.cu`.

use millpond_memory::DeviceView;

use super::{KernelError, Result, Running, Sort};
use crate::{Launch, LaunchConfig, tune};

/// Bytes of a list in the scratch, rounded up to a multiple of 256.
fn list_bytes(rows: u64, width: u64) -> u64 {
    (rows * width).next_multiple_of(256)
}

/// Bytes of two lists of words and two of rows; the last pass writes to the order instead.
pub(super) fn scratch_bytes(sort: &Sort) -> u64 {
    match sort.doublings() {
        0 => 0,
        _ => list_bytes(sort.bound, 8) * 2 + list_bytes(sort.bound, 4) * 2,
    }
}

pub(super) fn run(running: &Running<'_>, scratch: Option<&DeviceView>) -> Result<()> {
    let sort = running.sort;
    let doublings = sort.doublings();
    let Some(scratch) = scratch else {
        return tile(running, None, &running.numbers);
    };
    let (wide, narrow) = (list_bytes(sort.bound, 8) as usize, list_bytes(sort.bound, 4) as usize);
    let words = [scratch.view(0..wide)?, scratch.view(wide..2 * wide)?];
    let rows = [scratch.view(2 * wide..2 * wide + narrow)?, scratch.view(2 * wide + narrow..2 * (wide + narrow))?];
    tile(running, Some(&words[0]), &rows[0])?;
    for pass in 0..doublings {
        // The lists swap roles with every pass.
        let (from, to) = (pass as usize % 2, (pass as usize + 1) % 2);
        let (target, limit) =
            if pass + 1 == doublings { (&running.numbers, sort.limit) } else { (&rows[to], u64::MAX) };
        let run = u64::from(tune::SORT_TILE_ROWS) << pass;
        let kernel = running.images.kernel("sort", "sort_merge")?;
        let launch = running.keys(Launch::new(&kernel, config(sort))).value(run);
        let launch = launch.read(&words[from]).read(&rows[from]).write(&words[to]).write(target).value(limit);
        running.count.put(launch).submit(running.on)?;
    }
    Ok(())
}

fn tile(running: &Running<'_>, words: Option<&DeviceView>, rows: &DeviceView) -> Result<()> {
    let kernel = running.images.kernel("sort", "sort_tile")?;
    let launch = running.keys(Launch::new(&kernel, config(running.sort)));
    let launch = running.controls(launch);
    let launch = match words {
        Some(words) => launch.write(words),
        None => launch.value(0u64),
    };
    running.count.put(launch.write(rows).value(running.sort.limit)).submit(running.on)?;
    Ok::<_, KernelError>(())
}

/// One thread block per tile; a sort of no rows still launches one block, which writes the count.
fn config(sort: &Sort) -> LaunchConfig {
    LaunchConfig::linear(sort.tiles(tune::SORT_TILE_ROWS).max(1), tune::SORT_THREADS)
}
