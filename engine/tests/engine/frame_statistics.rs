//! Statistics of pairs, variances of distinct values and joined texts in windows: the simulated device gives
//! DataFusion's answers, alone.
//!
//! Pairs    NULLs on either side, frames without pairs, of one, of equal values
//! Sliding  DataFusion takes off what leaves a frame, and a rest stays: here it is small, and never of equal values
//! Texts    short ones, which lie in their view, and long ones; NULLs, empty texts, none between

use millpond::Fallback;

use crate::frames::{FROM_START, ORDERS, SLIDING, query};
use crate::sql_features::Rig;

/// A number that is added makes rounding next to nothing next to something.
const PAIRS: &[&str] = &[
    "1000 + covar_pop(CAST(k AS DOUBLE), CAST(w AS DOUBLE))",
    "1000 + covar_samp(k, w)",
    "1000 + covar(id, i8)",
    "1000 + corr(CAST(k AS DOUBLE), CAST(w AS DOUBLE))",
    "1000 + corr(id, i16)",
    "1000 + regr_slope(k, id)",
    "1000 + regr_intercept(k, id)",
    "regr_count(k, w)",
    "1000 + regr_r2(w, id)",
    "1000 + regr_avgx(k, w)",
    "1000 + regr_avgy(k, w)",
    "1000 + regr_sxx(k, w)",
    "1000 + regr_syy(k, w)",
    "1000 + regr_sxy(k, id)",
    "1000 + regr_slope(CAST(nothing AS DOUBLE), id)",
];

#[tokio::test]
async fn statistics_of_pairs_from_the_start() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for (at, frame) in FROM_START.iter().enumerate() {
        let (order, partition) = (ORDERS[at % 3], ["k", "b, w", "w"][at % 3]);
        rig.same(&query(PAIRS, &format!("PARTITION BY {partition} ORDER BY {order} {frame}"), "id < 500")).await;
    }
    rig.same(&query(PAIRS, "PARTITION BY w", "id < 300")).await;
    rig.same(&query(PAIRS, "", "id < 300")).await;
    rig.same(&query(PAIRS, "PARTITION BY id", "id < 60")).await;
    rig.same(&query(PAIRS, "PARTITION BY k ORDER BY id", "id = 17")).await;
    rig.same(&query(PAIRS, "PARTITION BY k ORDER BY id", "id < 0 AND k > 5")).await;
    rig.finish();
}

#[tokio::test]
async fn statistics_of_pairs_that_slide() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let pairs = [
        "1000 + covar_pop(id * id, id)",
        "1000 + covar_samp(id, id * id)",
        "1000 + corr(id * id, id)",
        "1000 + regr_slope(id * id, id)",
        "regr_count(k, w)",
        "1000 + regr_r2(id * id, id)",
        "1000 + regr_avgx(k, w)",
        "1000 + regr_avgy(k, w)",
        "1000 + regr_sxx(k, id)",
        "1000 + regr_syy(id, k)",
        "1000 + regr_sxy(id, id * id)",
    ];
    for (at, frame) in SLIDING.iter().enumerate() {
        let (order, partition) = (ORDERS[at % 3], ["k", "w", "b, w"][at % 3]);
        rig.same(&query(&pairs, &format!("PARTITION BY {partition} ORDER BY {order} {frame}"), "id < 300")).await;
    }
    rig.finish();
}

/// DataFusion leaves a rest where all values of a sliding frame are equal: the oracle is an aggregate of its own for
/// each row.
#[tokio::test]
async fn equal_values_in_a_frame_that_slides() {
    let rig = Rig::with_partitions(Fallback::Error, 2).await;
    let rows = "(SELECT id, CASE WHEN id % 12 < 6 THEN 0.1 ELSE id * 0.3 END AS x, CAST(id % 5 AS DOUBLE) AS y FROM t WHERE id < 90)";
    let window = "OVER (ORDER BY id ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)";
    let slid =
        format!("SELECT id, regr_slope(y, x) {window} AS s, 1 + regr_sxx(y, x) {window} AS q FROM {rows} ORDER BY id");
    let each = format!(
        "SELECT a.id, regr_slope(b.y, b.x) AS s, 1 + regr_sxx(b.y, b.x) AS q FROM {rows} a JOIN {rows} b \
         ON b.id BETWEEN a.id - 3 AND a.id GROUP BY a.id ORDER BY a.id"
    );
    let windows = rig.sim.execute(&slid).await.expect("an answer");
    let aggregates = rig.cpu.execute(&each).await.expect("an answer");
    let [expected, given] =
        [&aggregates, &windows].map(|answer| crate::answers::Answer::new(&answer.schema, &answer.batches));
    assert_eq!(expected.difference(&given, true), None);
    assert!(windows.report.notes.is_empty() && windows.report.reasons.is_empty());
    rig.finish();
}

