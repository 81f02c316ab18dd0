//! Statements that a suite may run: reads of the suite's tables, and tables and views that it creates itself.
//!
//! ```text
//!   SQL ─ file_by_name ─► planned ─ refusal ─► run
//!           │                        └ every node, those of subqueries, views and functions too: on the list, or
//!                                    refused
//!           └ FROM '/etc/passwd', FROM 's3://…': refused before anything is opened
//! ```
//!
//! Allowed  queries, EXPLAIN and EXPLAIN ANALYZE of queries, CREATE TABLE … AS, CREATE VIEW, and DROP of what the query
//!          made itself.
//! Reads    go to tables that are registered in the session, and to what makes its rows itself: VALUES, `range()`, a
//!          recursive CTE. A file that SQL or the argument of a function names is refused, also in a session that reads
//!          files by name.
//! Errors   here say what is refused; the runner adds the file, the statement, and [`ALLOWED`].

use std::sync::Arc;

use millpond::datafusion::catalog::cte_worktable::CteWorkTable;
use millpond::datafusion::catalog::information_schema::INFORMATION_SCHEMA;
use millpond::datafusion::catalog::{MemTable, SchemaProvider, TableProvider};
use millpond::datafusion::common::tree_node::TreeNodeRecursion;
use millpond::datafusion::common::{ResolvedTableReference, TableReference};
use millpond::datafusion::datasource::source_as_provider;
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::context::SessionContext;
use millpond::datafusion::functions_table::generate_series::GenerateSeriesTable;
use millpond::datafusion::logical_expr::{DdlStatement, LogicalPlan, TableScan};
use millpond::datafusion::sql::parser::Statement;
use millpond::datafusion::sql::resolve::resolve_table_references;
use millpond::datafusion::sql::sqlparser::ast;
use millpond_queries::functions::RelationNode;

/// Advice in a refusal.
pub(crate) const ALLOWED: &str = "a suite's statements are queries, EXPLAIN of queries, CREATE TABLE … AS, CREATE VIEW, and DROP of what the \
                                  same query made; files are read as tables of the suite, and options are given by --set KEY=VALUE";

/// The refusal of a statement that names a file where a table belongs.
///
/// # Errors
/// DataFusion's, for a name that is none.
pub(crate) fn file_by_name(context: &SessionContext, statement: &Statement) -> Result<Option<String>> {
    let normalized = context.copied_config().options().sql_parser.enable_ident_normalization;
    let (names, _) = resolve_table_references(statement, normalized)?;
    let made = made_by(statement);
    let is_path = |name: &str| name.contains(['/', '\\', '.', ':', '*', '?', '[', '~']);
    let file = names.into_iter().find(|name| {
        is_path(name.table()) && made.as_deref() != Some(name.table()) && !exists(context, &resolved(context, name))
    });
    Ok(file.map(|name| format!("'{}' is no table of the suite, and files are not read by name", name.table())))
}

/// The name that CREATE TABLE or CREATE VIEW gives, which may be any.
fn made_by(statement: &Statement) -> Option<String> {
    let Statement::Statement(statement) = statement else { return None };
    let name = match statement.as_ref() {
        ast::Statement::CreateTable(create) => &create.name,
        ast::Statement::CreateView(create) => &create.name,
        _ => return None,
    };
    Some(name.0.last()?.as_ident()?.value.clone())
}

/// The refusal of a plan that would change anything outside the query, or read what is no table of the session.
/// `before` are the tables that were there before the query.
///
/// # Errors
/// DataFusion's, of its catalogs.
pub(crate) async fn refusal(context: &SessionContext, plan: &LogicalPlan, before: &[String]) -> Result<Option<String>> {
    let mut scans = Vec::new();
    let refused = match plan {
        LogicalPlan::Explain(explain) => judge(&explain.plan, &mut scans)?,
        LogicalPlan::Analyze(analyze) => judge(&analyze.input, &mut scans)?,
        LogicalPlan::Ddl(ddl) => match definition(context, ddl, before) {
            None => first_of(ddl.inputs().into_iter().map(|input| judge(input, &mut scans)))?,
            refused => refused,
        },
        plan => judge(plan, &mut scans)?,
    };
    if refused.is_some() {
        return Ok(refused);
    }
    for scan in scans {
        if !is_readable(context, &scan).await? {
            return Ok(Some(format!("{} is no table of the suite, and would be read", scan.table_name)));
        }
    }
    Ok(None)
}

