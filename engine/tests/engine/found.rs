//! What random queries found, each as the smallest query that showed it: `cargo fuzz-sql` finds the next.
//!
//!   parts (Parquet) ──► device = sim, fallback = allow ──┐
//!                  └──► device = cpu ────────────────────┴─► equal answers, or both fail
//!
//! Named  after what went wrong.

use millpond::{DeviceChoice, Fallback};

use crate::answers::Answer;
use crate::support::{register_parquet, session_with};

/// The query's answer, or its error's first line, on a device.
async fn outcome(device: DeviceChoice, partitions: usize, sql: &str) -> Result<Answer, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let session = session_with(device, partitions, Fallback::Allow);
    register_parquet(session.context(), &folder).await;
    let result = session.execute(sql).await;
    assert_eq!(session.pool_used_bytes(), 0, "bytes are left in the pool by {sql}");
    let result = result.map_err(|error| error.strip_backtrace().lines().next().unwrap_or_default().to_string())?;
    assert!(result.report.findings.is_empty(), "{sql}: {:?}", result.report.findings);
    Ok(Answer::new(&result.schema, &result.batches))
}

async fn same(partitions: usize, sql: &str) {
    let expected = outcome(DeviceChoice::Cpu, partitions, sql).await;
    let actual = outcome(DeviceChoice::Sim, partitions, sql).await;
    match (&expected, &actual) {
        (Ok(expected), Ok(actual)) => {
            assert_eq!(expected.difference(actual, sql.contains("ORDER BY")), None, "{sql}");
        }
        (Err(expected), Err(actual)) => assert_eq!(expected, actual, "{sql}"),
        _ => panic!("{sql}: the CPU gives {expected:?}, the device {actual:?}"),
    }
}

/// The CPU part above an aggregate asked for rows hashed by keys that a projection had dropped.
#[tokio::test]
async fn rows_are_not_hashed_by_keys_that_are_gone() {
    same(
        3,
        "SELECT o2 AS x, 1 AS y FROM \
         (SELECT size AS o0, zero AS o1, arrow_cast(NULL, 'Float64') AS o2 FROM parts GROUP BY 1, 2) GROUP BY 1",
    )
    .await;
}

/// DataFusion refuses to negate the least number when it is a constant; the device wrapped it, as it does for a column.
#[tokio::test]
async fn negated_least_constant_is_not_wrapped() {
    same(1, "SELECT avg(- arrow_cast(-2147483648, 'Int32')) FILTER (WHERE size > 3) FROM parts").await;
}

/// Equal texts in a CASE had codes of their own, and so groups of their own.
#[tokio::test]
async fn equal_texts_of_a_case_are_one_group() {
    let case = "CASE WHEN size < 10 THEN 'a' WHEN size < 20 THEN 'b' ELSE 'a' END";
    same(3, &format!("SELECT {case} AS x, count(*) FROM parts GROUP BY 1")).await;
    same(3, &format!("SELECT {case} AS x, id FROM parts ORDER BY 1, 2")).await;
}

/// trunc(-0.0) is 0.0 in DataFusion, and sorts after trunc(-0.5), which is -0.0.
#[tokio::test]
async fn truncated_negative_zero_is_positive() {
    let x = "CASE WHEN id % 2 = 0 THEN weight * arrow_cast('-0.0', 'Float64') ELSE -0.5 END";
    same(1, &format!("SELECT trunc({x}) AS t, id FROM parts WHERE weight IS NOT NULL ORDER BY 1, 2")).await;
}

/// Whether the right operand of AND and OR meets an error in rows where the left one decides depends on DataFusion's batches:
/// where few rows need it, it sees those alone, otherwise all. So where the device meets one, DataFusion is asked.
#[tokio::test]
async fn what_the_left_operand_decides_is_asked_of_datafusion() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let session = session_with(DeviceChoice::Sim, 1, Fallback::Allow);
    register_parquet(session.context(), &folder).await;
    for filter in ["(id < 5 AND 10 / (id - 10) < 0) OR size > 40", "(id >= 5 OR 10 / (id - 10) < 0) AND size > 40"] {
        let sql = format!("SELECT id FROM parts WHERE {filter}");
        let report = session.execute(&sql).await.expect("no row that is divided has a zero").report;
        assert!(report.launches > 0, "{sql}");
        same(1, &sql).await;
    }
    let cpu = session_with(DeviceChoice::Cpu, 1, Fallback::Allow);
    register_parquet(cpu.context(), &folder).await;
    for sql in ["SELECT id <> 10 AND 10 / (id - 10) < 1 FROM parts", "SELECT id = 10 OR 10 / (id - 10) < 1 FROM parts"]
    {
        let expected = cpu.execute(sql).await.map(|_| ()).expect_err("all rows are divided").strip_backtrace();
        let actual = session.execute(sql).await.map(|_| ()).expect_err("all rows are divided").strip_backtrace();
        assert_eq!(actual, expected, "{sql}");
    }
}

/// DataFusion's groups never have a least value of infinity, the whole table has. Beside a DISTINCT argument, which is a key on the
/// device alone, there are no groups.
#[tokio::test]
async fn infinities_are_kept_beside_a_distinct_argument() {
    let (most, least) = ("arrow_cast('inf', 'Float64')", "arrow_cast('-inf', 'Float32')");
    for rest in ["FROM parts", "FROM parts WHERE id = 3", "FROM parts GROUP BY size % 2"] {
        same(3, &format!("SELECT min({most}), max({least}), count(DISTINCT size), median(DISTINCT id) {rest}")).await;
        same(3, &format!("SELECT var_pop({most}), stddev_pop({most}), count(DISTINCT size), sum(DISTINCT id) {rest}"))
            .await;
    }
}

/// DataFusion sorts the parts of a union by the keys that vary within them, and merges them by all: the device sorted by the former.
#[tokio::test]
async fn keys_that_are_constant_in_each_part_of_a_union_count() {
    for rest in ["", "LIMIT 7", "LIMIT 5 OFFSET 3"] {
        let union = "SELECT 2.5 AS a, id AS b, 1 AS c FROM parts WHERE id < 9 UNION ALL \
                     SELECT 1.5 AS a, id AS b, 2 AS c FROM parts WHERE id < 5 UNION ALL \
                     SELECT NULL AS a, count(*) AS b, 0 AS c FROM parts WHERE id > 100000";
        same(3, &format!("{union} ORDER BY a NULLS FIRST, b, c {rest}")).await;
        same(3, &format!("{union} ORDER BY a DESC NULLS LAST, b DESC, c {rest}")).await;
        same(3, &format!("SELECT b + 1, a FROM ({union}) ORDER BY a NULLS FIRST, b + 1 {rest}")).await;
    }
}
