//! Skew and edges: inputs that break joins, groups and sorts elsewhere.
//!
//!   one key in nine rows of ten · nothing but NULL · no build side · 10⁵ × 10⁵ rows under a LIMIT · decimals that
//!   overflow
//!   texts of 0, 12, 13 bytes and 1 MiB · outputs polled late, never, or dropped · two of these at once
//!
//! Expected  answers and failures are DataFusion's, on the CPU.

use std::sync::Arc;

use futures::StreamExt;
use millpond::datafusion::arrow::array::{ArrayRef, AsArray, Decimal128Array, Int32Array, Int64Array, StringArray};
use millpond::datafusion::arrow::datatypes::Int64Type;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::error::DataFusionError;
use millpond::datafusion::physical_plan::ExecutionPlanProperties;
use millpond::{DeviceChoice, Fallback, Millpond, QueryResult};

use crate::answers::{Answer, orders_its_rows};
use crate::support::{session_with, until};

/// The same tables with a device and without one.
struct Pair {
    cpu: Millpond,
    sim: Millpond,
}

impl Pair {
    fn new(tables: &[(&str, &RecordBatch)]) -> Self {
        let pair = Self {
            cpu: session_with(DeviceChoice::Cpu, 3, Fallback::Allow),
            sim: session_with(DeviceChoice::Sim, 3, Fallback::Allow),
        };
        for session in [&pair.cpu, &pair.sim] {
            for (name, rows) in tables {
                let half = rows.num_rows() / 2;
                let parts = vec![vec![rows.slice(0, half)], vec![rows.slice(half, rows.num_rows() - half)]];
                let table = MemTable::try_new(rows.schema(), parts).expect("batches have the schema");
                session.context().register_table(*name, Arc::new(table)).expect("registered");
            }
        }
        pair
    }

    /// Both return the same rows, or fail with the same message; the device launches kernels and leaves nothing behind.
    async fn same(&self, sql: &str) -> Option<QueryResult> {
        let expected = self.cpu.execute(sql).await;
        let actual = self.sim.execute(sql).await;
        settled(&self.sim, sql).await;
        match (expected, actual) {
            (Ok(expected), Ok(actual)) => {
                let ordered = orders_its_rows(sql);
                assert_eq!(answer(&expected).difference(&answer(&actual), ordered), None, "{sql}");
                assert_eq!(actual.report.findings, Vec::<String>::new(), "{sql}");
                assert!(actual.report.launches > 0, "{sql}: {:?}", actual.report);
                Some(actual)
            }
            (Err(expected), Err(actual)) => {
                // Which of several rows fails first is chance: their numbers are left out.
                let words = |error: DataFusionError| {
                    let text = error.strip_backtrace();
                    text.chars().filter(|letter| !letter.is_ascii_digit() && *letter != '-').collect::<String>()
                };
                assert_eq!(words(expected), words(actual), "{sql}");
                None
            }
            (expected, actual) => {
                let words = |result: millpond::datafusion::error::Result<QueryResult>| {
                    result.map_or_else(
                        |error| error.strip_backtrace(),
                        |result| format!("{} batches", result.batches.len()),
                    )
                };
                panic!("{sql}: {} on the CPU, {} on the device", words(expected), words(actual))
            }
        }
    }
}

fn answer(result: &QueryResult) -> Answer {
    Answer::new(&result.schema, &result.batches)
}

/// Waits until nothing of a query is left in the pool.
async fn settled(session: &Millpond, what: &str) {
    until(&format!("{what}: giving bytes of the pool back"), || session.pool_used_bytes() == 0).await;
    let findings = session.engine().expect("a device").take_findings();
    assert_eq!(findings, Vec::<String>::new(), "{what}");
}

/// `rows` rows (k, t, v): keys by number, a text of the key, and the row's number.
fn keyed(rows: i64, key: impl Fn(i64) -> Option<i32>) -> RecordBatch {
    let keys: Vec<Option<i32>> = (0..rows).map(key).collect();
    let texts = keys.iter().map(|key| key.map(|key| format!("key number {key:06}"))).collect::<StringArray>();
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("k", Arc::new(Int32Array::from(keys)), true),
        ("t", Arc::new(texts), true),
        ("v", Arc::new((0..rows).collect::<Int64Array>()), false),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns have one length")
}

