//! Fields of dates and timestamps, starts of periods, and addition of months, by multiplication and shifts only.
//!
//!   timestamp ─ floor by a day ─► days ─► years that begin in March ─► year, month, day
//!
//! Calendar  proleptic Gregorian, years -262143 to 262142; values outside have no fields (NULL), as in the CPU's
//!           calendar.
//! Negative  times before 1970 are floored: the nanosecond before 1970 is in second 59 of minute 59 of 1969-12-31
//!           23:00.
//! After     C. Neri, L. Schneider, "Euclidean affine functions and their application to calendar algorithms", 2022.

use millpond_ptx::ast::Type;
use millpond_ptx::build::{Compare, Reg};

use super::integer::divide_unsigned_constant;
use super::lanes::Number;
use super::{Computed, Row};
use crate::codegen::graph::{calendar, per_day};
use crate::codegen::ir::{DateGrain, DatePart, ErrorCode, Lane, NodeId, Overflow, Range, Rounding, TimeUnit};
use crate::codegen::value::CodegenError;

/// 400-year eras added so that no day or year of the calendar is negative.
const ERAS: i64 = 700;
const DAYS_PER_ERA: i64 = 146_097;
/// Days from the first of March that begins the shifted count to 1970-01-01.
const DAY_SHIFT: i64 = 719_468 + ERAS * DAYS_PER_ERA;
const YEAR_SHIFT: i64 = ERAS * 400;
/// The largest shifted day of the calendar, 95,026,236 + DAY_SHIFT, rounded up.
const LARGEST_DAY: u128 = 200_000_000;
/// A multiple of seven that makes every day of the calendar positive.
const WEEK_SHIFT: i64 = 7 * 13_780_757;

/// A day in a year that begins in March: the basis of all fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Civil {
    /// Year plus `YEAR_SHIFT`; January and February belong to the previous year.
    march_year: Reg,
    /// Day of that year, from 0.
    march_day: Reg,
    /// True if the day is in January or February.
    late: Reg,
}

impl Row<'_, '_> {
    /// Whole days since 1970, as `S32`; arbitrary outside the calendar.
    fn days(&mut self, of: NodeId, unit: TimeUnit, number: Number) -> Reg {
        if let Some(&days) = self.known.days.get(&(of, unit)) {
            return days;
        }
        let range = self.range(of);
        let days = self.quotient(number, range, per_day(unit), Rounding::Floor);
        let days = days.to(self.f, Lane::S32).low_reg(self.f);
        self.known.days.insert((of, unit), days);
        days
    }

    fn civil(&mut self, days: Reg) -> Civil {
        if let Some(&civil) = self.known.civil.get(&days) {
            return civil;
        }
        let f = &mut *self.f;
        let n1 = f.mad(days.view(Type::U32), 4, 4 * DAY_SHIFT + 3);
        let century = divide_unsigned_constant(f, n1, 4 * LARGEST_DAY, 146_097);
        let rest = f.mad(century, i128::from(-146_097_i32 as u32), n1);
        let n2 = f.or(rest, 3);
        let product = f.mul_wide(n2, 2_939_745);
        let (low, year_of_century) = f.unpack(product);
        let march_day = divide_unsigned_constant(f, low.view(Type::U32), u128::from(u32::MAX), 4 * 2_939_745);
        let march_year = f.mad(century, 100, year_of_century.view(Type::U32));
        let late = f.setp(Compare::Ge, march_day, 306);
        let civil = Civil { march_year, march_day, late };
        self.known.civil.insert(days, civil);
        civil
    }

    fn year(&mut self, civil: Civil) -> Reg {
        let f = &mut *self.f;
        let shift = f.copy(Type::S32, -YEAR_SHIFT);
        let shift = f.select(civil.late, 1 - YEAR_SHIFT, shift);
        f.add(civil.march_year.view(Type::S32), shift)
    }

    /// Month from 1, and day of the month from 1.
    fn month_and_day(&mut self, civil: Civil) -> (Reg, Reg) {
        let f = &mut *self.f;
        let n3 = f.mad(civil.march_day, 2141, 197_913);
        let march_month = f.shr(n3, 16);
        let next_year = f.sub(march_month, 12);
        let month = f.select(civil.late, next_year, march_month);
        let day = f.and(n3, 0xffff);
        let day = divide_unsigned_constant(f, day, 0xffff, 2141);
        let day = f.add(day, 1);
        (month.view(Type::S32), day.view(Type::S32))
    }

