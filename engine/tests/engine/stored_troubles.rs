//! Files that change under a load, folders that cannot be listed, sessions without memory, bounds: right answers all
//! the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use millpond::datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use millpond::datafusion::arrow::datatypes::{DataType, Field, Schema};
use millpond::datafusion::execution::runtime_env::RuntimeEnvBuilder;
use millpond::datafusion::object_store::memory::InMemory;
use millpond::datafusion::object_store::{ObjectStoreExt, path::Path};
use millpond::datafusion::prelude::CsvReadOptions;
use millpond::store::Store;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::{Answer, orders_its_rows};
use crate::counted_store::{Counted, URL, parquet, put, register};
use crate::edges::{edges, write_parquet};
use crate::support::session_with;

async fn set(session: &Millpond, setting: &str) {
    session.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
}

async fn answer(session: &Millpond, sql: &str) -> Answer {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(result.report.findings, Vec::<String>::new(), "{sql}");
    Answer::new(&result.schema, &result.batches)
}

async fn agree(cpu: &Millpond, sim: &Millpond, sql: &str) {
    let expected = answer(cpu, sql).await;
    for run in 0..3 {
        assert_eq!(expected.difference(&answer(sim, sql).await, orders_its_rows(sql)), None, "{sql}, run {run}");
    }
}

fn stored_bytes(session: &Millpond) -> u64 {
    Store::of(session.engine().expect("a device")).bytes()
}

fn numbers(from: i64, rows: i64) -> RecordBatch {
    let values: Int64Array = (from..from + rows).collect();
    RecordBatch::try_from_iter([("v", Arc::new(values) as ArrayRef)]).expect("a column")
}

async fn over(device: DeviceChoice, files: &Arc<InMemory>) -> (Millpond, Arc<Counted>) {
    let session = session_with(device, 2, Fallback::Allow);
    let store = Counted::over(files);
    register(&session, Arc::clone(&store) as _);
    session.context().register_parquet("t", format!("{URL}t/"), Default::default()).await.expect("read");
    (session, store)
}

const SUM: &str = "SELECT sum(v) AS total, count(*) AS n FROM t";

