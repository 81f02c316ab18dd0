//! Removes nodes that only move rows between CPU partitions.
//!
//!   before   Upload ─ RepartitionExec(RoundRobin) ─ Scan        after   Upload ─ Scan
//!   before   DeviceFilter ─ CoalescePartitionsExec ─ DeviceSort  after   DeviceFilter ─ DeviceSort
//!
//! A device subtree has one table, one sort and one output partition in every mode; feeder tasks pull all partitions of
//! an upload. So these nodes have no function, unless one stops after some rows.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;

/// True for a node that only changes partitions.
pub(crate) fn only_moves(plan: &dyn ExecutionPlan) -> bool {
    let moves = plan.is::<RepartitionExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<SortPreservingMergeExec>()
        || plan.is::<CooperativeExec>()
        || plan.name() == "CoalesceBatchesExec";
    moves && plan.fetch().is_none()
}

/// The plan below nodes that only move rows, as the input of an upload.
pub(super) fn below_moves(mut plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    // A cooperative wrapper stays: it yields, which a feeder task must also do.
    while only_moves(plan.as_ref()) && !plan.is::<CooperativeExec>() {
        let Some(child) = plan.children().first().map(|child| Arc::clone(child)) else { break };
        plan = child;
    }
    plan
}
