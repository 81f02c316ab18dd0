//! Lowering of the click functions: the kept columns, and the stage that expands results to rows.
//!
//! ```text
//!   kept      columns of the rows that have a key                     first segment
//!   found     (row number, session) │ (position, number of rows)      result of its run, see run.rs
//!   lookups   kept columns by row number; the order by position       second segment
//!
//!   earlier rows of position p     order[p - 1], order[p - 2], …
//!   pairs of position p            order[p] with order[p + 1], order[p + 2], …
//! ```

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millpond::column::{ColumnInfo, Form};
use millpond::datafusion::arrow::datatypes::DataType;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::error::Result as DataFusionResult;
use millpond::error::failure::Failure;
use millpond::error::reason::Reason;
use millpond::expr::{Dictionaries, LookupTable, Lowering, Scope, Value};
use millpond::kernels::abi::MAX_EXTENT_ROWS;
use millpond::kernels::codegen::ir::{Arithmetic, GraphError, NodeId, Overflow, Range, Repr, SinkSpec, Test, Ty};
use millpond::kernels::tune;
use millpond::memory::Stream;
use millpond::operator::sort::SortedBy;
use millpond::program::contract::{Sink, SinkRun, Stage, never_alone};
use millpond::program::extent::Extent;
use millpond::program::lower::{PieceBuilder, SegmentLowering, number_column};
use millpond::program::part::Kept;
use millpond::program::piece::{Cut, LoweredSink};
use millpond::program::segment_result::SegmentResult;
use millpond::program::segment_run::SegmentRun;

use super::super::Function;
use super::{Asked, given, run};

/// Range of row numbers, positions and row counts: 0 to the maximum number of rows minus one.
const NUMBERS: Range = Range { low: 0, high: MAX_EXTENT_ROWS as i128 - 1 };

/// Lowered form of the sink, for its run and for the stage that reads its result.
#[derive(Debug, Clone)]
pub(super) struct LoweredClicks {
    /// The kept columns.
    pub columns: Vec<ColumnInfo>,
    /// Sort keys, as positions in `columns`.
    pub sorted: Vec<SortedBy>,
}

impl Asked {
    fn refused(&self, error: &GraphError) -> Reason {
        Reason::ExprUnsupported { expr: self.function.sql_name().into(), why: error.to_string() }
    }

    /// Positions in the input of the kept columns; all columns if `None`.
    fn selection(&self) -> Option<&[usize]> {
        matches!(self.function, Function::BasketPairs).then_some(self.columns.as_slice())
    }

    /// Positions of the function's columns among the kept columns.
    pub fn kept(&self) -> Vec<usize> {
        match self.selection() {
            Some(columns) => (0..columns.len()).collect(),
            None => self.columns.clone(),
        }
    }

    /// Number of the function's first columns that are not NULL in any kept row.
    fn num_present(&self) -> usize {
        match self.function {
            Function::LastBefore { keys, .. } => keys,
            _ => self.columns.len(),
        }
    }

    /// Index of the time column among the function's columns.
    fn time(&self) -> Option<usize> {
        match self.function {
            Function::Sessionize { keys, .. } | Function::LastBefore { keys, within: Some(_), .. } => Some(keys),
            _ => None,
        }
    }
}

/// Lowered form of the function's result columns.
///
/// # Errors
/// The reason why the function stays on the CPU.
pub(super) fn judge(
    asked: &Asked,
    input: &[ColumnInfo],
    dictionaries: &mut Dictionaries,
) -> Result<Vec<ColumnInfo>, Reason> {
    let mut lowering = Lowering::new(input, dictionaries);
    let scope = lowering.scope();
    let rows = rows(asked, &mut lowering, &scope, &mut vec![])?;
    let columns = rows.columns().map(|(name, value)| Ok(lowering.info(name, &value.clone()?)));
    Ok(given(asked, &columns.collect::<Result<Vec<_>, Reason>>()?))
}

