//! The rows of a segment between an offset and a limit.
//!
//!   OFFSET 5 LIMIT 10     parts of 4, 8 and 9 rows
//!       rows   0..4 left out │ 4..12: its rows 1.. │ 12..21: its rows ..3      then nothing more is read
//!
//! Order    parts count in the order of their arrival: that of the rows, if they are read one after the other.
//! Memory   a part that is wanted whole stays as it is; of another part, the wanted rows are copied.
//! Waits    for the row count of each part.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_kernels::codegen::ir::{
    Comparison, Extents, Graph, GraphError, Literal, PipelineSpec, Range as Values, Repr, SinkSpec, Ty,
};
use millpond_kernels::pipeline::Input;
use millpond_memory::Stream;

use crate::error::failure::Failure;
use crate::operator::limit::lower::LimitSink;
use crate::program::contract::SinkRun;
use crate::program::extent::Extent;
use crate::program::movers::{Mover, Moves};
use crate::program::part::{Kept, Part};
use crate::program::run::Run;
use crate::program::segment_run::SegmentRun;

/// Counts the rows of parts, one part after the other.
pub(crate) struct LimitRun {
    limit: LimitSink,
    /// Rows counted so far.
    rows: AtomicU64,
    /// Lock for counting.
    turn: tokio::sync::Mutex<()>,
}

impl LimitRun {
    pub fn new(limit: LimitSink) -> Self {
        Self { limit, rows: AtomicU64::new(0), turn: tokio::sync::Mutex::default() }
    }

    /// The rows of `part` between offset and limit, if there are any.
    async fn limit(&self, part: Part, segment: &SegmentRun, stream: &Stream) -> Result<Option<Part>, Failure> {
        let LimitSink { skip, fetch } = self.limit;
        let (run, mut parts) = (&segment.run, [part]);
        let rows = run.count_rows_of(segment.index, &mut parts, stream).await?;
        let [part] = parts;
        // One part after the other: a counted part is kept, and a part without memory is not counted.
        let _turn = self.turn.lock().await;
        let before = self.rows.load(Ordering::Relaxed);
        let end = fetch.map_or(u64::MAX, |fetch| (skip as u64).saturating_add(fetch as u64));
        let wanted = (skip as u64).saturating_sub(before).min(rows)..end.saturating_sub(before).min(rows);
        let kept = match wanted {
            wanted if wanted.is_empty() => None,
            Range { start: 0, end } if end == rows => Some(part),
            wanted => Some(rows_between(&part, wanted, run, stream)?),
        };
        self.rows.fetch_add(rows, Ordering::Relaxed);
        Ok(kept)
    }
}

impl SinkRun for LimitRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let Extent { segment, stream, .. } = extent;
            let (part, made) = extent.materialise(true).await?;
            if let Some(part) = self.limit(part, segment, stream).await? {
                segment.keep(Kept::spillable(part, &segment.run.context.engine)?);
                segment.keep_new_texts(made);
            }
            Ok(())
        }
        .boxed()
    }

    fn rows_sought(&self, _segment: &SegmentRun) -> u64 {
        let LimitSink { skip, fetch } = self.limit;
        let Some(fetch) = fetch else { return u64::MAX };
        (skip.saturating_add(fetch) as u64).saturating_sub(self.rows.load(Ordering::Relaxed))
    }
}

/// The rows of `part` with these numbers.
fn rows_between(part: &Part, rows: Range<u64>, run: &Run, stream: &Stream) -> Result<Part, Failure> {
    let mover = Mover { moves: Moves::Slice, columns: part.layout.column_specs() };
    let pipeline = run.mover(mover, || between(part).map_err(|e| Failure::trouble(e.to_string())))?;
    let extent = part.all_columns()?;
    let extents = std::slice::from_ref(&extent);
    let layout = pipeline.output_layout(extents);
    let (buffer, promise) = run.output(&layout, true, stream)?;
    let reached = if part.reaches_texts() { run.reached.all() } else { vec![] };
    let literals = [Literal::Int(rows.start.into()), Literal::Int(rows.end.into())];
    let input = Input { extents, literals: &literals, texts: &reached, ..Input::default() };
    pipeline.materialise(input, &buffer, &layout, stream)?;
    run.context.tally.launches.fetch_add(1, Ordering::Relaxed);
    Ok(Part::new(&buffer, layout, vec![]).arranged(&part.outputs, &part.at).promised(promise))
}

/// Spec that copies the rows from one number up to another.
fn between(part: &Part) -> Result<PipelineSpec, GraphError> {
    let mut graph = Graph::new();
    let columns = &part.layout.columns;
    let outputs = columns.iter().enumerate().map(|(index, column)| graph.column(index as u32, column.ty)).collect();
    let number = Ty { range: Some(Values { low: 0, high: u32::MAX.into() }), ..Ty::new(Repr::U32) };
    let row = graph.source_row();
    let (start, end) = (graph.literal(0, number), graph.literal(1, number));
    let from = graph.compare(Comparison::GreaterEqual, row, start)?;
    let to = graph.compare(Comparison::Less, row, end)?;
    Ok(PipelineSpec {
        extents: Extents::One,
        columns: part.layout.column_specs(),
        literals: vec![number, number],
        lookups: vec![],
        tables: vec![],
        expanded: false,
        graph,
        filters: vec![from, to],
        sink: SinkSpec::Materialise { outputs },
    })
}
