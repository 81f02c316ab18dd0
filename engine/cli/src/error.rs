//! Errors of the command line: a message, a caret at the position in the SQL, and the exit code.
//!
//! ```text
//!   error: column 'prise' not found
//!     line 1: SELECT prise FROM 'sales.parquet'
//!                    ^^^^^
//!     help: did you mean 'price'?
//! ```

use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal, Write as _};

use millpond::datafusion::common::utils::quote_identifier;
use millpond::datafusion::common::{Column, DataFusionError, SchemaError, Span};
use millpond::datafusion::sql::sqlparser::parser::ParserError;
use millpond::datafusion::sql::sqlparser::tokenizer::TokenizerError;
use millpond::error::{is_device_missing, is_forbidden_fallback, is_usage};

use crate::interrupt::Ending;
use crate::statements::Statement;

/// Exit codes, as the help lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    Ok = 0,
    Sql = 1,
    Usage = 2,
    Device = 3,
    File = 4,
    HungUp = 129,
    Interrupted = 130,
    Terminated = 143,
}

/// Prints a line on standard error. Write errors are ignored.
pub fn tell(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints an error; its first word is red on a terminal.
pub fn tell_error(error: &CliError) {
    if error.message.is_empty() {
        return;
    }
    let has_colours = io::stderr().is_terminal() && crate::terminal::has_colours();
    let (red, reset) = if has_colours { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    tell(format_args!("{red}error:{reset} {}", error.message));
}

/// An error of the command line.
#[derive(Debug)]
pub struct CliError {
    pub exit: Exit,
    /// The text printed after "error: "; may have several lines.
    pub message: String,
}

impl CliError {
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: message.into() }
    }

    pub fn file(message: impl Into<String>) -> Self {
        Self { exit: Exit::File, message: message.into() }
    }

    pub fn sql(message: impl Into<String>) -> Self {
        Self { exit: Exit::Sql, message: message.into() }
    }

    /// The reader of the output has closed it. Not reported as an error; the program just stops.
    pub fn reader_gone() -> Self {
        Self { exit: Exit::Ok, message: String::new() }
    }

    pub fn is_reader_gone(&self) -> bool {
        self.exit == Exit::Ok
    }

    /// A signal has ended the work.
    pub fn interrupted() -> Self {
        let ending = Ending::first();
        Self { exit: ending.exit(), message: ending.word().to_string() }
    }

    /// A statement's error, with a caret if the position is known.
    pub fn statement(error: &DataFusionError, statement: &Statement) -> Self {
        let mut message = plain_message(error);
        if let Some(diagnostic) = error.diagnostic() {
            message = diagnostic.message.clone();
            if let Some(span) = diagnostic.span {
                excerpt(&mut message, statement, span);
            }
            let columns = columns_there(error);
            for note in &diagnostic.notes {
                let _ = write!(message, "\n  note: {}", as_sql_has_it(&note.message, columns));
            }
            if let Some(help) = wants_quotes(error) {
                let _ = write!(message, "\n  help: {help}");
            }
            for help in &diagnostic.helps {
                let _ = write!(message, "\n  help: {}", help.message);
            }
        } else if let Some((line, column)) = parser_place(error, &statement.sql) {
            let place = millpond::datafusion::common::Location { line, column };
            excerpt(&mut message, statement, Span { start: place, end: place });
        }
        Self { exit: exit_of(error), message }
    }

    /// The error of a statement that failed to write `target`, because DataFusion's message for a full disk is
    /// misleading.
    pub fn writing(self, target: &str) -> Option<Self> {
        const DISK: &str = "Unable to copy data to file: ";
        let reason = match self.message.split_once(DISK) {
            Some((_, reason)) => reason,
            None if self.message.contains("finalizing writes") => {
                "DataFusion could not finish it and does not say why; a full disk is the likeliest"
            }
            None => return None,
        };
        Some(Self::file(format!("cannot write '{target}': {reason}")))
    }

    /// The error for a panic of the command line itself.
    pub fn panicked(payload: &(dyn std::any::Any + Send)) -> Self {
        let error = millpond::error::panics::panicked(payload);
        let millpond::EngineError::Panicked { message, .. } = &error else { return error.into() };
        // `println!` fails only by a panic.
        match message.split_once(": ") {
            Some(("failed printing to stdout", reason)) if reason.contains("Broken pipe") => Self::reader_gone(),
            Some(("failed printing to stdout", reason)) => {
                let reason = reason.split_once(" (os error").map_or(reason, |(reason, _)| reason).to_lowercase();
                Self::file(format!("cannot write to standard output: {reason}"))
            }
            Some(("failed printing to stderr", _)) => Self::file(""),
            _ => error.into(),
        }
    }

    /// A script that the tokenizer rejects.
    pub fn script(error: &TokenizerError, script: &str) -> Self {
        let whole = Statement { sql: script.to_string(), first_line: 0 };
        let mut message = error.message.clone();
        let place = millpond::datafusion::common::Location { line: error.location.line, column: error.location.column };
        excerpt(&mut message, &whole, Span { start: place, end: place });
        Self { exit: Exit::Sql, message }
    }

    /// An error outside any statement.
    pub fn from_datafusion(error: &DataFusionError) -> Self {
        let reason = plain_message(error);
        let message = match file_of_store(error) {
            Some(file) => format!("cannot read '{file}': {reason}"),
            None => reason,
        };
        Self { exit: exit_of(error), message }
    }

    /// The message without a file name; the caller adds that.
    pub fn reason(error: &DataFusionError) -> String {
        plain_message(error)
    }
}

