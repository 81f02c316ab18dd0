//! Plans SQL with DataFusion's planner, which is compiled only here.
//!
//! ```text
//!   SQL ─ logical_plan ─►             ┌─ run_plan ─► done (CREATE, DROP, SET …)
//!   statement ─ statement_plan ─► plan ─ physical_plan ─► ExecutionPlan
//! ```
//!
//! Why  an async function is compiled by each crate that awaits it, with all generic functions that it calls: in a
//!      release build each crate that awaited the planner took a minute longer. A boxed future is compiled where it is
//!      created.
//! Mends   of the syntax tree (`mends`) are applied when a text is parsed: a parsed statement is used unchanged.
//! Panics  become errors ([`crate::error::panics`]).
//! Depth   is limited (`levels`): no statement overflows the stack of a thread that plans or runs it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use datafusion::common::{TableReference, internal_err};
use datafusion::dataframe::DataFrame;
use datafusion::error::Result;
use datafusion::execution::context::{SessionContext, SessionState};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::dialect::{GenericDialect, dialect_from_str};
use futures::future::BoxFuture;
use millpond_memory::recorder::during;

use crate::error::panics::{caught, caught_now};
use crate::explain;
use crate::mends::{copy_options, syntax};
use crate::plan::levels::{self, OnStack};
use crate::profile::step::PLAN;
use crate::session::definitions;

/// Plan of one statement given as text.
///
/// # Errors
/// DataFusion's, from the parser and the planner.
#[inline(never)]
pub fn logical_plan<'a>(state: &'a SessionState, sql: &'a str) -> BoxFuture<'a, Result<LogicalPlan>> {
    Box::pin(caught(during(PLAN, async move { planned(state, parsed(state, sql)?).await })))
}

/// Plan of one parsed statement.
///
/// # Errors
/// DataFusion's, from the planner.
#[inline(never)]
pub fn statement_plan(state: &SessionState, statement: Statement) -> BoxFuture<'_, Result<LogicalPlan>> {
    Box::pin(caught(during(PLAN, planned(state, statement))))
}

async fn planned(state: &SessionState, mut statement: Statement) -> Result<LogicalPlan> {
    let bytes = levels::shaped(&mut statement)?;
    let is_plain = explain::is_plain(&statement, state.config_options());
    let plan = levels::limited(OnStack::new(bytes, state.statement_to_plan(statement)).await?)?;
    if is_plain { explain::marked(plan) } else { Ok(plan) }
}

/// Parses the statements of a text.
///
/// # Errors
/// DataFusion's, from the parser, and an error for a statement with too many levels.
pub fn statements(sql: &str) -> Result<VecDeque<Statement>> {
    caught_now(|| {
        syntax::numbers(sql, &GenericDialect {})?;
        let sql = &*copy_options::written_out(sql, &GenericDialect {})?;
        let mut statements = levels::parsed(sql, || DFParserBuilder::new(sql).build()?.parse_statements())?;
        statements.iter_mut().try_for_each(syntax::mended)?;
        Ok(statements)
    })?
}

/// Parses the single statement of a text.
fn parsed(state: &SessionState, sql: &str) -> Result<Statement> {
    let dialect = &state.config_options().sql_parser.dialect;
    let mut written = Cow::Borrowed(sql);
    if let Some(dialect) = dialect_from_str(dialect) {
        syntax::numbers(sql, dialect.as_ref())?;
        written = copy_options::written_out(sql, dialect.as_ref())?;
    }
    let sql = &*written;
    let mut statements = levels::parsed(sql, || Ok(VecDeque::from([state.sql_to_statement(sql, dialect)?])))?;
    match statements.pop_front() {
        Some(mut statement) => {
            syntax::mended(&mut statement)?;
            Ok(statement)
        }
        None => internal_err!("a text that was parsed has a statement"),
    }
}

/// Relations that a statement names.
///
/// # Errors
/// Like [`statements`].
pub fn names(state: &SessionState, sql: &str) -> Result<Vec<TableReference>> {
    statement_and_names(state, sql).map(|(_, names)| names)
}

