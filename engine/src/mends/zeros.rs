//! DISTINCT aggregates of floats: -0.0 is equal to 0.0, and one of the values that are told apart. DataFusion tells them apart by their bits.
//!
//!   count(DISTINCT f)  ─►  count(DISTINCT f + 0.0)          which is 0.0 for both zeros, and f for any other
//!
//! Names of columns stay. Windows, too.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition, lit};

/// True for a node with a DISTINCT aggregate of floats.
pub(super) fn is_in(node: &LogicalPlan) -> Result<bool> {
    if !matches!(node, LogicalPlan::Aggregate(_) | LogicalPlan::Window(_)) {
        return Ok(false);
    }
    let mut found = false;
    node.apply_expressions(|expr| {
        let is_distinct = expr.exists(|part| Ok(arguments(part).is_some()))?;
        if is_distinct {
            let schema = merge_schema(&node.inputs());
            found |= expr.exists(|part| Ok(arguments(part).is_some_and(|of| of.iter().any(|one| is_float(one, &schema)))))?;
        }
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// The node with one zero in them.
pub(super) fn as_one(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !is_in(&node)? {
        return Ok(Transformed::no(node));
    }
    let schema = merge_schema(&node.inputs());
    let names = NamePreserver::new(&node);
    node.map_expressions(|expr| {
        let name = names.save(&expr);
        let changed = expr.transform_up(|part| with_one_zero(part, &schema))?;
        Ok(changed.update_data(|expr| name.restore(expr)))
    })
}

/// The arguments of a DISTINCT aggregate.
fn arguments(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::AggregateFunction(AggregateFunction { params, .. }) if params.distinct => Some(&params.args),
        Expr::WindowFunction(window) => match window.as_ref() {
            WindowFunction { fun: WindowFunctionDefinition::AggregateUDF(_), params } if params.distinct => {
                Some(&params.args)
            }
            _ => None,
        },
        _ => None,
    }
}

fn is_float(expr: &Expr, schema: &DFSchema) -> bool {
    expr.get_type(schema).is_ok_and(|of| matches!(of, DataType::Float16 | DataType::Float32 | DataType::Float64))
}

fn with_one_zero(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let added = |args: &mut Vec<Expr>| -> Result<bool> {
        let mut any = false;
        for arg in args.iter_mut().filter(|arg| is_float(arg, schema)) {
            let zero = ScalarValue::new_zero(&arg.get_type(schema)?)?;
            *arg = std::mem::take(arg) + lit(zero);
            any = true;
        }
        Ok(any)
    };
    if arguments(&expr).is_none() {
        return Ok(Transformed::no(expr));
    }
    Ok(match expr {
        Expr::AggregateFunction(mut function) => {
            let any = added(&mut function.params.args)?;
            Transformed::new_transformed(Expr::AggregateFunction(function), any)
        }
        Expr::WindowFunction(mut function) => {
            let any = added(&mut function.params.args)?;
            Transformed::new_transformed(Expr::WindowFunction(function), any)
        }
        other => Transformed::no(other),
    })
}
