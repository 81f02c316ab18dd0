//! Sessions, pairs and earlier rows on the simulated device, compared with the CPU forms.
//!
//! ```text
//!   random rows of many types, NULLs, ties ─┬─ CPU form ───────────────────────────────────────┐
//!                                           └─ device form, extents of 3, 30 and 100 rows ────┴─► equal rows, no leaks
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millpond::datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int8Array, Int32Array, Int64Array, StringArray,
    TimestampMillisecondArray, TimestampNanosecondArray, UInt16Array, UInt64Array,
};
use millpond::datafusion::prelude::{SessionConfig, SessionContext};
use millpond::{DeviceChoice, Fallback, Millpond, QueryReport, QueryResult, error};
use millpond_queries::functions;

use crate::support::{Numbers, batches, plan, rows, table};

fn session(device: DeviceChoice, fallback: Fallback, options: &[(&str, usize)]) -> Millpond {
    let config = SessionConfig::new().with_target_partitions(3).with_batch_size(64);
    let mut builder =
        Millpond::builder().with_own_engine().with_device(device).with_fallback(fallback).with_config(config);
    for (name, value) in options {
        builder = builder.with_option(name, &value.to_string()).expect("the option is taken");
    }
    let session = builder.build().expect("the device opens");
    functions::register(session.context()).expect("the functions are registered");
    session
}

fn strict(options: &[(&str, usize)]) -> Millpond {
    session(DeviceChoice::Sim, Fallback::Error, options)
}

async fn answer(session: &Millpond, sql: &str) -> QueryResult {
    session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn all_on_the_device(report: &QueryReport) -> bool {
    report.launches > 0 && report.operators_on_device == report.operators && report.notes.is_empty()
}

/// Waits until the tasks of a query have ended; then the device must have no bytes in use and no findings.
async fn nothing_is_left(session: &Millpond, what: &str) {
    let wait = async {
        while session.pool_used_bytes() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), wait).await.unwrap_or_else(|_| panic!("{what}: memory is in use"));
    let findings = session.engine().expect("a device").take_findings();
    assert_eq!(findings, Vec::<String>::new(), "{what}");
}

/// Registers a table `t` of `count` rows, with NULLs and ties in all columns except `id`.
fn register(context: &SessionContext, count: usize, seed: u64) {
    let mut numbers = Numbers(seed);
    let mut some = |of: u64| -> Vec<Option<i64>> {
        (0..count).map(|_| (numbers.below(12) > 0).then(|| numbers.below(of) as i64)).collect()
    };
    let (few, fewer, kinds, times, others) = (some(9), some(3), some(6), some(400), some(5));
    let floats = [0.0, -0.0, f64::NAN, 1.5, f64::NEG_INFINITY, -2.0];
    let texts = ["", "a", "a longer text than fits", "a longer text than fitz", "b", "é"];
    let column = |values: &[Option<i64>], times: i64, less: i64| -> Vec<Option<i64>> {
        values.iter().map(|value| value.map(|value| value * times - less)).collect()
    };
    let decimals: Decimal128Array = column(&few, 1 << 40, 1 << 41).into_iter().map(|v| v.map(i128::from)).collect();
    let decimals = decimals.with_precision_and_scale(30, 2).expect("they fit");
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..count as i64))),
        ("k", Arc::new(Int64Array::from(column(&few, 1, 4)))),
        ("k8", Arc::new(fewer.iter().map(|v| v.map(|v| v as i8 - 1)).collect::<Int8Array>())),
        ("day", Arc::new(few.iter().map(|v| v.map(|v| v as i32 - 3)).collect::<Date32Array>())),
        ("price", Arc::new(decimals)),
        ("f", Arc::new(kinds.iter().map(|v| v.map(|v| floats[v as usize])).collect::<Float64Array>())),
        ("s", Arc::new(kinds.iter().map(|v| v.map(|v| texts[v as usize])).collect::<StringArray>())),
        ("b", Arc::new(fewer.iter().map(|v| v.map(|v| v == 1)).collect::<BooleanArray>())),
        ("t", Arc::new(Int64Array::from(column(&times, 50, 3_000)))),
        ("t32", Arc::new(times.iter().map(|v| v.map(|v| v as i32 * 10)).collect::<Int32Array>())),
        ("t16", Arc::new(times.iter().map(|v| v.map(|v| v as u16)).collect::<UInt16Array>())),
        ("u64", Arc::new(times.iter().map(|v| v.map(|v| v as u64)).collect::<UInt64Array>())),
        ("ms", Arc::new(TimestampMillisecondArray::from(column(&times, 250, 9_000)))),
        ("ns", Arc::new(TimestampNanosecondArray::from(column(&times, 100_000_000, 0)))),
        ("buy", Arc::new(others.iter().map(|v| v.map(|v| v == 0)).collect::<BooleanArray>())),
    ];
    table(context, "t", 3, columns);
}

