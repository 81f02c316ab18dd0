//! The lower border: uploads rows of a CPU plan.
//!
//!   DataFusion partitions ── one feeder each ──► pinned memory ──► extents of up to 2^24 rows ──► pipeline
//!
//! Order    of rows is not guaranteed.
//! Memory   one batch per feeder; one extent in pinned and one in device memory for each that is being sent.
//! Shows    why the operators below stayed on the CPU.
//! Known    the statistics of the input, computed once per plan.

pub(in crate::source) mod feed;
mod rows;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Statistics;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::DynamicFilterTracking;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::column::{DictionaryId, uploaded_columns};
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::error::reason::Reason;
use crate::placement::contract::DeviceOperator;
use crate::plan::subqueries::Subqueries;
use crate::program::contract::{Cut, Opening, Source, SourceFacts, SourceRun};
use crate::program::segment_run::SegmentRun;
use crate::program::segments::{Open, Segments};
use crate::source::reset::ready_again;
use crate::source::same::same_scan;
use crate::source::stored::stored;

/// Feeds a CPU plan to the device.
#[derive(Debug, Clone)]
pub struct UploadExec {
    reasons: Vec<Reason>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// DataFusion's statistics of the input, once computed.
    statistics: OnceLock<Option<Arc<Statistics>>>,
    /// Why DataFusion reads a scan of Parquet files.
    read_because: Option<String>,
}

/// DataFusion's statistics of `plan`. A failed estimate is not an error of the query.
pub(crate) fn statistics(plan: &dyn ExecutionPlan) -> Option<Arc<Statistics>> {
    StatisticsContext::new().compute(plan, &StatisticsArgs::new()).ok()
}

impl UploadExec {
    /// A border above `input`, which stayed on the CPU for `reasons` (none for a scan).
    pub fn new(input: Arc<dyn ExecutionPlan>, reasons: Vec<Reason>) -> Self {
        let properties = crate::plan::node::properties(input.schema(), None);
        let (metrics, statistics) = (ExecutionPlanMetricsSet::new(), OnceLock::new());
        Self { reasons, input, properties, metrics, statistics, read_because: None }
    }

    /// Sets the statistics of the input, already computed.
    pub fn with_statistics(self, statistics: Option<Arc<Statistics>>) -> Self {
        Self { statistics: OnceLock::from(statistics), ..self }
    }

    /// Sets the reason why DataFusion reads the scan of Parquet files below.
    pub fn read_because(self, why: Option<String>) -> Self {
        Self { read_because: why, ..self }
    }

    /// Reasons why operators below stayed on the CPU.
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    /// The CPU plan below.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// DataFusion's statistics of the input: from placement, or computed on first use.
    pub fn statistics(&self) -> Option<&Arc<Statistics>> {
        self.statistics.get_or_init(|| statistics(self.input.as_ref())).as_ref()
    }

    /// Metrics of rows and bytes, updated by feeders.
    pub fn metrics_set(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    /// Copy for another run, with its own metrics and subquery values.
    ///
    /// # Errors
    /// DataFusion's, if the plan cannot be reset.
    pub(crate) fn as_new(&self, subqueries: &Subqueries) -> datafusion::error::Result<Self> {
        let input = ready_again(subqueries.rewrite(&self.input)?)?;
        Ok(Self { input, metrics: ExecutionPlanMetricsSet::new(), ..self.clone() })
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        // Another input has other statistics.
        let same = Arc::ptr_eq(&input, &self.input);
        let statistics = if same { self.statistics.clone() } else { OnceLock::new() };
        let read_because = self.read_because.clone();
        Self { statistics, read_because, ..Self::new(input, self.reasons.clone()) }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }
}

impl DisplayAs for UploadExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let reasons = crate::error::reason::reasons_text(&self.reasons);
        match (t, reasons.is_empty()) {
            (DisplayFormatType::TreeRender, true) => Ok(()),
            (DisplayFormatType::TreeRender, false) => write!(f, "CPU below: {reasons}"),
            (_, true) => match &self.read_because {
                Some(why) => write!(f, "UploadExec: DataFusion reads below because {why}"),
                None => write!(f, "UploadExec"),
            },
            (_, false) => write!(f, "UploadExec: below stays on the CPU because {reasons}"),
        }
    }
}

crate::plan::node::device_node!(UploadExec, {
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

/// Converts uploads to sources.
#[derive(Debug)]
pub(crate) struct Upload;

impl Cut for Upload {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let node = node.downcast_ref::<UploadExec>()?.clone();
        Some(Ok(into.source(UploadSource { node, begun: AtomicBool::new(false) })))
    }

    fn reads_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan, own: &HashSet<u64>) -> Option<bool> {
        let (a, b) = (a.downcast_ref::<UploadExec>()?, b.downcast_ref::<UploadExec>()?);
        Some(same_scan(a.input(), b.input(), own).unwrap_or(false))
    }
}

impl DeviceOperator for Upload {
    fn name(&self) -> &'static str {
        "upload"
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        node.is::<UploadExec>().then_some(false)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<UploadExec>()
    }
}

/// An upload as a source.
#[derive(Debug)]
struct UploadSource {
    node: UploadExec,
    /// Set by the first attempt: later attempts read a fresh copy of the plan, because DataFusion's scans hand out
    /// their files only once.
    begun: AtomicBool,
}

impl Source for UploadSource {
    fn open<'a>(&'a self, attempt: Opening<'a>) -> BoxFuture<'a, Result<Box<dyn SourceRun>, Failure>> {
        async move {
            let node = self.node.clone();
            if let Some(run) = stored(&node.input, &node.metrics, &attempt).await? {
                return Ok(Box::new(run) as _);
            }
            let again = self.begun.swap(true, Ordering::Relaxed);
            let input = Arc::clone(&node.input);
            let input = if again { ready_again(input).map_err(Failure::Input)? } else { input };
            Ok(Box::new(UploadRun { node, input, read: AtomicBool::new(false) }) as _)
        }
        .boxed()
    }
}

/// An upload in one attempt.
struct UploadRun {
    node: UploadExec,
    /// Fresh copy of the node's input.
    input: Arc<dyn ExecutionPlan>,
    /// Set by the first pass over it.
    read: AtomicBool,
}

impl SourceRun for UploadRun {
    fn facts(&self, wide: bool, define: &mut dyn FnMut(usize, DataType) -> DictionaryId) -> SourceFacts {
        let known = self.node.statistics().filter(|_| !wide);
        let columns = uploaded_columns(&self.input.schema(), known.map(AsRef::as_ref), define);
        let rows = known.and_then(|known| known.num_rows.get_value().copied()).unwrap_or(0) as u64;
        SourceFacts { columns, rows, dictionaries: HashMap::new() }
    }

    fn feeds_freely(&self) -> bool {
        let told = self.input.apply(|node| {
            node.apply_expressions(&mut |expression| match DynamicFilterTracking::classify(expression) {
                DynamicFilterTracking::Watching(_) => Ok(TreeNodeRecursion::Stop),
                _ => Ok(TreeNodeRecursion::Continue),
            })
        });
        matches!(told, Ok(TreeNodeRecursion::Continue))
    }

    fn extents<'a>(&'a self, number: usize, to: &'a Arc<SegmentRun>) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let mut input = Arc::clone(&self.input);
            if self.read.swap(true, Ordering::Relaxed) {
                input = ready_again(input).map_err(Failure::Input)?;
            }
            feed::feed(to, number, &input, &self.node.metrics).await
        }
        .boxed()
    }
}
