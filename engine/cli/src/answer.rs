//! Runs a statement and prints its answer: rows to the output; notes, progress and a footer to standard error.
//!
//! ```text
//!   statement ─┬─ planned before ─► kept plan ─┐
//!              └─ new ─► plan ─────────────────┴─► batch, batch, … ─► AnswerWriter ─► Output     QueryReport ─► footer
//! ```
//!
//! Files   The formats csv, tsv, json, parquet and arrow hold one answer per file (-o): a second answer is refused.
//! Names   Columns that are expressions get short names ([`names`]).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use millpond::datafusion::arrow::array::RecordBatch;
use millpond::datafusion::arrow::datatypes::{Schema, SchemaRef};
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::common::DataFusionError;
use millpond::datafusion::logical_expr::LogicalPlan;
use millpond::datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use millpond::profile::is_asked_by;
use millpond::{Millpond, Profiler, QueryReport};

use crate::args::Format;
use crate::error::{CliError, tell};
use crate::format::AnswerWriter;
use crate::names;
use crate::output::Output;
use crate::progress::Progress;
use crate::reads::{refuse_own_output, store_function};
use crate::shell::is_command;
use crate::statements::Statement;
use crate::table::{Fit, Shown};
use crate::unreadable::{planning_error, statement_error};
use crate::work::Work;
use crate::written::{self, Redirected};

/// Maximum number of statements with cached column names. A session caches plans, which do not contain these names.
const NAMES_KEPT: usize = 1000;

/// Settings for printing answers.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    pub format: Format,
    pub fit: Fit,
    /// Print a line after each answer.
    pub footer: bool,
    /// Print notes, and the progress of long queries.
    pub notes: bool,
    /// Hints about omitted rows and columns mention shell commands instead of flags.
    pub is_shell: bool,
}

/// Runs the statements of one session.
pub struct Runner<'a> {
    session: &'a Millpond,
    pub look: Look,
    /// Column names by statement text.
    names: RefCell<HashMap<String, Vec<String>>>,
    last: RefCell<Option<QueryReport>>,
    answers: Cell<usize>,
}

impl<'a> Runner<'a> {
    pub fn new(session: &'a Millpond, look: Look) -> Self {
        Self { session, look, names: RefCell::default(), last: RefCell::default(), answers: Cell::new(0) }
    }

