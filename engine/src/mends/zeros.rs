//! The two zeros of floats, where DataFusion tells them apart by their bits: in DISTINCT aggregates, and in long lists of IN.
//!
//!   count(DISTINCT f)         ─►  count(DISTINCT f + 0.0)             which is 0.0 for both zeros, and f for any other
//!   f IN (0.0, 1.0, 2.0, …)   ─►  f IN (0.0, 1.0, 2.0, …, -0.0)
//!
//! Names of columns stay. Windows, too.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{AggregateUDF, Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition, lit};

/// True for a node that asks for one of the zeros.
pub(super) fn is_in(node: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    node.apply_expressions(|expr| {
        let may_ask = |part: &Expr| Ok(arguments(part).is_some() || has_zero(part));
        if expr.exists(may_ask)? {
            let schema = schema_of(node)?;
            found |= expr.exists(|part| Ok(asks(part, &schema)))?;
        }
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

fn schema_of(node: &LogicalPlan) -> Result<DFSchema> {
    match node {
        LogicalPlan::TableScan(scan) => {
            DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())
        }
        node => Ok(merge_schema(&node.inputs())),
    }
}

fn asks(part: &Expr, schema: &DFSchema) -> bool {
    match part {
        Expr::InList(list) => has_zero(part) && is_float(&list.expr, schema),
        part => arguments(part).is_some_and(|of| of.iter().any(|one| is_float(one, schema))),
    }
}

/// True for a list with a zero that DataFusion asks by a table of its values.
fn has_zero(part: &Expr) -> bool {
    matches!(part, Expr::InList(list) if list.list.iter().any(is_zero))
}

/// True for a constant that is zero, of any type.
pub(crate) fn is_zero(item: &Expr) -> bool {
    match item {
        Expr::Literal(value, _) => value
            .cast_to(&DataType::Float64)
            .is_ok_and(|value| matches!(value, ScalarValue::Float64(Some(value)) if value == 0.0)),
        Expr::Negative(item) => is_zero(item),
        _ => false,
    }
}

/// The node with one zero in aggregates, and both in lists.
pub(super) fn as_one(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !is_in(&node)? {
        return Ok(Transformed::no(node));
    }
    let schema = schema_of(&node)?;
    let names = NamePreserver::new(&node);
    node.map_expressions(|expr| {
        let name = names.save(&expr);
        let changed = expr.transform_up(|part| with_zeros(part, &schema))?;
        Ok(changed.update_data(|expr| name.restore(expr)))
    })
}

/// The arguments of a DISTINCT aggregate.
fn arguments(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::AggregateFunction(AggregateFunction { func, params }) if params.distinct && counts(func) => {
            Some(&params.args)
        }
        Expr::WindowFunction(window) => match window.as_ref() {
            WindowFunction { fun: WindowFunctionDefinition::AggregateUDF(func), params }
                if params.distinct && counts(func) =>
            {
                Some(&params.args)
            }
            _ => None,
        },
        _ => None,
    }
}

/// False for functions to which DISTINCT is nothing: those of extremes, and digests, which pass over it.
fn counts(function: &AggregateUDF) -> bool {
    !matches!(function.name(), "min" | "max") && !function.name().starts_with("approx_")
}

fn is_float(expr: &Expr, schema: &DFSchema) -> bool {
    expr.get_type(schema).is_ok_and(|of| matches!(of, DataType::Float16 | DataType::Float32 | DataType::Float64))
}

fn with_zeros(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if !asks(&expr, schema) {
        return Ok(Transformed::no(expr));
    }
    let added = |args: &mut Vec<Expr>| -> Result<bool> {
        let mut any = false;
        for arg in args.iter_mut().filter(|arg| is_float(arg, schema)) {
            let zero = ScalarValue::new_zero(&arg.get_type(schema)?)?;
            *arg = std::mem::take(arg) + lit(zero);
            any = true;
        }
        Ok(any)
    };
    Ok(match expr {
        Expr::InList(mut list) => {
            let (zero, negative) = match list.expr.get_type(schema)? {
                DataType::Float32 => (lit(0.0_f32), lit(-0.0_f32)),
                _ => (lit(0.0_f64), lit(-0.0_f64)),
            };
            list.list.extend([zero, negative]);
            Transformed::yes(Expr::InList(list))
        }
        Expr::AggregateFunction(mut function) => {
            let before = function.params.args.clone();
            let any = added(&mut function.params.args)?;
            // DISTINCT and ORDER BY go together where they name the same.
            for key in &mut function.params.order_by {
                if let Some(at) = before.iter().position(|arg| *arg == key.expr) {
                    key.expr = function.params.args[at].clone();
                }
            }
            Transformed::new_transformed(Expr::AggregateFunction(function), any)
        }
        Expr::WindowFunction(mut function) => {
            let any = added(&mut function.params.args)?;
            Transformed::new_transformed(Expr::WindowFunction(function), any)
        }
        other => Transformed::no(other),
    })
}
