//! Carries the keys of a correlated subquery through its plan: the result is a plan of its rows for all keys at once.
//!
//! ```text
//!   rows of S for o.g, as written                   rows of S for all keys, with a key column
//!     Projection: n.v                                 Projection: n.v, key
//!       Filter: n.g = o.g                      ─►       Projection: n.*, n.g AS key     equality: a row has one key
//!       Filter: n.z < o.z                      ─►       Inner Join: n.z < key           otherwise: join with all keys
//!         TableScan: n                                    TableScan: n, keys (distinct keys of the outer rows)
//! ```
//!
//! Keys     of the plan may include more than those of the outer rows, but never lack one for which the subquery has
//!          rows.
//! Groups   are per key: keys are added to the groups of aggregations and the partitions of windows, and LIMIT counts
//!          rows per key.
//! No row   an aggregation without GROUP BY has a row even for a key without rows: keys are joined to it, with the
//!          aggregates' values for no rows.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DFSchemaRef, ExprSchema, NullEquality, ScalarValue};
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::GroupingSet;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::logical_plan::{FetchType, SkipType};
use datafusion::logical_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, ExprFunctionExt, ExprSchemable, Filter, Join, JoinConstraint, JoinType, Limit,
    LogicalPlan, LogicalPlanBuilder, Operator, Projection, SortExpr, Union, Window, binary_expr, lit, when,
};

use super::refused;
use super::scope::{Nearer, expression_reads, reads, replace, visit, with_subquery};
use super::value::{grouped, is_volatile};

/// A column of the outer query that a subquery reads.
pub(super) struct Key {
    /// Its expression in the outer query.
    pub(super) own: Expr,
    of: Column,
    /// Name of its column within the subquery.
    name: String,
}

impl Key {
    /// The key's column in a plan that carries it.
    pub(super) fn column(&self, schema: &DFSchema) -> Result<Expr> {
        let mut named = schema.iter().filter(|(_, field)| field.name() == &self.name);
        match (named.next(), named.next()) {
            (Some(field), None) => Ok(Expr::Column(Column::from(field))),
            _ => datafusion::common::internal_err!("the key {} of a subquery is lost", self.of),
        }
    }
}

/// Keys of a subquery, and the outer rows that provide them.
pub(super) struct Domain<'a> {
    keys: Vec<Key>,
    input: &'a LogicalPlan,
    outer: &'a DFSchema,
    name: &'a str,
    /// The subquery's expression, for errors.
    expression: &'a Expr,
}

impl<'a> Domain<'a> {
    pub(super) fn of(
        input: &'a LogicalPlan,
        outer: &'a DFSchema,
        subquery: &LogicalPlan,
        name: &'a str,
        expression: &'a Expr,
    ) -> Result<Self> {
        let mut columns: Vec<Column> = vec![];
        visit(subquery, &vec![], &mut |column| {
            if outer.is_column_from_schema(column) && !columns.contains(column) {
                columns.push(column.clone());
            }
        })?;
        let keys = columns.into_iter().enumerate().map(|(place, of)| {
            let own = Column::from(outer.qualified_field_from_column(&of)?);
            Ok(Key { own: Expr::Column(own), of, name: format!("{name}_key_{place}") })
        });
        Ok(Self { keys: keys.collect::<Result<_>>()?, input, outer, name, expression })
    }

    pub(super) fn into_keys(self) -> Vec<Key> {
        self.keys
    }

    fn refused(&self, why: &str) -> DataFusionError {
        refused(self.expression, why)
    }

