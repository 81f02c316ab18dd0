//! The library's examples, run on the simulated device; `gpu_udf` and `sessions` have tests of their own.

use std::path::Path;

use millpond::datafusion::arrow::array::AsArray;
use millpond::datafusion::arrow::compute::{cast, concat_batches};
use millpond::datafusion::arrow::datatypes::{DataType, Float64Type};
use millpond::prelude::*;

#[path = "../../examples/allocators.rs"]
mod allocators;
#[path = "../../examples/dataframe.rs"]
mod dataframe;
#[path = "../../examples/quickstart.rs"]
mod quickstart;
#[path = "../../examples/reading_a_report.rs"]
mod reading_a_report;
#[path = "../../examples/streaming.rs"]
mod streaming;

fn sample() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/samples/sales.parquet");
    file.to_str().expect("a UTF-8 path").to_string()
}

/// Rows as texts, and the last column as floats.
fn rows(result: &QueryResult) -> Vec<(String, f64)> {
    let batch = concat_batches(&result.schema, &result.batches).expect("one schema");
    let names = cast(batch.column(0), &DataType::Utf8).expect("texts");
    let values = cast(batch.column(batch.num_columns() - 1), &DataType::Float64).expect("floats");
    let names = names.as_string::<i32>().iter().map(|name| name.unwrap_or("NULL").to_string());
    names.zip(values.as_primitive::<Float64Type>().values().iter().copied()).collect()
}

/// The values are those of DuckDB 2.0.1 over the same file.
#[tokio::test]
async fn quickstart_and_frames_give_what_duckdb_gives() {
    let file = sample();
    let sales = quickstart::sales(DeviceChoice::Sim, &file).await.expect("the example runs");
    assert_eq!(rows(&sales), SALES.map(|(name, value)| (name.to_string(), value)));
    let taxes = dataframe::taxes(DeviceChoice::Sim, &file).await.expect("the example runs");
    for ((name, value), (expected, of)) in rows(&taxes).into_iter().zip(TAXES) {
        assert!(name == expected && (value - of).abs() <= 1e-9 * of, "{name}: {value}, not {expected}: {of}");
    }
    assert_eq!(rows(&taxes).len(), TAXES.len());
    for report in [&sales.report, &taxes.report] {
        assert_eq!(report.share_on_device(), Some(1.0), "{report}");
    }
}

const SALES: [(&str, f64); 5] = [
    ("living", 2_459_895.38),
    ("kitchen", 1_419_785.15),
    ("workshop", 1_262_586.26),
    ("NULL", 572_050.00),
    ("garden", 455_691.45),
];
const TAXES: [(&str, f64); 3] =
    [("garden", 6_389.982_900_000_103), ("kitchen", 53_971.029_499_997_654), ("living", 94_098.681_800_002_83)];

#[tokio::test]
async fn a_report_names_what_stays_on_the_cpu() {
    let [all, part] = reading_a_report::reports(DeviceChoice::Sim).await.expect("the example runs");
    assert_eq!((all.share_on_device(), all.reasons.len(), all.answer_rows), (Some(1.0), 0, 1));
    assert!(part.reasons.iter().any(|reason| reason.contains("to_char")), "{part}");
    assert_eq!(part.answer_rows, 10);
    assert!(all.planning_ns > 0 && all.wall_ns > all.planning_ns);
}

#[tokio::test]
async fn each_allocator_has_a_report() {
    for allocator in Strategy::ALL {
        let report = allocators::report(DeviceChoice::Sim, allocator).await.expect("the example runs");
        assert_eq!((report.memory_resource, report.answer_rows), (Some(allocator.name()), 10));
        assert!(report.allocations > 0 && report.findings.is_empty(), "{report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn streams_end_early_and_leave_nothing() {
    let session = Millpond::builder().with_device(DeviceChoice::Sim).with_own_engine().build().expect("a session");
    let (rows, left) = streaming::rows(&session).await.expect("the example runs");
    assert_eq!((&rows[..3], left), (&[16_666; 3][..], 0));
    assert!((1..=16_666).contains(&rows[3]), "{rows:?}");
}
