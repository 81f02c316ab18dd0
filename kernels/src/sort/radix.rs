//! Radix sort: rows sorted by the digits of their keys' numbers, least significant first. Device side: `cuda/radix.cu`.

use millpond_memory::DeviceView;

use super::{Cutter, KernelError, Result, Running, Sort};
use crate::{Launch, LaunchConfig, tune};

/// Bytes of `struct Plan` in radix.cu.
const PLAN_BYTES: u64 = 8 * 256 * 4 + 64;
/// Bytes of a tile's counts, one per value of a digit.
const STATUS_BYTES: u64 = 256 * 8;

/// A word of the number: its start, counted from the end of the number, and its digits.
struct Word {
    start: u32,
    digits: u32,
}

impl Word {
    /// All words, least significant first. A number of 0 bits still has one digit, whose pass writes the result.
    fn all(sort: &Sort) -> impl ExactSizeIterator<Item = Word> {
        let bits = sort.layout.bits.max(1);
        (0..bits.div_ceil(64) as usize).map(move |index| {
            let start = 64 * index as u32;
            Word { start, digits: (bits - start).min(64).div_ceil(8) }
        })
    }

    fn width(&self) -> u64 {
        if self.digits <= 4 { 4 } else { 8 }
    }
}

struct Lists {
    /// Part of the scratch that is zeroed first.
    cleared: DeviceView,
    plans: Vec<DeviceView>,
    status: DeviceView,
    words: [DeviceView; 2],
    rows: [DeviceView; 2],
}

/// Plans and lists in the scratch, and their bytes.
fn lists(sort: &Sort, scratch: Option<&DeviceView>) -> Result<(Option<Lists>, u64)> {
    let widest = Word::all(sort).map(|word| word.width()).max().unwrap_or(8);
    let mut cutter = Cutter::new(scratch);
    let plans = Word::all(sort).map(|_| cutter.take(PLAN_BYTES)).collect::<Result<Vec<_>>>()?;
    let status = cutter.take(STATUS_BYTES * u64::from(sort.tiles(tune::RADIX_TILE_ROWS)))?;
    let cleared = cutter.end as usize;
    let words = [cutter.take(widest * sort.bound)?, cutter.take(widest * sort.bound)?];
    let rows = [cutter.take(4 * sort.bound)?, cutter.take(4 * sort.bound)?];
    let (Some(scratch), Some(plans), Some(status), [Some(a), Some(b)], [Some(c), Some(d)]) =
        (scratch, plans.into_iter().collect::<Option<Vec<_>>>(), status, words, rows)
    else {
        return Ok((None, cutter.end));
    };
    let cleared = scratch.view(0..cleared.min(scratch.len()))?;
    Ok((Some(Lists { cleared, plans, status, words: [a, b], rows: [c, d] }), cutter.end))
}

pub(super) fn scratch_bytes(sort: &Sort) -> u64 {
    lists(sort, None).map_or(0, |(_, bytes)| bytes)
}

pub(super) fn launches(sort: &Sort) -> u32 {
    Word::all(sort).map(|word| 1 + word.digits).sum()
}

pub(super) fn run(running: &Running<'_>, scratch: &DeviceView) -> Result<()> {
    let sort = running.sort;
    let (Some(lists), _) = lists(sort, Some(scratch))? else {
        return Err(KernelError::Shape { what: "sort", why: "there is no scratch".into() });
    };
    lists.cleared.fill(0, running.on)?;
    let limits = running.images.device().limits();
    let resident = limits.multiprocessors * (limits.max_threads_per_multiprocessor / tune::RADIX_THREADS).max(1);
    let encode_blocks = sort.tiles(tune::RADIX_THREADS).clamp(1, resident);
    let pass_blocks = sort.tiles(tune::RADIX_TILE_ROWS).clamp(1, resident);
    let num_words = Word::all(sort).len();
    // Each pass has a higher tag, so that it ignores the status words of earlier passes.
    let mut tag = 0u32;
    for (index, word) in Word::all(sort).enumerate() {
        let plan = &lists.plans[index];
        let previous = index.checked_sub(1).map(|previous| &lists.plans[previous]);
        let (encode, pass) = match word.width() {
            4 => ("radix_encode_4", "radix_pass_4"),
            _ => ("radix_encode_8", "radix_pass_8"),
        };
        let kernel = running.images.kernel("radix", encode)?;
        let launch = Launch::new(&kernel, LaunchConfig::linear(encode_blocks, tune::RADIX_THREADS));
        let launch = running.keys(launch).value(word.start).value(word.digits);
        let launch = launch.write(&lists.words[0]).write(&lists.rows[0]).write(&lists.rows[1]);
        let launch = launch.write(plan);
        let launch = match previous {
            Some(previous) => launch.read(previous).value(0u64).value(0u64),
            None => running.controls(launch.value(0u64)),
        };
        running.count.put(launch.value(sort.limit)).submit(running.on)?;
        let kernel = running.images.kernel("radix", pass)?;
        for digit in 0..word.digits {
            tag += 1;
            let launch = Launch::new(&kernel, LaunchConfig::linear(pass_blocks, tune::RADIX_THREADS));
            let last_digit = u32::from(digit + 1 == word.digits);
            let last_word = u32::from(index + 1 == num_words);
            let launch = launch.write(plan).value(digit).value(tag).value(last_digit).value(last_word);
            let launch = launch.write(&lists.words[0]).write(&lists.words[1]);
            let launch = launch.write(&lists.rows[0]).write(&lists.rows[1]);
            let launch = launch.write(&lists.status).write(&running.numbers).value(sort.limit);
            running.count.put(launch).submit(running.on)?;
        }
    }
    Ok(())
}
