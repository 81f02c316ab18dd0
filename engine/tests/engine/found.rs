//! Bugs that `cargo fuzz-sql` found, each as the smallest query that shows it.
//!
//!   parts (Parquet) ──► device = sim, fallback = allow ──┐
//!                  └──► device = cpu ────────────────────┴─► equal answers, or both fail
//!
//! Named  after what went wrong.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Int64Array};
use millpond::datafusion::arrow::datatypes::{DataType, Field, Schema};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::{DeviceChoice, Fallback};

use crate::answers::{Answer, orders_its_rows};
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
            assert_eq!(expected.difference(actual, orders_its_rows(sql)), None, "{sql}");
        }
        (Err(expected), Err(actual)) => assert_eq!(expected, actual, "{sql}"),
        _ => panic!("{sql}: the CPU gives {expected:?}, the device {actual:?}"),
    }
}

/// The CPU part above an aggregate requested rows hashed by keys that a projection had dropped.
#[tokio::test]
async fn rows_are_not_hashed_by_keys_that_are_gone() {
    same(
        3,
        "SELECT o2 AS x, 1 AS y FROM \
         (SELECT size AS o0, zero AS o1, arrow_cast(NULL, 'Float64') AS o2 FROM parts GROUP BY 1, 2) GROUP BY 1",
    )
    .await;
}

/// Of pairs it is known that the build row is there, so a plan that expected pairs left columns out that rows with one
/// match read: of the build side, and of the probe side.
#[tokio::test]
async fn conditions_of_one_match_read_what_those_of_pairs_do_not() {
    let field = |name, data_type| Field::new(name, data_type, true);
    let schema = Arc::new(Schema::new(vec![field("k", DataType::Int64), field("x", DataType::Int64)]));
    // No NULLs, though there might be some, and each key once.
    let columns: [ArrayRef; 2] = [Arc::new(Int64Array::from(vec![3, 5])), Arc::new(Int64Array::from(vec![30, 50]))];
    let batch = RecordBatch::try_new(schema, columns.to_vec()).expect("two columns");
    for (kind, sql) in [
        ("exists", "SELECT id FROM parts WHERE {} EXISTS (SELECT 1 FROM b WHERE k = id AND {on})"),
        ("outer", "SELECT id, x FROM parts LEFT JOIN b ON k = id AND {on}"),
        // The key may fail, and the condition after it, except for rows with several matches, which are already
        // distinguished.
        (
            "inner",
            "SELECT {} (CASE WHEN {on} THEN size > 9 ELSE size > 9 END) FROM parts JOIN b ON \
             date_trunc('second', arrow_cast(id, 'Timestamp(Second, None)')) = arrow_cast(k, 'Timestamp(Second, None)')",
        ),
    ] {
        for on in
            ["CASE WHEN x IS NOT NULL THEN size ELSE id + 100 END > 0", "CASE WHEN x IS NULL THEN id ELSE size END > 2"]
        {
            for not in ["", "NOT"] {
                let sql = sql.replace("{on}", on).replace("{}", not);
                let mut answers = Vec::new();
                for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
                    let folder = tempfile::tempdir().expect("a temporary folder");
                    let session = session_with(device, 1, Fallback::Error);
                    register_parquet(session.context(), &folder).await;
                    session.context().register_batch("b", batch.clone()).expect("the name is free");
                    let result = session.execute(&sql).await.unwrap_or_else(|error| panic!("{kind}: {sql}: {error}"));
                    assert_eq!(result.report.notes, Vec::<String>::new(), "{kind}: {sql}");
                    answers.push(Answer::new(&result.schema, &result.batches));
                }
                assert_eq!(answers[0].difference(&answers[1], false), None, "{kind}: {sql}");
            }
        }
    }
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

/// Whether the right operand of AND and OR meets an error in rows where the left one decides depends on DataFusion's
/// batches: where few rows need it, it sees those alone, otherwise all. So where the device meets one, DataFusion is
/// asked.
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