    pub fn session(&self) -> &'a Millpond {
        self.session
    }

    /// The report of the last finished query.
    pub fn last_report(&self) -> Option<QueryReport> {
        self.last.borrow().clone()
    }

    /// Replaces the last report, after internal queries have overwritten it.
    pub fn set_last_report(&self, report: Option<QueryReport>) {
        *self.last.borrow_mut() = report;
    }

    /// Starts a new output: the answers that follow are written there.
    pub fn begin_output(&self) {
        self.answers.set(0);
    }

    /// Runs one statement, and records a profile if it is EXPLAIN ANALYZE.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    pub async fn run_profiled(
        &self,
        statement: &Statement,
        output: &mut Output,
    ) -> Result<Result<(), CliError>, CliError> {
        match is_asked_by(&statement.sql) {
            true => Profiler::begin(&statement.sql).around(self.run(statement, output, None)).await,
            false => self.run(statement, output, None).await,
        }
    }

    /// Runs one statement. The outer error ends the script even with --keep-going; the inner one is the statement's
    /// own.
    ///
    /// # Errors
    /// The statement's error, and exit 2 if the statement reads or writes the output itself.
    pub async fn run(
        &self,
        statement: &Statement,
        output: &mut Output,
        trace: Option<&Output>,
    ) -> Result<Result<(), CliError>, CliError> {
        let started = Instant::now();
        let session = self.session;
        if is_command(&statement.sql) {
            let line = statement.sql.lines().next().unwrap_or_default();
            return Ok(Err(CliError::usage(format!(
                "'{line}' is a command of the shell, which starts as millpond alone; here statements run: SHOW TABLES lists tables, \
                 DESCRIBE t the columns of one"
            ))));
        }
        let sql = if shows_tables(&statement.sql) { TABLES } else { &statement.sql };
        // The tables of a kept plan are unknown, so it cannot be checked against the output file.
        let kept = match output.has_path() || trace.is_some() {
            true => None,
            false => match session.kept_plan(sql).await {
                Ok(kept) => kept,
                Err(error) => return Ok(Err(planning_error(session, statement, &error).await)),
            },
        };
        // If the cached column names have been dropped, plan the statement again.
        if let (Some(plan), Some(names)) = (kept, self.kept_names(sql)) {
            tracing::info!("the plan is that of an earlier statement with this text");
            let query =
                Query { plan, names, explains: false, has_footer: true, target: None, counted: None, redirected: None };
            return Ok(self.answer(statement, query, output, started).await);
        }
        let planned = match session.statement(sql).await {
            Ok(planned) => planned,
            Err(error) => return Ok(Err(planning_error(session, statement, &error).await)),
        };
        let plan = planned.plan();
        // The statement would read a file that this output replaces.
        refuse_own_output(session, statement, plan, output, trace).await?;
        if let (None, true, Some(function)) = (session.engine(), self.look.notes, store_function(plan)) {
            tell(format_args!("note: {function} does nothing here: columns are stored on a device, and there is none"));
        }
        let explains = matches!(plan, LogicalPlan::Explain(_) | LogicalPlan::Analyze(_));
        // EXPLAIN's answer already contains the plan.
        let has_footer = !matches!(plan, LogicalPlan::Explain(_));
        let (target, counted, names) = (written(plan), written::words(plan), names::of_answer(plan));
        let (planned, redirected) = match planned.plan() {
            LogicalPlan::Copy(copy) => match written::redirected(copy.clone()) {
                Ok((copy, redirected)) => (planned.with_plan(LogicalPlan::Copy(copy)), redirected),
                Err(error) => return Ok(Err(error)),
            },
            _ => (planned, None),
        };
        let plan = match session.plan_statement(planned).await {
            Ok(plan) => plan,
            Err(error) => return Ok(Err(planning_error(session, statement, &error).await)),
        };
        // An unbounded plan never ends, so it would never print a footer.
        if plan.boundedness().is_unbounded() {
            let error = DataFusionError::Plan("the query reads an unbounded source and would never end".to_string());
            return Ok(Err(planning_error(session, statement, &error).await));
        }
        self.keep_names(sql, &names);
        let query = Query { plan, names, explains, has_footer, target, counted, redirected };
        Ok(self.answer(statement, query, output, started).await)
    }

    fn keep_names(&self, sql: &str, names: &[String]) {
        let mut kept = self.names.borrow_mut();
        if kept.len() >= NAMES_KEPT {
            kept.clear();
        }
        kept.insert(sql.to_string(), names.to_vec());
    }

    fn kept_names(&self, sql: &str) -> Option<Vec<String>> {
        self.names.borrow().get(sql).cloned()
    }

    async fn answer(
        &self,
        statement: &Statement,
        mut query: Query,
        output: &mut Output,
        started: Instant,
    ) -> Result<(), CliError> {
        let (session, look) = (self.session, self.look);
        if query.plan.schema().fields().is_empty() {
            // SET and DDL take effect during planning; a query without columns has only a row count to print.
            return Ok(());
        }
        let schema = query.schema();
        if let (Format::Json | Format::Ndjson | Format::Parquet | Format::Arrow, Some(name)) =
            (look.format, name_of_two(&schema))
        {
            return Err(CliError::sql(format!(
                "two columns are called {name}, and a reader of {} would give back one of them: \
                 name them apart (SELECT a AS x, b AS y), or take --format csv",
                look.format.name()
            )));
        }
        let work = Work::begin(session, &query.plan);
        let (target, counted, redirected) = (query.target.take(), query.counted.take(), query.redirected.take());
        let has_footer = look.footer && query.has_footer;
        let printed = match counted {
            Some(_) => self.count(query).await,
            None => {
                self.refuse_second_answer(output)?;
                self.print(query, schema, output).await
            }
        };
        let (num_rows, shown, mut report) = match printed {
            Ok(printed) => printed,
            Err(Unprinted::Query(error)) => {
                if let Some(target) = &target
                    && let Some(error) = CliError::statement(&error, statement).writing(target)
                {
                    return Err(error);
                }
                return Err(statement_error(session, statement, &error).await);
            }
            Err(Unprinted::Answer(error)) => return Err(cannot_print(&error, output)),
        };
        if let Some(redirected) = redirected {
            output.flush().map_err(|error| output.failure(&error))?;
            redirected.send().await?;
        }
        if counted.is_none() {
            self.answers.set(self.answers.get() + 1);
        }
        work.log(session, &report);
        report.answer_rows = num_rows as u64;
        report.wall_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        output.end_answer()?;
        if let (true, Some(words)) = (look.notes, counted) {
            tell(format_args!("note: {num_rows} row{} {words}", if num_rows == 1 { "" } else { "s" }));
        }
        if let (true, Some(note)) = (look.notes, shown.and_then(|shown| left_out(shown, look.is_shell))) {
            tell(format_args!("note: {note}"));
        }
        if has_footer {
            tell(&report);
        }
        // A finding is an error even if the answer is correct and the footer is hidden.
        let found = report.findings.join(" | ");
        *self.last.borrow_mut() = Some(report);
        if found.is_empty() { Ok(()) } else { Err(CliError::sql(format!("the simulated device found: {found}"))) }
    }

    /// Refuses a second answer in a format that holds one: two CSV headers or two JSON arrays make an unreadable file.
    fn refuse_second_answer(&self, output: &Output) -> Result<(), CliError> {
        let (format, is_file) = (self.look.format, output.has_path());
        let one_answer = match format {
            Format::Csv | Format::Tsv | Format::Json => is_file,
            Format::Parquet | Format::Arrow => true,
            _ => false,
        };
        if !one_answer || self.answers.get() == 0 {
            return Ok(());
        }
        Err(CliError::usage(format!(
            "{} has an answer, and a file of {} holds one: {}, or write several with COPY (SELECT …) TO 'FILE'",
            output.name(),
            format.name(),
            if self.look.is_shell {
                "choose another file (\\o FILE)"
            } else {
                "run the other statements with another -o"
            },
        )))
    }

    /// Runs a plan that writes its rows elsewhere, and returns their count.
    async fn count(&self, query: Query) -> Result<(usize, Option<Shown>, QueryReport), Unprinted> {
        let mut running = self.session.stream_plan(query.plan)?;
        let progress = Progress::begin(self.session, running.plan(), self.look.notes);
        let rows = written::rows(&mut running).await?;
        drop(progress);
        Ok((rows, None, running.report().await))
    }

    /// Runs a plan and writes its rows as they arrive.
    async fn print(
        &self,
        query: Query,
        schema: SchemaRef,
        output: &mut Output,
    ) -> Result<(usize, Option<Shown>, QueryReport), Unprinted> {
        let look = self.look;
        let mut running = self.session.stream_plan(query.plan)?;
        let progress = Progress::begin(self.session, running.plan(), look.notes);
        let writer = if query.explains { AnswerWriter::of_plans } else { AnswerWriter::new };
        // An empty line separates consecutive Markdown tables, and consecutive `line` answers.
        if matches!(look.format, Format::Markdown | Format::Line) && self.answers.get() > 0 {
            writeln!(output).map_err(ArrowError::from)?;
        }
        let mut writer = writer(output, look.format, look.fit, Arc::clone(&schema), Instant::now)?;
        loop {
            let next = match writer.due() {
                None => running.next().await,
                Some(due) => match tokio::time::timeout_at(due.into(), running.next()).await {
                    Ok(next) => next,
                    Err(_) => {
                        progress.beside(|| writer.write_held())?;
                        continue;
                    }
                },
            };
            let Some(batch) = next else { break };
            let batch = RecordBatch::try_new(Arc::clone(&schema), batch?.columns().to_vec())?;
            progress.beside(|| writer.write(batch))?;
        }
        drop(progress);
        let (num_rows, shown) = writer.finish()?;
        Ok((num_rows, shown, running.report().await))
    }
}

