//! One open GPU: its limits, its streams, and whether it still works.
//!
//!   Device::open(driver, 0) ──► Stream, MemoryPool, PinnedPool, Module      each keeps the device open
//!
//! Lost       the first error that poisons the context is kept; from then on every call and every `Pending` ends in
//!            `DeviceLost` without reaching the driver.
//! Hangs      a device on which nothing completes within the time limit of `DeviceOptions`, while a thread waits, is
//!            marked lost (`watch`).
//! Closing    with the last handle: waits for running work, then destroys streams and events. A lost or hanging device
//!            is left as it is: no call that waits for it is made.
//! Drop       cannot return errors: they are stored here (`take_errors`) and traced.
//! Exit       of the process: the driver refuses every call (`leave`), and drops leave their resources behind.

use std::fmt;
use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::buffer::DeviceView;
use crate::counters::{Counters, Scope};
use crate::driver::{
    DeviceAttribute, DeviceId, Driver, DriverCode, DriverError, EventFlags, EventHandle, HandleTypes, HostBlock,
    HostKind, HostSpan, MemoryInfo, PointerAttributes, StreamHandle, StreamPriority,
};
use crate::error::{MemoryError, Result};
use crate::event::Event;
use crate::event_pool::EventPool;
use crate::external::Externals;
use crate::ids::StreamId;
use crate::kernel_cache::KernelCache;
use crate::leave::Open;
use crate::log::MemoryLog;
use crate::module::Module;
use crate::order::{Position, VectorClock};
use crate::pending::Poller;
use crate::pressure::Siblings;
use crate::stream::StreamCell;
use crate::units::ByteSize;
use crate::watch::{self, DeviceOptions, Watchdog};

/// Minimum compute capability, which the PTX of this project targets.
pub const MIN_COMPUTE_CAPABILITY: (u32, u32) = (7, 0);

/// Bytes of progress words, one word per stream; streams beyond that have none.
const WORDS_BYTES: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

static NEXT_SERIAL: AtomicU32 = AtomicU32::new(0);

/// Fixed properties of a device.
#[derive(Clone, Debug)]
pub struct DeviceLimits {
    pub name: String,
    pub total_memory: ByteSize,
    pub compute_capability: (u32, u32),
    pub multiprocessors: u32,
    pub warp_size: u32,
    pub max_threads_per_block: u32,
    pub max_threads_per_multiprocessor: u32,
    pub registers_per_multiprocessor: u32,
    pub shared_bytes_per_block: u32,
    /// Maximum with `Kernel::allow_shared`.
    pub shared_bytes_per_block_optin: u32,
    pub shared_bytes_per_multiprocessor: u32,
    pub l2_bytes: u32,
    /// Memory clock times bus width times two, from the driver; 0 if unknown.
    pub memory_bytes_per_second: u64,
    pub memory_pools: bool,
    /// Handle types that pools of the device can be exported as.
    pub pool_handle_types: HandleTypes,
    /// Whether pools can be placed on the host. `None`: the driver is too old to report it, and only creating one
    /// shows.
    pub host_numa_pools: Option<bool>,
    /// NUMA node of the host nearest to the device.
    pub host_numa_node: Option<u32>,
    /// True if an address alone identifies the memory it belongs to.
    pub unified_addressing: bool,
    pub write_word: bool,
}

