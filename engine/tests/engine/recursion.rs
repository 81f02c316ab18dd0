//! Recursive queries: the steps run on the simulated device, and answers equal DataFusion's.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use millpond::datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use millpond::datafusion::arrow::util::pretty::pretty_format_batches;
use millpond::datafusion::datasource::{MemTable, TableProvider};
use millpond::{DeviceChoice, Fallback, Millpond, QueryResult};

use crate::sql_features::Rig;

const NODES: i64 = 120;

/// Roads from each place to one or two of greater number, and from some back to the first: `back` says which.
fn roads() -> Arc<dyn TableProvider> {
    let (mut from, mut to, mut back, mut name) = (vec![], vec![], vec![], vec![]);
    let mut road = |a: i64, b: i64, is_back: i64| {
        from.push(Some(a));
        to.push(if a % 19 == 5 { None } else { Some(b) });
        back.push(is_back);
        name.push((a % 7 > 0).then(|| format!("road {}", a % 10)));
    };
    for place in 0..NODES {
        road(place, place * 2 + 1, 0);
        if place % 3 == 0 {
            road(place, place * 2 + 2, 0);
        }
        if place % 11 == 0 {
            road(place, place / 2, 1);
        }
    }
    let columns: [(&str, ArrayRef); 4] = [
        ("a", Arc::new(Int64Array::from(from))),
        ("b", Arc::new(Int64Array::from(to))),
        ("back", Arc::new(Int64Array::from(back))),
        ("name", Arc::new(StringArray::from(name))),
    ];
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).expect("columns have one length");
    let (head, tail) = (batch.slice(0, 70), batch.slice(70, batch.num_rows() - 70));
    Arc::new(MemTable::try_new(batch.schema(), vec![vec![head], vec![tail]]).expect("batches have the schema"))
}

async fn rig(fallback: Fallback) -> Rig {
    let rig = Rig::with_partitions(fallback, 3).await;
    rig.register("roads", roads);
    rig
}

const REACHED: &str = "WITH RECURSIVE r(place, steps) AS (
         SELECT a, 0 FROM roads WHERE a < 3 AND back = 0
         UNION ALL SELECT roads.b, r.steps + 1 FROM r JOIN roads ON roads.a = r.place WHERE roads.back = 0 AND r.steps < 9)";

#[tokio::test]
async fn steps_run_on_the_device_alone() {
    let mut rig = rig(Fallback::Error).await;
    for batch_rows in [3, 30, 1000] {
        rig.set(&format!("millpond.batch_rows = {batch_rows}")).await;
        for sql in [
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 40) SELECT n FROM r ORDER BY n",
            "WITH RECURSIVE r AS (SELECT a AS n FROM roads WHERE a < 9 UNION ALL SELECT n * 2 FROM r WHERE n BETWEEN 1 AND 500)
             SELECT n, count(*) FROM r WHERE n % 2 = 0 GROUP BY n",
            &format!("{REACHED} SELECT place, steps FROM r"),
            &format!("{REACHED} SELECT steps, count(*), count(place), sum(place) FROM r GROUP BY steps ORDER BY steps"),
            &format!("{REACHED} SELECT r.steps, roads.name, count(*) FROM r JOIN roads ON roads.a = r.place GROUP BY r.steps, roads.name"),
            // Strings grow from step to step; a step groups; a step reads some columns alone.
            "WITH RECURSIVE r(place, way) AS (
                 SELECT a, name FROM roads WHERE a = 1 AND back = 0
                 UNION ALL SELECT roads.b, r.way || ', ' || coalesce(roads.name, 'no name') FROM r JOIN roads ON roads.a = r.place WHERE back = 0)
             SELECT place, way FROM r",
            "WITH RECURSIVE r(g, n, steps) AS (
                 SELECT a % 4, count(*), 0 FROM roads GROUP BY a % 4
                 UNION ALL SELECT g % 2, sum(n), max(steps) + 1 FROM r WHERE steps < 3 GROUP BY g % 2)
             SELECT * FROM r",
            "WITH RECURSIVE r(unused, n, other) AS (
                 SELECT name, a, b FROM roads WHERE a < 20
                 UNION ALL SELECT 'x', n + 20, NULL FROM r WHERE n < 60)
             SELECT unused, n, other FROM r",
        ] {
            rig.same(sql).await;
        }
    }
    rig.finish();
}

