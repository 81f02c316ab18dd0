//! Four sessions of one device that take batches as they come; one of them stops early.
//!
//!   cargo run -p millpond --example streaming

use std::error::Error;

use futures::StreamExt;
use millpond::prelude::*;

const SQL: &str = "SELECT value, value * value AS square FROM generate_series(1, 50000) WHERE value % 3 = 0";

/// Rows that each session took, and the bytes that all of them left on the device.
pub async fn rows(first: &Millpond) -> Result<(Vec<u64>, u64), Box<dyn Error>> {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..4_usize {
        // The device, its pool and its kernels are shared; tables and options are not.
        let session = first.another()?;
        tasks.spawn(async move {
            let mut batches = session.stream(SQL).await?;
            while let Some(batch) = batches.next().await {
                batch?;
                if number == 3 {
                    // Dropped, or asked for its report, a stream ends its query.
                    break;
                }
            }
            Ok::<_, datafusion::error::DataFusionError>((number, batches.report().await.answer_rows))
        });
    }
    let mut rows = vec![0; 4];
    while let Some(taken) = tasks.join_next().await {
        let (number, taken) = taken??;
        rows[number] = taken;
    }
    Ok((rows, first.pool_used_bytes()))
}

#[tokio::main]
#[allow(dead_code, reason = "a test runs `rows`")]
async fn main() -> Result<(), Box<dyn Error>> {
    let session = Millpond::builder().with_device(DeviceChoice::Auto).build()?;
    let (rows, left) = rows(&session).await?;
    println!("rows taken: {rows:?}; bytes left on the device: {left}");
    Ok(())
}
