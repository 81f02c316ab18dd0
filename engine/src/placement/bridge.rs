//! Inserts borders where a plan changes between CPU and device.
//!
//!   Sort(CPU) ─ [filter ─ scan]   ──►   Sort ─ DownloadExec ─ DeviceFilterExec ─ UploadExec ─ scan
//!
//! Above a download the plan has one partition. If a parent requires rows hashed by key, as a partitioned join does for
//! both inputs, or passes such rows on, they are repartitioned.

use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::UnKnownColumn;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};

use crate::device::Engine;
use crate::error::reason::Reason;
use crate::placement::contract::{DeviceTree, Operators, Placed};
use crate::placement::fallback::FallbackExec;
use crate::placement::walk::{Borders, with_children};
use crate::program::contract::ToSegments;
use crate::program::judged::Judged;
use crate::result::node::DownloadExec;
use crate::source::SourceExec;
use crate::source::reset::ready_again_above;

/// Creates borders for one device.
pub(super) struct Bridge<'a> {
    engine: &'a Arc<Engine>,
    operators: Arc<[Arc<dyn ToSegments>]>,
    judged: Arc<Judged>,
}

impl<'a> Bridge<'a> {
    /// Borders of one plan; `operators` split its device subtrees into segments.
    pub(super) fn new(engine: &'a Arc<Engine>, operators: &Operators, judged: &Arc<Judged>) -> Self {
        Self { engine, operators: operators.cuts(), judged: Arc::clone(judged) }
    }

    fn border(&self, tree: DeviceTree, reasons: Vec<Reason>) -> Arc<dyn ExecutionPlan> {
        let operators = Arc::clone(&self.operators);
        let download = DownloadExec::new(Arc::clone(self.engine), operators, tree.plan, tree.cpu).with_reasons(reasons);
        Arc::new(download.with_judged(Arc::clone(&self.judged)))
    }

    /// The finished plan: reasons not shown by a border are shown in a line at the root (below EXPLAIN ANALYZE's own
    /// node).
    pub(super) fn root(&self, placed: Placed) -> Result<Arc<dyn ExecutionPlan>> {
        match placed {
            Placed::Device(tree) => Ok(self.border(tree, vec![])),
            Placed::Host { plan, pending } if pending.is_empty() => Ok(plan),
            Placed::Host { plan, pending } => {
                let above = |plan| {
                    let fallback = FallbackExec::new(plan, pending.clone()).with_judged(&self.judged);
                    Arc::new(fallback) as Arc<dyn ExecutionPlan>
                };
                if plan.is::<AnalyzeExec>() {
                    let children = plan.children().into_iter().map(|child| above(Arc::clone(child))).collect();
                    return with_children(plan, children);
                }
                Ok(above(plan))
            }
        }
    }
}

impl Borders for Bridge<'_> {
    fn upload(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        reasons: Vec<Reason>,
        statistics: Option<Arc<Statistics>>,
    ) -> Arc<dyn ExecutionPlan> {
        Arc::new(SourceExec::new(plan, reasons, statistics))
    }

    fn download(&self, tree: DeviceTree, reasons: Vec<Reason>, hashed: bool) -> Result<Arc<dyn ExecutionPlan>> {
        let partitioning = tree.cpu.properties().output_partitioning().clone();
        let download = self.border(tree, reasons);
        match &partitioning {
            Partitioning::Hash(keys, n) if hashed && *n > 1 && keys.iter().all(is_known) => {
                Ok(Arc::new(RepartitionExec::try_new(download, partitioning)?))
            }
            _ => Ok(download),
        }
    }
}

/// Resets an executed plan for the next run. Borders can be executed repeatedly: they reuse what they have prepared,
/// and their metrics accumulate.
pub(crate) fn for_the_next_run(plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    ready_again_above(plan, |node| node.is::<DownloadExec>())
}

/// False for a key that a projection has dropped: no node above can require rows hashed by it, and it cannot be
/// computed.
fn is_known(key: &Arc<dyn PhysicalExpr>) -> bool {
    // The closure returns no error, so neither does the walk.
    !key.exists(|expr| Ok(expr.is::<UnKnownColumn>())).unwrap_or(true)
}

/// All reasons shown by the borders of a placed plan, sorted and deduplicated.
pub fn plan_reasons(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    let mut reasons: Vec<String> = reasons_of(plan).iter().map(ToString::to_string).collect();
    reasons.sort();
    reasons.dedup();
    reasons
}

/// Like [`plan_reasons`], as data.
pub fn reasons_of(plan: &Arc<dyn ExecutionPlan>) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let walked = plan.apply(|node| {
        let shown = if let Some(source) = node.downcast_ref::<SourceExec>() {
            source.reasons()
        } else if let Some(download) = node.downcast_ref::<DownloadExec>() {
            download.reasons()
        } else if let Some(fallback) = node.downcast_ref::<FallbackExec>() {
            fallback.reasons()
        } else {
            &[]
        };
        reasons.extend(shown.iter().cloned());
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "the walk above returns no error");
    reasons.sort();
    reasons.dedup();
    reasons
}
