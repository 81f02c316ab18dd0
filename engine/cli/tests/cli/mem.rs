//! `mem bench` and `mem replay` on the simulated device, and the options that select the memory resource.

use std::path::Path;

use crate::{Ended, millpond, millpond_in};

const SALES: &str =
    "SELECT category, count(*), sum(quantity) FROM 'data/samples/sales.parquet' GROUP BY category ORDER BY category";

fn refused(args: &[&str], code: i32, says: &[&str]) {
    let ended = millpond(args);
    assert_eq!(ended.code, code, "{args:?}: {}{}", ended.stdout, ended.stderr);
    for text in says {
        assert!(ended.stderr.contains(text), "{args:?} does not say {text:?}:\n{}", ended.stderr);
    }
    assert_eq!(ended.stdout, "", "{args:?} printed data");
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

fn ran(args: &[&str]) -> Ended {
    let ended = millpond(args);
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    ended
}

#[test]
fn a_memory_log_replaces_no_file_of_another_kind() {
    let folder = tempfile::tempdir().expect("folder");
    let data = folder.path().join("t.csv");
    std::fs::write(&data, "i,v\n1,2\n").expect("a file");
    let path = data.to_str().expect("UTF-8");
    let words = ["millpond.memory_log cannot be", "a new or empty file", "is no allocation log"];
    refused(&["--device", "sim", "--memory-log", path, "-c", "SELECT 1"], 2, &words);
    let ended = millpond_in(&[("MILLPOND_MEMORY_LOG", path)], "", &["--device", "sim", "-c", "SELECT 1"]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert_eq!(std::fs::read_to_string(&data).expect("it is there"), "i,v\n1,2\n");

    // A log of an earlier run is replaced, but a device is written directly.
    let log = logged(folder.path());
    let first = std::fs::read_to_string(&log).expect("the log");
    logged(folder.path());
    let second = std::fs::read_to_string(&log).expect("the log");
    assert_eq!(first.lines().next(), second.lines().next());
    assert_eq!(second.matches("Thread,Time").count(), 1);
    ran(&["--device", "sim", "--memory-log", "/dev/null", "-c", "SELECT 1"]);
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// The allocation log of a query.
fn logged(folder: &Path) -> String {
    let file = folder.join("memory.csv").to_str().expect("UTF-8").to_string();
    let ended = ran(&[
        "--device",
        "sim",
        "--allocator",
        "arena",
        "--memory-log",
        &file,
        "--set",
        "millpond.batch_rows=2048",
        "-c",
        SALES,
    ]);
    assert!(ended.stderr.contains("memory from arena"), "{}", ended.stderr);
    file
}

#[test]
fn a_querys_log_is_replayed_from_every_strategy() {
    let folder = tempfile::tempdir().expect("folder");
    let file = logged(folder.path());
    let text = std::fs::read_to_string(&file).expect("the log");
    assert!(text.starts_with("Thread,Time,Action,Pointer,Size,Stream,Seq,"), "{text}");

    let table = ran(&["mem", "replay", &file, "--device", "sim", "--allocator", "all"]);
    for name in ["cuda", "cuda_async_default", "cuda_async", "caching", "arena", "binning"] {
        assert!(table.stdout.contains(&format!("\n {name} ")), "{name} in {}", table.stdout);
    }
    assert!(table.stdout.contains("with the order between them"), "{}", table.stdout);
    for word in [" ms", " ns", " µs", " s\n"] {
        assert!(!table.stdout.contains(word), "no time: {}", table.stdout);
    }

    let report = ran(&["mem", "replay", &file, "--device", "sim", "--allocator", "caching,cuda", "--json"]);
    let report = json(&report.stdout);
    assert_eq!(report["schema"], "millpond-mem-replay/1");
    assert_eq!(report["device"]["name"], "simulated device");
    let allocations = text.lines().filter(|line| line.contains(",allocate,")).count();
    for (replay, name) in report["replays"].as_array().expect("two").iter().zip(["caching", "cuda"]) {
        assert_eq!(replay["resource"], name);
        assert_eq!(replay["allocations"], allocations);
        assert_eq!((&replay["failures"], &replay["left_allocations"]), (&json("0"), &json("0")));
        assert_eq!(replay["findings"], json("[]"));
        assert!(replay["peak_reserved_bytes"].as_u64() >= replay["peak_used_bytes"].as_u64(), "{replay}");
    }
}

#[test]
fn a_log_of_rmms_is_replayed() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("rmm.csv");
    let text = "Thread,Time,Action,Pointer,Size,Stream\n\
                1,10:00:00.000001,allocate,0x7f0000000000,4096,0x1\n\
                1,10:00:00.000002,allocate,0x7f0000002000,100,0x2\n\
                1,10:00:00.000003,free,0x7f0000000000,4096,0x2\n";
    std::fs::write(&file, text).expect("written");
    let ended = ran(&["mem", "replay", file.to_str().expect("UTF-8"), "--device", "sim"]);
    assert!(ended.stdout.contains("without an order between them"), "{}", ended.stdout);
    assert!(ended.stdout.contains("1 allocations of 100 B are never freed in the log"), "{}", ended.stdout);
}

#[test]
fn a_race_in_a_log_is_an_error() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("race.csv");
    let header = "Thread,Time,Action,Pointer,Size,Stream,Seq,TimeNs,AllocId,Position,After,Tag";
    // A block is written on stream 1 and freed on stream 2 without a wait.
    let lines =
        ["allocate,0x100,512,0x1,0,0,1,1,,", "use_write,0x100,512,0x1,1,0,1,2,,", "free,0x100,512,0x2,2,0,1,0,,"];
    let lines: Vec<String> = lines.iter().map(|line| format!("1,10:00:00.0,{line}")).collect();
    std::fs::write(&file, format!("{header}\n{}\n", lines.join("\n"))).expect("written");
    let ended =
        millpond(&["mem", "replay", file.to_str().expect("UTF-8"), "--device", "sim", "--allocator", "cuda_async"]);
    assert_eq!(ended.code, 1, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("the simulated device found: "), "{}", ended.stderr);
}

#[test]
fn allocations_that_find_no_memory_are_an_error_after_the_report() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("rmm.csv");
    let text = "Thread,Time,Action,Pointer,Size,Stream\n\
                1,10:00:00.000001,allocate,0x7f0000000000,4096,0x1\n\
                1,10:00:00.000002,allocate,0x7f0000002000,900000000000,0x1\n\
                1,10:00:00.000003,free,0x7f0000000000,4096,0x1\n";
    std::fs::write(&file, text).expect("written");
    for more in [&[][..], &["--json"], &["-q"]] {
        let ended = millpond(&[&["mem", "replay", file.to_str().expect("UTF-8"), "--device", "sim"], more].concat());
        assert_eq!(ended.code, 1, "{more:?}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stderr.starts_with("error: 1 allocations found no memory"), "{}", ended.stderr);
        if more == ["--json"] {
            assert_eq!(json(&ended.stdout)["replays"][0]["failures"], 1, "{}", ended.stdout);
        } else {
            assert!(ended.stdout.contains("never freed") || ended.stdout.contains("failures"), "{}", ended.stdout);
        }
    }
}

#[test]
fn what_cannot_be_replayed_says_why() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("bad.csv");
    let path = file.to_str().expect("UTF-8");
    refused(&["mem", "replay", "nowhere.csv", "--device", "sim"], 4, &["cannot read 'nowhere.csv'"]);
    std::fs::write(&file, "").expect("written");
    refused(&["mem", "replay", path, "--device", "sim"], 4, &["bad.csv", "the log is empty"]);
    std::fs::write(&file, "Action,Pointer,Size\nallocate,0x1,12 bytes\n").expect("written");
    let says = "line 2, column Size: '12 bytes' is not a number of bytes; correct the line or delete it";
    refused(&["mem", "replay", path, "--device", "sim"], 4, &["bad.csv", says]);
    std::fs::write(&file, "Action,Pointer,Size\nallocate,0x1,12\n").expect("written");
    refused(&["mem", "replay", path, "--device", "cpu"], 2, &["the CPU has no device memory"]);
    refused(&["mem", "replay", path, "--device", "gpu"], 2, &["--device cannot be 'gpu'"]);
    refused(&["mem", "replay", path, "--device", "sim", "--allocator", "pol"], 2, &["--allocator cannot be 'pol'"]);
    refused(&["mem", "replay", path, "--memory-log", "x.csv"], 2, &["mem replay does not use --memory-log"]);
    refused(&["mem", "replay"], 2, &["<LOG>"]);
    refused(&["mem"], 2, &[]);
}

