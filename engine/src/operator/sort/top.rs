//! The first rows of an order, without writing the others.
//!
//!   extent ─► filter ─ probe ─ … ─► first key beyond the k-th best so far? ─► room for few ─► its best k ─┐
//!                                             ▲ the bar, on the device                                    │
//!                                             └───────────────────────────────────────────────────────────┘
//!
//! Bar      the first key of the k-th best row of some part: k rows sort before or with it, so that rows after it are
//!          dropped. Rows that tie with it stay: the other keys decide later, over whole keys.
//! Room     for about the root of k times the extent's rows: with a bar from that many rows, about as many of the
//!          others pass. The first extent begins with that many of its rows, only for a bar. If more rows pass, the
//!          rows that fit improve the bar, and the extent is processed again with eight times the room, up to room for
//!          all.
//! Parts    of k rows each; several of them are merged into one.
//! Errors   a dropped row is not computed: if a column could raise an error, no bar is used.
//! Strings  have no bar as first keys: codes are ranked once all rows are read.
//! Waits    in a first run: for the row count, if only the device knows it; for the number of rows that passed, if
//!          there may be more than fit; and once for a first bar.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use millpond_kernels::codegen::ir::{Comparison, GraphError, Literal, NodeId, Repr, Test, Ty};
use millpond_kernels::layout::OutputLayout;
use millpond_kernels::pipeline::{ExtentRows, LookupInput};
use millpond_kernels::tune;
use millpond_memory::{DeviceBuffer, Stream};

use crate::error::EngineError;
use crate::error::failure::{Failure, control_words, flagged};
use crate::expr::{LookupTable, Lowering};
use crate::operator::sort::lower::SortedBy;
use crate::operator::sort::run::{SortRun, first_rows};
use crate::program::answers::{Question, rows_of_each};
use crate::program::extent::{Extent, ExtentRest};
use crate::program::part::{Kept, Part};
use crate::program::run::Run;
use crate::program::segment_run::SegmentRun;
use crate::program::texts::NewTexts;

/// Maximum rows of an input that is written whole.
const FEW_ROWS: u64 = 8 << 10;
/// Factor on the number of wanted rows: a part with more rows is cut.
const WORTH_CUTTING: u64 = 2;
/// Factor by which the room grows after an overflow.
const MORE_ROOM: u64 = 8;
/// Number of parts that are merged into one.
const MANY_PARTS: usize = 16;

/// Details of the filter that [`with_bar`] adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Best {
    /// Number of wanted rows.
    pub rows: u64,
    /// Position of the first key among the outputs.
    pub output: usize,
    pub ty: Ty,
}

/// Adds the filter that a row's first key is within the bar, if that drops rows and has no other effect.
pub(crate) fn with_bar(
    lowering: &mut Lowering<'_>,
    filters: &mut Vec<NodeId>,
    outputs: &[NodeId],
    keys: &[SortedBy],
    fetch: Option<usize>,
    rows_hint: Option<u64>,
) -> Option<Best> {
    let (rows, first) = (fetch? as u64, keys.first()?);
    let few = rows_hint.is_none_or(|hint| hint <= FEW_ROWS.max(rows * WORTH_CUTTING));
    if few || rows == 0 || rows > tune::TOP_MAX_ROWS.into() || first.dictionary.is_some() {
        return None;
    }
    let key = outputs[first.output];
    let ty = lowering.graph.ty(key);
    let others_fail = outputs.iter().any(|output| *output != key && lowering.graph.can_fail(*output));
    if ty.repr == Repr::Text || others_fail {
        return None;
    }
    // A key that cannot be compared has no bar.
    filters.push(within(lowering, key, first, rows).ok()?);
    Some(Best { rows, output: first.output, ty })
}

/// True if there is no bar yet, and for rows whose `key` does not sort after it.
fn within(lowering: &mut Lowering<'_>, key: NodeId, order: &SortedBy, rows: u64) -> Result<NodeId, GraphError> {
    let ty = lowering.graph.ty(key);
    let table = lowering.lookup_table(LookupTable::Best { ty });
    // The launch's variant flags whether there is a bar. Its position is a parameter, so that all limits share a
    // module.
    let there = lowering.slot(Ty::new(Repr::U32).within(0, 1), Literal::Variant);
    let place = Ty::new(Repr::U32).within(0, i128::from(tune::TOP_MAX_ROWS) - 1);
    let place = lowering.slot(place, Literal::Int(i128::from(rows) - 1));
    let g = &mut lowering.graph;
    let bar = g.lookup(place, table, ty)?;
    let none = g.integer(0, Repr::U32);
    let no_bar = g.compare(Comparison::Equal, there, none)?;
    let direction = if order.descending { Comparison::GreaterEqual } else { Comparison::LessEqual };
    let mut inside = g.compare(direction, key, bar)?;
    if ty.nullable {
        // If NULLs are first, a NULL key is always inside; otherwise a NULL bar drops nothing.
        let null = g.test(Test::IsNull, if order.nulls_first { key } else { bar })?;
        inside = g.or(null, inside)?;
    }
    g.or(no_bar, inside)
}

