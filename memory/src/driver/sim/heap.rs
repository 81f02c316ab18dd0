//! Which buffers exist: as the program sees it, and as the device has got to.
//!
//!   program order   alloc A ────────── free A ── alloc B (same address) ──────
//!   device          ············ alloc A ── use ── free A ── alloc B ··········
//!
//! Names      a buffer has a number that is never used again; an address is not a name.
//! Two views  what the program has allocated and not freed answers submissions; what is live on the device answers
//!            execution.
//! Bytes      lie in the interpreter's heap while a buffer is live there; fresh ones are poison.
//! Bounds     of the dead, the last `MOST_DEAD` are remembered, for reports.

use super::clock::Moment;
use super::order::Shadow;
use super::report::Submission;
use crate::driver::{DevicePtr, PoolHandle, Site};
use crate::units::ByteSize;
use millpond_ptx::interpret::{Fill, Heap};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

const MOST_DEAD: usize = 4096;

/// What fresh memory holds: large as an integer, not a plausible float, easy to see in a dump.
pub(super) const POISON: u8 = 0xCD;

/// Where a buffer's bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Pool(PoolHandle),
    /// Allocated without a stream.
    Device,
    /// A variable of a loaded module: lives as long as the module.
    Module,
}

/// How a buffer is named in reports.
#[derive(Debug, Clone)]
pub(super) struct Label {
    pub(super) id: u64,
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) site: Option<Site>,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer #{} ({} at {:#x}", self.id, ByteSize(self.len), self.base)?;
        match self.site {
            Some(site) => write!(f, ", allocated at {site})"),
            None => write!(f, ")"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) label: Label,
    pub(super) device: u32,
    pub(super) origin: Origin,
    /// Its allocation in stream order; `None` when it came without a stream.
    pub(super) allocated: Option<Arc<Submission>>,
    /// Its free, once that has been submitted.
    pub(super) freed: Option<Arc<Submission>>,
    /// The last submission of each lane that named it.
    pub(super) named: Vec<Arc<Submission>>,
    pub(super) shadow: Shadow,
}

/// A buffer that is gone.
#[derive(Debug)]
pub(super) struct Dead {
    pub(super) label: Label,
    /// `None` when it was freed without a stream.
    pub(super) freed: Option<Arc<Submission>>,
}

#[derive(Debug)]
pub(super) struct Memory {
    pub(super) heap: Heap,
    buffers: HashMap<u64, Buffer>,
    /// By address, in program order: allocated and not freed.
    program: BTreeMap<u64, u64>,
    /// By address, on the device: live now.
    device: BTreeMap<u64, u64>,
    dead: VecDeque<Dead>,
    next_id: u64,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self {
            heap: Heap::new(),
            buffers: HashMap::new(),
            program: BTreeMap::new(),
            device: BTreeMap::new(),
            dead: VecDeque::new(),
            next_id: 1,
        }
    }

    /// A new buffer in program order. On the device it begins with [`Self::begin`].
    pub(super) fn announce(
        &mut self,
        ptr: u64,
        len: u64,
        device: u32,
        origin: Origin,
        allocated: Option<Arc<Submission>>,
        site: Option<Site>,
    ) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let label = Label { id, base: ptr, len, site };
        let shadow = Shadow::new(len);
        let buffer = Buffer { label, device, origin, allocated, freed: None, named: Vec::new(), shadow };
        self.buffers.insert(id, buffer);
        self.program.insert(ptr, id);
        id
    }

    /// The buffer becomes live on the device, with poison in it.
    pub(super) fn begin(&mut self, id: u64) -> Result<(), String> {
        let Some(buffer) = self.buffers.get(&id) else { return Ok(()) };
        self.heap
            .allocate(buffer.label.base, buffer.label.len, Fill::Uninitialised(POISON))
            .map_err(|error| error.to_string())?;
        self.device.insert(buffer.label.base, id);
        Ok(())
    }

    /// The buffer has been freed in program order.
    pub(super) fn retire(&mut self, id: u64, freed: Option<Arc<Submission>>) {
        if let Some(buffer) = self.buffers.get_mut(&id) {
            self.program.remove(&buffer.label.base);
            buffer.freed = freed;
        }
    }

    /// The buffer's life on the device is over.
    pub(super) fn end(&mut self, id: u64) -> Option<Buffer> {
        let mut buffer = self.buffers.remove(&id)?;
        if self.device.get(&buffer.label.base) == Some(&id) {
            self.device.remove(&buffer.label.base);
            // Its absence would mean that it never became live: then there is nothing to give back.
            let _ = self.heap.free(buffer.label.base);
        }
        if self.dead.len() >= MOST_DEAD {
            self.dead.pop_front();
        }
        self.dead.push_back(Dead { label: buffer.label.clone(), freed: buffer.freed.take() });
        Some(buffer)
    }

    pub(super) fn get(&self, id: u64) -> Option<&Buffer> {
        self.buffers.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Buffer> {
        self.buffers.get_mut(&id)
    }

    fn find(&self, map: &BTreeMap<u64, u64>, address: u64) -> Option<&Buffer> {
        let (_, id) = map.range(..=address).next_back()?;
        self.buffers.get(id).filter(|buffer| address - buffer.label.base < buffer.label.len)
    }

    /// The buffer that holds the address, as the program sees it now.
    pub(super) fn in_program(&self, ptr: DevicePtr) -> Option<&Buffer> {
        self.find(&self.program, ptr.0)
    }

    /// The buffer that holds the address on the device now.
    pub(super) fn on_device(&self, address: u64) -> Option<&Buffer> {
        self.find(&self.device, address)
    }

    /// A buffer that the program has freed and that held the address: the latest.
    pub(super) fn formerly(&self, address: u64) -> Option<(Label, Option<Arc<Submission>>)> {
        let holds = |label: &Label| address >= label.base && address - label.base < label.len;
        let pending = self
            .buffers
            .values()
            .filter(|buffer| buffer.freed.is_some() && holds(&buffer.label))
            .max_by_key(|buffer| buffer.label.id)
            .map(|buffer| (buffer.label.clone(), buffer.freed.clone()));
        let dead = || {
            let dead = self.dead.iter().rev().find(|dead| holds(&dead.label))?;
            Some((dead.label.clone(), dead.freed.clone()))
        };
        pending.or_else(dead)
    }

    /// Notes that a submission names a buffer.
    pub(super) fn name(&mut self, id: u64, by: &Arc<Submission>) {
        if let Some(buffer) = self.buffers.get_mut(&id) {
            buffer.named.retain(|other| other.epoch.lane != by.epoch.lane);
            buffer.named.push(by.clone());
        }
    }

    /// Live in program order, oldest first.
    pub(super) fn live(&self) -> Vec<&Buffer> {
        let mut live: Vec<&Buffer> = self.program.values().filter_map(|id| self.buffers.get(id)).collect();
        live.sort_unstable_by_key(|buffer| buffer.label.id);
        live
    }

    /// The number that the next buffer gets.
    pub(super) fn next_id(&self) -> u64 {
        self.next_id
    }
}

impl Buffer {
    /// Who named the buffer and is not ordered before `moment`.
    pub(super) fn named_unordered(&self, moment: &Moment) -> Vec<Arc<Submission>> {
        self.named.iter().filter(|by| !moment.is_after(by.epoch)).cloned().collect()
    }
}
