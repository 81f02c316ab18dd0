//! Streams: queues of a device, and where in them things stand.
//!
//!   stream.submit(work) ─► Position ─► other.wait_for(position)     on the device; no call if already implied
//!                                    └► stream.record()?.completed()  on the host, as a future
//!
//! Kinds      ours are non-blocking; there is no default stream. A stream that somebody else made can be wrapped (`external`).
//! Lifetime   a device keeps its streams until it closes, since positions in them may be asked for at any time.
//! Captured   while a stream is captured into a graph, everything here is refused: `graph` says why, and what to do.
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
use crate::order::{Mark, OrderTracker, Position, VectorClock, Waited};

/// Which stream, for good: never reused, unlike the driver's handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId {
    pub(crate) device_serial: u32,
    pub(crate) index: u32,
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.index)
    }
}

/// The device's side of a stream.
pub(crate) struct StreamCell {
    pub(crate) id: StreamId,
    pub(crate) handle: StreamHandle,
    cursor: Cursor<Arc<EventCell>>,
    /// Calls of the driver that submitted work; written under the lock of the order only.
    calls: AtomicU64,
    /// Whether a capture may be going on: of a stream of somebody else always, of ours while a `graph::Capture` lives.
    pub(crate) may_capture: AtomicBool,
    /// What a stream of somebody else has beside.
    pub(crate) external: Option<External>,
}

impl StreamCell {
    pub(crate) fn new(id: StreamId, handle: StreamHandle) -> Arc<Self> {
        Self::make(id, handle, None)
    }

    /// A stream that somebody else made.
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

    /// The same, unless somebody is inside a driver call with it.
    pub(crate) fn try_order(&self) -> Option<Locked<'_, Arc<EventCell>>> {
        self.cursor.try_lock()
    }

    fn called(&self) {
        self.calls.store(self.calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Everything submitted so far, and all that it comes after.
    pub(crate) fn clock(&self) -> VectorClock {
        self.order().clock().clone()
    }

    /// Where the stream stands. Others may have submitted to a stream of theirs: then this is a new point, which no event
    /// that was recorded before stands for.
    #[inline(always)]
    pub(crate) fn position(&self) -> Position {
        let seq = if self.external.is_some() { self.order().submitted() } else { self.cursor.newest() };
        Position { stream: self.id, seq }
    }

    /// Lets go of the events it keeps.
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

/// What all clones of a handle share: streams are cloned more often than they are given another scope.
struct Core {
    device: Device,
    cell: Arc<StreamCell>,
    scope: Scope,
}

impl Stream {
    /// Makes a stream of its own, for the device's lifetime. Queries take theirs from a `StreamPool`.
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

    /// The same stream, without a say in whom its pool lends it to next.
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

    /// Everything submitted so far.
    #[inline(always)]
    pub fn position(&self) -> Position {
        self.core.cell.position()
    }

    /// Makes what is submitted to this stream from now on run after `position`. Never blocks.
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
        // Before others find the wait implied.
        if let Some(log) = self.core.device.log() {
            log.waited(self.id(), before, Position { seq: mark.seq, ..position });
        }
        drop(order);
        self.core.scope.count(|c| &c.waits_inserted);
        Ok(Waited::Inserted)
    }

    /// Makes what is submitted to this stream from now on run after `event`, which may be one of another device of the same
    /// driver: the hand-over between devices, for positions belong to one. Never blocks. Returns where this stream then
    /// stands.
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

    /// Notes an order that came about outside: what is submitted from now on runs after `position`.
    pub(crate) fn knows(&self, position: Position) {
        let mut clock = VectorClock::default();
        clock.raise(position.stream.index, position.seq);
        self.cell().order().host_saw(&clock);
    }

    /// Makes a free on this stream come after `position`. A free cannot be put off: where the driver refuses the event that a wait
    /// of the device needs, the host waits instead.
    #[track_caller]
    pub(crate) fn free_after(&self, position: Position) -> Result<()> {
        match self.wait_for(position) {
            Err(error) if !error.is_capturing() && !error.is_device_lost() => {
                self.core.device.wait_without_event(position).map_err(|_| error)
            }
            waited => waited.map(|_| ()),
        }
    }

    /// True if everything up to `position` is ordered before what is submitted to this stream next.
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

    /// Marks everything submitted so far.
    #[track_caller]
    pub fn record(&self) -> Result<Event> {
        self.event_behind(self.position())
    }

    /// An event at or behind `position`, which is one of this stream.
    #[track_caller]
    pub(crate) fn event_behind(&self, position: Position) -> Result<Event> {
        let mark = self.core.device.mark_behind(position, Location::caller(), &self.core.scope)?;
        let mark = mark.ok_or(MemoryError::StreamGone { stream: position.stream })?;
        Ok(Event::new(&self.core.device, &self.core.scope, self.id(), mark))
    }

    /// Notes the device's time when it comes to this point.
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

    /// Submits one piece of work and returns where the stream then stands.
    ///
    /// `work` makes exactly one enqueueing driver call, and the bytes it touches were taken for this stream before.
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
    /// `Err` where nothing can be submitted: the device is lost, the stream's owner gave it up, or it is captured.
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

    /// Stores `value` into a word behind everything submitted so far. Not work that others could wait for.
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
    /// The newest events of every stream that the host has not seen done. A stream on which a driver call is going on, which
    /// may not come back, is left out.
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

    /// An event at or behind `position`: one that is kept, or a new one. `None` if the stream went without one, and the host
    /// has seen all of its work done.
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

/// Streams to lend: made as they are first needed, lent to the fewest users at a time, never destroyed.
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

    /// Lends the stream with the fewest users; it comes back when the last clone is dropped.
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

    /// Streams made so far.
    pub fn len(&self) -> usize {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
