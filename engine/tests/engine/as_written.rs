//! Statements mean what they say: columns of USING and NATURAL, EXCEPT ALL and INTERSECT ALL, SIMILAR TO, IS DISTINCT
//! FROM beside AND and OR, FROM without SELECT; and what is refused.
//!
//! Values  PostgreSQL 15's, by `psql -At -F '|'` over the tables of [`TABLES`]; those of FROM without SELECT are DuckDB
//!         1.5.6's, which supports it.

use futures::TryStreamExt;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::util::display::array_value_to_string;
use millpond::{DeviceChoice, Millpond};

use crate::support::session;

const TABLES: &[&str] = &[
    "CREATE TABLE a AS SELECT * FROM (VALUES (1, 10), (2, 20), (NULL, 30), (2, 21)) AS t(k, x)",
    "CREATE TABLE b AS SELECT * FROM (VALUES (2, 200), (4, 400), (NULL, 500)) AS t(k, y)",
    "CREATE TABLE c AS SELECT * FROM (VALUES (1, 7), (4, 8), (9, 9)) AS t(k, z)",
    "CREATE TABLE d AS SELECT * FROM (VALUES (1, 'p', 1), (2, 'q', 2), (2, NULL, 3)) AS t(k, j, v)",
    "CREATE TABLE e AS SELECT * FROM (VALUES (2, 'q', 4), (2, 'r', 5), (3, 'p', 6)) AS t(k, j, w)",
    "CREATE TABLE none AS SELECT * FROM (VALUES (1, 1)) AS t(k, n) WHERE k > 1",
    "CREATE TABLE one AS SELECT * FROM (VALUES (1)) AS t(m)",
    "CREATE TABLE o AS SELECT * FROM (VALUES (2), (7)) AS t(k)",
    "CREATE TABLE p AS SELECT * FROM (VALUES (1), (1), (1), (2), (NULL), (NULL), (3)) AS t(n)",
    "CREATE TABLE q AS SELECT * FROM (VALUES (1), (1), (NULL), (2), (2), (4)) AS t(n)",
    "CREATE TABLE pt AS SELECT * FROM (VALUES (1, 'a'), (1, 'a'), (1, NULL), (1, NULL), (2, 'b'), (NULL, NULL)) AS t(n, t)",
    "CREATE TABLE qt AS SELECT * FROM (VALUES (1, 'a'), (1, NULL), (2, 'c'), (NULL, NULL), (NULL, NULL)) AS t(n, t)",
    "CREATE TABLE s AS SELECT * FROM (VALUES (1, 'abc'), (2, 'b'), (3, 'ab'), (4, 'a.c'), (5, 'a%c'), (6, 'a_c'), (7, 'abab'), (8, ''), (9, NULL), (10, 'aé'), (11, 'a+c'), (12, 'a-c'), (13, 'ABC')) AS t(i, t)",
    "CREATE TABLE f AS SELECT * FROM (VALUES (1, 1, 1, true), (2, 1, NULL, true), (3, NULL, NULL, false), (4, 1, 2, false), (5, NULL, 2, NULL)) AS t(i, l, r, g)",
];

