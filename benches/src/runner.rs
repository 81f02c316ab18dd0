//! Runs a suite's queries once each and says what each one did.
//!
//! ```text
//!   DIR/lineitem.parquet ─┐
//!   DIR/orders/          ─┴─► tables of a session ─► execute ─► Outcome { rows, digest, report }
//! ```
//!
//! Errors   a missing table names the two places where it was looked for.
//! Time     is the host's wall clock; the simulated device's is never reported as performance.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use millpond::datafusion::error::DataFusionError;
use millpond::datafusion::prelude::ParquetReadOptions;
use millpond::{Millpond, QueryReport};
use millpond_queries::answer::{Answer, Difference, compare};
use millpond_queries::{Query, Suite};

/// Why a suite could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerError {
    #[error(
        "table {table} of suite {suite} is missing: neither {} nor the folder {} exists; \
         make the data with: millpond gen {suite} --scale 1 --out {}",
        file.display(), folder.display(), data.display()
    )]
    TableMissing { suite: String, table: String, file: PathBuf, folder: PathBuf, data: PathBuf },
    #[error("cannot read table {table}: {source}")]
    Table { table: String, source: DataFusionError },
    #[error("{query}: {source}")]
    Query { query: String, source: DataFusionError },
}

/// What one query gave.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub query: String,
    pub answer: Answer,
    pub elapsed: Duration,
    pub report: QueryReport,
}

/// Registers a suite's tables from the files or folders of `data`.
///
/// # Errors
/// [`RunnerError::TableMissing`] and [`RunnerError::Table`].
pub async fn register_tables(session: &Millpond, suite: &Suite, data: &Path) -> Result<(), RunnerError> {
    for table in &suite.tables {
        let file = data.join(format!("{table}.parquet"));
        let folder = data.join(table);
        let path = match (file.exists(), folder.is_dir()) {
            (true, _) => &file,
            (false, true) => &folder,
            (false, false) => {
                let (suite, table) = (suite.name.clone(), table.clone());
                return Err(RunnerError::TableMissing { suite, table, file, folder, data: data.to_path_buf() });
            }
        };
        session
            .context()
            .register_parquet(table.as_str(), path.to_string_lossy(), ParquetReadOptions::default())
            .await
            .map_err(|source| RunnerError::Table { table: table.clone(), source })?;
    }
    Ok(())
}

/// Runs one query and collects its answer.
///
/// # Errors
/// [`RunnerError::Query`] with the query's id.
pub async fn run_query(session: &Millpond, query: &Query) -> Result<Outcome, RunnerError> {
    let failed = |source| RunnerError::Query { query: query.id.clone(), source };
    let started = Instant::now();
    let result = session.execute(&query.sql).await.map_err(failed)?;
    let elapsed = started.elapsed();
    let answer = Answer::try_new(&result.schema, &result.batches)
        .map_err(|error| failed(DataFusionError::ArrowError(Box::new(error), None)))?;
    Ok(Outcome { query: query.id.clone(), answer, elapsed, report: result.report })
}

/// Compares an outcome with the answer of another session, in order when the query says ORDER BY at its end.
///
/// # Errors
/// The first [`Difference`].
pub fn validate(query: &Query, expected: &Outcome, actual: &Outcome) -> Result<(), Difference> {
    compare(&expected.answer, &actual.answer, is_ordered(&query.sql))
}

/// True when the outermost query has an ORDER BY, and so its rows have an order.
pub fn is_ordered(sql: &str) -> bool {
    use millpond::datafusion::sql::parser::{DFParser, Statement};
    use millpond::datafusion::sql::sqlparser::ast;
    let Ok(statements) = DFParser::parse_sql(sql) else { return false };
    statements.iter().any(|statement| match statement {
        Statement::Statement(inner) => {
            matches!(inner.as_ref(), ast::Statement::Query(query) if query.order_by.is_some())
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_outermost_order_counts() {
        assert!(is_ordered("SELECT a FROM t ORDER BY a LIMIT 3"));
        assert!(is_ordered("-- comment\nWITH x AS (SELECT 1) SELECT * FROM x ORDER BY 1"));
        assert!(!is_ordered("SELECT * FROM (SELECT a FROM t ORDER BY a) AS s"));
        assert!(!is_ordered("SELECT row_number() OVER (ORDER BY a) FROM t"));
    }
}
