//! The answers of EXPLAIN and EXPLAIN ANALYZE: a line for each node of the plan, and last what limits the query.
//!
//! ```text
//!   EXPLAIN q           logical plan, marked ─ planner ─► physical plan of q ─► tree · reasons · would run · limited by
//!   EXPLAIN ANALYZE q   logical plan, marked ─ planner ─► ExplainAnalyzeExec ─ runs q ─► tree with figures · totals · limited by
//! ```
//!
//! Width   120 columns of a terminal: texts are cut with `…`, lists are wrapped.
//! Others  EXPLAIN with VERBOSE, FORMAT or an option, `datafusion.explain.*` settings and statements that `SessionContext::sql` parses
//!         have DataFusion's answers.
//! Device  a session without one shows the plan of the CPU, and counts the operators of the plan that a simulated device would get.

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
pub(crate) use plan::{Explained, explain, explain_definition};
pub use plan::{Placement, PlacementReason, tree};
pub(crate) use simulated::{Simulated, with_options};
#[doc(hidden)]
pub use text::thousands;

/// The key of the metadata that marks the schema of a plan whose answer is this module's.
const MARK: &str = "millpond.explain";

/// True for EXPLAIN and EXPLAIN ANALYZE of which no statement and no setting asks for a form of DataFusion's.
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

/// The plan of a [plain](is_plain) statement, marked for the planner.
///
/// # Errors
/// DataFusion's, of the schema.
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

/// The text of an answer of EXPLAIN or EXPLAIN ANALYZE; `None` for other answers, DataFusion's own forms among them.
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
