//! Tables created by queries: their rows stay on the device, and read like those of DataFusion's own table.
//!
//!   CREATE TABLE AS ─► SELECT: nothing goes up ─► INSERT, REPLACE, DROP, clear, a lost device ─► SELECT: the CPU's
//!                                                                                                answer

use std::sync::Arc;

use millpond::datafusion::arrow::array::{Array, ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch, StringArray};
use millpond::datafusion::arrow::compute::concat_batches;
use millpond::datafusion::catalog::MemTable;
use millpond::store::{MadeTable, Rows, Store};
use millpond::{DeviceChoice, Fallback, Millpond, QueryResult};
use millpond_memory::Strategy;

use crate::answers::Answer;
use crate::edges::{edges, write_parquet};
use crate::support::{register_parquet, session_with, until};

async fn set(session: &Millpond, setting: &str) {
    session.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
}

async fn run(session: &Millpond, sql: &str) -> QueryResult {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(result.report.findings, Vec::<String>::new(), "{sql}");
    assert_eq!(result.report.notes, Vec::<String>::new(), "{sql}");
    result
}

async fn answer(session: &Millpond, sql: &str) -> Answer {
    let result = run(session, sql).await;
    Answer::new(&result.schema, &result.batches)
}

/// The CPU and the device give equal rows.
async fn equal(cpu: &Millpond, sim: &Millpond, sql: &str) {
    assert_eq!(answer(cpu, sql).await.difference(&answer(sim, sql).await, false), None, "{sql}");
}

/// Location of a table's rows; `None` for a table that is not ours.
async fn rows_of(session: &Millpond, table: &str) -> Option<Rows> {
    let provider = session.context().table_provider(table).await.expect("the table is there");
    match provider.downcast_ref::<MadeTable>() {
        Some(table) => Some(table.rows().await),
        None => None,
    }
}

async fn is_made(session: &Millpond, table: &str) -> bool {
    matches!(rows_of(session, table).await, Some(Rows::Made(_)))
}

fn pool_bytes(session: &Millpond) -> u64 {
    session.engine().expect("a device").pool().used_bytes().as_u64()
}

fn store(session: &Millpond) -> Arc<Store> {
    Store::of(session.engine().expect("a device"))
}

/// Sessions of the CPU and of the simulated device with table `parts`, in a folder that stays.
async fn over_parts() -> (Millpond, Millpond, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [cpu, sim] = [(DeviceChoice::Cpu, Fallback::Allow), (DeviceChoice::Sim, Fallback::Error)]
        .map(|(device, fallback)| session_with(device, 3, fallback));
    register_parquet(cpu.context(), &folder).await;
    register_parquet(sim.context(), &folder).await;
    (cpu, sim, folder)
}

async fn both(cpu: &Millpond, sim: &Millpond, sql: &str) {
    run(cpu, sql).await;
    run(sim, sql).await;
}

const ALL: &str =
    "CREATE TABLE t AS SELECT id + 1 AS id, size, price, weight, made, good, name FROM parts WHERE zero < 4";
const SUM: &str = "SELECT count(*) AS n, sum(id) AS ids, sum(price) AS prices, min(name) AS least, max(made) AS last FROM t WHERE id >= 0";

/// Every kind of column, in extents of a few rows, with and without dictionaries: read by the device, and as Arrow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_every_type_stay() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("edges.parquet");
    write_parquet(&edges(), &path, 700);
    let [cpu, sim] = [(DeviceChoice::Cpu, Fallback::Allow), (DeviceChoice::Sim, Fallback::Error)]
        .map(|(device, fallback)| session_with(device, 3, fallback));
    for session in [&cpu, &sim] {
        let path = path.to_str().expect("a UTF-8 path");
        session.context().register_parquet("file", path, Default::default()).await.expect("the file is read");
    }
    let columns: Vec<String> = edges().schema().fields().iter().map(|field| format!("\"{}\"", field.name())).collect();
    for (rows, texts) in [(0, 0), (100, 0), (33, 3)] {
        set(&sim, &format!("millpond.batch_rows = {rows}")).await;
        set(&sim, &format!("millpond.debug_dictionary_values = {texts}")).await;
        store(&sim).clear();
        for column in &columns {
            let make = format!(
                "CREATE OR REPLACE TABLE t AS SELECT id + 7 AS id, {column} AS value FROM file WHERE id % 5 <> 2"
            );
            both(&cpu, &sim, &make).await;
            assert!(is_made(&sim, "t").await, "{column} comes home");
            let expected = answer(&cpu, "SELECT id + 0 AS row, value FROM t WHERE id >= 0").await;
            for _ in 0..2 {
                let result = run(&sim, "SELECT id + 0 AS row, value FROM t WHERE id >= 0").await;
                assert_eq!(expected.difference(&Answer::new(&result.schema, &result.batches), false), None, "{make}");
                assert_eq!(result.report.uploaded_bytes, 0, "{make}");
            }
            equal(&cpu, &sim, "SELECT * FROM t").await;
            equal(&cpu, &sim, "SELECT count(*) AS n, count(value) AS v FROM t").await;
        }
    }
    both(&cpu, &sim, "DROP TABLE t").await;
    store(&sim).clear();
    assert_eq!((store(&sim).bytes(), pool_bytes(&sim)), (0, 0));
}

