//! Profiles: where the time of a query goes, whose sums are right and in which nothing is without a name.
//!
//!   query ─► Profiler ─► steps = wall time · steps below feeding = lives of feeders and readers · launches = the
//!                        counter
//!
//! No claim is about how long anything takes: that steps add up holds however busy the machine is.

use millpond::datafusion::arrow::util::pretty::pretty_format_batches;
use millpond::datafusion::prelude::SessionConfig;
use millpond::profile::{WorkKind, step};
use millpond::{DeviceChoice, Fallback, Millpond, Profile, Profiler, QueryReport};

use crate::support::{register_parquet, session};
use crate::tpch;

/// Permitted steps of a query's own path.
const STEPS: [&str; 11] = [
    step::PLAN,
    step::PLACE,
    step::CPU,
    step::PREPARE,
    step::GENERATE,
    step::ASSEMBLE,
    step::FEED,
    step::LAUNCH,
    step::WAIT,
    step::DOWNLOAD,
    step::DELIVER,
];

async fn profiled(session: &Millpond, sql: &str) -> (Profile, QueryReport) {
    let profiler = Profiler::begin(sql);
    let result = profiler.around(session.execute(sql)).await.expect("the query runs");
    (session.profile(&profiler), result.report)
}

async fn tpch_session() -> Millpond {
    let config = SessionConfig::new().with_target_partitions(3);
    let session = tpch::parquet_session(DeviceChoice::Sim, Fallback::Error, config, &tpch::data("0.001")).await;
    feeds(&session).await;
    session
}

/// Nothing stays on the device of this session.
async fn feeds(session: &Millpond) {
    session.execute("SET millpond.cache = off").await.expect("an option");
}

