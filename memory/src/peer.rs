//! Access by one device to another device's memory.
//!
//!   pool.peer_access(&other)?.enable()?      once, for all the pool's memory, now and later
//!
//!   own stream    write ── event ─┐                          ┌─ wait ── write, free
//!   peer stream                   └─ wait ── peer's use ── event
//!
//! Access     is checked with the devices before it is set: a driver may accept an impossible peer on an empty pool,
//!            and then fail the next allocation. It is stored, never toggled, and cannot be revoked. Access between
//!            contexts (`cuCtxEnablePeerAccess`) has no effect on pools.
//! Order      positions belong to one device; a buffer's uses are positions of its own device. A use by a peer takes an
//!            event each way: the peer waits for the buffer's stream, and that stream for the peer.
//! Copies     need no access: the driver copies through the host if the devices cannot reach each other.
//! Events     are recorded on their own device, and waited for on any.
//! Drop       if a use cannot be handed back, the buffer is leaked and reported rather than freed while the peer uses
//!            it.

use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::{Arc, MutexGuard, PoisonError};

use crate::buffer::{DeviceView, UseGuard};
use crate::device::Device;
use crate::driver::{Access, CopyOp, DeclaredAccess, DeviceId, DevicePtr, Site};
use crate::error::{DriverCode, DriverError, MemoryError, Result};
use crate::pool::MemoryPool;
use crate::stream::Stream;

/// Checks, by a driver query, whether streams of `user` can access memory of `owner`.
pub(crate) fn check_reach(user: &Device, owner: &Device) -> Result<()> {
    same_driver(user, owner)?;
    if user.id() == owner.id() {
        return Ok(());
    }
    // The first device accesses, the second is accessed.
    if owner.check(owner.driver().can_access_peer(user.id(), owner.id()))? {
        return Ok(());
    }
    Err(MemoryError::PeerUnsupported { peer: user.id(), owner: owner.id() })
}

fn same_driver(a: &Device, b: &Device) -> Result<()> {
    if std::ptr::addr_eq(Arc::as_ptr(a.driver()), Arc::as_ptr(b.driver())) {
        return Ok(());
    }
    let detail = format!("{} and {} are devices of different drivers", a.id(), b.id());
    Err(DriverError::new("cuDeviceCanAccessPeer", DriverCode::INVALID_DEVICE).with_detail(detail).into())
}

/// Access of another device to a pool's memory.
#[derive(Debug)]
pub struct PeerAccess<'a> {
    pool: &'a MemoryPool,
    peer: Device,
}

