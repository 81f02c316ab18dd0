//! Cache of one device's generated pipelines: compiled once per structure, assembled by the driver once per text.
//!
//!   spec ─► text ─┬─ already assembled ──────────────► Pipeline
//!                 ├─ being assembled by another thread ─ wait ─►
//!                 └─ new ─ the driver assembles it ──────►
//!   prepare(specs)   ─► the new texts as one module, before the first request; with a disk cache, one module each
//!
//! Waits   for the driver's assembler, a few milliseconds per kernel; never for the device.
//! Memory  modules stay loaded while a pipeline uses them.

use std::collections::{HashMap, HashSet};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use millpond_memory::{Device, Kernel, is_leaving, recorder};
use millpond_ptx::ast::Module;
use millpond_ptx::build::{merge, merged_name};

use crate::codegen::ir::*;
use crate::codegen::{CompiledKernel, CompiledPipeline, compile_module};
use crate::error::KernelError;
use crate::pipeline::{Kernels, Pipeline, shared_bytes};
use crate::tune;

type Result<T> = std::result::Result<T, KernelError>;

/// Counters of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStatistics {
    /// Specs that were looked up. Each lookup hashes the whole spec.
    pub hashed: u64,
    /// Lookups that found their pipeline.
    pub hits: u64,
    /// Specs compiled to PTX text.
    pub compiled: u64,
    /// Texts that the driver assembled: specs of one structure share a text.
    pub loaded: u64,
    /// Modules passed to the driver: texts prepared together form one module.
    pub modules: u64,
}

/// Pipelines of one device, for the life of the process. When there are too many, the least recently used are dropped.
#[derive(Debug)]
pub struct PipelineCache {
    device: Device,
    pipelines: Mutex<HashMap<PipelineSpec, Known>>,
    texts: Mutex<Texts>,
    assembled: Condvar,
    clock: AtomicU64,
    hashed: AtomicU64,
    hits: AtomicU64,
    compiled: AtomicU64,
    loaded: AtomicU64,
    modules: AtomicU64,
}

/// A pipeline and the time of its last lookup.
#[derive(Debug)]
struct Known {
    pipeline: Arc<Pipeline>,
    used: u64,
}

#[derive(Debug, Default)]
struct Texts {
    ready: HashMap<String, Arc<Kernels>>,
    /// Texts that some thread is assembling.
    under_way: HashSet<String>,
}

/// Texts that this thread assembles. Other threads wait for them until the claim is dropped.
struct Claim<'c> {
    cache: &'c PipelineCache,
    texts: Vec<String>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut texts = lock(&self.cache.texts);
        self.texts.iter().for_each(|text| {
            texts.under_way.remove(text);
        });
        self.cache.assembled.notify_all();
    }
}

impl PipelineCache {
    pub fn new(device: &Device) -> PipelineCache {
        PipelineCache {
            device: device.clone(),
            pipelines: Mutex::default(),
            texts: Mutex::default(),
            assembled: Condvar::new(),
            clock: AtomicU64::new(0),
            hashed: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            compiled: AtomicU64::new(0),
            loaded: AtomicU64::new(0),
            modules: AtomicU64::new(0),
        }
    }

    /// Number of texts that are being assembled.
    pub fn assembling(&self) -> usize {
        lock(&self.texts).under_way.len()
    }

    /// Returns the pipeline of a spec if it is cached.
    pub fn known(&self, spec: &PipelineSpec) -> Option<Arc<Pipeline>> {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        self.hashed.fetch_add(1, Ordering::Relaxed);
        let mut pipelines = lock(&self.pipelines);
        let known = pipelines.get_mut(spec)?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        known.used = now;
        Some(known.pipeline.clone())
    }

