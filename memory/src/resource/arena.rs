//! An arena for each stream: allocation is an addition, and memory comes back when what lies above it has.
//!
//!   stream S   chunk [ a | b | c | ....... ]  chunk [ d | ..... ]
//!   mark ────────────────────┘                                      reset(mark): c and d must be free by now
//!   freed on T: the position of the free stays with the chunk; what S allocates there next comes after it
//!
//! For        queries: what they allocate goes up together and comes down together. A buffer that outlives the others
//!            keeps what lies below it in its chunk.
//! Not        RMM's arena resource, which is a best-fit allocator with superblocks.
//! Growth     a chunk at a time, from any resource (the driver's pool by default); `trim` gives empty chunks back, and
//!            so does the end of a query, in stream order: the next one may run on other streams.
//! Threads    a lock per stream, held across waits (which do not block) and never across growth; one more, for reading,
//!            to find the arena of what is freed.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::bump::{Bump, InUse};
use super::{
    DeviceMemoryResource, RawAllocation, ResourceStatistics, check_device, come_after, give_back, length, round_up,
};
use crate::buffer::ALIGNMENT;
use crate::device::Device;
use crate::driver::{DevicePtr, Site};
use crate::error::{MemoryError, Result};
use crate::gauge::Gauge;
use crate::ids::StreamId;
use crate::stream::Stream;
use crate::units::ByteSize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaOptions {
    /// What an arena grows by; a larger request has a chunk of its own.
    pub chunk: ByteSize,
}

impl Default for ArenaOptions {
    fn default() -> Self {
        ArenaOptions { chunk: ByteSize::mib(32) }
    }
}

/// A point that an arena goes back to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaMark {
    stream: StreamId,
    serial: u64,
}

#[derive(Debug, Default)]
struct Inner {
    bump: Bump,
    chunks: HashMap<u64, RawAllocation>,
}

#[derive(Debug)]
struct Arena {
    stream: StreamId,
    inner: Mutex<Inner>,
}

impl Arena {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub struct ArenaMemoryResource {
    upstream: Arc<dyn DeviceMemoryResource>,
    options: ArenaOptions,
    arenas: RwLock<BTreeMap<StreamId, Arc<Arena>>>,
    /// Whose chunk begins at an address.
    owners: RwLock<BTreeMap<u64, Arc<Arena>>>,
    held: Gauge,
    live: Gauge,
    reuses: AtomicU64,
    waits: AtomicU64,
}

impl ArenaMemoryResource {
    /// Takes chunks from `upstream`.
    pub fn new(upstream: Arc<dyn DeviceMemoryResource>, options: ArenaOptions) -> Self {
        let chunk = options.chunk.as_u64().max(1).next_multiple_of(ALIGNMENT as u64);
        ArenaMemoryResource {
            upstream,
            options: ArenaOptions { chunk: ByteSize(chunk) },
            arenas: RwLock::default(),
            owners: RwLock::default(),
            held: Gauge::default(),
            live: Gauge::default(),
            reuses: 0.into(),
            waits: 0.into(),
        }
    }

    /// The place where the arena of `stream` stands.
    pub fn mark(&self, stream: &Stream) -> ArenaMark {
        ArenaMark { stream: stream.id(), serial: self.arena(stream.id()).inner().bump.mark() }
    }

    /// Makes sure that everything the stream allocated since `mark` is back, so that its arena stands there again.
    /// What it allocates next comes after all uses, on whatever stream they were. For the end of a query.
    ///
    /// # Errors
    /// [`MemoryError::ArenaInUse`], which changes nothing, if something is live.
    pub fn reset(&self, mark: ArenaMark) -> Result<()> {
        match self.arena(mark.stream).inner().bump.in_use_since(mark.serial) {
            None => Ok(()),
            Some(InUse { bytes, allocations, first }) => {
                Err(MemoryError::ArenaInUse { stream: mark.stream, bytes: ByteSize(bytes), allocations, first })
            }
        }
    }

    /// Panics on a broken invariant. For tests.
    pub fn check(&self) {
        let arenas = self.arenas.read().unwrap_or_else(PoisonError::into_inner);
        let (mut held, mut live) = (0, 0);
        for arena in arenas.values() {
            let inner = arena.inner();
            inner.bump.check();
            live += inner.bump.live_bytes();
            held += inner.chunks.values().map(|raw| raw.len.get() as u64).sum::<u64>();
        }
        assert_eq!((held, live), (self.held.level().as_u64(), self.live.level().as_u64()), "arenas and counts agree");
    }

    fn arena(&self, stream: StreamId) -> Arc<Arena> {
        if let Some(arena) = self.arenas.read().unwrap_or_else(PoisonError::into_inner).get(&stream) {
            return Arc::clone(arena);
        }
        let mut arenas = self.arenas.write().unwrap_or_else(PoisonError::into_inner);
        let arena = arenas.entry(stream).or_insert_with(|| Arc::new(Arena { stream, inner: Mutex::default() }));
        Arc::clone(arena)
    }

    fn owner(&self, ptr: DevicePtr) -> Option<Arc<Arena>> {
        let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
        owners.range(..=ptr.0).next_back().map(|(_, arena)| Arc::clone(arena))
    }

