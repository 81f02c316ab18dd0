//! Computes columns from each row.
//!
//!   pipeline   … ──► [ expressions, shared subexpressions once ] ──► sink
//!
//! NULL     as each expression says.
//! Order    input order is kept; over a sort the output is sorted too.
//! Memory   none of its own: it is inlined into the pipeline that contains it.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::error::EngineError;
use crate::expr::Scope;
use crate::program::contract::{Cut, Stage};
use crate::program::lower::SegmentLowering;
use crate::program::segments::{Open, Segments};
use crate::reason::Reason;

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
            expressions: projection.expr().iter().map(|e| (Arc::clone(&e.expr), e.alias.clone())).collect(),
            input,
            properties: crate::operator::properties(projection.schema(), sorted),
        }
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
        let columns = crate::operator::aggregate::named(&self.expressions);
        match t {
            DisplayFormatType::TreeRender => write!(f, "expr={columns}"),
            _ => write!(f, "DeviceProjectExec: expr=[{columns}]"),
        }
    }
}

crate::operator::device_node!(DeviceProjectExec, execute: refuse);

/// How projections become stages.
#[derive(Debug)]
pub(crate) struct Project;

impl Cut for Project {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let project = node.downcast_ref::<DeviceProjectExec>()?;
        // It keeps the number of rows: what stops above it may stop below.
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
            let value = lowering.lower(expr, scope)?;
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
