//! The shell: statements and commands at a prompt, until the user leaves it.
//!
//! ```text
//!   rc.sql ─► LineEditor ─┬─ a command ──────► commands ─► Shell
//!                  ▲      └─ statements ─────► Runner ──► screen, pager, or the file of \o
//!                  └───────── errors are printed, the session stays ◄─┘
//! ```
//!
//! Ctrl-C   At the prompt it clears the line; during a query it ends the query, which frees its device memory.
//! Plans    Repeated queries reuse the plans that were cached by statement text, as in suites.

mod commands;
mod complete;
mod editor;
mod places;
mod words;

use std::io::{self, IsTerminal};
use std::path::Path;

use clap::ValueEnum;
use millpond::Millpond;
use millpond::datafusion::logical_expr::LogicalPlan;
use millpond::error::reason::KINDS;

use crate::answer::{Look, Runner};
use crate::args::{Cli, Format, Rows, rows as rows_wanted};
use crate::error::{CliError, Exit, tell, tell_error};
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::pager::Pager;
use crate::query::{bytes, chosen_fit, format_of_file, read_script};
use crate::statements::{self, Statement, split};
use crate::table::Fit;
use crate::types::type_name;
use crate::unreadable::planning_error;
use crate::{session, terminal, version};
use commands::Command;
use complete::Completions;
use editor::{LineEditor, Typed};

pub use commands::is_command;

/// Runs the shell.
///
/// # Errors
/// Errors of opening the session, and of an unreadable terminal.
pub async fn run(cli: &Cli) -> Result<Exit, CliError> {
    if cli.session.trace.is_some() {
        return Err(CliError::usage("--trace takes statements (-c, -f); in the shell there is EXPLAIN ANALYZE"));
    }
    if cli.query.format.is_binary() && cli.query.output.is_none() {
        let format = cli.query.format.name();
        return Err(CliError::usage(format!(
            "a terminal cannot show {format}: in the shell, \\o FILE.{format} writes it"
        )));
    }
    let interrupts = Interrupts::listen_in_shell()?;
    terminal::remember();
    let session = session::open(&cli.session, None).await?;
    session::add_folders(&session, &cli.query.data).await?;
    if !cli.session.quiet {
        let device = session.engine().map_or("the CPU", |engine| engine.name());
        tell(format_args!(
            "millpond {} on {device}. Statements end with ; and \\? lists the commands.",
            version::VERSION
        ));
        if let Some(note) = session.device_note() {
            tell(format_args!("note: {note}"));
        }
    }
    let mut shell = Shell::new(cli, &session, &interrupts);
    if let Some(path) = &cli.query.output {
        shell.write_to(Some(&path.display().to_string()))?;
    }
    let mut editor =
        LineEditor::new(Completions::new(session.context().clone()), places::history()).map_err(terminal_error)?;
    if let Err((path, error)) = editor.open_history() {
        tell(format_args!("note: the history is not kept: '{}': {error}", path.display()));
    }
    if !cli.query.no_rc
        && let Some(rc) = places::rc().filter(|rc| rc.exists())
    {
        match shell.read(&rc).await {
            Ok(()) => {}
            Err(Stop::Leave) => return shell.close(),
            Err(Stop::Error(error)) => tell_error(&error),
        }
    }
    loop {
        // Waiting at the prompt blocks this thread; the runtime has others.
        match tokio::task::block_in_place(|| editor.read()).map_err(terminal_error)? {
            Typed::End => break,
            Typed::Interrupted => continue,
            Typed::Text(text) => match shell.take(&text).await {
                Ok(()) => {}
                Err(Stop::Leave) => break,
                Err(Stop::Error(error)) if error.is_reader_gone() => {}
                Err(Stop::Error(error)) if matches!(error.exit, Exit::Terminated | Exit::HungUp) => return Err(error),
                // Ending a query on request is not an error.
                Err(Stop::Error(error)) if error.exit == Exit::Interrupted => tell(&error.message),
                Err(Stop::Error(error)) => tell_error(&error),
            },
        }
        editor.forget_names();
    }
    shell.close()
}

fn terminal_error(error: rustyline::error::ReadlineError) -> CliError {
    CliError::file(format!("cannot read from the terminal: {error}"))
}

