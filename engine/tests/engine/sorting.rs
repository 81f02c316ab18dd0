//! ORDER BY, LIMIT and OFFSET in every form: the simulated device gives DataFusion's answers, alone.
//!
//! Extents   of 1,000 rows, so that a sort gathers several, and the first rows of an order come from each
//! Ties      are broken by `id`, or nothing but the keys is selected

use std::sync::Arc;

use millpond::Fallback;
use millpond::datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::datasource::MemTable;

use crate::sql_features::Rig;

const COLUMNS: [&str; 25] = [
    "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "k", "w", "d9", "d18", "d38", "d30", "f32", "f64", "x",
    "day", "ts_s", "ts_ns", "ts_tz", "b", "s", "l", "nothing",
];

#[tokio::test]
async fn every_type_in_every_direction_with_nulls_at_both_ends() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let edges = crate::edges::edges();
    rig.register("memory", || {
        Arc::new(MemTable::try_new(edges.schema(), vec![vec![edges.clone()]]).expect("one schema"))
    });
    let orders = ["ASC NULLS FIRST", "ASC NULLS LAST", "DESC NULLS FIRST", "DESC NULLS LAST"];
    for (index, column) in COLUMNS.iter().enumerate() {
        // Each direction and each place for NULL once a column, in both pairings over the columns.
        let pair = if index % 2 == 0 { [orders[0], orders[3]] } else { [orders[1], orders[2]] };
        rig.same(&format!("SELECT id, {column} FROM t WHERE id < 2100 ORDER BY {column} {}, id", pair[0])).await;
        // From memory: pruning a file by its statistics, DataFusion passes over NaNs, which they do not count.
        rig.same(&format!("SELECT id, {column} FROM memory ORDER BY {column} {}, id DESC LIMIT 40", pair[1])).await;
    }
    rig.finish();
}

#[tokio::test]
async fn several_keys_of_all_widths() {
    for partitions in [1, 7] {
        let mut rig = Rig::with_partitions(Fallback::Error, partitions).await;
        for keys in [
            "b, c, w, id",
            "w DESC, k ASC NULLS FIRST, u8 DESC NULLS LAST, id",
            "d38, d30 DESC, id",
            "s, l DESC NULLS LAST, f32 NULLS FIRST, id",
            "i64 DESC, u64, f64, d38, ts_ns, id",
            "nothing, nothing DESC, id DESC",
            "k, k DESC, k + 1, id",
        ] {
            rig.same(&format!("SELECT id FROM t ORDER BY {keys}")).await;
            rig.same(&format!("SELECT * FROM t WHERE id % 3 <> 0 ORDER BY {keys} LIMIT 7")).await;
        }
        rig.finish();
    }
}

/// More than travel with a launch.
#[tokio::test]
async fn forty_keys() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    // A key tells the rows whose turn it is from those of later turns; the last five are for what is left.
    let turns = (0..35).map(|turn| {
        let direction = if turn % 3 == 0 { "DESC" } else { "ASC" };
        format!("CASE WHEN id % 36 = {turn} THEN NULLIF(w, {}) END {direction} NULLS LAST", turn % 4)
    });
    let rest = ["s", "l DESC", "f64 NULLS FIRST", "k DESC", "id"].map(String::from);
    let keys: Vec<String> = turns.chain(rest).collect();
    for tail in ["", "LIMIT 20", "LIMIT 1500 OFFSET 7"] {
        rig.same(&format!("SELECT id FROM t ORDER BY {} {tail}", keys.join(", "))).await;
        rig.same(&format!("SELECT id FROM t WHERE id < 1000 ORDER BY {} {tail}", keys[18..].join(", "))).await;
    }
    rig.finish();
}

#[tokio::test]
async fn limits_of_all_sizes_and_offsets() {
    let mut rig = Rig::with_partitions(Fallback::Error, 7).await;
    for limit in [1, 2, 31, 33, 1000, 1023, 1024, 1025, 2047, 2048, 2049, 2999, 3000, 3001, 1_000_000] {
        rig.same(&format!("SELECT id, k, s FROM t ORDER BY k DESC NULLS LAST, id LIMIT {limit}")).await;
    }
    for (limit, offset) in [(1, 0), (10, 5), (10, 2995), (10, 3000), (5, 1500), (100, 1000), (2000, 900)] {
        rig.same(&format!("SELECT id, f64 FROM t ORDER BY f64, id LIMIT {limit} OFFSET {offset}")).await;
    }
    rig.same("SELECT id, f64 FROM t ORDER BY f64, id OFFSET 2990").await;
    rig.finish();
}

#[tokio::test]
async fn ties_beyond_the_limit() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    // One key of five values, one of two, one that is always NULL: far more rows tie than are wanted.
    for key in ["w", "b", "nothing", "w, b"] {
        for limit in [1, 10, 700, 1024, 1500] {
            rig.same(&format!("SELECT {key} FROM t ORDER BY {key} LIMIT {limit}")).await;
        }
    }
    rig.finish();
}

