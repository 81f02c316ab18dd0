//! Approximate percentiles: the device answers where DataFusion's own answer is the same in any batches, to the last
//! bit.
//!
//! ```text
//!   rows, drawn by seed ─┬─► the simulated device, extents of 3 to 1000 rows ────────────────┐
//!                        └─► the CPU, shuffled, in several batches and partitions, thrice ───┴─► equal bits, or the
//!                                                                                                CPU took over
//! ```
//!
//! Groups   of 0, 1, 2, 3, 85, 86, 87 and 200 values, and of 200 equal ones; up to 86 a digest of 100 centroids keeps
//!          values apart
//! Values   floats of both widths, integers, decimals; infinities; NaN and both zeros, which the device leaves to the
//!          CPU

use std::sync::Arc;

use millpond::datafusion::arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, Float32Array, Float64Array, Int32Array, Int64Array, UInt32Array,
};
use millpond::datafusion::arrow::compute::take_record_batch;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use millpond::datafusion::datasource::MemTable;
use millpond::session::QueryResult;
use millpond::{DeviceChoice, Fallback, Millpond, QueryReport};

use crate::support::session_with;

/// Values of each group; group 9 has `EQUAL` equal ones.
const SIZES: [usize; 9] = [0, 1, 2, 3, 85, 86, 87, 200, 20];
const EQUAL: usize = 200;

struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n.max(1)
    }
}

/// One row of `g`: its group, and how many values that has.
fn rows() -> RecordBatch {
    let mut draws = Draws(11);
    let mut group = vec![];
    let mut values: Vec<Option<f64>> = vec![];
    for (number, size) in SIZES.into_iter().enumerate() {
        for _ in 0..size {
            group.push(number as i32);
            // Thirds have no short binary form; every tenth comes several times.
            let value = draws.below(100_000) as f64 / 3.0 - 9_000.0;
            values.push(Some(if draws.below(10) == 0 { 7.25 } else { value }));
        }
        for _ in 0..4 {
            group.push(number as i32);
            values.push(None);
        }
    }
    for _ in 0..EQUAL {
        group.push(SIZES.len() as i32);
        values.push(Some(-41.5));
    }
    let count = group.len();
    let size = |number: &i32| SIZES.get(*number as usize).copied().unwrap_or(EQUAL) as i32;
    let of = |scale: f64| values.iter().map(move |value| value.map(|value| value * scale));
    let decimals = of(100.0).map(|value| value.map(|value| value as i128)).collect::<Decimal128Array>();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new((0..count as i64).collect::<Int64Array>())),
        ("size", Arc::new(group.iter().map(size).collect::<Int32Array>())),
        ("x", Arc::new(of(1.0).collect::<Float64Array>())),
        ("f", Arc::new(of(1.0).map(|value| value.map(|value| value as f32)).collect::<Float32Array>())),
        ("n", Arc::new(of(1.0).map(|value| value.map(|value| value as i32)).collect::<Int32Array>())),
        ("big", Arc::new(of(1e14).map(|value| value.map(|value| value as i64)).collect::<Int64Array>())),
        ("d", Arc::new(decimals.with_precision_and_scale(18, 2).expect("the precision fits"))),
        ("b", Arc::new((0..count).map(|_| Some(draws.below(2) == 0)).collect::<BooleanArray>())),
        ("k", Arc::new(Int32Array::from(group))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .expect("columns of one length")
}

/// Groups that tell what the device leaves to the CPU, by `what`.
fn edges() -> RecordBatch {
    let groups: [(&str, &[f64]); 8] = [
        ("infinite", &[f64::NEG_INFINITY, 1.5, f64::INFINITY, 3.0]),
        ("all infinite", &[f64::INFINITY, f64::INFINITY, f64::INFINITY]),
        ("nan", &[1.0, f64::NAN, 2.0, 3.0, 5.0]),
        ("nans", &[f64::NAN, f64::NAN, f64::NAN, f64::NAN]),
        ("zeros", &[0.0, -0.0, -1.0, -0.0]),
        ("zeros in between", &[1.0, 0.0, -0.0, -1.0]),
        ("negative zeros", &[-0.0, -0.0, -0.0, 1.0]),
        ("one", &[f64::NEG_INFINITY]),
    ];
    let all = || groups.into_iter().flat_map(|(what, values)| values.iter().map(move |value| (what, *value)));
    let what: Vec<&str> = all().map(|(what, _)| what).collect();
    RecordBatch::try_from_iter_with_nullable([
        ("what", Arc::new(millpond::datafusion::arrow::array::StringArray::from(what)) as ArrayRef, true),
        ("x", Arc::new(all().map(|(_, value)| Some(value)).collect::<Float64Array>()), true),
        ("f", Arc::new(all().map(|(_, value)| Some(value as f32)).collect::<Float32Array>()), true),
    ])
    .expect("columns of one length")
}

