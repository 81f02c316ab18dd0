//! Columns of USING and NATURAL: one merged column for both sides, also in RIGHT, LEFT and FULL joins; and TABLESAMPLE.
//!
//! ```text
//!   a FULL JOIN b USING (k)          k        from a, or from b if a has no row
//!   a RIGHT JOIN b USING (k)         k        from b
//!   a LEFT JOIN b USING (k)          k        from a
//!   a.k, b.k                         the column of each side, NULL if it has no row
//! ```
//!
//! DataFusion alone uses the left side's column for `k`, and for `*` the column of the side whose name is
//! alphabetically first, at its position.
//!
//!   Semi join, Using (a, b).k = a.k, (a, b).k = b.k, with nothing     a note: `k` is (a, b).k, once in `*`; removed
//!                                                                     before DataFusion's rules see it
//!     Project coalesce(a.k, b.k) AS (a, b).k, a.k, a.x, b.k, b.y
//!       Full join: a.k = b.k
//!
//! Sides'   own columns are kept if the statement qualifies them with their table, or if that is unknown.
//! Seen     are joins in parentheses that contain one join: the syntax tree adds the parentheses (`syntax`).
//! Order    of `*`: the left side's columns at their positions, then the right side's other columns.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{
    Column, DFSchema, ExprSchema, JoinConstraint, JoinType, NullEquality, TableReference, internal_err, plan_err,
};
use datafusion::error::Result;
use datafusion::functions::expr_fn::coalesce;
use datafusion::logical_expr::expr::Expr;
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::logical_expr::utils::expand_wildcard;
use datafusion::logical_expr::{EmptyRelation, Join, LogicalPlan, LogicalPlanBuilder, Projection, cast, lit};
use datafusion::sql::sqlparser::ast::{self, JoinOperator, TableFactor, TableWithJoins};

use crate::mends::syntax::Named;

/// Plans joins in parentheses, and refuses TABLESAMPLE.
#[derive(Debug)]
pub(super) struct Relations;

impl RelationPlanner for Relations {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        if let TableFactor::Table { sample: Some(_), .. } | TableFactor::Derived { sample: Some(_), .. } = &relation {
            return plan_err!(
                "TABLESAMPLE is not answered here: write WHERE random() < 0.1 for about a tenth of the rows, \
                 or LIMIT for a number of them"
            );
        }
        let TableFactor::NestedJoin { table_with_joins, alias } = relation else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let named = Named::of(alias.as_ref());
        if let (Some(alias), None) = (&alias, &named) {
            // With an alias, the join has the columns of `*`.
            let plan = context.plan(TableFactor::NestedJoin { table_with_joins, alias: None })?;
            let plan = once_each(plan)?;
            return Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, Some(alias.clone())))));
        }
        let named = named.unwrap_or(Named::Unknown);
        let TableWithJoins { relation, mut joins } = *table_with_joins;
        let merges = match joins.as_slice() {
            [join] => kind(join).map(|(join_type, constraint)| (join_type, constraint.clone())),
            _ => None,
        };
        let Some((join_type, constraint)) = merges else {
            let table_with_joins = Box::new(TableWithJoins { relation, joins });
            return Ok(RelationPlanning::Original(Box::new(TableFactor::NestedJoin { table_with_joins, alias: None })));
        };
        let left = context.plan(relation)?;
        let Some(join) = joins.pop() else { return internal_err!("a list of one join has one") };
        let right = context.plan(join.relation)?;
        let plan = joined(left, right, join_type, &constraint, &named, context)?;
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, None))))
    }
}

/// Type and constraint of a join that merges columns.
pub(super) fn kind(join: &ast::Join) -> Option<(JoinType, &ast::JoinConstraint)> {
    let (join_type, constraint) = match &join.join_operator {
        JoinOperator::Join(constraint) | JoinOperator::Inner(constraint) => (JoinType::Inner, constraint),
        JoinOperator::Left(constraint) | JoinOperator::LeftOuter(constraint) => (JoinType::Left, constraint),
        JoinOperator::Right(constraint) | JoinOperator::RightOuter(constraint) => (JoinType::Right, constraint),
        JoinOperator::FullOuter(constraint) => (JoinType::Full, constraint),
        _ => return None,
    };
    let merges = matches!(constraint, ast::JoinConstraint::Using(_) | ast::JoinConstraint::Natural);
    (merges && !is_lateral(&join.relation)).then_some((join_type, constraint))
}

