//! Strings without a dictionary in a run: the bytes that views point to.
//!
//!   extent of texts ─► pipelines ─► views, 16 bytes each ─► downloaded as dense bytes
//!        └── kept while a view may lead there
//!
//! Learnt    a string column begins as codes. If its first rows are nearly all distinct, or it outgrows its dictionary,
//!           the run starts again with texts, provided that every expression over it has a form without a dictionary;
//!           otherwise the dictionary may become larger.
//! New       texts are written to an arena of their launch, which is kept as extents are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use millpond_kernels::codegen::ir::{Aggregate, Physical, PipelineSpec, Repr, SinkSpec, Ty};
use millpond_memory::{DeviceView, Reservation};

use crate::error::failure::Failure;
use crate::program::part::Part;

/// Factor by which the dictionary limit grows when an expression requires a dictionary.
pub(crate) const IF_NEEDED: usize = 4;
/// Rows sampled before a column is classified as nearly all distinct.
const ROWS_LOOKED_AT: usize = 1 << 16;
/// Assumed bytes of a text, while nothing is known of a column's texts.
pub(crate) const TYPICAL_BYTES: usize = 32;

/// True if a column with `values` distinct values in its first `rows` rows is better off without a dictionary.
pub(crate) fn nearly_all_different(values: usize, rows: usize) -> bool {
    may_tell_difference(rows) && values * 2 > rows
}

/// True if there are enough rows to decide.
pub(crate) fn may_tell_difference(rows: usize) -> bool {
    rows >= ROWS_LOOKED_AT
}

/// True if the pipeline has a table that refers to texts of earlier launches: keys of groups or joins, or the first or
/// last values of a group.
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

/// Buffers that views point to, and the room for texts that the device makes.
pub struct Reached {
    buffers: Mutex<Vec<(DeviceView, Option<Reservation>)>>,
    /// Factor on the planned room.
    arena_times: AtomicU64,
}

impl Reached {
    /// No buffers yet; the room is `times` the planned one, with 0 meaning 1.
    pub fn new(times: u64) -> Self {
        Self { buffers: Mutex::default(), arena_times: AtomicU64::new(times.max(1)) }
    }

    /// Factor on the planned room for texts that the device makes.
    pub fn arena_times(&self) -> u64 {
        self.arena_times.load(Ordering::Relaxed)
    }

    /// Enlarges the room for texts that are made from now on; returns the factor on the planned room.
    pub fn larger_arenas(&self) -> Result<u64, Failure> {
        let times = self.arena_times.load(Ordering::Relaxed) * ARENA_GROWTH;
        if times > MOST_ARENA_TIMES {
            return Err(Failure::trouble("the texts that the query makes take more room than there can be"));
        }
        self.arena_times.fetch_max(times, Ordering::Relaxed);
        Ok(times)
    }

    /// Keeps a buffer, and the reservation for it.
    pub fn keep(&self, bytes: &DeviceView, promise: Option<Reservation>) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if !buffers.iter().any(|(known, _)| known.address() == bytes.address()) {
            buffers.push((bytes.clone(), promise));
        }
    }

    /// Drops a buffer: no view points there any more.
    pub fn forget(&self, bytes: &DeviceView) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.retain(|(known, _)| known.address() != bytes.address());
    }

    pub fn all(&self) -> Vec<DeviceView> {
        let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.iter().map(|(bytes, _)| bytes.clone()).collect()
    }

    /// Buffers that a launch of `spec` may read: none unless it reads views.
    pub fn by(&self, spec: &PipelineSpec) -> Vec<DeviceView> {
        let columns = spec.columns.iter().map(|column| column.physical);
        let views = columns.chain(spec.lookups.iter().map(|table| table.physical)).any(|p| p == Physical::View);
        if views || has_texts_in_tables(spec) { self.all() } else { Vec::new() }
    }
}

/// Arena for the texts of one launch. Views into it are valid until it is dropped, or as long as the run if it stays.
pub struct NewTexts<'r> {
    reached: &'r Reached,
    bytes: DeviceView,
    stays: bool,
}

impl<'r> NewTexts<'r> {
    /// Texts in `bytes`, which `reached` keeps.
    pub fn in_arena(reached: &'r Reached, bytes: DeviceView) -> Self {
        Self { reached, bytes, stays: false }
    }
}

impl NewTexts<'_> {
    pub fn view(&self) -> &DeviceView {
        &self.bytes
    }

    /// Keeps the arena as long as the run: kept views may point there.
    pub fn stay(mut self) {
        self.stays = true;
    }
}

impl Drop for NewTexts<'_> {
    fn drop(&mut self) {
        if !self.stays {
            self.reached.forget(&self.bytes);
        }
    }
}

/// True if the pipeline outputs texts: views that outlive its launch.
pub(crate) fn gives_texts(spec: &PipelineSpec) -> bool {
    spec.output_types().iter().any(|ty| ty.repr == Repr::Text)
}

/// Factor by which the room grows after an overflow.
const ARENA_GROWTH: u64 = 4;
/// Maximum factor on the planned room; beyond it a larger arena is not the remedy.
const MOST_ARENA_TIMES: u64 = 1 << 16;

impl Part {
    /// True if any column holds views, sort keys included.
    pub fn reaches_texts(&self) -> bool {
        self.layout.columns.iter().any(|column| column.physical == Physical::View)
    }

    /// True if an output column holds views.
    pub fn has_views(&self) -> bool {
        (0..self.outputs.len()).any(|index| self.column(index).is_some_and(|column| column.physical == Physical::View))
    }
}
