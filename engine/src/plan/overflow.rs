//! `+ - *` of integers under `millpond.integer_overflow = 'error'`: DataFusion's operators wrap.
//!
//! ```text
//!   9223372036854775807 + 1     the simplifier does not evaluate constants that would overflow      `simplified.rs`
//!   BinaryExpr { a + b }   ─►   the same, failing on overflow: in each node of the plan, before any other rule
//!   NegativeExpr { a }     ─►   BinaryExpr { 0 - a }, failing on overflow
//! ```
//!
//! Device    a failing expression has a form that raises the device's error flag; the CPU then produces the message.
//! Sums      and windows are in `mends::sums`: windows evaluate no other expressions once they are planned.
//! Unchecked bounds of `LIMIT`, arguments of table functions (evaluated by the parser), partitioning keys, and
//!           conditions of piecewise merge joins (`datafusion.optimizer.enable_piecewise_merge_join`, off by default).

use std::cell::LazyCell;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, ScalarValue, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{self, Expr, ExprSchemable, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, Literal, NegativeExpr};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, PhysicalGroupBy};
use datafusion::physical_plan::joins::SortMergeJoinExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::sorts::sort::SortExec;

use crate::options::IntegerOverflow;
use crate::plan::rewrite::{reads, with_expressions};

fn may_leave(op: Operator) -> bool {
    matches!(op, Operator::Plus | Operator::Minus | Operator::Multiply)
}

/// True for `+`, `-` or `*` of integers with at least one column.
pub(crate) fn computes_whole(part: &Expr, schema: &DFSchema) -> bool {
    let is_column = |part: &Expr| Ok(matches!(part, Expr::Column(_)));
    matches!(part, Expr::BinaryExpr(of) if may_leave(of.op))
        && part.exists(is_column).unwrap_or(true)
        && part.get_type(schema).is_ok_and(|of| of.is_integer())
}

/// True for `+`, `-` or `*` of constants that may overflow. `schema` is that of columns elsewhere in the expression.
pub(crate) fn leaves_type(part: &Expr, schema: &DFSchema) -> bool {
    matches!(part, Expr::BinaryExpr(of) if may_leave(of.op))
        && part.get_type(schema).is_ok_and(|of| of.is_integer())
        && exact(part).is_none()
}

/// Value and type of a constant expression; `None` if it is unknown or overflows.
fn exact(expr: &Expr) -> Option<(i128, DataType)> {
    match expr {
        Expr::Literal(value, _) => Some((whole(value)?, value.data_type())),
        Expr::Cast(cast) => {
            let (value, _) = exact(&cast.expr)?;
            within(value, cast.field.data_type().clone())
        }
        Expr::Negative(of) => {
            let (value, of) = exact(of)?;
            within(-value, of)
        }
        Expr::BinaryExpr(logical_expr::BinaryExpr { left, op, right }) => {
            let ((left, of), (right, other)) = (exact(left)?, exact(right)?);
            let value = match op {
                Operator::Plus => left + right,
                Operator::Minus => left - right,
                Operator::Multiply => left * right,
                _ => return None,
            };
            (of == other).then(|| within(value, of))?
        }
        _ => None,
    }
}

fn whole(value: &ScalarValue) -> Option<i128> {
    Some(match value {
        ScalarValue::Int8(Some(value)) => (*value).into(),
        ScalarValue::Int16(Some(value)) => (*value).into(),
        ScalarValue::Int32(Some(value)) => (*value).into(),
        ScalarValue::Int64(Some(value)) => (*value).into(),
        ScalarValue::UInt8(Some(value)) => (*value).into(),
        ScalarValue::UInt16(Some(value)) => (*value).into(),
        ScalarValue::UInt32(Some(value)) => (*value).into(),
        ScalarValue::UInt64(Some(value)) => (*value).into(),
        _ => return None,
    })
}

/// True for a nonzero integer constant.
pub(crate) fn is_whole_but_zero(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(value, _) if whole(value).is_some_and(|value| value != 0))
}

fn within(value: i128, of: DataType) -> Option<(i128, DataType)> {
    let bits = i128::from(of.primitive_width().filter(|_| of.is_integer())? as u32) * 8;
    let signed = of.is_signed_integer();
    let (low, high) = if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1_i128 << bits) - 1) };
    (low..=high).contains(&value).then_some((value, of))
}

/// True for `+`, `-` or `*` that fails on overflow.
pub(crate) fn is_checked(expr: &BinaryExpr) -> bool {
    may_leave(*expr.op()) && *expr == failing(expr)
}

