//! Medians and percentiles of frames: the simulated device gives DataFusion's answers, alone.
//!
//! Frames   of even and odd numbers of values, of one, of NULLs alone, without rows; whole partitions, growing ones,
//!          sliding ones
//! Values   floats of both widths, NaN and infinities among them, integers, decimals of all widths up to 38 digits

use millpond::Fallback;

use crate::frames::{FROM_START, ORDERS, SLIDING, query};
use crate::sql_features::Rig;

const MEDIANS: &[&str] = &[
    "median(x)",
    "median(f32)",
    "median(f64)",
    "median(i8)",
    "median(i64)",
    "median(u64)",
    "median(d9)",
    "median(d18)",
    "median(d38)",
    "median(k)",
    "median(id)",
    "median(CAST(nothing AS DOUBLE))",
    "percentile_cont(x, 0.25)",
    "percentile_cont(x, 0.9)",
    "quantile_cont(f64, 0.333333333)",
    "percentile_cont(f32, 0.75)",
    "percentile_cont(w, 0.999)",
    "percentile_cont(i32, 0)",
    "percentile_cont(d9, 1.0)",
];

#[tokio::test]
async fn medians_of_frames_from_the_start() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for (at, frame) in FROM_START.iter().enumerate() {
        let (order, partition) = (ORDERS[at % 3], ["k", "b, w", "w"][at % 3]);
        rig.same(&query(MEDIANS, &format!("PARTITION BY {partition} ORDER BY {order} {frame}"), "id < 500")).await;
    }
    rig.same(&query(MEDIANS, "PARTITION BY w", "id < 300")).await;
    // The whole table, a row for each partition, one row, none.
    rig.same(&query(MEDIANS, "", "id < 300")).await;
    rig.same(&query(MEDIANS, "PARTITION BY id", "id < 60")).await;
    rig.same(&query(MEDIANS, "PARTITION BY k ORDER BY id", "id = 17")).await;
    rig.same(&query(MEDIANS, "PARTITION BY k ORDER BY id", "id < 0 AND k > 5")).await;
    rig.finish();
}

#[tokio::test]
async fn medians_of_frames_that_slide() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for (at, frame) in SLIDING.iter().enumerate() {
        let (order, partition) = (ORDERS[at % 3], ["k", "w", "b, w"][at % 3]);
        rig.same(&query(MEDIANS, &format!("PARTITION BY {partition} ORDER BY {order} {frame}"), "id < 500")).await;
        rig.same(&query(MEDIANS, &format!("ORDER BY {order} {frame}"), "id < 90")).await;
    }
    for frame in ["RANGE BETWEEN 20 PRECEDING AND CURRENT ROW", "RANGE BETWEEN 3 FOLLOWING AND 90 FOLLOWING"] {
        rig.same(&query(MEDIANS, &format!("PARTITION BY b ORDER BY i8 DESC {frame}"), "id < 300")).await;
    }
    rig.finish();
}

/// In an order that descends a percentile is counted from below all the same.
#[tokio::test]
async fn medians_in_an_order_that_descends() {
    let mut rig = Rig::with_partitions(Fallback::Error, 2).await;
    let functions = ["percentile_cont(x, 0.2)", "percentile_cont(id, 0.2)", "median(id)"];
    rig.same(&query(&functions, "ORDER BY id DESC", "id < 200")).await;
    rig.same(&query(&functions, "ORDER BY id DESC ROWS 6 PRECEDING", "id < 200")).await;
    rig.finish();
}

#[tokio::test]
async fn medians_of_the_rows_that_a_filter_keeps() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let functions = [
        "median(x) FILTER (WHERE b)",
        "median(id) FILTER (WHERE w IS NULL OR k > 3)",
        "percentile_cont(f64, 0.4) FILTER (WHERE k > 2)",
        "percentile_cont(i16, 0.4) FILTER (WHERE k > 2)",
        "median(d18) FILTER (WHERE false)",
        "median(x)",
    ];
    for frame in ["", "ROWS BETWEEN 5 PRECEDING AND 1 FOLLOWING", "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"] {
        rig.same(&query(&functions, &format!("PARTITION BY w ORDER BY id {frame}"), "id < 400")).await;
    }
    rig.finish();
}