#[test]
fn without_a_gpu_the_way_out_is_the_simulated_device() {
    if millpond(&["info", "--device", "cuda"]).stdout.contains("no NVIDIA driver found") {
        let way_out = "--device sim gives counts without a GPU";
        refused(&["mem", "bench"], 3, &["there is no device to use: no NVIDIA driver found", way_out]);
        refused(&["mem", "bench", "--device", "cuda:7"], 3, &[way_out]);
    }
}

#[test]
fn strategies_are_compared_by_counts_on_the_simulated_device() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("figures.json");
    let path = file.to_str().expect("UTF-8");
    let args =
        ["mem", "bench", "--device", "sim", "--allocator", "cuda,caching,cuda_async", "--pattern", "loop,query,events"];
    let ended = ran(&[&args[..], &["--json", path]].concat());
    assert!(ended.stdout.contains("simulated device · 8 GiB · CUDA 12.2"), "{}", ended.stdout);
    assert!(ended.stdout.contains("counts alone"), "{}", ended.stdout);
    assert!(ended.stdout.contains("mem bench --device sim"), "the command: {}", ended.stdout);
    for word in ["p99", " ns", " µs", " ms"] {
        assert!(!ended.stdout.contains(word), "no time: {}", ended.stdout);
    }
    let figures = json(&std::fs::read_to_string(&file).expect("the file"));
    assert_eq!(figures["schema"], "millpond-mem-bench/1");
    assert_eq!((&figures["method"]["timed"], &figures["method"]["seed"]), (&json("false"), &json("1")));
    let cells = figures["cells"].as_array().expect("cells");
    // Two sizes of the loop and one query, with three strategies.
    assert_eq!(cells.len(), 9);
    for cell in cells {
        assert_eq!((&cell["problem"], &cell["step"], &cell["failures"]), (&json("null"), &json("null"), &json("0")));
        assert_eq!(cell["allocations"], cell["frees"]);
        assert!(cell["against_cuda"].as_f64().expect("a multiple") > 0.0, "{cell}");
    }
    assert!(figures["events"].as_array().expect("events").len() > 4);

    let again = ran(&[&args[..], &["--json", "-"]].concat());
    assert_eq!(json(&again.stdout)["cells"], figures["cells"], "the same seed, the same counts");
}