const COLUMNS_OF_USING: &[(&str, &str)] = &[
    (
        "SELECT k, x, y FROM a FULL JOIN b USING (k) ORDER BY k NULLS LAST, x NULLS LAST, y NULLS LAST",
        "1|10|\n2|20|200\n2|21|200\n4||400\n|30|\n||500",
    ),
    (
        "SELECT k, x, y FROM a RIGHT JOIN b USING (k) ORDER BY k NULLS LAST, x NULLS LAST, y NULLS LAST",
        "2|20|200\n2|21|200\n4||400\n||500",
    ),
    (
        "SELECT k, x, y FROM a LEFT JOIN b USING (k) ORDER BY k NULLS LAST, x, y NULLS LAST",
        "1|10|\n2|20|200\n2|21|200\n|30|",
    ),
    (
        "SELECT * FROM a FULL JOIN b USING (k) ORDER BY k NULLS LAST, x NULLS LAST, y NULLS LAST",
        "1|10|\n2|20|200\n2|21|200\n4||400\n|30|\n||500",
    ),
    ("SELECT * FROM a RIGHT JOIN b USING (k) ORDER BY k NULLS LAST, x NULLS LAST", "2|20|200\n2|21|200\n4||400\n||500"),
    ("SELECT * FROM b LEFT JOIN a USING (k) ORDER BY k NULLS LAST, x NULLS LAST", "2|200|20\n2|200|21\n4|400|\n|500|"),
    ("SELECT * FROM b JOIN a USING (k) ORDER BY k, x", "2|200|20\n2|200|21"),
    ("SELECT * FROM b NATURAL LEFT JOIN a ORDER BY k NULLS LAST, x NULLS LAST", "2|200|20\n2|200|21\n4|400|\n|500|"),
    (
        "SELECT * FROM a NATURAL FULL JOIN b ORDER BY k NULLS LAST, x NULLS LAST, y NULLS LAST",
        "1|10|\n2|20|200\n2|21|200\n4||400\n|30|\n||500",
    ),
    ("SELECT * FROM a NATURAL RIGHT JOIN c ORDER BY k, x NULLS LAST", "1|10|7\n4||8\n9||9"),
    (
        "SELECT k AS m, a.k, b.k, x FROM a FULL JOIN b USING (k) ORDER BY 1 NULLS LAST, 4 NULLS LAST",
        "1|1||10\n2|2|2|20\n2|2|2|21\n4||4|\n|||30\n|||",
    ),
    (
        "SELECT a.*, b.* FROM a FULL JOIN b USING (k) ORDER BY x NULLS LAST, y NULLS LAST",
        "1|10||\n2|20|2|200\n2|21|2|200\n|30||\n||4|400\n|||500",
    ),
    (
        "SELECT *, a.k AS l FROM a RIGHT JOIN b USING (k) ORDER BY k NULLS LAST, x NULLS LAST",
        "2|20|200|2\n2|21|200|2\n4||400|\n||500|",
    ),
    ("SELECT k FROM a FULL JOIN b USING (k) WHERE a.k IS NULL ORDER BY k NULLS LAST, y NULLS LAST", "4\n\n"),
    ("SELECT count(*) AS n FROM a FULL JOIN b USING (k) WHERE k IS NULL", "2"),
    ("SELECT count(*) AS n FROM a FULL JOIN b USING (k) WHERE k = 4", "1"),
    ("SELECT count(*) AS n FROM a RIGHT JOIN b USING (k) WHERE k > 1", "3"),
    (
        "SELECT k, count(*) AS n, sum(x) AS s FROM a FULL JOIN b USING (k) GROUP BY k ORDER BY k NULLS LAST",
        "1|1|10\n2|2|41\n4|1|\n|2|30",
    ),
    ("SELECT k, count(*) AS n FROM a FULL JOIN b USING (k) GROUP BY k HAVING k >= 2 ORDER BY k", "2|2\n4|1"),
    (
        "SELECT k, sum(y) OVER (ORDER BY k NULLS LAST, x NULLS LAST, y) AS s FROM a RIGHT JOIN b USING (k) ORDER BY k NULLS LAST, x NULLS LAST",
        "2|200\n2|400\n4|800\n|1300",
    ),
    (
        "SELECT k, x, y, z FROM a FULL JOIN b USING (k) FULL JOIN c USING (k) ORDER BY k NULLS LAST, x NULLS LAST, y NULLS LAST, z",
        "1|10||7\n2|20|200|\n2|21|200|\n4||400|8\n9|||9\n|30||\n||500|",
    ),
    ("SELECT * FROM a FULL JOIN b USING (k) JOIN c USING (k) ORDER BY k", "1|10||7\n4||400|8"),
    (
        "SELECT * FROM a FULL JOIN b USING (k) LEFT JOIN c USING (k) ORDER BY k NULLS LAST, x NULLS LAST, y NULLS LAST",
        "1|10||7\n2|20|200|\n2|21|200|\n4||400|8\n|30||\n||500|",
    ),
    ("SELECT k, x, y, z FROM a JOIN b USING (k) RIGHT JOIN c USING (k) ORDER BY k", "1|||7\n4|||8\n9|||9"),
    (
        "SELECT k, a.k, b.k, c.k FROM a FULL JOIN b USING (k) FULL JOIN c USING (k) ORDER BY 1 NULLS LAST, 2 NULLS LAST, 3 NULLS LAST, 4, x NULLS LAST",
        "1|1||1\n2|2|2|\n2|2|2|\n4||4|4\n9|||9\n|||\n|||",
    ),
    (
        "SELECT a.k, z FROM a FULL JOIN b USING (k) JOIN c ON c.z > b.k ORDER BY z, x, 1 NULLS LAST",
        "2|7\n2|7\n|7\n2|8\n2|8\n|8\n2|9\n2|9\n|9",
    ),
    (
        "SELECT t.k, t.x, t.y FROM (a FULL JOIN b USING (k)) AS t ORDER BY t.k NULLS LAST, t.x NULLS LAST, t.y NULLS LAST",
        "1|10|\n2|20|200\n2|21|200\n4||400\n|30|\n||500",
    ),
    ("SELECT * FROM c LEFT JOIN (a FULL JOIN b USING (k)) USING (k) ORDER BY k, x", "1|7|10|\n4|8||400\n9|9||"),
    (
        "SELECT k, j, v, w FROM d FULL JOIN e USING (k, j) ORDER BY k, j NULLS LAST, v NULLS LAST",
        "1|p|1|\n2|q|2|4\n2|r||5\n2||3|\n3|p||6",
    ),
    ("SELECT * FROM d NATURAL RIGHT JOIN e ORDER BY k, j", "2|q|2|4\n2|r||5\n3|p||6"),
    ("SELECT d.j, k, e.j FROM d RIGHT JOIN e USING (k) ORDER BY k, v NULLS LAST, w", "q|2|q\nq|2|r\n|2|q\n|2|r\n|3|p"),
    ("SELECT k, x, n FROM a FULL JOIN none USING (k) ORDER BY k NULLS LAST, x", "1|10|\n2|20|\n2|21|\n|30|"),
    ("SELECT k, n, x FROM none RIGHT JOIN a USING (k) ORDER BY k NULLS LAST, x", "1||10\n2||20\n2||21\n||30"),
    ("SELECT m, k, n FROM one NATURAL FULL JOIN none", "1||"),
    ("SELECT m, k, n FROM one NATURAL LEFT JOIN none", "1||"),
    ("SELECT k FROM o WHERE EXISTS (SELECT 1 FROM a JOIN b USING (k) WHERE k = 7) ORDER BY k", ""),
    ("SELECT k FROM o WHERE k IN (SELECT k FROM a FULL JOIN b USING (k)) ORDER BY k", "2"),
    ("SELECT k, (SELECT max(k) FROM a RIGHT JOIN b USING (k)) AS n FROM o ORDER BY k", "2|4\n7|4"),
    ("SELECT k, x, y FROM a FULL JOIN b USING (k) WHERE a.k IS NULL AND b.k = k", "4||400"),
    (
        "SELECT k AS m, a.k, b.k AS r FROM a FULL JOIN b USING (k) WHERE k > 1 AND (k = 4 OR a.k = 2) ORDER BY x NULLS LAST",
        "2|2|2\n2|2|2\n4||4",
    ),
    ("SELECT k FROM a JOIN b USING (k) WHERE k > 1 ORDER BY x", "2\n2"),
    (
        "SELECT k, c.k AS ck FROM (a LEFT JOIN b USING (k)) FULL JOIN c USING (k) WHERE k >= 2 ORDER BY k, x NULLS LAST",
        "2|\n2|\n4|4\n9|9",
    ),
    ("SELECT K FROM a FULL JOIN b USING (K) WHERE K IN (SELECT k FROM c) AND a.k IS NULL ORDER BY 1", "4"),
    (
        "SELECT m, EXISTS (SELECT 1 FROM a FULL JOIN b USING (k) WHERE k = one.m AND a.k IS NOT NULL) AS g FROM one",
        "1|true",
    ),
    (
        "WITH u AS (SELECT k, x FROM a FULL JOIN c USING (k)) SELECT k, count(*) AS n FROM u GROUP BY k ORDER BY k NULLS LAST",
        "1|1\n2|2\n4|1\n9|1\n|1",
    ),
    ("SELECT k FROM a FULL JOIN b USING (k) UNION SELECT k FROM c ORDER BY k NULLS LAST", "1\n2\n4\n9\n"),
    (
        "SELECT l.k, r.k FROM (SELECT k FROM a FULL JOIN b USING (k)) l JOIN (SELECT k FROM a RIGHT JOIN c USING (k)) r ON l.k = r.k ORDER BY 1, 2",
        "1|1\n4|4",
    ),
    (
        "SELECT k, big FROM a FULL JOIN (SELECT CAST(k AS BIGINT) AS k, z AS big FROM c) w USING (k) ORDER BY k NULLS LAST, x NULLS LAST",
        "1|7\n2|\n2|\n4|8\n9|9\n|",
    ),
];