    /// Distinct keys of the outer rows.
    fn keys(&self) -> Result<LogicalPlan> {
        let source = more_rows(self.input.clone(), &self.keys)?;
        if is_volatile(&source)? {
            return Err(self.refused("reads columns of random rows"));
        }
        if !is_repeatable(&source, &self.keys)? {
            return Err(
                self.refused("reads columns of rows that LIMIT or a sum of floats may choose otherwise each time")
            );
        }
        let columns = self.keys.iter().map(|key| key.own.clone().alias(&key.name)).collect();
        let plan = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(source))?);
        let once = plan.schema().iter().map(Expr::from).collect();
        grouped(plan, once, vec![])
    }

    fn reads(&self, plan: &LogicalPlan) -> Result<bool> {
        reads(plan, self.outer)
    }

    fn columns(&self, schema: &DFSchema) -> Result<Vec<Expr>> {
        self.keys.iter().map(|key| key.column(schema)).collect()
    }

    /// Rewrites an expression of a node whose input carries the keys.
    fn over(&self, expression: Expr, schema: &DFSchemaRef) -> Result<Expr> {
        let key = |column: &Column| self.keys.iter().find(|key| key.of == *column);
        let expression = expression.transform_down(|part| match part {
            Expr::OuterReferenceColumn(field, column) => match key(&column) {
                Some(key) => key.column(schema).map(Transformed::yes),
                None => Ok(Transformed::no(Expr::OuterReferenceColumn(field, column))),
            },
            part => {
                // In subqueries of this node, keys become outer references to the node's columns, unless a column of
                // the node shadows them.
                let nearer: Nearer = vec![];
                let outer = |column: &Column| {
                    let own = key(column)?.column(schema).ok()?;
                    let Expr::Column(own) = own else { return None };
                    let field = Arc::clone(schema.field_from_column(&own).ok()?);
                    Some(Expr::OuterReferenceColumn(field, own))
                };
                let is_shadowed = |column: &Column| schema.is_column_from_schema(column);
                let outer = |column: &Column| if is_shadowed(column) { None } else { outer(column) };
                with_subquery(part, &|plan| match self.reads(&plan)? {
                    true => replace(plan, &nearer, &outer),
                    false => Ok(plan),
                })
            }
        });
        expression.data()
    }

    /// Projects a plan to the columns of `schema` and the keys.
    fn kept(&self, plan: LogicalPlan, schema: &DFSchema) -> Result<LogicalPlan> {
        let mut columns: Vec<Expr> = schema.iter().map(Expr::from).collect();
        columns.extend(self.columns(plan.schema())?);
        let own: Vec<Expr> = plan.schema().iter().map(Expr::from).collect();
        if columns == own {
            return Ok(plan);
        }
        Projection::try_new(columns, Arc::new(plan)).map(LogicalPlan::Projection)
    }

    /// Rows of a plan for all keys, with their keys.
    pub(super) fn carried(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        if !self.reads(&plan)? {
            return LogicalPlanBuilder::from(plan).cross_join(self.keys()?)?.build();
        }
        match plan {
            LogicalPlan::Filter(filter) => self.filter(filter),
            LogicalPlan::Projection(projection) => {
                let input = self.carried(Arc::unwrap_or_clone(projection.input))?;
                let schema = Arc::clone(input.schema());
                let names = NamePreserver::new_for_projection();
                let mut columns = vec![];
                for expression in projection.expr {
                    let name = names.save(&expression);
                    columns.push(name.restore(self.over(expression, &schema)?));
                }
                columns.extend(self.columns(&schema)?);
                Projection::try_new(columns, Arc::new(input)).map(LogicalPlan::Projection)
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let input = self.carried(Arc::unwrap_or_clone(alias.input))?;
                LogicalPlanBuilder::from(input).alias(alias.alias)?.build()
            }
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let input = self.carried(Arc::unwrap_or_clone(input))?;
                Ok(LogicalPlan::Distinct(Distinct::All(Arc::new(input))))
            }
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Union(union) => {
                let mut inputs = vec![];
                for input in union.inputs {
                    let schema = Arc::clone(input.schema());
                    let input = self.carried(Arc::unwrap_or_clone(input))?;
                    let mut columns: Vec<Expr> = schema.iter().map(Expr::from).collect();
                    columns.extend(self.columns(input.schema())?);
                    let input = Projection::try_new(columns, Arc::new(input))?;
                    inputs.push(Arc::new(LogicalPlan::Projection(input)));
                }
                let plan = LogicalPlan::Union(Union::try_new_with_loose_types(inputs)?);
                self.named(plan, &union.schema)
            }
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => self.carried(Arc::unwrap_or_clone(sort.input)),
            LogicalPlan::Limit(limit) => self.limit(limit),
            LogicalPlan::Window(window) => {
                let schema = window.schema;
                let kept = window.input.schema().fields().len();
                let input = self.carried(Arc::unwrap_or_clone(window.input))?;
                let input = self.kept_in_order(input, &schema, kept)?;
                let keys = self.columns(input.schema())?;
                let mut windows = vec![];
                for expression in window.window_expr {
                    let expression = self.over(expression, input.schema())?;
                    windows.push(partitioned(expression, &keys)?);
                }
                let plan = LogicalPlan::Window(Window::try_new(windows, Arc::new(input))?);
                // The columns are: input, keys, windows.
                let columns = plan.schema().columns();
                let of = |(place, (relation, field)): (usize, (Option<&_>, &Arc<_>))| {
                    let place = if place < kept { place } else { place + keys.len() };
                    let wanted = Column::from((relation, field));
                    Expr::Column(columns[place].clone()).alias_qualified(wanted.relation, wanted.name)
                };
                let mut read: Vec<Expr> = schema.iter().enumerate().map(of).collect();
                read.extend(keys);
                Projection::try_new(read, Arc::new(plan)).map(LogicalPlan::Projection)
            }
            LogicalPlan::Unnest(_) => Err(self.refused("unnests columns of the outer query")),
            LogicalPlan::Subquery(_) => Err(self.refused("reads the outer query in LATERAL")),
            LogicalPlan::RecursiveQuery(_) => Err(self.refused("reads the outer query in WITH RECURSIVE")),
            other => {
                let why = format!("reads the outer query below {}", other.display());
                Err(self.refused(&why))
            }
        }
    }

    /// Projects a plan to the first `num` columns of `schema`, in order, then the keys.
    fn kept_in_order(&self, plan: LogicalPlan, schema: &DFSchema, num: usize) -> Result<LogicalPlan> {
        let mut columns: Vec<Expr> = schema.iter().take(num).map(Expr::from).collect();
        columns.extend(self.columns(plan.schema())?);
        Projection::try_new(columns, Arc::new(plan)).map(LogicalPlan::Projection)
    }

    /// Projects a plan to its first columns, renamed to those of `schema`, and the keys.
    fn named(&self, plan: LogicalPlan, schema: &DFSchema) -> Result<LogicalPlan> {
        let own = plan.schema().columns();
        let name = |(own, field): (Column, (Option<&_>, &Arc<_>))| {
            let wanted = Column::from(field);
            match own == wanted {
                true => Expr::Column(own),
                false => Expr::Column(own).alias_qualified(wanted.relation, wanted.name),
            }
        };
        let mut columns: Vec<Expr> = own.into_iter().zip(schema.iter()).map(name).collect();
        columns.extend(self.columns(plan.schema())?);
        Projection::try_new(columns, Arc::new(plan)).map(LogicalPlan::Projection)
    }

    fn filter(&self, filter: Filter) -> Result<LogicalPlan> {
        let node = LogicalPlan::Filter(filter.clone());
        let Filter { predicate, input, .. } = filter;
        if self.reads(&input)? {
            let input = self.carried(Arc::unwrap_or_clone(input))?;
            let predicate = self.over(predicate, input.schema())?;
            return Ok(LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input))?));
        }
        let (mut own, mut correlated) = (vec![], vec![]);
        for part in split_conjunction_owned(predicate) {
            match expression_reads(&part, &node, self.outer)? {
                true => correlated.push(part),
                false => own.push(part),
            }
        }
        let input = match conjunction(own) {
            Some(predicate) => LogicalPlan::Filter(Filter::try_new(predicate, input)?),
            None => Arc::unwrap_or_clone(input),
        };
        let schema = Arc::clone(input.schema());
        let equal = self.keys.iter().map(|key| equal_to(key, &correlated, &schema)).collect::<Result<Vec<_>>>()?;
        if equal.iter().all(Option::is_some) {
            // Each row determines the value of each key.
            let mut columns: Vec<Expr> = schema.iter().map(Expr::from).collect();
            let (values, places): (Vec<_>, Vec<_>) = equal.into_iter().flatten().unzip();
            columns.extend(values.into_iter().zip(&self.keys).map(|(value, key)| value.alias(&key.name)));
            let plan = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(input))?);
            let mut parts: Vec<Expr> = self.columns(plan.schema())?.into_iter().map(Expr::is_not_null).collect();
            for (place, part) in correlated.into_iter().enumerate() {
                if !places.contains(&place) {
                    parts.push(self.over(part, plan.schema())?);
                }
            }
            return filtered(plan, parts);
        }
        let (nested, plain): (Vec<_>, Vec<_>) = correlated
            .into_iter()
            .partition(|part| part.exists(|part| Ok(super::scope::subquery(part).is_some())).unwrap_or(true));
        let both = LogicalPlanBuilder::from(input.clone()).cross_join(self.keys()?)?.build()?;
        let plain = plain.into_iter().map(|part| self.over(part, both.schema())).collect::<Result<Vec<_>>>()?;
        let plan = LogicalPlanBuilder::from(input).join_on(self.keys()?, JoinType::Inner, plain)?.build()?;
        let nested = nested.into_iter().map(|part| self.over(part, plan.schema())).collect::<Result<Vec<_>>>()?;
        filtered(plan, nested)
    }

    fn aggregate(&self, aggregate: Aggregate) -> Result<LogicalPlan> {
        let Aggregate { input, group_expr, aggr_expr, schema, .. } = aggregate;
        let input = self.carried(Arc::unwrap_or_clone(input))?;
        let inner = Arc::clone(input.schema());
        let keys = self.columns(&inner)?;
        let names = NamePreserver::new_for_projection();
        let mut groups = vec![];
        let mut empty_sets = usize::from(group_expr.is_empty());
        for group in group_expr {
            groups.push(match group {
                Expr::GroupingSet(set) => {
                    let sets = sets(set);
                    empty_sets += sets.iter().filter(|set| set.is_empty()).count();
                    let mut own = vec![];
                    for set in sets {
                        let set = set.into_iter().map(|part| self.over(part, &inner)).collect::<Result<Vec<_>>>()?;
                        own.push(set.into_iter().chain(keys.iter().cloned()).collect());
                    }
                    Expr::GroupingSet(GroupingSet::GroupingSets(own))
                }
                group => {
                    let name = names.save(&group);
                    name.restore(self.over(group, &inner)?)
                }
            });
        }
        let is_set = groups.iter().any(|group| matches!(group, Expr::GroupingSet(_)));
        if !is_set {
            groups.extend(keys);
        } else if self.reads_grouping()? {
            return Err(self.refused("calls GROUPING over a set of groups that reads the outer query"));
        } else if empty_sets > 1 {
            return Err(self.refused("has several groups of all rows"));
        }
        let mut aggregates = vec![];
        let mut none = vec![];
        let offset = schema.fields().len() - aggr_expr.len();
        for (place, aggregate) in aggr_expr.into_iter().enumerate() {
            let name = names.save(&aggregate);
            none.push(self.of_no_rows(&aggregate, schema.field(offset + place).data_type())?);
            aggregates.push(name.restore(self.over(aggregate, &inner)?));
        }
        if empty_sets == 0 {
            let plan = grouped(input, groups, aggregates)?;
            return self.kept(plan, &schema);
        }
        // A row for each key, with or without rows of the subquery.
        let present = format!("{}_present", self.name);
        let (relation, beside) = (format!("{}_groups", self.name), format!("{}_keys", self.name));
        aggregates.push(count(lit(1_i64)).alias(&present));
        let plan = grouped(input, groups, aggregates)?;
        let num_aggregates = none.len();
        let mut columns = vec![];
        for (place, field) in schema.iter().enumerate() {
            let own = match plan.schema().maybe_index_of_column(&Column::from(field)) {
                Some(own) => Expr::Column(Column::from(plan.schema().qualified_field(own))),
                None => return datafusion::common::internal_err!("a group of a subquery is lost"),
            };
            columns.push(own.alias(format!("{relation}_{place}")));
        }
        columns.extend(self.columns(plan.schema())?);
        columns.push(Expr::Column(Column::new_unqualified(&present)));
        let plan = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(plan))?);
        let plan = LogicalPlanBuilder::from(plan).alias(relation.as_str())?.build()?;
        let keys = LogicalPlanBuilder::from(self.keys()?).alias(beside.as_str())?.build()?;
        let on = self.columns(keys.schema())?.into_iter().zip(self.columns(plan.schema())?).collect();
        let plan = equal_keys(keys, plan, on, None, JoinType::Left)?;
        let is_none = Expr::Column(Column::new(Some(relation.as_str()), present)).is_null();
        let mut columns = vec![];
        for (place, field) in schema.iter().enumerate() {
            let mut own = Expr::Column(Column::new(Some(relation.as_str()), format!("{relation}_{place}")));
            if let Some(none) = place.checked_sub(schema.fields().len() - num_aggregates).map(|place| &none[place])
                && !none.is_null()
            {
                own = when(is_none.clone(), Expr::Literal(none.clone(), None)).otherwise(own)?;
            }
            let wanted = Column::from(field);
            columns.push(own.alias_qualified(wanted.relation, wanted.name));
        }
        for key in &self.keys {
            columns.push(Expr::Column(Column::new(Some(beside.as_str()), key.name.clone())).alias(&key.name));
        }
        Projection::try_new(columns, Arc::new(plan)).map(LogicalPlan::Projection)
    }

    /// Value of an aggregate over no rows.
    fn of_no_rows(&self, aggregate: &Expr, ty: &datafusion::arrow::datatypes::DataType) -> Result<ScalarValue> {
        match aggregate.clone().unalias() {
            Expr::AggregateFunction(function) => function.func.default_value(ty),
            _ => Err(self.refused("computes with an aggregate in an unknown way")),
        }
    }

    /// True if the subquery reads the grouping ID: adding keys to the groups would change it.
    fn reads_grouping(&self) -> Result<bool> {
        let Some(subquery) = super::scope::subquery(self.expression) else { return Ok(false) };
        let mut found = false;
        subquery.subquery.apply(|node| {
            node.apply_expressions(|expression| {
                found |= expression.column_refs().iter().any(|column| column.name == Aggregate::INTERNAL_GROUPING_ID);
                Ok(TreeNodeRecursion::Continue)
            })?;
            Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        Ok(found)
    }

    fn join(&self, join: Join) -> Result<LogicalPlan> {
        let node = LogicalPlan::Join(join.clone());
        for (left, right) in &join.on {
            if expression_reads(left, &node, self.outer)? || expression_reads(right, &node, self.outer)? {
                return Err(self.refused("joins by columns of the outer query"));
            }
        }
        let schema = Arc::clone(&join.schema);
        let mut correlated = vec![];
        if join.join_type == JoinType::Inner
            && let Some(filter) = &join.filter
        {
            // An inner join allows moving the condition into a filter above it.
            let mut own = vec![];
            for part in split_conjunction(filter) {
                match expression_reads(part, &node, self.outer)? {
                    true => correlated.push(part.clone()),
                    false => own.push(part.clone()),
                }
            }
            if let Some(predicate) = conjunction(correlated) {
                let plan = LogicalPlan::Join(Join { filter: conjunction(own), ..join });
                return self.filter(Filter::try_new(predicate, Arc::new(plan))?);
            }
        }
        let (in_left, in_right) = (self.reads(&join.left)?, self.reads(&join.right)?);
        let in_filter = match &join.filter {
            Some(filter) => expression_reads(filter, &node, self.outer)?,
            None => false,
        };
        use JoinType::{Full, Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi};
        // The side whose rows are all preserved.
        let is_left = match join.join_type {
            Left | LeftSemi | LeftAnti | LeftMark => true,
            Right | RightSemi | RightAnti | RightMark => false,
            Inner => in_left,
            Full => return Err(self.refused("reads the outer query in a FULL JOIN")),
        };
        let (left, right) = (Arc::unwrap_or_clone(join.left), Arc::unwrap_or_clone(join.right));
        let (main, other) = if is_left { (left, right) } else { (right, left) };
        let main = self.carried(main)?;
        let in_other = if is_left { in_right } else { in_left };
        let mut parts: Vec<Expr> = join.filter.into_iter().collect();
        let mut other = other;
        if in_other {
            other = self.carried(other)?;
            // Distinct names, so that a condition cannot confuse the keys of the two sides.
            let keys = self.columns(other.schema())?;
            let mut columns: Vec<Expr> =
                other.schema().iter().map(Expr::from).filter(|own| !keys.contains(own)).collect();
            let names = self.keys.iter().map(|key| format!("{}_other", key.name));
            columns.extend(keys.into_iter().zip(names).map(|(key, name)| key.alias(name)));
            other = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(other))?);
            for key in &self.keys {
                let own = key.column(main.schema())?;
                let other = Expr::Column(Column::new_unqualified(format!("{}_other", key.name)));
                parts.push(binary_expr(own, Operator::IsNotDistinctFrom, other));
            }
        }
        if in_filter {
            let main_schema = Arc::clone(main.schema());
            parts = parts.into_iter().map(|part| self.over(part, &main_schema)).collect::<Result<_>>()?;
        }
        let (left, right) = if is_left { (main, other) } else { (other, main) };
        let plan = LogicalPlan::Join(Join::try_new(
            Arc::new(left),
            Arc::new(right),
            join.on,
            conjunction(parts),
            join.join_type,
            join.join_constraint,
            join.null_equality,
            join.null_aware,
        )?);
        self.kept(plan, &schema)
    }

    /// The first rows of each key.
    fn limit(&self, limit: Limit) -> Result<LogicalPlan> {
        let (SkipType::Literal(skip), FetchType::Literal(fetch)) = (limit.get_skip_type()?, limit.get_fetch_type()?)
        else {
            return Err(self.refused("has a LIMIT that is no constant"));
        };
        let Limit { skip: skip_expr, fetch: fetch_expr, input } = limit;
        let input = Arc::unwrap_or_clone(input);
        let (input, order) = match input {
            LogicalPlan::Projection(mut projection) => {
                // A projection preserves its input's rows.
                let limit = Limit { skip: skip_expr, fetch: fetch_expr, input: projection.input };
                projection.input = Arc::new(LogicalPlan::Limit(limit));
                return self.carried(LogicalPlan::Projection(projection));
            }
            LogicalPlan::Sort(sort) => (Arc::unwrap_or_clone(sort.input), sort.expr),
            input => (input, vec![]),
        };
        let schema = Arc::clone(input.schema());
        let plan = self.carried(input)?;
        let order = order.into_iter().map(|sort| Ok(SortExpr { expr: self.over(sort.expr, plan.schema())?, ..sort }));
        let place = format!("{}_place", self.name);
        let place_of = row_number().partition_by(self.columns(plan.schema())?).order_by(order.collect::<Result<_>>()?);
        let plan = Window::try_new(vec![place_of.build()?.alias(&place)], Arc::new(plan))?;
        let place = || Expr::Column(Column::new_unqualified(&place));
        let mut parts = vec![];
        if skip > 0 {
            parts.push(place().gt(lit(skip as u64)));
        }
        if let Some(fetch) = fetch {
            parts.push(place().lt_eq(lit((skip as u64).saturating_add(fetch as u64))));
        }
        let plan = filtered(LogicalPlan::Window(plan), parts)?;
        self.kept(plan, &schema)
    }
}

