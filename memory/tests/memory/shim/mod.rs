//! `driver::cuda` without a GPU: over a libcuda that forwards into the simulated device (`examples/shim`).
//!
//!   test ─► child process of this binary, LD_LIBRARY_PATH=folder ─► CudaDriver ─► folder/libcuda.so.1 = the shim
//!        ◄─ its output, and the shim's report: launches, findings
//!
//! Child      tests in `claims` do nothing unless a test here started their process.

mod allocator;
mod claims;
mod exports;
mod leaving;
mod pool_claims;
mod sharing;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use millpond_memory::checks::skipped;
use millpond_memory::driver::CudaDriver;

/// Set in the children.
const INSIDE: &str = "MILLPOND_TEST_SHIM";

/// True in a child that runs over the shim.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// The shim that was built with this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let target = test.parent().and_then(Path::parent).expect("tests lie in target/<profile>/deps");
    let library = target.join("examples/libshim.so");
    assert!(
        library.exists(),
        "{} is not there: `cargo test` builds it, and `cargo build -p millpond-memory --example shim` does alone",
        library.display()
    );
    library
}

/// A folder that is removed with its test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("millpond-shim-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    /// A folder with `library` under the file names of libcuda.
    fn with(library: &Path) -> Self {
        let folder = Self::new();
        for name in ["libcuda.so", "libcuda.so.1"] {
            std::os::unix::fs::symlink(library, folder.0.join(name)).unwrap();
        }
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Output and report of a child.
pub struct Ended {
    pub output: String,
    launches: u64,
    /// The simulated device's findings, as text.
    pub findings: Vec<String>,
}

/// Runs the tests of this binary whose names contain `tests`, over the shim.
pub fn over_the_shim(tests: &str, environment: &[(&str, &str)]) -> Ended {
    over(&Folder::with(&library()), tests, environment)
}

fn over(folder: &Folder, tests: &str, environment: &[(&str, &str)]) -> Ended {
    let report = folder.0.join("report");
    let child = Command::new(std::env::current_exe().unwrap())
        .args([tests, "--nocapture"])
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("LD_LIBRARY_PATH", &folder.0)
        .env("CUDA_SHIM_REPORT", &report)
        .env("CUDA_SHIM_LOG", "1")
        .env(INSIDE, "1")
        .env("MILLPOND_TEST_TELL", "1")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{output}");
    assert!(!output.contains("running 0 tests"), "there is no test {tests}");
    // No report: the driver was never started.
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    let number = |name: &str| report.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let findings: Vec<String> = report.lines().skip(3).map(str::to_string).collect();
    assert_eq!(number("findings").unwrap_or(0) == 0, findings.is_empty(), "{report}");
    Ended { output, launches: number("launches").unwrap_or(0), findings }
}

/// The result of opening the driver in a child.
fn told(folder: &Folder, environment: &[(&str, &str)]) -> String {
    let ended = over(folder, "cuda::tell", environment);
    let told = ended.output.lines().find_map(|line| line.split_once("told: ")).expect("the child tells").1;
    told.to_string()
}

#[test]
fn it_exports_what_the_driver_calls_and_nothing_else() {
    let mut asked: Vec<&str> = CudaDriver::functions().collect();
    asked.sort_unstable();
    let exported = exports::of(&std::fs::read(library()).unwrap());
    let exported: Vec<&str> = exported.iter().map(String::as_str).filter(|name| name.starts_with("cu")).collect();
    assert_eq!(exported, asked);
    assert!(asked.len() > 40);
}

/// Otherwise a test, or a user's `cargo run`, would find the shim instead of a driver.
#[test]
fn it_does_not_lie_on_cargos_library_path_as_libcuda() {
    let library = library();
    let target = library.parent().and_then(Path::parent).unwrap();
    for folder in [target.to_path_buf(), target.join("deps"), target.join("examples")] {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let name = entry.unwrap().file_name();
            assert!(!name.to_string_lossy().starts_with("libcuda.so"), "{} in {}", name.display(), folder.display());
        }
    }
}

#[test]
fn conformance_holds_through_libcuda() {
    for seed in ["0", "1", "2"] {
        let ended = over_the_shim("conformance::", &[("CUDA_SHIM_SEED", seed)]);
        assert!(ended.launches > 0, "{}", ended.output);
        assert_eq!(ended.findings, [""; 0], "seed {seed}");
    }
}

#[test]
fn every_strategy_of_memory_holds_through_libcuda() {
    let ended = over_the_shim("resources::", &[("CUDA_SHIM_SEED", "4")]);
    assert_eq!(ended.findings, [""; 0]);
}

