//! Tests a device on the user's machine, from its driver up to SQL.
//!
//!   memory's claims ─► kernel checks ─► queries against DataFusion's results ─► one outcome each
//!
//! Simulated device  findings of its checks also count as failures.
//! Lost device       every check after the one that lost it fails with that reason.
//! Memory            no check leaves memory in use.
//! Thorough          the queries run again, over extents of other sizes.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray,
};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::execution::context::SessionContext;
use datafusion::prelude::SessionConfig;
use millpond_memory::checks::CheckError;
use millpond_memory::{Device, conformance};

use crate::device::Engine;
use crate::error::EngineError;
use crate::options::{DeviceChoice, Fallback};
use crate::session::Millpond;

/// Scope of a self-test.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SelftestOptions {
    /// Larger sets of values, queries and extents; minutes instead of seconds.
    pub thorough: bool,
    /// Seed for the samples of a thorough test.
    pub seed: u64,
    /// Only checks whose names start with this prefix; all if empty.
    pub only: String,
}

impl SelftestOptions {
    /// True for a check that the prefix selects.
    pub fn wants(&self, name: &str) -> bool {
        name.starts_with(&self.only)
    }
}

/// Outcome of one check.
#[derive(Debug, Clone)]
pub struct CheckOutcome {
    /// `family/claim`.
    pub name: &'static str,
    /// The claim as a sentence.
    pub claim: &'static str,
    /// Why the claim does not hold.
    pub result: Result<(), String>,
    /// Why this device cannot run the check; it was skipped.
    pub skipped: Option<&'static str>,
}

/// A query that must return DataFusion's result, entirely on the device.
struct SqlCheck {
    name: &'static str,
    claim: &'static str,
    sql: &'static str,
}

const SQL_CHECKS: [SqlCheck; 17] = [
    SqlCheck {
        name: "sql/total",
        claim: "a filter, decimal arithmetic and one sum",
        sql: "SELECT sum(price * (1 - discount)), count(*), min(day), max(number) FROM t WHERE day < DATE '1995-01-01'",
    },
    SqlCheck {
        name: "sql/few_groups",
        claim: "groups by two strings, with averages, in order",
        sql: "SELECT word, flag, count(*), sum(price), avg(price), max(weight) FROM t GROUP BY word, flag \
              ORDER BY word NULLS FIRST, flag NULLS LAST",
    },
    SqlCheck {
        name: "sql/many_groups",
        claim: "a group for each key, HAVING applied on the device",
        sql: "SELECT key, count(number), sum(number) FROM t GROUP BY key HAVING sum(number) > 0",
    },
    SqlCheck {
        name: "sql/rows",
        claim: "rows that pass, with CASE, casts and dates",
        sql: "SELECT key, CASE WHEN number % 2 = 0 THEN number ELSE -number END, CAST(price AS BIGINT), \
              date_part('year', day), day + INTERVAL '1 month' FROM t WHERE number > 100 OR flag",
    },
    SqlCheck {
        name: "sql/strings",
        claim: "functions of strings, through their dictionary",
        sql: "SELECT key, upper(word), length(word) FROM t WHERE word LIKE '%e%' OR substr(word, 1, 1) = 'b'",
    },
    SqlCheck {
        name: "sql/nulls",
        claim: "three-valued logic",
        sql: "SELECT count(*) FILTER (WHERE flag AND number > 0), count(*) FILTER (WHERE NOT (flag OR number > 0)), \
              count(*) FILTER (WHERE (flag OR number > 0) IS NULL) FROM t",
    },
    SqlCheck {
        name: "sql/top",
        claim: "the first rows of an order",
        sql: "SELECT key, weight FROM t WHERE key < 1500 ORDER BY weight DESC NULLS LAST, key LIMIT 20",
    },
    SqlCheck {
        name: "sql/sort",
        claim: "all rows in order, strings and NULLs among the keys",
        sql: "SELECT word, number, key, flag FROM t ORDER BY word DESC NULLS FIRST, number, key, flag",
    },
    SqlCheck {
        name: "sql/join",
        claim: "rows of two inputs with equal keys, some of them several times",
        sql: "SELECT a.key, count(*), sum(b.number), min(b.word) FROM t a JOIN t b ON a.key = b.key AND a.word = b.word \
              GROUP BY a.key",
    },
    SqlCheck {
        name: "sql/outer_join",
        claim: "rows without a match stay, on both sides, where a condition holds for no pair",
        sql: "SELECT a.number, a.key, b.key, b.word FROM (SELECT * FROM t WHERE number > 300) a \
              FULL JOIN (SELECT * FROM t WHERE number > 500 AND flag) b ON a.number = b.number AND a.key < b.key",
    },
    SqlCheck {
        name: "sql/exists",
        claim: "rows by whether another row is there",
        sql: "SELECT key, number FROM t a WHERE number > 350 AND EXISTS \
              (SELECT 1 FROM t b WHERE b.number = a.number AND b.key <> a.key) AND number NOT IN \
              (SELECT number FROM t WHERE number < 420 AND number IS NOT NULL)",
    },
    SqlCheck {
        name: "sql/grouping_sets",
        claim: "several groupings of the same rows, and distinct values in each",
        sql: "SELECT word, flag, grouping(word), count(*), count(DISTINCT number) FROM t GROUP BY ROLLUP (word, flag)",
    },
    SqlCheck {
        name: "sql/windows",
        claim: "places, neighbours, and sums and extremes of frames",
        sql: "SELECT word, key, rank() OVER w, lag(key) OVER w, sum(number) OVER w, max(price) OVER (PARTITION BY word \
              ORDER BY key RANGE BETWEEN 20 PRECEDING AND 5 FOLLOWING) FROM t WINDOW w AS (PARTITION BY word ORDER BY key) \
              ORDER BY 1, 2, 3, 4, 5, 6",
    },
    SqlCheck {
        name: "sql/unnest",
        claim: "a row for each item of a list",
        sql: "SELECT key, unnest([number, -number, NULL]) FROM t WHERE key < 300",
    },
    SqlCheck {
        name: "sql/lists",
        claim: "items of lists, by number and by search",
        sql: "SELECT key, l[key % 4], array_has(l, p), array_position(l, p) FROM (SELECT key, string_to_array(word, 'a') AS l, \
              substr(word, 1, 1 + key % 3) AS p FROM t WHERE key < 300)",
    },
    SqlCheck {
        name: "sql/patterns",
        claim: "strings that match a regular expression",
        sql: "SELECT word, count(*) FROM t WHERE word ~ '^[a-f].*[aeiou]' GROUP BY word",
    },
    SqlCheck {
        name: "sql/union",
        claim: "rows of several inputs, each once",
        sql: "SELECT word AS w, flag FROM t WHERE key < 50 UNION SELECT upper(word), number > 0 FROM t WHERE number < 9",
    },
];