/// SHOW TABLES without the views of information_schema.
const TABLES: &str = "SELECT table_catalog, table_schema, table_name, table_type FROM information_schema.tables \
                      WHERE table_schema <> 'information_schema' ORDER BY table_catalog, table_schema, table_name";

/// True if the statement is plain SHOW TABLES.
fn shows_tables(sql: &str) -> bool {
    let words = sql.trim().trim_end_matches(';').split_whitespace().map(str::to_ascii_lowercase);
    words.eq(["show", "tables"])
}

/// A planned query.
struct Query {
    plan: Arc<dyn ExecutionPlan>,
    /// Names of its columns.
    names: Vec<String>,
    explains: bool,
    has_footer: bool,
    /// The file that the query writes.
    target: Option<String>,
    /// Description of the counted rows' destination, such as `written to 'x.csv'`.
    counted: Option<String>,
    redirected: Option<Redirected>,
}

impl Query {
    /// The answer's schema with the short column names.
    fn schema(&self) -> SchemaRef {
        let schema = self.plan.schema();
        if self.names.len() != schema.fields().len() {
            return schema;
        }
        let fields: Vec<_> = schema
            .fields()
            .iter()
            .zip(&self.names)
            .map(|(field, name)| field.as_ref().clone().with_name(name))
            .collect();
        Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
    }
}

