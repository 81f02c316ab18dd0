//! CREATE TABLE … AS: if the query runs on the device, its rows are kept there.
//!
//!   CREATE TABLE t AS query ─► plan ─┬─ all on the device ─ Keeper ─► stored columns ─► MadeTable
//!                                    └─ else, or out of memory ─► batches ─► MemTable, as in DataFusion
//!
//! Left     to DataFusion: statements that it refuses, constraints, defaults, existing tables.
//! Replaced the old table remains until the new one is complete, or if it fails: see
//!          [`definitions`](crate::session::definitions).
//! Order    of the query's rows is kept if they have one partition.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::error::Result;
use datafusion::logical_expr::{CreateMemoryTable, DdlStatement, LogicalPlan};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use millpond_memory::Strategy;

use crate::result::node::DownloadExec;
use crate::session::definitions;
use crate::session::report::QueryReport;
use crate::session::{Millpond, QueryResult};
use crate::store::{Keeper, MadeTable};

/// A table created from a query.
pub struct Created {
    /// The table, as registered in the catalog.
    pub table: Arc<dyn TableProvider>,
    /// Report of the query.
    pub report: QueryReport,
}

impl Millpond {
    /// Creates a table for `CREATE TABLE … AS`; its rows are kept on the device if the query runs there and they fit.
    /// `None` for a table that DataFusion creates or leaves unchanged.
    ///
    /// # Errors
    /// Those of the query, and DataFusion's for a table that cannot be created.
    pub async fn create_table(&self, create: CreateMemoryTable) -> Result<Option<Created>> {
        let created = self.create(create).await;
        // Kept plans may read the replaced table.
        self.equipment.plans.clear();
        created
    }

    async fn create(&self, create: CreateMemoryTable) -> Result<Option<Created>> {
        let is_there = self.context.table(create.name.clone()).await.is_ok();
        if !is_plain(&create) || (is_there && (create.if_not_exists || !create.or_replace)) {
            return self.leave(create).await;
        }
        let input = crate::session::sql::optimised(&self.context.state(), &create.input)?;
        if definitions::has_equal_names(&input) {
            return self.leave(create).await;
        }
        let schema = Arc::clone(input.schema().inner());
        let plan = crate::session::sql::physical_plan_of_optimised(&self.context.state(), &input).await?;
        let (plan, keeper) = self.keeping(plan, &create, &schema).await;
        let in_one = plan.output_partitioning().partition_count() == 1;
        let result = self.execute_plan(plan).await?;
        let table: Arc<dyn TableProvider> = match keeper.and_then(|keeper| keeper.made()) {
            Some(rows) => Arc::new(MadeTable::new(rows)),
            None => {
                let partitions = if in_one { 1 } else { self.context.copied_config().target_partitions() };
                Arc::new(MemTable::try_new(schema, spread(&result, partitions))?)
            }
        };
        match create.or_replace {
            true => definitions::replace(&self.context, create.name, Arc::clone(&table))?,
            false => drop(self.context.register_table(create.name, Arc::clone(&table))?),
        }
        Ok(Some(Created { table, report: result.report }))
    }

    /// Leaves the statement to DataFusion, which creates the table or reports why not.
    async fn leave(&self, create: CreateMemoryTable) -> Result<Option<Created>> {
        crate::session::sql::run_plan(&self.context, LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create))).await?;
        Ok(None)
    }

    /// Adds a keeper of the rows to the plan, if the plan is a single device part and columns are stored.
    async fn keeping(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        create: &CreateMemoryTable,
        schema: &SchemaRef,
    ) -> (Arc<dyn ExecutionPlan>, Option<Arc<Keeper>>) {
        let (Some(engine), Some(border)) = (self.engine(), plan.downcast_ref::<DownloadExec>()) else {
            return (plan, None);
        };
        // An arena frees nothing while any part of it is in use.
        if !self.keeps_columns() || engine.memory_resource() == Strategy::Arena || !schema.contains(&plan.schema()) {
            return (plan, None);
        }
        let replaced = match self.context.table_provider(create.name.clone()).await {
            Ok(table) => match table.downcast_ref::<MadeTable>() {
                Some(table) => table.made().await,
                None => None,
            },
            Err(_) => None,
        };
        let keeper = Arc::new(Keeper::new(engine, create.name.to_string(), Arc::clone(schema), replaced));
        (Arc::new(border.kept_by(Arc::clone(&keeper) as _)), Some(keeper))
    }
}

/// True for a table defined only by its query.
fn is_plain(create: &CreateMemoryTable) -> bool {
    create.constraints.is_empty() && create.column_defaults.is_empty() && !create.temporary
}

/// Distributes the batches of an in-memory table over partitions.
fn spread(result: &QueryResult, partitions: usize) -> Vec<Vec<RecordBatch>> {
    let partitions = partitions.clamp(1, result.batches.len().max(1));
    let mut spread = vec![Vec::new(); partitions];
    for (index, batch) in result.batches.iter().enumerate() {
        spread[index % partitions].push(batch.clone());
    }
    spread
}
