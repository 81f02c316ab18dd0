//! The device of a session: detection, opening, or the reason why there is none.
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
pub(crate) mod workers;

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
use crate::device::workers::off_workers;
use crate::error::EngineError;
use crate::options::{DeviceChoice, DeviceTimeout, MillpondOptions};
use crate::profile::DeviceFacts;

/// One device with its pools, shared by the queries that run on it.
pub struct Engine {
    /// Work that runs in the background of a new session. Dropped first: it uses the fields below.
    start_up: OnceLock<StartUp>,
    /// Time that opening the device took.
    opening: Duration,
    pub(crate) device: Device,
    pub(crate) pool: MemoryPool,
    pub(crate) pinned: PinnedPool,
    pub(crate) governor: MemoryGovernor,
    pub(crate) spiller: Spiller,
    pub(crate) streams: StreamPool,
    pub(crate) pipelines: Arc<PipelineCache>,
    pub(crate) images: Arc<Images>,
    /// Hints from earlier runs of plans.
    pub(crate) learnt: Learnt,
    /// Memory bandwidth in bytes per second; measured on first use.
    bandwidth: OnceLock<Option<f64>>,
    /// Per-device state of other modules, keyed by type.
    beside: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    /// Number of queries started.
    queries: AtomicU64,
    sim: Option<Arc<SimDriver>>,
    pub(crate) null_device: NullDevice,
    name: String,
    strategy: Strategy,
    device_timeout: DeviceTimeout,
    idle_trim: u32,
    kernel_cache: String,
    /// Releases memory while no query runs.
    idle: IdleTrim,
    log: Option<Arc<MemoryLog>>,
    log_path: String,
    /// ID of the process that opened the device.
    process: u32,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Result of opening a device.
#[derive(Debug, Clone, Default)]
pub struct Opened {
    /// The engine; `None` if queries run on the CPU.
    pub engine: Option<Arc<Engine>>,
    /// Why the automatic choice found no device.
    pub note: Option<String>,
}

impl Engine {
    /// Opens the device that `options.device` names.
    ///
    /// # Errors
    /// [`EngineError::DeviceMissing`] if a device was requested by name and is absent; [`EngineError::File`] if the log
    /// of `options.memory_log` or the folder of `options.kernel_cache` cannot be created; [`EngineError::OptionValue`]
    /// if the log would overwrite a file that is not a log.
    pub fn open(options: &MillpondOptions) -> Result<Opened, EngineError> {
        Self::open_with(options, system_clock())
    }

