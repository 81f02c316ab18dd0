//! Streams: queues of a device, and positions in them.
//!
//!   stream.submit(work) ─► Position ─► other.wait_for(position)     on the device; no call if already implied
//!                                    └► stream.record()?.completed()  on the host, as a future
//!
//! Kinds      streams of this crate are non-blocking; there is no default stream. An external stream can be wrapped
//!            (`external`).
//! Lifetime   a device keeps its streams until it closes, since positions in them may be used at any time.
//! Captured   while a stream is captured into a graph, all calls here are refused: `graph` has the reason and the
//!            remedy.
//! Threads    any thread may submit; a stream's lock is held across the driver call, so its order is the driver's.
//! Scope      a `Stream` is a light handle; it carries the scope that its work is counted under.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::counters::Scope;
use crate::cursor::{Cursor, Locked};
use crate::device::Device;
use crate::driver::{Driver, DriverError, EventFlags, HostSpan, Site, StreamHandle, StreamPriority};
use crate::error::{MemoryError, Result};
use crate::event::{Event, EventCell, TimeMark};
use crate::external::External;
use crate::ids::StreamId;
use crate::order::{Mark, OrderTracker, Position, VectorClock, Waited};

/// Shared state of a stream.
pub(crate) struct StreamCell {
    pub(crate) id: StreamId,
    pub(crate) handle: StreamHandle,
    cursor: Cursor<Arc<EventCell>>,
    /// Number of driver calls that submitted work; written only under the lock of the order.
    calls: AtomicU64,
    /// Whether a capture may be active: always for external streams, for others while `Stream::expect_capture` is set.
    pub(crate) may_capture: AtomicBool,
    /// Extra state of an external stream.
    pub(crate) external: Option<External>,
}

impl StreamCell {
    pub(crate) fn new(id: StreamId, handle: StreamHandle) -> Arc<Self> {
        Self::make(id, handle, None)
    }

    /// Wraps an external stream.
    pub(crate) fn wrap(id: StreamId, handle: StreamHandle, external: External) -> Arc<Self> {
        Self::make(id, handle, Some(external))
    }

    fn make(id: StreamId, handle: StreamHandle, external: Option<External>) -> Arc<Self> {
        let may_capture = AtomicBool::new(external.is_some());
        Arc::new(StreamCell {
            id,
            handle,
            cursor: Cursor::new(OrderTracker::new(id.index)),
            calls: AtomicU64::new(0),
            may_capture,
            external,
        })
    }

