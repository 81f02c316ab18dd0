//! Sources of rows.

pub(crate) mod bounds;
mod codes;
pub(crate) mod computed;
mod extent;
pub(crate) mod filtered;
mod node;
mod parquet;
pub(crate) mod reset;
pub(crate) mod same;
pub(crate) mod stored;
mod upload;

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::ExecutionPlan;

pub use node::SourceExec;
pub(crate) use node::statistics;

/// True for nodes that bring rows to the device.
pub fn is_source(node: &dyn ExecutionPlan) -> bool {
    node.is::<SourceExec>()
}

/// True for scans of Parquet files by the engine's own decoder.
pub fn is_parquet_scan(node: &dyn ExecutionPlan) -> bool {
    node.downcast_ref::<SourceExec>().is_some_and(SourceExec::is_parquet)
}

/// Sum of a [`metric`](crate::metric) over the Parquet scans of an executed plan.
pub fn counted(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let mut sum = 0;
    let walked = plan.apply(|node| {
        if is_parquet_scan(node.as_ref()) {
            sum += node.metrics().and_then(|metrics| metrics.sum_by_name(name)).map_or(0, |value| value.as_usize());
        }
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "the walk above returns no error");
    sum
}
