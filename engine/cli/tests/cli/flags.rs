//! Options of the command line: folders of tables, the order of scripts, the log, and options that are refused by a
//! command.

use crate::millpond;

fn answer(args: &[&str]) -> String {
    let ended = millpond(&[&["-q"], args].concat());
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    ended.stdout
}

#[test]
fn each_file_and_folder_of_data_is_a_table() {
    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name);
    let shown = folder.path().to_str().expect("UTF-8").to_string();
    let copy = |name: &str, value: u8| format!("COPY (SELECT {value} AS k) TO '{shown}/{name}'");
    std::fs::create_dir_all(path("parts/year=2024")).expect("folders");
    std::fs::write(path("t.csv"), "k\n1\n").expect("a file");
    std::fs::write(path("Mixed.ndjson"), "{\"k\":2}\n").expect("a file");
    for name in ["millpond.json", "_SUCCESS", ".hidden.csv", "notes.txt"] {
        std::fs::write(path(name), "{}").expect("a file");
    }
    answer(&["-c", &copy("p.parquet", 3), "-c", &copy("parts/year=2024/a.parquet", 4)]);
    let tables = answer(&["--device", "cpu", "--data", &shown, "-c", "show  tables;"]);
    let names: Vec<&str> = tables.lines().skip(1).filter_map(|line| line.split(',').nth(2)).collect();
    assert_eq!(names, ["Mixed", "mixed", "p", "parts", "t"], "{tables}");
    let sql = "SELECT k FROM t UNION ALL SELECT k FROM mixed UNION ALL SELECT k FROM p UNION ALL SELECT k FROM parts ORDER BY k";
    for device in ["cpu", "sim"] {
        assert_eq!(answer(&["--device", device, "--data", &shown, "-c", sql]), "k\n1\n2\n3\n4\n");
    }
    let qualified = millpond(&["qualify", "--data", &shown, "-c", "SELECT k FROM p WHERE k > 0"]);
    assert_eq!(qualified.code, 0, "{}", qualified.stderr);

    std::fs::write(path("t.json"), "{\"k\":2}\n").expect("a file");
    let twice = millpond(&["--data", &shown, "-c", "SELECT 1"]);
    assert_eq!(twice.code, 2);
    assert!(twice.stderr.contains("would both be the table t"), "{}", twice.stderr);
    std::fs::remove_file(path("t.json")).expect("removed");
    let named = format!("p={}", path("t.csv").display());
    let clash = millpond(&["--data", &shown, "--table", &named, "-c", "SELECT 1"]);
    assert!(
        clash.code == 2 && clash.stderr.contains("and the file of --table would both be the table p"),
        "{}",
        clash.stderr
    );
    assert_eq!(answer(&["--device", "cpu", "--data", &shown, "--data", &shown, "-c", "SELECT k FROM t"]), "k\n1\n");
    let none = millpond(&["--data", "docs", "-c", "SELECT 1"]);
    assert_eq!(none.code, 4);
    assert!(none.stderr.contains("folder 'docs' has no tables"), "{}", none.stderr);
    let missing = millpond(&["--data", "nowhere", "-c", "SELECT 1"]);
    assert_eq!(missing.code, 4);
    assert!(missing.stderr.contains("cannot read folder 'nowhere': no such file"), "{}", missing.stderr);
}

#[test]
fn scripts_run_in_the_order_of_the_command_line() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("two.sql");
    std::fs::write(&file, "SELECT 2 AS n").expect("a file");
    let file = file.to_str().expect("UTF-8");
    let args = ["--device", "cpu", "-c", "SELECT 1 AS n", "-f", file, "-c", "SELECT 3 AS n"];
    assert_eq!(answer(&args), "n\n1\nn\n2\nn\n3\n");
    let args = ["--device", "cpu", "-c", "SELECT 1 AS n", "SELECT 4 AS n", "-f", file];
    assert_eq!(answer(&args), "n\n1\nn\n4\nn\n2\n");
    let qualified = millpond(&["qualify", "-f", file, "-c", "SELECT 1", "--json"]);
    let rows: serde_json::Value = serde_json::from_str(&qualified.stdout).expect("JSON");
    assert_eq!(rows["statements"][0]["sql"], "SELECT 2 AS n", "{rows}");
}

