//! Pinned host memory, the staging memory of copies to and from a device.
//!
//! ```text
//!   pool.take(Upload, n).await ─► PinnedBuffer ─ write() ─► copy_to_device ─► Pending<PinnedBuffer>
//!        ▲                              │ dropped                                 │ dropped, or awaited and dropped
//!        └──────────────────────────────┴─── once the device is past its copies ──┘
//! ```
//!
//! Kinds      upload memory is write-combined: the host writes it sequentially and never reads it. Download memory is
//!            cached; it also holds bytes that the host reads before their upload: frozen, they are shared by all
//!            readers.
//! Bound      page-locked memory is not returned to the system, so the pool holds at most its limit; `take` waits its
//!            turn, `take_now` refuses. Buffers of up to 64 KiB (descriptors, results) are always served. The default
//!            limit depends on the machine (`limit`).
//! Refused    if the system locks no more pages, free blocks of all classes are freed and the request is repeated; if
//!            that fails, the buffer uses ordinary memory, whose copies are correct but slow and blocking. Such a
//!            buffer is not kept.
//! Reuse      by size class, four per doubling; a block may be up to twice as large. A buffer returns to the pool only
//!            when all its copies have finished.
//! Streams    before a second stream uses a buffer, it waits for the first, so one event covers all uses.
//! Lost       blocks in flight on a lost device are never reused: a late write must not overwrite other data.

#[expect(unsafe_code, reason = "the one place where raw host memory becomes slices and words")]
mod block;
mod buffer;
mod limit;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

pub use block::{FrozenBlock, HostBlock, HostReadGuard, HostSpan, HostWriteGuard};
pub use buffer::{PinnedBuffer, PinnedBytes};

use crate::device::Device;
use crate::driver::{DriverCode, HostKind, Site};
use crate::error::{MemoryError, Result};
use crate::recorder::{self, InStep};
use crate::units::ByteSize;

/// Smallest class in bytes: a page.
const SMALLEST: usize = 4096;

/// Size in bytes up to which a buffer is served even beyond the limit: a caller that holds the limit may need it to
/// proceed.
const ALWAYS_GIVEN: usize = 64 << 10;

/// Size class of `len`: a power of two, or a power of two plus one, two or three quarters of it.
fn class_of(len: usize) -> Option<usize> {
    if len <= SMALLEST {
        return Some(SMALLEST);
    }
    let quarter = (len.checked_next_power_of_two()? / 8).max(SMALLEST / 4);
    len.checked_next_multiple_of(quarter)
}

pub struct PinnedPoolBuilder {
    device: Device,
    limit: ByteSize,
}

impl PinnedPoolBuilder {
    /// Maximum page-locked memory of the pool, small buffers aside.
    pub fn max_bytes(mut self, limit: ByteSize) -> Self {
        self.limit = limit;
        self
    }

    pub fn build(self) -> PinnedPool {
        let inner = PoolInner { device: self.device, limit: self.limit, state: Mutex::default() };
        PinnedPool { inner: Arc::new(inner) }
    }
}

#[derive(Default)]
struct PoolState {
    free: HashMap<(HostKind, usize), Vec<Arc<HostBlock>>>,
    /// Number of page-locked blocks per class: lent, free, or being allocated.
    blocks: HashMap<(HostKind, usize), usize>,
    /// Page-locked bytes, lent or free.
    held: u64,
    /// Bytes lent or in flight.
    lent: u64,
    waiting: Vec<Waker>,
    hits: u64,
    misses: u64,
    pageable: u64,
}

impl PoolState {
    /// Counts an added or removed block of the class.
    fn count(&mut self, kind: HostKind, class: usize, more: isize) {
        let blocks = self.blocks.entry((kind, class)).or_default();
        *blocks = blocks.saturating_add_signed(more);
        let bytes = class as u64;
        self.held = if more > 0 { self.held + bytes } else { self.held - bytes };
    }

