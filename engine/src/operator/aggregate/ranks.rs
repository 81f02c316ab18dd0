//! Columns that an aggregation has put in orders within its groups, and what is left of each beside the rows.

use millpond_kernels::codegen::ir::NodeId;

use crate::column::{ColumnInfo, DictionaryId};

/// A column that is put in an order within its groups.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ranked {
    pub value: NodeId,
    /// What it is as a column.
    pub info: ColumnInfo,
    /// After the keys of the groups.
    pub order: Vec<RankedBy>,
    pub becomes: Becomes,
}

/// One key of such an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RankedBy {
    pub node: NodeId,
    /// Of strings: whose codes they are.
    pub dictionary: Option<DictionaryId>,
    pub descending: bool,
    pub nulls_first: bool,
}

/// What becomes of a column in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Becomes {
    /// Values, looked up by their place.
    Values,
    /// One text of all, and where each ends.
    Text,
    /// The items of these lists.
    Items(DictionaryId),
}

impl Becomes {
    /// How many columns are left beside the rows.
    fn looked_up(self) -> usize {
        match self {
            Becomes::Values => 1,
            Becomes::Text => 2,
            Becomes::Items(_) => 0,
        }
    }
}

/// The first of the columns beside the rows that are left for `ranked[index]`.
pub(crate) fn looked_up_at(ranked: &[Ranked], index: usize) -> usize {
    ranked[..index].iter().map(|column| column.becomes.looked_up()).sum()
}