const SESSIONS: [&str; 7] = [
    "SELECT * FROM sessionize('t', 'k', 't', 100)",
    "SELECT id, session_id FROM sessionize('t', ['k8', 's'], 't32', 25)",
    "SELECT id, f, s, session_id FROM sessionize('t', ['f', 'day'], 'ms', 1)",
    "SELECT id, price, session_id FROM sessionize('t', 'price', 'ns', 0)",
    "SELECT id, session_id FROM sessionize('t', ['b', 'k8'], 't16', 3)",
    "SELECT k, session_id, count(*), sum(id) FROM sessionize('t', 'k', 't', 9223372036854775807) GROUP BY k, session_id",
    "SELECT s, max(session_id) FROM sessionize('SELECT s, t FROM t WHERE id % 3 = 1', 's', 't', 500) GROUP BY s",
];

const PAIRS: [&str; 6] = [
    "SELECT * FROM basket_pairs('t', 'k', 's')",
    "SELECT * FROM basket_pairs('t', ['k8', 'b'], 'f')",
    "SELECT * FROM basket_pairs('t', 'b', 'price')",
    "SELECT * FROM basket_pairs('t', 's', 'id') WHERE id_1 % 3 = 0",
    "SELECT t_1, t_2, count(*) FROM basket_pairs('t', 'k', 't') GROUP BY t_1, t_2",
    "SELECT count(*) FROM basket_pairs('t', 'k8', 'id')",
];

const BEFORE: [&str; 7] = [
    "SELECT * FROM last_n_before('t', 'k', ['t', 'id'], 'buy', 3)",
    "SELECT id, anchor_id, steps_before FROM last_n_before('t', 'k', ['t', 'id'], 'buy', 5, 2000)",
    "SELECT id, anchor_id, steps_before FROM last_n_before('t', ['s', 'k8'], ['ms', 'f', 'id'], 'b', 10000, 4)",
    "SELECT id, s, anchor_s, anchor_price FROM last_n_before('t', 'f', ['id'], 'buy', 1)",
    "SELECT id, anchor_id FROM last_n_before('t', ['day'], ['t32', 's', 'id'], 'b', 2, 0)",
    "SELECT steps_before, count(*), sum(anchor_id - id) FROM last_n_before('t', 'price', 'id', 'buy', 7) GROUP BY steps_before",
    "SELECT id, anchor_id FROM last_n_before('t', 'k8', ['ns', 'id'], 'buy', 4, 9000000000000)",
];

fn all() -> impl Iterator<Item = &'static str> {
    SESSIONS.into_iter().chain(PAIRS).chain(BEFORE)
}

/// Answers of the CPU forms over a table of `count` rows.
async fn expected(count: usize, seed: u64) -> BTreeMap<&'static str, Vec<Vec<String>>> {
    let cpu = session(DeviceChoice::Cpu, Fallback::Allow, &[]);
    register(cpu.context(), count, seed);
    let mut answers = BTreeMap::new();
    for sql in all() {
        answers.insert(sql, rows(&answer(&cpu, sql).await.batches, false));
    }
    answers
}

