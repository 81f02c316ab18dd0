//! Scans that filter by themselves (`pushdown_filters`): what is stored has all rows, and the device filters them.
//!
//!   DataSourceExec, where b > 3   ──►   DeviceFilterExec: b > 3 ─ DeviceScanExec ─ DataSourceExec

use std::sync::Arc;

use millpond::datafusion::object_store::memory::InMemory;
use millpond::store::Store;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::{Answer, orders_its_rows};
use crate::counted_store::{Counted, URL, put, register};
use crate::edges::edges;
use crate::support::{plan_text, session_with};
use crate::tpch::{config, data, parquet_session, queries};

async fn set(session: &Millpond, setting: &str) {
    session.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
}

const PUSHED: &str = "datafusion.execution.parquet.pushdown_filters = true";

async fn answer(session: &Millpond, sql: &str) -> (Answer, u64) {
    let result = session.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(result.report.findings, Vec::<String>::new(), "{sql}");
    (Answer::new(&result.schema, &result.batches), result.report.uploaded_bytes)
}

async fn over(device: DeviceChoice, files: &Arc<InMemory>) -> (Millpond, Arc<Counted>) {
    let session = session_with(device, 2, Fallback::Allow);
    let store = Counted::over(files);
    register(&session, Arc::clone(&store) as _);
    set(&session, PUSHED).await;
    session.context().register_parquet("t", format!("{URL}t/"), Default::default()).await.expect("read");
    (session, store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_rows_are_filtered_on_the_device() {
    let files = Arc::new(InMemory::new());
    put(&files, "t/a.parquet", &edges().slice(0, 1700)).await;
    put(&files, "t/b.parquet", &edges().slice(1700, 1300)).await;
    let cpu = over(DeviceChoice::Cpu, &files).await.0;
    let (sim, store) = over(DeviceChoice::Sim, &files).await;
    let cpu_plan = plan_text(&cpu, "SELECT s FROM t WHERE k > 3").await;
    assert_eq!(cpu_plan, "DataSourceExec", "the scan filters");
    for sql in [
        "SELECT s FROM t WHERE k > 3",
        "SELECT id, k FROM t WHERE k > 3 AND s <> 'bolt' AND i8 IS NOT NULL",
        "SELECT sum(i16), count(*) FROM t WHERE x > 0.5 OR s = 'nut'",
        "SELECT count(*) FROM t WHERE c",
        "SELECT s, count(*) AS n FROM t WHERE day IS NOT NULL AND k BETWEEN -5 AND 20 GROUP BY s",
        "SELECT a.id, b.s FROM t a JOIN t b ON a.id = b.k WHERE a.k > 10 AND b.i32 < 50",
        "SELECT id, k FROM t WHERE k < 50 ORDER BY id DESC LIMIT 7",
        "SELECT id FROM t ORDER BY id LIMIT 5",
        "SELECT max(id) FROM t WHERE k > 1000000",
    ] {
        let expected = answer(&cpu, sql).await.0;
        assert_eq!(expected.difference(&answer(&sim, sql).await.0, orders_its_rows(sql)), None, "{sql}");
        let before = store.asked();
        let (second, uploaded) = answer(&sim, sql).await;
        assert_eq!(expected.difference(&second, orders_its_rows(sql)), None, "{sql}, again");
        assert_eq!(store.asked().read_since(&before), Vec::<String>::new(), "{sql} reads files again");
        assert!(uploaded < 10_000, "{sql} copies {uploaded} bytes up again");
    }
    let plan = plan_text(&sim, "SELECT s FROM t WHERE k > 3").await;
    assert!(plan.contains("DeviceFilterExec: k@1 > 3, projection=[s@0]"), "{plan}");
    // Without columns that stay, and for a filter that only the CPU knows, the scan filters.
    let sql = "SELECT k FROM t WHERE levenshtein(s, l) > 2";
    assert_eq!(plan_text(&sim, sql).await, "DataSourceExec");
    assert_eq!(answer(&cpu, sql).await.0.difference(&answer(&sim, sql).await.0, false), None);
    // Columns that are not stored are decoded, and filtered on the device, too.
    set(&sim, "millpond.cache = off").await;
    let plan = plan_text(&sim, "SELECT s FROM t WHERE k > 3").await;
    assert!(plan.contains("DeviceFilterExec: k@1 > 3, projection=[s@0]"), "{plan}");
    let fed = "SELECT sum(i16), count(*) FROM t WHERE x > 0.5 OR s = 'nut'";
    assert_eq!(answer(&cpu, fed).await.0.difference(&answer(&sim, fed).await.0, false), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_tpch_over_scans_that_filter_feed_nothing_twice() {
    let files = data("0.01");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await;
    let pushed = config(2).set_bool("datafusion.execution.parquet.pushdown_filters", true);
    let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, pushed, &files).await;
    for (number, sql) in queries() {
        let ordered = sql.to_lowercase().contains("order by");
        let expected = answer(&cpu, &sql).await.0;
        let (first, loaded) = answer(&sim, &sql).await;
        assert_eq!(expected.difference(&first, ordered), None, "q{number:02}");
        let (second, again) = answer(&sim, &sql).await;
        assert_eq!(expected.difference(&second, ordered), None, "q{number:02} again");
        assert!(again < 200_000, "q{number:02} copies {again} bytes up, after {loaded} in its first run");
    }
    assert!(Store::of(sim.engine().expect("a device")).bytes() > 0);
}
