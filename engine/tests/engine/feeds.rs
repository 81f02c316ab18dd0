//! Tables that are fed: a feeder for each partition, whatever the others do, and extents that they share in the end.
//!
//!   partitions of a streaming table ─► feeders ─► extents ─► the CPU's answer

use std::fmt;
use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Int64Array, StringArray, as_primitive_array};
use millpond::datafusion::arrow::datatypes::{Int64Type, SchemaRef};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::catalog::streaming::StreamingTable;
use millpond::datafusion::execution::{SendableRecordBatchStream, TaskContext};
use millpond::datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use millpond::datafusion::physical_plan::streaming::PartitionStream;
use millpond::{DeviceChoice, Fallback, Millpond, QueryResult};
use tokio::sync::Barrier;

use crate::answers::Answer;
use crate::support::{session_with, soon, until};
use crate::tpch::upload;

/// Batches of a partition. Before each but the first it waits until all partitions have come as far.
#[derive(Clone)]
struct Partition {
    batches: Vec<RecordBatch>,
    together: Option<Arc<Barrier>>,
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} batches", self.batches.len())
    }
}

impl PartitionStream for Partition {
    fn schema(&self) -> &SchemaRef {
        self.batches[0].schema_ref()
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let Self { batches, together } = self.clone();
        let batches = futures::stream::unfold((batches.into_iter(), false), move |(mut batches, waits)| {
            let together = together.clone();
            async move {
                if let (Some(together), true) = (&together, waits) {
                    together.wait().await;
                }
                batches.next().map(|batch| (Ok(batch), (batches, true)))
            }
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(self.schema()), batches))
    }
}

/// Numbers from `from` on, and strings of which there are `values`.
fn batch(from: i64, rows: i64, values: i64) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + rows));
    let strings = (from..from + rows).map(|n| (n % 11 != 0).then(|| format!("string {}", n * 7 % values)));
    let strings: ArrayRef = Arc::new(strings.collect::<StringArray>());
    RecordBatch::try_from_iter_with_nullable([("n", numbers, false), ("s", strings, true)]).expect("a batch")
}

/// A table of such partitions.
fn register(session: &Millpond, name: &str, partitions: Vec<Arc<dyn PartitionStream>>) {
    let table = StreamingTable::try_new(Arc::clone(partitions[0].schema()), partitions).expect("a table");
    session.context().register_table(name, Arc::new(table)).expect("registered");
}

/// A table of `partitions` partitions, each of `batches` batches of `rows` rows, on sessions of the CPU and of the
/// device.
fn sessions(partitions: i64, batches: i64, rows: i64, values: i64, together: bool) -> (Millpond, Millpond) {
    let session = |device, together: Option<Arc<Barrier>>| {
        let session = session_with(device, 2, Fallback::Error);
        let of = |partition: i64| {
            let batches = (0..batches).map(|number| batch((partition * batches + number) * rows, rows, values));
            Arc::new(Partition { batches: batches.collect(), together: together.clone() }) as Arc<dyn PartitionStream>
        };
        register(&session, "t", (0..partitions).map(of).collect());
        session
    };
    let barrier = together.then(|| Arc::new(Barrier::new(partitions as usize)));
    (session(DeviceChoice::Cpu, None), session(DeviceChoice::Sim, barrier))
}

async fn same(cpu: &Millpond, sim: &Millpond, sql: &str, options: &[(&str, usize)]) -> QueryResult {
    for (name, value) in options {
        sim.execute(&format!("SET millpond.{name} = {value}")).await.expect("the option is taken");
    }
    let expected = cpu.execute(sql).await.expect("the CPU's answer");
    let actual = soon("an answer of the device", sim.execute(sql)).await.expect("the device's answer");
    let answer = |result: &QueryResult| Answer::new(&result.schema, &result.batches);
    assert_eq!(answer(&expected).difference(&answer(&actual), false), None, "{sql} with {options:?}");
    assert!(actual.report.launches > 0 && actual.report.findings.is_empty(), "{sql}: {:?}", actual.report);
    assert_eq!(actual.report.pool_used_bytes, 0, "{sql}");
    actual
}

fn extents(result: &QueryResult) -> usize {
    let extents = upload(&result.plan).metrics().and_then(|metrics| metrics.sum_by_name("extents"));
    extents.expect("feeders count extents").as_usize()
}

