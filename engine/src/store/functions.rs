//! SQL functions of the store: `millpond_cache()`, `millpond_cache_warm('t' [, 'column', …])`,
//! `millpond_cache_clear(['t'])`.
//!
//!   SELECT * FROM millpond_cache_warm('lineitem', 'l_quantity')      table · column · bytes · …: one row per column
//!
//! Acts  when the function's table is read, not when a statement with it is planned or explained. Without a device they
//!       return no rows.
//! Scope columns that a session may list and drop: those of files, and of its own tables ([`seen`](super::seen)).

use std::fmt;
use std::sync::{Arc, Weak};

use datafusion::arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{
    CatalogProviderList, MemoryCatalogProviderList, Session, TableFunction, TableFunctionArgs, TableFunctionImpl,
    TableProvider,
};
use datafusion::common::{DataFusionError, exec_err, plan_err};
use datafusion::error::Result;
use datafusion::execution::context::SessionContext;
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::DataFrame;
use futures::stream;

use crate::device::Engine;
use crate::program::context::RunContext;
use crate::store::{Entry, Scan, Store};

/// The functions, by their names.
const FUNCTIONS: [(&str, Act); 3] =
    [("millpond_cache", Act::List), ("millpond_cache_warm", Act::Warm), ("millpond_cache_clear", Act::Clear)];

/// The functions of a session on `engine`.
pub(crate) fn functions(engine: Option<&Arc<Engine>>) -> impl Iterator<Item = (String, Arc<TableFunction>)> {
    FUNCTIONS.into_iter().map(move |(name, act)| {
        let function = Arc::new(Function { name, act, engine: engine.map(Arc::clone) });
        (name.to_string(), Arc::new(TableFunction::new(name.to_string(), function)))
    })
}

/// The session that called a function, kept as long as the function's table. A view that reads the table is stored in
/// one of the session's catalogs: to avoid a cycle, the table does not own the catalogs.
#[derive(Clone)]
struct Caller {
    /// Without catalogs.
    state: SessionState,
    catalogs: Weak<dyn CatalogProviderList>,
}

impl Caller {
    fn of(session: &dyn Session) -> Result<Self> {
        let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
            return plan_err!("the functions of the store are called in a session of DataFusion's own type");
        };
        let catalogs = Arc::downgrade(state.catalog_list());
        let mut state = state.clone();
        state.register_catalog_list(Arc::new(MemoryCatalogProviderList::new()));
        Ok(Self { state, catalogs })
    }

    fn context(&self) -> Result<SessionContext> {
        let Some(catalogs) = self.catalogs.upgrade() else { return exec_err!("the session has ended") };
        let mut state = self.state.clone();
        state.register_catalog_list(catalogs);
        Ok(SessionContext::new_with_state(state))
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.state.session_id())
    }
}

/// Action of a function on the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Lists all columns.
    List,
    /// Loads columns of a table, and lists them.
    Warm,
    /// Drops columns, of one table or of all, and lists the dropped ones.
    Clear,
}

#[derive(Clone)]
struct Function {
    name: &'static str,
    act: Act,
    /// `None` without a device; then nothing is stored.
    engine: Option<Arc<Engine>>,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl TableFunctionImpl for Function {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let text = |expr: &Expr| {
            let text = match expr {
                Expr::Literal(value, _) => value.try_as_str().flatten(),
                _ => None,
            };
            match text {
                Some(text) => Ok(text.to_string()),
                None => plan_err!("{} takes names as strings, not {expr}", self.name),
            }
        };
        let mut names = args.exprs().iter().map(text).collect::<Result<Vec<_>>>()?.into_iter();
        let (table, columns) = (names.next(), names.collect::<Vec<_>>());
        match (self.act, &table, columns.as_slice()) {
            (Act::List, None, []) | (Act::Warm, Some(_), _) | (Act::Clear, _, []) => {}
            (Act::List, ..) => return plan_err!("millpond_cache() takes no arguments"),
            (Act::Warm, ..) => return plan_err!("millpond_cache_warm takes a table's name, and names of its columns"),
            (Act::Clear, ..) => {
                return plan_err!("millpond_cache_clear takes a table's name, or nothing for all tables");
            }
        }
        let caller = Caller::of(args.session())?;
        let rows = Rows { function: self.clone(), caller, table, columns, schema: schema() };
        Ok(Arc::new(StreamingTable::try_new(schema(), vec![Arc::new(rows)])?))
    }
}

