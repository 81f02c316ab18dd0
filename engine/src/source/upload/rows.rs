//! Decoded rows that will form an extent: batches, and the codes of their strings.
//!
//!   batches   [ l_shipmode: MAIL AIR | l_quantity: 7 1 ] [ … ]
//!   codes     [ 0 1                  | –               ] [ … ]        of the coded columns

use datafusion::arrow::array::{Array, ArrayRef, UInt32Array};
use datafusion::arrow::record_batch::RecordBatch;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millpond_kernels::codegen::ir::ColumnSpec;

use crate::column::layout::ExtentLayout;
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::source::extent::HostRows;

/// Rows of one source, in order.
#[derive(Default)]
pub(super) struct Rows {
    batches: Vec<RecordBatch>,
    /// For each batch, codes by column.
    codes: Vec<Vec<Option<UInt32Array>>>,
    rows: usize,
}

impl Rows {
    /// Rows of one batch, with the codes of its coded columns.
    pub fn of(batch: RecordBatch, codes: Vec<Option<UInt32Array>>) -> Self {
        Self { rows: batch.num_rows(), batches: vec![batch], codes: vec![codes] }
    }

    pub fn len(&self) -> usize {
        self.rows
    }

    /// Codes of a column, batch by batch.
    pub fn codes(&self, column: usize) -> impl Iterator<Item = UInt32Array> {
        self.codes.iter().filter_map(move |codes| codes.get(column)?.clone())
    }

    /// Appends rows.
    pub fn append(&mut self, rows: Self) {
        self.batches.extend(rows.batches);
        self.codes.extend(rows.codes);
        self.rows += rows.rows;
    }

    /// Approximate bytes of these rows only; slices share their buffers.
    pub fn bytes(&self) -> usize {
        let bytes = |array: &dyn Array| array.to_data().get_slice_memory_size().unwrap_or(0);
        let batches = self.batches.iter().flat_map(|batch| batch.columns()).map(|array| bytes(array.as_ref()));
        let codes = self.codes.iter().flatten().flatten().map(|codes| bytes(codes));
        batches.chain(codes).sum()
    }

    /// `rows` rows, starting at row `from`.
    pub fn slice(&self, from: usize, rows: usize) -> Self {
        let (mut sliced, mut skipped) = (Self::default(), from);
        for (batch, codes) in self.batches.iter().zip(&self.codes) {
            let first = skipped.min(batch.num_rows());
            skipped -= first;
            let taken = (batch.num_rows() - first).min(rows - sliced.rows);
            if taken > 0 {
                let codes = codes.iter().map(|codes| codes.as_ref().map(|codes| codes.slice(first, taken)));
                sliced.append(Self::of(batch.slice(first, taken), codes.collect()));
            }
        }
        sliced
    }

    /// Splits the rows after the first `rows`.
    pub fn halves(&self, rows: usize) -> (Self, Self) {
        let rows = rows.min(self.rows);
        (self.slice(0, rows), self.slice(rows, self.rows - rows))
    }
}

impl HostRows for Rows {
    fn len(&self) -> usize {
        self.rows
    }

    fn halves(&self, first: usize) -> (Self, Self) {
        Self::halves(self, first)
    }

    fn layout(&self, specs: &[ColumnSpec], used: &[bool]) -> ExtentLayout {
        ExtentLayout::new(&self.batches, specs, used)
    }

    fn write(
        &self,
        layout: &ExtentLayout,
        out: &mut [u8],
        index: usize,
        spec: &ColumnSpec,
        base: i64,
    ) -> Result<(), Failure> {
        let mut codes = self.codes(index);
        let next = |_: &ArrayRef| {
            codes.next().ok_or_else(|| EngineError::internal("every batch's strings were interned").into())
        };
        let written = layout.write(out, index, spec, base, &self.batches, next)?;
        written.map_err(|_| Failure::Ranges)
    }

    fn batches(&self) -> BoxFuture<'_, Result<Vec<RecordBatch>, Failure>> {
        ready(Ok(self.batches.clone())).boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Int32Array};

    use super::*;

    /// A batch of numbers with codes of ten times their values.
    fn batch(values: std::ops::Range<i32>) -> Rows {
        let codes = UInt32Array::from_iter_values(values.clone().map(|value| value as u32 * 10));
        let array: ArrayRef = Arc::new(Int32Array::from_iter_values(values));
        Rows::of(RecordBatch::try_from_iter([("x", array)]).expect("a batch"), vec![Some(codes)])
    }

    fn codes(rows: &Rows) -> Vec<u32> {
        rows.codes(0).flat_map(|codes| codes.values().to_vec()).collect()
    }

    #[test]
    fn halves_keep_rows_and_their_codes_together() {
        let mut rows = batch(0..3);
        rows.append(batch(3..4));
        rows.append(batch(4..9));
        for first in 0..=10 {
            let (one, other) = rows.halves(first);
            assert_eq!((one.len(), other.len()), (first.min(9), 9 - first.min(9)));
            for half in [&one, &other] {
                let lengths: Vec<usize> = half.codes(0).map(|codes| codes.len()).collect();
                let batches: Vec<usize> = half.batches.iter().map(RecordBatch::num_rows).collect();
                assert_eq!(lengths, batches);
            }
            let all: Vec<u32> = codes(&one).into_iter().chain(codes(&other)).collect();
            assert_eq!(all, (0..9).map(|value| value * 10).collect::<Vec<u32>>());
        }
        assert_eq!(codes(&rows.slice(2, 3)), [20, 30, 40]);
        // Four bytes per number and four per code.
        assert_eq!((rows.bytes(), rows.slice(2, 3).bytes()), (72, 24));
    }
}
