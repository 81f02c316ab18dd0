//! Writes answers incrementally: table, line, csv, tsv, json, ndjson, markdown, parquet, arrow, or nothing.
//!
//! ```text
//!   batch ─► AnswerWriter ─► bytes on the output      a table holds its first rows until `due`, to compute widths
//!
//!   line        n = 1      markdown  | n | s |
//!               s = a                | ---: | --- |
//!                                    | 1 | a |
//!               n = 2
//!               …
//! ```
//!
//! Empty    An answer without rows has its header (table, csv, tsv, markdown) or is `[]` (json).
//! NULL     An empty field in csv and tsv, where the empty text is `""`; `null` in json; `NULL` elsewhere, where the
//!          text NULL is `'NULL'`.
//! NaN      NaN and infinities are `null` in json, which cannot represent them.
//! Nested   JSON: as values in json and ndjson, as the text of a field in csv.
//! Plans    EXPLAIN prints text in formats for people (table, line, csv, tsv, markdown), and rows in json, ndjson,
//!          parquet and arrow.
//! Errors   An error in mid-stream keeps the output so far: a json answer then lacks its `]`.
//! Memory   One batch, and the first rows of a table; for parquet one row group.

use std::io::Write;
use std::time::{Duration, Instant};

use millpond::datafusion::arrow::array::RecordBatch;
use millpond::datafusion::arrow::datatypes::SchemaRef;
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::json::writer::{JsonArray, LineDelimited, WriterBuilder as JsonBuilder};

use unicode_width::UnicodeWidthStr;

use crate::args::Format;
use crate::binary::BinaryWriter;
use crate::delimited;
use crate::nested::{as_texts, with_text_keys};
use crate::plans::PlanWriter;
use crate::table::{Fit, Shown, TableWriter, for_each_row, visible};

/// Time after its first row that a table waits for more rows before it fixes its widths.
pub const TIME_OF_WIDTHS: Duration = Duration::from_millis(100);

/// The format of an answer.
enum Form {
    Table(TableWriter),
    Plans(PlanWriter),
    /// With its delimiter.
    Csv(u8),
    Json,
    Ndjson,
    Line,
    Markdown,
    Binary(BinaryWriter),
    None,
}

/// Writes one answer.
pub struct AnswerWriter<'a> {
    out: &'a mut dyn Write,
    form: Form,
    schema: SchemaRef,
    /// The clock; tests replace it.
    now: fn() -> Instant,
    due: Option<Instant>,
    rows_written: bool,
    pub num_rows: usize,
}

impl<'a> AnswerWriter<'a> {
    /// Makes a writer for `format`, which must not be `auto`; `fit` limits a table.
    ///
    /// # Errors
    /// Arrow's, for a type that parquet or arrow does not support.
    pub fn new(
        out: &'a mut dyn Write,
        format: Format,
        fit: Fit,
        schema: SchemaRef,
        now: fn() -> Instant,
    ) -> Result<Self, ArrowError> {
        let form = match format {
            Format::Csv => Form::Csv(b','),
            Format::Tsv => Form::Csv(b'\t'),
            Format::Json => Form::Json,
            Format::Ndjson => Form::Ndjson,
            Format::Line => Form::Line,
            Format::Markdown => Form::Markdown,
            Format::Parquet => Form::Binary(BinaryWriter::parquet(&schema)?),
            Format::Arrow => Form::Binary(BinaryWriter::arrow(&schema)?),
            Format::None => Form::None,
            Format::Auto | Format::Table => Form::Table(TableWriter::new(&schema, fit)),
        };
        Ok(Self { out, form, schema, now, due: None, rows_written: false, num_rows: 0 })
    }

