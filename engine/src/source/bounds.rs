//! File bounds in plans: bounds of floats are removed before DataFusion sees them, and conditions over floats are
//! guarded after it has moved them into scans.
//!
//!   forget   before all rules       max(f) is not computed from bounds without NaN; equal bounds do not fix f
//!   guard    after all rules        WHERE f > 100 prunes no file, row group or page    (`parquet/provable.rs`)
//!
//! Off      with `datafusion.execution.parquet.pruning = false` no scan skips a row group or file, not even by dynamic
//!          filters; DataFusion skips by both.
//! Filters  that a scan applies to rows (`pushdown_filters`) are skipped for row groups that pass entirely by their
//!          bounds: a scan that filters floats, and a scan that stops after some rows, must not prune.
//! No-op    without a device, and with `millpond.enabled = false`.

use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{ColumnStatistics, Statistics};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_expr::expressions::lit;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::parquet::{guarded, has_floats, is_guarded};
use crate::store::static_part;

/// Name of the rule that adds guards.
pub(crate) const GUARD: &str = "guard_bounds_of_floats";

/// Action of the rule on file bounds.
#[derive(Debug)]
pub(crate) enum Bounds {
    /// Removes the bounds of floats.
    Forget,
    /// Guards conditions over floats against bounds.
    Guard,
}

impl PhysicalOptimizerRule for Bounds {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let change = |node: Arc<dyn ExecutionPlan>| {
            let scan = node.downcast_ref::<DataSourceExec>();
            let files = scan.and_then(|scan| Some((scan, scan.data_source().downcast_ref::<FileScanConfig>()?)));
            let Some((scan, files)) = files else { return Ok(Transformed::no(node)) };
            let changed = match self {
                Bounds::Forget => without_floats(files),
                Bounds::Guard => with_guards(files)?,
            };
            Ok(match changed {
                Some(files) => Transformed::yes(Arc::new(scan.clone().with_data_source(Arc::new(files))) as _),
                None => Transformed::no(node),
            })
        };
        plan.transform_up(change).data()
    }

    fn name(&self) -> &str {
        match self {
            Bounds::Forget => "forget_bounds_of_floats",
            Bounds::Guard => GUARD,
        }
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// A scan without bounds of its floats; `None` if it has none.
fn without_floats(files: &FileScanConfig) -> Option<FileScanConfig> {
    let schema = files.file_source.table_schema().table_schema();
    let floats = floats(schema);
    if floats.is_empty() {
        return None;
    }
    let own = files.statistics();
    let whole = forgotten(&own, &floats);
    let mut changed = whole.is_some();
    let mut forget = |of: &Arc<Statistics>| match forgotten(of, &floats) {
        Some(forgotten) => {
            changed = true;
            Arc::new(forgotten)
        }
        None => Arc::clone(of),
    };
    let groups = of_files(&files.file_groups, &mut |file| PartitionedFile {
        statistics: file.statistics.as_ref().map(&mut forget),
        ..file.clone()
    });
    let group = |group: FileGroup| match group.file_statistics(None).and_then(|of| forgotten(of, &floats)) {
        Some(forgotten) => group.with_statistics(Arc::new(forgotten)),
        None => group,
    };
    let groups = groups.into_iter().map(group).collect();
    let builder = FileScanConfigBuilder::from(files.clone()).with_file_groups(groups);
    changed.then(|| builder.with_statistics(whole.unwrap_or(own)).build())
}

/// Columns of floats, and of types that contain floats.
fn floats(schema: &Schema) -> Vec<usize> {
    let fields = schema.fields().iter().enumerate();
    fields.filter(|(_, field)| has_floats(field.data_type())).map(|(index, _)| index).collect()
}

/// Statistics without the bounds of `floats`; `None` if they contain none.
fn forgotten(of: &Statistics, floats: &[usize]) -> Option<Statistics> {
    let is_known = |column: &ColumnStatistics| {
        let bounds = [&column.min_value, &column.max_value, &column.sum_value];
        bounds.into_iter().any(|bound| *bound != Precision::Absent)
    };
    if !floats.iter().any(|float| of.column_statistics.get(*float).is_some_and(is_known)) {
        return None;
    }
    let mut known = of.clone();
    for float in floats {
        if let Some(column) = known.column_statistics.get_mut(*float) {
            let (min_value, max_value, sum_value) = (Precision::Absent, Precision::Absent, Precision::Absent);
            *column = ColumnStatistics { min_value, max_value, sum_value, ..column.clone() };
        }
    }
    Some(known)
}

/// Applies a change to the files of all groups.
fn of_files(groups: &[FileGroup], change: &mut dyn FnMut(&PartitionedFile) -> PartitionedFile) -> Vec<FileGroup> {
    let group = |group: &FileGroup| {
        let files = FileGroup::new(group.iter().map(&mut *change).collect());
        match group.file_statistics(None) {
            Some(known) => files.with_statistics(Arc::new(known.clone())),
            None => files,
        }
    };
    groups.iter().map(group).collect()
}

/// A scan that prunes only by what bounds can prove; `None` if it already does.
fn with_guards(files: &FileScanConfig) -> Result<Option<FileScanConfig>> {
    let Some(source) = files.file_source.downcast_ref::<ParquetSource>() else { return Ok(None) };
    let Some(predicate) = FileSource::filter(source) else { return Ok(None) };
    let global = &source.table_parquet_options().global;
    let guarded = guarded(&predicate, source.table_schema().table_schema())?;
    let filters = global.pushdown_filters || files.limit.is_some();
    let prunes_nothing = filters && is_guarded(&guarded);
    if global.pruning && !prunes_nothing {
        let builder = || FileScanConfigBuilder::from(files.clone());
        let with_guards = || builder().with_source(Arc::new(source.with_predicate(Arc::clone(&guarded)))).build();
        return Ok(is_guarded(&guarded).then(with_guards));
    }
    let (predicate, mut options) = match prunes_nothing {
        true => (predicate, source.table_parquet_options().clone()),
        false => (guarded, source.table_parquet_options().clone()),
    };
    if prunes_nothing {
        options.global.pruning = false;
        options.global.enable_page_index = false;
        options.global.bloom_filter_on_read = false;
    }
    // DataFusion prunes by dynamic filters, and by statistics of whole files, regardless of the option.
    let predicate = static_part(&predicate).unwrap_or_else(|| lit(true));
    let source = source.with_predicate(predicate).with_table_parquet_options(options);
    let groups = of_files(&files.file_groups, &mut |file| PartitionedFile { statistics: None, ..file.clone() });
    let builder = FileScanConfigBuilder::from(files.clone()).with_file_groups(groups);
    Ok(Some(builder.with_source(Arc::new(source)).build()))
}
