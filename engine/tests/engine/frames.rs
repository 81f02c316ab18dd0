//! Distinct aggregates and lists over window frames. The simulated device returns DataFusion's answers without
//! fallbacks, except where a test says otherwise.
//!
//! Order     total, `id` last: which row of a value counts does not show, but the frames do
//! DataFusion  takes distinct values off a frame for COUNT, and for SUM of 64 bits; the others in frames from the start
//!             of the partition

use millpond::Fallback;

use crate::sql_features::Rig;

/// Of every type that has a form: numbers narrow and wide, floats with NaN and zeros of both signs, decimals, dates,
/// strings, booleans.
const COUNTS: &[&str] = &[
    "count(DISTINCT k)",
    "count(DISTINCT s)",
    "count(DISTINCT i64)",
    "count(DISTINCT f64)",
    "count(DISTINCT d38)",
    "count(DISTINCT day)",
    "count(DISTINCT b)",
    "count(DISTINCT nothing)",
    "count(DISTINCT id)",
    "count(DISTINCT upper(s))",
    "sum(DISTINCT k)",
    "sum(DISTINCT w)",
    "sum(DISTINCT i64)",
    "min(DISTINCT s)",
    "max(DISTINCT d18)",
];

/// Functions from which DataFusion cannot remove values: their frames only grow.
const GROWING: &[&str] = &[
    "sum(DISTINCT u16)",
    "sum(DISTINCT d18)",
    "sum(DISTINCT CAST(u8 AS DOUBLE) / 4)",
    "avg(DISTINCT k)",
    "avg(DISTINCT d9)",
];

/// From the start of the partition.
pub const FROM_START: &[&str] = &[
    "",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND 3 PRECEDING",
    "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "GROUPS BETWEEN UNBOUNDED PRECEDING AND 2 FOLLOWING",
];

pub const SLIDING: &[&str] = &[
    "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
    "ROWS BETWEEN 40 PRECEDING AND 3 FOLLOWING",
    "ROWS BETWEEN 5 PRECEDING AND 2 PRECEDING",
    "ROWS BETWEEN 1 FOLLOWING AND 9 FOLLOWING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "GROUPS BETWEEN 3 PRECEDING AND 2 PRECEDING",
    "GROUPS BETWEEN CURRENT ROW AND 4 FOLLOWING",
    "GROUPS BETWEEN 2 FOLLOWING AND UNBOUNDED FOLLOWING",
];

/// One query for a list of functions: each over the same window.
pub fn query(functions: &[&str], window: &str, rows: &str) -> String {
    let columns: Vec<String> =
        functions.iter().enumerate().map(|(at, f)| format!("{f} OVER ({window}) AS c{at}")).collect();
    format!("SELECT id, {} FROM t WHERE {rows} ORDER BY id", columns.join(", "))
}

pub const ORDERS: [&str; 3] = ["id", "w NULLS FIRST, id", "s DESC NULLS LAST, id DESC"];

#[tokio::test]
async fn distinct_values_in_frames_from_the_start() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let all = [COUNTS, GROWING].concat();
    for (at, frame) in FROM_START.iter().enumerate() {
        let (order, partition) = (ORDERS[at % 3], ["k", "b, w", "w"][at % 3]);
        rig.same(&query(&all, &format!("PARTITION BY {partition} ORDER BY {order} {frame}"), "id < 700")).await;
    }
    rig.same(&query(&all, "PARTITION BY w", "id < 300")).await;
    // The whole table, a row for each partition, one row, none.
    rig.same(&query(&all, "", "id < 300")).await;
    rig.same(&query(&all, "PARTITION BY id", "id < 60")).await;
    rig.same(&query(&all, "PARTITION BY k ORDER BY id", "id = 17")).await;
    rig.same(&query(&all, "PARTITION BY k ORDER BY id", "id < 0 AND k > 5")).await;
    rig.finish();
}

#[tokio::test]
async fn distinct_values_in_frames_that_slide() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    rig.set_both("millpond.integer_overflow = 'wrap'").await;
    for (at, frame) in SLIDING.iter().enumerate() {
        let (order, partition) = (ORDERS[at % 3], ["k", "w", "b, w"][at % 3]);
        rig.same(&query(COUNTS, &format!("PARTITION BY {partition} ORDER BY {order} {frame}"), "id < 700")).await;
        rig.same(&query(COUNTS, &format!("ORDER BY {order} {frame}"), "id < 90")).await;
    }
    rig.same(&query(COUNTS, "PARTITION BY k ORDER BY id ROWS 3 PRECEDING", "id < 0 AND k > 5")).await;
    rig.same(&query(COUNTS, "PARTITION BY k ORDER BY id ROWS 3 PRECEDING", "id = 17")).await;
    rig.finish();
}

