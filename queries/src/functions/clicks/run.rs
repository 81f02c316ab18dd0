//! Computes sessions, pairs and earlier rows after the last row.
//!
//! ```text
//!   kept parts ─ together ─► columns ─ sort ─► order ─┬─ sessions                  (row number, session)
//!                                                     ├─ before                    (position, number of earlier rows)
//!                                                     └─ distinct ─► order ─ after (position, number of later rows)
//!   result      these rows, with lookup tables: the columns, and the order of positions
//! ```
//!
//! Memory   columns and order stay allocated until the segment that reads the result has ended.
//! Waits    for the number of positions, for pairs and earlier rows in a first run.

use millpond::error::failure::Failure;
use millpond::kernels::clicks::{self, Near, Sorted};
use millpond::kernels::layout::OutputLayout;
use millpond::kernels::pipeline::{ExtentInput, LookupInput};
use millpond::kernels::sort::SortKey;
use millpond::memory::{DeviceView, Reservation, Stream};
use millpond::operator::sort::order_rows;
use millpond::program::answers::{Question, rows_of_each};
use millpond::program::part::{Kept, Part};
use millpond::program::segment_result::{LookedUp, SegmentResult};
use millpond::program::segment_run::SegmentRun;

use std::sync::atomic::Ordering;

use super::super::{Function, time};
use super::Asked;
use super::lower::LoweredClicks;

/// Computes the function's result over the rows of `parts`.
pub(super) async fn find(
    asked: &Asked,
    segment: &SegmentRun,
    parts: Vec<Kept>,
    stream: &Stream,
) -> Result<SegmentResult, Failure> {
    if parts.is_empty() {
        return segment.result(parts);
    }
    let prepared = segment.prepared(0)?;
    let details = prepared.shape.lowered.details::<LoweredClicks>();
    let lowered = details.ok_or_else(|| Failure::trouble("functions of clicks are lowered as such"))?;
    let part = segment.run.together(parts, stream)?;
    if part.rows_bound() == 0 {
        return segment.result(vec![]);
    }
    let (order, promise) = order_rows(segment, &part, &lowered.sorted, None, stream).await?;
    let reached = if part.reaches_texts() { segment.run.reached.all() } else { vec![] };
    let clicks = Rows { asked, segment, part: &part, reached: &reached, stream };
    let found = match &asked.function {
        Function::Sessionize { gap, .. } => {
            let found = clicks.sessions(&order, scaled(*gap, asked, lowered))?;
            // Session rows contain row numbers and do not need the order.
            drop((order, promise));
            Found { rows: found, order: None }
        }
        Function::LastBefore { n, within, .. } => {
            let most = u32::try_from(*n).unwrap_or(u32::MAX);
            let near = Near { most, within: within.map(|within| scaled(within, asked, lowered)) };
            let found = clicks.before(&order, near)?;
            Found { rows: clicks.counted(found).await?, order: Some((order, Some(promise))) }
        }
        _ => {
            let mut distinct = clicks.distinct(&order)?;
            drop((order, promise));
            let promise = distinct.promise.take();
            let order = distinct.as_extent()?;
            let found = clicks.after(&order)?;
            Found { rows: clicks.counted(found).await?, order: Some((order, promise)) }
        }
    };
    found.beside(segment, part)
}

/// A distance in the unit of the time column, saturated to 64 bits, because no difference is larger.
fn scaled(distance: i64, asked: &Asked, lowered: &LoweredClicks) -> u64 {
    let (Function::Sessionize { keys, .. } | Function::LastBefore { keys, .. }) = asked.function else { return 0 };
    let scale = time::scale(&lowered.columns[asked.columns[keys]].data_type);
    u64::try_from(i128::from(distance) * scale).unwrap_or(u64::MAX)
}

/// Result rows, and the order of positions with its memory reservation.
struct Found {
    rows: Part,
    order: Option<(ExtentInput, Option<Reservation>)>,
}