const BAGS: &[(&str, &str)] = &[
    ("SELECT n FROM p EXCEPT ALL SELECT n FROM q ORDER BY n NULLS LAST", "1\n3\n"),
    ("SELECT n FROM q EXCEPT ALL SELECT n FROM p ORDER BY n NULLS LAST", "2\n4"),
    ("SELECT n FROM p INTERSECT ALL SELECT n FROM q ORDER BY n NULLS LAST", "1\n1\n2\n"),
    ("SELECT n FROM p EXCEPT SELECT n FROM q ORDER BY n NULLS LAST", "3"),
    ("SELECT n FROM p INTERSECT SELECT n FROM q ORDER BY n NULLS LAST", "1\n2\n"),
    ("SELECT n, t FROM pt EXCEPT ALL SELECT n, t FROM qt ORDER BY n NULLS LAST, t NULLS LAST", "1|a\n1|\n2|b"),
    ("SELECT n, t FROM pt INTERSECT ALL SELECT n, t FROM qt ORDER BY n NULLS LAST, t NULLS LAST", "1|a\n1|\n|"),
    ("SELECT n, t FROM qt EXCEPT ALL SELECT n, t FROM pt ORDER BY n NULLS LAST, t NULLS LAST", "2|c\n|"),
    ("SELECT n FROM p EXCEPT ALL SELECT n FROM p ORDER BY n", ""),
    ("SELECT n FROM p INTERSECT ALL SELECT n FROM p ORDER BY n NULLS LAST", "1\n1\n1\n2\n3\n\n"),
    ("SELECT n FROM p EXCEPT ALL SELECT n FROM p WHERE n = 1 ORDER BY n NULLS LAST", "2\n3\n\n"),
    ("(SELECT n FROM p EXCEPT ALL SELECT n FROM q) EXCEPT ALL SELECT 3 ORDER BY n NULLS LAST", "1\n"),
    ("SELECT n FROM p EXCEPT ALL (SELECT n FROM q INTERSECT ALL SELECT n FROM p) ORDER BY n NULLS LAST", "1\n3\n"),
    ("SELECT n FROM p UNION ALL SELECT n FROM q EXCEPT ALL SELECT n FROM p ORDER BY n NULLS LAST", "1\n1\n2\n2\n4\n"),
    ("SELECT count(*) AS c FROM (SELECT n FROM p EXCEPT ALL SELECT n FROM q) t WHERE n IS NULL", "1"),
    (
        "SELECT n, count(*) AS c FROM (SELECT n FROM p INTERSECT ALL SELECT n FROM q) t GROUP BY n ORDER BY n NULLS LAST",
        "1|2\n2|1\n|1",
    ),
    ("SELECT DISTINCT n FROM p EXCEPT ALL SELECT n FROM q ORDER BY n NULLS LAST", "3"),
    ("SELECT n FROM p EXCEPT ALL SELECT DISTINCT n FROM q ORDER BY n NULLS LAST", "1\n1\n3\n"),
    ("SELECT n FROM p EXCEPT ALL SELECT CAST(n AS BIGINT) FROM q ORDER BY n NULLS LAST", "1\n3\n"),
    ("SELECT n + 1 AS m FROM p EXCEPT ALL SELECT n FROM q ORDER BY m NULLS LAST", "2\n3\n"),
    ("SELECT k FROM o WHERE k IN (SELECT n FROM q EXCEPT ALL SELECT n FROM p) ORDER BY k", "2"),
    ("SELECT t FROM pt EXCEPT ALL SELECT t FROM qt ORDER BY t NULLS LAST", "a\nb"),
    ("SELECT n FROM p EXCEPT ALL SELECT n FROM q WHERE n > 100 ORDER BY n NULLS LAST", "1\n1\n1\n2\n3\n\n"),
    ("SELECT n FROM p WHERE n > 100 INTERSECT ALL SELECT n FROM q ORDER BY n", ""),
];

