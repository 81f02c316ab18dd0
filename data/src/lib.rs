//! Deterministic data generators to Arrow and Parquet, at any scale.
//!
//! ```text
//!   (table, scale, part)  ──generator──►  record batches  ──writer──►  one row group of TABLE.parquet
//! ```
//!
//! Order     row groups are written in part order; parts are generated in parallel.
//! Same      a file's rows depend only on the table and the scale, never on the number of threads.
//! Memory    at most one part per thread.
//! Errors    [`DataError`] names the table or the path, and suggests a remedy.

#![forbid(unsafe_code)]

mod error;
mod files;
pub mod gpu_bdb;
pub mod matrix;
mod parquet;
pub mod rng;
pub mod sample;
pub mod seed;
pub mod tpch;

pub use error::DataError;
pub use files::{Files, NewFile, Replaced};
pub use parquet::{Codec, WrittenFile};
