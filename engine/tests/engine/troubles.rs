//! When things go wrong: a lost device, no memory, the query's own errors, queries that are given up or run at once.
//!
//!   trouble before the first batch ─ allow ─► the CPU's answer and a note
//!                                  └ error ─► an error that says what happened
//!
//! After each  no byte of the pool is in use, and the simulated device has found nothing.
//! Timeouts    turn a hang into a failure; they are far above what any of this takes on a busy machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use millpond::datafusion::arrow::array::{AsArray, Int64Array, StringArray};
use millpond::datafusion::arrow::compute::{cast, concat_batches};
use millpond::datafusion::arrow::datatypes::{DataType, Int64Type};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect, execute_stream};
use millpond::datafusion::prelude::SessionConfig;
use millpond::device::Engine;
use millpond::{DeviceChoice, Fallback, Millpond, error};
use millpond_data::seed;
use millpond_memory::{ByteSize, Clock, Device, DeviceBuffer, MemoryPool, Stream};

use crate::answers::{Answer, orders_its_rows};
use crate::edges::{edges, write_parquet};
use crate::support::{session_with, soon, until};

const GROUPS: &str = "SELECT k, w, count(*), sum(d9), min(x) FROM t WHERE id > 10 GROUP BY k, w";
const ROWS: &str = "SELECT id, k + w, d9 * 2, s FROM t WHERE id > 10";
const TOTAL: &str = "SELECT sum(d9 * 2), count(*), max(day) FROM t WHERE k > -15";
const SORTED: &str = "SELECT id, k, s FROM t WHERE id < 1500 ORDER BY k DESC NULLS LAST, id";

/// `t` as a Parquet file, for as long as it lives.
struct Table {
    folder: tempfile::TempDir,
}

impl Table {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write_parquet(&edges(), &folder.path().join("t.parquet"), 500);
        Self { folder }
    }

    async fn session(&self, device: DeviceChoice, fallback: Fallback, options: &[(&str, usize)]) -> Millpond {
        let config = SessionConfig::new().with_target_partitions(3).with_batch_size(256);
        let mut builder =
            Millpond::builder().with_own_engine().with_device(device).with_fallback(fallback).with_config(config);
        // Troubles while rows are fed.
        builder = builder.with_option("cache", "off").expect("the option is taken");
        for (name, value) in [("batch_rows", 400), ("partitions", 2)].iter().chain(options) {
            builder = builder.with_option(name, &value.to_string()).expect("the option is taken");
        }
        self.registered(builder.build().expect("the device opens")).await
    }

    async fn registered(&self, session: Millpond) -> Millpond {
        let path = self.folder.path().join("t.parquet");
        let path = path.to_str().expect("a UTF-8 path");
        session.context().register_parquet("t", path, Default::default()).await.expect("the file is read");
        session
    }

    async fn cpu_answer(&self, sql: &str) -> Answer {
        answer(&self.session(DeviceChoice::Cpu, Fallback::Allow, &[]).await, sql).await
    }
}

async fn answer(session: &Millpond, sql: &str) -> Answer {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    Answer::new(&result.schema, &result.batches)
}

async fn plan(session: &Millpond, sql: &str) -> Arc<dyn ExecutionPlan> {
    let frame = session.context().sql(sql).await.expect("the query is planned");
    frame.create_physical_plan().await.expect("the query has a plan")
}