fn failing(expr: &BinaryExpr) -> BinaryExpr {
    BinaryExpr::new(Arc::clone(expr.left()), *expr.op(), Arc::clone(expr.right())).with_fail_on_overflow(true)
}

/// Makes `+`, `-` and `*` of integers in an expression fail on overflow. `-a` becomes `0 - a`, because it has no such
/// flag.
fn checked(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let of_whole = |part: Arc<dyn PhysicalExpr>| {
        if !is_unchecked(&part) {
            return Ok(Transformed::no(part));
        }
        let of = part.data_type(schema)?;
        if !of.is_integer() {
            return Ok(Transformed::no(part));
        }
        let failing = match (part.downcast_ref::<BinaryExpr>(), part.downcast_ref::<NegativeExpr>()) {
            (Some(binary), _) => failing(binary),
            (_, Some(negative)) => {
                let zero = Arc::new(Literal::new(ScalarValue::new_zero(&of)?));
                failing(&BinaryExpr::new(zero, Operator::Minus, Arc::clone(negative.arg())))
            }
            _ => return Ok(Transformed::no(part)),
        };
        Ok(Transformed::yes(Arc::new(failing) as Arc<dyn PhysicalExpr>))
    };
    Arc::clone(expr).transform_up(of_whole).data()
}

fn is_unchecked(part: &Arc<dyn PhysicalExpr>) -> bool {
    part.is::<NegativeExpr>()
        || part.downcast_ref::<BinaryExpr>().is_some_and(|of| may_leave(*of.op()) && !is_checked(of))
}

/// Columns that a node's expressions refer to, if that is known.
fn columns(node: &dyn ExecutionPlan) -> Option<SchemaRef> {
    match (node.downcast_ref::<AggregateExec>(), node.children().as_slice()) {
        (Some(aggregate), _) => Some(aggregate.input_schema()),
        (None, [input]) => Some(input.schema()),
        _ => None,
    }
}

/// Adds alternatives to an integer overflow error; returns any other error unchanged.
pub(crate) fn explained(error: DataFusionError) -> DataFusionError {
    let DataFusionError::ArrowError(arrow, _) = error.find_root() else { return error };
    let ArrowError::ArithmeticOverflow(what) = arrow.as_ref() else { return error };
    // Decimals overflow beyond 128 bits, with an operand of more than 64 bits; no option makes them wrap.
    let mut words = what.rsplit(' ').step_by(2).take(2).map(|word| word.parse::<i128>());
    let is_whole = words.all(|number| number.is_ok_and(|number| number.unsigned_abs() <= u64::MAX.into()));
    if !is_whole {
        return error;
    }
    let what = format!("{what}: cast an operand to a wider type, or SET millpond.integer_overflow = 'wrap'");
    DataFusionError::ArrowError(Box::new(ArrowError::ArithmeticOverflow(what)), None)
}

/// Makes integer arithmetic fail on overflow if the session requires it.
#[derive(Debug)]
pub(crate) struct CheckWhole;

