//! Runs a script: statements of several sessions over one device, changes of files between them, and the answers
//! expected.
//!
//! ```text
//!   # a comment
//!   !new a cache_settle_seconds=0                     a session; all share the device of the first. Options go without
//!                                                     "millpond."
//!   !write d/x.parquet SELECT value AS a FROM generate_series(0, 9)       a file, written by DataFusion alone
//!   !sh mv d/x.parquet d/y.parquet                    a command, run in the script's own folder, which $DIR names
//!                                                     everywhere
//!   !udf a plus_seven := x + 7                        a function of a BIGINT, registered in session a
//!
//!   [a] SELECT count(*) FROM '$DIR/d/'                a statement, up to an empty line or the expected rows; door:
//!                                                     Millpond::execute
//!   ----
//!   10                                                a row a line, in any order; NULL, and (empty) for a text without
//!                                                     characters
//!
//!   [b/ctx planned] SELECT …                          by context().sql(), and no plan was found for it
//!   ----
//!   error: not found                                  it fails, with these words
//! ```
//!
//! Doors    `text` (execute), `stream`, `plan` (a logical plan, then a physical one), `ctx` (DataFusion's own door).
//! Claims   `planned`: no plan was found; `kept`: the statement's own plan; `template`: that of statements with other
//!          constants; `ordered`: so are the rows.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use futures::TryStreamExt;
use millpond::datafusion::arrow::array::{ArrayRef, Int64Array};
use millpond::datafusion::arrow::datatypes::DataType;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use millpond::datafusion::common::cast::as_int64_array;
use millpond::datafusion::error::DataFusionError;
use millpond::datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use millpond::datafusion::prelude::SessionConfig;
use millpond::{DeviceChoice, Millpond, PlansFound};

/// A step of a script, and its line.
struct Step {
    line: usize,
    what: What,
}

enum What {
    New { name: String, options: Vec<(String, String)> },
    Write { file: String, query: String },
    Shell(String),
    Function { session: String, name: String, operator: char, operand: i64 },
    Statement { session: String, door: Door, claims: Vec<String>, sql: String, expected: Option<Vec<String>> },
}

#[derive(Clone, Copy)]
enum Door {
    Text,
    Stream,
    Plan,
    Context,
}

/// What a script did.
#[derive(Debug, Default)]
pub struct Done {
    pub statements: usize,
    pub by_template: u64,
    pub kept: u64,
}

/// Runs the script `text`, whose sessions get these options beside their own.
///
/// # Errors
/// The first line that does not hold, and why.
pub async fn run(name: &str, text: &str, options: &[(&str, &str)]) -> Result<Done, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let mut script = Script { folder: folder.path(), options, sessions: vec![] };
    let mut done = Done::default();
    for step in parse(text).map_err(|(line, why)| format!("{name}:{line}: {why}"))? {
        script.step(step.what, &mut done).await.map_err(|why| format!("{name}:{}: {why}", step.line))?;
    }
    for (_, session) in &script.sessions {
        let found = session.plans_found();
        done.by_template += found.by_template;
        done.kept += found.kept;
    }
    Ok(done)
}

fn parse(text: &str) -> Result<Vec<Step>, (usize, String)> {
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line)).peekable();
    let mut steps = Vec::new();
    while let Some((line, first)) = lines.next() {
        if first.trim().is_empty() || first.starts_with('#') {
            continue;
        }
        let mut block = vec![first];
        let mut expected = None;
        while let Some((_, next)) =
            lines.next_if(|(_, next)| !next.trim().is_empty() && !next.starts_with(['!', '[', '#']))
        {
            match &mut expected {
                None if next == "----" => expected = Some(Vec::new()),
                None => block.push(next),
                Some(rows) => rows.push(next.to_string()),
            }
        }
        let what = parse_step(&block.join("\n"), expected).map_err(|why| (line, why))?;
        steps.push(Step { line, what });
    }
    Ok(steps)
}

