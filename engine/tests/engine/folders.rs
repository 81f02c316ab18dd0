//! Files in folders: keys of partitions, patterns of paths, hidden and empty files, times of INT96, and folders that
//! change.
//!
//! Values  DuckDB 2.0's over the same files, written by it where a test says so; refusals are ours.

use std::path::Path;
use std::sync::Arc;

use futures::TryStreamExt;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::util::display::array_value_to_string;
use millpond::datafusion::dataframe::DataFrameWriteOptions;
use millpond::datafusion::object_store::memory::InMemory;
use millpond::datafusion::prelude::SessionConfig;
use millpond::{DeviceChoice, Millpond};
use tempfile::TempDir;
use url::Url;

use crate::support::session;

const DEVICES: [DeviceChoice; 2] = [DeviceChoice::Cpu, DeviceChoice::Sim];

/// Rows whose keys are NULL, empty, or contain path separators.
const ROWS: &str = "CREATE TABLE t AS SELECT CAST(v AS INT) AS v, CAST(k AS VARCHAR) AS k, CAST(n AS INT) AS n, CAST(d AS DATE) AS d, \
     CAST(p AS BOOLEAN) AS p FROM (VALUES (1, 'a', 10, '2020-02-29', 'true'), (2, NULL, 20, '2020-02-29', 'false'), \
     (3, '', 10, NULL, NULL), (4, 'b/c', NULL, '1969-12-31', 'true'), (5, 'x=y %', 30, '9999-12-31', NULL), \
     (6, NULL, NULL, NULL, 'true'), (7, 'é\\ \"*?', -5, NULL, 'false'), (8, '%2F', 0, '0001-01-01', NULL)) AS x(v, k, n, d, p)";

/// What they are by the text key: NULL is `NULL`, the empty text nothing.
const BY_TEXT: &str = "1|a\n2|NULL\n3|\n4|b/c\n5|x=y %\n6|NULL\n7|é\\ \"*?\n8|%2F";

fn text(rows: &[RecordBatch]) -> String {
    let mut lines = Vec::new();
    for batch in rows {
        for row in 0..batch.num_rows() {
            let value = |column: &Arc<dyn millpond::datafusion::arrow::array::Array>| match column.is_null(row) {
                true => "NULL".to_string(),
                false => array_value_to_string(column, row).expect("a value"),
            };
            // A dictionary's NULL may be one of its values.
            lines.push(batch.columns().iter().map(value).collect::<Vec<_>>().join("|"));
        }
    }
    lines.join("\n")
}

