//! Rows of a file that can match a scan's predicate, by DataFusion's own pruning.
//!
//!   row groups ─► in the partition's range ─► statistics ─► bloom filters ─► page index ─► access plan
//!
//! Right   pruning removes only rows that the operator above would drop, and may keep others.
//! Floats  are pruned only by conditions that NaN and zeros cannot change (`provable.rs`).
//! Late    dynamic filters of joins and sorts prune by statistics again during the read, before each row group.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::datasource::physical_plan::ParquetFileMetrics;
use datafusion::datasource::physical_plan::parquet::{
    BloomFilterStatistics, PagePruningAccessPlanFilter, ParquetAccessPlan, RowGroupAccessPlanFilter,
};
use datafusion::error::Result;
use datafusion::parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use datafusion::parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use datafusion::parquet::arrow::parquet_column;
use datafusion::parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapterFactory, replace_columns_with_literals,
};
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};
use rayon::iter::ParallelIterator;
use rayon::slice::ParallelSlice;

use crate::device::workers::off_workers;
use crate::parquet::file::OpenFile;
use crate::parquet::provable::guarded;
use crate::parquet::scan::{Opening, ParquetScan};
use crate::plan::simplified::simplified;

/// Row groups above which page pruning uses several threads.
const LEAST_BESIDE: usize = 4;

impl Opening<'_> {
    /// Selects the rows of a file to read.
    ///
    /// # Errors
    /// If the predicate does not match the file's columns, or if a page index cannot be read.
    pub async fn access(&self, file: &OpenFile, partition: usize) -> Result<ParquetAccessPlan> {
        let groups = file.metadata.row_groups();
        let options = &self.scan.source().table_parquet_options().global;
        let location = file.file.object_meta.location.as_ref();
        let metrics = ParquetFileMetrics::new(partition, location, self.metrics);
        let mut access = RowGroupAccessPlanFilter::new(ParquetAccessPlan::new_all(groups.len()));
        if let Some(range) = &file.file.range {
            access.prune_by_range(groups, range);
        }
        let Some(predicate) = self.scan.predicate_of(file)? else { return Ok(access.build()) };
        let (schema, leaves) = (&file.schema, file.metadata.file_metadata().schema_descr());
        let Some(pruning) = self.scan.pruning(&predicate, file) else { return Ok(access.build()) };
        if options.pruning {
            access.prune_by_statistics(schema, leaves, groups, &pruning, &metrics);
        }
        if options.bloom_filter_on_read && !access.is_empty() {
            let filters = self.bloom_filters(file, partition, &access, &pruning).await?;
            access.prune_by_bloom_filters(&pruning, &metrics, &filters);
        }
        let all_match = access.row_group_indexes().all(|at| access.is_fully_matched()[at]);
        if !options.enable_page_index || all_match {
            return Ok(access.build());
        }
        let pages = PagePruningAccessPlanFilter::new(&predicate, Arc::clone(schema));
        let has_index = |at: usize| {
            let chunks = file.metadata.row_group(at).columns();
            chunks.iter().any(|chunk| chunk.column_index_offset().is_some() && chunk.offset_index_offset().is_some())
        };
        if pages.filter_number() == 0 || !access.row_group_indexes().any(has_index) {
            return Ok(access.build());
        }
        let indexed = self.page_index(file, partition).await?;
        let prune = |plan| pages.prune_plan_with_page_index(plan, schema, leaves, &indexed, &metrics);
        let plan = access.build();
        let left = plan.row_group_indexes();
        let share = left.len().div_ceil(rayon::current_num_threads().max(1));
        if left.len() <= LEAST_BESIDE {
            return Ok(prune(plan));
        }
        // Row groups are pruned independently.
        let mut all = plan.into_inner();
        let some = |of: &[usize]| {
            let mut plan = ParquetAccessPlan::new_none(all.len());
            of.iter().for_each(|at| plan.set(*at, all[*at].clone()));
            let pruned = prune(plan).into_inner();
            of.iter().map(|at| (*at, pruned[*at].clone())).collect::<Vec<_>>()
        };
        let pruned: Vec<Vec<_>> = off_workers(|| left.par_chunks(share).map(some).collect());
        pruned.into_iter().flatten().for_each(|(at, access)| all[at] = access);
        Ok(ParquetAccessPlan::new(all))
    }

    /// Footer of a file including its page index.
    async fn page_index(&self, file: &OpenFile, partition: usize) -> Result<Arc<ParquetMetaData>> {
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
        let mut reader = self.reader(partition, &file.file)?;
        let indexed = ArrowReaderMetadata::load_async(&mut reader, options).await?;
        Ok(Arc::clone(indexed.metadata()))
    }

    /// Bloom filters of each row group that the predicate can use.
    async fn bloom_filters(
        &self,
        file: &OpenFile,
        partition: usize,
        access: &RowGroupAccessPlanFilter,
        pruning: &PruningPredicate,
    ) -> Result<Vec<BloomFilterStatistics>> {
        let leaves = file.metadata.file_metadata().schema_descr();
        let mut filters = vec![BloomFilterStatistics::new(); file.metadata.num_row_groups()];
        let column = |name: String| Some((parquet_column(leaves, &file.schema, &name)?.0, name));
        let columns: Vec<(usize, String)> = pruning.literal_columns().into_iter().filter_map(column).collect();
        let has_filter =
            |at: usize, leaf: usize| file.metadata.row_group(at).column(leaf).bloom_filter_offset().is_some();
        let requested: Vec<usize> =
            access.row_group_indexes().filter(|at| columns.iter().any(|(leaf, _)| has_filter(*at, *leaf))).collect();
        if requested.is_empty() {
            return Ok(filters);
        }
        let footer = ArrowReaderMetadata::try_new(Arc::clone(&file.metadata), ArrowReaderOptions::new())?;
        let reader = self.reader(partition, &file.file)?;
        let mut builder = ParquetRecordBatchStreamBuilder::new_with_metadata(reader, footer);
        for at in requested {
            for (leaf, name) in &columns {
                // A filter that cannot be read prunes nothing.
                if let Ok(Some(filter)) = builder.get_row_group_column_bloom_filter(at, *leaf).await {
                    let descriptor = leaves.column(*leaf);
                    filters[at].insert(name, filter, descriptor.physical_type(), descriptor.type_length());
                }
            }
        }
        Ok(filters)
    }
}

