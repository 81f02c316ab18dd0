//! Joins of every type on the simulated device against the CPU: NULLs, duplicates, skew, empty sides, conditions on
//! pairs.
//!
//!   l, r, u (unique keys), e (no rows) ──► device = sim, fallback = error ──┐
//!                                     └──► device = cpu ────────────────────┴─► equal answers
//!
//! Each query   launches kernels · has no finding · leaves no byte in the pool · runs with large and with tiny extents.

use std::sync::Arc;

use millpond::datafusion::arrow::array::AsArray;
use millpond::datafusion::arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use millpond::datafusion::arrow::datatypes::Int64Type;
use millpond::datafusion::arrow::util::pretty::pretty_format_batches;
use millpond::datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::prelude::SessionConfig;
use millpond::source::is_source;
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::{Answer, orders_its_rows};
use crate::edges::write_parquet;
use crate::support::session_with;

/// `rows` rows whose keys repeat every `keys` and are NULL now and then.
fn side(rows: i64, keys: i64, seed: i64) -> RecordBatch {
    let null = |i: i64, every: i64| (i + seed) % every == 0;
    let key = |i: i64| (i * 7 + seed) % keys;
    let names = ["ash", "birch", "cedar", "", "elm", "fir"];
    let range = || 0..rows;
    RecordBatch::try_from_iter_with_nullable(vec![
        ("id", Arc::new(range().collect::<Int64Array>()) as ArrayRef, false),
        ("k", Arc::new(range().map(|i| (!null(i, 9)).then(|| key(i))).collect::<Int64Array>()) as ArrayRef, true),
        ("k2", Arc::new(range().map(|i| (!null(i, 11)).then(|| (key(i) % 3) as i32)).collect::<Int32Array>()), true),
        (
            "s",
            Arc::new(
                range().map(|i| (!null(i, 7)).then(|| names[((key(i) + seed) % 6) as usize])).collect::<StringArray>(),
            ),
            true,
        ),
        ("v", Arc::new(range().map(|i| (!null(i, 5)).then(|| i * 3 - 20)).collect::<Int64Array>()), true),
        ("x", Arc::new(range().map(|i| (!null(i, 8)).then(|| i as f64 / 4.0)).collect::<Float64Array>()), true),
        ("b", Arc::new(range().map(|i| (!null(i, 6)).then_some(i % 3 == 0)).collect::<BooleanArray>()), true),
        (
            "d",
            Arc::new(
                range()
                    .map(|i| Some(i128::from(key(i)) * 100))
                    .collect::<Decimal128Array>()
                    .with_precision_and_scale(20, 2)
                    .expect("it fits"),
            ),
            true,
        ),
    ])
    .expect("columns have one length")
}

/// `u`: every key once.
fn unique(rows: i64) -> RecordBatch {
    let range = || 0..rows;
    RecordBatch::try_from_iter_with_nullable(vec![
        ("id", Arc::new(range().map(|i| i + 1000).collect::<Int64Array>()) as ArrayRef, false),
        ("k", Arc::new(range().map(|i| (i != 3).then_some(i)).collect::<Int64Array>()) as ArrayRef, true),
        ("s", Arc::new(range().map(|i| Some(format!("u{}", i % 4))).collect::<StringArray>()), true),
        ("v", Arc::new(range().map(|i| (i % 4 != 1).then_some(i * 2)).collect::<Int64Array>()), true),
    ])
    .expect("columns have one length")
}

struct Rig {
    cpu: Millpond,
    sims: Vec<Millpond>,
    failures: Vec<String>,
}

