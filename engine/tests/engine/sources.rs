//! Rows from anywhere: tables in memory with sliced and empty batches, CSV, views, values; types that no file here has.
//!
//!   MemTable · CSV · view · VALUES ──► UploadExec ──► the same kernels, the same answers

use std::sync::Arc;

use millpond::datafusion::arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Date64Array, Decimal32Array, Decimal64Array, DictionaryArray,
    DurationMicrosecondArray, FixedSizeBinaryArray, Float64Array, Int32Array, Int64Array, IntervalDayTimeArray,
    IntervalMonthDayNanoArray, IntervalYearMonthArray, NullArray, RunArray, StringArray, StringViewArray,
    Time32MillisecondArray, Time64NanosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    TimestampSecondArray,
};
use millpond::datafusion::arrow::datatypes::{Int8Type, Int32Type, IntervalDayTime, IntervalMonthDayNano};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::datasource::MemTable;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::{Answer, orders_its_rows};
use crate::edges::edges;
use crate::support::session_with;

/// A session on the CPU and one on the device alone, over the same tables.
fn sessions(tables: &[(&str, Vec<Vec<RecordBatch>>)], fallback: Fallback) -> (Millpond, Millpond) {
    let cpu = session_with(DeviceChoice::Cpu, 3, Fallback::Allow);
    let sim = session_with(DeviceChoice::Sim, 3, fallback);
    for (name, partitions) in tables {
        let schema = partitions[0][0].schema();
        for session in [&cpu, &sim] {
            let table = MemTable::try_new(Arc::clone(&schema), partitions.clone()).expect("batches have the schema");
            session.context().register_table(*name, Arc::new(table)).expect("registered");
        }
    }
    (cpu, sim)
}

async fn same(cpu: &Millpond, sim: &Millpond, sql: &str) {
    let expected = cpu.execute(sql).await.unwrap_or_else(|error| panic!("{sql} on the CPU: {error}"));
    let actual = sim.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let answer = |result: &millpond::QueryResult| Answer::new(&result.schema, &result.batches);
    assert_eq!(answer(&expected).difference(&answer(&actual), orders_its_rows(sql)), None, "{sql}");
    assert!(actual.report.launches > 0, "{sql}: no launch; {:?}", actual.report.reasons);
    assert_eq!(actual.report.findings, Vec::<String>::new(), "{sql}");
    assert_eq!(actual.report.notes, Vec::<String>::new(), "{sql}");
    assert_eq!(actual.report.pool_used_bytes, 0, "{sql}");
}

#[tokio::test]
async fn batches_that_begin_at_any_row() {
    let whole = edges();
    let mut partitions = vec![vec![], vec![], vec![]];
    let mut from = 0;
    // Lengths around a byte and a word of a bitmap, and none at all.
    for (index, rows) in [0, 1, 7, 8, 9, 31, 0, 33, 63, 64, 65, 129, 511, 1_000].into_iter().cycle().enumerate() {
        if from == whole.num_rows() {
            break;
        }
        let rows = rows.min(whole.num_rows() - from);
        partitions[index % 3].push(whole.slice(from, rows));
        from += rows;
    }
    let (cpu, sim) = sessions(&[("t", partitions)], Fallback::Error);
    for sql in [
        "SELECT * FROM t WHERE k > 3",
        "SELECT b, s, count(*), sum(d9), min(x), max(i64) FROM t GROUP BY b, s",
        "SELECT sum(d38), count(nothing), max(day), min(ts_ns), count(*) FILTER (WHERE c) FROM t WHERE id <> 17",
        "SELECT upper(l), b AND c, CAST(i8 AS INT) + i16 FROM t WHERE id > 3",
    ] {
        same(&cpu, &sim, sql).await;
    }
}