/// Whatever the run returns during which a file changes, the next runs return the current rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_changes_during_a_load_is_not_stored() {
    for (what, replacement) in
        [("replaced by as many rows", Some(numbers(7000, 900))), ("cut short", Some(numbers(0, 3))), ("deleted", None)]
    {
        for at in 1..6 {
            let files = Arc::new(InMemory::new());
            put(&files, "t/a.parquet", &numbers(0, 900)).await;
            put(&files, "t/b.parquet", &numbers(1000, 900)).await;
            let (sim, store) = over(DeviceChoice::Sim, &files).await;
            let (reads, inner) = (AtomicUsize::new(0), Arc::clone(&files));
            let bytes = replacement.as_ref().map(parquet);
            store.before_read(move |file| {
                if file.as_ref() == "t/b.parquet" && reads.fetch_add(1, Ordering::Relaxed) + 1 == at {
                    let path = Path::from("t/b.parquet");
                    // Memory answers at once.
                    let done = match bytes.clone() {
                        Some(bytes) => inner.put(&path, bytes.into()).now_or_never().map(|done| done.map(drop)),
                        None => inner.delete(&path).now_or_never(),
                    };
                    done.expect("at once").expect("changed");
                }
            });
            // It may read both, and end in an error.
            let first = sim.execute(SUM).await.map(|_| ()).map_err(|error| error.to_string());
            println!("{what} at read {at}: {first:?}");
            let cpu = over(DeviceChoice::Cpu, &files).await.0;
            agree(&cpu, &sim, SUM).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_cannot_be_listed_has_the_files_that_are_remembered() {
    let files = Arc::new(InMemory::new());
    put(&files, "t/a.parquet", &numbers(0, 900)).await;
    let (sim, store) = over(DeviceChoice::Sim, &files).await;
    let cpu = over(DeviceChoice::Cpu, &files).await.0;
    agree(&cpu, &sim, SUM).await;
    store.fail_lists(true);
    agree(&cpu, &sim, SUM).await;
    put(&files, "t/a.parquet", &numbers(5, 900)).await;
    store.fail_lists(false);
    let cpu = over(DeviceChoice::Cpu, &files).await.0;
    agree(&cpu, &sim, SUM).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_without_memory_loads_all_the_same() {
    let files = Arc::new(InMemory::new());
    put(&files, "t/a.parquet", &edges()).await;
    let runtime = RuntimeEnvBuilder::new().with_memory_limit(1000, 1.0).build_arc().expect("a runtime");
    let sim = Millpond::builder()
        .with_own_engine()
        .with_device(DeviceChoice::Sim)
        .with_runtime_env(runtime)
        .build()
        .expect("a device");
    register(&sim, Counted::over(&files) as _);
    sim.context().register_parquet("t", format!("{URL}t/"), Default::default()).await.expect("read");
    let cpu = over(DeviceChoice::Cpu, &files).await.0;
    agree(&cpu, &sim, "SELECT sum(i32), count(s), max(day), min(d9) FROM t WHERE id > 5").await;
    assert!(stored_bytes(&sim) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_with_a_column_more_and_one_that_lacks_it() {
    let files = Arc::new(InMemory::new());
    put(&files, "t/a.parquet", &numbers(0, 333)).await;
    let words: StringArray = (0..500).map(|row| (row % 3 > 0).then(|| format!("w{}", row % 5))).collect();
    let more: Int64Array = (0..500).map(|row| (row % 7 > 0).then_some(row * 1000)).collect();
    let values = numbers(1000, 500).column(0).clone();
    let more = [("v", values, true), ("x", Arc::new(more) as ArrayRef, true), ("w", Arc::new(words) as ArrayRef, true)];
    put(&files, "t/b.parquet", &RecordBatch::try_from_iter_with_nullable(more).expect("columns")).await;
    let cpu = over(DeviceChoice::Cpu, &files).await.0;
    let (sim, store) = over(DeviceChoice::Sim, &files).await;
    for sql in [
        "SELECT w, count(*), sum(x), sum(v) FROM t GROUP BY w",
        "SELECT count(x), count(*), count(w) FROM t WHERE v >= 0",
        "SELECT v FROM t WHERE x IS NULL AND v > 100",
    ] {
        agree(&cpu, &sim, sql).await;
    }
    let before = store.asked();
    put(&files, "t/c.parquet", &numbers(9000, 77)).await;
    let cpu = over(DeviceChoice::Cpu, &files).await.0;
    agree(&cpu, &sim, "SELECT w, count(*), sum(x), sum(v) FROM t GROUP BY w").await;
    assert_eq!(store.asked().read_since(&before), ["t/c.parquet"]);
}

/// One file of text, read as numbers and as strings; lines are added to it, and it is written over with as many bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_file_in_two_types_that_grows() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t.csv");
    let session = async |device| {
        let session = session_with(device, 2, Fallback::Allow);
        for (name, data_type) in [("n", DataType::Int64), ("s", DataType::Utf8)] {
            let schema = Schema::new(vec![Field::new("v", data_type, true)]);
            let path = path.to_str().expect("UTF-8");
            session.context().register_csv(name, path, CsvReadOptions::new().schema(&schema)).await.expect("read");
        }
        session
    };
    std::fs::write(&path, "v\n10\n9\n100\n").expect("written");
    let sim = session(DeviceChoice::Sim).await;
    for lines in ["v\n10\n9\n100\n", "v\n10\n9\n100\n2000\n", "v\n20\n8\n300\n4000\n", "v\n1\n"] {
        std::fs::write(&path, lines).expect("written");
        let cpu = session(DeviceChoice::Cpu).await;
        agree(&cpu, &sim, "SELECT sum(v) AS total, min(v) AS least FROM n").await;
        agree(&cpu, &sim, "SELECT min(v) AS least, max(v) AS most, count(*) AS n FROM s").await;
    }
    assert!(stored_bytes(&sim) > 0);
}

/// More rows than may stay: they are fed, and are not loaded again each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_rows_than_may_stay_are_fed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t.parquet");
    write_parquet(&numbers(0, 3000), &path, 500);
    let session = async |device| {
        let session = session_with(device, 2, Fallback::Allow);
        let path = path.to_str().expect("UTF-8");
        session.context().register_parquet("t", path, Default::default()).await.expect("read");
        session
    };
    let (cpu, sim) = (session(DeviceChoice::Cpu).await, session(DeviceChoice::Sim).await);
    set(&sim, "millpond.debug_cache_rows = 1000").await;
    agree(&cpu, &sim, SUM).await;
    agree(&cpu, &sim, SUM).await;
    assert_eq!(stored_bytes(&sim), 0);
    set(&sim, "millpond.debug_cache_rows = 0").await;
    Store::of(sim.engine().expect("a device")).clear();
    agree(&cpu, &sim, SUM).await;
    assert!(stored_bytes(&sim) > 0);
}

/// Rows `first..first + rows` of a number and two texts of it, one of which may be NULL.
fn texts(first: u64, rows: u64) -> RecordBatch {
    let of = |row: u64| format!("a text of some length, number {} of {row}", row * 7 % 100);
    let long: StringArray = (first..first + rows).map(|row| Some(of(row))).collect();
    let some: StringArray = (first..first + rows).map(|row| (row % 5 > 0).then(|| of(row / 2))).collect();
    let numbers: Int64Array = (first..first + rows).map(|row| Some(row as i64)).collect();
    let columns = [("v", Arc::new(numbers) as ArrayRef, true), ("w", Arc::new(long) as ArrayRef, true)];
    let columns = columns.into_iter().chain([("n", Arc::new(some) as ArrayRef, true)]);
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns")
}

/// Texts of more bytes than offsets of 32 bits reach, by a small bound: loaded, copied when files come and go, moved to
/// the host, made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_texts_have_offsets_of_64_bits() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for file in 0..3 {
        write_parquet(&texts(file * 1100, 1100), &folder.path().join(format!("{file}.parquet")), 500);
    }
    let session = async |device| {
        let session = session_with(device, 2, Fallback::Allow);
        let path = format!("{}/", folder.path().display());
        session.context().register_parquet("t", &path, Default::default()).await.expect("read");
        session
    };
    let statements = [
        "SELECT min(w) AS least, max(n) AS most, count(*) AS c FROM t WHERE w LIKE '%1%'",
        "SELECT n, count(*) AS c, sum(v) AS s FROM t GROUP BY n ORDER BY c DESC, n LIMIT 50",
        "SELECT v, substr(w, 10, 20) AS part, upper(n) AS loud FROM t WHERE v % 3 = 1 ORDER BY w DESC, v LIMIT 400",
        "SELECT count(*) AS c, sum(a.v - b.v) AS s FROM t a JOIN t b ON a.w = b.n",
        "SELECT concat(w, '|', n) AS both, length(w) AS l FROM t WHERE n IS NULL OR starts_with(n, 'a text') ORDER BY v",
    ];
    let (cpu, sim) = (session(DeviceChoice::Cpu).await, session(DeviceChoice::Sim).await);
    set(&sim, "millpond.debug_dictionary_values = 10").await;
    set(&sim, "millpond.debug_cache_text_bytes = '64KiB'").await;
    let facts = |column: &str| -> Vec<String> {
        let entries = Store::of(sim.engine().expect("a device")).entries(None);
        entries.into_iter().filter(|entry| entry.column == column).map(|entry| entry.facts).collect()
    };
    for statement in statements.iter().chain(&statements) {
        agree(&cpu, &sim, statement).await;
    }
    assert_eq!((facts("w"), facts("n")), (vec!["long texts".into()], vec!["long texts, 660 NULL".into()]));
    // A file comes, whose rows alone are read; then all go but one, whose texts are few.
    write_parquet(&texts(9000, 700), &folder.path().join("3.parquet"), 500);
    let cpu = session(DeviceChoice::Cpu).await;
    for statement in statements {
        agree(&cpu, &sim, statement).await;
    }
    assert!(facts("w").contains(&"long texts".to_string()), "{:?}", facts("w"));
    let made = "CREATE TABLE made AS SELECT v, concat(w, '!') AS w, n FROM t";
    for session in [&cpu, &sim] {
        session.execute(made).await.expect("made");
    }
    for statement in statements.map(|of| of.replace("FROM t", "FROM made").replace("JOIN t", "JOIN made")) {
        agree(&cpu, &sim, &statement).await;
        // Its rows come back from the host, and as Arrow's.
        Store::of(sim.engine().expect("a device")).clear();
        agree(&cpu, &sim, &statement).await;
    }
    for session in [&cpu, &sim] {
        session.execute("INSERT INTO made VALUES (1, 'one', NULL)").await.expect("inserted");
    }
    agree(&cpu, &sim, "SELECT count(*) AS c, max(length(w)) AS l, min(w) AS least FROM made").await;
    for file in [0, 2, 3] {
        std::fs::remove_file(folder.path().join(format!("{file}.parquet"))).expect("removed");
    }
    let cpu = session(DeviceChoice::Cpu).await;
    for statement in statements {
        agree(&cpu, &sim, statement).await;
    }
    assert!(facts("w").contains(&"texts".to_string()), "{:?}", facts("w"));
}

/// Recorded facts of unordered integers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_of_integers_in_no_order() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t.parquet");
    let column =
        |value: &dyn Fn(i64) -> Option<i64>| Arc::new((0..2000).map(value).collect::<Int64Array>()) as ArrayRef;
    let columns = [
        ("few", column(&|row| Some(row * 7 % 13))),
        ("keys", column(&|row| Some(row * 7 % 2000 * 3 - 500))),
        ("nulls", column(&|row| (row % 4 > 0).then_some(row * 11 % 100))),
        ("steps", column(&|row| Some(row / 10))),
        ("wide", column(&|row| Some(row * 7 % 2000 * (1 << 40)))),
    ];
    let columns = columns.map(|(name, array)| (name, array, true));
    write_parquet(&RecordBatch::try_from_iter_with_nullable(columns).expect("columns"), &path, 300);
    let sim = session_with(DeviceChoice::Sim, 3, Fallback::Allow);
    let path = path.to_str().expect("UTF-8");
    sim.context().register_parquet("t", path, Default::default()).await.expect("read");
    set(&sim, "millpond.batch_rows = 128").await;
    let warmed = sim.execute("SELECT \"column\", facts FROM millpond_cache_warm('t')").await.expect("warmed");
    let listed = millpond::datafusion::arrow::util::pretty::pretty_format_batches(&warmed.batches).expect("text");
    let listed = listed.to_string();
    let wide = format!("| wide   | 0..={} ", 1999_i64 << 40);
    for facts in [
        "| few    | 0..=12, 13 different ",
        "| keys   | -500..=5497, unique ",
        "| nulls  | 1..=99, 500 NULL, 75 different ",
        "| steps  | 0..=199, sorted, 200 different ",
        &wide,
    ] {
        assert!(listed.contains(facts), "{facts}\n{listed}");
    }
}

