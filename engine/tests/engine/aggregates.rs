//! Aggregates: every function over every type, NULL-heavy, grouped or not, gives DataFusion's answers on the device alone.
//!
//!   t (3,000 rows, 7 partitions, 1,000 rows a batch) ──► device = sim, fallback = error ─┬─► equal answers, launches, no finding
//!                                                    └─► device = cpu ───────────────────┘
//!
//! Each test    is one topic; it names every query that failed, not the first alone.

use millpond::Fallback;

use crate::sql_features::Rig;

/// Runs every query on the device alone and compares.
async fn same(queries: &[&str]) {
    let mut rig = Rig::with_partitions(Fallback::Error, 7).await;
    for sql in queries {
        rig.same(sql).await;
    }
    rig.finish();
}

#[tokio::test]
async fn booleans_and_bits() {
    same(&[
        "SELECT bool_and(b), bool_or(b), bool_and(k > 0), bool_or(k > 100), bool_and(NULL::BOOLEAN) FROM t",
        "SELECT w, bool_and(b), bool_or(b), bool_and(k > 0), bool_or(k IS NULL), min(b), max(b) FROM t GROUP BY w",
        "SELECT k, w, bool_and(b), bool_or(b) FILTER (WHERE id > 1500) FROM t GROUP BY k, w",
        "SELECT bit_and(i32), bit_or(u16), bit_xor(i64), bit_and(u64), bit_or(i8), bit_xor(u8) FROM t WHERE i32 > 2",
        "SELECT w, bit_and(i16), bit_or(i32), bit_xor(u32), bit_xor(i64), bit_or(u64), bit_and(i8) FROM t GROUP BY w",
        "SELECT k, bit_and(i64), bit_or(k), bit_xor(id) FROM t WHERE id < 900 GROUP BY k",
        "SELECT w, min(DISTINCT k), max(DISTINCT d9), bool_and(DISTINCT b) FROM t GROUP BY w",
    ])
    .await;
}

#[tokio::test]
async fn counts_of_several_columns() {
    same(&[
        "SELECT count(*), count(k), count(k, w), count(1), count(k, s, b), count(NULL) FROM t",
        "SELECT w, count(k, i8), count(f64, d38, s), count(*) FILTER (WHERE k > 0) FROM t GROUP BY w",
        "SELECT count(k, w) FILTER (WHERE b), count(i8) FILTER (WHERE k IS NULL) FROM t",
    ])
    .await;
}

#[tokio::test]
async fn variance_and_deviation() {
    same(&[
        "SELECT var_samp(x), var_pop(x), stddev(x), stddev_samp(x), stddev_pop(x), var(k), var_pop(i16) FROM t",
        "SELECT w, var_samp(x), var_pop(x), stddev(x), stddev_pop(x), stddev(d9), var(i8) FROM t GROUP BY w",
        "SELECT k, w, var_samp(x), stddev_pop(x) FROM t GROUP BY k, w",
        "SELECT id, var_samp(x), var_pop(x), stddev_pop(x) FROM t WHERE id < 1200 GROUP BY id",
        "SELECT var_pop(x), stddev(x), var_samp(x), count(*) FROM t WHERE id < 0",
        "SELECT var_pop(x), stddev(x), var_samp(x) FROM t WHERE id = 7",
        "SELECT w, stddev(x + 1000000000), var_pop(x * 0.001 + 100000000) FROM t GROUP BY w",
        "SELECT w, stddev(x) FILTER (WHERE b), avg(x) FILTER (WHERE b), stddev(x) FROM t GROUP BY w",
        "SELECT d38, var_pop(x), stddev(k) FROM t GROUP BY d38",
    ])
    .await;
}

