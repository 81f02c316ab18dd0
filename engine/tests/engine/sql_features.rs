//! SQL over every supported type and feature: the simulated device gives DataFusion's answers, alone.
//!
//!   t, many (Parquet, several row groups) ──► device = sim, fallback = error ──┐
//!                                        └──► device = cpu ────────────────────┴─► equal answers
//!
//! Each query   launches at least one kernel · has no finding · leaves no byte in the pool.
//! Each test    is one topic; it names every query that failed, not the first alone.

use std::sync::Arc;

use millpond::datafusion::catalog::TableProvider;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::{Answer, orders_its_rows};
use crate::edges::{edges, many, write_parquet};
use crate::support::session_with;

pub struct Rig {
    pub cpu: Millpond,
    pub sim: Millpond,
    failures: Vec<String>,
    pub folder: tempfile::TempDir,
}

impl Rig {
    async fn new(fallback: Fallback) -> Self {
        Self::with_partitions(fallback, 3).await
    }

    pub async fn with_partitions(fallback: Fallback, partitions: usize) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cpu = session_with(DeviceChoice::Cpu, partitions, Fallback::Allow);
        let sim = session_with(DeviceChoice::Sim, partitions, fallback);
        for (name, batch, row_group_rows) in [("t", edges(), 800), ("many", many(), 50_000)] {
            let path = folder.path().join(format!("{name}.parquet"));
            write_parquet(&batch, &path, row_group_rows);
            let path = path.to_str().expect("a UTF-8 path");
            for session in [&cpu, &sim] {
                session.context().register_parquet(name, path, Default::default()).await.expect("the file is read");
            }
        }
        for setting in ["SET millpond.batch_rows = 1000", "SET millpond.partitions = 2"] {
            sim.context().sql(setting).await.expect("the option is taken");
        }
        Self { cpu, sim, failures: vec![], folder }
    }

    /// Changes an option of the device's session.
    pub async fn set(&self, setting: &str) {
        self.sim.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
    }

    /// The same table for both sessions.
    pub fn register(&self, name: &str, table: impl Fn() -> Arc<dyn TableProvider>) {
        for session in [&self.cpu, &self.sim] {
            session.context().register_table(name, table()).expect("the name is free");
        }
    }

    /// Number of rows that the device's session returns, and its report.
    pub async fn counted(&self, sql: &str) -> (usize, millpond::QueryReport) {
        let result = self.sim.execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        (result.batches.iter().map(|batch| batch.num_rows()).sum(), result.report)
    }

    /// The query returns no rows, on the device's session and on the CPU's.
    pub async fn nothing(&mut self, sql: &str) {
        for session in [&self.cpu, &self.sim] {
            match session.execute(sql).await {
                Ok(result) if result.batches.iter().all(|batch| batch.num_rows() == 0) => {}
                Ok(_) => self.failures.push(format!("{sql}\n    there are rows")),
                Err(error) => self.failures.push(format!("{sql}\n    {}", error.strip_backtrace())),
            }
        }
    }

    /// If whole numbers overflow, both sides fail, and then answer modulo 2^64.
    pub async fn run(&self, sql: &str) -> Result<millpond::QueryReport, String> {
        match self.cpu.execute(sql).await {
            Err(error) if error.strip_backtrace().contains("verflow") => {}
            _ => return self.compared(sql).await,
        }
        if let Ok(result) = self.sim.execute(sql).await {
            return Err(format!("the CPU finds an overflow, the device none; {:?}", result.report.notes));
        }
        self.set_both("millpond.integer_overflow = 'wrap'").await;
        let compared = self.compared(sql).await;
        self.set_both("millpond.integer_overflow = 'error'").await;
        compared
    }

    /// Changes an option of both sessions.
    pub async fn set_both(&self, setting: &str) {
        for session in [&self.cpu, &self.sim] {
            session.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
        }
    }

    async fn compared(&self, sql: &str) -> Result<millpond::QueryReport, String> {
        let expected =
            self.cpu.execute(sql).await.map_err(|e| format!("the CPU refuses it: {}", e.strip_backtrace()))?;
        let actual = self.sim.execute(sql).await.map_err(|e| e.strip_backtrace())?;
        let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
        let ordered = orders_its_rows(sql);
        let report = actual.report.clone();
        match answer(&expected).difference(&answer(&actual), ordered) {
            Some(difference) => Err(difference),
            None if !report.findings.is_empty() => Err(format!("findings: {}", report.findings.join(" | "))),
            None if report.pool_used_bytes > 0 => Err(format!("{} bytes left in the pool", report.pool_used_bytes)),
            None if report.launches == 0 => Err("no kernel was launched".to_string()),
            None => Ok(report),
        }
    }

    /// The query runs on the device alone and gives the CPU's answer.
    pub async fn same(&mut self, sql: &str) {
        match self.run(sql).await {
            Ok(report) if !report.notes.is_empty() => {
                self.failures.push(format!("{sql}\n    {}", report.notes.join("; ")))
            }
            Ok(_) => {}
            Err(what) => self.failures.push(format!("{sql}\n    {what}")),
        }
    }

    /// Part of the query stays on the CPU for a reason that says `reason`; the answer is the CPU's.
    pub async fn falls_back(&mut self, sql: &str, reason: &str) {
        match self.run(sql).await {
            Ok(report) if report.reasons.iter().any(|r| r.contains(reason)) => {}
            Ok(report) => {
                self.failures.push(format!("{sql}\n    reasons are {:?}, without '{reason}'", report.reasons))
            }
            Err(what) => self.failures.push(format!("{sql}\n    {what}")),
        }
    }

    pub fn finish(self) {
        assert!(self.failures.is_empty(), "{} queries failed:\n{}", self.failures.len(), self.failures.join("\n"));
    }
}

