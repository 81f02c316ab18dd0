//! Allocation from a pool, and the steps taken when memory runs out.
//!
//!   limit? ─► resource.allocate ─► counted under the stream's scope
//!     │ no          │ no
//!     └──────┬──────┘        after each step, the allocation is tried again
//!            1  retire      frees that the host saw reached; caches of the device's other pools (`reclaim`)
//!            2  wait        for the oldest frees that are not reached, then for the stream itself
//!            3  trim        memory kept for graphs, and all pools of the device    (only if the device is short)
//!            4  ask         callbacks that can spill: `on_out_of_memory`, while they free something
//!            5  fail        OutOfMemory, with a snapshot: holders, cause, and the option to change;
//!                           if the device was short, the limit is lowered to what it has, until no memory is used
//!
//! Limit      a request beyond it fails at once; nothing is spilled for a request that can never fit.
//! Waits      on the host, from step 2 on. Never for another allocation: only for submitted work.
//! Re-entry   an allocation inside a callback takes steps 1 to 3, and does not call the pool's callbacks.
//! Locks      none is held in any step.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::adaptor::Count;
use crate::driver::{DriverCode, DriverKind, Site};
use crate::error::{MemoryError, OomCause, OomSnapshot, Result};
use crate::graph::trim_graph_memory;
use crate::ids::StreamId;
use crate::ledger::Ledger;
use crate::pool::{MemoryPool, PoolInner};
use crate::recorder::{Call, WorkKind};
use crate::resource::{RawAllocation, ResourceStatistics};
use crate::stream::Stream;
use crate::units::ByteSize;

/// Maximum callback calls per allocation: enough for callbacks that free little at a time, and a bound for those that
/// free and reallocate.
const MAX_ATTEMPTS: u32 = 1000;

/// Describes an allocation that found no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OomContext {
    pub requested: ByteSize,
    /// Minimum bytes to free; the whole request if only the device knows.
    pub missing: ByteSize,
    pub stream: StreamId,
    /// Number of the attempt, from 0, counted over all callbacks of one allocation.
    pub attempt: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OomAction {
    /// Memory was freed, or its free is submitted: try again. Counts as an empty promise if nothing was freed.
    Retry,
    /// Nothing to free: continue with the next callback.
    Fail,
}

type Callback = Arc<dyn Fn(OomContext) -> OomAction + Send + Sync>;

/// Number of times each step was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PressureStatistics {
    /// Attempts after the first, over all allocations.
    pub num_alloc_retries: u64,
    /// Allocations that finally failed.
    pub num_ooms: u64,
    /// Step 1: bytes whose free had been reached, and bytes that other pools freed.
    pub retired_bytes: u64,
    pub reclaimed_bytes: u64,
    /// Step 2: waits for frees of other allocations, and for the allocating stream.
    pub num_free_waits: u64,
    pub num_stream_syncs: u64,
    /// Step 3: trims, and bytes freed to the device.
    pub num_trims: u64,
    pub trimmed_bytes: u64,
    /// Step 4: callbacks, and those that freed nothing although they reported success.
    pub num_callbacks: u64,
    pub num_empty_promises: u64,
}

/// Bytes of a pool: current, maximum since `reset_high`, and total.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolBytes {
    /// Bytes handed out, rounded up to 256 per allocation.
    pub allocated_bytes: Count,
    /// Bytes freed, but not known to be reached by the device.
    pub pending_free_bytes: Count,
    /// Bytes taken from the device. The resource keeps no total of these.
    pub reserved_bytes: Count,
}

