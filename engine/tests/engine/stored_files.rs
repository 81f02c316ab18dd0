//! Files are added, removed and changed: stored columns of the other files are not read again.
//!
//!   a b c stored ─► d comes ─► d is read          s=0 … s=199 ─► three of them are asked for ─► fed, nothing is stored

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use millpond::datafusion::arrow::datatypes::DataType;
use millpond::datafusion::object_store::memory::InMemory;
use millpond::datafusion::prelude::ParquetReadOptions;
use millpond::store::Store;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::counted_store::{Counted, URL, put, register, remove};
use crate::edges::edges;
use crate::support::session_with;

async fn set(session: &Millpond, setting: &str) {
    session.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
}

async fn answer(session: &Millpond, sql: &str) -> Answer {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(result.report.findings, Vec::<String>::new(), "{sql}");
    Answer::new(&result.schema, &result.batches)
}

fn stored_bytes(session: &Millpond) -> u64 {
    Store::of(session.engine().expect("a device")).bytes()
}

/// A session over the files below `folder`, and the requests to their store.
async fn over(device: DeviceChoice, files: &Arc<InMemory>, folder: &str, hive: bool) -> (Millpond, Arc<Counted>) {
    let fallback = if device == DeviceChoice::Cpu { Fallback::Allow } else { Fallback::Error };
    let session = session_with(device, 2, fallback);
    let store = Counted::over(files);
    register(&session, Arc::clone(&store) as _);
    let mut options = ParquetReadOptions::default();
    if hive {
        options = options.table_partition_cols(vec![("s".to_string(), DataType::Int32)]);
    }
    session.context().register_parquet("t", format!("{URL}{folder}/"), options).await.expect("the files are read");
    (session, store)
}

/// Every column of the edge values, each in a query of its own, against a CPU that has seen nothing before.
async fn every_column_agrees(sim: &Millpond, files: &Arc<InMemory>, what: &str) {
    let cpu = over(DeviceChoice::Cpu, files, "t", false).await.0;
    for field in edges().schema().fields() {
        let sql = format!("SELECT id + 0 AS row, \"{}\" AS value FROM t WHERE id >= 0", field.name());
        let expected = answer(&cpu, &sql).await;
        for run in 0..2 {
            assert_eq!(expected.difference(&answer(sim, &sql).await, false), None, "{what}: {sql}, run {run}");
        }
    }
}

/// Rows in numbers that share words of bitmaps; columns of every type, with and without dictionaries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_files_that_are_new_are_read() {
    for dictionary_values in [0, 3] {
        let files = Arc::new(InMemory::new());
        put(&files, "t/a.parquet", &edges().slice(0, 333)).await;
        put(&files, "t/c.parquet", &edges().slice(1000, 701)).await;
        put(&files, "t/e.parquet", &edges().slice(2000, 1)).await;
        let (sim, store) = over(DeviceChoice::Sim, &files, "t", false).await;
        set(&sim, &format!("millpond.debug_dictionary_values = {dictionary_values}")).await;
        every_column_agrees(&sim, &files, "three files").await;
        let three = stored_bytes(&sim);

        let before = store.asked();
        put(&files, "t/b.parquet", &edges().slice(400, 97)).await;
        every_column_agrees(&sim, &files, "a file between others").await;
        assert_eq!(store.asked().read_since(&before), ["t/b.parquet"]);
        let columns = Store::of(sim.engine().expect("a device")).entries(None);
        assert_eq!(columns.len(), edges().num_columns(), "columns of three files have left");

        let before = store.asked();
        remove(&files, "t/b.parquet").await;
        every_column_agrees(&sim, &files, "a file less").await;
        assert_eq!(store.asked().read_since(&before), Vec::<String>::new());
        assert!(stored_bytes(&sim) > three);

        let before = store.asked();
        put(&files, "t/c.parquet", &edges().slice(1700, 701)).await;
        every_column_agrees(&sim, &files, "another file of that name").await;
        assert_eq!(store.asked().read_since(&before), ["t/c.parquet"]);

        let before = store.asked();
        remove(&files, "t/a.parquet").await;
        remove(&files, "t/c.parquet").await;
        remove(&files, "t/e.parquet").await;
        put(&files, "t/f.parquet", &edges().slice(64, 64)).await;
        every_column_agrees(&sim, &files, "all others").await;
        assert_eq!(store.asked().read_since(&before), ["t/f.parquet"]);

        let store = Store::of(sim.engine().expect("a device"));
        store.clear();
        assert_eq!((store.bytes(), sim.engine().expect("a device").pool().used_bytes().as_u64()), (0, 0));
    }
}