#[tokio::test]
async fn covariance_correlation_and_regression() {
    same(&[
        "SELECT covar_samp(x, f64), covar_pop(x, f64), corr(x, x + f64), corr(x, 2 * x), covar_samp(f64, f64) FROM t WHERE f64 < 999 AND f64 > -999",
        "SELECT w, covar_samp(x, f64), covar_pop(x, f64), corr(x, f64), corr(f64, x * x) FROM t WHERE f64 < 999 AND f64 > -999 GROUP BY w",
        "SELECT k, w, covar_samp(x, f64), covar_pop(f64, x) FROM t WHERE f64 < 999 AND f64 > -999 GROUP BY k, w",
        "SELECT regr_slope(x, f64), regr_intercept(x, f64), regr_count(x, f64), regr_r2(x, f64), regr_avgx(x, f64) FROM t WHERE f64 < 999 AND f64 > -999",
        "SELECT regr_avgy(x, f64), regr_sxx(x, f64), regr_syy(x, f64), regr_sxy(x, f64) FROM t WHERE f64 < 999 AND f64 > -999 AND b",
        "SELECT w, regr_slope(x, f64), regr_intercept(x, f64), regr_count(x, f64), regr_r2(x, f64) FROM t WHERE f64 < 999 AND f64 > -999 GROUP BY w",
        "SELECT w, regr_avgx(x, f64), regr_avgy(x, f64), regr_sxx(x, f64), regr_syy(x, f64), regr_sxy(x, f64) FROM t WHERE f64 < 999 AND f64 > -999 GROUP BY w",
        "SELECT corr(x, f64), covar_samp(x, f64), regr_slope(x, f64), regr_count(x, f64), regr_sxx(x, f64) FROM t WHERE f64 < 999 AND f64 > -999 AND id < 0",
        "SELECT id, covar_pop(x, f64), covar_samp(x, f64), regr_slope(x, f64), regr_avgx(x, f64) FROM t WHERE f64 < 999 AND f64 > -999 AND id < 90 GROUP BY id",
        "SELECT w, corr(x, f64) FILTER (WHERE id > 200), regr_slope(x, f64) FILTER (WHERE b) FROM t WHERE f64 < 999 AND f64 > -999 GROUP BY w",
        "SELECT corr(x, k), regr_slope(i8, d9), covar_pop(w, u8) FROM t",
        "SELECT w, corr(x, k), regr_slope(i8, d9), covar_pop(i16, u8) FROM t GROUP BY w",
    ])
    .await;
}

#[tokio::test]
async fn sums_and_averages_of_every_type() {
    same(&[
        "SELECT sum(i8), sum(u8), sum(i64), sum(u64), sum(d9), sum(d18), sum(d30), sum(x), sum(k) FROM t",
        "SELECT w, sum(i64), sum(u64), sum(d9), sum(d18), sum(d30), avg(k), avg(x), avg(d9), avg(d18) FROM t GROUP BY w",
        "SELECT w, sum(arrow_cast(k, 'Decimal32(7, 1)')), sum(arrow_cast(k, 'Decimal64(16, 2)')) FROM t GROUP BY w",
        "SELECT avg(arrow_cast(k, 'Decimal32(5, 1)')), avg(arrow_cast(k, 'Decimal64(14, 2)')) FROM t",
        "SELECT sum(d38), avg(d30) FROM t",
        "SELECT k, avg(i32), avg(u16), avg(f32), avg(d30) FROM t WHERE f32 < 1e30 GROUP BY k",
    ])
    .await;
}

#[tokio::test]
async fn least_and_greatest_of_every_type() {
    same(&[
        "SELECT min(i8), max(i8), min(u64), max(u64), min(d38), max(d38), min(day), max(day), min(s), max(s) FROM t WHERE id > 3",
        "SELECT w, min(i64), max(i16), min(u32), max(d18), min(d38), max(day), min(s), max(l) FROM t GROUP BY w",
        "SELECT min(f32), max(f32), min(f64), max(f64), min(x), max(x) FROM t WHERE id > 3",
        "SELECT k, min(f64), max(f64), min(f32), max(f32) FROM t WHERE f64 < 1e300 AND f32 < 1e30 GROUP BY k",
        "SELECT id, min(f64), max(f64), min(f32), max(f32) FROM t WHERE id < 500 GROUP BY id",
    ])
    .await;
}

