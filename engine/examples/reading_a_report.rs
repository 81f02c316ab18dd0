//! Did it run on the GPU, and if not, why? What a report says, as a line, as fields and as JSON.
//!
//!   cargo run -p millpond --example reading_a_report

use std::error::Error;

use millpond::prelude::*;

/// Reports of a query that runs on the device, and of one that has a part without a device form.
pub async fn reports(device: DeviceChoice) -> Result<[QueryReport; 2], Box<dyn Error>> {
    let session = Millpond::builder().with_device(device).build()?;
    session.execute("CREATE TABLE t AS SELECT value AS v, 'a' || value AS s FROM generate_series(1, 1000)").await?;
    let all = session.execute("SELECT count(*), sum(v) FROM t WHERE v > 10").await?.report;
    let part = session.execute("SELECT to_char(arrow_cast(v, 'Date32'), s) FROM t WHERE v > 990").await?.report;
    Ok([all, part])
}

#[tokio::main]
#[allow(dead_code, reason = "a test runs `reports`")]
async fn main() -> Result<(), Box<dyn Error>> {
    for report in reports(DeviceChoice::Auto).await? {
        println!("{report}");
        println!("  on the device: {} of {} operators", report.operators_on_device, report.operators);
        println!("  {} bytes up, {} down, {} waits", report.uploaded_bytes, report.downloaded_bytes, report.host_waits);
        println!("  why not: {:?}", report.reasons);
        println!("  {}", serde_json::to_string(&report)?);
    }
    Ok(())
}
