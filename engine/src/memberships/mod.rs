//! IN, NOT IN, EXISTS and NOT EXISTS of subqueries, for cases where DataFusion's own rule returns FALSE for NULL, or a
//! wrong row.
//!
//! ```text
//!   Filter: x NOT IN (S) OR b = 3            marks of DataFusion's joins are TRUE or FALSE; SQL also has NULL
//!     ─►  Filter: NOT CASE WHEN match THEN TRUE WHEN no row THEN FALSE
//!                          WHEN x IS NULL OR a NULL in S THEN NULL ELSE FALSE END OR b = 3
//!           Left Join: x = v                 the match: distinct values of S, so that no row is duplicated
//!             Left Join: keys                state of S for these keys: no row, rows, or rows with a NULL
//! ```
//!
//! Left     to DataFusion: conditions for which its semi joins, anti joins and marks are correct (`trusted`). Their
//!          plans are unchanged.
//! Keys     of a correlated subquery are the outer columns that it reads. `domain` carries them through the subquery.
//! NULL     follows SQL, in filters, values, HAVING, windows and join conditions.
//! Refused  with an error message: volatile functions in rows that would be read twice, and nodes that keys cannot be
//!          carried through.

mod domain;
mod scope;
mod trusted;
mod value;

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, Expr, Filter, Join, JoinType, LogicalPlan, Projection, Subquery, Window, not,
};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::plan::logical_walk::each_part;
use crate::plan::missing::Missing;
use scope::{reads_outer, references, subquery};
use value::{Lowering, projected};

/// DataFusion's rule for the remaining conditions.
pub(crate) const BEFORE: &str = "decorrelate_predicate_subquery";

/// Prefix of names that the rule adds to a plan.
const NAME: &str = "__membership";

type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// Adds the rule in front of DataFusion's [`BEFORE`].
pub(crate) fn add_to(rules: &mut Vec<Rule>, missing: &mut Missing) {
    match rules.iter().position(|rule| rule.name() == BEFORE) {
        Some(at) => rules.insert(at, Arc::new(Memberships)),
        None => missing.note(BEFORE),
    }
}

#[derive(Debug)]
struct Memberships;

impl OptimizerRule for Memberships {
    fn name(&self) -> &str {
        "millpond_memberships"
    }

    /// The rule recurses by itself: subqueries are rewritten before the nodes that contain them.
    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        // Most plans are unaffected and need only one walk by reference.
        match is_concerned(&plan, config)? {
            true => rewrite(plan, config),
            false => Ok(Transformed::no(plan)),
        }
    }
}

