//! Tables of groups that begin too small: they grow while rows go by, and no row is lost or counted twice.
//!
//!   room for one group, extents of 1,000 rows, up to 3,000 groups ──► the CPU's answers, on the device alone

use millpond::Fallback;
use millpond_kernels::codegen::ir::Regime;

use crate::sql_features::Rig;

const QUERIES: [&str; 14] = [
    "SELECT id * 1000000007 AS key, count(*), sum(x), min(s), max(d38) FROM t GROUP BY key",
    "SELECT i64, d38, count(*), sum(d30), avg(d9) FROM t GROUP BY i64, d38",
    "SELECT k, x, f32, count(*), count(s), bool_or(b), bit_xor(i32) FROM t GROUP BY k, x, f32",
    "SELECT id * 1000000007 AS key, stddev(x), covar_pop(x, f64), var_pop(k) FROM t WHERE f64 < 999 GROUP BY key",
    "SELECT id * 1000000007 AS key, first_value(s ORDER BY id DESC), last_value(k ORDER BY d38, id) FROM t GROUP BY key ORDER BY key",
    "SELECT id * 1000000007 AS key, w, sum(k), grouping(w) FROM t GROUP BY ROLLUP (key, w)",
    "SELECT i64, d38, x, count(*), sum(i8) FROM t GROUP BY CUBE (i64, d38, x)",
    "SELECT id * 1000000007 AS key, w, count(*) FROM t WHERE id < 0 GROUP BY GROUPING SETS ((key), (w), ())",
    "SELECT i64, count(DISTINCT d38), count(DISTINCT x), sum(i16), max(id) FROM t GROUP BY i64",
    "SELECT count(DISTINCT id * 1000000007), count(DISTINCT x), sum(DISTINCT i64) FROM t",
    "SELECT DISTINCT i64, d38, w FROM t",
    "SELECT id * 1000000007 AS key, count(*) FILTER (WHERE b), sum(x) FILTER (WHERE k > 0) FROM t WHERE id % 5 > 0 GROUP BY key HAVING count(*) > 0",
    "SELECT a.id * 1000000007 AS key, count(*), sum(b.k) FROM t a JOIN t b ON a.w = b.w AND b.id < 40 GROUP BY key",
    "SELECT n, count(*) FROM (SELECT i64, x, count(*) AS n FROM t GROUP BY i64, x) GROUP BY n",
];

#[tokio::test]
async fn a_table_that_begins_too_small_grows() {
    let mut rig = Rig::with_partitions(Fallback::Error, 7).await;
    rig.set("millpond.debug_groups_at_first = 1").await;
    for sql in QUERIES {
        rig.same(sql).await;
    }
    // The second time the size is known.
    for sql in &QUERIES[..3] {
        rig.same(sql).await;
    }
    rig.set("millpond.batch_rows = 0").await;
    rig.set("millpond.partitions = 1").await;
    rig.set("millpond.debug_groups_at_first = 600").await;
    for sql in &QUERIES[2..7] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// Keys of some dozens to hundreds of values, of rows that are many times more.
const SOME_GROUPS: [&str; 8] = [
    "SELECT value % 300 AS key, count(*), count(key), sum(key), min(key), max(value) FROM many GROUP BY value % 300",
    "SELECT value % 100 AS key, avg(value), sum(key + value), sum(value) FILTER (WHERE key > 5000) FROM many WHERE value > 9 GROUP BY value % 100",
    "SELECT value % 30 AS a, value % 7 > 3 AS b, sum(value), count(*) FROM many GROUP BY a, b",
    "SELECT value % 200 AS key, bit_and(value), bit_or(key), bit_xor(value) FROM many GROUP BY value % 200 HAVING count(*) > 10",
    "SELECT value % 100 AS key, sum(CAST(key AS DECIMAL(20, 2))) AS exact, min(CAST(value AS DOUBLE)), sum(CAST(value AS DOUBLE)) AS rough FROM many GROUP BY value % 100",
    "SELECT k, count(*), sum(d9), avg(d18), min(i64), max(ts_us), count(s), bool_or(b) FROM t GROUP BY k",
    "SELECT DISTINCT value % 50 FROM many",
    "SELECT count(DISTINCT value % 60), sum(value), count(*) FROM many",
];

#[tokio::test]
async fn some_groups_are_kept_by_thread_blocks() {
    for sql in SOME_GROUPS {
        let mut rig = Rig::with_partitions(Fallback::Error, 2).await;
        rig.set("millpond.batch_rows = 30000").await;
        rig.same(sql).await;
        let regimes = rig.sim.engine().expect("a device").regimes();
        rig.finish();
        assert!(regimes.contains(&Regime::Block), "{sql}: {regimes:?}");
    }
}

#[tokio::test]
async fn growing_costs_launches_once_and_memory_by_the_groups() {
    let rig = Rig::with_partitions(Fallback::Error, 1).await;
    // Loading columns that stay takes launches, too.
    rig.set("millpond.cache = off").await;
    rig.set("millpond.batch_rows = 0").await;
    let sql = "SELECT id * 1000000007 AS key, count(*), sum(x), max(d38) FROM t GROUP BY key";
    let roomy = rig.run(sql).await.expect("the CPU's answer");
    rig.set("millpond.debug_groups_at_first = 40").await;
    let grown = rig.run(sql).await.expect("the CPU's answer");
    let known = rig.run(sql).await.expect("the CPU's answer");
    assert!(grown.launches > roomy.launches, "{} and {} launches", grown.launches, roomy.launches);
    assert_eq!(known.launches, roomy.launches, "a plan that was run before starts large enough");
    // Few groups of many rows take little: 3,000 rows would ask for a table of 8,192 records.
    let few = "SELECT (id % 7) * 1000000007 AS key, count(*), sum(x), max(d38) FROM t GROUP BY key";
    let small = rig.run(few).await.expect("the CPU's answer");
    rig.set("millpond.debug_groups_at_first = 0").await;
    let large = rig.run(few).await.expect("the CPU's answer");
    assert!(small.peak_bytes * 2 < large.peak_bytes, "{} and {} bytes", small.peak_bytes, large.peak_bytes);
    assert_eq!(small.launches, large.launches, "nothing had to grow");
}
