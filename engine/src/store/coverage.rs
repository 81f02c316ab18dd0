//! Share of a table that a scan reads, as far as known from planning.
//!
//!   s=1/a  s=2/b  …  s=200/z        WHERE s = 7    partition values exclude folders    ─┐ below a quarter of the
//!   a 0..9  b 10..19  …             WHERE x < 5    file statistics exclude files       ─┴─► bytes: fed, not stored
//!
//! Why   such a scan is cheap anyway, and would fill the store with fragments of tables.

use std::sync::Arc;

use datafusion::common::pruning::PrunableStatistics;
use datafusion::common::tree_node::TreeNode;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::execution::TaskContext;
use datafusion::object_store::path::{Path, PathPart};
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_expr::{PhysicalExpr, conjunction, split_conjunction};
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;

use crate::store::Scan;
use crate::store::checks::Checks;

/// Scans that read less than 1/N of a table are not stored.
const PARTS: u64 = 4;

impl Scan {
    /// True if file pruning leaves less than a quarter of the table's bytes; false if unknown.
    pub(super) async fn is_cut_short(&self, context: &TaskContext) -> bool {
        let Ok(config) = self.files() else { return false };
        let files: Vec<&PartitionedFile> = config.file_groups.iter().flat_map(FileGroup::iter).collect();
        let planned: u64 = files.iter().map(|file| file.effective_size()).sum();
        let kept = kept_bytes(config, &files).unwrap_or(planned);
        kept.saturating_mul(PARTS) < folder_bytes(config, &files, context).await.unwrap_or(planned)
    }
}

/// Bytes of the files that statistics do not exclude.
fn kept_bytes(config: &FileScanConfig, files: &[&PartitionedFile]) -> Option<u64> {
    let filter = static_part(&config.file_source.filter()?)?;
    let schema = config.file_source.table_schema().table_schema();
    let predicate = PruningPredicateBuilder::new().with_file_schema(Arc::clone(schema)).build(filter)?;
    let known: Vec<_> = files.iter().filter(|file| file.statistics.is_some()).collect();
    let statistics = known.iter().filter_map(|file| file.statistics.clone()).collect();
    let passes = predicate.prune(&PrunableStatistics::new(statistics, Arc::clone(schema))).ok()?;
    let left_out = known.iter().zip(passes).filter(|(_, passes)| !passes);
    let left_out: u64 = left_out.map(|(file, _)| file.effective_size()).sum();
    Some(files.iter().map(|file| file.effective_size()).sum::<u64>() - left_out)
}

/// Bytes of all files of a partitioned table, below the folder above the first partition's.
async fn folder_bytes(config: &FileScanConfig, files: &[&PartitionedFile], context: &TaskContext) -> Option<u64> {
    let first = &files.first()?.object_meta.location;
    let column = config.file_source.table_schema().table_partition_cols().first()?;
    let begins = format!("{}=", column.name());
    let parts: Vec<PathPart> = first.parts().collect();
    let partition = parts.iter().position(|part| part.as_ref().starts_with(&begins))?;
    let folder: Path = parts.into_iter().take(partition).collect();
    let store = context.runtime_env().object_store(&config.object_store_url).ok()?;
    let checks = Checks::of(context.session_config());
    let listed = checks.list(&config.object_store_url, &store, &folder).await.ok()?;
    let of_table = listed.iter().filter(|file| file.location.extension() == first.extension());
    Some(of_table.map(|file| file.size).sum())
}

/// The static parts of a filter, without dynamic filters.
pub(crate) fn static_part(filter: &Arc<dyn PhysicalExpr>) -> Option<Arc<dyn PhysicalExpr>> {
    let is_static = |part: &&Arc<dyn PhysicalExpr>| {
        // The closure returns no error, so neither does the walk.
        !part.exists(|expr| Ok(expr.is::<DynamicFilterPhysicalExpr>())).unwrap_or(true)
    };
    let parts: Vec<_> = split_conjunction(filter).into_iter().filter(is_static).cloned().collect();
    (!parts.is_empty()).then(|| conjunction(parts))
}
