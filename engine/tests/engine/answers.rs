//! Compares two answers: exact values, floats within a tolerance, in order where the query has one.
//!
//!   schema, batches ──► rows of cells ── unordered? sort by the exact cells ──► first difference, in words
//!
//! Floats   f64 1e-9 and f32 1e-5, relative; NaN equals NaN, and the two zeros are equal.

use std::cmp::Ordering;
use std::fmt;

use millpond::datafusion::arrow::array::{Array, AsArray};
use millpond::datafusion::arrow::datatypes::{DataType, Float32Type, Float64Type, SchemaRef};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// One value of an answer.
#[derive(Debug, Clone, PartialEq)]
enum Cell {
    Null,
    Exact(String),
    Float { value: f64, tolerance: f64 },
}

impl Cell {
    fn agrees(&self, other: &Cell) -> bool {
        match (self, other) {
            (Cell::Float { value: a, tolerance }, Cell::Float { value: b, .. }) => {
                a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * a.abs().max(b.abs())
            }
            (a, b) => a == b,
        }
    }

    /// Exact cells decide the order of rows first, so that rounding moves no row.
    fn compare(&self, other: &Cell) -> Ordering {
        match (self, other) {
            (Cell::Null, Cell::Null) => Ordering::Equal,
            (Cell::Null, _) => Ordering::Less,
            (_, Cell::Null) => Ordering::Greater,
            (Cell::Exact(a), Cell::Exact(b)) => a.cmp(b),
            (Cell::Float { value: a, .. }, Cell::Float { value: b, .. }) => a.total_cmp(b),
            (Cell::Exact(_), _) => Ordering::Less,
            (_, Cell::Exact(_)) => Ordering::Greater,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Null => f.write_str("NULL"),
            Cell::Exact(text) => f.write_str(text),
            Cell::Float { value, .. } => write!(f, "{value:?}"),
        }
    }
}

/// The rows of an answer.
#[derive(Debug, Clone)]
pub struct Answer {
    types: Vec<DataType>,
    rows: Vec<Vec<Cell>>,
}

impl Answer {
    pub fn new(schema: &SchemaRef, batches: &[RecordBatch]) -> Self {
        let types: Vec<DataType> = schema.fields().iter().map(|field| field.data_type().clone()).collect();
        let mut rows = Vec::new();
        for batch in batches {
            assert_eq!(batch.num_columns(), types.len(), "a batch has the columns of its schema");
            let columns: Vec<Vec<Cell>> = batch.columns().iter().map(|column| cells(column.as_ref())).collect();
            rows.extend((0..batch.num_rows()).map(|row| columns.iter().map(|c| c[row].clone()).collect::<Vec<_>>()));
        }
        Self { types, rows }
    }

    pub fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// How `actual` differs from this answer, in words; `None` when it agrees.
    pub fn difference(&self, actual: &Answer, ordered: bool) -> Option<String> {
        if self.types != actual.types {
            return Some(format!("types are {:?} instead of {:?}", actual.types, self.types));
        }
        if self.rows.len() != actual.rows.len() {
            return Some(format!("{} rows instead of {}", actual.rows.len(), self.rows.len()));
        }
        let (expected, actual) = match ordered {
            true => (self.rows.clone(), actual.rows.clone()),
            false => (self.sorted(), actual.sorted()),
        };
        let wrong = expected.iter().zip(&actual).position(|(a, b)| !a.iter().zip(b).all(|(a, b)| a.agrees(b)))?;
        let show = |row: &[Cell]| row.iter().map(Cell::to_string).collect::<Vec<_>>().join(", ");
        Some(format!("row {wrong} is [{}] instead of [{}]", show(&actual[wrong]), show(&expected[wrong])))
    }

