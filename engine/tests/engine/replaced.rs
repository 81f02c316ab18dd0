//! CREATE OR REPLACE that fails, or ends midway, leaves what was there; so do other statements that write.
//!
//!   t ─► CREATE OR REPLACE TABLE t AS … fails ─► t, the same rows, on the device as before

use std::sync::Arc;

use futures::poll;
use millpond::datafusion::arrow::array::RecordBatch;
use millpond::datafusion::arrow::compute::concat_batches;
use millpond::datafusion::arrow::util::pretty::pretty_format_batches;
use millpond::datafusion::catalog::TableProvider;
use millpond::store::MadeTable;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::support::{register_parquet, session_with, until};

const MAKE: &str = "CREATE TABLE t AS SELECT id + 1 AS id, size, name FROM parts WHERE id < 700";

/// Statements that would replace or change `t`, and what their errors say.
const FAIL: &[(&str, &str)] = &[
    ("CREATE OR REPLACE TABLE t AS SELECT nowhere FROM parts", "nowhere"),
    ("CREATE OR REPLACE TABLE t AS SELECT id FROM nowhere", "nowhere"),
    ("CREATE OR REPLACE TABLE t AS SELECT id / zero AS a FROM parts", "ivide by zero"),
    ("CREATE OR REPLACE TABLE t AS SELECT CAST(name AS INT) AS a FROM parts", "ast error"),
    ("CREATE OR REPLACE TABLE t AS SELECT id, size AS id FROM parts", "id"),
    ("CREATE OR REPLACE TABLE t AS SELECT a.id, b.id FROM parts a JOIN parts b ON a.id = b.id", "id"),
    ("CREATE OR REPLACE TABLE t AS SELECT id FROM t WHERE id / (id - 5) > 0", "ivide by zero"),
    ("CREATE OR REPLACE TABLE t (a BIGINT, PRIMARY KEY (a)) AS SELECT id / zero FROM parts", "ivide by zero"),
    ("CREATE OR REPLACE TABLE t (a BIGINT DEFAULT 7) AS SELECT id / zero FROM parts", "ivide by zero"),
    ("CREATE OR REPLACE TABLE IF NOT EXISTS t AS SELECT 1 AS a", "REPLACE"),
    ("CREATE OR REPLACE VIEW t AS SELECT nowhere FROM parts", "nowhere"),
    ("CREATE OR REPLACE VIEW t AS SELECT id, size AS id FROM parts", "id"),
    ("CREATE OR REPLACE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'nowhere.parquet'", "nowhere"),
    ("CREATE OR REPLACE EXTERNAL TABLE t STORED AS NOTHING LOCATION 'nowhere.parquet'", "factory"),
    ("INSERT INTO t SELECT id / zero, size, name FROM parts", "ivide by zero"),
];

/// DataFusion changes its own tables partition by partition; a made table is one.
const CHANGE: &[(&str, &str)] = &[
    ("UPDATE t SET size = 1 / (id - 650)", "ivide by zero"),
    ("DELETE FROM t WHERE 1 / (id - 650) < 0", "ivide by zero"),
];

async fn rows(session: &Millpond, sql: &str) -> RecordBatch {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    concat_batches(&result.schema, &result.batches).expect("batches of one schema")
}

