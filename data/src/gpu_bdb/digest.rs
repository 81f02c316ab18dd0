//! Digest of a table's values, independent of batches, parts and files.
//!
//! ```text
//!   value by value: column number, NULL or not, the bytes of the value   ──FNV-1a, 64 bits per column──►   one number
//! ```
//!
//! Same     for any split into batches; different if two tables differ in a value, a type or the order of rows.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int32Type, Int64Type};

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Accumulates the batches of a table.
#[derive(Debug, Clone, Default)]
pub struct TableDigest {
    columns: Vec<u64>,
    num_rows: u64,
}

impl TableDigest {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the rows of a batch, in table order.
    ///
    /// # Panics
    /// For a type that the generator does not write, and for batches with different numbers of columns.
    pub fn add(&mut self, batch: &RecordBatch) {
        if self.columns.is_empty() {
            self.columns = vec![BASIS; batch.num_columns()];
        }
        assert_eq!(self.columns.len(), batch.num_columns(), "batches of one table have the same columns");
        self.num_rows += batch.num_rows() as u64;
        for (state, column) in self.columns.iter_mut().zip(batch.columns()) {
            for row in 0..column.len() {
                if column.is_null(row) {
                    bytes(state, &[0]);
                    continue;
                }
                bytes(state, &[1]);
                match column.data_type() {
                    DataType::Int64 => bytes(state, &column.as_primitive::<Int64Type>().value(row).to_le_bytes()),
                    DataType::Int32 => bytes(state, &column.as_primitive::<Int32Type>().value(row).to_le_bytes()),
                    DataType::Float64 => {
                        bytes(state, &column.as_primitive::<Float64Type>().value(row).to_bits().to_le_bytes())
                    }
                    DataType::Decimal128(..) => {
                        bytes(state, &column.as_primitive::<Decimal128Type>().value(row).to_le_bytes())
                    }
                    DataType::Utf8 => {
                        let text = column.as_string::<i32>().value(row);
                        bytes(state, &(text.len() as u32).to_le_bytes());
                        bytes(state, text.as_bytes());
                    }
                    other => panic!("the generator writes no column of type {other}"),
                }
            }
        }
    }

    /// Rows added so far.
    pub fn num_rows(&self) -> u64 {
        self.num_rows
    }

    /// Digest of all rows added so far.
    pub fn value(&self) -> u64 {
        let mut all = BASIS;
        bytes(&mut all, &self.num_rows.to_le_bytes());
        self.columns.iter().for_each(|column| bytes(&mut all, &column.to_le_bytes()));
        all
    }
}

fn bytes(state: &mut u64, bytes: &[u8]) {
    for byte in bytes {
        *state = (*state ^ u64::from(*byte)).wrapping_mul(PRIME);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    #[test]
    fn batches_do_not_matter_and_values_do() {
        let batch = |keys: Vec<Option<i64>>, words: Vec<&str>| {
            let columns: [(&str, ArrayRef); 2] =
                [("a", Arc::new(Int64Array::from(keys))), ("b", Arc::new(StringArray::from(words)))];
            RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).expect("batch")
        };
        let digest = |batches: &[RecordBatch]| {
            let mut digest = TableDigest::new();
            batches.iter().for_each(|batch| digest.add(batch));
            (digest.num_rows(), digest.value())
        };
        let whole = batch(vec![Some(1), None, Some(3)], vec!["x", "yy", ""]);
        let split = [whole.slice(0, 1), whole.slice(1, 2)];
        assert_eq!(digest(std::slice::from_ref(&whole)), digest(&split));
        for other in [
            batch(vec![Some(1), Some(0), Some(3)], vec!["x", "yy", ""]),
            batch(vec![Some(1), None, Some(3)], vec!["xy", "y", ""]),
            batch(vec![Some(3), None, Some(1)], vec!["x", "yy", ""]),
        ] {
            assert_ne!(digest(std::slice::from_ref(&whole)), digest(&[other]));
        }
    }
}
