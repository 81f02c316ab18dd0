//! What earlier runs of a plan waited for is taken over and checked: one wait a border, and where it is not so, another
//! attempt.
//!
//!   rows · a made table · steps of a recursion · values of subqueries · rows between borders      none leaves before
//!   the check

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use millpond::datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use millpond::datafusion::logical_expr::{DdlStatement, LogicalPlan};
use millpond::result::node::DownloadExec;
use millpond::store::{MadeTable, Store};
use millpond::{Created, DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::tpch::{config, data, parquet_session, queries};

/// Queries beside TPC-H's that ask the device for more: rows of expansions with and without conditions on pairs, marks,
/// leftover rows of a table that grows, first rows within a bar, limits with offsets, groups by texts, results of
/// texts.
const OTHERS: &[&str] = &[
    "SELECT a.l_orderkey, a.l_linenumber, b.l_linenumber FROM lineitem a JOIN lineitem b ON a.l_orderkey = b.l_orderkey AND a.l_quantity < b.l_quantity",
    "SELECT o_orderkey, l_linenumber FROM orders LEFT JOIN lineitem ON o_orderkey = l_orderkey AND l_quantity > 40 + o_shippriority",
    "SELECT o_orderkey, l_linenumber FROM lineitem FULL JOIN orders ON o_orderkey = l_orderkey AND l_discount > 0.05 AND o_totalprice > l_extendedprice * 3",
    "SELECT c_custkey FROM customer WHERE EXISTS (SELECT 1 FROM orders WHERE o_custkey = c_custkey AND o_totalprice > c_acctbal * 20)",
    "SELECT l_orderkey, l_partkey, l_suppkey, sum(l_quantity) q FROM lineitem GROUP BY l_orderkey, l_partkey, l_suppkey ORDER BY q DESC, 1, 2, 3 LIMIT 20",
    "SELECT l_orderkey, l_extendedprice FROM lineitem WHERE l_tax < 0.05 ORDER BY l_extendedprice DESC, l_orderkey, l_linenumber LIMIT 7",
    "SELECT o_comment, o_orderkey FROM orders WHERE o_orderkey % 3 = 0 ORDER BY o_orderkey LIMIT 50 OFFSET 20",
    "SELECT c_name, c_address, o_comment FROM customer JOIN orders ON c_custkey = o_custkey WHERE o_totalprice > 200000",
    "SELECT n_name, r_name FROM nation, region WHERE n_regionkey > r_regionkey ORDER BY 1, 2",
    "SELECT s_suppkey FROM supplier WHERE s_suppkey NOT IN (SELECT ps_suppkey FROM partsupp WHERE ps_availqty > 5000)",
];

/// Queries whose answers leave in other ways: steps of a recursion, values of subqueries, rows that the CPU reads
/// between two borders, parts of a union, lists, a limit that any rows fulfil, nothing at all.
const OTHER_WAYS: &[&str] = &[
    "WITH RECURSIVE r(n, k) AS (SELECT 1, count(*) FROM orders JOIN customer ON o_custkey = c_custkey WHERE c_acctbal > 0 UNION ALL SELECT n + 1, k + n FROM r WHERE n < 5) SELECT * FROM r",
    "WITH RECURSIVE r(k) AS (SELECT o_custkey FROM orders JOIN customer ON o_custkey = c_custkey WHERE o_orderkey < 40 UNION SELECT o_custkey + 1 FROM r JOIN orders ON o_custkey = k WHERE o_custkey < 60) SELECT * FROM r",
    "SELECT count(*) FROM lineitem JOIN part ON l_partkey = p_partkey WHERE l_quantity > (SELECT avg(l_quantity) FROM lineitem JOIN orders ON l_orderkey = o_orderkey WHERE o_custkey < 50)",
    "SELECT o_custkey, (SELECT max(c_acctbal) FROM customer JOIN nation ON c_nationkey = n_nationkey WHERE n_regionkey = 1) AS m FROM orders WHERE o_orderkey < 100",
    "SELECT k, approx_median(v) OVER (PARTITION BY k % 3) AS m FROM (SELECT o_custkey AS k, max(l_linenumber) AS v FROM lineitem JOIN orders ON l_orderkey = o_orderkey WHERE o_custkey < 80 GROUP BY 1)",
    "SELECT c_custkey FROM customer JOIN nation ON c_nationkey = n_nationkey WHERE n_regionkey = 2 UNION ALL SELECT o_custkey FROM orders JOIN lineitem ON o_orderkey = l_orderkey WHERE l_quantity > 49",
    "SELECT c_nationkey, array_agg(o_orderkey ORDER BY o_orderkey) AS keys FROM customer JOIN orders ON c_custkey = o_custkey WHERE o_totalprice > 250000 GROUP BY c_nationkey",
    "SELECT count(*) FROM (SELECT o_orderkey FROM orders JOIN customer ON o_custkey = c_custkey WHERE c_acctbal > 100 LIMIT 30)",
    "SELECT o_orderkey FROM orders JOIN customer ON o_custkey = c_custkey WHERE c_acctbal < -100000",
    "SELECT l_orderkey, sum(l_quantity) OVER (PARTITION BY l_suppkey ORDER BY l_orderkey, l_linenumber) AS s FROM lineitem JOIN part ON l_partkey = p_partkey WHERE p_size < 5",
    "SELECT o_orderkey FROM orders INTERSECT SELECT l_orderkey FROM lineitem JOIN part ON l_partkey = p_partkey WHERE p_size = 7",
];

async fn session(device: DeviceChoice, fallback: Fallback, options: &[(&str, &str)]) -> Millpond {
    let session = parquet_session(device, fallback, config(2), &data("0.001")).await;
    for (name, value) in options {
        session.execute(&format!("SET millpond.{name} = {value}")).await.expect("the option is taken");
    }
    session
}

fn statements() -> Vec<String> {
    queries().into_iter().map(|(_, sql)| sql).chain(OTHERS.iter().map(|sql| sql.to_string())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_answer_begins_the_run_again_and_changes_nothing() {
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, &[]).await;
    let mut expected = Vec::new();
    for sql in statements() {
        let result = cpu.execute(&sql).await.expect("the CPU's answer");
        expected.push((sql, Answer::new(&result.schema, &result.batches)));
    }
    for (each, first) in [("1", "0"), ("2", "7"), ("3", "0"), ("5", "7")] {
        // Few groups at first: tables grow, and what is left over is asked for again and again.
        let options = [("debug_surprises", each), ("debug_groups_at_first", first)];
        let sim = session(DeviceChoice::Sim, Fallback::Error, &options).await;
        let mut surprised = 0;
        for (sql, expected) in &expected {
            let ordered = sql.to_lowercase().contains("order by");
            for run in 0..3 {
                let result = sim.execute(sql).await.unwrap_or_else(|error| panic!("run {run}: {error}\n{sql}"));
                let answer = Answer::new(&result.schema, &result.batches);
                assert_eq!(expected.difference(&answer, ordered), None, "each {each}, run {run}\n{sql}");
                assert_eq!(result.report.pool_used_bytes, 0, "each {each}, run {run}\n{sql}");
                assert_eq!(result.report.findings, Vec::<String>::new(), "each {each}, run {run}\n{sql}");
                surprised += u32::from(run > 0 && result.report.attempts > 1);
            }
        }
        // At least the joins of TPC-H are asked of their tables.
        assert!(surprised >= 15, "{surprised} runs met a wrong answer, of which each {each} is one");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_answer_leaves_in_no_other_way() {
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, &[]).await;
    let mut expected = Vec::new();
    for sql in OTHER_WAYS {
        let result = cpu.execute(sql).await.unwrap_or_else(|error| panic!("{error}\n{sql}"));
        expected.push(Answer::new(&result.schema, &result.batches));
    }
    for each in ["1", "2", "3"] {
        let sim = session(DeviceChoice::Sim, Fallback::Allow, &[("debug_surprises", each)]).await;
        let mut surprised = 0;
        for (sql, expected) in OTHER_WAYS.iter().zip(&expected) {
            for run in 0..3 {
                let result = sim.execute(sql).await.unwrap_or_else(|error| panic!("run {run}: {error}\n{sql}"));
                let answer = Answer::new(&result.schema, &result.batches);
                assert_eq!(expected.difference(&answer, false), None, "each {each}, run {run}\n{sql}");
                assert_eq!(result.report.findings, Vec::<String>::new(), "each {each}, run {run}\n{sql}");
                assert_eq!(result.report.notes, Vec::<String>::new(), "each {each}, run {run}\n{sql}");
                assert_eq!(result.report.pool_used_bytes, 0, "each {each}, run {run}\n{sql}");
                surprised += u32::from(result.report.attempts > 1);
            }
        }
        assert!(surprised >= 5, "{surprised} runs met a wrong answer, of which each {each} is one");
    }
}

/// CREATE OR REPLACE TABLE made AS a query.
async fn make(session: &Millpond, query: &str) -> Created {
    let statement = session.statement(&format!("CREATE OR REPLACE TABLE made AS {query}")).await.expect("planned");
    let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) = statement.plan() else { panic!("{query}") };
    let created = session.create_table(create.clone()).await.unwrap_or_else(|error| panic!("{error}\n{query}"));
    created.expect("a table that the engine makes")
}

/// The same answers are taken over by a query and by a table that is made of it: what is read of the table are the
/// query's rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_is_made_of_checked_answers() {
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, &[]).await;
    let mut expected = Vec::new();
    for sql in statements().into_iter().chain(OTHER_WAYS.iter().map(|sql| sql.to_string())) {
        let result = cpu.execute(&sql).await.unwrap_or_else(|error| panic!("{error}\n{sql}"));
        // In a table no two columns share a name.
        let names: Vec<String> = (0..result.schema.fields().len()).map(|column| format!("c{column}")).collect();
        let sql = format!("SELECT * FROM ({sql}) AS q({})", names.join(", "));
        let result = cpu.execute(&sql).await.unwrap_or_else(|error| panic!("{error}\n{sql}"));
        expected.push((sql, Answer::new(&result.schema, &result.batches)));
    }
    for (each, first) in [("1", "0"), ("2", "7"), ("3", "0")] {
        let options = [("debug_surprises", each), ("debug_groups_at_first", first)];
        let sim = session(DeviceChoice::Sim, Fallback::Allow, &options).await;
        let (mut surprised, mut stayed) = (0, 0);
        for (sql, expected) in &expected {
            for run in 0..2 {
                // What this run finds the table takes over. A definition forgets plans, and with them what was found.
                sim.execute(sql).await.unwrap_or_else(|error| panic!("run {run}: {error}\n{sql}"));
                let created = make(&sim, sql).await;
                assert_eq!(created.report.findings, Vec::<String>::new(), "each {each}, run {run}\n{sql}");
                assert_eq!(created.report.notes, Vec::<String>::new(), "each {each}, run {run}\n{sql}");
                assert_eq!(created.report.pool_used_bytes, 0, "each {each}, run {run}\n{sql}");
                let stays = created.table.downcast_ref::<MadeTable>().is_some();
                stayed += u32::from(stays);
                surprised += u32::from(stays && created.report.attempts > 1);
                let read = sim.execute("SELECT * FROM made").await.expect("the table is read");
                let answer = Answer::new(&read.schema, &read.batches);
                assert_eq!(expected.difference(&answer, false), None, "each {each}, run {run}\n{sql}");
            }
        }
        assert!(stayed >= 20 && surprised >= 10, "{stayed} tables stayed, {surprised} of them met a wrong answer");
        sim.execute("DROP TABLE made").await.expect("dropped");
        let (engine, store) = (sim.engine().expect("a device"), Store::of(sim.engine().expect("a device")));
        store.clear();
        assert!(store.entries(None).is_empty(), "{:?}", store.entries(None));
        assert_eq!(engine.pool().used_bytes().as_u64(), 0, "each {each}: a table that was given up holds memory");
    }
}

