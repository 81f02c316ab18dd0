//! A scan of Parquet files that the engine reads itself: DataFusion's scan, executed by the engine's own decoder.
//!
//!   DeviceScanExec ─ DataSourceExec     columns stored? ─ yes ─► stored columns
//!                                                       └─ no ──► row groups ── by feeders ──► extents ──► pipeline
//!
//! NULL     a NULL row has a cleared validity bit and value 0.
//! Order    of rows is not guaranteed.
//! Memory   per feeder, the bytes of a row group's columns and their values; on the device, one extent for each that is
//!          sent.
//! Waits    for a turn to send.
//! Falls back  to DataFusion's reader for files that the decoder does not support and for row groups of invalid bytes,
//!             and notes the reason.
//! Known    the statistics of the scan, computed once per plan.

mod device;
mod feed;
mod rows;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Statistics;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::column::{DictionaryId, uploaded_columns};
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::parquet::ParquetScan;
use crate::placement::contract::DeviceOperator;
use crate::plan::subqueries::Subqueries;
use crate::program::contract::{Cut, Opening, Source, SourceFacts, SourceRun};
use crate::program::segment_run::SegmentRun;
use crate::program::segments::{Open, Segments};
use crate::source::reset::ready_again;
use crate::source::same::same_scan;
use crate::source::stored::stored;
use crate::source::upload::statistics;

/// Reads Parquet files for the device.
#[derive(Debug, Clone)]
pub struct DeviceScanExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// DataFusion's statistics of the scan, once computed.
    statistics: OnceLock<Option<Arc<Statistics>>>,
}

impl DeviceScanExec {
    /// Replaces `input`, a scan whose statistics have been computed.
    ///
    /// # Errors
    /// `None` if it is not a scan of Parquet files; otherwise the reason why DataFusion has to read them.
    pub(crate) fn of(
        input: &Arc<dyn ExecutionPlan>,
        statistics: Option<Arc<Statistics>>,
    ) -> Result<Self, Option<String>> {
        ParquetScan::of(input)?;
        Ok(Self { statistics: OnceLock::from(statistics), ..Self::over(Arc::clone(input)) })
    }

    fn over(input: Arc<dyn ExecutionPlan>) -> Self {
        let properties = crate::plan::node::properties(input.schema(), None);
        Self { input, properties, metrics: ExecutionPlanMetricsSet::new(), statistics: OnceLock::new() }
    }

    /// DataFusion's scan.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// DataFusion's statistics of the scan.
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
    pub(crate) fn as_new(&self, subqueries: &Subqueries) -> datafusion::error::Result<Self> {
        let input = ready_again(subqueries.rewrite(&self.input)?)?;
        Ok(Self { input, metrics: ExecutionPlanMetricsSet::new(), ..self.clone() })
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        // Another input has other statistics.
        let same = Arc::ptr_eq(&input, &self.input);
        let statistics = if same { self.statistics.clone() } else { OnceLock::new() };
        Self { statistics, ..Self::over(input) }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }
}

impl DisplayAs for DeviceScanExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => Ok(()),
            _ => write!(f, "DeviceScanExec"),
        }
    }
}

crate::plan::node::device_node!(DeviceScanExec, {
    fn execute(
        &self,
        _partition: usize,
        _context: Arc<datafusion::execution::TaskContext>,
    ) -> datafusion::error::Result<datafusion::execution::SendableRecordBatchStream> {
        Err(crate::EngineError::internal("DeviceScanExec runs as part of a DownloadExec").into())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
});

/// Sum of a [`metric`](crate::profile::metric) over the scans of an executed plan.
pub fn counted(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let mut sum = 0;
    let walked = plan.apply(|node| {
        if let Some(scan) = node.downcast_ref::<DeviceScanExec>() {
            sum += scan.metrics.clone_inner().sum_by_name(name).map_or(0, |value| value.as_usize());
        }
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "the walk above returns no error");
    sum
}

/// Converts scans of Parquet files to sources.
#[derive(Debug)]
pub(crate) struct Scan;

impl Cut for Scan {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let node = node.downcast_ref::<DeviceScanExec>()?.clone();
        Some(Ok(into.source(ScanSource { node, begun: AtomicBool::new(false) })))
    }

    fn reads_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan, own: &HashSet<u64>) -> Option<bool> {
        let (a, b) = (a.downcast_ref::<DeviceScanExec>()?, b.downcast_ref::<DeviceScanExec>()?);
        Some(same_scan(a.input(), b.input(), own).unwrap_or(false))
    }
}

impl DeviceOperator for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        node.is::<DeviceScanExec>().then_some(false)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<DeviceScanExec>()
    }
}

/// A scan as a source.
#[derive(Debug)]
struct ScanSource {
    node: DeviceScanExec,
    /// Set by the first attempt: later attempts read a fresh copy of the plan, with its dynamic filters reset to pass
    /// every row.
    begun: AtomicBool,
}

impl Source for ScanSource {
    fn open<'a>(&'a self, attempt: Opening<'a>) -> BoxFuture<'a, Result<Box<dyn SourceRun>, Failure>> {
        async move {
            if let Some(run) = stored(self.node.input(), &self.node.metrics, &attempt).await? {
                return Ok(Box::new(run) as _);
            }
            let again = self.begun.swap(true, Ordering::Relaxed);
            let input = Arc::clone(self.node.input());
            let input = if again { ready_again(input).map_err(Failure::Input)? } else { input };
            Ok(Box::new(ScanRun { node: self.node.clone(), input, read: AtomicBool::new(false) }) as _)
        }
        .boxed()
    }
}

/// A scan in one attempt.
struct ScanRun {
    node: DeviceScanExec,
    /// Fresh copy of the node's input.
    input: Arc<dyn ExecutionPlan>,
    /// Set by the first pass over it.
    read: AtomicBool,
}

impl SourceRun for ScanRun {
    fn facts(&self, wide: bool, define: &mut dyn FnMut(usize, DataType) -> DictionaryId) -> SourceFacts {
        let known = self.node.statistics().filter(|_| !wide);
        let columns = uploaded_columns(&self.input.schema(), known.map(AsRef::as_ref), define);
        let rows = known.and_then(|known| known.num_rows.get_value().copied()).unwrap_or(0) as u64;
        SourceFacts { columns, rows, dictionaries: HashMap::new() }
    }

    fn feeds_freely(&self) -> bool {
        ParquetScan::of(&self.input).is_ok_and(|scan| !scan.is_told_more())
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
