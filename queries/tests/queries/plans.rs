//! Plans of the functions: EXPLAIN names, pushdown, requirements, memory, metrics, cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use millpond::datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};
use millpond::datafusion::catalog::Session;
use millpond::datafusion::error::{DataFusionError, Result};
use millpond::datafusion::execution::memory_pool::GreedyMemoryPool;
use millpond::datafusion::execution::runtime_env::RuntimeEnvBuilder;
use millpond::datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use millpond::datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use millpond::datafusion::physical_plan::execution_plan::reset_plan_states;
use millpond::datafusion::physical_plan::{ExecutionPlan, collect, execute_stream};
use millpond::datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};
use millpond::datafusion::prelude::SessionConfig;
use millpond::{DeviceChoice, Millpond};
use millpond_queries::functions::{self, Function, RelationExec, RelationNode};

use crate::support::{Numbers, plan, query, rows, session, session_on, table};

fn clicks(session: &Millpond, count: i64) {
    let mut numbers = Numbers(21);
    let mut column = |bound: u64| -> ArrayRef {
        Arc::new((0..count).map(|_| Some(numbers.below(bound) as i64)).collect::<Int64Array>())
    };
    let columns = vec![("usr", column(20)), ("ts", column(5_000)), ("itm", column(9)), ("unread", column(3))];
    table(session.context(), "clicks", 3, columns);
}

async fn logical(session: &Millpond, sql: &str) -> String {
    let frame = session.context().sql(sql).await.expect("plans");
    frame.into_optimized_plan().expect("optimises").display_indent().to_string()
}

/// The plan text from the first occurrence of `name`.
fn below<'a>(plan: &'a str, name: &str) -> &'a str {
    let start = plan.find(name).unwrap_or_else(|| panic!("{name} is not in\n{plan}"));
    &plan[start..]
}

#[tokio::test]
async fn explain_names_the_function_and_what_it_requires() {
    let session = session();
    clicks(&session, 100);
    let found = plan(&session, "SELECT * FROM sessionize('clicks', 'usr', 'ts', 60)").await;
    let below = below(&found, "SessionizeExec: [usr@0, ts@1], gap=60");
    assert!(below.contains("SortExec: expr=[usr@0 ASC NULLS LAST, ts@1 ASC NULLS LAST]"), "{found}");
    assert!(below.contains("Hash([usr@0], 3)"), "{found}");
    for (call, name) in [
        ("basket_pairs('clicks', ['usr', 'ts'], 'itm')", "BasketPairsExec: [usr@0, ts@1, itm@2]"),
        (
            "last_n_before('SELECT *, itm = 1 AS buy FROM clicks', 'usr', 'ts', 'buy', 5, 60)",
            "LastBeforeExec: [usr@0, ts@1, buy@4], n=5, within=60",
        ),
        (
            "kmeans('clicks', 'ts', ['usr', 'itm'], 2)",
            "KMeansExec: [ts@1, usr@0, itm@2], k=2, max_iterations=20, restarts=5, seed=37, tolerance=1e-4, output=labels",
        ),
        (
            "kmeans_predict('clicks', 'ts', 'usr', 'SELECT itm AS label, usr FROM clicks')",
            "KMeansPredictExec: [ts@1, usr@0, label@0, usr@1]",
        ),
        (
            "logistic_report('clicks', 'usr', 'itm')",
            "LogisticRegressionExec: [usr@0, itm@1], max_iterations=100, tolerance=1e-9, output=report",
        ),
        (
            "naive_bayes('SELECT usr, itm, ''a'' AS t FROM clicks', 'SELECT usr, itm, ''b'' AS t FROM clicks', 'usr', 't', 'itm')",
            "NaiveBayesExec: [t@2, itm@1, usr@0, t@2, itm@1], alpha=0.001, buckets=8388608",
        ),
    ] {
        let found = plan(&session, &format!("SELECT * FROM {call}")).await;
        assert!(found.contains(name), "{name} is not in\n{found}");
    }
    let explained = query(&session, "EXPLAIN SELECT * FROM sessionize('clicks', 'usr', 'ts', 60)").await;
    assert!(explained.iter().flatten().any(|text| text.contains("Sessionize: [clicks.usr, clicks.ts], gap=60")));
}

