//! Separates opening and reading of Parquet files from decoding, if a profile is requested.
//!
//!   DataSourceExec ─ ParquetSource ─ reader factory ─► Timed(reader)     metadata: open · bytes: read
//!
//! Only the plan of this run is changed, and only scans that are the root or below operators with one input. The bytes
//! and ranges read are unchanged; other formats are not separated.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileScanConfigBuilder, ParquetFileReaderFactory, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::object_store::PutPayload;
use datafusion::parquet::arrow::arrow_reader::ArrowReaderOptions;
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::parquet::errors::Result as ParquetResult;
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_memory::recorder::{self, Step};

use super::step;

/// Bytes of a range, in the type that readers return.
type Bytes = <PutPayload as IntoIterator>::Item;

/// `input` with timed file readers; the same plan if no profile is requested.
pub(crate) fn timed_reads(input: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    if recorder::current().is_none() {
        return Arc::clone(input);
    }
    timed(input).unwrap_or_else(|| Arc::clone(input))
}

fn timed(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    if let Some(scan) = plan.downcast_ref::<DataSourceExec>() {
        let (config, source) = scan.downcast_to_file_source::<ParquetSource>()?;
        let factory = Arc::new(Timed(Arc::clone(source.parquet_file_reader_factory()?)));
        let source = source.clone().with_parquet_file_reader_factory(factory);
        let config = FileScanConfigBuilder::from(config.clone()).with_source(Arc::new(source)).build();
        return Some(Arc::new(scan.clone().with_data_source(Arc::new(config))));
    }
    let [input] = plan.children()[..] else { return None };
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Arc::clone(plan).replace_children(vec![timed(input)?], options).ok()
}

#[derive(Debug)]
struct Timed<T>(T);

impl ParquetFileReaderFactory for Timed<Arc<dyn ParquetFileReaderFactory>> {
    fn create_reader(
        &self,
        partition_index: usize,
        file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let reader = self.0.create_reader(partition_index, file, metadata_size_hint, metrics)?;
        Ok(Box::new(Timed(reader)))
    }
}

/// Runs `future` in `step`, both while it is polled and while it waits.
fn in_step<'f, F: Future + Send + 'f>(step: Step, future: F) -> BoxFuture<'f, F::Output>
where
    F::Output: Send,
{
    recorder::during(step, future).boxed()
}

impl AsyncFileReader for Timed<Box<dyn AsyncFileReader + Send>> {
    /// While waiting, the reader's task already rests in `read`.
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        recorder::polled(step::READ, self.0.get_bytes(range)).boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        recorder::polled(step::READ, self.0.get_byte_ranges(ranges)).boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        in_step(step::OPEN, self.0.get_metadata(options))
    }
}
