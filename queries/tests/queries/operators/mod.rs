//! External operators: a stage and a sink registered with `MillpondBuilder::operator`, unknown to the engine itself.
//!
//! ```text
//!   thirds             a table that is a DivisibleExec over a query's plan
//!   counts             a table that is a CountsExec over the plans of several queries
//!
//!     DownloadExec                                   segment 0   numbers ─ filter ─ divisible ─ counts
//!       DeviceCountsExec                             segment 1   more numbers ─ divisible ─ counts
//!         DeviceDivisibleExec: by=3                  segment 2   rows of 0 and 1 ─ materialise
//!           DeviceFilterExec …
//! ```
//!
//! Answers are compared with the CPU nodes, and these with plain loops.

mod counts;
mod divisible;

use std::sync::Arc;
use std::time::Duration;

use millpond::contract::DeviceOperator;
use millpond::datafusion::arrow::array::{ArrayRef, Float64Array, Int8Array, Int64Array, StringArray};
use millpond::datafusion::arrow::datatypes::{Schema, SchemaRef};
use millpond::datafusion::catalog::{Session, TableProvider};
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::SessionState;
use millpond::datafusion::logical_expr::{Expr, TableType};
use millpond::datafusion::physical_expr::PhysicalExpr;
use millpond::datafusion::physical_expr::expressions::Column;
use millpond::datafusion::physical_expr::projection::ProjectionExpr;
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::datafusion::physical_plan::projection::ProjectionExec;
use millpond::datafusion::prelude::{SessionConfig, SessionContext};
use millpond::{DeviceChoice, Fallback, Millpond, QueryReport, QueryResult, error};

use crate::support::{Numbers, plan, rows, table};
use counts::{Counts, CountsExec};
use divisible::{Divisible, DivisibleExec};

const ROWS: usize = 1_500;
/// Rows per device batch.
const BATCH: usize = 100;

/// Queries whose operators all have device forms.
const ON_THE_DEVICE: [&str; 14] = [
    "SELECT * FROM thirds",
    "SELECT k FROM thirds WHERE v > 20",
    "SELECT count(*), sum(v), min(s) FROM thirds WHERE v > 20",
    "SELECT s, count(*), max(v) FROM sevenths GROUP BY s",
    "SELECT t.id, t.s, n.v FROM thirds t JOIN sevenths n ON t.id = n.id",
    "SELECT count(*) FROM (SELECT id FROM thirds LIMIT 17)",
    "SELECT k, id FROM thirds ORDER BY k DESC, id LIMIT 9",
    "SELECT * FROM counts",
    "SELECT input, counted * 2 FROM counts WHERE counted > 0 ORDER BY input DESC",
    "SELECT sum(counted), count(*) FROM counts",
    "SELECT c.counted, t.id FROM counts_of_thirds c JOIN thirds t ON t.id = c.input",
    "SELECT * FROM counts_of_thirds UNION ALL SELECT * FROM counts",
    // Nodes over equal inputs, with different or equal divisors.
    "SELECT t.s, sum(t.v) FROM thirds t GROUP BY t.s UNION ALL SELECT t.s, sum(t.v) FROM fifths t GROUP BY t.s",
    "SELECT a.input, b.counted FROM counts a JOIN counts b ON a.counted = b.counted",
];

/// Creates a node over the plans of queries.
type Make = fn(Vec<Arc<dyn ExecutionPlan>>) -> Arc<dyn ExecutionPlan>;

/// A table with the rows of a node. Each scan plans its inputs for the CPU in a separate session.
#[derive(Debug)]
struct Over {
    session: SessionState,
    inputs: Vec<&'static str>,
    make: Make,
    schema: SchemaRef,
}

