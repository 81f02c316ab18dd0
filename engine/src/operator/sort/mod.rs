//! Sorts rows, and keeps only the first of them if there is a limit.
//!
//!   each extent   materialised columns ──► its first rows, if there is a limit
//!   all extents   together ──► row numbers sorted by key (radix sort, or the first few in one launch) ──► gather
//!
//! NULL     first or last, as each key says; floats in total order, from -NaN to NaN.
//! Order    as sorted; ties in no particular order.
//! Memory   the materialised input, a packed copy, a gathered copy, and up to 24 bytes per row while it is sorted. With
//!          a limit of up to 1,024 the input is not materialised, but some thousands of rows of it at a time
//!          (`top.rs`).
//! Limit    exact: readers see the first rows alone.
//! Stands for SortExec and PartialSortExec; for SortPreservingMergeExec, since a merge of sorted partitions is their
//! sort; and for nodes that keep an order that the device loses.

pub(crate) mod lower;
pub(crate) mod run;
mod top;

pub use lower::SortedBy;
pub use run::order_rows;

use std::fmt;
use std::sync::Arc;

use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::partial_sort::PartialSortExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::column::ColumnInfo;
use crate::error::EngineError;
use crate::error::reason::Reason;
use crate::expr::{Dictionaries, Lowering};
use crate::operator::sort::lower::SortSink;
use crate::placement::contract::{DeviceOperator, DeviceTree, Placed};
use crate::placement::simplify::only_moves;
use crate::placement::walk::{Placing, with_children};
use crate::program::contract::ToSegments;
use crate::program::segments::{Open, Segments};

/// Maximum rows that are sorted as one: one pipeline reads no more.
const MAX_SORTED_ROWS: usize = millpond_kernels::abi::MAX_EXTENT_ROWS as usize;

/// A sort on the device.
#[derive(Debug, Clone)]
pub struct DeviceSortExec {
    order: LexOrdering,
    fetch: Option<usize>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DeviceSortExec {
    /// The device's form of `sort`, over `input`, with at most `fetch` rows.
    pub fn new(sort: &SortExec, fetch: Option<usize>, input: Arc<dyn ExecutionPlan>) -> Self {
        let order = sort.expr().clone();
        let properties = crate::plan::node::properties(sort.schema(), Some(order.clone()));
        Self { order, fetch, input, properties }
    }

    pub fn order(&self) -> &LexOrdering {
        &self.order
    }

    /// Maximum number of output rows.
    pub fn row_limit(&self) -> Option<usize> {
        self.fetch
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, ..self.clone() }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.order.iter().map(|e| Arc::clone(&e.expr)).collect()
    }
}

impl DisplayAs for DeviceSortExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        if let DisplayFormatType::TreeRender = t {
            return write!(f, "{}", self.order);
        }
        match self.fetch {
            Some(fetch) => write!(f, "DeviceSortExec: TopK(fetch={fetch}), expr=[{}]", self.order),
            None => write!(f, "DeviceSortExec: expr=[{}]", self.order),
        }
    }
}

crate::plan::node::device_node!(DeviceSortExec, execute: refuse);

impl DeviceOperator for Sort {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        if let Some(sort) = node.downcast_ref::<SortExec>() {
            return Some(place_sort(node, sort, to));
        }
        if let Some(partial) = node.downcast_ref::<PartialSortExec>() {
            let whole = SortExec::new(partial.expr().clone(), Arc::clone(partial.input()));
            return Some(place_sort(node, &whole.with_fetch(partial.fetch()), to));
        }
        node.downcast_ref::<SortPreservingMergeExec>().map(|merge| place_merge(node, merge, to))
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        if node.is::<SortPreservingMergeExec>() {
            return Some(false);
        }
        (node.is::<SortExec>() || node.is::<PartialSortExec>() || node.is::<DeviceSortExec>()).then_some(true)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<DeviceSortExec>()
    }

    fn sort(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        tree: &DeviceTree,
        order: &LexOrdering,
        fetch: Option<usize>,
        to: &Placing<'_>,
    ) -> Option<Result<Arc<dyn ExecutionPlan>, Reason>> {
        let judged = judge(order, &tree.columns, &mut to.lowering());
        Some(judged.and_then(|()| check_rows(node, tree.aggregated, fetch, to)).map(|()| {
            let sort = SortExec::new(order.clone(), Arc::clone(node));
            Arc::new(DeviceSortExec::new(&sort, fetch, Arc::clone(&tree.plan))) as Arc<dyn ExecutionPlan>
        }))
    }
}

