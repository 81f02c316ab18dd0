//! Writes answers as they come: table, csv, json, ndjson.
//!
//! ```text
//!   batch ─► AnswerWriter ─► bytes on the output      a table holds its first rows until `due`, to know its widths
//! ```
//!
//! Empty    an answer without rows still has its header (table, csv) or is `[]` (json).
//! NULL     is an empty field in csv, `null` in json, `NULL` in a table.
//! Nested   values are JSON: in json and ndjson as they are, in csv as the text of a field.
//! Plans    of EXPLAIN are text where people read them (table, csv), and rows in json and ndjson.
//! Errors   in mid-stream leave what was written: a json answer then has no `]`.
//! Memory   one batch, and the first rows of a table.

use std::io::Write;
use std::time::{Duration, Instant};

use millpond::datafusion::arrow::array::RecordBatch;
use millpond::datafusion::arrow::csv::WriterBuilder;
use millpond::datafusion::arrow::datatypes::SchemaRef;
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::json::writer::{JsonArray, LineDelimited, WriterBuilder as JsonBuilder};

use crate::args::Format;
use crate::nested::{as_texts, with_text_keys};
use crate::plans::PlanWriter;
use crate::table::TableWriter;

/// How long a table waits after its first row for more that make its widths.
pub const TIME_OF_WIDTHS: Duration = Duration::from_millis(100);

/// How an answer looks.
enum Form {
    Table(TableWriter),
    Plans(PlanWriter),
    Csv,
    Json,
    Ndjson,
}

/// Writes one answer.
pub struct AnswerWriter<'a> {
    out: &'a mut dyn Write,
    form: Form,
    schema: SchemaRef,
    /// The time, which tests make up.
    now: fn() -> Instant,
    due: Option<Instant>,
    rows_written: bool,
    pub num_rows: usize,
}

impl<'a> AnswerWriter<'a> {
    /// A writer of `format`, which is no longer `auto`.
    pub fn new(out: &'a mut dyn Write, format: Format, schema: SchemaRef, now: fn() -> Instant) -> Self {
        let form = match format {
            Format::Csv => Form::Csv,
            Format::Json => Form::Json,
            Format::Ndjson => Form::Ndjson,
            Format::Auto | Format::Table => Form::Table(TableWriter::new(&schema)),
        };
        Self { out, form, schema, now, due: None, rows_written: false, num_rows: 0 }
    }

    /// The same, for an answer of EXPLAIN: rows of a kind and a plan.
    pub fn of_plans(out: &'a mut dyn Write, format: Format, schema: SchemaRef, now: fn() -> Instant) -> Self {
        let mut writer = Self::new(out, format, schema, now);
        if matches!(writer.form, Form::Table(_) | Form::Csv) {
            writer.form = Form::Plans(PlanWriter::default());
        }
        writer
    }

