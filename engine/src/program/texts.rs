//! Strings without a dictionary in a run: the bytes that views lead to.
//!
//!   extent of texts ─► pipelines ─► views, 16 bytes each ─► downloaded as dense bytes
//!        └── kept while a view may lead there
//!
//! Learnt    a string column is codes at first. One whose first rows are nearly all different, or that outgrows its dictionary,
//!           starts the run again as texts, where every expression over it has a form without a dictionary; where one has none
//!           its dictionary may become larger.
//! Made      texts lie in an arena of their launch, kept as extents are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use millpond_kernels::codegen::ir::{Aggregate, Physical, PipelineSpec, Repr, SinkSpec, Ty};
use millpond_memory::{DeviceView, Reservation};

use crate::program::failure::Failure;
use crate::program::part::Part;

/// A dictionary may have so many times the values if an expression needs one.
pub(crate) const IF_NEEDED: usize = 4;
/// So many rows are looked at before a column is told to be nearly all different.
const ROWS_LOOKED_AT: usize = 1 << 16;
/// Bytes of a text, as long as nothing is known of a column's.
pub(crate) const TYPICAL_BYTES: usize = 32;

/// True when a column with so many different values among its first rows is better off without a dictionary.
pub(crate) fn nearly_all_different(values: usize, rows: usize) -> bool {
    may_tell_difference(rows) && values * 2 > rows
}

/// True when there are rows enough to tell.
pub(crate) fn may_tell_difference(rows: usize) -> bool {
    rows >= ROWS_LOOKED_AT
}

/// True when the pipeline has a table that leads to texts of earlier launches: as keys of groups or joins, as the first or
/// last ones of a group.
fn has_texts_in_tables(spec: &PipelineSpec) -> bool {
    let is_text = |ty: &Ty| ty.repr == Repr::Text;
    let groups = match &spec.sink {
        SinkSpec::Aggregate(aggregate) => {
            let ordered = aggregate.orders.iter().flatten().map(|key| key.node);
            let firsts = aggregate.accumulators.iter().filter_map(|one| match one.aggregate {
                Aggregate::First { of, .. } => Some(of),
                _ => None,
            });
            aggregate.keys.iter().copied().chain(ordered).chain(firsts).any(|node| is_text(&spec.graph.ty(node)))
        }
        SinkSpec::Table { table, .. } => table.keys.iter().any(is_text),
        _ => false,
    };
    groups || spec.tables.iter().any(|table| table.keys.iter().any(is_text))
}

/// Buffers that views lead to, and how much room for texts the device makes.
pub struct Reached {
    buffers: Mutex<Vec<(DeviceView, Option<Reservation>)>>,
    /// How much larger than planned the room is.
    arena_times: AtomicU64,
}

impl Reached {
    /// None yet; the room is so many `times` as large as planned, 0 as 1.
    pub fn new(times: u64) -> Self {
        Self { buffers: Mutex::default(), arena_times: AtomicU64::new(times.max(1)) }
    }

    /// How much larger than planned the room for texts is that the device makes.
    pub fn arena_times(&self) -> u64 {
        self.arena_times.load(Ordering::Relaxed)
    }

    /// More room for the texts that are made from now on: how much more than planned.
    pub fn larger_arenas(&self) -> Result<u64, Failure> {
        let times = self.arena_times.load(Ordering::Relaxed) * ARENA_GROWTH;
        if times > MOST_ARENA_TIMES {
            return Err(Failure::trouble("the texts that the query makes take more room than there can be"));
        }
        self.arena_times.fetch_max(times, Ordering::Relaxed);
        Ok(times)
    }

    /// Keeps a buffer, and what the governor promised for it.
    pub fn keep(&self, bytes: &DeviceView, promise: Option<Reservation>) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if !buffers.iter().any(|(known, _)| known.address() == bytes.address()) {
            buffers.push((bytes.clone(), promise));
        }
    }

    /// Lets a buffer go: no view leads there any more.
    pub fn forget(&self, bytes: &DeviceView) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.retain(|(known, _)| known.address() != bytes.address());
    }

    pub fn all(&self) -> Vec<DeviceView> {
        let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.iter().map(|(bytes, _)| bytes.clone()).collect()
    }

    /// What a launch of `spec` may reach: nothing unless it reads views.
    pub fn by(&self, spec: &PipelineSpec) -> Vec<DeviceView> {
        let columns = spec.columns.iter().map(|column| column.physical);
        let views = columns.chain(spec.lookups.iter().map(|table| table.physical)).any(|p| p == Physical::View);
        if views || has_texts_in_tables(spec) { self.all() } else { Vec::new() }
    }
}

/// Room for the texts that one launch makes. Views lead there until it is dropped, or as long as the run if it stays.
pub struct Made<'r> {
    reached: &'r Reached,
    bytes: DeviceView,
    stays: bool,
}

impl<'r> Made<'r> {
    /// Texts in `bytes`, which `reached` keeps.
    pub fn in_arena(reached: &'r Reached, bytes: DeviceView) -> Self {
        Self { reached, bytes, stays: false }
    }
}

impl Made<'_> {
    pub fn view(&self) -> &DeviceView {
        &self.bytes
    }

    /// Views that are kept may lead there.
    pub fn stay(mut self) {
        self.stays = true;
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if !self.stays {
            self.reached.forget(&self.bytes);
        }
    }
}

/// True when the pipeline gives texts: views that outlive its launch.
pub(crate) fn gives_texts(spec: &PipelineSpec) -> bool {
    spec.output_types().iter().any(|ty| ty.repr == Repr::Text)
}

/// How much more room there is after there was too little.
const ARENA_GROWTH: u64 = 4;
/// Beyond that it is not the plan that was too small.
const MOST_ARENA_TIMES: u64 = 1 << 16;

impl Part {
    /// True when anything in it is views, sort keys included.
    pub fn reaches_texts(&self) -> bool {
        self.layout.columns.iter().any(|column| column.physical == Physical::View)
    }

    /// True when a column is of views.
    pub fn has_views(&self) -> bool {
        (0..self.outputs.len()).any(|index| self.column(index).is_some_and(|column| column.physical == Physical::View))
    }
}
