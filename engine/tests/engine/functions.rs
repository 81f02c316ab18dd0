//! Every scalar function with a device form, over edge values: the simulated device says what DataFusion says on the
//! CPU.
//!
//!   v: 462 rows of pairs of edges ─► SELECT id, f(…), g(…), … FROM v ─┬─► cpu ──┐
//!                                                                     └─► sim ──┴─► equal answers, nothing left to the
//!                                                                                   CPU
//!
//! Errors   expressions that the CPU refuses are refused with its words.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{
    Array, ArrayRef, BooleanArray, Date32Array, Date64Array, Decimal32Array, Decimal64Array, Decimal128Array,
    DurationMillisecondArray, DurationSecondArray, Float32Array, Float64Array, Float64Builder, Int8Array, Int16Array,
    Int32Array, Int64Array, ListBuilder, StringArray, Time32MillisecondArray, Time32SecondArray,
    Time64MicrosecondArray, Time64NanosecondArray, TimestampMicrosecondArray, TimestampMillisecondArray,
    TimestampNanosecondArray, TimestampSecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::datasource::MemTable;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::nested::nested;
use crate::support::session_with;

const ROWS: usize = 462;

/// The edges of a column, in turn: every `step`-th, so that two columns of one type meet in all pairs.
fn turns<T: Clone>(edges: &[T], step: usize) -> impl Iterator<Item = Option<T>> {
    let edges: Vec<Option<T>> = edges.iter().cloned().map(Some).chain([None]).collect();
    (0..ROWS).map(move |row| edges[row / step % edges.len()].clone())
}

/// Days of year 1, of 9999, around leap days, and before 1970.
const DAYS: [i32; 14] =
    [-719_162, 2_932_896, 0, -1, 1, 59, 11_016, 11_017, 19_782, 19_783, -25_509, 10_956, -365, 16_436];

