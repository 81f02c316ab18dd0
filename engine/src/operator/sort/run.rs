//! Sorts a segment's result: row numbers by key, then every column fetched in their order.
//!
//!   [price | name]   ── keys: price, rank of name ──►  [2, 0, 1]  ── fetch ──►  [price | name] in order
//!
//!   first rows   part ─ best of it ─┐
//!                part ─ best of it ─┴─ together ─ sort        only the best of each part wait for the others
//!
//! Order    stable within a part, NULLs first or last by key, floats in total order, strings by bytes.
//! Limit    if there is one, only the first rows are fetched, and up to a limit of 1,024 only these are sorted.
//! Strings  sort by the rank of their code among all values, computed once the rows are read: values that are added
//!          later move no rank that was used.
//! Memory   a packed copy of the parts, their row numbers, and up to 24 bytes per row while they are sorted.
//! Waits    never: the row count stays on the device.

use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_kernels::codegen::ir::{
    ColumnSpec, Extents, Graph, GraphError, LookupSpec, Physical, PipelineSpec, Range, Repr, SinkSpec, Ty,
};
use millpond_kernels::pipeline::{ExtentInput, ExtentRows, Input, LookupInput};
use millpond_kernels::sort::{self, Sort};
use millpond_memory::{DeviceView, Reservation, Stream};

use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::expr::{Lookup, LookupKind, LookupTable};
use crate::operator::sort::lower::{LoweredSort, SortedBy};
use crate::operator::sort::top::Search;
use crate::program::contract::SinkRun;
use crate::program::extent::Extent;
use crate::program::movers::{Mover, Moves};
use crate::program::part::{Kept, Part};
use crate::program::piece::LoweredSegment;
use crate::program::run::Run;
use crate::program::segment_result::SegmentResult;
use crate::program::segment_run::SegmentRun;

/// Factor on the number of wanted rows: a part with more rows is cut.
const WORTH_CUTTING: u64 = 2;

/// The rows of a sort: parts of them, each cut to its first rows if there is a limit.
pub(crate) struct SortRun {
    fetch: Option<usize>,
    /// Number of parts that are the first rows of an order.
    parts_sorted: AtomicU64,
    /// State of the search for the first rows of the order.
    pub search: Search,
}

impl SortRun {
    pub fn new(fetch: Option<usize>) -> Self {
        Self { fetch, parts_sorted: AtomicU64::new(0), search: Search::default() }
    }

    /// Number of rows to keep of a part with at most `bound` rows; `None` for all.
    fn rows_wanted(&self, bound: u64) -> Option<usize> {
        self.fetch.filter(|fetch| bound > *fetch as u64 * WORTH_CUTTING)
    }

    /// Counts a part that is cut and sorted.
    pub fn cut_part(&self) {
        self.parts_sorted.fetch_add(1, Ordering::Relaxed);
    }
}

/// Details of a sort's lowering.
pub(crate) fn sorted_by(lowered: &LoweredSegment) -> Result<&LoweredSort, EngineError> {
    lowered.details().ok_or_else(|| EngineError::internal("a sort is lowered as one"))
}

impl SinkRun for SortRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let sort = sorted_by(&extent.prepared.shape.lowered)?;
            if let Some(best) = sort.best {
                return self.rows_within_bar(extent, &sort.keys, best).await;
            }
            let Extent { segment, stream, .. } = extent;
            let Some(wanted) = self.rows_wanted(extent.from.extent.rows.upper_bound()) else {
                return extent.keep_rows().await;
            };
            let rest = extent.rest();
            let (part, made) = extent.materialise(false).await?;
            let part = first_rows(segment, part, wanted, &sort.keys, stream).await?;
            self.cut_part();
            rest.keep_part(part, made, false).await
        }
        .boxed()
    }

    fn finish<'a>(
        &'a self,
        segment: &'a SegmentRun,
        mut parts: Vec<Kept>,
        stream: &'a Stream,
    ) -> BoxFuture<'a, Result<SegmentResult, Failure>> {
        async move {
            // A single part that is sorted is the result.
            let sorted_already = parts.len() == 1 && self.parts_sorted.load(Ordering::Relaxed) == 1;
            if !parts.is_empty() && !sorted_already {
                let prepared = segment.prepared(0)?;
                let keys = &sorted_by(&prepared.shape.lowered)?.keys;
                parts = vec![Kept::staying(sort_parts(segment, parts, self.fetch, keys, stream).await?)];
            }
            segment.result(parts)
        }
        .boxed()
    }

    fn lookup(&self, table: &LookupTable, segment: &SegmentRun, stream: &Stream) -> Result<LookupInput, Failure> {
        match table {
            LookupTable::Best { ty } => self.search.bar_or_nothing(*ty, &segment.run, stream),
            _ => Err(EngineError::internal(format!("a sort without the table {table:?}")).into()),
        }
    }
}

