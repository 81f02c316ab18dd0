//! Pipelines that only move rows, cached under a small key instead of a whole spec.
//!
//!   columns' forms, how they move ─► known? ── yes ─► pipeline
//!                                           └─ no ──► spec ─► pipeline, kept for the program's later runs
//!
//! Threads  one lock, held only to look up and to insert.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use millpond_kernels::codegen::ir::{ColumnSpec, Extents, PipelineSpec};
use millpond_kernels::pipeline::Pipeline;

use crate::error::failure::Failure;
use crate::program::context::RunContext;

/// Key of a pipeline that moves unchanged rows: the forms of their columns determine it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mover {
    pub moves: Moves,
    pub columns: Vec<ColumnSpec>,
}

/// Way of moving rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moves {
    /// Gathers rows in an order of row numbers.
    Fetch,
    /// Packs parts into one.
    Pack(Extents),
    /// Copies a range of row numbers.
    Slice,
}

/// Pipelines that move rows, as runs of a program have requested them.
#[derive(Default)]
pub struct Movers(Mutex<HashMap<Mover, Arc<Pipeline>>>);

impl Movers {
    /// The pipeline of a mover; its spec is made on the first request.
    ///
    /// # Errors
    /// Why it has no kernel.
    pub fn pipeline(
        &self,
        mover: Mover,
        context: &RunContext,
        spec: impl FnOnce() -> Result<PipelineSpec, Failure>,
    ) -> Result<Arc<Pipeline>, Failure> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&mover).cloned();
        if let Some(pipeline) = known {
            context.tally.note(&pipeline);
            return Ok(pipeline);
        }
        let pipeline = context.pipeline(&spec()?)?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(mover, Arc::clone(&pipeline));
        Ok(pipeline)
    }
}
