//! A walk through a logical plan and its subqueries.

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::{Expr, LogicalPlan};

/// True if `is` holds for a node of the plan or of one of its subqueries. Nodes are visited from the top down; the flag
/// says whether the node's expressions contain one of `parts`. Each expression is visited once: DataFusion's own walk
/// needs a second pass for subqueries.
pub(crate) fn any(
    plan: &LogicalPlan,
    parts: fn(&Expr) -> bool,
    is: &mut dyn FnMut(&LogicalPlan, bool) -> Result<bool>,
) -> Result<bool> {
    let (mut has_parts, mut subqueries) = (false, vec![]);
    plan.apply_expressions(|expr| {
        each_part(expr, |part| {
            has_parts |= parts(part);
            match part {
                Expr::Exists(Exists { subquery, .. })
                | Expr::InSubquery(InSubquery { subquery, .. })
                | Expr::SetComparison(SetComparison { subquery, .. })
                | Expr::ScalarSubquery(subquery) => subqueries.push(Arc::clone(&subquery.subquery)),
                _ => {}
            }
        })?;
        Ok(TreeNodeRecursion::Continue)
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

/// Calls `see` with each part of an expression, parents first. DataFusion's own walk checks the stack at each part;
/// this one keeps deep parts on a stack of its own.
///
/// # Errors
/// DataFusion's.
pub(crate) fn each_part<'e>(expr: &'e Expr, mut see: impl FnMut(&'e Expr)) -> Result<()> {
    let mut deep = vec![];
    shallow(expr, 0, &mut see, &mut deep)?;
    while let Some(expr) = deep.pop() {
        shallow(expr, 0, &mut see, &mut deep)?;
    }
    Ok(())
}

/// Maximum recursion depth within an expression.
const SHALLOW: usize = 32;

fn shallow<'e>(expr: &'e Expr, level: usize, see: &mut impl FnMut(&'e Expr), deep: &mut Vec<&'e Expr>) -> Result<()> {
    if level == SHALLOW {
        deep.push(expr);
        return Ok(());
    }
    see(expr);
    if !matches!(expr, Expr::Column(_) | Expr::Literal(..)) {
        expr.apply_children(|child| {
            shallow(child, level + 1, see, deep)?;
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    Ok(())
}
