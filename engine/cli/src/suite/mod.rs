//! `millpond run`: runs a suite with counts and a digest per query, on one device, with one allocator or several.
//!
//! ```text
//!   suite ─► a session for each allocator ─► for each query, for each session: run, again, validate ─► Row ─► a report
//!                                                                 └─ the CPU's answer, once ─┘
//! ```
//!
//! Time   Reported for real devices only. The first run of a query is the cold one; the page cache is not changed.
//! Turns  Allocators take turns query by query, and release unused memory before the next one's turn.
//! Seen   With --json or --trace the last run of a query is recorded, and its profile is reported.
//! Valid  Every run of a query is compared, including repeats: a run with a wrong answer is a problem, not a time.
//! Report Conditions of the run are in every line of JSON and at the head of Markdown ([`conditions`]); progress
//!        on a terminal.
//! Varied With --vary each run of a query has its own text, compared with the CPU's answer to it or not at all.

mod conditions;
mod print;
mod profile;
mod progress;
mod row;

use std::collections::HashMap;
use std::io::{self, Write};

use millpond::profile::Recording;
use millpond::{DeviceChoice, Millpond, Profile, Profiler};
use millpond_bench::runner::{Outcome, RunnerError, register_functions, register_tables, run_query, validate};
use millpond_memory::ByteSize;
use millpond_queries::{Query, Suite, SuiteError};

use crate::args::{ReportForm, RunArgs, SessionArgs, ValidateWith};
use crate::error::{CliError, Exit, tell};
use crate::interrupt::Interrupts;
use crate::manifest::{self, Manifest};
use crate::mem::strategies;
use crate::output::Output;
use crate::query::refuse_shared_files;
use crate::session;
use crate::trace::Trace;
use crate::unreadable::unreadable;
use conditions::{Conditions, Lane};
use progress::Progress;
use row::{Row, Sample};

/// Runs the suite; `Ok` carries exit 1 if an answer differed or a query failed, and the exit code of a signal that
/// ended it.
///
/// # Errors
/// Exit 2 for an unknown suite, query or parameter, 4 for missing tables and files, and the errors of opening a
/// session.
pub async fn run(args: &RunArgs, session_args: &SessionArgs) -> Result<Exit, CliError> {
    let mut suite = Suite::open(&args.suite).map_err(suite_error)?;
    for parameter in &args.parameters {
        suite.set_parameter(parameter).map_err(suite_error)?;
    }
    let queries = chosen(&suite, &args.queries).map_err(suite_error)?;
    let queries: Vec<Vec<Query>> =
        queries.iter().map(|query| runs_of(&suite, query, args)).collect::<Result<_, _>>()?;
    let sessions = one_for_each_allocator(session_args)?;
    let manifest = manifest_of(&suite, args, session_args.quiet);
    if let Some(manifest) = manifest.as_ref().filter(|manifest| manifest.suite == suite.name) {
        // The suggested command generates missing tables at the same scale.
        suite.data_command = Some(format!("millpond gen {} --scale {} --out", manifest.suite, manifest.scale));
    }
    let conditions = Conditions::new(&suite, args, manifest);
    let mut reference = match args.validate {
        Some(ValidateWith::Cpu) => Some(Reference::open(&suite, args, session_args).await?),
        None => None,
    };
    let form = if args.json { ReportForm::Json } else { args.report };
    let interrupts = Interrupts::listen()?;
    let mut trace = match session_args.trace.clone() {
        Some(path) => Some(interrupts.or_waiting(move || Trace::begin(&path)).await?),
        None => None,
    };
    let records = trace.is_some() || form == ReportForm::Json;
    let mut lanes = Vec::new();
    for session_args in &sessions {
        let session = open(&suite, args, session_args, None).await?;
        refuse_shared_files(&session, &Output::standard(), trace.as_ref())?;
        if let (Some(note), false, true) = (session.device_note(), session_args.quiet, lanes.is_empty()) {
            eprintln!("note: {note}");
        }
        let lane = Lane::of(&session, session_args);
        lanes.push((session, lane, Vec::new()));
    }
    if !session_args.quiet {
        eprintln!("{}\ndata   {}", suite.title, conditions.data_in_words());
        for (session, ..) in &lanes {
            if let (Some(engine), Some(ms)) = (session.engine(), opening_ms(session)) {
                eprintln!("{} opened in {ms:.1} ms", engine.name());
            }
        }
    }
    let (mut exit, count) = (Exit::Ok, lanes.len());
    let progress = Progress::new(queries.len() * count, session_args.quiet);
    'all: for (first, texts) in queries.iter().enumerate() {
        // The allocators run each query in turn, starting with a different one each time, so that none benefits from
        // warmed-up process state.
        for place in (first..first + count).map(|place| place % count) {
            let (session, lane, rows) = &mut lanes[place];
            progress.begin(&texts[0].id, lane.allocator);
            let running = run_one(session, reference.as_mut(), texts, records, trace.as_mut());
            let mut row = match interrupts.or_interrupted(async { Ok(running.await) }).await {
                Ok(row) => row,
                Err(ended) => {
                    // Report the queries that have run; drop the interrupted one for all allocators.
                    progress.done(|| tell(format_args!("{}: {}", texts[0].id, ended.message)));
                    exit = ended.exit;
                    lanes.iter_mut().for_each(|(.., rows)| rows.truncate(first));
                    break 'all;
                }
            };
            if count > 1 {
                leave_to_others(session);
            }
            exit = exit.max(row.exit);
            row.opening_ms = opening_ms(session);
            let printed = progress.done(|| match (form, &row.problem) {
                (ReportForm::Json, _) => writeln!(io::stdout(), "{}", row.json(conditions.json(lane))),
                (_, Some(problem)) => {
                    tell(format_args!("{}: {problem}", row.query));
                    Ok(())
                }
                (_, None) => Ok(()),
            });
            printed.map_err(|error| Output::standard().failure(&error))?;
            rows.push(row);
        }
    }
    drop(progress);
    if let Some(trace) = trace {
        trace.write()?;
    }
    let mut runs = Vec::new();
    for (session, lane, rows) in lanes {
        session::finish_log(&session)?;
        runs.push((lane, rows));
    }
    match form {
        ReportForm::Json => {}
        ReportForm::Table => print::table(&runs, session_args.quiet),
        ReportForm::Md => print::markdown(&conditions, &runs),
    }
    Ok(exit)
}

