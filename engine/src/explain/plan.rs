//! EXPLAIN: the plan, the reasons why parts of it stay on the CPU, and the share of operators on the device.
//!
//! ```text
//!   SortExec: expr=[to_hex(n@0) ASC] · CPU because unsupported-expression: to_hex(n@0) has no device form …
//!     DownloadExec
//!       DeviceFilterExec: n@0 > 3
//!         DeviceScanExec: t.parquet [n] · 1,000 rows, 8 KiB
//!
//!   reasons
//!     unsupported-expression  to_hex(n@0) has no device form: …            docs/reasons.md has the ways out
//!
//!   would run: 1 of 2 operators on the device
//!   limited by: CPU operators: SortExec (unsupported-expression)
//! ```

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::{ExecutionPlan, displayable};
use millpond_memory::ByteSize;
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use super::cost::{Source, sources};
use super::limit;
use super::text::{WIDTH, cut, thousands, wrapped};
use super::tree::{Line, Side, lines};
use crate::error::reason::Reason;
use crate::placement::contract::Operators;
use crate::program::attempts::Runs;
use crate::result::node::DownloadExec;
use crate::session::report::QueryReport;

/// Operators of a physical plan by the side that would run them.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use millpond::explain::Placement;
/// use millpond::{DeviceChoice, Millpond};
///
/// let session = Millpond::builder().with_device(DeviceChoice::Sim).build()?;
/// let plan = session.plan("SELECT to_hex(v) FROM (VALUES (1), (2)) AS t(v) WHERE v > 1").await?;
/// let placement = Placement::of(&plan, session.operators());
/// assert!(placement.operators_on_device <= placement.operators);
/// # Ok::<_, Box<dyn std::error::Error>>(()) })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Placement {
    /// Operators over table rows that would run on the device.
    pub operators_on_device: usize,
    /// All operators over table rows.
    pub operators: usize,
    /// Reasons of the operators that stay on the CPU, sorted and deduplicated.
    pub reasons: Vec<PlacementReason>,
}

/// A reason why an operator stays on the CPU, as data.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct PlacementReason {
    /// Its stable code; docs/reasons.md has an anchor of this name.
    pub code: &'static str,
    /// The reason as text, including the expression or operator concerned.
    pub text: String,
    /// The setting that would remove the reason, if any.
    pub setting: Option<&'static str>,
}

impl Placement {
    /// Counts the operators of a plan that was placed with `operators`.
    pub fn of(plan: &Arc<dyn ExecutionPlan>, operators: &Operators) -> Self {
        let report = QueryReport::of(plan, operators);
        let mut reasons: Vec<PlacementReason> =
            crate::placement::reasons_of(plan).iter().map(PlacementReason::of).collect();
        reasons.sort();
        reasons.dedup();
        Self { operators_on_device: report.operators_on_device, operators: report.operators, reasons }
    }
}

impl PlacementReason {
    fn of(reason: &Reason) -> Self {
        Self { code: reason.code(), text: reason.to_string().replace('\n', " "), setting: reason.setting() }
    }
}

/// The input of EXPLAIN's text.
pub(crate) struct Explained<'a> {
    /// The plan that would run.
    pub plan: &'a Arc<dyn ExecutionPlan>,
    /// The plan for a simulated device, if the session has no device.
    pub simulated: Option<&'a Arc<dyn ExecutionPlan>>,
    pub operators: &'a Operators,
    /// The session's note about a missing device.
    pub note: Option<&'a str>,
    /// True if `millpond.fallback` is `error`.
    pub refused: bool,
}

/// The nodes of a physical plan, a line of at most 120 columns for each.
pub fn tree(plan: &Arc<dyn ExecutionPlan>, operators: &Operators) -> String {
    lines(plan, operators).iter().map(tree_line).collect::<Vec<_>>().join("\n")
}

