//! Recognizes what DataFusion's rule answers correctly: conditions, and subqueries whose correlated conditions may be
//! moved above them.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DFSchemaRef, ExprSchema};
use datafusion::error::Result;
use datafusion::logical_expr::logical_plan::{FetchType, SkipType};
use datafusion::logical_expr::utils::{merge_schema, split_conjunction};
use datafusion::logical_expr::{
    Aggregate, Distinct, EmptyRelation, Expr, ExprSchemable, Filter, JoinType, LogicalPlan, Operator,
};
use datafusion::optimizer::decorrelate_predicate_subquery::DecorrelatePredicateSubquery;
use datafusion::optimizer::{OptimizerContext, OptimizerRule};

use super::scope::{expression_reads_outer, reads, reads_outer, subquery, visit};
use super::{Place, holds};
use crate::plan::logical_walk::each_part;

/// True if DataFusion's joins and marks return SQL's result of IN or EXISTS at `place` above rows of `schema`.
pub(super) fn is_right(expression: &Expr, place: Place, schema: &DFSchema) -> Result<bool> {
    let Some(inner) = subquery(expression) else { return Ok(false) };
    let plan = inner.subquery.as_ref();
    let is_correlated = reads_outer(plan)?;
    if is_correlated && shares_names(plan)? {
        // DataFusion confuses the two columns: `a > ALL (SELECT a FROM t)` over t creates both.
        return Ok(false);
    }
    if is_correlated && !reads(plan, schema)? {
        // DataFusion mistakes columns of an outer level for those of this level.
        return Ok(false);
    }
    let Expr::InSubquery(part) = expression else {
        if matches!(expression, Expr::ScalarSubquery(_)) {
            return Ok(false);
        }
        return Ok(!is_correlated || traced(plan, Asked::Exists)?.is_some());
    };
    if holds(&part.expr)? || part.expr.is_volatile() {
        return Ok(false);
    }
    let (_, value) = plan.schema().qualified_field(0);
    let may_be_null = value.is_nullable() || part.expr.nullable(schema)?;
    let hides_null = match place {
        Place::Top | Place::True => !part.negated,
        Place::False => part.negated,
        Place::Value => false,
    };
    if !is_correlated {
        // The null-aware anti join reads NULL from the key columns.
        let knows_null = place == Place::Top && is_column(&part.expr);
        return Ok(hides_null || !may_be_null || knows_null);
    }
    let asked = if hides_null { Asked::True } else { Asked::Value };
    let Some(trace) = traced(plan, asked)? else { return Ok(false) };
    let mut keys_may_be_null = trace.may_be_null;
    visit(plan, &vec![], &mut |column| {
        keys_may_be_null |= schema.field_from_column(column).is_ok_and(|field| field.is_nullable());
    })?;
    Ok(hides_null || (!may_be_null && (place != Place::Top || !keys_may_be_null)))
}

/// True if an outer column that a plan reads has the same name as one of the plan's own columns.
fn shares_names(plan: &LogicalPlan) -> Result<bool> {
    let mut outer = vec![];
    visit(plan, &vec![], &mut |column| outer.push(column.clone()))?;
    plan.exists(|node| Ok(outer.iter().any(|column| node.schema().has_column(column))))
}

/// True if DataFusion's rule finds joins for a condition above rows of `schema`, at all levels.
pub(super) fn is_answered(part: &Expr, schema: &DFSchemaRef) -> Result<bool> {
    if is_simple(part, schema)? {
        debug_assert!(
            is_answered_by_trial(part, schema)?,
            "DataFusion's rule finds no joins for a simple condition: {part}"
        );
        return Ok(true);
    }
    is_answered_by_trial(part, schema)
}

