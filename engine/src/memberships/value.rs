//! Value of IN and EXISTS: columns joined to the rows without duplicating any, and a CASE over them.

use std::sync::Arc;

use datafusion::common::{Column, DFSchema, DFSchemaRef, NullEquality, ScalarValue};
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::InSubquery;
use datafusion::logical_expr::{
    Aggregate, Expr, ExprSchemable, Filter, Join, JoinConstraint, JoinType, LogicalPlan, LogicalPlanBuilder,
    Projection, Subquery, lit, not, when,
};
use datafusion::optimizer::OptimizerConfig;

use super::domain::{Domain, Key};
use super::refused;
use super::scope::{reads, reads_outer, subquery};

/// States of a subquery for the keys of a row; keys without a state have no row of the subquery.
const NO_ROW: i64 = 0;
const ROWS: i64 = 1;
const WITH_NULL: i64 = 2;

/// An input, and the joins added to it.
pub(super) struct Lowering<'a> {
    /// `None`: expressions are only examined.
    plan: Option<LogicalPlan>,
    schema: DFSchemaRef,
    is_trusting: bool,
    config: &'a dyn OptimizerConfig,
}

impl<'a> Lowering<'a> {
    pub(super) fn of(plan: LogicalPlan, config: &'a dyn OptimizerConfig) -> Self {
        Self { schema: Arc::clone(plan.schema()), plan: Some(plan), is_trusting: false, config }
    }

    /// Lowering that only examines the condition of a filter; DataFusion's rule may answer parts of it.
    pub(super) fn look(schema: DFSchemaRef, config: &'a dyn OptimizerConfig) -> Self {
        Self { plan: None, schema, is_trusting: true, config }
    }

    pub(super) fn is_trusting(&self) -> bool {
        self.is_trusting
    }

    /// Columns of the input.
    pub(super) fn schema(&self) -> &DFSchema {
        &self.schema
    }

    /// A name that is unique in the statement.
    pub(super) fn name(&self) -> String {
        self.config.alias_generator().next(super::NAME)
    }

    pub(super) fn into_plan(self) -> LogicalPlan {
        self.plan.unwrap_or_default()
    }

    /// Value of IN or EXISTS over the columns of the plan.
    ///
    /// # Errors
    /// If the expression is not supported.
    pub(super) fn value(&mut self, mut expression: Expr) -> Result<Expr> {
        if let Expr::InSubquery(part) = &mut expression
            && super::holds(&part.expr)?
        {
            let asked = std::mem::take(part.expr.as_mut());
            let is_trusting = std::mem::replace(&mut self.is_trusting, false);
            *part.expr = super::replace_value(asked, self)?;
            self.is_trusting = is_trusting;
        }
        let Some(plan) = self.plan.take() else { return Ok(lit(true)) };
        let name = self.name();
        let (plan, value) = match &expression {
            Expr::InSubquery(part) => self.membership(plan, part, &expression, &name)?,
            Expr::Exists(part) => {
                let (plan, any) = self.existence(plan, &expression, &name)?;
                (plan, if part.negated { not(any) } else { any })
            }
            Expr::ScalarSubquery(_) => self.scalar(plan, &expression, &name)?,
            _ => return datafusion::common::internal_err!("{expression} is neither IN nor EXISTS"),
        };
        self.plan = Some(plan);
        Ok(value)
    }

    /// Rows of a subquery for all keys, and the keys.
    fn rows(&self, input: &LogicalPlan, expression: &Expr, name: &str) -> Result<(LogicalPlan, Vec<Key>)> {
        let Some(subquery) = subquery(expression) else {
            return datafusion::common::internal_err!("{expression} has no subquery");
        };
        let plan = subquery.subquery.as_ref().clone();
        if !reads(&plan, &self.schema)? {
            return Ok((plan, vec![]));
        }
        let domain = Domain::of(input, &self.schema, &plan, name, expression)?;
        let plan = domain.carried(plan)?;
        Ok((plan, domain.into_keys()))
    }

