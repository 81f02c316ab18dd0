//! Functions inside plans whose other parts run on the device.
//!
//! ```text
//!   aggregate          device ──┐
//!     DownloadExec / UploadExec │   the function is a CPU operator between two device subtrees
//!       KMeansExec          CPU │
//!     filter, sort, join device ┘
//! ```

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use millpond::{DeviceChoice, Millpond};

use crate::support::{Numbers, rows, session_on, table};

fn register(session: &Millpond) {
    let mut numbers = Numbers(31);
    let count = 1_200;
    let mut column = |bound: u64| -> Vec<Option<i64>> {
        (0..count).map(|_| (numbers.below(25) > 0).then(|| numbers.below(bound) as i64)).collect()
    };
    let (users, times, items) = (column(30), column(20_000), column(40));
    let x: Float64Array = times.iter().map(|time| Some(time.unwrap_or(0) as f64 / 3.0)).collect();
    let text: StringArray = items
        .iter()
        .map(|item| item.map(|item| ["Good. ", "bad", "so what", "I like Acme Corp"][item as usize % 4]))
        .collect();
    let integers = |values: &[Option<i64>]| -> ArrayRef { Arc::new(Int64Array::from(values.to_vec())) };
    let columns = vec![
        ("id", integers(&(0..count).map(Some).collect::<Vec<_>>())),
        ("usr", integers(&users)),
        ("ts", integers(&times)),
        ("itm", integers(&items)),
        ("x", Arc::new(x) as ArrayRef),
        ("content", Arc::new(text) as ArrayRef),
    ];
    table(session.context(), "clicks", 3, columns);
    let items: Vec<i64> = (0..40).collect();
    let kinds: Vec<i64> = items.iter().map(|item| item % 9).collect();
    let columns: Vec<(&str, ArrayRef)> =
        vec![("i_itm", Arc::new(Int64Array::from(items))), ("kind", Arc::new(Int64Array::from(kinds)))];
    table(session.context(), "item", 1, columns);
}

/// Click functions among other operators in one device subtree.
#[tokio::test]
async fn clicks_are_joined_grouped_and_paired_on_the_device_alone() {
    let (cpu, sim) = (session_on(DeviceChoice::Cpu, 3, 256), session_on(DeviceChoice::Sim, 3, 256));
    register(&cpu);
    register(&sim);
    for sql in [
        // Structure of q30: join, sessions, distinct, pairs, count.
        "SELECT kind_1, kind_2, COUNT(*) AS cnt FROM basket_pairs(
             'SELECT DISTINCT usr, session_id, kind FROM sessionize(
                  ''SELECT usr, ts, kind FROM clicks JOIN item ON itm = i_itm WHERE usr IS NOT NULL'', ''usr'', ''ts'', 900)',
             ['usr', 'session_id'], 'kind') GROUP BY kind_1, kind_2 ORDER BY cnt DESC, kind_1, kind_2",
        "SELECT itm, COUNT(*) AS cnt FROM last_n_before(
             'SELECT usr, ts, itm, itm < 10 AS buy FROM clicks WHERE ts > 1000', 'usr', ['ts', 'itm'], 'buy', 5, 5000)
         GROUP BY itm ORDER BY cnt DESC, itm",
        "SELECT kind, COUNT(*), MAX(session_id) FROM sessionize('clicks', 'usr', 'ts', 900) JOIN item ON itm = i_itm
         GROUP BY kind ORDER BY kind",
    ] {
        let expected = cpu.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let found = sim.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert_eq!(rows(&found.batches, true), rows(&expected.batches, true), "{sql}");
        assert!(!expected.batches.is_empty(), "{sql}");
        let report = &found.report;
        assert_eq!(report.operators_on_device, report.operators, "{sql}: {report:?}");
        assert!(report.findings.is_empty() && report.pool_used_bytes == 0, "{sql}: {report:?}");
    }
}

#[tokio::test]
async fn what_is_below_and_above_runs_on_the_device_and_answers_are_equal() {
    let (cpu, sim) = (session_on(DeviceChoice::Cpu, 3, 256), session_on(DeviceChoice::Sim, 3, 256));
    register(&cpu);
    register(&sim);
    for (sql, node) in [
        (
            "SELECT hit['company'] AS name, COUNT(*) FROM (SELECT UNNEST(company_mentions(content)) AS hit FROM clicks WHERE ts > 100)
             GROUP BY hit['company'] ORDER BY name",
            "ProjectionExec: expr=[company_mentions",
        ),
    ] {
        let expected = cpu.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let found = sim.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert_eq!(rows(&found.batches, true), rows(&expected.batches, true), "{sql}");
        assert!(!expected.batches.is_empty(), "{sql}");
        let plan = millpond::datafusion::physical_plan::displayable(found.plan.as_ref()).indent(false).to_string();
        let at = plan.find(node).unwrap_or_else(|| panic!("{node} is not in\n{plan}"));
        assert!(plan[..at].contains("UploadExec"), "above stays on the CPU:\n{plan}");
        assert!(plan[at..].contains("DownloadExec"), "below stays on the CPU:\n{plan}");
        assert!(found.report.launches > 0, "nothing was launched:\n{plan}");
        assert!(found.report.findings.is_empty(), "{:?}", found.report.findings);
        assert_eq!(found.report.pool_used_bytes, 0, "{sql}");
    }
}

/// Registration makes the functions known to the engine: none may count as a node that only passes rows on.
#[tokio::test]
async fn a_function_on_the_cpu_is_a_fallback() {
    let sim = session_on(DeviceChoice::Sim, 3, 256);
    register(&sim);
    for (call, name) in [("naive_bayes('clicks', 'clicks', 'id', 'content', 'x')", "naive_bayes")] {
        let sql = format!("SELECT * FROM {call}");
        let report = sim.execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}")).report;
        let reason = format!("{name} has no device form: classes of type Float64 stay on the CPU");
        assert!(report.reasons.contains(&reason), "{sql}: {:?}", report.reasons);
        assert!(report.operators_on_device < report.operators, "{sql}");
    }
}