#[tokio::test]
async fn a_step_is_lowered_once() {
    let rig = rig(Fallback::Error).await;
    let counting = |steps: usize| {
        format!("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < {steps}) SELECT n FROM r")
    };
    let (few, many) = (rig.counted(&counting(10)).await, rig.counted(&counting(100)).await);
    assert_eq!((few.0, many.0), (10, 100));
    assert!(many.1.attempts >= 100 && many.1.lowerings <= few.1.lowerings.max(4), "{:?} and {:?}", few.1, many.1);
}

/// Copies of one plan, one after the other and side by side.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn runs_side_by_side_have_their_own_rows() {
    let rig = rig(Fallback::Error).await;
    let sum = |least: i64, steps: i64| {
        format!(
            "WITH RECURSIVE r(n, steps) AS (SELECT a, 0 FROM roads WHERE a >= {least} AND back = 0 \
                 UNION ALL SELECT n + 1, steps + 1 FROM r WHERE steps < {steps}) SELECT count(*) AS n, sum(n) AS s, max(steps) AS m FROM r"
        )
    };
    let asked: Vec<String> = (0..12).map(|number| sum(100 + number % 3, 5 + number % 4)).collect();
    for _ in 0..2 {
        let found = futures::future::join_all(asked.iter().map(|sql| rig.sim.execute(sql))).await;
        for (sql, found) in asked.iter().zip(found) {
            let expected = rig.cpu.execute(sql).await.expect("the CPU has an answer");
            let found = found.unwrap_or_else(|error| panic!("{sql}: {error}"));
            let text = |result: &QueryResult| pretty_format_batches(&result.batches).expect("printed").to_string();
            assert_eq!(text(&found), text(&expected), "{sql}");
        }
    }
    nothing_is_left(&rig, "after all").await;
}

#[tokio::test]
async fn union_passes_each_row_once() {
    let mut rig = rig(Fallback::Allow).await;
    let reason = "UNION of a recursive query has no device form";
    for batch_rows in [3, 1000] {
        rig.set(&format!("millpond.batch_rows = {batch_rows}")).await;
        for sql in [
            // Roads lead back, so that only UNION ends.
            "WITH RECURSIVE r(place) AS (
                 SELECT 0 UNION SELECT roads.b FROM r JOIN roads ON roads.a = r.place) SELECT place FROM r",
            "WITH RECURSIVE r(place, name) AS (
                 SELECT a, name FROM roads WHERE a < 5
                 UNION SELECT roads.b, roads.name FROM r JOIN roads ON roads.a = r.place) SELECT place, name FROM r",
            "WITH RECURSIVE r(n) AS (SELECT a % 3 FROM roads UNION SELECT (n + 1) % 50 FROM r WHERE n >= 0) SELECT count(*), sum(n) FROM r",
        ] {
            rig.falls_back(sql, reason).await;
        }
    }
    rig.finish();
}

#[tokio::test]
async fn without_rows_and_one_inside_another() {
    let mut rig = rig(Fallback::Error).await;
    rig.nothing("WITH RECURSIVE r AS (SELECT a FROM roads WHERE a < 0 UNION ALL SELECT a + 1 FROM r WHERE a < 9) SELECT a FROM r").await;
    for sql in [
        "WITH RECURSIVE r AS (SELECT a FROM roads WHERE a < 5 UNION ALL SELECT a + 1 FROM r WHERE a < 0) SELECT a FROM r",
        "WITH RECURSIVE outside(n) AS (
             SELECT 1 UNION ALL
             SELECT outside.n + inner_sum.s FROM outside JOIN (
                 WITH RECURSIVE inside(m) AS (SELECT 1 UNION ALL SELECT m + 1 FROM inside WHERE m < 4) SELECT sum(m) AS s FROM inside
             ) AS inner_sum ON outside.n < 60)
         SELECT n FROM outside ORDER BY n",
        "WITH RECURSIVE x(n) AS (SELECT a FROM roads WHERE a < 3 UNION ALL SELECT n + 3 FROM x WHERE n < 12),
                        y(n) AS (SELECT n FROM x WHERE n > 4 UNION ALL SELECT n + 100 FROM y WHERE n < 300)
         SELECT x.n, y.n FROM x JOIN y ON x.n = y.n % 100",
    ] {
        rig.same(sql).await;
    }
    rig.finish();
}

