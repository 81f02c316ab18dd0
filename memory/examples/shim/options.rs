//! Options of the shim, read from environment variables.
//!
//!   CUDA_SHIM_FAIL="cuMemPoolTrimTo=12345,cuMemAllocFromPoolAsync@3=2"
//!                   every call returns 12345              the third call returns 2, and does nothing
//!
//! | variable                     | meaning                                                 | default |
//! |------------------------------|---------------------------------------------------------|---------|
//! | `CUDA_SHIM_VERSION`          | the driver's version, as 12020                          | 12020   |
//! | `CUDA_SHIM_DEVICES`          | number of devices                                       | 1       |
//! | `CUDA_SHIM_SEED`             | the simulated device's seed                             | 0       |
//! | `CUDA_SHIM_MEMORY_BYTES`     | memory of each device                                   | 8 GiB   |
//! | `CUDA_SHIM_LOSE_AT_LAUNCH`   | the launch, counted from 1, that loses its device       | none    |
//! | `CUDA_SHIM_HANG_AT_LAUNCH`   | the launch, counted from 1, that never ends             | none    |
//! | `CUDA_SHIM_IGNORE_WAIT`      | the wait of a stream, counted from 1, that does nothing | none    |
//! | `CUDA_SHIM_REFUSE_PEERS`     | 1: no device can access another's memory                | 0       |
//! | `CUDA_SHIM_MEMORY_POOLS`     | 0: devices have no pools                                | 1       |
//! | `CUDA_SHIM_HOST_NUMA_NODES`  | NUMA nodes of the host that can hold pools              | 1       |
//! | `CUDA_SHIM_OPEN_OWN_EVENTS`  | 1: a process may open its own exported events           | 0       |
//! | `CUDA_SHIM_WRITE_WORD`       | 0: streams cannot store words                           | 1       |
//! | `CUDA_SHIM_DEFAULT_STREAM`   | 1: handle 0 may be used, as by external callers         | 0       |
//! | `CUDA_SHIM_REUSE_STREAMS`    | 1: a new stream gets the handle of a destroyed one      | 0       |
//! | `CUDA_SHIM_FAIL`             | functions that return a code instead of working         | none    |
//! | `CUDA_SHIM_HANG`             | function=FILE: its calls create FILE, and never return  | none    |
//! | `CUDA_SHIM_DELAYS`           | a seed: calls and exit handlers take longer at random   | none    |
//! | `CUDA_SHIM_REPORT`           | a file for counters and findings, written at exit       | none    |
//! | `CUDA_SHIM_LOG`              | 1: refusals on standard error, with their reasons       | 0       |
//! | `CUDA_VISIBLE_DEVICES`       | CUDA's own: visible devices                             | all     |

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_memory::driver::DriverCode;
use millpond_memory::driver::sim::{CallKind, FailCall, SimOptions};

pub(crate) struct Options {
    pub(crate) version: i32,
    pub(crate) sim: SimOptions,
    pub(crate) report: Option<PathBuf>,
    pub(crate) log: bool,
    pub(crate) delays: Option<u64>,
    hang: Option<(String, PathBuf)>,
    trouble: Vec<Trouble>,
}

struct Trouble {
    function: String,
    /// Number of the failing call, from 1; `None` is every call.
    nth: Option<u64>,
    code: DriverCode,
    calls: AtomicU64,
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} cannot be \"{text}\"")))
}

fn lose_at_launch(nth: u64) -> FailCall {
    FailCall::with_code(CallKind::Launch, nth, DriverCode::LAUNCH_FAILED)
}

