//! Decides which nodes run on the device, and records why the others do not.
//!
//!   node + what is known of its input's columns ──► the columns it gives on the device, or a reason
//!
//! Left alone    anything whose order, limit or type the device would not keep · inputs below `millpond.min_rows`
//! Pure          it changes nothing: expressions are lowered to the kernels' language and thrown away.

use std::sync::Arc;

use datafusion::common::stats::Precision;
use datafusion::common::{Statistics, tree_node::TreeNode, tree_node::TreeNodeRecursion};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::{ProjectionExec, all_columns};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::work_table::WorkTableExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::column::ColumnInfo;
use crate::expr::{Dictionaries, Lowering};
use crate::operator::aggregate::describe::Aggregation;
use crate::operator::aggregate::{DeviceAggregateExec, lower as aggregate};
use crate::operator::filter::DeviceFilterExec;
use crate::operator::join::DeviceJoinExec;
use crate::operator::join::lower::judge_join;
use crate::operator::project::DeviceProjectExec;
use crate::operator::sort::DeviceSortExec;
use crate::operator::union::DeviceUnionExec;
use crate::placement::fallback::FallbackExec;
use crate::reason::Reason;
use crate::result::node::DownloadExec;
use crate::source::upload::UploadExec;

/// The columns that a filter gives.
pub(super) fn filter(
    filter: &FilterExec,
    input: &[ColumnInfo],
    dictionaries: &mut Dictionaries,
) -> Result<Vec<ColumnInfo>, Reason> {
    let mut lowering = Lowering::new(input, dictionaries);
    let scope = lowering.scope();
    lowering.predicate(filter.predicate(), &scope)?;
    let kept: Vec<ColumnInfo> = match filter.projection() {
        Some(projection) => projection.iter().map(|index| input[*index].clone()).collect(),
        None => input.to_vec(),
    };
    for column in &kept {
        column.ty()?;
    }
    Ok(kept)
}

/// The columns that a projection gives.
pub(super) fn projection(
    projection: &ProjectionExec,
    input: &[ColumnInfo],
    dictionaries: &mut Dictionaries,
) -> Result<Vec<ColumnInfo>, Reason> {
    let mut lowering = Lowering::new(input, dictionaries);
    let scope = lowering.scope();
    let column = |expression: &datafusion::physical_plan::projection::ProjectionExpr| {
        let value = lowering.lower(&expression.expr, &scope)?;
        Ok(lowering.info(&expression.alias, &value))
    };
    projection.expr().iter().map(column).collect()
}

/// The device's form of an aggregate, whose first phase is `first` and whose results have the schema of `last`, and the
/// columns that it gives.
pub(super) fn aggregate(
    first: &AggregateExec,
    last: &AggregateExec,
    input: &[ColumnInfo],
    exact_floats: bool,
    dictionaries: &mut Dictionaries,
) -> Result<(Vec<Aggregation>, Vec<ColumnInfo>), Reason> {
    let phases = Aggregation::of(first, last.schema(), exact_floats)?;
    let mut columns = input.to_vec();
    for phase in &phases {
        let mut lowering = Lowering::new(&columns, dictionaries);
        let scope = lowering.scope();
        columns = aggregate::lower(&mut lowering, &scope, phase)?.columns;
    }
    Ok((phases, columns))
}

/// The columns that a join gives.
pub(super) fn join(
    join: &DeviceJoinExec,
    build: &[ColumnInfo],
    probe: &[ColumnInfo],
    dictionaries: &mut Dictionaries,
) -> Result<Vec<ColumnInfo>, Reason> {
    judge_join(join, build, probe, dictionaries)
}

/// Whether rows can be sorted by `order`.
pub(super) fn sort(order: &LexOrdering, input: &[ColumnInfo], dictionaries: &mut Dictionaries) -> Result<(), Reason> {
    let mut lowering = Lowering::new(input, dictionaries);
    let scope = lowering.scope();
    for key in order.iter() {
        lowering.sort_key(&key.expr, &scope)?;
    }
    for column in input {
        column.ty()?;
    }
    Ok(())
}

/// Rows that a node leaves out, and how many it gives at most, where that is all it does. A limit of each partition is one of
/// all: on the device there is one.
pub(super) fn limit(node: &dyn ExecutionPlan) -> Option<(usize, Option<usize>)> {
    if let Some(limit) = node.downcast_ref::<GlobalLimitExec>() {
        return Some((limit.skip(), limit.fetch()));
    }
    if let Some(limit) = node.downcast_ref::<LocalLimitExec>() {
        return Some((0, Some(limit.fetch())));
    }
    let moves = node.is::<CoalescePartitionsExec>() || node.name() == "CoalesceBatchesExec";
    node.fetch().filter(|_| moves).map(|fetch| (0, Some(fetch)))
}

