//! Statements and their answers.

#[cfg(unix)]
use crate::{command, interrupt};
use crate::{millpond, millpond_reading};

const SALES: &str = "'data/samples/sales.parquet'";

#[test]
fn data_alone_is_on_standard_output() {
    let ended = millpond(&["--device", "cpu", "-c", &format!("SELECT count(*) AS n FROM {SALES}")]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "n\n60000\n"), "{}", ended.stderr);
    assert!(ended.stderr.contains("1 row · ") && ended.stderr.contains(" · CPU"), "{}", ended.stderr);
}

#[test]
fn quiet_prints_no_footer() {
    let ended = millpond(&["-q", "--device", "cpu", "-c", "SELECT 1 AS one"]);
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (0, "one\n1\n", ""));
}

#[test]
fn auto_without_a_gpu_says_why_it_runs_on_the_cpu() {
    let ended = millpond(&["--device", "auto", "-c", "SELECT 1 AS one"]);
    assert_eq!(ended.code, 0);
    // With a GPU there is no note, and the footer names the GPU.
    assert!(ended.stderr.starts_with("note: ") || !ended.stderr.contains("CPU"), "{}", ended.stderr);
}

#[test]
fn functions_of_the_workload_are_known_and_take_files_by_name() {
    let sql = "SELECT word FROM (SELECT unnest(words('a - b')) AS word)";
    assert_eq!(millpond(&["-q", "-c", sql]).stdout, "word\na\nb\n");
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("clicks.csv");
    std::fs::write(&file, "who,at\n1,0\n1,5\n1,50\n2,7\n").expect("file");
    let path = file.to_str().expect("UTF-8");
    let call = |path: &str| format!("SELECT * FROM sessionize('{path}', 'who', 'at', 10) ORDER BY who, at");
    let ended = millpond(&["-q", "-c", &call(path)]);
    assert_eq!(ended.stdout, "who,at,session_id\n1,0,0\n1,5,0\n1,50,1\n2,7,0\n", "{}", ended.stderr);
    let refused = millpond(&["-q", "-c", &call("nowhere")]);
    let named = refused.stderr.starts_with("error: sessionize: no table or view is called 'nowhere'");
    assert!(refused.code == 1 && named, "{}", refused.stderr);
}

#[test]
fn statements_come_from_flags_files_and_standard_input() {
    let folder = tempfile::tempdir().expect("folder");
    let script = folder.path().join("script.sql");
    std::fs::write(&script, "-- two statements; one comment\nSELECT ';' AS a;\nSELECT 2 AS b").expect("script");
    let script = script.to_str().expect("UTF-8");
    assert_eq!(millpond(&["-q", "-f", script]).stdout, "a\n;\nb\n2\n");
    assert_eq!(millpond_reading("SELECT 3 AS c;", &["-q"]).stdout, "c\n3\n");
    assert_eq!(millpond_reading("SELECT 4 AS d", &["-q", "-c", "SELECT 0 AS z", "-f", "-"]).stdout, "z\n0\nd\n4\n");
}

#[test]
fn a_text_without_a_flag_is_statements_or_a_file() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    std::fs::write(at("it's.csv"), "a,b\n1,2\n").expect("file");
    std::fs::write(at("q.SQL"), "SELECT 3 AS c; SELECT 4 AS d").expect("file");
    assert_eq!(millpond(&["-q", "SELECT 1 AS a"]).stdout, "a\n1\n");
    assert_eq!(millpond(&["-q", "SELECT 1 AS a", "-c", "SELECT 2 AS b"]).stdout, "a\n1\nb\n2\n");
    assert_eq!(millpond(&["-q", &at("it's.csv")]).stdout, "a,b\n1,2\n");
    assert_eq!(millpond(&["-q", &at("q.SQL")]).stdout, "c\n3\nd\n4\n");
    let absent = millpond(&["absent.parquet"]);
    assert!(absent.code == 4 && absent.stderr.contains("file 'absent.parquet' does not exist"), "{}", absent.stderr);
    for word in ["selftst", "SELECT"] {
        let refused = millpond(&[word]);
        assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{}", refused.stderr);
        assert!(refused.stderr.contains(&format!("'{word}' is no command, no file")), "{}", refused.stderr);
    }
    let refused = millpond(&["SELECT 1", "info"]);
    assert!(refused.code == 2 && refused.stderr.contains("'SELECT 1' before a command"), "{}", refused.stderr);
}