/// State of the search for the first rows.
#[derive(Default)]
pub(crate) struct Search {
    /// The first keys of the best rows of some part, the last of which is the bar.
    bar: Mutex<Option<LookupInput>>,
    /// Maximum number of rows that passed, as far as the room had to grow for them.
    room: std::sync::atomic::AtomicU64,
}

impl Search {
    fn bar(&self) -> Option<LookupInput> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The bar, for a launch; a placeholder if there is none.
    pub fn bar_or_nothing(&self, ty: Ty, run: &Run, stream: &Stream) -> Result<LookupInput, Failure> {
        if let Some(bar) = self.bar() {
            return Ok(bar);
        }
        let bytes = tune::TOP_MAX_ROWS as usize * 16;
        let nothing = DeviceBuffer::zeroed(bytes, stream, &run.context.engine.pool)?.as_view().clone();
        Ok(LookupInput { values: nothing.clone(), validity: ty.nullable.then_some(nothing) })
    }
}

/// The square root of `of`, or slightly more.
fn root(of: u64) -> u64 {
    of.isqrt() + 1
}

impl SortRun {
    /// Keeps the best of an extent's rows.
    pub(crate) async fn rows_within_bar(
        &self,
        extent: Extent<'_>,
        keys: &[SortedBy],
        best: Best,
    ) -> Result<(), Failure> {
        let extent = with_rows_counted(extent).await?;
        let Extent { segment, stream, .. } = extent;
        let wanted = best.rows as usize;
        let rest = extent.rest();
        let bound = extent.from.extent.rows.upper_bound();
        let few = (2 * root(best.rows * bound)).next_power_of_two().max(FEW_ROWS);
        if bound <= few {
            let cut = bound > best.rows * WORTH_CUTTING;
            let (part, made) = self.rows_passing(&extent, u64::MAX, !cut).await?;
            drop(extent);
            let mut part = if cut { first_rows(segment, part, wanted, keys, stream).await? } else { part };
            if cut && self.search.bar().is_none() {
                let rows = segment.run.count_rows_of(segment.index, std::slice::from_mut(&mut part), stream).await?;
                self.improve(&part, rows, best, segment, stream)?;
            }
            segment.keep_new_texts(made);
            if cut {
                self.cut_part();
            }
            return self.keep_best(part, rest, keys, best).await;
        }
        if self.search.bar().is_none() {
            // Some rows first, for a bar alone: they are processed again below.
            let some = match &extent.from.extent.rows {
                ExtentRows::Known(_) => ExtentRows::Known(few),
                ExtentRows::OnDevice { control, .. } => {
                    ExtentRows::OnDevice { control: control.clone(), upper_bound: few }
                }
            };
            let some = extent.with_rows(some);
            let (part, _made) = self.rows_passing(&some, u64::MAX, false).await?;
            let part = first_rows(segment, part, wanted, keys, stream).await?;
            let mut parts = [part];
            let rows = segment.run.count_rows_of(segment.index, &mut parts, stream).await?;
            self.improve(&parts[0], rows, best, segment, stream)?;
        }
        let mut room = few.max(self.search.room.load(Ordering::Relaxed));
        loop {
            let (part, made) = self.rows_passing(&extent, room, false).await?;
            let passed = rows_passed(&part, segment, stream).await?;
            let fits = passed <= part.layout.rows_upper_bound;
            let part = first_rows(segment, part, wanted, keys, stream).await?;
            self.improve(&part, passed, best, segment, stream)?;
            if fits {
                drop(extent);
                segment.keep_new_texts(made);
                self.cut_part();
                return self.keep_best(part, rest, keys, best).await;
            }
            room = room.saturating_mul(MORE_ROOM);
            self.search.room.fetch_max(room, Ordering::Relaxed);
        }
    }

