//! Plans by templates: statements that differ in constants alone, of every kind that a constant may be, and what makes
//! it another template.
//!
//!   statement 1 ─ planned ─┐
//!   statement 2 ─ the template of both ─┐
//!   statement 3, 4 … ───────────────────┴─► the CPU's answers, in turn and at once, while files, tables and options
//!                                           change

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};
use millpond::datafusion::arrow::datatypes::DataType;
use millpond::datafusion::prelude::ParquetReadOptions;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::{Answer, orders_its_rows};
use crate::edges::write_parquet;
use crate::support::session_with;

/// Rows `first..first + rows`: a number, another one that may be NULL, a decimal, a day, and two strings.
fn rows(first: i64, rows: i64) -> RecordBatch {
    let all = || first..first + rows;
    let decimal = all().map(|row| Some(i128::from(row * 37 % 1000)));
    let decimal = decimal.collect::<millpond::datafusion::arrow::array::Decimal128Array>();
    let columns: [(&str, ArrayRef, bool); 6] = [
        ("id", Arc::new(all().collect::<Int64Array>()), true),
        ("n", Arc::new(all().map(|row| (row % 7 > 0).then_some(row * 13 % 100)).collect::<Int64Array>()), true),
        ("d", Arc::new(decimal.with_precision_and_scale(12, 2).expect("it fits")), true),
        ("day", Arc::new(all().map(|row| Some(9000 + (row % 700) as i32)).collect::<Date32Array>()), true),
        ("s", Arc::new(all().map(|row| Some(format!("word {}", row * 3 % 40))).collect::<StringArray>()), true),
        ("t", Arc::new(all().map(|row| (row % 5 > 0).then(|| format!("50% of_{row}"))).collect::<StringArray>()), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

pub async fn session(device: DeviceChoice, folder: &std::path::Path) -> Millpond {
    let session = session_with(device, 2, Fallback::Allow);
    let path = |name: &str| folder.join(name).to_str().expect("UTF-8").to_string();
    session.context().register_parquet("r", path("r.parquet"), Default::default()).await.expect("read");
    session.context().register_parquet("u", path("u.parquet"), Default::default()).await.expect("read");
    session
}

pub fn files() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_parquet(&rows(0, 900), &folder.path().join("r.parquet"), 200);
    write_parquet(&rows(450, 300), &folder.path().join("u.parquet"), 200);
    folder
}

/// Both sessions return the same rows, or both fail.
pub async fn agree(cpu: &Millpond, sim: &Millpond, sql: &str) {
    let (expected, actual) = (cpu.execute(sql).await, sim.execute(sql).await);
    match (expected, actual) {
        (Ok(expected), Ok(actual)) => {
            let [expected, actual] = [expected, actual].map(|of| Answer::new(&of.schema, &of.batches));
            assert_eq!(expected.difference(&actual, orders_its_rows(sql)), None, "{sql}");
        }
        (Err(_), Err(_)) => {}
        (expected, actual) => {
            panic!("{sql}\nthe CPU: {:?}\nthe device: {:?}", expected.err(), actual.err());
        }
    }
}

/// Statements with `{}` for what differs, what stands there, and how many of these share a template with an earlier
/// one.
const STATEMENTS: &[(&str, &[&str], u64)] = &[
    (
        "SELECT count(*), sum(id) FROM r WHERE n < {}",
        &["5", "70", "-3", "1000000", "5.5", "7.25", "NULL", "'30'", "2e1"],
        5,
    ),
    ("SELECT id FROM r WHERE {} >= d", &["5", "0.07", "0.5", "9.991", "123456789012.5"], 3),
    ("SELECT id FROM r WHERE d BETWEEN {} ORDER BY id", &["1 AND 2", "2 AND 1", "0 AND 100", "NULL AND 5"], 2),
    (
        "SELECT id FROM r WHERE n IN ({})",
        &["1, 2", "3, 4", "13, 26, 39, 52", "1, 1, 1, 1", "13, NULL, 26, 39", "5, 91, 7, 99"],
        3,
    ),
    ("SELECT id FROM r WHERE n NOT IN ({}, 99)", &["1, 2, 3", "13, 26, 39"], 1),
    (
        "SELECT s, count(*) FROM r WHERE s {} GROUP BY s",
        &["= 'word 3'", "= 'word 39'", "= 'no word'", "= ''", "<> 'word 3'"],
        3,
    ),
    ("SELECT id FROM r WHERE t LIKE {}", &["'50\\%%'", "'%7'", "'%of%1%'", "''", "'50% of_3'", "'%'", "NULL"], 5),
    ("SELECT id FROM r WHERE s NOT LIKE {} AND n > {}", &["'w%'", "'word 1%'", "'7'"], 0),
    (
        "SELECT id FROM r WHERE day > {} ORDER BY id",
        &[
            "date '1995-01-01' - interval '3' month",
            "date '1995-06-01' - interval '1' day",
            "'1995-03-03'",
            "'1994-09-01'",
        ],
        2,
    ),
    ("SELECT id FROM r WHERE n > {} AND n > 50", &["20", "60", "90"], 2),
    ("SELECT id FROM r WHERE n = {} OR n = 13", &["13", "26", "27"], 2),
    ("SELECT id FROM r WHERE NOT (n < {} AND id > 7)", &["13", "26"], 1),
    ("SELECT n, count(*) AS c FROM r GROUP BY n HAVING count(*) > {} ORDER BY n", &["2", "9", "12"], 2),
    ("SELECT count(*) FROM r JOIN u ON r.id = u.id AND r.n < u.n + {}", &["2", "9"], 0),
    ("SELECT count(*) FROM r LEFT JOIN u ON r.id = u.id AND u.n < {}", &["20", "90", "-1"], 2),
    ("SELECT count(*) FROM r WHERE id IN (SELECT id FROM u WHERE n > {})", &["20", "90", "200"], 2),
    (
        "SELECT count(*) FROM r WHERE EXISTS (SELECT 1 FROM u WHERE u.id = r.id AND u.s = {})",
        &["'word 3'", "'word 6'"],
        1,
    ),
    ("SELECT id FROM r WHERE n > (SELECT avg(n) FROM u WHERE u.s = r.s AND u.d < {})", &["3", "8"], 1),
    ("SELECT id FROM r WHERE n < (SELECT min(n) FROM u WHERE d > {}) + 30", &["3", "9.5", "9.75"], 1),
    ("SELECT id + 1 FROM r WHERE id < {} LIMIT 5", &["3", "4"], 1),
    ("SELECT id FROM r WHERE n < {}", &["1 / 0", "CAST('x' AS INT)", "CAST('12' AS INT)", "3 + 4 * 2"], 0),
    ("SELECT id FROM r WHERE coalesce(n > {}, true) AND id < 40", &["3", "50"], 1),
    ("SELECT id, n > 5 AS big FROM r WHERE (n > {}) = (d > 3)", &["3", "50"], 0),
    ("SELECT sum(CASE WHEN n > {} THEN 1 ELSE 0 END) AS s FROM r", &["3", "50"], 0),
    ("SELECT id FROM r WHERE (s = 'word 3') = {}", &["true", "false"], 0),
    (
        "SELECT m FROM (SELECT max(n) AS m FROM r) AS q WHERE CASE WHEN false THEN 1 ELSE 2 END < {}",
        &["1", "5", "0"],
        0,
    ),
    ("SELECT m FROM (SELECT max(n) AS m FROM r) AS q WHERE CASE WHEN true THEN 2 ELSE m END < {}", &["1", "5", "0"], 0),
    (
        "SELECT m FROM (SELECT max(n) AS m, min(id) AS id FROM r WHERE d > 1) AS q WHERE m + id < {}",
        &["1", "500", "99"],
        2,
    ),
    // Both sides have a column of this name.
    (
        "SELECT r.id FROM u AS r LEFT JOIN r AS u ON r.id = u.id + 600 WHERE r.s <> {} AND CASE WHEN isnan(u.n / 3.0) THEN 1.0 ELSE u.n / 3.0 END <= r.n",
        &["'word 3'", "'word 6'", "'word 9'"],
        2,
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn constants_of_every_kind() {
    let folder = files();
    let (cpu, sim) = (session(DeviceChoice::Cpu, folder.path()).await, session(DeviceChoice::Sim, folder.path()).await);
    let mut wrong = vec![];
    for (statement, constants, shared) in STATEMENTS {
        let statements: Vec<String> = constants.iter().map(|of| statement.replace("{}", of)).collect();
        let before = sim.plans_found().by_template;
        for sql in &statements {
            agree(&cpu, &sim, sql).await;
        }
        let by_template = sim.plans_found().by_template - before;
        if by_template != *shared {
            wrong.push(format!("{statement}: {by_template}, not {shared}"));
        }
        for sql in statements.iter().rev() {
            agree(&cpu, &sim, sql).await;
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Files, tables, functions and options change between statements of one template.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_changed_is_another_template() {
    let folder = files();
    let sim = session(DeviceChoice::Sim, folder.path()).await;
    let check = async |constant: i64| {
        let cpu = session(DeviceChoice::Cpu, folder.path()).await;
        agree(
            &cpu,
            &sim,
            &format!("SELECT s, sum(id), count(n) FROM r WHERE n < {constant} AND s < 'word 5' GROUP BY s"),
        )
        .await;
    };
    for constant in [10, 20, 30] {
        check(constant).await;
    }
    write_parquet(&rows(5000, 1200), &folder.path().join("r.parquet"), 300);
    check(40).await;
    check(50).await;
    for option in
        ["datafusion.execution.parquet.pushdown_filters = true", "millpond.cache = off", "millpond.cache = auto"]
    {
        sim.execute(&format!("SET {option}")).await.expect("set");
        for constant in [11, 21, 31] {
            check(constant).await;
        }
    }
    let cpu = session(DeviceChoice::Cpu, folder.path()).await;
    for session in [&cpu, &sim] {
        session.execute("CREATE TABLE m AS SELECT id, n FROM u").await.expect("made");
    }
    for constant in 0..3 {
        agree(&cpu, &sim, &format!("SELECT count(*), sum(n) FROM m WHERE id > {}", 500 + constant)).await;
    }
    for session in [&cpu, &sim] {
        session.execute("INSERT INTO m VALUES (700, 1), (NULL, 2)").await.expect("inserted");
    }
    for constant in 3..6 {
        agree(&cpu, &sim, &format!("SELECT count(*), sum(n) FROM m WHERE id > {}", 500 + constant)).await;
    }
    for session in [&cpu, &sim] {
        session.execute("CREATE OR REPLACE TABLE m AS SELECT n AS id, id AS n FROM u").await.expect("made");
    }
    agree(&cpu, &sim, "SELECT count(*), sum(n) FROM m WHERE id > 50").await;
}

/// Values of partitions decide which files are read: DataFusion has to know them while it plans.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_those_of_the_statement() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for part in 0..4 {
        let path = folder.path().join(format!("part={part}"));
        std::fs::create_dir(&path).expect("a folder");
        write_parquet(&rows(part * 100, 100), &path.join("a.parquet"), 50);
    }
    let session = async |device| {
        let session = session_with(device, 2, Fallback::Allow);
        let options = ParquetReadOptions::default().table_partition_cols(vec![("part".into(), DataType::Int64)]);
        let path = format!("{}/", folder.path().display());
        session.context().register_parquet("h", &path, options).await.expect("read");
        session
    };
    let (cpu, sim) = (session(DeviceChoice::Cpu).await, session(DeviceChoice::Sim).await);
    for part in [0, 3, 1, 2, 7, 0] {
        agree(&cpu, &sim, &format!("SELECT count(*), sum(id), min(part) FROM h WHERE part = {part}")).await;
        agree(&cpu, &sim, &format!("SELECT count(*), sum(id) FROM h WHERE part >= {part} AND n < 60")).await;
        agree(&cpu, &sim, &format!("SELECT count(*), sum(id) FROM h WHERE part + n > {part} * 20 AND id <> {part}"))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn statements_of_one_template_run_at_once() {
    let folder = files();
    let (cpu, sim) = (session(DeviceChoice::Cpu, folder.path()).await, session(DeviceChoice::Sim, folder.path()).await);
    let sql = |of: i64| {
        format!(
            "SELECT r.s, count(*) AS c, sum(u.id) AS i FROM r JOIN u ON r.n = u.n WHERE r.id < {} AND u.s <> 'word {of}' \
             AND r.d > (SELECT min(d) FROM u WHERE n > {of}) GROUP BY r.s ORDER BY r.s",
            of * 20
        )
    };
    let mut expected = vec![];
    for of in 0..24 {
        let result = cpu.execute(&sql(of)).await.expect("the CPU's answer");
        expected.push(Answer::new(&result.schema, &result.batches));
    }
    let runs = (0..24).map(|of| {
        let (sim, sql) = (sim.clone(), sql(of));
        tokio::spawn(async move { sim.execute(&sql).await.expect("the device's answer") })
    });
    for (run, expected) in runs.collect::<Vec<_>>().into_iter().zip(&expected) {
        let result = run.await.expect("no panic");
        assert_eq!(expected.difference(&Answer::new(&result.schema, &result.batches), true), None);
    }
    assert!(sim.plans_found().by_template > 10, "{:?}", sim.plans_found());
    assert_eq!(sim.engine().expect("a device").take_findings(), Vec::<String>::new());
}