#[test]
fn a_table_shows_as_many_rows_as_are_asked_for() {
    let sql = "SELECT value AS n FROM generate_series(1, 100000) ORDER BY n";
    let with = |rows: &[&str]| millpond(&[&["--device", "cpu", "--format", "table", "-c", sql], rows].concat());
    let all = with(&[]);
    assert_eq!(all.stdout.lines().count(), 100_000 + 5, "all rows, without a terminal");
    assert!(!all.stderr.contains("the table shows"), "{}", all.stderr);
    let some = with(&["--rows", "3"]);
    let cells: Vec<&str> = some.stdout.lines().skip(4).map(|line| line.trim_matches(['|', ' '])).collect();
    assert_eq!(cells, ["1", "2", "…", "100000", "+--------+"], "{}", some.stdout);
    let (note, footer) = some.stderr.split_once('\n').expect("two lines");
    assert_eq!(note, "note: the table shows 3 of 100000 rows (--rows all)");
    assert!(footer.starts_with("100000 rows · "), "{footer}");
    for wrong in ["0", "-1", "few"] {
        let refused = with(&[&format!("--rows={wrong}")]);
        assert!(refused.code == 2 && refused.stderr.contains("a number such as 100, or all"), "{}", refused.stderr);
    }
}

#[test]
fn formats() {
    let sql = "SELECT 1 AS n, NULL AS x";
    let with = |format| millpond(&["-q", "--format", format, "-c", sql]).stdout;
    assert_eq!(with("csv"), "n,x\n1,\n");
    assert_eq!(with("json"), "[{\"n\":1,\"x\":null}]\n");
    assert_eq!(with("ndjson"), "{\"n\":1,\"x\":null}\n");
    assert!(with("table").contains("|      1 | NULL |"));
    let refused = millpond(&["--format", "xml", "-c", sql]);
    assert!(refused.code == 2 && refused.stderr.contains("markdown, parquet, arrow"), "{}", refused.stderr);
}

/// The fields of a CSV text: fields may be quoted, with doubled quotes and line breaks inside quotes.
fn csv_fields(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut field, mut quoted) = (vec![vec![]], String::new(), false);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => field.extend(letters.next()),
            '"' => quoted = !quoted,
            ',' | '\n' if !quoted => {
                rows.last_mut().expect("a row").push(std::mem::take(&mut field));
                if letter == '\n' {
                    rows.push(vec![]);
                }
            }
            other => field.push(other),
        }
    }
    rows.pop();
    rows
}

#[test]
fn nested_values_are_json_in_every_field() {
    use serde_json::{Value, json};
    let sql = "SELECT 1 AS n, [1, NULL, 3] AS l, {x: 'a \"b\", c', y: NULL, z: [date '2025-04-01']} AS s, \
               MAP {'k': 1.5, 'none': NULL} AS m, MAP {2: ['two\n']} AS numbered, CAST(NULL AS INT[]) AS nothing";
    let expected = json!({
        "n": 1,
        "l": [1, null, 3],
        "s": {"x": "a \"b\", c", "y": null, "z": ["2025-04-01"]},
        "m": {"k": 1.5, "none": null},
        "numbered": {"2": ["two\n"]},
        "nothing": null,
    });
    let with = |format| {
        let ended = millpond(&["-q", "--device", "cpu", "--format", format, "-c", sql]);
        assert_eq!(ended.code, 0, "{format}: {}", ended.stderr);
        ended.stdout
    };
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(parsed(&with("json")), json!([expected]));
    assert_eq!(parsed(&with("ndjson")), expected);

    let csv = with("csv");
    let rows = csv_fields(&csv);
    assert_eq!(rows.len(), 2, "{csv}");
    for (name, field) in rows[0].iter().zip(&rows[1]) {
        let value = if field.is_empty() { Value::Null } else { parsed(field) };
        assert_eq!(value, expected[name], "{name}: {csv}");
    }
    assert_eq!(rows[0], ["n", "l", "s", "m", "numbered", "nothing"]);
    // An answer without rows has a header.
    let ended = millpond(&["-q", "--device", "cpu", "--format", "csv", "-c", "SELECT [1] AS l WHERE false"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "l\n"), "{}", ended.stderr);
}

