//! The lower border: rows of a CPU plan go to the device.
//!
//!   DataFusion partitions ──► feeder tasks ──► pinned memory ──► extents of up to 2^24 rows ──► pipeline
//!
//! Order    of rows: not promised.
//! Memory   one batch per feeder, pinned and on the device.
//! Shows    why what lies below stayed on the CPU.

pub(crate) mod feed;

use std::fmt;
use std::sync::Arc;

use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::reason::Reason;

/// Feeds a CPU plan to the device.
#[derive(Debug, Clone)]
pub struct UploadExec {
    reasons: Vec<Reason>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl UploadExec {
    /// A border above `input`, which stayed on the CPU for `reasons` (none for a scan).
    pub fn new(input: Arc<dyn ExecutionPlan>, reasons: Vec<Reason>) -> Self {
        let properties = crate::operator::properties(input.schema(), None);
        Self { reasons, input, properties, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// Why operators below stayed on the CPU.
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    /// The CPU plan below.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Where feeders count rows and bytes.
    pub fn metrics_set(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self::new(input, self.reasons.clone())
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }
}

impl DisplayAs for UploadExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let reasons = crate::reason::reasons_text(&self.reasons);
        match (t, reasons.is_empty()) {
            (DisplayFormatType::TreeRender, true) => Ok(()),
            (DisplayFormatType::TreeRender, false) => write!(f, "CPU below: {reasons}"),
            (_, true) => write!(f, "UploadExec"),
            (_, false) => write!(f, "UploadExec: below stays on the CPU because {reasons}"),
        }
    }
}

crate::operator::device_node!(UploadExec, {
    fn execute(
        &self,
        _partition: usize,
        _context: Arc<datafusion::execution::TaskContext>,
    ) -> datafusion::error::Result<datafusion::execution::SendableRecordBatchStream> {
        Err(crate::EngineError::internal("UploadExec runs as part of a DownloadExec").into())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
});
