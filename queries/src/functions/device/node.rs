//! Device node of a table function: the CPU node over device subtrees.
//!
//! ```text
//!   KMeansExec: [id, x, y], k=8                  DeviceKMeansExec: [id, x, y], k=8
//!     SortExec: id, x, y                           DeviceSortExec: id, x, y
//! ```
//!
//! Execution  none: `learn` and `clicks` cut it into segments.

use std::fmt;
use std::sync::Arc;

use millpond::datafusion::common::tree_node::TreeNodeRecursion;
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::{SendableRecordBatchStream, TaskContext};
use millpond::datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use millpond::datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::functions::{Function, RelationExec};

/// A table function on the device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceRelationExec {
    cpu: RelationExec,
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
}

impl DeviceRelationExec {
    /// The device form of `cpu` over `inputs`, with rows in `order`.
    pub fn new(cpu: RelationExec, inputs: Vec<Arc<dyn ExecutionPlan>>, order: Option<LexOrdering>) -> Self {
        let properties = millpond::plan::node::properties(cpu.schema(), order);
        Self { cpu, inputs, properties }
    }

    /// The CPU node that it replaces.
    pub fn cpu(&self) -> &RelationExec {
        &self.cpu
    }

    pub fn function(&self) -> &Function {
        self.cpu.function()
    }

    pub fn inputs(&self) -> &[Arc<dyn ExecutionPlan>] {
        &self.inputs
    }

    /// The node, if it is a device node whose function satisfies `ours`.
    pub fn of(node: &dyn ExecutionPlan, ours: fn(&Function) -> bool) -> Option<&Self> {
        node.downcast_ref::<Self>().filter(|relation| ours(relation.function()))
    }

    /// Whether both compute equal results from equal inputs.
    pub fn computes_same(&self, other: &Self) -> bool {
        self.function() == other.function() && self.cpu.columns() == other.cpu.columns()
    }
}

impl DisplayAs for DeviceRelationExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => self.cpu.fmt_as(t, f),
            _ => {
                f.write_str("Device")?;
                self.cpu.fmt_as(t, f)
            }
        }
    }
}

impl ExecutionPlan for DeviceRelationExec {
    fn name(&self) -> &str {
        match self.function() {
            Function::Sessionize { .. } => "DeviceSessionizeExec",
            Function::BasketPairs => "DeviceBasketPairsExec",
            Function::LastBefore { .. } => "DeviceLastBeforeExec",
            Function::KMeans { .. } => "DeviceKMeansExec",
            Function::KMeansPredict { .. } => "DeviceKMeansPredictExec",
            Function::Logistic { .. } => "DeviceLogisticRegressionExec",
            Function::NaiveBayes { .. } => "DeviceNaiveBayesExec",
        }
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.cpu.apply_expressions(f)
    }

    fn with_new_children(self: Arc<Self>, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match inputs.len() == self.inputs.len() {
            true => Ok(Arc::new(Self { inputs, ..Self::clone(&self) })),
            false => Err(millpond::plan::node::wrong_use("a function of relations keeps the number of its inputs")),
        }
    }

    fn execute(&self, _partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        Err(millpond::plan::node::wrong_use("a function of relations runs as part of a DownloadExec"))
    }
}
