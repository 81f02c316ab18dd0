//! Answers as typed values: are two the same, and what is one's digest?
//!
//! ```text
//!   [2, "b", 1.0]      [1, "a", NULL]
//!   [1, "a", NULL]  ≡  [2, "b", 1.0000000000001]      rows in any order, floats within a tolerance
//! ```
//!
//! NULL   equals NULL.   NaN   equals NaN.   Types   must be the same, but for the three layouts of text.
//! Rows   are compared in order when the caller says that order matters; as bags otherwise.

use std::cmp::Ordering;
use std::fmt;

use millpond::datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use millpond::datafusion::arrow::datatypes::{DataType, Float32Type, Float64Type, SchemaRef};
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// Relative difference allowed between two f64.
pub const F64_TOLERANCE: f64 = 1e-9;
/// Relative difference allowed between two f32.
pub const F32_TOLERANCE: f64 = 1e-5;

/// How two answers differ; the message names the first place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference(String);

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One value of an answer. Everything but floats compares exactly, by its type's own text.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Null,
    Float { value: f64, tolerance: f64 },
    Exact(String),
}

impl Value {
    fn same(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Float { value: a, tolerance }, Value::Float { value: b, .. }) => close(*a, *b, *tolerance),
            _ => self == other,
        }
    }

    /// Equal floats order equally: one NaN, one zero. NULL comes first.
    fn float_order(&self, other: &Value) -> Ordering {
        let plain = |value: f64| if value.is_nan() { f64::NAN } else { value + 0.0 };
        match (self, other) {
            (Value::Float { value: a, .. }, Value::Float { value: b, .. }) => plain(*a).total_cmp(&plain(*b)),
            (Value::Null, Value::Float { .. }) => Ordering::Less,
            (Value::Float { .. }, Value::Null) => Ordering::Greater,
            _ => Ordering::Equal,
        }
    }

    /// Text for sorting and for the digest: floats to the digits that their tolerance leaves meaningful.
    fn key(&self) -> String {
        match self {
            Value::Null => "\u{0}".to_string(),
            Value::Float { value, tolerance } if *tolerance == F32_TOLERANCE => format!("{value:.3e}"),
            Value::Float { value, .. } => format!("{value:.7e}"),
            Value::Exact(text) => format!("={text}"),
        }
    }
}

fn close(a: f64, b: f64, tolerance: f64) -> bool {
    // An infinity is within any tolerance of everything, so only finite numbers are compared by it.
    let near = a.is_finite() && b.is_finite() && (a - b).abs() <= tolerance * a.abs().max(b.abs());
    a == b || (a.is_nan() && b.is_nan()) || near
}

/// An answer: its columns' types and its rows.
#[derive(Debug, Clone)]
pub struct Answer {
    types: Vec<DataType>,
    rows: Vec<Vec<Value>>,
}

