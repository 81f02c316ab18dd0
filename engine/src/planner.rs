//! The planner of physical plans, DataFusion's or the program's own: it plans once what it is asked for again, and changes of tables in
//! memory (`mends::changes`).
//!
//!   optimised logical plan ─► kept? ── yes ─► a copy of its physical plan
//!                                    └─ no ──► folders listed afresh ─► planned ─► kept
//!
//! When     columns stay on the device. Without a device, and otherwise, each is planned anew.
//! Who      users of `context().sql()`, of frames and of prepared statements; DataFusion parses and optimises for them each time.
//! EXPLAIN  is planned each time: it shows what would run. A plain one is answered by [`crate::explain`].

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::plan_err;
use datafusion::common::tree_node::TreeNode;
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::{DdlStatement, Explain, LogicalPlan, PlanType, StringifiedPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use crate::contract::Operators;
use crate::explain::{ExplainAnalyzeExec, Explained, Simulated, explain, explain_definition, is_marked, with_options};
use crate::mends::changes::{self, Changes};
use crate::options::{DeviceChoice, Fallback, MillpondOptions};
use crate::plan_cache::{Asked, MadeOf, Now, PlanCache};

/// A planner, behind the plans of a session.
pub(crate) struct KeepingPlanner {
    /// DataFusion's, which knows changes of tables in memory.
    planner: DefaultPhysicalPlanner,
    /// The program's own, in the place of DataFusion's.
    own: Option<Arc<dyn QueryPlanner + Send + Sync>>,
    /// With a device.
    plans: Option<Arc<PlanCache>>,
    /// The reason for a missing device, where one was welcome.
    note: Option<String>,
    simulated: Simulated,
}

impl KeepingPlanner {
    /// Keeps what it plans in `plans`, if there are some. The program's `own` planner plans everything but changes of tables in memory,
    /// whose rows it plans, and EXPLAIN of them.
    pub fn new(
        own: Option<Arc<dyn QueryPlanner + Send + Sync>>,
        plans: Option<&Arc<PlanCache>>,
        note: Option<String>,
    ) -> Self {
        let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(Changes)]);
        Self { planner, own, plans: plans.cloned(), note, simulated: Simulated::default() }
    }

    async fn planned(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        match plan {
            LogicalPlan::Explain(asked) if is_marked(&asked.schema) && asked.logical_optimization_succeeded => {
                // What cannot be planned has DataFusion's answer, which is the error.
                if let Ok(Some(answer)) = self.explained(asked, session).await {
                    return Ok(answer);
                }
            }
            LogicalPlan::Analyze(asked) if is_marked(&asked.schema) => {
                if matches!(asked.input.as_ref(), LogicalPlan::Ddl(_) | LogicalPlan::Statement(_)) {
                    return plan_err!(
                        "EXPLAIN ANALYZE runs queries, and this is a definition or a setting: give it the query alone"
                    );
                }
                if let Some(operators) = session.config().get_extension::<Operators>() {
                    let input = self.query(&asked.input, session).await?;
                    let schema = Arc::clone(asked.schema.inner());
                    return Ok(Arc::new(ExplainAnalyzeExec::new(input, Operators::clone(&operators), schema)));
                }
            }
            _ => {}
        }
        self.query(plan, session).await
    }

    /// The answer of EXPLAIN; `None` in a session that is not DataFusion's own.
    async fn explained(&self, asked: &Explain, session: &dyn Session) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let query = match asked.plan.as_ref() {
            LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => &create.input,
            LogicalPlan::Ddl(DdlStatement::CreateView(create)) => &create.input,
            LogicalPlan::Ddl(_) | LogicalPlan::Statement(_) => return Ok(Some(answer(asked, explain_definition()))),
            _ => &asked.plan,
        };
        let Some(state) = session.as_any().downcast_ref::<SessionState>() else { return Ok(None) };
        let Some(operators) = state.config().get_extension::<Operators>() else { return Ok(None) };
        let options = state.config_options().extensions.get::<MillpondOptions>().cloned().unwrap_or_default();
        let plan = match options.fallback {
            // Parts that stay on the CPU are what is asked about.
            Fallback::Error => {
                let allowing = with_options(state, |options| options.fallback = Fallback::Allow).build();
                self.query(query, &allowing).await?
            }
            Fallback::Allow | Fallback::Warn => self.query(query, session).await?,
        };
        let has_device = self.plans.is_some() && options.enabled && options.device != DeviceChoice::Cpu;
        let simulated = match has_device {
            true => None,
            // Without a plan for a device there is the CPU's alone.
            false => self.simulated.plan(&self.planner, query, state, &operators).await.and_then(Result::ok),
        };
        let text = explain(&Explained {
            plan: &plan,
            simulated: simulated.as_ref(),
            operators: &operators,
            note: self.note.as_deref(),
            refused: options.fallback == Fallback::Error,
        });
        Ok(Some(answer(asked, text)))
    }

    async fn query(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
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

/// The plan that gives the text of EXPLAIN.
fn answer(asked: &Explain, text: String) -> Arc<dyn ExecutionPlan> {
    let plans = vec![StringifiedPlan::new(PlanType::FinalPhysicalPlan, text)];
    Arc::new(ExplainExec::new(Arc::clone(asked.schema.inner()), plans, false))
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
