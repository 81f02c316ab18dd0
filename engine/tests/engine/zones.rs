//! Time zones whose offset changes: around each change, in each unit, the simulated device says what DataFusion says on
//! the CPU.
//!
//!   changes of a zone ─► instants 1 s and 1 ns around them, and local times that come twice or never ─► cpu = sim
//!
//! Zones    an hour, half an hour, a change at midnight, a day left out, and one that no longer changes.
//! Far      before the first change and after the last, where the crate of time zones goes on with one offset.

use std::sync::Arc;

use millpond::datafusion::arrow::array::timezone::Tz;
use millpond::datafusion::arrow::array::{
    ArrayRef, Date32Array, Int64Array, TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    TimestampSecondArray,
};
use millpond::datafusion::arrow::datatypes::TimestampSecondType;
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::temporal_conversions::as_datetime_with_timezone;
use millpond::datafusion::datasource::MemTable;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::support::session_with;

const NEW_YORK: &str = "America/New_York";
const ZONES: [&str; 6] =
    [NEW_YORK, "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia"];
const BILLION: i64 = 1_000_000_000;
const HOUR: i64 = 3_600;
const UNITS: [&str; 4] = ["ns", "us", "ms", "s"];

fn ahead(zone: Tz, second: i64) -> i64 {
    let local = as_datetime_with_timezone::<TimestampSecondType>(second, zone).expect("it is in the calendar");
    local.naive_local().and_utc().timestamp() - second
}

/// The seconds at which the offset changes, day by day and then second by second.
fn changes(zone: Tz, years: std::ops::Range<i64>) -> Vec<i64> {
    let second = |year: i64| (year - 1970) * 31_556_952;
    let mut found = vec![];
    let mut from = second(years.start);
    while from < second(years.end) {
        let (mut earlier, mut later) = (from, from + 86_400);
        from = later;
        if ahead(zone, earlier) == ahead(zone, later) {
            continue;
        }
        while later - earlier > 1 {
            let middle = (earlier + later) / 2;
            if ahead(zone, middle) == ahead(zone, earlier) { earlier = middle } else { later = middle }
        }
        found.push(later);
    }
    found
}

/// Nanoseconds around changes, and far from all of them.
fn instants(zone: Tz) -> Vec<i64> {
    let mut changes: Vec<i64> = [1880..1948, 1966..1970, 2005..2013, 2037..2039, 2098..2101]
        .into_iter()
        .flat_map(|years| changes(zone, years))
        .collect();
    changes.truncate(60);
    let around = |at: &i64| {
        let at = at * BILLION;
        let half_an_hour = 1_800 * BILLION;
        // A day before the last one leads to a local time that occurs twice, or never.
        [at - BILLION, at - 1, at, at + 1, at + BILLION, at - half_an_hour, at + half_an_hour, at - 47 * half_an_hour]
    };
    let years = [-9_200_000_000, -5_000_000_000, -2_208_988_800, 0, 1_700_000_000, 4_102_444_800, 9_200_000_000];
    changes.iter().flat_map(around).chain(years.map(|second| second * BILLION + 123_456_789)).collect()
}

/// `ns`, `us`, `ms`, `s` in the zone, and the local times of both offsets around each instant as `l_ns` and so on;
/// every ninth is NULL.
fn table(name: &str) -> RecordBatch {
    let zone: Tz = name.parse().expect("a zone");
    let instants = instants(zone);
    let ticks = |per: i64| -> Vec<Option<i64>> {
        instants.iter().enumerate().map(|(row, at)| (row % 9 != 4).then(|| at.div_euclid(per))).collect()
    };
    let local = |row: usize, at: i64| {
        let second = at.div_euclid(BILLION);
        at + BILLION * ahead(zone, second + [-HOUR, HOUR, 0][row % 3])
    };
    let locals = |per: i64| -> Vec<Option<i64>> {
        let of = |(row, at): (usize, &i64)| (row % 9 != 5).then(|| local(row, *at).div_euclid(per));
        instants.iter().enumerate().map(of).collect()
    };
    // From -60000 to 90000, and seconds at which tables begin and end.
    let far = [-2_000_000_000_000, -62_135_596_800, -7_000_000_000, 4_133_980_800, 20_000_000_000, 2_800_000_000_000];
    let far: Vec<i64> = (0..instants.len()).map(|row| far[row % far.len()] + row as i64 * 86_399).collect();
    let days = locals(86_400 * BILLION).into_iter().map(|day| day.map(|day| day as i32));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new((0..instants.len() as i64).collect::<Int64Array>())),
        ("ns", Arc::new(TimestampNanosecondArray::from(ticks(1)).with_timezone(name))),
        ("us", Arc::new(TimestampMicrosecondArray::from(ticks(1_000)).with_timezone(name))),
        ("ms", Arc::new(TimestampMillisecondArray::from(ticks(1_000_000)).with_timezone(name))),
        ("s", Arc::new(TimestampSecondArray::from(ticks(BILLION)).with_timezone(name))),
        ("far", Arc::new(TimestampSecondArray::from(far).with_timezone(name))),
        ("l_ns", Arc::new(TimestampNanosecondArray::from(locals(1)))),
        ("l_us", Arc::new(TimestampMicrosecondArray::from(locals(1_000)))),
        ("l_ms", Arc::new(TimestampMillisecondArray::from(locals(1_000_000)))),
        ("l_s", Arc::new(TimestampSecondArray::from(locals(BILLION)))),
        ("day", Arc::new(days.collect::<Date32Array>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, name != "id")))
        .expect("columns have one length")
}

