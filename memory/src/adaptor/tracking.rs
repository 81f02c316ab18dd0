//! Remembers every allocation that is out, and where in the source it came from.
//!
//!   leak: 4 KiB on stream 3 for query 7/sort, allocated at engine/src/program/sort.rs:88:10 (allocation 12)
//!
//! Leaks      what is out when the adaptor is dropped is a warning each; `outstanding` tells at any time.
//! Frees      of what is not out are errors before they reach the resource below.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::Device;
use crate::driver::{DevicePtr, Site};
use crate::error::{MemoryError, Result};
use crate::ids::StreamId;
use crate::resource::{DeviceMemoryResource, RawAllocation, ResourceStatistics};
use crate::stream::Stream;
use crate::units::ByteSize;

/// An allocation that is out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outstanding {
    /// Counts from 1 and never comes back, unlike an address.
    pub id: u64,
    pub bytes: ByteSize,
    pub stream: StreamId,
    /// The path of the scope it was allocated for.
    pub tag: String,
    pub site: Site,
}

impl fmt::Display for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outstanding { id, bytes, stream, tag, site } = self;
        write!(f, "{bytes} on {stream} for {tag}, allocated at {site} (allocation {id})")
    }
}

#[derive(Debug, Default)]
struct Inner {
    last_id: u64,
    out: HashMap<DevicePtr, Outstanding>,
}

#[derive(Debug)]
pub struct TrackingResourceAdaptor {
    upstream: Arc<dyn DeviceMemoryResource>,
    inner: Mutex<Inner>,
}

impl TrackingResourceAdaptor {
    pub fn new(upstream: Arc<dyn DeviceMemoryResource>) -> Self {
        TrackingResourceAdaptor { upstream, inner: Mutex::default() }
    }

    /// What is out, oldest first.
    pub fn outstanding(&self) -> Vec<Outstanding> {
        let mut out: Vec<Outstanding> = self.inner().out.values().cloned().collect();
        out.sort_unstable_by_key(|outstanding| outstanding.id);
        out
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceMemoryResource for TrackingResourceAdaptor {
    fn name(&self) -> &'static str {
        self.upstream.name()
    }

    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        let raw = self.upstream.allocate(len, stream, site)?;
        let (bytes, tag) = (ByteSize::from(len.get()), stream.scope().path());
        let mut inner = self.inner();
        inner.last_id += 1;
        let outstanding = Outstanding { id: inner.last_id, bytes, stream: stream.id(), tag, site };
        inner.out.insert(raw.ptr, outstanding);
        drop(inner);
        Ok(raw)
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        // Before the address can be reused by another allocation.
        if self.inner().out.remove(&raw.ptr).is_none() {
            return Err(MemoryError::NotHandedOut { resource: self.name(), ptr: raw.ptr, site });
        }
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
        self.upstream.reset_peaks()
    }
}

impl Drop for TrackingResourceAdaptor {
    fn drop(&mut self) {
        for outstanding in self.outstanding() {
            tracing::warn!("leak: {outstanding}");
        }
    }
}
