//! Plans that are kept: the same answers, metrics of each run's own, and nothing of what has changed since.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use millpond::datafusion::arrow::datatypes::{DataType, Int64Type};
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::edges::write_parquet;
use crate::support::session_with;
use crate::tpch::{config, data, parquet_session, queries};

fn numbers(from: i64, rows: i64) -> RecordBatch {
    let values: Int64Array = (from..from + rows).collect();
    RecordBatch::try_from_iter([("v", Arc::new(values) as ArrayRef)]).expect("a column")
}

fn table(batch: RecordBatch) -> Arc<MemTable> {
    Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]]).expect("a table"))
}

fn pairs() -> RecordBatch {
    let column = |values: [i64; 2]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
    RecordBatch::try_from_iter([("k", column([1, 2])), ("v", column([10, 20]))]).expect("columns")
}

async fn number(session: &Millpond, sql: &str) -> i64 {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    result.batches[0].column(0).as_primitive::<Int64Type>().value(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_query_is_planned_once_and_prepared_once() {
    let files = data("0.001");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await;
    let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(2), &files).await;
    let mut kept = 0;
    for (number, sql) in queries() {
        let expected = cpu.execute(&sql).await.expect("the CPU's answer");
        let expected = Answer::new(&expected.schema, &expected.batches);
        let (mut launches, mut placing, mut lowerings) = (vec![], vec![], vec![]);
        for run in 0..3 {
            let result = sim.execute(&sql).await.unwrap_or_else(|error| panic!("q{number:02}: {error}"));
            let answer = Answer::new(&result.schema, &result.batches);
            assert_eq!(expected.difference(&answer, true), None, "q{number:02}, run {run}");
            assert_eq!(result.report.findings, Vec::<String>::new(), "q{number:02}, run {run}");
            launches.push(result.report.launches);
            placing.push(result.report.placement_lowerings);
            lowerings.push(result.report.lowerings);
        }
        // Counts are of one run, not of all that share the plan.
        assert_eq!(launches[1], launches[2], "q{number:02}");
        if placing[1..] == [0, 0] {
            kept += 1;
            // Only the tables of build sides are still lowered, one each.
            assert!(lowerings[2] * 4 <= lowerings[0], "q{number:02}: {lowerings:?} lowerings");
        }
    }
    assert!(kept >= 21, "{kept} of 22 plans are kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_changed_is_planned_anew() {
    let sim = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
    let context = sim.context();
    context.register_table("t", table(numbers(0, 10))).expect("a name");
    let sql = "SELECT sum(v) FROM t WHERE v >= 0";
    for _ in 0..3 {
        assert_eq!(number(&sim, sql).await, 45);
    }
    // Through DataFusion's own API: the cache is not notified.
    context.sql("INSERT INTO t VALUES (100)").await.expect("planned").collect().await.expect("inserted");
    assert_eq!(number(&sim, sql).await, 145);
    context.deregister_table("t").expect("there");
    context.register_table("t", table(numbers(1, 10))).expect("a name");
    assert_eq!(number(&sim, sql).await, 55);
    context.deregister_table("t").expect("there");
    assert!(sim.execute(sql).await.is_err(), "there is no such table");
    context.register_table("t", table(numbers(0, 3))).expect("a name");
    assert_eq!(number(&sim, sql).await, 3);

    // A view, and a table below it.
    let view = "SELECT sum(w) FROM seen";
    context.sql("CREATE VIEW seen AS SELECT v * 2 AS w FROM t").await.expect("made");
    assert_eq!((number(&sim, view).await, number(&sim, view).await), (6, 6));
    context.sql("CREATE OR REPLACE VIEW seen AS SELECT v * 3 AS w FROM t").await.expect("made");
    assert_eq!(number(&sim, view).await, 9);

    // A function by its name.
    let times = |factor: i64| {
        let body = move |args: &[ColumnarValue]| {
            let values = args[0].to_array(1)?;
            let values: Int64Array = values.as_primitive::<Int64Type>().iter().map(|v| v.map(|v| v * factor)).collect();
            Ok(ColumnarValue::Array(Arc::new(values)))
        };
        create_udf("times", vec![DataType::Int64], DataType::Int64, Volatility::Immutable, Arc::new(body))
    };
    let called = "SELECT sum(times(v)) FROM t";
    context.register_udf(times(10));
    assert_eq!((number(&sim, called).await, number(&sim, called).await), (30, 30));
    context.register_udf(times(20));
    assert_eq!(number(&sim, called).await, 60);

    // An option that planning reads.
    assert_eq!(number(&sim, sql).await, 3);
    sim.execute("SET millpond.enabled = false").await.expect("an option");
    let report = sim.execute(sql).await.expect("the CPU's answer").report;
    assert_eq!((report.launches, report.operators_on_device), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_the_same_each_time_is_not_kept() {
    let sim = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
    sim.context().register_table("t", table(numbers(0, 1000))).expect("a name");
    let random = "SELECT CAST(sum(random() * 1000000) AS BIGINT) FROM t WHERE v >= 0";
    assert_ne!(number(&sim, random).await, number(&sim, random).await);
    let now = "SELECT CAST(now() AS BIGINT) FROM t WHERE v = 0";
    let first = number(&sim, now).await;
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    assert!(number(&sim, now).await > first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_file_is_not_read_by_an_old_plan() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    write_parquet(&numbers(0, 100), &path("a.parquet"), 50);
    let sim = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
    let url = folder.path().to_str().expect("UTF-8");
    sim.context().register_parquet("t", url, Default::default()).await.expect("read");
    let sql = "SELECT sum(v) FROM t WHERE v >= 0";
    let before = number(&sim, sql).await;
    assert_eq!(number(&sim, sql).await, before);
    write_parquet(&numbers(1000, 1), &path("b.parquet"), 50);
    assert_eq!(number(&sim, sql).await, before + 1000);
    write_parquet(&numbers(0, 3), &path("a.parquet"), 50);
    assert_eq!(number(&sim, sql).await, 1003);
}

/// An update through DataFusion's own door leaves the columns alone that it does not set, the first among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_updated_table_is_planned_anew() {
    let sim = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
    let context = sim.context();
    context.register_table("t", table(pairs())).expect("a name");
    let sql = "SELECT sum(v) FROM t WHERE k > 0";
    for _ in 0..3 {
        assert_eq!(number(&sim, sql).await, 30);
    }
    context.sql("UPDATE t SET v = v + 100").await.expect("planned").collect().await.expect("updated");
    assert_eq!(number(&sim, sql).await, 230);
    assert_eq!(number(&sim, sql).await, 230);
}

/// Runs that end before they are done leave the plan as it was: answers, counts and memory of later ones are the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_serves_after_runs_that_were_cancelled() {
    let files = data("0.001");
    let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(2), &files).await;
    let sql = queries()[8].1.clone();
    let first = sim.execute(&sql).await.expect("an answer");
    let expected = Answer::new(&first.schema, &first.batches);
    let began = std::time::Instant::now();
    let launches = sim.execute(&sql).await.expect("again").report.launches;
    let whole = began.elapsed();
    let mut cancelled = 0;
    for part in 0..12 {
        let patience = whole * part / 12;
        cancelled += u32::from(tokio::time::timeout(patience, sim.execute(&sql)).await.is_err());
        let result = sim.execute(&sql).await.expect("an answer");
        assert_eq!(expected.difference(&Answer::new(&result.schema, &result.batches), true), None, "part {part}");
        assert_eq!(result.report.launches, launches, "part {part}");
        assert_eq!(result.report.placement_lowerings, 0, "part {part} is planned anew");
    }
    assert!(cancelled > 0, "no run is cancelled");
    assert_eq!(sim.engine().expect("a device").take_findings(), Vec::<String>::new());
    crate::support::until("memory comes back", || sim.pool_used_bytes() == 0).await;
}

/// Sixteen concurrent runs of one plan, some of which are not read to the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_plan_runs_many_times_at_once() {
    let files = data("0.001");
    let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(2), &files).await;
    let sql = queries()[2].1.clone();
    let first = sim.execute(&sql).await.expect("an answer");
    let (expected, launches) =
        (Answer::new(&first.schema, &first.batches), sim.execute(&sql).await.expect("again").report.launches);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16 {
        let (sim, sql, expected) = (sim.clone(), sql.clone(), expected.clone());
        tasks.spawn(async move {
            if task % 5 == 4 {
                let stream = sim.stream(&sql).await.expect("a stream");
                drop(stream);
                return;
            }
            let result = sim.execute(&sql).await.expect("an answer");
            assert_eq!(expected.difference(&Answer::new(&result.schema, &result.batches), true), None);
            assert_eq!(result.report.launches, launches);
        });
    }
    while let Some(joined) = tasks.join_next().await {
        joined.expect("no run fails");
    }
    crate::support::until("memory comes back", || sim.pool_used_bytes() == 0).await;
}