/// The rows in an order, in batches and partitions that `seed` chooses.
fn table(rows: &RecordBatch, partitions: usize, seed: u64) -> Arc<MemTable> {
    let mut draws = Draws(seed);
    let mut order: Vec<u32> = (0..rows.num_rows() as u32).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, draws.below(last + 1));
    }
    let shuffled = take_record_batch(rows, &UInt32Array::from(order)).expect("rows that are there");
    let mut parts = vec![vec![]; partitions];
    let mut from = 0;
    while from < shuffled.num_rows() {
        let some = (1 + draws.below(90)).min(shuffled.num_rows() - from);
        parts[draws.below(partitions)].push(shuffled.slice(from, some));
        from += some;
    }
    Arc::new(MemTable::try_new(rows.schema(), parts).expect("one schema"))
}

/// The device, and the CPU in several layouts of the same rows.
struct Lab {
    sim: Millpond,
    cpus: Vec<Millpond>,
    failures: Vec<String>,
}

impl Lab {
    async fn new(fallback: Fallback) -> Self {
        let (rows, edges) = (rows(), edges());
        let made = |session: Millpond, partitions, seed| {
            for (name, batch) in [("g", &rows), ("e", &edges)] {
                session.context().register_table(name, table(batch, partitions, seed)).expect("the name is free");
            }
            session
        };
        let mut cpus = vec![];
        for (partitions, batch, seed) in [(1, 8192, 1), (3, 7, 2), (7, 64, 3)] {
            let cpu = made(session_with(DeviceChoice::Cpu, partitions, Fallback::Allow), partitions, seed);
            set(&cpu, &format!("datafusion.execution.batch_size = {batch}")).await;
            cpus.push(cpu);
        }
        let sim = made(session_with(DeviceChoice::Sim, 1, fallback), 1, 1);
        set(&sim, "millpond.batch_rows = 100").await;
        Self { sim, cpus, failures: vec![] }
    }

    /// The device alone, and the CPU in every layout, give the same bits.
    async fn same(&mut self, sql: &str) {
        let report = match self.sim.execute(sql).await {
            Ok(result) => {
                for cpu in &self.cpus {
                    let expected = cpu.execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
                    let (expected, got) = (texts(&expected), texts(&result));
                    if expected != got {
                        let (a, b) = expected.iter().zip(&got).find(|(a, b)| a != b).unzip();
                        self.failures.push(format!("{sql}\n    expected {a:?}, got {b:?}"));
                    }
                }
                result.report
            }
            Err(error) => return self.failures.push(format!("{sql}\n    {}", error.strip_backtrace())),
        };
        self.expect(sql, &report, report.launches > 0 && report.notes.is_empty() && report.reasons.is_empty());
    }

    /// The CPU takes over, and its answer, over one partition, is that of the CPU's own session.
    async fn taken_over(&mut self, sql: &str) {
        let result = self.sim.execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let expected = self.cpus[0].execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        if texts(&expected) != texts(&result) {
            self.failures.push(format!("{sql}\n    expected {:?}, got {:?}", texts(&expected), texts(&result)));
        }
        let says = |note: &String| note.contains("DataFusion's own answer depends on its batches");
        self.expect(sql, &result.report, result.report.notes.iter().any(says));
    }

    fn expect(&mut self, sql: &str, report: &QueryReport, is_so: bool) {
        if !is_so || !report.findings.is_empty() || report.pool_used_bytes > 0 {
            let QueryReport { launches, reasons, notes, findings, .. } = report;
            self.failures.push(format!("{sql}\n    {launches} launches, {reasons:?}, {notes:?}, {findings:?}"));
        }
    }

    fn finish(self) {
        assert!(self.failures.is_empty(), "{} failures:\n{}", self.failures.len(), self.failures.join("\n"));
    }
}

async fn set(session: &Millpond, setting: &str) {
    session.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
}

/// Rows as text, sorted. Floats have all their digits, and their signs.
fn texts(result: &QueryResult) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let mut rows = vec![];
    for batch in &result.batches {
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).expect("a form"));
        let columns: Vec<_> = columns.collect();
        let row = |row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join(" ");
        rows.extend((0..batch.num_rows()).map(row));
    }
    rows.sort_unstable();
    rows
}