#[tokio::test]
async fn columns_that_nobody_reads_are_not_read() {
    let session = session();
    clicks(&session, 100);
    let sessions = logical(&session, "SELECT usr, session_id FROM sessionize('clicks', 'usr', 'ts', 60)").await;
    assert!(below(&sessions, "TableScan").contains("projection=[usr, ts]"), "{sessions}");
    let sessions =
        logical(&session, "SELECT itm FROM sessionize('clicks', 'usr', 'ts', 60) WHERE session_id = 0").await;
    assert!(below(&sessions, "TableScan").contains("projection=[usr, ts, itm]"), "{sessions}");
    let pairs = logical(&session, "SELECT COUNT(*) FROM basket_pairs('clicks', 'usr', 'itm')").await;
    assert!(below(&pairs, "TableScan").contains("projection=[usr, itm]"), "{pairs}");
    session.execute("CREATE VIEW bought AS SELECT *, itm = 1 AS buy FROM clicks").await.expect("a view");
    let before = "SELECT anchor_itm FROM last_n_before('bought', 'usr', 'ts', 'buy', 5)";
    let before = logical(&session, before).await;
    assert!(below(&before, "TableScan").contains("projection=[usr, ts, itm]"), "{before}");
    let clusters = logical(&session, "SELECT label FROM kmeans('clicks', 'ts', 'itm', 5)").await;
    assert!(below(&clusters, "TableScan").contains("projection=[ts, itm]"), "{clusters}");
    let labels = "SELECT label FROM kmeans_predict('clicks', 'ts', 'itm', 'SELECT usr AS label, itm FROM clicks')";
    let labels = logical(&session, labels).await;
    assert!(labels.contains("projection=[ts, itm]") && labels.contains("projection=[usr, itm]"), "{labels}");
}

#[tokio::test]
async fn filters_on_keys_move_below_and_others_stay() {
    let session = session();
    clicks(&session, 500);
    let call = "sessionize('clicks', 'usr', 'ts', 60)";
    let all = query(&session, &format!("SELECT usr, ts, itm, session_id FROM {call}")).await;
    for (condition, moves) in [("usr = 7", true), ("ts > 100", false), ("session_id = 0", false), ("itm = 3", false)] {
        let sql = format!("SELECT usr, ts, itm, session_id FROM {call} WHERE {condition}");
        let optimised = logical(&session, &sql).await;
        let filtered_below =
            below(&optimised, "Sessionize").contains("Filter") || below(&optimised, "TableScan").contains("filters");
        assert_eq!(filtered_below, moves, "{condition}:\n{optimised}");
        let (column, value) = condition.split_once([' ']).expect("two parts");
        let kept = |row: &&Vec<String>| {
            let place = ["usr", "ts", "itm", "session_id"].iter().position(|name| *name == column).expect("a column");
            let number: i64 = row[place].parse().expect("a number");
            match value.split_once(' ').expect("two parts") {
                ("=", wanted) => number == wanted.parse::<i64>().expect("a number"),
                (_, least) => number > least.parse::<i64>().expect("a number"),
            }
        };
        assert_eq!(query(&session, &sql).await, all.iter().filter(kept).cloned().collect::<Vec<_>>(), "{condition}");
    }
    let pairs =
        logical(&session, "SELECT * FROM basket_pairs('clicks', 'usr', 'itm') WHERE usr = 7 AND itm_1 = 3").await;
    let pairs_below = below(&pairs, "BasketPairs");
    assert!(pairs_below.contains("usr = Int64(7)") && !pairs_below.contains("itm = "), "{pairs}");
    let clusters = logical(&session, "SELECT * FROM kmeans('clicks', 'ts', 'itm', 5) WHERE ts = 7").await;
    assert!(!below(&clusters, "KMeans").contains("Filter"), "{clusters}");
}

