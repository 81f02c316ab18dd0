//! Counts bytes and allocations: current, peak and total, in all and per scope.
//!
//!   tag             bytes now   peak      total     allocations now   peak   total
//!   query 7/sort    600 KiB     1.2 MiB   9 MiB     1                 4      31
//!
//! Bytes      as they were asked for, before any rounding below.
//! Blocks     `push` begins a count of its own, `pop` ends it and adds it to the one around: RMM's nested statistics.
//! Latency    of the host's calls, in powers of two of a nanosecond; what the device does later is not in it.
//! Tags       the path of the stream's scope when the memory was allocated; its free counts there, too.
//! Exact      one short lock moves current and peak together.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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

/// Counts of a block between `push` and `pop`. What is freed in it may have been allocated before it, so its sum may be
/// below zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockCount {
    pub current: i64,
    pub peak: i64,
    pub total: u64,
}

impl BlockCount {
    fn up(&mut self, by: u64) {
        self.current += by as i64;
        self.total += by;
        self.peak = self.peak.max(self.current);
    }

    fn down(&mut self, by: u64) {
        self.current -= by as i64;
    }

    /// Takes in a block that ended inside this one.
    fn absorb(&mut self, inner: BlockCount) {
        self.peak = self.peak.max(self.current + inner.peak);
        self.current += inner.current;
        self.total += inner.total;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockStatistics {
    pub bytes: BlockCount,
    pub allocations: BlockCount,
}

/// How long calls took on the host: how many took from 2ⁿ to 2ⁿ⁺¹ ns, the last bucket and all beyond it together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LatencyHistogram {
    pub buckets: [u64; 32],
}

impl LatencyHistogram {
    fn note(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.buckets[(ns.ilog2() as usize).min(self.buckets.len() - 1)] += 1;
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// An upper bound in nanoseconds of what the given share of calls took at most; 0 without calls.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = (self.count() as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, bucket) in self.buckets.iter().enumerate() {
            seen += bucket;
            if seen >= wanted {
                return 2 << index;
            }
        }
        0
    }
}

#[derive(Debug, Default)]
struct Inner {
    blocks: Vec<BlockStatistics>,
    allocate_latency: LatencyHistogram,
    deallocate_latency: LatencyHistogram,
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

    /// Begins a block that is counted by itself.
    pub fn push(&self) {
        self.inner().blocks.push(BlockStatistics::default());
    }

    /// Ends the innermost block, and adds it to the one around. `None` without a block.
    pub fn pop(&self) -> Option<BlockStatistics> {
        let mut inner = self.inner();
        let block = inner.blocks.pop()?;
        if let Some(around) = inner.blocks.last_mut() {
            around.bytes.absorb(block.bytes);
            around.allocations.absorb(block.allocations);
        }
        Some(block)
    }

    /// Host time of allocations that succeeded, and of frees.
    pub fn latencies(&self) -> (LatencyHistogram, LatencyHistogram) {
        let inner = self.inner();
        (inner.allocate_latency, inner.deallocate_latency)
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
        let began = Instant::now();
        let allocated = self.upstream.allocate(len, stream, site);
        let took = began.elapsed();
        let path = stream.scope().path();
        let mut inner = self.inner();
        match &allocated {
            Ok(raw) => {
                let bytes = len.get() as u64;
                inner.all.allocated(bytes);
                inner.allocate_latency.note(took);
                if let Some(block) = inner.blocks.last_mut() {
                    block.bytes.up(bytes);
                    block.allocations.up(1);
                }
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
        // Before the address can be reused by another allocation.
        let bytes = raw.len.get() as u64;
        let mut inner = self.inner();
        if let Some(tag) = inner.live.remove(&raw.ptr) {
            inner.all.freed(bytes);
            if let Some(block) = inner.blocks.last_mut() {
                block.bytes.down(bytes);
                block.allocations.down(1);
            }
            inner.of(&tag).1.freed(bytes);
        }
        drop(inner);
        let began = Instant::now();
        let freed = self.upstream.deallocate(raw, stream, site);
        let took = began.elapsed();
        self.inner().deallocate_latency.note(took);
        freed
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