    fn existence(&self, input: LogicalPlan, expression: &Expr, name: &str) -> Result<(LogicalPlan, Expr)> {
        let (rows, keys) = self.rows(&input, expression, name)?;
        let num = format!("{name}_rows");
        if keys.is_empty() {
            let first = LogicalPlanBuilder::from(rows).limit(0, Some(1))?.build()?;
            let plan = grouped(first, vec![], vec![count(lit(1_i64)).alias(&num)])?;
            let (input, num) = one_row(input, plan, name, &num)?;
            return Ok((input, num.gt(lit(0_i64))));
        }
        let groups = keys.iter().map(|key| key.column(rows.schema())).collect::<Result<Vec<_>>>()?;
        let plan = grouped(rows, groups, vec![count(lit(1_i64)).alias(&num)])?;
        let plan = LogicalPlanBuilder::from(plan).alias(name)?.build()?;
        let num = Expr::Column(Column::new(Some(name), num));
        Ok((joined(input, plan, &keys, None)?, num.is_not_null()))
    }

    /// Value of a subquery that has at most one row per key.
    fn scalar(&self, input: LogicalPlan, expression: &Expr, name: &str) -> Result<(LogicalPlan, Expr)> {
        let (rows, keys) = self.rows(&input, expression, name)?;
        if keys.is_empty() {
            return Ok((input, expression.clone()));
        }
        let value = format!("{name}_value");
        let (relation, field) = rows.schema().qualified_field(0);
        let mut columns = vec![Expr::Column(Column::from((relation, field))).alias(&value)];
        for key in &keys {
            columns.push(key.column(rows.schema())?);
        }
        let plan = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(rows))?);
        let plan = LogicalPlanBuilder::from(plan).alias(name)?.build()?;
        Ok((joined(input, plan, &keys, None)?, Expr::Column(Column::new(Some(name), value))))
    }

    fn membership(
        &self,
        mut input: LogicalPlan,
        part: &InSubquery,
        expression: &Expr,
        name: &str,
    ) -> Result<(LogicalPlan, Expr)> {
        let mut asked = part.expr.as_ref().clone();
        // A join key must be a column, and a volatile expression must be evaluated only once.
        if asked.is_volatile() || !asked.any_column_refs() {
            let column = format!("{name}_asked");
            let columns = input.schema().iter().map(Expr::from).chain([asked.alias(&column)]).collect();
            input = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(input))?);
            asked = Expr::Column(Column::new_unqualified(column));
        }
        let (rows, keys) = self.rows(&input, expression, name)?;
        // The value is the first column; keys follow it.
        let (relation, field) = rows.schema().qualified_field(0);
        let value = Expr::Column(Column::from((relation, field)));
        let may_be_null = (asked.nullable(input.schema())?, field.is_nullable());
        let asked_type = asked.get_type(input.schema())?;
        let (value_name, state_name) = (format!("{name}_value"), format!("{name}_state"));

        // Distinct values per key.
        let groups = keys.iter().map(|key| key.column(rows.schema())).collect::<Result<Vec<_>>>()?;
        let known = LogicalPlan::Filter(Filter::try_new(value.clone().is_not_null(), Arc::new(rows.clone()))?);
        let mut columns = groups.clone();
        columns.push(value.clone().cast_to(&asked_type, rows.schema().as_ref())?.alias(&value_name));
        let known = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(known))?);
        let once = known.schema().iter().map(Expr::from).collect();
        let matches = grouped(known, once, vec![])?;
        let matches = LogicalPlanBuilder::from(matches).alias(name)?.build()?;
        let matched = Expr::Column(Column::new(Some(name), value_name));
        let mut plan = joined(input, matches, &keys, Some((asked.clone(), matched.clone())))?;

        let is_match = matched.is_not_null();
        if may_be_null == (false, false) {
            return Ok((plan, if part.negated { not(is_match) } else { is_match }));
        }
        if is_volatile(&rows)? {
            return Err(refused(expression, "calls a volatile function"));
        }
        let states = format!("{name}_states");
        let (all, some) = (format!("{name}_all"), format!("{name}_some"));
        let counted = grouped(rows, groups, vec![count(lit(1_i64)).alias(&all), count(value).alias(&some)])?;
        let number = |name: &str| Expr::Column(Column::new_unqualified(name));
        let state = when(number(&all).eq(lit(0_i64)), lit(NO_ROW))
            .when(number(&some).lt(number(&all)), lit(WITH_NULL))
            .otherwise(lit(ROWS))?
            .alias(&state_name);
        let mut columns = keys.iter().map(|key| key.column(counted.schema())).collect::<Result<Vec<_>>>()?;
        columns.push(state);
        let counted = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(counted))?);
        let (state, is_empty);
        if keys.is_empty() {
            (plan, state) = one_row(plan, counted, &states, &state_name)?;
            is_empty = state.clone().eq(lit(NO_ROW));
        } else {
            let counted = LogicalPlanBuilder::from(counted).alias(states.as_str())?.build()?;
            plan = joined(plan, counted, &keys, None)?;
            state = Expr::Column(Column::new(Some(states), state_name));
            is_empty = state.clone().is_null();
        }
        let is_unknown = match may_be_null {
            (true, true) => asked.is_null().or(state.eq(lit(WITH_NULL))),
            (true, false) => asked.is_null(),
            (false, _) => state.eq(lit(WITH_NULL)),
        };
        let value = when(is_match, lit(true))
            .when(is_empty, lit(false))
            .when(is_unknown, lit(ScalarValue::Boolean(None)))
            .otherwise(lit(false))?;
        Ok((plan, if part.negated { not(value) } else { value }))
    }
}