#[tokio::test]
async fn tables_without_rows() {
    let none = edges().slice(0, 0);
    let (cpu, sim) =
        sessions(&[("t", vec![vec![none.clone()], vec![]]), ("one", vec![vec![edges().slice(5, 1)]])], Fallback::Error);
    for sql in [
        "SELECT sum(k), count(*), count(s), max(day) FROM t",
        "SELECT k, count(*) FROM t GROUP BY k",
        "SELECT id + 1 FROM t WHERE k > 3",
        "SELECT id FROM t WHERE k > 3 ORDER BY k",
    ] {
        // Empty inputs need no launch.
        let expected = cpu.execute(sql).await;
        let Ok(expected) = expected else { continue };
        let actual = sim.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let answer = |result: &millpond::QueryResult| Answer::new(&result.schema, &result.batches);
        assert_eq!(answer(&expected).difference(&answer(&actual), false), None, "{sql}");
        assert_eq!(actual.report.findings, Vec::<String>::new(), "{sql}");
        assert_eq!(sim.pool_used_bytes(), 0, "{sql}");
    }
    same(&cpu, &sim, "SELECT sum(i32), count(*), max(x) FROM one WHERE id >= 0").await;
    same(&cpu, &sim, "SELECT s, count(*) FROM one GROUP BY s").await;
}

fn odd_types() -> RecordBatch {
    let rows = 0..900_i64;
    let valid = |every: i64| move |row: i64| row % every != 0;
    macro_rules! column {
        ($array:ty, $every:literal, $value:expr) => {
            rows.clone().map(|row| valid($every)(row).then(|| $value(row))).collect::<$array>()
        };
    }
    let words = ["x", "yy", "zzz", ""];
    let text = |row: i64| words[row as usize % 4];
    let bytes: Vec<Option<&[u8]>> =
        rows.clone().map(|row| valid(5)(row).then_some([&b"\x00\xff"[..], b"", b"abc"][row as usize % 3])).collect();
    let dictionary: DictionaryArray<Int8Type> = rows.clone().map(|row| valid(4)(row).then_some(text(row))).collect();
    let decimal32 = column!(Decimal32Array, 7, |row: i64| (row % 1_000 - 500) as i32);
    let decimal64 = column!(Decimal64Array, 8, |row: i64| (row - 450) * 1_000_000_007);
    RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(rows.clone().collect::<Int64Array>()) as ArrayRef, false),
        ("t32", Arc::new(column!(Time32MillisecondArray, 3, |row: i64| (row * 95_000 % 86_400_000) as i32)) as _, true),
        (
            "t64",
            Arc::new(column!(Time64NanosecondArray, 4, |row: i64| row * 95_999_999_999 % 86_400_000_000_000)) as _,
            true,
        ),
        ("d64", Arc::new(column!(Date64Array, 5, |row: i64| (row - 400) * 86_400_000)) as _, true),
        ("span", Arc::new(column!(DurationMicrosecondArray, 6, |row: i64| (row - 450) * 1_234_567)) as _, true),
        ("small", Arc::new(decimal32.with_precision_and_scale(5, 2).expect("fits")) as _, true),
        ("middle", Arc::new(decimal64.with_precision_and_scale(18, 3).expect("fits")) as _, true),
        ("txt", Arc::new(column!(StringViewArray, 9, |row: i64| text(row).repeat(6))) as _, true),
        ("bytes", Arc::new(BinaryArray::from(bytes)) as _, true),
        ("word", Arc::new(dictionary) as _, true),
        ("flag", Arc::new(column!(BooleanArray, 3, |row: i64| row % 2 == 0)) as _, true),
    ])
    .expect("columns have one length")
}

