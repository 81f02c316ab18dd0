//! What does a repeated query cost the host, beside the device?
//!
//! ```text
//!   Varies    the query: one scan that groups or adds up (1, 6), joins (3, 9), large groups (18), many passes (21)
//!   Holds     TPC-H at scale 0.01 from Parquet, warm; one partition, one feeder; a simulated device that skips its
//!             launches and gives what an earlier run of the query read (`millpond.debug_sim_skip_launches`)
//!   Reports   plan      SQL to DataFusion's physical plan, our rules of logical and physical plans among it
//!             place     that plan to device nodes
//!             prepare   device nodes to pipelines: cutting, lowering, keys, finding what is compiled
//!             launch    from the placed plan to the first launch: prepare, and what is read and uploaded before it
//!             run       from the placed plan to the end: everything that the host does, decoding included
//!   Bounds    none: docs/performance.md has the figures, and the tests count what can be counted
//!
//!   first launch   of all 22 queries, over columns that stay: from a repeated statement's text to its first launch,
//!                  with the look at its files; by `Millpond::execute`, until its plan is there, and by
//!                  `context().sql()`. The table at the end has the median of each, of all, and the largest.
//!   other constants   of all 22 queries, each time with others: from a statement's text to its placed plan, planned
//!                     alone, and by the
//!                  plan of statements that differ in constants alone.
//! ```
//!
//! `launch` and `run` contain what the simulated driver does for each call, which a real one does faster or slower.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime};
use futures::StreamExt;
use millpond::datafusion::physical_optimizer::PhysicalOptimizerRule;
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::datafusion::prelude::{ParquetReadOptions, SessionConfig};
use millpond::placement::PlaceOnDevice;
use millpond::{DeviceChoice, EngineError, Fallback, Millpond, QueryReport};
use millpond_data::tpch::{Options, Table, generate};
use millpond_queries::Suite;
use tokio::runtime::Runtime;

const QUERIES: [&str; 6] = ["q01", "q03", "q06", "q09", "q18", "q21"];
const SCALE: f64 = 0.01;

/// A session over the files of `data`, with what the benches hold.
async fn session(data: &Path) -> Millpond {
    let config = SessionConfig::new().with_target_partitions(1);
    let builder = Millpond::builder()
        .with_own_engine()
        .with_device(DeviceChoice::Sim)
        .with_fallback(Fallback::Error)
        .with_config(config);
    let builder = builder.with_option("partitions", "1").expect("the option is taken");
    // Its files are younger than a run waits for.
    let builder = builder.with_option("cache_settle_seconds", "0").expect("the option is taken");
    let session = builder.build().expect("a session");
    for table in Table::ALL.map(Table::name) {
        let file = data.join(format!("{table}.parquet"));
        let file = file.to_str().expect("a UTF-8 path");
        session.context().register_parquet(table, file, ParquetReadOptions::default()).await.expect("a table");
    }
    session
}

async fn set(session: &Millpond, option: &str, value: bool) {
    let sql = format!("SET millpond.{option} = {value}");
    session.execute(&sql).await.expect("the option is taken");
}

async fn planned(session: &Millpond, sql: &str) -> Arc<dyn ExecutionPlan> {
    millpond::session::sql::plan(session.context(), sql).await.expect("a plan")
}

/// Runs a plan whose launches are skipped. Gives its report, and how long it took.
async fn skipped(session: &Millpond, plan: Arc<dyn ExecutionPlan>) -> (QueryReport, Duration) {
    let began = Instant::now();
    let mut batches = session.stream_plan(plan).expect("the plan runs");
    let ended = batches.next().await.expect("a run without kernels ends in an error");
    let took = began.elapsed();
    let error = ended.expect_err("a run without kernels has no answer");
    assert!(EngineError::find(&error).is_some_and(EngineError::is_skipped), "{error}");
    (batches.report().await, took)
}

/// Sums up what `measure` says of one repetition.
fn repeat<F: Future<Output = Duration>>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    runtime: &Runtime,
    name: &str,
    measure: impl Fn() -> F,
) {
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|times| {
            runtime.block_on(async {
                let mut sum = Duration::ZERO;
                for _ in 0..times {
                    sum += measure().await;
                }
                sum
            })
        });
    });
}

