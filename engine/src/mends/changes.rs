//! DELETE and UPDATE of in-memory tables: a query computes the new rows, which replace the old ones after it has
//! succeeded.
//!
//! ```text
//!   Dml: Delete t              ─►  Change: t                            ─►  ChangeExec: rows, then the exchange
//!     Filter: c                      Filter: c IS NOT TRUE
//!       TableScan: t                   TableScan: t
//!
//!   Dml: Update t              ─►  Change: t
//!     Projection: e AS a, b          Projection: CASE WHEN is_changed THEN e ELSE a END AS a, b, is_changed
//!       Filter: c                      Projection: a, b, c IS TRUE AS is_changed
//!         TableScan: t                   TableScan: t
//! ```
//!
//! DataFusion alone searches the optimized plan for conditions, and changes all rows if it finds none: by then, IN and
//! EXISTS of subqueries are joins, and conditions that are never true have been removed. It also changes rows during
//! planning, even for EXPLAIN.
//!
//! Whole    an error among the rows leaves the table unchanged. So does a concurrent change by another statement since
//!          planning: this statement is refused and can be repeated.
//! Left     to DataFusion: tables of other kinds, which have their own methods.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{AsArray, RecordBatch, UInt64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{MemTable, Session, TableProvider};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchemaRef, TableReference, exec_err, internal_err, plan_err};
use datafusion::datasource::source_as_provider;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    Expr, Extension, Filter, LogicalPlan, Projection, UserDefinedLogicalNode, UserDefinedLogicalNodeCore, WriteOp, lit,
    when,
};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, SendableRecordBatchStream,
    collect_partitioned,
};
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};

use crate::store::{MadeRows, MadeTable, Rows};

/// True for a DELETE or UPDATE of an in-memory table.
pub(super) fn is_change(node: &LogicalPlan) -> bool {
    let LogicalPlan::Dml(dml) = node else { return false };
    matches!(dml.op, WriteOp::Delete | WriteOp::Update)
        && source_as_provider(&dml.target).is_ok_and(|table| {
            table.downcast_ref::<MemTable>().is_some() || table.downcast_ref::<MadeTable>().is_some()
        })
}

/// Converts such a statement to a query and a node that stores its rows; returns any other node unchanged.
///
/// # Errors
/// If the statement has a LIMIT; DataFusion's.
pub(super) fn as_query(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !is_change(&node) {
        return Ok(Transformed::no(node));
    }
    let LogicalPlan::Dml(dml) = node else { return Ok(Transformed::no(node)) };
    let table = source_as_provider(&dml.target)?;
    let Some(before) = Before::of(&table) else { return changed_meanwhile(&dml.table_name) };
    let input = Arc::unwrap_or_clone(dml.input);
    let (input, updates) = match dml.op {
        WriteOp::Delete => (kept(input, &dml.table_name)?, false),
        _ => (updated(input)?, true),
    };
    let node = Change { input, name: dml.table_name, table, before, updates, schema: dml.output_schema };
    Ok(Transformed::yes(LogicalPlan::Extension(Extension { node: Arc::new(node) })))
}

/// Rows that remain after DELETE.
fn kept(input: LogicalPlan, name: &TableReference) -> Result<LogicalPlan> {
    match input {
        LogicalPlan::Filter(filter) => {
            let kept = Filter::try_new(filter.predicate.is_not_true(), filter.input)?;
            Ok(LogicalPlan::Filter(kept))
        }
        LogicalPlan::TableScan(_) => Ok(LogicalPlan::Filter(Filter::try_new(lit(false), Arc::new(input))?)),
        _ => plan_err!("DELETE FROM {name} is answered with WHERE alone: write a condition that chooses the rows"),
    }
}

/// Column that marks the rows that UPDATE changes.
const IS_CHANGED: &str = "(is changed)";

/// All rows after UPDATE, and whether it changes them.
fn updated(input: LogicalPlan) -> Result<LogicalPlan> {
    let LogicalPlan::Projection(projection) = input else { return internal_err!("UPDATE has values for all columns") };
    let (rows, condition) = match Arc::unwrap_or_clone(projection.input) {
        LogicalPlan::Filter(filter) => (filter.input, filter.predicate.is_true()),
        rows => (Arc::new(rows), lit(true)),
    };
    let old: Vec<Expr> = rows.schema().columns().into_iter().map(Expr::Column).collect();
    let is_changed = || Expr::Column(Column::new_unqualified(IS_CHANGED));
    let with_condition = old.iter().cloned().chain([condition.alias(IS_CHANGED)]).collect();
    let rows = Projection::try_new(with_condition, rows)?;
    let mut new = Vec::with_capacity(old.len() + 1);
    for ((value, old), field) in projection.expr.into_iter().zip(old).zip(projection.schema.fields()) {
        let value = value.unalias();
        new.push(match value == old {
            true => value.alias(field.name()),
            false => when(is_changed(), value).otherwise(old)?.alias(field.name()),
        });
    }
    new.push(is_changed());
    Projection::try_new(new, Arc::new(LogicalPlan::Projection(rows))).map(LogicalPlan::Projection)
}