/// The kept columns; their row filters are added to `filters`.
fn rows(asked: &Asked, lowering: &mut Lowering<'_>, scope: &Scope, filters: &mut Vec<NodeId>) -> Result<Scope, Reason> {
    if asked.columns.len() > tune::SORT_FEW_KEYS as usize {
        let why = format!("it has more than {} columns to look at", tune::SORT_FEW_KEYS);
        return Err(Reason::ExprUnsupported { expr: asked.function.sql_name().into(), why });
    }
    let scope =
        asked.selection().map_or_else(|| scope.select(&(0..scope.len()).collect::<Vec<_>>()), |of| scope.select(of));
    let kept = asked.kept();
    let mut columns = Vec::with_capacity(scope.len());
    for (index, (name, value)) in scope.columns().enumerate() {
        let mut value = value.clone()?;
        let ty = lowering.graph.ty(value.node);
        if asked.time().is_some_and(|time| kept[time] == index)
            && ty.bounds().is_none_or(|range| range.high > i64::MAX.into())
        {
            let why = "a time that BIGINT cannot hold is an error, which the CPU raises".to_string();
            return Err(Reason::ExprUnsupported { expr: name.to_string(), why });
        }
        if ty.nullable && kept[..asked.num_present()].contains(&index) {
            filters.push(lowering.graph.test(Test::IsNotNull, value.node).map_err(|e| asked.refused(&e))?);
            value.node = lowering.graph.present(value.node);
        }
        let data_type = value.data_type.clone();
        columns.push((name.to_string(), Ok(value), data_type));
    }
    Ok(Scope::new(columns))
}

/// Keeps the rows, and runs the function after the last one.
#[derive(Debug)]
pub(super) struct ClicksSink {
    pub asked: Arc<Asked>,
}

impl Sink for ClicksSink {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<LoweredSink, Reason> {
        let asked = &self.asked;
        segment.scope = segment.with_filters(|lowering, scope, filters| rows(asked, lowering, scope, filters))?;
        let (nodes, columns) = segment.outputs()?;
        let nulls_first = asked.function.nulls_first();
        let kept = asked.kept();
        let by = asked.function.sorted_by(0, kept.len()).map(|position| {
            let output = kept[position];
            let dictionary = match columns[output].form {
                Form::Codes(_, dictionary) => Some(dictionary),
                _ => None,
            };
            SortedBy { output, dictionary, descending: false, nulls_first }
        });
        let details = Arc::new(LoweredClicks { sorted: by.collect(), columns });
        let number = |name| number_column(name, Ty::new(Repr::U32).within(NUMBERS.low, NUMBERS.high));
        // The kernel writes the kept columns; the run returns the results over them.
        let found = match asked.function {
            Function::Sessionize { .. } => vec![number("row"), number("session")],
            _ => vec![number("place"), number("number of rows")],
        };
        Ok(LoweredSink { details, ..LoweredSink::new(segment.write(nodes), found) })
    }

    fn begin(&self) -> Box<dyn SinkRun> {
        Box::new(ClicksRun { asked: Arc::clone(&self.asked) })
    }
}

/// Run of a [`ClicksSink`]: no result before the last row.
struct ClicksRun {
    asked: Arc<Asked>,
}

impl SinkRun for ClicksRun {
    fn rows<'a>(&'a self, extent: Extent<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        extent.keep_rows().boxed()
    }

    fn finish<'a>(
        &'a self,
        segment: &'a SegmentRun,
        parts: Vec<Kept>,
        stream: &'a Stream,
    ) -> BoxFuture<'a, Result<SegmentResult, Failure>> {
        run::find(&self.asked, segment, parts, stream).boxed()
    }
}

/// A result column of integers from `low` on.
pub(super) fn number(low: i128) -> ColumnInfo {
    let ty = Ty::new(Repr::I64).within(low, NUMBERS.high + low);
    ColumnInfo::new(String::new(), DataType::Int64, Form::Plain(ty))
}

/// Expands the results of a [`ClicksSink`] to rows.
#[derive(Debug)]
pub(super) struct ClicksStage {
    pub asked: Arc<Asked>,
}

