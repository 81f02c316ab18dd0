//! Statements of many levels: each is answered, or refused with a number and a way out, and the process goes on.
//!
//!   a OR b OR c OR …  ·  a + 1 + 1 + …  ·  f(f(f(…)))  ·  q UNION q UNION …  ·  WITH a AS (…), b AS (FROM a), …
//!     └► on a worker thread with a small stack, by every door: answer or error, the same on the CPU and on the device

use std::sync::Arc;

use futures::TryStreamExt;
use millpond::datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use millpond::datafusion::arrow::datatypes::Int64Type;
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::error::DataFusionError;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::support::session_with;

/// Stack of a worker thread: a program's own in a release build; frames of an unoptimised one take more.
const STACK: usize = if cfg!(debug_assertions) { 4 << 20 } else { 2 << 20 };

/// Runs a future on a worker thread.
fn on_a_worker<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).thread_stack_size(STACK).enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::spawn(work).await.expect("no panic") })
}

fn session(device: DeviceChoice) -> Millpond {
    let session = session_with(device, 1, Fallback::Allow);
    let numbers = |by: i64| Arc::new((0..50).map(|row| row * by % 37).collect::<Int64Array>()) as ArrayRef;
    let texts = Arc::new((0..50).map(|row| Some(format!("word {row}"))).collect::<StringArray>()) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("a", numbers(1)), ("b", numbers(5)), ("s", texts)]).expect("columns");
    let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).expect("a table");
    session.context().register_table("t", Arc::new(table)).expect("a name");
    session
}

fn chain(first: &str, link: impl Fn(usize) -> String, links: usize) -> String {
    let mut text = first.to_string();
    (0..links).for_each(|number| text.push_str(&link(number)));
    text
}

fn nest(before: &str, inner: &str, after: &str, levels: usize) -> String {
    format!("{}{inner}{}", before.repeat(levels), after.repeat(levels))
}

