//! `gen` and `run`.

use crate::millpond;
#[cfg(unix)]
use crate::{command, interrupt};

#[test]
fn generated_tables_run_through_the_suite() {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().to_str().expect("UTF-8");
    let made = millpond(&["gen", "tpch", "--scale", "0.001", "--out", out]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert_eq!(made.stdout.lines().count(), 8, "{}", made.stdout);

    let ran = millpond(&["run", "tpch", "--data", out, "--device", "cpu", "--validate", "cpu", "--json"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.stdout.lines().filter(|line| line.contains("\"status\":\"equal\"")).count(), 22, "{}", ran.stdout);

    let some = millpond(&["run", "tpch", "--data", out, "--device", "cpu", "--query", "1,q06", "-q"]);
    assert!(
        some.stdout.contains("q01") && some.stdout.contains("q06") && !some.stdout.contains("q02"),
        "{}",
        some.stdout
    );
    assert!(some.stdout.contains("2 queries, 0 with problems"), "{}", some.stdout);

    // Each run has other constants, and is compared with the CPU's answer to them.
    let varied = ["run", "tpch", "--data", out, "--device", "sim", "--query", "1,6,15", "--json", "--repeat", "3"];
    let told = |more: &[&str]| {
        let ran = millpond(&[&varied[..], more].concat());
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
        assert_eq!(
            ran.stdout.lines().filter(|line| line.contains("\"status\":\"equal\"")).count(),
            3,
            "{}",
            ran.stdout
        );
        let digests =
            ran.stdout.lines().map(|line| line.split("\"digest\":\"").nth(1).expect("a digest")[..16].to_string());
        digests.collect::<Vec<_>>()
    };
    let plain = told(&["--validate", "cpu"]);
    let (seven, again) = (told(&["--validate", "cpu", "--vary", "7"]), told(&["--validate", "cpu", "--vary", "7"]));
    assert_eq!(seven, again);
    assert!(seven.iter().zip(&plain).all(|(varied, plain)| varied != plain), "{seven:?} {plain:?}");

    // Fallbacks to the CPU are described, not only counted.
    let lost = ["run", "tpch", "--data", out, "--query", "6", "--device", "sim", "--validate", "cpu"];
    let lost = millpond(&[&lost[..], &["--set", "millpond.debug_sim_lose_at_launch=1"]].concat());
    let told = lost.stdout.lines().any(|line| line.starts_with("q06: ") && line.ends_with("on the CPU"));
    assert!(told && lost.stdout.contains("equal"), "{}{}", lost.stdout, lost.stderr);
}

#[test]
fn a_folder_of_queries_runs_like_a_suite() {
    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let data = path("data");
    let made = millpond(&["gen", "tpch", "--scale", "0.001", "--out", &data, "--tables", "nation,region"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let suite = path("mine");
    std::fs::create_dir(&suite).expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join("mine").join(name), text).expect("written");
    write("suite.toml", "name = \"mine\"\n[query.regions]\nparameters.least = 2\ncheck.columns.nations.absolute = 1\n");
    write("q1.sql", "SELECT count(*) AS n FROM nation");
    write(
        "regions.sql",
        "-- Two statements prepare: $least is left alone here.\n\
         CREATE VIEW big AS SELECT * FROM nation WHERE n_regionkey >= $least;\n\
         CREATE TABLE counted AS SELECT n_regionkey, count(*) AS nations FROM big GROUP BY n_regionkey;\n\
         SELECT r_name, nations FROM counted JOIN region ON n_regionkey = r_regionkey ORDER BY r_name",
    );
    let run = |more: &[&str]| millpond(&[&["run", &suite, "--data", &data, "--validate", "cpu"][..], more].concat());

    let ran = run(&["--device", "sim", "--repeat", "2", "--json"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(
        lines.len() == 2 && lines[1].contains("\"rows\":3") && lines[1].contains("\"status\":\"equal\""),
        "{lines:?}"
    );
    assert!(
        lines[1].contains("\"name\":\"counted\",\"rows\":3") && lines[1].contains("\"elapsed_ms\":null"),
        "{lines:?}"
    );
    let row: serde_json::Value = serde_json::from_str(lines[1]).expect("JSON");
    assert!(row["allocated_bytes"].is_u64() && row["launches"].as_u64() > Some(0), "{lines:?}");
    assert!(row["opening_ms"].as_f64() > Some(0.0) && ran.stderr.contains(" opened in "), "{}", ran.stderr);

    // Parameters, and all allocators side by side.
    let all =
        run(&["--device", "sim", "--query", "regions", "--param", "least=4", "--allocator", "all", "--report", "md"]);
    assert_eq!(all.code, 0, "{}{}", all.stdout, all.stderr);
    for name in ["cuda", "cuda_async_default", "cuda_async", "caching", "arena", "binning"] {
        assert!(all.stdout.contains(&format!("| {name} | 1/1 |")), "{name}: {}", all.stdout);
    }
    assert!(all.stdout.contains("| regions | ") && !all.stdout.contains("DynamicFilter"), "{}", all.stdout);
    let timed = run(&["--device", "cpu", "--repeat", "3"]);
    assert!(timed.stdout.contains("median") && timed.stdout.contains("2 queries, 0 with problems"), "{}", timed.stdout);

    let refused = |more: &[&str], code, says: &str| {
        let ended = run(more);
        assert_eq!(ended.code, code, "{more:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{more:?}: {}", ended.stderr);
    };
    let twice = run(&["--device", "cpu", "--query", "regions,regions,q1", "-q"]);
    assert!(twice.stdout.contains("2 queries, 0 with problems"), "{}", twice.stdout);
    let once = run(&["--device", "cpu", "--query", "1"]);
    assert!(once.stdout.contains("1 query, 0 with problems"), "{}", once.stdout);
    refused(&["--param", "least=some"], 2, "it takes an integer, such as its default 2");
    refused(&["--param", "most=1"], 2, "suite mine has no parameter 'most'; it has least");
    refused(&["--allocator", "all", "--memory-log", "x", "--device", "sim"], 2, "one --allocator");
    write("suite.toml", "name = \"mine\"\ntables = [\"nation\", \"oceans\"]\n");
    refused(&["--device", "cpu"], 2, "regions.sql:2: $least has no value; add least to [parameters] of suite.toml");
    write("suite.toml", "name = \"mine\"\nfunctions = [\"dance\"]\nparameters.least = 2\n");
    refused(&["--device", "cpu"], 2, "suite mine needs the function dance, which is not known");
    write("suite.toml", "name = \"mine\"\ntables = [\"nation\", \"oceans\"]\nparameters.least = 2\n");
    refused(&["--device", "cpu"], 4, "table oceans of suite mine is missing");
}

/// A report contains its conditions, which a comparison of two reports needs.
#[test]
fn reports_say_under_what_they_came_about() {
    let folder = tempfile::tempdir().expect("folder");
    let data = folder.path().join("data").to_str().expect("UTF-8").to_string();
    let made = millpond(&["gen", "tpch", "--scale", "0.001", "--out", &data, "--tables", "lineitem"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let suite = folder.path().join("mine");
    std::fs::create_dir(&suite).expect("a folder");
    std::fs::write(suite.join("suite.toml"), "name = \"mine\"\ntitle = \"Lines\"\ntables = [\"lineitem\"]\n")
        .expect("written");
    std::fs::write(suite.join("q1.sql"), "SELECT count(*) AS n FROM lineitem").expect("written");
    let suite = suite.to_str().expect("UTF-8");
    let run = |more: &[&str]| {
        let ran = millpond(&[&["run", suite, "--data", &data][..], more].concat());
        assert_eq!(ran.code, 0, "{more:?}: {}{}", ran.stdout, ran.stderr);
        ran
    };
    let settings = ["--set", "millpond.batch_rows=1000", "--set", "datafusion.execution.batch_size=512"];
    let ran = run(&[&["--device", "sim", "--allocator", "caching,arena", "--json"][..], &settings].concat());
    assert!(ran.stderr.contains("data (tpch at scale 0.001, codec snappy)"), "{}", ran.stderr);
    let lines: Vec<serde_json::Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2);
    for (line, allocator) in lines.iter().zip(["caching", "arena"]) {
        assert_eq!((line["suite"].as_str(), line["scale"].as_f64()), (Some("mine"), Some(0.001)), "{line}");
        assert_eq!((line["data"].as_str(), line["status"].as_str()), (Some(&*data), Some("not compared")), "{line}");
        let device = line["device"].as_str().expect("a device");
        assert!(device.contains("sim") && line["pool_limit_bytes"].as_u64() > Some(0), "{line}");
        assert!(
            ["commit", "host"].iter().all(|name| line[*name].as_str().is_some_and(|text| !text.is_empty())),
            "{line}"
        );
        let time = line["time"].as_str().expect("a time");
        assert!(time.len() >= "2026-01-01T00:00:00Z".len() && time.ends_with('Z') && &time[10..11] == "T", "{time}");
        let settings = serde_json::json!({
            "millpond.batch_rows": "1000",
            "millpond.device": "sim",
            "millpond.memory_resource": allocator,
            "datafusion.execution.batch_size": "512",
        });
        assert_eq!(line["settings"], settings);
    }

    let md = run(&["--device", "sim", "--allocator", "caching,arena", "--report", "md"]).stdout;
    for part in [
        "# Lines\n",
        "- data: ",
        "(tpch at scale 0.001, codec snappy)\n",
        "- commit: ",
        "`millpond.memory_resource = arena`",
        "its time says nothing",
        "## Queries, from `caching`\n",
        "| q1 | not compared | ",
        "| arena | not compared | ",
    ] {
        assert!(md.contains(part), "{part}: {md}");
    }
    assert!(!md.contains("0/1 |") && !md.contains("## Milliseconds"), "{md}");
    let cpu = run(&["--device", "cpu", "--report", "md"]).stdout;
    assert!(cpu.contains("- device: cpu\n") && cpu.contains("## Milliseconds") && cpu.contains("\n| sum | "), "{cpu}");

    // Without a manifest the scale is unknown, and a table that is not in a manifest causes a note.
    let more = millpond(&["gen", "tpch", "--scale", "0.001", "--out", &data, "--tables", "nation"]);
    assert_eq!(more.code, 0, "{}", more.stderr);
    let manifest = std::path::Path::new(&data).join("millpond.json");
    let text = std::fs::read_to_string(&manifest).expect("a manifest");
    std::fs::write(&manifest, text.replace("\"lineitem\",", "")).expect("written");
    let noted = run(&["--device", "cpu"]);
    assert!(
        noted.stderr.contains("note: lineitem in ") && noted.stderr.contains("is not in its millpond.json"),
        "{}",
        noted.stderr
    );
    std::fs::write(&manifest, "[]").expect("written");
    let stranger = run(&["--device", "cpu", "--json"]);
    assert!(stranger.stderr.contains("note: ") && stranger.stdout.contains("\"scale\":null"), "{}", stranger.stderr);
}

/// A command's standard error on a terminal.
#[cfg(target_os = "linux")]
fn on_a_terminal(args: &[&str]) -> String {
    use std::io::Read;

    use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
    use rustix::termios::{Winsize, tcsetwinsize};

    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let master = openpt(flags).expect("a pseudo-terminal");
    unlockpt(&master).expect("unlocked");
    tcsetwinsize(&master, Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
    let terminal = ioctl_tiocgptpeer(&master, flags).expect("its other end");
    let null = std::process::Stdio::null;
    let mut child = command(args).stdin(null()).stdout(null()).stderr(terminal).spawn().expect("the binary starts");
    let (mut master, mut shown) = (std::fs::File::from(master), Vec::new());
    // Reading fails once the last writer has closed the terminal.
    let _ = master.read_to_end(&mut shown);
    assert!(child.wait().expect("an end").success());
    String::from_utf8_lossy(&shown).into_owned()
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_shows_which_query_runs_from_which_allocator() {
    let folder = tempfile::tempdir().expect("folder");
    let data = folder.path().to_str().expect("UTF-8");
    let made = millpond(&["gen", "tpch", "--scale", "0.001", "--out", data]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let run = ["run", "tpch", "--data", data, "--device", "sim", "--query", "1,6", "--allocator", "caching,arena"];
    let shown = on_a_terminal(&run);
    for part in ["q01 from caching", "q06 from arena", "0/4 queries", "3/4 queries"] {
        assert!(shown.contains(part), "{part}: {shown:?}");
    }
    assert!(shown.ends_with("\x1b[2K"), "the bar is gone at the end: {shown:?}");
    assert!(!on_a_terminal(&[&run[..], &["-q"]].concat()).contains("queries"));
    let piped = millpond(&run);
    assert!(piped.code == 0 && !piped.stderr.contains("from caching"), "{}", piped.stderr);
}

#[test]
fn tables_of_two_scales_are_not_mixed() {
    let folder = tempfile::tempdir().expect("folder");
    let (data, bdb) = (folder.path().join("tpch"), folder.path().join("bdb"));
    let generate = |data: &std::path::Path, suite: &str, scale: &str, more: &[&str]| {
        let out = data.to_str().expect("UTF-8");
        millpond(&[&["gen", suite, "--scale", scale, "--out", out][..], more].concat())
    };
    let manifest = |data: &std::path::Path| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(data.join("millpond.json")).expect("a manifest")).expect("JSON")
    };
    let made = |data: &std::path::Path, suite: &str, scale: &str, more: &[&str]| {
        let ended = generate(data, suite, scale, more);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    };
    let refused = |data: &std::path::Path, suite: &str, scale: &str, more: &[&str], says: &str| {
        let ended = generate(data, suite, scale, more);
        assert_eq!((ended.code, ended.stdout.as_str()), (4, ""), "{}", ended.stderr);
        assert!(ended.stderr.contains(says) && ended.stderr.contains("--force"), "{says}: {}", ended.stderr);
    };
    made(&data, "tpch", "0.001", &["--tables", "nation,orders"]);
    made(&data, "tpch", "0.001", &["--tables", "lineitem"]);
    assert_eq!(manifest(&data)["tables"], serde_json::json!(["lineitem", "nation", "orders"]));
    assert_eq!((manifest(&data)["scale"].as_f64(), manifest(&data)["seed"].as_u64()), (Some(0.001), None));

    let both = "holds tables of tpch at scale 0.001 (millpond.json), and scale 0.002 is requested";
    refused(&data, "tpch", "0.002", &["--tables", "region"], both);
    refused(&data, "gpu-bdb", "0.01", &["--tables", "store"], "and gpu-bdb is requested");
    refused(&data, "tpch", "0.001", &["--codec", "zstd"], "and codec zstd is requested where they have snappy");
    // Without a manifest the files still show their scale.
    std::fs::remove_file(data.join("millpond.json")).expect("removed");
    let by_rows = "holds orders.parquet of tpch at scale 0.001, and scale 0.002 is requested";
    refused(&data, "tpch", "0.002", &["--tables", "region"], by_rows);
    made(&data, "tpch", "0.002", &["--tables", "region", "--force"]);
    assert_eq!(manifest(&data)["tables"], serde_json::json!(["region"]));

    made(&bdb, "gpu-bdb", "0.01", &["--tables", "store", "--seed", "7"]);
    assert_eq!(manifest(&bdb)["options"]["money"], "double");
    refused(&bdb, "gpu-bdb", "0.01", &["--tables", "reason"], "where they have 7");
    refused(&bdb, "gpu-bdb", "0.01", &["--tables", "reason", "--seed", "7", "--keys", "int32"], "and keys int32");
    std::fs::remove_file(bdb.join("millpond.json")).expect("removed");
    refused(&bdb, "gpu-bdb", "0.02", &[], "store/part-00000.parquet of gpu-bdb at scale 0.01, and scale 0.02");
}

#[test]
fn gpu_bdb_tables_become_folders_with_the_types_asked_for() {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().to_str().expect("UTF-8");
    let asked = ["gen", "gpu-bdb", "--scale", "0.01", "--out", out, "--tables", "store_sales, reason,store_sales"];
    let types = ["--money", "decimal", "--keys", "int32", "--seed", "7", "--no-plants"];
    let made = millpond(&[&asked[..], &types].concat());
    assert_eq!(made.code, 0, "{}", made.stderr);
    let lines: Vec<_> = made.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{}", made.stdout);
    assert!(lines[1].contains("reason/part-00000.parquet: 35 rows, 1 row group"), "{}", made.stdout);

    let table = format!("store_sales={out}/store_sales");
    let sql = "SELECT arrow_typeof(ss_net_paid), arrow_typeof(ss_item_sk), max(ss_ticket_number) FROM store_sales \
               GROUP BY 1, 2";
    let asked = millpond(&["--device", "cpu", "-q", "--table", &table, "-c", sql, "--format", "csv"]);
    assert!(asked.stdout.contains("\"Decimal128(7, 2)\",Int32,900"), "{}{}", asked.stdout, asked.stderr);
}

/// Queries of a folder cannot change the data, other queries or the session.
#[test]
fn queries_of_a_suite_leave_nothing_behind() {
    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let (data, suite) = (path("data"), path("mine"));
    let made = millpond(&["gen", "tpch", "--scale", "0.001", "--out", &data, "--tables", "nation,region"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    std::fs::create_dir(&suite).expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join("mine").join(name), text).expect("written");
    write("suite.toml", "name = \"mine\"\n[query.q8]\nparts.counts.columns.n.absolute = 1\n");
    write("q8.sql", "SELECT 1");
    let out = path("copied.csv");
    for (number, sql, says) in [
        (1, "INSERT INTO region SELECT * FROM region; SELECT 1", "Insert Into would change region"),
        (2, &*format!("COPY (SELECT 1) TO '{out}'"), "COPY would write"),
        (3, "DROP TABLE region; SELECT 1", "is about a table of the suite"),
        (4, "CREATE OR REPLACE TABLE region AS SELECT 1 AS a; SELECT * FROM region", "is about a table of the suite"),
        (5, "CREATE SCHEMA s; SELECT 1", "would outlive the query"),
        (6, "SET millpond.batch_rows = 7; SELECT 1", "options are given by --set"),
        (7, "-- nothing", "must end with a statement that gives rows"),
        (8, "SELECT count(*) AS n FROM region", "rules for a part counts, but the query makes no tables beside"),
        (9, "SELECT nope FROM region", "nope"),
    ] {
        write(&format!("q{number}.sql"), sql);
        let ran = millpond(&[
            "run",
            &suite,
            "--data",
            &data,
            "--device",
            "cpu",
            "--validate",
            "cpu",
            "-q",
            "--query",
            &number.to_string(),
        ]);
        assert_eq!(ran.code, 1, "{sql}: {}", ran.stderr);
        assert!(ran.stderr.contains(says), "{sql}: {}", ran.stderr);
    }
    // A query may replace, read and drop its own tables; a failed query does not stop the others.
    write(
        "q10.sql",
        "CREATE TABLE own AS SELECT 1 AS a; CREATE TABLE IF NOT EXISTS own AS SELECT 2 AS a; \
         CREATE OR REPLACE TABLE own AS SELECT a + 1 AS a FROM own; CREATE VIEW seen AS SELECT * FROM own; \
         CREATE TABLE gone AS SELECT 1 AS a; DROP TABLE gone; SELECT a, (SELECT count(*) FROM region) AS n FROM seen",
    );
    write("suite.toml", "name = \"mine\"\n");
    let ran = millpond(&["run", &suite, "--data", &data, "--device", "cpu", "--validate", "cpu", "--json", "-q"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let statuses: Vec<bool> = ran.stdout.lines().map(|line| line.contains("\"status\":\"equal\"")).collect();
    assert_eq!(statuses, [false, false, false, false, false, false, false, true, false, true], "{}", ran.stdout);
    assert!(!std::path::Path::new(&out).exists());
    let files = std::fs::read_dir(&data).expect("the data").count();
    assert_eq!(files, 3, "the data has another file than two tables and their manifest");
}

/// Statements of a suite folder, which others may have written, cannot write a file, or read a file that is not a
/// table.
#[test]
fn a_suite_writes_no_file_and_reads_its_tables_alone() {
    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let (data, suite, out, csv) = (path("data"), path("mine"), path("x.csv"), path("secret.csv"));
    let made = millpond(&["gen", "tpch", "--scale", "0.001", "--out", &data, "--tables", "region"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    std::fs::create_dir(&suite).expect("a folder");
    std::fs::write(&csv, "who,at\n1,0\n").expect("written");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join("mine").join(name), text).expect("written");
    let run = || millpond(&["run", &suite, "--data", &data, "--device", "cpu", "-q"]);
    write("suite.toml", "name = \"mine\"\nfunctions = [\"sessionize\"]\n");
    let by_name = "files are not read by name; a suite's statements are queries";
    for (sql, says) in [
        (
            format!("SELECT 1; EXPLAIN ANALYZE COPY (SELECT 42) TO '{out}' STORED AS CSV"),
            "mine/q1.sql, statement 2: COPY would write",
        ),
        (format!("EXPLAIN COPY (SELECT 42) TO '{out}' STORED AS CSV"), "mine/q1.sql, statement 1: COPY would write"),
        (format!("SELECT * FROM '{csv}'"), by_name),
        ("SELECT * FROM '/etc/passwd'".to_string(), "'/etc/passwd' is no table of the suite"),
        ("SELECT * FROM 's3://bucket/file.parquet'".to_string(), by_name),
        (format!("SELECT 1 WHERE EXISTS (WITH c AS (SELECT * FROM '{csv}') SELECT * FROM c)"), by_name),
        (format!("DESCRIBE '{csv}'"), by_name),
        (format!("SELECT * FROM sessionize('{csv}', 'who', 'at', 10)"), "no table or view is called"),
    ] {
        write("q1.sql", &sql);
        let ran = run();
        assert!(ran.code == 1 && ran.stderr.contains(says), "{sql}: {}{}", ran.stdout, ran.stderr);
        assert!(!std::path::Path::new(&out).exists(), "{sql}");
    }
    // Its table names cannot refer to other folders.
    std::fs::copy(path("data/region.parquet"), path("t.parquet")).expect("copied");
    write("q1.sql", "SELECT 1");
    write("suite.toml", "name = \"mine\"\ntables = [\"region\", \"../t\"]\n");
    let ran = run();
    let says = "mine/suite.toml: '../t' in tables cannot be a table's name; it takes letters, digits and _";
    assert!(ran.code == 2 && ran.stderr.contains(says), "{}", ran.stderr);
}

/// An interrupt ends `gen` and `run` with exit 130; unfinished files are removed, and finished queries are reported.
/// The interrupted work would take days, so the interrupt can wait for the tested state, however long that takes.
#[cfg(unix)]
#[test]
fn interrupts_end_gen_and_run() {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Child, Stdio};
    use std::time::Duration;

    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let started =
        |args: &[&str]| command(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary starts");
    let interrupted = |mut child: Child, ready: &dyn Fn() -> bool| {
        while !ready() {
            assert_eq!(child.try_wait().expect("state"), None, "it ends before there is anything to interrupt");
            std::thread::sleep(Duration::from_millis(20));
        }
        interrupt(&child);
        assert_eq!(child.wait().expect("ends").code(), Some(130));
    };
    let files = |of: &str| -> Vec<String> {
        let entries = std::fs::read_dir(of).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };

    let (bdb, sales) = (path("bdb"), path("bdb/store_sales"));
    let args = ["gen", "gpu-bdb", "--scale", "100000", "--out", &bdb, "--tables", "store_sales", "--threads", "1"];
    interrupted(started(&args), &|| !files(&sales).is_empty());
    assert_eq!(files(&sales), Vec::<String>::new());
    let tpch = path("tpch");
    let args = ["gen", "tpch", "--scale", "9000", "--out", &tpch, "--tables", "region,lineitem", "--threads", "1"];
    interrupted(started(&args), &|| files(&tpch).len() > 1);
    assert_eq!(files(&tpch), ["region.parquet"]);

    let suite = path("mine");
    std::fs::create_dir(&suite).expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join("mine").join(name), text).expect("written");
    write("suite.toml", "name = \"mine\"\n");
    write("q1.sql", "CREATE TABLE many AS SELECT * FROM range(1000); SELECT count(*) AS n FROM many");
    write("q2.sql", "SELECT sum(value % 7) FROM range(9223372036854775807)");
    let mut child = started(&["run", &suite, "--data", &tpch, "--device", "cpu", "--json"]);
    let mut told = BufReader::new(child.stdout.take().expect("piped"));
    let (mut first, mut rest) = (String::new(), String::new());
    told.read_line(&mut first).expect("UTF-8");
    // q1 has been reported, so the next query is q2, which is endless.
    interrupted(child, &|| true);
    told.read_to_string(&mut rest).expect("UTF-8");
    assert!(first.contains("\"query\":\"q1\"") && rest.is_empty(), "{first}{rest}");
}

#[test]
fn refusals() {
    let gen_refused = |args: &[&str], code, says: &str| {
        let ended = millpond(args);
        assert_eq!(ended.code, code, "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{args:?}: {}", ended.stderr);
    };
    gen_refused(&["gen", "tpcds", "--scale", "1", "--out", "x"], 2, "no data set named 'tpcds'");
    gen_refused(&["gen", "gpu_bdb", "--scale", "1", "--out", "x"], 2, "the data sets are tpch, gpu-bdb");
    gen_refused(&["gen", "gpu-bdb", "--scale", "0.001", "--out", "x"], 2, "give a number from 0.01");
    gen_refused(&["gen", "gpu-bdb", "--scale", "inf", "--out", "x"], 2, "scale factor inf");
    let lines = ["gen", "gpu-bdb", "--scale", "1", "--out", "x", "--tables", "store_sale"];
    gen_refused(&lines, 2, "the tables are date_dim, time_dim");
    gen_refused(&["gen", "gpu-bdb", "--scale", "0.01", "--out", "Cargo.toml/x"], 4, "Cargo.toml");
    gen_refused(&["gen", "tpch", "--scale", "0.001", "--out", "x", "--seed", "1"], 2, "tpch has no option --seed");
    gen_refused(&["gen", "tpch", "--scale", "0", "--out", "x"], 2, "scale factor 0");
    gen_refused(&["gen", "tpch", "--scale", "1", "--out", "x", "--tables", "lines"], 2, "'lines'");
    gen_refused(&["gen", "tpch", "--scale", "0.001", "--out", "Cargo.toml/x"], 4, "Cargo.toml");
    gen_refused(&["gen", "gpu-bdb", "--scale", "-1", "--out", "x"], 2, "scale factor -1 is not usable");
    gen_refused(&["gen", "tpch", "--scale", "1", "--out", "x", "--threads", "100000"], 2, "100000 is not in 0..=1024");
    gen_refused(&["gen", "tpch", "--scale", "1", "--out", "x", "--threads", "-1"], 2, "'-1' for '--threads <N>'");
    gen_refused(
        &["gen", "gpu-bdb", "--scale", "0.01", "--out", "README.md"],
        4,
        "the folder README.md: a file has that name",
    );
    gen_refused(&["run", "tpcds", "--data", "x"], 2, "no suite named 'tpcds'");
    gen_refused(&["run", "./tpcds", "--data", "x"], 4, "cannot read ./tpcds/suite.toml");
    gen_refused(&["run", "tpch", "--data", "x", "--query", "99"], 2, "no query '99'");
    let none = "suite gpu-bdb has no other constants for query q01; the built-in suite tpch has some for each query";
    gen_refused(&["run", "gpu-bdb", "--data", "x", "--vary", "7"], 2, none);
    gen_refused(&["run", "tpch", "--data", "x", "--vary", "many"], 2, "'many' for '--vary <SEED>'");
    gen_refused(
        &["run", "tpch", "--data", "no-such-folder", "--device", "cpu"],
        4,
        "there is no folder no-such-folder; make",
    );
    gen_refused(&["run", "tpch", "--data", "no-such-folder", "--device", "cpu"], 4, "millpond gen tpch");
    gen_refused(
        &["run", "tpch", "--data", "README.md", "--device", "cpu"],
        4,
        "README.md is a file; --data takes the folder",
    );
    gen_refused(&["run", "tpch", "--data", "data", "--device", "cpu"], 4, "nor the folder data/nation exists");
    gen_refused(&["run", "tpch", "--data", "x", "--json", "--report", "md"], 2, "cannot be used with");
}

/// Scales of tests have small row groups, which is the only finding.
#[test]
fn generated_tables_have_the_layout_of_rewrite() {
    for suite in ["tpch", "gpu-bdb"] {
        let folder = tempfile::tempdir().expect("folder");
        let out = folder.path().to_str().expect("UTF-8");
        let ended = millpond(&["-q", "gen", suite, "--scale", "0.01", "--out", out]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let checked = millpond(&["-q", "parquet", "check", out, "--all"]);
        assert_eq!(checked.code, 0, "{}", checked.stderr);
        let (_, findings) = checked.stdout.split_once(" findings, the costliest first").expect("findings");
        let is_finding =
            |line: &&str| line.trim_start().split_once(". ").is_some_and(|(n, _)| n.parse::<u32>().is_ok());
        let all: Vec<&str> = findings.lines().filter(is_finding).collect();
        assert!(!all.is_empty(), "{findings}");
        assert!(all.iter().all(|line| line.contains(" row groups with ")), "{suite}: {all:#?}");
    }
}