impl Stage for ClicksStage {
    fn lower(&self, segment: &mut SegmentLowering<'_, '_>) -> Result<(), Reason> {
        let produced = segment.input.produced.and_then(|details| details.downcast_ref::<LoweredClicks>());
        let kept = produced.cloned().ok_or_else(|| Reason::NodeUnsupported { node: "clicks without rows".into() })?;
        if matches!(self.asked.function, Function::Sessionize { .. }) {
            let (lowering, scope) = segment.expressions();
            let (row, session) = (scope.column(0)?.node, scope.column(1)?);
            let mut columns = looked_up(lowering, &kept.columns, 0, row)?;
            columns.push(self.whole(lowering, session.node)?);
            segment.scope = self.named(columns);
            return Ok(());
        }
        segment.cut(|open, scope| {
            let found = [scope.column(0)?, scope.column(1)?];
            let columns = found.iter().zip(scope.columns()).map(|(value, (name, _))| open.lowering.info(name, value));
            let columns: Vec<ColumnInfo> = columns.collect();
            let outputs = found.iter().map(|value| value.node).collect();
            let (rows, dictionaries) = open.close(SinkSpec::Materialise { outputs });
            let mut next = PieceBuilder::new(&columns, false, true, dictionaries);
            let scope = self.expanded(&mut next.lowering, &kept.columns)?;
            Ok((Cut::new(rows, columns, 1), next, scope))
        })
    }

    fn on_cpu(&self, _batch: &RecordBatch) -> DataFusionResult<RecordBatch> {
        never_alone(self)
    }
}

impl ClicksStage {
    /// One of the rows that a position expands to.
    fn expanded(&self, lowering: &mut Lowering<'_>, kept: &[ColumnInfo]) -> Result<Scope, Reason> {
        let e = |e: GraphError| self.asked.refused(&e);
        let place = lowering.scope().column(0)?.node;
        let order = lowering.lookup_table(LookupTable::Ranked { column: 0, ty: Ty::new(Repr::U32) });
        let graph = &mut lowering.graph;
        let (ordinal, one) = (graph.ordinal(), graph.integer(1, Repr::U32));
        let ordinal = graph.assume(ordinal, NUMBERS);
        let steps = graph.arithmetic(Arithmetic::Add, ordinal, one, Overflow::Wrap).map_err(e)?;
        let direction = match self.asked.function {
            Function::BasketPairs => Arithmetic::Add,
            _ => Arithmetic::Subtract,
        };
        let other = graph.arithmetic(direction, place, steps, Overflow::Wrap).map_err(e)?;
        let other = graph.assume(other, NUMBERS);
        let mut row = |place| graph.lookup(place, order, Ty::new(Repr::U32));
        let (own, other) = (row(place).map_err(e)?, row(other).map_err(e)?);
        let mut columns;
        if let Function::BasketPairs = self.asked.function {
            columns = looked_up(lowering, kept, 1, own)?;
            let element = kept.len() - 1;
            columns.extend(looked_up(lowering, &kept[element..], 1 + element, other)?);
        } else {
            columns = looked_up(lowering, kept, 1, other)?;
            columns.extend(looked_up(lowering, kept, 1, own)?);
            columns.push(self.whole(lowering, steps)?);
        }
        Ok(self.named(columns))
    }

    /// A row count in the type of the result.
    fn whole(&self, lowering: &mut Lowering<'_>, number: NodeId) -> Result<Value, Reason> {
        let node = lowering.graph.convert(number, Repr::I64, Overflow::Wrap).map_err(|e| self.asked.refused(&e))?;
        Ok(Value { node, data_type: DataType::Int64, dictionary: None })
    }

    /// The columns with the names of the result.
    fn named(&self, columns: Vec<Value>) -> Scope {
        let named = columns.into_iter().zip(self.asked.schema.fields()).map(|(value, field)| {
            let data_type = value.data_type.clone();
            (field.name().clone(), Ok(value), data_type)
        });
        Scope::new(named.collect())
    }
}

/// Looks up columns of row `row`; their lookup tables start at column `first`.
fn looked_up(
    lowering: &mut Lowering<'_>,
    columns: &[ColumnInfo],
    first: usize,
    row: NodeId,
) -> Result<Vec<Value>, Reason> {
    let value = |(index, column): (usize, &ColumnInfo)| {
        let ty = column.ty()?;
        let table = lowering.lookup_table(LookupTable::Ranked { column: first + index, ty });
        let refused = |e: GraphError| Reason::ExprUnsupported { expr: column.name.clone(), why: e.to_string() };
        let node = lowering.graph.lookup(row, table, ty).map_err(refused)?;
        let dictionary = match column.form {
            Form::Codes(_, dictionary) => Some(dictionary),
            _ => None,
        };
        Ok(Value { node, data_type: column.data_type.clone(), dictionary })
    };
    columns.iter().enumerate().map(value).collect()
}
