//! UNNEST of what a function of a crate beside the engine finds in texts, and of lists that are written out.
//!
//!   finds(text)   a list of {said, word, sentence}; sentences end at every full stop ──┐
//!   [a, b, 3]     columns, constants, structures ──────────────────────────────────────┴─► device and CPU give the
//!                                                                                          same rows

use std::sync::Arc;

use millpond::datafusion::arrow::array::{Array, AsArray, ListBuilder, StringViewBuilder, StructBuilder};
use millpond::datafusion::arrow::datatypes::{DataType, Field, Fields};
use millpond::datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use millpond::datafusion::physical_expr::ScalarFunctionExpr;
use millpond::kernels::sentences::{Ends, Lexicon};
use millpond::operator::unnest::{Found, HitField, Items, ListFunction, Unnest, WordHits};
use millpond::{Fallback, Millpond};

use crate::sql_features::Rig;

const WORDS: [(&str, u32); 3] = [("good", 1), ("bad", 2), ("sick", 3)];
const SAYS: [&str; 2] = ["well", "ill"];

fn fields() -> Fields {
    ["said", "word", "sentence"].iter().map(|name| Field::new(*name, DataType::Utf8View, false)).collect()
}

/// The function on the CPU.
pub fn finds() -> ScalarUDF {
    let item = Arc::new(Field::new("item", DataType::Struct(fields()), true));
    let body = move |arguments: &[ColumnarValue]| {
        let texts = ColumnarValue::values_to_arrays(arguments)?.remove(0);
        let mut lists = ListBuilder::new(StructBuilder::from_fields(fields(), 0));
        for text in texts.as_string::<i32>() {
            for sentence in text.unwrap_or_default().split('.') {
                let word = |word: &str| word.replace([',', ';', '-', '"'], "");
                for word in sentence.split(' ').map(word) {
                    let says = WORDS.iter().find(|(known, _)| *known == word).map_or(0, |(_, says)| *says);
                    for (_, said) in SAYS.iter().enumerate().filter(|(bit, _)| says >> bit & 1 == 1) {
                        for (column, value) in [*said, &word, sentence].into_iter().enumerate() {
                            let values = lists.values().field_builder::<StringViewBuilder>(column);
                            values.expect("a field").append_value(value);
                        }
                        lists.values().append(true);
                    }
                }
            }
            lists.append(text.is_some());
        }
        let lists = lists.finish();
        assert_eq!(lists.len(), texts.len());
        Ok(ColumnarValue::Array(Arc::new(lists)))
    };
    create_udf("finds", vec![DataType::Utf8], DataType::List(item), Volatility::Immutable, Arc::new(body))
}

/// The function on the device.
#[derive(Debug)]
struct Finds;

impl ListFunction for Finds {
    fn found(&self, call: &ScalarFunctionExpr) -> Option<Found> {
        (call.fun().name() == "finds").then(|| Found { lower: false, ends: Ends::Stop, items: Items::Hits(hits()) })
    }
}

fn hits() -> WordHits {
    WordHits {
        words: WORDS.iter().map(|(word, _)| word.to_string()).collect(),
        says: SAYS.iter().map(|said| said.to_string()).collect(),
        lexicon: Arc::new(Lexicon::new(WORDS.into_iter()).expect("few words")),
        fields: [("said", HitField::Says), ("word", HitField::Word), ("sentence", HitField::Sentence)]
            .map(|(name, field)| (name.to_string(), field))
            .to_vec(),
    }
}

/// Both sessions know the function; the device's operators how to find what it finds.
pub fn register(sessions: [&Millpond; 2]) {
    for session in sessions {
        session.context().register_udf(finds());
        session.operators().add(Arc::new(Unnest::with(vec![Arc::new(Finds)])));
    }
}

#[tokio::test]
async fn items_of_texts_are_rows() {
    for settings in [&[][..], &["millpond.batch_rows = 7"], &["millpond.debug_dictionary_values = 3"]] {
        let rig = Rig::with_partitions(Fallback::Error, 2).await;
        register([&rig.cpu, &rig.sim]);
        for setting in settings {
            rig.set(setting).await;
        }
        let list = "UNNEST(finds(s || ' good. si-ck \"x\"; bad' || s)) AS hit";
        for sql in [
            format!(
                "SELECT id, hit['word'] AS w, hit['said'] AS a, hit['sentence'] AS b FROM (SELECT id, {list} FROM t)"
            ),
            format!("SELECT hit['said'] AS a, count(*), min(id) FROM (SELECT {list}, id FROM t) GROUP BY hit['said']"),
            format!(
                "SELECT hit['sentence'] AS b, id, k FROM (SELECT k, {list}, id FROM t WHERE id < 300) ORDER BY b, id, k LIMIT 40"
            ),
            format!("SELECT count(*) FROM (SELECT hit['word'] AS w FROM (SELECT id, {list} FROM t))"),
            format!(
                "SELECT count(w), count(*) FROM (SELECT hit['word'] AS w FROM (SELECT id, {list} FROM t WHERE id > 90) LIMIT 7 OFFSET 3)"
            ),
        ] {
            if let Err(why) = rig.run(&sql).await {
                panic!("{sql}, {settings:?}: {why}");
            }
        }
    }
}

