//! Files written by COPY and INSERT: a failed statement creates or replaces no file.
//!
//!   rows ─► an error is recorded ─► DataFusion's sink ─► Held ─► the store      after an error Held finishes no file
//!
//! DataFusion's sinks finish the files that they have begun when the rows end, even after an error: an empty file would
//! then replace the old one.
//!
//! Folders   files that were finished before the error remain: their names are new.
//! Keys      of partitions are passed to DataFusion's sinks as texts, including NULL: for a NULL a sink would use the
//!           value stored below it ([`keys`]).
//! Lists     of folders are removed from the cache after a write.
//! Formats   Parquet, CSV, JSON and Arrow. Sinks of other formats are not wrapped.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{exec_err, internal_err};
use datafusion::datasource::file_format::csv::CsvSink;
use datafusion::datasource::file_format::json::JsonSink;
use datafusion::datasource::file_format::parquet::ParquetSink;
use datafusion::datasource::physical_plan::{FileSink, FileSinkConfig};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::object_store::ObjectStoreRegistry;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, UploadPart,
};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use futures::StreamExt;
use futures::stream::BoxStream;
use url::Url;

use super::keys;
use super::local::Bytes;
use super::written::Writes;

type Stored<T> = datafusion::object_store::Result<T>;

/// Wraps file sinks in [`Whole`].
#[derive(Debug)]
pub(crate) struct WholeFiles;

impl PhysicalOptimizerRule for WholeFiles {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !writes(&plan) {
            return Ok(plan);
        }
        let whole = |node: Arc<dyn ExecutionPlan>| {
            let Some(writer) = node.downcast_ref::<DataSinkExec>().filter(|writer| writes_files(writer.sink())) else {
                return Ok(Transformed::no(node));
            };
            let (input, order) = (Arc::clone(writer.input()), writer.sort_order().clone());
            let sink = Arc::new(Whole { writer: Arc::clone(&node) });
            Ok(Transformed::yes(Arc::new(DataSinkExec::new(input, sink, order)) as Arc<dyn ExecutionPlan>))
        };
        plan.transform_up(whole).data()
    }

    fn name(&self) -> &str {
        "millpond_whole_files"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// True for a plan with a sink; nodes above a sink have one input.
fn writes(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<DataSinkExec>() || matches!(plan.children().as_slice(), [input] if writes(input))
}

/// Name of DataFusion's sink of Arrow files, whose type is private.
const ARROW_SINK: &str = "ArrowFileSink";

fn writes_files(sink: &dyn DataSink) -> bool {
    target(sink).is_some() || format!("{sink:?}") == ARROW_SINK
}

/// Target and settings of a file sink.
fn target(sink: &dyn DataSink) -> Option<&FileSinkConfig> {
    let parquet = || sink.downcast_ref::<ParquetSink>().map(FileSink::config);
    let csv = || sink.downcast_ref::<CsvSink>().map(FileSink::config);
    let json = || sink.downcast_ref::<JsonSink>().map(FileSink::config);
    parquet().or_else(csv).or_else(json)
}

/// Converts the keys of a batch to texts. A key that the files also contain stays as it is.
///
/// # Errors
/// Those of [`keys::texts`]; a NULL in a key that the files also contain.
fn with_texts(batch: RecordBatch, target: &FileSinkConfig) -> Result<RecordBatch> {
    let schema = batch.schema();
    let (mut columns, mut fields) = (batch.columns().to_vec(), schema.fields().to_vec());
    for (name, _) in &target.table_partition_cols {
        let at = schema.index_of(name)?;
        let Some(texts) = keys::texts(name, &columns[at])? else { continue };
        if target.keep_partition_by_columns {
            if columns[at].logical_null_count() > 0 {
                return exec_err!(
                    "column {name} has NULL, which no key can be that is in the files, too: \
                     SET datafusion.execution.keep_partition_by_columns = false"
                );
            }
            continue;
        }
        fields[at] = Arc::new(Field::new(name, texts.data_type().clone(), false));
        columns[at] = texts;
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())), columns)?)
}

/// A file sink that finishes no file after an error.
struct Whole {
    /// The node that owns the sink: it lends the sink only by reference.
    writer: Arc<dyn ExecutionPlan>,
}

impl Whole {
    fn sink(&self) -> Option<&dyn DataSink> {
        self.writer.downcast_ref::<DataSinkExec>().map(DataSinkExec::sink)
    }
}