/// True if a node of the plan, or of one of its subqueries at any depth, has an IN or EXISTS that DataFusion's rule
/// answers wrongly.
fn is_concerned(plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Result<bool> {
    plan.exists(|node| {
        let (mut any, mut below) = (false, false);
        let mut inner = vec![];
        node.apply_expressions(|expression| {
            each_part(expression, |part| {
                if let Some(subquery) = subquery(part) {
                    any |= is_membership(part);
                    inner.push(Arc::clone(&subquery.subquery));
                }
            })?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        for plan in inner {
            below = below || is_concerned(&plan, config)?;
        }
        Ok(below
            || any
                && match node {
                    LogicalPlan::Filter(filter) => !apart(filter, config)?.1.is_empty(),
                    node => is_lowered(node),
                })
    })
}

/// True for a node in which every IN and EXISTS is lowered. In a filter, some may stay.
fn is_lowered(node: &LogicalPlan) -> bool {
    use LogicalPlan::{Aggregate, Join, Projection, Window};
    matches!(node, Projection(_) | Aggregate(_) | Window(_) | Join(_))
}

fn rewrite(plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up(|node| {
        let node = node.map_subqueries(|subquery| {
            let LogicalPlan::Subquery(subquery) = subquery else {
                return Ok(Transformed::no(subquery));
            };
            let plan = Arc::unwrap_or_clone(subquery.subquery);
            let plan = rewrite(plan, config)?;
            let outer = if plan.transformed { plan.data.all_out_ref_exprs() } else { subquery.outer_ref_columns };
            let spans = subquery.spans;
            Ok(plan.update_data(|plan| {
                LogicalPlan::Subquery(Subquery { subquery: Arc::new(plan), outer_ref_columns: outer, spans })
            }))
        })?;
        let inner = node.transformed;
        let mut node = lower(node.data, config)?;
        node.transformed |= inner;
        Ok(node)
    })
}

/// True for IN and EXISTS, and for scalar subqueries that this rule has correlated, because DataFusion's rule would
/// decorrelate these wrongly.
fn is_membership(expression: &Expr) -> bool {
    match expression {
        Expr::InSubquery(_) | Expr::Exists(_) => true,
        Expr::ScalarSubquery(subquery) => {
            let is_own = |node: &LogicalPlan| match node {
                LogicalPlan::SubqueryAlias(alias) if alias.alias.table().starts_with(NAME) => reads_outer(&alias.input),
                _ => Ok(false),
            };
            subquery.subquery.exists(is_own).unwrap_or(false)
        }
        _ => false,
    }
}

/// True if an expression contains IN or EXISTS of a subquery.
fn holds(expression: &Expr) -> Result<bool> {
    let mut found = false;
    each_part(expression, |part| found |= is_membership(part))?;
    Ok(found)
}

/// True if an expression of the node, or of a subquery of the node at any depth, contains IN or EXISTS.
fn holds_membership(node: &LogicalPlan) -> bool {
    let mut found = false;
    let looked = node.apply_expressions(|expression| {
        expression.apply(|part| {
            found |= match part {
                Expr::InSubquery(_) | Expr::Exists(_) => true,
                Expr::ScalarSubquery(subquery) => subquery.subquery.exists(|node| Ok(holds_membership(node)))?,
                _ => false,
            };
            Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })
    });
    found || looked.is_err()
}

/// True if an expression of the plan contains IN or EXISTS.
fn is_held_in(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| Ok(holds_membership(node)))
}

/// Lowers a node whose inputs and subqueries are already lowered.
fn lower(node: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let mut any = false;
    node.apply_expressions(|expression| {
        any |= holds(expression)?;
        Ok(if any { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !any {
        return Ok(Transformed::no(node));
    }
    match node {
        LogicalPlan::Filter(filter) => lower_filter(filter, config),
        LogicalPlan::Projection(projection) => lower_projection(projection, config).map(Transformed::yes),
        LogicalPlan::Aggregate(aggregate) => lower_aggregate(aggregate, config).map(Transformed::yes),
        LogicalPlan::Window(window) => lower_window(window, config).map(Transformed::yes),
        LogicalPlan::Join(join) => lower_join(join, config),
        node => Ok(Transformed::no(node)),
    }
}

/// Position of an expression in a condition; determines whether NULL may be replaced by FALSE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The whole condition, or an operand of its top-level AND.
    Top,
    /// Below OR and AND only: NULL and FALSE are equivalent.
    True,
    /// Below a NOT of these: NULL and TRUE are equivalent.
    False,
    /// NULL must be preserved.
    Value,
}

/// Replaces each IN and EXISTS that DataFusion's rule would answer wrongly by its value over `lowering`'s input.
fn replace(expression: Expr, place: Place, lowering: &mut Lowering<'_>) -> Result<Transformed<Expr>> {
    if is_membership(&expression) {
        let trusted = lowering.is_trusting() && trusted::is_right(&expression, place, lowering.schema())?;
        return match trusted {
            true => Ok(Transformed::no(expression)),
            false => lowering.value(expression).map(Transformed::yes),
        };
    }
    if let Expr::Not(inner) = &expression
        && place == Place::Top
        && is_membership(inner)
    {
        // DataFusion's rule merges NOT and its operand.
        let whole = match inner.as_ref() {
            Expr::InSubquery(part) => Expr::InSubquery(InSubquery { negated: !part.negated, ..part.clone() }),
            Expr::Exists(part) => Expr::Exists(Exists { negated: !part.negated, ..part.clone() }),
            other => other.clone(),
        };
        let trusted = lowering.is_trusting() && trusted::is_right(&whole, place, lowering.schema())?;
        return match trusted {
            true => Ok(Transformed::no(expression)),
            false => Ok(Transformed::yes(not(lowering.value(inner.as_ref().clone())?))),
        };
    }
    let below = match (&expression, place) {
        (Expr::BinaryExpr(binary), Place::Top | Place::True | Place::False) if binary.op.is_logic_operator() => {
            if place == Place::False { Place::False } else { Place::True }
        }
        (Expr::Not(_), Place::Top | Place::True) => Place::False,
        (Expr::Not(_), Place::False) => Place::True,
        (Expr::IsTrue(_) | Expr::IsNotTrue(_), _) => Place::True,
        _ => Place::Value,
    };
    expression.map_children(|child| replace(child, below, lowering))
}

/// Like `replace`, for an expression used as a value.
fn replace_value(expression: Expr, lowering: &mut Lowering<'_>) -> Result<Expr> {
    replace(expression, Place::Value, lowering).data()
}

/// Splits a condition into parts that stay below the added joins, and the others.
fn apart<'f>(filter: &'f Filter, config: &dyn OptimizerConfig) -> Result<(Vec<&'f Expr>, Vec<&'f Expr>)> {
    let schema = filter.input.schema();
    let (mut stay, mut go) = (vec![], vec![]);
    for part in split_conjunction(&filter.predicate) {
        if !holds(part)? {
            stay.push(part);
            continue;
        }
        let mut look = Lowering::look(Arc::clone(schema), config);
        let is_replaced = replace(part.clone(), Place::Top, &mut look)?.transformed;
        match !is_replaced && trusted::is_answered(part, schema)? {
            true => stay.push(part),
            // The whole part: DataFusion's rule fails on a partly replaced condition.
            false => go.push(part),
        }
    }
    Ok((stay, go))
}

fn lower_filter(filter: Filter, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let schema = Arc::clone(filter.input.schema());
    let (stay, go) = apart(&filter, config)?;
    if go.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Filter(filter)));
    }
    let go: Vec<Expr> = go.into_iter().cloned().collect();
    let stay = conjunction(stay.into_iter().cloned());
    let input = filter.input;
    let input = match stay {
        Some(predicate) => LogicalPlan::Filter(Filter::try_new(predicate, input)?),
        None => Arc::unwrap_or_clone(input),
    };
    let mut lowering = Lowering::of(input, config);
    let mut parts = vec![];
    for part in go {
        parts.push(replace(part, Place::Top, &mut lowering)?.data);
    }
    let mut plan = lowering.into_plan();
    if let Some(predicate) = conjunction(parts) {
        plan = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(plan))?);
    }
    projected(plan, &schema).map(Transformed::yes)
}

