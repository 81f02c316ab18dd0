//! Rows in the order of their groups, and beside them columns in orders of their own within the groups.
//!
//!   rows              by (keys)                     the aggregation reads them next: a group is a run of them
//!   median(x)         x by (keys, x)                the stage that finishes the groups looks values up by position
//!   nth_value(y, 2 ORDER BY z)   y by (keys, z)     likewise
//!   array_agg(y ORDER BY z)      y by (keys, z)     kept for the host, which assembles lists when groups leave
//!   string_agg(y, '-' ORDER BY z)  one text of all y by (keys, z), and the end of each in it
//!
//! NULL    as in each order; rows that a FILTER drops are last in their group.
//! Order   of rows that tie: that of the input.
//! Memory  the rows in one piece, row numbers for each order, and each column once more.
//! Waits   for the number of bytes of concatenated texts.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::record_batch::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_kernels::codegen::ir::{Comparison, MAX_TEXT_BYTES, NodeId};
use millpond_kernels::pipeline::{ExtentInput, ExtentRows, LookupInput};
use millpond_kernels::text::{self, Working};
use millpond_memory::{DeviceView, Reservation, Stream};

use crate::column::{ColumnInfo, Form};
use crate::error::EngineError;
use crate::error::failure::{Failure, control_words, flagged};
use crate::error::reason::Reason;
use crate::operator::aggregate::finish;
use crate::operator::aggregate::lower::{lower, variant};
use crate::operator::aggregate::node::DeviceAggregateExec;
use crate::operator::aggregate::ranks::{Becomes, RankedBy};
use crate::operator::sort::lower::SortedBy;
use crate::operator::sort::run::{fetch_rows, order_rows};
use crate::program::contract::{Sink, SinkRun, Stage, never_alone};
use crate::program::extent::Extent;
use crate::program::lower::{SegmentLowering, number_column};
use crate::program::part::{Kept, Part};
use crate::program::piece::{LoweredSegment, LoweredSink};
use crate::program::segment_result::{LookedUp, SegmentResult};
use crate::program::segment_run::SegmentRun;

/// Sink that writes all rows with their keys and the columns to be ordered; the aggregation reads them next.
#[derive(Debug)]
pub(crate) struct RankSink(pub Arc<DeviceAggregateExec>);

/// Details of a segment that sorts rows by their groups.
#[derive(Debug, Clone)]
struct LoweredRanking {
    keys: Vec<SortedBy>,
    /// Number of launches over the same rows.
    variants: u32,
    /// Number of columns written first, which the aggregation reads.
    read: usize,
    /// The columns behind them, each in an order within its groups.
    sorted: Vec<Sorted>,
}

/// A written column.
#[derive(Debug, Clone)]
struct Sorted {
    column: usize,
    info: ColumnInfo,
    order: Vec<SortedBy>,
    becomes: Becomes,
}

impl Sink for RankSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let (mut nodes, mut outputs) = segment.outputs()?;
        let left_out = segment.left_out();
        let aggregation = self.0.aggregation();
        let ranking = segment.with_filters(|lowering, scope, filters| {
            let lowered = lower(lowering, scope, aggregation)?;
            filters.extend(&lowered.row_filters);
            if aggregation.variants.len() > 1 {
                let number = variant(lowering, aggregation);
                outputs.push(number_column("variant", lowering.graph.ty(number)));
                nodes.push(number);
            }
            let first = nodes.len();
            // Columns that nothing reads are not written: those behind them move up.
            let read = first - left_out;
            for ranked in &lowered.ranked {
                let form = Form::Plain(lowering.graph.ty(ranked.value));
                outputs.push(ColumnInfo::new("ranked".into(), DataType::Null, form));
                nodes.push(ranked.value);
            }
            let mut place = |node: NodeId| {
                let known = nodes[first..].iter().position(|known| *known == node).map(|at| first + at);
                let at = known.unwrap_or(nodes.len());
                if known.is_none() {
                    nodes.push(node);
                }
                at - left_out
            };
            let mut sorted = Vec::new();
            for (at, ranked) in lowered.ranked.iter().enumerate() {
                let by = |key: &RankedBy| SortedBy {
                    output: place(key.node),
                    dictionary: key.dictionary,
                    descending: key.descending,
                    nulls_first: key.nulls_first,
                };
                let order = ranked.order.iter().map(by).collect();
                sorted.push(Sorted { column: read + at, info: ranked.info.clone(), order, becomes: ranked.becomes });
            }
            // Rows of a group only need to be adjacent, with groups in any order, so that codes suffice for strings.
            let key = |node| SortedBy { output: place(node), dictionary: None, descending: false, nulls_first: false };
            let keys = lowered.sort_keys(lowering)?.into_iter().map(key).collect();
            Ok(LoweredRanking { keys, variants: aggregation.variants.len() as u32, read, sorted })
        })?;
        Ok(LoweredSink { details: Arc::new(ranking), ..LoweredSink::new(segment.write(nodes), outputs) })
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(RankRun)
    }

    fn columns_on_demand(&self) -> Option<usize> {
        Some(self.0.input_width())
    }
}