/// Lists that are written out: of columns, constants and structures, alone and beside each other.
#[tokio::test]
async fn items_of_written_lists_are_rows() {
    let mut failed = vec![];
    for settings in [&[][..], &["millpond.batch_rows = 70"], &["millpond.debug_dictionary_values = 3"]] {
        let rig = Rig::with_partitions(Fallback::Error, 2).await;
        for setting in settings {
            rig.set(setting).await;
        }
        for sql in [
            "SELECT id, UNNEST([i8, i16, i32]), k FROM t",
            "SELECT UNNEST([i64]) FROM t",
            "SELECT id, UNNEST(['b', 'a', NULL, 'b']) FROM t WHERE k < 9",
            "SELECT id, UNNEST([1, NULL, 3]), b FROM t WHERE id < 200",
            "SELECT id, UNNEST(['pond', s, NULL, w || 'x']) FROM t",
            "SELECT id, UNNEST([i8, k]), UNNEST([s, upper(s), 'end']), UNNEST([true]) FROM t",
            "SELECT id, UNNEST([d9, d18]), UNNEST([f64, f32]), UNNEST([k > 3, b]) FROM t",
            "SELECT x, count(*), sum(id) FROM (SELECT UNNEST([k, w]) AS x, id FROM t) GROUP BY x",
            "SELECT id, x FROM (SELECT UNNEST([i64, id * 2]) AS x, id FROM t WHERE id > 2900) WHERE x > 3 ORDER BY x, id",
            "SELECT a.id, b.x FROM t a JOIN (SELECT id, UNNEST([k, id]) AS x FROM t WHERE id < 80) b ON a.id = b.x",
            "SELECT id, UNNEST([x, k]) FROM (SELECT UNNEST([k, w]) AS x, id, k FROM t WHERE id < 300)",
            "SELECT id, p['x'] + 1, p['name'] FROM (SELECT id, UNNEST([named_struct('x', k, 'name', s), named_struct('x', w, 'name', 'w')]) AS p FROM t)",
            "SELECT id, p['x'] + 1, p['name'] FROM (SELECT id, UNNEST([named_struct('x', k, 'name', s), named_struct('x', k + 1, 'name', s)]) AS p FROM t)",
            "SELECT count(*) FROM (SELECT UNNEST([k, w]) FROM t)",
            "SELECT count(*), count(x) FROM (SELECT UNNEST([k, w]) AS x FROM t LIMIT 11)",
            "SELECT id, x FROM (SELECT id, UNNEST([k, w]) AS x FROM t WHERE id < 9) UNION ALL SELECT w, UNNEST([k]) FROM t WHERE id > 2980",
            "SELECT id, UNNEST([k / (id - 5000), w]) FROM t WHERE id > 6000",
        ] {
            match rig.run(sql).await {
                Ok(report) if report.notes.is_empty() && report.operators == report.operators_on_device => {}
                Ok(report) => failed.push(format!("{sql}, {settings:?}: {report:?}")),
                Err(why) => failed.push(format!("{sql}, {settings:?}: {why}")),
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// An item that raises an error raises it, wherever it is in its list.
#[tokio::test]
async fn an_item_that_fails_fails_the_query() {
    let rig = Rig::with_partitions(Fallback::Allow, 2).await;
    for sql in ["SELECT UNNEST([1, id / (id - id)]) FROM t", "SELECT UNNEST([id / (id - id), 1]), id FROM t"] {
        for session in [&rig.cpu, &rig.sim] {
            let error = session.execute(sql).await.err().expect("a division by zero");
            assert!(error.to_string().to_lowercase().contains("divide by zero"), "{error}");
        }
    }
}

#[tokio::test]
async fn other_lists_are_made_on_the_cpu() {
    let many: Vec<String> = (0..65).map(|item| format!("id + {item}")).collect();
    let rig = Rig::with_partitions(Fallback::Allow, 2).await;
    for (sql, reason) in [
        (format!("SELECT UNNEST([{}]) FROM t WHERE id < 30", many.join(", ")), "leave the device"),
        ("SELECT UNNEST(array_distinct([k, w])) FROM t WHERE id < 2000".to_string(), "it reads several"),
        ("SELECT UNNEST(UNNEST([[k, w], [w]])) FROM t WHERE id < 2000".to_string(), "has no device form"),
        ("SELECT UNNEST([[k, w], [w]]) FROM t WHERE id < 2000".to_string(), "has no device form"),
        ("SELECT UNNEST(array_concat([k], [w])) FROM t WHERE id < 2000".to_string(), "leave the device"),
        (
            "SELECT p FROM (SELECT UNNEST([named_struct('x', k)]) AS p FROM t WHERE id < 99)".to_string(),
            "has no device form",
        ),
    ] {
        match rig.run(&sql).await {
            Ok(report) if report.reasons.iter().any(|said| said.contains(reason)) => {}
            other => panic!("{sql}: {other:?}"),
        }
    }
}

/// Without the operator the engine knows no such function.
#[tokio::test]
async fn a_function_that_nobody_told_of_makes_its_lists_on_the_cpu() {
    let rig = Rig::with_partitions(Fallback::Allow, 2).await;
    rig.cpu.context().register_udf(finds());
    rig.sim.context().register_udf(finds());
    let sql = "SELECT id, hit['word'] AS w FROM (SELECT id, UNNEST(finds(s || ' good')) AS hit FROM t)";
    let report = rig.sim.execute(sql).await.expect("the CPU answers").report;
    assert!(report.reasons.iter().any(|reason| reason.contains("a function of the session's own")), "{report:?}");
}
