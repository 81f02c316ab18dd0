//! Expressions and fused pipelines, written as PTX per query.

pub mod graph;
