//! What DataFusion's own doors plan once: SQL, frames and prepared statements find the plan of an equal logical plan,
//! and nothing of what has changed since.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use millpond::datafusion::arrow::datatypes::{DataType, Int64Type};
use millpond::datafusion::arrow::util::pretty::pretty_format_batches;
use millpond::datafusion::dataframe::DataFrame;
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use millpond::datafusion::prelude::{col, lit};
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

fn session() -> Millpond {
    let session = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
    session.context().register_table("t", table(numbers(0, 10))).expect("a name");
    session
}

/// The number that a frame gives, and whether its plan was there already.
async fn run(session: &Millpond, frame: DataFrame) -> (i64, bool) {
    let plan = frame.create_physical_plan().await.expect("a plan");
    let result = session.execute_plan(plan).await.expect("an answer");
    assert_eq!(result.report.findings, Vec::<String>::new());
    let number = result.batches[0].column(0).as_primitive::<Int64Type>().value(0);
    (number, result.report.placement_lowerings == 0)
}

async fn sql(session: &Millpond, sql: &str) -> (i64, bool) {
    let frame = session.context().sql(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    run(session, frame).await
}

async fn done(session: &Millpond, sql: &str) {
    let frame = session.context().sql(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    frame.collect().await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_the_suite_are_planned_once() {
    let files = data("0.001");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await;
    let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(2), &files).await;
    let mut kept = 0;
    // One of them is a script with a view.
    for (number, sql) in queries().into_iter().filter(|(_, sql)| !sql.to_lowercase().contains("create view")) {
        let expected = cpu.execute(&sql).await.expect("the CPU's answer");
        let expected = Answer::new(&expected.schema, &expected.batches);
        for run in 0..3 {
            let frame = sim.context().sql(&sql).await.expect("a frame");
            let plan = frame.create_physical_plan().await.unwrap_or_else(|error| panic!("q{number:02}: {error}"));
            let result = sim.execute_plan(plan).await.unwrap_or_else(|error| panic!("q{number:02}: {error}"));
            let answer = Answer::new(&result.schema, &result.batches);
            assert_eq!(expected.difference(&answer, true), None, "q{number:02}, run {run}");
            assert_eq!(result.report.findings, Vec::<String>::new(), "q{number:02}, run {run}");
            kept += usize::from(run == 1 && result.report.placement_lowerings == 0);
        }
    }
    assert!(kept >= 21, "{kept} plans are kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_changed_is_planned_anew() {
    let session = session();
    let context = session.context();
    let query = "SELECT sum(v) FROM t WHERE v >= 0";
    assert_eq!(sql(&session, query).await, (45, false));
    assert_eq!(sql(&session, query).await, (45, true));
    assert_eq!(sql(&session, "select  SUM(v) from t where v>=0 -- the same").await, (45, true));
    assert!(!sql(&session, "SELECT sum(v) FROM t WHERE v >= 1").await.1, "another constant");

    // Rows come, the table is another, it is gone.
    done(&session, "INSERT INTO t VALUES (100)").await;
    assert_eq!(sql(&session, query).await, (145, false));
    assert_eq!(sql(&session, query).await, (145, true));
    let old = context.sql(query).await.expect("a frame");
    context.deregister_table("t").expect("there");
    context.register_table("t", table(numbers(1, 10))).expect("a name");
    assert_eq!(sql(&session, query).await, (55, false));
    // A frame has the table that it was made of.
    assert_eq!(run(&session, old).await.0, 145);
    assert_eq!(sql(&session, query).await.0, 55);
    context.deregister_table("t").expect("there");
    assert!(context.sql(query).await.is_err(), "there is no such table");
    context.register_table("t", table(numbers(0, 3))).expect("a name");
    assert_eq!(sql(&session, query).await.0, 3);

    // A view is what it is now.
    let view = "SELECT sum(w) FROM seen WHERE w >= 0";
    done(&session, "CREATE VIEW seen AS SELECT v * 2 AS w FROM t").await;
    assert_eq!((sql(&session, view).await.0, sql(&session, view).await), (6, (6, true)));
    done(&session, "CREATE OR REPLACE VIEW seen AS SELECT v * 3 AS w FROM t").await;
    assert_eq!((sql(&session, view).await, sql(&session, view).await), ((9, false), (9, true)));

    // A function by its name.
    let times = |factor: i64| {
        let body = move |args: &[ColumnarValue]| {
            let values = args[0].to_array(1)?;
            let values: Int64Array = values.as_primitive::<Int64Type>().iter().map(|v| v.map(|v| v * factor)).collect();
            Ok(ColumnarValue::Array(Arc::new(values)))
        };
        create_udf("times", vec![DataType::Int64], DataType::Int64, Volatility::Immutable, Arc::new(body))
    };
    let called = "SELECT sum(times(v)) FROM t WHERE v >= 0";
    context.register_udf(times(10));
    assert_eq!((sql(&session, called).await.0, sql(&session, called).await.0), (30, 30));
    context.register_udf(times(20));
    assert_eq!(sql(&session, called).await.0, 60);

    // An option that planning reads.
    assert_eq!(sql(&session, query).await, (3, true));
    done(&session, "SET millpond.batch_rows = 1000").await;
    assert_eq!((sql(&session, query).await, sql(&session, query).await), ((3, false), (3, true)));
    done(&session, "SET millpond.enabled = false").await;
    let plan = context.sql(query).await.expect("a frame").create_physical_plan().await.expect("a plan");
    let report = session.execute_plan(plan).await.expect("the CPU's answer").report;
    assert_eq!((report.launches, report.operators_on_device), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_the_same_each_time_is_planned_each_time() {
    let session = session();
    let random = "SELECT CAST(sum(random() * 1000000) AS BIGINT) FROM t WHERE v >= 0";
    let (first, second) = (sql(&session, random).await, sql(&session, random).await);
    assert_ne!(first.0, second.0);
    assert!(!second.1, "a volatile function is planned each time");
    for now in ["now()", "current_timestamp"] {
        let now = format!("SELECT max(CAST({now} AS BIGINT) + v * 0) FROM t WHERE v = 0");
        let first = sql(&session, &now).await.0;
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        let second = sql(&session, &now).await;
        assert!(second.0 > first && !second.1, "{now}");
    }
    let stable = |name: &'static str, volatility| {
        let calls = std::sync::atomic::AtomicI64::new(0);
        let body = move |_: &[ColumnarValue]| {
            let call = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(ColumnarValue::Array(Arc::new(Int64Array::from(vec![call]))))
        };
        create_udf(name, vec![DataType::Int64], DataType::Int64, volatility, Arc::new(body))
    };
    session.context().register_udf(stable("stable", Volatility::Stable));
    let query = "SELECT stable(max(v)) FROM t WHERE v >= 0";
    let (first, second) = (sql(&session, query).await, sql(&session, query).await);
    assert_eq!((first, second), ((0, false), (1, false)));

    // Statements that do something do it each time.
    let count = "SELECT count(*) FROM t WHERE v >= 0";
    for rows in [11, 12, 13] {
        done(&session, "INSERT INTO t VALUES (7)").await;
        assert_eq!(sql(&session, count).await.0, rows);
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("t.csv");
    let copy = format!("COPY (SELECT v FROM t WHERE v >= 0) TO '{}'", file.display());
    for rows in [14, 15] {
        done(&session, &copy).await;
        done(&session, "INSERT INTO t VALUES (7)").await;
        let lines = std::fs::read_to_string(&file).expect("written").lines().count();
        assert_eq!(lines, rows, "a header, and a row each");
        std::fs::remove_file(&file).expect("there");
    }
    for rows in [15, 16] {
        done(&session, "CREATE OR REPLACE TABLE made AS SELECT v FROM t WHERE v >= 0").await;
        assert_eq!(sql(&session, "SELECT count(*) FROM made WHERE v >= 0").await.0, rows);
        done(&session, "INSERT INTO t VALUES (7)").await;
    }
    // A table that a function makes is made each time.
    let series = "SELECT sum(value) FROM generate_series(1, 10) WHERE value > 5";
    assert_eq!((sql(&session, series).await.0, sql(&session, series).await.0), (40, 40));

    // EXPLAIN shows what would run, whether or not it has run.
    let explain = async |query: &str| {
        let frame = session.context().sql(&format!("EXPLAIN {query}")).await.expect("a frame");
        pretty_format_batches(&frame.collect().await.expect("a plan")).expect("text").to_string()
    };
    let fresh = explain(count).await;
    assert!(sql(&session, count).await.0 > 0 && sql(&session, count).await.1);
    assert_eq!(explain(count).await, fresh);
    assert!(fresh.contains("DownloadExec") && fresh.contains("DeviceAggregateExec"), "{fresh}");
}

/// Rules of ours put other functions in the place of DataFusion's; the plan is kept all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mended_functions_are_planned_once() {
    let session = session();
    for (query, expected) in [
        ("SELECT sum(v) FROM t", 45),
        ("SELECT sum(v) OVER () FROM t LIMIT 1", 45),
        ("SELECT max(v + 1) OVER (PARTITION BY v % 1) FROM t LIMIT 1", 10),
        ("SELECT CAST(max(CAST(v AS DOUBLE)) AS BIGINT) FROM t GROUP BY v % 1", 9),
    ] {
        assert_eq!(sql(&session, query).await, (expected, false), "{query}");
        assert_eq!(sql(&session, query).await, (expected, true), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_and_prepared_statements_are_planned_once() {
    let session = session();
    let context = session.context();
    let frame = async |least: i64| {
        let frame = context.table("t").await.expect("a table").filter(col("v").gt_eq(lit(least))).expect("a filter");
        let sum = millpond::datafusion::functions_aggregate::expr_fn::sum(col("v"));
        frame.aggregate(vec![], vec![sum]).expect("an aggregate")
    };
    assert_eq!(run(&session, frame(0).await).await, (45, false));
    assert_eq!(run(&session, frame(0).await).await, (45, true));
    assert_eq!(run(&session, frame(5).await).await, (35, false));
    let same = frame(5).await;
    assert_eq!((run(&session, same.clone()).await, run(&session, same).await), ((35, true), (35, true)));

    done(&session, "PREPARE above(BIGINT) AS SELECT sum(v) FROM t WHERE v > $1").await;
    for (parameter, expected) in [(1, 44), (5, 30), (1, 44), (5, 30)] {
        let first = sql(&session, &format!("EXECUTE above({parameter})")).await;
        assert_eq!(first.0, expected);
        assert_eq!(sql(&session, &format!("EXECUTE above({parameter})")).await, (expected, true));
    }
    done(&session, "INSERT INTO t VALUES (100)").await;
    assert_eq!(sql(&session, "EXECUTE above(5)").await.0, 130);
    done(&session, "DEALLOCATE above").await;
    done(&session, "PREPARE above(BIGINT) AS SELECT sum(v) + 1 FROM t WHERE v > $1").await;
    assert_eq!(sql(&session, "EXECUTE above(5)").await.0, 131);

    // Another session has other tables of the same names.
    let other = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
    other.context().register_table("t", table(numbers(0, 4))).expect("a name");
    let query = "SELECT sum(v) FROM t WHERE v >= 0";
    assert_eq!((sql(&session, query).await.0, sql(&other, query).await.0), (145, 6));
    assert_eq!((sql(&session, query).await, sql(&other, query).await), ((145, true), (6, true)));
}

/// One plan of DataFusion's own door by sixteen runs at once; files that change are seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_plan_runs_many_times_at_once_over_files_as_they_are() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    write_parquet(&numbers(0, 100), &path("a.parquet"), 50);
    let session = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
    let url = folder.path().to_str().expect("UTF-8");
    session.context().register_parquet("t", url, Default::default()).await.expect("read");
    let query = "SELECT sum(v) FROM t WHERE v >= (SELECT min(v) FROM t)";
    assert_eq!(sql(&session, query).await, (4950, false));
    let mut runs = tokio::task::JoinSet::new();
    for run in 0..16 {
        let session = session.clone();
        runs.spawn(async move {
            if run % 5 == 4 {
                let frame = session.context().sql(query).await.expect("a frame");
                drop(frame.execute_stream().await.expect("a stream"));
                return;
            }
            assert_eq!(sql(&session, query).await, (4950, true));
        });
    }
    runs.join_all().await;
    write_parquet(&numbers(1000, 1), &path("b.parquet"), 50);
    assert_eq!(sql(&session, query).await, (5950, false));
    write_parquet(&numbers(0, 3), &path("a.parquet"), 50);
    assert_eq!((sql(&session, query).await, sql(&session, query).await), ((1003, false), (1003, true)));
    std::fs::remove_file(path("b.parquet")).expect("there");
    assert_eq!(sql(&session, query).await.0, 3);
}