fn filtered(plan: LogicalPlan, parts: Vec<Expr>) -> Result<LogicalPlan> {
    Ok(match conjunction(parts) {
        Some(predicate) => LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(plan))?),
        None => plan,
    })
}

/// Expression that a condition equates with a key, of the key's type, and the index of the condition. Floats are
/// excluded: they have two zeros.
fn equal_to(key: &Key, parts: &[Expr], schema: &DFSchema) -> Result<Option<(Expr, usize)>> {
    let is_key = |side: &Expr| matches!(side, Expr::OuterReferenceColumn(_, column) if *column == key.of);
    for (place, part) in parts.iter().enumerate() {
        let Expr::BinaryExpr(binary) = part else { continue };
        if binary.op != Operator::Eq {
            continue;
        }
        let (own, other) = match (is_key(&binary.left), is_key(&binary.right)) {
            (true, false) => (&binary.left, &binary.right),
            (false, true) => (&binary.right, &binary.left),
            _ => continue,
        };
        let is_inner = !other.contains_outer()
            && !other.is_volatile()
            && !other.exists(|part| Ok(super::scope::subquery(part).is_some()))?;
        let ty = other.get_type(schema)?;
        if is_inner && ty == own.get_type(schema)? && !ty.is_floating() {
            return Ok(Some((other.as_ref().clone(), place)));
        }
    }
    Ok(None)
}