fn first_of(mut refusals: impl Iterator<Item = Result<Option<String>>>) -> Result<Option<String>> {
    refusals.find_map(Result::transpose).transpose()
}

/// The refusal of a query's plan, if one of its nodes is not on the list. What it reads is collected in `scans`.
fn judge(plan: &LogicalPlan, scans: &mut Vec<TableScan>) -> Result<Option<String>> {
    let mut refused = None;
    plan.apply_with_subqueries(|node| {
        match node {
            LogicalPlan::Projection(_)
            | LogicalPlan::Filter(_)
            | LogicalPlan::Window(_)
            | LogicalPlan::Aggregate(_)
            | LogicalPlan::Sort(_)
            | LogicalPlan::Join(_)
            | LogicalPlan::Repartition(_)
            | LogicalPlan::Union(_)
            | LogicalPlan::EmptyRelation(_)
            | LogicalPlan::Subquery(_)
            | LogicalPlan::SubqueryAlias(_)
            | LogicalPlan::Limit(_)
            | LogicalPlan::Values(_)
            | LogicalPlan::Distinct(_)
            | LogicalPlan::DescribeTable(_)
            | LogicalPlan::Unnest(_)
            | LogicalPlan::RecursiveQuery(_) => {}
            LogicalPlan::TableScan(scan) => match scan.source.get_logical_plan() {
                Some(view) => refused = judge(&view, scans)?,
                None => scans.push(scan.clone()),
            },
            LogicalPlan::Extension(extension) if extension.node.as_any().is::<RelationNode>() => {}
            LogicalPlan::Extension(extension) => refused = Some(format!("{} is not known here", extension.node.name())),
            LogicalPlan::Dml(dml) => refused = Some(format!("{} would change {}", dml.op, dml.table_name)),
            LogicalPlan::Copy(copy) => refused = Some(format!("COPY would write {}", copy.output_url)),
            LogicalPlan::Statement(statement) => {
                refused = Some(format!("{} would change the session", statement.display()));
            }
            LogicalPlan::Ddl(ddl) => refused = Some(format!("{} is not a query", ddl.display())),
            LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) => refused = Some("EXPLAIN is not a query".to_string()),
        }
        Ok(if refused.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(refused)
}

/// The refusal of a definition that would outlive the query, or is about a table of others.
fn definition(context: &SessionContext, ddl: &DdlStatement, before: &[String]) -> Option<String> {
    let (name, leaves_it) = match ddl {
        DdlStatement::CreateMemoryTable(create) => (&create.name, create.if_not_exists),
        DdlStatement::CreateView(create) => (&create.name, false),
        DdlStatement::DropTable(drop) => (&drop.name, false),
        DdlStatement::DropView(drop) => (&drop.name, false),
        other => return Some(format!("{} would outlive the query", other.display())),
    };
    let own = TableReference::bare(name.table());
    if resolved(context, name) != resolved(context, &own) {
        return Some(format!("{} is about another schema than the query's own", ddl.display()));
    }
    let theirs = before.iter().any(|table| table == name.table());
    (theirs && !leaves_it).then(|| format!("{} is about a table of the suite", ddl.display()))
}

/// True for a table of the session, and for what makes its rows itself.
async fn is_readable(context: &SessionContext, scan: &TableScan) -> Result<bool> {
    let provider = source_as_provider(&scan.source)?;
    if provider.is::<MemTable>() || provider.is::<CteWorkTable>() || provider.is::<GenerateSeriesTable>() {
        return Ok(true);
    }
    let name = resolved(context, &scan.table_name);
    if name.schema.as_ref() == INFORMATION_SCHEMA {
        // Its tables are made for each query.
        return Ok(true);
    }
    let registered = registered(context, &name).await?;
    Ok(registered.is_some_and(|registered| Arc::ptr_eq(&registered, &provider)))
}

async fn registered(context: &SessionContext, name: &ResolvedTableReference) -> Result<Option<Arc<dyn TableProvider>>> {
    match schema_of(context, name) {
        // A session that reads files by name would give a table for every name.
        Some(schema) if schema.table_exist(&name.table) => schema.table(&name.table).await,
        _ => Ok(None),
    }
}

fn exists(context: &SessionContext, name: &ResolvedTableReference) -> bool {
    schema_of(context, name).is_some_and(|schema| schema.table_exist(&name.table))
}

fn schema_of(context: &SessionContext, name: &ResolvedTableReference) -> Option<Arc<dyn SchemaProvider>> {
    context.catalog(&name.catalog)?.schema(&name.schema)
}

fn resolved(context: &SessionContext, name: &TableReference) -> ResolvedTableReference {
    let config = context.copied_config();
    let names = &config.options().catalog;
    name.clone().resolve(&names.default_catalog, &names.default_schema)
}

#[cfg(test)]
mod tests {
    use millpond::datafusion::prelude::SessionConfig;
    use millpond::{DeviceChoice, Millpond};
    use millpond_queries::{Query, functions};

    use super::*;
    use crate::runner::{Outcome, RunnerError, run_query};

    /// Runs a query where files are read by name, beside the suite's table `t` and files that are none of its tables.
    async fn run(sql: &str) -> (Result<Outcome, RunnerError>, tempfile::TempDir) {
        let builder = Millpond::builder().with_device(DeviceChoice::Cpu).with_url_tables();
        let config = SessionConfig::new().with_information_schema(true);
        let session = builder.with_config(config).build().expect("a session");
        functions::register(session.context()).expect("registered");
        session.execute("CREATE TABLE t AS SELECT 1 AS a").await.expect("made");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("x.csv"), "a,b\n1,2\n").expect("written");
        let sql = sql.replace("DIR", folder.path().to_str().expect("UTF-8"));
        let ran = run_query(&session, &Query::new("q1", &sql).expect("a query")).await;
        let catalog = session.context().catalog("datafusion").expect("the default one");
        let left = catalog.schema("public").expect("the default one").table_names();
        assert_eq!((left, catalog.schema_names().len()), (vec!["t".to_string()], 1), "{sql}");
        (ran, folder)
    }

    #[tokio::test]
    async fn what_is_not_on_the_list_is_refused() {
        for (sql, says) in [
            ("COPY t TO 'DIR/y.csv'", "statement 1: COPY would write"),
            (
                "SELECT 1; EXPLAIN ANALYZE COPY (SELECT 42) TO 'DIR/y.csv' STORED AS CSV",
                "statement 2: COPY would write",
            ),
            ("EXPLAIN COPY t TO 'DIR/y.csv'", "COPY would write"),
            ("INSERT INTO t SELECT 2", "Insert Into would change t"),
            ("EXPLAIN ANALYZE INSERT INTO t SELECT 2", "Insert Into would change t"),
            ("DELETE FROM t", "Delete would change t"),
            ("UPDATE t SET a = 2", "Update would change t"),
            ("CREATE EXTERNAL TABLE e STORED AS CSV LOCATION 'DIR/x.csv'", "would outlive the query"),
            ("EXPLAIN ANALYZE CREATE TABLE own AS SELECT 1", "is not a query"),
            ("CREATE SCHEMA s", "would outlive the query"),
            ("CREATE DATABASE d", "would outlive the query"),
            ("DROP SCHEMA public CASCADE", "would outlive the query"),
            ("DROP TABLE t", "is about a table of the suite"),
            ("DROP VIEW t", "is about a table of the suite"),
            ("CREATE VIEW t AS SELECT 1", "is about a table of the suite"),
            ("CREATE OR REPLACE TABLE t AS SELECT 1", "is about a table of the suite"),
            ("CREATE TABLE information_schema.own AS SELECT 1", "is about another schema"),
            ("CREATE VIEW datafusion.information_schema.own AS SELECT 1", "is about another schema"),
            ("SET datafusion.execution.batch_size = 3", "would change the session"),
            ("RESET datafusion.execution.batch_size", "would change the session"),
            ("PREPARE p AS SELECT 1", "would change the session"),
        ] {
            let (ran, folder) = run(sql).await;
            let refused = ran.err().unwrap_or_else(|| panic!("{sql}: it ran")).to_string();
            assert!(refused.contains(says) && refused.contains("a suite's statements are queries"), "{sql}: {refused}");
            assert!(refused.starts_with("q1, statement "), "{sql}: {refused}");
            assert!(!folder.path().join("y.csv").exists(), "{sql}");
        }
        // PREPARE is refused, so EXECUTE has no statement to run; DataFusion or this check refuses it.
        for sql in ["EXECUTE p", "EXPLAIN EXECUTE p", "BEGIN", "PREPARE p AS COPY t TO 'DIR/y.csv'"] {
            assert!(run(sql).await.0.is_err(), "{sql}: it ran");
        }
    }

    #[tokio::test]
    async fn a_file_that_sql_names_is_not_read() {
        for (sql, says) in [
            ("SELECT * FROM 'DIR/x.csv'", "files are not read by name"),
            ("SELECT * FROM t WHERE a IN (SELECT a FROM 'DIR/x.csv')", "files are not read by name"),
            ("CREATE VIEW v AS SELECT * FROM 'DIR/x.csv'; SELECT * FROM v", "files are not read by name"),
            (r#"CREATE TABLE "DIR/x.csv" AS SELECT * FROM 'DIR/x.csv'; SELECT 1"#, "would be read"),
            ("SELECT * FROM sessionize('DIR/x.csv', 'a', 'b', 10)", "would be read"),
            ("SELECT * FROM sessionize('SELECT * FROM ''DIR/x.csv''', 'a', 'b', 10)", "would be read"),
            ("EXPLAIN SELECT * FROM sessionize('DIR/x.csv', 'a', 'b', 10)", "would be read"),
            ("SELECT * FROM 's3://bucket/x.parquet'", "files are not read by name"),
            ("DESCRIBE 'DIR/x.csv'", "files are not read by name"),
        ] {
            let (ran, _folder) = run(sql).await;
            let refused = ran.err().unwrap_or_else(|| panic!("{sql}: it ran")).to_string();
            let way_out = refused.contains("files are read as tables of the suite");
            assert!(refused.contains(says) && way_out, "{sql}: {refused}");
        }
    }

    #[tokio::test]
    async fn what_stays_inside_the_query_runs() {
        for sql in [
            "SELECT * FROM t",
            "EXPLAIN SELECT * FROM t",
            "EXPLAIN ANALYZE SELECT a, count(*) FROM t WHERE a IN (SELECT 1) GROUP BY a ORDER BY a",
            "DESCRIBE t",
            "SHOW TABLES",
            "SELECT * FROM datafusion.information_schema.tables",
            "SELECT * FROM range(3) UNION ALL VALUES (1), (2)",
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r",
            "SELECT unnest([1, 2]), row_number() OVER (ORDER BY a) FROM t",
            "SELECT DISTINCT a FROM t INTERSECT SELECT 1 LIMIT 3 OFFSET 0",
            "SELECT x.a, (SELECT max(a) FROM t) FROM t AS x LEFT JOIN t AS y ON x.a = y.a",
            "SELECT * FROM sessionize('SELECT a, a AS b FROM t', 'a', 'b', 10)",
            r#"CREATE TABLE "v1.0" AS SELECT * FROM t; CREATE VIEW v AS SELECT * FROM "v1.0"; SELECT * FROM v"#,
            "CREATE TABLE gone AS SELECT 1 AS a; DROP TABLE gone; DROP TABLE IF EXISTS gone; SELECT 1",
            "CREATE VIEW gone AS SELECT 2; DROP VIEW gone; SELECT 1",
            "CREATE TABLE IF NOT EXISTS t AS SELECT 7 AS a; SELECT a FROM t",
            "CREATE OR REPLACE TABLE datafusion.public.own AS SELECT 1 AS a; SELECT a FROM own",
        ] {
            let (ran, _folder) = run(sql).await;
            assert!(ran.is_ok(), "{sql}: {}", ran.err().map(|error| error.to_string()).unwrap_or_default());
        }
    }
}
