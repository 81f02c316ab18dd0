//! Columns of lists, structures and maps: the simulated device gives DataFusion's answers, and keeps what it can.
//!
//!   n (in memory), p (Parquet): lists of numbers, texts, lists and structures; large ones, ones of a fixed size;
//!   structures, maps
//!         └─► device = sim, extents of 3, 30, 100 rows ──┬─► equal rows, byte by byte in Arrow's row format
//!             device = cpu ─────────────────────────────┘
//!
//! NULL     every column has it in place of a value, and inside of values; empty lists stand beside lists of NULL,
//!          structures of NULLs beside structures that are NULL.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{Array, Float64Builder};
use millpond::datafusion::arrow::array::{
    ArrayRef, FixedSizeListBuilder, Float64Array, Int32Builder, Int64Array, Int64Builder, LargeListBuilder,
    ListBuilder, MapBuilder, MapFieldNames, StringArray, StringBuilder, StructArray, StructBuilder,
};
use millpond::datafusion::arrow::buffer::NullBuffer;
use millpond::datafusion::arrow::compute::concat_batches;
use millpond::datafusion::arrow::datatypes::{DataType, Field, Fields};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::row::{RowConverter, SortField};
use millpond::datafusion::datasource::MemTable;
use millpond::session::QueryResult;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::orders_its_rows;
use crate::edges::write_parquet;
use crate::support::session_with;

/// Number of kinds of lists of numbers.
const SHAPES: usize = 11;

fn numbers(row: usize) -> Option<Vec<Option<i64>>> {
    Some(match row % SHAPES {
        0 => return None,
        1 => vec![],
        2 => vec![None],
        3 => vec![Some(3), Some(1), Some(2)],
        4 => vec![Some(1), None],
        5 => vec![None, Some(1)],
        6 => vec![Some(i64::MAX), Some(i64::MIN)],
        7 => vec![Some(1)],
        8 => vec![Some(1), Some(2)],
        9 => vec![None, None],
        _ => vec![Some(row as i64 % 3); 5],
    })
}

fn words(row: usize) -> Option<Vec<Option<&'static str>>> {
    Some(match row % 7 {
        0 => return None,
        1 => vec![],
        2 => vec![Some("")],
        3 => vec![Some("pond"), Some("mill")],
        4 => vec![None, Some("é"), Some("a text of more than twelve bytes")],
        5 => vec![Some("mill"), Some("pond")],
        _ => vec![None],
    })
}

/// A structure of a number and a text for each row, some NULL, some with NULLs.
fn structures(rows: impl Iterator<Item = usize> + Clone) -> StructArray {
    let fields: Fields = vec![Field::new("a", DataType::Int64, true), Field::new("b", DataType::Utf8, true)].into();
    let a: Int64Array = rows.clone().map(|row| (row % 5 > 1).then_some(row as i64 % 4)).collect();
    let b: StringArray = rows.clone().map(|row| (row % 3 > 0).then_some(["x", "y", ""][row % 3])).collect();
    let valid: NullBuffer = rows.map(|row| row % 6 != 4).collect::<Vec<bool>>().into();
    // What lies below a NULL is NULL, as readers of files have it.
    let masked = |array: ArrayRef| {
        let nulls = NullBuffer::union(array.nulls(), Some(&valid));
        millpond::datafusion::arrow::array::make_array(
            array.to_data().into_builder().nulls(nulls).build().expect("an array"),
        )
    };
    StructArray::new(fields, vec![masked(Arc::new(a)), masked(Arc::new(b))], Some(valid.clone()))
}

