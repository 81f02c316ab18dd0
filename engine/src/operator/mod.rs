//! The operators of the device, one folder or file each, and their list.
//!
//!   DownloadExec ─ DeviceAggregateExec ─ DeviceJoinExec ─┬─ UploadExec ─ DataSourceExec
//!   │              └─ one output partition each          └─ DeviceFilterExec ─ UploadExec ─ DataSourceExec
//!   └─ makes Arrow batches                                                    └─ reads DataFusion's partitions
//!
//! One place  an operator's node, its placement and its part of a program are in its folder, behind
//!            [`DeviceOperator`](crate::placement::contract::DeviceOperator); neither placement nor
//!            [`program`](crate::program) names one.
//! Schema     every node has the schema of the CPU node that it replaces.
//! Order      promised only by sorts, windows, and projections, filters and limits over these.
//! Execution  the nodes describe; a program runs them together.

pub mod aggregate;
pub mod construct;
pub mod filter;
pub mod join;
pub mod limit;
pub mod project;
pub mod recursion;
mod scan;
pub mod sort;
pub mod union;
pub mod unnest;
pub mod window;

use std::sync::Arc;

use crate::placement::contract::Operators;

/// The engine's own operators. A session adds others with
/// [`MillpondBuilder::operator`](crate::MillpondBuilder::operator).
pub fn registry() -> Operators {
    Operators::new([
        Arc::new(scan::Scan) as _,
        // Before `Project`: it claims the projection above its items.
        Arc::new(unnest::Unnest::default()) as _,
        Arc::new(filter::Filter) as _,
        Arc::new(project::Project) as _,
        Arc::new(construct::Construct) as _,
        Arc::new(aggregate::Aggregate) as _,
        Arc::new(sort::Sort) as _,
        Arc::new(join::Join) as _,
        Arc::new(union::Union) as _,
        Arc::new(recursion::Recursion) as _,
        Arc::new(limit::Limit) as _,
        Arc::new(window::Windows) as _,
    ])
}
