//! Floats of 16 bits: on the device each is the float of 32 bits that it is, and what is computed is rounded, as
//! DataFusion has it.
//!
//!   carried     from memory, files, dictionaries, lists and structures, and back, every bit of a NaN included
//!   computed    arithmetic, casts in both directions, medians
//!   refused     functions that round in a way of their own: the CPU has them, with a reason
//!
//! Values   NaNs, quiet and signalling, zeros, infinities, subnormal numbers, ties, NULL; in extents of 3, 30 and 100
//!          rows.
//! Equal    arrays are compared by their bytes. `floats.rs` has groups, joins and orders of each pair of values.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, Float16Array, Float32Array, Float64Array, Int64Array, ListBuilder,
    PrimitiveBuilder, StructArray, UInt64Array,
};
use millpond::datafusion::arrow::compute::{cast, concat_batches};
use millpond::datafusion::arrow::datatypes::{DataType, Float16Type};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::util::pretty::pretty_format_batches;
use millpond::datafusion::datasource::MemTable;
use millpond::session::QueryResult;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::support::session_with;

type Half = <Float16Type as ArrowPrimitiveType>::Native;

const ROWS: usize = 210;

/// Numbers first; NaNs from `NUMBERS` on.
const BITS: [u16; 21] = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x3e00, 0x4200, 0xc500, 0x7bff, 0xfbff, 0x7c00,
    0xfc00, 0x7e00, 0xfe00, 0x7e23, 0xffff, 0x7c01, 0xfdff,
];
const NUMBERS: usize = 15;

/// Numbers near those that 16 bits hold: in the middle of two, beside it, and where they end.
const NEAR: [f64; 24] = [
    0.0,
    -0.0,
    2049.0,
    2051.0,
    -2049.000001,
    2048.9999,
    65504.0,
    65519.99,
    65520.0,
    -65520.0,
    1e10,
    1e300,
    -1e300,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    0.1,
    -1.0 / 3.0,
    // The middle of 0 and the least, beside it, one and a half of the least, the middle of the greatest subnormal
    // number and the next.
    2.9802322387695312e-8,
    2.980232238769532e-8,
    8.940696716308594e-8,
    1023.5 / 16_777_216.0,
    1e-300,
    -5e-324,
];

fn column(of: impl Fn(usize) -> Option<u16>) -> Float16Array {
    (0..ROWS).map(|row| of(row).map(Half::from_bits)).collect()
}

/// One of the first `count` values, or NULL.
fn value(at: usize, count: usize) -> Option<u16> {
    (at % (count + 1) < count).then(|| BITS[at % (count + 1)])
}

fn table() -> RecordBatch {
    let rows = || 0..ROWS;
    let (h, i) = (column(|row| value(row, 21)), column(|row| value(row * 5 + row / 21, 21)));
    let mut lists = ListBuilder::new(PrimitiveBuilder::<Float16Type>::new());
    for row in rows() {
        for item in 0..row % 4 {
            lists.values().append_option(value(row + item * 9, 21).map(Half::from_bits));
        }
        lists.append(row % 7 != 3);
    }
    let packed = DataType::Dictionary(Box::new(DataType::Int16), Box::new(DataType::Float16));
    let structure = StructArray::from(vec![(
        Arc::new(millpond::datafusion::arrow::datatypes::Field::new("h", DataType::Float16, true)),
        Arc::new(i.clone()) as ArrayRef,
    )]);
    let near = |row: usize| (row % 25 < 24).then(|| NEAR[row % 25]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new(rows().map(|row| row as i64 % 4).collect::<Int64Array>())),
        ("h", Arc::new(h.clone())),
        ("i", Arc::new(i)),
        ("j", cast(&h, &packed).expect("arrow packs them")),
        ("st", Arc::new(structure)),
        ("l", Arc::new(lists.finish())),
        ("a", Arc::new(column(|row| value(row, 21)))),
        ("b", Arc::new(column(|row| value(row * 11 + row / 16, NUMBERS)))),
        (
            "e",
            Arc::new(rows().map(|row| Some(Half::from_f32((row % 37) as f32 / 8.0 - 2.0))).collect::<Float16Array>()),
        ),
        ("d", Arc::new(rows().map(near).collect::<Float64Array>())),
        ("f", Arc::new(rows().map(|row| near(row).map(|value| value as f32)).collect::<Float32Array>())),
        ("n", Arc::new(rows().map(|row| near(row).map(|value| value as i64)).collect::<Int64Array>())),
        ("u", Arc::new(rows().map(|row| near(row).map(|value| value as u64)).collect::<UInt64Array>())),
    ];
    let id = ("id", Arc::new(rows().map(|row| row as i64).collect::<Int64Array>()) as ArrayRef, false);
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    RecordBatch::try_from_iter_with_nullable([id].into_iter().chain(columns)).expect("columns have one length")
}