/// Join in which NULL keys are equal.
fn equal_keys(
    left: LogicalPlan,
    right: LogicalPlan,
    on: Vec<(Expr, Expr)>,
    filter: Option<Expr>,
    join_type: JoinType,
) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Join(Join::try_new(
        Arc::new(left),
        Arc::new(right),
        on,
        filter,
        join_type,
        JoinConstraint::On,
        NullEquality::NullEqualsNull,
        false,
    )?))
}

/// Expands a grouping set to its list of groups.
fn sets(set: GroupingSet) -> Vec<Vec<Expr>> {
    match set {
        GroupingSet::Rollup(groups) => (0..=groups.len()).map(|num| groups[..num].to_vec()).collect(),
        GroupingSet::Cube(groups) => (0..1_usize << groups.len().min(16))
            .map(|chosen| {
                let of = groups.iter().enumerate().filter(|(place, _)| chosen >> place & 1 == 1);
                of.map(|(_, group)| group.clone()).collect()
            })
            .collect(),
        GroupingSet::GroupingSets(sets) => sets,
    }
}

/// Adds the keys to the partitions of a window function.
fn partitioned(expression: Expr, keys: &[Expr]) -> Result<Expr> {
    expression
        .transform_down(|part| match part {
            Expr::WindowFunction(mut function) => {
                function.params.partition_by.extend(keys.iter().cloned());
                Ok(Transformed::yes(Expr::WindowFunction(function)))
            }
            part => Ok(Transformed::no(part)),
        })
        .data()
}