fn lower_projection(projection: Projection, config: &dyn OptimizerConfig) -> Result<LogicalPlan> {
    let Projection { expr, input, schema, .. } = projection;
    let mut lowering = Lowering::of(Arc::unwrap_or_clone(input), config);
    let mut expressions = vec![];
    // Names come from the schema: DataFusion's rule for ANY and ALL has renamed the expressions.
    for (expression, (relation, field)) in expr.into_iter().zip(schema.iter()) {
        let expression = replace_value(expression, &mut lowering)?;
        let (own_relation, own_name) = expression.qualified_name();
        expressions.push(match own_relation.as_ref() == relation && own_name == *field.name() {
            true => expression,
            false => expression.alias_qualified(relation.cloned(), field.name()),
        });
    }
    Projection::try_new(expressions, Arc::new(lowering.into_plan())).map(LogicalPlan::Projection)
}

/// Computes each IN and EXISTS of the expressions as a column of a projection above `input`, and replaces it by that
/// column.
fn columns(
    input: LogicalPlan,
    expressions: Vec<Expr>,
    config: &dyn OptimizerConfig,
) -> Result<(LogicalPlan, Vec<Expr>)> {
    let schema = Arc::clone(input.schema());
    let mut lowering = Lowering::of(input, config);
    let mut made: HashMap<Expr, Column> = HashMap::new();
    let mut values = vec![];
    let mut read = vec![];
    for expression in expressions {
        let expression = expression.transform_down(|part| {
            if !is_membership(&part) {
                return Ok(Transformed::no(part));
            }
            if let Some(column) = made.get(&part) {
                return Ok(Transformed::yes(Expr::Column(column.clone())));
            }
            let column = Column::new_unqualified(lowering.name());
            values.push(lowering.value(part.clone())?.alias(&column.name));
            made.insert(part, column.clone());
            Ok(Transformed::yes(Expr::Column(column)))
        });
        read.push(expression.data()?);
    }
    let kept = schema.iter().map(Expr::from).chain(values).collect();
    let plan = LogicalPlan::Projection(Projection::try_new(kept, Arc::new(lowering.into_plan()))?);
    Ok((plan, read))
}

/// Renames the columns of a rewritten node to those of `schema`, by position.
fn renamed(plan: LogicalPlan, places: impl Iterator<Item = usize>, schema: &DFSchema) -> Result<LogicalPlan> {
    let columns = plan.schema().columns();
    let rename = |(place, (relation, field)): (usize, (Option<&_>, &Arc<_>))| {
        let (own, wanted) = (columns[place].clone(), Column::from((relation, field)));
        match own == wanted {
            true => Expr::Column(own),
            false => Expr::Column(own).alias_qualified(wanted.relation, wanted.name),
        }
    };
    let expressions = places.zip(schema.iter()).map(rename).collect();
    Projection::try_new(expressions, Arc::new(plan)).map(LogicalPlan::Projection)
}

