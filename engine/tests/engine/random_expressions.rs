//! Random expressions in SQL: whatever DataFusion says on the CPU, an error included, the simulated device says too.
//!
//!   seed ─► SELECT id, number, number FROM t WHERE truth ─┬─► cpu ──┐
//!                                                         └─► sim ──┴─► equal answers, or both refuse
//!
//! A failure prints the query, which is all that is needed to see it again.
//!
//! NaN   of two NaNs, and of functions such as ln, has an unspecified sign; NaN computed from numbers is negative on
//!       the device as on x86, and positive on Arm. Comparisons order NaN by its sign, so those over computed floats
//!       are of finite numbers here.

use std::sync::Arc;

use millpond::datafusion::datasource::MemTable;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::edges::{edges, write_parquet};
use crate::support::session_with;

/// SplitMix64, and whether floats are finite at present.
struct Source {
    state: u64,
    finite: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Integer,
    Decimal,
    Float,
}

struct Query {
    columns: String,
    filter: String,
}

const INTEGERS: [&str; 10] = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "k", "w"];
const INTEGER_TYPES: [&str; 6] = ["TINYINT", "SMALLINT", "INT", "BIGINT", "INT UNSIGNED", "SMALLINT UNSIGNED"];
const DECIMALS: [&str; 4] = ["d9", "d18", "d30", "d38"];
const DECIMAL_TYPES: [&str; 4] = ["DECIMAL(9, 2)", "DECIMAL(18, 6)", "DECIMAL(38, 0)", "DECIMAL(30, 4)"];
const FLOATS: [&str; 3] = ["f32", "f64", "x"];
const PARTS: [&str; 12] =
    ["year", "isoyear", "quarter", "month", "week", "day", "doy", "dow", "isodow", "hour", "minute", "second"];
const TIMES: [&str; 5] = ["day", "ts_s", "ts_ms", "ts_us", "ts_ns"];
const GRAINS: [&str; 8] = ["second", "minute", "hour", "day", "week", "month", "quarter", "year"];

impl Source {
    fn new(seed: u64) -> Source {
        Source { state: seed, finite: false }
    }

