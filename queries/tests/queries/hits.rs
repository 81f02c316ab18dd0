//! UNNEST of `sentences`, `words` and `sentiment_hits` on the device, compared with the CPU.
//!
//! ```text
//!   texts (dictionary or none) ──► device = sim, fallback = error ──┐
//!                             └──► device = cpu ────────────────────┴─► equal rows
//! ```

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Int64Array, LargeStringArray, StringArray, StringViewArray};
use millpond::datafusion::arrow::compute::cast;
use millpond::datafusion::arrow::datatypes::DataType;
use millpond::datafusion::prelude::SessionConfig;
use millpond::{DeviceChoice, Fallback, Millpond, QueryReport, QueryResult, error};
use millpond_queries::functions;

use crate::support::{Numbers, plan, rows, table};

const ROWS: usize = 240;

/// Parts of texts: words in and outside the lists, separators, characters of one to four bytes.
const PIECES: [&str; 26] = [
    "good",
    "Good",
    "BAD",
    "bad",
    "terrible",
    "great",
    "excellent",
    "poor",
    "gr",
    "eat",
    " ",
    " ",
    " ",
    " ",
    ".",
    "?",
    "!",
    ". ",
    "! ",
    ", ",
    "-",
    "\"",
    "è",
    "é",
    "日本",
    "😀",
];

/// A text of some length, NULL or empty; `plain` texts have only letters whose lower case is unambiguous.
fn text(numbers: &mut Numbers, row: usize) -> Option<String> {
    let pieces = match row % 50 {
        7 => return None,
        8 => 0,
        9 => 900,
        _ => numbers.below(30),
    };
    Some((0..pieces).map(|_| PIECES[numbers.below(PIECES.len() as u64) as usize]).collect())
}

/// Registers distinct texts, a few texts in many rows, and a key.
fn register(session: &Millpond) {
    let mut numbers = Numbers(3);
    let texts: Vec<Option<String>> = (0..ROWS).map(|row| text(&mut numbers, row)).collect();
    let few: Vec<Option<&str>> = (0..ROWS).map(|row| texts[row % 40].as_deref()).collect();
    let id: Int64Array = (0..ROWS as i64).map(Some).collect();
    let key: Int64Array = (0..ROWS as i64).map(|id| (id % 9 != 4).then_some(id % 30)).collect();
    let few: ArrayRef = Arc::new(few.into_iter().collect::<StringArray>());
    let packed = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(id)),
        ("key", Arc::new(key)),
        ("text", Arc::new(texts.iter().map(Option::as_deref).collect::<StringArray>())),
        ("view", Arc::new(texts.iter().map(Option::as_deref).collect::<StringViewArray>())),
        ("long", Arc::new(texts.iter().map(Option::as_deref).collect::<LargeStringArray>())),
        ("packed", cast(&few, &packed).expect("strings are packed")),
        ("few", few),
        ("none", Arc::new(StringArray::from(vec![None::<&str>; ROWS]))),
    ];
    table(session.context(), "reviews", 3, columns);
    let kinds: Int64Array = (0..20).map(Some).collect();
    let names: StringArray = (0..20).map(|kind| Some(format!("kind {kind}"))).collect();
    table(session.context(), "kinds", 1, vec![("kind", Arc::new(kinds) as ArrayRef), ("name", Arc::new(names))]);
}

fn session(device: DeviceChoice, fallback: Fallback, options: &[(&str, usize)]) -> Millpond {
    let config = SessionConfig::new().with_target_partitions(3).with_batch_size(64);
    let mut builder =
        Millpond::builder().with_own_engine().with_device(device).with_fallback(fallback).with_config(config);
    for (name, value) in options {
        builder = builder.with_option(name, &value.to_string()).expect("the option is taken");
    }
    let session = builder.build().expect("the device opens");
    functions::register(session.context()).expect("the functions are registered");
    register(&session);
    session
}

async fn answer(session: &Millpond, sql: &str) -> QueryResult {
    session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

async fn cpu_rows(sql: &str) -> Vec<Vec<String>> {
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, &[]);
    rows(&answer(&cpu, sql).await.batches, sql.contains("ORDER BY"))
}

fn same(sql: &str, what: &str, expected: &[Vec<String>], found: &QueryResult) {
    let found_rows = rows(&found.batches, sql.contains("ORDER BY"));
    let differs = expected.iter().zip(&found_rows).find(|(expected, found)| expected != found);
    assert!(
        found_rows == expected,
        "{what}: {} rows of {}, {differs:?}: {:?}",
        found_rows.len(),
        expected.len(),
        found.report
    );
}

fn all_on_the_device(report: &QueryReport) -> bool {
    report.launches > 0 && report.operators_on_device == report.operators && report.notes.is_empty()
}