/// True for a relation that may read columns of the relations before it.
pub(super) fn is_lateral(relation: &TableFactor) -> bool {
    match relation {
        TableFactor::Derived { lateral, .. } | TableFactor::Function { lateral, .. } => *lateral,
        TableFactor::UNNEST { .. } => true,
        _ => false,
    }
}

/// Two columns that are merged.
struct Merged {
    left: Column,
    right: Column,
    /// The merged column.
    column: Column,
    value: Expr,
    /// Columns of the sides that are kept because the statement may qualify them.
    own: Vec<Column>,
}

fn joined(
    left: LogicalPlan,
    right: LogicalPlan,
    join_type: JoinType,
    constraint: &ast::JoinConstraint,
    named: &Named,
    context: &dyn RelationPlannerContext,
) -> Result<LogicalPlan> {
    let keys = match constraint {
        ast::JoinConstraint::Using(names) => {
            let mut keys = Vec::with_capacity(names.len());
            for name in names {
                let [part] = name.0.as_slice() else {
                    return plan_err!("USING takes names of columns, and {name} is none");
                };
                let Some(ident) = part.as_ident() else {
                    return plan_err!("USING takes names of columns, and {name} is none");
                };
                keys.push(context.normalize_ident(ident.clone()));
            }
            keys
        }
        _ => common(&left, &right)?,
    };
    if keys.is_empty() {
        // NATURAL without a common column has no condition; DataFusion alone would always plan a cross join.
        let builder = LogicalPlanBuilder::from(left);
        return match join_type {
            JoinType::Inner => builder.cross_join(right)?.build(),
            _ => builder.join_on(right, join_type, [lit(true)])?.build(),
        };
    }
    let mut merged = Vec::with_capacity(keys.len());
    for key in &keys {
        merged.push(of_key(&left, &right, key, join_type, named)?);
    }
    let sides = [left.schema().columns(), right.schema().columns()];
    let on = merged.iter().map(|one| (one.left.clone(), one.right.clone())).unzip::<_, _, Vec<Column>, Vec<Column>>();
    let plan = LogicalPlanBuilder::from(left).join(right, join_type, on, None)?.build()?;
    let (mut columns, mut means) = (Vec::new(), Vec::new());
    for column in sides.into_iter().flatten() {
        let one = merged.iter().find(|one| one.column.name == column.name);
        if let Some(one) = one.filter(|one| one.left == column) {
            columns.push(match &one.value {
                Expr::Column(value) if *value == one.column => one.value.clone(),
                value => value.clone().alias_qualified(one.column.relation.clone(), &one.column.name),
            });
            means.extend(one.own.iter().map(|own| (Expr::Column(one.column.clone()), Expr::Column(own.clone()))));
        }
        if one.is_none_or(|one| one.own.contains(&column)) {
            columns.push(Expr::Column(column));
        }
    }
    let plan = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(plan))?);
    if means.is_empty() { Ok(plan) } else { noted(plan, means) }
}

