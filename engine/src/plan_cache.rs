//! Plans of statements that were planned before, by their text.
//!
//!   text ─► entry ─ options, relations and functions the same objects? files and batches the same? ─ yes ─► the plan, as new
//!                                                                                                  └─ no ──► planned anew
//!
//! Kept      queries over files and in-memory tables of DataFusion's own, of functions that always give the same, whose operators above the
//!           device keep nothing of a run. Everything else is planned each time, and what defines or sets something empties the cache.
//! As new    a kept plan is never executed: each run gets a copy with metrics of its own, which shares what was prepared.
//! Threads   one lock around the entries, held for no work.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::catalog::TableProvider;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{ResolvedTableReference, TableReference};
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::error::Result;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::{
    AggregateUDF, Expr, LogicalPlan, ScalarUDF, Volatility, WindowFunctionDefinition, WindowUDF,
};
use datafusion::object_store::ObjectMeta;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::scalar_subquery::{ScalarSubqueryExec, ScalarSubqueryLink};
use datafusion::physical_plan::union::UnionExec;

use crate::node::REPLACE;
use crate::result::node::DownloadExec;
use crate::store::{Checks, MadeSource, MadeTable, Rows};
use crate::subqueries::Subqueries;

/// Plans of one session.
#[derive(Default)]
pub(crate) struct PlanCache {
    entries: Mutex<HashMap<String, Arc<Entry>>>,
    clock: AtomicU64,
}

impl fmt::Debug for PlanCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanCache").field("plans", &self.entries().len()).finish()
    }
}

/// Plans that are kept; when there are more, the one that was not used for longest goes.
const PLANS: usize = 256;

/// A plan, and what it was made of.
struct Entry {
    plan: Arc<dyn ExecutionPlan>,
    made_of: MadeOf,
    used: AtomicU64,
}

/// What a plan is made of.
pub(crate) struct MadeOf {
    /// The session's, which are another object once one of them is set.
    options: Arc<ConfigOptions>,
    /// What the catalog gave for each name.
    named: Vec<(ResolvedTableReference, Arc<dyn TableProvider>)>,
    /// Tables that are read, with their rows as they were.
    read: Vec<(Arc<dyn TableProvider>, Version)>,
    functions: Functions,
}

/// The rows of a table, in words that change with them.
#[derive(PartialEq)]
enum Version {
    Files(Vec<ObjectMeta>),
    /// Addresses of all columns, for an update leaves alone what it does not set, and rows; the plan keeps the batches.
    Batches(Vec<(Vec<usize>, usize)>),
    /// The number of rows that stay on the device, which never change.
    Made(u64),
}

/// The functions of a query, by the names under which the session has them.
#[derive(Default)]
struct Functions {
    scalar: Vec<Arc<ScalarUDF>>,
    aggregate: Vec<Arc<AggregateUDF>>,
    window: Vec<Arc<WindowUDF>>,
}

impl PlanCache {
    fn entries(&self) -> MutexGuard<'_, HashMap<String, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all plans.
    pub fn clear(&self) {
        self.entries().clear();
    }

    /// The plan of a statement, ready to run; `None` if it is not known, or of something that has changed since.
    pub async fn find(&self, context: &SessionContext, sql: &str) -> Option<Arc<dyn ExecutionPlan>> {
        let entry = Arc::clone(self.entries().get(sql)?);
        if entry.made_of.is_fresh(context).await {
            entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            if let Ok(plan) = as_new(&entry.plan, &Subqueries::default()) {
                return Some(plan);
            }
        }
        self.entries().remove(sql);
        None
    }

    /// Keeps the plan of a statement, if it may be run again. What it was made of was looked at before it was made: what has changed
    /// meanwhile shows the next time.
    pub fn keep(&self, sql: &str, made_of: MadeOf, plan: &Arc<dyn ExecutionPlan>) {
        if !keeps_nothing(plan) {
            return;
        }
        let used = AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed));
        let mut entries = self.entries();
        if entries.len() >= PLANS {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed));
            let oldest = oldest.map(|(sql, _)| sql.clone());
            oldest.iter().for_each(|sql| drop(entries.remove(sql)));
        }
        entries.insert(sql.to_string(), Arc::new(Entry { plan: Arc::clone(plan), made_of, used }));
    }
}

