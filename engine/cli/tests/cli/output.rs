//! `-o FILE`: existing data is not lost, and targets other than files are written directly.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::{Ended, command, millpond};

const OLD: &str = "id,name\n1,old\n2,older\n";

/// A folder with one file of an earlier run.
struct Folder {
    folder: TempDir,
    file: PathBuf,
}

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("t.csv");
        fs::write(&file, OLD).expect("file");
        Self { folder, file }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The names in the folder, including hidden files.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("a folder");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    fn is_untouched(&self) -> bool {
        fs::read_to_string(&self.file).expect("the old file") == OLD && self.names() == ["t.csv"]
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Runs `sql` and writes its answers to `file`.
fn into(file: &Path, flags: &[&str], sql: &str) -> Ended {
    millpond(&[&["-q", "--device", "cpu", "-o", text(file)], flags, &["-c", sql]].concat())
}

#[test]
fn an_output_that_a_statement_reads_is_refused() {
    let folder = Folder::new();
    let (t, d) = (text(&folder.file), text(folder.folder.path()));
    let name = format!("{t}'");
    for (flags, sql, line) in [
        (&[][..], format!("SELECT * FROM '{t}'"), 1),
        (&["--keep-going"], format!("SELECT 1;\nSELECT * FROM '{t}'"), 2),
        (&[], format!("SELECT * FROM '{d}/'"), 1),
        (&[], format!("SELECT * FROM '{d}/*.csv'"), 1),
        (&[], format!("SELECT * FROM '{d}/../{}/t.csv'", folder.folder.path().file_name().unwrap().display()), 1),
        (&["--table", &format!("old={t}")], "SELECT id FROM old".to_string(), 1),
        (&["--table", &format!("old={d}")], "SELECT 1 AS n WHERE 1 IN (SELECT id FROM old)".to_string(), 1),
        (
            &[],
            format!("CREATE EXTERNAL TABLE old STORED AS CSV LOCATION '{t}';\n\nSELECT count(*) FROM old LIMIT 0"),
            3,
        ),
        (&[], format!("CREATE VIEW old AS SELECT * FROM '{t}'"), 1),
        (&[], format!("CREATE TABLE old AS SELECT * FROM '{t}'; SELECT * FROM old"), 1),
        (&[], format!("EXPLAIN ANALYZE SELECT * FROM '{t}'"), 1),
        (&[], format!("EXPLAIN SELECT * FROM '{t}'"), 1),
        (&[], format!("DESCRIBE '{t}'"), 1),
        (&["--table", &format!("old={t}")], "DESCRIBE old".to_string(), 1),
        (&["--table", &format!("old={t}")], "SELECT * FROM sessionize('old', 'id', 'id', 5)".to_string(), 1),
        (&[], format!("COPY (SELECT * FROM '{t}') TO '{d}/other.csv'"), 1),
        (&[], format!("COPY (SELECT 1) TO '{t}'"), 1),
        (&["--table", &format!("old={t}")], "INSERT INTO old VALUES (3, 'new')".to_string(), 1),
    ] {
        let ended = into(&folder.file, flags, &sql);
        assert_eq!(ended.code, 2, "{sql}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(&name) && ended.stderr.contains(&format!("line {line}")),
            "{sql}: {}",
            ended.stderr
        );
        assert!(folder.is_untouched(), "{sql}: {:?}", folder.names());
    }
}

#[test]
fn an_output_that_is_read_under_another_name_is_refused() {
    let folder = Folder::new();
    fs::hard_link(&folder.file, folder.path("hard.csv")).expect("link");
    symlink("t.csv", folder.path("soft.csv")).expect("link");
    for (written, read) in [("hard.csv", "t.csv"), ("t.csv", "soft.csv"), ("soft.csv", "hard.csv")] {
        let ended = into(&folder.path(written), &[], &format!("SELECT * FROM '{}'", text(&folder.path(read))));
        assert_eq!(ended.code, 2, "{written}, {read}: {}", ended.stderr);
        assert!(ended.stderr.contains(written), "{}", ended.stderr);
    }
    assert_eq!(fs::read_to_string(&folder.file).expect("text"), OLD);
    assert_eq!(folder.names(), ["hard.csv", "soft.csv", "t.csv"]);
}

#[test]
fn a_file_that_the_script_writes_itself_is_refused_before_it_is_there() {
    let folder = Folder::new();
    let new = folder.path("new.csv");
    let ended = into(&new, &[], &format!("COPY (SELECT 1) TO '{}'", text(&new)));
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(folder.is_untouched());
}

#[test]
fn a_folder_may_be_read_for_a_new_file_in_it() {
    let folder = Folder::new();
    let sql = format!("SELECT count(*) AS n FROM '{}/'", text(folder.folder.path()));
    // Listings have no fixed order, so a temporary file would sometimes be first.
    for _ in 0..20 {
        let ended = into(&folder.path("count.csv"), &[], &sql);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
        assert_eq!(fs::read_to_string(folder.path("count.csv")).expect("text"), "n\n2\n");
        fs::remove_file(folder.path("count.csv")).expect("removed");
        assert!(folder.is_untouched(), "{:?}", folder.names());
    }
}

#[test]
fn a_failed_statement_leaves_the_old_file_and_no_other() {
    let folder = Folder::new();
    for sql in [
        "SELECT nothing",
        "SELECT 1; SELECT nothing",
        // Some rows are already written when the division fails.
        "SELECT 10 / (500000 - value) AS n FROM generate_series(1, 1000000)",
        "SELECT 'never closed",
    ] {
        let ended = into(&folder.file, &[], sql);
        assert_eq!(ended.code, 1, "{sql}: {}", ended.stderr);
        assert!(folder.is_untouched(), "{sql}: {:?}", folder.names());
        assert_eq!(into(&folder.path("new.csv"), &[], sql).code, 1, "{sql}");
        assert!(folder.is_untouched(), "{sql}: {:?}", folder.names());
    }
}

/// A file that a reader of its format could not read again is not written.
#[test]
fn a_file_holds_as_many_answers_as_its_format_does() {
    let two = "SELECT 1 AS n; SELECT 2 AS m";
    for name in ["t.csv", "t.tsv", "t.json", "t.parquet", "t.arrow"] {
        let folder = Folder::new();
        let ended = into(&folder.path(name), &[], two);
        assert_eq!(ended.code, 2, "{name}");
        assert!(
            ended.stderr.contains("has an answer, and a file of ") && ended.stderr.contains(" holds one"),
            "{}",
            ended.stderr
        );
        assert!(folder.is_untouched(), "{:?}", folder.names());
        // A definition has no answer.
        assert_eq!(into(&folder.path(name), &[], "CREATE TABLE t AS SELECT 1 AS n; SELECT n FROM t").code, 0, "{name}");
    }
    let folder = Folder::new();
    for (name, expected) in
        [("t.ndjson", "{\"n\":1}\n{\"m\":2}\n"), ("t.md", "| n |\n| ---: |\n| 1 |\n\n| m |\n| ---: |\n| 2 |\n")]
    {
        let ended = into(&folder.path(name), &[], two);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{name}");
        assert_eq!(fs::read_to_string(folder.path(name)).expect("text"), expected);
    }
    // Binary answers are refused in a pipe as well, because a reader would find only the last one.
    let ended = millpond(&["-q", "--device", "cpu", "--format", "csv", "-c", two]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "n\n1\nm\n2\n"));
    let ended = command(&["-q", "--device", "cpu", "--format", "arrow", "-c", two]).output().expect("an end");
    assert_eq!(ended.status.code(), Some(2));
}

