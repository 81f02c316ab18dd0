//! Expansion of rows into several: the number of new rows, and the position of each source row's first.
//!
//! ```text
//!   counts 2 0 3 ─► running sums 2 2 5 ─► rows 0 and 1 of the next piece belong to row 0, rows 2 to 4 to row 2
//! ```
//!
//! Waits    for the number of new rows, in a first run; later runs assume it. The last sum is on the device.

use millpond_kernels::join::Expansion;
use millpond_kernels::pipeline::{ExtentInput, ExtentRows};
use millpond_kernels::scan;
use millpond_memory::{DeviceView, Stream};

use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::options::MAX_BATCH_ROWS;
use crate::program::answers::{Question, rows_of_each};
use crate::program::context::RunContext;
use crate::program::extent::{CutRows, PieceInput};

/// Minimum number of new rows per launch.
const LEAST_ROWS: u64 = 1 << 10;

/// Number of rows of an expansion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewRows {
    pub rows: u64,
    /// The count was not awaited: the rows are processed in one piece, and counted on the device.
    pub assumed: bool,
}

impl NewRows {
    /// The next `rows` of them; an assumed count is read on the device.
    pub fn next(self, sums: &Expansion, rows: u64) -> Result<ExtentRows, Failure> {
        Ok(match self.assumed {
            true => ExtentRows::OnDevice { control: sums.control()?, upper_bound: rows },
            false => ExtentRows::Known(rows),
        })
    }
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

impl CutRows<'_> {
    /// Running sums over the cut's counts; the last sum is the number of new rows.
    pub(crate) async fn sums(&self) -> Result<(Expansion, NewRows), Failure> {
        let (segment, extent, stream) = (self.segment, &self.extent, self.stream);
        let (run, bound) = (&segment.run, extent.rows.upper_bound());
        let counts = extent.columns[self.cut().counts].as_ref();
        let counts = counts.ok_or_else(|| EngineError::internal("counts are written"))?;
        let sums = running_sums(&run.context, &counts.values, &extent.rows, bound, stream)?;
        // A count that takes several launches is awaited.
        let most = self.rows_at_first().min(run.extent_rows() as u64);
        let (site, control) = ((segment.index, Question::Expanded), [sums.control()?]);
        let (words, assumed) = run.read_back_below(site, most, &control, rows_of_each, stream).await?;
        Ok((sums, NewRows { rows: words.iter().sum(), assumed }))
    }

    /// Number of new rows to try at first: few, if few rows suffice.
    fn rows_at_first(&self) -> u64 {
        (MAX_BATCH_ROWS as u64).min(self.segment.sink.rows_sought(self.segment))
    }

    /// Runs the next piece over each row as often as the cut's counts say.
    pub(crate) async fn expand(self) -> Result<(), Failure> {
        let (sums, new) = self.sums().await?;
        self.expand_by(sums, new).await
    }

    /// Runs the next piece over the expanded rows, some at a time: fewer after memory has run out.
    pub(crate) async fn expand_by(self, sums: Expansion, new: NewRows) -> Result<(), Failure> {
        let mut most = self.rows_at_first();
        let Self { segment, prepared, number, extent, stream, feeding } = self;
        let mut first = 0;
        let mut ceiling = MAX_BATCH_ROWS as u64;
        while first < new.rows && !segment.has_enough() {
            let rows = most.min(segment.run.extent_rows() as u64).max(LEAST_ROWS).min(new.rows - first);
            let expansion = Some(Expansion { first, ..sums.clone() });
            let some = ExtentInput { rows: new.next(&sums, rows)?, ..extent.clone() };
            let from = PieceInput { extent: some, expansion, marks: None };
            match segment.through(prepared, number + 1, from, stream, feeding).await {
                Ok(()) => {
                    first += rows;
                    most = (rows * 4).min(ceiling);
                }
                Err(failure) if failure.is_out_of_memory() && rows > LEAST_ROWS && !new.assumed => {
                    ceiling = rows / 2;
                    most = ceiling;
                }
                Err(failure) if first > 0 => return Err(failure.midway()),
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }
}