impl MadeOf {
    /// Of a statement that names these relations, and that is about to be planned; `None` if one is not there.
    pub async fn begin(context: &SessionContext, names: &[TableReference]) -> Option<Self> {
        let options = options(context);
        let mut named = Vec::with_capacity(names.len());
        for name in names {
            let catalog = &options.catalog;
            let name = name.clone().resolve(&catalog.default_catalog, &catalog.default_schema);
            let provider = provider(context, &name).await?;
            named.push((name, provider));
        }
        Some(Self { options, named, read: vec![], functions: Functions::default() })
    }

    /// The same with what its query reads and calls; `None` if the query's plan may not be run again.
    pub async fn read_by(mut self, context: &SessionContext, query: &LogicalPlan) -> Option<Self> {
        let (providers, functions) = parts(query)?;
        for provider in providers {
            if !self.read.iter().any(|(known, _)| Arc::ptr_eq(known, &provider)) {
                let version = version(context, &provider).await?;
                self.read.push((provider, version));
            }
        }
        Some(Self { functions, ..self })
    }

    /// True if planning it again would begin with the same things.
    async fn is_fresh(&self, context: &SessionContext) -> bool {
        if !Arc::ptr_eq(&self.options, &options(context)) || !self.functions.are_those_of(context) {
            return false;
        }
        for (name, known) in &self.named {
            if !provider(context, name).await.is_some_and(|now| Arc::ptr_eq(known, &now)) {
                return false;
            }
        }
        for (table, known) in &self.read {
            if version(context, table).await.as_ref() != Some(known) {
                return false;
            }
        }
        true
    }
}

impl Functions {
    /// True if the session still has them under their names.
    fn are_those_of(&self, context: &SessionContext) -> bool {
        let state = context.state_ref();
        let state = state.read();
        let scalar = |f: &Arc<ScalarUDF>| state.scalar_functions().get(f.name()).is_some_and(|now| Arc::ptr_eq(f, now));
        let aggregate =
            |f: &Arc<AggregateUDF>| state.aggregate_functions().get(f.name()).is_some_and(|now| Arc::ptr_eq(f, now));
        let window = |f: &Arc<WindowUDF>| state.window_functions().get(f.name()).is_some_and(|now| Arc::ptr_eq(f, now));
        self.scalar.iter().all(scalar) && self.aggregate.iter().all(aggregate) && self.window.iter().all(window)
    }

    /// Notes the functions of an expression; false for one whose value is not the same each time.
    fn note(&mut self, expr: &Expr) -> bool {
        let always = |volatility: Volatility| volatility == Volatility::Immutable;
        match expr {
            Expr::ScalarFunction(call) => {
                self.scalar.push(Arc::clone(&call.func));
                always(call.func.signature().volatility)
            }
            Expr::AggregateFunction(call) => {
                self.aggregate.push(Arc::clone(&call.func));
                always(call.func.signature().volatility)
            }
            Expr::WindowFunction(call) => match &call.fun {
                WindowFunctionDefinition::AggregateUDF(of) => {
                    self.aggregate.push(Arc::clone(of));
                    always(of.signature().volatility)
                }
                WindowFunctionDefinition::WindowUDF(of) => {
                    self.window.push(Arc::clone(of));
                    always(of.signature().volatility)
                }
            },
            Expr::ScalarVariable(..) | Expr::Placeholder(_) => false,
            _ => true,
        }
    }
}

fn options(context: &SessionContext) -> Arc<ConfigOptions> {
    Arc::clone(context.state_ref().read().config().options())
}

/// What the catalog gives for a name now.
async fn provider(context: &SessionContext, name: &ResolvedTableReference) -> Option<Arc<dyn TableProvider>> {
    let schema = {
        let state = context.state_ref();
        let catalog = state.read().catalog_list().catalog(&name.catalog)?;
        catalog.schema(&name.schema)?
    };
    schema.table(&name.table).await.ok().flatten()
}

/// The rows of a table as they are now; `None` for tables of others, and for files that cannot be looked at.
async fn version(context: &SessionContext, table: &Arc<dyn TableProvider>) -> Option<Version> {
    if let Some(table) = table.downcast_ref::<MadeTable>() {
        return match table.rows().await {
            Rows::Made(rows) => Some(Version::Made(rows.number)),
            Rows::Changed(table) => version_of_batches(&table).await,
        };
    }
    if let Some(table) = table.downcast_ref::<MemTable>() {
        return version_of_batches(table).await;
    }
    let table = table.downcast_ref::<ListingTable>()?;
    let checks = Checks::of(context.state_ref().read().config());
    let mut files = Vec::new();
    for url in table.table_paths() {
        let store = context.runtime_env().object_store(url).ok()?;
        files.extend(checks.files_of(url, &store).await.ok()?);
    }
    Some(Version::Files(files))
}

