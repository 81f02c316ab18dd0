//! Splits a filtering scan into a filter above a scan of all rows, so that its columns can be stored.
//!
//!   DataSourceExec: a, where b > 3 (pushdown_filters)   ──►   FilterExec: b > 3, output a
//!                                                               DataSourceExec: a, b, pruned by b > 3
//!
//! This is DataFusion's plan without filter pushdown. Dynamic filters only prune: their operators drop the remaining
//! rows.
//!
//! Left    unchanged: scans with a limit, with computed columns, or of formats that do not filter.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::datasource::physical_plan::{FileScanConfigBuilder, FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExecBuilder;

use crate::store::{Scan, plain_source, static_part};

/// `plan` as a filter above a scan, or as a scan alone; `None` unless it is a filtering scan whose columns can be
/// stored.
pub(crate) fn apart(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    let (config, source) = scan.downcast_to_file_source::<ParquetSource>()?;
    if !source.table_parquet_options().global.pushdown_filters || plan.fetch().is_some() {
        return None;
    }
    let predicate = source.filter()?;
    let projection = FileSource::projection(source)?;
    let index = |expr: &Arc<dyn PhysicalExpr>| expr.downcast_ref::<Column>().map(Column::index);
    let mut columns = projection.iter().map(|one| index(&one.expr)).collect::<Option<Vec<usize>>>()?;
    let given = columns.len();
    let filter = static_part(&predicate);
    let mut tested: Vec<usize> = filter.iter().flat_map(collect_columns).map(|column| column.index()).collect();
    tested.sort_unstable();
    tested.retain(|column| !columns.contains(column));
    columns.extend(tested);

    let whole = plain_source(source).with_predicate(predicate).with_pushdown_filters(false);
    let projection = ProjectionExprs::from_indices(&columns, whole.table_schema().table_schema());
    let whole = whole.try_pushdown_projection(&projection).ok()??;
    let config = FileScanConfigBuilder::from(config.clone()).with_source(whole).build();
    let scan = Arc::new(scan.clone().with_data_source(Arc::new(config))) as Arc<dyn ExecutionPlan>;
    Scan::of(&scan)?;
    let apart = match filter {
        Some(filter) => {
            let filter = over(&filter, &columns).ok()?;
            let given = FilterExecBuilder::new(filter, scan).apply_projection(Some((0..given).collect())).ok()?;
            Arc::new(given.build().ok()?)
        }
        None => scan,
    };
    (apart.schema() == plan.schema()).then_some(apart)
}

/// Renumbers the columns of an expression from the table's to the given ones.
pub(super) fn over(expr: &Arc<dyn PhysicalExpr>, columns: &[usize]) -> Result<Arc<dyn PhysicalExpr>> {
    let place = |expr: Arc<dyn PhysicalExpr>| {
        Ok(match expr.downcast_ref::<Column>() {
            Some(column) => match columns.iter().position(|at| *at == column.index()) {
                Some(at) => Transformed::yes(Arc::new(Column::new(column.name(), at)) as Arc<dyn PhysicalExpr>),
                None => Transformed::no(expr),
            },
            None => Transformed::no(expr),
        })
    };
    Arc::clone(expr).transform_up(place).data()
}
