//! UNION, UNION ALL and the operators above and below them: the simulated device alone returns DataFusion's answers.

use millpond::Fallback;

use crate::sql_features::Rig;

#[tokio::test]
async fn rows_of_several_inputs_follow_one_another() {
    for partitions in [1, 7] {
        let mut rig = Rig::with_partitions(Fallback::Error, partitions).await;
        for sql in [
            "SELECT id, k FROM t WHERE k > 3 UNION ALL SELECT id, w FROM t WHERE w < 0",
            "SELECT id FROM t WHERE b UNION ALL SELECT id FROM t WHERE c UNION ALL SELECT key FROM many WHERE value < 300",
            // Ranges that differ, so that inputs are of different widths.
            "SELECT i64 AS v FROM t WHERE i64 > 100000 UNION ALL SELECT CAST(k AS BIGINT) FROM t WHERE b",
            "SELECT d38 FROM t WHERE c UNION ALL SELECT CAST(d9 AS DECIMAL(38, 10)) FROM t WHERE b",
            "SELECT u64 AS v, f64 AS f FROM t WHERE b UNION ALL SELECT CAST(u8 AS BIGINT UNSIGNED), x FROM t WHERE c",
            // NULLs in one input alone.
            "SELECT id, nothing FROM t WHERE b UNION ALL SELECT id, CAST(id AS INT) FROM t WHERE NOT b",
            "SELECT id, b, day, ts_us FROM t WHERE w = 1 UNION ALL SELECT id + 1, c, day, ts_us FROM t WHERE w = 2",
        ] {
            rig.same(sql).await;
        }
        rig.finish();
    }
}

#[tokio::test]
async fn strings_of_several_inputs_meet_in_one_dictionary() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT id, s FROM t WHERE b UNION ALL SELECT id, upper(s) FROM t WHERE NOT b",
        "SELECT s FROM t WHERE k > 0 UNION ALL SELECT substr(s, 1, 2) FROM t WHERE k < 0 UNION ALL SELECT s FROM t WHERE w = 0",
        "SELECT s, count(*) FROM (SELECT s FROM t WHERE b UNION ALL SELECT upper(s) FROM t WHERE k > 5) GROUP BY s",
        "SELECT s FROM t WHERE b UNION SELECT upper(s) FROM t WHERE k > 5 ORDER BY s NULLS FIRST",
        "SELECT s, l FROM (SELECT s, l, id FROM t WHERE b UNION ALL SELECT 'const', l, id FROM t WHERE k > 5) \
         ORDER BY s DESC, l, id LIMIT 40",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

#[tokio::test]
async fn unions_above_and_below_other_operators() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT k, count(*), sum(id) FROM (SELECT k, id FROM t WHERE b UNION ALL SELECT w, id FROM t WHERE c) GROUP BY k",
        "SELECT k, sum(n) FROM (SELECT k, count(*) AS n FROM t GROUP BY k UNION ALL SELECT w, count(*) FROM t GROUP BY w) \
         GROUP BY k ORDER BY k NULLS FIRST",
        "SELECT k FROM t WHERE b UNION SELECT w FROM t WHERE c ORDER BY k",
        "SELECT * FROM (SELECT id, k FROM t WHERE b UNION ALL SELECT id, w FROM t WHERE c) WHERE k > 1 ORDER BY id, k LIMIT 20",
        "SELECT * FROM ((SELECT id, k FROM t ORDER BY k NULLS LAST, id LIMIT 10) UNION ALL (SELECT id, w FROM t ORDER BY id DESC LIMIT 1200)) ORDER BY 1, 2",
        "SELECT a.id, b.n FROM t a JOIN (SELECT k AS n FROM t WHERE id < 9 UNION ALL SELECT w FROM t WHERE id < 9) b ON a.k = b.n \
         WHERE a.id < 400",
        "SELECT k FROM t WHERE id < 100 INTERSECT SELECT w FROM t WHERE c",
        "SELECT k FROM t EXCEPT SELECT w FROM t WHERE c",
        "SELECT v + 1 FROM ((SELECT id AS v FROM t WHERE b UNION ALL SELECT k FROM t WHERE c) UNION ALL SELECT w FROM t WHERE b)",
        "SELECT id FROM t WHERE b UNION ALL SELECT id FROM t WHERE k + w > 1000",
        "SELECT id, s FROM t WHERE b UNION ALL SELECT 1, 'one' UNION ALL SELECT * FROM (VALUES (2, 'two'), (3, NULL))",
        "WITH c AS (SELECT id, k FROM t WHERE b) SELECT sum(id) FROM (SELECT * FROM c UNION ALL SELECT * FROM c)",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

#[tokio::test]
async fn a_limit_over_a_union_stops() {
    let rig = Rig::with_partitions(Fallback::Error, 3).await;
    let report = rig.counted("SELECT id FROM t WHERE k > 0 UNION ALL SELECT id FROM t WHERE b LIMIT 11").await;
    assert_eq!(report.0, 11, "{:?}", report.1);
    assert!(report.1.launches > 0 && report.1.findings.is_empty() && report.1.pool_used_bytes == 0, "{:?}", report.1);
}
