//! Constructors of functions of dates and timestamps.
//!
//! ```text
//!   date_part(year, d)  d ∈ [8036, 10591]      ∈ [1991, 1999]
//! ```
//!
//! NULL     a field of an instant outside the calendar is NULL, apart from the epoch.

use super::range::{calendar, per_day};
use super::*;

impl Graph {
    /// A field of a date (`I32` days) or of a timestamp or time (`I64` or `I32` of `unit`).
    ///
    /// # Errors
    /// If the operand is not `I32` or `I64`.
    pub fn date_part(&mut self, part: DatePart, of: NodeId, unit: TimeUnit) -> Result<NodeId, GraphError> {
        self.expect("date_part", &[of], |repr| matches!(repr, Repr::I32 | Repr::I64))?;
        let ty = self.ty(of);
        let nullable = ty.nullable || (part != DatePart::Epoch && !self.in_calendar(of, unit));
        // Years of 365 days overstate the distance from 1970, so the bound holds.
        let bounds = ty.bounds().expect("an integer has bounds");
        let year = |value: i128| 1970 + value.div_euclid(per_day(unit) * 365);
        let years = (year(bounds.low).min(1970) - 1, year(bounds.high).max(1970) + 1);
        let (repr, low, high) = match part {
            DatePart::Year | DatePart::IsoYear => (Repr::I32, years.0.max(-262_144), years.1.min(262_143)),
            DatePart::Quarter => (Repr::I32, 1, 4),
            DatePart::Month => (Repr::I32, 1, 12),
            DatePart::Week => (Repr::I32, 1, 53),
            DatePart::Day => (Repr::I32, 1, 31),
            DatePart::DayOfYear => (Repr::I32, 1, 366),
            DatePart::DayOfWeek => (Repr::I32, 0, 6),
            DatePart::IsoDayOfWeek => (Repr::I32, 1, 7),
            DatePart::Hour => (Repr::I32, 0, 23),
            DatePart::Minute | DatePart::Second => (Repr::I32, 0, 59),
            DatePart::Millisecond => (Repr::I32, 0, 59_999),
            DatePart::Microsecond => (Repr::I32, 0, 59_999_999),
            DatePart::Nanosecond => (Repr::I64, 0, 59_999_999_999),
            DatePart::Epoch => (Repr::F64, 0, 0),
        };
        let result = Ty::new(repr).nullable(nullable).within(low, high);
        Ok(self.push(Node::DatePart { part, of, unit }, result))
    }

    /// Start of the period that contains the timestamp. Raises the error flag if the start is not representable.
    ///
    /// # Errors
    /// If the operand is not `I32` or `I64`.
    pub fn date_truncate(&mut self, grain: DateGrain, of: NodeId, unit: TimeUnit) -> Result<NodeId, GraphError> {
        self.expect("date_trunc", &[of], |repr| matches!(repr, Repr::I32 | Repr::I64))?;
        let ty = self.ty(of);
        let bounds = ty.bounds().expect("an integer has bounds");
        let longest = per_day(unit).max(1) * 366;
        let all = ty.repr.bounds().expect("an integer has bounds");
        let ty = ty.within((bounds.low - longest).max(all.low), bounds.high);
        Ok(self.push(Node::DateTruncate { grain, of, unit }, ty))
    }

    /// A date or timestamp plus a number of months (`I32`), the day clamped to the last of the month.
    ///
    /// # Errors
    /// If `of` is not `I32` or `I64`, or `months` is not `I32`.
    pub fn add_months(&mut self, of: NodeId, months: NodeId, unit: TimeUnit) -> Result<NodeId, GraphError> {
        self.expect("adding months", &[of], |repr| matches!(repr, Repr::I32 | Repr::I64))?;
        self.expect("a number of months", &[months], |repr| repr == Repr::I32)?;
        let ty = Ty::new(self.ty(of).repr).nullable(self.ty(of).nullable || self.ty(months).nullable);
        Ok(self.push(Node::AddMonths { of, months, unit }, ty))
    }

    /// True if every value is inside the calendar, so that its fields exist.
    fn in_calendar(&self, of: NodeId, unit: TimeUnit) -> bool {
        let bounds = self.ty(of).bounds().expect("an integer has bounds");
        calendar(unit).contains(bounds)
    }
}