#[test]
fn plans_are_text_for_people_and_rows_for_programs() {
    use serde_json::Value;
    let with = |format, sql: &str| {
        let ended = millpond(&["-q", "--device", "cpu", "--format", format, "-c", sql]);
        assert_eq!(ended.code, 0, "{format}: {}", ended.stderr);
        ended.stdout
    };
    let text = "logical_plan\nProjection: Int64(1) AS n\n  EmptyRelation: rows=1\n\n\
                physical_plan\nProjectionExec: expr=[1 as n]\n  PlaceholderRowExec\n";
    for format in ["auto", "csv", "table"] {
        assert_eq!(with(format, "EXPLAIN FORMAT INDENT SELECT 1 AS n"), text, "{format}");
        let plan = with(format, "EXPLAIN SELECT 1 AS n");
        assert!(plan.starts_with("ProjectionExec: expr=[1 as n]\n  PlaceholderRowExec\n\nwould run: 0 of 0"), "{plan}");
        let analyzed = with(format, "EXPLAIN ANALYZE VERBOSE SELECT 1 AS n");
        assert!(analyzed.contains("ProjectionExec: expr=[1 as n], metrics=["), "{format}: {analyzed}");
    }
    let rows: Value = serde_json::from_str(&with("json", "EXPLAIN FORMAT INDENT SELECT 1 AS n")).expect("JSON");
    assert_eq!(rows[1]["plan_type"], "physical_plan");
    assert_eq!(rows[1]["plan"], "ProjectionExec: expr=[1 as n]\n  PlaceholderRowExec\n");
    assert_eq!(with("ndjson", "EXPLAIN FORMAT INDENT SELECT 1 AS n").lines().count(), 2);
    assert_eq!(with("ndjson", "EXPLAIN SELECT 1 AS n").lines().count(), 1);
    // A plan in JSON stays JSON, and an answer that only resembles plans is a table.
    let plan: Value = serde_json::from_str(&with("csv", "EXPLAIN FORMAT PGJSON SELECT 1 AS n")).expect("JSON");
    assert_eq!(plan[0]["Plan"]["Node Type"], "Projection");
    let lookalike = "SELECT 'a' AS plan_type, 'b' AS plan";
    assert_eq!(with("csv", lookalike), "plan_type,plan\na,b\n");
}

#[test]
fn output_file_takes_its_format_from_its_name() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("answer.json");
    let path = file.to_str().expect("UTF-8");
    let ended = millpond(&["-q", "-o", path, "-c", "SELECT 1 AS n"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, ""));
    assert_eq!(std::fs::read_to_string(&file).expect("answer"), "[{\"n\":1}]\n");
    // Parquet and Arrow files, including empty ones, can be read again under their columns' short names.
    for ending in ["parquet", "arrow", "feather"] {
        let file = folder.path().join(format!("answer.{ending}"));
        let path = file.to_str().expect("UTF-8");
        let rows = "SELECT value AS n, [value] AS l, CAST(value AS DECIMAL(9, 2)) AS d, sum(value) OVER () FROM generate_series(1, 3000)";
        assert_eq!(millpond(&["-q", "--device", "cpu", "-o", path, "-c", rows]).code, 0);
        let table = format!("t={path}");
        let sql =
            "SELECT count(*) AS c, sum(n) AS n, sum(l[1]) AS l, sum(d) AS d, min(\"sum(value) OVER ()\") AS w FROM t";
        let read = millpond(&["-q", "--device", "cpu", "--table", &table, "-c", sql]);
        assert_eq!(read.stdout, "c,n,l,d,w\n3000,4501500,4501500,4501500.00,4501500\n", "{ending}: {}", read.stderr);
        assert_eq!(millpond(&["-q", "-o", path, "-c", "SELECT 1 AS n WHERE false"]).code, 0);
        assert_eq!(
            millpond(&["-q", "--table", &table, "-c", "SELECT count(*) AS c, sum(n) AS n FROM t"]).stdout,
            "c,n\n0,\n"
        );
    }
    let refused = millpond(&["-o", "answer.xyz", "-c", "SELECT 1"]);
    assert!(
        refused.code == 2 && refused.stderr.contains("no format is known for files ending in .xyz"),
        "{}",
        refused.stderr
    );
}

