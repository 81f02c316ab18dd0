//! The way of a join's rows across a cut: marks of those with a pair, counts once these are known, and expansion.
//!
//! ```text
//!   rows with start and count of their matches ─► running sums ─┬─► [ mark rows that have a pair ] ─► [ recount ]
//!                                                               ├─► [ mark the build rows of pairs ]
//!                                                               └─► next piece, over pairs or over the rows
//! ```
//!
//! Pairs    are a row and one of its matches; a residual condition is tested on pairs.
//! Errors   of conditions are raised where rows are marked, and checked here.
//! Waits    for the number of pairs, in a first run.

use std::sync::atomic::Ordering;

use millpond_kernels::join::{Expansion, mark_bits, mark_bytes};
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, Input, LookupInput};
use millpond_memory::DeviceView;

use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::options::MAX_BATCH_ROWS;
use crate::program::expand::NewRows;
use crate::program::extent::{CutRows, PieceInput};
use crate::program::texts::NewTexts;

/// Pieces that a join launches beside a cut, as positions among [`Cut::beside`](crate::program::piece::Cut::beside).
#[derive(Debug)]
pub(crate) struct MatchCut {
    /// Column of the start of a row's matches.
    pub start: usize,
    /// Over pairs: marks the rows that have one.
    pub marks: Option<usize>,
    /// Over pairs: marks the rows of the build side that are in one; with the building segment.
    pub build_marks: Option<(usize, usize)>,
    /// Over rows: computes start and count again, once it is known which rows have a pair.
    pub recount: Option<usize>,
    /// The next piece runs over pairs.
    pub expands: bool,
}

/// Takes the rows of a join to the next piece.
pub(crate) async fn cross(mut rows: CutRows<'_>) -> Result<(), Failure> {
    let (segment, stream) = (rows.segment, rows.stream);
    let details = rows.cut().details.clone();
    let cut = details.downcast_ref::<MatchCut>();
    let cut = cut.ok_or_else(|| EngineError::internal("a join's cut has a join's details"))?;
    let context = &segment.run.context;
    let bound = rows.extent.rows.upper_bound();
    let (mut sums, mut pairs) = rows.sums().await?;
    let mut marks = None;
    if let Some(piece) = cut.marks {
        let (marked, _promise) = context.memory.take_zeroed(mark_bytes(bound), &context.tags.joins, stream)?;
        mark(&rows, piece, (&sums, pairs), (marked.as_view(), bound)).await?;
        marks = Some(LookupInput { values: mark_bits(marked.as_view(), bound)?, validity: None });
    }
    if let Some((piece, build)) = cut.build_marks {
        let built = segment.built(build)?;
        if let Some(marked) = built.marks(context, stream)? {
            mark(&rows, piece, (&sums, pairs), (&marked, built.rows_bound())).await?;
        }
    }
    let mut recounted = None;
    if let Some(piece) = cut.recount {
        let from = PieceInput { extent: rows.extent.clone(), expansion: None, marks: marks.clone() };
        let again = rows.launch_beside(piece, &from).await?;
        for (column, output) in [(cut.start, 0), (rows.cut().counts, 1)] {
            let layout = &again.layout.columns[output];
            let validity = layout.validity.clone().map(|range| again.buffer.view(range)).transpose()?;
            let values = again.buffer.view(layout.values.clone())?;
            rows.extent.columns[column] = Some(ColumnInput { values, validity, base: 0 });
        }
        (sums, pairs) = rows.sums().await?;
        recounted = Some(again);
    }
    match cut.expands {
        true => rows.expand_by(sums, pairs).await?,
        false => rows.pass_on(marks).await?,
    }
    // The reservation of the new counts is held until the next piece has read them.
    drop(recounted);
    Ok(())
}

/// Marks rows by the pairs that satisfy the condition: sets bits of `marks`, of `bound` rows.
async fn mark(
    rows: &CutRows<'_>,
    piece: usize,
    (sums, pairs): (&Expansion, NewRows),
    (marks, bound): (&DeviceView, u64),
) -> Result<(), Failure> {
    let (segment, stream) = (rows.segment, rows.stream);
    let (piece, pipeline) = rows.beside(piece)?;
    let over = |extent| PieceInput { extent, expansion: None, marks: None };
    let launch = segment.launch(piece, &over(rows.extent.clone()), stream).await?;
    let mut first = 0;
    while first < pairs.rows {
        let some = (pairs.rows - first).min(MAX_BATCH_ROWS as u64);
        let expansion = Some(Expansion { first, ..sums.clone() });
        let extent = ExtentInput { rows: pairs.next(sums, some)?, ..rows.extent.clone() };
        let from = PieceInput { expansion, ..over(extent) };
        // Each launch may add an arena of texts, which later ones can reach.
        let texts = segment.run.reached.by(&piece.spec);
        let input = Input { texts: &texts, ..launch.input(&from) };
        let made = segment.run.new_texts(&piece.spec, &input, stream)?;
        let input = Input { arena: made.as_ref().map(NewTexts::view), ..input };
        pipeline.mark(input, marks, bound, stream)?;
        segment.run.context.tally.launches.fetch_add(1, Ordering::Relaxed);
        first += some;
    }
    // No later step checks for errors of pairs.
    segment.check_raised(marks, stream).await
}
