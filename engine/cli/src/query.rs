//! Runs statements one after the other: answers to the output, notes and footers to standard error.
//!
//! ```text
//!   -c / -f / stdin ─► statements ─► plan ─► batch, batch, … ─► AnswerWriter ─► Output      QueryReport ─► footer
//! ```
//!
//! Errors   the first one ends the script, unless --keep-going; the exit code tells in both cases. A panic is an error.
//! -o FILE  takes the place of the old file when all statements are done, with --keep-going those that succeeded. A statement
//!          that reads or writes FILE ends the script before it does anything.
//! Ctrl-C   drops the running query, which frees what it held on the device.

use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::common::DataFusionError;
use millpond::datafusion::logical_expr::LogicalPlan;
use millpond::datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use millpond::profile::is_asked_by;
use millpond::{Millpond, Profiler, QueryReport};

use crate::args::{Cli, Format, QueryArgs, Rows};
use crate::error::{CliError, Exit, tell};
use crate::format::AnswerWriter;
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::reads::{refuse_own_output, store_function};
use crate::session;
use crate::statements::{Statement, split};
use crate::table::{Fit, Shown};
use crate::trace::Trace;
use crate::unreadable::{planning_error, statement_error};

/// What may stand before the text of a script, and is no part of it.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Rows that a table on a terminal shows where the command line does not say.
const ROWS_ON_A_TERMINAL: usize = 40;

/// How answers look.
#[derive(Debug, Clone, Copy)]
struct Look {
    format: Format,
    fit: Fit,
}

/// Runs what the command line gives; `Ok` carries the exit code of `--keep-going`.
///
/// # Errors
/// The first error, unless `--keep-going` is set.
pub async fn run(cli: &Cli) -> Result<Exit, CliError> {
    let scripts = scripts(cli)?;
    let look = Look { format: chosen_format(&cli.query)?, fit: chosen_fit(&cli.query) };
    let interrupts = Interrupts::listen()?;
    let session = session::open(&cli.session, None).await?;
    if let (Some(note), false) = (session.device_note(), cli.session.quiet) {
        tell(format_args!("note: {note}"));
    }
    let mut trace = match cli.session.trace.clone() {
        Some(path) => Some(interrupts.or_waiting(move || Trace::begin(&path)).await?),
        None => None,
    };
    let output = match cli.query.output.clone() {
        Some(path) => interrupts.or_waiting(move || Output::open(&path)).await?,
        None => Output::standard(),
    };
    refuse_shared_files(&session, &output, trace.as_ref())?;
    let ended = run_scripts(cli, &session, &scripts, look, output, &interrupts, trace.as_mut()).await;
    let logged = session::finish_log(&session);
    let traced = trace.map_or(Ok(()), |trace| trace.write());
    // The statement's error is the one to tell.
    let worst = ended?;
    logged?;
    traced?;
    Ok(worst)
}

/// Refuses one file for two of the answers, the trace and the log of memory: what is written last would be all that is there.
///
/// # Errors
/// Exit 2, naming the flags and the file.
pub fn refuse_shared_files(session: &Millpond, output: &Output, trace: Option<&Trace>) -> Result<(), CliError> {
    let shared = |flags: &str, path: &Path| {
        Err(CliError::usage(format!("{flags} cannot both be '{}': name two files", path.display())))
    };
    if let Some(trace) = trace.filter(|trace| output.is_at_file(trace.path())) {
        return shared("-o and --trace", trace.path());
    }
    let Some(log) = session::memory_log(session) else { return Ok(()) };
    if output.is_at_file(&log) {
        return shared("-o and --memory-log", &log);
    }
    match trace {
        Some(trace) if trace.output().is_at_file(&log) => shared("--trace and --memory-log", &log),
        _ => Ok(()),
    }
}

