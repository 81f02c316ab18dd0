//! Short processes over the test libcuda, which aborts a process if a driver call is active at or after the driver's
//! exit handlers: each way to end, by seeds.
//!
//!   number ─► a way to end, a seed of delays ─► millpond --device cuda ─► exit code, and no message of the shim
//!
//! Count  20 processes, or `MILLPOND_TEST_EXITS`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::command;
use crate::cuda::shim_folder;

/// A way for a process to end.
#[derive(Debug, Clone, Copy)]
enum Way {
    Answered,
    OutputWritten,
    Refused,
    KeptGoing,
    ReaderGone,
    Suite,
    SuiteReaderGone,
    Interrupted,
    InterruptedTwice,
    Terminated,
}

use Way::*;

const WAYS: [Way; 10] = [
    Answered,
    OutputWritten,
    Refused,
    KeptGoing,
    ReaderGone,
    Suite,
    SuiteReaderGone,
    Interrupted,
    InterruptedTwice,
    Terminated,
];

const SALES: &str = "'data/samples/sales.parquet'";
const GROUPS: &str = "SELECT category, is_return, count(*) AS n, sum(price * quantity) AS total FROM {} \
     WHERE discount > 0.1 GROUP BY category, is_return";
const ROWS: &str = "SELECT sale_id, upper(product) AS product, price FROM {} WHERE store_id > 3";
const MEDIANS: &str = "SELECT store_id, max(price), count(DISTINCT product) FROM {} GROUP BY store_id ORDER BY 1";
/// 2⁶³ rows.
const WITHOUT_END: &str = "SELECT sum(value % 7) AS n FROM range(9223372036854775807)";

/// State shared by the processes: the shim, tables, a suite, and cached kernels.
struct Rig {
    shim: TempDir,
    files: TempDir,
}

impl Rig {
    fn new() -> Self {
        let files = tempfile::tempdir().expect("folder");
        let at = |name: &str| files.path().join(name);
        for folder in ["data", "suite"] {
            std::fs::create_dir(at(folder)).expect("a folder");
        }
        std::fs::copy(crate::root().join("data/samples/sales.parquet"), at("data/sales.parquet")).expect("copied");
        std::fs::write(at("suite/suite.toml"), "name = \"mine\"\n").expect("written");
        for (name, sql) in [("q1.sql", GROUPS), ("q2.sql", ROWS), ("q3.sql", MEDIANS)] {
            std::fs::write(at("suite").join(name), sql.replace("{}", "sales")).expect("written");
        }
        Self { shim: shim_folder(), files }
    }

    fn at(&self, name: &str) -> String {
        self.files.path().join(name).to_str().expect("UTF-8").to_string()
    }

