//! Windows: the simulated device gives DataFusion's answers, alone.
//!
//! Extents   of 1,000 rows or fewer: partitions span several
//! Ties      a total order, `id` last, makes each answer one; where rows tie, functions that all orders answer alike
//! Floats    of small magnitude, within 1e-9: DataFusion's running differences lose digits of others

use millpond::Fallback;

use crate::sql_features::Rig;

/// Functions of a place in the order, or of a value in another row: those of floats, decimals, dates and strings among
/// them.
const VALUES: &[&str] = &[
    "row_number()",
    "rank()",
    "dense_rank()",
    "percent_rank()",
    "cume_dist()",
    "ntile(4)",
    "ntile(1000)",
    "lag(i32)",
    "lag(s, 2)",
    "lag(d18, 3, CAST(7 AS DECIMAL(18, 4)))",
    "lead(day, 1)",
    "lead(i8, 2, CAST(5 AS TINYINT))",
    "lag(b)",
    "lag(f64, 0)",
    "lead(x, 1, 1.5)",
    "lag(u8, -1)",
    "lag(ts_ns, 1000000)",
    "lag(i32) IGNORE NULLS",
    "lag(s, 3) IGNORE NULLS",
    "lead(d9) IGNORE NULLS",
];

/// Functions of the rows of a frame.
const FRAMED: &[&str] = &[
    "first_value(s)",
    "last_value(d38)",
    "nth_value(i64, 2)",
    "nth_value(day, 3)",
    "first_value(b)",
    "first_value(s) IGNORE NULLS",
    "last_value(i16) IGNORE NULLS",
    "nth_value(x, 2) IGNORE NULLS",
    "nth_value(i64, -1)",
    "nth_value(s, -2)",
    "nth_value(x, -3) IGNORE NULLS",
    "count(*)",
    "count(s)",
    "sum(k)",
    "sum(i64)",
    "sum(u16)",
    "sum(d18)",
    "avg(d9)",
    "min(i8)",
    "max(i64)",
    "min(s)",
    "max(s)",
    "min(d38)",
    "max(day)",
    "min(u64)",
    "max(ts_ns)",
    "sum(CAST(w AS DOUBLE))",
    "avg(CAST(w AS REAL))",
    "avg(k)",
];

const FRAMES: &[&str] = &[
    "",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
    "ROWS BETWEEN 40 PRECEDING AND 3 FOLLOWING",
    "ROWS BETWEEN 5 PRECEDING AND 2 PRECEDING",
    "ROWS BETWEEN 1 FOLLOWING AND 9 FOLLOWING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "GROUPS BETWEEN 3 PRECEDING AND 2 PRECEDING",
    "GROUPS BETWEEN 2 FOLLOWING AND UNBOUNDED FOLLOWING",
    "GROUPS BETWEEN CURRENT ROW AND 4 FOLLOWING",
];

/// One query for a list of functions: each over the same window.
fn query(functions: &[&str], window: &str, rows: &str) -> String {
    let columns: Vec<String> =
        functions.iter().enumerate().map(|(at, f)| format!("{f} OVER ({window}) AS c{at}")).collect();
    format!("SELECT id, {} FROM t WHERE {rows} ORDER BY id", columns.join(", "))
}

#[tokio::test]
async fn places_and_other_rows_in_every_order() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for window in [
        "PARTITION BY k ORDER BY id",
        "PARTITION BY s, w ORDER BY i16 DESC NULLS LAST, id",
        "PARTITION BY b ORDER BY f64 NULLS FIRST, id DESC",
        "ORDER BY s DESC, id",
    ] {
        rig.same(&query(VALUES, window, "id < 1700")).await;
    }
    // A row for each partition, partitions of NULL, no rows, one row.
    rig.same(&query(VALUES, "PARTITION BY id ORDER BY k", "id < 70")).await;
    rig.same(&query(VALUES, "PARTITION BY nothing ORDER BY d38 NULLS FIRST, id", "id < 100")).await;
    rig.same(&query(VALUES, "PARTITION BY k ORDER BY id", "id < 0 AND k > 5")).await;
    rig.same(&query(VALUES, "PARTITION BY k ORDER BY id", "id = 17")).await;
    rig.finish();
}