/// True if progress may be drawn.
pub fn shows_progress() -> bool {
    io::stderr().is_terminal()
}

/// A note about the omitted part of a table, and how to show it.
fn left_out(shown: Shown, is_shell: bool) -> Option<String> {
    let Shown { rows, of_rows, columns, of_columns } = shown;
    let [all_rows, lines] = if is_shell { ["\\rows all", "\\x"] } else { ["--rows all", "--format line"] };
    let rows = (rows < of_rows).then(|| format!("{rows} of {of_rows} rows ({all_rows})"));
    let columns = (columns < of_columns).then(|| format!("{columns} of {of_columns} columns ({lines})"));
    let parts: Vec<String> = rows.into_iter().chain(columns).collect();
    (!parts.is_empty()).then(|| format!("the table shows {}", parts.join(" and ")))
}

/// The target of a writing statement: COPY's path, or INSERT's table.
fn written(plan: &LogicalPlan) -> Option<String> {
    match plan {
        LogicalPlan::Copy(copy) => Some(millpond::files::address::path_of(&copy.output_url).display().to_string()),
        LogicalPlan::Dml(write) => Some(write.table_name.to_string()),
        LogicalPlan::Analyze(analyze) => written(&analyze.input),
        _ => None,
    }
}

/// Reason why an answer was not printed, or only in part.
enum Unprinted {
    Query(DataFusionError),
    /// A value cannot be represented in the format, or the output failed.
    Answer(ArrowError),
}

impl From<DataFusionError> for Unprinted {
    fn from(error: DataFusionError) -> Self {
        Self::Query(error)
    }
}

impl From<ArrowError> for Unprinted {
    fn from(error: ArrowError) -> Self {
        Self::Answer(error)
    }
}

/// A name shared by two columns of an answer.
fn name_of_two(schema: &Schema) -> Option<String> {
    let mut names: Vec<&String> = schema.fields().iter().map(|field| field.name()).collect();
    names.sort_unstable();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone())
}

fn cannot_print(error: &ArrowError, output: &mut Output) -> CliError {
    if let Some(error) = output.take_failure() {
        return output.failure(&error);
    }
    match error {
        ArrowError::CsvError(reason) => {
            CliError::sql(format!("cannot print the answer as CSV: {reason}; another --format can, such as json"))
        }
        ArrowError::JsonError(reason) | ArrowError::CastError(reason) => {
            CliError::sql(format!("cannot print the answer as JSON: {reason}; --format table can"))
        }
        _ => CliError::sql(format!("cannot print the answer: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_names_what_is_left_out() {
        let shown = |rows, columns| left_out(Shown { rows, of_rows: 60_000, columns, of_columns: 40 }, false);
        assert_eq!(shown(60_000, 40), None);
        assert_eq!(shown(40, 40).as_deref(), Some("the table shows 40 of 60000 rows (--rows all)"));
        let both = "the table shows 40 of 60000 rows (--rows all) and 12 of 40 columns (--format line)";
        assert_eq!(shown(40, 12).as_deref(), Some(both));
        let shown = Shown { rows: 40, of_rows: 50, columns: 2, of_columns: 3 };
        let shell = "the table shows 40 of 50 rows (\\rows all) and 2 of 3 columns (\\x)";
        assert_eq!(left_out(shown, true).as_deref(), Some(shell));
    }
}