fn parse_step(block: &str, expected: Option<Vec<String>>) -> Result<What, String> {
    let Some(command) = block.strip_prefix('!') else { return parse_statement(block, expected) };
    if expected.is_some() {
        return Err("only a statement has rows".to_string());
    }
    let (verb, rest) = command.split_once(' ').ok_or("a command has arguments")?;
    match verb {
        "sh" => Ok(What::Shell(rest.to_string())),
        "new" => {
            let mut words = rest.split_whitespace();
            let name = words.next().ok_or("a session has a name")?.to_string();
            let option = |word: &str| word.split_once('=').map(|(key, value)| (key.to_string(), value.to_string()));
            let options = words.map(|word| option(word).ok_or_else(|| format!("{word} is not KEY=VALUE")));
            Ok(What::New { name, options: options.collect::<Result<_, _>>()? })
        }
        "write" => {
            let (file, query) = rest.split_once(char::is_whitespace).ok_or("!write FILE QUERY")?;
            Ok(What::Write { file: file.to_string(), query: query.to_string() })
        }
        "udf" => {
            let words: Vec<&str> = rest.split_whitespace().collect();
            let [session, name, ":=", "x", operator @ ("+" | "-" | "*"), operand] = words.as_slice() else {
                return Err("!udf SESSION NAME := x + NUMBER".to_string());
            };
            let operand = operand.parse::<i64>().map_err(|error| format!("{operand}: {error}"))?;
            let operator = operator.chars().next().unwrap_or('+');
            Ok(What::Function { session: session.to_string(), name: name.to_string(), operator, operand })
        }
        other => Err(format!("there is no command !{other}")),
    }
}

fn parse_statement(block: &str, expected: Option<Vec<String>>) -> Result<What, String> {
    let (head, sql) =
        block.strip_prefix('[').and_then(|block| block.split_once(']')).ok_or("neither ! nor [session]")?;
    let mut words = head.split_whitespace();
    let (session, door) =
        words.next().map(|word| word.split_once('/').unwrap_or((word, "text"))).ok_or("no session")?;
    let door = match door {
        "text" => Door::Text,
        "stream" => Door::Stream,
        "plan" => Door::Plan,
        "ctx" => Door::Context,
        other => return Err(format!("there is no door {other}")),
    };
    let claims: Vec<String> = words.map(str::to_string).collect();
    if let Some(other) =
        claims.iter().find(|claim| !["planned", "kept", "template", "ordered"].contains(&claim.as_str()))
    {
        return Err(format!("there is no claim {other}"));
    }
    Ok(What::Statement { session: session.to_string(), door, claims, sql: sql.trim().to_string(), expected })
}

/// A script that runs.
struct Script<'a> {
    folder: &'a Path,
    options: &'a [(&'a str, &'a str)],
    sessions: Vec<(String, Millpond)>,
}

impl Script<'_> {
    async fn step(&mut self, what: What, done: &mut Done) -> Result<(), String> {
        match what {
            What::New { name, options } => self.begin(name, &options),
            What::Write { file, query } => {
                let plain = self.session(DeviceChoice::Cpu, &[])?;
                let file = self.folder.join(file);
                if let Some(folder) = file.parent() {
                    std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
                }
                let sql = format!("COPY ({}) TO '{}'", self.filled(&query), file.display());
                plain.execute(&sql).await.map(drop).map_err(|error| error.to_string())
            }
            What::Shell(command) => {
                let command = self.filled(&command);
                let ran = Command::new("sh").args(["-ec", &command]).current_dir(self.folder).output();
                match ran {
                    Ok(output) if output.status.success() => Ok(()),
                    Ok(output) => Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr))),
                    Err(error) => Err(format!("{command}: {error}")),
                }
            }
            What::Function { session, name, operator, operand } => {
                let body = move |arguments: &[ColumnarValue]| {
                    let arrays = ColumnarValue::values_to_arrays(arguments)?;
                    let value = |x: i64| match operator {
                        '-' => x - operand,
                        '*' => x * operand,
                        _ => x + operand,
                    };
                    let values: Int64Array = as_int64_array(&arrays[0])?.iter().map(|x| x.map(value)).collect();
                    Ok(ColumnarValue::Array(Arc::new(values) as ArrayRef))
                };
                let types = (vec![DataType::Int64], DataType::Int64);
                let function = create_udf(&name, types.0, types.1, Volatility::Immutable, Arc::new(body));
                self.named(&session)?.context().register_udf(function);
                Ok(())
            }
            What::Statement { session, door, claims, sql, expected } => {
                done.statements += 1;
                let session = self.named(&session)?;
                let before = session.plans_found();
                let answer = rows(session, door, &self.filled(&sql)).await;
                hold(&claims, before, session.plans_found()).map_err(|why| format!("{sql}: {why}"))?;
                let expected = expected.map(|rows| rows.iter().map(|row| self.filled(row)).collect::<Vec<_>>());
                compare(answer, expected.as_deref(), claims.iter().any(|claim| claim == "ordered"))
                    .map_err(|why| format!("{sql}: {why}"))
            }
        }
    }

    fn begin(&mut self, name: String, options: &[(String, String)]) -> Result<(), String> {
        let session = self.session(DeviceChoice::Sim, options)?;
        self.sessions.retain(|(known, _)| *known != name);
        self.sessions.push((name, session));
        Ok(())
    }

    fn session(&self, device: DeviceChoice, options: &[(String, String)]) -> Result<Millpond, String> {
        let config = SessionConfig::new().with_target_partitions(2).with_information_schema(true);
        let mut builder = Millpond::builder().with_device(device).with_config(config).with_url_tables();
        let of_all = self.options.iter().map(|(key, value)| (*key, *value));
        for (key, value) in of_all.chain(options.iter().map(|(key, value)| (key.as_str(), value.as_str()))) {
            builder = builder.with_option(key, value).map_err(|error| error.to_string())?;
        }
        if let (Some((_, first)), DeviceChoice::Sim) = (self.sessions.first(), device)
            && let Some(engine) = first.engine()
        {
            builder = builder.with_engine(Arc::clone(engine));
        }
        builder.build().map_err(|error| error.to_string())
    }

    fn named(&self, name: &str) -> Result<&Millpond, String> {
        let found = self.sessions.iter().find(|(known, _)| known == name);
        found.map(|(_, session)| session).ok_or_else(|| format!("there is no session {name}: !new {name}"))
    }

    fn filled(&self, text: &str) -> String {
        text.replace("$DIR", &self.folder.display().to_string())
    }
}

