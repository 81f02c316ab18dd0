//! Greatest and least float of a group. DataFusion keeps a NaN only until another value arrives, and starts with the
//! greatest finite number, which infinities do not replace.
//!
//!   max(f) … GROUP BY k  ─►  the same function, whose groups use the total order, as it does without groups

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};

use crate::expr::builtin::is_own_aggregate;
use crate::expr::mended::{self, is_mended};

/// True for a grouped aggregation that computes the greatest or the least float.
pub(super) fn is_in(node: &LogicalPlan) -> Result<bool> {
    let LogicalPlan::Aggregate(aggregate) = node else { return Ok(false) };
    if aggregate.group_expr.is_empty() {
        return Ok(false);
    }
    let mut found = false;
    for expr in &aggregate.aggr_expr {
        found |= expr.exists(|part| Ok(asks(part, &aggregate.input)))?;
    }
    Ok(found)
}

fn asks(part: &Expr, input: &LogicalPlan) -> bool {
    let Expr::AggregateFunction(AggregateFunction { func, params }) = part else { return false };
    matches!(func.name(), "max" | "min")
        && is_own_aggregate(func)
        && !is_mended(func)
        && params.args.first().is_some_and(|arg| arg.get_type(input.schema().as_ref()).is_ok_and(|of| of.is_floating()))
}

/// Replaces the functions of the node by ones that use the total order of floats.
pub(super) fn ordered(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !is_in(&node)? {
        return Ok(Transformed::no(node));
    }
    let LogicalPlan::Aggregate(aggregate) = &node else { return Ok(Transformed::no(node)) };
    let input = Arc::clone(&aggregate.input);
    node.map_expressions(|expr| {
        expr.transform_up(|part| match part {
            part if !asks(&part, &input) => Ok(Transformed::no(part)),
            Expr::AggregateFunction(mut function) => {
                function.func = mended::ordered(function.func);
                Ok(Transformed::yes(Expr::AggregateFunction(function)))
            }
            part => Ok(Transformed::no(part)),
        })
    })
}
