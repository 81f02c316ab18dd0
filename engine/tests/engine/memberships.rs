//! IN, NOT IN, EXISTS and NOT EXISTS of subqueries wherever they stand. The values are PostgreSQL 15's; DuckDB 1.5
//! gives the same.

use std::fmt::Write as _;

use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::util::display::array_value_to_string;
use millpond::datafusion::prelude::SessionContext;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::support::{plan_text, session};
use crate::tpch::{config, data, parquet_session, queries};

const TABLES: &[&str] = &[
    "CREATE TABLE o (id INT NOT NULL, a INT, b INT, g INT, s VARCHAR, d DECIMAL(10, 2), day DATE)",
    "INSERT INTO o VALUES (1, 1, 3, 1, 'x', 1.50, DATE '2024-01-01'), (2, 2, 1, 1, 'y', 2.50, DATE '2024-02-01'),
     (3, NULL, 3, 2, NULL, NULL, NULL), (4, 4, NULL, 2, 'z', 4.00, DATE '2024-04-01'), (5, 5, 2, 3, 'x', 1.50, NULL),
     (6, NULL, 1, 4, 'w', NULL, DATE '2024-01-01'), (7, 1, 3, NULL, NULL, 7.25, DATE '2024-07-01')",
    "CREATE TABLE n (id INT NOT NULL, v INT, g INT, z INT, s VARCHAR, d DECIMAL(10, 2), day DATE)",
    "INSERT INTO n VALUES (1, 1, 1, 2, 'x', 1.50, DATE '2024-01-01'), (2, NULL, 1, 3, NULL, NULL, NULL),
     (3, 4, 2, 1, 'z', 4.00, DATE '2024-04-01'), (4, 5, 2, 5, 'q', 9.99, DATE '2024-09-09'),
     (5, NULL, NULL, 1, 'x', 1.50, NULL), (6, 2, 5, NULL, NULL, NULL, DATE '2024-01-01')",
    "CREATE TABLE m (id INT NOT NULL, k INT NOT NULL, t VARCHAR NOT NULL)",
    "INSERT INTO m VALUES (1, 1, 'x'), (2, 4, 'z'), (3, 4, 'x'), (4, 9, 'q')",
    "CREATE TABLE bare (v INT, g INT)",
];