#[test]
fn what_cannot_be_compared_says_why() {
    refused(
        &["mem", "bench", "--device", "sim", "--pattern", "lop"],
        2,
        &["--pattern cannot be 'lop': it takes sizes, "],
    );
    refused(
        &["mem", "bench", "--device", "sim", "--allocator", "cuda,cachng"],
        2,
        &["--allocator cannot be 'cachng': it takes cuda, ", "did you mean caching?"],
    );
    refused(&["mem", "bench", "--device", "sim", "--rounds", "0"], 2, &["--rounds"]);
    refused(
        &["mem", "bench", "--device", "sim", "--pattern", "loop", "--json", "no/such/folder.json"],
        4,
        &["cannot write 'no/such/folder.json'"],
    );
}

#[test]
fn strategies_are_chosen_by_flag_variable_and_option() {
    let footer = |environment: &[(&str, &str)], args: &[&str]| {
        let ended = millpond_in(environment, "", &[&["--device", "sim", "-c", SALES], args].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended
    };
    let plain = footer(&[], &[]);
    assert!(!plain.stderr.contains("memory from"), "the default is not worth a word: {}", plain.stderr);
    let flag = footer(&[], &["--allocator", "caching"]);
    assert!(flag.stderr.contains("memory from caching"), "{}", flag.stderr);
    assert_eq!(flag.stdout, plain.stdout);
    let variable = footer(&[("MILLPOND_MEMORY_RESOURCE", "binning")], &[]);
    assert!(variable.stderr.contains("memory from binning"), "{}", variable.stderr);
    let option = footer(&[], &["--set", "millpond.memory_resource=cuda"]);
    assert!(option.stderr.contains("memory from cuda"), "{}", option.stderr);

    let info = ran(&["info", "--device", "sim", "--allocator", "caching"]);
    assert!(info.stdout.contains("8.0 GiB, of which the pool may hold 6.0 GiB from caching"), "{}", info.stdout);
    let info = json(&ran(&["info", "--device", "sim", "--json"]).stdout);
    assert_eq!(info["devices"][0]["memory_resource"], "cuda_async");
}

#[test]
fn a_strategy_that_is_wrong_or_too_late_says_so() {
    let nearest =
        ["it takes cuda, cuda_async_default, cuda_async, caching, arena or binning; did you mean cuda_async?"];
    refused(&["--allocator", "cuda_asink", "-c", "SELECT 1"], 2, &["--allocator cannot be 'cuda_asink'", nearest[0]]);
    let ended = millpond_in(&[("MILLPOND_MEMORY_RESOURCE", "cuda_asink")], "", &["-c", "SELECT 1"]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("MILLPOND_MEMORY_RESOURCE cannot be 'cuda_asink'"), "{}", ended.stderr);
    refused(
        &["--device", "sim", "-c", "SET millpond.memory_resource = 'arena'"],
        2,
        &["cannot become 'arena' while the device is open", "start a session with --allocator arena"],
    );
    refused(
        &["--device", "sim", "--memory-log", "no/such/folder/log.csv", "-c", "SELECT 1"],
        4,
        &["cannot write 'no/such/folder/log.csv', which millpond.memory_log names"],
    );
}
