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
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use millpond::datafusion::physical_plan::streaming::PartitionStream;
use millpond::{DeviceChoice, Fallback, Millpond, QueryResult};
use tokio::sync::Barrier;

use crate::answers::Answer;
use crate::support::{session_with, soon};
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

/// A table of so many partitions, each of `batches` batches of `rows` rows, on sessions of the CPU and of the device.
fn sessions(partitions: i64, batches: i64, rows: i64, values: i64, together: bool) -> (Millpond, Millpond) {
    let register = |device, together: Option<Arc<Barrier>>| {
        let session = session_with(device, 2, Fallback::Error);
        let of = |partition: i64| {
            let batches = (0..batches).map(|number| batch((partition * batches + number) * rows, rows, values));
            Arc::new(Partition { batches: batches.collect(), together: together.clone() }) as Arc<dyn PartitionStream>
        };
        let partitions: Vec<Arc<dyn PartitionStream>> = (0..partitions).map(of).collect();
        let table = StreamingTable::try_new(Arc::clone(partitions[0].schema()), partitions).expect("a table");
        session.context().register_table("t", Arc::new(table)).expect("registered");
        session
    };
    let barrier = together.then(|| Arc::new(Barrier::new(partitions as usize)));
    (register(DeviceChoice::Cpu, None), register(DeviceChoice::Sim, barrier))
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

/// What lies below an upload may wait until all of its partitions are asked, as partitioned joins do: so a feeder holds no turn
/// while it waits for rows.
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
