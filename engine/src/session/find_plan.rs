//! Finds the physical plan of a statement: kept by its text, kept by its template, or planned anew.
//!
//! ```text
//!   Text ──────────────── kept plan of the text? ── yes ──────────────────────────────► Found: a copy
//!     └ no ─ parsed, planned logically
//!   Template ──────────── template seen before? ─── yes ─ its plan with the constants ─► Found, kept for the text
//!     └ no, or not all on the device
//!   Anew ──────────────── DataFusion optimizes and plans ──────────────────────────────► Found, kept for the text
//!                           └ planner.rs: kept plan of the optimized logical plan?
//! ```
//!
//! Kept      plans are in one [`PlanCache`](super::plan_cache::PlanCache), with the inputs of their planning: a plan
//!           whose inputs have changed is not found. docs/plan-memory.md lists all memories of a plan.
//! Defined   CREATE, INSERT, SET and the like take effect during the search, are never kept, and empty the cache.
//! Without   a device no plan is kept: DataFusion plans each text.

use std::sync::Arc;

use datafusion::common::ParamValues;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{DdlStatement, LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::ExecutionPlan;
use millpond_memory::recorder;

use crate::error::panics;
use crate::files::address;
use crate::plan::levels::{self, OnStack};
use crate::profile::step::PLAN;
use crate::session::plan_cache::{Asked, Key, MadeOf, Now};
use crate::session::template::Template;
use crate::session::{Millpond, parameters, sql};
use crate::store;

/// A statement with the logical plan from [`Millpond::statement`].
#[derive(Debug)]
pub struct PlannedStatement {
    plan: LogicalPlan,
    keeping: KeepAs,
}

/// How the physical plan of a statement is kept.
#[derive(Debug)]
enum KeepAs {
    /// For the statement's text, with the inputs of planning; its template's plan may be used.
    Text(String, Box<MadeOf>),
    /// Only for the statement's template: its text lacks values of parameters.
    Template,
    /// Not at all.
    Never,
}

impl PlannedStatement {
    /// Logical plan of the statement.
    pub fn plan(&self) -> &LogicalPlan {
        &self.plan
    }

    /// Replaces the statement's plan. The physical plan is then not kept for the statement's text.
    pub fn with_plan(self, plan: LogicalPlan) -> Self {
        Self { plan, keeping: KeepAs::Never }
    }
}

/// State of the search for a plan.
enum PlanSearch<'a> {
    /// Only the text is known.
    Text(&'a str),
    /// No plan is kept for the text: the template of the logical plan may have one.
    Template(PlannedStatement),
    /// Neither has one: DataFusion plans the statement.
    Anew(PlannedStatement),
    /// The plan, ready to run.
    Found(Arc<dyn ExecutionPlan>),
}

impl Millpond {
    async fn find_plan(&self, mut search: PlanSearch<'_>) -> Result<Arc<dyn ExecutionPlan>> {
        loop {
            search = match search {
                PlanSearch::Text(text) => match self.kept_plan(text).await? {
                    Some(plan) => PlanSearch::Found(plan),
                    None if self.keeps_plans() => PlanSearch::Template(self.statement(text).await?),
                    None => PlanSearch::Found(sql::plan(&self.context, text).await?),
                },
                PlanSearch::Template(statement) => match self.by_template(&statement).await? {
                    Some(plan) => PlanSearch::Found(self.kept_for_text(statement.keeping, plan)),
                    None => PlanSearch::Anew(statement),
                },
                PlanSearch::Anew(PlannedStatement { plan: query, keeping }) => {
                    let defines = sql::defines(&query);
                    let plan = self.planned_anew(query).await?;
                    if defines {
                        // The definition may concern inputs of kept plans.
                        self.equipment.plans.clear();
                        PlanSearch::Found(plan)
                    } else {
                        PlanSearch::Found(self.kept_for_text(keeping, plan))
                    }
                }
                PlanSearch::Found(plan) => return Ok(plan),
            };
        }
    }

    /// The physical plan of one statement: a copy of its kept plan if nothing has changed since. Definitions and
    /// settings take effect during this call and return a plan without columns.
    ///
    /// # Errors
    /// DataFusion's, from the parser and the planner.
    pub async fn plan(&self, sql: &str) -> Result<Arc<dyn ExecutionPlan>> {
        self.find_plan(PlanSearch::Text(sql)).await
    }

    /// The physical plan of a statement with values for its parameters.
    pub(super) async fn plan_with(&self, sql: &str, values: ParamValues) -> Result<Arc<dyn ExecutionPlan>> {
        let PlannedStatement { plan, .. } = self.statement(sql).await?;
        parameters::check(&plan, &values)?;
        let keeping = if self.keeps_plans() { KeepAs::Template } else { KeepAs::Never };
        let plan = plan.with_param_values(values)?;
        self.find_plan(PlanSearch::Template(PlannedStatement { plan, keeping })).await
    }

    /// The physical plan of a logically planned statement. Definitions and settings take effect during this call, as in
    /// [`plan`](Self::plan).
    ///
    /// # Errors
    /// DataFusion's, from the planner.
    pub async fn plan_statement(&self, statement: PlannedStatement) -> Result<Arc<dyn ExecutionPlan>> {
        self.find_plan(PlanSearch::Template(statement)).await
    }

    /// A copy of this statement's kept plan, if there is one and nothing has changed since.
    ///
    /// # Errors
    /// Only [`EngineError::Panicked`](crate::EngineError::Panicked).
    pub async fn kept_plan(&self, sql: &str) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if !self.keeps_plans() {
            return Ok(None);
        }
        let (now, key) = (Now::Context(&self.context), Key::Text(sql.to_string()));
        let found = panics::caught(async { Ok(self.equipment.plans.find(now, &key, None).await) });
        recorder::during(PLAN, found).await
    }

    /// Parses one statement and plans it logically, for callers that inspect it before execution.
    ///
    /// # Errors
    /// DataFusion's, from the parser and the planner.
    pub async fn statement(&self, sql: &str) -> Result<PlannedStatement> {
        let state = self.context.state();
        let (statement, names) = sql::statement_and_names(&state, sql)?;
        // Recorded before planning: a change in the meantime is detected the next time.
        let now = Now::State(&state);
        let begun = match self.keeps_plans() {
            true => panics::caught(async { Ok(MadeOf::begin(now, &names).await) }).await?,
            false => None,
        };
        let plan = address::in_plan(sql::statement_plan(&state, statement).await?)?;
        let made_of = match begun {
            Some(begun) => panics::caught(async { Ok(begun.read_by(now, &plan).await) }).await?,
            None => None,
        };
        let keeping = made_of.map_or(KeepAs::Never, |made_of| KeepAs::Text(sql.to_string(), Box::new(made_of)));
        Ok(PlannedStatement { plan, keeping })
    }

    /// Plans a statement by DataFusion; definitions and settings take effect.
    async fn planned_anew(&self, query: LogicalPlan) -> Result<Arc<dyn ExecutionPlan>> {
        if let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) = query {
            self.create_table(create).await?;
            return sql::plan_logical(&self.context, LogicalPlanBuilder::empty(false).build()?).await;
        }
        sql::plan_logical(&self.context, query).await
    }

    /// Keeps a plan for the statement's text, if it has one and the plan may run again.
    fn kept_for_text(&self, keeping: KeepAs, plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        if let KeepAs::Text(sql, made_of) = keeping {
            self.equipment.plans.keep(Key::Text(sql), *made_of, &plan);
        }
        plan
    }

    /// The plan of the statement's template with the statement's constants; `None` without a usable template.
    async fn by_template(&self, statement: &PlannedStatement) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if matches!(statement.keeping, KeepAs::Never) {
            return Ok(None);
        }
        let bytes = levels::stack_of_plan(&statement.plan)?;
        panics::caught(async { Ok(OnStack::new(bytes, self.plan_by_template(&statement.plan)).await) }).await
    }

    async fn plan_by_template(&self, query: &LogicalPlan) -> Option<Arc<dyn ExecutionPlan>> {
        let state = self.context.state();
        if !self.equipment.rules.as_ref().is_some_and(|rules| rules.are_those_of(&state)) {
            // An application's rule may need constants that a template hides.
            return None;
        }
        let template = Template::of(query, &state)?;
        let (number, now) = (template.hash(), Now::State(&state));
        let key = Key::Template(number);
        let plans = &self.equipment.plans;
        if !plans.shares(&key) {
            return None;
        }
        let asked = Asked::of_template(query, &template.plan)?;
        let known = plans.find(now, &key, Some(&asked)).await;
        let is_known = known.is_some();
        let bound = async {
            let (plan, made_of) = match known {
                Some(plan) => (plan, None),
                None => {
                    // Recorded before planning: a change in the meantime is detected the next time.
                    let made_of = MadeOf::asked(now, asked).await;
                    store::refresh_listings(query, &state).await?;
                    (template.planned(&state).await?, made_of)
                }
            };
            let bound = template.bound(Arc::clone(&plan), &state)?;
            Ok::<_, DataFusionError>((bound, plan, made_of))
        };
        match recorder::during(PLAN, bound).await {
            Ok((Some(bound), plan, made_of)) => {
                tracing::debug!("planned by template {number:x}");
                if let Some(made_of) = made_of {
                    plans.keep_unplaced(key, made_of, plan);
                }
                plans.found_by_template();
                Some(bound)
            }
            // The constants of this statement do not fit the template; others may.
            _ if is_known => None,
            refused => {
                let why = refused.err().map_or("not wholly on the device".to_string(), |error| error.to_string());
                tracing::debug!("statements that differ in constants alone are planned each time: {why}");
                plans.refuse(key);
                None
            }
        }
    }

    /// True if plans of statements are kept: there is a device, and it is not lost.
    fn keeps_plans(&self) -> bool {
        self.engine().is_some_and(|engine| !engine.device().is_lost())
    }
}
