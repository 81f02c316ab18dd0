//! Which rows a scan reads, in words that do not go stale: the files as they are now, or the batches themselves.
//!
//!   DataSourceExec ─► Scan { identity, table columns }        equal identity: the same bytes, read the same way, in the same types
//!                        └─ reading(columns) ─► a scan of whole files in order, without filter and limit
//!
//! Fresh    of a file its store is asked now: entity tag, or time of change, and size. A plan may know an older one.
//! Refused  limits, filters that the scan itself applies, parts of files, computed columns, formats and readers of others: these are fed.

use std::fmt::Write;
use std::sync::{Arc, Weak};

use datafusion::arrow::array::Array;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::ScalarValue;
use datafusion::config::TableParquetOptions;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{
    ArrowSource, CsvSource, FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, JsonSource, ParquetSource,
};
use datafusion::datasource::source::{DataSource, DataSourceExec};
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::object_store::path::Path;
use datafusion::object_store::{ObjectMeta, ObjectStoreExt};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use futures::future::try_join_all;

use crate::column::{DictionaryId, storage, uploaded_columns};
use crate::error::EngineError;

/// A scan whose columns can be stored.
pub struct Scan {
    source: Arc<dyn DataSource>,
    /// Of the scan.
    pub schema: SchemaRef,
    /// Which column of the table each of the scan's is.
    pub columns: Vec<usize>,
}

/// The rows of a table.
#[derive(Debug, Clone)]
pub enum Identity {
    Files(Files),
    Batches(Batches),
}

/// Files, and how they are read.
#[derive(Debug, Clone, PartialEq)]
pub struct Files {
    /// Store, format, reader options, types.
    reader: String,
    schema: SchemaRef,
    files: Vec<FileNow>,
}

/// A file as it is now.
#[derive(Debug, Clone, PartialEq)]
struct FileNow {
    meta: ObjectMeta,
    partition_values: Vec<ScalarValue>,
}

/// Arrays in memory, all columns of all batches. The table may be dropped: they are not kept.
#[derive(Debug, Clone)]
pub struct Batches {
    schema: SchemaRef,
    arrays: Vec<Vec<Weak<dyn Array>>>,
}

impl Identity {
    /// True if both are the same rows.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Files(a), Self::Files(b)) => a == b,
            (Self::Batches(a), Self::Batches(b)) => a.is(b),
            _ => false,
        }
    }

    /// True for a table in memory that nobody has any more.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Files(_) => false,
            Self::Batches(batches) => batches.arrays.iter().flatten().any(|array| array.strong_count() == 0),
        }
    }

    /// True if `newer` has some of the same files, read in the same way, as they are now: these rows are of yesterday.
    pub fn is_replaced_by(&self, newer: &Self) -> bool {
        let (Self::Files(old), Self::Files(new)) = (self, newer) else { return false };
        let changed = |old: &FileNow| {
            let same = |new: &&FileNow| new.meta.location == old.meta.location;
            new.files.iter().find(same).is_some_and(|new| new.meta != old.meta)
        };
        old.reader == new.reader && old.files.iter().any(changed)
    }

    /// How a table is named to users: its first file, or that it is in memory.
    pub fn name(&self) -> String {
        match self {
            Self::Files(Files { files, .. }) => match files.as_slice() {
                [] => "no files".to_string(),
                [one] => one.meta.location.to_string(),
                [first, others @ ..] => format!("{} and {} more", first.meta.location, others.len()),
            },
            Self::Batches(batches) => format!("{} batches in memory", batches.arrays.len()),
        }
    }
}

impl Batches {
    /// Allocations that a weak reference keeps are not used again, so that an equal address is the same array.
    fn is(&self, other: &Self) -> bool {
        let same = |(a, b): (&Weak<dyn Array>, &Weak<dyn Array>)| Weak::ptr_eq(a, b);
        let pairs = self.arrays.iter().zip(&other.arrays);
        self.schema == other.schema
            && self.arrays.len() == other.arrays.len()
            && pairs.into_iter().all(|(a, b)| a.len() == b.len() && a.iter().zip(b).all(same))
    }
}

