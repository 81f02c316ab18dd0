//! Device buffers that can leave for host memory, and come back when they are used.
//!
//!   register(views) ─► Resident ── memory runs out ──► copies to the host, in stream order ─► device bytes freed behind them
//!                         ▲                                                    │
//!                         └── get(stream): allocates, uploads in stream order ─┘     nobody waits on the host
//!
//! Group      views with one lifetime, such as the columns of a materialised batch. They leave and return together. Bytes move as
//!            they are: addresses of device memory that are stored inside do not survive, so compact first.
//! Held       while a `Resident` is out, a group stays: what an operator works on is never spilled under its hands.
//! Order      the lowest priority first, in it the least recently used.
//! Host       pinned pages that are taken beforehand, up to a limit; beyond, ordinary memory through one bounce page, up to another.
//! Counts     a spilled group's device bytes are pending until the device has come to their free.
//! Threads    no lock is held while anything is copied, allocated or waited for.
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
//! // There is no room for both: the batch leaves.
//! let table = DeviceBuffer::zeroed(2 << 20, &stream, &pool)?;
//! assert_eq!(spiller.statistics().spills, 1);
//! drop(table);
//! // It is back as soon as it is used, and stays as long as it is.
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
use crate::governor::{MemoryGovernor, MemorySpace, Reservation, ShortageHook};
use crate::pending::Pending;
use crate::pool::MemoryPool;
use crate::pressure::{OomAction, OomCallback};
use crate::stream::Stream;
use crate::units::ByteSize;

/// Where spilled bytes go, and how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpillOptions {
    /// Pinned memory is taken in pages of this size; a group uses whole pages.
    pub page: ByteSize,
    /// Pinned memory that is taken when the spiller is made, so that spilling needs none.
    pub pinned_reserve: ByteSize,
    /// The most pinned memory; at least the reserve, and one page for bouncing.
    pub pinned_limit: ByteSize,
    /// The most ordinary memory, used when pinned memory is full. Slower: the host waits for those copies.
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

/// What spilling came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spilled {
    /// Device bytes whose free is submitted. They are free when the device has come to it.
    pub bytes: ByteSize,
    pub groups: u64,
}

/// Something that can give device memory up: a cache, a materialised batch.
pub trait Spillable: Send + Sync {
    /// Who it is, in reports.
    fn tag(&self) -> String;
    /// What `spill` would free now; zero while it is in use.
    fn spillable_bytes(&self) -> ByteSize;
    /// Lower goes first.
    fn priority(&self) -> i32 {
        0
    }
    /// A moment of `Spiller::now`; among equals the smallest goes first.
    fn last_used(&self) -> u64 {
        0
    }
    /// Gives up about `wanted` bytes or more, and says how many bytes are now behind a submitted free. May copy in stream order; must
    /// not wait for another query. Called without any lock of this crate.
    fn spill(&self, wanted: ByteSize) -> Result<ByteSize>;
}

/// Where a group is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpillState {
    /// On the device.
    Resident,
    /// On its way to the host or back.
    Moving,
    /// In host memory; its device bytes are freed, in stream order.
    Spilled,
    /// Gone with its device.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpillStatistics {
    /// Groups that left and that returned, and their bytes.
    pub spills: u64,
    pub spilled_bytes: u64,
    pub restores: u64,
    pub restored_bytes: u64,
    /// Of the spilled bytes, those that went to ordinary memory.
    pub bounced_bytes: u64,
    /// Groups that could not leave because host memory was full.
    pub no_host_memory: u64,
    /// In host memory now: pinned pages and ordinary memory.
    pub pinned_bytes: ByteSize,
    pub host_bytes: ByteSize,
    /// Registered groups, and the device bytes of those that could leave now.
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

/// Promises of groups whose frees the device has not come to.
type Leaving = Vec<(Event, Reservation)>;

struct SpillerInner {
    pool: MemoryPool,
    /// Copies go here, beside the work of the queries.
    stream: Stream,
    store: Arc<Store>,
    clock: AtomicU64,
    /// By number; a group takes itself out.
    groups: Mutex<BTreeMap<u64, Weak<Group>>>,
    others: Mutex<Vec<Weak<dyn Spillable>>>,
    leaving: Mutex<Leaving>,
    /// The newest event behind frees of spilled groups.
    last_free: Mutex<Option<Event>>,
    governors: Mutex<Vec<(MemoryGovernor, ShortageHook)>>,
    callback: OnceLock<OomCallback>,
    cells: Cells,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks after promises that can go back, when the poller lets go of it.
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

    /// A group left: its frees are submitted.
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

    /// Keeps a promise until the device has come to the frees that were just submitted.
    fn leaving(self: &Arc<Self>, mut reservation: Reservation) -> Result<()> {
        reservation.start_leaving();
        let event = self.note_free()?;
        lock(&self.leaving).push((event.clone(), reservation));
        drop(Pending::behind(event, Look(Arc::downgrade(self))));
        Ok(())
    }

