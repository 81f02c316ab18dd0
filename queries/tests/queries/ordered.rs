//! Sessions, pairs and earlier rows compared with row-by-row code.
//!
//! ```text
//!   random rows with NULLs and ties ─┬─ SQL, for several partitions and batch sizes ──┐
//!                                    └─ a loop over sorted rows in this file ──────────┴─► equal rows
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millpond::DeviceChoice;
use millpond::datafusion::arrow::array::{
    ArrayRef, BooleanArray, Int32Array, Int64Array, StringArray, TimestampMillisecondArray, UInt64Array,
};
use millpond::datafusion::prelude::SessionContext;
use millpond_queries::functions::WorkloadFrame;

use crate::support::{Numbers, query, refusal, rows, session, session_on, table};

/// (user, time, item, sale)
type Click = (Option<i64>, Option<i64>, i64, Option<i64>);

fn clicks(count: usize) -> Vec<Click> {
    let mut numbers = Numbers(11);
    let mut clicks = vec![];
    for _ in 0..count {
        // Few users and times, so that ties and gaps of exactly 100 are frequent; a third of all clicks is of user 3.
        let user =
            [Some(1), Some(2), Some(3), Some(3), Some(3), Some(7), Some(8), None, Some(-5)][numbers.below(9) as usize];
        let time = (numbers.below(20) > 0).then(|| (numbers.below(300) * 50) as i64);
        let sale = (numbers.below(3) == 0).then(|| 1 + numbers.below(5) as i64);
        clicks.push((user, time, 1 + numbers.below(12) as i64, sale));
    }
    clicks
}

fn register(context: &SessionContext, clicks: &[Click], partitions: usize) {
    let column = |f: fn(&Click) -> Option<i64>| Arc::new(clicks.iter().map(f).collect::<Int64Array>()) as ArrayRef;
    let buys: BooleanArray = clicks.iter().map(|click| Some(click.3.is_some() && click.2 <= 4)).collect();
    let columns = vec![
        ("usr", column(|click| click.0)),
        ("ts", column(|click| click.1)),
        ("itm", column(|click| Some(click.2))),
        ("sale", column(|click| click.3)),
        ("buy", Arc::new(buys) as ArrayRef),
    ];
    table(context, "clicks", partitions, columns);
}

/// A row of numbers as text.
fn text(values: &[Option<i64>]) -> Vec<String> {
    values.iter().map(|value| value.map_or("NULL".to_string(), |value| value.to_string())).collect()
}

/// Each click with a user and a time, and its session: one pass after a sort.
fn sessions(clicks: &[Click], gap: i64) -> Vec<(i64, i64, i64, Option<i64>, i64)> {
    let mut known: Vec<(i64, i64, i64, Option<i64>)> =
        clicks.iter().filter_map(|(user, time, item, sale)| Some(((*user)?, (*time)?, *item, *sale))).collect();
    known.sort();
    let mut result: Vec<(i64, i64, i64, Option<i64>, i64)> = vec![];
    for (user, time, item, sale) in known {
        let session = match result.last() {
            Some(last) if last.0 == user => last.4 + i64::from(time - last.1 > gap),
            _ => 0,
        };
        result.push((user, time, item, sale, session));
    }
    result
}

#[tokio::test]
async fn sessions_are_those_of_one_pass_over_sorted_rows() {
    let clicks = clicks(2_000);
    for (gap, partitions, batch_rows) in [(100, 1, 8192), (100, 4, 7), (0, 3, 64), (1_000_000, 2, 1)] {
        let session = session_on(DeviceChoice::Cpu, partitions, batch_rows);
        register(session.context(), &clicks, partitions);
        let mut expected: Vec<Vec<String>> = sessions(&clicks, gap)
            .into_iter()
            .map(|(user, time, item, sale, id)| text(&[Some(user), Some(time), Some(item), sale, Some(id)]))
            .collect();
        expected.sort();
        let sql = format!("SELECT usr, ts, itm, sale, session_id FROM sessionize('clicks', 'usr', 'ts', {gap})");
        assert_eq!(query(&session, &sql).await, expected, "gap {gap}, {partitions} partitions");
    }
}

