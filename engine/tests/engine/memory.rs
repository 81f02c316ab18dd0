//! Memory that is short: a quarter of the peak, parts that leave for the host, the session's own memory pool.
//!
//!   peak without a limit ─► limit = peak / 4 ─► the same answer, on the device
//!
//! Peaks   are measured by each test itself, with the CPU forbidden, so that no answer comes from there.

use std::sync::Arc;

use futures::StreamExt;
use millpond::datafusion::arrow::array::{Int64Array, StringArray};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use millpond::datafusion::execution::runtime_env::RuntimeEnvBuilder;
use millpond::datafusion::physical_plan::execute_stream;
use millpond::datafusion::prelude::{SessionConfig, SessionContext};
use millpond::session::QueryResult;
use millpond::{DeviceChoice, Fallback, Millpond, error};
use millpond_memory::MemorySpace;
use millpond_memory::driver::sim::{CallKind, FailCall, FailureLasts};

use crate::answers::{Answer, orders_its_rows};
use crate::edges::write_parquet;
use crate::support::{soon, until};
use crate::tpch;

/// 150,000 rows of 100,000 keys: `k` lies dense, `wide` anywhere in 62 bits, `name` is one of 7 strings.
fn rows() -> RecordBatch {
    let rows = 150_000_i64;
    let key = |row: i64| row * 7919 % 100_000;
    let k: Int64Array = (0..rows).map(key).collect();
    let wide: Int64Array = (0..rows).map(|row| key(row) * 46_116_860_184_273 + 5).collect();
    let v: Int64Array = (0..rows).map(|row| (row % 11 != 0).then_some(row * 31 % 1000 - 500)).collect();
    let name: StringArray =
        (0..rows).map(|row| Some(["a", "b", "c", "d", "e", "f", "g"][(row % 7) as usize])).collect();
    RecordBatch::try_from_iter_with_nullable(vec![
        ("k", Arc::new(k) as _, false),
        ("wide", Arc::new(wide) as _, false),
        ("v", Arc::new(v) as _, true),
        ("name", Arc::new(name) as _, false),
    ])
    .expect("columns have one length")
}

/// Both as a table in memory, without statistics, and as a file with them.
async fn register(context: &SessionContext, folder: &tempfile::TempDir) {
    let batch = rows();
    let batches: Vec<RecordBatch> = (0..batch.num_rows()).step_by(8192).map(|from| slice(&batch, from, 8192)).collect();
    let parts = batches.chunks(batches.len().div_ceil(3)).map(<[RecordBatch]>::to_vec).collect();
    let table = MemTable::try_new(batch.schema(), parts).expect("batches have the schema");
    context.register_table("plain", Arc::new(table)).expect("registered");
    let path = folder.path().join("rows.parquet");
    if !path.exists() {
        write_parquet(&batch, &path, 20_000);
    }
    let path = path.to_str().expect("a UTF-8 path");
    context.register_parquet("file", path, Default::default()).await.expect("the file is read");
}

fn slice(batch: &RecordBatch, from: usize, rows: usize) -> RecordBatch {
    batch.slice(from, rows.min(batch.num_rows() - from))
}

fn config() -> SessionConfig {
    SessionConfig::new().with_target_partitions(3)
}

fn builder(device: DeviceChoice, fallback: Fallback, limit: u64) -> millpond::MillpondBuilder {
    let builder =
        Millpond::builder().with_own_engine().with_device(device).with_fallback(fallback).with_config(config());
    // Of memory that is short for what is fed; `stored.rs` has columns that stay.
    let builder = builder.with_option("cache", "off").expect("the option is taken");
    builder.with_option("memory_limit_bytes", &limit.to_string()).expect("the option is taken")
}

fn answer(result: &QueryResult) -> Answer {
    Answer::new(&result.schema, &result.batches)
}

/// Nothing of a query is left, once the device is past its last copies.
async fn clean(session: &Millpond, what: &str) {
    let engine = session.engine().expect("a device");
    let left = || {
        let promised = engine.governor().reserved(MemorySpace::Device);
        (engine.pool().used_bytes(), engine.pinned().statistics().lent, promised)
    };
    until(&format!("{what}: giving back what is used, pinned and promised"), || left() == Default::default()).await;
    assert_eq!(engine.take_findings(), Vec::<String>::new(), "{what}");
}

