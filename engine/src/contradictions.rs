//! Filters that no row passes, where DataFusion finds that out while it pushes them down: `n = 1 AND n = 2` above an aggregation.
//!
//!   Filter (n = 1 AND n = 2) ─► nothing          DataFusion alone: false has no columns, goes below the aggregation, and sum(x) of no rows
//!     Aggregate sum(x) AS n                      is a row all the same
//!
//! Each node is looked at before DataFusion's rule has it, so that a filter never leaves its place as `false`.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{EmptyRelation, Expr, Filter, LogicalPlan};
use datafusion::optimizer::simplify_expressions::simplify_predicates;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};
use datafusion::scalar::ScalarValue;

/// DataFusion's rule that simplifies filters and pushes them down.
pub(crate) const RULE: &str = "push_down_filter";

/// The rule, which finds no filter that no row passes.
pub(crate) fn guarded(rule: Arc<dyn OptimizerRule + Send + Sync>) -> Arc<dyn OptimizerRule + Send + Sync> {
    Arc::new(EmptyFirst(rule))
}

/// A rule that works from the top down, and sees no filter that no row passes.
#[derive(Debug)]
struct EmptyFirst(Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for EmptyFirst {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::Filter(filter) if passes_none(&filter)? => {
                let schema = Arc::clone(filter.input.schema());
                Ok(Transformed::yes(LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: false, schema })))
            }
            plan => self.0.rewrite(plan, config),
        }
    }
}

/// True for a filter of which DataFusion finds a part that is false or NULL for every row.
fn passes_none(filter: &Filter) -> Result<bool> {
    let never =
        |part: &Expr| matches!(part, Expr::Literal(ScalarValue::Boolean(Some(false) | None) | ScalarValue::Null, _));
    let parts = split_conjunction(&filter.predicate);
    if parts.len() < 2 {
        return Ok(parts.into_iter().any(never));
    }
    let simplified = simplify_predicates(parts.into_iter().cloned().collect())?;
    Ok(simplified.iter().any(never))
}