async fn version_of_batches(table: &MemTable) -> Option<Version> {
    let mut batches = Vec::new();
    for partition in &table.batches {
        for batch in partition.read().await.iter() {
            let columns = batch.columns().iter().map(|column| Arc::as_ptr(column).cast::<()>() as usize);
            batches.push((columns.collect(), batch.num_rows()));
        }
    }
    Some(Version::Batches(batches))
}

/// The tables and functions of a query; `None` for what is no query, and for one that need not give the same each time.
fn parts(query: &LogicalPlan) -> Option<(Vec<Arc<dyn TableProvider>>, Functions)> {
    let (mut tables, mut functions, mut refused) = (Vec::new(), Functions::default(), false);
    let walked = query.apply_with_subqueries(|node| {
        match node {
            LogicalPlan::TableScan(scan) => match source_as_provider(&scan.source) {
                Ok(provider) => tables.push(provider),
                Err(_) => refused = true,
            },
            LogicalPlan::Ddl(_)
            | LogicalPlan::Dml(_)
            | LogicalPlan::Statement(_)
            | LogicalPlan::Explain(_)
            | LogicalPlan::Analyze(_)
            | LogicalPlan::Copy(_)
            | LogicalPlan::DescribeTable(_)
            | LogicalPlan::Extension(_) => refused = true,
            _ => {}
        }
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                refused |= !functions.note(part);
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    (walked.is_ok() && !refused && !tables.is_empty()).then_some((tables, functions))
}

/// True for a plan with a part on the device whose other operators keep nothing from one run to the next, and fill in no filter. What
/// subqueries give may differ from run to run.
fn keeps_nothing(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let mut borders = 0;
    may_run_again(plan, &Subqueries::default(), false, &mut borders) && borders > 0
}

fn may_run_again(
    plan: &Arc<dyn ExecutionPlan>,
    subqueries: &Subqueries,
    below_upload: bool,
    borders: &mut usize,
) -> bool {
    if let Some(download) = plan.downcast_ref::<DownloadExec>() {
        *borders += 1;
        return (subqueries.are_none() || !below_upload && download.lets_subqueries_differ(subqueries))
            && download.host_inputs().iter().all(|input| may_run_again(input, subqueries, true, borders));
    }
    if let Some(node) = plan.downcast_ref::<ScalarSubqueryExec>() {
        let (subqueries, _) = subqueries.with(node);
        let mut again = |child| may_run_again(child, &subqueries, false, borders);
        return !below_upload && plan.children().into_iter().all(&mut again);
    }
    let plain = plan.is::<DataSourceExec>()
        || plan.is::<CooperativeExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<FilterExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<RepartitionExec>()
        || plan.is::<UnionExec>();
    plain
        && subqueries.node(plan).is_ok()
        && plan.children().into_iter().all(|child| may_run_again(child, subqueries, below_upload, borders))
}

/// A copy of a plan that was not executed.
fn as_new(plan: &Arc<dyn ExecutionPlan>, subqueries: &Subqueries) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(download) = plan.downcast_ref::<DownloadExec>() {
        return Ok(Arc::new(download.as_new(subqueries)?));
    }
    if let Some(scan) = MadeSource::as_new(plan.as_ref()) {
        return Ok(scan);
    }
    if let Some(node) = plan.downcast_ref::<ScalarSubqueryExec>() {
        let (subqueries, results) = subqueries.with(node);
        let input = as_new(node.input(), &subqueries)?;
        let links = node
            .subqueries()
            .iter()
            .map(|link| Ok(ScalarSubqueryLink { plan: as_new(&link.plan, &subqueries)?, index: link.index }));
        return Ok(Arc::new(ScalarSubqueryExec::new(input, links.collect::<Result<_>>()?, results)));
    }
    let children = plan.children().into_iter().map(|child| as_new(child, subqueries)).collect::<Result<Vec<_>>>()?;
    subqueries.node(plan)?.replace_children(children, REPLACE)?.reset_state()
}