#[tokio::test]
async fn sessions_are_those_of_the_specification_in_sql() {
    let session = session();
    register(session.context(), &clicks(1_500), 3);
    let windows = "
        WITH known AS (SELECT usr, ts, itm FROM clicks WHERE usr IS NOT NULL AND ts IS NOT NULL),
        gaps AS (SELECT *, CASE WHEN ts - LAG(ts) OVER (PARTITION BY usr ORDER BY ts) > 100 THEN 1 ELSE 0 END AS brk FROM known)
        SELECT usr, ts, itm, SUM(brk) OVER (PARTITION BY usr ORDER BY ts RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS sid
        FROM gaps";
    let ours = "SELECT usr, ts, itm, session_id FROM sessionize('clicks', 'usr', 'ts', 100)";
    assert_eq!(query(&session, ours).await, query(&session, windows).await);
}

#[tokio::test]
async fn keys_may_be_several_columns_and_of_any_kind() {
    let session = session();
    let device = StringArray::from(vec![Some("tv"), Some("tv"), Some("pc"), None, Some("pc"), Some("tv")]);
    let user = Int32Array::from(vec![1, 1, 1, 1, 1, 2]);
    let time = TimestampMillisecondArray::from(vec![0, 60_000, 0, 0, 60_001, 0]);
    let columns: Vec<(&str, ArrayRef)> =
        vec![("device", Arc::new(device)), ("who", Arc::new(user)), ("at", Arc::new(time))];
    table(session.context(), "visits", 2, columns);
    // A timestamp gap is in seconds: 60 s continue a session, 60.001 s do not.
    let sql = "SELECT device, who, session_id FROM sessionize('visits', ['device', 'who'], 'at', 60)";
    let expected = [["pc", "1", "0"], ["pc", "1", "1"], ["tv", "1", "0"], ["tv", "1", "0"], ["tv", "2", "0"]]
        .map(|row| row.map(str::to_string).to_vec());
    assert_eq!(query(&session, sql).await, expected);
}

#[tokio::test]
async fn times_at_the_ends_of_their_type_do_not_overflow() {
    let session = session();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new(Int64Array::from(vec![1, 1, 1]))),
        ("t", Arc::new(Int64Array::from(vec![i64::MIN, i64::MAX, 0]))),
        ("u", Arc::new(UInt64Array::from(vec![0, 5, u64::MAX]))),
    ];
    table(session.context(), "ends", 1, columns);
    let sql = "SELECT t, session_id FROM sessionize('ends', 'k', 't', 9223372036854775807)";
    let expected = [["-9223372036854775808", "0"], ["0", "1"], ["9223372036854775807", "1"]];
    let mut found = query(&session, sql).await;
    found.sort_by_key(|row| row[0].parse::<i64>().expect("a number"));
    assert_eq!(found, expected.map(|row| row.map(str::to_string).to_vec()));
    let error = refusal(&session, "SELECT * FROM sessionize('ends', 'k', 'u', 1)").await;
    assert!(
        error.contains("column 'u' has a time that BIGINT cannot hold") && error.contains("subtract a constant"),
        "{error}"
    );
}

/// Each pair of distinct elements in a group.
fn pairs(clicks: &[Click]) -> Vec<(i64, i64, i64)> {
    let mut groups: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
    for (_, time, item, _) in clicks {
        if let Some(time) = time {
            groups.entry(*time).or_default().insert(*item);
        }
    }
    let mut pairs = vec![];
    for (group, items) in groups {
        for first in &items {
            pairs.extend(items.iter().filter(|second| *second > first).map(|second| (group, *first, *second)));
        }
    }
    pairs
}

