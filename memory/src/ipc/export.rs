//! The exporter's side: a pool with a descriptor, and buffers that are lent out.
//!
//!   DeviceBuffer ─ share ─► LentBuffer ─┬─ reclaim(Finished) ─► DeviceBuffer, behind the importer's last use
//!                                       ├─ give_up(Keep)     ─► LentBuffer again
//!                                       ├─ give_up(Drop)     ─► freed: the importer's process is gone
//!                                       └─ dropped           ─► leaked, and the device notified

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::wire::{Finished, FinishedBy, SharedAllocation};
use super::{SharedEvent, refused};
use crate::buffer::{DeviceBuffer, DeviceView};
use crate::device::Device;
use crate::driver::HandleTypes;
use crate::error::{MemoryError, Result};
use crate::order::Position;
use crate::pool::MemoryPool;
use crate::stream::Stream;

static NEXT_POOL: AtomicU32 = AtomicU32::new(1);
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// A pool and the descriptor that lets other processes import it. The descriptor closes with it, once.
#[derive(Debug)]
pub struct ExportedPool {
    pool: MemoryPool,
    descriptor: OwnedFd,
    token: u64,
}

impl ExportedPool {
    /// A descriptor of `pool` for other processes. The pool was built with `export(HandleTypes::POSIX_FD)`.
    ///
    /// # Errors
    /// [`MemoryError::PoolRule`] for a pool that was not made for export.
    pub fn of(pool: &MemoryPool) -> Result<Self> {
        let device = pool.device();
        device.alive()?;
        let handle = match pool.driver_pool("cuMemPoolExportToShareableHandle")? {
            exported if exported.handle_types().contains(HandleTypes::POSIX_FD) => exported.handle()?,
            _ => {
                let rule = "it was not made for it; build it with `.export(HandleTypes::POSIX_FD)`";
                return refused("exporting a pool", rule);
            }
        };
        let descriptor = device.check(device.driver().pool_export(handle))?;
        // Different in every process, so that an allocation is not opened in another pool by mistake.
        let token = u64::from(std::process::id()) << 32 | u64::from(NEXT_POOL.fetch_add(1, Ordering::Relaxed));
        Ok(ExportedPool { pool: pool.clone(), descriptor, token })
    }

    /// For a transport of the caller's own, which must send it while this is alive; `IpcChannel::send_pool` does.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    pub fn pool(&self) -> &MemoryPool {
        &self.pool
    }

    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// Lends `buffer`, as `stream` leaves it, to one importer. Who shares with several importers copies the buffer, or
    /// lends it to one after the other: each one's release is waited for by itself.
    ///
    /// # Errors
    /// [`MemoryError::PoolRule`] for a buffer of another pool or of no bytes. The buffer is freed then.
    #[track_caller]
    pub fn share(&self, buffer: DeviceBuffer, stream: &Stream) -> Result<(LentBuffer, SharedAllocation)> {
        let site = Location::caller();
        const WHAT: &str = "sharing a buffer";
        if buffer.is_empty() {
            return refused(WHAT, "it has no bytes, so there is nothing to share");
        }
        if !Arc::ptr_eq(&buffer.pool().inner, &self.pool.inner) {
            let rule = "it is from another pool; allocate it from the pool that is exported";
            return refused(WHAT, rule);
        }
        let device = self.pool.device();
        let (ready, finished) = (SharedEvent::new(device)?, SharedEvent::new(device)?);
        let export = device.check(device.driver().pool_export_pointer(buffer.address()))?;
        // The importer may write: `ready` is recorded behind every use of the buffer in this process.
        let mut guard = buffer.write(stream)?;
        let shared_at = ready.record(stream, site)?;
        guard.submitted(shared_at);
        drop(guard);
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let shared = SharedAllocation {
            pool: self.token,
            number,
            len: buffer.len() as u64,
            export,
            ready: ready.handle()?,
            finished: finished.handle()?,
        };
        let lent = LentBuffer {
            pool: self.token,
            number,
            device: device.clone(),
            held: Some(Box::new(Held { buffer, ready, finished, shared_at })),
        };
        Ok((lent, shared))
    }
}