const SIMILAR: &[(&str, &str)] = &[
    ("SELECT i FROM s WHERE t SIMILAR TO '%b%' ORDER BY i", "1\n2\n3\n7"),
    ("SELECT i FROM s WHERE t SIMILAR TO 'a_c' ORDER BY i", "1\n4\n5\n6\n11\n12"),
    ("SELECT i FROM s WHERE t SIMILAR TO 'b' ORDER BY i", "2"),
    ("SELECT i FROM s WHERE t SIMILAR TO '(ab)+' ORDER BY i", "3\n7"),
    ("SELECT i FROM s WHERE t SIMILAR TO 'a(b|.)c' ORDER BY i", "1\n4"),
    ("SELECT i FROM s WHERE t SIMILAR TO 'a[b-d.]c' ORDER BY i", "1\n4"),
    ("SELECT i FROM s WHERE t SIMILAR TO 'a[^b]c' ORDER BY i", "4\n5\n6\n11\n12"),
    ("SELECT i FROM s WHERE t SIMILAR TO 'a.c' ORDER BY i", "4"),
    ("SELECT i FROM s WHERE t SIMILAR TO '%' ORDER BY i", "1\n2\n3\n4\n5\n6\n7\n8\n10\n11\n12\n13"),
    ("SELECT i FROM s WHERE t SIMILAR TO '' ORDER BY i", "8"),
    ("SELECT i FROM s WHERE t SIMILAR TO 'a_' ORDER BY i", "3\n10"),
    ("SELECT i FROM s WHERE t SIMILAR TO '[[:alpha:]]{3}' ORDER BY i", "1\n13"),
    ("SELECT i FROM s WHERE t NOT SIMILAR TO '%(b|c)%' ORDER BY i", "8\n10\n13"),
    (
        "SELECT i, t SIMILAR TO 'a%' AS g FROM s ORDER BY i",
        "1|true\n2|false\n3|true\n4|true\n5|true\n6|true\n7|true\n8|false\n9|\n10|true\n11|true\n12|true\n13|false",
    ),
    ("SELECT i FROM s WHERE t SIMILAR TO 'ab?c?' ORDER BY i", "1\n3"),
    ("SELECT i FROM s WHERE t SIMILAR TO 'b|ab' ORDER BY i", "2\n3"),
    ("SELECT i FROM s WHERE t SIMILAR TO '^abc$' ORDER BY i", ""),
    ("SELECT i FROM s WHERE t SIMILAR TO NULL ORDER BY i", ""),
];

