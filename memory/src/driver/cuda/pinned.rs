//! Page-locked host memory: in large pages where the system has them, otherwise the driver's.

use super::*;

/// Minimum bytes of a pinned block that uses large pages.
const LEAST_LARGE: usize = 4 << 20;

impl CudaDriver {
    /// A large block of pinned memory, page-locked as such; `None` where that is not to be had.
    fn register_large_pages(&self, device: DeviceId, bytes: NonZeroUsize, kind: HostKind) -> Option<Arc<HostBlock>> {
        if bytes.get() < LEAST_LARGE {
            return None;
        }
        let pages = LargePages::map(bytes.get())?;
        let at = pages.address();
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        if call!(self, cuMemHostRegister_v2(at.as_ptr().cast(), pages.bytes(), flags)).is_err() {
            pages.unmap();
            return None;
        }
        // SAFETY: `bytes` zeroed bytes or more, aligned to a page, which stay until `host_free`, whose callers give up
        // the block.
        let block = unsafe { HostBlock::from_driver(at, bytes.get(), kind) };
        lock(&self.blocks).insert(block.id(), (device, Some(pages)));
        Some(block)
    }

    pub(super) fn alloc_pinned(&self, device: DeviceId, bytes: NonZeroUsize, kind: HostKind) -> Result<Arc<HostBlock>> {
        self.enter(device)?;
        if let Some(block) = self.register_large_pages(device, bytes, kind) {
            return Ok(block);
        }
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE
            | match kind {
                HostKind::Upload => sys::CU_MEMHOSTALLOC_WRITECOMBINED,
                // Mapped, so that a stream can store words into it.
                HostKind::Download => sys::CU_MEMHOSTALLOC_DEVICEMAP,
            };
        let mut memory = null_mut();
        call!(self, cuMemHostAlloc(&mut memory, bytes.get(), flags))?;
        let Some(memory) = NonNull::new(memory.cast::<u8>()) else {
            return Err(DriverError::new("cuMemHostAlloc", DriverCode::OUT_OF_MEMORY));
        };
        // SAFETY: `bytes` bytes that were just given to us, page-aligned; zeroing makes them initialised. They stay
        // until `host_free`, whose callers give up the block.
        let block = unsafe {
            memory.write_bytes(0, bytes.get());
            HostBlock::from_driver(memory, bytes.get(), kind)
        };
        lock(&self.blocks).insert(block.id(), (device, None));
        Ok(block)
    }

    pub(super) fn free_pinned(&self, block: &Arc<HostBlock>) -> Result<()> {
        if !block.is_page_locked() {
            return Ok(());
        }
        let known = lock(&self.blocks).remove(&block.id());
        let (device, pages) = known.ok_or(DriverError::new("cuMemFreeHost", DriverCode::INVALID_VALUE))?;
        self.enter(device)?;
        let at = block.address() as *mut c_void;
        let Some(pages) = pages else { return call!(self, cuMemFreeHost(at)) };
        call!(self, cuMemHostUnregister(at))?;
        pages.unmap();
        Ok(())
    }
}