/// Runs every check on the session's device, in order; calls `each` with each outcome immediately.
///
/// # Errors
/// [`EngineError::DeviceMissing`] if the session has no device.
pub async fn selftest(
    session: &Millpond,
    options: SelftestOptions,
    mut each: impl FnMut(&CheckOutcome),
) -> Result<Vec<CheckOutcome>, EngineError> {
    let Some(engine) = session.engine() else {
        return Err(EngineError::DeviceMissing {
            device: "to test".to_string(),
            reason: session.device_note().unwrap_or("queries run on the CPU").to_string(),
        });
    };
    let mut outcomes = Vec::new();
    let mut tell = |name, claim, skipped, result: Result<(), String>| {
        let outcome = CheckOutcome { name, claim, skipped, result: result.and_then(|()| unfound(engine)) };
        each(&outcome);
        outcomes.push(outcome);
    };
    // Claims about undefined behavior are only for tests, not for devices.
    for claim in conformance::claims().iter().filter(|claim| claim.finds.is_none() && options.wants(claim.name)) {
        let skipped = claim.unfit(engine.device());
        let result = match skipped {
            Some(_) => Ok(()),
            None => blocking(engine, move |device| claim.try_on(device)).await,
        };
        tell(claim.name, claim.claim, skipped, result);
    }
    let more = if options.thorough { millpond_kernels::checks::thorough_checks() } else { &[] };
    for check in millpond_kernels::checks::checks().iter().chain(more).filter(|check| options.wants(check.name)) {
        tell(check.name, check.claim, None, blocking(engine, check.run).await);
    }
    let sizes = extent_rows(&options);
    let opened: Result<Vec<_>> = sizes.iter().map(|rows| sessions(engine, *rows)).collect();
    let opened = opened.map_err(|error| EngineError::internal(error.strip_backtrace()))?;
    for check in SQL_CHECKS.iter().filter(|check| options.wants(check.name)) {
        let mut result = Ok(());
        for (rows, sessions) in sizes.iter().zip(&opened) {
            result = same_answer(check.sql, sessions).await;
            if let (Err(why), true) = (&mut result, options.thorough) {
                *why += &format!(" (in extents of {rows} rows)");
                break;
            }
        }
        tell(check.name, check.claim, None, result);
    }
    Ok(outcomes)
}

/// Extent sizes in rows that the queries run with.
fn extent_rows(options: &SelftestOptions) -> Vec<usize> {
    match options.thorough {
        true => vec![2000, 30 + (options.seed % 71) as usize, 500 + (options.seed % 997) as usize, 6000],
        false => vec![2000],
    }
}

/// Findings of the simulated device are failures.
fn unfound(engine: &Engine) -> Result<(), String> {
    match engine.take_findings() {
        findings if findings.is_empty() => Ok(()),
        findings => Err(format!("findings: {}", findings.join(" | "))),
    }
}

