//! Why an operator stays on the CPU.
//!
//! A reason is data; its text names the unsupported part, with its values. Being unsupported is not an error: a border
//! node carries the reasons for the fallback that required it.

use std::fmt;

/// Why an operator, or part of it, does not run on the device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The operator itself has no device form.
    NodeUnsupported { node: String },
    /// An expression has no device form.
    ExprUnsupported { expr: String, why: String },
    /// A column's type has no device form.
    TypeUnsupported { column: String, data_type: String },
    /// DataFusion moved an expression into the scan, where only the CPU computes it.
    ComputedInScan { expr: String },
    /// An aggregate function, or this use of it, has no device form.
    AggregateUnsupported { aggregate: String, why: String },
    /// The input has an order that the query may rely on, and the device would lose it.
    OrderKept { node: String },
    /// The input is known to be smaller than `millpond.min_rows`.
    TooFewRows { rows: usize, min_rows: usize },
    /// There are more rows than a device sort supports.
    TooManyRowsToSort { rows: usize, limit: usize },
    /// The input never ends.
    Unbounded { node: String },
    /// The input can be read only once; a retry on the device or on the CPU may have to read it again.
    ReadOnce { node: String },
    /// The input may be infinite except for a limit above it, and an upload reads ahead.
    StoppedAbove { node: String },
    /// The device was lost earlier in this process.
    DeviceLost { device: String },
    /// DataFusion's plan check refused the placed plan.
    CheckFailed { what: String },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeUnsupported { node } => write!(f, "{node} has no device form yet"),
            Self::ExprUnsupported { expr, why } => write!(f, "{expr} has no device form: {why}"),
            Self::TypeUnsupported { column, data_type } => {
                write!(f, "{column} has type {data_type}, which has no device form")
            }
            Self::ComputedInScan { expr } => write!(f, "{expr} is computed inside the scan, by DataFusion"),
            Self::AggregateUnsupported { aggregate, why } => write!(f, "{aggregate} has no device form: {why}"),
            Self::OrderKept { node } => write!(f, "{node} keeps an order that the device would lose"),
            Self::TooFewRows { rows, min_rows } => {
                write!(f, "its input has {rows} rows, and millpond.min_rows is {min_rows}")
            }
            Self::TooManyRowsToSort { rows, limit } => {
                write!(f, "it sorts about {rows} rows, and the device sorts up to {limit}")
            }
            Self::Unbounded { node } => write!(f, "{node} reads an input that never ends"),
            Self::ReadOnce { node } => {
                write!(f, "{node} gives its rows once, and a device may have to read them again")
            }
            Self::StoppedAbove { node } => {
                write!(f, "{node} may have no end but the limit above it, and a device reads ahead")
            }
            Self::DeviceLost { device } => write!(f, "{device} was lost and is not used again in this process"),
            Self::CheckFailed { what } => write!(f, "DataFusion's plan check refused the device plan: {what}"),
        }
    }
}

/// A kind of reason, without a concrete expression or operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReasonKind {
    /// Stable code; docs/reasons.md has an anchor of this name.
    pub code: &'static str,
    /// Its meaning in one line.
    pub description: &'static str,
    /// The setting that would remove the reason, if any.
    pub setting: Option<&'static str>,
}

const fn kind(code: &'static str, description: &'static str) -> ReasonKind {
    ReasonKind { code, description, setting: None }
}

/// All kinds, in the order of [`Reason`].
pub const KINDS: [ReasonKind; 13] = [
    kind("unsupported-operator", "the operator has no device form"),
    kind("unsupported-expression", "an expression has no device form"),
    kind("unsupported-type", "a column has a type without a device form"),
    kind("computed-in-scan", "DataFusion computes the expression while it reads the files"),
    kind("unsupported-aggregate", "an aggregate function, or this use of it, has no device form"),
    kind("order-kept", "the query may rely on an order of rows that the device would lose"),
    ReasonKind {
        code: "too-few-rows",
        description: "the input has fewer rows than a device is worth",
        setting: Some("millpond.min_rows"),
    },
    kind("too-many-rows-to-sort", "the input has more rows than the device sorts"),
    kind("unbounded-input", "the input never ends"),
    kind("read-once", "the input gives its rows only once"),
    kind("limit-above", "only a limit above ends the input, and a device reads ahead"),
    kind("device-lost", "the device failed earlier in this process"),
    kind("check-failed", "DataFusion's plan check refused the device plan"),
];

