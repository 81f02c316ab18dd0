//! Runs windows: sorted rows, the starts of partitions and peers, then a column for each function.
//!
//!   parts ─ pack ─► sort row numbers ─► fetch [ input │ arguments ] ─► heads ─► rank, take, fold ─► input, results
//!
//! Memory   a packed copy of the parts, a sorted copy beside the results, 16 bytes per row for each pair of partition
//!          and order, and 4.6 bytes per row for the states of an aggregate while it is computed; for more, see
//!          `distinct.rs`, `percentile.rs` and `concat.rs`.
//! Waits    for the bytes of concatenated texts, otherwise never: the number of rows stays on the device.

use std::ops::Range;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_kernels::codegen::ir::{Repr, Ty};
use millpond_kernels::layout::OutputColumn;
use millpond_kernels::pipeline::ExtentInput;
use millpond_kernels::window::{
    self, Argument, Column, Counted, Folding, Frame, FrameKey, Out, Positions, Taken, Window, chosen_bytes,
    counted_bytes, identity_bytes, positions_bytes, scratch_bytes, tree_bytes,
};
use millpond_memory::{DeviceBuffer, DeviceView, Reservation, Stream};

use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::expr::{Lookup, LookupKind};
use crate::operator::sort::run::{fetch_rows, fetch_rows_beside, order_rows, sort_keys};
use crate::operator::window::describe::From;
use crate::operator::window::distinct::Once;
use crate::operator::window::lower::{LoweredFrame, LoweredFunction, LoweredKey, LoweredWindow, Work};
use crate::operator::window::percentile::KeptMatrix;
use crate::program::contract::SinkRun;
use crate::program::extent::Extent;
use crate::program::part::{Kept, Part};
use crate::program::segment_result::SegmentResult;
use crate::program::segment_run::SegmentRun;

/// The rows of a window, in parts until all rows are kept.
pub(crate) struct WindowRun;

impl SinkRun for WindowRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        extent.keep_rows().boxed()
    }

    fn finish<'a>(
        &'a self,
        segment: &'a SegmentRun,
        mut parts: Vec<Kept>,
        stream: &'a Stream,
    ) -> BoxFuture<'a, Result<SegmentResult, Failure>> {
        async move {
            if !parts.is_empty() {
                let prepared = segment.prepared(0)?;
                let lowered = prepared.shape.lowered.details::<LoweredWindow>();
                let lowered = lowered.ok_or_else(|| EngineError::internal("a window is lowered as one"))?;
                let part = segment.run.together(parts, stream)?;
                parts = match part.rows_bound() {
                    0 => vec![],
                    _ => vec![Kept::staying(Windows { segment, lowered, stream }.over(part).await?)],
                };
            }
            segment.result(parts)
        }
        .boxed()
    }
}

/// Memory of a run, with its reservation.
pub(super) type Held = (DeviceBuffer, Reservation);

/// The functions of one segment.
pub(super) struct Windows<'a> {
    pub segment: &'a SegmentRun,
    lowered: &'a LoweredWindow,
    pub stream: &'a Stream,
}

