//! Groups rows and aggregates each group.
//!
//!   pipeline   … ──► [ keys, arguments ] ──► one table on the device ──► emit ──► next pipeline (averages, HAVING)
//!
//! NULL     NULL keys form one group; NULL arguments are skipped.
//! Order    of groups: not promised.
//! Memory   the table: direct-addressed where the keys' ranges allow, hashed otherwise.
//! Stands for a Partial/Final pair, whose intermediate state is private to DataFusion, or for a Single one. DISTINCT
//! arguments beside others take two of these nodes: see [`Aggregation`].

pub mod call;
pub mod describe;
mod digest;
mod finish;
pub mod lower;
mod moments;
mod node;
pub mod ordered;
mod ranked;
mod ranks;
pub(crate) mod run;
pub mod sketch;
pub mod sorted;

pub use node::DeviceAggregateExec;

use std::sync::Arc;

use datafusion::common::stats::Precision;
use datafusion::error::Result;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode, AggregateMode, AggregateOutputMode};
use datafusion::physical_plan::sorts::sort::SortExec;

use crate::column::ColumnInfo;
use crate::error::EngineError;
use crate::error::reason::Reason;
use crate::expr::{Dictionaries, Lowering};
use crate::operator::aggregate::call::{Call, is_ordered, unsupported};
use crate::operator::aggregate::describe::Aggregation;
use crate::operator::aggregate::lower::{AggregateSink, FinishGroups};
use crate::operator::aggregate::sorted::{RankSink, RankedRows};
use crate::placement::contract::{DeviceOperator, DeviceTree, Placed};
use crate::placement::simplify::only_moves;
use crate::placement::walk::Placing;
use crate::program::contract::ToSegments;
use crate::program::segments::{Open, Segments};

impl DeviceOperator for Aggregate {
    fn name(&self) -> &'static str {
        "aggregate"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        node.downcast_ref::<AggregateExec>().map(|aggregate| place(node, aggregate, to))
    }

    /// A Partial aggregate and its Final one are one operator.
    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        if node.is::<DeviceAggregateExec>() {
            return Some(true);
        }
        let mode = node.downcast_ref::<AggregateExec>()?.mode();
        Some(!matches!(mode, AggregateMode::Partial | AggregateMode::PartialReduce))
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<DeviceAggregateExec>()
    }
}

/// Places a Final aggregate together with its Partial, or a Single one.
fn place(node: &Arc<dyn ExecutionPlan>, last: &AggregateExec, to: &Placing<'_>) -> Result<Placed> {
    let first = match last.mode().input_mode() {
        AggregateInputMode::Raw => Some(last),
        AggregateInputMode::Partial => partial_below(last),
    };
    let pair = first.filter(|_| last.mode().output_mode() == AggregateOutputMode::Final);
    let Some(first) = pair else {
        // A lone phase: its state is private to DataFusion.
        let child = to.in_order(|| to.place(last.input()))?;
        let reason = Reason::NodeUnsupported { node: format!("AggregateExec in mode {:?}", last.mode()) };
        let reason = (!matches!(last.mode(), AggregateMode::Partial)).then_some(reason);
        return to.stay(node, vec![child], reason);
    };
    let child = to.with_order_free(!takes_rows_as_they_come(first), || to.place(first.input()))?;
    // On the CPU it may depend on the order of its input: then the input is placed again.
    let stays = |child: Placed, reason: Option<Reason>| {
        let child = match first.input().properties().output_ordering() {
            Some(_) => to.in_order(|| to.place(first.input()))?,
            None => child,
        };
        match std::ptr::eq(first, last) {
            true => to.stay(node, vec![child], reason),
            false => rebuild_pair(node, last, child, reason, to),
        }
    };
    if !to.counts(node.as_ref()) && matches!(child, Placed::Host { .. }) {
        return stays(child, None);
    }
    let child = to.after_limit(child)?;
    match to.tree(&child).and_then(|input| judge(node, first, last, &input, to)) {
        Ok(tree) => Ok(Placed::Device(tree)),
        // The pair stays together: the reason is shown below the Partial, and all nodes between are unchanged.
        Err(reason) => stays(child, Some(reason)),
    }
}

/// Whether a result depends on the order of the input rows, and on no other order.
fn takes_rows_as_they_come(first: &AggregateExec) -> bool {
    let calls = first.aggr_expr();
    calls.iter().any(|call| is_ordered(call.fun().name()) && call.order_bys().is_empty() && !call.is_distinct())
}

/// The device's form of the aggregate `node`, whose first phase is `first` and whose last one is `last`, over `input`.
fn judge(
    node: &Arc<dyn ExecutionPlan>,
    first: &AggregateExec,
    last: &AggregateExec,
    input: &DeviceTree,
    to: &Placing<'_>,
) -> Result<DeviceTree, Reason> {
    let phases = Aggregation::of(first, last.schema(), to.options().deterministic_floats)?;
    check_digests(first, &phases, to)?;
    let columns = columns(&phases, &input.columns, &mut to.lowering())?;
    let above = |input, phase| Arc::new(DeviceAggregateExec::new(phase, input)) as Arc<dyn ExecutionPlan>;
    let tree = DeviceTree {
        plan: phases.into_iter().fold(Arc::clone(&input.plan), above),
        cpu: Arc::clone(node),
        columns,
        row_limit: None,
        sorted: false,
        aggregated: true,
    };
    // DataFusion finds the groups of a sorted input in its order: nodes above may depend on that.
    match node.properties().output_ordering().filter(|_| !to.is_order_free()) {
        Some(order) => to.sort(node, tree, order, None),
        None => Ok(tree),
    }
}

