//! Decoded rows that will form an extent.
//!
//!   Decoded columns, shared ─► rows 0..n ─ halves ─► rows 0..n/2 │ rows n/2..n      if memory is short
//!
//! For the CPU, the same rows are read again.

use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::collect;
use futures::FutureExt;
use futures::future::BoxFuture;
use millpond_kernels::codegen::ir::ColumnSpec;

use crate::column::layout::{ExtentLayout, Shape};
use crate::error::failure::Failure;
use crate::parquet::{Decoded, ParquetScan, Units};
use crate::source::extent::HostRows;

/// A range of rows of decoded columns.
pub(super) struct DecodedRows {
    /// By the scan's columns.
    columns: Arc<Vec<Option<Decoded>>>,
    of: Arc<Of>,
    /// First row, relative to the rows decoded together, which begin at row `begin` of the units.
    first: usize,
    rows: usize,
    begin: u64,
}

/// Origin of the rows.
pub(super) struct Of {
    pub units: Units,
    pub scan: ParquetScan,
    pub task: Arc<TaskContext>,
}

impl DecodedRows {
    /// `rows` rows of units, starting at row `begin`.
    pub fn new(columns: Vec<Option<Decoded>>, (begin, rows): (u64, usize), of: Of) -> Self {
        Self { columns: Arc::new(columns), of: Arc::new(of), first: 0, rows, begin }
    }

    fn part(&self, first: usize, rows: usize) -> Self {
        let (columns, of) = (Arc::clone(&self.columns), Arc::clone(&self.of));
        Self { columns, of, first: self.first + first, rows, begin: self.begin }
    }
}

impl HostRows for DecodedRows {
    fn len(&self) -> usize {
        self.rows
    }

    fn halves(&self, first: usize) -> (Self, Self) {
        let first = first.min(self.rows);
        (self.part(0, first), self.part(first, self.rows - first))
    }

    fn layout(&self, specs: &[ColumnSpec], used: &[bool]) -> ExtentLayout {
        let shape = |(index, spec): (usize, &ColumnSpec)| {
            let column = self.columns[index].as_ref().filter(|_| used[index])?;
            Some(column.shape(spec.physical, self.first, self.rows))
        };
        let shapes: Vec<Option<Shape>> = specs.iter().enumerate().map(shape).collect();
        ExtentLayout::of(self.rows, &shapes)
    }

    fn write(
        &self,
        layout: &ExtentLayout,
        out: &mut [u8],
        index: usize,
        spec: &ColumnSpec,
        base: i64,
    ) -> Result<(), Failure> {
        let (Some(region), Some(column)) = (&layout.columns[index], &self.columns[index]) else { return Ok(()) };
        column.write(out, region, (self.first, self.rows), Decoded::stored(spec, base))
    }

    fn batches(&self) -> BoxFuture<'_, Result<Vec<RecordBatch>, Failure>> {
        async move {
            let Of { units, scan, task } = self.of.as_ref();
            let mut batches = Vec::new();
            for plan in units.rest(scan, self.begin + self.first as u64, self.rows as u64) {
                batches.extend(collect(plan, Arc::clone(task)).await.map_err(Failure::Input)?);
            }
            Ok(batches)
        }
        .boxed()
    }
}
