//! Session states of the program's own with a device, engines that sessions share, and what ends both.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millpond::datafusion::common::ScalarValue;
use millpond::datafusion::execution::SessionStateBuilder;
use millpond::datafusion::optimizer::Optimizer;
use millpond::datafusion::prelude::{SessionConfig, SessionContext};
use millpond::prelude::*;

use crate::answers::Answer;
use crate::tpch::{config, data, parquet_session, queries, register_files};

#[path = "../../examples/own_state.rs"]
mod example;

fn options() -> MillpondOptions {
    MillpondOptions::default().with_device(DeviceChoice::Sim).with_cache_settle_seconds(0)
}

fn opened() -> Opened {
    Engine::open(&options()).expect("the simulated device opens")
}

fn q1() -> String {
    queries().swap_remove(0).1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tpch_q1_runs_by_an_own_planner_and_rule_twice_the_second_time_by_a_kept_plan() {
    let files = data("0.01");
    let (planner, rule) = (Arc::<example::Planner>::default(), Arc::<example::Rule>::default());
    let session = example::session(&options(), &planner, &rule).expect("a session");
    register_files(session.context(), &files).await;
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await;
    let expected = cpu.execute(&q1()).await.expect("the CPU's answer");
    let expected = Answer::new(&expected.schema, &expected.batches);

    let mut uploaded = vec![];
    for run in 0..2 {
        let result = session.execute(&q1()).await.expect("an answer");
        assert_eq!(expected.difference(&Answer::new(&result.schema, &result.batches), true), None, "run {run}");
        assert_eq!(result.report.share_on_device(), Some(1.0), "{}", result.report);
        assert!(result.report.launches > 0 && result.report.findings.is_empty(), "{}", result.report);
        uploaded.push((planner.planned.load(Ordering::Relaxed), session.plans_found().kept));
    }
    // Its own planner has planned the statement once, and the second run took the plan that was kept.
    assert_eq!(uploaded, [(1, 0), (1, 1)]);
    assert!(rule.seen.load(Ordering::Relaxed) > 0);
    assert_eq!(session.unmended(), Vec::<&str>::new());
    // DataFusion's own doors and frames are planned by it, too.
    let frame = session.context().sql(&q1()).await.expect("a frame");
    let result = session.collect(frame).await.expect("an answer");
    assert_eq!(expected.difference(&Answer::new(&result.schema, &result.batches), true), None);
    assert_eq!(result.report.share_on_device(), Some(1.0), "{}", result.report);
    // Statements that differ in constants alone are planned each: a rule of the program's own may look at them.
    for days in [88, 89, 90] {
        let sql = q1().replace("INTERVAL '90' DAY", &format!("INTERVAL '{days}' DAY"));
        session.execute(&sql).await.expect("an answer");
    }
    assert_eq!(session.plans_found().by_template, 0);
}

#[tokio::test]
async fn mends_and_changes_of_tables_hold_in_an_own_state() {
    let (planner, rule) = (Arc::<example::Planner>::default(), Arc::<example::Rule>::default());
    let session = example::session(&options(), &planner, &rule).expect("a session");
    session.execute("CREATE TABLE t AS VALUES (1, 2), (2, NULL), (3, 9223372036854775807)").await.expect("a table");
    let error = session.context().sql("SELECT sum(column2) FROM t").await.expect("a frame").collect().await;
    assert!(error.expect_err("the sum leaves its type").to_string().contains("overflow"));
    // NULL in the list: no row, where DataFusion alone keeps some in an OR.
    let sql = "SELECT count(*) FROM t WHERE column1 NOT IN (SELECT column2 FROM t) OR column1 = 3";
    let counted = session.execute(sql).await.expect("an answer");
    assert_eq!(value(&counted), "1");
    let changed = session.execute("UPDATE t SET column2 = 5 WHERE column1 IN (SELECT 2)").await.expect("changed");
    assert_eq!(value(&changed), "1");
    let sum = session.execute("SELECT sum(column2) FROM t WHERE column1 < 3").await.expect("an answer");
    assert_eq!(value(&sum), "7");
    session.execute("EXPLAIN DELETE FROM t WHERE column1 = 1").await.expect("explained");
    session.execute("DELETE FROM t WHERE column1 = 1").await.expect("changed");
    assert_eq!(value(&session.execute("SELECT count(*) FROM t").await.expect("an answer")), "2");
    let cached = session.execute("SELECT count(*) FROM millpond_cache()").await.expect("the store's functions");
    assert_eq!(cached.report.answer_rows, 1);
}

/// The one value of an answer.
fn value(result: &QueryResult) -> String {
    ScalarValue::try_from_array(result.batches[0].column(0), 0).expect("a value").to_string()
}

#[tokio::test]
async fn a_list_that_lacks_a_rule_goes_without_it_and_says_so() {
    let mut rules = Optimizer::new().rules;
    rules.retain(|rule| rule.name() != "simplify_expressions");
    let state = SessionStateBuilder::new().with_default_features().with_optimizer_rules(rules);
    let state = state.with_millpond(opened()).expect("a state").build();
    let session = Millpond::of(&SessionContext::new_with_state(state)).expect("it has a device");
    assert_eq!(session.unmended(), ["simplify_expressions"]);
    assert_eq!(value(&session.execute("SELECT 1 + 1").await.expect("an answer")), "2");
}

#[tokio::test]
async fn a_state_has_one_device_at_most() {
    let state = SessionStateBuilder::new().with_default_features().with_millpond(opened()).expect("a state");
    let error = state.with_millpond(opened()).expect_err("it has one");
    assert!(error.to_string().contains("with_millpond is called once"), "{error}");
    assert!(Millpond::of(&SessionContext::new()).is_none());
    // Without a device the state has the mended rules.
    let state = SessionStateBuilder::new().with_default_features().with_millpond(Opened::default()).expect("a state");
    let session = Millpond::of(&SessionContext::new_with_state(state.build())).expect("Millpond's state");
    let error = session.execute("SELECT sum(x) FROM (VALUES (9223372036854775807), (1)) AS t(x)").await;
    assert!(error.err().expect("an error").to_string().contains("overflow"));
    assert!(session.engine().is_none());
}

#[tokio::test]
async fn options_of_the_configuration_are_those_of_the_session() {
    let config = SessionConfig::new().with_option_extension(options().with_min_rows(7));
    let engine = opened().engine.expect("a device");
    let state = SessionStateBuilder::new().with_default_features().with_config(config);
    let state = state.with_millpond(&engine).expect("a state").build();
    let session = Millpond::of(&SessionContext::new_with_state(state)).expect("a session");
    let shown = session.execute("SHOW millpond.min_rows").await;
    assert!(shown.is_err() || !shown.expect("shown").batches.is_empty());
    let error = session.execute("SET millpond.memory_resource = 'arena'").await.err().expect("an error");
    assert!(error.to_string().contains("while the device is open"), "{error}");
}

/// A builder whose memory limit is its test's alone, so that no other test shares the engine.
fn shared(bytes: usize) -> MillpondBuilder {
    Millpond::builder().with_device(DeviceChoice::Sim).with_memory_limit(bytes)
}

#[tokio::test]
async fn builds_share_one_engine_and_other_options_have_another() {
    let bytes = 300 << 20;
    let (one, two) = (shared(bytes).build().expect("a session"), shared(bytes).build().expect("a session"));
    let (engine, other) = (one.engine().expect("a device"), two.engine().expect("a device"));
    assert!(Arc::ptr_eq(engine, other));
    let third = shared(bytes).with_allocator(Strategy::Caching).build().expect("a session");
    assert!(!Arc::ptr_eq(engine, third.engine().expect("a device")));
    let own = shared(bytes).with_own_engine().build().expect("a session");
    assert!(!Arc::ptr_eq(engine, own.engine().expect("a device")));
    // Tables are each session's; when the last one has gone, the device is closed.
    one.execute("CREATE TABLE t AS SELECT 1 AS x").await.expect("a table");
    assert!(two.execute("SELECT * FROM t").await.is_err());
    let closed = Arc::downgrade(engine);
    drop((one, two));
    assert!(closed.upgrade().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sessions_that_are_built_at_once_share_one_engine() {
    let bytes = 301 << 20;
    let build = || tokio::task::spawn_blocking(move || shared(bytes).build().expect("a session"));
    let sessions = futures::future::join_all((0..8).map(|_| build())).await;
    let sessions: Vec<Millpond> = sessions.into_iter().map(|session| session.expect("it ran")).collect();
    let engine = sessions[0].engine().expect("a device");
    assert!(sessions.iter().all(|session| Arc::ptr_eq(engine, session.engine().expect("a device"))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_sessions_of_one_process_ask_at_once() {
    let files = data("0.001");
    let bytes = 304 << 20;
    let (mut expected, cpu) = (vec![], parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await);
    let asked = queries().into_iter().filter(|(number, _)| [1, 3, 6, 18].contains(number)).collect::<Vec<_>>();
    for (_, sql) in &asked {
        let result = cpu.execute(sql).await.expect("the CPU's answer");
        expected.push(Answer::new(&result.schema, &result.batches));
    }
    let (expected, asked) = (Arc::new(expected), Arc::new(asked));
    let mut tasks = tokio::task::JoinSet::new();
    for first in 0..8 {
        let (expected, asked, files) = (Arc::clone(&expected), Arc::clone(&asked), files.clone());
        tasks.spawn(async move {
            let session = shared(bytes).with_fallback(Fallback::Error).build().expect("a session");
            register_files(session.context(), &files).await;
            for turn in 0..8 {
                let at = (first + turn) % asked.len();
                let result = session.execute(&asked[at].1).await.expect("an answer");
                let answer = Answer::new(&result.schema, &result.batches);
                assert_eq!(expected[at].difference(&answer, true), None, "q{:02}", asked[at].0);
                assert_eq!(result.report.findings, Vec::<String>::new());
            }
            session
        });
    }
    let sessions = tasks.join_all().await;
    let engine = sessions[0].engine().expect("a device");
    assert!(sessions.iter().all(|session| Arc::ptr_eq(engine, session.engine().expect("a device"))));
    assert_eq!(sessions[0].pool_used_bytes(), 0);
}

#[tokio::test]
async fn another_session_has_the_settings_and_no_tables() {
    let first = shared(302 << 20).with_url_tables().build().expect("a session");
    first.execute("CREATE TABLE t AS SELECT 1 AS x").await.expect("a table");
    first.execute("SET millpond.min_rows = 5").await.expect("set");
    first.execute("SET datafusion.execution.batch_size = 77").await.expect("set");
    let second = first.another().expect("a session");
    assert!(Arc::ptr_eq(first.engine().expect("a device"), second.engine().expect("a device")));
    let config = second.context().copied_config();
    let options = config.options().extensions.get::<MillpondOptions>().expect("ours");
    assert_eq!((options.min_rows, config.options().execution.batch_size.get()), (5, 77));
    assert!(second.execute("SELECT * FROM t").await.is_err());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/samples/sales.parquet");
    let counted = second.execute(&format!("SELECT count(*) FROM '{}'", file.display())).await.expect("an answer");
    assert_eq!(counted.report.answer_rows, 1);
    // Settings of one are not those of the other from then on.
    second.execute("SET millpond.min_rows = 6").await.expect("set");
    let config = first.context().copied_config();
    assert_eq!(config.options().extensions.get::<MillpondOptions>().expect("ours").min_rows, 5);
}

#[tokio::test]
async fn a_device_that_was_lost_is_not_handed_out_again() {
    let bytes = 303 << 20;
    let lost = || shared(bytes).with_option("debug_sim_lose_at_launch", "1").expect("an option");
    let first = lost().build().expect("a session");
    first.execute("CREATE TABLE t AS SELECT value AS x FROM generate_series(1, 10)").await.expect("by the CPU");
    let answer = first.execute("SELECT sum(x) FROM t").await.expect("the CPU takes over");
    assert_eq!(value(&answer), "55");
    assert!(first.engine().expect("a device").device().is_lost());
    let second = lost().build().expect("a session");
    assert!(!Arc::ptr_eq(first.engine().expect("a device"), second.engine().expect("a device")));
}

#[tokio::test]
async fn a_full_pool_ends_clearly_in_an_own_state() {
    let options = options().with_memory_limit_bytes(2000).with_fallback(Fallback::Error);
    let engine = Engine::open(&options).expect("opened");
    let config = SessionConfig::new().with_option_extension(options);
    let state = SessionStateBuilder::new().with_default_features().with_config(config);
    let state = state.with_millpond(&engine).expect("a state").build();
    let session = Millpond::of(&SessionContext::new_with_state(state)).expect("a session");
    let sql = "SELECT v % 100003 AS k, sum(v) FROM generate_series(1, 4000) AS t(v) GROUP BY v % 100003";
    let error = session.execute(sql).await.err().expect("no room").to_string();
    assert!(error.contains("out of device memory") && error.contains("millpond.memory_limit_bytes"), "{error}");
    assert_eq!(session.pool_used_bytes(), 0);
}

#[tokio::test]
async fn parameters_take_values() {
    let session = Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim).build().expect("a session");
    session.execute("CREATE TABLE t AS SELECT value AS x FROM generate_series(1, 100)").await.expect("a table");
    let number = |value: i64| ScalarValue::from(value);
    for (least, expected) in [(1, "5050"), (51, "3775"), (99, "199"), (100, "100")] {
        let sql = "SELECT sum(x) FROM t WHERE x >= $1";
        let result = session.execute_with(sql, vec![number(least)]).await.expect("an answer");
        assert_eq!((value(&result).as_str(), result.report.share_on_device()), (expected, Some(1.0)));
    }
    // From the second on they take the plan that is made for any value.
    assert!(session.plans_found().by_template > 0);
    let named = "SELECT count(*) FROM t WHERE x BETWEEN $low AND $high AND x IN (SELECT x FROM t WHERE x > $low)";
    let result = session.execute_with(named, vec![("low", number(10)), ("high", number(20))]).await.expect("an answer");
    assert_eq!(value(&result), "10");
    let refused = |error: DataFusionError, words: &str| {
        let error = error.to_string();
        assert!(error.contains(words), "{error}");
    };
    let missing = session.execute_with("SELECT $1 + $2", vec![number(1)]).await.err().expect("an error");
    refused(missing, "parameter $2 has no value");
    let unused = session.execute_with("SELECT $a", vec![("a", number(1)), ("b", number(2))]).await;
    refused(unused.err().expect("an error"), "a value is given for parameter $b");
}
