//! What the engine is told of the functions of relations: they are operators over rows, and work on the CPU where no other operator
//! places them.
//!
//!   KMeansExec ─ DownloadExec ─ …      the download says why: "kmeans has no device form: it has no features"
//!
//! Without it, the engine would take them for nodes that pass rows on, and reports would leave them out. Their device forms: see `clicks`
//! and `learn`.

use millpond::contract::DeviceOperator;
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::program::contract::Cut;

use super::RelationExec;

/// The functions of relations on the CPU. Those of clicks and those that learn have operators of their own for the device.
#[derive(Debug)]
pub(crate) struct RelationOperator;

impl Cut for RelationOperator {}

impl DeviceOperator for RelationOperator {
    fn name(&self) -> &'static str {
        "function of relations"
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        node.is::<RelationExec>().then_some(true)
    }
}
