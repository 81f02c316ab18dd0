//! `t`: 3,000 rows of every type that has a device form, full of NULLs and edge values; `many`: 100,003 groups.
//!
//!   column c of row i = NULL on some rows, an edge on others, small pseudo-random numbers on the rest
//!
//! Same   the rows are a function of their numbers alone.

use std::path::Path;
use std::sync::Arc;

use millpond::datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int8Array, Int16Array,
    Int32Array, Int64Array, LargeStringArray, StringArray, TimestampMicrosecondArray, TimestampMillisecondArray,
    TimestampNanosecondArray, TimestampSecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::parquet::arrow::ArrowWriter;
use millpond::datafusion::parquet::file::properties::WriterProperties;

pub const ROWS: u64 = 3_000;

/// SplitMix64 of a column's and a row's number.
fn mixed(column: u64, row: u64) -> u64 {
    let mut z = (column << 32 | row).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One column: every 7th draw is NULL, every 9th an edge, the rest comes from `value`.
fn column<T: Clone>(number: u64, edges: &[T], value: impl Fn(u64) -> T) -> Vec<Option<T>> {
    let one = |row| {
        let draw = mixed(number, row);
        match (draw % 7, draw / 7 % 9) {
            (0, _) => None,
            (_, 0) if !edges.is_empty() => Some(edges[(draw / 63) as usize % edges.len()].clone()),
            _ => Some(value(draw / 63)),
        }
    };
    (0..ROWS).map(one).collect()
}

/// A small number around zero.
fn small(draw: u64, limit: i64) -> i64 {
    (draw % (2 * limit as u64 + 1)) as i64 - limit
}

const WORDS: [&str; 16] = [
    "",
    " ",
    "a",
    "b",
    "bolt",
    "Bolt",
    "gear wheel",
    "nut",
    "é",
    "日本",
    "100%",
    "a_b",
    "12",
    "-7",
    "2.5",
    "a longer text",
];

/// The table `t`.
pub fn edges() -> RecordBatch {
    const DAY: i64 = 86_400;
    macro_rules! integers {
        ($array:ty, $number:literal, $native:ty) => {
            Arc::new(<$array>::from(column(
                $number,
                &[<$native>::MIN, <$native>::MAX, 0, 1, <$native>::MAX - 1],
                |draw| (draw % 100) as $native,
            ))) as ArrayRef
        };
    }
    macro_rules! timestamps {
        ($array:ty, $number:literal, $per_second:literal) => {
            <$array>::from(column(
                $number,
                &[0, -1, 1, -$per_second, DAY * $per_second, -DAY * $per_second, 951_782_400 * $per_second],
                |draw| small(draw, 4_000_000_000) * $per_second + small(draw >> 33, $per_second - 1),
            ))
        };
    }
    let decimal = |number, precision: u8, scale, edges: &[i128], limit: i128| {
        let values = column(number, edges, |draw| i128::from(small(draw, 1 << 60)) * (limit >> 60).max(1) % limit);
        let array = Decimal128Array::from(values).with_precision_and_scale(precision, scale);
        Arc::new(array.expect("the precision fits")) as ArrayRef
    };
    let ten = |digits: u32| 10_i128.pow(digits);
    let word = |draw: u64| WORDS[draw as usize % WORDS.len()].to_string();
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("id", Arc::new((0..ROWS as i64).collect::<Int64Array>()), false),
        ("i8", integers!(Int8Array, 1, i8), true),
        ("i16", integers!(Int16Array, 2, i16), true),
        ("i32", integers!(Int32Array, 3, i32), true),
        ("i64", integers!(Int64Array, 4, i64), true),
        ("u8", integers!(UInt8Array, 5, u8), true),
        ("u16", integers!(UInt16Array, 6, u16), true),
        ("u32", integers!(UInt32Array, 7, u32), true),
        ("u64", integers!(UInt64Array, 8, u64), true),
        ("k", Arc::new(Int32Array::from(column(9, &[], |draw| small(draw, 20) as i32))), true),
        ("w", Arc::new(Int16Array::from(column(10, &[], |draw| small(draw, 2) as i16))), true),
        ("d9", decimal(11, 9, 2, &[ten(9) - 1, 1 - ten(9), 0, 5, -5, 50, 149, 150], ten(7)), true),
        ("d18", decimal(12, 18, 4, &[ten(18) - 1, 1 - ten(18), 0, 50_000, -50_000], ten(12)), true),
        ("d38", decimal(13, 38, 10, &[ten(38) - 1, 1 - ten(38), 0, 1, -1], ten(37)), true),
        ("d30", decimal(27, 38, 10, &[ten(32), -ten(32), 0, 1, -1], ten(30)), true),
        (
            "f32",
            Arc::new(Float32Array::from(column(
                14,
                &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, f32::MIN_POSITIVE, 1e-45, f32::MAX],
                |draw| small(draw, 1000) as f32 / 16.0,
            ))),
            true,
        ),
        (
            "f64",
            Arc::new(Float64Array::from(column(
                15,
                &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, f64::MIN_POSITIVE, 5e-324, f64::MAX],
                |draw| small(draw, 1000) as f64 / 16.0,
            ))),
            true,
        ),
        (
            "x",
            Arc::new(Float64Array::from(column(16, &[0.0, -0.0, 0.1], |draw| small(draw, 100_000) as f64 / 7.0))),
            true,
        ),
        (
            "day",
            // 1582-10-15, 1969-12-31, 1970-01-01, 2000-02-29, 2024-12-30 (week 1 of 2025), 9999-12-31.
            Arc::new(Date32Array::from(column(17, &[-141_427, -1, 0, 11_016, 20_087, 2_932_896], |draw| {
                small(draw, 30_000) as i32
            }))),
            true,
        ),
        ("ts_s", Arc::new(timestamps!(TimestampSecondArray, 18, 1)), true),
        ("ts_ms", Arc::new(timestamps!(TimestampMillisecondArray, 19, 1_000)), true),
        ("ts_us", Arc::new(timestamps!(TimestampMicrosecondArray, 20, 1_000_000)), true),
        ("ts_ns", Arc::new(timestamps!(TimestampNanosecondArray, 21, 1_000_000_000)), true),
        ("ts_tz", Arc::new(timestamps!(TimestampMicrosecondArray, 22, 1_000_000).with_timezone("+02:00")), true),
        ("b", Arc::new(BooleanArray::from(column(23, &[], |draw| draw % 2 == 0))), true),
        ("c", Arc::new(BooleanArray::from(column(24, &[], |draw| draw % 3 == 0))), true),
        ("s", Arc::new(StringArray::from(column(25, &[], word))), true),
        ("l", Arc::new(LargeStringArray::from(column(26, &[], word))), true),
        ("nothing", Arc::new(Int32Array::from(vec![None; ROWS as usize])), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns have one length")
}

/// The table `many`: 120,000 rows in 100,003 groups.
pub fn many() -> RecordBatch {
    let rows = 0..120_000_i64;
    let key = rows.clone().map(|row| (row % 500 != 3).then_some(row * 7_919 % 100_003 * 1_000_003));
    RecordBatch::try_from_iter_with_nullable([
        ("key", Arc::new(key.collect::<Int64Array>()) as ArrayRef, true),
        ("value", Arc::new(rows.map(|row| (row % 11 != 0).then_some(row as i32)).collect::<Int32Array>()) as _, true),
    ])
    .expect("columns have one length")
}

/// Writes `batch` as a Parquet file of several row groups.
pub fn write_parquet(batch: &RecordBatch, path: &Path, row_group_rows: usize) {
    let file = std::fs::File::create(path).expect("the file is made");
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(row_group_rows)).build();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).expect("the schema is Parquet's too");
    writer.write(batch).expect("rows are written");
    writer.close().expect("the file is finished");
}
