//! Interruptions: reads that fail, full disks, readers that leave at any moment, many concurrent sessions.
//!
//!   statement ─► after n reads: an error · after n polls, or n pieces of work on the device: the reader leaves
//!        └─► an error with the file and the cause, or nothing at all; then the same statement again, and its answer
//!
//! After each  no byte of the pool is in use except what the cache keeps, and the simulated device has no finding.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use futures::StreamExt;
use futures::future::try_join_all;
use millpond::datafusion::object_store::memory::InMemory;
use millpond::datafusion::physical_plan::execute_stream;
use millpond::datafusion::prelude::SessionConfig;
use millpond::error::{is_forbidden_fallback, is_panic};
use millpond::store::Store;
use millpond::{DeviceChoice, Fallback, Millpond};
use millpond_memory::driver::sim::{CallKind, FailCall, FailureLasts};

use crate::answers::Answer;
use crate::counted_store::{Counted, FULL, UNREACHABLE, URL, put, register};
use crate::edges::{edges, write_parquet};
use crate::support::{soon, until};
use crate::tpch::{data, queries, register_files};

/// Statements that come to the device in different ways, and whether their rows have an order.
const SHAPES: [(&str, bool); 5] = [
    ("SELECT k, w, count(*), sum(d9), min(x) FROM t WHERE id > 10 GROUP BY k, w", false),
    ("SELECT a.id, b.s FROM t a JOIN t b ON a.id = b.id WHERE a.k > 0 AND b.w IS NOT NULL", false),
    ("SELECT id, k, s FROM t WHERE id < 1500 ORDER BY k DESC NULLS LAST, id", true),
    ("SELECT id, d9 * 2 AS twice FROM t ORDER BY twice DESC NULLS LAST, id LIMIT 20", true),
    ("SELECT id, k + w, d9 * 2, s FROM t WHERE id > 10", false),
];

/// How rows come from files: decoded on the host or on the device, and from columns that stay.
const READERS: [&[(&str, &str)]; 3] = [
    &[("cache", "off"), ("parquet_decoder", "host")],
    &[("cache", "off"), ("parquet_decoder", "device")],
    &[("cache", "auto"), ("parquet_decoder", "device")],
];

fn session(device: DeviceChoice, fallback: Fallback, options: &[(&str, &str)]) -> Millpond {
    let config = SessionConfig::new().with_target_partitions(2).with_batch_size(256);
    let mut builder =
        Millpond::builder().with_own_engine().with_device(device).with_fallback(fallback).with_config(config);
    for (name, value) in
        [("batch_rows", "400"), ("partitions", "2"), ("cache_settle_seconds", "0")].iter().chain(options)
    {
        builder = builder.with_option(name, value).expect("the option is taken");
    }
    builder.build().expect("the device opens")
}

async fn answer(session: &Millpond, sql: &str) -> Answer {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    Answer::new(&result.schema, &result.batches)
}

/// Tasks of a statement that was given up end on their own; then nothing is left but columns that stay, which go now.
async fn nothing_is_left(session: &Millpond, what: &str) {
    let engine = session.engine().expect("a device");
    let left = || {
        Store::of(engine).clear();
        session.pool_used_bytes() == 0 && engine.pinned().statistics().lent.as_u64() == 0
    };
    until(&format!("giving back the memory of {what}"), left).await;
    assert_eq!(engine.take_findings(), Vec::<String>::new(), "{what}");
    let errors: Vec<String> = engine.device().take_errors().iter().map(ToString::to_string).collect();
    assert_eq!(errors, Vec::<String>::new(), "{what}: errors in drops");
}

