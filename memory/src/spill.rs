//! Device buffers that can leave for host memory, and come back when they are used.
//!
//!   register(views) ─► Resident ── memory runs out ──► copies to the host, in stream order ─► device bytes freed behind them
//!                         ▲                                                    │
//!                         └── get(stream): allocates, uploads in stream order ─┘     nobody waits on the host
//!
//! Group      views with one lifetime, such as the columns of a materialised batch. They leave and return together. Bytes move as
//!            they are: addresses of device memory that are stored inside do not survive, so compact first.
//! Held       while a `Resident` is out, a group stays: what an operator works on is never spilled under its hands.
//! Order      the lowest priority first, in it the least recently used.
//! Host       pinned pages that are taken beforehand, up to a limit; beyond, ordinary memory through one bounce page, up to another.
//! Counts     a spilled group's device bytes are pending until the device has come to their free.
//! Threads    no lock is held while anything is copied, allocated or waited for.

use std::fmt;
use std::sync::Arc;

use crate::buffer::DeviceView;
use crate::error::Result;
use crate::governor::{MemoryGovernor, Reservation};
use crate::pool::MemoryPool;
use crate::stream::Stream;
use crate::units::ByteSize;

/// Where spilled bytes go, and how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpillOptions {
    /// Pinned memory is taken in pages of this size; a group uses whole pages.
    pub page: ByteSize,
    /// Pinned memory that is taken when the spiller is made, so that spilling needs none.
    pub pinned_reserve: ByteSize,
    /// The most pinned memory; at least the reserve, and one page for bouncing.
    pub pinned_limit: ByteSize,
    /// The most ordinary memory, used when pinned memory is full. Slower: the host waits for those copies.
    pub host_limit: ByteSize,
}

impl Default for SpillOptions {
    fn default() -> Self {
        SpillOptions {
            page: ByteSize::mib(4),
            pinned_reserve: ByteSize::mib(32),
            pinned_limit: ByteSize::gib(1),
            host_limit: ByteSize::MAX,
        }
    }
}

/// What spilling came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spilled {
    /// Device bytes whose free is submitted. They are free when the device has come to it.
    pub bytes: ByteSize,
    pub groups: u64,
}

/// Something that can give device memory up: a cache, a materialised batch.
pub trait Spillable: Send + Sync {
    /// Who it is, in reports.
    fn tag(&self) -> String;
    /// What `spill` would free now; zero while it is in use.
    fn spillable_bytes(&self) -> ByteSize;
    /// Lower goes first.
    fn priority(&self) -> i32 {
        0
    }
    /// A moment of `Spiller::now`; among equals the smallest goes first.
    fn last_used(&self) -> u64 {
        0
    }
    /// Gives up about `wanted` bytes or more, and says how many bytes are now behind a submitted free. May copy in stream order; must
    /// not wait for another query. Called without any lock of this crate.
    fn spill(&self, wanted: ByteSize) -> Result<ByteSize>;
}

/// Where a group is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpillState {
    /// On the device.
    Resident,
    /// On its way to the host or back.
    Moving,
    /// In host memory; its device bytes are freed, in stream order.
    Spilled,
    /// Gone with its device.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpillStatistics {
    /// Groups that left and that returned, and their bytes.
    pub spills: u64,
    pub spilled_bytes: u64,
    pub restores: u64,
    pub restored_bytes: u64,
    /// Of the spilled bytes, those that went to ordinary memory.
    pub bounced_bytes: u64,
    /// Groups that could not leave because host memory was full.
    pub no_host_memory: u64,
    /// In host memory now: pinned pages and ordinary memory.
    pub pinned_bytes: ByteSize,
    pub host_bytes: ByteSize,
    /// Registered groups, and the device bytes of those that could leave now.
    pub groups: usize,
    pub spillable_bytes: ByteSize,
}