fn table() -> RecordBatch {
    const DAY: i64 = 86_400;
    macro_rules! column {
        ($array:ty, $edges:expr, $step:expr) => {
            Arc::new(turns(&$edges, $step).collect::<$array>()) as ArrayRef
        };
    }
    macro_rules! integers {
        ($array:ty, $native:ty, $step:expr) => {
            column!($array, [<$native>::MIN, <$native>::MAX, 0, 1, 2, 5, 15, 50, 100, 127 as $native], $step)
        };
    }
    let doubles = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        1234.5678,
        -0.05,
        1e-300,
        1e300,
        f64::MAX,
        f64::MIN,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::MIN_POSITIVE,
        12.345,
    ];
    let singles: Vec<f32> = doubles.iter().map(|x| *x as f32).collect();
    let seconds: Vec<i64> = DAYS
        .iter()
        .enumerate()
        .map(|(index, day)| i64::from(*day) * DAY + [0, 1, DAY - 1, 12 * 3600 + 34 * 60 + 56][index % 4])
        .collect();
    // Nanoseconds reach from 1677 to 2262.
    let nanos: Vec<i64> =
        seconds.iter().filter(|s| s.abs() < 9_000_000_000).map(|s| s * 1_000_000_000 + 123_456_789).collect();
    let scaled = |factor: i64, rest: i64| seconds.iter().map(|s| s * factor + rest).collect::<Vec<_>>();
    let decimal = |precision: u8, scale: i8, edges: &[i128], step: usize| {
        let array = turns(edges, step).collect::<Decimal128Array>().with_precision_and_scale(precision, scale);
        Arc::new(array.expect("the precision fits")) as ArrayRef
    };
    let ten = |digits: u32| 10_i128.pow(digits);
    let d18 = [0, 1, -1, 5, -5, 49, 50, 149, 150, -150, 12_345, -99_999, 5_000_000, ten(18) - 1, 1 - ten(18)];
    let d38 = [0, 1, -1, 4_999_999_999, 5_000_000_000, -5_000_000_000, 123_456_789_012, ten(36), -ten(36), ten(37)];
    let utc = |array: TimestampMicrosecondArray| Arc::new(array.with_timezone("+00:00")) as ArrayRef;
    let narrow = Decimal32Array::from_iter(turns(&[0, 5, -5, 1_250, -99_999_999, 99_999_999], 1));
    let middle = Decimal64Array::from_iter(turns(&[0, 5, -5, 1_250, -99_999_999, 999_999_999_999], 1));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new((0..ROWS as i64).collect::<Int64Array>())),
        ("i8", integers!(Int8Array, i8, 1)),
        ("i16", integers!(Int16Array, i16, 1)),
        ("i32", integers!(Int32Array, i32, 1)),
        ("i64", integers!(Int64Array, i64, 1)),
        ("j64", integers!(Int64Array, i64, 11)),
        ("u8", integers!(UInt8Array, u8, 1)),
        ("u16", integers!(UInt16Array, u16, 1)),
        ("u32", integers!(UInt32Array, u32, 1)),
        ("u64", integers!(UInt64Array, u64, 1)),
        ("n", column!(Int64Array, [0_i64, 1, 2, 5, 12, 20, 18, -6, 35, 49], 1)),
        ("m", column!(Int64Array, [0_i64, 1, -2, 7, 12, 30, 14, -9, 36, 1 << 40], 11)),
        ("small", column!(Int32Array, [0, 1, -2, 7, 12, 30, 14, -9, 36, 100], 11)),
        ("f32", column!(Float32Array, singles, 1)),
        ("g32", column!(Float32Array, singles, 21)),
        ("f64", column!(Float64Array, doubles, 1)),
        ("g64", column!(Float64Array, doubles, 21)),
        ("unit", column!(Float64Array, [0.0, -0.0, 1.0, -1.0, 0.5, -0.25, 0.999, 1e-9, f64::NAN], 1)),
        ("x", column!(Float64Array, [0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 10.0, -7.25, 100.0, 1e-7, 20.0, 57.3], 1)),
        ("y", column!(Float64Array, [0.5, 1.0, 2.0, 3.0, -1.0, 10.0, 0.1], 13)),
        ("x32", column!(Float32Array, [0.0_f32, 1.0, -1.0, 0.5, 2.0, 3.0, 10.0, -7.25, 20.0, 1e-4], 1)),
        ("d9", Arc::new(narrow.with_precision_and_scale(9, 2).expect("the precision fits"))),
        ("d15", Arc::new(middle.with_precision_and_scale(15, 3).expect("the precision fits"))),
        ("d18", decimal(18, 4, &d18, 1)),
        ("e18", decimal(18, 4, &d18, 16)),
        ("d38", decimal(38, 10, &d38, 1)),
        ("whole", decimal(20, 0, &[0, 1, 4, 5, 9, 15, 94, 95, 99, -5, -99, ten(18), 2, 8, 1_024, 99_999], 1)),
        ("b", column!(BooleanArray, [true, false], 1)),
        ("c", column!(BooleanArray, [true, false], 3)),
        ("day", column!(Date32Array, DAYS, 1)),
        ("due", column!(Date32Array, DAYS, 15)),
        ("date64", column!(Date64Array, DAYS.map(|day| i64::from(day) * DAY * 1_000), 1)),
        ("t_s", column!(Time32SecondArray, [0, 1, 3_599, 45_296, 86_399], 1)),
        ("t_ms", column!(Time32MillisecondArray, [0, 1, 3_599_999, 45_296_789, 86_399_999], 1)),
        ("t_us", column!(Time64MicrosecondArray, [0_i64, 1, 3_599_999_999, 45_296_789_012, 86_399_999_999], 1)),
        (
            "t_ns",
            column!(Time64NanosecondArray, [0_i64, 1, 3_599_999_999_999, 45_296_789_012_345, 86_399_999_999_999], 1),
        ),
        ("ts_s", column!(TimestampSecondArray, seconds, 1)),
        ("ts_ms", column!(TimestampMillisecondArray, scaled(1_000, 789), 1)),
        ("ts_us", column!(TimestampMicrosecondArray, scaled(1_000_000, 789_012), 1)),
        ("ts_ns", column!(TimestampNanosecondArray, nanos, 1)),
        ("us_ns", column!(TimestampNanosecondArray, nanos, 15)),
        ("ts_z", utc(turns(&scaled(1_000_000, 789_012), 1).collect())),
        (
            "ts_p",
            Arc::new(turns(&scaled(1_000, 789), 1).collect::<TimestampMillisecondArray>().with_timezone("+05:30")),
        ),
        ("ns_w", Arc::new(turns(&nanos, 1).collect::<TimestampNanosecondArray>().with_timezone("-09:00"))),
        ("for_s", column!(DurationSecondArray, [0_i64, 1, -1, 86_400, -100_000_000], 1)),
        ("for_ms", column!(DurationMillisecondArray, [0_i64, 1, -1, 86_400_123, -100_000_000], 1)),
        ("s", column!(StringArray, ["", "a", "bolt", "é", "-7", "2.5", "Bolt-12", "a,b,c"].map(str::to_string), 1)),
    ];
    let columns = columns.into_iter().chain(nested_columns());
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| {
        let nullable = array.null_count() > 0;
        (name, array, nullable)
    }))
    .expect("columns have one length")
}

