//! Host memory in the system's large pages, to be page-locked.
//!
//!   map ─► aligned to 2 MiB, large pages asked for ─► touched by several threads ─► the driver registers it
//!
//! Why    the driver's own memory comes in pages of 4 KiB, which it zeroes and locks one by one: 0.42 s a GiB on one
//!        H200's host, this 0.15 s.

use std::ptr::NonNull;

/// Bytes of a large page.
const PAGE: usize = 2 << 20;
/// Minimum bytes per thread; at most `MOST_THREADS` threads are used.
const BYTES_OF_A_THREAD: usize = 8 << 20;
const MOST_THREADS: usize = 4;

/// Memory of this process, zeroed. Dropped, it stays mapped: a driver that has registered it may still reach it, also
/// while the process ends.
pub(super) struct LargePages {
    at: NonNull<u8>,
    bytes: usize,
    /// What was mapped around it.
    mapped: (NonNull<u8>, usize),
}

// SAFETY: it is plain memory, which belongs to who has this.
unsafe impl Send for LargePages {}

impl LargePages {
    /// At least `bytes` of them, `None` if the system has no room.
    pub(super) fn map(bytes: usize) -> Option<Self> {
        let bytes = bytes.checked_next_multiple_of(PAGE)?;
        let len = bytes.checked_add(PAGE)?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, of no file, wherever the system has room.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        let mapped = NonNull::new(mapped.cast::<u8>())?;
        let skip = mapped.as_ptr().align_offset(PAGE);
        // SAFETY: a page was mapped for what is skipped.
        let at = unsafe { mapped.add(skip) };
        let pages = Self { at, bytes, mapped: (mapped, len) };
        // SAFETY: of the mapping. Without large pages it is memory all the same.
        unsafe { libc::madvise(at.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        pages.touch();
        Some(pages)
    }

    /// Writes to each page, so that the system gives it.
    fn touch(&self) {
        let threads = (self.bytes / BYTES_OF_A_THREAD).clamp(1, MOST_THREADS);
        // SAFETY: the memory was mapped just now, and no other reference to it exists.
        let all = unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) };
        std::thread::scope(|scope| {
            let mut shares = all.chunks_mut(self.bytes.div_ceil(threads).next_multiple_of(PAGE));
            let touch = |share: &mut [u8]| share.iter_mut().step_by(4096).for_each(|byte| *byte = 0);
            let own = shares.next();
            for share in shares {
                // Where the system gives no thread, who first writes there waits for the pages.
                let _ = std::thread::Builder::new().spawn_scoped(scope, move || touch(share));
            }
            own.into_iter().for_each(touch);
        });
    }

    pub(super) fn address(&self) -> NonNull<u8> {
        self.at
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives it back to the system. The caller has made sure that neither the device nor the host uses it any more.
    pub(super) fn unmap(self) {
        // SAFETY: what `map` has mapped, once.
        unsafe { libc::munmap(self.mapped.0.as_ptr().cast(), self.mapped.1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_aligned_zeroed_and_given_back() {
        for bytes in [1, PAGE, 33 << 20] {
            let pages = LargePages::map(bytes).expect("there is memory");
            assert!(pages.bytes() >= bytes && pages.address().as_ptr().align_offset(PAGE) == 0);
            // SAFETY: its own bytes.
            let all = unsafe { std::slice::from_raw_parts_mut(pages.address().as_ptr(), pages.bytes()) };
            assert!(all.iter().all(|byte| *byte == 0));
            all.fill(7);
            pages.unmap();
        }
        assert!(LargePages::map(usize::MAX - PAGE).is_none());
    }
}