    /// Builds an expression that is going to be compared.
    fn compared<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.finite, true);
        let made = make(self);
        self.finite = before;
        made
    }

    fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn leaf(&mut self, kind: Kind) -> String {
        match (kind, self.below(4)) {
            (Kind::Integer, 0) => self.pick(&["0", "1", "-3", "7", "100", "2147483647"]).to_string(),
            (Kind::Decimal, 0) => self.pick(&["0.5", "1.25", "-3.00", "100.0", "0.001"]).to_string(),
            (Kind::Float, 0) => self.pick(&["0.0::DOUBLE", "1.5::DOUBLE", "-2e10", "1e-3"]).to_string(),
            (Kind::Integer, _) => self.pick(&INTEGERS).to_string(),
            (Kind::Decimal, _) => self.pick(&DECIMALS).to_string(),
            (Kind::Float, _) if self.finite => "x".to_string(),
            (Kind::Float, _) => self.pick(&FLOATS).to_string(),
        }
    }

    fn number(&mut self, kind: Kind, depth: usize) -> String {
        if depth == 0 {
            return self.leaf(kind);
        }
        let other = [Kind::Integer, Kind::Decimal, Kind::Float][self.below(3)];
        let (a, b) = (self.number(kind, depth - 1), self.number(kind, depth - 1));
        match self.below(21) {
            16 if kind == Kind::Integer => format!("({a} ^ {b})"),
            16 => format!("round({a}, {})", self.pick(&["0", "1", "2", "-1"])),
            17 if kind != Kind::Integer => format!("trunc({a}, {})", self.pick(&["0", "1", "2", "-1"])),
            18 | 19 => {
                let name = self.pick(&["greatest", "least"]);
                let (a, b) = self.compared(|s| (s.number(kind, depth - 1), s.number(kind, depth - 1)));
                format!("{name}({a}, {b})")
            }
            20 if kind == Kind::Integer => format!("gcd(TRY_CAST({a} AS INT), {})", self.pick(&["k", "w", "12", "id"])),
            20 if kind == Kind::Float => format!("nanvl({a}, {b})"),
            0..3 => format!("({a} + {b})"),
            3 | 4 => format!("({a} - {b})"),
            5 => format!("({a} * {b})"),
            6 => format!("({a} / NULLIF({b}, 0))"),
            7 => format!("({a} % NULLIF({b}, 0))"),
            8 => format!("COALESCE({a}, {b})"),
            9 => {
                let (a, b) = self.compared(|s| (s.number(kind, depth - 1), s.number(kind, depth - 1)));
                format!("NULLIF({a}, {b})")
            }
            10 => format!("CASE WHEN {} THEN {a} ELSE {b} END", self.truth(depth - 1)),
            11 => format!("CASE WHEN {} THEN {a} END", self.truth(depth - 1)),
            12 => format!("abs({a})"),
            13 if kind == Kind::Integer => {
                format!("date_part('{}', {})", self.pick(&PARTS), self.pick(&TIMES))
            }
            14 if kind != Kind::Integer => format!("(-{a})"),
            _ => {
                let of = self.number(other, depth - 1);
                let to = match kind {
                    Kind::Integer => self.pick(&INTEGER_TYPES),
                    Kind::Decimal => self.pick(&DECIMAL_TYPES),
                    Kind::Float if self.finite => "DOUBLE",
                    Kind::Float => self.pick(&["DOUBLE", "REAL"]),
                };
                format!("TRY_CAST({of} AS {to})")
            }
        }
    }

    /// A float that may differ from the CPU's in the last bit, so no other expression uses it.
    fn near(&mut self) -> String {
        let of = self.compared(|s| s.number(Kind::Float, 1));
        match self.below(4) {
            0 => format!("power(abs({of}) + 1.0, {})", self.pick(&["k / 7.0", "0.5", "-2", "w"])),
            1 => format!("atan2({of}, x)"),
            2 => format!("log(2, {of})"),
            _ => {
                let names =
                    ["sin", "cos", "tan", "asin", "atan", "sinh", "tanh", "exp", "ln", "log10", "cbrt", "degrees"];
                format!("{}({of})", self.pick(&names))
            }
        }
    }

    fn truth(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.pick(&["b", "c", "(k > 3)", "(s LIKE 'b%')", "(day < DATE '1990-01-01')"]).to_string();
        }
        let kind = [Kind::Integer, Kind::Decimal, Kind::Float][self.below(3)];
        match self.below(10) {
            0..4 => {
                let (a, b) = match self.below(4) {
                    // Columns as they are, with every NaN and infinity.
                    0 => (self.leaf(kind), self.leaf(kind)),
                    _ => self.compared(|s| (s.number(kind, depth - 1), s.number(kind, depth - 1))),
                };
                let op = self.pick(&["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]);
                format!("({a} {op} {b})")
            }
            4 => format!("({} AND {})", self.truth(depth - 1), self.truth(depth - 1)),
            5 => format!("({} OR {})", self.truth(depth - 1), self.truth(depth - 1)),
            6 => format!("(NOT {})", self.truth(depth - 1)),
            7 => {
                let test = self.pick(&["IS NULL", "IS NOT NULL"]);
                format!("({} {test})", self.number(kind, depth - 1))
            }
            8 => {
                let test = self.pick(&["IS TRUE", "IS NOT TRUE", "IS FALSE", "IS NOT FALSE", "IS UNKNOWN"]);
                format!("({} {test})", self.truth(depth - 1))
            }
            _ => {
                let of = self.compared(|s| s.number(kind, depth - 1));
                format!("({of} BETWEEN {} AND {})", self.leaf(kind), self.leaf(kind))
            }
        }
    }

    fn query(&mut self) -> Query {
        let kinds = [Kind::Integer, Kind::Decimal, Kind::Float];
        let first = kinds[self.below(3)];
        let first = self.number(first, 3);
        let second = kinds[self.below(3)];
        let second = self.number(second, 2);
        let third = match self.below(3) {
            0 => format!("date_trunc('{}', {})", self.pick(&GRAINS), self.pick(&TIMES[1..])),
            _ => self.truth(2),
        };
        let near = self.near();
        Query {
            columns: format!("id, {first}, {second}, {third}, {near}"),
            filter: format!("{} OR id < 40", self.truth(2)),
        }
    }
}

