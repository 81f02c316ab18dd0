//! Whole numbers that leave their type: an error, or the result modulo 2^64, as `millpond.integer_overflow` says. The
//! values are by definition: sums and products of Python's integers.

use millpond::datafusion::arrow::util::display::array_value_to_string;
use millpond::datafusion::functions_aggregate::expr_fn::sum;
use millpond::datafusion::prelude::col;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::support::{session, session_with};

const DEVICES: [DeviceChoice; 2] = [DeviceChoice::Cpu, DeviceChoice::Sim];

/// g is 1 three times, 2 twice; x are near the ends of BIGINT; u is UBIGINT; i INT; s SMALLINT.
const TABLE: &str = "CREATE TABLE t AS SELECT column1 AS g, column2 AS x, CAST(column3 AS BIGINT UNSIGNED) AS u, \
    CAST(column4 AS INT) AS i, CAST(column4 AS SMALLINT) AS s FROM (VALUES \
    (1, 9223372036854775807, 18446744073709551615, 32767), (1, 1, 1, 2), (1, -9223372036854775808, 0, -32768), (2, 7, 3, 1), \
    (2, NULL, NULL, NULL))";

/// Statements that overflow. With `wrap` they give the rows that stand beside them, parted by a space.
const OVERFLOWS: &[(&str, &str)] = &[
    ("SELECT x + 1 FROM t WHERE g = 1 AND x > 1", "-9223372036854775808"),
    ("SELECT x - 2 FROM t WHERE x < 0", "9223372036854775806"),
    ("SELECT x * 2 FROM t WHERE x > 7", "-2"),
    ("SELECT -3 - x FROM t WHERE x > 7", "9223372036854775806"),
    ("SELECT u + CAST(1 AS BIGINT UNSIGNED) FROM t WHERE x > 7", "0"),
    ("SELECT CAST(1 AS BIGINT UNSIGNED) - u FROM t WHERE u = 3", "18446744073709551614"),
    ("SELECT s + s FROM t WHERE x > 7", "-2"),
    ("SELECT s * s FROM t WHERE x < 0", "0"),
    ("SELECT i * i * i FROM t WHERE x > 7", "1073840127"),
    ("SELECT 9223372036854775807 + 1", "-9223372036854775808"),
    ("SELECT CAST(127 AS TINYINT) + CAST(1 AS TINYINT)", "-128"),
    ("SELECT length('ab') * 1073741824 * 4294967296", "-9223372036854775808"),
    // Positions of expressions.
    ("SELECT count(*) FROM t WHERE x + x > 0", "2"),
    ("SELECT sum(CASE WHEN x > 7 THEN x + 1 ELSE 0 END) FROM t", "-9223372036854775808"),
    ("SELECT max(x + 1) FROM t WHERE g = 1", "2"),
    ("SELECT g, max(x * 2) FROM t WHERE x > 7 GROUP BY g", "1,-2"),
    ("SELECT x + 1, count(*) FROM t WHERE x > 7 GROUP BY x + 1", "-9223372036854775808,1"),
    ("SELECT count(*) FILTER (WHERE x + 1 < 0) FROM t", "2"),
    ("SELECT array_agg(g ORDER BY x + 1)[1] FROM t WHERE x > 7", "1"),
    ("SELECT count(DISTINCT x + 1) FROM t WHERE g = 1", "3"),
    ("SELECT x FROM t WHERE x > 7 ORDER BY x + 1, g", "9223372036854775807"),
    ("SELECT count(*) FROM t AS a JOIN t AS b ON a.x + 1 = b.x WHERE b.x IS NOT NULL", "1"),
    ("SELECT count(*) FROM t AS a JOIN t AS b ON a.g = b.g AND a.x + b.x > 0", "2"),
    ("SELECT count(*) FROM t AS a LEFT JOIN t AS b ON a.x + 1 < b.x WHERE a.x > 7", "3"),
    ("SELECT count(*) FROM t WHERE x IN (SELECT x + 1 FROM t)", "1"),
    ("SELECT count(*) FROM t AS a WHERE EXISTS (SELECT 1 FROM t AS b WHERE b.x + 1 = a.x)", "1"),
    ("SELECT (SELECT max(x + 1) FROM t WHERE x > 7)", "-9223372036854775808"),
    ("SELECT CASE WHEN x > 7 THEN x + 1 ELSE 0 END FROM t WHERE x > 1 ORDER BY 1", "-9223372036854775808 0"),
    ("SELECT max(x + 1) OVER (PARTITION BY g) FROM t WHERE x > 7", "-9223372036854775808"),
    ("SELECT lag(x + 1, 0) OVER (ORDER BY g) FROM t WHERE x > 7", "-9223372036854775808"),
    ("SELECT rank() OVER (ORDER BY x + 1) FROM t WHERE x > 7", "1"),
    ("SELECT unnest([x + 1]) FROM t WHERE x > 7", "-9223372036854775808"),
    ("SELECT x + 1 FROM t WHERE x > 7 UNION ALL SELECT 5 ORDER BY 1", "-9223372036854775808 5"),
    ("SELECT * FROM (VALUES (9223372036854775807 + 1))", "-9223372036854775808"),
    (
        "WITH RECURSIVE r AS (SELECT 4611686018427387904 AS n UNION ALL SELECT n * 2 FROM r WHERE n > 0) SELECT n FROM r ORDER BY n",
        "-9223372036854775808 4611686018427387904",
    ),
    // Sums.
    ("SELECT sum(x) FROM t WHERE x > 0", "-9223372036854775801"),
    ("SELECT g, sum(x) FROM t WHERE x > 0 GROUP BY g ORDER BY g", "1,-9223372036854775808 2,7"),
    ("SELECT sum(u) FROM t", "3"),
    ("SELECT g, sum(u) FROM t GROUP BY g ORDER BY g", "1,0 2,3"),
    ("SELECT sum(DISTINCT x) FROM t WHERE x > 0", "-9223372036854775801"),
    ("SELECT sum(DISTINCT x), count(DISTINCT u) FROM t WHERE x > 0", "-9223372036854775801,3"),
    ("SELECT sum(x) FILTER (WHERE x > 0) FROM t", "-9223372036854775801"),
    ("SELECT g FROM t WHERE x > 0 GROUP BY g HAVING sum(x) < 0", "1"),
    (
        "SELECT g, sum(x) FROM t WHERE x > 0 GROUP BY ROLLUP (g) ORDER BY 1 NULLS LAST",
        "1,-9223372036854775808 2,7 ,-9223372036854775801",
    ),
    ("SELECT sum(x) OVER (ORDER BY x) FROM t WHERE g = 1 AND x > 0", "1 -9223372036854775808"),
    (
        "SELECT sum(x) OVER (PARTITION BY g) AS n FROM t WHERE x > 7 OR x = 1",
        "-9223372036854775808 -9223372036854775808",
    ),
    (
        "SELECT sum(x) OVER (ORDER BY x ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t WHERE x > 0",
        "1 8 -9223372036854775802",
    ),
    ("SELECT sum(x) FILTER (WHERE x > 0) OVER () FROM t WHERE g = 1 LIMIT 1", "-9223372036854775808"),
    (
        "SELECT sum(DISTINCT x) OVER (ORDER BY x ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t WHERE x > 0",
        "1 8 -9223372036854775802",
    ),
    ("SELECT sum(u) OVER (ORDER BY u) FROM t WHERE u > 0", "1 4 3"),
    // Values in a dictionary.
    ("SELECT sum(arrow_cast(x, 'Dictionary(Int32, Int64)')) FROM t WHERE x > 0", "-9223372036854775801"),
    ("SELECT sum(arrow_cast(u, 'Dictionary(Int32, UInt64)')) OVER () FROM t WHERE u > 1", "2 2"),
    ("SELECT arrow_cast(x, 'Dictionary(Int32, Int64)') + 1 FROM t WHERE x > 7", "-9223372036854775808"),
];

