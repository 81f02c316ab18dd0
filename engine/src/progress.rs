//! Progress of a running query, from the rows that its scans have read.
//!
//! ```text
//!   plan ─ scans ─► rows read, of the rows in their statistics ────────┐
//!   engine ─► kernels that the driver is assembling ────────────────────┴─► Progress
//! ```
//!
//! Reads existing counters of the run; it adds none.

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::ExecutionPlan;

use crate::source::{SourceExec, statistics};

/// Rows and bytes that the scans of a query have read so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rows read.
    pub rows: u64,
    /// Total rows of all scans; `None` if the statistics of one lack a row count.
    pub of_rows: Option<u64>,
    /// Bytes read from files.
    pub bytes: u64,
}

impl Progress {
    /// The progress of an executing plan.
    pub fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        let mut progress = Self { of_rows: Some(0), ..Self::default() };
        let walked = plan.apply(|node| {
            let statistics = match node.downcast_ref::<SourceExec>().filter(|source| source.is_parquet()) {
                Some(scan) => scan.statistics().cloned(),
                None if node.children().is_empty() => statistics(node.as_ref()),
                None => return Ok(TreeNodeRecursion::Continue),
            };
            let rows = statistics.and_then(|statistics| statistics.num_rows.get_value().copied());
            progress.of_rows = progress.of_rows.zip(rows).map(|(sum, rows)| sum + rows as u64);
            if let Some(metrics) = node.metrics() {
                let sum = |name: &str| metrics.sum_by_name(name).map_or(0, |value| value.as_usize() as u64);
                progress.rows += metrics.output_rows().map_or_else(|| sum("output_rows"), |rows| rows as u64);
                progress.bytes += sum("bytes_scanned");
            }
            // DataFusion's scan below a device scan reads the same rows.
            Ok(TreeNodeRecursion::Jump)
        });
        debug_assert!(walked.is_ok(), "the walk has no errors of its own");
        progress
    }

    /// Share of rows that have been read, from 0 to 1; `None` if the total is unknown or zero.
    pub fn share(&self) -> Option<f64> {
        let of_rows = self.of_rows.filter(|rows| *rows > 0)?;
        Some((self.rows as f64 / of_rows as f64).min(1.0))
    }
}