macro_rules! cells {
    ($($name:ident)*) => {
        #[derive(Default)]
        struct Cells { $($name: AtomicU64,)* }
        impl Cells {
            fn snapshot(&self) -> PressureStatistics {
                PressureStatistics { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

cells! {
    num_alloc_retries num_ooms retired_bytes reclaimed_bytes num_free_waits num_stream_syncs num_trims trimmed_bytes
    num_callbacks num_empty_promises
}

#[derive(Default)]
struct Callbacks {
    last_id: u64,
    list: Vec<(u64, Callback)>,
}

/// Counts and callbacks of a pool.
#[derive(Default)]
pub(crate) struct PressureState {
    pub(crate) ledger: Ledger,
    cells: Cells,
    callbacks: Mutex<Callbacks>,
}

impl PressureState {
    fn callbacks(&self) -> MutexGuard<'_, Callbacks> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pools of a device, which free memory for each other.
#[derive(Default)]
pub(crate) struct Siblings {
    pools: Mutex<Vec<Weak<PoolInner>>>,
}

impl Siblings {
    pub(crate) fn join(&self, pool: &Arc<PoolInner>) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(pool));
    }

    fn all(&self) -> Vec<Arc<PoolInner>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }
}

thread_local! {
    /// Pools whose callbacks run on this thread.
    static ASKING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Marks that this thread runs a pool's callbacks, until it is dropped.
struct Asking(usize);

impl Asking {
    fn enter(pool: &MemoryPool) -> Option<Asking> {
        let id = Arc::as_ptr(&pool.inner) as usize;
        ASKING.with_borrow_mut(|asking| {
            let outside = !asking.contains(&id);
            if outside {
                asking.push(id);
            }
            outside.then(|| Asking(id))
        })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        ASKING.with_borrow_mut(|asking| asking.retain(|id| *id != self.0));
    }
}

/// Registration of a callback; dropping it unregisters the callback.
#[must_use = "a callback is asked for as long as this lives"]
pub struct OomCallback {
    pool: Weak<PoolInner>,
    id: u64,
}

impl Drop for OomCallback {
    fn drop(&mut self) {
        let Some(pool) = self.pool.upgrade() else { return };
        let mut callbacks = pool.pressure.callbacks();
        let index = callbacks.list.iter().position(|(id, _)| *id == self.id);
        let gone = index.map(|index| callbacks.list.remove(index));
        drop(callbacks);
        drop(gone);
    }
}

/// Result of one attempt.
enum Try {
    Got(RawAllocation),
    /// The limit is reached.
    Limit,
    /// The resource has no memory.
    Device,
}

/// Ignores refusals because of a capture: during a capture no thread waits for the device, so the step has no effect.
fn unless_captured(done: Result<()>) -> Result<()> {
    match done {
        Err(MemoryError::Capturing { .. }) => Ok(()),
        done => done,
    }
}

/// One allocation that did not succeed at first.
struct Ladder<'a> {
    pool: &'a MemoryPool,
    len: NonZeroUsize,
    stream: &'a Stream,
    site: Site,
    asked: u32,
}

impl Ladder<'_> {
    fn bytes(&self) -> u64 {
        self.len.get() as u64
    }

    fn state(&self) -> &PressureState {
        &self.pool.inner.pressure
    }

    fn count(&self, cell: impl Fn(&Cells) -> &AtomicU64, by: u64) {
        cell(&self.state().cells).fetch_add(by, Relaxed);
    }

    /// Allocates from free bytes or from pending ones that the stream is ordered after.
    fn attempt(&self) -> Result<Try> {
        let (ledger, limit) = (&self.state().ledger, self.pool.limit().as_u64());
        let after = |position| self.stream.is_after(position);
        let Some(taken) = ledger.take_after(self.bytes(), limit, self.stream.id(), after) else {
            return Ok(Try::Limit);
        };
        match self.pool.inner.resource.allocate(self.len, self.stream, self.site) {
            Ok(raw) => Ok(Try::Got(raw)),
            Err(error) => {
                self.state().ledger.undo_taken(taken);
                if error.is_out_of_memory() { Ok(Try::Device) } else { Err(error) }
            }
        }
    }

    fn retry(&self) -> Result<Try> {
        self.count(|c| &c.num_alloc_retries, 1);
        self.stream.scope().count(|c| &c.num_alloc_retries);
        self.attempt()
    }

    /// Step 1: does not wait. True if it changed anything.
    fn retire(&self, device_is_short: bool) -> Result<bool> {
        let retired = self.state().ledger.retire(self.pool.device());
        self.count(|c| &c.retired_bytes, retired);
        let mut reclaimed = ByteSize::ZERO;
        if device_is_short {
            let wanted = ByteSize(self.bytes());
            for sibling in self.pool.device().siblings().all() {
                sibling.pressure.ledger.retire(self.pool.device());
                if reclaimed < wanted && !Arc::ptr_eq(&sibling, &self.pool.inner) {
                    reclaimed += sibling.resource.reclaim(wanted.saturating_sub(reclaimed))?;
                }
            }
            self.count(|c| &c.reclaimed_bytes, reclaimed.as_u64());
        }
        Ok(retired > 0 || reclaimed > ByteSize::ZERO)
    }

    /// Step 2: waits for the oldest free that is not reached. False if there is none, or if waiting cannot help.
    fn wait_for_oldest(&mut self, device_is_short: bool) -> Result<bool> {
        let ledger = &self.state().ledger;
        let hopeless = ledger.used() + ByteSize(self.bytes()) > self.pool.limit();
        if !device_is_short && hopeless {
            return Ok(false);
        }
        let Some(position) = ledger.oldest() else { return Ok(false) };
        let device = self.pool.device();
        let stream = Stream::of(device, device.stream_cell(position.stream)?, self.stream.scope().clone());
        match stream.event_behind(position).and_then(|event| event.synchronize()) {
            Err(MemoryError::Capturing { .. }) => return Ok(false),
            waited => waited?,
        }
        self.count(|c| &c.num_free_waits, 1);
        let retired = self.state().ledger.retire(device);
        self.count(|c| &c.retired_bytes, retired);
        // The awaited free is reached; continuing without having seen it would loop forever.
        Ok(retired > 0)
    }

    fn synchronize(&self) -> Result<()> {
        self.count(|c| &c.num_stream_syncs, 1);
        self.stream.scope().count(|c| &c.num_stream_syncs);
        self.stream.synchronize()?;
        let retired = self.state().ledger.retire(self.pool.device());
        self.count(|c| &c.retired_bytes, retired);
        Ok(())
    }

    /// Step 3: frees all unused memory to the device.
    fn trim(&self) -> Result<()> {
        let device = self.pool.device();
        device.synchronize()?;
        let before = device.memory_info()?.free_bytes;
        match trim_graph_memory(device) {
            // A driver without graph memory has none to free.
            Err(error) if error.driver_code() != Some(DriverCode::NOT_SUPPORTED) => return Err(error),
            _ => {}
        }
        for sibling in device.siblings().all() {
            sibling.pressure.ledger.retire(device);
            sibling.resource.trim(ByteSize::ZERO)?;
            self.count(|c| &c.num_trims, 1);
        }
        self.count(|c| &c.trimmed_bytes, device.memory_info()?.free_bytes.saturating_sub(before));
        Ok(())
    }

    /// Bytes freed on the device by all pools, as far as visible; grows only when something is freed.
    fn freed(&self) -> (u64, u64) {
        let device = self.pool.device();
        let freed = device.siblings().all().iter().map(|pool| pool.pressure.ledger.freed_total()).sum();
        (freed, device.memory_info().map_or(0, |info| info.free_bytes))
    }

    /// Step 4: true if a callback freed something.
    fn ask(&mut self) -> bool {
        let Some(_asking) = Asking::enter(self.pool) else { return false };
        let callbacks: Vec<Callback> =
            self.state().callbacks().list.iter().map(|(_, callback)| Arc::clone(callback)).collect();
        for callback in callbacks {
            if self.asked >= MAX_ATTEMPTS {
                return false;
            }
            let (requested, stream) = (ByteSize(self.bytes()), self.stream.id());
            let context = OomContext { requested, missing: self.missing(), stream, attempt: self.asked };
            self.asked += 1;
            self.count(|c| &c.num_callbacks, 1);
            let before = self.freed();
            if callback(context) == OomAction::Retry {
                let after = self.freed();
                if after.0 > before.0 || after.1 > before.1 {
                    return true;
                }
                self.count(|c| &c.num_empty_promises, 1);
            }
        }
        false
    }

    fn missing(&self) -> ByteSize {
        let held = self.state().ledger.used().as_u64();
        let over = held.saturating_add(self.bytes()).saturating_sub(self.pool.limit().as_u64());
        ByteSize(if over > 0 { over } else { self.bytes() })
    }

    fn climb(&mut self, first: Try) -> Result<RawAllocation> {
        let mut last = match first {
            // Pending bytes that the stream is ordered after can be reused: no shortage yet.
            Try::Limit => self.attempt()?,
            other => other,
        };
        if self.bytes() > self.pool.limit().as_u64() {
            return Err(self.fail(&last));
        }
        loop {
            let short = |last: &Try| matches!(last, Try::Device);
            let found = |last: &Try| matches!(last, Try::Got(_));
            if !found(&last) && (self.retire(short(&last))? || self.asked > 0) {
                last = self.retry()?;
            }
            while !found(&last) && self.wait_for_oldest(short(&last))? {
                last = self.retry()?;
            }
            if short(&last) {
                unless_captured(self.synchronize())?;
                last = self.retry()?;
            }
            if short(&last) {
                unless_captured(self.trim())?;
                last = self.retry()?;
            }
            if let Try::Got(raw) = last {
                return Ok(raw);
            }
            if !self.ask() {
                return Err(self.fail(&last));
            }
        }
    }

    /// Step 5: builds the error.
    fn fail(&self, last: &Try) -> MemoryError {
        self.count(|c| &c.num_ooms, 1);
        self.stream.scope().count(|c| &c.num_ooms);
        let device_is_short = matches!(last, Try::Device);
        let error = self.pool.out_of_memory(ByteSize(self.bytes()), device_is_short);
        if let (true, MemoryError::OutOfMemory { snapshot, .. }) = (device_is_short, &error)
            && snapshot.device_total > ByteSize::ZERO
        {
            self.pool.lower_limit(snapshot.device_free);
        }
        error
    }
}

impl MemoryPool {
    /// Registers `callback` to be called before an allocation fails, until the returned value is dropped. Callbacks run
    /// in the order of registration, on the allocating thread, without any lock of this crate; they free memory, and
    /// must not wait for a query.
    pub fn on_out_of_memory(&self, callback: impl Fn(OomContext) -> OomAction + Send + Sync + 'static) -> OomCallback {
        let mut callbacks = self.inner.pressure.callbacks();
        callbacks.last_id += 1;
        let id = callbacks.last_id;
        callbacks.list.push((id, Arc::new(callback)));
        OomCallback { pool: Arc::downgrade(&self.inner), id }
    }

    /// Counts of memory shortages and of the steps taken.
    pub fn pressure_statistics(&self) -> PressureStatistics {
        self.inner.pressure.cells.snapshot()
    }

    /// Bytes handed out, pending, and taken from the device.
    pub fn bytes(&self) -> Result<PoolBytes> {
        let ledger = &self.inner.pressure.ledger;
        ledger.retire(self.device());
        let ResourceStatistics { reserved, reserved_peak, .. } = self.statistics()?;
        let count = |current: ByteSize, peak: ByteSize, total| Count { current: current.0, peak: peak.0, total };
        Ok(PoolBytes {
            allocated_bytes: count(ledger.used(), ledger.used_peak(), ledger.allocated_total()),
            pending_free_bytes: count(ledger.pending(), ledger.pending_peak(), ledger.freed_total()),
            reserved_bytes: count(reserved, reserved_peak, 0),
        })
    }

    /// Bytes freed, but not known to be reached by the device.
    pub fn pending_free_bytes(&self) -> ByteSize {
        self.inner.pressure.ledger.retire(self.device());
        self.inner.pressure.ledger.pending()
    }

    /// Allocates `len` bytes in the order of `stream`, counted under its scope.
    pub(crate) fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        let call = Call::begin();
        let raw = self.timed(stream, || self.allocate_untimed(len, stream, site))?;
        if let Some(call) = call {
            call.returned(WorkKind::Allocate, stream.id().index, len.get() as u64);
        }
        Ok(raw)
    }

    /// Counts the duration of `call` as time in the allocator.
    fn timed<T>(&self, stream: &Stream, call: impl FnOnce() -> T) -> T {
        if self.device().driver().kind() == DriverKind::Sim {
            return call();
        }
        let started = Instant::now();
        let answer = call();
        let ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        stream.scope().add(|c| &c.allocator_ns, ns);
        answer
    }

    fn allocate_untimed(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        if stream.device() != self.device() {
            return Err(MemoryError::ForeignDevice { what: "the memory pool", stream: stream.id() });
        }
        stream.usable("an allocation")?;
        self.finish_frees();
        let bytes = len.get() as u64;
        let ledger = &self.inner.pressure.ledger;
        let first = if ledger.take(bytes, self.limit().as_u64()) {
            match self.inner.resource.allocate(len, stream, site) {
                Ok(raw) => Try::Got(raw),
                Err(error) => {
                    ledger.undo(bytes);
                    if !error.is_out_of_memory() {
                        return Err(error);
                    }
                    Try::Device
                }
            }
        } else {
            Try::Limit
        };
        let raw = match first {
            Try::Got(raw) => raw,
            first => Ladder { pool: self, len, stream, site, asked: 0 }.climb(first)?,
        };
        ledger.allocated(bytes);
        stream.scope().allocated(bytes);
        Ok(raw)
    }

    fn out_of_memory(&self, wanted: ByteSize, device_is_short: bool) -> MemoryError {
        let ledger = &self.inner.pressure.ledger;
        let limit = self.limit();
        let mut free = limit.saturating_sub(ledger.held());
        let mut snapshot = OomSnapshot {
            cause: OomCause::Limit,
            used: ledger.used(),
            pending_free: ledger.pending(),
            reserved: ByteSize::ZERO,
            reusable: ByteSize::ZERO,
            device_free: ByteSize::ZERO,
            device_total: ByteSize::ZERO,
            holders: self.device().scope().largest_holders(3),
        };
        if let Ok(statistics) = self.statistics() {
            snapshot.reserved = statistics.reserved;
            snapshot.reusable = statistics.reserved.saturating_sub(statistics.used);
        }
        if let Ok(info) = self.device().memory_info() {
            (snapshot.device_free, snapshot.device_total) = (ByteSize(info.free_bytes), ByteSize(info.total_bytes));
            free = free.min(snapshot.device_free + snapshot.reusable);
        }
        // A lowered limit means that the device ran out, too.
        let lowered = limit < self.configured_limit() && ledger.held() + wanted <= self.configured_limit();
        if lowered && !device_is_short {
            snapshot.cause = OomCause::Device;
        } else if device_is_short {
            snapshot.cause = if free >= wanted { OomCause::Fragmentation } else { OomCause::Device };
        }
        MemoryError::OutOfMemory { wanted, free, limit, snapshot: Box::new(snapshot) }
    }

    /// Frees `raw` in the order of `stream`.
    pub(crate) fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        let bytes = raw.len.get() as u64;
        let ledger = &self.inner.pressure.ledger;
        let call = Call::begin();
        match self.timed(stream, || self.inner.resource.deallocate(raw, stream, site)) {
            Ok(()) => {
                if let Some(call) = call {
                    call.returned(WorkKind::Free, stream.id().index, bytes);
                }
                ledger.freed(bytes, stream.position());
                Ok(())
            }
            Err(error) => {
                ledger.gone(bytes);
                Err(error)
            }
        }
    }

    /// Removes `raw` from the counts: it is lost with its device, or cannot be freed safely.
    pub(crate) fn abandon(&self, raw: RawAllocation) {
        self.inner.pressure.ledger.gone(raw.len.get() as u64);
    }
}
