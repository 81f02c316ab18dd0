//! The physical planner of a session, DataFusion's or an application's: it caches plans for repeated requests, and
//! plans changes of in-memory tables (`mends::changes`).
//!
//!   optimized logical plan ─► cached? ── yes ─► a copy of its physical plan
//!                                      └─ no ──► folders listed again ─► planned ─► cached
//!
//! When     columns are stored on the device. Otherwise, and without a device, each plan is planned again.
//! Users    of `context().sql()`, data frames and prepared statements; DataFusion parses and optimizes each time.
//! EXPLAIN  is planned each time: it shows what would run. [`crate::explain`] answers its plain form.

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

use crate::explain::{
    ExplainAnalyzeExec, Explained, Simulated, explain, explain_definition, is_marked, segments, with_options,
};
use crate::mends::changes::{self, Changes};
use crate::options::{DeviceChoice, Fallback, MillpondOptions};
use crate::placement::contract::Operators;
use crate::session::plan_cache::{Asked, MadeOf, Now, PlanCache};

/// A planner with a plan cache.
pub(crate) struct KeepingPlanner {
    /// DataFusion's planner, extended by changes of in-memory tables.
    planner: DefaultPhysicalPlanner,
    /// The application's planner, which replaces DataFusion's.
    own: Option<Arc<dyn QueryPlanner + Send + Sync>>,
    /// The plan cache, if there is a device.
    plans: Option<Arc<PlanCache>>,
    /// Why the automatic choice found no device.
    note: Option<String>,
    simulated: Simulated,
}

impl KeepingPlanner {
    /// Planner that caches plans in `plans`, if given. The application's `own` planner plans everything except changes
    /// of in-memory tables, of which it plans the rows, and EXPLAIN of such changes.
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
                // If the query cannot be planned, DataFusion reports the error.
                if let Ok(Some(answer)) = self.explained(asked, session).await {
                    return Ok(answer);
                }
            }
            LogicalPlan::Explain(asked) if asked.verbose => {
                let answer = self.query(plan, session).await?;
                return Ok(self.with_segments(answer, asked, session).await);
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

    /// Result of EXPLAIN; `None` in a session of another type than DataFusion's.
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
            // EXPLAIN shows the parts that stay on the CPU instead of refusing them.
            Fallback::Error => {
                let allowing = with_options(state, |options| options.fallback = Fallback::Allow).build();
                self.query(query, &allowing).await?
            }
            Fallback::Allow | Fallback::Warn => self.query(query, session).await?,
        };
        let has_device = self.plans.is_some() && options.enabled && options.device != DeviceChoice::Cpu;
        let simulated = match has_device {
            true => None,
            // If the simulated plan fails, only the CPU plan is shown.
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

    /// The answer of EXPLAIN VERBOSE with a row for the programs of the device, if the plan has some.
    async fn with_segments(
        &self,
        answer: Arc<dyn ExecutionPlan>,
        asked: &Explain,
        session: &dyn Session,
    ) -> Arc<dyn ExecutionPlan> {
        let Some(explain) = answer.downcast_ref::<ExplainExec>() else { return answer };
        // DataFusion's answer says why a plan cannot be made.
        let Ok(plan) = self.query(&asked.plan, session).await else { return answer };
        let text = segments(&plan);
        if text.is_empty() {
            return answer;
        }
        let mut plans = explain.stringified_plans().to_vec();
        plans.push(StringifiedPlan::new(
            PlanType::OptimizedPhysicalPlan { optimizer_name: "segments".to_string() },
            text,
        ));
        Arc::new(ExplainExec::new(explain.schema(), plans, explain.verbose()))
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
            crate::store::refresh_listings(plan, session).await?;
            return self.planned(plan, session).await;
        };
        let key = asked.key();
        if let Some(kept) = plans.find(now, &key, Some(&asked)).await {
            return Ok(kept);
        }
        // Recorded before planning: a change in the meantime is detected the next time.
        let made_of = MadeOf::asked(now, asked).await;
        crate::store::refresh_listings(plan, session).await?;
        let planned = self.planned(plan, session).await?;
        if let Some(made_of) = made_of {
            plans.keep(key, made_of, &planned);
        }
        Ok(planned)
    }
}