/// Runs `sql` on the device alone, without a limit and with a share of the peak; gives the report of the second.
async fn within(
    cpu: &Millpond,
    unlimited: &Millpond,
    limited: impl AsyncFn(u64) -> Millpond,
    sql: &str,
    share: u64,
) -> QueryResult {
    let expected = answer(&cpu.execute(sql).await.expect("the CPU's answer"));
    let ordered = sql.to_lowercase().contains("order by");
    let free = unlimited.execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    assert_eq!(expected.difference(&answer(&free), ordered), None, "{sql}");
    clean(unlimited, sql).await;
    let limit = free.report.peak_bytes / share;
    let what = format!("{sql} with {limit} of {} bytes", free.report.peak_bytes);
    let sim = limited(limit).await;
    let result = soon(&what, sim.execute(sql)).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(expected.difference(&answer(&result), ordered), None, "{what}");
    assert_eq!(result.report.notes, Vec::<String>::new(), "{what}");
    assert_eq!(result.report.operators_on_device, result.report.operators, "{what}");
    assert!(result.report.launches > 0 && result.report.peak_bytes <= limit, "{what}: {:?}", result.report);
    clean(&sim, &what).await;
    result
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_tpch_answer_in_a_quarter_of_their_peak() {
    let data = tpch::data("0.01");
    let open = async |device, limit: u64| {
        let session = builder(device, Fallback::Error, limit).build().expect("the device opens");
        tpch::register_files(session.context(), &data).await;
        session
    };
    let (cpu, sim) = (open(DeviceChoice::Cpu, 0).await, open(DeviceChoice::Sim, 0).await);
    for number in [1, 3, 6, 12, 14, 18] {
        let sql = &tpch::queries()[number - 1].1;
        within(&cpu, &sim, async |limit| open(DeviceChoice::Sim, limit).await, sql, 4).await;
    }
}

/// A sorted result that takes more than its share of pinned memory is downloaded in pieces. A result as large as all
/// pinned memory used to wait for the buffer of its own row count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_larger_than_their_share_of_pinned_memory_go_home_in_pieces() {
    let rows = 900_000_i64;
    let key: Int64Array = (0..rows).map(|row| row * 7919 % rows).collect();
    let wide: Int64Array = (0..rows).map(|row| row * 4_611_686_018_427).collect();
    let v: Int64Array = (0..rows).map(|row| (row % 11 != 0).then_some(row * 5_000_000_001)).collect();
    let text: StringArray = (0..rows).map(|row| Some(format!("row {row:012}"))).collect();
    let batch = RecordBatch::try_from_iter_with_nullable(vec![
        ("k", Arc::new(key) as _, false),
        ("wide", Arc::new(wide) as _, false),
        ("v", Arc::new(v) as _, true),
        ("text", Arc::new(text) as _, false),
    ]);
    let batch = batch.expect("columns have one length");
    let open = |device| {
        let builder = builder(device, Fallback::Error, 0).with_option("pinned_bytes", &(64 << 20).to_string());
        let builder = builder.and_then(|builder| builder.with_option("debug_dictionary_values", "100"));
        let session = builder.expect("the options are taken").build().expect("the device opens");
        let table = MemTable::try_new(batch.schema(), vec![vec![batch.clone()]]).expect("the batch has the schema");
        session.context().register_table("large", Arc::new(table)).expect("registered");
        session
    };
    let (cpu, sim) = (open(DeviceChoice::Cpu), open(DeviceChoice::Sim));
    for sql in ["SELECT wide, v, k FROM large ORDER BY k", "SELECT text, k FROM large ORDER BY k"] {
        let expected = answer(&cpu.execute(sql).await.expect("the CPU's answer"));
        let result = soon(sql, sim.execute(sql)).await.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(expected.difference(&answer(&result), true), None);
        let report = result.report;
        assert!(report.launches > 0 && report.downloaded_bytes > 16 << 20 && report.notes.is_empty(), "{report:?}");
        clean(&sim, sql).await;
    }
}

