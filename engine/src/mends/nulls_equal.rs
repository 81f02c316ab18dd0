//! Inner joins with NULL equal to NULL, combined with others: DataFusion's rule for cross joins rebuilds all of them
//! with the NULL equality of the topmost one.
//!
//! ```text
//!   Cross Join                                 DataFusion alone: Inner Join: a.g = b.g, in which NULL equals nothing
//!     Inner Join: a.g IS NOT DISTINCT FROM b.g
//!     TableScan: m
//! ```
//!
//! While the rule runs, such a join is wrapped in an opaque node; afterwards it is unwrapped.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchemaRef, NullEquality, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, Extension, Join, JoinType, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::plan::logical_walk::any;

/// DataFusion's rule that converts cross joins to inner joins.
pub(super) const RULE: &str = "eliminate_cross_join";

/// Wraps the rule so that it leaves joins with NULL equal to NULL unchanged.
pub(super) fn guarded(rule: Arc<dyn OptimizerRule + Send + Sync>) -> Arc<dyn OptimizerRule + Send + Sync> {
    Arc::new(Guarded(rule))
}

#[derive(Debug)]
struct Guarded(Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for Guarded {
    fn name(&self) -> &str {
        self.0.name()
    }

    /// DataFusion's rule walks the plan itself, including subqueries.
    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if !any(&plan, |_| false, &mut |node, _| Ok(has_equal_nulls(node)))? {
            return self.0.rewrite(plan, config);
        }
        let hidden = plan.transform_up_with_subqueries(|node| Ok(hidden(node)))?.data;
        let rewritten = self.0.rewrite(hidden, config)?;
        rewritten.transform_data(|plan| {
            let shown = plan.transform_up_with_subqueries(|node| Ok(shown(node)))?;
            Ok(Transformed::no(shown.data))
        })
    }
}

fn has_equal_nulls(node: &LogicalPlan) -> bool {
    let LogicalPlan::Join(join) = node else { return false };
    join.join_type == JoinType::Inner && join.null_equality == NullEquality::NullEqualsNull
}

fn hidden(node: LogicalPlan) -> Transformed<LogicalPlan> {
    match node {
        node if !has_equal_nulls(&node) => Transformed::no(node),
        LogicalPlan::Join(join) => Transformed::yes(LogicalPlan::Extension(Extension { node: Arc::new(Hidden(join)) })),
        node => Transformed::no(node),
    }
}

fn shown(node: LogicalPlan) -> Transformed<LogicalPlan> {
    let LogicalPlan::Extension(extension) = &node else { return Transformed::no(node) };
    match extension.node.as_any().downcast_ref::<Hidden>() {
        Some(Hidden(join)) => Transformed::yes(LogicalPlan::Join(join.clone())),
        None => Transformed::no(node),
    }
}

/// A join hidden from the rule.
#[derive(PartialEq, Eq, Hash)]
struct Hidden(Join);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", LogicalPlan::Join(self.0.clone()).display())
    }
}

impl PartialOrd for Hidden {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.0.partial_cmp(&other.0)
    }
}

impl UserDefinedLogicalNodeCore for Hidden {
    fn name(&self) -> &str {
        "HiddenJoin"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.0.left, &self.0.right]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.0.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        let (Some(right), Some(left), true) = (inputs.pop(), inputs.pop(), inputs.is_empty()) else {
            return internal_err!("a join has two inputs");
        };
        Ok(Self(Join { left: Arc::new(left), right: Arc::new(right), ..self.0.clone() }))
    }
}