impl Over {
    async fn new(session: SessionState, inputs: &[&'static str], make: Make) -> Self {
        let mut table = Self { session, inputs: inputs.to_vec(), make, schema: Arc::new(Schema::empty()) };
        table.schema = table.node().await.expect("the inputs have plans").schema();
        table
    }

    async fn node(&self) -> Result<Arc<dyn ExecutionPlan>> {
        let mut plans = vec![];
        for sql in &self.inputs {
            let input = self.session.create_logical_plan(sql).await?;
            plans.push(self.session.create_physical_plan(&input).await?);
        }
        Ok((self.make)(plans))
    }
}

#[async_trait::async_trait]
impl TableProvider for Over {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let node = self.node().await?;
        let Some(columns) = projection else { return Ok(node) };
        let column = |index: &usize| {
            let name = self.schema.field(*index).name();
            let expr = Arc::new(Column::new(name, *index)) as Arc<dyn PhysicalExpr>;
            ProjectionExpr { expr, alias: name.clone() }
        };
        Ok(Arc::new(ProjectionExec::try_new(columns.iter().map(column).collect::<Vec<_>>(), node)?))
    }
}

fn divisible(by: u8) -> impl Fn(Vec<Arc<dyn ExecutionPlan>>) -> Arc<dyn ExecutionPlan> {
    move |mut inputs| Arc::new(DivisibleExec::new(inputs.remove(0), by))
}

/// Values of `numbers`: id, k, v.
fn values() -> Vec<(i64, Option<i64>, i8)> {
    let mut numbers = Numbers(5);
    let mut row = |id: usize| {
        let k = (numbers.below(8) > 0).then(|| numbers.below(200) as i64 - 100);
        (id as i64, k, numbers.below(90) as i8)
    };
    (0..ROWS).map(&mut row).collect()
}

fn register_numbers(context: &SessionContext) {
    let values = values();
    let k: Int64Array = values.iter().map(|(_, k, _)| *k).collect();
    let v: Int8Array = values.iter().map(|(.., v)| Some(*v)).collect();
    let s: StringArray = values.iter().map(|(_, k, v)| k.map(|_| ["one", "two", "three"][*v as usize % 3])).collect();
    let f: Float64Array = values.iter().map(|(_, k, _)| k.map(|k| k as f64 / 2.0)).collect();
    let id = Int64Array::from_iter_values(values.iter().map(|(id, ..)| *id));
    let columns: Vec<(&str, ArrayRef)> =
        vec![("k", Arc::new(k)), ("id", Arc::new(id)), ("v", Arc::new(v)), ("s", Arc::new(s)), ("f", Arc::new(f))];
    table(context, "numbers", 3, columns);
}