#[tokio::test]
async fn every_frame_of_every_function() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for (at, frame) in FRAMES.iter().enumerate() {
        let order = ["id", "w NULLS FIRST, id", "s DESC NULLS LAST, id DESC", "d9, id"][at % 4];
        let partition = ["k", "b, w", "w"][at % 3];
        rig.same(&query(FRAMED, &format!("PARTITION BY {partition} ORDER BY {order} {frame}"), "id < 900")).await;
        // Few rows: frames reach over both ends.
        rig.same(&query(FRAMED, &format!("PARTITION BY k ORDER BY {order} {frame}"), "id < 60")).await;
    }
    rig.same(&query(FRAMED, "PARTITION BY k", "id < 0 AND k > 3")).await;
    rig.finish();
}

/// Peers: what all orders of tied rows answer alike.
#[tokio::test]
async fn tied_rows() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let functions = [
        "rank()",
        "dense_rank()",
        "percent_rank()",
        "cume_dist()",
        "count(*)",
        "sum(k)",
        "min(s)",
        "max(d38)",
        "avg(d9)",
    ];
    for frame in ["", "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING", "GROUPS BETWEEN 2 PRECEDING AND 1 FOLLOWING"]
    {
        for order in ["w", "s DESC NULLS LAST", "b NULLS FIRST, w DESC", "f64"] {
            rig.same(&query(&functions, &format!("PARTITION BY k ORDER BY {order} {frame}"), "id < 2500")).await;
        }
    }
    rig.same(&query(&["count(*)", "sum(i64)", "min(x)"], "PARTITION BY s", "true")).await;
    rig.same(&query(&["count(*)", "sum(i64)", "max(x)"], "", "true")).await;
    rig.finish();
}

#[tokio::test]
async fn distances_in_the_order() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let functions = ["count(*)", "sum(k)", "min(s)", "max(i64)"];
    for (key, near, far) in [
        ("k", "3", "40"),
        ("i8", "7", "100"),
        ("u8", "9", "300"),
        ("i64", "2", "50"),
        ("u64", "0", "30"),
        ("CAST(k AS DOUBLE)", "1.5", "6.25"),
        ("day", "INTERVAL '10 days'", "INTERVAL '1000 days'"),
        ("ts_s", "INTERVAL '3 hours'", "INTERVAL '900 days'"),
    ] {
        for (at, bounds) in [
            format!("{near} PRECEDING AND {far} FOLLOWING"),
            format!("{far} PRECEDING AND {near} PRECEDING"),
            format!("{near} FOLLOWING AND {far} FOLLOWING"),
            format!("UNBOUNDED PRECEDING AND {near} FOLLOWING"),
            format!("{near} PRECEDING AND CURRENT ROW"),
        ]
        .iter()
        .enumerate()
        {
            let direction = ["", "DESC", "NULLS FIRST", "DESC NULLS LAST", "DESC NULLS FIRST"][at];
            let window = format!("PARTITION BY w ORDER BY {key} {direction} RANGE BETWEEN {bounds}");
            rig.same(&query(&functions, &window, "id > 9 AND id < 700")).await;
        }
    }
    rig.finish();
}

#[tokio::test]
async fn windows_share_a_sort() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let sql = "SELECT id, rank() OVER (PARTITION BY k ORDER BY w) AS a, sum(d9) OVER (PARTITION BY k ORDER BY w, id) AS b, \
               count(*) OVER (PARTITION BY k) AS c, lag(s) OVER (PARTITION BY k ORDER BY w, id) AS d FROM t ORDER BY id";
    rig.same(sql).await;
    let text = crate::support::plan_text(&rig.sim, sql).await;
    assert_eq!(text.matches("DeviceWindowExec").count(), 1, "{text}");
    assert_eq!(text.matches("SortExec").count(), 1, "only that of the result: {text}");
    // Other orders, another partition, results of windows as arguments and keys of others.
    rig.same(
        "SELECT id, row_number() OVER (ORDER BY id) AS a, row_number() OVER (ORDER BY id DESC) AS b, \
         sum(k) OVER (PARTITION BY w ORDER BY s, id) AS c, min(k) OVER (PARTITION BY s) AS d FROM t ORDER BY id",
    )
    .await;
    rig.same(
        "SELECT id, sum(r) OVER (PARTITION BY s ORDER BY r, id) FROM \
         (SELECT id, s, rank() OVER (PARTITION BY s ORDER BY w) AS r FROM t) ORDER BY id",
    )
    .await;
    rig.finish();
}