/// Rows of a table at the time its change was planned.
#[derive(Clone)]
enum Before {
    /// Rows of a kept query result.
    Made(Arc<MadeRows>),
    /// Rows of each partition of a DataFusion table.
    Batches { table: Arc<dyn TableProvider>, partitions: Arc<Vec<Vec<RecordBatch>>> },
}

impl Before {
    /// `None` while another statement changes the rows.
    fn of(table: &Arc<dyn TableProvider>) -> Option<Self> {
        if let Some(made) = table.downcast_ref::<MadeTable>() {
            return match made.rows_now()? {
                Rows::Made(rows) => Some(Self::Made(rows)),
                Rows::Changed(table) => Self::of(&(table as Arc<dyn TableProvider>)),
            };
        }
        let memory = table.downcast_ref::<MemTable>()?;
        let partitions = memory.batches.iter().map(|partition| Some(partition.try_read().ok()?.clone()));
        let partitions = Arc::new(partitions.collect::<Option<_>>()?);
        Some(Self::Batches { table: Arc::clone(table), partitions })
    }

    fn rows(&self) -> u64 {
        match self {
            Self::Made(made) => made.rows,
            Self::Batches { partitions, .. } => rows(partitions),
        }
    }
}

fn rows(partitions: &[Vec<RecordBatch>]) -> u64 {
    partitions.iter().flatten().map(|batch| batch.num_rows() as u64).sum()
}

fn changed_meanwhile<T>(name: &TableReference) -> Result<T> {
    exec_err!("the table {name} was changed by another statement meanwhile: run this one again")
}

/// A query whose rows replace those of a table.
#[derive(Clone)]
pub(crate) struct Change {
    input: LogicalPlan,
    name: TableReference,
    table: Arc<dyn TableProvider>,
    /// Rows of the table when the change was planned.
    before: Before,
    /// True for UPDATE: the last column says which rows change. For DELETE, missing rows count as changed.
    updates: bool,
    /// Schema of the result: the number of changed rows.
    schema: DFSchemaRef,
}

impl Change {
    fn verb(&self) -> &'static str {
        if self.updates { "update" } else { "delete from" }
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Change: {} {}", self.verb(), self.name)
    }
}

impl PartialEq for Change {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.updates == other.updates
            && Arc::ptr_eq(&self.table, &other.table)
            && self.input == other.input
    }
}

impl Eq for Change {}

impl PartialOrd for Change {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.input.partial_cmp(&other.input).filter(|order| *order != Ordering::Equal || self == other)
    }
}

impl Hash for Change {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.name, self.updates).hash(state);
        self.input.hash(state);
    }
}

impl UserDefinedLogicalNodeCore for Change {
    fn name(&self) -> &str {
        "Change"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        match (inputs.pop(), inputs.is_empty()) {
            (Some(input), true) => Ok(Self { input, ..self.clone() }),
            _ => internal_err!("a change of a table has one input"),
        }
    }
}

/// Plans [`Change`].
#[derive(Debug)]
pub(crate) struct Changes;

#[async_trait]
impl ExtensionPlanner for Changes {
    async fn plan_extension(
        &self,
        _: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _: &[&LogicalPlan],
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &dyn Session,
        _: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(change) = node.as_any().downcast_ref::<Change>() else { return Ok(None) };
        let [input] = inputs else { return internal_err!("a change of a table has one input") };
        change.over(Arc::clone(input)).map(Some)
    }
}

/// The change that a node contains, if any.
pub(crate) fn change(node: &LogicalPlan) -> Option<&Change> {
    let LogicalPlan::Extension(extension) = node else { return None };
    extension.node.as_any().downcast_ref()
}

impl Change {
    /// Query of the new rows.
    pub(crate) fn rows(&self) -> &LogicalPlan {
        &self.input
    }

    /// Physical plan of the change, over the plan of its rows.
    pub(crate) fn over(&self, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(self.schema.inner())),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        Ok(Arc::new(ChangeExec { change: self.clone(), input, properties: Arc::new(properties) }))
    }
}

