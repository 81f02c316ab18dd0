//! Expressions and fused pipelines, written as PTX per query.
//!
//!   PipelineSpec (ir) ──► pipeline: tile loop ─ load ─ filters ─ sink ──► PTX text + metadata
//!                                         └── expr: one node → registers of its `Lane`, plus a validity predicate

pub mod expr;
pub mod graph;
mod infer;
pub mod ir;
pub mod value;