/// An aggregation.
pub(super) fn grouped(input: LogicalPlan, groups: Vec<Expr>, aggregates: Vec<Expr>) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(input), groups, aggregates)?))
}

/// Value of a plan with one row and one column: a scalar subquery, or, if the plan reads an outer query, a column
/// cross-joined to each row.
fn one_row(input: LogicalPlan, plan: LogicalPlan, name: &str, column: &str) -> Result<(LogicalPlan, Expr)> {
    if reads_outer(&plan)? {
        let plan = LogicalPlanBuilder::from(plan).alias(name)?.build()?;
        let input = LogicalPlanBuilder::from(input).cross_join(plan)?.build()?;
        return Ok((input, Expr::Column(Column::new(Some(name), column))));
    }
    let subquery = Subquery { subquery: Arc::new(plan), outer_ref_columns: vec![], spans: Default::default() };
    Ok((input, Expr::ScalarSubquery(subquery)))
}

/// Left join of `right` by the keys, and by the tested value if any; NULL keys are equal.
fn joined(left: LogicalPlan, right: LogicalPlan, keys: &[Key], value: Option<(Expr, Expr)>) -> Result<LogicalPlan> {
    let mut on = vec![];
    let mut nulls = NullEquality::NullEqualsNothing;
    for key in keys {
        let column = key.column(right.schema())?;
        if key.own.nullable(left.schema())? && column.nullable(right.schema())? {
            nulls = NullEquality::NullEqualsNull;
        }
        on.push((key.own.clone(), column));
    }
    // On the right, the value is never NULL.
    on.extend(value);
    Ok(LogicalPlan::Join(Join::try_new(
        Arc::new(left),
        Arc::new(right),
        on,
        None,
        JoinType::Left,
        JoinConstraint::On,
        nulls,
        false,
    )?))
}

/// True if a second execution of the plan may return other rows.
pub(super) fn is_volatile(plan: &LogicalPlan) -> Result<bool> {
    use datafusion::common::tree_node::TreeNodeRecursion;
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expression| {
            found |= expression.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// Projects a plan to the columns of `schema`.
pub(super) fn projected(plan: LogicalPlan, schema: &DFSchema) -> Result<LogicalPlan> {
    if plan.schema().fields().len() == schema.fields().len() {
        return Ok(plan);
    }
    let columns = schema.iter().map(Expr::from).collect();
    Projection::try_new(columns, Arc::new(plan)).map(LogicalPlan::Projection)
}
