//! A table that is drawn while its rows still come.
//!
//! ```text
//!   first 1,000 rows, or those of 100 ms ─► widths ─► +---+-----+      a later, wider cell     | 7 | longer than its column |
//!                                                     | n | s   |      overflows its column:   | 8 | short |
//!                                                     +---+-----+
//! ```
//!
//! Memory   the rows that make the widths, and then one batch.
//! NULL     is `NULL`. A line break in a cell continues the cell one line below; other control characters are shown as `\t`, `\r`,
//!          `\u{1b}`, since they would move the cursor.

use std::io::{self, Write};

use comfy_table::Table;
use millpond::datafusion::arrow::array::RecordBatch;
use millpond::datafusion::arrow::datatypes::SchemaRef;
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// Rows whose cells make the widths of columns.
pub const ROWS_OF_WIDTHS: usize = 1000;

/// Draws one table.
pub struct TableWriter {
    names: Vec<String>,
    /// Rows whose widths are not known yet.
    held: Vec<RecordBatch>,
    held_rows: usize,
    /// Widths of columns, once the top is drawn.
    widths: Option<Vec<usize>>,
}

impl TableWriter {
    pub fn new(schema: &SchemaRef) -> Self {
        let names = schema.fields().iter().map(|field| visible(field.name().clone())).collect();
        Self { names, held: Vec::new(), held_rows: 0, widths: None }
    }

    /// True once the widths are known, and rows are drawn as they come.
    pub fn is_drawing(&self) -> bool {
        self.widths.is_some()
    }

    /// Takes rows: draws them, or holds them until there are enough for the widths.
    ///
    /// # Errors
    /// Arrow's, for a type without a text form, or the output's.
    pub fn write(&mut self, batch: RecordBatch, out: &mut dyn Write) -> Result<(), ArrowError> {
        if let Some(widths) = &self.widths {
            return draw(&batch, widths, out);
        }
        self.held_rows += batch.num_rows();
        self.held.push(batch);
        if self.held_rows >= ROWS_OF_WIDTHS { self.draw_held(out) } else { Ok(()) }
    }

    /// Draws the rows at hand, whose widths are those of the table from now on.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn draw_held(&mut self, out: &mut dyn Write) -> Result<(), ArrowError> {
        if self.widths.is_some() {
            return Ok(());
        }
        let mut widths: Vec<usize> = self.names.iter().map(|name| width_of_cell(name).max(1)).collect();
        let mut rows_left = ROWS_OF_WIDTHS;
        for batch in &self.held {
            let rows = batch.num_rows().min(rows_left);
            rows_left -= rows;
            for_each_row(&batch.slice(0, rows), |cells| {
                for (width, cell) in widths.iter_mut().zip(cells) {
                    *width = width_of_cell(cell).max(*width);
                }
                Ok(())
            })?;
        }
        rule(&widths, out)?;
        draw_row(&self.names, &widths, out)?;
        rule(&widths, out)?;
        for batch in std::mem::take(&mut self.held) {
            draw(&batch, &widths, out)?;
        }
        self.widths = Some(widths);
        Ok(())
    }

    /// Draws what is left.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn finish(&mut self, out: &mut dyn Write) -> Result<(), ArrowError> {
        self.draw_held(out)?;
        let widths = self.widths.as_deref().unwrap_or_default();
        Ok(rule(widths, out)?)
    }
}

/// Draws the rows of a batch.
fn draw(batch: &RecordBatch, widths: &[usize], out: &mut dyn Write) -> Result<(), ArrowError> {
    for_each_row(batch, |cells| Ok(draw_row(cells, widths, out)?))
}

/// Calls `use_row` with the text of each cell of each row.
fn for_each_row(
    batch: &RecordBatch,
    mut use_row: impl FnMut(&[String]) -> Result<(), ArrowError>,
) -> Result<(), ArrowError> {
    use std::fmt::Write as _;
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<ArrayFormatter> =
        batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options)).collect::<Result<_, _>>()?;
    let mut cells = vec![String::new(); columns.len()];
    for row in 0..batch.num_rows() {
        for (cell, column) in cells.iter_mut().zip(&columns) {
            cell.clear();
            // A value that has no text says so in its cell; writing to a string cannot fail otherwise.
            let _ = write!(cell, "{}", column.value(row));
            *cell = visible(std::mem::take(cell));
        }
        use_row(&cells)?;
    }
    Ok(())
}

/// The text with its control characters escaped, but for line breaks.
fn visible(text: String) -> String {
    let moves = |letter: char| letter.is_control() && letter != '\n';
    if !text.contains(moves) {
        return text;
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        if moves(letter) { shown.extend(letter.escape_default()) } else { shown.push(letter) }
    }
    shown
}

fn rule(widths: &[usize], out: &mut dyn Write) -> io::Result<()> {
    for width in widths {
        write!(out, "+")?;
        repeat(b'-', width + 2, out)?;
    }
    writeln!(out, "+")
}

/// Writes a letter many times. The widths that `{:1$}` takes end at 65,535.
fn repeat(letter: u8, mut times: usize, out: &mut dyn Write) -> io::Result<()> {
    let letters = [letter; 64];
    while times > 0 {
        let written = times.min(letters.len());
        out.write_all(&letters[..written])?;
        times -= written;
    }
    Ok(())
}