/// True for IN and EXISTS for which the rule always finds a join, so that no trial is needed. The subquery outputs only
/// columns and contains no further subquery. It is uncorrelated (IN), or filters one scan by comparisons of its columns
/// with columns of `schema`.
fn is_simple(part: &Expr, schema: &DFSchema) -> Result<bool> {
    let part = if let Expr::Not(part) = part { part } else { part };
    let (inner, is_in) = match part {
        Expr::InSubquery(part) => (&part.subquery, true),
        Expr::Exists(part) => (&part.subquery, false),
        _ => return Ok(false),
    };
    let plan = inner.subquery.as_ref();
    let LogicalPlan::Projection(projection) = plan else { return Ok(false) };
    if !projection.expr.iter().all(|expr| matches!(expr, Expr::Column(_))) || has_subqueries(plan)? {
        return Ok(false);
    }
    if !reads_outer(plan)? {
        return Ok(is_in);
    }
    let mut below = projection.input.as_ref();
    loop {
        match below {
            LogicalPlan::Filter(filter) => {
                let parts = split_conjunction(&filter.predicate);
                if !parts.into_iter().all(|part| !part.contains_outer() || compares(part, schema)) {
                    return Ok(false);
                }
                below = &filter.input;
            }
            LogicalPlan::SubqueryAlias(alias) if matches!(*alias.input, LogicalPlan::TableScan(_)) => return Ok(true),
            LogicalPlan::TableScan(_) => return Ok(true),
            _ => return Ok(false),
        }
    }
}

/// True if an expression of the plan contains a subquery of any kind.
fn has_subqueries(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| {
        let mut found = false;
        node.apply_expressions(|expression| {
            each_part(expression, |part| found |= subquery(part).is_some())?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(found)
    })
}

/// True for `column < outer`, with `outer` a column of `schema`, and for other comparisons in either order.
fn compares(part: &Expr, schema: &DFSchema) -> bool {
    let Expr::BinaryExpr(binary) = part else { return false };
    match (binary.left.as_ref(), binary.right.as_ref()) {
        (Expr::Column(_), Expr::OuterReferenceColumn(_, outer))
        | (Expr::OuterReferenceColumn(_, outer), Expr::Column(_)) => {
            use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
            matches!(binary.op, Eq | NotEq | Lt | LtEq | Gt | GtEq) && schema.is_column_from_schema(outer)
        }
        _ => false,
    }
}

/// Like `is_answered`, by running the rule.
fn is_answered_by_trial(part: &Expr, schema: &DFSchemaRef) -> Result<bool> {
    // The rule only reads the columns of its input: a leaf with these columns saves it the walk below.
    let rows = LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: false, schema: Arc::clone(schema) });
    let filter = LogicalPlan::Filter(Filter::try_new(part.clone(), Arc::new(rows))?);
    // A separate context, so that aliases of the statement are not used up.
    let Ok(plan) = DecorrelatePredicateSubquery::new().rewrite(filter, &OptimizerContext::new()) else {
        return Ok(false);
    };
    let left = super::is_held_in(&plan.data)?;
    Ok(!left && !reads(&plan.data, schema)? && has_its_columns(&plan.data)?)
}

