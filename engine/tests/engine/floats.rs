//! NaN and zero: what the device stores, compares, groups, joins, sorts and computes of them are DataFusion's bits.
//!
//!   -NaN  NaN  NaN of other payloads  -0.0  0.0  ±inf  numbers  NULL, each beside each
//!         ├─► device = sim, fallback = error ──┐
//!         └─► device = cpu ────────────────────┴─► equal bits
//!
//! Tables   `m` in memory and `p` in Parquet: every pair of values, `d` and `e` of 64 bits, `r` and `q` of 32, `h` and
//!          `i` of 16; `l` and `u`, to be joined: `x`, `y` and `z`, each value twice in `l`.
//! Rule     `$d`, `$e` stand for a pair of any width in the queries below, `$[1.5]` is a constant of that width.
//! Host     what + - × ÷ % make of numbers has the sign that x86 gives; so these are compared there alone.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, Float16Array, Float32Array, Float64Array, Int64Array, StringArray,
};
use millpond::datafusion::arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use millpond::session::QueryResult;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::edges::write_parquet;
use crate::support::session_with;

const DOUBLES: [u64; 14] = [
    0xfff8_0000_0000_0000,
    0x7ff8_0000_0000_0000,
    0x7ff8_0000_0000_0123,
    0xfff8_000a_bc00_0456,
    0xffff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0x0000_0000_0000_0000,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x3ff8_0000_0000_0000,
    0xc000_0000_0000_0000,
    0x4008_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0x0000_0000_0000_0001,
];

const SINGLES: [u32; 14] = [
    0xffc0_0000,
    0x7fc0_0000,
    0x7fc0_0123,
    0xffc0_a456,
    0xffff_ffff,
    0x8000_0000,
    0x0000_0000,
    0x7f80_0000,
    0xff80_0000,
    0x3fc0_0000,
    0xc000_0000,
    0x4040_0000,
    0x7f7f_ffff,
    0x0000_0001,
];

const HALVES: [u16; 14] =
    [0xfe00, 0x7e00, 0x7e23, 0xfe56, 0xffff, 0x8000, 0x0000, 0x7c00, 0xfc00, 0x3e00, 0xc000, 0x4200, 0x7bff, 0x0001];

/// Functions without a device form in 16 bits: DataFusion rounds from 64 bits as the processor does.
const WIDER: [&str; 1] = ["percentile_cont"];

/// The value at `at`; NULL comes after the last.
fn double(at: usize) -> Option<f64> {
    DOUBLES.get(at % (DOUBLES.len() + 1)).map(|bits| f64::from_bits(*bits))
}

fn single(at: usize) -> Option<f32> {
    SINGLES.get(at % (SINGLES.len() + 1)).map(|bits| f32::from_bits(*bits))
}

fn half(at: usize) -> Option<<Float16Type as ArrowPrimitiveType>::Native> {
    HALVES.get(at % (HALVES.len() + 1)).map(|bits| <Float16Type as ArrowPrimitiveType>::Native::from_bits(*bits))
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let columns = columns.into_iter().map(|(name, array)| (name, array, name != "id"));
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns have one length")
}

/// Every pair of values.
fn pairs() -> RecordBatch {
    let values = DOUBLES.len() + 1;
    let rows = 0..values * values;
    batch(vec![
        ("id", Arc::new(rows.clone().map(|row| row as i64).collect::<Int64Array>())),
        ("k", Arc::new(rows.clone().map(|row| (row % 4 != 0).then_some(row as i64 % 3)).collect::<Int64Array>())),
        ("s", Arc::new(rows.clone().map(|row| Some(["a", "b", ""][row % 3])).collect::<StringArray>())),
        ("d", Arc::new(rows.clone().map(|row| double(row / values)).collect::<Float64Array>())),
        ("e", Arc::new(rows.clone().map(double).collect::<Float64Array>())),
        ("r", Arc::new(rows.clone().map(|row| single(row / values)).collect::<Float32Array>())),
        ("q", Arc::new(rows.clone().map(single).collect::<Float32Array>())),
        ("h", Arc::new(rows.clone().map(|row| half(row / values)).collect::<Float16Array>())),
        ("i", Arc::new(rows.map(half).collect::<Float16Array>())),
    ])
}