/// DataFusion's groups never have a least value of infinity, the whole table has. Beside a DISTINCT argument, which is
/// a key on the device alone, there are no groups.
#[tokio::test]
async fn infinities_are_kept_beside_a_distinct_argument() {
    let (most, least) = ("arrow_cast('inf', 'Float64')", "arrow_cast('-inf', 'Float32')");
    for rest in ["FROM parts", "FROM parts WHERE id = 3", "FROM parts GROUP BY size % 2"] {
        same(3, &format!("SELECT min({most}), max({least}), count(DISTINCT size), median(DISTINCT id) {rest}")).await;
        same(3, &format!("SELECT var_pop({most}), stddev_pop({most}), count(DISTINCT size), sum(DISTINCT id) {rest}"))
            .await;
    }
}

/// DataFusion sorts the parts of a union by the keys that vary within them, and merges them by all: the device sorted
/// by the former.
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

/// Ranks of strings in a state moved when an extent that a join left without rows brought a value that sorts before the
/// others: no launch came after it, and the old ranks were read as new ones.
#[tokio::test]
async fn ranks_do_not_move_under_a_state_that_no_launch_reaches() {
    let tables = "WITH p(k) AS (VALUES (1), (1)), w(j, s) AS (VALUES (1, 'x'), (2, 'z'), (3, 'y'), (5, 'b')), \
                  later(j, s) AS (SELECT value, 'n' || CAST(100 - value AS VARCHAR) FROM generate_series(1, 89))";
    let queries = [
        "SELECT min(s), max(s) FROM p JOIN w ON k = j",
        "SELECT k, min(s), max(s) FROM p JOIN w ON k = j GROUP BY k",
        "SELECT min(s) FILTER (WHERE j < 9), max(s) FILTER (WHERE j > 0) FROM p JOIN w ON k = j",
        "SELECT min(CASE WHEN j > 0 THEN s END), max(CASE WHEN j > 9 THEN 'q' ELSE s END) FROM p JOIN w ON k = j",
        "SELECT min(s), max(s), count(*) FROM p JOIN w ON j <= k",
        "SELECT max(s), min(s) FROM p JOIN w ON k = j WHERE s >= 'c'",
        "SELECT min(upper(s)), max(upper(s)) FROM p RIGHT JOIN w ON k = j WHERE j < 2",
        "SELECT first_value(j ORDER BY s), last_value(s ORDER BY s) FROM p JOIN w ON k = j",
        "SELECT j % 3 AS g, min(s), max(s) FROM p JOIN later ON j BETWEEN k AND 7 GROUP BY 1",
        "SELECT min(s), max(s) FROM later a JOIN (SELECT k FROM p) b ON b.k = a.j",
    ];
    for query in queries {
        let sql = format!("{tables} {query}");
        let answer = async |device, options: &[(&str, &str)]| {
            let session = session_with(device, 1, Fallback::Error);
            for (name, value) in options {
                session.execute(&format!("SET millpond.{name} = {value}")).await.expect("the option is taken");
            }
            let result = session.execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            Answer::new(&result.schema, &result.batches)
        };
        let expected = answer(DeviceChoice::Cpu, &[]).await;
        for partitions in ["1", "2"] {
            let actual = answer(DeviceChoice::Sim, &[("batch_rows", "3"), ("partitions", partitions)]).await;
            assert_eq!(expected.difference(&actual, false), None, "{partitions} feeders: {sql}");
        }
    }
}

/// Nothing counted the rows of one state, whose sums are exact up to a bound.
#[tokio::test]
async fn rows_beyond_the_bound_of_a_state_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let queries = [
        "SELECT sum(price), count(*) FROM parts",
        "SELECT size, sum(price) FROM parts GROUP BY size",
        "SELECT a.size, sum(a.price) FROM parts a JOIN parts b ON a.zero = b.zero WHERE b.id < 10 GROUP BY ROLLUP (a.size)",
    ];
    let session = async |fallback, most: &str| {
        let session = session_with(DeviceChoice::Sim, 1, fallback);
        register_parquet(session.context(), &folder).await;
        for set in ["batch_rows = 100".to_string(), format!("debug_rows_per_state = {most}")] {
            session.execute(&format!("SET millpond.{set}")).await.expect("the option is taken");
        }
        session
    };
    for sql in queries {
        let cpu = session_with(DeviceChoice::Cpu, 1, Fallback::Allow);
        register_parquet(cpu.context(), &folder).await;
        let expected = cpu.execute(sql).await.expect("the CPU answers");
        let expected = Answer::new(&expected.schema, &expected.batches);
        let enough = session(Fallback::Error, "10000").await.execute(sql).await.expect("the rows are few enough");
        assert_eq!(expected.difference(&Answer::new(&enough.schema, &enough.batches), false), None, "{sql}");
        let taken_over = session(Fallback::Allow, "950").await.execute(sql).await.expect("the CPU takes over");
        assert_eq!(expected.difference(&Answer::new(&taken_over.schema, &taken_over.batches), false), None, "{sql}");
        let reasons = format!("{:?}", taken_over.report);
        assert!(reasons.contains("exact for 950 rows"), "{sql}: {reasons}");
        let refused = session(Fallback::Error, "950").await.execute(sql).await;
        let message = refused.map(|_| ()).expect_err("the CPU may not").strip_backtrace();
        assert!(message.contains("exact for 950 rows"), "{sql}: {message}");
    }
}

