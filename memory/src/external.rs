//! External streams: created by PyTorch, another library, or CUDA itself (the legacy default stream).
//!
//!   raw handle ─► the driver's ID for it ─► known? the same `Stream` as before
//!                                          └ new:   a new `Stream`; an older one with this handle is gone
//!
//! Owner      creates the stream, submits work that is not visible here, and destroys it. This crate never destroys it.
//!            Before the owner does, `Stream::give_up` records a last event, which keeps dependent work ordered.
//! Positions  the owner may have submitted uncounted work. So each position is a new point that no clock covers, and a
//!            wait of another stream waits for the stream's current work by a fresh event. No wait is elided, and a
//!            buffer used there is handed over and freed behind all of its work.
//! Identity   handles are reused after a destroy, so the driver's ID of a handle is queried each time it is passed in.
//!            A stream whose handle now has another ID is gone: a wait for it waits on the host for the device. During
//!            a capture the query would break the capture, so the handle is trusted.
//! Default    handle 0 (alias 1) is the legacy default stream. It synchronizes with all blocking streams; ours are
//!            non-blocking and need events as with any other stream. Handle 2, the per-thread default stream, is a
//!            different stream in each thread, and is refused.
//! Captured   by its owner at any time: the capture status is queried before each use.

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

/// CUDA's handles of the default streams.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

type LastMark = Option<Mark<Arc<EventCell>>>;

/// Extra state of the cell of an external stream.
#[derive(Debug)]
pub(crate) struct External {
    /// The driver's ID, queried when the stream is first seen uncaptured. Unset for the default stream, which cannot
    /// change.
    number: OnceLock<u64>,
    /// Set once the stream is gone: the event behind its last work, if one could be recorded.
    gone: OnceLock<LastMark>,
}

impl External {
    pub(crate) fn gone(&self) -> Option<&LastMark> {
        self.gone.get()
    }
}

/// External streams of a device, by handle.
#[derive(Default)]
pub(crate) struct Externals {
    /// Whether any was ever registered: without external streams, a check costs one load.
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
    /// The stream with this raw handle, which lives until it is given up. Public entry: `ffi::wrap_stream`.
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
        // Another thread may have registered it first.
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
            // The handle now belongs to another stream: the old one was destroyed without `give_up`.
            external.gone.get_or_init(|| None);
        }
        self.externals().any.store(true, Ordering::Relaxed);
        let cell = self.add_stream(|id| StreamCell::wrap(id, handle, External { number, gone: OnceLock::new() }));
        by_handle.insert(raw, Arc::clone(&cell));
        Ok(of(cell))
    }

    /// Position to wait for instead of `position`: on an external stream, all of its current work.
    pub(crate) fn as_of_now(&self, position: Position) -> Position {
        if !self.externals().any.load(Ordering::Relaxed) {
            return position;
        }
        match self.stream_cell(position.stream) {
            Ok(cell) if cell.external.is_some() && !cell.is_gone() => cell.position(),
            _ => position,
        }
    }

    /// Makes an event query or a host wait, which would break captures of other threads although it touches nothing
    /// captured. If external streams are registered, the thread's capture mode is relaxed during the call.
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

    /// Whether the handle still refers to this stream.
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

    /// Event behind the last work of a stream that is gone; `None` once the device has finished everything.
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

    /// `Err` if nothing can be submitted to the stream now, because it is gone or captured.
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
            // The default stream cannot be captured, and must not be used while a stream that it synchronizes with is
            // captured.
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
    /// True if the stream was created outside this crate.
    pub fn is_external(&self) -> bool {
        self.cell().external.is_some()
    }

    /// True if the owner gave it up, or was found to have destroyed it.
    pub fn is_gone(&self) -> bool {
        self.cell().is_gone()
    }

    /// Call before the owner destroys the stream: records a last event behind all of its work. Dependent work stays
    /// ordered; nothing more can be submitted. Repeated calls, and calls on streams of this crate, have no effect.
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
