//! Streams that somebody else made: PyTorch's, another library's, CUDA's legacy default stream.
//!
//!   raw handle ─► the driver's number for it ─► known? the same `Stream` as before
//!                                             └ new:   a stream of its own; one that had the handle before is gone
//!
//! Owner      makes it, submits to it behind our back, and destroys it. Nothing here ever destroys it. Before its owner does,
//!            `Stream::give_up` records a last event, so that what is still ordered behind it stays so.
//! Positions  others may have submitted work that is not counted here. So a position asked for now is a new point, which no
//!            clock covers; and a wait of another stream is for what the stream holds at the wait, by a fresh event each time.
//!            Nothing is elided, and a buffer that was used there is handed over and freed behind all of it.
//! Identity   handles come back after a destroy, so a handle is asked for the driver's number each time it is handed in. A
//!            stream whose handle another one has by now is gone: who waits for it waits, on the host, for the device.
//!            While a stream is captured the question would break the capture: then its handle is believed.
//! Default    handle 0 (1 is another name of it) is the legacy default stream. It waits for all blocking streams, and they for
//!            it; ours are non-blocking and need events like with any other stream. Handle 2, the per-thread default stream,
//!            is another stream in every thread that names it, and is refused.
//! Captured   by its owner at any time: whether it is, is asked before each use.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::device::Device;
use crate::driver::{CaptureMode, CaptureStatus, Driver, DriverCode, DriverError};
use crate::error::{MemoryError, Result};
use crate::event::EventCell;
use crate::order::{Mark, Position};
use crate::stream::{Stream, StreamCell};

/// CUDA's names for the default streams.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

type LastMark = Option<Mark<Arc<EventCell>>>;

/// What the cell of such a stream knows beside.
#[derive(Debug)]
pub(crate) struct External {
    /// The driver's number for it, asked for when it is first seen uncaptured. The default stream has none that could change.
    number: OnceLock<u64>,
    /// Set once it is gone: the event behind its last work, where there was time for one.
    gone: OnceLock<LastMark>,
}

impl External {
    pub(crate) fn gone(&self) -> Option<&LastMark> {
        self.gone.get()
    }
}

/// The streams of others that a device knows, by handle.
#[derive(Default)]
pub(crate) struct Externals {
    /// Whether there ever was one: who has none pays one load.
    any: AtomicBool,
    by_handle: RwLock<HashMap<u64, Arc<StreamCell>>>,
}

impl Externals {
    fn find(&self, raw: u64) -> Option<Arc<StreamCell>> {
        self.by_handle.read().unwrap_or_else(PoisonError::into_inner).get(&raw).cloned()
    }

    pub(crate) fn forget(&self, cell: &StreamCell) {
        let mut known = self.by_handle.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, other| other.id != cell.id);
    }
}

impl Device {
    /// The stream with this raw handle, which lives until it is given up. `ffi::wrap_stream` is the way in.
    pub(crate) fn external_stream(&self, raw: u64) -> Result<Stream> {
        self.alive()?;
        let raw = if raw == LEGACY { 0 } else { raw };
        if raw == PER_THREAD {
            let error = DriverError::new("cuStreamGetId", DriverCode::INVALID_HANDLE).with_detail(
                "the per-thread default stream is another stream in every thread; hand in a stream of your own, or 0",
            );
            return Err(MemoryError::Driver { error, stream: None });
        }
        let of = |cell| Stream::of(self, cell, self.scope().clone());
        let known = self.externals().find(raw);
        if let Some(cell) = &known
            && cell.external.as_ref().is_some_and(|external| external.gone().is_none())
            && self.same_stream(cell)?
        {
            return Ok(of(Arc::clone(cell)));
        }
        let mut by_handle = self.externals().by_handle.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster.
        if let Some(cell) = by_handle.get(&raw)
            && known.as_ref().is_none_or(|known| known.id != cell.id)
        {
            return Ok(of(Arc::clone(cell)));
        }
        let handle = self.check(self.driver().stream_wrap(self.id(), raw))?;
        let number = OnceLock::new();
        if raw != 0 && self.check(self.driver().stream_capture_status(handle))? == CaptureStatus::None {
            let found = self.check(self.driver().stream_id(handle))?;
            number.get_or_init(|| found);
        }
        if let Some(external) = known.as_ref().and_then(|cell| cell.external.as_ref()) {
            // Its handle is another stream's by now: it was destroyed, and nobody said so.
            external.gone.get_or_init(|| None);
        }
        self.externals().any.store(true, Ordering::Relaxed);
        let cell = self.add_stream(|id| StreamCell::wrap(id, handle, External { number, gone: OnceLock::new() }));
        by_handle.insert(raw, Arc::clone(&cell));
        Ok(of(cell))
    }

