//! Counts the non-NULL values in the first column of each input, one row per input: a sink of a program.
//!
//! ```text
//!   input 0   [ 3 │ NULL │ -6 ]                         input │ counted
//!   input 1   [ ]                       ──►                 0 │       2
//!                                                           1 │       0
//!
//!   on the device   input 0 … ──► CountsSink ─┐
//!                   input 1 … ──► CountsSink ─┴─► one row each ──► the next segment reads them in order
//! ```
//!
//! NULL       is not counted.
//! Order      not promised.
//! Memory     an extent's rows until they are counted, and one row.
//! Waits      for the number of rows of each extent.
//! Stands for CountsExec.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::{BoxFuture, try_join_all};
use futures::{FutureExt, TryStreamExt, stream};
use millpond::column::{ColumnInfo, Form};
use millpond::contract::{DeviceOperator, DeviceTree, Placed};
use millpond::datafusion::arrow::array::{Array, Int64Array};
use millpond::datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::common::tree_node::TreeNodeRecursion;
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::{SendableRecordBatchStream, TaskContext};
use millpond::datafusion::physical_expr::PhysicalExpr;
use millpond::datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use millpond::datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use millpond::error::EngineError;
use millpond::error::failure::Failure;
use millpond::error::reason::Reason;
use millpond::kernels::codegen::ir::{Extents, Graph, Literal, PipelineSpec, Repr, SinkSpec, Test, Ty};
use millpond::kernels::pipeline::{ExtentInput, ExtentRows, Input};
use millpond::memory::Stream;
use millpond::placement::Placing;
use millpond::program::contract::{Sink, SinkRun, ToSegments};
use millpond::program::extent::Extent;
use millpond::program::lower::SegmentLowering;
use millpond::program::part::{Kept, Part};
use millpond::program::piece::LoweredSink;
use millpond::program::segment_result::SegmentResult;
use millpond::program::segment_run::SegmentRun;
use millpond::program::segments::{Open, Origin, Segments};

/// For each input, its number and the count of non-NULL values in its first column. Runs on the CPU.
#[derive(Debug)]
pub struct CountsExec {
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
}

impl CountsExec {
    pub fn new(inputs: Vec<Arc<dyn ExecutionPlan>>) -> Self {
        Self { inputs, properties: millpond::plan::node::properties(schema(), None) }
    }
}

fn schema() -> SchemaRef {
    let column = |name| Field::new(name, DataType::Int64, false);
    Arc::new(Schema::new(vec![column("input"), column("counted")]))
}

impl DisplayAs for CountsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("CountsExec")
    }
}

impl ExecutionPlan for CountsExec {
    fn name(&self) -> &str {
        "CountsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(inputs)))
    }

    fn execute(&self, _partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let mut partitions = vec![];
        for (number, input) in self.inputs.iter().enumerate() {
            for partition in 0..input.output_partitioning().partition_count() {
                partitions.push((number, input.execute(partition, Arc::clone(&context))?));
            }
        }
        let mut counted = vec![0; self.inputs.len()];
        let count = async move {
            let counts = try_join_all(partitions.into_iter().map(|(number, rows)| async move {
                let values = |batch: &RecordBatch| batch.num_rows() - batch.column(0).logical_null_count();
                let counted = rows.try_fold(0, |sum, batch| async move { Ok(sum + values(&batch)) }).await?;
                Ok::<_, millpond::datafusion::error::DataFusionError>((number, counted))
            }));
            for (number, values) in counts.await? {
                counted[number] += values as i64;
            }
            let numbers = Int64Array::from_iter_values(0..counted.len() as i64);
            Ok(RecordBatch::try_new(schema(), vec![Arc::new(numbers), Arc::new(Int64Array::from(counted))])?)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema(), stream::once(count))))
    }
}

/// The device form of [`CountsExec`].
#[derive(Debug)]
pub struct DeviceCountsExec {
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
}

impl DeviceCountsExec {
    fn new(inputs: Vec<Arc<dyn ExecutionPlan>>) -> Self {
        Self { inputs, properties: millpond::plan::node::properties(schema(), None) }
    }
}

impl DisplayAs for DeviceCountsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("DeviceCountsExec")
    }
}

impl ExecutionPlan for DeviceCountsExec {
    fn name(&self) -> &str {
        "DeviceCountsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(inputs)))
    }

    fn execute(&self, _partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        Err(millpond::plan::node::wrong_use("DeviceCountsExec runs as part of a DownloadExec"))
    }
}

/// Placement, and cutting into one sink per input.
#[derive(Debug)]
pub struct Counts;

impl DeviceOperator for Counts {
    fn name(&self) -> &'static str {
        "counts"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        node.is::<CountsExec>().then(|| place(node, to))
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        (node.is::<CountsExec>() || node.is::<DeviceCountsExec>()).then_some(true)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<DeviceCountsExec>()
    }
}

