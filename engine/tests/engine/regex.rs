//! Regular expressions over strings without a dictionary: automata on the simulated device give DataFusion's answers.
//!
//!   texts (Parquet) × patterns × functions ──► device = sim, dictionaries of 8 values at most ──┐
//!                                         └──► device = cpu ────────────────────────────────────┴─► equal answers
//!
//! Each query   launches a kernel · has no finding · leaves no byte in the pool.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Int64Array, LargeStringArray, StringArray, StringViewArray};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::session::QueryResult;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::edges::write_parquet;
use crate::support::session_with;

/// Numbers that look random, from a seed (Vigna's splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % end as u64) as usize
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

/// Texts of up to 24 of these parts, a NULL among every eleven.
fn texts(rows: usize, parts: &[&str], seed: u64) -> Vec<Option<String>> {
    let mut rng = Rng(seed);
    let text = |i: usize| {
        let parts = (0..rng.below(24)).map(|_| rng.pick(parts)).collect::<String>();
        (i % 11 != 3).then_some(parts)
    };
    (0..rows).map(text).collect()
}

const ASCII: [&str; 12] = ["a", "b", "c", "ab", "A", "B", " ", "1", "20", "_", "\n", "-"];
const MIXED: [&str; 16] =
    ["a", "b", "c", "ab", "A", "é", "É", "日本", "😀", "k", "\u{212a}", " ", "7", "٣", "\r\n", "ß"];

fn table(rows: usize) -> RecordBatch {
    let (plain, mixed) = (texts(rows, &ASCII, 1), texts(rows, &MIXED, 2));
    let id: ArrayRef = Arc::new((0..rows as i64).collect::<Int64Array>());
    let start: ArrayRef =
        Arc::new((0..rows as i64).map(|i| (i % 13 != 5).then_some(i % 9 + 1)).collect::<Int64Array>());
    RecordBatch::try_from_iter_with_nullable(vec![
        ("id", id, false),
        ("start", start, true),
        ("s", Arc::new(plain.iter().cloned().collect::<StringArray>()) as ArrayRef, true),
        ("v", Arc::new(mixed.iter().cloned().collect::<StringViewArray>()) as ArrayRef, true),
        ("l", Arc::new(mixed.iter().rev().cloned().collect::<LargeStringArray>()) as ArrayRef, true),
    ])
    .expect("columns have one length")
}

struct Rig {
    cpu: Millpond,
    sim: Millpond,
    _folder: tempfile::TempDir,
}

fn answer(result: &QueryResult) -> Answer {
    Answer::new(&result.schema, &result.batches)
}

impl Rig {
    async fn new(fallback: Fallback, rows: usize, settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cpu = session_with(DeviceChoice::Cpu, 2, Fallback::Allow);
        let sim = session_with(DeviceChoice::Sim, 2, fallback);
        let path = folder.path().join("texts.parquet");
        write_parquet(&table(rows), &path, rows / 2 + 1);
        for session in [&cpu, &sim] {
            let path = path.to_str().expect("a UTF-8 path");
            session.context().register_parquet("t", path, Default::default()).await.expect("the file is read");
        }
        for setting in ["debug_dictionary_values = 8"].iter().chain(settings) {
            sim.context().sql(&format!("SET millpond.{setting}")).await.expect("the option is taken");
        }
        Self { cpu, sim, _folder: folder }
    }

    async fn run(&self, sql: &str) -> millpond::QueryReport {
        let expected = self.cpu.execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {}", e.strip_backtrace()));
        let actual = self.sim.execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {}", e.strip_backtrace()));
        assert_eq!(answer(&expected).difference(&answer(&actual), sql.contains("ORDER BY")), None, "{sql}");
        assert_eq!(actual.report.findings, Vec::<String>::new(), "{sql}");
        assert_eq!(actual.report.pool_used_bytes, 0, "{sql}");
        actual.report
    }

    /// On the device to the end.
    async fn all(&self, queries: &[&str]) {
        for sql in queries {
            let report = self.run(sql).await;
            assert!(report.launches > 0, "{sql}: no kernel was launched");
            assert_eq!(report.notes, Vec::<String>::new(), "{sql}");
        }
    }
}

