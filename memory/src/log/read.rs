//! Reads an allocation log back: ours, and RMM's own.
//!
//!   CSV ─► columns by name ─► one record per line ─► in the order of the calls, each allocation with its own number
//!
//! RMM        without our columns a line's number is its place, and an allocation's name is where its address was last
//!            handed out.
//! Errors     say the line, the column, the value, what it should have been, and what to do.

use std::collections::HashMap;
use std::io::{self, BufRead};

use super::record::{Action, After, COLUMNS, Record};

/// A log that was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogFile {
    /// In the order of the calls.
    pub records: Vec<Record>,
    /// True if the log says what came after what between streams; RMM's does not.
    pub ordered: bool,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    #[error("cannot read the log: {0}")]
    Read(#[from] io::Error),
    #[error("line {line} is not text; the file is no allocation log, or was cut and joined: delete the line")]
    NotText { line: u64 },
    #[error("the log is empty: not even a line of columns is in it; the program that wrote it ended too early")]
    Empty,
    #[error(
        "line {line}: there is no column {column} in `{header}`; a log begins with a line of columns such as \
         Thread,Time,Action,Pointer,Size,Stream"
    )]
    NoColumn { line: u64, column: &'static str, header: String },
    #[error("line {line}: {found} fields for {columns} columns; the line was cut off: delete it")]
    FieldCount { line: u64, found: usize, columns: usize },
    #[error("line {line}: a quoted field is not closed; the line was cut off: delete it")]
    OpenQuote { line: u64 },
    #[error("line {line}, column {column}: '{value}' is not {expected}; correct the line or delete it")]
    Field { line: u64, column: &'static str, value: String, expected: String },
    /// The same allocation twice: two logs in one file, or two adaptors on one log.
    #[error(
        "line {line}, column {column}: '{value}' is allocated already, on line {first}, and was not freed since; \
         the file holds two logs: replay each on its own"
    )]
    AllocatedTwice { line: u64, column: &'static str, value: String, first: u64 },
}

/// Where the columns are that the header names.
struct Header {
    at: [Option<usize>; COLUMNS.len()],
    columns: usize,
}

impl Header {
    fn read(line: u64, text: &str) -> Result<Self, LogError> {
        let names = split(line, text)?;
        let at = COLUMNS.map(|column| names.iter().position(|name| name.trim() == column));
        for (column, found) in COLUMNS.iter().zip(at) {
            // The rest can be done without.
            if found.is_none() && ["Action", "Pointer", "Size"].contains(column) {
                return Err(LogError::NoColumn { line, column, header: text.trim().to_string() });
            }
        }
        Ok(Header { at, columns: names.len() })
    }

    fn has(&self, column: &str) -> bool {
        COLUMNS.iter().zip(self.at).any(|(name, at)| *name == column && at.is_some())
    }
}

/// The fields of one line.
struct Fields<'a> {
    line: u64,
    header: &'a Header,
    fields: Vec<String>,
}

impl Fields<'_> {
    fn text(&self, column: &'static str) -> Option<&str> {
        let index = COLUMNS.iter().position(|name| *name == column)?;
        self.header.at[index].map(|at| self.fields[at].as_str())
    }

    fn wrong(&self, column: &'static str, expected: impl Into<String>) -> LogError {
        let value = self.text(column).unwrap_or_default().trim().to_string();
        LogError::Field { line: self.line, column, value, expected: expected.into() }
    }

    /// A number, decimal or hexadecimal; 0 where the column is missing.
    fn number(&self, column: &'static str, expected: &str) -> Result<u64, LogError> {
        let Some(text) = self.text(column) else { return Ok(0) };
        parse_number(text.trim()).ok_or_else(|| self.wrong(column, expected))
    }

    fn record(&self, place: u64) -> Result<Record, LogError> {
        let action = self.text("Action").unwrap_or_default().trim();
        let action = Action::ALL.into_iter().find(|known| known.name() == action).ok_or_else(|| {
            let names = Action::ALL.map(Action::name);
            self.wrong("Action", format!("an action; those are {}", names.join(", ")))
        })?;
        let seq = match self.text("Seq") {
            Some(_) => self.number("Seq", "the number of a call")?,
            None => place,
        };
        Ok(Record {
            thread: self.number("Thread", "the number of a thread")?,
            time_us: match self.text("Time") {
                Some(text) => parse_time(text.trim())
                    .ok_or_else(|| self.wrong("Time", "a time of day such as 10:42:07.000123"))?,
                None => 0,
            },
            action,
            pointer: self.number("Pointer", "an address such as 0x7f0000000000")?,
            size: self.number("Size", "a number of bytes")?,
            stream: self.number("Stream", "a stream such as 0x2")?,
            seq,
            time_ns: self.number("TimeNs", "a number of nanoseconds")?,
            alloc_id: self.number("AllocId", "the number of an allocation")?,
            position: self.number("Position", "a position in a stream")?,
            after: match self.text("After").map(str::trim) {
                None | Some("") => None,
                Some(text) => Some(
                    parse_after(text)
                        .ok_or_else(|| self.wrong("After", "`stream:position` such as 0x2:41, or `all`"))?,
                ),
            },
            tag: self.text("Tag").unwrap_or_default().to_string(),
        })
    }
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        // What C's %p makes of a null pointer.
        None if text == "(nil)" => Some(0),
        None => text.parse().ok(),
    }
}