impl MemoryPool {
    /// The access of `peer` to this pool.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if the memory does not come from a pool of the driver: other memory has no access setting;
    /// [`MemoryError::PoolRule`] for a pool that follows the device's current one.
    pub fn peer_access(&self, peer: &Device) -> Result<PeerAccess<'_>> {
        if self.driver_pool("cuMemPoolSetAccess")?.is_current() {
            let rule = "it may be another pool at the next allocation; open the pool itself".into();
            return Err(MemoryError::PoolRule { what: "peer access to whichever pool is the current one", rule });
        }
        same_driver(peer, self.device())?;
        Ok(PeerAccess { pool: self, peer: peer.clone() })
    }

    /// Devices with access in addition to the pool's own.
    fn peers(&self) -> MutexGuard<'_, BTreeSet<DeviceId>> {
        self.inner.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeerAccess<'_> {
    /// True if the devices support access, which `enable` checks first.
    pub fn is_supported(&self) -> Result<bool> {
        match check_reach(&self.peer, self.pool.device()) {
            Ok(()) => Ok(true),
            Err(MemoryError::PeerUnsupported { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// True if the peer has access. A pool's own device always has.
    pub fn is_enabled(&self) -> bool {
        self.peer.id() == self.pool.device().id() || self.pool.peers().contains(&self.peer.id())
    }

    /// Opens all the pool's memory to the peer, including future allocations. It cannot be closed again.
    ///
    /// # Errors
    /// [`MemoryError::PeerUnsupported`] if the devices cannot access each other; the pool is then unchanged.
    pub fn enable(&self) -> Result<()> {
        if self.is_enabled() {
            return Ok(());
        }
        let owner = self.pool.device();
        owner.alive()?;
        check_reach(&self.peer, owner)?;
        let mut peers = self.pool.peers();
        if !peers.contains(&self.peer.id()) {
            let pool = self.pool.driver_pool("cuMemPoolSetAccess")?.handle()?;
            owner.check(owner.driver().pool_set_access(pool, self.peer.id(), true))?;
            peers.insert(self.peer.id());
        }
        Ok(())
    }
}

/// A use of a buffer by a stream of another device, from before the work is submitted until it is handed back.
#[must_use = "a use is held until the peer's work is submitted"]
pub struct PeerUse<'a> {
    guard: Option<UseGuard<'a>>,
    view: &'a DeviceView,
    access: Access,
    home: &'a Stream,
    peer: &'a Stream,
    site: Site,
}

impl DeviceView {
    /// Begins a use on a stream of another device. `home` is a stream of the buffer's own device: `peer` waits for
    /// everything that `home` would wait for; once the use ends, `home`, and thus every later use, waits for `peer`.
    ///
    /// # Errors
    /// [`MemoryError::NoPeerAccess`] if the pool was not opened to the peer's device.
    #[track_caller]
    pub fn use_on_peer<'a>(&'a self, access: Access, home: &'a Stream, peer: &'a Stream) -> Result<PeerUse<'a>> {
        let owner = self.device();
        if peer.device().id() != owner.id() && !self.pool().peers().contains(&peer.device().id()) {
            return Err(MemoryError::NoPeerAccess { peer: peer.device().id(), owner: owner.id() });
        }
        PeerUse::take(self, access, home, peer, Location::caller())
    }

    /// Copies this view to `to`, which is on another device. The copy is work of `to_stream`, a stream of that device;
    /// `from_stream`, a stream of this view's device, waits for it. Needs no access between the devices.
    ///
    /// # Errors
    /// [`MemoryError::Range`] if the lengths differ, [`MemoryError::ForeignDevice`] if a stream is not on its view's
    /// device.
    #[track_caller]
    pub fn copy_to_peer(&self, from_stream: &Stream, to: &DeviceView, to_stream: &Stream) -> Result<()> {
        let site = Location::caller();
        if self.len() != to.len() {
            return Err(MemoryError::Range { what: "a copy", offset: 0, wanted: self.len(), len: to.len() });
        }
        if to_stream.device() != to.device() {
            return Err(MemoryError::ForeignDevice { what: "the buffer copied to", stream: to_stream.id() });
        }
        if self.is_empty() {
            return Ok(());
        }
        if self.device() == to.device() {
            return self.copy_to(to, to_stream);
        }
        // Buffers are locked in one global order, so that two copies in opposite directions cannot deadlock.
        let (from, mut write);
        if self.order_key() < to.order_key() {
            from = PeerUse::take(self, Access::Read, from_stream, to_stream, site)?;
            write = UseGuard::take(to, Access::Write, to_stream, site)?;
        } else {
            write = UseGuard::take(to, Access::Write, to_stream, site)?;
            from = PeerUse::take(self, Access::Read, from_stream, to_stream, site)?;
        }
        let (from_device, to_device) = (self.device().id(), to.device().id());
        let (start, end, len) = (self.address(), to.address(), self.len());
        let copy = match from_device == to_device {
            // One device, opened twice.
            true => CopyOp::DeviceToDevice { from: start, to: end, len },
            false => CopyOp::Peer { from: start, from_device, to: end, to_device, len },
        };
        let (_, position) = to_stream.submit(|driver, on| driver.copy(&copy, on, site))?;
        write.submitted(position);
        from.hand_back()
    }
}

impl<'a> PeerUse<'a> {
    fn take(view: &'a DeviceView, access: Access, home: &'a Stream, peer: &'a Stream, site: Site) -> Result<Self> {
        same_driver(view.device(), peer.device())?;
        let guard = UseGuard::take(view, access, home, site)?;
        peer.wait_event(&home.record()?)?;
        Ok(PeerUse { guard: Some(guard), view, access, home, peer, site })
    }

    pub fn address(&self) -> DevicePtr {
        self.view.address()
    }

    pub fn view(&self) -> &DeviceView {
        self.view
    }

    /// The access that a launch on the peer declares.
    pub fn declared(&self) -> DeclaredAccess {
        DeclaredAccess { ptr: self.view.address(), len: self.view.len(), access: self.access }
    }

    /// Sets every byte, as work of the peer. Requires a use for writing.
    ///
    /// # Errors
    /// [`MemoryError::PeerReadOnly`] if the use was taken for reading.
    #[track_caller]
    pub fn fill(&self, byte: u8) -> Result<()> {
        let site = Location::caller();
        if !self.access.writes() {
            return Err(MemoryError::PeerReadOnly { site: self.site });
        }
        if !self.view.is_empty() {
            let (ptr, len) = (self.view.address(), self.view.len());
            self.peer.submit(|driver, on| driver.fill(ptr, byte, len, on, site))?;
        }
        Ok(())
    }

    /// Ends the use: the buffer's stream now waits for everything submitted to the peer's stream. A drop does the same,
    /// and reports its errors to the device.
    pub fn hand_back(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(mut guard) = self.guard.take() else { return Ok(()) };
        let waited = self.peer.record().and_then(|event| self.home.wait_event(&event));
        match waited {
            Ok(position) => {
                guard.submitted(position);
                Ok(())
            }
            Err(error) => {
                self.view.leak();
                Err(error)
            }
        }
    }
}

impl Drop for PeerUse<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            self.view.device().report(error);
        }
    }
}
