//! The device of a session: found, opened, or explained away.
//!
//!   auto ─► CUDA there? ─ yes ─► Engine          cuda:n ─► Engine or error
//!                     └─ no ──► note, CPU        sim ────► Engine        cpu ─► nothing
//!
//! One [`Engine`] is one device with its pools, streams and compiled pipelines; sessions and their runs share it behind
//! an `Arc`. A lost device is not used again in the process.

pub mod host_memory;
pub(crate) mod learnt;
pub mod memory;
mod null;
mod shared;
mod start;

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use millpond_kernels::codegen::ir::Regime;
use millpond_kernels::image::Images;
use millpond_kernels::pipeline::{CacheStatistics, PipelineCache};
use millpond_memory::driver::sim::{CallKind, FailCall, FailureLasts, SimDriver, SimOptions, test_seed};
use millpond_memory::measure::{link_bandwidth, memory_bandwidth};
use millpond_memory::watch::system_clock;
use millpond_memory::{
    ByteSize, Clock, Device, DeviceOptions, Driver, DriverCode, IdleTrim, KernelCache, MemoryError, MemoryGovernor,
    MemoryLog, MemoryPool, PinnedPool, Scope, SpillOptions, Spiller, Strategy, StreamPool, is_leaving,
};

use crate::device::learnt::Learnt;
use crate::device::null::NullDevice;
use crate::device::start::{Start, StartUp};
use crate::error::EngineError;
use crate::options::{DeviceChoice, DeviceTimeout, MillpondOptions};
use crate::profile::DeviceFacts;
use crate::workers::off_workers;

/// One device with its pools, shared by the queries that run on it.
pub struct Engine {
    /// What is made beside the session. Dropped first: it uses what stands below.
    start_up: OnceLock<StartUp>,
    /// What opening the device took.
    opening: Duration,
    pub(crate) device: Device,
    pub(crate) pool: MemoryPool,
    pub(crate) pinned: PinnedPool,
    pub(crate) governor: MemoryGovernor,
    pub(crate) spiller: Spiller,
    pub(crate) streams: StreamPool,
    pub(crate) pipelines: Arc<PipelineCache>,
    pub(crate) images: Arc<Images>,
    /// What earlier runs learnt of their plans.
    pub(crate) learnt: Learnt,
    /// What its memory moves in a second; measured when somebody asks.
    bandwidth: OnceLock<Option<f64>>,
    /// What other rooms keep as long as the device, by its type.
    beside: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    /// How many have run.
    queries: AtomicU64,
    sim: Option<Arc<SimDriver>>,
    pub(crate) null_device: NullDevice,
    name: String,
    strategy: Strategy,
    device_timeout: DeviceTimeout,
    idle_trim: u32,
    kernel_cache: String,
    /// Gives memory back while no query runs.
    idle: IdleTrim,
    log: Option<Arc<MemoryLog>>,
    log_path: String,
    /// The process that opened it.
    process: u32,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What opening a device came to.
#[derive(Debug, Clone, Default)]
pub struct Opened {
    /// The engine; `None` where queries run on the CPU.
    pub engine: Option<Arc<Engine>>,
    /// Why there is no device although one was welcome.
    pub note: Option<String>,
}

impl Engine {
    /// Opens the device that `options.device` names.
    ///
    /// # Errors
    /// [`EngineError::DeviceMissing`] if a device was asked for by name and is absent; [`EngineError::File`] if the log of
    /// `options.memory_log` or the folder of `options.kernel_cache` cannot be made, [`EngineError::OptionValue`] if the log would replace
    /// a file that is no log.
    pub fn open(options: &MillpondOptions) -> Result<Opened, EngineError> {
        Self::open_with(options, system_clock())
    }

