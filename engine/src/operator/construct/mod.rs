//! Constructs lists, structures and maps from several columns of a row.
//!
//!   ProjectionExec: id, array_append(l, x)   ─►   DeviceConstructExec: id@0, array_append(l@1, x@2)
//!
//!   extent ─► id, item count of each row ─► running sums ─► a row for each item ─► items
//!                                                 └─► words: start and count of a row's items
//!
//! Words    are carried like any column; items stay in place, until both leave and the host assembles them
//!          (decisions/020).
//! NULL     as in each function.
//! Order    input order is kept; over a sort the output is sorted too.
//! Memory   see `run`.
//! Waits    for the number of items of each extent, in a first run.
//! Stands for ProjectionExec, if one of its expressions constructs such a value from more than one dictionary.

mod lower;
mod run;

use std::fmt;
use std::sync::Arc;

use datafusion::common::internal_err;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use self::lower::ConstructSink;
use crate::error::EngineError;
use crate::error::reason::Reason;
use crate::expr::Lowering;
use crate::placement::contract::{DeviceOperator, DeviceTree, Placed};
use crate::placement::walk::Placing;
use crate::program::contract::ToSegments;
use crate::program::segments::{Open, Segments};

/// A projection that constructs nested values.
#[derive(Debug, Clone)]
pub struct DeviceConstructExec {
    sink: ConstructSink,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DeviceConstructExec {
    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, ..self.clone() }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.sink.columns().iter().map(|(expr, _)| Arc::clone(expr)).collect()
    }
}

impl DisplayAs for DeviceConstructExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let columns = crate::plan::node::named(self.sink.columns());
        match t {
            DisplayFormatType::TreeRender => write!(f, "expr={columns}"),
            _ => write!(f, "DeviceConstructExec: expr=[{columns}]"),
        }
    }
}

crate::plan::node::device_node!(DeviceConstructExec, execute: refuse);

/// The device's form of `projection` over `tree`, which constructs a nested value from several columns.
///
/// # Errors
/// Why one of its expressions has no device form.
pub(crate) fn judge(
    projection: &ProjectionExec,
    tree: &DeviceTree,
    sorted: Option<LexOrdering>,
    to: &Placing<'_>,
) -> std::result::Result<(Arc<dyn ExecutionPlan>, Vec<crate::column::ColumnInfo>), Reason> {
    let named = projection.expr().iter().map(|one| (Arc::clone(&one.expr), one.alias.clone())).collect();
    let sink = ConstructSink::new(named);
    let columns = {
        let mut dictionaries = to.lowering();
        let mut lowering = Lowering::new(&tree.columns, &mut dictionaries);
        let scope = lowering.scope();
        sink.outputs(&mut lowering, &scope)?.into_iter().map(|output| output.info).collect()
    };
    let properties = crate::plan::node::properties(projection.schema(), sorted);
    Ok((Arc::new(DeviceConstructExec { sink, input: Arc::clone(&tree.plan), properties }), columns))
}

/// Merges a projection with the one below it, if an expression reads a nested value that the lower one constructs: a
/// constructed value cannot be read again. DataFusion splits projections so for common expressions. `None` if there is
/// nothing to merge.
pub(crate) fn inlined(projection: &ProjectionExec) -> Option<Arc<dyn ExecutionPlan>> {
    let below = projection.input().downcast_ref::<ProjectionExec>()?;
    let makes = |column: &Column| below.expr().get(column.index()).is_some_and(|of| lower::makes(&of.expr));
    let reads = |of: &ProjectionExpr| !of.expr.is::<Column>() && collect_columns(&of.expr).iter().any(makes);
    // A volatile expression is evaluated once, in the lower projection.
    let is_drawn = |of: &ProjectionExpr| is_volatile(&of.expr);
    if !projection.expr().iter().any(reads) || below.expr().iter().any(is_drawn) {
        return None;
    }
    let mut whole = vec![];
    for of in projection.expr() {
        let inlined = Arc::clone(&of.expr).transform_down(|part| match part.downcast_ref::<Column>() {
            Some(column) => match below.expr().get(column.index()) {
                Some(own) => Ok(Transformed::new(Arc::clone(&own.expr), true, TreeNodeRecursion::Jump)),
                None => internal_err!("a projection reads column {} of another", column.index()),
            },
            None => Ok(Transformed::no(part)),
        });
        whole.push(ProjectionExpr { expr: inlined.data().ok()?, alias: of.alias.clone() });
    }
    Some(Arc::new(ProjectionExec::try_new(whole, Arc::clone(below.input())).ok()?))
}

/// Construction: its sink. The projection that it replaces places it.
#[derive(Debug)]
pub(crate) struct Construct;

impl DeviceOperator for Construct {
    fn name(&self) -> &'static str {
        "construct"
    }

    fn place(&self, _node: &Arc<dyn ExecutionPlan>, _to: &Placing<'_>) -> Option<Result<Placed>> {
        None
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        self.is_device_node(node).then_some(true)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<DeviceConstructExec>()
    }
}

impl ToSegments for Construct {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        into: &mut Segments<'_>,
    ) -> Option<std::result::Result<Open, EngineError>> {
        let construct = node.downcast_ref::<DeviceConstructExec>()?;
        Some(into.open_input(node, false).map(|open| Open::reading(into.close(open, construct.sink.clone()))))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        let (a, b) = (a.downcast_ref::<DeviceConstructExec>()?, b.downcast_ref::<DeviceConstructExec>()?);
        Some(a.sink.columns() == b.sink.columns())
    }
}