    /// The rows that pass, with room for `room` of them.
    async fn rows_passing<'s>(
        &self,
        extent: &Extent<'s>,
        room: u64,
        waits: bool,
    ) -> Result<(Part, Option<NewTexts<'s>>), Failure> {
        let lowered = &extent.prepared.shape.lowered;
        let variant = u32::from(self.search.bar().is_some());
        let (part, made) = extent.launch_variant(variant, room, waits).await?;
        Ok((part.arranged(&lowered.outputs, &lowered.at), made))
    }

    /// Takes the bar from a cut and sorted part that was found among `rows` rows, if these are enough.
    fn improve(
        &self,
        part: &Part,
        rows: u64,
        best: Best,
        segment: &SegmentRun,
        stream: &Stream,
    ) -> Result<(), Failure> {
        if rows < best.rows {
            return Ok(());
        }
        // A separate copy: the part may be spilled to the host.
        let column = &part.layout.columns[best.output];
        let apart = column.values.len().next_multiple_of(256);
        let validity_bytes = column.validity.as_ref().map_or(0, |validity| validity.len());
        let scoped = stream.with_scope(&segment.run.context.tags.sort);
        let bytes = apart + validity_bytes.next_multiple_of(256);
        let copy = DeviceBuffer::zeroed(bytes, &scoped, &segment.run.context.engine.pool)?;
        let values = copy.view(0..column.values.len())?;
        part.buffer.view(column.values.clone())?.copy_to(&values, stream)?;
        let mut validity = None;
        if let Some(range) = &column.validity {
            let view = copy.view(apart..apart + validity_bytes)?;
            part.buffer.view(range.clone())?.copy_to(&view, stream)?;
            validity = Some(view);
        }
        *self.search.bar.lock().unwrap_or_else(PoisonError::into_inner) = Some(LookupInput { values, validity });
        Ok(())
    }

    /// Keeps a part; if there are many, the best of all of them instead.
    async fn keep_best(&self, part: Part, at: ExtentRest<'_>, keys: &[SortedBy], best: Best) -> Result<(), Failure> {
        let ExtentRest { segment, stream, .. } = at;
        segment.keep(Kept::spillable(part, &segment.run.context.engine)?);
        let parts = {
            let mut kept = segment.kept();
            if kept.len() < MANY_PARTS { vec![] } else { std::mem::take(&mut *kept) }
        };
        if parts.is_empty() {
            return Ok(());
        }
        let merged = self.best_of(&parts, segment, keys, best, stream).await;
        let mut kept = segment.kept();
        match merged {
            Ok(one) => kept.insert(0, one),
            // They wait unmerged.
            Err(Failure::Pinned(_)) => drop(kept.splice(0..0, parts)),
            Err(failure) if failure.is_out_of_memory() => drop(kept.splice(0..0, parts)),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// The best rows of all `parts`.
    async fn best_of(
        &self,
        parts: &[Kept],
        segment: &SegmentRun,
        keys: &[SortedBy],
        best: Best,
        stream: &Stream,
    ) -> Result<Kept, Failure> {
        let lent = parts.iter().map(|part| part.lend(stream)).collect::<Result<Vec<_>, _>>()?;
        let part = segment.run.joined(lent, false, stream)?;
        let part = first_rows(segment, part, best.rows as usize, keys, stream).await?;
        // If there is a bar, some part had all wanted rows.
        if self.search.bar().is_some() {
            self.improve(&part, best.rows, best, segment, stream)?;
        }
        Ok(Kept::spillable(part, &segment.run.context.engine)?)
    }
}

/// The extent with its actual row count, if that may be small.
async fn with_rows_counted(extent: Extent<'_>) -> Result<Extent<'_>, Failure> {
    let Extent { segment, stream, .. } = extent;
    let ExtentRows::OnDevice { control, upper_bound } = &extent.from.extent.rows else { return Ok(extent) };
    if *upper_bound <= FEW_ROWS {
        return Ok(extent);
    }
    let control = control.clone();
    let site = (segment.index, Question::Rows);
    let rows = segment.run.read_back(site, std::slice::from_ref(&control), rows_of_each, stream).await?;
    let upper_bound = rows.iter().sum::<u64>().min(*upper_bound);
    Ok(extent.with_rows(ExtentRows::OnDevice { control, upper_bound }))
}

/// Number of rows that passed.
async fn rows_passed(part: &Part, segment: &SegmentRun, stream: &Stream) -> Result<u64, Failure> {
    let control = part.buffer.view(OutputLayout::CONTROL)?;
    let passed = segment.run.read_back((segment.index, Question::Passed), &[control], passed, stream).await?;
    passed.first().copied().ok_or_else(|| EngineError::internal("rows that passed are counted").into())
}

fn passed(control: &[u8]) -> Result<Vec<u64>, Failure> {
    flagged(control_words(control)?.0)?;
    let passed = OutputLayout::passed(control);
    Ok(vec![passed.ok_or_else(|| EngineError::internal("the rows that passed are in the control block"))?])
}
