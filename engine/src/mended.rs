//! DataFusion's rules for logical plans, those that give wrong rows wrapped: docs/upstream.md has a row for each.

use std::sync::Arc;

use datafusion::optimizer::{Optimizer, OptimizerRule};

use crate::error::EngineError;
use crate::{contradictions, simplified};

type Rule = Arc<dyn OptimizerRule + Send + Sync>;
/// The name of one of DataFusion's rules, and what wraps it.
type Wrapped = (&'static str, fn(Rule) -> Rule);

/// DataFusion's rules, in their order.
///
/// # Errors
/// If DataFusion has no rule of a name that is wrapped.
pub(crate) fn rules() -> Result<Vec<Rule>, EngineError> {
    let mut rules = Optimizer::new().rules;
    let wrapped: [Wrapped; 2] =
        [(contradictions::RULE, contradictions::guarded), (simplified::RULE, simplified::guarded)];
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
    Ok(rules)
}
