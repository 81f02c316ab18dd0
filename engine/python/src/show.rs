//! Answers for people: a table of their first rows, as text and as HTML, with types and the report's line; of EXPLAIN
//! its text.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use millpond::QueryReport;
use millpond::explain::text_of;
use millpond_cli::types::type_name;

/// Rows that are shown.
const ROWS: usize = 40;
/// Characters of a cell that are shown.
const CELL: usize = 60;

/// Cells of the first rows, NULL as `NULL`.
fn cells(batches: &[RecordBatch]) -> Result<Vec<Vec<String>>, ArrowError> {
    let options = FormatOptions::default().with_null("NULL").with_types_info(false);
    let mut rows = vec![];
    for batch in batches {
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            if rows.len() == ROWS {
                return Ok(rows);
            }
            let cells = columns.iter().map(|column| column.value(row).try_to_string().map(short));
            rows.push(cells.collect::<Result<Vec<_>, _>>()?);
        }
    }
    Ok(rows)
}

/// A cell on one line, its end left out where it is long.
fn short(text: String) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match text.char_indices().nth(CELL) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn total(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

/// A line about the rows that are not shown.
fn rest(batches: &[RecordBatch]) -> Option<String> {
    let total = total(batches);
    (total > ROWS).then(|| format!("… {} more rows", total - ROWS))
}

pub fn text(schema: &SchemaRef, batches: &[RecordBatch], report: &QueryReport) -> Result<String, ArrowError> {
    if let Some(plan) = text_of(batches) {
        return Ok(plan.to_string());
    }
    let mut text = String::new();
    if !schema.fields().is_empty() {
        let mut table = Table::new();
        table.load_preset(UTF8_BORDERS_ONLY);
        let fields = schema.fields().iter();
        table.set_header(fields.map(|field| format!("{}\n{}", field.name(), type_name(field.data_type()))));
        table.add_rows(cells(batches)?);
        for (column, field) in table.column_iter_mut().zip(schema.fields()) {
            if field.data_type().is_numeric() {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let _ = writeln!(text, "{table}");
    }
    if let Some(rest) = rest(batches) {
        let _ = writeln!(text, "{rest}");
    }
    let _ = write!(text, "{report}");
    Ok(text)
}

pub fn html(schema: &SchemaRef, batches: &[RecordBatch], report: &QueryReport) -> Result<String, ArrowError> {
    if let Some(plan) = text_of(batches) {
        let lines: Vec<String> = plan.lines().map(escaped).collect();
        return Ok(format!("<pre>{}</pre>", lines.join("\n")));
    }
    let mut html = String::from("<div>");
    if !schema.fields().is_empty() {
        html.push_str("<table><thead><tr>");
        for field in schema.fields() {
            let (name, of) = (escaped(field.name()), escaped(&type_name(field.data_type())));
            let _ = write!(html, "<th>{name}<br><small>{of}</small></th>");
        }
        html.push_str("</tr></thead><tbody>");
        for row in cells(batches)? {
            html.push_str("<tr>");
            for (cell, field) in row.iter().zip(schema.fields()) {
                let align = if field.data_type().is_numeric() { " style=\"text-align:right\"" } else { "" };
                let _ = write!(html, "<td{align}>{}</td>", escaped(cell));
            }
            html.push_str("</tr>");
        }
        html.push_str("</tbody></table>");
    }
    if let Some(rest) = rest(batches) {
        let _ = write!(html, "<p>{rest}</p>");
    }
    let _ = write!(html, "<p><small>{}</small></p></div>", escaped(&report.to_string()));
    Ok(html)
}

fn escaped(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// True for a type whose values Python has.
pub fn has_python_value(of: &DataType) -> bool {
    match of {
        DataType::Interval(_) | DataType::RunEndEncoded(..) | DataType::Union(..) => false,
        DataType::Dictionary(_, of) => has_python_value(of),
        DataType::List(of) | DataType::LargeList(of) | DataType::ListView(of) | DataType::LargeListView(of) => {
            has_python_value(of.data_type())
        }
        DataType::FixedSizeList(of, _) | DataType::Map(of, _) => has_python_value(of.data_type()),
        DataType::Struct(fields) => fields.iter().all(|field| has_python_value(field.data_type())),
        _ => true,
    }
}

/// The same rows with strings and bytes as offsets and values, for readers that have no views.
pub fn plain(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<(SchemaRef, Vec<RecordBatch>), ArrowError> {
    let plain = |of: &DataType| match of {
        DataType::Utf8View => Some(DataType::LargeUtf8),
        DataType::BinaryView => Some(DataType::LargeBinary),
        _ => None,
    };
    let fields = schema.fields().iter().map(|field| match plain(field.data_type()) {
        Some(of) => Arc::new(Field::clone(field).with_data_type(of)),
        None => Arc::clone(field),
    });
    let schema: SchemaRef = Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()));
    let batches = batches.iter().map(|batch| {
        let columns = batch.columns().iter().zip(schema.fields());
        let columns = columns.map(|(column, field)| cast(column, field.data_type()));
        RecordBatch::try_new(Arc::clone(&schema), columns.collect::<Result<_, _>>()?)
    });
    let batches = batches.collect::<Result<_, _>>()?;
    Ok((schema, batches))
}
