//! Scans that compute: the expressions go back above the scan, and to the device.
//!
//!   DataSourceExec: size + 1   ──►   DeviceProjectExec: size + 1 ─ DeviceScanExec ─ DataSourceExec: size

use std::pin::Pin;
use std::sync::Arc;

use millpond::datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use millpond::datafusion::catalog::{Session, TableProvider};
use millpond::datafusion::datasource::TableType;
use millpond::datafusion::error::Result;
use millpond::datafusion::logical_expr::Expr;
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use millpond::datafusion::prelude::{ParquetReadOptions, SessionContext};
use millpond::{DeviceChoice, Fallback, Millpond};

use crate::answers::Answer;
use crate::edges::write_parquet;
use crate::nested::nested;
use crate::support::{parts, plan_text, session_with};

/// A table whose columns are expressions over another table's, computed by its scan.
#[derive(Debug)]
struct Computing {
    of: Arc<dyn TableProvider>,
    columns: Vec<ProjectionExpr>,
    schema: SchemaRef,
}

/// The columns, each with what it is: one expression comes twice, one within another, one is a column, one a constant.
const COLUMNS: [(&str, &str); 8] = [
    ("id", "id"),
    ("next", "size + 1"),
    ("again", "size + 1"),
    ("twice", "(size + 1) * 2"),
    ("cost", "price * 3"),
    ("word", "upper(name)"),
    ("tag", "k * 10"),
    ("one", "1"),
];

impl Computing {
    async fn over(context: &SessionContext, table: &str, columns: &[(&str, &str)]) -> Self {
        let of = context.table_provider(table).await.expect("the table is there");
        let table = context.table(table).await.expect("the table is there");
        let columns = columns.iter().map(|(name, sql)| {
            let expr = table.parse_sql_expr(sql).expect("an expression");
            let expr = context.create_physical_expr(expr, table.schema()).expect("an expression");
            ProjectionExpr::new(expr, name.to_string())
        });
        let columns: Vec<ProjectionExpr> = columns.collect();
        let field = |column: &ProjectionExpr| {
            let own = column.expr.return_field(table.schema().as_arrow()).expect("a type");
            Field::new(&column.alias, own.data_type().clone(), own.is_nullable()).with_metadata(own.metadata().clone())
        };
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
        Self { of, columns, schema }
    }
}

impl TableProvider for Computing {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn scan<'a, 'b, 'c, 'd, 'out>(
        &'a self,
        state: &'b dyn Session,
        projection: Option<&'c Vec<usize>>,
        _filters: &'d [Expr],
        _limit: Option<usize>,
    ) -> Pin<Box<dyn Future<Output = Result<Arc<dyn ExecutionPlan>>> + Send + 'out>>
    where
        'a: 'out,
        'b: 'out,
        'c: 'out,
        'd: 'out,
        Self: 'out,
    {
        Box::pin(async move {
            let scan = self.of.scan(state, None, &[], None).await?;
            let wanted: Vec<ProjectionExpr> = match projection {
                Some(some) => some.iter().map(|at| self.columns[*at].clone()).collect(),
                None => self.columns.clone(),
            };
            let above = ProjectionExec::try_new(wanted, Arc::clone(&scan))?;
            Ok(scan.try_swapping_with_projection(&above)?.expect("a scan of files computes"))
        })
    }
}

/// `parts` in two folders, `k=1` and `k=2`, with several row groups each; and `t`, which is computed from it.
async fn register(context: &SessionContext, folder: &tempfile::TempDir) {
    for (k, rows) in [(1, parts().slice(0, 400)), (2, parts().slice(400, 600))] {
        let part = folder.path().join(format!("k={k}"));
        if !part.exists() {
            std::fs::create_dir(&part).expect("a folder");
            write_parquet(&rows, &part.join("a.parquet"), 130);
        }
    }
    let path = folder.path().to_str().expect("a UTF-8 path");
    let options = ParquetReadOptions::default()
        .table_partition_cols(vec![("k".to_string(), millpond::datafusion::arrow::datatypes::DataType::Int32)]);
    context.register_parquet("parts", path, options).await.expect("the files are read");
    let computing = Computing::over(context, "parts", &COLUMNS).await;
    context.register_table("t", Arc::new(computing)).expect("a name of its own");
}

async fn over(device: DeviceChoice, folder: &tempfile::TempDir, settings: &[&str]) -> Millpond {
    let session = session_with(device, 2, Fallback::Allow);
    register(session.context(), folder).await;
    for setting in settings {
        session.context().sql(&format!("SET {setting}")).await.expect("the option is taken");
    }
    session
}

#[tokio::test]
async fn what_a_scan_computes_is_computed_on_the_device() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sim = over(DeviceChoice::Sim, &folder, &[]).await;
    assert_eq!(
        plan_text(&sim, "SELECT next, again, id FROM t").await,
        "DownloadExec\n\
         \x20 DeviceProjectExec: expr=[CAST(size@1 AS Int64) + 1 as next, CAST(size@1 AS Int64) + 1 as again, id@0 as id]\n\
         \x20   DeviceScanExec\n\
         \x20     DataSourceExec"
    );
    let plan = plan_text(&sim, "SELECT sum(twice) FROM t WHERE tag > 10").await;
    assert!(
        plan.starts_with("DownloadExec") && plan.contains("DeviceProjectExec") && plan.contains("DeviceScanExec"),
        "{plan}"
    );
}

