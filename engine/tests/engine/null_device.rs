//! Runs without their kernels, for measuring: they take the path of the run that was kept, and never pass for answers.
//!
//!   warm-up ─► option on ─► kept, an answer ─► skipped, an error, equal counts ─► option off ─► an answer

use futures::StreamExt;
use millpond::{DeviceChoice, EngineError, Fallback, Millpond, QueryReport};
use millpond_memory::Driver;

use crate::answers::Answer;
use crate::support::soon;
use crate::tpch::{config, data, parquet_session, queries};

async fn session(data: &std::path::Path) -> Millpond {
    let session = parquet_session(DeviceChoice::Sim, Fallback::Allow, config(1), data).await;
    set(&session, "partitions", "1").await;
    session
}

async fn set(session: &Millpond, option: &str, value: &str) {
    let sql = format!("SET millpond.{option} = {value}");
    session.execute(&sql).await.expect("the option is taken");
}

/// The report of a run whose launches are skipped, and its error.
async fn skipped(session: &Millpond, sql: &str) -> (QueryReport, String) {
    let mut batches = session.stream(sql).await.expect("a plan");
    let error = loop {
        match batches.next().await {
            Some(Ok(batch)) => assert_eq!(batch.num_rows(), 0, "a run without kernels gives rows:\n{sql}"),
            Some(Err(error)) => break error,
            None => panic!("a run without kernels ends without an error:\n{sql}"),
        }
    };
    assert!(EngineError::find(&error).is_some_and(EngineError::is_skipped), "{error}");
    (batches.report().await, error.to_string())
}

fn counts(report: &QueryReport) -> [u64; 8] {
    [
        report.launches,
        report.pipelines,
        report.host_waits,
        report.allocations,
        report.allocated_bytes,
        report.uploaded_bytes,
        report.downloaded_bytes,
        report.attempts,
    ]
}

/// Subqueries of these run on the device before the rest does: without kernels the query ends with the first of its
/// parts.
const IN_TWO_PARTS: [usize; 3] = [11, 15, 22];

/// The path of a query depends on what the host reads, so all 22 take the same one without their kernels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_takes_its_path_without_kernels_and_gives_no_answer() {
    let data = data("0.001");
    let session = session(&data).await;
    let engine = session.engine().expect("a device");
    let sim = engine.simulated().expect("a simulated one");
    for (number, sql) in queries() {
        let warm = session.execute(&sql).await.expect("an answer");
        let expected = Answer::new(&warm.schema, &warm.batches);
        set(&session, "debug_sim_skip_launches", "true").await;
        // The plan is another one by now: what its first run waits for, if anything, is taken over by the next, which
        // is kept.
        let mut kept = session.execute(&sql).await.expect("an answer");
        if let Ok(next) = session.execute(&sql).await {
            kept = next;
        }
        let ordered = sql.to_lowercase().contains("order by");
        assert_eq!(expected.difference(&Answer::new(&kept.schema, &kept.batches), ordered), None, "Q{number}");
        // Some of the kept run's work is still to be done.
        sim.settle().expect("the device works");
        let executed = sim.counters().warp_instructions;
        let (report, error) = skipped(&session, &sql).await;
        if IN_TWO_PARTS.contains(&number) {
            assert!(report.launches < kept.report.launches, "Q{number} has one part");
        } else {
            assert_eq!(counts(&report), counts(&kept.report), "Q{number}");
            // The plan is kept from the run before, with what was prepared for it.
            assert!(report.lowerings <= kept.report.lowerings, "Q{number}");
        }
        assert_eq!(sim.counters().warp_instructions, executed, "Q{number} ran kernels");
        assert!(report.findings.is_empty() && report.pool_used_bytes == 0, "Q{number}: {report:?}");
        assert!(error.contains("millpond.debug_sim_skip_launches") && error.contains("no answer"), "{error}");
        set(&session, "debug_sim_skip_launches", "false").await;
        let after = session.execute(&sql).await.expect("an answer");
        assert_eq!(expected.difference(&Answer::new(&after.schema, &after.batches), ordered), None, "Q{number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_reads_other_rows_ends_in_an_error_too() {
    let data = data("0.001");
    let session = session(&data).await;
    set(&session, "debug_sim_skip_launches", "true").await;
    let sql = "SELECT l_returnflag, count(*) FROM lineitem WHERE l_quantity < 10 GROUP BY l_returnflag";
    for _ in 0..2 {
        // The first may learn sizes, and is kept unless it had to begin again.
        session.execute(sql).await.ok();
    }
    skipped(&session, sql).await;
    // A limit above the device's part does not make an answer of its rows.
    let limited = "SELECT l_orderkey FROM lineitem WHERE l_quantity < 10 LIMIT 3";
    session.execute(limited).await.ok();
    skipped(&session, limited).await;
}

/// The switch belongs to the device: no other query may run while it is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_skips_is_used_by_one_run_at_a_time() {
    let data = data("0.001");
    let first = session(&data).await;
    let engine = first.engine().expect("a device").clone();
    let builder = Millpond::builder().with_engine(engine).with_fallback(Fallback::Allow).with_config(config(1));
    let other =
        builder.with_option("cache_settle_seconds", "0").expect("the option is taken").build().expect("a session");
    crate::tpch::register_files(other.context(), &data).await;

    // Its rows wait for their reader.
    first.execute("SET datafusion.execution.batch_size = 64").await.expect("the option is taken");
    let mut running = first.stream("SELECT l_orderkey + 1 FROM lineitem WHERE l_tax >= 0").await.expect("a plan");
    running.next().await.expect("a batch").expect("rows");
    set(&other, "debug_sim_skip_launches", "true").await;
    let sum = "SELECT sum(l_quantity) FROM lineitem";
    let refused = other.execute(sum).await.err().expect("the device is in use");
    assert!(refused.to_string().contains("one run at a time"), "{refused}");
    soon("the end of the first query", running.report()).await;

    let mut batches = other.stream("SELECT l_orderkey + 1 FROM lineitem WHERE l_tax >= 0").await.expect("a plan");
    other.execute("SET datafusion.execution.batch_size = 64").await.expect("the option is taken");
    drop(batches.next().await);
    soon("the end of the other query", batches.report()).await;
    other.execute(sum).await.expect("the answer of the run that is kept");
    skipped(&other, sum).await;
    set(&first, "debug_sim_skip_launches", "false").await;
    first.execute(sum).await.expect("an answer");
}