/// Knows what can be spilled from one pool, and does it when the pool runs out. Clones share it.
#[derive(Clone)]
pub struct Spiller {
    pool: MemoryPool,
}

fn not_yet<T>() -> Result<T> {
    Err(crate::error::DriverError::new("Spiller", crate::error::DriverCode::NOT_SUPPORTED)
        .with_detail("spilling is being built")
        .into())
}

impl Spiller {
    /// A spiller that `pool` asks when memory runs out.
    pub fn new(pool: &MemoryPool, options: SpillOptions) -> Result<Self> {
        let _ = options;
        Ok(Spiller { pool: pool.clone() })
    }

    pub fn pool(&self) -> &MemoryPool {
        &self.pool
    }

    /// Has `governor` ask for room, too: when a request of device memory finds none, or its trigger is passed.
    pub fn serve(&self, governor: &MemoryGovernor) {
        let _ = governor;
    }

    /// Takes views in, as one group. Clones of them elsewhere keep their buffers from being spilled.
    pub fn register(&self, views: Vec<DeviceView>, priority: i32) -> Result<SpillHandle> {
        let _ = (views, priority);
        not_yet()
    }

    /// The same, for bytes that a governor promised. The promise goes back when the device has come to the free of a spilled
    /// group, and is asked for again (`try_grow`) before the group returns.
    pub fn register_reserved(
        &self,
        views: Vec<DeviceView>,
        priority: i32,
        reservation: Reservation,
    ) -> Result<SpillHandle> {
        let _ = (views, priority, reservation);
        not_yet()
    }

    /// Asks `spillable`, too, for as long as it lives.
    pub fn add(&self, spillable: &Arc<dyn Spillable>) {
        let _ = spillable;
    }

    /// A moment for `Spillable::last_used`.
    pub fn now(&self) -> u64 {
        0
    }

    /// Spills until `wanted` bytes are on their way out, or nothing more can leave. Never blocks while pinned memory lasts.
    pub fn spill(&self, wanted: ByteSize) -> Result<Spilled> {
        let _ = wanted;
        not_yet()
    }

    /// Blocks until the device has come to every free that spilling submitted.
    pub fn settle(&self) -> Result<()> {
        not_yet()
    }

    pub fn statistics(&self) -> SpillStatistics {
        SpillStatistics::default()
    }
}

/// A group of views that may be on the device or in host memory. Dropped, it frees whatever it has, in stream order.
pub struct SpillHandle {
    views: Vec<DeviceView>,
}

impl SpillHandle {
    /// The group on the device, where it stays as long as the answer lives. If it was spilled: allocates in the order of
    /// `stream` and uploads behind that; the host waits for nothing, unless part of it is in ordinary memory.
    ///
    /// # Errors
    /// Out of memory, or a lost device; the group is then as before.
    #[track_caller]
    pub fn get(&self, stream: &Stream) -> Result<Resident> {
        let _ = (stream, &self.views);
        not_yet()
    }

    /// Spills the group now. Zero if it is in use or gone already.
    pub fn spill(&self) -> Result<ByteSize> {
        not_yet()
    }

    pub fn state(&self) -> SpillState {
        SpillState::Resident
    }

    /// Device bytes of the group when it is resident, padding and all.
    pub fn bytes(&self) -> ByteSize {
        ByteSize::ZERO
    }

    /// The views back, on the device, and not spillable any more.
    #[track_caller]
    pub fn into_views(self, stream: &Stream) -> Result<Vec<DeviceView>> {
        let _ = stream;
        not_yet()
    }
}

impl fmt::Debug for SpillHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} group of {} ({} views)", self.state(), self.bytes(), self.views.len())
    }
}

/// A group that is on the device and in use: the same views, in the same order, as were registered.
pub struct Resident {
    views: Vec<DeviceView>,
}

impl std::ops::Deref for Resident {
    type Target = [DeviceView];
    fn deref(&self) -> &[DeviceView] {
        &self.views
    }
}