    /// A free block of the class, else the smallest larger one of up to twice its size.
    fn free_block(&mut self, kind: HostKind, class: usize, limit: ByteSize) -> Option<Arc<HostBlock>> {
        if let Some(block) = self.free.get_mut(&(kind, class)).and_then(Vec::pop) {
            return Some(block);
        }
        if class <= ALWAYS_GIVEN {
            return None;
        }
        let fits = |(of, size): &(HostKind, usize)| *of == kind && (class..=class * 2).contains(size);
        let free = self.free.iter().filter(|(key, blocks)| fits(key) && !blocks.is_empty());
        let key = *free.min_by_key(|((_, size), _)| *size)?.0;
        if self.lent + key.1 as u64 > limit.as_u64() {
            return None;
        }
        self.free.get_mut(&key)?.pop()
    }
}

struct PoolInner {
    device: Device,
    limit: ByteSize,
    state: Mutex<PoolState>,
}

impl PoolInner {
    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of the class, free or new; `None` if the limit leaves no space now.
    fn lend(&self, kind: HostKind, class: usize, site: Site) -> Result<Option<Arc<HostBlock>>> {
        self.device.alive()?;
        let bytes = class as u64;
        let mut state = self.state();
        if let Some(block) = state.free_block(kind, class, self.limit) {
            state.lent += block.len() as u64;
            state.hits += 1;
            return Ok(Some(block));
        }
        let mut evicted = Vec::new();
        if class > ALWAYS_GIVEN {
            if state.lent + bytes > self.limit.as_u64() {
                return Ok(None);
            }
            // Free blocks of other classes are freed, largest first, until the block fits.
            while state.held + bytes > self.limit.as_u64() {
                let largest = state.free.iter().filter(|(_, blocks)| !blocks.is_empty());
                let Some(key) = largest.max_by_key(|((_, class), _)| *class).map(|(key, _)| *key) else { break };
                let block = state.free.get_mut(&key).and_then(Vec::pop).expect("not empty");
                state.count(block.kind(), block.len(), -1);
                evicted.push(block);
            }
        }
        state.count(kind, class, 1);
        state.lent += bytes;
        state.misses += 1;
        drop(state);
        let made = self.give_back(evicted, site).and_then(|()| self.make(kind, class, site));
        let mut state = self.state();
        match made {
            Ok(block) if block.is_page_locked() => Ok(Some(block)),
            Ok(block) => {
                state.count(kind, class, -1);
                state.pageable += 1;
                Ok(Some(block))
            }
            Err(error) => {
                state.count(kind, class, -1);
                state.lent -= bytes;
                Err(error)
            }
        }
    }

    /// Allocates a free block of the class. Returns false if there are `count` of it, if the limit leaves no space, or
    /// if the system locks no more pages.
    fn prepare(&self, kind: HostKind, class: usize, count: usize, site: Site) -> Result<bool> {
        self.device.alive()?;
        {
            let mut state = self.state();
            let there = state.blocks.get(&(kind, class)).copied().unwrap_or(0);
            if there >= count || state.held + class as u64 > self.limit.as_u64() {
                return Ok(false);
            }
            state.count(kind, class, 1);
        }
        let made = self.make(kind, class, site);
        let mut state = self.state();
        let block = match made {
            Ok(block) if block.is_page_locked() => block,
            made => {
                state.count(kind, class, -1);
                state.pageable += u64::from(made.is_ok());
                return made.map(|_| false);
            }
        };
        state.misses += 1;
        state.free.entry((kind, class)).or_default().push(block);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
        Ok(true)
    }

    /// Frees blocks that were removed from the lists.
    fn give_back(&self, blocks: Vec<Arc<HostBlock>>, site: Site) -> Result<()> {
        blocks.iter().try_for_each(|block| self.device.check(self.device.driver().host_free(block, site)))
    }

