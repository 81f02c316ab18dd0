//! Columns that stay on the device: the second run reads no file, and never bytes of yesterday.
//!
//!   run ─► loaded ─► run again: nothing goes up ─► the file changes ─► loaded anew

use std::path::Path;
use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::prelude::{CsvReadOptions, JsonReadOptions, SessionConfig};
use millpond::store::Store;
use millpond::{DeviceChoice, Fallback, Millpond, Profiler};

use crate::answers::Answer;
use crate::edges::{edges, write_parquet};
use crate::support::session_with;
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

fn stored_bytes(session: &Millpond) -> u64 {
    Store::of(session.engine().expect("a device")).bytes()
}

/// The CPU and the simulated device.
fn sessions(partitions: usize) -> [Millpond; 2] {
    [(DeviceChoice::Cpu, Fallback::Allow), (DeviceChoice::Sim, Fallback::Error)]
        .map(|(device, fallback)| session_with(device, partitions, fallback))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_tpch_are_equal_and_the_second_run_feeds_nothing() {
    let files = data("0.01");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(3), &files).await;
    let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(3), &files).await;
    for (number, sql) in queries() {
        let ordered = sql.to_lowercase().contains("order by");
        let expected = answer(&cpu, &sql).await.0;
        let (first, loaded) = answer(&sim, &sql).await;
        assert_eq!(expected.difference(&first, ordered), None, "q{number:02}");
        let (second, again) = answer(&sim, &sql).await;
        assert_eq!(expected.difference(&second, ordered), None, "q{number:02} again");
        assert_eq!(again, 0, "q{number:02} copies up again, after {loaded} bytes in its first run");
    }
    let store = Store::of(sim.engine().expect("a device"));
    assert_eq!(sim.pool_used_bytes(), 0);
    store.clear();
    assert_eq!((store.bytes(), sim.engine().expect("a device").pool().used_bytes().as_u64()), (0, 0));
}

/// Every kind of column, in every format that keeps it, in chunks of a few rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_every_type_are_those_of_the_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [cpu, sim] = sessions(3);
    let path = folder.path().join("edges.parquet");
    write_parquet(&edges(), &path, 700);
    for session in [&cpu, &sim] {
        let path = path.to_str().expect("a UTF-8 path");
        session.context().register_parquet("file", path, Default::default()).await.expect("the file is read");
        let table = MemTable::try_new(edges().schema(), vec![vec![edges().slice(0, 1000), edges().slice(1000, 2000)]]);
        session.context().register_table("memory", Arc::new(table.expect("a table"))).expect("a name of its own");
    }
    let columns: Vec<String> = edges().schema().fields().iter().map(|field| format!("\"{}\"", field.name())).collect();
    for (rows, texts) in [(0, 0), (100, 0), (33, 3)] {
        set(&sim, &format!("millpond.batch_rows = {rows}")).await;
        set(&sim, &format!("millpond.debug_dictionary_values = {texts}")).await;
        let store = Store::of(sim.engine().expect("a device"));
        store.clear();
        for table in ["file", "memory"] {
            for column in &columns {
                let sql = format!("SELECT id + 0 AS row, {column} AS value FROM {table} WHERE id >= 0");
                let expected = answer(&cpu, &sql).await.0;
                // A small table in memory is fed when it is met for the first time.
                for _ in 0..3 {
                    assert_eq!(expected.difference(&answer(&sim, &sql).await.0, false), None, "{sql}");
                }
                let hits = || store.entries(None).iter().map(|column| column.hits).sum::<u64>();
                let before = hits();
                answer(&sim, &sql).await;
                assert!(hits() > before, "{sql} reads no stored column");
            }
        }
    }
}

