//! The gpu-bdb suite at scale 0.01: on the CPU against plain SQL, on the simulated device against the CPU.
//!
//! ```text
//!   generated rows ─► CPU ─┬─ plain/qNN.sql, DataFusion alone ─► the functions of the workload are right
//!                          └─ simulated device ─► equal answers, no finding, no byte left, the places of
//!                                                 docs/gpu-bdb.md
//! ```
//!
//! Shapes    sixty statements of shapes.sql in the shapes of decision support: nothing of them may leave the device.
//! Plain     the same question without our functions, with the default parameters: windows, `string_to_array`, sums.
//! Places    what the table of docs/gpu-bdb.md has whole on the device stays there. `MILLPOND_DOCS_WRITE=1 cargo test
//!           --workspace --test gpu_bdb` writes it anew.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use millpond::datafusion::prelude::SessionConfig;
use millpond::{DeviceChoice, Millpond};
use millpond_bench::runner::{Outcome, register_functions, register_tables, run_query, validate};
use millpond_data::gpu_bdb;
use millpond_memory::Strategy;
use millpond_queries::answer::{Answer, compare};
use millpond_queries::{Query, Suite};

/// A folder of generated files, made once for all tests.
fn data() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
        gpu_bdb::generate(&gpu_bdb::Options::new(0.01, folder.path()), &|_, _| ()).expect("the rows are written");
        folder
    });
    made.path()
}

fn suite() -> Suite {
    Suite::named("gpu-bdb").expect("the suite")
}

/// Plans depend on the number of partitions, so it is not the machine's.
async fn session(device: DeviceChoice, strategy: Strategy) -> Millpond {
    session_over(data(), device, strategy).await
}

async fn session_over(folder: &Path, device: DeviceChoice, strategy: Strategy) -> Millpond {
    let config = SessionConfig::new().with_target_partitions(4);
    let mut builder = Millpond::builder().with_own_engine().with_device(device).with_config(config);
    builder = builder.with_option("memory_resource", strategy.name()).expect("a strategy's name");
    let session = builder.build().expect("the device opens");
    register_functions(&session, &suite()).expect("the functions are known");
    register_tables(&session, &suite(), folder).await.expect("the tables are there");
    session
}

async fn run(session: &Millpond, query: &Query) -> Outcome {
    run_query(session, query).await.unwrap_or_else(|error| panic!("{error}"))
}