/// What the device's operators give: groups, joins, sorts, unions, strings that were made, DISTINCT, windows of the
/// CPU.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_of_every_operator_stay() {
    let (cpu, sim, _folder) = over_parts().await;
    let queries = [
        "SELECT size, count(*) AS n, sum(price) AS total, avg(weight) AS mean, min(name) AS least FROM parts GROUP BY size",
        "SELECT a.id, b.name FROM parts a JOIN parts b ON a.id = b.size WHERE a.id < 40",
        "SELECT a.id, b.name FROM parts a LEFT JOIN parts b ON a.id = b.size + 990",
        "SELECT id, name, price FROM parts ORDER BY price DESC NULLS LAST, id",
        "SELECT name || '-' || CAST(id AS VARCHAR) AS long_and_different, upper(name) AS u FROM parts",
        "SELECT substr(name, 1, 1) AS letter, id FROM parts WHERE id % 2 = 0",
        "SELECT name FROM parts WHERE id < 500 UNION ALL SELECT 'x' || name FROM parts WHERE id >= 500",
        "SELECT DISTINCT name, good FROM parts",
        "SELECT CASE WHEN id % 3 = 0 THEN NULL WHEN id % 3 = 1 THEN 'one' ELSE 'other' END AS word, id FROM parts",
        "SELECT -0.0 * id AS zeros, CAST('NaN' AS DOUBLE) + id AS nans, id FROM parts",
        "SELECT CAST(NULL AS INT) AS nothing, id + 1 AS id FROM parts",
        "SELECT made, CAST(made AS TIMESTAMP) AS at, date_trunc('month', made) AS month, id + 1 AS id FROM parts",
    ];
    for query in queries {
        both(&cpu, &sim, &format!("CREATE OR REPLACE TABLE t AS {query}")).await;
        assert!(is_made(&sim, "t").await, "{query} comes home");
        let columns = sim.context().table("t").await.expect("a table").schema().fields().len();
        assert!(columns > 0);
        equal(&cpu, &sim, "SELECT * FROM t").await;
        let first = sim.context().table("t").await.expect("a table").schema().field(0).name().clone();
        for _ in 0..2 {
            let sql = format!("SELECT \"{first}\" AS of, count(*) AS n FROM t GROUP BY \"{first}\"");
            equal(&cpu, &sim, &sql).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_place_on_the_device_comes_home() {
    let (cpu, sim, _folder) = over_parts().await;
    set(&sim, "millpond.fallback = 'allow'").await;
    let queries = [
        // No rows, rows of a LIMIT, and what the CPU computes.
        "SELECT id + 1 AS id, name FROM parts WHERE id < 0",
        "SELECT id + 1 AS id, name FROM parts ORDER BY id LIMIT 7",
        "SELECT id + 1 AS id FROM parts ORDER BY id OFFSET 993",
        "SELECT id, approx_median(id) OVER (PARTITION BY size) AS n FROM parts",
        "VALUES (1, 'a'), (2, 'b')",
    ];
    for query in queries {
        both(&cpu, &sim, &format!("CREATE OR REPLACE TABLE t AS {query}")).await;
        assert!(rows_of(&sim, "t").await.is_none(), "{query}");
        equal(&cpu, &sim, "SELECT * FROM t").await;
        both(&cpu, &sim, "INSERT INTO t SELECT * FROM t").await;
        equal(&cpu, &sim, "SELECT * FROM t").await;
    }
    // Through DataFusion's own door nothing changes.
    sim.context().sql("CREATE OR REPLACE TABLE t AS SELECT id + 1 AS id FROM parts").await.expect("made");
    assert!(rows_of(&sim, "t").await.is_none());
    set(&sim, "millpond.cache = 'off'").await;
    run(&sim, "CREATE OR REPLACE TABLE t AS SELECT id + 1 AS id FROM parts").await;
    assert!(rows_of(&sim, "t").await.is_none());
    // An arena takes nothing back, so it has no store.
    let arena = Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim);
    let arena =
        arena.with_option("memory_resource", Strategy::Arena.name()).expect("a strategy").build().expect("a device");
    register_parquet(arena.context(), &_folder).await;
    run(&arena, "CREATE TABLE t AS SELECT id + 1 AS id FROM parts").await;
    assert!(rows_of(&arena, "t").await.is_none());
    equal(&arena, &sim, "SELECT sum(id) AS s FROM t").await;
}

/// DataFusion's errors for tables that cannot be created, word by word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_cannot_be_made_are_refused_as_datafusion_does() {
    let (cpu, sim, _folder) = over_parts().await;
    set(&sim, "millpond.fallback = 'allow'").await;
    both(&cpu, &sim, ALL).await;
    let statements = [
        "CREATE TABLE t AS SELECT 1 AS a",
        "CREATE TABLE IF NOT EXISTS t AS SELECT 1 AS a",
        "CREATE OR REPLACE TABLE IF NOT EXISTS t AS SELECT 1 AS a",
        "CREATE TEMPORARY TABLE u AS SELECT id FROM parts",
        "CREATE TABLE u AS SELECT id, id FROM parts",
        "CREATE TABLE u AS SELECT id + 1 AS a, size AS a FROM parts WHERE id > 3",
        "CREATE TABLE u AS SELECT nowhere FROM parts",
        "CREATE TABLE u AS SELECT id / (id - id) AS a FROM parts",
        "CREATE TABLE u (a INT, b INT) AS SELECT id FROM parts",
        "CREATE TABLE u (a INT NOT NULL, PRIMARY KEY (a)) AS SELECT size FROM parts",
        "CREATE TABLE IF NOT EXISTS u (a INT, b VARCHAR) AS SELECT id, name FROM parts",
        "CREATE OR REPLACE TABLE v AS SELECT id / zero AS a FROM parts",
        "DROP TABLE v",
        "SELECT * FROM u",
        "SELECT * FROM t",
        "INSERT INTO t SELECT 1",
        "INSERT OVERWRITE t SELECT * FROM t",
        "SELECT column_name, data_type, is_nullable FROM information_schema.columns WHERE table_name = 't'",
        "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'public'",
    ];
    for sql in statements {
        match (cpu.execute(sql).await, sim.execute(sql).await) {
            (Ok(expected), Ok(actual)) => {
                let expected = Answer::new(&expected.schema, &expected.batches);
                assert_eq!(expected.difference(&Answer::new(&actual.schema, &actual.batches), false), None, "{sql}");
            }
            (Err(expected), Err(actual)) => assert_eq!(actual.strip_backtrace(), expected.strip_backtrace(), "{sql}"),
            (expected, actual) => panic!("{sql}: {:?} against {:?}", expected.err(), actual.err()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_query_copies_nothing_up_and_makes_no_batch() {
    let (cpu, sim, _folder) = over_parts().await;
    both(&cpu, &sim, ALL).await;
    // The ranks of the names' dictionary go up.
    for (sql, most) in [(SUM, 1_000), ("SELECT sum(price) AS p, max(id) AS i, name FROM t GROUP BY name, good", 0)] {
        let expected = answer(&cpu, sql).await;
        let mut launches = Vec::new();
        for _ in 0..3 {
            let result = run(&sim, sql).await;
            assert_eq!(expected.difference(&Answer::new(&result.schema, &result.batches), false), None);
            assert!(result.report.uploaded_bytes <= most, "{sql}: {} bytes", result.report.uploaded_bytes);
            launches.push(result.report.launches);
        }
        assert_eq!(launches[1..], [launches[0]; 2]);
        // Its plan is kept.
        assert_eq!(run(&sim, sql).await.report.placement_lowerings, 0);
    }
    // Listed entries: widths and facts of the values, by table name.
    let listed =
        "SELECT \"column\", tier, width, facts FROM millpond_cache() WHERE \"table\" = 't' ORDER BY \"column\"";
    let listed = run(&sim, listed).await;
    let text =
        millpond::datafusion::arrow::util::pretty::pretty_format_batches(&listed.batches).expect("a table").to_string();
    for wanted in [
        "id     | device | 2     | 1..=999",
        "good   | device |       | 267 NULL",
        "name   | device | 1     | 5 values, sorted, 62 NULL",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statistics_are_those_of_the_rows() {
    let (cpu, sim, _folder) = over_parts().await;
    both(&cpu, &sim, ALL).await;
    // DataFusion answers these without a scan where the statistics are exact.
    let sql = "SELECT count(*) AS n, count(size) AS s, min(price) AS low, max(price) AS high, min(made) AS first, max(id) AS last FROM t";
    equal(&cpu, &sim, sql).await;
    let plan = sim.context().sql(sql).await.expect("planned").create_physical_plan().await.expect("a plan");
    let plan = millpond::datafusion::physical_plan::displayable(plan.as_ref()).indent(false).to_string();
    assert!(plan.contains("PlaceholderRowExec") && !plan.contains("made=t"), "{plan}");
    // Floats and texts have no range.
    equal(&cpu, &sim, "SELECT min(weight) AS low, max(weight) AS high, min(name) AS first, max(name) AS last FROM t")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_is_seen_by_the_next_query() {
    let (cpu, sim, _folder) = over_parts().await;
    both(&cpu, &sim, ALL).await;
    equal(&cpu, &sim, SUM).await;
    let explained = run(&sim, "EXPLAIN INSERT INTO t SELECT * FROM t").await;
    assert!(explained.batches[0].num_rows() > 0 && is_made(&sim, "t").await, "EXPLAIN changes nothing");
    let insert = "INSERT INTO t SELECT id + 1000, size, price, weight, made, good, 'a new name' FROM t WHERE id < 100";
    let inserted = [run(&cpu, insert).await, run(&sim, insert).await].map(|result| result.batches);
    assert_eq!(inserted[0], inserted[1]);
    assert!(matches!(rows_of(&sim, "t").await, Some(Rows::Changed(_))));
    for _ in 0..3 {
        equal(&cpu, &sim, SUM).await;
    }
    equal(&cpu, &sim, "SELECT * FROM t").await;
    let values = "INSERT INTO t VALUES (-1, NULL, 1.5, 2.5, DATE '2001-01-01', TRUE, 'values')";
    both(&cpu, &sim, values).await;
    equal(&cpu, &sim, SUM).await;
    // Changed rows stay on the host, their device memory is free.
    store(&sim).clear();
    assert!(store(&sim).entries(None).iter().all(|entry| entry.table != "t"));
    for change in ["UPDATE t SET size = size + 1 WHERE id % 7 = 0", "DELETE FROM t WHERE id % 3 = 1"] {
        both(&cpu, &sim, "CREATE OR REPLACE TABLE t AS SELECT id + 1 AS id, size, price, made, name FROM parts").await;
        equal(&cpu, &sim, SUM).await;
        both(&cpu, &sim, change).await;
        equal(&cpu, &sim, "SELECT * FROM t").await;
        equal(&cpu, &sim, SUM).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_goes_gives_its_memory_back() {
    let (_cpu, sim, _folder) = over_parts().await;
    run(&sim, "SELECT sum(id) AS s, min(size) AS z, min(name) AS n FROM parts WHERE id > 0").await;
    store(&sim).clear();
    let before = pool_bytes(&sim);
    for _ in 0..3 {
        run(&sim, ALL).await;
        run(&sim, SUM).await;
        assert!(pool_bytes(&sim) > before && store(&sim).bytes() > 0);
        assert_eq!(sim.pool_used_bytes(), 0, "a made table belongs to the store");
        run(&sim, "DROP TABLE t").await;
        store(&sim).clear();
        assert_eq!((pool_bytes(&sim), store(&sim).bytes()), (before, 0), "dropped");
    }
    run(&sim, ALL).await;
    run(&sim, SUM).await;
    run(&sim, "CREATE OR REPLACE TABLE t AS SELECT id + 1 AS id FROM parts WHERE id < 10").await;
    store(&sim).clear();
    assert_eq!(pool_bytes(&sim), 0, "what stays is in host memory");
    assert_eq!(store(&sim).entries(None).iter().map(|entry| entry.tier).collect::<Vec<_>>(), ["host"]);
    run(&sim, "DROP TABLE t").await;
    assert!(store(&sim).entries(None).is_empty());
    let spilled = || sim.engine().expect("a device").spiller().statistics();
    assert_eq!(spilled().groups, 0);
    until("host memory of a dropped table", || spilled().pinned_bytes.as_u64() == 0).await;
}

/// A reader keeps the rows that it began with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_is_replaced_while_queries_read_it() {
    use futures::StreamExt;
    let (cpu, sim, _folder) = over_parts().await;
    both(&cpu, &sim, ALL).await;
    for sql in ["SELECT id + 0 AS id, name FROM t WHERE id >= 0", "SELECT * FROM t"] {
        let expected = answer(&cpu, sql).await;
        let mut stream = sim.stream(sql).await.expect("planned");
        let schema = stream.schema();
        run(&sim, "CREATE OR REPLACE TABLE t AS SELECT id + 5 AS other FROM parts WHERE id < 10").await;
        let mut batches = Vec::new();
        while let Some(batch) = stream.next().await {
            batches.push(batch.expect("rows"));
        }
        assert_eq!(expected.difference(&Answer::new(&schema, &batches), false), None, "{sql}");
        assert_eq!(
            run(&sim, "SELECT sum(other) AS s FROM t").await.batches[0]
                .column(0)
                .as_primitive::<millpond::datafusion::arrow::datatypes::Int64Type>()
                .value(0),
            95
        );
        run(&sim, "DROP TABLE t").await;
        run(&sim, ALL).await;
    }
    // A query that reads the table that it replaces.
    for _ in 0..3 {
        both(&cpu, &sim, "CREATE OR REPLACE TABLE t AS SELECT id * 2 AS id, size, price, weight, made, good, name FROM t WHERE id % 5 <> 0").await;
        assert!(is_made(&sim, "t").await);
        equal(&cpu, &sim, SUM).await;
    }
    both(
        &cpu,
        &sim,
        "CREATE OR REPLACE TABLE t AS SELECT a.id, b.size, a.price, a.made, b.name FROM t a JOIN t b ON a.id = b.id",
    )
    .await;
    equal(&cpu, &sim, SUM).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_joins_and_copies_read_it() {
    let (cpu, sim, folder) = over_parts().await;
    both(&cpu, &sim, ALL).await;
    both(&cpu, &sim, "CREATE VIEW v AS SELECT id, name, size * 2 AS twice FROM t WHERE good").await;
    equal(&cpu, &sim, "SELECT name, count(*) AS n, sum(twice) AS s FROM v GROUP BY name").await;
    let join = "SELECT p.zero, count(*) AS n, sum(t.price) AS s FROM parts p JOIN t ON p.id = t.id GROUP BY p.zero";
    let result = run(&sim, join).await;
    let again = run(&sim, join).await;
    equal(&cpu, &sim, join).await;
    assert!(again.report.uploaded_bytes <= result.report.uploaded_bytes && again.report.uploaded_bytes < 1_000);
    set(&sim, "millpond.fallback = 'allow'").await;
    equal(&cpu, &sim, "SELECT id, sum(size) OVER (PARTITION BY name ORDER BY id) AS running FROM (SELECT * FROM t)")
        .await;
    equal(&cpu, &sim, "SELECT count(*) AS n FROM t a WHERE EXISTS (SELECT 1 FROM t b WHERE b.id = a.id + 1)").await;
    for (session, name) in [(&cpu, "cpu"), (&sim, "sim")] {
        let path = folder.path().join(format!("{name}.parquet"));
        let path = path.to_str().expect("a UTF-8 path");
        run(session, &format!("COPY (SELECT * FROM t) TO '{path}' STORED AS PARQUET")).await;
        session.context().register_parquet("copied", path, Default::default()).await.expect("the file is read");
    }
    equal(&cpu, &sim, "SELECT count(*) AS n, sum(id) AS s, min(name) AS m FROM copied WHERE id > 0").await;
    let plan = run(&sim, "EXPLAIN SELECT sum(id) AS s FROM t WHERE id > 3").await;
    let plan = concat_batches(&plan.schema, &plan.batches).expect("a plan");
    let text: Vec<&str> = plan.column(1).as_string::<i32>().iter().flatten().collect();
    assert!(text.join("\n").contains("DataSourceExec: made=t, partitions=1, rows=800"), "{text:?}");
}

/// A session on another device reads the rows as Arrow, and keeps columns of its own of nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_device_reads_it_as_arrow() {
    let (cpu, sim, _folder) = over_parts().await;
    both(&cpu, &sim, ALL).await;
    let table = sim.context().table_provider("t").await.expect("a table");
    let other = session_with(DeviceChoice::Sim, 2, Fallback::Error);
    other.context().register_table("t", table).expect("a name of its own");
    for _ in 0..2 {
        equal(&cpu, &other, SUM).await;
    }
    run(&other, "CREATE TABLE u AS SELECT id * 2 AS id, name FROM t").await;
    assert!(is_made(&other, "u").await);
    equal(&cpu, &other, "SELECT count(*) AS n, 800 AS expected FROM t WHERE id > 0").await;
    assert!(store(&other).entries(None).iter().all(|entry| entry.table == "u"));
}

/// A report counts the rows that its run has downloaded, and so does each run of a kept plan.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_home_is_counted_once() {
    let (_cpu, sim, _folder) = over_parts().await;
    set(&sim, "millpond.fallback = 'allow'").await;
    assert!(run(&sim, ALL).await.report.downloaded_bytes == 0, "nothing comes home");
    let plain = "SELECT id, size FROM t";
    // Of 800 rows a number of two bytes and one of one, with its NULLs; then they are kept on the host.
    for bytes in [1_600 + 800 + 100, 0, 0] {
        assert_eq!(run(&sim, plain).await.report.downloaded_bytes, bytes);
    }
    let union = "SELECT id + 0 AS a, name FROM t WHERE id > 790 UNION ALL SELECT * FROM (SELECT id, name FROM t)";
    let first = run(&sim, union).await.report.downloaded_bytes;
    let again = run(&sim, union).await.report.downloaded_bytes;
    assert!(again <= first && run(&sim, union).await.report.downloaded_bytes == again, "{first}, then {again}");
}

/// Columns with no file behind them go to host memory, and are back when a run reads them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clear_moves_columns_to_host_memory() {
    let (cpu, sim, _folder) = over_parts().await;
    both(&cpu, &sim, ALL).await;
    let tiers = || store(&sim).entries(None).iter().map(|entry| entry.tier).collect::<Vec<_>>();
    for clear in ["SELECT * FROM millpond_cache_clear()", "SELECT * FROM millpond_cache_clear('t')"] {
        equal(&cpu, &sim, SUM).await;
        run(&sim, clear).await;
        if clear.contains("'t'") {
            assert!(store(&sim).entries(None).iter().filter(|e| e.table == "t").all(|e| e.tier == "host"));
            store(&sim).clear();
        }
        assert_eq!((tiers(), pool_bytes(&sim)), (vec!["host"; 7], 0), "{clear}");
        // As Arrow they are read where they are.
        equal(&cpu, &sim, "SELECT * FROM t").await;
        assert_eq!(pool_bytes(&sim), 0);
        equal(&cpu, &sim, SUM).await;
        assert!(tiers().contains(&"device"));
        let warmed = run(&sim, "SELECT * FROM millpond_cache_warm('t')").await;
        assert_eq!(warmed.batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 7);
        assert_eq!(tiers(), vec!["device"; 7]);
    }
}

fn integers(rows: i64) -> RecordBatch {
    let values: Int64Array = (0..rows).map(|row| row * 1_000_003).collect();
    RecordBatch::try_from_iter([("v", Arc::new(values) as ArrayRef)]).expect("a column")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_budget_and_a_tight_pool_move_columns_out() {
    let [cpu, sim] = [DeviceChoice::Cpu, DeviceChoice::Sim].map(|device| {
        let limit = (24_u64 << 20).to_string();
        let builder = Millpond::builder().with_own_engine().with_device(device);
        builder.with_option("memory_limit_bytes", &limit).expect("an option").build().expect("a device")
    });
    for session in [&cpu, &sim] {
        let table = MemTable::try_new(integers(1).schema(), vec![vec![integers(200_000)]]).expect("a table");
        session.context().register_table("many", Arc::new(table)).expect("a name of its own");
        // 800 KB each as 32-bit numbers, of which 1.6 MB fit once they are 64 bits wide.
        set(session, "millpond.cache_bytes = 4000000").await;
    }
    for number in 0..6 {
        both(&cpu, &sim, &format!("CREATE TABLE t{number} AS SELECT v + {number} AS v FROM many WHERE v <> {number}"))
            .await;
        assert!(store(&sim).bytes() <= 4_000_000, "{} bytes", store(&sim).bytes());
    }
    for round in 0..2 {
        for number in 0..6 {
            equal(&cpu, &sim, &format!("SELECT sum(v) AS s, max(v) AS m, {round} AS r FROM t{number} WHERE v > 5"))
                .await;
        }
    }
    // The whole pool for one query: columns are out of the way before it fails.
    let sorted = "SELECT a.v, b.v AS w FROM t0 a JOIN t1 b ON a.v + 1 = b.v ORDER BY a.v DESC";
    equal(&cpu, &sim, &format!("SELECT count(*) AS n, sum(v) AS s, min(w) AS m FROM ({sorted})")).await;
    for number in 0..6 {
        equal(&cpu, &sim, &format!("SELECT v FROM t{number} WHERE v < 50000000")).await;
        run(&sim, &format!("DROP TABLE t{number}")).await;
    }
    store(&sim).clear();
    assert_eq!(pool_bytes(&sim), 0);
}

/// The rows were on the device: what reads them then is an error that says so, or the right answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_device_takes_its_tables_along() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cpu = session_with(DeviceChoice::Cpu, 2, Fallback::Allow);
    register_parquet(cpu.context(), &folder).await;
    run(&cpu, ALL).await;
    let (mut answered, mut all_refused, mut home) = (0, 0, 0);
    for nth in 1..60_usize {
        let mut refused = 0;
        let sim = Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim);
        let sim = sim
            .with_option("debug_sim_lose_at_launch", &nth.to_string())
            .expect("an option")
            .build()
            .expect("a device");
        register_parquet(sim.context(), &folder).await;
        // Lost while the table is made, the CPU makes it.
        sim.execute(ALL).await.unwrap_or_else(|error| panic!("lost at launch {nth}: {error}"));
        let made = is_made(&sim, "t").await;
        home += usize::from(!made);
        for sql in [SUM, "SELECT * FROM t", SUM] {
            match sim.execute(sql).await {
                Ok(result) => {
                    let expected = answer(&cpu, sql).await;
                    let actual = Answer::new(&result.schema, &result.batches);
                    assert_eq!(expected.difference(&actual, false), None, "{sql}, lost at launch {nth}");
                    answered += 1;
                }
                Err(error) => {
                    assert!(made, "{sql}, lost at launch {nth}: {error}");
                    let words = error.to_string();
                    assert!(words.contains("table t was on a device that is lost; make it again"), "{nth}: {words}");
                    refused += 1;
                }
            }
        }
        // A table of that name can be made again, by the CPU.
        if refused > 0 {
            sim.execute(&ALL.replace("CREATE", "CREATE OR REPLACE")).await.expect("made by the CPU");
            let result = sim.execute(SUM).await.expect("an answer");
            let actual = Answer::new(&result.schema, &result.batches);
            assert_eq!(answer(&cpu, SUM).await.difference(&actual, false), None);
        }
        all_refused += refused;
    }
    assert!(
        answered > 0 && all_refused > 0 && home > 0,
        "{answered} answers, {all_refused} errors, {home} made by the CPU"
    );
}

/// Downloaded rows survive the loss of the device.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_came_home_survive_the_device() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cpu = session_with(DeviceChoice::Cpu, 2, Fallback::Allow);
    register_parquet(cpu.context(), &folder).await;
    run(&cpu, ALL).await;
    let expected = answer(&cpu, SUM).await;
    let mut survived = 0;
    for nth in 20..60_usize {
        let sim = Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim);
        let sim = sim
            .with_option("debug_sim_lose_at_launch", &nth.to_string())
            .expect("an option")
            .build()
            .expect("a device");
        register_parquet(sim.context(), &folder).await;
        sim.execute(ALL).await.expect("a table");
        if !is_made(&sim, "t").await || sim.engine().expect("a device").device().is_lost() {
            continue;
        }
        sim.execute("SELECT * FROM t").await.expect("rows come home");
        for _ in 0..20 {
            let result = sim.execute(SUM).await.unwrap_or_else(|error| panic!("lost at launch {nth}: {error}"));
            assert_eq!(expected.difference(&Answer::new(&result.schema, &result.batches), true), None);
        }
        survived += usize::from(sim.engine().expect("a device").device().is_lost());
    }
    assert!(survived > 0, "no device was lost after the rows had come home");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_sessions_make_and_read_tables_at_once() {
    let (cpu, sim, folder) = over_parts().await;
    both(&cpu, &sim, ALL).await;
    let expected = Arc::new(answer(&cpu, SUM).await);
    let engine = Arc::clone(sim.engine().expect("a device"));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let session = Millpond::builder().with_engine(Arc::clone(&engine)).build().expect("a session");
        register_parquet(session.context(), &folder).await;
        let (expected, shared) = (Arc::clone(&expected), sim.clone());
        tasks.spawn(async move {
            for round in 0..4 {
                run(&session, &ALL.replace("CREATE", "CREATE OR REPLACE")).await;
                for reader in [&session, &shared] {
                    assert_eq!(expected.difference(&answer(reader, SUM).await, true), None, "{number}, {round}");
                }
                match (number + round) % 4 {
                    0 => store(&session).clear(),
                    1 => drop(run(&session, "SELECT * FROM t").await),
                    2 => drop(run(&session, "INSERT INTO t SELECT * FROM t WHERE id < 0").await),
                    _ => {}
                }
                assert_eq!(expected.difference(&answer(&session, SUM).await, true), None, "{number}, {round}, again");
            }
            run(&session, "DROP TABLE t").await;
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("a task");
    }
    run(&sim, "DROP TABLE t").await;
    store(&sim).clear();
    assert_eq!((pool_bytes(&sim), store(&sim).bytes()), (0, 0));
    assert!(store(&sim).entries(None).is_empty());
}

/// Texts and numbers of more rows than one download takes, in partitions of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_table_comes_home_in_pieces() {
    let rows = 600_000_i32;
    let texts: StringArray = (0..rows).map(|row| (row % 7 != 3).then(|| format!("text {}", row % 1000))).collect();
    let batch = RecordBatch::try_from_iter([
        ("k", Arc::new((0..rows).collect::<Int32Array>()) as ArrayRef),
        ("s", Arc::new(texts) as ArrayRef),
    ]);
    let batch = batch.expect("columns");
    let [cpu, sim] = [(DeviceChoice::Cpu, Fallback::Allow), (DeviceChoice::Sim, Fallback::Error)]
        .map(|(device, fallback)| session_with(device, 3, fallback));
    for session in [&cpu, &sim] {
        let table = MemTable::try_new(batch.schema(), vec![vec![batch.clone()]]).expect("a table");
        session.context().register_table("long", Arc::new(table)).expect("a name of its own");
    }
    both(&cpu, &sim, "CREATE TABLE t AS SELECT k * 2 AS k, s FROM long WHERE k >= 0").await;
    assert!(is_made(&sim, "t").await);
    let home = run(&sim, "SELECT * FROM t").await;
    let home = concat_batches(&home.schema, &home.batches).expect("rows");
    assert_eq!(home.num_rows(), rows as usize);
    equal(&cpu, &sim, "SELECT count(*) AS n, count(s) AS c, sum(k) AS k, min(s) AS l, max(s) AS m FROM t WHERE k >= 0")
        .await;
    let (k, s) = (home.column(0), home.column(1));
    assert_eq!((k.null_count(), s.null_count()), (0, batch.column(1).null_count()));
    both(&cpu, &sim, "INSERT INTO t SELECT * FROM t WHERE k < 10").await;
    equal(&cpu, &sim, "SELECT count(*) AS n, count(s) AS c, sum(k) AS k, min(s) AS l, max(s) AS m FROM t WHERE k >= 0")
        .await;
}

/// Arrow cannot pack dictionaries into a dictionary; a table of such columns is read back nevertheless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dictionaries_of_dictionaries_come_home() {
    let [cpu, sim] = [(DeviceChoice::Cpu, Fallback::Allow), (DeviceChoice::Sim, Fallback::Allow)]
        .map(|(device, fallback)| session_with(device, 2, fallback));
    let make = "CREATE TABLE nested AS SELECT column1 AS id, arrow_cast(arrow_cast(column2, 'Dictionary(UInt32, Utf8)'), \
                'Dictionary(Int32, Dictionary(UInt32, Utf8))') AS n FROM (VALUES (1, 'a'), (2, 'b'), (3, NULL), (4, 'a'))";
    for session in [&cpu, &sim] {
        session.execute(make).await.expect("a table");
    }
    for sql in [
        "SELECT id, n FROM nested",
        "SELECT initcap(n) AS n, arrow_typeof(n) AS of FROM nested",
        "SELECT id, n FROM nested WHERE id > 1",
        "SELECT arrow_cast(n, 'Utf8') AS n, count(*) AS rows FROM nested GROUP BY 1",
        "SELECT upper(n) AS n FROM nested WHERE id < 4",
    ] {
        let expected = cpu.execute(sql).await.unwrap_or_else(|error| panic!("DataFusion refuses {sql}: {error}"));
        let actual = sim.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let [expected, actual] = [expected, actual].map(|of| Answer::new(&of.schema, &of.batches));
        assert_eq!(expected.difference(&actual, false), None, "{sql}");
    }
}