/// `rows` rows of all kinds of columns.
pub fn nested(rows: usize) -> RecordBatch {
    let mut l = ListBuilder::new(Int64Builder::new());
    let mut t = ListBuilder::new(StringBuilder::new());
    let mut big = LargeListBuilder::new(Float64Builder::new());
    let mut fixed = FixedSizeListBuilder::new(Int32Builder::new(), 2);
    let mut ll = ListBuilder::new(ListBuilder::new(Int32Builder::new()));
    let fields = vec![Field::new("x", DataType::Int64, true), Field::new("y", DataType::Utf8, true)];
    let mut ls = ListBuilder::new(StructBuilder::from_fields(fields, 0));
    let names = MapFieldNames { entry: "entries".into(), key: "key".into(), value: "value".into() };
    let mut m = MapBuilder::new(Some(names), StringBuilder::new(), Int64Builder::new());
    for row in 0..rows {
        l.append_option(numbers(row));
        t.append_option(words(row * 3));
        match row % 6 {
            0 => big.append_null(),
            1 => big.append(true),
            2 => big.append_value([Some(0.0), Some(-0.0)]),
            3 => big.append_value([Some(-0.0), Some(0.0)]),
            4 => big.append_value([Some(f64::NAN), None]),
            _ => big.append_value([Some(1.5), Some(f64::INFINITY)]),
        }
        for item in 0..2 {
            fixed.values().append_option((row % 4 > 0 && row % 7 > item).then_some((row % 3) as i32));
        }
        fixed.append(row % 4 > 0);
        for inner in 0..row % 4 {
            ll.values()
                .append_option((inner != 1).then(|| (0..row % 3).map(|item| (item != 1).then_some(item as i32))));
        }
        ll.append(row % 5 > 0);
        for item in 0..row % 3 {
            let (structure, valid) = (ls.values(), row % 4 < 3);
            let (x, y) = ((item < 1 && valid).then_some(row as i64 % 5), (row % 2 > 0 && valid).then_some("y"));
            structure.field_builder::<Int64Builder>(0).expect("a field").append_option(x);
            structure.field_builder::<StringBuilder>(1).expect("a field").append_option(y);
            structure.append(valid);
        }
        ls.append(row % 8 != 7);
        for key in 0..if row % 9 == 8 { 0 } else { row % 4 } {
            m.keys().append_value(["k", "l", "m"][key]);
            m.values().append_option((row % 5 > 0).then_some(row as i64 % 2));
        }
        m.append(row % 9 != 8).expect("keys and values");
    }
    let id: Int64Array = (0..rows as i64).collect();
    let k: Int64Array = (0..rows).map(|row| (row % 13 > 0).then_some(row as i64 % 5)).collect();
    let x: Float64Array = (0..rows).map(|row| (row % 7 > 0).then_some(row as f64 / 4.0)).collect();
    let s: StringArray = (0..rows).map(|row| (row % 8 > 0).then_some(["bolt", "nut", "é"][row % 3])).collect();
    RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(id) as ArrayRef, false),
        ("k", Arc::new(k), true),
        ("x", Arc::new(x), true),
        ("s", Arc::new(s), true),
        ("l", Arc::new(l.finish()), true),
        ("t", Arc::new(t.finish()), true),
        ("big", Arc::new(big.finish()), true),
        ("fixed", Arc::new(fixed.finish()), true),
        ("ll", Arc::new(ll.finish()), true),
        ("ls", Arc::new(ls.finish()), true),
        ("st", Arc::new(structures(0..rows)), true),
        ("m", Arc::new(m.finish()), true),
    ])
    .expect("columns of one length")
}

/// Two sessions over the same tables.
pub struct Pair {
    pub cpu: Millpond,
    pub sim: Millpond,
    /// Like `sim`, but may leave work to the CPU.
    pub lenient: Millpond,
    failures: Vec<String>,
    _folder: tempfile::TempDir,
}

/// The rows of an answer as bytes; in no order unless it has one.
fn rows(of: &QueryResult, ordered: bool) -> Vec<Vec<u8>> {
    let batch = concat_batches(&of.schema, &of.batches).expect("batches of one schema");
    if batch.num_columns() == 0 {
        return vec![vec![]; batch.num_rows()];
    }
    let fields = of.schema.fields().iter().map(|field| SortField::new(field.data_type().clone())).collect();
    let converter = RowConverter::new(fields).expect("types with a row format");
    let rows = converter.convert_columns(batch.columns()).expect("rows");
    let mut rows: Vec<Vec<u8>> = rows.iter().map(|row| row.data().to_vec()).collect();
    if !ordered {
        rows.sort();
    }
    rows
}