/// A list of integers, one of two floats, one of lists, a structure and a map.
fn nested_columns() -> [(&'static str, ArrayRef); 5] {
    let mut fl = ListBuilder::new(Float64Builder::new());
    for row in 0..ROWS {
        fl.append_option((row % 5 > 0).then(|| [Some(row as f64 % 7.0), Some(0.5)]));
    }
    let of = nested(ROWS);
    let column = |name: &str| Arc::clone(of.column_by_name(name).expect("a column"));
    [("l", column("l")), ("fl", Arc::new(fl.finish())), ("ll", column("ll")), ("st", column("st")), ("mp", column("m"))]
}

struct Pair {
    cpu: Millpond,
    sim: Millpond,
}

fn pair(fallback: Fallback) -> Pair {
    let pair = Pair {
        cpu: session_with(DeviceChoice::Cpu, 1, Fallback::Allow),
        sim: session_with(DeviceChoice::Sim, 1, fallback),
    };
    for session in [&pair.cpu, &pair.sim] {
        let batch = table();
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).expect("a batch is a table");
        session.context().register_table("v", Arc::new(table)).expect("the name is free");
    }
    pair
}

/// How the device's answer to a query differs from the CPU's; it must have run on the device alone.
async fn difference(pair: &Pair, sql: &str) -> Option<String> {
    let expected = match pair.cpu.execute(sql).await {
        Ok(expected) => expected,
        Err(error) => return Some(format!("the CPU refuses: {}", error.strip_backtrace())),
    };
    let actual = match pair.sim.execute(sql).await {
        Ok(actual) => actual,
        Err(error) => return Some(error.strip_backtrace()),
    };
    let report = &actual.report;
    if report.launches == 0 || !report.notes.is_empty() || !report.findings.is_empty() {
        return Some(format!("{} launches, notes {:?}, findings {:?}", report.launches, report.notes, report.findings));
    }
    let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
    answer(&expected).difference(&answer(&actual), false)
}