/// One test: its queries, all run.
macro_rules! same_answers {
    ($($name:ident: $($sql:literal),* $(,)?;)*) => { $(
        #[tokio::test]
        async fn $name() {
            let mut rig = Rig::new(Fallback::Error).await;
            $( rig.same($sql).await; )*
            rig.finish();
        }
    )* };
}

// MIN and MAX of NaNs by group are left out: DataFusion's answer depends on the order of the rows there.
same_answers! {
    integers_wrap_as_datafusions_do:
        "SELECT id, i8 + CAST(1 AS TINYINT), i16 * i16, i32 - CAST(2 AS INT), i64 + 1, -i8, -i64 FROM t WHERE id > 3",
        "SELECT id, u8 + u8, u16 * u16, u32 + u32, u64 + u64 FROM t WHERE id > 3",
        "SELECT id, i32 / NULLIF(k, 0), i64 % NULLIF(k, 0), u32 / 7, u64 % CAST(10 AS BIGINT UNSIGNED) FROM t WHERE id > 3",
        "SELECT id, i32 & 255, i32 | 16, i64 << 3, i64 >> 2 FROM t WHERE id > 3";

    comparisons_across_widths:
        "SELECT id FROM t WHERE i8 < i16 AND i32 <> i64 OR u8 >= i8",
        "SELECT id FROM t WHERE i32 < f64",
        "SELECT id, i8 = u8, u32 > i32, i64 <= 5, i16 BETWEEN -3 AND 40 FROM t WHERE id > 3",
        "SELECT id FROM t WHERE (i32 IS DISTINCT FROM k) AND (w IS NOT DISTINCT FROM k)",
        "SELECT id FROM t WHERE i64 IN (1, 2, 3, 9223372036854775807) AND u8 NOT IN (0, 255)";

    decimals:
        "SELECT id, d9 + d18, d9 - d18, d9 * d9, d18 * 2, -d18 FROM t WHERE id > 3",
        "SELECT id, d9 / NULLIF(d9, 0), d18 / 3.0, d9 % 7 FROM t WHERE id > 3",
        "SELECT id FROM t WHERE d38 > d30 OR d18 >= d9 OR d38 IN (0, 0.0000000001)",
        "SELECT id, CAST(d9 AS DECIMAL(12, 4)) AS wider, CAST(d9 AS DECIMAL(9, 0)) AS rounded, CAST(d18 AS DECIMAL(38, 10)) FROM t WHERE id > 3",
        "SELECT id, CAST(d9 AS INT), CAST(d18 AS DOUBLE), CAST(i32 AS DECIMAL(15, 3)), CAST(k AS DECIMAL(38, 20)) FROM t WHERE id > 3",
        "SELECT sum(d9 * (1 - d9)), sum(d18), sum(d30), avg(d9), avg(d18), avg(d30) FROM t",
        "SELECT k, sum(d9), avg(d18), min(d38), max(d38), sum(d30) FROM t GROUP BY k";

    floats_with_nan_and_infinities:
        "SELECT id, f64 > 1, f64 = f64, f64 < 0, f32 >= 0, f32 <> f64 FROM t WHERE id > 3",
        "SELECT id, f64 + x, f64 * 2, f32 - f32, f64 / x, -f32, f64 % 3 FROM t WHERE id > 3",
        "SELECT min(f64), max(f64), min(f32), max(f32), count(f32), count(*) FROM t WHERE id > 3",
        "SELECT min(x), max(x), sum(x), avg(x), sum(CAST(k AS REAL)), avg(CAST(w AS REAL)) FROM t",
        "SELECT w, sum(f64), avg(f32), min(f64) FILTER (WHERE f64 < 1e300), max(x) FROM t GROUP BY w",
        "SELECT id, abs(x), sqrt(abs(x)), floor(x), ceil(x), round(x), trunc(x) FROM t WHERE id > 3",
        "SELECT id FROM t WHERE f64 BETWEEN -1.5 AND 1e308 AND f64 NOT IN (0.0, 1.0)",
        "SELECT id, CAST(x AS INT) AS i, CAST(k AS DOUBLE), CAST(x AS REAL) AS r, TRY_CAST(f64 AS INT), TRY_CAST(f32 AS BIGINT) FROM t WHERE id > 3";

    dates:
        "SELECT id, date_part('year', day), date_part('quarter', day), date_part('month', day), date_part('week', day), \
         date_part('day', day), date_part('doy', day), date_part('dow', day), date_part('epoch', day) FROM t WHERE id > 3",
        "SELECT id, extract(isoyear FROM day), extract(isodow FROM day) FROM t WHERE id > 3",
        "SELECT count(*) FROM t WHERE day BETWEEN DATE '1960-01-01' AND DATE '2000-02-29' AND day <> DATE '1970-01-01'",
        "SELECT id, day + INTERVAL '1 month', day - INTERVAL '1 year', day + INTERVAL '40 days', day - DATE '2000-02-29' \
         FROM t WHERE day < DATE '9000-01-01'",
        "SELECT id, date_trunc('month', day), CAST(day AS TIMESTAMP) FROM t WHERE day BETWEEN DATE '1700-01-01' AND DATE '2200-01-01'",
        "SELECT date_part('year', day) AS y, count(*), min(day), max(day) FROM t GROUP BY date_part('year', day)";

    timestamps:
        "SELECT id, extract(year FROM ts_s), extract(month FROM ts_ms), extract(day FROM ts_us), extract(hour FROM ts_ns), \
         extract(minute FROM ts_us), extract(second FROM ts_ms), extract(millisecond FROM ts_us), \
         extract(microsecond FROM ts_us), extract(nanosecond FROM ts_ms), extract(epoch FROM ts_us) FROM t WHERE id > 3",
        "SELECT id, extract(week FROM ts_s), extract(dow FROM ts_us), extract(doy FROM ts_ns), extract(quarter FROM ts_ms), \
         extract(isoyear FROM ts_s), extract(isodow FROM ts_us) FROM t WHERE id > 3",
        "SELECT id, date_trunc('second', ts_us), date_trunc('minute', ts_ms), date_trunc('hour', ts_us), \
         date_trunc('day', ts_us), date_trunc('week', ts_us), date_trunc('month', ts_us), date_trunc('quarter', ts_us), \
         date_trunc('year', ts_us) FROM t WHERE id > 3",
        "SELECT id FROM t WHERE ts_s < TIMESTAMP '2000-02-29T00:00:00' AND ts_us > TIMESTAMP '1969-12-31T23:59:59'",
        "SELECT id, CAST(ts_us AS DATE), ts_us + INTERVAL '90 minutes', ts_ms - INTERVAL '1 month' FROM t WHERE id > 3",
        "SELECT min(ts_s), max(ts_ms), min(ts_us), max(ts_ns), min(ts_tz), max(ts_tz), count(ts_tz) FROM t WHERE id > 3",
        "SELECT ts_tz, count(*) FROM t WHERE ts_tz >= TIMESTAMP '1999-01-01T00:00:00Z' GROUP BY ts_tz";

    booleans_and_three_valued_logic:
        "SELECT id, b AND c, b OR c, NOT b, b = c, b IS TRUE, c IS NOT FALSE, b IS UNKNOWN FROM t WHERE id > 3",
        "SELECT id FROM t WHERE (b AND k > 3) OR NOT (c OR k < -3)",
        "SELECT id FROM t WHERE (b OR k > 0) IS NULL",
        "SELECT b, c, count(*) FROM t GROUP BY b, c",
        "SELECT id, k IN (1, NULL, 3), k NOT IN (2, NULL) FROM t WHERE id > 3";

    case_coalesce_nullif:
        "SELECT id, CASE WHEN k > 5 THEN 1 WHEN k < -5 THEN -1 END, CASE w WHEN 0 THEN 10 WHEN 1 THEN 20 ELSE w END FROM t WHERE id > 3",
        "SELECT id, CASE WHEN k <> 0 THEN 100 / k ELSE 0 END FROM t WHERE id > 3",
        "SELECT id, COALESCE(k, w, 7), COALESCE(d9, 0), COALESCE(b, c, true), NULLIF(k, w), NULLIF(x, 0.0) FROM t WHERE id > 3",
        "SELECT sum(CASE WHEN b THEN d9 ELSE 0 END), sum(CASE WHEN s = 'bolt' THEN 1 ELSE 0 END) FROM t",
        "SELECT id, CASE WHEN b THEN 'yes' WHEN c THEN 'no' ELSE NULL END FROM t WHERE id > 3";

    strings:
        "SELECT id, s FROM t WHERE s = 'bolt' OR s IN ('nut', 'é', '') OR s < 'b' AND l >= 'b'",
        "SELECT id FROM t WHERE s LIKE 'b%' OR s LIKE '%\\%' OR s NOT LIKE '%e%' OR s ILIKE 'BOLT'",
        "SELECT id, upper(s), lower(s), substr(s, 2, 3), length(s), octet_length(s), reverse(s) FROM t WHERE id > 3",
        "SELECT id, s || '!', trim(s), replace(s, 'o', '0'), starts_with(s, 'b'), strpos(s, 'l'), left(s, 2) FROM t WHERE id > 3",
        "SELECT id, COALESCE(s, 'none'), NULLIF(s, 'nut'), s IS NULL, s BETWEEN 'a' AND 'c', TRY_CAST(s AS INT) FROM t WHERE id > 3",
        "SELECT s, count(*), sum(k) FROM t GROUP BY s",
        "SELECT substr(s, 1, 1) AS first, l, count(*) FROM t WHERE l >= 'a' GROUP BY substr(s, 1, 1), l",
        "SELECT id, regexp_like(s, '^[a-b].*t$'), CASE WHEN s LIKE 'g%' THEN k END FROM t WHERE id > 3";

    casts:
        "SELECT id, CAST(i8 AS BIGINT), CAST(u32 AS BIGINT), CAST(b AS INT), CAST(k AS SMALLINT), CAST(w AS TINYINT) FROM t WHERE id > 3",
        "SELECT id, TRY_CAST(i64 AS INT), TRY_CAST(i32 AS TINYINT), TRY_CAST(i16 AS TINYINT UNSIGNED), \
         TRY_CAST(d18 AS DECIMAL(9, 2)), TRY_CAST(u64 AS BIGINT) FROM t WHERE id > 3",
        "SELECT id, CAST(x AS DECIMAL(20, 2)), CAST(i64 AS DOUBLE), CAST(k AS BOOLEAN), CAST(i32 AS REAL) FROM t WHERE id > 3";

    aggregates_over_every_type:
        "SELECT min(i8), max(i16), min(i32), max(i64), min(u8), max(u16), min(u32), max(u64) FROM t WHERE id > 3",
        "SELECT sum(i8), sum(i16), sum(i32), sum(u8), sum(u16), sum(u32), avg(i8), avg(i32), avg(u32) FROM t",
        "SELECT count(i8), count(d38), count(f32), count(s), count(b), count(nothing), count(*), count(1) FROM t WHERE id > 3",
        "SELECT min(s), max(s), min(l), max(l), min(b), max(c), max(upper(s)) FROM t",
        "SELECT w, min(s), max(l), min(b), max(b) FROM t GROUP BY w",
        "SELECT min(s) FILTER (WHERE k > 3), max(s) FROM t WHERE w = 1 HAVING min(s) < 'z'",
        "SELECT sum(nothing), min(nothing), max(nothing), avg(nothing) FROM t",
        "SELECT sum(k), min(d9), avg(x), count(*) FROM t WHERE i32 + 0 = 123456",
        "SELECT k, sum(d9) FROM t WHERE i32 + 0 = 123456 GROUP BY k",
        "SELECT sum(k) FILTER (WHERE b), count(*) FILTER (WHERE k > 3), avg(d9) FILTER (WHERE s LIKE 'b%'), \
         min(day) FILTER (WHERE c), max(x) FILTER (WHERE NOT c) FROM t",
        "SELECT count(DISTINCT k) FROM t",
        "SELECT sum(k + 1) + sum(k) * 2, avg(k) - min(k), count(*) * 10 FROM t WHERE k > 0";

    groups:
        "SELECT k, count(*), sum(i32), min(x), max(day) FROM t GROUP BY k",
        "SELECT k, w, count(*), sum(d9), avg(x) FROM t GROUP BY k, w",
        "SELECT b, w, s, count(*), sum(k) FILTER (WHERE c) FROM t GROUP BY b, w, s",
        "SELECT i8, u64, count(*) FROM t GROUP BY i8, u64",
        "SELECT i64, count(*), sum(k) FROM t GROUP BY i64",
        "SELECT d38, min(k) FROM t GROUP BY d38",
        "SELECT k % 5 AS r, sum(w) FROM t GROUP BY k % 5 HAVING sum(w) > -10 AND count(*) > 3",
        "SELECT DISTINCT w, b FROM t",
        "SELECT DISTINCT k FROM t WHERE k > 0",
        "SELECT nothing, count(*) FROM t GROUP BY nothing",
        "SELECT x, count(*), sum(k) FROM t GROUP BY x",
        "SELECT f64, count(*) FROM t GROUP BY f64",
        "SELECT w, f32, min(k) FROM t GROUP BY w, f32",
        "SELECT DISTINCT f64 FROM t",
        "SELECT day, count(*) FROM t WHERE k > 10 GROUP BY day HAVING count(*) > 1";

    order_with_every_null_order:
        "SELECT id, k FROM t WHERE id < 2000 ORDER BY k ASC NULLS FIRST, id",
        "SELECT id, k FROM t WHERE id < 2000 ORDER BY k DESC NULLS LAST, id DESC",
        "SELECT id, f64 FROM t WHERE id < 2000 ORDER BY f64 DESC NULLS FIRST, id",
        "SELECT id, f32 FROM t WHERE id < 1000 ORDER BY f32 NULLS LAST, id",
        "SELECT id, s, d38 FROM t WHERE id < 1500 ORDER BY s NULLS FIRST, d38 DESC NULLS LAST, id",
        "SELECT id, b, ts_us FROM t WHERE id < 1500 ORDER BY b DESC NULLS LAST, ts_us ASC NULLS FIRST, id",
        "SELECT id, u64, day FROM t WHERE id < 2048 ORDER BY u64, day DESC, i8, id",
        "SELECT k, count(*) AS n FROM t GROUP BY k ORDER BY n DESC, k NULLS FIRST",
        "SELECT s, sum(k) FROM t GROUP BY s ORDER BY upper(s), s LIMIT 5",
        "SELECT id, k FROM t WHERE id < 2000 AND k > 3 ORDER BY k, id LIMIT 10 OFFSET 7",
        "SELECT k + w AS kw, id FROM t WHERE id BETWEEN 10 AND 900 ORDER BY kw DESC, id LIMIT 3",
        "SELECT k FROM t WHERE id < 1000 GROUP BY k ORDER BY sum(x) DESC LIMIT 4";

    filters_and_projections_alone:
        "SELECT * FROM t WHERE k = 3",
        "SELECT id, k, k AS again, id + 1, 'text', 42, NULL FROM t WHERE w > 0",
        "SELECT id FROM t WHERE k + 0 > 100000",
        "SELECT id FROM t WHERE k IS NULL OR k IS NOT NULL",
        "SELECT s, l FROM t WHERE day > DATE '2000-01-01' AND s IS NOT NULL";
}

