//! DataFusion's own sanity check over the placed plan.
//!
//! A plan that the check refuses goes back to the CPU whole, with the reason: placement never turns a query that works
//! into an error. The plan that DataFusion made is returned untouched below one line that says why.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_plan::ExecutionPlan;

use super::Reason;
use crate::exec::FallbackExec;

/// `placed`, or `original` with a reason when DataFusion's check accepts only that.
pub(super) fn checked(
    original: &Arc<dyn ExecutionPlan>,
    placed: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    if Arc::ptr_eq(original, &placed) {
        return Ok(placed);
    }
    match SanityCheckPlan::new().optimize(Arc::clone(&placed), config) {
        Ok(plan) => Ok(plan),
        Err(error) => {
            let reason = Reason::CheckFailed { what: error.strip_backtrace() };
            Ok(Arc::new(FallbackExec::new(Arc::clone(original), vec![reason])))
        }
    }
}
