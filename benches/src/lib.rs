//! The suite runner of Millpond, and (in `benches/`) its criterion benchmarks.
//!
//! ```text
//!   Suite + data folder ─► register tables ─► per query: run, digest, counts ─► Outcome ─► compare with the CPU
//! ```

#![forbid(unsafe_code)]

pub mod decode;
pub mod faults;
pub mod fuzz;
pub mod matrix;
pub mod named;
mod permitted;
pub mod runner;
pub mod soak;
