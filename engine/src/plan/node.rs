//! Common parts of the device nodes of a plan.
//!
//!   properties     one output partition, emitted at the end, ordered only if a sort ordered it
//!   device_node!   the part of `ExecutionPlan` that is common to all nodes with one input
//!   named          a list of expressions, as EXPLAIN prints it
//!
//! Execution  only a [`DownloadExec`](crate::result::node::DownloadExec) executes; the other nodes return an error,
//!            because a program runs them together.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{ChildrenPropertiesMode, PlanProperties, ReplaceChildrenOptions};

use crate::error::EngineError;

// For `device_node!` in other crates.
#[doc(hidden)]
pub use datafusion;

/// Properties of a device node: one partition, emitted at the end, with the order of `sorted` if any.
pub fn properties(schema: SchemaRef, sorted: Option<LexOrdering>) -> Arc<PlanProperties> {
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

/// Expressions in EXPLAIN's format: `x@0 as y`, without the name if it repeats the expression.
pub fn named(expressions: &[(Arc<dyn PhysicalExpr>, String)]) -> String {
    let one = |(expression, name): &(Arc<dyn PhysicalExpr>, String)| {
        let text = expression.to_string();
        if &text == name { text } else { format!("{text} as {name}") }
    };
    expressions.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Options for replacing children by others with the same schema.
pub(crate) const REPLACE: ReplaceChildrenOptions = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);

/// Error for a plan that uses a device node incorrectly.
pub fn wrong_use(what: &str) -> DataFusionError {
    EngineError::internal(what).into()
}

/// Implements the common part of `ExecutionPlan` for a device node with one input: requires fields `input` and
/// `properties`, a method `with_input`, and a method `expressions`.
///
/// ```
/// use std::{fmt, sync::Arc};
/// use millpond::datafusion::physical_expr::PhysicalExpr;
/// use millpond::datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
///
/// /// Keeps one row of `n`.
/// #[derive(Debug, Clone)]
/// struct DeviceSampleExec {
///     n: u64,
///     input: Arc<dyn ExecutionPlan>,
///     properties: Arc<PlanProperties>,
/// }
///
/// impl DeviceSampleExec {
///     fn new(n: u64, input: Arc<dyn ExecutionPlan>) -> Self {
///         let properties = millpond::plan::node::properties(input.schema(), None);
///         Self { n, input, properties }
///     }
///
///     fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
///         Self { input, ..self.clone() }
///     }
///
///     fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
///         vec![]
///     }
/// }
///
/// impl DisplayAs for DeviceSampleExec {
///     fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         write!(f, "DeviceSampleExec: one of {}", self.n)
///     }
/// }
///
/// millpond::device_node!(DeviceSampleExec, execute: refuse);
/// ```
#[macro_export]
macro_rules! device_node {
    ($node:ident, execute: refuse) => {
        $crate::plan::node::device_node!($node, {
            fn execute(
                &self,
                _partition: usize,
                _context: ::std::sync::Arc<$crate::plan::node::datafusion::execution::TaskContext>,
            ) -> $crate::plan::node::datafusion::error::Result<$crate::plan::node::datafusion::execution::SendableRecordBatchStream> {
                Err($crate::plan::node::wrong_use(concat!(stringify!($node), " runs as part of a DownloadExec")))
            }
        });
    };
    ($node:ident, { $($own:item)* }) => {
        impl $crate::plan::node::datafusion::physical_plan::ExecutionPlan for $node {
            fn name(&self) -> &str {
                stringify!($node)
            }

            fn properties(&self) -> &::std::sync::Arc<$crate::plan::node::datafusion::physical_plan::PlanProperties> {
                &self.properties
            }

            fn children(&self) -> Vec<&::std::sync::Arc<dyn $crate::plan::node::datafusion::physical_plan::ExecutionPlan>> {
                vec![&self.input]
            }

            fn apply_expressions(
                &self,
                f: &mut dyn FnMut(
                    &::std::sync::Arc<dyn $crate::plan::node::datafusion::physical_expr::PhysicalExpr>,
                ) -> $crate::plan::node::datafusion::error::Result<
                    $crate::plan::node::datafusion::common::tree_node::TreeNodeRecursion,
                >,
            ) -> $crate::plan::node::datafusion::error::Result<$crate::plan::node::datafusion::common::tree_node::TreeNodeRecursion> {
                use $crate::plan::node::datafusion::common::tree_node::TreeNodeRecursion;
                for expression in self.expressions() {
                    if f(&expression)? == TreeNodeRecursion::Stop {
                        return Ok(TreeNodeRecursion::Stop);
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            }

            fn with_new_children(
                self: ::std::sync::Arc<Self>,
                mut children: Vec<::std::sync::Arc<dyn $crate::plan::node::datafusion::physical_plan::ExecutionPlan>>,
            ) -> $crate::plan::node::datafusion::error::Result<::std::sync::Arc<dyn $crate::plan::node::datafusion::physical_plan::ExecutionPlan>> {
                match (children.pop(), children.is_empty()) {
                    (Some(input), true) => Ok(::std::sync::Arc::new(self.with_input(input))),
                    _ => Err($crate::plan::node::wrong_use(concat!(stringify!($node), " has one input"))),
                }
            }

            $($own)*
        }
    };
}
pub use device_node;