async fn session(device: DeviceChoice, fallback: Fallback, batch_rows: usize) -> Millpond {
    let session = session_with(device, 1, fallback);
    let batch = table();
    let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).expect("a batch is a table");
    session.context().register_table("t", Arc::new(table)).expect("the name is free");
    session.execute(&format!("SET millpond.batch_rows = {batch_rows}")).await.expect("an option is set");
    session
}

fn whole(result: &QueryResult) -> RecordBatch {
    concat_batches(&result.schema, &result.batches).expect("batches of one schema")
}

/// The answers have the same bytes.
fn same(sql: &str, expected: &QueryResult, actual: &QueryResult) {
    let (expected, actual) = (whole(expected), whole(actual));
    assert!(expected.num_rows() > 0, "{sql} gives no rows");
    assert_eq!(expected.num_rows(), actual.num_rows(), "{sql}");
    let shown = |batch: &RecordBatch, row: usize| {
        let row = batch.slice(row, batch.num_rows().min(row + 1) - row);
        pretty_format_batches(&[row]).expect("it can be shown").to_string()
    };
    for (at, (a, b)) in expected.columns().iter().zip(actual.columns()).enumerate() {
        assert_eq!(a.data_type(), b.data_type(), "{sql}");
        // A dictionary may have its values in another order.
        let plain = |array: &ArrayRef| match array.data_type() {
            DataType::Dictionary(_, values) => cast(array, values).expect("arrow unpacks them"),
            _ => Arc::clone(array),
        };
        let (a, b) = (plain(a), plain(b));
        for row in 0..a.len() {
            let same = a.slice(row, 1).to_data() == b.slice(row, 1).to_data();
            assert!(same, "{sql}: column {at}, row {row}\n{}\n{}", shown(&expected, row), shown(&actual, row));
        }
    }
}

async fn answered(cpu: &Millpond, sim: &Millpond, sql: &str) {
    let (expected, actual) = (cpu.execute(sql).await, sim.execute(sql).await);
    let expected = expected.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let actual = actual.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let report = &actual.report;
    let fine = report.launches > 0 && report.notes.is_empty() && report.findings.is_empty();
    assert!(fine, "{sql}: {:?} {:?}", report.notes, report.findings);
    same(sql, &expected, &actual);
}

async fn all_answered(queries: &[&str]) {
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, 100).await;
    for batch_rows in [3, 30, 100] {
        let sim = session(DeviceChoice::Sim, Fallback::Error, batch_rows).await;
        for sql in queries {
            answered(&cpu, &sim, sql).await;
        }
    }
}