/// A plan whose keys include all keys of `plan`: omits costly operators, and LIMIT, which may choose different rows
/// each time.
fn more_rows(plan: LogicalPlan, keys: &[Key]) -> Result<LogicalPlan> {
    let own = |input: Arc<LogicalPlan>| more_rows(Arc::unwrap_or_clone(input), keys);
    match plan {
        LogicalPlan::Limit(limit) => own(limit.input),
        LogicalPlan::Sort(sort) => own(sort.input),
        LogicalPlan::Filter(filter) => {
            let input = own(filter.input)?;
            // Only conditions that are cheap and whose columns still exist; a removed join side removes its columns.
            let is_plain = |part: &Expr| {
                let is_there = part.column_refs().iter().all(|column| input.schema().has_column(column));
                let is_nested = part.exists(|part| Ok(super::scope::subquery(part).is_some()))?;
                Ok::<_, DataFusionError>(is_there && !is_nested && !part.contains_outer() && !part.is_volatile())
            };
            let mut kept = vec![];
            for part in split_conjunction_owned(filter.predicate) {
                if is_plain(&part)? {
                    kept.push(part);
                }
            }
            filtered(input, kept)
        }
        LogicalPlan::Join(join) => {
            use JoinType::{Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi};
            let all_of = |schema: &DFSchema| {
                keys.iter().all(|key| matches!(&key.own, Expr::Column(column) if schema.has_column(column)))
            };
            let left = matches!(join.join_type, Inner | Left | LeftSemi | LeftAnti | LeftMark);
            let right = matches!(join.join_type, Inner | Right | RightSemi | RightAnti | RightMark);
            if left && all_of(join.left.schema()) {
                return own(join.left);
            }
            if right && all_of(join.right.schema()) {
                return own(join.right);
            }
            Ok(LogicalPlan::Join(join))
        }
        plan => Ok(plan),
    }
}

/// False if a second execution of the plan may produce other keys.
fn is_repeatable(plan: &LogicalPlan, keys: &[Key]) -> Result<bool> {
    let schema = plan.schema();
    let mut has_float = false;
    for key in keys {
        has_float |= key.own.get_type(schema.as_ref())?.is_floating();
    }
    let mut repeatable = true;
    plan.apply_with_subqueries(|node| {
        repeatable &= match node {
            LogicalPlan::Limit(limit) => is_sorted(&limit.input),
            LogicalPlan::TableScan(scan) => scan.fetch.is_none(),
            LogicalPlan::Aggregate(aggregate) => !has_float || aggregate.aggr_expr.is_empty(),
            LogicalPlan::Window(_) => !has_float,
            _ => true,
        };
        Ok(if repeatable { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(repeatable)
}

fn is_sorted(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) => true,
        LogicalPlan::Projection(projection) => is_sorted(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => is_sorted(&alias.input),
        _ => false,
    }
}