#[tokio::test]
async fn variances_of_distinct_values() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let functions = [
        "var_pop(DISTINCT k)",
        "var_samp(DISTINCT w)",
        "var(DISTINCT i8)",
        "var_pop(DISTINCT CAST(nothing AS DOUBLE))",
        "var_pop(DISTINCT k) FILTER (WHERE b)",
    ];
    for (at, frame) in FROM_START.iter().enumerate() {
        let (order, partition) = (ORDERS[at % 3], ["k", "b, w", "w"][at % 3]);
        rig.same(&query(&functions, &format!("PARTITION BY {partition} ORDER BY {order} {frame}"), "id < 400")).await;
    }
    rig.same(&query(&functions, "PARTITION BY b", "id < 200")).await;
    rig.finish();
}

const TEXTS: &[&str] = &[
    "string_agg(s, ', ')",
    "string_agg(s, '')",
    "string_agg(s, NULL)",
    "string_agg(l, '-')",
    "string_agg(upper(s), ' und ')",
    "string_agg(CASE WHEN k > 3 THEN '' END, '')",
    "string_agg(CAST(NULL AS VARCHAR), '-')",
    "string_agg(s, '/') FILTER (WHERE b)",
];

#[tokio::test]
async fn texts_of_frames() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for (at, frame) in FROM_START.iter().enumerate() {
        let (order, partition) = (ORDERS[at % 3], ["k", "b, w", "w"][at % 3]);
        rig.same(&query(TEXTS, &format!("PARTITION BY {partition} ORDER BY {order} {frame}"), "id < 200")).await;
    }
    rig.same(&query(TEXTS, "PARTITION BY id", "id < 60")).await;
    rig.same(&query(TEXTS, "PARTITION BY k ORDER BY id", "id = 17")).await;
    rig.same(&query(TEXTS, "PARTITION BY k ORDER BY id", "id < 0 AND k > 5")).await;
    rig.finish();
}

/// Texts of frames go on as others do: compared, cut, grouped and ordered.
#[tokio::test]
async fn texts_of_frames_below_other_operators() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT a, count(*) FROM (SELECT substr(string_agg(s, '-') OVER (PARTITION BY k ORDER BY id), 1, 6) AS a FROM t WHERE id < 200) \
         GROUP BY a ORDER BY a",
        "SELECT id, a FROM (SELECT id, string_agg(s, '-') OVER (PARTITION BY k ORDER BY id ROWS UNBOUNDED PRECEDING) AS a FROM t \
         WHERE id < 200) WHERE a LIKE '%a%' ORDER BY id DESC LIMIT 20",
        "SELECT id, a, row_number() OVER (PARTITION BY w ORDER BY id) FROM (SELECT id, w, string_agg(s, '-') OVER (PARTITION BY k) AS a \
         FROM t WHERE k = 3 AND id < 90) ORDER BY id",
    ] {
        rig.same(sql).await;
    }
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
            ["string_agg(s, '; ')", "string_agg(s || l, '')", "corr(k, id)", "regr_count(k, w)", "var_pop(DISTINCT k)"];
        for frame in ["", "ROWS BETWEEN UNBOUNDED PRECEDING AND 2 FOLLOWING"] {
            rig.same(&query(&functions, &format!("PARTITION BY w ORDER BY id {frame}"), "id < 150")).await;
        }
        rig.finish();
    }
}

#[tokio::test]
async fn what_stays_on_the_cpu_has_a_reason() {
    let rig = Rig::with_partitions(Fallback::Allow, 2).await;
    // DataFusion takes no text, and no distinct value of a variance, off a frame: what it refuses stays its error.
    for (function, words) in [
        ("string_agg(s, '-')", "retract_batch"),
        ("var_pop(DISTINCT k)", "retract_batch"),
        ("stddev(DISTINCT k)", "not available"),
    ] {
        let sql = query(&[function], "ORDER BY id ROWS 3 PRECEDING", "k > 2 AND id < 50");
        for session in [&rig.cpu, &rig.sim] {
            let error = session.execute(&sql).await.err().map(|error| error.strip_backtrace()).unwrap_or_default();
            assert!(error.contains(words), "{sql}: {error}");
        }
    }
    rig.finish();
    let mut rig = Rig::with_partitions(Fallback::Allow, 2).await;
    for (function, reason) in
        [("string_agg(DISTINCT s, '-')", "distinct values is not lowered"), ("corr(DISTINCT k, w)", "distinct values")]
    {
        let sql = format!(
            "SELECT id, length(CAST({function} OVER (PARTITION BY id) AS VARCHAR)) AS v FROM t WHERE k > 2 AND id < 50"
        );
        rig.falls_back(&sql, reason).await;
    }
    rig.finish();
}
