//! How many rows a piece of several rows for each has, and where each row's begin.
//!
//!   counts 2 0 3 ─► running sums 2 2 5 ─► row 0 of the next piece is of row 0, rows 2 to 4 are of row 2
//!
//! Waits    for the last sum.

use millpond_kernels::join::Expansion;
use millpond_kernels::pipeline::ExtentRows;
use millpond_kernels::scan;
use millpond_memory::{DeviceView, Stream};

use crate::program::context::RunContext;
use crate::program::failure::{Failure, control_words, flagged};

/// Running sums over `counts`, and how many rows an expansion by them has.
pub(crate) async fn running_sums(
    run: &RunContext,
    counts: &DeviceView,
    rows: &ExtentRows,
    bound: u64,
    stream: &Stream,
) -> Result<(Expansion, u64), Failure> {
    let (sums, scratch) = (scan::expansion_bytes(bound) as usize, scan::scratch_bytes(bound) as usize);
    // One allocation: the sums, and what making them takes.
    let start = sums.next_multiple_of(256);
    let (buffer, _promise) = run.memory.take(start + scratch, &run.tags.joins, stream)?;
    let (sums, scratch) = (buffer.view(0..sums)?, buffer.view(start..start + scratch)?);
    scan::running_sums(&run.engine.images, counts, rows, &sums, &scratch, stream)?;
    let expansion = Expansion { sums, source_rows: bound, first: 0 };
    let control = expansion.control()?.download_vec(stream, &run.engine.pinned)?.await?;
    let (error, pairs) = control_words(&control)?;
    flagged(error)?;
    Ok((expansion, pairs))
}
