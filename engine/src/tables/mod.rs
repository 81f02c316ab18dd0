//! Tables over files: defined by CREATE EXTERNAL TABLE, named in a query, or passed to the program.
//!
//! ```text
//!   paths ─ place ─► folders, files and patterns ─ infer ─► folder keys, file columns ─► FileTable
//!                                                                                        └─ scan: its current files
//! ```
//!
//! Wraps     DataFusion's `ListingTable`, which stores the definition. Its own listing has other rules: one level of
//!           folders, patterns of one name, empty Parquet files without rows instead of an error, and keys that are
//!           never NULL.
//! Keys      of folders are columns after those of the files, and may be NULL (`files::keys`).
//! Filters   on keys only select files, and are not evaluated again.
//! Elsewhere `SessionContext::read_parquet` and similar functions return DataFusion's own table.

mod factory;
mod infer;
mod place;

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{AsArray, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{FieldRef, SchemaBuilder, SchemaRef};
use datafusion::catalog::{ScanArgs, ScanResult, Session, TableProvider};
use datafusion::common::stats::{NdvFallback, Precision};
use datafusion::common::{
    ColumnStatistics, Constraints, DFSchema, ScalarValue, SchemaExt, Statistics, plan_err, project_schema,
};
use datafusion::datasource::TableType;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::listing::helpers::expr_applicable_for_cols;
use datafusion::datasource::listing::{ListingTable, ListingTableConfig, PartitionedFile};
use datafusion::datasource::physical_plan::{
    FileGroup, FileOutputMode, FileScanConfig, FileScanConfigBuilder, FileSinkConfig,
};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::cache::SchemaFingerprint;
use datafusion::execution::cache::TableScopedPath;
use datafusion::execution::cache::cache_manager::{CachedFileMetadata, FileStatisticsCache};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::object_store::{ObjectMeta, ObjectStore};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, Partitioning, PhysicalExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use futures::{StreamExt, TryStreamExt, stream};

use place::Place;

pub(crate) use factory::factories;
pub(crate) use infer::named;
pub use infer::opened;

/// A table over files.
#[derive(Debug)]
pub struct FileTable {
    /// The definition. Its paths are the folders and files of `places`.
    listing: ListingTable,
    places: Vec<Place>,
    /// Columns of the files.
    of_files: SchemaRef,
    /// Keys of the folders.
    keys: Vec<FieldRef>,
    /// Columns of the files, then keys.
    schema: SchemaRef,
    /// Distinguishes cached statistics of this table's columns from those of others.
    fingerprint: Arc<SchemaFingerprint>,
    /// Cache of file statistics, if enabled.
    statistics: Option<Arc<FileStatisticsCache>>,
}

/// DataFusion's description of a table over files, with its folders and files; `None` for other tables.
pub fn listing(table: &dyn TableProvider) -> Option<&ListingTable> {
    table.downcast_ref::<FileTable>().map(|table| &table.listing).or_else(|| table.downcast_ref::<ListingTable>())
}

impl FileTable {
    /// # Errors
    /// DataFusion's, if the description is incomplete.
    fn try_new(
        config: ListingTableConfig,
        places: Vec<Place>,
        of_files: SchemaRef,
        keys: Vec<FieldRef>,
        statistics: Option<Arc<FileStatisticsCache>>,
    ) -> Result<Self> {
        let listing = ListingTable::try_new(config)?;
        let mut all = SchemaBuilder::from(of_files.as_ref().clone());
        keys.iter().for_each(|key| all.push(Arc::clone(key)));
        let schema = Arc::new(all.finish().with_metadata(of_files.metadata().clone()));
        let fingerprint = Arc::new(SchemaFingerprint::from_schema(&of_files));
        Ok(Self { listing, places, of_files, keys, schema, fingerprint, statistics })
    }

    /// Adds further properties from the defining statement.
    fn defined(mut self, listing: impl FnOnce(ListingTable) -> ListingTable) -> Self {
        self.listing = listing(self.listing);
        self
    }

    /// Current files, deduplicated.
    ///
    /// # Errors
    /// Those of a store; an empty Parquet file.
    pub async fn files(&self, session: &dyn Session) -> Result<Vec<ObjectMeta>> {
        let mut files = Vec::new();
        for place in &self.places {
            files.extend(place.files(session, self.listing.options()).await?);
        }
        files.sort_by(|a, b| a.location.cmp(&b.location));
        files.dedup_by(|a, b| a.location == b.location);
        Ok(files)
    }

    /// Current files with their keys. Files outside folders with these keys are skipped.
    async fn keyed(&self, session: &dyn Session) -> Result<Vec<PartitionedFile>> {
        let mut files: Vec<PartitionedFile> = Vec::new();
        for place in &self.places {
            for meta in place.files(session, self.listing.options()).await? {
                let Some(values) = place.values(&meta.location, &self.keys)? else { continue };
                let mut file = PartitionedFile::from(meta);
                file.partition_values = values;
                file.table_reference.clone_from(place.url().get_table_ref());
                files.push(file);
            }
        }
        files.sort_by(|a, b| a.object_meta.location.cmp(&b.object_meta.location));
        files.dedup_by(|a, b| a.object_meta.location == b.object_meta.location);
        Ok(files)
    }

    /// Files whose keys pass all filters.
    fn chosen(
        &self,
        session: &dyn Session,
        files: Vec<PartitionedFile>,
        filters: Vec<Expr>,
    ) -> Result<Vec<PartitionedFile>> {
        let Some(filter) = conjunction(filters).filter(|_| !files.is_empty()) else { return Ok(files) };
        let schema = DFSchema::from_unqualified_fields(self.keys.clone().into(), Default::default())?;
        let column = |at: usize| ScalarValue::iter_to_array(files.iter().map(|file| file.partition_values[at].clone()));
        let columns = (0..self.keys.len()).map(column).collect::<Result<Vec<_>>>()?;
        let rows = RecordBatchOptions::new().with_row_count(Some(files.len()));
        let keys = RecordBatch::try_new_with_options(Arc::clone(schema.inner()), columns, &rows)?;
        let passes = session.create_physical_expr(filter, &schema)?.evaluate(&keys)?.into_array(files.len())?;
        let passes: Vec<bool> = passes.as_boolean().iter().map(|passes| passes == Some(true)).collect();
        Ok(files.into_iter().zip(passes).filter_map(|(file, passes)| passes.then_some(file)).collect())
    }

    /// Files with their statistics, up to `limit` rows; true if there are more files.
    async fn counted(
        &self,
        session: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        files: Vec<PartitionedFile>,
        limit: Option<usize>,
    ) -> Result<(Vec<PartitionedFile>, bool)> {
        let options = session.config_options();
        let (counts, at_once) = (session.config().collect_statistics(), options.execution.meta_fetch_concurrency.get());
        let with = |file: PartitionedFile| async move {
            let (statistics, ordering) = match counts {
                true => self.statistics_of(session, store, &file).await?,
                false => (Arc::new(Statistics::new_unknown(&self.of_files)), None),
            };
            Ok::<_, DataFusionError>(with_statistics(file, statistics).with_ordering(ordering))
        };
        let mut files = Box::pin(stream::iter(files).map(with).buffered(at_once));
        let (mut taken, mut rows) = (Vec::new(), Precision::Exact(0));
        while let Some(file) = files.try_next().await? {
            let of_file = file.statistics.as_ref().map_or(Precision::Absent, |statistics| statistics.num_rows);
            rows = rows.add(&of_file);
            taken.push(file);
            if let (Some(limit), true, Precision::Exact(rows)) = (limit, counts, rows)
                && rows > limit
            {
                return Ok((taken, files.try_next().await?.is_some()));
            }
        }
        Ok((taken, false))
    }

    async fn statistics_of(
        &self,
        session: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        file: &PartitionedFile,
    ) -> Result<(Arc<Statistics>, Option<LexOrdering>)> {
        let meta = &file.object_meta;
        let key = TableScopedPath { table: file.table_reference.clone(), path: meta.location.clone() };
        if let Some(cache) = &self.statistics
            && let Some(known) = cache.get(&key)
            && known.is_valid_for(meta, &self.fingerprint)
        {
            return Ok((Arc::clone(&known.statistics), known.ordering.clone()));
        }
        let format = &self.listing.options().format;
        let found = format.infer_stats_and_ordering(session, store, Arc::clone(&self.of_files), meta).await?;
        let statistics = Arc::new(found.statistics);
        if let Some(cache) = &self.statistics {
            let (fingerprint, known) = (Arc::clone(&self.fingerprint), Arc::clone(&statistics));
            cache.put(&key, CachedFileMetadata::new(meta.clone(), fingerprint, known, found.ordering.clone()));
        }
        Ok((statistics, found.ordering))
    }

    /// Reads and caches statistics of all files.
    async fn warm(&self, session: &dyn Session) -> Result<()> {
        let Some(place) = self.places.first() else { return Ok(()) };
        let store = session.runtime_env().object_store(place.url())?;
        let files = self.keyed(session).await?;
        self.counted(session, &store, files, None).await.map(drop)
    }

    fn key_names(&self) -> Vec<&str> {
        self.keys.iter().map(|key| key.name().as_str()).collect()
    }
}

/// A file with statistics of its columns and keys.
fn with_statistics(file: PartitionedFile, of_columns: Arc<Statistics>) -> PartitionedFile {
    let (rows, columns) = (of_columns.num_rows, of_columns.column_statistics.len());
    let mut file = file.with_statistics(of_columns);
    if file.partition_values.iter().any(ScalarValue::is_null)
        && let Some(all) = &mut file.statistics
    {
        let of_keys = Arc::make_mut(all).column_statistics.iter_mut().skip(columns);
        // DataFusion treats NULL keys as values.
        for (of_key, _) in of_keys.zip(&file.partition_values).filter(|(_, value)| value.is_null()) {
            *of_key =
                ColumnStatistics { null_count: rows, byte_size: of_key.byte_size, ..ColumnStatistics::new_unknown() };
        }
    }
    file
}

/// Groups of files with the statistics of each group, and total statistics.
fn merged(
    groups: Vec<FileGroup>,
    schema: &SchemaRef,
    counts: bool,
    has_more: bool,
) -> Result<(Vec<FileGroup>, Statistics)> {
    let of_group = |group: FileGroup| {
        if !counts {
            return Ok(group);
        }
        let known: Vec<_> = group.iter().filter_map(|file| file.statistics.clone()).collect();
        let known = known.iter().map(Arc::as_ref);
        let statistics = Statistics::try_merge_iter_with_ndv_fallback(known, schema, NdvFallback::Max)?;
        Ok(group.with_statistics(Arc::new(statistics)))
    };
    let groups = groups.into_iter().map(of_group).collect::<Result<Vec<_>>>()?;
    let known = groups.iter().filter_map(|group| group.file_statistics(None));
    let statistics = Statistics::try_merge_iter_with_ndv_fallback(known, schema, NdvFallback::Max)?;
    Ok((groups, if has_more { statistics.to_inexact() } else { statistics }))
}

#[async_trait]
impl TableProvider for FileTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn constraints(&self) -> Option<&Constraints> {
        self.listing.constraints()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn get_table_definition(&self) -> Option<&str> {
        self.listing.get_table_definition()
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.listing.get_column_default(column)
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let args = ScanArgs::default().with_projection(projection.map(Vec::as_slice));
        let args = args.with_filters(Some(filters)).with_limit(limit);
        Ok(self.scan_with_args(state, args).await?.into_inner())
    }

    async fn scan_with_args<'a>(&self, state: &dyn Session, args: ScanArgs<'a>) -> Result<ScanResult> {
        let projection = args.projection().map(<[usize]>::to_vec);
        let names = self.key_names();
        let is_of_keys = |filter: &Expr| !names.is_empty() && expr_applicable_for_cols(&names, filter);
        let (of_keys, of_rows): (Vec<Expr>, Vec<Expr>) =
            args.filters().unwrap_or_default().iter().cloned().partition(is_of_keys);
        let nothing = || {
            let schema = project_schema(&self.schema, projection.as_ref())?;
            Ok(ScanResult::new(Arc::new(EmptyExec::new(schema))))
        };
        let Some(place) = self.places.first() else { return nothing() };
        let files = self.chosen(state, self.keyed(state).await?, of_keys)?;
        let store = state.runtime_env().object_store(place.url())?;
        let limit = args.limit();
        let (files, has_more) = self.counted(state, &store, files, limit.filter(|_| of_rows.is_empty())).await?;
        if files.is_empty() {
            return nothing();
        }

        let (options, parts) = (state.config_options(), state.config().target_partitions());
        if parts == 0 {
            return plan_err!("datafusion.execution.target_partitions is 0: a scan needs one at least");
        }
        let by_keys = options.optimizer.preserve_file_partitions;
        let (groups, is_by_keys) = match by_keys > 0 && !self.keys.is_empty() {
            true => {
                let groups = FileGroup::new(files).group_by_partition_values(parts);
                match groups.len() >= by_keys {
                    true => (groups, true),
                    false => {
                        let files = groups.into_iter().flat_map(FileGroup::into_inner).collect();
                        (FileGroup::new(files).split_files(parts), false)
                    }
                }
            }
            false => (FileGroup::new(files).split_files(parts), false),
        };
        let (mut groups, statistics) = merged(groups, &self.schema, state.config().collect_statistics(), has_more)?;
        let ordering = self.listing.try_create_output_ordering(state.execution_props(), &groups)?;
        if options.execution.split_file_groups_by_statistics
            && let Some(ordering) = ordering.first()
            && let Ok(split) = FileScanConfig::split_groups_by_statistics_with_target_partitions(
                &self.schema,
                &groups,
                ordering,
                parts,
            )
            && split.len() <= parts
        {
            groups = split;
        }
        let partitioning = is_by_keys.then(|| {
            let column = |(at, key): (usize, &FieldRef)| {
                Arc::new(Column::new(key.name(), self.of_files.fields().len() + at)) as Arc<dyn PhysicalExpr>
            };
            Partitioning::Hash(self.keys.iter().enumerate().map(column).collect(), groups.len())
        });
        let columns = TableSchema::builder(Arc::clone(&self.of_files));
        let columns = columns.with_table_partition_cols(self.keys.clone()).build();
        let format = &self.listing.options().format;
        let scan = FileScanConfigBuilder::new(place.url().object_store(), format.file_source(columns))
            .with_file_groups(groups)
            .with_constraints(self.listing.constraints().cloned().unwrap_or_default())
            .with_statistics(statistics)
            .with_projection_indices(projection)?
            .with_limit(limit)
            .with_output_ordering(ordering)
            .with_output_partitioning(partitioning)
            .build();
        Ok(ScanResult::new(format.create_physical_plan(state, scan).await?))
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let names = self.key_names();
        let how = |filter: &&Expr| match !names.is_empty() && expr_applicable_for_cols(&names, filter) {
            true => TableProviderFilterPushDown::Exact,
            false => TableProviderFilterPushDown::Inexact,
        };
        Ok(filters.iter().map(how).collect())
    }

    async fn insert_into(
        &self,
        state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        how: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.schema.logically_equivalent_names_and_types(&input.schema())?;
        let Some(place) = self.places.first() else { return plan_err!("a table without a path takes no rows") };
        place.takes_rows()?;
        let options = self.listing.options();
        // The Arrow sink does not expose its keys (`files`).
        if options.format.is::<ArrowFormat>() {
            let given = input.schema();
            let has_null = |key: &&FieldRef| given.field_with_name(key.name()).is_ok_and(|field| field.is_nullable());
            if let Some(key) = self.keys.iter().find(has_null) {
                let key = key.name();
                return plan_err!(
                    "column {key} may have NULL, which partitions of Arrow files do not keep: write a table of Parquet, or \
                     coalesce({key}, …)"
                );
            }
        }
        let target = FileSinkConfig {
            original_url: String::default(),
            object_store_url: place.url().object_store(),
            table_paths: self.listing.table_paths().clone(),
            file_group: self.keyed(state).await?.into(),
            output_schema: Arc::clone(&self.schema),
            table_partition_cols: options.table_partition_cols.clone(),
            insert_op: how,
            keep_partition_by_columns: state.config_options().execution.keep_partition_by_columns,
            file_extension: options.format.get_ext(),
            file_output_mode: FileOutputMode::Automatic,
        };
        // The order in the table's definition.
        let order = self.listing.try_create_output_ordering(state.execution_props(), &[])?;
        let order = order.into_iter().next().map(Into::into);
        options.format.create_writer_physical_plan(input, state, target, order).await
    }
}