/// The sixteen others, with the CPU allowed to finish what does not fit: the right answer, and nothing left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_tpch_answers_in_a_quarter_of_its_peak_with_the_cpu_allowed() {
    let data = tpch::data("0.01");
    let open = async |device, fallback, limit: u64| {
        let session = builder(device, fallback, limit).build().expect("the device opens");
        tpch::register_files(session.context(), &data).await;
        session
    };
    let cpu = open(DeviceChoice::Cpu, Fallback::Allow, 0).await;
    let sim = open(DeviceChoice::Sim, Fallback::Error, 0).await;
    let mut on_device = 0;
    for (number, sql) in tpch::queries() {
        if [1, 3, 6, 12, 14, 18].contains(&number) {
            continue; // on the device alone, above
        }
        let expected = answer(&cpu.execute(&sql).await.expect("the CPU's answer"));
        let free = sim.execute(&sql).await.unwrap_or_else(|e| panic!("Q{number}: {e}"));
        clean(&sim, &format!("Q{number}")).await;
        let limit = free.report.peak_bytes / 4;
        let what = format!("Q{number} with {limit} of {} bytes", free.report.peak_bytes);
        let limited = open(DeviceChoice::Sim, Fallback::Allow, limit).await;
        let result = soon(&what, limited.execute(&sql)).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(expected.difference(&answer(&result), orders_its_rows(&sql)), None, "{what}");
        assert!(result.report.launches > 0 && result.report.peak_bytes <= limit, "{what}: {:?}", result.report);
        on_device += usize::from(result.report.notes.is_empty());
        clean(&limited, &what).await;
    }
    assert!(on_device >= 6, "the device alone finished {on_device} of 16");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_groups_fit_a_quarter_of_their_peak() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = async |device, limit: u64| {
        let session = builder(device, Fallback::Error, limit).build().expect("the device opens");
        register(session.context(), &folder).await;
        session
    };
    let (cpu, sim) = (open(DeviceChoice::Cpu, 0).await, open(DeviceChoice::Sim, 0).await);
    for sql in [
        // Hashed, addressed directly by range, and hashed with the groups filtered and sorted afterwards.
        "SELECT wide, count(*), sum(v) FROM plain GROUP BY wide",
        "SELECT k, count(*), sum(v) FROM file GROUP BY k",
        "SELECT wide, min(v) AS least FROM plain GROUP BY wide HAVING count(*) = 2 AND min(v) > 495 ORDER BY least, wide",
    ] {
        within(&cpu, &sim, async |limit| open(DeviceChoice::Sim, limit).await, sql, 4).await;
    }
}

/// Items wait as rows do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_and_structures_of_columns_are_made_in_a_quarter_of_their_peak() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = async |device, limit: u64| {
        let session = builder(device, Fallback::Error, limit).build().expect("the device opens");
        register(session.context(), &folder).await;
        session
    };
    let (cpu, sim) = (open(DeviceChoice::Cpu, 0).await, open(DeviceChoice::Sim, 0).await);
    for sql in [
        "SELECT wide, [wide, v, v] AS made FROM plain",
        "SELECT wide, struct(v, wide) AS made, array_remove([1, 5, NULL], v) AS others FROM plain WHERE wide > 10",
    ] {
        within(&cpu, &sim, async |limit| open(DeviceChoice::Sim, limit).await, sql, 4).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_that_wait_leave_for_the_host_and_come_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = async |device, limit: u64| {
        let session = builder(device, Fallback::Error, limit).build().expect("the device opens");
        register(session.context(), &folder).await;
        session
    };
    let (cpu, sim) = (open(DeviceChoice::Cpu, 0).await, open(DeviceChoice::Sim, 0).await);
    let sql = "SELECT wide, count(*), sum(v), min(v), max(v) FROM plain GROUP BY wide";
    let result = within(&cpu, &sim, async |limit| open(DeviceChoice::Sim, limit).await, sql, 16).await;
    // Data that an attempt spilled is not read back if an attempt with smaller parts replaces it.
    let (spilled, restored) = (result.report.spilled_bytes, result.report.restored_bytes);
    assert!(0 < restored && restored <= spilled, "{:?}", result.report);
    // EXPLAIN ANALYZE says so, too.
    let text =
        millpond::datafusion::physical_plan::display::DisplayableExecutionPlan::with_metrics(result.plan.as_ref());
    let text = text.indent(false).to_string();
    assert!(text.contains("spilled_bytes=") && !text.contains("spilled_bytes=0"), "{text}");

    let free = sim.execute(sql).await.expect("the device's answer");
    assert_eq!((free.report.spilled_bytes, free.report.restored_bytes), (0, 0), "nothing leaves where there is room");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_queries_share_a_budget_that_is_too_small_for_both() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = async |device, limit: u64| {
        let session = builder(device, Fallback::Error, limit).build().expect("the device opens");
        register(session.context(), &folder).await;
        session
    };
    let (cpu, sim) = (open(DeviceChoice::Cpu, 0).await, open(DeviceChoice::Sim, 0).await);
    let first = "SELECT wide, count(*) FROM plain GROUP BY wide";
    let second = "SELECT k, sum(v) FROM file GROUP BY k";
    let peak = sim.execute(first).await.expect("the device's answer").report.peak_bytes;
    let tight = open(DeviceChoice::Sim, peak / 2).await;
    let both = async { tokio::join!(tight.execute(first), tight.execute(second)) };
    let (one, two) = soon("one of two queries that wait for each other", both).await;
    for (sql, result) in [(first, one), (second, two)] {
        let result = result.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let expected = answer(&cpu.execute(sql).await.expect("the CPU's answer"));
        assert_eq!(expected.difference(&answer(&result), false), None, "{sql}");
    }
    clean(&tight, "two queries").await;
}

