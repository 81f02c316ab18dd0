//! Medians and percentiles of frames: the k-th smallest value of each.
//!
//!   rows in order      30 │ 10 │ NULL │ 20        the rows by value: 1, 3, 0
//!   wavelet matrix     of the ranks 2, 0, 1       a level for each bit of a rank
//!   frame [0, 4)       3 values: number 1 is the row of rank 1, which is row 3: 20
//!
//! NULL     is not a value, nor is a value that FILTER drops; a frame without values gives NULL.
//! DISTINCT in frames from the start of the partition, or to its end: the first or last row of each value is one; see
//!          `distinct.rs`.
//! Floats   in total order; interpolated as in `aggregate/ranked.rs`.
//! Shared   adjacent functions of one argument share its matrix.
//! Cost     a sort by value, and a search per row through as many levels as the number of rows has bits, for any
//!          contents of the frames.
//! Memory   a quarter of a byte for each row and level, 12 bytes per row beside the sort, 8 more while the matrix is
//!          built.
//! Waits    never.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use millpond_kernels::window::{
    Column, Matrix, Out, Place, Positions, Window, matrix_bytes, matrix_scratch_bytes, ranks_bytes,
};
use millpond_memory::Reservation;

use crate::column::Form;
use crate::error::failure::Failure;
use crate::error::reason::Reason;
use crate::operator::sort::lower::SortedBy;
use crate::operator::sort::run::{order_by_keys, sort_keys};
use crate::operator::window::describe::{Function, refused};
use crate::operator::window::distinct::Once;
use crate::operator::window::lower::{Columns, LoweredFrame, LoweredFunction, Work};
use crate::operator::window::run::{Held, Windows, column, frame_of};
use crate::program::part::Part;

/// A median or percentile.
#[derive(Debug, Clone)]
pub(crate) struct LoweredPercentile {
    /// The argument's column, as a sort key.
    pub value: SortedBy,
    pub place: Place,
    pub frame: LoweredFrame,
    pub once: Option<Once>,
}

impl Columns<'_, '_> {
    /// MEDIAN and PERCENTILE_CONT; MEDIAN if `percentile` is `None`.
    pub(super) fn percentile(
        &mut self,
        function: &Function,
        aggregate: &AggregateFunctionExpr,
        (argument, percentile): (&Arc<dyn PhysicalExpr>, Option<f64>),
        frame: LoweredFrame,
    ) -> Result<(Work, Form), Reason> {
        let (output, value) = self.add(argument)?;
        if value.data_type == DataType::Float16 {
            return Err(refused(&function.name, "what lies between two floats of 16 bits is not rounded in frames"));
        }
        let ty = self.ty(&value);
        let decimal =
            matches!(value.data_type, DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..));
        if function.data_type != value.data_type || !(ty.repr.is_float() || decimal && percentile.is_none()) {
            let why = format!("it gives {} for {}", function.data_type, value.data_type);
            return Err(refused(&function.name, why));
        }
        let once = aggregate.is_distinct().then(|| Once::of(&frame));
        if once == Some(Once::Less) {
            return Err(refused(
                &function.name,
                "the distinct values of a frame that slides are not told apart in order",
            ));
        }
        let value = SortedBy { output, dictionary: None, descending: false, nulls_first: false };
        let place = percentile.map_or(Place::Median, Place::Percentile);
        let work = Work::Percentile(LoweredPercentile { value, place, frame, once });
        Ok((work, Form::Plain(ty.nullable(true))))
    }
}

/// The matrix of an argument, while functions need it.
pub(super) struct KeptMatrix {
    of: ArgumentOf,
    values: Column,
    matrix: Matrix,
    _held: Vec<Held>,
    _order: Reservation,
}

/// Key of a matrix: a column, and how its values count once in which partitions.
#[derive(PartialEq, Eq)]
struct ArgumentOf {
    column: usize,
    once: Option<(Once, usize)>,
}

impl ArgumentOf {
    fn new(percentile: &LoweredPercentile, function: &LoweredFunction) -> Self {
        let once = percentile.once.map(|once| (once, function.partition));
        Self { column: percentile.value.output, once }
    }
}

impl KeptMatrix {
    /// True if it is the matrix of the argument of `function`.
    pub fn serves(&self, function: &LoweredFunction) -> bool {
        matches!(&function.work, Work::Percentile(percentile) if ArgumentOf::new(percentile, function) == self.of)
    }
}

impl Windows<'_> {
    /// Writes a median or percentile of each frame; `kept` holds the matrix of its argument afterwards.
    pub(super) async fn percentile(
        &self,
        (window, positions): (&Window<'_>, &Positions),
        (function, percentile): (&LoweredFunction, &LoweredPercentile),
        ordered: &Part,
        kept: &mut Option<KeptMatrix>,
        out: &Out,
    ) -> Result<(), Failure> {
        let matrix = match kept {
            Some(matrix) if matrix.serves(function) => matrix,
            kept => kept.insert(self.matrix((window, positions), (function, percentile), ordered).await?),
        };
        let frame = frame_of(&percentile.frame, ordered)?;
        window.pick(positions, &frame, &matrix.values, &matrix.matrix, percentile.place, out)?;
        Ok(())
    }

    /// The matrix of an argument's values.
    async fn matrix(
        &self,
        (window, positions): (&Window<'_>, &Positions),
        (function, percentile): (&LoweredFunction, &LoweredPercentile),
        ordered: &Part,
    ) -> Result<KeptMatrix, Failure> {
        let run = &self.segment.run;
        let rows = window.rows.upper_bound();
        let take = |bytes: u64| run.context.memory.take(bytes as usize, &run.context.tags.sort, self.stream);
        let mut values = column(ordered, percentile.value.output)?;
        let mut held = vec![];
        if let Some(once) = percentile.once {
            let near = self.near((window, positions), function, ordered, &percentile.value, (once, false)).await?;
            let firsts = self.firsts(window, values.validity.as_ref(), &near)?;
            values.validity = Some(firsts.0.as_view().clone());
            held.push(firsts);
        }
        let counted = self.counted(window, &values, true)?;
        let mut keys = sort_keys(self.segment, ordered, std::slice::from_ref(&percentile.value), self.stream).await?;
        keys.iter_mut().for_each(|key| key.validity.clone_from(&values.validity));
        let (order, promise) = order_by_keys(run, keys, window.rows, &[], None, self.stream)?;
        let numbers = order.columns.first().and_then(Option::as_ref).expect("an order is a column of numbers");
        let words = take(matrix_bytes(rows))?;
        let (ranks, scratch) = (take(ranks_bytes(rows))?, take(matrix_scratch_bytes(rows))?);
        let views = (words.0.as_view(), ranks.0.as_view(), scratch.0.as_view());
        let counts = counted.as_ref().map(|(found, _)| found);
        let matrix = window.matrix(&numbers.values, counts, views.0, views.1, views.2)?;
        self.count(window.matrix_launches());
        held.push(words);
        held.extend(counted.map(|(_, held)| held));
        Ok(KeptMatrix { of: ArgumentOf::new(percentile, function), values, matrix, _held: held, _order: promise })
    }
}
