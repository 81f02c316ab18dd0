//! Bad input: a message with the problem, the value and the solution, and the correct exit code.

use crate::{Ended, command, millpond, millpond_in, millpond_reading};

fn refused(args: &[&str], code: i32, says: &[&str]) -> Ended {
    let ended = millpond(args);
    assert_eq!(ended.code, code, "{args:?}: {}", ended.stderr);
    for text in says {
        assert!(ended.stderr.contains(text), "{args:?} does not say {text:?}:\n{}", ended.stderr);
    }
    assert_eq!(ended.stdout, "", "{args:?} printed data");
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    ended
}

#[test]
fn missing_file() {
    let sql = "SELECT * FROM 'data/samples/nowhere.parquet'";
    refused(&["-c", sql], 4, &["file 'data/samples/nowhere.parquet' does not exist"]);
    refused(&["--table", "t=nowhere.csv", "-c", "SELECT 1"], 4, &["file 'nowhere.csv' does not exist"]);
    refused(&["-f", "nowhere.sql"], 4, &["'nowhere.sql'"]);
}

#[test]
fn missing_store() {
    let sql = "SELECT * FROM 'ftp://bucket/t.parquet'";
    refused(
        &["-c", sql],
        4,
        &["cannot read 'ftp://bucket/t.parquet'", "no store for ftp://bucket; addresses begin with s3"],
    );
    if cfg!(feature = "object-stores") {
        return;
    }
    let says = ["cannot read 's3://bucket/t.parquet'", "for s3://bucket build it with the cargo feature object-stores"];
    refused(&["-c", "SELECT * FROM 's3://bucket/t.parquet'"], 4, &says);
    refused(&["--table", "t=s3://bucket/t.parquet", "-c", "SELECT 1"], 4, &says);
}

#[test]
fn corrupt_file() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("broken.parquet");
    std::fs::write(&file, "this is not Parquet at all, but it is long enough to be read").expect("file");
    let path = file.to_str().expect("UTF-8");
    refused(&["-c", &format!("SELECT * FROM '{path}'")], 4, &["cannot read", "broken.parquet", "Parquet"]);

    // A file with an intact footer and damaged pages.
    let mut bytes = std::fs::read(crate::root().join("data/samples/sales.parquet")).expect("sample");
    let end = bytes.len() - (64 << 10);
    bytes[1_000..end].fill(0xff);
    std::fs::write(&file, bytes).expect("file");
    refused(&["--device", "cpu", "-c", &format!("SELECT sum(quantity), max(customer) FROM '{path}'")], 4, &[]);
}

/// The bytes after the data of a Parquet file: its metadata, their length and the format's magic bytes.
fn metadata_of(file: &[u8]) -> &[u8] {
    let tail = file.len() - 8;
    let length = u32::from_le_bytes(file[tail..tail + 4].try_into().expect("four bytes"));
    &file[tail - length as usize..]
}

/// The metadata is intact but refers to bytes beyond the end of the file: pages of columns, or a page index.
#[test]
fn a_file_that_is_cut_short_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    // Without a page index the error occurs when columns are read.
    let (indexed, plain) = (crate::root().join("data/samples/sales.parquet"), folder.path().join("plain.parquet"));
    let copy = format!(
        "SET datafusion.execution.parquet.statistics_enabled = 'none'; \
         COPY (SELECT quantity, customer FROM '{}') TO '{}'",
        indexed.display(),
        plain.display()
    );
    assert_eq!(millpond(&["-q", "--device", "cpu", "-c", &copy]).code, 0);

    let (tables, cut) = (path("tables"), path("tables/cut.parquet"));
    std::fs::create_dir(&tables).expect("folder");
    let says =
        "the file ends before data that belongs to it; it is damaged, was cut short, or changed while it was read";
    for whole in [indexed, plain] {
        let whole = std::fs::read(whole).expect("a file");
        let metadata = metadata_of(&whole);
        let data = whole.len() - metadata.len();
        // The metadata is where data should be: some of the expected data begins before the file's end, or some is
        // beyond it.
        for kept in [data - metadata.len() - 100, 1_000] {
            std::fs::write(&cut, [&whole[..kept], metadata].concat()).expect("file");
            for device in ["cpu", "sim"] {
                let named = format!("error: cannot read '{cut}': {says}");
                let sums = "SELECT sum(quantity), max(customer) FROM";
                refused(&["--device", device, "-c", &format!("{sums} '{cut}'")], 4, &[&named]);
                let table = format!("t={cut}");
                refused(&["--device", device, "--table", &table, "-c", &format!("{sums} t")], 4, &[&named]);
            }
            // For a folder, the message names the file in it.
            let sql = format!("SELECT sum(quantity), max(customer) FROM '{tables}/'");
            let named = format!("cannot read '{tables}/");
            refused(&["--device", "cpu", "-c", &sql], 4, &[says, &named]);
        }
    }
}