/// The rows of a statement, as text.
async fn rows(session: &Millpond, door: Door, sql: &str) -> Result<Vec<String>, String> {
    let text = |error: DataFusionError| error.strip_backtrace();
    let executed = match door {
        Door::Text => session.execute(sql).await.map(|result| (result.batches, result.report.findings)),
        Door::Plan => {
            let run = async {
                let statement = session.statement(sql).await?;
                session.execute_plan(session.plan_statement(statement).await?).await
            };
            run.await.map(|result| (result.batches, result.report.findings))
        }
        Door::Stream => {
            let run = async {
                let mut stream = session.stream(sql).await?;
                let batches = (&mut stream).try_collect::<Vec<RecordBatch>>().await?;
                Ok::<_, DataFusionError>((batches, stream.report().await.findings))
            };
            run.await
        }
        Door::Context => {
            let run = async { session.context().sql(sql).await?.collect().await };
            run.await.map(|batches| (batches, vec![]))
        }
    };
    let (batches, findings) = executed.map_err(text)?;
    if !findings.is_empty() {
        return Err(format!("the simulated device found: {}", findings.join(" | ")));
    }
    let options = FormatOptions::new().with_null("NULL");
    let mut rows = Vec::new();
    for batch in &batches {
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let columns = columns.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        let cell = |text: String| if text.is_empty() { "(empty)".to_string() } else { text };
        rows.extend(
            (0..batch.num_rows()).map(|row| {
                columns.iter().map(|column| cell(column.value(row).to_string())).collect::<Vec<_>>().join(" ")
            }),
        );
    }
    Ok(rows)
}

/// # Errors
/// A claim about where the plan was found that does not hold.
fn hold(claims: &[String], before: PlansFound, now: PlansFound) -> Result<(), String> {
    let found = PlansFound { kept: now.kept - before.kept, by_template: now.by_template - before.by_template };
    let expected = |claim: &str| match claim {
        "planned" => Some(PlansFound::default()),
        "kept" => Some(PlansFound { kept: 1, by_template: 0 }),
        "template" => Some(PlansFound { kept: 0, by_template: 1 }),
        _ => None,
    };
    match claims.iter().find(|claim| expected(claim).is_some_and(|expected| expected != found)) {
        Some(claim) => Err(format!("claimed {claim}, but {found:?}")),
        None => Ok(()),
    }
}

fn compare(answer: Result<Vec<String>, String>, expected: Option<&[String]>, ordered: bool) -> Result<(), String> {
    match (answer, expected) {
        (Err(error), Some([words])) if words.starts_with("error: ") => {
            let words = words.trim_start_matches("error: ");
            if error.contains(words) { Ok(()) } else { Err(format!("failed without '{words}': {error}")) }
        }
        (Err(error), _) => Err(error),
        (Ok(_), None) => Ok(()),
        (Ok(mut rows), Some(expected)) => {
            let mut expected = expected.to_vec();
            if !ordered {
                rows.sort();
                expected.sort();
            }
            let lines = |rows: &[String]| rows.join("\n  ");
            let differ = || format!("expected\n  {}\ngot\n  {}", lines(&expected), lines(&rows));
            if rows == expected { Ok(()) } else { Err(differ()) }
        }
    }
}
