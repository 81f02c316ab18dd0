//! Query suites of Millpond: SQL text, parameters, functions, answers and what makes two of them equal.
//!
//! ```text
//!   Suite::open("tpch" | "gpu-bdb" | "./folder") ─► Suite { tables, queries: [Query { id, sql, check, step }] }
//!   answers ─► Check::verify(expected, actual) ─► equal | difference
//! ```
//!
//! Order     an answer's rows count in order only where the query says ORDER BY; [`answer::compare`] is told so.
//! Tolerance decimals and integers exactly; f64 within 1e-9 and f32 within 1e-5, relative; a suite's own rules where it has some.

#![forbid(unsafe_code)]

pub mod answer;
pub mod bag;
mod check;
pub mod functions;
pub mod gpu_bdb;
pub mod parameters;
mod suite;
pub mod tpch;

pub use check::{Agreement, Border, Check, Cut};
pub use suite::{Query, Suite, SuiteError};