impl Rig {
    async fn new() -> Self {
        let open = |device, fallback, partitioned: bool| {
            let mut config = SessionConfig::new().with_target_partitions(3);
            if partitioned {
                config.options_mut().optimizer.hash_join_single_partition_threshold = 0;
                config.options_mut().optimizer.hash_join_single_partition_threshold_rows = 0;
            }
            let session = Millpond::builder()
                .with_own_engine()
                .with_device(device)
                .with_fallback(fallback)
                .with_config(config)
                .build();
            session.expect("the device opens")
        };
        let cpu = open(DeviceChoice::Cpu, Fallback::Allow, false);
        let large = open(DeviceChoice::Sim, Fallback::Error, false);
        let tiny = open(DeviceChoice::Sim, Fallback::Error, true);
        for setting in ["SET millpond.batch_rows = 37", "SET millpond.partitions = 2"] {
            tiny.context().sql(setting).await.expect("the option is taken");
        }
        let rig = Self { cpu, sims: vec![large, tiny], failures: vec![] };
        // Keys are at the ends of their types, and are summed.
        for session in rig.sims.iter().chain([&rig.cpu]) {
            session.execute("SET millpond.integer_overflow = 'wrap'").await.expect("the option is taken");
        }
        let (l, r) = (side(150, 23, 1), side(110, 17, 4));
        let e = r.slice(0, 0);
        let one = |batch: &RecordBatch| vec![vec![batch.clone()]];
        let cut = |batch: &RecordBatch| {
            let half = batch.num_rows() / 2;
            vec![vec![batch.slice(0, half)], vec![batch.slice(half, batch.num_rows() - half)]]
        };
        for session in rig.sims.iter().chain([&rig.cpu]) {
            for (name, batches) in [("l", cut(&l)), ("r", cut(&r)), ("u", one(&unique(20))), ("e", one(&e))] {
                let table = MemTable::try_new(batches[0][0].schema(), batches).expect("batches have the schema");
                session.context().register_table(name, Arc::new(table)).expect("a name of its own");
            }
        }
        rig
    }

    async fn same(&mut self, sql: &str) {
        let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
        let expected = match self.cpu.execute(sql).await {
            Ok(result) => answer(&result),
            Err(error) => return self.failures.push(format!("{sql}\n    the CPU: {}", error.strip_backtrace())),
        };
        for (sim, name) in self.sims.iter().zip(["large", "tiny"]) {
            let failure = match sim.execute(sql).await {
                Err(error) => Some(error.strip_backtrace()),
                Ok(result) => match expected.difference(&answer(&result), orders_its_rows(sql)) {
                    Some(difference) => Some(difference),
                    None if !result.report.findings.is_empty() => Some(result.report.findings.join(" | ")),
                    None if result.report.pool_used_bytes > 0 => Some("bytes left in the pool".to_string()),
                    None if result.report.launches == 0 => Some("no kernel was launched".to_string()),
                    None if !result.report.notes.is_empty() => Some(result.report.notes.join("; ")),
                    None => None,
                },
            };
            if let Some(failure) = failure {
                self.failures.push(format!("{name}: {sql}\n    {failure}"));
            }
        }
    }

    fn done(self) {
        assert!(self.failures.is_empty(), "{} failed:\n{}", self.failures.len(), self.failures.join("\n"));
    }
}

/// Both tables of a join, and its condition.
const SIDES: [(&str, &str); 7] = [
    ("l JOIN_TYPE r", "l.k = r.k"),
    ("l JOIN_TYPE u", "l.k = u.k"),
    ("u JOIN_TYPE l", "l.k = u.k"),
    ("l JOIN_TYPE e", "l.k = e.k"),
    ("e JOIN_TYPE l", "l.k = e.k"),
    ("l JOIN_TYPE r", "l.k = r.k AND l.k2 = r.k2 AND l.s = r.s"),
    ("l JOIN_TYPE r", "l.s = r.s"),
];

async fn outer_and_inner(condition: Option<&str>) {
    let mut rig = Rig::new().await;
    for kind in ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"] {
        for (tables, on) in SIDES {
            let (a, b) = tables.split_once(" JOIN_TYPE ").expect("two tables");
            let on = condition.map_or(on.to_string(), |more| {
                format!("{on} AND {}", more.replace("A.", &format!("{a}.")).replace("B.", &format!("{b}.")))
            });
            let columns = format!("{a}.id, {a}.v, {a}.s, {b}.id, {b}.s, {b}.v");
            rig.same(&format!("SELECT {columns} FROM {} ON {on}", tables.replace("JOIN_TYPE", kind))).await;
        }
    }
    rig.done();
}

#[tokio::test]
async fn inner_and_outer_joins() {
    outer_and_inner(None).await;
}

#[tokio::test]
async fn conditions_on_pairs() {
    outer_and_inner(Some("A.v < B.v + 40")).await;
}

