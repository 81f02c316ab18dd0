//! Computes window functions over rows that it sorts: ranks, values of other rows, aggregates over frames.
//!
//!   each extent   materialised columns, arguments and keys
//!   all extents   together ──► sorted by partition and order ──► partitions, peers ──► a column for each function
//!
//!   DeviceWindowExec [rank, sum]                BoundedWindowAggExec: sum
//!     Upload                          for         BoundedWindowAggExec: rank
//!       Scan                                        SortExec a, b
//!                                                     Scan
//!
//! NULL     as in each function; NULLs of a key are one partition, and peers.
//! Order    the rows leave sorted by partition and order; ties in no particular order, as in the CPU node over its
//!          sort.
//! Shared   adjacent windows share a sort if one order serves all; sorts that served only them are removed.
//! DISTINCT values count once in a frame; see `distinct.rs`.
//! More     percentiles, bivariate statistics, `string_agg`: `percentile.rs`, `bivariate.rs`, `concat.rs`.
//! Lists    of array_agg are the start and the number of rows of a frame: nothing is copied before the result.
//! Floats   a frame's sum, average or variance is computed from its rows, not as a running difference as in DataFusion,
//!          which may lose digits or become NaN.
//! Memory   the materialised input, a packed copy, and a sorted copy beside the results; see `run`.
//! Limit    fewer than 2³¹ rows, 16 keys.
//! Stands for WindowAggExec and BoundedWindowAggExec, and with a filter above it for PartitionedTopKExec (`top_k.rs`).

mod adjacent;
mod bivariate;
mod concat;
mod describe;
mod distance;
mod distinct;
pub(crate) mod filter;
mod lower;
mod percentile;
mod run;
mod top_k;

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::sorts::partitioned_topk::PartitionedTopKExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec, WindowExpr};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};

use crate::column::ColumnInfo;
use crate::error::EngineError;
use crate::error::reason::Reason;
use crate::expr::Lowering;
use crate::operator::sort::check_rows;
use crate::operator::window::describe::{Function, refused};
use crate::operator::window::lower::{LoweredFunction, WindowSink};
use crate::placement::contract::{DeviceOperator, DeviceTree, Placed};
use crate::placement::walk::Placing;
use crate::program::contract::ToSegments;
use crate::program::segments::{Open, Segments};

/// Window functions on the device.
#[derive(Debug, Clone)]
pub struct DeviceWindowExec {
    /// The order of all functions; empty if rows keep their order.
    sort: Vec<PhysicalSortExpr>,
    functions: Arc<Vec<Function>>,
    /// The order of the input, if no function needs another one.
    keeps: Option<LexOrdering>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DeviceWindowExec {
    /// The columns of `input`, then those of `functions`, with `schema`.
    fn new(
        sort: Vec<PhysicalSortExpr>,
        functions: Vec<Function>,
        keeps: Option<LexOrdering>,
        input: Arc<dyn ExecutionPlan>,
        schema: SchemaRef,
    ) -> Self {
        let order = LexOrdering::new(sort.clone()).or_else(|| keeps.clone());
        let properties = crate::plan::node::properties(schema, order);
        Self { sort, functions: Arc::new(functions), keeps, input, properties }
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, ..self.clone() }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.functions.iter().flat_map(Function::expressions).collect()
    }
}

impl DisplayAs for DeviceWindowExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let names: Vec<&str> = self.functions.iter().map(|function| function.name.as_str()).collect();
        if let DisplayFormatType::TreeRender = t {
            return write!(f, "{}", names.join(", "));
        }
        write!(f, "DeviceWindowExec: wdw=[{}]", names.join(", "))?;
        let keys: Vec<String> = self.sort.iter().map(ToString::to_string).collect();
        write!(f, ", sort=[{}]", keys.join(", "))
    }
}

crate::plan::node::device_node!(DeviceWindowExec, execute: refuse);

/// Windows: their placement, and their sinks.
#[derive(Debug)]
pub(crate) struct Windows;

impl DeviceOperator for Windows {
    fn name(&self) -> &'static str {
        "window"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        if let Some(top) = node.downcast_ref::<PartitionedTopKExec>() {
            return Some(top_k::place(node, top, to));
        }
        let (functions, input) = functions_of(node.as_ref())?;
        Some(place(node, functions, input, to))
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        let own = node.is::<DeviceWindowExec>() || node.is::<PartitionedTopKExec>();
        (functions_of(node).is_some() || own).then_some(true)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<DeviceWindowExec>()
    }
}

/// The functions of a CPU node, and its input.
type FunctionsOver<'a> = (&'a [Arc<dyn WindowExpr>], &'a Arc<dyn ExecutionPlan>);

fn functions_of(node: &dyn ExecutionPlan) -> Option<FunctionsOver<'_>> {
    if let Some(window) = node.downcast_ref::<WindowAggExec>() {
        return Some((window.window_expr(), window.input()));
    }
    node.downcast_ref::<BoundedWindowAggExec>().map(|window| (window.window_expr(), window.input()))
}

