//! Query answers as typed values: comparison and digest.
//!
//! ```text
//!   [2, "b", 1.0]      [1, "a", NULL]
//!   [1, "a", NULL]  ≡  [2, "b", 1.0000000000001]      rows in any order, floats within a tolerance
//! ```
//!
//! NULL   equals NULL.   NaN   equals NaN.   Types   must be equal, except that the three text layouts count as one.
//! Rows   are compared in order if the caller requests it, else as bags.
//! Rules  of a suite (a tolerance per column, a top-100 cut, a share of labels) are in [`Check`](crate::Check).

use std::cmp::Ordering;
use std::fmt;

use millpond::datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use millpond::datafusion::arrow::datatypes::{DataType, Float32Type, Float64Type, SchemaRef};
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use serde::Deserialize;

/// Relative tolerance of f64 values.
pub const F64_TOLERANCE: f64 = 1e-9;
/// Relative tolerance of f32 values.
pub const F32_TOLERANCE: f64 = 1e-5;

/// Tolerance between two numbers: one satisfied bound suffices.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// Relative to the greater magnitude of the two.
    #[serde(default)]
    pub relative: f64,
    #[serde(default)]
    pub absolute: f64,
    /// Minimum of every value, in addition.
    pub at_least: Option<f64>,
}

impl Tolerance {
    pub(crate) const F64: Tolerance = Tolerance { relative: F64_TOLERANCE, absolute: 0.0, at_least: None };
    const F32: Tolerance = Tolerance { relative: F32_TOLERANCE, absolute: 0.0, at_least: None };

    pub(crate) fn close(self, a: f64, b: f64) -> bool {
        // An infinity is within any tolerance of every number, so tolerances apply to finite numbers only.
        let apart = (a - b).abs();
        let near = apart <= self.absolute || apart <= self.relative * a.abs().max(b.abs());
        a == b || (a.is_nan() && b.is_nan()) || (a.is_finite() && b.is_finite() && near)
    }
}

/// Difference between two answers; the message contains its first position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference(pub(crate) String);

impl Difference {
    /// Prefixes the difference with the name of its table.
    pub fn in_part(self, name: &str) -> Difference {
        Difference(format!("{name}: {}", self.0))
    }

    /// Difference for rows that cannot be compared as text.
    pub fn unreadable(error: &ArrowError) -> Difference {
        Difference(format!("the rows cannot be compared: {error}"))
    }

    /// Difference for a table named in a suite's rules that the query does not create.
    pub fn unknown_part(name: &str, known: &[&str]) -> Difference {
        let known = if known.is_empty() { "no tables beside its answer".to_string() } else { known.join(", ") };
        Difference(format!("suite.toml has rules for a part {name}, but the query makes {known}"))
    }

    /// Difference for a table that an earlier run created and this one did not.
    pub fn missing_part(name: &str) -> Difference {
        Difference(format!("{name}: not there"))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One value of an answer. Floats compare by tolerance, all other types exactly by their text form.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Float { value: f64, tolerance: Tolerance },
    Exact(String),
}

impl Value {
    pub(crate) fn same(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Float { value: a, tolerance }, Value::Float { value: b, .. }) => tolerance.close(*a, *b),
            _ => self == other,
        }
    }

    /// The value as a number, if it is one.
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Value::Null => None,
            Value::Float { value, .. } => Some(*value),
            Value::Exact(text) => text.parse().ok(),
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

    /// Text for sorting and for the digest: floats with the digits that are significant within their tolerance.
    fn key(&self) -> String {
        match self {
            Value::Null => "\u{0}".to_string(),
            Value::Float { value, tolerance } if *tolerance == Tolerance::F32 => format!("{value:.3e}"),
            Value::Float { value, .. } => format!("{value:.7e}"),
            Value::Exact(text) => format!("={text}"),
        }
    }
}

/// An answer: column types and rows.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(crate) names: Vec<String>,
    pub(crate) types: Vec<DataType>,
    pub(crate) rows: Vec<Vec<Value>>,
}

