//! The importer's side: a pool that only opens what another process allocated.
//!
//!   ImportedPool ─ open ─► ImportedBuffer (a DeviceView) ─ last drop ─► freed, `finished` recorded ─► take_finished
//!
//! Nothing else   no allocator, no threshold, no trim, not to be made current: this type has no such function, and the
//!                driver's pool refuses them.
//! Devices        one view of the pool for each device that was let in; a buffer belongs to the device of the stream
//!                that opened it.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::wire::{Finished, FinishedBy, SharedAllocation};
use super::{SharedEvent, refused};
use crate::buffer::{ALIGNMENT, DeviceBuffer, DeviceView};
use crate::device::Device;
use crate::driver::{DeviceId, DevicePtr, PoolHandle, Site};
use crate::error::{MemoryError, Result};
use crate::event::Event;
use crate::peer;
use crate::pool::MemoryPool;
use crate::resource::{DeviceMemoryResource, RawAllocation, ResourceStatistics};
use crate::stream::Stream;
use crate::units::ByteSize;

/// What is counted of an imported pool: only what this process imported. Nothing of the exporter's is seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ImportedStatistics {
    pub imported_bytes: ByteSize,
    pub imported_peak: ByteSize,
}

/// Maximum number of pending releases before completed ones are removed.
const MOST_RELEASED: usize = 64;

/// An imported allocation that is open in this process. Its event belongs to the exporter, which destroys it after
/// the acknowledgement: nothing here uses it after that.
struct Opened {
    pool: u64,
    number: u64,
    finished: SharedEvent,
}

#[derive(Default)]
struct Books {
    opened: BTreeMap<DevicePtr, Opened>,
    /// Released: the allocation's number, and an event of our own behind the record of `finished`.
    released: Vec<(u64, Event)>,
    /// Acknowledgements to send to the exporter.
    outbox: Vec<Finished>,
}

/// The driver's pool, destroyed when the last buffer is back.
struct Shared {
    device: Device,
    handle: PoolHandle,
    /// The exporter's own name for it; `None` where a foreign transport did not bring it.
    token: Option<u64>,
    books: Mutex<Books>,
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.device.is_lost() {
            return;
        }
        // An event that never completes would block the exporter forever.
        let released = std::mem::take(&mut self.books().released);
        for (_, event) in &released {
            if let Err(error) = event.synchronize() {
                self.device.report(error);
            }
        }
        if let Err(error) = self.device.check(self.device.driver().pool_destroy(self.handle)) {
            self.device.report(error);
        }
    }
}

/// Another process's pool.
pub struct ImportedPool {
    shared: Arc<Shared>,
    /// For each device with access, what its buffers are given back to.
    users: BTreeMap<DeviceId, MemoryPool>,
}

impl ImportedPool {
    /// Imports a pool by its descriptor, which stays the caller's and may be closed afterwards. The pool's memory lies
    /// on `device`; where that one is not visible here, on any device that is let in by `enable_access`.
    ///
    /// # Errors
    /// What the driver says: a descriptor of something else, a device that cannot.
    pub fn import(descriptor: impl AsFd, device: &Device) -> Result<Self> {
        Self::import_with_token(descriptor, device, None)
    }

    pub(super) fn import_with_token(descriptor: impl AsFd, device: &Device, token: Option<u64>) -> Result<Self> {
        device.alive()?;
        let handle = device.check(device.driver().pool_import(device.id(), descriptor.as_fd()))?;
        let shared = Shared { device: device.clone(), handle, token, books: Mutex::default() };
        Ok(ImportedPool { shared: Arc::new(shared), users: BTreeMap::new() })
    }

    /// Lets these devices use what is opened from the pool, now and later. Needed for every device that does, the one
    /// where the memory lies included: an imported pool inherits no access. There is no way back: access stays for the
    /// pool's life.
    ///
    /// # Errors
    /// [`MemoryError::PeerUnsupported`] for a device that cannot reach the memory.
    pub fn enable_access(mut self, devices: &[&Device]) -> Result<Self> {
        let home = &self.shared.device;
        for device in devices {
            if self.users.contains_key(&device.id()) {
                continue;
            }
            // The driver's own refusal may come late, at the first use.
            if *device != home {
                peer::check_reach(device, home)?;
            }
            home.alive()?;
            home.check(home.driver().pool_set_access(self.shared.handle, device.id(), true))?;
            let resource = Arc::new(ImportedMemory { shared: Arc::clone(&self.shared), device: (*device).clone() });
            // The exporter's limit holds, not one of ours.
            let pool = MemoryPool::builder(device).limit(ByteSize(u64::MAX)).resource(resource).build()?;
            self.users.insert(device.id(), pool);
        }
        Ok(self)
    }

