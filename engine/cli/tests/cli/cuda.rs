//! The whole engine on the CUDA driver without a GPU: the binary finds a libcuda that forwards to the simulated device
//! (`memory/examples/shim`, built by `cargo test`).
//!
//!   millpond --device cuda ─► engine ─► driver::cuda ─► libcuda.so.1 in a test folder ─► simulated device ─► report

use std::path::Path;

use tempfile::TempDir;

use crate::{Ended, millpond, millpond_in};

const SALES: &str = "'data/samples/sales.parquet'";
const NAME: &str = "simulated device behind a libcuda for tests";

/// A folder with the shim as libcuda.
pub(crate) fn shim_folder() -> TempDir {
    let target = Path::new(env!("CARGO_BIN_EXE_millpond")).parent().expect("binaries lie in target/<profile>");
    let library = target.join("examples/libshim.so");
    assert!(
        library.exists(),
        "{} is not there: `cargo test` builds it, and `cargo build --workspace --example shim` does alone",
        library.display()
    );
    let folder = tempfile::tempdir().expect("folder");
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(&library, folder.path().join(name)).expect("link");
    }
    folder
}

/// Runs the program over the shim. Returns its output, the number of kernel launches, and the simulated device's
/// findings.
fn over_the_shim(environment: &[(&str, &str)], args: &[&str]) -> (Ended, u64, String) {
    let (ended, [launches, _], findings) = counted_over_the_shim(environment, args);
    (ended, launches, findings)
}

/// Like [`over_the_shim`], but returns the numbers of launches and of assembled PTX texts.
fn counted_over_the_shim(environment: &[(&str, &str)], args: &[&str]) -> (Ended, [u64; 2], String) {
    let folder = shim_folder();
    let report = folder.path().join("report");
    let here = [
        ("LD_LIBRARY_PATH", folder.path().to_str().expect("UTF-8")),
        ("CUDA_SHIM_REPORT", report.to_str().expect("UTF-8")),
        // Kernels assembled by the shim must not be cached for other drivers.
        ("MILLPOND_KERNEL_CACHE", "off"),
    ];
    let ended = millpond_in(&[&here[..], environment].concat(), "", args);
    // The report is missing if the driver was not started.
    let report = std::fs::read_to_string(report).unwrap_or_default();
    let mut lines = report.lines();
    let counts = ["launches ", "assembled "]
        .map(|name| lines.next().and_then(|line| line.strip_prefix(name)?.parse().ok()).unwrap_or(0));
    let findings = lines.skip(1).collect::<Vec<_>>().join("\n");
    (ended, counts, findings)
}

#[test]
fn info_names_the_device() {
    let (ended, launches, findings) = over_the_shim(&[], &["info"]);
    assert_eq!((ended.code, launches, findings.as_str()), (0, 0, ""), "{}", ended.stderr);
    assert!(ended.stdout.contains(&format!("\ncuda   {NAME} · ")), "{}", ended.stdout);
    let (ended, ..) = over_the_shim(&[("CUDA_SHIM_DEVICES", "2")], &["info", "--device", "cuda:1", "--json"]);
    assert!(ended.stdout.contains("\"available\":true") && ended.stdout.contains(NAME), "{}", ended.stdout);
}

