//! Events: immutable marks in a stream.
//!
//!   stream.record() ──► Event ──► query, synchronize, completed       shared by clones; stream waits use it inside
//!        ▲                │
//!   EventPool ◄───────────┘ the handle returns with the last clone of the event, and only then is it recorded again
//!
//! Time       a `TimeMark` is an event with a clock: more expensive, for measurements only.
//! Order      once the host has seen an event complete, all later submissions of the host are ordered after the event's
//!            clock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::counters::Scope;
use crate::device::Device;
use crate::driver::EventHandle;
use crate::error::Result;
use crate::event_pool::EventPool;
use crate::ids::StreamId;
use crate::order::{Mark, Position};
use crate::pending::Pending;

/// A recorded handle; returned to the pool when the last clone is dropped.
pub(crate) struct EventCell {
    pub(crate) handle: EventHandle,
    done: AtomicBool,
    pool: Arc<EventPool>,
}

impl EventCell {
    pub(crate) fn new(handle: EventHandle, pool: &Arc<EventPool>) -> Arc<Self> {
        Arc::new(EventCell { handle, done: AtomicBool::new(false), pool: Arc::clone(pool) })
    }
}

impl Drop for EventCell {
    fn drop(&mut self) {
        self.pool.give(self.handle);
    }
}

impl fmt::Debug for EventCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.handle)
    }
}

/// A mark behind everything submitted to a stream before it was recorded.
#[derive(Clone)]
pub struct Event {
    /// Declared before the device, so that the handle returns to the pool before the device closes.
    mark: Mark<Arc<EventCell>>,
    stream: StreamId,
    scope: Scope,
    device: Device,
}

impl Event {
    pub(crate) fn new(device: &Device, scope: &Scope, stream: StreamId, mark: Mark<Arc<EventCell>>) -> Self {
        Event { device: device.clone(), scope: scope.clone(), stream, mark }
    }

    pub fn position(&self) -> Position {
        Position { stream: self.stream, seq: self.mark.seq }
    }

    /// True once everything up to the event has finished. Never blocks.
    pub fn query(&self) -> Result<bool> {
        let cell = &self.mark.event;
        if self.is_known_done() {
            return Ok(true);
        }
        self.device.alive()?;
        let done = self.device.check_on(self.stream, self.device.harmless(|driver| driver.event_query(cell.handle)))?;
        if done {
            self.saw_done();
        }
        Ok(done)
    }

    /// Blocks this thread until everything up to the event has finished. Counted as a host wait.
    pub fn synchronize(&self) -> Result<()> {
        self.scope.count(|c| &c.host_waits);
        self.wait_uncounted()
    }

    pub(crate) fn wait_uncounted(&self) -> Result<()> {
        if self.is_known_done() {
            return Ok(());
        }
        self.device.alive()?;
        self.device.wait_until(|| self.query())?;
        // Passed already if waits have a limit. The call is still made: the driver maintains its pools at a
        // synchronization.
        self.device
            .check_on(self.stream, self.device.harmless(|driver| driver.event_synchronize(self.mark.event.handle)))?;
        self.saw_done();
        Ok(())
    }

    /// Ends when everything up to the event has finished, without blocking a thread.
    pub fn completed(&self) -> Pending<()> {
        Pending::behind(self.clone(), ())
    }

    /// True if the host already saw the event complete, without a driver call.
    pub(crate) fn is_known_done(&self) -> bool {
        self.mark.event.done.load(Ordering::Acquire)
            || self.device.host_clock(|host| host.covers(self.stream.index, self.mark.seq))
    }

    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn handle(&self) -> EventHandle {
        self.mark.event.handle
    }

    pub(crate) fn stream_id(&self) -> StreamId {
        self.stream
    }

    fn saw_done(&self) {
        // Logged before other threads act on it.
        if let Some(log) = self.device.log() {
            log.synchronized(self.position());
        }
        self.device.watchdog().progressed();
        self.mark.event.done.store(true, Ordering::Release);
        self.device.host_saw(&self.mark.snapshot);
    }
}

/// A moment on the device's clock, in a stream. For reports and benchmarks; ordering does not use it.
pub struct TimeMark {
    handle: EventHandle,
    device: Device,
}

impl TimeMark {
    pub(crate) fn new(device: &Device, handle: EventHandle) -> Self {
        TimeMark { handle, device: device.clone() }
    }

    /// True if the mark belongs to `device`.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        self.device == *device
    }

    /// Milliseconds of device time since `earlier`. Both marks must have passed; the simulated device returns 0.
    pub fn ms_since(&self, earlier: &TimeMark) -> Result<f32> {
        self.device.alive()?;
        self.device.check(self.device.driver().event_elapsed_ms(earlier.handle, self.handle))
    }
}

impl Drop for TimeMark {
    fn drop(&mut self) {
        if self.device.is_lost() {
            return;
        }
        if let Err(error) = self.device.check(self.device.driver().event_destroy(self.handle)) {
            self.device.report(error);
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event behind {} · {}", self.stream, self.mark.seq)
    }
}