    pub(crate) fn order(&self) -> Locked<'_, Arc<EventCell>> {
        self.cursor.lock()
    }

    /// Like `order`, unless another thread holds the lock inside a driver call.
    pub(crate) fn try_order(&self) -> Option<Locked<'_, Arc<EventCell>>> {
        self.cursor.try_lock()
    }

    fn called(&self) {
        self.calls.store(self.calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Clock of everything submitted so far, including all work it is ordered after.
    pub(crate) fn clock(&self) -> VectorClock {
        self.order().clock().clone()
    }

    /// Position behind all submitted work. On an external stream this is a new point, because work may have been
    /// submitted elsewhere: no earlier event covers it.
    #[inline(always)]
    pub(crate) fn position(&self) -> Position {
        let seq = if self.external.is_some() { self.order().submitted() } else { self.cursor.newest() };
        Position { stream: self.id, seq }
    }

    /// Drops the kept events.
    pub(crate) fn close(&self) {
        *self.order() = OrderTracker::new(self.id.index);
    }
}

/// A stream of a device, and the scope its work is counted under.
#[derive(Clone)]
pub struct Stream {
    core: Arc<Core>,
    _lease: Option<Arc<Lease>>,
}

/// State shared by clones of a handle: clones are more frequent than changes of scope.
struct Core {
    device: Device,
    cell: Arc<StreamCell>,
    scope: Scope,
}

impl Stream {
    /// Creates a new stream for the device's lifetime. Queries take theirs from a `StreamPool`.
    pub fn new(device: &Device) -> Result<Self> {
        Self::with_priority(device, StreamPriority::Normal)
    }

    pub fn with_priority(device: &Device, priority: StreamPriority) -> Result<Self> {
        let cell = device.create_stream(priority)?;
        Ok(Self::of(device, cell, device.scope().clone()))
    }

    pub(crate) fn of(device: &Device, cell: Arc<StreamCell>, scope: Scope) -> Self {
        Stream { core: Arc::new(Core { device: device.clone(), cell, scope }), _lease: None }
    }

    /// The same stream, without counting as a user in its pool.
    pub(crate) fn unleased(&self) -> Self {
        Stream { core: Arc::clone(&self.core), _lease: None }
    }

    /// The same stream, with its work counted under `scope`.
    pub fn with_scope(&self, scope: &Scope) -> Self {
        Stream {
            _lease: self._lease.clone(),
            ..Self::of(&self.core.device, Arc::clone(&self.core.cell), scope.clone())
        }
    }

    pub fn id(&self) -> StreamId {
        self.core.cell.id
    }

    pub fn device(&self) -> &Device {
        &self.core.device
    }

    pub fn scope(&self) -> &Scope {
        &self.core.scope
    }

    /// Position behind everything submitted so far.
    #[inline(always)]
    pub fn position(&self) -> Position {
        self.core.cell.position()
    }

    /// Orders later work on this stream after `position`. Never blocks.
    #[track_caller]
    pub fn wait_for(&self, position: Position) -> Result<Waited> {
        let site = Location::caller();
        if position.stream.device_serial != self.id().device_serial {
            return Err(MemoryError::ForeignDevice { what: "a position to wait for", stream: self.id() });
        }
        let position = if position.stream == self.id() { position } else { self.core.device.as_of_now(position) };
        if self.is_after(position) {
            self.core.scope.count(|c| &c.waits_elided);
            return Ok(Waited::Elided);
        }
        self.usable("a wait")?;
        // One lock at a time: first the other stream's mark, then the wait on this one.
        let Some(mark) = self.core.device.mark_behind(position, site, &self.core.scope)? else {
            self.core.scope.count(|c| &c.waits_elided);
            return Ok(Waited::Elided);
        };
        let mut order = self.core.cell.order();
        let waited = self.core.device.driver().stream_wait(self.core.cell.handle, mark.event.handle, site);
        self.core.device.check_on(self.id(), waited)?;
        let before = order.seq();
        order.waited(&mark);
        // Logged before other threads find the wait implied.
        if let Some(log) = self.core.device.log() {
            log.waited(self.id(), before, Position { seq: mark.seq, ..position });
        }
        drop(order);
        self.core.scope.count(|c| &c.waits_inserted);
        Ok(Waited::Inserted)
    }

    /// Orders later work on this stream after `event`, which may belong to another device of the same driver; positions
    /// belong to one device, so hand-overs between devices use events. Never blocks. Returns the new position of this
    /// stream.
    #[track_caller]
    pub fn wait_event(&self, event: &Event) -> Result<Position> {
        let site = Location::caller();
        if event.device() == self.device() {
            self.wait_for(event.position())?;
            return Ok(self.position());
        }
        if !Arc::ptr_eq(event.device().driver(), self.device().driver()) {
            return Err(MemoryError::ForeignDevice { what: "an event of another driver", stream: self.id() });
        }
        event.device().alive()?;
        let handle = event.handle();
        let (_, position) = self.submit(|driver, on| driver.stream_wait(on, handle, site))?;
        self.scope().count(|c| &c.waits_inserted);
        Ok(position)
    }

    /// Records an order established elsewhere: later work is ordered after `position`.
    pub(crate) fn knows(&self, position: Position) {
        let mut clock = VectorClock::default();
        clock.raise(position.stream.index, position.seq);
        self.cell().order().host_saw(&clock);
    }

    /// Orders a free on this stream after `position`. A free cannot be deferred: if the driver refuses the event for a
    /// wait on the device, the host waits instead.
    #[track_caller]
    pub(crate) fn free_after(&self, position: Position) -> Result<()> {
        match self.wait_for(position) {
            Err(error) if !error.is_capturing() && !error.is_device_lost() => {
                self.core.device.wait_without_event(position).map_err(|_| error)
            }
            waited => waited.map(|_| ()),
        }
    }

    /// True if everything up to `position` is ordered before this stream's next work.
    pub fn is_after(&self, position: Position) -> bool {
        if position.stream == self.id() {
            return true;
        }
        let mut order = self.core.cell.order();
        order.is_after(position.stream.index, position.seq)
            || self.core.device.host_clock(|host| {
                let seen = host.covers(position.stream.index, position.seq);
                if seen {
                    order.host_saw(host);
                }
                seen
            })
    }

    /// Records an event behind everything submitted so far.
    #[track_caller]
    pub fn record(&self) -> Result<Event> {
        self.event_behind(self.position())
    }

    /// An event at or behind `position` of this stream.
    #[track_caller]
    pub(crate) fn event_behind(&self, position: Position) -> Result<Event> {
        let mark = self.core.device.mark_behind(position, Location::caller(), &self.core.scope)?;
        let mark = mark.ok_or(MemoryError::StreamGone { stream: position.stream })?;
        Ok(Event::new(&self.core.device, &self.core.scope, self.id(), mark))
    }

    /// Records the device's time when it reaches this point.
    #[track_caller]
    pub fn mark_time(&self) -> Result<TimeMark> {
        let site = Location::caller();
        self.usable("a mark of time")?;
        let handle = self
            .core
            .device
            .check(self.core.device.driver().event_create(self.core.device.id(), EventFlags::TIMING))?;
        let mark = TimeMark::new(&self.core.device, handle);
        let _order = self.core.cell.order();
        self.core
            .device
            .check_on(self.id(), self.core.device.driver().event_record(handle, self.core.cell.handle, site))?;
        Ok(mark)
    }

    /// Blocks this thread until everything submitted so far has finished. For tests and tools; queries await `Pending`.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.usable("a wait of the host")?;
        let event = self.record()?;
        self.core.scope.count(|c| &c.host_waits);
        self.core.device.wait_until(|| event.query())?;
        let done = self.core.device.harmless(|driver| driver.stream_synchronize(self.core.cell.handle));
        self.core.device.check_on(self.id(), done)?;
        event.query().map(|_| ())
    }

    /// Submits one piece of work and returns the stream's new position.
    ///
    /// `work` makes exactly one enqueueing driver call. The bytes it accesses must already be taken for this stream.
    pub fn submit<T>(
        &self,
        work: impl FnOnce(&dyn Driver, StreamHandle) -> Result<T, DriverError>,
    ) -> Result<(T, Position)> {
        self.usable("work")?;
        let mut order = self.core.cell.order();
        let done = work(&**self.core.device.driver(), self.core.cell.handle);
        self.core.cell.called();
        let value = self.core.device.check_counted_on(self.id(), done)?;
        let seq = order.submitted();
        Ok((value, Position { stream: self.id(), seq }))
    }
}