#[tokio::test]
async fn types_that_only_tables_in_memory_have() {
    let batch = odd_types();
    let (cpu, sim) = sessions(&[("o", vec![vec![batch.slice(0, 301)], vec![batch.slice(301, 599)]])], Fallback::Error);
    for sql in [
        "SELECT * FROM o WHERE id % 3 = 1",
        "SELECT word, count(*), count(bytes), count(txt) FROM o GROUP BY word",
        "SELECT txt, flag, count(*) FROM o GROUP BY txt, flag",
        "SELECT id, upper(word), length(txt), word = 'yy', txt LIKE 'z%' FROM o WHERE id > 3",
        "SELECT min(t32), max(t64), min(d64), max(span), count(d64) FROM o",
        "SELECT t32, count(*) FROM o GROUP BY t32",
        "SELECT id FROM o WHERE bytes = X'616263' OR t64 < TIME '01:00:00'",
        "SELECT id, word FROM o WHERE id < 800 ORDER BY word DESC NULLS LAST, txt NULLS FIRST, id",
    ] {
        same(&cpu, &sim, sql).await;
    }
    // Narrow decimals may stay on the CPU, and their answers are the same.
    let (cpu, sim) = sessions(&[("o", vec![vec![batch]])], Fallback::Allow);
    for sql in [
        "SELECT min(small), max(middle), count(small) FROM o",
        "SELECT sum(small), sum(middle), avg(small) FROM o WHERE id > 4",
        "SELECT id, small + 1, middle * 2 FROM o WHERE small > 0",
        "SELECT flag, sum(small) FROM o WHERE id > 3 GROUP BY flag",
    ] {
        let expected = cpu.execute(sql).await.unwrap_or_else(|error| panic!("{sql} on the CPU: {error}"));
        let actual = sim.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let answer = |result: &millpond::QueryResult| Answer::new(&result.schema, &result.batches);
        assert_eq!(answer(&expected).difference(&answer(&actual), false), None, "{sql}");
        assert_eq!(sim.pool_used_bytes(), 0, "{sql}");
    }
}

/// Values in dictionaries and runs, strings of one length, bare NULLs, intervals.
fn wrapped_types() -> RecordBatch {
    let rows = 0..700_i64;
    let valid = |row: i64, every: i64| row % every != 0;
    // NULL as a key, and as a value.
    let keys = |values: i32| rows.clone().map(move |row| valid(row, 11).then_some((row * 7 % 37) as i32 % values));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(5), None, Some(-9), Some(1 << 40), Some(0)]));
    let words: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("é"), Some("longer than twelve")]));
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]));
    let dates: ArrayRef = Arc::new(Date32Array::from(vec![Some(-5), None, Some(12_345)]));
    let dictionary = |values: &ArrayRef| {
        let keys = keys(values.len() as i32).collect::<Int32Array>();
        Arc::new(DictionaryArray::try_new(keys, Arc::clone(values)).expect("keys are places")) as ArrayRef
    };
    let runs = |values: &ArrayRef| {
        let ends: Int32Array = (1..=values.len() as i32).map(|run| 700 * run / values.len() as i32).collect();
        Arc::new(RunArray::<Int32Type>::try_new(&ends, values).expect("ends ascend")) as ArrayRef
    };
    let fixed = rows.clone().map(|row| valid(row, 6).then_some([row as u8 % 5, 0xff, row as u8 % 3]));
    let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed, 3).expect("three bytes each");
    let months =
        rows.clone().map(|row| valid(row, 5).then_some(row as i32 % 29 - 14)).collect::<IntervalYearMonthArray>();
    let days = rows.clone().map(|row| {
        valid(row, 7)
            .then_some(IntervalDayTime::new(row as i32 % 5 - 2, [0, -1, 86_400_000, i32::MIN][row as usize % 4]))
    });
    let all = rows.clone().map(|row| {
        let nanoseconds = [0, -1, i64::MAX, i64::MIN, 1_500][row as usize % 5];
        let (months, days) = ([0, 1, -1, i32::MAX][row as usize % 4], [30, -30, i32::MIN][row as usize % 3]);
        valid(row, 9).then_some(IntervalMonthDayNano::new(months, days, nanoseconds))
    });
    RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(rows.clone().collect::<Int64Array>()) as ArrayRef, false),
        ("n", dictionary(&numbers), true),
        ("w", dictionary(&words), true),
        ("rn", runs(&numbers), true),
        ("rw", runs(&words), true),
        ("b", runs(&flags), true),
        ("day", dictionary(&dates), true),
        ("fix", Arc::new(fixed) as _, true),
        ("nothing", Arc::new(NullArray::new(700)) as _, true),
        ("ym", Arc::new(months) as _, true),
        ("dt", Arc::new(days.collect::<IntervalDayTimeArray>()) as _, true),
        ("mdn", Arc::new(all.collect::<IntervalMonthDayNanoArray>()) as _, true),
    ])
    .expect("columns have one length")
}

