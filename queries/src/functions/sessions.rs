//! Numbers the sessions of each key: a time gap above the limit starts a new session.
//!
//! ```text
//!   gap 10      key   a   a   a   b   b   b          sorted by (key, time)
//!               time  0  10  21   5   5  99
//!               new   ▲       ▲   ▲       ▲          first row of a key, or time - previous > gap
//!         session_id  0   0   1   0   0   1
//! ```
//!
//! NULL    rows with a NULL key or time have no session and are dropped.
//! Ties    rows with equal times are in one session: the gap between them is zero.
//! Memory  the key and the time of the last row.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Int64Array};
use millpond::datafusion::arrow::datatypes::{Schema, SchemaRef};
use millpond::datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use millpond::datafusion::error::Result;

use super::exec::Scan;
use super::keys::{Keys, complete};
use super::time;

/// State of one partition.
pub(crate) struct Sessions {
    keys: Keys,
    columns: Vec<usize>,
    time: usize,
    /// In units of the time column; may exceed 64 bits.
    gap: i128,
    last_time: i64,
    session: i64,
    schema: SchemaRef,
    ready: Option<RecordBatch>,
}

impl Sessions {
    pub(crate) fn try_new(input: &Schema, columns: &[usize], gap: i64, schema: SchemaRef) -> Result<Self> {
        let time = columns[columns.len() - 1];
        Ok(Self {
            keys: Keys::try_new(input, &columns[..columns.len() - 1])?,
            columns: columns.to_vec(),
            time,
            gap: i128::from(gap) * time::scale(input.field(time).data_type()),
            last_time: 0,
            session: 0,
            schema,
            ready: None,
        })
    }
}

impl Scan for Sessions {
    fn feed(&mut self, batch: &RecordBatch) -> Result<()> {
        let batch = complete(batch, &self.columns)?;
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let times = time::values("sessionize", self.schema.field(self.time).name(), batch.column(self.time))?;
        let starts = self.keys.starts(&batch)?;
        let number = |(start, time): (bool, &i64)| {
            if start {
                self.session = 0;
            } else if i128::from(*time) - i128::from(self.last_time) > self.gap {
                self.session += 1;
            }
            self.last_time = *time;
            self.session
        };
        let sessions: Int64Array = starts.iter().zip(times.values()).map(number).collect::<Vec<_>>().into();
        let mut output: Vec<ArrayRef> = batch.columns().to_vec();
        output.push(Arc::new(sessions));
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        self.ready = Some(RecordBatch::try_new_with_options(Arc::clone(&self.schema), output, &options)?);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        Ok(self.ready.take())
    }

    fn held_bytes(&self) -> usize {
        0
    }
}