/// A session with both operators, and tables over their nodes.
async fn session(device: DeviceChoice, fallback: Fallback, options: &[(&str, usize)]) -> Millpond {
    let config = SessionConfig::new().with_target_partitions(3).with_batch_size(64);
    let cpu = SessionContext::new_with_config(config.clone());
    register_numbers(&cpu);
    let mut builder =
        Millpond::builder().with_own_engine().with_device(device).with_fallback(fallback).with_config(config);
    for operator in [Arc::new(Divisible) as Arc<dyn DeviceOperator>, Arc::new(Counts)] {
        builder = builder.operator(operator);
    }
    for (name, value) in [("batch_rows", BATCH), ("partitions", 2)].iter().chain(options) {
        builder = builder.with_option(name, &value.to_string()).expect("the option is taken");
    }
    let session = builder.build().expect("the device opens");
    let tables: [(&str, &[&'static str], Make); 8] = [
        ("thirds", &["SELECT * FROM numbers"], |inputs| divisible(3)(inputs)),
        ("fifths", &["SELECT * FROM numbers"], |inputs| divisible(5)(inputs)),
        ("sevenths", &["SELECT v, id, s FROM numbers WHERE id > 40"], |inputs| divisible(7)(inputs)),
        ("halves_of_floats", &["SELECT f, id FROM numbers WHERE id > 40"], |inputs| divisible(2)(inputs)),
        (
            "counts",
            &[
                "SELECT k, s FROM numbers",
                "SELECT s FROM numbers WHERE v < 10 AND k > 0",
                "SELECT k FROM numbers WHERE v > 100",
                "SELECT id FROM numbers WHERE v > 5 LIMIT 130",
                "SELECT max(k) FROM numbers GROUP BY v",
            ],
            |inputs| Arc::new(CountsExec::new(inputs)),
        ),
        ("counts_of_thirds", &["SELECT k FROM numbers WHERE v > 10", "SELECT v FROM numbers"], |inputs| {
            let thirds = inputs.into_iter().map(|input| divisible(3)(vec![input]));
            Arc::new(CountsExec::new(thirds.collect()))
        }),
        (
            "counts_of_packed",
            &[
                "SELECT k FROM numbers WHERE v > 10",
                "SELECT arrow_cast(arrow_cast(k, 'Dictionary(UInt32, Int32)'), 'Dictionary(Int32, Dictionary(UInt32, Int32))') AS packed, v FROM numbers",
            ],
            |inputs| Arc::new(CountsExec::new(inputs)),
        ),
        ("counts_beside_lists", &["SELECT v, make_array(k, v) FROM numbers"], |inputs| {
            Arc::new(CountsExec::new(inputs))
        }),
    ];
    for (name, inputs, make) in tables {
        let table = Over::new(cpu.state(), inputs, make).await;
        session.context().register_table(name, Arc::new(table)).expect("the name is free");
    }
    session
}

async fn answer(session: &Millpond, sql: &str) -> QueryResult {
    session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Rows from the CPU nodes.
async fn cpu_rows(sql: &str) -> Vec<Vec<String>> {
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, &[]).await;
    rows(&answer(&cpu, sql).await.batches, sql.contains("ORDER BY"))
}

fn same(sql: &str, what: &str, expected: &[Vec<String>], found: &QueryResult) {
    assert!(rows(&found.batches, sql.contains("ORDER BY")) == expected, "{what}: {:?}", found.report);
}

fn all_on_the_device(report: &QueryReport) -> bool {
    report.launches > 0 && report.operators_on_device == report.operators && report.notes.is_empty()
}

/// Waits until the tasks of a query have ended; then the device must have no bytes in use and no findings.
async fn nothing_is_left(session: &Millpond, what: &str) {
    let wait = async {
        while session.pool_used_bytes() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), wait).await.unwrap_or_else(|_| panic!("{what}: memory is in use"));
    let findings = session.engine().expect("a device").take_findings();
    assert_eq!(findings, Vec::<String>::new(), "{what}");
}

#[tokio::test]
async fn the_cpus_nodes_give_what_plain_loops_give() {
    let thirds: Vec<_> = values().into_iter().filter(|(_, k, _)| k.is_some_and(|k| k % 3 == 0)).collect();
    let mut expected: Vec<Vec<String>> = thirds.iter().map(|(id, ..)| vec![id.to_string()]).collect();
    expected.sort();
    assert!(expected.len() > BATCH);
    assert_eq!(cpu_rows("SELECT id FROM thirds").await, expected);

    let above = thirds.iter().filter(|(.., v)| *v > 10).count();
    let third_of_v = values().iter().filter(|(.., v)| v % 3 == 0).count();
    let counted = |input: usize, counted: usize| vec![input.to_string(), counted.to_string()];
    assert_eq!(cpu_rows("SELECT * FROM counts_of_thirds").await, [counted(0, above), counted(1, third_of_v)]);

    let present = values().iter().filter(|(_, k, _)| k.is_some()).count();
    let small = values().iter().filter(|(_, k, v)| *v < 10 && k.is_some_and(|k| k > 0)).count();
    let groups = [counted(0, present), counted(1, small), counted(2, 0), counted(3, 130), counted(4, 90)];
    assert!(present < ROWS && small > 0);
    assert_eq!(cpu_rows("SELECT * FROM counts").await, groups);
}

#[tokio::test]
async fn a_stage_and_a_sink_from_outside_run_on_the_device() {
    for sql in ON_THE_DEVICE {
        let expected = cpu_rows(sql).await;
        let sim = session(DeviceChoice::Sim, Fallback::Error, &[]).await;
        let found = answer(&sim, sql).await;
        same(sql, sql, &expected, &found);
        assert!(all_on_the_device(&found.report) && found.report.reasons.is_empty(), "{sql}: {:?}", found.report);
        // Another run of the session reuses the prepared segments, but no counts.
        let again = answer(&sim, sql).await;
        same(sql, sql, &expected, &again);
        nothing_is_left(&sim, sql).await;
    }
}

/// Each input is counted in its own segment, and another segment reads all counts.
#[tokio::test]
async fn a_stage_joins_its_segment_and_a_sink_ends_one() {
    let sim = session(DeviceChoice::Sim, Fallback::Error, &[]).await;
    for (sql, segments) in [("SELECT * FROM thirds", 1), ("SELECT * FROM counts_of_thirds", 3)] {
        assert_eq!(answer(&sim, sql).await.report.segments, segments, "{sql}");
    }
}

#[tokio::test]
async fn explain_prints_their_device_nodes() {
    let sim = session(DeviceChoice::Sim, Fallback::Error, &[]).await;
    let text = plan(&sim, "SELECT * FROM counts_of_thirds").await;
    let nodes: Vec<&str> = text.lines().filter(|line| !line.contains("DataSourceExec")).collect();
    let expected = [
        "DownloadExec",
        "  DeviceCountsExec",
        "    DeviceDivisibleExec: by=3",
        "      DeviceFilterExec: v@1 > 10, projection=[k@0]",
        "        UploadExec",
        "    DeviceDivisibleExec: by=3",
        "      UploadExec",
    ];
    assert_eq!(nodes, expected);

    let sql = "EXPLAIN ANALYZE SELECT * FROM counts_of_thirds";
    let analyzed = rows(&answer(&sim, sql).await.batches, true);
    let text = analyzed.concat().join("\n");
    assert!(text.contains("DeviceCountsExec") && text.contains("DeviceDivisibleExec: by=3"), "{text}");
}

/// A column that the sink does not read may have any type.
#[tokio::test]
async fn the_sink_counts_rows_beside_a_column_without_a_device_form() {
    let sql = "SELECT * FROM counts_beside_lists";
    let sim = session(DeviceChoice::Sim, Fallback::Allow, &[]).await;
    assert!(plan(&sim, sql).await.contains("DeviceCountsExec"));
    same(sql, sql, &cpu_rows(sql).await, &answer(&sim, sql).await);
}

#[tokio::test]
async fn what_they_leave_to_the_cpu_has_a_reason() {
    for (sql, node, reason) in [
        (
            "SELECT count(*) FROM halves_of_floats",
            "DivisibleExec: by=2",
            "divisible by 2 has no device form: the first column is Float64, which is no integer",
        ),
        (
            "SELECT sum(counted) FROM counts_of_packed",
            "CountsExec",
            "packed has type Dictionary(Int32, Dictionary(UInt32, Int32)), which has no device form",
        ),
    ] {
        let sim = session(DeviceChoice::Sim, Fallback::Allow, &[]).await;
        let text = plan(&sim, sql).await;
        let stays = |line: &str| line.trim_start() == node;
        assert!(text.lines().any(stays) && text.contains(reason), "{sql}: {text}");
        let found = answer(&sim, sql).await;
        same(sql, sql, &cpu_rows(sql).await, &found);
        let report = &found.report;
        assert!(report.reasons.iter().any(|said| said.contains(reason)), "{sql}: {report:?}");
        assert!((1..report.operators).contains(&report.operators_on_device), "{sql}: {report:?}");
        nothing_is_left(&sim, sql).await;

        let strict = session(DeviceChoice::Sim, Fallback::Error, &[]).await;
        let refused = strict.execute(sql).await.err().expect("fallback is an error");
        assert!(error::is_forbidden_fallback(&refused) && refused.to_string().contains(reason), "{sql}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_fault_the_cpus_nodes_answer() {
    for sql in ["SELECT * FROM thirds", "SELECT s, count(*) FROM sevenths GROUP BY s", "SELECT * FROM counts_of_thirds"]
    {
        let expected = cpu_rows(sql).await;
        for nth in [1, 2, 3, 9] {
            let what = format!("{sql}, lost at launch {nth}");
            let lost = [("debug_sim_lose_at_launch", nth)];
            let sim = session(DeviceChoice::Sim, Fallback::Allow, &lost).await;
            let found = match sim.execute(sql).await {
                Ok(found) => found,
                // Rows already returned cannot be taken back.
                Err(error) if nth > 1 && sql == "SELECT * FROM thirds" => {
                    assert!(error.to_string().contains("lost"), "{what}: {error}");
                    continue;
                }
                Err(error) => panic!("{what}: {error}"),
            };
            same(sql, &what, &expected, &found);
            let noted = |words: &str| found.report.notes.iter().any(|note| note.contains(words));
            // If rows are returned while the query runs, the CPU processes only the remaining rows, by `Stage::on_cpu`.
            let (some, all) = (noted("ran those rows on the CPU"), noted("again on the CPU"));
            assert!(some || all || nth > 1, "{what}: {:?}", found.report);
            assert!(nth > 1 || some == (sql == "SELECT * FROM thirds"), "{what}: {:?}", found.report);
            assert_eq!(found.report.operators_on_device == 0, all, "{what}: {:?}", found.report);
            nothing_is_left(&sim, &what).await;
        }
        for nth in 1..=12 {
            let what = format!("{sql}, allocation {nth} fails");
            let sim = session(DeviceChoice::Sim, Fallback::Allow, &[("debug_sim_fail_allocation", nth)]).await;
            same(sql, &what, &expected, &answer(&sim, sql).await);
            nothing_is_left(&sim, &what).await;
        }
        let strict = session(DeviceChoice::Sim, Fallback::Error, &[("debug_sim_lose_at_launch", 1)]).await;
        let refused = strict.execute(sql).await.err().expect("fallback is an error");
        assert!(error::is_forbidden_fallback(&refused), "{sql}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_short_memory_answers_are_the_same() {
    let mut fitted = vec![];
    for sql in ON_THE_DEVICE {
        let expected = cpu_rows(sql).await;
        let tiny = ("batch_rows", 40);
        let free = session(DeviceChoice::Sim, Fallback::Error, &[tiny]).await;
        let peak = answer(&free, sql).await.report.peak_bytes as usize;
        for limit in [1, peak / 4, peak / 2, peak * 3 / 4] {
            let what = format!("{sql} in {limit} of {peak} bytes");
            let options = [tiny, ("memory_limit_bytes", limit)];
            let sim = session(DeviceChoice::Sim, Fallback::Allow, &options).await;
            let found = answer(&sim, sql).await;
            same(sql, &what, &expected, &found);
            assert!(limit > 1 || found.report.notes.iter().any(|note| note.contains("on the CPU")), "{what}");
            nothing_is_left(&sim, &what).await;

            let sim = session(DeviceChoice::Sim, Fallback::Error, &options).await;
            match sim.execute(sql).await {
                Ok(found) => {
                    same(sql, &what, &expected, &found);
                    assert!(all_on_the_device(&found.report) && limit > 1, "{what}: {:?}", found.report);
                    fitted.push(sql);
                }
                Err(refused) => assert!(refused.to_string().contains("out of device memory"), "{what}: {refused}"),
            }
            nothing_is_left(&sim, &what).await;
        }
    }

    // With less memory than used before, on the device only.
    for table in ["FROM thirds", "FROM counts"] {
        assert!(fitted.iter().any(|sql| sql.contains(table)), "{table}: {fitted:?}");
    }
}
