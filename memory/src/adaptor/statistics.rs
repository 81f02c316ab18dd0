//! Counts bytes and allocations: current, peak and total, in all and per scope.
//!
//!   tag             bytes now   peak      total     allocations now   peak   total
//!   query 7/sort    600 KiB     1.2 MiB   9 MiB     1                 4      31
//!
//! Bytes      as they were asked for, before any rounding below.
//! Tags       the path of the stream's scope when the memory was allocated; its free counts there, whoever frees it.
//! Exact      one short lock moves current and peak together.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::Device;
use crate::driver::{DevicePtr, Site};
use crate::error::Result;
use crate::resource::{DeviceMemoryResource, RawAllocation, ResourceStatistics};
use crate::stream::Stream;
use crate::units::ByteSize;

/// A number that goes up and down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    pub current: u64,
    /// The most that `current` was since the last reset.
    pub peak: u64,
    /// The sum of everything that went up.
    pub total: u64,
}

impl Count {
    fn up(&mut self, by: u64) {
        self.current += by;
        self.total += by;
        self.peak = self.peak.max(self.current);
    }
}

/// What was asked for and not given back yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AllocationStatistics {
    pub bytes: Count,
    pub allocations: Count,
    /// Allocations that found no memory, or failed otherwise.
    pub failures: u64,
}

impl AllocationStatistics {
    fn allocated(&mut self, bytes: u64) {
        self.bytes.up(bytes);
        self.allocations.up(1);
    }

    fn freed(&mut self, bytes: u64) {
        self.bytes.current -= bytes;
        self.allocations.current -= 1;
    }

    fn reset_peaks(&mut self) {
        for count in [&mut self.bytes, &mut self.allocations] {
            count.peak = count.current;
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    all: AllocationStatistics,
    tags: BTreeMap<Arc<str>, AllocationStatistics>,
    live: HashMap<DevicePtr, Arc<str>>,
}

impl Inner {
    fn of(&mut self, tag: &str) -> (Arc<str>, &mut AllocationStatistics) {
        let tag = self.tags.get_key_value(tag).map_or_else(|| Arc::from(tag), |(known, _)| Arc::clone(known));
        let counts = self.tags.entry(Arc::clone(&tag)).or_default();
        (tag, counts)
    }
}

#[derive(Debug)]
pub struct StatisticsResourceAdaptor {
    upstream: Arc<dyn DeviceMemoryResource>,
    inner: Mutex<Inner>,
}

impl StatisticsResourceAdaptor {
    pub fn new(upstream: Arc<dyn DeviceMemoryResource>) -> Self {
        StatisticsResourceAdaptor { upstream, inner: Mutex::default() }
    }

    pub fn counts(&self) -> AllocationStatistics {
        self.inner().all
    }

    /// By the path of the scope, in the order of their names.
    pub fn counts_by_tag(&self) -> Vec<(String, AllocationStatistics)> {
        self.inner().tags.iter().map(|(tag, counts)| (tag.to_string(), *counts)).collect()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceMemoryResource for StatisticsResourceAdaptor {
    fn name(&self) -> &'static str {
        self.upstream.name()
    }

    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        let allocated = self.upstream.allocate(len, stream, site);
        let path = stream.scope().path();
        let mut inner = self.inner();
        match &allocated {
            Ok(raw) => {
                let bytes = len.get() as u64;
                inner.all.allocated(bytes);
                let (tag, counts) = inner.of(&path);
                counts.allocated(bytes);
                inner.live.insert(raw.ptr, tag);
            }
            Err(_) => {
                inner.all.failures += 1;
                inner.of(&path).1.failures += 1;
            }
        }
        drop(inner);
        allocated
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        // Before the bytes can be somebody else's under the same address.
        let bytes = raw.len.get() as u64;
        let mut inner = self.inner();
        if let Some(tag) = inner.live.remove(&raw.ptr) {
            inner.all.freed(bytes);
            inner.of(&tag).1.freed(bytes);
        }
        drop(inner);
        self.upstream.deallocate(raw, stream, site)
    }

    fn trim(&self, keep: ByteSize) -> Result<()> {
        self.upstream.trim(keep)
    }

    fn end_of_query(&self) -> Result<()> {
        self.upstream.end_of_query()
    }

    fn reclaim(&self, want: ByteSize) -> Result<ByteSize> {
        self.upstream.reclaim(want)
    }

    fn statistics(&self) -> Result<ResourceStatistics> {
        self.upstream.statistics()
    }

    fn reset_peaks(&self) -> Result<()> {
        let mut inner = self.inner();
        inner.all.reset_peaks();
        inner.tags.values_mut().for_each(AllocationStatistics::reset_peaks);
        drop(inner);
        self.upstream.reset_peaks()
    }
}
