//! Conversion and arithmetic of dates, times and timestamps, by arrow's rules.
//!
//!   Date32 → Timestamp      * ticks of a day        checked
//!   Timestamp → Date32      / ticks of a day        floor; outside the calendar is an error even for TRY_CAST
//!   Timestamp → Timestamp   * or / by a power of 1000: checked, or truncated towards zero
//!   Timestamp → Time        remainder of a day
//!   date + interval         months, then days, then the part below a day: each intermediate result inside the calendar
//!   year, month, day        1970-01-01 plus months gives the first of the month; then plus days
//!
//! After    arrow-cast `mod.rs`, arrow-array `types.rs`, datafusion-functions `datetime/*.rs`.

use super::graph::*;
use super::graph::{calendar, per_day};

/// A literal interval, with its parts in parameters: months (`I32`), and ticks of the date's or timestamp's unit in two
/// parts (days and the rest), in the representation of the operand.
#[derive(Debug, Clone, Copy, Default)]
pub struct IntervalParts {
    pub months: Option<NodeId>,
    pub days: Option<NodeId>,
    pub rest: Option<NodeId>,
}

impl Graph {
    /// A date (`Day`, `I32`) or timestamp (`I64`) in another unit; the result is `I32` for `Day`, else `I64`. To change
    /// the time zone, add the offset first.
    ///
    /// # Errors
    /// If the operand is neither `I32` nor `I64`.
    pub fn convert_time(
        &mut self,
        of: NodeId,
        from: TimeUnit,
        to: TimeUnit,
        overflow: Overflow,
    ) -> Result<NodeId, GraphError> {
        if from == to {
            return Ok(of);
        }
        if to == TimeUnit::Day {
            let inside = self.check(of, calendar(from), Overflow::Fail)?;
            let days = self.divide_constant(inside, per_day(from), Rounding::Floor)?;
            return self.convert(days, Repr::I32, Overflow::Fail);
        }
        let wide = self.convert(of, Repr::I64, Overflow::Wrap)?;
        let (ticks, wanted) = (per_day(from), per_day(to));
        if wanted > ticks {
            let factor = self.integer(wanted / ticks, Repr::I64);
            self.arithmetic(Arithmetic::Multiply, wide, factor, overflow)
        } else {
            self.divide_constant(wide, ticks / wanted, Rounding::Truncate)
        }
    }

    /// A `Date64` (milliseconds) as a `Date32`: truncated towards zero, unlike a timestamp.
    ///
    /// # Errors
    /// If the operand is not `I64`.
    pub fn date64_to_date32(&mut self, of: NodeId, overflow: Overflow) -> Result<NodeId, GraphError> {
        let days = self.divide_constant(of, per_day(TimeUnit::Millisecond), Rounding::Truncate)?;
        self.convert(days, Repr::I32, overflow)
    }

    /// A date or timestamp if it is inside the calendar; otherwise the overflow.
    ///
    /// # Errors
    /// If the operand is not `I32` or `I64`.
    pub fn dated(&mut self, of: NodeId, unit: TimeUnit, overflow: Overflow) -> Result<NodeId, GraphError> {
        self.check(of, calendar(unit), overflow)
    }

    /// A date or timestamp plus an interval. A result outside the calendar or the representation is an error.
    ///
    /// # Errors
    /// If the operands are not `I32` or `I64`.
    pub fn add_interval(&mut self, of: NodeId, unit: TimeUnit, interval: IntervalParts) -> Result<NodeId, GraphError> {
        let mut node = self.check(of, calendar(unit), Overflow::Fail)?;
        if let Some(months) = interval.months {
            node = self.add_months(node, months, unit)?;
        }
        for ticks in [interval.days, interval.rest].into_iter().flatten() {
            node = self.arithmetic(Arithmetic::Add, node, ticks, Overflow::Fail)?;
            node = self.check(node, calendar(unit), Overflow::Fail)?;
        }
        Ok(node)
    }

    /// A time of day plus `ticks` (`I64`, less than a day), wrapped within the day.
    ///
    /// # Errors
    /// If the operand is not a time.
    pub fn add_to_time(&mut self, of: NodeId, unit: TimeUnit, ticks: NodeId) -> Result<NodeId, GraphError> {
        let repr = self.ty(of).repr;
        let wide = self.convert(of, Repr::I64, Overflow::Wrap)?;
        let sum = self.arithmetic(Arithmetic::Add, wide, ticks, Overflow::Wrap)?;
        let within = self.remainder_of(sum, per_day(unit))?;
        self.convert(within, repr, Overflow::Wrap)
    }

    /// The time of day of a timestamp (`I64` of `from`) in unit `to`, as `repr`.
    ///
    /// # Errors
    /// If the operand is not `I64`.
    pub fn time_of_day(&mut self, of: NodeId, from: TimeUnit, to: TimeUnit, repr: Repr) -> Result<NodeId, GraphError> {
        let of = self.check(of, calendar(from), Overflow::Fail)?;
        let within = self.remainder_of(of, per_day(from))?;
        let time = self.convert_time(within, from, to, Overflow::Wrap)?;
        self.convert(time, repr, Overflow::Wrap)
    }

    /// Remainder of `of` modulo `period`, never negative.
    fn remainder_of(&mut self, of: NodeId, period: i128) -> Result<NodeId, GraphError> {
        let repr = self.ty(of).repr;
        let whole = self.divide_constant(of, period, Rounding::Floor)?;
        let factor = self.integer(period, repr);
        let whole = self.arithmetic(Arithmetic::Multiply, whole, factor, Overflow::Wrap)?;
        let rest = self.arithmetic(Arithmetic::Subtract, of, whole, Overflow::Wrap)?;
        Ok(self.assume(rest, Range::new(0, period - 1)))
    }

