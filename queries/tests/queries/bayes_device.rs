//! Naive Bayes on the device: predictions equal to the CPU's, and fallbacks to the CPU with its answers.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, BooleanArray, Date32Array, Float64Array, Int64Array, StringArray};
use millpond::kernels::image::IMAGES;
use millpond::{DeviceChoice, Fallback, Millpond};
use serde_json::Value;

use crate::learn_device::{answer, session};
use crate::support::{Numbers, plan, rows, table};

const ROWS: usize = 240;

/// Words: some correlate with the class, some are not ASCII, and one is too long for an inline view.
const WORDS: [&str; 12] =
    ["Good", "fine", "the", "THE", "bad", "awful,", "MÈRE", "日本", "sandwiches-of-the-day", "über", "a", "so"];

/// Registers texts with classes of several types, some with a NULL text or a NULL class.
pub fn register(session: &Millpond) {
    let mut numbers = Numbers(28);
    let classes: Vec<i64> = (0..ROWS).map(|_| numbers.below(3) as i64).collect();
    let mut text = |class: i64| -> Option<String> {
        let words: Vec<&str> = (0..numbers.below(9))
            .map(|_| WORDS[(numbers.below(8) as usize + class as usize * 2) % WORDS.len()])
            .collect();
        (numbers.below(12) > 0).then(|| words.join(["  ", " "][numbers.below(2) as usize]))
    };
    let texts: StringArray = classes.iter().map(|class| text(*class)).collect();
    let known = |row: usize| row % 17 != 3;
    let names = ["NEG", "NEUT", "positive, that is"];
    let of = |row: usize| known(row).then(|| classes[row]);
    let all = 0..ROWS;
    let integers =
        |value: &dyn Fn(usize) -> Option<i64>| -> ArrayRef { Arc::new((0..ROWS).map(value).collect::<Int64Array>()) };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", integers(&|row| Some((row * 7 % ROWS) as i64))),
        ("content", Arc::new(texts)),
        ("class", Arc::new(all.clone().map(|row| of(row).map(|class| names[class as usize])).collect::<StringArray>())),
        ("number", integers(&|row| of(row).map(|class| class * 1_000_000_007 - 3))),
        ("small", integers(&|row| of(row).map(|class| class - 1))),
        ("day", Arc::new(all.clone().map(|row| of(row).map(|class| class as i32 * 99)).collect::<Date32Array>())),
        ("x", Arc::new(all.clone().map(|row| of(row).map(|class| class as f64)).collect::<Float64Array>())),
        ("b", Arc::new(all.map(|row| of(row).map(|class| class == 1)).collect::<BooleanArray>())),
    ];
    table(session.context(), "reviews", 3, columns);
}

fn sim(fallback: Fallback, options: &[(&str, usize)]) -> Millpond {
    let session = session(DeviceChoice::Sim, fallback, options);
    register(&session);
    session
}

async fn cpu_rows(sql: &str) -> Vec<Vec<String>> {
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, &[]);
    register(&cpu);
    rows(&answer(&cpu, sql).await.batches, true)
}

async fn same_on_the_device(sql: &str, expected: &[Vec<String>], options: &[(&str, usize)]) {
    let sim = sim(Fallback::Error, options);
    let found = answer(&sim, sql).await;
    assert_eq!(rows(&found.batches, true), expected, "{sql} with {options:?}");
    let report = &found.report;
    assert!(report.launches > 0 && report.operators_on_device == report.operators, "{sql}: {report:?}");
    assert!(report.findings.is_empty() && report.notes.is_empty(), "{sql}: {report:?}");
    assert_eq!(report.pool_used_bytes, 0, "{sql} with {options:?}");
}

/// A call over relations for training and prediction, with the class column.
fn call(train: &str, test: &str, class: &str, options: &str) -> String {
    let (train, test) = (train.replace('\'', "''"), test.replace('\'', "''"));
    format!(
        "SELECT * FROM naive_bayes('{train}', '{test}', 'id', 'content', '{class}'{options}) ORDER BY id, prediction, {class}"
    )
}

