//! Device nodes: what placement puts into the plan. They describe; a [`program`](crate::program) runs.
//!
//!   DownloadExec ─ DeviceSortExec ─ DeviceAggregateExec ─ DeviceJoinExec ─┬─ UploadExec ─ DataSourceExec
//!   │                               └─ one output partition each           └─ DeviceFilterExec ─ UploadExec ─ DataSourceExec
//!   └─ makes Arrow batches                                                                     └─ reads DataFusion's partitions
//!
//! Schema     every node has the schema of the CPU node it stands for.
//! Order      none is promised, except by a sort and by projections over it.
//! Execution  only [`DownloadExec`] executes; the others refuse, because a program runs them together.

pub mod aggregate;
pub mod filter;
pub mod join;
pub mod limit;
pub mod project;
pub mod sort;
pub mod union;

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, Partitioning};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};

use crate::program::contract::Operators;
use crate::result::node::DownloadExec;
use crate::source::upload::UploadExec;
use aggregate::DeviceAggregateExec;
use filter::DeviceFilterExec;
use join::DeviceJoinExec;
use limit::DeviceLimitExec;
use project::DeviceProjectExec;
use sort::DeviceSortExec;
use union::DeviceUnionExec;

/// Properties of a device node: one partition, given at the end, with the order of `sorted` if there is one.
pub(crate) fn properties(schema: SchemaRef, sorted: Option<LexOrdering>) -> Arc<PlanProperties> {
    let equivalences = match sorted {
        Some(order) => EquivalenceProperties::new_with_orderings(schema, [order]),
        None => EquivalenceProperties::new(schema),
    };
    Arc::new(PlanProperties::new(
        equivalences,
        Partitioning::UnknownPartitioning(1),
        EmissionType::Final,
        Boundedness::Bounded,
    ))
}

/// True for the nodes that live between a [`DownloadExec`] and its [`UploadExec`]s, these included.
pub fn is_device_node(plan: &dyn ExecutionPlan) -> bool {
    plan.is::<DeviceFilterExec>()
        || plan.is::<DeviceJoinExec>()
        || plan.is::<DeviceProjectExec>()
        || plan.is::<DeviceAggregateExec>()
        || plan.is::<DeviceSortExec>()
        || plan.is::<DeviceUnionExec>()
        || plan.is::<DeviceLimitExec>()
        || plan.is::<UploadExec>()
        || plan.is::<DownloadExec>()
}

/// The part of `ExecutionPlan` that is the same for every device node with one input: fields `input` and `properties`,
/// a method `with_input`, and a method `expressions`.
macro_rules! device_node {
    ($node:ident, execute: refuse) => {
        $crate::operator::device_node!($node, {
            fn execute(
                &self,
                _partition: usize,
                _context: ::std::sync::Arc<::datafusion::execution::TaskContext>,
            ) -> ::datafusion::error::Result<::datafusion::execution::SendableRecordBatchStream> {
                Err($crate::EngineError::internal(concat!(stringify!($node), " runs as part of a DownloadExec")).into())
            }
        });
    };
    ($node:ident, { $($own:item)* }) => {
        impl ::datafusion::physical_plan::ExecutionPlan for $node {
            fn name(&self) -> &str {
                stringify!($node)
            }

            fn properties(&self) -> &::std::sync::Arc<::datafusion::physical_plan::PlanProperties> {
                &self.properties
            }

            fn children(&self) -> Vec<&::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>> {
                vec![&self.input]
            }

            fn apply_expressions(
                &self,
                f: &mut dyn FnMut(
                    &::std::sync::Arc<dyn ::datafusion::physical_expr::PhysicalExpr>,
                ) -> ::datafusion::error::Result<
                    ::datafusion::common::tree_node::TreeNodeRecursion,
                >,
            ) -> ::datafusion::error::Result<::datafusion::common::tree_node::TreeNodeRecursion> {
                use ::datafusion::common::tree_node::TreeNodeRecursion;
                for expression in self.expressions() {
                    if f(&expression)? == TreeNodeRecursion::Stop {
                        return Ok(TreeNodeRecursion::Stop);
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            }

            fn with_new_children(
                self: ::std::sync::Arc<Self>,
                mut children: Vec<::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>>,
            ) -> ::datafusion::error::Result<::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>> {
                match (children.pop(), children.is_empty()) {
                    (Some(input), true) => Ok(::std::sync::Arc::new(self.with_input(input))),
                    _ => Err($crate::EngineError::internal(concat!(stringify!($node), " has one input")).into()),
                }
            }

            $($own)*
        }
    };
}
pub(crate) use device_node;

/// The operators that there are. One more is one more line.
pub fn registry() -> Operators {
    Arc::new([
        Arc::new(filter::Filter),
        Arc::new(project::Project),
        Arc::new(aggregate::Aggregate),
        Arc::new(join::Join),
        Arc::new(sort::Sort),
        Arc::new(limit::Limit),
        Arc::new(union::Union),
    ])
}
