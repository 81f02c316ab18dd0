//! A table that is drawn while its rows arrive, or the part of an answer that fits a terminal.
//!
//! ```text
//!   all rows       first 1,000 rows, or those of 100 ms ─► widths ─► +--------+---------+    a later, wider cell
//!                                                                    |      n | s       |    overflows its column
//!   a part of them first and last rows, at the end ─► layout ─►      | bigint | varchar |
//!                                                                    +--------+---------+
//! ```
//!
//! Memory   The rows that determine the widths, then one batch; for a part, the first and the last batches.
//! NULL     `NULL`; the text NULL is `'NULL'`. A line break in a cell continues the cell one line below; other control
//!          characters are shown as `\t`, `\r`, `\u{1b}`, since they would move the cursor.

mod layout;

use std::collections::VecDeque;
use std::io::{self, Write};

use millpond::datafusion::arrow::array::{Array, RecordBatch};
use millpond::datafusion::arrow::datatypes::{DataType, SchemaRef};
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::types::type_name;
use layout::{Column, Layout};

/// Number of rows that determine the widths of columns.
pub const ROWS_OF_WIDTHS: usize = 1000;

/// Marks omitted rows and columns.
const ELLIPSIS: &str = "…";

/// Limits on the shown part of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fit {
    /// Maximum number of rows: the first and the last ones of the answer; `None` shows all.
    pub rows: Option<usize>,
    /// Width of the terminal. In a wider table, long texts are cut, and columns in the middle are left out.
    pub width: Option<usize>,
}

/// Numbers of shown rows and columns, and the totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    pub rows: usize,
    pub of_rows: usize,
    pub columns: usize,
    pub of_columns: usize,
}

/// Draws one table.
pub struct TableWriter {
    columns: Vec<Column>,
    fit: Fit,
    /// Rows that are not drawn yet; for a part, its first rows.
    held: Vec<RecordBatch>,
    held_rows: usize,
    /// For a part, the last rows so far.
    last: VecDeque<RecordBatch>,
    last_rows: usize,
    num_rows: usize,
    /// Set once the top is drawn.
    layout: Option<Layout>,
}

impl TableWriter {
    pub fn new(schema: &SchemaRef, fit: Fit) -> Self {
        let columns = schema.fields().iter().map(|field| {
            let of = field.data_type();
            Column::new(visible(field.name().clone()), type_name(of), of.is_numeric(), is_text(of) || of.is_nested())
        });
        Self {
            columns: columns.collect(),
            fit,
            held: Vec::new(),
            held_rows: 0,
            last: VecDeque::new(),
            last_rows: 0,
            num_rows: 0,
            layout: None,
        }
    }

    /// True once the widths are known, so that rows are drawn as they arrive.
    pub fn is_drawing(&self) -> bool {
        self.layout.is_some()
    }

    /// True if nothing is drawn before the last row has arrived.
    pub fn waits_for_end(&self) -> bool {
        self.fit.rows.is_some()
    }

    /// Draws a batch, or holds it until there are enough rows for the widths.
    ///
    /// # Errors
    /// Arrow's, for a type without a text form, or the output's.
    pub fn write(&mut self, batch: RecordBatch, out: &mut dyn Write) -> Result<(), ArrowError> {
        self.num_rows += batch.num_rows();
        if let Some(most) = self.fit.rows {
            self.hold_part(&batch, most);
            return Ok(());
        }
        if let Some(layout) = &self.layout {
            return draw(&batch, layout, out);
        }
        self.held_rows += batch.num_rows();
        self.held.push(batch);
        if self.held_rows >= ROWS_OF_WIDTHS { self.draw_held(out) } else { Ok(()) }
    }

    /// Holds the first half of `most` rows, and the last half of the rows after them.
    fn hold_part(&mut self, batch: &RecordBatch, most: usize) {
        let (first, last) = (most.div_ceil(2), most / 2);
        let taken = batch.num_rows().min(first - self.held_rows);
        if taken > 0 {
            self.held.push(batch.slice(0, taken));
            self.held_rows += taken;
        }
        let rest = batch.num_rows() - taken;
        if rest == 0 {
            return;
        }
        self.last.push_back(batch.slice(taken, rest));
        self.last_rows += rest;
        while let Some(front) = self.last.front_mut()
            && self.last_rows > last
        {
            let surplus = (self.last_rows - last).min(front.num_rows());
            self.last_rows -= surplus;
            *front = front.slice(surplus, front.num_rows() - surplus);
            if front.num_rows() == 0 {
                self.last.pop_front();
            }
        }
    }