impl Pair {
    pub async fn new(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("p.parquet");
        let batch = nested(200);
        write_parquet(&batch, &path, 60);
        let cpu = session_with(DeviceChoice::Cpu, 2, Fallback::Allow);
        let sim = session_with(DeviceChoice::Sim, 2, Fallback::Error);
        let lenient = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
        for session in [&cpu, &sim, &lenient] {
            let parts = vec![vec![batch.slice(0, 70)], vec![batch.slice(70, 100), batch.slice(170, 30)]];
            let table = MemTable::try_new(batch.schema(), parts).expect("a table");
            session.context().register_table("n", Arc::new(table)).expect("a free name");
            let path = path.to_str().expect("a UTF-8 path");
            session.context().register_parquet("p", path, Default::default()).await.expect("a file");
        }
        for setting in settings {
            for session in [&sim, &lenient] {
                session.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
            }
        }
        Self { cpu, sim, lenient, failures: vec![], _folder: folder }
    }

    pub async fn compare(&self, device: &Millpond, sql: &str) -> Result<millpond::QueryReport, String> {
        let expected = self.cpu.execute(sql).await.map_err(|e| format!("the CPU refuses: {}", e.strip_backtrace()))?;
        let actual = device.execute(sql).await.map_err(|e| e.strip_backtrace())?;
        let types = |of: &QueryResult| of.schema.fields().iter().map(|f| f.data_type().clone()).collect::<Vec<_>>();
        if types(&expected) != types(&actual) {
            return Err(format!("types are {:?} instead of {:?}", types(&actual), types(&expected)));
        }
        let ordered = orders_its_rows(sql);
        let (wanted, given) = (rows(&expected, ordered), rows(&actual, ordered));
        if wanted != given {
            let at = wanted.iter().zip(&given).position(|(a, b)| a != b);
            return Err(format!("{} rows instead of {}, the first that differs is {at:?}", given.len(), wanted.len()));
        }
        let report = actual.report;
        match (report.findings.is_empty(), report.pool_used_bytes) {
            (false, _) => Err(format!("findings: {}", report.findings.join(" | "))),
            (_, 1..) => Err(format!("{} bytes left in the pool", report.pool_used_bytes)),
            _ => Ok(report),
        }
    }

    /// The device alone gives the CPU's answer.
    pub async fn same(&mut self, sql: &str) {
        match self.compare(&self.sim, sql).await {
            Ok(report) if report.launches == 0 => {
                self.failures.push(format!("{sql}\n    no kernel: {:?}", report.reasons))
            }
            Ok(report) if !report.notes.is_empty() => self.failures.push(format!("{sql}\n    {:?}", report.notes)),
            Ok(report) if !report.reasons.is_empty() => self.failures.push(format!("{sql}\n    {:?}", report.reasons)),
            Ok(_) => {}
            Err(why) => self.failures.push(format!("{sql}\n    {why}")),
        }
    }

    /// A part stays on the CPU, for `reason`; the answer is the CPU's.
    pub async fn stays(&mut self, sql: &str, reason: &str) {
        match self.compare(&self.lenient, sql).await {
            Ok(report) if report.reasons.iter().any(|own| own.contains(reason)) => {}
            Ok(report) => {
                self.failures.push(format!("{sql}\n    reasons are {:?}, without '{reason}'", report.reasons))
            }
            Err(why) => self.failures.push(format!("{sql}\n    {why}")),
        }
    }

    pub fn finish(self) {
        assert!(self.failures.is_empty(), "{} queries failed:\n{}", self.failures.len(), self.failures.join("\n"));
    }
}

const EXTENTS: [&[&str]; 3] =
    [&["millpond.batch_rows = 3"], &["millpond.batch_rows = 30"], &["millpond.batch_rows = 100"]];

/// Columns that carry nested values.
const COLUMNS: [&str; 8] = ["l", "t", "big", "fixed", "ll", "ls", "st", "m"];