impl Answer {
    /// Reads the rows of `batches`.
    ///
    /// # Errors
    /// Arrow's error for a type without a text form.
    pub fn try_new(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Answer, ArrowError> {
        let names = schema.fields().iter().map(|field| field.name().clone()).collect();
        let types = schema.fields().iter().map(|field| text_as_one(field.data_type())).collect();
        let mut rows = Vec::with_capacity(batches.iter().map(RecordBatch::num_rows).sum());
        for batch in batches {
            let columns: Vec<Vec<Value>> = batch.columns().iter().map(values).collect::<Result<_, _>>()?;
            rows.extend((0..batch.num_rows()).map(|row| columns.iter().map(|c| c[row].clone()).collect()));
        }
        Ok(Answer { names, types, rows })
    }

    pub fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// Sixteen hexadecimal digits, equal for equal answers in any row order.
    ///
    /// Floats contribute eight significant digits (f64) or four (f32), so that answers within the tolerance nearly
    /// always agree; two values on different sides of a rounding step do not. [`compare`] decides equality, the digest
    /// is a fingerprint.
    pub fn digest(&self) -> String {
        Answer::digest_of(self.num_rows(), self.row_hashes())
    }

    /// FNV-1a per row, summed, so that the row order does not matter.
    pub(crate) fn row_hashes(&self) -> u64 {
        let fnv = |text: &str, seed: u64| {
            text.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
        };
        let row_hash =
            |row: &Vec<Value>| row.iter().fold(0xcbf2_9ce4_8422_2325, |hash, value| fnv(&value.key(), fnv("|", hash)));
        self.rows.iter().map(row_hash).fold(0, u64::wrapping_add)
    }

    pub(crate) fn digest_of(rows: usize, hashes: u64) -> String {
        format!("{:016x}", hashes.wrapping_add(rows as u64))
    }
}

/// Sorts rows by exact columns first, so that rows within a float's tolerance still pair up, then by floats. The column
/// `beside` is ignored.
pub(crate) fn sorted(rows: &[Vec<Value>], beside: Option<usize>) -> Vec<&Vec<Value>> {
    let mut rows: Vec<&Vec<Value>> = rows.iter().collect();
    let counts = |(column, value): &(usize, &Value)| Some(*column) != beside && !matches!(value, Value::Float { .. });
    let exact =
        |row: &Vec<Value>| -> Vec<String> { row.iter().enumerate().filter(counts).map(|(_, v)| v.key()).collect() };
    let mut keyed: Vec<(Vec<String>, &Vec<Value>)> = rows.drain(..).map(|row| (exact(row), row)).collect();
    keyed.sort_by(|(a, x), (b, y)| {
        let floats = || {
            let pairs = x.iter().zip(y.iter()).enumerate().filter(|(column, _)| Some(*column) != beside);
            pairs.map(|(_, (x, y))| x.float_order(y)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        };
        a.cmp(b).then_with(floats)
    });
    keyed.into_iter().map(|(_, row)| row).collect()
}

/// Compares two answers.
///
/// # Errors
/// The first [`Difference`].
pub fn compare(expected: &Answer, actual: &Answer, in_order: bool) -> Result<(), Difference> {
    same_shape(expected, actual)?;
    let (left, right) = if in_order {
        (expected.rows.iter().collect(), actual.rows.iter().collect())
    } else {
        (sorted(&expected.rows, None), sorted(&actual.rows, None))
    };
    for (row, (a, b)) in left.iter().zip(&right).enumerate() {
        if let Some(column) = a.iter().zip(b.iter()).position(|(x, y)| !x.same(y)) {
            return Err(differs(row, column, a, b, in_order));
        }
    }
    Ok(())
}

/// Checks for equal column types and row counts.
pub(crate) fn same_shape(expected: &Answer, actual: &Answer) -> Result<(), Difference> {
    if expected.types != actual.types {
        return Err(Difference(format!("expected columns {:?}, got {:?}", expected.types, actual.types)));
    }
    if expected.rows.len() != actual.rows.len() {
        return Err(Difference(format!("expected {} rows, got {}", expected.rows.len(), actual.rows.len())));
    }
    Ok(())
}

pub(crate) fn differs(row: usize, column: usize, a: &[Value], b: &[Value], in_order: bool) -> Difference {
    let order = if in_order { "" } else { " (rows sorted)" };
    Difference(format!(
        "row {row}{order}, column {column}: expected {:?}, got {:?}; rows {a:?} and {b:?}",
        a[column], b[column]
    ))
}

pub(crate) fn text_as_one(data_type: &DataType) -> DataType {
    match data_type {
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::Dictionary(_, values) => text_as_one(values),
        other => other.clone(),
    }
}

fn values(column: &ArrayRef) -> Result<Vec<Value>, ArrowError> {
    // A NULL may be a value of a dictionary or of a run.
    let nulls = column.logical_nulls();
    let is_null = |row: usize| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
    let present = |row: usize, value: Value| if is_null(row) { Value::Null } else { value };
    let rows = 0..column.len();
    Ok(match column.data_type() {
        DataType::Float64 => {
            let floats = column.as_primitive::<Float64Type>();
            rows.map(|row| present(row, Value::Float { value: floats.value(row), tolerance: Tolerance::F64 })).collect()
        }
        DataType::Float32 => {
            let floats = column.as_primitive::<Float32Type>();
            rows.map(|row| {
                present(row, Value::Float { value: f64::from(floats.value(row)), tolerance: Tolerance::F32 })
            })
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
