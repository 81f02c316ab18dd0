//! Checks the parameter values of a statement: each parameter has a value, and each value a parameter.

use std::collections::BTreeSet;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{ParamValues, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// # Errors
/// For a parameter without a value, or a value without a parameter.
pub(super) fn check(plan: &LogicalPlan, values: &ParamValues) -> Result<()> {
    let mut asked = BTreeSet::new();
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                if let Expr::Placeholder(parameter) = part {
                    asked.insert(parameter.id.clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    let given: BTreeSet<String> = match values {
        ParamValues::List(values) => (1..=values.len()).map(|number| format!("${number}")).collect(),
        ParamValues::Map(values) => values.keys().map(|name| format!("${name}")).collect(),
    };
    let names = |of: &BTreeSet<String>| of.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    if let Some(missing) = asked.difference(&given).next() {
        let given = if given.is_empty() { "none".to_string() } else { format!("those of {}", names(&given)) };
        return plan_err!(
            "parameter {missing} has no value: the statement reads {}, and the given values are {given}",
            names(&asked)
        );
    }
    if let Some(unused) = given.difference(&asked).next() {
        let asked = if asked.is_empty() { "no parameter".to_string() } else { format!("only {}", names(&asked)) };
        return plan_err!("a value is given for parameter {unused}, and the statement reads {asked}");
    }
    Ok(())
}
