//! TIMESTAMP literals of years outside the range of nanoseconds: microseconds, which PostgreSQL and DuckDB use for all
//! timestamps.
//!
//! ```text
//!   TIMESTAMP '2024-01-01'  ─► nanoseconds, as DataFusion plans it
//!   TIMESTAMP '9999-12-31'  ─► microseconds                               DataFusion alone: an error
//! ```

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Cast, Expr};
use datafusion::logical_expr::{LogicalPlan, lit};

/// The cast to microseconds that replaces a cast out of the range of nanoseconds.
pub(super) fn reaching(part: &Expr) -> Option<Expr> {
    let Expr::Cast(cast) = part else { return None };
    let (Expr::Literal(text, _), DataType::Timestamp(TimeUnit::Nanosecond, zone)) =
        (cast.expr.as_ref(), cast.field.data_type())
    else {
        return None;
    };
    text.try_as_str().flatten()?;
    let micros = DataType::Timestamp(TimeUnit::Microsecond, zone.clone());
    let is_far = text.cast_to(cast.field.data_type()).is_err() && text.cast_to(&micros).is_ok();
    is_far.then(|| Expr::Cast(Cast::new(Box::new(lit(text.clone())), micros)))
}

/// True for a node with such a literal.
pub(super) fn is_in(node: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    node.apply_expressions(|expr| {
        expr.apply(|part| {
            found |= reaching(part).is_some();
            Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })
    })?;
    Ok(found)
}

/// Converts such literals of a node to microseconds.
pub(super) fn reached(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !is_in(&node)? {
        return Ok(Transformed::no(node));
    }
    let node = node.map_expressions(|expr| {
        expr.transform_up(|part| {
            Ok(match reaching(&part) {
                Some(far) => Transformed::yes(far),
                None => Transformed::no(part),
            })
        })
    })?;
    node.map_data(LogicalPlan::recompute_schema)
}