/// Places a window. It sorts its rows itself, so that its input may lose its order; without keys it keeps that of its
/// input.
fn place(
    node: &Arc<dyn ExecutionPlan>,
    functions: &[Arc<dyn WindowExpr>],
    input: &Arc<dyn ExecutionPlan>,
    to: &Placing<'_>,
) -> Result<Placed> {
    let functions = functions.iter().map(Function::of).collect::<Result<Vec<_>, Reason>>();
    let functions = match functions {
        Ok(functions) => functions,
        Err(reason) => {
            let child = to.in_order(|| to.place(input))?;
            return to.stay(node, vec![child], Some(reason));
        }
    };
    let found = input.output_ordering().map(|order| order.to_vec()).unwrap_or_default();
    let sort = functions.first().map(|function| function.sort(&found)).unwrap_or_default();
    if !sort.is_empty()
        && to.counts(node.as_ref())
        && let Some(child) = to.in_any_order(|| to.place(input))?
    {
        let child = to.after_limit(child)?;
        match to.tree(&child).and_then(|tree| judge(node, &functions, sort.clone(), &tree, to)) {
            Ok(tree) => return Ok(Placed::Device(tree)),
            // On the CPU the window needs the order that was made for it.
            Err(reason) => {
                let child = to.in_order(|| to.place(input))?;
                return to.stay(node, vec![child], Some(reason));
            }
        }
    }
    let child = to.in_order(|| to.place(input))?;
    to.unary(node, child, |tree| judge(node, &functions, sort, tree, to))
}

/// The device's form of `node` over `input`.
fn judge(
    node: &Arc<dyn ExecutionPlan>,
    functions: &[Function],
    sort: Vec<PhysicalSortExpr>,
    input: &DeviceTree,
    to: &Placing<'_>,
) -> Result<DeviceTree, Reason> {
    check_rows(&input.cpu, input.aggregated, None, to)?;
    let results = results(functions, &sort, &input.columns, to)?;
    let columns: Vec<ColumnInfo> = input.columns.iter().cloned().chain(results).collect();
    let (plan, order) = match adjacent::merge(functions, &sort, input, node) {
        Some(merged) => merged,
        None => {
            let keeps = input.plan.output_ordering().filter(|_| input.sorted && sort.is_empty()).cloned();
            let order = LexOrdering::new(sort.clone()).or_else(|| keeps.clone());
            let window = DeviceWindowExec::new(sort, functions.to_vec(), keeps, Arc::clone(&input.plan), node.schema());
            (Arc::new(window) as Arc<dyn ExecutionPlan>, order)
        }
    };
    let tree = DeviceTree {
        plan,
        cpu: Arc::clone(node),
        columns,
        row_limit: None,
        sorted: order.is_some(),
        aggregated: input.aggregated,
    };
    let kept = match (node.properties().output_ordering(), &order) {
        (None, _) => true,
        // Beyond its own keys, DataFusion relies on results that grow in the order of their computation: the rows leave
        // in it.
        (Some(wanted), Some(order)) => {
            let made = |key: &PhysicalSortExpr| {
                key.expr.downcast_ref::<Column>().is_some_and(|column| column.index() >= input.columns.len())
            };
            let shared = order.iter().zip(wanted).take_while(|(own, wanted)| own == wanted).count();
            wanted[shared..].iter().all(made)
        }
        (Some(_), None) => false,
    };
    if kept { Ok(tree) } else { to.restore_order(node, tree) }
}

/// The columns of `functions` over `input`.
fn results(
    functions: &[Function],
    sort: &[PhysicalSortExpr],
    input: &[ColumnInfo],
    to: &Placing<'_>,
) -> Result<Vec<ColumnInfo>, Reason> {
    for column in input {
        column.ty()?;
    }
    let mut dictionaries = to.lowering();
    let mut lowering = Lowering::new(input, &mut dictionaries);
    let scope = lowering.scope();
    let nodes = (0..input.len()).map(|index| scope.column(index).map(|value| value.node)).collect::<Result<_, _>>()?;
    let (window, _, columns) = lower::lower(&mut lowering, &scope, nodes, sort, functions)?;
    if to.options().deterministic_floats
        && let Some(at) = window.functions.iter().position(LoweredFunction::adds_floats)
    {
        let why = "its last bits depend on the order of tied rows, which millpond.deterministic_floats rules out";
        return Err(refused(&functions[at].name, why));
    }
    Ok(columns)
}

impl ToSegments for Windows {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let window = node.downcast_ref::<DeviceWindowExec>()?;
        let sink = WindowSink { sort: window.sort.clone(), functions: Arc::clone(&window.functions) };
        Some(into.open_input(node, false).map(|open| Open::reading(into.close(open, sink))))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        (a.is::<DeviceWindowExec>() && b.is::<DeviceWindowExec>()).then_some(false)
    }
}
