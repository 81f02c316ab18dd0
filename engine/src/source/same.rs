//! Compares whether two scans read the same rows: the same files, or the same in-memory batches.
//!
//! Filters  that a join adds to scans at run time only exclude rows that the join drops anyway. Filters from joins
//!          within the subtree are ignored; with a filter from another join, the scan's rows differ from those of the
//!          other subtree.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNode;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_expr::{PhysicalExpr, split_conjunction};
use datafusion::physical_plan::ExecutionPlan;

use crate::parquet::unguarded;
use crate::store::MadeSource;

/// True if two inputs of the device read the same rows; `None` if they are not scans, or of a kind that is not
/// compared.
pub(crate) fn same_scan(a: &Arc<dyn ExecutionPlan>, b: &Arc<dyn ExecutionPlan>, own: &HashSet<u64>) -> Option<bool> {
    let (a, b) = (a.downcast_ref::<DataSourceExec>()?.data_source(), b.downcast_ref::<DataSourceExec>()?.data_source());
    if let (Some(a), Some(b)) = (a.downcast_ref::<MemorySourceConfig>(), b.downcast_ref::<MemorySourceConfig>()) {
        return Some(same_batches(a, b));
    }
    if let (Some(a), Some(b)) = (a.downcast_ref::<MadeSource>(), b.downcast_ref::<MadeSource>()) {
        return Some(Arc::ptr_eq(&a.rows, &b.rows) && a.columns == b.columns);
    }
    let (a, b) = (a.downcast_ref::<FileScanConfig>()?, b.downcast_ref::<FileScanConfig>()?);
    // Other formats have options that are not visible here.
    let (source, other) = (&a.file_source, &b.file_source);
    if source.file_type() != "parquet" || other.file_type() != "parquet" {
        return None;
    }
    let file = |file: &datafusion::datasource::listing::PartitionedFile| {
        (file.object_meta.clone(), file.range.clone(), file.partition_values.clone())
    };
    let files = |scan: &FileScanConfig| -> Vec<Vec<_>> {
        scan.file_groups.iter().map(|group| group.files().iter().map(file).collect()).collect()
    };
    let columns = |scan: &FileScanConfig| (scan.file_schema().clone(), scan.projected_schema().ok());
    let alike = a.object_store_url == b.object_store_url
        && files(a) == files(b)
        && a.limit == b.limit
        && columns(a) == columns(b)
        && source.projection() == other.projection();
    let (kept, dynamic) = conditions(source.filter().as_ref())?;
    let (other_kept, _) = conditions(other.filter().as_ref())?;
    Some(alike && kept == other_kept && dynamic.is_subset(own))
}

/// Conditions of the query, and IDs of dynamic filters.
type Conditions = (Vec<Arc<dyn PhysicalExpr>>, HashSet<u64>);

/// Conditions of a scan: those of the query, and its dynamic filters. `None` if a condition mixes both.
fn conditions(filter: Option<&Arc<dyn PhysicalExpr>>) -> Option<Conditions> {
    let (mut kept, mut dynamic) = (Vec::new(), HashSet::new());
    let filter = filter.map(unguarded).transpose().ok()?;
    for part in filter.iter().flat_map(split_conjunction) {
        if part.is::<DynamicFilterPhysicalExpr>() {
            dynamic.insert(part.expression_id()?);
        } else if part.exists(|part| Ok(part.is::<DynamicFilterPhysicalExpr>())).unwrap_or(true) {
            return None;
        } else {
            kept.push(Arc::clone(part));
        }
    }
    Some((kept, dynamic))
}

fn same_batches(a: &MemorySourceConfig, b: &MemorySourceConfig) -> bool {
    let same = |(a, b): (&RecordBatch, &RecordBatch)| {
        let pairs = a.columns().iter().zip(b.columns());
        a.num_rows() == b.num_rows()
            && a.num_columns() == b.num_columns()
            && a.num_columns() > 0
            && pairs.into_iter().all(|(a, b)| Arc::ptr_eq(a, b) || a.to_data().ptr_eq(&b.to_data()))
    };
    let partitions = a.partitions().iter().zip(b.partitions());
    a.partitions().len() == b.partitions().len()
        && a.projection() == b.projection()
        && partitions.into_iter().all(|(a, b)| a.len() == b.len() && a.iter().zip(b).all(same))
}
