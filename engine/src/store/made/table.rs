//! A made table in the catalog.
//!
//!   MadeRows ── INSERT, UPDATE, DELETE ──► batches of DataFusion's own table in memory      for good: they cannot be added to where they are
//!
//! Reads    a plan reads the rows as they were when it was made, whatever becomes of the table.
//! INSERT   acts when it is executed. UPDATE and DELETE are queries whose rows come here (`mends::changes`).

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

/// A table that a query has made.
#[derive(Debug, Clone)]
pub struct MadeTable {
    schema: SchemaRef,
    rows: Arc<RwLock<Rows>>,
}

/// Where the rows of a made table are.
#[derive(Debug, Clone)]
pub enum Rows {
    /// As they were made.
    Made(Arc<MadeRows>),
    /// Since a statement has changed them.
    Changed(Arc<MemTable>),
}

impl MadeTable {
    /// A table of these rows.
    pub fn new(rows: Arc<MadeRows>) -> Self {
        Self { schema: Arc::clone(&rows.schema), rows: Arc::new(RwLock::new(Rows::Made(rows))) }
    }

    /// Where its rows are now.
    pub async fn rows(&self) -> Rows {
        self.rows.read().await.clone()
    }

    /// The same; `None` while a statement changes them.
    pub fn rows_now(&self) -> Option<Rows> {
        Some(self.rows.try_read().ok()?.clone())
    }

    /// Puts other rows in the place of those that a query has made; false, and nothing done, where they are no longer there.
    pub async fn exchange(&self, before: &Arc<MadeRows>, new: MemTable) -> bool {
        let mut rows = self.rows.write().await;
        let are_there = matches!(&*rows, Rows::Made(now) if Arc::ptr_eq(now, before));
        if are_there {
            *rows = Rows::Changed(Arc::new(new));
        }
        are_there
    }

    /// Its rows, as long as they are as they were made.
    pub async fn made(&self) -> Option<Arc<MadeRows>> {
        match self.rows().await {
            Rows::Made(rows) => Some(rows),
            Rows::Changed(_) => None,
        }
    }

    /// The table as DataFusion's own, from now on.
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

/// Rows on their way into a made table.
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
        // All of them first: rows of a query that fails are not inserted.
        let mut batches: Vec<_> = data.try_collect().await?;
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let table = self.table.changed(context).await?;
        if let Some(partition) = table.batches.first() {
            partition.write().await.append(&mut batches);
        }
        Ok(rows as u64)
    }
}