/// False if a node reads a column that none of its inputs provides.
fn has_its_columns(plan: &LogicalPlan) -> Result<bool> {
    let mut is_there = true;
    plan.apply(|node| {
        let inputs = node.inputs();
        if inputs.is_empty() {
            return Ok(TreeNodeRecursion::Continue);
        }
        let schema = merge_schema(&inputs);
        node.apply_expressions(|expression| {
            is_there &= expression.column_refs().iter().all(|column| schema.has_column(column));
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if is_there { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(is_there)
}

/// A column, or a cast of one that is NULL only for NULL.
fn is_column(expression: &Expr) -> bool {
    match expression {
        Expr::Column(_) => true,
        Expr::Cast(cast) => is_column(&cast.expr),
        _ => false,
    }
}

/// Property of a subquery's rows that IN or EXISTS depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Whether any row exists.
    Exists,
    /// Whether a row is equal: a NULL row counts as no row.
    True,
    /// Whether a row is equal or NULL.
    Value,
}

/// Correlated conditions of a subquery, while they are moved up.
#[derive(Debug, Default)]
struct Trace {
    /// Columns of the subquery that the conditions read.
    columns: Vec<Column>,
    may_be_null: bool,
    /// A condition is not an equality with a column, so that it may not pass an aggregation.
    any_other: bool,
    /// There is an aggregation without GROUP BY below, whose values for no rows are all NULL.
    is_scalar: bool,
}

/// Trace of a subquery from which DataFusion's rule may extract conditions; `None` if the extraction changes its rows.
fn traced(plan: &LogicalPlan, asked: Asked) -> Result<Option<Trace>> {
    let trace = trace(plan, asked)?;
    // The columns become columns of an alias, matched by name.
    Ok(trace.filter(|trace| are_alone(trace, plan.schema())))
}

/// True if the names of the trace's columns are unique in the schema.
fn are_alone(trace: &Trace, schema: &DFSchema) -> bool {
    let alone = |column: &Column| {
        let mut of_name = schema.iter().filter(|(_, field)| field.name() == &column.name);
        let (first, second) = (of_name.next(), of_name.next());
        second.is_none() && first.is_none_or(|(relation, _)| relation == column.relation.as_ref())
    };
    let mut names: Vec<_> = trace.columns.iter().map(|column| &column.name).collect();
    names.sort_unstable();
    names.windows(2).all(|pair| pair[0] != pair[1]) && trace.columns.iter().all(alone)
}

fn trace(plan: &LogicalPlan, asked: Asked) -> Result<Option<Trace>> {
    if !reads_outer(plan)? {
        return Ok(Some(Trace::default()));
    }
    let mut reads_here = false;
    plan.apply_expressions(|expression| {
        reads_here |= expression_reads_outer(expression, plan)?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    if reads_here && !matches!(plan, LogicalPlan::Filter(_)) {
        return Ok(None);
    }
    match plan {
        LogicalPlan::Filter(filter) => {
            let Some(mut trace) = trace(&filter.input, asked)? else { return Ok(None) };
            for part in split_conjunction(&filter.predicate) {
                if !expression_reads_outer(part, plan)? {
                    continue;
                }
                let nested = part.exists(|part| Ok(subquery(part).is_some()))?;
                if nested || part.is_volatile() {
                    return Ok(None);
                }
                trace.any_other |= !is_equality(part);
                for column in part.column_refs() {
                    let field = filter.input.schema().field_from_column(column)?;
                    trace.may_be_null |= field.is_nullable();
                    if !trace.columns.contains(column) {
                        trace.columns.push(column.clone());
                    }
                }
            }
            Ok(Some(trace))
        }
        LogicalPlan::Projection(projection) => {
            Ok(trace(&projection.input, asked)?.filter(|trace| keeps_columns(trace, &projection.expr)))
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let Some(mut trace) = trace(&alias.input, asked)? else { return Ok(None) };
            // Columns that a projection below does not output cannot be read above it.
            let is_there = |column: &Column| alias.input.schema().has_column(column);
            if !are_alone(&trace, alias.input.schema()) || !trace.columns.iter().all(is_there) {
                return Ok(None);
            }
            for column in &mut trace.columns {
                *column = Column::new(Some(alias.alias.clone()), column.name.clone());
            }
            Ok(Some(trace))
        }
        LogicalPlan::Join(join) => {
            use JoinType::{Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi};
            let left_goes = matches!(join.join_type, Inner | Left | LeftSemi | LeftAnti | LeftMark);
            let right_goes = matches!(join.join_type, Inner | Right | RightSemi | RightAnti | RightMark);
            if (reads_outer(&join.left)? && !left_goes) || (reads_outer(&join.right)? && !right_goes) {
                return Ok(None);
            }
            let (Some(mut trace), Some(other)) = (trace(&join.left, asked)?, trace(&join.right, asked)?) else {
                return Ok(None);
            };
            trace.columns.extend(other.columns);
            trace.may_be_null |= other.may_be_null;
            trace.any_other |= other.any_other;
            trace.is_scalar |= other.is_scalar;
            Ok(Some(trace).filter(|trace| !trace.is_scalar))
        }
        LogicalPlan::Aggregate(aggregate) => match trace(&aggregate.input, asked)? {
            Some(trace) => trace_groups(trace, aggregate, asked),
            None => Ok(None),
        },
        LogicalPlan::Distinct(Distinct::All(input)) => trace(input, asked),
        LogicalPlan::Limit(limit) => {
            let keeps = matches!(limit.get_skip_type()?, SkipType::Literal(0))
                && matches!(limit.get_fetch_type()?, FetchType::Literal(None | Some(1..)));
            match asked == Asked::Exists && keeps {
                true => trace(&limit.input, asked),
                false => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

/// True if a projection to these expressions keeps the trace's columns under their names.
fn keeps_columns(trace: &Trace, expressions: &[Expr]) -> bool {
    let passes = |expression: &Expr| match trace.is_scalar {
        true => is_column(&expression.clone().unalias()),
        false => true,
    };
    let is_own = |expression: &Expr| {
        let (relation, name) = expression.qualified_name();
        // A cast has the same name as its column.
        if !matches!(expression, Expr::Column(_)) {
            let is_named = |column: &Column| column.name == name || column.flat_name() == name;
            return !trace.columns.iter().any(is_named);
        }
        let of_name: Vec<_> = trace.columns.iter().filter(|column| column.name == name).collect();
        of_name.is_empty() || of_name.iter().any(|own| own.relation == relation)
    };
    expressions.iter().all(|expression| passes(expression) && is_own(expression))
}

/// The trace above an aggregation of rows with this trace.
fn trace_groups(mut trace: Trace, aggregate: &Aggregate, asked: Asked) -> Result<Option<Trace>> {
    let is_set = aggregate.group_expr.iter().any(|group| matches!(group, Expr::GroupingSet(_)));
    if is_set || trace.is_scalar || (trace.any_other && !aggregate.aggr_expr.is_empty()) {
        return Ok(None);
    }
    if aggregate.group_expr.is_empty() {
        if asked != Asked::True || !are_null_for_no_rows(&aggregate.aggr_expr, &aggregate.schema)? {
            return Ok(None);
        }
        trace.is_scalar = true;
    }
    // Groups and aggregates must be the columns themselves or have other names.
    let is_right = aggregate.group_expr.iter().chain(&aggregate.aggr_expr).all(|expression| {
        let (_, name) = expression.qualified_name();
        let named = trace.columns.iter().any(|column| column.name == name);
        !named || matches!(expression, Expr::Column(column) if trace.columns.contains(column))
    });
    Ok(Some(trace).filter(|_| is_right))
}

/// True for `column = outer`: a group with one value of the column belongs to one outer row.
fn is_equality(part: &Expr) -> bool {
    let Expr::BinaryExpr(binary) = part else { return false };
    if binary.op != Operator::Eq {
        return false;
    }
    let is_outer = |side: &Expr| side.contains_outer() && !side.any_column_refs();
    match (binary.left.as_ref(), binary.right.as_ref()) {
        (Expr::Column(_), outer) | (outer, Expr::Column(_)) => is_outer(outer),
        _ => false,
    }
}

/// True if all aggregates are NULL for no rows.
fn are_null_for_no_rows(aggregates: &[Expr], schema: &DFSchema) -> Result<bool> {
    let offset = schema.fields().len() - aggregates.len();
    for (place, aggregate) in aggregates.iter().enumerate() {
        let ty: &DataType = schema.field(offset + place).data_type();
        let Expr::AggregateFunction(function) = aggregate.clone().unalias() else { return Ok(false) };
        if !function.func.default_value(ty)?.is_null() {
            return Ok(false);
        }
    }
    Ok(true)
}