#[tokio::test]
async fn windows_among_other_operators() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT * FROM (SELECT id, k, row_number() OVER (PARTITION BY k ORDER BY i64, id) AS n FROM t) WHERE n <= 3 ORDER BY id",
        "SELECT * FROM (SELECT id, s, rank() OVER (PARTITION BY s ORDER BY w DESC) AS n FROM t) WHERE n < 3 ORDER BY id LIMIT 50",
        "SELECT k, sum(x), rank() OVER (ORDER BY sum(d9) DESC, k) FROM t GROUP BY k ORDER BY k",
        "SELECT k, w, sum(d9), rank() OVER (PARTITION BY w ORDER BY sum(d9) DESC, k) FROM t GROUP BY ROLLUP (k, w) ORDER BY w, k, 3",
        "SELECT a.id, n FROM t a JOIN (SELECT id, ntile(7) OVER (ORDER BY id) AS n FROM t) b ON a.id = b.id WHERE a.k > 3 ORDER BY a.id",
        "SELECT id, k, lag(id) OVER (PARTITION BY k ORDER BY id) FROM t ORDER BY k, id",
        "SELECT k, id, count(*) OVER (PARTITION BY k ORDER BY id) AS n FROM t ORDER BY k, id LIMIT 20",
        "SELECT row_number() OVER () AS n, id FROM (SELECT id FROM t ORDER BY k, id LIMIT 30)",
        "SELECT n, count(*) FROM (SELECT dense_rank() OVER (PARTITION BY b ORDER BY k) AS n FROM t) GROUP BY n ORDER BY n",
        "SELECT sum(k) OVER (PARTITION BY w ORDER BY id) AS v FROM t UNION ALL SELECT k FROM t ORDER BY v",
        "SELECT id, sum(k + 1) OVER (PARTITION BY k % 3, upper(s) ORDER BY i32 + 1, id) AS v FROM t WHERE i32 < 1000 ORDER BY id",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// DataFusion finds the first rows of each partition without a whole sort if this is configured.
#[tokio::test]
async fn first_rows_of_each_partition() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for session in [&rig.cpu, &rig.sim] {
        let setting = "SET datafusion.optimizer.enable_window_topn = true";
        session.context().sql(setting).await.expect("the option is taken");
    }
    for (function, keys) in [("row_number()", "i64, id"), ("rank()", "w DESC NULLS LAST")] {
        rig.same(&format!(
            "SELECT * FROM (SELECT id, k, s, {function} OVER (PARTITION BY k, b ORDER BY {keys}) AS n FROM t) WHERE n <= 2 ORDER BY id"
        ))
        .await;
    }
    rig.finish();
}

/// FILTER is a part of the argument on the device.
#[tokio::test]
async fn filters_of_windows() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let functions = [
        "count(*) FILTER (WHERE b)",
        "count(s) FILTER (WHERE k > 5)",
        "sum(k) FILTER (WHERE s LIKE 'a%' OR w IS NULL)",
        "avg(d9) FILTER (WHERE false)",
        "min(s) FILTER (WHERE w = 1)",
        "max(day) FILTER (WHERE i8 > 0)",
    ];
    for frame in
        ["", "ROWS BETWEEN 5 PRECEDING AND 1 FOLLOWING", "GROUPS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"]
    {
        rig.same(&query(&functions, &format!("PARTITION BY w ORDER BY id {frame}"), "id < 500")).await;
    }
    rig.finish();
}

#[tokio::test]
async fn variances_of_frames() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let functions = [
        "var_pop(CAST(k AS DOUBLE))",
        "var_samp(CAST(k AS DOUBLE))",
        "stddev(CAST(w AS DOUBLE))",
        "stddev_pop(CAST(k AS DOUBLE))",
    ];
    for frame in [
        "",
        "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
        "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    ] {
        rig.same(&query(&functions, &format!("PARTITION BY w ORDER BY id {frame}"), "id < 800")).await;
    }
    rig.finish();
}

