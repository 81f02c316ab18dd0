//! Strings without a dictionary: the simulated device gives DataFusion's answers where no column may have a large one.
//!
//!   words, more (Parquet)  ──► device = sim, fallback = error, dictionaries of 8 values at most ──┐
//!                         └──► device = cpu ──────────────────────────────────────────────────────┴─► equal answers
//!
//! Each query   launches a kernel · has no finding · leaves no byte in the pool.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{
    ArrayRef, BinaryArray, Int64Array, LargeStringArray, StringArray, StringViewArray,
};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::{Answer, orders_its_rows};
use crate::edges::write_parquet;
use crate::support::session_with;
use crate::tpch;

/// Strings of many lengths, with NULLs, empty ones, characters of one to four bytes.
fn word(i: usize) -> Option<String> {
    if i % 11 == 3 {
        return None;
    }
    let word = ["pond", "mill", "Über", "wheel", "日本", "a😀", "special packages", ""][i % 8];
    Some(match i % 5 {
        0 => format!("{word} {}", i % 700),
        1 => format!("{word} carefully final requests {i}"),
        2 => word.to_string(),
        3 => format!("  {word}{}x ", "ab".repeat(i % 40)),
        _ => format!("{}-{:03}", 10 + i % 25, i % 900),
    })
}

fn words() -> RecordBatch {
    let rows = 1500;
    let strings = || (0..rows).map(word);
    let id: ArrayRef = Arc::new((0..rows as i64).collect::<Int64Array>());
    let start: ArrayRef =
        Arc::new((0..rows as i64).map(|i| (i % 17 != 5).then_some(i % 9 - 2)).collect::<Int64Array>());
    let few: ArrayRef = Arc::new((0..rows).map(|i| ["pond", "Mill", "é"].get(i % 4).copied()).collect::<StringArray>());
    let other: ArrayRef = Arc::new((0..rows).map(|i| word(i / 2 * 2)).collect::<StringViewArray>());
    RecordBatch::try_from_iter_with_nullable(vec![
        ("id", id, false),
        ("start", start, true),
        ("s", Arc::new(strings().collect::<StringArray>()) as ArrayRef, true),
        ("v", other, true),
        ("l", Arc::new(strings().collect::<LargeStringArray>()) as ArrayRef, true),
        ("b", Arc::new(strings().map(|s| s.map(String::into_bytes)).collect::<BinaryArray>()) as ArrayRef, true),
        ("few", few, true),
    ])
    .expect("columns have one length")
}

struct Rig {
    cpu: Millpond,
    sim: Millpond,
    _folder: tempfile::TempDir,
}

impl Rig {
    async fn new(fallback: Fallback, settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cpu = session_with(DeviceChoice::Cpu, 2, Fallback::Allow);
        let sim = session_with(DeviceChoice::Sim, 2, fallback);
        let path = folder.path().join("words.parquet");
        write_parquet(&words(), &path, 600);
        let path = path.to_str().expect("a UTF-8 path");
        for session in [&cpu, &sim] {
            session.context().register_parquet("words", path, Default::default()).await.expect("the file is read");
        }
        for setting in settings {
            sim.context().sql(&format!("SET millpond.{setting}")).await.expect("the option is taken");
        }
        Self { cpu, sim, _folder: folder }
    }

    async fn run(&self, sql: &str) -> Result<millpond::QueryReport, String> {
        let expected =
            self.cpu.execute(sql).await.map_err(|e| format!("the CPU refuses it: {}", e.strip_backtrace()))?;
        let actual = self.sim.execute(sql).await.map_err(|e| e.strip_backtrace())?;
        let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
        let report = actual.report.clone();
        match answer(&expected).difference(&answer(&actual), orders_its_rows(sql)) {
            Some(difference) => Err(difference),
            None if !report.findings.is_empty() => Err(format!("findings: {}", report.findings.join(" | "))),
            None if report.pool_used_bytes > 0 => Err(format!("{} bytes left in the pool", report.pool_used_bytes)),
            None if report.launches == 0 => Err("no kernel was launched".to_string()),
            None => Ok(report),
        }
    }

