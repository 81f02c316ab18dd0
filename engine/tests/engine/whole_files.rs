//! COPY and INSERT that fail: what was there stays, nothing half-written is left, and the error is the query's own.

use std::path::Path;

use millpond::DeviceChoice;

use crate::support::session;

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_statement_that_fails_leaves_the_files_that_were_there() {
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        for kind in ["parquet", "csv", "json", "arrow"] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let file = folder.path().join(format!("t.{kind}"));
            let target = file.to_str().expect("UTF-8");
            let session = session(device);
            session.execute("CREATE TABLE n AS SELECT * FROM generate_series(1, 200000) AS g(k)").await.expect("made");
            session.execute(&format!("COPY (SELECT 7 AS k) TO '{target}'")).await.expect("written");
            let before = std::fs::read(&file).expect("a file");
            // The last row fails at once, after some batches, and beside a file of several parts.
            for rows in ["k > 199999", "k > 0", "k > 150000"] {
                let failing = format!("SELECT 10 / (200000 - k) AS q, repeat('x', 90) AS s FROM n WHERE {rows}");
                let sql = format!("COPY ({failing}) TO '{target}'");
                let Err(error) = session.execute(&sql).await else { panic!("{device}: {sql} ends well") };
                let error = error.to_string();
                assert!(error.contains("Divide by zero"), "{device}: {sql}: {error}");
                assert_eq!(std::fs::read(&file).expect("a file"), before, "{device}: {sql}");
                assert_eq!(names(folder.path()), [format!("t.{kind}")], "{device}: {sql}");
            }
            let new = folder.path().join(format!("new.{kind}"));
            let sql = format!("COPY (SELECT 1 / (k - 5) AS q FROM n) TO '{}'", new.to_str().expect("UTF-8"));
            assert!(session.execute(&sql).await.is_err(), "{device}: {sql} ends well");
            assert!(!new.exists(), "{device}: {sql}");
            // Afterwards the same file can be written.
            session.execute(&format!("COPY (SELECT 8 AS k) TO '{target}'")).await.expect("written");
            assert_ne!(std::fs::read(&file).expect("a file"), before, "{device}: {target}");
        }
    }
}

#[tokio::test]
async fn a_table_of_files_has_no_rows_of_an_insert_that_fails() {
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let session = session(device);
        let place = folder.path().to_str().expect("UTF-8");
        session
            .execute(&format!("CREATE EXTERNAL TABLE t (q BIGINT) STORED AS PARQUET LOCATION '{place}/'"))
            .await
            .expect("made");
        session.execute("INSERT INTO t VALUES (1), (2)").await.expect("inserted");
        let before = names(folder.path());
        let failing = "INSERT INTO t SELECT 1 / (k - 30000) FROM generate_series(1, 50000) AS g(k)";
        assert!(session.execute(failing).await.is_err(), "{device}: it ends well");
        assert_eq!(names(folder.path()), before, "{device}");
    }
}
