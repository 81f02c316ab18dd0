//! `soak`.

use crate::millpond;
#[cfg(unix)]
use crate::{command, interrupt};

fn told(stdout: &str) -> serde_json::Value {
    serde_json::from_str(stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

#[test]
fn sessions_share_a_device_and_leave_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().to_str().expect("UTF-8");
    let made = millpond(&["gen", "tpch", "--scale", "0.001", "--out", out]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let ran = millpond(&["soak", "--device", "sim", "--seconds", "8", "--sessions", "3", "--data", out, "--json"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let report = told(&ran.stdout);
    let count = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name}: {report}"));
    assert!(count("equal") > 5 && count("on_device") > 0, "{report}");
    assert_eq!((count("findings"), count("failed"), report["good"].as_bool()), (0, 0, Some(true)), "{report}");
    let last = report["seen"].as_array().and_then(|seen| seen.last()).expect("sightings").clone();
    for name in ["device_bytes_of_queries", "device_bytes_of_columns", "pinned_bytes_lent", "temporary_files"] {
        assert_eq!(last[name].as_u64(), Some(0), "{name}: {last}");
    }
    // The run is too short for a verdict about growth.
    assert_eq!(report["trends"]["descriptors"], "unknown", "{report}");
}

#[test]
fn a_soak_needs_a_device_and_the_tables_of_its_suites() {
    let refused = |args: &[&str], code, says: &str| {
        let ended = millpond(&[&["soak", "--seconds", "1"], args].concat());
        assert_eq!(ended.code, code, "{args:?}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains(says), "{args:?}: {}", ended.stderr);
    };
    refused(&["--device", "cpu"], 3, "there is no device to soak");
    refused(&["--device", "sim", "--suite", "tpch"], 2, "suite tpch needs the folder of its tables: --data DIR");
    refused(&["--device", "sim", "--suite", "tpch", "--data", "data/samples"], 4, "table nation");
    refused(&["--device", "sim", "--data", "data/samples"], 4, "the tables of neither tpch nor gpu-bdb");
    refused(&["--device", "sim", "--table", "t=data/samples/sales.parquet"], 2, "soak does not use --table");
    refused(&["--device", "sim", "--suite", "mine"], 2, "mine");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_soak_with_the_figures_so_far() {
    use std::io::{BufRead, Read};
    use std::process::Stdio;
    let args = ["soak", "--device", "sim", "--seconds", "100000", "--sessions", "2"];
    let mut child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    // The process handles signals once it has printed this line.
    let mut stderr = std::io::BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    stderr.read_line(&mut line).expect("UTF-8");
    assert!(line.starts_with("soaking simulated device with 2 sessions"), "{line}");
    interrupt(&child);
    let (mut stdout, mut rest) = (String::new(), String::new());
    child.stdout.take().expect("piped").read_to_string(&mut stdout).expect("UTF-8");
    stderr.read_to_string(&mut rest).expect("UTF-8");
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "{stdout}{rest}");
    assert!(stdout.contains("good: ") && stdout.contains("sessions opened (--seed 0x1)"), "{stdout}{rest}");
}
