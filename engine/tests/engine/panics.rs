//! A panic ends the query in which it happens, as its error, and nothing else; answers that stream are the whole ones.
//!
//!   SELECT fall_off(s) ─ CPU, a task of DataFusion, the device's dictionary ─► Err(is_panic), the session goes on

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use millpond::datafusion::arrow::array::{Int64Array, RecordBatch, StringArray};
use millpond::datafusion::arrow::datatypes::DataType;
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use millpond::datafusion::prelude::SessionConfig;
use millpond::{DeviceChoice, EngineError, Millpond, error};

/// A session with two tables of one column each in three partitions, and a function that panics at the text 'w7'.
fn session(device: DeviceChoice) -> Millpond {
    let config = SessionConfig::new().with_target_partitions(3).with_batch_size(64);
    let session = Millpond::builder()
        .with_own_engine()
        .with_device(device)
        .with_config(config)
        .build()
        .expect("the device opens");
    let part = |part: i64| {
        let numbers = Int64Array::from_iter_values((0..500).map(|row| part * 500 + row));
        let texts = StringArray::from_iter_values((0..500).map(|row| format!("w{}", (part * 500 + row) % 40)));
        let batch = RecordBatch::try_from_iter([("n", Arc::new(numbers) as _), ("s", Arc::new(texts) as _)]);
        vec![batch.expect("a batch")]
    };
    let parts: Vec<Vec<RecordBatch>> = (0..3).map(part).collect();
    let table = MemTable::try_new(parts[0][0].schema(), parts).expect("a table");
    session.context().register_table("t", Arc::new(table)).expect("registered");
    let fall_off = |arguments: &[ColumnarValue]| {
        let texts = ColumnarValue::values_to_arrays(arguments)?;
        let texts = texts[0].as_any().downcast_ref::<StringArray>().expect("a string column");
        assert!(texts.iter().all(|text| text != Some("w7")), "the 7th wheel fell off");
        Ok(arguments[0].clone())
    };
    let function =
        create_udf("fall_off", vec![DataType::Utf8], DataType::Utf8, Volatility::Immutable, Arc::new(fall_off));
    session.context().register_udf(function);
    session
}

/// A hang is a failure.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(240), work).await.expect("nothing hangs")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_is_the_error_of_its_query_alone() {
    millpond::error::panics::note_panics();
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session = session(device);
        for sql in [
            // While rows are read, in a task of a sort, on both sides of a join, and while constants are folded.
            "SELECT n, fall_off(s) FROM t WHERE n > 3",
            "SELECT fall_off(s) AS f, count(*) FROM t GROUP BY f ORDER BY f",
            "SELECT max(fall_off(t.s)) FROM t JOIN t AS u ON fall_off(t.s) = u.s",
            "SELECT fall_off('w7')",
            "CREATE TABLE fallen AS SELECT fall_off(s) AS f FROM t",
        ] {
            let panicked = soon(session.execute(sql)).await.map(|_| ()).expect_err("it panics");
            assert!(error::is_panic(&panicked), "{device}: {sql}: {panicked}");
            let Some(EngineError::Panicked { message, .. }) = EngineError::find(&panicked) else {
                panic!("{panicked}")
            };
            assert!(message.contains("the 7th wheel fell off"), "{device}: {sql}: {message}");

            let next = soon(session.execute("SELECT count(*), max(s) FROM t WHERE n > 100")).await.expect("an answer");
            assert_eq!(next.batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 1, "{device}: {sql}");
        }
        while session.pool_used_bytes() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// The test's own code is a file of this workspace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_says_whose_it_is_and_where() {
    millpond::error::panics::note_panics();
    let session = session(DeviceChoice::Cpu);
    let panicked = soon(session.execute("SELECT fall_off(s) FROM t")).await.map(|_| ()).expect_err("it panics");
    let text = EngineError::find(&panicked).expect("the engine's").to_string();
    assert!(text.starts_with("internal error in Millpond: the 7th wheel fell off (a panic at "), "{text}");
    assert!(text.contains("tests/engine/panics.rs:"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_gives_the_rows_and_the_report_of_the_whole_answer() {
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session = session(device);
        let sql = "SELECT s, count(*) AS c, sum(n) AS n FROM t WHERE n > 9 GROUP BY s ORDER BY s";
        let whole = soon(session.execute(sql)).await.expect("an answer");
        let mut running = session.stream(sql).await.expect("a plan");
        assert_eq!(running.schema(), whole.schema);
        let batches: Vec<RecordBatch> = soon((&mut running).try_collect()).await.expect("an answer");
        assert_eq!(batches, whole.batches);
        let report = running.report().await;
        let counts = |report: &millpond::QueryReport| (report.rows, report.operators, report.operators_on_device);
        assert_eq!(counts(&report), counts(&whole.report), "{device}");

        // The rest of an answer may stay unread.
        let mut running = session.stream("SELECT n, s FROM t WHERE n > 1").await.expect("a plan");
        assert!(soon(running.next()).await.expect("a batch").is_ok());
        soon(running.report()).await;

        let mut running = session.stream("SELECT fall_off(s) FROM t").await.expect("a plan");
        let last = loop {
            match soon(running.next()).await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error,
                None => panic!("no error"),
            }
        };
        assert!(error::is_panic(&last) && soon(running.next()).await.is_none(), "{last}");
    }
}
