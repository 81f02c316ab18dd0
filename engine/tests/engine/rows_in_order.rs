//! Aggregates over the rows of a group in an order: the simulated device gives DataFusion's answers, alone.
//!
//! Orders   by a key that no two rows share, so that one answer is right; ascending, descending, NULLs on either side,
//!          several keys
//! Values   numbers of every width, booleans, dates, decimals; strings with a dictionary and without; NULLs, NaN
//! Rows     none, one, several extents; left out by a filter, by IGNORE NULLS, by DISTINCT

use std::sync::Arc;

use millpond::Fallback;
use millpond::datafusion::arrow::array::{Int64Array, RecordBatch, StringArray};
use millpond::datafusion::datasource::MemTable;

use crate::sql_features::Rig;

#[tokio::test]
async fn a_value_at_a_place_from_either_end() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for column in ["x", "f32", "i8", "i64", "u64", "d9", "d38", "b", "day", "s", "l"] {
        rig.same(&format!("SELECT k, nth_value({column}, 2 ORDER BY id) FROM t WHERE id % 5 <> 2 GROUP BY k")).await;
        rig.same(&format!("SELECT w, nth_value({column}, -3 ORDER BY x DESC, id) FROM t GROUP BY w")).await;
    }
    for sql in [
        "SELECT nth_value(id, 1 ORDER BY id), nth_value(id, 40000 ORDER BY id), nth_value(s, -40000 ORDER BY id) FROM t",
        "SELECT nth_value(id, 3 ORDER BY s DESC NULLS LAST, l, id) FROM t",
        "SELECT k, nth_value(x, 2 ORDER BY id) FILTER (WHERE w > 0), nth_value(x, -1 ORDER BY id) FILTER (WHERE b) FROM t GROUP BY k",
        "SELECT nth_value(id, 2 ORDER BY id) FROM t WHERE id < 0",
        "SELECT k, nth_value(id, 2 ORDER BY id) FROM t WHERE id < 0 GROUP BY k",
        "SELECT k, nth_value(id, 2 ORDER BY id) FROM t WHERE id < 9 GROUP BY k",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

#[tokio::test]
async fn lists_in_an_order() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for column in ["x", "f32", "i8", "i64", "u64", "d9", "d38", "b", "day", "s", "l"] {
        rig.same(&format!("SELECT k, array_agg({column} ORDER BY id) FROM t WHERE id % 5 <> 2 GROUP BY k")).await;
        rig.same(&format!("SELECT array_agg({column} ORDER BY x DESC NULLS LAST, id DESC) FROM t WHERE id < 700"))
            .await;
    }
    for sql in [
        "SELECT k, array_agg(x ORDER BY id) FILTER (WHERE w > 0), array_agg(x ORDER BY id DESC), count(*), sum(w) FROM t GROUP BY k",
        "SELECT w, array_agg(s ORDER BY s DESC, l, id), array_agg(k ORDER BY s NULLS FIRST, id) FROM t GROUP BY w",
        "SELECT k, array_agg(k ORDER BY id) IGNORE NULLS, array_agg(s ORDER BY id) IGNORE NULLS FROM t GROUP BY k",
        "SELECT array_agg(id ORDER BY id) FROM t WHERE id < 0",
        "SELECT k, array_agg(id ORDER BY id) FROM t WHERE id < 0 GROUP BY k",
        "SELECT array_agg(id ORDER BY id) FILTER (WHERE id < 0), array_agg(s ORDER BY id) FROM t WHERE id < 40",
        "SELECT array_agg(id ORDER BY id) FROM t WHERE id = 7",
        "SELECT s, l, array_agg(upper(s) ORDER BY id), median(x) FROM t WHERE id < 900 GROUP BY s, l",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// A plan that runs again, with other constants too, has lists and texts of its own.
#[tokio::test]
async fn plans_run_again_with_other_constants() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for (rows, between, place) in [(100, "-", 2), (100, "-", 2), (900, ", ", 5), (0, "é", 1), (2400, "-", -3)] {
        for from in ["t", "(SELECT * FROM t WHERE b)"] {
            rig.same(&format!(
                "SELECT k, array_agg(id ORDER BY id), array_agg(s ORDER BY id) FROM {from} WHERE id < {rows} GROUP BY k"
            ))
            .await;
            rig.same(&format!(
                "SELECT w, string_agg(s, '{between}' ORDER BY id) FROM {from} WHERE id < {rows} GROUP BY w"
            ))
            .await;
            rig.same(&format!("SELECT w, nth_value(x, {place} ORDER BY id) FROM {from} WHERE id < {rows} GROUP BY w"))
                .await;
        }
    }
    rig.finish();
}

/// Two aggregates over equal rows, and one that is read twice.
#[tokio::test]
async fn lists_of_several_aggregates_are_told_apart() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "WITH a AS (SELECT k, array_agg(id ORDER BY id) AS ids FROM t GROUP BY k)
         SELECT x.k, x.ids, y.ids FROM a x JOIN a y ON x.k = y.k + 1",
        "SELECT x.k, x.ids, y.ids FROM (SELECT k, array_agg(id ORDER BY id) AS ids FROM t WHERE id < 300 GROUP BY k) x
         JOIN (SELECT k, array_agg(id ORDER BY id DESC) AS ids FROM t WHERE id < 400 GROUP BY k) y ON x.k = y.k",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// Lists go through whatever only carries them.
#[tokio::test]
async fn lists_are_sorted_filtered_joined_and_limited() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT k, array_agg(id ORDER BY id) AS ids FROM t GROUP BY k ORDER BY k DESC NULLS FIRST",
        "SELECT k, array_agg(s ORDER BY id) FROM t GROUP BY k HAVING count(*) > 20 AND sum(w) <> 3",
        "SELECT k, array_agg(id ORDER BY id) AS ids, k + 1 FROM t GROUP BY k ORDER BY k LIMIT 3",
        "SELECT k, array_agg(s ORDER BY id) AS texts FROM t GROUP BY k ORDER BY k OFFSET 2 LIMIT 4",
        "SELECT t.id, ids FROM t JOIN (SELECT k AS j, array_agg(id ORDER BY id) AS ids FROM t GROUP BY k) ON j = t.id",
        "SELECT t.id, ids FROM t LEFT JOIN (SELECT k AS j, array_agg(id ORDER BY id) AS ids FROM t GROUP BY k) ON j = t.id
         WHERE t.id < 50",
        "SELECT a.k, a.ids, b.ids FROM (SELECT k, array_agg(id ORDER BY id) AS ids FROM t GROUP BY k) a
         FULL JOIN (SELECT w AS k, array_agg(s ORDER BY id) AS ids FROM t GROUP BY w) b ON a.k = b.k",
        "SELECT b, w, array_agg(id ORDER BY id), grouping(b) FROM t WHERE id < 500 GROUP BY ROLLUP (b, w)",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// Readers of a list stay on the CPU, above the aggregation on the device.
#[tokio::test]
async fn what_looks_into_a_list_says_so() {
    let mut rig = Rig::with_partitions(Fallback::Allow, 3).await;
    let lists = "(SELECT k, array_agg(id ORDER BY id) AS ids FROM t GROUP BY k)";
    for sql in [
        format!("SELECT k, array_length(ids) FROM {lists}"),
        format!("SELECT k FROM {lists} WHERE ids IS NOT NULL"),
        format!("SELECT DISTINCT ids FROM {lists}"),
        format!("SELECT k, ids = ids FROM {lists}"),
        format!("SELECT k, CASE WHEN k > 3 THEN ids END FROM {lists}"),
        format!("SELECT a.k FROM {lists} a JOIN {lists} b ON a.ids = b.ids"),
        format!("SELECT ids, count(*) FROM {lists} GROUP BY ids"),
        format!("SELECT k FROM {lists} ORDER BY ids"),
        format!("SELECT k, ids FROM {lists} UNION ALL SELECT k, ids FROM {lists}"),
        format!("SELECT max(ids), count(ids) FROM {lists}"),
        format!("SELECT k, unnest(ids) FROM {lists}"),
    ] {
        if let Err(what) = rig.run(&sql).await {
            panic!("{sql}: {what}");
        }
    }
    for (sql, reason) in [
        (format!("SELECT k, array_length(ids) FROM {lists}"), "lists and structures that are made of rows"),
        (format!("SELECT ids, count(*) FROM {lists} GROUP BY ids"), "lists and structures that are made of rows"),
        (format!("SELECT k, unnest(ids) FROM {lists}"), "lists and structures that are made of rows"),
        (format!("SELECT k, ids FROM {lists} UNION ALL SELECT k, ids FROM {lists}"), "a union of lists"),
        (
            "SELECT array_agg(DISTINCT id ORDER BY id), nth_value(DISTINCT k, 2 ORDER BY k) FROM t WHERE id < 9".into(),
            "distinct values",
        ),
    ] {
        rig.falls_back(&sql, reason).await;
    }
    rig.finish();
}

#[tokio::test]
async fn texts_are_joined_in_an_order() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT k, string_agg(s, '-' ORDER BY id) FROM t GROUP BY k",
        "SELECT k, string_agg(s, ', ' ORDER BY x DESC, id), string_agg(l, '' ORDER BY x DESC, id) FROM t GROUP BY k",
        "SELECT string_agg(s, '|' ORDER BY s DESC NULLS FIRST, id) FROM t WHERE id < 900",
        "SELECT w, string_agg(s, '-' ORDER BY id) FILTER (WHERE b), string_agg(s, NULL ORDER BY id), count(s) FROM t GROUP BY w",
        "SELECT string_agg(s, '-' ORDER BY id) FROM t WHERE id < 0",
        "SELECT k, string_agg(s, '-' ORDER BY id) FROM t WHERE id < 0 GROUP BY k",
        "SELECT string_agg(s, '-' ORDER BY id) FILTER (WHERE id < 0), string_agg('é', 'ß') FROM t WHERE id < 40",
        "SELECT string_agg(CASE WHEN id < 0 THEN s END, '-' ORDER BY id) FROM t",
        "SELECT string_agg('', '|' ORDER BY id), string_agg('a', '' ORDER BY id) FROM t WHERE id < 3",
        "SELECT k, length(string_agg(s, '-' ORDER BY id)) FROM t GROUP BY k ORDER BY 2, 1",
        "SELECT upper(all_of), count(*) FROM (SELECT k, string_agg(s, '-' ORDER BY id) AS all_of FROM t WHERE id < 400 GROUP BY k)
         GROUP BY 1",
        "SELECT b, w, string_agg(s, '/' ORDER BY id), median(x) FROM t WHERE id < 500 GROUP BY GROUPING SETS ((b, w), (b), ())",
        "SELECT id, string_agg(s, '-') FROM t GROUP BY id",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

#[tokio::test]
async fn distinct_values_in_their_own_order() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT array_agg(DISTINCT k ORDER BY k) FROM t",
        "SELECT w, array_agg(DISTINCT k ORDER BY k DESC NULLS LAST), count(DISTINCT k), sum(x) FROM t WHERE x < 1e6 GROUP BY w",
        "SELECT w, array_agg(DISTINCT s ORDER BY s), array_agg(DISTINCT b ORDER BY b), count(*) FROM t GROUP BY w",
        "SELECT w, array_agg(DISTINCT k ORDER BY k) IGNORE NULLS, array_agg(s ORDER BY id) FROM t GROUP BY w",
        "SELECT w, string_agg(DISTINCT s, ',' ORDER BY s DESC), count(l), array_agg(l ORDER BY id) FROM t WHERE id < 400 GROUP BY w",
        "SELECT array_agg(DISTINCT w + k ORDER BY w + k), sum(DISTINCT w) FROM t",
        "SELECT array_agg(DISTINCT k ORDER BY k) FROM t WHERE id < 0",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// Without ORDER BY the rows of one partition are taken as they come.
#[tokio::test]
async fn rows_of_one_partition_keep_their_order() {
    for rows in [3, 30, 100, 5000] {
        let mut rig = Rig::with_partitions(Fallback::Error, 1).await;
        rig.set(&format!("millpond.batch_rows = {rows}")).await;
        let number = |row: i64| (row % 7 != 3).then_some(row * 37 % 101);
        let word =
            |row: i64| (row % 5 != 1).then(|| format!("{}{}", ["pond", "mill", "é", ""][(row % 4) as usize], row % 13));
        let batch = RecordBatch::try_from_iter_with_nullable([
            (
                "g",
                Arc::new((0..400).map(|row| (row % 11 != 5).then_some(row * row % 6)).collect::<Int64Array>()) as _,
                true,
            ),
            ("n", Arc::new((0..400).map(number).collect::<Int64Array>()) as _, true),
            ("word", Arc::new((0..400).map(word).collect::<StringArray>()) as _, true),
        ]);
        let batch = batch.expect("columns of one length");
        rig.register("rows", || {
            Arc::new(
                MemTable::try_new(batch.schema(), vec![vec![batch.slice(0, 170), batch.slice(170, 230)]])
                    .expect("a table"),
            )
        });
        for sql in [
            "SELECT array_agg(n), array_agg(word), string_agg(word, '-'), nth_value(n, 5), nth_value(word, -4) FROM rows",
            "SELECT g, array_agg(n), string_agg(word, '; '), nth_value(n, 2), count(*) FROM rows GROUP BY g",
            "SELECT g, array_agg(n) FILTER (WHERE n > 40), string_agg(word, '') FILTER (WHERE n < 50) FROM rows GROUP BY g",
            "SELECT g, array_agg(n) IGNORE NULLS, first_value(n), last_value(word) FROM rows WHERE n <> 17 GROUP BY g",
            "SELECT array_agg(word) FROM (SELECT * FROM rows ORDER BY n DESC, word, g LIMIT 50)",
        ] {
            rig.same(sql).await;
        }
        rig.finish();
    }
}

#[tokio::test]
async fn strings_without_a_dictionary() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    rig.set("millpond.debug_dictionary_values = 4").await;
    for sql in [
        "SELECT s, array_agg(l ORDER BY l DESC, id), string_agg(s, '-' ORDER BY id) FROM t WHERE id < 700 GROUP BY s",
        "SELECT k, nth_value(s, 2 ORDER BY l, id), array_agg(DISTINCT s ORDER BY s), count(*) FROM t GROUP BY k",
        "SELECT string_agg(DISTINCT l, '+' ORDER BY l), count(*) FROM t",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// Rows that tie may have any order: the values are those that belong to the keys.
#[tokio::test]
async fn rows_that_tie_come_in_some_order() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT k, array_agg(w ORDER BY w), nth_value(w, 2 ORDER BY w), array_agg(s ORDER BY s DESC) FROM t GROUP BY k",
        "SELECT k, string_agg(s, '-' ORDER BY s) FROM t GROUP BY k",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// Memory for what is sorted is not always there; then the CPU answers.
#[tokio::test]
async fn where_memory_is_short_the_answer_stays() {
    let rig = Rig::with_partitions(Fallback::Allow, 3).await;
    rig.set("millpond.memory_limit_bytes = 2000000").await;
    for sql in [
        "SELECT key % 10, array_agg(value ORDER BY value) FROM many GROUP BY 1",
        "SELECT key, string_agg(CAST(value AS VARCHAR), ',' ORDER BY value) FROM many GROUP BY key",
    ] {
        if let Err(what) = rig.run(sql).await {
            panic!("{sql}: {what}");
        }
    }
    rig.finish();
}