impl ParquetScan {
    /// The predicate over the columns of a file, with the file's partition values inserted.
    pub(super) fn predicate_of(&self, file: &OpenFile) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        let Some(predicate) = self.predicate() else { return Ok(None) };
        let table = self.table();
        let values = table.table_partition_cols().iter().zip(&file.file.partition_values);
        let values: HashMap<&str, &ScalarValue> = values.map(|(field, value)| (field.name().as_str(), value)).collect();
        let predicate = replace_columns_with_literals(predicate, &values)?;
        let (logical, own) = (table.file_schema(), &file.schema);
        let adapter = DefaultPhysicalExprAdapterFactory.create(Arc::clone(logical), Arc::clone(own))?;
        let predicate = simplified(adapter.rewrite(predicate)?, own)?;
        Ok(Some(guarded(&predicate, own)?))
    }

    fn pruning(&self, predicate: &Arc<dyn PhysicalExpr>, file: &OpenFile) -> Option<PruningPredicate> {
        let builder = PruningPredicateBuilder::new().with_file_schema(Arc::clone(&file.schema));
        let built = builder.with_max_in_list_size(self.source().max_in_list_size()).build(Arc::clone(predicate))?;
        Some(Arc::unwrap_or_clone(built))
    }

    /// False if the current predicate excludes the row group. Repeated during the read, when dynamic filters have
    /// changed.
    pub fn may_have_rows(&self, file: &OpenFile, row_group: usize) -> bool {
        if !self.source().table_parquet_options().global.pruning {
            return true;
        }
        let Ok(Some(predicate)) = self.predicate_of(file) else { return true };
        let Some(pruning) = self.pruning(&predicate, file) else { return true };
        let groups = file.metadata.row_groups();
        let mut one = ParquetAccessPlan::new_none(groups.len());
        one.scan(row_group);
        let mut access = RowGroupAccessPlanFilter::new(one);
        let unseen = datafusion::physical_plan::metrics::ExecutionPlanMetricsSet::new();
        let metrics = ParquetFileMetrics::new(0, "", &unseen);
        access.prune_by_statistics(
            &file.schema,
            file.metadata.file_metadata().schema_descr(),
            groups,
            &pruning,
            &metrics,
        );
        !access.is_empty()
    }
}
