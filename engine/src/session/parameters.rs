//! Values for the parameters of a statement: each parameter has one, and each value a parameter.

use std::collections::BTreeSet;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{ParamValues, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// # Errors
/// Of a parameter without a value, and of a value without a parameter.
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
    let names = |of: &BTreeSet<String>| match of.is_empty() {
        true => "none".to_string(),
        false => of.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
    };
    if let Some(missing) = asked.difference(&given).next() {
        return plan_err!(
            "parameter {missing} has no value: the statement has {}, and values are given for {}",
            names(&asked),
            names(&given)
        );
    }
    if let Some(unused) = given.difference(&asked).next() {
        return plan_err!(
            "a value is given for {unused}, which the statement does not have: its parameters are {}",
            names(&asked)
        );
    }
    Ok(())
}
