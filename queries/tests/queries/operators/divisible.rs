//! Keeps rows whose first number is divisible by n: a stage of a program.
//!
//! ```text
//!   DivisibleExec: by=3                [ 3 a │ 4 b │ NULL c │ -6 d ]  ──►  [ 3 a │ -6 d ]      any number, on the CPU
//!   DeviceDivisibleExec: by=3          fused into the kernel of its segment                      integers
//! ```
//!
//! NULL       drops its row.
//! Order      not promised.
//! Memory     none.
//! Waits      never.
//! Stands for DivisibleExec.

use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use millpond::contract::{DeviceOperator, DeviceTree, Placed};
use millpond::datafusion::arrow::compute::filter_record_batch;
use millpond::datafusion::arrow::compute::kernels::cmp::eq;
use millpond::datafusion::arrow::compute::kernels::numeric::rem;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::common::ScalarValue;
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::{SendableRecordBatchStream, TaskContext};
use millpond::datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use millpond::datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use millpond::datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use millpond::datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use millpond::error::EngineError;
use millpond::error::reason::Reason;
use millpond::expr::{Lowering, Scope};
use millpond::kernels::codegen::ir::{Arithmetic, Comparison, GraphError, Literal, NodeId, Overflow, Ty};
use millpond::placement::Placing;
use millpond::program::contract::{Stage, ToSegments};
use millpond::program::lower::SegmentLowering;
use millpond::program::segments::{Open, Segments};

/// Maximum `n`, representable in every integer type.
const MOST: u8 = 127;

/// The rows of `input` whose first number is divisible by `by`, from 1 to [`MOST`]. Runs on the CPU.
#[derive(Debug)]
pub struct DivisibleExec {
    by: u8,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DivisibleExec {
    pub fn new(input: Arc<dyn ExecutionPlan>, by: u8) -> Self {
        assert!((1..=MOST).contains(&by), "{by} is no divisor from 1 to {MOST}");
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Self { by, input, properties }
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self::new(input, self.by)
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }
}

impl DisplayAs for DivisibleExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "DivisibleExec: by={}", self.by)
    }
}

millpond::device_node!(DivisibleExec, {
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let by = self.by;
        let rows = self.input.execute(partition, context)?.map(move |batch| rows_that_divide(&batch?, by));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
});

/// The rows of `batch` whose first number is divisible by `by`.
fn rows_that_divide(batch: &RecordBatch, by: u8) -> Result<RecordBatch> {
    let first = batch.column(0);
    let number = |value: u8| ScalarValue::UInt8(Some(value)).cast_to(first.data_type())?.to_scalar();
    let rest = rem(first, &number(by)?)?;
    Ok(filter_record_batch(batch, &eq(&rest, &number(0)?)?)?)
}

/// The device form of [`DivisibleExec`].
#[derive(Debug, Clone)]
pub struct DeviceDivisibleExec {
    by: u8,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DeviceDivisibleExec {
    fn new(input: Arc<dyn ExecutionPlan>, by: u8) -> Self {
        let properties = millpond::plan::node::properties(input.schema(), None);
        Self { by, input, properties }
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, ..self.clone() }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }
}

impl DisplayAs for DeviceDivisibleExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "DeviceDivisibleExec: by={}", self.by)
    }
}

millpond::device_node!(DeviceDivisibleExec, execute: refuse);

/// Placement, and conversion to a stage.
#[derive(Debug)]
pub struct Divisible;

impl DeviceOperator for Divisible {
    fn name(&self) -> &'static str {
        "divisible"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        let divisible = node.downcast_ref::<DivisibleExec>()?;
        let input = to.place(&divisible.input);
        Some(input.and_then(|input| to.unary(node, input, |input| judge(node, divisible.by, input, to))))
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        (node.is::<DivisibleExec>() || node.is::<DeviceDivisibleExec>()).then_some(true)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<DeviceDivisibleExec>()
    }
}

/// The device form of `node` over `input`, or the reason against it.
fn judge(
    node: &Arc<dyn ExecutionPlan>,
    by: u8,
    input: &DeviceTree,
    to: &Placing<'_>,
) -> std::result::Result<DeviceTree, Reason> {
    let mut dictionaries = to.lowering();
    let mut lowering = Lowering::new(&input.columns, &mut dictionaries);
    let scope = lowering.scope();
    divides(&mut lowering, &scope, by)?;
    for column in &input.columns {
        column.ty()?;
    }
    let plan = Arc::new(DeviceDivisibleExec::new(Arc::clone(&input.plan), by));
    Ok(DeviceTree { plan, cpu: Arc::clone(node), row_limit: None, sorted: false, ..input.clone() })
}

/// Whether the first column of a row is divisible by `by`.
fn divides(lowering: &mut Lowering<'_>, scope: &Scope, by: u8) -> std::result::Result<NodeId, Reason> {
    let refused = |why: String| Reason::ExprUnsupported { expr: format!("divisible by {by}"), why };
    let first = scope.column(0)?;
    if !first.data_type.is_integer() {
        return Err(refused(format!("the first column is {}, which is no integer", first.data_type)));
    }
    let ty = Ty::new(lowering.graph.ty(first.node).repr);
    // A parameter, so that one kernel serves every `by`.
    let by = lowering.slot(ty.within(1, MOST.into()), Literal::Int(by.into()));
    let zero = lowering.graph.integer(0, ty.repr);
    let invalid = |error: GraphError| refused(error.to_string());
    let rest = lowering.graph.arithmetic(Arithmetic::Remainder, first.node, by, Overflow::Fail).map_err(invalid)?;
    lowering.graph.compare(Comparison::Equal, rest, zero).map_err(invalid)
}

impl ToSegments for Divisible {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        into: &mut Segments<'_>,
    ) -> Option<std::result::Result<Open, EngineError>> {
        let by = node.downcast_ref::<DeviceDivisibleExec>()?.by;
        Some(into.open_input(node, false).map(|open| open.with(DivisibleStage { by })))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        Some(a.downcast_ref::<DeviceDivisibleExec>()?.by == b.downcast_ref::<DeviceDivisibleExec>()?.by)
    }
}

/// Stage that keeps rows whose first number is divisible by `by`.
#[derive(Debug)]
struct DivisibleStage {
    by: u8,
}

impl Stage for DivisibleStage {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> std::result::Result<(), Reason> {
        segment.with_filters(|lowering, scope, filters| {
            filters.push(divides(lowering, scope, self.by)?);
            Ok(())
        })
    }

    fn on_cpu(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        rows_that_divide(batch, self.by)
    }
}
