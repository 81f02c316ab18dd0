//! Checked calls: builds a plan from names and constants, for SQL and data frames.

use millpond::datafusion::error::Result;
use millpond::datafusion::logical_expr::{Expr, LogicalPlan};

use super::ml::{KMeansOptions, LogisticOptions, MlError, NaiveBayesOptions};
use super::relation::{column, columns};
use super::{Function, FunctionError, KMeansOutput, LogisticOutput, RelationNode};

fn node(function: Function, columns: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<LogicalPlan> {
    Ok(RelationNode::try_new(function, columns, inputs)?.into_plan())
}

/// The columns of several roles, in order. The first list must not be empty.
fn roles(function: &'static str, plan: &LogicalPlan, argument: &'static str, lists: &[&[String]]) -> Result<Vec<Expr>> {
    if lists.first().is_some_and(|list| list.is_empty()) {
        let given = "an empty list".to_string();
        return Err(FunctionError::Argument { function, argument, given, wanted: "at least one column" }.into());
    }
    let found: Result<Vec<Vec<Expr>>> = lists.iter().map(|list| columns(function, list, plan)).collect();
    Ok(found?.concat())
}

fn options<T>(function: &'static str, checked: Result<T, MlError>) -> Result<()> {
    match checked {
        Ok(_) => Ok(()),
        Err(MlError::Option { option, given, wanted }) => {
            Err(FunctionError::Argument { function, argument: option, given, wanted }.into())
        }
        Err(other) => Err(other.into()),
    }
}

fn not_negative(function: &'static str, argument: &'static str, value: i64) -> Result<()> {
    match value {
        0.. => Ok(()),
        _ => Err(FunctionError::Argument { function, argument, given: value.to_string(), wanted: "0 or more" }.into()),
    }
}

pub(crate) fn sessionize(input: LogicalPlan, keys: &[String], time: &str, gap: i64) -> Result<LogicalPlan> {
    let function = Function::Sessionize { keys: keys.len(), gap };
    let name = function.sql_name();
    not_negative(name, "gap", gap)?;
    let columns = roles(name, &input, "key", &[keys, &[time.to_string()]])?;
    node(function, columns, vec![input])
}

pub(crate) fn basket_pairs(input: LogicalPlan, groups: &[String], element: &str) -> Result<LogicalPlan> {
    let function = Function::BasketPairs;
    let columns = roles(function.sql_name(), &input, "group", &[groups, &[element.to_string()]])?;
    node(function, columns, vec![input])
}

pub(crate) fn last_n_before(
    input: LogicalPlan,
    keys: &[String],
    order: &[String],
    anchor: &str,
    n: usize,
    within: Option<i64>,
) -> Result<LogicalPlan> {
    let function = Function::LastBefore { keys: keys.len(), n, within };
    let name = function.sql_name();
    if n == 0 {
        let given = "0".to_string();
        return Err(FunctionError::Argument { function: name, argument: "n", given, wanted: "1 or more" }.into());
    }
    within.map_or(Ok(()), |within| not_negative(name, "within", within))?;
    roles(name, &input, "order", &[order])?;
    let columns = roles(name, &input, "key", &[keys, order, &[anchor.to_string()]])?;
    node(function, columns, vec![input])
}

pub(crate) fn kmeans(
    input: LogicalPlan,
    id: &str,
    features: &[String],
    how: KMeansOptions,
    output: KMeansOutput,
) -> Result<LogicalPlan> {
    let function = Function::KMeans { options: how, output };
    let name = function.sql_name();
    options(name, how.validate())?;
    let mut columns = vec![column(name, id, &input)?];
    columns.extend(roles(name, &input, "features", &[features])?);
    node(function, columns, vec![input])
}

pub(crate) fn kmeans_predict(
    input: LogicalPlan,
    centers: LogicalPlan,
    id: &str,
    features: &[String],
) -> Result<LogicalPlan> {
    let function = Function::KMeansPredict { features: features.len() };
    let name = function.sql_name();
    let mut list = vec![column(name, id, &input)?];
    list.extend(roles(name, &input, "features", &[features])?);
    list.push(column(name, "label", &centers)?);
    list.extend(columns(name, features, &centers)?);
    node(function, list, vec![input, centers])
}

pub(crate) fn logistic(
    input: LogicalPlan,
    id: Option<&str>,
    label: &str,
    features: &[String],
    how: LogisticOptions,
    output: LogisticOutput,
) -> Result<LogicalPlan> {
    let function = Function::Logistic { options: how, output };
    let name = function.sql_name();
    options(name, how.validate())?;
    let mut columns: Vec<Expr> = id.map(|id| column(name, id, &input)).transpose()?.into_iter().collect();
    columns.push(column(name, label, &input)?);
    columns.extend(roles(name, &input, "features", &[features])?);
    node(function, columns, vec![input])
}

pub(crate) fn naive_bayes(
    train: LogicalPlan,
    test: LogicalPlan,
    id: &str,
    text: &str,
    class: &str,
    how: NaiveBayesOptions,
) -> Result<LogicalPlan> {
    let function = Function::NaiveBayes { options: how };
    let name = function.sql_name();
    options(name, how.validate())?;
    let columns = vec![
        column(name, text, &train)?,
        column(name, class, &train)?,
        column(name, id, &test)?,
        column(name, text, &test)?,
        column(name, class, &test)?,
    ];
    node(function, columns, vec![train, test])
}