#[tokio::test]
async fn limits_do_not_move_below() {
    let session = session();
    clicks(&session, 500);
    let all = query(&session, "SELECT usr, ts, session_id FROM sessionize('clicks', 'usr', 'ts', 60)").await;
    let sql = "SELECT usr, ts, session_id FROM sessionize('clicks', 'usr', 'ts', 60) LIMIT 40";
    let some = query(&session, sql).await;
    assert_eq!(some.len(), 40);
    assert!(some.iter().all(|row| all.contains(row)));
}

#[tokio::test]
async fn orders_that_are_there_are_used() {
    let session = session();
    clicks(&session, 500);
    let sorted = plan(&session, "SELECT * FROM sessionize('clicks', 'usr', 'ts', 60) ORDER BY usr, ts").await;
    assert_eq!(sorted.matches("SortExec").count(), 1, "{sorted}");
    let sessions = plan(
        &session,
        "SELECT usr, session_id, COUNT(*) FROM sessionize('clicks', 'usr', 'ts', 60) GROUP BY usr, session_id",
    )
    .await;
    assert!(sessions.contains("ordering_mode=Sorted") && sessions.matches("SortExec").count() == 1, "{sessions}");
}

#[tokio::test]
async fn metrics_count_rows_and_time() {
    let session = session();
    clicks(&session, 500);
    let sql = "SELECT * FROM sessionize('clicks', 'usr', 'ts', 60)";
    let plan = session.context().sql(sql).await.expect("plans").create_physical_plan().await.expect("plans");
    collect(Arc::clone(&plan), session.context().task_ctx()).await.expect("runs");
    let found = find(&plan, "SessionizeExec").expect("it is there");
    let metrics = found.metrics().expect("it has metrics").aggregate_by_name();
    assert_eq!(metrics.output_rows(), Some(500));
    assert!(metrics.elapsed_compute().is_some_and(|time| time > 0));
    // A second run of a plan starts from a clean state.
    let again = collect(reset_plan_states(plan).expect("resets"), session.context().task_ctx()).await.expect("runs");
    assert_eq!(rows(&again, false).len(), 500);
}

fn find(plan: &Arc<dyn ExecutionPlan>, name: &str) -> Option<Arc<dyn ExecutionPlan>> {
    if plan.name() == name {
        return Some(Arc::clone(plan));
    }
    plan.children().into_iter().find_map(|child| find(child, name))
}

#[tokio::test]
async fn what_is_kept_is_counted_and_an_end_of_memory_is_an_error() {
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(GreedyMemoryPool::new(200_000)))
        .build_arc()
        .expect("runtime");
    let config = SessionConfig::new().with_target_partitions(1).with_batch_size(64);
    let session =
        Millpond::builder().with_device(DeviceChoice::Cpu).with_config(config).with_runtime_env(Arc::clone(&runtime));
    let session = session.build().expect("opens");
    functions::register(session.context()).expect("registered");
    // One group of many sorted elements: no sort needs memory, but the group does.
    session
        .context()
        .sql("CREATE VIEW one AS SELECT 1 AS g, value AS e FROM generate_series(1, 100000)")
        .await
        .expect("plans")
        .collect()
        .await
        .expect("runs");
    let sql = "SELECT COUNT(*) FROM basket_pairs('one', 'g', 'e')";
    let error = session.execute(sql).await.err().expect("too much").strip_backtrace();
    assert!(error.contains("Resources exhausted") || error.contains("memory"), "{error}");
    assert_eq!(runtime.memory_pool.reserved(), 0);
}