/// Statements, and their rows.
#[rustfmt::skip]
const STATEMENTS: &[(&str, &[&str])] = &[
    ("SELECT id, a IN (SELECT v FROM n) FROM o ORDER BY id", &["1,true", "2,true", "3,", "4,true", "5,true", "6,", "7,true"]),
    ("SELECT id, a NOT IN (SELECT v FROM n) FROM o ORDER BY id", &["1,false", "2,false", "3,", "4,false", "5,false", "6,", "7,false"]),
    ("SELECT id, a IN (SELECT v FROM n WHERE v IS NOT NULL) FROM o ORDER BY id", &["1,true", "2,true", "3,", "4,true", "5,true", "6,", "7,true"]),
    ("SELECT id, a IN (SELECT v FROM bare) FROM o ORDER BY id", &["1,false", "2,false", "3,false", "4,false", "5,false", "6,false", "7,false"]),
    ("SELECT id, a NOT IN (SELECT v FROM bare) FROM o ORDER BY id", &["1,true", "2,true", "3,true", "4,true", "5,true", "6,true", "7,true"]),
    ("SELECT id, id IN (SELECT k FROM m) FROM o ORDER BY id", &["1,true", "2,false", "3,false", "4,true", "5,false", "6,false", "7,false"]),
    ("SELECT id, a IN (SELECT k FROM m) FROM o ORDER BY id", &["1,true", "2,false", "3,", "4,true", "5,false", "6,", "7,true"]),
    ("SELECT id, id NOT IN (SELECT v FROM n) FROM o ORDER BY id", &["1,false", "2,false", "3,", "4,false", "5,false", "6,", "7,"]),
    ("SELECT id, s IN (SELECT s FROM n) FROM o ORDER BY id", &["1,true", "2,", "3,", "4,true", "5,true", "6,", "7,"]),
    ("SELECT id, s NOT IN (SELECT t FROM m) FROM o ORDER BY id", &["1,false", "2,true", "3,", "4,false", "5,false", "6,true", "7,"]),
    ("SELECT id, d IN (SELECT d FROM n) FROM o ORDER BY id", &["1,true", "2,", "3,", "4,true", "5,true", "6,", "7,"]),
    ("SELECT id, day IN (SELECT day FROM n) FROM o ORDER BY id", &["1,true", "2,", "3,", "4,true", "5,", "6,true", "7,"]),
    ("SELECT id, a IN (SELECT d FROM n) FROM o ORDER BY id", &["1,", "2,", "3,", "4,true", "5,", "6,", "7,"]),
    ("SELECT id, NULL IN (SELECT v FROM bare) AS x, 3 IN (SELECT v FROM n) AS y, 1 NOT IN (SELECT v FROM n) AS z FROM o ORDER BY id", &["1,false,,false", "2,false,,false", "3,false,,false", "4,false,,false", "5,false,,false", "6,false,,false", "7,false,,false"]),
    ("SELECT id FROM o WHERE a NOT IN (SELECT v FROM n) OR b = 3 ORDER BY id", &["1", "3", "7"]),
    ("SELECT id FROM o WHERE NOT (a IN (SELECT v FROM n) AND b = 3) ORDER BY id", &["2", "5", "6"]),
    ("SELECT id FROM o WHERE NOT (a NOT IN (SELECT v FROM n) AND b = 3) ORDER BY id", &["1", "2", "4", "5", "6", "7"]),
    ("SELECT id FROM o WHERE (a IN (SELECT v FROM n)) IS NULL ORDER BY id", &["3", "6"]),
    ("SELECT id FROM o WHERE (a NOT IN (SELECT v FROM n)) IS NOT NULL ORDER BY id", &["1", "2", "4", "5", "7"]),
    ("SELECT id FROM o WHERE (a IN (SELECT v FROM n)) IS NOT TRUE ORDER BY id", &["3", "6"]),
    ("SELECT id FROM o WHERE (a IN (SELECT v FROM n)) IS FALSE ORDER BY id", &[]),
    ("SELECT id FROM o WHERE (a IN (SELECT v FROM n)) = (b = 3) ORDER BY id", &["1", "7"]),
    ("SELECT id FROM o WHERE CASE WHEN a NOT IN (SELECT v FROM n) THEN FALSE WHEN b = 3 THEN TRUE END ORDER BY id", &["1", "3", "7"]),
    ("SELECT id FROM o WHERE coalesce(a IN (SELECT v FROM n), b = 3) ORDER BY id", &["1", "2", "3", "4", "5", "7"]),
    ("SELECT id FROM o WHERE a NOT IN (SELECT v FROM n) ORDER BY id", &[]),
    ("SELECT id FROM o WHERE a NOT IN (SELECT v FROM bare) ORDER BY id", &["1", "2", "3", "4", "5", "6", "7"]),
    ("SELECT id FROM o WHERE a NOT IN (SELECT k FROM m) ORDER BY id", &["2", "5"]),
    ("SELECT id FROM o WHERE a NOT IN (SELECT k FROM m) AND a > 1 ORDER BY id", &["2", "5"]),
    ("SELECT id FROM o WHERE nullif(id, 2) NOT IN (SELECT k FROM m) ORDER BY id", &["3", "5", "6", "7"]),
    ("SELECT id FROM o WHERE 3 NOT IN (SELECT v FROM n) ORDER BY id", &[]),
    ("SELECT id FROM o WHERE 3 NOT IN (SELECT k FROM m) ORDER BY id", &["1", "2", "3", "4", "5", "6", "7"]),
    ("SELECT id FROM o WHERE 3 NOT IN (SELECT v FROM n WHERE n.g = o.g) ORDER BY id", &["3", "4", "5", "6", "7"]),
    ("SELECT id FROM o WHERE 4 IN (SELECT v FROM n WHERE n.g = o.g) ORDER BY id", &["3", "4"]),
    ("SELECT id FROM o WHERE a NOT IN (SELECT v FROM n WHERE n.g = o.g) ORDER BY id", &["5", "6", "7"]),
    ("SELECT id FROM o WHERE a NOT IN (SELECT v FROM n WHERE n.z < o.b) ORDER BY id", &["2", "4", "6"]),
    ("SELECT id, a NOT IN (SELECT v FROM n WHERE n.z < o.b) FROM o ORDER BY id", &["1,false", "2,true", "3,", "4,true", "5,", "6,true", "7,false"]),
    ("SELECT id, a IN (SELECT v FROM n WHERE n.g = o.g AND n.z < o.b) FROM o ORDER BY id", &["1,true", "2,false", "3,", "4,false", "5,false", "6,false", "7,false"]),
    ("SELECT id, a IN (SELECT v FROM n WHERE n.g IS NOT DISTINCT FROM o.g) FROM o ORDER BY id", &["1,true", "2,", "3,", "4,true", "5,false", "6,false", "7,"]),
    ("SELECT id, a IN (SELECT v FROM n WHERE n.g = o.g OR n.s = o.s) FROM o ORDER BY id", &["1,true", "2,", "3,", "4,true", "5,", "6,false", "7,false"]),
    ("SELECT id, a IN (SELECT v + o.b FROM n) FROM o ORDER BY id", &["1,", "2,true", "3,", "4,", "5,", "6,", "7,"]),
    ("SELECT id, a IN (SELECT o.b FROM n) FROM o ORDER BY id", &["1,false", "2,false", "3,", "4,", "5,false", "6,", "7,false"]),
    ("SELECT id, a IN (SELECT v FROM n WHERE o.b = 3) FROM o ORDER BY id", &["1,true", "2,false", "3,", "4,false", "5,false", "6,false", "7,true"]),
    ("SELECT id, EXISTS (SELECT 1 FROM n WHERE n.g = o.g) FROM o ORDER BY id", &["1,true", "2,true", "3,true", "4,true", "5,false", "6,false", "7,false"]),
    ("SELECT id, NOT EXISTS (SELECT 1 FROM n WHERE n.z < o.b) FROM o ORDER BY id", &["1,false", "2,true", "3,false", "4,true", "5,false", "6,true", "7,false"]),
    ("SELECT id, EXISTS (SELECT 1 FROM n WHERE v > 4) AS x, EXISTS (SELECT 1 FROM bare) AS y, NOT EXISTS (SELECT 1 FROM bare) AS z FROM o ORDER BY id", &["1,true,false,true", "2,true,false,true", "3,true,false,true", "4,true,false,true", "5,true,false,true", "6,true,false,true", "7,true,false,true"]),
    ("SELECT id FROM o WHERE EXISTS (SELECT count(*) FROM n WHERE n.g = o.g) ORDER BY id", &["1", "2", "3", "4", "5", "6", "7"]),
    ("SELECT id FROM o WHERE NOT EXISTS (SELECT count(*) FROM n WHERE n.g = o.g) ORDER BY id", &[]),
    ("SELECT id FROM o WHERE NOT EXISTS (SELECT max(v) FROM n WHERE n.g = o.g) OR id = 2 ORDER BY id", &["2"]),
    ("SELECT id FROM o WHERE EXISTS (SELECT count(*) FROM n WHERE n.g = o.g HAVING count(*) = 0) ORDER BY id", &["5", "6", "7"]),
    ("SELECT id FROM o WHERE EXISTS (SELECT 1 FROM n WHERE n.g = o.g HAVING count(*) < o.id) ORDER BY id", &["3", "4", "5", "6", "7"]),
    ("SELECT id FROM o WHERE 0 IN (SELECT count(*) FROM n WHERE n.g = o.g) ORDER BY id", &["5", "6", "7"]),
    ("SELECT id FROM o WHERE 2 IN (SELECT count(*) FROM n WHERE n.g = o.g) ORDER BY id", &["1", "2", "3", "4"]),
    ("SELECT id, b IN (SELECT count(*) FROM n WHERE n.z < o.b) FROM o ORDER BY id", &["1,true", "2,false", "3,true", "4,", "5,true", "6,false", "7,true"]),
    ("SELECT id, a NOT IN (SELECT max(v) FROM n WHERE n.g = o.g) FROM o ORDER BY id", &["1,false", "2,true", "3,", "4,true", "5,", "6,", "7,"]),
    ("SELECT id FROM o WHERE a IN (SELECT max(v) FROM n WHERE n.g = o.g) ORDER BY id", &["1"]),
    ("SELECT id FROM o WHERE a NOT IN (SELECT max(v) FROM n WHERE n.g = o.g) ORDER BY id", &["2", "4"]),
    ("SELECT id, 7 IN (SELECT coalesce(sum(v), 7) FROM n WHERE n.g = o.g) FROM o ORDER BY id", &["1,false", "2,false", "3,false", "4,false", "5,true", "6,true", "7,true"]),
    ("SELECT id, EXISTS (SELECT 1 FROM n WHERE n.g = o.g GROUP BY ROLLUP (n.g)) FROM o ORDER BY id", &["1,true", "2,true", "3,true", "4,true", "5,true", "6,true", "7,true"]),
    ("SELECT id, EXISTS (SELECT 1 FROM n WHERE n.g = o.g GROUP BY CUBE (n.g, n.v) HAVING n.v IS NOT NULL) FROM o ORDER BY id", &["1,true", "2,true", "3,true", "4,true", "5,false", "6,false", "7,false"]),
    ("SELECT id, 2 IN (SELECT count(*) FROM n WHERE n.g = o.g GROUP BY n.g) FROM o ORDER BY id", &["1,true", "2,true", "3,true", "4,true", "5,false", "6,false", "7,false"]),
    ("SELECT id, EXISTS (SELECT n.v FROM n WHERE n.z < o.b GROUP BY n.v HAVING count(*) > 1) FROM o ORDER BY id", &["1,false", "2,false", "3,false", "4,false", "5,false", "6,false", "7,false"]),
    ("SELECT id, a IN (SELECT v FROM n WHERE n.g = o.g ORDER BY v NULLS LAST LIMIT 1) FROM o ORDER BY id", &["1,true", "2,false", "3,", "4,true", "5,false", "6,false", "7,false"]),
    ("SELECT id, a NOT IN (SELECT v FROM n WHERE n.g = o.g ORDER BY id OFFSET 1) FROM o ORDER BY id", &["1,", "2,", "3,", "4,true", "5,true", "6,true", "7,true"]),
    ("SELECT id FROM o WHERE EXISTS (SELECT 1 FROM n WHERE n.g = o.g ORDER BY v LIMIT 5 OFFSET 1) ORDER BY id", &["1", "2", "3", "4"]),
    ("SELECT id, a IN (SELECT v FROM n WHERE n.g = o.g UNION ALL SELECT k FROM m WHERE m.k < o.b) FROM o ORDER BY id", &["1,true", "2,", "3,", "4,true", "5,false", "6,false", "7,true"]),
    ("SELECT id, a IN (SELECT v FROM n WHERE n.g = o.g EXCEPT SELECT k FROM m) FROM o ORDER BY id", &["1,", "2,", "3,", "4,false", "5,false", "6,false", "7,false"]),
    ("SELECT id, a IN (SELECT DISTINCT v FROM n WHERE n.z >= o.b) FROM o ORDER BY id", &["1,", "2,", "3,", "4,false", "5,true", "6,", "7,"]),
    ("SELECT id, a IN (SELECT n.v FROM n JOIN m ON n.v = m.k WHERE n.g = o.g) FROM o ORDER BY id", &["1,true", "2,false", "3,", "4,true", "5,false", "6,false", "7,false"]),
    ("SELECT id, a IN (SELECT n.v FROM n LEFT JOIN m ON n.v = m.k AND m.id < o.b WHERE m.k IS NULL) FROM o ORDER BY id", &["1,", "2,true", "3,", "4,true", "5,true", "6,", "7,"]),
    ("SELECT id, a IN (SELECT x.v FROM m LEFT JOIN (SELECT v FROM n WHERE n.g = o.g) AS x ON x.v = m.k) FROM o ORDER BY id", &["1,true", "2,", "3,", "4,true", "5,", "6,", "7,"]),
    ("SELECT id, b IN (SELECT row_number() OVER (ORDER BY n.id) FROM n WHERE n.g = o.g) FROM o ORDER BY id", &["1,false", "2,true", "3,false", "4,", "5,false", "6,false", "7,false"]),
    ("SELECT id FROM o WHERE EXISTS (SELECT 1 FROM (SELECT o.a AS c, n.v AS w FROM n WHERE n.g = o.g) AS q WHERE q.w <> o.b) ORDER BY id", &["1", "3"]),
    ("SELECT id FROM o WHERE EXISTS (SELECT 1 FROM n WHERE n.g = o.g AND EXISTS (SELECT 1 FROM m WHERE m.k = n.v AND m.id < o.b)) ORDER BY id", &["1", "3"]),
    ("SELECT id FROM o WHERE EXISTS (SELECT 1 FROM n WHERE n.g = o.g AND n.v NOT IN (SELECT k FROM m WHERE m.id < o.id)) ORDER BY id", &["1", "3", "4"]),
    ("SELECT id FROM o WHERE a NOT IN (SELECT v FROM n WHERE v NOT IN (SELECT k FROM m WHERE m.t = o.s) OR v = 1) ORDER BY id", &["4"]),
    ("SELECT id, a IN (SELECT v FROM n WHERE (n.s IN (SELECT t FROM m WHERE m.k > o.b)) IS NOT TRUE) FROM o ORDER BY id", &["1,", "2,true", "3,", "4,true", "5,", "6,", "7,"]),
    ("SELECT id FROM o WHERE NOT EXISTS (SELECT 1 FROM o AS i WHERE i.g = o.g AND i.id < o.id) ORDER BY id", &["1", "3", "5", "6", "7"]),
    ("SELECT id FROM o WHERE EXISTS (SELECT 1 FROM n JOIN m ON n.v = m.k WHERE n.id = o.id AND m.id = o.b) OR id = 7 ORDER BY id", &["3", "7"]),
    ("SELECT id FROM o WHERE (SELECT count(*) FROM n WHERE n.g = o.g AND n.v NOT IN (SELECT k FROM m)) = 1 ORDER BY id", &["3", "4"]),
    ("SELECT id, (a IN (SELECT v FROM n)) IN (SELECT k > 3 FROM m) FROM o ORDER BY id", &["1,true", "2,true", "3,", "4,true", "5,true", "6,", "7,true"]),
    ("SELECT o.id, m.id FROM o LEFT JOIN m ON o.a = m.k AND o.b IN (SELECT v FROM n) ORDER BY 1, 2", &["1,", "2,", "3,", "4,", "5,", "6,", "7,"]),
    ("SELECT o.id, m.id FROM o LEFT JOIN m ON o.a = m.k AND o.b NOT IN (SELECT v FROM n WHERE v IS NOT NULL) ORDER BY 1, 2", &["1,1", "2,", "3,", "4,", "5,", "6,", "7,1"]),
    ("SELECT o.id, m.id FROM o LEFT JOIN m ON o.a = m.k AND EXISTS (SELECT 1 FROM n WHERE n.g = o.g AND n.z < o.b) ORDER BY 1, 2", &["1,1", "2,", "3,", "4,", "5,", "6,", "7,"]),
    ("SELECT o.id, m.id FROM o LEFT JOIN m ON o.a = m.k AND m.t NOT IN (SELECT s FROM n WHERE n.v = m.k) ORDER BY 1, 2", &["1,", "2,", "3,", "4,3", "5,", "6,", "7,"]),
    ("SELECT o.id, m.id FROM o RIGHT JOIN m ON o.a = m.k AND m.t IN (SELECT s FROM n) ORDER BY 1, 2", &["1,1", "4,2", "4,3", "7,1", ",4"]),
    ("SELECT o.id, m.id FROM o FULL JOIN m ON o.a = m.k AND o.g IN (SELECT g FROM n WHERE z > 2) ORDER BY 1, 2", &["1,1", "2,", "3,", "4,2", "4,3", "5,", "6,", "7,", ",4"]),
    ("SELECT o.id, m.id FROM o JOIN m ON o.a = m.k AND (o.b IN (SELECT v FROM n WHERE n.id = m.id)) IS NOT TRUE ORDER BY 1, 2", &["1,1", "4,2", "4,3", "7,1"]),
    ("SELECT g, count(*) FROM o GROUP BY g HAVING g NOT IN (SELECT g FROM n) ORDER BY g", &[]),
    ("SELECT g, count(*) FROM o GROUP BY g HAVING sum(b) NOT IN (SELECT v FROM n WHERE n.g = o.g) OR count(*) = 1 ORDER BY g", &["2,2", "3,1", "4,1", ",1"]),
    ("SELECT g, sum(CASE WHEN a IN (SELECT v FROM n) THEN 1 ELSE 0 END) AS hits FROM o GROUP BY g ORDER BY g", &["1,2", "2,1", "3,1", "4,0", ",1"]),
    ("SELECT a IN (SELECT v FROM n) AS i, count(*) FROM o GROUP BY a IN (SELECT v FROM n) ORDER BY i", &["true,5", ",2"]),
    ("SELECT id, count(*) OVER (PARTITION BY a IN (SELECT v FROM n)) FROM o ORDER BY id", &["1,5", "2,5", "3,2", "4,5", "5,5", "6,2", "7,5"]),
    ("SELECT id, a NOT IN (SELECT v FROM n) AS x FROM o ORDER BY x, id", &["1,false", "2,false", "4,false", "5,false", "7,false", "3,", "6,"]),
    ("SELECT id FROM o WHERE a = ANY (SELECT v FROM n) ORDER BY id", &["1", "2", "4", "5", "7"]),
    ("SELECT id FROM o WHERE a <> ALL (SELECT v FROM n) OR b = 3 ORDER BY id", &["1", "3", "7"]),
    ("SELECT id, a = ANY (SELECT v FROM n WHERE n.g = o.g), a <> ALL (SELECT v FROM n) FROM o ORDER BY id", &["1,true,false", "2,,false", "3,,", "4,true,false", "5,false,false", "6,false,", "7,false,false"]),
    ("SELECT id, a > ANY (SELECT v FROM n), a >= ALL (SELECT v FROM n WHERE n.g = o.g) FROM o ORDER BY id", &["1,,", "2,true,", "3,,", "4,true,false", "5,true,true", "6,,true", "7,,true"]),
    ("SELECT q.id FROM (SELECT id, a, b FROM o ORDER BY id LIMIT 5) AS q WHERE q.a NOT IN (SELECT v FROM n WHERE n.z < q.b) ORDER BY id", &["2", "4"]),
    ("SELECT id FROM (SELECT id, a NOT IN (SELECT v FROM n WHERE n.z < o.b) AS x FROM o) AS q WHERE x IS NULL ORDER BY id", &["3", "5"]),
    ("SELECT count(*) FROM o AS x JOIN o AS y ON x.g = y.g WHERE x.a NOT IN (SELECT v FROM n WHERE n.z < y.b)", &["5"]),
    ("SELECT v, a IN (SELECT w - 99 FROM (VALUES (100), (101), (102)) AS r (w) WHERE w < 102 UNION ALL SELECT NULL) AS m FROM (VALUES (0, 1), (1, 2), (2, NULL), (3, 5)) AS l (v, a) ORDER BY v", &["0,true", "1,true", "2,", "3,"]),
    ("SELECT k, EXISTS (SELECT 1 FROM (VALUES (1), (NULL), (5)) AS i (k) WHERE i.k = o.k GROUP BY ROLLUP (i.k)) AS e FROM (VALUES (1), (2), (NULL), (4)) AS o (k) ORDER BY k", &["1,true", "2,true", "4,true", ",true"]),
    ("SELECT count(*) FROM (VALUES (1, 100, 10), (2, 150, 20), (3, NULL, 5), (4, 30, NULL), (5, 7, 2)) AS o (id, views, likes) WHERE EXISTS (SELECT 1 FROM (SELECT o.id AS c0, i.views AS c1 FROM (VALUES (1, 100, 10), (2, 150, 20), (3, NULL, 5), (4, 30, NULL), (5, 7, 2)) AS i (id, views, likes) WHERE o.likes > i.likes) AS q WHERE q.c1 <> o.likes)", &["3"]),
    ("SELECT id FROM o WHERE EXISTS (SELECT n.v AS g FROM n WHERE n.g = o.g AND n.v > 1) ORDER BY id", &["3", "4"]),
    ("SELECT id FROM o WHERE EXISTS (SELECT * FROM m AS x, m AS y WHERE x.k = y.k AND x.id < y.id AND y.k = o.a) ORDER BY id", &["4"]),
    ("SELECT id FROM o WHERE a NOT IN (SELECT v FROM n WHERE n.g = o.g AND n.v IS NOT NULL) AND b = 3 ORDER BY id", &["7"]),
    ("SELECT id FROM o WHERE (SELECT count(*) FROM n WHERE n.g = o.g AND n.v NOT IN (SELECT k FROM m WHERE m.id < o.b)) < 2 ORDER BY id", &["1", "3", "5", "6", "7"]),
    ("SELECT id, (SELECT max(v) FROM n WHERE n.g = o.g AND (n.v IN (SELECT k FROM m WHERE m.id >= o.b)) IS NOT TRUE) AS x FROM o ORDER BY id", &["1,1", "2,", "3,5", "4,5", "5,", "6,", "7,"]),
];

