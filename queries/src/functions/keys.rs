//! Multi-column keys as one comparable row each, also across batches.
//!
//! NULL   a row with a NULL in a key column has no key: see [`complete`].
//! After  arrow's row format: bytes that compare as the columns do.

use millpond::datafusion::arrow::array::{Array, ArrayRef, BooleanArray};
use millpond::datafusion::arrow::buffer::{BooleanBuffer, NullBuffer};
use millpond::datafusion::arrow::compute::filter_record_batch;
use millpond::datafusion::arrow::datatypes::Schema;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::row::{OwnedRow, RowConverter, Rows, SortField};
use millpond::datafusion::error::Result;

/// Compares rows by some of their columns.
pub(crate) struct Keys {
    converter: RowConverter,
    columns: Vec<usize>,
    last: Option<OwnedRow>,
}

impl Keys {
    pub(crate) fn try_new(schema: &Schema, columns: &[usize]) -> Result<Self> {
        let fields = columns.iter().map(|column| SortField::new(schema.field(*column).data_type().clone())).collect();
        Ok(Self { converter: RowConverter::new(fields)?, columns: columns.to_vec(), last: None })
    }

    pub(crate) fn rows(&self, batch: &RecordBatch) -> Result<Rows> {
        let columns: Vec<ArrayRef> = self.columns.iter().map(|column| batch.column(*column).clone()).collect();
        Ok(self.converter.convert_columns(&columns)?)
    }

    /// Whether each row's key differs from the previous row's; the first row is compared with the last row of the
    /// previous batch.
    pub(crate) fn starts(&mut self, batch: &RecordBatch) -> Result<BooleanBuffer> {
        let rows = self.rows(batch)?;
        let starts = BooleanBuffer::collect_bool(rows.num_rows(), |row| match row {
            0 => self.last.as_ref().is_none_or(|last| last.row() != rows.row(0)),
            _ => rows.row(row) != rows.row(row - 1),
        });
        if let Some(last) = rows.num_rows().checked_sub(1) {
            self.last = Some(rows.row(last).owned());
        }
        Ok(starts)
    }
}

/// The rows of `batch` without a NULL in any of `columns`.
pub(crate) fn complete(batch: &RecordBatch, columns: &[usize]) -> Result<RecordBatch> {
    let nulls = columns.iter().fold(None, |nulls: Option<NullBuffer>, column| {
        NullBuffer::union(nulls.as_ref(), batch.column(*column).logical_nulls().as_ref())
    });
    match nulls.filter(|nulls| nulls.null_count() > 0) {
        Some(nulls) => Ok(filter_record_batch(batch, &BooleanArray::new(nulls.into_inner(), None))?),
        None => Ok(batch.clone()),
    }
}

/// Bytes kept alive by a batch.
pub(crate) fn held_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| column.get_array_memory_size()).sum()
}
