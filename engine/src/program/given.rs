//! What a segment leaves to those that read it.

use std::any::Any;
use std::sync::Arc;

use millpond_kernels::pipeline::LookupInput;
use millpond_memory::Reservation;

use crate::column::ColumnInfo;
use crate::program::build_side::Build;
use crate::program::part::Kept;

/// What an operator says to itself.
pub type Details = Arc<dyn Any + Send + Sync>;

/// What a segment gave.
#[derive(Default)]
pub struct Given {
    pub(crate) parts: Vec<Kept>,
    pub(crate) columns: Vec<ColumnInfo>,
    /// What its sink says of itself to the segments that read it.
    pub(crate) details: Option<Details>,
    /// Columns that those look up by row number.
    pub(crate) looked_up: Arc<LookedUp>,
    /// In the place of rows: what others look up.
    pub(crate) built: Option<Build>,
}

impl Given {
    /// A build side.
    pub(crate) fn built(built: Build) -> Self {
        Self { built: Some(built), ..Self::default() }
    }

    /// The same with columns beside its rows, which [`LookupTable::Ranked`](crate::expr::LookupTable::Ranked) looks up.
    pub fn beside(self, looked_up: LookedUp) -> Self {
        Self { looked_up: Arc::new(looked_up), ..self }
    }
}

/// Columns that a sink leaves beside the rows that it gives: whoever reads the rows looks them up by row number. They stay on the device.
#[derive(Default)]
pub struct LookedUp {
    columns: Vec<LookupInput>,
    /// What the governor promised for them.
    _promises: Vec<Reservation>,
}

impl LookedUp {
    /// These columns, in memory that was promised so.
    pub fn new(columns: Vec<LookupInput>, promises: Vec<Reservation>) -> Self {
        Self { columns, _promises: promises }
    }

    pub(crate) fn column(&self, index: usize) -> Option<&LookupInput> {
        self.columns.get(index)
    }
}
