//! TPC-H on the simulated device: every query, over every kind of input, in every mode of the plan.
//!
//!   generated rows ─► Parquet · CSV · tables in memory ─► 22 queries, device = sim ─► DataFusion's answers
//!
//! All         run on the device alone: no fallback is allowed.
//! Q1, Q6      have the counts that the design promises.
//! Partitions  1, 3 and 16 of DataFusion's; hash joins in one partition and in many.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use millpond::column::{ColumnInfo, Form, uploaded_columns};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use millpond::datafusion::dataframe::DataFrameWriteOptions;
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::physical_plan::{ExecutionPlan, collect};
use millpond::datafusion::prelude::{CsvReadOptions, ParquetReadOptions, SessionConfig, SessionContext};
use millpond::expr::{Dictionaries, Dictionary};
use millpond::program::build_side::BuildForm;
use millpond::program::lower::{Builds, SegmentInput};
use millpond::program::segments::Program;
use millpond::reason::Reason;
use millpond::result::node::DownloadExec;
use millpond::session::QueryResult;
use millpond::source::SourceExec;
use millpond::source::is_source;
use millpond::{DeviceChoice, Fallback, Millpond};
use millpond_data::tpch::{Options, Table, generate};
use millpond_kernels::codegen::compile;

use crate::answers::Answer;

/// Row source of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Parquet,
    Csv,
    Memory,
}

/// The 22 queries, with their numbers.
pub fn queries() -> Vec<(usize, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../queries/tpch");
    let text = |number| std::fs::read_to_string(folder.join(format!("q{number:02}.sql"))).expect("a query's text");
    (1..=22).map(|number| (number, text(number))).collect()
}

/// A folder of generated Parquet files, made once for all tests.
pub fn data(scale: &'static str) -> PathBuf {
    static TENTH: OnceLock<tempfile::TempDir> = OnceLock::new();
    static HUNDREDTH: OnceLock<tempfile::TempDir> = OnceLock::new();
    static THOUSANDTH: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = match scale {
        "0.1" => &TENTH,
        "0.01" => &HUNDREDTH,
        _ => &THOUSANDTH,
    };
    let folder = made.get_or_init(|| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
        let scale = scale.parse().expect("a number");
        generate(&Options::new(scale, folder.path()), &|_, _| ()).expect("the rows are written");
        folder
    });
    folder.path().to_path_buf()
}

/// A session over the files of `data`.
pub async fn parquet_session(device: DeviceChoice, fallback: Fallback, config: SessionConfig, data: &Path) -> Millpond {
    let session = open(device, fallback, config);
    register(session.context(), Source::Parquet, data).await;
    session
}

/// The tables of the files of `data`.
pub async fn register_files(context: &SessionContext, data: &Path) {
    register(context, Source::Parquet, data).await;
}

fn open(device: DeviceChoice, fallback: Fallback, config: SessionConfig) -> Millpond {
    let builder = Millpond::builder().with_own_engine().with_device(device).with_fallback(fallback).with_config(config);
    // Files that were just written are trusted, so that the first run of a test stores their columns.
    let builder = builder.with_option("cache_settle_seconds", "0").expect("an option");
    builder.build().expect("the device opens")
}

pub fn config(partitions: usize) -> SessionConfig {
    SessionConfig::new().with_target_partitions(partitions)
}

/// Hash joins are partitioned, whatever their size.
fn partitioned_joins(mut config: SessionConfig) -> SessionConfig {
    config.options_mut().optimizer.hash_join_single_partition_threshold = 0;
    config.options_mut().optimizer.hash_join_single_partition_threshold_rows = 0;
    config
}

/// The files of `data` as tables.
pub async fn register_parquet(context: &SessionContext, data: &Path) {
    register(context, Source::Parquet, data).await;
}