fn numbers(from: i64, rows: i64) -> RecordBatch {
    let values: Int64Array = (from..from + rows).collect();
    let texts: StringArray = (from..from + rows).map(|value| Some(format!("t{}", value % 7))).collect();
    RecordBatch::try_from_iter([("v", Arc::new(values) as ArrayRef), ("w", Arc::new(texts) as ArrayRef)])
        .expect("columns")
}

async fn agree(cpu: &Millpond, sim: &Millpond, sql: &str) {
    let expected = answer(cpu, sql).await;
    for run in 0..2 {
        assert_eq!(expected.difference(&answer(sim, sql).await, true), None, "{sql}, run {run}");
    }
}

/// Dictionaries that were stored with a table of fewer files, one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dictionaries_grow_with_files() {
    let files = Arc::new(InMemory::new());
    let words = |from: usize, count: usize| {
        let words = (0..200).map(|row| (row % 5 != 0).then(|| format!("word {}", from + row * 7 % count)));
        let words: ArrayRef = Arc::new(words.collect::<StringArray>());
        RecordBatch::try_from_iter([("w", words)]).expect("a column")
    };
    put(&files, "t/5.parquet", &words(100, 50)).await;
    let sim = over(DeviceChoice::Sim, &files, "t", false).await.0;
    // More values than a byte numbers, before and behind those that are there, and none at all.
    for (name, batch) in [
        ("9", words(120, 60)),
        ("1", words(0, 10)),
        ("4", words(500, 200)),
        ("6", words(0, 1).slice(0, 1)),
        ("7", words(700, 190)),
    ] {
        put(&files, &format!("t/{name}.parquet"), &batch).await;
        let cpu = over(DeviceChoice::Cpu, &files, "t", false).await.0;
        agree(&cpu, &sim, "SELECT w, count(*) FROM t GROUP BY w ORDER BY w").await;
        agree(&cpu, &sim, "SELECT min(w), max(w), count(w), count(DISTINCT w) FROM t").await;
    }
}