fn host(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    generate(&Options::new(SCALE, folder.path()), &|_, _| ()).expect("the rows are written");
    let runtime = Runtime::new().expect("a runtime");
    let session = runtime.block_on(session(folder.path()));
    let engine = Arc::clone(session.engine().expect("a device"));
    let sim = engine.simulated().expect("a simulated device");
    let texts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../queries/tpch");
    for query in QUERIES {
        let sql = std::fs::read_to_string(texts.join(format!("{query}.sql"))).expect("a query's text");
        // Learnt sizes and compiled pipelines are those of a repeated query; then its reads are kept.
        let kept = runtime.block_on(async {
            let run = async || session.execute_plan(planned(&session, &sql).await).await;
            for _ in 0..2 {
                run().await.expect("an answer");
            }
            set(&session, "debug_sim_skip_launches", true).await;
            // A run that waited for what later ones take over is not kept; the next one is.
            let mut kept = None;
            while let Ok(answer) = run().await {
                kept = Some(answer.report);
            }
            kept.expect("an answer")
        });
        let (report, _) = runtime.block_on(async { skipped(&session, planned(&session, &sql).await).await });
        let counts = |report: &QueryReport| {
            (report.launches, report.host_waits, report.allocations, report.uploaded_bytes, report.downloaded_bytes)
        };
        assert_eq!(counts(&report), counts(&kept), "{query} does without kernels what it does with them");
        println!(
            "{query}: {} segments, {} lowerings and {} at placement, statistics read {} times, {} launches",
            report.segments, report.lowerings, report.placement_lowerings, report.statistics_read, report.launches
        );

        let mut group = criterion.benchmark_group(query);
        runtime.block_on(set(&session, "enabled", false));
        repeat(&mut group, &runtime, "plan", || async {
            let began = Instant::now();
            planned(&session, &sql).await;
            began.elapsed()
        });
        let unplaced = runtime.block_on(planned(&session, &sql));
        runtime.block_on(set(&session, "enabled", true));
        let rule = PlaceOnDevice::new(Arc::clone(&engine), millpond::operator::registry());
        repeat(&mut group, &runtime, "place", || async {
            let state = session.context().state();
            let began = Instant::now();
            rule.optimize(Arc::clone(&unplaced), state.config_options()).expect("a placed plan");
            began.elapsed()
        });
        repeat(&mut group, &runtime, "prepare", || async {
            let (report, _) = skipped(&session, planned(&session, &sql).await).await;
            Duration::from_nanos(report.prepare_ns)
        });
        repeat(&mut group, &runtime, "launch", || async {
            let plan = planned(&session, &sql).await;
            let began = Instant::now();
            skipped(&session, plan).await;
            sim.first_skipped_launch().expect("there was a launch").duration_since(began)
        });
        repeat(&mut group, &runtime, "run", || async { skipped(&session, planned(&session, &sql).await).await.1 });
        group.finish();
        runtime.block_on(set(&session, "debug_sim_skip_launches", false));
    }
}

/// How a statement comes to run.
#[derive(Clone, Copy)]
enum Way {
    /// By `Millpond::execute`.
    Execute,
    /// By `Millpond::execute`, until the plan is there.
    Plan,
    /// By DataFusion's own door.
    Sql,
}

/// From a statement's text to its first launch.
async fn first_launch(session: &Millpond, sql: &str, way: Way) -> Duration {
    let sim = session.engine().and_then(|engine| engine.simulated()).expect("a simulated device");
    let began = Instant::now();
    let error = match way {
        Way::Execute => session.execute(sql).await.map(|_| ()),
        Way::Plan => {
            session.plan(sql).await.expect("a plan");
            return began.elapsed();
        }
        Way::Sql => session.context().sql(sql).await.expect("a plan").collect().await.map(|_| ()),
    };
    let error = error.expect_err("a run without kernels has no answer");
    assert!(EngineError::find(&error).is_some_and(EngineError::is_skipped), "{error}");
    sim.first_skipped_launch().expect("there was a launch").duration_since(began)
}

/// The middle one of some durations, in milliseconds.
fn median(mut of: Vec<Duration>) -> f64 {
    of.sort();
    of.get(of.len() / 2).map_or(f64::NAN, |middle| middle.as_secs_f64() * 1e3)
}