#[tokio::test]
async fn values_in_dictionaries_runs_and_fixed_lengths() {
    let batch = wrapped_types();
    let (cpu, sim) = sessions(&[("o", vec![vec![batch.slice(0, 301)], vec![batch.slice(301, 399)]])], Fallback::Error);
    for sql in [
        "SELECT * FROM o WHERE id % 3 = 1",
        "SELECT n, count(*), count(w), count(n), count(rn) FROM o GROUP BY n",
        "SELECT w, count(*), min(n), max(arrow_cast(rn, 'Int64')), sum(n), avg(n), count(DISTINCT n) FROM o GROUP BY w",
        "SELECT id, n + 1, n > 0, n IS NULL, w IS NULL, w || '!', upper(w), w LIKE 'a%', arrow_typeof(n), arrow_typeof(w) FROM o",
        "SELECT fix, count(*), min(ym), max(ym), min(dt), max(dt), min(mdn), max(mdn) FROM o GROUP BY fix",
        "SELECT min(fix), max(fix), count(fix), count(DISTINCT fix), count(nothing) FROM o",
        "SELECT id, fix = X'02ff02', fix < X'03', arrow_typeof(fix), fix IN (X'02ff02', X'00ff00') FROM o",
        "SELECT a.id, b.id FROM o a JOIN o b ON a.fix = b.fix AND a.n = b.n AND a.id < 90 AND b.id < 60",
        "SELECT ym, dt, count(*) FROM o GROUP BY ym, dt",
        "SELECT b, nothing, count(*), min(arrow_cast(b, 'Boolean')), max(n), count(day) FROM o GROUP BY b, nothing",
        "SELECT day, count(*), min(id) FROM o WHERE day > DATE '1960-01-01' GROUP BY day",
        "SELECT sum(mdn), sum(dt), sum(ym) FROM o",
        "SELECT mdn, count(*) FROM o GROUP BY mdn",
        "SELECT id, mdn FROM o ORDER BY mdn DESC NULLS LAST, dt NULLS FIRST, ym, id",
        "SELECT id, n, fix FROM o ORDER BY n, fix DESC, id LIMIT 50",
        "SELECT id FROM o WHERE mdn > INTERVAL '1 month' OR (dt IS DISTINCT FROM arrow_cast('1 day', 'Interval(DayTime)')) AND ym = arrow_cast('3 months', 'Interval(YearMonth)')",
        "SELECT id, mdn IN (INTERVAL '30 days', INTERVAL '1 month'), CASE WHEN id > 9 THEN mdn END, arrow_typeof(mdn) FROM o",
        "SELECT a.id, b.id FROM o a JOIN o b ON a.mdn = b.mdn WHERE a.id < 40 AND b.id < 30",
        "SELECT nothing, count(*), count(nothing) FROM o GROUP BY nothing",
        "SELECT id, nothing IS NULL, coalesce(nothing, id), CASE nothing WHEN 'a' THEN 0 ELSE 1 END FROM o WHERE id > 3",
        "SELECT id, nothing FROM o ORDER BY nothing, id DESC LIMIT 9",
        "SELECT rn, rw FROM o WHERE id % 50 = 3",
        "SELECT rw, count(*), sum(id) FROM o GROUP BY rw",
    ] {
        same(&cpu, &sim, sql).await;
    }
}