async fn with_tables(device: DeviceChoice) -> Millpond {
    let session = session(device);
    for sql in TABLES {
        run(session.context(), sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    session
}

async fn run(context: &SessionContext, sql: &str) -> millpond::datafusion::error::Result<Vec<RecordBatch>> {
    context.sql(sql).await?.collect().await
}

/// Rows as text: values between commas, NULL is nothing.
fn rows(batches: &[RecordBatch]) -> Vec<String> {
    let value = |batch: &RecordBatch, column: usize, row: usize| {
        let column = batch.column(column);
        match column.is_null(row) {
            true => String::new(),
            false => array_value_to_string(column, row).expect("a text"),
        }
    };
    let row = |batch: &RecordBatch, row: usize| {
        let values: Vec<_> = (0..batch.num_columns()).map(|column| value(batch, column, row)).collect();
        values.join(",")
    };
    batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |at| row(batch, at))).collect()
}

/// All statements on a device, through both doors.
async fn answers(device: DeviceChoice) {
    let session = with_tables(device).await;
    let mut wrong = String::new();
    for (sql, expected) in STATEMENTS {
        // The second run has a plan that was kept, or one of a template.
        for door in ["execute()", "execute() again", "context().sql()"] {
            let actual = match door {
                "context().sql()" => run(session.context(), sql).await.map(|batches| rows(&batches)),
                _ => session.execute(sql).await.map(|result| rows(&result.batches)),
            };
            match actual {
                Ok(actual) if actual == *expected => {}
                Ok(actual) => _ = writeln!(wrong, "{door}: {sql}\n  expected {expected:?}\n  actual   {actual:?}"),
                Err(error) => _ = writeln!(wrong, "{door}: {sql}\n  {}", error.strip_backtrace()),
            }
        }
    }
    assert!(wrong.is_empty(), "{device}:\n{wrong}");
}