#[tokio::test]
async fn a_hundred_thousand_groups() {
    let mut rig = Rig::new(Fallback::Error).await;
    rig.sim.context().sql("SET millpond.batch_rows = 40000").await.unwrap();
    rig.same("SELECT key, count(*), sum(value), min(value) FROM many GROUP BY key").await;
    rig.same("SELECT count(*), sum(n) FROM (SELECT key, count(value) AS n FROM many GROUP BY key)").await;
    rig.same("SELECT key FROM many GROUP BY key HAVING count(*) > 1 AND max(value) > 115000").await;
    rig.finish();
}

#[tokio::test]
async fn limits_stop_and_leave_nothing() {
    let rig = Rig::new(Fallback::Error).await;
    for (sql, rows) in [
        ("SELECT id + 1 FROM t WHERE k > 0 LIMIT 7", 7),
        ("SELECT id + 1 FROM t LIMIT 5 OFFSET 2", 5),
        ("SELECT id FROM t WHERE k > 0 LIMIT 0", 0),
        ("SELECT DISTINCT k FROM t LIMIT 3", 3),
        ("SELECT id FROM t WHERE k = 1 LIMIT 100000", usize::MAX),
    ] {
        let result = rig.sim.execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let answer = Answer::new(&result.schema, &result.batches);
        if rows == usize::MAX {
            let all = rig.cpu.execute("SELECT id FROM t WHERE k = 1").await.unwrap();
            assert_eq!(Answer::new(&all.schema, &all.batches).difference(&answer, false), None);
        } else {
            assert_eq!(answer.num_rows(), rows, "{sql}");
        }
        assert_eq!(result.report.findings, Vec::<String>::new(), "{sql}");
        assert_eq!(rig.sim.pool_used_bytes(), 0, "{sql}");
    }
}