#[test]
fn expressions_have_short_names() {
    let sql = "SELECT 1, count(*), sum(price * 2) FROM 'data/samples/sales.parquet'";
    for device in ["cpu", "sim"] {
        // The second run uses a kept plan.
        let ended = millpond(&["-q", "--device", device, "-c", sql, "-c", sql]);
        let headers: Vec<&str> = ended.stdout.lines().step_by(2).collect();
        assert_eq!(headers, ["1,count(*),sum(price * 2)"; 2], "{}", ended.stderr);
    }
}

#[test]
fn commands_of_the_shell_are_named_where_statements_run() {
    for command in ["\\d t", ".tables"] {
        let refused = millpond(&["-c", command]);
        assert!(refused.stderr.contains("is a command of the shell") && refused.code == 2, "{}", refused.stderr);
    }
}

#[test]
fn tables_are_registered_by_name() {
    let folder = tempfile::tempdir().expect("folder");
    let csv = folder.path().join("people.csv");
    std::fs::write(&csv, "name,age\nann,30\nbob,\n").expect("csv");
    let table = format!("people={}", csv.display());
    let ended = millpond(&["-q", "--table", &table, "-c", "SELECT name FROM people WHERE age IS NULL"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "name\nbob\n"), "{}", ended.stderr);
}