/// DataFusion slides percentiles of distinct values, and medians of them in no frame that loses rows.
#[tokio::test]
async fn medians_of_distinct_values() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let growing = [
        "median(DISTINCT k)",
        "median(DISTINCT d9)",
        "median(DISTINCT f64)",
        "percentile_cont(DISTINCT w, 0.3)",
        "median(k)",
    ];
    for (at, frame) in FROM_START.iter().enumerate() {
        let (order, partition) = (ORDERS[at % 3], ["k", "b, w", "w"][at % 3]);
        rig.same(&query(&growing, &format!("PARTITION BY {partition} ORDER BY {order} {frame}"), "id < 500")).await;
    }
    let to_end = ["percentile_cont(DISTINCT w, 0.3)", "percentile_cont(DISTINCT i8, 0.8) FILTER (WHERE b)"];
    for frame in
        ["ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING", "GROUPS BETWEEN 2 FOLLOWING AND UNBOUNDED FOLLOWING"]
    {
        rig.same(&query(&to_end, &format!("PARTITION BY b ORDER BY s, id {frame}"), "id < 300")).await;
    }
    rig.finish();
    let mut rig = Rig::with_partitions(Fallback::Allow, 2).await;
    let sliding = query(&["percentile_cont(DISTINCT w, 0.3)"], "ORDER BY id ROWS 9 PRECEDING", "k > 2 AND id < 90");
    rig.falls_back(&sliding, "distinct values of a frame that slides").await;
    rig.finish();
}

/// DataFusion's errors, with its messages.
#[tokio::test]
async fn what_datafusion_refuses() {
    let rig = Rig::with_partitions(Fallback::Allow, 2).await;
    for (functions, words) in
        [(["median(DISTINCT k)"], "retract_batch"), (["percentile_cont(x, 1.5)"], "must be between 0.0 and 1.0")]
    {
        let sql = query(&functions, "ORDER BY id ROWS 9 PRECEDING", "id < 90");
        for session in [&rig.cpu, &rig.sim] {
            let error = session.execute(&sql).await.err().map(|error| error.strip_backtrace()).unwrap_or_default();
            assert!(error.contains(words), "{sql}: {error}");
        }
    }
    rig.finish();
}

#[tokio::test]
async fn several_arguments_small_extents_and_seeds() {
    for settings in [
        &["millpond.batch_rows = 3"][..],
        &["millpond.batch_rows = 100", "millpond.debug_sim_seed = 7"],
        &["millpond.batch_rows = 30", "millpond.debug_sim_seed = 12345"],
    ] {
        let mut rig = Rig::with_partitions(Fallback::Error, 2).await;
        for setting in settings {
            rig.set(setting).await;
        }
        // One argument after another, and in between; a partition of its own beside them.
        let functions =
            ["median(x)", "percentile_cont(x, 0.1)", "sum(k)", "median(d18)", "median(x)", "median(DISTINCT k)"];
        for frame in ["", "ROWS BETWEEN UNBOUNDED PRECEDING AND 2 FOLLOWING"] {
            rig.same(&query(&functions, &format!("PARTITION BY w ORDER BY id {frame}"), "id < 150")).await;
        }
        rig.same(
            "SELECT id, median(x) OVER (PARTITION BY k ORDER BY id), median(x) OVER (ORDER BY id ROWS 7 PRECEDING), \
             percentile_cont(DISTINCT k, 0.5) OVER (PARTITION BY w), percentile_cont(DISTINCT k, 0.5) OVER (PARTITION BY b) \
             FROM t WHERE id < 150 ORDER BY id",
        )
        .await;
        rig.finish();
    }
}