/// What is read a second time, after a restart, was read through dynamic filters as the first reading had left them:
/// rows were missing. And NULLs in a column without a device form, which nothing on the device reads, were taken for
/// values outside their range: such inputs always began again.
#[tokio::test]
async fn inputs_are_read_whole_a_second_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("wide.parquet");
    let path = path.to_str().expect("a UTF-8 path");
    let plain = session_with(DeviceChoice::Cpu, 1, Fallback::Allow);
    // The 45 rows without a value are the first 45 of an order, after which no other row of the file can be.
    let rows = "SELECT value AS id, 'n' || CAST(1000 - value AS VARCHAR) AS s, \
                arrow_cast(arrow_cast(CASE WHEN value % 9 <> 4 THEN (value * 37) % 101 END, 'Dictionary(Int32, Int64)'), 'Dictionary(Int32, Duration(Second))') AS wide \
                FROM generate_series(1, 400)";
    let copy = format!("COPY ({rows}) TO '{path}' STORED AS PARQUET OPTIONS ('format.max_row_group_size' 40)");
    plain.execute(&copy).await.expect("the file is written");
    let queries = [
        "SELECT min(s), max(s), count(*) FROM (SELECT s, wide FROM wide ORDER BY wide DESC NULLS FIRST LIMIT 45)",
        "SELECT 4 AS four FROM (SELECT wide FROM wide ORDER BY wide DESC NULLS FIRST LIMIT 3)",
        "SELECT id + 1 AS next FROM (SELECT id, wide FROM wide ORDER BY wide, id LIMIT 5) WHERE id > 2",
        "SELECT id + 1 AS next FROM wide WHERE arrow_cast(wide, 'Int64') = (SELECT min(arrow_cast(wide, 'Int64')) FROM wide WHERE id > 10)",
        "SELECT count(*), sum(id) FROM wide JOIN (SELECT min(wide) AS least, max(wide) AS most FROM wide) ON arrow_cast(wide, 'Duration(Second)') IN (least, most)",
        "SELECT a.id + b.id AS sum FROM wide a JOIN (SELECT id, wide FROM wide WHERE id < 20) b ON a.wide = b.wide",
    ];
    for sql in queries {
        let answer = async |device, options: &[&str]| {
            let mut builder =
                millpond::Millpond::builder().with_own_engine().with_device(device).with_fallback(Fallback::Allow);
            for option in options {
                let (name, value) = option.split_once('=').expect("an option has a value");
                builder = builder.with_option(name, value).expect("the option is taken");
            }
            let session = builder.build().expect("the device opens");
            session.context().register_parquet("wide", path, Default::default()).await.expect("the file is read");
            let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            (Answer::new(&result.schema, &result.batches), result.report)
        };
        let (expected, _) = answer(DeviceChoice::Cpu, &[]).await;
        let (actual, report) = answer(DeviceChoice::Sim, &["batch_rows=3"]).await;
        assert_eq!(expected.difference(&actual, false), None, "{sql}");
        assert!(report.notes.is_empty(), "the device answers {sql}: {:?}", report.notes);
        for launch in ["debug_sim_lose_at_launch=1", "debug_sim_lose_at_launch=2"] {
            let (actual, _) = answer(DeviceChoice::Sim, &["batch_rows=3", launch]).await;
            assert_eq!(expected.difference(&actual, false), None, "{launch}: {sql}");
        }
    }
}
