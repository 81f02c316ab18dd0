//! Raw pinned host bytes, with safe access from both sides of a copy.
//!
//!   host  ── read() / write() ──►  HostBlock  ◄── copy_in() / copy_out() ──  simulated device
//!                                     ▲
//!                                     └── the CUDA device copies by itself: meanwhile `PinnedBuffer` lends no bytes
//!
//! Threads    one lock tracks access: host guards exclude copies and copies exclude host guards, so bytes never race.
//! Words      a block is either bytes or, after `claim_words`, atomic 32-bit words that a device stores and a host
//!            polls.
//! Memory     in-process blocks, page-locked or not, free themselves; blocks from CUDA are freed by the driver's
//!            `host_free`.

use std::alloc::Layout;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::HostKind;
use crate::error::{MemoryError, Result};

/// Alignment in bytes of in-process blocks; page-locked memory is page-aligned.
const ALIGNMENT: usize = 4096;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Number of host readers.
    Bytes {
        readers: u32,
    },
    Writing,
    Words,
}

#[derive(Clone, Copy)]
enum Origin {
    /// Memory of this process; it counts as page-locked on the simulated device.
    Process(Layout),
    /// Memory of this process that is not page-locked.
    Pageable(Layout),
    Driver,
}

/// A block of pinned host memory.
pub struct HostBlock {
    id: u64,
    ptr: NonNull<u8>,
    len: usize,
    kind: HostKind,
    origin: Origin,
    state: Mutex<State>,
}

