//! Expressions and fused pipelines, written as PTX per query.
//!
//!   PipelineSpec (ir) ──► pipeline: tile loop ─ load ─ filters ─ sink ──► PTX text + metadata
//!                                         └── expr: one node → registers of its `Lane`, plus a validity predicate

pub mod graph;
pub mod ir;
pub mod value;