/// Medians of each query, then of all of them, and the largest.
fn print_table(labels: &[&str], mut rows: Vec<(String, Vec<f64>)>) {
    let line = |name: &str, of: Vec<String>| println!("{name:>8}{}", of.concat());
    line("", labels.iter().map(|label| format!("{label:>10}")).collect());
    let figures = |of: &[f64]| of.iter().map(|ms| format!("{ms:>10.3}")).collect();
    let mut columns: Vec<Vec<f64>> = (0..labels.len()).map(|at| rows.iter().map(|(_, of)| of[at]).collect()).collect();
    columns.iter_mut().for_each(|column| column.sort_by(f64::total_cmp));
    rows.push(("median".into(), columns.iter().map(|of| of[of.len() / 2]).collect()));
    rows.push(("largest".into(), columns.iter().map(|of| of[of.len() - 1]).collect()));
    rows.iter().for_each(|(name, medians)| line(name, figures(medians)));
}

fn other_constants(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    generate(&Options::new(SCALE, folder.path()), &|_, _| ()).expect("the rows are written");
    let runtime = Runtime::new().expect("a runtime");
    let (alone, by_template) = runtime.block_on(async {
        let (alone, by_template) = (session(folder.path()).await, session(folder.path()).await);
        // Where columns do not stay, no plan is kept.
        alone.execute("SET millpond.cache = off").await.expect("the option is taken");
        (alone, by_template)
    });
    let suite = Suite::named("tpch").expect("a suite");
    let mut table: Vec<(String, Vec<f64>)> = Vec::new();
    for query in &suite.queries {
        let run = Cell::new(0);
        // A text that was not there before, even where its constants were.
        let statement = || {
            run.set(run.get() + 1);
            let sql = suite.varied(query, 7, run.get()).expect("a query of TPC-H").sql;
            format!("{sql}\n-- {}", run.get())
        };
        let mut group = criterion.benchmark_group(format!("other constants of {}", query.id));
        let mut medians = Vec::new();
        for is_alone in [true, false] {
            let samples = RefCell::new(Vec::new());
            repeat(&mut group, &runtime, if is_alone { "alone" } else { "template" }, || async {
                let sql = statement();
                let began = Instant::now();
                match is_alone {
                    true => drop(planned(&alone, &sql).await),
                    false => drop(by_template.plan(&sql).await.expect("a plan")),
                }
                samples.borrow_mut().push(began.elapsed());
                began.elapsed()
            });
            medians.push(median(samples.into_inner()));
        }
        group.finish();
        table.push((query.id.clone(), medians));
    }
    println!("ms from a statement with other constants to its placed plan");
    print_table(&["alone", "template"], table);
}

fn repeated(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    generate(&Options::new(SCALE, folder.path()), &|_, _| ()).expect("the rows are written");
    let runtime = Runtime::new().expect("a runtime");
    let session = runtime.block_on(session(folder.path()));
    let texts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../queries/tpch");
    let queries: Vec<(String, String)> = (1..=22)
        .map(|number| format!("q{number:02}"))
        .map(|name| (std::fs::read_to_string(texts.join(format!("{name}.sql"))).expect("a query's text"), name))
        .map(|(sql, name)| (name, sql))
        .collect();
    runtime.block_on(async {
        // Columns are loaded and sizes learnt; then what the host reads of the device is kept.
        for skip in [false, true] {
            set(&session, "debug_sim_skip_launches", skip).await;
            for (name, sql) in queries.iter().chain(&queries) {
                let ended = session.execute(sql).await;
                assert!(skip || ended.is_ok(), "{name}: {:?}", ended.err());
            }
        }
    });
    let ways = [("execute", Way::Execute), ("plan", Way::Plan), ("sql", Way::Sql)];
    let mut table: Vec<(String, Vec<f64>)> = Vec::new();
    for (name, sql) in &queries {
        let mut group = criterion.benchmark_group(format!("first launch of {name}"));
        let mut medians = Vec::new();
        for (label, way) in ways {
            let samples = RefCell::new(Vec::new());
            repeat(&mut group, &runtime, label, || async {
                let took = first_launch(&session, sql, way).await;
                samples.borrow_mut().push(took);
                took
            });
            medians.push(median(samples.into_inner()));
        }
        group.finish();
        table.push((name.clone(), medians));
    }
    println!("ms from a repeated statement to its first launch, and to its plan alone");
    print_table(&ways.map(|(label, _)| label), table);
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .without_plots();
    targets = repeated, other_constants, host
}
criterion_main!(benches);
