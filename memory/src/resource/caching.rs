//! Hands out cached device memory in stream order, the way deep-learning frameworks do.
//!
//!   Free(S,5) ── alloc on S ──► Live ── freed behind position (S, 7) ──► Free(S,7)
//!      │  taken by S          at once: S already runs after (S, 5)
//!      │  taken by T          at once if T already runs after (S, 5); otherwise, when the device has no more memory,
//!      │                      T waits for it on the device. The host does not wait
//!      └─ merged              with a neighbour of S; with one of another stream once both positions have passed
//!
//! Sizes      up to 1 MiB from small segments, up to 10 MiB from large ones, more from a segment of its own. Large
//!            blocks are split only where more than 1 MiB is left.
//! Growth     a segment at a time, from any resource (`cuda` by default); give-back above the release threshold.
//! Threads    one lock, held for list work only, never across a call of the resource below or a wait.
//! Invariants those of the free list (`check`), and: every segment is held once.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::free_list::{FreeList, Kind, Taken};
use super::{
    DeviceMemoryResource, RawAllocation, Released, ResourceStatistics, check_device, come_after, give_back, length,
    round_up,
};
use crate::buffer::ALIGNMENT;
use crate::device::Device;
use crate::driver::{DevicePtr, Site};
use crate::error::{MemoryError, Result};
use crate::ids::StreamId;
use crate::stream::Stream;
use crate::units::ByteSize;

const UNIT: u64 = ALIGNMENT as u64;

/// The largest request that small segments serve.
const SMALL: u64 = 1 << 20;

/// When a stream takes what another one freed and is not yet ordered after.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TakeOver {
    /// When the device has no more: streams do not wait for each other while there is room.
    #[default]
    WhenFull,
    /// Before growing: less memory is held, and streams wait for each other.
    BeforeGrowing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachingOptions {
    /// A segment for requests up to 1 MiB.
    pub small_segment: ByteSize,
    /// A segment for larger requests, up to half of it; beyond, a request has a segment of its own.
    pub large_segment: ByteSize,
    /// Free bytes that are kept; what is above goes back as soon as whole segments are free.
    pub release_threshold: ByteSize,
    pub take_over: TakeOver,
}

