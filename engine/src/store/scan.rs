//! A scan whose columns can be stored, and plans that read columns of its files.
//!
//!   DataSourceExec ─► Scan { identity, table columns }
//!                        └─ reading(columns, files) ─► a scan of whole files in order, without filter and limit
//!
//! Refused  limits, row filters that the device cannot apply, partial files, computed columns, unsupported formats and
//!          custom readers: these scans are fed.

use std::fmt::Write;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
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
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use futures::future::try_join_all;

use crate::column::{DictionaryId, storage, uploaded_columns};
use crate::error::EngineError;
use crate::plan::snapshot::Looks;
use crate::store::checks::{Age, Checks};
use crate::store::identity::{Batches, FileNow, Files, Identity};
use crate::store::made::MadeSource;

/// A scan whose columns can be stored.
pub struct Scan {
    source: Arc<dyn DataSource>,
    /// Schema of the scan.
    pub schema: SchemaRef,
    /// Index in the table of each column of the scan.
    pub columns: Vec<usize>,
}

impl Scan {
    /// Converts `plan` to a scan; `None` for scans that are always fed.
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
            _ if source.is::<MadeSource>() => source.downcast_ref::<MadeSource>()?.columns.clone(),
            (_, Some(files)) => {
                reader(files)?;
                let projection = files.file_source.projection()?;
                projection.iter().map(|one| Some(one.expr.downcast_ref::<Column>()?.index())).collect::<Option<_>>()?
            }
            _ => return None,
        };
        (columns.len() == schema.fields().len()).then_some(Self { source, schema, columns })
    }

    /// Identity of the rows that it reads, of at most the given age.
    ///
    /// # Errors
    /// The store's: a file is missing or unreachable.
    pub async fn identity(&self, context: &TaskContext, age: Age) -> Result<Identity> {
        self.identity_since(context, age, None).await
    }

    /// Like [`identity`](Self::identity), or from the metadata of the run's planning.
    ///
    /// # Errors
    /// Like [`identity`](Self::identity).
    pub async fn identity_since(&self, context: &TaskContext, age: Age, looks: Option<&Looks>) -> Result<Identity> {
        if let Some(memory) = self.source.downcast_ref::<MemorySourceConfig>() {
            let batches = memory.partitions().iter().flatten();
            let arrays = batches.map(|batch| batch.columns().iter().map(Arc::downgrade).collect()).collect();
            return Ok(Identity::Batches(Batches { schema: memory.original_schema(), arrays }));
        }
        let config = self.files()?;
        let checks = Checks::of(context.session_config());
        let (url, store) = (&config.object_store_url, context.runtime_env().object_store(&config.object_store_url)?);
        let now = whole_files(config).into_iter().map(|file| {
            let (checks, store) = (&checks, &store);
            async move {
                let location = &file.object_meta.location;
                let meta = match looks.and_then(|looks| looks.file(url.as_str(), location)) {
                    Some(seen) => seen.clone(),
                    None => checks.head(url, store, location, age).await?,
                };
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

    /// The file scan.
    ///
    /// # Errors
    /// If it is a scan of batches.
    pub(super) fn files(&self) -> Result<&FileScanConfig> {
        let files = self.source.downcast_ref::<FileScanConfig>();
        Ok(files.ok_or_else(|| EngineError::internal("a scan of files or of batches"))?)
    }

    /// Approximate stored bytes of these columns: from DataFusion's statistics, or else from the file sizes.
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

    /// Bytes of these files, if columns can be read separately; `None` for other formats, which are read row by row.
    pub(super) fn columnar_bytes(&self, identity: &Identity, files: &[usize]) -> Option<u64> {
        let Identity::Files(Files { files: now, .. }) = identity else { return None };
        self.files().ok()?.file_source.downcast_ref::<ParquetSource>()?;
        Some(files.iter().map(|at| now[*at].meta.size).sum())
    }

    /// The scan of a kept table, if it is one.
    pub(super) fn made(&self) -> Option<&MadeSource> {
        self.source.downcast_ref()
    }

    /// Number of rows of an in-memory table.
    pub fn rows_in_memory(&self) -> usize {
        let memory = self.source.downcast_ref::<MemorySourceConfig>();
        memory.map_or(0, |memory| memory.partitions().iter().flatten().map(|batch| batch.num_rows()).sum())
    }

    /// True for an in-memory table.
    pub fn is_in_memory(&self) -> bool {
        self.source.is::<MemorySourceConfig>()
    }

    /// A plan that reads all rows of the columns `wanted` from the given `files`, in file order; and the file index of
    /// each partition. An in-memory table counts as one file.
    ///
    /// # Errors
    /// DataFusion's.
    pub fn reading(
        &self,
        identity: &Identity,
        wanted: &[usize],
        files: &[usize],
        context: &TaskContext,
    ) -> Result<(Arc<dyn ExecutionPlan>, Vec<usize>)> {
        let fewer = || EngineError::internal("a scan of columns gives fewer of them");
        let Identity::Files(Files { files: now, .. }) = identity else {
            let projection = ProjectionExprs::from_indices(wanted, &self.schema);
            let source = self.source.try_swapping_with_projection(&projection)?.ok_or_else(fewer)?;
            let partitions = source.output_partitioning().partition_count();
            return Ok((Arc::new(DataSourceExec::new(source)), vec![0; partitions]));
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
        let whole = whole_files(config);
        let bytes: u64 = files.iter().map(|at| now[*at].meta.size).sum();
        let options = context.session_config().options();
        let (most, least) = (options.execution.target_partitions, options.optimizer.repartition_file_min_size);
        let builder = |groups: Vec<FileGroup>| {
            FileScanConfigBuilder::from(config.clone())
                .with_source(Arc::clone(&source))
                .with_limit(None)
                .with_output_ordering(vec![])
                .with_output_partitioning(None)
                .with_file_groups(groups)
        };
        let (mut groups, mut of) = (Vec::new(), Vec::new());
        for at in files {
            let file = PartitionedFile { object_meta: now[*at].meta.clone(), ..whole[*at].clone() };
            let size = file.object_meta.size;
            let one = vec![FileGroup::new(vec![file])];
            // Readers are divided among the files: a partition belongs to one file.
            let readers = (most as u64 * size).div_ceil(bytes.max(1)) as usize;
            let split = match readers {
                0 | 1 => None,
                _ => builder(one.clone()).build().repartitioned(readers, least, None)?,
            };
            let split = split.as_ref().and_then(|split| split.downcast_ref::<FileScanConfig>());
            groups.extend(split.map_or(one, |split| split.file_groups.clone()));
            of.resize(groups.len(), *at);
        }
        let mut config = builder(groups).build();
        // Readers must not take over each other's files: rows are in partition order.
        config.preserve_order = true;
        Ok((Arc::new(DataSourceExec::new(Arc::new(config))), of))
    }
}

/// Files of a scan, deduplicated and ordered.
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
    // Groups depend on size and parallelism; the table's order is that of the names.
    files.sort_by(|a, b| a.object_meta.location.cmp(&b.object_meta.location));
    files
}

/// Store, format and reader options; `None` for a scan that is not stored.
fn reader(config: &FileScanConfig) -> Option<String> {
    // Rows of the files were selected from outside, or are read in a given order.
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
        // Options that change the values read.
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

/// The source without the query's projection, filter and order. `None` for sources other than Parquet.
fn plain(source: &Arc<dyn FileSource>) -> Option<Arc<dyn FileSource>> {
    Some(Arc::new(plain_source(source.downcast_ref::<ParquetSource>()?)))
}

/// The Parquet source without its filter, which excludes rows, and without its order, for which row groups may be read
/// in reverse.
pub(crate) fn plain_source(parquet: &ParquetSource) -> ParquetSource {
    let options = parquet.table_parquet_options().clone();
    let hint = options.global.metadata_size_hint;
    let mut plain = ParquetSource::new(parquet.table_schema().clone()).with_table_parquet_options(options);
    if let Some(hint) = hint {
        plain = plain.with_metadata_size_hint(hint);
    }
    if let Some(factory) = parquet.parquet_file_reader_factory() {
        plain = plain.with_parquet_file_reader_factory(Arc::clone(factory));
    }
    plain
}