impl Scan {
    /// The scan that `plan` is, unless it is one of those that are always fed.
    pub fn of(plan: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let plan = match plan.downcast_ref::<CooperativeExec>() {
            Some(yields) => *yields.children().first()?,
            None => plan,
        };
        let source = Arc::clone(plan.downcast_ref::<DataSourceExec>()?.data_source());
        let schema = plan.schema();
        if source.fetch().is_some() || schema.fields().is_empty() {
            return None;
        }
        let columns = match (source.downcast_ref::<MemorySourceConfig>(), source.downcast_ref::<FileScanConfig>()) {
            (Some(memory), _) => match memory.projection() {
                Some(columns) => columns.clone(),
                None => (0..schema.fields().len()).collect(),
            },
            (_, Some(files)) => {
                reader(files)?;
                let projection = files.file_source.projection()?;
                projection.iter().map(|one| Some(one.expr.downcast_ref::<Column>()?.index())).collect::<Option<_>>()?
            }
            _ => return None,
        };
        (columns.len() == schema.fields().len()).then_some(Self { source, schema, columns })
    }

    /// What it reads, as it is now.
    ///
    /// # Errors
    /// The store's: a file that is not there, or cannot be reached.
    pub async fn identity(&self, context: &TaskContext) -> Result<Identity> {
        if let Some(memory) = self.source.downcast_ref::<MemorySourceConfig>() {
            let batches = memory.partitions().iter().flatten();
            let arrays = batches.map(|batch| batch.columns().iter().map(Arc::downgrade).collect()).collect();
            return Ok(Identity::Batches(Batches { schema: memory.original_schema(), arrays }));
        }
        let config = self.files()?;
        let store = context.runtime_env().object_store(&config.object_store_url)?;
        let now = whole_files(config).into_iter().map(|file| {
            let store = Arc::clone(&store);
            async move {
                let meta = store.head(&file.object_meta.location).await?;
                Ok::<_, datafusion::error::DataFusionError>(FileNow { meta, partition_values: file.partition_values })
            }
        });
        let files = try_join_all(now).await?;
        let reader = reader(config).ok_or_else(|| EngineError::internal("the scan was looked at before"))?;
        Ok(Identity::Files(Files {
            reader,
            schema: Arc::clone(config.file_source.table_schema().table_schema()),
            files,
        }))
    }

    fn files(&self) -> Result<&FileScanConfig> {
        let files = self.source.downcast_ref::<FileScanConfig>();
        Ok(files.ok_or_else(|| EngineError::internal("a scan of files or of batches"))?)
    }

    /// About what these of its columns take when they are stored: by DataFusion's statistics, else by the bytes of the files.
    pub fn estimated_bytes(&self, columns: &[usize]) -> u64 {
        let statistics = self.source.partition_statistics(None).ok();
        let rows = statistics.as_ref().and_then(|known| known.num_rows.get_value().copied());
        if let Some(rows) = rows {
            let known = uploaded_columns(&self.schema, statistics.as_deref(), |_, _| DictionaryId(0));
            let width = |at: &usize| known[*at].ty().map_or(0, |ty| u64::from(storage(ty).0.width().max(1)));
            return columns.iter().map(width).sum::<u64>().saturating_mul(rows as u64);
        }
        let Ok(config) = self.files() else { return 0 };
        let bytes: u64 = whole_files(config).iter().map(|file| file.object_meta.size).sum();
        bytes / config.file_source.table_schema().table_schema().fields().len().max(1) as u64 * columns.len() as u64
    }

    /// Rows of a table in memory.
    pub fn rows_in_memory(&self) -> usize {
        let memory = self.source.downcast_ref::<MemorySourceConfig>();
        memory.map_or(0, |memory| memory.partitions().iter().flatten().map(|batch| batch.num_rows()).sum())
    }

    /// True for a table in memory.
    pub fn is_in_memory(&self) -> bool {
        self.source.is::<MemorySourceConfig>()
    }

    /// A plan that reads columns `wanted` of the scan, all rows of them, in the order of the files; the partitions one after the other.
    ///
    /// # Errors
    /// DataFusion's.
    pub fn reading(
        &self,
        identity: &Identity,
        wanted: &[usize],
        context: &TaskContext,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let fewer = || EngineError::internal("a scan of columns gives fewer of them");
        let Identity::Files(Files { files, .. }) = identity else {
            let projection = ProjectionExprs::from_indices(wanted, &self.schema);
            let source = self.source.try_swapping_with_projection(&projection)?;
            return Ok(Arc::new(DataSourceExec::new(source.ok_or_else(fewer)?)));
        };
        let config = self.files()?;
        let (source, schema, columns) = match plain(&config.file_source) {
            Some(source) => {
                let columns: Vec<usize> = wanted.iter().map(|at| self.columns[*at]).collect();
                let schema = Arc::clone(source.table_schema().table_schema());
                (source, schema, columns)
            }
            None => (Arc::clone(&config.file_source), Arc::clone(&self.schema), wanted.to_vec()),
        };
        let projection = ProjectionExprs::from_indices(&columns, &schema);
        let source = source.try_pushdown_projection(&projection)?.ok_or_else(fewer)?;
        let whole = whole_files(config).into_iter().zip(files);
        let groups =
            whole.map(|(file, now)| FileGroup::new(vec![PartitionedFile { object_meta: now.meta.clone(), ..file }]));
        let builder = FileScanConfigBuilder::from(config.clone())
            .with_source(source)
            .with_limit(None)
            .with_output_ordering(vec![])
            .with_output_partitioning(None)
            .with_file_groups(groups.collect());
        let options = context.session_config().options();
        let (most, least) = (options.execution.target_partitions, options.optimizer.repartition_file_min_size);
        let config = builder.build();
        let split = config.repartitioned(most, least, None)?;
        let split = split.as_ref().and_then(|split| split.downcast_ref::<FileScanConfig>());
        let mut config = split.cloned().unwrap_or(config);
        // No reader takes the files of another: the order of rows is that of the partitions.
        config.preserve_order = true;
        Ok(Arc::new(DataSourceExec::new(Arc::new(config))))
    }
}

