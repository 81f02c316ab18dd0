//! The device plan of a session without a device: the same logical plan, placed on a simulated device and never run.
//!
//!   CPU session ─ its catalog, functions, settings ─► rules of a device session ─► placed plan ─► would run: n of m
//!
//! Opened  once per session, on the first EXPLAIN.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::error::Result;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::PhysicalPlanner;

use crate::device::Engine;
use crate::options::{DeviceChoice, Fallback, MillpondOptions};
use crate::placement::contract::Operators;
use crate::placement::{PlaceOnDevice, rules};
use crate::plan::missing::Missing;

/// A simulated device, used for planning only.
#[derive(Default)]
pub(crate) struct Simulated {
    /// `None` inside if the device could not be opened.
    engine: OnceLock<Option<Arc<Engine>>>,
}

impl Simulated {
    /// Physical plan of an optimized logical plan, as planned by a session with a device; `None` if no simulated device
    /// could be opened.
    pub async fn plan(
        &self,
        planner: &dyn PhysicalPlanner,
        plan: &LogicalPlan,
        state: &SessionState,
        operators: &Operators,
    ) -> Option<Result<Arc<dyn ExecutionPlan>>> {
        let mut options = MillpondOptions::default();
        options.device = DeviceChoice::Sim;
        let open = || Engine::shared(&options).ok().and_then(|opened| opened.engine);
        let engine = Arc::clone(self.engine.get_or_init(open).as_ref()?);
        let mut physical = rules(PhysicalOptimizer::default().rules, true, &mut Missing::default());
        physical.push(Arc::new(PlaceOnDevice::new(engine, operators.clone())));
        let state = with_options(state, |options| {
            (options.enabled, options.device, options.fallback) = (true, DeviceChoice::Sim, Fallback::Allow);
        });
        let state = state.with_physical_optimizer_rules(physical).build();
        Some(planner.create_physical_plan(plan, &state).await)
    }
}

/// Copy of a session's state with other options, for planning only. It shares the session's catalogs.
pub(crate) fn with_options(state: &SessionState, change: impl FnMut(&mut MillpondOptions)) -> SessionStateBuilder {
    let mut copy = SessionStateBuilder::new_from_existing(state.clone());
    if let Some(config) = copy.config() {
        let options = config.options_mut();
        // Both states share one catalog list: a new default catalog would replace the session's.
        options.catalog.create_default_catalog_and_schema = false;
        options.extensions.get_mut::<MillpondOptions>().into_iter().for_each(change);
    }
    copy
}

impl fmt::Debug for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Simulated")
    }
}