impl From<millpond::EngineError> for CliError {
    fn from(error: millpond::EngineError) -> Self {
        let exit = if error.is_usage() {
            Exit::Usage
        } else if error.is_device_missing() || error.is_forbidden_fallback() {
            Exit::Device
        } else if error.is_file() {
            Exit::File
        } else {
            Exit::Sql
        };
        Self { exit, message: error.to_string() }
    }
}

fn exit_of(error: &DataFusionError) -> Exit {
    if is_usage(error) {
        return Exit::Usage;
    }
    if is_device_missing(error) || is_forbidden_fallback(error) {
        return Exit::Device;
    }
    use millpond::datafusion::arrow::error::ArrowError;
    match error.find_root() {
        DataFusionError::IoError(_) | DataFusionError::ObjectStore(_) | DataFusionError::ParquetError(_) => Exit::File,
        DataFusionError::ArrowError(arrow, _) => match arrow.as_ref() {
            ArrowError::IoError(..)
            | ArrowError::ParquetError(_)
            | ArrowError::CsvError(_)
            | ArrowError::JsonError(_) => Exit::File,
            _ => Exit::Sql,
        },
        _ => Exit::Sql,
    }
}

/// Starts of a local store's messages about bytes beyond the end of a file: the first names the file, the second does
/// not.
const OUT_OF_RANGE: &str = "Out of range of file ";
const INVALID_RANGE: &str = "Requested range was invalid";

/// The file named in a store's error about bytes beyond its end.
pub fn file_of_store(error: &DataFusionError) -> Option<String> {
    let text = error.strip_backtrace();
    let (_, file) = text.split_once(OUT_OF_RANGE)?;
    Some(file.rsplit_once(", expected: ")?.0.to_string())
}

