//! CREATE TABLE … AS: the rows of a query that runs on the device stay there.
//!
//!   CREATE TABLE t AS query ─► plan ─┬─ all on the device ─ Keeper ─► columns that stay ─► MadeTable
//!                                    └─ else, or no room ─► batches ─► MemTable, as DataFusion makes it
//!
//! Left     to DataFusion: what it refuses, constraints, defaults, tables that are there already.
//! Replaced the old table stays until the new one is whole, and longer where that fails ([`definitions`](crate::definitions)).
//! Order    of the query's rows, where they come in one partition.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::error::Result;
use datafusion::logical_expr::{CreateMemoryTable, DdlStatement, LogicalPlan};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use millpond_memory::Strategy;

use crate::definitions;
use crate::report::QueryReport;
use crate::result::node::DownloadExec;
use crate::session::{Millpond, QueryResult};
use crate::store::{Keeper, MadeTable};

/// A table that a query has made.
pub struct Created {
    /// The table, as the catalog has it.
    pub table: Arc<dyn TableProvider>,
    /// What the query did.
    pub report: QueryReport,
}

impl Millpond {
    /// Makes a table as `CREATE TABLE … AS` asks; its rows stay on the device where the query runs there and they have room.
    /// `None` for a table that DataFusion makes or leaves as it is.
    ///
    /// # Errors
    /// Those of the query, and DataFusion's for a table that cannot be made.
    pub async fn create_table(&self, create: CreateMemoryTable) -> Result<Option<Created>> {
        let created = self.create(create).await;
        // Kept plans may have been made of the table that was here.
        self.equipment.plans.clear();
        created
    }

    async fn create(&self, create: CreateMemoryTable) -> Result<Option<Created>> {
        let is_there = self.context.table(create.name.clone()).await.is_ok();
        if !is_plain(&create) || (is_there && (create.if_not_exists || !create.or_replace)) {
            return self.leave(create).await;
        }
        let input = crate::sql::optimised(&self.context.state(), &create.input)?;
        if definitions::has_equal_names(&input) {
            return self.leave(create).await;
        }
        let schema = Arc::clone(input.schema().inner());
        let plan = crate::sql::physical_plan_of_optimised(&self.context.state(), &input).await?;
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

    /// DataFusion makes the table, or says why not.
    async fn leave(&self, create: CreateMemoryTable) -> Result<Option<Created>> {
        crate::sql::run_plan(&self.context, LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create))).await?;
        Ok(None)
    }

    /// The plan with someone who keeps its rows, where it is one part on the device and a store is there.
    async fn keeping(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        create: &CreateMemoryTable,
        schema: &SchemaRef,
    ) -> (Arc<dyn ExecutionPlan>, Option<Arc<Keeper>>) {
        let (Some(engine), Some(border)) = (self.engine(), plan.downcast_ref::<DownloadExec>()) else {
            return (plan, None);
        };
        // An arena takes nothing back while anything of it is in use.
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

/// True for a table that is its query's rows, and no more.
fn is_plain(create: &CreateMemoryTable) -> bool {
    create.constraints.is_empty() && create.column_defaults.is_empty() && !create.temporary
}

/// Batches of a table in memory, over so many partitions.
fn spread(result: &QueryResult, partitions: usize) -> Vec<Vec<RecordBatch>> {
    let partitions = partitions.clamp(1, result.batches.len().max(1));
    let mut spread = vec![Vec::new(); partitions];
    for (index, batch) in result.batches.iter().enumerate() {
        spread[index % partitions].push(batch.clone());
    }
    spread
}
