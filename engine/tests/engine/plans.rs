//! The plans of TPC-H: as text, and under the statistics of a warehouse.
//!
//!   files of scale 0.01 ──┬─► as they are                  plans/scale_0.01/q01.txt …
//!                         └─► with statistics times 10⁴    plans/scale_100/q01.txt …   other sides, other modes, same
//!                                                                                      rows
//!
//! Write   `MILLPOND_PLANS_WRITE=1 cargo test --workspace --test engine -- plans` writes the files; what changes wants
//!         reading.
//! Rows    are those of the small files, so the plans of scale 100 run, too: statistics are estimates here.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use millpond::datafusion::arrow::datatypes::SchemaRef;
use millpond::datafusion::catalog::{Session, TableProvider};
use millpond::datafusion::common::ScalarValue;
use millpond::datafusion::common::stats::Precision;
use millpond::datafusion::common::{ColumnStatistics, Statistics};
use millpond::datafusion::datasource::TableType;
use millpond::datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder};
use millpond::datafusion::datasource::source::DataSourceExec;
use millpond::datafusion::error::Result;
use millpond::datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use millpond::datafusion::physical_plan::ExecutionPlan;
use millpond::{DeviceChoice, Fallback, Millpond};
use millpond_data::tpch::Table;

use crate::answers::Answer;
use crate::support::plan_text;
use crate::tpch::{config, data, parquet_session, queries, register_parquet};

/// A table whose statistics are estimates for a larger one.
#[derive(Debug)]
struct Scaled {
    table: Arc<dyn TableProvider>,
    factor: i64,
}

impl TableProvider for Scaled {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        self.table.supports_filters_pushdown(filters)
    }

    fn scan<'a, 'b, 'c, 'd, 'out>(
        &'a self,
        state: &'b dyn Session,
        projection: Option<&'c Vec<usize>>,
        filters: &'d [Expr],
        limit: Option<usize>,
    ) -> Pin<Box<dyn Future<Output = Result<Arc<dyn ExecutionPlan>>> + Send + 'out>>
    where
        'a: 'out,
        'b: 'out,
        'c: 'out,
        'd: 'out,
        Self: 'out,
    {
        Box::pin(async move {
            let plan = self.table.scan(state, projection, filters, limit).await?;
            let Some(scan) = plan.downcast_ref::<DataSourceExec>() else { return Ok(plan) };
            let Some(files) = scan.data_source().downcast_ref::<FileScanConfig>() else { return Ok(plan) };
            let statistics = scaled(&files.statistics(), self.factor, &self.schema());
            let files = FileScanConfigBuilder::from(files.clone()).with_statistics(statistics).build();
            Ok(DataSourceExec::from_data_source(files) as Arc<dyn ExecutionPlan>)
        })
    }
}

/// As estimates: rows and bytes times `factor`, and the greatest of every key.
fn scaled(statistics: &Statistics, factor: i64, schema: &SchemaRef) -> Statistics {
    let times = |number: &Precision<usize>| match number.get_value() {
        Some(number) => Precision::Inexact(number * factor as usize),
        None => Precision::Absent,
    };
    let column = |(index, column): (usize, &ColumnStatistics)| {
        let key = schema.field(index).name().ends_with("key");
        let max_value = match column.max_value.get_value() {
            Some(ScalarValue::Int64(Some(max))) if key => {
                Precision::Inexact(ScalarValue::Int64(Some(max.saturating_mul(factor))))
            }
            _ => column.max_value.clone().to_inexact(),
        };
        ColumnStatistics {
            null_count: column.null_count,
            max_value,
            min_value: column.min_value.clone().to_inexact(),
            distinct_count: if key { times(&column.distinct_count) } else { column.distinct_count.to_inexact() },
            ..ColumnStatistics::new_unknown()
        }
    };
    Statistics {
        num_rows: times(&statistics.num_rows),
        total_byte_size: times(&statistics.total_byte_size),
        column_statistics: statistics.column_statistics.iter().enumerate().map(column).collect(),
    }
}

/// A session whose tables claim to have the rows of scale 100.
async fn warehouse(device: DeviceChoice, small: &Path, factor: i64) -> Millpond {
    let session = Millpond::builder()
        .with_own_engine()
        .with_device(device)
        .with_fallback(Fallback::Allow)
        .with_config(config(4))
        .build();
    let session = session.expect("the device opens");
    let context = session.context();
    register_parquet(context, small).await;
    for name in Table::ALL.map(Table::name) {
        if ["nation", "region"].contains(&name) {
            continue;
        }
        let table = context.deregister_table(name).expect("a catalog").expect("the table is there");
        context.register_table(name, Arc::new(Scaled { table, factor })).expect("registered");
    }
    session
}

/// Compares the plans of all queries with the files of a folder, or writes them.
async fn compare(session: &Millpond, folder: &str) {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans").join(folder);
    let write = std::env::var_os("MILLPOND_PLANS_WRITE").is_some();
    let mut changed = Vec::new();
    for (number, sql) in queries() {
        let plan = plan_text(session, &sql).await;
        let file = folder.join(format!("q{number:02}.txt"));
        if write {
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(&file, format!("{plan}\n")).expect("a file");
            continue;
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        if expected.trim_end() != plan.trim_end() {
            changed.push(format!("Q{number}, {}:\n{}", file.display(), difference(&expected, &plan)));
        }
    }
    assert!(
        changed.is_empty(),
        "{} plans changed; MILLPOND_PLANS_WRITE=1 writes them\n{}",
        changed.len(),
        changed.join("\n")
    );
}

/// Lines that only one of two texts has.
fn difference(expected: &str, actual: &str) -> String {
    let lines = |text: &str, other: &str, sign: char| {
        let only: Vec<String> = text
            .lines()
            .filter(|line| !other.lines().any(|o| o == *line))
            .map(|line| format!("{sign}{line}"))
            .collect();
        only.join("\n")
    };
    format!("{}\n{}", lines(expected, actual, '-'), lines(actual, expected, '+'))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_at_scale_a_hundredth_are_those_on_file() {
    let session = parquet_session(DeviceChoice::Sim, Fallback::Allow, config(4), &data("0.01")).await;
    compare(&session, "scale_0.01").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_at_scale_a_hundred_are_those_on_file() {
    compare(&warehouse(DeviceChoice::Sim, &data("0.01"), 10_000).await, "scale_100").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_of_scale_a_hundred_give_the_answers_of_the_cpu() {
    let small = data("0.001");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(4), &small).await;
    let sim = warehouse(DeviceChoice::Sim, &small, 100_000).await;
    let mut failures = Vec::new();
    for (number, sql) in queries() {
        let expected = cpu.execute(&sql).await.expect("the CPU's answer");
        let actual = match sim.execute(&sql).await {
            Ok(actual) => actual,
            Err(error) => {
                failures.push(format!("Q{number}: {}", error.strip_backtrace()));
                continue;
            }
        };
        let ordered = sql.to_lowercase().contains("order by");
        let answer = |result: &millpond::QueryResult| Answer::new(&result.schema, &result.batches);
        if let Some(difference) = answer(&expected).difference(&answer(&actual), ordered) {
            failures.push(format!("Q{number}: {difference}"));
        }
        let report = &actual.report;
        if report.launches == 0 || !report.findings.is_empty() || report.pool_used_bytes > 0 || !report.notes.is_empty()
        {
            failures.push(format!("Q{number}: {report:?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
