//! `millpond qualify`: statements are planned without a GPU, and not run.

use serde_json::Value;

use crate::{millpond, millpond_reading};

const SALES: &str = "'data/samples/sales.parquet'";

fn json(args: &[&str]) -> (Value, crate::Ended) {
    let ended = millpond(&[&["qualify", "--json"], args].concat());
    let value =
        serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {}{}", ended.stdout, ended.stderr));
    (value, ended)
}

#[test]
fn each_statement_says_how_much_of_it_would_run_on_a_device() {
    let folder = tempfile::tempdir().expect("folder");
    let suite = folder.path().join("suite.sql");
    let text = format!(
        "-- all of it\nSELECT product, sum(quantity) AS n FROM {SALES} GROUP BY product ORDER BY n;\n\n\
         SET millpond.min_rows = 1;\nSELECT to_hex(quantity) AS h FROM {SALES} WHERE quantity > 3;\n\
         EXPLAIN SELECT count(*) FROM {SALES} WHERE quantity > 3"
    );
    std::fs::write(&suite, text).expect("a suite");
    let path = suite.to_str().expect("UTF-8");
    let (value, ended) = json(&["-f", path]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let rows = value["statements"].as_array().expect("statements");
    let share = |row: &Value| (row["operators_on_device"].as_u64(), row["operators"].as_u64());
    let lines: Vec<u64> = rows.iter().map(|row| row["line"].as_u64().expect("a line")).collect();
    assert_eq!(lines, [1, 4, 5, 6]);
    assert_eq!(share(&rows[0]).0, share(&rows[0]).1, "{}", rows[0]);
    assert_eq!(share(&rows[1]), (None, None), "a setting has no operators");
    assert_eq!(share(&rows[2]), (Some(1), Some(2)), "{}", rows[2]);
    assert_eq!(rows[2]["reasons"][0]["code"], "unsupported-expression");
    assert_eq!(share(&rows[3]), (Some(2), Some(2)), "{}", rows[3]);
    assert_eq!(value["totals"]["wholly_on_device"], 2);
    assert_eq!(value["totals"]["reasons"]["unsupported-expression"], 1);

    let ended = millpond(&["qualify", "-f", path]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    for wanted in [
        "   3     5     1 of 2  SELECT to_hex(quantity) AS h FROM ",
        "unsupported-expression: to_hex(",
        "   2     4    defined  SET millpond.min_rows = 1\n",
        "2 of 3 statements with operators wholly\n",
        "     1  unsupported-expression: an expression has no device form\n",
    ] {
        assert!(ended.stdout.contains(wanted), "{wanted}:\n{}", ended.stdout);
    }
    let piped = millpond_reading(&format!("SELECT count(*) FROM {SALES}"), &["qualify", "--format", "json"]);
    assert!(piped.code == 0 && piped.stdout.starts_with("{\"statements\":"), "{}", piped.stdout);
}

#[test]
fn definitions_are_executed_and_nothing_else_is() {
    let folder = tempfile::tempdir().expect("folder");
    let csv = folder.path().join("people.csv");
    std::fs::write(&csv, "name,age\nann,30\nbob,\n").expect("csv");
    let table = format!("people={}", csv.display());
    let target = folder.path().join("out.csv");
    let sql = format!(
        "CREATE TABLE old AS SELECT name, age FROM people WHERE age > 1 / (age - 30);\n\
         CREATE VIEW v AS SELECT name FROM old WHERE age > 1;\n\
         SELECT name, count(*) FROM v GROUP BY name;\n\
         INSERT INTO old SELECT name, age + 1 FROM old WHERE age > 1;\n\
         CREATE TABLE IF NOT EXISTS old AS SELECT 1 AS one;\n\
         SELECT age FROM old WHERE age > 1;\n\
         COPY (SELECT name FROM old WHERE age > 2) TO '{}'",
        target.display()
    );
    let (value, ended) = json(&["--table", &table, "-c", &sql]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{value}");
    let errors: Vec<&Value> = value["statements"].as_array().expect("rows").iter().map(|row| &row["error"]).collect();
    assert!(errors.iter().all(|error| error.is_null()), "{value}");
    assert_eq!(value["totals"]["failed"], 0);
    assert_eq!(value["statements"][2]["operators"], value["statements"][2]["operators_on_device"], "{value}");
    assert!(!target.exists(), "COPY is planned alone");
}

#[test]
fn settings_that_would_change_a_reason_are_named() {
    let sql = format!("SELECT product, count(*) AS n FROM {SALES} GROUP BY product");
    let ended = millpond(&["qualify", "--set", "millpond.min_rows=1000000000", "-c", &sql]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.contains("too-few-rows: "), "{}", ended.stdout);
    assert!(ended.stdout.contains("(SET millpond.min_rows changes it)"), "{}", ended.stdout);
}

#[test]
fn errors_have_the_codes_of_statements() {
    let (value, ended) = json(&["-c", "SELECT nothing FROM nowhere; SELECT 1 AS one"]);
    assert_eq!(ended.code, 1);
    assert!(value["statements"][0]["error"].as_str().is_some_and(|error| error.contains("nowhere")), "{value}");
    assert!(value["statements"][1]["error"].is_null(), "the others go on: {value}");
    let ended = millpond(&["qualify", "-c", "SELECT * FROM 'missing.parquet'"]);
    assert_eq!(ended.code, 4, "{}", ended.stdout);
    assert!(ended.stdout.contains("1 of 1 statements could not be planned"), "{}", ended.stdout);
    for (args, code) in [
        (&["-f", "no_such_file.sql"][..], 4),
        (&["--device", "cuda", "-c", "SELECT 1"], 2),
        (&["--format", "json", "--json", "-c", "SELECT 1"], 2),
        (&["-c", "SET millpond.no_such = 1"], 2),
        (&["-c", "SELECT 'never ends"], 1),
    ] {
        let ended = millpond(&[&["qualify"], args].concat());
        assert_eq!(ended.code, code, "{args:?}: {}{}", ended.stdout, ended.stderr);
    }
}
