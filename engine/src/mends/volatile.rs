//! What is drawn anew at each call, and DataFusion's rules that compute fields of structures near the tables.
//!
//! ```text
//!   Projection: q['a'], r                        DataFusion alone: Projection: random() AS x, random() AS r
//!     Projection: struct(r) AS q, r                                two numbers where one was drawn
//!       Projection: random() AS r
//! ```
//!
//! Above such a projection the rules do nothing. Filters that pass it are ended in the physical plan (`namesakes`).

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::logical_walk::any;
use crate::simplified::PARAMETER;

/// DataFusion's rule that takes fields of structures out of conditions, and that which moves them towards the tables.
pub(super) const RULES: [&str; 2] = ["extract_leaf_expressions", "push_down_leaf_projections"];

/// One of the rules, which moves nothing over what is drawn anew at each call.
pub(super) fn guarded(rule: Arc<dyn OptimizerRule + Send + Sync>) -> Arc<dyn OptimizerRule + Send + Sync> {
    Arc::new(Guarded(rule))
}

#[derive(Debug)]
struct Guarded(Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for Guarded {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        // The first sees the whole plan, the second node after node.
        let may_move = self.0.apply_order().is_none() || moves(&plan)?;
        match may_move && draws(&plan)? {
            true => Ok(Transformed::no(plan)),
            false => self.0.rewrite(plan, config),
        }
    }
}

/// True for a projection of which the rule may move something. Most plans have none.
fn moves(plan: &LogicalPlan) -> Result<bool> {
    let LogicalPlan::Projection(projection) = plan else { return Ok(false) };
    for expr in &projection.expr {
        if expr
            .exists(|part| Ok(matches!(part, Expr::ScalarFunction(_)) && part.placement().should_push_to_leaves()))?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True if a projection of the plan draws something anew at each call.
fn draws(plan: &LogicalPlan) -> Result<bool> {
    any(plan, is_drawn, &mut |node, draws| Ok(draws && matches!(node, LogicalPlan::Projection(_))))
}

fn is_drawn(part: &Expr) -> bool {
    // The constants of templates are volatile, and the same at each call; what a scan alone knows of a row moves there.
    let is_constant = matches!(part, Expr::ScalarFunction(call) if call.name() == PARAMETER);
    part.is_volatile_node() && !is_constant && !part.placement().should_push_to_leaves()
}
