//! EXPLAIN and EXPLAIN ANALYZE: one line per node of the plan, and last the limit of the query.
//!
//! ```text
//!   EXPLAIN q           logical plan, marked ─ planner ─► physical plan ─► tree · reasons · would run · limited by
//!   EXPLAIN ANALYZE q   logical plan, marked ─ planner ─► ExplainAnalyzeExec ─ runs q ─► figures · totals · limited by
//! ```
//!
//! Width   120 columns of a terminal: texts are truncated with `…`, lists are wrapped.
//! Others  EXPLAIN with VERBOSE, FORMAT or an option, sessions with `datafusion.explain.*` settings, and statements
//!         parsed by `SessionContext::sql` produce DataFusion's output.
//! Device  a session without one shows the CPU plan, and counts the operators of the plan for a simulated device.

mod analyze;
mod cost;
mod limit;
mod node;
mod plan;
mod simulated;
mod text;
mod tree;

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::common::DFSchema;
use datafusion::common::format::ExplainFormat;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::{Analyze, Explain, LogicalPlan};
use datafusion::sql::parser::Statement;

pub(crate) use node::ExplainAnalyzeExec;
pub(crate) use plan::{Explained, explain, explain_definition, segments};
pub use plan::{Placement, PlacementReason, tree};
pub(crate) use simulated::{Simulated, with_options};
#[doc(hidden)]
pub use text::thousands;

/// Metadata key that marks the schema of a plan that this module explains.
const MARK: &str = "millpond.explain";

/// True for EXPLAIN and EXPLAIN ANALYZE if neither the statement nor a setting requests one of DataFusion's formats.
pub(crate) fn is_plain(statement: &Statement, config: &ConfigOptions) -> bool {
    let Statement::Explain(explain) = statement else { return false };
    let (options, settings) = (&explain.options, &config.explain);
    let is_plain = !options.verbose
        && options.format.is_none()
        && options.analyze_level.is_none()
        && options.analyze_categories.is_none()
        && options.show_statistics.is_none();
    is_plain
        && settings.format == ExplainFormat::Indent
        && !(settings.logical_plan_only || settings.physical_plan_only)
        && !(settings.show_statistics || settings.show_schema)
}

/// Plan of a [plain](is_plain) statement, marked for the planner.
///
/// # Errors
/// DataFusion's, for an invalid schema.
pub(crate) fn marked(plan: LogicalPlan) -> Result<LogicalPlan> {
    let schema = || {
        let schema = LogicalPlan::explain_schema();
        let fields = schema.fields().iter().map(|field| (None, Arc::clone(field))).collect();
        let metadata = HashMap::from([(MARK.to_string(), String::new())]);
        DFSchema::new_with_metadata(fields, metadata).map(Arc::new)
    };
    Ok(match plan {
        LogicalPlan::Explain(explain) => LogicalPlan::Explain(Explain { schema: schema()?, ..explain }),
        LogicalPlan::Analyze(analyze) => LogicalPlan::Analyze(Analyze { schema: schema()?, ..analyze }),
        other => other,
    })
}

/// Text of an EXPLAIN or EXPLAIN ANALYZE result; `None` for other results, including DataFusion's own formats.
pub fn text_of(batches: &[RecordBatch]) -> Option<&str> {
    let [batch] = batches else { return None };
    if !batch.schema_ref().metadata().contains_key(MARK) || batch.num_rows() != 1 {
        return None;
    }
    Some(batch.columns().get(1)?.as_string_opt::<i32>()?.value(0))
}

/// True for a plan that is [`marked`].
pub(crate) fn is_marked(schema: &DFSchema) -> bool {
    schema.metadata().contains_key(MARK)
}
