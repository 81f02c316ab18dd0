//! What a run used: its pipelines, launches of them, and the PTX that was generated for them.
//!
//!   spec ─► pipeline() ─► noted once ─► pipelines, ptx_instructions in EXPLAIN ANALYZE and in the report
//!
//! Modules  kernels of one structure are there once, and count once; so do the functions that they call, however many pipelines do.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use millpond_kernels::KernelError;
use millpond_kernels::codegen::ir::PipelineSpec;
use millpond_kernels::pipeline::Pipeline;

use crate::program::run::Run;

/// The counts of all attempts of a run.
#[derive(Debug, Default)]
pub struct Tally {
    /// Launches that ran a generated pipeline.
    pub launches: AtomicU64,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    /// Held, so that no other pipeline gets the address of one that was forgotten.
    pipelines: HashMap<usize, Arc<Pipeline>>,
}

impl Tally {
    fn note(&self, pipeline: &Arc<Pipeline>) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.pipelines.entry(Arc::as_ptr(pipeline) as usize).or_insert_with(|| Arc::clone(pipeline));
    }

    /// Pipelines, and instructions in the text of their kernels and of what these call.
    pub fn pipelines(&self) -> (u64, u64) {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let modules: HashMap<usize, u32> = used.pipelines.values().map(|pipeline| pipeline.module_size()).collect();
        let helpers = used.pipelines.values().flat_map(|pipeline| pipeline.helpers());
        let helpers: HashMap<u64, u32> = helpers.map(|helper| (helper.fingerprint, helper.instructions)).collect();
        let instructions = modules.values().chain(helpers.values()).map(|instructions| u64::from(*instructions)).sum();
        (used.pipelines.len() as u64, instructions)
    }
}

impl Run {
    /// The pipeline of a spec, noted as used by this run.
    pub(crate) fn pipeline(&self, spec: &PipelineSpec) -> Result<Arc<Pipeline>, KernelError> {
        let pipeline = self.engine.pipelines.pipeline(spec)?;
        self.tally.note(&pipeline);
        Ok(pipeline)
    }
}
