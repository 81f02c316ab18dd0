//! Decimals of 256 bits: dictionary codes on the device; answers equal DataFusion's on the CPU.
//!
//!   carried     filtered, joined, grouped, sorted, chosen between, and anything over one column
//!   refused     sums, means, arithmetic of two columns: they run on the CPU, with a reason
//!
//! Values   below and above 128 bits, negative, zero, NULL; in extents of 3, 30 and 100 rows.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Decimal256Array, Int64Array};
use millpond::datafusion::arrow::datatypes::i256;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::datasource::MemTable;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::support::session_with;

const ROWS: i64 = 210;

fn table() -> RecordBatch {
    let large = i256::from_i128(10_i128.pow(30));
    let values: Vec<i256> = [0, 1, -1, 1_500, -1_500, 7, i128::MAX, i128::MIN]
        .map(i256::from_i128)
        .into_iter()
        .chain(
            [1, -1, 2]
                .map(|few| large.wrapping_mul(i256::from_i128(few)).wrapping_mul(i256::from_i128(10_000_000_000_000))),
        )
        .collect();
    let column = |step: i64, null: i64| {
        let of = |row: i64| (row % null != 2).then(|| values[(row / step) as usize % values.len()]);
        let array = (0..ROWS).map(of).collect::<Decimal256Array>();
        Arc::new(array.with_precision_and_scale(60, 3).expect("the precision fits")) as ArrayRef
    };
    RecordBatch::try_from_iter_with_nullable(vec![
        ("id", Arc::new((0..ROWS).collect::<Int64Array>()) as ArrayRef, false),
        ("k", Arc::new((0..ROWS).map(|row| row % 4).collect::<Int64Array>()), false),
        ("a", column(1, 5), true),
        ("b", column(11, 7), true),
    ])
    .expect("columns have one length")
}

async fn session(device: DeviceChoice, fallback: Fallback, batch_rows: usize) -> Millpond {
    let session = session_with(device, 1, fallback);
    let batch = table();
    let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).expect("a batch is a table");
    session.context().register_table("w", Arc::new(table)).expect("the name is free");
    session.execute(&format!("SET millpond.batch_rows = {batch_rows}")).await.expect("an option is set");
    session
}

#[tokio::test]
async fn wide_decimals_are_carried() {
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, 100).await;
    for batch_rows in [3, 30, 100] {
        let sim = session(DeviceChoice::Sim, Fallback::Error, batch_rows).await;
        for (sql, ordered) in [
            ("SELECT id, a, b FROM w WHERE id % 3 = 1", false),
            ("SELECT id, a FROM w WHERE a > 1 AND b <= 1.5", false),
            ("SELECT id FROM w WHERE a = b OR a < b OR a IS NULL", false),
            ("SELECT id, a IS DISTINCT FROM b, a BETWEEN -1 AND 7, a IN (0.001, 1.5, NULL) FROM w", false),
            ("SELECT id, a + 1, a * 2, -b, abs(a), arrow_cast(a, 'Float64'), arrow_cast(b, 'Utf8') FROM w", false),
            ("SELECT id, arrow_try_cast(a, 'Decimal128(20, 1)'), round(b, 1), signum(b), a / 3, a % 2 FROM w", false),
            ("SELECT id, coalesce(a, b), CASE WHEN k = 1 THEN a WHEN k = 2 THEN b END, arrow_typeof(a) FROM w", false),
            ("SELECT a, count(*), count(b), min(b), max(b), min(id) FROM w GROUP BY a", false),
            ("SELECT min(a), max(a), count(a), count(DISTINCT b) FROM w", false),
            ("SELECT min(a), max(a), count(a) FROM w WHERE id < 0", false),
            ("SELECT DISTINCT a, k FROM w", false),
            ("SELECT id, a FROM w ORDER BY a, id", true),
            ("SELECT id, a FROM w ORDER BY a NULLS FIRST, id DESC", true),
            ("SELECT id, a FROM w ORDER BY a DESC NULLS LAST, b DESC, id LIMIT 40", true),
            ("SELECT l.id, r.id, l.a FROM w l JOIN w r ON l.a = r.b AND l.k = r.k", false),
            ("SELECT l.id FROM w l LEFT JOIN w r ON l.a = r.b AND r.id < 20 WHERE r.id IS NULL", false),
            ("SELECT id FROM w WHERE a IN (SELECT b FROM w WHERE id > 100)", false),
            ("SELECT a FROM w UNION SELECT b FROM w", false),
            ("SELECT id, lag(a) OVER (PARTITION BY k ORDER BY id), rank() OVER (ORDER BY b) FROM w", false),
            ("SELECT id, min(a) OVER (PARTITION BY k ORDER BY id), max(b) OVER (PARTITION BY a) FROM w", false),
            ("SELECT id, first_value(b) OVER (PARTITION BY k ORDER BY a, id) FROM w", false),
            ("SELECT id FROM w WHERE a > (SELECT min(b) FROM w)", false),
            ("SELECT sum(arrow_cast(a, 'Float64') / 1e30), avg(arrow_cast(b, 'Float64')) FROM w WHERE a < 1000", false),
        ] {
            let (expected, actual) = (cpu.execute(sql).await, sim.execute(sql).await);
            let expected = expected.unwrap_or_else(|error| panic!("{sql}: {error}"));
            let actual = actual.unwrap_or_else(|error| panic!("{sql}: {error}"));
            let report = &actual.report;
            assert!(
                report.launches > 0 && report.notes.is_empty() && report.findings.is_empty(),
                "{sql}: {:?}",
                report.notes
            );
            let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
            assert_eq!(answer(&expected).difference(&answer(&actual), ordered), None, "{sql}");
        }
    }
}

