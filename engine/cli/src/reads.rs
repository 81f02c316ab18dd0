//! Files that a statement reads or writes, and whether one of them is the file of its answer or of the trace.
//!
//! ```text
//!   logical plan, with subqueries, views, EXPLAIN and COPY ─► its tables ─► their files ─► one is -o's or --trace's?
//! ```
//!
//! Judged  Before the statement has any effect, and before DataFusion drops scans that the answer does not need.
//! Remote  tables cannot be a local file, and are not checked.

use std::path::PathBuf;
use std::sync::Arc;

use futures::TryStreamExt;
use millpond::Millpond;
use millpond::datafusion::catalog::TableProvider;
use millpond::datafusion::catalog::streaming::StreamingTable;
use millpond::datafusion::common::TableReference;
use millpond::datafusion::common::tree_node::TreeNodeRecursion;
use millpond::datafusion::datasource::listing::{ListingTable, ListingTableUrl};
use millpond::datafusion::datasource::source_as_provider;
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::context::SessionState;
use millpond::datafusion::logical_expr::LogicalPlan;
use millpond::datafusion::object_store::local::LocalFileSystem;
use millpond::datafusion::object_store::path::Path;
use millpond::tables::{self, FileTable};

use crate::error::CliError;
use crate::output::Output;
use crate::statements::Statement;

/// Refuses a statement that reads or writes the file of its answer or of the trace.
///
/// # Errors
/// Exit 2, naming the file and the statement.
pub async fn refuse_own_output(
    session: &Millpond,
    statement: &Statement,
    plan: &LogicalPlan,
    output: &Output,
    trace: Option<&Output>,
) -> Result<(), CliError> {
    let outputs = [Some(Target { output, is_trace: false }), trace.map(|output| Target { output, is_trace: true })];
    let outputs: Vec<Target> = outputs.into_iter().flatten().filter(|target| target.output.has_path()).collect();
    if outputs.is_empty() {
        return Ok(());
    }
    let state = session.context().state();
    let mut touched = Touched::default();
    // A plan that cannot be walked cannot run either; its own error is more helpful.
    let _ = touched.collect(plan);
    if let LogicalPlan::DescribeTable(_) = plan {
        touched.reads.extend(described(session, &statement.sql).await);
    }
    for path in touched.copies {
        if let Some(target) = outputs.iter().find(|target| target.output.is_at(&path)) {
            return Err(target.refusal(statement, "writes"));
        }
    }
    for (tables, verb) in [(touched.reads, "reads"), (touched.writes, "writes")] {
        for table in tables {
            // A table that cannot be listed cannot be read either.
            if let Some(target) = in_table(&state, table.as_ref(), &outputs).await.unwrap_or(None) {
                return Err(target.refusal(statement, verb));
            }
        }
    }
    Ok(())
}

/// A file that the command line writes.
struct Target<'a> {
    output: &'a Output,
    is_trace: bool,
}

impl Target<'_> {
    fn refusal(&self, statement: &Statement, verb: &str) -> CliError {
        let line = statement.sql.lines().next().unwrap_or_default().trim_end();
        let (what, flag) = if self.is_trace { ("the trace", "--trace") } else { ("answers", "-o") };
        CliError::usage(format!(
            "{what} cannot go to {}, which the statement in line {} {verb}: choose another file for {flag}\n  line {}: {line}",
            self.output.name(),
            statement.first_line + 1,
            statement.first_line + 1,
        ))
    }
}

/// Tables and files that a plan reads or writes.
#[derive(Default)]
struct Touched {
    reads: Vec<Arc<dyn TableProvider>>,
    writes: Vec<Arc<dyn TableProvider>>,
    /// Targets of COPY.
    copies: Vec<PathBuf>,
}

