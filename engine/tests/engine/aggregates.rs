//! Aggregates: every function over every type, NULL-heavy, grouped or not, gives DataFusion's answers on the device
//! alone.
//!
//!   t (3,000 rows, 7 partitions, 1,000 rows a batch) ──► device = sim, fallback = error ─┬─► equal answers, launches,
//!                                                                                            no finding
//!                                                    └─► device = cpu ───────────────────┘
//!
//! Each test    is one topic; it names every query that failed, not the first alone.

use millpond::datafusion::arrow::compute::concat_batches;
use millpond::datafusion::arrow::util::pretty::pretty_format_batches;
use millpond::datafusion::physical_plan::displayable;
use millpond::datafusion::prelude::{ParquetReadOptions, col};
use millpond::{DeviceChoice, Fallback};

use crate::edges::write_parquet;
use crate::sql_features::Rig;
use crate::support::session_with;

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
        "SELECT w, count(DISTINCT k) FROM t WHERE id < 0 GROUP BY ROLLUP (w)",
        "SELECT d38, count(*), max(k), stddev(x), grouping(d38) FROM t WHERE id < 0 GROUP BY GROUPING SETS ((d38), ())",
        "SELECT i64, count(*), bool_and(b), avg(d9) FROM t WHERE id < 0 GROUP BY GROUPING SETS ((i64), (), ())",
        "SELECT w, bit_or(id), max(id), sum(id) FROM t WHERE id < 0 GROUP BY CUBE (w)",
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

/// A session pair with `o`, the rows of `t` in order of `w` and `k`, which its two files declare.
async fn with_sorted(fallback: Fallback) -> Rig {
    let rig = Rig::with_partitions(fallback, 7).await;
    let sorted = rig.cpu.execute("SELECT * FROM t ORDER BY w NULLS FIRST, k NULLS FIRST").await.expect("the CPU sorts");
    let sorted = concat_batches(&sorted.schema, &sorted.batches).expect("batches have one schema");
    let folder = rig.folder.path().join("sorted");
    std::fs::create_dir(&folder).expect("a new folder");
    write_parquet(&sorted.slice(0, 1_700), &folder.join("a.parquet"), 500);
    write_parquet(&sorted.slice(1_700, sorted.num_rows() - 1_700), &folder.join("b.parquet"), 500);
    let order = vec![vec![col("w").sort(true, true), col("k").sort(true, true)]];
    for session in [&rig.cpu, &rig.sim] {
        let options = ParquetReadOptions::default().file_sort_order(order.clone());
        let path = folder.to_str().expect("a UTF-8 path");
        session.context().register_parquet("o", path, options).await.expect("the files are read");
    }
    rig
}

#[tokio::test]
async fn aggregates_over_sorted_input_keep_its_order() {
    let mut rig = with_sorted(Fallback::Error).await;
    let queries = [
        "SELECT w, count(*), sum(x) FROM o GROUP BY w",
        "SELECT w, k, count(*), min(s) FROM o GROUP BY w, k",
        "SELECT w, b, count(*), avg(d9) FROM o GROUP BY w, b",
        "SELECT w, k, sum(i64) FROM o GROUP BY w, k ORDER BY w NULLS FIRST, k NULLS FIRST",
        "SELECT w, max(day) FROM o GROUP BY w ORDER BY w DESC",
        "SELECT w, count(*), sum(x) FROM o WHERE id % 3 > 0 GROUP BY w",
        "SELECT w + 1, k, count(*) FROM (SELECT w, k FROM o WHERE b) GROUP BY w + 1, k",
        "SELECT count(*), sum(k), max(s) FROM o WHERE c",
        "SELECT w, k, sum(i64) FROM o GROUP BY w, k ORDER BY w NULLS FIRST, k NULLS FIRST LIMIT 9",
        "SELECT w, b, count(DISTINCT k), sum(x) FROM o GROUP BY ROLLUP (w, b)",
    ];
    let mut sorted = 0;
    for sql in queries {
        rig.same(sql).await;
        let plan = rig.cpu.context().sql(sql).await.expect("planned").create_physical_plan().await.expect("made");
        sorted += usize::from(displayable(plan.as_ref()).indent(true).to_string().contains("ordering_mode="));
    }
    assert!(sorted >= 4, "DataFusion's own plans use the order in {sorted} of these queries");
    rig.finish();
}

