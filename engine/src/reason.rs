//! Why an operator stays on the CPU.
//!
//! A reason is data; its text names what could not be done, with which values. Being unsupported is an answer,
//! not an error: reasons ride on the border node that the fallback made necessary.

use std::fmt;

/// Why an operator, or part of it, has no place on the device.
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
    /// More rows than a device sort takes.
    TooManyRowsToSort { rows: usize, limit: usize },
    /// The input never ends.
    Unbounded { node: String },
    /// The input gives its rows once; a device that runs short, or the CPU in its place, may have to read them again.
    ReadOnce { node: String },
    /// The input may have no end but a limit above it, and an upload reads ahead.
    StoppedAbove { node: String },
    /// The device failed for good earlier in this process.
    DeviceLost { device: String },
    /// DataFusion's plan check refused the changed plan.
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

/// Reasons in one line, each once.
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
