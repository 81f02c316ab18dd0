//! The sample of the README: sales of a small chain of shops, with NULLs in every kind of column.
//!
//! ```text
//!   sale_id  store_id  product   category  quantity  price   discount  sold_on     weight_kg  customer    is_return
//!   1        17        kettle    kitchen   3         24.90   NULL      2025-02-11  1.25       cust-00412  false
//! ```
//!
//! Rows    [`NUM_ROWS`], ordered by `sale_id` and nearly by `sold_on`.
//! Layout  that of `millpond parquet rewrite`; the file is smaller than one row group. `millpond parquet check` reports
//!         nothing.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::parquet::{Codec, Values, device_layout, write_parts};
use crate::rng::ColumnRng;
use crate::{DataError, Replaced, WrittenFile};

pub const NUM_ROWS: u64 = 60_000;
const SEED: u64 = 0x4d69_6c6c_706f_6e64;
/// 2025-01-01 in days since 1970-01-01.
const FIRST_DAY: i32 = 20_089;

/// Product, category and price in cents.
const PRODUCTS: [(&str, Option<&str>, i128); 12] = [
    ("kettle", Some("kitchen"), 2_490),
    ("toaster", Some("kitchen"), 3_995),
    ("pan", Some("kitchen"), 1_850),
    ("lamp", Some("living"), 5_900),
    ("rug", Some("living"), 12_900),
    ("clock", Some("living"), 1_499),
    ("hammer", Some("workshop"), 1_275),
    ("drill", Some("workshop"), 8_999),
    ("trowel", Some("garden"), 950),
    ("hose", Some("garden"), 2_799),
    ("café press", Some("kitchen"), 3_150),
    ("gift card", None, 5_000),
];

/// Schema of the sample.
pub fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("sale_id", DataType::Int64, false),
        Field::new("store_id", DataType::Int32, false),
        Field::new("product", DataType::Utf8, false),
        Field::new("category", DataType::Utf8, true),
        Field::new("quantity", DataType::Int32, true),
        Field::new("price", DataType::Decimal128(9, 2), false),
        Field::new("discount", DataType::Decimal128(4, 2), true),
        Field::new("sold_on", DataType::Date32, true),
        Field::new("weight_kg", DataType::Float64, true),
        Field::new("customer", DataType::Utf8, true),
        Field::new("is_return", DataType::Boolean, true),
    ]))
}

/// Rows `first .. first + num_rows`.
///
/// # Errors
/// [`DataError::Arrow`] if the columns do not fit the schema.
pub fn rows(first: u64, num_rows: u64) -> Result<RecordBatch, DataError> {
    let rows = first..first + num_rows;
    let column = |index| ColumnRng::new(SEED, index);
    // One value in `one_in` is NULL.
    let present = |rng: ColumnRng, row: u64, one_in: u64| !rng.word(row).is_multiple_of(one_in);
    let product = |row| PRODUCTS[column(2).below(row, PRODUCTS.len() as u64) as usize];
    let decimals = |values: Decimal128Array, precision, scale| {
        values
            .with_precision_and_scale(precision, scale)
            .map_err(|source| DataError::Arrow { table: "sample".to_string(), source })
    };

    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| row as i64 + 1))),
        Arc::new(Int32Array::from_iter_values(rows.clone().map(|row| 1 + column(1).below(row, 40) as i32))),
        Arc::new(StringArray::from_iter_values(rows.clone().map(|row| product(row).0))),
        Arc::new(StringArray::from_iter(rows.clone().map(|row| product(row).1))),
        Arc::new(Int32Array::from_iter(
            rows.clone()
                .map(|row| present(column(20), row, 50).then(|| 1 + (column(4).word(row).leading_zeros() as i32) * 2)),
        )),
        Arc::new(decimals(Decimal128Array::from_iter_values(rows.clone().map(|row| product(row).2)), 9, 2)?),
        Arc::new(decimals(
            Decimal128Array::from_iter(
                rows.clone().map(|row| present(column(21), row, 3).then(|| i128::from(column(6).below(row, 26)))),
            ),
            4,
            2,
        )?),
        Arc::new(Date32Array::from_iter(rows.clone().map(|row| {
            let day = FIRST_DAY + (row * 365 / NUM_ROWS) as i32 + column(7).below(row, 3) as i32;
            present(column(22), row, 200).then_some(day)
        }))),
        Arc::new(Float64Array::from_iter(
            rows.clone().map(|row| present(column(23), row, 10).then(|| column(8).below(row, 8_000) as f64 / 64.0)),
        )),
        Arc::new(StringArray::from_iter(
            rows.clone()
                .map(|row| present(column(24), row, 20).then(|| format!("cust-{:05}", column(9).below(row, 5_000)))),
        )),
        Arc::new(BooleanArray::from_iter(
            rows.map(|row| present(column(25), row, 25).then(|| column(10).below(row, 30) == 0)),
        )),
    ];
    RecordBatch::try_new(schema(), columns).map_err(|source| DataError::Arrow { table: "sample".to_string(), source })
}

/// Writes the sample to `path`.
///
/// # Errors
/// [`DataError`] with the path.
pub fn write(path: &Path) -> Result<WrittenFile, DataError> {
    let (schema, part) = (schema(), |_| rows(0, NUM_ROWS).map(|batch| vec![batch]));
    let values = |name: &str| if name == "sale_id" { Values::Sorted } else { Values::Few };
    write_parts(&Replaced, path, &schema, device_layout(&schema, Codec::Snappy, values).build(), 1, part, &|_| ())
}
