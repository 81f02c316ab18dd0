//! Common parts of plans: what DataFusion's nodes and ours need before, while and after they are placed.
//!
//! ```text
//!   logical    levels (depth limit) · logical_walk · simplified (the simplifier) · overflow (whole numbers)
//!   physical   node (device nodes) · rewrite (expressions of a node) · subqueries (uncorrelated, with their results)
//!   a run      snapshot (file metadata that planning has read)
//!   session    missing (rules of DataFusion that a session lacks)
//! ```
//!
//! Imports   errors and options alone.

pub(crate) mod levels;
pub(crate) mod logical_walk;
pub(crate) mod missing;
pub mod node;
pub(crate) mod overflow;
pub(crate) mod rewrite;
pub(crate) mod simplified;
pub mod snapshot;
pub mod subqueries;
