//! Sums of integers under `millpond.integer_overflow = 'error'`: DataFusion's sums wrap.
//!
//! ```text
//!   Aggregate: sum(x)          ─►  the same function, with 128 bits (`expr::checked`)
//!   Window: sum(x) OVER w      ─►  without a device: the same function, with 128 bits; with a device:
//!                                  Projection: in_64_bits("sum(…) OVER w") AS "sum(x) OVER w"
//!                                    Window: sum(CAST(x AS DECIMAL(20, 0))) OVER w
//!   Window: max(a + b) OVER w  ─►  Window: max(c) OVER w
//!                                    Projection: a + b AS c
//! ```
//!
//! Windows   evaluate no other expressions once they are planned, so `+ - *` within them is moved out here.
//! DISTINCT  sums keep their type if rows leave the frame: DataFusion can remove distinct values from a sum only for
//!           BIGINT.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DFSchemaRef};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Projection, Window, WindowFunctionDefinition, cast};
use datafusion::optimizer::AnalyzerRule;

use crate::column::value_type;
use crate::expr::builtin::is_own_aggregate;
use crate::expr::checked::narrow;
use crate::expr::mended::{checked, is_mended};
use crate::options::{IntegerOverflow, MillpondOptions};
use crate::plan::logical_walk;
use crate::plan::overflow::computes_whole;

/// Type in which a window sums integers: holds all 64-bit integers, signed or unsigned.
const SUMMED: DataType = DataType::Decimal128(20, 0);

/// Makes integer sums that exceed their type return an error.
#[derive(Debug)]
pub(super) struct Checked {
    pub has_device: bool,
}

impl AnalyzerRule for Checked {
    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        if !IntegerOverflow::is_error(config) {
            return Ok(plan);
        }
        if !logical_walk::any(&plan, |_| false, &mut |node, _| is_in(node))? {
            return Ok(plan);
        }
        let options = config.extensions.get::<MillpondOptions>();
        let places = self.has_device && options.is_none_or(|options| options.enabled);
        let checked = plan.transform_up_with_subqueries(|node| {
            if !is_in(&node)? {
                return Ok(Transformed::no(node));
            }
            match node {
                LogicalPlan::Window(window) => Ok(Transformed::yes(Over::of(&window, places).window(window)?)),
                node => with_checks(node),
            }
        });
        checked.map(|checked| checked.data)
    }

    fn name(&self) -> &str {
        "checked_sums"
    }
}

/// True for a node with an integer sum, and for a window that computes with integers.
fn is_in(node: &LogicalPlan) -> Result<bool> {
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

/// True for DataFusion's sum of integers.
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
        && args.first().is_some_and(|arg| arg.get_type(schema).is_ok_and(|of| leaves(value_type(&of))))
}

/// True for integers whose sum over a window may exceed 64 bits: no window has 2^32 rows.
fn is_wide(of: &DataType) -> bool {
    matches!(of, DataType::Int64 | DataType::UInt64)
}

/// Makes the sums of an aggregation checked.
fn with_checks(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
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

/// Rewrite of a window's functions: columns computed below the window, and columns above it.
struct Over {
    schema: DFSchemaRef,
    /// If true, sums are computed as decimals, which the device supports; otherwise by our own accumulators.
    as_decimals: bool,
    below: Vec<Expr>,
    above: Vec<Expr>,
    is_renamed: bool,
}

impl Over {
    fn of(window: &Window, as_decimals: bool) -> Self {
        let schema = Arc::clone(window.input.schema());
        let columns: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
        Self { schema, as_decimals, below: columns.clone(), above: columns, is_renamed: false }
    }

    /// The window with projections below and above it, each only if needed.
    fn window(mut self, window: Window) -> Result<LogicalPlan> {
        let columns = self.below.len();
        let mut functions = Vec::with_capacity(window.window_expr.len());
        for function in window.window_expr {
            functions.push(self.function(function)?);
        }
        let mut input = window.input;
        if self.below.len() > columns {
            input = Arc::new(LogicalPlan::Projection(Projection::try_new(self.below, input)?));
        }
        let window = LogicalPlan::Window(Window::try_new(functions, input)?);
        if !self.is_renamed {
            return Ok(window);
        }
        Ok(LogicalPlan::Projection(Projection::try_new(self.above, Arc::new(window))?))
    }

    fn function(&mut self, function: Expr) -> Result<Expr> {
        let name = function.schema_name().to_string();
        let mut whole = None;
        let changed = function.transform_down(|part| {
            let Expr::WindowFunction(mut function) = part else { return Ok(Transformed::no(part)) };
            whole = self.sum(&mut function)?;
            let of_aggregate = matches!(function.fun, WindowFunctionDefinition::AggregateUDF(_));
            let params = &mut function.params;
            // Further arguments of other functions are constants.
            let args = if of_aggregate { params.args.len() } else { params.args.len().min(1) };
            let parts = params.args[..args].iter_mut().chain(&mut params.partition_by);
            let parts = parts.chain(params.order_by.iter_mut().map(|key| &mut key.expr));
            for part in parts.chain(params.filter.as_deref_mut()) {
                self.move_below(part)?;
            }
            Ok(Transformed::new(Expr::WindowFunction(function), true, TreeNodeRecursion::Jump))
        })?;
        let new_name = changed.data.schema_name().to_string();
        self.is_renamed |= whole.is_some() || new_name != name;
        let column = Expr::Column(Column::new_unqualified(new_name));
        self.above.push(whole.map_or(column.clone(), |of| narrow(column, of)).alias(name));
        Ok(changed.data)
    }

    /// Makes an integer sum checked; returns its original type if it is now a decimal sum.
    fn sum(&self, function: &mut WindowFunction) -> Result<Option<DataType>> {
        if !sums(&Expr::WindowFunction(Box::new(function.clone())), &self.schema) {
            return Ok(None);
        }
        let leaves = function.params.distinct && !function.params.window_frame.start_bound.is_unbounded();
        if leaves || !self.as_decimals {
            if let WindowFunctionDefinition::AggregateUDF(func) = &mut function.fun {
                *func = checked(Arc::clone(func));
            }
            return Ok(None);
        }
        let argument = &mut function.params.args[0];
        let is_unsigned = value_type(&argument.get_type(&self.schema)?).is_unsigned_integer();
        *argument = cast(std::mem::take(argument), SUMMED);
        Ok(Some(if is_unsigned { DataType::UInt64 } else { DataType::Int64 }))
    }

    /// Moves an argument of a window function into a column below, if it computes with integers.
    fn move_below(&mut self, part: &mut Expr) -> Result<()> {
        if part.exists(|part| Ok(computes_whole(part, &self.schema)))? {
            let name = format!("millpond_computed_{}", self.below.len());
            self.below.push(std::mem::take(part).alias(&name));
            *part = Expr::Column(Column::new_unqualified(name));
        }
        Ok(())
    }
}