/// Optimized physical plan of a logical plan.
///
/// # Errors
/// DataFusion's, from the optimizer and the physical planner.
#[inline(never)]
pub fn physical_plan<'a>(
    state: &'a SessionState,
    plan: &'a LogicalPlan,
) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
    let planned = async move {
        let bytes = levels::stack_of_plan(plan)?;
        OnStack::new(bytes, state.create_physical_plan(plan)).await
    };
    Box::pin(caught(during(PLAN, planned)))
}

/// Optimizes a logical plan.
///
/// # Errors
/// DataFusion's, from the analyzer and the optimizer.
pub(crate) fn optimised(state: &SessionState, plan: &LogicalPlan) -> Result<LogicalPlan> {
    let bytes = levels::stack_of_plan(plan)?;
    caught_now(|| levels::on_stack(bytes, || state.optimize(plan)))?
}

/// Physical plan of an optimized logical plan.
///
/// # Errors
/// DataFusion's, from the physical planner.
pub(crate) fn physical_plan_of_optimised<'a>(
    state: &'a SessionState,
    plan: &'a LogicalPlan,
) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
    let planned = async move {
        let bytes = levels::stack_of_plan(plan)?;
        OnStack::new(bytes, state.query_planner().create_physical_plan(plan, state)).await
    };
    Box::pin(caught(during(PLAN, planned)))
}

/// Runs a plan and drops its rows: definitions of tables, views and functions, and settings.
///
/// # Errors
/// DataFusion's.
#[inline(never)]
pub fn run_plan(context: &SessionContext, plan: LogicalPlan) -> BoxFuture<'_, Result<()>> {
    let ran = async move {
        let bytes = levels::stack_of_plan(&plan)?;
        let run = async move { definitions::execute(context, plan).await?.collect().await.map(|_| ()) };
        OnStack::new(bytes, run).await
    };
    Box::pin(caught(ran))
}

/// Physical plan of one statement. Definitions and settings take effect during this call and return a plan without
/// columns.
///
/// # Errors
/// DataFusion's.
#[inline(never)]
pub fn plan<'a>(context: &'a SessionContext, sql: &'a str) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
    let planned = async move {
        let plan = {
            let state = context.state();
            planned(&state, parsed(&state, sql)?).await?
        };
        executed(context, plan).await
    };
    Box::pin(caught(during(PLAN, planned)))
}

/// Physical plan of a logical plan; definitions and settings take effect during this call.
async fn executed(context: &SessionContext, plan: LogicalPlan) -> Result<Arc<dyn ExecutionPlan>> {
    let bytes = levels::stack_of_plan(&plan)?;
    let planned = async move { definitions::execute(context, plan).await?.create_physical_plan().await };
    OnStack::new(bytes, planned).await
}

/// Data frame of a logical plan; definitions and settings take effect during this call.
///
/// # Errors
/// DataFusion's.
#[inline(never)]
pub(crate) fn frame(context: &SessionContext, plan: LogicalPlan) -> BoxFuture<'_, Result<DataFrame>> {
    let made = async move {
        let bytes = levels::stack_of_plan(&plan)?;
        OnStack::new(bytes, definitions::execute(context, plan)).await
    };
    Box::pin(caught(made))
}

/// Parses one statement, and returns it with the relations that it names.
///
/// # Errors
/// DataFusion's, from the parser.
pub(crate) fn statement_and_names(state: &SessionState, sql: &str) -> Result<(Statement, Vec<TableReference>)> {
    let parse = || {
        let statement = parsed(state, sql)?;
        let names = state.resolve_table_references(&statement)?;
        Ok((statement, names))
    };
    caught_now(parse)?
}

/// True for statements that define, change or set something, and return no rows of a query.
pub fn defines(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Ddl(_) | LogicalPlan::Dml(_) | LogicalPlan::Statement(_) | LogicalPlan::Copy(_))
}

/// Physical plan of a logical plan that a caller has inspected. Definitions and settings take effect, as in [`plan`].
///
/// # Errors
/// DataFusion's.
#[inline(never)]
pub fn plan_logical(context: &SessionContext, plan: LogicalPlan) -> BoxFuture<'_, Result<Arc<dyn ExecutionPlan>>> {
    Box::pin(caught(during(PLAN, executed(context, plan))))
}
