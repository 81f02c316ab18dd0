//! Signals: running work ends, no unfinished files remain, and the exit code follows shell conventions.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::{clean, command, root};

/// A signal's name, and the exit code of a process that it ends.
const SIGNALS: [(&str, i32); 3] = [("INT", 130), ("TERM", 143), ("HUP", 129)];

/// An endless query.
const ENDLESS: &str = "SELECT value, value % 7 AS seventh FROM generate_series(1, 1000000000000)";

fn send(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success(), "{signal}");
}

/// All files in a folder and its subfolders, by relative path.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(folder).expect("below it").to_str().expect("UTF-8").to_string());
            }
        }
    }
    found.sort();
    found
}

/// True for the name of an unfinished file.
fn is_unfinished(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.starts_with('.') || name.contains('#')
}

/// Waits until a file in the folder has been created.
fn wait_for_a_file(child: &mut Child, folder: &Path) {
    while !files(folder).iter().any(|file| is_unfinished(file)) {
        assert_eq!(child.try_wait().expect("state"), None, "it ended by itself: {:?}", files(folder));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn start(args: &[&str]) -> Child {
    let mut command = command(args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

fn end(child: Child) -> (ExitStatus, String) {
    let output = child.wait_with_output().expect("the binary ends");
    (output.status, String::from_utf8(output.stderr).expect("UTF-8"))
}

/// A command that writes to the folder, and does not end before it is interrupted.
type Writes = fn(&Path) -> Vec<String>;

fn copying(folder: &Path, kind: &str) -> Vec<String> {
    let target = folder.join(format!("copy.{kind}"));
    let copy = format!("COPY ({ENDLESS}) TO '{}'", target.display());
    ["-q", "--device", "cpu", "-c", &copy].map(String::from).to_vec()
}

fn text(path: PathBuf) -> String {
    path.to_str().expect("UTF-8").to_string()
}

const WRITERS: [(&str, Writes); 7] = [
    ("-o", |folder| {
        let file = text(folder.join("answers.csv"));
        ["-q", "--device", "cpu", "-o", &file, "-c", ENDLESS].map(String::from).to_vec()
    }),
    ("gen tpch", |folder| {
        let tables = ["gen", "tpch", "--scale", "10", "--tables", "lineitem", "--out"].map(String::from);
        tables.into_iter().chain([text(folder.into())]).collect()
    }),
    ("gen gpu-bdb", |folder| {
        let tables = ["gen", "gpu-bdb", "--scale", "10", "--tables", "store_sales", "--out"].map(String::from);
        tables.into_iter().chain([text(folder.into())]).collect()
    }),
    ("COPY csv", |folder| copying(folder, "csv")),
    ("COPY json", |folder| copying(folder, "json")),
    ("COPY arrow", |folder| copying(folder, "arrow")),
    ("COPY folder", |folder| {
        let mut args = copying(folder, "folder");
        let copy = args.pop().expect("the statement");
        args.push(copy.replace("copy.folder'", "made/' STORED AS CSV"));
        args
    }),
];

#[test]
fn a_signal_ends_what_writes_a_file_and_leaves_none() {
    for (number, (name, args)) in WRITERS.into_iter().enumerate() {
        // The first writer gets each signal; each of the others gets one of them in turn.
        let signals = if number == 0 { &SIGNALS[..] } else { &SIGNALS[number % 3..][..1] };
        for &(signal, code) in signals {
            let folder = tempfile::tempdir().expect("folder");
            fs::write(folder.path().join("answers.csv"), "old\n").expect("a file");
            let args = args(folder.path());
            let mut child = start(&args.iter().map(String::as_str).collect::<Vec<_>>());
            wait_for_a_file(&mut child, folder.path());
            send(&child, signal);
            let (status, stderr) = end(child);
            assert_eq!(status.code(), Some(code), "{name}, {signal}: {stderr}");
            assert!(!stderr.contains("panicked"), "{name}, {signal}: {stderr}");
            let left = files(folder.path());
            assert!(!left.iter().any(|file| is_unfinished(file)), "{name}, {signal}: {left:?}");
            assert_eq!(fs::read_to_string(folder.path().join("answers.csv")).expect("the old file"), "old\n", "{name}");
        }
    }
}

#[test]
fn a_signal_ends_a_rewrite_and_leaves_no_file() {
    let folder = tempfile::tempdir().expect("folder");
    let from = text(folder.path().join("from"));
    // Enough work for a signal to arrive: distinct texts and a slow codec.
    let rows =
        "SELECT md5(CAST(value AS VARCHAR)) AS a, sha256(CAST(value AS VARCHAR)) AS b FROM generate_series(1, 2000000)";
    let copy = format!("COPY ({rows}) TO '{from}/t.parquet'");
    let (status, stderr) = end(start(&["-q", "--device", "cpu", "-c", &copy]));
    assert!(status.success(), "{stderr}");
    for (signal, code) in SIGNALS {
        let to = folder.path().join(signal);
        fs::create_dir(&to).expect("a folder");
        let mut child = start(&["parquet", "rewrite", &from, &text(to.clone()), "--codec", "zstd"]);
        wait_for_a_file(&mut child, &to);
        send(&child, signal);
        let (status, stderr) = end(child);
        assert_eq!(status.code(), Some(code), "{signal}: {stderr}");
        assert_eq!(files(&to), Vec::<String>::new(), "{signal}: {stderr}");
    }
}

/// The process is stopped while both signals arrive: they are delivered in either order, and the later one counts as
/// the second.
#[test]
fn a_second_signal_ends_the_process_and_leaves_no_file() {
    for (name, args) in WRITERS {
        let folder = tempfile::tempdir().expect("folder");
        let args = args(folder.path());
        let mut child = start(&args.iter().map(String::as_str).collect::<Vec<_>>());
        wait_for_a_file(&mut child, folder.path());
        for signal in ["STOP", "TERM", "INT", "CONT"] {
            send(&child, signal);
        }
        let (status, stderr) = end(child);
        assert!(matches!(status.code(), Some(130 | 143)), "{name}: {status} {stderr}");
        let left = files(folder.path());
        assert!(!left.iter().any(|file| is_unfinished(file)), "{name}: {left:?}");
    }
}

#[test]
fn a_signal_that_is_ignored_from_the_beginning_stays_ignored() {
    for (ignored, sent, code) in [("HUP", ["HUP", "TERM"], 143), ("TERM", ["TERM", "HUP"], 129)] {
        let folder = tempfile::tempdir().expect("folder");
        let file = text(folder.path().join("answers.csv"));
        let mut command = clean("sh");
        // As with nohup.
        let script = format!("trap '' {ignored}; exec \"$@\"");
        command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_millpond"), "-q", "--device", "cpu"]);
        command.args(["-o", &file, "-c", ENDLESS]).current_dir(root());
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.expect("sh starts");
        wait_for_a_file(&mut child, folder.path());
        for signal in sent {
            send(&child, signal);
        }
        let (status, stderr) = end(child);
        assert_eq!((status.code(), status.signal()), (Some(code), None), "{ignored} is ignored: {stderr}");
        assert_eq!(files(folder.path()), Vec::<String>::new());
    }
}

/// True once the process catches SIGTERM, as reported by the system.
fn listens(child: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & (1 << 14) != 0)
}

#[test]
fn a_signal_ends_a_command_that_waits_for_a_pipes_reader() {
    let folder = tempfile::tempdir().expect("folder");
    let pipe = text(folder.path().join("pipe"));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    for (flag, signal, code) in [("-o", "TERM", 143), ("--trace", "HUP", 129), ("--trace", "INT", 130)] {
        let mut child = start(&["--device", "cpu", "--format", "csv", flag, &pipe, "-c", "SELECT 1"]);
        while !listens(&child) {
            assert_eq!(child.try_wait().expect("state"), None, "{flag}: it ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        send(&child, signal);
        let (status, stderr) = end(child);
        assert_eq!(status.code(), Some(code), "{flag}, {signal}: {stderr}");
    }
}