impl fmt::Debug for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Whole({:?})", self.writer)
    }
}

impl DisplayAs for Whole {
    fn fmt_as(&self, kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sink() {
            Some(sink) => sink.fmt_as(kind, f),
            None => Ok(()),
        }
    }
}

/// The error among the rows, if any.
type Failure = Arc<Mutex<Option<Arc<DataFusionError>>>>;

fn met(failure: &Failure) -> Option<Arc<DataFusionError>> {
    failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

#[async_trait]
impl DataSink for Whole {
    fn metrics(&self) -> Option<MetricsSet> {
        self.sink().and_then(DataSink::metrics)
    }

    fn schema(&self) -> &SchemaRef {
        match self.writer.downcast_ref::<DataSinkExec>() {
            Some(writer) => writer.sink().schema(),
            None => self.writer.properties().eq_properties.schema(),
        }
    }

    async fn write_all(&self, rows: SendableRecordBatchStream, context: &Arc<TaskContext>) -> Result<u64> {
        let Some(sink) = self.sink() else { return internal_err!("a writer of files has a sink") };
        // Arrow's sink exposes no target; its keys are never NULL (`mends::copies`, `tables`).
        let target = target(sink).filter(|target| !target.table_partition_cols.is_empty()).cloned();
        let failure = Failure::default();
        let noted = Arc::clone(&failure);
        let watched = RecordBatchStreamAdapter::new(
            rows.schema(),
            rows.map(move |batch| {
                let batch = match &target {
                    Some(target) => batch.and_then(|batch| with_texts(batch, target)),
                    None => batch,
                };
                batch.map_err(|error| {
                    let error = Arc::new(error);
                    *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&error));
                    DataFusionError::Shared(error)
                })
            }),
        );
        let given = context.runtime_env();
        let stores = Stores { given: Arc::clone(&given.object_store_registry), failure: Arc::clone(&failure) };
        let runtime = RuntimeEnv { object_store_registry: Arc::new(stores), ..given.as_ref().clone() };
        let context = Arc::new(TaskContext::new(
            context.task_id(),
            context.session_id(),
            context.session_config().clone(),
            context.scalar_functions().clone(),
            context.higher_order_functions().clone(),
            context.aggregate_functions().clone(),
            context.window_functions().clone(),
            Arc::new(runtime),
        ));
        let written = sink.write_all(Box::pin(watched), &context).await;
        Writes::note(context.session_config());
        if let Some(lists) = given.cache_manager.get_list_files_cache() {
            lists.clear();
        }
        match met(&failure) {
            // The original error is more specific than that of the refused file.
            Some(error) => Err(DataFusionError::Shared(error)),
            None => written,
        }
    }
}

/// Object stores of a session, each wrapped in [`Held`].
#[derive(Debug)]
struct Stores {
    given: Arc<dyn ObjectStoreRegistry>,
    failure: Failure,
}

impl ObjectStoreRegistry for Stores {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.given.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        self.given.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        let inner = self.given.get_store(url)?;
        Ok(Arc::new(Held { inner, failure: Arc::clone(&self.failure) }))
    }
}

/// A store that finishes no file after an error.
#[derive(Debug, Clone)]
struct Held {
    inner: Arc<dyn ObjectStore>,
    failure: Failure,
}

fn refused(failure: &Failure) -> Stored<()> {
    match met(failure) {
        Some(error) => Err(Error::Generic { store: "Millpond", source: error.strip_backtrace().into() }),
        None => Ok(()),
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

#[async_trait]
impl ObjectStore for Held {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Stored<PutResult> {
        refused(&self.failure)?;
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Stored<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(location, options).await?;
        Ok(Box::new(HeldUpload { inner, failure: Arc::clone(&self.failure) }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Stored<GetResult> {
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Stored<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Stored<Path>>) -> BoxStream<'static, Stored<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Stored<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Stored<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Stored<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Stored<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

/// A file being written.
#[derive(Debug)]
struct HeldUpload {
    inner: Box<dyn MultipartUpload>,
    failure: Failure,
}

#[async_trait]
impl MultipartUpload for HeldUpload {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        self.inner.put_part(part)
    }

    async fn complete(&mut self) -> Stored<PutResult> {
        if let Err(refusal) = refused(&self.failure) {
            // A failed cleanup is left to the store; the refusal reports the cause.
            let _ = self.inner.abort().await;
            return Err(refusal);
        }
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Stored<()> {
        self.inner.abort().await
    }
}