#[tokio::test]
async fn nested_columns_are_carried() {
    for settings in EXTENTS {
        let mut pair = Pair::new(settings).await;
        for table in ["n", "p"] {
            pair.same(&format!("SELECT id, l, t, big, fixed, ll, ls, st, m FROM {table} WHERE k > 1")).await;
            pair.same(&format!("SELECT l, st, m FROM {table} WHERE id = 1000 + k")).await;
            pair.same(&format!("SELECT a.id, b.l, b.st, b.m, b.ls FROM {table} a JOIN {table} b ON a.id = b.k + 4"))
                .await;
            pair.same(&format!(
                "SELECT a.id, b.ll, b.big, b.fixed FROM {table} a LEFT JOIN {table} b ON a.id = b.k * 50"
            ))
            .await;
            pair.same(&format!("SELECT id, l, st FROM {table} ORDER BY x DESC, id LIMIT 17")).await;
            pair.same(&format!("SELECT l, t FROM {table} WHERE k = 1 UNION ALL SELECT l, t FROM p WHERE k = 2")).await;
        }
        pair.finish();
    }
}

#[tokio::test]
async fn nested_values_are_keys() {
    for settings in EXTENTS {
        let mut pair = Pair::new(settings).await;
        for column in COLUMNS {
            pair.same(&format!("SELECT {column}, count(*), sum(id), count({column}) FROM n GROUP BY {column}")).await;
            pair.same(&format!("SELECT DISTINCT {column} FROM p WHERE k IS NOT NULL")).await;
            pair.same(&format!(
                "SELECT k, count({column}), count(*) FILTER (WHERE {column} IS NULL) FROM n GROUP BY k"
            ))
            .await;
            pair.same(&format!("SELECT id FROM n WHERE {column} IS NOT NULL AND k > 0")).await;
        }
        pair.same("SELECT l, st, count(*), max(x) FROM n GROUP BY l, st").await;
        pair.same("SELECT a.id, b.id FROM n a JOIN p b ON a.l = b.l WHERE a.id < 40").await;
        pair.same("SELECT a.id, b.id FROM n a JOIN p b ON a.st = b.st AND a.k = b.k WHERE b.id < 40").await;
        pair.same("SELECT id FROM n WHERE EXISTS (SELECT 1 FROM p WHERE p.l = n.l AND p.id > 190)").await;
        pair.same("SELECT a.id, a.l = b.l, a.l <> b.l, a.l IS DISTINCT FROM b.l, a.l < b.l, a.st >= b.st FROM n a JOIN n b ON a.id = b.id + 1").await;
        pair.same("SELECT id, l = [1, 2], l > [1], st = named_struct('a', 2, 'b', 'y') FROM n").await;
        pair.finish();
    }
}

#[tokio::test]
async fn nested_values_are_sorted() {
    for settings in EXTENTS {
        let mut pair = Pair::new(settings).await;
        for column in ["l", "t", "big", "fixed", "ll", "ls", "st"] {
            pair.same(&format!("SELECT {column}, id FROM n ORDER BY {column}, id")).await;
            pair.same(&format!("SELECT {column}, id FROM p ORDER BY {column} DESC, id DESC")).await;
            pair.same(&format!("SELECT {column}, id FROM n ORDER BY {column}, id LIMIT 21")).await;
        }
        pair.same("SELECT id, l, row_number() OVER (PARTITION BY k ORDER BY l, id), lag(st) OVER (PARTITION BY k ORDER BY l, id) FROM n").await;
        pair.same("SELECT id, max(l) OVER (ORDER BY id ROWS 3 PRECEDING), min(t) OVER (PARTITION BY k) FROM n").await;
        pair.same("SELECT min(l), max(l), min(t), max(t), min(big), max(fixed) FROM n").await;
        pair.same("SELECT k, min(l), max(l), max(t), first_value(l ORDER BY id), last_value(st ORDER BY l, id) FROM p GROUP BY k").await;
        pair.stays("SELECT l, id FROM n ORDER BY l NULLS FIRST, id", "NULLS LAST").await;
        pair.finish();
    }
}