impl Options {
    pub(crate) fn from_environment() -> Self {
        let defaults = SimOptions::default();
        let devices = variable("CUDA_SHIM_DEVICES").unwrap_or(defaults.devices);
        let version = variable("CUDA_SHIM_VERSION").unwrap_or(defaults.version);
        let sim = SimOptions {
            version,
            seed: variable("CUDA_SHIM_SEED").unwrap_or(defaults.seed),
            devices: visible(devices, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref()),
            memory_bytes: variable("CUDA_SHIM_MEMORY_BYTES").unwrap_or(defaults.memory_bytes),
            fail_calls: variable("CUDA_SHIM_LOSE_AT_LAUNCH").map(lose_at_launch).into_iter().collect(),
            hang_at_launch: variable("CUDA_SHIM_HANG_AT_LAUNCH"),
            ignore_wait: variable("CUDA_SHIM_IGNORE_WAIT"),
            refuse_peers: variable("CUDA_SHIM_REFUSE_PEERS") == Some(1),
            open_own_events: variable("CUDA_SHIM_OPEN_OWN_EVENTS") == Some(1),
            default_stream: variable("CUDA_SHIM_DEFAULT_STREAM") == Some(1),
            reuse_stream_handles: variable("CUDA_SHIM_REUSE_STREAMS") == Some(1),
            memory_pools: variable("CUDA_SHIM_MEMORY_POOLS") != Some(0),
            host_numa_nodes: variable("CUDA_SHIM_HOST_NUMA_NODES").unwrap_or(defaults.host_numa_nodes),
            stream_memory_operations: variable("CUDA_SHIM_WRITE_WORD") != Some(0),
            // cuLaunchKernel cannot declare a kernel's accesses.
            must_declare: false,
            ..defaults
        };
        let trouble = variable::<String>("CUDA_SHIM_FAIL").unwrap_or_default();
        let trouble = trouble.split(',').filter(|part| !part.is_empty()).map(Trouble::parse).collect();
        let report = variable::<PathBuf>("CUDA_SHIM_REPORT");
        let log = variable("CUDA_SHIM_LOG") == Some(1);
        let delays = variable("CUDA_SHIM_DELAYS");
        let hang = variable::<String>("CUDA_SHIM_HANG").map(|text| {
            let (function, file) = text.split_once('=').expect("CUDA_SHIM_HANG takes function=FILE");
            (function.to_string(), PathBuf::from(file))
        });
        Options { version: i32::try_from(version).unwrap_or(i32::MAX), sim, report, log, delays, hang, trouble }
    }

    /// Never returns if calls of `function` are configured to hang.
    pub(crate) fn hang_in(&self, function: &str) {
        if let Some((_, file)) = self.hang.as_ref().filter(|(name, _)| name == function) {
            std::fs::write(file, "").unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            loop {
                std::thread::park();
            }
        }
    }

    /// The error code configured for this call of `function`.
    pub(crate) fn trouble_for(&self, function: &str) -> Option<DriverCode> {
        let ordered = self.trouble.iter().find(|trouble| trouble.function == function)?;
        let call = ordered.calls.fetch_add(1, Ordering::Relaxed) + 1;
        ordered.nth.is_none_or(|nth| nth == call).then_some(ordered.code)
    }
}

impl Trouble {
    fn parse(text: &str) -> Self {
        let parsed = || {
            let (call, code) = text.split_once('=')?;
            let (function, nth) = match call.split_once('@') {
                Some((function, nth)) => (function, Some(nth.parse().ok()?)),
                None => (call, None),
            };
            let code = DriverCode(code.parse().ok()?);
            Some(Trouble { function: function.to_string(), nth, code, calls: AtomicU64::new(0) })
        };
        parsed().unwrap_or_else(|| panic!("CUDA_SHIM_FAIL takes function=code or function@nth=code, not \"{text}\""))
    }
}

/// Number of devices visible under CUDA's own variable: those up to the first invalid entry.
fn visible(devices: u32, list: Option<&str>) -> u32 {
    let Some(list) = list else { return devices };
    let exists = |entry: &&str| entry.trim().parse::<u32>().is_ok_and(|ordinal| ordinal < devices);
    list.split(',').take_while(exists).count() as u32
}
