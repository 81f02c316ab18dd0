//! Scripts and tables in the form users provide them: byte order marks, names of tables, functions that need a device.

use std::fs;

use crate::{Ended, millpond, millpond_reading};

const CPU: [&str; 3] = ["-q", "--device", "cpu"];

fn ran(args: &[&str]) -> Ended {
    let ended = millpond(&[&CPU, args].concat());
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    ended
}

fn refused(args: &[&str], code: i32, says: &[&str]) {
    let ended = millpond(&[&CPU, args].concat());
    assert_eq!((ended.code, ended.stdout.as_str()), (code, ""), "{args:?}: {}", ended.stderr);
    for text in says {
        assert!(ended.stderr.contains(text), "{args:?} does not say {text:?}:\n{}", ended.stderr);
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_script() {
    let marked = "\u{feff}SELECT 1 AS n; SELECT '\u{feff}' AS m";
    let answer = "n\n1\nm\n\u{feff}\n";
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("q1.sql");
    fs::write(&file, marked).expect("a file");
    let path = file.to_str().expect("UTF-8");
    assert_eq!(ran(&["-c", marked]).stdout, answer);
    assert_eq!(ran(&["-f", path, "-f", path]).stdout, [answer, answer].concat());
    for args in [&CPU[..], &[&CPU[..], &["-f", "-"]].concat()] {
        let ended = millpond_reading(marked, args);
        assert_eq!((ended.code, ended.stdout.as_str()), (0, answer), "{}", ended.stderr);
    }
    // Carets have the same position as without the mark.
    let ended = millpond(&[&CPU[..], &["-c", "\u{feff}SELECT nothing"]].concat());
    assert!(ended.code == 1 && ended.stderr.contains("\n  line 1: SELECT nothing\n"), "{}", ended.stderr);

    fs::write(folder.path().join("suite.toml"), "\u{feff}name = \"marked\"\n").expect("a file");
    fs::write(&file, "\u{feff}SELECT sum(i) AS s FROM t").expect("a file");
    let data = folder.path().join("data");
    let copy = format!("COPY (SELECT value AS i FROM generate_series(1, 4)) TO '{}/t.parquet'", data.display());
    ran(&["-c", &copy]);
    let suite = folder.path().to_str().expect("UTF-8");
    let ended =
        millpond(&["run", suite, "--data", data.to_str().expect("UTF-8"), "--device", "sim", "--validate", "cpu"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn a_table_is_found_as_it_is_named_and_in_lower_case() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("x=1.csv");
    fs::write(&file, "UserId,n\n7,1\n").expect("a file");
    let path = file.to_str().expect("UTF-8");
    let named = |name: &str| format!("{name}={path}");
    let found = |table: &str, names: &[&str]| {
        for name in names {
            let ended = ran(&["--table", &named(table), "-c", &format!("SELECT n FROM {name}")]);
            assert_eq!(ended.stdout, "n\n1\n", "{table}: {name}");
        }
    };
    found(
        "MyTable",
        &["MyTable", "mytable", "MYTABLE", "\"MyTable\"", "public.MyTable", "datafusion.public.\"MyTable\""],
    );
    found("\"My=Table.1\"", &["\"My=Table.1\""]);
    found("public.MyTable", &["MyTable", "\"MyTable\"", "public.mytable"]);
    found("my table", &["\"my table\""]);
    found("a-b", &["\"a-b\""]);
    found("\"a\"\"b\"", &["\"a\"\"b\""]);
    let loud = folder.path().join("LOUD.CSV");
    fs::copy(&file, &loud).expect("a copy");
    assert_eq!(ran(&["--table", &format!("t={}", loud.display()), "-c", "SELECT n FROM t"]).stdout, "n\n1\n");
    // Two names that differ only in case are two tables.
    let other = folder.path().join("other.csv");
    fs::write(&other, "n\n2\n").expect("a file");
    let two = ["--table", &named("T"), "--table", &format!("t={}", other.display())];
    let sql = "SELECT (SELECT n FROM \"T\") AS a, (SELECT n FROM t) AS b, (SELECT n FROM T) AS c";
    assert_eq!(ran(&[&two[..], &["-c", sql]].concat()).stdout, "a,b,c\n1,2,2\n");
    // If SQL does not fold identifiers, table names are not folded either.
    let set = ["--set", "datafusion.sql_parser.enable_ident_normalization=false"];
    assert_eq!(
        ran(&[&set[..], &["--table", &named("MyTable"), "-c", "SELECT n FROM MyTable"]].concat()).stdout,
        "n\n1\n"
    );

    refused(
        &["--table", &named("my.table"), "-c", "SELECT 1"],
        2,
        &["--table my.table=", "makes 'my' a schema", "write --table '\"my.table\"=", "and \"my.table\" in SQL"],
    );
    for wrong in ["=x.csv", "\"\"=x.csv", "t=", "t", "\"t=x.csv"] {
        refused(&["--table", wrong, "-c", "SELECT 1"], 2, &["--table takes NAME=PATH, not '"]);
    }
    let note = ["note: possible column", ".\"UserId\"", "help: write \"UserId\", with the quotes"];
    refused(&["--table", &named("t"), "-c", "SELECT UserId FROM t"], 1, &note);
    assert_eq!(ran(&["--table", &named("t"), "-c", "SELECT \"UserId\" FROM t"]).stdout, "UserId\n7\n");
}

#[test]
fn a_suite_finds_tables_of_files_with_capitals_and_dots() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name);
    let copies = ["MyTable", "my.table", "a b", "[1]"].map(|name| {
        let target = at("d[0]").join(format!("{name}.parquet"));
        format!("COPY (SELECT value AS i FROM generate_series(1, 4)) TO '{}' STORED AS PARQUET", target.display())
    });
    fs::create_dir(at("d[0]")).expect("a folder");
    for copy in &copies {
        ran(&["-c", copy]);
    }
    fs::write(at("suite.toml"), "name = \"named\"\n").expect("a file");
    let tables = ["MyTable", "mytable", "\"MyTable\"", "\"my.table\"", "\"a b\"", "\"[1]\""];
    for (number, table) in tables.iter().enumerate() {
        fs::write(at(&format!("q{number}.sql")), format!("SELECT sum(i) AS s FROM {table}")).expect("a file");
    }
    let (suite, data) = (folder.path().to_str().expect("UTF-8"), at("d[0]"));
    let args =
        ["run", suite, "--data", data.to_str().expect("UTF-8"), "--device", "sim", "--validate", "cpu", "--json"];
    let ended = millpond(&args);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.stdout.lines().count(), tables.len(), "{}", ended.stdout);
}

#[test]
fn functions_of_the_store_run_without_a_device() {
    let table = ["--table", "t=data/samples/sales.parquet"];
    let sql = "SELECT * FROM millpond_cache_warm('t', 'price'); SELECT count(*) AS n FROM millpond_cache(); \
               SELECT count(*) AS n FROM millpond_cache_clear(); SELECT 1 AS n";
    let ended = millpond(&[&["--device", "cpu"], &table[..], &["--format", "csv", "-c", sql]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.ends_with("n\n0\nn\n0\nn\n1\n"), "{}", ended.stdout);
    for function in ["millpond_cache_warm", "millpond_cache", "millpond_cache_clear"] {
        assert!(ended.stderr.contains(&format!("note: {function} does nothing here")), "{}", ended.stderr);
    }
    let quiet = ran(&[&table[..], &["-c", sql]].concat());
    assert_eq!(quiet.stderr, "");
    // Wrong arguments fail without a device, as they would with one.
    for (wrong, says) in
        [("'nowhere'", "nowhere"), ("'t', 'nothing'", "nothing"), ("", "a table's name"), ("7", "names as strings")]
    {
        refused(&[&table[..], &["-c", &format!("SELECT * FROM millpond_cache_warm({wrong})")]].concat(), 1, &[says]);
    }
    let on_sim = millpond(
        &[&["--device", "sim"], &table[..], &["-c", "SELECT \"column\" FROM millpond_cache_warm('t', 'price')"]]
            .concat(),
    );
    assert!(on_sim.code == 0 && on_sim.stdout.contains("price"), "{}{}", on_sim.stdout, on_sim.stderr);
    assert!(!on_sim.stderr.contains("does nothing"), "{}", on_sim.stderr);
}
