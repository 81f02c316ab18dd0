//! Compares two answers bit by bit, in the order of their row numbers.
//!
//! ```text
//!   batches ──► one batch ──► sorted by row_id, or by all columns ──► equal bytes?  else the first row that differs
//! ```
//!
//! NULL    equals NULL; the bytes below it are not compared.
//! Floats  are equal when their bits are: NaN equals a NaN of the same payload, and the two zeros differ.
//! Types   must be the same, and the names of columns.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use millpond::datafusion::arrow::compute::{concat_batches, take_record_batch};
use millpond::datafusion::arrow::datatypes::SchemaRef;
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::row::{RowConverter, SortField};
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use millpond_data::matrix::ROW_ID;

/// An answer in an order that equal answers share.
#[derive(Debug, Clone)]
pub struct Rows(RecordBatch);

impl Rows {
    /// Takes the rows of `batches`.
    ///
    /// # Errors
    /// Arrow's, for batches of other types than `schema` and for types without a text form.
    pub fn try_new(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Rows, ArrowError> {
        for batch in batches {
            let types = |schema: &SchemaRef| schema.fields().iter().map(|f| f.data_type().clone()).collect::<Vec<_>>();
            let (own, of_schema) = (types(&batch.schema()), types(schema));
            if own != of_schema {
                return Err(ArrowError::SchemaError(format!("a batch has columns {own:?}, its answer {of_schema:?}")));
            }
        }
        let all = concat_batches(schema, batches)?;
        if all.num_columns() == 0 {
            return Ok(Rows(all));
        }
        let order = order(&all)?;
        Ok(Rows(take_record_batch(&all, &order)?))
    }

    pub fn num_rows(&self) -> usize {
        self.0.num_rows()
    }

    /// First difference between `other` and these rows, which are right; `None` if they are equal.
    pub fn difference(&self, other: &Rows) -> Option<String> {
        let columns = |rows: &Rows| -> Vec<_> {
            let schema = rows.0.schema();
            schema.fields().iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
        };
        let (expected, got) = (columns(self), columns(other));
        if expected != got {
            return Some(format!("expected columns {expected:?}, got {got:?}"));
        }
        if self.num_rows() != other.num_rows() {
            return Some(format!("expected {} rows, got {}", self.num_rows(), other.num_rows()));
        }
        let mut wrong = Vec::new();
        for (index, (name, data_type)) in expected.iter().enumerate() {
            let (a, b) = (self.0.column(index), other.0.column(index));
            if a.to_data() == b.to_data() {
                continue;
            }
            let rows: Vec<usize> =
                (0..a.len()).filter(|row| one(a, *row).to_data() != one(b, *row).to_data()).collect();
            let first = rows.first().copied().unwrap_or(0);
            wrong.push(format!(
                "column {name} ({data_type}): {} of {} rows differ, the first is row {first}: expected {}, got {}",
                rows.len(),
                a.len(),
                text(a, first),
                text(b, first),
            ));
        }
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }
}

fn one(array: &ArrayRef, row: usize) -> ArrayRef {
    array.slice(row, 1)
}

fn text(array: &ArrayRef, row: usize) -> String {
    let options = FormatOptions::default().with_null("NULL");
    let text = match ArrayFormatter::try_new(array, &options) {
        Ok(formatter) => formatter.value(row).to_string(),
        Err(error) => error.to_string(),
    };
    let short: String = text.chars().take(200).collect();
    if short.len() < text.len() { format!("{short:?}… of {} bytes", text.len()) } else { format!("{short:?}") }
}

/// The order of rows by their number and all other columns; by their text where some type has no order.
fn order(all: &RecordBatch) -> Result<UInt32Array, ArrowError> {
    let mut columns: Vec<&ArrayRef> = all.columns().iter().collect();
    columns.sort_by_key(|column| all.column_by_name(ROW_ID).is_none_or(|row_id| !Arc::ptr_eq(row_id, column)));
    let fields: Vec<SortField> = columns.iter().map(|column| SortField::new(column.data_type().clone())).collect();
    let mut order: Vec<u32> = (0..all.num_rows() as u32).collect();
    if RowConverter::supports_fields(&fields) {
        let columns: Vec<ArrayRef> = columns.into_iter().cloned().collect();
        let rows = RowConverter::new(fields)?.convert_columns(&columns)?;
        order.sort_by(|a, b| rows.row(*a as usize).cmp(&rows.row(*b as usize)));
    } else {
        let options = FormatOptions::default().with_null("NULL");
        let texts = columns.iter().map(|column| ArrayFormatter::try_new(*column, &options));
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        let text = |row: &u32| texts.iter().map(|column| column.value(*row as usize).to_string()).collect::<Vec<_>>();
        order.sort_by_cached_key(text);
    }
    Ok(order.into())
}

#[cfg(test)]
mod tests {
    use millpond::datafusion::arrow::array::{Float64Array, Int32Array, StringArray};

    use super::*;

    fn rows(columns: Vec<(&str, ArrayRef)>) -> Rows {
        let batch = RecordBatch::try_from_iter(columns).expect("columns of one length");
        Rows::try_new(&batch.schema(), &[batch]).expect("rows")
    }

    fn numbered(ids: &[i32], floats: &[Option<f64>]) -> Rows {
        let ids: ArrayRef = Arc::new(Int32Array::from(ids.to_vec()));
        rows(vec![(ROW_ID, ids), ("x", Arc::new(Float64Array::from(floats.to_vec())))])
    }

    #[test]
    fn rows_are_paired_by_their_number_or_by_all_columns() {
        let (a, b) = (numbered(&[1, 2], &[Some(0.5), None]), numbered(&[2, 1], &[None, Some(0.5)]));
        assert_eq!(a.difference(&b), None);
        let texts =
            |values: &[Option<&str>]| rows(vec![("s", Arc::new(StringArray::from(values.to_vec())) as ArrayRef)]);
        assert_eq!(texts(&[Some("b"), None, Some("a")]).difference(&texts(&[None, Some("a"), Some("b")])), None);
        let difference = texts(&[Some("")]).difference(&texts(&[None])).expect("the empty text is no NULL");
        assert!(
            difference.contains("row 0: expected \"\\\"\\\"\", got") || difference.contains("NULL"),
            "{difference}"
        );
    }

    #[test]
    fn floats_are_compared_by_their_bits() {
        let nan = f64::from_bits(0x7ff8_0000_0000_0001);
        let of = |value| numbered(&[0], &[Some(value)]);
        assert_eq!(of(nan).difference(&of(nan)), None);
        assert!(of(nan).difference(&of(f64::NAN)).is_some());
        assert!(of(0.0).difference(&of(-0.0)).is_some());
    }

    #[test]
    fn types_names_and_counts_are_told() {
        let (one, two) = (numbered(&[1], &[None]), numbered(&[1, 2], &[None, None]));
        assert_eq!(one.difference(&two).as_deref(), Some("expected 1 rows, got 2"));
        let other = rows(vec![(ROW_ID, Arc::new(Int32Array::from(vec![1])))]);
        assert!(one.difference(&other).expect("a column less").starts_with("expected columns"));
    }
}
