//! `millpond run`: a suite once, with counts and a digest per query.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use millpond::{DeviceChoice, Millpond};
use millpond_bench::runner::{Outcome, RunnerError, register_tables, run_query, validate};
use millpond_queries::{Query, Suite, SuiteError};
use serde_json::json;

use crate::args::{RunArgs, SessionArgs, ValidateWith};
use crate::error::{CliError, Exit};
use crate::query::bytes;
use crate::session;

/// Runs the suite; `Ok` carries exit 1 when an answer differed or a query failed.
///
/// # Errors
/// Exit 2 for an unknown suite or query, 4 for missing tables, and what a session's opening gives.
pub async fn run(args: &RunArgs, session_args: &SessionArgs) -> Result<Exit, CliError> {
    let suite = Suite::named(&args.suite).map_err(usage)?;
    let queries: Vec<&Query> = if args.queries.is_empty() {
        suite.queries.iter().collect()
    } else {
        args.queries.iter().map(|id| suite.query(id)).collect::<Result<_, _>>().map_err(usage)?
    };
    let session = session::open(session_args, None).await?;
    if let (Some(note), false) = (session.device_note(), session_args.quiet) {
        eprintln!("note: {note}");
    }
    register_tables(&session, &suite, &args.data).await.map_err(runner)?;
    let cpu = match args.validate {
        Some(ValidateWith::Cpu) => {
            let cpu = session::open(session_args, Some(DeviceChoice::Cpu)).await?;
            register_tables(&cpu, &suite, &args.data).await.map_err(runner)?;
            Some(cpu)
        }
        None => None,
    };
    if !session_args.quiet {
        eprintln!("{}", suite.title);
    }

    let mut rows = Vec::new();
    let mut exit = Exit::Ok;
    for query in queries {
        let row = run_one(&session, cpu.as_ref(), query).await;
        exit = exit.max(row.exit);
        if args.json {
            println!("{}", row.json());
        } else if let (Some(problem), false) = (&row.problem, session_args.quiet) {
            eprintln!("{}: {problem}", row.query);
        }
        rows.push(row);
    }
    if !args.json {
        println!("{}", table(&rows));
        for (query, report) in rows.iter().filter_map(|row| Some((&row.query, &row.outcome.as_ref()?.report))) {
            if !report.reasons.is_empty() {
                println!("{query} on the CPU because {}", report.reasons.join("; "));
            }
            for note in &report.notes {
                println!("{query}: {note}");
            }
        }
    }
    session::finish_log(&session)?;
    Ok(exit)
}

struct Row {
    query: String,
    outcome: Option<Outcome>,
    /// Whether the answer equals the other device's; `None` when there was nothing to compare with.
    validated: Option<bool>,
    problem: Option<String>,
    exit: Exit,
}

async fn run_one(session: &Millpond, cpu: Option<&Millpond>, query: &Query) -> Row {
    let mut row = Row { query: query.id.clone(), outcome: None, validated: None, problem: None, exit: Exit::Ok };
    let actual = match run_query(session, query).await {
        Ok(outcome) => outcome,
        Err(error) => {
            let error = runner(error);
            row.exit = error.exit;
            row.problem = Some(error.message);
            return row;
        }
    };
    if !actual.report.findings.is_empty() {
        row.exit = Exit::Sql;
        row.problem = Some(format!("findings: {}", actual.report.findings.join(" | ")));
    }
    if let Some(cpu) = cpu {
        let verdict = match run_query(cpu, query).await {
            Ok(expected) => validate(query, &expected, &actual).map_err(|difference| difference.to_string()),
            Err(error) => Err(format!("the CPU's run failed: {error}")),
        };
        row.validated = Some(verdict.is_ok());
        if let Err(difference) = verdict {
            row.exit = Exit::Sql;
            row.problem = Some(format!("answers differ from the CPU's: {difference}"));
        }
    }
    row.outcome = Some(actual);
    row
}

