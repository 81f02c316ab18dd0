//! Rows as csv or tsv, by RFC 4180. A field is quoted if it contains a delimiter, a quote or a line break, and if it is
//! the empty text, because NULL is an empty unquoted field. The NULL of an only column is quoted, too: many readers
//! skip empty lines, and would lose the row.

use std::fmt::Write as _;
use std::io::Write;

use millpond::datafusion::arrow::array::{Array, RecordBatch};
use millpond::datafusion::arrow::datatypes::Schema;
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// Writes the header line.
///
/// # Errors
/// Errors of the output.
pub fn header(schema: &Schema, delimiter: u8, out: &mut dyn Write) -> Result<(), ArrowError> {
    let mut line = String::new();
    for (at, field) in schema.fields().iter().enumerate() {
        push(&mut line, at, Some(field.name()), delimiter);
    }
    Ok(writeln!(out, "{line}")?)
}

/// Writes the rows of a batch.
///
/// # Errors
/// Arrow's, for a value without a text form, or errors of the output.
pub fn rows(batch: &RecordBatch, delimiter: u8, out: &mut dyn Write) -> Result<(), ArrowError> {
    let options = FormatOptions::default().with_display_error(false);
    let columns =
        batch.columns().iter().map(|column| Ok((ArrayFormatter::try_new(column, &options)?, column.logical_nulls())));
    let columns: Vec<_> = columns.collect::<Result<_, ArrowError>>()?;
    let null = (columns.len() == 1).then_some("");
    let (mut line, mut text) = (String::new(), String::new());
    for row in 0..batch.num_rows() {
        line.clear();
        for (at, (column, nulls)) in columns.iter().enumerate() {
            if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                push(&mut line, at, null, delimiter);
                continue;
            }
            text.clear();
            write!(text, "{}", column.value(row)).map_err(|_| {
                let name = batch.schema_ref().field(at).name();
                ArrowError::CsvError(format!("a value of column {name} in row {} has no text", row + 1))
            })?;
            push(&mut line, at, Some(&text), delimiter);
        }
        line.push('\n');
        out.write_all(line.as_bytes())?;
    }
    Ok(())
}

/// Appends a field; `None` is NULL. A delimiter precedes it unless `at` is 0.
fn push(line: &mut String, at: usize, text: Option<&str>, delimiter: u8) {
    if at > 0 {
        line.push(char::from(delimiter));
    }
    let Some(text) = text else { return };
    if !text.is_empty() && !text.bytes().any(|byte| byte == delimiter || matches!(byte, b'"' | b'\n' | b'\r')) {
        return line.push_str(text);
    }
    line.push('"');
    for (part, piece) in text.split('"').enumerate() {
        if part > 0 {
            line.push_str("\"\"");
        }
        line.push_str(piece);
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::datafusion::arrow::array::{Int64Array, StringArray};

    use super::*;

    #[test]
    fn null_is_nothing_and_the_empty_text_is_in_quotes() {
        let texts = StringArray::from(vec![Some(""), None, Some("a,b"), Some("say \"x\""), Some("\"two\nlines\"")]);
        let numbers = Int64Array::from(vec![Some(1), None, Some(3), None, Some(5)]);
        let batch = RecordBatch::try_from_iter([("s", Arc::new(texts) as _), ("n,m", Arc::new(numbers) as _)]);
        let batch = batch.expect("batch");
        let mut out = Vec::new();
        header(batch.schema_ref(), b',', &mut out).expect("written");
        rows(&batch, b',', &mut out).expect("written");
        let expected = "s,\"n,m\"\n\"\",1\n,\n\"a,b\",3\n\"say \"\"x\"\"\",\n\"\"\"two\nlines\"\"\",5\n";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
        let mut out = Vec::new();
        rows(&batch, b'\t', &mut out).expect("written");
        assert!(String::from_utf8(out).expect("text").starts_with("\"\"\t1\n\t\na,b\t3\n"));
        let only = batch.project(&[1]).expect("a column");
        let mut out = Vec::new();
        rows(&only, b',', &mut out).expect("written");
        assert_eq!(String::from_utf8(out).expect("text"), "1\n\"\"\n3\n\"\"\n5\n", "no line is empty");
    }
}