async fn run_scripts(
    cli: &Cli,
    session: &Millpond,
    scripts: &[String],
    look: Look,
    mut output: Output,
    interrupts: &Interrupts,
    mut trace: Option<&mut Trace>,
) -> Result<Exit, CliError> {
    let (mut worst, mut succeeded) = (Exit::Ok, false);
    let mut failed = |error: CliError| {
        if !cli.query.keep_going {
            return Err(error);
        }
        tell(format_args!("error: {}", error.message));
        worst = worst.max(error.exit);
        Ok(())
    };
    'scripts: for script in scripts {
        let statements = match split(script) {
            Ok(statements) => statements,
            Err(error) => {
                failed(CliError::script(&error, script))?;
                continue;
            }
        };
        for statement in &statements {
            let mark = output.mark()?;
            let traced = trace.as_deref().map(|trace| trace.query(&statement.sql));
            let traces = trace.as_deref().map(Trace::output);
            let work = run_statement(session, statement, look, &mut output, traces, cli.session.quiet);
            let done = match &traced {
                None if is_asked_by(&statement.sql) => {
                    let profiler = Profiler::begin(&statement.sql);
                    interrupts.or_interrupted(profiler.around(work)).await?
                }
                None => interrupts.or_interrupted(work).await?,
                Some(traced) => interrupts.or_interrupted(traced.profiler.around(work)).await?,
            };
            if let (Some(trace), Some(traced)) = (trace.as_deref_mut(), &traced) {
                trace.add(traced, &session.profile(&traced.profiler));
            }
            match done {
                Ok(()) => succeeded = true,
                Err(error) if error.is_reader_gone() => break 'scripts,
                Err(error) => {
                    failed(error)?;
                    output.cut_to(mark)?;
                }
            }
        }
    }
    // Where nothing succeeded there is nothing that could take the old file's place.
    if succeeded || worst == Exit::Ok {
        output.commit()?;
    }
    Ok(worst)
}

/// The scripts to run: the text without a flag, -c, then -f, then standard input when none is given.
fn scripts(cli: &Cli) -> Result<Vec<String>, CliError> {
    let args = &cli.query;
    let mut scripts = Vec::new();
    if let Some(text) = &cli.text {
        scripts.push(script_of(text)?);
    }
    scripts.extend(args.commands.iter().cloned());
    for file in &args.files {
        scripts.push(if file == Path::new("-") { read_stdin()? } else { read_script(file)? });
    }
    if scripts.is_empty() {
        scripts.push(read_stdin()?);
    }
    for script in &mut scripts {
        // Some editors begin every file with it.
        if script.starts_with(BYTE_ORDER_MARK) {
            script.remove(0);
        }
    }
    Ok(scripts)
}

/// The script of a text that has no flag: statements, a file of them, or all rows of another file.
fn script_of(text: &str) -> Result<String, CliError> {
    let path = Path::new(text);
    if path.exists() || session::is_remote(text) {
        let has_statements = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("sql"));
        return if has_statements {
            read_script(path)
        } else {
            Ok(format!("SELECT * FROM '{}'", text.replace('\'', "''")))
        };
    }
    // A word alone is a slip in a command or a path.
    if text.contains(|letter: char| letter.is_whitespace() || "(;".contains(letter)) {
        return Ok(text.to_string());
    }
    Err(CliError::usage(format!(
        "'{text}' is no command, no file that is there, and no statement: millpond --help lists the commands, and statements \
         stand in quotes"
    )))
}

fn read_stdin() -> Result<String, CliError> {
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| CliError::file(format!("cannot read SQL from standard input: {error}")))?;
    millpond::standard_input_was_read_as("the script");
    Ok(text)
}

fn read_script(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path)
        .map_err(|error| CliError::file(format!("cannot read SQL from '{}': {error}", path.display())))
}

