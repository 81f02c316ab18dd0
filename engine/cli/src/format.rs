//! Writes answers: table, csv, json, ndjson.
//!
//! ```text
//!   batches ─► Writer ─► bytes on standard output or in a file; csv and ndjson as they come, a table and json as one
//! ```
//!
//! Empty    an answer without rows still has its header (table, csv) or is `[]` (json).
//! NULL     is an empty field in csv, `null` in json, `NULL` in a table.

use std::io::{self, Write};

use millpond::datafusion::arrow::array::RecordBatch;
use millpond::datafusion::arrow::csv::WriterBuilder;
use millpond::datafusion::arrow::datatypes::SchemaRef;
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::json::writer::{JsonArray, LineDelimited, WriterBuilder as JsonBuilder};
use millpond::datafusion::arrow::util::display::FormatOptions;
use millpond::datafusion::arrow::util::pretty::pretty_format_batches_with_options;
use millpond::datafusion::arrow::util::pretty::pretty_format_batches_with_schema;

use crate::args::Format;

/// Writes one answer.
pub struct AnswerWriter<'a> {
    out: &'a mut dyn Write,
    format: Format,
    schema: SchemaRef,
    held: Vec<RecordBatch>,
    rows_written: bool,
    pub num_rows: usize,
}

impl<'a> AnswerWriter<'a> {
    /// A writer of `format`, which is no longer `auto`.
    pub fn new(out: &'a mut dyn Write, format: Format, schema: SchemaRef) -> Self {
        Self { out, format, schema, held: Vec::new(), rows_written: false, num_rows: 0 }
    }

    /// Takes the next batch.
    ///
    /// # Errors
    /// Arrow's, for a type without a text form, or the output's.
    pub fn write(&mut self, batch: RecordBatch) -> Result<(), ArrowError> {
        self.num_rows += batch.num_rows();
        match self.format {
            Format::Csv => self.write_csv(&batch),
            Format::Ndjson => {
                if batch.num_rows() == 0 {
                    return Ok(());
                }
                let mut writer = JsonBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut *self.out);
                writer.write(&batch)?;
                writer.finish()
            }
            Format::Auto | Format::Table | Format::Json => {
                self.held.push(batch);
                Ok(())
            }
        }
    }

    fn write_csv(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let header = !std::mem::replace(&mut self.rows_written, true);
        WriterBuilder::new().with_header(header).build(&mut *self.out).write(batch)
    }

    /// Ends the answer.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn finish(mut self) -> Result<usize, ArrowError> {
        match self.format {
            Format::Csv if !self.rows_written => self.write_csv(&RecordBatch::new_empty(self.schema.clone()))?,
            Format::Csv | Format::Ndjson => {}
            Format::Json => {
                let mut writer = JsonBuilder::new().with_explicit_nulls(true).build::<_, JsonArray>(&mut *self.out);
                for batch in self.held.iter().filter(|batch| batch.num_rows() > 0) {
                    writer.write(batch)?;
                }
                writer.finish()?;
                writeln!(self.out).map_err(output_error)?;
            }
            Format::Auto | Format::Table => {
                let options = FormatOptions::default().with_null("NULL");
                let table = if self.held.is_empty() {
                    pretty_format_batches_with_schema(self.schema.clone(), &[])?.to_string()
                } else {
                    pretty_format_batches_with_options(&self.held, &options)?.to_string()
                };
                writeln!(self.out, "{table}").map_err(output_error)?;
            }
        }
        self.out.flush().map_err(output_error)?;
        Ok(self.num_rows)
    }
}

fn output_error(error: io::Error) -> ArrowError {
    ArrowError::IoError(error.to_string(), error)
}

#[cfg(test)]
mod tests {
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
        let mut writer = AnswerWriter::new(&mut out, format, schema);
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
}
