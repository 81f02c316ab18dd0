//! Values in the words of SQLite's own logic tests, which depend on the letter that a file gives a column.
//!
//! ```text
//!   I   a whole number; fractions are cut off        T   text; (empty) for none, @ for what does not print
//!   R   three digits after the point                 NULL for NULL under every letter; 1 and 0 for true and false
//! ```
//!
//! SQLite has no booleans and converts each value to the type that the reader asks for. That is the display of a file,
//! and no difference between answers.

use std::fmt::Display;

use millpond::datafusion::arrow::array::{Array, ArrayRef, AsArray};
use millpond::datafusion::arrow::datatypes::{DataType, Float32Type, Float64Type};
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// The value of a row in a column of the letter.
pub fn shown(letter: char, column: &ArrayRef, row: usize) -> Result<String, ArrowError> {
    if column.is_null(row) {
        return Ok("NULL".to_string());
    }
    Ok(match column.data_type() {
        DataType::Boolean => number(letter, f64::from(u8::from(column.as_boolean().value(row)))),
        DataType::Float32 => number(letter, f64::from(column.as_primitive::<Float32Type>().value(row))),
        DataType::Float64 => number(letter, column.as_primitive::<Float64Type>().value(row)),
        DataType::Dictionary(..) => {
            let codes = column.as_any_dictionary();
            return shown(letter, codes.values(), codes.normalized_keys()[row]);
        }
        ty => {
            let options = FormatOptions::default();
            let plain = ArrayFormatter::try_new(column.as_ref(), &options)?.value(row).try_to_string()?;
            match letter {
                'I' => whole(&plain),
                'R' => fraction(&plain),
                // A decimal is a real number in SQLite.
                _ if ty.is_decimal() => number(letter, plain.parse().unwrap_or_default()),
                _ => text(&plain),
            }
        }
    })
}

fn number(letter: char, value: f64) -> String {
    match letter {
        // Past the range of i64, SQLite's conversion stops at its ends, too.
        'I' => (value as i64).to_string(),
        'R' => format!("{value:.3}"),
        _ if value.fract() == 0.0 && value.abs() < 1e15 => format!("{value:.1}"),
        _ => significant(value),
    }
}

/// Fifteen significant digits, without zeros at their end.
fn significant(value: f64) -> String {
    let digits = format!("{value:.14e}").parse::<f64>().unwrap_or(value);
    digits.to_string()
}

/// The whole number that a text begins with, or 0.
fn whole(text: &str) -> String {
    let text = text.trim_start();
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    match &digits[..end] {
        "" => "0".to_string(),
        digits => format!("{sign}{digits}"),
    }
}

/// Three digits after the point of the number that a text is, or of 0.
fn fraction(text: &str) -> String {
    format!("{:.3}", text.trim().parse::<f64>().unwrap_or_default())
}

fn text(text: &str) -> String {
    match text {
        "" => "(empty)".to_string(),
        text => text.chars().map(|letter| if matches!(letter, ' '..='~') { letter } else { '@' }).collect(),
    }
}

/// A row of a record's answer.
pub fn row(letters: &[char], columns: &[ArrayRef], row: usize) -> Result<Vec<String>, String> {
    if letters.len() != columns.len() {
        return Err(format!("the answer has {} columns, the file {}", columns.len(), letters.len()));
    }
    let cells = letters.iter().zip(columns).map(|(letter, column)| shown(*letter, column, row).map_err(words));
    cells.collect()
}

fn words(error: impl Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::datafusion::arrow::array::{BooleanArray, Decimal128Array, Float64Array, Int32Array, StringArray};

    use super::*;

    fn column(values: impl Array + 'static) -> ArrayRef {
        Arc::new(values)
    }

    // Expected words are those of SQLite's own program: sqlite3_column_int64, "%.3f" and sqlite3_column_text.
    #[test]
    fn each_letter_has_its_words() {
        let decimal = Decimal128Array::from(vec![-12_345]).with_precision_and_scale(9, 4).expect("a decimal");
        for (letter, values, expected) in [
            ('I', column(Int32Array::from(vec![-7])), "-7"),
            ('R', column(Int32Array::from(vec![-7])), "-7.000"),
            ('T', column(Int32Array::from(vec![-7])), "-7"),
            ('I', column(Float64Array::from(vec![-7.9])), "-7"),
            ('R', column(Float64Array::from(vec![2.0 / 3.0])), "0.667"),
            ('T', column(Float64Array::from(vec![0.1 + 0.2])), "0.3"),
            ('T', column(Float64Array::from(vec![5.0])), "5.0"),
            ('I', column(BooleanArray::from(vec![true])), "1"),
            ('I', column(decimal.clone()), "-1"),
            ('R', column(decimal), "-1.234"),
            ('T', column(StringArray::from(vec![""])), "(empty)"),
            ('T', column(StringArray::from(vec!["a\tä"])), "a@@"),
            ('I', column(StringArray::from(vec!["12ab"])), "12"),
            ('I', column(StringArray::from(vec!["table"])), "0"),
            ('R', column(Int32Array::from(vec![None])), "NULL"),
        ] {
            assert_eq!(shown(letter, &values, 0).expect("a value is shown"), expected, "{letter} of {values:?}");
        }
    }
}