/// Statements that do not, or not where a row gets a value.
const FITS: &[(&str, &str)] = &[
    ("SELECT x + 1 FROM t WHERE x = 1 OR x = 7 ORDER BY 1", "2 8"),
    ("SELECT CASE WHEN x < 100 AND x > -100 THEN x * 2 ELSE 0 END AS n FROM t ORDER BY n", "0 0 0 2 14"),
    ("SELECT CASE WHEN false THEN 9223372036854775807 + 1 ELSE 3 END", "3"),
    ("SELECT count(*) FROM t WHERE false AND x + 9223372036854775807 > 0", "0"),
    ("SELECT sum(x) FROM t WHERE g = 1", "0"),
    ("SELECT g, sum(x) FROM t GROUP BY g ORDER BY g", "1,0 2,7"),
    ("SELECT sum(x) FROM t WHERE false", ""),
    ("SELECT sum(x) OVER (ORDER BY g) FROM t WHERE g = 1", "0 0 0"),
    ("SELECT sum(x) OVER (ORDER BY x DESC ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t WHERE g = 2", " 7"),
    ("SELECT sum(i), sum(s), sum(u) - sum(u) FROM t WHERE g = 2", "1,1,0"),
    ("SELECT sum(DISTINCT i) OVER (ORDER BY i ROWS 1 PRECEDING) FROM t WHERE g = 1", "-32768 -32766 32769"),
    ("SELECT avg(x) FROM t WHERE x IN (1, 7)", "4.0"),
    ("SELECT sum(x) OVER (), sum(x + 1) OVER () FROM t WHERE x = 7", "7,8"),
    (
        "SELECT a.x, b.x, sum(a.x) OVER (), count(b.x + 1) OVER () FROM t AS a JOIN t AS b ON a.x = b.x WHERE a.x = 7",
        "7,7,7,1",
    ),
    ("SELECT sum(x + 1), sum(x + 2) FROM t WHERE x IN (1, 7)", "10,12"),
    ("SELECT row_number() OVER (ORDER BY x) - row_number() OVER (ORDER BY x) FROM t WHERE x = 7", "0"),
    ("SELECT 2147483647 * 2147483647 + 1", "4611686014132420610"),
];