const SIMILAR_WITH_ESCAPE: &[(&str, &str)] = &[
    ("SELECT i FROM s WHERE t SIMILAR TO 'a\\%c' ORDER BY i", "5"),
    ("SELECT i FROM s WHERE t SIMILAR TO 'a#_c' ESCAPE '#' ORDER BY i", "6"),
    ("SELECT i FROM s WHERE t SIMILAR TO 'a\\+%' ORDER BY i", "11"),
    ("SELECT i FROM s WHERE t SIMILAR TO 'a[\\-+]c' ORDER BY i", "11\n12"),
];

const IS_DISTINCT_FROM: &[(&str, &str)] = &[
    ("SELECT i FROM f WHERE l IS DISTINCT FROM r AND g ORDER BY i", "2"),
    ("SELECT i FROM f WHERE l IS NOT DISTINCT FROM r AND g ORDER BY i", "1"),
    ("SELECT i FROM f WHERE l IS NOT DISTINCT FROM r OR g ORDER BY i", "1\n2\n3"),
    ("SELECT i FROM f WHERE i > 1 AND l IS DISTINCT FROM r AND i < 5 OR i = 3 ORDER BY i", "2\n3\n4"),
    ("SELECT i FROM f WHERE NOT l IS DISTINCT FROM r AND i = 1 OR i = 2 ORDER BY i", "1\n2"),
    ("SELECT i FROM f WHERE i = 5 OR l IS DISTINCT FROM r AND i = 4 ORDER BY i", "4\n5"),
    (
        "SELECT i FROM f WHERE l IS DISTINCT FROM r AND l IS NOT DISTINCT FROM 1 AND r IS DISTINCT FROM NULL ORDER BY i",
        "4",
    ),
    ("SELECT i FROM f WHERE l IS DISTINCT FROM r + 0 AND i BETWEEN 2 AND 4 ORDER BY i", "2\n4"),
    ("SELECT i FROM f WHERE g IS DISTINCT FROM (l = 1 AND r = 1) ORDER BY i", "2\n3\n5"),
    ("SELECT i FROM f WHERE i = 2 OR i = 3 OR l IS NOT DISTINCT FROM r OR i = 4 ORDER BY i", "1\n2\n3\n4"),
    (
        "SELECT i, l IS DISTINCT FROM r AND g AS h, CASE WHEN l IS NOT DISTINCT FROM r AND i > 1 THEN 1 ELSE 0 END AS n FROM f ORDER BY i",
        "1|false|0\n2|true|0\n3|false|1\n4|false|0\n5||0",
    ),
    ("SELECT count(*) AS n FROM f x JOIN f y ON x.l IS NOT DISTINCT FROM y.l AND x.i = y.i + 1", "1"),
    ("SELECT i FROM f WHERE NOT (l IS DISTINCT FROM r AND g) ORDER BY i", "1\n3\n4"),
    ("SELECT i FROM f WHERE l IS DISTINCT FROM (SELECT 1 WHERE 1 = 1 AND 2 = 2) AND i > 2 ORDER BY i", "3\n5"),
];

