//! The first rows of each partition: a ranking, a filter by it, and a projection without the ranking's column.
//!
//!   PartitionedTopKExec: fetch=3          DeviceFilterExec: rank <= 3, projection = the input's columns
//!     Scan                                  DeviceWindowExec: rank
//!                                             Upload ─ Scan
//!
//! Ties   with ROW_NUMBER any of the tied rows; with RANK all of them, as DataFusion keeps them.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::sorts::partitioned_topk::{PartitionedTopKExec, WindowFnKind};
use millpond_kernels::window::{Ranking, Units};

use crate::error::reason::Reason;
use crate::operator::filter::DeviceFilterExec;
use crate::operator::sort::check_rows;
use crate::operator::window::describe::{Call, Edge, FrameOf, Function, refused};
use crate::operator::window::{DeviceWindowExec, results};
use crate::placement::contract::{DeviceTree, Placed};
use crate::placement::walk::Placing;

/// Places a top-k of partitions. It sorts its rows itself: its input may lose its order.
pub(super) fn place(node: &Arc<dyn ExecutionPlan>, top: &PartitionedTopKExec, to: &Placing<'_>) -> Result<Placed> {
    let child = match to.in_any_order(|| to.place(top.input()))? {
        Some(child) => child,
        None => to.in_order(|| to.place(top.input()))?,
    };
    to.unary(node, child, |tree| judge(node, top, tree, to))
}

fn judge(
    node: &Arc<dyn ExecutionPlan>,
    top: &PartitionedTopKExec,
    input: &DeviceTree,
    to: &Placing<'_>,
) -> Result<DeviceTree, Reason> {
    check_rows(&input.cpu, input.aggregated, None, to)?;
    let (keys, order) = (top.expr().to_vec(), top.expr().clone());
    let parts = top.partition_prefix_len();
    let (name, ranking) = match top.fn_kind() {
        WindowFnKind::RowNumber => ("row_number", Ranking::RowNumber),
        WindowFnKind::Rank => ("rank", Ranking::Rank),
    };
    let function = Function {
        name: name.to_string(),
        data_type: DataType::UInt64,
        call: Call::Rank(ranking),
        partition: keys.iter().take(parts).map(|key| Arc::clone(&key.expr)).collect(),
        order: keys.iter().skip(parts).cloned().collect(),
        frame: FrameOf { units: Units::Rows, start: Edge::Unbounded, end: Edge::Current },
    };
    results(std::slice::from_ref(&function), &keys, &input.columns, to)?;
    let width = input.columns.len();
    let schema = input.plan.schema();
    let rank = Arc::new(Field::new(name, DataType::UInt64, false));
    let fields: Vec<_> = schema.fields().iter().cloned().chain([rank]).collect();
    let ranked = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
    let window: Arc<dyn ExecutionPlan> =
        Arc::new(DeviceWindowExec::new(keys, vec![function], None, Arc::clone(&input.plan), ranked));
    let filter = filter(&window, name, width, top.fetch());
    let filter = filter.map_err(|e| refused(name, e.strip_backtrace()))?;
    Ok(DeviceTree {
        plan: Arc::new(DeviceFilterExec::new(&filter, window, Some(order))),
        cpu: Arc::clone(node),
        columns: input.columns.clone(),
        row_limit: None,
        sorted: true,
        aggregated: input.aggregated,
    })
}

/// The rows of `window` whose last column is at most `fetch`, without that column.
fn filter(window: &Arc<dyn ExecutionPlan>, name: &str, width: usize, fetch: usize) -> Result<FilterExec> {
    let most: Arc<dyn PhysicalExpr> = Arc::new(Literal::new(ScalarValue::UInt64(Some(fetch as u64))));
    let rank: Arc<dyn PhysicalExpr> = Arc::new(Column::new(name, width));
    let predicate = Arc::new(BinaryExpr::new(rank, Operator::LtEq, most));
    let kept: Vec<usize> = (0..width).collect();
    FilterExecBuilder::new(predicate, Arc::clone(window)).apply_projection(Some(kept))?.build()
}
