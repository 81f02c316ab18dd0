//! Scalar subqueries in plans that are kept: each run has values of its own, on the device and on the CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use millpond::datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use millpond::datafusion::arrow::datatypes::{DataType, Int64Type};
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::edges::write_parquet;
use crate::support::{session_with, until};
use crate::tpch::{config, data, parquet_session, queries};

/// Those of the suite whose plans have scalar subqueries of their own.
const OF_SUITE: [usize; 3] = [11, 15, 22];

fn numbers(rows: i64) -> Arc<MemTable> {
    let values: Int64Array = (0..rows).collect();
    let names: StringArray = (0..rows).map(|row| Some(format!("n{row:03}"))).collect();
    let columns = [("v", Arc::new(values) as ArrayRef), ("name", Arc::new(names))];
    let batch = RecordBatch::try_from_iter(columns).expect("columns of one length");
    Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]]).expect("a table"))
}

async fn number(session: &Millpond, sql: &str) -> i64 {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(result.report.findings, Vec::<String>::new(), "{sql}");
    result.batches[0].column(0).as_primitive::<Int64Type>().value(0)
}

/// A session over `t`, with a function that says it is immutable and gives the number of its calls: a subquery that
/// differs from run to run of one plan, while everything that the plan was made of stays.
fn counting_session(fallback: Fallback) -> Millpond {
    let session = session_with(DeviceChoice::Sim, 2, fallback);
    session.context().register_table("t", numbers(100)).expect("a name");
    let calls = AtomicI64::new(0);
    let body = move |_: &[ColumnarValue]| {
        let call = calls.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(ColumnarValue::Array(Arc::new(Int64Array::from(vec![call]))))
    };
    let counts = create_udf("calls", vec![DataType::Int64], DataType::Int64, Volatility::Immutable, Arc::new(body));
    session.context().register_udf(counts);
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_the_suite_are_planned_once() {
    let files = data("0.001");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await;
    let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(2), &files).await;
    for (number, sql) in queries().into_iter().filter(|(number, _)| OF_SUITE.contains(number)) {
        let expected = cpu.execute(&sql).await.expect("the CPU's answer");
        let expected = Answer::new(&expected.schema, &expected.batches);
        for run in 0..3 {
            let result = sim.execute(&sql).await.unwrap_or_else(|error| panic!("q{number:02}: {error}"));
            let answer = Answer::new(&result.schema, &result.batches);
            assert_eq!(expected.difference(&answer, true), None, "q{number:02}, run {run}");
            assert_eq!(result.report.findings, Vec::<String>::new(), "q{number:02}, run {run}");
            assert_eq!(result.report.placement_lowerings == 0, run > 0, "q{number:02}, run {run}: placed anew");
        }
    }
}

/// The second run reads its own value, though what it launches was compiled by the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_run_has_its_own_value() {
    let session = counting_session(Fallback::Allow);
    let sql = "SELECT count(*) FROM t WHERE v < (SELECT calls(max(v)) FROM t)";
    for run in 1..=4 {
        assert_eq!(number(&session, sql).await, run);
    }
    let again = session.execute(sql).await.expect("an answer");
    assert_eq!(again.report.placement_lowerings, 0, "the plan is kept");

    // Above the device, too, and in a subquery of a subquery.
    let above = "SELECT count(*) + (SELECT calls(max(v)) FROM t) FROM t WHERE v < 50";
    let first = number(&session, above).await;
    assert_eq!(number(&session, above).await, first + 1);
    let nested = "SELECT count(*) FROM t WHERE v < (SELECT max(v) FROM t WHERE v < (SELECT calls(max(v)) FROM t))";
    let first = number(&session, nested).await;
    assert_eq!((number(&session, nested).await, number(&session, nested).await), (first + 1, first + 2));
}