async fn sessions(folder: &tempfile::TempDir) -> (Millpond, Millpond) {
    let cpu = session_with(DeviceChoice::Cpu, 2, Fallback::Allow);
    let sim = session_with(DeviceChoice::Sim, 2, Fallback::Allow);
    let path = folder.path().join("t.parquet");
    write_parquet(&edges(), &path, 1_500);
    for session in [&cpu, &sim] {
        let path = path.to_str().expect("a UTF-8 path");
        session.context().register_parquet("t", path, Default::default()).await.expect("the file is read");
    }
    (cpu, sim)
}

/// Whether the CPU refuses even when only the rows that pass the filter reach the columns.
///
/// DataFusion may move a projection below a filter, and then fails for rows that WHERE drops. The device computes for
/// the rows that pass.
async fn fails_for_rows_that_pass(cpu: &Millpond, query: &Query) -> bool {
    let context = cpu.context();
    let rows = context.sql(&format!("SELECT * FROM t WHERE {}", query.filter)).await;
    let Ok(rows) = rows.expect("the filter is planned").collect().await else { return true };
    let Some(first) = rows.first() else { return false };
    let table = MemTable::try_new(first.schema(), vec![rows.clone()]).expect("batches are a table");
    context.register_table("passed", Arc::new(table)).expect("the name is free");
    let result = cpu.execute(&format!("SELECT {} FROM passed", query.columns)).await;
    context.deregister_table("passed").expect("the table is there");
    result.is_err()
}

/// Runs the queries of `seeds`; gives the failures, and how many queries the device answered alone.
async fn compare(seeds: std::ops::Range<u64>) -> (Vec<String>, usize) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (cpu, sim) = sessions(&folder).await;
    let (mut failures, mut alone) = (Vec::new(), 0);
    for seed in seeds {
        let query = Source::new(seed).query();
        let sql = format!("SELECT {} FROM t WHERE {}", query.columns, query.filter);
        let (expected, actual) = (cpu.execute(&sql).await, sim.execute(&sql).await);
        match (expected, actual) {
            (Ok(expected), Ok(actual)) => {
                let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
                if let Some(difference) = answer(&expected).difference(&answer(&actual), false) {
                    failures.push(format!("seed {seed}: {sql}\n    {difference}"));
                } else if !actual.report.findings.is_empty() {
                    failures.push(format!("seed {seed}: {sql}\n    {}", actual.report.findings.join(" | ")));
                }
                let report = actual.report;
                alone += usize::from(report.launches > 0 && report.notes.is_empty() && report.reasons.is_empty());
            }
            (Err(_), Err(_)) => {}
            (Err(_), Ok(_)) if !fails_for_rows_that_pass(&cpu, &query).await => {}
            (Err(expected), Ok(_)) => failures
                .push(format!("seed {seed}: {sql}\n    answers, where the CPU says {}", expected.strip_backtrace())),
            (Ok(_), Err(actual)) => {
                failures.push(format!("seed {seed}: {sql}\n    fails: {}", actual.strip_backtrace()))
            }
        }
    }
    (failures, alone)
}

#[tokio::test]
async fn the_device_and_the_cpu_agree_on_random_expressions() {
    let seeds = 60;
    let (failures, alone) = compare(0..seeds).await;
    assert!(failures.is_empty(), "{} of {seeds} queries failed:\n{}", failures.len(), failures.join("\n"));
    assert!(alone * 3 > seeds as usize, "only {alone} of {seeds} queries ran on the device alone");
}