/// Reading begins again once for all columns whose values are nearly all different, and columns of a small file have
/// readers of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_without_a_dictionary_are_found_out_together() {
    const ROWS: usize = 80_000;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("texts.parquet");
    // Texts that do not become much shorter on disk.
    let word =
        |row: usize, place: u64| (row as u64 + place * 1_000_003).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let text = |prefix: &str, row| (0..5).fold(format!("{prefix}{row} "), |text, at| text + &word(row, at).to_string());
    let different =
        |prefix: &str| -> ArrayRef { Arc::new((0..ROWS).map(|row| Some(text(prefix, row))).collect::<StringArray>()) };
    let few: ArrayRef = Arc::new((0..ROWS).map(|row| Some(["x", "y", "z"][row % 3])).collect::<StringArray>());
    let rows = [("a", different("a")), ("b", different("b")), ("c", different("c")), ("few", few)];
    write_parquet(&RecordBatch::try_from_iter(rows).expect("columns"), &path, ROWS);
    let sessions = [(DeviceChoice::Cpu, Fallback::Allow), (DeviceChoice::Sim, Fallback::Error)];
    let [cpu, sim] = sessions.map(|(device, fallback)| session_with(device, 1, fallback));
    for session in [&cpu, &sim] {
        let path = path.to_str().expect("a UTF-8 path");
        session.context().register_parquet("t", path, Default::default()).await.expect("the file is read");
    }
    let sql = "SELECT a, b, c, few FROM t WHERE few <> 'z' AND a LIKE '%7%' AND b LIKE '%777%' AND c NOT LIKE 'c177%'";
    let expected = answer(&cpu, sql).await.0;
    let profiler = Profiler::begin("load");
    let first = profiler.around(answer(&sim, sql)).await.0;
    assert_eq!(expected.difference(&first, false), None);
    let profile = sim.profile(&profiler);
    assert_eq!(profile.feeding.readers, 2, "read with dictionaries, and without those of a, b and c");

    // Four readers may work at once, and the file has one row group.
    set(&sim, "datafusion.execution.target_partitions = 4").await;
    Store::of(sim.engine().expect("a device")).clear();
    let profiler = Profiler::begin("load");
    let second = profiler.around(answer(&sim, sql)).await.0;
    assert_eq!(expected.difference(&second, false), None);
    let readers = sim.profile(&profiler).feeding.readers;
    let groups = readers / 2;
    assert_eq!(readers % 2, 0, "twice, each group of columns: {readers}");
    assert!(groups > 1, "the columns have readers of their own: {readers}");
}

/// Rows that pass a pattern over the names of Q16's parts.
fn like(pattern: &str) -> String {
    format!("SELECT count(*) AS n FROM part WHERE p_type LIKE '{pattern}'")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookup_tables_stay_with_their_dictionary() {
    let files = data("0.001");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await;
    let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(2), &files).await;
    let pool = sim.engine().expect("a device").pool().clone();
    let store = Store::of(sim.engine().expect("a device"));
    answer(&sim, "SELECT count(p_type) AS n FROM part WHERE p_size > 0").await;
    let columns = store.bytes();
    let equal = async |pattern: &str| {
        let (expected, _) = answer(&cpu, &like(pattern)).await;
        let (found, up) = answer(&sim, &like(pattern)).await;
        assert_eq!(expected.difference(&found, true), None, "{pattern}");
        up
    };
    assert!(equal("PROMO%").await > 0, "its table goes up once");
    let with_table = store.bytes();
    assert!(with_table > columns, "the store counts it");
    assert_eq!((equal("PROMO%").await, store.bytes()), (0, with_table));
    // Another pattern with the same matches: the same table. With other matches it has one of its own.
    assert_eq!((equal("PROM%").await, store.bytes()), (0, with_table));
    assert!(equal("%BRASS").await > 0 && store.bytes() > with_table);
    assert_eq!(sim.pool_used_bytes(), 0);

    // A budget without room for tables: they go up each time, and what is stored stays within it.
    store.clear();
    assert_eq!((store.bytes(), pool.used_bytes().as_u64()), (0, 0));
    answer(&sim, "SELECT count(p_type) AS n FROM part WHERE p_size > 0").await;
    let columns = store.bytes();
    set(&sim, &format!("millpond.cache_bytes = {columns}")).await;
    for pattern in ["PROMO%", "PROMO%", "%TIN"] {
        assert!(equal(pattern).await > 0, "{pattern}");
        assert_eq!(store.bytes(), columns, "{pattern}");
    }
    // With room for two of them those used last stay.
    set(&sim, &format!("millpond.cache_bytes = {}", columns + 2 * (with_table - columns))).await;
    for (pattern, is_there) in [("A", false), ("B%", false), ("A", true), ("S%", false), ("A", true), ("B%", false)] {
        let before = store.bytes();
        assert_eq!(equal(&format!("%{pattern}")).await == 0, is_there, "{pattern}, {before} bytes");
    }
    store.clear();
    assert_eq!((store.bytes(), pool.used_bytes().as_u64()), (0, 0));
}

fn numbers(from: i64, rows: i64) -> RecordBatch {
    let values: Int64Array = (from..from + rows).collect();
    let texts: StringArray = (from..from + rows).map(|value| Some(format!("t{}", value % 7))).collect();
    RecordBatch::try_from_iter([("v", Arc::new(values) as ArrayRef), ("s", Arc::new(texts) as ArrayRef)])
        .expect("columns")
}

