//! Statements that DataFusion plans for less, or for something else, than SQL says. Each of them means here what it means to PostgreSQL
//! and DuckDB, or is refused in a sentence.
//!
//! ```text
//!   text ─ tokens and syntax tree (syntax) ─► planner ─ relations (using, TABLESAMPLE)
//!                                                        └─► logical plan ─ a rule (bags, copies, similar) ─► DataFusion's rules
//! ```
//!
//! Doors  what is seen in relations and plans holds for `context().sql()` and frames, too. What the syntax tree alone knows holds for
//!        statements that this engine parses: `execute`, `stream`, `statement`, `Millpond::sql`, the program, and suites.

mod bags;
mod copies;
mod similar;
pub(crate) mod syntax;
mod using;

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::planner::RelationPlanner;
use datafusion::optimizer::{Analyzer, AnalyzerRule};

use crate::error::EngineError;

/// DataFusion's rule that needs to see what ours have made.
const COERCES: &str = "type_coercion";

/// DataFusion's rules for logical plans as the parser and frames make them, behind ours.
///
/// # Errors
/// If DataFusion lacks the rule that gives operands their types.
pub(crate) fn analyzer_rules() -> Result<Vec<Arc<dyn AnalyzerRule + Send + Sync>>, EngineError> {
    let mut rules = Analyzer::new().rules;
    if !rules.iter().any(|rule| rule.name() == COERCES) {
        return Err(EngineError::internal(format!("DataFusion has no rule {COERCES}")));
    }
    rules.insert(0, Arc::new(AsWritten));
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
            is_concerned |= using::is_note(node) || bags::is_bag(node) || similar::is_in(node)?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        if !is_concerned {
            return Ok(plan);
        }
        let mended = plan.transform_up_with_subqueries(|node| {
            let node = using::without_note(node);
            let node = node.transform_data(bags::counted)?;
            node.transform_data(similar::translated)
        });
        Ok(mended.map(|mended: Transformed<LogicalPlan>| mended.data)?)
    }

    fn name(&self) -> &str {
        "as_written"
    }
}