/// Selects the fields of all hits of a call, with other columns and clauses.
fn hits(columns: &str, call: &str, rest: &str) -> String {
    let fields = "hit['sentence'] AS sentence, hit['sentiment'] AS sentiment, hit['word'] AS word";
    format!("SELECT {columns}, {fields} FROM (SELECT *, UNNEST({call}) AS hit FROM reviews {rest})")
}

fn queries() -> Vec<String> {
    let mut queries = vec![];
    for column in ["text", "view", "long", "few", "packed", "none"] {
        for rule in ["", ", 'any_lower', 'NEG'", ", 'any', 'POS'", ", 'spaced'", ", 'stop', 'NEG'"] {
            queries.push(hits("id, key", &format!("sentiment_hits({column}{rule})"), ""));
        }
    }
    for column in ["text", "few", "none"] {
        for call in
            ["sentences(#)", "sentences(#, 'any')", "sentences(#, 'spaced')", "sentences(#, 'stop')", "words(#)"]
        {
            queries.push(format!("SELECT id, UNNEST({}), key FROM reviews", call.replace('#', column)));
        }
    }
    queries.push("SELECT id, sentence, UNNEST(words(sentence)) FROM (SELECT id, UNNEST(sentences(view)) AS sentence FROM reviews)".to_string());
    queries.push("SELECT word, count(*) FROM (SELECT UNNEST(words(view)) AS word FROM reviews WHERE id > 20) GROUP BY word ORDER BY 2 DESC, 1".to_string());
    queries.push(
        "SELECT count(*), min(s) FROM (SELECT UNNEST(sentences(text, 'any')) AS s FROM reviews) WHERE s LIKE '%good%'"
            .to_string(),
    );
    queries.push("SELECT count(*) FROM (SELECT UNNEST(words(text)) AS w, id FROM reviews LIMIT 70)".to_string());
    queries.push("SELECT count(*) FROM (SELECT id, UNNEST(sentiment_hits(text)) AS hit FROM reviews)".to_string());
    queries.push(hits("id", "sentiment_hits(text)", "WHERE id > 400"));
    queries.push(
        hits("id", "sentiment_hits(text)", "WHERE key IS NOT NULL AND text IS NOT NULL") + " ORDER BY 1, 2, 3, 4",
    );
    queries.push(hits("name", "sentiment_hits(view, 'any')", "JOIN kinds ON key = kind") + " ORDER BY 1, 2, 3, 4");
    queries.push(hits("few, text, id + 1", "sentiment_hits(substr(text, 3))", ""));
    queries.push("SELECT hit['word'], COUNT(*) FROM (SELECT UNNEST(sentiment_hits(text)) AS hit FROM reviews) GROUP BY hit['word']".to_string());
    queries.push("SELECT upper(hit['sentence']), length(hit['word']) FROM (SELECT UNNEST(sentiment_hits(view)) AS hit FROM reviews)".to_string());
    queries.push("SELECT a.id, b.id FROM (SELECT id, hit['sentence'] AS s FROM (SELECT id, UNNEST(sentiment_hits(text)) AS hit FROM reviews)) a
         JOIN (SELECT id, hit['sentence'] AS s FROM (SELECT id, UNNEST(sentiment_hits(view, 'stop')) AS hit FROM reviews)) b ON a.id = b.id".to_string());
    queries.push(format!(
        "SELECT id, sentiment FROM ({}) UNION ALL SELECT id, word FROM ({})",
        hits("id", "sentiment_hits(text)", ""),
        hits("id", "sentiment_hits(text, 'any')", "")
    ));
    queries
}

#[tokio::test]
async fn every_layout_and_rule_gives_what_the_cpu_gives() {
    let settings: [&[(&str, usize)]; 4] = [
        &[],
        &[("debug_dictionary_values", 3), ("debug_sim_seed", 9)],
        &[("debug_dictionary_values", 3), ("batch_rows", 100)],
        &[("batch_rows", 30), ("debug_sim_seed", 5)],
    ];
    for (number, sql) in queries().into_iter().enumerate() {
        let expected = cpu_rows(&sql).await;
        assert_eq!(expected.is_empty(), sql.contains("(none") || sql.contains("400"), "{sql}");
        // Two settings per query, in turn.
        for options in [settings[number % 2], settings[2 + number / 2 % 2]] {
            // Both sides of a union share one dictionary.
            if sql.contains("UNION") && options.iter().any(|(name, _)| *name == "debug_dictionary_values") {
                continue;
            }
            let sim = session(DeviceChoice::Sim, Fallback::Error, options);
            let what = format!("{sql}, {options:?}");
            let found = sim.execute(&sql).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            same(&sql, &what, &expected, &found);
            assert!(all_on_the_device(&found.report), "{what}: {:?}", found.report);
            // Resident columns, and results kept from the first run.
            same(&sql, &what, &expected, &answer(&sim, &sql).await);
            let findings = sim.engine().expect("a device").take_findings();
            assert!(findings.is_empty() && found.report.pool_used_bytes == 0, "{what}: {findings:?}");
        }
    }
}

/// Extents of three rows.
#[tokio::test]
async fn few_rows_at_a_time_give_the_same() {
    for sql in [
        hits("id, key", "sentiment_hits(text, 'spaced')", "WHERE id < 60"),
        hits("id", "sentiment_hits(few)", "WHERE id < 60"),
    ] {
        let expected = cpu_rows(&sql).await;
        for options in
            [vec![("batch_rows", 3)], vec![("batch_rows", 3), ("debug_dictionary_values", 3), ("debug_sim_seed", 4)]]
        {
            let sim = session(DeviceChoice::Sim, Fallback::Error, &options);
            same(&sql, &format!("{sql}, {options:?}"), &expected, &answer(&sim, &sql).await);
        }
    }
}

#[tokio::test]
async fn the_plan_shows_what_is_found() {
    let sim = session(DeviceChoice::Sim, Fallback::Error, &[]);
    let text = plan(&sim, &hits("id", "sentiment_hits(text, 'spaced')", "")).await;
    assert!(text.contains("DeviceUnnestExec: lists=[sentiment_hits(CAST(text@"), "{text}");
    assert!(text.contains("DeviceProjectExec") && !text.contains("UnnestExec\n"), "{text}");
}

#[tokio::test]
async fn what_has_no_device_form_stays_with_a_reason() {
    for (sql, reason) in [
        ("SELECT id, UNNEST(sentiment_hits(text)) AS hit FROM reviews", "a function of the session's own"),
        ("SELECT id, UNNEST(companies_in(text)) AS name FROM reviews", "a function of the session's own"),
        (
            "SELECT hit['company'] AS company FROM (SELECT UNNEST(company_mentions(text)) AS hit FROM reviews)",
            "has no device form",
        ),
        (
            "SELECT hit['word'] AS word, w FROM (SELECT UNNEST(sentiment_hits(text)) AS hit, UNNEST(words(text)) AS w FROM reviews)",
            "a function of the session's own",
        ),
    ] {
        let sim = session(DeviceChoice::Sim, Fallback::Allow, &[]);
        let found = answer(&sim, sql).await;
        same(sql, sql, &cpu_rows(sql).await, &found);
        assert!(found.report.reasons.iter().any(|said| said.contains(reason)), "{sql}: {:?}", found.report);
        let strict = session(DeviceChoice::Sim, Fallback::Error, &[]);
        let refused = strict.execute(sql).await.err().expect("fallback is an error");
        assert!(error::is_forbidden_fallback(&refused), "{sql}: {refused}");
    }
}

/// A letter whose lower case is longer or depends on adjacent letters stays on the CPU without a dictionary.
#[tokio::test]
async fn letters_that_the_device_cannot_make_lower_are_the_cpus() {
    for letters in ["İ", "ΑΣ.", "ẞ", "Ⱥ"] {
        let sql = format!(
            "SELECT id, hit['sentence'] AS s, hit['word'] AS w FROM
                 (SELECT id, UNNEST(sentiment_hits(text || '. So BAD {letters} good')) AS hit FROM reviews)"
        );
        let expected = cpu_rows(&sql).await;
        let sim = session(DeviceChoice::Sim, Fallback::Allow, &[("debug_dictionary_values", 3)]);
        let found = answer(&sim, &sql).await;
        same(&sql, &sql, &expected, &found);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_short_memory_and_after_faults_answers_are_the_same() {
    for sql in
        [hits("id", "sentiment_hits(text)", ""), hits("name", "sentiment_hits(few, 'any')", "JOIN kinds ON key = kind")]
    {
        let expected = cpu_rows(&sql).await;
        let tiny = [("batch_rows", 60), ("debug_dictionary_values", 3)];
        let peak = answer(&session(DeviceChoice::Sim, Fallback::Error, &tiny), &sql).await.report.peak_bytes as usize;
        for limit in [1, peak / 4, peak / 2, peak * 3 / 4] {
            let options = [tiny[0], tiny[1], ("memory_limit_bytes", limit)];
            let sim = session(DeviceChoice::Sim, Fallback::Allow, &options);
            let found = answer(&sim, &sql).await;
            same(&sql, &format!("{sql} in {limit} of {peak} bytes"), &expected, &found);
            let on_the_cpu = found.report.notes.iter().any(|note| note.contains("on the CPU"));
            assert!(limit > 1 || on_the_cpu, "{sql}: {:?}", found.report);
        }
        for (fault, last) in [("debug_sim_lose_at_launch", 9), ("debug_sim_fail_allocation", 14)] {
            for nth in 1..=last {
                let sim = session(DeviceChoice::Sim, Fallback::Allow, &[tiny[0], tiny[1], (fault, nth)]);
                same(&sql, &format!("{sql}, {fault} {nth}"), &expected, &answer(&sim, &sql).await);
            }
        }
    }
}