    /// Makes a writer for an answer of EXPLAIN: rows of a kind and a plan.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn of_plans(
        out: &'a mut dyn Write,
        format: Format,
        fit: Fit,
        schema: SchemaRef,
        now: fn() -> Instant,
    ) -> Result<Self, ArrowError> {
        let mut writer = Self::new(out, format, fit, schema, now)?;
        if !matches!(writer.form, Form::Json | Form::Ndjson | Form::Binary(_) | Form::None) {
            writer.form = Form::Plans(PlanWriter::default());
        }
        Ok(writer)
    }

    /// Writes the next batch.
    ///
    /// # Errors
    /// Arrow's, for a type without a text form, or errors of the output.
    pub fn write(&mut self, batch: RecordBatch) -> Result<(), ArrowError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        self.num_rows += batch.num_rows();
        match &mut self.form {
            Form::Csv(delimiter) => {
                let delimiter = *delimiter;
                self.write_csv(&batch, delimiter)?;
            }
            Form::Line => self.write_lines(&batch)?,
            Form::Markdown => self.write_markdown(&batch)?,
            Form::Binary(writer) => writer.write(&batch, self.out)?,
            Form::None => return Ok(()),
            Form::Ndjson => {
                let mut writer = JsonBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut *self.out);
                writer.write(&with_text_keys(&batch)?)?;
                writer.finish()?;
            }
            Form::Json => self.write_json(&batch)?,
            Form::Plans(plans) => plans.write(&batch, self.out)?,
            Form::Table(table) => {
                table.write(batch, self.out)?;
                if table.waits_for_end() {
                    return Ok(());
                }
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

    /// The time at which held rows must be written even if no more have arrived.
    pub fn due(&self) -> Option<Instant> {
        self.due.filter(|_| matches!(&self.form, Form::Table(table) if !table.is_drawing()))
    }

    /// Writes the held rows.
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub fn write_held(&mut self) -> Result<(), ArrowError> {
        if let Form::Table(table) = &mut self.form {
            table.draw_held(self.out)?;
        }
        Ok(self.out.flush()?)
    }

    fn write_csv(&mut self, batch: &RecordBatch, delimiter: u8) -> Result<(), ArrowError> {
        // Reject values without a text form before anything is written.
        let texts = as_texts(batch)?;
        if !std::mem::replace(&mut self.rows_written, true) {
            delimited::header(&texts.schema(), delimiter, self.out)?;
        }
        delimited::rows(&texts, delimiter, self.out)
    }

    /// Writes one line per value, with an empty line between rows.
    fn write_lines(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let names: Vec<String> = self.names().collect();
        let width = names.iter().map(|name| name.width()).max().unwrap_or(0);
        for_each_row(batch, &all(batch), |cells| {
            if std::mem::replace(&mut self.rows_written, true) {
                writeln!(self.out)?;
            }
            for (name, cell) in names.iter().zip(cells) {
                // Indent further lines of a value below its first one.
                let cell = cell.replace('\n', &format!("\n{:1$}", "", width + 3));
                writeln!(self.out, "{:1$}{name} = {cell}", "", width - name.width())?;
            }
            Ok(())
        })
    }

    fn write_markdown(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        if !std::mem::replace(&mut self.rows_written, true) {
            let names: Vec<String> = self.names().collect();
            markdown_row(&names, self.out)?;
            let rules = self.schema.fields().iter();
            let rules = rules.map(|field| if field.data_type().is_numeric() { "---:" } else { "---" });
            markdown_row(&rules.map(String::from).collect::<Vec<_>>(), self.out)?;
        }
        for_each_row(batch, &all(batch), |cells| markdown_row(cells, self.out))
    }

    /// The column names, each on one line.
    fn names(&self) -> impl Iterator<Item = String> {
        self.schema.fields().iter().map(|field| visible(field.name().replace('\n', "\\n")))
    }

    fn write_json(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let mut array = Vec::new();
        let mut writer = JsonBuilder::new().with_explicit_nulls(true).build::<_, JsonArray>(&mut array);
        writer.write(&with_text_keys(batch)?)?;
        writer.finish()?;
        // Each batch is a separate array; strip the brackets to merge their rows.
        let rows = array.strip_prefix(b"[").and_then(|rows| rows.strip_suffix(b"]"));
        let rows = rows.ok_or_else(|| ArrowError::JsonError("rows without brackets".to_string()))?;
        let before = if std::mem::replace(&mut self.rows_written, true) { b"," } else { b"[" };
        self.out.write_all(before)?;
        Ok(self.out.write_all(rows)?)
    }

    /// Ends the answer. Returns the number of rows, and for a table the part that is shown.
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub fn finish(mut self) -> Result<(usize, Option<Shown>), ArrowError> {
        let mut shown = None;
        match &mut self.form {
            Form::Csv(delimiter) if !self.rows_written => {
                let delimiter = *delimiter;
                self.write_csv(&RecordBatch::new_empty(self.schema.clone()), delimiter)?;
            }
            Form::Markdown if !self.rows_written => {
                self.write_markdown(&RecordBatch::new_empty(self.schema.clone()))?;
            }
            Form::Binary(writer) => writer.finish(self.out)?,
            Form::Csv(_) | Form::Ndjson | Form::Line | Form::Markdown | Form::None => {}
            Form::Json => self.out.write_all(if self.rows_written { b"]\n" } else { b"[]\n" })?,
            Form::Plans(plans) => plans.finish(self.out)?,
            Form::Table(table) => shown = Some(table.finish(self.out)?),
        }
        self.out.flush()?;
        Ok((self.num_rows, shown))
    }
}

/// The indices of all columns.
fn all(batch: &RecordBatch) -> Vec<usize> {
    (0..batch.num_columns()).collect()
}