const SUM: &str = "SELECT count(*) AS n, sum(v) AS total, min(s) AS least, max(s) AS most FROM t";

/// The answers of a fresh CPU session and of the device's.
async fn agree(cpu: impl AsyncFn() -> Millpond, sim: &Millpond, what: &str) {
    let expected = answer(&cpu().await, SUM).await.0;
    for run in 0..2 {
        assert_eq!(expected.difference(&answer(sim, SUM).await.0, true), None, "{what}, run {run}");
    }
}

async fn over(device: DeviceChoice, path: &Path) -> Millpond {
    let session = session_with(device, 2, Fallback::Allow);
    let path = path.to_str().expect("a UTF-8 path");
    session.context().register_parquet("t", path, Default::default()).await.expect("the files are read");
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_file_is_read_anew() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t.parquet");
    write_parquet(&numbers(0, 1000), &path, 100);
    let cpu = async || over(DeviceChoice::Cpu, &path).await;
    let sim = over(DeviceChoice::Sim, &path).await;
    agree(cpu, &sim, "as written").await;
    let bytes = stored_bytes(&sim);
    assert!(bytes > 0);
    // Another file with as many rows in its place.
    let other = folder.path().join("other");
    write_parquet(&numbers(1, 1000), &other, 100);
    std::fs::rename(&other, &path).expect("renamed");
    agree(cpu, &sim, "replaced").await;
    assert_eq!(stored_bytes(&sim), bytes, "what was replaced has gone");
    write_parquet(&numbers(5, 3000), &path, 100);
    agree(cpu, &sim, "longer").await;
    write_parquet(&numbers(7, 10), &path, 100);
    agree(cpu, &sim, "shorter").await;
    std::fs::remove_file(&path).expect("removed");
    // A table without a file has no rows.
    let nothing = sim.execute("SELECT v FROM t").await.expect("an answer");
    assert_eq!(nothing.batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 0);
    write_parquet(&numbers(7, 10), &path, 100);
    agree(cpu, &sim, "back again").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_come_and_go_in_a_folder() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |number: i64| folder.path().join(format!("{number}.parquet"));
    write_parquet(&numbers(0, 100), &file(0), 100);
    write_parquet(&numbers(1000, 100), &file(1), 100);
    let cpu = async || over(DeviceChoice::Cpu, folder.path()).await;
    let sim = over(DeviceChoice::Sim, folder.path()).await;
    agree(cpu, &sim, "two files").await;
    write_parquet(&numbers(5000, 50), &file(2), 100);
    agree(cpu, &sim, "a file more").await;
    std::fs::remove_file(file(0)).expect("removed");
    agree(cpu, &sim, "a file less").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_formats_and_types_are_other_tables() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t.csv");
    std::fs::write(&path, "v,s\n1,a\n2,b\n3,\n").expect("written");
    let lines = folder.path().join("t.json");
    std::fs::write(&lines, "{\"v\":1,\"s\":\"a\"}\n{\"v\":2}\n{\"s\":\"c\"}\n").expect("written");
    let [cpu, sim] = sessions(2);
    for session in [&cpu, &sim] {
        let (path, lines) = (path.to_str().expect("UTF-8"), lines.to_str().expect("UTF-8"));
        let context = session.context();
        context.register_csv("c", path, CsvReadOptions::new()).await.expect("read");
        context.register_csv("d", path, CsvReadOptions::new().has_header(false)).await.expect("read");
        context.register_json("j", lines, JsonReadOptions::default().file_extension("json")).await.expect("read");
    }
    for sql in [
        "SELECT v, s FROM c WHERE v > 0",
        "SELECT * FROM d WHERE column_1 <> 'x'",
        "SELECT v, s FROM j WHERE v > 0 OR s = 'c'",
    ] {
        let expected = answer(&cpu, sql).await.0;
        for _ in 0..2 {
            assert_eq!(expected.difference(&answer(&sim, sql).await.0, false), None, "{sql}");
        }
    }
    assert!(stored_bytes(&sim) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_and_a_drop_are_seen() {
    let sim = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
    let table = |batch: RecordBatch| Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]]).expect("a table"));
    sim.context().register_table("t", table(numbers(0, 100))).expect("a name");
    let total = async |sim: &Millpond| {
        let result = sim.execute("SELECT sum(v) AS total FROM t").await.expect("an answer");
        Answer::new(&result.schema, &result.batches)
    };
    let before = total(&sim).await;
    for _ in 0..3 {
        assert_eq!(before.difference(&total(&sim).await, true), None);
    }
    assert!(stored_bytes(&sim) > 0, "it was seen twice");
    sim.execute("INSERT INTO t VALUES (1000000, 'x')").await.expect("inserted");
    for _ in 0..3 {
        assert!(before.difference(&total(&sim).await, true).is_some(), "the new row counts");
    }
    sim.context().deregister_table("t").expect("there");
    sim.context().register_table("t", table(numbers(0, 1))).expect("a name");
    total(&sim).await;
    total(&sim).await;
    assert!(stored_bytes(&sim) < 100, "{} bytes are of tables that have gone", stored_bytes(&sim));
}