#[tokio::test]
async fn an_aggregate_that_stays_on_the_cpu_keeps_its_sorted_input() {
    let rig = with_sorted(Fallback::Allow).await;
    let sql = "SELECT w, count(*), approx_percentile_cont_with_weight(w, 1, 0.5) FROM o WHERE id % 3 > 0 GROUP BY w";
    // The filter loses the order that the aggregate reads, so that a sort makes it again.
    let report = rig.run(sql).await.expect("equal answers");
    assert!(report.reasons.iter().any(|reason| reason.contains("digest")), "{:?}", report.reasons);
}

/// Settings that make DataFusion plan the phases of an aggregate differently: the answers stay.
#[tokio::test]
async fn every_mode_of_an_aggregate_is_one_on_the_device() {
    let mut rig = Rig::with_partitions(Fallback::Error, 7).await;
    let settings: [&[(&str, &str)]; 5] = [
        &[("datafusion.execution.target_partitions", "1")],
        &[("datafusion.execution.target_partitions", "7")],
        &[("datafusion.optimizer.repartition_aggregations", "false")],
        &[
            ("datafusion.optimizer.repartition_aggregations", "true"),
            ("datafusion.optimizer.repartition_file_scans", "false"),
        ],
        &[
            ("datafusion.execution.skip_partial_aggregation_probe_rows_threshold", "1"),
            ("datafusion.execution.batch_size", "64"),
        ],
    ];
    let queries = [
        "SELECT w, sum(k), count(*), avg(x), max(s) FROM t GROUP BY w",
        "SELECT sum(k), count(*), avg(x), stddev(x), max(s) FROM t",
        "SELECT id, count(*), sum(d30) FROM t WHERE id > 100 GROUP BY id",
        "SELECT w, max(n), sum(n) FROM (SELECT w, b, count(*) AS n FROM t GROUP BY w, b) GROUP BY w",
        "SELECT w, b, max(n) FROM (SELECT w, b, count(*) AS n FROM t GROUP BY w, b) GROUP BY w, b",
        "SELECT DISTINCT w, b FROM t",
    ];
    let mut modes = std::collections::BTreeSet::new();
    for setting in settings {
        for (name, value) in setting {
            for session in [&rig.cpu, &rig.sim] {
                session.context().sql(&format!("SET {name} = {value}")).await.expect("the option is taken");
            }
        }
        for sql in queries {
            rig.same(sql).await;
            let plan = rig.cpu.context().sql(sql).await.expect("planned").create_physical_plan().await.expect("made");
            let text = displayable(plan.as_ref()).indent(false).to_string();
            let of = |line: &str| line.split("mode=").nth(1).and_then(|m| m.split(',').next()).map(str::to_string);
            modes.extend(text.lines().filter(|line| line.contains("AggregateExec")).filter_map(of));
        }
    }
    for mode in ["Partial", "Final", "FinalPartitioned", "Single", "SinglePartitioned"] {
        assert!(modes.contains(mode), "no plan has mode {mode}, only {modes:?}");
    }
    rig.finish();
}

/// DataFusion stops such aggregates early; the device gives all groups, and the limit above takes as many.
#[tokio::test]
async fn limits_inside_an_aggregate() {
    let mut rig = Rig::with_partitions(Fallback::Error, 7).await;
    for sql in [
        "SELECT id, max(x) AS most FROM t GROUP BY id ORDER BY most DESC NULLS LAST, id LIMIT 7",
        "SELECT k, min(i64) AS least FROM t GROUP BY k ORDER BY least, k LIMIT 5",
        "SELECT w FROM t GROUP BY w ORDER BY w LIMIT 3",
    ] {
        rig.same(sql).await;
    }
    for (sql, rows) in [("SELECT DISTINCT id FROM t LIMIT 11", 11), ("SELECT w, b FROM t GROUP BY w, b LIMIT 4", 4)] {
        let result = rig.sim.execute(sql).await.expect("it runs");
        assert_eq!(result.batches.iter().map(|b| b.num_rows()).sum::<usize>(), rows, "{sql}");
        assert!(result.report.launches > 0 && result.report.findings.is_empty(), "{sql}");
    }
    rig.finish();
}