/// Checks wait for the device, so they run on a thread that may block.
async fn blocking(
    engine: &Engine,
    check: impl FnOnce(&Device) -> Result<(), CheckError> + Send + 'static,
) -> Result<(), String> {
    let device = engine.device().clone();
    match tokio::task::spawn_blocking(move || check(&device)).await {
        Ok(ended) => ended.map_err(|error| error.to_string()),
        Err(error) => Err(format!("the check ended early: {error}")),
    }
}

/// A CPU session and a device session, both with the table `t`.
fn sessions(engine: &Arc<Engine>, extent_rows: usize) -> Result<[Millpond; 2]> {
    let config = || SessionConfig::new().with_target_partitions(3);
    let cpu = Millpond::builder().with_device(DeviceChoice::Cpu).with_config(config()).build()?;
    let device = Millpond::builder()
        .with_engine(Arc::clone(engine))
        .with_fallback(Fallback::Error)
        .with_option("batch_rows", &extent_rows.to_string())?
        .with_config(config())
        .build()?;
    for session in [&cpu, &device] {
        register(session.context())?;
    }
    Ok([cpu, device])
}

async fn same_answer(sql: &str, [cpu, device]: &[Millpond; 2]) -> Result<(), String> {
    let expected =
        cpu.execute(sql).await.map_err(|error| format!("the CPU refuses it: {}", error.strip_backtrace()))?;
    let actual = device.execute(sql).await.map_err(|error| error.strip_backtrace())?;
    let rows = |batches: &[RecordBatch]| rows(batches, sql.contains("ORDER BY")).map_err(|e| e.strip_backtrace());
    let (expected, answer) = (rows(&expected.batches)?, rows(&actual.batches)?);
    if expected != answer {
        let differs = expected.iter().zip(&answer).find(|(a, b)| a != b);
        return Err(match differs {
            Some((expected, actual)) => format!("a row is [{actual}] instead of [{expected}]"),
            None => format!("{} rows instead of {}", answer.len(), expected.len()),
        });
    }
    if actual.report.launches == 0 {
        return Err("no kernel was launched".to_string());
    }
    match actual.report.pool_used_bytes {
        0 => Ok(()),
        bytes => Err(format!("{bytes} bytes of device memory are still in use")),
    }
}

/// Rows as text, sorted if the query has no order. All values of the checks are exact.
fn rows(batches: &[RecordBatch], ordered: bool) -> Result<Vec<String>> {
    let options = FormatOptions::default().with_null("NULL");
    let mut rows = Vec::new();
    for batch in batches {
        let columns: Vec<ArrayFormatter<'_>> =
            batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options)).collect::<Result<_, _>>()?;
        for row in 0..batch.num_rows() {
            rows.push(columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join(", "));
        }
    }
    if !ordered {
        rows.sort();
    }
    Ok(rows)
}

/// Registers `t`: 6,000 rows with every kind of column, in three partitions, with NULLs at different rows.
fn register(context: &SessionContext) -> Result<()> {
    let part = |from: i64| -> Result<RecordBatch> {
        let rows = from..from + 2000;
        let spread = |row: i64, by: i64| row * 7_919 % by;
        let valid = |row: i64, every: i64| row % every != 0;
        let decimal = |every: i64, by: i64| -> Result<ArrayRef> {
            let values = rows.clone().map(|row| valid(row, every).then_some(i128::from(spread(row, by))));
            Ok(Arc::new(values.collect::<Decimal128Array>().with_precision_and_scale(12, 2)?))
        };
        let number = rows.clone().map(|row| valid(row, 7).then_some(spread(row, 1_009) as i32 - 400));
        let day = rows.clone().map(|row| valid(row, 31).then_some(8_000 + spread(row, 2_500) as i32));
        let word =
            rows.clone().map(|row| valid(row, 13).then_some(["bolt", "gear wheel", "", "é", "nut"][row as usize % 5]));
        let flag = rows.clone().map(|row| valid(row, 3).then_some(row % 2 == 0));
        let weight = rows.clone().map(|row| valid(row, 11).then_some((spread(row, 4_001) - 2_000) as f64 / 4.0));
        Ok(RecordBatch::try_from_iter_with_nullable([
            ("key", Arc::new(rows.clone().map(|row| spread(row, 3_001)).collect::<Int64Array>()) as ArrayRef, false),
            ("number", Arc::new(number.collect::<Int32Array>()), true),
            ("price", decimal(17, 1_000_000)?, true),
            ("discount", decimal(19, 11)?, true),
            ("day", Arc::new(day.collect::<Date32Array>()), true),
            ("word", Arc::new(word.collect::<StringArray>()), true),
            ("flag", Arc::new(flag.collect::<BooleanArray>()), true),
            ("weight", Arc::new(weight.collect::<Float64Array>()), true),
        ])?)
    };
    let parts = [0, 2000, 4000].into_iter().map(|from| part(from).map(|batch| vec![batch]));
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let schema = parts[0][0].schema();
    context.register_table("t", Arc::new(MemTable::try_new(schema, parts)?))?;
    Ok(())
}