/// The format: what was asked for, else what the output file's name says, else by whether a person is reading.
fn chosen_format(args: &QueryArgs) -> Result<Format, CliError> {
    if args.format != Format::Auto {
        return Ok(args.format);
    }
    let Some(path) = &args.output else {
        return Ok(if io::stdout().is_terminal() { Format::Table } else { Format::Csv });
    };
    let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    match extension.as_str() {
        "csv" => Ok(Format::Csv),
        "tsv" => Ok(Format::Tsv),
        "json" => Ok(Format::Json),
        "ndjson" | "jsonl" => Ok(Format::Ndjson),
        "md" => Ok(Format::Markdown),
        "txt" | "" => Ok(Format::Table),
        "parquet" | "arrow" => Err(CliError::usage(format!(
            "-o cannot write '{}'; use COPY (SELECT …) TO '{}'",
            path.display(),
            path.display()
        ))),
        other => Err(CliError::usage(format!("no format is known for files ending in .{other}; add --format"))),
    }
}

/// How much of an answer tables show: all of it, but on a terminal.
fn chosen_fit(args: &QueryArgs) -> Fit {
    let is_terminal = args.output.is_none() && io::stdout().is_terminal();
    let rows = match args.rows {
        Some(Rows::All) => None,
        Some(Rows::AtMost(rows)) => Some(rows),
        None => is_terminal.then_some(ROWS_ON_A_TERMINAL),
    };
    let size = if is_terminal { terminal_size::terminal_size_of(io::stdout()) } else { None };
    // A terminal that does not know its size says 0.
    let width = size.map(|(width, _)| usize::from(width.0)).filter(|width| *width > 0);
    Fit { rows, width }
}

/// The note about what a table has left out, and what shows it.
fn left_out(shown: Shown) -> Option<String> {
    let Shown { rows, of_rows, columns, of_columns } = shown;
    let rows = (rows < of_rows).then(|| format!("{rows} of {of_rows} rows (--rows all)"));
    let columns = (columns < of_columns).then(|| format!("{columns} of {of_columns} columns (--format line)"));
    let parts: Vec<String> = rows.into_iter().chain(columns).collect();
    (!parts.is_empty()).then(|| format!("the table shows {}", parts.join(" and ")))
}

/// Runs one statement. The outer error ends the script whatever --keep-going says, the inner one is the statement's own.
async fn run_statement(
    session: &Millpond,
    statement: &Statement,
    look: Look,
    output: &mut Output,
    trace: Option<&Output>,
    quiet: bool,
) -> Result<Result<(), CliError>, CliError> {
    let started = Instant::now();
    let state = session.context().state();
    let plan = match millpond::sql::logical_plan(&state, &statement.sql).await {
        Ok(plan) => plan,
        Err(error) => return Ok(Err(planning_error(session, statement, &error).await)),
    };
    let plan = match millpond::address::in_plan(plan) {
        Ok(plan) => plan,
        Err(error) => return Ok(Err(planning_error(session, statement, &error).await)),
    };
    // The answers of the other statements would take the place of what this one reads.
    refuse_own_output(session, statement, &plan, output, trace).await?;
    if let (None, false, Some(function)) = (session.engine(), quiet, store_function(&plan)) {
        tell(format_args!("note: {function} does nothing here: columns are stored on a device, and there is none"));
    }
    Ok(answer(session, statement, plan, look, output, quiet, started).await)
}

