//! The lower border: a source of rows for the device, with one of two readers.
//!
//!   DeviceScanExec ─ DataSourceExec   of Parquet files: the engine's decoder ──┐
//!   UploadExec ─ a CPU plan           DataFusion executes it ──────────────────┴─► extents ──► pipeline
//!                                     columns stored? ─ stored columns ────────────────────────┘
//!
//! NULL     a NULL row has a cleared validity bit and value 0.
//! Order    of rows is not guaranteed.
//! Memory   per feeder, decoded rows; one extent in pinned and one in device memory for each that is being sent.
//! Waits    for a turn to send.
//! Shows    why the operators below an upload stayed on the CPU.
//! Falls back  to DataFusion's reader for files that the decoder does not support and for row groups of invalid bytes,
//!             and notes the reason.
//! Known    the statistics of the input, computed once per plan.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Statistics;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::DynamicFilterTracking;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::column::{DictionaryId, uploaded_columns};
use crate::error::failure::Failure;
use crate::error::reason::Reason;
use crate::parquet::ParquetScan;
use crate::plan::node::wrong_use;
use crate::plan::subqueries::Subqueries;
use crate::program::contract::{Opening, Source, SourceFacts, SourceRun};
use crate::program::segment_run::SegmentRun;
use crate::source::reset::ready_again;
use crate::source::stored::stored;
use crate::source::{parquet, upload};

/// Reads a CPU plan for the device.
#[derive(Debug, Clone)]
pub struct SourceExec {
    reader: Reader,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// DataFusion's statistics of the input, once computed.
    statistics: OnceLock<Option<Arc<Statistics>>>,
}

/// Reader of a source's rows.
#[derive(Debug, Clone)]
enum Reader {
    /// The engine's own decoder; the input is a scan of Parquet files.
    Parquet,
    /// DataFusion executes the input.
    DataFusion {
        /// Reasons why operators below stayed on the CPU; none for a scan.
        reasons: Vec<Reason>,
        /// Why DataFusion reads a scan of Parquet files.
        because: Option<String>,
    },
}

/// DataFusion's statistics of `plan`. A failed estimate is not an error of the query.
pub(crate) fn statistics(plan: &dyn ExecutionPlan) -> Option<Arc<Statistics>> {
    StatisticsContext::new().compute(plan, &StatisticsArgs::new()).ok()
}

impl SourceExec {
    /// A border above `input`, with its statistics as computed in placement. If the engine's decoder cannot read it,
    /// `reasons` are why operators in it stayed on the CPU.
    pub(crate) fn new(
        input: Arc<dyn ExecutionPlan>,
        reasons: Vec<Reason>,
        statistics: Option<Arc<Statistics>>,
    ) -> Self {
        let reader = match ParquetScan::of(&input) {
            Ok(_) => Reader::Parquet,
            Err(because) => Reader::DataFusion { reasons, because },
        };
        Self::over(input, reader, OnceLock::from(statistics))
    }

    fn over(input: Arc<dyn ExecutionPlan>, reader: Reader, statistics: OnceLock<Option<Arc<Statistics>>>) -> Self {
        let properties = crate::plan::node::properties(input.schema(), None);
        Self { reader, input, properties, metrics: ExecutionPlanMetricsSet::new(), statistics }
    }

    /// True if the engine's decoder reads Parquet files; false if DataFusion executes the input.
    pub fn is_parquet(&self) -> bool {
        matches!(self.reader, Reader::Parquet)
    }

    /// Reasons why operators below stayed on the CPU.
    pub fn reasons(&self) -> &[Reason] {
        match &self.reader {
            Reader::DataFusion { reasons, .. } => reasons,
            Reader::Parquet => &[],
        }
    }

    /// DataFusion's plan below.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// DataFusion's statistics of the input: from placement, or computed on first use.
    pub fn statistics(&self) -> Option<&Arc<Statistics>> {
        self.statistics.get_or_init(|| statistics(self.input.as_ref())).as_ref()
    }

