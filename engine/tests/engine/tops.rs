//! ORDER BY with a LIMIT over more rows than are written: bars, ties at the bar, outputs that are too short at first.
//!
//!   wide   90,000 rows in extents of 30,000 and 20,000 rows, of which some thousands are written at a time
//!
//! Ties   are broken by `id`, or nothing but the keys is selected

use std::sync::Arc;

use millpond::Fallback;
use millpond::datafusion::arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray,
};
use millpond::datafusion::arrow::record_batch::RecordBatch;

use crate::edges::write_parquet;
use crate::sql_features::Rig;

const ROWS: i64 = 90_000;

/// Scatters row numbers.
fn mixed(row: i64) -> i64 {
    let mut z = (row as u64).wrapping_add(77).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 32)) as i64
}

fn float(row: i64) -> Option<f64> {
    match mixed(row).rem_euclid(3000) {
        0 => Some(f64::NAN),
        1 => Some(-f64::NAN),
        2 => Some(f64::NEG_INFINITY),
        3 => Some(f64::INFINITY),
        4 => Some(-0.0),
        5 => Some(0.0),
        6 => None,
        other => Some((other - 1500) as f64 / 8.0),
    }
}

fn wide() -> RecordBatch {
    fn all<T: FromIterator<Option<V>>, V>(of: impl Fn(i64) -> Option<V>) -> Arc<T> {
        Arc::new((0..ROWS).map(of).collect())
    }
    let decimal: Decimal128Array = (0..ROWS).map(|row| Some(i128::from(mixed(row)) << 20)).collect();
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("id", all::<Int64Array, _>(Some), false),
        ("v", all::<Int64Array, _>(|row| Some(mixed(row) % 1_000_000)), false),
        ("n", all::<Int32Array, _>(|row| (mixed(row) % 90 != 0).then_some((mixed(row) % 50) as i32)), true),
        ("rare", all::<Int64Array, _>(|row| (row % 9000 == 4).then_some(row)), true),
        ("down", all::<Int64Array, _>(|row| Some(ROWS - row)), false),
        ("f", all::<Float64Array, _>(float), true),
        ("b", all::<BooleanArray, _>(|row| (row % 5 != 0).then_some(row % 3 == 0)), true),
        ("s", all::<StringArray, _>(|row| (row % 11 != 0).then(|| format!("s{}", mixed(row) % 700))), true),
        ("big", Arc::new(decimal.with_precision_and_scale(38, 4).expect("it fits")), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns have one length")
}

async fn rig(partitions: usize) -> Rig {
    let rig = Rig::with_partitions(Fallback::Error, partitions).await;
    add(&rig, "wide", &wide(), 15_000).await;
    rig.set("millpond.batch_rows = 30000").await;
    rig
}

async fn add(rig: &Rig, name: &str, batch: &RecordBatch, row_group_rows: usize) {
    let path = rig.folder.path().join(format!("{name}.parquet"));
    write_parquet(batch, &path, row_group_rows);
    let path = path.to_str().expect("a UTF-8 path");
    for session in [&rig.cpu, &rig.sim] {
        session.context().register_parquet(name, path, Default::default()).await.expect("the file is read");
    }
}

#[tokio::test]
async fn limits_up_to_the_most_and_beyond() {
    let mut rig = rig(2).await;
    rig.nothing("SELECT id FROM wide ORDER BY v LIMIT 0").await;
    for limit in [1, 10, 1024, 1025] {
        rig.same(&format!("SELECT id, v, s FROM wide ORDER BY v, id LIMIT {limit}")).await;
    }
    rig.same("SELECT id, v FROM wide WHERE id % 7 <> 3 ORDER BY v DESC, id LIMIT 10 OFFSET 300").await;
    rig.same("SELECT id, v FROM wide WHERE id < 5 ORDER BY v DESC, id LIMIT 10").await;
    rig.nothing("SELECT id FROM wide WHERE id + v < -10000000 ORDER BY v LIMIT 3").await;
    rig.finish();
}

#[tokio::test]
async fn ties_nulls_and_directions() {
    let mut rig = rig(3).await;
    for order in ["ASC NULLS FIRST", "ASC NULLS LAST", "DESC NULLS FIRST", "DESC NULLS LAST"] {
        // Thousands of rows tie with the bar; NULL is the bar where few rows have a value.
        rig.same(&format!("SELECT id, n FROM wide ORDER BY n {order}, id DESC LIMIT 40")).await;
        rig.same(&format!("SELECT id, rare FROM wide ORDER BY rare {order}, id LIMIT 12")).await;
        rig.same(&format!("SELECT id, f FROM wide ORDER BY f {order}, id LIMIT 70")).await;
    }
    rig.same("SELECT n, b FROM wide ORDER BY n DESC, b LIMIT 1024").await;
    rig.same("SELECT b FROM wide ORDER BY b LIMIT 100").await;
    rig.finish();
}

#[tokio::test]
async fn keys_of_every_kind() {
    let mut rig = rig(3).await;
    for keys in [
        "big DESC, id",
        "s, v, id",
        "s DESC NULLS LAST, id",
        "v % 100, n DESC, id",
        "v + n, id",
        "7, id",
        "abs(v) DESC, id",
    ] {
        rig.same(&format!("SELECT * FROM wide ORDER BY {keys} LIMIT 15")).await;
    }
    rig.finish();
}

/// Every row sorts before all earlier ones, so outputs are short, again and again.
#[tokio::test]
async fn rows_that_arrive_backwards() {
    for partitions in [1, 4] {
        let mut rig = rig(partitions).await;
        rig.same("SELECT id, down FROM wide ORDER BY down LIMIT 10").await;
        rig.same("SELECT id FROM wide WHERE n > 3 ORDER BY id DESC LIMIT 1000").await;
        rig.set("millpond.batch_rows = 0").await;
        rig.same("SELECT id, down, s FROM wide ORDER BY down LIMIT 1024").await;
        rig.finish();
    }
}

#[tokio::test]
async fn extents_of_a_few_rows_each() {
    let mut rig = rig(3).await;
    rig.set("millpond.batch_rows = 1500").await;
    // Sixty extents: their parts become one as they come.
    rig.same("SELECT id, v FROM wide ORDER BY v DESC, id LIMIT 10").await;
    rig.same("SELECT id, down FROM wide ORDER BY down LIMIT 700").await;
    rig.same("SELECT id, n FROM wide ORDER BY n NULLS FIRST, id LIMIT 1024").await;
    rig.finish();
}

#[tokio::test]
async fn what_comes_below() {
    let mut rig = rig(3).await;
    for sql in [
        // Joins in place, with several matches for a row, of kept rows; groups; a sort below.
        "SELECT a.id, b.v FROM wide a JOIN wide b ON a.id = b.down ORDER BY b.v, a.id LIMIT 10",
        "SELECT a.id, t.id, t.k FROM wide a JOIN t ON a.n = t.w WHERE a.id < 2000 ORDER BY a.v DESC, t.id LIMIT 20",
        "SELECT a.id, t.id FROM wide a LEFT JOIN t ON a.id = t.id AND a.v > 0 ORDER BY t.id DESC NULLS LAST, a.v, a.id LIMIT 20",
        "SELECT a.id, t.id FROM t RIGHT JOIN wide a ON a.id = t.id ORDER BY a.v, a.id LIMIT 20",
        "SELECT a.id, t.id FROM t FULL JOIN wide a ON a.down = t.id ORDER BY a.v, a.id, t.id LIMIT 20",
        "SELECT id, v FROM wide WHERE EXISTS (SELECT 1 FROM t WHERE t.id = wide.id) ORDER BY v, id LIMIT 9",
        "SELECT v, count(*) AS c FROM wide GROUP BY v ORDER BY c DESC, v LIMIT 10",
        "SELECT sum(id), count(n) FROM (SELECT id, n FROM wide ORDER BY v, id LIMIT 500)",
        "SELECT * FROM (SELECT id, v FROM wide ORDER BY v, id LIMIT 500) ORDER BY id DESC LIMIT 4",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

/// A row that is left out would have divided by zero: the CPU says so, and so does the device.
#[tokio::test]
async fn errors_of_rows_that_are_left_out() {
    let rig = rig(3).await;
    let sql = "SELECT id FROM wide ORDER BY v, 10 / (id - 5) LIMIT 3";
    for session in [&rig.cpu, &rig.sim] {
        let error = session.execute(sql).await.err().map(|error| error.to_string().to_lowercase()).unwrap_or_default();
        assert!(error.contains("divide by zero"), "'{error}'");
    }
}

/// Stored in a byte each, written in eight: an output for all rows would be most of the memory.
#[tokio::test]
async fn memory_is_for_the_rows_that_are_kept() {
    const COLUMNS: usize = 12;
    let rig = Rig::with_partitions(Fallback::Error, 2).await;
    let mut columns: Vec<(String, ArrayRef, bool)> = (0..COLUMNS as i64)
        .map(|c| {
            let values = (0..ROWS).map(|row| mixed(row + c * ROWS).rem_euclid(200));
            (format!("c{c}"), Arc::new(values.collect::<Int64Array>()) as ArrayRef, false)
        })
        .collect();
    let v = (0..ROWS).map(|row| mixed(row).rem_euclid(1 << 30)).collect::<Int64Array>();
    columns.push(("v".into(), Arc::new(v), false));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).expect("columns have one length");
    add(&rig, "bytes", &batch, 1 << 20).await;
    let table = (ROWS as u64) * 8 * (COLUMNS as u64 + 1);
    // One extent; many extents: what waits is a few rows of each.
    for (batch_rows, share) in [(0, 3), (5000, 8)] {
        rig.set(&format!("millpond.batch_rows = {batch_rows}")).await;
        let report = rig.run("SELECT * FROM bytes ORDER BY v, c0 LIMIT 10").await.expect("the CPU's answer");
        assert!(report.launches > 0 && report.notes.is_empty(), "{report:?}");
        let (peak, most) = (report.peak_bytes, table / share);
        assert!(peak < most, "{peak} bytes with {batch_rows} rows at a time, {most} were allowed");
    }
}