#[test]
fn a_file_whose_footer_claims_too_much_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("claims.parquet");
    let mut bytes = std::fs::read(crate::root().join("data/samples/sales.parquet")).expect("sample");
    let end = bytes.len();
    bytes[end - 8..end - 4].copy_from_slice(&(1u32 << 30).to_le_bytes());
    std::fs::write(&file, &bytes).expect("file");
    let path = file.to_str().expect("UTF-8");
    let size = format!("{:.1} KiB", end as f64 / 1024.0);
    let says = format!("cannot read '{path}': its last bytes claim 1.0 GiB of metadata, and the whole file has {size}");
    // A reader that trusts the footer may panic if overflow checks are enabled.
    let sql = format!("SELECT count(*) FROM '{path}'");
    let ended = millpond_in(&[("RUST_BACKTRACE", "0")], "", &["-q", "-c", &sql]);
    assert!(ended.code == 4 && ended.stderr.starts_with(&format!("error: {says}")), "{}", ended.stderr);
    refused(&["--table", &format!("t={path}"), "-c", "SELECT count(*) FROM t"], 4, &[&says]);
    let table = format!("t={}", folder.path().display());
    refused(&["--table", &table, "-c", "SELECT count(*) FROM t"], 4, &[&says]);

    std::fs::write(&file, "").expect("file");
    refused(&["-c", &format!("SELECT quantity FROM '{path}'")], 4, &[path, "is empty"]);
}

/// If the store does not name the file, the statement's tables do, through views.
#[test]
fn a_damaged_file_behind_a_table_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("pages.parquet");
    let mut bytes = std::fs::read(crate::root().join("data/samples/sales.parquet")).expect("sample");
    let end = bytes.len() - (64 << 10);
    bytes[1_000..end].fill(0xff);
    std::fs::write(&file, bytes).expect("file");
    let path = file.to_str().expect("UTF-8");
    let sql = "CREATE VIEW v AS SELECT customer FROM t; SELECT max(length(customer)) FROM v";
    let says = format!("cannot read '{path}': ");
    refused(&["--device", "cpu", "--table", &format!("t={path}"), "-c", sql], 4, &[&says]);
}

#[test]
fn a_column_that_a_csv_file_has_not_is_no_matter_of_the_file() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("people.csv");
    std::fs::write(&file, "name,age\nann,30\n").expect("csv");
    let sql = format!("SELECT nme FROM '{}'", file.display());
    refused(&["--device", "cpu", "-c", &sql], 1, &["'nme' not found", "^^^"]);
}

#[test]
fn unknown_column_has_a_caret() {
    let ended = refused(
        &["--device", "cpu", "-c", "SELECT\n  prise FROM 'data/samples/sales.parquet'"],
        1,
        &["prise", "not found"],
    );
    let caret = ended.stderr.lines().position(|line| line.contains("^^^^^")).expect("a caret");
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(lines[caret - 1].contains("line 2: "), "{}", ended.stderr);
    assert_eq!(lines[caret].find('^'), lines[caret - 1].find("prise"), "{}", ended.stderr);
}

#[test]
fn syntax_error_has_a_caret() {
    refused(&["-c", "SELECT 1 +"], 1, &["Expected", "line 1: SELECT 1 +", "^"]);
    refused(&["-c", "SELECT 'never closed"], 1, &["line 1: ", "^"]);
}