    /// Gives back the promises whose bytes are free by now, or gone with the device.
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
        // Outside of the lock: who waits for them may do anything.
        drop(passed);
    }

    /// A group may leave that could not before: those who wait look again.
    fn nudge(&self) {
        let governors: Vec<MemoryGovernor> = lock(&self.governors).iter().map(|(g, _)| g.clone()).collect();
        governors.iter().for_each(MemoryGovernor::nudge);
    }

    fn forget(&self, id: u64) {
        lock(&self.groups).remove(&id);
    }

    /// Everyone who may be asked, in the order of their turns.
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
                // One that cannot leave is no reason for the others to stay.
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

/// Knows what can be spilled from one pool, and does it when the pool runs out. Clones share it.
#[derive(Clone)]
pub struct Spiller {
    inner: Arc<SpillerInner>,
}

impl Spiller {
    /// A spiller that `pool` asks when memory runs out.
    ///
    /// # Errors
    /// [`MemoryError::Setting`] for options that cannot be, and what page-locking says.
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

    /// Has `governor` ask for room, too: when a request of device memory finds none, or its trigger is passed.
    pub fn serve(&self, governor: &MemoryGovernor) {
        let asked = Arc::downgrade(&self.inner);
        let hook = governor.on_shortage(move |shortage| {
            let Some(inner) = asked.upgrade().filter(|_| shortage.space == MemorySpace::Device) else {
                return ByteSize::ZERO;
            };
            let spilled = inner.spill(shortage.wanted).unwrap_or_default();
            if shortage.may_block && spilled.bytes > ByteSize::ZERO {
                // A lost device is for the next allocation to say.
                let _ = inner.settle();
            }
            spilled.bytes
        });
        lock(&self.inner.governors).push((governor.clone(), hook));
    }

    /// Takes views in, as one group. Every byte of them was written or will be by what is submitted; clones of them elsewhere
    /// keep their buffers from being spilled. Lower priorities leave first.
    ///
    /// # Errors
    /// [`MemoryError::ForeignDevice`] for views of another device.
    pub fn register(&self, views: Vec<DeviceView>, priority: i32) -> Result<SpillHandle> {
        self.take_in(views, priority, None)
    }

    /// The same, for device bytes that a governor promised. The promise goes back when the device has come to the free of a
    /// spilled group, and is asked for again (`try_reserve`, for the same participant) before the group returns.
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

    /// Asks `spillable`, too, for as long as it lives.
    pub fn add(&self, spillable: &Arc<dyn Spillable>) {
        lock(&self.inner.others).push(Arc::downgrade(spillable));
    }

    /// A moment for `Spillable::last_used`.
    pub fn now(&self) -> u64 {
        self.inner.tick()
    }

    /// Spills until `wanted` bytes are on their way out, or nothing more can leave. Blocks only where ordinary memory is used.
    pub fn spill(&self, wanted: ByteSize) -> Result<Spilled> {
        self.inner.pool.device().alive()?;
        self.inner.spill(wanted)
    }

    /// Blocks until the device has come to every free that spilling submitted.
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

/// A group of views that may be on the device or in host memory. Dropped, it frees whatever it has, in stream order.
pub struct SpillHandle {
    group: Arc<Group>,
}

impl SpillHandle {
    /// The group on the device, where it stays as long as the answer lives. If it was spilled: allocates in the order of
    /// `stream` and uploads behind that; the host waits for nothing, unless part of it is in ordinary memory and no page is free.
    ///
    /// # Errors
    /// Out of memory, or a lost device; the group is then as before. [`MemoryError::Conflict`] inside its own move.
    #[track_caller]
    pub fn get(&self, stream: &Stream) -> Result<Resident> {
        let views = self.group.get(stream, Location::caller())?;
        Ok(Resident { views, group: Arc::clone(&self.group) })
    }

    /// Spills the group now. Zero if it is in use, away already, or has nowhere to go.
    #[track_caller]
    pub fn spill(&self) -> Result<ByteSize> {
        self.group.spill_now()
    }

    /// Copies the bytes of view `view` from `from` on to `to` if the group is in host memory, where it stays; false if it is not there.
    ///
    /// # Errors
    /// [`MemoryError::HostBusy`] while the copies that brought it there are under way, [`MemoryError::Range`] for bytes that it lacks.
    #[track_caller]
    pub fn read_spilled(&self, view: usize, from: usize, to: &mut [u8]) -> Result<bool> {
        self.group.read_away(view, from, to, Location::caller())
    }

    pub fn state(&self) -> SpillState {
        self.group.state()
    }

    /// Device bytes of the group when it is resident, padding and all.
    pub fn bytes(&self) -> ByteSize {
        self.group.bytes()
    }

    /// The views back, on the device, and not spillable any more, with the promise that they came with.
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

/// A group that is on the device and in use: the same views, in the same order, as were registered.
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
        // First the views: the group is spillable only when it alone has them.
        self.views.clear();
        self.group.release();
    }
}
