//! DELETE and UPDATE of tables in memory: exactly the rows that match the condition; all of them or none.
//!
//! Values  DuckDB 2.0.1's, by the same statements over the same tables.

use millpond::datafusion::arrow::array::AsArray;
use millpond::datafusion::arrow::datatypes::UInt64Type;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::util::display::array_value_to_string;
use millpond::{DeviceChoice, Millpond};

use crate::support::session;

const TABLES: &[&str] = &[
    "CREATE TABLE o AS SELECT * FROM (VALUES (1, 10), (2, 20), (NULL, 30), (4, 40), (5, 3)) AS t(id, z)",
    "CREATE TABLE n AS SELECT * FROM (VALUES (1, 1), (2, NULL), (4, 4)) AS t(id, v)",
    "CREATE TABLE none AS SELECT * FROM n WHERE id > 9",
];

/// Statements, the number of rows that they change, and the rows of `o` afterwards.
#[rustfmt::skip]
const CHANGES: &[(&str, u64, &str)] = &[
    ("DELETE FROM o WHERE 1 = 0", 0, "5|3 1|10 2|20 |30 4|40"),
    ("DELETE FROM o WHERE NULL", 0, "5|3 1|10 2|20 |30 4|40"),
    ("DELETE FROM o WHERE id = 1 AND id = 2", 0, "5|3 1|10 2|20 |30 4|40"),
    ("DELETE FROM o WHERE id = 1 AND NULL", 0, "5|3 1|10 2|20 |30 4|40"),
    ("DELETE FROM o WHERE id IN (1) AND id IN (2)", 0, "5|3 1|10 2|20 |30 4|40"),
    ("DELETE FROM o WHERE id IS NULL", 1, "5|3 1|10 2|20 4|40"),
    ("DELETE FROM o WHERE NOT (id > 1)", 1, "5|3 2|20 |30 4|40"),
    ("DELETE FROM o", 5, ""),
    ("DELETE FROM o WHERE true", 5, ""),
    ("DELETE FROM o WHERE id IN (SELECT id FROM n)", 3, "5|3 |30"),
    ("DELETE FROM o WHERE id NOT IN (SELECT id FROM n)", 1, "1|10 2|20 |30 4|40"),
    ("DELETE FROM o WHERE id NOT IN (SELECT v FROM n)", 0, "5|3 1|10 2|20 |30 4|40"),
    ("DELETE FROM o WHERE id NOT IN (SELECT id FROM n) OR z = 40", 2, "1|10 2|20 |30"),
    ("DELETE FROM o WHERE id IN (SELECT id FROM none)", 0, "5|3 1|10 2|20 |30 4|40"),
    ("DELETE FROM o WHERE id NOT IN (SELECT id FROM none)", 5, ""),
    ("DELETE FROM o WHERE EXISTS (SELECT 1 FROM n WHERE n.id = o.id AND n.v IS NOT NULL)", 2, "5|3 2|20 |30"),
    ("DELETE FROM o WHERE NOT EXISTS (SELECT 1 FROM n WHERE n.id = o.id)", 2, "1|10 2|20 4|40"),
    ("DELETE FROM o WHERE z > (SELECT avg(z) FROM o)", 2, "5|3 1|10 2|20"),
    ("DELETE FROM o WHERE z = (SELECT max(x.z) FROM o AS x WHERE x.id = o.id)", 4, "|30"),
    ("DELETE FROM o WHERE z > ALL (SELECT v FROM n WHERE v IS NOT NULL)", 4, "5|3"),
    ("UPDATE o SET z = -1 WHERE 1 = 0", 0, "5|3 1|10 2|20 |30 4|40"),
    ("UPDATE o SET z = -1 WHERE id IN (SELECT id FROM n)", 3, "1|-1 2|-1 4|-1 5|3 |30"),
    ("UPDATE o SET z = -1 WHERE id NOT IN (SELECT v FROM n)", 0, "5|3 1|10 2|20 |30 4|40"),
    ("UPDATE o SET z = (SELECT max(id) FROM n) WHERE id = 5", 1, "5|4 1|10 2|20 |30 4|40"),
    ("UPDATE o SET z = (SELECT max(v) FROM n WHERE n.id = o.id) + 0 * z WHERE id = 4", 1, "5|3 4|4 1|10 2|20 |30"),
    ("UPDATE o SET id = z, z = id + 1 WHERE id IS NOT NULL", 4, "10|2 20|3 40|5 3|6 |30"),
    ("UPDATE o AS p SET z = p.z + 1 WHERE EXISTS (SELECT 1 FROM n WHERE n.id = p.id)", 3, "5|3 1|11 2|21 |30 4|41"),
    ("UPDATE o SET z = 7", 5, "1|7 2|7 4|7 5|7 |7"),
];

