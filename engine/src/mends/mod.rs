//! Statements that DataFusion plans incompletely or wrongly. Here each has the meaning that it has in PostgreSQL and
//! DuckDB, or is refused with an error message.
//!
//! ```text
//!   text ─ tokens and syntax tree (syntax) ─► planner ─ relations (using, TABLESAMPLE) ─► logical plan
//!     ─ a rule (bags, changes, copies, extremes, far_times, nullif, similar, zeros; then sums) ─► DataFusion's rules
//! ```
//!
//! Rules  of DataFusion that return wrong rows are wrapped, and own rules run before others: docs/upstream.md has a row
//!        for each.
//! Doors  mends in relations and plans also apply to `context().sql()` and data frames. Mends in the syntax tree apply
//!        only to statements that this engine parses: `execute`, `stream`, `statement`, `Millpond::sql`, the program,
//!        and suites.

mod anys;
mod bags;
pub(crate) mod changes;
mod contradictions;
mod copies;
pub(crate) mod copy_options;
mod dropped;
mod extremes;
mod far_times;
mod nullif;
mod nulls_equal;
mod similar;
mod sums;
pub(crate) mod syntax;
mod using;
mod volatile;
mod windows;
pub(crate) mod zeros;

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::planner::RelationPlanner;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::{AnalyzerRule, OptimizerRule};

use crate::memberships;
use crate::plan::logical_walk::any;
use crate::plan::missing::Missing;
use crate::plan::simplified;

/// DataFusion's rule that must run after the sum checks.
const COERCES: &str = "type_coercion";

/// Analyzer rules of a session: DataFusion's, preceded by ours, which need the plan as the parser or a data frame
/// created it.
pub(crate) fn analyzer_rules(
    mut rules: Vec<Arc<dyn AnalyzerRule + Send + Sync>>,
    has_device: bool,
    missing: &mut Missing,
) -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    match rules.iter().position(|rule| rule.name() == COERCES) {
        // At this point GROUPING is resolved, and arguments still have the types of the statement.
        Some(coerces) => rules.insert(coerces, Arc::new(sums::Checked { has_device })),
        None => missing.note(COERCES),
    }
    rules.insert(0, Arc::new(AsWritten));
    rules
}

type Rule = Arc<dyn OptimizerRule + Send + Sync>;
/// Name of a DataFusion rule, and the function that wraps it.
type Wrapped = (&'static str, fn(Rule) -> Rule);

/// Optimizer rules of a session: DataFusion's, with those that return wrong rows wrapped, and ours inserted.
pub(crate) fn optimizer_rules(mut rules: Vec<Rule>, missing: &mut Missing) -> Vec<Rule> {
    let [extract, push] = volatile::RULES;
    let wrapped: [Wrapped; 5] = [
        (contradictions::RULE, contradictions::guarded),
        (nulls_equal::RULE, nulls_equal::guarded),
        (simplified::RULE, simplified::guarded),
        (extract, volatile::guarded),
        (push, volatile::guarded),
    ];
    for (name, wrap) in wrapped {
        let mut found = false;
        for rule in rules.iter_mut().filter(|rule| rule.name() == name) {
            *rule = wrap(Arc::clone(rule));
            found = true;
        }
        if !found {
            missing.note(name);
        }
    }
    memberships::add_to(&mut rules, missing);
    rules
}

/// Relation planners that run before DataFusion's.
pub(crate) fn relation_planners() -> Vec<Arc<dyn RelationPlanner>> {
    vec![Arc::new(using::Relations)]
}

/// True for an expression that one of the mends may concern; most plans have none.
fn is_candidate(part: &Expr) -> bool {
    match part {
        Expr::SimilarTo(_) | Expr::WindowFunction(_) => true,
        Expr::InList(_) => zeros::has_zero(part),
        Expr::AggregateFunction(of) => of.params.distinct || matches!(of.func.name(), "min" | "max"),
        Expr::Case(case) => case.expr.is_some(),
        Expr::Cast(_) => far_times::reaching(part).is_some(),
        Expr::ScalarFunction(call) => call.func.name() == "nullif",
        _ => false,
    }
}

/// Rewrites a plan to the meaning of its statement.
#[derive(Debug)]
struct AsWritten;

impl AnalyzerRule for AsWritten {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        // Nearly all plans are unaffected and are returned as the same objects.
        let mut is_concerned = false;
        any(&plan, is_candidate, &mut |node, may_be| {
            copies::refused(node)?;
            let of_expressions = || {
                let all = [similar::is_in, zeros::is_in, extremes::is_in, far_times::is_in, nullif::is_in];
                all.into_iter().try_fold(false, |found, is_in| Ok::<_, DataFusionError>(found || is_in(node)?))
            };
            debug_assert!(
                may_be || !of_expressions()?,
                "a mend has a candidate that `is_candidate` does not know: {node}"
            );
            is_concerned |=
                using::is_note(node) || bags::is_bag(node) || changes::is_change(node) || may_be && of_expressions()?;
            Ok(false)
        })?;
        if !is_concerned {
            return Ok(plan);
        }
        let mended = plan.transform_up_with_subqueries(|node| {
            let node = using::without_note(node);
            let node = node.transform_data(bags::counted)?;
            let node = node.transform_data(changes::as_query)?;
            let node = node.transform_data(zeros::as_one)?;
            let node = node.transform_data(extremes::ordered)?;
            let node = node.transform_data(similar::translated)?;
            let node = node.transform_data(far_times::reached)?;
            node.transform_data(nullif::as_case)
        });
        mended.map(|mended: Transformed<LogicalPlan>| mended.data)
    }

    fn name(&self) -> &str {
        "as_written"
    }
}