#[tokio::test]
async fn semi_anti_and_mark_joins() {
    let mut rig = Rig::new().await;
    for (a, b) in [("l", "r"), ("l", "u"), ("u", "l"), ("l", "e"), ("e", "l"), ("r", "l")] {
        for more in ["", " AND A.v <> B.v", " AND A.v < B.v AND B.id > 10"] {
            let more = more.replace("A.", &format!("{a}.")).replace("B.", &format!("{b}."));
            let exists = format!("EXISTS (SELECT 1 FROM {b} WHERE {a}.k = {b}.k{more})");
            rig.same(&format!("SELECT id, v FROM {a} WHERE {exists}")).await;
            rig.same(&format!("SELECT id, v FROM {a} WHERE NOT {exists}")).await;
            rig.same(&format!("SELECT id, v FROM {a} WHERE {exists} OR v > 100")).await;
        }
        rig.same(&format!("SELECT id FROM {a} WHERE k IN (SELECT k FROM {b})")).await;
        rig.same(&format!("SELECT id FROM {a} WHERE k NOT IN (SELECT k FROM {b})")).await;
        rig.same(&format!("SELECT id FROM {a} WHERE k NOT IN (SELECT k FROM {b} WHERE k IS NOT NULL)")).await;
        rig.same(&format!("SELECT id FROM {a} WHERE s IN (SELECT s FROM {b})")).await;
        rig.same(&format!("SELECT {a}.id FROM {a} LEFT SEMI JOIN {b} ON {a}.k = {b}.k")).await;
        rig.same(&format!("SELECT {b}.id FROM {a} RIGHT SEMI JOIN {b} ON {a}.k = {b}.k AND {a}.v < {b}.v")).await;
        rig.same(&format!("SELECT {a}.id FROM {a} LEFT ANTI JOIN {b} ON {a}.k = {b}.k AND {a}.v < {b}.v")).await;
        rig.same(&format!("SELECT {b}.id FROM {a} RIGHT ANTI JOIN {b} ON {a}.k = {b}.k")).await;
    }
    rig.done();
}

#[tokio::test]
async fn joins_without_keys() {
    let mut rig = Rig::new().await;
    rig.same("SELECT u.id, e.id FROM u CROSS JOIN e").await;
    rig.same("SELECT u.id, a.id, u.s FROM u CROSS JOIN u AS a").await;
    rig.same("SELECT u.id, r.id FROM u JOIN r ON u.v < r.v").await;
    rig.same("SELECT u.id, r.id FROM u LEFT JOIN r ON u.v > r.v + 250").await;
    rig.same("SELECT u.id, r.id FROM r RIGHT JOIN u ON u.v > r.v + 250").await;
    rig.same("SELECT u.id, r.id FROM u FULL JOIN r ON u.v > r.v + 10").await;
    rig.same("SELECT count(*), sum(l.v), min(r.s) FROM l CROSS JOIN r").await;
    rig.done();
}

#[tokio::test]
async fn ranges_that_merge_piecewise() {
    let mut rig = Rig::new().await;
    // DataFusion's own piecewise merge join loses rows without a match where keys are NULL, and orders; its nested
    // loops do not.
    for sim in &rig.sims {
        let on = sim.context().sql("SET datafusion.optimizer.enable_piecewise_merge_join = true").await;
        on.expect("the option is taken");
    }
    let planned = rig.sims[0].context().sql("EXPLAIN SELECT u.id, r.id FROM u JOIN r ON u.v < r.v").await;
    let planned = planned.expect("it is planned").collect().await.expect("it has a plan");
    let planned = pretty_format_batches(&planned).expect("a table").to_string();
    assert!(planned.contains("DeviceJoinExec: join_type=Inner, build=left, on=[], filter=v@0 < v@1"), "{planned}");
    for operator in ["<", "<=", ">", ">="] {
        for join in ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"] {
            rig.same(&format!("SELECT u.id, u.s, r.id, r.s FROM u {join} r ON u.v {operator} r.v")).await;
        }
    }
    rig.same("SELECT r.id, u.id FROM r JOIN u ON r.k2 + 1 < u.v WHERE r.k > 3").await;
    rig.same("SELECT count(*), sum(u.v), max(e.v) FROM u LEFT JOIN e ON u.v < e.v").await;
    rig.done();
}

#[tokio::test]
async fn keys_of_every_type() {
    let mut rig = Rig::new().await;
    for on in ["l.d = r.d", "l.x = r.x", "l.b = r.b AND l.k = r.k", "l.k + 1 = r.k", "l.k IS NOT DISTINCT FROM r.k"] {
        rig.same(&format!("SELECT l.id, r.id FROM l JOIN r ON {on}")).await;
        rig.same(&format!("SELECT l.id, r.id FROM l LEFT JOIN r ON {on}")).await;
    }
    rig.same("SELECT l.id, u.id FROM l JOIN u ON upper(l.s) = upper(u.s)").await;
    rig.same("SELECT * FROM l INTERSECT SELECT * FROM l WHERE v > 10").await;
    rig.same("SELECT k, s FROM l EXCEPT SELECT k, s FROM r").await;
    rig.done();
}