/// The rows of a query through our door and through DataFusion's, which have to be the same.
async fn ask(session: &Millpond, sql: &str) -> Result<String, String> {
    let ours = session.execute(sql).await.map(|result| text(&result.batches)).map_err(|error| error.to_string());
    let frame = session.context().sql(sql).await;
    let rows = match frame {
        Ok(frame) => match frame.execute_stream().await {
            Ok(rows) => rows.try_collect::<Vec<_>>().await,
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    let theirs = rows.map(|rows| text(&rows)).map_err(|error| error.to_string());
    match (&ours, &theirs) {
        (Ok(ours), Ok(theirs)) => assert_eq!(ours, theirs, "{sql}"),
        (Err(_), Err(_)) => {}
        _ => panic!("{sql}: {ours:?} and {theirs:?}"),
    }
    ours
}

async fn check(session: &Millpond, cases: &[(&str, &str)]) {
    for (sql, right) in cases {
        assert_eq!(ask(session, sql).await.as_deref(), Ok(*right), "{sql}");
    }
}

async fn run(session: &Millpond, sql: &str) {
    session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn refused(session: &Millpond, sql: &str, words: &str) {
    let error = session.execute(sql).await.map(|result| text(&result.batches)).expect_err(sql).to_string();
    assert!(error.contains(words), "{sql}: {error}");
}

/// A folder, and a session whose statements write `DIR` for it.
struct Place {
    folder: TempDir,
    session: Millpond,
}

impl Place {
    fn new(device: DeviceChoice) -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), session: session(device) }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn sql(&self, sql: &str) -> String {
        sql.replace("DIR", self.path().to_str().expect("UTF-8"))
    }

    async fn run(&self, sql: &str) {
        run(&self.session, &self.sql(sql)).await;
    }

    async fn check(&self, cases: &[(&str, &str)]) {
        for (sql, right) in cases {
            check(&self.session, &[(&self.sql(sql), right)]).await;
        }
    }

    async fn refused(&self, sql: &str, words: &str) {
        refused(&self.session, &self.sql(sql), words).await;
    }

    /// Files of one row each, with these numbers.
    async fn files(&self, files: &[(&str, i32)]) {
        for (file, i) in files {
            self.run(&format!("COPY (SELECT CAST({i} AS INT) AS i) TO 'DIR/{file}' STORED AS PARQUET")).await;
        }
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path().join(folder)).expect("a folder");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> = entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

#[tokio::test]
async fn keys_that_are_null_or_have_marks_of_paths_come_back() {
    for device in DEVICES {
        for format in ["PARQUET", "CSV", "JSON"] {
            let place = Place::new(device);
            place.run(ROWS).await;
            place.run(&format!("COPY (SELECT v, k FROM t) TO 'DIR/k/' STORED AS {format} PARTITIONED BY (k)")).await;
            let names = place.names("k");
            assert!(names.contains(&"k=__HIVE_DEFAULT_PARTITION__".to_string()), "{names:?}");
            assert!(names.contains(&"k=".to_string()) && names.len() == 7, "{names:?}");
            place
                .run(&format!(
                    "CREATE EXTERNAL TABLE k (v INT, k VARCHAR) STORED AS {format} PARTITIONED BY (k) LOCATION 'DIR/k/' {}",
                    if format == "CSV" { "OPTIONS ('format.has_header' 'true')" } else { "" }
                ))
                .await;
            place
                .check(&[
                    ("SELECT v, k FROM k ORDER BY v", BY_TEXT),
                    ("SELECT v, CAST(k AS VARCHAR) FROM 'DIR/k/' ORDER BY v", BY_TEXT),
                    ("SELECT v FROM k WHERE k IS NULL ORDER BY v", "2\n6"),
                    ("SELECT v FROM k WHERE k = ''", "3"),
                    ("SELECT v FROM k WHERE k <> 'a' ORDER BY v", "3\n4\n5\n7\n8"),
                    ("SELECT v FROM 'DIR/k/' WHERE k IN ('b/c', 'x=y %', '%2F') ORDER BY v", "4\n5\n8"),
                    ("SELECT v FROM 'DIR/k/' WHERE k NOT IN ('a', '') OR k IS NULL ORDER BY v", "2\n4\n5\n6\n7\n8"),
                    ("SELECT count(*), count(k), count(DISTINCT k), max(k) FROM k", "8|6|6|é\\ \"*?"),
                    ("SELECT count(*), count(k) FROM 'DIR/k/'", "8|6"),
                    (
                        "SELECT k, sum(v) FROM k WHERE v <> 4 GROUP BY k ORDER BY 2, k NULLS LAST",
                        "a|1\n|3\nx=y %|5\né\\ \"*?|7\n%2F|8\nNULL|8",
                    ),
                    ("SELECT count(*) FROM k AS a JOIN k AS b ON a.k = b.k", "6"),
                ])
                .await;
        }
    }
}

#[tokio::test]
async fn keys_of_all_types_may_be_null() {
    const ALL: &str = "1|10|2020-02-29|true\n2|20|2020-02-29|false\n3|10|NULL|NULL\n4|NULL|1969-12-31|true\n5|30|9999-12-31|NULL\n\
                       6|NULL|NULL|true\n7|-5|NULL|false\n8|0|0001-01-01|NULL";
    for device in DEVICES {
        let place = Place::new(device);
        place.run(ROWS).await;
        place.run("COPY (SELECT v, n, d, p FROM t) TO 'DIR/c/' STORED AS PARQUET PARTITIONED BY (n, d, p)").await;
        let table = |name: &str| {
            format!(
                "CREATE EXTERNAL TABLE {name} (v INT, n INT, d DATE, p BOOLEAN) STORED AS PARQUET PARTITIONED BY (n, d, p) \
                 LOCATION 'DIR/{name}/'"
            )
        };
        place.run(&table("c")).await;
        place.run(&table("i")).await;
        place.run("INSERT INTO i SELECT v, n, d, p FROM t WHERE v < 5").await;
        place.run("INSERT INTO i SELECT v, n, d, p FROM t WHERE v >= 5").await;
        for name in ["c", "i"] {
            let sql = format!("SELECT v, n, d, p FROM {name} ORDER BY v");
            check(&place.session, &[(&sql, ALL)]).await;
            let cases = [
                ("SELECT v FROM T WHERE n IS NULL OR n < 10 ORDER BY v", "4\n6\n7\n8"),
                ("SELECT sum(n), min(n), max(n), max(d), min(d), count(p) FROM T", "65|-5|30|9999-12-31|0001-01-01|5"),
                ("SELECT v FROM T WHERE p IS NULL AND d IS NOT NULL ORDER BY v", "5\n8"),
                ("SELECT v FROM T WHERE NOT p ORDER BY v", "2\n7"),
                ("SELECT v FROM T WHERE p IS NOT TRUE ORDER BY v", "2\n3\n5\n7\n8"),
                ("SELECT n, count(*) FROM T GROUP BY n ORDER BY n NULLS LAST", "-5|1\n0|1\n10|2\n20|1\n30|1\nNULL|2"),
                ("SELECT v FROM T WHERE coalesce(n, 100) > 25 AND v < 6 ORDER BY v", "4\n5"),
            ];
            for (sql, right) in cases {
                check(&place.session, &[(&sql.replace("FROM T", &format!("FROM {name}")), right)]).await;
            }
        }
        // Through the names of folders alone.
        place
            .check(&[
                (
                    "SELECT v, n, d FROM 'DIR/c/' WHERE n > 5 ORDER BY v",
                    "1|10|2020-02-29\n2|20|2020-02-29\n3|10|NULL\n5|30|9999-12-31",
                ),
                ("SELECT arrow_typeof(n), arrow_typeof(d) FROM 'DIR/c/' LIMIT 1", "Int64|Date32"),
            ])
            .await;
    }
}

/// Names as DuckDB writes them, which encodes more, and as other programs do, which encode less.
#[tokio::test]
async fn names_of_folders_of_others_are_read() {
    for device in DEVICES {
        let place = Place::new(device);
        place.files(&[("f.parquet", 1)]).await;
        for (index, name) in
            ["k=x%3Dy%20%25", "k=x=y %25", "k=%C3%A9", "k=é", "k=__HIVE_DEFAULT_PARTITION__"].iter().enumerate()
        {
            let folder = place.path().join("o").join(name);
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::copy(place.path().join("f.parquet"), folder.join(format!("{index}.parquet"))).expect("a file");
        }
        place
            .check(&[("SELECT k, count(*) FROM 'DIR/o/' GROUP BY k ORDER BY k NULLS LAST", "x=y %|2\né|2\nNULL|1")])
            .await;
    }
}

#[tokio::test]
async fn whole_numbers_and_dates_in_names_are_such() {
    for device in DEVICES {
        let place = Place::new(device);
        place
            .files(&[
                ("m/month=9/day=2020-02-29/p.parquet", 1),
                ("m/month=10/day=2019-12-31/p.parquet", 2),
                ("m/month=11/day=2020-01-01/p.parquet", 3),
                ("m/month=01/day=0999-01-01/p.parquet", 4),
                ("mixed/k=9/p.parquet", 1),
                ("mixed/k=x/p.parquet", 2),
            ])
            .await;
        place.run("CREATE EXTERNAL TABLE m STORED AS PARQUET LOCATION 'DIR/m/'").await;
        place.run("CREATE EXTERNAL TABLE named STORED AS PARQUET PARTITIONED BY (month, day) LOCATION 'DIR/m/'").await;
        for from in ["'DIR/m/'", "'DIR/m/**/*.parquet'", "m", "named"] {
            let cases = [
                ("SELECT max(month), sum(month), avg(month) FROM ALL", "11|31|7.75"),
                ("SELECT i FROM ALL ORDER BY month DESC", "3\n2\n1\n4"),
                ("SELECT i FROM ALL WHERE month = 1", "4"),
                ("SELECT i FROM ALL WHERE month = '01'", "4"),
                ("SELECT i FROM ALL WHERE month IN (1, 9) OR month > 10 ORDER BY i", "1\n3\n4"),
                ("SELECT i, month + 1 FROM ALL ORDER BY i", "1|10\n2|11\n3|12\n4|2"),
                ("SELECT i FROM ALL WHERE day >= DATE '2019-12-31' AND day < DATE '2020-02-01' ORDER BY i", "2\n3"),
                ("SELECT min(day), max(day) FROM ALL", "0999-01-01|2020-02-29"),
                ("SELECT i FROM ALL ORDER BY day LIMIT 2", "4\n2"),
            ];
            for (sql, right) in cases {
                place.check(&[(&sql.replace("ALL", from), right)]).await;
            }
        }
        place.check(&[("SELECT max(k), min(k) FROM 'DIR/mixed/'", "x|9")]).await;
    }
}

#[tokio::test]
async fn patterns_are_those_of_a_shell() {
    for device in DEVICES {
        let place = Place::new(device);
        place
            .files(&[
                ("tree/a.parquet", 5),
                ("tree/s/b.parquet", 6),
                ("tree/s/t/c.parquet", 7),
                ("tree/a10.parquet", 8),
                ("tree/u/t/d.parquet", 9),
                ("tree/u/.x/e.parquet", 10),
                ("tree/year=2024/m=1/f.parquet", 11),
                ("tree/a{b}.parquet", 12),
            ])
            .await;
        for (pattern, right) in [
            ("tree/a*.parquet", "5\n8\n12"),
            ("tree/?.parquet", "5"),
            ("tree/[a-b]1?.parquet", "8"),
            ("tree/*/*.parquet", "6"),
            ("tree/[su]/*/*.parquet", "7\n9"),
            ("tree/**/[a-d].parquet", "5\n6\n7\n9"),
            ("tree/s/**/*.parquet", "6\n7"),
            ("tree/s/**", "6\n7"),
            ("tree/*/t/", "7\n9"),
            ("tree/{a,a10}.parquet", "5\n8"),
            ("tree/{s,u}/t/*.parquet", "7\n9"),
            ("tree/{a,s/{b,t/c}}.parquet", "5\n6\n7"),
            ("tree/a{b}.parquet", "12"),
            ("tree/u/.x/*", "10"),
            ("tree/u/", "9"),
            ("tree/year=*/*/f.parquet", "11"),
        ] {
            let select = format!("SELECT i FROM 'DIR/{pattern}' ORDER BY i");
            place.check(&[(&select, right)]).await;
            place.run(&format!("CREATE OR REPLACE EXTERNAL TABLE p STORED AS PARQUET LOCATION 'DIR/{pattern}'")).await;
            place.check(&[("SELECT i FROM p ORDER BY i", right)]).await;
            place
                .run(&format!("CREATE OR REPLACE EXTERNAL TABLE p (i INT) STORED AS PARQUET LOCATION 'DIR/{pattern}'"))
                .await;
            place.check(&[("SELECT i FROM p ORDER BY i", right)]).await;
        }
        place.refused("SELECT * FROM 'DIR/tree/*.nothing'", "no file matches '").await;
        place.refused("SELECT i FROM 'DIR/tree/'", "Found mixed partition values on disk").await;
        place.run("CREATE EXTERNAL TABLE q (i INT) STORED AS PARQUET LOCATION 'DIR/tree/*.parquet'").await;
        place.refused("INSERT INTO q VALUES (1)", "define one over the folder itself").await;
        // A folder, a list of places, and a file that is named twice.
        place.run("CREATE EXTERNAL TABLE l (i INT) STORED AS PARQUET LOCATION ('DIR/tree/s/', 'DIR/tree/s/*.parquet', 'DIR/tree/a.parquet')").await;
        place
            .check(&[("SELECT i FROM l ORDER BY i", "5\n6\n7"), ("SELECT count(*), sum(i) FROM l WHERE i > 5", "2|13")])
            .await;
    }
}

#[tokio::test]
async fn hidden_files_of_a_folder_are_no_rows_and_empty_parquet_files_are_errors() {
    for device in DEVICES {
        let place = Place::new(device);
        place
            .files(&[
                ("h/a.parquet", 1),
                ("h/_b.parquet", 2),
                ("h/.c.parquet", 3),
                ("h/_temporary/d.parquet", 4),
                ("h/.git/e.parquet", 5),
                ("h/s/f.parquet", 6),
                ("k/_k=1/a.parquet", 7),
            ])
            .await;
        std::fs::write(place.path().join("h/_SUCCESS"), "").expect("a file");
        place.run("CREATE EXTERNAL TABLE h STORED AS PARQUET LOCATION 'DIR/h/'").await;
        place.run("CREATE EXTERNAL TABLE declared (i INT) STORED AS PARQUET LOCATION 'DIR/h/'").await;
        for from in ["'DIR/h/'", "'DIR/h'", "h", "declared"] {
            place.check(&[(&format!("SELECT i FROM {from} ORDER BY i"), "1\n6")]).await;
        }
        place
            .check(&[
                ("SELECT i FROM 'DIR/h/_b.parquet'", "2"),
                ("SELECT i FROM 'DIR/h/_temporary/'", "4"),
                ("SELECT i FROM 'DIR/h/_*.parquet'", "2"),
                ("SELECT i FROM 'DIR/h/.*.parquet'", "3"),
                ("SELECT i, _k FROM 'DIR/k/'", "7|1"),
            ])
            .await;

        std::fs::create_dir(place.path().join("e")).expect("a folder");
        std::fs::write(place.path().join("e/nothing.parquet"), "").expect("a file");
        std::fs::write(place.path().join("nothing.csv"), "").expect("a file");
        place.run("CREATE EXTERNAL TABLE e (i INT) STORED AS PARQUET LOCATION 'DIR/e/'").await;
        place.run("CREATE EXTERNAL TABLE one (i INT) STORED AS PARQUET LOCATION 'DIR/e/nothing.parquet'").await;
        for sql in [
            "SELECT * FROM 'DIR/e/nothing.parquet'",
            "SELECT count(*) FROM 'DIR/e/nothing.parquet'",
            "SELECT count(*) FROM 'DIR/e/'",
            "SELECT count(*) FROM 'DIR/e/*'",
            "SELECT count(*) FROM e",
            "SELECT sum(i) FROM one",
            "CREATE EXTERNAL TABLE x STORED AS PARQUET LOCATION 'DIR/e/'",
        ] {
            place.refused(sql, "nothing.parquet' is empty").await;
        }
        place.run("CREATE EXTERNAL TABLE c (i INT) STORED AS CSV LOCATION 'DIR/nothing.csv'").await;
        place.check(&[("SELECT count(*) FROM c", "0")]).await;
    }
}

#[tokio::test]
async fn what_would_come_back_as_something_else_is_refused() {
    for device in DEVICES {
        let place = Place::new(device);
        place.run(ROWS).await;
        let copy = |query: &str, key: &str, format: &str| {
            format!("COPY ({query}) TO 'DIR/x/' STORED AS {format} PARTITIONED BY ({key})")
        };
        place
            .refused(&copy("SELECT 1 AS v, '__HIVE_DEFAULT_PARTITION__' AS k", "k", "PARQUET"), "write another text")
            .await;
        // SQL has no such name for a key; frames do.
        let frame = place.session.context().sql("SELECT 1 AS v, 2 AS \"a=b\"").await.expect("a frame");
        let options = DataFrameWriteOptions::new().with_partition_by(vec!["a=b".to_string()]);
        let written = frame.write_parquet(&place.sql("DIR/x/"), options, None).await;
        let error = written.expect_err("a name with '='").to_string();
        assert!(error.contains("without '='"), "{error}");
        place
            .refused(&copy("SELECT v, k FROM t", "k", "ARROW"), "write STORED AS PARQUET, or coalesce(k, …) AS k")
            .await;
        place.run(&copy("SELECT v, coalesce(k, '?') AS k FROM t", "k", "ARROW")).await;
        place.run("CREATE EXTERNAL TABLE y (v INT, y INT NOT NULL) STORED AS PARQUET PARTITIONED BY (y) LOCATION 'DIR/y/'").await;
        place.run("COPY (SELECT 1 AS v) TO 'DIR/y/y=abc/p.parquet' STORED AS PARQUET").await;
        place.refused("SELECT * FROM y", "'y=abc' is no Int32: declare column y as VARCHAR").await;
        std::fs::remove_dir_all(place.path().join("y")).expect("removed");
        place.run("COPY (SELECT 1 AS v) TO 'DIR/y/y=__HIVE_DEFAULT_PARTITION__/p.parquet' STORED AS PARQUET").await;
        place.refused("SELECT * FROM y", "column y is NOT NULL").await;
        // The files have the keys, too.
        place.run("SET datafusion.execution.keep_partition_by_columns = true").await;
        place
            .refused(
                &copy("SELECT v, k FROM t", "k", "PARQUET"),
                "SET datafusion.execution.keep_partition_by_columns = false",
            )
            .await;
        place
            .run("COPY (SELECT v, n FROM t WHERE n IS NOT NULL) TO 'DIR/kept/' STORED AS PARQUET PARTITIONED BY (n)")
            .await;
        place.check(&[("SELECT n, v FROM 'DIR/kept/' WHERE n > 10 ORDER BY n", "20|2\n30|5")]).await;
        let same = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/slt/right/data/same_names.parquet");
        let same = same.to_str().expect("UTF-8");
        refused(&place.session, &format!("SELECT * FROM '{same}'"), "two columns of the file").await;
    }
}

/// Times of pyarrow in the year 1, 1582, …, 9999.
#[tokio::test]
async fn times_of_int96_are_of_all_years() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/slt/right/data/int96.parquet");
    let file = file.to_str().expect("UTF-8");
    for device in DEVICES {
        let session = session(device);
        let cases = [
            (
                format!("SELECT i, t FROM '{file}' ORDER BY i"),
                "0|0001-01-01T00:00:00\n1|1582-10-04T00:00:00\n2|1677-09-21T00:00:00\n3|1883-11-18T17:00:00\n4|2024-03-10T10:00:00\n\
                 5|2262-04-12T00:00:00\n6|2263-01-01T00:00:00\n7|9999-12-31T23:59:59.999999\n8|NULL",
            ),
            (format!("SELECT min(t), max(t) FROM '{file}'"), "0001-01-01T00:00:00|9999-12-31T23:59:59.999999"),
            (format!("SELECT i FROM '{file}' WHERE t >= TIMESTAMP '2263-01-01 00:00:00' ORDER BY i"), "6\n7"),
            (format!("SELECT i FROM '{file}' WHERE t < TIMESTAMP '1700-01-01 00:00:00' ORDER BY i"), "0\n1\n2"),
        ];
        for (sql, right) in &cases {
            check(&session, &[(sql, right)]).await;
        }
        // Texts of such times are microseconds; others stay what they were.
        let texts = [
            ("SELECT TIMESTAMP '9999-12-31 23:59:59'", "9999-12-31T23:59:59"),
            (
                "SELECT arrow_typeof(TIMESTAMP '1500-01-01 00:00:00'), arrow_typeof(TIMESTAMP '2024-01-01 00:00:00')",
                "Timestamp(µs)|Timestamp(ns)",
            ),
            ("SELECT date_part('year', TIMESTAMP '9999-12-31 23:59:59' - INTERVAL '1' YEAR)", "9998"),
            (
                "SELECT count(*) FROM (SELECT 1) AS x(i) WHERE EXISTS (SELECT 1 WHERE TIMESTAMP '3000-01-01 00:00:00' > TIMESTAMP '2999-12-31 23:59:59')",
                "1",
            ),
        ];
        check(&session, &texts).await;
        // Another unit is taken, where a user sets one.
        run(&session, "SET datafusion.execution.parquet.coerce_int96 = 'ns'").await;
        let sql = format!("SELECT arrow_typeof(t) FROM '{file}' WHERE i = 4");
        check(&session, &[(&sql, "Timestamp(ns)")]).await;
    }
}

#[tokio::test]
async fn folders_are_as_they_are_now() {
    for device in DEVICES {
        let place = Place::new(device);
        place.files(&[("g/a.parquet", 1)]).await;
        place.run("CREATE EXTERNAL TABLE g STORED AS PARQUET LOCATION 'DIR/g/'").await;
        let rows = "SELECT i FROM g ORDER BY i";
        let by_name = "SELECT i FROM 'DIR/g/**' ORDER BY i";
        place.check(&[(rows, "1"), (by_name, "1")]).await;
        place.files(&[("g/b.parquet", 2), ("g/s/c.parquet", 3)]).await;
        place.check(&[(rows, "1\n2\n3"), (by_name, "1\n2\n3")]).await;
        place.files(&[("g/b.parquet", 4)]).await;
        place.check(&[(rows, "1\n3\n4"), (by_name, "1\n3\n4")]).await;
        place.run("INSERT INTO g VALUES (5)").await;
        place.check(&[(rows, "1\n3\n4\n5"), ("SELECT count(*) FROM g", "4")]).await;
        std::fs::remove_file(place.path().join("g/a.parquet")).expect("removed");
        std::fs::rename(place.path().join("g/s"), place.path().join("g/_s")).expect("renamed");
        place.check(&[(rows, "4\n5"), (by_name, "3\n4\n5")]).await;
    }
}

/// A store that is queried once an hour is also queried after each of the session's own writes.
#[tokio::test]
async fn a_folder_of_a_remote_store_is_seen_after_copy() {
    for device in DEVICES {
        let config = SessionConfig::new().with_target_partitions(2);
        let builder = Millpond::builder().with_own_engine().with_device(device).with_config(config).with_url_tables();
        let session =
            builder.with_option("cache_check_seconds", "3600").expect("an option").build().expect("a session");
        let url = Url::parse("mem://b").expect("an address");
        session.context().register_object_store(&url, Arc::new(InMemory::new()));
        let copy = |file: &str, i: i32| format!("COPY (SELECT {i} AS i) TO 'mem://b/g/{file}' STORED AS PARQUET");
        run(&session, &copy("a.parquet", 1)).await;
        run(&session, "CREATE EXTERNAL TABLE g STORED AS PARQUET LOCATION 'mem://b/g/'").await;
        let (rows, by_name) = ("SELECT i FROM g ORDER BY i", "SELECT i FROM 'mem://b/g/' ORDER BY i");
        check(&session, &[(rows, "1"), (by_name, "1")]).await;
        run(&session, &copy("b.parquet", 2)).await;
        check(&session, &[(rows, "1\n2"), (by_name, "1\n2")]).await;
        run(&session, &copy("a.parquet", 3)).await;
        run(&session, "INSERT INTO g VALUES (4)").await;
        check(&session, &[(rows, "2\n3\n4"), (by_name, "2\n3\n4")]).await;
    }
}
