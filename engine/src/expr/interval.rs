//! Intervals of a column: their parts, their sums, and sums with dates and timestamps.
//!
//!   I128   months · days · nanoseconds ──► (I32, I32, I64)        I64   days · milliseconds        I32   months
//!
//! Order    months, then days, then the rest below a day, as DataFusion adds them.
//! Errors   a part that overflows, or a step that leaves the calendar, raises the error flag.

use datafusion::arrow::datatypes::{DataType, IntervalUnit};
use millpond_kernels::codegen::IntervalParts;
use millpond_kernels::codegen::ir::{
    Arithmetic, Graph, GraphError, NodeId, Overflow, Range, Repr, Rounding, TimeUnit as KernelUnit,
};

use crate::column::time_unit;
use crate::expr::cast::{nanos, zone_offset};
use crate::expr::time::DAY_NANOS;
use crate::expr::{Lowered, Lowering, Refusal, Value, refusal};

/// Months (`I32`), days (`I32`) and nanoseconds (`I64`).
#[derive(Clone, Copy)]
struct Parts {
    months: NodeId,
    days: NodeId,
    nanoseconds: NodeId,
}

/// The quotient of `of` by `2^bits`, rounded down, and the remainder.
fn split(graph: &mut Graph, of: NodeId, bits: u32) -> Result<(NodeId, NodeId), GraphError> {
    let unit = 1_i128 << bits;
    let whole = graph.divide_constant(of, unit, Rounding::Floor)?;
    let factor = graph.integer(unit, graph.ty(of).repr);
    let own = graph.arithmetic(Arithmetic::Multiply, whole, factor, Overflow::Wrap)?;
    let rest = graph.arithmetic(Arithmetic::Subtract, of, own, Overflow::Wrap)?;
    Ok((whole, graph.assume(rest, Range::new(0, unit - 1))))
}

/// `of` minus half of `2^bits`, as `repr`.
fn centred(graph: &mut Graph, of: NodeId, bits: u32, repr: Repr) -> Result<NodeId, GraphError> {
    let half = graph.integer(1_i128 << (bits - 1), graph.ty(of).repr);
    let centred = graph.arithmetic(Arithmetic::Subtract, of, half, Overflow::Wrap)?;
    graph.convert(centred, repr, Overflow::Fail)
}

/// `high * 2^bits + low`, plus half of `2^bits`.
fn joined(graph: &mut Graph, high: NodeId, low: NodeId, bits: u32, repr: Repr) -> Result<NodeId, GraphError> {
    let (high, low) = (graph.convert(high, repr, Overflow::Wrap)?, graph.convert(low, repr, Overflow::Wrap)?);
    let (unit, half) = (graph.integer(1_i128 << bits, repr), graph.integer(1_i128 << (bits - 1), repr));
    let high = graph.arithmetic(Arithmetic::Multiply, high, unit, Overflow::Wrap)?;
    let low = graph.arithmetic(Arithmetic::Add, low, half, Overflow::Wrap)?;
    graph.arithmetic(Arithmetic::Add, high, low, Overflow::Wrap)
}

/// The parts of an interval, in their own widths: months · days, milliseconds · months, days, nanoseconds.
pub(crate) fn parts(graph: &mut Graph, of: NodeId, unit: IntervalUnit) -> Result<Vec<NodeId>, GraphError> {
    Ok(match unit {
        IntervalUnit::YearMonth => vec![of],
        IntervalUnit::DayTime => {
            let (days, milliseconds) = split(graph, of, 32)?;
            vec![graph.convert(days, Repr::I32, Overflow::Fail)?, centred(graph, milliseconds, 32, Repr::I32)?]
        }
        IntervalUnit::MonthDayNano => {
            let (months, rest) = split(graph, of, 96)?;
            let (days, nanoseconds) = split(graph, rest, 64)?;
            let months = graph.convert(months, Repr::I32, Overflow::Fail)?;
            vec![months, centred(graph, days, 32, Repr::I32)?, centred(graph, nanoseconds, 64, Repr::I64)?]
        }
    })
}

/// The interval of these parts; parts that do not fit their widths wrap.
pub(crate) fn of_parts(graph: &mut Graph, unit: IntervalUnit, parts: &[NodeId]) -> Result<NodeId, GraphError> {
    let mut own = |at: usize, repr| match parts.get(at) {
        Some(part) => graph.convert(*part, repr, Overflow::Wrap),
        None => Ok(graph.integer(0, repr)),
    };
    match unit {
        IntervalUnit::YearMonth => own(0, Repr::I32),
        IntervalUnit::DayTime => {
            let (days, milliseconds) = (own(0, Repr::I32)?, own(1, Repr::I32)?);
            joined(graph, days, milliseconds, 32, Repr::I64)
        }
        IntervalUnit::MonthDayNano => {
            let (months, days, nanoseconds) = (own(0, Repr::I32)?, own(1, Repr::I32)?, own(2, Repr::I64)?);
            let days = joined(graph, months, days, 32, Repr::I128)?;
            joined(graph, days, nanoseconds, 64, Repr::I128)
        }
    }
}