/// An expression of up to `depth` parts within one another.
fn expression(rng: &mut Rng, depth: usize) -> String {
    let atoms = [
        "a",
        "b",
        "c",
        "ab",
        "A",
        "é",
        "日",
        "😀",
        "1",
        " ",
        ".",
        "[a-c]",
        "[^a]",
        "[é日b]",
        "\\d",
        "\\w",
        "\\s",
        "\\S",
        "^",
        "$",
        "k",
        "(?s:.)",
        "\\p{L}",
        "(?-u:\\b)",
        "[[:digit:]]",
        "ß",
        "(?m:^)",
        "(?m:$)",
        "(?i:É)",
    ];
    if depth == 0 {
        return rng.pick(&atoms).to_string();
    }
    let mut inner = || expression(rng, depth - 1);
    let (one, two) = (inner(), inner());
    match rng.below(6) {
        0 => format!("{one}{two}"),
        1 => format!("(?:{one}|{two})"),
        2 => format!("({one}){two}"),
        3 => format!("(?:{one}){}", rng.pick(&["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}"])),
        4 => format!("{one}|{two}"),
        _ => format!("{one}(?:{two}){}", rng.pick(&["*", "+", "?", "*?"])),
    }
}

/// All functions of one pattern, over a column.
fn functions(pattern: &str, column: &str) -> String {
    let pattern = pattern.replace('\'', "''");
    let column_and = format!("{column}, '{pattern}'");
    format!(
        "SELECT id, {column} ~ '{pattern}', {column} !~* '{pattern}', regexp_like({column_and}, 's'), regexp_count({column_and}), \
         regexp_count({column_and}, start), regexp_instr({column_and}), regexp_instr({column_and}, 2, 2), \
         regexp_replace({column_and}, '#'), regexp_replace({column_and}, '¨é', 'g') FROM t WHERE id >= 0"
    )
}

#[tokio::test]
async fn random_expressions_match_as_on_the_cpu() {
    let settings: [(&[&str], usize, usize); 3] = [
        (&["batch_rows = 500"], 400, 110),
        (&["batch_rows = 100", "debug_sim_seed = 77"], 300, 50),
        (&["batch_rows = 7", "debug_sim_seed = 5"], 40, 40),
    ];
    for (seed, (settings, rows, patterns)) in settings.into_iter().enumerate() {
        let rig = Rig::new(Fallback::Allow, rows, settings).await;
        let (mut rng, mut on_device) = (Rng(seed as u64), 0);
        for turn in 0..patterns {
            let pattern = expression(&mut rng, turn % 4);
            let sql = functions(&pattern, ["s", "v", "l"][turn % 3]);
            let report = rig.run(&sql).await;
            on_device += usize::from(report.launches > 0 && report.reasons.is_empty() && report.notes.is_empty());
        }
        assert!(on_device * 20 > patterns * 19, "{on_device} of {patterns} patterns ran on the device");
    }
}

#[tokio::test]
async fn operators_functions_and_flags() {
    let rig = Rig::new(Fallback::Error, 500, &["batch_rows = 200"]).await;
    rig.all(&[
        "SELECT id FROM t WHERE s ~ '^a.*b$'",
        "SELECT id FROM t WHERE s ~* 'a+B' AND v !~ '[é日]' OR l !~* 'K'",
        "SELECT id, s ~ '', regexp_like(v, ''), regexp_count(s, ''), regexp_instr(v, ''), regexp_replace(l, '', '-', 'g') FROM t WHERE id >= 0",
        "SELECT id, regexp_like(s, 'A B', 'ix'), regexp_like(s, '^b', 'm'), regexp_like(s, 'a.b', 's'), regexp_like(s, 'a+', 'U') FROM t WHERE id >= 0",
        "SELECT id, regexp_like(s, 'a', NULL), s ~ NULL, regexp_count(s, 'a', NULL), regexp_replace(s, 'a+', 'x', NULL) FROM t WHERE id >= 0",
        "SELECT id, regexp_count(s, 'A', 1, 'i'), regexp_count(s, 'a', start, ''), regexp_count(v, 'é', start) FROM t WHERE id >= 0",
        "SELECT id, regexp_instr(s, 'b', start), regexp_instr(v, 'k', 1, 2, 'i'), regexp_instr(l, '[^a]', start, start) FROM t WHERE id >= 0",
        "SELECT id, regexp_instr(s, 'A', 1, 1, 'i', 0), regexp_instr(s, 'a', 50), regexp_instr(s, '$', 1, 1) FROM t WHERE id >= 0",
        "SELECT id, regexp_replace(s, '[0-9]+', ''), regexp_replace(v, 'É', '[&]', 'gi'), regexp_replace(l, '(a|b)', 'é\\', 'g') FROM t WHERE id >= 0",
        "SELECT regexp_replace(s, '[^a]', '', 'g') AS r, count(*), max(regexp_count(v, 'a')) FROM t GROUP BY r",
        "SELECT count(*) FILTER (WHERE s ~ 'b1'), sum(regexp_instr(v, '日')) FROM t",
        "SELECT upper(regexp_replace(s, 'a', 'xyz', 'g')) || '!', regexp_count(concat(s, v), '[ab]') FROM t WHERE id > 9",
        "SELECT a.id, b.id FROM t a JOIN t b ON regexp_replace(a.s, '[^b]+', '', 'g') = regexp_replace(b.v, '[^b]+', '', 'g') WHERE a.id < 60 AND b.id < 60",
        "SELECT id, CASE WHEN s ~ '^a' THEN regexp_replace(s, '^a', 'b') WHEN v ~ '^é' THEN v ELSE 'none' END FROM t ORDER BY id LIMIT 200",
        "SELECT id FROM t WHERE regexp_like(s, '\\bab\\b')",
        // In any case, beyond ASCII.
        "SELECT id FROM t WHERE v ILIKE '%É%' OR l ILIKE 'ß%' OR s ILIKE '%é_'",
        "SELECT id, v NOT ILIKE '_é%', v ILIKE '\\%É' FROM t WHERE id >= 0",
    ])
    .await;
}

