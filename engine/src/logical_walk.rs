//! A walk through a logical plan and its subqueries.

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::{Expr, LogicalPlan};

/// True if `is` is true of a node of the plan, or of one of its subqueries. It is handed each node, from the top down, and whether a part
/// of the node's expressions is one of `parts`. Each expression is walked through once: DataFusion's own walk needs one for subqueries.
pub(crate) fn any(
    plan: &LogicalPlan,
    parts: fn(&Expr) -> bool,
    is: &mut dyn FnMut(&LogicalPlan, bool) -> Result<bool>,
) -> Result<bool> {
    let (mut has_parts, mut subqueries) = (false, vec![]);
    plan.apply_expressions(|expr| {
        expr.apply(|part| {
            has_parts |= parts(part);
            match part {
                Expr::Exists(Exists { subquery, .. })
                | Expr::InSubquery(InSubquery { subquery, .. })
                | Expr::SetComparison(SetComparison { subquery, .. })
                | Expr::ScalarSubquery(subquery) => subqueries.push(Arc::clone(&subquery.subquery)),
                _ => {}
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    if is(plan, has_parts)? {
        return Ok(true);
    }
    for subquery in subqueries {
        if any(&subquery, parts, is)? {
            return Ok(true);
        }
    }
    let mut found = false;
    plan.apply_children(|input| {
        found = any(input, parts, is)?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}