#[test]
fn carets_count_lines_in_the_whole_script() {
    let ended = millpond_reading("SELECT 1;\n\nSELECT nothing", &["-q", "--device", "cpu"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("line 3: SELECT nothing"), "{}", ended.stderr);
}

#[test]
fn division_by_zero() {
    let sql = "SELECT sale_id / 0 FROM 'data/samples/sales.parquet'";
    refused(&["--device", "cpu", "-c", sql], 1, &["Divide by zero"]);
}

#[test]
fn division_by_zero_on_the_device() {
    let sql = "SELECT quantity / (quantity - quantity) FROM 'data/samples/sales.parquet' WHERE quantity > 0";
    for fallback in ["allow", "error"] {
        refused(&["--device", "sim", "--fallback", fallback, "-c", sql], 1, &["Divide by zero"]);
    }
}

#[test]
fn trouble_on_the_device() {
    let sql =
        "SELECT product, count(*), sum(price) FROM 'data/samples/sales.parquet' WHERE quantity > 2 GROUP BY product";
    let expected = millpond(&["-q", "--device", "cpu", "-c", &format!("{sql} ORDER BY product")]);
    for (setting, says) in [
        ("millpond.debug_sim_lose_at_launch=1", "lost"),
        ("millpond.debug_sim_lose_at_launch=2", "lost"),
        ("millpond.memory_limit_bytes=100", "out of device memory"),
    ] {
        refused(&["--device", "sim", "--fallback", "error", "--set", setting, "-c", sql], 3, &[says]);
        let answered = millpond(&["--device", "sim", "--set", setting, "-c", &format!("{sql} ORDER BY product")]);
        assert_eq!((answered.code, &answered.stdout), (0, &expected.stdout), "{setting}: {}", answered.stderr);
        assert!(answered.stderr.contains(says) && answered.stderr.contains("again on the CPU"), "{}", answered.stderr);
    }
}

#[test]
fn out_of_memory_names_who_holds_it_and_the_way_out() {
    let sql = "SELECT product, count(*), sum(price) FROM 'data/samples/sales.parquet' GROUP BY product";
    // Allocations fail, from the third one until memory is freed, although there is space: by then only the group table
    // is allocated.
    let settings =
        ["--set", "millpond.debug_sim_fail_allocation=3", "--set", "millpond.debug_sim_fail_until_free=true"];
    let settings = [&settings[..], &["--set", "millpond.cache=off"]].concat();
    let args = [&["--device", "sim", "--fallback", "error"], &settings[..], &["-c", sql]].concat();
    let says = ["out of device memory: wanted", "largest holders: query 1/groups", "lower millpond.batch_bytes"];
    refused(&args, 3, &says);

    // The query needs more than the limit, regardless of other holders.
    let limit = ["--set", "millpond.memory_limit_bytes=1000"];
    let args = [&["--device", "sim", "--fallback", "error"], &limit[..], &["-c", sql]].concat();
    refused(&args, 3, &["out of device memory", "of 1000 B", "millpond.memory_limit_bytes"]);
}

#[test]
fn what_the_device_cannot_do_is_refused_where_the_cpu_is_forbidden() {
    let sql = "SELECT store_id, approx_percentile_cont_with_weight(quantity, 1, 0.5) FROM 'data/samples/sales.parquet' GROUP BY store_id";
    refused(
        &["--device", "sim", "--fallback", "error", "-c", sql],
        3,
        &["approx_percentile_cont_with_weight", "millpond.fallback"],
    );

    // The message names the type without a device form.
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("lists.json");
    std::fs::write(&file, "{\"a\": [1, 2], \"b\": 1}\n{\"a\": [], \"b\": 2}\n").expect("file");
    let table = format!("lists={}", file.display());
    let sql = "SELECT arrow_cast(arrow_cast(b, 'Dictionary(UInt32, Int32)'), 'Dictionary(Int32, Dictionary(UInt32, Int32))') FROM lists WHERE b > 1";
    let args = ["--device", "sim", "--fallback", "error", "--table", &table, "-c", sql];
    refused(&args, 3, &["has type Dictionary(Int32, Dictionary(UInt32, Int32))", "no device form"]);
    let allowed = millpond(&["-q", "--device", "sim", "--table", &table, "-c", "SELECT b FROM lists WHERE a[1] = 1"]);
    assert_eq!((allowed.code, allowed.stdout.as_str()), (0, "b\n1\n"), "{}", allowed.stderr);
}

#[test]
fn absent_device() {
    refused(&["--device", "cuda:99", "-c", "SELECT 1"], 3, &["cuda:99", "not available"]);
}

#[test]
fn unknown_option_suggests_the_nearest() {
    refused(
        &["--set", "millpond.fallbak=error", "-c", "SELECT 1"],
        2,
        &["millpond.fallbak", "did you mean millpond.fallback?"],
    );
    refused(&["--set", "batch_rows=7", "-c", "SELECT 1"], 2, &["did you mean millpond.batch_rows?"]);
    refused(&["-c", "SET millpond.fallbak = 'error'"], 2, &["did you mean millpond.fallback?"]);
    refused(&["--falback", "error"], 2, &["--fallback"]);
}

#[test]
fn option_values_are_checked() {
    refused(&["--device", "gpu", "-c", "SELECT 1"], 2, &["--device cannot be 'gpu'", "auto, cuda"]);
    refused(&["--set", "millpond.batch_rows=many", "-c", "SELECT 1"], 2, &["millpond.batch_rows", "many"]);
    refused(&["--set", "no-equals-sign", "-c", "SELECT 1"], 2, &["KEY=VALUE"]);
}

#[test]
fn the_first_error_ends_a_script_unless_told_otherwise() {
    let script = "SELECT 1 AS a; SELECT nothing; SELECT 2 AS b";
    let stopped = millpond_reading(script, &["-q", "--device", "cpu"]);
    assert_eq!((stopped.code, stopped.stdout.as_str()), (1, "a\n1\n"));
    let went_on = millpond_reading(script, &["-q", "--device", "cpu", "--keep-going"]);
    assert_eq!((went_on.code, went_on.stdout.as_str()), (1, "a\n1\nb\n2\n"));
}

/// With DataFusion 55 the first statement panics during planning, and the second, if overflow checks are enabled, while
/// it runs.
#[test]
fn a_panic_ends_one_statement() {
    let planning = "SELECT x, x * 2 FROM (SELECT arrow_cast(v, 'Decimal128(5, -2)') AS x FROM (VALUES (12345)) t(v)) \
                    WHERE x < 12300";
    let running = "SELECT date_trunc('hour', to_timestamp_nanos(v)) FROM (VALUES (-9223372036854775808)) t(v)";
    let statements = if cfg!(debug_assertions) { vec![planning, running] } else { vec![planning] };
    for device in ["cpu", "sim"] {
        for sql in &statements {
            let quiet = millpond_in(&[("RUST_BACKTRACE", "0")], "", &["-q", "--device", device, "-c", sql]);
            // The device may support what DataFusion cannot do.
            if device == "sim" && quiet.code == 0 {
                continue;
            }
            assert_eq!((quiet.code, quiet.stdout.as_str()), (1, ""), "{device}: {sql}: {}", quiet.stderr);
            assert!(quiet.stderr.starts_with("error: internal error in DataFusion: "), "{}", quiet.stderr);
            assert_eq!(quiet.stderr.lines().count(), 1, "{}", quiet.stderr);

            let script = format!("SELECT 1 AS a; {sql}; SELECT 2 AS b");
            let went_on = millpond(&["-q", "--device", device, "--keep-going", "-c", &script]);
            assert_eq!((went_on.code, went_on.stdout.as_str()), (1, "a\n1\nb\n2\n"), "{}", went_on.stderr);

            let told = millpond_in(&[("RUST_BACKTRACE", "1")], "", &["-q", "--device", device, "-c", sql]);
            assert!(told.code == 1 && told.stderr.contains("stack backtrace"), "{}", told.stderr);
        }
    }
}

/// Environment variables that are not UTF-8 belong to other programs.
#[test]
#[cfg(unix)]
fn variables_that_are_no_text_are_left_alone() {
    use std::os::unix::ffi::OsStringExt;

    let value = std::ffi::OsString::from_vec(vec![0xff]);
    let mut command = command(&["-q", "--device", "cpu", "-c", "SELECT 1"]);
    let ended = command.env("NO_TEXT", value).output().expect("the binary starts");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}