#[tokio::test]
async fn what_has_no_automaton_stays_on_the_cpu_with_a_reason() {
    let rig = Rig::new(Fallback::Allow, 200, &[]).await;
    for (what, why) in [
        ("s ~ v", "its pattern is no constant"),
        ("regexp_like(s || v, 'a', CASE WHEN id > 3 THEN 'i' END)", "its flags are no constant"),
        ("regexp_replace(s || v, '(a)(b)', '\\2')", "groups of a regular expression have no device form"),
        ("regexp_replace(s || v, 'a', '$0', 'g')", "groups of a regular expression have no device form"),
        ("regexp_replace(s || v, 'a', v)", "its replacement is no constant"),
        ("regexp_instr(s || v, '(a)(b)', 1, 1, '', 2)", "groups of a regular expression have no device form"),
        ("regexp_count(s || v, '[ab]*a[ab]{20}')", "more than 256 KiB"),
    ] {
        let report = rig.run(&format!("SELECT id, {what} AS x, length(s) FROM t WHERE id >= 0")).await;
        let said = [report.reasons.join("; "), report.notes.join("; ")].join("; ");
        assert!(said.contains(why), "{what}: {said}");
    }
}

#[tokio::test]
async fn boundaries_of_words_beyond_ascii_are_left_to_the_cpu() {
    let rig = Rig::new(Fallback::Allow, 300, &["batch_rows = 50"]).await;
    for what in [
        "v ~ '\\bab\\b'",
        "regexp_count(l, '\\b') > 2",
        "regexp_instr(v, '\\bk') = 1",
        "regexp_replace(v, '\\b', '|', 'g') <> v",
    ] {
        let report = rig.run(&format!("SELECT id FROM t WHERE {what}")).await;
        assert!(!report.notes.is_empty(), "{what}: the device cannot know");
    }
}

#[tokio::test]
async fn errors_are_those_of_the_cpu() {
    let rig = Rig::new(Fallback::Allow, 100, &[]).await;
    for what in [
        "s ~ 'a('",
        "regexp_like(s, 'a', 'g')",
        "regexp_count(s, 'a', 1, 'g')",
        "regexp_count(s, 'a', id - 5)",
        "regexp_instr(s, 'a', 0)",
        "regexp_instr(s, 'a', 1, id - 7)",
        "regexp_replace(s, '*', 'x')",
        "regexp_replace(s, 'a', 'x', 'q')",
    ] {
        let sql = format!("SELECT id, {what} FROM t WHERE id >= 0");
        let cpu = rig.cpu.execute(&sql).await.err().unwrap_or_else(|| panic!("{what}: the CPU takes it"));
        let sim = rig.sim.execute(&sql).await.err().unwrap_or_else(|| panic!("{what}: the device takes it"));
        assert_eq!(cpu.strip_backtrace(), sim.strip_backtrace(), "{what}");
    }
}