#[tokio::test]
async fn joins_feed_everything() {
    let mut rig = Rig::new().await;
    rig.same("SELECT l.s, count(*), sum(r.v), avg(u.v) FROM l JOIN r ON l.k = r.k JOIN u ON r.k = u.k GROUP BY l.s")
        .await;
    rig.same("SELECT u.s, count(r.v), max(r.s) FROM u LEFT JOIN r ON u.k = r.k GROUP BY u.s HAVING count(*) > 1").await;
    rig.same("SELECT l.id, r.id, r.v FROM l JOIN r ON l.k = r.k ORDER BY r.v DESC NULLS LAST, l.id, r.id").await;
    rig.same("SELECT l.id, r.id, r.v FROM l JOIN r ON l.k = r.k ORDER BY r.v, l.id, r.id LIMIT 17").await;
    rig.same("SELECT count(*) FROM (SELECT l.id FROM l JOIN r ON l.k = r.k LIMIT 5)").await;
    rig.same("SELECT a.s, count(*) FROM (SELECT k, s, count(*) AS n FROM l GROUP BY k, s) AS a JOIN r ON a.k = r.k GROUP BY a.s")
        .await;
    rig.same("SELECT a.k, a.n, b.n FROM (SELECT k, count(*) AS n FROM l GROUP BY k) AS a FULL JOIN (SELECT k, count(*) AS n FROM r GROUP BY k) AS b ON a.k = b.k").await;
    rig.same(
        "WITH c AS (SELECT k, sum(v) AS t FROM l GROUP BY k) SELECT a.k, b.t FROM c AS a JOIN c AS b ON a.t = b.t",
    )
    .await;
    rig.same("SELECT u.id, (SELECT max(v) FROM r WHERE r.k = u.k) FROM u").await;
    rig.same("SELECT id FROM l WHERE v > (SELECT avg(v) FROM r)").await;
    rig.same("SELECT l.id, upper(r.s), CASE WHEN r.v > 3 THEN u.s ELSE l.s END FROM l JOIN r ON l.k = r.k LEFT JOIN u ON u.k = r.k").await;
    rig.done();
}

/// The range of the build side's keys reaches the scan of the probe side before it is read.
#[tokio::test]
async fn scans_of_a_probe_side_leave_out_row_groups() {
    let rows = 10_000_i64;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("large.parquet");
    let ids: Int64Array = (0..rows).collect();
    let batch = RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).expect("one column");
    write_parquet(&batch, &path, 1000);
    let few: Int64Array = (2500..2510).collect();
    let few = RecordBatch::try_from_iter([("id", Arc::new(few) as ArrayRef)]).expect("one column");
    let session = session_with(DeviceChoice::Sim, 2, Fallback::Error);
    // Stored columns are read whole.
    session.context().sql("SET millpond.cache = off").await.expect("the option is taken");
    let path = path.to_str().expect("a UTF-8 path");
    session.context().register_parquet("large", path, Default::default()).await.expect("the file is read");
    let table = MemTable::try_new(few.schema(), vec![vec![few]]).expect("batches have the schema");
    session.context().register_table("few", Arc::new(table)).expect("a name of its own");
    for _ in 0..2 {
        let sql = "SELECT count(*) AS n, sum(large.id) AS s FROM few JOIN large ON few.id = large.id";
        let result = session.execute(sql).await.expect("an answer");
        let counts = result.batches[0].columns().iter().map(|c| c.as_primitive::<Int64Type>().value(0));
        assert_eq!(counts.collect::<Vec<_>>(), [10, (2500..2510).sum::<i64>()]);
        let mut fed = 0;
        let walked = result.plan.apply(|node| {
            if is_source(node.as_ref()) {
                let metrics = node.metrics().unwrap_or_default();
                fed += metrics.sum_by_name("output_rows").map_or(0, |rows| rows.as_usize());
            }
            Ok(TreeNodeRecursion::Continue)
        });
        walked.expect("the walk returns no error");
        assert!(fed <= 10 + 1000, "{fed} rows were read");
    }
}

