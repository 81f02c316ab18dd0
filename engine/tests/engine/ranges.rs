//! RANGE frames of keys of every type whose values lie in fewer bits than the type has, with NULLs among them.
//!
//!   BIGINT 0, 1, 5, NULL, NULL, stored in a byte each        2592000000 PRECEDING reaches no NULL, and leaves no type
//!
//! Expected  by SQL's definition, by hand; the first case is also DuckDB's. Keys at the ends of their type:
//!           DataFusion's answers.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Int64Array};
use millpond::datafusion::arrow::compute::cast;
use millpond::datafusion::arrow::datatypes::{DataType, TimeUnit};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::edges::write_parquet;
use crate::support::session_with;

/// Types of keys, and a distance that leads from 5 to the last of them or nearly so, beyond whatever few bits hold 5.
fn types() -> Vec<(&'static str, DataType, &'static str)> {
    let time = |unit| DataType::Timestamp(unit, None);
    vec![
        ("i8", DataType::Int8, "122"),
        ("i16", DataType::Int16, "32762"),
        ("i32", DataType::Int32, "2147483642"),
        ("i64", DataType::Int64, "9223372036854775802"),
        ("u8", DataType::UInt8, "250"),
        ("u16", DataType::UInt16, "65530"),
        ("u32", DataType::UInt32, "4294967290"),
        ("u64", DataType::UInt64, "9223372036854775807"),
        ("day", DataType::Date32, "INTERVAL '90000000 days'"),
        ("s", time(TimeUnit::Second), "INTERVAL '100000 days'"),
        ("ms", time(TimeUnit::Millisecond), "INTERVAL '30 days'"),
        ("us", time(TimeUnit::Microsecond), "INTERVAL '1 day'"),
        ("ns", time(TimeUnit::Nanosecond), "INTERVAL '100000 days'"),
    ]
}

/// A table with a column of each type, and weights `w` of 1, 2, 4, 8 and so on.
fn table(of: impl Fn(&DataType) -> Vec<Option<i64>>) -> RecordBatch {
    let column = |(name, data_type, _): (&'static str, DataType, _)| {
        let whole = Arc::new(Int64Array::from(of(&data_type))) as ArrayRef;
        // No cast leads from 64 bits to days except via 32.
        let whole = if data_type == DataType::Date32 { cast(&whole, &DataType::Int32).unwrap() } else { whole };
        (name, cast(&whole, &data_type).expect("the numbers are of the type"), true)
    };
    let rows = of(&DataType::Int64).len();
    let weights = Arc::new((0..rows).map(|row| 1_i64 << row).collect::<Int64Array>()) as ArrayRef;
    let columns = types().into_iter().map(column).chain([("w", weights, false)]);
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

async fn session(device: DeviceChoice, table: &RecordBatch, folder: &tempfile::TempDir) -> Millpond {
    let path = folder.path().join("t.parquet");
    write_parquet(table, &path, 4);
    let session = session_with(device, 2, Fallback::Allow);
    session.context().register_parquet("t", path.to_str().unwrap(), Default::default()).await.expect("read");
    session
}

/// Sums of weights, in the order of the weights.
async fn sums(session: &Millpond, sql: &str) -> Vec<String> {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(result.report.findings, Vec::<String>::new(), "{sql}");
    if session.engine().is_some() {
        assert_eq!(result.report.reasons, Vec::<String>::new(), "{sql}");
    }
    let mut rows = Vec::new();
    for batch in result.batches {
        let options = FormatOptions::default().with_null("NULL");
        let column = ArrayFormatter::try_new(batch.column(0), &options).expect("it has a text");
        rows.extend((0..batch.num_rows()).map(|row| column.value(row).to_string()));
    }
    rows
}

fn query(order: &str, frame: &str) -> String {
    format!("SELECT sum(w) OVER (ORDER BY {order} RANGE BETWEEN {frame}) FROM t ORDER BY w")
}

fn near(_: &DataType) -> Vec<Option<i64>> {
    vec![Some(0), Some(1), Some(5), None, None]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distances_reach_as_far_as_the_type_of_a_key_that_lies_in_fewer_bits() {
    let folder = tempfile::tempdir().unwrap();
    let sim = session(DeviceChoice::Sim, &table(near), &folder).await;
    for cache in ["auto", "auto", "off"] {
        sim.context().sql(&format!("SET millpond.cache = {cache}")).await.expect("an option");
        for (key, _, by) in types() {
            for (order, frame, expected) in [
                ("DESC NULLS FIRST", format!("{by} PRECEDING AND CURRENT ROW"), ["7", "6", "4", "24", "24"]),
                ("ASC NULLS LAST", format!("CURRENT ROW AND {by} FOLLOWING"), ["7", "6", "4", "24", "24"]),
                ("ASC NULLS FIRST", format!("{by} PRECEDING AND CURRENT ROW"), ["1", "3", "7", "24", "24"]),
                ("DESC NULLS LAST", format!("CURRENT ROW AND {by} FOLLOWING"), ["1", "3", "7", "24", "24"]),
                ("ASC NULLS LAST", format!("{by} FOLLOWING AND UNBOUNDED FOLLOWING"), ["24", "24", "24", "24", "24"]),
                ("ASC NULLS LAST", format!("{by} PRECEDING AND {by} FOLLOWING"), ["7", "7", "7", "24", "24"]),
            ] {
                let sql = query(&format!("{key} {order}"), &frame);
                assert_eq!(sums(&sim, &sql).await, expected, "{sql}, cache {cache}");
            }
        }
    }
}

/// Milliseconds of thirty days, and times near 1970, of which a stored column has 32 bits at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_days_in_milliseconds_reach_no_null() {
    let folder = tempfile::tempdir().unwrap();
    let milliseconds = |_: &DataType| vec![Some(0), Some(100), Some(120), None, None];
    let sim = session(DeviceChoice::Sim, &table(milliseconds), &folder).await;
    for (order, frame) in [
        ("i64 DESC", "2592000000 PRECEDING AND CURRENT ROW"),
        ("i64 * 50 DESC", "2592000000 PRECEDING AND CURRENT ROW"),
        ("to_timestamp_micros(i64 * 50) DESC", "INTERVAL '1 day' PRECEDING AND CURRENT ROW"),
        ("u64 DESC", "5000000000 PRECEDING AND CURRENT ROW"),
    ] {
        let sql = query(order, frame);
        assert_eq!(sums(&sim, &sql).await, ["7", "6", "4", "24", "24"], "{sql}");
    }
}

/// Keys of the last numbers of 32 bits in a type of 64: no end of theirs is near.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_width_is_no_end_of_a_type() {
    let folder = tempfile::tempdir().unwrap();
    let last = |of: &DataType| match of {
        DataType::Int64 | DataType::UInt64 | DataType::Timestamp(..) => {
            vec![Some(i64::from(i32::MAX) - 1), Some(i64::from(i32::MAX)), None]
        }
        _ => vec![Some(0), Some(1), None],
    };
    let sim = session(DeviceChoice::Sim, &table(last), &folder).await;
    for (key, by) in [("i64", "2"), ("u64", "2"), ("s", "INTERVAL '2 seconds'"), ("ns", "INTERVAL '1 second'")] {
        let sql = query(key, &format!("CURRENT ROW AND {by} FOLLOWING"));
        assert_eq!(sums(&sim, &sql).await, ["3", "2", "4"], "{sql}");
        let sql = query(&format!("{key} DESC"), &format!("{by} PRECEDING AND CURRENT ROW"));
        assert_eq!(sums(&sim, &sql).await, ["3", "2", "4"], "{sql}");
    }
}

