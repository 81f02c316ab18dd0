//! `parquet check`, `parquet measure` and `parquet rewrite`, and the layout that COPY writes.

use std::path::Path;

use crate::{Ended, millpond};

const SALES: &str = "data/samples/sales.parquet";

fn ran(args: &[&str]) -> Ended {
    let ended = millpond(args);
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    ended
}

fn refused(args: &[&str], code: i32, says: &[&str]) {
    let ended = millpond(args);
    assert_eq!(ended.code, code, "{args:?}: {}{}", ended.stdout, ended.stderr);
    for text in says {
        assert!(ended.stderr.contains(text), "{args:?} does not say {text:?}:\n{}", ended.stderr);
    }
    assert_eq!(ended.stdout, "", "{args:?} printed data");
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

/// The report on a file or a folder.
fn checked(path: &str) -> serde_json::Value {
    let ended = ran(&["parquet", "check", path, "--format", "json"]);
    assert_eq!(ended.stderr, "");
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error} in {}", ended.stdout))
}

fn kinds(report: &serde_json::Value) -> Vec<&str> {
    report["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .map(|finding| finding["kind"].as_str().expect("a kind"))
        .collect()
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_string()
}

#[test]
fn the_sample_has_no_findings() {
    assert!(ran(&["parquet", "check", SALES]).stdout.contains("no findings"));
}

#[test]
fn a_file_is_checked_rewritten_and_then_has_no_findings() {
    let folder = tempfile::tempdir().expect("folder");
    let sales = text(&folder.path().join("small_groups.parquet"));
    let options = "('format.compression' 'zstd(1)', 'format.max_row_group_size' '10000')";
    let copy = format!("COPY (SELECT * FROM '{SALES}' ORDER BY sale_id) TO '{sales}' OPTIONS {options}");
    ran(&["-q", "--device", "cpu", "-c", &copy]);
    let sales = sales.as_str();
    let told = ran(&["parquet", "check", sales]).stdout;
    for line in [
        "60,000 rows in 6 row groups, 11 columns, ",
        "ZSTD is decompressed on the host",
        "6 row groups with 10,000 rows",
    ] {
        assert!(told.contains(line), "{told}");
    }
    assert!(told.contains("mend     millpond parquet rewrite"), "{told}");
    assert_eq!(kinds(&checked(sales)), ["host_codec", "small_row_groups"]);
    let footers = ran(&["parquet", "check", sales, "--footers-only", "--all"]).stdout;
    assert!(footers.contains("ZSTD is decompressed on the host"), "{footers}");

    let to = text(&folder.path().join("made/sales.parquet"));
    let ended = ran(&["parquet", "rewrite", sales, &to]);
    assert!(ended.stdout.starts_with(&format!("{to}: 60000 rows, 1 row group, ")), "{}", ended.stdout);
    assert_eq!(ended.stderr, "");
    assert!(ran(&["parquet", "check", &to]).stdout.contains("no findings"));
    let report = checked(&to);
    let columns = report["files"][0]["columns"].as_array().expect("columns");
    assert!(columns.iter().all(|column| column["codecs"] == serde_json::json!(["SNAPPY"])), "{columns:?}");

    let rows =
        |file: &str| ran(&["-q", "--device", "cpu", "-c", &format!("SELECT * FROM '{file}' ORDER BY sale_id")]).stdout;
    assert_eq!(rows(&to), rows(sales));

    // Files are not replaced without --force.
    refused(&["parquet", "rewrite", sales, &to], 4, &[&to, "--force replaces it"]);
    ran(&["parquet", "rewrite", sales, &to, "--force", "--codec", "lz4_raw", "--row-group-rows", "16384"]);
    let report = checked(&to);
    assert_eq!(report["files"][0]["row_groups"], 4);
    assert_eq!(report["files"][0]["columns"][0]["codecs"], serde_json::json!(["LZ4_RAW"]));
}

#[test]
fn folders_keep_their_files() {
    let folder = tempfile::tempdir().expect("folder");
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::create_dir_all(from.join("year=2024")).expect("folders");
    for name in ["a.parquet", "year=2024/b.parquet"] {
        std::fs::copy(crate::root().join(SALES), from.join(name)).expect("a copy");
    }
    let ended = ran(&["parquet", "rewrite", &text(&from), &text(&to), "--codec", "none"]);
    assert_eq!(ended.stdout.lines().count(), 2, "{}", ended.stdout);
    assert!(to.join("a.parquet").is_file() && to.join("year=2024/b.parquet").is_file());
    let report = checked(&text(&to));
    assert_eq!((report["tables"][0]["files"].as_u64(), report["tables"][0]["rows"].as_u64()), (Some(2), Some(120_000)));
}

/// INT96, decimals in bytes, halves, UUIDs, intervals: queries give equal answers before and after.
#[test]
fn rewritten_files_answer_as_the_old_ones() {
    let folder = tempfile::tempdir().expect("folder");
    let to = text(&folder.path().join("to.parquet"));
    let mut seen = 0;
    for entry in std::fs::read_dir(crate::root().join("data/foreign/files")).expect("files") {
        let from = entry.expect("a file").path();
        let kinds = ["ts_int96", "dec18-", "float16", "uuid", "interval", "time64_ns"];
        if !kinds.iter().any(|kind| text(&from).contains(kind)) {
            continue;
        }
        ran(&["parquet", "rewrite", &text(&from), &to, "--force"]);
        let answer = |file: &str| {
            let rows =
                format!("SELECT * FROM '{file}'; SELECT value, count(*) FROM '{file}' GROUP BY value ORDER BY 1, 2");
            // Rewritten INT96 times keep nanoseconds; read directly, they have microseconds.
            let unit = "datafusion.execution.parquet.coerce_int96=ns";
            ran(&["-q", "--device", "sim", "--format", "csv", "--set", unit, "-c", &rows]).stdout
        };
        assert_eq!(answer(&to), answer(&text(&from)), "{}", from.display());
        seen += 1;
    }
    assert!(seen >= 7, "{seen}");
}

#[test]
fn bad_files_and_options_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| text(&folder.path().join(name));
    let whole = std::fs::read(crate::root().join(SALES)).expect("sample");
    std::fs::write(folder.path().join("empty.parquet"), "").expect("file");
    std::fs::write(folder.path().join("words.parquet"), "words, and no Parquet file at all").expect("file");
    std::fs::write(folder.path().join("cut.parquet"), &whole[..whole.len() - 100]).expect("file");
    std::fs::create_dir(folder.path().join("nothing")).expect("folder");
    let to = at("to.parquet");
    for (name, reason) in [
        ("empty.parquet", "the file is empty"),
        ("words.parquet", "no Parquet file"),
        ("cut.parquet", "cut short"),
        ("nowhere.parquet", "does not exist"),
        ("nothing", "no .parquet files"),
    ] {
        let path = at(name);
        refused(&["parquet", "check", &path], 4, &[&path, reason]);
        refused(&["parquet", "rewrite", &path, &to], 4, &[&path, reason]);
    }
    assert!(!Path::new(&to).exists());
    refused(&["parquet", "rewrite", SALES, &to, "--row-group-rows", "5"], 2, &["--row-group-rows"]);
    refused(&["parquet", "rewrite", SALES, &to, "--codec", "gzip"], 2, &["--codec", "lz4_raw"]);
    refused(&["parquet", "rewrite", SALES], 2, &["OUT"]);
}

