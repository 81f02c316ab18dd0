//! Writes a line of CSV for each allocation, each free and each trim (`log` says what a line holds).
//!
//!   3,10:42:07.000123,allocate,0x7f0000000000,4096,0x2,17,1834000,9,41,,query 7/sort
//!   3,10:42:07.000391,free,0x7f0000000000,4096,0x2,18,2102000,9,55,,query 7/sort
//!
//! Uses       and waits are not a resource's to see: a device that logs to the same log adds them (`Device::log_to`).

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::device::Device;
use crate::driver::Site;
use crate::error::Result;
use crate::log::MemoryLog;
use crate::resource::{DeviceMemoryResource, RawAllocation, ResourceStatistics};
use crate::stream::Stream;
use crate::units::ByteSize;

#[derive(Debug)]
pub struct LoggingResourceAdaptor {
    upstream: Arc<dyn DeviceMemoryResource>,
    log: Arc<MemoryLog>,
}

impl LoggingResourceAdaptor {
    /// Logs to `out`, which is best buffered. Closed, and complete, when the adaptor is dropped.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(upstream: Arc<dyn DeviceMemoryResource>, out: impl Write + Send + 'static) -> io::Result<Self> {
        Ok(Self::with_log(upstream, MemoryLog::new(out)?))
    }

    /// Adds to a log that others write to as well.
    pub fn with_log(upstream: Arc<dyn DeviceMemoryResource>, log: Arc<MemoryLog>) -> Self {
        LoggingResourceAdaptor { upstream, log }
    }

    pub fn log(&self) -> &Arc<MemoryLog> {
        &self.log
    }

    /// Writes what was logged so far.
    ///
    /// # Errors
    /// What the writer met with since the last time.
    pub fn flush(&self) -> io::Result<()> {
        self.log.flush()
    }
}

impl DeviceMemoryResource for LoggingResourceAdaptor {
    fn name(&self) -> &'static str {
        self.upstream.name()
    }

    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        let allocated = self.upstream.allocate(len, stream, site);
        match &allocated {
            Ok(raw) => self.log.allocated(raw.ptr, len.get(), stream),
            Err(_) => self.log.allocation_failed(len.get(), stream),
        }
        allocated
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        self.log.freed(raw.ptr, raw.len.get(), stream);
        self.upstream.deallocate(raw, stream, site)
    }

    fn trim(&self, keep: ByteSize) -> Result<()> {
        self.log.trimmed(keep);
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
