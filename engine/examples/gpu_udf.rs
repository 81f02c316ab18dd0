//! Two functions of one's own on the device: a distance on the Earth in PTX, and a body mass index built in Rust.
//!
//!   cargo run -p millpond --example gpu_udf                 on the simulated device
//!   cargo run -p millpond --example gpu_udf -- cuda         on a GPU
//!
//! Both come with a CPU body, which runs where the device has no part in a query.

use std::error::Error;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array};
use datafusion::arrow::compute::kernels::numeric;
use datafusion::arrow::datatypes::DataType::{Float64, Utf8};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use millpond::datafusion;
use millpond::{DeviceChoice, DeviceFunction, Fallback, Millpond, NullHandling, QueryResult};

/// The distance in kilometres between two places given in degrees.
fn haversine(lat1: f64, lon1: f64, lat2: f64, lon2: f64) -> f64 {
    let (up, along) = ((lat2 - lat1).to_radians() / 2.0, (lon2 - lon1).to_radians() / 2.0);
    let h = up.sin().powi(2) + lat1.to_radians().cos() * lat2.to_radians().cos() * along.sin().powi(2);
    2.0 * 6371.0088 * h.min(1.0).sqrt().asin()
}

/// The CPU body of `haversine`: row by row, NULL where an argument is NULL.
fn haversine_on_cpu() -> ScalarUDF {
    let body = |arguments: &[ColumnarValue]| {
        let arrays = ColumnarValue::values_to_arrays(arguments)?;
        let column = |index: usize| datafusion::common::cast::as_float64_array(&arrays[index]);
        let columns = [column(0)?, column(1)?, column(2)?, column(3)?];
        let distance = |row: usize| {
            let [a, b, c, d] = columns.map(|column| column.iter().nth(row).flatten());
            Some(haversine(a?, b?, c?, d?))
        };
        let distances: Float64Array = (0..columns[0].len()).map(distance).collect();
        Ok(ColumnarValue::Array(Arc::new(distances) as ArrayRef))
    };
    create_udf("haversine", vec![Float64; 4], Float64, Volatility::Immutable, Arc::new(body))
}

/// The CPU body of `body_mass_index`.
fn body_mass_index_on_cpu() -> ScalarUDF {
    let body = |arguments: &[ColumnarValue]| {
        let arrays = ColumnarValue::values_to_arrays(arguments)?;
        let square = numeric::mul(&arrays[1], &arrays[1])?;
        Ok(ColumnarValue::Array(numeric::div(&arrays[0], &square)?))
    };
    create_udf("body_mass_index", vec![Float64; 2], Float64, Volatility::Immutable, Arc::new(body))
}

/// Registers both, and asks for distances from Utrecht.
pub async fn distances(device: DeviceChoice) -> Result<QueryResult, Box<dyn Error>> {
    let session = Millpond::builder().with_device(device).with_fallback(Fallback::Error).build()?;

    let ptx = include_str!("haversine.ptx");
    let strict = NullHandling::Strict;
    let function =
        DeviceFunction::from_ptx(haversine_on_cpu(), &[const { Float64 }; 4], &Float64, ptx, "haversine", strict)?;
    session.register_function(function)?;

    let built = DeviceFunction::from_builder(body_mass_index_on_cpu(), &[Float64, Float64], &Float64, |b, x| {
        let square = b.multiply(&x[1], &x[1])?;
        b.divide(&x[0], &square)
    })?;
    session.register_function(built)?;

    let column = |values: Vec<Option<f64>>| Arc::new(Float64Array::from(values)) as ArrayRef;
    let names = ["Amsterdam", "Wellington", "Quito", "nowhere"];
    let people = RecordBatch::try_from_iter(vec![
        (
            "place",
            datafusion::arrow::compute::cast(&datafusion::arrow::array::StringArray::from_iter_values(names), &Utf8)?,
        ),
        ("lat", column(vec![Some(52.3731), Some(-41.2924), Some(-0.2202), None])),
        ("lon", column(vec![Some(4.8926), Some(174.7787), Some(-78.5123), Some(0.0)])),
        ("kg", column(vec![Some(81.0), Some(64.5), None, Some(70.0)])),
        ("metres", column(vec![Some(1.9), Some(1.62), Some(1.7), Some(1.75)])),
    ])?;
    session.context().register_batch("people", people)?;
    let sql = "SELECT place, haversine(52.0907, 5.1214, lat, lon) AS km, body_mass_index(kg, metres) AS bmi
               FROM people WHERE haversine(52.0907, 5.1214, lat, lon) > 10 OR lat IS NULL ORDER BY km";
    Ok(session.execute(sql).await?)
}

#[tokio::main]
#[allow(dead_code, reason = "a test runs `distances`")]
async fn main() -> Result<(), Box<dyn Error>> {
    let device = match std::env::args().nth(1).as_deref() {
        Some("cuda") => DeviceChoice::Cuda(0),
        _ => DeviceChoice::Sim,
    };
    let answer = distances(device).await?;
    println!("{}", pretty_format_batches(&answer.batches)?);
    println!("{} launches on the {}", answer.report.launches, answer.report.device.as_deref().unwrap_or("CPU"));
    Ok(())
}