/// Refuses digests of all rows if they are known to have more values than one keeps apart: a run would fail only after
/// a sort.
fn check_digests(first: &AggregateExec, phases: &[Aggregation], to: &Placing<'_>) -> Result<(), Reason> {
    let calls = phases.iter().flat_map(|phase| &phase.calls).filter(|call| !call.taken && call.filter.is_none());
    let mut digests = calls.filter_map(|call| call.digest.map(|most| (call, most))).peekable();
    if !first.group_expr().expr().is_empty() || digests.peek().is_none() {
        return Ok(());
    }
    let Some(statistics) = to.statistics(first.input()) else { return Ok(()) };
    let Precision::Exact(rows) = statistics.num_rows else { return Ok(()) };
    for (call, most) in digests {
        let columns = call.arguments.iter().flat_map(collect_columns);
        let nulls =
            columns.filter_map(|column| statistics.column_statistics.get(column.index())?.null_count.get_value());
        if rows.saturating_sub(nulls.sum()) as u64 > most {
            return Err(unsupported(
                &call.function,
                format!(
                    "of more than {most} values its answer depends on DataFusion's batches; median and percentile_cont give \
                     exact ones on the device"
                ),
            ));
        }
    }
    Ok(())
}

/// The output columns of the last of these phases.
fn columns(
    phases: &[Aggregation],
    input: &[ColumnInfo],
    dictionaries: &mut Dictionaries,
) -> Result<Vec<ColumnInfo>, Reason> {
    let mut columns = input.to_vec();
    for phase in phases {
        let mut lowering = Lowering::new(&columns, dictionaries);
        let scope = lowering.scope();
        columns = lower::lower(&mut lowering, &scope, phase)?.columns;
    }
    Ok(columns)
}

/// Leaves everything from `last` down to its Partial on the CPU; the Partial's input is `child`.
fn rebuild_pair(
    whole: &Arc<dyn ExecutionPlan>,
    last: &AggregateExec,
    child: Placed,
    reason: Option<Reason>,
    to: &Placing<'_>,
) -> Result<Placed> {
    let mut between: Vec<&Arc<dyn ExecutionPlan>> = vec![whole];
    let mut node = last.input();
    while node.downcast_ref::<AggregateExec>().is_none() {
        between.push(node);
        let Some(input) = node.children().first().copied() else { break };
        node = input;
    }
    let mut placed = to.stay(node, vec![child], reason)?;
    for node in between.into_iter().rev() {
        placed = to.stay(node, vec![placed], None)?;
    }
    Ok(placed)
}

/// The Partial aggregate below a Final one, through nodes that only move or sort rows.
fn partial_below(last: &AggregateExec) -> Option<&AggregateExec> {
    let mut node = last.input();
    loop {
        if let Some(first) = node.downcast_ref::<AggregateExec>() {
            return (*first.mode() == AggregateMode::Partial).then_some(first);
        }
        let sorts = node.is::<SortExec>() && node.fetch().is_none();
        if !only_moves(node.as_ref()) && !sorts {
            return None;
        }
        node = node.children().first().copied()?;
    }
}

/// Aggregations: their placement, and their segments: one that ends in a table, which another one begins with; before
/// them, if values are looked up by their position in an order, one that sorts the rows.
#[derive(Debug)]
pub(crate) struct Aggregate;

impl ToSegments for Aggregate {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let aggregate = Arc::new(node.downcast_ref::<DeviceAggregateExec>()?.clone());
        Some(into.open_input(node, false).map(|mut open| {
            let ranks = aggregate.aggregation().ranks();
            if ranks {
                let ranked = into.close(open, RankSink(Arc::clone(&aggregate)));
                open = Open::reading(ranked).with(RankedRows(Arc::clone(&aggregate)));
            }
            let groups = into.close(open, AggregateSink { node: Arc::clone(&aggregate), ranks });
            let finished = Open::reading(groups).with(FinishGroups(aggregate));
            into.share(node, &finished);
            finished
        }))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        let (a, b) = (a.downcast_ref::<DeviceAggregateExec>()?, b.downcast_ref::<DeviceAggregateExec>()?);
        Some(same_aggregation(a.aggregation(), b.aggregation()))
    }
}

fn same_aggregation(a: &Aggregation, b: &Aggregation) -> bool {
    let variants = a.variants.len() == b.variants.len()
        && a.variants.iter().zip(&b.variants).all(|(a, b)| a.absent == b.absent && a.filter == b.filter);
    let calls = a.calls.len() == b.calls.len() && a.calls.iter().zip(&b.calls).all(|(a, b)| same_call(a, b));
    let rest = (a.arguments, a.exact_floats, &a.number) == (b.arguments, b.exact_floats, &b.number);
    a.keys == b.keys && variants && calls && rest
}

fn same_call(a: &Call, b: &Call) -> bool {
    let marks = |call: &Call| (call.taken, call.function.is_distinct(), call.function.ignore_nulls());
    a.function == b.function
        && a.function.order_bys() == b.function.order_bys()
        && marks(a) == marks(b)
        && a.arguments == b.arguments
        && a.filter == b.filter
        && a.among == b.among
        && (a.percentile, a.digest) == (b.percentile, b.digest)
        && a.ordered == b.ordered
        && a.order == b.order
        && a.sketch == b.sketch
}
