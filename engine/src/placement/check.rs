//! DataFusion's own sanity check over the placed plan.
//!
//! A plan that the check refuses goes back to the CPU whole, with the reason: placement never turns a query that works
//! into an error. The plan that DataFusion made is returned untouched below one line that says why.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_plan::ExecutionPlan;

use crate::placement::fallback::FallbackExec;
use crate::reason::Reason;

/// `placed` as DataFusion's check accepts it, or what the check says.
pub(super) fn checked(
    original: &Arc<dyn ExecutionPlan>,
    placed: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> std::result::Result<Arc<dyn ExecutionPlan>, String> {
    if Arc::ptr_eq(original, &placed) {
        return Ok(placed);
    }
    SanityCheckPlan::new().optimize(placed, config).map_err(|error| error.strip_backtrace())
}

/// `original`, with the reason why the device has no part in it.
pub(super) fn refused(original: &Arc<dyn ExecutionPlan>, what: String) -> Arc<dyn ExecutionPlan> {
    Arc::new(FallbackExec::new(Arc::clone(original), vec![Reason::CheckFailed { what }]))
}