struct Pair {
    cpu: Millpond,
    sim: Millpond,
}

async fn pair(zone: &str, batch_rows: usize) -> Pair {
    let pair = Pair {
        cpu: session_with(DeviceChoice::Cpu, 1, Fallback::Allow),
        sim: session_with(DeviceChoice::Sim, 1, Fallback::Error),
    };
    let batch = table(zone);
    for session in [&pair.cpu, &pair.sim] {
        let table = MemTable::try_new(batch.schema(), vec![vec![batch.clone()]]).expect("a batch is a table");
        session.context().register_table("v", Arc::new(table)).expect("the name is free");
        for set in [
            format!("SET datafusion.execution.time_zone = '{zone}'"),
            format!("SET millpond.batch_rows = {batch_rows}"),
        ] {
            session.execute(&set).await.expect("an option is set");
        }
    }
    pair
}

/// How the device's answer differs from the CPU's; what the CPU refuses is to be refused.
async fn difference(pair: &Pair, sql: &str) -> Option<String> {
    let (expected, actual) = (pair.cpu.execute(sql).await, pair.sim.execute(sql).await);
    match (expected, actual) {
        (Ok(expected), Ok(actual)) => {
            let report = &actual.report;
            if report.launches == 0 || !report.notes.is_empty() || !report.findings.is_empty() {
                return Some(format!("notes {:?}, findings {:?}", report.notes, report.findings));
            }
            let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
            answer(&expected).difference(&answer(&actual), false)
        }
        (Err(_), Err(_)) => Some("both refuse".into()),
        (Err(error), Ok(_)) => Some(format!("the CPU refuses: {}", error.strip_backtrace())),
        (Ok(_), Err(error)) => Some(error.strip_backtrace()),
    }
}

