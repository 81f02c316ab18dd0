//! Top k: the first rows of an order, in one launch. Device side: `cuda/top.cu`.

use millpond_memory::DeviceView;

use super::{Cutter, KernelError, Result, Running, Sort};
use crate::{Launch, LaunchConfig, tune};

/// Bytes of the state: the bar, the number of thread blocks that have finished, and the number of pairs they left.
const STATE_BYTES: u64 = 16;

/// Number of thread blocks: each scans several tiles, so that its bar rejects most rows.
fn blocks(sort: &Sort) -> u32 {
    let tile = 2 * tune::SORT_THREADS * tune::TOP_TILES_PER_BLOCK;
    sort.tiles(tile).clamp(1, tune::TOP_MAX_BLOCKS)
}

struct Lists<V> {
    state: V,
    words: V,
    rows: V,
}

/// State and lists in the scratch, and their bytes.
fn lists(sort: &Sort, scratch: Option<&DeviceView>) -> Result<(Option<Lists<DeviceView>>, u64)> {
    let pairs = (u64::from(blocks(sort)) * sort.limit).min(sort.bound);
    let mut cutter = Cutter::new(scratch);
    let (state, words, rows) = (cutter.take(STATE_BYTES)?, cutter.take(pairs * 8)?, cutter.take(pairs * 4)?);
    let lists = match (state, words, rows) {
        (Some(state), Some(words), Some(rows)) => Some(Lists { state, words, rows }),
        _ => None,
    };
    Ok((lists, cutter.end))
}

pub(super) fn scratch_bytes(sort: &Sort) -> u64 {
    lists(sort, None).map_or(0, |(_, bytes)| bytes)
}

pub(super) fn run(running: &Running<'_>, scratch: &DeviceView) -> Result<()> {
    let sort = running.sort;
    let (Some(Lists { state, words, rows }), _) = lists(sort, Some(scratch))? else {
        return Err(KernelError::Shape { what: "sort", why: "there is no scratch".into() });
    };
    // Initially no word is beyond the bar.
    state.view(0..8)?.fill(0xff, running.on)?;
    state.view(8..STATE_BYTES as usize)?.fill(0, running.on)?;
    let kernel = running.images.kernel("top", "top_rows")?;
    let launch = running.keys(Launch::new(&kernel, LaunchConfig::linear(blocks(sort), tune::SORT_THREADS)));
    let launch = running.controls(launch.value(sort.limit as u32));
    let launch = launch.write(&state).write(&words).write(&rows).write(&running.numbers);
    running.count.put(launch).submit(running.on)?;
    Ok(())
}
