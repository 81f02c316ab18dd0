//! Volatile expressions, and DataFusion's rules that move struct field accesses towards the tables.
//!
//! ```text
//!   Projection: q['a'], r                        DataFusion alone: Projection: random() AS x, random() AS r
//!     Projection: struct(r) AS q, r                                two numbers instead of one
//!       Projection: random() AS r
//! ```
//!
//! Above such a projection the rules are disabled. Filters that pass it are stopped in the physical plan (`namesakes`).

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::plan::logical_walk::any;
use crate::plan::simplified::PARAMETER;

/// DataFusion's rules that extract struct field accesses from conditions, and move them towards the tables.
pub(super) const RULES: [&str; 2] = ["extract_leaf_expressions", "push_down_leaf_projections"];

/// Wraps one of the rules so that it moves nothing across a volatile expression.
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
        // The first rule receives the whole plan, the second one node at a time.
        let may_move = self.0.apply_order().is_none() || moves(&plan)?;
        match may_move && draws(&plan)? {
            true => Ok(Transformed::no(plan)),
            false => self.0.rewrite(plan, config),
        }
    }
}

/// True for a projection from which the rule may move an expression. Most plans have none.
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

/// True if a projection of the plan contains a volatile expression.
fn draws(plan: &LogicalPlan) -> Result<bool> {
    any(plan, is_drawn, &mut |node, draws| Ok(draws && matches!(node, LogicalPlan::Projection(_))))
}

fn is_drawn(part: &Expr) -> bool {
    // Template constants are volatile but equal at each call; expressions that only a scan can evaluate must move
    // there.
    let is_constant = matches!(part, Expr::ScalarFunction(call) if call.name() == PARAMETER);
    part.is_volatile_node() && !is_constant && !part.placement().should_push_to_leaves()
}