    /// A time of day (`I32` or `I64`) in another unit.
    ///
    /// # Errors
    /// If the operand is not a time.
    pub fn convert_time_of_day(
        &mut self,
        of: NodeId,
        from: TimeUnit,
        to: TimeUnit,
        repr: Repr,
        overflow: Overflow,
    ) -> Result<NodeId, GraphError> {
        let wide = self.convert(of, Repr::I64, Overflow::Wrap)?;
        let time = self.convert_time(wide, from, to, Overflow::Wrap)?;
        // Only seconds to milliseconds need a check: both are 32 bits wide.
        let finer = per_day(to) > per_day(from) && repr == Repr::I32;
        self.convert(time, repr, if finer { overflow } else { Overflow::Wrap })
    }

    /// A date from its year, month and day (`I32`); a date that does not exist is an error.
    ///
    /// # Errors
    /// If the operands are not `I32`.
    pub fn make_date(&mut self, year: NodeId, month: NodeId, day: NodeId) -> Result<NodeId, GraphError> {
        let year = self.check(year, Range::new(-262_143, 262_142), Overflow::Fail)?;
        let month = self.check(month, Range::new(1, 12), Overflow::Fail)?;
        let day = self.check(day, Range::new(1, 31), Overflow::Fail)?;
        let constant = |graph: &mut Self, value: i128| graph.integer(value, Repr::I32);
        let (twelve, start) = (constant(self, 12), constant(self, 1970 * 12 + 1));
        let months = self.arithmetic(Arithmetic::Multiply, year, twelve, Overflow::Wrap)?;
        let months = self.arithmetic(Arithmetic::Add, months, month, Overflow::Wrap)?;
        let months = self.arithmetic(Arithmetic::Subtract, months, start, Overflow::Wrap)?;
        let epoch = constant(self, 0);
        let first = self.add_months(epoch, months, TimeUnit::Day)?;
        let one = constant(self, 1);
        let day = self.arithmetic(Arithmetic::Subtract, day, one, Overflow::Wrap)?;
        let date = self.arithmetic(Arithmetic::Add, first, day, Overflow::Wrap)?;
        // The 31st of a short month is a day of the next month. (Beyond the calendar's last day there is no short
        // month.)
        let own = self.date_part(DatePart::Month, date, TimeUnit::Day)?;
        let same = self.compare(Comparison::Equal, own, month)?;
        self.require(date, same, Overflow::Fail)
    }

    /// A time of day in seconds from its hour, minute and second (`I32`); a time that does not exist is an error.
    ///
    /// # Errors
    /// If the operands are not `I32`.
    pub fn make_time(&mut self, hour: NodeId, minute: NodeId, second: NodeId) -> Result<NodeId, GraphError> {
        let mut sum = self.check(second, Range::new(0, 59), Overflow::Fail)?;
        for (of, high, seconds) in [(minute, 59, 60), (hour, 23, 3600)] {
            let of = self.check(of, Range::new(0, high), Overflow::Fail)?;
            let seconds = self.integer(seconds, Repr::I32);
            let product = self.arithmetic(Arithmetic::Multiply, of, seconds, Overflow::Wrap)?;
            sum = self.arithmetic(Arithmetic::Add, sum, product, Overflow::Wrap)?;
        }
        Ok(sum)
    }

    /// Start of the bin that holds a timestamp. Bins of `stride` nanoseconds (above zero) are counted from `origin` (an
    /// `I64`, in nanoseconds). NULL if the start does not fit nanoseconds.
    ///
    /// # Errors
    /// If the operands are not `I64`, or the stride is not above zero.
    pub fn date_bin(&mut self, of: NodeId, unit: TimeUnit, stride: i64, origin: NodeId) -> Result<NodeId, GraphError> {
        let nanos = self.convert_time(of, unit, TimeUnit::Nanosecond, Overflow::Null)?;
        let since = self.arithmetic(Arithmetic::Subtract, nanos, origin, Overflow::Null)?;
        let bin = self.divide_constant(since, stride.into(), Rounding::Floor)?;
        let width = self.integer(stride.into(), Repr::I64);
        let start = self.arithmetic(Arithmetic::Multiply, bin, width, Overflow::Null)?;
        let start = self.arithmetic(Arithmetic::Add, start, origin, Overflow::Null)?;
        self.convert_time(start, TimeUnit::Nanosecond, unit, Overflow::Wrap)
    }

    /// A number of seconds (`F64`) in nanoseconds (`I64`), converted as by Rust's `as`: truncated, clamped, 0 for NaN.
    ///
    /// # Errors
    /// If the operand is not `F64`.
    pub fn seconds_to_nanoseconds(&mut self, of: NodeId) -> Result<NodeId, GraphError> {
        const BEYOND: f64 = 9_223_372_036_854_775_808.0;
        let nanos = self.times(of, 1e9)?;
        let nan = self.float_test(FloatTest::Nan, nanos)?;
        let (low, high) = (self.float(-BEYOND, Repr::F64), self.float(BEYOND, Repr::F64));
        let above = self.compare(Comparison::GreaterEqual, nanos, high)?;
        let below = self.compare(Comparison::LessEqual, nanos, low)?;
        let whole = self.convert(nanos, Repr::I64, Overflow::Fail)?;
        let (zero, least, most) = (
            self.integer(0, Repr::I64),
            self.integer(i64::MIN.into(), Repr::I64),
            self.integer(i64::MAX.into(), Repr::I64),
        );
        self.case(vec![(nan, zero), (above, most), (below, least)], Some(whole))
    }
}