    /// The same with another clock for its time limits. For tests.
    ///
    /// # Errors
    /// As of `open`.
    pub fn open_with(options: &MillpondOptions, clock: Arc<dyn Clock>) -> Result<Opened, EngineError> {
        let began = Instant::now();
        let driver = match options.device {
            DeviceChoice::Cuda(_) | DeviceChoice::Auto => Some(cuda()),
            DeviceChoice::Sim | DeviceChoice::Cpu => None,
        };
        let kernels = match (options.device, &driver) {
            // Where there is no device, no folder is made.
            (DeviceChoice::Cpu, _) | (_, Some(Err(_))) => None,
            _ => kernel_cache(options)?,
        };
        let log = match options.memory_log.as_str() {
            "" => None,
            _ if options.device == DeviceChoice::Cpu => None,
            path => Some(MemoryLog::create(path).map_err(|error| log_error(path, &error))?),
        };
        let missing = |error: &MemoryError| EngineError::DeviceMissing {
            device: options.device.to_string(),
            reason: error.to_string(),
        };
        let found = |engine: Engine| {
            let engine = Engine { opening: began.elapsed(), ..engine };
            Opened { engine: Some(Arc::new(engine)), note: None }
        };
        match options.device {
            DeviceChoice::Cpu => Ok(Opened::default()),
            DeviceChoice::Sim => {
                let driver = SimDriver::new(sim_options(options));
                let sim = Arc::clone(&driver);
                Self::on(driver, 0, options, Some(sim), log, kernels, clock).map(found).map_err(|e| missing(&e))
            }
            DeviceChoice::Cuda(ordinal) => driver
                .unwrap_or_else(cuda)
                .and_then(|driver| Self::on(driver, ordinal, options, None, log, kernels, clock))
                .map(found)
                .map_err(|e| missing(&e)),
            DeviceChoice::Auto => {
                let driver = driver.unwrap_or_else(cuda);
                match driver.and_then(|driver| Self::on(driver, 0, options, None, log, kernels, clock)) {
                    Ok(engine) => Ok(found(engine)),
                    Err(error) => {
                        let note = format!("{error} – running on CPU. See \"millpond info\".");
                        Ok(Opened { engine: None, note: Some(note) })
                    }
                }
            }
        }
    }