/// Runs a query and stores its rows in a table.
#[derive(Debug)]
struct ChangeExec {
    change: Change,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DisplayAs for ChangeExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChangeExec: {} {}", self.change.verb(), self.change.name)
    }
}

impl ExecutionPlan for ChangeExec {
    fn name(&self) -> &str {
        "ChangeExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(input) = children.pop() else { return internal_err!("a change of a table has one input") };
        Ok(Arc::new(Self { change: self.change.clone(), input, properties: Arc::clone(&self.properties) }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition > 0 {
            return internal_err!("a change of a table has one partition");
        }
        let (change, input) = (self.change.clone(), Arc::clone(&self.input));
        let schema = self.schema();
        let counted = Arc::clone(&schema);
        let changed = async move {
            let rows = collect_partitioned(input, context).await?;
            let num = change.put(rows).await?;
            Ok::<_, DataFusionError>(RecordBatch::try_new(counted, vec![Arc::new(UInt64Array::from(vec![num]))])?)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::once(changed))))
    }
}

impl Change {
    /// Replaces the old rows; returns the number of changed rows.
    async fn put(&self, rows_of_query: Vec<Vec<RecordBatch>>) -> Result<u64> {
        let schema = self.table.schema();
        let partitions = match &self.before {
            Before::Made(_) => 1,
            Before::Batches { partitions, .. } => partitions.len().max(1),
        };
        let mut new: Vec<Vec<RecordBatch>> = vec![vec![]; partitions];
        let mut num: u64 = 0;
        for (place, batches) in rows_of_query.into_iter().enumerate() {
            for batch in batches.into_iter().filter(|batch| batch.num_rows() > 0) {
                if self.updates {
                    num += changed_in(&batch)?;
                }
                new[place % partitions].push(self.row_of(&batch, &schema)?);
            }
        }
        if !self.updates {
            num = self.before.rows() - rows(&new);
        }
        match self.exchange(new, schema).await? {
            true => Ok(num),
            false => changed_meanwhile(&self.name),
        }
    }

    /// Returns false, without any change, if the table's rows have changed since planning.
    async fn exchange(&self, new: Vec<Vec<RecordBatch>>, schema: SchemaRef) -> Result<bool> {
        match &self.before {
            Before::Made(made) => match self.table.downcast_ref::<MadeTable>() {
                Some(table) => Ok(table.exchange(made, MemTable::try_new(schema, new)?).await),
                None => internal_err!("{} is no made table", self.name),
            },
            Before::Batches { table, partitions } => {
                let Some(table) = table.downcast_ref::<MemTable>() else {
                    return internal_err!("{} is no table in memory", self.name);
                };
                let mut held = Vec::with_capacity(table.batches.len());
                for partition in &table.batches {
                    held.push(partition.write().await);
                }
                if !held.iter().zip(partitions.iter()).all(|(now, before)| are_same(now, before)) {
                    return Ok(false);
                }
                *table.sort_order.lock() = vec![];
                held.into_iter().zip(new).for_each(|(mut partition, new)| *partition = new);
                Ok(true)
            }
        }
    }

    /// Converts a batch to the columns of the table.
    fn row_of(&self, batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
        let mut columns = Vec::with_capacity(schema.fields().len());
        for (field, column) in schema.fields().iter().zip(batch.columns()) {
            if !field.is_nullable() && column.null_count() > 0 {
                return exec_err!(
                    "the column {} of {} is NOT NULL, and UPDATE gives it NULL: leave these rows out by WHERE",
                    field.name(),
                    self.name
                );
            }
            columns.push(match column.data_type() == field.data_type() {
                true => Arc::clone(column),
                false => cast(column, field.data_type())?,
            });
        }
        Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
    }
}

/// Number of changed rows in an UPDATE batch.
fn changed_in(batch: &RecordBatch) -> Result<u64> {
    match batch.columns().last().and_then(|column| column.as_boolean_opt()) {
        Some(is_changed) => Ok(is_changed.true_count() as u64),
        None => internal_err!("UPDATE says which rows it changes"),
    }
}

/// True for identical batches, compared by array pointers.
fn are_same(now: &[RecordBatch], before: &[RecordBatch]) -> bool {
    let same = |now: &RecordBatch, before: &RecordBatch| {
        let mut columns = now.columns().iter().zip(before.columns());
        now.num_rows() == before.num_rows() && columns.all(|(now, before)| Arc::ptr_eq(now, before))
    };
    now.len() == before.len() && now.iter().zip(before).all(|(now, before)| same(now, before))
}