impl Windows<'_> {
    /// The rows of `part` in order, with a column for each function.
    async fn over(&self, part: Part) -> Result<Part, Failure> {
        if part.rows_bound() > window::MAX_ROWS {
            return Err(Failure::trouble(format!("a window of more than {} rows", window::MAX_ROWS)));
        }
        let run = &self.segment.run;
        let (order, _promise) = self.order(&part).await?;
        let results: Vec<Ty> = self.lowered.functions.iter().map(|function| function.ty).collect();
        let mut ordered = fetch_rows_beside(run, &part, 0..self.lowered.ordered, &order, &results, false, self.stream)?;
        let window = Window { images: &run.context.engine.images, rows: &order.rows, on: self.stream };
        let mut found: Vec<(Range<usize>, Positions, Held)> = Vec::new();
        for function in &self.lowered.functions {
            let keys = function.partition..function.peers;
            if !found.iter().any(|(known, ..)| *known == keys) {
                let (positions, held) = self.heads(&window, &part, &order, &keys).await?;
                found.push((keys, positions, held));
            }
        }
        drop(part);
        let mut kept = None;
        for (index, function) in self.lowered.functions.iter().enumerate() {
            kept.take_if(|kept: &mut KeptMatrix| !kept.serves(function));
            let keys = function.partition..function.peers;
            let (_, positions, _) = found.iter().find(|(known, ..)| *known == keys).expect("it was found above");
            let out = out(&ordered.layout.columns[self.lowered.ordered + index], &ordered.buffer)?;
            self.compute((&window, positions), function, &mut ordered, &mut kept, &out).await?;
        }
        let prepared = self.segment.prepared(0)?;
        let results = self.lowered.ordered..self.lowered.ordered + self.lowered.functions.len();
        let at: Vec<Option<usize>> = (0..self.lowered.inputs).chain(results).map(Some).collect();
        Ok(ordered.arranged(&prepared.shape.lowered.outputs, &at))
    }

    /// The row numbers in order.
    async fn order(&self, part: &Part) -> Result<(ExtentInput, Reservation), Failure> {
        if !self.lowered.sort.is_empty() {
            return order_rows(self.segment, part, &self.lowered.sort, None, self.stream).await;
        }
        let run = &self.segment.run;
        let rows = part.as_extent()?.rows;
        let bytes = identity_bytes(rows.upper_bound()) as usize;
        let (order, promise) = run.context.memory.take(bytes, &run.context.tags.sort, self.stream)?;
        self.count(1);
        let window = Window { images: &run.context.engine.images, rows: &rows, on: self.stream };
        Ok((window.identity(order.as_view())?, promise))
    }

    /// The positions of partitions and peers.
    async fn heads(
        &self,
        window: &Window<'_>,
        part: &Part,
        order: &ExtentInput,
        keys: &Range<usize>,
    ) -> Result<(Positions, Held), Failure> {
        let run = &self.segment.run;
        let columns = sort_keys(self.segment, part, &self.lowered.sort[..keys.end], self.stream).await?;
        let rows = window.rows.upper_bound();
        let held = run.context.memory.take(positions_bytes(rows) as usize, &run.context.tags.sort, self.stream)?;
        let scratch = run.context.memory.take(scratch_bytes(rows) as usize, &run.context.tags.sort, self.stream)?;
        let reached = if part.reaches_texts() { run.reached.all() } else { vec![] };
        let numbers = order.columns.first().and_then(|column| column.as_ref()).map(|column| &column.values);
        let (lists, scratch) = (held.0.as_view(), scratch.0.as_view());
        let positions = window.heads(&columns, keys.start, &reached, numbers, lists, scratch)?;
        self.count(1);
        Ok((positions, held))
    }

    /// Computes the column of one function.
    async fn compute(
        &self,
        (window, positions): (&Window<'_>, &Positions),
        function: &LoweredFunction,
        ordered: &mut Part,
        kept: &mut Option<KeptMatrix>,
        out: &Out,
    ) -> Result<(), Failure> {
        let run = &self.segment.run;
        let rows = window.rows.upper_bound();
        let column = |index: usize| column(ordered, index);
        match &function.work {
            Work::Rank(ranking) => window.rank(positions, *ranking, &out.values)?,
            Work::Take { column: of, from, frame, skips_nulls, otherwise } => {
                let of = column(*of)?;
                let counted = self.counted(window, &of, *skips_nulls)?;
                let taken = match from {
                    From::Row(by) => Taken::Shift(*by),
                    From::Frame(number) => Taken::Nth(*number, frame_of(frame, ordered)?),
                };
                window.take(positions, &of, &taken, counted.as_ref().map(|(found, _)| found), *otherwise, out)?;
            }
            Work::List { column: index, skips_nulls, frame, id, item, once } => {
                let mut of = column(*index)?;
                let mut firsts = None;
                if let Some(once) = once {
                    let how = (once.how, !skips_nulls);
                    let near = self.near((window, positions), function, ordered, &once.value, how).await?;
                    let held = self.firsts(window, of.validity.as_ref().filter(|_| *skips_nulls), &near)?;
                    of.validity = Some(held.0.as_view().clone());
                    firsts = Some(held);
                }
                let counted = self.counted(window, &of, *skips_nulls || firsts.is_some())?;
                let frame = frame_of(frame, ordered)?;
                window.list(positions, &frame, counted.as_ref().map(|(found, _)| found), out)?;
                let items = match &counted {
                    None => ordered.take_column(*index, item.clone()),
                    Some((found, _)) => {
                        self.chosen(window, ordered, *index, found)?.arranged(std::slice::from_ref(item), &[Some(0)])
                    }
                };
                run.keep_items(*id, items)?;
            }
            Work::Percentile(percentile) => {
                self.percentile((window, positions), (function, percentile), ordered, kept, out).await?;
            }
            Work::Bivariate(statistic) => self.bivariate((window, positions), statistic, ordered, out)?,
            Work::Concat(concat) => self.concat((window, positions), concat, ordered, out).await?,
            Work::Fold { column: of, dictionary, operation, frame, once } => {
                let mut of = of.map(column).transpose()?;
                let frame = frame_of(frame, ordered)?;
                let mut too_often = None;
                let mut firsts = None;
                if let (Some(once), Some(of)) = (once, &mut of) {
                    let near =
                        self.near((window, positions), function, ordered, &once.value, (once.how, false)).await?;
                    if once.how == Once::Less {
                        too_often = Some((of.clone(), near));
                    } else {
                        let held = self.firsts(window, of.validity.as_ref(), &near)?;
                        of.validity = Some(held.0.as_view().clone());
                        firsts = Some(held);
                    }
                }
                let mut ranks = None;
                if let Some(dictionary) = dictionary
                    && *operation != window::Operation::Count
                {
                    let ty = Ty::new(Repr::U32);
                    let lookup = Lookup { dictionary: *dictionary, kind: LookupKind::Rank, ty };
                    ranks = Some(self.segment.dictionary_table(&lookup, self.stream).await?.values);
                }
                let argument = Argument { column: of, ranks };
                let folding = Folding { argument, operation: *operation };
                let mut tree = None;
                if folding.argument.needs_states() {
                    let held =
                        run.context.memory.take(tree_bytes(rows) as usize, &run.context.tags.sort, self.stream)?;
                    window.grow(&folding, held.0.as_view())?;
                    self.count(window.grow_launches());
                    tree = Some(held);
                }
                let states = tree.as_ref().map(|(states, _)| states.as_view());
                window.fold(positions, &frame, &folding, states, out)?;
                drop((tree, firsts));
                if let Some((of, near)) = too_often {
                    self.less((window, positions), (&frame, *operation), &of, &near, out)?;
                }
            }
        }
        self.count(1);
        Ok(())
    }

    /// The rows of a column that are not NULL, if only these count.
    pub(super) fn counted(
        &self,
        window: &Window<'_>,
        of: &Column,
        skips_nulls: bool,
    ) -> Result<Option<(Counted, Held)>, Failure> {
        let Some(validity) = of.validity.as_ref().filter(|_| skips_nulls) else { return Ok(None) };
        let run = &self.segment.run;
        let rows = window.rows.upper_bound();
        let held = run.context.memory.take(counted_bytes(rows) as usize, &run.context.tags.sort, self.stream)?;
        let scratch = run.context.memory.take(scratch_bytes(rows) as usize, &run.context.tags.sort, self.stream)?;
        let found = window.count_valid(validity, held.0.as_view(), scratch.0.as_view())?;
        self.count(1);
        Ok(Some((found, held)))
    }

    /// The values of a column that are not NULL, alone in a part.
    fn chosen(&self, window: &Window<'_>, ordered: &Part, column: usize, counted: &Counted) -> Result<Part, Failure> {
        let run = &self.segment.run;
        let (control, _promise) =
            run.context.memory.take(chosen_bytes() as usize, &run.context.tags.sort, self.stream)?;
        let chosen = window.chosen(counted, control.as_view())?;
        self.count(1);
        fetch_rows(run, ordered, column..column + 1, &chosen, false, self.stream)
    }

    pub(super) fn count(&self, launches: u64) {
        self.segment.run.context.tally.launches.fetch_add(launches, Ordering::Relaxed);
    }
}

/// Column `index` of the ordered rows.
pub(super) fn column(ordered: &Part, index: usize) -> Result<Column, Failure> {
    let missing = || EngineError::internal("a window reads a column that was not written");
    let of = ordered.layout.columns.get(index).ok_or_else(missing)?;
    let view = |range: &Range<usize>| ordered.buffer.view(range.clone());
    let validity = of.validity.as_ref().map(view).transpose()?;
    Ok(Column { values: view(&of.values)?, validity, physical: of.physical })
}

/// The output column of a function.
fn out(of: &OutputColumn, buffer: &DeviceView) -> Result<Out, Failure> {
    let view = |range: &Range<usize>| buffer.view(range.clone());
    let validity = of.validity.as_ref().map(view).transpose()?;
    Ok(Out { values: view(&of.values)?, validity, physical: of.physical })
}

pub(super) fn frame_of(frame: &LoweredFrame, ordered: &Part) -> Result<Frame, Failure> {
    let key = match &frame.key {
        Some(LoweredKey { column: index, descending, limits }) => {
            Some(FrameKey { column: column(ordered, *index)?, descending: *descending, limits: *limits })
        }
        None => None,
    };
    Ok(Frame { units: frame.units, start: frame.start, end: frame.end, key })
}