const PERCENTILES: [&str; 8] = ["0.0", "0.001", "0.1", "0.5", "0.51", "0.73", "0.999", "1.0"];

#[tokio::test]
async fn groups_that_a_digest_keeps_apart() {
    let mut lab = Lab::new(Fallback::Error).await;
    for p in PERCENTILES {
        lab.same(&format!(
            "SELECT k, count(x), approx_percentile_cont(x, {p}), approx_percentile_cont(f, {p}),
             approx_percentile_cont(n, {p}) FROM g WHERE size <= 86 GROUP BY k"
        ))
        .await;
    }
    for rows in [3, 30, 1000] {
        set(&lab.sim, &format!("millpond.batch_rows = {rows}")).await;
        lab.same("SELECT k, approx_median(x), approx_median(d), approx_median(big) FROM g WHERE size <= 86 GROUP BY k")
            .await;
    }
    for sql in [
        "SELECT k, approx_percentile_cont(0.2) WITHIN GROUP (ORDER BY x DESC), median(x), avg(n) FROM g WHERE size < 87 GROUP BY k",
        "SELECT k, approx_percentile_cont(0.9) WITHIN GROUP (ORDER BY f) FROM g WHERE size < 87 GROUP BY k HAVING approx_median(n) > 0",
        "SELECT approx_percentile_cont(x, 0.3), approx_median(n + 0.5), count(*) FROM g WHERE k = 5",
        "SELECT x, approx_median(f) FROM g WHERE size <= 86 GROUP BY x",
    ] {
        lab.same(sql).await;
    }
    lab.finish();
}

#[tokio::test]
async fn with_filters_sets_distinct_and_nothing_at_all() {
    let mut lab = Lab::new(Fallback::Error).await;
    for sql in [
        "SELECT k, approx_median(x) FILTER (WHERE b), approx_median(x) FILTER (WHERE NOT b), approx_median(x) FILTER (WHERE id < 0),
         approx_percentile_cont(f, 0.7) FILTER (WHERE n > 0), sum(n) FROM g WHERE size <= 86 GROUP BY k",
        // Groups of more than 86 values, of which fewer are left.
        "SELECT k, approx_median(x) FILTER (WHERE id % 5 = 0) FROM g WHERE k <> 9 GROUP BY k",
        // DataFusion's digest passes over DISTINCT; that of the only argument it does itself.
        "SELECT k, approx_percentile_cont(DISTINCT x, 0.6), count(DISTINCT n) FROM g WHERE size <= 86 GROUP BY k",
        "SELECT k, approx_median(DISTINCT x) FROM g WHERE size <= 86 GROUP BY k",
        "SELECT k, approx_median(x), count(DISTINCT b), sum(DISTINCT n) FROM g WHERE size <= 86 GROUP BY k",
        "SELECT k, b, approx_median(x), approx_percentile_cont(n, 0.25), grouping(b) FROM g WHERE size < 60 GROUP BY ROLLUP (k, b)",
        "SELECT k, b, approx_median(x) FROM g WHERE id < 0 GROUP BY GROUPING SETS ((k, b), ())",
        "SELECT approx_median(x), approx_percentile_cont(f, 1.0), count(*) FROM g WHERE id < 0",
        "SELECT k, approx_median(x) FROM g WHERE id < 0 GROUP BY k",
        "SELECT approx_median(x), approx_percentile_cont(n, 0.9) FROM g WHERE x IS NULL",
        "SELECT approx_median(m) FROM (SELECT k, approx_median(x) AS m FROM g WHERE size <= 86 GROUP BY k)",
        "SELECT a.k, a.m, b.m FROM (SELECT k, approx_median(x) AS m FROM g WHERE size <= 86 GROUP BY k) a
         JOIN (SELECT size AS k, approx_median(n) AS m FROM g WHERE size <= 86 GROUP BY size) b ON a.k = b.k",
    ] {
        lab.same(sql).await;
    }
    lab.finish();
}