impl Reason {
    /// Kind of the reason.
    pub fn kind(&self) -> &'static ReasonKind {
        &KINDS[match self {
            Self::NodeUnsupported { .. } => 0,
            Self::ExprUnsupported { .. } => 1,
            Self::TypeUnsupported { .. } => 2,
            Self::ComputedInScan { .. } => 3,
            Self::AggregateUnsupported { .. } => 4,
            Self::OrderKept { .. } => 5,
            Self::TooFewRows { .. } => 6,
            Self::TooManyRowsToSort { .. } => 7,
            Self::Unbounded { .. } => 8,
            Self::ReadOnce { .. } => 9,
            Self::StoppedAbove { .. } => 10,
            Self::DeviceLost { .. } => 11,
            Self::CheckFailed { .. } => 12,
        }]
    }

    /// Stable code, also the name of an anchor in docs/reasons.md.
    pub fn code(&self) -> &'static str {
        self.kind().code
    }

    /// The setting that would remove the reason, if any: that of its kind, or one named in its text.
    pub fn setting(&self) -> Option<&'static str> {
        let why = match self {
            Self::ExprUnsupported { why, .. } | Self::AggregateUnsupported { why, .. } => why.as_str(),
            _ => "",
        };
        self.kind().setting.or_else(|| NAMED.into_iter().find(|setting| why.contains(setting)))
    }
}

/// Settings named in the texts of reasons.
const NAMED: [&str; 2] = ["millpond.deterministic_floats", "millpond.integer_overflow"];

/// Reasons in one line, deduplicated.
pub fn reasons_text(reasons: &[Reason]) -> String {
    let mut seen: Vec<String> = Vec::new();
    for reason in reasons {
        let text = reason.to_string().replace('\n', " ");
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen.join("; ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::options::MillpondOptions;

    /// One reason of each kind.
    fn all() -> Vec<Reason> {
        let text = || "x".to_string();
        vec![
            Reason::NodeUnsupported { node: text() },
            Reason::ExprUnsupported { expr: text(), why: text() },
            Reason::TypeUnsupported { column: text(), data_type: text() },
            Reason::ComputedInScan { expr: text() },
            Reason::AggregateUnsupported { aggregate: text(), why: text() },
            Reason::OrderKept { node: text() },
            Reason::TooFewRows { rows: 1, min_rows: 2 },
            Reason::TooManyRowsToSort { rows: 2, limit: 1 },
            Reason::Unbounded { node: text() },
            Reason::ReadOnce { node: text() },
            Reason::StoppedAbove { node: text() },
            Reason::DeviceLost { device: text() },
            Reason::CheckFailed { what: text() },
        ]
    }

    #[test]
    fn each_reason_has_a_code_of_its_own() {
        let codes: BTreeSet<&str> = all().iter().map(Reason::code).collect();
        assert_eq!(codes.len(), all().len());
        assert_eq!(codes, KINDS.iter().map(|kind| kind.code).collect());
        for kind in KINDS {
            assert!(kind.code.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", kind.code);
            assert!(!kind.description.contains('\n') && kind.description.len() < 80, "{}", kind.description);
        }
    }

    #[test]
    fn settings_are_options_of_the_engine() {
        assert_eq!(Reason::TooFewRows { rows: 1, min_rows: 2 }.setting(), Some("millpond.min_rows"));
        let why = "its last bits depend on the order of the rows, which millpond.deterministic_floats rules out";
        let aggregate = Reason::AggregateUnsupported { aggregate: "sum(x)".into(), why: why.into() };
        assert_eq!(aggregate.setting(), Some("millpond.deterministic_floats"));
        for setting in KINDS.iter().filter_map(|kind| kind.setting).chain(NAMED) {
            let name = setting.strip_prefix("millpond.").expect("an option of the engine");
            assert!(MillpondOptions::NAMES.contains(&name), "{setting}");
        }
    }

    /// docs/reasons.md has exactly one anchor per code, with the setting if any.
    #[test]
    fn the_page_has_an_anchor_for_each_code() {
        let page = include_str!("../../../docs/reasons.md");
        let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        let codes: Vec<&str> = KINDS.iter().map(|kind| kind.code).collect();
        assert_eq!(headings, codes, "a heading for each code, in the order of the list");
        for (kind, section) in KINDS.iter().zip(page.split("\n## ").skip(1)) {
            for part in ["**Cause.**", "**Example.**", "**Way out.**"] {
                assert!(section.contains(part), "{}: {part}", kind.code);
            }
            assert!(kind.setting.is_none_or(|setting| section.contains(setting)), "{}", kind.code);
        }
    }
}