impl Answer {
    /// Takes the rows of `batches`.
    ///
    /// # Errors
    /// Arrow's, for a type that has no text form.
    pub fn try_new(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Answer, ArrowError> {
        let types = schema.fields().iter().map(|field| text_as_one(field.data_type())).collect();
        let mut rows = Vec::with_capacity(batches.iter().map(RecordBatch::num_rows).sum());
        for batch in batches {
            let columns: Vec<Vec<Value>> = batch.columns().iter().map(values).collect::<Result<_, _>>()?;
            rows.extend((0..batch.num_rows()).map(|row| columns.iter().map(|c| c[row].clone()).collect()));
        }
        Ok(Answer { types, rows })
    }

    pub fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// Sixteen hexadecimal digits that equal answers share, whatever the order of their rows.
    ///
    /// Floats enter with eight significant digits (f64) or four (f32), so that answers within the tolerance nearly always
    /// agree; two that straddle a rounding step do not. [`compare`] is the judge, the digest a fingerprint.
    pub fn digest(&self) -> String {
        // FNV-1a per row, summed, so that the order of rows does not matter.
        let fnv = |text: &str, seed: u64| {
            text.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
        };
        let row_hash =
            |row: &Vec<Value>| row.iter().fold(0xcbf2_9ce4_8422_2325, |hash, value| fnv(&value.key(), fnv("|", hash)));
        let total = self.rows.iter().map(row_hash).fold(self.rows.len() as u64, u64::wrapping_add);
        format!("{total:016x}")
    }

    /// Rows in an order that equal answers share: by exact columns first, so that rows that differ only within a
    /// float's tolerance still pair up, then by the floats.
    fn sorted(&self) -> Vec<&Vec<Value>> {
        let mut rows: Vec<&Vec<Value>> = self.rows.iter().collect();
        let exact = |row: &Vec<Value>| -> Vec<String> {
            row.iter().filter(|value| !matches!(value, Value::Float { .. })).map(Value::key).collect()
        };
        rows.sort_by_cached_key(|row| exact(row));
        for peers in rows.chunk_by_mut(|a, b| exact(a) == exact(b)) {
            peers.sort_by(|a, b| {
                let pairs = a.iter().zip(b.iter());
                pairs.map(|(x, y)| x.float_order(y)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
            });
        }
        rows
    }
}

/// Says whether two answers are the same, or where they first differ.
///
/// # Errors
/// The [`Difference`].
pub fn compare(expected: &Answer, actual: &Answer, in_order: bool) -> Result<(), Difference> {
    if expected.types != actual.types {
        return Err(Difference(format!("expected columns {:?}, got {:?}", expected.types, actual.types)));
    }
    if expected.rows.len() != actual.rows.len() {
        return Err(Difference(format!("expected {} rows, got {}", expected.rows.len(), actual.rows.len())));
    }
    let (left, right) = if in_order {
        (expected.rows.iter().collect(), actual.rows.iter().collect())
    } else {
        (expected.sorted(), actual.sorted())
    };
    for (row, (a, b)) in left.iter().zip(&right).enumerate() {
        if let Some(column) = a.iter().zip(b.iter()).position(|(x, y)| !x.same(y)) {
            let order = if in_order { "" } else { " (rows sorted)" };
            return Err(Difference(format!(
                "row {row}{order}, column {column}: expected {:?}, got {:?}; rows {a:?} and {b:?}",
                a[column], b[column]
            )));
        }
    }
    Ok(())
}

fn text_as_one(data_type: &DataType) -> DataType {
    match data_type {
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::Dictionary(_, values) => text_as_one(values),
        other => other.clone(),
    }
}

fn values(column: &ArrayRef) -> Result<Vec<Value>, ArrowError> {
    let present = |row: usize, value: Value| if column.is_null(row) { Value::Null } else { value };
    let rows = 0..column.len();
    Ok(match column.data_type() {
        DataType::Float64 => {
            let floats = column.as_primitive::<Float64Type>();
            rows.map(|row| present(row, Value::Float { value: floats.value(row), tolerance: F64_TOLERANCE })).collect()
        }
        DataType::Float32 => {
            let floats = column.as_primitive::<Float32Type>();
            rows.map(|row| present(row, Value::Float { value: f64::from(floats.value(row)), tolerance: F32_TOLERANCE }))
                .collect()
        }
        _ => {
            let options = FormatOptions::default();
            let text = ArrayFormatter::try_new(column, &options)?;
            rows.map(|row| present(row, Value::Exact(text.value(row).to_string()))).collect()
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::datafusion::arrow::array::{Float64Array, Int64Array, StringArray, StringViewArray};

    use super::*;

    fn answer(columns: Vec<(&str, ArrayRef)>) -> Answer {
        let batch = RecordBatch::try_from_iter(columns).expect("batch");
        Answer::try_new(&batch.schema(), &[batch]).expect("answer")
    }

    fn numbers(keys: &[i64], floats: &[f64]) -> Answer {
        answer(vec![
            ("k", Arc::new(Int64Array::from(keys.to_vec())) as ArrayRef),
            ("x", Arc::new(Float64Array::from(floats.to_vec())) as ArrayRef),
        ])
    }

    #[test]
    fn order_counts_only_when_asked() {
        let (a, b) = (numbers(&[1, 2], &[0.5, 1.5]), numbers(&[2, 1], &[1.5, 0.5]));
        assert_eq!(compare(&a, &b, false), Ok(()));
        assert_eq!(a.digest(), b.digest());
        let difference = compare(&a, &b, true).expect_err("differs").to_string();
        assert!(difference.starts_with("row 0, column 0"), "{difference}");
    }

    #[test]
    fn floats_within_the_tolerance_are_equal() {
        let exact = numbers(&[1], &[1.0]);
        assert_eq!(compare(&exact, &numbers(&[1], &[1.0 + 5e-10]), true), Ok(()));
        assert!(compare(&exact, &numbers(&[1], &[1.0 + 5e-9]), true).is_err());
        assert!(compare(&exact, &numbers(&[1], &[f64::INFINITY]), true).is_err());
        assert_eq!(compare(&numbers(&[1], &[f64::NAN]), &numbers(&[1], &[f64::NAN]), true), Ok(()));
        assert!(compare(&numbers(&[1], &[0.0]), &numbers(&[1], &[1e-300]), true).is_err());
    }

    #[test]
    fn rows_with_nulls_and_every_nan_pair_up() {
        let floats =
            |values: &[Option<f64>]| answer(vec![("x", Arc::new(Float64Array::from(values.to_vec())) as ArrayRef)]);
        let values: Vec<Option<f64>> =
            (0..60).map(|i| [None, Some(f64::from(i)), Some(-f64::NAN), Some(-0.0)][i as usize % 4]).collect();
        let other: Vec<Option<f64>> =
            values.iter().rev().map(|v| v.map(|v| if v.is_nan() { f64::NAN } else { v + 0.0 })).collect();
        assert_eq!(compare(&floats(&values), &floats(&other), false), Ok(()));
    }

    #[test]
    fn null_is_not_the_empty_text_and_layouts_of_text_are_one() {
        let empty = answer(vec![("s", Arc::new(StringArray::from(vec![Some("")])) as ArrayRef)]);
        let null = answer(vec![("s", Arc::new(StringArray::from(vec![None::<&str>])) as ArrayRef)]);
        let view = answer(vec![("s", Arc::new(StringViewArray::from(vec![Some("")])) as ArrayRef)]);
        assert!(compare(&empty, &null, true).is_err());
        assert_eq!(compare(&empty, &view, true), Ok(()));
        assert_ne!(empty.digest(), null.digest());
    }

    #[test]
    fn row_counts_and_types_are_told() {
        let two = numbers(&[1, 2], &[0.0, 0.0]);
        let one = numbers(&[1], &[0.0]);
        assert_eq!(compare(&two, &one, false).expect_err("differs").to_string(), "expected 2 rows, got 1");
        let other = answer(vec![("k", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
        assert!(compare(&one, &other, false).expect_err("differs").to_string().starts_with("expected columns"));
    }
}
