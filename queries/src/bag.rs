//! Comparison of large tables as bags: equal rows, bit for bit, in any order.
//!
//! ```text
//!   batches ─► arrow's row format (bytes that compare as the columns do) ─► sorted on all cores ─► compared
//! ```
//!
//! Speed    no value is converted to a string: with strings, comparing the 49 million rows of gpu-bdb's Q02 at scale 10
//!          took 94 seconds.
//! No       means different bits: [`Check`](crate::Check) judges floats within a tolerance.

use millpond::datafusion::arrow::array::ArrayRef;
use millpond::datafusion::arrow::compute::cast;
use millpond::datafusion::arrow::datatypes::SchemaRef;
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::row::{Row, RowConverter, Rows as Encoded, SortField};
use rayon::prelude::*;

use crate::answer::text_as_one;
use crate::gpu_bdb::Rows;

/// Whether both contain equal rows, equally often, in any order. All text layouts count as one type; other types must
/// be equal.
///
/// # Errors
/// Arrow's error for a type without a row format.
pub fn same_bag(expected: &Rows, actual: &Rows) -> Result<bool, ArrowError> {
    if expected.num_rows() != actual.num_rows() || types(&expected.schema) != types(&actual.schema) {
        return Ok(false);
    }
    let fields = types(&expected.schema).into_iter().map(SortField::new).collect();
    let converter = RowConverter::new(fields)?;
    let (expected, actual) = (encoded(&converter, expected)?, encoded(&converter, actual)?);
    Ok(in_order(&expected) == in_order(&actual))
}

fn types(schema: &SchemaRef) -> Vec<millpond::datafusion::arrow::datatypes::DataType> {
    schema.fields().iter().map(|field| text_as_one(field.data_type())).collect()
}

fn encoded(converter: &RowConverter, rows: &Rows) -> Result<Vec<Encoded>, ArrowError> {
    let plain = |column: &ArrayRef| cast(column, &text_as_one(column.data_type()));
    let of_batch = |batch: &RecordBatch| {
        let columns: Vec<ArrayRef> = batch.columns().iter().map(plain).collect::<Result<_, _>>()?;
        converter.convert_columns(&columns)
    };
    rows.batches.par_iter().map(of_batch).collect()
}

fn in_order(batches: &[Encoded]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = batches.iter().flat_map(|batch| batch.iter()).collect();
    rows.par_sort_unstable();
    rows
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::datafusion::arrow::array::{Float64Array, Int64Array, StringArray, StringViewArray};

    use super::*;
    use crate::answer::Answer;

    fn rows(batches: Vec<Vec<(&str, ArrayRef)>>) -> Rows {
        let batches: Vec<RecordBatch> = batches
            .into_iter()
            .map(|columns| {
                RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true)))
                    .expect("a batch")
            })
            .collect();
        Rows { schema: batches[0].schema(), batches }
    }

    fn numbers(batches: &[&[Option<i64>]]) -> Rows {
        rows(
            batches.iter().map(|values| vec![("n", Arc::new(Int64Array::from(values.to_vec())) as ArrayRef)]).collect(),
        )
    }

    #[test]
    fn order_and_batches_do_not_count_and_multiplicity_does() {
        let expected = numbers(&[&[Some(1), None, Some(1)], &[Some(2)]]);
        assert!(same_bag(&expected, &numbers(&[&[Some(2), Some(1)], &[None, Some(1)]])).expect("compared"));
        assert!(!same_bag(&expected, &numbers(&[&[Some(2), Some(1)], &[None, Some(2)]])).expect("compared"));
        assert!(!same_bag(&expected, &numbers(&[&[Some(2), Some(1), None]])).expect("compared"));
    }

    #[test]
    fn layouts_of_text_are_one_and_other_types_are_not() {
        let narrow: ArrayRef = Arc::new(StringArray::from(vec![Some("b"), None, Some("")]));
        let views: ArrayRef = Arc::new(StringViewArray::from(vec![Some(""), Some("b"), None]));
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 2.0, 3.0]));
        let narrow = rows(vec![vec![("t", narrow)]]);
        assert!(same_bag(&narrow, &rows(vec![vec![("t", views)]])).expect("compared"));
        assert!(!same_bag(&narrow, &rows(vec![vec![("t", floats)]])).expect("compared"));
    }

    #[test]
    fn the_digest_is_that_of_the_whole_answer() {
        let several = numbers(&[&[Some(1), None], &[], &[Some(7)]]);
        let whole = Answer::try_new(&several.schema, &several.batches).expect("an answer");
        assert_eq!(several.digest().expect("a digest"), whole.digest());
        assert_ne!(several.digest().expect("a digest"), numbers(&[&[Some(1), None]]).digest().expect("a digest"));
    }
}