impl Default for CachingOptions {
    /// The sizes that PyTorch's allocator uses.
    fn default() -> Self {
        CachingOptions {
            small_segment: ByteSize::mib(2),
            large_segment: ByteSize::mib(20),
            release_threshold: ByteSize::MAX,
            take_over: TakeOver::default(),
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    list: FreeList,
    /// By address, with the stream that each was taken on.
    segments: HashMap<u64, (RawAllocation, StreamId)>,
    held: u64,
    held_peak: u64,
    live_peak: u64,
}

#[derive(Debug)]
pub struct CachingMemoryResource {
    upstream: Arc<dyn DeviceMemoryResource>,
    options: CachingOptions,
    inner: Mutex<Inner>,
    reuses: AtomicU64,
    waits: AtomicU64,
}

impl CachingMemoryResource {
    /// Caches segments of `upstream`.
    pub fn new(upstream: Arc<dyn DeviceMemoryResource>, options: CachingOptions) -> Self {
        let segment = |size: ByteSize, least: u64| ByteSize(size.as_u64().max(least).next_multiple_of(UNIT));
        let options = CachingOptions {
            small_segment: segment(options.small_segment, SMALL),
            large_segment: segment(options.large_segment, 2 * SMALL),
            ..options
        };
        CachingMemoryResource { upstream, options, inner: Mutex::default(), reuses: 0.into(), waits: 0.into() }
    }

    /// Panics on a broken invariant. For tests.
    pub fn check(&self) {
        let inner = self.inner();
        inner.list.check();
        let held: u64 = inner.segments.values().map(|(raw, _)| raw.len.get() as u64).sum();
        assert_eq!(held, inner.list.live_bytes() + inner.list.free_bytes(), "every segment is in the list");
        assert_eq!(held, inner.held, "every segment is counted");
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shape(&self, wanted: u64) -> (Kind, u64, u64) {
        let (small, large) = (self.options.small_segment.as_u64(), self.options.large_segment.as_u64());
        match wanted {
            _ if wanted <= SMALL => (Kind::Small, UNIT, small),
            _ if wanted <= large / 2 => (Kind::Large, SMALL + UNIT, large),
            _ => (Kind::Large, SMALL + UNIT, wanted.checked_next_multiple_of(2 * SMALL).unwrap_or(wanted)),
        }
    }

    /// Makes what was taken from the list the stream's.
    fn give(&self, taken: Taken, len: NonZeroUsize, stream: &Stream) -> Result<RawAllocation> {
        if let Some(position) = taken.after.filter(|position| position.stream != stream.id()) {
            match come_after(stream, position) {
                Ok(waited) => {
                    self.reuses.fetch_add(1, Relaxed);
                    self.waits.fetch_add(waited.into(), Relaxed);
                }
                Err(error) => {
                    self.inner().list.free(taken.ptr, taken.after);
                    return Err(error);
                }
            }
        }
        Ok(RawAllocation { ptr: DevicePtr(taken.ptr), len })
    }

    /// Takes a segment of `bytes` from below, and `wanted` bytes out of it.
    fn grow(&self, bytes: u64, wanted: u64, kind: Kind, rest: u64, stream: &Stream, site: Site) -> Result<Taken> {
        let raw = self.upstream.allocate(length(bytes), stream, site)?;
        let position = stream.position();
        let mut inner = self.inner();
        let base = raw.ptr.0;
        inner.list.add_segment(base, bytes, kind, Some(position));
        inner.segments.insert(base, (raw, stream.id()));
        inner.held += bytes;
        inner.held_peak = inner.held_peak.max(inner.held);
        let taken = inner.list.take_own(stream.id(), kind, wanted, rest);
        Ok(taken.expect("the segment is in the stream's own list, and large enough"))
    }

    /// The segments leave the lists under the lock, and go back outside of it.
    fn take_out(inner: &mut Inner, keep: u64) -> Vec<(Released, RawAllocation, StreamId)> {
        let released = inner.list.release(keep);
        let with_raw = released.into_iter().filter_map(|released| {
            let (raw, home) = inner.segments.remove(&released.base)?;
            inner.held -= raw.len.get() as u64;
            Some((released, raw, home))
        });
        with_raw.collect()
    }

    /// Gives all of them back, and returns the first error.
    fn send_back(&self, segments: Vec<(Released, RawAllocation, StreamId)>) -> Result<()> {
        let mut first = Ok(());
        for (released, raw, home) in segments {
            let done = give_back(&*self.upstream, raw, &released.after, home, Location::caller());
            first = first.and(done);
        }
        first
    }

    fn find(&self, wanted: u64, stream: &Stream, site: Site) -> Result<Taken> {
        let (kind, rest, segment) = self.shape(wanted);
        let on = stream.id();
        let found = {
            let mut inner = self.inner();
            let list = &mut inner.list;
            let mut found = list.take_own(on, kind, wanted, rest);
            found = found.or_else(|| list.take_other(on, kind, wanted, rest, |position| stream.is_after(position)));
            if self.options.take_over == TakeOver::BeforeGrowing {
                found = found.or_else(|| list.take_other(on, kind, wanted, rest, |_| true));
            }
            found
        };
        if let Some(taken) = found {
            return Ok(taken);
        }
        let full = match self.grow(segment, wanted, kind, rest, stream, site) {
            Err(error) if error.is_out_of_memory() => error,
            grown => return grown,
        };
        // The device has no more: what other streams freed, then whole segments of other sizes.
        let device = self.upstream.device();
        let (found, idle) = {
            let mut inner = self.inner();
            inner.list.settle(|position| device.host_is_after(position));
            let list = &mut inner.list;
            let mut found = list.take_own(on, kind, wanted, rest);
            found = found.or_else(|| list.take_other(on, kind, wanted, rest, |_| true));
            let idle = if found.is_none() { Self::take_out(&mut inner, 0) } else { Vec::new() };
            (found, idle)
        };
        if let Some(taken) = found {
            return Ok(taken);
        }
        self.send_back(idle)?;
        for bytes in [segment, wanted] {
            match self.grow(bytes, wanted, kind, rest, stream, site) {
                Err(error) if error.is_out_of_memory() => {}
                grown => return grown,
            }
        }
        Err(full)
    }
}

impl DeviceMemoryResource for CachingMemoryResource {
    fn name(&self) -> &'static str {
        "caching"
    }

    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        check_device(self.device(), stream)?;
        self.device().alive()?;
        let wanted = round_up(len, UNIT)?;
        let taken = self.find(wanted, stream, site)?;
        let raw = self.give(taken, len, stream)?;
        let mut inner = self.inner();
        inner.live_peak = inner.live_peak.max(inner.list.live_bytes());
        Ok(raw)
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        check_device(self.device(), stream)?;
        let position = stream.position();
        let mut inner = self.inner();
        if inner.list.free(raw.ptr.0, Some(position)).is_none() {
            return Err(MemoryError::NotHandedOut { resource: self.name(), ptr: raw.ptr, site });
        }
        let keep = self.options.release_threshold.as_u64();
        let excess = if inner.list.free_bytes() > keep { Self::take_out(&mut inner, keep) } else { Vec::new() };
        drop(inner);
        self.send_back(excess)
    }

    fn trim(&self, keep: ByteSize) -> Result<()> {
        let device = self.device();
        device.alive()?;
        let mut inner = self.inner();
        inner.list.settle(|position| device.host_is_after(position));
        let idle = Self::take_out(&mut inner, keep.as_u64());
        drop(inner);
        if !idle.is_empty() {
            self.send_back(idle)?;
            // The resource below gives back what it knows to be free.
            device.synchronize()?;
        }
        self.upstream.trim(keep)
    }

    fn reclaim(&self, want: ByteSize) -> Result<ByteSize> {
        let device = self.device();
        device.alive()?;
        let mut inner = self.inner();
        inner.list.settle(|position| device.host_is_after(position));
        let keep = inner.list.free_bytes().saturating_sub(want.as_u64());
        let before = inner.held;
        let idle = Self::take_out(&mut inner, keep);
        let given = before - inner.held;
        drop(inner);
        self.send_back(idle)?;
        self.upstream.reclaim(want)?;
        Ok(ByteSize(given))
    }

    fn statistics(&self) -> Result<ResourceStatistics> {
        let inner = self.inner();
        Ok(ResourceStatistics {
            reserved: ByteSize(inner.held),
            reserved_peak: ByteSize(inner.held_peak),
            used: ByteSize(inner.list.live_bytes()),
            used_peak: ByteSize(inner.live_peak),
            cross_stream_reuses: self.reuses.load(Relaxed),
            waits_inserted: self.waits.load(Relaxed),
        })
    }

    fn reset_peaks(&self) -> Result<()> {
        let mut inner = self.inner();
        inner.held_peak = inner.held;
        inner.live_peak = inner.list.live_bytes();
        drop(inner);
        self.upstream.reset_peaks()
    }
}

impl Drop for CachingMemoryResource {
    fn drop(&mut self) {
        let device = self.device().clone();
        if device.is_lost() {
            return;
        }
        let idle = Self::take_out(&mut self.inner(), 0);
        if let Err(error) = self.send_back(idle) {
            device.report(error);
        }
        let leaked = self.inner().list.live_bytes();
        if leaked > 0 {
            tracing::warn!(leaked, resource = "caching", "blocks were never given back; their segments are leaked");
        }
    }
}