/// Sums of a frame alone: DataFusion takes off what leaves the frame, and never gets rid of a NaN.
#[tokio::test]
async fn floats_of_a_frame_do_not_depend_on_those_before() {
    let rig = Rig::with_partitions(Fallback::Error, 1).await;
    let sql = "SELECT id, sum(v) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM \
               (SELECT id, CASE WHEN id = 3 THEN CAST('NaN' AS DOUBLE) WHEN id = 6 THEN 1e300 ELSE CAST(id AS DOUBLE) END AS v \
                FROM t WHERE id < 12) ORDER BY id";
    let result = rig.sim.execute(sql).await.expect("it runs");
    let mut sums = Vec::new();
    for batch in &result.batches {
        let column = batch.column(1).as_any().downcast_ref::<millpond::datafusion::arrow::array::Float64Array>();
        sums.extend(column.expect("doubles").iter().flatten());
    }
    let nan = |row: usize| row == 3 || row == 4;
    let expected: Vec<f64> = (0..12)
        .map(|row| match row {
            0 => 0.0,
            6 | 7 => 1e300,
            row => (2 * row - 1) as f64,
        })
        .collect();
    for (row, (sum, expected)) in sums.iter().zip(&expected).enumerate() {
        assert!(if nan(row) { sum.is_nan() } else { (sum - expected).abs() <= 1e-9 * expected.abs() }, "{row}: {sum}");
    }
    assert_eq!((sums.len(), result.report.notes.len()), (12, 0));
}

#[tokio::test]
async fn small_extents_texts_and_seeds() {
    for settings in [
        &["millpond.batch_rows = 3"][..],
        &["millpond.debug_dictionary_values = 3"],
        &["millpond.batch_rows = 100", "millpond.debug_sim_seed = 7"],
        &["millpond.batch_rows = 30", "millpond.debug_sim_seed = 12345"],
    ] {
        let mut rig = Rig::with_partitions(Fallback::Error, 2).await;
        for setting in settings {
            rig.set(setting).await;
        }
        let functions = ["rank()", "lag(s)", "sum(k)", "count(s)", "first_value(s) IGNORE NULLS", "max(d18)"];
        rig.same(&query(&functions, "PARTITION BY w ORDER BY s, id", "id < 200")).await;
        rig.same(&query(&functions, "PARTITION BY s ORDER BY id ROWS BETWEEN 9 PRECEDING AND 2 FOLLOWING", "id < 200"))
            .await;
        rig.finish();
    }
}

/// The CPU takes over when memory is short.
#[tokio::test]
async fn little_memory() {
    let rig = Rig::with_partitions(Fallback::Allow, 2).await;
    rig.set("millpond.memory_limit_bytes = 2000000").await;
    let sql =
        "SELECT key, sum(value) OVER (PARTITION BY key % 7 ORDER BY key, value) AS s FROM many ORDER BY s, key, value";
    let report = rig.run(sql).await;
    assert!(report.is_ok() || report.as_ref().is_err_and(|why| why == "no kernel was launched"), "{report:?}");
}

#[tokio::test]
async fn what_stays_on_the_cpu_has_a_reason() {
    let mut rig = Rig::with_partitions(Fallback::Allow, 2).await;
    let window = "PARTITION BY k ORDER BY id";
    for (function, reason) in [
        ("count(s, k)", "several arguments"),
        ("lead(i32, 2) IGNORE NULLS", "loses count"),
        ("lag(s, 1, 'none')", "the type is not lowered"),
        ("avg(d30)", "not lowered"),
    ] {
        rig.falls_back(&format!("SELECT id, {function} OVER ({window}) FROM t WHERE k > 2 ORDER BY id"), reason).await;
    }
    rig.set("millpond.deterministic_floats = true").await;
    rig.falls_back(
        &format!("SELECT id, sum(x) OVER ({window}) FROM t WHERE k > 2 ORDER BY id"),
        "deterministic_floats",
    )
    .await;
    rig.finish();
}