    /// Returns the pipeline of a spec; compiles and loads it if it is not cached.
    ///
    /// # Errors
    /// [`KernelError::Codegen`] if the spec has no kernel, [`KernelError::Memory`] if the driver rejects the module.
    pub fn pipeline(&self, spec: &PipelineSpec) -> Result<Arc<Pipeline>> {
        if let Some(known) = self.known(spec) {
            return Ok(known);
        }
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        let (compiled, module) = self.compiled(spec)?;
        let kernels = loop {
            if let Some(_claim) = self.claim(vec![compiled.text.clone()], true) {
                break self.assemble(&[(&compiled, &module)])?.swap_remove(0);
            }
            // Another thread may have dropped the text meanwhile.
            let ready = lock(&self.texts).ready.get(&compiled.text).cloned();
            if let Some(kernels) = ready {
                break kernels;
            }
        };
        Ok(self.keep(spec, compiled, kernels, now))
    }

    /// Compiles and loads pipelines that [`pipeline`](Self::pipeline) will need soon, all new texts in one module.
    /// Called from a background thread; a caller of `pipeline` that needs one of them waits. While the process exits,
    /// no new work begins.
    ///
    /// # Errors
    /// As [`pipeline`](Self::pipeline), which then returns the error of the failing spec.
    pub fn prepare(&self, specs: &[PipelineSpec]) -> Result<()> {
        let mut new: Vec<(&PipelineSpec, CompiledPipeline, Module)> = Vec::new();
        for spec in specs.iter().filter(|_| !is_leaving()) {
            self.hashed.fetch_add(1, Ordering::Relaxed);
            if !lock(&self.pipelines).contains_key(spec) && new.iter().all(|(other, ..)| *other != spec) {
                let (compiled, module) = self.compiled(spec)?;
                new.push((spec, compiled, module));
            }
        }
        let Some(claim) = self.claim(new.iter().map(|(_, compiled, _)| compiled.text.clone()).collect(), false) else {
            return Ok(());
        };
        let mut seen = HashSet::new();
        let mine: Vec<(&CompiledPipeline, &Module)> = (new.iter())
            .filter(|(_, compiled, _)| claim.texts.contains(&compiled.text) && seen.insert(&compiled.text))
            .map(|(_, compiled, module)| (compiled, module))
            .collect();
        if self.device.kernel_cache().is_some() {
            self.assemble_each(&mine)?;
        } else {
            self.assemble(&mine)?;
        }
        drop(claim);
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        for (spec, compiled, _) in new {
            let kernels = lock(&self.texts).ready.get(&compiled.text).cloned();
            if let Some(kernels) = kernels {
                self.keep(spec, compiled, kernels, now);
            }
        }
        Ok(())
    }

    fn compiled(&self, spec: &PipelineSpec) -> Result<(CompiledPipeline, Module)> {
        let _step = recorder::step(recorder::GENERATE);
        let (mut compiled, mut module) = compile_module(spec)?;
        let limits = self.device.limits();
        let optin = limits.shared_bytes_per_block_optin.max(limits.shared_bytes_per_block);
        if shared_bytes(&compiled) + compiled.pipeline.static_shared_bytes > optin as u64
            && let SinkSpec::Aggregate(aggregate) = &spec.sink
        {
            let direct = AggregateSpec { regime: Some(Regime::Direct), ..aggregate.clone() };
            (compiled, module) = compile_module(&PipelineSpec { sink: SinkSpec::Aggregate(direct), ..spec.clone() })?;
        }
        self.compiled.fetch_add(1, Ordering::Relaxed);
        Ok((compiled, module))
    }

