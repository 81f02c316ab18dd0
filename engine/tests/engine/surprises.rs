//! What earlier runs of a plan waited for is taken over and checked: one wait a border, and where it is not so, another attempt.

use millpond::datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use millpond::result::node::DownloadExec;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::tpch::{config, data, parquet_session, queries};

/// Queries beside TPC-H's that ask the device for more: rows of expansions with and without conditions on pairs, marks, leftover rows
/// of a table that grows, first rows within a bar, limits with offsets, groups by texts, results of texts.
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
