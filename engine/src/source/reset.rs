//! Resets a CPU plan for another execution.
//!
//!   TopK ─ dynamic filter ─► scan        first execution: the filter ends as `x < 7`, or as `false`
//!                                        second execution: it has to start as `true`, or the scan skips rows
//!
//! DataFusion's own reset creates new filters for operators, but leaves the old ones, in their final state, in the
//! scans.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::physical_expr::expressions::{DynamicFilterPhysicalExpr, lit};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;

use crate::plan::node::REPLACE;
use crate::store::MadeSource;

/// Resets an executed plan. The dynamic filters of its scans pass every row until an operator updates them.
pub(crate) fn ready_again(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.apply(|node| lets_all_pass(node.as_ref()))?;
    reset_plan_states(plan.transform_up(with_its_own).data()?)
}

/// Resets a plan except for the subtrees for which `stays` returns true, which can be executed repeatedly.
pub(crate) fn ready_again_above(
    plan: &Arc<dyn ExecutionPlan>,
    stays: fn(&dyn ExecutionPlan) -> bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    if stays(plan.as_ref()) {
        return Ok(Arc::clone(plan));
    }
    lets_all_pass(plan.as_ref())?;
    let inputs = plan.children().into_iter().map(|input| ready_again_above(input, stays)).collect::<Result<_>>()?;
    with_its_own(Arc::clone(plan).replace_children(inputs, REPLACE)?).data()?.reset_state()
}

/// Resets the dynamic filters of a node to pass every row.
fn lets_all_pass(node: &dyn ExecutionPlan) -> Result<TreeNodeRecursion> {
    node.apply_expressions(&mut |expression| {
        expression.apply(|part| {
            if let Some(filter) = part.downcast_ref::<DynamicFilterPhysicalExpr>() {
                filter.update(lit(true))?;
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })
}

/// An aggregate keeps the extremes of the previous execution next to its filter: it gets a new filter that no scan
/// contains. A scan of a kept table counts its downloads per run, so it is copied.
fn with_its_own(node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    if let Some(scan) = MadeSource::as_new(node.as_ref()) {
        return Ok(Transformed::yes(scan));
    }
    let filled =
        node.downcast_ref::<AggregateExec>().and_then(|of| Some((of, of.dynamic_expressions_produced().pop()?)));
    let Some((aggregate, filter)) = filled else { return Ok(Transformed::no(node)) };
    let columns = filter.children().into_iter().map(Arc::clone).collect();
    let own = Arc::new(DynamicFilterPhysicalExpr::new(columns, lit(true)));
    Ok(Transformed::yes(Arc::new(aggregate.clone().with_dynamic_filter_expr(own)?)))
}
