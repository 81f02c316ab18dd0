//! Definitions that replace a table: the old table is removed only after the new one is complete.
//!
//!   CREATE OR REPLACE [EXTERNAL] TABLE t ─► query runs, files are read ─┬─ done ───► old t removed, new registered
//!                                                                       └─ failed ─► old t unchanged
//!
//! Left   to DataFusion: all other definitions. `context().sql()` bypasses this module: DataFusion removes the old
//!        table first.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::catalog::{MemTable, TableProvider};
use datafusion::common::{TableReference, exec_err};
use datafusion::dataframe::DataFrame;
use datafusion::error::Result;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::{
    CreateExternalTable, CreateMemoryTable, DdlStatement, LogicalPlan, LogicalPlanBuilder, TableType,
};

/// Held while one table replaces another: a catalog does that in two steps.
static REPLACING: Mutex<()> = Mutex::new(());

/// Executes a logical plan as [`SessionContext::execute_logical_plan`] does; if that fails, a table to be replaced
/// remains.
///
/// # Errors
/// DataFusion's.
pub(crate) async fn execute(context: &SessionContext, plan: LogicalPlan) -> Result<DataFrame> {
    match plan {
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) if replaces_rows(context, &create).await => {
            replace_by_rows(context, create).await?;
        }
        LogicalPlan::Ddl(DdlStatement::CreateExternalTable(create)) if replaces_files(context, &create).await => {
            replace_by_files(context, *create).await?;
        }
        plan => return context.execute_logical_plan(plan).await,
    }
    Ok(DataFrame::new(context.state(), LogicalPlanBuilder::empty(false).build()?))
}

/// Registers a table, replacing an existing one of its name.
///
/// # Errors
/// The catalog's; the old table is registered again in that case.
pub(crate) fn replace(context: &SessionContext, name: TableReference, table: Arc<dyn TableProvider>) -> Result<()> {
    let _replacing = REPLACING.lock().unwrap_or_else(PoisonError::into_inner);
    let old = match context.table_exist(name.clone())? {
        true => context.deregister_table(name.clone())?,
        false => None,
    };
    let registered = context.register_table(name.clone(), table);
    if let (Err(_), Some(old)) = (&registered, old) {
        context.register_table(name, old)?;
    }
    registered.map(drop)
}

/// True for duplicate column names, which DataFusion refuses in a table.
pub(crate) fn has_equal_names(input: &LogicalPlan) -> bool {
    let mut names: Vec<&String> = input.schema().fields().iter().map(|field| field.name()).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| pair[0] == pair[1])
}

/// True if DataFusion would remove the old table first. Statements that it refuses before that are left to it and its
/// messages.
async fn replaces_rows(context: &SessionContext, create: &CreateMemoryTable) -> bool {
    let may = create.or_replace && !create.if_not_exists && !create.temporary && !has_equal_names(&create.input);
    may && context.table(create.name.clone()).await.is_ok()
}

async fn replace_by_rows(context: &SessionContext, create: CreateMemoryTable) -> Result<()> {
    let input = context.state().optimize(&create.input)?;
    let schema = Arc::clone(input.schema().inner());
    let batches = DataFrame::new(context.state(), input).collect_partitioned().await?;
    let table = MemTable::try_new(schema, batches)?
        .with_constraints(create.constraints)
        .with_column_defaults(create.column_defaults.into_iter().collect());
    replace(context, create.name, Arc::new(table))
}

/// Like `replaces_rows`, for a table of files. A table of files does not replace a view.
async fn replaces_files(context: &SessionContext, create: &CreateExternalTable) -> bool {
    let may = create.or_replace && !create.if_not_exists && !create.temporary;
    let is_table = |table: Arc<dyn TableProvider>| table.table_type() == TableType::Base;
    may && context.table_provider(create.name.clone()).await.is_ok_and(is_table)
}

async fn replace_by_files(context: &SessionContext, create: CreateExternalTable) -> Result<()> {
    let state = context.state();
    let Some(factory) = state.table_factories().get(&create.file_type.to_uppercase()).cloned() else {
        return exec_err!("Unable to find factory for {}", create.file_type);
    };
    let table = factory.create(&state, &create).await?;
    replace(context, create.name, table)
}