    fn command(&self, seed: u64, args: &[&str]) -> Command {
        let mut command = command(&[]);
        let kernels =
            if seed.is_multiple_of(3) { "off".to_string() } else { self.at(&format!("kernels-{}", seed % 5)) };
        command
            .args(["--device", "cuda", "--fallback", "error", "--set", "millpond.min_rows=0"])
            .args(args)
            .env("LD_LIBRARY_PATH", self.shim.path())
            .env("CUDA_SHIM_DELAYS", seed.to_string())
            .env("CUDA_SHIM_SEED", (seed % 7).to_string())
            .env("MILLPOND_KERNEL_CACHE", kernels)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn start(&self, seed: u64, args: &[&str]) -> Child {
        self.command(seed, args).spawn().expect("the binary starts")
    }

    /// Runs one process to its end; returns its output and the expected exit code.
    fn end(&self, way: Way, seed: u64) -> (Output, i32) {
        let sales = |sql: &str| sql.replace("{}", SALES);
        let script = [GROUPS, MEDIANS, ROWS].map(sales);
        let script = script.iter().cycle().skip(seed as usize % 3).take(1 + seed as usize % 2).cloned();
        let script = script.collect::<Vec<_>>().join("; ");
        let wrong = format!("{script}; SELECT nonsense FROM {SALES}; {script}");
        let run = |args: &[&str]| self.command(seed, args).output().expect("the binary runs");
        match way {
            Answered => (run(&["-c", &script]), 0),
            OutputWritten => (run(&["-o", &self.at("answer.ndjson"), "-c", &script]), 0),
            Refused => (run(&["-c", &wrong]), 1),
            KeptGoing => (run(&["--keep-going", "-c", &wrong]), 1),
            ReaderGone => (first_lines(self.start(seed, &["-c", &sales(ROWS)]), 1), 0),
            Suite | SuiteReaderGone => {
                let (suite, data) = (self.at("suite"), self.at("data"));
                let repeat = (1 + seed % 3).to_string();
                let strategies = ["cuda_async_default", "cuda_async", "caching"];
                let strategy = strategies[seed as usize / 10 % strategies.len()];
                let args = ["run", &suite, "--data", &data, "--repeat", &repeat, "--allocator", strategy, "--json"];
                match way {
                    Suite => (run(&args), 0),
                    _ => (first_lines(self.start(seed, &args), 1), 0),
                }
            }
            Interrupted => (self.signalled(seed, &["-INT"]), 130),
            InterruptedTwice => (self.signalled(seed, &["-INT", "-INT"]), 130),
            Terminated => (self.signalled(seed, &["-TERM"]), 143),
        }
    }

    /// Signals an endless query that has allocated on the device.
    fn signalled(&self, seed: u64, signals: &[&str]) -> Output {
        let log = self.at(&format!("log-{seed}.csv"));
        let batches = ["--set", "millpond.batch_rows=1000", "--memory-log", &log, "-c", WITHOUT_END];
        let mut child = self.start(seed, &batches);
        while std::fs::metadata(&log).map_or(0, |log| log.len()) == 0 {
            assert_eq!(child.try_wait().expect("state"), None, "it ends by itself");
            std::thread::sleep(Duration::from_millis(2));
        }
        for signal in signals {
            let sent = Command::new("kill").arg(signal).arg(child.id().to_string()).output().expect("kill runs");
            // The first signal may already have ended it.
            assert!(sent.status.success() || child.try_wait().expect("state").is_some(), "{signal}");
        }
        child.wait_with_output().expect("it ends")
    }
}

/// Reads `lines` lines and closes the pipe.
fn first_lines(mut child: Child, lines: usize) -> Output {
    let rows = BufReader::new(child.stdout.take().expect("piped"));
    assert_eq!(rows.lines().take(lines).filter_map(Result::ok).count(), lines);
    child.wait_with_output().expect("it ends")
}

#[test]
fn no_way_to_end_calls_a_driver_that_has_gone() {
    let processes: u64 = std::env::var("MILLPOND_TEST_EXITS").map_or(20, |text| text.parse().expect("a number"));
    let rig = Rig::new();
    let mut wrong = Vec::new();
    for seed in 0..processes {
        let way = WAYS[seed as usize % WAYS.len()];
        let (output, code) = rig.end(way, seed);
        let told = String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(code) || told.contains("libcuda shim") {
            wrong.push(format!("{way:?}, seed {seed}: {}: {told}", output.status));
        }
        // A process that ends in order leaves no temporary file.
        if let Some(left) = (!matches!(way, InterruptedTwice)).then(|| temporary(&rig)).flatten() {
            wrong.push(format!("{way:?}, seed {seed}: {left} is left behind"));
        }
    }
    assert!(wrong.is_empty(), "{} of {processes}:\n{}", wrong.len(), wrong.join("\n"));
}

/// A temporary file in the kernel cache.
fn temporary(rig: &Rig) -> Option<String> {
    let kernels = (0..5).map(|number| rig.at(&format!("kernels-{number}")));
    let files = kernels.filter_map(|folder| std::fs::read_dir(Path::new(&folder)).ok()).flatten().flatten();
    let mut names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names.find(|name| name.ends_with(".tmp"))
}
