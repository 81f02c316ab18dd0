//! Device buffers that can be spilled to host memory and are restored when they are used.
//!
//!   register(views) ─► Resident ── memory runs out ──► copies to the host, in stream order ─► device bytes freed
//!                         ▲                                                    │
//!                         └── get(stream): allocates, uploads in stream order ─┘     the host does not wait
//!
//! Group      views with one lifetime, such as the columns of a materialised batch. They are spilled and restored
//!            together. Bytes move unchanged: device addresses stored inside become invalid, so compact first.
//! Held       while a `Resident` exists, its group is not spilled: operators never lose memory they work on.
//! Order      lowest priority first, then least recently used.
//! Host       pinned pages that are allocated in advance, up to a limit; beyond, ordinary memory through a bounce page,
//!            up to another limit.
//! Counts     a spilled group's device bytes are pending until the device has reached their free.
//! Threads    no lock is held during a copy, an allocation or a wait.
//!
//! ```
//! use millpond_memory::driver::sim::SimDriver;
//! use millpond_memory::{ByteSize, Device, DeviceBuffer, MemoryPool, SpillOptions, Spiller, Stream};
//!
//! # fn main() -> millpond_memory::Result<()> {
//! let device = Device::open(SimDriver::with_seed(1), 0)?;
//! let pool = MemoryPool::builder(&device).limit(ByteSize::mib(4)).build()?;
//! let stream = Stream::new(&device)?;
//! let spiller = Spiller::new(&pool, SpillOptions { pinned_reserve: ByteSize::mib(4), ..SpillOptions::default() })?;
//!
//! let column = DeviceBuffer::zeroed(3 << 20, &stream, &pool)?.as_view().clone();
//! let batch = spiller.register(vec![column], 0)?;
//! // Memory does not suffice for both: the batch is spilled.
//! let table = DeviceBuffer::zeroed(2 << 20, &stream, &pool)?;
//! assert_eq!(spiller.statistics().spills, 1);
//! drop(table);
//! // It is restored when it is used, and stays resident during the use.
//! let columns = batch.get(&stream)?;
//! assert_eq!(columns[0].len(), 3 << 20);
//! # Ok(())
//! # }
//! ```

mod group;
mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use group::Group;
use store::Store;

use crate::buffer::DeviceView;
use crate::counters::Scope;
use crate::error::{MemoryError, Result};
use crate::event::Event;
use crate::governor::{MemoryGovernor, Reservation, ShortageHook};
use crate::ids::MemorySpace;
use crate::pending::Pending;
use crate::pool::MemoryPool;
use crate::pressure::{OomAction, OomCallback};
use crate::stream::Stream;
use crate::units::ByteSize;

/// Host memory for spilled bytes, and its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpillOptions {
    /// Page size of pinned memory; a group uses whole pages.
    pub page: ByteSize,
    /// Pinned memory allocated when the spiller is created, so that spilling allocates none.
    pub pinned_reserve: ByteSize,
    /// Maximum of pinned memory; at least the reserve, and one bounce page.
    pub pinned_limit: ByteSize,
    /// Maximum of ordinary memory, used when pinned memory is full. Slower: the host waits for those copies.
    pub host_limit: ByteSize,
}

impl Default for SpillOptions {
    fn default() -> Self {
        SpillOptions {
            page: ByteSize::mib(1),
            pinned_reserve: ByteSize::mib(32),
            pinned_limit: ByteSize::gib(1),
            host_limit: ByteSize::MAX,
        }
    }
}

/// Result of spilling.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spilled {
    /// Device bytes whose free is submitted. They become free when the device reaches it.
    pub bytes: ByteSize,
    pub groups: u64,
}

/// An owner of device memory that can be freed: a cache, a materialised batch.
pub trait Spillable: Send + Sync {
    /// Name for reports.
    fn tag(&self) -> String;
    /// Bytes that `spill` would free now; zero during a use.
    fn spillable_bytes(&self) -> ByteSize;
    /// Lower priorities are spilled first.
    fn priority(&self) -> i32 {
        0
    }
    /// Time of last use by `Spiller::now`; among equal priorities the smallest is spilled first.
    fn last_used(&self) -> u64 {
        0
    }
    /// Frees about `wanted` bytes or more, and returns the bytes that are now behind a submitted free. May copy in
    /// stream order; must not wait for another query. Called without any lock of this crate.
    fn spill(&self, wanted: ByteSize) -> Result<ByteSize>;
}

