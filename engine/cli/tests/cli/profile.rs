//! Profiles of queries: `run --json`, `--trace`, EXPLAIN ANALYZE.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::millpond;

/// A field in microseconds, converted to nanoseconds.
fn ns(event: &Value, field: &str) -> i64 {
    (event[field].as_f64().expect("a number") * 1e3).round() as i64
}

/// The events of a trace, and the names of its tracks by (process, thread).
fn read(path: &Path) -> (Vec<Value>, BTreeMap<(u64, u64), String>) {
    let text = std::fs::read_to_string(path).expect("a trace");
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events").clone();
    let mut tracks = BTreeMap::new();
    for event in events.iter().filter(|event| event["name"] == "thread_name") {
        let key = (event["pid"].as_u64().expect("a process"), event["tid"].as_u64().expect("a thread"));
        tracks.insert(key, event["args"]["name"].as_str().expect("a name").to_string());
    }
    (events.into_iter().filter(|event| event["ph"] == "X").collect(), tracks)
}

/// Start, end, name.
type Interval = (i64, i64, String);

/// On each track, overlapping events are nested.
fn assert_nested(events: &[Value], tracks: &BTreeMap<(u64, u64), String>) {
    let mut by_track: BTreeMap<(u64, u64), Vec<Interval>> = BTreeMap::new();
    for event in events {
        let key = (event["pid"].as_u64().expect("a process"), event["tid"].as_u64().expect("a thread"));
        let from = ns(event, "ts");
        by_track.entry(key).or_default().push((from, from + ns(event, "dur"), event["name"].to_string()));
    }
    for (key, mut events) in by_track {
        let track = &tracks[&key];
        events.sort_by_key(|(from, to, _)| (*from, -*to));
        let mut open: Vec<Interval> = Vec::new();
        for event in events {
            while open.last().is_some_and(|(_, to, _)| *to <= event.0) {
                open.pop();
            }
            if let Some(outer) = open.last() {
                assert!(event.1 <= outer.1, "{track}: {event:?} leaves {outer:?}");
            }
            open.push(event);
        }
    }
}

#[test]
fn a_suite_tells_where_the_time_of_its_queries_goes() {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().to_str().expect("UTF-8");
    let made = millpond(&["gen", "tpch", "--scale", "0.001", "--out", out]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let trace = folder.path().join("trace.json");
    // Feeders run only if no columns are stored on the device.
    let run = ["run", "tpch", "--data", out, "--device", "sim", "--query", "3,6", "--set", "millpond.cache=off"];
    let run = [&run[..], &["--json", "--trace"]].concat();
    let ran = millpond(&[&run[..], &[trace.to_str().expect("UTF-8")]].concat());
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);

    let rows: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rows.len(), 2);
    let mut launches = 0;
    for row in &rows {
        let profile = &row["profile"];
        let sum = |steps: &Value| steps.as_object().expect("steps").values().filter_map(Value::as_f64).sum::<f64>();
        let wall = profile["wall_ms"].as_f64().expect("a number");
        assert!((sum(&profile["steps_ms"]) - wall).abs() <= wall * 0.001, "{profile}");
        let feeding = &profile["feeding"];
        let seconds = feeding["seconds"].as_f64().expect("a number");
        assert!((sum(&feeding["steps_seconds"]) - seconds).abs() <= seconds * 0.001, "{profile}");
        let of = |list: &str| {
            let list = profile[list].as_array().expect("a list");
            list.iter().map(|entry| entry["launches"].as_u64().expect("a count")).sum::<u64>()
        };
        assert_eq!((Some(of("segments")), Some(of("kernels"))), (row["launches"].as_u64(), row["launches"].as_u64()));
        assert!(profile["kernels"][0]["registers"].as_u64().expect("a count") > 0, "{profile}");
        let per_row = &profile["segments"][0]["per_row"];
        assert!(per_row["sectors_read"].as_f64().expect("a number") > 0.0, "{profile}");
        assert!(per_row["warp_instructions"].as_f64().expect("a number") > 0.0, "{profile}");
        launches += of("segments");
    }

    let (events, tracks) = read(&trace);
    assert_nested(&events, &tracks);
    for track in ["queries", "runs", "feeders", "readers", "stream ", "launches", "copies", "allocations", "waits"] {
        assert!(tracks.values().any(|name| name.starts_with(track)), "{track} is not among {tracks:?}");
    }
    let count = |pid: u64, category: &str| {
        let is = |event: &&Value| event["pid"] == pid && event["cat"] == category;
        events.iter().filter(is).count() as u64
    };
    assert_eq!((count(2, "launch"), count(3, "launches"), count(1, "query")), (launches, launches, 2));
}

