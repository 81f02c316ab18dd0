//! Filters that no row passes, where DataFusion detects that while it pushes them down: `n = 1 AND n = 2` above an
//! aggregation.
//!
//!   Filter (n = 1 AND n = 2) ─► nothing      DataFusion alone: `false` has no columns and moves below the aggregation,
//!     Aggregate sum(x) AS n                  but sum(x) of no rows is still a row
//!
//! Each node is checked before DataFusion's rule sees it, so that a filter is never pushed down as `false`.

use std::sync::Arc;

use datafusion::common::Column;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::expr::BinaryExpr;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{EmptyRelation, Expr, Filter, LogicalPlan, Operator};
use datafusion::optimizer::simplify_expressions::simplify_predicates;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};
use datafusion::scalar::ScalarValue;

/// DataFusion's rule that simplifies filters and pushes them down.
pub(crate) const RULE: &str = "push_down_filter";

/// Wraps the rule so that it never sees a filter that no row passes.
pub(crate) fn guarded(rule: Arc<dyn OptimizerRule + Send + Sync>) -> Arc<dyn OptimizerRule + Send + Sync> {
    Arc::new(EmptyFirst(rule))
}

/// Wrapper of a top-down rule that replaces such filters first.
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

/// True for a filter with a part that DataFusion proves false or NULL for every row.
fn passes_none(filter: &Filter) -> Result<bool> {
    let never =
        |part: &Expr| matches!(part, Expr::Literal(ScalarValue::Boolean(Some(false) | None) | ScalarValue::Null, _));
    let parts = split_conjunction(&filter.predicate);
    if parts.iter().any(|part| never(part)) {
        return Ok(true);
    }
    // DataFusion proves that from several equalities on one column. Most filters do not have two of them.
    let columns: Vec<_> = parts.iter().map(|part| equated(part)).collect();
    let is_shared = |column: &&Column| columns.iter().flatten().filter(|other| other == &column).count() > 1;
    let met = parts.iter().zip(&columns).filter(|(_, column)| column.as_ref().is_some_and(is_shared));
    let met: Vec<Expr> = met.map(|(part, _)| (*part).clone()).collect();
    if met.is_empty() {
        return Ok(false);
    }
    Ok(simplify_predicates(met)?.iter().any(never))
}

/// The column that a part compares for equality with a constant.
fn equated(part: &Expr) -> Option<&Column> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = part else { return None };
    match (left.as_ref(), right.as_ref()) {
        (Expr::Column(column), Expr::Literal(..)) | (Expr::Literal(..), Expr::Column(column)) => Some(column),
        _ => None,
    }
}