#[tokio::test]
async fn functions_of_one_nested_column() {
    for settings in EXTENTS {
        let mut pair = Pair::new(settings).await;
        for table in ["n", "p"] {
            for list in [
                "id, array_length(l), cardinality(l), empty(l), l[1], l[-1], l[2:3]",
                "id, array_has(l, 1), array_position(l, 2), array_sort(l), array_distinct(l), array_reverse(l)",
                "id, array_append(l, 7), array_prepend(7, l), array_concat(l, [1, NULL]), array_remove(l, 1), array_slice(l, 1, 2)",
                "id, array_to_string(l, ','), array_to_string(t, '-', 'none'), array_has_any(t, ['mill', 'x']), upper(t[1])",
                "id, array_length(ll), flatten(ll), ll[1], ll[1][1], array_length(fixed), fixed[2], big[1]",
                "id, st['a'], st['b'], st['a'] + 1, upper(st['b']), ls[1]['x'], ls[1], m['k'], map_keys(m), map_values(m)",
                "id, make_array(l), named_struct('one', l, 'two', l[1]), [st['a'], 5], array_max(l), array_min(l)",
                "id, make_array(s, 'x'), string_to_array(s, 'o'), named_struct('s', s), CAST(l AS TEXT), arrow_typeof(l)",
                "id, COALESCE(l, [9]), CASE WHEN k > 2 THEN l ELSE [5, NULL] END, CASE WHEN k = 1 THEN st END, [1, 2], l IS NULL",
            ] {
                pair.same(&format!("SELECT {list} FROM {table}")).await;
            }
            pair.same(&format!("SELECT id, l FROM {table} WHERE array_length(l) > 1 AND NOT array_has(l, 3)")).await;
            pair.same(&format!("SELECT st['b'] AS b, count(*), sum(st['a']) FROM {table} GROUP BY st['b']")).await;
            pair.same(&format!("SELECT array_sort(l) AS o, count(*) FROM {table} GROUP BY array_sort(l)")).await;
        }
        pair.finish();
    }
}

#[tokio::test]
async fn columns_of_lists_are_unnested() {
    for settings in EXTENTS {
        let mut pair = Pair::new(settings).await;
        for table in ["n", "p"] {
            for column in ["l", "t", "big", "fixed", "ll", "ls"] {
                pair.same(&format!("SELECT id, unnest({column}) FROM {table}")).await;
            }
            for sql in [
                "SELECT id, unnest(l) AS i, unnest(t) AS j, st FROM n",
                "SELECT i, count(*), sum(id) FROM (SELECT id, unnest(l) AS i FROM n) GROUP BY i",
                "SELECT id, i['x'] AS a, i['y'] AS b FROM (SELECT id, unnest(ls) AS i FROM n)",
                "SELECT id, unnest(unnest(ll)) FROM n",
                "SELECT id, unnest(unnest(ll)), unnest(ll), unnest(l) FROM n",
                "SELECT id, unnest(st) FROM n",
                "SELECT unnest(st), unnest(l) FROM n WHERE id < 90",
                "SELECT id, unnest(array_sort(l)) AS i FROM n WHERE k > 1 ORDER BY i, id LIMIT 9",
                "SELECT a.id, b.id FROM n a JOIN (SELECT id, unnest(l) AS i FROM n) b ON a.id = b.i",
                "SELECT count(*) FROM (SELECT unnest(l) FROM n)",
                "SELECT id, unnest(string_to_array(s, 'o')) FROM n",
                "SELECT id, unnest(l) FROM n WHERE id > 500",
                "SELECT id, unnest(l) FROM n LIMIT 5",
            ] {
                if sql.ends_with("LIMIT 5") {
                    // Any five rows will do.
                    let (some, all) = (sql, sql.trim_end_matches(" LIMIT 5"));
                    let of = |sql: &str| format!("SELECT count(*) FROM ({sql})").replace(" n", &format!(" {table}"));
                    pair.same(&of(some)).await;
                    pair.same(&of(all)).await;
                    continue;
                }
                pair.same(&sql.replace("FROM n", &format!("FROM {table}")).replace("n.", &format!("{table}."))).await;
            }
        }
        pair.finish();
    }
}