async fn hive(files: &Arc<InMemory>, folders: i64) {
    for part in 0..folders {
        put(files, &format!("t/s={part}/x.parquet"), &numbers(part * 100, 20 + part % 13)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_few_files_of_two_hundred_are_fed_and_not_stored() {
    let files = Arc::new(InMemory::new());
    hive(&files, 200).await;
    let cpu = over(DeviceChoice::Cpu, &files, "t", true).await.0;
    let (sim, store) = over(DeviceChoice::Sim, &files, "t", true).await;
    const FEW: &str = "SELECT sum(v), count(*), min(w), max(s) FROM t WHERE s IN (3, 77, 150)";
    agree(&cpu, &sim, FEW).await;
    assert_eq!(stored_bytes(&sim), 0);
    // More than a quarter stays.
    const MANY: &str = "SELECT sum(v), count(*), min(w), max(s) FROM t WHERE s < 60";
    agree(&cpu, &sim, MANY).await;
    let some = stored_bytes(&sim);
    assert!(some > 0);
    let before = store.asked();
    agree(&cpu, &sim, MANY).await;
    // Stored data is not read again, neither for a part nor for the whole table.
    agree(&cpu, &sim, "SELECT sum(v), count(*), min(w), max(s) FROM t WHERE s IN (3, 7, 50)").await;
    assert_eq!(store.asked().read_since(&before), Vec::<String>::new());
    agree(&cpu, &sim, "SELECT sum(v), count(*), min(w), max(s) FROM t").await;
    let read = store.asked().read_since(&before);
    assert_eq!(read.len(), 140, "{read:?}");
    let before = store.asked();
    agree(&cpu, &sim, FEW).await;
    agree(&cpu, &sim, "SELECT s, sum(v), count(*) FROM t GROUP BY s ORDER BY s").await;
    assert_eq!(store.asked().read_since(&before), Vec::<String>::new());
}

/// Statistics say which files a filter cannot find anything in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_statistics_leave_out_are_no_reason_to_store() {
    let files = Arc::new(InMemory::new());
    for part in 0..10 {
        put(&files, &format!("t/{part}.parquet"), &numbers(part * 1000, 500)).await;
    }
    let cpu = over(DeviceChoice::Cpu, &files, "t", false).await.0;
    let (sim, store) = over(DeviceChoice::Sim, &files, "t", false).await;
    const FEW: &str = "SELECT sum(v), count(*), min(w) FROM t WHERE v BETWEEN 2100 AND 3100";
    agree(&cpu, &sim, FEW).await;
    assert_eq!(stored_bytes(&sim), 0, "two files of ten");
    agree(&cpu, &sim, "SELECT sum(v), count(*), min(w) FROM t WHERE v < 2600").await;
    assert!(stored_bytes(&sim) > 0, "three files of ten");
    let before = store.asked();
    agree(&cpu, &sim, FEW).await;
    assert_eq!(store.asked().read_since(&before), Vec::<String>::new(), "all ten are there");
}

/// A remote store is queried for file metadata at most once per `cache_check_seconds`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_files_are_looked_at_once_in_a_while() {
    let files = Arc::new(InMemory::new());
    put(&files, "t/a.parquet", &numbers(0, 100)).await;
    put(&files, "t/b.parquet", &numbers(100, 100)).await;
    let (sim, store) = over(DeviceChoice::Sim, &files, "t", false).await;
    const SQL: &str = "SELECT sum(v) AS total FROM t";
    let asks = async || {
        let before = store.asked();
        answer(&sim, SQL).await;
        let now = store.asked();
        (now.heads - before.heads, now.lists - before.lists)
    };
    answer(&sim, SQL).await;
    // Each run requests both files, and lists the folder.
    let (heads, lists) = asks().await;
    assert!(heads >= 2 && lists >= 1, "{heads} files, {lists} lists");
    set(&sim, "millpond.cache_check_seconds = 3600").await;
    asks().await;
    assert_eq!(asks().await, (0, 0));
    assert_eq!(asks().await, (0, 0));
    // Changes are not seen until the session queries the store again.
    let stale = answer(&sim, SQL).await;
    put(&files, "t/c.parquet", &numbers(1000, 1)).await;
    assert_eq!(stale.difference(&answer(&sim, SQL).await, true), None);
    set(&sim, "millpond.cache_check_seconds = 0").await;
    let cpu = over(DeviceChoice::Cpu, &files, "t", false).await.0;
    agree(&cpu, &sim, SQL).await;
    assert!(asks().await.0 >= 3);
}

/// The list that is remembered goes with the last file, by every door; what comes then is seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_folder_whose_last_file_goes_has_no_rows() {
    for hive in [false, true] {
        let files = Arc::new(InMemory::new());
        let file = if hive { "t/s=3/a.parquet" } else { "t/a.parquet" };
        put(&files, file, &numbers(0, 100)).await;
        let (sim, _) = over(DeviceChoice::Sim, &files, "t", hive).await;
        let cpu = over(DeviceChoice::Cpu, &files, "t", hive).await.0;
        const SQL: &str = "SELECT count(*) AS n, min(v) AS low, sum(v) AS total FROM t";
        const MANY: &str = "SELECT count(*) AS n FROM t WHERE v >= 7";
        const FIRST: &str = "SELECT count(*) AS n FROM (SELECT v FROM t LIMIT 5)";
        for sql in [SQL, MANY, FIRST] {
            agree(&cpu, &sim, sql).await;
        }
        remove(&files, file).await;
        let none = "SELECT 0 AS n, CAST(NULL AS BIGINT) AS low, CAST(NULL AS BIGINT) AS total";
        let expected = answer(&cpu, none).await;
        assert_eq!(expected.difference(&answer(&sim, SQL).await, true), None);
        let expected = answer(&cpu, "SELECT 0 AS n").await;
        for sql in [MANY, FIRST] {
            assert_eq!(expected.difference(&answer(&sim, sql).await, true), None, "{sql}");
        }
        let other = file.replace("a.parquet", "b.parquet");
        put(&files, &other, &numbers(50, 20)).await;
        let cpu = over(DeviceChoice::Cpu, &files, "t", hive).await.0;
        for sql in [SQL, MANY, FIRST] {
            agree(&cpu, &sim, sql).await;
        }
    }
}

