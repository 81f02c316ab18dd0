//! Turns subtrees of DataFusion's physical plan into device nodes.
//!
//!   fence     while DataFusion moves projections: computations stay out of scans
//!   walk      from the root: each node is placed by its operator, or stays on the CPU with a reason
//!   simplify  repartitions and merges are removed between device nodes and below uploads
//!   bridge    UploadExec / DownloadExec at the borders
//!   check     DataFusion's sanity check of the result; a plan that fails it runs on the CPU with a reason
//!
//! Operators   place themselves, through [`crate::placement::contract`]: no file here names one.
//! Runs after  all of DataFusion's rules: distribution is enforced, limits and projections are in place.
//! No device   the rule is not registered; with `millpond.enabled = false` it returns its input plan.
//! Errors      none of its own, except under `millpond.fallback = 'error'`.

mod bridge;
mod check;
pub mod contract;
pub mod fallback;
mod fence;
mod namesakes;
pub(crate) mod simplify;
mod statistics;
pub(crate) mod walk;

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNode;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use millpond_memory::recorder;

use crate::device::Engine;
use crate::error::EngineError;
use crate::error::reason::Reason;
use crate::options::{DeviceChoice, Fallback, MillpondOptions};
use crate::placement::contract::Operators;
use crate::placement::fallback::FallbackExec;
use crate::placement::statistics::PlanStatistics;
use crate::profile::step::PLACE;
use crate::program::judged::Judged;

pub(crate) use crate::placement::bridge::for_the_next_run;
pub use crate::placement::bridge::{plan_reasons, reasons_of};
pub(crate) use crate::placement::fence::{asks_constants, rules};
pub use crate::placement::walk::Placing;

/// Name of the rule that places plans.
pub(crate) const RULE: &str = "place_on_device";

/// The physical optimizer rule.
pub struct PlaceOnDevice {
    engine: Arc<Engine>,
    operators: Operators,
}

impl std::fmt::Debug for PlaceOnDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PlaceOnDevice")
    }
}

impl PlaceOnDevice {
    /// Places the plans of a session on `engine`, with `operators`.
    pub fn new(engine: Arc<Engine>, operators: Operators) -> Self {
        Self { engine, operators }
    }

    /// DataFusion's plan, with the lost device as the reason why nothing runs on it.
    fn lost(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let works = plan.exists(|node| Ok(self.operators.counts(node.as_ref())))?;
        let reason = Reason::DeviceLost { device: self.engine.name().to_string() };
        Ok(if works { Arc::new(FallbackExec::new(plan, vec![reason])) } else { plan })
    }

    /// Runs all steps in order.
    fn place(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        options: &MillpondOptions,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let judged = Arc::new(Judged::default());
        let bridge = bridge::Bridge::new(&self.engine, &self.operators, &judged);
        let statistics = PlanStatistics::new(&judged);
        let mut refused = String::new();
        // Rows sorted again have exactly the order of their node, but none of the equivalent orders: if a plan relies
        // on one of these, the second attempt leaves the nodes that keep an order on the CPU.
        for restores in [true, false] {
            let placing = Placing::new(options, &self.operators, &bridge, &statistics, &judged, restores);
            let placed = placing.of(plan.as_ref()).place(plan)?;
            match check::checked(plan, bridge.root(placed)?, config) {
                Ok(placed) => return Ok(placed),
                Err(what) => refused = what,
            }
        }
        Ok(check::refused(plan, refused))
    }
}

impl PhysicalOptimizerRule for PlaceOnDevice {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let defaults = MillpondOptions::default();
        let options = config.extensions.get::<MillpondOptions>().unwrap_or(&defaults);
        if !options.enabled || options.device == DeviceChoice::Cpu {
            return Ok(plan);
        }
        let _step = recorder::step(PLACE);
        let placed = match self.engine.device().is_lost() {
            true => self.lost(plan)?,
            false => self.place(&plan, options, config)?,
        };
        let reasons = plan_reasons(&placed);
        if !reasons.is_empty() {
            match options.fallback {
                Fallback::Allow => {}
                Fallback::Warn => tracing::warn!("part of the query runs on the CPU: {}", reasons.join("; ")),
                Fallback::Error => return Err(EngineError::FallbackForbidden { reasons }.into()),
            }
        }
        Ok(placed)
    }

    fn name(&self) -> &str {
        RULE
    }

    fn schema_check(&self) -> bool {
        true
    }
}
