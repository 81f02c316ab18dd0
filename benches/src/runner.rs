//! Runs a suite's queries and says what each one did.
//!
//! ```text
//!   DIR/lineitem.parquet ─┐
//!   DIR/orders/          ─┴─► tables of a session ─► execute ─► Outcome { rows, digest, report }
//! ```
//!
//! Made     a query's own tables and views are gone when it ends. Its tables are collected, so they count as answers,
//!          too: after the clock has stopped, unless a step needs them.
//! Allowed  is what `permitted.rs` says: no statement writes outside the session or reads a file by its name.
//! Errors   a missing table names the two places where it was looked for; a refused statement its file and number.
//! Time     is the host's wall clock; the simulated device's is never reported as performance.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond::datafusion::catalog::TableProvider;
use millpond::datafusion::common::TableReference;
use millpond::datafusion::error::DataFusionError;
use millpond::datafusion::execution::context::SessionContext;
use millpond::datafusion::logical_expr::{DdlStatement, LogicalPlan};
use millpond::datafusion::prelude::ParquetReadOptions;
use millpond::files::address;
use millpond::session::sql;
use millpond::{Millpond, QueryReport, QueryResult};
use millpond_queries::answer::{Answer, Difference};
use millpond_queries::bag::same_bag;
use millpond_queries::gpu_bdb::{Rows, Tables};
use millpond_queries::{Check, Query, Suite, functions};

use crate::named::also_in_lower_case;
use crate::permitted::{self, ALLOWED};

/// Why a suite could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerError {
    #[error(
        "table {table} of suite {suite} is missing: neither {} nor the folder {} exists{}",
        data.join(format!("{table}.parquet")).display(), data.join(table).display(), hint(command.as_deref(), data)
    )]
    TableMissing { suite: String, table: String, data: PathBuf, command: Option<String> },
    #[error("cannot read table {table} from {}: {source}", path.display())]
    Table { table: String, path: PathBuf, source: DataFusionError },
    #[error("tables cannot be found in lower case: {source}")]
    Tables { source: DataFusionError },
    #[error("there is no folder {}{}", data.display(), hint(command.as_deref(), data))]
    NoFolder { data: PathBuf, command: Option<String> },
    #[error("{} is a file; --data takes the folder that the tables of suite {suite} are in", data.display())]
    NotAFolder { suite: String, data: PathBuf },
    #[error("{} holds no tables: suite {suite} takes every NAME.parquet and every folder NAME that is there", data.display())]
    NoTables { suite: String, data: PathBuf },
    #[error("suite {suite} needs the function {function}, which is not known; drop it from functions in suite.toml")]
    FunctionMissing { suite: String, function: String },
    #[error("the functions of the workload cannot be registered: {source}")]
    Functions { source: DataFusionError },
    #[error("{file}, statement {statement}: {what}; {ALLOWED}")]
    Refused { file: String, statement: usize, what: String },
    #[error("{query}: {source}")]
    Query { query: String, source: DataFusionError },
}

fn hint(command: Option<&str>, data: &Path) -> String {
    command.map(|command| format!("; make the data with: {command} {}", data.display())).unwrap_or_default()
}

/// Result of one query.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub query: String,
    pub answer: Answer,
    /// Tables that the query made on its way, and those that its step derived from the answer.
    pub parts: Vec<(String, Rows)>,
    /// What its step says about the answer.
    pub text: Option<String>,
    /// Planning, running and the step, but not the making of [`Answer`]s.
    pub elapsed: Duration,
    /// Report of all its statements together.
    pub report: QueryReport,
}

/// Registers a suite's tables from the files or folders of `data`.
///
/// # Errors
/// [`RunnerError::NoFolder`], [`RunnerError::NotAFolder`], [`RunnerError::TableMissing`], [`RunnerError::NoTables`] and
/// [`RunnerError::Table`].
pub async fn register_tables(session: &Millpond, suite: &Suite, data: &Path) -> Result<(), RunnerError> {
    if !data.exists() {
        return Err(RunnerError::NoFolder { data: data.to_path_buf(), command: suite.data_command.clone() });
    }
    if !data.is_dir() {
        return Err(RunnerError::NotAFolder { suite: suite.name.clone(), data: data.to_path_buf() });
    }
    let found;
    let tables = match &suite.tables {
        Some(tables) => tables,
        None => {
            found = tables_in(data);
            &found
        }
    };
    if tables.is_empty() && suite.tables.is_none() {
        return Err(RunnerError::NoTables { suite: suite.name.clone(), data: data.to_path_buf() });
    }
    let mut names = Vec::with_capacity(tables.len());
    for table in tables {
        let file = data.join(format!("{table}.parquet"));
        let folder = data.join(table);
        let path = match (file.exists(), folder.is_dir()) {
            (true, _) => &file,
            (false, true) => &folder,
            (false, false) => {
                let (suite, table, command) = (suite.name.clone(), table.clone(), suite.data_command.clone());
                let data = data.to_path_buf();
                return Err(RunnerError::TableMissing { suite, table, data, command });
            }
        };
        session
            .context()
            .register_parquet(
                TableReference::bare(table.as_str()),
                address::of_source(&path.to_string_lossy()),
                ParquetReadOptions::default(),
            )
            .await
            .map_err(|source| RunnerError::Table { table: table.clone(), path: path.clone(), source })?;
        names.push(TableReference::bare(table.as_str()));
    }
    also_in_lower_case(session.context(), &names).await.map_err(|source| RunnerError::Tables { source })
}