// SAFETY: bytes are accessed only under `state` (shared for readers, exclusive for writers and copies), or as atomics.
unsafe impl Send for HostBlock {}
// SAFETY: as above.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    /// Zeroed memory of this process, freed with the last reference. For the simulated device.
    pub fn in_process(len: usize, kind: HostKind) -> Arc<HostBlock> {
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT).expect("a length in memory fits a layout");
        // SAFETY: the layout's size is at least 1.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { std::alloc::handle_alloc_error(layout) };
        Arc::new(Self::with(ptr, len, kind, Origin::Process(layout)))
    }

    /// Zeroed ordinary memory of this process, freed with the last reference. `None` if the allocation fails.
    pub fn pageable(len: usize, kind: HostKind) -> Option<Arc<HostBlock>> {
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT).ok()?;
        // SAFETY: the layout's size is at least 1.
        let ptr = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Arc::new(Self::with(ptr, len, kind, Origin::Pageable(layout))))
    }

    /// Memory that a driver page-locked and unlocks in `host_free`.
    ///
    /// # Safety
    /// `ptr` points to `len` initialised bytes, aligned to 4, that stay valid until `host_free`, after which no caller
    /// accesses the block.
    pub unsafe fn from_driver(ptr: NonNull<u8>, len: usize, kind: HostKind) -> Arc<HostBlock> {
        Arc::new(Self::with(ptr, len, kind, Origin::Driver))
    }

    fn with(ptr: NonNull<u8>, len: usize, kind: HostKind, origin: Origin) -> Self {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        HostBlock { id, ptr, len, kind, origin, state: Mutex::new(State::Bytes { readers: 0 }) }
    }

    /// ID of the block; never reused.
    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn kind(&self) -> HostKind {
        self.kind
    }

    /// False for ordinary memory: the driver copies it through its own staging memory, and such copies block.
    pub fn is_page_locked(&self) -> bool {
        !matches!(self.origin, Origin::Pageable(_))
    }

    /// Address for a driver that performs copies itself.
    pub fn address(&self) -> u64 {
        self.ptr.as_ptr() as u64
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends the bytes for reading. Refused during a write.
    pub fn read(&self) -> Result<HostReadGuard<'_>> {
        self.read_prefix(self.len)
    }

    /// Lends the first `len` bytes for reading.
    pub fn read_prefix(&self, len: usize) -> Result<HostReadGuard<'_>> {
        self.check(0, len)?;
        match &mut *self.state() {
            State::Bytes { readers } => *readers += 1,
            State::Writing => return Err(MemoryError::HostBusy("another guard writes it")),
            State::Words => return Err(MemoryError::HostBusy("it holds completion words")),
        }
        Ok(HostReadGuard { block: self, len })
    }

    /// Lends the bytes for writing. Refused while any other guard or copy uses them.
    pub fn write(&self) -> Result<HostWriteGuard<'_>> {
        self.write_prefix(self.len)
    }

    /// Lends the first `len` bytes for writing.
    pub fn write_prefix(&self, len: usize) -> Result<HostWriteGuard<'_>> {
        self.check(0, len)?;
        let mut state = self.state();
        match *state {
            State::Bytes { readers: 0 } => *state = State::Writing,
            State::Bytes { .. } => return Err(MemoryError::HostBusy("another guard reads it")),
            State::Writing => return Err(MemoryError::HostBusy("another guard writes it")),
            State::Words => return Err(MemoryError::HostBusy("it holds completion words")),
        }
        Ok(HostWriteGuard { block: self, len })
    }

    /// Lends the bytes for reading as long as the returned block lives.
    pub fn freeze(self: &Arc<Self>) -> Result<FrozenBlock> {
        let guard = self.read()?;
        // The frozen block takes over the reader count of the guard.
        std::mem::forget(guard);
        Ok(FrozenBlock(Arc::clone(self)))
    }

    fn check(&self, offset: usize, len: usize) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(MemoryError::Range { what: "host span", offset, wanted: len, len: self.len }),
        }
    }

    /// Writes `bytes` at `offset`, as a copy from a device does.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        let state = self.state();
        if *state != (State::Bytes { readers: 0 }) {
            return Err(MemoryError::HostBusy("a guard holds it while a copy writes it"));
        }
        // SAFETY: the range was checked, and `state` is held: no guard exists, and none can be created meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr.as_ptr().add(offset), bytes.len()) };
        drop(state);
        Ok(())
    }

    /// Reads from `offset`, as a copy to a device does.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        let state = self.state();
        if !matches!(*state, State::Bytes { .. }) {
            return Err(MemoryError::HostBusy("a guard writes it while a copy reads it"));
        }
        // SAFETY: the range was checked, and `state` is held: no writing guard exists, and none can be created
        // meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr.as_ptr().add(offset), bytes.as_mut_ptr(), bytes.len()) };
        drop(state);
        Ok(())
    }

    /// Converts the block to atomic words, permanently.
    pub fn claim_words(&self) -> Result<()> {
        let mut state = self.state();
        match *state {
            State::Bytes { readers: 0 } | State::Words => *state = State::Words,
            _ => return Err(MemoryError::HostBusy("a guard holds it")),
        }
        Ok(())
    }

    fn word(&self, offset: usize) -> Result<&AtomicU32> {
        self.check(offset, 4)?;
        if !offset.is_multiple_of(4) || *self.state() != State::Words {
            return Err(MemoryError::HostBusy("it holds bytes, not words"));
        }
        // SAFETY: in range, aligned, and a block of words (which it stays) is accessed only as atomics.
        Ok(unsafe { AtomicU32::from_ptr(self.ptr.as_ptr().add(offset).cast()) })
    }

    /// Stores a word with release ordering: earlier writes are visible to a thread that loads it.
    pub fn store_word(&self, offset: usize, value: u32) -> Result<()> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    pub fn load_word(&self, offset: usize) -> Result<u32> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        if let Origin::Process(layout) | Origin::Pageable(layout) = self.origin {
            // SAFETY: allocated with this layout in `in_process` or `pageable`, and no reference is left.
            unsafe { std::alloc::dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

impl fmt::Debug for HostBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host block #{} ({:?}, {} bytes)", self.id, self.kind, self.len)
    }
}

/// Part of a block.
#[derive(Clone, Debug)]
pub struct HostSpan {
    block: Arc<HostBlock>,
    offset: usize,
    len: usize,
}

impl HostSpan {
    pub fn new(block: &Arc<HostBlock>, offset: usize, len: usize) -> Result<Self> {
        block.check(offset, len)?;
        Ok(HostSpan { block: Arc::clone(block), offset, len })
    }