/// The manifest of the data. Prints a note if it is unreadable or does not list all tables.
fn manifest_of(suite: &Suite, args: &RunArgs, quiet: bool) -> Option<Manifest> {
    let note = |note: String| {
        if !quiet {
            tell(format_args!("note: {note}"));
        }
    };
    let read = Manifest::read(&args.data).unwrap_or_else(|error| {
        note(error.message);
        None
    });
    let strangers =
        read.as_ref().map(|manifest| conditions::strangers(suite, &args.data, manifest)).unwrap_or_default();
    if !strangers.is_empty() {
        let (data, name) = (args.data.display(), manifest::NAME);
        note(format!("{} in {data} is not in its {name}: it may be of another scale", strangers.join(", ")));
    }
    read
}

/// The requested queries, without duplicates; all of them by default.
fn chosen(suite: &Suite, wanted: &[String]) -> Result<Vec<Query>, SuiteError> {
    if wanted.is_empty() {
        return Ok(suite.queries.clone());
    }
    let mut chosen: Vec<Query> = Vec::with_capacity(wanted.len());
    for id in wanted {
        let query = suite.query(id)?;
        if !chosen.iter().any(|other| other.id == query.id) {
            chosen.push(query.clone());
        }
    }
    Ok(chosen)
}

/// The texts that a query's runs execute: equal ones, or with `--vary` one with other constants for each run.
fn runs_of(suite: &Suite, query: &Query, args: &RunArgs) -> Result<Vec<Query>, CliError> {
    let text = |run: u32| match args.vary {
        Some(seed) => suite.varied(query, seed, run.into()).map_err(suite_error),
        None => Ok(query.clone()),
    };
    (0..args.repeat.max(1)).map(text).collect()
}

/// The session flags for each strategy of `--allocator` (several, or `all`).
fn one_for_each_allocator(session_args: &SessionArgs) -> Result<Vec<SessionArgs>, CliError> {
    let several = session_args.allocator.as_deref().is_some_and(|list| list.contains(',') || list.trim() == "all");
    if !several {
        return Ok(vec![session_args.clone()]);
    }
    if session_args.memory_log.is_some() {
        return Err(CliError::usage("--memory-log takes the log of one --allocator, not of several"));
    }
    let with = |name: &str| SessionArgs { allocator: Some(name.to_string()), ..session_args.clone() };
    Ok(strategies(session_args, &[])?.iter().map(|strategy| with(strategy.name())).collect())
}

/// A session with the suite's functions and tables. Its queries read no file by name.
async fn open(
    suite: &Suite,
    args: &RunArgs,
    session_args: &SessionArgs,
    device: Option<DeviceChoice>,
) -> Result<Millpond, CliError> {
    let session = session::open_over_tables(session_args, device).await?;
    register_functions(&session, suite).map_err(runner)?;
    register_tables(&session, suite, &args.data).await.map_err(runner)?;
    Ok(session)
}

/// Milliseconds to open the session's device; not part of any query's time.
fn opening_ms(session: &Millpond) -> Option<f64> {
    session.engine().map(|engine| engine.opening().as_secs_f64() * 1e3)
}