fn sum(steps: &[(&'static str, u64)]) -> u64 {
    steps.iter().map(|(_, ns)| ns).sum()
}

/// Rounding: a nanosecond for each name.
fn assert_sum(what: &str, steps: &[(&'static str, u64)], whole: u64) {
    assert!(sum(steps).abs_diff(whole) <= steps.len() as u64, "{what}: {} of {whole} ns: {steps:?}", sum(steps));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_steps_of_a_query_add_up_to_its_wall_time() {
    let session = tpch_session().await;
    for (number, sql) in tpch::queries().into_iter().filter(|(number, _)| [1, 3, 6, 11, 15].contains(number)) {
        let what = format!("Q{number}");
        let (profile, report) = profiled(&session, &sql).await;
        assert_sum(&what, &profile.steps, profile.wall_ns);
        let names: Vec<&str> = profile.steps.iter().map(|(step, _)| *step).collect();
        assert!(names.iter().all(|name| STEPS.contains(name)), "{what}: {names:?}");
        for step in [step::PLAN, step::PLACE, step::PREPARE, step::FEED, step::LAUNCH, step::WAIT, step::DOWNLOAD] {
            assert!(names.contains(&step), "{what} has no {step}: {names:?}");
        }
        let feeding = &profile.feeding;
        assert_sum(&what, &feeding.steps, feeding.ns);
        assert!(feeding.feeders > 0 && feeding.readers > 0, "{what}: {feeding:?}");
        let names: Vec<&str> = feeding.steps.iter().map(|(step, _)| *step).collect();
        let strings = (number != 6).then_some(step::INTERN);
        for step in [step::OPEN, step::READ, step::DECODE, step::NARROW, step::COPY].into_iter().chain(strings) {
            assert!(names.contains(&step), "{what} has no {step}: {names:?}");
        }

        assert_eq!(profile.launches(), report.launches, "{what}");
        let launched: u64 = profile.kernels.iter().map(|kernel| kernel.launches).sum();
        assert_eq!(launched, report.launches, "{what}");
        let uploaded: u64 = profile.segments.iter().map(|segment| segment.uploaded_bytes).sum();
        let downloaded: u64 = profile.segments.iter().map(|segment| segment.downloaded_bytes).sum();
        assert_eq!((uploaded, downloaded), (report.uploaded_bytes, report.downloaded_bytes), "{what}");
        let allocations = profile.recording.work.iter().filter(|work| matches!(work.kind, WorkKind::Allocate));
        assert_eq!(allocations.count() as u64, report.allocations, "{what}");
        assert!(profile.attempts > profile.learnt.len(), "{what}: {:?}", profile.learnt);
        // A segment whose rows dictionaries leave out writes nothing.
        let mut written = 0;
        for segment in profile.segments.iter().filter(|segment| segment.launches > 0) {
            assert!(segment.name.contains("segment "), "{what}: {}", segment.name);
            assert!(segment.device_ns.is_none(), "the simulated device has no time");
            let figures = segment.figures.expect("the simulated device counts");
            assert!(figures.warp_instructions > 0, "{what}: {}", segment.name);
            written += figures.sectors_written + figures.sectors_atomic;
        }
        assert!(written > 0, "{what}");
        for kernel in &profile.kernels {
            assert!(kernel.registers > 0 && kernel.blocks_per_multiprocessor > 0, "{what}: {kernel:?}");
        }
    }
}

/// 6,000 rows of one 32-bit column are read in sectors of 32 bytes: eight rows each.
#[tokio::test(flavor = "multi_thread")]
async fn the_simulated_device_counts_sectors_and_instructions_of_each_launch() {
    let session = tpch_session().await;
    let (profile, _) = profiled(&session, "SELECT sum(l_orderkey) FROM lineitem").await;
    let rows = session.execute("SELECT count(*) FROM lineitem").await.expect("the query runs");
    let rows = millpond::datafusion::common::cast::as_int64_array(rows.batches[0].column(0)).expect("a count").value(0);
    let scan = &profile.kernels[0];
    assert!(scan.segment.as_ref().is_some_and(|segment| segment.contains("upload 0")), "{scan:?}");
    let figures = scan.figures.expect("counts");
    assert_eq!(scan.rows, rows as u64);
    // Keys below 2^16 take two bytes: sixteen rows in a sector, and each extent's control block besides.
    let least = scan.rows.div_ceil(16);
    assert!((least..least + 100).contains(&figures.sectors_read), "{} of {least}", figures.sectors_read);
    assert!(figures.lane_instructions > scan.rows && figures.warp_instructions * 32 >= figures.lane_instructions);
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_say_what_they_learnt() {
    let session = tpch_session().await;
    session.execute("SET millpond.debug_dictionary_values = 10").await.expect("an option");
    let sql = "SELECT count(DISTINCT o_clerk) FROM orders WHERE o_comment LIKE '%special%'";
    let (first, _) = profiled(&session, sql).await;
    assert_eq!(first.attempts, first.learnt.len() + 1, "{:?}", first.learnt);
    assert!(
        first.learnt.iter().any(|why| why.contains("strings without a dictionary: upload 0")),
        "{:?}",
        first.learnt
    );
    // The next run knows what this one learnt.
    let (second, _) = profiled(&session, sql).await;
    assert_eq!((second.attempts, second.learnt), (1, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_analyze_says_where_the_time_goes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let session = session(DeviceChoice::Sim);
    feeds(&session).await;
    register_parquet(session.context(), &folder).await;
    let sql = "EXPLAIN ANALYZE VERBOSE SELECT name, sum(size) FROM parts GROUP BY name ORDER BY name";
    let result = session.execute(sql).await.expect("the query runs");
    let text = pretty_format_batches(&result.batches).expect("text").to_string();
    for wanted in [
        "host_steps=plan ",
        " + place ",
        " + launch ",
        "feeding=",
        " + decode ",
        "device_0=segment 0: upload 0 → ",
        "kernel_0=",
        " registers · ",
        " blocks a multiprocessor",
        " sectors read and ",
    ] {
        assert!(text.contains(wanted), "{wanted} is not in {text}");
    }
    // Without EXPLAIN ANALYZE a plan is not profiled.
    let result = session.execute("SELECT count(*) FROM parts").await.expect("the query runs");
    let names = |plan: &std::sync::Arc<dyn millpond::datafusion::physical_plan::ExecutionPlan>| {
        let metrics = plan.metrics().expect("a border has metrics");
        metrics.iter().map(|metric| metric.value().name().to_string()).collect::<Vec<_>>()
    };
    let border = &result.plan;
    assert!(!names(border).iter().any(|name| name == "host_steps"), "{:?}", names(border));
}