/// Every kind of table: bits where only a match counts, arrays of each width, hashed rows, and none where every row
/// matches.
#[tokio::test]
async fn tables_of_every_kind() {
    let mut rig = Rig::new().await;
    let edge = |keys: Vec<Option<i64>>| {
        let ids = (0..keys.len() as i64).collect::<Int64Array>();
        let keys = keys.into_iter().collect::<Int64Array>();
        RecordBatch::try_from_iter_with_nullable(vec![
            ("id", Arc::new(ids) as ArrayRef, false),
            ("k", Arc::new(keys) as ArrayRef, true),
        ])
        .expect("columns have one length")
    };
    let near = |from: i64, n: i64| (0..n).map(|i| Some(from.wrapping_add(i))).collect::<Vec<_>>();
    let tables = [
        ("low", edge([near(i64::MIN, 5), vec![None]].concat())),
        ("high", edge(near(i64::MAX - 4, 5))),
        ("far", edge(vec![Some(i64::MIN), Some(i64::MAX), Some(0), None])),
        ("negative", edge([near(-40, 30), near(-20, 4)].concat())),
        ("single", edge(vec![Some(7)])),
        ("nulls", edge(vec![None, None])),
        ("many", edge([near(-300, 700), vec![None]].concat())),
    ];
    for session in rig.sims.iter().chain([&rig.cpu]) {
        for (name, batch) in &tables {
            let table = MemTable::try_new(batch.schema(), vec![vec![batch.clone()]]).expect("batches have the schema");
            session.context().register_table(*name, Arc::new(table)).expect("a name of its own");
        }
    }
    let names = ["low", "high", "far", "negative", "single", "nulls", "many", "e"];
    for (i, a) in names.iter().enumerate() {
        for b in &names[i..] {
            // Nothing of either side is read but its key: as many matches as rows all the same.
            rig.same(&format!("SELECT count(*) FROM {a} p JOIN {b} q ON p.k = q.k")).await;
            rig.same(&format!("SELECT count(*), sum(p.id) FROM {b} p JOIN {a} q ON p.k = q.k WHERE p.id > 0")).await;
            rig.same(&format!("SELECT p.id FROM {a} p WHERE EXISTS (SELECT 1 FROM {b} q WHERE p.k = q.k)")).await;
            rig.same(&format!("SELECT p.id FROM {b} p WHERE p.k NOT IN (SELECT k FROM {a})")).await;
            rig.same(&format!("SELECT p.id, q.id FROM {a} p FULL JOIN {b} q ON p.k = q.k")).await;
            rig.same(&format!("SELECT p.id, q.id FROM {a} p JOIN {b} q ON p.k IS NOT DISTINCT FROM q.k")).await;
        }
        rig.same(&format!("SELECT p.id, q.id FROM {a} p CROSS JOIN single q")).await;
        rig.same(&format!("SELECT p.id, q.id FROM {a} p CROSS JOIN negative q WHERE p.id < 3")).await;
        rig.same(&format!("SELECT count(*), sum(p.k) FROM {a} p CROSS JOIN many q WHERE q.id < 650")).await;
        rig.same(&format!("SELECT id FROM low WHERE EXISTS (SELECT 1 FROM {a} WHERE k > 0)")).await;
        rig.same(&format!("SELECT p.id, q.id FROM {a} p LEFT JOIN far q ON p.id < q.id")).await;
    }
    rig.done();
}

/// An extent with few passing rows is compacted before the next one.
#[tokio::test]
async fn extents_that_few_rows_pass_are_closed_up() {
    let mut rig = Rig::new().await;
    rig.sims.truncate(1);
    let column = |times: i64| Arc::new((0..750_000).map(|i| i * times).collect::<Int64Array>()) as ArrayRef;
    let columns = [("k", column(1), false), ("a", column(2), false), ("b", column(3), false)];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).expect("columns have one length");
    for session in rig.sims.iter().chain([&rig.cpu]) {
        let table = MemTable::try_new(batch.schema(), vec![vec![batch.clone()]]).expect("batches have the schema");
        session.context().register_table("big", Arc::new(table)).expect("a name of its own");
    }
    rig.same("SELECT k, a, b FROM big WHERE k % 50 = 7 ORDER BY a DESC").await;
    rig.same("SELECT count(*), sum(p.a), sum(p.b) FROM big p JOIN big q ON p.k = q.a + 7 WHERE p.k % 50 = 7").await;
    rig.done();
}
