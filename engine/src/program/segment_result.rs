//! Results that a segment leaves to its readers.

use std::any::Any;
use std::sync::Arc;

use millpond_kernels::pipeline::LookupInput;
use millpond_memory::Reservation;

use crate::column::ColumnInfo;
use crate::program::build_side::Build;
use crate::program::part::Kept;

/// Data that an operator passes between its own segments.
pub type Details = Arc<dyn Any + Send + Sync>;

/// Result of a segment.
#[derive(Default)]
pub struct SegmentResult {
    pub(crate) parts: Vec<Kept>,
    pub(crate) columns: Vec<ColumnInfo>,
    /// Details from its sink, for the segments that read it.
    pub(crate) details: Option<Details>,
    /// Columns that its readers look up by row number.
    pub(crate) looked_up: Arc<LookedUp>,
    /// Instead of rows: a build side, which others probe.
    pub(crate) built: Option<Build>,
}

impl SegmentResult {
    /// A result that is a build side.
    pub(crate) fn built(built: Build) -> Self {
        Self { built: Some(built), ..Self::default() }
    }

    /// Adds columns beside its rows, which [`LookupTable::Ranked`](crate::expr::LookupTable::Ranked) looks up.
    pub fn beside(self, looked_up: LookedUp) -> Self {
        Self { looked_up: Arc::new(looked_up), ..self }
    }
}

/// Columns that a sink leaves beside its output rows; readers look them up by row number. They stay on the device.
#[derive(Default)]
pub struct LookedUp {
    columns: Vec<LookupInput>,
    /// Reservations for their memory.
    _promises: Vec<Reservation>,
}

impl LookedUp {
    /// These columns, with the reservations for their memory.
    pub fn new(columns: Vec<LookupInput>, promises: Vec<Reservation>) -> Self {
        Self { columns, _promises: promises }
    }

    pub(crate) fn column(&self, index: usize) -> Option<&LookupInput> {
        self.columns.get(index)
    }
}