/// Places a sort with the device subtree below it. Rows on the CPU are moved to the device even for a sort alone.
fn place_sort(node: &Arc<dyn ExecutionPlan>, sort: &SortExec, to: &Placing<'_>) -> Result<Placed> {
    let child = to.with_order_free(to.restores(), || to.place(sort.input()))?;
    if to.restores() && to.is_order_free() && sort.fetch().is_none() {
        // The reader of the rows does not need the order.
        return Ok(match to.after_limit(child)? {
            Placed::Device(tree) => {
                let cpu = Arc::clone(node);
                Placed::Device(DeviceTree { cpu, row_limit: None, sorted: false, ..tree })
            }
            child => child,
        });
    }
    to.unary(node, child, |input| {
        let sorted = to.sort(sort.input(), input.clone(), sort.expr(), sort.fetch())?;
        Ok(DeviceTree { cpu: Arc::clone(node), ..sorted })
    })
}

/// A merge of sorted partitions is their sort: nodes below it need no order of their own.
fn place_merge(node: &Arc<dyn ExecutionPlan>, merge: &SortPreservingMergeExec, to: &Placing<'_>) -> Result<Placed> {
    if to.is_order_free() && node.fetch().is_none() {
        return Ok(match to.place(merge.input())? {
            Placed::Device(tree) => Placed::Device(DeviceTree { cpu: Arc::clone(node), ..tree }),
            Placed::Host { plan: input, pending } => {
                Placed::Host { plan: Arc::new(CoalescePartitionsExec::new(input)), pending }
            }
        });
    }
    // A sort directly below has the order already; its limit is the merge's. It may have left out keys that are
    // constant in each partition, but not across partitions.
    let sorts = sorts_below(merge.input());
    let whole = if sorts { sort_by(merge.input(), merge.expr())? } else { None };
    let as_sorted = whole.as_ref().is_some_and(|whole| Arc::ptr_eq(whole, merge.input()));
    if let (Some(input), false) = (whole, as_sorted) {
        let merge = SortPreservingMergeExec::new(merge.expr().clone(), input).with_fetch(merge.fetch());
        if let Placed::Device(tree) = to.place(&(Arc::new(merge) as Arc<dyn ExecutionPlan>))? {
            return Ok(Placed::Device(tree));
        }
    }
    let begins_so = |order: &LexOrdering| order.starts_with(merge.expr());
    let in_order = |tree: &DeviceTree| {
        tree.sorted && (as_sorted || tree.plan.properties().output_ordering().is_some_and(begins_so))
    };
    if !sorts
        && let Some(child) = to.in_any_order(|| to.place(&without_limit(merge.input(), node.fetch())?))?
        && let Placed::Device(tree) = to.after_limit(child)?
    {
        let tree = match in_order(&tree) {
            true => to.limit(tree, 0, node.fetch(), node),
            // Sorted by fewer keys and limited, these may not be the first rows.
            false if tree.sorted && tree.row_limit.is_some() => Err(order_kept(node)),
            false => to.sort(node, tree, merge.expr(), node.fetch()),
        };
        if let Ok(tree) = tree {
            return Ok(Placed::Device(tree));
        }
    }
    match to.in_order(|| to.place(merge.input()))? {
        Placed::Device(tree) if in_order(&tree) => match to.limit(tree.clone(), 0, node.fetch(), node) {
            Ok(tree) => Ok(Placed::Device(tree)),
            Err(reason) => to.stay(node, vec![Placed::Device(tree)], Some(reason)),
        },
        // All nodes below stay on the CPU, too: on the device they have lost the order.
        Placed::Device(_) => Ok(Placed::Host { plan: Arc::clone(node), pending: vec![order_kept(node)] }),
        child => to.stay(node, vec![child], None),
    }
}

/// `plan` without the limit of a filter, if that is no less than `fetch`, the limit of the merge above: the merge cuts,
/// in its own order.
fn without_limit(plan: &Arc<dyn ExecutionPlan>, fetch: Option<usize>) -> Result<Arc<dyn ExecutionPlan>> {
    if plan.is::<FilterExec>() && plan.fetch().is_some_and(|own| fetch.is_some_and(|fetch| fetch <= own)) {
        return Ok(plan.with_fetch(None).unwrap_or_else(|| Arc::clone(plan)));
    }
    match plan.children().as_slice() {
        [input] if only_moves(plan.as_ref()) || plan.is::<ProjectionExec>() => {
            let below = without_limit(input, fetch)?;
            if Arc::ptr_eq(&below, input) { Ok(Arc::clone(plan)) } else { with_children(Arc::clone(plan), vec![below]) }
        }
        _ => Ok(Arc::clone(plan)),
    }
}

