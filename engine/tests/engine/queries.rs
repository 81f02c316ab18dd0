//! Queries on the simulated device give the CPU's answers, launch kernels, and leave nothing behind.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, Float32Array, Float64Array};
use millpond::datafusion::arrow::record_batch::RecordBatch;
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use millpond::{DeviceChoice, Fallback, Millpond, QueryResult};

use crate::answers::orders_its_rows;
use crate::support::{register_parquet, session_with};

/// Rows as text, sorted unless the query orders them.
pub fn rows(batches: &[RecordBatch], ordered: bool) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let mut rows = Vec::new();
    for batch in batches {
        let columns: Vec<_> =
            batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options).unwrap()).collect();
        for row in 0..batch.num_rows() {
            rows.push(columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join(" | "));
        }
    }
    if !ordered {
        rows.sort();
    }
    rows
}

pub async fn run(session: &Millpond, sql: &str) -> QueryResult {
    session.execute(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"))
}

/// Runs `sql` on both, and compares. The device must have done all of it.
pub async fn same(sql: &str) -> QueryResult {
    let folder = tempfile::tempdir().unwrap();
    let cpu = session_with(DeviceChoice::Cpu, 4, Fallback::Allow);
    let sim = session_with(DeviceChoice::Sim, 4, Fallback::Error);
    register_parquet(cpu.context(), &folder).await;
    register_parquet(sim.context(), &folder).await;
    let ordered = orders_its_rows(sql);
    let expected = rows(&run(&cpu, sql).await.batches, ordered);
    let result = run(&sim, sql).await;
    assert_eq!(rows(&result.batches, ordered), expected, "{sql}");
    assert_eq!(result.report.findings, Vec::<String>::new(), "{sql}");
    assert_eq!(result.report.notes, Vec::<String>::new(), "{sql}");
    assert!(result.report.launches > 0, "{sql}");
    assert_eq!(sim.pool_used_bytes(), 0, "{sql}");
    result
}

#[tokio::test]
async fn sum_with_a_filter() {
    let result = same("SELECT sum(price) FROM parts WHERE size > 10").await;
    assert_eq!(result.report.host_waits, 1);
}

#[tokio::test]
async fn aggregates_of_every_kind() {
    same("SELECT count(*), count(size), sum(size), min(size), max(size), avg(weight), sum(price), avg(price), min(made) FROM parts").await;
}

#[tokio::test]
async fn least_and_greatest_booleans() {
    same("SELECT size, min(good), max(good) FROM parts GROUP BY size").await;
    same("SELECT min(good), max(good) FROM parts WHERE id = 2").await;
}

#[tokio::test]
async fn filter_and_project() {
    same("SELECT id, size + 1, price * 2, weight / 2 FROM parts WHERE size > 10 AND good").await;
}

#[tokio::test]
async fn strings_are_tested_on_their_dictionary() {
    same("SELECT id, name FROM parts WHERE name LIKE 'b%' OR name = 'é'").await;
    same("SELECT count(*) FROM parts WHERE coalesce(name, 'none') = 'none'").await;
    same("SELECT upper(name), length(name) FROM parts WHERE id < 20").await;
}

#[tokio::test]
async fn groups_by_a_string() {
    same("SELECT name, count(*), sum(price) FROM parts GROUP BY name").await;
}

#[tokio::test]
async fn groups_by_numbers_and_having() {
    same("SELECT size, good, count(*) FROM parts GROUP BY size, good HAVING count(*) > 5").await;
    same("SELECT id, count(*) FROM parts GROUP BY id").await;
}

#[tokio::test]
async fn sorts() {
    same("SELECT name, count(*) AS n FROM parts GROUP BY name ORDER BY name DESC NULLS LAST").await;
    same("SELECT id, weight FROM parts WHERE size > 40 ORDER BY weight DESC, id LIMIT 5").await;
}

#[tokio::test]
async fn strings_of_several_columns_meet_in_one_dictionary() {
    let two = "(SELECT id, size, name, upper(name) AS loud, substr(name, 1, 1) AS first FROM parts WHERE id > 3)";
    same(&format!("SELECT count(*) FROM {two} WHERE name = loud")).await;
    same(&format!("SELECT count(*), sum(id) FROM {two} WHERE name > loud OR first >= name")).await;
    same(&format!("SELECT id, coalesce(CASE WHEN size > 25 THEN loud END, name, 'none') FROM {two}")).await;
    same(&format!(
        "SELECT CASE WHEN size > 25 THEN name WHEN size > 10 THEN 'mid' ELSE first END AS k, count(*) FROM {two} \
         GROUP BY 1 ORDER BY k NULLS FIRST"
    ))
    .await;
    same(&format!("SELECT id, nullif(name, first), name IS DISTINCT FROM first FROM {two}")).await;
    same("SELECT CASE WHEN good THEN 'yes' WHEN NOT good THEN 'no' END AS k, count(*) FROM parts GROUP BY 1").await;
}

#[tokio::test]
async fn least_and_greatest_strings() {
    same("SELECT min(name), max(name), min(upper(name)), count(*) FROM parts WHERE id > 3").await;
    same("SELECT size, min(name), max(name) FILTER (WHERE good) FROM parts GROUP BY size HAVING max(name) > 'c'").await;
    same("SELECT max(least) FROM (SELECT size, min(name) AS least FROM parts WHERE id > 3 GROUP BY size)").await;
    same("SELECT size, max(substr(name, 2)) AS m FROM parts GROUP BY size ORDER BY m, size").await;
}

fn rows_of(result: &QueryResult) -> Vec<String> {
    rows(&result.batches, false)
}

/// -0.0 and 0.0 are one group, and NULL is another; `floats` distinguishes NaNs.
#[tokio::test]
async fn groups_by_floats() {
    same("SELECT weight, count(*), sum(id) FROM parts GROUP BY weight").await;
    let floats: Float64Array = (0..600)
        .map(|i| [Some(0.0), Some(-0.0), Some(f64::NAN), None, Some(1.5), Some(f64::INFINITY)][i % 6])
        .collect();
    let small: Float32Array = (0..600).map(|i| Some([0.0_f32, -0.0, 2.5, f32::MIN][i % 4])).collect();
    let batch = RecordBatch::try_from_iter([("x", Arc::new(floats) as ArrayRef), ("y", Arc::new(small) as ArrayRef)]);
    for sql in ["SELECT x, count(*) FROM t GROUP BY x", "SELECT x, y, count(*) FROM t GROUP BY x, y"] {
        let mut answers = Vec::new();
        for device in [DeviceChoice::Cpu, DeviceChoice::Sim] {
            let session = session_with(device, 2, Fallback::Error);
            session.context().register_batch("t", batch.as_ref().unwrap().clone()).unwrap();
            // The zero that represents its group depends on the order of rows.
            let rows = rows_of(&run(&session, sql).await).into_iter().map(|row| row.replace("-0.0", "0.0"));
            let mut rows: Vec<String> = rows.collect();
            rows.sort();
            answers.push(rows);
        }
        assert_eq!(answers[0], answers[1], "{sql}");
    }
}