    /// Draws the held rows, and fixes the widths of the table.
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub fn draw_held(&mut self, out: &mut dyn Write) -> Result<(), ArrowError> {
        if self.layout.is_some() {
            return Ok(());
        }
        // A part has few rows, so all of them determine the widths.
        let mut rows_left = if self.waits_for_end() { usize::MAX } else { ROWS_OF_WIDTHS };
        for batch in self.held.iter().chain(&self.last) {
            let rows = batch.num_rows().min(rows_left);
            rows_left -= rows;
            let columns = &mut self.columns;
            let all: Vec<usize> = (0..columns.len()).collect();
            for_each_row(&batch.slice(0, rows), &all, |cells| {
                for (column, cell) in columns.iter_mut().zip(cells) {
                    column.widen(width_of_cell(cell));
                }
                Ok(())
            })?;
        }
        let layout = Layout::new(&self.columns, self.fit.width);
        rule(&layout, out)?;
        for text in [Column::name, Column::type_name] {
            let cells: Vec<String> = layout.columns.iter().map(|at| text(&self.columns[*at]).to_string()).collect();
            draw_row(&cells, &layout, out)?;
        }
        rule(&layout, out)?;
        for batch in std::mem::take(&mut self.held) {
            draw(&batch, &layout, out)?;
        }
        if self.num_rows > self.held_rows + self.last_rows {
            draw_row(&vec![ELLIPSIS.to_string(); layout.columns.len()], &layout, out)?;
        }
        for batch in std::mem::take(&mut self.last) {
            draw(&batch, &layout, out)?;
        }
        self.layout = Some(layout);
        Ok(())
    }

    /// Draws the remaining rows. Returns how much of the answer the table shows.
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub fn finish(&mut self, out: &mut dyn Write) -> Result<Shown, ArrowError> {
        self.draw_held(out)?;
        let num_columns = self.columns.len();
        let mut shown =
            Shown { rows: self.num_rows, of_rows: self.num_rows, columns: num_columns, of_columns: num_columns };
        if let Some(layout) = &self.layout {
            rule(layout, out)?;
            shown.columns = layout.columns.len();
        }
        if self.waits_for_end() {
            shown.rows = self.held_rows + self.last_rows;
        }
        Ok(shown)
    }
}

/// True for strings and dictionaries of strings.
fn is_text(of: &DataType) -> bool {
    match of {
        DataType::Dictionary(_, of) => is_text(of),
        of => of.is_string(),
    }
}

/// Draws the rows of a batch.
fn draw(batch: &RecordBatch, layout: &Layout, out: &mut dyn Write) -> Result<(), ArrowError> {
    for_each_row(batch, &layout.columns, |cells| Ok(draw_row(cells, layout, out)?))
}

/// Calls `use_row` for each row, with the texts of its cells in these columns.
pub fn for_each_row(
    batch: &RecordBatch,
    columns: &[usize],
    mut use_row: impl FnMut(&[String]) -> Result<(), ArrowError>,
) -> Result<(), ArrowError> {
    use std::fmt::Write as _;
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<_> = columns
        .iter()
        .map(|at| {
            let column = batch.column(*at);
            let nulls = is_text(column.data_type()).then(|| column.logical_nulls());
            Ok((ArrayFormatter::try_new(column, &options)?, nulls))
        })
        .collect::<Result<_, ArrowError>>()?;
    let mut cells = vec![String::new(); columns.len()];
    for row in 0..batch.num_rows() {
        for (cell, (column, nulls)) in cells.iter_mut().zip(&columns) {
            cell.clear();
            // If a value has no text form, its cell shows the error; writing to a string cannot fail otherwise.
            let _ = write!(cell, "{}", column.value(row));
            let is_text = nulls.as_ref().is_some_and(|nulls| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)));
            *cell = if is_text && cell == "NULL" { "'NULL'".into() } else { visible(std::mem::take(cell)) };
        }
        use_row(&cells)?;
    }
    Ok(())
}

