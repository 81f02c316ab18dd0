//! Query suites of Millpond: SQL text, parameters, answers.
//!
//! ```text
//!   suite("tpch") ─► Suite { tables, queries: [Query { id, sql }] }      answers ─► compare(left, right) ─► equal | difference
//! ```
//!
//! Order     an answer's rows count in order only where the query says ORDER BY; [`answer::compare`] is told so.
//! Tolerance decimals and integers exactly; f64 within 1e-9 and f32 within 1e-5, relative.

#![forbid(unsafe_code)]

pub mod answer;
mod suite;

pub use suite::{Query, Suite, SuiteError};
