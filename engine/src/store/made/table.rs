//! A kept table in the catalog.
//!
//!   MadeRows ── INSERT, UPDATE, DELETE ──► batches of a DataFusion in-memory table     for good: MadeRows never change
//!
//! Reads    a plan reads the rows as of its planning, regardless of later changes to the table.
//! INSERT   changes the table when it is executed. UPDATE and DELETE are queries whose rows replace the old ones
//!          (`mends::changes`).

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::catalog::{MemTable, Session, TableProvider};
use datafusion::common::{SchemaExt, not_impl_err};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::datasource::source::{DataSource, DataSourceExec};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use futures::TryStreamExt;
use tokio::sync::RwLock;

use crate::store::made::{MadeRows, MadeSource};

/// A table created by a query.
#[derive(Debug, Clone)]
pub struct MadeTable {
    schema: SchemaRef,
    rows: Arc<RwLock<Rows>>,
}

/// Storage of a kept table's rows.
#[derive(Debug, Clone)]
pub enum Rows {
    /// Unchanged since creation.
    Made(Arc<MadeRows>),
    /// Changed by a statement.
    Changed(Arc<MemTable>),
}

impl MadeTable {
    /// A table with these rows.
    pub fn new(rows: Arc<MadeRows>) -> Self {
        Self { schema: Arc::clone(&rows.schema), rows: Arc::new(RwLock::new(Rows::Made(rows))) }
    }

    /// Current rows.
    pub async fn rows(&self) -> Rows {
        self.rows.read().await.clone()
    }

    /// Current rows; `None` while a statement changes them.
    pub fn rows_now(&self) -> Option<Rows> {
        Some(self.rows.try_read().ok()?.clone())
    }

    /// Replaces the original rows; returns false, without any change, if they have already been replaced.
    pub async fn exchange(&self, before: &Arc<MadeRows>, new: MemTable) -> bool {
        let mut rows = self.rows.write().await;
        let are_there = matches!(&*rows, Rows::Made(now) if Arc::ptr_eq(now, before));
        if are_there {
            *rows = Rows::Changed(Arc::new(new));
        }
        are_there
    }

    /// The original rows, if unchanged.
    pub async fn made(&self) -> Option<Arc<MadeRows>> {
        match self.rows().await {
            Rows::Made(rows) => Some(rows),
            Rows::Changed(_) => None,
        }
    }

    /// Converts the table permanently to a DataFusion in-memory table.
    async fn changed(&self, context: &Arc<TaskContext>) -> Result<Arc<MemTable>> {
        let mut rows = self.rows.write().await;
        let made = match &*rows {
            Rows::Changed(table) => return Ok(Arc::clone(table)),
            Rows::Made(made) => Arc::clone(made),
        };
        let batches = MadeSource::try_new(made, None, 1)?.open(0, Arc::clone(context))?;
        let table = Arc::new(MemTable::try_new(self.schema(), vec![batches.try_collect().await?])?);
        *rows = Rows::Changed(Arc::clone(&table));
        Ok(table)
    }
}

#[async_trait]
impl TableProvider for MadeTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match self.rows().await {
            Rows::Changed(table) => table.scan(state, projection, filters, limit).await,
            Rows::Made(rows) => {
                let source = MadeSource::try_new(rows, projection, state.config().target_partitions())?;
                Ok(DataSourceExec::from_data_source(source))
            }
        }
    }

    async fn insert_into(
        &self,
        _state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        insert_op: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.schema.logically_equivalent_names_and_types(&input.schema())?;
        if insert_op != InsertOp::Append {
            return not_impl_err!("{insert_op} not implemented for MemoryTable yet");
        }
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(Insert { table: self.clone() }), None)))
    }
}

/// Sink that inserts rows into a kept table.
#[derive(Debug)]
struct Insert {
    table: MadeTable,
}

impl DisplayAs for Insert {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => Ok(()),
            _ => write!(f, "MadeTable"),
        }
    }
}

#[async_trait]
impl DataSink for Insert {
    fn schema(&self) -> &SchemaRef {
        &self.table.schema
    }

    async fn write_all(&self, data: SendableRecordBatchStream, context: &Arc<TaskContext>) -> Result<u64> {
        // Collects all rows first: rows of a failed query are not inserted.
        let mut batches: Vec<_> = data.try_collect().await?;
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let table = self.table.changed(context).await?;
        if let Some(partition) = table.batches.first() {
            partition.write().await.append(&mut batches);
        }
        Ok(rows as u64)
    }
}
