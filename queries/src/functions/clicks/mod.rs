//! Device forms of sessions, pairs and earlier rows.
//!
//! ```text
//!   BasketPairsExec: [basket@0, item@1]            DeviceBasketPairsExec: [basket@0, item@1]
//!     SortExec: basket, item                         UploadExec
//!       RepartitionExec: Hash(basket)                  …        the operator sorts by itself: the sort and the
//!         …                                                     repartition for the CPU form are removed
//!
//!   segment      rows ─► kept columns ─► after the last row: one sort, then kernels over the order      (run.rs)
//!   the next     positions ─► columns by lookup of row numbers ─► …                                     (lower.rs)
//!                  └─ a position with several rows is expanded in steps, like the matches of a join
//! ```
//!
//! NULL       rows without a key, and the other rows that the CPU form drops, are filtered before the sort.
//! Order      of the sort: sessions and pairs have this order, earlier rows have none.
//! Memory     a concatenated copy of the rows, their order, and up to 24 bytes per row during the sort. Pairs are never
//!            materialized as a whole.
//! Waits      for the number of positions and the number of result rows; not for sessions.
//! On the CPU keys and columns without a device form, more than 16 keys, unsigned 64-bit times that may exceed BIGINT,
//!            which are an error of the CPU form.
//! Stands for SessionizeExec, BasketPairsExec, LastBeforeExec.

mod lower;
mod run;

use std::sync::Arc;

use millpond::column::ColumnInfo;
use millpond::contract::{DeviceOperator, DeviceTree, Placed};
use millpond::datafusion::arrow::datatypes::SchemaRef;
use millpond::datafusion::common::stats::Precision;
use millpond::datafusion::error::Result;
use millpond::datafusion::physical_expr::LexOrdering;
use millpond::datafusion::physical_expr::expressions::Column;
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::error::EngineError;
use millpond::error::reason::Reason;
use millpond::kernels::abi::MAX_EXTENT_ROWS;
use millpond::placement::Placing;
use millpond::program::contract::ToSegments;
use millpond::program::segments::{Open, Segments};

use super::device::node::DeviceRelationExec;
use super::{Function, RelationExec};
use lower::{ClicksSink, ClicksStage};

/// A call: the function, its input columns, and its result columns.
#[derive(Debug, Clone, PartialEq)]
struct Asked {
    function: Function,
    columns: Vec<usize>,
    schema: SchemaRef,
}

impl Asked {
    fn of(cpu: &RelationExec) -> Self {
        Self { function: cpu.function().clone(), columns: cpu.columns().to_vec(), schema: cpu.schema() }
    }
}

/// Whether this is one of the three click functions.
fn follows_clicks(function: &Function) -> bool {
    matches!(function, Function::Sessionize { .. } | Function::BasketPairs | Function::LastBefore { .. })
}

/// Placement of the three functions, and their segments.
#[derive(Debug)]
pub(crate) struct Clicks;

impl DeviceOperator for Clicks {
    fn name(&self) -> &'static str {
        "clicks"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        let relation = node.downcast_ref::<RelationExec>()?;
        follows_clicks(relation.function()).then(|| place(node, relation, to))
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        DeviceRelationExec::of(node, follows_clicks).map(|_| true)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        DeviceRelationExec::of(node, follows_clicks).is_some()
    }
}

/// Places the function on the device over its input in any order if possible, else on the CPU over its required order.
/// The CPU form is also used if the plan was rejected after its orders were restored: it keeps several orders at once,
/// which one border node cannot express.
fn place(node: &Arc<dyn ExecutionPlan>, relation: &RelationExec, to: &Placing<'_>) -> Result<Placed> {
    let Some(input) = node.children().first().copied() else { return to.stay(node, vec![], None) };
    let mut refused = Some(Reason::OrderKept { node: node.name().to_string() });
    if let Some(child) = to.in_any_order(|| to.place(input))? {
        let child = to.after_limit(child)?;
        let moves = to.counts(node.as_ref()) || matches!(child, Placed::Device(_));
        refused = match to.tree(&child).and_then(|tree| judge(node, relation, &tree, to)) {
            Ok(tree) if moves => return Ok(Placed::Device(tree)),
            Ok(_) => None,
            Err(reason) => moves.then_some(reason),
        };
    }
    let child = to.in_order(|| to.place(input))?;
    to.stay(node, vec![child], refused)
}

