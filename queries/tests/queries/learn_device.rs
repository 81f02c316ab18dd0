//! Machine learning on the device: answers equal to the CPU's to the last bit, and fallbacks to the CPU with its
//! errors.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use millpond::datafusion::prelude::SessionConfig;
use millpond::kernels::image::IMAGES;
use millpond::{DeviceChoice, Fallback, Millpond, QueryResult, error};
use millpond_queries::functions;
use serde_json::Value;

use crate::support::{Numbers, plan, rows, table};

const ROWS: usize = 300;

pub fn session(device: DeviceChoice, fallback: Fallback, options: &[(&str, usize)]) -> Millpond {
    let config = SessionConfig::new().with_target_partitions(3).with_batch_size(64);
    let mut builder =
        Millpond::builder().with_own_engine().with_device(device).with_fallback(fallback).with_config(config);
    for (name, value) in options {
        builder = builder.with_option(name, &value.to_string()).expect("the option is taken");
    }
    let session = builder.build().expect("the device opens");
    functions::register(session.context()).expect("the functions are registered");
    register(&session);
    session
}

fn doubles(values: impl IntoIterator<Item = Option<f64>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<Float64Array>())
}

/// Registers unordered rows in three clusters; `odd` has values that cannot be learned from.
fn register(session: &Millpond) {
    let mut numbers = Numbers(11);
    let mut values = |scale: f64| -> Vec<f64> {
        (0..ROWS).map(|row| scale * (row % 3) as f64 + numbers.below(1_000) as f64 / 77.0).collect()
    };
    let (x, y) = (values(40.0), values(-90.0));
    let label = |row: usize| i64::from((x[row] * 3.0 + y[row]) > numbers_border(row));
    let ids: Vec<i64> = (0..ROWS as i64).map(|row| (row * 7) % ROWS as i64 / 2).collect();
    let names = ids.iter().map(|id| Some(format!("no. {id}"))).collect::<StringArray>();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from(ids))),
        ("name", Arc::new(names)),
        ("x", doubles(x.iter().map(|x| Some(*x)))),
        ("y", doubles(y.iter().map(|y| Some(*y)))),
        ("n", Arc::new(Int64Array::from_iter_values((0..ROWS as i64).map(|row| row * row % 61)))),
        ("b", Arc::new(BooleanArray::from_iter((0..ROWS).map(|row| Some(row % 5 == 0))))),
        ("label", Arc::new(Int64Array::from_iter_values((0..ROWS).map(label)))),
    ];
    table(session.context(), "points", 3, columns);
    let odd = |value: Option<f64>| doubles((0..40).map(|row| if row == 33 { value } else { Some(f64::from(row)) }));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..40))),
        ("missing", odd(None)),
        ("nan", odd(Some(f64::NAN))),
        ("infinite", odd(Some(f64::INFINITY))),
        ("huge", doubles((0..40).map(|row| Some(if row % 2 == 0 { 1e308 } else { -1e308 })))),
        ("fine", odd(Some(0.0))),
        ("bit", Arc::new(Int64Array::from_iter_values((0..40).map(|row| row % 2)))),
        ("same", doubles((0..40).map(|_| Some(0.1)))),
        ("one", Arc::new(Int64Array::from(vec![1; 40]))),
    ];
    table(session.context(), "odd", 2, columns);
}

fn numbers_border(row: usize) -> f64 {
    (row * 31 % 50) as f64 - 20.0
}

const FITS: [&str; 6] = [
    "SELECT * FROM kmeans('points', 'id', ['x', 'y'], 3)",
    "SELECT * FROM kmeans('SELECT name, x, n, b FROM points WHERE id > 10', 'name', ['x', 'n', 'b'], 5, 6, 3, 99)",
    "SELECT * FROM kmeans_centers('points', 'id', ['x', 'y', 'n'], 4)",
    "SELECT label, count(*) AS n FROM kmeans_predict('points', 'id', ['x', 'y'],
         'SELECT id % 5 * 100 AS label, x, y FROM points WHERE id < 9') GROUP BY label ORDER BY label",
    "SELECT * FROM logistic_report('points', 'label', ['x', 'y', 'n', 'b'])",
    "SELECT * FROM logistic_predict('points', 'id', 'label', ['x', 'y'], 9)",
];

