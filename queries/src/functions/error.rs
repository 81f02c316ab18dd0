//! What can be wrong with a call, said so that the next call is right.

use millpond::datafusion::arrow::datatypes::DataType;
use millpond::datafusion::error::DataFusionError;

/// Why a function of the workload refused its arguments or its rows.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// No table or view has the name.
    #[error("{function}: no table or view is called '{name}'; {known}, or a query may stand in its place: 'SELECT …'")]
    UnknownRelation { function: &'static str, name: String, known: String },
    /// The string is SQL, but no query.
    #[error("{function}: '{sql}' is not a query; give the name of a table or view, or a SELECT")]
    NotAQuery { function: &'static str, sql: String },
    /// The relation has no such column.
    #[error("{function}: {relation} has no column '{name}'; it has {known}")]
    UnknownColumn { function: &'static str, relation: String, name: String, known: String },
    /// More than one column fits the name.
    #[error("{function}: '{name}' may be {candidates}; give columns names of their own with AS first")]
    AmbiguousColumn { function: &'static str, name: String, candidates: String },
    /// A column's type does not fit its role.
    #[error("{function}: column '{column}' is {data_type}, and its {role} must be {wanted}")]
    ColumnType { function: &'static str, column: String, role: &'static str, data_type: DataType, wanted: &'static str },
    /// A result column would have a name that exists already.
    #[error("{function}: its result has a column '{name}', and so has its input; rename the input's with AS")]
    NameTaken { function: &'static str, name: String },
    /// An argument's value cannot be used.
    #[error("{function}: {argument} is {given}; it must be {wanted}")]
    Argument { function: &'static str, argument: &'static str, given: String, wanted: &'static str },
    /// Too few or too many arguments.
    #[error("{function} takes {wanted}; {given} arguments are given. It is called as {usage}")]
    Count { function: &'static str, wanted: String, given: usize, usage: &'static str },
    /// A number that an algorithm cannot use.
    #[error("{function}: column '{column}' has {what}; {way_out}")]
    Value { function: &'static str, column: String, what: String, way_out: &'static str },
}

impl From<FunctionError> for DataFusionError {
    fn from(error: FunctionError) -> Self {
        DataFusionError::External(Box::new(error))
    }
}
