//! `nullif` of structures, lists and maps: DataFusion does not replace equal values by NULL.
//!
//! ```text
//!   nullif(a, b)  ─►  CASE WHEN a = b THEN NULL ELSE a END
//! ```
//!
//! Left   unchanged: volatile arguments, because CASE would evaluate them twice.

use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, when};
use datafusion::scalar::ScalarValue;

use crate::expr::builtin::is_datafusions_scalar;

/// True for a node with such a call.
pub(super) fn is_in(node: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    node.apply_expressions(|expr| {
        if expr.exists(|part| Ok(is_named(part)))? {
            let schema = merge_schema(&node.inputs());
            found |= expr.exists(|part| Ok(is_nested(part, &schema)))?;
        }
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

fn is_named(part: &Expr) -> bool {
    matches!(part, Expr::ScalarFunction(call)
        if call.func.name() == "nullif" && call.args.len() == 2 && is_datafusions_scalar(&call.func))
}

fn is_nested(part: &Expr, schema: &DFSchema) -> bool {
    is_named(part) && !part.is_volatile() && part.get_type(schema).is_ok_and(|of| of.is_nested())
}

/// Rewrites the `nullif` calls of a node on nested values to CASE.
pub(super) fn as_case(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !is_in(&node)? {
        return Ok(Transformed::no(node));
    }
    let schema = merge_schema(&node.inputs());
    let names = NamePreserver::new(&node);
    node.map_expressions(|expr| {
        let name = names.save(&expr);
        let expr = expr.transform_up(|part| {
            if !is_nested(&part, &schema) {
                return Ok(Transformed::no(part));
            }
            let of = part.get_type(&schema)?;
            let Expr::ScalarFunction(ScalarFunction { args, .. }) = &part else { return Ok(Transformed::no(part)) };
            let null = Expr::Literal(ScalarValue::try_from(&of)?, None);
            Ok(Transformed::yes(when(args[0].clone().eq(args[1].clone()), null).otherwise(args[0].clone())?))
        })?;
        Ok(expr.update_data(|expr| name.restore(expr)))
    })
}
