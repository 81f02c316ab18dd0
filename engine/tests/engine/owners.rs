//! Two sessions over one engine: which columns each sees in `millpond_cache()`, and which it lets go.
//!
//!   files                  both see them, either lets them go
//!   tables in memory, made the session's that has them; the other sees how many bytes they take

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use millpond::datafusion::arrow::compute::concat_batches;
use millpond::datafusion::arrow::datatypes::UInt64Type;
use millpond::device::Engine;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::support::{register_parquet, session_with};

const LIST: &str = "SELECT \"table\", \"column\", tier, bytes FROM millpond_cache()";

/// Table, column, tier and bytes of each entry.
async fn list(session: &Millpond, sql: &str) -> Vec<(String, String, String, u64)> {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let rows = concat_batches(&result.schema, &result.batches).expect("batches of one schema");
    let text = |column: usize, row: usize| rows.column(column).as_string::<i32>().value(row).to_string();
    let bytes = rows.column(3).as_primitive::<UInt64Type>();
    (0..rows.num_rows()).map(|row| (text(0, row), text(1, row), text(2, row), bytes.value(row))).collect()
}

/// The tables of which it sees columns.
fn tables(entries: &[(String, String, String, u64)]) -> Vec<&str> {
    let mut tables: Vec<&str> = entries.iter().map(|(table, ..)| table.rsplit('/').next().unwrap_or(table)).collect();
    tables.sort_unstable();
    tables.dedup();
    tables
}

fn bytes(entries: &[(String, String, String, u64)]) -> u64 {
    entries.iter().map(|(.., bytes)| bytes).sum()
}

async fn run(session: &Millpond, sql: &str) {
    session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Another session on the device, which trusts files that were just written.
fn beside(engine: &Arc<Engine>) -> Millpond {
    let builder = Millpond::builder().with_engine(Arc::clone(engine));
    builder.with_option("cache_settle_seconds", "0").expect("an option").build().expect("a session")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_sees_files_and_its_own_tables() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let one = session_with(DeviceChoice::Sim, 2, Fallback::Error);
    let engine = Arc::clone(one.engine().expect("a device"));
    let other = beside(&engine);
    for session in [&one, &other] {
        register_parquet(session.context(), &folder).await;
    }
    // A file, a made table and a table in memory, all by one session.
    run(&one, "SELECT sum(id) AS s FROM parts WHERE size > 3").await;
    run(&one, "CREATE TABLE secrets AS SELECT id * 3 AS salary FROM parts").await;
    let numbers: Int64Array = (0..100).collect();
    let batch = RecordBatch::try_from_iter([("v", Arc::new(numbers) as ArrayRef)]).expect("a column");
    one.context().register_batch("memory", batch).expect("a name of its own");
    for _ in 0..2 {
        run(&one, "SELECT sum(v) AS s FROM memory WHERE v > 3").await;
    }
    let own = list(&one, LIST).await;
    assert_eq!(tables(&own), ["1 batches in memory", "parts.parquet", "secrets"]);

    // The other sees the file, and that there is more.
    let seen = list(&other, LIST).await;
    assert_eq!(tables(&seen), ["(other sessions)", "parts.parquet"]);
    assert_eq!(
        seen.last().map(|(_, column, tier, _)| (column.as_str(), tier.as_str())),
        Some(("(2 columns)", "device"))
    );
    assert_eq!(bytes(&seen), bytes(&own), "all bytes are accounted for");

    // What it lets go is the file, not what is the first one's.
    let gone = list(&other, "SELECT \"table\", \"column\", tier, bytes FROM millpond_cache_clear()").await;
    assert_eq!(tables(&gone), ["parts.parquet"]);
    let own = list(&one, LIST).await;
    assert_eq!(tables(&own), ["1 batches in memory", "secrets"]);
    assert!(own.iter().all(|(_, _, tier, _)| tier == "device"), "{own:?}");
    assert!(other.execute("SELECT * FROM millpond_cache_clear('secrets')").await.is_err(), "it has no such table");

    // Each may have a table of that name.
    run(&other, "CREATE TABLE secrets AS SELECT id AS own FROM parts WHERE id + 1 < 5").await;
    run(&other, "SELECT * FROM millpond_cache_clear('secrets')").await;
    let tier = |entries: &[(String, String, String, u64)], name: &str| {
        let found = entries.iter().find(|(_, column, ..)| column == name);
        found.map(|(_, _, tier, _)| tier.clone())
    };
    let own = list(&one, LIST).await;
    assert_eq!(tier(&own, "salary").as_deref(), Some("device"));
    assert_eq!(tier(&own, "own"), None);
    let seen = list(&other, LIST).await;
    assert_eq!((tier(&seen, "own").as_deref(), tier(&seen, "salary")), (Some("host"), None));

    // A table that a program hands over is both sessions' once the second has read it.
    let shared = one.context().table_provider("secrets").await.expect("a table");
    other.context().register_table("shared", shared).expect("a name of its own");
    assert_eq!(tier(&list(&other, LIST).await, "salary"), None);
    run(&other, "SELECT sum(salary) AS s FROM shared WHERE salary > 3").await;
    assert_eq!(tier(&list(&other, LIST).await, "salary").as_deref(), Some("device"));

    // The first one's clear moves its own to the host, and lets the table in memory go.
    run(&one, "SELECT * FROM millpond_cache_clear()").await;
    let own = list(&one, LIST).await;
    assert_eq!(tables(&own), ["(other sessions)", "secrets"]);
    assert!(own.iter().all(|(_, _, tier, _)| tier == "host"), "{own:?}");

    // Dropping a session drops its tables.
    drop(other);
    assert_eq!(tables(&list(&one, LIST).await), ["secrets"]);
}

/// What one session has warmed the other finds there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_one_session_warms_is_there_for_the_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let one = session_with(DeviceChoice::Sim, 2, Fallback::Error);
    let engine = Arc::clone(one.engine().expect("a device"));
    let other = beside(&engine);
    for session in [&one, &other] {
        register_parquet(session.context(), &folder).await;
    }
    run(&one, "SELECT * FROM millpond_cache_warm('parts', 'id', 'size')").await;
    assert_eq!(list(&other, LIST).await, list(&one, LIST).await);
    let result =
        other.execute("SELECT sum(id) AS s, max(size) AS m FROM parts WHERE id >= 0").await.expect("an answer");
    assert_eq!(result.report.uploaded_bytes, 0, "{:?}", list(&other, LIST).await);
    let gone = list(&other, "SELECT \"table\", \"column\", tier, bytes FROM millpond_cache_clear('parts')").await;
    assert_eq!(gone.len(), 2);
    assert!(list(&one, LIST).await.is_empty());
}