    /// Metrics of rows and row groups, updated by feeders.
    pub fn metrics_set(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    /// Copy for another run, with its own metrics and subquery values.
    ///
    /// # Errors
    /// DataFusion's, if the plan cannot be reset.
    pub(crate) fn as_new(&self, subqueries: &Subqueries) -> Result<Self> {
        let input = ready_again(subqueries.rewrite(&self.input)?)?;
        Ok(Self { input, metrics: ExecutionPlanMetricsSet::new(), ..self.clone() })
    }

    /// The node as the source of a program.
    pub(crate) fn source(&self) -> NodeSource {
        NodeSource { node: self.clone(), begun: AtomicBool::new(false) }
    }
}

impl DisplayAs for SourceExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let is_tree = matches!(t, DisplayFormatType::TreeRender);
        match &self.reader {
            Reader::DataFusion { reasons, .. } if !reasons.is_empty() => {
                let reasons = crate::error::reason::reasons_text(reasons);
                match is_tree {
                    true => write!(f, "CPU below: {reasons}"),
                    false => write!(f, "UploadExec: below stays on the CPU because {reasons}"),
                }
            }
            _ if is_tree => Ok(()),
            Reader::DataFusion { because: Some(why), .. } => {
                write!(f, "UploadExec: DataFusion reads below because {why}")
            }
            _ => write!(f, "{}", self.name()),
        }
    }
}

impl ExecutionPlan for SourceExec {
    fn name(&self) -> &str {
        match self.reader {
            Reader::Parquet => "DeviceScanExec",
            Reader::DataFusion { .. } => "UploadExec",
        }
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let (Some(input), true) = (children.pop(), children.is_empty()) else {
            return Err(wrong_use(&format!("{} has one input", self.name())));
        };
        // Another input has other statistics.
        let same = Arc::ptr_eq(&input, &self.input);
        let statistics = if same { self.statistics.clone() } else { OnceLock::new() };
        Ok(Arc::new(Self::over(input, self.reader.clone(), statistics)))
    }

    fn execute(&self, _partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        Err(wrong_use(&format!("{} runs as part of a DownloadExec", self.name())))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// A node as a source.
#[derive(Debug)]
pub(crate) struct NodeSource {
    node: SourceExec,
    /// Set by the first attempt: later attempts read a fresh copy of the plan, because DataFusion's scans hand out
    /// their files only once, and with its dynamic filters reset to pass every row.
    begun: AtomicBool,
}

impl Source for NodeSource {
    fn open<'a>(&'a self, attempt: Opening<'a>) -> BoxFuture<'a, std::result::Result<Box<dyn SourceRun>, Failure>> {
        async move {
            if let Some(run) = stored(&self.node.input, &self.node.metrics, &attempt).await? {
                return Ok(Box::new(run) as _);
            }
            let input = fresh(&self.node.input, &self.begun)?;
            Ok(Box::new(NodeRun { node: self.node.clone(), input, read: AtomicBool::new(false) }) as _)
        }
        .boxed()
    }
}

/// The plan itself the first time, then fresh copies.
fn fresh(plan: &Arc<dyn ExecutionPlan>, begun: &AtomicBool) -> std::result::Result<Arc<dyn ExecutionPlan>, Failure> {
    match begun.swap(true, Ordering::Relaxed) {
        true => ready_again(Arc::clone(plan)).map_err(Failure::Input),
        false => Ok(Arc::clone(plan)),
    }
}

/// A source in one attempt.
struct NodeRun {
    node: SourceExec,
    /// Fresh copy of the node's input.
    input: Arc<dyn ExecutionPlan>,
    /// Set by the first pass over it.
    read: AtomicBool,
}

impl SourceRun for NodeRun {
    fn facts(&self, wide: bool, define: &mut dyn FnMut(usize, DataType) -> DictionaryId) -> SourceFacts {
        let known = self.node.statistics().filter(|_| !wide);
        let columns = uploaded_columns(&self.input.schema(), known.map(AsRef::as_ref), define);
        let rows = known.and_then(|known| known.num_rows.get_value().copied()).unwrap_or(0) as u64;
        SourceFacts { columns, rows, dictionaries: HashMap::new() }
    }

    fn feeds_freely(&self) -> bool {
        if self.node.is_parquet() {
            return ParquetScan::of(&self.input).is_ok_and(|scan| !scan.may_be_narrowed());
        }
        let walked = self.input.apply(|node| {
            node.apply_expressions(&mut |expression| match DynamicFilterTracking::classify(expression) {
                DynamicFilterTracking::Watching(_) => Ok(TreeNodeRecursion::Stop),
                _ => Ok(TreeNodeRecursion::Continue),
            })
        });
        matches!(walked, Ok(TreeNodeRecursion::Continue))
    }

    fn extents<'a>(
        &'a self,
        number: usize,
        to: &'a Arc<SegmentRun>,
    ) -> BoxFuture<'a, std::result::Result<(), Failure>> {
        async move {
            let input = fresh(&self.input, &self.read)?;
            match self.node.reader {
                Reader::Parquet => parquet::feed::feed(to, number, &input, &self.node.metrics).await,
                Reader::DataFusion { .. } => upload::feed::feed(to, number, &input, &self.node.metrics).await,
            }
        }
        .boxed()
    }
}
