//! The lower border: rows of a CPU plan go to the device.
//!
//!   DataFusion partitions ──► feeder tasks ──► pinned memory ──► extents of up to 2^24 rows ──► pipeline
//!
//! Order    of rows: not promised.
//! Memory   one batch per feeder, pinned and on the device.
//! Shows    why what lies below stayed on the CPU.
//! Known    the statistics of what lies below, read once for a plan.

pub(crate) mod feed;

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::common::Statistics;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::reason::Reason;

/// Feeds a CPU plan to the device.
#[derive(Debug, Clone)]
pub struct UploadExec {
    reasons: Vec<Reason>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// What DataFusion knows of the input's rows, once it has been asked.
    statistics: OnceLock<Option<Arc<Statistics>>>,
}

/// What DataFusion knows of the rows of `plan`. A failure to estimate is not an error of the query.
pub(crate) fn statistics(plan: &dyn ExecutionPlan) -> Option<Arc<Statistics>> {
    StatisticsContext::new().compute(plan, &StatisticsArgs::new()).ok()
}

impl UploadExec {
    /// A border above `input`, which stayed on the CPU for `reasons` (none for a scan).
    pub fn new(input: Arc<dyn ExecutionPlan>, reasons: Vec<Reason>) -> Self {
        let properties = crate::node::properties(input.schema(), None);
        Self { reasons, input, properties, metrics: ExecutionPlanMetricsSet::new(), statistics: OnceLock::new() }
    }

    /// The same, with the statistics of its input, which have been read.
    pub fn with_statistics(self, statistics: Option<Arc<Statistics>>) -> Self {
        Self { statistics: OnceLock::from(statistics), ..self }
    }

    /// Why operators below stayed on the CPU.
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    /// The CPU plan below.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// What DataFusion knows of the input's rows: as placement read it, or read now and kept.
    pub fn statistics(&self) -> Option<&Arc<Statistics>> {
        self.statistics.get_or_init(|| statistics(self.input.as_ref())).as_ref()
    }

    /// Where feeders count rows and bytes.
    pub fn metrics_set(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        // Other rows have other statistics.
        let same = Arc::ptr_eq(&input, &self.input);
        let statistics = if same { self.statistics.clone() } else { OnceLock::new() };
        Self { statistics, ..Self::new(input, self.reasons.clone()) }
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

crate::node::device_node!(UploadExec, {
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