/// Releases the pool's unused memory, so that every allocator finds the device as the first one did. A pool made for
/// export may keep it.
fn leave_to_others(session: &Millpond) {
    if let Some(engine) = session.engine() {
        let _ = engine.pool().trim_to(ByteSize::ZERO);
    }
}

/// The CPU's answers; each text runs once.
struct Reference {
    session: Millpond,
    /// Keyed by statement text.
    answers: HashMap<String, Result<Outcome, String>>,
}

impl Reference {
    async fn open(suite: &Suite, args: &RunArgs, session_args: &SessionArgs) -> Result<Self, CliError> {
        let one = SessionArgs { allocator: None, memory_log: None, ..session_args.clone() };
        let session = open(suite, args, &one, Some(DeviceChoice::Cpu)).await?;
        Ok(Self { session, answers: HashMap::new() })
    }

    async fn answer(&mut self, query: &Query) -> Result<&Outcome, String> {
        if !self.answers.contains_key(&query.sql) {
            let ran = run_query(&self.session, query).await.map_err(|error| format!("the CPU's run failed: {error}"));
            self.answers.insert(query.sql.clone(), ran);
        }
        self.answers[&query.sql].as_ref().map_err(Clone::clone)
    }
}

/// Runs a query once per text. A problem in any of the runs is recorded in the row. With `records` the last run is
/// profiled.
async fn run_one(
    session: &Millpond,
    mut reference: Option<&mut Reference>,
    texts: &[Query],
    records: bool,
    mut trace: Option<&mut Trace>,
) -> Row {
    let mut row = Row::new(&texts[0].id);
    for (query, time) in texts.iter().zip(1..) {
        let recorded = records && time == texts.len();
        let ran = match (&mut trace, recorded) {
            (_, false) => run_query(session, query).await,
            (None, true) => {
                let profiler = Profiler::begin(&query.id);
                let ran = profiler.around(run_query(session, query)).await;
                row.profile = Some(summary(session.profile(&profiler)));
                ran
            }
            (Some(trace), true) => {
                let traced = trace.query(&query.id);
                let ran = traced.profiler.around(run_query(session, query)).await;
                let profile = session.profile(&traced.profiler);
                trace.add(&traced, &profile);
                row.profile = Some(summary(profile));
                ran
            }
        };
        let actual = match ran {
            Ok(outcome) => outcome,
            Err(error) => {
                let error = runner(error);
                row.trouble(error.exit, error.message);
                return row;
            }
        };
        let report = &actual.report;
        if !report.findings.is_empty() {
            row.trouble(Exit::Sql, format!("findings: {}", report.findings.join(" | ")));
        }
        if report.pool_used_bytes > 0 {
            row.trouble(Exit::Sql, format!("{} bytes of device memory are left after it", report.pool_used_bytes));
        }
        let verdict = match (&mut reference, &row.outcome) {
            (Some(reference), _) => {
                let expected = reference.answer(query).await;
                Some(expected.and_then(|expected| compared(query, expected, &actual, "the CPU's")))
            }
            (None, Some(first)) if query.sql == texts[0].sql => {
                Some(compared(query, first, &actual, "those of its first run"))
            }
            (None, _) => None,
        };
        if reference.is_some() {
            row.validated = Some(row.validated != Some(false) && matches!(verdict, Some(Ok(()))));
        }
        if let Some(Err(difference)) = verdict {
            let nth = if time > 1 { format!("run {time}: ") } else { String::new() };
            row.trouble(Exit::Sql, format!("{nth}{difference}"));
        }
        row.samples.push(Sample::of(&actual));
        row.outcome.get_or_insert(actual);
    }
    row
}

/// A profile without its many events.
fn summary(profile: Profile) -> Profile {
    Profile { recording: Recording::default(), ..profile }
}

fn compared(query: &Query, expected: &Outcome, actual: &Outcome, whose: &str) -> Result<(), String> {
    validate(query, expected, actual).map_err(|difference| format!("answers differ from {whose}: {difference}"))
}

fn suite_error(error: SuiteError) -> CliError {
    match &error {
        SuiteError::Unreadable { .. } => CliError::file(error.to_string()),
        _ => CliError::usage(error.to_string()),
    }
}

fn runner(error: RunnerError) -> CliError {
    match &error {
        RunnerError::TableMissing { .. }
        | RunnerError::NoTables { .. }
        | RunnerError::NoFolder { .. }
        | RunnerError::NotAFolder { .. } => CliError::file(error.to_string()),
        RunnerError::FunctionMissing { .. } => CliError::usage(error.to_string()),
        RunnerError::Table { path, source, .. } => unreadable(&path.to_string_lossy(), source),
        // The caller names the query.
        RunnerError::Query { source, .. } => CliError::from_datafusion(source),
        _ => CliError::sql(error.to_string()),
    }
}
