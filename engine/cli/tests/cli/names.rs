//! Names with dots, quotes, blanks, `%`, `/`, emoji, line breaks, capitals or nothing at all, in every command.
//!
//! ```text
//!   seed ─► odd names of columns, tables, files and folders ─► a Parquet file ─► check · measure · rewrite
//!                                                                          └─► queries · -o · COPY · suites
//! ```
//!
//! Expected   The values written to the file: all names stay distinct and unchanged.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use millpond::datafusion::arrow::datatypes::{DataType, Field, Schema};
use millpond::datafusion::parquet::arrow::ArrowWriter;
use millpond::datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Map, Value, json};

use crate::{Ended, millpond};

/// Names that have caused errors, or might.
const ODD: [&str; 56] = [
    "",
    ".",
    "..",
    "a.b",
    "a.b.c",
    ".a",
    "a.",
    "t.a",
    "\"",
    "\"\"",
    "a\"b",
    "\"a\"",
    "'",
    "a'b",
    " ",
    "a b",
    " a",
    "a ",
    "%",
    "%20",
    "a%2Fb",
    "/",
    "a/b",
    "//",
    "😀",
    "ß",
    "e\u{301}",
    "é",
    "\\",
    "a\\b",
    "\n",
    "a\nb",
    "\t",
    "a,b",
    "a;b",
    "--",
    "/*",
    "A",
    "a",
    "Total",
    "total",
    "*",
    "count(*)",
    "select",
    "NULL",
    "?",
    "$1",
    ":x",
    "[0]",
    "{}",
    "a=b",
    "0",
    "-1",
    "`",
    "~",
    "\u{feff}x",
];

/// Parts to combine into names.
const PARTS: [&str; 34] = [
    "a", "B", "c", "Total", ".", "\"", "'", " ", "%", "%2E", "/", "\\", "\n", "\t", ",", ";", "=", "*", "?", "[", "]",
    "{", "}", "#", "$", "@", "😀", "é", "\u{200b}", "0", "-", "_", "|", "(",
];

/// A pseudo-random sequence.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound
    }

    fn name(&mut self) -> String {
        let parts = 1 + self.below(6);
        (0..parts).map(|_| PARTS[self.below(PARTS.len())]).collect()
    }

    /// A name without control characters, which file systems and stores accept, and that is not hidden.
    fn file_name(&mut self) -> String {
        let name = self.name().replace(['/', '\n', '\t'], "-");
        if name.starts_with(['.', '_']) { format!("x{name}") } else { name }
    }
}

const ROWS: i64 = 50;

/// A value in JSON.
fn value(column: usize, row: i64) -> Value {
    let number = (row * 7 + column as i64) % 13;
    match column % 3 {
        _ if (row + column as i64) % 11 == 5 => Value::Null,
        0 => json!(number),
        1 => json!(format!("text {number}")),
        _ => json!(number as f64 + 0.5),
    }
}

/// A batch whose first column is the row number.
fn rows(names: &[String]) -> RecordBatch {
    let mut fields = vec![Field::new(&names[0], DataType::Int64, false)];
    let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(0..ROWS))];
    for (at, name) in names.iter().enumerate().skip(1) {
        let values: Vec<Value> = (0..ROWS).map(|row| value(at, row)).collect();
        let column: ArrayRef = match at % 3 {
            0 => Arc::new(values.iter().map(Value::as_i64).collect::<Int64Array>()),
            1 => Arc::new(values.iter().map(Value::as_str).collect::<StringArray>()),
            _ => Arc::new(values.iter().map(Value::as_f64).collect::<Float64Array>()),
        };
        fields.push(Field::new(name, column.data_type().clone(), true));
        columns.push(column);
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("columns of one length")
}

