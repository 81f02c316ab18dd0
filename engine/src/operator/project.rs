//! Computes columns from each row.
//!
//!   pipeline   … ──► [ expressions, shared subexpressions once ] ──► sink
//!
//! NULL     as each expression says.
//! Order    input order is kept; over a sort the output is sorted too.
//! Memory   none of its own: it is inlined into the pipeline that contains it.

use std::fmt;
use std::sync::Arc;

use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

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