#[test]
fn claims_hold_through_libcuda() {
    let ended = over_the_shim("claims::anywhere::", &[]);
    assert!(ended.launches > 0, "{}", ended.output);
    assert_eq!(ended.findings, [""; 0]);
}

#[test]
fn several_devices_are_told_apart() {
    let ended = over_the_shim("claims::two_devices::", &[("CUDA_SHIM_DEVICES", "2")]);
    assert_eq!(ended.findings, [""; 0]);
}

/// Peers through the C interface: access, uses and copies.
#[test]
fn peers_over_the_shim() {
    let ended = over_the_shim("sharing::peers", &[("CUDA_SHIM_DEVICES", "2")]);
    assert_eq!(ended.findings, [""; 0]);
}

/// All functions for sharing between processes, with both ends in one process: the shim has no second one.
#[test]
fn sharing_over_the_shim() {
    let ended = over_the_shim("sharing::both_ends", &[("CUDA_SHIM_OPEN_OWN_EVENTS", "1")]);
    assert_eq!(ended.findings, [""; 0]);
    over_the_shim("sharing::refusals", &[]);
}

#[test]
fn peers_that_cannot_reach_are_refused_at_once() {
    let environment = [("CUDA_SHIM_DEVICES", "2"), ("CUDA_SHIM_REFUSE_PEERS", "1")];
    let ended = over_the_shim("claims::refused_peers", &environment);
    assert_eq!(ended.findings, [""; 0]);
}

#[test]
fn a_second_free_is_refused_and_found() {
    let found = over_the_shim("claims::freed_twice", &[]).findings.join("\n");
    assert!(found.starts_with("use after free: ") && found.contains("after its free"), "{found}");
}

#[test]
fn pools_of_every_kind_hold_through_libcuda() {
    for claim in ["default_and_current", "whose_memory_an_address_is", "pools_on_the_host", "sharing", "questions"] {
        let ended = over_the_shim(&format!("pool_claims::{claim}"), &[]);
        assert_eq!(ended.findings, [""; 0], "{claim}");
    }
    let newer = over_the_shim("pool_claims::questions", &[("CUDA_SHIM_VERSION", "13000")]);
    assert_eq!(newer.findings, [""; 0]);
}

#[test]
fn captures_and_streams_of_others_hold_through_libcuda() {
    let ended = over_the_shim("pool_claims::streams_of_others", &[]);
    assert!(ended.findings.is_empty() || ended.findings[0].starts_with("handle: "), "{:#?}", ended.findings);
}

#[test]
fn peers_hold_through_libcuda() {
    let ended = over_the_shim("pool_claims::two_devices", &[("CUDA_SHIM_DEVICES", "2")]);
    assert_eq!(ended.findings, [""; 0]);
}

#[test]
fn codes_nobody_knows_are_values_in_every_room() {
    let functions = [
        "cuDeviceGetDefaultMemPool",
        "cuMemAllocAsync",
        "cuPointerGetAttribute",
        "cuStreamGetCaptureInfo_v2",
        "cuStreamGetId",
    ];
    let fail = functions.map(|function| format!("{function}=4242")).join(",");
    let ended = over_the_shim("pool_claims::codes_nobody_knows", &[("CUDA_SHIM_FAIL", &fail)]);
    assert_eq!(ended.findings, [""; 0]);
}

#[test]
fn results_come_home_without_words() {
    let ended = over_the_shim("claims::without_words", &[("CUDA_SHIM_WRITE_WORD", "0")]);
    assert_eq!(ended.findings, [""; 0]);
}

#[test]
fn a_full_device_is_out_of_memory_and_recovers() {
    let ended = over_the_shim("claims::full_device", &[("CUDA_SHIM_MEMORY_BYTES", "67108864")]);
    assert_eq!(ended.findings, [""; 0]);
}

#[test]
fn a_code_nobody_knows_is_a_value() {
    for code in ["12345", "4294967295"] {
        let fail = format!("cuStreamCreateWithPriority@1={code},cuMemcpyHtoDAsync_v2@1={code}");
        let ended = over_the_shim("claims::unknown_code", &[("CUDA_SHIM_FAIL", &fail), ("EXPECTED_CODE", code)]);
        assert_eq!(ended.findings, [""; 0]);
    }
}

#[test]
fn a_lost_device_ends_everything_in_errors() {
    let ended = over_the_shim("claims::lost_at_launch", &[("CUDA_SHIM_LOSE_AT_LAUNCH", "2")]);
    assert_eq!(ended.launches, 2);
}

