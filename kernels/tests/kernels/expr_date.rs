//! Dates by counting: years and months one after another from 1970.

use millpond_kernels::codegen::ir::{DateGrain, DatePart, ErrorCode, NodeId, Overflow, Repr, TimeUnit, Ty};

use crate::expr_bench::{Bench, Cell, F64, Int, Null, assert_rows, pairs};

#[derive(Debug, Clone, Copy, PartialEq)]
struct Date {
    year: i128,
    month: i128,
    day: i128,
    day_of_year: i128,
}

fn leap(year: i128) -> bool {
    year % 400 == 0 || (year % 4 == 0 && year % 100 != 0)
}

fn days_of(year: i128) -> i128 {
    if leap(year) { 366 } else { 365 }
}

fn days_in(year: i128, month: i128) -> i128 {
    match month {
        2 if leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Date of a day number, by counting: cycles of 400 years, then years, then months.
fn date(days: i128) -> Date {
    let mut year = 1970 + days.div_euclid(146_097) * 400;
    let mut rest = days.rem_euclid(146_097);
    while rest >= days_of(year) {
        rest -= days_of(year);
        year += 1;
    }
    let day_of_year = rest + 1;
    let mut month = 1;
    while rest >= days_in(year, month) {
        rest -= days_in(year, month);
        month += 1;
    }
    Date { year, month, day: rest + 1, day_of_year }
}

/// Day number of a date, by counting likewise.
fn day_number(year: i128, month: i128, day: i128) -> i128 {
    let cycles = (year - 1970).div_euclid(400);
    let start = 1970 + cycles * 400;
    let years: i128 = (start..year).map(days_of).sum();
    let months: i128 = (1..month).map(|month| days_in(year, month)).sum();
    cycles * 146_097 + years + months + day - 1
}

/// 0 is Monday; 1970-01-01 was a Thursday.
fn weekday(days: i128) -> i128 {
    (days + 3).rem_euclid(7)
}

/// ISO year and week: that of the week's Thursday.
fn iso_week(days: i128) -> (i128, i128) {
    let thursday = date(days - weekday(days) + 3);
    (thursday.year, (thursday.day_of_year - 1) / 7 + 1)
}

const FIRST: i128 = -96_465_292;
const LAST: i128 = 95_026_236;

fn per_second(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Day => 0,
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

fn per_day(unit: TimeUnit) -> i128 {
    (per_second(unit) * 86_400).max(1)
}

/// Expected value of a field, by the calendar above.
fn field(part: DatePart, value: i128, unit: TimeUnit) -> Cell {
    let days = value.div_euclid(per_day(unit));
    let of_day = value.rem_euclid(per_day(unit));
    let second = per_second(unit).max(1);
    let is_time = matches!(
        part,
        DatePart::Hour
            | DatePart::Minute
            | DatePart::Second
            | DatePart::Millisecond
            | DatePart::Microsecond
            | DatePart::Nanosecond
    );
    if part == DatePart::Epoch {
        return F64(match unit {
            TimeUnit::Day => value as f64 * 86_400.0,
            _ => value as f64 / second as f64,
        });
    }
    if is_time && unit == TimeUnit::Day {
        return Int(0);
    }
    if !(FIRST..=LAST).contains(&days) {
        return Null;
    }
    let date = date(days);
    let seconds = of_day / second;
    let fraction = (of_day % second) * (1_000_000_000 / second);
    let in_minute = seconds % 60 * 1_000_000_000 + fraction;
    Int(match part {
        DatePart::Year => date.year,
        DatePart::IsoYear => iso_week(days).0,
        DatePart::Quarter => (date.month + 2) / 3,
        DatePart::Month => date.month,
        DatePart::Week => iso_week(days).1,
        DatePart::Day => date.day,
        DatePart::DayOfYear => date.day_of_year,
        DatePart::DayOfWeek => (weekday(days) + 1) % 7,
        DatePart::IsoDayOfWeek => weekday(days) + 1,
        DatePart::Hour => seconds / 3600,
        DatePart::Minute => seconds / 60 % 60,
        DatePart::Second => seconds % 60,
        DatePart::Millisecond => in_minute / 1_000_000,
        DatePart::Microsecond => in_minute / 1_000,
        DatePart::Nanosecond => in_minute,
        DatePart::Epoch => 0,
    })
}

const PARTS: [DatePart; 16] = [
    DatePart::Year,
    DatePart::IsoYear,
    DatePart::Quarter,
    DatePart::Month,
    DatePart::Week,
    DatePart::Day,
    DatePart::DayOfYear,
    DatePart::DayOfWeek,
    DatePart::IsoDayOfWeek,
    DatePart::Hour,
    DatePart::Minute,
    DatePart::Second,
    DatePart::Millisecond,
    DatePart::Microsecond,
    DatePart::Nanosecond,
    DatePart::Epoch,
];

/// Days around year boundaries, leap days, cycles and the ends of the calendar.
fn interesting_days() -> Vec<i128> {
    let mut days = vec![FIRST, FIRST + 1, LAST - 1, LAST, -719_468, -719_467, -1, 0, 1, 10_957, 19_723];
    for year in [
        -262_143, -401, -400, -1, 0, 1, 4, 100, 400, 1582, 1600, 1899, 1900, 1970, 1999, 2000, 2004, 2023, 2024, 2100,
        2400, 262_142,
    ] {
        for (month, day) in [(1, 1), (1, 4), (2, 28), (3, 1), (6, 30), (10, 1), (12, 28), (12, 31)] {
            let number = day_number(year, month, day);
            days.extend([number - 1, number, number + 1, number + 2]);
        }
    }
    days.retain(|day| (FIRST..=LAST).contains(day));
    days
}

#[test]
fn the_reference_knows_known_dates() {
    assert_eq!(date(0), Date { year: 1970, month: 1, day: 1, day_of_year: 1 });
    assert_eq!(date(-1), Date { year: 1969, month: 12, day: 31, day_of_year: 365 });
    assert_eq!(date(11_016), Date { year: 2000, month: 2, day: 29, day_of_year: 60 });
    assert_eq!(day_number(1998, 9, 2), 10_471);
    assert_eq!(iso_week(day_number(2021, 1, 3)), (2020, 53));
    assert_eq!(weekday(day_number(2026, 11, 20)), 4);
}

#[test]
fn fields_of_dates() {
    let mut days = interesting_days();
    days.extend([i128::from(i32::MIN), i128::from(i32::MAX), FIRST - 1, LAST + 1]);
    // Eight years, day by day.
    days.extend(10_000..12_922);
    let cells: Vec<Cell> = days.into_iter().map(Int).chain([Null]).collect();
    let mut bench = Bench::new();
    let a = bench.column(Repr::I32, &cells);
    let roots: Vec<NodeId> =
        PARTS.iter().map(|&part| bench.graph.date_part(part, a, TimeUnit::Day).expect("a date")).collect();
    let outcome = bench.run(&roots);
    for (index, part) in PARTS.into_iter().enumerate() {
        assert_rows(&format!("{part:?}"), &[&cells], &outcome.values[index], |row| match row {
            [Int(value)] => field(part, *value, TimeUnit::Day),
            _ => Null,
        });
    }
}

#[test]
fn fields_of_timestamps_in_every_unit() {
    for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond] {
        let mut values = vec![i128::from(i64::MIN), i128::from(i64::MAX)];
        for day in interesting_days() {
            for nanos in [0, 1, 999_999_999, 59_999_999_999, 3_599_123_456_789, 43_200_000_000_000, 86_399_999_999_999]
            {
                values.push(day * per_day(unit) + nanos * per_second(unit) / 1_000_000_000);
            }
        }
        values.retain(|&value| i64::try_from(value).is_ok());
        let cells: Vec<Cell> = values.into_iter().map(Int).chain([Null]).collect();
        let mut bench = Bench::new();
        let a = bench.column(Repr::I64, &cells);
        let roots: Vec<NodeId> =
            PARTS.iter().map(|&part| bench.graph.date_part(part, a, unit).expect("a timestamp")).collect();
        let outcome = bench.run(&roots);
        for (index, part) in PARTS.into_iter().enumerate() {
            assert_rows(&format!("{part:?} in {unit:?}"), &[&cells], &outcome.values[index], |row| match row {
                [Int(value)] => field(part, *value, unit),
                _ => Null,
            });
        }
    }
}

const GRAINS: [DateGrain; 10] = [
    DateGrain::Microsecond,
    DateGrain::Millisecond,
    DateGrain::Second,
    DateGrain::Minute,
    DateGrain::Hour,
    DateGrain::Day,
    DateGrain::Week,
    DateGrain::Month,
    DateGrain::Quarter,
    DateGrain::Year,
];

/// The first tick of the period that contains `value`.
fn start(grain: DateGrain, value: i128, unit: TimeUnit) -> i128 {
    let floor = |ticks: i128| if ticks > 1 { value - value.rem_euclid(ticks) } else { value };
    let second = per_second(unit);
    let days = value.div_euclid(per_day(unit));
    let first_day = match grain {
        DateGrain::Microsecond => return floor(second / 1_000_000),
        DateGrain::Millisecond => return floor(second / 1_000),
        DateGrain::Second => return floor(second),
        DateGrain::Minute => return floor(60 * second),
        DateGrain::Hour => return floor(3600 * second),
        DateGrain::Day => return floor(per_day(unit)),
        DateGrain::Week => days - weekday(days),
        DateGrain::Month => day_number(date(days).year, date(days).month, 1),
        DateGrain::Quarter => day_number(date(days).year, (date(days).month - 1) / 3 * 3 + 1, 1),
        DateGrain::Year => day_number(date(days).year, 1, 1),
    };
    first_day * per_day(unit)
}

#[test]
fn starts_of_periods() {
    for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond] {
        let mut values = Vec::new();
        for day in interesting_days() {
            // Within the range of nanoseconds, with a year to spare.
            if day.abs() < 106_000 {
                for nanos in [0, 1, 1_234_567_891, 43_200_000_000_000, 86_399_999_999_999] {
                    values.push(day * per_day(unit) + nanos * per_second(unit) / 1_000_000_000);
                }
            }
        }
        let cells: Vec<Cell> = values.into_iter().map(Int).chain([Null]).collect();
        for ranged in [false, true] {
            let mut bench = Bench::new();
            let a = if ranged { bench.ranged(Repr::I64, &cells) } else { bench.column(Repr::I64, &cells) };
            let roots: Vec<NodeId> =
                GRAINS.iter().map(|&grain| bench.graph.date_truncate(grain, a, unit).expect("a timestamp")).collect();
            let outcome = bench.run(&roots);
            assert!(outcome.errors.iter().all(Option::is_none));
            for (index, grain) in GRAINS.into_iter().enumerate() {
                assert_rows(&format!("{grain:?} in {unit:?}"), &[&cells], &outcome.values[index], |row| match row {
                    [Int(value)] => Int(start(grain, *value, unit)),
                    _ => Null,
                });
            }
        }
    }
}

#[test]
fn periods_that_begin_before_nanoseconds_do_fail() {
    // 1677-09-21 is the first day in the range of nanoseconds; its year begins before the range.
    let cells = [Int(i128::from(i64::MIN)), Int(i128::from(i64::MIN) + 86_400_000_000_000 * 200), Int(0), Null];
    let mut bench = Bench::new();
    let a = bench.column(Repr::I64, &cells);
    let root = bench.graph.date_truncate(DateGrain::Year, a, TimeUnit::Nanosecond).expect("a timestamp");
    let outcome = bench.run(&[root]);
    let failed: Vec<bool> = outcome.errors.iter().map(Option::is_some).collect();
    assert_eq!(failed, [true, false, false, false]);
    assert_eq!(outcome.errors[0].map(|(code, _)| code), Some(ErrorCode::Cast));
}

#[test]
fn months_are_added_and_days_clamped() {
    let dates: Vec<Cell> = [
        (1970, 1, 31),
        (2000, 2, 29),
        (1999, 12, 31),
        (2024, 1, 30),
        (2023, 3, 31),
        (1900, 2, 28),
        (-4, 8, 31),
        (1600, 7, 1),
    ]
    .into_iter()
    .map(|(year, month, day)| Int(day_number(year, month, day)))
    .chain([Null])
    .collect();
    let months: Vec<Cell> =
        [0, 1, -1, 11, 12, -12, 13, 25, -25, 1_200, -4_801].into_iter().map(Int).chain([Null]).collect();
    let (left, right) = pairs(&dates, &months);
    let moved = |days: i128, months: i128| {
        let date = date(days);
        let total = date.year * 12 + date.month - 1 + months;
        let (year, month) = (total.div_euclid(12), total.rem_euclid(12) + 1);
        day_number(year, month, date.day.min(days_in(year, month)))
    };
    let mut bench = Bench::new();
    let (a, m) = (bench.column(Repr::I32, &left), bench.column(Repr::I32, &right));
    let root = bench.graph.add_months(a, m, TimeUnit::Day).expect("a date");
    let got = bench.values(root);
    assert_rows("date + months", &[&left, &right], &got, |row| match row {
        [Int(days), Int(months)] => Int(moved(*days, *months)),
        _ => Null,
    });

    let seconds: Vec<Cell> = left.iter().map(|c| if let Int(d) = c { Int(d * 86_400 + 86_399) } else { *c }).collect();
    let mut bench = Bench::new();
    let (a, m) = (bench.column(Repr::I64, &seconds), bench.column(Repr::I32, &right));
    let root = bench.graph.add_months(a, m, TimeUnit::Second).expect("a timestamp");
    let got = bench.values(root);
    assert_rows("timestamp + months", &[&seconds, &right], &got, |row| match row {
        [Int(value), Int(months)] => Int(moved(value.div_euclid(86_400), *months) * 86_400 + 86_399),
        _ => Null,
    });
}

#[test]
fn units_convert() {
    let cells: Vec<Cell> = [0, 1, -1, 86_399_999, 86_400_000, -86_400_000, -86_400_001, 1_700_000_000_123]
        .into_iter()
        .map(Int)
        .chain([Null])
        .collect();
    let mut bench = Bench::new();
    let a = bench.column(Repr::I64, &cells);
    let g = &mut bench.graph;
    let day = g.convert_time(a, TimeUnit::Millisecond, TimeUnit::Day, Overflow::Fail).expect("a timestamp");
    let second = g.convert_time(a, TimeUnit::Millisecond, TimeUnit::Second, Overflow::Fail).expect("a timestamp");
    let nano = g.convert_time(a, TimeUnit::Millisecond, TimeUnit::Nanosecond, Overflow::Null).expect("a timestamp");
    let back = g.convert_time(day, TimeUnit::Day, TimeUnit::Second, Overflow::Fail).expect("a date");
    let date64 = g.date64_to_date32(a, Overflow::Fail).expect("a date");
    assert_eq!(g.ty(day), Ty { repr: Repr::I32, nullable: true, ..g.ty(day) });
    let outcome = bench.run(&[day, second, nano, back, date64]);
    let expect = |index: usize, f: &dyn Fn(i128) -> i128| {
        assert_rows("units", &[&cells], &outcome.values[index], |row| match row {
            [Int(value)] => Int(f(*value)),
            _ => Null,
        });
    };
    expect(0, &|v| v.div_euclid(86_400_000));
    expect(1, &|v| v / 1_000);
    expect(2, &|v| v * 1_000_000);
    expect(3, &|v| v.div_euclid(86_400_000) * 86_400);
    expect(4, &|v| v / 86_400_000);
}

#[test]
fn what_no_unit_holds_is_an_error_or_null() {
    let cells = [Int(i128::from(i64::MAX)), Int(0)];
    let mut bench = Bench::new();
    let a = bench.column(Repr::I64, &cells);
    let fail =
        bench.graph.convert_time(a, TimeUnit::Second, TimeUnit::Nanosecond, Overflow::Fail).expect("a timestamp");
    let null =
        bench.graph.convert_time(a, TimeUnit::Second, TimeUnit::Nanosecond, Overflow::Null).expect("a timestamp");
    let outcome = bench.run(&[fail, null]);
    assert_eq!(outcome.errors[0].map(|(code, _)| code), Some(ErrorCode::Overflow));
    assert_eq!(outcome.values[1], [Null, Int(0)]);
}
