//! Memory that is allocated while a stream is captured into a graph.
//!
//!   capture 5   alloc a ─ free a ─ alloc b (same stream: a's bytes)        the graph uses the address in every replay
//!   later       free b: kept ───────────────────────── the graph is gone: freed to the device's pool
//!
//! Ownership  a graph replays the captured addresses, so its memory is reserved until the graph is gone. It is ordinary
//!            memory of the device's pool, valid before, during and after the replays.
//! Reuse      within one capture, on one stream: the graph keeps that order. Never across streams or captures.
//! Gone       a caller that names a graph pool for its captures (PyTorch's hooks) also reports when the pool's last
//!            graph is gone. Without a name, or with two pools open at once, memory is kept until `release_graphs`.
//! Waits      the host waits for fresh memory: a graph cannot wait for outside work.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;

use super::allocator::Place;
use crate::driver::{CaptureStatus, DevicePtr};
use crate::error::Result;
use crate::ids::StreamId;
use crate::resource::RawAllocation;
use crate::stream::Stream;

/// PyTorch's ID of a graph pool.
pub(super) type GraphPool = (u64, u64);

#[derive(Debug)]
struct Block {
    raw: RawAllocation,
    pool: Option<GraphPool>,
    /// Allocated and not freed.
    live: bool,
    /// No graph uses its address any more.
    released: bool,
}

/// Memory of the graphs of a device.
#[derive(Debug, Default)]
pub(super) struct Captured {
    blocks: HashMap<u64, Block>,
    /// Freed blocks that a capture may reuse: by capture and stream, then by length.
    idle: HashMap<(u64, StreamId), BTreeMap<usize, Vec<u64>>>,
    /// Graph pools that captures are currently assigned to.
    open: Vec<GraphPool>,
    /// Number of graphs, or of scopes without a graph, that use a pool.
    uses: HashMap<GraphPool, u64>,
}

/// Maximum ratio of a block's length to the request it serves.
const MOST_WASTE: usize = 2;

impl Captured {
    pub(super) fn allocate(place: &Place, len: NonZeroUsize, stream: &Stream, capture: u64) -> Result<DevicePtr> {
        if let Some(ptr) = place.captured().reuse(len.get(), (capture, stream.id())) {
            return Ok(DevicePtr(ptr));
        }
        let raw = place.take(len, &place.home)?;
        if let Err(error) = place.home.synchronize() {
            place.pool.abandon(raw);
            return Err(error);
        }
        let ptr = raw.ptr();
        let mut captured = place.captured();
        let pool = match captured.open[..] {
            [only] => Some(only),
            _ => None,
        };
        captured.blocks.insert(ptr.0, Block { raw, pool, live: true, released: false });
        Ok(ptr)
    }

    fn reuse(&mut self, len: usize, of: (u64, StreamId)) -> Option<u64> {
        let idle = self.idle.get_mut(&of)?;
        let (&found, list) = idle.range_mut(len..=len.saturating_mul(MOST_WASTE)).next()?;
        let ptr = list.pop().expect("empty lists are removed");
        if list.is_empty() {
            idle.remove(&found);
        }
        if let Some(block) = self.blocks.get_mut(&ptr) {
            block.live = true;
        }
        Some(ptr)
    }

    /// Frees an allocation of `capture`; `users` begins with the stream of the free.
    pub(super) fn free(place: &Place, ptr: DevicePtr, capture: u64, users: &[Stream]) -> Result<()> {
        let same_capture = match users {
            [only] => place.device.capture_status_of(only.cell())? == CaptureStatus::Active { id: capture },
            _ => false,
        };
        let released = {
            let mut captured = place.captured();
            let Some(block) = captured.blocks.get_mut(&ptr.0) else { return Ok(()) };
            block.live = false;
            let (released, len) = (block.released, block.raw.len().get());
            if let (true, [only]) = (same_capture, users) {
                captured.idle.entry((capture, only.id())).or_default().entry(len).or_default().push(ptr.0);
            }
            released
        };
        if released { Self::give_back(place) } else { Ok(()) }
    }

    pub(super) fn begin(&mut self, pool: GraphPool) {
        self.open.push(pool);
        *self.uses.entry(pool).or_default() += 1;
    }

    pub(super) fn end(&mut self, pool: GraphPool) {
        if let Some(index) = self.open.iter().rposition(|open| *open == pool) {
            self.open.remove(index);
        }
    }

    /// Removes one use of the pool. True if it was the last.
    pub(super) fn release(&mut self, pool: GraphPool) -> bool {
        let Some(uses) = self.uses.get_mut(&pool) else { return false };
        *uses -= 1;
        if *uses > 0 {
            return false;
        }
        self.uses.remove(&pool);
        self.blocks.values_mut().filter(|block| block.pool == Some(pool)).for_each(|block| block.released = true);
        true
    }

    pub(super) fn release_all(&mut self) {
        self.blocks.values_mut().for_each(|block| block.released = true);
    }

    /// Frees blocks that are neither live nor used by a graph, after the device has finished its current work.
    pub(super) fn give_back(place: &Place) -> Result<()> {
        place.device.synchronize()?;
        let raws = {
            let mut captured = place.captured();
            let over: Vec<u64> =
                captured.blocks.iter().filter(|(_, b)| b.released && !b.live).map(|(ptr, _)| *ptr).collect();
            for list in captured.idle.values_mut() {
                list.retain(|_, ptrs| {
                    ptrs.retain(|ptr| !over.contains(ptr));
                    !ptrs.is_empty()
                });
            }
            captured.idle.retain(|_, lists| !lists.is_empty());
            over.iter().filter_map(|ptr| Some(captured.blocks.remove(ptr)?.raw)).collect()
        };
        place.give_back(raws)
    }

    /// Bytes reserved for graphs, and the number of blocks.
    pub(super) fn held(&self) -> (u64, usize) {
        (self.blocks.values().map(|block| block.raw.len().get() as u64).sum(), self.blocks.len())
    }
}
