//! Sessions, data and rows for tests.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, RecordBatch};
use millpond::datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use millpond::datafusion::datasource::MemTable;
use millpond::datafusion::error::Result;
use millpond::datafusion::prelude::{SessionConfig, SessionContext};
use millpond::{DeviceChoice, Millpond};
use millpond_queries::functions;

/// A session with the functions registered.
pub fn session_on(device: DeviceChoice, partitions: usize, batch_rows: usize) -> Millpond {
    let config = SessionConfig::new().with_target_partitions(partitions).with_batch_size(batch_rows);
    let session = Millpond::builder()
        .with_own_engine()
        .with_device(device)
        .with_config(config)
        .build()
        .expect("the device opens");
    functions::register(session.context()).expect("the functions are registered");
    session
}

pub fn session() -> Millpond {
    session_on(DeviceChoice::Cpu, 3, 64)
}

/// Registers `columns` as a table of `partitions` partitions with small batches.
pub fn table(context: &SessionContext, name: &str, partitions: usize, columns: Vec<(&str, ArrayRef)>) {
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).expect("columns have one length");
    let mut parts = vec![vec![]; partitions.max(1)];
    // Rows are distributed in slices of 10, so that keys are spread over partitions and batches.
    for (piece, start) in (0..batch.num_rows()).step_by(10).enumerate() {
        let length = 10.min(batch.num_rows() - start);
        parts[piece % partitions.max(1)].push(batch.slice(start, length));
    }
    let table = MemTable::try_new(batch.schema(), parts).expect("batches have the schema");
    context.register_table(name, Arc::new(table)).expect("the name is free");
}

pub async fn batches(session: &Millpond, sql: &str) -> Result<Vec<RecordBatch>> {
    session.context().sql(sql).await?.collect().await
}

/// The rows as text, sorted unless `in_order`.
pub fn rows(batches: &[RecordBatch], in_order: bool) -> Vec<Vec<String>> {
    let options = FormatOptions::default().with_null("NULL");
    let mut rows = vec![];
    for batch in batches {
        let columns: Vec<ArrayFormatter> = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &options).expect("the type has a text form"))
            .collect();
        rows.extend(
            (0..batch.num_rows()).map(|row| columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>()),
        );
    }
    if !in_order {
        rows.sort();
    }
    rows
}

pub async fn query(session: &Millpond, sql: &str) -> Vec<Vec<String>> {
    match batches(session, sql).await {
        Ok(batches) => rows(&batches, false),
        Err(error) => panic!("{sql}: {error}"),
    }
}

/// Message of a query that must fail during planning or execution.
pub async fn refusal(session: &Millpond, sql: &str) -> String {
    match batches(session, sql).await {
        Ok(batches) => panic!("{sql} gave {:?}", rows(&batches, true)),
        Err(error) => error.strip_backtrace(),
    }
}

/// The physical plan as text.
pub async fn plan(session: &Millpond, sql: &str) -> String {
    let frame = session.context().sql(sql).await.expect("the query plans");
    let plan = frame.create_physical_plan().await.expect("the query has a physical plan");
    millpond::datafusion::physical_plan::displayable(plan.as_ref()).indent(false).to_string()
}

/// Pseudo-random numbers, equal on every machine.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