impl Parts {
    fn of(graph: &mut Graph, of: NodeId, unit: IntervalUnit) -> Result<Self, GraphError> {
        let own = parts(graph, of, unit)?;
        let (no_months, no_time) = (graph.integer(0, Repr::I32), graph.integer(0, Repr::I64));
        Ok(match (unit, own.as_slice()) {
            (IntervalUnit::DayTime, &[days, milliseconds]) => {
                let wide = graph.convert(milliseconds, Repr::I64, Overflow::Wrap)?;
                let scale = graph.integer(1_000_000, Repr::I64);
                let nanoseconds = graph.arithmetic(Arithmetic::Multiply, wide, scale, Overflow::Fail)?;
                Self { months: no_months, days, nanoseconds }
            }
            (_, &[months, days, nanoseconds]) => Self { months, days, nanoseconds },
            _ => Self { months: of, days: no_months, nanoseconds: no_time },
        })
    }
}

impl Lowering<'_> {
    /// The interval with each part negated.
    pub(super) fn negated_interval(&mut self, of: &Value, unit: IntervalUnit) -> Lowered<NodeId> {
        let graph = &mut self.graph;
        let negated = parts(graph, of.node, unit).and_then(|parts| {
            let negated = parts.into_iter().map(|part| graph.negate(part, Overflow::Fail));
            let negated = negated.collect::<Result<Vec<_>, _>>()?;
            of_parts(graph, unit, &negated)
        });
        Ok(negated?)
    }

    /// Sums and differences with an interval; `None` for other operands.
    pub(super) fn interval_arithmetic(
        &mut self,
        op: Arithmetic,
        left: &Value,
        right: &Value,
        data_type: &DataType,
    ) -> Lowered<Option<NodeId>> {
        let (of, interval, unit) = match (&left.data_type, &right.data_type, op) {
            (DataType::Interval(a), DataType::Interval(b), Arithmetic::Add | Arithmetic::Subtract) if a == b => {
                let graph = &mut self.graph;
                let both = parts(graph, left.node, *a).and_then(|l| Ok((l, parts(graph, right.node, *b)?)));
                let node = both.and_then(|(l, r)| {
                    let sum = |(l, r)| graph.arithmetic(op, l, r, Overflow::Fail);
                    let sums = l.into_iter().zip(r).map(sum).collect::<Result<Vec<_>, _>>()?;
                    of_parts(graph, *a, &sums)
                });
                return node.map(Some).map_err(Refusal::from);
            }
            (_, DataType::Interval(unit), Arithmetic::Add | Arithmetic::Subtract) => (left, right, *unit),
            (DataType::Interval(unit), _, Arithmetic::Add) => (right, left, *unit),
            _ => return Ok(None),
        };
        let known = match &of.data_type {
            DataType::Date32 => true,
            DataType::Timestamp(_, zone) => zone_offset(zone).is_some(),
            _ => false,
        };
        if !known || of.data_type != *data_type {
            return Ok(None);
        }
        let parts = Parts::of(&mut self.graph, interval.node, unit)?;
        self.moved_by(of, parts, op == Arithmetic::Subtract).map(Some)
    }

    /// A date or timestamp moved forward by an interval, or back if `earlier`.
    fn moved_by(&mut self, of: &Value, parts: Parts, earlier: bool) -> Lowered<NodeId> {
        let graph = &mut self.graph;
        let mut signed = |part: NodeId| match earlier {
            true => graph.negate(part, Overflow::Fail),
            false => Ok(part),
        };
        let signs =
            signed(parts.months).and_then(|months| Ok((months, signed(parts.days)?, signed(parts.nanoseconds)?)));
        let (months, days, nanoseconds) = signs?;
        let DataType::Timestamp(unit, zone) = &of.data_type else {
            // A date has no time of day: only whole days of the nanoseconds count.
            let whole = graph.divide_constant(nanoseconds, DAY_NANOS.into(), Rounding::Truncate);
            let sum = whole.and_then(|whole| {
                let rest = Some(graph.convert(whole, Repr::I32, Overflow::Fail)?);
                let parts = IntervalParts { months: Some(months), days: Some(days), rest };
                graph.add_interval(of.node, KernelUnit::Day, parts)
            });
            return sum.map_err(Refusal::from);
        };
        let Some(offset) = zone_offset(zone) else {
            return Err(refusal(format!("{} plus an interval is not lowered", of.data_type)));
        };
        let tick = nanos(unit);
        let scaled = graph.convert(days, Repr::I64, Overflow::Wrap).and_then(|days| {
            let per_day = graph.integer((DAY_NANOS / tick).into(), Repr::I64);
            let days = graph.arithmetic(Arithmetic::Multiply, days, per_day, Overflow::Fail)?;
            Ok((days, graph.divide_constant(nanoseconds, tick.into(), Rounding::Floor)?))
        });
        let (days, rest) = scaled?;
        // Months and days are added in local time.
        let local = self.moved(of.node, unit, offset, Overflow::Fail)?;
        let parts = IntervalParts { months: Some(months), days: Some(days), rest: Some(rest) };
        let sum = self.graph.add_interval(local, time_unit(unit), parts)?;
        self.moved(sum, unit, -offset, Overflow::Fail)
    }
}
