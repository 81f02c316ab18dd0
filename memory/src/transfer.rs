//! Copies between device buffers and bytes of the host, through pinned memory that is returned automatically.

use crate::buffer::{DeviceBuffer, DeviceView};
use crate::driver::HostKind;
use crate::error::Result;
use crate::pending::Pending;
use crate::pinned::{PinnedBuffer, PinnedPool};
use crate::pool::MemoryPool;
use crate::stream::Stream;

impl DeviceBuffer {
    /// Allocates a buffer and fills it with `bytes`, through pinned memory that is returned automatically. For small
    /// data: producers of large columns write to pinned memory directly.
    #[track_caller]
    pub fn upload(bytes: &[u8], stream: &Stream, pool: &MemoryPool, pinned: &PinnedPool) -> Result<Self> {
        let buffer = DeviceBuffer::new(bytes.len(), stream, pool)?;
        buffer.upload_from(bytes, stream, pinned)?;
        Ok(buffer)
    }
}

impl DeviceView {
    /// Overwrites the view with `bytes`, through pinned memory that is returned automatically.
    #[track_caller]
    pub fn upload_from(&self, bytes: &[u8], stream: &Stream, pinned: &PinnedPool) -> Result<()> {
        let mut staging = pinned.take_now(HostKind::Upload, bytes.len())?;
        staging.write()?.copy_from_slice(bytes);
        staging.enqueue_to_device(0..bytes.len(), self, stream)
    }

    /// Copies the view to pinned host memory.
    #[track_caller]
    pub fn download(&self, stream: &Stream, pinned: &PinnedPool) -> Result<Pending<PinnedBuffer>> {
        pinned.take_now(HostKind::Download, self.len())?.copy_to_host(self, stream)
    }

    /// Copies the view to ordinary host memory, through pinned memory.
    #[track_caller]
    pub fn download_vec(&self, stream: &Stream, pinned: &PinnedPool) -> Result<Pending<Vec<u8>>> {
        Ok(self.download(stream, pinned)?.and_then(|buffer| Ok(buffer.read()?.to_vec())))
    }
}
