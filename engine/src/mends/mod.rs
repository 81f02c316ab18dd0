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
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::planner::RelationPlanner;
use datafusion::optimizer::{Analyzer, AnalyzerRule, Optimizer, OptimizerRule};

use crate::error::EngineError;
use crate::{contradictions, memberships, simplified};

/// DataFusion's rule that needs to see what ours have made.
const COERCES: &str = "type_coercion";

/// DataFusion's rules for logical plans as the parser and frames make them, behind ours.
///
/// # Errors
/// If DataFusion lacks the rule that gives operands their types.
pub(crate) fn analyzer_rules(has_device: bool) -> Result<Vec<Arc<dyn AnalyzerRule + Send + Sync>>, EngineError> {
    let mut rules = Analyzer::new().rules;
    let Some(coerces) = rules.iter().position(|rule| rule.name() == COERCES) else {
        return Err(EngineError::internal(format!("DataFusion has no rule {COERCES}")));
    };
    // What GROUPING is has been decided by then, and arguments have the types of the statement.
    rules.insert(coerces, Arc::new(sums::Checked { has_device }));
    rules.insert(0, Arc::new(AsWritten));
    Ok(rules)
}

type Rule = Arc<dyn OptimizerRule + Send + Sync>;
/// The name of one of DataFusion's rules, and what wraps it.
type Wrapped = (&'static str, fn(Rule) -> Rule);

/// DataFusion's rules for analysed plans, those that give wrong rows wrapped, and ours among them.
///
/// # Errors
/// If DataFusion has no rule of a name that is wrapped, or before which one of ours belongs.
pub(crate) fn optimizer_rules() -> Result<Vec<Rule>, EngineError> {
    let mut rules = Optimizer::new().rules;
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
            return Err(EngineError::internal(format!("DataFusion has no rule {name}")));
        }
    }
    memberships::add_to(&mut rules)?;
    Ok(rules)
}

/// What plans relations before DataFusion does.
pub(crate) fn relation_planners() -> Vec<Arc<dyn RelationPlanner>> {
    vec![Arc::new(using::Relations)]
}

/// Brings a plan to what its statement says.
#[derive(Debug)]
struct AsWritten;

impl AnalyzerRule for AsWritten {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        // Nearly all plans have nothing of the kind, and stay the objects that they are.
        let mut is_concerned = false;
        plan.apply_with_subqueries(|node| {
            copies::refused(node)?;
            is_concerned |= using::is_note(node)
                || bags::is_bag(node)
                || changes::is_change(node)
                || similar::is_in(node)?
                || zeros::is_in(node)?
                || extremes::is_in(node)?
                || far_times::is_in(node)?
                || nullif::is_in(node)?;
            Ok(TreeNodeRecursion::Continue)
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