    /// Like `open`, with another clock for time limits. For tests.
    ///
    /// # Errors
    /// Like [`open`](Self::open).
    pub fn open_with(options: &MillpondOptions, clock: Arc<dyn Clock>) -> Result<Opened, EngineError> {
        let began = Instant::now();
        let driver = match options.device {
            DeviceChoice::Cuda(_) | DeviceChoice::Auto => Some(cuda()),
            DeviceChoice::Sim | DeviceChoice::Cpu => None,
        };
        let kernels = match (options.device, &driver) {
            // Without a device, no folder is created.
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
            // The device is new and has no other kernel cache.
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

    /// False in a process that was forked after the device was opened: it has no engine threads, and the driver refuses
    /// calls.
    pub(crate) fn is_of_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// # Errors
    /// [`EngineError::Forked`] in a process that was forked after the device was opened.
    pub fn check_process(&self) -> Result<(), EngineError> {
        match self.is_of_process() {
            true => Ok(()),
            false => Err(EngineError::Forked { device: self.name.clone(), opened_by: self.process }),
        }
    }

    /// Time that opening the device, its context and its pools took; without the work in the background of the session.
    pub fn opening(&self) -> Duration {
        self.opening
    }

    /// Starts, once, a background thread that prepares what a first query would otherwise wait for.
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

    /// Used bytes of the pool: those of queries and stored columns, without temporary bytes of the start-up thread.
    pub(crate) fn used_bytes(&self) -> u64 {
        let used = || self.pool.used_bytes().as_u64();
        self.start_up.get().map_or_else(used, |start_up| start_up.without(used))
    }

    /// The device's name, as reported by the driver.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device itself: limits, memory, counters.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The pool of all device buffers.
    pub fn pool(&self) -> &MemoryPool {
        &self.pool
    }

    /// Memory bandwidth of the device in bytes per second, measured by a short copy on the first call. `None` on the
    /// simulated device, and if the first call found no memory for the copy.
    pub fn memory_bandwidth(&self) -> Option<f64> {
        *self.bandwidth.get_or_init(|| memory_bandwidth(&self.device, &self.pool).ok().flatten())
    }

    /// Bandwidth of the link from pinned memory to the device in bytes per second, measured by a few copies. `None` on
    /// the simulated device, and if there is no memory for the copies.
    pub fn link_bandwidth(&self) -> Option<f64> {
        link_bandwidth(&self.device, &self.pool, &self.pinned).ok().flatten()
    }

    /// Device facts for profiles.
    pub(crate) fn facts(&self) -> DeviceFacts {
        DeviceFacts { name: self.name.clone(), memory_bandwidth: self.memory_bandwidth() }
    }

    /// Per-device state of another module, created by `make` on first use.
    pub(crate) fn beside<T: Any + Send + Sync>(&self, make: impl FnOnce(&Self) -> Arc<T>) -> Arc<T> {
        let mut all = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all.entry(TypeId::of::<T>()).or_insert_with(|| make(self));
        Arc::clone(kept).downcast::<T>().unwrap_or_else(|_| unreachable!("it is kept under its type"))
    }

    /// Begins a query: returns its own scope, which memory reports name by number. `query_ended` ends it.
    pub(crate) fn query_scope(&self) -> Scope {
        self.idle.begin();
        let number = self.queries.fetch_add(1, Ordering::Relaxed) + 1;
        self.device.scope().child(format!("query {number}"))
    }

    /// The governor that shares the pool's bytes among queries.
    pub fn governor(&self) -> &MemoryGovernor {
        &self.governor
    }

    /// The spiller: moves data off the device when its memory runs out.
    pub fn spiller(&self) -> &Spiller {
        &self.spiller
    }

    /// The compiled kernels.
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// Pinned host memory for copies.
    pub fn pinned(&self) -> &PinnedPool {
        &self.pinned
    }

    /// Allocation strategy of the pool.
    pub fn memory_resource(&self) -> Strategy {
        self.strategy
    }

    /// Writes the settings of the opened device into a session's options.
    pub(crate) fn tell_options(&self, options: &mut MillpondOptions) {
        options.memory_resource = self.strategy;
        (options.device_timeout, options.idle_trim) = (self.device_timeout, self.idle_trim);
        options.kernel_cache.clone_from(&self.kernel_cache);
    }

    /// On-disk cache of assembled kernels for later processes, with statistics of this process.
    pub fn kernel_cache(&self) -> Option<&Arc<KernelCache>> {
        self.device.kernel_cache()
    }

    /// Releases memory while no query runs. For tests that move its clock.
    pub fn idle(&self) -> &IdleTrim {
        &self.idle
    }

    /// Writes pending entries of `millpond.memory_log`.
    ///
    /// # Errors
    /// [`EngineError::File`], once, for entries that could not be written.
    pub fn flush_memory_log(&self) -> Result<(), EngineError> {
        match &self.log {
            Some(log) => log.flush().map_err(|error| log_error(&self.log_path, &error)),
            None => Ok(()),
        }
    }

    /// Ends a query, successful or not.
    pub(crate) fn query_ended(&self) {
        if let Err(error) = self.pool.end_of_query()
            && !is_leaving()
        {
            tracing::warn!(%error, "memory was not given back at the end of a query");
        }
        if self.device.is_lost() {
            // State kept per device is of no use on a lost device.
            let kept = std::mem::take(&mut *self.beside.lock().unwrap_or_else(PoisonError::into_inner));
            drop(kept);
        }
        self.idle.end();
    }

    /// True on the simulated device.
    pub fn is_simulated(&self) -> bool {
        self.sim.is_some()
    }

    /// Findings of the simulated device's checks since the last call; always empty on a real device.
    pub fn take_findings(&self) -> Vec<String> {
        let findings = self.sim.as_ref().map(|sim| sim.take_findings()).unwrap_or_default();
        findings.iter().map(|finding| finding.to_string()).collect()
    }

    /// Statistics of the pipeline cache so far.
    pub fn pipeline_statistics(&self) -> CacheStatistics {
        self.pipelines.statistics()
    }

    /// Number of kernels that the driver is assembling now.
    pub fn kernels_assembling(&self) -> usize {
        self.pipelines.assembling()
    }

    /// Number of cached pipelines.
    pub fn pipelines_kept(&self) -> usize {
        self.pipelines.kept()
    }

    /// Group storage of the aggregates among the pipelines compiled so far, unordered.
    pub fn regimes(&self) -> Vec<Regime> {
        self.pipelines.regimes()
    }

    /// The simulated driver, for tests that inject faults.
    pub fn simulated(&self) -> Option<&Arc<SimDriver>> {
        self.sim.as_ref()
    }
}

/// Maximum bytes of assembled kernels on disk.
const KERNEL_CACHE_BYTES: ByteSize = ByteSize::mib(256);

/// Default folder of assembled kernels for later processes: below the user's cache folder.
pub fn usual_kernel_cache() -> Option<PathBuf> {
    let of_user = |name: &str, below: &str| {
        let folder = PathBuf::from(std::env::var_os(name)?).join(below);
        folder.is_absolute().then_some(folder)
    };
    of_user("XDG_CACHE_HOME", "millpond/kernels").or_else(|| of_user("HOME", ".cache/millpond/kernels"))
}

/// Opens the kernel cache. A folder named by the user must open; if the default folder does not, there is only a
/// warning.
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

/// The CUDA driver, or the error that prevents its use.
fn cuda() -> Result<Arc<dyn Driver>, MemoryError> {
    Ok(millpond_memory::driver::CudaDriver::open()?)
}

/// Spilled bytes may take as much pinned memory as copies. A small part is reserved at the start: when the device is
/// out of memory, it is too late to request it from the system.
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