/// Tasks of a query that was given up end on their own; then nothing is left.
async fn nothing_is_left(session: &Millpond, what: &str) {
    until(&format!("giving back the memory of {what}"), || session.pool_used_bytes() == 0).await;
    let findings = session.engine().expect("a device").take_findings();
    assert_eq!(findings, Vec::<String>::new(), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_device_leaves_the_answer_to_the_cpu() {
    let table = Table::new();
    for sql in [GROUPS, TOTAL, SORTED] {
        let expected = table.cpu_answer(sql).await;
        for nth in [1, 2, 5, 8] {
            let what = format!("{sql}, lost at launch {nth}");
            let sim = table.session(DeviceChoice::Sim, Fallback::Allow, &[("debug_sim_lose_at_launch", nth)]).await;
            let result = soon(&what, sim.execute(sql)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            let actual = Answer::new(&result.schema, &result.batches);
            assert_eq!(expected.difference(&actual, sql == SORTED), None, "{what}");
            // A late loss may come after the last launch of this query.
            let happened = result.report.notes.iter().any(|note| note.contains("again on the CPU"));
            assert!(happened || nth > 2, "{what}: notes {:?}", result.report.notes);
            // The report says which of the two has given the answer.
            assert_eq!(result.report.operators_on_device == 0, happened, "{what}: {:?}", result.report);
            nothing_is_left(&sim, &what).await;

            // The device is not used again; queries are still answered.
            let again = soon(&what, sim.execute(sql)).await.unwrap_or_else(|error| panic!("{what}, again: {error}"));
            let actual = Answer::new(&again.schema, &again.batches);
            assert_eq!(expected.difference(&actual, sql == SORTED), None, "{what}, again");
            nothing_is_left(&sim, &what).await;
        }
    }
}

/// A clock that a test moves, or that moves by itself when it is looked at.
#[derive(Default)]
struct TestClock {
    now_ms: AtomicU64,
    step_ms: u64,
}

impl Clock for TestClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms.fetch_add(self.step_ms, Ordering::SeqCst))
    }
}

impl Table {
    /// A session on a simulated device whose time limits use `clock`.
    async fn session_by(&self, clock: Arc<TestClock>, fallback: Fallback, options: &[(&str, usize)]) -> Millpond {
        let config = SessionConfig::new().with_target_partitions(3).with_batch_size(256);
        let mut builder = Millpond::builder()
            .with_own_engine()
            .with_device(DeviceChoice::Sim)
            .with_fallback(fallback)
            .with_config(config);
        builder = builder.with_option("cache", "off").expect("the option is taken");
        for (name, value) in [("batch_rows", 400), ("partitions", 2)].iter().chain(options) {
            builder = builder.with_option(name, &value.to_string()).expect("the option is taken");
        }
        let opened = Engine::open_with(builder.options(), clock).expect("the device opens");
        let builder = builder.with_engine(opened.engine.expect("a simulated device"));
        self.registered(builder.build().expect("the session begins")).await
    }
}