#[tokio::test]
async fn a_dropped_query_ends_and_gives_back_what_it_held() {
    let session = session_on(DeviceChoice::Cpu, 2, 16);
    session
        .context()
        .sql("CREATE VIEW wide AS SELECT value % 3 AS g, value AS e FROM generate_series(1, 3000)")
        .await
        .expect("plans")
        .collect()
        .await
        .expect("runs");
    let memory = Arc::clone(&session.context().runtime_env().memory_pool);
    for (sql, batches) in [
        // About 1.5 million pairs; two batches are read.
        ("SELECT * FROM basket_pairs('wide', 'g', 'e')", 2),
        // 60,000 clusters, 1,000 iterations, 100 restarts: this would run for days.
        ("SELECT * FROM kmeans('wide', 'e', 'g', 60000, 1000, 100)", 0),
    ] {
        let plan = session.context().sql(sql).await.expect("plans").create_physical_plan().await.expect("plans");
        let mut stream = execute_stream(plan, session.context().task_ctx()).expect("starts");
        for _ in 0..batches {
            stream.next().await.expect("more rows").expect("no error");
        }
        // A fit reserves its memory while it runs.
        while batches == 0 && memory.reserved() == 0 {
            assert!(futures::poll!(stream.next()).is_pending(), "{sql}: it ends by itself");
            tokio::task::yield_now().await;
        }
        drop(stream);
        while memory.reserved() > 0 {
            tokio::task::yield_now().await;
        }
    }
    // The runtime waits for its blocking threads: the test ends only if the fit has stopped.
}

/// Plans sessions itself, and passes other nodes on.
struct Mine(AtomicBool);

#[async_trait]
impl ExtensionPlanner for Mine {
    async fn plan_extension(
        &self,
        _planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        _session: &dyn Session,
        _planning_ctx: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let relation = node.as_any().downcast_ref::<RelationNode>();
        let relation = relation.ok_or_else(|| DataFusionError::Internal("whose node?".to_string()))?;
        let Function::Sessionize { keys, .. } = relation.function() else { return Ok(None) };
        self.0.store(true, Ordering::Relaxed);
        let function = Function::Sessionize { keys: *keys, gap: 0 };
        let schema = Arc::clone(node.schema().inner());
        Ok(Some(Arc::new(RelationExec::try_new(function, relation.positions()?, physical_inputs.to_vec(), schema)?)))
    }
}

#[tokio::test]
async fn another_planner_may_come_first() {
    let session = session();
    clicks(&session, 200);
    let mine = Arc::new(Mine(AtomicBool::new(false)));
    functions::register_with(session.context(), vec![Arc::clone(&mine) as _]).expect("registered");
    functions::register(session.context()).expect("twice changes nothing");
    let found = plan(&session, "SELECT * FROM sessionize('clicks', 'usr', 'ts', 60)").await;
    assert!(mine.0.load(Ordering::Relaxed) && found.contains("gap=0"), "{found}");
    let others = plan(&session, "SELECT * FROM basket_pairs('clicks', 'usr', 'itm')").await;
    assert!(others.contains("BasketPairsExec"), "{others}");
}

#[tokio::test]
async fn strings_and_views_pass_through() {
    let session = session();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new(StringArray::from(vec!["b", "a", "b"]))),
        ("t", Arc::new(Int64Array::from(vec![5, 1, 2]))),
        ("note", Arc::new(StringArray::from(vec![Some("x"), None, Some("z")]))),
    ];
    table(session.context(), "t", 1, columns);
    let sql = "SELECT upper(k) || note AS n, session_id FROM sessionize('t', 'k', 't', 1) AS s WHERE s.k IN ('b', 'c') ORDER BY n";
    let batches = session.context().sql(sql).await.expect("plans").collect().await.expect("runs");
    assert_eq!(rows(&batches, true), [["Bx", "1"], ["Bz", "0"]].map(|row| row.map(str::to_string).to_vec()));
}