/// What lies below an upload may wait until all of its partitions are asked, as partitioned joins do: so a feeder holds
/// no turn while it waits for rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_wait_for_each_other_go_on() {
    let (cpu, sim) = sessions(6, 5, 40, 9, true);
    for options in [[("partitions", 1), ("batch_rows", 30)], [("partitions", 4), ("batch_rows", 64)]] {
        same(&cpu, &sim, "SELECT s, sum(n), count(*) FROM t GROUP BY s", &options).await;
    }
    // Each with a reader beside it, where there are threads for both.
    let (cpu, sim) = sessions(1, 5, 40, 9, true);
    same(&cpu, &sim, "SELECT s, sum(n), count(*) FROM t GROUP BY s", &[("batch_rows", 30)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_rows_of_all_partitions_share_extents() {
    let (cpu, sim) = sessions(8, 2, 5, 3, false);
    for (rows, expected) in [(0, 1), (25, 4), (80, 1), (79, 2), (4, 20)] {
        let sql = "SELECT s, sum(n), count(*) FROM t GROUP BY s";
        let result = same(&cpu, &sim, sql, &[("batch_rows", rows)]).await;
        assert_eq!(extents(&result), expected, "80 rows, {rows} in an extent");
    }
}

/// Their dictionary is one: all codes of a value are equal, whichever feeder met it first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strings_of_partitions_beside_each_other_have_one_dictionary() {
    let (cpu, sim) = sessions(4, 10, 700, 1_500, false);
    for sql in [
        "SELECT s, min(n), max(n), count(*) FROM t GROUP BY s",
        "SELECT max(s), min(s), count(DISTINCT s) FROM t WHERE s LIKE '%1%'",
    ] {
        same(&cpu, &sim, sql, &[("batch_rows", 1_000)]).await;
        // The next run finds the values.
        same(&cpu, &sim, sql, &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_one_partition_leave_in_their_order() {
    let (_, sim) = sessions(1, 9, 100, 5, false);
    sim.execute("SET millpond.batch_rows = 70").await.expect("the option is taken");
    let result = sim.execute("SELECT n + 1 FROM t WHERE n % 3 = 0").await.expect("an answer");
    let numbers = |batch: &RecordBatch| as_primitive_array::<Int64Type>(batch.column(0)).values().to_vec();
    let numbers: Vec<i64> = result.batches.iter().flat_map(numbers).collect();
    assert_eq!(numbers, (0..900).step_by(3).map(|n| n + 1).collect::<Vec<i64>>());
    assert!(extents(&result) >= 13);
}

/// Joins `f` with `a` and with `b`, both of which build.
const TWO_BUILDS: &str = "SELECT count(*), sum(a.n + x.m), max(x.s) FROM a \
    JOIN (SELECT b.n AS n, f.n AS m, f.s AS s FROM b JOIN f ON b.s = f.s) x ON a.n = x.m";

/// Tables `a`, `b` and `f`; batches of `a` and of `b` come together, where they are to.
fn two_builds(device: DeviceChoice, fallback: Fallback, together: Option<Arc<Barrier>>, rows: i64) -> Millpond {
    let session = session_with(device, 2, fallback);
    for (name, from) in [("a", 0), ("b", 3), ("f", 5)] {
        let batches = (0..5).map(|number| batch(from + number * rows, rows, 700)).collect();
        let together = together.clone().filter(|_| name != "f");
        register(&session, name, vec![Arc::new(Partition { batches, together })]);
    }
    session
}

/// Build sides that wait for no other segment are fed at the same time: batches of one come when those of the other
/// have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn independent_builds_are_fed_side_by_side() {
    let cpu = two_builds(DeviceChoice::Cpu, Fallback::Allow, None, 40);
    let together = || Some(Arc::new(Barrier::new(2)));
    let sim = two_builds(DeviceChoice::Sim, Fallback::Error, together(), 40);
    for options in [[("batch_rows", 0)], [("batch_rows", 30)]] {
        same(&cpu, &sim, TWO_BUILDS, &options).await;
        same(&cpu, &sim, TWO_BUILDS, &options).await;
    }
    // One batch at a time means one source at a time.
    let sim = two_builds(DeviceChoice::Sim, Fallback::Error, None, 40);
    same(&cpu, &sim, TWO_BUILDS, &[("partitions", 1)]).await;
}

/// Without memory for both at once, one build follows the other; an error of one ends both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn builds_beside_each_other_run_short_or_fail() {
    let cpu = two_builds(DeviceChoice::Cpu, Fallback::Allow, None, 4000);
    let sim = two_builds(DeviceChoice::Sim, Fallback::Error, None, 4000);
    let peak = same(&cpu, &sim, TWO_BUILDS, &[]).await.report.peak_bytes as usize;
    for part in [2, 3, 4] {
        same(&cpu, &sim, TWO_BUILDS, &[("memory_limit_bytes", peak / part)]).await;
    }
    let sim = two_builds(DeviceChoice::Sim, Fallback::Allow, None, 40);
    let failing = TWO_BUILDS.replace("FROM b JOIN", "FROM (SELECT n, s FROM b WHERE 5 / (n - 10) < 100) b JOIN");
    let expected = cpu.execute(&failing).await.err().expect("10 is there").to_string();
    let actual = soon("an error", sim.execute(&failing)).await.err().expect("10 is there").to_string();
    assert!(expected.contains("zero") && actual.contains("zero"), "{expected}\n{actual}");
    let engine = sim.engine().expect("a device");
    until("giving back what is used", || engine.pool().used_bytes().as_u64() == 0).await;
    assert_eq!(engine.take_findings(), Vec::<String>::new());
}