/// First stage of an aggregation that reads rows in the order of its groups: the rows of its variant, without the
/// values beside them.
#[derive(Debug)]
pub(crate) struct RankedRows(pub Arc<DeviceAggregateExec>);

impl Stage for RankedRows {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<(), Reason> {
        // The rows of all variants are stored here, with the variant's number behind the other columns.
        let (width, aggregation) = (self.0.input_width(), self.0.aggregation());
        if aggregation.variants.len() > 1 {
            segment.with_filters(|lowering, scope, filters| {
                let (own, this) = (scope.column(width)?, variant(lowering, aggregation));
                let same = lowering.graph.compare(Comparison::Equal, own.node, this);
                filters.push(same.map_err(|e| finish::graph("a variant", &e))?);
                Ok(())
            })?;
        }
        segment.scope = segment.scope.select(&(0..width).collect::<Vec<_>>());
        Ok(())
    }

    fn on_cpu(&self, _batch: &RecordBatch) -> datafusion::error::Result<RecordBatch> {
        never_alone(self)
    }
}

/// Keeps rows, variant by variant, and sorts them by their groups once all are kept.
struct RankRun;

impl SinkRun for RankRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let Extent { segment, prepared, .. } = extent;
            for variant in 0..ranking(&prepared.shape.lowered)?.variants {
                let (part, made) = extent.launch_variant(variant, u64::MAX, true).await?;
                segment.keep_new_texts(made);
                let part = part.arranged(&prepared.shape.lowered.outputs, &prepared.shape.lowered.at);
                segment.keep(Kept::spillable(part, &segment.run.context.engine)?);
            }
            Ok(())
        }
        .boxed()
    }

    fn finish<'a>(
        &'a self,
        segment: &'a SegmentRun,
        parts: Vec<Kept>,
        stream: &'a Stream,
    ) -> BoxFuture<'a, Result<SegmentResult, Failure>> {
        async move {
            if parts.is_empty() {
                return segment.result(parts);
            }
            let prepared = segment.prepared(0)?;
            let ranking = ranking(&prepared.shape.lowered)?;
            let part = segment.run.together(parts, stream)?;
            let mut ranks = Ranks { segment, part, ranking, orders: vec![], stream };
            let mut looked_up = Vec::new();
            let mut promises = Vec::new();
            for column in &ranking.sorted {
                let own = ranks.column(column).await?;
                match column.becomes {
                    Becomes::Values => {
                        looked_up.push(own.lookup_of(0)?);
                        promises.extend(own.promise);
                    }
                    Becomes::Text => {
                        let rows = own.as_extent()?.rows;
                        let all = concatenate(segment, &own.lookup_of(0)?.values, &rows, stream).await?;
                        looked_up.extend([all.whole, all.ends].map(|values| LookupInput { values, validity: None }));
                        promises.push(all.promise);
                        // The rows themselves are read later.
                        promises.extend(own.promise.filter(|_| ranks.is_as_it_came(column)));
                    }
                    Becomes::Items(id) => segment.run.keep_items(id, own)?,
                }
            }
            let rows = ranks.rows()?;
            Ok(segment.result(vec![rows])?.beside(LookedUp::new(looked_up, promises)))
        }
        .boxed()
    }
}

fn ranking(lowered: &LoweredSegment) -> Result<&LoweredRanking, EngineError> {
    lowered.details().ok_or_else(|| EngineError::internal("a ranking is lowered as one"))
}

/// All rows, while they are sorted.
struct Ranks<'a> {
    segment: &'a SegmentRun,
    part: Part,
    ranking: &'a LoweredRanking,
    /// Orders so far, each by its keys.
    orders: Vec<(Vec<SortedBy>, ExtentInput, Reservation)>,
    stream: &'a Stream,
}