/// Rows of a function's table.
#[derive(Debug)]
struct Rows {
    function: Function,
    caller: Caller,
    table: Option<String>,
    columns: Vec<String>,
    schema: SchemaRef,
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("table", DataType::Utf8, false),
        Field::new("column", DataType::Utf8, false),
        Field::new("bytes", DataType::UInt64, false),
        Field::new("tier", DataType::Utf8, false),
        Field::new("width", DataType::UInt32, true),
        Field::new("facts", DataType::Utf8, false),
        Field::new("hits", DataType::UInt64, false),
        Field::new("age", DataType::Float64, false),
    ]))
}

impl PartitionStream for Rows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (function, caller) = (self.function.clone(), self.caller.clone());
        let (table, columns) = (self.table.clone(), self.columns.clone());
        let rows = async move { batch(function.act(&caller, table, &columns, &context).await?) };
        Box::pin(RecordBatchStreamAdapter::new(schema(), stream::once(rows)))
    }
}

impl Function {
    async fn act(
        &self,
        caller: &Caller,
        table: Option<String>,
        columns: &[String],
        context: &Arc<TaskContext>,
    ) -> Result<Vec<Entry>> {
        let Some(engine) = &self.engine else { return caller.act_without_device(table, columns).await };
        let store = Store::of(engine);
        let session = context.session_config();
        let Some(table) = table else {
            return Ok(match self.act {
                Act::Clear => store.clear_for(session),
                _ => store.entries_for(session),
            });
        };
        let scan = caller.scan(&table, columns).await?;
        match self.act {
            Act::Clear => store.clear_table(&scan, context).await,
            _ => {
                let run = Arc::new(RunContext::apart(engine, context));
                let view = store.warm(&scan, &run).await.map_err(|failure| {
                    DataFusionError::Execution(format!("columns of {table} could not be loaded: {}", failure.lesson()))
                });
                engine.query_ended();
                let Some(view) = view? else {
                    let why = "there is no room for them, or its rows cannot be stored";
                    return Err(DataFusionError::Execution(format!(
                        "columns of {table} were not loaded: {why} (millpond.cache_bytes, docs/memory.md)"
                    )));
                };
                Ok(store.entries(Some(&view)))
            }
        }
    }
}

impl Caller {
    /// Resolves the table and its columns, so that a script fails here if it would fail on a device.
    async fn act_without_device(&self, table: Option<String>, columns: &[String]) -> Result<Vec<Entry>> {
        if let Some(table) = table {
            self.frame(&table, columns).await?;
        }
        Ok(vec![])
    }

    /// The given columns of a table, or all.
    async fn frame(&self, table: &str, columns: &[String]) -> Result<DataFrame> {
        let frame = self.context()?.table(table).await?;
        if columns.is_empty() {
            return Ok(frame);
        }
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        frame.select_columns(&columns)
    }

    /// A scan of the given columns of a table, or of all.
    async fn scan(&self, table: &str, columns: &[String]) -> Result<Scan> {
        let plan = self.frame(table, columns).await?.create_physical_plan().await?;
        let stored =
            |what: &str| DataFusionError::Execution(format!("{table} is {what}: its columns cannot be stored"));
        let mut node: &Arc<dyn ExecutionPlan> = &plan;
        loop {
            if let Some(scan) = Scan::of(node) {
                return Ok(scan);
            }
            node = match node.children().as_slice() {
                [one] => one,
                _ => return Err(stored("no table of files or of batches in memory")),
            };
        }
    }
}

fn batch(entries: Vec<Entry>) -> Result<RecordBatch> {
    let texts =
        |of: fn(&Entry) -> String| Arc::new(entries.iter().map(|e| Some(of(e))).collect::<StringArray>()) as ArrayRef;
    let numbers = |of: fn(&Entry) -> u64| Arc::new(entries.iter().map(of).collect::<UInt64Array>()) as ArrayRef;
    let columns = vec![
        texts(|entry| entry.table.clone()),
        texts(|entry| entry.column.clone()),
        numbers(|entry| entry.bytes),
        texts(|entry| entry.tier.to_string()),
        Arc::new(entries.iter().map(|entry| entry.width).collect::<UInt32Array>()) as ArrayRef,
        texts(|entry| entry.facts.clone()),
        numbers(|entry| entry.hits),
        Arc::new(entries.iter().map(|entry| Some(entry.age.as_secs_f64())).collect::<Float64Array>()) as ArrayRef,
    ];
    Ok(RecordBatch::try_new(schema(), columns)?)
}
