//! Sessions and data for the tests.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use millpond::datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray,
};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::dataframe::DataFrameWriteOptions;
use millpond::datafusion::physical_plan::displayable;
use millpond::datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use millpond::{DeviceChoice, Fallback, Millpond};

/// A session on `device`, with few partitions so that plans are small.
pub fn session(device: DeviceChoice) -> Millpond {
    session_with(device, 4, Fallback::Allow)
}

pub fn session_with(device: DeviceChoice, partitions: usize, fallback: Fallback) -> Millpond {
    let config = SessionConfig::new().with_target_partitions(partitions).with_information_schema(true);
    Millpond::builder()
        .with_own_engine()
        .with_device(device)
        .with_fallback(fallback)
        .with_config(config)
        .with_url_tables()
        // Files that a test has just written are as good as old ones.
        .with_option("cache_settle_seconds", "0")
        .expect("an option")
        .build()
        .expect("the device opens")
}

/// `parts`: 1,000 rows of every kind of column, with NULLs at different rows.
pub fn parts() -> RecordBatch {
    let rows = 0..1000_i64;
    let nulls = |every: i64| move |i: i64| i % every != 0;
    let column = |name: &str, array: ArrayRef| (name.to_string(), array, true);
    let int = |f: &dyn Fn(i64) -> Option<i32>| Arc::new(rows.clone().map(f).collect::<Int32Array>()) as ArrayRef;
    let id = Arc::new(rows.clone().collect::<Int64Array>()) as ArrayRef;
    let price = rows.clone().map(|i| nulls(11)(i).then_some(i128::from(i * 37 % 10_000)));
    let price = price.collect::<Decimal128Array>().with_precision_and_scale(12, 2).expect("the precision fits");
    RecordBatch::try_from_iter_with_nullable(vec![
        ("id".to_string(), id, false),
        column("size", int(&|i| nulls(7)(i).then_some((i * 13 % 50) as i32))),
        column("zero", int(&|i| Some((i % 5) as i32))),
        column("price", Arc::new(price)),
        column(
            "weight",
            Arc::new(rows.clone().map(|i| nulls(5)(i).then_some(i as f64 / 8.0)).collect::<Float64Array>()),
        ),
        column("made", Arc::new(rows.clone().map(|i| Some(8000 + (i % 1500) as i32)).collect::<Date32Array>())),
        column("good", Arc::new(rows.clone().map(|i| nulls(3)(i).then_some(i % 2 == 0)).collect::<BooleanArray>())),
        column(
            "name",
            Arc::new(
                rows.map(|i| nulls(13)(i).then_some(["bolt", "nut", "gear", "é", ""][(i % 5) as usize]))
                    .collect::<StringArray>(),
            ),
        ),
    ])
    .expect("columns have one length")
}

/// Registers `parts` from a Parquet file with several row groups.
pub async fn register_parquet(context: &SessionContext, folder: &tempfile::TempDir) {
    let path = folder.path().join("parts.parquet");
    if !path.exists() {
        let plain = SessionContext::new();
        let mut options = millpond::datafusion::common::config::TableParquetOptions::default();
        options.global.max_row_group_size = 300;
        let frame = plain.read_batch(parts()).expect("a batch is a frame");
        let options = Some(options);
        frame
            .write_parquet(
                path.to_str().expect("a UTF-8 path"),
                DataFrameWriteOptions::new().with_single_file_output(true),
                options,
            )
            .await
            .expect("the file is written");
    }
    context
        .register_parquet("parts", path.to_str().expect("a UTF-8 path"), ParquetReadOptions::default())
        .await
        .expect("the file is read");
}

/// The physical plan of `sql`, as EXPLAIN prints it, file names left out.
pub async fn plan_text(session: &Millpond, sql: &str) -> String {
    let frame = session.context().sql(sql).await.expect("the query is planned");
    let plan = frame.create_physical_plan().await.expect("the plan is made");
    let text = displayable(plan.as_ref()).indent(false).to_string();
    let line = |line: &str| match line.find("DataSourceExec") {
        Some(at) => line[..at + "DataSourceExec".len()].to_string(),
        None => line.to_string(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Limit for a hang, even on a busy machine: it bounds waits for a state, and asserts nothing about time.
const HANG: Duration = Duration::from_secs(900);

/// Result of `work`; a hang is a failure.
pub async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, work).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

/// Waits until `state` is true.
pub async fn until(what: &str, state: impl Fn() -> bool) {
    let wait = async {
        while !state() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, wait).await;
}
