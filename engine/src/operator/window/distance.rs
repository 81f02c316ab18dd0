//! Distances of RANGE frames, and the limits of the types that they apply to.
//!
//!   key BIGINT 5000, 2592000000 PRECEDING ──► 5000 - 2592000000, within BIGINT      although every key fits 32 bits
//!
//! Unit     that of the key: days, or seconds to nanoseconds; for floats their bits.
//! Limits   of the SQL type, not of the width in which values are stored. Days and times end with the calendar that
//!          adds intervals to them (chrono's, from the year -262143 to 262142); nanoseconds end earlier, with their 64
//!          bits.

use datafusion::arrow::datatypes::{DataType, IntervalDayTime, IntervalMonthDayNano, TimeUnit};
use datafusion::common::ScalarValue;
use millpond_kernels::codegen::ir::{Range, Ty};

use crate::column::number_repr;
use crate::expr::Value;

/// The first and the last day of the calendar, from 1970-01-01.
const DAYS: (i128, i128) = (-96_465_292, 95_026_236);
const SECONDS_A_DAY: i128 = 86_400;

/// A distance from a key, in the key's unit; `None` if it has no form.
pub(super) fn distance(by: &ScalarValue, key: &Value, ty: Ty) -> Option<u64> {
    const DAY: i64 = 86_400_000;
    let positive = |by: i64| u64::try_from(by).ok();
    match (by, &key.data_type) {
        (ScalarValue::Float64(Some(by)), DataType::Float64) if *by >= 0.0 => Some(by.to_bits()),
        (ScalarValue::Float32(Some(by)), DataType::Float32) if *by >= 0.0 => Some(by.to_bits().into()),
        (by, data_type) if data_type.is_integer() && by.data_type() == *data_type && ty.repr.is_integer() => {
            if number_repr(data_type) != Some(ty.repr) {
                return None;
            }
            match by.cast_to(&DataType::UInt64) {
                Ok(ScalarValue::UInt64(by)) => by,
                _ => None,
            }
        }
        (ScalarValue::IntervalMonthDayNano(Some(IntervalMonthDayNano { months: 0, days, nanoseconds })), to) => {
            let (days, nanoseconds) = (i64::from(*days), *nanoseconds);
            match to {
                DataType::Date32 if nanoseconds == 0 => positive(days),
                DataType::Timestamp(unit, None) => {
                    let unit = nanoseconds_of(*unit);
                    let whole = days.checked_mul(DAY * 1_000_000)?.checked_add(nanoseconds)?;
                    (whole % unit == 0).then(|| positive(whole / unit)).flatten()
                }
                _ => None,
            }
        }
        (ScalarValue::IntervalDayTime(Some(IntervalDayTime { days, milliseconds })), to) => match to {
            DataType::Date32 if *milliseconds == 0 => positive((*days).into()),
            DataType::Timestamp(unit, None) => {
                let whole = (i64::from(*days) * DAY + i64::from(*milliseconds)).checked_mul(1_000_000)?;
                let unit = nanoseconds_of(*unit);
                (whole % unit == 0).then(|| positive(whole / unit)).flatten()
            }
            _ => None,
        },
        _ => None,
    }
}

fn nanoseconds_of(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1000,
        TimeUnit::Nanosecond => 1,
    }
}

/// The least and the greatest value that a distance may lead to; `None` for types without limits, such as floats.
pub(super) fn limits(data_type: &DataType) -> Option<Range> {
    match data_type {
        DataType::Date32 => Some(Range { low: DAYS.0, high: DAYS.1 }),
        DataType::Timestamp(unit, _) if *unit != TimeUnit::Nanosecond => {
            let second = i128::from(1_000_000_000 / nanoseconds_of(*unit));
            let day = SECONDS_A_DAY * second;
            Some(Range { low: DAYS.0 * day, high: (DAYS.1 + 1) * day - 1 })
        }
        other => number_repr(other)?.bounds(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds an interval to the ends of a type as DataFusion's frames do.
    fn stays(value: &ScalarValue, days: i32, nanoseconds: i64, up: bool) -> bool {
        let by = ScalarValue::IntervalMonthDayNano(Some(IntervalMonthDayNano { months: 0, days, nanoseconds }));
        if up { value.add_checked(by).is_ok() } else { value.sub_checked(by).is_ok() }
    }

    #[test]
    fn days_and_times_end_where_datafusion_adds_no_more_to_them() {
        let day = |at: i128| ScalarValue::Date32(Some(at as i32));
        let of = limits(&DataType::Date32).unwrap();
        assert!(stays(&day(of.high - 1), 1, 0, true) && !stays(&day(of.high), 1, 0, true));
        assert!(stays(&day(of.low + 1), 1, 0, false) && !stays(&day(of.low), 1, 0, false));
        type Of = fn(Option<i64>) -> ScalarValue;
        let units: [(TimeUnit, Of); 4] = [
            (TimeUnit::Second, |at| ScalarValue::TimestampSecond(at, None)),
            (TimeUnit::Millisecond, |at| ScalarValue::TimestampMillisecond(at, None)),
            (TimeUnit::Microsecond, |at| ScalarValue::TimestampMicrosecond(at, None)),
            (TimeUnit::Nanosecond, |at| ScalarValue::TimestampNanosecond(at, None)),
        ];
        for (unit, value) in units {
            let of = limits(&DataType::Timestamp(unit, None)).unwrap();
            let (by, at) = (nanoseconds_of(unit), |at: i128| value(Some(at as i64)));
            assert!(stays(&at(of.high - 1), 0, by, true) && !stays(&at(of.high), 0, by, true), "{unit:?}");
            assert!(stays(&at(of.low + 1), 0, by, false) && !stays(&at(of.low), 0, by, false), "{unit:?}");
        }
    }

    #[test]
    fn integers_end_with_their_type_and_floats_do_not_end() {
        let of = |data_type| limits(&data_type).map(|range| (range.low, range.high));
        assert_eq!(of(DataType::Int64), Some((i64::MIN.into(), i64::MAX.into())));
        assert_eq!(of(DataType::UInt64), Some((0, u64::MAX.into())));
        assert_eq!(of(DataType::Int8), Some((-128, 127)));
        assert_eq!(of(DataType::Float64), None);
    }
}