impl AsFd for ExportedPool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor()
    }
}

/// What becomes of lent memory when its importer says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnSilence {
    /// It stays lent: the importer may be slow and still use it.
    Keep,
    /// It is freed. Right only when the importer's process is gone: the system then has taken its mapping away.
    Drop,
}

/// How an importer was silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silence {
    TimedOut(Duration),
    /// Its end of the channel is closed, most likely with its process.
    Closed,
}

/// What became of a lent buffer.
#[derive(Debug)]
pub enum Returned {
    Buffer(DeviceBuffer),
    Kept { lent: LentBuffer, silence: Silence },
    Dropped { silence: Silence },
}

/// A lent buffer that could not be taken back, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotReclaimed {
    pub lent: LentBuffer,
    #[source]
    pub error: MemoryError,
}

impl NotReclaimed {
    pub(super) fn new(lent: LentBuffer, error: MemoryError) -> Self {
        NotReclaimed { lent, error }
    }
}

impl From<NotReclaimed> for MemoryError {
    fn from(failed: NotReclaimed) -> Self {
        failed.error
    }
}

#[derive(Debug)]
struct Held {
    buffer: DeviceBuffer,
    ready: SharedEvent,
    finished: SharedEvent,
    /// Where `ready` stands: who comes after `finished` comes after it.
    shared_at: Position,
}

/// A buffer that another process uses. It is not freed before that process is done with it.
#[must_use = "dropping it leaks the memory, because its importer may still use it: reclaim it, or give it up"]
#[derive(Debug)]
pub struct LentBuffer {
    pool: u64,
    number: u64,
    device: Device,
    /// `None` once it was taken back or given up.
    held: Option<Box<Held>>,
}

impl LentBuffer {
    /// As in [`SharedAllocation::number`].
    pub fn number(&self) -> u64 {
        self.number
    }

    fn held(&self) -> &Held {
        self.held.as_deref().expect("what takes it consumes the lent buffer")
    }

    /// The memory, for this process to go on using. No order with the importer is made: both may read, and who writes
    /// must have agreed on it with the other.
    pub fn view(&self) -> &DeviceView {
        self.held().buffer.as_view()
    }

    /// Takes the buffer back. With a `finished` event, `stream` waits for it on the device, and everything that uses or
    /// frees the buffer afterwards comes behind; with the word of the importer's host nothing is left to wait for.
    ///
    /// # Errors
    /// [`NotReclaimed`] when the word is of another allocation or the wait cannot be made.
    #[track_caller]
    pub fn reclaim(mut self, finished: &Finished, stream: &Stream) -> std::result::Result<DeviceBuffer, NotReclaimed> {
        let site = Location::caller();
        if (finished.pool, finished.number) != (self.pool, self.number) {
            let (given, lent) = (finished.number, self.number);
            return Err(NotReclaimed::new(self, MemoryError::IpcOtherAllocation { given, lent }));
        }
        if finished.by == FinishedBy::Event {
            let held = self.held();
            let waited = held.finished.wait(stream, site).and_then(|_| {
                stream.knows(held.shared_at);
                // The guard waits for what this process has used the buffer for since.
                held.buffer.write(stream)?.submitted(stream.position());
                Ok(())
            });
            if let Err(error) = waited {
                return Err(NotReclaimed::new(self, error));
            }
        }
        Ok(self.held.take().expect("not taken yet").buffer)
    }

    /// Decides without the importer. Returns the lent buffer if it is kept.
    pub fn give_up(mut self, on_silence: OnSilence) -> Option<LentBuffer> {
        match on_silence {
            OnSilence::Keep => Some(self),
            OnSilence::Drop => {
                self.held = None;
                None
            }
        }
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let Held { buffer, ready, finished, .. } = *held;
        buffer.leak();
        // The events too: the importer may record one of them.
        ready.leak();
        finished.leak();
        self.device.report(MemoryError::IpcLeaked { number: self.number, bytes: buffer.allocated_bytes() });
    }
}