    fn on(
        driver: Arc<dyn Driver>,
        ordinal: usize,
        options: &MillpondOptions,
        sim: Option<Arc<SimDriver>>,
        log: Option<Arc<MemoryLog>>,
        kernels: Option<Arc<KernelCache>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, MemoryError> {
        let timeout = options.device_timeout.limit(sim.is_some());
        let device_options = DeviceOptions { timeout, clock: Arc::clone(&clock) };
        let device = Device::open_with(driver, u32::try_from(ordinal).unwrap_or(u32::MAX), device_options)?;
        if let Some(cache) = &kernels {
            // The device is new, and keeps them nowhere else.
            let _ = device.keep_kernels(cache);
        }
        let mut pool = MemoryPool::builder(&device).strategy(options.memory_resource);
        if let Some(log) = &log {
            pool = pool.log(Arc::clone(log));
        }
        if options.memory_limit_bytes > 0 {
            pool = pool.limit(ByteSize::bytes(options.memory_limit_bytes as u64));
        }
        let pool = pool.build()?;
        let mut pinned = PinnedPool::builder(&device);
        if options.pinned_bytes > 0 {
            pinned = pinned.max_bytes(ByteSize::bytes(options.pinned_bytes as u64));
        }
        let pinned = pinned.build();
        let idle_after = (options.idle_trim > 0).then(|| Duration::from_secs(options.idle_trim.into()));
        let idle = IdleTrim::new(&pool, idle_after, clock);
        let governor = MemoryGovernor::builder(pool.limit()).build()?;
        let spiller = Spiller::new(&pool, spill_options(options))?;
        spiller.serve(&governor);
        let streams = StreamPool::new(&device);
        let pipelines = Arc::new(PipelineCache::new(&device));
        let images = Arc::new(Images::blocking_by(&device, |work| off_workers(work)));
        let name = if sim.is_some() { "simulated device".to_string() } else { device.limits().name.clone() };
        let (strategy, log_path) = (options.memory_resource, options.memory_log.clone());
        Ok(Self {
            start_up: OnceLock::new(),
            opening: Duration::ZERO,
            device,
            pool,
            pinned,
            governor,
            spiller,
            streams,
            pipelines,
            images,
            learnt: Learnt::default(),
            bandwidth: OnceLock::new(),
            beside: Mutex::default(),
            queries: AtomicU64::new(0),
            sim,
            null_device: NullDevice::default(),
            name,
            strategy,
            device_timeout: options.device_timeout,
            idle_trim: options.idle_trim,
            kernel_cache: options.kernel_cache.clone(),
            idle,
            log,
            log_path,
            process: std::process::id(),
        })
    }

    /// False in a process that was forked after the device was opened: no thread of the engine runs there, and the driver refuses calls.
    pub(crate) fn is_of_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// # Errors
    /// [`EngineError::Forked`] in a process that was forked since.
    pub fn check_process(&self) -> Result<(), EngineError> {
        match self.is_of_process() {
            true => Ok(()),
            false => Err(EngineError::Forked { device: self.name.clone(), opened_by: self.process }),
        }
    }

    /// What opening the device took, its context and its pools; without what is made beside the session.
    pub fn opening(&self) -> Duration {
        self.opening
    }

    /// Begins to make what a first query would wait for, once, on a thread beside the session.
    pub(crate) fn start_up(&self) {
        self.start_up.get_or_init(|| StartUp::begin(self.start()));
    }

    fn start(&self) -> Start {
        Start {
            pinned: self.pinned.clone(),
            pool: self.pool.clone(),
            strategy: self.strategy,
            images: Arc::clone(&self.images),
            scope: self.device.scope().child("start"),
            growth: Arc::default(),
        }
    }

    /// Bytes of the pool in use: those of queries and of columns that stay, without what start-up holds for a moment.
    pub(crate) fn used_bytes(&self) -> u64 {
        let used = || self.pool.used_bytes().as_u64();
        self.start_up.get().map_or_else(used, |start_up| start_up.without(used))
    }

    /// The device's name, as the driver gives it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device itself: limits, memory, counters.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The pool that every buffer comes from.
    pub fn pool(&self) -> &MemoryPool {
        &self.pool
    }

    /// Bytes that the device's memory moves in a second, by a short copy that the first call makes. Nothing on the simulated
    /// device, and where the first call found no room for it.
    pub fn memory_bandwidth(&self) -> Option<f64> {
        *self.bandwidth.get_or_init(|| memory_bandwidth(&self.device, &self.pool).ok().flatten())
    }

    /// Bytes that the link brings from pinned memory to the device in a second, by a few copies. Nothing on the simulated device, and where
    /// there is no room for them.
    pub fn link_bandwidth(&self) -> Option<f64> {
        link_bandwidth(&self.device, &self.pool, &self.pinned).ok().flatten()
    }

    /// What profiles say of the device.
    pub(crate) fn facts(&self) -> DeviceFacts {
        DeviceFacts { name: self.name.clone(), memory_bandwidth: self.memory_bandwidth() }
    }

    /// What another room keeps as long as this device, made when it is first asked for.
    pub(crate) fn beside<T: Any + Send + Sync>(&self, make: impl FnOnce(&Self) -> Arc<T>) -> Arc<T> {
        let mut all = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all.entry(TypeId::of::<T>()).or_insert_with(|| make(self));
        Arc::clone(kept).downcast::<T>().unwrap_or_else(|_| unreachable!("it is kept under its type"))
    }

    /// A query begins: a scope of its own, which reports of who holds memory name by number. `query_ended` ends it.
    pub(crate) fn query_scope(&self) -> Scope {
        self.idle.begin();
        let number = self.queries.fetch_add(1, Ordering::Relaxed) + 1;
        self.device.scope().child(format!("query {number}"))
    }

    /// Promises the pool's bytes to the queries that share it.
    pub fn governor(&self) -> &MemoryGovernor {
        &self.governor
    }

    /// What can leave the device when its memory runs out.
    pub fn spiller(&self) -> &Spiller {
        &self.spiller
    }

    /// The compiled kernels.
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// The pinned host memory that copies go through.
    pub fn pinned(&self) -> &PinnedPool {
        &self.pinned
    }

    /// Where the pool's memory comes from.
    pub fn memory_resource(&self) -> Strategy {
        self.strategy
    }

    /// Writes what the device was opened with into a session's options.
    pub(crate) fn tell_options(&self, options: &mut MillpondOptions) {
        options.memory_resource = self.strategy;
        (options.device_timeout, options.idle_trim) = (self.device_timeout, self.idle_trim);
        options.kernel_cache.clone_from(&self.kernel_cache);
    }

    /// Where assembled kernels are kept for later processes, and what that has spared this one.
    pub fn kernel_cache(&self) -> Option<&Arc<KernelCache>> {
        self.device.kernel_cache()
    }

    /// What gives memory back while no query runs. For tests that move its clock.
    pub fn idle(&self) -> &IdleTrim {
        &self.idle
    }

    /// Writes what `millpond.memory_log` has so far.
    ///
    /// # Errors
    /// [`EngineError::File`], once, for what could not be written.
    pub fn flush_memory_log(&self) -> Result<(), EngineError> {
        match &self.log {
            Some(log) => log.flush().map_err(|error| log_error(&self.log_path, &error)),
            None => Ok(()),
        }
    }

    /// A query has ended, however it ended.
    pub(crate) fn query_ended(&self) {
        if let Err(error) = self.pool.end_of_query()
            && !is_leaving()
        {
            tracing::warn!(%error, "memory was not given back at the end of a query");
        }
        if self.device.is_lost() {
            // What was kept beside it is of no use any more.
            let kept = std::mem::take(&mut *self.beside.lock().unwrap_or_else(PoisonError::into_inner));
            drop(kept);
        }
        self.idle.end();
    }

    /// True on the simulated device.
    pub fn is_simulated(&self) -> bool {
        self.sim.is_some()
    }

    /// What the simulated device's checks found since the last call; always empty on a real device.
    pub fn take_findings(&self) -> Vec<String> {
        let findings = self.sim.as_ref().map(|sim| sim.take_findings()).unwrap_or_default();
        findings.iter().map(|finding| finding.to_string()).collect()
    }

    /// What the cache of its pipelines has done so far.
    pub fn pipeline_statistics(&self) -> CacheStatistics {
        self.pipelines.statistics()
    }

    /// Kernels that the driver assembles now.
    pub fn kernels_assembling(&self) -> usize {
        self.pipelines.assembling()
    }

    /// How many pipelines it keeps.
    pub fn pipelines_kept(&self) -> usize {
        self.pipelines.kept()
    }

    /// Where the aggregates among the pipelines compiled so far keep their groups, in no order.
    pub fn regimes(&self) -> Vec<Regime> {
        self.pipelines.regimes()
    }

    /// The simulated driver, for tests that inject trouble.
    pub fn simulated(&self) -> Option<&Arc<SimDriver>> {
        self.sim.as_ref()
    }
}

/// Most bytes of assembled kernels on disk.
const KERNEL_CACHE_BYTES: ByteSize = ByteSize::mib(256);

/// The folder in which assembled kernels are kept for later processes where no other is chosen: below the user's cache folder.
pub fn usual_kernel_cache() -> Option<PathBuf> {
    let of_user = |name: &str, below: &str| {
        let folder = PathBuf::from(std::env::var_os(name)?).join(below);
        folder.is_absolute().then_some(folder)
    };
    of_user("XDG_CACHE_HOME", "millpond/kernels").or_else(|| of_user("HOME", ".cache/millpond/kernels"))
}

/// Where assembled kernels are kept. A folder that the user names must open; without the usual one there is a warning.
fn kernel_cache(options: &MillpondOptions) -> Result<Option<Arc<KernelCache>>, EngineError> {
    match options.kernel_cache.as_str() {
        "off" => Ok(None),
        "auto" if options.device == DeviceChoice::Sim => Ok(None),
        "auto" => {
            let opened = usual_kernel_cache().map(|folder| KernelCache::open(&folder, KERNEL_CACHE_BYTES));
            match opened {
                Some(Err(error)) => {
                    tracing::warn!(
                        "assembled kernels are not kept: {error}; millpond.kernel_cache takes another folder, or off"
                    );
                    Ok(None)
                }
                opened => Ok(opened.and_then(Result::ok).map(Arc::new)),
            }
        }
        path => {
            let refused = |error: std::io::Error| EngineError::File {
                option: "millpond.kernel_cache",
                path: path.to_string(),
                reason: error.to_string(),
            };
            Ok(Some(Arc::new(KernelCache::open(Path::new(path), KERNEL_CACHE_BYTES).map_err(refused)?)))
        }
    }
}

fn log_error(path: &str, error: &std::io::Error) -> EngineError {
    if error.kind() == std::io::ErrorKind::AlreadyExists {
        return EngineError::OptionValue {
            name: "millpond.memory_log".to_string(),
            value: path.to_string(),
            expected: format!("a new or empty file, or the log of an earlier run: {error}"),
        };
    }
    EngineError::File { option: "millpond.memory_log", path: path.to_string(), reason: error.to_string() }
}

/// The CUDA driver, or why there is none.
fn cuda() -> Result<Arc<dyn Driver>, MemoryError> {
    Ok(millpond_memory::driver::CudaDriver::open()?)
}

/// Spilled bytes may take as much pinned memory as copies; a little of it is there from the beginning, for a device that
/// is out of memory is no time to ask the system for some.
fn spill_options(options: &MillpondOptions) -> SpillOptions {
    let defaults = SpillOptions::default();
    let least = defaults.pinned_reserve.max(defaults.page);
    let defaults = SpillOptions { pinned_limit: PinnedPool::default_max_bytes().max(least), ..defaults };
    match options.pinned_bytes {
        0 => defaults,
        bytes => SpillOptions { pinned_limit: ByteSize::bytes(bytes as u64), ..defaults },
    }
}

fn sim_options(options: &MillpondOptions) -> SimOptions {
    let defaults = SimOptions::default();
    let lasts = if options.debug_sim_fail_until_free { FailureLasts::UntilFree } else { FailureLasts::Once };
    let seed = match options.debug_sim_seed {
        0 => test_seed(),
        seed => Some(seed as u64),
    };
    SimOptions {
        seed: seed.unwrap_or(0),
        shuffle_blocks: seed.is_some(),
        shape: options.debug_sim_shape,
        memory_bytes: match options.debug_sim_memory_bytes {
            0 => defaults.memory_bytes,
            bytes => bytes as u64,
        },
        fail_calls: [
            FailCall::new(CallKind::Allocate, options.debug_sim_fail_allocation as u64, lasts),
            FailCall::new(CallKind::AllocatePinned, options.debug_sim_fail_pinned as u64, FailureLasts::Forever),
            FailCall::with_code(CallKind::Launch, options.debug_sim_lose_at_launch as u64, DriverCode::LAUNCH_FAILED),
        ]
        .into_iter()
        .filter(|fail| fail.nth > 0)
        .collect(),
        hang_at_launch: (options.debug_sim_hang_at_launch > 0).then_some(options.debug_sim_hang_at_launch as u64),
        ..defaults
    }
}
