//! `millpond qualify`: the share of each statement that would run on a device, and the reasons for the rest. Needs no
//! GPU and runs no query.
//!
//! ```text
//!   -c / -f ─► statements ─┬─ CREATE, DROP, SET … ─► executed, since later statements need them
//!                          ├─ CREATE TABLE … AS   ─► its query is planned, and the table is created without rows
//!                          └─ queries, COPY, DML  ─► planned for a simulated device ─► n of m operators, coded reasons
//! ```
//!
//! Writes  No files: COPY, INSERT, UPDATE and DELETE are planned like queries.
//! Errors  A failing statement is reported with its message, and the others continue; the exit code is the worst one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use millpond::datafusion::catalog::MemTable;
use millpond::datafusion::common::DataFusionError;
use millpond::datafusion::error::Result as PlanResult;
use millpond::datafusion::logical_expr::{DdlStatement, LogicalPlan};
use millpond::error::reason::KINDS;
use millpond::explain::{Placement, PlacementReason};
use millpond::{DeviceChoice, Millpond};
use serde_json::{Value, json};

use crate::args::{QualifyArgs, QualifyFormat, Script, SessionArgs};
use crate::error::{CliError, Exit};
use crate::interrupt::Interrupts;
use crate::query::{read_script, read_stdin};
use crate::session;
use crate::statements::{Statement, split};
use crate::unreadable::planning_error;

/// A statement's result.
struct Row {
    /// From 1, over all scripts.
    statement: usize,
    /// The script's file; `None` for `-c`.
    file: Option<String>,
    /// The line of the script where the statement begins, from 1.
    line: u64,
    sql: String,
    /// `None` for a definition, and for a statement that could not be planned.
    placement: Option<Placement>,
    error: Option<String>,
}

/// Plans the statements of the command line; `Ok` carries the worst exit code.
///
/// # Errors
/// Exit 2 for flags, 4 for a script or a table that cannot be read.
pub async fn run(args: &QualifyArgs, session_args: &SessionArgs) -> Result<Exit, CliError> {
    if let Some(device) = session_args.device.as_deref().filter(|device| *device != "sim") {
        return Err(CliError::usage(format!(
            "--device {device} has no meaning here: qualify runs nothing, and plans for a simulated device"
        )));
    }
    let scripts = scripts(args)?;
    // Here fallbacks are the answer, not an error.
    let session_args = SessionArgs { fallback: Some("allow".to_string()), ..session_args.clone() };
    let interrupts = Interrupts::listen()?;
    let session = session::open(&session_args, Some(DeviceChoice::Sim)).await?;
    session::add_folders(&session, &args.data).await?;
    let (mut rows, mut worst) = (Vec::new(), Exit::Ok);
    for (file, script) in &scripts {
        for statement in split(script).map_err(|error| CliError::script(&error, script))? {
            let planned = interrupts.or_interrupted(async { Ok(qualified(&session, &statement).await) }).await?;
            let (placement, error) = match planned {
                Ok(placement) => (placement, None),
                Err(error) => {
                    worst = worst.max(error.exit);
                    (None, Some(error.message))
                }
            };
            let (number, line) = (rows.len() + 1, statement.first_line + 1);
            rows.push(Row { statement: number, file: file.clone(), line, sql: statement.sql, placement, error });
        }
    }
    if rows.is_empty() {
        return Err(CliError::usage("there is no statement: give some with -c SQL, -f FILE or on standard input"));
    }
    match if args.json { QualifyFormat::Json } else { args.format } {
        QualifyFormat::Table => print!("{}", table(&rows)),
        QualifyFormat::Json => println!("{}", json(&rows)),
    }
    Ok(worst)
}

/// The scripts with the names of their files: -c and -f in their order, else standard input.
fn scripts(args: &QualifyArgs) -> Result<Vec<(Option<String>, String)>, CliError> {
    let mut scripts = Vec::with_capacity(args.scripts.len());
    for script in &args.scripts {
        let (file, text) = match script {
            Script::Bare(text) | Script::Text(text) => (None, text.clone()),
            Script::File(file) if file == Path::new("-") => (Some(file), read_stdin()?),
            Script::File(file) => (Some(file), read_script(file)?),
        };
        let text = text.strip_prefix('\u{feff}').map(str::to_string).unwrap_or(text);
        scripts.push((file.map(|file| file.display().to_string()), text));
    }
    if scripts.is_empty() {
        scripts.push((None, read_stdin()?));
    }
    Ok(scripts)
}

/// The placement of a statement; `None` for a definition, which is executed.
async fn qualified(session: &Millpond, statement: &Statement) -> Result<Option<Placement>, CliError> {
    match placed(session, &statement.sql).await {
        Ok(placement) => Ok(placement),
        Err(error) => Err(planning_error(session, statement, &error).await),
    }
}

async fn placed(session: &Millpond, sql: &str) -> PlanResult<Option<Placement>> {
    let state = session.context().state();
    let plan = millpond::session::sql::logical_plan(&state, sql).await?;
    let plan = millpond::files::address::in_plan(plan)?;
    let query = match plan {
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => {
            let placement = placement(session, &create.input).await?;
            let exists = session.context().table_exist(create.name.clone())?;
            match (exists, create.if_not_exists, create.or_replace) {
                (true, true, _) => return Ok(Some(placement)),
                (true, false, false) => {
                    return Err(DataFusionError::Plan(format!("table '{}' exists already", create.name)));
                }
                (true, false, true) => drop(session.context().deregister_table(create.name.clone())?),
                (false, ..) => {}
            }
            let table = MemTable::try_new(Arc::clone(create.input.schema().inner()), vec![vec![]])?;
            session.context().register_table(create.name, Arc::new(table))?;
            return Ok(Some(placement));
        }
        plan @ (LogicalPlan::Ddl(_) | LogicalPlan::Statement(_)) => {
            millpond::session::sql::run_plan(session.context(), plan).await?;
            return Ok(None);
        }
        LogicalPlan::Explain(explain) => Arc::unwrap_or_clone(explain.plan),
        LogicalPlan::Analyze(analyze) => Arc::unwrap_or_clone(analyze.input),
        query => query,
    };
    placement(session, &query).await.map(Some)
}

