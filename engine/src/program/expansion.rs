//! Expansion of rows into several: the number of new rows, and the position of each source row's first.
//!
//!   counts 2 0 3 ─► running sums 2 2 5 ─► rows 0 and 1 of the next piece belong to row 0, rows 2 to 4 to row 2
//!
//! Waits    never: the last sum is on the device.

use millpond_kernels::join::Expansion;
use millpond_kernels::pipeline::ExtentRows;
use millpond_kernels::scan;
use millpond_memory::{DeviceView, Stream};

use crate::error::failure::Failure;
use crate::program::context::RunContext;

/// Number of rows of an expansion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pairs {
    pub rows: u64,
    /// The count was not awaited: the rows are processed in one piece, and counted on the device.
    pub assumed: bool,
}

/// Running sums over `counts`, of up to `bound` rows.
pub(crate) fn running_sums(
    run: &RunContext,
    counts: &DeviceView,
    rows: &ExtentRows,
    bound: u64,
    stream: &Stream,
) -> Result<Expansion, Failure> {
    let (sums, scratch) = (scan::expansion_bytes(bound) as usize, scan::scratch_bytes(bound) as usize);
    // One allocation for the sums and their scratch space.
    let start = sums.next_multiple_of(256);
    let (buffer, _promise) = run.memory.take(start + scratch, &run.tags.joins, stream)?;
    let (sums, scratch) = (buffer.view(0..sums)?, buffer.view(start..start + scratch)?);
    scan::running_sums(&run.engine.images, counts, rows, &sums, &scratch, stream)?;
    Ok(Expansion { sums, source_rows: bound, first: 0 })
}
