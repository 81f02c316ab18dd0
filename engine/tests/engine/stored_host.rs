//! Columns in pinned host memory: a second tier, or the only one. They come back by a copy, and no file is read again.
//!
//!   device ─ no room ─► host ─ wanted again ─► device        cache = host: up for each run, and gone behind it

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use millpond::datafusion::object_store::memory::InMemory;
use millpond::datafusion::prelude::SessionConfig;
use millpond::store::Store;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::counted_store::{Counted, URL, put, register};
use crate::edges::edges;
use crate::support::{session_with, until};
use crate::tpch::{config, data, parquet_session, queries};

async fn set(session: &Millpond, setting: &str) {
    session.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
}

async fn answer(session: &Millpond, sql: &str) -> (Answer, u64) {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(result.report.findings, Vec::<String>::new(), "{sql}");
    assert_eq!(result.report.notes, Vec::<String>::new(), "{sql}");
    (Answer::new(&result.schema, &result.batches), result.report.uploaded_bytes)
}

fn store_of(session: &Millpond) -> Arc<Store> {
    Store::of(session.engine().expect("a device"))
}

/// Names and tiers of all columns.
fn tiers(store: &Store) -> Vec<String> {
    store.entries(None).iter().map(|entry| format!("{} {}", entry.column, entry.tier)).collect()
}

async fn over(device: DeviceChoice, files: &Arc<InMemory>) -> (Millpond, Arc<Counted>) {
    let session = session_with(device, 2, Fallback::Allow);
    let store = Counted::over(files);
    register(&session, Arc::clone(&store) as _);
    session.context().register_parquet("t", format!("{URL}t/"), Default::default()).await.expect("read");
    (session, store)
}

/// Three columns of 8,000 bytes.
async fn three() -> Arc<InMemory> {
    let files = Arc::new(InMemory::new());
    let wide =
        |by: i64| Arc::new((0..1000).map(|row| row * (i64::MAX / 1000) / by).collect::<Int64Array>()) as ArrayRef;
    let columns = [("a", wide(1)), ("b", wide(2)), ("c", wide(3))];
    put(&files, "t/x.parquet", &RecordBatch::try_from_iter(columns).expect("columns")).await;
    files
}

