//! A scan of a kept table: stored columns for a run on the device, Arrow batches otherwise.
//!
//!   DataSourceExec ─ MadeSource ─┬─ below an upload: Scan::of ─► View
//!                                └─ executed ─► downloaded chunk by chunk
//!
//! Order    is that of the table, within and across partitions.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Statistics, project_schema};
use datafusion::datasource::source::{DataSource, DataSourceExec};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::projection::{ProjectionExpr, all_alias_free_columns, new_projections_for_columns};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan};
use futures::{StreamExt, TryStreamExt, stream};

use crate::profile::metric;
use crate::store::made::MadeRows;

/// A scan of some columns of a kept table.
#[derive(Debug, Clone)]
pub struct MadeSource {
    pub(crate) rows: Arc<MadeRows>,
    pub(crate) columns: Vec<usize>,
    schema: SchemaRef,
    partitions: usize,
    /// Counts downloaded bytes.
    metrics: ExecutionPlanMetricsSet,
}

impl MadeSource {
    /// Scans the columns `projection`, or all, with at most `partitions` partitions.
    ///
    /// # Errors
    /// Arrow's, if the table lacks a column.
    pub(super) fn try_new(rows: Arc<MadeRows>, projection: Option<&Vec<usize>>, partitions: usize) -> Result<Self> {
        let schema = project_schema(&rows.schema, projection)?;
        let columns = match projection {
            Some(columns) => columns.clone(),
            None => (0..schema.fields().len()).collect(),
        };
        let partitions = partitions.clamp(1, (rows.chunks() as usize).max(1));
        Ok(Self { rows, columns, schema, partitions, metrics: ExecutionPlanMetricsSet::new() })
    }

    /// Copy of a scan for another run, with its own metrics; `None` if `plan` is not a scan of a kept table.
    pub(crate) fn as_new(plan: &dyn ExecutionPlan) -> Option<Arc<dyn ExecutionPlan>> {
        let scan = plan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref::<Self>()?;
        let scan = Self { metrics: ExecutionPlanMetricsSet::new(), ..scan.clone() };
        Some(DataSourceExec::from_data_source(scan))
    }

    /// Chunks of a partition.
    fn chunks(&self, partition: usize) -> std::ops::Range<u64> {
        let (all, of) = (self.rows.chunks(), self.partitions as u64);
        let begin = |partition: u64| all * partition / of;
        begin(partition as u64)..begin(partition as u64 + 1)
    }

    async fn batch(&self, chunk: u64, context: &TaskContext) -> Result<RecordBatch> {
        let mut arrays = Vec::with_capacity(self.columns.len());
        let counted = MetricBuilder::new(&self.metrics).global_counter(metric::DOWNLOADED_BYTES);
        for column in &self.columns {
            let (array, bytes) = self.rows.home(*column, chunk, context).await?;
            counted.add(bytes as usize);
            arrays.push(array);
        }
        let rows = self.rows.chunk(chunk);
        let options = RecordBatchOptions::new().with_row_count(Some((rows.end - rows.start) as usize));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)?)
    }
}

/// Splits a batch into pieces of at most `rows` rows.
fn pieces(batch: RecordBatch, rows: usize) -> impl Iterator<Item = RecordBatch> {
    let rows = rows.max(1);
    (0..batch.num_rows()).step_by(rows).map(move |from| batch.slice(from, rows.min(batch.num_rows() - from)))
}

impl DataSource for MadeSource {
    fn open(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (scan, rows) = (self.clone(), context.session_config().batch_size());
        let chunks = stream::iter(self.chunks(partition)).then(move |chunk| {
            let (scan, context) = (scan.clone(), Arc::clone(&context));
            async move { scan.batch(chunk, &context).await }
        });
        let batches = chunks.map_ok(move |batch| stream::iter(pieces(batch, rows).map(Ok))).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches)))
    }

    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let MadeRows { table, rows, .. } = &*self.rows;
        match t {
            DisplayFormatType::TreeRender => writeln!(f, "made={table}\nrows={rows}"),
            _ => write!(f, "made={table}, partitions={}, rows={rows}", self.partitions),
        }
    }

    fn output_partitioning(&self) -> Partitioning {
        Partitioning::UnknownPartitioning(self.partitions)
    }

    fn eq_properties(&self) -> EquivalenceProperties {
        EquivalenceProperties::new(Arc::clone(&self.schema))
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        let known = self.rows.statistics(&self.columns, &self.schema);
        Ok(Arc::new(match partition {
            Some(partition) if self.partitions > 1 => {
                let rows: u64 =
                    self.chunks(partition).map(|chunk| self.rows.chunk(chunk)).map(|r| r.end - r.start).sum();
                Statistics { num_rows: Precision::Exact(rows as usize), ..Statistics::new_unknown(&self.schema) }
            }
            _ => known,
        }))
    }

    fn metrics(&self) -> ExecutionPlanMetricsSet {
        self.metrics.clone()
    }

    /// A LIMIT stays above the scan, where the device ends the run.
    fn with_fetch(&self, _limit: Option<usize>) -> Option<Arc<dyn DataSource>> {
        None
    }

    fn fetch(&self) -> Option<usize> {
        None
    }

    fn try_swapping_with_projection(&self, projection: &ProjectionExprs) -> Result<Option<Arc<dyn DataSource>>> {
        let exprs: Vec<ProjectionExpr> = projection.iter().cloned().collect();
        if !all_alias_free_columns(&exprs) {
            return Ok(None);
        }
        let columns = new_projections_for_columns(&exprs, &self.columns);
        let source = Self::try_new(Arc::clone(&self.rows), Some(&columns), self.partitions)?;
        Ok(Some(Arc::new(source)))
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }
}