#[tokio::test]
async fn the_device_gives_what_the_cpu_gives() {
    for (count, batch_rows, seed) in [(90, 3, 1), (300, 30, 2), (700, 100, 3)] {
        let expected = expected(count, seed).await;
        let nothing: Vec<_> = expected.iter().filter(|(_, rows)| rows.is_empty()).map(|(sql, _)| sql).collect();
        assert!(count < 200 || nothing.is_empty(), "{nothing:?} find nothing");
        let sim = strict(&[("batch_rows", batch_rows), ("debug_sim_seed", seed as usize)]);
        register(sim.context(), count, seed);
        for (sql, expected) in expected {
            // The second run reuses results that the first one has read back from the device.
            for run in ["first", "second"] {
                let found = answer(&sim, sql).await;
                assert_eq!(rows(&found.batches, false), expected, "{sql}, {run} run, {count} rows");
                assert!(all_on_the_device(&found.report), "{sql}: {:?}", found.report);
            }
            nothing_is_left(&sim, sql).await;
        }
    }
}

#[tokio::test]
async fn few_rows_no_rows_and_no_keys() {
    for count in [0, 1, 2, 5] {
        let expected = expected(count, 7).await;
        let sim = strict(&[("batch_rows", 3)]);
        register(sim.context(), count, 7);
        for (sql, expected) in expected {
            assert_eq!(rows(&answer(&sim, sql).await.batches, false), expected, "{sql}, {count} rows");
        }
        nothing_is_left(&sim, "few rows").await;
    }
    let (cpu, sim) = (session(DeviceChoice::Cpu, Fallback::Allow, &[]), strict(&[("batch_rows", 30)]));
    for session in [&cpu, &sim] {
        register(session.context(), 100, 8);
    }
    let nothing = "SELECT id, CAST(NULL AS BIGINT) AS k, t, buy FROM t";
    for call in
        ["sessionize('{}', 'k', 't', 5)", "basket_pairs('{}', 'id', 'k')", "last_n_before('{}', 'k', 't', 'buy', 2)"]
    {
        let sql = format!("SELECT * FROM {}", call.replace("{}", nothing));
        assert_eq!(rows(&answer(&sim, &sql).await.batches, false), Vec::<Vec<String>>::new(), "{sql}");
        assert_eq!(rows(&answer(&cpu, &sql).await.batches, false), Vec::<Vec<String>>::new(), "{sql}");
    }
}

/// Strings without a dictionary are compared by their bytes.
#[tokio::test]
async fn strings_without_a_dictionary_are_keys() {
    let expected = expected(250, 5).await;
    let sim = strict(&[("batch_rows", 100), ("debug_dictionary_values", 2)]);
    register(sim.context(), 250, 5);
    for (sql, expected) in expected.into_iter().filter(|(sql, _)| sql.contains("'s'")) {
        assert_eq!(rows(&answer(&sim, sql).await.batches, false), expected, "{sql}");
    }
    nothing_is_left(&sim, "texts").await;
}

/// One key for all rows, a distinct key for each row, and times at both limits of their type.
#[tokio::test]
async fn large_keys_single_rows_and_the_ends_of_times() {
    let count = 1_500i64;
    let ends = [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1, i64::MAX];
    let columns = || -> Vec<(&str, ArrayRef)> {
        vec![
            ("id", Arc::new(Int64Array::from_iter_values(0..count))),
            ("one", Arc::new(Int64Array::from_iter_values((0..count).map(|_| 7)))),
            ("t", Arc::new(Int64Array::from_iter_values((0..count).map(|row| row * 7919 % 4001)))),
            ("ends", Arc::new(Int64Array::from_iter_values((0..count).map(|row| ends[row as usize % 6])))),
            ("u", Arc::new(UInt64Array::from_iter_values((0..count).map(|row| row as u64 * 3 % 1000)))),
            ("e", Arc::new(Int64Array::from_iter_values((0..count).map(|row| row % 90)))),
            ("a", Arc::new((0..count).map(|row| Some(row % 100 == 99)).collect::<BooleanArray>())),
        ]
    };
    let (cpu, sim) = (session(DeviceChoice::Cpu, Fallback::Allow, &[]), strict(&[("batch_rows", 100)]));
    for session in [&cpu, &sim] {
        table(session.context(), "t", 3, columns());
    }
    for sql in [
        "SELECT id, session_id FROM sessionize('t', 'one', 't', 3)",
        "SELECT id, session_id FROM sessionize('t', 'id', 't', 3)",
        "SELECT id, session_id FROM sessionize('t', 'e', 'ends', 9223372036854775806)",
        "SELECT id, session_id FROM sessionize('t', 'e', 'ends', 9223372036854775807)",
        "SELECT count(*), min(e_1), max(e_2), sum(e_1 * e_2) FROM basket_pairs('t', 'one', 'e')",
        "SELECT count(*), sum(id_2 - id_1) FROM basket_pairs('t', 'one', 'id')",
        "SELECT count(*) FROM basket_pairs('t', 'id', 'e')",
        "SELECT id, anchor_id, steps_before FROM last_n_before('t', 'one', ['t', 'id'], 'a', 50)",
        "SELECT count(*), sum(steps_before), sum(id) FROM last_n_before('t', 'one', ['t', 'id'], 'a', 1000000, 900)",
        "SELECT id, anchor_id FROM last_n_before('t', 'one', ['ends', 'id'], 'a', 40, 9223372036854775807)",
    ] {
        let (expected, found) = (answer(&cpu, sql).await, answer(&sim, sql).await);
        assert_eq!(rows(&found.batches, false), rows(&expected.batches, false), "{sql}");
        assert!(all_on_the_device(&found.report), "{sql}: {:?}", found.report);
    }
    nothing_is_left(&sim, "large keys").await;
}