/// Values to be joined; those at `skipped` are missing.
fn side(rows: usize, skipped: &[usize]) -> RecordBatch {
    let values = DOUBLES.len() + 1;
    let rows: Vec<usize> = (0..rows).filter(|row| !skipped.contains(&(row % values))).collect();
    let rows = || rows.iter().copied();
    batch(vec![
        ("id", Arc::new(rows().map(|row| row as i64).collect::<Int64Array>())),
        ("s", Arc::new(rows().map(|row| Some(["a", "b"][row % 2])).collect::<StringArray>())),
        ("x", Arc::new(rows().map(double).collect::<Float64Array>())),
        ("y", Arc::new(rows().map(single).collect::<Float32Array>())),
        ("z", Arc::new(rows().map(half).collect::<Float16Array>())),
    ])
}

/// Groups of numbers with what makes a sum no number: one NaN, two of one sign, infinities of both signs.
fn sums() -> RecordBatch {
    let infinite = [7, 8];
    let groups: Vec<Vec<usize>> = (0..5)
        .map(|nan| vec![9, nan, 10, 11])
        .chain([vec![9, 10], [vec![9], infinite.to_vec()].concat(), vec![7, 9], vec![7, 1], vec![8, 0, 9]])
        .collect();
    let rows = || groups.iter().enumerate().flat_map(|(group, values)| values.iter().map(move |at| (group, *at)));
    batch(vec![
        ("id", Arc::new((0..rows().count() as i64).collect::<Int64Array>())),
        ("g", Arc::new(rows().map(|(group, _)| group as i64).collect::<Int64Array>())),
        ("d", Arc::new(rows().map(|(_, at)| double(at)).collect::<Float64Array>())),
        ("r", Arc::new(rows().map(|(_, at)| single(at)).collect::<Float32Array>())),
        ("h", Arc::new(rows().map(|(_, at)| half(at)).collect::<Float16Array>())),
    ])
}

/// Rows as text; floats by their bits.
fn rows(result: &QueryResult, ordered: bool) -> Vec<String> {
    let mut rows = Vec::new();
    for batch in &result.batches {
        let cells: Vec<Vec<String>> = batch.columns().iter().map(|column| cells(column.as_ref())).collect();
        rows.extend(
            (0..batch.num_rows())
                .map(|row| cells.iter().map(|column| column[row].as_str()).collect::<Vec<_>>().join(" | ")),
        );
    }
    if !ordered {
        rows.sort();
    }
    rows
}

fn cells(column: &dyn Array) -> Vec<String> {
    let formatter = ArrayFormatter::try_new(column, &FormatOptions::default()).expect("the type can be shown");
    let cell = |row: usize| match column.data_type() {
        _ if column.is_null(row) => "NULL".to_string(),
        DataType::Float16 => {
            let value = column.as_primitive::<Float16Type>().value(row);
            format!("{value:?} {:04x}", value.to_bits())
        }
        DataType::Float32 => {
            let value = column.as_primitive::<Float32Type>().value(row);
            format!("{value:?} {:08x}", value.to_bits())
        }
        DataType::Float64 => {
            let value = column.as_primitive::<Float64Type>().value(row);
            format!("{value:?} {:016x}", value.to_bits())
        }
        _ => formatter.value(row).to_string(),
    };
    (0..column.len()).map(cell).collect()
}