async fn with_tables(device: DeviceChoice) -> Millpond {
    let session = session(device);
    for sql in TABLES {
        session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    session
}

fn text(batches: &[RecordBatch]) -> String {
    let value = |batch: &RecordBatch, column: usize, row: usize| match batch.column(column).is_null(row) {
        true => String::new(),
        false => array_value_to_string(batch.column(column), row).expect("a text"),
    };
    let row = |batch: &RecordBatch, row| format!("{}|{}", value(batch, 0, row), value(batch, 1, row));
    let rows = batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |at| row(batch, at)));
    rows.collect::<Vec<_>>().join(" ")
}

async fn rows(session: &Millpond) -> String {
    text(&session.execute("SELECT id, z FROM o ORDER BY z, id").await.expect("rows").batches)
}

fn count(batches: &[RecordBatch]) -> u64 {
    batches.iter().map(|batch| batch.column(0).as_primitive::<UInt64Type>().values().iter().sum::<u64>()).sum()
}

#[tokio::test]
async fn rows_that_the_condition_chooses_are_changed() {
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        for (sql, expected, left) in CHANGES {
            for through_context in [false, true] {
                let session = with_tables(device).await;
                let batches = match through_context {
                    true => session.context().sql(sql).await.expect(sql).collect().await.expect(sql),
                    false => session.execute(sql).await.expect(sql).batches,
                };
                assert_eq!((count(&batches), rows(&session).await.as_str()), (*expected, *left), "{device}: {sql}");
            }
        }
    }
}

#[tokio::test]
async fn a_change_that_fails_or_is_explained_changes_nothing() {
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session = with_tables(device).await;
        let before = rows(&session).await;
        for (sql, error) in [
            ("DELETE FROM o WHERE 10 / (id - 4) > 100", "Divide by zero"),
            ("UPDATE o SET z = 10 / (id - 4)", "Divide by zero"),
            ("UPDATE o SET z = nullif(z, 20)", "the column z of o is NOT NULL, and UPDATE gives it NULL"),
            ("DELETE FROM o WHERE id = 1 LIMIT 1", "DELETE FROM o is answered with WHERE alone"),
            ("DELETE FROM o LIMIT 1", "DELETE FROM o is answered with WHERE alone"),
        ] {
            let ended = session.execute(sql).await.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(ended.contains(error), "{device}: {sql}: {ended}");
            assert_eq!(rows(&session).await, before, "{device}: {sql}");
        }
        for sql in ["EXPLAIN DELETE FROM o", "EXPLAIN UPDATE o SET z = 1 WHERE id = 1"] {
            session.execute(sql).await.expect(sql);
            assert_eq!(rows(&session).await, before, "{device}: {sql}");
        }
        session.plan("DELETE FROM o").await.expect("a plan");
        assert_eq!(rows(&session).await, before, "{device}: planned");
    }
}

/// A plan over other rows is refused, and can be run again.
#[tokio::test]
async fn no_change_of_another_statement_is_lost() {
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session = with_tables(device).await;
        let plan = session.plan("DELETE FROM o WHERE id = 1").await.expect("a plan");
        session.execute("INSERT INTO o VALUES (9, 9)").await.expect("inserted");
        let context = session.context().task_ctx();
        let ended = millpond::datafusion::physical_plan::collect(plan, context).await;
        let error = ended.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("the table o was changed by another statement meanwhile"), "{device}: {error}");
        assert_eq!(rows(&session).await, "5|3 9|9 1|10 2|20 |30 4|40", "{device}");
        session.execute("DELETE FROM o WHERE id = 1").await.expect("deleted");
        assert_eq!(rows(&session).await, "5|3 9|9 2|20 |30 4|40", "{device}");
    }
}

/// More rows than a batch has, in several partitions; what was in the store of columns is not asked again.
#[tokio::test]
async fn large_tables_are_changed_and_read_again() {
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session = session(device);
        let made = "CREATE TABLE t AS SELECT value AS k, value % 10 AS g FROM generate_series(1, 50000)";
        session.execute(made).await.expect("made");
        let sum = || async {
            let sql = "SELECT count(*) AS n, sum(k + g) AS s FROM t";
            text(&session.execute(sql).await.expect(sql).batches)
        };
        assert_eq!(sum().await, "50000|1250250000", "{device}");
        let deleted = session.execute("DELETE FROM t WHERE g IN (SELECT g FROM t WHERE k < 4)").await.expect("deleted");
        assert_eq!(count(&deleted.batches), 15_000, "{device}");
        assert_eq!(sum().await, "35000|875265000", "{device}");
        let updated = session.execute("UPDATE t SET g = 100 WHERE k > 49990").await.expect("updated");
        assert_eq!(count(&updated.batches), 7, "{device}");
        assert_eq!(sum().await, "35000|875265661", "{device}");
    }
}