/// The first `wanted` rows of `part`, with their sort columns.
pub(crate) async fn first_rows(
    segment: &SegmentRun,
    part: Part,
    wanted: usize,
    keys: &[SortedBy],
    stream: &Stream,
) -> Result<Part, Failure> {
    let (order, _promise) = order_rows(segment, &part, keys, Some(wanted), stream).await?;
    let columns = part.layout.columns.len();
    Ok(fetch_rows(&segment.run, &part, 0..columns, &order, true, stream)?.arranged(&part.outputs, &part.at))
}

/// All parts, sorted.
async fn sort_parts(
    segment: &SegmentRun,
    parts: Vec<Kept>,
    limit: Option<usize>,
    keys: &[SortedBy],
    stream: &Stream,
) -> Result<Part, Failure> {
    let part = segment.run.together(parts, stream)?;
    if part.rows_bound() == 0 {
        return Ok(part);
    }
    let (order, _promise) = order_rows(segment, &part, keys, limit, stream).await?;
    // The keys are no longer needed.
    let columns = part.outputs.len();
    Ok(fetch_rows(&segment.run, &part, 0..columns, &order, false, stream)?.arranged(&part.outputs, &part.at))
}

/// The row numbers of `part` in the order of `keys`, which refer to its columns: the first `limit`, or all. Their
/// number stays on the device, behind an error of the kernel that wrote the rows. Operators of other crates use this
/// function, too.
///
/// # Errors
/// Out of memory; what the device refuses.
pub async fn order_rows(
    segment: &SegmentRun,
    part: &Part,
    keys: &[SortedBy],
    limit: Option<usize>,
    stream: &Stream,
) -> Result<(ExtentInput, Reservation), Failure> {
    let columns = sort_keys(segment, part, keys, stream).await?;
    let reached = if part.reaches_texts() { segment.run.reached.all() } else { vec![] };
    order_by_keys(&segment.run, columns, &part.as_extent()?.rows, &reached, limit, stream)
}

/// Like [`order_rows`], by columns in any memory; `reached` are the buffers that texts among them point into.
pub(crate) fn order_by_keys(
    run: &Run,
    columns: Vec<sort::SortKey>,
    rows: &ExtentRows,
    reached: &[DeviceView],
    limit: Option<usize>,
    stream: &Stream,
) -> Result<(ExtentInput, Reservation), Failure> {
    let sort = Sort::new(columns, rows.upper_bound(), limit.map(|limit| limit as u64))?;
    // The scratch space of the sort is freed before the columns are fetched; the order stays.
    let (order, promise) = run.context.memory.take(sort.order_bytes(), &run.context.tags.sort, stream)?;
    let scratch = match sort.scratch_bytes() {
        0 => None,
        bytes => Some(run.context.memory.take(bytes, &run.context.tags.sort, stream)?),
    };
    let scratch = scratch.as_ref().map(|(scratch, _)| scratch.as_view());
    sort.run(&run.context.engine.images, reached, rows, order.as_view(), scratch, stream)?;
    Ok((sort.order(order.as_view())?, promise))
}