/// Keys at both ends of their type.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_at_the_ends_of_a_type_are_those_of_datafusion() {
    let ends = |of: &DataType| {
        let (low, high) = match of {
            DataType::Int8 => (i8::MIN.into(), i8::MAX.into()),
            DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
            DataType::Int32 => (i32::MIN.into(), i32::MAX.into()),
            DataType::UInt8 => (0, u8::MAX.into()),
            DataType::UInt16 => (0, u16::MAX.into()),
            DataType::UInt32 => (0, u32::MAX.into()),
            DataType::UInt64 => (0, i64::MAX),
            DataType::Date32 => (-96_465_292, 95_026_236),
            DataType::Timestamp(TimeUnit::Second, _) => (-8_334_601_228_800, 8_210_266_876_799),
            DataType::Timestamp(TimeUnit::Millisecond, _) => (-8_334_601_228_800_000, 8_210_266_876_799_999),
            DataType::Timestamp(TimeUnit::Microsecond, _) => (-8_334_601_228_800_000_000, 8_210_266_876_799_999_999),
            _ => (i64::MIN, i64::MAX),
        };
        vec![Some(low), Some(low + 1), Some(low + 4), Some(high - 3), Some(high - 1), Some(high), None, None]
    };
    let folder = tempfile::tempdir().unwrap();
    let [sim, cpu] = [
        session(DeviceChoice::Sim, &table(ends), &folder).await,
        session(DeviceChoice::Cpu, &table(ends), &folder).await,
    ];
    for (key, data_type, far) in types() {
        let few = match &data_type {
            DataType::Date32 => "INTERVAL '3 days'",
            DataType::Timestamp(..) => "INTERVAL '3 seconds'",
            _ => "3",
        };
        for order in ["ASC NULLS FIRST", "ASC NULLS LAST", "DESC NULLS FIRST", "DESC NULLS LAST"] {
            for by in [few, far] {
                for frame in [
                    format!("{by} PRECEDING AND CURRENT ROW"),
                    format!("CURRENT ROW AND {by} FOLLOWING"),
                    format!("{by} PRECEDING AND {by} FOLLOWING"),
                    format!("{by} PRECEDING AND {by} PRECEDING"),
                    format!("{by} FOLLOWING AND UNBOUNDED FOLLOWING"),
                    format!("UNBOUNDED PRECEDING AND {by} PRECEDING"),
                ] {
                    let sql = query(&format!("{key} {order}"), &frame);
                    assert_eq!(sums(&sim, &sql).await, sums(&cpu, &sql).await, "{sql}");
                }
            }
        }
    }
}