    /// Takes `wanted` bytes of the arena, whose stream then comes after their former users.
    fn take(&self, inner: &mut Inner, wanted: u64, stream: &Stream, site: Site) -> Option<Result<DevicePtr>> {
        let (ptr, behind) = inner.bump.take(wanted, site)?;
        self.reuses.fetch_add(behind.iter().any(|position| position.stream != stream.id()).into(), Relaxed);
        for position in &behind {
            match come_after(stream, *position) {
                Ok(waited) => {
                    self.waits.fetch_add(waited.into(), Relaxed);
                }
                Err(error) => {
                    // Its own position says nothing that the chunk does not know.
                    inner.bump.free(ptr, stream.position());
                    return Some(Err(error));
                }
            }
        }
        inner.bump.ordered(ptr, &behind);
        self.live.raise(wanted);
        Some(Ok(DevicePtr(ptr)))
    }

    fn grow(&self, arena: &Arc<Arena>, wanted: u64, stream: &Stream, site: Site) -> Result<DevicePtr> {
        let chunk = self.options.chunk.as_u64();
        let mut result = self.upstream.allocate(length(wanted.max(chunk)), stream, site);
        if result.as_ref().is_err_and(MemoryError::is_out_of_memory) {
            self.release(0)?;
            result = self.upstream.allocate(length(wanted.max(chunk)), stream, site);
        }
        if result.as_ref().is_err_and(MemoryError::is_out_of_memory) && wanted < chunk {
            result = self.upstream.allocate(length(wanted), stream, site);
        }
        let raw = result?;
        let (base, len) = (raw.ptr.0, raw.len.get() as u64);
        self.held.raise(len);
        self.owners.write().unwrap_or_else(PoisonError::into_inner).insert(base, Arc::clone(arena));
        let mut inner = arena.inner();
        inner.bump.add_chunk(base, len);
        inner.chunks.insert(base, raw);
        self.take(&mut inner, wanted, stream, site).expect("the new chunk is large enough")
    }

    /// Gives empty chunks back, as long as more than `keep` bytes of them are held. Returns how many.
    fn release(&self, keep: u64) -> Result<usize> {
        let arenas: Vec<_> = self.arenas.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let (mut first, mut count) = (Ok(()), 0);
        for arena in arenas {
            let mut inner = arena.inner();
            // Each arena may keep its share of what is kept.
            let own: u64 = inner.chunks.values().map(|raw| raw.len.get() as u64).sum();
            let released = inner.bump.release(keep.saturating_sub(self.held.level().as_u64().saturating_sub(own)));
            let chunks: Vec<_> = released
                .into_iter()
                .filter_map(|released| Some((inner.chunks.remove(&released.base)?, released.after)))
                .collect();
            drop(inner);
            for (raw, after) in chunks {
                self.owners.write().unwrap_or_else(PoisonError::into_inner).remove(&raw.ptr.0);
                self.held.lower(raw.len.get() as u64);
                let done = give_back(&*self.upstream, raw, &after, arena.stream, Location::caller());
                first = first.and(done);
                count += 1;
            }
        }
        first.map(|()| count)
    }
}

impl DeviceMemoryResource for ArenaMemoryResource {
    fn name(&self) -> &'static str {
        "arena"
    }

    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        check_device(self.device(), stream)?;
        self.device().alive()?;
        let wanted = round_up(len, ALIGNMENT as u64)?;
        let arena = self.arena(stream.id());
        let taken = self.take(&mut arena.inner(), wanted, stream, site);
        let ptr = match taken {
            Some(taken) => taken?,
            None => self.grow(&arena, wanted, stream, site)?,
        };
        Ok(RawAllocation { ptr, len })
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        check_device(self.device(), stream)?;
        let position = stream.position();
        let freed = self.owner(raw.ptr).and_then(|arena| arena.inner().bump.free(raw.ptr.0, position));
        match freed {
            Some(len) => {
                self.live.lower(len);
                Ok(())
            }
            None => Err(MemoryError::NotHandedOut { resource: self.name(), ptr: raw.ptr, site }),
        }
    }

    fn trim(&self, keep: ByteSize) -> Result<()> {
        self.device().alive()?;
        if self.release(keep.as_u64())? > 0 {
            // The resource below gives back what it knows to be free.
            self.device().synchronize()?;
        }
        self.upstream.trim(keep)
    }

    /// Chunks go back to the resource below, which may lend them to any stream.
    fn end_of_query(&self) -> Result<()> {
        self.device().alive()?;
        self.release(0).map(|_| ())
    }

    fn statistics(&self) -> Result<ResourceStatistics> {
        Ok(ResourceStatistics {
            reserved: self.held.level(),
            reserved_peak: self.held.peak(),
            used: self.live.level(),
            used_peak: self.live.peak(),
            cross_stream_reuses: self.reuses.load(Relaxed),
            waits_inserted: self.waits.load(Relaxed),
        })
    }

    /// The resource below gives back what of it the driver has seen freed.
    fn reclaim(&self, want: ByteSize) -> Result<ByteSize> {
        self.device().alive()?;
        self.release(0)?;
        self.upstream.reclaim(want)
    }

    fn reset_peaks(&self) -> Result<()> {
        self.held.reset_peak();
        self.live.reset_peak();
        self.upstream.reset_peaks()
    }
}

impl Drop for ArenaMemoryResource {
    fn drop(&mut self) {
        let device = self.device().clone();
        if device.is_lost() {
            return;
        }
        if let Err(error) = self.release(0) {
            device.report(error);
        }
        let leaked = self.live.level();
        if leaked > ByteSize::ZERO {
            tracing::warn!(%leaked, resource = "arena", "allocations were never given back; their chunks are leaked");
        }
    }
}