impl DeviceLimits {
    fn read(driver: &dyn Driver, id: DeviceId) -> Result<Self, DriverError> {
        let info = driver.device_info(id)?;
        let get = |attribute| driver.attribute(id, attribute).map(|value| value.max(0) as u32);
        // Newer devices and drivers may not report clocks: only a figure in a report is lost.
        let maybe = |attribute| u64::from(get(attribute).unwrap_or(0));
        // Older drivers refuse unknown attributes, so the version is checked first.
        let since = |version: u32, attribute| {
            if driver.version().0 >= version { driver.attribute(id, attribute).map(Some) } else { Ok(None) }
        };
        let handle_types = since(11030, DeviceAttribute::MemoryPoolSupportedHandleTypes)?;
        let clock = maybe(DeviceAttribute::MemoryClockRateKhz) * 1000;
        Ok(DeviceLimits {
            name: info.name,
            total_memory: ByteSize(info.total_bytes),
            compute_capability: (
                get(DeviceAttribute::ComputeCapabilityMajor)?,
                get(DeviceAttribute::ComputeCapabilityMinor)?,
            ),
            multiprocessors: get(DeviceAttribute::MultiprocessorCount)?,
            warp_size: get(DeviceAttribute::WarpSize)?,
            max_threads_per_block: get(DeviceAttribute::MaxThreadsPerBlock)?,
            max_threads_per_multiprocessor: get(DeviceAttribute::MaxThreadsPerMultiprocessor)?,
            registers_per_multiprocessor: get(DeviceAttribute::MaxRegistersPerMultiprocessor)?,
            shared_bytes_per_block: get(DeviceAttribute::MaxSharedMemoryPerBlock)?,
            shared_bytes_per_block_optin: get(DeviceAttribute::MaxSharedMemoryPerBlockOptin)?,
            shared_bytes_per_multiprocessor: get(DeviceAttribute::MaxSharedMemoryPerMultiprocessor)?,
            l2_bytes: get(DeviceAttribute::L2CacheBytes)?,
            memory_bytes_per_second: clock * 2 * maybe(DeviceAttribute::GlobalMemoryBusWidthBits) / 8,
            memory_pools: since(11020, DeviceAttribute::MemoryPoolsSupported)? == Some(1),
            pool_handle_types: HandleTypes(handle_types.unwrap_or(0).max(0) as u32),
            host_numa_pools: since(13000, DeviceAttribute::HostNumaMemoryPoolsSupported)?.map(|value| value == 1),
            host_numa_node: driver.attribute(id, DeviceAttribute::HostNumaId).ok().and_then(|n| u32::try_from(n).ok()),
            unified_addressing: get(DeviceAttribute::UnifiedAddressing).unwrap_or(0) == 1,
            write_word: get(DeviceAttribute::StreamMemoryOperations).unwrap_or(0) == 1,
        })
    }
}

pub(crate) struct DeviceInner {
    driver: Arc<dyn Driver>,
    id: DeviceId,
    serial: u32,
    limits: DeviceLimits,
    scope: Scope,
    lost: OnceLock<DriverError>,
    streams: RwLock<Vec<Arc<StreamCell>>>,
    externals: Externals,
    events: Arc<EventPool>,
    host: Mutex<VectorClock>,
    errors: Mutex<Vec<MemoryError>>,
    words: OnceLock<Option<Arc<HostBlock>>>,
    poller: Poller,
    log: OnceLock<Arc<MemoryLog>>,
    kernels: OnceLock<Arc<KernelCache>>,
    driver_calls: AtomicU64,
    siblings: Siblings,
    watchdog: Watchdog,
    /// Declared last: stays open until all other fields are dropped.
    _open: Open,
}

/// A device of a driver. Clones share it; it closes when the last clone is dropped.
#[derive(Clone)]
pub struct Device {
    inner: Arc<DeviceInner>,
}

impl Device {
    /// Opens device `ordinal` of `driver`, without a time limit on waits.
    ///
    /// # Errors
    /// [`MemoryError::NoSuchDevice`], [`MemoryError::TooOldDevice`], or an error of the driver.
    pub fn open(driver: Arc<dyn Driver>, ordinal: u32) -> Result<Self> {
        Self::open_with(driver, ordinal, DeviceOptions::default())
    }

