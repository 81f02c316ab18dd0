//! The tables that random queries read: every type with a device form, some without, NULLs, edges and skew.
//!
//! ```text
//!   m0, m1, m7, m33, m64, m200, m1000   in memory: one to four partitions of batches cut at odd rows
//!   p64, p200, p1000, p5000             Parquet: several row groups each
//! ```
//!
//! Same   a table is a function of the seed and its number of rows.
//! Grows  the texts of `grow` and `uniq` keep changing with the row number: every extent, however small, has new
//!        values, some of which sort before all earlier ones. So dictionaries grow and ranks move.
//! Shapes differ by table, so that under one variant one table is a single extent and another one many.
//! NaN    of both signs and with payloads, and both zeros, in all tables: in Parquet files with bounds of floats, and
//!        without.
//! Narrow  `n`, `soon` and `few` have 64 bits and values that fit 32, with NULLs among them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond::datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Decimal256Array, Float32Array, Float64Array, Int8Array,
    Int16Array, Int32Array, Int64Array, IntervalDayTimeArray, IntervalMonthDayNanoArray, IntervalYearMonthArray,
    ListArray, StringArray, StringViewArray, StructArray, TimestampMicrosecondArray, TimestampMillisecondArray,
    TimestampNanosecondArray, TimestampSecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use millpond::datafusion::arrow::compute::cast;
use millpond::datafusion::arrow::datatypes::{DataType, Field, Int64Type, IntervalDayTime, IntervalMonthDayNano, i256};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::error::{DataFusionError, Result};
use millpond::datafusion::parquet::arrow::ArrowWriter;
use millpond::datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};
use millpond::datafusion::parquet::schema::types::ColumnPath;
use millpond::datafusion::prelude::{ParquetReadOptions, SessionContext};

use super::rng::Rng;
use super::ty::{Span, Ty, Zone};

pub const WORDS: [&str; 14] = [
    "",
    " ",
    "a",
    "bolt",
    "Bolt",
    "gear wheel",
    "é",
    "日本語",
    "100%",
    "a_b",
    "12",
    "-7.5",
    "it's",
    "a text that is longer than the twelve bytes of a view, and then some",
];

/// Names and types of the columns, in the order of `table`.
pub const COLUMNS: [(&str, Ty); 53] = [
    ("id", Ty::Int(true, 64)),
    ("i8", Ty::Int(true, 8)),
    ("i16", Ty::Int(true, 16)),
    ("i32", Ty::Int(true, 32)),
    ("i64", Ty::Int(true, 64)),
    ("u8", Ty::Int(false, 8)),
    ("u16", Ty::Int(false, 16)),
    ("u32", Ty::Int(false, 32)),
    ("u64", Ty::Int(false, 64)),
    ("k", Ty::Int(true, 32)),
    ("n", Ty::Int(true, 64)),
    ("rare", Ty::Int(true, 16)),
    ("nothing", Ty::Int(true, 32)),
    ("d5", Ty::Dec(5, 2)),
    ("d15", Ty::Dec(15, 2)),
    ("d18", Ty::Dec(18, 4)),
    ("d38", Ty::Dec(38, 10)),
    ("d12", Ty::Dec(12, 0)),
    ("f32", Ty::F32),
    ("f64", Ty::F64),
    ("e32", Ty::Even32),
    ("e64", Ty::Even64),
    ("day", Ty::Date),
    ("ts_s", Ty::Time(0, Zone::None)),
    ("ts_ms", Ty::Time(3, Zone::None)),
    ("ts_us", Ty::Time(6, Zone::None)),
    ("ts_ns", Ty::Time(9, Zone::None)),
    ("tz_us", Ty::Time(6, Zone::PlusTwo)),
    ("tz_ns", Ty::Time(9, Zone::PlusTwo)),
    ("b", Ty::Bool),
    ("c", Ty::Bool),
    ("s", Ty::Text),
    ("v", Ty::Text),
    ("j", Ty::Int(true, 64)),
    ("g", Ty::Int(true, 32)),
    ("early", Ty::Int(true, 32)),
    ("grow", Ty::Text),
    ("uniq", Ty::Text),
    ("far_s", Ty::Era(0)),
    ("far_ms", Ty::Era(3)),
    ("far_us", Ty::Era(6)),
    ("utc_ms", Ty::Time(3, Zone::Utc)),
    ("utc_ns", Ty::Time(9, Zone::Utc)),
    ("span_m", Ty::Span(Span::Months)),
    ("span_d", Ty::Span(Span::Days)),
    ("wide", Ty::Wide(50, 6)),
    ("list", Ty::Ints),
    ("pair", Ty::Pair),
    ("half", Ty::Half),
    ("tz_b", Ty::Time(6, Zone::Berlin)),
    ("soon", Ty::Time(3, Zone::None)),
    ("few", Ty::Int(false, 64)),
    // Last, because Parquet lacks this type.
    ("span", Ty::Span(Span::Mixed)),
];