/// The text with its control characters escaped, except line breaks.
pub fn visible(text: String) -> String {
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

fn rule(layout: &Layout, out: &mut dyn Write) -> io::Result<()> {
    for (at, width) in layout.widths.iter().enumerate() {
        if layout.gap == Some(at) {
            write!(out, "+---")?;
        }
        write!(out, "+")?;
        repeat(b'-', width + 2, out)?;
    }
    if layout.gap == Some(layout.widths.len()) {
        write!(out, "+---")?;
    }
    writeln!(out, "+")
}

/// Writes a letter `times` times; `{:1$}` is limited to 65,535.
fn repeat(letter: u8, mut times: usize, out: &mut dyn Write) -> io::Result<()> {
    let letters = [letter; 64];
    while times > 0 {
        let written = times.min(letters.len());
        out.write_all(&letters[..written])?;
        times -= written;
    }
    Ok(())
}

/// Draws a row, with as many lines as its tallest cell.
fn draw_row(cells: &[String], layout: &Layout, out: &mut dyn Write) -> io::Result<()> {
    let height = cells.iter().map(|cell| cell.split('\n').count()).max().unwrap_or(1);
    for line in 0..height {
        for (at, (cell, width)) in cells.iter().zip(&layout.widths).enumerate() {
            if layout.gap == Some(at) {
                write!(out, "| {ELLIPSIS} ")?;
            }
            let text = if height == 1 { cell } else { cell.split('\n').nth(line).unwrap_or_default() };
            let wide = width_of_line(text);
            let cut = (layout.cuts && wide > *width).then(|| cut(text, *width));
            let text = cut.as_deref().unwrap_or(text);
            let blanks = width.saturating_sub(width_of_line(text));
            let (before, after) = if layout.right[at] { (blanks, 0) } else { (0, blanks) };
            write!(out, "|")?;
            repeat(b' ', before + 1, out)?;
            write!(out, "{text}")?;
            repeat(b' ', after + 1, out)?;
        }
        if layout.gap == Some(layout.widths.len()) {
            write!(out, "| {ELLIPSIS} ")?;
        }
        writeln!(out, "|")?;
    }
    Ok(())
}

/// The beginning of a line, cut to `width` columns of a terminal, with an ellipsis.
fn cut(line: &str, width: usize) -> String {
    let (mut used, mut kept) = (0, String::new());
    for letter in line.chars() {
        used += letter.width().unwrap_or(0);
        if used >= width {
            break;
        }
        kept.push(letter);
    }
    kept + ELLIPSIS
}

/// The width of a cell's widest line, in columns of a terminal.
fn width_of_cell(cell: &str) -> usize {
    cell.split('\n').map(width_of_line).max().unwrap_or(0)
}

fn width_of_line(line: &str) -> usize {
    if line.is_ascii() { line.len() } else { line.width() }
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
        drawn_in(batches, Fit::default()).0
    }

    fn drawn_in(batches: &[RecordBatch], fit: Fit) -> (String, Shown) {
        let mut out = Vec::new();
        let mut table = TableWriter::new(&batches[0].schema(), fit);
        for batch in batches {
            table.write(batch.clone(), &mut out).expect("written");
        }
        let shown = table.finish(&mut out).expect("finished");
        (String::from_utf8(out).expect("text"), shown)
    }

    #[test]
    fn names_have_types_below_them_and_numbers_stand_at_the_right() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(-300)]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("日本語"), Some("two\nlines"), Some("NULL")]));
        let nulls: ArrayRef = Arc::new(StringArray::from(vec![None, Some(""), Some("null")]));
        let rows = batch(vec![("n", numbers), ("a longer name", texts), ("t", nulls)]);
        let expected = "\
+--------+---------------+---------+
|      n | a longer name | t       |
| bigint | varchar       | varchar |
+--------+---------------+---------+
|      1 | 日本語        | NULL    |
|   NULL | two           |         |
|        | lines         |         |
|   -300 | 'NULL'        | null    |
+--------+---------------+---------+
";
        assert_eq!(drawn(&[rows]), expected);
    }

    #[test]
    fn a_part_has_the_first_and_the_last_rows() {
        let numbers =
            |from: i64, to: i64| batch(vec![("n", Arc::new(Int64Array::from_iter_values(from..to)) as ArrayRef)]);
        let cells = |text: &str| -> Vec<String> {
            text.lines()
                .skip(4)
                .filter(|line| line.starts_with('|'))
                .map(|l| l.trim_matches(['|', ' ']).into())
                .collect()
        };
        let fit = Fit { rows: Some(5), width: None };
        let (text, shown) = drawn_in(&[numbers(0, 2), numbers(2, 50), numbers(50, 51)], fit);
        assert_eq!(cells(&text), ["0", "1", "2", "…", "49", "50"]);
        assert_eq!((shown.rows, shown.of_rows), (5, 51));
        for batches in [vec![numbers(0, 5)], (0..5).map(|n| numbers(n, n + 1)).collect()] {
            let (text, shown) = drawn_in(&batches, fit);
            assert_eq!(cells(&text), ["0", "1", "2", "3", "4"]);
            assert_eq!((shown.rows, shown.of_rows), (5, 5));
        }
        let (text, shown) = drawn_in(&[numbers(0, 6)], fit);
        assert_eq!((cells(&text).join(" "), shown.rows), ("0 1 2 … 4 5".into(), 5));
        let (text, _) = drawn_in(&[numbers(0, 9)], Fit { rows: Some(1), width: None });
        assert_eq!(cells(&text), ["0", "…"]);
    }

    /// A table is at most as wide as the terminal, unless a single column is wider.
    #[test]
    fn a_table_is_as_wide_as_the_terminal() {
        let text =
            |length: usize| Arc::new(StringArray::from(vec!["日x".repeat(length), "ab".to_string()])) as ArrayRef;
        let number = || Arc::new(Int64Array::from(vec![i64::MIN, 7])) as ArrayRef;
        for (num_columns, room) in [(1, 80), (2, 80), (5, 80), (40, 80), (40, 160), (3, 30), (200, 400)] {
            for long in [1, 4, 30] {
                let columns = (0..num_columns).map(|at| {
                    let name = format!("column_{at}");
                    (name, if at % 3 == 2 { number() } else { text(long * (at % 4 + 1)) })
                });
                let rows = RecordBatch::try_from_iter(columns).expect("batch");
                let (text, shown) = drawn_in(&[rows], Fit { rows: None, width: Some(room) });
                let widths: Vec<usize> = text.lines().map(width_of_line).collect();
                assert!(widths.iter().all(|width| *width == widths[0] && *width <= room), "{widths:?}\n{text}");
                assert_eq!(shown.of_columns, num_columns);
                assert_eq!(text.contains("| … |"), shown.columns < num_columns, "{text}");
                assert!(text.contains("column_0"), "{text}");
                assert!(room == 30 || text.contains(&format!("column_{}", num_columns - 1)), "{text}");
            }
        }
        let (text, _) = drawn_in(&[batch(vec![("n", number())])], Fit { rows: None, width: Some(5) });
        assert!(text.contains("| -9223372036854775808 |"), "a number is never cut:\n{text}");
    }

    #[test]
    fn long_texts_are_cut_before_columns_are_left_out() {
        let long = Arc::new(StringArray::from(vec!["x".repeat(100)])) as ArrayRef;
        let one = Arc::new(Int64Array::from(vec![1])) as ArrayRef;
        let rows = batch(vec![("s", long), ("n", one)]);
        let (text, shown) = drawn_in(&[rows], Fit { rows: None, width: Some(40) });
        assert_eq!(shown.columns, 2);
        assert_eq!(text.lines().nth(4), Some("| xxxxxxxxxxxxxxxxxxxxxxxxxx… |      1 |"));
    }

    #[test]
    fn cells_after_the_first_thousand_rows_overflow_their_column() {
        let short: ArrayRef = Arc::new(StringArray::from(vec!["ab"; ROWS_OF_WIDTHS]));
        let late: ArrayRef = Arc::new(StringArray::from(vec!["abcdefghijk", "c"]));
        let numbers = |rows| Arc::new(Int64Array::from(vec![5; rows])) as ArrayRef;
        let text = drawn(&[
            batch(vec![("s", short), ("n", numbers(ROWS_OF_WIDTHS))]),
            batch(vec![("s", late), ("n", numbers(2))]),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[4], "| ab      |      5 |");
        let end = ["| abcdefghijk |      5 |", "| c       |      5 |", "+---------+--------+"];
        assert_eq!(lines[4 + ROWS_OF_WIDTHS..], end);
    }

    #[test]
    fn a_cell_may_be_wider_than_any_screen() {
        for letter in ["x", "é", "日"] {
            let texts: ArrayRef = Arc::new(StringArray::from(vec![letter.repeat(70_000), "y".to_string()]));
            let columns = if letter == "日" { 140_000 } else { 70_000 };
            let text = drawn(&[batch(vec![("s", texts)])]);
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines[0], format!("+{}+", "-".repeat(columns + 2)), "{letter}");
            assert_eq!(lines[4], format!("| {} |", letter.repeat(70_000)));
            assert_eq!(lines[5], format!("| y{} |", " ".repeat(columns - 1)), "{letter}");
        }
    }

    #[test]
    fn control_characters_are_shown_and_move_nothing() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a\r\nb", "\tc", "\u{1b}[31mred", "\u{0}"]));
        let expected = [
            "+---------------+",
            "| s\\t           |",
            "| varchar       |",
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
        let (mut table, mut out) = (TableWriter::new(&rows.schema(), Fit::default()), Vec::new());
        table.write(rows.clone(), &mut out).expect("written");
        assert!(out.is_empty() && !table.is_drawing());
        table.write(rows.slice(0, 1), &mut out).expect("written");
        assert!(table.is_drawing());
        assert_eq!(String::from_utf8(out).expect("text").lines().count(), 4 + ROWS_OF_WIDTHS);
    }
}