fn write(path: &Path, batch: &RecordBatch) {
    let file = File::create(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a writer");
    writer.write(batch).expect("rows");
    writer.close().expect("a file");
}

fn read(path: &Path) -> RecordBatch {
    let file = File::open(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let mut reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet").build().expect("a reader");
    reader.next().expect("rows").expect("rows")
}

fn ran(args: &[&str]) -> Ended {
    let ended = millpond(args);
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{args:?}: {}", ended.stderr);
    ended
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// A name quoted for SQL.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as a SQL literal.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A folder with a file with odd columns, all with odd names.
struct Case {
    folder: tempfile::TempDir,
    path: PathBuf,
    table: String,
    names: Vec<String>,
}

impl Case {
    fn new(draw: &mut Draw, names: &[String]) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let inner = folder.path().join(draw.file_name());
        fs::create_dir(&inner).expect("a folder");
        let path = inner.join(format!("{}.parquet", draw.file_name()));
        write(&path, &rows(names));
        // `--table` splits at the first `=` outside quotes.
        Self { folder, path, table: draw.name(), names: names.to_vec() }
    }

    fn named(&self, file: &Path) -> String {
        format!("{}={}", quoted(&self.table), text(file))
    }

    fn columns(&self) -> String {
        self.names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ")
    }

    /// All rows, as JSON objects in the order of the first column.
    fn expected(&self) -> Vec<Value> {
        let row = |row: i64| {
            let cell = |(at, name): (usize, &String)| {
                let value = if at == 0 { json!(row) } else { value(at, row) };
                (!value.is_null()).then(|| (name.clone(), value))
            };
            Value::Object(self.names.iter().enumerate().filter_map(cell).collect::<Map<_, _>>())
        };
        (0..ROWS).map(row).collect()
    }

    /// The JSON answers of a session with the file as a table.
    fn answers(&self, device: &str, file: &Path, more: &[&str], sql: &str) -> Vec<Vec<Value>> {
        let table = self.named(file);
        let args = ["-q", "--device", device, "--format", "json", "--table", &table];
        let ended = ran(&[&args[..], more, &["-c", sql]].concat());
        let answers = serde_json::Deserializer::from_str(&ended.stdout).into_iter::<Vec<Value>>();
        // NULLs may be omitted or present in JSON.
        let full = |value: Value| match value {
            Value::Object(row) => Value::Object(row.into_iter().filter(|(_, value)| !value.is_null()).collect()),
            other => other,
        };
        let rows = |rows: Result<Vec<Value>, serde_json::Error>| rows.expect("JSON").into_iter().map(full).collect();
        answers.map(rows).collect()
    }

    fn check_tools(&self) {
        let report = parsed(&ran(&["parquet", "check", text(&self.path), "--format", "json"]).stdout);
        let of = |columns: &Value| -> Vec<String> {
            let columns = columns.as_array().expect("columns").iter();
            columns.map(|column| column["name"].as_str().expect("a name").to_string()).collect()
        };
        assert_eq!(of(&report["files"][0]["columns"]), self.names);
        ran(&["parquet", "check", text(&self.path), "--all"]);

        for device in ["sim", "cpu"] {
            let args =
                ["parquet", "measure", text(&self.path), "--device", device, "--repeat", "1", "--format", "json"];
            let measured = parsed(&ran(&args).stdout);
            let columns = &measured["tables"][0]["columns"];
            assert_eq!(of(columns), self.names, "{device}");
            for (column, about) in columns
                .as_array()
                .expect("columns")
                .iter()
                .zip(report["files"][0]["columns"].as_array().expect("columns"))
            {
                assert_eq!(
                    (&column["rows"], &column["file_bytes"]),
                    (&json!(ROWS), &about["compressed_bytes"]),
                    "{column}"
                );
                assert_ne!(column["pages"], "", "{column}");
            }
        }
        let one = ran(&[
            "parquet",
            "measure",
            text(&self.path),
            "--device",
            "cpu",
            "--repeat",
            "1",
            // The name may begin with a dash.
            &format!("--columns={}", self.names[1]),
            "--format",
            "json",
        ]);
        assert_eq!(of(&parsed(&one.stdout)["tables"][0]["columns"]), [self.names[1].clone()]);

        let to = self.folder.path().join("rewritten");
        ran(&["parquet", "rewrite", text(self.path.parent().expect("a folder")), text(&to)]);
        let file = to.join(self.path.file_name().expect("a name"));
        assert_eq!(read(&file), read(&self.path));
    }

    fn check_queries(&self, draw: &mut Draw) {
        let expected = self.expected();
        let (table, columns, key) = (quoted(&self.table), self.columns(), quoted(&self.names[0]));
        let (last, last_at) = (quoted(&self.names[self.names.len() - 1]), self.names.len() - 1);
        // A name other than the table's.
        let made = quoted(&format!("made {}", draw.name()));
        let sql = format!(
            "SELECT {columns} FROM {table} ORDER BY {key}; \
             SELECT {columns} FROM (SELECT * FROM {table} WHERE {last} IS NOT NULL) AS {made} WHERE {made}.{last} IS NOT NULL ORDER BY {key}; \
             SELECT {last}, count(*) AS \"count(*).\" FROM {table} GROUP BY {last} ORDER BY {last} NULLS LAST; \
             CREATE TABLE {made} AS SELECT * FROM {table}; \
             SELECT {columns} FROM {made} ORDER BY {key}; \
             SELECT {table}.{last} FROM {table} JOIN {made} ON {table}.{key} = {made}.{key} ORDER BY {table}.{key}; \
             SELECT {columns} FROM {table} ORDER BY {key}"
        );
        let with_last: Vec<Value> =
            expected.iter().filter(|row| row.get(&self.names[last_at]).is_some()).cloned().collect();
        let only_last = |row: &Value| {
            let name = &self.names[last_at];
            Value::Object(row.get(name).map(|value| (name.clone(), value.clone())).into_iter().collect())
        };
        let lasts: Vec<Value> = expected.iter().map(only_last).collect();
        let of_cpu = self.answers("cpu", &self.path, &[], &sql);
        // From stored columns, and from the file with each decoder.
        for more in [&[][..], &["--set", "millpond.cache=off"], &["--set", "millpond.parquet_decoder=device"]] {
            let of_sim = self.answers("sim", &self.path, more, &sql);
            assert_eq!(of_sim, of_cpu, "{:?} {more:?}", self.names);
        }
        assert_eq!(of_cpu.len(), 6, "{sql}");
        for (answer, expected) in of_cpu.iter().zip([&expected, &with_last, &of_cpu[2], &expected, &lasts, &expected]) {
            assert_eq!(answer, expected, "{:?}", self.names);
        }
        let counted: i64 = of_cpu[2].iter().map(|row| row["count(*)."].as_i64().expect("a count")).sum();
        assert_eq!(counted, ROWS);

        // The file by its path, alone and in a folder; then plans and descriptions.
        let folder = self.path.parent().expect("a folder");
        let of_file = format!(
            "SELECT {columns} FROM {} ORDER BY {key}; SELECT {columns} FROM {} ORDER BY {key}",
            literal(text(&self.path)),
            literal(&format!("{}/", text(folder)))
        );
        let described = format!("DESCRIBE {table}");
        for device in ["cpu", "sim"] {
            assert_eq!(
                self.answers(device, &self.path, &[], &of_file),
                [expected.clone(), expected.clone()],
                "{device}: {:?}",
                self.path
            );
            assert_eq!(
                self.answers(device, folder, &[], &format!("SELECT {columns} FROM {table} ORDER BY {key}")),
                std::slice::from_ref(&expected)
            );
            let names: Vec<Value> = self.answers(device, &self.path, &[], &described).remove(0);
            assert_eq!(
                names.iter().map(|row| row["column_name"].as_str().expect("a name")).collect::<Vec<_>>(),
                self.names
            );
            for explain in ["EXPLAIN", "EXPLAIN VERBOSE", "EXPLAIN ANALYZE"] {
                self.answers(
                    device,
                    &self.path,
                    &[],
                    &format!("{explain} SELECT {columns} FROM {table} WHERE {last} IS NOT NULL ORDER BY {key}"),
                );
            }
        }
        let warm = format!(
            "SELECT \"column\" FROM millpond_cache_warm({}, {})",
            literal(&table),
            self.names.iter().map(|name| literal(name)).collect::<Vec<_>>().join(", ")
        );
        let warmed = self.answers("sim", &self.path, &[], &warm).remove(0);
        let warmed: BTreeSet<&str> = warmed.iter().map(|row| row["column"].as_str().expect("a name")).collect();
        assert_eq!(warmed, self.names.iter().map(String::as_str).collect::<BTreeSet<_>>());
    }

    fn check_outputs(&self, draw: &mut Draw) {
        let (table, columns, key) = (quoted(&self.table), self.columns(), quoted(&self.names[0]));
        let sql = format!("SELECT {columns} FROM {table} ORDER BY {key}");
        let folder = self.folder.path().join(draw.file_name());
        fs::create_dir_all(&folder).expect("a folder");
        let at = |name: String| folder.join(name);
        let named = self.named(&self.path);
        let mut texts = Vec::new();
        for device in ["cpu", "sim"] {
            for format in ["csv", "json", "ndjson", "table"] {
                let (file, trace) = (at(format!("{}.{format}", draw.file_name())), at(draw.file_name()));
                let args = ["-q", "--device", device, "--table", &named, "--format", format];
                ran(&[&args[..], &["--trace", text(&trace), "-o", text(&file), "-c", &sql]].concat());
                texts.push(fs::read_to_string(&file).expect("answers"));
                fs::remove_file(&trace).expect("a trace");
            }
        }
        assert_eq!(texts[..4], texts[4..]);
        assert_eq!(parsed(&texts[1]).as_array().map(Vec::len), Some(ROWS as usize));

        for device in ["cpu", "sim"] {
            let target = at(format!("{}.parquet", draw.file_name()));
            let copy = format!("COPY ({sql}) TO {} STORED AS PARQUET", literal(text(&target)));
            ran(&["-q", "--device", device, "--table", &named, "-c", &copy]);
            let made = read(&target);
            let names: Vec<&str> = made.schema_ref().fields().iter().map(|field| field.name().as_str()).collect();
            assert_eq!(names, self.names, "{device}: {target:?}");
            assert_eq!(made.num_rows(), ROWS as usize);
        }
    }
}

/// The distinct names, since JSON objects need unique keys.
fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    names.filter(|name| seen.insert(name.clone())).collect()
}

/// The cases of a seed: all odd names once, then combined ones.
fn cases(seed: u64, drawn: usize) -> impl Iterator<Item = Case> {
    let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut lists: Vec<Vec<String>> =
        ODD.chunks(14).map(|names| names.iter().map(|name| (*name).to_string()).collect()).collect();
    for _ in 0..drawn {
        lists.push(distinct((0..10).map(|_| draw.name())));
    }
    lists.into_iter().map(move |names| Case::new(&mut draw, &names))
}

fn seed() -> u64 {
    std::env::var("MILLPOND_TEST_SIM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Number of combined cases; `MILLPOND_NAMES=100` increases it.
fn drawn() -> usize {
    std::env::var("MILLPOND_NAMES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(2)
}

#[test]
fn odd_names_pass_the_tools_for_parquet_files() {
    println!("seed {}", seed());
    cases(seed(), drawn()).for_each(|case| case.check_tools());
}

#[test]
fn odd_names_pass_queries_on_both_devices() {
    println!("seed {}", seed());
    let mut draw = Draw(seed() | 1);
    cases(seed(), drawn()).for_each(|case| case.check_queries(&mut draw));
}

#[test]
fn odd_names_pass_every_way_out() {
    println!("seed {}", seed());
    let mut draw = Draw(seed() | 1);
    cases(seed(), drawn()).for_each(|case| case.check_outputs(&mut draw));
}

#[test]
fn files_that_no_store_can_name_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("a\nb.parquet");
    write(&path, &rows(&["n".to_string(), "t".to_string()]));
    for device in ["cpu", "sim"] {
        let sql = format!("SELECT * FROM {}", literal(text(&path)));
        for args in [vec!["-c", &sql], vec!["--table", &format!("t={}", text(&path)), "-c", "SELECT * FROM t"]] {
            let ended = millpond(&[&["-q", "--device", device], &args[..]].concat());
            assert!(ended.code != 0 && ended.stdout.is_empty(), "{args:?}: {}", ended.stderr);
            assert!(ended.stderr.contains("a\nb.parquet") && !ended.stderr.contains("panicked"), "{}", ended.stderr);
        }
    }
    // The file commands accept the name.
    ran(&["parquet", "check", text(&path)]);
    ran(&["parquet", "rewrite", text(&path), text(&folder.path().join("c\td.parquet"))]);
    assert_eq!(read(&folder.path().join("c\td.parquet")), read(&path));
}

/// Partition folders `name=value/` with odd names and values, but without `%`. The condition is written so that
/// DataFusion cannot derive a folder name from it: that name would have `|` and similar characters encoded, and find no
/// rows, also on the CPU.
#[test]
fn odd_names_pass_partitions_and_suites() {
    println!("seed {}", seed());
    let mut draw = Draw(seed() | 1);
    for _ in 0..drawn() {
        let folder = tempfile::tempdir().expect("folder");
        let inner = folder.path().join(draw.file_name());
        let key = draw.file_name().replace(['=', '%'], "-");
        let values: Vec<String> = distinct((0..3).map(|_| draw.file_name().replace(['=', '%'], "-")));
        for value in &values {
            let part = inner.join(format!("{key}={value}"));
            fs::create_dir_all(&part).expect("a folder");
            write(&part.join("part.parquet"), &rows(&["n".to_string(), "t".to_string()]));
        }
        let sql = format!(
            "CREATE EXTERNAL TABLE t STORED AS PARQUET PARTITIONED BY ({}) LOCATION {}; \
             SELECT {}, count(*) AS n, sum(n) AS s FROM t GROUP BY 1 ORDER BY 1; SELECT count(*) AS n FROM t WHERE {} || '' = {}",
            quoted(&key),
            literal(&format!("{}/", text(&inner))),
            quoted(&key),
            quoted(&key),
            literal(&values[0]),
        );
        let mut answers = Vec::new();
        for device in ["cpu", "sim"] {
            answers.push(ran(&["-q", "--device", device, "--format", "json", "-c", &sql]).stdout);
        }
        assert_eq!(answers[0], answers[1]);
        let mut lists = serde_json::Deserializer::from_str(&answers[0]).into_iter::<Vec<Value>>();
        let groups = lists.next().expect("groups").expect("JSON");
        let found: BTreeSet<&str> = groups.iter().map(|row| row[&key].as_str().expect("a value")).collect();
        assert_eq!(found, values.iter().map(String::as_str).collect(), "{answers:?}");
        assert_eq!(lists.next().expect("a count").expect("JSON"), [json!({ "n": ROWS })]);

        // The same files as tables of a suite.
        let (suite, data) = (folder.path().join("suite"), folder.path().join(draw.file_name()));
        fs::create_dir(&suite).expect("a folder");
        fs::create_dir_all(&data).expect("a folder");
        fs::write(suite.join("suite.toml"), "name = \"odd\"\n").expect("a file");
        for (number, name) in distinct((0..3).map(|_| draw.file_name())).iter().enumerate() {
            write(&data.join(format!("{name}.parquet")), &rows(&[name.clone(), "t".to_string()]));
            let sql = format!("SELECT sum({}) AS s FROM {}", quoted(name), quoted(name));
            fs::write(suite.join(format!("{}{number}.sql", draw.file_name())), sql).expect("a file");
        }
        let suite = format!("{}/", text(&suite));
        ran(&["run", &suite, "--data", text(&data), "--device", "sim", "--validate", "cpu", "--json"]);
    }
}