impl Ranks<'_> {
    /// True if all rows are one group, and this column has the order of the input.
    fn is_as_it_came(&self, of: &Sorted) -> bool {
        self.ranking.keys.is_empty() && of.order.is_empty()
    }

    /// A column in its order, alone in a part.
    async fn column(&mut self, of: &Sorted) -> Result<Part, Failure> {
        if self.is_as_it_came(of) {
            // The first of these columns holds the reservation for all, which lives as long as any of them.
            return Ok(self.part.take_column(of.column, of.info.clone()));
        }
        let keys = [self.ranking.keys.as_slice(), &of.order].concat();
        let known = self.orders.iter().position(|(known, ..)| *known == keys);
        let order = match known {
            Some(known) => known,
            None => {
                let (order, promise) = order_rows(self.segment, &self.part, &keys, None, self.stream).await?;
                self.orders.push((keys, order, promise));
                self.orders.len() - 1
            }
        };
        let only = of.column..of.column + 1;
        let column = fetch_rows(&self.segment.run, &self.part, only, &self.orders[order].1, false, self.stream)?;
        Ok(column.arranged(std::slice::from_ref(&of.info), &[Some(0)]))
    }

    /// The columns that the aggregation reads, group by group.
    fn rows(self) -> Result<Kept, Failure> {
        let run = &self.segment.run;
        let Some((_, order, _)) = self.orders.first().filter(|_| !self.ranking.keys.is_empty()) else {
            // They are one group, and lookup columns beside them may share their memory.
            return Ok(Kept::staying(self.part));
        };
        let rows = fetch_rows(run, &self.part, 0..self.ranking.read, order, true, self.stream)?;
        Ok(Kept::spillable(rows.arranged(&self.part.outputs, &self.part.at), &run.context.engine)?)
    }
}

/// All texts of a column, concatenated.
pub(crate) struct Concatenated {
    /// A view of the whole text.
    pub whole: DeviceView,
    /// Bytes that the view points to.
    pub bytes: DeviceView,
    /// End of each row's text in it.
    pub ends: DeviceView,
    /// Reservation for the ends.
    pub promise: Reservation,
}

/// Concatenates the texts of a column, and returns the end of each. Slices of the result are views into it, so that it
/// stays as long as the run.
pub(crate) async fn concatenate(
    segment: &SegmentRun,
    views: &DeviceView,
    rows: &ExtentRows,
    stream: &Stream,
) -> Result<Concatenated, Failure> {
    let (run, engine) = (&segment.run, &segment.run.context.engine);
    let place = Working::new(rows.upper_bound());
    let (working, promise) = run.context.memory.take(place.bytes(), &run.context.tags.sort, stream)?;
    text::dense_ends(&engine.images, views, rows, working.as_view(), stream)?;
    let control = working.view(Working::CONTROL)?.download_vec(stream, &engine.pinned)?.await?;
    let (error, bytes) = control_words(&control)?;
    flagged(error)?;
    if bytes > u64::from(MAX_TEXT_BYTES) {
        let most = MAX_TEXT_BYTES;
        let why = format!(
            "the texts that an aggregate joins take {bytes} bytes, and on the device a text has {most} at most"
        );
        return Err(Failure::trouble(why));
    }
    // A view of the whole precedes it: a length too large for an inline text, and the address of the bytes.
    let words_filled = bytes as usize / WORD_BYTES * WORD_BYTES;
    let room = VIEW_ROOM + words_filled.max(VIEW_ROOM) + WORD_BYTES;
    let (dense, dense_promise) = run.context.memory.take(room, &run.context.tags.output, stream)?;
    let whole = dense.view(VIEW_ROOM..room)?;
    // Texts are read by whole words, and the last word may not be filled.
    whole.view(words_filled..words_filled + WORD_BYTES)?.fill(0, stream)?;
    let words = [whole.len() as u64, whole.address().0];
    let view: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let front = dense.view(0..view.len())?;
    front.upload_from(&view, stream, &engine.pinned)?;
    if bytes > 0 {
        text::pack(&engine.images, views, &run.reached.all(), rows, working.as_view(), &whole, stream)?;
    }
    run.reached.keep(dense.as_view(), Some(dense_promise));
    Ok(Concatenated { whole: front, bytes: whole, ends: working.view(place.ends())?, promise })
}

/// Bytes of a text that are read at once.
const WORD_BYTES: usize = 8;
/// Bytes for a view before the text that it points to; a text of this length is not inline in its view.
const VIEW_ROOM: usize = 256;
