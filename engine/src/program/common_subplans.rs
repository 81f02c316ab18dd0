//! Aggregations that a plan contains twice, as for a CTE with two readers, and computes once.
//!
//!   WITH c AS (… GROUP BY k) SELECT … FROM c a JOIN c b …      segment 0   scan ─ groups
//!                                                              segment 1   groups ─ finish ─ build
//!                                                              segment 2   groups ─ finish ─ probe
//!
//! Same     two subtrees whose nodes have equal expressions and read the same files, or the same batches in memory.
//! Filters  that a join pushes into scans at run time only drop rows that this join drops anyway. Filters of a join
//!          inside the subtree are accepted; a filter of another join changes the subtree's rows.
//! Else     subtrees that are not known to be equal are computed twice.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::ExecutionPlan;

use crate::program::contract::Operators;

/// Whether `first`, which runs, produces the rows that `second` needs.
pub(crate) fn is_same(first: &Arc<dyn ExecutionPlan>, second: &Arc<dyn ExecutionPlan>, operators: &Operators) -> bool {
    if first.name() != second.name() {
        return false;
    }
    let mut own = HashSet::new();
    let walked = first.apply(|node| {
        own.extend(operators.iter().find_map(|operator| operator.filter_of_scans(node.as_ref())));
        Ok(TreeNodeRecursion::Continue)
    });
    walked.is_ok() && same(first, second, operators, &own)
}

fn same(a: &Arc<dyn ExecutionPlan>, b: &Arc<dyn ExecutionPlan>, operators: &Operators, own: &HashSet<u64>) -> bool {
    if a.name() != b.name() || a.schema() != b.schema() {
        return false;
    }
    if let Some(same) = operators.iter().find_map(|operator| operator.reads_same(a.as_ref(), b.as_ref(), own)) {
        return same;
    }
    let alike = operators.iter().find_map(|operator| operator.computes_same(a.as_ref(), b.as_ref()));
    let (a, b) = (a.children(), b.children());
    alike == Some(true) && a.len() == b.len() && a.into_iter().zip(b).all(|(a, b)| same(a, b, operators, own))
}