impl Found {
    /// The result rows, with the columns of `part` as lookup tables.
    fn beside(self, segment: &SegmentRun, part: Part) -> Result<SegmentResult, Failure> {
        let (mut columns, mut promises) = (vec![], vec![]);
        if let Some((order, promise)) = self.order {
            let numbers = order.columns.into_iter().flatten();
            columns.extend(numbers.map(|numbers| LookupInput { values: numbers.values, validity: None }));
            promises.extend(promise);
        }
        for column in &part.layout.columns {
            let validity = column.validity.clone().map(|range| part.buffer.view(range)).transpose()?;
            columns.push(LookupInput { values: part.buffer.view(column.values.clone())?, validity });
        }
        promises.extend(part.promise);
        let rows = Kept::spillable(self.rows, &segment.run.context.engine)?;
        Ok(segment.result(vec![rows])?.beside(LookedUp::new(columns, promises)))
    }
}

/// Rows of one part, and the context for work on them.
struct Rows<'a> {
    asked: &'a Asked,
    segment: &'a SegmentRun,
    part: &'a Part,
    reached: &'a [DeviceView],
    stream: &'a Stream,
}

impl Rows<'_> {
    /// The function's columns with these indices, as keys for comparing rows.
    fn keys(&self, columns: impl Iterator<Item = usize>) -> Result<Vec<SortKey>, Failure> {
        let kept = self.asked.kept();
        let key = |column: usize| {
            let column = &self.part.layout.columns[kept[column]];
            let values = self.part.buffer.view(column.values.clone())?;
            let validity = column.validity.clone().map(|range| self.part.buffer.view(range)).transpose()?;
            Ok(SortKey { validity, range: column.ty.range, ..SortKey::new(&values, column.physical) })
        };
        columns.map(key).collect()
    }

    /// Launches a kernel over the rows in `order`, compared by `keys`, that fills a part of `columns` columns.
    fn launch(
        &self,
        columns: usize,
        order: &ExtentInput,
        keys: &[SortKey],
        launch: impl FnOnce(Sorted<'_>, &DeviceView) -> Result<(), millpond::kernels::KernelError>,
    ) -> Result<Part, Failure> {
        let run = &self.segment.run;
        let layout = clicks::layout(columns, order.rows.upper_bound());
        let (buffer, promise) = run.output(&layout, true, self.stream)?;
        launch(Sorted { order, keys, reached: self.reached }, buffer.as_view())?;
        run.context.tally.launches.fetch_add(1, Ordering::Relaxed);
        let outputs = self.segment.prepared(0)?.shape.lowered.outputs[..columns].to_vec();
        Ok(Part::new(&buffer, layout, outputs).promised(promise))
    }

    fn sessions(&self, order: &ExtentInput, gap: u64) -> Result<Part, Failure> {
        let keys = self.keys(0..self.asked.columns.len())?;
        let images = self.segment.run.context.engine.images();
        self.launch(2, order, &keys, |rows, output| clicks::sessions(images, rows, gap, output, self.stream))
    }

    fn before(&self, order: &ExtentInput, near: Near) -> Result<Part, Failure> {
        let (Function::LastBefore { keys, .. }, anchor) = (&self.asked.function, self.asked.columns.len() - 1) else {
            return Err(Failure::trouble("earlier rows are asked for"));
        };
        let time = near.within.map(|_| *keys);
        let keys = self.keys((0..*keys).chain(time).chain([anchor]))?;
        let images = self.segment.run.context.engine.images();
        self.launch(2, order, &keys, |rows, output| clicks::before(images, rows, near, output, self.stream))
    }

    fn distinct(&self, order: &ExtentInput) -> Result<Part, Failure> {
        let keys = self.keys(0..self.asked.columns.len())?;
        let images = self.segment.run.context.engine.images();
        self.launch(1, order, &keys, |rows, output| clicks::distinct(images, rows, output, self.stream))
    }

    fn after(&self, order: &ExtentInput) -> Result<Part, Failure> {
        let keys = self.keys(0..self.asked.columns.len() - 1)?;
        let images = self.segment.run.context.engine.images();
        self.launch(2, order, &keys, |rows, output| clicks::after(images, rows, output, self.stream))
    }

    /// The part with its exact row count, which may be far below the upper bound.
    async fn counted(&self, mut part: Part) -> Result<Part, Failure> {
        let control = [part.buffer.view(OutputLayout::CONTROL)?];
        let site = (self.segment.index, Question::Rows);
        let rows = self.segment.run.read_back(site, &control, rows_of_each, self.stream).await?;
        part.rows_known(rows.iter().sum())?;
        Ok(part)
    }
}