/// With space for two columns, the least recently used one is evicted for a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_leave_for_others() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t.parquet");
    let values = || Arc::new((0..1000).collect::<Int64Array>()) as ArrayRef;
    let batch = RecordBatch::try_from_iter(["a", "b", "c"].map(|name| (name, values()))).expect("columns");
    write_parquet(&batch, &path, 100);
    let sim = over(DeviceChoice::Sim, &path).await;
    set(&sim, "millpond.cache_bytes = 4500").await;
    let store = Store::of(sim.engine().expect("a device"));
    let names = || store.entries(None).into_iter().map(|column| column.column).collect::<Vec<_>>();
    for (read, stay) in [("a", vec!["a"]), ("b", vec!["a", "b"]), ("b", vec!["a", "b"]), ("c", vec!["b", "c"])] {
        answer(&sim, &format!("SELECT sum({read}) FROM t WHERE {read} > 0")).await;
        assert_eq!(names(), stay, "{read} was read");
    }
    // All three do not fit at once: they are fed, and the stored ones stay.
    answer(&sim, "SELECT sum(a + b + c) FROM t").await;
    assert_eq!(names(), ["b", "c"]);
}

/// Whatever fits of TPC-H stays; with room for nothing, everything is fed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_budget_is_kept() {
    let files = data("0.01");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await;
    for budget in [1, 300_000, 1_000_000] {
        let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(2), &files).await;
        set(&sim, &format!("millpond.cache_bytes = {budget}")).await;
        let mut most = 0;
        for round in 0..2 {
            for (number, sql) in queries().into_iter().filter(|(number, _)| [1, 3, 6, 12, 14, 6, 19].contains(number)) {
                let expected = answer(&cpu, &sql).await.0;
                let difference = expected.difference(&answer(&sim, &sql).await.0, true);
                assert_eq!(difference, None, "q{number:02} with {budget} bytes, round {round}");
                let bytes = stored_bytes(&sim);
                assert!(bytes <= budget, "{bytes} of {budget} bytes");
                most = most.max(bytes);
            }
        }
        assert_eq!(most > 0, budget > 1);
    }
}