/// The segments of a plan's device programs, a line for each; a program is headed by its root.
pub(crate) fn segments(plan: &Arc<dyn ExecutionPlan>) -> String {
    let mut text = Vec::new();
    let walked = plan.apply(|node| {
        if let Some(program) = node.downcast_ref::<DownloadExec>().and_then(|border| border.program().ok()) {
            let root = program
                .works
                .first()
                .map(|work| displayable(work.node.as_ref()).one_line().to_string())
                .unwrap_or_default();
            text.push(cut(&format!("program of {root}"), WIDTH));
            let names = (0..program.segments.len()).map(|index| program.segment_name(index));
            text.extend(names.map(|name| cut(&format!("  {name}"), WIDTH)));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "the walk above returns no error");
    text.join("\n")
}

/// The text of EXPLAIN.
pub(crate) fn explain(explained: &Explained<'_>) -> String {
    let lines = lines(explained.plan, explained.operators);
    let placement = Placement::of(explained.simulated.unwrap_or(explained.plan), explained.operators);
    let mut text: Vec<String> = lines.iter().map(tree_line).collect();
    text.push(String::new());
    if !placement.reasons.is_empty() {
        text.extend(reason_lines(&placement.reasons));
        text.push(String::new());
    }
    text.push(would_run(&placement, explained));
    let limited = limit::planned(explained, &lines, &placement, &sources(&lines));
    text.push(cut(&format!("limited by: {limited}"), WIDTH));
    text.join("\n")
}

/// The text of EXPLAIN for a statement without operators: DROP, SET, CREATE FUNCTION.
pub(crate) fn explain_definition() -> String {
    "no plan: the statement is a definition or a setting, and reads no rows\n\nlimited by: nothing to run".to_string()
}

/// A line with a node, and on the right its reason or its size.
fn tree_line(line: &Line) -> String {
    let right = match (line.side, line.reasons.first()) {
        (_, Some(reason)) => {
            let more = match line.reasons.len() {
                1 => String::new(),
                several => format!(" (and {} more)", several - 1),
            };
            Some(format!("CPU because {}{more}: {reason}", reason.code()))
        }
        (Side::Source, None) => sources(std::slice::from_ref(line)).first().and_then(size),
        _ => None,
    };
    fitted(line.level, &line.words, right.as_deref())
}

/// "1,000 rows, 8 KiB"
fn size(source: &Source) -> Option<String> {
    let rows = source.rows.map(|rows| format!("{} rows", thousands(rows)));
    let bytes = source.bytes.map(|bytes| ByteSize::bytes(bytes).to_string());
    let parts: Vec<String> = rows.into_iter().chain(bytes).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Separator between a node and its reason or size.
const BETWEEN: &str = " · ";

/// Maximum indentation level, so that a line has room for text.
const DEEPEST: usize = 30;

/// Indentation of a node.
pub(super) fn indent(level: usize) -> String {
    "  ".repeat(level.min(DEEPEST))
}

/// Line of a node: if it is too long, each side gets at least half of the width.
fn fitted(level: usize, words: &str, right: Option<&str>) -> String {
    let indent = indent(level);
    let room = WIDTH - indent.len();
    let Some(right) = right else { return format!("{indent}{}", cut(words, room)) };
    let room = room - BETWEEN.width();
    let (left_wants, right_wants) = (words.width(), right.width());
    let half = room / 2;
    let left = match (left_wants <= half, right_wants <= half) {
        _ if left_wants + right_wants <= room => left_wants,
        (true, _) => left_wants,
        (false, true) => room - right_wants,
        (false, false) => half,
    };
    format!("{indent}{}{BETWEEN}{}", cut(words, left), cut(right, room - left))
}

/// Each reason with its code, not truncated.
pub(super) fn reason_lines(reasons: &[PlacementReason]) -> Vec<String> {
    let codes = reasons.iter().map(|reason| reason.code.len()).max().unwrap_or(0);
    let mut lines = vec!["reasons (docs/reasons.md has the ways out)".to_string()];
    for reason in reasons {
        let setting = reason.setting.map(|setting| format!("; SET {setting} changes it")).unwrap_or_default();
        lines.extend(wrapped(&format!("  {:<codes$}  ", reason.code), &format!("{}{setting}", reason.text)));
    }
    lines
}

/// Line with the operator counts.
fn would_run(placement: &Placement, explained: &Explained<'_>) -> String {
    let Placement { operators_on_device, operators, .. } = placement;
    let counts = format!("would run: {operators_on_device} of {operators} operators on the device");
    let also = match explained.simulated {
        Some(_) => "; this session has none, and they run on the CPU",
        None if *operators == 0 => "; scans alone are not counted",
        None if explained.refused && operators_on_device < operators => {
            "; it is refused, because millpond.fallback is error"
        }
        None => "",
    };
    counts + also
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_a_line_have_room() {
        let (short, long) = ("x".repeat(10), "y".repeat(300));
        for (words, right) in [(&short, &long), (&long, &short), (&long, &long), (&short, &short)] {
            for level in [0, 5, 500] {
                let line = fitted(level, words, Some(right));
                assert!(line.width() <= WIDTH, "{line}");
                assert!(line.contains("xx") || line.contains("yyyyyyyyyy…"), "{line}");
                assert!(!line.contains('…') || words.len() > 10 || right.len() > 10, "{line}");
            }
        }
        assert!(fitted(0, &long, Some(&short)).ends_with(&short), "what fits is whole");
        assert!(fitted(0, &short, Some(&long)).starts_with(&short), "what fits is whole");
    }
}
