//! What a segment leaves to those that read it.

use std::any::Any;
use std::sync::Arc;

use crate::column::ColumnInfo;
use crate::program::build_side::Build;
use crate::program::part::{Kept, Part};

/// What an operator says to itself.
pub type Details = Arc<dyn Any + Send + Sync>;

/// What a segment gave.
#[derive(Default)]
pub struct Given {
    pub(crate) parts: Vec<Kept>,
    pub(crate) columns: Vec<ColumnInfo>,
    /// What its sink says of itself to the segments that read it.
    pub(crate) details: Option<Details>,
    /// Columns that those look up by row number, each a part of its own.
    pub(crate) looked_up: Arc<Vec<Part>>,
    /// In the place of rows: what others look up.
    pub(crate) built: Option<Build>,
}

impl Given {
    /// A build side.
    pub(crate) fn built(built: Build) -> Self {
        Self { built: Some(built), ..Self::default() }
    }
}