/// `t` in two files of a store that fails on order.
async fn far(device: DeviceChoice, options: &[(&str, &str)], files: &Arc<InMemory>) -> (Millpond, Arc<Counted>) {
    let session = session(device, Fallback::Allow, options);
    let store = Counted::over(files);
    register(&session, Arc::clone(&store) as _);
    session.context().register_parquet("t", format!("{URL}t/"), Default::default()).await.expect("read");
    (session, store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_fails_in_mid_scan_is_an_error_with_file_and_cause() {
    let files = Arc::new(InMemory::new());
    put(&files, "t/first.parquet", &edges().slice(0, 1400)).await;
    put(&files, "t/second.parquet", &edges().slice(1400, 1600)).await;
    let cpu = far(DeviceChoice::Cpu, &[], &files).await.0;
    for options in READERS {
        for (sql, ordered) in [SHAPES[0], SHAPES[4]] {
            let expected = answer(&cpu, sql).await;
            for goes_away in [false, true] {
                let (mut failed, mut nth) = (0, 1);
                loop {
                    let what = format!("{sql}, {options:?}, read {nth} fails, and later ones: {goes_away}");
                    let (sim, store) = far(DeviceChoice::Sim, options, &files).await;
                    store.fail_read(nth, goes_away);
                    let ran = soon(&what, sim.execute(sql)).await;
                    let reached = store.come_back() == 0;
                    match ran {
                        // Read-ahead and repeated reads may fail unseen.
                        Ok(result) => {
                            let actual = Answer::new(&result.schema, &result.batches);
                            assert_eq!(expected.difference(&actual, ordered), None, "{what}");
                        }
                        Err(error) => {
                            let words = error.to_string();
                            assert!(words.contains(UNREACHABLE), "{what}: {words}");
                            let file = words.contains("t/first.parquet") || words.contains("t/second.parquet");
                            assert!(file, "{what}: {words}");
                            assert!(!is_panic(&error) && !words.contains("nternal error"), "{what}: {words}");
                            failed += 1;
                        }
                    }
                    nothing_is_left(&sim, &what).await;
                    assert_eq!(expected.difference(&answer(&sim, sql).await, ordered), None, "{what}, afterwards");
                    nothing_is_left(&sim, &what).await;
                    if !reached {
                        break;
                    }
                    nth += 1;
                }
                // A load that fails once leaves the query to read by itself.
                let least = if goes_away || options[0] == ("cache", "off") { 2 } else { 0 };
                assert!(failed >= least, "{sql}, {options:?}, {goes_away}: {failed} of {nth} reads");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_an_error_of_the_copy_alone() {
    let files = Arc::new(InMemory::new());
    put(&files, "t/first.parquet", &edges()).await;
    let cpu = far(DeviceChoice::Cpu, &[], &files).await.0;
    let expected = answer(&cpu, SHAPES[0].0).await;
    for options in READERS {
        let (sim, store) = far(DeviceChoice::Sim, options, &files).await;
        for format in ["PARQUET", "CSV", "JSON"] {
            let what = format!("a copy as {format}, {options:?}");
            let copy = format!("COPY (SELECT id, k, d9 FROM t WHERE id > 10) TO '{URL}out.file' STORED AS {format}");
            store.fill_up(true);
            let error = soon(&what, sim.execute(&copy)).await.err().unwrap_or_else(|| panic!("{what}: no error"));
            // Of text files DataFusion drops the cause; the command line puts its words into others.
            let words = if format == "PARQUET" { FULL } else { "while finalizing writes" };
            assert!(error.to_string().contains(words), "{what}: {error}");
            assert!(!is_panic(&error), "{what}: {error}");
            nothing_is_left(&sim, &what).await;
            assert_eq!(
                expected.difference(&answer(&sim, SHAPES[0].0).await, false),
                None,
                "{what}, beside a full disk"
            );
            store.fill_up(false);
            let copied = soon(&what, sim.execute(&copy)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(copied.report.launches > 0, "{what}");
            nothing_is_left(&sim, &what).await;
        }
    }
}

/// The folder of assembled kernels goes away, and a file is in its place: nothing can be kept, and nothing else is
/// lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernels_that_cannot_be_written_are_assembled_all_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    write_parquet(&edges(), &folder.path().join("t.parquet"), 500);
    let kernels = folder.path().join("kernels");
    let at = kernels.to_str().expect("UTF-8");
    let sim = session(DeviceChoice::Sim, Fallback::Error, &[("kernel_cache", at), ("cache", "off")]);
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, &[]);
    for session in [&sim, &cpu] {
        let path = folder.path().join("t.parquet");
        let path = path.to_str().expect("UTF-8");
        session.context().register_parquet("t", path, Default::default()).await.expect("the file is read");
    }
    std::fs::remove_dir_all(&kernels).expect("the folder goes");
    std::fs::write(&kernels, "no folder").expect("a file in its place");
    for (sql, ordered) in SHAPES {
        assert_eq!(answer(&cpu, sql).await.difference(&answer(&sim, sql).await, ordered), None, "{sql}");
        nothing_is_left(&sim, sql).await;
    }
    let statistics = sim.engine().and_then(|engine| engine.kernel_cache()).expect("a folder was named").statistics();
    assert!(statistics.assembled > 0 && statistics.written == 0, "{statistics:?}");
}

/// A stream that the driver has no memory for is retried with less at a time, while that may help; then its error is
/// reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_refused_again_and_again_are_named_by_the_error() {
    let sql = &queries().into_iter().find(|(number, _)| *number == 10).expect("22 queries").1;
    for nth in 1..=4 {
        let session = session(DeviceChoice::Sim, Fallback::Error, &[("batch_rows", "1500")]);
        register_files(session.context(), &data("0.001")).await;
        let driver = session.engine().and_then(|engine| engine.simulated()).expect("simulated");
        driver.order_failure(FailCall::new(CallKind::StreamCreate, nth, FailureLasts::Forever));
        let ran = soon("q10", session.execute(sql)).await;
        driver.take_order_back(CallKind::StreamCreate);
        if let Err(error) = ran {
            assert!(error.to_string().contains(CallKind::StreamCreate.name()), "from stream {nth} on: {error}");
            assert!(is_forbidden_fallback(&error), "from stream {nth} on: {error}");
        } else {
            assert!(nth > 1, "it runs without a stream");
        }
        nothing_is_left(&session, "q10").await;
        session.execute(sql).await.unwrap_or_else(|error| panic!("with streams again: {error}"));
        nothing_is_left(&session, "q10").await;
    }
}

/// Reads a statement's result until it was polled so often; true if it ended before.
async fn polled(session: &Millpond, sql: &str, most: usize) -> bool {
    let frame = session.context().sql(sql).await.expect("the query is planned");
    let plan = frame.create_physical_plan().await.expect("the query has a plan");
    let mut stream = execute_stream(plan, session.context().task_ctx()).expect("a stream");
    let mut polls = 0;
    poll_fn(|context| {
        loop {
            if polls == most {
                return Poll::Ready(false);
            }
            polls += 1;
            match stream.poll_next_unpin(context) {
                Poll::Ready(Some(batch)) => drop(batch.expect("no error")),
                Poll::Ready(None) => return Poll::Ready(true),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}

/// Runs a statement until the device has received `most` pieces of work; true if it ended before.
async fn worked(session: &Millpond, sql: &str, most: u64) -> bool {
    let driver = session.engine().and_then(|engine| engine.simulated()).expect("simulated");
    let work = || {
        let counters = driver.counters();
        counters.launches + counters.copies + counters.fills + counters.allocations + counters.events_recorded
    };
    let end = work() + most;
    let mut running = Box::pin(session.execute(sql));
    loop {
        if let Poll::Ready(result) = futures::poll!(&mut running) {
            result.unwrap_or_else(|error| panic!("{sql}: {error}"));
            return true;
        }
        if work() >= end {
            return false;
        }
        tokio::task::yield_now().await;
    }
}

/// A table in a file, a device, and the file's reader.
async fn near(folder: &tempfile::TempDir, device: DeviceChoice, options: &[(&str, &str)]) -> Millpond {
    let session = session(device, Fallback::Allow, options);
    let path = folder.path().join("t.parquet");
    if !path.exists() {
        write_parquet(&edges(), &path, 500);
    }
    let path = path.to_str().expect("a UTF-8 path");
    session.context().register_parquet("t", path, Default::default()).await.expect("the file is read");
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_may_leave_after_any_poll() {
    let folder = tempfile::tempdir().expect("a folder");
    let cpu = near(&folder, DeviceChoice::Cpu, &[]).await;
    for options in READERS {
        let sim = near(&folder, DeviceChoice::Sim, options).await;
        for (sql, ordered) in SHAPES {
            let expected = answer(&cpu, sql).await;
            let mut polls = 0;
            loop {
                let what = format!("{sql}, {options:?}, after {polls} polls");
                let ended = soon(&what, polled(&sim, sql, polls)).await;
                nothing_is_left(&sim, &what).await;
                if ended {
                    break;
                }
                polls += 1;
            }
            assert!(polls > 2, "{sql}, {options:?}: {polls} polls");
            assert_eq!(expected.difference(&answer(&sim, sql).await, ordered), None, "{sql}, {options:?}, afterwards");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_may_be_given_up_at_any_piece_of_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let cpu = near(&folder, DeviceChoice::Cpu, &[]).await;
    let mut all = 0;
    for options in READERS {
        let sim = near(&folder, DeviceChoice::Sim, options).await;
        for (sql, ordered) in SHAPES {
            let expected = answer(&cpu, sql).await;
            let (mut given_up, mut work) = (0, 0);
            loop {
                let what = format!("{sql}, {options:?}, after {work} pieces of work");
                let ended = soon(&what, worked(&sim, sql, work)).await;
                nothing_is_left(&sim, &what).await;
                if ended {
                    break;
                }
                given_up += 1;
                // Every count at first, later at growing intervals.
                work += 1 + work / 5;
            }
            // A busy machine may look late, but the first look comes before the end.
            assert!(given_up > 0, "{sql}, {options:?}: never given up");
            all += given_up;
            let actual = answer(&sim, sql).await;
            assert_eq!(expected.difference(&actual, ordered), None, "{sql}, {options:?}, afterwards");
        }
    }
    assert!(all > 3 * READERS.len() * SHAPES.len() / 2, "given up {all} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_sessions_in_little_memory_give_their_own_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let cpu = near(&folder, DeviceChoice::Cpu, &[]).await;
    // A query of its own for each: another constant, and in turn another shape.
    let statement = |number: usize| {
        let (shape, ordered) = SHAPES[number % SHAPES.len()];
        let sql = format!("SELECT * FROM (SELECT * FROM ({shape})) WHERE {} > {number}", first_column(shape));
        (
            if ordered {
                shape.replace("FROM t", &format!("FROM (SELECT * FROM t WHERE id > {number}) AS t"))
            } else {
                sql
            },
            ordered,
        )
    };
    let first = near(&folder, DeviceChoice::Sim, &[("cache", "auto"), ("memory_limit_bytes", "1500000")]).await;
    let engine = Arc::clone(first.engine().expect("a device"));
    let mut running = Vec::new();
    for number in 0..16 {
        let (sql, ordered) = statement(number);
        let expected = answer(&cpu, &sql).await;
        let config = SessionConfig::new().with_target_partitions(1 + number % 3).with_batch_size(256);
        let builder = Millpond::builder().with_engine(Arc::clone(&engine)).with_fallback(Fallback::Allow);
        let builder = builder.with_option("batch_rows", &(300 + 100 * number).to_string()).expect("an option");
        let builder = builder.with_option("partitions", "2").expect("an option");
        let builder = builder.with_option("cache", "auto").expect("an option");
        let builder = builder.with_option("cache_settle_seconds", "0").expect("an option");
        let session = builder.with_config(config).build().expect("a session");
        let path = folder.path().join("t.parquet");
        let path = path.to_str().expect("a UTF-8 path").to_string();
        session.context().register_parquet("t", path, Default::default()).await.expect("the file is read");
        running.push(tokio::spawn(async move {
            let mut launches = 0;
            for run in 0..4 {
                let result = session.execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
                let actual = Answer::new(&result.schema, &result.batches);
                assert_eq!(expected.difference(&actual, ordered), None, "{sql}, run {run}");
                launches += result.report.launches;
            }
            launches
        }));
    }
    let launches = soon("sixteen sessions", try_join_all(running)).await.expect("no session panics");
    let on_device = launches.iter().filter(|launches| **launches > 0).count();
    assert!(on_device >= 8, "{on_device} of 16 sessions came to the device: {launches:?}");
    nothing_is_left(&first, "sixteen sessions").await;
}

/// The name of the first column of a shape's rows.
fn first_column(shape: &str) -> &str {
    if shape.starts_with("SELECT k") { "k" } else { "id" }
}