impl Stream {
    /// `Err` if nothing can be submitted: the device is lost, the stream's owner gave it up, or it is captured.
    pub(crate) fn usable(&self, what: &'static str) -> Result<()> {
        self.core.device.alive()?;
        if self.core.cell.may_capture.load(Ordering::Relaxed) {
            self.core.device.may_submit(&self.core.cell, what)
        } else {
            Ok(())
        }
    }

    pub(crate) fn cell(&self) -> &Arc<StreamCell> {
        &self.core.cell
    }

    /// Stores `value` in a word behind everything submitted so far. Not counted as work that others could wait for.
    #[track_caller]
    pub(crate) fn write_word(&self, word: &HostSpan, value: u32) -> Result<()> {
        let site = Location::caller();
        self.usable("a word")?;
        let _order = self.core.cell.order();
        self.core
            .device
            .check_on(self.id(), self.core.device.driver().write_word(word, value, self.core.cell.handle, site))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.id(), self.device().id())
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Device {
    /// Newest events of every stream that the host has not seen complete. Skips a stream with a driver call in
    /// progress, which may not return.
    pub(crate) fn newest_events(&self) -> Vec<Event> {
        let event =
            |cell: &StreamCell, mark: &Mark<Arc<EventCell>>| Event::new(self, self.scope(), cell.id, mark.clone());
        let of_stream = |cell: &Arc<StreamCell>| {
            let order = cell.try_order()?;
            Some(order.marks().map(|mark| event(cell, mark)).collect::<Vec<_>>())
        };
        let events = self.streams().iter().filter_map(of_stream).flatten().collect::<Vec<_>>();
        events.into_iter().filter(|event| !event.is_known_done()).collect()
    }

    /// An event at or behind `position`: a kept one, or a new one. `None` if the stream is gone without an event, and
    /// the host has seen all of its work complete.
    pub(crate) fn mark_behind(
        &self,
        position: Position,
        site: Site,
        scope: &Scope,
    ) -> Result<Option<Mark<Arc<EventCell>>>> {
        self.alive()?;
        let cell = self.stream_cell(position.stream)?;
        if let Some(external) = &cell.external
            && let Some(last) = external.gone()
        {
            return self.behind_gone(&cell, last);
        }
        let mut order = cell.order();
        if let Some(mark) = order.mark_behind(position.seq) {
            return Ok(Some(mark.clone()));
        }
        if cell.may_capture.load(Ordering::Relaxed) {
            self.may_submit(&cell, "an event")?;
        }
        let handle = self.take_event()?;
        let event = EventCell::new(handle, self.event_pool());
        self.check_on(cell.id, self.driver().event_record(handle, cell.handle, site))?;
        scope.count(|c| &c.events_recorded);
        if let Some(log) = self.log() {
            log.recorded(cell.id, order.seq());
        }
        Ok(Some(order.recorded(event)))
    }
}

struct Lease {
    slot: Arc<AtomicUsize>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.slot.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Slot {
    stream: Stream,
    users: Arc<AtomicUsize>,
}

/// Streams to lend: created when first needed, lent to as few users at a time as possible, never destroyed.
pub struct StreamPool {
    device: Device,
    capacity: usize,
    slots: Mutex<Vec<Slot>>,
}

impl StreamPool {
    pub const DEFAULT_CAPACITY: usize = 16;

    pub fn new(device: &Device) -> Self {
        Self::with_capacity(device, Self::DEFAULT_CAPACITY)
    }

    pub fn with_capacity(device: &Device, capacity: usize) -> Self {
        StreamPool { device: device.clone(), capacity: capacity.max(1), slots: Mutex::new(Vec::new()) }
    }

    /// Lends the stream with the fewest users; returned when the last clone is dropped.
    pub fn take(&self, scope: &Scope) -> Result<Stream> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = slots.iter().any(|slot| slot.users.load(Ordering::Relaxed) == 0);
        if !idle && slots.len() < self.capacity {
            slots.push(Slot { stream: Stream::new(&self.device)?, users: Arc::default() });
        }
        let slot = slots.iter().min_by_key(|slot| slot.users.load(Ordering::Relaxed));
        let slot = slot.expect("a pool of at least one stream has one by now");
        slot.users.fetch_add(1, Ordering::Relaxed);
        let lease = Arc::new(Lease { slot: Arc::clone(&slot.users) });
        Ok(Stream { _lease: Some(lease), ..slot.stream.with_scope(scope) })
    }

    /// Number of streams created so far.
    pub fn len(&self) -> usize {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