pub async fn answer(session: &Millpond, sql: &str) -> QueryResult {
    session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

async fn cpu_rows(sql: &str) -> Vec<Vec<String>> {
    rows(&answer(&session(DeviceChoice::Cpu, Fallback::Allow, &[]), sql).await.batches, sql.contains("ORDER BY"))
}

/// Floats are compared in their shortest exact decimal form.
async fn same_on_the_device(sql: &str, expected: &[Vec<String>], options: &[(&str, usize)]) {
    let sim = session(DeviceChoice::Sim, Fallback::Error, options);
    let found = answer(&sim, sql).await;
    assert_eq!(rows(&found.batches, sql.contains("ORDER BY")), expected, "{sql} with {options:?}");
    let report = &found.report;
    assert!(report.launches > 0 && report.operators_on_device == report.operators, "{sql}: {report:?}");
    assert!(report.findings.is_empty() && report.notes.is_empty(), "{sql}: {report:?}");
    assert_eq!(report.pool_used_bytes, 0, "{sql} with {options:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_the_cpus_to_the_last_bit() {
    for sql in FITS {
        let expected = cpu_rows(sql).await;
        assert!(!expected.is_empty(), "{sql}");
        for (batch_rows, seed) in [(3, 1), (30, 2), (100, 3), (100_000, 4)] {
            let options = [("batch_rows", batch_rows), ("partitions", 2), ("debug_sim_seed", seed)];
            same_on_the_device(sql, &expected, &options).await;
        }
    }
}

#[tokio::test]
async fn few_rows_equal_rows_and_one_class_have_the_cpus_answers() {
    for sql in [
        // Fewer rows than clusters; only equal rows; no rows.
        "SELECT * FROM kmeans_centers('SELECT * FROM odd WHERE id < 3', 'id', 'fine', 8)",
        "SELECT * FROM kmeans('SELECT * FROM odd WHERE id < 3', 'id', 'fine', 8)",
        "SELECT * FROM kmeans('odd', 'id', ['same', 'one'], 3)",
        "SELECT * FROM kmeans('SELECT * FROM odd WHERE id > 90', 'id', 'fine', 3)",
        "SELECT * FROM kmeans_centers('SELECT * FROM odd WHERE id > 90', 'id', 'fine', 3)",
        "SELECT * FROM kmeans_predict('SELECT * FROM odd WHERE id > 90', 'id', 'fine', 'SELECT id AS label, fine FROM odd')",
        // One class, constant columns, separable classes, no rows.
        "SELECT * FROM logistic_report('odd', 'one', ['fine', 'same'])",
        "SELECT * FROM logistic_report('odd', 'bit', ['same', 'one'])",
        "SELECT * FROM logistic_predict('odd', 'id', 'bit', ['bit', 'fine'])",
        "SELECT * FROM logistic_report('SELECT * FROM odd WHERE id > 90', 'bit', 'fine')",
        "SELECT * FROM logistic_predict('SELECT * FROM odd WHERE id > 90', 'id', 'bit', 'fine')",
    ] {
        same_on_the_device(sql, &cpu_rows(sql).await, &[("batch_rows", 7)]).await;
    }
}

#[tokio::test]
async fn what_the_cpu_refuses_is_its_error_on_the_device() {
    for column in ["missing", "nan", "infinite", "huge"] {
        for call in [
            format!("kmeans('odd', 'id', ['fine', '{column}'], 2)"),
            format!("kmeans_centers('odd', 'id', '{column}', 2)"),
            format!("logistic_report('odd', 'bit', '{column}')"),
            format!("logistic_report('odd', '{column}', 'fine')"),
            format!("kmeans_predict('odd', 'id', 'fine', 'SELECT id AS label, {column} AS fine FROM odd')"),
            format!(
                "kmeans_predict('SELECT id, {column} AS fine FROM odd', 'id', 'fine', 'SELECT id AS label, fine FROM odd')"
            ),
        ] {
            let sql = format!("SELECT * FROM {call}");
            let cpu = session(DeviceChoice::Cpu, Fallback::Allow, &[]);
            let sim = session(DeviceChoice::Sim, Fallback::Allow, &[]);
            match (cpu.execute(&sql).await, sim.execute(&sql).await) {
                (Ok(expected), Ok(found)) => {
                    assert_eq!(rows(&found.batches, false), rows(&expected.batches, false), "{sql}");
                    assert_eq!(column, "huge", "{sql} has an answer");
                }
                (Err(expected), Err(found)) => {
                    assert_eq!(found.strip_backtrace(), expected.strip_backtrace(), "{sql}");
                }
                (expected, found) => panic!("{sql}: {:?}, expected {:?}", found.err(), expected.err()),
            }
            assert_eq!(sim.engine().expect("a device").take_findings(), Vec::<String>::new(), "{sql}");
        }
    }
    let strict = session(DeviceChoice::Sim, Fallback::Error, &[]);
    let refused = strict.execute("SELECT * FROM kmeans('odd', 'id', 'nan', 2)").await.err().expect("a fallback");
    assert!(error::is_forbidden_fallback(&refused), "{refused}");
}

#[tokio::test]
async fn what_stays_on_the_cpu_has_a_reason() {
    for (call, reason) in [
        ("logistic_regression('points', 'label', 'x')", "the names of its terms are made on the CPU"),
        ("kmeans('points', 'id', 'x', 4000)", "it adds up 12000 sums, and the device up to 4096"),
        (
            "kmeans_predict('points', 'id', 'x', 'SELECT name AS label, x FROM points')",
            "kmeans_predict has no device form: labels of type Utf8",
        ),
    ] {
        let sql = format!("SELECT * FROM {call}");
        let sim = session(DeviceChoice::Sim, Fallback::Allow, &[]);
        let text = plan(&sim, &sql).await;
        assert!(text.contains(reason) && !text.contains("DeviceKMeans"), "{sql}: {text}");
        let found = answer(&sim, &sql).await;
        assert_eq!(rows(&found.batches, false), cpu_rows(&sql).await, "{sql}");
    }
}

#[tokio::test]
async fn every_kernel_is_launched() {
    let sim = session(DeviceChoice::Sim, Fallback::Error, &[]);
    for sql in FITS {
        answer(&sim, sql).await;
    }
    let launched = sim.engine().expect("a device").simulated().expect("it is simulated").launched();
    let image = IMAGES.iter().find(|image| image.name == "learn").expect("there is an image");
    let missing: Vec<&str> = image.kernels().filter(|kernel| !launched.contains_key(*kernel)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[tokio::test]
async fn explain_prints_the_device_nodes() {
    let sim = session(DeviceChoice::Sim, Fallback::Error, &[]);
    let text = plan(&sim, FITS[0]).await;
    assert!(text.contains("DeviceKMeansExec: [id@0, x@1, y@2], k=3"), "{text}");
    assert!(text.contains("DeviceSortExec: expr=[id@0 ASC NULLS LAST, x@1 ASC NULLS LAST"), "{text}");
    let text = plan(&sim, FITS[3]).await;
    assert!(text.contains("DeviceKMeansPredictExec") && text.contains("DeviceAggregateExec"), "{text}");
    assert!(plan(&sim, FITS[4]).await.contains("DeviceLogisticRegressionExec"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_faults_and_in_short_memory_the_answers_are_the_same() {
    for sql in [FITS[1], FITS[3], FITS[5]] {
        let expected = cpu_rows(sql).await;
        let peak = {
            let free = session(DeviceChoice::Sim, Fallback::Error, &[("batch_rows", 50)]);
            answer(&free, sql).await.report.peak_bytes as usize
        };
        let faults = [
            ("debug_sim_lose_at_launch", 2),
            ("debug_sim_lose_at_launch", 9),
            ("debug_sim_fail_allocation", 3),
            ("debug_sim_fail_allocation", 11),
            ("debug_sim_fail_allocation", 19),
            ("memory_limit_bytes", 1),
            ("memory_limit_bytes", peak / 2),
        ];
        for fault in faults {
            let sim = session(DeviceChoice::Sim, Fallback::Allow, &[("batch_rows", 50), fault]);
            let found = answer(&sim, sql).await;
            assert_eq!(rows(&found.batches, sql.contains("ORDER BY")), expected, "{sql} with {fault:?}");
            let noted = found.report.notes.iter().any(|note| note.contains("on the CPU"));
            assert!(noted || fault.1 > 2, "{sql} with {fault:?}: {:?}", found.report.notes);
            assert_eq!(sim.engine().expect("a device").take_findings(), Vec::<String>::new(), "{sql} with {fault:?}");
        }
    }
}

fn list(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|value| value.as_f64().expect("a number")).collect()
}

/// Columns `x0`, `x1` … of row-major values.
fn columns(values: &[f64], width: usize) -> Vec<(String, ArrayRef)> {
    let column = |column: usize| doubles(values.iter().skip(column).step_by(width).map(|value| Some(*value)));
    (0..width).map(|index| (format!("x{index}"), column(index))).collect()
}

fn register_columns(session: &Millpond, name: &str, first: (&str, Vec<f64>), others: &[(String, ArrayRef)]) {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(first.1.iter().map(|value| *value as i64)));
    let mut all: Vec<(&str, ArrayRef)> = vec![(first.0, numbers)];
    all.extend(others.iter().map(|(name, column)| (name.as_str(), Arc::clone(column))));
    table(session.context(), name, 2, all);
}

fn names(width: usize) -> String {
    (0..width).map(|index| format!("'x{index}'")).collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn the_librarys_labels_and_confusion_are_the_devices() {
    let vectors: Value = serde_json::from_str(include_str!("../oracles/learning.json")).expect("the file is JSON");
    for (number, case) in vectors["kmeans"].as_array().expect("cases").iter().enumerate() {
        let sim = session(DeviceChoice::Sim, Fallback::Error, &[]);
        let width = case["columns"].as_u64().expect("a count") as usize;
        let (values, centers) = (columns(&list(&case["values"]), width), columns(&list(&case["centers"]), width));
        let (count, clusters) = (values[0].1.len(), centers[0].1.len());
        register_columns(&sim, "data", ("id", (0..count).map(|row| row as f64).collect()), &values);
        register_columns(&sim, "centers", ("label", (0..clusters).map(|row| row as f64).collect()), &centers);
        let sql = format!("SELECT label FROM kmeans_predict('data', 'id', [{}], 'centers') ORDER BY id", names(width));
        let found = rows(&answer(&sim, &sql).await.batches, true);
        let expected: Vec<Vec<String>> = list(&case["labels"]).iter().map(|label| vec![label.to_string()]).collect();
        assert_eq!(found, expected, "case {number}");
    }
    for (number, case) in vectors["logistic"].as_array().expect("cases").iter().enumerate() {
        let sim = session(DeviceChoice::Sim, Fallback::Error, &[]);
        let width = case["columns"].as_u64().expect("a count") as usize;
        register_columns(&sim, "data", ("y", list(&case["labels"])), &columns(&list(&case["values"]), width));
        let sql = format!("SELECT tn, fp, fn, tp FROM logistic_report('data', 'y', [{}])", names(width));
        let found = rows(&answer(&sim, &sql).await.batches, true);
        let expected: Vec<String> = list(&case["confusion"]).iter().map(ToString::to_string).collect();
        assert_eq!(found, [expected], "case {number}");
    }
}
