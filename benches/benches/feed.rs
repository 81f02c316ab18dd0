//! How much of a machine does a feed use, and what does a row cost?
//!
//! ```text
//!   Varies    partitions that are read side by side: 1, and as many as there are cores
//!   Holds     12 columns of TPC-H's lineitem at scale 0.1, one Parquet file for each core, warm, nothing stored; a
//!             simulated device that skips its launches and gives what an earlier run read
//!             (`millpond.debug_sim_skip_launches`)
//!   Reports   the time of a run; and for all runs CPU seconds ÷ (wall × cores): 1 where nothing waits
//!             decoded   DataFusion alone reads the same columns
//!   Bounds    none: docs/performance.md has the figures
//! ```
//!
//! What the simulated driver does for each call is in it; kernels and copies are not.

use std::path::Path;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures::StreamExt;
use millpond::datafusion::prelude::{ParquetReadOptions, SessionConfig};
use millpond::{DeviceChoice, EngineError, Fallback, Millpond};
use millpond_data::tpch::{Options, Table, generate};
use tokio::runtime::Runtime;

const SCALE: f64 = 0.1;
const SQL: &str = "SELECT l_returnflag, l_linestatus, l_shipmode, l_shipinstruct, sum(l_quantity), sum(l_extendedprice), \
    sum(l_discount), sum(l_tax), max(l_shipdate), max(l_commitdate), max(l_receiptdate), max(l_suppkey) \
    FROM lineitem GROUP BY 1, 2, 3, 4";

async fn session(data: &Path, partitions: usize) -> Millpond {
    let config = SessionConfig::new().with_target_partitions(partitions);
    let builder = Millpond::builder()
        .with_own_engine()
        .with_device(DeviceChoice::Sim)
        .with_fallback(Fallback::Error)
        .with_config(config);
    let session = builder.build().expect("a session");
    let data = data.to_str().expect("a UTF-8 path");
    session.context().register_parquet("lineitem", data, ParquetReadOptions::default()).await.expect("a table");
    set(&session, "cache", "off").await;
    session
}

async fn set(session: &Millpond, option: &str, value: &str) {
    session.execute(&format!("SET millpond.{option} = {value}")).await.expect("the option is taken");
}

/// A run whose launches are skipped.
async fn feed(session: &Millpond) {
    let mut batches = session.stream(SQL).await.expect("the query runs");
    let ended = batches.next().await.expect("a run without kernels ends in an error");
    let error = ended.expect_err("a run without kernels has no answer");
    assert!(EngineError::find(&error).is_some_and(EngineError::is_skipped), "{error}");
    batches.report().await;
}

/// DataFusion reads the columns, and nothing is done with them.
async fn decode(session: &Millpond) {
    let columns = SQL.replace("sum(", "(").replace("max(", "(").replace("GROUP BY 1, 2, 3, 4", "");
    let frame = session.context().sql(&columns).await.expect("a plan");
    let mut tasks = tokio::task::JoinSet::new();
    for mut batches in frame.execute_stream_partitioned().await.expect("it is read") {
        tasks.spawn(async move {
            while let Some(batch) = batches.next().await {
                std::hint::black_box(batch.expect("rows"));
            }
        });
    }
    tasks.join_all().await;
}

/// Seconds of CPU that this process has taken, where the system says so.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the command, which may have spaces: user and system time are the 12th and 13th words, in ticks of 10 ms.
    let words: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| words.get(index)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0)
}

fn feeds(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options { tables: vec![Table::Lineitem], ..Options::new(SCALE, folder.path()) };
    generate(&options, &|_, _| ()).expect("the rows are written");
    let runtime = Runtime::new().expect("a runtime");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for copy in 1..cores {
        let copy = folder.path().join(format!("copy{copy}.parquet"));
        std::fs::copy(folder.path().join("lineitem.parquet"), copy).expect("a file");
    }
    let mut all = vec![1, cores];
    all.dedup();
    for partitions in all {
        let session = runtime.block_on(session(folder.path(), partitions));
        let rows = runtime.block_on(async {
            let counted = session.execute("SELECT l_orderkey FROM lineitem").await.expect("an answer");
            // What is learnt and compiled is that of a repeated query; then its reads are kept.
            for skips in ["false", "false", "true"] {
                set(&session, "debug_sim_skip_launches", skips).await;
                session.execute(SQL).await.expect("an answer");
            }
            counted.batches.iter().map(|batch| batch.num_rows()).sum::<usize>()
        });
        let mut group = criterion.benchmark_group(format!("{partitions} partitions"));
        group.throughput(Throughput::Elements(rows as u64));
        for name in ["fed", "decoded"] {
            let (cpu, mut wall) = (cpu_seconds(), Duration::ZERO);
            let mut runs = 0;
            group.bench_function(name, |bencher| {
                bencher.iter_custom(|times| {
                    let began = Instant::now();
                    runtime.block_on(async {
                        for _ in 0..times {
                            if name == "fed" { feed(&session).await } else { decode(&session).await }
                        }
                    });
                    runs += times;
                    wall += began.elapsed();
                    began.elapsed()
                });
            });
            if let (Some(before), Some(after)) = (cpu, cpu_seconds()) {
                let (cpu, wall) = (after - before, wall.as_secs_f64());
                let (busy, each) = (cpu / (wall * cores as f64), cpu / runs as f64 * 1e3);
                println!(
                    "{partitions} partitions, {name}: {each:.1} ms of CPU a run; {busy:.2} of {cores} cores are busy"
                );
            }
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(8))
        .without_plots();
    targets = feeds
}
criterion_main!(benches);