/// Queries of two sessions, one with columns that stay and one without, beside each other and beside a store that is
/// cleared.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_queries_load_and_clear_at_once() {
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
    let mut expected = Vec::new();
    for (number, sql) in queries() {
        expected.push((number, sql.clone(), answer(&cpu, &sql).await.0));
    }
    let expected = Arc::new(expected);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16_usize {
        let (session, expected) = (if task % 2 == 0 { sim.clone() } else { other.clone() }, Arc::clone(&expected));
        tasks.spawn(async move {
            for turn in 0..6 {
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
    Store::of(&engine).clear();
    assert_eq!(engine.take_findings(), Vec::<String>::new());
    crate::support::until("memory comes back", || engine.pool().used_bytes().as_u64() == 0).await;
}

/// Rows of a statement, as text.
async fn texts(session: &Millpond, sql: &str) -> String {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    millpond::datafusion::arrow::util::pretty::pretty_format_batches(&result.batches).expect("text").to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sql_lists_warms_and_clears_what_is_stored() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t.parquet");
    write_parquet(&numbers(0, 1000), &path, 100);
    let sim = over(DeviceChoice::Sim, &path).await;
    const LIST: &str = "SELECT \"column\", bytes, tier, width, facts FROM millpond_cache()";
    assert!(!texts(&sim, LIST).await.contains("device"));
    // It acts when it is read, not when it is planned.
    texts(&sim, "EXPLAIN SELECT * FROM millpond_cache_warm('t')").await;
    assert_eq!(stored_bytes(&sim), 0);
    let warmed = texts(&sim, "SELECT \"column\", width FROM millpond_cache_warm('t', 'v')").await;
    assert!(warmed.contains("| v      | 2     |"), "{warmed}");
    let listed = texts(&sim, LIST).await;
    assert!(listed.contains("| v      | 2000  | device | 2     | 0..=999, dense |"), "{listed}");
    let (_, uploaded) = answer(&sim, "SELECT sum(v) FROM t").await;
    assert_eq!(uploaded, 0, "the column is there");
    texts(&sim, "SELECT * FROM millpond_cache_warm('t')").await;
    let listed = texts(&sim, LIST).await;
    assert!(listed.contains("7 values, sorted"), "{listed}");
    let cleared = texts(&sim, "SELECT \"column\" FROM millpond_cache_clear('t')").await;
    assert!(cleared.contains("| s ") && cleared.contains("| v "), "{cleared}");
    assert_eq!(stored_bytes(&sim), 0);
    texts(&sim, "SELECT * FROM millpond_cache_warm('t')").await;
    texts(&sim, "SELECT * FROM millpond_cache_clear()").await;
    assert_eq!((stored_bytes(&sim), sim.pool_used_bytes()), (0, 0));
    // A small table in memory that was never read before.
    let batch = numbers(0, 10);
    let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).expect("a table");
    sim.context().register_table("m", Arc::new(table)).expect("a name");
    assert!(texts(&sim, "SELECT \"column\" FROM millpond_cache_warm('m', 'v')").await.contains("| v "));
    for (sql, says) in [
        ("SELECT * FROM millpond_cache('t')", "takes no arguments"),
        ("SELECT * FROM millpond_cache_warm()", "a table's name"),
        ("SELECT * FROM millpond_cache_warm(7)", "names as strings"),
        ("SELECT * FROM millpond_cache_warm('nowhere')", "nowhere"),
        ("SELECT * FROM millpond_cache_warm('t', 'nothing')", "nothing"),
    ] {
        let error = sim.execute(sql).await.map(|_| ()).expect_err(sql).to_string();
        assert!(error.contains(says), "{sql}: {error}");
    }
}

/// Where stored columns and a query do not fit together, columns leave, and at last the query is fed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_answer_in_short_memory_beside_columns_that_stay() {
    let files = data("0.01");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await;
    let (mut least, mut most) = (u64::MAX, 0);
    for limit in [6_000_000, 3_000_000, 1_500_000] {
        let builder = Millpond::builder()
            .with_own_engine()
            .with_device(DeviceChoice::Sim)
            .with_fallback(Fallback::Error)
            .with_config(config(2));
        let builder = builder.with_option("memory_limit_bytes", &limit.to_string()).expect("the option is taken");
        let builder = builder.with_option("cache_settle_seconds", "0").expect("the option is taken");
        let sim = builder.build().expect("the device opens");
        crate::tpch::register_files(sim.context(), &files).await;
        for (number, sql) in queries().into_iter().filter(|(number, _)| [1, 3, 6, 12, 14, 18, 6].contains(number)) {
            let expected = answer(&cpu, &sql).await.0;
            for run in 0..2 {
                let difference = expected.difference(&answer(&sim, &sql).await.0, true);
                assert_eq!(difference, None, "q{number:02} in {limit} bytes, run {run}");
            }
            (least, most) = (least.min(stored_bytes(&sim)), most.max(stored_bytes(&sim)));
        }
        Store::of(sim.engine().expect("a device")).clear();
        assert_eq!(sim.engine().expect("a device").pool().used_bytes().as_u64(), 0);
    }
    assert!(least < most, "columns came and went: {least} to {most} bytes");
}

/// A cancelled load leaves nothing behind, and the next one begins anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_load_leaves_a_usable_store() {
    let files = data("0.01");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await;
    let sql = &queries()[2].1;
    let expected = answer(&cpu, sql).await.0;
    for turn in 0..20_u32 {
        let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(2), &files).await;
        let running =
            tokio::time::timeout(std::time::Duration::from_millis(u64::from(turn) * 7), sim.execute(sql)).await;
        drop(running);
        let engine = Arc::clone(sim.engine().expect("a device"));
        crate::support::until("the load ends", || sim.pool_used_bytes() == 0).await;
        assert_eq!(expected.difference(&answer(&sim, sql).await.0, true), None, "turn {turn}");
        Store::of(&engine).clear();
        crate::support::until("memory comes back", || engine.pool().used_bytes().as_u64() == 0).await;
    }
}