/// Location of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpillState {
    /// On the device.
    Resident,
    /// Moving to the host or back.
    Moving,
    /// In host memory; its device bytes are freed, in stream order.
    Spilled,
    /// Lost with its device.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpillStatistics {
    /// Spilled and restored groups, and their bytes.
    pub spills: u64,
    pub spilled_bytes: u64,
    pub restores: u64,
    pub restored_bytes: u64,
    /// Spilled bytes that went to ordinary memory.
    pub bounced_bytes: u64,
    /// Groups that could not be spilled because host memory was full.
    pub no_host_memory: u64,
    /// Bytes in host memory now: in pinned pages and in ordinary memory.
    pub pinned_bytes: ByteSize,
    pub host_bytes: ByteSize,
    /// Registered groups, and the device bytes of those that can be spilled now.
    pub groups: usize,
    pub spillable_bytes: ByteSize,
}

#[derive(Default)]
struct Cells {
    spills: AtomicU64,
    spilled_bytes: AtomicU64,
    restores: AtomicU64,
    restored_bytes: AtomicU64,
    bounced_bytes: AtomicU64,
    no_host_memory: AtomicU64,
}

/// Reservations of groups whose frees the device has not reached.
type Leaving = Vec<(Event, Reservation)>;

struct SpillerInner {
    pool: MemoryPool,
    /// Stream for copies, separate from the work of queries.
    stream: Stream,
    store: Arc<Store>,
    clock: AtomicU64,
    /// By ID; a group removes itself.
    groups: Mutex<BTreeMap<u64, Weak<Group>>>,
    others: Mutex<Vec<Weak<dyn Spillable>>>,
    leaving: Mutex<Leaving>,
    /// Newest event behind frees of spilled groups.
    last_free: Mutex<Option<Event>>,
    governors: Mutex<Vec<(MemoryGovernor, ShortageHook)>>,
    callback: OnceLock<OomCallback>,
    cells: Cells,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Releases reservations that are due when the poller drops this.
struct Look(Weak<SpillerInner>);

impl Drop for Look {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.retire();
        }
    }
}

impl SpillerInner {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Relaxed)
    }

    /// Counts a spilled group, whose frees are submitted.
    fn left(&self, bytes: u64, pinned: u64, plain: u64, scope: &Scope) {
        self.cells.spills.fetch_add(1, Relaxed);
        self.cells.spilled_bytes.fetch_add(bytes, Relaxed);
        self.cells.bounced_bytes.fetch_add(plain, Relaxed);
        scope.add(|c| &c.spilled_bytes, bytes);
        if let Some(log) = self.pool.device().log() {
            log.spilled(ByteSize(bytes), &scope.path());
        }
        tracing::debug!(bytes, pinned, plain, tag = scope.path(), "spilled");
    }

    fn returned(&self, bytes: u64, scope: &Scope) {
        self.cells.restores.fetch_add(1, Relaxed);
        self.cells.restored_bytes.fetch_add(bytes, Relaxed);
        scope.add(|c| &c.restored_bytes, bytes);
    }

    fn nowhere(&self) {
        self.cells.no_host_memory.fetch_add(1, Relaxed);
    }

    fn note_free(&self) -> Result<Event> {
        let event = self.stream.record()?;
        *lock(&self.last_free) = Some(event.clone());
        Ok(event)
    }

    /// Keeps a reservation until the device has reached the frees submitted just before.
    fn leaving(self: &Arc<Self>, mut reservation: Reservation) -> Result<()> {
        reservation.start_leaving();
        let event = self.note_free()?;
        lock(&self.leaving).push((event.clone(), reservation));
        drop(Pending::behind(event, Look(Arc::downgrade(self))));
        Ok(())
    }

    /// Releases reservations whose bytes are now free, or lost with the device.
    fn retire(&self) {
        let lost = self.pool.device().is_lost();
        let mut passed = Vec::new();
        lock(&self.leaving).retain_mut(|(event, reservation)| {
            let over = lost || event.query().unwrap_or(true);
            if over {
                passed.push(reservation.take());
            }
            !over
        });
        // Outside the lock, because a release may wake arbitrary tasks.
        drop(passed);
    }

    /// Notifies governors that a group has become spillable, so that waiting requests retry.
    fn nudge(&self) {
        let governors: Vec<MemoryGovernor> = lock(&self.governors).iter().map(|(g, _)| g.clone()).collect();
        governors.iter().for_each(MemoryGovernor::nudge);
    }

    fn forget(&self, id: u64) {
        lock(&self.groups).remove(&id);
    }

    /// All spillable owners, in spill order.
    fn candidates(&self) -> Vec<Arc<dyn Spillable>> {
        let groups: Vec<Arc<Group>> = lock(&self.groups).values().filter_map(Weak::upgrade).collect();
        let others: Vec<Arc<dyn Spillable>> = {
            let mut others = lock(&self.others);
            others.retain(|other| other.strong_count() > 0);
            others.iter().filter_map(Weak::upgrade).collect()
        };
        let groups = groups.into_iter().map(|group| group as Arc<dyn Spillable>);
        let mut all: Vec<_> = groups.chain(others).map(|who| ((who.priority(), who.last_used()), who)).collect();
        all.sort_by_key(|(turn, _)| *turn);
        all.into_iter().map(|(_, who)| who).collect()
    }

    fn spill(&self, wanted: ByteSize) -> Result<Spilled> {
        let mut spilled = Spilled::default();
        for who in self.candidates() {
            if spilled.bytes >= wanted {
                break;
            }
            match who.spill(wanted.saturating_sub(spilled.bytes)) {
                Ok(ByteSize::ZERO) => {}
                Ok(bytes) => {
                    spilled.bytes += bytes;
                    spilled.groups += 1;
                }
                Err(error) if error.is_device_lost() => return Err(error),
                // A failed spill does not keep the others from spilling.
                Err(error) => tracing::warn!(%error, tag = who.tag(), "not spilled"),
            }
        }
        Ok(spilled)
    }

    fn settle(&self) -> Result<()> {
        let last = lock(&self.last_free).take();
        if let Some(event) = last {
            event.synchronize()?;
        }
        self.retire();
        Ok(())
    }
}