const TRAIN: &str = "SELECT * FROM reviews WHERE id % 5 <> 0";
const TEST: &str = "SELECT * FROM reviews WHERE id % 5 = 0";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn predictions_are_the_cpus() {
    for (class, options) in [("class", ""), ("number", ", 0.5, 1000"), ("small", ", 2.0, 7"), ("day", ", 1, 1")] {
        let sql = call(TRAIN, TEST, class, options);
        let expected = cpu_rows(&sql).await;
        let predicted: std::collections::HashSet<&String> = expected.iter().map(|row| &row[2]).collect();
        assert!(expected.len() == ROWS / 5 && predicted.contains(&"NULL".to_string()), "{sql}: {predicted:?}");
        assert!(predicted.len() > 2 || class == "day", "{sql}: {predicted:?}");
        for (batch_rows, seed) in [(3, 1), (30, 2), (100, 3), (100_000, 4)] {
            let options = [("batch_rows", batch_rows), ("partitions", 2), ("debug_sim_seed", seed)];
            same_on_the_device(&sql, &expected, &options).await;
        }
    }
}

/// Classes from an expression, texts without a dictionary, and predictions in a join and an aggregate.
#[tokio::test]
async fn what_is_predicted_goes_on_through_the_plan() {
    let train = "SELECT id, content || concat(' no. ', id) AS content, \
                 CASE WHEN small < 0 THEN 'NEG' WHEN small = 0 THEN 'NEUT' ELSE NULL END AS class FROM reviews";
    let judged = call(train, train, "class", ", 0.01, 5000");
    for sql in [
        format!("SELECT prediction, count(*) AS n FROM ({judged}) GROUP BY prediction ORDER BY prediction"),
        format!(
            "SELECT r.id, j.prediction, r.class = j.prediction AS hit FROM ({judged}) AS j JOIN reviews AS r ON j.id = r.id \
             WHERE j.prediction <> 'NEG' ORDER BY r.id, j.prediction, hit"
        ),
    ] {
        let expected = cpu_rows(&sql).await;
        assert!(expected.len() > 2, "{sql}");
        for text_bytes in [30, 100_000] {
            same_on_the_device(&sql, &expected, &[("batch_rows", text_bytes)]).await;
        }
    }
}

#[tokio::test]
async fn odd_data_has_the_cpus_answers() {
    let none = "SELECT * FROM reviews WHERE id < 0";
    let odd = |texts: &str| format!("SELECT * FROM (VALUES {texts}) AS v(id, content, class)");
    let blanks = odd("(1, '', 'B'), (2, '   ', 'A'), (3, 'x', 'C'), (4, NULL, 'D')");
    let without_text = odd("(1, CAST(NULL AS TEXT), 'B'), (2, NULL, 'A')");
    let one = odd("(1, 'a b', 'only'), (2, 'c', 'only')");
    let unseen = odd("(1, 'never seen before', 'x'), (2, '', 'y'), (3, 'Ʃ ẞ ŒUVRE', 'z'), (4, 'a b', NULL)");
    for (train, test) in [
        (none, TEST),
        (TRAIN, none),
        (none, none),
        (&blanks, &unseen),
        (&without_text, &unseen),
        (&one, &unseen),
        (&unseen, &unseen),
        (TRAIN, &unseen),
    ] {
        let sql = call(train, test, "class", "");
        same_on_the_device(&sql, &cpu_rows(&sql).await, &[("batch_rows", 2)]).await;
    }
    // Letters whose lower case depends on adjacent letters stay on the CPU.
    let sigma = odd("(1, 'ΟΔΟΣ ΣΟΦΟΣ', 'a'), (2, 'οδος', 'b'), (3, 'İstanbul', 'c')");
    let sql = call(&sigma, &sigma, "class", "");
    let found = answer(&sim(Fallback::Allow, &[]), &sql).await;
    assert_eq!(rows(&found.batches, true), cpu_rows(&sql).await, "{sql}");
    assert!(found.report.findings.is_empty() && found.report.pool_used_bytes == 0, "{:?}", found.report);
}