async fn register(context: &SessionContext, source: Source, data: &Path) {
    for table in Table::ALL.map(Table::name) {
        let parquet = data.join(format!("{table}.parquet"));
        let parquet = parquet.to_str().expect("a UTF-8 path");
        match source {
            Source::Parquet => {
                context.register_parquet(table, parquet, ParquetReadOptions::default()).await.expect("registered");
            }
            Source::Csv => {
                let path = data.join("csv").join(format!("{table}.csv"));
                let plain = SessionContext::new();
                let frame = plain.read_parquet(parquet, ParquetReadOptions::default()).await.expect("rows");
                let schema = frame.schema().as_arrow().clone();
                let path = path.to_str().expect("a UTF-8 path");
                if !Path::new(path).exists() {
                    let one_file = DataFrameWriteOptions::new().with_single_file_output(true);
                    frame.write_csv(path, one_file, None).await.expect("rows are written");
                }
                context.register_csv(table, path, CsvReadOptions::new().schema(&schema)).await.expect("registered");
            }
            Source::Memory => {
                let plain = SessionContext::new_with_config(config(3));
                let frame = plain.read_parquet(parquet, ParquetReadOptions::default()).await.expect("rows");
                let schema = Arc::new(frame.schema().as_arrow().clone());
                let partitions = frame.collect_partitioned().await.expect("rows");
                let table_in_memory = MemTable::try_new(schema, partitions).expect("batches have the schema");
                context.register_table(table, Arc::new(table_in_memory)).expect("registered");
            }
        }
    }
}

async fn execute(session: &Millpond, sql: &str) -> Result<QueryResult, String> {
    session.execute(sql).await.map_err(|error| error.strip_backtrace())
}

fn answer(result: &QueryResult) -> Answer {
    Answer::new(&result.schema, &result.batches)
}

/// Runs all queries on both sessions and names those that differ.
async fn all_equal(cpu: &Millpond, sim: &Millpond, what: &str) {
    let mut failures = Vec::new();
    let mut launches = 0;
    for (number, sql) in queries() {
        let expected = execute(cpu, &sql).await.unwrap_or_else(|error| panic!("Q{number} on the CPU: {error}"));
        let actual = match execute(sim, &sql).await {
            Ok(actual) => actual,
            Err(error) => {
                failures.push(format!("Q{number}: {error}"));
                continue;
            }
        };
        let report = &actual.report;
        let ordered = sql.to_lowercase().contains("order by");
        if let Some(difference) = answer(&expected).difference(&answer(&actual), ordered) {
            failures.push(format!("Q{number}: {difference}"));
        }
        if !report.findings.is_empty() {
            failures.push(format!("Q{number}: findings {}", report.findings.join(" | ")));
        }
        if report.pool_used_bytes != 0 {
            failures.push(format!("Q{number}: {} bytes left in the pool", report.pool_used_bytes));
        }
        if report.launches == 0 {
            failures.push(format!("Q{number}: no launch; reasons {:?}", report.reasons));
        }
        if !report.notes.is_empty() {
            failures.push(format!("Q{number}: {}", report.notes.join("; ")));
        }
        launches += report.launches;
    }
    assert!(failures.is_empty(), "{what}: {} failures\n{}", failures.len(), failures.join("\n"));
    assert!(launches > 22, "{what}: {launches} launches");
}

async fn all_equal_over(source: Source, scale: &'static str, config: SessionConfig) {
    all_equal_with(source, scale, config, &[]).await;
}

