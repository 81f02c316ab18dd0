//! Machine learning, sessions and text functions reuse results of earlier runs; these are verified before rows are
//! returned.
//!
//!   run ─► stored, read back ─► reused, every n-th wrong ─► another attempt ─► the CPU's answer and an equal table

use millpond::{DeviceChoice, Fallback};

use crate::bayes_device;
use crate::learn_device::{answer, session};
use crate::support::rows;

const SOME: &str = "SELECT * FROM points WHERE x > 20 AND n < 50";

/// Functions over rows whose number no statistics contain.
fn statements() -> Vec<String> {
    let known = "SELECT * FROM reviews WHERE length(content) > 3 AND id % 5 <> 0";
    let asked = "SELECT * FROM reviews WHERE length(content) > 3 AND id % 5 = 0";
    let joined = "SELECT p.id, p.x, q.y, q.label FROM points p JOIN points q ON p.id = q.id WHERE p.x > 30";
    vec![
        format!("SELECT * FROM kmeans('{SOME}', 'id', ['x', 'y'], 3)"),
        format!("SELECT * FROM kmeans_centers('{joined}', 'id', ['x', 'y'], 4)"),
        format!("SELECT * FROM kmeans_predict('{SOME}', 'id', ['x', 'y'], 'SELECT id AS label, x, y FROM points WHERE id < 9')"),
        format!("SELECT * FROM logistic_report('{SOME}', 'label', ['x', 'y', 'n'])"),
        format!("SELECT * FROM logistic_predict('{joined}', 'id', 'label', ['x', 'y'], 9)"),
        format!("SELECT * FROM naive_bayes('{known}', '{asked}', 'id', 'content', 'class')"),
        "SELECT * FROM sessionize('SELECT id AS who, n AS at FROM points WHERE x > 40', 'who', 'at', 10)".to_string(),
        "SELECT session_id, count(*) AS n FROM sessionize('SELECT p.id AS who, q.n AS at FROM points p JOIN points q ON p.id = q.id WHERE p.x > 40', 'who', 'at', 5) GROUP BY 1".to_string(),
        "SELECT id, unnest(words(content)) AS word FROM reviews WHERE id % 3 = 1".to_string(),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_functions_learn_is_checked() {
    let open = |device, options: &[(&str, usize)]| {
        let session = session(device, Fallback::Allow, options);
        bayes_device::register(&session);
        session
    };
    let cpu = open(DeviceChoice::Cpu, &[]);
    let mut expected = vec![];
    for sql in statements() {
        let found = rows(&answer(&cpu, &sql).await.batches, false);
        assert!(!found.is_empty(), "{sql}");
        expected.push((sql, found));
    }
    let mut surprised = 0;
    for each in [1, 2] {
        let sim = open(DeviceChoice::Sim, &[("debug_surprises", each)]);
        for (sql, expected) in &expected {
            // A small in-memory table is stored at its second use.
            for run in 0..3 {
                let found = answer(&sim, sql).await;
                assert_eq!(&rows(&found.batches, false), expected, "each {each}, run {run}: {sql}");
                let report = &found.report;
                assert!(report.findings.is_empty() && report.notes.is_empty(), "each {each}: {sql}: {report:?}");
                assert_eq!(report.pool_used_bytes, 0, "each {each}: {sql}");
                surprised += u32::from(report.attempts > 1);
            }
            answer(&sim, &format!("CREATE OR REPLACE TABLE learnt AS {sql}")).await;
            let learnt = answer(&sim, "SELECT * FROM learnt").await;
            assert_eq!(&rows(&learnt.batches, false), expected, "each {each}, as a table: {sql}");
        }
    }
    assert!(surprised >= 1, "no run met a wrong answer");
}
