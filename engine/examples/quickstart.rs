//! SQL over a Parquet file, on the GPU where there is one.
//!
//!   cargo run -p millpond --example quickstart -- data/samples/sales.parquet

use std::error::Error;

use millpond::prelude::*;

/// Sums up the sales of a file, by category.
pub async fn sales(device: DeviceChoice, file: &str) -> Result<QueryResult, Box<dyn Error>> {
    let session = Millpond::builder().with_device(device).with_url_tables().build()?;
    // Why queries run on the CPU, if they do.
    if let Some(note) = session.device_note() {
        eprintln!("{note}");
    }
    let sql = format!(
        "SELECT category, count(*) AS sales, sum(price * quantity) AS revenue FROM '{file}' \
         WHERE quantity >= $least GROUP BY category ORDER BY revenue DESC"
    );
    let parameters = vec![("least", ScalarValue::from(2_i64))];
    Ok(session.execute_with(&sql, parameters).await?)
}

#[tokio::main]
#[allow(dead_code, reason = "a test runs `sales`")]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "data/samples/sales.parquet".to_string());
    let result = sales(DeviceChoice::Auto, &file).await?;
    println!("{}\n{}", pretty_format_batches(&result.batches)?, result.report);
    Ok(())
}
