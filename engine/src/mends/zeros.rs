//! The two zeros of floats, where DataFusion distinguishes them by their bits.
//!
//!   count(DISTINCT f)                     ─►  count(DISTINCT f + 0.0)        which is 0.0 for both zeros, else f
//!   f IN (0.0, 1.0, 2.0, …)               ─►  f IN (0.0, 1.0, 2.0, …, -0.0)
//!   rank() OVER (PARTITION BY f           ─►  rank() OVER (PARTITION BY f + 0.0
//!                ORDER BY g)                               ORDER BY g + 0.0)
//!   CASE f WHEN 0.0 THEN …, nullif(f, g)  ─►  CASE f + 0.0 WHEN 0.0 + 0.0 THEN …, nullif(f + 0.0, g + 0.0)
//!
//! Column names are preserved. Lists and structures still have two zeros.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{AggregateUDF, Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition, lit};

use crate::expr::builtin::is_datafusions_scalar;

/// True for a node that depends on the sign of a zero.
pub(super) fn is_in(node: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    node.apply_expressions(|expr| {
        let may_ask = |part: &Expr| Ok(!compared(part).is_empty() || has_zero(part));
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
        part => compared(part).iter().any(|of| is_float(of, schema)),
    }
}

/// Operands that an expression compares by their bits.
fn compared(part: &Expr) -> Vec<&Expr> {
    let mut all: Vec<&Expr> = arguments(part).into_iter().flatten().collect();
    match part {
        Expr::Case(case) => {
            all.extend(case.expr.as_deref());
            if case.expr.is_some() {
                all.extend(case.when_then_expr.iter().map(|(when, _)| when.as_ref()));
            }
        }
        Expr::WindowFunction(window) => {
            all.extend(&window.params.partition_by);
            all.extend(window.params.order_by.iter().map(|key| &key.expr));
        }
        _ => {}
    }
    all
}

/// True for a list with a zero, which DataFusion may look up in a table of values.
pub(super) fn has_zero(part: &Expr) -> bool {
    matches!(part, Expr::InList(list) if list.list.iter().any(is_zero))
}

/// True for a constant that is zero, of any type.
pub(crate) fn is_zero(item: &Expr) -> bool {
    match item {
        // Most lists contain texts; a text that is zero as a number contains a 0 or an exponent.
        Expr::Literal(value, _)
            if value.try_as_str().is_some_and(|of| !of.is_some_and(|of| of.contains(['0', 'e', 'E']))) =>
        {
            false
        }
        Expr::Literal(value, _) => value
            .cast_to(&DataType::Float64)
            .is_ok_and(|value| matches!(value, ScalarValue::Float64(Some(value)) if value == 0.0)),
        Expr::Negative(item) => is_zero(item),
        _ => false,
    }
}

/// Rewrites a node so that both zeros are equal: one zero in aggregates, both zeros in lists.
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

/// Arguments of a DISTINCT aggregate or of `nullif`.
fn arguments(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::ScalarFunction(call) if call.func.name() == "nullif" && is_datafusions_scalar(&call.func) => {
            Some(&call.args)
        }
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

/// False for functions that ignore DISTINCT: min, max, and approximate functions.
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
    let has_arguments = arguments(&expr).is_some();
    let one = |arg: Expr| one_zero(arg, schema);
    let all = |args: Vec<Expr>| args.into_iter().map(one).collect::<Result<Vec<_>>>();
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
            function.params.args = all(function.params.args)?;
            // ORDER BY keys that repeat a DISTINCT argument must stay equal to it.
            for key in &mut function.params.order_by {
                if let Some(at) = before.iter().position(|arg| *arg == key.expr) {
                    key.expr = function.params.args[at].clone();
                }
            }
            Transformed::yes(Expr::AggregateFunction(function))
        }
        Expr::WindowFunction(mut window) => {
            let params = &mut window.params;
            if has_arguments {
                params.args = all(std::mem::take(&mut params.args))?;
            }
            params.partition_by = all(std::mem::take(&mut params.partition_by))?;
            for key in &mut params.order_by {
                key.expr = one(std::mem::take(&mut key.expr))?;
            }
            Transformed::yes(Expr::WindowFunction(window))
        }
        Expr::ScalarFunction(mut call) => {
            call.args = all(call.args)?;
            Transformed::yes(Expr::ScalarFunction(call))
        }
        Expr::Case(mut case) => {
            case.expr = case.expr.map(|of| one(*of).map(Box::new)).transpose()?;
            for (when, _) in &mut case.when_then_expr {
                **when = one(std::mem::take(when.as_mut()))?;
            }
            Transformed::yes(Expr::Case(case))
        }
        other => Transformed::no(other),
    })
}

/// Normalizes zeros: adds 0.0 to a float; other expressions and nonzero constants are unchanged.
pub(super) fn one_zero(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    if !is_float(&expr, schema) || matches!(expr, Expr::Literal(..)) && !is_zero(&expr) {
        return Ok(expr);
    }
    let zero = ScalarValue::new_zero(&expr.get_type(schema)?)?;
    Ok(expr + lit(zero))
}
