//! Sources of rows.

pub(crate) mod bounds;
mod codes;
pub(crate) mod computed;
mod extent;
pub(crate) mod filtered;
pub mod parquet;
pub(crate) mod reset;
mod same;
pub(crate) mod stored;
pub mod upload;

use datafusion::physical_plan::ExecutionPlan;

use crate::source::parquet::DeviceScanExec;
use crate::source::upload::UploadExec;

/// True for nodes that upload rows to the device.
pub fn is_source(node: &dyn ExecutionPlan) -> bool {
    node.is::<UploadExec>() || node.is::<DeviceScanExec>()
}