#[tokio::test]
async fn they_are_carried() {
    all_answered(&[
        "SELECT id, h, i, j, st, l FROM t WHERE id % 3 <> 1 ORDER BY id",
        "SELECT id, h, j FROM t WHERE h > i OR j IS NULL ORDER BY id",
        "SELECT id, h, i FROM t ORDER BY h DESC, i NULLS FIRST, id LIMIT 70",
        "SELECT id, arrow_typeof(j), arrow_typeof(h), arrow_typeof(l) FROM t WHERE j < i ORDER BY id",
        "SELECT id, st['h'], l[1], l[-1], array_has(l, h), array_position(l, i), array_length(l) FROM t ORDER BY id",
        "SELECT id, item FROM (SELECT id, unnest(l) AS item FROM t) ORDER BY id, item",
        "SELECT k, array_agg(h ORDER BY id) FROM t GROUP BY k ORDER BY k",
        "SELECT id, CASE WHEN k = 1 THEN h WHEN k = 2 THEN i END, CASE h WHEN i THEN 1 WHEN arrow_cast(1.5, 'Float16') THEN 2 END \
         FROM t ORDER BY id",
        "SELECT id, coalesce(h, i), nullif(h, i), greatest(h, i), least(h, i), nanvl(h, i), isnan(h), iszero(h), abs(h), -h \
         FROM t ORDER BY id",
        "SELECT id, h IN (arrow_cast(0.0, 'Float16'), arrow_cast('NaN', 'Float16')), h NOT IN (i, arrow_cast(3, 'Float16')), \
         h = 1.5, h < 2, i BETWEEN -5 AND 1.5::FLOAT, h IS DISTINCT FROM i FROM t ORDER BY id",
        "SELECT id, j FROM t ORDER BY j DESC NULLS LAST, id",
        // Zeros in a dictionary are two values.
        "SELECT a.id, b.id, a.j = b.j, a.j <> b.j, a.j IS DISTINCT FROM b.j, a.j > b.h FROM t a JOIN t b ON a.j <= b.j AND b.id < 30 \
         ORDER BY 1, 2",
        "SELECT id, j = 0, j < 0.0, j = arrow_cast('-0.0', 'Float16'), j IN (0.0, 1.5), j BETWEEN -1 AND 0 FROM t ORDER BY id",
        "SELECT k, min(b), max(b), min(b) FILTER (WHERE id % 3 = 0), first_value(h ORDER BY id), last_value(j ORDER BY id) \
         FROM t GROUP BY k ORDER BY k",
        "SELECT k, count(DISTINCT h), count(DISTINCT j), count(i) FROM t GROUP BY k ORDER BY k",
        "SELECT min(b), max(b), count(b) FROM t",
        "SELECT min(b), max(b), count(b) FROM t WHERE id < 0",
        // Groups begin at the greatest number, and an infinity does not replace it.
        "SELECT k, min(CASE WHEN b > 60000 THEN b END), max(CASE WHEN b < -60000 AND k <> 1 THEN b END), \
         min(arrow_cast('inf', 'Float16')), max(CASE WHEN id > 9 THEN arrow_cast('-inf', 'Float16') END) FROM t GROUP BY k ORDER BY k",
        "SELECT a.id, b.id, a.h, b.i FROM t a JOIN t b ON a.h = b.i AND b.id < 30 ORDER BY 1, 2",
        "SELECT a.id, b.id FROM t a LEFT JOIN t b ON a.h = b.i AND b.id < 12 AND a.k <= b.k ORDER BY 1, 2",
        "SELECT id FROM t WHERE h IN (SELECT i FROM t WHERE id > 190) ORDER BY id",
        "SELECT h FROM t UNION SELECT i FROM t WHERE id < 40 ORDER BY 1",
        "SELECT id, h FROM t UNION ALL SELECT id + 1000, i FROM t ORDER BY 1",
        "SELECT id FROM t WHERE h > (SELECT min(b) FROM t WHERE b > -9) ORDER BY id",
        "SELECT id, (SELECT max(e) FROM t WHERE id < 20) FROM t ORDER BY id",
    ])
    .await;
}

#[tokio::test]
async fn windows_look_at_them() {
    all_answered(&[
        "SELECT id, lag(h) OVER (ORDER BY id), lead(h, 2, arrow_cast(7.5, 'Float16')) OVER (PARTITION BY k ORDER BY id), \
         first_value(i) OVER (PARTITION BY h ORDER BY id) FROM t ORDER BY id",
        "SELECT id, rank() OVER (ORDER BY h), dense_rank() OVER (PARTITION BY k ORDER BY i DESC) FROM t ORDER BY id",
        "SELECT id, min(b) OVER (PARTITION BY k ORDER BY id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING), \
         max(b) OVER (PARTITION BY k ORDER BY id), count(h) OVER (PARTITION BY i), sum(e) OVER (ORDER BY id), \
         avg(e) OVER (PARTITION BY k ORDER BY id ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) FROM t ORDER BY id",
    ])
    .await;
}

#[tokio::test]
async fn casts_round_as_arrow_does() {
    all_answered(&[
        "SELECT id, arrow_cast(h, 'Float32'), arrow_cast(h, 'Float64'), arrow_cast(h, 'Boolean') FROM t ORDER BY id",
        "SELECT id, arrow_try_cast(h, 'Int8'), arrow_try_cast(h, 'UInt16'), arrow_try_cast(h, 'Int64'), \
         arrow_try_cast(b, 'Decimal128(10, 2)'), arrow_try_cast(j, 'Int32') FROM t ORDER BY id",
        "SELECT id, arrow_cast(f, 'Float16'), arrow_cast(d, 'Float16'), arrow_cast(n, 'Float16'), arrow_cast(u, 'Float16'), \
         arrow_cast(k, 'Float16'), arrow_cast(k = 1, 'Float16'), arrow_cast(f, 'Dictionary(Int32, Float16)') FROM t ORDER BY id",
        "SELECT arrow_cast(d, 'Float16') AS x, count(*) FROM t GROUP BY x ORDER BY x",
    ])
    .await;
}