    /// Allocates a block: page-locked if the system permits, if necessary after freeing free blocks, else ordinary
    /// memory.
    fn make(&self, kind: HostKind, class: usize, site: Site) -> Result<Arc<HostBlock>> {
        let (driver, device) = (self.device.driver(), self.device.id());
        let len = NonZeroUsize::new(class).expect("no class is empty");
        let page_locked = || self.device.check(driver.host_alloc(device, len, kind, site));
        let refused = match page_locked() {
            Err(error) if is_refusal(&error) => error,
            made => return made,
        };
        let free: Vec<Arc<HostBlock>> = {
            let mut state = self.state();
            let free: Vec<_> = std::mem::take(&mut state.free).into_values().flatten().collect();
            free.iter().for_each(|block| state.count(block.kind(), block.len(), -1));
            free
        };
        if !free.is_empty() {
            self.give_back(free, site)?;
            match page_locked() {
                Err(error) if is_refusal(&error) => {}
                made => return made,
            }
        }
        tracing::warn!(error = %refused, bytes = class, "no page-locked memory: copies go through ordinary memory, slowly");
        let pageable = driver.host_alloc_pageable(device, len, kind, site);
        pageable.map_err(|_| MemoryError::PinnedRefused { wanted: ByteSize::from(class), refused: refused.to_string() })
    }

    /// Returns a block that no copy uses any more.
    fn recycle(&self, block: Arc<HostBlock>) {
        let mut ordinary = None;
        let mut state = self.state();
        state.lent -= block.len() as u64;
        if self.device.is_lost() {
            // The device may still write to the block: it is not reused, and its memory stays valid.
            std::mem::forget(block);
        } else if block.is_page_locked() {
            state.free.entry((block.kind(), block.len())).or_default().push(block);
        } else {
            ordinary = Some(block);
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        if let Some(block) = ordinary
            && let Err(error) = self.give_back(vec![block], Location::caller())
        {
            self.device.report(error);
        }
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// True if the system has no more memory to lock, or refuses to lock more for this process.
fn is_refusal(error: &MemoryError) -> bool {
    let code = error.driver_code();
    !error.is_device_lost() && matches!(code, Some(DriverCode::OUT_OF_MEMORY | DriverCode::OPERATING_SYSTEM))
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for block in std::mem::take(&mut state.free).into_values().flatten() {
            if self.device.is_lost() {
                std::mem::forget(block);
            } else if let Err(error) = self.device.check(self.device.driver().host_free(&block, Location::caller())) {
                self.device.report(error);
            }
        }
    }
}

/// Statistics of a pinned pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedStatistics {
    /// Page-locked bytes, lent or free.
    pub held: ByteSize,
    /// Bytes lent, or dropped and still in flight.
    pub lent: ByteSize,
    /// Buffers served from free blocks, and newly allocated ones.
    pub hits: u64,
    pub misses: u64,
    /// New buffers that use ordinary memory, for lack of page-locked memory.
    pub pageable: u64,
}

/// Pinned host memory for the copies of one device. Clones share it.
#[derive(Clone)]
pub struct PinnedPool {
    inner: Arc<PoolInner>,
}

impl PinnedPool {
    pub fn builder(device: &Device) -> PinnedPoolBuilder {
        PinnedPoolBuilder { device: device.clone(), limit: Self::default_max_bytes() }
    }

    /// Default maximum of a pool: the minimum of 1 GiB, a quarter of the memory of the machine or of the process's
    /// control group, and the limit of locked memory (counted as at least 256 MiB).
    pub fn default_max_bytes() -> ByteSize {
        limit::default_limit()
    }

    pub fn limit(&self) -> ByteSize {
        self.inner.limit
    }

    pub fn statistics(&self) -> PinnedStatistics {
        let state = self.inner.state();
        PinnedStatistics {
            held: ByteSize(state.held),
            lent: ByteSize(state.lent),
            hits: state.hits,
            misses: state.misses,
            pageable: state.pageable,
        }
    }

