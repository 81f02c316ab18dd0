//! Estimated sizes of a plan's sources, from DataFusion's statistics before a run.
//!
//!   DeviceScanExec, UploadExec ─► rows, bytes of columns ─► the largest source, and the total

use datafusion::common::Statistics;
use datafusion::physical_plan::ExecutionPlan;

use super::tree::{Line, Side, files};
use crate::source::SourceExec;

/// A source of the device, or a CPU scan.
pub(super) struct Source {
    /// The file or folder that is read, or the node below an upload.
    pub name: String,
    pub is_file: bool,
    pub rows: Option<u64>,
    pub bytes: Option<u64>,
}

/// Assumed bytes per value of a variable-width type, such as strings.
const VARIABLE_WIDTH: usize = 16;

/// Sources of a plan, in plan order.
pub(super) fn sources(lines: &[Line]) -> Vec<Source> {
    lines.iter().filter(|line| line.side == Side::Source).map(|line| source(line.node.as_ref())).collect()
}

fn source(node: &dyn ExecutionPlan) -> Source {
    let Some(source) = node.downcast_ref::<SourceExec>() else {
        return Source { name: node.name().to_string(), is_file: false, rows: None, bytes: None };
    };
    let (input, statistics) = (source.input(), source.statistics());
    let file = files(input.as_ref());
    let rows = statistics.and_then(|statistics| statistics.num_rows.get_value().copied());
    Source {
        is_file: file.is_some(),
        name: file.unwrap_or_else(|| input.name().to_string()),
        rows: rows.map(|rows| rows as u64),
        bytes: statistics.and_then(|statistics| bytes(input.as_ref(), statistics)),
    }
}

/// Bytes of a plan's columns, estimated from the widths of their types.
fn bytes(plan: &dyn ExecutionPlan, statistics: &Statistics) -> Option<u64> {
    let rows = statistics.num_rows.get_value().copied()?;
    let width = |field: &std::sync::Arc<datafusion::arrow::datatypes::Field>| {
        field.data_type().primitive_width().unwrap_or(VARIABLE_WIDTH)
    };
    let width: usize = plan.schema().fields().iter().map(width).sum();
    Some((rows * width) as u64)
}