/// The columns of a table: Parquet has no interval of months, days and nanoseconds.
pub fn columns_of(table: &str) -> &'static [(&'static str, Ty)] {
    if table.starts_with('p') { &COLUMNS[..COLUMNS.len() - 1] } else { &COLUMNS }
}

/// `(name, rows, rows per row group)`: a table in memory has no row groups. Smaller tables precede larger ones.
pub const TABLES: [(&str, usize, usize); 11] = [
    ("m0", 0, 0),
    ("m1", 1, 0),
    ("m7", 7, 0),
    ("m33", 33, 0),
    ("m64", 64, 0),
    ("p64", 64, 20),
    ("m200", 200, 0),
    ("p200", 200, 70),
    ("m1000", 1000, 0),
    ("p1000", 1000, 300),
    ("p5000", 5000, 1700),
];

/// Rows of the table `name`.
pub fn rows_of_table(name: &str) -> usize {
    TABLES.iter().find(|table| table.0 == name).map_or(usize::MAX, |table| table.1)
}

/// Partitions of a table in memory, and rows of its batches, over and over.
fn shape(name: &str) -> (usize, &'static [usize]) {
    // 29 and 317 are no multiples of 8, so validity and booleans begin inside a byte.
    match name {
        "m7" => (1, &[2]),
        "m33" => (3, &[5]),
        "m64" => (1, &[64]),
        "m200" => (2, &[29, 0, 13]),
        "m1000" => (4, &[1, 2, 4, 8, 317]),
        _ => (2, &[29]),
    }
}

/// A text of row `row` that earlier rows do not have. Of kind 0 each is less than those before it, of kind 1 greater.
pub fn grown(row: usize, kind: usize) -> String {
    match kind {
        0 => format!("n{:05}", 99_999 - row / 2),
        _ => format!("p{:05}", row / 2),
    }
}

const NANS_32: [u32; 4] = [0x7fc0_0000, 0xffc0_0000, 0x7fc0_1234, 0xffff_0042];
const NANS_64: [u64; 4] = [0x7ff8_0000_0000_0000, 0xfff8_0000_0000_0000, 0x7ff8_0000_0000_1234, 0xffff_0000_0000_0042];

/// One column: NULL in `nulls` of 100 rows, an edge in 8, `value` in the rest.
fn column<T: Copy>(
    rng: &mut Rng,
    rows: usize,
    nulls: u64,
    edges: &[T],
    mut value: impl FnMut(&mut Rng) -> T,
) -> Vec<Option<T>> {
    let one = |_| match (rng.chance(nulls), rng.chance(8) && !edges.is_empty()) {
        (true, _) => None,
        (_, true) => Some(rng.pick(edges)),
        _ => Some(value(rng)),
    };
    (0..rows).map(one).collect()
}