/// The third argument is a number of centroids; each has a bound of its own.
#[tokio::test]
async fn digests_of_other_sizes() {
    let mut lab = Lab::new(Fallback::Error).await;
    for (centroids, size) in [(1, 1), (2, 2), (3, 3), (25, 20), (99, 85), (240, 200), (1_000_000, 200)] {
        lab.same(&format!(
            "SELECT k, approx_percentile_cont(x, 0.4, {centroids}), approx_percentile_cont(f, 0.95, {centroids})
             FROM g WHERE size <= {size} AND k <> 9 GROUP BY k"
        ))
        .await;
    }
    let mut lab = Lab { failures: lab.failures, ..Lab::new(Fallback::Allow).await };
    for (centroids, size) in [(1, 2), (2, 3), (20, 20), (99, 86), (200, 200)] {
        let sql = "SELECT k, approx_percentile_cont(x, 0.4, #) FROM g WHERE size = $ AND k <> 9 GROUP BY k";
        lab.taken_over(&sql.replace('#', &centroids.to_string()).replace('$', &size.to_string())).await;
    }
    lab.finish();
}

#[tokio::test]
async fn what_datafusion_does_not_decide_is_the_cpus() {
    let mut lab = Lab::new(Fallback::Allow).await;
    for sql in [
        "SELECT k, approx_median(x) FROM g WHERE size = 87 GROUP BY k",
        "SELECT k, approx_percentile_cont(0.9) WITHIN GROUP (ORDER BY f DESC), count(*) FROM g GROUP BY k",
        "SELECT approx_median(n) FROM g WHERE id < 300",
        "SELECT k, b, approx_median(x) FROM g WHERE size < 87 GROUP BY ROLLUP (k, b)",
        "SELECT what, approx_percentile_cont(x, 1.0) FROM e WHERE what = 'nan' GROUP BY what",
        "SELECT what, approx_percentile_cont(x, 0.0) FROM e WHERE what = 'nans' GROUP BY what",
        "SELECT what, approx_percentile_cont(f, 0.9) FROM e WHERE what LIKE '%zeros' OR what = 'one' GROUP BY what",
    ] {
        lab.taken_over(sql).await;
    }
    let sql = "SELECT approx_median(x) FROM g";
    let report = lab.sim.execute(sql).await.expect("the CPU answers").report;
    lab.expect(sql, &report, report.reasons.iter().any(|reason| reason.contains("of more than 86 values")));
    set(&lab.sim, "millpond.fallback = 'error'").await;
    let error = lab.sim.execute("SELECT k, approx_median(x) FROM g GROUP BY k").await.err().expect("it is forbidden");
    assert!(error.strip_backtrace().contains("depends on its batches"), "{error}");
    lab.finish();
}

#[tokio::test]
async fn equal_values_infinities_and_zeros_of_one_sign() {
    let mut lab = Lab::new(Fallback::Error).await;
    for p in PERCENTILES {
        lab.same(&format!(
            "SELECT k, approx_percentile_cont(x, {p}), approx_percentile_cont(f, {p}) FROM g WHERE k = 9 GROUP BY k"
        ))
        .await;
        lab.same(&format!(
            "SELECT what, approx_percentile_cont(x, {p}), approx_percentile_cont(f, {p}) FROM e
             WHERE what NOT IN ('nan', 'nans', 'zeros') GROUP BY what"
        ))
        .await;
    }
    // NaN and both zeros where no least or greatest value is asked for.
    for p in ["0.3", "0.5", "0.6", "0.75"] {
        lab.same(&format!(
            "SELECT what, approx_percentile_cont(x, {p}) AS p, approx_percentile_cont(f, {p}) FROM e
             WHERE what NOT IN ('one', 'all infinite') AND ('{p}' <> '0.75' OR what = 'nan') GROUP BY what"
        ))
        .await;
    }
    lab.finish();
}

/// DataFusion's errors, with its messages.
#[tokio::test]
async fn what_datafusion_refuses() {
    let lab = Lab::new(Fallback::Allow).await;
    for sql in [
        "SELECT approx_median(DISTINCT x), count(*) FROM g WHERE k = 3",
        "SELECT approx_percentile_cont(x, 1.5) FROM g WHERE k = 3",
        "SELECT approx_percentile_cont(x, 0.5, 0) FROM g WHERE k = 3",
        "SELECT approx_percentile_cont(x, 0.5, -4) FROM g WHERE k = 3",
    ] {
        let errors = [&lab.cpus[0], &lab.sim].map(async |session| session.execute(sql).await.map(|_| ()));
        let [cpu, sim] = errors;
        let (cpu, sim) = (cpu.await.expect_err(sql), sim.await.expect_err(sql));
        assert_eq!(cpu.strip_backtrace(), sim.strip_backtrace(), "{sql}");
    }
}
