//! A session of ours as a database of SQL logic tests.
//!
//!   record ─► Database ─► Millpond::execute ─► rows of text, in the words of DataFusion's own tests
//!
//! Words    NULL, (empty), Infinity, NaN; floats rounded to 12 places; a text of several lines gives a row per line.
//!          Files of SQLite have SQLite's words (`sqlite.rs`).
//! Device   a finding of the simulated device, bytes that stay in its pool, a panic and a hang fail the record.

#[path = "sqlite.rs"]
mod sqlite;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millpond::datafusion::arrow::array::{Array, ArrayRef, AsArray};
use millpond::datafusion::arrow::datatypes::{DataType, Float32Type, Float64Type, SchemaRef};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use millpond::datafusion::error::DataFusionError;
use millpond::datafusion::prelude::SessionContext;
use millpond::{Millpond, QueryReport};
use millpond_queries::answer::Answer;
use sqllogictest::{ColumnType, DB, DBOutput, Normalizer};
use tokio::runtime::Handle;

/// A column's type, as one letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind(char);

impl ColumnType for Kind {
    fn from_char(letter: char) -> Option<Self> {
        Some(Self(if "BDIPRT".contains(letter) { letter } else { '?' }))
    }
    fn to_char(&self) -> char {
        self.0
    }
}

impl Kind {
    fn of(data_type: &DataType) -> Self {
        Self(match data_type {
            DataType::Boolean => 'B',
            ty if ty.is_integer() => 'I',
            ty if ty.is_floating() || ty.is_decimal() => 'R',
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => 'T',
            DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) => 'D',
            DataType::Timestamp(..) => 'P',
            DataType::Dictionary(_, values) if values.is_string() => 'T',
            _ => '?',
        })
    }
}

/// Why a record failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

/// What the last statement did, and its typed answer if that has one.
pub struct Last {
    pub report: QueryReport,
    #[allow(dead_code, reason = "the tests of SQLite compare text")]
    pub answer: Option<Answer>,
}

/// Where a connection leaves it.
pub type LastSlot = Arc<Mutex<Option<Last>>>;

/// Who answers.
#[derive(Clone)]
pub enum Engine {
    Millpond(Millpond),
    /// DataFusion alone, without our rules.
    #[allow(dead_code, reason = "DataFusion's own tests alone have it")]
    DataFusion(SessionContext),
}

impl Engine {
    async fn execute(&self, sql: &str) -> Result<(SchemaRef, Vec<RecordBatch>, QueryReport), DataFusionError> {
        match self {
            Self::Millpond(session) => {
                let result = session.execute(sql).await?;
                Ok((result.schema, result.batches, result.report))
            }
            Self::DataFusion(context) => {
                let frame = context.sql(sql).await?;
                let schema = Arc::clone(frame.schema().inner());
                Ok((schema, frame.collect().await?, QueryReport::default()))
            }
        }
    }
}

/// The letters that the next query gives its columns, where answers have SQLite's words; none before a statement.
pub type LettersSlot = Arc<Mutex<Vec<char>>>;

/// One connection.
pub struct Database {
    engine: Engine,
    runtime: Handle,
    patience: Duration,
    last: LastSlot,
    letters: Option<LettersSlot>,
}

impl Database {
    pub fn new(engine: Engine, runtime: Handle, patience: Duration, last: LastSlot) -> Self {
        Self { engine, runtime, patience, last, letters: None }
    }

    /// Answers in SQLite's words.
    #[allow(dead_code, reason = "DataFusion's own tests have none")]
    pub fn with_letters(self, letters: LettersSlot) -> Self {
        Self { letters: Some(letters), ..self }
    }
}

impl DB for Database {
    type Error = Failure;
    type ColumnType = Kind;

