//! Computes columns from each row.
//!
//!   pipeline   … ──► [ expressions, shared subexpressions once ] ──► sink
//!
//! NULL     as in each expression.
//! Order    input order is kept; over a sort the output is sorted too.
//! Memory   none of its own: it is inlined into the pipeline that contains it.
//! Stands for ProjectionExec over a device node; over a CPU node only if it computes something from rows.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::projection::{ProjectionExec, all_columns};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::column::ColumnInfo;
use crate::error::EngineError;
use crate::error::reason::Reason;
use crate::expr::{Dictionaries, Lowering, Scope};
use crate::operator::construct;
use crate::placement::contract::{DeviceOperator, DeviceTree, Placed};
use crate::placement::walk::Placing;
use crate::program::contract::{Stage, ToSegments};
use crate::program::lower::SegmentLowering;
use crate::program::segments::{Open, Segments};

/// A projection on the device.
#[derive(Debug, Clone)]
pub struct DeviceProjectExec {
    expressions: Vec<(Arc<dyn PhysicalExpr>, String)>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DeviceProjectExec {
    /// The device's form of `projection`, over `input`; `sorted` is the order it keeps, if its input has one.
    pub fn new(projection: &ProjectionExec, input: Arc<dyn ExecutionPlan>, sorted: Option<LexOrdering>) -> Self {
        Self {
            expressions: named(projection),
            input,
            properties: crate::plan::node::properties(projection.schema(), sorted),
        }
    }

    /// A projection to `schema`, over `input`, without an order.
    pub(crate) fn of(
        expressions: Vec<(Arc<dyn PhysicalExpr>, String)>,
        schema: SchemaRef,
        input: Arc<dyn ExecutionPlan>,
    ) -> Self {
        Self { expressions, input, properties: crate::plan::node::properties(schema, None) }
    }

    /// The expressions with their names.
    pub fn columns(&self) -> &[(Arc<dyn PhysicalExpr>, String)] {
        &self.expressions
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, ..self.clone() }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.expressions.iter().map(|(e, _)| Arc::clone(e)).collect()
    }
}

impl DisplayAs for DeviceProjectExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let columns = crate::plan::node::named(&self.expressions);
        match t {
            DisplayFormatType::TreeRender => write!(f, "expr={columns}"),
            _ => write!(f, "DeviceProjectExec: expr=[{columns}]"),
        }
    }
}

crate::plan::node::device_node!(DeviceProjectExec, execute: refuse);

impl DeviceOperator for Project {
    fn name(&self) -> &'static str {
        "project"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        let Some(projection) = node.downcast_ref::<ProjectionExec>() else { return place_scan(node, to) };
        let whole = construct::inlined(projection);
        let (node, projection) = match &whole {
            Some(whole) => (whole, whole.downcast_ref::<ProjectionExec>()?),
            None => (node, projection),
        };
        Some(to.place(projection.input()).and_then(|child| place(node, projection, child, to)))
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        if let Some(project) = node.downcast_ref::<DeviceProjectExec>() {
            return Some(project.columns().iter().any(|(expression, _)| !expression.is::<Column>()));
        }
        node.downcast_ref::<ProjectionExec>().map(|projection| !all_columns(projection.expr()))
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<DeviceProjectExec>()
    }
}

/// Places a scan that computes: the device computes, over the columns that the scan reads, if it can. `None` for other
/// nodes.
fn place_scan(node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
    let apart = to.computed_apart(node)?;
    let projection = apart.downcast_ref::<ProjectionExec>()?;
    let place = |child: Placed| match to.tree(&child).and_then(|tree| judge(node, projection, &child, tree, to)) {
        Ok(tree) => Placed::Device(tree),
        // The scan computes.
        Err(reason) => Placed::Host { plan: Arc::clone(node), pending: vec![reason] },
    };
    Some(to.place(projection.input()).map(place))
}

