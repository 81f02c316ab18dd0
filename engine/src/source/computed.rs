//! Splits a computing scan: the expressions become a projection above a scan of the columns that they read.
//!
//!   DataSourceExec: a + 1, s.b (where c > 3)   ──►   ProjectionExec: a + 1, s.b
//!                                                      DataSourceExec: a, s (where c > 3)
//!
//! This is DataFusion's plan before it moves the projection into the file scan. The device can then run the projection
//! and the operators above it, and the columns below can be stored.
//!
//! Same    names, types, NULLs and metadata of the columns; files, limits, filters and orders of the scan.
//! Left    unchanged: expressions that only the scan can evaluate, such as the file name; encrypted files; formats
//!         other than Parquet.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNode;
use datafusion::datasource::physical_plan::{FileScanConfigBuilder, FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;

use crate::source::filtered::over;
use crate::store::plain_source;

/// `plan` as a projection above a scan of columns; `None` unless it is a scan with expressions that can be computed
/// outside.
pub(crate) fn computed_apart(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    let (config, source) = scan.downcast_to_file_source::<ParquetSource>()?;
    let crypto = &source.table_parquet_options().crypto;
    let given = FileSource::projection(source)?;
    if crypto.file_decryption.is_some() || crypto.factory_id.is_some() || !given.iter().any(|one| computes(&one.expr)) {
        return None;
    }
    if given.iter().any(|one| one.expr.exists(|part| Ok(says_by_itself(part))).unwrap_or(true)) {
        return None;
    }
    let read: BTreeSet<usize> = given.iter().flat_map(|one| collect_columns(&one.expr)).map(|c| c.index()).collect();
    let read: Vec<usize> = read.into_iter().collect();

    let filters = source.table_parquet_options().global.pushdown_filters;
    let mut plain = plain_source(source).with_pushdown_filters(filters);
    if let Some(predicate) = FileSource::filter(source) {
        plain = plain.with_predicate(predicate);
    }
    let columns = ProjectionExprs::from_indices(&read, plain.table_schema().table_schema());
    let plain = plain.try_pushdown_projection(&columns).ok()??;
    let config = FileScanConfigBuilder::from(config.clone()).with_source(plain).build();
    let scan = Arc::new(scan.clone().with_data_source(Arc::new(config)));

    let above = given.iter().map(|one| Ok(ProjectionExpr::new(over(&one.expr, &read)?, one.alias.clone())));
    let above = above.collect::<datafusion::error::Result<Vec<_>>>().ok()?;
    let apart = ProjectionExec::try_new(above, scan).ok()?;
    (apart.schema() == plan.schema()).then(|| Arc::new(apart) as _)
}

/// True for an expression other than a column or a constant.
pub(crate) fn computes(expr: &Arc<dyn PhysicalExpr>) -> bool {
    !expr.is::<Column>() && !expr.is::<Literal>()
}

/// True for a function without arguments: it may be one that only the scan can evaluate, such as the file name.
pub(crate) fn says_by_itself(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.is::<ScalarFunctionExpr>() && expr.children().is_empty()
}