#[tokio::test]
async fn what_stays_on_the_cpu_has_a_reason() {
    for class in ["x", "b"] {
        let sql = call(TRAIN, TEST, class, "");
        let sim = sim(Fallback::Allow, &[]);
        let text = plan(&sim, &sql).await;
        assert!(text.contains("naive_bayes has no device form: classes of type"), "{text}");
        assert_eq!(rows(&answer(&sim, &sql).await.batches, true), cpu_rows(&sql).await, "{sql}");
    }
    // More classes than the device compares.
    let many = "SELECT a.id * 1000 + b.id AS id, a.content, a.id * 1000 + b.id AS class FROM reviews AS a CROSS JOIN reviews AS b \
                WHERE b.id < 8";
    let sql = call(many, TEST, "class", "").replace("ORDER BY id, prediction, class", "ORDER BY id, prediction");
    let sql = sql.replace(TEST, "SELECT id, content, id AS class FROM reviews");
    let found = answer(&sim(Fallback::Allow, &[]), &sql).await;
    assert_eq!(rows(&found.batches, true), cpu_rows(&sql).await, "{sql}");
    let note = found.report.notes.join("; ");
    assert!(note.contains("classes are too many"), "{note}");
}

#[tokio::test]
async fn the_librarys_predictions_are_the_devices() {
    let vectors: Value = serde_json::from_str(include_str!("../oracles/learning.json")).expect("the file is JSON");
    for (number, case) in vectors["bayes"].as_array().expect("cases").iter().enumerate() {
        let sim = sim(Fallback::Error, &[]);
        let list = |name: &str| case[name].as_array().expect("a list").clone();
        let texts = |name: &str| -> ArrayRef {
            Arc::new(list(name).iter().map(|text| text.as_str().map(str::to_string)).collect::<StringArray>())
        };
        let integers = |values: &[Value]| -> ArrayRef {
            Arc::new(values.iter().map(|value| value.as_i64()).collect::<Int64Array>())
        };
        let ids = |rows: usize| -> ArrayRef { Arc::new(Int64Array::from_iter_values(0..rows as i64)) };
        let (train, test) = (list("labels"), list("predictions"));
        let columns = vec![("id", ids(train.len())), ("t", texts("texts")), ("class", integers(&train))];
        table(sim.context(), "known", 2, columns);
        let columns = vec![("id", ids(test.len())), ("t", texts("tests")), ("class", integers(&test))];
        table(sim.context(), "asked", 2, columns);
        let (alpha, buckets) = (&case["alpha"], &case["buckets"]);
        let sql = format!(
            "SELECT class, prediction FROM naive_bayes('known', 'asked', 'id', 't', 'class', {alpha}, {buckets}) ORDER BY id"
        );
        let found = rows(&answer(&sim, &sql).await.batches, true);
        let expected: Vec<Vec<String>> = test.iter().map(|class| vec![class.to_string(); 2]).collect();
        assert_eq!(found, expected, "case {number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_faults_and_in_short_memory_the_answers_are_the_same() {
    let sql = call(TRAIN, TEST, "class", ", 0.001, 100000");
    let expected = cpu_rows(&sql).await;
    let free = sim(Fallback::Error, &[("batch_rows", 50)]);
    let peak = answer(&free, &sql).await.report.peak_bytes as usize;
    let launched = free.engine().expect("a device").simulated().expect("it is simulated").launched();
    let image = IMAGES.iter().find(|image| image.name == "bayes").expect("there is an image");
    assert!(image.kernels().all(|kernel| launched.contains_key(kernel)), "{launched:?}");
    let mut faults =
        vec![("memory_limit_bytes", 1), ("memory_limit_bytes", peak / 2), ("memory_limit_bytes", peak / 4)];
    faults.extend((1..24).step_by(3).map(|launch| ("debug_sim_lose_at_launch", launch)));
    faults.extend((1..24).step_by(3).map(|allocation| ("debug_sim_fail_allocation", allocation)));
    for fault in faults {
        let sim = sim(Fallback::Allow, &[("batch_rows", 50), fault]);
        let found = answer(&sim, &sql).await;
        assert_eq!(rows(&found.batches, true), expected, "{sql} with {fault:?}");
        assert_eq!(sim.engine().expect("a device").take_findings(), Vec::<String>::new(), "{sql} with {fault:?}");
    }
}

#[tokio::test]
async fn explain_prints_the_device_node() {
    let text = plan(&sim(Fallback::Error, &[]), &call(TRAIN, TEST, "class", "")).await;
    assert!(
        text.contains("DeviceNaiveBayesExec: [content@1, class@2, id@0, content@1, class@2], alpha=0.001"),
        "{text}"
    );
}