/// Lambdas read their own variables, and one column.
#[tokio::test]
async fn lambdas_over_one_column() {
    let mut pair = Pair::new(&["millpond.batch_rows = 30"]).await;
    for session in [&pair.cpu, &pair.sim, &pair.lenient] {
        session.context().sql("SET datafusion.sql_parser.dialect = 'databricks'").await.expect("the option is taken");
    }
    for table in ["n", "p"] {
        pair.same(&format!(
            "SELECT id, array_transform(l, x -> x % 7 + 1), array_transform(t, w -> upper(w)) FROM {table}"
        ))
        .await;
        pair.same(&format!(
            "SELECT id, array_filter(l, x -> x > 1), array_transform(ll, i -> array_length(i)) FROM {table}"
        ))
        .await;
        pair.same(&format!("SELECT id, array_transform(l, x -> x % 7 + array_length(l)) FROM {table}")).await;
        pair.same(&format!("SELECT id FROM {table} WHERE array_any_match(l, x -> x = 3)")).await;
    }
    pair.stays("SELECT id, array_transform(l, x -> x % 7 + k) FROM n", "has no device form").await;
    pair.finish();
}

/// Columns that stay on the device: of files, which are read once, and of tables that queries make.
#[tokio::test]
async fn nested_columns_are_stored() {
    let mut pair = Pair::new(&["millpond.batch_rows = 30"]).await;
    for _ in 0..2 {
        pair.same("SELECT l, st, count(*) FROM p GROUP BY l, st").await;
        pair.same("SELECT id, m, ls, unnest(l) FROM p WHERE k > 1").await;
    }
    let make = "CREATE TABLE made AS SELECT id, l, array_sort(l) AS o, st, m, unnest(t) AS w FROM n WHERE id < 150";
    for session in [&pair.cpu, &pair.sim] {
        session.execute(make).await.expect("a table");
    }
    pair.same("SELECT * FROM made WHERE id > 1").await;
    pair.same("SELECT o, w, count(*), sum(st['a']) FROM made GROUP BY o, w").await;
    pair.same("SELECT a.id, a.m, b.l FROM made a JOIN p b ON a.o = b.l").await;
    pair.same("SELECT id, unnest(o) AS i, w FROM made WHERE id > 9").await;
    pair.finish();
}

#[tokio::test]
async fn what_has_no_dictionary_of_its_own_stays() {
    let mut pair = Pair::new(&["millpond.batch_rows = 100"]).await;
    pair.stays("SELECT id, arrays_zip(l, t) FROM n", "evaluated on the dictionary of one column").await;
    pair.stays("SELECT id, [[id], [k]] FROM n WHERE id > 3", "make_array is not lowered").await;
    pair.stays("SELECT max(st) FROM n", "no device form over structures").await;
    pair.finish();
}

#[tokio::test]
async fn more_values_than_a_dictionary_holds_are_the_cpus() {
    let pair = Pair::new(&["millpond.debug_dictionary_values = 2"]).await;
    for sql in
        ["SELECT id, l FROM n WHERE k > 0", "SELECT l, count(*) FROM p GROUP BY l", "SELECT id, unnest(l) FROM n"]
    {
        match pair.compare(&pair.lenient, sql).await {
            Ok(report) => {
                assert!(report.notes.iter().any(|note| note.contains("different values")), "{:?}", report.notes)
            }
            Err(why) => panic!("{sql}: {why}"),
        }
    }
    // Few lists, and more items than a table may have.
    let pair = Pair::new(&["millpond.debug_dictionary_values = 3"]).await;
    let sql = "SELECT id, unnest(l) FROM (SELECT id, CASE WHEN k > 1 THEN [1,2,3,4,5,6,7] ELSE [1,2,3,4,5,6] END AS l FROM n)";
    match pair.compare(&pair.lenient, sql).await {
        Ok(report) => assert!(report.notes.iter().any(|note| note.contains("items")), "{:?}", report.notes),
        Err(why) => panic!("{sql}: {why}"),
    }
}
