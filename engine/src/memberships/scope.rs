//! Outer columns in a subquery, resolved to the query level that owns them.
//!
//!   SELECT … FROM t WHERE EXISTS (SELECT … FROM u WHERE EXISTS (SELECT … FROM v WHERE v.a = u.a AND v.b = t.b))
//!                                      u.a belongs to the level of u, t.b to that of t: the nearest with the name

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DFSchemaRef};
use datafusion::error::Result;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan, Subquery};

use crate::plan::logical_walk::each_part;

/// Subquery of an expression, if any.
pub(super) fn subquery(expression: &Expr) -> Option<&Subquery> {
    match expression {
        Expr::Exists(part) => Some(&part.subquery),
        Expr::InSubquery(part) => Some(&part.subquery),
        Expr::SetComparison(part) => Some(&part.subquery),
        Expr::ScalarSubquery(subquery) => Some(subquery),
        _ => None,
    }
}

/// Schemas of levels nearer than the level in question.
pub(super) type Nearer = Vec<DFSchemaRef>;

fn is_nearer(nearer: &Nearer, column: &Column) -> bool {
    nearer.iter().any(|schema| schema.is_column_from_schema(column))
}

/// Calls `visit_one` for each outer column that a plan reads at any depth and that no level within the plan owns.
pub(super) fn visit(plan: &LogicalPlan, nearer: &Nearer, visit_one: &mut dyn FnMut(&Column)) -> Result<()> {
    plan.apply(|node| {
        if let LogicalPlan::Subquery(lateral) = node {
            // In a lateral subquery, references to its siblings cannot be distinguished here.
            visit(&lateral.subquery, nearer, visit_one)?;
            return Ok(TreeNodeRecursion::Jump);
        }
        node.apply_expressions(|expression| {
            visit_expression(expression, node, nearer, visit_one)?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(())
}

/// Like `visit`, for an expression of a node.
fn visit_expression(
    expression: &Expr,
    node: &LogicalPlan,
    nearer: &Nearer,
    visit_one: &mut dyn FnMut(&Column),
) -> Result<()> {
    let mut subqueries = vec![];
    each_part(expression, |part| {
        if let Expr::OuterReferenceColumn(_, column) = part
            && !is_nearer(nearer, column)
        {
            visit_one(column);
        }
        subqueries.extend(subquery(part));
    })?;
    if subqueries.is_empty() {
        return Ok(());
    }
    let mut nearer = nearer.clone();
    nearer.push(Arc::new(merge_schema(&node.inputs())));
    for subquery in subqueries {
        visit(&subquery.subquery, &nearer, visit_one)?;
    }
    Ok(())
}

/// True if a plan reads a column of any outer query.
pub(super) fn reads_outer(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    visit(plan, &vec![], &mut |_| found = true)?;
    Ok(found)
}

/// True if a plan reads a column of `outer`.
pub(super) fn reads(plan: &LogicalPlan, outer: &DFSchema) -> Result<bool> {
    let mut found = false;
    visit(plan, &vec![], &mut |column| found |= outer.is_column_from_schema(column))?;
    Ok(found)
}

/// True if an expression of `node` reads a column of `outer`.
pub(super) fn expression_reads(expression: &Expr, node: &LogicalPlan, outer: &DFSchema) -> Result<bool> {
    let mut found = false;
    visit_expression(expression, node, &vec![], &mut |column| found |= outer.is_column_from_schema(column))?;
    Ok(found)
}

/// True if an expression of `node` reads a column of any outer query.
pub(super) fn expression_reads_outer(expression: &Expr, node: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    visit_expression(expression, node, &vec![], &mut |_| found = true)?;
    Ok(found)
}

/// Columns of a node's inputs that an expression of the node reads, including through subqueries.
pub(super) fn references(expression: &Expr) -> Result<Vec<Column>> {
    let mut columns = vec![];
    expression.apply(|part| {
        if let Expr::Column(column) = part {
            columns.push(column.clone());
        }
        if let Some(subquery) = subquery(part) {
            visit(&subquery.subquery, &vec![], &mut |column| columns.push(column.clone()))?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(columns)
}

/// Replaces outer columns in nested subqueries, which now refer to columns of the nearer query.
pub(super) fn replace(plan: LogicalPlan, nearer: &Nearer, by: &dyn Fn(&Column) -> Option<Expr>) -> Result<LogicalPlan> {
    let of_node = |node: LogicalPlan| {
        let inputs = Arc::new(merge_schema(&node.inputs()));
        node.map_expressions(|expression| {
            expression.transform_down(|part| match part {
                Expr::OuterReferenceColumn(field, column) => {
                    let other = if is_nearer(nearer, &column) { None } else { by(&column) };
                    Ok(match other {
                        Some(other) => Transformed::yes(other),
                        None => Transformed::no(Expr::OuterReferenceColumn(field, column)),
                    })
                }
                part => {
                    let mut nearer = nearer.clone();
                    nearer.push(Arc::clone(&inputs));
                    with_subquery(part, &|plan| replace(plan, &nearer, by))
                }
            })
        })
    };
    plan.transform_up(of_node).data()
}

/// Replaces the subquery of an expression, if it has one.
pub(super) fn with_subquery(
    mut expression: Expr,
    other: &dyn Fn(LogicalPlan) -> Result<LogicalPlan>,
) -> Result<Transformed<Expr>> {
    let own = match &mut expression {
        Expr::Exists(part) => &mut part.subquery,
        Expr::InSubquery(part) => &mut part.subquery,
        Expr::SetComparison(part) => &mut part.subquery,
        Expr::ScalarSubquery(subquery) => subquery,
        _ => return Ok(Transformed::no(expression)),
    };
    let plan = other(own.subquery.as_ref().clone())?;
    own.outer_ref_columns = plan.all_out_ref_exprs();
    own.subquery = Arc::new(plan);
    Ok(Transformed::yes(expression))
}