#[tokio::test]
async fn sums_with_intervals_of_a_column() {
    let rows = 0..600_i64;
    let valid = |row: i64, every: i64| row % every != 0;
    let seconds = |row: i64| (row * 7_919_333 % 4_000_000_000) - 1_500_000_000;
    let stamps = rows.clone().map(|row| valid(row, 13).then(|| seconds(row)));
    let nanos = rows.clone().map(|row| valid(row, 8).then(|| seconds(row) * 1_000_000_000 + row * 999_983));
    let millis = rows.clone().map(|row| Some(seconds(row) * 1_000 + row));
    let pick = |row: i64, by: i64, of: &[i64]| of[(row / by) as usize % of.len()];
    let all = rows.clone().map(|row| {
        let months = pick(row, 1, &[0, 1, -1, 13, -27, 600]) as i32;
        let days = pick(row, 6, &[0, 31, -30, 400, -1]) as i32;
        let nanoseconds = pick(row, 30, &[0, -1, 86_400_000_000_001, -93_600_000_000_000, 1_500]);
        valid(row, 9).then_some(IntervalMonthDayNano::new(months, days, nanoseconds))
    });
    let days = rows.clone().map(|row| {
        valid(row, 7).then_some(IntervalDayTime::new(row as i32 % 50 - 20, pick(row, 3, &[0, -1, 90_000_000]) as i32))
    });
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(rows.clone().collect::<Int64Array>()) as ArrayRef, false),
        (
            "day",
            Arc::new(rows.clone().map(|row| Some((row * 131 % 40_000) as i32 - 9_000)).collect::<Date32Array>()) as _,
            true,
        ),
        ("ts_s", Arc::new(stamps.collect::<TimestampSecondArray>()) as _, true),
        ("ts_z", Arc::new(millis.collect::<TimestampMillisecondArray>().with_timezone("+05:30")) as _, true),
        ("ts_ns", Arc::new(nanos.collect::<TimestampNanosecondArray>()) as _, true),
        (
            "ym",
            Arc::new(
                rows.clone()
                    .map(|row| valid(row, 5).then_some(row as i32 % 29 - 14))
                    .collect::<IntervalYearMonthArray>(),
            ) as _,
            true,
        ),
        ("dt", Arc::new(days.collect::<IntervalDayTimeArray>()) as _, true),
        ("mdn", Arc::new(all.collect::<IntervalMonthDayNanoArray>()) as _, true),
    ])
    .expect("columns have one length");
    let (cpu, sim) = sessions(&[("o", vec![vec![batch]])], Fallback::Error);
    for sql in [
        "SELECT id, day + mdn, day - mdn, mdn + day, day + ym, day - ym, day + dt, day - dt FROM o",
        "SELECT id, ts_s + mdn, ts_s - mdn, mdn + ts_s, ts_s + ym, ts_s - dt, ts_ns + mdn, ts_ns - mdn, ts_ns - ym FROM o",
        "SELECT id, ts_z + mdn, ts_z - mdn, ts_z + ym, ts_z - dt FROM o",
        "SELECT id, mdn + INTERVAL '1 month 3 days', mdn - mdn, -mdn, mdn + mdn, dt + dt, -dt, dt - dt, ym + ym, -ym FROM o",
        "SELECT id FROM o WHERE ts_ns + mdn > TIMESTAMP '2020-01-01' AND mdn - INTERVAL '1 month' < INTERVAL '1 year'",
        "SELECT id % 7, sum(mdn), sum(dt), sum(ym), sum(DISTINCT mdn), sum(ym) FILTER (WHERE id > 300) FROM o GROUP BY 1",
        "SELECT sum(mdn), sum(dt), sum(ym), sum(-dt), sum(mdn) FILTER (WHERE id < 0), arrow_typeof(sum(mdn)) FROM o",
        "SELECT mdn + mdn AS twice, count(*), min(ts_s + mdn) FROM o GROUP BY 1",
    ] {
        same(&cpu, &sim, sql).await;
    }
    // Overflow is refused with DataFusion's message.
    let (cpu, sim) = sessions(&[("o", vec![vec![wrapped_types()]])], Fallback::Allow);
    for sql in
        ["SELECT -mdn FROM o", "SELECT mdn + mdn FROM o", "SELECT DATE '2000-01-01' + mdn FROM o", "SELECT -dt FROM o"]
    {
        let said = |result: millpond::datafusion::error::Result<millpond::QueryResult>| {
            result.map(|_| ()).map_err(|error| error.strip_backtrace())
        };
        let (cpu, sim) = (said(cpu.execute(sql).await), said(sim.execute(sql).await));
        assert!(cpu.is_err(), "the CPU answers {sql}");
        assert_eq!(sim, cpu, "{sql}");
    }
}

