//! LIMIT and OFFSET inside plans: on the device, with the right number of rows, and with the right rows where there is
//! an order.
//!
//!   join ─ limit ─ filter ─ scan      one device subtree, no download between limit and join
//!
//! Any rows   an unordered LIMIT may give any, so that such queries count what comes, or reduce it to what all rows
//!            share
//! Stops      what reads on stops once the limit is reached

use millpond::{DeviceChoice, Fallback};

use crate::sql_features::Rig;
use crate::support::{plan_text, register_parquet, session};

#[tokio::test]
async fn unordered_limits_give_as_many_rows_as_they_say() {
    let mut rig = Rig::with_partitions(Fallback::Error, 3).await;
    for (limit, offset) in [(1, 0), (7, 3), (500, 0), (1000, 999), (2999, 1), (3000, 1), (5000, 0), (10, 9000)] {
        let range = format!("LIMIT {limit} OFFSET {offset}");
        for inner in [
            format!("SELECT id FROM t WHERE k IS NOT NULL OR w > -9 {range}"),
            format!("SELECT DISTINCT id FROM t WHERE id >= 0 {range}"),
            format!("SELECT id FROM t WHERE id < 1200 UNION ALL SELECT id FROM t WHERE id >= 1200 {range}"),
            format!("SELECT a.id FROM t a JOIN t b ON a.id = b.id WHERE b.id < 2500 {range}"),
            format!("SELECT a.id FROM t a LEFT JOIN (SELECT id FROM t WHERE k > 5) b ON a.id = b.id {range}"),
        ] {
            rig.same(&format!("SELECT count(*), count(id) FROM ({inner})")).await;
        }
    }
    rig.finish();
}

#[tokio::test]
async fn limits_of_an_order_give_its_rows() {
    let mut rig = Rig::with_partitions(Fallback::Error, 7).await;
    for (limit, offset) in [(1, 0), (10, 5), (1100, 1000), (10, 2995), (2, 2999)] {
        for sql in [
            "SELECT sum(id), min(k), count(s) FROM (SELECT * FROM t ORDER BY x, id RANGE)",
            "SELECT id, s FROM (SELECT * FROM t ORDER BY s NULLS FIRST, id RANGE) WHERE id % 3 <> 0 ORDER BY id",
            "SELECT a.id, b.w FROM (SELECT id, k FROM t ORDER BY l, id RANGE) a JOIN t b ON a.k = b.k AND b.id < 90
             ORDER BY a.id, b.w NULLS LAST",
            "SELECT k, n FROM (SELECT k, count(*) AS n FROM t GROUP BY k ORDER BY n DESC, k RANGE) ORDER BY k",
            "SELECT max(id), count(*) FROM (SELECT id, x FROM t ORDER BY x DESC NULLS LAST, id RANGE) LIMIT 4",
        ] {
            rig.same(&sql.replace("RANGE", &format!("LIMIT {limit} OFFSET {offset}"))).await;
        }
    }
    rig.same("SELECT sum(id) FROM (SELECT id FROM t ORDER BY id OFFSET 2990)").await;
    rig.nothing("SELECT id FROM (SELECT * FROM t WHERE k > 0 LIMIT 0) WHERE id > 5").await;
    rig.finish();
}

/// At the top, rows are left out as they leave, and counted.
#[tokio::test]
async fn limits_at_the_top() {
    let rig = Rig::with_partitions(Fallback::Error, 3).await;
    for (sql, rows) in [
        ("SELECT id FROM t WHERE id % 2 = 0 LIMIT 10 OFFSET 1495", 5),
        ("SELECT id FROM t WHERE id % 2 = 0 LIMIT 10 OFFSET 1500", 0),
        ("SELECT id FROM t WHERE id % 2 = 0 OFFSET 1400", 100),
        ("SELECT id + 1 FROM (SELECT id FROM t WHERE id % 2 = 0 LIMIT 20) LIMIT 7 OFFSET 15", 5),
        ("SELECT k FROM t GROUP BY k LIMIT 5 OFFSET 2", 5),
        ("SELECT id FROM t WHERE w = 1 UNION ALL SELECT id FROM t WHERE id < 3 LIMIT 2 OFFSET 1", 2),
    ] {
        assert_eq!(rig.counted(sql).await.0, rows, "{sql}");
    }
    rig.finish();
}

/// A limit that is reached early leaves most of a cross join unread.
#[tokio::test]
async fn a_limit_inside_a_plan_stops_what_feeds_it() {
    let mut rig = Rig::with_partitions(Fallback::Error, 1).await;
    rig.set("millpond.batch_rows = 20000").await;
    let all = "SELECT a.key, b.value FROM many a JOIN many b ON a.key > b.key LIMIT 5000";
    rig.same(&format!("SELECT count(*) FROM ({all})")).await;
    let (_, report) = rig.counted(&format!("SELECT count(*) FROM ({all})")).await;
    // Some seven billion pairs would be hundreds of launches over full extents.
    assert!(report.launches < 60, "{} launches", report.launches);
    rig.finish();
}

#[tokio::test]
async fn memory_that_is_short_loses_no_row() {
    let rig = Rig::with_partitions(Fallback::Allow, 3).await;
    rig.set("millpond.memory_limit_bytes = 600000").await;
    for sql in [
        "SELECT count(*), count(value) > 0 FROM (SELECT key, value FROM many WHERE key > 0 LIMIT 70000)",
        "SELECT sum(value) FROM (SELECT key, value FROM many ORDER BY value, key LIMIT 500 OFFSET 200)",
    ] {
        if let Err(what) = rig.run(sql).await {
            panic!("{sql}: {what}");
        }
    }
    rig.finish();
}

#[tokio::test]
async fn limits_are_device_nodes() {
    let session = session(DeviceChoice::Sim);
    let folder = tempfile::tempdir().expect("a temporary folder");
    register_parquet(session.context(), &folder).await;
    for sql in [
        "SELECT sum(size) FROM (SELECT size FROM parts WHERE size > 5 LIMIT 10)",
        "SELECT count(size) FROM (SELECT size FROM parts ORDER BY id LIMIT 10 OFFSET 3)",
        "SELECT a.id FROM parts a JOIN (SELECT id FROM parts WHERE size > 2 LIMIT 20 OFFSET 1) b ON a.id = b.id",
    ] {
        let text = plan_text(&session, sql).await;
        assert!(text.contains("DeviceLimitExec"), "{sql}\n{text}");
        assert_eq!(text.matches("DownloadExec").count(), 1, "{sql}\n{text}");
    }
}