/// The device keeps the order that the CPU form declares, without another sort.
#[tokio::test]
async fn sessions_and_pairs_come_in_the_order_that_is_promised() {
    let (cpu, sim) = (session(DeviceChoice::Cpu, Fallback::Allow, &[]), strict(&[("batch_rows", 30)]));
    for session in [&cpu, &sim] {
        register(session.context(), 400, 9);
    }
    for sql in [
        "SELECT k, t, session_id FROM sessionize('t', 'k', 't', 100) ORDER BY k, t",
        "SELECT k, session_id FROM sessionize('t', 'k', 't', 100) WHERE s <> 'b' ORDER BY k, session_id",
        "SELECT k, session_id FROM sessionize('t', 'k', 't', 100) WHERE id % 2 = 0 ORDER BY k, session_id LIMIT 40",
        "SELECT * FROM basket_pairs('t', 'k', 'id') ORDER BY k, id_1, id_2",
    ] {
        let (expected, found) = (answer(&cpu, sql).await, answer(&sim, sql).await);
        assert_eq!(rows(&found.batches, true), rows(&expected.batches, true), "{sql}");
        let text = plan(&sim, sql).await;
        assert!(!text.contains("Sort"), "{text}");
    }
    // A border can express only one of two orders; a query that needs both gets the CPU form.
    let allowed = session(DeviceChoice::Sim, Fallback::Allow, &[("batch_rows", 30)]);
    register(allowed.context(), 400, 9);
    for sql in [
        "SELECT k, session_id, count(*) OVER (PARTITION BY k ORDER BY session_id) FROM sessionize('t', 'k', 't', 100)",
        "SELECT k, t, sum(id) OVER (PARTITION BY k ORDER BY t) FROM sessionize('t', 'k', 't', 100)",
        "SELECT k, id_1, max(id_2) OVER (PARTITION BY k ORDER BY id_1) FROM basket_pairs('t', 'k', 'id')",
    ] {
        let (expected, found) = (answer(&cpu, sql).await, answer(&allowed, sql).await);
        assert_eq!(rows(&found.batches, false), rows(&expected.batches, false), "{sql}");
    }
    // Another order needs a sort above.
    let text = plan(&sim, "SELECT k, t FROM sessionize('t', 'k', 't', 100) ORDER BY t, k").await;
    assert!(text.contains("DeviceSortExec"), "{text}");
}

