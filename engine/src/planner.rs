//! DataFusion's planner for physical plans, for sessions with a device: it plans once what it is asked for again.
//!
//!   optimised logical plan ─► kept? ── yes ─► a copy of its physical plan
//!                                    └─ no ──► folders listed afresh ─► planned ─► kept
//!
//! When     columns stay on the device. Otherwise it is DataFusion's.
//! Who      users of `context().sql()`, of frames and of prepared statements; DataFusion parses and optimises for them each time.
//! EXPLAIN  is planned each time: it shows what would run.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use crate::options::MillpondOptions;
use crate::plan_cache::{Asked, MadeOf, Now, PlanCache};

/// DataFusion's planner, behind the plans of a session.
#[derive(Default)]
pub(crate) struct KeepingPlanner {
    planner: DefaultPhysicalPlanner,
    plans: Arc<PlanCache>,
}

impl KeepingPlanner {
    /// Keeps what it plans in `plans`.
    pub fn new(plans: &Arc<PlanCache>) -> Self {
        Self { planner: DefaultPhysicalPlanner::default(), plans: Arc::clone(plans) }
    }
}

impl fmt::Debug for KeepingPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepingPlanner")
    }
}

#[async_trait]
impl QueryPlanner for KeepingPlanner {
    async fn create_physical_plan(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        let options = session.config_options().extensions.get::<MillpondOptions>();
        if options.is_none_or(|options| !options.cache.stores()) {
            return self.planner.create_physical_plan(plan, session).await;
        }
        let now = session.as_any().downcast_ref::<SessionState>().map(Now::State);
        let Some((now, asked)) = now.zip(Asked::of(plan)) else {
            crate::store::look(plan, session).await?;
            return self.planner.create_physical_plan(plan, session).await;
        };
        let key = asked.key();
        if let Some(kept) = self.plans.find(now, &key, Some(&asked)).await {
            return Ok(kept);
        }
        // Looked at before anything is made of it: what changes meanwhile shows the next time.
        let made_of = MadeOf::asked(now, asked).await;
        crate::store::look(plan, session).await?;
        let planned = self.planner.create_physical_plan(plan, session).await?;
        if let Some(made_of) = made_of {
            self.plans.keep(key, made_of, &planned);
        }
        Ok(planned)
    }
}