/// 150,000 groups by two keys: where loads have counted their values, the table is large enough from the start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_groups_begin_with_the_values_of_their_keys() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t.parquet");
    let keys = |of: &dyn Fn(i64) -> i64| Arc::new((0..150_000).map(of).collect::<Int64Array>()) as ArrayRef;
    let columns = [("a", keys(&|row| row % 500 * 15_000)), ("b", keys(&|row| row / 500 * 7 % 300 * 20_000))];
    write_parquet(&RecordBatch::try_from_iter(columns).expect("columns"), &path, 30_000);
    let session = async |device| {
        let session = session_with(device, 2, Fallback::Allow);
        let path = path.to_str().expect("UTF-8");
        session.context().register_parquet("t", path, Default::default()).await.expect("read");
        session
    };
    let (cpu, sim) = (session(DeviceChoice::Cpu).await, session(DeviceChoice::Sim).await);
    sim.execute("SELECT * FROM millpond_cache_warm('t')").await.expect("warmed");
    let mut launches = vec![];
    for sql in [
        "SELECT a, b, count(*) AS c FROM t GROUP BY a, b",
        // Nothing is known about a computed key.
        "SELECT a + 1 AS a, b, count(*) AS c FROM t GROUP BY a + 1, b",
    ] {
        let expected = answer(&cpu, sql).await;
        let result = sim.execute(sql).await.expect("an answer");
        assert_eq!(expected.difference(&Answer::new(&result.schema, &result.batches), false), None, "{sql}");
        launches.push(result.report.launches);
    }
    assert!(launches[0] < launches[1], "{launches:?} launches");
}
