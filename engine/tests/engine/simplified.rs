//! Conditions that DataFusion's simplifier changes. The right answers are those of PostgreSQL and DuckDB; where casts
//! of decimals truncate, as docs/sql.md has it, those of `trunc`.

use millpond::DeviceChoice;
use millpond::datafusion::arrow::util::display::array_value_to_string;

use crate::support::session;

/// Conditions, and the number of rows that pass by the definition of SQL: those for which it is true.
const CASES: &[(&str, u64)] = &[
    // b: NULL, 5, 70000, 6, -40000, 9 as BIGINT. The two great ones have no SMALLINT.
    ("TRY_CAST(b AS SMALLINT) > 5", 2),
    ("TRY_CAST(b AS SMALLINT) <= 5", 1),
    ("TRY_CAST(b AS SMALLINT) <> 5", 2),
    ("5 <> TRY_CAST(b AS SMALLINT)", 2),
    ("TRY_CAST(b AS SMALLINT) BETWEEN -50 AND 90", 3),
    ("TRY_CAST(b AS SMALLINT) NOT IN (5, 6, 7, 8, 10)", 1),
    ("(TRY_CAST(b AS SMALLINT) IN (2, -16)) IS NOT UNKNOWN", 3),
    ("(TRY_CAST(b AS SMALLINT) < 7) IS NULL", 3),
    ("TRY_CAST(b AS INT) > 5", 3),
    ("CAST(b AS DECIMAL(20, 2)) > 5.5", 3),
    ("TRY_CAST(b AS DECIMAL(6, 2)) < 100", 3),
    // d: 2.50, 2.00, NULL, 3.10, -0.70, 99999.99 as DECIMAL(12, 2)
    ("CAST(d AS INT) = 2", 2),
    ("CAST(d AS BIGINT) IN (2, 3)", 3),
    ("CAST(d AS BIGINT) = 0", 1),
    ("TRY_CAST(d AS TINYINT) >= 0", 4),
    ("TRY_CAST(d AS TINYINT) IS NULL", 2),
    ("(TRY_CAST(d AS TINYINT) = 3) IS FALSE", 3),
    // Lists over one expression; k: NULL, 1, 2, 3, NULL, 4, and m is k where that is even, else 9
    ("(k IN (1, 2) AND k IN (3, 4)) IS NULL", 2),
    ("(k IN (1, 2) AND k IN (3, 4)) IS FALSE", 4),
    ("NOT (k IN (1, 2) AND k IN (3, 4))", 4),
    ("k NOT IN (1, 2) OR k NOT IN (3, 4)", 4),
    ("NOT (k IN (1, 2)) OR NOT k IN (3, 4)", 4),
    ("((k = 1 OR k = 2) AND (k = 3 OR k = 4)) IS NULL", 2),
    ("NOT (k = 1 AND k = 2)", 4),
    ("(k = 1 AND k = 2) IS NULL", 2),
    ("k IN (1, 2) AND k NOT IN (1, NULL)", 0),
    ("k NOT IN (1, NULL) OR k NOT IN (2, 5)", 3),
    ("k IN (m, 1) AND k IN (m + 0, 3)", 2),
    ("k IN (m, 7, 8, 11) AND k IN (m + 0, 7, 12, 13)", 2),
    ("CASE WHEN k IN (1, 2) AND k IN (2, 3) THEN false ELSE k IN (1, 2) AND k NOT IN (1, 2) END IS NULL", 2),
    // XOR
    ("(k ^ k) IS NULL", 2),
    ("(k ^ k) = 0", 4),
    ("(k ^ m ^ k) = m", 4),
    ("(k ^ b ^ k) IS NULL", 2),
    // Patterns; s: 'a\b', 'ab', NULL, '', 'a' and 'b' on two lines, 'xaby'
    ("s ~ '.*'", 5),
    ("(s ~ '.*') IS NULL", 1),
    ("(s !~ '.*') IS FALSE", 5),
    ("NOT (s ~* '.*')", 0),
    (r"s ~ 'a\\b'", 1),
    (r"s !~ 'a\\b'", 4),
    (r"s ~ '^a\\b$'", 1),
    (r"s ~ 'ab'", 2),
];

const TABLE: &str = "CREATE TABLE t AS SELECT column1 AS id, column2 AS b, CAST(column3 AS DECIMAL(12, 2)) AS d, column4 AS k, \
     CASE WHEN column4 % 2 = 0 THEN column4 ELSE 9 END AS m, column5 AS s FROM (VALUES \
     (1, NULL, '2.50', NULL, 'a\\b'), (2, 5, '2.00', 1, 'ab'), (3, 70000, NULL, 2, NULL), (4, 6, '3.10', 3, ''), \
     (5, -40000, '-0.70', NULL, 'a\nb'), (6, 9, '99999.99', 4, 'xaby'))";

#[tokio::test]
async fn conditions_keep_what_null_and_casts_make_of_them() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("t.parquet");
    let file = file.to_str().expect("UTF-8");
    let writer = session(DeviceChoice::Cpu);
    writer.execute(TABLE).await.expect("made");
    writer.execute(&format!("COPY t TO '{file}' STORED AS PARQUET")).await.expect("written");
    let mut wrong = vec![];
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        for pushed in [false, true] {
            let session = session(device);
            session.execute(TABLE).await.expect("made");
            session
                .execute(&format!("SET datafusion.execution.parquet.pushdown_filters = {pushed}"))
                .await
                .expect("set");
            session.context().register_parquet("f", file, Default::default()).await.expect("read");
            for (condition, rows) in CASES {
                for from in
                    ["t", "f", "(SELECT * FROM t WHERE id > 0) AS q", "t JOIN (VALUES (1)) AS v(one) ON id >= one"]
                {
                    let sql = format!("SELECT count(*) FROM {from} WHERE {condition}");
                    // The second run has a plan that was kept, or one of a template.
                    for _ in 0..2 {
                        match session.execute(&sql).await {
                            Ok(result) => {
                                let count = array_value_to_string(result.batches[0].column(0), 0).expect("a number");
                                if count != rows.to_string() {
                                    wrong.push(format!("{device}, {sql}: {count}, not {rows}"));
                                }
                            }
                            Err(error) => wrong.push(format!("{device}, {sql}: {error}")),
                        }
                    }
                }
                let sql = format!("SELECT count(CASE WHEN {condition} THEN 1 END) FROM t");
                let frame = session.context().sql(&sql).await.expect("a plan").collect().await.expect("rows");
                let count = array_value_to_string(frame[0].column(0), 0).expect("a number");
                if count != rows.to_string() {
                    wrong.push(format!("{device}, {sql}: {count}, not {rows}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn a_cast_that_does_not_fit_is_an_error_as_in_postgresql() {
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session = session(device);
        session.execute(TABLE).await.expect("made");
        for sql in [
            "SELECT id FROM t WHERE CAST(b AS SMALLINT) > 5",
            "SELECT id FROM t WHERE CAST(b AS SMALLINT) IN (5, 6, 7, 8)",
        ] {
            let Err(error) = session.execute(sql).await else { panic!("{device}: {sql} has an answer") };
            let error = error.to_string();
            assert!(error.contains("70000") || error.contains("-40000"), "{device}: {error}");
        }
    }
}