#[tokio::test]
async fn without_a_device_the_scan_computes_as_ever() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cpu = over(DeviceChoice::Cpu, &folder, &[]).await;
    let off = over(DeviceChoice::Sim, &folder, &["millpond.enabled = false"]).await;
    for sql in ["SELECT next, again, id FROM t", "SELECT word, count(*) FROM t WHERE next > 3 GROUP BY word"] {
        let plan = plan_text(&cpu, sql).await;
        assert!(!plan.contains("Device") && plan.contains("DataSourceExec"), "{plan}");
        assert_eq!(plan, plan_text(&off, sql).await, "{sql}");
    }
    assert_eq!(plan_text(&cpu, "SELECT next, again, id FROM t").await, "DataSourceExec");
}

#[tokio::test]
async fn what_has_no_device_form_stays_in_the_scan_for_its_own_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sim = over(DeviceChoice::Sim, &folder, &["millpond.min_rows = 5000"]).await;
    let frame = sim.context().sql("SELECT next FROM t").await.expect("planned");
    let report = sim.report(&frame.create_physical_plan().await.expect("planned"));
    assert_eq!(report.reasons, ["its input has 1000 rows, and millpond.min_rows is 5000"]);
}

#[tokio::test]
async fn answers_are_those_of_the_scan() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cpu = over(DeviceChoice::Cpu, &folder, &[]).await;
    let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
    for (pushed, rows) in [(false, 100), (true, 30), (true, 3)] {
        let filters = format!("datafusion.execution.parquet.pushdown_filters = {pushed}");
        let sim = over(DeviceChoice::Sim, &folder, &[&filters, &format!("millpond.batch_rows = {rows}")]).await;
        for sql in [
            "SELECT * FROM t",
            "SELECT id, next, again, twice, tag FROM t WHERE next > 30",
            "SELECT word, cost FROM t WHERE id BETWEEN 390 AND 410 AND again IS NOT NULL",
            "SELECT sum(cost), count(next), min(twice), max(tag), sum(one) FROM t",
            "SELECT word, count(*), sum(next + again) FROM t WHERE tag = 20 GROUP BY word",
            "SELECT a.id, b.word FROM t a JOIN t b ON a.id = b.next WHERE a.tag = 10",
            "SELECT id, twice FROM t ORDER BY twice DESC, id LIMIT 9",
            "SELECT id FROM t WHERE word = 'GEAR' AND next IS NULL",
            "SELECT max(next) FROM t WHERE id > 1000000",
        ] {
            let own = cpu.execute(sql).await.expect("the CPU runs it");
            let actual = sim.execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
            let what = format!("{sql}, {rows} rows a batch, filters pushed: {pushed}");
            let difference = answer(&own).difference(&answer(&actual), sql.contains("ORDER BY"));
            assert_eq!(difference, None, "{what}");
            assert_eq!(actual.report.findings, Vec::<String>::new(), "{what}");
            assert_eq!(actual.report.reasons, Vec::<String>::new(), "{what}");
            assert!(actual.report.launches > 0, "{what}");
            assert_eq!(own.schema, actual.schema, "{what}");
        }
    }
}

/// Fields of structures and items of lists, which DataFusion leaves to scans more often than anything else.
#[tokio::test]
async fn fields_of_structures_come_back_from_scans() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("nested.parquet");
    write_parquet(&nested(200), &path, 60);
    let path = path.to_str().expect("a UTF-8 path");
    let columns =
        [("id", "id"), ("a", "st['a']"), ("b", "upper(st['b'])"), ("item", "l[1]"), ("items", "array_length(l)")];
    let mut sessions = vec![];
    for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
        let session =
            session_with(device, 2, if device == DeviceChoice::Sim { Fallback::Error } else { Fallback::Allow });
        let context = session.context();
        context.register_parquet("nested", path, ParquetReadOptions::default()).await.expect("the file is read");
        let computing = Computing::over(context, "nested", &columns).await;
        context.register_table("f", Arc::new(computing)).expect("a name of its own");
        context.sql("SET millpond.batch_rows = 30").await.expect("the option is taken");
        sessions.push(session);
    }
    let answer = |result: &millpond::session::QueryResult| Answer::new(&result.schema, &result.batches);
    for sql in [
        "SELECT * FROM f",
        "SELECT b, count(*), sum(a), min(item), max(items) FROM f GROUP BY b",
        "SELECT id, a FROM f WHERE items > 1 AND b = 'X'",
        "SELECT id, st['a'] + 1 AS a, st FROM nested WHERE st['b'] = 'x'",
    ] {
        let plan = plan_text(&sessions[1], sql).await;
        assert!(plan.starts_with("DownloadExec") && plan.contains("DeviceScanExec"), "{sql}: {plan}");
        let own = sessions[0].execute(sql).await.expect("the CPU runs it");
        let actual = sessions[1].execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert_eq!(answer(&own).difference(&answer(&actual), false), None, "{sql}");
        assert_eq!((&actual.report.findings, &actual.report.reasons), (&vec![], &vec![]), "{sql}");
    }
}
