//! Drops the first rows, and stops after some: OFFSET and LIMIT.
//!
//!   each extent   materialised columns ─► row count ─► all of them, or those between offset and limit
//!   enough        nothing more is read; at the top of a program rows are left out, and counted, as they leave
//!
//! Order      that of the input: over a sort the first rows are those of the order, elsewhere any.
//! Memory     the kept rows, and those of an extent.
//! Waits      for the row count of each extent, unless it is at the top.
//! Stands for GlobalLimitExec and LocalLimitExec over a device node, and for the limit (`fetch`) of another node, if an
//!            operator reads its rows. Over a CPU node a limit stays on the CPU, so that the scan stops.

mod lower;
mod run;

use std::fmt;
use std::sync::Arc;

use datafusion::error::Result;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::error::EngineError;
use crate::operator::limit::lower::LimitSink;
use crate::placement::contract::{DeviceOperator, DeviceTree, Placed};
use crate::placement::walk::Placing;
use crate::program::contract::ToSegments;
use crate::program::segments::{Open, Segments};

/// A limit on the device.
#[derive(Debug, Clone)]
pub struct DeviceLimitExec {
    skip: usize,
    fetch: Option<usize>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl DeviceLimitExec {
    /// The rows of `input` after the first `skip`, at most `fetch`. `sorted` is the order of `input`, if it has one.
    pub fn new(input: Arc<dyn ExecutionPlan>, skip: usize, fetch: Option<usize>, sorted: Option<LexOrdering>) -> Self {
        let properties = crate::plan::node::properties(input.schema(), sorted);
        Self { skip, fetch, input, properties }
    }

    /// Number of rows that are skipped.
    pub fn skip(&self) -> usize {
        self.skip
    }

    /// Maximum number of output rows.
    pub fn row_limit(&self) -> Option<usize> {
        self.fetch
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, ..self.clone() }
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        vec![]
    }
}

impl DisplayAs for DeviceLimitExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let fetch = self.fetch.map_or("None".to_string(), |fetch| fetch.to_string());
        match t {
            DisplayFormatType::TreeRender => write!(f, "skip={}\nlimit={fetch}", self.skip),
            _ => write!(f, "DeviceLimitExec: skip={}, fetch={fetch}", self.skip),
        }
    }
}

crate::plan::node::device_node!(DeviceLimitExec, execute: refuse);

impl DeviceOperator for Limit {
    fn name(&self) -> &'static str {
        "limit"
    }

    fn place(&self, node: &Arc<dyn ExecutionPlan>, to: &Placing<'_>) -> Option<Result<Placed>> {
        let (skip, fetch) = skip_and_fetch(node.as_ref())?;
        let input = node.children().first().copied()?;
        Some(to.in_order(|| to.place(input)).and_then(|child| match child {
            Placed::Host { .. } => to.stay(node, vec![child], None),
            Placed::Device(tree) => match to.limit(tree.clone(), skip, fetch, node) {
                Ok(tree) => Ok(Placed::Device(tree)),
                Err(reason) => to.stay(node, vec![Placed::Device(tree)], Some(reason)),
            },
        }))
    }

    /// A limit computes nothing: on the CPU it is no fallback.
    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        let limits = node.is::<GlobalLimitExec>() || node.is::<LocalLimitExec>() || node.is::<DeviceLimitExec>();
        limits.then_some(false)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<DeviceLimitExec>()
    }

    fn limit(&self, tree: &DeviceTree, skip: usize, fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        let order = tree.plan.properties().output_ordering().filter(|_| tree.sorted).cloned();
        Some(Arc::new(DeviceLimitExec::new(Arc::clone(&tree.plan), skip, fetch, order)))
    }
}

/// Number of rows that a node skips, and its maximum number of output rows, if it does nothing else. A limit of each
/// partition is one of all rows: the device has one partition.
fn skip_and_fetch(node: &dyn ExecutionPlan) -> Option<(usize, Option<usize>)> {
    if let Some(limit) = node.downcast_ref::<GlobalLimitExec>() {
        return Some((limit.skip(), limit.fetch()));
    }
    if let Some(limit) = node.downcast_ref::<LocalLimitExec>() {
        return Some((0, Some(limit.fetch())));
    }
    let moves = node.is::<CoalescePartitionsExec>() || node.name() == "CoalesceBatchesExec";
    node.fetch().filter(|_| moves).map(|fetch| (0, Some(fetch)))
}

/// Limits: their placement, and their sinks.
#[derive(Debug)]
pub(crate) struct Limit;

impl ToSegments for Limit {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        let limit = node.downcast_ref::<DeviceLimitExec>()?;
        let open = into.open_input(node, false);
        Some(open.map(|open| {
            if top {
                // Rows are skipped and counted as they leave.
                into.leave(limit.skip, limit.fetch);
                return open;
            }
            Open::reading(into.close(open, LimitSink { skip: limit.skip, fetch: limit.fetch }))
        }))
    }

    fn computes_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan) -> Option<bool> {
        (a.is::<DeviceLimitExec>() && b.is::<DeviceLimitExec>()).then_some(false)
    }
}