/// The files of a scan, each once, in the order in which they come.
fn whole_files(config: &FileScanConfig) -> Vec<PartitionedFile> {
    let mut files: Vec<PartitionedFile> = Vec::new();
    for file in config.file_groups.iter().flat_map(|group| group.files()) {
        let known = files.iter().any(|known| {
            known.object_meta.location == file.object_meta.location && known.partition_values == file.partition_values
        });
        if !known {
            files.push(PartitionedFile { range: None, statistics: None, ordering: None, ..file.clone() });
        }
    }
    // Groups are made by size and by what is read at once; the table's order is that of the names.
    files.sort_by(|a, b| a.object_meta.location.cmp(&b.object_meta.location));
    files
}

/// Store, format and reader options; `None` for a scan that is not stored.
fn reader(config: &FileScanConfig) -> Option<String> {
    // Somebody has chosen rows of these files, or the order in which they are read.
    let is_whole = |location: &Path| {
        let files = || config.file_groups.iter().flat_map(|group| group.files());
        let of = || files().filter(|file| file.object_meta.location == *location);
        let parts = || of().filter_map(|file| file.range.as_ref());
        let whole = parts().next().is_none() && of().count() == 1;
        let covered: i64 = parts().map(|range| range.end - range.start).sum();
        whole || of().all(|file| file.range.is_some() && file.object_meta.size == covered as u64)
    };
    let mut files = config.file_groups.iter().flat_map(|group| group.files());
    if !files.all(|file| file.extensions.is_empty() && is_whole(&file.object_meta.location)) {
        return None;
    }
    let source = &config.file_source;
    let mut reader = format!("{} {} {:?}", config.object_store_url, source.file_type(), config.file_compression_type);
    if let Some(parquet) = source.downcast_ref::<ParquetSource>() {
        let TableParquetOptions { global, crypto, .. } = parquet.table_parquet_options();
        let filters = global.pushdown_filters && source.filter().is_some();
        if filters || crypto.file_decryption.is_some() || crypto.factory_id.is_some() {
            return None;
        }
        // Those that change what a value is.
        let ways = (global.coerce_int96.as_deref(), global.binary_as_string, global.schema_force_view_types);
        write!(reader, " {ways:?}").ok()?;
    } else if let Some(csv) = source.downcast_ref::<CsvSource>() {
        let marks = (csv.delimiter(), csv.quote(), csv.terminator(), csv.comment(), csv.escape());
        let ways = (csv.has_header(), csv.truncate_rows(), csv.newlines_in_values());
        write!(reader, " {marks:?} {ways:?}").ok()?;
    } else if !source.is::<JsonSource>() && !source.is::<ArrowSource>() {
        return None;
    }
    write!(reader, " {:?}", config.expr_adapter_factory).ok()?;
    Some(reader)
}

/// A source of all columns without what a query has brought into it: a filter, by which rows are left out, or an order, for which row
/// groups are read last to first. `None` for one that takes up neither.
fn plain(source: &Arc<dyn FileSource>) -> Option<Arc<dyn FileSource>> {
    let parquet = source.downcast_ref::<ParquetSource>()?;
    let options = parquet.table_parquet_options().clone();
    let hint = options.global.metadata_size_hint;
    let mut plain = ParquetSource::new(source.table_schema().clone()).with_table_parquet_options(options);
    if let Some(hint) = hint {
        plain = plain.with_metadata_size_hint(hint);
    }
    if let Some(factory) = parquet.parquet_file_reader_factory() {
        plain = plain.with_parquet_file_reader_factory(Arc::clone(factory));
    }
    Some(Arc::new(plain))
}
