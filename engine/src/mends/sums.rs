//! Sums of whole numbers under `millpond.integer_overflow = 'error'`: DataFusion's wrap.
//!
//! ```text
//!   Aggregate: sum(x)          ─►  the same function, with 128 bits (`expr::checked`)
//!   Window: sum(x) OVER w      ─►  Projection: in_64_bits("sum(…) OVER w") AS "sum(x) OVER w"
//!                                    Window: sum(CAST(x AS DECIMAL(20, 0))) OVER w
//!   Window: max(a + b) OVER w  ─►  Window: max(c) OVER w
//!                                    Projection: a + b AS c
//! ```
//!
//! Windows   have no place for other expressions once they are planned, so that `+ - *` within them are moved out here.
//! DISTINCT  sums keep their type where rows leave the frame: DataFusion takes distinct values off one for BIGINT alone.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Projection, Window, WindowFunctionDefinition, cast};

use crate::expr::builtin::is_own_aggregate;
use crate::expr::checked::narrow;
use crate::expr::mended::{checked, is_mended};
use crate::overflow::computes_whole;

/// The type in which a window sums whole numbers: all of 64 bits, signed or not.
const SUMMED: DataType = DataType::Decimal128(20, 0);

/// True for a node with a sum of whole numbers, and for a window that computes with them.
pub(super) fn is_in(node: &LogicalPlan) -> Result<bool> {
    match node {
        LogicalPlan::Aggregate(aggregate) => {
            let schema = aggregate.input.schema();
            any(&aggregate.aggr_expr, |part| sums(part, schema))
        }
        LogicalPlan::Window(window) => {
            let schema = window.input.schema();
            any(&window.window_expr, |part| sums(part, schema) || computes_whole(part, schema))
        }
        _ => Ok(false),
    }
}

fn any(all: &[Expr], is: impl Fn(&Expr) -> bool) -> Result<bool> {
    for expr in all {
        if expr.exists(|part| Ok(is(part)))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True for DataFusion's sum of whole numbers.
fn sums(part: &Expr, schema: &DFSchema) -> bool {
    let (func, args, leaves): (_, _, fn(&DataType) -> bool) = match part {
        Expr::AggregateFunction(AggregateFunction { func, params }) => (func, &params.args, DataType::is_integer),
        Expr::WindowFunction(function) => match &function.fun {
            WindowFunctionDefinition::AggregateUDF(func) => (func, &function.params.args, is_wide),
            WindowFunctionDefinition::WindowUDF(_) => return false,
        },
        _ => return false,
    };
    func.name() == "sum"
        && is_own_aggregate(func)
        && !is_mended(func)
        && args.first().is_some_and(|arg| arg.get_type(schema).is_ok_and(|of| leaves(&of)))
}

/// True for whole numbers whose sum over a window may leave 64 bits: no window has 2^32 rows.
fn is_wide(of: &DataType) -> bool {
    matches!(of, DataType::Int64 | DataType::UInt64)
}

/// The node with sums that do not wrap.
pub(super) fn checked_in(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !is_in(&node)? {
        return Ok(Transformed::no(node));
    }
    match node {
        LogicalPlan::Window(window) => Ok(Transformed::yes(over_wide(window)?)),
        node => {
            let schema = Arc::clone(node.inputs()[0].schema());
            node.map_expressions(|expr| {
                expr.transform_up(|part| match part {
                    part if !sums(&part, &schema) => Ok(Transformed::no(part)),
                    Expr::AggregateFunction(mut function) => {
                        function.func = checked(function.func);
                        Ok(Transformed::yes(Expr::AggregateFunction(function)))
                    }
                    part => Ok(Transformed::no(part)),
                })
            })
        }
    }
}

/// A window whose functions read what is computed below it, and whose sums are brought to their types above it.
fn over_wide(window: Window) -> Result<LogicalPlan> {
    let schema = Arc::clone(window.input.schema());
    let mut below: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
    let mut above = below.clone();
    let columns = below.len();
    let mut functions = Vec::with_capacity(window.window_expr.len());
    for function in window.window_expr {
        let name = function.schema_name().to_string();
        let mut whole = None;
        let changed = function.transform_down(|part| {
            let Expr::WindowFunction(mut function) = part else { return Ok(Transformed::no(part)) };
            whole = as_decimal(&mut function, &schema)?;
            let mut moved = |argument| moved_below(argument, &schema, &mut below);
            let function = Expr::WindowFunction(function).map_children(&mut moved)?.data;
            Ok(Transformed::new(function, true, TreeNodeRecursion::Jump))
        })?;
        let column = Expr::Column(Column::new_unqualified(changed.data.schema_name().to_string()));
        let result = whole.map_or(column.clone(), |of| narrow(column, of));
        above.push(result.alias(name));
        // The statement may have the sum of the decimals, too.
        if !functions.contains(&changed.data) {
            functions.push(changed.data);
        }
    }
    let mut input = window.input;
    if below.len() > columns {
        input = Arc::new(LogicalPlan::Projection(Projection::try_new(below, input)?));
    }
    let window = LogicalPlan::Window(Window::try_new(functions, input)?);
    Ok(LogicalPlan::Projection(Projection::try_new(above, Arc::new(window))?))
}

/// Lets a sum of whole numbers be one of decimals; gives the type that it had.
fn as_decimal(function: &mut WindowFunction, schema: &DFSchema) -> Result<Option<DataType>> {
    if !sums(&Expr::WindowFunction(Box::new(function.clone())), schema) {
        return Ok(None);
    }
    if function.params.distinct && !function.params.window_frame.start_bound.is_unbounded() {
        if let WindowFunctionDefinition::AggregateUDF(func) = &mut function.fun {
            *func = checked(Arc::clone(func));
        }
        return Ok(None);
    }
    let argument = &mut function.params.args[0];
    let of = if argument.get_type(schema)?.is_unsigned_integer() { DataType::UInt64 } else { DataType::Int64 };
    *argument = cast(std::mem::take(argument), SUMMED);
    Ok(Some(of))
}

/// An argument of a window's function, as a column where it computes with whole numbers.
fn moved_below(argument: Expr, schema: &DFSchema, below: &mut Vec<Expr>) -> Result<Transformed<Expr>> {
    if !argument.exists(|part| Ok(computes_whole(part, schema)))? {
        return Ok(Transformed::no(argument));
    }
    let name = format!("millpond_computed_{}", below.len());
    below.push(argument.alias(&name));
    Ok(Transformed::yes(Expr::Column(Column::new_unqualified(name))))
}
