//! Columns that an aggregation orders within its groups, and the lookup columns that remain of each beside the rows.

use millpond_kernels::codegen::ir::NodeId;

use crate::column::{ColumnInfo, DictionaryId};

/// A column to be ordered within its groups.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ranked {
    pub value: NodeId,
    /// Its description as a column.
    pub info: ColumnInfo,
    /// Sort keys, after the keys of the groups.
    pub order: Vec<RankedBy>,
    pub becomes: Becomes,
}

/// One key of such an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RankedBy {
    pub node: NodeId,
    /// For strings: the dictionary of the codes.
    pub dictionary: Option<DictionaryId>,
    pub descending: bool,
    pub nulls_first: bool,
}

/// Form of a column in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Becomes {
    /// Values, looked up by position.
    Values,
    /// One text of all values, and the end of each.
    Text,
    /// The items of these lists.
    Items(DictionaryId),
}

impl Becomes {
    /// Number of lookup columns beside the rows.
    fn looked_up(self) -> usize {
        match self {
            Becomes::Values => 1,
            Becomes::Text => 2,
            Becomes::Items(_) => 0,
        }
    }
}

/// Index of the first lookup column for `ranked[index]`.
pub(crate) fn looked_up_at(ranked: &[Ranked], index: usize) -> usize {
    ranked[..index].iter().map(|column| column.becomes.looked_up()).sum()
}
