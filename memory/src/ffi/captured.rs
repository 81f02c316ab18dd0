//! Memory that is allocated while a stream is captured into a graph.
//!
//!   capture 5   alloc a ─ free a ─ alloc b (same stream: a's bytes)        the graph has the address, for every replay
//!   later       free b: kept ───────────────────────── the graph is gone: back to the device's pool
//!
//! Whose      a graph is replayed with the addresses it was captured with, so its memory is nobody else's until the graph is
//!            gone. It is ordinary memory of the device's pool, valid before, during and after the replays.
//! Reuse      inside one capture, on one stream: the graph keeps that order. Never across streams or captures.
//! Gone       a caller that says which graph pool it captures for (PyTorch's hooks) says when the pool's last graph is gone.
//!            Without, and where two pools are open at once, memory is kept until `release_graphs`.
//! Waits      fresh memory is waited for on the host: a graph cannot wait for what is outside of it.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;

use super::allocator::Place;
use crate::driver::{CaptureStatus, DevicePtr};
use crate::error::Result;
use crate::resource::RawAllocation;
use crate::stream::{Stream, StreamId};

/// PyTorch's name of a pool of graphs.
pub(super) type GraphPool = (u64, u64);

#[derive(Debug)]
struct Block {
    raw: RawAllocation,
    pool: Option<GraphPool>,
    /// Handed out and not taken back.
    live: bool,
    /// No graph has its address any more.
    released: bool,
}

/// What the graphs of a device have.
#[derive(Debug, Default)]
pub(super) struct Captured {
    blocks: HashMap<u64, Block>,
    /// What a capture freed and may have again: by capture and stream, then by length.
    idle: HashMap<(u64, StreamId), BTreeMap<usize, Vec<u64>>>,
    /// Those that captures are made for now.
    open: Vec<GraphPool>,
    /// How many graphs, or scopes without one, have a pool.
    uses: HashMap<GraphPool, u64>,
}

/// A block serves requests down to half its length.
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

    /// Takes back what `allocate` gave in `capture`; `users` begins with the stream of the free.
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

    /// One use of the pool less. True with the last one.
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

    /// Gives back what no graph has and nobody holds, once the device has finished what it has.
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

    /// Bytes that graphs have, and in how many pieces.
    pub(super) fn held(&self) -> (u64, usize) {
        (self.blocks.values().map(|block| block.raw.len().get() as u64).sum(), self.blocks.len())
    }
}
