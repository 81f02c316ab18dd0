//! The n rows before each marked row, within its key.
//!
//! ```text
//!   n = 2     key     a  a  a  a  b  b          sorted by (key, order…)
//!             order   1  2  3  9  4  5
//!             anchor              ✓     ✓
//!   result    (3 before 9, 1 step) (2 before 9, 2 steps) (4 before 5, 1 step)
//!   within 7  keeps 2, because 9 - 2 = 7, and drops 1
//! ```
//!
//! NULL    rows with a NULL key are dropped. NULL is first in the order; with `within` a NULL has no distance, and its
//!         row is not near. A NULL anchor is false.
//! Order   by key; for each anchor the nearest row first.
//! Memory  n rows and one batch.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, UInt64Array};
use millpond::datafusion::arrow::compute::{concat_batches, take};
use millpond::datafusion::arrow::datatypes::{Schema, SchemaRef};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::error::Result;

use super::exec::Scan;
use super::keys::{Keys, complete, held_bytes};
use super::time;

/// State of one partition.
pub(crate) struct LastBefore {
    keys: Keys,
    key_columns: Vec<usize>,
    anchor: usize,
    n: usize,
    /// The column, and the maximum distance in its units.
    within: Option<(usize, i128)>,
    batch_rows: usize,
    schema: SchemaRef,
    /// Up to n earlier rows, followed by one batch.
    kept: RecordBatch,
    /// For each row of `kept`, the first row of its key.
    key_starts: Vec<usize>,
    times: Option<Int64Array>,
    /// Current row of `kept`, and the number of steps back from it.
    row: usize,
    step: usize,
}

impl LastBefore {
    pub(crate) fn try_new(
        input: &SchemaRef,
        columns: &[usize],
        keys: usize,
        n: usize,
        within: Option<i64>,
        batch_rows: usize,
        schema: SchemaRef,
    ) -> Result<Self> {
        let within = within.map(|within| {
            let scale = time::scale(input.field(columns[keys]).data_type());
            (columns[keys], i128::from(within) * scale)
        });
        Ok(Self {
            keys: Keys::try_new(input as &Schema, &columns[..keys])?,
            key_columns: columns[..keys].to_vec(),
            anchor: columns[columns.len() - 1],
            n,
            within,
            batch_rows,
            schema,
            kept: RecordBatch::new_empty(Arc::clone(input)),
            key_starts: vec![],
            times: None,
            row: 0,
            step: 0,
        })
    }

    /// Drops rows that no later anchor can reach.
    fn forget(&mut self) -> Result<()> {
        let rows = self.kept.num_rows();
        let from = self.key_starts.last().map_or(rows, |start| (*start).max(rows.saturating_sub(self.n)));
        let rest = UInt64Array::from_iter_values(from as u64..rows as u64);
        let columns: Vec<ArrayRef> =
            self.kept.columns().iter().map(|column| take(column, &rest, None)).collect::<Result<_, _>>()?;
        self.kept = RecordBatch::try_new(self.kept.schema(), columns)?;
        self.key_starts = vec![0; self.kept.num_rows()];
        Ok(())
    }

    fn near(&self, anchor: usize, row: usize) -> bool {
        let (Some((_, within)), Some(times)) = (self.within, &self.times) else { return true };
        let distance = || i128::from(times.value(anchor)) - i128::from(times.value(row));
        times.is_valid(anchor) && times.is_valid(row) && distance() <= within
    }
}

impl Scan for LastBefore {
    fn feed(&mut self, batch: &RecordBatch) -> Result<()> {
        let batch = complete(batch, &self.key_columns)?;
        if batch.num_rows() == 0 {
            return Ok(());
        }
        self.forget()?;
        let offset = self.kept.num_rows();
        let mut key_start = 0;
        for (row, start) in self.keys.starts(&batch)?.iter().enumerate() {
            key_start = if start { offset + row } else { key_start };
            self.key_starts.push(key_start);
        }
        self.kept = concat_batches(&self.kept.schema(), [&self.kept, &batch])?;
        self.times = match self.within {
            Some((column, _)) => {
                let name = self.kept.schema().field(column).name().clone();
                Some(time::values("last_n_before", &name, self.kept.column(column))?)
            }
            None => None,
        };
        (self.row, self.step) = (offset, 0);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let anchors: &BooleanArray = self.kept.column(self.anchor).as_boolean();
        let (mut earlier, mut anchor_rows, mut steps) = (vec![], vec![], vec![]);
        while self.row < self.kept.num_rows() && earlier.len() < self.batch_rows {
            let reach = (self.row - self.key_starts[self.row]).min(self.n);
            let marked = anchors.is_valid(self.row) && anchors.value(self.row);
            // Times ascend, so the search ends at the first row that is too old.
            if !marked || self.step == reach || !self.near(self.row, self.row - self.step - 1) {
                (self.row, self.step) = (self.row + 1, 0);
                continue;
            }
            self.step += 1;
            earlier.push((self.row - self.step) as u64);
            anchor_rows.push(self.row as u64);
            steps.push(self.step as i64);
        }
        if earlier.is_empty() {
            return Ok(None);
        }
        let (earlier, anchor_rows) = (UInt64Array::from(earlier), UInt64Array::from(anchor_rows));
        let mut output: Vec<ArrayRef> = Vec::with_capacity(self.schema.fields().len());
        for rows in [&earlier, &anchor_rows] {
            for column in self.kept.columns() {
                output.push(take(column, rows, None)?);
            }
        }
        output.push(Arc::new(Int64Array::from(steps)));
        Ok(Some(RecordBatch::try_new(Arc::clone(&self.schema), output)?))
    }

    fn held_bytes(&self) -> usize {
        held_bytes(&self.kept) + size_of_val(self.key_starts.as_slice())
    }
}
