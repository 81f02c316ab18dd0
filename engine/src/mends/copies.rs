//! COPY of two columns of one name: a Parquet file, or an object of JSON, gives back one of them.

use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;

/// Formats whose files have columns by their place.
const BY_PLACE: [&str; 1] = ["csv"];

/// Refuses a COPY that would lose a column.
///
/// # Errors
/// That refusal.
pub(super) fn refused(node: &LogicalPlan) -> Result<()> {
    let LogicalPlan::Copy(copy) = node else { return Ok(()) };
    if BY_PLACE.iter().any(|format| copy.file_type.get_ext().eq_ignore_ascii_case(format)) {
        return Ok(());
    }
    let mut names: Vec<&str> = copy.input.schema().fields().iter().map(|field| field.name().as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            let (name, format) = (pair[0], copy.file_type.get_ext());
            plan_err!(
                "two columns are called {name}, and a file of {format} would give back one of them: \
                 name them apart (SELECT a AS x, b AS y)"
            )
        }
        None => Ok(()),
    }
}