#[test]
fn info_says_why_there_is_none() {
    for (environment, reason) in [
        (("CUDA_SHIM_DEVICES", "0"), "present but no device visible"),
        (("CUDA_VISIBLE_DEVICES", ""), "no device visible (CUDA_VISIBLE_DEVICES=\"\")"),
        (("CUDA_SHIM_VERSION", "11040"), "is older than the minimum 535 (CUDA 12.2)"),
        (("CUDA_SHIM_FAIL", "cuInit=4242"), "NVIDIA driver does not start: cuInit failed: unknown result (4242)"),
    ] {
        let (ended, ..) = over_the_shim(&[environment], &["info"]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let line = ended.stdout.lines().find(|line| line.starts_with("cuda   none: ")).unwrap_or(&ended.stdout);
        assert!(line.ends_with(reason), "{environment:?}: {line}");
    }
}

/// Every check that a user's GPU must pass.
#[test]
fn the_self_test_passes() {
    let (ended, launches, findings) = over_the_shim(&[], &["selftest", "--device", "cuda", "--queries", "40"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let total = ended.stdout.lines().last().unwrap_or_default();
    assert!(total.contains(&format!(" checks on {NAME}: ")) && total.contains(", 0 failed, "), "{total}");
    assert!(launches > 100, "{launches} launches");
    assert_eq!(findings, "");
}

/// Statements whose operators all have a device form. Weights are multiples of 1/64: their sums are exact in any order.
const QUERIES: [&str; 5] = [
    "SELECT count(*) AS n, sum(price) AS total, min(sold_on), max(weight_kg), avg(discount) FROM {} WHERE quantity > 2",
    "SELECT category, is_return, count(*) AS n, sum(price * quantity) AS total FROM {} WHERE discount > 0.1 \
     GROUP BY category, is_return ORDER BY category, is_return",
    "SELECT store_id, count(discount), avg(weight_kg) FROM {} GROUP BY store_id HAVING count(*) > 1100 ORDER BY 1",
    "SELECT sale_id, upper(product) AS product, price FROM {} WHERE store_id = 7 AND price > 100 \
     ORDER BY price DESC, sale_id",
    "SELECT sale_id, CASE WHEN discount IS NULL THEN 0 ELSE quantity / 2 END AS half FROM {} WHERE customer LIKE '%77'",
];

#[test]
fn queries_run_on_the_cuda_driver() {
    for (seed, query) in QUERIES.iter().enumerate() {
        let query = query.replace("{}", SALES);
        let expected = millpond(&["-q", "--device", "cpu", "-c", &query]);
        assert!(expected.code == 0 && expected.stdout.lines().count() > 1, "{}", expected.stderr);
        let args = ["--device", "cuda", "--fallback", "error", "--set", "millpond.min_rows=0", "-c", &query];
        let (ended, launches, findings) = over_the_shim(&[("CUDA_SHIM_SEED", &seed.to_string())], &args);
        assert_eq!(ended.code, 0, "{query}: {}", ended.stderr);
        assert_eq!(sorted(&ended.stdout), sorted(&expected.stdout), "{query}");
        assert_eq!(findings, "", "{query}");
        assert!(launches > 0 && ended.stderr.contains(&format!("{NAME}: ")), "{query}: {}", ended.stderr);
    }
}

/// A process loads the kernels that an earlier one has assembled, through the same calls as with NVIDIA's driver.
#[test]
fn a_second_process_loads_what_the_first_has_assembled() {
    let kept = tempfile::tempdir().expect("folder");
    let folder = kept.path().join("kernels");
    let query = QUERIES[1].replace("{}", SALES);
    let expected = millpond(&["-q", "--device", "cpu", "-c", &query]);
    let args = ["--device", "cuda", "--fallback", "error", "--set", "millpond.min_rows=0", "-c", &query];
    let here = ("MILLPOND_KERNEL_CACHE", folder.to_str().expect("UTF-8"));
    let files = || {
        let entries = std::fs::read_dir(&folder).expect("the folder was made").map(|entry| entry.expect("an entry"));
        let mut files: Vec<_> =
            entries.map(|e| (e.path(), e.metadata().expect("a file").modified().expect("a time"))).collect();
        files.sort();
        files
    };
    let run = |more: &[(&str, &str)]| {
        let (ended, [launches, assembled], findings) = counted_over_the_shim(more, &args);
        assert_eq!((ended.code, findings.as_str()), (0, ""), "{}", ended.stderr);
        assert_eq!(sorted(&ended.stdout), sorted(&expected.stdout));
        assert!(launches > 0, "{}", ended.stderr);
        assembled
    };
    // If the driver does not return assembled code, every process assembles, and still answers.
    assert!(run(&[here, ("CUDA_SHIM_FAIL", "cuLinkCreate_v2=999")]) > 0);
    assert_eq!(files(), []);
    assert!(run(&[here]) > 0);
    let first = files();
    assert!(!first.is_empty());
    assert_eq!(run(&[here]), 0);
    assert_eq!(files(), first, "nothing was written again");
    // Kernels that the driver refuses to load are assembled again.
    assert!(run(&[here, ("CUDA_SHIM_VERSION", "13000")]) > 0, "another build");
    // The default folder of users' caches.
    let caches = kept.path().join("caches");
    let usual = [("MILLPOND_KERNEL_CACHE", "auto"), ("XDG_CACHE_HOME", caches.to_str().expect("UTF-8"))];
    assert!(run(&usual) > 0);
    assert_eq!(std::fs::read_dir(caches.join("millpond/kernels")).expect("the usual folder").count(), first.len());
    assert_eq!(run(&usual), 0);
    // An unusable folder is reported to the user.
    let file = kept.path().join("a file");
    std::fs::write(&file, "").expect("a file");
    let (ended, ..) = over_the_shim(&[("MILLPOND_KERNEL_CACHE", file.to_str().expect("UTF-8"))], &args);
    assert!(
        ended.code != 0 && ended.stderr.contains("kernel_cache") && ended.stderr.contains("a file"),
        "{}",
        ended.stderr
    );
}

/// Sorted lines, because without ORDER BY any order is correct.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn auto_takes_a_cuda_device_and_explains_itself_without_one() {
    let query = format!("SELECT sum(quantity) AS n FROM {SALES}");
    let args = ["--device", "auto", "-c", &query];
    let (taken, launches, _) = over_the_shim(&[], &args);
    assert!(taken.code == 0 && launches > 0, "{}", taken.stderr);
    let (without, launches, _) = over_the_shim(&[("CUDA_SHIM_VERSION", "11040")], &args);
    assert_eq!((without.code, launches, &without.stdout), (0, 0, &taken.stdout));
    assert!(without.stderr.starts_with("note: NVIDIA driver "), "{}", without.stderr);
    assert!(without.stderr.contains("is older than the minimum 535"), "{}", without.stderr);
    let (refused, ..) = over_the_shim(&[("CUDA_SHIM_VERSION", "11040")], &["--device", "cuda", "-c", &query]);
    assert_eq!(refused.code, 3, "a device that was asked for: {}", refused.stderr);
}

/// A driver failure in the middle of a query causes a note and a correct answer, or an error with `fallback = 'error'`.
/// After a device is lost all calls fail, so which call reports it first depends on timing.
#[test]
fn trouble_in_the_driver_leaves_the_answer_right() {
    // Groups, which are returned at the end, and rows, which are returned as they are produced.
    for query in [QUERIES[1], QUERIES[4]] {
        let query = query.replace("{}", SALES);
        let expected = millpond(&["-q", "--device", "cpu", "-c", &query]).stdout;
        for (trouble, words) in [
            (("CUDA_SHIM_LOSE_AT_LAUNCH", "1"), ["device 0 is lost: cu", " failed: launch failed (719)"]),
            (
                ("CUDA_SHIM_FAIL", "cuMemcpyHtoDAsync_v2=12345"),
                ["cuMemcpyHtoDAsync_v2 failed: ", "unknown result (12345)"],
            ),
            (("CUDA_SHIM_FAIL", "cuModuleLoadDataEx=218"), ["cuModuleLoadDataEx failed: ", "invalid PTX (218)"]),
            (("CUDA_SHIM_FAIL", "cuMemAllocFromPoolAsync=2"), ["out of ", "device memory"]),
        ] {
            let says = |stderr: &str| words.iter().all(|words| stderr.contains(words));
            let (ended, _, findings) = over_the_shim(&[trouble], &["--device", "cuda", "-c", &query]);
            assert_eq!(ended.code, 0, "{query}, {trouble:?}: {}", ended.stderr);
            assert_eq!(sorted(&ended.stdout), sorted(&expected), "{query}, {trouble:?}");
            assert!(says(&ended.stderr), "{query}, {trouble:?}: {}", ended.stderr);
            assert_eq!(findings, "", "{query}, {trouble:?}");
            let args = ["--device", "cuda", "--fallback", "error", "-c", &query];
            let (refused, ..) = over_the_shim(&[trouble], &args);
            assert!(refused.code == 3 && says(&refused.stderr), "{query}, {trouble:?}: {}", refused.stderr);
        }
    }
}