/// Draws a row, on as many lines as its tallest cell has.
fn draw_row(cells: &[String], widths: &[usize], out: &mut dyn Write) -> io::Result<()> {
    let height = cells.iter().map(|cell| cell.split('\n').count()).max().unwrap_or(1);
    for line in 0..height {
        for (cell, width) in cells.iter().zip(widths) {
            let text = if height == 1 { cell } else { cell.split('\n').nth(line).unwrap_or_default() };
            write!(out, "| {text}")?;
            repeat(b' ', width.saturating_sub(width_of_line(text)) + 1, out)?;
        }
        writeln!(out, "|")?;
    }
    Ok(())
}

/// The columns of a terminal that the widest line of a cell takes.
fn width_of_cell(cell: &str) -> usize {
    cell.split('\n').map(width_of_line).max().unwrap_or(0)
}

fn width_of_line(line: &str) -> usize {
    if line.is_ascii() {
        return line.len();
    }
    // A width has 16 bits there, and no letter takes more than two columns.
    const PIECE: usize = 32_000;
    let (mut width, mut rest) = (0, line);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.char_indices().nth(PIECE).map_or(rest.len(), |(at, _)| at));
        let mut table = Table::new();
        table.add_row([piece]);
        width += usize::from(table.column_max_content_widths().first().copied().unwrap_or(0));
        rest = after;
    }
    width
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter(columns).expect("batch")
    }

    fn drawn(batches: &[RecordBatch]) -> String {
        let mut out = Vec::new();
        let mut table = TableWriter::new(&batches[0].schema());
        for batch in batches {
            table.write(batch.clone(), &mut out).expect("written");
        }
        table.finish(&mut out).expect("finished");
        String::from_utf8(out).expect("text")
    }

    /// Arrow draws whole tables; where all rows make the widths, ours is the same.
    #[test]
    fn a_short_table_is_arrows() {
        use millpond::datafusion::arrow::util::pretty::pretty_format_batches_with_options;
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(-300)]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("日本語"), Some("two\nlines"), Some("")]));
        let rows = batch(vec![("n", numbers), ("a longer name", texts)]);
        let options = FormatOptions::default().with_null("NULL");
        let whole = pretty_format_batches_with_options(&[rows.clone(), rows.clone()], &options).expect("text");
        assert_eq!(drawn(&[rows.clone(), rows]), format!("{whole}\n"));
    }

    #[test]
    fn cells_after_the_first_thousand_rows_overflow_their_column() {
        let short: ArrayRef = Arc::new(StringArray::from(vec!["ab"; ROWS_OF_WIDTHS]));
        let late: ArrayRef = Arc::new(StringArray::from(vec!["abcdef", "c"]));
        let numbers = |rows| Arc::new(Int64Array::from(vec![5; rows])) as ArrayRef;
        let text = drawn(&[
            batch(vec![("s", short), ("n", numbers(ROWS_OF_WIDTHS))]),
            batch(vec![("s", late), ("n", numbers(2))]),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..4], ["+----+---+", "| s  | n |", "+----+---+", "| ab | 5 |"]);
        assert_eq!(lines[3 + ROWS_OF_WIDTHS..], ["| abcdef | 5 |", "| c  | 5 |", "+----+---+"]);
    }

    #[test]
    fn a_cell_may_be_wider_than_any_screen() {
        for letter in ["x", "é", "日"] {
            let texts: ArrayRef = Arc::new(StringArray::from(vec![letter.repeat(70_000), "y".to_string()]));
            let columns = if letter == "日" { 140_000 } else { 70_000 };
            let text = drawn(&[batch(vec![("s", texts)])]);
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines[0], format!("+{}+", "-".repeat(columns + 2)), "{letter}");
            assert_eq!(lines[3], format!("| {} |", letter.repeat(70_000)));
            assert_eq!(lines[4], format!("| y{} |", " ".repeat(columns - 1)), "{letter}");
        }
    }

    #[test]
    fn control_characters_are_shown_and_move_nothing() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a\r\nb", "\tc", "\u{1b}[31mred", "\u{0}"]));
        let expected = [
            "+---------------+",
            "| s\\t           |",
            "+---------------+",
            "| a\\r           |",
            "| b             |",
            "| \\tc           |",
            "| \\u{1b}[31mred |",
            "| \\u{0}         |",
            "+---------------+",
        ];
        assert_eq!(drawn(&[batch(vec![("s\t", texts)])]).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn rows_are_held_until_there_are_a_thousand() {
        let rows = batch(vec![("n", Arc::new(Int64Array::from(vec![7; ROWS_OF_WIDTHS - 1])) as ArrayRef)]);
        let (mut table, mut out) = (TableWriter::new(&rows.schema()), Vec::new());
        table.write(rows.clone(), &mut out).expect("written");
        assert!(out.is_empty() && !table.is_drawing());
        table.write(rows.slice(0, 1), &mut out).expect("written");
        assert!(table.is_drawing());
        assert_eq!(String::from_utf8(out).expect("text").lines().count(), 3 + ROWS_OF_WIDTHS);
    }
}