/// The columns of `part` that `keys` refer to, as kernels compare them: strings by the rank of their codes.
pub(crate) async fn sort_keys(
    segment: &SegmentRun,
    part: &Part,
    keys: &[SortedBy],
    stream: &Stream,
) -> Result<Vec<sort::SortKey>, Failure> {
    let mut columns = Vec::with_capacity(keys.len());
    for key in keys {
        let column = &part.layout.columns[key.output];
        let values = part.buffer.view(column.values.clone())?;
        let (mut ranks, mut range) = (None, column.ty.range);
        if let Some(dictionary) = key.dictionary {
            let lookup = Lookup { dictionary, kind: LookupKind::Rank, ty: Ty::new(Repr::U32) };
            let table = segment.dictionary_table(&lookup, stream).await?;
            let values = (table.values.len() / 4).max(1);
            range = Some(Range::new(0, values as i128 - 1));
            ranks = Some(table.values);
        }
        columns.push(sort::SortKey {
            validity: column.validity.clone().map(|range| part.buffer.view(range)).transpose()?,
            ranks,
            range,
            descending: key.descending,
            nulls_first: key.nulls_first,
            ..sort::SortKey::new(&values, column.physical)
        });
    }
    Ok(columns)
}

/// Columns of `part` in its layout, with their rows in `order`; `waits` if the result is allocated as a part that
/// waits.
pub(crate) fn fetch_rows(
    run: &Run,
    part: &Part,
    columns: std::ops::Range<usize>,
    order: &ExtentInput,
    waits: bool,
    stream: &Stream,
) -> Result<Part, Failure> {
    fetch_rows_beside(run, part, columns, order, &[], waits, stream)
}

/// Like [`fetch_rows`], with room beside for columns of the types `more`, which the caller writes.
pub(crate) fn fetch_rows_beside(
    run: &Run,
    part: &Part,
    columns: std::ops::Range<usize>,
    order: &ExtentInput,
    more: &[Ty],
    waits: bool,
    stream: &Stream,
) -> Result<Part, Failure> {
    // All columns are fetched by one launch: a pipeline over the row numbers, in which every column is a lookup table.
    let specs = part.layout.column_specs()[columns.clone()].to_vec();
    let columns = &part.layout.columns[columns];
    let mut tables = Vec::with_capacity(columns.len());
    for column in columns {
        let validity = column.validity.clone().map(|range| part.buffer.view(range)).transpose()?;
        tables.push(LookupInput { values: part.buffer.view(column.values.clone())?, validity });
    }
    let mover = Mover { moves: Moves::Fetch, columns: specs.clone() };
    let fetch = run.mover(mover, || fetching(&specs).map_err(|e| Failure::trouble(e.to_string())))?;
    let extents = std::slice::from_ref(order);
    let layout = fetch.output_layout(extents);
    let whole = layout.clone().beside(more);
    let (buffer, promise) = run.output(&whole, waits, stream)?;
    let reached = if part.reaches_texts() { run.reached.all() } else { vec![] };
    let input = Input { extents, lookups: &tables, texts: &reached, ..Input::default() };
    fetch.materialise(input, &buffer, &layout, stream)?;
    run.context.tally.launches.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    Ok(Part::new(&buffer, whole, vec![]).promised(promise))
}

/// Spec that fetches columns of these forms by row numbers.
fn fetching(columns: &[ColumnSpec]) -> Result<PipelineSpec, GraphError> {
    let mut graph = Graph::new();
    let row = graph.column(0, Ty::new(Repr::U32));
    let outputs = columns.iter().enumerate().map(|(table, column)| graph.lookup(row, table as u32, column.ty));
    let outputs = outputs.collect::<Result<_, _>>()?;
    Ok(PipelineSpec {
        extents: Extents::One,
        columns: vec![ColumnSpec { physical: Physical::U32, has_base: false, ty: Ty::new(Repr::U32) }],
        literals: vec![],
        lookups: columns.iter().map(|column| LookupSpec { physical: column.physical, ty: column.ty }).collect(),
        tables: vec![],
        expanded: false,
        graph,
        filters: vec![],
        sink: SinkSpec::Materialise { outputs },
    })
}