/// An input that is known to be small, or that never ends, stays on the CPU.
pub(super) fn upload(input: &Arc<dyn ExecutionPlan>, min_rows: usize) -> Result<Option<Arc<Statistics>>, Reason> {
    if input.boundedness().is_unbounded() {
        return Err(Reason::Unbounded { node: input.name().to_string() });
    }
    // A recursive query hands the rows of its last step on, once.
    let once = input.exists(|node| Ok(node.is::<WorkTableExec>())).unwrap_or(true);
    if once {
        return Err(Reason::ReadOnce { node: "WorkTableExec".to_string() });
    }
    let statistics = statistics(input.as_ref());
    match statistics.as_ref().map(|s| s.num_rows) {
        Some(Precision::Exact(rows)) if rows < min_rows => Err(Reason::TooFewRows { rows, min_rows }),
        _ => Ok(statistics),
    }
}

/// DataFusion's statistics, where it has any. A failure to estimate is not an error of the query.
pub(crate) fn statistics(plan: &dyn ExecutionPlan) -> Option<Arc<Statistics>> {
    StatisticsContext::new().compute(plan, &StatisticsArgs::new()).ok()
}

/// An expression that DataFusion moved into the scan `plan`, if `plan` is a scan of files and there is one. A constant is
/// nothing computed.
pub fn computed_in_scan(plan: &dyn ExecutionPlan) -> Option<Reason> {
    let scan = plan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref::<FileScanConfig>()?;
    let computes = |expr: &Arc<dyn PhysicalExpr>| !is_column(expr) && !expr.is::<Literal>();
    let computed = scan.file_source().projection()?.iter().find(|column| computes(&column.expr))?;
    Some(Reason::ComputedInScan { expr: computed.expr.to_string() })
}

/// True for operators that work on table rows: those that may run on the device, and whose running on the CPU is a
/// fallback. Scans, one-row plans, catalog statements, EXPLAIN and pass-through nodes do not count.
pub fn counts_as_operator(plan: &dyn ExecutionPlan) -> bool {
    let works = plan.is::<DeviceFilterExec>() || plan.is::<DeviceJoinExec>() || plan.is::<DeviceUnionExec>();
    if works || plan.is::<DeviceAggregateExec>() || plan.is::<DeviceSortExec>() {
        return true;
    }
    if let Some(project) = plan.downcast_ref::<DeviceProjectExec>() {
        return project.columns().iter().any(|(e, _)| !is_column(e));
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        // A pair is one operator.
        let gives_results = !matches!(aggregate.mode(), AggregateMode::Partial | AggregateMode::PartialReduce);
        return gives_results && reads_rows(plan);
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        return !all_columns(projection.expr()) && reads_rows(plan);
    }
    let name = plan.name();
    let works = name.contains("Join")
        || name.contains("Window")
        || name.contains("TopK")
        || matches!(
            name,
            "FilterExec" | "SortExec" | "PartialSortExec" | "UnnestExec" | "UnionExec" | "InterleaveExec"
        )
        || name == "RecursiveQueryExec";
    (works || WORKLOAD_FUNCTIONS.contains(&name)) && reads_rows(plan)
}

/// Functions of relations that `millpond-queries` brings: they work on the CPU, row by row.
const WORKLOAD_FUNCTIONS: [&str; 7] = [
    "SessionizeExec",
    "BasketPairsExec",
    "LastBeforeExec",
    "KMeansExec",
    "KMeansPredictExec",
    "LogisticRegressionExec",
    "NaiveBayesExec",
];

/// True when a scan lies below: something with more rows than a constant.
fn reads_rows(plan: &dyn ExecutionPlan) -> bool {
    let children = plan.children();
    if children.is_empty() {
        return !(plan.is::<PlaceholderRowExec>() || plan.is::<EmptyExec>() || plan.is::<ExplainExec>());
    }
    children.into_iter().any(|child| reads_rows(child.as_ref()))
}

fn is_column(expression: &Arc<dyn datafusion::physical_expr::PhysicalExpr>) -> bool {
    expression.downcast_ref::<datafusion::physical_expr::expressions::Column>().is_some()
}

/// Every reason that the borders of a placed plan show, each once, sorted.
pub(super) fn reasons_shown(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    let mut reasons = Vec::new();
    let walked = plan.apply(|node| {
        let shown = if let Some(upload) = node.downcast_ref::<UploadExec>() {
            upload.reasons()
        } else if let Some(download) = node.downcast_ref::<DownloadExec>() {
            download.reasons()
        } else if let Some(fallback) = node.downcast_ref::<FallbackExec>() {
            fallback.reasons()
        } else {
            &[]
        };
        reasons.extend(shown.iter().map(|reason| reason.to_string()));
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "the walk above returns no error");
    reasons.sort();
    reasons.dedup();
    reasons
}
