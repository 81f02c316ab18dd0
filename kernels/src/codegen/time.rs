//! Dates, times and timestamps from one unit to another, by arrow's rules.
//!
//!   Date32 → Timestamp      * ticks of a day        checked
//!   Timestamp → Date32      / ticks of a day        floor; outside the calendar is an error even for TRY_CAST
//!   Timestamp → Timestamp   * or / by a power of 1000: checked, or truncated towards zero
//!
//! After    arrow-cast `mod.rs`.

use super::graph::*;
use super::infer::{calendar, per_day};

impl Graph {
    /// A date (`Day`, `I32`) or timestamp (`I64`) in another unit; `Day` gives `I32`, the others `I64`.
    /// For a change of time zone add the offset first.
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
    /// If the operand is no `I64`.
    pub fn date64_to_date32(&mut self, of: NodeId, overflow: Overflow) -> Result<NodeId, GraphError> {
        let days = self.divide_constant(of, per_day(TimeUnit::Millisecond), Rounding::Truncate)?;
        self.convert(days, Repr::I32, overflow)
    }
}
