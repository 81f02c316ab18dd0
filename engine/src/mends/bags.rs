//! EXCEPT ALL and INTERSECT ALL: duplicate rows are counted.
//!
//! ```text
//!   a: x x x y    EXCEPT ALL    b: x ─► x x y          the first x of a matches the x of b, the others match none
//!
//!   SemiJoin or AntiJoin: a = b, NULLs equal ─► Project a's columns
//!     a                                           SemiJoin or AntiJoin: copy = copy, a = b, NULLs equal
//!     b                                             a, with copy: the number of each row among its equals
//!                                                   b, with copy
//! ```
//!
//! DataFusion alone keeps, or removes, all rows that are equal to a row of the other side.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, JoinConstraint, JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{Expr, ExprFunctionExt, Join, LogicalPlan, LogicalPlanBuilder, Projection};

use crate::mends::zeros;

/// Column that numbers the rows among their equals.
const COPY: &str = "(copy)";

/// True for the join that DataFusion's builder creates for EXCEPT ALL or INTERSECT ALL. The forms without ALL have a
/// DISTINCT below; if these do too, each row is the first of its equals.
pub(super) fn is_bag(node: &LogicalPlan) -> bool {
    let LogicalPlan::Join(join) = node else { return false };
    let pairs_all = || {
        let (left, right) = (join.left.schema().columns(), join.right.schema().columns());
        let is = |expr: &Expr, column: &Column| matches!(expr, Expr::Column(found) if found == column);
        let pairs = || join.on.iter().zip(left.iter().zip(&right));
        join.on.len() == left.len()
            && left.len() == right.len()
            && pairs().all(|((l, r), (left, right))| is(l, left) && is(r, right))
    };
    matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti)
        && join.null_equality == NullEquality::NullEqualsNull
        && join.join_constraint == JoinConstraint::On
        && join.filter.is_none()
        && !join.on.is_empty()
        && !matches!(join.left.as_ref(), LogicalPlan::Distinct(_))
        && pairs_all()
}

/// Adds the row numbers among equals to the join; returns any other node unchanged.
pub(super) fn counted(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !is_bag(&node) {
        return Ok(Transformed::no(node));
    }
    let LogicalPlan::Join(join) = node else { return Ok(Transformed::no(node)) };
    let columns = |side: &LogicalPlan| side.schema().columns().into_iter().map(Expr::Column).collect::<Vec<_>>();
    let (left, left_copy) = numbered(Arc::unwrap_or_clone(join.left), "(left)")?;
    let (right, right_copy) = numbered(Arc::unwrap_or_clone(join.right), "(right)")?;
    let on = std::iter::once((Expr::Column(left_copy.clone()), Expr::Column(right_copy))).chain(join.on).collect();
    let mut kept = columns(&left);
    kept.retain(|column| !matches!(column, Expr::Column(column) if *column == left_copy));
    let counted = Join::try_new(
        Arc::new(left),
        Arc::new(right),
        on,
        None,
        join.join_type,
        join.join_constraint,
        join.null_equality,
        false,
    )?;
    let projection = Projection::try_new_with_schema(kept, Arc::new(LogicalPlan::Join(counted)), join.schema)?;
    Ok(Transformed::yes(LogicalPlan::Projection(projection)))
}

/// A side with its rows numbered among their equals, and the column of the numbers.
fn numbered(side: LogicalPlan, qualifier: &str) -> Result<(LogicalPlan, Column)> {
    let columns: Vec<Expr> = side.schema().columns().into_iter().map(Expr::Column).collect();
    let equal = columns.iter().map(|column| zeros::one_zero(column.clone(), side.schema()));
    let number = row_number().partition_by(equal.collect::<Result<_>>()?).build()?;
    let with_number = LogicalPlanBuilder::from(side).window([number])?.build()?;
    let number = with_number.schema().columns().pop().map(Expr::Column);
    let number = number.map(|number| number.alias_qualified(Some(qualifier), COPY));
    let projection = Projection::try_new(columns.into_iter().chain(number).collect(), Arc::new(with_number))?;
    Ok((LogicalPlan::Projection(projection), Column::new(Some(qualifier), COPY)))
}