#[tokio::test]
async fn on_the_cpu() {
    answers(DeviceChoice::Cpu).await;
}

#[tokio::test]
async fn on_the_simulated_device() {
    answers(DeviceChoice::Sim).await;
}

#[tokio::test]
async fn what_cannot_be_answered_is_refused() {
    let session = with_tables(DeviceChoice::Cpu).await;
    let refused = [
        (
            "SELECT id, a IN (SELECT v FROM n WHERE random() < 0.5) FROM o",
            "IN of a subquery that calls a volatile function",
        ),
        (
            "SELECT id FROM (SELECT id, a, random() AS r FROM o) AS q WHERE a NOT IN (SELECT v FROM n WHERE n.z < q.r)",
            "NOT IN of a subquery that reads columns of random rows",
        ),
        (
            "SELECT o.id FROM o LEFT JOIN m ON EXISTS (SELECT 1 FROM n WHERE n.v = m.k AND n.z < o.b)",
            "EXISTS of a subquery that reads both sides of an outer join",
        ),
        (
            "SELECT id FROM o WHERE EXISTS (SELECT 1 FROM n FULL JOIN (SELECT k FROM m WHERE m.id < o.b) AS x ON n.v = x.k)",
            "EXISTS of a subquery that reads the outer query in a FULL JOIN",
        ),
    ];
    for (sql, expected) in refused {
        let error = session.execute(sql).await.err().map(|error| error.strip_backtrace()).unwrap_or_default();
        assert!(error.contains(expected) && error.contains("join the tables in FROM"), "{sql}: {error}");
    }
}