fn of_key(left: &LogicalPlan, right: &LogicalPlan, key: &str, join_type: JoinType, named: &Named) -> Result<Merged> {
    let found = |side: &LogicalPlan| {
        let using = side.using_columns()?;
        Column::from_name(key).normalize_with_schemas_and_ambiguity_check(&[&[side.schema().as_ref()]], &using)
    };
    let (l, r) = (found(left)?, found(right)?);
    let mut own = Vec::new();
    if named.names(key) {
        let all = left.schema().columns().into_iter().chain(right.schema().columns());
        own.extend(all.filter(|column| column.name == key && !is_made(column)));
    }
    let value = match join_type {
        JoinType::Right => Expr::Column(r.clone()),
        JoinType::Full => {
            let (a, b) = (typed(left.schema(), &l)?, typed(right.schema(), &r)?);
            match comparison_coercion(&a, &b) {
                Some(common) => {
                    let of = |column: &Column, own: &_| match *own == common {
                        true => Expr::Column(column.clone()),
                        false => cast(Expr::Column(column.clone()), common.clone()),
                    };
                    coalesce(vec![of(&l, &a), of(&r, &b)])
                }
                None => return plan_err!("the columns {l} and {r} of USING have no common type: cast one of them"),
            }
        }
        _ => Expr::Column(l.clone()),
    };
    let column = match &value {
        Expr::Column(column) if own.is_empty() => column.clone(),
        _ => {
            let name = |column: &Column| column.relation.as_ref().map_or(String::new(), ToString::to_string);
            let relation = named.merged().map_or_else(|| format!("({}, {})", name(&l), name(&r)), String::from);
            Column::new(Some(TableReference::bare(relation)), key)
        }
    };
    Ok(Merged { left: l, right: r, column, value, own })
}

fn typed(schema: &DFSchema, column: &Column) -> Result<DataType> {
    Ok(schema.field_from_column(column)?.data_type().clone())
}

/// True for a merged column: it has no table that a statement could qualify it with.
fn is_made(column: &Column) -> bool {
    column
        .relation
        .as_ref()
        .is_some_and(|relation| relation.table().starts_with('(') && relation.table().ends_with(')'))
}

/// Column names that `*` of both sides contains, in the order of the left side.
fn common(left: &LogicalPlan, right: &LogicalPlan) -> Result<Vec<String>> {
    let names = |side: &LogicalPlan| -> Result<Vec<String>> {
        let columns = expand_wildcard(side.schema(), side, None)?;
        Ok(columns.iter().filter_map(Expr::try_as_col).map(|column| column.name.clone()).collect())
    };
    let right = names(right)?;
    let mut common = names(left)?;
    common.retain(|name| right.contains(name));
    Ok(common)
}

/// Projects a relation to the columns of `*`.
fn once_each(plan: LogicalPlan) -> Result<LogicalPlan> {
    let columns = expand_wildcard(plan.schema(), &plan, None)?;
    match columns.len() == plan.schema().fields().len() {
        true => Ok(plan),
        false => Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(plan))?)),
    }
}

/// Adds a note to a relation, in the form of a USING join, that informs DataFusion's planner which columns are
/// equivalent.
fn noted(plan: LogicalPlan, means: Vec<(Expr, Expr)>) -> Result<LogicalPlan> {
    let nothing = EmptyRelation { produce_one_row: false, schema: Arc::new(DFSchema::empty()) };
    let note = Join::try_new(
        Arc::new(plan),
        Arc::new(LogicalPlan::EmptyRelation(nothing)),
        means,
        None,
        JoinType::LeftSemi,
        JoinConstraint::Using,
        NullEquality::NullEqualsNothing,
        false,
    )?;
    Ok(LogicalPlan::Join(note))
}

/// True for a node created by [`noted`]: no statement joins a relation without columns by a condition.
pub(super) fn is_note(node: &LogicalPlan) -> bool {
    matches!(node, LogicalPlan::Join(join) if is_note_of(join))
}

fn is_note_of(join: &Join) -> bool {
    let is_nothing = |right: &LogicalPlan| matches!(right, LogicalPlan::EmptyRelation(nothing) if nothing.schema.fields().is_empty());
    join.join_type == JoinType::LeftSemi && join.join_constraint == JoinConstraint::Using && is_nothing(&join.right)
}

/// Removes the note of a relation; returns any other node unchanged.
pub(super) fn without_note(node: LogicalPlan) -> Transformed<LogicalPlan> {
    match node {
        LogicalPlan::Join(join) if is_note_of(&join) => Transformed::yes(Arc::unwrap_or_clone(join.left)),
        node => Transformed::no(node),
    }
}