impl Touched {
    fn collect(&mut self, plan: &LogicalPlan) -> Result<()> {
        plan.apply_with_subqueries(|node| {
            match node {
                LogicalPlan::TableScan(scan) => {
                    if let Ok(table) = source_as_provider(&scan.source) {
                        if let Some(view) = table.get_logical_plan() {
                            self.collect(&view)?;
                        }
                        self.reads.push(table);
                    }
                }
                LogicalPlan::Dml(write) => self.writes.extend(source_as_provider(&write.target)),
                LogicalPlan::Copy(copy) => {
                    let url = ListingTableUrl::parse(&copy.output_url)?;
                    self.copies.extend(local_path(&url, url.prefix()));
                }
                _ => {}
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(())
    }
}

/// The column store's function that a plan calls, if any.
pub fn store_function(plan: &LogicalPlan) -> Option<String> {
    const FUNCTIONS: [&str; 3] = ["millpond_cache", "millpond_cache_warm", "millpond_cache_clear"];
    let mut found = None;
    let _ = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && source_as_provider(&scan.source).is_ok_and(|table| table.downcast_ref::<StreamingTable>().is_some())
        {
            let name = scan.table_name.table().trim_end_matches("()");
            found = FUNCTIONS.contains(&name).then(|| name.to_string()).or(found.take());
        }
        Ok(TreeNodeRecursion::Continue)
    });
    found
}

/// The tables that a statement names; empty if it cannot be parsed.
pub fn tables_in(session: &Millpond, sql: &str) -> Vec<TableReference> {
    millpond::session::sql::names(&session.context().state(), sql).unwrap_or_default()
}

/// The files and folders behind a table, through views.
pub async fn files_of_table(session: &Millpond, name: TableReference) -> Vec<String> {
    let Ok(table) = session.context().table_provider(name).await else { return Vec::new() };
    let mut touched = Touched::default();
    match table.get_logical_plan() {
        // A view that cannot be walked contributes no files.
        Some(view) => drop(touched.collect(&view)),
        None => touched.reads.push(table),
    }
    let tables = touched.reads.iter().filter_map(|table| tables::listing(table.as_ref()));
    let paths = tables.flat_map(ListingTable::table_paths);
    paths
        .map(|url| local_path(url, url.prefix()).map_or_else(|| url.to_string(), |path| path.display().to_string()))
        .collect()
}

/// The tables of a DESCRIBE, whose plan contains only columns.
async fn described(session: &Millpond, sql: &str) -> Vec<Arc<dyn TableProvider>> {
    let mut tables = Vec::new();
    for name in tables_in(session, sql) {
        tables.extend(session.context().table_provider(name).await);
    }
    tables
}

/// The first of `targets` that is a file of the table.
async fn in_table<'a>(
    state: &SessionState,
    table: &dyn TableProvider,
    targets: &'a [Target<'a>],
) -> Result<Option<&'a Target<'a>>> {
    let is_target = |url: &ListingTableUrl, file: &Path| {
        let path = local_path(url, file)?;
        targets.iter().find(|target| target.output.is_at(&path))
    };
    if let Some(table) = table.downcast_ref::<FileTable>() {
        let listing = tables::listing(table);
        let Some(url) = listing.and_then(|listing| listing.table_paths().first()) else { return Ok(None) };
        if url.scheme() != "file" {
            return Ok(None);
        }
        let files = table.files(state).await?;
        return Ok(files.iter().find_map(|file| is_target(url, &file.location)));
    }
    let Some(table) = table.downcast_ref::<ListingTable>() else { return Ok(None) };
    for url in table.table_paths() {
        if url.scheme() != "file" {
            continue;
        }
        let store = state.runtime_env().object_store(url)?;
        let mut files = url.list_all_files(state, store.as_ref(), &table.options().file_extension).await?;
        while let Some(file) = files.try_next().await? {
            if let Some(target) = is_target(url, &file.location) {
                return Ok(Some(target));
            }
        }
    }
    Ok(None)
}

/// The local path of an object.
fn local_path(url: &ListingTableUrl, location: &Path) -> Option<PathBuf> {
    (url.scheme() == "file").then(|| LocalFileSystem::new().path_to_filesystem(location).ok()).flatten()
}