/// Reason why the rest of an input is not run.
enum Stop {
    Error(CliError),
    Leave,
}

impl From<CliError> for Stop {
    fn from(error: CliError) -> Self {
        Self::Error(error)
    }
}

/// A session and its settings.
struct Shell<'a> {
    cli: &'a Cli,
    runner: Runner<'a>,
    interrupts: &'a Interrupts,
    /// The format for the screen.
    format: Format,
    /// The file of `\o`.
    file: Option<Output>,
    has_pager: bool,
    has_footer: bool,
    rows: Option<Rows>,
    /// Depth of nested files being read; limits files that read themselves.
    reading: usize,
}

/// Maximum depth of files that read each other.
const READ_DEPTH: usize = 16;

impl<'a> Shell<'a> {
    fn new(cli: &'a Cli, session: &'a Millpond, interrupts: &'a Interrupts) -> Self {
        let format = match cli.query.format {
            Format::Auto => Format::Table,
            format => format,
        };
        let notes = !cli.session.quiet;
        let look = Look { format, fit: chosen_fit(&cli.query), footer: notes, notes, is_shell: true };
        Self {
            cli,
            runner: Runner::new(session, look),
            interrupts,
            format,
            file: None,
            has_pager: true,
            has_footer: notes,
            rows: cli.query.rows,
            reading: 0,
        }
    }

    /// Finishes the file of `\o` and the memory log.
    fn close(mut self) -> Result<Exit, CliError> {
        self.write_to(None)?;
        session::finish_log(self.runner.session())?;
        Ok(Exit::Ok)
    }

    /// Runs typed input: one command, or statements.
    async fn take(&mut self, text: &str) -> Result<(), Stop> {
        let word = text.trim().trim_end_matches(';').trim_end();
        if is_command(text) {
            return self.command(text).await;
        }
        match word.to_ascii_lowercase().as_str() {
            "quit" | "exit" => Err(Stop::Leave),
            "help" => self.command("\\?").await,
            // Pasted text may contain commands between its statements.
            _ => self.script(text).await,
        }
    }

    /// Runs the commands and statements of a file.
    async fn read(&mut self, path: &Path) -> Result<(), Stop> {
        if self.reading >= READ_DEPTH {
            return Err(CliError::usage(format!("'{}' is read by files that read each other", path.display())).into());
        }
        self.reading += 1;
        let script = read_script(path);
        let ended = match script {
            Ok(script) => self.script(&script).await,
            Err(error) => Err(error.into()),
        };
        self.reading -= 1;
        ended
    }

    async fn script(&mut self, script: &str) -> Result<(), Stop> {
        for piece in pieces(script) {
            match piece {
                Piece::Command(line) => Box::pin(self.command(line)).await?,
                Piece::Statements(text, first_line) => self.statements(text, first_line).await?,
            }
        }
        Ok(())
    }

    async fn statements(&mut self, text: &str, first_line: u64) -> Result<(), Stop> {
        for mut statement in split(text).map_err(|error| CliError::script(&error, text))? {
            statement.first_line += first_line;
            self.statement(&statement).await?;
        }
        Ok(())
    }

    async fn statement(&mut self, statement: &Statement) -> Result<(), CliError> {
        self.runner.look.footer = self.has_footer;
        if self.file.is_some() {
            return self.statement_to_file(statement).await;
        }
        let mut query = self.cli.query.clone();
        query.rows = self.rows;
        self.runner.look.format = self.format;
        self.runner.look.fit = chosen_fit(&query);
        let height = terminal_size::terminal_size_of(io::stdout()).map_or(24, |(_, height)| usize::from(height.0));
        let mut output = if self.has_pager { Output::paged(Pager::new(height)) } else { Output::standard() };
        self.runner.begin_output();
        let work = self.runner.run_profiled(statement, &mut output);
        self.interrupts.or_interrupted(work).await??;
        output.commit()
    }

