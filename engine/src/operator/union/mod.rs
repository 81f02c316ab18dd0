//! Rows of several inputs, one after the other: UNION ALL.
//!
//!   input 0 … ──► materialise ─┐
//!   input 1 … ──► materialise ─┴─► parts with the same columns ──► the next pipeline reads one after the other
//!
//! NULL       a column can be NULL if it can be NULL in any input.
//! Order      not promised.
//! Memory     the result of each input, until the pipeline above has read it; waiting parts may be spilled to the host.
//! Types      columns are as wide as the widest input's; strings of several dictionaries become codes into one.
//! Stands for UnionExec and InterleaveExec: on one device there is one partition.

pub mod lower;

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::error::EngineError;
use crate::error::reason::Reason;
use crate::operator::union::lower::{BranchSink, union_columns};
use crate::placement::contract::{DeviceOperator, DeviceTree, Placed};
use crate::placement::walk::Placing;
use crate::program::contract::ToSegments;
use crate::program::segments::{Open, Origin, Segments};

/// A union on the device.
#[derive(Debug, Clone)]
pub struct DeviceUnionExec {
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
}

impl DeviceUnionExec {
    /// The device's form of `union`, over `inputs`.
    pub fn new(union: &dyn ExecutionPlan, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Self {
        Self { inputs, properties: crate::plan::node::properties(union.schema(), None) }
    }

    pub fn inputs(&self) -> &[Arc<dyn ExecutionPlan>] {
        &self.inputs
    }
}

impl DisplayAs for DeviceUnionExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => Ok(()),
            _ => write!(f, "DeviceUnionExec"),
        }
    }
}

impl ExecutionPlan for DeviceUnionExec {
    fn name(&self) -> &str {
        "DeviceUnionExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self { inputs, properties: Arc::clone(&self.properties) }))
    }

    fn execute(&self, _partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        Err(EngineError::internal("DeviceUnionExec runs as part of a DownloadExec").into())
    }
}

impl DeviceOperator for Union {
    fn name(&self) -> &'static str {
        "union"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        is_union(node.as_ref()).then(|| place(node, to))
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        (is_union(node) || node.is::<DeviceUnionExec>()).then_some(true)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<DeviceUnionExec>()
    }
}

fn is_union(node: &dyn ExecutionPlan) -> bool {
    node.is::<UnionExec>() || node.is::<InterleaveExec>()
}

/// Places a union on the device as a whole, with uploads above the inputs that are on the CPU.
fn place(node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Result<Placed> {
    let place = |input| to.after_limit(to.place(input)?);
    let children = node.children().into_iter().map(place).collect::<Result<Vec<_>>>()?;
    if !to.counts(node.as_ref()) {
        return to.stay(node, children, None);
    }
    match judge(node, &children, to) {
        Ok(tree) => Ok(Placed::Device(tree)),
        Err(reason) => to.stay(node, children, Some(reason)),
    }
}

/// The device's form of the union `node` of `children`.
fn judge(node: &Arc<dyn ExecutionPlan>, children: &[Placed], to: &Placing<'_>) -> Result<DeviceTree, Reason> {
    let trees = children.iter().map(|child| to.tree(child)).collect::<Result<Vec<_>, Reason>>()?;
    let (inputs, columns): (Vec<_>, Vec<_>) = trees.into_iter().map(|tree| (tree.plan, tree.columns)).unzip();
    let columns = union_columns(&columns, &mut to.dictionaries());
    for column in &columns {
        column.ty()?;
    }
    let tree = DeviceTree {
        plan: Arc::new(DeviceUnionExec::new(node.as_ref(), inputs)),
        cpu: Arc::clone(node),
        columns,
        row_limit: None,
        sorted: false,
        aggregated: true,
    };
    to.restore_order(node, tree)
}

/// Unions: their placement, and their segments: one for each input, which another segment reads one after the other.
#[derive(Debug)]
pub(crate) struct Union;

impl ToSegments for Union {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let union = node.downcast_ref::<DeviceUnionExec>()?;
        let branches =
            union.inputs().iter().map(|input| into.open(input, false).map(|open| into.close(open, BranchSink)));
        let branches = branches.collect::<Result<Vec<_>, _>>();
        Some(branches.map(|branches| Open { origin: Origin::Segments(branches), stages: vec![] }))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        (a.is::<DeviceUnionExec>() && b.is::<DeviceUnionExec>()).then_some(true)
    }
}
