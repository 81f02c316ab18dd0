//! Conditions that contradict one another, above what gives a row of no rows: the right answers are those of the SQL
//! standard (and of PostgreSQL), which DataFusion alone misses.

use millpond::DeviceChoice;
use millpond::datafusion::arrow::util::display::array_value_to_string;

use crate::support::session;

const T: &str = "(VALUES (1, 10), (2, 20), (2, 30)) AS t(a, b)";

#[tokio::test]
async fn no_row_passes_a_contradiction() {
    let of = |source: &str, condition: &str| format!("SELECT count(*) FROM ({source}) AS q WHERE {condition}");
    let sum = format!("SELECT sum(b) AS n FROM {T}");
    let cube = format!("SELECT a, count(*) AS n FROM {T} GROUP BY CUBE (a)");
    let statements = [
        (of(&sum, "n = 1 AND n = 2"), 0),
        (of(&sum, "n BETWEEN 60 AND 60 AND n IN (7)"), 0),
        (of(&sum, "n = 60 AND n = 60"), 1),
        (of(&cube, "n = 1 AND n = 2"), 0),
        (of(&cube, "a = 1 AND a = 2"), 0),
        (of(&cube, "n = 3"), 1),
        (format!("SELECT count(*) FROM (SELECT sum(b) AS n FROM {T} HAVING sum(b) = 1 AND sum(b) = 2) AS q"), 0),
        (format!("SELECT count(*) FROM ({sum}) AS q JOIN {T} ON q.n = 60 AND t.a = 1 AND t.a = 2"), 0),
        (format!("SELECT count(*) FROM ({sum}) AS q LEFT JOIN {T} ON t.a = 1 AND t.a = 2"), 1),
        (
            format!(
                "SELECT count(*) FROM ({sum}) AS q JOIN (SELECT nullif(a, 9) AS m FROM {T}) AS e ON 1 = e.m AND 2 = e.m"
            ),
            0,
        ),
    ];
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session = session(device);
        for (sql, expected) in &statements {
            // The second run has a plan that was kept, or one of a template.
            for _ in 0..2 {
                let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
                let count = array_value_to_string(result.batches[0].column(0), 0).expect("a number");
                assert_eq!(count, expected.to_string(), "{device}: {sql}");
            }
            let frame = session.context().sql(sql).await.expect("a plan");
            let batches = frame.collect().await.expect("rows");
            let count = array_value_to_string(batches[0].column(0), 0).expect("a number");
            assert_eq!(count, expected.to_string(), "{device}, context().sql(): {sql}");
        }
    }
}