async fn table(session: &Millpond, name: &str) -> Arc<dyn TableProvider> {
    session.context().table_provider(name).await.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The table is the one that it was.
async fn assert_stays(session: &Millpond, name: &str, before: &Arc<dyn TableProvider>, sql: &str) {
    assert!(Arc::ptr_eq(&table(session, name).await, before), "another table has its place: {sql}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_that_fails_leaves_the_table() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (device, cache) in [(DeviceChoice::Cpu, "auto"), (DeviceChoice::Sim, "auto"), (DeviceChoice::Sim, "off")] {
        let session = session_with(device, 3, Fallback::Allow);
        register_parquet(session.context(), &folder).await;
        session.execute(&format!("SET millpond.cache = '{cache}'")).await.expect("an option");
        session.execute(MAKE).await.expect("a table");
        let before = table(&session, "t").await;
        let expected = rows(&session, "SELECT * FROM t ORDER BY id").await;
        let is_made = before.downcast_ref::<MadeTable>().is_some();
        assert_eq!(is_made, device == DeviceChoice::Sim && cache == "auto");
        for (sql, why) in FAIL.iter().chain(CHANGE.iter().filter(|_| is_made)) {
            let error = session.execute(sql).await.err().unwrap_or_else(|| panic!("{sql} is done"));
            assert!(error.to_string().contains(why), "{sql}: {error}");
            assert_stays(&session, "t", &before, sql).await;
            assert_eq!(rows(&session, "SELECT * FROM t ORDER BY id").await, expected, "{sql}, {device}");
            until("memory comes back", || session.pool_used_bytes() == 0).await;
        }
        // One that works.
        let make = "CREATE OR REPLACE TABLE t (a INT DEFAULT 7, b INT) AS SELECT size, zero FROM parts WHERE id < 3";
        session.execute(make).await.expect("made");
        session.execute("INSERT INTO t (b) VALUES (1)").await.expect("inserted");
        assert_eq!(rows(&session, "SELECT * FROM t").await.num_rows(), 4);
        assert_eq!(rows(&session, "SELECT * FROM t WHERE a = 7 AND b = 1").await.num_rows(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_views_that_cannot_be_replaced_stay() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session = session_with(device, 2, Fallback::Allow);
        register_parquet(session.context(), &folder).await;
        session.execute("CREATE VIEW v AS SELECT id FROM parts WHERE id < 7").await.expect("a view");
        let (files, view) = (table(&session, "parts").await, table(&session, "v").await);
        for (sql, _) in FAIL.iter().filter(|(sql, _)| sql.starts_with("CREATE")) {
            for (name, before) in [("parts", &files), ("v", &view)] {
                let sql = sql.replacen(" t ", &format!(" {name} "), 1);
                assert!(session.execute(&sql).await.is_err(), "{sql}");
                assert_stays(&session, name, before, &sql).await;
            }
        }
        assert_eq!(rows(&session, "SELECT * FROM v").await.num_rows(), 7);
        assert_eq!(rows(&session, "SELECT * FROM parts").await.num_rows(), 1000);
        // A view is not replaced by files.
        let path = folder.path().join("parts.parquet");
        let of_files = |name: &str| {
            let path = path.to_str().expect("a UTF-8 path");
            format!("CREATE OR REPLACE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{path}'")
        };
        assert!(session.execute(&of_files("v")).await.is_err());
        assert_stays(&session, "v", &view, "by files").await;
        session.execute(&of_files("parts")).await.expect("replaced");
        assert!(!Arc::ptr_eq(&table(&session, "parts").await, &files));
        assert_eq!(rows(&session, "SELECT * FROM parts").await.num_rows(), 1000);
    }
}

/// Dropped at each of its first waits, the statement has replaced the table or has not begun to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_that_is_dropped_leaves_the_table() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut dropped, mut done) = (0, 0);
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session = session_with(device, 3, Fallback::Allow);
        register_parquet(session.context(), &folder).await;
        session.execute(MAKE).await.expect("a table");
        for polls in (0..40).chain([usize::MAX]) {
            let before = table(&session, "t").await;
            let sql = "CREATE OR REPLACE TABLE t AS SELECT a.id, b.name FROM parts a JOIN parts b ON a.id = b.size";
            let mut running = Box::pin(session.execute(sql));
            let mut ended = false;
            for _ in 0..polls {
                if let std::task::Poll::Ready(result) = poll!(&mut running) {
                    result.expect("replaced");
                    ended = true;
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(running);
            match ended {
                true => assert!(!Arc::ptr_eq(&table(&session, "t").await, &before)),
                false => assert_stays(&session, "t", &before, sql).await,
            }
            *(if ended { &mut done } else { &mut dropped }) += 1;
            assert!(rows(&session, "SELECT * FROM t").await.num_rows() > 0, "after {polls} polls");
        }
    }
    assert!(dropped >= 2 && done >= 2, "{dropped} dropped, {done} done");
}

/// Host memory that runs out, of the session's pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_without_memory_leaves_the_table() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let session = session_with(DeviceChoice::Cpu, 2, Fallback::Allow);
    register_parquet(session.context(), &folder).await;
    session.execute(MAKE).await.expect("a table");
    let before = table(&session, "t").await;
    session.execute("SET datafusion.runtime.memory_limit = '1K'").await.expect("an option");
    let sql = "CREATE OR REPLACE TABLE t AS SELECT name, size, count(*) AS n FROM parts GROUP BY name, size ORDER BY n";
    let error = session.execute(sql).await.err().expect("there is no memory");
    assert!(error.to_string().contains("Resources exhausted"), "{error}");
    assert_stays(&session, "t", &before, sql).await;
}

/// The rows that are replaced leave the device for those that come, where both have no room there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_most_of_the_room_is_replaced_on_the_device() {
    let session = session_with(DeviceChoice::Sim, 2, Fallback::Error);
    let folder = tempfile::tempdir().expect("a temporary folder");
    register_parquet(session.context(), &folder).await;
    let make = "CREATE OR REPLACE TABLE t AS SELECT a.id * 1000003 AS a, b.id * 999983 AS b FROM parts a JOIN parts b ON a.zero = b.zero WHERE b.id < 50";
    // Some 10,000 rows of two numbers of 32 bits, beside the columns of the file.
    session.execute("SET millpond.cache_bytes = 120000").await.expect("an option");
    for round in 0..3 {
        session.execute(make).await.expect("made");
        let made = table(&session, "t").await;
        assert!(made.downcast_ref::<MadeTable>().is_some(), "round {round}: it has come home");
        for _ in 0..5 {
            rows(&session, "SELECT sum(a) AS a, max(b) AS b FROM t WHERE a >= 0").await;
        }
    }
}

/// Tables that two statements replace at once are one of theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replacements_beside_each_other_leave_a_whole_table() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let session = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
    register_parquet(session.context(), &folder).await;
    session.execute(MAKE).await.expect("a table");
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..4_i64 {
        let session = session.clone();
        tasks.spawn(async move {
            for _ in 0..5 {
                let sql = format!("CREATE OR REPLACE TABLE t AS SELECT {number} AS who, id + 1 AS id FROM parts");
                session.execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("a task");
    }
    let found = rows(&session, "SELECT count(*) AS n, count(DISTINCT who) AS w FROM t").await;
    let text = pretty_format_batches(&[found]).expect("a table").to_string();
    assert!(text.contains("| 1000 | 1 |"), "{text}");
}