#[tokio::test]
async fn pairs_are_those_of_a_loop_over_each_group() {
    let clicks = clicks(2_000);
    let expected: Vec<(i64, i64, i64)> = pairs(&clicks);
    assert!(expected.len() > 3_000);
    for (partitions, batch_rows) in [(1, 8192), (4, 7), (2, 1)] {
        let session = session_on(DeviceChoice::Cpu, partitions, batch_rows);
        register(session.context(), &clicks, partitions);
        let found = query(&session, "SELECT ts, itm_1, itm_2 FROM basket_pairs('clicks', 'ts', 'itm')").await;
        let mut expected: Vec<_> = expected.iter().map(|(t, a, b)| text(&[Some(*t), Some(*a), Some(*b)])).collect();
        expected.sort();
        assert_eq!(found, expected, "{partitions} partitions of {batch_rows} rows");
    }
}

#[tokio::test]
async fn pairs_are_those_of_a_self_join() {
    let session = session();
    register(session.context(), &clicks(1_000), 2);
    let join = "
        WITH seen AS (SELECT DISTINCT usr, ts, itm FROM clicks)
        SELECT a.itm AS one, b.itm AS other, COUNT(*) AS cnt FROM seen a JOIN seen b
        ON a.usr = b.usr AND a.ts = b.ts AND a.itm < b.itm GROUP BY a.itm, b.itm";
    let ours =
        "SELECT itm_1, itm_2, COUNT(*) AS cnt FROM basket_pairs('clicks', ['usr', 'ts'], 'itm') GROUP BY itm_1, itm_2";
    assert_eq!(query(&session, ours).await, query(&session, join).await);
}

#[tokio::test]
async fn one_group_may_be_far_larger_than_a_batch() {
    let session = session_on(DeviceChoice::Cpu, 2, 32);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("g", Arc::new(StringArray::from(vec!["all"; 600]))),
        ("e", Arc::new((0..600).map(|i| Some(format!("e{:03}", i % 300))).collect::<StringArray>())),
    ];
    table(session.context(), "one", 3, columns);
    let found = query(
        &session,
        "SELECT COUNT(*), MIN(e_1), MAX(e_2), COUNT(*) FILTER (WHERE e_1 >= e_2) FROM basket_pairs('one', 'g', 'e')",
    )
    .await;
    assert_eq!(found, [["44850", "e000", "e299", "0"].map(str::to_string).to_vec()]);
}

/// For each purchase, up to `n` earlier clicks of its user, by (time, sale or 0, item).
fn before(clicks: &[Click], n: usize, within: Option<i64>) -> Vec<Vec<Option<i64>>> {
    let mut users: BTreeMap<i64, Vec<(Option<i64>, i64, i64)>> = BTreeMap::new();
    for (user, time, item, sale) in clicks {
        if let Some(user) = user {
            users.entry(*user).or_default().push((*time, sale.unwrap_or(0), *item));
        }
    }
    let mut found = vec![];
    for (user, mut rows) in users {
        rows.sort();
        for (index, (time, sale, item)) in rows.iter().enumerate() {
            if *sale == 0 || *item > 4 {
                continue;
            }
            for (steps, earlier) in rows[..index].iter().rev().take(n).enumerate() {
                let near = match (within, time, earlier.0) {
                    (None, _, _) => true,
                    (Some(within), Some(time), Some(earlier)) => earlier >= time - within,
                    _ => false,
                };
                if near {
                    found.push(vec![
                        Some(user),
                        *time,
                        Some(*item),
                        earlier.0,
                        Some(earlier.2),
                        Some(steps as i64 + 1),
                    ]);
                }
            }
        }
    }
    found
}