#[test]
fn settings_reach_both_sets_of_options() {
    let ended = millpond(&[
        "-q",
        "--set",
        "millpond.batch_rows=1000",
        "--set",
        "datafusion.execution.target_partitions=3",
        "-c",
        "SHOW millpond.batch_rows; SHOW datafusion.execution.target_partitions",
    ]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(
        ended.stdout,
        "name,value\nmillpond.batch_rows,1000\nname,value\ndatafusion.execution.target_partitions,3\n"
    );
}

/// An endless query ends with exit 130 when the user interrupts it, on either device. 2⁶³ rows at a billion per second
/// take 292 years.
#[cfg(unix)]
#[test]
fn interrupt_ends_a_running_query() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    let started =
        |args: &[&str]| command(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary starts");
    // Rows on standard output prove that it runs.
    let mut child =
        started(&["--device", "cpu", "-c", "SELECT value + 1 AS n FROM range(9223372036854775807) WHERE value > 0"]);
    let mut rows = BufReader::new(child.stdout.take().expect("piped")).lines();
    let first = [rows.next(), rows.next()].map(|line| line.expect("rows").expect("UTF-8"));
    assert_eq!(first[0], "n");
    interrupt(&child);
    // Read the rows still in flight, so that the writer is not blocked.
    let rest = rows.inspect(|line| assert!(line.is_ok(), "UTF-8: {line:?}")).count();
    assert_eq!(child.wait().expect("ends").code(), Some(130), "after {rest} more rows");

    // Allocations in the log prove that it runs on the device.
    let folder = tempfile::tempdir().expect("folder");
    let log = folder.path().join("log.csv");
    let logged = ["--device", "sim", "--fallback", "error", "--memory-log", log.to_str().expect("UTF-8")];
    let sql = "SELECT sum(value % 7) AS n FROM range(9223372036854775807)";
    let mut child = started(&[&logged[..], &["--set", "millpond.batch_rows=1000", "-c", sql]].concat());
    while std::fs::metadata(&log).map_or(0, |log| log.len()) == 0 {
        assert_eq!(child.try_wait().expect("state"), None, "it ends by itself");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    interrupt(&child);
    assert_eq!(child.wait().expect("ends").code(), Some(130));
}

#[test]
fn explain_shows_device_nodes_and_reasons() {
    let sql = format!("EXPLAIN SELECT quantity, count(*) FROM {SALES} WHERE quantity > 3 GROUP BY quantity");
    let ended = millpond(&["-q", "--device", "sim", "-c", &sql]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for node in ["DownloadExec", "DeviceAggregateExec", "DeviceFilterExec", "DeviceScanExec"] {
        assert!(ended.stdout.contains(node), "{node}:\n{}", ended.stdout);
    }
    let sql = format!("EXPLAIN SELECT to_hex(quantity) FROM {SALES} WHERE quantity > 3");
    let ended = millpond(&["-q", "--device", "sim", "-c", &sql]);
    assert!(ended.stdout.contains("to_hex"), "{}", ended.stdout);
    assert!(ended.stdout.contains("CPU because unsupported-expression: "), "{}", ended.stdout);
    assert!(
        ended.stdout.contains("would run: 1 of 2 operators on the device\nlimited by: CPU operators"),
        "{}",
        ended.stdout
    );
    // No statement has run, so no message is printed.
    assert_eq!(millpond(&["--device", "sim", "-c", &sql]).stderr, "");
    let ended = millpond(&["-q", "--device", "cpu", "-c", &sql]);
    assert!(!ended.stdout.contains("Device") && !ended.stdout.contains("DownloadExec"), "{}", ended.stdout);
}

#[test]
fn explain_analyze_shows_what_a_run_cost() {
    let sql = format!("EXPLAIN ANALYZE SELECT sum(quantity), count(*) FROM {SALES} WHERE quantity > 3");
    let ended = millpond(&["--device", "sim", "-c", &sql]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(!ended.stdout.contains("launches="), "one line for each node: {}", ended.stdout);
    assert!(ended.stdout.lines().all(|line| line.chars().count() <= 120), "{}", ended.stdout);
    for wanted in
        [" memory segment\n", "DeviceScanExec: ", " · 1 host wait · ", "\nran: 2 of 2 operators on the device"]
    {
        assert!(ended.stdout.contains(wanted), "{wanted}:\n{}", ended.stdout);
    }
    let last = ended.stdout.lines().last().expect("lines");
    assert!(last.starts_with("limited by: "), "{last}");
    let sql = sql.replace("ANALYZE", "ANALYZE VERBOSE");
    let ended = millpond(&["--device", "sim", "-c", &sql]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for counter in [
        "launches=",
        "pipeline_launches=",
        "host_waits=1",
        "allocations=",
        "uploaded_bytes=",
        "downloaded_bytes=",
        "peak_bytes=",
    ] {
        assert!(ended.stdout.contains(counter), "{counter}:\n{}", ended.stdout);
    }
    assert!(!ended.stdout.contains("launches=0"), "{}", ended.stdout);
}

#[test]
fn the_footer_says_what_ran_on_the_device() {
    let sql = format!("SELECT sum(quantity) FROM {SALES} WHERE quantity > 3");
    let ended = millpond(&["--device", "sim", "--fallback", "error", "-c", &sql]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let cpu = millpond(&["-q", "--device", "cpu", "-c", &sql]);
    assert_eq!(ended.stdout, cpu.stdout);
    assert!(ended.stderr.contains("simulated device") && ended.stderr.contains(" launches"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("findings"), "{}", ended.stderr);
}

/// The command line has its own path to DataFusion.
#[test]
fn a_table_that_cannot_be_replaced_stays() {
    let failing = [
        "CREATE OR REPLACE TABLE t AS SELECT 1 / (a - 2) AS b FROM t",
        "CREATE OR REPLACE TABLE t (b BIGINT, PRIMARY KEY (b)) AS SELECT 1 / (a - 2) FROM t",
        "CREATE OR REPLACE TABLE t AS SELECT nowhere FROM t",
        "CREATE OR REPLACE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'nowhere.parquet'",
        "CREATE OR REPLACE VIEW t AS SELECT nowhere FROM t",
        "INSERT INTO t SELECT 1 / (a - 2) FROM t",
    ];
    for device in ["cpu", "sim"] {
        for sql in failing {
            let script = format!("CREATE TABLE t AS VALUES (1), (2), (3); {sql}; SELECT sum(column1) AS s FROM t");
            let script = script.replace("a - 2", "column1 - 2");
            let ended = millpond(&["-q", "--device", device, "--keep-going", "-c", &script]);
            assert_eq!((ended.code > 0, ended.stdout.as_str()), (true, "s\n6\n"), "{device}: {sql}: {}", ended.stderr);
        }
    }
}
