//! Refuses a COPY that would lose data: a Parquet file or a JSON object returns only one of two columns with the same
//! name; in partitions of Arrow files, whose sink does not expose its keys (`files`), rows with a NULL key would be
//! mixed with those of another key.

use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;

/// The format whose sink does not expose its keys.
const NOT_OURS: &str = "arrow";

/// Formats whose files identify columns by position.
const BY_PLACE: [&str; 1] = ["csv"];

/// Refuses a COPY that would lose data.
///
/// # Errors
/// The refusal.
pub(super) fn refused(node: &LogicalPlan) -> Result<()> {
    let LogicalPlan::Copy(copy) = node else { return Ok(()) };
    if copy.file_type.get_ext().eq_ignore_ascii_case(NOT_OURS) {
        let has_null =
            |key: &&String| copy.input.schema().field_with_unqualified_name(key).is_ok_and(|field| field.is_nullable());
        if let Some(key) = copy.partition_by.iter().find(has_null) {
            return plan_err!(
                "column {key} may have NULL, which partitions of Arrow files do not keep: write STORED AS PARQUET, or \
                 coalesce({key}, …) AS {key}"
            );
        }
    }
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