#[tokio::test]
async fn grouping_sets_rollup_and_cube() {
    same(&[
        "SELECT w, b, sum(k), count(*) FROM t GROUP BY GROUPING SETS ((w), (b))",
        "SELECT w, b, sum(k), grouping(w), grouping(b), grouping(w, b) FROM t GROUP BY ROLLUP (w, b)",
        "SELECT w, b, s, avg(x), grouping(w, b, s), max(s) FROM t GROUP BY CUBE (w, b, s)",
        "SELECT w, b, count(*) FROM t GROUP BY GROUPING SETS ((w, b), (w), (), ())",
        "SELECT day, d38, sum(k), grouping(day) FROM t WHERE id < 400 GROUP BY GROUPING SETS ((day, d38), (day), (d38), ())",
        "SELECT i64, s, count(k), min(x) FROM t WHERE id < 700 GROUP BY ROLLUP (i64, s)",
        "SELECT w, b, stddev(x), bool_or(c) FILTER (WHERE k > 0) FROM t GROUP BY CUBE (w, b) HAVING count(*) > 200",
        "SELECT w + 1, k % 3, sum(x) FROM t GROUP BY ROLLUP (w + 1, k % 3)",
        "SELECT w, b, count(*) FROM t WHERE id < 0 GROUP BY CUBE (w, b)",
        "SELECT w, b, sum(k), avg(x), count(k), count(DISTINCT k), min(s) FROM t WHERE id < 0 GROUP BY ROLLUP (w, b)",
        "SELECT d38, count(*), max(k), stddev(x), grouping(d38) FROM t WHERE id < 0 GROUP BY GROUPING SETS ((d38), ())",
        "SELECT i64, count(*), bool_and(b), avg(d9) FROM t WHERE id < 0 GROUP BY GROUPING SETS ((i64), (), ())",
        "SELECT f64, grouping(f64), count(*) FROM t GROUP BY ROLLUP (f64)",
    ])
    .await;
}

#[tokio::test]
async fn distinct_arguments_beside_others() {
    same(&[
        "SELECT count(DISTINCT k) FROM t",
        "SELECT w, count(DISTINCT k), sum(DISTINCT i8), count(*), sum(x), avg(d9) FROM t GROUP BY w",
        "SELECT count(DISTINCT k), count(DISTINCT s), sum(DISTINCT u8), count(*), max(s), bool_and(b) FROM t",
        "SELECT b, count(DISTINCT s), min(s), max(l), stddev(x), count(DISTINCT f64) FROM t GROUP BY b",
        "SELECT w, avg(DISTINCT x), sum(DISTINCT i8), count(DISTINCT x), sum(k) FROM t GROUP BY w",
        "SELECT w, count(DISTINCT k) FILTER (WHERE b), count(DISTINCT k), sum(i8) FILTER (WHERE c) FROM t GROUP BY w",
        "SELECT w, count(DISTINCT k) FILTER (WHERE b), sum(DISTINCT i8) FILTER (WHERE c) FROM t GROUP BY w",
        "SELECT w, var_pop(DISTINCT x), sum(k) FROM t GROUP BY w",
        "SELECT count(DISTINCT k), count(DISTINCT s), count(*), sum(k), max(k) FROM t WHERE id < 0",
        "SELECT w, count(DISTINCT k), count(*) FROM t WHERE id < 0 GROUP BY w",
        "SELECT w, b, count(DISTINCT k), sum(x) FROM t GROUP BY ROLLUP (w, b)",
        "SELECT w, b, count(DISTINCT k), count(DISTINCT s), grouping(w) FROM t GROUP BY GROUPING SETS ((w), (b), ())",
        "SELECT d38, count(DISTINCT i8), count(DISTINCT i16), min(d38) FROM t WHERE id < 600 GROUP BY d38",
        "SELECT w, count(DISTINCT d9), sum(DISTINCT d9), avg(DISTINCT d9), max(d9) FROM t GROUP BY w HAVING count(DISTINCT d9) > 3",
    ])
    .await;
}