/// The schema of a folder that a query names is that of its files as they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_folder_that_is_named_has_the_columns_of_its_files() {
    let files = Arc::new(InMemory::new());
    let batch = |values: i64, other: &'static str| {
        let column = |from: i64| Arc::new((from..from + 3).collect::<Int64Array>()) as ArrayRef;
        RecordBatch::try_from_iter_with_nullable([("v", column(values), true), (other, column(7), true)])
            .expect("columns")
    };
    put(&files, "t/a.parquet", &batch(0, "w")).await;
    let (sim, _) = over(DeviceChoice::Sim, &files, "t", false).await;
    let sql = format!("SELECT * FROM '{URL}t/' ORDER BY 1");
    let cpu = over(DeviceChoice::Cpu, &files, "t", false).await.0;
    agree(&cpu, &sim, &sql).await;
    put(&files, "t/b.parquet", &batch(1000, "x")).await;
    let cpu = over(DeviceChoice::Cpu, &files, "t", false).await.0;
    agree(&cpu, &sim, &sql).await;
    remove(&files, "t/a.parquet").await;
    let cpu = over(DeviceChoice::Cpu, &files, "t", false).await.0;
    let expected = answer(&cpu, &sql).await;
    let batches = sim.context().sql(&sql).await.expect("planned").collect().await.expect("the files are there");
    assert_eq!(expected.difference(&Answer::new(&batches[0].schema(), &batches), true), None);
}

/// A table of columns of 8 bytes that are not narrowed, one of a byte, and strings.
async fn wide_and_narrow() -> (Millpond, Arc<Store>) {
    let files = Arc::new(InMemory::new());
    let wide =
        |by: i64| Arc::new((0..1000).map(|row| row * (i64::MAX / 1000) / by).collect::<Int64Array>()) as ArrayRef;
    let narrow: ArrayRef = Arc::new((0..1000).map(|row| row % 100).collect::<Int64Array>());
    let columns = [("a", wide(1)), ("b", wide(2)), ("c", wide(3)), ("n", narrow)];
    put(&files, "t/x.parquet", &RecordBatch::try_from_iter(columns).expect("columns")).await;
    let sim = over(DeviceChoice::Sim, &files, "t", false).await.0;
    let store = Store::of(sim.engine().expect("a device"));
    (sim, store)
}

fn names(store: &Store) -> Vec<String> {
    store.entries(None).into_iter().map(|column| column.column).collect()
}

/// A column of few bytes comes for one of many, which is read as often and as lately; the other way round it is fed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_worth_less_per_byte_makes_room_and_gets_none() {
    let (sim, store) = wide_and_narrow().await;
    let read =
        async |column: &str| drop(answer(&sim, &format!("SELECT bit_xor({column}) FROM t WHERE {column} >= 0")).await);
    set(&sim, "millpond.cache_bytes = 8500").await;
    // Read three times, a wide column is worth 3/8 a byte; the narrow one that comes is worth 1.
    for _ in 0..3 {
        read("a").await;
    }
    assert_eq!(names(&store), ["a"]);
    read("n").await;
    assert_eq!(names(&store), ["n"], "the wide column has left");
    // The narrow one is worth more than a wide one that comes, for as long as it is read.
    for _ in 0..4 {
        read("n").await;
        read("a").await;
        assert_eq!(names(&store), ["n"], "the wide column is fed");
    }
    // When it is not read any more, it leaves in the end.
    for turn in 0.. {
        read("a").await;
        if names(&store) == ["a"] {
            assert!(turn > 3, "it was read {turn} times since");
            break;
        }
        assert!(turn < 200, "the narrow column stays for ever");
    }
}

/// Among equals the one that was read least of late leaves, and one that is read all the time stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_often_stays() {
    let (sim, store) = wide_and_narrow().await;
    let read =
        async |column: &str| drop(answer(&sim, &format!("SELECT bit_xor({column}) FROM t WHERE {column} >= 0")).await);
    set(&sim, "millpond.cache_bytes = 16500").await;
    for _ in 0..6 {
        read("a").await;
        read("a").await;
        read("b").await;
        read("c").await;
        assert!(names(&store).contains(&"a".to_string()), "{:?}", names(&store));
        assert_eq!(names(&store).len(), 2);
    }
}