#[tokio::test]
async fn what_computes_with_several_wide_decimals_stays_on_the_cpu() {
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, 30).await;
    let (sim, alone) =
        (session(DeviceChoice::Sim, Fallback::Allow, 30).await, session(DeviceChoice::Sim, Fallback::Error, 30).await);
    for sql in [
        "SELECT sum(a), avg(b) FROM w WHERE id % 11 < 6",
        "SELECT k, sum(a) FROM w WHERE id % 11 < 6 GROUP BY k",
        "SELECT median(a) FROM w",
        "SELECT id, sum(a) OVER (ORDER BY id) FROM w WHERE id % 11 < 6",
        "SELECT id, a + b, a * arrow_cast(k, 'Decimal256(5, 0)') FROM w WHERE id % 11 < 6",
        "SELECT id, abs(coalesce(a, b)), greatest(a, b), nullif(a, b) FROM w",
        "SELECT id, -coalesce(a, b) FROM w",
        "SELECT id, arrow_cast(coalesce(a, b), 'Float64'), arrow_cast(k, 'Decimal256(50, 2)') FROM w",
        "SELECT id, count(*) OVER (ORDER BY b RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) FROM w",
        "SELECT array_agg(a ORDER BY id) FROM w",
        "SELECT var(a), stddev(b), corr(arrow_cast(a, 'Float64'), arrow_cast(b, 'Float64')) FROM w WHERE id % 11 < 6",
    ] {
        let (expected, actual) = (cpu.execute(sql).await, sim.execute(sql).await);
        let (expected, actual) = match (expected, actual) {
            (Ok(expected), Ok(actual)) => (expected, actual),
            (expected, actual) => panic!("{sql}: {:?} {:?}", expected.err(), actual.err()),
        };
        let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
        assert_eq!(answer(&expected).difference(&answer(&actual), false), None, "{sql}");
        // The last one is of numbers that fit.
        if !sql.contains("corr") {
            assert!(alone.execute(sql).await.is_err(), "{sql}");
        }
    }
}

/// A file's own decoder leaves them to DataFusion's reader; what is stored stays on the device as codes.
#[tokio::test]
async fn wide_decimals_of_files_are_read_and_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("wide.parquet");
    let path = path.to_str().expect("a UTF-8 path");
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, 100).await;
    cpu.execute(&format!("COPY (SELECT id, k, a, b, make_array(a, b) AS l FROM w) TO '{path}'")).await.expect("a file");
    let sim = session(DeviceChoice::Sim, Fallback::Error, 100).await;
    for sql in [
        format!("SELECT a, count(*), max(b) FROM '{path}' WHERE k < 3 GROUP BY a"),
        format!("SELECT id, a, b FROM '{path}' WHERE a > 0 ORDER BY b DESC, id"),
        format!("SELECT id, l[1], l FROM '{path}' WHERE l[2] IS NOT NULL"),
        format!("SELECT id, unnest(l) FROM '{path}'"),
    ] {
        let expected = cpu.execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        for _ in 0..2 {
            let actual = sim.execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            assert!(actual.report.launches > 0 && actual.report.notes.is_empty(), "{sql}: {:?}", actual.report.notes);
            let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
            assert_eq!(answer(&expected).difference(&answer(&actual), false), None, "{sql}");
        }
    }
}