#[test]
fn statements_are_traced_and_a_wrong_place_is_told_before_they_run() {
    let folder = tempfile::tempdir().expect("folder");
    let trace = folder.path().join("trace.json");
    let file = trace.to_str().expect("UTF-8");
    let ran = millpond(&["--device", "sim", "-q", "--trace", file, "-c", "SELECT 1; SELECT 2"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let (events, _) = read(&trace);
    let queries: Vec<&Value> = events.iter().filter(|event| event["cat"] == "query").collect();
    assert_eq!(queries.len(), 2, "{queries:?}");

    let missing = folder.path().join("none/trace.json");
    let ran = millpond(&["--device", "cpu", "--trace", missing.to_str().expect("UTF-8"), "-c", "SELECT 1"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (4, ""), "{}", ran.stderr);
    let says = "error: --trace: cannot write '";
    assert!(ran.stderr.starts_with(says) && ran.stderr.contains("no such file"), "{}", ran.stderr);
    let ran = millpond(&["info", "--trace", file]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
}

/// Runs statements with a trace in `file`.
fn traced(file: &Path, flags: &[&str], sql: &str) -> crate::Ended {
    let file = file.to_str().expect("UTF-8");
    millpond(&[&["-q", "--device", "cpu", "--trace", file], flags, &["-c", sql]].concat())
}

#[test]
fn a_trace_replaces_no_file_of_another_kind() {
    let folder = tempfile::tempdir().expect("folder");
    let data = folder.path().join("t.csv");
    let path = data.to_str().expect("UTF-8");
    for sql in [format!("SELECT * FROM '{path}'"), "SELECT 1".to_string(), "this is no statement".to_string()] {
        std::fs::write(&data, "i,v\n1,2\n").expect("a file");
        let ended = traced(&data, &[], &sql);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{sql}: {}", ended.stderr);
        assert!(ended.stderr.contains(&format!("--trace cannot be '{path}'")), "{}", ended.stderr);
        assert!(ended.stderr.contains("a new or empty file, or the trace of an earlier run"), "{}", ended.stderr);
        assert_eq!(std::fs::read_to_string(&data).expect("it is there"), "i,v\n1,2\n");
    }
    let ended = millpond(&["run", "tpch", "--data", "nowhere", "--device", "cpu", "--trace", path]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert_eq!(std::fs::read_to_string(&data).expect("it is there"), "i,v\n1,2\n");

    // An earlier trace is replaced only when the new one is complete; an empty file is replaced; a device is written
    // directly.
    let trace = folder.path().join("trace.json");
    std::fs::write(&trace, "").expect("a file");
    assert_eq!(traced(&trace, &[], "SELECT 1").code, 0);
    let (first, _) = read(&trace);
    assert_eq!(traced(&trace, &[], "SELECT 1; SELECT 2; SELECT 3").code, 0);
    let (second, _) = read(&trace);
    let queries = |events: &[Value]| events.iter().filter(|event| event["cat"] == "query").count();
    assert_eq!((queries(&first), queries(&second)), (1, 3));
    assert_eq!(traced(&trace, &["--set", "datafusion.no.such=1"], "SELECT 1").code, 2);
    assert_eq!(queries(&read(&trace).0), 3, "nothing ran, and nothing is lost");
    assert_eq!(traced(Path::new("/dev/null"), &[], "SELECT 1").code, 0);
    let names: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").flatten().map(|e| e.file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn a_trace_takes_the_place_of_nothing_that_its_statements_read_or_write() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name);
    let text = |name: &str| at(name).to_str().expect("UTF-8").to_string();
    let trace = at("trace.json");
    assert_eq!(traced(&trace, &[], "SELECT 1").code, 0);
    let before = std::fs::read_to_string(&trace).expect("a trace");
    let as_lines = |name: &str| {
        let options = "OPTIONS ('format.delimiter' '|', 'format.quote' '~', 'format.has_header' 'false')";
        format!("CREATE EXTERNAL TABLE t (line VARCHAR) STORED AS CSV LOCATION '{}' {options}", text(name))
    };
    for sql in [
        format!("{};\nSELECT count(*) FROM t", as_lines("trace.json")),
        format!(
            "{};\nCREATE VIEW v AS SELECT line FROM t; SELECT 1 WHERE '' IN (SELECT line FROM v)",
            as_lines("trace.json")
        ),
        format!("COPY (SELECT 1) TO '{}'", text("trace.json")),
    ] {
        let ended = traced(&trace, &[], &sql);
        assert_eq!(ended.code, 2, "{sql}: {}", ended.stderr);
        assert!(ended.stderr.contains("choose another file for --trace"), "{sql}: {}", ended.stderr);
        assert!(ended.stderr.contains("the trace cannot go to '"), "{sql}: {}", ended.stderr);
        let now = std::fs::read_to_string(&trace).expect("a trace");
        assert!(now.starts_with(before.lines().next().expect("a line")), "{sql}: {now}");
    }
    let new = format!("COPY (SELECT 1 AS n) TO '{}'", text("new.json"));
    assert_eq!(traced(&at("new.json"), &[], &new).code, 2);

    // One file for two outputs.
    for (first, second, device) in
        [("-o", "--trace", "cpu"), ("-o", "--memory-log", "sim"), ("--trace", "--memory-log", "sim")]
    {
        std::os::unix::fs::symlink("both.json", at("link.json")).expect("a link");
        let (one, other) = (text("both.json"), text("link.json"));
        let args = ["-q", "--device", device, "--format", "csv", first, &one, second, &other, "-c", "SELECT 1 AS n"];
        let ended = millpond(&args);
        assert_eq!(ended.code, 2, "{first} {second}: {}", ended.stderr);
        assert!(ended.stderr.contains(&format!("{first} and {second} cannot both be")), "{}", ended.stderr);
        std::fs::remove_file(at("link.json")).expect("removed");
        let _ = std::fs::remove_file(at("both.json"));
    }
    assert_eq!(traced(Path::new("/dev/null"), &["--format", "csv", "-o", "/dev/null"], "SELECT 1").code, 0);
}
