//! Errors of function calls, with the way to fix the call.

use millpond::datafusion::arrow::datatypes::DataType;
use millpond::datafusion::common::ScalarValue;
use millpond::datafusion::error::DataFusionError;

/// Error of a workload function about its arguments or rows.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// No table or view has this name.
    #[error("{function}: no table or view is called '{name}'; {known}, or a query may stand in its place: 'SELECT …'")]
    UnknownRelation { function: &'static str, name: String, known: String },
    /// The string is valid SQL, but not a query.
    #[error("{function}: '{sql}' is not a query; give the name of a table or view, or a SELECT")]
    NotAQuery { function: &'static str, sql: String },
    /// The string is a query that cannot be planned.
    #[error("{function}: its query '{sql}' cannot be planned: {reason}")]
    Query { function: &'static str, sql: String, reason: String },
    /// The relation has no column of this name.
    #[error("{function}: {relation} has no column '{name}'; it has {known}")]
    UnknownColumn { function: &'static str, relation: String, name: String, known: String },
    /// The name matches more than one column.
    #[error("{function}: '{name}' may be {candidates}; give columns names of their own with AS first")]
    AmbiguousColumn { function: &'static str, name: String, candidates: String },
    /// A column's type does not fit its role.
    #[error("{function}: column '{column}' is {data_type}, and its {role} must be {wanted}")]
    ColumnType { function: &'static str, column: String, role: &'static str, data_type: DataType, wanted: &'static str },
    /// A result column has the name of an input column.
    #[error("{function}: its result has a column '{name}', and so has its input; rename the input's with AS")]
    NameTaken { function: &'static str, name: String },
    /// An argument has an invalid value.
    #[error("{function}: {argument} is {given}; it must be {wanted}")]
    Argument { function: &'static str, argument: &'static str, given: String, wanted: &'static str },
    /// Too few or too many arguments.
    #[error("{function} takes {wanted}; {given} {} given. It is called as {usage}", if *given == 1 { "is" } else { "are" })]
    Count { function: &'static str, wanted: String, given: usize, usage: &'static str },
    /// A column has a value that the algorithm cannot use.
    #[error("{function}: column '{column}' has {what}; {way_out}")]
    Value { function: &'static str, column: String, what: String, way_out: &'static str },
}

impl From<FunctionError> for DataFusionError {
    fn from(error: FunctionError) -> Self {
        DataFusionError::External(Box::new(error))
    }
}

/// A constant as SQL text.
pub(crate) fn shown(value: &ScalarValue) -> String {
    match value.try_as_str() {
        Some(Some(text)) => format!("'{text}'"),
        _ if value.is_null() => "NULL".to_string(),
        _ => value.to_string(),
    }
}

/// The message of an error without its position, because a position in a query string is not one in the enclosing
/// statement.
pub(crate) fn caused(error: &DataFusionError) -> String {
    match error.diagnostic() {
        Some(diagnostic) => {
            let helps = diagnostic.helps.iter().map(|help| format!("; {}", help.message));
            std::iter::once(diagnostic.message.clone()).chain(helps).collect()
        }
        None => match error.find_root() {
            DataFusionError::Plan(text) | DataFusionError::NotImplemented(text) => text.clone(),
            DataFusionError::SQL(parser, _) => parser.to_string(),
            DataFusionError::External(source) => source.to_string(),
            other => other.strip_backtrace(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_look_as_in_sql() {
        let shown = [ScalarValue::from("it"), ScalarValue::from(3_i64), ScalarValue::Int64(None), ScalarValue::Null]
            .map(|v| shown(&v));
        assert_eq!(shown, ["'it'", "3", "NULL", "NULL"]);
    }
}
