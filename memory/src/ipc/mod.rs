//! Device memory that two processes use: nothing is copied, and each knows when the other is done.
//!
//! ```text
//!   exporter                                         importer
//!   ExportedPool::of(&pool) ──────── descriptor ──►  ImportedPool ─ enable_access(&[devices])
//!   exported.share(buffer) ─► LentBuffer
//!                        └──► SharedAllocation ───►  imported.open(shared, stream) ─► ImportedBuffer: waits on `ready`
//!                                                    … kernels, copies …
//!   lent.reclaim(finished) ◄──────── Finished ─────  drop: freed, `finished` recorded behind the last use
//!   └─► DeviceBuffer, behind `finished`
//! ```
//!
//! Free order   the importer's first. The exporter has a `LentBuffer`, which neither frees nor gives the buffer back
//!              without the importer's `Finished`.
//! Events       belong to the exporter, so that a crashed importer destroys none. The importer closes `finished` before
//!              it acknowledges, because the exporter then destroys the event.
//! Ready        import does not wait for the allocation: `open` does, on the device.
//! Access       an imported pool inherits none. Every device that will use it is named to `enable_access`.
//! Importer     has no allocator, threshold or trim, and cannot be a device's current pool. Its statistics cover only
//!              its own imports.
//! Exporter     an exportable pool returns no memory to the system: trim has no effect, the threshold is ignored.
//! Trust        a peer of the same user, trusted as little as possible: the allocation size in its message is checked
//!              against the driver's.
//! Silence      an importer that crashed sends nothing: the exporter waits for a timeout, then keeps the memory or
//!              drops it, according to `OnSilence`.
//! Waits        dropping an `ImportedPool` waits on the host for the releases that were recorded, so that an importer
//!              which ends in order never leaves an event that cannot pass. One that crashes after its acknowledgement,
//!              before its device has recorded the event, may leave one; `finish_on_host` avoids that.
//! Start        processes by exec, not by fork alone: a driver does not survive a fork.

mod channel;
mod export;
mod import;
mod wire;

pub use channel::{IpcChannel, MOST_WAITING, MOST_WAITING_POOLS};
pub use export::{ExportedPool, LentBuffer, NotReclaimed, OnSilence, Returned, Silence};
pub use import::{ImportedBuffer, ImportedPool, ImportedStatistics};
pub use wire::{Finished, FinishedBy, SharedAllocation, WIRE_VERSION};

use crate::device::Device;
use crate::driver::{EventFlags, EventHandle, OpaqueHandle, Site};
use crate::error::{MemoryError, Result};
use crate::order::Position;
use crate::stream::Stream;

fn refused<T>(what: &'static str, rule: &'static str) -> Result<T> {
    Err(MemoryError::PoolRule { what, rule: rule.into() })
}

/// An event that two processes know: made here, or opened. Destroyed with its holder.
#[derive(Debug)]
struct SharedEvent {
    device: Device,
    handle: EventHandle,
    leaked: bool,
}

impl SharedEvent {
    /// Interprocess and without timing: the only kind that can be shared.
    fn new(device: &Device) -> Result<Self> {
        device.alive()?;
        let handle = device.check(device.driver().event_create(device.id(), EventFlags::INTERPROCESS))?;
        Ok(SharedEvent { device: device.clone(), handle, leaked: false })
    }

    fn open(device: &Device, handle: &OpaqueHandle) -> Result<Self> {
        device.alive()?;
        let handle = device.check(device.driver().event_open_ipc(device.id(), handle))?;
        Ok(SharedEvent { device: device.clone(), handle, leaked: false })
    }

    fn handle(&self) -> Result<OpaqueHandle> {
        self.device.check(self.device.driver().event_ipc_handle(self.handle))
    }

    fn record(&self, stream: &Stream, site: Site) -> Result<Position> {
        Ok(stream.submit(|driver, on| driver.event_record(self.handle, on, site))?.1)
    }

    fn wait(&self, stream: &Stream, site: Site) -> Result<Position> {
        Ok(stream.submit(|driver, on| driver.stream_wait(on, self.handle, site))?.1)
    }

    /// Leaves the event to the driver: another process may still use it.
    fn leak(mut self) {
        self.leaked = true;
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        if self.leaked || self.device.is_lost() {
            return;
        }
        if let Err(error) = self.device.check(self.device.driver().event_destroy(self.handle)) {
            self.device.report(error);
        }
    }
}