impl Row {
    fn status(&self) -> &'static str {
        match (&self.outcome, self.validated, &self.problem) {
            (None, ..) => "failed",
            (_, Some(false), _) => "differs",
            (_, _, Some(_)) => "findings",
            (_, Some(true), None) => "equal",
            (_, None, None) => "ran",
        }
    }

    fn json(&self) -> serde_json::Value {
        let report = self.outcome.as_ref().map(|outcome| &outcome.report);
        json!({
            "query": self.query,
            "status": self.status(),
            "problem": self.problem,
            "rows": self.outcome.as_ref().map(|o| o.answer.num_rows()),
            "digest": self.outcome.as_ref().map(|o| o.answer.digest()),
            "device": report.and_then(|r| r.device.clone()),
            "memory_resource": report.and_then(|r| r.memory_resource),
            "elapsed_ms": self.elapsed_ms(),
            "launches": report.map(|r| r.launches),
            "pipelines": report.map(|r| r.pipelines),
            "ptx_instructions": report.map(|r| r.ptx_instructions),
            "host_waits": report.map(|r| r.host_waits),
            "allocations": report.map(|r| r.allocations),
            "uploaded_bytes": report.map(|r| r.uploaded_bytes),
            "downloaded_bytes": report.map(|r| r.downloaded_bytes),
            "peak_bytes": report.map(|r| r.peak_bytes),
            "spilled_bytes": report.map(|r| r.spilled_bytes),
            "pool_used_bytes": report.map(|r| r.pool_used_bytes),
            "operators_on_device": report.map(|r| r.operators_on_device),
            "operators": report.map(|r| r.operators),
            "reasons": report.map(|r| r.reasons.clone()),
            "notes": report.map(|r| r.notes.clone()),
            "findings": report.map(|r| r.findings.clone()),
        })
    }

    /// Milliseconds, but none for the simulated device, whose time says nothing.
    fn elapsed_ms(&self) -> Option<f64> {
        let outcome = self.outcome.as_ref()?;
        let simulated = outcome.report.device.as_deref().is_some_and(|device| device.contains("sim"));
        if simulated { None } else { Some(outcome.elapsed.as_secs_f64() * 1e3) }
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "query",
        "status",
        "rows",
        "digest",
        "ms",
        "launches",
        "pipelines",
        "ptx",
        "waits",
        "allocs",
        "up",
        "down",
        "peak",
        "on device",
    ]);
    for row in rows {
        let mut cells = vec![row.query.clone(), row.status().to_string()];
        if let Some(outcome) = &row.outcome {
            let report = &outcome.report;
            cells.extend([
                outcome.answer.num_rows().to_string(),
                outcome.answer.digest(),
                row.elapsed_ms().map_or("-".to_string(), |ms| format!("{ms:.1}")),
                report.launches.to_string(),
                report.pipelines.to_string(),
                report.ptx_instructions.to_string(),
                report.host_waits.to_string(),
                report.allocations.to_string(),
                bytes(report.uploaded_bytes),
                bytes(report.downloaded_bytes),
                bytes(report.peak_bytes),
                format!("{}/{}", report.operators_on_device, report.operators),
            ]);
        }
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(2).filter(|column| column.index != 3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = table.to_string();
    let failed = rows.iter().filter(|row| row.exit != Exit::Ok).count();
    let _ = write!(text, "\n{} queries, {failed} with problems", rows.len());
    text
}

fn usage(error: SuiteError) -> CliError {
    CliError::usage(error.to_string())
}

fn runner(error: RunnerError) -> CliError {
    match &error {
        RunnerError::TableMissing { .. } => CliError::file(error.to_string()),
        RunnerError::Table { table, source } => session::unreadable(table, source),
        RunnerError::Query { query, source } => {
            let inner = CliError::from_datafusion(source);
            CliError { exit: inner.exit, message: format!("{query}: {}", inner.message) }
        }
        _ => CliError::sql(error.to_string()),
    }
}