#[tokio::test]
async fn first_and_last_values_in_an_order() {
    same(&[
        "SELECT first_value(x ORDER BY id), last_value(x ORDER BY id), first_value(s ORDER BY id DESC) FROM t",
        "SELECT w, first_value(k ORDER BY id), last_value(d38 ORDER BY id), last_value(b ORDER BY id) FROM t GROUP BY w ORDER BY w",
        "SELECT w, first_value(id ORDER BY k NULLS FIRST, id), last_value(id ORDER BY k NULLS FIRST, id) FROM t GROUP BY w ORDER BY w",
        "SELECT w, first_value(id ORDER BY k DESC NULLS LAST, id DESC), last_value(id ORDER BY s, id) FROM t GROUP BY w ORDER BY w",
        "SELECT w, first_value(id ORDER BY d38 DESC NULLS LAST, id), last_value(f32 ORDER BY d38, id) FROM t GROUP BY w ORDER BY w",
        "SELECT w, first_value(s ORDER BY f64, id), first_value(l ORDER BY f64, id), count(*) FROM t GROUP BY w ORDER BY w",
        "SELECT k, w, first_value(i64 ORDER BY id) FILTER (WHERE b), sum(x), stddev(x) FROM t GROUP BY k, w ORDER BY k, w",
        "SELECT w, first_value(k ORDER BY id) IGNORE NULLS, last_value(s ORDER BY id) IGNORE NULLS FROM t GROUP BY w ORDER BY w",
        "SELECT i64, last_value(u64 ORDER BY b, id) FROM t WHERE id < 800 GROUP BY i64 ORDER BY i64",
        "SELECT first_value(x ORDER BY id), last_value(s ORDER BY id) FROM t WHERE id < 0",
        "SELECT DISTINCT ON (w) w, k, s, day FROM t ORDER BY w, x DESC NULLS LAST, id",
        "SELECT w, any_value(w), any_value(w > 0), any_value(w * 2) FROM t GROUP BY w ORDER BY w",
        "SELECT w, count(DISTINCT k), first_value(s ORDER BY id), sum(x) FROM t GROUP BY w ORDER BY w",
    ])
    .await;
}