/// Conditions that DataFusion's semi joins, anti joins and marks answer rightly have the plans that they had.
#[tokio::test]
async fn plain_conditions_have_the_same_plans() {
    const RULE: &str = "millpond_memberships";
    let tables = data("0.01");
    let own = parquet_session(DeviceChoice::Sim, Fallback::Allow, config(4), &tables).await;
    let without = parquet_session(DeviceChoice::Sim, Fallback::Allow, config(4), &tables).await;
    assert!(without.context().remove_optimizer_rule(RULE), "the rule is there");
    for (number, sql) in queries().into_iter().filter(|(number, _)| [4, 16, 18, 20, 21, 22].contains(number)) {
        assert_eq!(plan_text(&own, &sql).await, plan_text(&without, &sql).await, "Q{number}");
    }
    let own = with_tables(DeviceChoice::Sim).await;
    let without = with_tables(DeviceChoice::Sim).await;
    without.context().remove_optimizer_rule(RULE);
    let same = [
        "SELECT id FROM o WHERE a IN (SELECT v FROM n)",
        "SELECT id FROM o WHERE a IN (SELECT v FROM n WHERE n.g = o.g) AND b = 3",
        "SELECT id FROM o WHERE a NOT IN (SELECT v FROM n)",
        "SELECT id FROM o WHERE a NOT IN (SELECT k FROM m) AND b = 3",
        "SELECT id FROM o WHERE id NOT IN (SELECT k FROM m WHERE m.id < o.id)",
        "SELECT id FROM o WHERE EXISTS (SELECT 1 FROM n WHERE n.g = o.g AND n.z < o.b)",
        "SELECT id FROM o WHERE NOT EXISTS (SELECT * FROM n WHERE n.g = o.g)",
        "SELECT id FROM o WHERE b = 3 OR a IN (SELECT v FROM n)",
        "SELECT id FROM o WHERE b = 3 OR NOT EXISTS (SELECT 1 FROM n WHERE n.g = o.g)",
        "SELECT id FROM o WHERE b = 3 OR id NOT IN (SELECT k FROM m)",
        "SELECT id FROM o WHERE a IN (SELECT max(v) FROM n WHERE n.g = o.g)",
        "SELECT id FROM o WHERE EXISTS (SELECT g FROM n WHERE n.g = o.g GROUP BY g HAVING count(*) > 1)",
    ];
    for sql in same {
        assert_eq!(plan_text(&own, sql).await, plan_text(&without, sql).await, "{sql}");
    }
    let other = "SELECT id FROM o WHERE b = 3 OR a NOT IN (SELECT v FROM n)";
    assert_ne!(plan_text(&own, other).await, plan_text(&without, other).await, "the rule has left the session");
}