/// The device form over `input`, or the reason against it.
fn judge(
    node: &Arc<dyn ExecutionPlan>,
    relation: &RelationExec,
    input: &DeviceTree,
    to: &Placing<'_>,
) -> std::result::Result<DeviceTree, Reason> {
    if !input.aggregated
        && let Some(statistics) = to.statistics(&input.cpu)
        && let Precision::Exact(rows) | Precision::Inexact(rows) = statistics.num_rows
        && rows as u64 > MAX_EXTENT_ROWS
    {
        return Err(Reason::TooManyRowsToSort { rows, limit: MAX_EXTENT_ROWS as usize });
    }
    let asked = Asked::of(relation);
    let columns = lower::judge(&asked, &input.columns, &mut to.lowering())?;
    let kept = node.properties().output_ordering().filter(|order| gives(&asked, order)).cloned();
    let sorted = kept.is_some();
    let plan = Arc::new(DeviceRelationExec::new(relation.clone(), vec![Arc::clone(&input.plan)], kept));
    let tree = DeviceTree { plan, cpu: Arc::clone(node), columns, row_limit: None, sorted, aggregated: true };
    if sorted { Ok(tree) } else { to.restore_order(node, tree) }
}

/// Whether the device form returns rows in `order`: pairs by all columns, sessions by keys and time. Within a key the
/// session number grows with time.
fn gives(asked: &Asked, order: &LexOrdering) -> bool {
    let columns = order.iter().map(|by| {
        let ascending = !by.options.descending;
        by.expr.downcast_ref::<Column>().map(Column::index).filter(|_| ascending)
    });
    let Some(columns) = columns.collect::<Option<Vec<usize>>>() else { return false };
    match asked.function {
        Function::Sessionize { keys, .. } => {
            let (keys, time) = (&asked.columns[..keys], asked.columns[keys]);
            let session = asked.schema.fields().len() - 1;
            let of_keys = columns.iter().zip(keys).take_while(|(column, key)| column == key).count();
            let rest = &columns[of_keys..];
            rest.is_empty() || of_keys == keys.len() && rest.iter().all(|column| [time, session].contains(column))
        }
        Function::BasketPairs => columns.into_iter().eq(0..order.len()),
        _ => false,
    }
}

impl ToSegments for Clicks {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        into: &mut Segments<'_>,
    ) -> Option<std::result::Result<Open, EngineError>> {
        let clicks = DeviceRelationExec::of(node.as_ref(), follows_clicks)?;
        let asked = Arc::new(Asked::of(clicks.cpu()));
        let open = match into.open_input(node, false) {
            Ok(open) => open,
            Err(error) => return Some(Err(error)),
        };
        let rows = into.close(open, ClicksSink { asked: Arc::clone(&asked) });
        let open = Open::reading(rows).with(ClicksStage { asked });
        into.share(node, &open);
        Some(Ok(open))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        Some(DeviceRelationExec::of(a, follows_clicks)?.computes_same(DeviceRelationExec::of(b, follows_clicks)?))
    }
}

/// Result columns for kept `columns`: for pairs, the groups and two elements; else all input columns and a number.
fn given(asked: &Asked, columns: &[ColumnInfo]) -> Vec<ColumnInfo> {
    let elements = columns.last().cloned();
    let all: Vec<ColumnInfo> = match asked.function {
        Function::Sessionize { .. } => columns.iter().cloned().chain([lower::number(0)]).collect(),
        Function::BasketPairs => columns.iter().cloned().chain(elements).collect(),
        _ => [columns, columns].concat().into_iter().chain([lower::number(1)]).collect(),
    };
    let named = all.into_iter().zip(asked.schema.fields());
    named.map(|(column, field)| ColumnInfo { name: field.name().clone(), ..column }).collect()
}
