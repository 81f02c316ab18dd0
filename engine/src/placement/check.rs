//! DataFusion's own sanity check over the placed plan.
//!
//! A plan that the check refuses runs entirely on the CPU, with the reason: placement never turns a working query into
//! an error. DataFusion's original plan is returned below one line with the reason.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_plan::ExecutionPlan;

use crate::error::reason::Reason;
use crate::placement::fallback::FallbackExec;

/// Returns `placed` if DataFusion's check accepts it, otherwise the check's message.
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

/// `original`, with the reason why nothing of it runs on the device.
pub(super) fn refused(original: &Arc<dyn ExecutionPlan>, what: String) -> Arc<dyn ExecutionPlan> {
    Arc::new(FallbackExec::new(Arc::clone(original), vec![Reason::CheckFailed { what }]))
}