    /// 1 if the calendar year that contains the March is a leap year, else 0.
    fn leap(&mut self, march_year: Reg) -> Reg {
        let f = &mut *self.f;
        let quotient = divide_unsigned_constant(f, march_year, 1_000_000, 25);
        let product = f.mul(quotient, 25);
        let century = f.setp(Compare::Eq, product, march_year);
        let fifteen = f.copy(Type::U32, 15);
        let mask = f.select(century, fifteen, 3);
        let rest = f.and(march_year, mask);
        let leap = f.setp(Compare::Eq, rest, 0);
        let one = f.copy(Type::U32, 1);
        f.select(leap, one, 0)
    }

    /// Day of the calendar year from 1.
    fn day_of_year(&mut self, civil: Civil) -> Reg {
        let leap = self.leap(civil.march_year);
        let f = &mut *self.f;
        let since_january = f.add(civil.march_day, 60);
        let since_january = f.add(since_january, leap);
        let in_winter = f.sub(civil.march_day, 305);
        f.select(civil.late, in_winter, since_january).view(Type::S32)
    }

    /// `(days + offset) mod 7`.
    fn weekday(&mut self, days: Reg, offset: i64) -> Reg {
        let f = &mut *self.f;
        let shifted = f.add(days.view(Type::U32), WEEK_SHIFT + offset);
        let weeks = divide_unsigned_constant(f, shifted, 2 * LARGEST_DAY, 7);
        f.mad(weeks, i128::from(-7_i32 as u32), shifted).view(Type::S32)
    }

    /// Thursday of the day's ISO week: its year is the week's year.
    fn thursday(&mut self, days: Reg) -> Reg {
        let monday0 = self.weekday(days, 3);
        let f = &mut *self.f;
        let thursday = f.sub(days, monday0);
        f.add(thursday, 3)
    }

    pub(super) fn date_part(
        &mut self,
        id: NodeId,
        part: DatePart,
        of: NodeId,
        unit: TimeUnit,
    ) -> Result<Computed, CodegenError> {
        let a = self.node(of)?;
        if part == DatePart::Epoch {
            return Ok(Computed { number: self.epoch(a.number, unit), valid: a.valid });
        }
        let of_day = matches!(
            part,
            DatePart::Hour
                | DatePart::Minute
                | DatePart::Second
                | DatePart::Millisecond
                | DatePart::Microsecond
                | DatePart::Nanosecond
        );
        if of_day && unit == TimeUnit::Day {
            return Ok(Computed { number: Number::constant(self.lane(id), 0), valid: a.valid });
        }
        let valid = match self.outside(a.number, self.range(of), calendar(unit)) {
            Some(outside) => self.overflowed(id, ErrorCode::Cast, outside, a.valid, Overflow::Null)?,
            None => a.valid,
        };
        if of_day {
            let number = self.time_part(part, a.number, of, unit);
            return Ok(Computed { number: number.to(self.f, self.lane(id)), valid });
        }
        let days = self.days(of, unit, a.number);
        let field = match part {
            DatePart::DayOfWeek => self.weekday(days, 4),
            DatePart::IsoDayOfWeek => {
                let monday0 = self.weekday(days, 3);
                self.f.add(monday0, 1)
            }
            DatePart::IsoYear => {
                let thursday = self.thursday(days);
                let civil = self.civil(thursday);
                self.year(civil)
            }
            DatePart::Week => {
                let thursday = self.thursday(days);
                let civil = self.civil(thursday);
                let day = self.day_of_year(civil);
                // From day 1 on: (day - 1) / 7 + 1.
                let day = self.f.add(day.view(Type::U32), 6);
                divide_unsigned_constant(self.f, day, 400, 7)
            }
            _ => {
                let civil = self.civil(days);
                match part {
                    DatePart::Year => self.year(civil),
                    DatePart::DayOfYear => self.day_of_year(civil),
                    DatePart::Day => self.month_and_day(civil).1,
                    DatePart::Quarter => {
                        let (month, _) = self.month_and_day(civil);
                        let month = self.f.add(month.view(Type::U32), 2);
                        divide_unsigned_constant(self.f, month, 16, 3)
                    }
                    _ => self.month_and_day(civil).0,
                }
            }
        };
        Ok(Computed { number: Number::reg(Lane::S32, field), valid })
    }

    /// Seconds since 1970 with their fraction.
    fn epoch(&mut self, number: Number, unit: TimeUnit) -> Number {
        let low = number.low_reg(self.f);
        let value = self.f.convert(Type::F64, low);
        let value = match unit {
            TimeUnit::Day => self.f.mul(value, 86_400.0),
            TimeUnit::Second => value,
            _ => self.f.div(value, (per_day(unit) / 86_400) as f64),
        };
        Number::reg(Lane::F64, value)
    }

