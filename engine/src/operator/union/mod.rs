//! Rows of several inputs, one after the other: UNION ALL.
//!
//!   input 0 … ──► materialise ─┐
//!   input 1 … ──► materialise ─┴─► parts with the same columns ──► the next pipeline reads one after the other
//!
//! NULL       a column can be NULL where it can in any input.
//! Order      not promised.
//! Memory     what each input gives, until the pipeline above has read it; parts that wait may leave for host memory.
//! Types      columns are as wide as the widest input's; strings of several dictionaries become codes into one.
//! Stands for UnionExec and InterleaveExec: on one device there is one partition.

pub mod lower;

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::error::EngineError;
use crate::operator::union::lower::BranchSink;
use crate::program::contract::Cut;
use crate::program::segments::{Open, Segments, Source};

/// A union on the device.
#[derive(Debug, Clone)]
pub struct DeviceUnionExec {
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
}

impl DeviceUnionExec {
    /// The device's form of `union`, over `inputs`.
    pub fn new(union: &dyn ExecutionPlan, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Self {
        Self { inputs, properties: crate::operator::properties(union.schema(), None) }
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

/// How unions become segments: one for each input, which another one reads one after the other.
#[derive(Debug)]
pub(crate) struct Union;

impl Cut for Union {
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
        Some(branches.map(|branches| Open { source: Source::Segments(branches), stages: vec![] }))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        (a.is::<DeviceUnionExec>() && b.is::<DeviceUnionExec>()).then_some(true)
    }
}
