//! DataFusion's DataFrames over a table in memory and a Parquet file, collected with a report.
//!
//!   cargo run -p millpond --example dataframe -- data/samples/sales.parquet

use std::error::Error;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use datafusion::functions_aggregate::expr_fn::sum;
use datafusion::logical_expr::{JoinType, col, lit};
use datafusion::prelude::ParquetReadOptions;
use millpond::datafusion;
use millpond::prelude::*;

/// Taxes of the sales of a file.
pub async fn taxes(device: DeviceChoice, file: &str) -> Result<QueryResult, Box<dyn Error>> {
    let session = Millpond::builder().with_device(device).build()?;
    let categories: ArrayRef = Arc::new(StringArray::from(vec!["kitchen", "garden", "living"]));
    let rates: ArrayRef = Arc::new(Float64Array::from(vec![0.19, 0.07, 0.19]));
    let rates = RecordBatch::try_from_iter([("of", categories), ("rate", rates)])?;

    let context = session.context();
    let rates = context.read_batch(rates)?;
    let sales = context.read_parquet(file, ParquetReadOptions::default()).await?;
    let frame = sales
        .filter(col("quantity").gt(lit(1)))?
        .join(rates, JoinType::Inner, &["category"], &["of"], None)?
        .aggregate(vec![col("category")], vec![sum(col("price") * col("rate")).alias("tax")])?
        .sort(vec![col("category").sort(true, false)])?;
    Ok(session.collect(frame).await?)
}

#[tokio::main]
#[allow(dead_code, reason = "a test runs `taxes`")]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "data/samples/sales.parquet".to_string());
    let result = taxes(DeviceChoice::Auto, &file).await?;
    println!("{}\n{}", pretty_format_batches(&result.batches)?, result.report);
    Ok(())
}
