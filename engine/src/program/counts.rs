//! What a run used: its pipelines, launches of them, the PTX that was generated for them, and what preparing them took.
//!
//!   spec ─► pipeline() ─► noted once ─► pipelines, ptx_instructions in EXPLAIN ANALYZE and in the report
//!
//! Modules  kernels of one structure are there once, and count once; so do the functions that they call, however many pipelines do.

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
    /// Times that a segment, or the piece that fills a join's table, was lowered: to plan, to guess and to run. The program counts
    /// here.
    pub lowerings: Arc<AtomicU64>,
    /// Times that statistics of a source were computed.
    pub statistics_read: AtomicU64,
    /// Answers of the device that the run has waited for, and that later runs take over.
    pub answers_kept: AtomicU64,
    /// Nanoseconds of the host from a plan to its pipelines: cutting, planning, lowering, finding them or compiling them.
    pub prepare_ns: AtomicU64,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    /// Held, so that no other pipeline gets the address of one that was forgotten.
    pipelines: HashMap<usize, Arc<Pipeline>>,
}

impl Tally {
    pub fn note(&self, pipeline: &Arc<Pipeline>) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.pipelines.entry(Arc::as_ptr(pipeline) as usize).or_insert_with(|| Arc::clone(pipeline));
    }

    /// Does `work`, which prepares what will be launched, and counts its time.
    pub fn preparing<T>(&self, work: impl FnOnce() -> T) -> T {
        let _step = recorder::step(PREPARE);
        let began = Instant::now();
        let done = work();
        let ns = began.elapsed().as_nanos().min(u64::MAX.into()) as u64;
        self.prepare_ns.fetch_add(ns, Ordering::Relaxed);
        done
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