#[tokio::test]
async fn what_has_no_device_form_falls_back_with_its_reason() {
    let mut rig = Rig::new(Fallback::Allow).await;
    let sql = "SELECT w, approx_percentile_cont_with_weight(id, 2, 0.5) FROM t WHERE k = 5 AND id < 99 GROUP BY w";
    rig.falls_back(sql, "approx_percentile_cont_with_weight").await;
    rig.falls_back("SELECT id, md5(s || l) FROM t WHERE k > 2", "md5").await;
    rig.falls_back("SELECT id, to_hex(k) FROM t WHERE k > 2", "to_hex").await;
    rig.falls_back("SELECT id, approx_median(w) OVER (PARTITION BY k) FROM t WHERE w > 0", "approximates nothing")
        .await;
    rig.finish();
}

#[tokio::test]
async fn long_and_deep_expressions() {
    let mut rig = Rig::new(Fallback::Error).await;
    let any = (0..250).map(|i| format!("(id = {} AND k <> {})", i * 3, i % 7)).collect::<Vec<_>>().join(" OR ");
    rig.same(&format!("SELECT id FROM t WHERE {any}")).await;
    rig.same(&format!("SELECT id, NOT ({any}) FROM t")).await;
    let all = (0..250).map(|i| format!("(id <> {i} OR k > 3)")).collect::<Vec<_>>().join(" AND ");
    rig.same(&format!("SELECT id, {all} FROM t")).await;
    rig.same(&format!("SELECT id{} FROM t", " + k".repeat(100))).await;
    rig.finish();
    // Deeper ones stay on the CPU, with their reason.
    let rig = Rig::new(Fallback::Allow).await;
    let deep = format!("SELECT id{} AS deep, count(*) FROM t GROUP BY deep", " + k".repeat(300));
    let result = rig.sim.execute(&deep).await.unwrap_or_else(|e| panic!("{e}"));
    let expected = rig.cpu.execute(&deep).await.unwrap_or_else(|e| panic!("{e}"));
    let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
    assert_eq!(answer(&expected).difference(&answer(&result), false), None);
    assert!(result.report.reasons.iter().any(|why| why.contains("within 128 other")), "{:?}", result.report.reasons);
    rig.finish();
}