    fn run(&mut self, sql: &str) -> Result<DBOutput<Kind>, Failure> {
        let (engine, sql) = (self.engine.clone(), sql.to_string());
        *self.last.lock().expect("no panic holds the lock") = None;
        let words = |error: DataFusionError| Failure(format!("DataFusion error: {}", error.strip_backtrace()));
        let result = self.runtime.block_on(async {
            // A task of its own, so that a panic is a failure of the record.
            let task = tokio::spawn(async move { engine.execute(&sql).await });
            let stop = task.abort_handle();
            match tokio::time::timeout(self.patience, task).await {
                Ok(Ok(result)) => result.map_err(words),
                Ok(Err(panic)) => Err(Failure(format!("panic: {panic}"))),
                Err(_) => {
                    stop.abort();
                    Err(Failure(format!("no answer after {} seconds", self.patience.as_secs())))
                }
            }
        });
        let left = self.left_in_pool();
        let (schema, batches, report) = result?;
        if let Some(finding) = report.findings.first() {
            return Err(Failure(format!("{} findings; the first: {finding}", report.findings.len())));
        }
        if left > 0 {
            return Err(Failure(format!("{left} bytes of the pool stay in use")));
        }
        let types: Vec<Kind> = schema.fields().iter().map(|field| Kind::of(field.data_type())).collect();
        let letters = self.letters.as_ref().map(|letters| letters.lock().expect("no panic holds the lock").clone());
        let letters = letters.filter(|letters| !letters.is_empty());
        let mut rows = Vec::new();
        for batch in &batches {
            for row in 0..batch.num_rows() {
                if let Some(letters) = &letters {
                    rows.push(sqlite::row(letters, batch.columns(), row).map_err(Failure)?);
                    continue;
                }
                let cells = batch.columns().iter().map(|column| cell(column, row)).collect::<Result<Vec<_>, _>>();
                lines(cells.map_err(|error| Failure(format!("DataFusion error: {error}")))?, &mut rows);
            }
        }
        let answer = Answer::try_new(&schema, &batches).ok();
        *self.last.lock().expect("no panic holds the lock") = Some(Last { report, answer });
        match rows.is_empty() && types.is_empty() {
            true => Ok(DBOutput::StatementComplete(0)),
            false => Ok(DBOutput::Rows { types, rows }),
        }
    }

    fn engine_name(&self) -> &str {
        "DataFusion"
    }
}

impl Database {
    /// What stays in use for good: the tasks of a run end a moment after it.
    fn left_in_pool(&self) -> u64 {
        let Engine::Millpond(session) = &self.engine else { return 0 };
        let begun = Instant::now();
        while session.pool_used_bytes() > 0 && begun.elapsed() < self.patience {
            std::thread::sleep(Duration::from_millis(10));
        }
        session.pool_used_bytes()
    }
}

/// Ends of lines do not count.
#[expect(clippy::ptr_arg, reason = "the type of sqllogictest::Normalizer")]
pub fn normalize(text: &String) -> String {
    text.trim_end().to_string()
}

/// Rows are equal as text; `<slt:ignore>` in an expected answer stands for anything.
pub fn validate(normalize: Normalizer, actual: &[Vec<String>], expected: &[String]) -> bool {
    let actual: Vec<String> = actual.iter().map(|row| row.join(" ").trim_end().to_string()).collect();
    let expected: Vec<String> = expected.iter().map(normalize).collect();
    if !expected.iter().any(|line| line.contains("<slt:ignore>")) {
        return actual == expected;
    }
    let (actual, expected) = (actual.join("\n"), expected.join("\n"));
    let mut rest = actual.as_str();
    for (index, piece) in expected.split("<slt:ignore>").enumerate() {
        match rest.find(piece) {
            Some(at) if index > 0 || at == 0 => rest = &rest[at + piece.len()..],
            _ => return false,
        }
    }
    true
}

/// A row, or one per line of its last cell: `01)` and so on, with a dash for every space that a line begins with.
fn lines(mut cells: Vec<String>, rows: &mut Vec<Vec<String>>) {
    let Some(last) = cells.pop_if(|cell| cell.contains('\n')) else { return rows.push(cells) };
    rows.push(cells);
    for (index, line) in last.split('\n').enumerate() {
        let text = line.trim_start();
        rows.push(vec![format!("{:02}){}{text}", index + 1, "-".repeat(line.len() - text.len()))]);
    }
}