    /// Opens device `ordinal` of `driver` with `options`.
    ///
    /// # Errors
    /// See [`Device::open`].
    pub fn open_with(driver: Arc<dyn Driver>, ordinal: u32, options: DeviceOptions) -> Result<Self> {
        let id = DeviceId(ordinal);
        let count = driver.device_count()?;
        if ordinal >= count {
            return Err(MemoryError::NoSuchDevice { device: id, count });
        }
        let limits = DeviceLimits::read(&*driver, id)?;
        if limits.compute_capability < MIN_COMPUTE_CAPABILITY {
            let DeviceLimits { name, compute_capability: capability, .. } = limits;
            return Err(MemoryError::TooOldDevice { device: id, name, capability });
        }
        driver.device_open(id)?;
        let inner = DeviceInner {
            id,
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
            limits,
            scope: Scope::root(id.to_string()),
            lost: OnceLock::new(),
            streams: RwLock::default(),
            externals: Externals::default(),
            events: Arc::default(),
            host: Mutex::default(),
            errors: Mutex::default(),
            words: OnceLock::new(),
            poller: Poller::new(driver.kind()),
            log: OnceLock::new(),
            kernels: OnceLock::new(),
            driver_calls: 0.into(),
            siblings: Siblings::default(),
            watchdog: Watchdog::new(options),
            _open: Open::new(driver.kind()),
            driver,
        };
        Ok(Device { inner: Arc::new(inner) })
    }

    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.inner.driver
    }

    pub fn id(&self) -> DeviceId {
        self.inner.id
    }

    pub fn limits(&self) -> &DeviceLimits {
        &self.inner.limits
    }

    pub fn memory_info(&self) -> Result<MemoryInfo> {
        self.alive()?;
        self.check(self.inner.driver.memory_info(self.inner.id))
    }

    /// Location and pool of the memory, as the driver reports them. Takes a view because that keeps the memory
    /// allocated: the driver defines no answer after a free.
    pub fn pointer_attributes(&self, view: &DeviceView) -> Result<PointerAttributes> {
        self.alive()?;
        self.check(self.inner.driver.pointer_attributes(view.address()))
    }

    /// Root scope of this device; each query opens a child of it.
    pub fn scope(&self) -> &Scope {
        &self.inner.scope
    }

    pub fn counters(&self) -> Counters {
        self.inner.scope.counters()
    }

    /// Logs uses, waits, events and synchronizations to `log` from now on. Allocations are logged by a
    /// `LoggingResourceAdaptor`; `MemoryPoolBuilder::log` does both.
    ///
    /// # Errors
    /// Returns `log` if the device already has another log.
    pub fn log_to(&self, log: &Arc<MemoryLog>) -> Result<(), Arc<MemoryLog>> {
        let kept = self.inner.log.get_or_init(|| Arc::clone(log));
        if Arc::ptr_eq(kept, log) { Ok(()) } else { Err(Arc::clone(log)) }
    }

    /// The log of the device.
    pub fn log(&self) -> Option<&Arc<MemoryLog>> {
        self.inner.log.get()
    }

    /// Number of fallible driver calls so far: allocations, copies, launches, events, waits and others.
    pub fn driver_calls(&self) -> u64 {
        let streams = self.inner.streams.read().unwrap_or_else(PoisonError::into_inner);
        let submitted: u64 = streams.iter().map(|cell| cell.calls()).sum();
        self.inner.driver_calls.load(Ordering::Relaxed) + submitted
    }

    /// Stores assembled kernels in `cache` from now on.
    ///
    /// # Errors
    /// Returns `cache` if the device already has another one.
    pub fn keep_kernels(&self, cache: &Arc<KernelCache>) -> Result<(), Arc<KernelCache>> {
        let kept = self.inner.kernels.get_or_init(|| Arc::clone(cache));
        if Arc::ptr_eq(kept, cache) { Ok(()) } else { Err(Arc::clone(cache)) }
    }

    /// The cache of assembled kernels.
    pub fn kernel_cache(&self) -> Option<&Arc<KernelCache>> {
        self.inner.kernels.get()
    }

    /// Loads PTX.
    pub fn load_module(&self, ptx: &str) -> Result<Module> {
        Module::load(self, ptx)
    }

    /// Loads PTX if its assembled code is on disk; `None` if it is not.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn load_kept_module(&self, ptx: &str) -> Result<Option<Module>> {
        Module::load_kept(self, ptx)
    }

    /// Blocks until all work on the device has finished. For tests and tools.
    pub fn synchronize(&self) -> Result<()> {
        self.alive()?;
        self.inner.scope.count(|c| &c.host_waits);
        let streams = self.streams();
        // A wait for the whole device would break an active capture.
        let capturing = |cell: &&Arc<StreamCell>| {
            cell.may_capture.load(Ordering::Relaxed) && self.may_submit(cell, "").is_err_and(|e| e.is_capturing())
        };
        if let Some(cell) = streams.iter().find(capturing) {
            return Err(MemoryError::Capturing { what: "a wait for the device", stream: cell.id });
        }
        let submitted: Vec<VectorClock> = streams.iter().map(|cell| cell.clock()).collect();
        if self.inner.watchdog.is_on() {
            self.wait_for_all(&streams)?;
        }
        self.check_wait(self.inner.driver.device_synchronize(self.inner.id))?;
        if let Some(log) = self.log() {
            log.synchronized_all();
        }
        submitted.iter().for_each(|clock| self.host_saw(clock));
        Ok(())
    }

    /// Waits for all work submitted to `streams`, within the time limit of waits.
    #[track_caller]
    fn wait_for_all(&self, streams: &[Arc<StreamCell>]) -> Result<()> {
        let site = Location::caller();
        for cell in streams {
            let position = cell.position();
            if position.seq() == 0 || self.host_is_after(position) {
                continue;
            }
            let Some(mark) = self.mark_behind(position, site, &self.inner.scope)? else { continue };
            let event = Event::new(self, &self.inner.scope, cell.id, mark);
            self.wait_until(|| event.query())?;
        }
        Ok(())
    }

    pub fn is_lost(&self) -> bool {
        self.inner.lost.get().is_some()
    }

    /// `Err` once the device is lost.
    pub fn alive(&self) -> Result<()> {
        match self.inner.lost.get() {
            None => Ok(()),
            Some(error) => Err(MemoryError::DeviceLost { device: self.inner.id, error: error.clone() }),
        }
    }

    /// Returns and clears the errors of drops, oldest first.
    pub fn take_errors(&self) -> Vec<MemoryError> {
        std::mem::take(&mut *self.inner.errors.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Stores an error that cannot be returned. Device loss is not stored: the device reports it itself, and memory
    /// that the drop would have freed is gone with the device, even if another thread noticed the loss after the drop
    /// began.
    pub(crate) fn report(&self, error: MemoryError) {
        if error.is_device_lost() {
            return;
        }
        tracing::warn!(%error, device = self.inner.id.0, "error in a drop");
        let mut errors = self.inner.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() < 64 {
            errors.push(error);
        }
    }

    pub(crate) fn check<T>(&self, result: Result<T, DriverError>) -> Result<T> {
        self.inner.driver_calls.fetch_add(1, Ordering::Relaxed);
        result.map_err(|error| self.judge(error, None, false))
    }

    /// Like `check`, for a call about a stream that finishes before it returns: only errors that end the context lose
    /// the device.
    pub(crate) fn check_about<T>(&self, stream: StreamId, result: Result<T, DriverError>) -> Result<T> {
        self.inner.driver_calls.fetch_add(1, Ordering::Relaxed);
        result.map_err(|error| self.judge(error, Some(stream), false))
    }

    /// Like `check`, for a call that waits for or queries the device: it also reports errors of earlier work.
    pub(crate) fn check_wait<T>(&self, result: Result<T, DriverError>) -> Result<T> {
        self.inner.driver_calls.fetch_add(1, Ordering::Relaxed);
        result.map_err(|error| self.judge(error, None, true))
    }

    /// Like `check`, for a call that submits work to a stream, waits for it or queries it.
    pub(crate) fn check_on<T>(&self, stream: StreamId, result: Result<T, DriverError>) -> Result<T> {
        self.inner.driver_calls.fetch_add(1, Ordering::Relaxed);
        self.check_counted_on(stream, result)
    }

    /// Like `check_on`, for a call that the stream has already counted.
    pub(crate) fn check_counted_on<T>(&self, stream: StreamId, result: Result<T, DriverError>) -> Result<T> {
        result.map_err(|error| self.judge(error, Some(stream), true))
    }

    /// Converts a failed call to an error. `of_work`: the error may belong to work submitted earlier.
    fn judge(&self, error: DriverError, stream: Option<StreamId>, of_work: bool) -> MemoryError {
        let lost = if of_work { error.code.loses_work() } else { error.code.is_sticky() };
        if lost { self.lose(error) } else { MemoryError::Driver { error, stream } }
    }

    /// Marks the device as lost, with this error unless an earlier one is stored.
    pub(crate) fn lose(&self, error: DriverError) -> MemoryError {
        let first = self.inner.lost.get_or_init(|| error);
        self.inner.poller.wake();
        MemoryError::DeviceLost { device: self.inner.id, error: first.clone() }
    }

    pub(crate) fn watchdog(&self) -> &Watchdog {
        &self.inner.watchdog
    }

    pub(crate) fn streams(&self) -> Vec<Arc<StreamCell>> {
        self.inner.streams.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The pools of this device.
    pub(crate) fn siblings(&self) -> &Siblings {
        &self.inner.siblings
    }

    pub(crate) fn poller(&self) -> &Poller {
        &self.inner.poller
    }

    /// Memory word for a stream's progress, if the device supports one. Without it, only polling events remains.
    #[track_caller]
    pub(crate) fn progress_word(&self, stream: StreamId) -> Option<HostSpan> {
        let site = Location::caller();
        let words = self.inner.words.get_or_init(|| {
            if !self.inner.limits.write_word {
                return None;
            }
            let block = self.inner.driver.host_alloc(self.inner.id, WORDS_BYTES, HostKind::Download, site);
            // The device works without the block, but this call may discover that the device is lost.
            let block = self.check(block).ok()?;
            block.claim_words().ok()?;
            Some(block)
        });
        HostSpan::new(words.as_ref()?, stream.index as usize * 4, 4).ok()
    }

    pub(crate) fn create_stream(&self, priority: StreamPriority) -> Result<Arc<StreamCell>> {
        self.alive()?;
        let handle: StreamHandle = self.check(self.inner.driver.stream_create(self.inner.id, priority))?;
        Ok(self.add_stream(|id| StreamCell::new(id, handle)))
    }

    /// Adds a stream; `make` receives its ID.
    pub(crate) fn add_stream(&self, make: impl FnOnce(StreamId) -> Arc<StreamCell>) -> Arc<StreamCell> {
        let mut streams = self.inner.streams.write().unwrap_or_else(PoisonError::into_inner);
        let cell = make(StreamId { device_serial: self.inner.serial, index: streams.len() as u32 });
        streams.push(Arc::clone(&cell));
        cell
    }

    /// Registered external streams.
    pub(crate) fn externals(&self) -> &Externals {
        &self.inner.externals
    }

    pub(crate) fn stream_cell(&self, id: StreamId) -> Result<Arc<StreamCell>> {
        if id.device_serial != self.inner.serial {
            return Err(MemoryError::ForeignDevice { what: "a position", stream: id });
        }
        let streams = self.inner.streams.read().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(&streams[id.index as usize]))
    }

    pub(crate) fn event_pool(&self) -> &Arc<EventPool> {
        &self.inner.events
    }

    pub(crate) fn take_event(&self) -> Result<EventHandle> {
        match self.inner.events.take() {
            Some(handle) => Ok(handle),
            None => self.check(self.inner.driver.event_create(self.inner.id, EventFlags::ORDER)),
        }
    }

    pub(crate) fn host_clock<T>(&self, look: impl FnOnce(&VectorClock) -> T) -> T {
        look(&self.inner.host.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// True if the host has seen everything up to `position` complete.
    pub(crate) fn host_is_after(&self, position: Position) -> bool {
        position.stream.device_serial == self.inner.serial
            && self.host_clock(|host| host.covers(position.stream.index, position.seq))
    }

    pub(crate) fn host_saw(&self, clock: &VectorClock) {
        self.inner.host.lock().unwrap_or_else(PoisonError::into_inner).join(clock);
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\"", self.inner.id, self.inner.limits.name)
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        self.poller.stop();
        if self.lost.get().is_some() {
            return;
        }
        let driver = &*self.driver;
        let warn = |error: DriverError| {
            // Expected when the process exits.
            if error.code != DriverCode::DEINITIALIZED {
                tracing::warn!(%error, "device not closed cleanly");
            }
        };
        let streams = std::mem::take(self.streams.get_mut().unwrap_or_else(PoisonError::into_inner));
        let finished = match self.watchdog.is_on() {
            true => finish(driver, &streams, &self.watchdog),
            false => driver.device_synchronize(self.id),
        };
        if let Err(error) = finished {
            return warn(error);
        }
        for cell in &streams {
            cell.close();
            // External streams are not destroyed.
            if cell.external.is_none() {
                driver.stream_destroy(cell.handle).unwrap_or_else(warn);
            }
        }
        for handle in self.events.drain() {
            driver.event_destroy(handle).unwrap_or_else(warn);
        }
        if let Some(Some(words)) = self.words.take() {
            driver.host_free(&words, Location::caller()).unwrap_or_else(warn);
        }
        driver.device_close(self.id).unwrap_or_else(warn);
    }
}

/// Waits until all streams are empty, within the time limit of waits. No call here blocks inside the driver.
fn finish(driver: &dyn Driver, streams: &[Arc<StreamCell>], watchdog: &Watchdog) -> Result<(), DriverError> {
    let began = watchdog.begin();
    // External streams are waited for by their owners.
    for cell in streams.iter().filter(|cell| cell.external.is_none()) {
        let mut looks = 0u32;
        while !driver.stream_query(cell.handle)? {
            if let Some(limit) = watchdog.exceeded(began) {
                return Err(watch::hangs(limit));
            }
            watch::rest(looks);
            looks = looks.saturating_add(1);
        }
        watchdog.progressed();
    }
    Ok(())
}
