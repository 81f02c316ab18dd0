//! SQL to plans, by DataFusion's own planner, compiled here once.
//!
//! ```text
//!   SQL ─ logical_plan ─►             ┌─ run_plan ─► done (CREATE, DROP, SET …)
//!   a statement ─ statement_plan ─► plan ─ physical_plan ─► ExecutionPlan
//! ```
//!
//! Why  an async function is compiled by whoever awaits it, and so is all that it calls with type parameters: in a release build
//!      each crate that awaited the planner took a minute longer. A boxed future is compiled where it is made.
//! Panics  become errors ([`crate::panics`]).

use std::sync::Arc;

use datafusion::common::TableReference;
use datafusion::error::Result;
use datafusion::execution::context::{SessionContext, SessionState};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::Statement;
use futures::future::BoxFuture;
use millpond_memory::recorder::during;

use crate::panics::caught;
use crate::profile::step::PLAN;

/// The plan of one statement given as text.
///
/// # Errors
/// DataFusion's, of the parser and the planner.
#[inline(never)]
pub fn logical_plan<'a>(state: &'a SessionState, sql: &'a str) -> BoxFuture<'a, Result<LogicalPlan>> {
    Box::pin(caught(during(PLAN, state.create_logical_plan(sql))))
}

/// The plan of one statement that has been parsed.
///
/// # Errors
/// DataFusion's, of the planner.
#[inline(never)]
pub fn statement_plan(state: &SessionState, statement: Statement) -> BoxFuture<'_, Result<LogicalPlan>> {
    Box::pin(caught(during(PLAN, state.statement_to_plan(statement))))
}

/// The optimised physical plan of a logical one.
///
/// # Errors
/// DataFusion's, of the optimiser and the physical planner.
#[inline(never)]
pub fn physical_plan<'a>(
    state: &'a SessionState,
    plan: &'a LogicalPlan,
) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
    Box::pin(caught(during(PLAN, state.create_physical_plan(plan))))
}

/// A logical plan, optimised.
///
/// # Errors
/// DataFusion's, of the analyser and the optimiser.
pub(crate) fn optimised(state: &SessionState, plan: &LogicalPlan) -> Result<LogicalPlan> {
    crate::panics::caught_now(|| state.optimize(plan))?
}

/// The physical plan of a logical one that was optimised.
///
/// # Errors
/// DataFusion's, of the physical planner.
pub(crate) fn physical_plan_of_optimised<'a>(
    state: &'a SessionState,
    plan: &'a LogicalPlan,
) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
    Box::pin(caught(during(PLAN, async move { state.query_planner().create_physical_plan(plan, state).await })))
}

/// Runs a plan whose rows nobody wants: definitions of tables, views and functions, and settings.
///
/// # Errors
/// DataFusion's.
#[inline(never)]
pub fn run_plan(context: &SessionContext, plan: LogicalPlan) -> BoxFuture<'_, Result<()>> {
    Box::pin(caught(async move { context.execute_logical_plan(plan).await?.collect().await.map(|_| ()) }))
}

/// The physical plan of one statement. Definitions and settings do their work on the way, and give a plan without columns.
///
/// # Errors
/// DataFusion's.
#[inline(never)]
pub fn plan<'a>(context: &'a SessionContext, sql: &'a str) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
    Box::pin(caught(during(PLAN, async move { context.sql(sql).await?.create_physical_plan().await })))
}

/// One statement given as text, and the relations that it names.
///
/// # Errors
/// DataFusion's, of the parser.
pub(crate) fn statement_and_names(state: &SessionState, sql: &str) -> Result<(Statement, Vec<TableReference>)> {
    let parse = || {
        let statement = state.sql_to_statement(sql, &state.config_options().sql_parser.dialect)?;
        let names = state.resolve_table_references(&statement)?;
        Ok((statement, names))
    };
    crate::panics::caught_now(parse)?
}

/// True for what defines, changes or sets something, and gives no rows of a query.
pub(crate) fn defines(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Ddl(_) | LogicalPlan::Dml(_) | LogicalPlan::Statement(_) | LogicalPlan::Copy(_))
}

/// The physical plan of one logical plan, which a caller has looked at. Definitions and settings do their work, as in [`plan`].
///
/// # Errors
/// DataFusion's.
#[inline(never)]
pub fn plan_logical(context: &SessionContext, plan: LogicalPlan) -> BoxFuture<'_, Result<Arc<dyn ExecutionPlan>>> {
    let planned = async move { context.execute_logical_plan(plan).await?.create_physical_plan().await };
    Box::pin(caught(during(PLAN, planned)))
}