async fn placement(session: &Millpond, query: &LogicalPlan) -> PlanResult<Placement> {
    let plan = millpond::session::sql::physical_plan(&session.context().state(), query).await?;
    Ok(Placement::of(&plan, session.operators()))
}

/// Sums over all statements.
struct Totals {
    statements: usize,
    /// Statements with operators over table rows.
    with_operators: usize,
    /// Statements whose operators would all run on the device.
    wholly_on_device: usize,
    operators_on_device: usize,
    operators: usize,
    failed: usize,
    /// Number of statements by reason code.
    reasons: BTreeMap<&'static str, usize>,
}

fn totals(rows: &[Row]) -> Totals {
    let placements = || rows.iter().filter_map(|row| row.placement.as_ref()).filter(|of| of.operators > 0);
    let mut reasons = BTreeMap::new();
    for placement in rows.iter().filter_map(|row| row.placement.as_ref()) {
        let mut codes: Vec<&'static str> = placement.reasons.iter().map(|reason| reason.code).collect();
        codes.dedup();
        codes.into_iter().for_each(|code| *reasons.entry(code).or_default() += 1);
    }
    Totals {
        statements: rows.len(),
        with_operators: placements().count(),
        wholly_on_device: placements().filter(|of| of.operators_on_device == of.operators).count(),
        operators_on_device: placements().map(|of| of.operators_on_device).sum(),
        operators: placements().map(|of| of.operators).sum(),
        failed: rows.iter().filter(|row| row.error.is_some()).count(),
        reasons,
    }
}

fn json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        let placement = row.placement.as_ref();
        json!({
            "statement": row.statement,
            "file": row.file,
            "line": row.line,
            "sql": row.sql,
            "operators_on_device": placement.map(|placement| placement.operators_on_device),
            "operators": placement.map(|placement| placement.operators),
            "reasons": placement.map(|placement| &placement.reasons),
            "error": row.error,
        })
    };
    let totals = totals(rows);
    json!({
        "statements": rows.iter().map(row).collect::<Vec<_>>(),
        "totals": {
            "statements": totals.statements,
            "with_operators": totals.with_operators,
            "wholly_on_device": totals.wholly_on_device,
            "operators_on_device": totals.operators_on_device,
            "operators": totals.operators,
            "failed": totals.failed,
            "reasons": totals.reasons,
        },
    })
}

/// Maximum columns of a line for a statement's text.
const TEXT: usize = 72;

/// A line for each statement, its reasons below it, and totals.
fn table(rows: &[Row]) -> String {
    let mut lines = vec![format!("{:>4} {:>5}  {:>9}  statement", "#", "line", "on device")];
    for row in rows {
        let Row { statement, line, placement, error, .. } = row;
        let share = match (placement, error) {
            (Some(placement), _) => format!("{} of {}", placement.operators_on_device, placement.operators),
            (None, Some(_)) => "error".to_string(),
            (None, None) => "defined".to_string(),
        };
        lines.push(format!("{statement:>4} {line:>5}  {share:>9}  {}", one_line(&row.sql)));
        let reasons = placement.iter().flat_map(|placement| &placement.reasons);
        lines.extend(reasons.map(|reason| format!("{:>23}{}", "", reason_text(reason))));
        let error = error.iter().flat_map(|error| error.lines());
        lines.extend(error.map(|line| format!("{:>23}{line}", "")));
    }
    let totals = totals(rows);
    lines.push(String::new());
    lines.push(format!(
        "{} of {} operators would run on the device; {} of {} statements with operators wholly",
        totals.operators_on_device, totals.operators, totals.wholly_on_device, totals.with_operators
    ));
    if totals.failed > 0 {
        lines.push(format!("{} of {} statements could not be planned", totals.failed, totals.statements));
    }
    let mut reasons: Vec<_> = totals.reasons.into_iter().collect();
    reasons.sort_by_key(|(code, statements)| (usize::MAX - statements, *code));
    if !reasons.is_empty() {
        lines.push("reasons by statements (docs/reasons.md has the ways out)".to_string());
    }
    for (code, statements) in reasons {
        let description = KINDS.iter().find(|kind| kind.code == code).map_or("", |kind| kind.description);
        lines.push(format!("{statements:>6}  {code}: {description}"));
    }
    lines.join("\n") + "\n"
}

/// "too-few-rows: its input has 3 rows, and millpond.min_rows is 10 (SET millpond.min_rows)"
fn reason_text(reason: &PlacementReason) -> String {
    let setting = reason.setting.map(|setting| format!(" (SET {setting} changes it)")).unwrap_or_default();
    format!("{}: {}{setting}", reason.code, reason.text)
}

/// The beginning of a statement, with each run of whitespace as one blank.
fn one_line(sql: &str) -> String {
    let code = sql.lines().filter(|line| !line.trim_start().starts_with("--"));
    let text = code.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(TEXT) {
        Some((end, _)) => format!("{}…", text[..end].trim_end()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_shown_in_one_line() {
        assert_eq!(one_line("-- why\nSELECT a,\n   b\nFROM t"), "SELECT a, b FROM t");
        let long = format!("SELECT {}", "column, ".repeat(40));
        let shown = one_line(&long);
        assert!(shown.ends_with('…') && shown.chars().count() <= TEXT + 1, "{shown}");
    }
}
