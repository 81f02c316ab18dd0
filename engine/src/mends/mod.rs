//! Statements that DataFusion plans for less, or for something else, than SQL says. Each of them means here what it means to PostgreSQL
//! and DuckDB, or is refused in a sentence.
//!
//! ```text
//!   text ─ tokens and syntax tree (syntax) ─► planner ─ relations (using, TABLESAMPLE)
//!                                                        └─► logical plan ─ a rule (bags, changes, copies, extremes, far_times, nullif, similar, zeros; then sums) ─► DataFusion's rules
//! ```
//!
//! Rules  of DataFusion's that give wrong rows are wrapped, and rules of ours stand before others: docs/upstream.md has a row for each.
//! Doors  what is seen in relations and plans holds for `context().sql()` and frames, too. What the syntax tree alone knows holds for
//!        statements that this engine parses: `execute`, `stream`, `statement`, `Millpond::sql`, the program, and suites.

mod anys;
mod bags;
pub(crate) mod changes;
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

use crate::logical_walk::any;
use crate::missing::Missing;
use crate::{contradictions, memberships, simplified};

/// DataFusion's rule that needs to see what ours have made.
const COERCES: &str = "type_coercion";

/// A session's rules for logical plans as the parser and frames make them, behind ours.
pub(crate) fn analyzer_rules(
    mut rules: Vec<Arc<dyn AnalyzerRule + Send + Sync>>,
    has_device: bool,
    missing: &mut Missing,
) -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    match rules.iter().position(|rule| rule.name() == COERCES) {
        // What GROUPING is has been decided by then, and arguments have the types of the statement.
        Some(coerces) => rules.insert(coerces, Arc::new(sums::Checked { has_device })),
        None => missing.note(COERCES),
    }
    rules.insert(0, Arc::new(AsWritten));
    rules
}

type Rule = Arc<dyn OptimizerRule + Send + Sync>;
/// The name of one of DataFusion's rules, and what wraps it.
type Wrapped = (&'static str, fn(Rule) -> Rule);

/// A session's rules for analysed plans: those of DataFusion's that give wrong rows wrapped, and ours among them.
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

/// What plans relations before DataFusion does.
pub(crate) fn relation_planners() -> Vec<Arc<dyn RelationPlanner>> {
    vec![Arc::new(using::Relations)]
}

/// True for an expression of a kind that one of the mends is about: most plans have none.
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

/// Brings a plan to what its statement says.
#[derive(Debug)]
struct AsWritten;

impl AnalyzerRule for AsWritten {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        // Nearly all plans have nothing of the kind, and stay the objects that they are.
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