#[test]
fn commands_refuse_and_hide_the_options_that_they_do_not_use() {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().to_str().expect("UTF-8");
    let ended = millpond(&["--device", "sim", "gen", "tpch", "--scale", "0.001", "--out", out]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.starts_with("error: gen does not use --device; millpond gen --help"), "{}", ended.stderr);
    assert_eq!(std::fs::read_dir(out).expect("a folder").count(), 0);
    for (args, flag) in [
        (["mem", "bench", "--table", "t=x.csv"].as_slice(), "mem bench does not use --table"),
        (&["parquet", "check", "data", "--trace", "t"], "parquet check does not use --trace"),
        (&["info", "--fallback", "error"], "info does not use --fallback"),
    ] {
        let ended = millpond(args);
        assert_eq!((ended.code, ended.stderr.contains(flag)), (2, true), "{args:?}: {}", ended.stderr);
    }
    // gen has its own --tables option.
    let ended = millpond(&["-q", "gen", "tpch", "--scale", "0.001", "--tables", "region", "--out", out]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for (args, flag) in [
        (["-c", "SELECT 1", "info"].as_slice(), "-c before info has no use"),
        (&["-o", "x.csv", "info"], "-o before info"),
        (&["--rows", "3", "qualify", "-c", "SELECT 1"], "--rows before qualify"),
    ] {
        let ended = millpond(args);
        assert_eq!((ended.code, ended.stderr.contains(flag)), (2, true), "{args:?}: {}", ended.stderr);
    }
    let ended = millpond(&["qualify"]);
    assert!(ended.code == 2 && ended.stderr.contains("there is no statement"), "{}", ended.stderr);
    let ended = millpond(&["-q", "gen", "tpch", "--scale", "0.001", "--tables", "region", "--out", out]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);

    let help = millpond(&["gen", "--help"]).stdout;
    assert!(help.contains("--scale") && !help.contains("--fallback"), "{help}");
    let help = millpond(&["run", "--help"]).stdout;
    assert!(help.contains("--fallback") && help.contains("--table"), "{help}");
    let help = millpond(&["--help"]).stdout;
    assert!(help.contains("Examples:\n  millpond "), "{help}");
}

#[test]
fn warnings_are_notes_and_quiet_has_none() {
    let sql = "SELECT to_hex(quantity) FROM 'data/samples/sales.parquet' WHERE quantity > 1 LIMIT 1";
    let args = ["--device", "sim", "--fallback", "warn", "-c", sql];
    let ended = millpond(&args);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let notes: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("note: ")).collect();
    assert!(notes.iter().any(|note| note.starts_with("note: part of the query runs on the CPU: ")), "{}", ended.stderr);
    assert!(!ended.stderr.contains("WARN") && !ended.stderr.contains('\u{1b}'), "{}", ended.stderr);
    assert_eq!(millpond(&[&["-q"], args.as_slice()].concat()).stderr, "");
}

#[test]
fn verbose_says_plan_placement_kernels_and_columns() {
    let sql = "SELECT sum(quantity) FROM s WHERE quantity > 1";
    let args = ["--device", "sim", "-v", "--table", "s=data/samples/sales.parquet", "-c", sql, "-c", sql];
    let ended = millpond(&args);
    let log = &ended.stderr;
    assert_eq!(ended.code, 0, "{log}");
    for line in [
        "info: plan\n",
        "\n    DeviceFilterExec: quantity@0 > 1",
        "\ninfo: placement: 2 of 2 operators on the device\n",
        "\ninfo: stored quantity of ",
        "\ninfo: kernels: ",
        "\ninfo: memory: ",
        "\ninfo: the plan is that of an earlier statement with this text\n",
    ] {
        assert!(log.contains(line), "lacks {line:?}:\n{log}");
    }
    assert!(!log.contains("Registered UDF") && !log.contains("datafusion"), "{log}");
}

#[test]
fn empty_texts_and_nulls_differ_in_csv_and_tsv() {
    let sql = "SELECT * FROM (VALUES ('', 1), (NULL, 2), ('a', NULL)) AS t(s, n) ORDER BY n NULLS LAST";
    assert_eq!(answer(&["--device", "cpu", "--format", "csv", "-c", sql]), "s,n\n\"\",1\n,2\na,\n");
    assert_eq!(answer(&["--device", "cpu", "--format", "tsv", "-c", sql]), "s\tn\n\"\"\t1\n\t2\na\t\n");
}

#[test]
fn copy_refuses_options_that_its_writer_would_not_take() {
    let folder = tempfile::tempdir().expect("folder");
    for (name, options, says) in [
        ("a.parquet", "(row_group_size 0)", "COPY's option ROW_GROUP_SIZE takes a number of rows from 1, not '0'"),
        ("a.parquet", "(format parquet, header true)", "COPY's option HEADER is for csv, and this file is parquet"),
        ("a.csv", "(delimiter ';;')", "COPY's option DELIMITER takes one ASCII character, not ';;'"),
        ("a.csv", "(delimiter '')", "COPY's option DELIMITER takes one ASCII character, not ''"),
        ("a.parquet", "OPTIONS ('format.max_row_group_size' '0')", "COPY's option ROW_GROUP_SIZE takes a number"),
    ] {
        let file = folder.path().join(name);
        let ended = millpond(&["-q", "-c", &format!("COPY (SELECT 1 AS a) TO '{}' {options}", file.display())]);
        assert!(ended.code == 1 && ended.stderr.contains(says), "{options}: {}", ended.stderr);
        assert!(!file.exists(), "{options} wrote a file");
    }
}