    async fn all(&self, queries: &[&str]) {
        let mut failures = Vec::new();
        for sql in queries {
            if let Err(why) = self.run(sql).await {
                failures.push(format!("{sql}\n    {why}"));
            }
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

const SMALL: [&str; 2] = ["debug_dictionary_values = 8", "batch_rows = 500"];

#[tokio::test]
async fn filters_compare_search_and_measure() {
    let rig = Rig::new(Fallback::Error, &SMALL).await;
    rig.all(&[
        "SELECT id FROM words WHERE s = 'pond 0'",
        "SELECT id FROM words WHERE s <> 'pond' AND s < 'mill' OR s >= 'é'",
        "SELECT id FROM words WHERE s = v",
        "SELECT id FROM words WHERE v > few",
        "SELECT id FROM words WHERE l <= 'm' AND l > 'a'",
        "SELECT id FROM words WHERE b = X'706f6e64'",
        "SELECT id FROM words WHERE s IS NULL OR v IS NOT NULL AND id < 100",
        "SELECT id FROM words WHERE s IS DISTINCT FROM v",
        "SELECT id FROM words WHERE s LIKE '%special%requests%'",
        "SELECT id FROM words WHERE s NOT LIKE '%special%requests%'",
        "SELECT id FROM words WHERE v LIKE 'pond%' OR v LIKE '%x ' OR v LIKE '%carefully%'",
        "SELECT id FROM words WHERE s LIKE '_i__%' OR s LIKE '日_' OR s LIKE 'a_%'",
        r"SELECT id FROM words WHERE l LIKE '1_-%' OR l LIKE '%\%%'",
        "SELECT id FROM words WHERE s ILIKE '%PACKAGES%' OR s ILIKE 'wheel%'",
        "SELECT id FROM words WHERE s NOT ILIKE 'p%'",
        "SELECT id FROM words WHERE starts_with(s, 'mill') OR ends_with(v, '5') OR contains(l, 'final')",
        "SELECT id FROM words WHERE s IN ('pond', 'mill 1', 'Über', '') AND s NOT IN ('mill')",
        "SELECT id FROM words WHERE v NOT IN ('pond', NULL) OR id < 9",
        "SELECT id FROM words WHERE character_length(s) > 12 AND octet_length(v) < 40",
        "SELECT id FROM words WHERE strpos(s, 'final') > 8",
        "SELECT id FROM words WHERE substr(s, 1, 2) IN ('13', '31', '23', '29')",
        "SELECT id FROM words WHERE left(v, 3) = 'pon' OR right(v, 2) = 'x '",
        "SELECT id FROM words WHERE btrim(s) = 'millx' OR ltrim(s) = rtrim(s)",
    ])
    .await;
}

#[tokio::test]
async fn patterns_come_from_columns() {
    // Of a column without a dictionary, of one with, and of both; the patterns are a dictionary's.
    let rig = Rig::new(Fallback::Error, &SMALL).await;
    let patterns = "CASE id % 7 WHEN 0 THEN '%' WHEN 1 THEN 'po_d%' WHEN 2 THEN '%é' WHEN 3 THEN 'a\\_%' WHEN 4 THEN 'Mill' \
                    WHEN 5 THEN '' END";
    for sql in [
        "SELECT id, s LIKE few, few LIKE few, few NOT LIKE replace(few, 'o', '_') FROM words".to_string(),
        format!(
            "SELECT w.id, w.s LIKE p.p, w.v NOT LIKE p.p, w.few LIKE p.p FROM words w JOIN (SELECT id, {patterns} AS p FROM words) p ON w.id = p.id"
        ),
        "SELECT id, 'pond' LIKE few || '%' FROM words WHERE id % 3 = 1".to_string(),
        "SELECT count(*) FROM words WHERE v LIKE '%' || few || '%'".to_string(),
        "SELECT id, few IN (v, 'pond', s), few NOT IN (replace(few, 'o', '_'), NULL, upper(few)) FROM words"
            .to_string(),
        "SELECT id, 'pond' IN (few, s), CASE id % 3 WHEN 0 THEN few ELSE 'é' END IN ('é', few, v) FROM words"
            .to_string(),
        "SELECT id, few ILIKE CASE WHEN few = 'é' THEN 'x' ELSE upper(few) END FROM words".to_string(),
    ] {
        rig.all(&[&sql]).await;
    }
    // A letter outside ASCII has another case somewhere: the CPU takes over.
    let rig = Rig::new(Fallback::Allow, &SMALL).await;
    let sql = "SELECT id, s ILIKE few FROM words";
    let (expected, actual) = (rig.cpu.execute(sql).await.expect("runs"), rig.sim.execute(sql).await.expect("runs"));
    let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
    assert_eq!(answer(&expected).difference(&answer(&actual), false), None);
    assert!(actual.report.notes.join(" ").contains("outside ASCII"), "{:?}", actual.report.notes);
}

#[tokio::test]
async fn projections_give_parts_and_choices() {
    let rig = Rig::new(Fallback::Error, &SMALL).await;
    rig.all(&[
        "SELECT id, s, v, l, b, few FROM words WHERE id % 3 = 1",
        "SELECT id, s FROM words WHERE s LIKE 'no such%'",
        "SELECT id, substr(s, 2), substr(v, start), substr(l, start, 4) FROM words WHERE id > 7",
        "SELECT id, left(s, 3), right(v, 4), left(l, -2), right(s, -5), left(s, start) FROM words WHERE id > 7",
        "SELECT id, trim(s), ltrim(v), rtrim(l), btrim(s, ' abx'), ltrim(s, 'pondmil ') FROM words WHERE id > 7",
        "SELECT id, length(s), octet_length(s), character_length(l), strpos(v, 'l'), strpos(s, '本') FROM words WHERE id > 7",
        "SELECT id, bit_length(s), bit_length(v), bit_length(l), bit_length(s || few) FROM words WHERE id > 7",
        "SELECT id, CASE WHEN s LIKE 'pond%' THEN s WHEN v LIKE 'mill%' THEN 'a constant' ELSE few END FROM words WHERE id > 7",
        "SELECT id, CASE WHEN id % 2 = 0 THEN v END, coalesce(s, v, 'nothing'), nullif(s, v) FROM words WHERE id > 7",
        "SELECT id, CASE s WHEN 'pond' THEN 1 WHEN 'mill' THEN 2 ELSE 3 END FROM words WHERE id > 7",
        "SELECT id, s || 'x' FROM (SELECT id, few AS s FROM words) WHERE id > 7",
    ])
    .await;
}

#[tokio::test]
async fn sorts_limits_and_counts() {
    let rig = Rig::new(Fallback::Error, &SMALL).await;
    rig.all(&[
        "SELECT count(s), count(*), sum(length(v)) FROM words WHERE s LIKE '%e%'",
        "SELECT few, count(*), max(length(s)), sum(octet_length(v)) FROM words GROUP BY few",
        "SELECT count(*) FILTER (WHERE s LIKE '%final%'), min(strpos(v, ' ')) FROM words",
        "SELECT id, s, v FROM words ORDER BY id DESC LIMIT 20",
        "SELECT s, id FROM words ORDER BY s, id",
        "SELECT id FROM words ORDER BY s, id",
        "SELECT id FROM words ORDER BY s DESC, id LIMIT 15",
        "SELECT s, id FROM words ORDER BY few DESC, v, id LIMIT 1200",
        "SELECT id, s FROM words WHERE id < 90 UNION ALL SELECT id, v FROM words WHERE id > 1400",
        "SELECT s FROM (SELECT s, id FROM words WHERE id < 90 UNION ALL SELECT few, id FROM words WHERE id > 3) ORDER BY id, s LIMIT 99",
        "SELECT v, id FROM words WHERE id % 2 = 0 ORDER BY v DESC NULLS LAST, id LIMIT 100",
        "SELECT substr(s, 1, 4) AS part, id FROM words WHERE id > 7 ORDER BY part NULLS FIRST, id",
    ])
    .await;
}

#[tokio::test]
async fn joins_carry_texts() {
    let rig = Rig::new(Fallback::Error, &SMALL).await;
    rig.all(&[
        "SELECT a.id, a.s, b.v FROM words a JOIN words b ON a.id = b.id WHERE a.s LIKE '%e%'",
        "SELECT a.id, b.s, b.l FROM words a LEFT JOIN words b ON a.id = b.start AND b.s LIKE 'p%'",
        "SELECT count(*), max(length(b.s)) FROM words a JOIN words b ON a.id = b.start WHERE b.s < a.v",
        "SELECT a.id, a.s FROM words a WHERE a.id IN (SELECT start FROM words WHERE s LIKE '%a%')",
        "SELECT a.s, b.s FROM words a JOIN words b ON a.id = b.start WHERE a.s <> b.v ORDER BY a.s, b.s LIMIT 50",
    ])
    .await;
}

#[tokio::test]
async fn texts_are_keys_of_groups() {
    let rig = Rig::new(Fallback::Error, &SMALL).await;
    rig.all(&[
        "SELECT s, count(*), sum(id) FROM words GROUP BY s",
        "SELECT DISTINCT v FROM words",
        "SELECT count(DISTINCT s), count(DISTINCT v) FROM words",
        "SELECT substr(s, 1, 3) AS part, few, count(*), min(id) FROM words GROUP BY part, few",
        "SELECT l, start, max(id) FROM words GROUP BY l, start HAVING count(*) > 1",
        "SELECT b, count(*) FROM words GROUP BY b",
        "SELECT few, s, count(*) FROM words GROUP BY ROLLUP (few, s)",
        "SELECT v, count(*) AS n FROM words WHERE s LIKE '%e%' GROUP BY v ORDER BY n DESC, v LIMIT 10",
        "SELECT coalesce(s, v, 'none') AS any, count(*) FROM words GROUP BY any",
        "SELECT s FROM words WHERE id < 900 UNION SELECT v FROM words",
        "SELECT a.s, count(*) FROM words a JOIN words b ON a.id = b.start GROUP BY a.s",
        "SELECT length(s), count(*) FROM (SELECT DISTINCT s FROM words) GROUP BY 1",
    ])
    .await;
}

#[tokio::test]
async fn texts_are_made() {
    let rig = Rig::new(Fallback::Error, &SMALL).await;
    rig.all(&[
        "SELECT id, upper(s), lower(v) FROM words WHERE id > 7",
        "SELECT id, initcap(substr(s, 1, 4)) FROM words WHERE s LIKE 'p%' OR s LIKE 'm%'",
        "SELECT id, reverse(s), repeat(v, 3), repeat(s, start) FROM words",
        // Under a NULL there is no text at all, and nothing is made of it.
        "SELECT id, repeat(nullif('pond', few), 4), replace(nullif('pond', few), 'o', s), lpad(nullif(s, few), 9, v) FROM words",
        "SELECT repeat(nullif('pond', few), 4) AS four, count(*) FROM words GROUP BY four",
        "SELECT id, s || '-' || v, concat(s, '/', v, id), concat_ws(', ', s, few, v, id) FROM words",
        "SELECT id, id || ' of ' || start, s || (id > 700) FROM words",
        "SELECT id, CAST(arrow_cast(id * 40 - 9000, 'Date32') AS VARCHAR), few || arrow_cast(start * 1000, 'Date32') FROM words",
        "SELECT id, CAST(start / CAST(8 AS DECIMAL(9, 3)) AS VARCHAR), CAST(CAST(start AS DECIMAL(20, 2)) AS VARCHAR) FROM words",
        "SELECT id, replace(s, 'a', 'é日'), replace(v, 'special ', ''), replace(s, v, '!') FROM words",
        "SELECT id, translate(s, 'aeiou', 'é_'), translate(v, '日b', 'x') FROM words",
        "SELECT id, lpad(s, 15, '*-'), rpad(v, 9), lpad(s, abs(start), v), rpad(few, 30, 'é1') FROM words",
        "SELECT id, split_part(s, ' ', 2), split_part(v, '-', start), split_part(s, ' ', -1) FROM words WHERE start <> 0",
        "SELECT id, overlay(s placing few from id % 7 + 1 for start), overlay(v placing s from 3), overlay(few placing v from 2 for 0) FROM words",
        "SELECT id, overlay(s placing v from 9223372036854775807 for id), overlay(s placing v from id + 1 for -9223372036854775807) FROM words",
        "SELECT id, overlay(s placing 'é' from CASE WHEN s IS NULL THEN 0 ELSE 2 END for 9223372036854775807) FROM words",
        "SELECT id, ascii(s), chr(id + 48), chr(ascii(v)) FROM words WHERE v <> ''",
        "SELECT id FROM words WHERE upper(s) LIKE '%FINAL%' AND length(s || v) > 20",
        "SELECT id FROM words WHERE lower(s) = lower(v) OR reverse(s) < v",
        "SELECT id, CASE WHEN id % 2 = 0 THEN upper(s) ELSE v END, coalesce(s || v, few), nullif(lower(s), v) FROM words",
        "SELECT id FROM words WHERE lower(s) IN ('pond', 'mill 1', 'wheel')",
        "SELECT id, greatest(s, v), least(s, few, 'n'), greatest(upper(s), v, NULL) FROM words",
        "SELECT upper(replace(s, ' ', '_')) AS name, count(*), sum(id) FROM words GROUP BY name",
        "SELECT DISTINCT left(s, 2) || right(v, 2) FROM words",
        "SELECT s || few AS both, id FROM words ORDER BY both DESC NULLS LAST, id LIMIT 40",
        "SELECT lower(s) AS name, id FROM words ORDER BY name, id",
        "SELECT max(length(s || v)), count(concat(s, v)), count(s || v) FROM words",
        "SELECT few, sum(length(repeat(s, 2))) FROM words GROUP BY few",
        "SELECT a.id, upper(b.s) FROM words a JOIN words b ON a.id = b.start",
        "SELECT a.id, a.s || b.v FROM words a LEFT JOIN words b ON a.id = b.start AND upper(b.s) LIKE 'P%'",
        "SELECT id, TRY_CAST(right(s, 3) AS INT), TRY_CAST(substr(s, 4, 3) AS BIGINT) + 1 FROM words",
        "SELECT id, CAST(substr(s, 1, 2) AS SMALLINT) FROM words WHERE id % 5 = 4 AND s IS NOT NULL",
    ])
    .await;
}

/// Rows that leave as they come are tried again with more room; others begin again.
#[tokio::test]
async fn texts_that_take_more_room_than_planned() {
    let rig = Rig::new(Fallback::Error, &SMALL).await;
    rig.all(&[
        "SELECT id, repeat(s, id) FROM words WHERE id < 300",
        "SELECT id, lpad(s, id * 9) FROM words ORDER BY id",
        "SELECT sum(length(replace(s, 'a', repeat('b', 400)))) FROM words",
        "SELECT left(repeat(v, 200), 900) AS long, count(*) FROM words GROUP BY long",
    ])
    .await;
}

#[tokio::test]
async fn what_cannot_be_made_is_left_to_the_cpu() {
    let rig = Rig::new(Fallback::Allow, &SMALL).await;
    let dotless = "concat(s, 'İ', v)";
    for sql in [
        format!("SELECT id, lower({dotless}) FROM words"),
        format!("SELECT lower({dotless}) AS name, count(*) FROM words GROUP BY name"),
        "SELECT id, initcap(s || v) FROM words".to_string(),
    ] {
        let expected = rig.cpu.execute(&sql).await.expect("the CPU runs it");
        let actual = rig.sim.execute(&sql).await.expect("the CPU takes over");
        let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
        assert_eq!(answer(&expected).difference(&answer(&actual), false), None, "{sql}");
        assert_eq!((actual.report.pool_used_bytes, actual.report.findings), (0, vec![]), "{sql}");
    }
    for (sql, words) in [
        ("SELECT chr(id - 5) FROM words", "invalid Unicode scalar value"),
        ("SELECT split_part(s || v, ' ', start) FROM words", "must not be zero"),
        ("SELECT overlay(s || v placing few from start) FROM words", "at least 1"),
        ("SELECT rpad(s || v, 3000000000) FROM words", "too large"),
        ("SELECT CAST(s || v AS INT) FROM words", "Cannot cast"),
    ] {
        let cpu = rig.cpu.execute(sql).await.err().expect("DataFusion refuses it").strip_backtrace();
        let sim = rig.sim.execute(sql).await.err().expect("and so does the device").strip_backtrace();
        assert!(sim.contains(words) && cpu.contains(words), "{sim}, where the CPU says {cpu}");
    }
}

#[tokio::test]
async fn groups_by_texts_need_little_memory() {
    let rig = Rig::new(Fallback::Allow, &SMALL).await;
    let sql = "SELECT s, v, count(*) FROM words GROUP BY s, v";
    let peak = rig.run(sql).await.expect("equal answers").peak_bytes;
    for share in [2, 4, 8] {
        let limit = format!("SET millpond.memory_limit_bytes = {}", peak / share);
        rig.sim.context().sql(&limit).await.expect("the option is taken");
        let expected = rig.cpu.execute(sql).await.expect("the CPU runs it");
        let actual = rig.sim.execute(sql).await.expect("smaller pieces, or the CPU");
        let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
        assert_eq!(answer(&expected).difference(&answer(&actual), false), None, "an {share}th");
        assert_eq!((actual.report.pool_used_bytes, actual.report.findings), (0, vec![]), "an {share}th");
    }
}

#[tokio::test]
async fn what_needs_a_dictionary_gets_a_larger_one() {
    let rig = Rig::new(Fallback::Error, &["debug_dictionary_values = 600", "batch_rows = 500"]).await;
    rig.all(&[
        "SELECT s, count(*) FROM words GROUP BY s",
        "SELECT count(DISTINCT v), min(s), max(v) FROM words",
        "SELECT few, approx_distinct(s), approx_distinct(v), approx_distinct(l), approx_distinct(b) FROM words GROUP BY few",
        "SELECT id, upper(s), reverse(v) FROM words WHERE id > 7",
        "SELECT s, count(*) FROM words WHERE v LIKE '%e%' GROUP BY s ORDER BY s LIMIT 10",
        "SELECT a.id, b.id FROM words a JOIN words b ON a.s = b.v WHERE a.id < 40",
    ])
    .await;
}

#[tokio::test]
async fn what_has_no_form_falls_back_with_its_reason() {
    let rig = Rig::new(Fallback::Allow, &SMALL).await;
    for sql in [
        "SELECT id, md5(s) FROM words WHERE id > 7",
        "SELECT min(s), max(v) FROM words",
        "SELECT few, approx_distinct(s), approx_distinct(v) FROM words GROUP BY few",
    ] {
        let expected = rig.cpu.execute(sql).await.expect("the CPU runs it");
        let actual = rig.sim.execute(sql).await.expect("the CPU takes over");
        let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
        assert_eq!(answer(&expected).difference(&answer(&actual), false), None, "{sql}");
        assert_eq!(actual.report.pool_used_bytes, 0, "{sql}");
    }
    let rig = Rig::new(Fallback::Error, &SMALL).await;
    let error = rig.sim.execute("SELECT id, md5(s) FROM words WHERE id > 7").await.err().expect("it is forbidden");
    assert!(error.strip_backtrace().contains("different values"), "{}", error.strip_backtrace());
    let error =
        rig.sim.execute("SELECT substr(s, 1, -1) FROM words WHERE id > 7").await.err().expect("DataFusion refuses it");
    assert!(error.strip_backtrace().contains("negative"), "{}", error.strip_backtrace());
}

/// PTX of a query, at most (docs/launches.md).
const INSTRUCTIONS: u64 = 2500;

#[tokio::test]
async fn tpch_where_comments_and_names_have_no_dictionary() {
    let data = tpch::data("0.001");
    let cpu = tpch::parquet_session(DeviceChoice::Cpu, Fallback::Allow, tpch::config(2), &data).await;
    let sim = tpch::parquet_session(DeviceChoice::Sim, Fallback::Error, tpch::config(2), &data).await;
    // Keys may have 256 values: names of customers and types of parts need their dictionaries.
    sim.context().sql("SET millpond.debug_dictionary_values = 64").await.expect("the option is taken");
    let mut failures = Vec::new();
    for (number, sql) in tpch::queries() {
        let expected = cpu.execute(&sql).await.expect("DataFusion answers");
        let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
        match sim.execute(&sql).await {
            Err(error) => failures.push(format!("Q{number}: {}", error.strip_backtrace())),
            Ok(actual) => {
                let difference = answer(&expected).difference(&answer(&actual), sql.contains("order by"));
                failures.extend(difference.map(|difference| format!("Q{number}: {difference}")));
                failures.extend(actual.report.findings.iter().map(|finding| format!("Q{number}: {finding}")));
                if actual.report.launches == 0 {
                    failures.push(format!("Q{number}: no kernel was launched"));
                }
                // The first run looked at dictionaries first; later ones know better.
                if actual.report.ptx_instructions > INSTRUCTIONS {
                    let again = sim.execute(&sql).await.expect("it was answered before").report.ptx_instructions;
                    println!("Q{number}: {} PTX instructions, then {again}", actual.report.ptx_instructions);
                    if again > INSTRUCTIONS {
                        failures.push(format!("Q{number}: {again} PTX instructions"));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[tokio::test]
async fn a_column_that_is_nearly_all_different_goes_without_a_dictionary() {
    let rows = 150_000;
    let id: ArrayRef = Arc::new((0..rows).collect::<Int64Array>());
    let name: ArrayRef = Arc::new((0..rows).map(|i| Some(format!("Customer#{i:09}"))).collect::<StringViewArray>());
    let kind: ArrayRef = Arc::new((0..rows).map(|i| Some(["a", "b"][i as usize % 2])).collect::<StringViewArray>());
    let batch = RecordBatch::try_from_iter([("id", id), ("name", name), ("kind", kind)]).expect("one length");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("names.parquet");
    write_parquet(&batch, &path, 40_000);
    let rig = Rig::new(Fallback::Error, &["partitions = 2"]).await;
    for session in [&rig.cpu, &rig.sim] {
        let path = path.to_str().expect("a UTF-8 path");
        session.context().register_parquet("names", path, Default::default()).await.expect("the file is read");
    }
    let sql = "SELECT kind, count(*), sum(strpos(name, '77')) FROM names WHERE name LIKE '%7%3' GROUP BY kind";
    let first = rig.run(sql).await.expect("equal answers");
    // Lessons are remembered: the second run does not try a dictionary first.
    let second = rig.run(sql).await.expect("equal answers");
    assert!(second.launches <= first.launches, "{} launches, then {}", first.launches, second.launches);
    rig.all(&[
        "SELECT id, name, kind FROM names WHERE right(name, 3) = '077' OR name = 'Customer#000000001'",
        // DataFusion hashes the values of a dictionary, which is made for it.
        "SELECT kind, approx_distinct(name), approx_distinct(id) FROM names GROUP BY kind",
    ])
    .await;
}

#[tokio::test]
async fn a_million_bytes_and_columns_of_one_kind() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let long = "long ".repeat(1 << 18);
    let strings: Vec<Option<String>> =
        (0..40).map(|i| (i != 5).then(|| if i % 13 == 0 { long.clone() } else { format!("short {i}") })).collect();
    let nulls: Vec<Option<&str>> = vec![None; 40];
    let empty: Vec<Option<&str>> = vec![Some(""); 40];
    let batch = RecordBatch::try_from_iter_with_nullable(vec![
        ("long", Arc::new(StringArray::from(strings)) as ArrayRef, true),
        ("nothing", Arc::new(StringArray::from(nulls)) as ArrayRef, true),
        ("empty", Arc::new(StringArray::from(empty)) as ArrayRef, true),
    ])
    .expect("columns have one length");
    let path = folder.path().join("long.parquet");
    write_parquet(&batch, &path, 1000);
    let mut rig = Rig::new(Fallback::Error, &SMALL).await;
    for session in [&mut rig.cpu, &mut rig.sim] {
        let path = path.to_str().expect("a UTF-8 path");
        session.context().register_parquet("t", path, Default::default()).await.expect("the file is read");
    }
    rig.all(&[
        "SELECT long, nothing, empty FROM t WHERE long LIKE 'short%' OR long LIKE '%long '",
        "SELECT substr(long, 500000, 20), length(long), coalesce(nothing, long) FROM t WHERE empty = ''",
    ])
    .await;
}

#[tokio::test]
async fn joins_by_texts_hash_and_compare_their_bytes() {
    let rig = Rig::new(Fallback::Error, &SMALL).await;
    rig.all(&[
        // Both sides texts, of one type and of several; one key, two, one of them a number; a part of a text.
        "SELECT p.id, q.id FROM words p JOIN words q ON p.s = q.s WHERE p.id < 300",
        "SELECT p.id, q.id, q.l FROM words p JOIN words q ON p.s = q.v WHERE p.id % 7 = 1 AND q.id % 3 = 0",
        "SELECT p.id, q.id FROM words p JOIN words q ON p.v = q.l AND p.start = q.start WHERE p.id < 700",
        "SELECT p.id, q.s FROM words p JOIN words q ON p.l = q.s AND p.s = q.l AND p.id = q.id",
        "SELECT count(*), min(q.id) FROM words p JOIN words q ON p.b = q.b WHERE p.id < 400",
        "SELECT count(*) FROM words p JOIN words q ON left(p.s, 12) = left(q.s, 12) WHERE p.id < 90 AND q.id > 1400",
        // Texts that are made, on one side and on both.
        "SELECT p.id, q.id FROM words p JOIN words q ON upper(p.s) = q.s WHERE p.id < 500",
        "SELECT p.id, q.id FROM words p JOIN words q ON concat(p.s, '!') = concat(q.v, '!') WHERE p.id < 200",
        // A dictionary on one side.
        "SELECT p.id, q.id FROM words p JOIN words q ON p.few = q.s WHERE p.id < 40 AND q.id < 400",
        "SELECT p.id, q.id FROM words p JOIN words q ON p.s = q.few WHERE p.id < 400 AND q.id < 40",
        // Every type, keys that are NULL, keys that are not there, and nothing at all.
        "SELECT p.id, q.id FROM words p LEFT JOIN words q ON p.s = q.v AND q.id > 1200 WHERE p.id < 400",
        "SELECT p.id, q.id FROM words p FULL JOIN (SELECT * FROM words WHERE id > 900) q ON p.s = q.s AND p.id = q.id",
        "SELECT id, s FROM words p WHERE EXISTS (SELECT 1 FROM words q WHERE p.s = q.v AND q.id % 5 = 2)",
        "SELECT id, s FROM words p WHERE NOT EXISTS (SELECT 1 FROM words q WHERE p.s = q.v AND q.id % 5 = 2)",
        "SELECT id FROM words WHERE s NOT IN (SELECT v FROM words WHERE id > 1000 AND v IS NOT NULL)",
        "SELECT id FROM words WHERE s NOT IN (SELECT v FROM words)",
        "SELECT p.id, q.id FROM words p JOIN words q ON (p.s IS NOT DISTINCT FROM q.s) AND p.id = q.id",
        "SELECT p.id, q.id FROM words p JOIN words q ON p.s = q.l WHERE q.id < 0",
    ])
    .await;
}

#[tokio::test]
async fn least_greatest_first_and_last_texts() {
    for settings in [
        &["debug_dictionary_values = 8", "batch_rows = 500"][..],
        &["debug_dictionary_values = 8", "batch_rows = 100", "debug_groups_at_first = 2", "debug_sim_seed = 5"][..],
    ] {
        let rig = Rig::new(Fallback::Error, settings).await;
        rig.all(&[
            "SELECT min(s), max(s), min(v), max(l), min(b), max(b) FROM words WHERE id >= 0",
            "SELECT min(s), max(v) FROM words WHERE id < 0",
            "SELECT few, min(s), max(s), count(*), max(few) FROM words GROUP BY few",
            "SELECT start, min(v) FILTER (WHERE id % 3 = 0), max(l) FILTER (WHERE id > 1490) FROM words GROUP BY start",
            "SELECT few, start, min(s), max(v) FROM words GROUP BY ROLLUP (few, start)",
            // Equal beginnings of sixteen bytes and more, one text the beginning of another.
            "SELECT start, min('of sixteen bytes' || s), max('of sixteen bytes' || s) FROM words GROUP BY start",
            "SELECT min('long beginning, the same everywhere ' || s), max('of fifteen byte' || s) FROM words",
            "SELECT few, min(repeat(few, 20)), max(repeat(few, 20) || s) FROM words GROUP BY few",
            // Texts as keys of groups beside them, distinct ones, those of a second table.
            "SELECT s, min(v), max(l) FROM words GROUP BY s",
            "SELECT few, count(DISTINCT s), min(s), max(DISTINCT v), count(v) FROM words GROUP BY few",
            // First and last, in an order of texts, of numbers, of both; ties have one value.
            "SELECT first_value(s ORDER BY id), last_value(v ORDER BY id) FROM words",
            "SELECT start, first_value(id ORDER BY v DESC NULLS LAST, id), last_value(s ORDER BY id) FROM words GROUP BY start ORDER BY start",
            "SELECT few, first_value(v ORDER BY s, id), last_value(l ORDER BY start NULLS FIRST, s DESC, id) FROM words GROUP BY few ORDER BY few",
            "SELECT few, first_value(s IGNORE NULLS ORDER BY id), last_value(s IGNORE NULLS ORDER BY v, id) FROM words GROUP BY few ORDER BY few",
            // Over other operators, and under them.
            "SELECT p.few, min(q.s), max(p.v) FROM words p JOIN words q ON p.id = q.start GROUP BY p.few",
            "SELECT few FROM words GROUP BY few HAVING min(s) < 'a' AND max(v) > 'w' ORDER BY few",
            "SELECT id, (SELECT min(v) FROM words WHERE id > 3) FROM words WHERE s = (SELECT max(s) FROM words WHERE id > 5)",
            "SELECT id FROM words WHERE s > (SELECT min(v) FROM words WHERE id < 0) OR few = (SELECT few FROM words WHERE id = 1)",
            "SELECT id FROM words WHERE few > coalesce((SELECT few FROM words WHERE id < 0), 'a') AND id < 50",
        ])
        .await;
    }
}

#[tokio::test]
async fn patterns_may_be_the_values_of_a_dictionary() {
    let rig = Rig::new(Fallback::Error, &SMALL).await;
    rig.all(&[
        "SELECT id FROM words WHERE s LIKE few",
        "SELECT id FROM words WHERE v NOT LIKE few || '%'",
        "SELECT id, s LIKE '%' || few || '%', l LIKE replace(few, 'n', '_') FROM words",
        r"SELECT id, s LIKE concat(few, '\%', few) FROM words",
        "SELECT p.id, q.few FROM words p JOIN (SELECT DISTINCT few FROM words) q ON p.s LIKE q.few || ' %'",
        "SELECT id FROM words WHERE EXISTS (SELECT 1 FROM (SELECT DISTINCT few FROM words) q WHERE s LIKE q.few || '%')",
    ])
    .await;
}