fn place(
    node: &Arc<dyn ExecutionPlan>,
    projection: &ProjectionExec,
    child: Placed,
    to: &Placing<'_>,
) -> Result<Placed> {
    let works = to.counts(node.as_ref());
    // A projection that only selects columns, or computes a single row, is no reason to move rows.
    if !works && matches!(child, Placed::Host { .. }) {
        return to.stay(node, vec![child], None);
    }
    match to.tree(&child).and_then(|tree| judge(node, projection, &child, tree, to)) {
        Ok(tree) => Ok(Placed::Device(tree)),
        Err(reason) => to.stay(node, vec![child], works.then_some(reason)),
    }
}

/// The device's form of `projection`, which is `node`, over `tree`, which is `child` on the device.
fn judge(
    node: &Arc<dyn ExecutionPlan>,
    projection: &ProjectionExec,
    child: &Placed,
    tree: DeviceTree,
    to: &Placing<'_>,
) -> Result<DeviceTree, Reason> {
    let sorted = node.properties().output_ordering().filter(|_| tree.sorted).cloned();
    let columns = columns(&named(projection), &tree.columns, &mut to.lowering());
    let (plan, columns): (Arc<dyn ExecutionPlan>, _) = match columns {
        Ok(columns) => (Arc::new(DeviceProjectExec::new(projection, Arc::clone(&tree.plan), sorted)), columns),
        // Nested values that are constructed from several columns are in no dictionary.
        Err(_) => construct::judge(projection, &tree, sorted, to)?,
    };
    let tree = DeviceTree { plan, cpu: Arc::clone(node), columns, ..tree };
    match child {
        // A projection keeps the number and the order of rows, so limits and sorts below it do not matter.
        Placed::Device(_) => Ok(tree),
        Placed::Host { .. } => to.restore_order(node, tree),
    }
}

/// The expressions of a projection with their names.
fn named(projection: &ProjectionExec) -> Vec<(Arc<dyn PhysicalExpr>, String)> {
    projection.expr().iter().map(|e| (Arc::clone(&e.expr), e.alias.clone())).collect()
}

/// The output columns of a projection to `expressions`.
pub(crate) fn columns(
    expressions: &[(Arc<dyn PhysicalExpr>, String)],
    input: &[ColumnInfo],
    dictionaries: &mut Dictionaries,
) -> Result<Vec<ColumnInfo>, Reason> {
    let mut lowering = Lowering::new(input, dictionaries);
    let scope = lowering.scope();
    let column = |(expression, name): &(Arc<dyn PhysicalExpr>, String)| {
        let value = lowering.carried(expression, &scope)?;
        Ok(lowering.info(name, &value))
    };
    expressions.iter().map(column).collect()
}

/// Projections: their placement, and their stages.
#[derive(Debug)]
pub(crate) struct Project;

impl ToSegments for Project {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let project = node.downcast_ref::<DeviceProjectExec>()?;
        // It keeps the number of rows: a limit above it may act below it.
        let open = into.open_input(node, top);
        Some(open.map(|open| open.with(ProjectStage(project.columns().to_vec()))))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        Some(a.downcast_ref::<DeviceProjectExec>()?.columns() == b.downcast_ref::<DeviceProjectExec>()?.columns())
    }
}

/// Expressions with their names.
#[derive(Debug)]
struct ProjectStage(Vec<(Arc<dyn PhysicalExpr>, String)>);

impl Stage for ProjectStage {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<(), Reason> {
        let (lowering, scope) = segment.expressions();
        let mut values = Vec::new();
        for (expr, name) in &self.0 {
            let value = lowering.carried(expr, scope)?;
            let data_type = value.data_type.clone();
            values.push((name.clone(), Ok(value), data_type));
        }
        segment.scope = Scope::new(values);
        Ok(())
    }

    fn selection(&self) -> Option<Vec<usize>> {
        self.0.iter().map(|(expr, _)| expr.downcast_ref::<Column>().map(Column::index)).collect()
    }

    fn on_cpu(&self, batch: &RecordBatch) -> datafusion::error::Result<RecordBatch> {
        let mut fields = Vec::with_capacity(self.0.len());
        let mut columns = Vec::with_capacity(self.0.len());
        for (expr, name) in &self.0 {
            let array = expr.evaluate(batch)?.into_array(batch.num_rows())?;
            fields.push(Field::new(name, array.data_type().clone(), true));
            columns.push(array);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?)
    }
}
