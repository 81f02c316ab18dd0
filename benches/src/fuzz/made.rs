//! CREATE TABLE AS reuses the findings of earlier runs of its query; the table must still contain the query's rows.
//!
//! ```text
//!   query ─► CREATE OR REPLACE TABLE made AS query ─► SELECT * FROM made       each by DataFusion's answer to the
//!                                                                              same; then again
//!     └ asks        └ takes over, every n-th answer wrong
//! ```
//!
//! Again   a definition forgets kept plans and what they have found, so the query runs once more before the next table.
//! Left    once the table is dropped, none of its columns is stored.

use std::time::Duration;

use millpond::datafusion::error::DataFusionError;
use millpond::datafusion::logical_expr::{DdlStatement, LogicalPlan};
use millpond::store::Store;
use millpond::{Millpond, QueryReport};
use millpond_queries::answer::Answer;

use super::lab::{Kind, PATIENCE, Ran, Verdict, caught, compare_runs, operators, run};
use super::pair::Door;
use super::query::Query;

/// Name of the table, and the query that reads it.
const MADE: &str = "made";
const READ: &str = "SELECT * FROM made";

/// Every n-th result that a session reuses is falsified: the current n, and the n after the query has been judged; 0
/// for none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surprises {
    pub surprises: usize,
    pub usual: usize,
}

/// Judges a query and two tables created from it against a session without a device. `is_shared` if other sessions
/// store tables on its device, too.
pub(crate) async fn judge(
    query: &Query,
    [cpu, session]: [&Millpond; 2],
    Surprises { surprises, usual }: Surprises,
    is_shared: bool,
) -> Verdict {
    let sql = query.sql();
    let expected = [run(cpu, &sql, Door::Execute).await, run_made(cpu, &sql).await];
    let verdict = match set_surprises(session, surprises).await {
        Ok(()) => judge_runs(query, &sql, session, &expected).await,
        Err(message) => Verdict::Differs { kind: Kind::Error, message },
    };
    let ended = async {
        set_surprises(session, usual).await?;
        for session in [cpu, session] {
            let dropped = session.execute(&format!("DROP TABLE IF EXISTS {MADE}")).await;
            dropped.map_err(|error| error.strip_backtrace())?;
        }
        if is_shared { Ok(()) } else { forgotten(session).await }
    };
    match ended.await {
        Err(message) if !matches!(verdict, Verdict::Differs { .. }) => Verdict::Differs { kind: Kind::Leak, message },
        _ => verdict,
    }
}

async fn judge_runs(query: &Query, sql: &str, session: &Millpond, [rows, table]: &[Ran; 2]) -> Verdict {
    let mut first = None;
    for turn in 0..4 {
        let (what, verdict) = match turn % 2 {
            0 => ("the query", compare_runs(query, sql, rows, run(session, sql, Door::Execute).await)),
            _ => ("a table made of it", compare_runs(query, READ, table, run_made(session, sql).await)),
        };
        match verdict {
            Verdict::Differs { kind, message } => {
                let message = format!("run {} of 4, {what}: {message}", turn + 1);
                return Verdict::Differs { kind, message };
            }
            verdict => _ = first.get_or_insert(verdict),
        }
    }
    first.unwrap_or_else(|| Verdict::Differs { kind: Kind::Hang, message: "nothing ran".to_string() })
}

async fn set_surprises(session: &Millpond, each: usize) -> Result<(), String> {
    let set = session.execute(&format!("SET millpond.debug_surprises = {each}")).await;
    set.map(drop).map_err(|error| error.strip_backtrace())
}

/// Creates a table from a query, and reads it.
async fn run_made(session: &Millpond, sql: &str) -> Ran {
    let (session, sql) = (session.clone(), format!("CREATE OR REPLACE TABLE {MADE} AS {sql}"));
    caught(async move {
        let statement = session.statement(&sql).await?;
        let created = match statement.plan().clone() {
            LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => session.create_table(create).await?,
            other => return Err(DataFusionError::Plan(format!("{} makes no table", other.display()))),
        };
        let mut report = created.map_or_else(QueryReport::default, |created| created.report);
        let read = session.execute(READ).await?;
        let answer = Answer::try_new(&read.schema, &read.batches)?;
        report.absorb(read.report);
        Ok((answer, report, operators(&session, &read.plan)))
    })
    .await
}

/// Waits until a session's device stores no column of the dropped table.
async fn forgotten(session: &Millpond) -> Result<(), String> {
    let Some(store) = session.engine().map(|engine| Store::of(engine)) else { return Ok(()) };
    for _ in 0..PATIENCE.as_millis() / 10 {
        if store.entries(None).iter().all(|entry| entry.table != MADE) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err(format!("columns of {MADE} stay after it was dropped"))
}