async fn all_equal_with(source: Source, scale: &'static str, config: SessionConfig, settings: &[&str]) {
    let data = data(scale);
    std::fs::create_dir_all(data.join("csv")).expect("a folder");
    let what = format!("{source:?} at {scale} with {} partitions", config.target_partitions());
    let cpu = open(DeviceChoice::Cpu, Fallback::Allow, config.clone());
    let sim = open(DeviceChoice::Sim, Fallback::Error, config);
    register(cpu.context(), source, &data).await;
    register(sim.context(), source, &data).await;
    for setting in settings {
        sim.context().sql(setting).await.expect("the option is taken");
    }
    all_equal(&cpu, &sim, &what).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queries_over_parquet() {
    all_equal_over(Source::Parquet, "0.01", config(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queries_in_small_extents() {
    all_equal_with(Source::Parquet, "0.01", config(3), &["SET millpond.batch_rows = 1000"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queries_in_seven_partitions_with_partitioned_joins() {
    all_equal_over(Source::Parquet, "0.01", partitioned_joins(config(7))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queries_over_csv() {
    all_equal_over(Source::Csv, "0.001", config(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queries_over_tables_in_memory() {
    all_equal_over(Source::Memory, "0.001", config(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queries_in_one_partition() {
    all_equal_over(Source::Parquet, "0.001", config(1)).await;
    all_equal_over(Source::Parquet, "0.001", partitioned_joins(config(1))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queries_with_partitioned_joins() {
    all_equal_over(Source::Parquet, "0.001", partitioned_joins(config(3))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queries_in_sixteen_partitions() {
    all_equal_over(Source::Parquet, "0.001", config(16)).await;
    all_equal_over(Source::Parquet, "0.001", partitioned_joins(config(16))).await;
}

/// Q1 and Q6 at scale 0.01 on the device alone, in extents of a known number.
async fn alone(number: usize) -> (Millpond, QueryResult) {
    let data = data("0.01");
    let sql = &queries()[number - 1].1;
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(4), &data).await;
    let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(4), &data).await;
    let expected = execute(&cpu, sql).await.expect("the CPU's answer");
    let actual = execute(&sim, sql).await.expect("the device's answer");
    assert_eq!(answer(&expected).difference(&answer(&actual), true), None, "Q{number}");
    assert_eq!(actual.report.findings, Vec::<String>::new());
    assert_eq!(actual.report.pool_used_bytes, 0);
    assert_eq!(actual.report.notes, Vec::<String>::new());
    assert_eq!(actual.report.operators_on_device, actual.report.operators);
    (sim, actual)
}

fn download(plan: &Arc<dyn ExecutionPlan>) -> DownloadExec {
    let mut found = None;
    plan.apply(|node| {
        found = found.take().or_else(|| node.downcast_ref::<DownloadExec>().cloned());
        Ok(TreeNodeRecursion::Continue)
    })
    .expect("the walk returns no error");
    found.expect("the plan has a download")
}

/// The first node of a plan that uploads rows to the device.
pub fn upload(plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let mut found = None;
    plan.apply(|node| {
        found = found.take().or_else(|| is_source(node.as_ref()).then(|| Arc::clone(node)));
        Ok(TreeNodeRecursion::Continue)
    })
    .expect("the walk returns no error");
    found.expect("the plan has an upload")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q1_and_q6_run_on_the_device_alone() {
    for number in [1, 6] {
        let (_, result) = alone(number).await;
        assert!(result.report.launches > 0);
        assert_eq!(result.report.reasons, Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_gives_the_same_answer_twice() {
    let (sim, first) = alone(1).await;
    let batches: Vec<RecordBatch> = collect(Arc::clone(&first.plan), sim.context().task_ctx()).await.expect("again");
    let again = Answer::new(&first.schema, &batches);
    assert_eq!(answer(&first).difference(&again, true), None);
    assert_eq!(sim.pool_used_bytes(), 0);
}

/// The counts that the design promises: one pipeline launch per fed extent and at most 4 launches besides, one wait of
/// the host besides those that feed, at most 4 allocations per pipeline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q1_and_q6_keep_their_counts() {
    let data = data("0.01");
    for (number, segments) in [(1, 3), (6, 2)] {
        for (batch_rows, feeders) in [(0, 1), (0, 4), (20_000, 1)] {
            let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(4), &data).await;
            sim.context().sql("SET millpond.cache = off").await.expect("the option is taken");
            for (name, value) in [("batch_rows", batch_rows), ("partitions", feeders)] {
                sim.context().sql(&format!("SET millpond.{name} = {value}")).await.expect("the option is taken");
            }
            let result = execute(&sim, &queries()[number - 1].1).await.expect("the device's answer");
            let fed_rows = upload(&result.plan).metrics().and_then(|m| m.sum_by_name("output_rows"));
            let fed_rows = fed_rows.expect("feeders count rows").as_usize() as u64;
            assert!(fed_rows > 50_000, "Q{number} was fed {fed_rows} rows");
            let extents = upload(&result.plan).metrics().and_then(|m| m.sum_by_name("extents"));
            let extents = extents.expect("feeders count extents").as_usize() as u64;
            match (batch_rows, feeders) {
                // Feeders take row groups as they come to them, so one may have none.
                (0, _) => assert!((1..=4).contains(&extents), "{extents} extents of 4 readers"),
                // The last rows of a row group go up alone.
                (rows, _) => {
                    assert!((fed_rows.div_ceil(rows)..=fed_rows.div_ceil(rows) + 4).contains(&extents), "{extents}")
                }
            }
            let report = &result.report;
            let what = format!("Q{number} with {extents} extents of {feeders} feeders: {report:?}");
            assert!(report.launches >= extents, "{what}");
            assert!(report.launches <= extents + 4, "{what}");
            assert!(report.pipeline_launches >= extents, "{what}");
            assert_eq!(report.host_waits, 1, "{what}");
            assert!(report.allocations <= 4 * (extents + segments - 1), "{what}");
            assert!(report.uploaded_bytes > 0 && report.downloaded_bytes > 0 && report.peak_bytes > 0, "{what}");
            assert_eq!(report.findings, Vec::<String>::new(), "{what}");
            assert_eq!(report.pool_used_bytes, 0, "{what}");
        }
    }
}

/// Builds of a program without joins.
struct NoBuilds;

impl Builds for NoBuilds {
    fn form(
        &mut self,
        build: usize,
        _plan: &mut dyn FnMut(&[ColumnInfo]) -> Result<BuildForm, Reason>,
    ) -> Result<BuildForm, Reason> {
        panic!("it asks for what segment {build} builds")
    }
}

/// Q1's kernel: at most 600 instructions, 6 accumulators, and no product that needs more than 64 bits.
#[tokio::test]
async fn q1s_kernel_is_small_and_64_bits_wide() {
    let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(4), &data("0.01")).await;
    let frame = sim.context().sql(&queries()[0].1).await.expect("Q1 is planned");
    let plan = frame.create_physical_plan().await.expect("Q1 has a plan");
    let program = Program::of(download(&plan).input(), &millpond::operator::registry().cuts()).expect("a program");
    let mut dictionaries = Dictionaries::default();
    let scan = upload(download(&plan).input());
    let scan = scan.downcast_ref::<SourceExec>().filter(|scan| scan.is_parquet()).expect("Parquet is decoded");
    let statistics = scan.statistics().map(AsRef::as_ref);
    let mut columns = uploaded_columns(&scan.schema(), statistics, |column, data_type| {
        dictionaries.add(Dictionary::Source { upload: 0, column, data_type })
    });
    // A run bounds the codes of keys by the size of their dictionaries; the flags have at most 3 values.
    for column in &mut columns {
        if let Form::Codes(ty, id) = column.form {
            column.form = Form::Codes(ty.within(0, 15), id);
        }
    }
    let source = SegmentInput::rows(&columns);
    let lowered = program.lower(0, &source, &mut dictionaries, &mut NoBuilds).expect("Q1 is lowered");
    let compiled = compile(&lowered.last.spec).expect("Q1 is compiled");
    assert!(compiled.pipeline.instructions <= 600, "{} instructions", compiled.pipeline.instructions);
    assert_eq!(compiled.num_accumulators(), 6);
    let kernel = compiled.text.split(".entry ").find(|text| text.starts_with("pipeline")).expect("the kernel's text");
    let wide: Vec<&str> = kernel.lines().filter(|line| line.contains(".hi.")).collect();
    assert!(wide.is_empty(), "128-bit multiplication: {wide:?}");
}