    /// What to wait for so as to come after `position`: on a stream of somebody else, everything it holds by now.
    pub(crate) fn as_of_now(&self, position: Position) -> Position {
        if !self.externals().any.load(Ordering::Relaxed) {
            return position;
        }
        match self.stream_cell(position.stream) {
            Ok(cell) if cell.external.is_some() && !cell.is_gone() => cell.position(),
            _ => position,
        }
    }

    /// Makes a call that breaks captures when a careless thread makes it: a question about an event or a wait of the host, which
    /// here are about nothing captured. Where others have streams, the thread declares so for the length of the call.
    pub(crate) fn harmless<T>(
        &self,
        call: impl FnOnce(&dyn Driver) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let driver = &**self.driver();
        if !self.externals().any.load(Ordering::Relaxed) {
            return call(driver);
        }
        let before = driver.thread_capture_mode(CaptureMode::Relaxed)?;
        let done = call(driver);
        driver.thread_capture_mode(before)?;
        done
    }

    /// Whether the handle still is that stream's.
    fn same_stream(&self, cell: &StreamCell) -> Result<bool> {
        let Some(external) = cell.external.as_ref().filter(|_| self.driver().stream_raw(cell.handle) != 0) else {
            return Ok(true);
        };
        match self.driver().stream_capture_status(cell.handle) {
            Ok(CaptureStatus::None) => {}
            Err(error) if error.code == DriverCode::INVALID_HANDLE => return Ok(false),
            Err(error) => return self.check_about(cell.id, Err(error)),
            Ok(_) => return Ok(true),
        }
        match self.driver().stream_id(cell.handle) {
            Ok(found) => Ok(*external.number.get_or_init(|| found) == found),
            Err(error) if error.code == DriverCode::INVALID_HANDLE => Ok(false),
            Err(error) => self.check_about(cell.id, Err(error)),
        }
    }

    /// Behind the last work of a stream that is gone: its last event, or nothing once the device has finished everything.
    pub(crate) fn behind_gone(&self, cell: &StreamCell, last: &LastMark) -> Result<LastMark> {
        if last.is_some() {
            return Ok(last.clone());
        }
        let clock = cell.clock();
        if !self.host_clock(|host| host.covers(cell.id.index, clock.get(cell.id.index))) {
            self.synchronize()?;
            self.host_saw(&clock);
        }
        Ok(None)
    }

    /// `Err` if nothing can be submitted to this stream now: it is gone, or captured.
    #[cold]
    pub(crate) fn may_submit(&self, cell: &StreamCell, what: &'static str) -> Result<()> {
        if cell.is_gone() {
            return Err(MemoryError::StreamGone { stream: cell.id });
        }
        match self.capture_status_of(cell)? {
            CaptureStatus::None => Ok(()),
            _ => Err(MemoryError::Capturing { what, stream: cell.id }),
        }
    }

    pub(crate) fn capture_status_of(&self, cell: &StreamCell) -> Result<CaptureStatus> {
        if cell.is_gone() || !cell.may_capture.load(Ordering::Relaxed) {
            return Ok(CaptureStatus::None);
        }
        match self.driver().stream_capture_status(cell.handle) {
            // The default stream cannot be captured, and must not be used while a stream that it waits for is.
            Err(error) if error.code == DriverCode::STREAM_CAPTURE_IMPLICIT => Ok(CaptureStatus::Invalidated),
            other => self.check_about(cell.id, other),
        }
    }
}

impl StreamCell {
    fn is_gone(&self) -> bool {
        self.external.as_ref().is_some_and(|external| external.gone().is_some())
    }
}

impl Stream {
    /// True if somebody else made it.
    pub fn is_external(&self) -> bool {
        self.cell().external.is_some()
    }

    /// True if its owner gave it up, or was found to have destroyed it.
    pub fn is_gone(&self) -> bool {
        self.cell().is_gone()
    }

    /// The stream's owner is about to destroy it: records a last event behind all of its work. What is ordered behind the
    /// stream stays so; nothing more can be submitted. Giving up twice, or a stream of ours, changes nothing.
    #[track_caller]
    pub fn give_up(&self) -> Result<()> {
        let Some(external) = &self.cell().external else { return Ok(()) };
        if external.gone().is_none() {
            let site = Location::caller();
            let last = self.device().mark_behind(self.position(), site, self.scope())?;
            external.gone.get_or_init(|| last);
            self.device().externals().forget(self.cell());
        }
        Ok(())
    }
}
