//! The planner of physical plans, DataFusion's or the program's own: it plans once what it is asked for again, and changes of tables in
//! memory (`mends::changes`).
//!
//!   optimised logical plan ─► kept? ── yes ─► a copy of its physical plan
//!                                    └─ no ──► folders listed afresh ─► planned ─► kept
//!
//! When     columns stay on the device. Without a device, and otherwise, each is planned anew.
//! Who      users of `context().sql()`, of frames and of prepared statements; DataFusion parses and optimises for them each time.
//! EXPLAIN  is planned each time: it shows what would run.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNode;
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use crate::mends::changes::{self, Changes};
use crate::options::MillpondOptions;
use crate::plan_cache::{Asked, MadeOf, Now, PlanCache};

/// A planner, behind the plans of a session.
pub(crate) struct KeepingPlanner {
    /// DataFusion's, which knows changes of tables in memory.
    planner: DefaultPhysicalPlanner,
    /// The program's own, in the place of DataFusion's.
    own: Option<Arc<dyn QueryPlanner + Send + Sync>>,
    /// With a device.
    plans: Option<Arc<PlanCache>>,
}

impl KeepingPlanner {
    /// Keeps what it plans in `plans`, if there are some. The program's `own` planner plans everything but changes of tables in memory,
    /// whose rows it plans, and EXPLAIN of them.
    pub fn new(own: Option<Arc<dyn QueryPlanner + Send + Sync>>, plans: Option<&Arc<PlanCache>>) -> Self {
        let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(Changes)]);
        Self { planner, own, plans: plans.cloned() }
    }

    async fn planned(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(own) = &self.own else { return self.planner.create_physical_plan(plan, session).await };
        if let Some(change) = changes::change(plan) {
            return change.over(own.create_physical_plan(change.rows(), session).await?);
        }
        match plan.exists(|node| Ok(changes::change(node).is_some()))? {
            true => self.planner.create_physical_plan(plan, session).await,
            false => own.create_physical_plan(plan, session).await,
        }
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
        let stores = options.is_some_and(|options| options.cache.stores());
        let Some(plans) = self.plans.as_ref().filter(|_| stores) else {
            return self.planned(plan, session).await;
        };
        let now = session.as_any().downcast_ref::<SessionState>().map(Now::State);
        let Some((now, asked)) = now.zip(Asked::of(plan)) else {
            crate::store::look(plan, session).await?;
            return self.planned(plan, session).await;
        };
        let key = asked.key();
        if let Some(kept) = plans.find(now, &key, Some(&asked)).await {
            return Ok(kept);
        }
        // Looked at before anything is made of it: what changes meanwhile shows the next time.
        let made_of = MadeOf::asked(now, asked).await;
        crate::store::look(plan, session).await?;
        let planned = self.planned(plan, session).await?;
        if let Some(made_of) = made_of {
            plans.keep(key, made_of, &planned);
        }
        Ok(planned)
    }
}