impl PhysicalOptimizerRule for CheckWhole {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !IntegerOverflow::is_error(config) {
            return Ok(plan);
        }
        plan.transform_up(|node| {
            let columns = LazyCell::new(|| columns(node.as_ref()));
            // Arithmetic of other types is unchanged, and most plans have no integer arithmetic.
            let may_wrap = |part: &Arc<dyn PhysicalExpr>| {
                let is_other = |columns: &SchemaRef| part.data_type(columns).is_ok_and(|of| !of.is_integer());
                is_unchecked(part) && !columns.as_ref().is_some_and(is_other)
            };
            Ok(match reads(node.as_ref(), may_wrap) {
                true => Transformed::yes(with_checks(&node)?),
                false => Transformed::no(node),
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        "millpond_check_whole"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Replaces the expressions of a node by [`checked`] ones.
fn with_checks(node: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
        return Ok(Arc::new(aggregate_with_checks(aggregate)?));
    }
    if let Some(sort) = node.downcast_ref::<SortExec>() {
        let schema = sort.input().schema();
        let key = |key: &PhysicalSortExpr| Ok(PhysicalSortExpr { expr: checked(&key.expr, &schema)?, ..key.clone() });
        let keys = sort.expr().iter().map(key).collect::<Result<Vec<_>>>()?;
        let Some(keys) = LexOrdering::new(keys) else { return internal_err!("a sort has keys") };
        let sorted = SortExec::new(keys, Arc::clone(sort.input())).with_fetch(sort.fetch());
        return Ok(Arc::new(sorted.with_preserve_partitioning(sort.preserve_partitioning())));
    }
    if let Some(join) = node.downcast_ref::<SortMergeJoinExec>() {
        let of_filter = |filter: &JoinFilter| {
            let expression = checked(filter.expression(), filter.schema())?;
            Ok::<_, DataFusionError>(JoinFilter::new(
                expression,
                filter.column_indices().to_vec(),
                Arc::clone(filter.schema()),
            ))
        };
        let joined = SortMergeJoinExec::try_new(
            Arc::clone(join.left()),
            Arc::clone(join.right()),
            join.on().to_vec(),
            join.filter().as_ref().map(of_filter).transpose()?,
            join.join_type(),
            join.sort_options().to_vec(),
            join.null_equality(),
        )?;
        return Ok(Arc::new(joined));
    }
    let change = |expr: &Arc<dyn PhysicalExpr>, schema: Option<&Schema>| match schema {
        Some(schema) => checked(expr, schema),
        None => Ok(Arc::clone(expr)),
    };
    Ok(with_expressions(node, &change)?.unwrap_or_else(|| Arc::clone(node)))
}

fn aggregate_with_checks(aggregate: &AggregateExec) -> Result<AggregateExec> {
    let schema = aggregate.input_schema();
    let keys = aggregate.group_expr();
    let of_input = aggregate.input().schema();
    let key = |(expr, name): &(Arc<dyn PhysicalExpr>, String)| Ok((checked(expr, &of_input)?, name.clone()));
    let keys = PhysicalGroupBy::new(
        keys.expr().iter().map(key).collect::<Result<_>>()?,
        keys.null_expr().to_vec(),
        keys.groups().to_vec(),
        keys.has_grouping_set(),
    );
    let functions = aggregate.aggr_expr().iter().map(|function| {
        let all = function.all_expressions();
        let each =
            |all: Vec<Arc<dyn PhysicalExpr>>| all.iter().map(|expr| checked(expr, &schema)).collect::<Result<Vec<_>>>();
        match function.with_new_expressions(each(all.args)?, each(all.order_by_exprs)?) {
            Some(function) => Ok(Arc::new(function)),
            None => internal_err!("{} takes no other arguments", function.name()),
        }
    });
    let filters =
        aggregate.filter_expr().iter().map(|filter| filter.as_ref().map(|filter| checked(filter, &schema)).transpose());
    let checked = AggregateExec::try_new(
        *aggregate.mode(),
        keys,
        functions.collect::<Result<_>>()?,
        filters.collect::<Result<_>>()?,
        Arc::clone(aggregate.input()),
        Arc::clone(&schema),
    )?;
    Ok(checked.with_limit_options(aggregate.limit_options()))
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::lit;

    use super::*;

    #[test]
    fn errors_of_whole_numbers_say_the_ways_out() {
        let error = |what: &str| {
            let arrow = ArrowError::ArithmeticOverflow(format!("Overflow happened on: {what}"));
            explained(DataFusionError::ArrowError(Box::new(arrow), None)).strip_backtrace()
        };
        assert!(
            error("9223372036854775807 + 1")
                .ends_with("+ 1: cast an operand to a wider type, or SET millpond.integer_overflow = 'wrap'")
        );
        assert!(error("-5 * 18446744073709551615").contains("SET"));
        assert!(!error("170141183460469231731687303715884105727 + 1").contains("SET"));
    }

    #[test]
    fn constants_that_leave_their_type_are_found() {
        let none = DFSchema::empty();
        let leaves = |expr: Expr| leaves_type(&expr, &none);
        assert!(leaves(lit(i64::MAX) + lit(1_i64)));
        assert!(leaves(lit(i32::MIN) - lit(1_i32)));
        assert!(leaves(lit(1_u64) - lit(2_u64)));
        assert!(leaves(lit(1_i64 << 32) * lit(1_i64 << 31)));
        assert!(leaves((lit(i64::MAX) + lit(1_i64)) - lit(1_i64)));
        assert!(!leaves(lit(i64::MAX) - lit(1_i64)));
        assert!(!leaves(lit(i64::MAX) + lit(-1_i64)));
        assert!(!leaves(lit(1.5) + lit(1.5)));
        assert!(!leaves(lit(u64::MAX) + lit(0_u64)));
    }
}