fn lower_aggregate(aggregate: Aggregate, config: &dyn OptimizerConfig) -> Result<LogicalPlan> {
    let Aggregate { input, mut group_expr, aggr_expr, schema, .. } = aggregate;
    let num_groups = group_expr.len();
    group_expr.extend(aggr_expr);
    let (input, mut groups) = columns(Arc::unwrap_or_clone(input), group_expr, config)?;
    let aggregates = groups.split_off(num_groups);
    let plan = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(input), groups, aggregates)?);
    renamed(plan, 0..schema.fields().len(), &schema)
}

fn lower_window(window: Window, config: &dyn OptimizerConfig) -> Result<LogicalPlan> {
    let Window { input, window_expr, schema, .. } = window;
    let kept = input.schema().fields().len();
    let (input, windows) = columns(Arc::unwrap_or_clone(input), window_expr, config)?;
    let added = input.schema().fields().len() - kept;
    let plan = LogicalPlan::Window(Window::try_new(windows, Arc::new(input))?);
    let places = (0..kept).chain(kept + added..plan.schema().fields().len());
    renamed(plan, places, &schema)
}

/// Side of a join that provides all columns of a condition and of its subqueries; `None` if both do.
fn side(part: &Expr, left: &DFSchema, right: &DFSchema) -> Result<Option<bool>> {
    let (mut from_left, mut from_right) = (false, false);
    for column in references(part)? {
        if left.is_column_from_schema(&column) {
            from_left = true;
        } else if right.is_column_from_schema(&column) {
            from_right = true;
        }
    }
    Ok(match (from_left, from_right) {
        (_, false) => Some(true),
        (false, true) => Some(false),
        (true, true) => None,
    })
}

/// Lowers join conditions that contain IN or EXISTS: to filters below an inner side, filters above an inner join, or
/// columns of an outer side.
fn lower_join(join: Join, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let schema = Arc::clone(&join.schema);
    let (mut left, mut right) = (join.left.as_ref().clone(), join.right.as_ref().clone());
    let (left_schema, right_schema) = (Arc::clone(left.schema()), Arc::clone(right.schema()));
    let Some(filter) = join.filter.clone() else {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    };
    use JoinType::{Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi};
    // Rows removed by a condition on this side alone contribute nothing.
    let left_filters = matches!(join.join_type, Inner | LeftSemi | Right | RightSemi | RightAnti | RightMark);
    let right_filters = matches!(join.join_type, Inner | RightSemi | Left | LeftSemi | LeftAnti | LeftMark);
    let (mut stay, mut above) = (vec![], vec![]);
    let filtered = |plan: LogicalPlan, part: Expr| -> Result<LogicalPlan> {
        lower_filter(Filter::try_new(part, Arc::new(plan))?, config).data()
    };
    for part in split_conjunction_owned(filter) {
        if !holds(&part)? {
            stay.push(part);
            continue;
        }
        match side(&part, &left_schema, &right_schema)? {
            Some(true) if left_filters => left = filtered(left, part)?,
            Some(false) if right_filters => right = filtered(right, part)?,
            _ if join.join_type == Inner => above.push(part),
            // Each IN or EXISTS may still read only one side.
            _ => {
                let part = part.transform_down(|part| {
                    if !is_membership(&part) {
                        return Ok(Transformed::no(part));
                    }
                    let plan = match side(&part, &left_schema, &right_schema)? {
                        Some(true) => &mut left,
                        Some(false) => &mut right,
                        None => return Err(refused(&part, "reads both sides of an outer join")),
                    };
                    let (with, mut read) = columns(plan.clone(), vec![part], config)?;
                    *plan = with;
                    Ok(Transformed::yes(read.pop().unwrap_or_default()))
                });
                stay.push(part.data()?);
            }
        }
    }
    let plan = LogicalPlan::Join(Join::try_new(
        Arc::new(left),
        Arc::new(right),
        join.on,
        conjunction(stay),
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?);
    let plan = projected(plan, &schema)?;
    match conjunction(above) {
        Some(part) => filtered(plan, part).map(Transformed::yes),
        None => Ok(Transformed::yes(plan)),
    }
}

/// Error for an unsupported statement.
fn refused(what: &Expr, why: &str) -> datafusion::error::DataFusionError {
    let kind = match what {
        Expr::InSubquery(part) if part.negated => "NOT IN",
        Expr::InSubquery(_) => "IN",
        _ => "EXISTS",
    };
    datafusion::common::not_impl_datafusion_err!(
        "{kind} of a subquery that {why} is not supported: join the tables in FROM, and compare in WHERE"
    )
}