#[tokio::test]
async fn earlier_rows_are_those_of_a_loop_back_from_each_anchor() {
    let clicks = clicks(1_500);
    for (n, within, partitions, batch_rows) in [
        (5, Some(900), 1, 8192),
        (5, Some(900), 4, 3),
        (1, None, 2, 64),
        (10_000, Some(100), 3, 50),
        (3, Some(0), 2, 1),
    ] {
        let session = session_on(DeviceChoice::Cpu, partitions, batch_rows);
        register(session.context(), &clicks, partitions);
        let mut expected: Vec<_> = before(&clicks, n, within).iter().map(|row| text(row)).collect();
        expected.sort();
        assert!(expected.len() > 20);
        let within = within.map_or(String::new(), |within| format!(", {within}"));
        let sql = format!(
            "SELECT usr, anchor_ts, anchor_itm, ts, itm, steps_before FROM last_n_before(
                 'SELECT usr, ts, COALESCE(sale, 0) AS sale, itm, buy FROM clicks', 'usr', ['ts', 'sale', 'itm'], 'buy', {n}{within})"
        );
        assert_eq!(query(&session, &sql).await, expected, "n {n}{within}, {partitions} partitions of {batch_rows}");
    }
}

#[tokio::test]
async fn earlier_rows_are_those_of_the_specification_in_sql() {
    let session = session();
    register(session.context(), &clicks(1_500), 3);
    let numbered = "
        WITH ord AS (SELECT *, ROW_NUMBER() OVER (PARTITION BY usr ORDER BY ts, COALESCE(sale, 0), itm) AS rn
                     FROM clicks WHERE usr IS NOT NULL AND ts IS NOT NULL),
        buy AS (SELECT usr, rn, ts FROM ord WHERE buy)
        SELECT v.itm, COUNT(*) FROM buy p JOIN ord v
        ON v.usr = p.usr AND v.rn BETWEEN p.rn - 5 AND p.rn - 1 AND v.ts >= p.ts - 700 GROUP BY v.itm";
    let ours = "SELECT itm, COUNT(*) FROM last_n_before(
        'SELECT usr, ts, COALESCE(sale, 0) AS s, itm, buy FROM clicks WHERE ts IS NOT NULL', 'usr', ['ts', 's', 'itm'], 'buy', 5, 700)
        GROUP BY itm";
    assert_eq!(query(&session, ours).await, query(&session, numbered).await);
}

#[tokio::test]
async fn no_rows_give_no_rows() {
    let session = session();
    register(session.context(), &[], 2);
    for sql in [
        "SELECT * FROM sessionize('clicks', 'usr', 'ts', 1)",
        "SELECT * FROM basket_pairs('clicks', 'usr', 'itm')",
        "SELECT * FROM last_n_before('clicks', 'usr', 'ts', 'buy', 3)",
    ] {
        assert_eq!(query(&session, sql).await, Vec::<Vec<String>>::new(), "{sql}");
    }
}

#[tokio::test]
async fn frames_give_what_sql_gives_also_where_nothing_is_registered() {
    let clicks = clicks(300);
    let plain = SessionContext::new();
    register(&plain, &clicks, 2);
    let session = session();
    register(session.context(), &clicks, 2);
    let frame = || async { plain.table("clicks").await.expect("the table is there") };
    let collected = |frame: millpond::datafusion::error::Result<millpond::datafusion::dataframe::DataFrame>| async {
        rows(&frame.expect("the call is right").collect().await.expect("it runs"), false)
    };
    let sessions = collected(frame().await.sessionize(&["usr"], "ts", 100)).await;
    assert_eq!(sessions, query(&session, "SELECT * FROM sessionize('clicks', 'usr', 'ts', 100)").await);
    let pairs = collected(frame().await.basket_pairs(&["ts"], "itm")).await;
    assert_eq!(pairs, query(&session, "SELECT * FROM basket_pairs('clicks', 'ts', 'itm')").await);
    let before = collected(frame().await.last_n_before(&["usr"], &["ts", "sale", "itm"], "buy", 2, None)).await;
    let sql = "SELECT * FROM last_n_before('clicks', 'usr', ['ts', 'sale', 'itm'], 'buy', 2)";
    assert_eq!(before, query(&session, sql).await);
}