    /// Takes the next batch.
    ///
    /// # Errors
    /// Arrow's, for a type without a text form, or the output's.
    pub fn write(&mut self, batch: RecordBatch) -> Result<(), ArrowError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        self.num_rows += batch.num_rows();
        match &mut self.form {
            Form::Csv => self.write_csv(&batch)?,
            Form::Ndjson => {
                let mut writer = JsonBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut *self.out);
                writer.write(&with_text_keys(&batch)?)?;
                writer.finish()?;
            }
            Form::Json => self.write_json(&batch)?,
            Form::Plans(plans) => plans.write(&batch, self.out)?,
            Form::Table(table) => {
                table.write(batch, self.out)?;
                let now = (self.now)();
                if *self.due.get_or_insert(now + TIME_OF_WIDTHS) <= now {
                    table.draw_held(self.out)?;
                }
                if !table.is_drawing() {
                    return Ok(());
                }
            }
        }
        Ok(self.out.flush()?)
    }

    /// When rows that are held must be written although no more have come.
    pub fn due(&self) -> Option<Instant> {
        self.due.filter(|_| matches!(&self.form, Form::Table(table) if !table.is_drawing()))
    }

    /// Writes the rows that are held.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_held(&mut self) -> Result<(), ArrowError> {
        if let Form::Table(table) = &mut self.form {
            table.draw_held(self.out)?;
        }
        Ok(self.out.flush()?)
    }

    fn write_csv(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        // What has no text is refused before anything is written.
        let texts = as_texts(batch)?;
        let header = !std::mem::replace(&mut self.rows_written, true);
        WriterBuilder::new().with_header(header).build(&mut *self.out).write(&texts)
    }

    fn write_json(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let mut array = Vec::new();
        let mut writer = JsonBuilder::new().with_explicit_nulls(true).build::<_, JsonArray>(&mut array);
        writer.write(&with_text_keys(batch)?)?;
        writer.finish()?;
        // Each batch is an array of its own; their rows become one.
        let rows = array.strip_prefix(b"[").and_then(|rows| rows.strip_suffix(b"]"));
        let rows = rows.ok_or_else(|| ArrowError::JsonError("rows without brackets".to_string()))?;
        let before = if std::mem::replace(&mut self.rows_written, true) { b"," } else { b"[" };
        self.out.write_all(before)?;
        Ok(self.out.write_all(rows)?)
    }

    /// Ends the answer.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn finish(mut self) -> Result<usize, ArrowError> {
        match &mut self.form {
            Form::Csv if !self.rows_written => self.write_csv(&RecordBatch::new_empty(self.schema.clone()))?,
            Form::Csv | Form::Ndjson => {}
            Form::Json => self.out.write_all(if self.rows_written { b"]\n" } else { b"[]\n" })?,
            Form::Plans(plans) => plans.finish(self.out)?,
            Form::Table(table) => table.finish(self.out)?,
        }
        self.out.flush()?;
        Ok(self.num_rows)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use millpond::datafusion::arrow::array::{Int64Array, StringArray};
    use millpond::datafusion::arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    fn written(format: Format, batches: usize) -> String {
        let schema =
            Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("s", DataType::Utf8, true)]));
        let batch = RecordBatch::try_new(
            schema.clone(),
            vec![
                Arc::new(Int64Array::from(vec![Some(1), None])),
                Arc::new(StringArray::from(vec![Some("a,b"), Some("é")])),
            ],
        )
        .expect("batch");
        let mut out = Vec::new();
        let mut writer = AnswerWriter::new(&mut out, format, schema, Instant::now);
        for _ in 0..batches {
            writer.write(batch.clone()).expect("written");
        }
        assert_eq!(writer.finish().expect("finished"), 2 * batches);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn csv() {
        assert_eq!(written(Format::Csv, 0), "n,s\n");
        assert_eq!(written(Format::Csv, 2), "n,s\n1,\"a,b\"\n,é\n1,\"a,b\"\n,é\n");
    }

    #[test]
    fn json() {
        assert_eq!(written(Format::Json, 0), "[]\n");
        assert_eq!(written(Format::Json, 1), "[{\"n\":1,\"s\":\"a,b\"},{\"n\":null,\"s\":\"é\"}]\n");
    }

    #[test]
    fn ndjson() {
        assert_eq!(written(Format::Ndjson, 0), "");
        assert_eq!(written(Format::Ndjson, 1), "{\"n\":1,\"s\":\"a,b\"}\n{\"n\":null,\"s\":\"é\"}\n");
    }

    #[test]
    fn table() {
        let expected = "+---+---+\n| n | s |\n+---+---+\n+---+---+\n";
        assert_eq!(written(Format::Table, 0), expected);
        assert!(written(Format::Table, 1).contains("| NULL | é   |"));
    }

    #[test]
    fn json_of_several_batches_is_one_array() {
        let row = "{\"n\":1,\"s\":\"a,b\"},{\"n\":null,\"s\":\"é\"}";
        assert_eq!(written(Format::Json, 3), format!("[{row},{row},{row}]\n"));
    }

    thread_local! {
        static CLOCK: Cell<Instant> = Cell::new(Instant::now());
    }

    fn clock() -> Instant {
        CLOCK.get()
    }

    fn rows(count: i64) -> RecordBatch {
        let numbers = Int64Array::from_iter_values(0..count);
        RecordBatch::try_from_iter([("n", Arc::new(numbers) as _)]).expect("batch")
    }

    #[test]
    fn a_table_begins_100_ms_after_its_first_row() {
        let mut out = Vec::new();
        let mut writer = AnswerWriter::new(&mut out, Format::Table, rows(1).schema(), clock);
        assert_eq!(writer.due(), None);
        let first = clock();
        writer.write(rows(0)).expect("no row");
        assert_eq!(writer.due(), None);
        writer.write(rows(10)).expect("held");
        assert_eq!(writer.due(), Some(first + Duration::from_millis(100)));
        CLOCK.set(first + Duration::from_millis(99));
        writer.write(rows(10)).expect("held");
        assert_eq!(writer.due(), Some(first + Duration::from_millis(100)));
        CLOCK.set(first + Duration::from_millis(100));
        writer.write(rows(10)).expect("written");
        assert_eq!(writer.due(), None);
        drop(writer);
        // The top of the table, and 30 rows.
        assert_eq!(String::from_utf8(out).expect("text").lines().count(), 3 + 30);
    }

    #[test]
    fn rows_at_hand_are_written_when_no_more_come() {
        let mut out = Vec::new();
        let mut writer = AnswerWriter::new(&mut out, Format::Table, rows(1).schema(), clock);
        writer.write(rows(2)).expect("held");
        assert!(writer.due().is_some());
        writer.write_held().expect("written");
        assert_eq!(writer.due(), None);
        writer.write(rows(1)).expect("written");
        drop(writer);
        assert_eq!(String::from_utf8(out).expect("text").lines().count(), 3 + 3);
    }

    #[test]
    fn rows_are_written_batch_by_batch() {
        for (format, text) in [
            (Format::Csv, "n\n0\n1\n"),
            (Format::Ndjson, "{\"n\":0}\n{\"n\":1}\n"),
            (Format::Json, "[{\"n\":0},{\"n\":1}"),
        ] {
            let mut out = Vec::new();
            let mut writer = AnswerWriter::new(&mut out, format, rows(1).schema(), clock);
            writer.write(rows(2)).expect("written");
            // Nothing ends the answer: an error has come instead.
            drop(writer);
            assert_eq!(String::from_utf8(out).expect("text"), text);
        }
    }
}
