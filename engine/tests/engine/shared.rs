//! Aggregations that a query asks for twice run once: the rows below them are uploaded once, and the answers stay.

use std::sync::Arc;

use millpond::datafusion::datasource::MemTable;
use millpond::{DeviceChoice, Fallback, Millpond, QueryReport};

use crate::answers::Answer;
use crate::edges::{edges, many, write_parquet};
use crate::support::session_with;

struct Rig {
    cpu: Millpond,
    sim: Millpond,
    _folder: tempfile::TempDir,
}

impl Rig {
    /// `t` is a file and `m` the same rows in memory; `other` is a file with the same rows again.
    async fn new(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (cpu, sim) =
            (session_with(DeviceChoice::Cpu, 3, Fallback::Allow), session_with(DeviceChoice::Sim, 3, Fallback::Error));
        for name in ["t", "other", "many"] {
            let path = folder.path().join(format!("{name}.parquet"));
            let rows = if name == "many" { many() } else { edges() };
            write_parquet(&rows, &path, 900);
            for session in [&cpu, &sim] {
                let path = path.to_str().expect("a UTF-8 path");
                session.context().register_parquet(name, path, Default::default()).await.expect("the file is read");
            }
        }
        for session in [&cpu, &sim] {
            for name in ["m", "n"] {
                let table = MemTable::try_new(edges().schema(), vec![vec![edges()]]).expect("rows have the schema");
                session.context().register_table(name, Arc::new(table)).expect("the name is free");
            }
        }
        // Cache off: a stored column would be uploaded only once, whatever a query learns.
        for setting in settings.iter().chain(&["millpond.cache = off"]) {
            sim.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
        }
        Self { cpu, sim, _folder: folder }
    }

    async fn report(&self, sql: &str) -> QueryReport {
        let expected = self.cpu.execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let actual = self.sim.execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
        assert_eq!(answer(&expected).difference(&answer(&actual), false), None, "{sql}");
        let report = actual.report;
        assert_eq!((report.pool_used_bytes, report.findings.as_slice()), (0, &[] as &[String]), "{sql}");
        assert!(report.launches > 0, "{sql}");
        report
    }
}

/// Groups of a file or of batches in memory. Queries over them read all columns, because DataFusion drops the others.
fn groups(from: &str) -> String {
    format!("SELECT k, sum(id) AS x, min(s) AS y FROM {from} GROUP BY k")
}

#[tokio::test]
async fn a_cte_with_two_readers_is_uploaded_once() {
    let shapes = [
        "WITH c AS (@) SELECT a.k, a.x, b.x, a.y, b.y FROM c a JOIN c b ON a.k = b.k",
        "WITH c AS (@) SELECT a.k, a.x, a.y, b.k, b.x, b.y FROM c a JOIN c b ON a.x < b.x",
        "WITH c AS (@) SELECT k, x, y FROM c UNION ALL SELECT k, -x, y FROM c",
        "WITH c AS (@) SELECT a.x, a.y, b.x, b.y FROM c a FULL JOIN c b ON a.k = b.k + 1",
        "WITH c AS (@) SELECT a.x, a.y, b.x, b.y, d.x, d.y FROM c a JOIN c b ON a.k = b.k LEFT JOIN c d ON b.k = d.k AND d.x > a.x",
    ];
    for settings in [&[][..], &["millpond.batch_rows = 500", "millpond.debug_sim_seed = 11"][..]] {
        let rig = Rig::new(settings).await;
        for table in ["t", "m"] {
            let once = rig.report(&groups(table)).await.uploaded_bytes;
            for shape in shapes {
                let sql = shape.replace('@', &groups(table));
                let twice = rig.report(&sql).await.uploaded_bytes;
                // Tables of dictionaries come besides, for what the query does behind the groups.
                assert!(twice < once * 5 / 4, "{sql}: {twice} bytes were uploaded, {once} for the groups alone");
            }
        }
    }
}

#[tokio::test]
async fn medians_and_joins_below_are_found_once() {
    let rig = Rig::new(&[]).await;
    for groups in [
        "SELECT k, median(id) AS x, count(DISTINCT s) AS y FROM t GROUP BY k",
        "SELECT t.k, sum(many.value) AS x, count(*) AS y FROM t JOIN many ON t.id = many.key WHERE t.id > 7 GROUP BY t.k",
        "SELECT k, sum(id) AS x, grouping(k) AS y FROM t GROUP BY ROLLUP (k)",
    ] {
        let once = rig.report(groups).await.uploaded_bytes;
        let sql =
            format!("WITH c AS ({groups}) SELECT a.x, a.y, b.x, b.y FROM c a JOIN c b ON a.k IS NOT DISTINCT FROM b.k");
        let twice = rig.report(&sql).await.uploaded_bytes;
        assert!(twice < once * 5 / 4, "{sql}: {twice} bytes were uploaded, {once} for the groups alone");
    }
}

#[tokio::test]
async fn what_differs_is_found_twice() {
    let rig = Rig::new(&[]).await;
    for (one, other) in [
        // Other conditions, keys, functions, arguments, filters; another file or table with the same rows.
        (
            "SELECT k, sum(id) AS x FROM t WHERE id > 5 GROUP BY k",
            "SELECT k, sum(id) AS x FROM t WHERE id > 6 GROUP BY k",
        ),
        ("SELECT k, sum(id) AS x FROM t GROUP BY k", "SELECT id AS k, sum(k) AS x FROM t GROUP BY id"),
        ("SELECT k, min(id) AS x FROM t GROUP BY k", "SELECT k, max(id) AS x FROM t GROUP BY k"),
        ("SELECT k, count(id) AS x FROM t GROUP BY k", "SELECT k, count(DISTINCT id) AS x FROM t GROUP BY k"),
        (
            "SELECT k, sum(id) FILTER (WHERE id > 3) AS x FROM t GROUP BY k",
            "SELECT k, sum(id) FILTER (WHERE id > 4) AS x FROM t GROUP BY k",
        ),
        (
            "SELECT k, first_value(id ORDER BY id) AS x FROM t GROUP BY k",
            "SELECT k, first_value(id ORDER BY id DESC) AS x FROM t GROUP BY k",
        ),
        ("SELECT k, sum(id) AS x FROM t GROUP BY k", "SELECT k, sum(id) AS x FROM other GROUP BY k"),
        ("SELECT k, sum(id) AS x FROM m GROUP BY k", "SELECT k, sum(id) AS x FROM n GROUP BY k"),
    ] {
        let sql = format!("SELECT a.k, a.x, b.x FROM ({one}) a JOIN ({other}) b ON a.k = b.k");
        let (both, once) = (rig.report(&sql).await.uploaded_bytes, rig.report(one).await.uploaded_bytes);
        assert!(both > once * 3 / 2, "{sql}: {both} bytes were uploaded, {once} for one side");
    }
}