    /// A field of the time of day.
    fn time_part(&mut self, part: DatePart, number: Number, of: NodeId, unit: TimeUnit) -> Number {
        let second = per_day(unit) / 86_400;
        let range = self.range(of);
        // The smallest period that contains the field, and the field's unit.
        let (period, step) = match part {
            DatePart::Hour => (86_400 * second, 3600 * second),
            DatePart::Minute => (3600 * second, 60 * second),
            _ => (60 * second, second),
        };
        let whole = self.quotient(number, range, period, Rounding::Floor);
        let whole = whole.to(self.f, Lane::S64).low_reg(self.f);
        let number = number.to(self.f, Lane::S64).low_reg(self.f);
        let elapsed = self.f.mul(whole, period);
        let within = self.f.sub(number, elapsed);
        let within = Number::reg(Lane::S64, within);
        let inside = Range { low: 0, high: period - 1 };
        let per_second = match part {
            DatePart::Millisecond => 1_000,
            DatePart::Microsecond => 1_000_000,
            DatePart::Nanosecond => 1_000_000_000,
            _ => return self.quotient(within, inside, step, Rounding::Floor),
        };
        if second >= per_second {
            return self.quotient(within, inside, second / per_second, Rounding::Floor);
        }
        let within = within.low_reg(self.f);
        Number::reg(Lane::S64, self.f.mul(within, per_second / second))
    }

    pub(super) fn date_truncate(
        &mut self,
        id: NodeId,
        grain: DateGrain,
        of: NodeId,
        unit: TimeUnit,
    ) -> Result<Computed, CodegenError> {
        let a = self.node(of)?;
        let lane = self.lane(id);
        let second = per_day(unit) / 86_400;
        let ticks = match grain {
            DateGrain::Microsecond => second / 1_000_000,
            DateGrain::Millisecond => second / 1_000,
            DateGrain::Second => second,
            DateGrain::Minute => 60 * second,
            DateGrain::Hour => 3600 * second,
            DateGrain::Day => per_day(unit),
            _ => 0,
        };
        let range = self.range(of);
        if matches!(grain, DateGrain::Week | DateGrain::Month | DateGrain::Quarter | DateGrain::Year) {
            return self.truncate_to_period(id, grain, of, unit, a);
        }
        if ticks <= 1 {
            return Ok(Computed { number: a.number.to(self.f, lane), valid: a.valid });
        }
        let whole = self.quotient(a.number, range, ticks, Rounding::Floor);
        let whole = whole.to(self.f, Lane::S64).low_reg(self.f);
        let start = Number::reg(Lane::S64, self.f.mul(whole, ticks));
        Ok(Computed { number: start.to(self.f, lane), valid: a.valid })
    }

    fn truncate_to_period(
        &mut self,
        id: NodeId,
        grain: DateGrain,
        of: NodeId,
        unit: TimeUnit,
        a: Computed,
    ) -> Result<Computed, CodegenError> {
        // The CPU computes in nanoseconds: values that do not fit them are an error there.
        const FIRST_DAY: i128 = -106_751;
        let range = self.range(of);
        let mut valid = a.valid;
        if unit != TimeUnit::Day {
            let scale = per_day(TimeUnit::Nanosecond) / per_day(unit);
            let limits = Range { low: i128::from(i64::MIN) / scale, high: i128::from(i64::MAX) / scale };
            if let Some(outside) = self.outside(a.number, range, limits) {
                valid = self.overflowed(id, ErrorCode::Cast, outside, valid, Overflow::Fail)?;
            }
        }
        let days = self.days(of, unit, a.number);
        let back = match grain {
            DateGrain::Week => self.weekday(days, 3),
            DateGrain::Month => {
                let civil = self.civil(days);
                let (_, day) = self.month_and_day(civil);
                self.f.sub(day, 1)
            }
            DateGrain::Quarter => self.days_into_quarter(days),
            _ => {
                let civil = self.civil(days);
                let day = self.day_of_year(civil);
                self.f.sub(day, 1)
            }
        };
        let start = self.f.sub(days, back);
        if unit != TimeUnit::Day && range.low < (FIRST_DAY + 366) * per_day(unit) {
            let before = self.f.setp(Compare::Lt, start, FIRST_DAY);
            valid = self.overflowed(id, ErrorCode::Cast, before, valid, Overflow::Fail)?;
        }
        let number = if unit == TimeUnit::Day {
            Number::reg(Lane::S32, start)
        } else {
            let start = self.f.convert(Type::S64, start);
            Number::reg(Lane::S64, self.f.mul(start, per_day(unit)))
        };
        Ok(Computed { number: number.to(self.f, self.lane(id)), valid })
    }

