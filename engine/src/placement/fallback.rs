//! A line at the root of a plan with the reasons why operators stayed on the CPU, if no border can show them.
//!
//!   before   SortExec ─ …          after   FallbackExec: stays on the CPU because … ─ SortExec ─ …
//!
//! Schema, order, partitions and batches are those of its input.

use std::fmt;
use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::error::reason::Reason;
use crate::program::judged::Judged;

/// Passes its input through, and carries the reasons why it stayed on the CPU.
#[derive(Debug, Clone)]
pub struct FallbackExec {
    reasons: Vec<Reason>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    /// Nodes with their reasons.
    judged: Arc<Judged>,
}

impl FallbackExec {
    pub fn new(input: Arc<dyn ExecutionPlan>, reasons: Vec<Reason>) -> Self {
        let properties = Arc::clone(input.properties());
        Self { reasons, input, properties, judged: Arc::default() }
    }

    /// Adds the nodes that have the reasons.
    pub(crate) fn with_judged(self, judged: &Arc<Judged>) -> Self {
        Self { judged: Arc::clone(judged), ..self }
    }

    /// Nodes with their reasons.
    pub(crate) fn judged(&self) -> &Arc<Judged> {
        &self.judged
    }

    /// Reasons why operators below stayed on the CPU.
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self::new(input, self.reasons.clone()).with_judged(&self.judged)
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }
}

impl DisplayAs for FallbackExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let reasons = crate::error::reason::reasons_text(&self.reasons);
        match t {
            DisplayFormatType::TreeRender => write!(f, "CPU: {reasons}"),
            _ => write!(f, "FallbackExec: stays on the CPU because {reasons}"),
        }
    }
}

crate::plan::node::device_node!(FallbackExec, {
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }
});