/// Of 200 groups each has 32 values: 8 of 1e16, 8 of -1e16 and 16 of 1.0, in an order without a pattern.
fn sums_that_depend_on_their_order() -> RecordBatch {
    let mut rows: Vec<u64> = (0..6400).collect();
    rows.sort_by_key(|row| row.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9));
    let value = |row: &u64| match row / 200 % 4 {
        0 => 1e16,
        1 => -1e16,
        _ => 1.0,
    };
    let groups: Int64Array = rows.iter().map(|row| (row % 200) as i64).collect();
    let values: Float64Array = rows.iter().map(|row| Some(value(row))).collect();
    let columns = [("g", Arc::new(groups) as ArrayRef), ("v", Arc::new(values) as ArrayRef)];
    RecordBatch::try_from_iter(columns).expect("two columns")
}

/// Nothing is falsified: the schedule decides in which order floats are added, and so which groups there are. Whichever
/// there are, each has 16 times 16 rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_is_made_of_whole_groups_whatever_the_schedule() {
    let query = "SELECT p.g, r.v FROM (SELECT g FROM x GROUP BY g HAVING sum(v) > 7.5) q JOIN x p ON q.g = p.g JOIN x r ON p.g = r.g WHERE p.v = 1 AND r.v = 1";
    let mut surprised = 0;
    for seed in ["2", "3", "7", "11", "12", "13"] {
        let sim = Millpond::builder()
            .with_own_engine()
            .with_device(DeviceChoice::Sim)
            .with_fallback(Fallback::Error)
            .with_config(config(2));
        let sim = sim.with_option("debug_sim_seed", seed).expect("an option").build().expect("a device");
        sim.context().register_batch("x", sums_that_depend_on_their_order()).expect("a name of its own");
        for run in 0..3 {
            // Small tables in memory are stored when they are seen a second time.
            for _ in 0..2 {
                sim.execute(query).await.expect("rows");
            }
            let created = make(&sim, query).await;
            assert!(created.table.downcast_ref::<MadeTable>().is_some(), "seed {seed}: it has come home");
            surprised += u32::from(created.report.attempts > 1);
            let broken = "SELECT g, count(*) AS n FROM made GROUP BY g HAVING count(*) <> 256";
            let broken = sim.execute(broken).await.expect("groups");
            let rows: usize = broken.batches.iter().map(RecordBatch::num_rows).sum();
            assert_eq!(rows, 0, "seed {seed}, run {run}: groups that lack rows");
        }
    }
    assert!(surprised > 0, "no run met another sum");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_query_waits_once_for_each_border() {
    let sim = session(DeviceChoice::Sim, Fallback::Error, &[]).await;
    for (number, sql) in queries() {
        sim.execute(&sql).await.expect("an answer");
        let result = sim.execute(&sql).await.expect("an answer");
        let mut borders = 0;
        let walked = result.plan.apply(|node| {
            borders += u64::from(node.is::<DownloadExec>());
            Ok(TreeNodeRecursion::Continue)
        });
        walked.expect("the walk returns no error");
        assert_eq!(result.report.host_waits, borders, "q{number:02} waits once for each of its borders");
    }
}
