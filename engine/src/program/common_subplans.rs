//! Aggregations that are asked for twice, as by a CTE with two readers, and found once.
//!
//!   WITH c AS (… GROUP BY k) SELECT … FROM c a JOIN c b …      segment 0   scan ─ groups
//!                                                              segment 1   groups ─ finish ─ build
//!                                                              segment 2   groups ─ finish ─ probe
//!
//! Same     two subtrees whose nodes have equal expressions and read the same files, or the same batches in memory.
//! Filters  that a join gives to scans while it runs say no more than which rows that join drops anyway. What a join of the
//!          subtree gives to its own scans may stay; with one of another join its rows are not those of the other subtree.
//! Else     whatever is not known to be the same is found twice.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::ExecutionPlan;

use crate::program::contract::Operators;

/// Whether the rows of `first`, which runs, are those that `second` asks for.
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