/// Nine rows of ten have one key; the others have one each.
fn skewed(rows: i64) -> RecordBatch {
    keyed(rows, |row| Some(if row % 10 == 0 { row as i32 + 1 } else { 7 }))
}

const JOINS: [&str; 8] = [
    "SELECT a.k, a.v, b.v FROM a JOIN b ON a.k = b.k",
    "SELECT a.k, a.v, b.v FROM a LEFT JOIN b ON a.k = b.k",
    "SELECT a.k, a.v, b.k, b.v FROM a RIGHT JOIN b ON a.k = b.k",
    "SELECT a.k, a.v, b.k, b.v FROM a FULL JOIN b ON a.k = b.k",
    "SELECT a.k, a.v FROM a WHERE a.k IN (SELECT k FROM b)",
    "SELECT a.k, a.v FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k)",
    "SELECT a.k, a.v FROM a WHERE a.k NOT IN (SELECT k FROM b)",
    "SELECT a.k, b.v FROM a JOIN b ON (a.k IS NOT DISTINCT FROM b.k) AND a.v <> b.v",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nine_rows_of_ten_with_one_key() {
    let pair = Pair::new(&[("a", &skewed(20_000)), ("b", &keyed(50, |row| Some(row as i32))), ("c", &skewed(300))]);
    for sql in [
        "SELECT count(*), sum(a.v), sum(b.v) FROM a JOIN b ON a.k = b.k",
        "SELECT a.k, count(*), sum(b.v) FROM a LEFT JOIN b ON a.k = b.k GROUP BY a.k",
        "SELECT b.k, count(a.v), max(a.v) FROM b LEFT JOIN a ON a.k = b.k GROUP BY b.k",
        "SELECT k, count(*), sum(v), min(t) FROM a GROUP BY k ORDER BY k LIMIT 20",
        "SELECT t, count(*), sum(v) FROM a GROUP BY t ORDER BY count(*) DESC, t LIMIT 20",
        "SELECT k, v FROM a ORDER BY k, v DESC LIMIT 10 OFFSET 15000",
        "SELECT k, v FROM a ORDER BY t DESC, v LIMIT 30",
        "SELECT count(*) FROM a WHERE k IN (SELECT k FROM b)",
        // 270 × 270 rows of one key.
        "SELECT x.k, count(*), sum(x.v * y.v) FROM c x JOIN c y ON x.k = y.k GROUP BY x.k",
        "SELECT x.t, count(*), sum(x.v - y.v) FROM c x FULL JOIN c y ON x.t = y.t AND x.v < y.v GROUP BY x.t",
    ] {
        pair.same(sql).await;
    }
}

impl Pair {
    async fn every_join(&self) {
        for sql in JOINS {
            self.same(sql).await;
        }
        self.same("SELECT count(*), count(a.k), count(b.k) FROM a FULL JOIN b ON a.t = b.t").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_all_null() {
    let (null, few) = (keyed(400, |_| None), keyed(300, |row| Some((row % 9) as i32)));
    Pair::new(&[("a", &null), ("b", &few)]).every_join().await;
    Pair::new(&[("a", &few), ("b", &null)]).every_join().await;
    let (small, smaller) = (null.slice(0, 40), null.slice(0, 20));
    let pair = Pair::new(&[("a", &small), ("b", &smaller)]);
    pair.every_join().await;
    for sql in [
        "SELECT k, count(*), count(k), sum(v), min(t) FROM a GROUP BY k",
        "SELECT k, t, count(*) FROM a GROUP BY k, t",
        "SELECT k, v FROM a ORDER BY k, t DESC, v DESC LIMIT 7",
        "SELECT DISTINCT k FROM a",
    ] {
        pair.same(sql).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_side_without_rows() {
    let (empty, few) = (keyed(0, |_| None), keyed(300, |row| Some((row % 9) as i32)));
    for (a, b) in [(&empty, &few), (&few, &empty), (&empty, &empty)] {
        let pair = Pair::new(&[("a", a), ("b", b)]);
        for sql in JOINS {
            // Launches are optional where both sides are empty.
            let (expected, actual) = (pair.cpu.execute(sql).await, pair.sim.execute(sql).await);
            let (expected, actual) = (expected.expect("the CPU's answer"), actual.expect("the device's answer"));
            assert_eq!(answer(&expected).difference(&answer(&actual), false), None, "{sql}");
            settled(&pair.sim, sql).await;
        }
    }
    // A filter that leaves nothing: only the run knows.
    let pair = Pair::new(&[("a", &few), ("b", &few)]);
    pair.same("SELECT count(*), sum(a.v), count(b.v) FROM a LEFT JOIN b ON a.k = b.k AND b.v < 0").await;
    pair.same("SELECT a.k, b.v FROM a JOIN (SELECT * FROM b WHERE v < 0) b ON a.k = b.k").await;
    pair.same("SELECT count(*) FROM a WHERE k NOT IN (SELECT k FROM b WHERE v < 0)").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_to_many_under_a_limit() {
    // 10⁹ pairs, of which a hundred are wanted.
    let rows = keyed(100_000, |row| Some((row % 10) as i32));
    let pair = Pair::new(&[("a", &rows), ("b", &rows)]);
    let sql = "SELECT a.k, b.k, a.v, b.v FROM a JOIN b ON a.k = b.k LIMIT 100";
    let result = pair.sim.execute(sql).await.expect("an answer");
    let mut found = 0;
    for batch in &result.batches {
        let [x, y] = [2, 3].map(|column| batch.column(column).as_primitive::<Int64Type>());
        assert!(x.values().iter().zip(y.values()).all(|(x, y)| x % 10 == y % 10), "a pair with two keys");
        assert_eq!(batch.column(0), batch.column(1));
        found += batch.num_rows();
    }
    assert_eq!(found, 100);
    assert!(result.report.notes.is_empty(), "{:?}", result.report.notes);
    drop(result);
    settled(&pair.sim, sql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decimals_of_38_digits_overflow_as_on_the_cpu() {
    let max = 10_i128.pow(38) - 1;
    let values = [Some(max), Some(max), Some(-max), None, Some(1), Some(max / 2)];
    let wide = Decimal128Array::from(values.to_vec()).with_precision_and_scale(38, 0).expect("the precision fits");
    let narrow = Decimal128Array::from(vec![Some(9), Some(-9), None, Some(5), Some(10), Some(2)])
        .with_precision_and_scale(38, 37)
        .expect("the precision fits");
    let keys = Int32Array::from(vec![1, 1, 2, 2, 3, 3]);
    let rows: Vec<(&str, ArrayRef, bool)> =
        vec![("k", Arc::new(keys), false), ("w", Arc::new(wide), true), ("n", Arc::new(narrow), true)];
    let rows = RecordBatch::try_from_iter_with_nullable(rows).expect("columns have one length");
    let pair = Pair::new(&[("d", &rows)]);
    for sql in [
        "SELECT w + w FROM d",
        "SELECT w - 1 FROM d WHERE k = 2",
        "SELECT w * w FROM d",
        "SELECT n * n FROM d",
        "SELECT w * n FROM d",
        "SELECT sum(w) FROM d",
        "SELECT sum(w) FROM d WHERE k > 1",
        "SELECT k, sum(w) FROM d GROUP BY k ORDER BY k",
        "SELECT k, avg(w) FROM d GROUP BY k ORDER BY k",
        "SELECT avg(n), min(w), max(w) FROM d",
        "SELECT CAST(w AS DECIMAL(38, 1)) FROM d",
        "SELECT CAST(w AS DECIMAL(20, 0)) FROM d",
        "SELECT TRY_CAST(w AS DECIMAL(20, 0)), -w, abs(w) FROM d",
        "SELECT k, w FROM d ORDER BY w DESC NULLS LAST, k",
        "SELECT w, count(*) FROM d GROUP BY w",
        "SELECT a.k, b.k FROM d a JOIN d b ON a.w = b.w",
    ] {
        pair.same(sql).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_of_every_length() {
    let long = |letter: char| letter.to_string().repeat(1 << 20);
    let texts = vec![
        Some(String::new()),
        Some("twelve bytes".into()),
        Some("thirteen byte".into()),
        Some("thirteen bytf".into()),
        Some(long('x')),
        Some(format!("{}y", &long('x')[1..])),
        None,
        Some("twelve bytes".into()),
        Some(long('x')),
        Some("é".repeat(6)),
    ];
    let texts: ArrayRef = Arc::new(StringArray::from(texts));
    let numbers: ArrayRef = Arc::new((0..10).collect::<Int64Array>());
    let rows = RecordBatch::try_from_iter_with_nullable(vec![("n", numbers, false), ("s", texts, true)]);
    let rows = rows.expect("columns have one length");
    let pair = Pair::new(&[("s", &rows)]);
    for sql in [
        "SELECT n FROM s WHERE s = 'twelve bytes' OR s = '' OR s = 'thirteen byte'",
        "SELECT n, length(s), octet_length(s) FROM s",
        "SELECT s, count(*), min(n) FROM s GROUP BY s",
        "SELECT n, s FROM s ORDER BY s, n",
        "SELECT n FROM s ORDER BY s DESC NULLS LAST, n LIMIT 3",
        "SELECT min(s), max(s), count(DISTINCT s) FROM s",
        "SELECT a.n, b.n FROM s a JOIN s b ON a.s = b.s",
        "SELECT n, substr(s, 1048570), left(s, 13) FROM s",
        "SELECT n FROM s WHERE s LIKE '%y' OR s LIKE 'thirteen byt_'",
        "SELECT n, upper(s), s || '!' FROM s",
        "SELECT n, s FROM s WHERE n > 2",
    ] {
        pair.same(sql).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_polled_late_never_or_dropped() {
    let pair = Pair::new(&[("a", &skewed(20_000)), ("b", &keyed(400, |row| Some((row % 9) as i32)))]);
    for sql in [
        "SELECT k, v FROM a WHERE v % 3 = 0",
        "SELECT k, count(*) FROM a GROUP BY k",
        "SELECT a.v, b.v FROM a JOIN b ON a.k = b.k",
        "SELECT k, v FROM a UNION ALL SELECT k, v FROM b WHERE v > 5",
    ] {
        let expected = answer(&pair.cpu.execute(sql).await.expect("the CPU's answer")).num_rows();
        let context = pair.sim.context();
        let plan = || async {
            let frame = context.sql(sql).await.expect("planned");
            frame.create_physical_plan().await.expect("a plan")
        };
        // Never polled.
        let never = plan().await;
        for partition in 0..never.output_partitioning().partition_count() {
            drop(never.execute(partition, context.task_ctx()).expect("a stream"));
        }
        // The last partition first, to its end; every other one after it.
        let late = plan().await;
        let partitions = late.output_partitioning().partition_count();
        let mut streams: Vec<_> =
            (0..partitions).map(|partition| late.execute(partition, context.task_ctx()).expect("a stream")).collect();
        let mut rows = 0;
        while let Some(mut stream) = streams.pop() {
            while let Some(batch) = stream.next().await {
                rows += batch.expect("a batch").num_rows();
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(rows, expected, "{sql}");
        // One batch, then dropped; the other partitions are read to their end.
        let dropped = plan().await;
        let partitions = dropped.output_partitioning().partition_count();
        let mut streams: Vec<_> = (0..partitions)
            .map(|partition| dropped.execute(partition, context.task_ctx()).expect("a stream"))
            .collect();
        drop(streams[0].next().await);
        drop(streams.remove(0));
        for mut stream in streams {
            while let Some(batch) = stream.next().await {
                batch.expect("a batch");
            }
        }
        settled(&pair.sim, sql).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_skewed_queries_at_once() {
    let pair = Pair::new(&[("a", &skewed(20_000)), ("b", &keyed(50, |row| Some(row as i32)))]);
    let (one, two) = (
        "SELECT a.k, count(*), sum(b.v) FROM a LEFT JOIN b ON a.k = b.k GROUP BY a.k",
        "SELECT k, v FROM a ORDER BY k, v DESC LIMIT 10 OFFSET 15000",
    );
    let [first, second] = [one, two].map(|sql| {
        let session = pair.sim.clone();
        tokio::spawn(async move { session.execute(sql).await })
    });
    for (sql, running) in [(one, first), (two, second)] {
        let actual = running.await.expect("no panic").expect("the device's answer");
        let expected = pair.cpu.execute(sql).await.expect("the CPU's answer");
        assert_eq!(answer(&expected).difference(&answer(&actual), orders_its_rows(sql)), None, "{sql}");
        assert!(actual.report.launches > 0, "{sql}");
    }
    settled(&pair.sim, "two at once").await;
}
