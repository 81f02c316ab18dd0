//! Expressions and fused pipelines, written as PTX per query.
//!
//!   PipelineSpec (ir) ──► pipeline: tile loop ─ load ─ filters ─ sink ──► PTX text + metadata
//!                                         └── expr: one node → registers of its `Lane`, plus a validity predicate

pub(crate) mod aggregate;
mod decimal;
pub mod expr;
pub mod function;
pub mod graph;
pub mod ir;
pub(crate) mod join;
pub(crate) mod load;
mod number;
pub mod params;
pub mod pipeline;
mod prune;
pub(crate) mod rows;
pub(crate) mod text;
pub mod text_function;
mod time;
pub mod value;

pub use decimal::Decimal;
pub use function::{Function, FunctionError, Math, Nulls};
pub use pipeline::{CompiledKernel, CompiledPipeline, Helper, compile, compile_module};
pub use prune::Pruned;
pub use time::IntervalParts;
