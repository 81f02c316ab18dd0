//! Replaces expressions in nodes of CPU plans.
//!
//!   FilterExec { a < $1 } ─ with_expressions ─► FilterExec { a < 7 }      schema, projection, limit: unchanged

use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

/// Rewrites an expression. The schema is `None` for scan predicates.
pub(crate) type Change<'a> = &'a dyn Fn(&Arc<dyn PhysicalExpr>, Option<&Schema>) -> Result<Arc<dyn PhysicalExpr>>;

/// The node with its expressions rewritten by `change`; keys of a join are unchanged. `None` for nodes of unsupported
/// kinds.
///
/// # Errors
/// Those of `change`, and DataFusion's if the new expressions do not fit.
pub(crate) fn with_expressions(
    node: &Arc<dyn ExecutionPlan>,
    change: Change<'_>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let join_filter = |filter: &JoinFilter| {
        let expression = change(filter.expression(), Some(filter.schema()))?;
        let (columns, schema) = (filter.column_indices().to_vec(), Arc::clone(filter.schema()));
        Ok::<_, datafusion::error::DataFusionError>(JoinFilter::new(expression, columns, schema))
    };
    if let Some(filter) = node.downcast_ref::<FilterExec>() {
        let predicate = change(filter.predicate(), Some(&filter.input().schema()))?;
        return Ok(Some(Arc::new(FilterExecBuilder::from(filter).with_predicate(predicate).build()?)));
    }
    if let Some(project) = node.downcast_ref::<ProjectionExec>() {
        let schema = project.input().schema();
        let one = |one: &ProjectionExpr| {
            Ok(ProjectionExpr { expr: change(&one.expr, Some(&schema))?, alias: one.alias.clone() })
        };
        let expressions = project.expr().iter().map(one).collect::<Result<Vec<_>>>()?;
        let (input, schema) = (Arc::clone(project.input()), project.schema());
        return Ok(Some(Arc::new(ProjectionExec::try_new_with_schema_metadata(expressions, input, &schema)?)));
    }
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        let filter = join.filter().map(join_filter).transpose()?;
        return Ok(Some(join.builder().with_filter(filter).build_exec()?));
    }
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        let filter = join.filter().map(join_filter).transpose()?;
        return Ok(Some(Arc::new(NestedLoopJoinExecBuilder::from(join).with_filter(filter).build()?)));
    }
    let scan = node.downcast_ref::<DataSourceExec>();
    let files = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>());
    let parquet = files.and_then(|files| Some((files, files.file_source.downcast_ref::<ParquetSource>()?)));
    let Some((files, parquet)) = parquet else { return Ok(None) };
    let Some(predicate) = files.file_source.filter() else { return Ok(None) };
    let source = Arc::new(parquet.with_predicate(change(&predicate, None)?));
    let config = FileScanConfigBuilder::from(files.clone()).with_source(source).build();
    Ok(Some(Arc::new(DataSourceExec::new(Arc::new(config)))))
}

/// True if an expression of the node itself contains a part for which `is` returns true.
pub(crate) fn reads(node: &dyn ExecutionPlan, is: impl Fn(&Arc<dyn PhysicalExpr>) -> bool) -> bool {
    let mut found = false;
    let walked = node.apply_expressions(&mut |expression| {
        expression.apply(|part| {
            found |= is(part);
            Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })
    });
    // A failed walk counts as a match.
    found || walked.is_err()
}