#[tokio::test]
async fn what_has_no_end_is_stopped_by_a_limit() {
    let rig = rig(Fallback::Allow).await;
    // A filter on the CPU collects this many rows before it returns a batch.
    rig.set("datafusion.execution.batch_size = 16").await;
    let endless = "WITH RECURSIVE r AS (SELECT a AS n FROM roads WHERE a = 7 AND back = 0 UNION ALL SELECT n + 1 FROM r WHERE n > 0)";
    for (sql, expected) in [
        (format!("{endless} SELECT n FROM r LIMIT 25"), 25),
        (format!("{endless} SELECT n * 2 FROM r WHERE n % 2 = 0 LIMIT 10"), 10),
        (format!("{endless} SELECT count(*) FROM (SELECT n FROM r LIMIT 12)"), 1),
    ] {
        let (rows, report) = rig.counted(&sql).await;
        assert_eq!(rows, expected, "{sql}");
        assert!(report.findings.is_empty(), "{sql}: {report:?}");
        nothing_is_left(&rig, &sql).await;
    }
}

/// A run whose stream was dropped ends a moment later.
async fn nothing_is_left(rig: &Rig, what: &str) {
    for _ in 0..500 {
        if rig.sim.pool_used_bytes() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(rig.sim.pool_used_bytes(), 0, "{what}");
    assert_eq!(rig.sim.engine().expect("a device").take_findings(), Vec::<String>::new(), "{what}");
}

#[tokio::test]
async fn a_dropped_recursion_leaves_nothing() {
    let rig = rig(Fallback::Allow).await;
    let sql =
        "WITH RECURSIVE r AS (SELECT a AS n FROM roads UNION ALL SELECT n + 1 FROM r WHERE n >= 0) SELECT n FROM r";
    for batches in [0, 1, 5, 20] {
        let frame = rig.sim.context().sql(sql).await.expect("it plans");
        let mut stream = frame.execute_stream().await.expect("it begins");
        for _ in 0..batches {
            stream.next().await.expect("it has no end").expect("rows");
        }
        drop(stream);
        nothing_is_left(&rig, &format!("after {batches} batches")).await;
    }
}

/// The device fails in one of the steps: the CPU takes that step over, over the same rows.
#[tokio::test]
async fn a_step_that_fails_runs_on_the_cpu() {
    let sql = format!("{REACHED} SELECT place, steps FROM r WHERE place > 1 ORDER BY place, steps");
    let session = |device, options: &[(&str, usize)]| {
        let mut builder = Millpond::builder().with_own_engine().with_device(device);
        for (name, value) in options {
            builder = builder.with_option(name, &value.to_string()).expect("the option is taken");
        }
        let session = builder.build().expect("the device opens");
        session.context().register_table("roads", roads()).expect("the name is free");
        session
    };
    let rows = |result: &QueryResult| pretty_format_batches(&result.batches).expect("rows are printed").to_string();
    let expected = session(DeviceChoice::Cpu, &[]).execute(&sql).await.expect("an answer");
    assert!(expected.batches.iter().map(RecordBatch::num_rows).sum::<usize>() > 50);
    let mut taken_over = 0;
    for fault in [
        ("debug_sim_lose_at_launch", 1),
        ("debug_sim_lose_at_launch", 5),
        ("debug_sim_lose_at_launch", 12),
        ("debug_sim_fail_allocation", 2),
        ("debug_sim_fail_allocation", 17),
        ("debug_sim_fail_allocation", 44),
        ("memory_limit_bytes", 1),
    ] {
        let sim = session(DeviceChoice::Sim, &[("batch_rows", 30), fault]);
        let found = sim.execute(&sql).await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_eq!(rows(&found), rows(&expected), "{fault:?}");
        assert!(found.report.findings.is_empty(), "{fault:?}: {:?}", found.report.findings);
        taken_over += found.report.notes.len();
    }
    assert!(taken_over > 0, "nothing was taken over");
}