/// True if `plan` is a sort, below projections and nodes that only move rows.
fn sorts_below(mut plan: &Arc<dyn ExecutionPlan>) -> bool {
    while only_moves(plan.as_ref()) || plan.is::<ProjectionExec>() {
        let Some(input) = plan.children().first().copied() else { return false };
        plan = input;
    }
    plan.is::<SortExec>()
}

/// `plan` with the sort that [`sorts_below`] finds sorting each partition by all of `order`; `plan` itself if it does
/// so already, `None` if `order` has no form below a projection.
fn sort_by(plan: &Arc<dyn ExecutionPlan>, order: &LexOrdering) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(sort) = plan.downcast_ref::<SortExec>() {
        if sort.expr() == order {
            return Ok(Some(Arc::clone(plan)));
        }
        let whole = SortExec::new(order.clone(), Arc::clone(sort.input()));
        let whole = whole.with_preserve_partitioning(sort.preserve_partitioning()).with_fetch(sort.fetch());
        return Ok(Some(Arc::new(whole)));
    }
    let children = plan.children();
    let [input] = children.as_slice() else { return Ok(None) };
    let below = match plan.downcast_ref::<ProjectionExec>() {
        None => Some(order.clone()),
        Some(projection) => {
            let through = |of: &PhysicalSortExpr| {
                let expr = Arc::clone(&of.expr).transform_up(|part| {
                    Ok(match part.downcast_ref::<Column>() {
                        Some(column) => Transformed::yes(Arc::clone(&projection.expr()[column.index()].expr)),
                        None => Transformed::no(part),
                    })
                });
                Ok::<_, DataFusionError>(PhysicalSortExpr { expr: expr.data()?, options: of.options })
            };
            LexOrdering::new(order.iter().map(through).collect::<Result<Vec<_>>>()?)
        }
    };
    let Some(below) = below else { return Ok(None) };
    match sort_by(input, &below)? {
        Some(sorted) if Arc::ptr_eq(&sorted, input) => Ok(Some(Arc::clone(plan))),
        Some(sorted) => with_children(Arc::clone(plan), vec![sorted]).map(Some),
        None => Ok(None),
    }
}

fn order_kept(plan: &Arc<dyn ExecutionPlan>) -> Reason {
    Reason::OrderKept { node: plan.name().to_string() }
}

/// Whether rows can be sorted by `order`.
fn judge(order: &LexOrdering, input: &[ColumnInfo], dictionaries: &mut Dictionaries) -> Result<(), Reason> {
    let mut lowering = Lowering::new(input, dictionaries);
    let scope = lowering.scope();
    for key in order.iter() {
        lowering.sort_key(key, &scope)?;
    }
    for column in input {
        column.ty()?;
    }
    Ok(())
}

/// Refuses to sort more rows than the device can. Rows of a scan are counted beforehand; groups are not. A sort with a
/// limit takes any number.
pub(crate) fn check_rows(
    input: &Arc<dyn ExecutionPlan>,
    aggregated: bool,
    fetch: Option<usize>,
    to: &Placing<'_>,
) -> Result<(), Reason> {
    if !aggregated
        && fetch.is_none()
        && let Some(statistics) = to.statistics(input)
        && let Precision::Exact(rows) | Precision::Inexact(rows) = statistics.num_rows
        && rows > MAX_SORTED_ROWS
    {
        return Err(Reason::TooManyRowsToSort { rows, limit: MAX_SORTED_ROWS });
    }
    Ok(())
}

/// Sorts: placement of sorts, and of merges of sorted partitions, and their sinks.
#[derive(Debug)]
pub(crate) struct Sort;

impl ToSegments for Sort {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let sort = node.downcast_ref::<DeviceSortExec>()?;
        if top {
            into.leave(0, sort.row_limit());
        }
        let sink = SortSink { order: sort.order().clone(), fetch: sort.row_limit() };
        Some(into.open_input(node, false).map(|open| Open::reading(into.close(open, sink))))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        (a.is::<DeviceSortExec>() && b.is::<DeviceSortExec>()).then_some(false)
    }
}