/// Of one partition, rows come in an order: that of its files.
#[tokio::test]
async fn first_and_last_values_as_rows_come() {
    let mut rig = Rig::with_partitions(Fallback::Error, 1).await;
    rig.set("millpond.partitions = 1").await;
    for sql in [
        "SELECT first_value(x), last_value(x), first_value(s), last_value(l), first_value(b), last_value(d38) FROM t",
        "SELECT w, first_value(id), last_value(id), first_value(k), last_value(k), count(*), sum(x) FROM t GROUP BY w",
        "SELECT w, first_value(k) IGNORE NULLS, last_value(s) IGNORE NULLS, last_value(k) RESPECT NULLS FROM t GROUP BY w",
        "SELECT w, first_value(id) FILTER (WHERE b), last_value(s) FILTER (WHERE k > 3) FROM t GROUP BY w",
        "SELECT first_value(id), last_value(k) FROM t WHERE id < 0",
        "SELECT w, first_value(id), last_value(id) FROM t WHERE id < 0 GROUP BY w",
        "SELECT k, w, first_value(id), last_value(f64), first_value(day) FROM t WHERE id % 3 = 1 GROUP BY k, w",
        "SELECT w, b, first_value(id), last_value(id), grouping(w) FROM t GROUP BY ROLLUP (w, b)",
        "SELECT w, count(DISTINCT k), first_value(DISTINCT id), last_value(s) FROM t GROUP BY w",
        "SELECT w, b, first_value(id ORDER BY k, id), first_value(id) FROM t WHERE k > 0 GROUP BY w, b ORDER BY w, b",
        "SELECT key, first_value(value), last_value(value), last_value(value ORDER BY value) FROM many GROUP BY key ORDER BY key",
        "SELECT w, first_value(id), last_value(id) FROM (SELECT id, w FROM t ORDER BY x DESC NULLS LAST, id) GROUP BY w ORDER BY w",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// Of several partitions, a row of the group is first, whichever.
#[tokio::test]
async fn first_values_of_several_partitions_are_rows_of_their_groups() {
    same(&[
        "SELECT w, first_value(w * 3), last_value(w + 1) FROM t WHERE w IS NOT NULL GROUP BY w",
        "SELECT w, a % 16 = w % 16, b > 0 FROM (
             SELECT w, first_value(id) IGNORE NULLS * 0 + w AS a, last_value(id) IGNORE NULLS + 1 AS b FROM t GROUP BY w)",
    ])
    .await;
}

/// The hash and the estimate leave room for the rest of a query.
#[tokio::test]
async fn an_estimate_is_little_text() {
    let rig = Rig::with_partitions(Fallback::Error, 7).await;
    for sql in
        ["SELECT w, approx_distinct(id) FROM t GROUP BY w", "SELECT approx_distinct(d38), approx_distinct(s) FROM t"]
    {
        let report = rig.run(sql).await.expect("equal answers");
        println!("{} instructions, {} launches: {sql}", report.ptx_instructions, report.launches);
        assert!(report.ptx_instructions <= 2500, "{} PTX instructions: {sql}", report.ptx_instructions);
    }
}

#[tokio::test]
async fn estimated_numbers_of_distinct_values() {
    same(&[
        // Exact types.
        "SELECT approx_distinct(b), approx_distinct(i8), approx_distinct(u8), approx_distinct(i16), approx_distinct(u16) FROM t",
        "SELECT w, approx_distinct(b), approx_distinct(i8), count(DISTINCT i8), approx_distinct(u16), count(*) FROM t GROUP BY w",
        "SELECT w, approx_distinct(i8) FILTER (WHERE k > 0), sum(k) FROM t GROUP BY w",
        // Integers, decimals, days, times.
        "SELECT approx_distinct(i32), approx_distinct(i64), approx_distinct(u32), approx_distinct(u64), approx_distinct(id) FROM t",
        "SELECT approx_distinct(day), approx_distinct(CAST(id AS TIMESTAMP)), approx_distinct(day - DATE '2020-01-01') FROM t",
        "SELECT approx_distinct(d9), approx_distinct(d18), approx_distinct(d30), approx_distinct(d38) FROM t",
        "SELECT approx_distinct(id * 1000000007), approx_distinct(-id * 77777777777), approx_distinct(-k) FROM t",
        "SELECT w, approx_distinct(k), approx_distinct(id), approx_distinct(d9), approx_distinct(d38) FROM t GROUP BY w",
        "SELECT w, median(x), approx_distinct(id), approx_distinct(arrow_cast(id, 'Decimal128(38, 20)')) FROM t GROUP BY w",
        // Strings, by their dictionary.
        "SELECT approx_distinct(s), approx_distinct(l), approx_distinct(upper(s)) FROM t",
        "SELECT w, approx_distinct(s), approx_distinct(l), min(s) FROM t GROUP BY w",
        // Enough rows that registers hold several values each.
        "SELECT approx_distinct(value), approx_distinct(key), count(*) FROM many",
        "SELECT approx_distinct(a.id * 3000 + b.id) FROM t a CROSS JOIN t b WHERE a.id < 30",
        // Filters, nothing at all, sets.
        "SELECT w, approx_distinct(id) FILTER (WHERE b), approx_distinct(id), sum(k) FILTER (WHERE b) FROM t GROUP BY w",
        "SELECT approx_distinct(id) FILTER (WHERE k > 1000000), approx_distinct(k) FILTER (WHERE b) FROM t",
        "SELECT approx_distinct(id), approx_distinct(b), approx_distinct(s) FROM t WHERE id < 0",
        "SELECT w, approx_distinct(id) FROM t WHERE id < 0 GROUP BY w",
        "SELECT w, b, approx_distinct(id), approx_distinct(i8), sum(k), grouping(w) FROM t GROUP BY ROLLUP (w, b)",
        "SELECT w, b, approx_distinct(id) FROM t WHERE id < 0 GROUP BY GROUPING SETS ((w, b), ())",
        "SELECT w, approx_distinct(DISTINCT id), count(DISTINCT id), sum(DISTINCT k) FROM t GROUP BY w",
        "SELECT w, approx_distinct(id) AS n FROM t GROUP BY w HAVING approx_distinct(id) > 3 ORDER BY n DESC, w",
        "SELECT approx_distinct(7), approx_distinct(k + 0) FROM t",
    ])
    .await;
}

#[tokio::test]
async fn what_has_no_device_form_stays_on_the_cpu_with_its_reason() {
    let mut rig = Rig::with_partitions(Fallback::Allow, 7).await;
    for (sql, reason) in [
        (
            "SELECT w, approx_percentile_cont_with_weight(i16, k, 0.5) FROM t WHERE k = 5 GROUP BY w",
            "weights of their own",
        ),
        ("SELECT nth_value(DISTINCT w, 2) FROM t WHERE id = 4 AND k > -50", "distinct values"),
        ("SELECT approx_distinct(NULL) FROM t WHERE k > -50", "approx_distinct"),
        ("SELECT approx_distinct(CAST(id AS VARCHAR)) FROM t WHERE k > -50", "these strings have none"),
    ] {
        rig.falls_back(sql, reason).await;
    }
    rig.finish();
}

/// The same sums to the last bit, however the rows are cut up.
#[tokio::test]
async fn deterministic_floats_depend_on_no_order() {
    let mut rig = Rig::with_partitions(Fallback::Error, 7).await;
    rig.sim.context().sql("SET millpond.deterministic_floats = true").await.expect("the option is taken");
    let sql = "SELECT w, sum(x / 3), avg(x / 7), sum(f32) FROM t WHERE f32 < 1e30 GROUP BY w";
    let ungrouped = "SELECT sum(x / 3), avg(x / 7), sum(f64) FROM t WHERE f64 < 1e300 AND f64 > -1e300";
    let mut texts = std::collections::BTreeSet::new();
    for (rows, feeders) in [(1000, 2), (77, 3), (3000, 1)] {
        for setting in [format!("SET millpond.batch_rows = {rows}"), format!("SET millpond.partitions = {feeders}")] {
            rig.sim.context().sql(&setting).await.expect("the option is taken");
        }
        let mut text = String::new();
        for sql in [sql, ungrouped] {
            rig.same(sql).await;
            let result = rig.sim.execute(&format!("{sql} ORDER BY 1")).await.expect("it runs");
            text += &pretty_format_batches(&result.batches).expect("batches can be shown").to_string();
        }
        texts.insert(text);
    }
    assert_eq!(texts.len(), 1, "{texts:?}");
    rig.finish();

    let mut rig = Rig::with_partitions(Fallback::Allow, 7).await;
    rig.sim.context().sql("SET millpond.deterministic_floats = true").await.expect("the option is taken");
    rig.falls_back("SELECT w, stddev(x) FROM t WHERE k > 0 GROUP BY w", "deterministic_floats").await;
    rig.finish();
}

#[tokio::test]
async fn keys_of_every_type_and_many_at_once() {
    same(&[
        "SELECT d38, s, b, f64, day, count(*), sum(k) FROM t GROUP BY d38, s, b, f64, day",
        "SELECT i64, u64, i32, i16, max(x) FROM t GROUP BY i64, u64, i32, i16",
        "SELECT f32, f64, count(*), sum(k), min(s) FROM t GROUP BY f32, f64",
        "SELECT l, s, w, b, count(*), count(DISTINCT k) FROM t GROUP BY l, s, w, b",
        "SELECT nothing, count(*), sum(nothing), min(nothing), avg(nothing) FROM t WHERE id > 3 GROUP BY nothing",
        "SELECT d9, d18, avg(x), stddev(x) FROM t GROUP BY d9, d18",
        "SELECT b, c, b AND c, b OR c, count(*) FROM t GROUP BY b, c, b AND c, b OR c",
        "SELECT k % 7, w * 2, count(*) FROM t GROUP BY k % 7, w * 2",
    ])
    .await;
}

/// HAVING is a filter of the launch that gives the groups, not a launch of its own.
#[tokio::test]
async fn having_costs_no_launch() {
    let rig = Rig::with_partitions(Fallback::Error, 7).await;
    for (without, with) in [
        ("SELECT w, sum(k) FROM t GROUP BY w", "SELECT w, sum(k) FROM t GROUP BY w HAVING count(*) > 450"),
        (
            "SELECT id, sum(k) FROM t WHERE id > 9 GROUP BY id",
            "SELECT id, sum(k) FROM t WHERE id > 9 GROUP BY id HAVING sum(k) > 3",
        ),
    ] {
        let launches = |report: millpond::QueryReport| report.launches;
        let without = rig.run(without).await.map(launches).expect("equal answers");
        let with = rig.run(with).await.map(launches).expect("equal answers");
        assert!(with <= without, "{with} launches with HAVING, {without} without");
    }
}

#[tokio::test]
async fn what_is_counted_is_computed_for_its_errors() {
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session = session_with(device, 2, Fallback::Error);
        for counted in ["1 / (k - 3) IS NULL", "1 / (k - 3) IS DISTINCT FROM 7", "1 / (k - 3)"] {
            let sql = format!("SELECT count({counted}) FROM (VALUES (1), (NULL), (3)) AS t(k)");
            let Err(error) = session.execute(&sql).await else { panic!("{device}: {sql} has an answer") };
            let error = error.to_string();
            assert!(error.contains("Divide by zero"), "{device}: {sql}: {error}");
        }
    }
}