async fn answer(
    session: &Millpond,
    statement: &Statement,
    plan: LogicalPlan,
    look: Look,
    output: &mut Output,
    quiet: bool,
    started: Instant,
) -> Result<(), CliError> {
    let written = written(&plan);
    let explains = matches!(plan, LogicalPlan::Explain(_) | LogicalPlan::Analyze(_));
    let plan = match physical_plan(session, plan).await {
        Ok(plan) => plan,
        Err(error) => return Err(planning_error(session, statement, &error).await),
    };
    if plan.schema().fields().is_empty() {
        // SET and DDL did their work while they were planned; a query without columns has only a row count to tell.
        return Ok(());
    }
    if let (Format::Json | Format::Ndjson, Some(name)) = (look.format, name_of_two(&plan)) {
        return Err(CliError::sql(format!(
            "two columns are called {name}, and an object of JSON would give back one of them: \
             name them apart (SELECT a AS x, b AS y), or take --format csv"
        )));
    }
    let (num_rows, shown, mut report) = match print(session, plan, explains, look, output).await {
        Ok(printed) => printed,
        Err(Unprinted::Query(error)) => {
            if let Some(target) = &written
                && let Some(error) = CliError::statement(&error, statement).writing(target)
            {
                return Err(error);
            }
            return Err(statement_error(session, statement, &error).await);
        }
        Err(Unprinted::Answer(error)) => return Err(cannot_print(&error, output)),
    };
    if !quiet {
        if let Some(note) = shown.and_then(left_out) {
            tell(format_args!("note: {note}"));
        }
        report.answer_rows = num_rows as u64;
        report.wall_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        tell(report.to_string());
    }
    // A finding is an error, even where the answer is right and nobody reads the footer.
    if report.findings.is_empty() {
        Ok(())
    } else {
        Err(CliError::sql(format!("the simulated device found: {}", report.findings.join(" | "))))
    }
}

/// What a statement writes to: the target of COPY, the table of INSERT.
fn written(plan: &LogicalPlan) -> Option<String> {
    match plan {
        LogicalPlan::Copy(copy) => Some(millpond::address::path_of(&copy.output_url).display().to_string()),
        LogicalPlan::Dml(write) => Some(write.table_name.to_string()),
        LogicalPlan::Analyze(analyze) => written(&analyze.input),
        _ => None,
    }
}

/// Why an answer was not printed, or not whole.
enum Unprinted {
    Query(DataFusionError),
    /// Its rows have no such text, or the output takes no more.
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

/// A name that two columns of an answer share.
fn name_of_two(plan: &Arc<dyn ExecutionPlan>) -> Option<String> {
    let schema = plan.schema();
    let mut names: Vec<&String> = schema.fields().iter().map(|field| field.name()).collect();
    names.sort_unstable();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone())
}

/// Runs a plan and writes its rows as they come.
async fn print(
    session: &Millpond,
    plan: Arc<dyn ExecutionPlan>,
    explains: bool,
    look: Look,
    output: &mut Output,
) -> Result<(usize, Option<Shown>, QueryReport), Unprinted> {
    let mut running = session.stream_plan(plan)?;
    let writer = if explains { AnswerWriter::of_plans } else { AnswerWriter::new };
    let mut writer = writer(output, look.format, look.fit, running.schema(), Instant::now);
    loop {
        let next = match writer.due() {
            None => running.next().await,
            Some(due) => match tokio::time::timeout_at(due.into(), running.next()).await {
                Ok(next) => next,
                Err(_) => {
                    writer.write_held()?;
                    continue;
                }
            },
        };
        let Some(batch) = next else { break };
        writer.write(batch?)?;
    }
    let (num_rows, shown) = writer.finish()?;
    Ok((num_rows, shown, running.report().await))
}

async fn physical_plan(session: &Millpond, plan: LogicalPlan) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    let plan = millpond::sql::plan_logical(session.context(), plan).await?;
    // An unbounded plan would never give its footer.
    if plan.boundedness().is_unbounded() {
        return Err(DataFusionError::Plan("the query reads an unbounded source and would never end".to_string()));
    }
    Ok(plan)
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

/// A number of bytes with the unit that suits it.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_names_what_is_left_out() {
        let shown = |rows, columns| left_out(Shown { rows, of_rows: 60_000, columns, of_columns: 40 });
        assert_eq!(shown(60_000, 40), None);
        assert_eq!(shown(40, 40).as_deref(), Some("the table shows 40 of 60000 rows (--rows all)"));
        let both = "the table shows 40 of 60000 rows (--rows all) and 12 of 40 columns (--format line)";
        assert_eq!(shown(40, 12).as_deref(), Some(both));
    }

    #[test]
    fn bytes_take_the_unit_that_suits() {
        assert_eq!([0, 1023, 1024, 1_572_864].map(bytes), ["0 B", "1023 B", "1.0 KiB", "1.5 MiB"]);
    }
}