    pub fn block(&self) -> &Arc<HostBlock> {
        &self.block
    }

    pub fn offset(&self) -> usize {
        self.offset
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of its start, for a driver that performs copies itself.
    pub fn address(&self) -> u64 {
        self.block.address() + self.offset as u64
    }
}

/// The bytes of a block, lent for reading.
pub struct HostReadGuard<'a> {
    block: &'a HostBlock,
    len: usize,
}

impl Deref for HostReadGuard<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes; writers are excluded while a reader is counted.
        unsafe { std::slice::from_raw_parts(self.block.ptr.as_ptr(), self.len) }
    }
}

impl Drop for HostReadGuard<'_> {
    fn drop(&mut self) {
        if let State::Bytes { readers } = &mut *self.block.state() {
            *readers -= 1;
        }
    }
}

/// A block whose bytes are read-only while it lives.
pub struct FrozenBlock(Arc<HostBlock>);

impl Deref for FrozenBlock {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: initialised bytes; writers are excluded while this reader is counted.
        unsafe { std::slice::from_raw_parts(self.0.ptr.as_ptr(), self.0.len) }
    }
}

impl Drop for FrozenBlock {
    fn drop(&mut self) {
        if let State::Bytes { readers } = &mut *self.0.state() {
            *readers -= 1;
        }
    }
}

/// The bytes of a block, lent for writing.
pub struct HostWriteGuard<'a> {
    block: &'a HostBlock,
    len: usize,
}

impl Deref for HostWriteGuard<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes, and this guard is the only access.
        unsafe { std::slice::from_raw_parts(self.block.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for HostWriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.block.ptr.as_ptr(), self.len) }
    }
}

impl Drop for HostWriteGuard<'_> {
    fn drop(&mut self) {
        *self.block.state() = State::Bytes { readers: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_and_copies_keep_each_other_out() {
        let block = HostBlock::in_process(16, HostKind::Download);
        {
            let first = block.read().unwrap();
            let second = block.read().unwrap();
            assert_eq!(&first[..], &second[..]);
            assert!(block.write().is_err());
            assert!(block.copy_in(0, &[1]).is_err());
            assert!(block.copy_out(0, &mut [0]).is_ok());
        }
        block.copy_in(4, &[1, 2, 3]).unwrap();
        {
            let mut bytes = block.write().unwrap();
            assert_eq!(&bytes[4..7], &[1, 2, 3]);
            bytes[0] = 9;
            assert!(block.read().is_err());
            assert!(block.copy_out(0, &mut [0]).is_err());
        }
        let mut out = [0; 2];
        block.copy_out(0, &mut out).unwrap();
        assert_eq!(out, [9, 0]);
    }

    #[test]
    fn a_frozen_block_is_read_and_copied_from() {
        let block = HostBlock::in_process(16, HostKind::Download);
        block.copy_in(0, &[1, 2]).unwrap();
        let frozen = block.freeze().unwrap();
        assert_eq!((&frozen[..3], frozen.len()), (&[1, 2, 0][..], 16));
        assert!(block.write().is_err() && block.copy_in(0, &[1]).is_err());
        assert!(block.read().is_ok() && block.copy_out(0, &mut [0]).is_ok());
        drop(frozen);
        assert!(block.write().is_ok());
    }

    #[test]
    fn spans_stay_inside() {
        let block = HostBlock::in_process(16, HostKind::Upload);
        assert!(HostSpan::new(&block, 8, 8).is_ok());
        assert!(HostSpan::new(&block, 8, 9).is_err());
        assert!(HostSpan::new(&block, usize::MAX, 2).is_err());
        assert!(block.copy_in(15, &[0, 0]).is_err());
    }

    #[test]
    fn words_are_words_for_good() {
        let block = HostBlock::in_process(16, HostKind::Download);
        assert!(block.store_word(0, 1).is_err());
        block.claim_words().unwrap();
        block.store_word(4, 7).unwrap();
        assert_eq!(block.load_word(4).unwrap(), 7);
        assert!(block.load_word(2).is_err());
        assert!(block.read().is_err() && block.write().is_err());
    }
}