#[test]
fn copy_writes_the_layout_unless_it_is_told_otherwise() {
    let folder = tempfile::tempdir().expect("folder");
    let codecs_of = |name: &str, more: &[&str], options: &str| {
        let path = text(&folder.path().join(name));
        // A different text for each row, so that the writer abandons the dictionary.
        let rows = "SELECT i, 'a text of some length, number ' || i AS note FROM (SELECT value AS i FROM generate_series(1, 100000))";
        let copy = format!("COPY ({rows}) TO '{path}' STORED AS PARQUET {options}");
        ran(&[&["-q", "--device", "cpu"], more, &["-c", &copy]].concat());
        let report = checked(&path);
        let columns = report["files"][0]["columns"].as_array().expect("columns").clone();
        assert!(
            columns.iter().all(|column| !column["encodings"].to_string().contains("DELTA_BYTE_ARRAY")),
            "{columns:?}"
        );
        (columns[0]["codecs"].to_string(), columns[0]["pages"].as_u64().expect("pages"))
    };
    let (codec, pages) = codecs_of("default.parquet", &[], "");
    // Pages of 16,384 rows, and one more if two threads wrote.
    assert!(codec == r#"["SNAPPY"]"# && (7..=8).contains(&pages), "{codec} {pages}");
    let set = ["--set", "datafusion.execution.parquet.compression=zstd(1)"];
    assert_eq!(codecs_of("set.parquet", &set, "").0, r#"["ZSTD"]"#);
    assert_eq!(
        codecs_of("option.parquet", &[], "OPTIONS ('format.compression' 'uncompressed')").0,
        r#"["UNCOMPRESSED"]"#
    );
}

#[test]
fn columns_are_measured() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| text(&folder.path().join(name));
    ran(&["parquet", "rewrite", SALES, &at("a.parquet")]);
    ran(&["parquet", "rewrite", SALES, &at("b.parquet"), "--codec", "none"]);
    let measure = |device: &str, path: &str, more: &[&str]| {
        let args = ["parquet", "measure", path, "--device", device, "--repeat", "1", "--format", "json"];
        let ended = ran(&[&args, more].concat());
        serde_json::from_str::<serde_json::Value>(&ended.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", ended.stdout))
    };
    let told = measure("sim", &text(folder.path()), &["--set", "millpond.parquet_decoder=device"]);
    let tables = told["tables"].as_array().expect("tables");
    assert_eq!(tables.len(), 1, "files with the same columns are measured together: {told}");
    let columns = tables[0]["columns"].as_array().expect("columns");
    assert_eq!(columns.len(), 11);
    let checked = checked(&text(folder.path()));
    for (at, column) in columns.iter().enumerate() {
        assert_eq!((&column["rows"], &column["read_by"]), (&120_000.into(), &"device".into()), "{column}");
        let bytes = |file: usize| checked["files"][file]["columns"][at]["compressed_bytes"].as_u64().expect("bytes");
        assert_eq!(column["file_bytes"].as_u64(), Some(bytes(0) + bytes(1)), "{column}");
        let decoded = column["decoded_bytes"].as_u64().expect("bytes");
        let width = match column["type"].as_str().expect("a type") {
            "Int64" | "Float64" => Some(8),
            "Int32" | "Date32" => Some(4),
            _ => None,
        };
        // The remaining bytes are validity bits.
        let beside = width.map_or(0, |width| decoded - width * 120_000);
        assert!(beside <= 120_000 / 8 + 64, "{column}");
    }
    // By default the host decodes for the simulated device; without a device DataFusion decodes.
    let of = |told: &serde_json::Value| told["tables"][0]["columns"][0]["read_by"].clone();
    assert_eq!(of(&measure("sim", &at("a.parquet"), &["--columns", "sale_id,product"])), "host");
    assert_eq!(of(&measure("cpu", &at("a.parquet"), &["--columns", "sale_id"])), "DataFusion");
    let printed =
        ran(&["parquet", "measure", &at("a.parquet"), "--device", "cpu", "--columns", "price", "--repeat", "1"]);
    assert!(printed.stdout.contains("a.parquet: 60000 rows; CPU\n"), "{}", printed.stdout);
    assert!(printed.stdout.contains("price"), "{}", printed.stdout);
    refused(
        &["parquet", "measure", &at("a.parquet"), "--columns", "prize"],
        1,
        &["there is no column prize: the files have sale_id, "],
    );
    refused(&["parquet", "measure", &at("none.parquet")], 4, &["does not exist"]);
    refused(&["parquet", "measure", &at("a.parquet"), "--repeat", "0"], 2, &["--repeat"]);
}
