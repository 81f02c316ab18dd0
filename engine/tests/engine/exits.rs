//! Programs over the engine that end while it works: the libcuda for tests aborts a process whose exit handlers meet a
//! call.
//!
//!   test ─► child process of this very binary, libcuda.so.1 = memory/examples/shim ─► sessions, queries ─► an end ─►
//!                                                                                     exit code
//!
//! How many  10 children, or as many as `MILLPOND_TEST_EXITS` says.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use millpond::datafusion::prelude::ParquetReadOptions;
use millpond::{DeviceChoice, Fallback, Left, Millpond, leave};

/// Set in the children: their seed.
const INSIDE: &str = "EXITS_SEED";

/// A way to end: the test that ends so, and its exit code.
const WAYS: [(&str, i32); 5] = [
    ("a_static_session_is_never_dropped", 0),
    ("a_session_is_forgotten", 0),
    ("another_thread_exits_while_queries_run", 31),
    ("a_runtime_is_left_to_itself", 32),
    ("a_program_leaves_in_order", 0),
];

/// The shim that `cargo test` has built beside this test.
fn shim() -> Option<std::path::PathBuf> {
    let test = std::env::current_exe().expect("a test has a path");
    let library = test.parent().and_then(Path::parent).expect("tests lie in target/<profile>/deps");
    let library = library.join("examples/libshim.so");
    library.exists().then_some(library)
}

fn end(libraries: &Path, way: &str, seed: u64) -> Output {
    Command::new(std::env::current_exe().expect("a test has a path"))
        .args([&format!("exits::{way}"), "--exact", "--nocapture"])
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("LD_LIBRARY_PATH", libraries)
        .env("CUDA_SHIM_DELAYS", seed.to_string())
        .env(INSIDE, seed.to_string())
        .output()
        .expect("the child runs")
}

#[test]
fn programs_that_forget_to_drop_end_well() {
    let children: u64 = std::env::var("MILLPOND_TEST_EXITS").map_or(10, |text| text.parse().expect("a number"));
    let Some(library) = shim() else {
        millpond::memory::checks::skipped("needs the shim: cargo build -p millpond-memory --example shim");
        return;
    };
    let libraries = tempfile::tempdir().expect("folder");
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(&library, libraries.path().join(name)).expect("a link");
    }
    let mut wrong = Vec::new();
    for seed in 0..children {
        let (way, code) = WAYS[seed as usize % WAYS.len()];
        let output = end(libraries.path(), way, seed);
        if output.status.code() != Some(code) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let told = text(&output.stdout) + &text(&output.stderr);
            wrong.push(format!("{way}, seed {seed}: {}\n{told}", output.status));
        }
    }
    assert!(wrong.is_empty(), "{} of {children}: {}", wrong.len(), wrong.join("\n"));
}

fn seed() -> Option<u64> {
    std::env::var(INSIDE).ok().map(|text| text.parse().expect("a number"))
}

async fn session() -> Millpond {
    let session = Millpond::builder()
        .with_own_engine()
        .with_device(DeviceChoice::Cuda(0))
        .with_fallback(Fallback::Error)
        .with_option("min_rows", "0")
        .and_then(|builder| builder.with_option("kernel_cache", "off"))
        .expect("options")
        .build()
        .expect("the shim's device opens");
    let sales = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/samples/sales.parquet");
    session.context().register_parquet("sales", sales, ParquetReadOptions::default()).await.expect("the sample");
    session
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Another text each time, so that each has something to compile.
fn query(number: u64) -> String {
    format!("SELECT store_id, sum(price * quantity) AS s, count(*) FROM sales WHERE quantity > {number} GROUP BY 1")
}

/// Asks for ever; errors are those of a process that ends.
async fn asks(session: &Millpond, mut asked: impl FnMut()) {
    for number in 0.. {
        let _ = session.execute(&query(number % 5)).await;
        asked();
    }
}

#[test]
fn a_static_session_is_never_dropped() {
    static HELD: OnceLock<(Millpond, tokio::runtime::Runtime)> = OnceLock::new();
    if seed().is_none() {
        return;
    }
    let runtime = runtime();
    let session = runtime.block_on(session());
    runtime.block_on(session.execute(&query(0))).expect("rows");
    let (session, runtime) = HELD.get_or_init(|| (session, runtime));
    runtime.spawn(asks(session, || ()));
}

#[test]
fn a_session_is_forgotten() {
    if seed().is_none() {
        return;
    }
    let runtime = runtime();
    let session = runtime.block_on(session());
    runtime.block_on(session.execute(&query(0))).expect("rows");
    std::mem::forget((session, runtime));
}

#[test]
fn another_thread_exits_while_queries_run() {
    let Some(seed) = seed() else { return };
    let runtime = runtime();
    let session = runtime.block_on(session());
    let (asked, asks_on) = mpsc::channel();
    std::thread::spawn(move || {
        (0..1 + seed % 4).for_each(|_| asks_on.recv().expect("it asks"));
        std::process::exit(31);
    });
    runtime.block_on(asks(&session, || asked.send(()).unwrap_or(())));
}

#[test]
fn a_runtime_is_left_to_itself() {
    if seed().is_none() {
        return;
    }
    let runtime = runtime();
    let session = runtime.block_on(session());
    let (asked, asks_on) = mpsc::channel();
    for _ in 0..2 {
        let (session, asked) = (session.clone(), asked.clone());
        runtime.spawn(async move { asks(&session, || asked.send(()).unwrap_or(())).await });
    }
    asks_on.recv().expect("it asks");
    // Workers drop their queries, and the last of them the device, beside the exit.
    drop(session);
    runtime.shutdown_background();
    std::process::exit(32);
}

#[test]
fn a_program_leaves_in_order() {
    if seed().is_none() {
        return;
    }
    let runtime = runtime();
    let session = runtime.block_on(session());
    runtime.block_on(session.execute(&query(0))).expect("rows");
    drop(session);
    runtime.shutdown_background();
    assert_eq!(leave(Duration::from_secs(300)), Left { devices: 0, calls: 0 });
}
