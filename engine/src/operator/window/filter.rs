//! FILTER of a window function, moved into its argument.
//!
//!   sum(x) FILTER (WHERE p) OVER w   ──►   sum(CASE WHEN p THEN x END) OVER w AS "sum(x) FILTER (WHERE p) …"
//!
//! Why    DataFusion's physical window functions do not expose their filter.
//! Which  functions of DataFusion that skip NULL, and array_agg if it ignores NULLs or its column has none: over a
//!        column or a literal, so that no new expression is computed, and errors do not change. Others keep their
//!        filter, and stay on the CPU.

use std::sync::Arc;

use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{NullTreatment, WindowFunction};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Window, WindowFunctionDefinition, when};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::expr::builtin::is_own_aggregate;
use crate::operator::window::bivariate::statistic;
use crate::options::MillpondOptions;
use crate::plan::logical_walk::any;

/// Moves filters of windows into arguments.
#[derive(Debug)]
pub(crate) struct FilterInArgument;

impl OptimizerRule for FilterInArgument {
    fn name(&self) -> &str {
        "millpond_filter_in_window_argument"
    }

    /// The rule walks the plan itself: DataFusion's walk would rebuild every node, and most plans have no window.
    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let options = config.options();
        let enabled = options.extensions.get::<MillpondOptions>().is_some_and(|options| options.enabled);
        if !enabled
            || !any(&plan, |_| false, &mut |node, _| {
                Ok(matches!(node, LogicalPlan::Window(window) if has_filter(window)))
            })?
        {
            return Ok(Transformed::no(plan));
        }
        plan.transform_up_with_subqueries(|node| {
            let LogicalPlan::Window(window) = node else { return Ok(Transformed::no(node)) };
            if !has_filter(&window) {
                return Ok(Transformed::no(LogicalPlan::Window(window)));
            }
            let Window { input, window_expr, schema, .. } = window;
            let window_expr =
                window_expr.into_iter().map(|expr| without_filter(expr, input.schema())).collect::<Result<Vec<_>>>()?;
            Ok(Transformed::yes(LogicalPlan::Window(Window { input, window_expr, schema })))
        })
    }
}

/// True for windows with a FILTER that can move into an argument.
fn has_filter(window: &Window) -> bool {
    window.window_expr.iter().any(|expr| filtered(expr, window.input.schema()).is_some())
}

/// The function of a window expression whose filter can move into its argument.
fn filtered<'e>(expr: &'e Expr, schema: &DFSchema) -> Option<&'e WindowFunction> {
    let expr = match expr {
        Expr::Alias(alias) => alias.expr.as_ref(),
        expr => expr,
    };
    let Expr::WindowFunction(function) = expr else { return None };
    let WindowFunctionDefinition::AggregateUDF(aggregate) = &function.fun else { return None };
    let passes_over_null = matches!(
        aggregate.name(),
        "count"
            | "sum"
            | "avg"
            | "min"
            | "max"
            | "bool_and"
            | "bool_or"
            | "bit_and"
            | "bit_or"
            | "bit_xor"
            | "var"
            | "var_pop"
            | "stddev"
            | "stddev_pop"
            | "median"
            | "percentile_cont"
            | "string_agg"
    ) || statistic(aggregate.name()).is_some();
    let params = &function.params;
    // A list includes NULLs, unless it ignores them; if its column has none, it may ignore them.
    let skips_null = aggregate.name() == "array_agg"
        && (params.null_treatment == Some(NullTreatment::IgnoreNulls)
            || matches!(params.args.as_slice(), [argument] if argument.nullable(schema).is_ok_and(|nullable| !nullable)));
    let fits = (passes_over_null || skips_null) && is_own_aggregate(aggregate) && params.filter.is_some();
    let plain = params.args.iter().all(is_plain) && !params.args.is_empty();
    (fits && plain).then_some(function.as_ref())
}

/// True for columns and literals, cast or not.
fn is_plain(expr: &Expr) -> bool {
    let other = |part: &Expr| Ok(!matches!(part, Expr::Column(_) | Expr::Literal(..) | Expr::Cast(_) | Expr::Alias(_)));
    expr.exists(other).is_ok_and(|other| !other)
}

/// The function under its name, with the filter in its argument.
fn without_filter(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let Some(function) = filtered(&expr, schema) else { return Ok(expr) };
    let mut function = function.clone();
    let (Some(filter), Some(argument)) = (function.params.filter.take(), function.params.args.first_mut()) else {
        return Ok(expr);
    };
    *argument = when(*filter, argument.clone()).end()?;
    if matches!(&function.fun, WindowFunctionDefinition::AggregateUDF(of) if of.name() == "array_agg") {
        function.params.null_treatment = Some(NullTreatment::IgnoreNulls);
    }
    let name = match &expr {
        Expr::Alias(alias) => alias.name.clone(),
        expr => expr.schema_name().to_string(),
    };
    Ok(Expr::WindowFunction(Box::new(function)).alias(name))
}

/// The rule, for a session with a device.
pub(crate) fn rule() -> Arc<dyn OptimizerRule + Send + Sync> {
    Arc::new(FilterInArgument)
}