fn markdown_row(cells: &[String], out: &mut dyn Write) -> Result<(), ArrowError> {
    for cell in cells {
        write!(out, "| {} ", cell.replace('\\', "\\\\").replace('|', "\\|").replace('\n', "<br>"))?;
    }
    Ok(writeln!(out, "|")?)
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
        let mut writer = AnswerWriter::new(&mut out, format, Fit::default(), schema, Instant::now).expect("a writer");
        for _ in 0..batches {
            writer.write(batch.clone()).expect("written");
        }
        assert_eq!(writer.finish().expect("finished").0, 2 * batches);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn csv() {
        assert_eq!(written(Format::Csv, 0), "n,s\n");
        assert_eq!(written(Format::Csv, 2), "n,s\n1,\"a,b\"\n,é\n1,\"a,b\"\n,é\n");
    }

    #[test]
    fn tsv() {
        assert_eq!(written(Format::Tsv, 0), "n\ts\n");
        assert_eq!(written(Format::Tsv, 1), "n\ts\n1\ta,b\n\té\n");
    }

    #[test]
    fn lines_have_a_value_each() {
        assert_eq!(written(Format::Line, 0), "");
        assert_eq!(written(Format::Line, 1), "n = 1\ns = a,b\n\nn = NULL\ns = é\n");
        let texts = StringArray::from(vec![Some("NULL"), None]);
        let batch = RecordBatch::try_from_iter([
            ("日本", Arc::new(texts) as _),
            ("a\nb", Arc::new(Int64Array::from(vec![1, 2])) as _),
        ]);
        let batch = batch.expect("batch");
        let mut out = Vec::new();
        let mut writer =
            AnswerWriter::new(&mut out, Format::Line, Fit::default(), batch.schema(), Instant::now).expect("a writer");
        writer.write(batch).expect("written");
        writer.finish().expect("finished");
        let expected = "日本 = 'NULL'\na\\nb = 1\n\n日本 = NULL\na\\nb = 2\n";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
    }

    #[test]
    fn markdown_escapes_what_ends_a_cell() {
        assert_eq!(written(Format::Markdown, 0), "| n | s |\n| ---: | --- |\n");
        let texts = StringArray::from(vec!["a|b", "two\nlines", "c\\|"]);
        let batch = RecordBatch::try_from_iter([("s|", Arc::new(texts) as _)]).expect("batch");
        let mut out = Vec::new();
        let mut writer = AnswerWriter::new(&mut out, Format::Markdown, Fit::default(), batch.schema(), Instant::now)
            .expect("a writer");
        writer.write(batch).expect("written");
        writer.finish().expect("finished");
        let expected = "| s\\| |\n| --- |\n| a\\|b |\n| two<br>lines |\n| c\\\\\\| |\n";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
    }

    #[test]
    fn none_counts_rows_alone() {
        assert_eq!(written(Format::None, 2), "");
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
        let rule = "+--------+---------+\n";
        let expected = format!("{rule}|      n | s       |\n| bigint | varchar |\n{rule}{rule}");
        assert_eq!(written(Format::Table, 0), expected);
        assert!(written(Format::Table, 1).contains("|   NULL | é       |"));
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
        let mut writer =
            AnswerWriter::new(&mut out, Format::Table, Fit::default(), rows(1).schema(), clock).expect("a writer");
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
        // The table's header lines, and 30 rows.
        assert_eq!(String::from_utf8(out).expect("text").lines().count(), 4 + 30);
    }

    #[test]
    fn rows_at_hand_are_written_when_no_more_come() {
        let mut out = Vec::new();
        let mut writer =
            AnswerWriter::new(&mut out, Format::Table, Fit::default(), rows(1).schema(), clock).expect("a writer");
        writer.write(rows(2)).expect("held");
        assert!(writer.due().is_some());
        writer.write_held().expect("written");
        assert_eq!(writer.due(), None);
        writer.write(rows(1)).expect("written");
        drop(writer);
        assert_eq!(String::from_utf8(out).expect("text").lines().count(), 4 + 3);
    }

    #[test]
    fn rows_are_written_batch_by_batch() {
        for (format, text) in [
            (Format::Csv, "n\n0\n1\n"),
            (Format::Ndjson, "{\"n\":0}\n{\"n\":1}\n"),
            (Format::Json, "[{\"n\":0},{\"n\":1}"),
        ] {
            let mut out = Vec::new();
            let mut writer =
                AnswerWriter::new(&mut out, format, Fit::default(), rows(1).schema(), clock).expect("a writer");
            writer.write(rows(2)).expect("written");
            // The answer is not finished, as after an error.
            drop(writer);
            assert_eq!(String::from_utf8(out).expect("text"), text);
        }
    }
}