/// Sums of distinct integers that leave the frame again: on the device where their range says that they fit.
#[tokio::test]
async fn distinct_sums_that_may_overflow_are_the_cpus() {
    let sum = |of: &str| format!("SELECT id, sum(DISTINCT {of}) OVER (ORDER BY id ROWS 3 PRECEDING) FROM t");
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    rig.same(&sum("i32")).await;
    rig.finish();
    let mut rig = Rig::with_partitions(Fallback::Allow, 3).await;
    rig.falls_back(&format!("{} WHERE i64 BETWEEN -5 AND 5", sum("i64")), "SET millpond.integer_overflow = 'wrap'")
        .await;
    rig.finish();
}

/// Distances: empty frames between others, NULLs at both ends, keys at the ends of their type.
#[tokio::test]
async fn distinct_values_at_distances() {
    let mut rig = Rig::with_partitions(Fallback::Error, 2).await;
    for order in ["i8", "i8 DESC", "i8 NULLS FIRST", "i8 DESC NULLS LAST"] {
        for frame in [
            "RANGE BETWEEN 20 PRECEDING AND CURRENT ROW",
            "RANGE BETWEEN 9 PRECEDING AND 4 PRECEDING",
            "RANGE BETWEEN 3 FOLLOWING AND 90 FOLLOWING",
            "RANGE BETWEEN 100 FOLLOWING AND UNBOUNDED FOLLOWING",
            "RANGE BETWEEN 100 PRECEDING AND 100 PRECEDING",
        ] {
            let functions = ["count(DISTINCT k)", "count(DISTINCT s)", "sum(DISTINCT w)", "count(*)"];
            rig.same(&query(&functions, &format!("PARTITION BY b ORDER BY {order} {frame}"), "id < 400")).await;
        }
    }
    rig.finish();
}

#[tokio::test]
async fn distinct_values_of_those_that_a_filter_keeps() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let functions = [
        "count(DISTINCT k) FILTER (WHERE b)",
        "sum(DISTINCT k) FILTER (WHERE w IS NULL OR k > 3)",
        "count(DISTINCT s) FILTER (WHERE false)",
    ];
    for frame in ["", "ROWS BETWEEN 5 PRECEDING AND 1 FOLLOWING", "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"] {
        rig.same(&query(&functions, &format!("PARTITION BY w ORDER BY id {frame}"), "id < 400")).await;
    }
    rig.finish();
}

/// Lists of numbers, strings, dates and booleans, with NULLs and without them.
const LISTS: &[&str] = &[
    "array_agg(k)",
    "array_agg(s)",
    "array_agg(day)",
    "array_agg(b)",
    "array_agg(d38)",
    "array_agg(id)",
    "array_agg(k) IGNORE NULLS",
    "array_agg(s) IGNORE NULLS",
    "array_agg(nothing) IGNORE NULLS",
];

#[tokio::test]
async fn frames_as_lists() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for (at, frame) in FROM_START.iter().chain(SLIDING).enumerate() {
        let (order, partition) = (ORDERS[at % 3], ["k", "w", "b, w"][at % 3]);
        rig.same(&query(LISTS, &format!("PARTITION BY {partition} ORDER BY {order} {frame}"), "id < 200")).await;
        rig.same(&query(LISTS, &format!("ORDER BY {order} {frame}"), "id < 40")).await;
    }
    rig.same(&query(LISTS, "PARTITION BY k ORDER BY id", "id < 0 AND k > 5")).await;
    rig.same(&query(LISTS, "PARTITION BY k ORDER BY id", "id = 17")).await;
    rig.finish();
}

/// Lists of distinct values are in no order, so that they are sorted: on the host, which is the reason. NULL is a
/// value.
#[tokio::test]
async fn lists_of_distinct_values() {
    let mut rig = Rig::with_partitions(Fallback::Allow, 3).await;
    let lists = [
        "array_agg(DISTINCT k)",
        "array_agg(DISTINCT s)",
        "array_agg(DISTINCT day)",
        "array_agg(DISTINCT d38)",
        "array_agg(DISTINCT f64)",
        "array_agg(DISTINCT nothing)",
        "array_agg(DISTINCT id)",
        "array_agg(DISTINCT w) IGNORE NULLS",
        "array_agg(DISTINCT s) IGNORE NULLS",
        "array_agg(DISTINCT id) FILTER (WHERE k > 3)",
    ];
    let to_end =
        ["ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING", "GROUPS BETWEEN 2 FOLLOWING AND UNBOUNDED FOLLOWING"];
    for (at, frame) in FROM_START.iter().chain(&to_end).enumerate() {
        let (order, partition) = (ORDERS[at % 3], ["k", "w", "b, w"][at % 3]);
        let window = format!("PARTITION BY {partition} ORDER BY {order} {frame}");
        let columns: Vec<String> =
            lists.iter().enumerate().map(|(at, list)| format!("array_sort({list} OVER ({window})) AS c{at}")).collect();
        let sql = format!("SELECT id, {} FROM t WHERE id < 200 ORDER BY id", columns.join(", "));
        rig.falls_back(&sql, "leave the device before anything reads them").await;
    }
    rig.finish();
}