/// Registry of everything spillable in one pool; spills when the pool runs out. Clones share it.
#[derive(Clone)]
pub struct Spiller {
    inner: Arc<SpillerInner>,
}

impl Spiller {
    /// Creates a spiller that `pool` calls when memory runs out.
    ///
    /// # Errors
    /// [`MemoryError::Setting`] for invalid options, and errors of page-locking.
    pub fn new(pool: &MemoryPool, options: SpillOptions) -> Result<Self> {
        let device = pool.device();
        let inner = Arc::new(SpillerInner {
            pool: pool.clone(),
            stream: Stream::new(device)?,
            store: Store::new(device, &options)?,
            clock: AtomicU64::new(1),
            groups: Mutex::default(),
            others: Mutex::default(),
            leaving: Mutex::default(),
            last_free: Mutex::default(),
            governors: Mutex::default(),
            callback: OnceLock::new(),
            cells: Cells::default(),
        });
        let asked = Arc::downgrade(&inner);
        let callback = pool.on_out_of_memory(move |context| match asked.upgrade().map(|i| i.spill(context.missing)) {
            Some(Ok(spilled)) if spilled.bytes > ByteSize::ZERO => OomAction::Retry,
            _ => OomAction::Fail,
        });
        let _ = inner.callback.set(callback);
        Ok(Spiller { inner })
    }

    pub fn pool(&self) -> &MemoryPool {
        &self.inner.pool
    }

    /// Also serves `governor`: when a request for device memory cannot be granted, or its trigger is exceeded.
    pub fn serve(&self, governor: &MemoryGovernor) {
        let asked = Arc::downgrade(&self.inner);
        let hook = governor.on_shortage(move |shortage| {
            let Some(inner) = asked.upgrade().filter(|_| shortage.space == MemorySpace::Device) else {
                return ByteSize::ZERO;
            };
            let spilled = inner.spill(shortage.wanted).unwrap_or_default();
            if shortage.may_block && spilled.bytes > ByteSize::ZERO {
                // The next allocation reports a lost device.
                let _ = inner.settle();
            }
            spilled.bytes
        });
        lock(&self.inner.governors).push((governor.clone(), hook));
    }

    /// Registers views as one group. Every byte of them is written already, or by submitted work; clones of them
    /// elsewhere keep their buffers from being spilled. Lower priorities are spilled first.
    ///
    /// # Errors
    /// [`MemoryError::ForeignDevice`] for views of another device.
    pub fn register(&self, views: Vec<DeviceView>, priority: i32) -> Result<SpillHandle> {
        self.take_in(views, priority, None)
    }

    /// Like `register`, for device bytes with a governor's reservation. It is released when the device has reached the
    /// free of the spilled group, and requested again (`try_reserve`, for the same participant) before the group is
    /// restored.
    pub fn register_reserved(
        &self,
        views: Vec<DeviceView>,
        priority: i32,
        reservation: Reservation,
    ) -> Result<SpillHandle> {
        self.take_in(views, priority, Some(reservation))
    }

    fn take_in(&self, views: Vec<DeviceView>, priority: i32, reservation: Option<Reservation>) -> Result<SpillHandle> {
        if views.iter().any(|view| view.device() != self.inner.pool.device()) {
            let stream = self.inner.stream.id();
            return Err(MemoryError::ForeignDevice { what: "a view to spill", stream });
        }
        let id = self.inner.tick();
        let group = Arc::new(Group::new(&self.inner, id, views, priority, reservation));
        lock(&self.inner.groups).insert(id, Arc::downgrade(&group));
        self.inner.nudge();
        Ok(SpillHandle { group })
    }