async fn rows(session: &Millpond, sql: &str) -> Result<String, String> {
    let result = session.execute(sql).await.map_err(|error| error.to_string())?;
    let mut rows = Vec::new();
    for batch in &result.batches {
        for row in 0..batch.num_rows() {
            let fields = batch.columns().iter().map(|column| array_value_to_string(column, row).expect("a text"));
            rows.push(fields.collect::<Vec<_>>().join(","));
        }
    }
    Ok(rows.join(" "))
}

#[tokio::test]
async fn overflow_is_an_error_or_wraps() {
    let mut wrong = Vec::new();
    for device in DEVICES {
        let session = session(device);
        session.execute(TABLE).await.expect("a table");
        for mode in ["error", "wrap", "error"] {
            session.execute(&format!("SET millpond.integer_overflow = '{mode}'")).await.expect("a setting");
            for (sql, wrapped) in OVERFLOWS {
                // The second run has a plan that was kept.
                for _ in 0..2 {
                    let given = rows(&session, sql).await;
                    let is_right = match (mode, &given) {
                        ("wrap", given) => given.as_deref() == Ok(*wrapped),
                        (_, Err(error)) => error.to_lowercase().contains("overflow"),
                        (_, Ok(_)) => false,
                    };
                    if !is_right {
                        wrong.push(format!("{device}, {mode}: {sql}: {given:?}"));
                    }
                }
            }
            for (sql, right) in FITS {
                let given = rows(&session, sql).await;
                if given.as_deref() != Ok(*right) {
                    wrong.push(format!("{device}, {mode}: {sql}: {given:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Checked sums and arithmetic run on the device, for columns of small and of full range.
#[tokio::test]
async fn checked_numbers_stay_on_the_device() {
    let session = session_with(DeviceChoice::Sim, 2, Fallback::Error);
    session.execute(TABLE).await.expect("a table");
    for sql in [
        "SELECT g, sum(x), sum(u), sum(i), max(x) FROM t WHERE x < 100 AND x > -100 GROUP BY g",
        "SELECT sum(x), sum(DISTINCT x), sum(x) FILTER (WHERE x = 7) FROM t WHERE x < 100 AND x > -100",
        "SELECT sum(x) OVER (PARTITION BY g ORDER BY x), sum(i) OVER (ORDER BY x ROWS 1 PRECEDING) FROM t WHERE x = 7",
        "SELECT x + 1, x * 2, i - s, max(x + 1) OVER (ORDER BY g) FROM t WHERE x = 7",
        "SELECT sum(DISTINCT i) OVER (ORDER BY g) FROM t WHERE x = 7",
    ] {
        let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert!(!result.batches.is_empty(), "{sql}");
    }
}

/// Statements that write: an overflow leaves their tables as they were.
#[tokio::test]
async fn statements_that_write_are_checked_too() {
    for device in DEVICES {
        let session = session(device);
        session.execute(TABLE).await.expect("a table");
        session.execute("PREPARE next(BIGINT) AS SELECT $1 + 1").await.expect("prepared");
        for sql in [
            "UPDATE t SET x = x + 1 WHERE g = 1",
            "DELETE FROM t WHERE x + 1 > 0",
            "INSERT INTO t SELECT g, x + 1, u, i, s FROM t",
            "INSERT INTO t SELECT g, sum(x), max(u), max(i), max(s) FROM t WHERE x > 0 GROUP BY g",
            "CREATE TABLE other AS SELECT x + 1 AS y FROM t",
            "EXECUTE next(9223372036854775807)",
            "SELECT * FROM (SELECT x * 2 AS y FROM t) AS v WHERE y > 0",
        ] {
            let error = rows(&session, sql).await.expect_err(sql).to_lowercase();
            assert!(error.contains("overflow"), "{device}: {sql}: {error}");
        }
        let left = rows(&session, "SELECT count(*), max(x), min(x) FROM t").await;
        assert_eq!(left.as_deref(), Ok("5,9223372036854775807,-9223372036854775808"), "{device}");
        assert!(session.execute("SELECT * FROM other").await.is_err(), "{device}: no table is made");
    }
}

#[tokio::test]
async fn frames_and_named_columns_are_checked_too() {
    for device in DEVICES {
        let session = session(device);
        session.execute(TABLE).await.expect("a table");
        let context = session.context();
        let frame = context.table("t").await.expect("a table").aggregate(vec![], vec![sum(col("u"))]).expect("a frame");
        let error = frame.collect().await.expect_err("an overflow").to_string();
        assert!(error.contains("SET millpond.integer_overflow = 'wrap'"), "{device}: {error}");
        let error = rows(&session, "SELECT x + 1 FROM t").await.expect_err("an overflow");
        assert!(error.contains("SET millpond.integer_overflow = 'wrap'"), "{device}: {error}");
        let plan = "SELECT * FROM (SELECT g, sum(x + 1) OVER (PARTITION BY g) FROM t) AS q WHERE g = 2";
        let result = session.execute(plan).await.expect("rows");
        let names: Vec<String> = result.batches[0].schema().fields().iter().map(|field| field.name().clone()).collect();
        let window = "sum(t.x + Int64(1)) PARTITION BY [t.g] ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING";
        assert_eq!(names, ["g", window], "{device}");
    }
}
