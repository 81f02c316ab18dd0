//! Pipelines that only move rows, found again without a look at a whole spec.
//!
//!   columns' forms, how they move ─► known? ── yes ─► pipeline
//!                                           └─ no ──► spec ─► pipeline, kept for the program's later runs
//!
//! Threads  one lock, held to look and to keep.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use millpond_kernels::codegen::ir::{ColumnSpec, Extents, PipelineSpec};
use millpond_kernels::pipeline::Pipeline;

use crate::program::context::RunContext;
use crate::program::failure::Failure;

/// A pipeline that moves rows as they are: all about it follows from the forms of their columns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mover {
    pub moves: Moves,
    pub columns: Vec<ColumnSpec>,
}

/// How rows are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moves {
    /// Into an order of row numbers.
    Fetch,
    /// Out of parts into one.
    Pack(Extents),
    /// From one number up to another.
    Slice,
}

/// The movers that runs of a program have asked for.
#[derive(Default)]
pub struct Movers(Mutex<HashMap<Mover, Arc<Pipeline>>>);

impl Movers {
    /// The pipeline of a mover; its spec is made when the first run asks for it.
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
