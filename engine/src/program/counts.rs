//! Resources that a run used: pipelines, their launches, their generated PTX, and the time for preparing them.
//!
//!   spec ─► pipeline() ─► noted once ─► pipelines, ptx_instructions in EXPLAIN ANALYZE and in the report
//!
//! Modules  kernels of one structure share a module and count once; so do helper functions that several pipelines call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use millpond_kernels::pipeline::Pipeline;
use millpond_memory::recorder;

use crate::profile::step::PREPARE;

/// The counts of all attempts of a run.
#[derive(Debug, Default)]
pub struct Tally {
    /// Launches that ran a generated pipeline.
    pub launches: AtomicU64,
    /// Segments of the program, and attempts at running it.
    pub segments: AtomicU64,
    pub attempts: AtomicU64,
    /// Times that a segment, or the piece that fills a join's table, was lowered: to plan, to guess and to run. The
    /// program adds to this counter.
    pub lowerings: Arc<AtomicU64>,
    /// Times that statistics of a source were computed.
    pub statistics_read: AtomicU64,
    /// Answers of the device that the run waited for, kept for later runs.
    pub answers_kept: AtomicU64,
    /// Host nanoseconds from a plan to its pipelines: cutting, planning, lowering, and finding or compiling them.
    pub prepare_ns: AtomicU64,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    /// Kept alive, so that no new pipeline reuses the address of a dropped one.
    pipelines: HashMap<usize, Arc<Pipeline>>,
}

impl Tally {
    pub fn note(&self, pipeline: &Arc<Pipeline>) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.pipelines.entry(Arc::as_ptr(pipeline) as usize).or_insert_with(|| Arc::clone(pipeline));
    }

    /// Runs `work`, which prepares launches, and counts its time.
    pub fn preparing<T>(&self, work: impl FnOnce() -> T) -> T {
        let _step = recorder::step(PREPARE);
        let began = Instant::now();
        let done = work();
        let ns = began.elapsed().as_nanos().min(u64::MAX.into()) as u64;
        self.prepare_ns.fetch_add(ns, Ordering::Relaxed);
        done
    }

    /// Number of pipelines, and of instructions in their kernels and in the helpers that these call.
    pub fn pipelines(&self) -> (u64, u64) {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let modules: HashMap<usize, u32> = used.pipelines.values().map(|pipeline| pipeline.module_size()).collect();
        let helpers = used.pipelines.values().flat_map(|pipeline| pipeline.helpers());
        let helpers: HashMap<u64, u32> = helpers.map(|helper| (helper.fingerprint, helper.instructions)).collect();
        let instructions = modules.values().chain(helpers.values()).map(|instructions| u64::from(*instructions)).sum();
        (used.pipelines.len() as u64, instructions)
    }
}
