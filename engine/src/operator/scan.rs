//! Sources among the operators: each source node becomes the source of a segment. Placement creates them at the lower
//! borders of device subtrees.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;

use crate::error::EngineError;
use crate::placement::contract::DeviceOperator;
use crate::program::contract::ToSegments;
use crate::program::segments::{Open, Segments};
use crate::source::SourceExec;
use crate::source::same::same_scan;

/// Converts source nodes to sources.
#[derive(Debug)]
pub(crate) struct Scan;

impl ToSegments for Scan {
    fn cut(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        _top: bool,
        into: &mut Segments<'_>,
    ) -> Option<Result<Open, EngineError>> {
        Some(Ok(into.source(node.downcast_ref::<SourceExec>()?.source())))
    }

    fn reads_same(&self, a: &dyn ExecutionPlan, b: &dyn ExecutionPlan, own: &HashSet<u64>) -> Option<bool> {
        let (a, b) = (a.downcast_ref::<SourceExec>()?, b.downcast_ref::<SourceExec>()?);
        let alike = a.is_parquet() == b.is_parquet();
        alike.then(|| same_scan(a.input(), b.input(), own).unwrap_or(false))
    }
}

impl DeviceOperator for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn works(&self, node: &dyn ExecutionPlan) -> Option<bool> {
        node.is::<SourceExec>().then_some(false)
    }

    fn is_device_node(&self, node: &dyn ExecutionPlan) -> bool {
        node.is::<SourceExec>()
    }
}
