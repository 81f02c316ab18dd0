//! Query suites of Millpond: SQL text, parameters, functions, answers and their comparison.
//!
//! ```text
//!   Suite::open("tpch" | "gpu-bdb" | "./folder") ─► Suite { tables, queries: [Query { id, sql, check, step }] }
//!   answers ─► Check::verify(expected, actual) ─► equal | difference
//! ```
//!
//! Order     rows are compared in order only if the query has an ORDER BY; the caller of [`answer::compare`] says so.
//! Tolerance decimals and integers are exact; f64 within 1e-9, f32 within 1e-5, relative; a suite may have other rules.

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