/// The session's device did it right: the CPU's answer, no finding, nothing left.
fn holds(query: &Query, expected: &Outcome, actual: &Outcome) {
    let id = &query.id;
    validate(query, expected, actual).unwrap_or_else(|difference| panic!("{id}: {difference}"));
    let report = &actual.report;
    assert_eq!(report.findings, Vec::<String>::new(), "{id}");
    assert_eq!(report.pool_used_bytes, 0, "{id}");
    assert!(report.operators_on_device == 0 || report.launches > 0, "{id}: {report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_gives_the_cpus_rows_on_the_simulated_device() {
    let (cpu, sim) =
        (session(DeviceChoice::Cpu, Strategy::CudaAsync).await, session(DeviceChoice::Sim, Strategy::CudaAsync).await);
    let (fed, evicting) =
        (session(DeviceChoice::Sim, Strategy::CudaAsync).await, session(DeviceChoice::Sim, Strategy::CudaAsync).await);
    for (session, setting) in [(&fed, "cache = off"), (&evicting, "cache_bytes = 300000")] {
        session.context().sql(&format!("SET millpond.{setting}")).await.expect("the option is taken");
    }
    let (mut places, mut scans) = (String::new(), 0);
    for query in &suite().queries {
        let expected = run(&cpu, query).await;
        assert!(expected.answer.num_rows() > 0, "{} gives no rows", query.id);
        let actual = run(&sim, query).await;
        holds(query, &expected, &actual);
        // Again over columns that stay, over none, and over columns of which some leave for others.
        for session in [&sim, &fed, &evicting] {
            holds(query, &expected, &run(session, query).await);
        }
        let (report, reasons) = (&actual.report, actual.report.reasons.join("; ").replace('|', "\\|"));
        let place = format!("{}/{}", report.operators_on_device, report.operators);
        // Every scan that DataFusion plans is the engine's.
        assert_eq!(report.parquet_scans_by_datafusion, 0, "{}", query.id);
        let planned = expected.report.parquet_scans_by_datafusion;
        assert_eq!(report.parquet_scans, planned, "{}: scans by reader", query.id);
        scans += planned;
        places.push_str(&format!("| {} | {place} | {reasons} |\n", query.id));
    }
    assert!(scans >= suite().queries.len(), "{scans} scans in all");
    check_table("places", &places);
}

async fn answer(session: &Millpond, name: &str, sql: &str) -> Answer {
    let frame = session.context().sql(sql).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    let schema = std::sync::Arc::new(frame.schema().as_arrow().clone());
    let batches = frame.collect().await.unwrap_or_else(|error| panic!("{name}: {error}"));
    Answer::try_new(&schema, &batches).expect("an answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_in_the_shapes_of_decision_support_stay_on_the_device() {
    let (cpu, sim) =
        (session(DeviceChoice::Cpu, Strategy::CudaAsync).await, session(DeviceChoice::Sim, Strategy::CudaAsync).await);
    sim.context().sql("SET millpond.fallback = 'error'").await.expect("the option is taken");
    let mut asked = 0;
    for statement in include_str!("shapes.sql").split("-- name: ").skip(1) {
        let (name, sql) = statement.split_once('\n').expect("a statement below its name");
        let (expected, actual) = (answer(&cpu, name, sql).await, answer(&sim, name, sql).await);
        assert!(expected.num_rows() > 0, "{name}: no rows");
        compare(&expected, &actual, true).unwrap_or_else(|difference| panic!("{name}: {difference}"));
        asked += 1;
    }
    assert_eq!(asked, 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_give_what_plain_sql_gives() {
    let cpu = session(DeviceChoice::Cpu, Strategy::CudaAsync).await;
    // The lexicon is a table of its own there.
    let words =
        cpu.context().sql("CREATE TABLE sentiment_words AS SELECT * FROM sentiment_words()").await.expect("planned");
    words.collect().await.expect("made");
    let mut compared = 0;
    for query in &suite().queries {
        let plain = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/gpu_bdb/plain/{}.sql", query.id));
        let Ok(sql) = std::fs::read_to_string(plain) else { continue };
        let expected = answer(&cpu, &query.id, &sql).await;
        let actual = run(&cpu, query).await;
        let verdict = query.check.verify(&expected, &actual.answer, true);
        verdict.unwrap_or_else(|difference| panic!("{}: {difference}", query.id));
        compared += 1;
    }
    assert_eq!(compared, 8);
}

/// Sums and ratios of money, where money is DECIMAL(7, 2) and keys are INT32.
#[tokio::test(flavor = "multi_thread")]
async fn other_types_of_money_and_keys_give_as_many_rows() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let mut options = gpu_bdb::Options::new(0.01, folder.path());
    options.format = gpu_bdb::Format { money: gpu_bdb::Money::Decimal, keys: gpu_bdb::Keys::Int32 };
    gpu_bdb::generate(&options, &|_, _| ()).expect("the rows are written");
    let usual = session(DeviceChoice::Cpu, Strategy::CudaAsync).await;
    let cpu = session_over(folder.path(), DeviceChoice::Cpu, Strategy::CudaAsync).await;
    let sim = session_over(folder.path(), DeviceChoice::Sim, Strategy::CudaAsync).await;
    let suite = suite();
    for id in ["q06", "q07", "q13", "q16", "q17", "q25"] {
        let query = suite.query(id).expect("a query");
        let expected = run(&cpu, query).await;
        assert_eq!(expected.answer.num_rows(), run(&usual, query).await.answer.num_rows(), "{id}");
        holds(query, &expected, &run(&sim, query).await);
    }
}

/// The queries that allocate in the most different ways, from every strategy of device memory.
#[tokio::test(flavor = "multi_thread")]
async fn every_allocator_gives_the_same_rows() {
    let cpu = session(DeviceChoice::Cpu, Strategy::CudaAsync).await;
    let suite = suite();
    let queries = ["q07", "q16", "q22"].map(|id| suite.query(id).expect("a query"));
    let mut expected = Vec::new();
    for query in queries {
        expected.push(run(&cpu, query).await);
    }
    for strategy in Strategy::ALL {
        let sim = session(DeviceChoice::Sim, strategy).await;
        for (query, expected) in queries.iter().zip(&expected) {
            let actual = run(&sim, query).await;
            assert_eq!(actual.report.memory_resource, Some(strategy.name()));
            assert!(actual.report.allocations > 0 && actual.report.allocated_bytes > 0, "{}", query.id);
            holds(query, expected, &actual);
        }
    }
}

/// The table between `<!-- NAME -->` and `<!-- end -->` in docs/gpu-bdb.md: a query that runs on the device alone there
/// still does.
fn check_table(name: &str, rows: &str) {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/gpu-bdb.md");
    let text = std::fs::read_to_string(&path).expect("docs/gpu-bdb.md is there");
    let start = text.find(&format!("<!-- {name} -->")).expect("the table begins");
    // Two lines of header come first.
    let start = start + text[start..].match_indices('\n').nth(2).map_or(0, |(at, _)| at + 1);
    let end = start + text[start..].find("<!-- end -->").expect("the table ends");
    if std::env::var_os("MILLPOND_DOCS_WRITE").is_some() {
        std::fs::write(&path, format!("{}{rows}{}", &text[..start], &text[end..])).expect("written");
        return;
    }
    let written: Vec<&str> = text[start..end].lines().collect();
    assert_eq!(written.len(), rows.lines().count(), "docs/gpu-bdb.md lists every query once");
    for (written, now) in written.iter().zip(rows.lines()) {
        let whole = |row: &str| row.ends_with("|  |");
        assert!(
            !whole(written) || whole(now),
            "docs/gpu-bdb.md says {written}, but now it is {now}; MILLPOND_DOCS_WRITE=1 cargo test --workspace --test gpu_bdb \
             writes the page"
        );
    }
}
