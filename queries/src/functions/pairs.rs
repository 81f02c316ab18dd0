//! Each pair of different elements of a group, once, the smaller first.
//!
//! ```text
//!   group    g1 g1 g1 g1  g2 g2        sorted by (group, element)
//!   element   1  2  2  5   3  3
//!                 ╰──╯ one     ╰╯ one
//!   pairs    (g1, 1, 2)  (g1, 1, 5)  (g1, 2, 5)              a group of one element has none
//! ```
//!
//! NULL    rows with a NULL group or element are dropped.
//! Order   by group, then by both elements.
//! Memory  the elements of one group; its pairs are generated one batch at a time.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, UInt32Array};
use millpond::datafusion::arrow::compute::{concat_batches, filter_record_batch, take};
use millpond::datafusion::arrow::datatypes::{Schema, SchemaRef};
use millpond::datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use millpond::datafusion::common::DataFusionError;
use millpond::datafusion::error::Result;

use super::exec::Scan;
use super::keys::{Keys, complete, held_bytes};

/// State of one partition. The kept rows are projected to (groups, element).
pub(crate) struct Pairs {
    columns: Vec<usize>,
    groups: Keys,
    rows: Keys,
    batch_rows: usize,
    schema: SchemaRef,
    /// Distinct rows in complete groups, except for the last group.
    kept: RecordBatch,
    /// First rows of the groups in `kept`.
    starts: Vec<usize>,
    cursor: Cursor,
    finished: bool,
}

/// The next pair: rows `first` and `second` of group number `group`.
#[derive(Default)]
struct Cursor {
    group: usize,
    first: usize,
    second: usize,
}

impl Pairs {
    pub(crate) fn try_new(input: &Schema, columns: &[usize], batch_rows: usize, schema: SchemaRef) -> Result<Self> {
        let projected = Arc::new(input.project(columns)?);
        let all: Vec<usize> = (0..columns.len()).collect();
        Ok(Self {
            columns: columns.to_vec(),
            groups: Keys::try_new(&projected, &all[..columns.len() - 1])?,
            rows: Keys::try_new(&projected, &all)?,
            batch_rows,
            schema,
            kept: RecordBatch::new_empty(projected),
            starts: vec![],
            cursor: Cursor::default(),
            finished: false,
        })
    }

    /// Number of complete groups.
    fn whole_groups(&self) -> usize {
        self.starts.len() - usize::from(!self.finished && !self.starts.is_empty())
    }

    /// Drops the finished groups.
    fn forget(&mut self) -> Result<()> {
        let done = self.starts.get(self.whole_groups()).copied().unwrap_or(self.kept.num_rows());
        // A slice would keep all buffers alive.
        let rest = UInt32Array::from_iter_values(row_numbers(&self.kept, done)?);
        let columns: Vec<ArrayRef> =
            self.kept.columns().iter().map(|column| take(column, &rest, None)).collect::<Result<_, _>>()?;
        self.kept = RecordBatch::try_new(self.kept.schema(), columns)?;
        self.starts = if self.kept.num_rows() > 0 { vec![0] } else { vec![] };
        self.cursor = Cursor::default();
        Ok(())
    }
}

fn row_numbers(batch: &RecordBatch, from: usize) -> Result<std::ops::Range<u32>> {
    let number = |row: usize| {
        u32::try_from(row).map_err(|_| {
            DataFusionError::Execution("basket_pairs: a group has more than 2^32 elements; filter it first".to_string())
        })
    };
    Ok(number(from)?..number(batch.num_rows())?)
}

impl Scan for Pairs {
    fn feed(&mut self, batch: &RecordBatch) -> Result<()> {
        self.forget()?;
        let batch = complete(&batch.project(&self.columns)?, &(0..self.columns.len()).collect::<Vec<_>>())?;
        let new_rows = self.rows.starts(&batch)?;
        let distinct = filter_record_batch(&batch, &new_rows.into())?;
        let offset = self.kept.num_rows();
        let starts = self.groups.starts(&distinct)?;
        self.starts.extend(starts.set_indices().map(|row| offset + row));
        self.kept = concat_batches(&self.kept.schema(), [&self.kept, &distinct])?;
        row_numbers(&self.kept, 0)?;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.forget()?;
        self.finished = true;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let (mut firsts, mut seconds) = (vec![], vec![]);
        let whole = self.whole_groups();
        while firsts.len() < self.batch_rows && self.cursor.group < whole {
            let start = self.starts[self.cursor.group];
            let end = self.starts.get(self.cursor.group + 1).copied().unwrap_or(self.kept.num_rows());
            let Cursor { group, first, second } = &mut self.cursor;
            *first = (*first).max(start);
            *second = (*second).max(*first + 1);
            if *second >= end {
                // `first` has no more partners.
                *first += 1;
                *second = 0;
                if *first + 1 >= end {
                    *group += 1;
                }
                continue;
            }
            let take = (end - *second).min(self.batch_rows - firsts.len());
            firsts.extend(std::iter::repeat_n(*first as u32, take));
            seconds.extend((*second as u32)..(*second + take) as u32);
            *second += take;
        }
        if firsts.is_empty() {
            return Ok(None);
        }
        let num_rows = firsts.len();
        let (firsts, seconds) = (UInt32Array::from(firsts), UInt32Array::from(seconds));
        let mut output: Vec<ArrayRef> =
            self.kept.columns().iter().map(|column| take(column, &firsts, None)).collect::<Result<_, _>>()?;
        output.push(take(self.kept.column(self.columns.len() - 1), &seconds, None)?);
        let options = RecordBatchOptions::new().with_row_count(Some(num_rows));
        Ok(Some(RecordBatch::try_new_with_options(Arc::clone(&self.schema), output, &options)?))
    }

    fn held_bytes(&self) -> usize {
        held_bytes(&self.kept) + size_of_val(self.starts.as_slice())
    }
}