/// The names of the Parquet files and of the folders in `data`, sorted.
fn tables_in(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(data).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut names: Vec<String> = entries
        .filter(|path| path.is_dir() || path.extension().is_some_and(|ending| ending == "parquet"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Makes the functions known that a suite's queries call.
///
/// # Errors
/// [`RunnerError::FunctionMissing`] and [`RunnerError::Functions`].
pub fn register_functions(session: &Millpond, suite: &Suite) -> Result<(), RunnerError> {
    if suite.functions.is_empty() {
        return Ok(());
    }
    let missing =
        |function: &str| RunnerError::FunctionMissing { suite: suite.name.clone(), function: function.into() };
    functions::register(session.context()).map_err(|source| RunnerError::Functions { source })?;
    let state = session.context().state();
    let known = |name: &String| {
        state.scalar_functions().contains_key(name)
            || state.table_functions().contains_key(name)
            || state.aggregate_functions().contains_key(name)
            || state.window_functions().contains_key(name)
    };
    match suite.functions.iter().find(|name| !known(name)) {
        Some(name) => Err(missing(name)),
        None => Ok(()),
    }
}

/// Runs one query, statement by statement, and collects what it gives. Tables and views that it makes are gone
/// afterwards.
///
/// # Errors
/// [`RunnerError::Refused`] with the file and the statement, [`RunnerError::Query`] with the query's id.
pub async fn run_query(session: &Millpond, query: &Query) -> Result<Outcome, RunnerError> {
    let before = tables_of(session.context());
    let ran = run_statements(session, query, &before).await;
    for made in tables_of(session.context()).into_iter().filter(|name| !before.contains(name)) {
        let _ = session.context().deregister_table(TableReference::bare(made));
    }
    ran.unwrap_or_else(|source| Err(RunnerError::Query { query: query.id.clone(), source }))
}

/// The inner error is a refusal, the outer one DataFusion's.
async fn run_statements(
    session: &Millpond,
    query: &Query,
    before: &[String],
) -> Result<Result<Outcome, RunnerError>, DataFusionError> {
    let context = session.context();
    let started = Instant::now();
    let (mut answer, mut made) = (None, Vec::new());
    let mut report: Option<QueryReport> = None;
    // What was run before was looked at before.
    let kept = session.kept_plan(&query.sql).await?;
    let statements = match &kept {
        Some(_) => VecDeque::new(),
        None => sql::statements(&query.sql)?,
    };
    let alone = statements.len() == 1;
    if let Some(plan) = kept {
        let result = session.execute_plan(plan).await?;
        answer = Some(rows(&result));
        report = Some(result.report);
    }
    for (statement, number) in statements.into_iter().zip(1..) {
        let refused = |what| RunnerError::Refused { file: query.file().to_string(), statement: number, what };
        if let Some(what) = permitted::file_by_name(context, &statement)? {
            return Ok(Err(refused(what)));
        }
        // A query of one statement is kept by its text.
        let planned = if alone { Some(session.statement(&query.sql).await?) } else { None };
        let plan = match &planned {
            Some(planned) => planned.plan().clone(),
            None => sql::statement_plan(&context.state(), statement).await?,
        };
        if let Some(what) = permitted::refusal(context, &plan, before).await? {
            return Ok(Err(refused(what)));
        }
        let now = match plan {
            LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => {
                let name = create.name.table().to_string();
                let Some(created) = session.create_table(create).await? else { continue };
                made.retain(|(known, _): &(String, Arc<dyn TableProvider>)| *known != name);
                made.push((name, created.table));
                created.report
            }
            LogicalPlan::Ddl(_) => {
                sql::run_plan(context, plan).await?;
                continue;
            }
            plan => {
                let result = match planned {
                    Some(planned) => session.execute_plan(session.plan_statement(planned).await?).await?,
                    None => execute(session, &plan).await?,
                };
                answer = Some(rows(&result));
                result.report
            }
        };
        match &mut report {
            Some(report) => report.absorb(now),
            None => report = Some(now),
        }
    }
    let none = || DataFusionError::Plan("a query must end with a statement that gives rows".to_string());
    let mut tables = Tables { answer: answer.ok_or_else(none)?, made: vec![] };
    if query.step.is_some() {
        tables.made = collected(context, &made).await?;
    }
    let step = query.step.map(|step| step(&tables)).transpose()?;
    let elapsed = started.elapsed();

    let mut parts = match query.step {
        Some(_) => tables.made,
        // Tables that only the answers read are downloaded after the clock has stopped.
        None => collected(context, &made).await?,
    };
    let text = step.map(|step| {
        parts.extend(step.tables);
        step.text
    });
    let answer = Answer::try_new(&tables.answer.schema, &tables.answer.batches)?;
    let (query, report) = (query.id.clone(), report.unwrap_or_default());
    Ok(Ok(Outcome { query, answer, parts, text, elapsed, report }))
}

async fn execute(session: &Millpond, plan: &LogicalPlan) -> Result<QueryResult, DataFusionError> {
    let plan = sql::physical_plan(&session.context().state(), plan).await?;
    session.execute_plan(plan).await
}

fn rows(result: &QueryResult) -> Rows {
    Rows { schema: Arc::clone(&result.schema), batches: result.batches.clone() }
}

/// The rows of tables, wherever they are.
async fn collected(
    context: &SessionContext,
    made: &[(String, Arc<dyn TableProvider>)],
) -> Result<Vec<(String, Rows)>, DataFusionError> {
    let mut collected = Vec::with_capacity(made.len());
    for (name, table) in made {
        let batches = context.read_table(Arc::clone(table))?.collect().await?;
        collected.push((name.clone(), Rows { schema: table.schema(), batches }));
    }
    Ok(collected)
}

/// Tables and views of the session's own schema.
fn tables_of(context: &SessionContext) -> Vec<String> {
    let options = context.copied_config();
    let names = &options.options().catalog;
    let schema = context.catalog(&names.default_catalog).and_then(|catalog| catalog.schema(&names.default_schema));
    schema.map(|schema| schema.table_names()).unwrap_or_default()
}

/// Compares an outcome with that of another session, by the query's rules: rows count in order when the query says
/// ORDER BY at its end.
///
/// # Errors
/// The first [`Difference`], with the part that it is in.
pub fn validate(query: &Query, expected: &Outcome, actual: &Outcome) -> Result<(), Difference> {
    query.check.verify(&expected.answer, &actual.answer, is_ordered(&query.sql))?;
    if let Some(unknown) = query.parts.keys().find(|name| !expected.parts.iter().any(|(part, _)| part == *name)) {
        let known: Vec<&str> = expected.parts.iter().map(|(part, _)| part.as_str()).collect();
        return Err(Difference::unknown_part(unknown, &known));
    }
    for (name, wanted) in &expected.parts {
        let rules = query.parts.get(name).cloned().unwrap_or_default();
        match actual.parts.iter().find(|(other, _)| other == name) {
            Some((_, given)) => verify_part(&rules, wanted, given).map_err(|difference| difference.in_part(name))?,
            None => return Err(Difference::missing_part(name)),
        }
    }
    Ok(())
}

/// Tables that queries make have up to tens of millions of rows, and mostly the same bits: only others are judged value
/// by value.
fn verify_part(rules: &Check, wanted: &Rows, given: &Rows) -> Result<(), Difference> {
    let same = *rules == Check::default() && same_bag(wanted, given).unwrap_or(false);
    let answer =
        |rows: &Rows| Answer::try_new(&rows.schema, &rows.batches).map_err(|error| Difference::unreadable(&error));
    if same { Ok(()) } else { rules.verify(&answer(wanted)?, &answer(given)?, false) }
}

/// True when the last statement's outermost query has an ORDER BY, and so its rows have an order.
pub fn is_ordered(sql: &str) -> bool {
    use millpond::datafusion::sql::parser::Statement;
    use millpond::datafusion::sql::sqlparser::ast;
    let Ok(statements) = sql::statements(sql) else { return false };
    match statements.back() {
        Some(Statement::Statement(inner)) => {
            matches!(inner.as_ref(), ast::Statement::Query(query) if query.order_by.is_some())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_outermost_order_counts() {
        assert!(is_ordered("SELECT a FROM t ORDER BY a LIMIT 3"));
        assert!(is_ordered("-- comment\nWITH x AS (SELECT 1) SELECT * FROM x ORDER BY 1"));
        assert!(!is_ordered("SELECT * FROM (SELECT a FROM t ORDER BY a) AS s"));
        assert!(!is_ordered("SELECT row_number() OVER (ORDER BY a) FROM t"));
        assert!(is_ordered("CREATE VIEW v AS SELECT 1; SELECT * FROM v ORDER BY 1"));
        assert!(!is_ordered("SELECT * FROM v ORDER BY 1; SELECT 2"));
    }
}