/// A session on the simulated device with `bytes` of host memory.
async fn with_host_memory(
    bytes: usize,
    fallback: Fallback,
    folder: &tempfile::TempDir,
) -> (Millpond, Arc<dyn MemoryPool>) {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(bytes));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool)).build_arc().expect("a runtime");
    let session = builder(DeviceChoice::Sim, fallback, 0).with_runtime_env(runtime).build().expect("the device opens");
    register(session.context(), folder).await;
    (session, pool)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_memory_pool_of_the_session_makes_extents_small() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cpu = builder(DeviceChoice::Cpu, Fallback::Allow, 0).build().expect("a session");
    register(cpu.context(), &folder).await;
    let sql = "SELECT name, count(*), sum(v) FROM plain WHERE k > 10 GROUP BY name";
    let expected = answer(&cpu.execute(sql).await.expect("the CPU's answer"));
    let mut extents = Vec::new();
    for bytes in [1 << 30, 1 << 20] {
        let (sim, pool) = with_host_memory(bytes, Fallback::Error, &folder).await;
        let result = sim.execute(sql).await.unwrap_or_else(|e| panic!("{bytes} bytes: {e}"));
        assert_eq!(expected.difference(&answer(&result), false), None, "{bytes} bytes");
        assert_eq!(pool.reserved(), 0, "{bytes} bytes");
        clean(&sim, sql).await;
        extents.push(result.report.pipeline_launches);
    }
    assert!(extents[1] > extents[0], "less memory, more and smaller extents: {extents:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_host_memory_at_all_is_the_cpus_turn_or_a_clear_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sql = "SELECT k, v * 2 FROM plain WHERE k < 100";
    let (sim, pool) = with_host_memory(1000, Fallback::Allow, &folder).await;
    let result = sim.execute(sql).await.expect("the CPU's answer");
    assert!(result.report.notes.iter().any(|note| note.contains("out of host memory")), "{:?}", result.report.notes);
    let expected = (0..150_000_i64).filter(|row| row * 7919 % 100_000 < 100).count();
    assert_eq!(result.batches.iter().map(RecordBatch::num_rows).sum::<usize>(), expected);
    assert_eq!(pool.reserved(), 0);
    let (sim, pool) = with_host_memory(1000, Fallback::Error, &folder).await;
    let refused = sim.execute(sql).await.err().expect("an error");
    assert!(error::is_forbidden_fallback(&refused), "{refused}");
    assert!(refused.to_string().contains("out of host memory"), "{refused}");
    assert!(refused.to_string().contains("millpond.batch_bytes"), "{refused}");
    assert_eq!(pool.reserved(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_is_given_up_gives_all_its_memory_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (sim, pool) = with_host_memory(1 << 30, Fallback::Error, &folder).await;
    for sql in ["SELECT wide, count(*) FROM plain GROUP BY wide", "SELECT k, v + 1 FROM plain WHERE v > 0"] {
        let frame = sim.context().sql(sql).await.expect("the query is planned");
        let plan = frame.create_physical_plan().await.expect("a plan");
        let mut stream = execute_stream(plan, sim.context().task_ctx()).expect("a stream");
        // Given up in the middle: it holds memory of the device, or has rows already.
        let begun = async {
            while futures::poll!(stream.next()).is_pending() && sim.pool_used_bytes() == 0 {
                tokio::task::yield_now().await;
            }
        };
        soon(sql, begun).await;
        drop(stream);
        clean(&sim, sql).await;
        assert_eq!(pool.reserved(), 0, "{sql}");
    }
}

/// Failures on order where memory is short anyway: in passes over parts of the keys, while parts leave and return.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_where_memory_is_short_leave_nothing_behind() {
    let batch = slice(&rows(), 0, 12_000);
    let open = async |device, limit: u64| {
        let builder = builder(device, Fallback::Error, limit).with_option("partitions", "2").expect("taken");
        let session = builder.build().expect("the device opens");
        let parts = vec![vec![slice(&batch, 0, 7000)], vec![slice(&batch, 7000, 5000)]];
        let table = MemTable::try_new(batch.schema(), parts).expect("batches have the schema");
        session.context().register_table("few", Arc::new(table)).expect("registered");
        session
    };
    let sql = "SELECT wide, count(*), sum(v), min(v) FROM few GROUP BY wide";
    let expected = answer(&open(DeviceChoice::Cpu, 0).await.execute(sql).await.expect("the CPU's answer"));
    let peak = open(DeviceChoice::Sim, 0).await.execute(sql).await.expect("the device's answer").report.peak_bytes;
    let tight = open(DeviceChoice::Sim, peak / 12).await;
    let driver = Arc::clone(tight.engine().and_then(|engine| engine.simulated()).expect("a simulated device"));
    driver.take_order_back(CallKind::Allocate);
    let undisturbed = tight.execute(sql).await.expect("the device's answer");
    assert_eq!(expected.difference(&answer(&undisturbed), false), None);
    assert!(undisturbed.report.spilled_bytes > 0, "{:?}", undisturbed.report);
    let tried = driver.take_order_back(CallKind::Allocate);
    let (mut answered, mut refused) = (0, 0);
    for lasts in [FailureLasts::Once, FailureLasts::UntilFree] {
        for nth in (1..=tried).step_by(1 + tried as usize / 12) {
            let what = format!("allocation {nth} of {tried} fails {lasts:?}");
            driver.order_failure(FailCall::new(CallKind::Allocate, nth, lasts));
            let result = soon(&what, tight.execute(sql)).await;
            driver.take_order_back(CallKind::Allocate);
            match result {
                Ok(result) => {
                    assert_eq!(expected.difference(&answer(&result), false), None, "{what}");
                    answered += 1;
                }
                Err(error) => {
                    assert!(lasts == FailureLasts::UntilFree, "{what}: {error}");
                    assert!(error.to_string().contains("out of device memory"), "{what}: {error}");
                    refused += 1;
                }
            }
            clean(&tight, &what).await;
        }
    }
    assert!(answered > refused, "{answered} answers, {refused} errors");
}

/// Parts of a join's keys are built and probed one after the other; key ranges pushed down for one part do not hold for
/// others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_in_parts_reads_its_probe_side_whole_each_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("few.parquet");
    write_parquet(&rows().slice(0, 64), &path, 8);
    let open = async |device, limit: u64| {
        let builder = builder(device, Fallback::Allow, limit).with_option("batch_rows", "50").expect("taken");
        let session = builder.with_option("partitions", "2").expect("taken").build().expect("the device opens");
        let path = path.to_str().expect("a UTF-8 path");
        session.context().register_parquet("few", path, Default::default()).await.expect("the file is read");
        session
    };
    let sql = "SELECT b.v, stddev_pop(a.v), count(DISTINCT b.wide) FILTER (WHERE a.k > 500), avg(a.k) \
               FROM few AS a JOIN few AS b ON a.k = b.k GROUP BY b.v";
    let expected = answer(&open(DeviceChoice::Cpu, 0).await.execute(sql).await.expect("the CPU's answer"));
    for limit in [96 << 10, 128 << 10, 160 << 10, 192 << 10] {
        let sim = open(DeviceChoice::Sim, limit).await;
        let result = sim.execute(sql).await.expect("an answer");
        assert_eq!(expected.difference(&answer(&result), false), None, "{limit} bytes");
        clean(&sim, sql).await;
    }
}