#[tokio::test]
async fn strings_of_many_values() {
    let rows = 0..30_000_i64;
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(rows.clone().collect::<Int64Array>()) as ArrayRef, false),
        (
            "s",
            Arc::new(
                rows.clone()
                    .map(|r| (r % 97 != 0).then(|| format!("value {}", r * 7_919 % 21_001)))
                    .collect::<StringArray>(),
            ) as _,
            true,
        ),
        ("x", Arc::new(rows.map(|r| (r % 1_000) as f64).collect::<Float64Array>()) as _, false),
    ])
    .expect("columns have one length");
    let parts = vec![vec![batch.slice(0, 10_001)], vec![batch.slice(10_001, 19_999)]];
    let (cpu, sim) = sessions(&[("m", parts)], Fallback::Error);
    same(&cpu, &sim, "SELECT s, count(*), sum(x), min(id) FROM m GROUP BY s").await;
    same(&cpu, &sim, "SELECT count(*) FROM m WHERE s = 'value 77' OR s = 'nowhere'").await;
    same(&cpu, &sim, "SELECT s, id FROM m WHERE x > 990").await;
    // A function of that many values may be the CPU's.
    let (cpu, sim) = sessions(&[("m", vec![vec![batch]])], Fallback::Allow);
    let sql = "SELECT id, upper(s) FROM m WHERE s LIKE '%77%'";
    let expected = cpu.execute(sql).await.expect("rows");
    let actual = sim.execute(sql).await.expect("rows");
    let answer = |result: &millpond::QueryResult| Answer::new(&result.schema, &result.batches);
    assert_eq!(answer(&expected).difference(&answer(&actual), false), None);
    assert_eq!(sim.pool_used_bytes(), 0);
}

#[tokio::test]
async fn views_values_and_csv() {
    let (cpu, sim) = sessions(&[("t", vec![vec![edges()]])], Fallback::Error);
    let folder = tempfile::tempdir().expect("a folder");
    let csv = folder.path().join("people.csv");
    let lines: String = (0..500).map(|i| format!("{i},{},name {},{}.5\n", i % 7, i % 11, i % 13)).collect();
    std::fs::write(&csv, format!("id,grp,name,score\n{lines}900,,,\n")).expect("written");
    for session in [&cpu, &sim] {
        let sql = "CREATE VIEW v AS SELECT k, d9 * 2 AS twice, s FROM t WHERE id > 100";
        session.context().sql(sql).await.expect("a view").collect().await.expect("made");
        let path = csv.to_str().expect("a UTF-8 path");
        session.context().register_csv("people", path, Default::default()).await.expect("registered");
    }
    for sql in [
        "SELECT s, sum(twice), count(*) FROM v WHERE k <> 0 GROUP BY s",
        "SELECT grp, name, count(*), sum(score), avg(id) FROM people GROUP BY grp, name",
        "SELECT id, upper(name), score * 2 FROM people WHERE grp = 3 OR name IS NULL",
    ] {
        same(&cpu, &sim, sql).await;
    }
    for sql in ["SELECT 1 + 1", "SELECT * FROM (VALUES (1, 'a'), (NULL, 'b')) AS v(x, y)", "SELECT now() IS NULL"] {
        let expected = cpu.execute(sql).await.expect("rows");
        let actual = sim.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let answer = |result: &millpond::QueryResult| Answer::new(&result.schema, &result.batches);
        assert_eq!(answer(&expected).difference(&answer(&actual), false), None, "{sql}");
    }
}