    /// Allocates one free block for buffers of `len` bytes in advance. Returns false if there are `count` such blocks,
    /// lent ones included, if the limit leaves no space, or if the system locks no more pages.
    ///
    /// # Errors
    /// Errors of the driver.
    #[track_caller]
    pub fn prepare(&self, kind: HostKind, len: usize, count: usize) -> Result<bool> {
        let class = class_of(len).ok_or_else(|| self.exhausted(len))?;
        self.inner.prepare(kind, class, count, Location::caller())
    }

    /// Returns a buffer of `len` bytes, or an error if the limit leaves no space now.
    ///
    /// # Errors
    /// [`MemoryError::PinnedExhausted`]
    #[track_caller]
    pub fn take_now(&self, kind: HostKind, len: usize) -> Result<PinnedBuffer> {
        match self.try_take(kind, len, Location::caller())? {
            Some(buffer) => Ok(buffer),
            None => Err(self.exhausted(len)),
        }
    }

    /// Returns a buffer of `len` bytes as soon as the limit permits.
    ///
    /// # Errors
    /// [`MemoryError::PinnedExhausted`] if it is larger than the limit.
    #[track_caller]
    pub fn take(&self, kind: HostKind, len: usize) -> TakePinned {
        TakePinned { pool: self.clone(), kind, len, site: Location::caller(), waited: false, step: None }
    }

    fn exhausted(&self, len: usize) -> MemoryError {
        let in_use = ByteSize(self.inner.state().lent);
        MemoryError::PinnedExhausted { wanted: ByteSize::from(len), in_use, limit: self.inner.limit }
    }

    fn try_take(&self, kind: HostKind, len: usize, site: Site) -> Result<Option<PinnedBuffer>> {
        let Some(class) = class_of(len) else { return Err(self.exhausted(len)) };
        let block = self.inner.lend(kind, class, site)?;
        Ok(block.map(|block| PinnedBuffer { block: Some(block), len, pool: Arc::clone(&self.inner), last: None }))
    }
}

impl fmt::Debug for PinnedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PinnedStatistics { held, lent, .. } = self.statistics();
        write!(f, "pinned pool: {lent} lent of {held} held, limit {}", self.inner.limit)
    }
}

/// Resolves to a buffer once the limit permits.
#[must_use = "a future does nothing unless it is awaited"]
pub struct TakePinned {
    pool: PinnedPool,
    kind: HostKind,
    len: usize,
    site: Site,
    waited: bool,
    /// Set while it waits on a path.
    step: Option<InStep>,
}

impl Future for TakePinned {
    type Output = Result<PinnedBuffer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = Arc::clone(&self.pool.inner);
        match class_of(self.len) {
            Some(class) if class <= ALWAYS_GIVEN || class as u64 <= inner.limit.as_u64() => {}
            _ => return Poll::Ready(Err(self.pool.exhausted(self.len))),
        }
        // Registered before the check, so that a buffer returned in between wakes this task.
        inner.state().waiting.push(context.waker().clone());
        match self.pool.try_take(self.kind, self.len, self.site) {
            Ok(Some(buffer)) => Poll::Ready(Ok(buffer)),
            Err(error) => Poll::Ready(Err(error)),
            Ok(None) => {
                if !self.waited {
                    self.waited = true;
                    self.step = recorder::step(recorder::WAIT);
                    inner.device.scope().count(|c| &c.feed_waits);
                }
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_a_quarter_beyond_a_page() {
        for (len, class) in [
            (0, 4096),
            (4096, 4096),
            (4097, 5120),
            (8192, 8192),
            (8193, 10240),
            (1 << 20, 1 << 20),
            ((1 << 20) + 1, (1 << 20) + (1 << 18)),
            (3 << 20, 3 << 20),
        ] {
            assert_eq!(class_of(len), Some(class), "{len}");
        }
        for len in (1..2_000_000).step_by(997) {
            let class = class_of(len).unwrap();
            assert!(class >= len && (class <= SMALLEST || class - len <= len / 4), "{len} → {class}");
            assert_eq!(class_of(class), Some(class));
        }
        assert_eq!(class_of(usize::MAX), None);
    }
}
