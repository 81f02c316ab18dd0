//! One query under each allocation strategy: device calls, bytes and the time in the allocator.
//!
//!   cargo run --release -p millpond --example allocators

use std::error::Error;

use millpond::prelude::*;

const SQL: &str = "SELECT k % 10 AS k, count(*) AS n, sum(v) AS s FROM t GROUP BY k % 10 ORDER BY s DESC";

/// Runs it twice under `allocator`, and reports the second run.
pub async fn report(device: DeviceChoice, allocator: Strategy) -> Result<QueryReport, Box<dyn Error>> {
    // Columns that stay would hide what a query allocates for its input.
    let builder = Millpond::builder().with_device(device).with_allocator(allocator).with_cache(Cache::Off);
    let session = builder.build()?;
    let made = "CREATE TABLE t AS SELECT value AS k, value * 3 AS v FROM generate_series(1, 100000)";
    session.execute(made).await?;
    session.execute(SQL).await?;
    Ok(session.execute(SQL).await?.report)
}

#[tokio::main]
#[allow(dead_code, reason = "a test runs `report`")]
async fn main() -> Result<(), Box<dyn Error>> {
    for allocator in Strategy::ALL {
        let report = report(DeviceChoice::Auto, allocator).await?;
        let milliseconds = report.allocator_ns as f64 / 1e6;
        let (allocations, bytes) = (report.allocations, report.allocated_bytes);
        println!("{allocator:>20}  {allocations:>4} allocations  {bytes:>12} bytes  {milliseconds:>8.3} ms  {report}");
    }
    Ok(())
}