/// DataFusion's message without the names of the wrapping error types.
fn plain_message(error: &DataFusionError) -> String {
    if let Some(ours) = millpond::EngineError::find(error) {
        return ours.to_string();
    }
    if matches!(exit_of(error), Exit::File)
        && [OUT_OF_RANGE, INVALID_RANGE].iter().any(|words| error.strip_backtrace().contains(words))
    {
        return "the file ends before data that belongs to it; it is damaged, was cut short, or changed while it was read: \
                write or copy it again"
            .to_string();
    }
    let text = error.strip_backtrace();
    let mut rest = text.as_str();
    const WRAPPERS: [&str; 10] = [
        "Error during planning: ",
        "Schema error: ",
        "Execution error: ",
        "External error: ",
        "Arrow error: ",
        "SQL error: ",
        "IO error: ",
        "Object Store error: ",
        "Generic LocalFileSystem error: ",
        "Parquet error: ",
    ];
    while let Some(inner) = WRAPPERS.iter().find_map(|wrapper| rest.strip_prefix(wrapper)) {
        rest = inner;
    }
    // Names of analyzer rules, and the types a function rejected, are internal details.
    const ANALYZERS: [&str; 4] = ["as_written", "checked_sums", "type_coercion", "resolve_grouping_function"];
    let is_rule = |words: &str| words.contains("ptimizer rule '") || ANALYZERS.contains(&words);
    if let Some((rule, inner)) = rest.split_once("\ncaused by\n").filter(|(rule, _)| is_rule(rule)) {
        tracing::debug!("{rule}");
        rest = inner.trim_start();
        while let Some(inner) = WRAPPERS.iter().find_map(|wrapper| rest.strip_prefix(wrapper)) {
            rest = inner;
        }
    }
    if let Some((_, refusal)) = rest.split_once(" user-defined coercion failed with: External error: ") {
        rest = refusal.split_once(". No function matches").map_or(refusal, |(refusal, _)| refusal);
    }
    let parser = rest.strip_prefix("ParserError(\"").and_then(|inner| inner.strip_suffix("\")"));
    parser.unwrap_or(rest).trim().to_string()
}

/// The valid columns listed by a column-not-found error.
fn columns_there(error: &DataFusionError) -> &[Column] {
    match not_found(error) {
        Some((_, columns)) => columns,
        None => &[],
    }
}

fn not_found(error: &DataFusionError) -> Option<(&Column, &[Column])> {
    let DataFusionError::SchemaError(schema, _) = error.find_root() else { return None };
    let SchemaError::FieldNotFound { field, valid_fields } = schema.as_ref() else { return None };
    Some((field.as_ref(), valid_fields.as_slice()))
}

/// A note of DataFusion, with the column quoted as SQL requires.
fn as_sql_has_it(note: &str, columns: &[Column]) -> String {
    const NOTE: &str = "possible column ";
    let named = note.strip_prefix(NOTE).and_then(|name| columns.iter().find(|column| column.flat_name() == name));
    named.map_or_else(|| note.to_string(), |column| format!("{NOTE}{}", column.quoted_flat_name()))
}

/// The quoted spelling to use, if the wanted column differs from an existing one only in case.
fn wants_quotes(error: &DataFusionError) -> Option<String> {
    let (field, columns) = not_found(error)?;
    let is_same = |column: &&Column| column.name != field.name && column.name.eq_ignore_ascii_case(&field.name);
    let name = quote_identifier(&columns.iter().find(is_same)?.name).into_owned();
    Some(format!("write {name}, with the quotes: without them SQL folds names to lower case"))
}

/// The position in the text of a parser's error, which ends in "at Line: L, Column: C" or in "found: EOF".
fn parser_place(error: &DataFusionError, sql: &str) -> Option<(u64, u64)> {
    let DataFusionError::SQL(parser, _) = error.find_root() else { return None };
    let text = match parser.as_ref() {
        ParserError::ParserError(text) | ParserError::TokenizerError(text) => text,
        ParserError::RecursionLimitExceeded => return None,
    };
    if text.ends_with("found: EOF") {
        let last = sql.lines().last()?;
        return Some((sql.lines().count() as u64, last.chars().count() as u64 + 1));
    }
    let (_, after) = text.rsplit_once("Line: ")?;
    let (line, column) = after.split_once(", Column: ")?;
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    Some((digits(line)?, digits(column)?))
}

/// Appends the line where `span` begins, with carets below the span.
fn excerpt(message: &mut String, statement: &Statement, span: Span) {
    let Some(line) = statement.sql.lines().nth((span.start.line as usize).saturating_sub(1)) else { return };
    let label = format!("  line {}: ", statement.first_line + span.start.line);
    let start = (span.start.column as usize).saturating_sub(1);
    let end = if span.end.line == span.start.line { (span.end.column as usize).saturating_sub(1) } else { usize::MAX };
    let width = end.min(line.chars().count()).saturating_sub(start).max(1);
    // Keep tabs so that the carets align.
    let indent: String = line.chars().take(start).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    let _ = write!(message, "\n{label}{line}\n{}{indent}{}", " ".repeat(label.len()), "^".repeat(width));
}
