//! A plan on the CPU, made ready to be executed again.
//!
//!   TopK ─ dynamic filter ─► scan        first execution: the filter ends as `x < 7`, or as `false`
//!                                        second one: it has to begin as `true`, or the scan leaves rows out
//!
//! DataFusion's own reset gives operators new filters, and leaves the old ones, as they ended, in the scans that hold them.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::physical_expr::expressions::{DynamicFilterPhysicalExpr, lit};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;

use crate::node::REPLACE;
use crate::store::MadeSource;

/// `plan`, as it was before it was executed. Filters that its scans hold let every row pass, until somebody fills them again.
pub(crate) fn ready_again(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.apply(|node| lets_all_pass(node.as_ref()))?;
    reset_plan_states(plan.transform_up(with_its_own).data()?)
}

/// The same, but for subtrees that `stay` as they are, since they can run again by themselves.
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

/// The filters that a node holds let every row pass.
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

/// An aggregate remembers the least and the greatest value of the execution before beside its filter: it gets a filter that no
/// scan holds. A scan of a made table counts what each run of it brings home.
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