    fn sorted(&self) -> Vec<Vec<Cell>> {
        let float = |ty: &DataType| ty.is_floating();
        let mut columns: Vec<usize> = (0..self.types.len()).collect();
        columns.sort_by_key(|column| float(&self.types[*column]));
        let mut rows = self.rows.clone();
        rows.sort_by(|a, b| {
            let each = columns.iter().map(|column| a[*column].compare(&b[*column]));
            each.fold(Ordering::Equal, Ordering::then)
        });
        rows
    }
}

fn cells(column: &dyn Array) -> Vec<Cell> {
    let float = |row: usize| match column.data_type() {
        DataType::Float32 => {
            Some(Cell::Float { value: f64::from(column.as_primitive::<Float32Type>().value(row)), tolerance: 1e-5 })
        }
        DataType::Float64 => {
            Some(Cell::Float { value: column.as_primitive::<Float64Type>().value(row), tolerance: 1e-9 })
        }
        _ => None,
    };
    let formatter = ArrayFormatter::try_new(column, &FormatOptions::default()).expect("the type can be shown");
    // A NULL may be a value of a dictionary or a run.
    let nulls = column.logical_nulls();
    let cell = |row: usize| match nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
        true => Cell::Null,
        false => float(row).unwrap_or_else(|| {
            // A date far out of the calendar has no text; its number will do.
            let shown = formatter.value(row).try_to_string();
            Cell::Exact(shown.unwrap_or_else(|error| format!("{error}")))
        }),
    };
    (0..column.len()).map(cell).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array};

    use super::*;

    fn answer(keys: &[Option<i64>], values: &[f64]) -> Answer {
        let keys: ArrayRef = Arc::new(Int64Array::from(keys.to_vec()));
        let values: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
        let batch = RecordBatch::try_from_iter_with_nullable([("k", keys, true), ("v", values, true)]).unwrap();
        Answer::new(&batch.schema(), &[batch])
    }

    #[test]
    fn order_counts_only_where_there_is_one() {
        let a = answer(&[Some(1), None], &[0.5, 2.0]);
        let b = answer(&[None, Some(1)], &[2.0, 0.5]);
        assert_eq!(a.difference(&b, false), None);
        assert_eq!(a.difference(&b, true).unwrap(), "row 0 is [NULL, 2.0] instead of [1, 0.5]");
    }

    #[test]
    fn floats_agree_within_their_tolerance() {
        let a = answer(&[Some(1), Some(2)], &[f64::NAN, 1.0]);
        assert_eq!(a.difference(&answer(&[Some(1), Some(2)], &[f64::NAN, 1.0 + 1e-10]), true), None);
        assert!(a.difference(&answer(&[Some(1), Some(2)], &[f64::NAN, 1.0 + 1e-8]), true).is_some());
        assert!(a.difference(&answer(&[Some(1), Some(2)], &[0.0, 1.0]), true).is_some());
    }

    #[test]
    fn a_missing_row_is_a_difference() {
        assert_eq!(answer(&[None], &[1.0]).difference(&answer(&[], &[]), false).unwrap(), "0 rows instead of 1");
    }
}

/// True where ORDER BY is the query's own: behind that of a subquery comes a parenthesis which that did not open.
pub fn orders_its_rows(sql: &str) -> bool {
    let Some((_, behind)) = sql.rsplit_once("ORDER BY") else { return false };
    let mut open = 0;
    behind.chars().all(|c| {
        open += i32::from(c == '(') - i32::from(c == ')');
        open >= 0
    })
}

#[test]
fn an_order_of_a_subquery_is_none_of_the_query() {
    assert!(orders_its_rows("SELECT id FROM t ORDER BY abs(k), id LIMIT 11"));
    assert!(orders_its_rows("SELECT * FROM (SELECT id FROM t ORDER BY k LIMIT 100) ORDER BY id DESC"));
    assert!(!orders_its_rows("SELECT a.id FROM (SELECT k, id FROM t ORDER BY id LIMIT 50) a JOIN t b ON a.k = b.k"));
    assert!(!orders_its_rows("SELECT id FROM t"));
}