fn cell(column: &ArrayRef, row: usize) -> Result<String, DataFusionError> {
    if column.is_null(row) {
        return Ok("NULL".to_string());
    }
    let text = |text: &str| match text {
        "" => "(empty)".to_string(),
        text => text.trim_end_matches('\n').replace('\0', "\\0"),
    };
    let float = |value: f64, shown: String| match value {
        value if value.is_nan() => "NaN".to_string(),
        f64::INFINITY => "Infinity".to_string(),
        f64::NEG_INFINITY => "-Infinity".to_string(),
        _ => plain(&shown, 12),
    };
    Ok(match column.data_type() {
        DataType::Float32 => {
            let value = column.as_primitive::<Float32Type>().value(row);
            float(f64::from(value), value.to_string())
        }
        DataType::Float64 => {
            let value = column.as_primitive::<Float64Type>().value(row);
            float(value, value.to_string())
        }
        DataType::Utf8 => text(column.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => text(column.as_string::<i64>().value(row)),
        DataType::Utf8View => text(column.as_string_view().value(row)),
        DataType::Dictionary(..) => {
            let codes = column.as_any_dictionary();
            return cell(codes.values(), codes.normalized_keys()[row]);
        }
        ty => {
            let options = FormatOptions::default().with_null("NULL");
            let shown = ArrayFormatter::try_new(column.as_ref(), &options)?.value(row).try_to_string()?;
            match ty.is_decimal() || *ty == DataType::Float16 {
                true => plain(&shown, usize::MAX),
                false => shown,
            }
        }
    })
}

/// A decimal number with at most `places` digits after its point, rounded half to even, without zeros at its end.
fn plain(number: &str, places: usize) -> String {
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", number),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let mut kept: Vec<u8> = whole.bytes().chain(part.bytes().take(places)).collect();
    let rest = part.as_bytes().get(places..).unwrap_or_default();
    let odd = kept.last().is_some_and(|digit| digit % 2 == 1);
    let up = match rest.first() {
        Some(b'5') => odd || rest[1..].iter().any(|digit| *digit != b'0'),
        Some(digit) => *digit > b'5',
        None => false,
    };
    if up {
        let nines = kept.iter().rev().take_while(|digit| **digit == b'9').count();
        let at = kept.len() - nines;
        kept[at..].fill(b'0');
        match at.checked_sub(1) {
            Some(last) => kept[last] += 1,
            None => kept.insert(0, b'1'),
        }
    }
    let text = String::from_utf8_lossy(&kept).into_owned();
    let (whole, part) = text.split_at(text.len() - part.len().min(places));
    let part = part.trim_end_matches('0');
    match (whole.trim_start_matches('0'), part) {
        ("", "") => "0".to_string(),
        ("", part) => format!("{sign}0.{part}"),
        (whole, "") => format!("{sign}{whole}"),
        (whole, part) => format!("{sign}{whole}.{part}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_half_to_even_and_plain() {
        for (number, places, expected) in [
            ("1.5000", 12, "1.5"),
            ("-0.0", 12, "0"),
            ("-0", 12, "0"),
            ("10", 12, "10"),
            ("0.0000000000005", 12, "0"),
            ("0.0000000000015", 12, "0.000000000002"),
            ("9.9999999999999", 12, "10"),
            ("-12.340", usize::MAX, "-12.34"),
            ("100.00", usize::MAX, "100"),
        ] {
            assert_eq!(plain(number, places), expected, "{number}");
        }
    }

    #[test]
    fn an_ignored_piece_matches_anything_after_its_beginning() {
        let actual = [vec!["took 12 ms".to_string()]];
        assert!(validate(normalize, &actual, &["took <slt:ignore> ms".to_string()]));
        assert!(!validate(normalize, &actual, &["ook <slt:ignore> ms".to_string()]));
    }
}