    /// True if streams of `device` may use what is opened.
    pub fn has_access(&self, device: &Device) -> bool {
        self.users.contains_key(&device.id())
    }

    /// Where the memory lies.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// Opens an allocation. `stream`, and with it every use of the buffer, comes after the exporter's `ready`; the host
    /// does not wait.
    ///
    /// # Errors
    /// [`MemoryError::PoolRule`] if the stream's device was not let in, or the allocation is of another pool;
    /// [`MemoryError::IpcOversized`] if the message says more bytes than there are; else what the driver says.
    #[track_caller]
    pub fn open(&self, allocation: SharedAllocation, stream: &Stream) -> Result<ImportedBuffer> {
        let site = Location::caller();
        const WHAT: &str = "opening a shared allocation";
        let Some(pool) = self.users.get(&stream.device().id()) else {
            let rule =
                "an imported pool starts without access for any device; call enable_access with the stream's device";
            return refused(WHAT, rule);
        };
        if self.shared.token.is_some_and(|token| token != allocation.pool) {
            let rule = "it is of another pool; open it from the pool that its exporter sent";
            return refused(WHAT, rule);
        }
        let is_it = |opened: &Opened| (opened.pool, opened.number) == (allocation.pool, allocation.number);
        if self.shared.books().opened.values().any(is_it) {
            let rule = "it is open here already; clone the view that there is";
            return refused(WHAT, rule);
        }
        let len = allocation.len();
        let Some(padded) = len.checked_next_multiple_of(ALIGNMENT).and_then(NonZeroUsize::new) else {
            return Err(MemoryError::Range { what: "a shared allocation", offset: 0, wanted: len, len: usize::MAX });
        };
        let device = stream.device();
        let ready = SharedEvent::open(device, &allocation.ready)?;
        let finished = SharedEvent::open(device, &allocation.finished)?;
        ready.wait(stream, site)?;
        let driver = device.driver();
        let ptr = device.check(driver.pool_import_pointer(self.shared.handle, &allocation.export, site))?;
        let padded = match self.checked_len(ptr, len, padded, allocation.number, device) {
            Ok(padded) => padded,
            Err(error) => {
                stream.submit(|driver, on| driver.free_async(ptr, on, site))?;
                return Err(error);
            }
        };
        self.shared.books().opened.insert(ptr, Opened { pool: allocation.pool, number: allocation.number, finished });
        let raw = adopt(pool, ptr, padded);
        let buffer = DeviceBuffer::adopt(raw, len, stream, pool, site);
        Ok(ImportedBuffer { buffer, number: allocation.number, shared: Arc::clone(&self.shared) })
    }

    /// The bytes of the allocation at `ptr` that are used here: what the message says, padded, as far as there are so
    /// many.
    fn checked_len(
        &self,
        ptr: DevicePtr,
        len: usize,
        padded: NonZeroUsize,
        number: u64,
        device: &Device,
    ) -> Result<NonZeroUsize> {
        let range = device.check(device.driver().pointer_attributes(ptr))?;
        let before = ptr.0.checked_sub(range.start.0).and_then(|before| usize::try_from(before).ok());
        let found = before.and_then(|before| range.len.checked_sub(before)).unwrap_or(0);
        let (claimed, found_bytes) = (ByteSize::from(len), ByteSize::from(found));
        let oversized = MemoryError::IpcOversized { number, claimed, found: found_bytes };
        if len > found { Err(oversized) } else { NonZeroUsize::new(padded.get().min(found)).ok_or(oversized) }
    }

    /// Acknowledgements since the last call, to send to the exporter. One is added when the last view of a buffer is
    /// dropped.
    pub fn take_finished(&self) -> Vec<Finished> {
        std::mem::take(&mut self.shared.books().outbox)
    }

    /// What this process imported, nothing of the exporter's. The counts are ours: drivers refuse to tell (580 does).
    pub fn statistics(&self) -> ImportedStatistics {
        ImportedStatistics {
            imported_bytes: self.users.values().map(MemoryPool::used_bytes).sum(),
            imported_peak: self.users.values().map(MemoryPool::peak_bytes).sum(),
        }
    }
}