    async fn statement_to_file(&mut self, statement: &Statement) -> Result<(), CliError> {
        let Some(output) = &mut self.file else { return Ok(()) };
        let mark = output.mark()?;
        let ended = self.interrupts.or_interrupted(self.runner.run_profiled(statement, output)).await;
        match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) | Err(error) => {
                output.cut_to(mark)?;
                Err(error)
            }
        }
    }

    async fn command(&mut self, line: &str) -> Result<(), Stop> {
        match commands::parse(line).map_err(CliError::usage)? {
            Command::Help => tell(commands::help().trim_end()),
            Command::Describe(name) => {
                let name = if Path::new(&name).is_file() { format!("'{}'", name.replace('\'', "''")) } else { name };
                self.describe(&name).await?;
            }
            Command::Tables => {
                self.look_up(
                    "SELECT table_schema AS \"schema\", table_name AS \"name\", table_type AS \"type\" \
                     FROM information_schema.tables WHERE table_schema <> 'information_schema' ORDER BY 1, 2",
                )
                .await?;
            }
            Command::Schemas => {
                self.look_up(
                    "SELECT catalog_name AS \"catalog\", schema_name AS \"schema\" FROM information_schema.schemata ORDER BY 1, 2",
                )
                .await?;
            }
            Command::Timing(on) => {
                self.has_footer = on.unwrap_or(!self.has_footer);
                tell(format_args!("the line after each answer is {}", switched(self.has_footer)));
            }
            Command::Output(file) => self.write_to(file.as_deref())?,
            Command::Read(file) => Box::pin(self.read(Path::new(&file))).await?,
            Command::Lines(on) => {
                let on = on.unwrap_or(self.format != Format::Line);
                self.format = if on { Format::Line } else { Format::Table };
                tell(format_args!("a line for each value is {}", switched(on)));
            }
            Command::Format(format) => self.set_format(format.as_deref())?,
            Command::Rows(rows) => {
                if let Some(rows) = rows {
                    self.rows =
                        Some(rows_wanted(&rows).map_err(|wanted| CliError::usage(format!("\\rows: {wanted}")))?);
                }
                tell(match self.rows {
                    Some(Rows::All) => "a table shows all rows".to_string(),
                    Some(Rows::AtMost(rows)) => format!("a table shows {rows} rows"),
                    None => "a table shows 40 rows".to_string(),
                });
            }
            Command::Pager(on) => {
                self.has_pager = on.unwrap_or(!self.has_pager);
                tell(format_args!("the pager is {}", switched(self.has_pager)));
            }
            Command::Why => tell(self.why()),
            Command::Cache => {
                if self.runner.session().engine().is_none() {
                    tell("columns are kept on a device, and there is none");
                    return Ok(());
                }
                self.look_up("SELECT * FROM millpond_cache()").await?;
                tell(format_args!(
                    "device memory in use by queries: {}",
                    bytes(self.runner.session().pool_used_bytes())
                ));
            }
            Command::Quit => return Err(Stop::Leave),
        }
        Ok(())
    }

    /// Shows the columns of a relation, with the type names that tables use.
    async fn describe(&mut self, name: &str) -> Result<(), CliError> {
        let statement = Statement { sql: format!("DESCRIBE {name}"), first_line: 0 };
        let session = self.runner.session();
        let planned = match session.statement(&statement.sql).await {
            Ok(planned) => planned,
            Err(error) => return Err(planning_error(session, &statement, &error).await),
        };
        let LogicalPlan::DescribeTable(table) = planned.plan() else {
            return Err(CliError::usage(format!("\\d takes the name of a table, or a file in quotes, not {name}")));
        };
        let text = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let rows = table.schema.fields().iter().map(|field| {
            let (column, data_type) = (text(field.name()), text(&type_name(field.data_type())));
            format!("({column}, {data_type}, {})", text(if field.is_nullable() { "yes" } else { "no" }))
        });
        let rows: Vec<String> = rows.collect();
        if rows.is_empty() {
            tell(format_args!("{name} has no columns"));
            return Ok(());
        }
        let rows = rows.join(", ");
        self.look_up(&format!("SELECT * FROM (VALUES {rows}) AS columns(\"column\", \"type\", \"nullable\")")).await
    }

    /// Runs an internal statement of the shell.
    async fn look_up(&mut self, sql: &str) -> Result<(), CliError> {
        let had_footer = std::mem::replace(&mut self.has_footer, false);
        let last = self.runner.last_report();
        let ended = self.statement(&Statement { sql: sql.to_string(), first_line: 0 }).await;
        self.runner.set_last_report(last);
        self.has_footer = had_footer;
        ended
    }

    /// Redirects answers to a file, or to the screen. Finishes the previous file.
    fn write_to(&mut self, path: Option<&str>) -> Result<(), CliError> {
        let next = match path {
            Some(path) => Some((Output::open(Path::new(path))?, format_of_file(&self.cli.query, Path::new(path))?)),
            None => None,
        };
        if let Some(file) = self.file.take() {
            file.commit()?;
        }
        self.runner.begin_output();
        if let Some((output, format)) = next {
            self.runner.look.format = format;
            self.runner.look.fit = Fit::default();
            self.file = Some(output);
        }
        Ok(())
    }

    fn set_format(&mut self, name: Option<&str>) -> Result<(), CliError> {
        if let Some(name) = name {
            let format = Format::from_str(name, true).map_err(|_| {
                let names: Vec<String> = Format::value_variants()
                    .iter()
                    .filter(|format| !format.is_binary())
                    .map(|format| format.name())
                    .collect();
                CliError::usage(format!("there is no format '{name}': there are {}", names.join(", ")))
            })?;
            if format.is_binary() {
                return Err(CliError::usage(format!("a terminal cannot show {name}: \\o FILE.{name} writes it")));
            }
            self.format = if format == Format::Auto { Format::Table } else { format };
        }
        tell(format_args!("answers are shown as {}", self.format.name()));
        Ok(())
    }

    /// Where the last query ran, and the reasons for what did not run on the device.
    fn why(&self) -> String {
        let Some(report) = self.runner.last_report() else { return "no query has run yet".to_string() };
        let Some(device) = &report.device else {
            let note = self.runner.session().device_note().unwrap_or("it was opened with --device cpu");
            return format!("this session has no device: {note}");
        };
        let mut text = format!("{} of {} operators ran on {device}", report.operators_on_device, report.operators);
        for line in report.reasons.iter().chain(&report.notes) {
            text += &format!("\n- {line}");
        }
        for code in &report.reason_codes {
            let setting = KINDS.iter().find(|kind| kind.code == *code).and_then(|kind| kind.setting);
            let setting = setting.map_or_else(String::new, |setting| format!("; {setting} changes it"));
            text += &format!("\n{code}: docs/reasons.md#{code}{setting}");
        }
        text
    }
}

