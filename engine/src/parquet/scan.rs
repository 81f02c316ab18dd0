//! A scan of Parquet files that the decoder can take over: its columns, and the common properties of its files.
//!
//!   DataSourceExec: file_groups, projection=[b, a], predicate=b > 3 ──► ParquetScan { columns, predicate, options }
//!
//! Left to DataFusion  limits, computed columns, filters applied by the scan, external row selections, encryption,
//! custom readers.

use std::sync::Arc;

use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::{DefaultParquetFileReaderFactory, ParquetAccessPlan};
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetFileReaderFactory, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::object_store::ObjectStore;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, DynamicFilterTracking};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use crate::parquet::unit::Unit;

/// Number of files whose footers are read concurrently.
const FILES_AT_ONCE: usize = 32;

/// A scan of Parquet files.
#[derive(Debug, Clone)]
pub(crate) struct ParquetScan {
    config: FileScanConfig,
    source: ParquetSource,
    /// Table column of each scan column: file columns first, then partition columns.
    pub columns: Vec<usize>,
}

/// Opened files of a scan, or of one of its partitions.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    /// Row groups to decode, in the order of the files.
    pub units: Vec<Unit>,
    /// Files that DataFusion reads, with the reasons.
    pub foreign: Vec<(PartitionedFile, String)>,
}

/// Inputs for opening the files of a scan.
pub(crate) struct Opening<'a> {
    pub scan: &'a ParquetScan,
    /// Columns that are read.
    pub used: &'a [bool],
    pub store: Arc<dyn ObjectStore>,
    pub factory: Arc<dyn ParquetFileReaderFactory>,
    /// The reader returns the store's own bytes, so that they may be read directly from the store.
    pub reads_store: bool,
    pub metrics: &'a ExecutionPlanMetricsSet,
}

impl ParquetScan {
    /// Converts `plan` to a scan.
    ///
    /// # Errors
    /// `None` if `plan` is not a scan of Parquet files; a reason if DataFusion has to read them.
    pub fn of(plan: &Arc<dyn ExecutionPlan>) -> std::result::Result<Self, Option<String>> {
        let plan = match plan.downcast_ref::<CooperativeExec>() {
            Some(yields) => yields.children().first().copied().ok_or(None)?,
            None => plan,
        };
        let scan = plan.downcast_ref::<DataSourceExec>().ok_or(None)?;
        let (config, source) = scan.downcast_to_file_source::<ParquetSource>().ok_or(None)?;
        let refused = |why: &str| Err(Some(why.to_string()));
        let options = source.table_parquet_options();
        if options.crypto.file_decryption.is_some() || options.crypto.factory_id.is_some() {
            return refused("its files are encrypted");
        }
        if !source.table_schema().virtual_columns().is_empty() {
            return refused("it gives columns that are in no file");
        }
        if config.expr_adapter_factory.is_some() {
            return refused("its columns are adapted by an expression of the table");
        }
        if options.global.pushdown_filters && FileSource::filter(source).is_some() {
            return refused("the scan itself filters rows");
        }
        // The limit applies across all files, including those that DataFusion reads.
        if config.limit.is_some() {
            return refused("it stops after some rows");
        }
        let chosen = |file: &PartitionedFile| !file.extensions.is_empty() || file.arrow_schema.is_some();
        if config.file_groups.iter().flat_map(FileGroup::iter).any(chosen) {
            return refused("rows or types of its files were chosen from outside");
        }
        let Some(projection) = FileSource::projection(source) else { return refused("it computes columns") };
        let column = |expr: &Arc<dyn PhysicalExpr>| expr.downcast_ref::<Column>().map(Column::index);
        let columns = projection.iter().map(|one| column(&one.expr)).collect::<Option<Vec<usize>>>();
        let Some(columns) = columns else { return refused("it computes columns") };
        let (config, source) = (config.clone(), source.clone());
        Ok(Self { columns, config, source })
    }

    /// Number of partitions of the scan.
    pub fn partitions(&self) -> usize {
        self.config.file_groups.len()
    }