/// Counts memory that came otherwise than by `allocate`; it goes back by `deallocate`.
fn adopt(pool: &MemoryPool, ptr: DevicePtr, len: NonZeroUsize) -> RawAllocation {
    let (ledger, bytes) = (&pool.inner.pressure.ledger, len.get() as u64);
    ledger.retire(pool.device());
    ledger.take(bytes, u64::MAX);
    ledger.allocated(bytes);
    RawAllocation { ptr, len }
}

impl fmt::Debug for ImportedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users: Vec<String> = self.users.keys().map(DeviceId::to_string).collect();
        write!(f, "imported pool of {}, used by [{}]", self.shared.device.id(), users.join(", "))
    }
}

/// Another process's memory, as a view that every launch and copy takes.
///
/// With the last view of it the memory is released in stream order, behind all uses of this process, and the exporter's
/// `finished` is recorded: [`ImportedPool::take_finished`] then has the word to send.
pub struct ImportedBuffer {
    buffer: DeviceBuffer,
    number: u64,
    shared: Arc<Shared>,
}

impl ImportedBuffer {
    /// As in [`SharedAllocation::number`].
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Releases the memory and waits on the host until the device is past it. The word is then the host's: the exporter
    /// has nothing to wait for.
    ///
    /// # Errors
    /// [`MemoryError::PoolRule`] while other views exist: with the last of them the memory is released as by a drop.
    pub fn finish_on_host(self) -> Result<Finished> {
        let ImportedBuffer { buffer, number, shared } = self;
        drop(buffer);
        let released = {
            let mut books = shared.books();
            let index = books.released.iter().position(|(released, _)| *released == number);
            index.map(|index| books.released.swap_remove(index))
        };
        let Some((_, behind)) = released else {
            let rule = "other views of the memory exist; it is released with the last of them";
            return refused("finishing with a shared allocation", rule);
        };
        behind.synchronize()?;
        let mut books = shared.books();
        let index = books.outbox.iter().position(|finished| finished.number == number);
        let mut finished = index.map(|index| books.outbox.swap_remove(index)).expect("put there with the record");
        finished.by = FinishedBy::Host;
        Ok(finished)
    }
}

impl std::ops::Deref for ImportedBuffer {
    type Target = DeviceView;
    fn deref(&self) -> &DeviceView {
        &self.buffer
    }
}

impl fmt::Debug for ImportedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "imported allocation {} of {} bytes", self.number, self.buffer.len())
    }
}

/// What the buffers of one device are given back to.
struct ImportedMemory {
    shared: Arc<Shared>,
    device: Device,
}

impl DeviceMemoryResource for ImportedMemory {
    fn name(&self) -> &'static str {
        "imported"
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn allocate(&self, _: NonZeroUsize, _: &Stream, _: Site) -> Result<RawAllocation> {
        let rule = "another process's pool only opens what that process allocated";
        refused("allocating from an imported pool", rule)
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        let opened = self.shared.books().opened.remove(&raw.ptr());
        let Some(Opened { pool, number, finished }) = opened else {
            return Err(MemoryError::NotHandedOut { resource: self.name(), ptr: raw.ptr(), site });
        };
        // The release here comes before the one there: the event stands behind it.
        stream.submit(|driver, on| driver.free_async(raw.ptr(), on, site))?;
        finished.record(stream, site)?;
        let behind = stream.record()?;
        // Destroyed before the exporter can hear of it.
        drop(finished);
        let mut books = self.shared.books();
        books.outbox.push(Finished { pool, number, by: FinishedBy::Event });
        books.released.push((number, behind));
        if books.released.len() > MOST_RELEASED {
            // One that cannot be asked is kept: the pool's end waits for it and reports.
            books.released.retain(|(_, event)| !event.query().unwrap_or(false));
        }
        Ok(())
    }

    fn trim(&self, _: ByteSize) -> Result<()> {
        let rule = "its physical memory is the exporter's, and is not given back while the pool lives";
        refused("trimming an imported pool", rule)
    }

    fn statistics(&self) -> Result<ResourceStatistics> {
        Ok(ResourceStatistics::default())
    }

    fn reset_peaks(&self) -> Result<()> {
        Ok(())
    }
}

impl fmt::Debug for ImportedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "imported memory for {}", self.device.id())
    }
}
