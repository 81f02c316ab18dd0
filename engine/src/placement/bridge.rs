//! Puts borders where a plan changes sides.
//!
//!   Sort(CPU) ─ [filter ─ scan]   ──►   Sort ─ DownloadExec ─ DeviceFilterExec ─ UploadExec ─ scan
//!
//! Above a download the plan has one partition. Where a parent asks for rows hashed by key, as a partitioned join
//! does of both its inputs, or passes such rows on, they are hashed again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::common::tree_node::TreeNode;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::UnKnownColumn;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};

use crate::device::Engine;
use crate::placement::fallback::FallbackExec;
use crate::placement::{DeviceTree, Judged, Placed};
use crate::reason::Reason;
use crate::result::node::DownloadExec;
use crate::source::upload::UploadExec;

/// Makes borders for one device.
pub(super) struct Bridge<'a> {
    engine: &'a Arc<Engine>,
    judged: Arc<Judged>,
}

impl<'a> Bridge<'a> {
    pub(super) fn new(engine: &'a Arc<Engine>) -> Self {
        Self { engine, judged: Arc::default() }
    }

    /// Counts that a node is lowered.
    pub(super) fn count_lowering(&self) {
        self.judged.lowerings.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts that statistics are computed.
    pub(super) fn count_statistics(&self) {
        self.judged.statistics_read.fetch_add(1, Ordering::Relaxed);
    }

    /// The lower border: `plan` stays on the CPU for `reasons`, and feeds the device.
    pub(super) fn upload(&self, plan: Arc<dyn ExecutionPlan>, reasons: Vec<Reason>) -> Arc<dyn ExecutionPlan> {
        Arc::new(UploadExec::new(crate::placement::simplify::below_moves(plan), reasons))
    }

    /// The upper border: what lies above stays on the CPU for `reasons`.
    pub(super) fn download(&self, tree: DeviceTree, reasons: Vec<Reason>) -> Arc<dyn ExecutionPlan> {
        let download = DownloadExec::new(Arc::clone(self.engine), tree.plan, tree.cpu).with_reasons(reasons);
        Arc::new(download.with_judged(Arc::clone(&self.judged)))
    }

    /// The upper border below a parent that, if `hashed`, counts on rows hashed by key.
    pub(super) fn download_for(
        &self,
        tree: DeviceTree,
        reasons: Vec<Reason>,
        hashed: bool,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let partitioning = tree.cpu.properties().output_partitioning().clone();
        let download = self.download(tree, reasons);
        match &partitioning {
            Partitioning::Hash(keys, n) if hashed && *n > 1 && keys.iter().all(is_known) => {
                Ok(Arc::new(RepartitionExec::try_new(download, partitioning)?))
            }
            _ => Ok(download),
        }
    }

    /// The finished plan: reasons that no border shows get a line at the root (below EXPLAIN ANALYZE's own node).
    pub(super) fn root(&self, placed: Placed) -> Result<Arc<dyn ExecutionPlan>> {
        match placed {
            Placed::Device(tree) => Ok(self.download(tree, vec![])),
            Placed::Host { plan, pending } if pending.is_empty() => Ok(plan),
            Placed::Host { plan, pending } => {
                if plan.is::<AnalyzeExec>() {
                    let children: Vec<Arc<dyn ExecutionPlan>> = plan
                        .children()
                        .into_iter()
                        .map(|child| Arc::new(FallbackExec::new(Arc::clone(child), pending.clone())) as _)
                        .collect();
                    return crate::placement::convert::with_children(plan, children);
                }
                Ok(Arc::new(FallbackExec::new(plan, pending)))
            }
        }
    }
}

/// False for a key that a projection has dropped: nobody above can ask for rows hashed by it, and it cannot be computed.
fn is_known(key: &Arc<dyn PhysicalExpr>) -> bool {
    // The closure returns no error, so neither does the walk.
    !key.exists(|expr| Ok(expr.is::<UnKnownColumn>())).unwrap_or(true)
}