struct Rig {
    cpu: Millpond,
    sim: Millpond,
    failures: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Rig {
    async fn new() -> Rig {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // One partition, so that DataFusion adds in the order of rows.
        let sessions = [(DeviceChoice::Cpu, Fallback::Allow), (DeviceChoice::Sim, Fallback::Error)]
            .map(|(device, fallback)| session_with(device, 1, fallback));
        let values = DOUBLES.len() + 1;
        let tables = [("m", pairs()), ("l", side(2 * values, &[3])), ("u", side(values, &[4, 5])), ("v", sums())];
        let path = folder.path().join("p.parquet");
        write_parquet(&pairs(), &path, 100);
        for session in &sessions {
            let context = session.context();
            for (name, batch) in &tables {
                context.register_batch(*name, batch.clone()).expect("the name is free");
            }
            let path = path.to_str().expect("a UTF-8 path");
            // The statistics of row groups and pages do not know of NaNs: DataFusion would leave out rows that pass a
            // filter.
            for option in ["pruning", "enable_page_index"] {
                let sql = format!("SET datafusion.execution.parquet.{option} = false");
                context.sql(&sql).await.expect("the option is taken");
            }
            context.register_parquet("p", path, Default::default()).await.expect("the file is read");
        }
        let [cpu, sim] = sessions;
        let rig = Rig { cpu, sim, failures: vec![], _folder: folder };
        rig.set("millpond.batch_rows = 60").await;
        // DataFusion 55.2 panics where groups of floats have a LIMIT.
        rig.set_both("datafusion.optimizer.enable_topk_aggregation = false").await;
        rig
    }

    /// Changes an option of the device's session.
    async fn set(&self, setting: &str) {
        self.sim.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
    }

    /// Changes an option of both sessions.
    async fn set_both(&self, setting: &str) {
        self.set(setting).await;
        self.cpu.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
    }

    /// The query gives the same bits on the device as on the CPU; in each width, from memory and from Parquet.
    async fn same(&mut self, sql: &str) {
        for sql in variants(sql) {
            let failure = match (self.cpu.execute(&sql).await, self.sim.execute(&sql).await) {
                (Ok(expected), Ok(actual)) => {
                    let ordered = is_ordered(&sql);
                    let (expected, found) = (rows(&expected, ordered), rows(&actual, ordered));
                    let report = actual.report;
                    let different = (0..expected.len().max(found.len())).find(|&at| expected.get(at) != found.get(at));
                    match different {
                        Some(at) => Some(format!("row {at} is {:?} instead of {:?}", found.get(at), expected.get(at))),
                        None if expected.is_empty() => Some("there are no rows".to_string()),
                        None if report.launches == 0 => Some("no kernel was launched".to_string()),
                        None if !report.findings.is_empty() => Some(report.findings.join(" | ")),
                        None if !report.notes.is_empty() => Some(report.notes.join(" | ")),
                        None => None,
                    }
                }
                (Err(error), _) => Some(format!("the CPU refuses it: {}", error.strip_backtrace())),
                (_, Err(error)) => Some(error.strip_backtrace().to_string()),
            };
            self.failures.extend(failure.map(|failure| format!("{sql}\n    {failure}")));
        }
    }

    fn finish(self) {
        assert!(self.failures.is_empty(), "{} queries failed:\n{}", self.failures.len(), self.failures.join("\n"));
    }
}

/// Whether there is an ORDER BY outside of parentheses.
fn is_ordered(sql: &str) -> bool {
    let mut depth = 0;
    let outside = |letter: &char| {
        depth += i32::from(*letter == '(') - i32::from(*letter == ')');
        depth == 0
    };
    sql.chars().filter(outside).collect::<String>().contains("ORDER BY")
}

/// `$d`, `$e`, `$x` are columns of 64, 32 or 16 bits, `$t` is the table in memory or in Parquet.
fn variants(sql: &str) -> Vec<String> {
    let widths = [
        [("$d", "d"), ("$e", "e"), ("$x", "x"), ("$[", "arrow_cast("), ("]", ", 'Float64')")],
        [("$d", "r"), ("$e", "q"), ("$x", "y"), ("$[", "arrow_cast("), ("]", ", 'Float32')")],
        [("$d", "h"), ("$e", "i"), ("$x", "z"), ("$[", "arrow_cast("), ("]", ", 'Float16')")],
    ];
    let of_all = WIDER.iter().all(|word| !sql.contains(word));
    let of_width = widths[..if of_all { 3 } else { 2 }]
        .iter()
        .map(|names| names.iter().fold(sql.to_string(), |sql, (from, to)| sql.replace(from, to)));
    let mut all: Vec<String> = of_width.flat_map(|sql| ["m", "p"].map(|table| sql.replace("$t", table))).collect();
    all.dedup();
    all
}

/// One test: its queries, all run.
macro_rules! same_bits {
    ($($(#[$attribute:meta])* $name:ident: $($sql:literal),* $(,)?;)*) => { $(
        $(#[$attribute])*
        #[tokio::test]
        async fn $name() {
            let mut rig = Rig::new().await;
            $( rig.same($sql).await; )*
            rig.finish();
        }
    )* };
}

same_bits! {
    stored_nans_keep_their_bits:
        "SELECT id, $d, $e FROM $t WHERE id >= 0",
        "SELECT id, $d FROM $t WHERE k > 0",
        "SELECT id, $d, $e FROM $t ORDER BY id DESC",
        "SELECT id, CASE WHEN k = 1 THEN $d WHEN k = 2 THEN $e END FROM $t",
        "SELECT id, coalesce($d, $e), coalesce($d, $[1.5]) FROM $t",
        "SELECT a.id, b.id, a.$x, b.$x FROM l a JOIN u b ON a.id = b.id",
        "SELECT a.id, b.id, a.$x, b.$x FROM l a FULL JOIN u b ON a.id = b.id AND a.$x > b.$x",
        "SELECT id, $d FROM $t UNION ALL SELECT id, $e FROM $t",
        "SELECT id, -$d, abs($d), - -$d, abs(-$e) FROM $t",
        "SELECT id, floor($d), ceil($d), round($d), trunc($d), signum($d) FROM $t",
        "SELECT id, CAST($d AS DOUBLE), CAST($d AS REAL) AS a, CAST(CAST($d AS REAL) AS DOUBLE) AS b FROM $t",
        "SELECT id, TRY_CAST($d AS INT), isnan($d), iszero($d), CAST($d AS BOOLEAN) AS a FROM $t",
        "SELECT k, first_value($d ORDER BY id), last_value($d ORDER BY id) FROM $t GROUP BY k",
        "SELECT k, first_value(id ORDER BY $d, id), last_value($e ORDER BY $d DESC, id) FROM $t GROUP BY k";
    keys_of_groups:
        "SELECT $d, count(*), sum(id) FROM $t GROUP BY $d",
        "SELECT $d, $e, count(*) FROM $t GROUP BY $d, $e",
        "SELECT $d, s, count(*) FROM $t GROUP BY $d, s",
        "SELECT s, k, $d, max(id) FROM $t GROUP BY s, k, $d",
        "SELECT $d, count(*) FROM $t GROUP BY $d HAVING $d > 1.0",
        "SELECT $d, count(*) FROM $t GROUP BY $d HAVING $d = $d AND count(*) > 2",
        "SELECT $d, max(id) FROM $t GROUP BY $d ORDER BY max(id) DESC LIMIT 5",
        "SELECT $d, count(*) AS n FROM $t GROUP BY $d ORDER BY $d DESC NULLS LAST",
        "SELECT $d, min(k) FROM $t GROUP BY $d ORDER BY $d LIMIT 9",
        "SELECT $d, k, count(*), grouping($d) FROM $t GROUP BY ROLLUP ($d, k)",
        "SELECT $d, $e, count(*) FROM $t GROUP BY CUBE ($d, $e)",
        "SELECT $d, $e, sum(id) FROM $t GROUP BY GROUPING SETS (($d), ($e), ())",
        "SELECT CASE WHEN k = 1 THEN $d ELSE $e END, count(*) FROM $t GROUP BY 1",
        "SELECT -$d, count(*) FROM $t GROUP BY -$d",
        "SELECT abs($d), count(*) FROM $t GROUP BY 1",
        "SELECT $x, count(*), sum(id) FROM (SELECT * FROM l UNION ALL SELECT * FROM u) GROUP BY $x";
    distinct_values:
        "SELECT DISTINCT $d FROM $t",
        "SELECT DISTINCT $d, $e FROM $t",
        "SELECT DISTINCT $d, k, s FROM $t",
        "SELECT count(DISTINCT $d) FROM $t",
        "SELECT count(DISTINCT $d), sum(id) FROM $t",
        "SELECT count(DISTINCT $d), count(DISTINCT $e), count(DISTINCT k) FROM $t",
        "SELECT k, count(DISTINCT $d) FROM $t GROUP BY k",
        "SELECT k, count(DISTINCT $d), count(DISTINCT $e), max(id) FROM $t GROUP BY k",
        "SELECT $e, count(DISTINCT $d), count(DISTINCT s) FROM $t GROUP BY $e",
        "SELECT count(DISTINCT $d) FILTER (WHERE k = 1), count(DISTINCT k) FILTER (WHERE $d > 0) FROM $t",
        "SELECT DISTINCT $d FROM $t ORDER BY $d LIMIT 6";
    joins:
        "SELECT a.id, b.id, a.$x, b.$x FROM l a JOIN u b ON a.$x = b.$x",
        "SELECT a.id, b.id, a.$x, b.$x FROM l a LEFT JOIN u b ON a.$x = b.$x",
        "SELECT a.id, b.id, a.$x, b.$x FROM l a RIGHT JOIN u b ON a.$x = b.$x",
        "SELECT a.id, b.id, a.$x, b.$x FROM l a FULL JOIN u b ON a.$x = b.$x",
        "SELECT a.id, b.id, a.$x, b.$x FROM l a FULL JOIN u b ON a.$x = b.$x AND a.id <> b.id",
        "SELECT a.id, b.id FROM l a JOIN u b ON a.$x = b.$x AND a.s = b.s",
        "SELECT a.id, b.id FROM l a JOIN u b ON a.x = b.x AND a.y = b.y",
        "SELECT a.id, b.id FROM l a JOIN u b ON a.$x = b.$x AND a.id > b.id",
        "SELECT a.id, b.id FROM l a JOIN u b ON a.$x IS NOT DISTINCT FROM b.$x",
        "SELECT a.id, b.id FROM l a JOIN u b ON a.x = CAST(b.y AS DOUBLE)",
        "SELECT a.id, b.id FROM l a JOIN u b ON -a.$x = b.$x",
        "SELECT a.id, b.id FROM l a JOIN u b ON a.$x < b.$x",
        "SELECT a.id, b.id FROM l a LEFT JOIN u b ON a.$x <> b.$x",
        "SELECT a.id, b.id FROM l a JOIN u b ON a.$x >= b.$x AND a.s = b.s",
        "SELECT id FROM l WHERE $x IN (SELECT $x FROM u)",
        "SELECT id FROM l WHERE $x NOT IN (SELECT $x FROM u WHERE $x IS NOT NULL)",
        "SELECT id FROM l WHERE EXISTS (SELECT 1 FROM u WHERE u.$x = l.$x)",
        "SELECT id FROM l WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.$x = l.$x)",
        "SELECT id FROM l WHERE $x IN (SELECT $x FROM u) OR id = 3",
        "SELECT u.id FROM l LEFT SEMI JOIN u ON l.$x = u.$x RIGHT SEMI JOIN u ON true",
        "SELECT id FROM l WHERE $x IN (SELECT $[-0.0])",
        "SELECT id FROM l WHERE $x IN (SELECT $[0.0])",
        "SELECT id FROM l WHERE $x IN (SELECT $['NaN'])",
        "SELECT id FROM l WHERE $x NOT IN (SELECT $[-0.0])",
        "SELECT id, (SELECT count(*) FROM u WHERE u.$x = l.$x) FROM l",
        "SELECT a.id, b.id FROM $t a JOIN u b ON a.$d = b.$x",
        "SELECT a.$d, count(*) FROM $t a JOIN l b ON a.$d = b.$x AND a.$e = b.$x GROUP BY a.$d";
    set_operations:
        "SELECT $x FROM l UNION SELECT $x FROM u",
        "SELECT $x FROM l EXCEPT SELECT $x FROM u",
        "SELECT $x FROM u EXCEPT SELECT $x FROM l",
        "SELECT $x FROM l INTERSECT SELECT $x FROM u",
        // Which of the two zeros is kept is not said.
        "SELECT $x + $[0.0] FROM (SELECT $x FROM l INTERSECT ALL SELECT $x FROM u) AS q",
        "SELECT $x + $[0.0] FROM (SELECT $x FROM l EXCEPT ALL SELECT $x FROM u) AS q",
        "SELECT x, y FROM l EXCEPT SELECT x, y FROM u",
        "SELECT x, y, s FROM l INTERSECT SELECT x, y, s FROM u",
        "SELECT $d FROM $t UNION SELECT $x FROM l",
        "SELECT -$x FROM l INTERSECT SELECT $x FROM u";
    orders:
        "SELECT $d, id FROM $t ORDER BY $d, id",
        "SELECT $d, id FROM $t ORDER BY $d DESC, id",
        "SELECT $d, id FROM $t ORDER BY $d NULLS FIRST, id",
        "SELECT $d, id FROM $t ORDER BY $d DESC NULLS LAST, id DESC",
        "SELECT $d, $e, id FROM $t ORDER BY $d DESC, $e, id",
        "SELECT $d, s, id FROM $t ORDER BY s, $d, id",
        "SELECT $d, id FROM $t ORDER BY -$d, id",
        "SELECT $d FROM $t ORDER BY $d",
        "SELECT $d FROM $t ORDER BY $d LIMIT 40",
        "SELECT $d, id FROM $t ORDER BY $d, id LIMIT 33",
        "SELECT $d, id FROM $t ORDER BY $d DESC, id LIMIT 70",
        "SELECT $d, id FROM $t ORDER BY $d DESC NULLS LAST, id LIMIT 100 OFFSET 20",
        "SELECT $d, $e FROM $t ORDER BY $d DESC, $e DESC LIMIT 50";
    comparisons:
        "SELECT id, $d = $e, $d <> $e, $d < $e, $d <= $e, $d > $e, $d >= $e FROM m",
        "SELECT id, $d IS DISTINCT FROM $e, $d IS NOT DISTINCT FROM $e, $d = $d FROM m",
        "SELECT id, $d = $[-0.0], $d < $[0.0], $d >= $[-0.0], $d > $['NaN'], $d = $['NaN'] FROM m",
        "SELECT id, $d BETWEEN -2.0 AND 1.5, $d NOT BETWEEN $e AND 3.0, $d BETWEEN 0.0 AND $['inf'] FROM m",
        "SELECT id, $d IN (0.0, 1.5), $d IN (-0.0, 1.5, 3.0, 7.0), $d NOT IN (0.0, 1.0, 2.0, 'NaN') FROM m",
        "SELECT id, $d IN ($e, 1.5), $d IN ($e, -$e, 0.0, 7.5, NULL) FROM m",
        "SELECT id, CASE $d WHEN 0.0 THEN 'zero' WHEN 1.5 THEN 'one' ELSE 'other' END FROM m",
        "SELECT id, CASE $d WHEN $e THEN 'same' WHEN -$e THEN 'opposite' END FROM m",
        "SELECT id, nullif($d, $e), nullif($d, $[0.0]), greatest($d, $e), least($d, $e, $[0.0]) FROM m",
        "SELECT id FROM m WHERE $d > 5",
        "SELECT id FROM m WHERE $d = $e OR $d < $e AND k = 1",
        "SELECT id FROM m WHERE $d IN (-0.0, 2.0, 3.0, 9.0)",
        "SELECT id FROM m WHERE NOT ($d <= $e)",
        "SELECT min($d), max($d), min($e) FILTER (WHERE id > 20), max($e) FILTER (WHERE $d = 1.5) FROM m",
        "SELECT k, max($d) > 1.0, count(*) FILTER (WHERE $d >= $e) FROM m WHERE NOT isnan($d) GROUP BY k";
    medians:
        "SELECT $e, median($d) FROM m WHERE id < 210 AND $d = $e GROUP BY $e",
        "SELECT s, median($x) FROM l WHERE id < 15 AND isnan($x) GROUP BY s",
        "SELECT $d, median($e) FROM m WHERE NOT isnan($e) GROUP BY $d",
        "SELECT $d, percentile_cont(0.25) WITHIN GROUP (ORDER BY $e) FROM m WHERE abs($e) < 100 GROUP BY $d";
    #[cfg(target_arch = "x86_64")]
    what_arithmetic_makes:
        "SELECT id, $d + $e, $d - $e, $d * $e, $d / $e, $d % $e FROM $t WHERE NOT (isnan($d) AND isnan($e))",
        "SELECT id, $d - $d, $d / $d, $d * $[0.0], $d % $[0.0] FROM $t",
        "SELECT id, $d + $[1.0], $[2.0] * $d, $d / $[0.0], $[0.0] / $d, $d % $[2.0] FROM $t",
        "SELECT id, ($d - $d) + id, -($d - $d), abs($d * $[0.0]), CAST($d - $d AS REAL), CAST($d / $d AS DOUBLE) FROM $t",
        "SELECT id, k / $[0], $[k] % 0, $[k - k] / $[k - k] FROM $t",
        "SELECT id FROM m WHERE $d - $d > 5",
        "SELECT id FROM m WHERE $d - $d < 5 AND $d * 0 <> 0",
        "SELECT $d - $d AS n, id FROM m ORDER BY n, id",
        "SELECT $d - $d AS n, id FROM m ORDER BY n DESC NULLS LAST, id LIMIT 50",
        "SELECT $d / $d, count(*) FROM $t GROUP BY 1",
        "SELECT DISTINCT $d * 0, $e - $e FROM $t",
        "SELECT count(DISTINCT $d - $d), count(DISTINCT $d) FROM $t",
        "SELECT a.id, b.id FROM l a JOIN u b ON a.$x - a.$x = b.$x",
        "SELECT $x FROM l EXCEPT SELECT $x - $x FROM l",
        "SELECT min($d - $d), max($d - $d), min($d / $d) FROM m WHERE NOT isnan($d)";
    #[cfg(target_arch = "x86_64")]
    what_sums_make:
        "SELECT g, sum($d), avg($d), count($d) FROM v GROUP BY g",
        "SELECT g, sum($d) AS t FROM v GROUP BY g ORDER BY t, g",
        "SELECT g, sum(-$d), avg(-$d), sum($d) FILTER (WHERE id % 2 = 0) FROM v GROUP BY g",
        "SELECT g, sum($d) > 5, avg($d) < 5 FROM v GROUP BY g",
        "SELECT sum($d), avg($d) FROM v WHERE g = 0",
        "SELECT sum($d), avg($d) FROM v WHERE g = 1",
        "SELECT sum($d), avg($d) FROM v WHERE g = 2",
        "SELECT sum($d), avg($d) FROM v WHERE g = 3",
        "SELECT sum($d), avg($d) FROM v WHERE g = 6",
        "SELECT sum($d), avg($d) FROM v WHERE g = 8",
        "SELECT sum($d), avg($d) FROM v WHERE g = 9";
}

/// Joins that DataFusion makes by sorting have the same keys.
#[tokio::test]
async fn joins_by_sorting() {
    let mut rig = Rig::new().await;
    rig.set_both("datafusion.optimizer.prefer_hash_join = false").await;
    rig.same("SELECT a.id, b.id, a.$x, b.$x FROM l a JOIN u b ON a.$x = b.$x").await;
    rig.same("SELECT a.id, b.id, a.$x, b.$x FROM l a FULL JOIN u b ON a.$x = b.$x AND a.s = b.s").await;
    rig.same("SELECT id FROM l WHERE $x IN (SELECT $x FROM u)").await;
    rig.same("SELECT id FROM l WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.$x = l.$x)").await;
    rig.finish();
}

/// Sums without rounding keep the sign of a NaN, and make the negative one.
#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn what_exact_sums_make() {
    let mut rig = Rig::new().await;
    rig.set("millpond.deterministic_floats = true").await;
    // Signs alone: an exact sum has no payload.
    rig.same("SELECT g, sum($d) > 0, avg($d) > 0, isnan(sum($d)) FROM v GROUP BY g").await;
    rig.same("SELECT sum($d) > 0, isnan(sum($d)) FROM v WHERE g = 0").await;
    rig.same("SELECT sum($d) > 0, isnan(sum($d)) FROM v WHERE g = 1").await;
    rig.same("SELECT sum($d) > 0, isnan(sum($d)) FROM v WHERE g = 6").await;
    rig.finish();
}
