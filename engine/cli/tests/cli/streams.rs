//! Tables from pipes: standard input and other descriptors are read, once; named pipes are refused.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::{Ended, clean, command, millpond, millpond_reading, root};

const CSV: &str = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/dev/stdin' OPTIONS ('format.has_header' 'true')";

fn succeeds(ended: &Ended, expected: &str) {
    assert_eq!((ended.code, ended.stdout.as_str()), (0, expected), "{}", ended.stderr);
}

/// Types are inferred from the same bytes that two scans of a statement, and later statements, read.
#[test]
fn standard_input_is_a_table_for_as_many_scans_as_ask() {
    for device in ["cpu", "sim"] {
        let queries = ["-c", "SELECT sum(a), sum(b) FROM t", "-c", "SELECT count(*) FROM t x JOIN t y ON x.a < y.b"];
        let arguments = [&["-q", "--device", device, "--format", "csv", "-c", CSV], queries.as_slice()].concat();
        succeeds(&millpond_reading("a,b\n1,2\n3,4\n", &arguments), "sum(a),sum(b)\n4,6\ncount(*)\n3\n");
    }
}

#[test]
fn every_format_comes_through_standard_input() {
    let folder = tempfile::tempdir().expect("a folder");
    for (format, ending) in [("PARQUET", "parquet"), ("JSON", "json"), ("ARROW", "arrow"), ("CSV", "csv")] {
        let file = folder.path().join(format!("x.{ending}"));
        let made = format!("COPY (SELECT value AS a FROM generate_series(1, 100)) TO '{}'", file.display());
        succeeds(&millpond(&["-q", "--device", "cpu", "-c", &made]), "");
        let table = format!("CREATE EXTERNAL TABLE t (a BIGINT) STORED AS {format} LOCATION '/dev/stdin'");
        let query = "SELECT count(*) AS n, sum(a) AS s FROM t WHERE a > 90";
        let arguments = ["-q", "--device", "sim", "--format", "csv", "-c", &table, "-c", query, "-c", query];
        let mut child = command(&arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let bytes = fs::read(&file).expect("the file");
        child.stdin.take().expect("piped").write_all(&bytes).expect("input is read");
        let output = child.wait_with_output().expect("the binary ends");
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(stdout, "n,s\n10,955\nn,s\n10,955\n", "{format}: {stderr}");
    }
}

/// After the script was read from standard input, no data is left for a table.
#[test]
fn standard_input_is_the_script_or_a_table() {
    let script = "CREATE EXTERNAL TABLE t (a BIGINT) STORED AS CSV LOCATION '/dev/stdin'; SELECT count(*) FROM t;";
    let ended = millpond_reading(script, &["-q", "--device", "sim"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (4, ""), "{}", ended.stderr);
    let why = "standard input was read as the script, and can be read once: give the script in another way";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
}

/// A pipe on descriptor 3, as with a shell's process substitution.
#[test]
fn other_descriptors_are_read_too() {
    let table = CSV.replace("/dev/stdin", "/dev/fd/3");
    let script = format!(
        "printf 'a,b\\n1,2\\n3,4\\n' | {{ exec {} -q --device sim --format csv -c \"{table}\" -c 'SELECT sum(a) AS s FROM t' \
         -c 'SELECT sum(b) AS s FROM t' 3<&0 </dev/null; }}",
        env!("CARGO_BIN_EXE_millpond")
    );
    let output = clean("sh").args(["-c", &script]).current_dir(root()).output().expect("sh runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "s\n4\ns\n6\n", "{}", String::from_utf8_lossy(&output.stderr));
}

/// The error names the pipe and a solution; the process does not wait for a writer.
#[test]
fn a_named_pipe_is_refused_wherever_it_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    for ending in ["parquet", "csv", "json", "arrow"] {
        let pipe = folder.path().join(format!("p.{ending}"));
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
        let name = pipe.display().to_string();
        let (query, table) = (format!("SELECT * FROM '{name}'"), format!("t={name}"));
        for arguments in [vec!["-c", query.as_str()], vec!["--table", table.as_str(), "-c", "SELECT * FROM t"]] {
            let ended = millpond(&[&["-q", "--device", "sim"], arguments.as_slice()].concat());
            assert_eq!((ended.code, ended.stdout.as_str()), (4, ""), "{}", ended.stderr);
            let expected = format!("'{name}' is a pipe, and a table's files are read more than once");
            assert!(ended.stderr.contains(&expected) && ended.stderr.contains("/dev/stdin"), "{}", ended.stderr);
        }
    }
    let ended = millpond_reading("a\n1\n", &["-q", "--device", "sim", "-c", "SELECT * FROM '/dev/stdin'"]);
    assert_ne!(ended.code, 0);
    assert!(ended.stderr.contains("'/dev/stdin' has no ending that says its format"), "{}", ended.stderr);
}