#[test]
fn keep_going_keeps_what_succeeded_and_nothing_of_what_failed() {
    let folder = Folder::new();
    let halfway = "SELECT 10 / (500000 - value) AS n FROM generate_series(1, 1000000)";
    let lines = folder.path("t.ndjson");
    let ended = into(&lines, &["--keep-going"], &format!("SELECT 1 AS a; {halfway}; SELECT 2 AS b"));
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert_eq!(fs::read_to_string(&lines).expect("text"), "{\"a\":1}\n{\"b\":2}\n");
    fs::remove_file(&lines).expect("removed");

    fs::write(&folder.file, OLD).expect("file");
    assert_eq!(into(&folder.file, &["--keep-going"], &format!("{halfway}; SELECT nothing")).code, 1);
    assert!(folder.is_untouched(), "{:?}", folder.names());
}

#[test]
fn links_lead_to_the_file_and_its_mode_is_kept() {
    let folder = Folder::new();
    fs::set_permissions(&folder.file, Permissions::from_mode(0o640)).expect("mode");
    symlink("t.csv", folder.path("link.csv")).expect("link");
    assert_eq!(into(&folder.path("link.csv"), &[], "SELECT 1 AS n").code, 0);
    assert_eq!(fs::read_to_string(&folder.file).expect("text"), "n\n1\n");
    assert_eq!(fs::metadata(&folder.file).expect("file").mode() & 0o7777, 0o640);
    assert!(folder.path("link.csv").is_symlink());

    // A dangling link, and the mode of new files.
    symlink("new.csv", folder.path("dangling.csv")).expect("link");
    assert_eq!(into(&folder.path("dangling.csv"), &[], "SELECT 2 AS n").code, 0);
    assert_eq!(fs::read_to_string(folder.path("new.csv")).expect("text"), "n\n2\n");
    fs::write(folder.path("any"), "").expect("file");
    let mode = |name: &str| fs::metadata(folder.path(name)).expect("file").mode();
    assert_eq!(mode("new.csv"), mode("any"));
    assert_eq!(folder.names(), ["any", "dangling.csv", "link.csv", "new.csv", "t.csv"]);
}

