//! Buffers of a pinned pool: lent to the host, copied to and from a device, returned once the device is past them.

use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use super::{FrozenBlock, HostBlock, HostReadGuard, HostSpan, HostWriteGuard, PoolInner};
use crate::buffer::{DeviceView, UseGuard};
use crate::driver::{Access, CopyOp, HostKind, Site};
use crate::error::{MemoryError, Result};
use crate::order::Position;
use crate::pending::Pending;
use crate::recorder::{Submission, WorkKind};
use crate::stream::Stream;

/// Pinned host memory with one owner. Returns to its pool when dropped, once the device is past it.
pub struct PinnedBuffer {
    /// `None` only while it is dropped.
    pub(super) block: Option<Arc<HostBlock>>,
    pub(super) len: usize,
    pub(super) pool: Arc<PoolInner>,
    /// Newest copy, on a stream that waited for the earlier ones.
    pub(super) last: Option<(Stream, Position)>,
}

impl PinnedBuffer {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn kind(&self) -> HostKind {
        self.block().kind()
    }

    /// Bytes that fit without another allocation.
    pub fn capacity(&self) -> usize {
        self.block().len()
    }

    /// Changes the length, within the capacity.
    pub fn set_len(&mut self, len: usize) -> Result<()> {
        if len > self.capacity() {
            return Err(MemoryError::Range { what: "a length", offset: 0, wanted: len, len: self.capacity() });
        }
        self.len = len;
        Ok(())
    }

    fn block(&self) -> &Arc<HostBlock> {
        self.block.as_ref().expect("a pinned buffer in use has its block")
    }

    /// Lends the bytes for reading.
    ///
    /// # Errors
    /// [`MemoryError::HostBusy`] during a copy into them.
    #[track_caller]
    pub fn read(&self) -> Result<HostReadGuard<'_>> {
        self.host_access(Access::Read, Location::caller())?;
        self.block().read_prefix(self.len)
    }

    /// Lends the bytes for writing.
    ///
    /// # Errors
    /// [`MemoryError::HostBusy`] during a copy from or into them.
    #[track_caller]
    pub fn write(&mut self) -> Result<HostWriteGuard<'_>> {
        self.host_access(Access::ReadWrite, Location::caller())?;
        self.block().write_prefix(self.len)
    }

    fn host_access(&self, access: Access, site: Site) -> Result<()> {
        if !self.is_idle()? {
            return Err(MemoryError::HostBusy("a copy of it may still be running; await it first"));
        }
        let span = HostSpan::new(self.block(), 0, self.len)?;
        self.pool.device.driver().host_access(&span, access, site);
        Ok(())
    }

    /// True if the device is known to be past all copies.
    pub fn is_idle(&self) -> Result<bool> {
        match &self.last {
            None => Ok(true),
            Some((stream, position)) if stream.device().host_is_after(*position) => Ok(true),
            Some((stream, position)) => stream.event_behind(*position)?.query(),
        }
    }

    /// Copies the whole buffer to `to`. Returns the buffer when the copy has finished.
    ///
    /// # Errors
    /// [`MemoryError::Range`] if the lengths differ.
    #[track_caller]
    pub fn copy_to_device(mut self, to: &DeviceView, stream: &Stream) -> Result<Pending<PinnedBuffer>> {
        self.enqueue(Direction::Up, 0..self.len, to, stream, Location::caller())?;
        self.idle()
    }

    /// Copies all of `from` into the buffer. Returns the filled buffer when the copy has finished.
    ///
    /// # Errors
    /// [`MemoryError::Range`] if the lengths differ.
    #[track_caller]
    pub fn copy_to_host(mut self, from: &DeviceView, stream: &Stream) -> Result<Pending<PinnedBuffer>> {
        self.enqueue(Direction::Down, 0..self.len, from, stream, Location::caller())?;
        self.idle()
    }

    /// Copies a part of the buffer to `to`; more copies may follow until `idle` or a drop.
    #[track_caller]
    pub fn enqueue_to_device(&mut self, range: Range<usize>, to: &DeviceView, stream: &Stream) -> Result<()> {
        self.enqueue(Direction::Up, range, to, stream, Location::caller())
    }

    /// Copies `from` into a part of the buffer; more copies may follow until `idle` or a drop.
    #[track_caller]
    pub fn enqueue_to_host(&mut self, range: Range<usize>, from: &DeviceView, stream: &Stream) -> Result<()> {
        self.enqueue(Direction::Down, range, from, stream, Location::caller())
    }

    /// Orders later work of `stream` after all copies, so that a wait for that work includes them.
    #[track_caller]
    pub fn goes_before(&self, stream: &Stream) -> Result<()> {
        if let Some((_, position)) = &self.last {
            stream.wait_for(*position)?;
        }
        Ok(())
    }

    /// Returns the buffer when all copies have finished.
    #[track_caller]
    pub fn idle(self) -> Result<Pending<PinnedBuffer>> {
        let Some((stream, position)) = &self.last else { return Ok(Pending::ready(self)) };
        let event = stream.event_behind(*position)?;
        let feeds = self.kind() == HostKind::Upload;
        let pending = Pending::behind_with(event, move || {
            let mut buffer = self;
            buffer.last = None;
            Ok(buffer)
        });
        Ok(if feeds { pending.feeding() } else { pending })
    }

    fn enqueue(
        &mut self,
        direction: Direction,
        range: Range<usize>,
        device: &DeviceView,
        stream: &Stream,
        site: Site,
    ) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        if len != device.len() || range.end > self.len {
            let (what, offset) = ("a copy", range.start);
            return Err(MemoryError::Range { what, offset, wanted: len.max(device.len()), len: self.len });
        }
        if len == 0 {
            return Ok(());
        }
        let host = HostSpan::new(self.block(), range.start, len)?;
        if let Some((_, position)) = &self.last {
            stream.wait_for(*position)?;
        }
        let (access, copy) = match direction {
            Direction::Up => (Access::Write, CopyOp::HostToDevice { from: host, to: device.address() }),
            Direction::Down => (Access::Read, CopyOp::DeviceToHost { from: device.address(), to: host }),
        };
        let mut guard = UseGuard::take(device, access, stream, site)?;
        if !self.block().is_page_locked() {
            // The driver waits for the stream before such a copy. Waiting here first applies the time limit.
            let position = stream.position();
            if position.seq() > 0 && !stream.device().host_is_after(position) {
                let event = stream.event_behind(position)?;
                stream.device().wait_until(|| event.query())?;
            }
        }
        let submission = Submission::begin(stream);
        let (_, position) = stream.submit(|driver, on| driver.copy(&copy, on, site))?;
        guard.submitted(position);
        if let Some(submission) = submission {
            let (kind, read, written) = match direction {
                Direction::Up => (WorkKind::Upload, 0, len),
                Direction::Down => (WorkKind::Download, len, 0),
            };
            submission.submitted(kind, read as u64, written as u64);
        }
        self.last = Some((stream.clone(), position));
        match direction {
            Direction::Up => {
                stream.scope().count(|c| &c.uploads);
                stream.scope().add(|c| &c.uploaded_bytes, len as u64);
            }
            Direction::Down => {
                stream.scope().count(|c| &c.downloads);
                stream.scope().add(|c| &c.downloaded_bytes, len as u64);
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

/// Returns a block to its pool when dropped.
struct Returning {
    block: Option<Arc<HostBlock>>,
    pool: Arc<PoolInner>,
}

impl Drop for Returning {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.recycle(block);
        }
    }
}