#[test]
fn a_kernel_that_never_ends_is_given_up() {
    let ended = over_the_shim("claims::hangs", &[("CUDA_SHIM_HANG_AT_LAUNCH", "1")]);
    assert_eq!((ended.launches, ended.findings), (1, Vec::new()), "{}", ended.output);
}

#[test]
fn a_kernel_that_goes_astray_loses_the_device() {
    let ended = over_the_shim("claims::stray_kernel", &[]);
    assert!(ended.findings.join("\n").starts_with("out of bounds: "), "{:#?}", ended.findings);
}

/// The checks work through the C interface: silent for ordered work, a finding for a lost wait.
#[test]
fn a_wait_that_is_lost_is_found() {
    assert_eq!(over_the_shim("claims::hand_over", &[]).findings, [""; 0]);
    let ended = over_the_shim("claims::hand_over", &[("CUDA_SHIM_IGNORE_WAIT", "1")]);
    assert!(ended.findings.join("\n").contains("not ordered after"), "{:#?}", ended.findings);
}

#[test]
fn a_driver_that_is_there_opens() {
    assert_eq!(told(&Folder::with(&library()), &[]), "opened");
}

#[test]
fn a_driver_that_is_too_old_is_a_reason() {
    // A version is reported only if it can be read.
    for (version, words) in [("11040", "CUDA 11.4"), ("12010", "CUDA 12.1")] {
        let told = told(&Folder::with(&library()), &[("CUDA_SHIM_VERSION", version)]);
        assert!(told.contains(words) && told.ends_with("is older than the minimum 535 (CUDA 12.2)"), "{told}");
    }
}

#[test]
fn no_device_is_a_reason() {
    let none = told(&Folder::with(&library()), &[("CUDA_SHIM_DEVICES", "0")]);
    assert!(none.ends_with("present but no device visible"), "{none}");
    let hidden = told(&Folder::with(&library()), &[("CUDA_VISIBLE_DEVICES", "-1")]);
    assert!(hidden.ends_with("present but no device visible (CUDA_VISIBLE_DEVICES=\"-1\")"), "{hidden}");
}

#[test]
fn a_start_that_is_refused_is_a_reason() {
    for (fail, words) in [
        ("cuInit=803", "cuInit failed: driver and library versions differ (803)"),
        ("cuInit=4242", "cuInit failed: unknown result (4242)"),
        ("cuDriverGetVersion=999", "cuDriverGetVersion failed: unknown error (999)"),
        ("cuDeviceGetCount=4242", "cuDeviceGetCount failed: unknown result (4242)"),
        // A panic inside the library does not unwind out of it.
        ("nonsense", "cuDriverGetVersion failed: unknown error (999)"),
    ] {
        let told = told(&Folder::with(&library()), &[("CUDA_SHIM_FAIL", fail)]);
        assert_eq!(told, format!("NVIDIA driver does not start: {words}"));
    }
}

/// Removes each function in turn, by renaming it in a copy of the library.
#[test]
fn a_function_that_is_missing_is_named() {
    let whole = std::fs::read(library()).unwrap();
    let names = ["cuMemPoolTrimTo", "cuLaunchKernel", "cuDriverGetVersion", "cuStreamWriteValue32_v2"];
    for name in names {
        assert!(CudaDriver::functions().any(|function| function == name));
        let mut bytes = whole.clone();
        let entry = format!("\0{name}\0").into_bytes();
        let found: Vec<usize> = memchr(&bytes, &entry);
        assert!(!found.is_empty(), "{name}");
        for at in found {
            bytes[at + 1] = b'x';
        }
        let folder = Folder::new();
        for file in ["libcuda.so", "libcuda.so.1"] {
            std::fs::write(folder.0.join(file), &bytes).unwrap();
        }
        let told = told(&folder, &[]);
        assert!(told.contains(&format!("lacks {name}; reinstall it")), "{told}");
    }
}

/// Offsets of `needle` in `hay`.
fn memchr(hay: &[u8], needle: &[u8]) -> Vec<usize> {
    hay.windows(needle.len()).enumerate().filter(|(_, window)| *window == needle).map(|(at, _)| at).collect()
}

#[test]
fn an_empty_folder_is_no_driver() {
    if CudaDriver::open().is_ok() {
        skipped("needs a machine without an NVIDIA driver");
        return;
    }
    assert_eq!(told(&Folder::new(), &[]), "no NVIDIA driver found (libcuda.so.1 not loadable)");
}