const FROM_FIRST: &[(&str, &str)] = &[
    ("FROM a ORDER BY x", "1|10\n2|20\n2|21\n|30"),
    ("FROM p EXCEPT ALL FROM q ORDER BY n NULLS LAST", "1\n3\n"),
    ("SELECT count(*) AS n FROM (FROM a)", "4"),
    ("WITH u AS (FROM c) FROM u ORDER BY z", "1|7\n4|8\n9|9"),
    (
        "FROM a FULL JOIN b USING (k) ORDER BY k NULLS LAST, x NULLS LAST, y NULLS LAST",
        "1|10|\n2|20|200\n2|21|200\n4||400\n|30|\n||500",
    ),
    ("FROM c ORDER BY z LIMIT 1", "1|7"),
    ("FROM a SELECT x ORDER BY x LIMIT 2", "10\n20"),
];

/// The ways to a statement's rows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Door {
    Execute,
    Stream,
    Sql,
    Context,
}

/// Those that parse the statement themselves.
const OURS: [Door; 3] = [Door::Execute, Door::Stream, Door::Sql];

/// All.
const ALL: [Door; 4] = [Door::Execute, Door::Stream, Door::Sql, Door::Context];

async fn with_tables(device: DeviceChoice) -> Millpond {
    let session = session(device);
    for sql in TABLES {
        session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    session
}

async fn ask(session: &Millpond, sql: &str, door: Door) -> Result<Vec<RecordBatch>, String> {
    let batches = match door {
        Door::Execute => session.execute(sql).await.map(|result| result.batches),
        Door::Stream => match session.stream(sql).await {
            Ok(stream) => stream.try_collect().await,
            Err(error) => Err(error),
        },
        Door::Sql => match session.sql(sql).await {
            Ok(frame) => frame.collect().await,
            Err(error) => Err(error),
        },
        Door::Context => match session.context().sql(sql).await {
            Ok(frame) => frame.collect().await,
            Err(error) => Err(error),
        },
    };
    batches.map_err(|error| error.to_string())
}

/// Rows as `psql -At` prints them.
fn text(batches: &[RecordBatch]) -> String {
    let mut lines = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let values = batch.columns().iter().map(|column| array_value_to_string(column, row).expect("a value"));
            lines.push(values.collect::<Vec<_>>().join("|"));
        }
    }
    lines.join("\n")
}