async fn read(session: &Millpond, column: &str) -> u64 {
    answer(session, &format!("SELECT bit_xor({column}) FROM t WHERE {column} >= 0")).await.1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_leave_for_the_host_and_come_back_without_reading() {
    let files = three().await;
    let (cpu, sim, asked) = {
        let (sim, asked) = over(DeviceChoice::Sim, &files).await;
        (over(DeviceChoice::Cpu, &files).await.0, sim, asked)
    };
    let store = store_of(&sim);
    set(&sim, "millpond.cache_bytes = 8500").await;
    set(&sim, "millpond.cache_host_bytes = 17000").await;
    for column in ["a", "b", "c"] {
        read(&sim, column).await;
        // One that was read is worth as much as one that comes, until another run has read something.
        read(&sim, column).await;
    }
    let mut there = tiers(&store);
    for (turn, column) in ["a", "b", "c", "a", "c", "b"].into_iter().cycle().take(30).enumerate() {
        let before = asked.asked();
        let sql = format!("SELECT bit_xor({column}), count({column}) FROM t WHERE {column} >= 0");
        let expected = answer(&cpu, &sql).await.0;
        let (given, uploaded) = answer(&sim, &sql).await;
        assert_eq!(expected.difference(&given, true), None, "turn {turn}, {there:?}");
        let known = there.iter().any(|of| of.starts_with(column));
        if known {
            assert_eq!(asked.asked().read_since(&before), Vec::<String>::new(), "turn {turn}: {column} of {there:?}");
            assert!(uploaded <= 8192, "{uploaded} bytes");
        }
        assert!(store.bytes() <= 8500 && store.host_bytes() <= 17000);
        there = tiers(&store);
    }
    // All three are somewhere, one of them on the device.
    assert_eq!(there.len(), 3, "{there:?}");
    assert_eq!(there.iter().filter(|of| of.ends_with("device")).count(), 1, "{there:?}");
    let listed = sim.execute("SELECT \"column\" FROM millpond_cache() WHERE tier = 'host'").await.expect("listed");
    assert_eq!(listed.batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 2);
    sim.execute("SELECT * FROM millpond_cache_clear()").await.expect("cleared");
    assert_eq!((store.bytes(), store.host_bytes(), tiers(&store).len()), (0, 0, 0));
    assert_eq!(sim.engine().expect("a device").pool().used_bytes().as_u64(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_room_on_the_host_columns_go() {
    let files = three().await;
    let sim = over(DeviceChoice::Sim, &files).await.0;
    let store = store_of(&sim);
    set(&sim, "millpond.cache_bytes = 8500").await;
    set(&sim, "millpond.cache_host_bytes = 100").await;
    for column in ["a", "b", "b", "c", "c", "a", "a"] {
        read(&sim, column).await;
        assert_eq!(store.host_bytes(), 0);
        assert!(store.bytes() <= 8500);
    }
}

/// Every type, with and without dictionaries: nothing stays on the device, and nothing is read twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_host_alone_columns_come_up_for_each_run() {
    let files = Arc::new(InMemory::new());
    put(&files, "t/a.parquet", &edges().slice(0, 1234)).await;
    put(&files, "t/b.parquet", &edges().slice(1234, 1766)).await;
    let cpu = over(DeviceChoice::Cpu, &files).await.0;
    for dictionary_values in [0, 3] {
        let (sim, asked) = over(DeviceChoice::Sim, &files).await;
        set(&sim, "millpond.cache = host").await;
        set(&sim, &format!("millpond.debug_dictionary_values = {dictionary_values}")).await;
        let (store, pool) = (store_of(&sim), sim.engine().expect("a device").pool().clone());
        for field in edges().schema().fields() {
            let sql = format!("SELECT id + 0 AS row, \"{}\" AS value FROM t WHERE id >= 0", field.name());
            let expected = answer(&cpu, &sql).await.0;
            assert_eq!(expected.difference(&answer(&sim, &sql).await.0, false), None, "{sql}");
            let before = asked.asked();
            let (second, uploaded) = answer(&sim, &sql).await;
            assert_eq!(expected.difference(&second, false), None, "{sql}, again");
            assert_eq!(asked.asked().read_since(&before), Vec::<String>::new(), "{sql}");
            assert!(uploaded > 0, "{sql} comes up");
            assert_eq!((store.bytes(), pool.used_bytes().as_u64()), (0, 0), "{sql} leaves nothing on the device");
        }
        assert!(store.host_bytes() > 0);
        assert!(tiers(&store).iter().all(|of| of.ends_with("host")), "{:?}", tiers(&store));
        // A file that is added is the only one that is read.
        let before = asked.asked();
        put(&files, "t/c.parquet", &edges().slice(7, 5)).await;
        let sql = "SELECT s, count(*), sum(i32), max(d9) FROM t GROUP BY s";
        let fresh = over(DeviceChoice::Cpu, &files).await.0;
        assert_eq!(answer(&fresh, sql).await.0.difference(&answer(&sim, sql).await.0, false), None);
        assert_eq!(asked.asked().read_since(&before), ["t/c.parquet"]);
        crate::counted_store::remove(&files, "t/c.parquet").await;
        // On the device, they leave the host.
        set(&sim, "millpond.cache = auto").await;
        answer(&sim, "SELECT sum(i32) FROM t WHERE id >= 0").await;
        assert!(store.bytes() > 0);
        store.clear();
        assert_eq!((store.bytes(), store.host_bytes(), pool.used_bytes().as_u64()), (0, 0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_too_small_is_filled_and_no_more() {
    let files = three().await;
    let (sim, asked) = over(DeviceChoice::Sim, &files).await;
    let store = store_of(&sim);
    set(&sim, "millpond.cache = host").await;
    set(&sim, "millpond.cache_host_bytes = 17000").await;
    for column in ["a", "b", "c", "a", "b", "c", "c", "c"] {
        read(&sim, column).await;
        assert!(store.host_bytes() <= 17000, "{} bytes", store.host_bytes());
        assert_eq!(store.bytes(), 0);
    }
    assert_eq!(tiers(&store).len(), 2);
    // All three at once never fit, and are fed.
    let before = asked.asked();
    answer(&sim, "SELECT sum(a % 999 + b % 999 + c % 999) FROM t").await;
    assert_eq!(asked.asked().read_since(&before), ["t/x.parquet"]);
    assert!(store.host_bytes() <= 17000);
}

/// In short memory, columns leave for the host, and queries answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_pressure_columns_leave_for_the_host() {
    let files = data("0.01");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await;
    let builder = Millpond::builder()
        .with_own_engine()
        .with_device(DeviceChoice::Sim)
        .with_fallback(Fallback::Error)
        .with_config(config(2));
    let builder = builder.with_option("memory_limit_bytes", "3000000").expect("the option is taken");
    let builder = builder.with_option("cache_host_bytes", "100000000").expect("the option is taken");
    let builder = builder.with_option("cache_settle_seconds", "0").expect("the option is taken");
    let sim = builder.build().expect("the device opens");
    crate::tpch::register_files(sim.context(), &files).await;
    let store = store_of(&sim);
    let mut on_host = 0;
    for round in 0..2 {
        for (number, sql) in queries().into_iter().filter(|(number, _)| [1, 3, 6, 12, 14, 18, 6].contains(number)) {
            let expected = answer(&cpu, &sql).await.0;
            let difference = expected.difference(&answer(&sim, &sql).await.0, true);
            assert_eq!(difference, None, "q{number:02}, round {round}");
            on_host = on_host.max(store.host_bytes());
        }
    }
    assert!(on_host > 0, "columns left for the host");
    store.clear();
    assert_eq!(sim.engine().expect("a device").pool().used_bytes().as_u64(), 0);
}

/// Two sessions, one of which keeps columns on the host alone; both tiers too small; cleared now and then.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_queries_move_columns_at_once() {
    let files = data("0.001");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await;
    let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(2), &files).await;
    let engine = sim.engine().expect("a device").clone();
    let other = Millpond::builder()
        .with_own_engine()
        .with_engine(Arc::clone(&engine))
        .with_config(SessionConfig::new().with_target_partitions(3));
    let other =
        other.with_option("cache_settle_seconds", "0").expect("the option is taken").build().expect("a session");
    crate::tpch::register_files(other.context(), &files).await;
    for session in [&sim, &other] {
        set(session, "millpond.cache_bytes = 60000").await;
        set(session, "millpond.cache_host_bytes = 60000").await;
    }
    set(&other, "millpond.cache = host").await;
    let mut expected = Vec::new();
    for (number, sql) in queries() {
        expected.push((number, sql.clone(), answer(&cpu, &sql).await.0));
    }
    let expected = Arc::new(expected);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16_usize {
        let (session, expected) = (if task % 2 == 0 { sim.clone() } else { other.clone() }, Arc::clone(&expected));
        tasks.spawn(async move {
            for turn in 0..4 {
                let (number, sql, expected) = &expected[(task * 5 + turn * 7) % expected.len()];
                let result = session.execute(sql).await.unwrap_or_else(|error| panic!("q{number:02}: {error}"));
                let difference = expected.difference(&Answer::new(&result.schema, &result.batches), true);
                assert_eq!(difference, None, "q{number:02}");
                if task == 3 {
                    Store::of(session.engine().expect("a device")).clear();
                }
            }
        });
    }
    while let Some(joined) = tasks.join_next().await {
        joined.expect("no query fails");
    }
    let store = Store::of(&engine);
    assert!(store.host_bytes() <= 60000 && store.bytes() <= 60000);
    store.clear();
    assert_eq!(engine.take_findings(), Vec::<String>::new());
    until("memory comes back", || engine.pool().used_bytes().as_u64() == 0).await;
}

/// Columns stored beside a device are lost with it, and the CPU answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_device_keeps_nothing() {
    let files = Arc::new(InMemory::new());
    let words: StringArray = (0..500).map(|row| Some(format!("w{}", row % 9))).collect();
    put(&files, "t/x.parquet", &RecordBatch::try_from_iter([("w", Arc::new(words) as ArrayRef)]).expect("a column"))
        .await;
    const SQL: &str = "SELECT w, count(*) AS n FROM t GROUP BY w";
    let expected = answer(&over(DeviceChoice::Cpu, &files).await.0, SQL).await.0;
    let mut lost = 0;
    for launch in [1, 2, 5, 8, 11] {
        for cache in ["auto", "host"] {
            let builder = Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim);
            let builder = builder.with_option("debug_sim_lose_at_launch", &launch.to_string()).expect("taken");
            let sim = builder.with_option("cache", cache).expect("taken").build().expect("the device opens");
            register(&sim, Counted::over(&files) as _);
            sim.context().register_parquet("t", format!("{URL}t/"), Default::default()).await.expect("read");
            for run in 0..4 {
                let result = sim.execute(SQL).await.unwrap_or_else(|error| panic!("launch {launch}: {error}"));
                let given = Answer::new(&result.schema, &result.batches);
                assert_eq!(expected.difference(&given, false), None, "lost at launch {launch}, run {run}");
            }
            let engine = sim.engine().expect("a device");
            if engine.device().is_lost() {
                lost += 1;
                let store = Store::of(engine);
                assert_eq!((store.bytes(), store.host_bytes(), tiers(&store).len()), (0, 0, 0), "launch {launch}");
            }
        }
    }
    assert!(lost >= 6, "{lost} devices were lost");
}