/// A filter leaves out what a list then does not hold: where NULLs count, only of columns that have none.
#[tokio::test]
async fn lists_of_the_rows_that_a_filter_keeps() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let functions = ["array_agg(id) FILTER (WHERE k > 3)", "array_agg(s) FILTER (WHERE w IS NULL OR b) IGNORE NULLS"];
    rig.same(&query(&functions, "PARTITION BY w ORDER BY id ROWS 4 PRECEDING", "id < 200")).await;
    rig.finish();
}

/// Lists pass through the operators above, including an order, a limit and a window.
#[tokio::test]
async fn lists_below_other_operators() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT id, l FROM (SELECT id, k, array_agg(s) OVER (ORDER BY id ROWS 2 PRECEDING) AS l FROM t WHERE id < 300) \
         WHERE k > 2 ORDER BY id DESC LIMIT 20",
        "SELECT id, l, row_number() OVER (PARTITION BY k ORDER BY id) AS n FROM \
         (SELECT id, k, array_agg(w) OVER (PARTITION BY k ORDER BY id DESC) AS l FROM t WHERE id < 200) ORDER BY id",
        "SELECT a.id, a.l, b.l FROM (SELECT id, array_agg(k) OVER (ORDER BY id ROWS 1 PRECEDING) AS l FROM t WHERE id < 90) a \
         JOIN (SELECT id, array_agg(s) IGNORE NULLS OVER (ORDER BY id ROWS 3 PRECEDING) AS l FROM t WHERE id < 70) b \
         ON a.id = b.id ORDER BY a.id",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// Functions that read list items run on the host, over the window's output.
#[tokio::test]
async fn lists_that_are_read() {
    let mut rig = Rig::with_partitions(Fallback::Allow, 2).await;
    let list = "array_agg(k) OVER (PARTITION BY w ORDER BY id ROWS 3 PRECEDING)";
    rig.falls_back(&format!("SELECT id, array_length({list}) AS n FROM t WHERE id < 90 ORDER BY id"), "lists").await;
    rig.finish();
}

/// Rows that lie too far, and a row's own value.
#[tokio::test]
async fn rows_beyond_every_partition() {
    let mut rig = Rig::with_partitions(Fallback::Error, 2).await;
    let functions = [
        "lead(k, 9223372036854775807, 0)",
        "lead(k, -9223372036854775808, 7)",
        "lag(i64, -9223372036854775808)",
        "lag(s, 9223372036854775807)",
        "lag(k, 5000000000, 3) IGNORE NULLS",
        "lag(k, 0, 7)",
        "lead(s, 0)",
        "lead(NULL, 0, false)",
        "nth_value(s, 0)",
        "nth_value(k, NULL)",
    ];
    rig.same(&query(&functions, "PARTITION BY k ORDER BY id", "id < 200")).await;
    rig.finish();
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
        let functions =
            ["count(DISTINCT s)", "count(DISTINCT k)", "sum(DISTINCT w)", "array_agg(s)", "array_agg(s) IGNORE NULLS"];
        for frame in
            ["", "ROWS BETWEEN 9 PRECEDING AND 2 FOLLOWING", "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"]
        {
            rig.same(&query(&functions, &format!("PARTITION BY w ORDER BY id {frame}"), "id < 150")).await;
        }
        rig.finish();
    }
}

#[tokio::test]
async fn what_stays_on_the_cpu_has_a_reason() {
    let mut rig = Rig::with_partitions(Fallback::Allow, 2).await;
    for (function, reason) in [
        ("array_agg(DISTINCT s)", "no rows in a row"),
        ("string_agg(DISTINCT s, '-')", "distinct values is not lowered"),
        ("array_agg(k) FILTER (WHERE b)", "FILTER"),
        ("approx_median(k)", "approximates nothing"),
    ] {
        let sql =
            format!("SELECT id, {function} OVER (PARTITION BY w) AS v FROM t WHERE k > 2 AND id < 50 ORDER BY id");
        let sql = sql.replace(
            "array_agg(DISTINCT s) OVER (PARTITION BY w) AS v",
            "array_length(array_agg(DISTINCT s) OVER (PARTITION BY w ORDER BY id ROWS 3 PRECEDING)) AS v",
        );
        rig.falls_back(&sql, reason).await;
    }
    rig.finish();
}