/// "10:42:07.000123", or with RMM's older ":" before the fraction, or without one.
fn parse_time(text: &str) -> Option<u64> {
    let mut parts = text.split([':', '.']);
    let mut below = |limit: u64| parts.next()?.parse().ok().filter(|&part: &u64| part < limit);
    let (hour, minute, second) = (below(24)?, below(60)?, below(61)?);
    let micros = match parts.next() {
        None => 0,
        Some(digits) if (1..=9).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()) => {
            let nanos: u64 = format!("{digits:0<9}").parse().ok()?;
            nanos / 1000
        }
        Some(_) => return None,
    };
    parts.next().is_none().then_some(((hour * 60 + minute) * 60 + second) * 1_000_000 + micros)
}

fn parse_after(text: &str) -> Option<After> {
    if text == "all" {
        return Some(After::All);
    }
    let (stream, position) = text.split_once(':')?;
    Some(After::Place { stream: parse_number(stream)?, position: parse_number(position)? })
}

/// The fields of a line of CSV, which may hold line ends in quotes.
fn split(line: u64, text: &str) -> Result<Vec<String>, LogError> {
    let mut fields = vec![String::new()];
    let mut chars = text.chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        let field = fields.last_mut().expect("there is always one field");
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if field.is_empty() => quoted = true,
            ',' if !quoted => fields.push(String::new()),
            c => field.push(c),
        }
    }
    if quoted { Err(LogError::OpenQuote { line }) } else { Ok(fields) }
}

/// The next line with all that its quotes hold, without its end. `None` at the end.
fn next_line(log: &mut impl BufRead, line: &mut u64) -> Result<Option<(u64, String)>, LogError> {
    let mut text = String::new();
    let mut first = *line + 1;
    loop {
        let read = log.read_line(&mut text).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => LogError::NotText { line: *line + 1 },
            _ => error.into(),
        });
        if read? == 0 {
            return Ok((!text.is_empty()).then_some((first, text)));
        }
        *line += 1;
        if text.matches('"').count() % 2 == 1 {
            continue;
        }
        let end = text.trim_end_matches('\n').trim_end_matches('\r').len();
        text.truncate(end);
        if text.trim().is_empty() {
            text.clear();
            first = *line + 1;
            continue;
        }
        return Ok(Some((first, text)));
    }
}

impl LogFile {
    /// Reads a log.
    ///
    /// # Errors
    /// The first line that cannot be read.
    pub fn read(mut log: impl BufRead) -> Result<Self, LogError> {
        let mut line = 0;
        let (first, text) = next_line(&mut log, &mut line)?.ok_or(LogError::Empty)?;
        // Spreadsheets put a mark before the first column.
        let header = Header::read(first, text.trim_start_matches('\u{feff}'))?;
        let ordered = ["Position", "After", "AllocId"].into_iter().all(|column| header.has(column));
        let mut records = Vec::new();
        while let Some((line, text)) = next_line(&mut log, &mut line)? {
            let fields = split(line, &text)?;
            if fields.len() != header.columns {
                return Err(LogError::FieldCount { line, found: fields.len(), columns: header.columns });
            }
            let fields = Fields { line, header: &header, fields };
            let record = fields.record(records.len() as u64)?;
            if record.action == Action::Wait && record.after.is_none() {
                return Err(fields.wrong("After", "what the stream waits for, such as 0x2:41"));
            }
            if ordered && record.action == Action::Allocate && record.alloc_id == 0 {
                return Err(fields.wrong("AllocId", "the number of an allocation"));
            }
            records.push((line, record));
        }
        records.sort_by_key(|(_, record)| record.seq);
        name_allocations(&mut records, ordered)?;
        Ok(LogFile { records: records.into_iter().map(|(_, record)| record).collect(), ordered })
    }
}

/// Checks that allocations have names of their own; where the log has none, addresses tell them.
fn name_allocations(records: &mut [(u64, Record)], named: bool) -> Result<(), LogError> {
    let mut live: HashMap<u64, (u64, u64)> = HashMap::new();
    let mut last_id = 0;
    for (line, record) in records {
        let key = if named { record.alloc_id } else { record.pointer };
        match record.action {
            Action::Allocate => {
                last_id += 1;
                if !named {
                    record.alloc_id = last_id;
                }
                if let Some((first, _)) = live.insert(key, (*line, record.alloc_id)) {
                    let (column, value) = match named {
                        true => ("AllocId", key.to_string()),
                        false => ("Pointer", format!("{key:#x}")),
                    };
                    return Err(LogError::AllocatedTwice { line: *line, column, value, first });
                }
            }
            // An identity is never used again; an address is.
            Action::Free if !named => record.alloc_id = live.remove(&key).map_or(0, |(_, id)| id),
            Action::UseRead | Action::UseWrite | Action::UseShare if !named => {
                record.alloc_id = live.get(&key).map_or(0, |(_, id)| *id);
            }
            _ => {}
        }
    }
    Ok(())
}