/// Runs all cases, and lists the wrong answers.
async fn check(cases: &[(&str, &str)], doors: &[Door]) {
    let mut wrong = Vec::new();
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session = with_tables(device).await;
        for (sql, expected) in cases {
            for door in doors {
                match ask(&session, sql, *door).await.map(|batches| text(&batches)) {
                    Ok(found) if found == *expected => {}
                    found => wrong.push(format!("{device}, {door:?}: {sql}\n  {found:?}\n  {expected:?}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn columns_of_using_and_natural_are_those_of_both_sides() {
    check(COLUMNS_OF_USING, &OURS).await;
}

#[tokio::test]
async fn except_all_and_intersect_all_count_rows() {
    check(BAGS, &ALL).await;
}

#[tokio::test]
async fn similar_to_has_patterns_of_sql() {
    check(SIMILAR, &ALL).await;
    check(SIMILAR_WITH_ESCAPE, &ALL).await;
}

#[tokio::test]
async fn is_distinct_from_takes_no_and() {
    check(IS_DISTINCT_FROM, &OURS).await;
}

/// Chains so long that they are brought into pairs (`levels`): the same for each of them.
#[tokio::test]
async fn is_distinct_from_before_a_long_chain() {
    let chain = |word: &str, last: &str| (100..180).map(|n| format!(" {word} i {last} {n}")).collect::<String>();
    let cases = [
        (format!("SELECT i FROM f WHERE l IS DISTINCT FROM r{} ORDER BY i", chain("AND", "<")), "2\n4\n5"),
        (format!("SELECT i FROM f WHERE i > 2{} AND l IS DISTINCT FROM r AND g ORDER BY i", chain("AND", "<")), ""),
        (format!("SELECT i FROM f WHERE NOT l IS DISTINCT FROM r{} OR i = 5 ORDER BY i", chain("OR", "=")), "1\n3\n5"),
    ];
    let cases: Vec<(&str, &str)> = cases.iter().map(|(sql, expected)| (sql.as_str(), *expected)).collect();
    check(&cases, &OURS).await;
}

/// Inner joins in which NULL is equal to NULL, beside others in which it is not.
const EQUAL_NULLS: &[(&str, &str)] = &[
    ("SELECT count(*) FROM a x JOIN a y ON x.k IS NOT DISTINCT FROM y.k, one", "6"),
    ("SELECT count(*) FROM one, a x JOIN a y ON x.k IS NOT DISTINCT FROM y.k", "6"),
    ("SELECT count(*) FROM (SELECT x.k FROM a x JOIN b y ON x.k IS NOT DISTINCT FROM y.k) q, c", "9"),
    ("SELECT count(*) FROM a x JOIN b y ON x.k = y.k JOIN b z ON z.k IS NOT DISTINCT FROM y.k", "2"),
    ("SELECT count(*) FROM a x JOIN b y ON x.k IS NOT DISTINCT FROM y.k JOIN b z ON z.k = y.k", "2"),
    ("SELECT count(*) FROM b z, a x JOIN b y ON x.k IS NOT DISTINCT FROM y.k WHERE z.k = y.k", "2"),
    ("SELECT x FROM a WHERE x > ALL (SELECT x FROM a WHERE x < 21) ORDER BY x", "21\n30"),
    ("SELECT k FROM a WHERE k = ANY (SELECT k FROM a) ORDER BY x", "1\n2\n2"),
];

#[tokio::test]
async fn nulls_are_equal_in_the_joins_that_say_so() {
    check(EQUAL_NULLS, &ALL).await;
}

/// What the parser gives to a window and to GROUP BY, and DataFusion's planner drops.
const NAMED_WINDOWS_AND_SETS: &[(&str, &str)] = &[
    ("SELECT i, sum(i) OVER (w ORDER BY i) FROM f WINDOW w AS (PARTITION BY l) ORDER BY i", "1|1\n2|3\n3|3\n4|7\n5|8"),
    (
        "SELECT i, sum(i) OVER (w ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM f WINDOW w AS (PARTITION BY l ORDER BY i DESC) ORDER BY i",
        "1|3\n2|6\n3|8\n4|4\n5|5",
    ),
    (
        "SELECT i, count(*) OVER v, sum(i) OVER (v RANGE UNBOUNDED PRECEDING) FROM f WINDOW w AS (PARTITION BY r), v AS (w ORDER BY i) ORDER BY i",
        "1|1|1\n2|1|2\n3|2|5\n4|1|4\n5|2|9",
    ),
    (
        "SELECT i, (SELECT sum(x) OVER (w ORDER BY x) FROM (VALUES (1), (2)) AS q(x) WINDOW w AS (PARTITION BY x) ORDER BY x DESC LIMIT 1) AS s, sum(i) OVER (w ORDER BY i) FROM f WINDOW w AS (PARTITION BY r) ORDER BY i",
        "1|2|1\n2|2|2\n3|2|5\n4|2|4\n5|2|9",
    ),
    ("SELECT l, sum(i) FROM f GROUP BY l WITH ROLLUP ORDER BY 1 NULLS LAST, 2", "1|7\n|8\n|15"),
    (
        "SELECT l, g, sum(i) FROM f GROUP BY l, g WITH CUBE ORDER BY 1 NULLS LAST, 2 NULLS LAST, 3",
        "1|false|4\n1|true|3\n1||7\n|false|3\n|false|7\n|true|3\n||5\n||5\n||8\n||15",
    ),
];

#[tokio::test]
async fn windows_build_on_windows_and_groups_on_groups() {
    check(NAMED_WINDOWS_AND_SETS, &OURS).await;
}

#[tokio::test]
async fn from_without_select_is_all() {
    check(FROM_FIRST, &OURS).await;
}

/// In parentheses, joins of USING are seen through every door.
#[tokio::test]
async fn a_join_in_parentheses_is_right_for_the_context() {
    let cases = [
        ("SELECT k, y FROM (a FULL JOIN b USING (k)) ORDER BY k NULLS LAST, y NULLS LAST LIMIT 2", "1|\n2|200"),
        ("SELECT a.k, k FROM (a NATURAL RIGHT JOIN b) ORDER BY y, x", "2|2\n2|2\n|4\n|"),
    ];
    check(&cases, &[Door::Context]).await;
}

#[tokio::test]
async fn what_would_be_dropped_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = |ending: &str| {
        let path = folder.path().join(format!("two.{ending}"));
        format!("COPY (SELECT a.k, b.k FROM a CROSS JOIN b) TO '{}'", path.display())
    };
    let cases = [
        ("SELECT count(*) FROM a TABLESAMPLE BERNOULLI (50)".to_string(), "write WHERE random() < 0.1", &ALL[..]),
        ("SELECT * FROM a JOIN (b TABLESAMPLE SYSTEM (1)) ON true".to_string(), "write WHERE random() < 0.1", &ALL),
        ("SELECT 1_000".to_string(), "1_000 is not read as a number, but as 1 with the name _000: write 1000", &OURS),
        ("SELECT k FROM a WHERE k < 1_000_000.5".to_string(), "write 1000000.5", &OURS),
        ("SELECT 1_000e3".to_string(), "write 1000e3", &OURS),
        ("SELECT t SIMILAR TO t FROM s".to_string(), "write LIKE, or ~ with a regular expression", &ALL),
        ("SELECT t SIMILAR TO 'a[b' FROM s".to_string(), "has a [ without its ]", &ALL),
        ("SELECT k FROM a PREWHERE k > 1".to_string(), "write WHERE", &OURS),
        ("SELECT k FROM a START WITH k = 1 CONNECT BY PRIOR k = x".to_string(), "write WITH RECURSIVE", &OURS),
        ("SELECT k FROM a FOR JSON AUTO".to_string(), "ask for JSON by --format json", &OURS),
        ("SELECT k FROM a SETTINGS max_threads = 1".to_string(), "write SET name = value before it", &OURS),
        ("SELECT k FROM a FORMAT JSON".to_string(), "write COPY", &OURS),
        ("SELECT * FROM a PARTITION (p0)".to_string(), "write WHERE over the partition's column", &OURS),
        ("SELECT k, count(*) FROM a GROUP BY k WITH TOTALS".to_string(), "write GROUPING SETS", &OURS),
        ("SELECT * FROM generate_series(1, 3) WITH ORDINALITY".to_string(), "write row_number() OVER ()", &OURS),
        (
            "SELECT sum(x) OVER (w PARTITION BY k) FROM a WINDOW w AS (ORDER BY x)".to_string(),
            "PARTITION BY beside it",
            &OURS,
        ),
        (
            "SELECT sum(x) OVER (w ORDER BY k) FROM a WINDOW w AS (ORDER BY x)".to_string(),
            "with ORDER BY in both",
            &OURS,
        ),
        ("SELECT sum(x) OVER (v) FROM a WINDOW w AS (ORDER BY x)".to_string(), "the window v is not defined", &OURS),
        (copy("parquet"), "two columns are called k", &ALL),
        (copy("json"), "two columns are called k", &ALL),
    ];
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session = with_tables(device).await;
        for (sql, words, doors) in &cases {
            for door in *doors {
                let error = ask(&session, sql, *door).await.expect_err(sql);
                assert!(error.contains(words), "{device}, {door:?}: {sql}: {error}");
            }
        }
        // A file of CSV has columns by their place.
        session.execute(&copy("csv")).await.expect("a file of CSV");
        // Names may have digits and underscores; a name of its own may follow a number.
        for (sql, expected) in
            [("SELECT k_1_000 FROM (SELECT 1 AS k_1_000)", "1"), ("SELECT 1 _000", "1"), ("SELECT '1_000'", "1_000")]
        {
            let rows = ask(&session, sql, Door::Execute).await.expect(sql);
            assert_eq!(text(&rows), expected, "{sql}");
        }
        session.execute("SET datafusion.sql_parser.dialect = 'postgresql'").await.expect("a dialect");
        let rows = ask(&session, "SELECT 1_000 + 1", Door::Execute).await.expect("a number");
        assert_eq!(text(&rows), "1001", "PostgreSQL has such numbers");
    }
}

/// Views and tables that are made of such statements have what these say.
#[tokio::test]
async fn definitions_are_of_what_is_written() {
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session = with_tables(device).await;
        let definitions = [
            "CREATE VIEW merged AS SELECT k, x, y FROM a FULL JOIN b USING (k)",
            "CREATE TABLE bag AS SELECT n FROM p EXCEPT ALL SELECT n FROM q",
            "CREATE VIEW first AS FROM c",
            "CREATE VIEW apart AS SELECT i FROM f WHERE l IS DISTINCT FROM r AND g",
        ];
        for sql in definitions {
            session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
        let cases = [
            ("SELECT count(k), max(k), count(*) FROM merged", "4|4|6"),
            ("SELECT n FROM bag ORDER BY n NULLS LAST", "1\n3\n"),
            ("SELECT sum(z) FROM first", "24"),
            ("SELECT i FROM apart", "2"),
        ];
        for (sql, expected) in cases {
            for door in ALL {
                let rows = ask(&session, sql, door).await.expect(sql);
                assert_eq!(text(&rows), expected, "{device}, {door:?}: {sql}");
            }
        }
    }
}