    /// Days since the beginning of the quarter.
    fn days_into_quarter(&mut self, days: Reg) -> Reg {
        let civil = self.civil(days);
        let (month, _) = self.month_and_day(civil);
        let day = self.day_of_year(civil);
        let leap = self.leap(civil.march_year);
        let f = &mut *self.f;
        // Days before April, July and October of a year of 365 days.
        let mut before = f.copy(Type::S32, 90);
        for (first_month, days_before) in [(7, 181), (10, 273)] {
            let reached = f.setp(Compare::Ge, month, first_month);
            before = f.select(reached, days_before, before);
        }
        let before = f.add(before, leap.view(Type::S32));
        let spring = f.setp(Compare::Ge, month, 4);
        let before = f.select(spring, before, 0);
        let day = f.sub(day, 1);
        f.sub(day, before)
    }

    pub(super) fn add_months(
        &mut self,
        id: NodeId,
        of: NodeId,
        months: NodeId,
        unit: TimeUnit,
    ) -> Result<Computed, CodegenError> {
        let (a, m) = (self.node(of)?, self.node(months)?);
        let mut valid = self.both_valid(a.valid, m.valid);
        if let Some(outside) = self.outside(a.number, self.range(of), calendar(unit)) {
            valid = self.overflowed(id, ErrorCode::Overflow, outside, valid, Overflow::Fail)?;
        }
        let days = self.days(of, unit, a.number);
        let civil = self.civil(days);
        let year = self.year(civil);
        let (month, day) = self.month_and_day(civil);
        let months = m.number.to(self.f, Lane::S64).low_reg(self.f);
        let f = &mut *self.f;
        // Months since year -YEAR_SHIFT, in 64 bits: any number of months may be added.
        let year = f.convert(Type::S64, year);
        let month = f.convert(Type::S64, month);
        let total = f.add(year, YEAR_SHIFT);
        let total = f.mad(total, 12, month);
        let total = f.add(total, months);
        let total = f.sub(total, 1);
        // Years -262143 to 262142.
        let low = f.setp(Compare::Lt, total, 12 * (YEAR_SHIFT - 262_143));
        let high = f.setp(Compare::Ge, total, 12 * (YEAR_SHIFT + 262_143));
        let outside = f.or(low, high);
        valid = self.overflowed(id, ErrorCode::Overflow, outside, valid, Overflow::Fail)?;
        let f = &mut *self.f;
        let total = f.convert(Type::U32, total.view(Type::U64));
        let year = divide_unsigned_constant(f, total, 12 * 600_000, 12);
        let month0 = f.mad(year, i128::from(-12_i32 as u32), total);
        // The last day of month m: 31 for 1, 3, 5, 7, 8, 10, 12, where m ^ m / 8 is odd; 28 or 29 for February.
        let leap = self.leap(year);
        let f = &mut *self.f;
        let month = f.add(month0, 1);
        let half = f.shr(month, 3);
        let long = f.xor(month, half);
        let long = f.and(long, 1);
        let last = f.add(long, 30);
        let february = f.setp(Compare::Eq, month0, 1);
        let short = f.add(leap, 28);
        let last = f.select(february, short, last);
        let day = f.min(day.view(Type::U32), last);
        // Converts back to days, in years that begin in March.
        let early = f.setp(Compare::Lt, month0, 2);
        let year_before = f.sub(year, 1);
        let year = f.select(early, year_before, year);
        let after = f.add(month0, 10);
        let before = f.sub(month0, 2);
        let march_month = f.select(early, after, before);
        let quarter = f.shr(year, 2);
        let century = divide_unsigned_constant(f, year, 1_000_000, 100);
        let era = f.shr(century, 2);
        let result = f.mad(year, 365, quarter);
        let result = f.sub(result, century);
        let result = f.add(result, era);
        let of_year = f.mad(march_month, 153, 2);
        let of_year = divide_unsigned_constant(f, of_year, 2_000, 5);
        let result = f.add(result, of_year);
        let result = f.add(result, day);
        let result = f.sub(result, DAY_SHIFT + 1).view(Type::S32);
        if unit == TimeUnit::Day {
            return Ok(Computed { number: Number::reg(Lane::S32, result).to(self.f, self.lane(id)), valid });
        }
        // The time of day is kept.
        let ticks = per_day(unit);
        let moved = f.sub(result, days);
        let moved = f.convert(Type::S64, moved);
        let number = a.number.to(f, Lane::S64).low_reg(f);
        let sum = f.mad(moved, ticks, number);
        if unit == TimeUnit::Nanosecond {
            // Nanoseconds only cover the years 1677 to 2262: the day count shows it.
            let low = f.setp(Compare::Lt, result, -106_751);
            let high = f.setp(Compare::Ge, result, 106_751);
            let outside = f.or(low, high);
            valid = self.overflowed(id, ErrorCode::Overflow, outside, valid, Overflow::Fail)?;
        }
        Ok(Computed { number: Number::reg(Lane::S64, sum).to(self.f, self.lane(id)), valid })
    }
}