/// A column's name, its values, and whether it may have NULLs.
type Column = (&'static str, ArrayRef, bool);

macro_rules! integers {
    ($rng:ident, $rows:ident, $array:ty, $native:ty) => {
        Arc::new(<$array>::from(column($rng, $rows, 15, &[<$native>::MIN, <$native>::MAX, 0, 1], |rng| {
            rng.between(if <$native>::MIN == 0 { 0 } else { -100 }, 100) as $native
        }))) as ArrayRef
    };
}

macro_rules! times {
    ($rng:ident, $rows:ident, $array:ty, $per_second:literal) => {
        <$array>::from(column(
            $rng,
            $rows,
            15,
            &[0, -1, 1, -$per_second, 951_782_399 * $per_second, -86_400 * $per_second],
            |rng| rng.between(-3_000_000_000, 3_000_000_000) * $per_second + rng.between(0, $per_second - 1),
        ))
    };
}

// Near ones, and of the years 1 to 9999.
macro_rules! far {
    ($rng:ident, $rows:ident, $array:ty, $per_second:literal) => {
        <$array>::from(column(
            $rng,
            $rows,
            15,
            &[-62_135_596_800 * $per_second, 253_402_300_799 * $per_second, -1, 0],
            |rng| match rng.chance(50) {
                true => rng.between(-62_135_596_800, 253_402_300_799) * $per_second,
                false => rng.between(-3_000_000_000, 3_000_000_000) * $per_second + rng.between(0, $per_second - 1),
            },
        ))
    };
}

fn decimal(rng: &mut Rng, rows: usize, precision: u8, scale: i8, digits: u32) -> ArrayRef {
    let max = 10_i128.pow(u32::from(precision)) - 1;
    let limit = 10_i64.pow(digits);
    let values =
        column(rng, rows, 15, &[max, -max, 0, 5, -5, 50, 149, 150], |rng| i128::from(rng.between(-limit, limit)));
    let array = Decimal128Array::from(values).with_precision_and_scale(precision, scale);
    Arc::new(array.expect("the precision is one of the type's"))
}

fn bools(rng: &mut Rng, rows: usize, nulls: u64) -> BooleanArray {
    BooleanArray::from(column(rng, rows, nulls, &[], |rng| rng.chance(40)))
}

fn numbers(rng: &mut Rng, rows: usize) -> Vec<Column> {
    vec![
        ("id", Arc::new((0..rows as i64).collect::<Int64Array>()), false),
        ("i8", integers!(rng, rows, Int8Array, i8), true),
        ("i16", integers!(rng, rows, Int16Array, i16), true),
        ("i32", integers!(rng, rows, Int32Array, i32), true),
        ("i64", integers!(rng, rows, Int64Array, i64), true),
        ("u8", integers!(rng, rows, UInt8Array, u8), true),
        ("u16", integers!(rng, rows, UInt16Array, u16), true),
        ("u32", integers!(rng, rows, UInt32Array, u32), true),
        ("u64", integers!(rng, rows, UInt64Array, u64), true),
        // Skewed: half of the rows have one key.
        (
            "k",
            Arc::new(Int32Array::from(column(rng, rows, 0, &[], |rng| match rng.chance(50) {
                true => 7,
                false => rng.between(-30, 30) as i32,
            }))),
            false,
        ),
        ("n", Arc::new(Int64Array::from(column(rng, rows, 10, &[], |rng| rng.between(-1000, 1000)))), true),
        ("rare", Arc::new(Int16Array::from(column(rng, rows, 95, &[], |rng| rng.between(-5, 5) as i16))), true),
        ("nothing", Arc::new(Int32Array::from(vec![None; rows])), true),
        ("d5", decimal(rng, rows, 5, 2, 4), true),
        ("d15", decimal(rng, rows, 15, 2, 7), true),
        ("d18", decimal(rng, rows, 18, 4, 9), true),
        ("d38", decimal(rng, rows, 38, 10, 15), true),
        ("d12", decimal(rng, rows, 12, 0, 3), true),
    ]
}

fn floats(rng: &mut Rng, rows: usize) -> Vec<Column> {
    vec![
        (
            "f32",
            Arc::new(Float32Array::from(column(
                rng,
                rows,
                15,
                &[
                    f32::from_bits(NANS_32[0]),
                    f32::from_bits(NANS_32[1]),
                    f32::from_bits(NANS_32[2]),
                    f32::from_bits(NANS_32[3]),
                    f32::INFINITY,
                    f32::NEG_INFINITY,
                    -0.0,
                    0.0,
                    f32::MIN_POSITIVE,
                    1e-45,
                    f32::MAX,
                ],
                |rng| rng.between(-1000, 1000) as f32 / 7.0,
            ))),
            true,
        ),
        (
            "f64",
            Arc::new(Float64Array::from(column(
                rng,
                rows,
                15,
                &[
                    f64::from_bits(NANS_64[0]),
                    f64::from_bits(NANS_64[1]),
                    f64::from_bits(NANS_64[2]),
                    f64::from_bits(NANS_64[3]),
                    f64::INFINITY,
                    f64::NEG_INFINITY,
                    -0.0,
                    0.0,
                    f64::MIN_POSITIVE,
                    5e-324,
                    f64::MAX,
                ],
                |rng| rng.between(-1000, 1000) as f64 / 7.0,
            ))),
            true,
        ),
        (
            "e32",
            Arc::new(Float32Array::from(column(rng, rows, 10, &[], |rng| rng.between(-1600, 1600) as f32 / 16.0))),
            true,
        ),
        (
            "e64",
            Arc::new(Float64Array::from(column(rng, rows, 10, &[0.0], |rng| {
                rng.between(-16_000, 16_000) as f64 / 16.0
            }))),
            true,
        ),
    ]
}

fn times(rng: &mut Rng, rows: usize) -> Vec<Column> {
    vec![
        (
            "day",
            // 0001-01-01, 1582-10-15, 1969-12-31, 1970-01-01, 2000-02-29, 2024-12-30 (week 1 of 2025), 9999-12-31.
            Arc::new(Date32Array::from(column(
                rng,
                rows,
                15,
                &[-719_162, -141_427, -1, 0, 11_016, 20_087, 2_932_896],
                |rng| match rng.chance(10) {
                    true => rng.between(-719_162, 2_932_896) as i32,
                    false => rng.between(-30_000, 30_000) as i32,
                },
            ))),
            true,
        ),
        ("ts_s", Arc::new(times!(rng, rows, TimestampSecondArray, 1)), true),
        ("ts_ms", Arc::new(times!(rng, rows, TimestampMillisecondArray, 1_000)), true),
        ("ts_us", Arc::new(times!(rng, rows, TimestampMicrosecondArray, 1_000_000)), true),
        ("ts_ns", Arc::new(times!(rng, rows, TimestampNanosecondArray, 1_000_000_000)), true),
        ("tz_us", Arc::new(times!(rng, rows, TimestampMicrosecondArray, 1_000_000).with_timezone("+02:00")), true),
        ("tz_ns", Arc::new(times!(rng, rows, TimestampNanosecondArray, 1_000_000_000).with_timezone("+02:00")), true),
    ]
}

fn flags_texts_and_keys(rng: &mut Rng, rows: usize) -> Vec<Column> {
    vec![
        ("b", Arc::new(bools(rng, rows, 20)), true),
        ("c", Arc::new(bools(rng, rows, 0)), false),
        ("s", Arc::new(StringArray::from(column(rng, rows, 15, &[], |rng| rng.pick(&WORDS)))), true),
        ("v", Arc::new(StringViewArray::from(column(rng, rows, 15, &[""], |rng| rng.pick(&WORDS[3..9])))), true),
        // Keys of joins: few values, one of them in a third of the rows, and NULLs.
        (
            "j",
            Arc::new(Int64Array::from(column(rng, rows, 25, &[i64::MIN, i64::MAX], |rng| match rng.chance(35) {
                true => 3,
                false => rng.between(0, 12),
            }))),
            true,
        ),
        ("g", Arc::new(Int32Array::from(column(rng, rows, 40, &[], |rng| rng.between(-2, 2) as i32))), true),
        // Finds equals in the first rows alone: what a join keeps of these must outlive what later extents bring. The
        // first row has the value of all late ones, so that no extent widens the range of the column, which would begin
        // anew.
        (
            "early",
            Arc::new(Int32Array::from_iter_values((0..rows).map(|row| match row {
                1.. if row <= rows / 8 + 1 => rng.between(-2, 8) as i32,
                _ => 200,
            }))),
            true,
        ),
        ("grow", Arc::new(growing(rng, rows, 60, &["o", "oo", "p"]).into_iter().collect::<StringArray>()), true),
        ("uniq", Arc::new(growing(rng, rows, 95, &["o"]).into_iter().collect::<StringViewArray>()), true),
    ]
}

fn far_times(rng: &mut Rng, rows: usize) -> Vec<Column> {
    vec![
        ("far_s", Arc::new(far!(rng, rows, TimestampSecondArray, 1)), true),
        ("far_ms", Arc::new(far!(rng, rows, TimestampMillisecondArray, 1_000)), true),
        ("far_us", Arc::new(far!(rng, rows, TimestampMicrosecondArray, 1_000_000)), true),
        ("utc_ms", Arc::new(times!(rng, rows, TimestampMillisecondArray, 1_000).with_timezone("UTC")), true),
        ("utc_ns", Arc::new(times!(rng, rows, TimestampNanosecondArray, 1_000_000_000).with_timezone("UTC")), true),
    ]
}

fn spans_and_nested(rng: &mut Rng, rows: usize) -> Vec<Column> {
    vec![
        (
            "span_m",
            Arc::new(IntervalYearMonthArray::from(column(rng, rows, 15, &[0], |rng| rng.between(-30, 30) as i32))),
            true,
        ),
        (
            "span_d",
            Arc::new(IntervalDayTimeArray::from(column(rng, rows, 15, &[IntervalDayTime::ZERO], |rng| {
                IntervalDayTime::new(rng.between(-40, 40) as i32, rng.between(-90_000_000, 90_000_000) as i32)
            }))),
            true,
        ),
        (
            "wide",
            {
                let most = i256::from_i128(10).wrapping_pow(50).wrapping_sub(i256::ONE);
                let values = column(rng, rows, 15, &[most, most.wrapping_neg(), i256::ZERO], |rng| {
                    i256::from_i128(i128::from(rng.between(-999_000_000, 999_000_000)))
                });
                let array = Decimal256Array::from(values).with_precision_and_scale(50, 6);
                Arc::new(array.expect("the precision is one of the type's"))
            },
            true,
        ),
        ("list", Arc::new(lists(rng, rows)), true),
        ("pair", Arc::new(pairs(rng, rows)), true),
        (
            "half",
            {
                let values =
                    column(rng, rows, 15, &[0.0, 65504.0, f32::INFINITY], |rng| rng.between(-40, 40) as f32 / 8.0);
                cast(&Float32Array::from(values), &DataType::Float16).expect("every number of 32 bits has one of 16")
            },
            true,
        ),
        (
            "tz_b",
            Arc::new(times!(rng, rows, TimestampMicrosecondArray, 1_000_000).with_timezone("Europe/Berlin")),
            true,
        ),
        (
            "soon",
            Arc::new(TimestampMillisecondArray::from(column(rng, rows, 20, &[0, 999, 2_000_000_000], |rng| {
                rng.between(0, 40) * 1000
            }))),
            true,
        ),
        ("few", Arc::new(UInt64Array::from(column(rng, rows, 20, &[0, 1], |rng| rng.between(0, 40) as u64))), true),
        (
            "span",
            Arc::new(IntervalMonthDayNanoArray::from(column(rng, rows, 15, &[IntervalMonthDayNano::ZERO], |rng| {
                let nanoseconds = rng.between(-90_000, 90_000) * 1_000_000_000;
                IntervalMonthDayNano::new(rng.between(-3, 3) as i32, rng.between(-40, 40) as i32, nanoseconds)
            }))),
            true,
        ),
    ]
}

/// `rows` rows of every column.
fn table(seed: u64, rows: usize) -> RecordBatch {
    let mut rng = Rng::new(seed, 0x7ab1_e000 + rows as u64);
    let kinds = [numbers, floats, times, flags_texts_and_keys, far_times, spans_and_nested];
    let columns = kinds.into_iter().flat_map(|kind| kind(&mut rng, rows));
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns have one length")
}

/// Few lists of few integers, some of which are NULL, and no list in some rows.
fn lists(rng: &mut Rng, rows: usize) -> ListArray {
    let list = |rng: &mut Rng| {
        let items = rng.below(4);
        let item = |rng: &mut Rng| (!rng.chance(20)).then(|| rng.between(-2, 3));
        (0..items).map(|_| item(rng)).collect::<Vec<Option<i64>>>()
    };
    ListArray::from_iter_primitive::<Int64Type, _, _>((0..rows).map(|_| (!rng.chance(15)).then(|| list(rng))))
}

/// Structures of few values, some of which are NULL, and none in some rows: nothing lies below those.
fn pairs(rng: &mut Rng, rows: usize) -> StructArray {
    let there = column(rng, rows, 15, &[], |_| ());
    let numbers: Int64Array = there.iter().map(|row| row.and(rng.chance(80).then(|| rng.between(-2, 2)))).collect();
    let words: StringArray = there.iter().map(|row| row.and(rng.chance(80).then(|| rng.pick(&WORDS)))).collect();
    let fields = vec![Field::new("number", DataType::Int64, true), Field::new("word", DataType::Utf8, true)];
    let nulls = there.iter().map(Option::is_some).collect::<Vec<bool>>();
    StructArray::new(fields.into(), vec![Arc::new(numbers), Arc::new(words)], Some(nulls.into()))
}

/// Texts of which `percent` of 100 are new at their row, ever less and ever greater ones in turn. The others are
/// `words`, between the two, so that the least and the greatest text are always new ones.
fn growing(rng: &mut Rng, rows: usize, percent: u64, words: &[&str]) -> Vec<Option<String>> {
    let one = |row: usize| match (rng.chance(10), rng.chance(percent)) {
        (true, _) => None,
        (_, true) => Some(grown(row, row % 2)),
        _ => Some(rng.pick(words).to_string()),
    };
    (0..rows).map(one).collect()
}

/// Files without bounds of floats.
const UNBOUNDED: [&str; 2] = ["p200", "p1000"];

/// The rows of the table `name` of a seed.
///
/// # Errors
/// Arrow's.
pub fn rows_of(seed: u64, name: &str, rows: usize) -> Result<RecordBatch> {
    Ok(table(seed, rows).project(&(0..columns_of(name).len()).collect::<Vec<_>>())?)
}

/// A folder with the Parquet files of one seed, deleted on drop.
pub struct Folder(PathBuf);

impl Folder {
    /// Writes the files of `seed`.
    ///
    /// # Errors
    /// When the folder or a file cannot be written.
    pub fn write(seed: u64) -> Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder =
            Folder(std::env::temp_dir().join(format!("millpond-fuzz-{seed:x}-{}-{number}", std::process::id())));
        std::fs::create_dir_all(&folder.0)?;
        for (name, rows, group) in TABLES.into_iter().filter(|table| table.2 > 0) {
            let batch = rows_of(seed, name, rows)?;
            let mut properties = WriterProperties::builder().set_max_row_group_row_count(Some(group));
            if UNBOUNDED.contains(&name) {
                for column in ["f32", "f64"] {
                    let column = ColumnPath::from(column);
                    properties = properties.set_column_statistics_enabled(column, EnabledStatistics::None);
                }
            }
            let file = std::fs::File::create(folder.file(name))?;
            let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build()))?;
            writer.write(&batch)?;
            writer.close()?;
        }
        Ok(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.parquet"))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Errors are ignored: the system's own cleaning removes the rest.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Registers all tables of `seed`.
///
/// # Errors
/// DataFusion's.
pub async fn register(context: &SessionContext, seed: u64, folder: &Folder) -> Result<()> {
    for (name, rows, group) in TABLES {
        if group > 0 {
            let path = folder.file(name);
            let path = path.to_str().ok_or_else(|| DataFusionError::Execution(format!("{path:?} is not UTF-8")))?;
            context.deregister_table(name)?;
            context.register_parquet(name, path, ParquetReadOptions::default()).await?;
            continue;
        }
        register_rows(context, name, &rows_of(seed, name, rows)?)?;
    }
    Ok(())
}

/// Registers the rows of `batch` as the table `name`, in the place of one that is there.
///
/// # Errors
/// DataFusion's.
pub fn register_rows(context: &SessionContext, name: &str, batch: &RecordBatch) -> Result<()> {
    let (partitions, mut steps) = (shape(name).0, shape(name).1.iter().cycle());
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < batch.num_rows() {
        let rows = steps.next().map_or(1, |step| (*step).min(batch.num_rows() - at));
        pieces.push(batch.slice(at, rows));
        at += rows;
    }
    let each = pieces.len().div_ceil(partitions).max(1);
    let mut partitions: Vec<Vec<RecordBatch>> = pieces.chunks(each).map(<[RecordBatch]>::to_vec).collect();
    partitions.resize(partitions.len().max(1), Vec::new());
    context.deregister_table(name)?;
    context.register_table(name, Arc::new(MemTable::try_new(batch.schema(), partitions)?))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use millpond::datafusion::arrow::array::{Array, AsArray};
    use millpond::datafusion::arrow::datatypes::{Float32Type, Float64Type};

    use super::*;

    #[test]
    fn a_seed_gives_the_same_table_again() {
        // As text: NaN is unequal to itself.
        let text = |seed| format!("{:?}", table(seed, 33));
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    /// New texts of an extent of three rows sort before all earlier ones, and after them.
    #[test]
    fn texts_grow_in_every_extent() {
        let batch = table(3, 200);
        let grow = batch.column_by_name("grow").expect("a column").as_string::<i32>();
        let (mut least, mut greatest, mut lower, mut higher) = (String::from("~"), String::new(), 0, 0);
        for row in 0..200 {
            let text = grow.value(row);
            if grow.is_valid(row) && text.starts_with(['n', 'p']) {
                lower += usize::from(text.starts_with('n') && text < least.as_str());
                higher += usize::from(text.starts_with('p') && text > greatest.as_str());
                least = least.min(text.to_string());
                greatest = greatest.max(text.to_string());
            }
        }
        assert!(lower > 30 && higher > 30, "{lower} below, {higher} above");
        let uniq = batch.column_by_name("uniq").expect("a column").as_string_view();
        let different: std::collections::BTreeSet<_> = uniq.iter().flatten().collect();
        assert!(different.len() > 150, "{} different ones of 200", different.len());
    }

    #[test]
    fn every_nan_is_in_the_tables() {
        let (mut singles, mut doubles) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
        for rows in [200, 1000] {
            let batch = table(1, rows);
            let single = batch.column_by_name("f32").expect("a column").as_primitive::<Float32Type>();
            let double = batch.column_by_name("f64").expect("a column").as_primitive::<Float64Type>();
            singles.extend(single.iter().flatten().filter(|value| value.is_nan()).map(f32::to_bits));
            doubles.extend(double.iter().flatten().filter(|value| value.is_nan()).map(f64::to_bits));
        }
        assert_eq!(singles, NANS_32.into_iter().collect());
        assert_eq!(doubles, NANS_64.into_iter().collect());
    }

    #[test]
    fn tables_in_memory_have_shapes_of_their_own() {
        let context = SessionContext::new();
        let mut shapes = std::collections::BTreeSet::new();
        for (name, rows, _) in TABLES.into_iter().filter(|table| table.2 == 0) {
            let rows = rows_of(1, name, rows).expect("columns of one length");
            register_rows(&context, name, &rows).expect("registered");
            shapes.insert(shape(name));
        }
        assert!(shapes.len() >= 5, "{shapes:?}");
    }

    #[test]
    fn columns_have_the_types_that_the_generator_believes() {
        let batch = table(1, 33);
        assert_eq!(batch.num_columns(), COLUMNS.len());
        for ((name, ty), field) in COLUMNS.iter().zip(batch.schema().fields()) {
            assert_eq!(*name, field.name());
            let name_of_type = if ["v", "uniq"].contains(name) { "Utf8View".to_string() } else { ty.to_string() };
            let expected: DataType = name_of_type.parse().expect("arrow_cast reads these names too");
            assert_eq!(expected, *field.data_type(), "{name}");
        }
    }
}
