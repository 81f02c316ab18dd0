//! Medians and percentiles in every form: the simulated device gives DataFusion's answers, alone.
//!
//! Groups   of even and odd numbers of values, of one value, of NULLs alone, of none that passes a filter
//! Values   floats of both widths, NaN and infinities among them, integers, decimals of all widths up to 38 digits

use std::sync::Arc;

use millpond::Fallback;
use millpond::datafusion::datasource::MemTable;

use crate::sql_features::Rig;

#[tokio::test]
async fn medians_of_every_type() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for column in ["x", "f32", "f64", "i8", "i64", "u64", "d9", "d18", "d38", "d30", "CAST(k AS FLOAT)"] {
        rig.same(&format!("SELECT median({column}) FROM t WHERE id % 7 <> 2")).await;
        rig.same(&format!("SELECT k, median({column}), count({column}) FROM t WHERE id % 5 <> 2 GROUP BY k")).await;
    }
    rig.finish();
}

#[tokio::test]
async fn percentiles_are_interpolated_as_datafusions_are() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for p in ["0.0", "0.1", "0.25", "0.333333333", "0.5", "0.999", "1.0"] {
        rig.same(&format!("SELECT w, percentile_cont({p}) WITHIN GROUP (ORDER BY x) FROM t GROUP BY w ORDER BY w"))
            .await;
        rig.same(&format!("SELECT percentile_cont({p}) WITHIN GROUP (ORDER BY f32 DESC) FROM t WHERE k > 0")).await;
    }
    rig.same("SELECT k, percentile_cont(i32, 0.75), quantile_cont(f64, 0.4) FROM t GROUP BY k").await;
    rig.finish();
}

#[tokio::test]
async fn several_at_once_beside_other_aggregates() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT s, median(x), median(d18), median(x) FILTER (WHERE w > 0), count(*), sum(i64), min(l) FROM t GROUP BY s",
        "SELECT k, median(x) FILTER (WHERE id % 2 = 0), median(x) FILTER (WHERE id < 0), max(x) FROM t GROUP BY k",
        "SELECT median(x), percentile_cont(0.9) WITHIN GROUP (ORDER BY x), avg(x), count(DISTINCT k) FROM t",
        "SELECT upper(s), b, w, median(x + k), first_value(id ORDER BY id DESC), stddev(x) FROM t WHERE id < 2800
         GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
        "SELECT median(x) FROM t WHERE id < 0",
        "SELECT k, median(x) FROM t WHERE id < 0 GROUP BY k",
        "SELECT median(nothing), median(x) FROM (SELECT CAST(NULL AS DOUBLE) AS nothing, x FROM t WHERE id > 4)",
        "SELECT id, median(x) FROM t GROUP BY id",
        "SELECT day, median(d9) FROM t GROUP BY day HAVING median(d9) > 10 ORDER BY 2 DESC, 1 LIMIT 20",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

#[tokio::test]
async fn distinct_values_and_grouping_sets() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT k, median(DISTINCT w + i8), median(x), count(DISTINCT s) FROM t GROUP BY k",
        "SELECT median(DISTINCT d9), sum(DISTINCT k) FROM t",
        "SELECT median(DISTINCT i16 % 10) FROM t",
        "SELECT w, percentile_cont(DISTINCT i16, 0.3) FROM t GROUP BY w",
        "SELECT b, w, median(x), count(*) FROM t GROUP BY ROLLUP (b, w)",
        "SELECT b, w, s, median(x), median(f64), grouping(b) FROM t GROUP BY GROUPING SETS ((b, w), (s), ())",
        "SELECT b, w, median(x) FROM t WHERE id < 0 GROUP BY CUBE (b, w)",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// Floats that are one group though their bits differ, and are sorted together.
#[tokio::test]
async fn float_keys_that_are_equal_have_one_median() {
    let mut rig = Rig::with_partitions(Fallback::Error, 2).await;
    let edges = crate::edges::edges();
    rig.register("memory", || {
        Arc::new(MemTable::try_new(edges.schema(), vec![vec![edges.clone()]]).expect("one schema"))
    });
    for key in ["f64", "f32", "CASE WHEN id % 2 = 0 THEN 0.0 ELSE -0.0 END"] {
        rig.same(&format!("SELECT {key} AS key, median(id), count(*) FROM memory GROUP BY 1")).await;
    }
    rig.finish();
}

#[tokio::test]
async fn medians_above_joins_unions_and_other_medians() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT a.w, median(b.x) FROM t a JOIN t b ON a.i32 = b.k GROUP BY a.w",
        "SELECT w, median(x) FROM (SELECT k AS w, x FROM t WHERE x < 10000 UNION ALL SELECT k + 1, f64 FROM t WHERE id < 500) GROUP BY w",
        "SELECT median(m) FROM (SELECT k, median(x) AS m FROM t GROUP BY k)",
        "SELECT t.id, m FROM t JOIN (SELECT k AS j, median(x) AS m FROM t GROUP BY k) ON j = t.id WHERE m > 100",
        "SELECT id, x FROM t WHERE x > (SELECT median(x) FROM t)",
        "SELECT a.k, a.m, b.m FROM (SELECT k, median(x) AS m FROM t GROUP BY k) a
         FULL JOIN (SELECT w AS k, median(d9) AS m FROM t GROUP BY w) b ON a.k = b.k",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// Groups whose keys are bytes, not codes: they are sorted as strings.
#[tokio::test]
async fn groups_of_strings_without_a_dictionary() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    rig.set("millpond.debug_dictionary_values = 4").await;
    for sql in [
        "SELECT s, median(x), count(*) FROM t GROUP BY s",
        "SELECT l, k, median(d18), min(id), percentile_cont(f64, 0.3) FROM t GROUP BY l, k",
        "SELECT s, l, median(x) FROM t WHERE id % 3 > 0 GROUP BY ROLLUP (s, l)",
        "SELECT s, median(DISTINCT w), sum(x) FROM t GROUP BY s",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// Memory for what is sorted is not always there; then the CPU answers, or the table's keys go in parts.
#[tokio::test]
async fn where_memory_is_short_the_answer_stays() {
    let rig = Rig::with_partitions(Fallback::Allow, 3).await;
    rig.set("millpond.memory_limit_bytes = 2000000").await;
    for sql in [
        "SELECT key % 10, median(value) FROM many GROUP BY 1",
        "SELECT key, median(value), count(*) FROM many GROUP BY key",
    ] {
        if let Err(what) = rig.run(sql).await {
            panic!("{sql}: {what}");
        }
    }
    rig.finish();
}