/// Places all inputs on the device, or none. An input on the CPU gets an upload.
fn place(node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Result<Placed> {
    // A row limit of an input is applied before its rows are counted.
    let place = |input| to.after_limit(to.place(input)?);
    let inputs = node.children().into_iter().map(place).collect::<Result<Vec<_>>>()?;
    match judge(node, &inputs, to) {
        Ok(tree) => Ok(Placed::Device(tree)),
        Err(reason) => to.stay(node, inputs, Some(reason)),
    }
}

/// The device form of `node` over `inputs`, or the reason against it.
fn judge(
    node: &Arc<dyn ExecutionPlan>,
    inputs: &[Placed],
    to: &Placing<'_>,
) -> std::result::Result<DeviceTree, Reason> {
    let mut plans = vec![];
    for input in inputs {
        let tree = to.tree(input)?;
        // Only the counted column is read; the others may have any type.
        tree.columns[0].ty()?;
        plans.push(tree.plan);
    }
    Ok(DeviceTree {
        plan: Arc::new(DeviceCountsExec::new(plans)),
        cpu: Arc::clone(node),
        columns: columns(),
        row_limit: None,
        sorted: false,
        aggregated: true,
    })
}

/// Lowered form of the columns of [`schema`].
fn columns() -> Vec<ColumnInfo> {
    let form = Form::Plain(Ty::new(Repr::I64));
    let column = |field: &Arc<Field>| ColumnInfo::new(field.name().clone(), field.data_type().clone(), form.clone());
    schema().fields().iter().map(column).collect()
}

impl ToSegments for Counts {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        into: &mut Segments<'_>,
    ) -> Option<std::result::Result<Open, EngineError>> {
        let counts = node.downcast_ref::<DeviceCountsExec>()?;
        let close = |(number, input)| into.open(input, false).map(|open| into.close(open, CountsSink { number }));
        let rows = counts.inputs.iter().enumerate().map(close).collect::<std::result::Result<Vec<_>, _>>();
        Some(rows.map(|rows| Open { origin: Origin::Segments(rows), stages: vec![] }))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        (a.is::<DeviceCountsExec>() && b.is::<DeviceCountsExec>()).then_some(true)
    }
}

/// Sink with one result row: the number of the input, and the count of its first column.
#[derive(Debug)]
struct CountsSink {
    number: usize,
}

impl Sink for CountsSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> std::result::Result<LoweredSink, Reason> {
        segment.with_filters(|lowering, scope, filters| {
            let first = scope.column(0)?;
            let refused = |why: String| Reason::ExprUnsupported { expr: "the counted column".into(), why };
            let counted = lowering.graph.test(Test::IsNotNull, first.node);
            filters.push(counted.map_err(|error| refused(error.to_string()))?);
            Ok(())
        })?;
        // Rows that pass the filter are counted, but not written.
        Ok(LoweredSink::new(segment.write(vec![]), columns()))
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(CountsRun { number: self.number, counted: AtomicU64::new(0) })
    }
}

/// Count of one input, updated from any number of streams.
struct CountsRun {
    number: usize,
    counted: AtomicU64,
}

impl SinkRun for CountsRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, std::result::Result<(), Failure>> {
        async move {
            let Extent { segment, stream, .. } = extent;
            let (part, _made) = extent.materialise(false).await?;
            // A failed allocation returns an error above, so its rows are not counted.
            let rows = segment.run.count_rows_of(segment.index, &mut [part], stream).await?;
            self.counted.fetch_add(rows, Ordering::Relaxed);
            Ok(())
        }
        .boxed()
    }

    fn finish<'a>(
        &'a self,
        segment: &'a SegmentRun,
        _parts: Vec<Kept>,
        stream: &'a Stream,
    ) -> BoxFuture<'a, std::result::Result<SegmentResult, Failure>> {
        async move {
            let row = self.row(segment, stream)?;
            segment.result(vec![Kept::spillable(row, &segment.run.context.engine)?])
        }
        .boxed()
    }
}

impl CountsRun {
    /// The result row of the segment, written by a kernel over one row without columns.
    fn row(&self, segment: &SegmentRun, stream: &Stream) -> std::result::Result<Part, Failure> {
        let run = &segment.run;
        let number = Ty::new(Repr::I64);
        let mut graph = Graph::new();
        let outputs = vec![graph.literal(0, number), graph.literal(1, number)];
        let spec = PipelineSpec {
            extents: Extents::One,
            columns: vec![],
            literals: vec![number, number],
            lookups: vec![],
            tables: vec![],
            expanded: false,
            graph,
            filters: vec![],
            sink: SinkSpec::Materialise { outputs },
        };
        let literals = [Literal::Int(self.number as i128), Literal::Int(self.counted.load(Ordering::Relaxed).into())];
        let pipeline = run.context.pipeline(&spec)?;
        let extents = [ExtentInput { rows: ExtentRows::Known(1), columns: vec![] }];
        let layout = pipeline.output_layout(&extents);
        let (buffer, promise) = run.output(&layout, true, stream)?;
        let input = Input { extents: &extents, literals: &literals, ..Input::default() };
        pipeline.materialise(input, &buffer, &layout, stream)?;
        run.context.tally.launches.fetch_add(1, Ordering::Relaxed);
        Ok(Part::new(&buffer, layout, columns()).promised(promise))
    }
}
