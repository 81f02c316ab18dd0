//! What a join learns while it runs leaves out rows of the column that it learnt of, and of no other of that name.

use millpond::datafusion::arrow::util::display::array_value_to_string;
use millpond::datafusion::prelude::{ParquetReadOptions, SessionConfig};
use millpond::{DeviceChoice, Millpond};

/// The number of rows, each of 10 values of `n` 20 times: of the three that the list lets through, 60.
const STATEMENTS: [(&str, &str); 4] = [
    (
        "SELECT count(*), min(a.id), min(e.id) FROM a JOIN e ON a.n = e.j WHERE e.id IN (SELECT x.id FROM x WHERE x.c)",
        "60",
    ),
    (
        "SELECT count(*) FROM (SELECT a.id, a.few, e.id AS other FROM a JOIN e ON a.n = e.j WHERE e.id IN (SELECT id FROM x))",
        "60",
    ),
    ("SELECT count(*) FROM a JOIN e ON a.n = e.j JOIN x ON e.id = x.id WHERE a.few >= 0 AND x.c", "60"),
    ("SELECT count(a.id + e.id) FROM e JOIN a ON a.n = e.j WHERE e.id IN (SELECT id FROM x WHERE c)", "60"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_comes_to_its_own_column() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(format!("{name}.parquet")).display().to_string();
    let writer = Millpond::builder().with_device(DeviceChoice::Cpu).build().expect("a session");
    for (name, query) in [
        ("a", "SELECT value AS id, value % 10 AS n, value % 7 AS few FROM generate_series(100, 299)"),
        ("e", "SELECT value AS id, value AS j FROM generate_series(0, 9)"),
        ("x", "SELECT value AS id, true AS c FROM generate_series(3, 5)"),
    ] {
        writer.execute(&format!("COPY ({query}) TO '{}'", file(name))).await.expect("a file");
    }
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        for (partitions, threshold) in [(1, None), (4, Some(0)), (3, None)] {
            let mut config = SessionConfig::new().with_target_partitions(partitions);
            if let Some(threshold) = threshold {
                config.options_mut().optimizer.hash_join_single_partition_threshold = threshold;
                config.options_mut().optimizer.hash_join_single_partition_threshold_rows = threshold;
            }
            let builder = Millpond::builder().with_own_engine().with_device(device).with_config(config);
            let session = builder.with_option("min_rows", "0").expect("an option").build().expect("a session");
            for name in ["a", "e", "x"] {
                let table = session.context().register_parquet(name, file(name), ParquetReadOptions::default());
                table.await.expect("a table");
            }
            for (sql, expected) in STATEMENTS {
                for run in 0..3 {
                    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
                    let count = array_value_to_string(result.batches[0].column(0), 0).expect("a number");
                    assert_eq!(count, expected, "{device}, {partitions} partitions, run {run}: {sql}");
                }
            }
        }
    }
}