    /// True for local files.
    pub fn is_local(&self) -> bool {
        self.config.object_store_url.as_str().starts_with("file:")
    }

    /// The condition that prunes the files.
    pub fn predicate(&self) -> Option<Arc<dyn PhysicalExpr>> {
        self.source.filter()
    }

    /// Schema of the table.
    pub fn table(&self) -> &TableSchema {
        self.source.table_schema()
    }

    /// Parquet source with its options.
    pub fn source(&self) -> &ParquetSource {
        &self.source
    }

    /// True if a dynamic filter of a join or a sort above may still exclude row groups during the read.
    pub fn may_be_narrowed(&self) -> bool {
        self.predicate().is_some_and(|predicate| {
            matches!(DynamicFilterTracking::classify(&predicate), DynamicFilterTracking::Watching(_))
        })
    }

    /// DataFusion's scan of only these files.
    pub fn of_files(&self, files: Vec<PartitionedFile>) -> Arc<dyn ExecutionPlan> {
        let groups = files.into_iter().map(|file| FileGroup::new(vec![file])).collect();
        let config = FileScanConfigBuilder::from(self.config.clone())
            .with_output_partitioning(None)
            .with_file_groups(groups)
            .build();
        Arc::new(DataSourceExec::new(Arc::new(config)))
    }

    /// DataFusion's scan of some rows of one file.
    pub fn of_rows(&self, file: &PartitionedFile, access: ParquetAccessPlan) -> Arc<dyn ExecutionPlan> {
        let mut file = PartitionedFile { range: None, statistics: None, ..file.clone() };
        file.extensions.insert(access);
        self.of_files(vec![file])
    }

    /// Opens the files of all partitions, or of one, for reading the columns `used`, and finds the row groups that may
    /// match.
    ///
    /// # Errors
    /// DataFusion's, if a file is missing or the predicate cannot be evaluated over its columns.
    pub async fn open(
        &self,
        (partition, used): (Option<usize>, &[bool]),
        context: &TaskContext,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Opened> {
        let store = context.runtime_env().object_store(&self.config.object_store_url)?;
        let factory = match self.source.parquet_file_reader_factory() {
            Some(factory) => Arc::clone(factory),
            None => Arc::new(DefaultParquetFileReaderFactory::new(Arc::clone(&store))),
        };
        // Custom readers may return other bytes than the store contains.
        let name = format!("{factory:?}");
        let own = ["CachedParquetFileReaderFactory", "DefaultParquetFileReaderFactory"];
        let reads_store = own.iter().any(|own| name.starts_with(own));
        let opening = Opening { scan: self, used, store, factory, reads_store, metrics };
        let groups = self.config.file_groups.iter().enumerate();
        let of = groups.filter(|(at, _)| partition.is_none_or(|partition| partition == *at));
        let files = of.flat_map(|(at, group)| group.iter().map(move |file| (at, file)));
        let opened: Vec<BoxFuture<'_, Result<Opened>>> =
            files.map(|(at, file)| opening.file(at, file).boxed()).collect();
        let opened: Vec<Opened> = stream::iter(opened).buffered(FILES_AT_ONCE).try_collect().await?;
        let mut all = Opened::default();
        for one in opened {
            all.units.extend(one.units);
            all.foreign.extend(one.foreign);
        }
        Ok(all)
    }
}

impl Opening<'_> {
    async fn file(&self, partition: usize, file: &PartitionedFile) -> Result<Opened> {
        let foreign = |why| Opened { units: vec![], foreign: vec![(file.clone(), why)] };
        let opened = match self.open(partition, file).await? {
            Ok(opened) => opened,
            Err(why) => return Ok(foreign(why)),
        };
        let access = self.access(&opened, partition).await?;
        let opened = Arc::new(opened);
        let units = access.into_inner().into_iter().enumerate().filter(|(_, access)| access.should_scan());
        let units = units.map(|(row_group, access)| Unit::new(Arc::clone(&opened), row_group, access));
        Ok(Opened { units: units.collect(), foreign: vec![] })
    }
}