/// All expressions in a few queries; where one of those differs, its expressions one by one.
async fn agree(expressions: &[&str]) {
    let pair = pair(Fallback::Error);
    // The numbers are those at the ends of their types; `overflow.rs` is about errors.
    for session in [&pair.cpu, &pair.sim] {
        session.execute("SET millpond.integer_overflow = 'wrap'").await.expect("the option is taken");
    }
    let mut failures = Vec::new();
    for some in expressions.chunks(10) {
        let columns: Vec<String> = some.iter().enumerate().map(|(at, e)| format!("{e} AS e{at}")).collect();
        if difference(&pair, &format!("SELECT id, {} FROM v", columns.join(", "))).await.is_none() {
            continue;
        }
        for one in some {
            if let Some(said) = difference(&pair, &format!("SELECT id, {one} AS e FROM v")).await {
                failures.push(format!("{one}: {said}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} expressions differ:\n{}", failures.len(), failures.join("\n"));
}

#[tokio::test]
async fn float_functions() {
    agree(&[
        "sin(x), cos(x), tan(x), cot(x), sinh(x), cosh(x), tanh(x)",
        "sin(f64), cos(f64), tan(f64), sinh(f64), cosh(f64), tanh(f64)",
        "asin(unit), acos(unit), atan(unit), atanh(unit), asinh(unit), acosh(unit)",
        "asin(f64), acos(f64), atan(f64), acosh(f64), asinh(x), acosh(x), atanh(f64)",
        "exp(x), exp(f64), ln(f64), log2(f64), log10(f64), cbrt(f64), cbrt(x)",
        "atan2(f64, g64), atan2(x, y), atan2(f32, g32)",
        "CASE WHEN x <> 0 THEN power(x, y) END, CASE WHEN f64 <> 0 THEN power(f64, y) END, power(n, 2), power(y, 0.5)",
        "log(x), log(y, x), log(2, f64), log(f32), log(2.0, x32), log(d18), log(3, d38), log(2, whole)",
        "degrees(f64), radians(f64), degrees(f32), radians(f32), pi()",
        "sin(x32), cos(x32), tan(x32), exp(x32), ln(x32), cbrt(x32), sinh(x32), acosh(x32), asinh(x32), cot(x32)",
        "atanh(CAST(unit AS REAL)), asin(CAST(unit AS REAL)), log10(f32), log2(f32), tanh(f32)",
        "sin(i32), exp(d18 / 1000000000000), sqrt(abs(m)), cbrt(d18)",
        "CASE WHEN f64 >= 0 THEN sqrt(f64) END, sqrt(abs(f64)), sqrt(abs(f32)), sqrt(u32)",
        "signum(f64), signum(f32), signum(i64), signum(d18)",
        "isnan(f64), isnan(f32), isnan(i32), isnan(d18), iszero(f64), iszero(f32), iszero(i32), iszero(d18), iszero(u8)",
        "nanvl(f64, g64), nanvl(f32, g32), nanvl(f64, 1.5), nanvl(f64, f32)",
    ])
    .await;
}

#[tokio::test]
async fn rounding() {
    agree(&[
        "round(f64), round(f64, 0), round(f64, 2), round(f64, -1), round(f64, -2), round(f64, NULL)",
        "round(f32), round(f32, 1), round(f32, -1), round(x, 3)",
        "round(i64), round(i64, 3), round(n, -1), round(u8, -3), round(i16, -6), round(small, -1), round(u64, -30)",
        "round(d9), round(d9, 1), round(d9, 5), round(d9, -2), round(d9, -9), round(d15, 1)",
        "round(d18), round(d18, 2), round(d18, 3), round(d18, -1), round(d18, -30), round(d38), round(d38, 4)",
        "round(whole), round(whole, -1), round(whole, -2), round(whole, 2)",
        "trunc(f64), trunc(f64, 2), trunc(f64, -1), trunc(f32), trunc(f32, 1), trunc(f64, NULL), trunc(i32)",
        "trunc(d9), trunc(d9, 1), trunc(d15, 2), trunc(d18), trunc(d18, 3), trunc(d18, -2), trunc(d38, 40), trunc(d38, -40)",
        "floor(f64), ceil(f64), floor(f32), ceil(f32), floor(i32), ceil(u64)",
        "floor(d9), ceil(d9), floor(d15), ceil(d15), floor(d38), ceil(d38), floor(whole), ceil(whole)",
        "CASE WHEN abs(d18) < 10000000 THEN floor(d18) END, CASE WHEN abs(d18) < 10000000 THEN ceil(d18) END",
        "abs(f64), abs(f32), abs(d9), abs(d18), abs(d38), abs(u64), abs(n), abs(small)",
    ])
    .await;
}

#[tokio::test]
async fn integers_and_bits() {
    agree(&[
        "gcd(n, m), lcm(n, 6), gcd(n, 0), CASE WHEN abs(m) < 100 THEN lcm(n, m) END, gcd(small, n)",
        "CASE WHEN n BETWEEN 0 AND 20 THEN factorial(n) END, CASE WHEN n >= 0 AND n < 21 THEN factorial(n) END",
        "i64 & j64, i64 | j64, i64 ^ j64, i32 & 7, u8 | 3, i8 ^ 5, u64 & 255",
        "i64 << 3, i64 >> 3, i32 << small, i32 >> 2, u32 >> 5, u16 << 4, i8 >> 1, i64 << n",
        "i64 + j64, i64 - j64, i64 * j64, i32 + small, u64 + u64, i8 + i8, i16 * i16, u8 - u8",
        "n / NULLIF(m, 0), n % NULLIF(m, 0), i64 % NULLIF(n, 0), u64 / NULLIF(u8, 0), i32 % 7, f64 % NULLIF(y, 0)",
        "CASE WHEN m <> 0 THEN n / m END, CASE WHEN m = 0 THEN NULL ELSE n % m END",
        "-n, -f64, -d18, +n, - small",
    ])
    .await;
}

#[tokio::test]
async fn choice() {
    agree(&[
        "greatest(f64, g64), least(f64, g64), greatest(f32, g32, 1.0), least(f32, g32)",
        "greatest(i64, j64, 5), least(i64, j64), greatest(d18, e18), least(d18, e18, 0.5), greatest(u8, 3), least(b, c)",
        "greatest(day, due), least(day, due), greatest(ts_ns, us_ns), least(ts_s, NULL), greatest(b, c), greatest(t_us)",
        "least(NULL, i64), greatest(n, small), greatest(f64, NULL, 2.0)",
        "nullif(f64, g64), nullif(i64, j64), nullif(d18, 0.005), nullif(b, c), nullif(day, due)",
        "coalesce(f64, g64, 0), coalesce(i64, j64), nvl(i64, j64), nvl2(i64, n, m), ifnull(f64, 1.0)",
        "coalesce(NULLIF(n, 0), 12 / NULLIF(n, 0), 7), CASE WHEN n = 0 THEN 0 ELSE 100 / n END",
        "n IS NULL OR n + 1 > 5, CASE n WHEN 0 THEN -1 WHEN 1 THEN 100 ELSE 100 / n END",
        "CASE WHEN b THEN f64 WHEN c THEN g64 END, CASE i64 WHEN j64 THEN 1 WHEN NULL THEN 2 ELSE 3 END",
        "CASE f64 WHEN 0.0 THEN 'zero' WHEN 1.0 THEN 'one' END, CASE WHEN b THEN s ELSE 'none' END",
        "n IN (0, 5, 20), n NOT IN (0, NULL), f64 IN (0.0, 1.0, 'NaN'::DOUBLE), day IN (DATE '1970-01-01', due), d18 IN (0.005, 1)",
        "n BETWEEN m AND 20, f64 NOT BETWEEN -1 AND 1, day BETWEEN due AND DATE '2000-01-01'",
        "f64 IS DISTINCT FROM g64, i64 IS NOT DISTINCT FROM j64, b IS DISTINCT FROM c, d18 IS DISTINCT FROM NULL",
        "b AND c, b OR c, NOT b, b IS TRUE, b IS NOT FALSE, (b AND c) IS UNKNOWN, b = c, b < c",
    ])
    .await;
}

#[tokio::test]
async fn names_of_types() {
    agree(&[
        "arrow_typeof(i64), arrow_typeof(s), arrow_typeof(s || 'x'), arrow_typeof(d18 * 2), arrow_typeof(ts_z), arrow_typeof(NULL)",
        "arrow_typeof(n + small), arrow_typeof(CASE WHEN b THEN day END), arrow_typeof(arrow_cast(n, 'Dictionary(Int8, Int64)'))",
    ])
    .await;
    let pair = pair(Fallback::Error);
    for sql in [
        "SELECT arrow_typeof(sum(n)), sum(n), arrow_typeof(avg(d18)) FROM v",
        "SELECT arrow_typeof(max(day)) AS t, count(*) FROM v GROUP BY b",
        "SELECT arrow_typeof(n) AS t, arrow_typeof(s) AS u, count(*) FROM v GROUP BY 1, 2",
    ] {
        assert_eq!(difference(&pair, sql).await, None, "{sql}");
    }
}

#[tokio::test]
async fn fields_of_dates_and_times() {
    let parts = [
        "year",
        "isoyear",
        "quarter",
        "qtr",
        "month",
        "week",
        "day",
        "doy",
        "dow",
        "isodow",
        "hour",
        "minute",
        "second",
        "millisecond",
        "microsecond",
        "nanosecond",
        "epoch",
    ];
    let mut all = Vec::new();
    for of in ["day", "ts_s", "ts_ms", "ts_us", "ts_ns", "ts_z", "ts_p", "ns_w"] {
        all.extend(parts.iter().map(|part| format!("date_part('{part}', {of})")));
    }
    for of in ["t_s", "t_ms", "t_us", "t_ns"] {
        all.extend(parts[10..].iter().map(|part| format!("date_part('{part}', {of})")));
    }
    all.extend(parts[..13].iter().map(|part| format!("date_part('{part}', date64)")));
    all.push("extract(year FROM day)".into());
    all.push("extract(epoch FROM date64)".into());
    for grain in ["microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year"] {
        all.extend(["ts_ns", "day"].map(|of| {
            let of = if of == "day" { "CASE WHEN abs(date_part('year', day) - 1970) < 200 THEN day END" } else { of };
            format!("date_trunc('{grain}', {of})")
        }));
        let inside = |of: &str| format!("CASE WHEN abs(date_part('year', {of}) - 1970) < 200 THEN {of} END");
        all.extend(
            ["ts_s", "ts_ms", "ts_us", "ts_z", "ts_p", "ns_w"]
                .map(|of| format!("date_trunc('{grain}', {})", inside(of))),
        );
    }
    for grain in ["microsecond", "millisecond", "second", "minute", "hour"] {
        all.extend(["t_s", "t_ms", "t_us", "t_ns"].map(|of| format!("date_trunc('{grain}', {of})")));
    }
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    agree(&all).await;
}

#[tokio::test]
async fn arithmetic_of_dates_and_times() {
    agree(&[
        "day + INTERVAL '1' month, day - INTERVAL '1' month, day + INTERVAL '1 year 13 months 40 days', INTERVAL '3' day + day",
        "day + INTERVAL '25 hours', day - INTERVAL '47 hours', day + CAST(NULL AS INTERVAL)",
        "ts_s + INTERVAL '1 month 2 days 3 hours', ts_s - INTERVAL '1 second', ts_s + INTERVAL '1 nanosecond', ts_s - INTERVAL '1 nanosecond'",
        "ts_ms + INTERVAL '1.5 seconds', ts_ms - INTERVAL '2 months', ts_us + INTERVAL '5 microseconds', ts_us - INTERVAL '1 day -1 hour'",
        "ts_ns + INTERVAL '1 month', ts_ns - INTERVAL '7 nanoseconds', INTERVAL '1 hour' + ts_ns, ts_z + INTERVAL '1 month', ts_z - INTERVAL '3 hours'",
        "ts_p + INTERVAL '1 month', ts_p - INTERVAL '25 hours', ns_w + INTERVAL '2 months 3 days', ts_p - ts_p",
        "day - due, date64 - date64, ts_ns - us_ns, ts_s - ts_s, ts_ms - ts_ms",
        "ts_s + for_s, ts_s - for_s, for_s + ts_s, for_s + for_s, for_ms - for_ms, ts_ms + for_ms",
        "t_s + INTERVAL '1 hour', t_s - INTERVAL '1 nanosecond', t_ms + INTERVAL '23 hours 59 minutes', t_us - INTERVAL '3 days 1 hour', t_ns + INTERVAL '1 month'",
        "make_date(2024, 2, 29), make_date(1900 + date_part('month', day) * 4, date_part('month', day), date_part('month', due))",
        "make_date(date_part('year', day), date_part('month', day), date_part('day', day)), make_date(-5, 1, 31)",
        "make_time(date_part('hour', ts_s), date_part('minute', ts_s), date_part('second', ts_s))",
        "date_bin(INTERVAL '15 minutes', ts_ns), date_bin(INTERVAL '1 day', ts_s), date_bin(INTERVAL '7 days', ts_ms, TIMESTAMP '2001-01-01')",
        "date_bin(INTERVAL '1 month', ts_ns), date_bin(INTERVAL '5 months', ts_s), date_bin(INTERVAL '2 years', ts_ms, TIMESTAMP '1999-03-31T05:00:00')",
        "date_bin(INTERVAL '1 month', ts_us, TIMESTAMP '2000-01-31T12:00:00.5'), date_bin(INTERVAL '7 months', us_ns, TIMESTAMP '1960-02-29')",
        "date_bin(INTERVAL '3 seconds', ts_us, TIMESTAMP '1970-01-01T00:00:01'), date_bin(INTERVAL '1 nanosecond', ts_ns)",
        "to_date(small), to_date(n), to_date(u8), to_date(x), to_date(ts_s), to_date(day), to_date(d18 / 1000000000000)",
        "to_timestamp(n), to_timestamp(x), to_timestamp(f64), to_timestamp(f32), to_timestamp(us_ns)",
        "to_timestamp(CASE WHEN abs(d18) < 1000000 THEN d18 END), to_timestamp_seconds(n), to_timestamp_millis(n), to_timestamp_micros(i64), to_timestamp_nanos(i64)",
        "to_timestamp_seconds(x), to_timestamp_millis(ts_s), to_timestamp_seconds(ts_ns), to_timestamp_micros(ts_ms), to_timestamp_seconds(d18)",
        "from_unixtime(n), to_unixtime(day), to_unixtime(ts_ms), to_unixtime(ts_ns), to_unixtime(n), to_unixtime(x)",
    ])
    .await;
}

#[tokio::test]
async fn casts() {
    let numbers = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64", "d9", "d18", "d38", "whole"];
    let types = [
        "TINYINT",
        "SMALLINT",
        "INT",
        "BIGINT",
        "TINYINT UNSIGNED",
        "SMALLINT UNSIGNED",
        "INT UNSIGNED",
        "BIGINT UNSIGNED",
        "REAL",
        "DOUBLE",
        "DECIMAL(9, 2)",
        "DECIMAL(18, 6)",
        "DECIMAL(38, 10)",
        "DECIMAL(5, 0)",
    ];
    let mut all = Vec::new();
    for of in numbers {
        all.extend(types.iter().map(|ty| format!("TRY_CAST({of} AS {ty})")));
    }
    for of in ["i8", "i64", "u64", "f32", "f64"] {
        all.push(format!("CAST({of} AS BOOLEAN)"));
    }
    all.extend(["TINYINT", "BIGINT UNSIGNED", "REAL", "DOUBLE"].map(|ty| format!("CAST(b AS {ty})")));
    let arrow = [
        ("day", "Date64"),
        ("day", "Timestamp(Second, None)"),
        ("day", "Timestamp(Microsecond, None)"),
        ("day", "Int32"),
        ("day", "Int64"),
        ("day", "Timestamp(Millisecond, Some(\"+00:00\"))"),
        ("date64", "Date32"),
        ("date64", "Int64"),
        ("date64", "Timestamp(Second, None)"),
        ("date64", "Timestamp(Millisecond, None)"),
        ("small", "Date32"),
        ("small", "Date64"),
        ("small", "Time32(Second)"),
        ("n", "Date32"),
        ("n", "Date64"),
        ("n", "Time64(Microsecond)"),
        ("n", "Timestamp(Nanosecond, None)"),
        ("n", "Timestamp(Second, Some(\"+00:00\"))"),
        ("i8", "Timestamp(Second, None)"),
        ("x", "Timestamp(Second, None)"),
        ("d18", "Timestamp(Second, None)"),
        ("n", "Duration(Second)"),
        ("ts_s", "Int64"),
        ("ts_s", "Float64"),
        ("ts_ns", "Decimal128(38, 2)"),
        ("ts_s", "Date32"),
        ("ts_ns", "Date32"),
        ("ts_z", "Date32"),
        ("ts_s", "Date64"),
        ("ts_ns", "Date64"),
        ("ts_s", "Timestamp(Microsecond, None)"),
        ("ts_ns", "Timestamp(Second, None)"),
        ("ts_us", "Timestamp(Microsecond, Some(\"+00:00\"))"),
        ("ts_p", "Date32"),
        ("ts_p", "Time32(Millisecond)"),
        ("ns_w", "Date32"),
        ("ns_w", "Time64(Nanosecond)"),
        ("ts_p", "Timestamp(Microsecond, None)"),
        ("ts_p", "Timestamp(Second, Some(\"-03:00\"))"),
        ("ts_p", "Int64"),
        ("day", "Timestamp(Second, Some(\"+02:00\"))"),
        ("ts_s", "Timestamp(Second, Some(\"+02:00\"))"),
        ("ts_us", "Timestamp(Millisecond, Some(\"-0930\"))"),
        ("date64", "Timestamp(Millisecond, Some(\"+14\"))"),
        ("ts_z", "Timestamp(Microsecond, None)"),
        ("ts_z", "Timestamp(Second, Some(\"+00:00\"))"),
        ("ts_s", "Time32(Second)"),
        ("ts_ms", "Time32(Millisecond)"),
        ("ts_us", "Time64(Microsecond)"),
        ("ts_ns", "Time64(Nanosecond)"),
        ("ts_ns", "Time32(Second)"),
        ("ts_z", "Time64(Microsecond)"),
        ("t_s", "Time32(Millisecond)"),
        ("t_s", "Time64(Nanosecond)"),
        ("t_ms", "Time32(Second)"),
        ("t_ms", "Time64(Microsecond)"),
        ("t_us", "Time64(Nanosecond)"),
        ("t_ns", "Time32(Millisecond)"),
        ("t_ns", "Time64(Microsecond)"),
        ("t_s", "Int32"),
        ("t_s", "Int64"),
        ("t_ns", "Int64"),
        ("for_s", "Duration(Millisecond)"),
        ("for_ms", "Duration(Second)"),
        ("for_s", "Int64"),
        ("for_ms", "Float64"),
    ];
    all.extend(arrow.iter().map(|(of, ty)| format!("arrow_cast({of}, '{ty}')")));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    agree(&all).await;
}

#[tokio::test]
async fn strings_by_their_dictionary() {
    agree(&[
        "s LIKE 'b%', s NOT LIKE '%o%', s ILIKE 'B%', s ~ '^[a-z]+$', s !~ '[0-9]', s ~* 'BOLT'",
        "regexp_like(s, '[0-9]+'), regexp_replace(s, '[a-z]', 'x'), replace(s, 'o', '0'), upper(s), substr(s, 2, 2)",
        "CASE WHEN s LIKE 'b%' THEN upper(s) WHEN s ~ '[0-9]' THEN 'digits' ELSE s END, length(s), strpos(s, 'o')",
        "TRY_CAST(s AS INT) + 1, TRY_CAST(s AS DOUBLE), coalesce(s, 'none'), nullif(s, 'a'), split_part(s, ',', 2)",
        "(regexp_match(s, '([A-Za-z]+)-([0-9]+)'))[2], regexp_count(s, 'o'), concat(s, '-x'), s || '!', starts_with(s, 'b')",
        "greatest(s, 'b'), least(s, 'b'), CASE s WHEN 'a' THEN 1 WHEN 'bolt' THEN 2 END",
    ])
    .await;
    let pair = pair(Fallback::Error);
    for sql in [
        "SELECT replace(s, 'o', '0') AS r, count(*) FROM v GROUP BY 1",
        "SELECT CASE WHEN s LIKE '%o%' THEN 'o' ELSE 'none' END AS r, sum(n) FROM v GROUP BY 1",
        "SELECT regexp_replace(s, '[0-9]+', '#') AS r, count(*), max(f64) FROM v WHERE s ~ '[a-z]' GROUP BY 1",
        "SELECT id FROM v WHERE regexp_like(s, '^B') AND length(s) > 2",
    ] {
        assert_eq!(difference(&pair, sql).await, None, "{sql}");
    }
}

#[tokio::test]
async fn what_the_cpu_refuses_is_refused_with_its_words() {
    let pair = pair(Fallback::Allow);
    for of in [
        "sqrt(x)",
        "power(x, y - 5)",
        "factorial(n)",
        "abs(i64)",
        "abs(i8)",
        "gcd(i64, i64)",
        "lcm(i64, 3)",
        "round(i64, -1)",
        "round(u8, -1)",
        "CAST(i64 AS INT)",
        "CAST(f64 AS BIGINT)",
        "CAST(d38 AS DECIMAL(9, 2))",
        "CAST(d18 AS TINYINT)",
        "n / m",
        "n % m",
        "u8 / (u8 - u8)",
        "d18 / (e18 - e18)",
        "make_date(2023, small, 1)",
        "make_date(2023, 2, 20 + small)",
        "make_time(small, 0, 0)",
        "day + INTERVAL '300000' year",
        "ts_ns + INTERVAL '300' year",
        "to_date(i64)",
        "to_timestamp(i64)",
        "to_timestamp(d38)",
        "arrow_cast(i64, 'Duration(Second)') + arrow_cast(j64, 'Duration(Second)')",
        "ts_s + INTERVAL '300000' year",
        "date_trunc('month', ts_s)",
        "arrow_typeof(1 / (n - n))",
        "-arrow_cast(i64, 'Decimal128(38, 0)') * d38 * d38",
        "coalesce(NULLIF(n, 12), 1 / (n - n))",
        "CASE WHEN n > 5 THEN 1 / (n - n) ELSE 0 END",
        "nanvl(f64, 1 / (n - n))",
    ] {
        let sql = format!("SELECT id, {of} FROM v");
        let said = |result: millpond::datafusion::error::Result<millpond::session::QueryResult>| {
            result.map(|_| ()).map_err(|error| error.strip_backtrace())
        };
        let (cpu, sim) = (said(pair.cpu.execute(&sql).await), said(pair.sim.execute(&sql).await));
        assert!(cpu.is_err(), "the CPU answers {of}");
        assert_eq!(sim, cpu, "{of}");
    }
}

/// The rows of a table in `docs/functions.md`: function, where it runs, an example.
fn documented() -> Vec<(String, String, String)> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/functions.md");
    let text = std::fs::read_to_string(path).expect("docs/functions.md is there");
    let cell = |cell: &str| cell.trim().trim_matches('`').to_string();
    text.lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            // A bar inside an example is escaped.
            let line = line.replace("\\|", "\u{1}");
            let cells: Vec<String> = line.trim_matches('|').split('|').map(|c| cell(c).replace('\u{1}', "|")).collect();
            let [function, place, example] = cells.as_slice() else { panic!("three cells: {line}") };
            (function.clone(), place.clone(), example.clone())
        })
        .collect()
}

#[tokio::test]
async fn the_table_of_functions_is_true() {
    let pair = pair(Fallback::Error);
    let mut wrong = Vec::new();
    let rows = documented();
    for (function, place, example) in &rows {
        if example.is_empty() && place == "CPU" {
            continue;
        }
        let sql = format!("SELECT id, {example} AS e FROM v");
        let planned = match pair.sim.context().sql(&sql).await {
            Ok(frame) => frame.create_physical_plan().await,
            Err(error) => {
                wrong.push(format!("{function}: {}", error.strip_backtrace()));
                continue;
            }
        };
        let refused = planned.as_ref().err().map(|error| error.strip_backtrace());
        match (place.as_str(), refused) {
            ("device" | "dictionary" | "constant", None) | ("CPU", Some(_)) => {}
            (_, Some(reason)) => wrong.push(format!("{function}: {example} is refused: {reason}")),
            (_, None) => wrong.push(format!("{function}: {example} runs on the device")),
        }
    }
    let listed: std::collections::BTreeSet<&str> = rows.iter().map(|(function, ..)| function.as_str()).collect();
    let state = pair.cpu.context().state();
    let known: std::collections::BTreeSet<&str> =
        state.scalar_functions().values().map(|function| function.name()).collect();
    let missing: Vec<&&str> = known.difference(&listed).collect();
    assert!(missing.is_empty(), "not in docs/functions.md: {missing:?}");
    assert!(wrong.is_empty(), "{} rows are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