#[tokio::test]
async fn keys_that_are_expressions_or_not_selected() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT id FROM t ORDER BY k * w DESC NULLS LAST, id",
        "SELECT s FROM t ORDER BY upper(s), id",
        "SELECT id FROM t ORDER BY CASE WHEN b THEN s WHEN c THEN 'm' ELSE upper(l) END NULLS FIRST, id LIMIT 300",
        "SELECT id, i64 / 2 FROM t WHERE s LIKE '%e%' ORDER BY substr(s, 2), i64 DESC, id",
        "SELECT id FROM t ORDER BY s IS NULL, s DESC, id LIMIT 50",
        "SELECT id FROM t ORDER BY abs(k), id LIMIT 11",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

#[tokio::test]
async fn sorts_above_and_below_other_operators() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for sql in [
        "SELECT k, count(*) AS n, sum(x) FROM t GROUP BY k ORDER BY n DESC, k NULLS FIRST",
        "SELECT s, k, count(*) AS n FROM t GROUP BY s, k ORDER BY n DESC, s, k LIMIT 25",
        "SELECT k, max(n) FROM (SELECT k, w, count(*) AS n FROM t GROUP BY k, w) GROUP BY k ORDER BY 2 DESC, 1 LIMIT 4",
        "SELECT * FROM (SELECT id, k FROM t ORDER BY k, id LIMIT 100) ORDER BY id DESC",
        "SELECT sum(id), min(k) FROM (SELECT id, k FROM t ORDER BY k NULLS LAST, id LIMIT 100)",
        "SELECT id, k FROM (SELECT id, k FROM t ORDER BY k, id LIMIT 1100) WHERE id % 2 = 0 ORDER BY id LIMIT 30",
        "SELECT id, k FROM (SELECT id, k FROM t ORDER BY k NULLS FIRST, id LIMIT 1500) WHERE id % 2 = 0",
        "SELECT DISTINCT k, w FROM t ORDER BY k DESC, w LIMIT 9",
        "SELECT a.w, b.id FROM (SELECT k, w, id FROM t ORDER BY id LIMIT 50) a JOIN t b ON a.k = b.k",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

#[tokio::test]
async fn a_hundred_thousand_rows_by_digits() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    rig.set("millpond.batch_rows = 40000").await;
    rig.same("SELECT key, value FROM many ORDER BY key DESC NULLS LAST, value").await;
    rig.same("SELECT value FROM many ORDER BY value LIMIT 5000").await;
    rig.same("SELECT key, value FROM many WHERE value % 3 = 0 ORDER BY value DESC NULLS LAST, key LIMIT 12").await;
    rig.same("SELECT key, count(*) AS n FROM many GROUP BY key ORDER BY n DESC, key LIMIT 10").await;
    rig.finish();
}

/// Each extent adds strings that sort before all earlier ones, so ranks change with every extent.
#[tokio::test]
async fn strings_that_arrive_backwards() {
    let mut rig = Rig::with_partitions(Fallback::Error, 1).await;
    let rows = 0..5000_i64;
    let name = |row: i64| (row % 9 != 4).then(|| format!("{:04}", (5000 - row) / 3));
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(rows.clone().collect::<Int64Array>()) as ArrayRef, false),
        ("name", Arc::new(rows.clone().map(name).collect::<StringArray>()) as ArrayRef, true),
        ("other", Arc::new(rows.map(|row| Some(format!("x{}", row % 7))).collect::<StringArray>()) as ArrayRef, true),
    ])
    .expect("columns have one length");
    rig.register("backwards", || {
        Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch.clone()]]).expect("one schema"))
    });
    for sql in [
        "SELECT id, name FROM backwards ORDER BY name, id",
        "SELECT id, name FROM backwards ORDER BY name DESC NULLS LAST, id",
        "SELECT id, name FROM backwards ORDER BY name NULLS LAST, id LIMIT 10",
        "SELECT id, name FROM backwards ORDER BY name DESC NULLS FIRST, id LIMIT 1000",
        "SELECT id FROM backwards ORDER BY other, name, id LIMIT 1500",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

#[tokio::test]
async fn an_empty_input_sorts_to_nothing() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    let empty = MemTable::try_new(crate::edges::edges().schema(), vec![vec![], vec![]]).expect("one schema");
    let empty = Arc::new(empty);
    rig.register("empty", || empty.clone());
    for sql in [
        "SELECT id, s FROM empty ORDER BY s, id",
        "SELECT id, s FROM empty ORDER BY s, id LIMIT 3",
        "SELECT id FROM t WHERE k > 1000 ORDER BY id",
        "SELECT id FROM t WHERE k + w > 1000 ORDER BY k, id LIMIT 3",
    ] {
        rig.nothing(sql).await;
    }
    rig.finish();
}