/// Pinned host memory that several readers share while parts of it are uploaded.
pub struct PinnedBytes {
    bytes: FrozenBlock,
    buffer: Mutex<PinnedBuffer>,
    len: usize,
}

impl PinnedBuffer {
    /// Ends writing: no more copies into the buffer.
    ///
    /// # Errors
    /// [`MemoryError::HostBusy`] during a copy from or into it.
    #[track_caller]
    pub fn freeze(self) -> Result<PinnedBytes> {
        self.host_access(Access::Read, Location::caller())?;
        let (bytes, len) = (self.block().freeze()?, self.len);
        Ok(PinnedBytes { bytes, buffer: Mutex::new(self), len })
    }
}

impl PinnedBytes {
    /// Copies a part to `to`; the buffer may be dropped before the copy has finished.
    ///
    /// # Errors
    /// [`MemoryError::Range`] if the lengths differ.
    #[track_caller]
    pub fn enqueue_to_device(&self, range: Range<usize>, to: &DeviceView, stream: &Stream) -> Result<()> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        buffer.enqueue(Direction::Up, range, to, stream, Location::caller())
    }
}

impl std::ops::Deref for PinnedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for PinnedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pinned bytes that are read", self.len)
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let returning = Returning { block: self.block.take(), pool: Arc::clone(&self.pool) };
        let Some((stream, position)) = self.last.take() else { return };
        if stream.device().host_is_after(position) {
            return;
        }
        match stream.event_behind(position) {
            // Dropped at once: the poller keeps the block until the device is past it.
            Ok(event) => drop(Pending::behind(event, returning)),
            // `recycle` retires the blocks of a lost device.
            Err(error) if error.is_device_lost() => {}
            // Without an event the host waits instead; if the end of a copy cannot be detected, its block is leaked.
            Err(error) => match stream.device().wait_without_event(position) {
                Ok(()) => {}
                Err(lost) if lost.is_device_lost() => {}
                Err(_) => {
                    std::mem::forget(returning);
                    self.pool.device.report(error);
                }
            },
        }
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pinned bytes ({:?})", self.len, self.kind())
    }
}