/// A kernel that does not end: the time limit does, without a wait for the device.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_hangs_is_lost_when_its_time_is_over() {
    let table = Table::new();
    for sql in [GROUPS, TOTAL, SORTED, ROWS] {
        let expected = table.cpu_answer(sql).await;
        let options = |nth| [("debug_sim_hang_at_launch", nth), ("device_timeout", 600)];
        // A second passes with every look at the clock.
        let ticking = || Arc::new(TestClock { step_ms: 1000, ..TestClock::default() });
        let what = format!("{sql}, hanging at the first launch");
        let sim = table.session_by(ticking(), Fallback::Allow, &options(1)).await;
        for is_first in [true, false] {
            let result = soon(&what, sim.execute(sql)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            let actual = Answer::new(&result.schema, &result.batches);
            assert_eq!(expected.difference(&actual, sql == SORTED), None, "{what}, first: {is_first}");
            // The device is not used again, so a later query has nothing to tell.
            let told = result.report.notes.iter().any(|note| note.contains("millpond.device_timeout"));
            assert_eq!(told, is_first, "{what}: notes {:?}", result.report.notes);
        }
        nothing_is_left(&sim, &what).await;
        // The last handle of a device that hangs: closing it would wait for ever, and here panics.
        drop(sim);

        let sim = table.session_by(ticking(), Fallback::Error, &options(1)).await;
        let refused = soon(&what, sim.execute(sql)).await.err().unwrap_or_else(|| panic!("{what}: no error"));
        assert!(error::is_forbidden_fallback(&refused), "{what}: {refused}");
        let words = refused.to_string();
        assert!(words.contains("is lost") && words.contains("completed for 600 s"), "{what}: {words}");
        nothing_is_left(&sim, &what).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_device_gives_its_memory_back() {
    let table = Table::new();
    let clock = Arc::new(TestClock::default());
    let sim = table.session_by(Arc::clone(&clock), Fallback::Error, &[]).await;
    let engine = Arc::clone(sim.engine().expect("a device"));
    let reserved = || engine.pool().statistics().expect("the device works").reserved.as_u64();
    let expected = table.cpu_answer(GROUPS).await;
    for _ in 0..2 {
        assert_eq!(expected.difference(&answer(&sim, GROUPS).await, false), None);
        nothing_is_left(&sim, GROUPS).await;
        assert_eq!(engine.idle().look(), None, "the query has just ended");
        assert!(reserved() > 0, "what was freed is kept for the next query");
        clock.now_ms.fetch_add(29_999, Ordering::SeqCst);
        assert_eq!(engine.idle().look(), None);
        clock.now_ms.fetch_add(1, Ordering::SeqCst);
        assert!(engine.idle().look().is_some_and(|bytes| bytes.as_u64() > 0));
        assert_eq!(reserved(), 0);
    }
}

/// Without pinned memory copies are slow, and the device is still used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_answer_without_pinned_memory() {
    let table = Table::new();
    for sql in [GROUPS, TOTAL, SORTED, ROWS] {
        let expected = table.cpu_answer(sql).await;
        for nth in [1, 2, 3, 5, 9] {
            let what = format!("{sql}, without pinned memory from allocation {nth} on");
            let sim = table.session(DeviceChoice::Sim, Fallback::Error, &[("debug_sim_fail_pinned", nth)]).await;
            let result = soon(&what, sim.execute(sql)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            let actual = Answer::new(&result.schema, &result.batches);
            assert_eq!(expected.difference(&actual, sql == SORTED), None, "{what}");
            let pageable = sim.engine().expect("a device").pinned().statistics().pageable;
            assert!(pageable > 0 || nth > 3, "{what}: {pageable} buffers of ordinary memory");
            nothing_is_left(&sim, &what).await;
        }
    }
}

/// Another process takes the device's memory after we have set our limit: queries take less at a time, or run on the
/// CPU.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_neighbour_that_takes_the_memory_fails_no_query() {
    const MEMORY: usize = 256 << 20;
    let table = Table::new();
    for sql in [GROUPS, TOTAL, SORTED, ROWS] {
        let expected = table.cpu_answer(sql).await;
        for left in [0, 1 << 20, 16 << 20] {
            let what = format!("{sql} in {left} bytes that a neighbour leaves");
            let sim = table.session(DeviceChoice::Sim, Fallback::Allow, &[("debug_sim_memory_bytes", MEMORY)]).await;
            let other = sim.engine().and_then(|engine| engine.simulated()).expect("simulated").second_process();
            let device = Device::open(other, 0).expect("the same device");
            let theirs = Stream::new(&device).expect("a stream");
            let free = device.memory_info().expect("the device works").free_bytes;
            let pool = MemoryPool::builder(&device).limit(ByteSize(free)).build().expect("a pool");
            let bytes = (free as usize - left) & !0x1f_ffff;
            let taken = DeviceBuffer::new(bytes, &theirs, &pool).expect("there is room");
            let result = soon(&what, sim.execute(sql)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            let actual = Answer::new(&result.schema, &result.batches);
            assert_eq!(expected.difference(&actual, sql == SORTED), None, "{what}");
            nothing_is_left(&sim, &what).await;
            // The neighbour has gone: the limit is what it was.
            drop(taken);
            theirs.synchronize().expect("the device works");
            pool.trim_to(ByteSize::ZERO).expect("the device works");
            let again = soon(&what, sim.execute(sql)).await.unwrap_or_else(|error| panic!("{what}, again: {error}"));
            assert_eq!(again.report.notes, Vec::<String>::new(), "{what}, again");
            drop((pool, theirs, device));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_device_is_an_error_where_the_cpu_is_forbidden() {
    let table = Table::new();
    for sql in [GROUPS, TOTAL, SORTED, ROWS] {
        for nth in [1, 2] {
            let what = format!("{sql}, lost at launch {nth}");
            let sim = table.session(DeviceChoice::Sim, Fallback::Error, &[("debug_sim_lose_at_launch", nth)]).await;
            let refused = soon(&what, sim.execute(sql)).await.err().unwrap_or_else(|| panic!("{what}: no error"));
            assert!(error::is_forbidden_fallback(&refused), "{what}: {refused}");
            assert!(refused.to_string().contains("lost"), "{what}: {refused}");
            nothing_is_left(&sim, &what).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory_that_nothing_cures() {
    let table = Table::new();
    for sql in [GROUPS, TOTAL, SORTED, ROWS] {
        let expected = table.cpu_answer(sql).await;
        for limit in [1, 2_000, 20_000] {
            let what = format!("{sql} in {limit} bytes");
            let options = [("memory_limit_bytes", limit)];
            let sim = table.session(DeviceChoice::Sim, Fallback::Allow, &options).await;
            let result = soon(&what, sim.execute(sql)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            let actual = Answer::new(&result.schema, &result.batches);
            assert_eq!(expected.difference(&actual, sql == SORTED), None, "{what}");
            let told = result.report.notes.iter().any(|note| note.contains("memory") && note.contains("on the CPU"));
            assert!(told || limit > 2_000, "{what}: notes {:?}", result.report.notes);
            nothing_is_left(&sim, &what).await;

            let sim = table.session(DeviceChoice::Sim, Fallback::Error, &options).await;
            match soon(&what, sim.execute(sql)).await {
                Ok(result) => assert!(limit > 2_000 && result.report.notes.is_empty(), "{what}"),
                Err(refused) => {
                    assert!(refused.to_string().contains("out of device memory"), "{what}: {refused}");
                    assert!(refused.to_string().contains("millpond.memory_limit_bytes"), "{what}: {refused}");
                }
            }
            nothing_is_left(&sim, &what).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allocation_that_fails_is_no_wrong_answer() {
    let table = Table::new();
    for sql in [GROUPS, SORTED, ROWS] {
        let expected = table.cpu_answer(sql).await;
        for (nth, until_free) in [(1, 0), (1, 1), (2, 1), (4, 1), (7, 1)] {
            let what = format!("{sql}, allocation {nth} fails");
            let config = SessionConfig::new().with_target_partitions(3);
            let builder = Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim).with_config(config);
            let builder = builder.with_option("batch_rows", "400").expect("the option is taken");
            let builder = builder.with_option("debug_sim_fail_allocation", &nth.to_string()).expect("taken");
            let until_free = if until_free == 1 { "true" } else { "false" };
            let builder = builder.with_option("debug_sim_fail_until_free", until_free).expect("taken");
            let sim = table.registered(builder.build().expect("the device opens")).await;
            match soon(&what, sim.execute(sql)).await {
                Ok(result) => {
                    let actual = Answer::new(&result.schema, &result.batches);
                    assert_eq!(expected.difference(&actual, sql == SORTED), None, "{what}");
                }
                // Rows that have left cannot be taken back: then it is an error, and says so.
                Err(refused) => assert!(sql == ROWS && refused.to_string().contains("memory"), "{what}: {refused}"),
            }
            nothing_is_left(&sim, &what).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_querys_own_errors_have_datafusions_words() {
    let table = Table::new();
    let cpu = table.session(DeviceChoice::Cpu, Fallback::Allow, &[]).await;
    for (sql, words) in [
        ("SELECT id, 1 / (k - k) FROM t WHERE k > 0", "Divide by zero"),
        ("SELECT sum(100 / (k - k)) FROM t WHERE k > 0", "Divide by zero"),
        ("SELECT id % (k - k) FROM t WHERE k > 0", "Divide by zero"),
        ("SELECT d9 / (d9 - d9) FROM t WHERE d9 > 0", "Divide by zero"),
        ("SELECT d38 * d38 FROM t WHERE d38 > 0", "verflow"),
        ("SELECT abs(i64) FROM t WHERE i64 < 0", "verflow"),
        ("SELECT CAST(i64 AS INT) FROM t WHERE id > 3", "Can't cast value"),
        ("SELECT CAST(i32 AS TINYINT) FROM t WHERE id > 3", "Can't cast value"),
        ("SELECT CAST(s AS INT) FROM t WHERE id > 3", "Cannot cast string"),
    ] {
        let expected = cpu.execute(sql).await.err().unwrap_or_else(|| panic!("{sql}: the CPU has no error"));
        assert!(expected.to_string().contains(words), "{sql}: {expected}");
        for fallback in [Fallback::Allow, Fallback::Error] {
            let sim = table.session(DeviceChoice::Sim, fallback, &[]).await;
            let actual = soon(sql, sim.execute(sql)).await.err().unwrap_or_else(|| panic!("{sql}: no error"));
            assert!(actual.to_string().contains(words), "{sql} under {fallback}: {actual}\ninstead of {expected}");
            assert!(!error::is_forbidden_fallback(&actual), "{sql} under {fallback}: {actual}");
            nothing_is_left(&sim, sql).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_for_rows_that_are_reached() {
    let table = Table::new();
    let sim = table.session(DeviceChoice::Sim, Fallback::Error, &[]).await;
    for sql in [
        "SELECT sum(CASE WHEN k <> 0 THEN 100 / k ELSE 0 END) FROM t WHERE id > 3",
        "SELECT id, COALESCE(w, 1 / NULLIF(k, 0)) FROM t WHERE id > 3",
        "SELECT 100 / k FROM (SELECT k FROM t WHERE k > 0 AND id > 3)",
    ] {
        let expected = table.cpu_answer(sql).await;
        assert_eq!(expected.difference(&answer(&sim, sql).await, false), None, "{sql}");
        nothing_is_left(&sim, sql).await;
    }
}

/// DataFusion never asks for the other side of a join without rows on the first, so no error of it may reach the user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_that_the_cpu_never_reads_may_fail() {
    let table = Table::new();
    // This window runs on the CPU, above a division that fails.
    let sql = "SELECT a.id, b.n FROM (SELECT id, k FROM t WHERE id < 0) AS a \
               JOIN (SELECT id, count(DISTINCT id) OVER (PARTITION BY 1 / (k - k)) AS n FROM t WHERE k IS NOT NULL) AS b ON a.id = b.id";
    let expected = table.cpu_answer(sql).await;
    let session = table.session(DeviceChoice::Sim, Fallback::Allow, &[]).await;
    let result = session.execute(sql).await.expect("the CPU answers");
    assert_eq!(expected.difference(&Answer::new(&result.schema, &result.batches), false), None, "{sql}");
    assert!(result.report.launches > 0, "{:?}", result.report);
    let notes = &result.report.notes;
    assert!(notes.iter().any(|note| note.contains("ran this part again on the CPU")), "{notes:?}");
    nothing_is_left(&session, sql).await;
    // An input that it does read fails with its own message.
    let read = sql.replace("id < 0", "id < 10");
    let error = session.execute(&read).await.err().expect("a division by zero").to_string();
    assert!(error.contains("Divide by zero"), "{error}");
    nothing_is_left(&session, &read).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_is_given_up_leaves_nothing() {
    let table = Table::new();
    let sim = table.session(DeviceChoice::Sim, Fallback::Error, &[("batch_rows", 100)]).await;
    for sql in [ROWS, GROUPS, TOTAL, SORTED] {
        // Never polled.
        drop(execute_stream(plan(&sim, sql).await, sim.context().task_ctx()).expect("a stream"));
        nothing_is_left(&sim, sql).await;

        // Polled once: hardly anything can be there.
        let mut stream = execute_stream(plan(&sim, sql).await, sim.context().task_ctx()).expect("a stream");
        drop(futures::poll!(stream.next()));
        drop(stream);
        nothing_is_left(&sim, sql).await;

        // Given up after the first batch.
        let mut stream = execute_stream(plan(&sim, sql).await, sim.context().task_ctx()).expect("a stream");
        let first = soon(sql, stream.next()).await.expect("a batch").expect("no error");
        assert!(first.num_rows() > 0);
        drop(stream);
        nothing_is_left(&sim, sql).await;

        // LIMIT gives up on its own.
        let limited = format!("SELECT * FROM ({sql}) LIMIT 1");
        assert_eq!(soon(&limited, answer(&sim, &limited)).await.num_rows(), 1);
        nothing_is_left(&sim, &limited).await;

        let expected = table.cpu_answer(sql).await;
        assert_eq!(expected.difference(&answer(&sim, sql).await, sql == SORTED), None, "{sql}, afterwards");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_queries_at_once_give_their_own_answers() {
    let table = Table::new();
    let sim = table.session(DeviceChoice::Sim, Fallback::Error, &[]).await;
    let (groups, rows) = (table.cpu_answer(GROUPS).await, table.cpu_answer(ROWS).await);
    for _ in 0..3 {
        let (first, second) = soon("two queries", async { tokio::join!(sim.execute(GROUPS), sim.execute(ROWS)) }).await;
        let (first, second) = (first.expect("an answer"), second.expect("an answer"));
        assert_eq!(groups.difference(&Answer::new(&first.schema, &first.batches), false), None);
        assert_eq!(rows.difference(&Answer::new(&second.schema, &second.batches), false), None);
        // Reports are of their own queries: 2,989 rows in extents of at most 400.
        assert!(first.report.launches > 0 && second.report.launches >= 8, "{:?}", second.report);
        nothing_is_left(&sim, "two queries").await;
    }

    // Another session on the same device.
    let other =
        Millpond::builder().with_engine(Arc::clone(sim.engine().expect("a device"))).build().expect("a session");
    let other = table.registered(other).await;
    let (first, second) =
        soon("two sessions", async { tokio::join!(answer(&sim, GROUPS), answer(&other, ROWS)) }).await;
    assert_eq!(groups.difference(&first, false), None);
    assert_eq!(rows.difference(&second, false), None);
    nothing_is_left(&sim, "two sessions").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn giving_up_one_query_does_not_disturb_the_other() {
    let table = Table::new();
    let sim = table.session(DeviceChoice::Sim, Fallback::Error, &[("batch_rows", 200)]).await;
    let expected = table.cpu_answer(GROUPS).await;
    for polled in [0, 1, 2] {
        let mut given_up = execute_stream(plan(&sim, ROWS).await, sim.context().task_ctx()).expect("a stream");
        let running = {
            let sim = sim.clone();
            tokio::spawn(async move { answer(&sim, GROUPS).await })
        };
        for _ in 0..polled {
            soon("the first query", given_up.next()).await.expect("a batch").expect("no error");
        }
        drop(given_up);
        let actual = soon("the second query", running).await.expect("the task ends");
        assert_eq!(expected.difference(&actual, false), None, "given up after {polled} batches");
        nothing_is_left(&sim, "both queries").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_runs_twice() {
    let table = Table::new();
    let sim = table.session(DeviceChoice::Sim, Fallback::Error, &[]).await;
    for sql in [GROUPS, ROWS, TOTAL, SORTED] {
        let plan = plan(&sim, sql).await;
        let expected = table.cpu_answer(sql).await;
        let run = || collect(Arc::clone(&plan), sim.context().task_ctx());
        for batches in [run().await, run().await] {
            let actual = Answer::new(&plan.schema(), &batches.expect("an answer"));
            assert_eq!(expected.difference(&actual, sql == SORTED), None, "{sql}");
        }
        // And at once.
        let (first, second) = soon(sql, async { tokio::join!(run(), run()) }).await;
        for batches in [first, second] {
            let actual = Answer::new(&plan.schema(), &batches.expect("an answer"));
            assert_eq!(expected.difference(&actual, sql == SORTED), None, "{sql}, at once");
        }
        nothing_is_left(&sim, sql).await;
    }
}

/// Runs of a plan share the dictionaries of its columns: two that begin together fill them, and sort them, at the same
/// time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_plan_runs_twice_at_once() {
    let table = Table::new();
    let sim = table.session(DeviceChoice::Sim, Fallback::Error, &[("batch_rows", 100)]).await;
    for sql in [
        "SELECT s, count(*), min(id) FROM t GROUP BY s",
        "SELECT k, min(s), max(s) FROM t GROUP BY k",
        "SELECT id, s FROM t WHERE s LIKE '%a%' ORDER BY s, id",
        "SELECT a.id, b.s FROM t a JOIN t b ON a.s = b.s WHERE a.id < 300 AND b.id < 300",
    ] {
        let expected = table.cpu_answer(sql).await;
        for _ in 0..4 {
            let plan = plan(&sim, sql).await;
            let run = || tokio::spawn(collect(Arc::clone(&plan), sim.context().task_ctx()));
            for batches in soon(sql, futures::future::join_all([run(), run(), run()])).await {
                let actual = Answer::new(&plan.schema(), &batches.expect("the task ends").expect("an answer"));
                assert_eq!(expected.difference(&actual, orders_its_rows(sql)), None, "{sql}");
            }
        }
        nothing_is_left(&sim, sql).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_output_that_is_polled_late_or_never_stops_nothing() {
    let table = Table::new();
    let sim = table.session(DeviceChoice::Sim, Fallback::Allow, &[("batch_rows", 100)]).await;
    let expected = table.cpu_answer(ROWS).await;

    // One stream is begun and left alone while others run to their end; then it goes on.
    let late_plan = plan(&sim, ROWS).await;
    let mut late = execute_stream(Arc::clone(&late_plan), sim.context().task_ctx()).expect("a stream");
    let never = execute_stream(plan(&sim, ROWS).await, sim.context().task_ctx()).expect("a stream");
    let mut batches = vec![soon("the first batch", late.next()).await.expect("a batch").expect("no error")];
    for sql in [GROUPS, ROWS, TOTAL] {
        let other = soon(sql, answer(&sim, sql)).await;
        assert_eq!(table.cpu_answer(sql).await.difference(&other, false), None, "{sql} beside a late one");
    }
    while let Some(batch) = soon("the late query", late.next()).await {
        batches.push(batch.expect("no error"));
    }
    assert_eq!(expected.difference(&Answer::new(&late_plan.schema(), &batches), false), None);
    drop((late, never));
    nothing_is_left(&sim, "a late and a forgotten query").await;

    // A plan with several outputs above device subtrees: one is read to its end while the others wait or are dropped.
    let halves = "SELECT k, n, max(n) OVER (PARTITION BY k) AS t, approx_median(w) OVER (PARTITION BY k) AS c FROM \
                  (SELECT k, w, count(*) AS n FROM t WHERE w > 0 GROUP BY k, w)";
    // Dictionaries of dictionaries have no device form, so the union stays on the CPU.
    let packed = |column: &str| {
        format!(
            "arrow_cast(arrow_cast({column}, 'Dictionary(UInt32, Int32)'), 'Dictionary(Int32, Dictionary(UInt32, Int32))')"
        )
    };
    let id = packed("id");
    let union = &format!("SELECT {id}, k FROM t WHERE id > 10 UNION ALL SELECT {id}, w FROM t WHERE id > 20 AND w = 1");
    let several = table.session(DeviceChoice::Sim, Fallback::Allow, &[]).await;
    for setting in [
        "hash_join_single_partition_threshold = 0",
        "hash_join_single_partition_threshold_rows = 0",
        // A partitioned join publishes its filter when all its partitions have been polled, on the CPU as well.
        "enable_dynamic_filter_pushdown = false",
    ] {
        several.context().sql(&format!("SET datafusion.optimizer.{setting}")).await.expect("taken");
    }
    for sql in [halves, union] {
        let whole = table.cpu_answer(sql).await;
        for read in 0..2 {
            let plan = plan(&several, sql).await;
            let partitions = plan.output_partitioning().partition_count();
            assert!(partitions > 1, "{sql}: {partitions} partitions");
            let context = several.context().task_ctx();
            let mut outputs: Vec<_> =
                (0..partitions).map(|p| plan.execute(p, Arc::clone(&context)).expect("a stream")).collect();
            if partitions > 2 {
                drop(outputs.pop());
            }
            let mut rows = 0;
            while let Some(batch) = soon("one of several outputs", outputs[read].next()).await {
                rows += batch.expect("no error").num_rows();
            }
            assert!(rows > 0 && rows < whole.num_rows(), "{sql}: {rows} rows of {}", whole.num_rows());
            drop(outputs);
            nothing_is_left(&several, sql).await;
        }
        assert_eq!(whole.difference(&answer(&several, sql).await, false), None, "{sql}");
    }
}

/// A dictionary that outgrows the plan for its codes, and statistics that are wrong, start the run again: on all rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_attempt_reads_all_rows_again() {
    let table = Table::new();
    let sim = table.session(DeviceChoice::Sim, Fallback::Error, &[]).await;
    // 37 values of k in text form: more than a run plans for.
    let texts = "SELECT arrow_cast(k, 'Utf8') AS text, k, id FROM t";
    let cpu = table.session(DeviceChoice::Cpu, Fallback::Allow, &[]).await;
    let rows = cpu.execute(texts).await.expect("rows");
    let path = table.folder.path().join("texts.parquet");
    let batch = concat_batches(&rows.schema, &rows.batches).expect("one batch");
    write_parquet(&batch, &path, 500);
    for session in [&cpu, &sim] {
        let path = path.to_str().expect("a UTF-8 path");
        session.context().register_parquet("texts", path, Default::default()).await.expect("the file is read");
    }
    for sql in [
        "SELECT text, count(*), sum(id) FROM texts GROUP BY text",
        "SELECT text, k, count(*) FROM texts WHERE id > 5 GROUP BY text, k",
    ] {
        let expected = answer(&cpu, sql).await;
        assert_eq!(expected.difference(&answer(&sim, sql).await, false), None, "{sql}");
        nothing_is_left(&sim, sql).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_schedule_of_the_device_gives_the_same_answer() {
    let table = Table::new();
    // Two that are always tried, and three that change with the commit.
    let seed = seed::of_commit("MILLPOND_FUZZ_SEED") as usize;
    println!("MILLPOND_FUZZ_SEED={seed:x}");
    let schedules = [1, 2, seed | 1, seed.rotate_left(7) | 1, seed.rotate_left(13) | 1];
    for sql in [GROUPS, TOTAL, SORTED, ROWS] {
        let expected = table.cpu_answer(sql).await;
        for seed in schedules {
            let sim = table.session(DeviceChoice::Sim, Fallback::Error, &[("debug_sim_seed", seed)]).await;
            let actual = soon(sql, answer(&sim, sql)).await;
            assert_eq!(expected.difference(&actual, sql == SORTED), None, "{sql} with seed {seed}");
            nothing_is_left(&sim, sql).await;
        }
    }
}

/// Dictionaries hold 1,000 values here, and 4,000 where an expression needs one. The first rows have left by the time
/// it is full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_go_on_leaving_when_their_strings_outgrow_a_dictionary() {
    let rows = 12_000_i64;
    let (v, s) =
        ((0..rows).collect::<Int64Array>(), (0..rows).map(|i| Some(format!("s{i:07}"))).collect::<StringArray>());
    let batch = RecordBatch::try_from_iter([("v", Arc::new(v) as _), ("s", Arc::new(s) as _)]).expect("one length");
    let batches: Vec<RecordBatch> =
        (0..batch.num_rows()).step_by(500).map(|at| batch.slice(at, 500.min(batch.num_rows() - at))).collect();
    let sql =
        "SELECT regexp_replace(s, '^s(.*)', 'S\\1') AS s, v * 2 AS twice FROM strings WHERE s LIKE '%77' AND v > 10";
    for (partitions, fallback) in [(1, Fallback::Allow), (3, Fallback::Allow), (1, Fallback::Error)] {
        let session = session_with(DeviceChoice::Sim, 1, fallback);
        let parts = batches.chunks(batches.len().div_ceil(partitions)).map(<[RecordBatch]>::to_vec).collect();
        let table = MemTable::try_new(batch.schema(), parts).expect("batches have the schema");
        session.context().register_table("strings", Arc::new(table)).expect("registered");
        session.context().sql("SET millpond.batch_rows = 1000").await.expect("an option");
        session.context().sql("SET millpond.debug_dictionary_values = 1000").await.expect("an option");
        let result = session.execute(sql).await;
        if fallback == Fallback::Error {
            let Err(error) = result else { panic!("the device cannot answer alone") };
            let error = error.to_string();
            assert!(error.contains("more than 4000 different values"), "{error}");
            continue;
        }
        let result = result.unwrap_or_else(|e| panic!("{partitions} partitions: {e}"));
        let mut found: Vec<(String, i64)> = Vec::new();
        for batch in &result.batches {
            let strings = cast(batch.column(0), &DataType::Utf8).expect("strings are strings");
            let (s, twice) = (strings.as_string::<i32>(), batch.column(1).as_primitive::<Int64Type>());
            found.extend((0..batch.num_rows()).map(|row| (s.value(row).to_string(), twice.value(row))));
        }
        found.sort();
        let expected: Vec<(String, i64)> =
            (11..rows).filter(|v| v % 100 == 77).map(|v| (format!("S{v:07}"), v * 2)).collect();
        assert_eq!(found, expected, "{partitions} partitions");
        assert!(result.report.launches > 0);
        let note = "a dictionary has more than 4000 different values – ran those rows on the CPU";
        assert!(result.report.notes.iter().any(|known| known.contains(note)), "{:?}", result.report.notes);
    }
}