#[test]
fn what_cannot_be_written_is_an_error_that_says_why() {
    let folder = Folder::new();
    let d = text(folder.folder.path());
    // A writable file in a folder where no file can be created, even by root: in /proc.
    for (file, says) in [
        (format!("{d}/"), "folder"),
        (d.to_string(), "folder"),
        (format!("{d}/missing/t.csv"), "no such file or directory"),
        ("/proc/self/comm".to_string(), "redirect standard output"),
    ] {
        let ended = into(Path::new(&file), &["--format", "csv"], "SELECT 1");
        assert_eq!(ended.code, 4, "{file}: {}", ended.stderr);
        assert!(ended.stderr.contains(&file) && ended.stderr.contains(says), "{file}: {}", ended.stderr);
    }
    assert!(folder.is_untouched());

    fs::set_permissions(&folder.file, Permissions::from_mode(0o444)).expect("mode");
    if File::options().write(true).open(&folder.file).is_err() {
        let ended = into(&folder.file, &[], "SELECT 1");
        assert!(ended.code == 4 && ended.stderr.contains("permission denied"), "{}", ended.stderr);
    }
    assert!(folder.is_untouched());
}

fn start(args: &[&str], stdout: Stdio) -> Child {
    let mut command = crate::command(&["-q", "--device", "cpu"]);
    command.args(args).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

fn end(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().expect("the binary ends");
    (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
}

#[test]
fn devices_pipes_and_descriptors_are_written_as_they_are() {
    assert_eq!(into(Path::new("/dev/null"), &["--format", "csv"], "SELECT 1").code, 0);
    assert!(!Path::new("/dev/null").is_file());

    // Output to a descriptor of standard output, under any name, is appended to its file.
    let folder = Folder::new();
    symlink("/dev/stdout", folder.path("out")).expect("link");
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", text(&folder.path("out"))] {
        fs::write(&folder.file, OLD).expect("file");
        let stdout = File::options().append(true).open(&folder.file).expect("file");
        let ended = end(start(&["--format", "csv", "-o", name, "-c", "SELECT 3 AS id"], stdout.into()));
        assert_eq!(ended, (Some(0), String::new()), "{name}");
        assert_eq!(fs::read_to_string(&folder.file).expect("text"), format!("{OLD}id\n3\n"), "{name}");
    }
    assert_eq!(folder.names(), ["out", "t.csv"]);

    let pipe = folder.path("pipe.csv");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let child = start(&["-o", text(&pipe), "-c", "SELECT 4 AS id"], Stdio::null());
    let mut read = String::new();
    File::open(&pipe).expect("a writer").read_to_string(&mut read).expect("text");
    assert_eq!((end(child), read.as_str()), ((Some(0), String::new()), "id\n4\n"));
    assert_eq!(folder.names(), ["out", "pipe.csv", "t.csv"]);
}

#[test]
fn a_full_device_says_so() {
    let full = || File::options().write(true).open("/dev/full").expect("a device");
    for format in ["csv", "json", "ndjson", "table"] {
        let ended = end(start(&["--format", format, "-c", "SELECT 1"], full().into()));
        let says = "error: cannot write to standard output: no space left on device\n";
        assert_eq!(ended, (Some(4), says.to_string()), "{format}");
        let ended = end(start(&["--format", format, "-o", "/dev/full", "-c", "SELECT 1"], Stdio::null()));
        let says = "error: cannot write to '/dev/full': no space left on device\n";
        assert_eq!(ended, (Some(4), says.to_string()), "{format}");
    }
    let info = |stdout: Stdio| {
        let info = crate::command(&["info"]).stdout(stdout).stderr(Stdio::piped()).spawn();
        end(info.expect("the binary starts"))
    };
    let (code, stderr) = info(full().into());
    assert!(code == Some(4) && stderr.contains("standard output: no space left on device"), "{code:?} {stderr}");
    // Standard error is closed, and the answer is still correct.
    let mut command = crate::command(&["--device", "cpu", "-c", "SELECT 1 AS n"]);
    let answered = command.stderr(full()).output().expect("runs");
    assert_eq!((answered.status.code(), answered.stdout.as_slice()), (Some(0), &b"n\n1\n"[..]));
}

/// A file size limit simulates a full disk.
#[test]
fn a_full_disk_loses_nothing_and_is_no_bug() {
    let folder = Folder::new();
    let limited = |args: &[&str]| {
        let mut command = crate::clean("sh");
        command.args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_millpond")]);
        let output = command.args(["-q", "--device", "cpu"]).args(args).output().expect("sh runs");
        (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
    };
    let rows = "SELECT value FROM generate_series(1, 100000)";
    let (code, stderr) = limited(&["-o", text(&folder.file), "-c", rows]);
    assert!(code == Some(4) && stderr.contains("t.csv") && stderr.contains("too large"), "{code:?} {stderr}");
    assert!(folder.is_untouched(), "{:?}", folder.names());

    for kind in ["csv", "parquet", "json", "arrow"] {
        let copy = format!("COPY ({rows}) TO '{}'", text(&folder.path(&format!("copy.{kind}"))));
        let (code, stderr) = limited(&["-c", &copy]);
        // DataFusion does not report the reason for some formats.
        let says = ["too large", "full disk"].iter().any(|words| stderr.to_lowercase().contains(words));
        assert!(code == Some(4) && says && stderr.contains(&format!("copy.{kind}'")), "{kind}: {code:?} {stderr}");
        assert!(!stderr.contains("bug"), "{kind}: {stderr}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    for format in ["csv", "json", "ndjson", "table"] {
        let sql = "SELECT value FROM generate_series(1, 1000000000000)";
        let mut child = start(&["--format", format, "-c", sql], Stdio::piped());
        let mut read = [0; 5000];
        child.stdout.take().expect("piped").read_exact(&mut read).expect("rows come while the query runs");
        assert_eq!(end(child), (Some(0), String::new()), "{format}");
    }
}

#[test]
fn an_interrupt_leaves_the_old_file_and_no_other() {
    let folder = Folder::new();
    let sql = "SELECT 1 AS n; SELECT count(*) FROM generate_series(1, 1000000000000)";
    let mut child = start(&["--format", "ndjson", "-o", text(&folder.file), "-c", sql], Stdio::null());
    // The signal handler is installed before the output is opened.
    while folder.names().len() == 1 {
        assert_eq!(child.try_wait().expect("state"), None, "the query ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    crate::interrupt(&child);
    assert_eq!(end(child), (Some(130), "error: interrupted\n".to_string()));
    assert!(folder.is_untouched(), "{:?}", folder.names());
}

#[test]
fn rows_before_an_error_are_printed_and_json_stays_open() {
    let sql = "SELECT 10 / (500000 - value) AS n FROM generate_series(1, 1000000)";
    for (format, begins) in
        [("json", "[{\"n\":0},"), ("ndjson", "{\"n\":0}\n"), ("csv", "n\n0\n"), ("table", "+--------+\n|      n |")]
    {
        let ended = millpond(&["-q", "--device", "cpu", "--format", format, "-c", sql]);
        assert!(ended.code == 1 && ended.stderr.contains("Divide by zero"), "{format}: {}", ended.stderr);
        assert!(ended.stdout.starts_with(begins), "{format}: {}", &ended.stdout[..20]);
        assert!(!ended.stdout.ends_with("]\n") && !ended.stdout.ends_with("+\n"), "{format} is not whole");
    }
}

/// Peak memory of the process in bytes, as reported by the system.
fn peak_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("a running process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
}

#[test]
fn memory_does_not_grow_with_the_answer() {
    for (format, end_of_row) in [("table", b'\n'), ("json", b'}'), ("csv", b'\n')] {
        let peak = |rows: u64| {
            let sql = format!(
                "SELECT value % 10 AS a, value % 7 AS b FROM generate_series(1, {rows}); SELECT 'the end' AS mark; \
                 SELECT count(*) FROM generate_series(1, 1000000000000)"
            );
            let mut child = start(&["--format", format, "-c", &sql], Stdio::piped());
            let mut answer = BufReader::new(child.stdout.take().expect("piped"));
            let mut row = Vec::new();
            while !row.windows(7).any(|bytes| bytes == b"the end") {
                row.clear();
                assert!(answer.read_until(end_of_row, &mut row).expect("text") > 0, "{format}: the answer ended early");
            }
            let peak = peak_bytes(child.id());
            child.kill().expect("killed");
            child.wait().expect("ended");
            peak
        };
        let (few, many) = (peak(1_000_000), peak(10_000_000));
        assert!(many < few + (64 << 20), "{format}: {few} bytes, then {many}");
    }
}

/// DataFusion's row count is not a row of an answer.
#[test]
fn statements_that_write_say_how_many_rows_on_standard_error() {
    let folder = Folder::new();
    let target = folder.path("t.csv");
    let table = folder.path("made/");
    let script = format!(
        "COPY (SELECT value AS a FROM generate_series(1, 10)) TO '{}';
         CREATE TABLE m AS SELECT 1 AS a; INSERT INTO m VALUES (2), (3); UPDATE m SET a = 4 WHERE a = 1;
         COPY m TO '{}' STORED AS CSV; SELECT sum(a) AS s FROM m",
        text(&target),
        text(&table)
    );
    let run = |more: &[&str]| {
        let _ = fs::remove_dir_all(&table);
        let ended = millpond(&[&["--device", "cpu", "--format", "csv", "-c", &script][..], more].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert_eq!(ended.stdout, "s\n9\n");
        ended.stderr
    };
    let told = run(&[]);
    for note in [
        format!("note: 10 rows written to '{}'", text(&target)),
        "note: 2 rows inserted into m".to_string(),
        "note: 1 row updated in m".to_string(),
        format!("note: 3 rows written to '{}'", text(&table)),
    ] {
        assert!(told.contains(&note), "{note}: {told}");
    }
    assert_eq!(run(&["-q"]), "");
}

/// Options as in PostgreSQL and DuckDB, compression by the ending, and targets that are not files.
#[test]
fn copy_takes_options_in_parentheses_and_endings_of_compressed_files() {
    let folder = Folder::new();
    let rows = "(SELECT value AS k, value * 2 AS v FROM generate_series(1, 3))";
    let copy = |target: &str, options: &str| {
        let sql = format!("COPY {rows} TO '{target}' {options}");
        millpond(&["-q", "--device", "cpu", "-c", &sql])
    };
    let written = |name: &str, options: &str| {
        let path = folder.path(name);
        let ended = copy(text(&path), options);
        assert_eq!((ended.code, ended.stdout.as_str()), (0, ""), "{name}: {}", ended.stderr);
        path
    };
    let read = |path: &Path| fs::read_to_string(path).expect("a file");
    assert_eq!(read(&written("a.txt", "(FORMAT csv, HEADER false, DELIMITER ';')")), "1;2\n2;4\n3;6\n");
    assert_eq!(read(&written("a.tsv", "")), "k\tv\n1\t2\n2\t4\n3\t6\n");
    assert_eq!(read(&written("a.ndjson", "")).lines().next(), Some("{\"k\":1,\"v\":2}"));
    for (name, magic) in [
        ("a.csv.gz", &b"\x1f\x8b"[..]),
        ("a.csv.zst", b"\x28\xb5\x2f\xfd"),
        ("a.json.bz2", b"BZh"),
        ("a.csv.xz", b"\xfd7zXZ"),
    ] {
        let path = written(name, "");
        assert!(fs::read(&path).expect("a file").starts_with(magic), "{name}");
    }
    let parts = written("parts/", "(FORMAT parquet, PARTITION_BY (k), COMPRESSION zstd)");
    let mut folders: Vec<_> =
        fs::read_dir(&parts).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect();
    folders.sort();
    assert_eq!(folders, ["k=1", "k=2", "k=3"]);

    let out = copy("/dev/stdout", "(FORMAT csv)");
    assert_eq!((out.code, out.stdout.as_str()), (0, "k,v\n1,2\n2,4\n3,6\n"), "{}", out.stderr);
    let then = format!("SELECT 1 AS a; COPY {rows} TO '/dev/stdout' (FORMAT csv, HEADER off); SELECT 2 AS b");
    let then = millpond(&["-q", "--device", "cpu", "--format", "csv", "-c", &then]);
    assert_eq!((then.code, then.stdout.as_str()), (0, "a\n1\n1,2\n2,4\n3,6\nb\n2\n"), "{}", then.stderr);

    for (target, options, says) in [
        ("folder/", "", "'folder/', which is a folder: add STORED AS PARQUET, or (FORMAT csv)"),
        ("/dev/stdout", "", "'/dev/stdout', which is a name without an ending"),
        ("/dev/stdout", "(FORMAT csv, PARTITION_BY k)", "leave the partitions out"),
        ("x.parquet.gz", "", "name it without .gz"),
        ("x.csv", "(HEADERS true)", "COPY has no option HEADERS; in parentheses it takes FORMAT, HEADER"),
        ("x.csv", "(FORMAT xls)", "COPY cannot write the format 'xls': it writes csv"),
    ] {
        let ended = copy(target, options);
        assert_eq!(ended.code, 1, "{target} {options}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{target} {options}: {}", ended.stderr);
    }
    assert!(folder.names().iter().all(|name| !name.starts_with('.')), "{:?}", folder.names());
}