fn switched(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// A part of a script.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Command(&'a str),
    /// Statements, and the line where they begin, from 0.
    Statements(&'a str, u64),
}

/// Splits a script into commands, each on a line of its own, and the statements between them.
fn pieces(script: &str) -> Vec<Piece<'_>> {
    let script = script.strip_prefix('\u{feff}').unwrap_or(script);
    let mut pieces = Vec::new();
    let (mut begin, mut at, mut first_line) = (0, 0, 0);
    for (number, line) in script.split_inclusive('\n').enumerate() {
        // A line inside a statement belongs to it, even if it looks like a command.
        let before = &script[begin..at];
        if is_command(line) && (before.trim().is_empty() || statements::ends(before)) {
            if !before.trim().is_empty() {
                pieces.push(Piece::Statements(before, first_line));
            }
            pieces.push(Piece::Command(line.trim()));
            (begin, first_line) = (at + line.len(), number as u64 + 1);
        }
        at += line.len();
    }
    if !script[begin..].trim().is_empty() {
        pieces.push(Piece::Statements(&script[begin..], first_line));
    }
    pieces
}

/// True if the shell can run: standard input and standard output are terminals.
pub fn is_possible() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_stand_between_statements() {
        let script = "\\timing off\nSELECT 1;\nSELECT '\n\\x\n';\n\\x on\nSELECT 2";
        let expected = [
            Piece::Command("\\timing off"),
            Piece::Statements("SELECT 1;\nSELECT '\n\\x\n';\n", 1),
            Piece::Command("\\x on"),
            Piece::Statements("SELECT 2", 6),
        ];
        assert_eq!(pieces(script), expected);
        assert_eq!(pieces("SELECT 1"), [Piece::Statements("SELECT 1", 0)]);
        assert_eq!(pieces(" \n"), []);
    }
}
