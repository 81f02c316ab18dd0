//! Orders that inputs have, and that DataFusion counts on: kept, or made again, on the device.
//!
//!   o   a Parquet file declared WITH ORDER (a, b): no sort is planned where a query asks for that order
//!   merge joins   sort both sides, and give what they join in that order

use millpond::Fallback;

use crate::sql_features::Rig;

/// The rows of `t` by `k` and `id`, in a file that says so.
async fn ordered(partitions: usize) -> Rig {
    let rig = Rig::with_partitions(Fallback::Error, partitions).await;
    let path = rig.folder.path().join("ordered.parquet");
    let path = path.to_str().expect("a UTF-8 path");
    let copy = format!("COPY (SELECT k AS a, id AS b, x, s, w FROM t ORDER BY k NULLS FIRST, id) TO '{path}'");
    rig.cpu.execute(&copy).await.expect("the file is written");
    let table = format!(
        "CREATE EXTERNAL TABLE o (a INT, b BIGINT, x DOUBLE, s VARCHAR, w SMALLINT) STORED AS PARQUET
         WITH ORDER (a ASC NULLS FIRST, b ASC) LOCATION '{path}'"
    );
    for session in [&rig.cpu, &rig.sim] {
        session.context().sql(&table).await.expect("the table is made");
    }
    rig
}

#[tokio::test]
async fn filters_projections_joins_and_unions_of_ordered_rows() {
    for partitions in [1, 4] {
        let mut rig = ordered(partitions).await;
        for sql in [
            "SELECT a, b, x FROM o WHERE w > 0 ORDER BY a NULLS FIRST, b",
            "SELECT a, b, x * 2 FROM o WHERE w > 0 ORDER BY a NULLS FIRST, b",
            "SELECT a, b FROM o WHERE s LIKE '%e%' ORDER BY a NULLS FIRST, b LIMIT 7",
            "SELECT a, b FROM o WHERE s LIKE '%e%' ORDER BY a NULLS FIRST, b LIMIT 7 OFFSET 600",
            "SELECT sum(b), count(*) FROM (SELECT b FROM o WHERE w > 0 ORDER BY a NULLS FIRST, b LIMIT 90)",
            "SELECT o.a, o.b, t.s FROM o JOIN t ON o.b = t.id WHERE t.w > 0 ORDER BY o.a NULLS FIRST, o.b",
            "SELECT o.a, o.b, t.s FROM o LEFT JOIN t ON o.a = t.k AND t.id < 90 WHERE o.w > 0 ORDER BY o.a NULLS FIRST, o.b, t.id LIMIT 40",
            "SELECT a, count(*), sum(x) FROM o WHERE w > -1 GROUP BY a ORDER BY a NULLS FIRST",
            "SELECT a, b FROM o WHERE w = 1 UNION ALL SELECT k, id FROM t WHERE w = 2 ORDER BY 1 NULLS FIRST, 2",
            "SELECT DISTINCT a FROM o WHERE b > 10 ORDER BY a NULLS FIRST LIMIT 3",
        ] {
            rig.same(sql).await;
        }
        rig.finish();
    }
}

#[tokio::test]
async fn unions_in_an_order() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT id, k FROM t WHERE w = 1 UNION ALL SELECT id, k FROM t WHERE w = 2 ORDER BY id",
        "SELECT id, k FROM t WHERE w = 1 UNION ALL SELECT id, k FROM t WHERE w = 2 ORDER BY k DESC NULLS LAST, id LIMIT 20",
        "SELECT s FROM t WHERE w = 1 UNION SELECT l FROM t WHERE w = 2 ORDER BY 1 DESC NULLS FIRST",
        "(SELECT id FROM t WHERE k > 0 ORDER BY id LIMIT 10) UNION ALL (SELECT id FROM t WHERE k < 0 ORDER BY id DESC LIMIT 10)
         ORDER BY id",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

#[tokio::test]
async fn merge_joins_of_every_type() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    rig.set("datafusion.optimizer.prefer_hash_join = false").await;
    for join in ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"] {
        rig.same(&format!(
            "SELECT a.id, a.k, b.id, b.w FROM (SELECT * FROM t WHERE id < 300) a
             {join} (SELECT * FROM t WHERE id > 200 AND id < 600) b ON a.k = b.k AND a.s = b.s ORDER BY 1, 2, 3, 4"
        ))
        .await;
    }
    for sql in [
        "SELECT a.k, count(*), sum(b.x) FROM t a JOIN t b ON a.k = b.k WHERE a.id < 60 GROUP BY a.k",
        "SELECT id FROM t WHERE k IN (SELECT w FROM t WHERE id > 5) ORDER BY id",
        "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM t o WHERE o.k = t.k AND o.w > 1) ORDER BY id",
        "SELECT a.k, b.id FROM t a JOIN t b ON a.id = b.id WHERE a.w > 0 ORDER BY b.id LIMIT 30 OFFSET 5",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}
