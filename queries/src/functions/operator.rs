//! Registers the table functions with the engine: they are operators that process rows, on the CPU unless another
//! operator places them.
//!
//!   KMeansExec ─ DownloadExec ─ …      the download has the reason: "kmeans has no device form: it has no features"
//!
//! Otherwise the engine would treat them as nodes that only pass rows on, and reports would omit them. Their device
//! forms are in `clicks` and `learn`.

use millpond::contract::DeviceOperator;
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::program::contract::ToSegments;

use super::RelationExec;

/// The table functions on the CPU. Device operators of `clicks` and `learn` take precedence.
#[derive(Debug)]
pub(crate) struct RelationOperator;

impl ToSegments for RelationOperator {}

impl DeviceOperator for RelationOperator {
    fn name(&self) -> &'static str {
        "function of relations"
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        node.is::<RelationExec>().then_some(true)
    }
}
