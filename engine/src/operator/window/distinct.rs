//! DISTINCT in a window: each value counts once in a frame.
//!
//!   frame from the partition's start     the first row of each value counts  ─┐ a validity, and the fold of all values
//!   frame to its end                     the last row of each value counts   ─┘
//!   any other frame                      count or sum of all values, less the excess of repeated values
//!
//! How    rows by (partition, value): each row has a neighbor, the row before or behind it with its value. Both are in
//!        the frames of consecutive rows, because the ends of frames only grow in a partition: a change where these
//!        rows begin, and one back where they end. The sum of changes up to a row is the excess of its result.
//! Cost   a sort by value, and two searches per row, for any contents of the frames.
//! Lists  ARRAY_AGG in frames from the start of the partition, or to its end: the rows that count are a list, in which
//!        NULL is one value.
//! Which  COUNT and SUM to Int64 in any frame; SUM and AVG of other types in frames from the start of the partition, as
//!        in DataFusion.
//! Memory 28 bytes per row beside the sort and the states, while one function is computed.
//! Waits  never.

use millpond_kernels::codegen::ir::{Physical, Range};
use millpond_kernels::sort::SortKey;
use millpond_kernels::window::{
    Argument, Bound, Column, Folding, Frame, Operation, Out, Positions, Side, Window, changes_bytes, firsts_bytes,
    near_bytes, spans_bytes, tree_bytes,
};
use millpond_memory::DeviceView;

use crate::error::failure::Failure;
use crate::operator::sort::lower::SortedBy;
use crate::operator::sort::run::{order_by_keys, sort_keys};
use crate::operator::window::lower::{LoweredFrame, LoweredFunction};
use crate::operator::window::run::{Held, Windows};
use crate::program::part::Part;

/// Method of counting each value once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Once {
    /// The first row of each value counts.
    First,
    /// The last row of each value counts.
    Last,
    /// All rows count, and the excess is subtracted.
    Less,
}

impl Once {
    /// The method for a frame.
    pub fn of(frame: &LoweredFrame) -> Once {
        match (frame.start, frame.end) {
            (Bound::Unbounded, _) => Once::First,
            (_, Bound::Unbounded) => Once::Last,
            _ => Once::Less,
        }
    }
}

impl Windows<'_> {
    /// For each row its neighbor with the same value, by which values count `once`; NULL is a value if `nulls` is set.
    pub(super) async fn near(
        &self,
        (window, positions): (&Window<'_>, &Positions),
        function: &LoweredFunction,
        ordered: &Part,
        value: &SortedBy,
        (once, nulls): (Once, bool),
    ) -> Result<Held, Failure> {
        let run = &self.segment.run;
        let rows = window.rows.upper_bound();
        let side = if once == Once::Last { Side::Behind } else { Side::Before };
        let mut keys = sort_keys(self.segment, ordered, std::slice::from_ref(value), self.stream).await?;
        let [value] = keys.as_slice() else { unreachable!("a key for each column") };
        let value = value.clone();
        if function.partition > 0 {
            let range = Some(Range::new(0, i128::from(rows)));
            keys.insert(0, SortKey { range, ..SortKey::new(positions.part_of(), Physical::U32) });
        }
        let reached = if ordered.reaches_texts() { run.reached.all() } else { vec![] };
        let (order, _promise) = order_by_keys(run, keys, window.rows, &reached, None, self.stream)?;
        let near = run.context.memory.take(near_bytes(rows) as usize, &run.context.tags.sort, self.stream)?;
        let numbers = order.columns.first().and_then(Option::as_ref).expect("an order is a column of numbers");
        window.near(positions, &value, &reached, &numbers.values, (side, nulls), near.0.as_view())?;
        self.count(1);
        Ok(near)
    }

    /// The validity of the values that count, among those that `validity` has.
    pub(super) fn firsts(
        &self,
        window: &Window<'_>,
        validity: Option<&DeviceView>,
        near: &Held,
    ) -> Result<Held, Failure> {
        let run = &self.segment.run;
        let bytes = firsts_bytes(window.rows.upper_bound()) as usize;
        let firsts = run.context.memory.take(bytes, &run.context.tags.sort, self.stream)?;
        window.firsts(validity, near.0.as_view(), firsts.0.as_view())?;
        self.count(1);
        Ok(firsts)
    }

    /// Subtracts the excess of repeated values from `out`, which counts or sums all values of `of`.
    pub(super) fn less(
        &self,
        (window, positions): (&Window<'_>, &Positions),
        (frame, operation): (&Frame, Operation),
        of: &Column,
        near: &Held,
        out: &Out,
    ) -> Result<(), Failure> {
        let run = &self.segment.run;
        let rows = window.rows.upper_bound();
        let take = |bytes: u64| run.context.memory.take(bytes as usize, &run.context.tags.sort, self.stream);
        let changes = take(changes_bytes(rows))?;
        let spans = take(spans_bytes(rows))?;
        let values = (operation != Operation::Count).then_some(of);
        window.changes(positions, frame, values, near.0.as_view(), spans.0.as_view(), changes.0.as_view())?;
        self.count(Window::CHANGES_LAUNCHES);
        drop(spans);
        let column = Column { values: changes.0.as_view().clone(), validity: None, physical: Physical::I64 };
        let argument = Argument { column: Some(column), ranks: None };
        let folding = Folding { argument, operation: Operation::Sum };
        let tree = take(tree_bytes(rows))?;
        window.grow(&folding, tree.0.as_view())?;
        self.count(window.grow_launches());
        let sums = take(changes_bytes(rows))?;
        let too_much = Out { values: sums.0.as_view().clone(), validity: None, physical: Physical::I64 };
        window.fold(positions, &Frame::up_to_row(), &folding, Some(tree.0.as_view()), &too_much)?;
        window.less(positions, frame, sums.0.as_view(), out)?;
        self.count(2);
        Ok(())
    }
}