/// Statements of `n` links or levels.
type Shape = (&'static str, fn(usize) -> String);

const SHAPES: &[Shape] = &[
    ("OR", |n| {
        format!("SELECT count(*) FROM t WHERE {}", chain("a = 0", |i| format!(" OR {} = {i}", ["a", "b"][i % 2]), n))
    }),
    ("OR of one column", |n| format!("SELECT count(*) FROM t WHERE {}", chain("a = 0", |i| format!(" OR a = {i}"), n))),
    ("OR of AND", |n| {
        format!("SELECT count(*) FROM t WHERE {}", chain("a = 0", |i| format!(" OR (a = {i} AND b > {i})"), n))
    }),
    ("OR in SELECT", |n| {
        format!("SELECT sum(CASE WHEN {} THEN 1 END) FROM t", chain("a = 0", |i| format!(" OR a + b = {i}"), n))
    }),
    ("AND", |n| format!("SELECT count(*) FROM t WHERE {}", chain("a >= 0", |i| format!(" AND a <> {}", i + 40), n))),
    ("AND of OR", |n| {
        format!("SELECT count(*) FROM t WHERE {}", chain("a >= 0", |i| format!(" AND (a <> {i} OR b <> {i})"), n))
    }),
    ("AND and OR", |n| {
        format!("SELECT count(*) FROM t WHERE {}", chain("a = 0", |i| format!(" {} b <> {i}", ["AND", "OR"][i % 2]), n))
    }),
    ("NOT of OR", |n| {
        format!("SELECT count(*) FROM t WHERE NOT ({})", chain("a = 0", |i| format!(" OR a + b = {i}"), n))
    }),
    ("groups of AND", |n| {
        let group = chain("a <> 99", |i| format!(" AND a + b <> {}", i + 90), n / 30);
        format!("SELECT count(*) FROM t WHERE {}", chain(&format!("({group})"), |_| format!(" AND ({group})"), 30))
    }),
    ("HAVING", |n| {
        format!("SELECT a FROM t GROUP BY a HAVING {}", chain("a = 0", |i| format!(" OR count(*) = {i}"), n))
    }),
    ("ON", |n| {
        format!(
            "SELECT count(*) FROM t JOIN t AS u ON t.a = u.a AND ({})",
            chain("t.b = 0", |i| format!(" OR u.b = {i}"), n)
        )
    }),
    ("+", |n| format!("SELECT {} FROM t", chain("a", |_| " + 1".to_string(), n))),
    ("-", |n| format!("SELECT sum({}) FROM t", chain("a", |_| "-b".to_string(), n))),
    ("||", |n| format!("SELECT {} FROM t", chain("s", |_| " || 'x'".to_string(), n))),
    ("::", |n| format!("SELECT {} FROM t", chain("a", |i| ["::BIGINT", "::INT"][i % 2].to_string(), n))),
    ("IS NULL", |n| format!("SELECT {} FROM t", chain("a", |_| " IS NULL".to_string(), n))),
    ("=", |n| format!("SELECT {} FROM t", chain("(a = 1)", |_| " = true".to_string(), n))),
    ("NOT", |n| format!("SELECT count(*) FROM t WHERE {}", nest("NOT ", "a = 1", "", n))),
    ("NOT of parentheses", |n| format!("SELECT count(*) FROM t WHERE {}", nest("NOT (", "a = 1", ")", n / 2))),
    ("signs", |n| format!("SELECT {} FROM t", nest("- ", "a", "", n))),
    ("parentheses", |n| format!("SELECT {} FROM t", nest("(", "a", ")", n))),
    ("functions", |n| format!("SELECT {} FROM t", nest("abs(", "a", ")", n))),
    ("CASE", |n| format!("SELECT {} FROM t", nest("CASE WHEN a > 1 THEN 2 ELSE ", "a", " END", n))),
    ("WHEN", |n| {
        format!("SELECT CASE {} END FROM t", chain("WHEN a = 1 THEN 1", |i| format!(" WHEN a = {i} THEN {i}"), n))
    }),
    ("IN", |n| format!("SELECT count(*) FROM t WHERE a IN ({})", chain("0", |i| format!(", {i}"), n))),
    ("VALUES", |n| format!("SELECT count(*) FROM (VALUES {}) AS v(x)", chain("(0)", |i| format!(", ({i} + 1)"), n))),
    ("UNION ALL", |n| chain("SELECT a FROM t", |_| " UNION ALL SELECT a FROM t".to_string(), n)),
    ("UNION", |n| chain("SELECT a FROM t", |_| " UNION SELECT a FROM t".to_string(), n)),
    ("EXCEPT", |n| chain("SELECT a FROM t", |i| format!(" EXCEPT SELECT {i}"), n)),
    ("subqueries", |n| nest("SELECT * FROM (", "SELECT a FROM t", ") AS q", n)),
    ("IN (SELECT)", |n| nest("SELECT a FROM t WHERE a IN (", "SELECT b FROM t", ")", n)),
    ("joins", |n| {
        format!("SELECT count(*) FROM t AS t0{}", chain("", |i| format!(" JOIN t AS t{0} ON t0.a = t{0}.a", i + 1), n))
    }),
    ("commas", |n| {
        format!("SELECT count(*) FROM t AS t0{} WHERE t0.a > 99", chain("", |i| format!(", t AS t{}", i + 1), n))
    }),
    ("WITH", |n| {
        format!(
            "WITH {} SELECT count(*) FROM w{n}",
            chain("w0 AS (SELECT a FROM t)", |i| format!(", w{} AS (SELECT a + 1 AS a FROM w{i})", i + 1), n)
        )
    }),
    ("EXPLAIN", |n| format!("{} SELECT 1", "EXPLAIN ".repeat(n))),
    ("an error at the end", |n| format!("SELECT {} FROM", chain("a", |_| "+1".to_string(), n))),
    ("COPY", |n| format!("COPY (SELECT {} FROM t) TO '/dev/null' STORED AS CSV", chain("a", |_| "+1".to_string(), n))),
    ("CREATE", |n| format!("CREATE OR REPLACE TABLE m AS SELECT {} AS x FROM t", chain("a", |_| "+1".to_string(), n))),
    ("VIEW", |n| format!("CREATE OR REPLACE VIEW w AS SELECT {} AS x FROM t", chain("a", |_| "+1".to_string(), n))),
    ("PREPARE", |n| format!("PREPARE p{n} AS SELECT {} AS x FROM t", chain("a", |_| "+1".to_string(), n))),
];

/// Number of APIs through which a statement can be run.
const DOORS: usize = 3;

/// The answer by a door, or the words of its error; planning alone has no rows.
async fn by_door(door: usize, session: &Millpond, sql: &str) -> Result<Option<Answer>, String> {
    let answer = async {
        match door {
            0 => {
                let result = session.execute(sql).await?;
                Ok(Some(Answer::new(&result.schema, &result.batches)))
            }
            1 => {
                let stream = session.stream(sql).await?;
                let schema = stream.schema();
                Ok(Some(Answer::new(&schema, &stream.try_collect::<Vec<_>>().await?)))
            }
            _ => session.plan_statement(session.statement(sql).await?).await.map(|_| None),
        }
    };
    answer.await.map_err(|error: DataFusionError| error.strip_backtrace())
}

/// Links of every shape, and those of [`LONG`], below the limit and above it.
const LINKS: [usize; 3] = [12, 450, 2000];

/// Shapes that are tried with more links: others of this length are planned for a minute each in an unoptimised build.
const LONG: &[&str] = &["AND", "+", "||", "UNION ALL"];

/// Whether shapes are answered, by their links; errors name the limit, or are the parser's.
fn answered() -> Vec<(&'static str, usize, bool)> {
    on_a_worker(async move {
        let (cpu, sim) = (session(DeviceChoice::Cpu), session(DeviceChoice::Sim));
        let mut answered = vec![];
        for (name, shape) in SHAPES {
            let sizes = if LONG.contains(name) { &LINKS[..] } else { &LINKS[..1] };
            for size in sizes {
                let (door, sql) = (answered.len() % DOORS, shape(*size));
                let (expected, actual) = (by_door(door, &cpu, &sql).await, by_door(door, &sim, &sql).await);
                match (&expected, &actual) {
                    (Ok(Some(expected)), Ok(Some(actual))) => {
                        assert_eq!(expected.difference(actual, false), None, "{name} {size}");
                    }
                    (Ok(None), Ok(None)) => {}
                    (Err(why), Err(_)) => {
                        let known =
                            ["at most", "ecursion", "Expected: ", "EXPLAIN"].iter().any(|word| why.contains(word));
                        assert!(known, "{name} {size}: {why}");
                    }
                    (expected, actual) => {
                        panic!("{name} {size}: {:?}, {:?}", expected.as_ref().err(), actual.as_ref().err())
                    }
                }
                answered.push((*name, *size, expected.is_ok()));
            }
        }
        answered
    })
}

#[test]
fn statements_of_many_levels_are_answered_or_refused() {
    let answered = answered();
    let of = |name: &str, size: usize| {
        answered.iter().find(|(known, of, _)| *known == name && *of == size).is_some_and(|(.., answered)| *answered)
    };
    for name in ["OR", "OR of one column", "HAVING", "IN", "VALUES"] {
        assert!(of(name, 12), "{name}");
    }
    for name in ["AND", "+", "||", "UNION ALL"] {
        assert!(of(name, 450) && !of(name, 2000), "{name}");
    }
}

/// A statement that is refused takes no stack, however long it is.
#[test]
fn statements_of_any_length_are_refused() {
    on_a_worker(async {
        for session in [session(DeviceChoice::Cpu), session(DeviceChoice::Sim)] {
            for (name, shape) in SHAPES {
                // Wide ones are answered; DataFusion plans tables for long.
                if ["IN", "VALUES", "WHEN", "joins", "commas", "WITH"].contains(name) {
                    continue;
                }
                assert!(session.execute(&shape(30_000)).await.is_err(), "{name}");
            }
        }
    });
}

#[test]
fn an_or_of_thousands_of_terms_is_answered() {
    on_a_worker(async {
        let (cpu, sim) = (session(DeviceChoice::Cpu), session(DeviceChoice::Sim));
        let or = SHAPES[0].1;
        for links in [2000, 8000] {
            for session in [&cpu, &sim] {
                let result = session.execute(&or(links)).await.expect("an answer");
                let count = result.batches[0].column(0).as_primitive::<Int64Type>().value(0);
                // Even a, odd b.
                let expected = (0..50).filter(|row| row % 37 % 2 == 0 || row * 5 % 37 % 2 == 1).count();
                assert_eq!(count, expected as i64);
            }
        }
    });
}