/// The same where the CPU answers: what it takes over reads the run's value, and so do scans that are fed, in what they
/// leave out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cpu_reads_the_value_of_its_run() {
    let session = counting_session(Fallback::Allow);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("t.parquet");
    let rows: Int64Array = (0..100).collect();
    write_parquet(&RecordBatch::try_from_iter([("v", Arc::new(rows) as ArrayRef)]).expect("a column"), &file, 10);
    let file = file.to_str().expect("UTF-8");
    session.context().register_parquet("fed", file, Default::default()).await.expect("read");
    session.execute("SET millpond.cache_bytes = 1").await.expect("an option");
    session.execute("SET millpond.debug_rows_per_state = 50").await.expect("an option");
    for table in ["t", "fed"] {
        let read = format!("SELECT count(*) FROM {table} WHERE v < (SELECT calls(max(v)) FROM t)");
        let first = number(&session, &read).await;
        assert_eq!((number(&session, &read).await, number(&session, &read).await), (first + 1, first + 2));
        // More rows than a sum on the device is exact for.
        let of = "CAST(sum(CAST(v AS DECIMAL(10, 0))) AS BIGINT) * 1000 + count(*)";
        let sum = format!("SELECT {of} FROM {table} WHERE v < 70 + (SELECT calls(max(v)) FROM t)");
        for run in 0..3 {
            let result = session.execute(&sum).await.expect("an answer");
            let answer = result.batches[0].column(0).as_primitive::<Int64Type>().value(0);
            let rows = 70 + first + 3 + run;
            assert_eq!(answer, rows * (rows - 1) / 2 * 1000 + rows, "{sum}, run {run}");
            let notes = &result.report.notes;
            assert!(notes.iter().any(|note| note.contains("ran this part again on the CPU")), "{notes:?}");
            assert_eq!(result.report.placement_lowerings == 0, run > 0, "{sum}, run {run}: placed anew");
        }
    }
}

/// Sixteen concurrent runs of one plan have sixteen values; unread ones leave nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn runs_at_once_do_not_read_each_others_values() {
    let session = counting_session(Fallback::Allow);
    let sql = "SELECT count(*) FROM t WHERE v < (SELECT calls(max(v)) FROM t)";
    assert_eq!(number(&session, sql).await, 1);
    let mut runs = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let session = session.clone();
        runs.spawn(async move { number(&session, sql).await });
    }
    let mut values = runs.join_all().await;
    values.sort();
    assert_eq!(values, (2..=17).collect::<Vec<i64>>());

    let files = data("0.001");
    let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(2), &files).await;
    let sql = queries()[14].1.clone();
    let first = sim.execute(&sql).await.expect("an answer");
    let expected = Answer::new(&first.schema, &first.batches);
    let mut runs = tokio::task::JoinSet::new();
    for task in 0..16 {
        let (sim, sql, expected) = (sim.clone(), sql.clone(), expected.clone());
        runs.spawn(async move {
            if task % 3 == 2 {
                // Cancelled at each stage: before the subquery, in it, after it.
                let run = sim.execute(&sql);
                let _ = tokio::time::timeout(std::time::Duration::from_millis(7 * task), run).await;
                return;
            }
            let result = sim.execute(&sql).await.expect("an answer");
            assert_eq!(expected.difference(&Answer::new(&result.schema, &result.batches), true), None);
        });
    }
    runs.join_all().await;
    until("memory comes back", || sim.pool_used_bytes() == 0).await;
    let after = sim.execute(&sql).await.expect("an answer");
    assert_eq!(expected.difference(&Answer::new(&after.schema, &after.batches), true), None);
    assert_eq!(after.report.placement_lowerings, 0, "the plan is kept");
}

/// A change of the data below a subquery is noticed: its string value is never stale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_table_gives_another_value() {
    let session = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
    let context = session.context();
    context.register_table("t", numbers(100)).expect("a name");
    context.register_table("least", numbers(10)).expect("a name");
    let above = "SELECT count(*) FROM t WHERE v > (SELECT max(v) FROM least)";
    let named = "SELECT count(*) FROM t WHERE name > (SELECT max(name) FROM least)";
    for sql in [above, named] {
        assert_eq!((number(&session, sql).await, number(&session, sql).await), (90, 90), "{sql}");
    }
    context.deregister_table("least").expect("there");
    context.register_table("least", numbers(20)).expect("a name");
    for sql in [above, named] {
        assert_eq!((number(&session, sql).await, number(&session, sql).await), (80, 80), "{sql}");
    }
    context.sql("INSERT INTO least VALUES (50, 'n050')").await.expect("planned").collect().await.expect("inserted");
    for sql in [above, named] {
        assert_eq!((number(&session, sql).await, number(&session, sql).await), (49, 49), "{sql}");
    }
    // More than one row is an error each time.
    let many = "SELECT count(*) FROM t WHERE v > (SELECT v FROM least)";
    for _ in 0..2 {
        let error = session.execute(many).await.err().expect("a subquery of many rows").to_string();
        assert!(error.contains("more than one row"), "{error}");
    }
}