/// Results of + - × ÷ % have the sign that x86 produces.
#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn arithmetic_is_rounded() {
    all_answered(&[
        "SELECT id, a + b, a - b, a * b, a / b, a % b FROM t ORDER BY id",
        "SELECT id, b + a, b - e, b * e, b / e, b % e, e / 3, e * 0.1, b + k, 2 * b, b - 1.5::FLOAT FROM t ORDER BY id",
        "SELECT id, (e / 3) * 3 = e, e / 3 / 7, -(b * e), abs(b / e) FROM t WHERE e <> 0 ORDER BY id",
        "SELECT k, median(e), median(b), median(e / 3) FROM t GROUP BY k ORDER BY k",
        "SELECT median(arrow_cast(60000 + id, 'Float16')) FROM t WHERE id < 4",
        "SELECT k, sum(e), avg(e), sum(e / 4), count(e) FROM t GROUP BY k ORDER BY k",
        "SELECT e * e AS s, count(*) FROM t GROUP BY s ORDER BY s",
        "SELECT a.id, b.id FROM t a JOIN t b ON a.e * 2 = b.e + 1 AND b.id < 9 ORDER BY 1, 2",
    ])
    .await;
}

#[tokio::test]
async fn what_differs_stays_on_the_cpu() {
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, 30).await;
    let sim = session(DeviceChoice::Sim, Fallback::Allow, 30).await;
    let (way, zeros) = ("floats of 16 bits", "0.0 and -0.0 in a dictionary");
    for (sql, why) in [
        ("SELECT id, log(abs(e) + 1) FROM t ORDER BY id", way),
        (
            "SELECT k, percentile_cont(0.3) WITHIN GROUP (ORDER BY e) FROM t GROUP BY k ORDER BY k",
            "depends on the processor",
        ),
        (
            "SELECT id, arrow_cast(arrow_cast(k, 'Decimal128(10, 2)'), 'Float16') FROM t ORDER BY id",
            "to Float16 is not lowered",
        ),
        ("SELECT id, arrow_cast(e, 'Utf8') FROM t ORDER BY id", "from Float16 to Utf8 is not lowered"),
        (
            "SELECT id, count(*) OVER (ORDER BY e RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t ORDER BY id",
            "in its order is not lowered",
        ),
        // In both widths: zeros in a dictionary are two keys.
        ("SELECT j, k, count(*), min(id) FROM t GROUP BY j, k ORDER BY j, k", zeros),
        (
            "SELECT p, count(*) FROM (SELECT arrow_cast(d, 'Dictionary(Int32, Float64)') AS p FROM t) GROUP BY p ORDER BY p",
            zeros,
        ),
        ("SELECT a.id, b.id FROM t a JOIN t b ON a.j = b.j AND b.id < 30 ORDER BY 1, 2", zeros),
    ] {
        let expected = cpu.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let actual = sim.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        same(sql, &expected, &actual);
        assert!(actual.report.reasons.iter().any(|said| said.contains(why)), "{sql}: {:?}", actual.report.reasons);
    }
}

/// DataFusion's reader decodes them; what is stored stays on the device, and a plan serves other constants.
#[tokio::test]
async fn they_are_read_from_files_and_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("halves.parquet");
    let path = path.to_str().expect("a UTF-8 path");
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, 100).await;
    cpu.execute(&format!("COPY (SELECT id, k, h, i, b, l FROM t) TO '{path}'")).await.expect("a file");
    let sim = session(DeviceChoice::Sim, Fallback::Error, 100).await;
    for sql in [
        format!("SELECT h, count(*), max(b) FROM '{path}' WHERE k < 3 GROUP BY h ORDER BY h"),
        format!("SELECT id, h, i, l FROM '{path}' ORDER BY i DESC, id"),
        format!("SELECT id, h FROM '{path}' WHERE b > arrow_cast(1, 'Float16') ORDER BY id"),
        format!("SELECT id, h FROM '{path}' WHERE b > arrow_cast(-4, 'Float16') ORDER BY id"),
        format!("SELECT a.id, b.id FROM '{path}' a JOIN '{path}' b ON a.h = b.i AND b.id < 9 ORDER BY 1, 2"),
    ] {
        for _ in 0..2 {
            answered(&cpu, &sim, &sql).await;
        }
    }
    for session in [&cpu, &sim] {
        session
            .execute("CREATE TABLE made AS SELECT id, h, j, b * 2 AS twice FROM t WHERE id > 4")
            .await
            .expect("a table");
    }
    answered(&cpu, &sim, "SELECT id, h, j, twice FROM made WHERE twice < 100 ORDER BY id").await;
}