    /// Also spills `spillable`, as long as it lives.
    pub fn add(&self, spillable: &Arc<dyn Spillable>) {
        lock(&self.inner.others).push(Arc::downgrade(spillable));
    }

    /// Current time for `Spillable::last_used`.
    pub fn now(&self) -> u64 {
        self.inner.tick()
    }

    /// Spills until the frees of `wanted` bytes are submitted, or nothing more can be spilled. Blocks only if ordinary
    /// memory is used.
    pub fn spill(&self, wanted: ByteSize) -> Result<Spilled> {
        self.inner.pool.device().alive()?;
        self.inner.spill(wanted)
    }

    /// Blocks until the device has reached every free that spilling submitted.
    pub fn settle(&self) -> Result<()> {
        self.inner.settle()
    }

    pub fn statistics(&self) -> SpillStatistics {
        let inner = &*self.inner;
        let groups: Vec<Arc<Group>> = lock(&inner.groups).values().filter_map(Weak::upgrade).collect();
        let count = |cell: &AtomicU64| cell.load(Relaxed);
        SpillStatistics {
            spills: count(&inner.cells.spills),
            spilled_bytes: count(&inner.cells.spilled_bytes),
            restores: count(&inner.cells.restores),
            restored_bytes: count(&inner.cells.restored_bytes),
            bounced_bytes: count(&inner.cells.bounced_bytes),
            no_host_memory: count(&inner.cells.no_host_memory),
            pinned_bytes: inner.store.pinned_bytes(),
            host_bytes: inner.store.host_bytes(),
            groups: groups.len(),
            spillable_bytes: groups.iter().map(|group| group.spillable_bytes()).sum(),
        }
    }
}

impl fmt::Debug for Spiller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SpillStatistics { groups, spillable_bytes, pinned_bytes, host_bytes, .. } = self.statistics();
        write!(f, "spiller of {groups} groups: {spillable_bytes} can leave, {} are away", pinned_bytes + host_bytes)
    }
}

/// A group of views on the device or in host memory. A drop frees its memory, in stream order.
pub struct SpillHandle {
    group: Arc<Group>,
}

impl SpillHandle {
    /// Returns the group on the device, where it stays as long as the returned value lives. If it was spilled:
    /// allocates in the order of `stream` and uploads behind that. The host does not wait, unless a part is in ordinary
    /// memory and no page is free.
    ///
    /// # Errors
    /// Out of memory, or a lost device; the group is then unchanged. [`MemoryError::Conflict`] inside its own move.
    #[track_caller]
    pub fn get(&self, stream: &Stream) -> Result<Resident> {
        let views = self.group.get(stream, Location::caller())?;
        Ok(Resident { views, group: Arc::clone(&self.group) })
    }

    /// Spills the group now. Zero if it is in use, already spilled, or if host memory is full.
    #[track_caller]
    pub fn spill(&self) -> Result<ByteSize> {
        self.group.spill_now()
    }

    /// Copies the bytes of view `view`, starting at `from`, to `to` if the group is in host memory, where it stays;
    /// false if it is not.
    ///
    /// # Errors
    /// [`MemoryError::HostBusy`] while the copies to the host are in flight, [`MemoryError::Range`] for bytes outside
    /// the view.
    #[track_caller]
    pub fn read_spilled(&self, view: usize, from: usize, to: &mut [u8]) -> Result<bool> {
        self.group.read_away(view, from, to, Location::caller())
    }

    pub fn state(&self) -> SpillState {
        self.group.state()
    }

    /// Device bytes of the group when it is resident, including padding.
    pub fn bytes(&self) -> ByteSize {
        self.group.bytes()
    }

    /// Returns the views on the device, no longer spillable, with the reservation they were registered with.
    #[track_caller]
    pub fn into_parts(self, stream: &Stream) -> Result<(Vec<DeviceView>, Option<Reservation>)> {
        let views = self.group.get(stream, Location::caller())?;
        let reservation = self.group.dissolve();
        Ok((views, reservation))
    }
}

impl fmt::Debug for SpillHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} group of {} ({} views)", self.state(), self.bytes(), self.group.num_views())
    }
}

/// A group that is on the device and in use: the registered views, in order.
pub struct Resident {
    views: Vec<DeviceView>,
    group: Arc<Group>,
}

impl std::ops::Deref for Resident {
    type Target = [DeviceView];
    fn deref(&self) -> &[DeviceView] {
        &self.views
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.views).finish()
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // The views are dropped first: the group is spillable only if no other clones exist.
        self.views.clear();
        self.group.release();
    }
}