#[tokio::test]
async fn explain_prints_their_device_nodes() {
    let sim = strict(&[]);
    register(sim.context(), 100, 4);
    for (sql, expected) in [
        (
            "SELECT id, session_id FROM sessionize('SELECT id, k, t FROM t WHERE id > 5', 'k', 't', 60)",
            ["DeviceProjectExec", "DeviceSessionizeExec: [k@1, t@2], gap=60", "DeviceFilterExec", "UploadExec"]
                .as_slice(),
        ),
        (
            "SELECT * FROM basket_pairs('t', ['k', 'k8'], 'id')",
            &["DeviceBasketPairsExec: [k@1, k8@2, id@0]", "UploadExec"],
        ),
        (
            "SELECT * FROM last_n_before('SELECT k, t, buy FROM t', 'k', 't', 'buy', 3, 9)",
            &["DeviceLastBeforeExec: [k@0, t@1, buy@2], n=3, within=9", "UploadExec"],
        ),
    ] {
        let text = plan(&sim, sql).await;
        let nodes: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.contains("DataSource")).collect();
        let begins = nodes.iter().skip(1).zip(expected).all(|(node, expected)| node.starts_with(expected));
        assert!(begins && nodes[0] == "DownloadExec" && nodes.len() == expected.len() + 1, "{text}");
    }
    let sql = "EXPLAIN ANALYZE SELECT * FROM basket_pairs('t', 'k', 'id')";
    assert!(rows(&answer(&sim, sql).await.batches, true).concat().join("\n").contains("DeviceBasketPairsExec"));
}

/// Every kernel of the image is launched by some function.
#[tokio::test]
async fn every_kernel_is_launched() {
    let sim = strict(&[]);
    register(sim.context(), 100, 4);
    for sql in [SESSIONS[0], PAIRS[0], BEFORE[0]] {
        answer(&sim, sql).await;
    }
    let launched = sim.engine().expect("a device").simulated().expect("it is simulated").launched();
    let image = millpond::kernels::image::IMAGES.iter().find(|image| image.name == "clicks").expect("there is one");
    let kernels: Vec<&str> = image.kernels().collect();
    assert_eq!(kernels.len(), 4);
    assert!(kernels.iter().all(|kernel| launched.contains_key(*kernel)), "{launched:?}");
}

/// Sessions that both sides of a join need are computed once.
#[tokio::test]
async fn what_is_asked_twice_is_found_once() {
    let (cpu, sim) = (session(DeviceChoice::Cpu, Fallback::Allow, &[]), strict(&[]));
    for session in [&cpu, &sim] {
        register(session.context(), 200, 6);
    }
    let sql = "WITH s AS (SELECT k, session_id, id FROM sessionize('t', 'k', 't', 700))
        SELECT a.id, b.id FROM s a JOIN s b ON a.k = b.k AND a.session_id = b.session_id WHERE a.id < b.id";
    let (expected, found) = (answer(&cpu, sql).await, answer(&sim, sql).await);
    assert_eq!(rows(&found.batches, false), rows(&expected.batches, false));
    let launched = sim.engine().expect("a device").simulated().expect("it is simulated").launched();
    assert_eq!(launched.get("clicks_sessions"), Some(&1), "{launched:?}");

    let sql = "SELECT session_id, id FROM sessionize('t', 'k', 't', 700) UNION ALL
        SELECT session_id, -id FROM sessionize('t', 'k', 't', 100)";
    assert_eq!(rows(&answer(&sim, sql).await.batches, false), rows(&answer(&cpu, sql).await.batches, false));
    nothing_is_left(&sim, "twice").await;
}

#[tokio::test]
async fn what_stays_on_the_cpu_has_a_reason() {
    let many = |count: usize| (0..count).map(|n| format!("k + {n} AS k{n}")).collect::<Vec<_>>().join(", ");
    let names = |count: usize| (0..count).map(|n| format!("'k{n}'")).collect::<Vec<_>>().join(", ");
    let wide = format!("SELECT count(*) FROM sessionize('SELECT {}, t FROM t', [{}], 't', 1)", many(16), names(16));
    let (cpu, sim) = (
        session(DeviceChoice::Cpu, Fallback::Allow, &[]),
        session(DeviceChoice::Sim, Fallback::Allow, &[("batch_rows", 30)]),
    );
    for session in [&cpu, &sim] {
        register(session.context(), 100, 4);
    }
    for (sql, node, reason) in [
        (
            "SELECT count(*) FROM sessionize('t', 'k', 'u64', 3)",
            "SessionizeExec",
            "a time that BIGINT cannot hold is an error, which the CPU raises",
        ),
        (
            "SELECT * FROM last_n_before('SELECT k, t, id, buy, arrow_cast(arrow_cast(id, ''Dictionary(UInt32, Int32)''), ''Dictionary(Int32, Dictionary(UInt32, Int32))'') AS packed FROM t', 'k', ['t', 'id'], 'buy', 1)",
            "LastBeforeExec",
            "which has no device form",
        ),
        (wide.as_str(), "SessionizeExec", "sessionize has no device form: it has more than 16 columns to look at"),
    ] {
        let found = answer(&sim, sql).await;
        assert_eq!(rows(&found.batches, false), rows(&answer(&cpu, sql).await.batches, false), "{sql}");
        let text = plan(&sim, sql).await;
        assert!(text.lines().any(|line| line.trim().starts_with(node)), "{text}");
        assert!(found.report.reasons.iter().any(|said| said.contains(reason)), "{sql}: {:?}", found.report.reasons);
        assert!(found.report.operators_on_device < found.report.operators, "{sql}");
    }
    let error = batches(&sim, "SELECT * FROM sessionize('t', 'k', 't', -1)").await.expect_err("a gap below zero");
    assert!(error.to_string().contains("0 or more"), "{error}");
}