async fn agree(zone: &str, batch_rows: usize, expressions: &[String]) {
    let pair = pair(zone, batch_rows).await;
    let mut failures = Vec::new();
    for some in expressions.chunks(10) {
        let columns: Vec<String> = some.iter().enumerate().map(|(at, e)| format!("{e} AS e{at}")).collect();
        if difference(&pair, &format!("SELECT id, {} FROM v", columns.join(", "))).await.is_none() {
            continue;
        }
        for one in some {
            if let Some(said) = difference(&pair, &format!("SELECT id, {one} AS e FROM v")).await {
                failures.push(format!("{zone} {one}: {said}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} expressions differ:\n{}", failures.len(), failures.join("\n"));
}

/// The units that a zone is tried with: all for one zone, one for each of the others.
fn units(at: usize) -> &'static [&'static str] {
    if at == 0 { &UNITS } else { &UNITS[at % 4..=at % 4] }
}

#[tokio::test]
async fn fields_are_those_of_local_time() {
    let parts = "year isoyear quarter month week day doy dow isodow hour minute second millisecond microsecond nanosecond epoch";
    for (at, zone) in ZONES.into_iter().enumerate() {
        let each =
            |unit: &&str| parts.split(' ').map(|part| format!("date_part('{part}', {unit})")).collect::<Vec<_>>();
        let all: Vec<String> = units(at).iter().chain(&["far"]).flat_map(each).collect();
        agree(zone, [1 << 20, 100, 30][at % 3], &all).await;
    }
}

#[tokio::test]
async fn periods_begin_in_local_time() {
    for (at, zone) in ZONES.into_iter().enumerate() {
        let mut all = vec![];
        for grain in "microsecond millisecond second minute hour day week month quarter year".split(' ') {
            all.extend(units(at).iter().map(|unit| format!("date_trunc('{grain}', {unit})")));
        }
        all.push(format!("date_bin(INTERVAL '1 day', {})", units(at)[0]));
        agree(zone, [1 << 20, 100, 30][at % 3], &all).await;
    }
}

#[tokio::test]
async fn local_times_become_instants_and_back() {
    for (at, zone) in ZONES.into_iter().enumerate() {
        let mut all = vec![];
        for unit in UNITS {
            all.push(format!("to_local_time({unit})"));
            all.push(format!("arrow_cast({unit}, 'Date32')"));
            all.push(format!("arrow_cast({unit}, 'Time64(Nanosecond)')"));
            all.push(format!("arrow_cast({unit}, 'Timestamp(Microsecond, None)')"));
            all.push(format!("{unit} AT TIME ZONE 'Europe/Berlin'"));
            // NULL where there is no instant, or two.
            all.push(format!("TRY_CAST(l_{unit} AS TIMESTAMP WITH TIME ZONE)"));
        }
        all.push("to_local_time(far)".into());
        all.push("TRY_CAST(day AS TIMESTAMP WITH TIME ZONE)".into());
        agree(zone, [1 << 20, 100, 30][at % 3], &all).await;
    }
}

#[tokio::test]
async fn months_and_days_are_those_of_local_time() {
    for (at, zone) in ZONES.into_iter().enumerate() {
        let mut all = vec![];
        // In the middle of a day no clock is changed; Samoa left a whole one out.
        for unit in units(at) {
            let of = format!(
                "CASE WHEN id % 8 < 7 AND date_part('hour', {unit}) BETWEEN 5 AND 20 \
                 AND abs(date_part('year', {unit}) - 1970) < 200 AND date_part('year', {unit}) <> 2011 THEN {unit} END"
            );
            for interval in
                ["1 day", "1 month", "7 months 3 days", "1 month -1 day", "36 hours", "2 days 12 hours", "3 seconds"]
            {
                all.push(format!("{of} + INTERVAL '{interval}'"));
                all.push(format!("{of} - INTERVAL '{interval}'"));
            }
        }
        agree(zone, [1 << 20, 100, 30][at % 3], &all).await;
    }
}

/// A query that fails on the CPU fails with the same message, whether the device or the CPU detects the error.
#[tokio::test]
async fn local_times_that_are_no_instant_are_refused() {
    let pair = pair(NEW_YORK, 1 << 20).await;
    let allowed = session_with(DeviceChoice::Sim, 1, Fallback::Allow);
    let batch = table(NEW_YORK);
    let of = MemTable::try_new(batch.schema(), vec![vec![batch]]).expect("a batch is a table");
    allowed.context().register_table("v", Arc::new(of)).expect("the name is free");
    for of in ["l_ns AT TIME ZONE 'America/New_York'", "ns + INTERVAL '1 day'", "s + INTERVAL '1 day 1 second'"] {
        let sql = format!("SELECT id, {of} FROM v");
        let expected = pair.cpu.execute(&sql).await.err().map(|error| error.strip_backtrace());
        let actual = allowed.execute(&sql).await.err().map(|error| error.strip_backtrace());
        assert!(expected.is_some(), "{sql}");
        assert_eq!(expected, actual, "{sql}");
    }
}

#[tokio::test]
async fn zones_group_and_join_as_local_time_does() {
    let pair = pair(NEW_YORK, 30).await;
    for sql in [
        "SELECT date_trunc('day', us) AS d, count(*), min(ns), max(s) FROM v GROUP BY 1",
        "SELECT count(*) FROM v WHERE date_part('hour', ms) = 1",
        "SELECT a.id, b.id FROM v a JOIN v b ON date_trunc('hour', a.s) = b.s",
        "SELECT id FROM v ORDER BY date_part('minute', ns), id LIMIT 20",
        "SELECT id FROM v WHERE s < arrow_cast(TIMESTAMP '2007-06-01T12:00:00', 'Timestamp(Second, Some(\"America/New_York\"))')",
    ] {
        assert_eq!(difference(&pair, sql).await, None, "{sql}");
    }
}