    /// Claims the missing texts for this thread; `None` if no text is missing. With `wait`, waits for texts that other
    /// threads are assembling; otherwise leaves those out.
    fn claim(&self, wanted: Vec<String>, wait: bool) -> Option<Claim<'_>> {
        let mut texts = lock(&self.texts);
        while wait && wanted.iter().any(|text| texts.under_way.contains(text)) {
            let _step = recorder::step(recorder::ASSEMBLE);
            texts = self.assembled.wait(texts).unwrap_or_else(PoisonError::into_inner);
        }
        let new: Vec<String> = (wanted.into_iter())
            .filter(|text| !texts.ready.contains_key(text) && texts.under_way.insert(text.clone()))
            .collect();
        (!new.is_empty()).then(|| Claim { cache: self, texts: new })
    }

    /// Assembles each text as its own module, so that a file of the disk cache depends on one text only. Several
    /// threads call the driver.
    fn assemble_each(&self, all: &[(&CompiledPipeline, &Module)]) -> Result<()> {
        let _step = recorder::step(recorder::ASSEMBLE);
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(all.len()).max(1);
        let wanted = || all.iter().take_while(|_| !is_leaving());
        std::thread::scope(|scope| {
            let share =
                |of: usize| wanted().skip(of).step_by(threads).try_for_each(|one| self.assemble(&[*one]).map(drop));
            let others: Vec<_> = (1..threads).map(|of| scope.spawn(move || share(of))).collect();
            let own = share(0);
            // Propagates a panic of another thread.
            others
                .into_iter()
                .fold(own, |done, other| done.and(other.join().unwrap_or_else(|panic| resume_unwind(panic))))
        })
    }

    /// Lets the driver assemble the modules, several as one. No lock is held: this takes milliseconds.
    fn assemble(&self, all: &[(&CompiledPipeline, &Module)]) -> Result<Vec<Arc<Kernels>>> {
        let together = all.len() > 1;
        let loaded = match all {
            [(compiled, _)] => self.device.load_module(&compiled.text)?,
            _ => {
                let modules: Vec<Module> = all.iter().map(|(_, module)| (*module).clone()).collect();
                self.device.load_module(&merge(&modules).to_string())?
            }
        };
        self.modules.fetch_add(1, Ordering::Relaxed);
        self.loaded.fetch_add(all.len() as u64, Ordering::Relaxed);
        let mut kernels = Vec::with_capacity(all.len());
        for (number, (compiled, _)) in all.iter().enumerate() {
            let named = |kernel: &CompiledKernel| -> Result<Kernel> {
                let name = if together { merged_name(kernel.name, number) } else { kernel.name.to_string() };
                Ok(loaded.kernel(&name)?)
            };
            let find = |kernel: &Option<CompiledKernel>| kernel.as_ref().map(named).transpose();
            let (emit, rehash) = (find(&compiled.emit)?, find(&compiled.rehash)?);
            kernels.push(Arc::new(Kernels::new(named(&compiled.pipeline)?, &compiled.pipeline, emit, rehash)));
        }
        let mut texts = lock(&self.texts);
        for ((compiled, _), kernels) in all.iter().zip(&kernels) {
            texts.ready.insert(compiled.text.clone(), Arc::clone(kernels));
        }
        Ok(kernels)
    }

    fn keep(&self, spec: &PipelineSpec, compiled: CompiledPipeline, kernels: Arc<Kernels>, now: u64) -> Arc<Pipeline> {
        let pipeline = Arc::new(Pipeline::new(compiled, kernels));
        let mut pipelines = lock(&self.pipelines);
        if pipelines.len() >= tune::CACHED_PIPELINES {
            self.forget_oldest(&mut pipelines);
        }
        let known = pipelines.entry(spec.clone()).or_insert(Known { pipeline, used: now });
        known.pipeline.clone()
    }

    /// Drops the least recently used half of the pipelines, and kernels that no pipeline uses any more.
    fn forget_oldest(&self, pipelines: &mut HashMap<PipelineSpec, Known>) {
        let mut times: Vec<u64> = pipelines.values().map(|known| known.used).collect();
        times.sort_unstable();
        let middle = times[times.len() / 2];
        pipelines.retain(|_, known| known.used >= middle);
        lock(&self.texts).ready.retain(|_, kernels| Arc::strong_count(kernels) > 1);
    }

    pub fn statistics(&self) -> CacheStatistics {
        CacheStatistics {
            hashed: self.hashed.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
            compiled: self.compiled.load(Ordering::Relaxed),
            loaded: self.loaded.load(Ordering::Relaxed),
            modules: self.modules.load(Ordering::Relaxed),
        }
    }

    /// Number of cached pipelines.
    pub fn kept(&self) -> usize {
        lock(&self.pipelines).len()
    }

    /// Regimes of the cached aggregates, in no order.
    pub fn regimes(&self) -> Vec<Regime> {
        lock(&self.pipelines).values().filter_map(|known| known.pipeline.regime()).collect()
    }

    /// Drops every pipeline from the cache; pipelines in use stay alive.
    pub fn clear(&self) {
        lock(&self.pipelines).clear();
        lock(&self.texts).ready.clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
