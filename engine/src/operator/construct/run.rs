//! Computes the items of an extent's constructed values.
//!
//!   extent ─► rows, counts ─ running sums ─┬─► items, kept beside the rows of all extents
//!                                          └─► words, written over the blanks among the rows
//!
//! Order    that of the rows.
//! Memory   the extent's rows with the inputs of their items; all items of the result, which may be spilled to the
//!          host.
//! Waits    for the number of items of each extent, in a first run.

use std::sync::atomic::Ordering;

use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_kernels::join::Expansion;
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::lists::{self, Whose};
use millpond_kernels::pipeline::{ExtentInput, ExtentRows};
use millpond_memory::DeviceView;

use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::operator::construct::lower::{Kind, LoweredConstruct, Making};
use crate::options::MAX_BATCH_ROWS;
use crate::program::answers::{Question, rows_of_each};
use crate::program::contract::SinkRun;
use crate::program::expand::running_sums;
use crate::program::extent::{Extent, ExtentRest, PieceInput};
use crate::program::part::{Kept, Part};
use crate::program::texts::NewTexts;

/// Run of a construction, without state of its own.
pub(super) struct ConstructRun;

impl SinkRun for ConstructRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let rest = extent.rest();
            let (part, made) = extent.materialise(true).await?;
            let details = rest.prepared.shape.lowered.details::<LoweredConstruct>();
            let details = details.ok_or_else(|| EngineError::internal("construction is lowered as such"))?;
            if part.rows_bound() > 0 {
                for (index, making) in details.0.iter().enumerate() {
                    make(&part, index, making, rest).await?;
                }
            }
            rest.segment.keep(Kept::spillable(part, &rest.segment.run.context.engine)?);
            rest.segment.keep_new_texts(made);
            Ok(())
        }
        .boxed()
    }
}

/// Writes the items of one column, and its words.
async fn make(part: &Part, index: usize, making: &Making, rest: ExtentRest<'_>) -> Result<(), Failure> {
    let ExtentRest { segment, stream, .. } = rest;
    let (run, extent) = (&segment.run, part.all_columns()?);
    let words = part.layout.columns.get(making.words).ok_or_else(|| EngineError::internal("words have a column"))?;
    let words = part.buffer.view(words.values.clone())?;
    let write = |whose: Whose<'_>, base: u64| -> Result<(), Failure> {
        lists::words(&run.context.engine.images, whose, base, &extent.rows, &words, stream)?;
        run.context.tally.launches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    match making.kind {
        Kind::One => {
            let from = PieceInput { extent: extent.clone(), expansion: None, marks: None };
            let items = rest.launch_beside(index, &from).await?;
            let rows = rows_of(&items.0.buffer, rest).await?;
            write(Whose::One, run.add_items(making.id, vec![kept(items, making, rows, rest)?])?)
        }
        Kind::Counted { counts } => {
            let (sums, all, assumed) = expansion(&extent, counts, rest).await?;
            let mut parts = vec![];
            for first in (0..all).step_by(MAX_BATCH_ROWS) {
                let rows = (all - first).min(MAX_BATCH_ROWS as u64);
                let items = rest.launch_beside(index, &some_items(&extent, &sums, (first, rows), assumed)?).await?;
                parts.push(kept(items, making, rows, rest)?);
            }
            // All parts at once: other extents add theirs concurrently.
            write(Whose::Ends(&sums), run.add_items(making.id, parts)?)
        }
        Kind::Filtered { counts } => {
            let (sums, all, assumed) = expansion(&extent, counts, rest).await?;
            if all > MAX_BATCH_ROWS as u64 {
                let why = format!("lists of {all} items lose some of them, and {MAX_BATCH_ROWS} at once are the most");
                return Err(Failure::trouble(why));
            }
            if all == 0 {
                return write(Whose::Ends(&sums), 0);
            }
            let mut items = rest.launch_beside(index, &some_items(&extent, &sums, (0, all), assumed)?).await?;
            let rows = rows_of(&items.0.buffer, rest).await?;
            let of = items.0.layout.columns.first().ok_or_else(|| EngineError::internal("items have rows"))?;
            let of = items.0.buffer.view(of.values.clone())?;
            let control = items.0.buffer.view(OutputLayout::CONTROL)?;
            let most = items.0.layout.rows_upper_bound;
            items.0.at = vec![Some(1)];
            let base = run.add_items(making.id, vec![kept(items, making, rows, rest)?])?;
            write(Whose::Rows { of: &of, control: &control, most }, base)
        }
    }
}

/// Running sums over a column of counts, the last sum, and whether that is only assumed.
async fn expansion(
    extent: &ExtentInput,
    counts: usize,
    rest: ExtentRest<'_>,
) -> Result<(Expansion, u64, bool), Failure> {
    let ExtentRest { segment, stream, .. } = rest;
    let counts = extent.columns.get(counts).and_then(Option::as_ref);
    let counts = counts.ok_or_else(|| EngineError::internal("counts are written"))?;
    let sums = running_sums(&segment.run.context, &counts.values, &extent.rows, extent.rows.upper_bound(), stream)?;
    let (site, control) = ((segment.index, Question::Expanded), [sums.control()?]);
    let most = MAX_BATCH_ROWS as u64;
    let (rows, assumed) = segment.run.read_back_below(site, most, &control, rows_of_each, stream).await?;
    Ok((sums, rows.iter().sum(), assumed))
}

/// Input of a piece for some of the items.
fn some_items(
    extent: &ExtentInput,
    sums: &Expansion,
    (first, rows): (u64, u64),
    assumed: bool,
) -> Result<PieceInput, Failure> {
    let count = match assumed {
        true => ExtentRows::OnDevice { control: sums.control()?, upper_bound: rows },
        false => ExtentRows::Known(rows),
    };
    let extent = ExtentInput { rows: count, ..extent.clone() };
    Ok(PieceInput { extent, expansion: Some(Expansion { first, ..sums.clone() }), marks: None })
}

/// Row count of an output.
async fn rows_of(output: &DeviceView, rest: ExtentRest<'_>) -> Result<u64, Failure> {
    let ExtentRest { segment, stream, .. } = rest;
    let control = [output.view(OutputLayout::CONTROL)?];
    let rows = segment.run.read_back((segment.index, Question::Hits), &control, rows_of_each, stream).await?;
    Ok(rows.iter().sum())
}

/// Items as they are kept for the download, with their number.
fn kept(
    (part, made): (Part, Option<NewTexts<'_>>),
    making: &Making,
    rows: u64,
    rest: ExtentRest<'_>,
) -> Result<(Kept, u64), Failure> {
    let at = if part.at.is_empty() { (0..making.items.len()).map(Some).collect() } else { part.at.clone() };
    let part = Kept::spillable(part.arranged(&making.items, &at), &rest.segment.run.context.engine)?;
    if let Some(made) = made {
        made.stay();
    }
    Ok((part, rows))
}