/// Queries of each function with operators above and below it.
const SOME: [&str; 4] = [SESSIONS[0], SESSIONS[6], PAIRS[4], BEFORE[1]];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_fault_the_cpu_answers() {
    let expected = expected(200, 3).await;
    for sql in SOME {
        for nth in [1, 2, 4, 7, 11, 16] {
            let what = format!("{sql}, lost at launch {nth}");
            let options = [("batch_rows", 64), ("debug_sim_lose_at_launch", nth)];
            let sim = session(DeviceChoice::Sim, Fallback::Allow, &options);
            register(sim.context(), 200, 3);
            assert_eq!(rows(&answer(&sim, sql).await.batches, false), expected[sql], "{what}");
            nothing_is_left(&sim, &what).await;
        }
        for nth in 1..=24 {
            let what = format!("{sql}, allocation {nth} fails");
            let options = [("batch_rows", 64), ("debug_sim_fail_allocation", nth)];
            let sim = session(DeviceChoice::Sim, Fallback::Allow, &options);
            register(sim.context(), 200, 3);
            assert_eq!(rows(&answer(&sim, sql).await.batches, false), expected[sql], "{what}");
            nothing_is_left(&sim, &what).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_short_memory_answers_are_the_same() {
    let expected = expected(600, 2).await;
    let mut fitted = 0;
    for sql in SOME {
        let free = strict(&[("batch_rows", 64)]);
        register(free.context(), 600, 2);
        let peak = answer(&free, sql).await.report.peak_bytes as usize;
        for limit in [1, peak / 4, peak / 2, peak * 3 / 4] {
            let what = format!("{sql} in {limit} of {peak} bytes");
            let options = [("batch_rows", 64), ("memory_limit_bytes", limit)];
            let sim = session(DeviceChoice::Sim, Fallback::Allow, &options);
            register(sim.context(), 600, 2);
            let found = answer(&sim, sql).await;
            assert_eq!(rows(&found.batches, false), expected[sql], "{what}");
            assert!(limit > 1 || found.report.notes.iter().any(|note| note.contains("on the CPU")), "{what}");
            fitted += usize::from(all_on_the_device(&found.report));
            nothing_is_left(&sim, &what).await;

            let sim = session(DeviceChoice::Sim, Fallback::Error, &options);
            register(sim.context(), 600, 2);
            if let Err(refused) = sim.execute(sql).await {
                assert!(refused.to_string().contains("out of device memory"), "{what}: {refused}");
                assert!(error::is_forbidden_fallback(&refused), "{what}: {refused}");
            }
            nothing_is_left(&sim, &what).await;
        }
    }
    assert!(fitted > 0, "no query took less than its peak");
}

/// A dropped query releases everything, at any point of its run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_is_dropped_leaves_nothing() {
    for sql in SOME {
        let sim = strict(&[("batch_rows", 30)]);
        register(sim.context(), 400, 2);
        for polls in [1, 2, 3, 5, 8, 13, 21] {
            let mut asked = Box::pin(sim.execute(sql));
            for _ in 0..polls {
                if futures::poll!(&mut asked).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(asked);
            nothing_is_left(&sim, sql).await;
        }
        answer(&sim, sql).await;
        nothing_is_left(&sim, sql).await;
    }
}
