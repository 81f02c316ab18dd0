//! Plans of statements that were planned before, by their text; of what DataFusion plans by itself, by the optimised logical plan.
//!
//!   text ──────────┐
//!   logical plan ──┴► entry ─ options, rules, relations and functions the same objects? files and batches the same? ─ yes ─► the plan, as new
//!                                                                                                                 └─ no ──► planned anew
//!
//! Kept      queries over files and in-memory tables of DataFusion's own, of functions that always give the same, whose operators above the
//!           device keep nothing of a run. Everything else is planned each time, and what defines or sets something empties the cache.
//! As new    a kept plan is never executed: each run gets a copy with metrics and subqueries of its own, which shares what was prepared.
//! Logical   plans are compared as trees, and the tables and functions in them as objects. What DataFusion has folded, such as now(), is a
//!           constant by then: another one the next time.
//! Threads   one lock around the entries, held for no work.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::catalog::TableProvider;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{ResolvedTableReference, TableReference};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::LogicalPlan;
use datafusion::object_store::{ObjectMeta, ObjectStore};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::scalar_subquery::{ScalarSubqueryExec, ScalarSubqueryLink};
use datafusion::physical_plan::union::UnionExec;
use futures::future::join_all;

use crate::contract::{DeviceOperator, Operators};
use crate::looks::Looks;
use crate::node::REPLACE;
use crate::planned_by::{Called, Names, Planners};
use crate::result::node::DownloadExec;
use crate::store::{Checks, MadeSource, MadeTable, Rows};
use crate::subqueries::Subqueries;
use crate::tables;

/// Plans of one session.
#[derive(Default)]
pub(crate) struct PlanCache {
    entries: Mutex<HashMap<Key, Arc<Entry>>>,
    clock: AtomicU64,
    /// Templates that have no entry, by their hashes.
    sights: Mutex<HashMap<u64, Sight>>,
    /// Statements that took a plan of their own, and those that took one of a template.
    found: AtomicU64,
    by_template: AtomicU64,
}

/// How many statements of a session took a plan that was kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlansFound {
    /// The statement's own plan.
    pub kept: u64,
    /// The plan of statements that differ from it in constants alone.
    pub by_template: u64,
}

/// What is known of a template without a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sight {
    /// No statement of it has been planned, as far as is remembered.
    New,
    /// A statement of it has been planned.
    Seen,
    /// It cannot be planned without its constants, or not wholly on the device.
    Refused,
}

impl fmt::Debug for PlanCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanCache").field("plans", &self.entries().len()).finish()
    }
}

/// Templates without a plan that are remembered; when there are more, all are forgotten.
const SIGHTS: usize = 1 << 10;

/// Plans that are kept; when there are more, the one that was not used for longest goes.
const PLANS: usize = 256;

/// Under what a plan is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// A statement's text.
    Text(String),
    /// The hash of a logical plan, which its entry has.
    Logical(u64),
    /// The hash of a template, which its entry has as a logical plan.
    Template(u64),
}

/// A plan, and what it was made of.
struct Entry {
    plan: Arc<dyn ExecutionPlan>,
    made_of: MadeOf,
    used: AtomicU64,
}

/// A session as it is now.
#[derive(Clone, Copy)]
pub(crate) enum Now<'a> {
    Context(&'a SessionContext),
    State(&'a SessionState),
}

impl Now<'_> {
    /// Looks at the session's state; no lock is held longer.
    fn with<T>(self, look: impl FnOnce(&SessionState) -> T) -> T {
        match self {
            Self::Context(context) => look(&context.state_ref().read()),
            Self::State(state) => look(state),
        }
    }
}

/// Tables, by the names under which a query reads them.
type Named = Vec<(TableReference, Arc<dyn TableProvider>)>;

/// A query that is asked for by its logical plan.
pub(crate) struct Asked {
    plan: LogicalPlan,
    tables: Named,
    functions: Called,
}

impl Asked {
    /// A query whose plan may be kept; `None` for what is no query, and for one that need not give the same each time.
    pub fn of(plan: &LogicalPlan) -> Option<Self> {
        Self::of_template(plan, plan)
    }

    /// The template `plan` of a query, which has the query's tables and functions.
    pub fn of_template(query: &LogicalPlan, plan: &LogicalPlan) -> Option<Self> {
        let (tables, functions) = parts(query)?;
        Some(Self { plan: plan.clone(), tables, functions })
    }

    /// Under what its plan is kept.
    pub fn key(&self) -> Key {
        let mut hasher = DefaultHasher::new();
        self.plan.hash(&mut hasher);
        Key::Logical(hasher.finish())
    }

    /// True if it is the same query over the same tables, by the same functions.
    fn is(&self, other: &Self) -> bool {
        let tables = self.tables.iter().zip(&other.tables);
        self.tables.len() == other.tables.len()
            && tables.into_iter().all(|((_, a), (_, b))| Arc::ptr_eq(a, b))
            && self.functions.are(&other.functions)
            && self.plan == other.plan
    }
}

/// What a plan is made of.
pub(crate) struct MadeOf {
    /// The session's, which are another object once one of them is set.
    options: Arc<ConfigOptions>,
    /// Those that place plans, which are another list once one is added.
    operators: Option<Arc<[Arc<dyn DeviceOperator>]>>,
    planners: Planners,
    /// What was planned, where it is kept by that.
    asked: Option<Asked>,
    /// What the catalog gave for each name.
    named: Vec<(ResolvedTableReference, Arc<dyn TableProvider>)>,
    /// Tables that are read, with their rows as they were.
    read: Vec<(Arc<dyn TableProvider>, Version)>,
    functions: Names,
}

impl fmt::Debug for MadeOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MadeOf").field("tables", &self.named.iter().map(|(name, _)| name).collect::<Vec<_>>()).finish()
    }
}

/// The rows of a table, in words that change with them.
#[derive(PartialEq)]
enum Version {
    Files(Vec<ObjectMeta>, Stores),
    /// Addresses of all columns, for an update leaves alone what it does not set, and rows; the plan keeps the batches.
    Batches(Vec<(Vec<usize>, usize)>),
    /// The number of rows that stay on the device, which never change.
    Made(u64),
}

/// The stores of a table's files, which a program may replace: the same objects or other ones.
struct Stores(Vec<Arc<dyn ObjectStore>>);

impl PartialEq for Stores {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

impl PlanCache {
    fn entries(&self) -> MutexGuard<'_, HashMap<Key, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many statements took a plan that was kept.
    pub fn plans_found(&self) -> PlansFound {
        let (kept, by_template) = (&self.found, &self.by_template);
        PlansFound { kept: kept.load(Ordering::Relaxed), by_template: by_template.load(Ordering::Relaxed) }
    }

    /// How many plans are kept.
    pub fn kept(&self) -> usize {
        self.entries().len()
    }

    /// Counts a statement whose plan is that of a template.
    pub fn found_by_template(&self) {
        self.by_template.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets all plans.
    pub fn clear(&self) {
        self.entries().clear();
        self.sights.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The plan of a statement, ready to run; `None` if it is not known, or of something that has changed since.
    pub async fn find(&self, now: Now<'_>, key: &Key, asked: Option<&Asked>) -> Option<Arc<dyn ExecutionPlan>> {
        let entry = Arc::clone(self.entries().get(key)?);
        let same = match (&entry.made_of.asked, asked) {
            (Some(known), Some(asked)) => known.is(asked),
            (known, asked) => known.is_none() && asked.is_none(),
        };
        if same && let Some(looks) = entry.made_of.looks_if_fresh(now).await {
            entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            if let Ok(plan) = as_new(&entry.plan, &Subqueries::default(), Some(&Arc::new(looks))) {
                if !matches!(key, Key::Template(_)) {
                    self.found.fetch_add(1, Ordering::Relaxed);
                }
                return Some(plan);
            }
        }
        self.entries().remove(key);
        None
    }

    /// What is known of a template; it has been seen from now on.
    pub fn sight(&self, template: u64) -> Sight {
        let mut sights = self.sights.lock().unwrap_or_else(PoisonError::into_inner);
        if sights.len() >= SIGHTS && !sights.contains_key(&template) {
            sights.clear();
        }
        let known = sights.get(&template).copied();
        if known.is_none() {
            sights.insert(template, Sight::Seen);
        }
        known.unwrap_or(Sight::New)
    }

    /// Notes that a template is of no use.
    pub fn refuse(&self, template: u64) {
        self.entries().remove(&Key::Template(template));
        self.sights.lock().unwrap_or_else(PoisonError::into_inner).insert(template, Sight::Refused);
    }

    /// Keeps the plan of a template, which is made ready for each run.
    pub fn keep_template(&self, template: u64, made_of: MadeOf, plan: &Arc<dyn ExecutionPlan>) {
        self.insert(Key::Template(template), made_of, Arc::clone(plan));
    }

    /// Keeps the plan of a statement, if it may be run again. What it was made of was looked at before it was made: what has changed
    /// meanwhile shows the next time.
    pub fn keep(&self, key: Key, made_of: MadeOf, plan: &Arc<dyn ExecutionPlan>) {
        if !keeps_nothing(plan) {
            return;
        }
        // The plan itself is about to be executed.
        let Ok(plan) = as_new(plan, &Subqueries::default(), None) else { return };
        self.insert(key, made_of, plan);
    }

    fn insert(&self, key: Key, made_of: MadeOf, plan: Arc<dyn ExecutionPlan>) {
        let used = AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed));
        let mut entries = self.entries();
        if entries.len() >= PLANS {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed));
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.iter().for_each(|key| drop(entries.remove(key)));
        }
        entries.insert(key, Arc::new(Entry { plan, made_of, used }));
    }
}

impl MadeOf {
    /// Of a statement that names these relations, and that is about to be planned; `None` if one is not there.
    pub async fn begin(now: Now<'_>, names: &[TableReference]) -> Option<Self> {
        let (options, operators, planners) = now.with(planned_with);
        let mut named = Vec::with_capacity(names.len());
        for name in names {
            let name = resolved(name, &options);
            let provider = provider(now, &name).await?;
            named.push((name, provider));
        }
        let functions = Names::default();
        Some(Self { options, operators, planners, asked: None, named, read: vec![], functions })
    }

    /// The same with what its query reads and calls; `None` if the query's plan may not be run again.
    pub async fn read_by(self, now: Now<'_>, query: &LogicalPlan) -> Option<Self> {
        let (tables, called) = parts(query)?;
        let functions = now.with(|state| called.names(state));
        Self { functions, ..self }.reading(now, tables).await
    }

    /// Of a query that is about to be planned. `None` if it reads what the catalog does not have: such a table is made for it alone.
    pub async fn asked(now: Now<'_>, asked: Asked) -> Option<Self> {
        let (options, operators, planners) = now.with(planned_with);
        let functions = now.with(|state| asked.functions.names(state));
        let mut named = Vec::with_capacity(asked.tables.len());
        for (name, table) in &asked.tables {
            let name = resolved(name, &options);
            provider(now, &name).await.filter(|known| Arc::ptr_eq(known, table))?;
            named.push((name, Arc::clone(table)));
        }
        let tables = asked.tables.clone();
        let made_of = Self { options, operators, planners, asked: Some(asked), named, read: vec![], functions };
        made_of.reading(now, tables).await
    }

    async fn reading(mut self, now: Now<'_>, tables: Named) -> Option<Self> {
        for (_, table) in tables {
            if !self.read.iter().any(|(known, _)| Arc::ptr_eq(known, &table)) {
                let (version, _) = version(now, &table).await?;
                self.read.push((table, version));
            }
        }
        Some(self)
    }

    /// What its files are, if planning it again would begin with the same things.
    async fn looks_if_fresh(&self, now: Now<'_>) -> Option<Looks> {
        let same = now.with(|state| {
            let operators = match (&self.operators, operators(state)) {
                (Some(known), Some(now)) => Arc::ptr_eq(known, &now),
                (known, now) => known.is_none() && now.is_none(),
            };
            operators
                && Arc::ptr_eq(&self.options, &options(state))
                && self.planners.are_those_of(state)
                && self.functions.mean_the_same_in(state)
        });
        if !same {
            return None;
        }
        for (name, known) in &self.named {
            if !provider(now, name).await.is_some_and(|now| Arc::ptr_eq(known, &now)) {
                return None;
            }
        }
        // Side by side: a look at a file is a trip to another thread, or over a network.
        let mut looks = Looks::default();
        let versions = self.read.iter().map(|(table, _)| version(now, table));
        for (now, (_, known)) in join_all(versions).await.into_iter().zip(&self.read) {
            let (_, seen) = now.filter(|(version, _)| version == known)?;
            seen.iter().for_each(|(store, files)| looks.note(store, files));
        }
        Some(looks)
    }
}

fn options(state: &SessionState) -> Arc<ConfigOptions> {
    Arc::clone(state.config().options())
}

fn operators(state: &SessionState) -> Option<Arc<[Arc<dyn DeviceOperator>]>> {
    state.config().get_extension::<Operators>().map(|operators| operators.all())
}

/// Options, operators and planners.
type PlannedWith = (Arc<ConfigOptions>, Option<Arc<[Arc<dyn DeviceOperator>]>>, Planners);

/// What a session plans with now.
fn planned_with(state: &SessionState) -> PlannedWith {
    (options(state), operators(state), Planners::of(state))
}

fn resolved(name: &TableReference, options: &ConfigOptions) -> ResolvedTableReference {
    name.clone().resolve(&options.catalog.default_catalog, &options.catalog.default_schema)
}

/// What the catalog gives for a name now.
async fn provider(now: Now<'_>, name: &ResolvedTableReference) -> Option<Arc<dyn TableProvider>> {
    let catalog = now.with(|state| state.catalog_list().catalog(&name.catalog))?;
    catalog.schema(&name.schema)?.table(&name.table).await.ok().flatten()
}

/// Files, by the address of their store.
type Seen = Vec<(String, Vec<ObjectMeta>)>;

/// The rows of a table as they are now, and its files where a run would be told the same of each; `None` for tables of others, and for
/// files that cannot be looked at.
async fn version(now: Now<'_>, table: &Arc<dyn TableProvider>) -> Option<(Version, Seen)> {
    let no_files = |version| (version, vec![]);
    if let Some(table) = table.downcast_ref::<MadeTable>() {
        return match table.rows().await {
            Rows::Made(rows) => Some(no_files(Version::Made(rows.number))),
            Rows::Changed(table) => version_of_batches(&table).await.map(no_files),
        };
    }
    if let Some(table) = table.downcast_ref::<MemTable>() {
        return version_of_batches(table).await.map(no_files);
    }
    let table = tables::listing(table.as_ref())?;
    let (runtime, checks) = now.with(|state| (Arc::clone(state.runtime_env()), Checks::of(state.config())));
    let (mut files, mut seen, mut stores) = (Vec::new(), Vec::new(), Vec::new());
    for url in table.table_paths() {
        let store = runtime.object_store(url).ok()?;
        let of = checks.files_of(url, &store).await.ok()?;
        // Stores of others may say less of a file in a list.
        if !url.is_collection() || url.scheme() == "file" {
            seen.push((url.object_store().as_str().to_string(), of.clone()));
        }
        files.extend(of);
        stores.push(store);
    }
    Some((Version::Files(files, Stores(stores)), seen))
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
fn parts(query: &LogicalPlan) -> Option<(Named, Called)> {
    let (mut tables, mut functions, mut refused) = (Vec::new(), Called::default(), false);
    let walked = query.apply_with_subqueries(|node| {
        match node {
            LogicalPlan::TableScan(scan) => match source_as_provider(&scan.source) {
                Ok(provider) => tables.push((scan.table_name.clone(), provider)),
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
        || plan.is::<PlaceholderRowExec>()
        || plan.is::<EmptyExec>()
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
fn as_new(
    plan: &Arc<dyn ExecutionPlan>,
    subqueries: &Subqueries,
    looks: Option<&Arc<Looks>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(download) = plan.downcast_ref::<DownloadExec>() {
        return Ok(Arc::new(download.as_new(subqueries, looks)?));
    }
    if let Some(scan) = MadeSource::as_new(plan.as_ref()) {
        return Ok(scan);
    }
    if let Some(node) = plan.downcast_ref::<ScalarSubqueryExec>() {
        let (subqueries, results) = subqueries.with(node);
        let input = as_new(node.input(), &subqueries, looks)?;
        let links = node
            .subqueries()
            .iter()
            .map(|link| Ok(ScalarSubqueryLink { plan: as_new(&link.plan, &subqueries, looks)?, index: link.index }));
        return Ok(Arc::new(ScalarSubqueryExec::new(input, links.collect::<Result<_>>()?, results)));
    }
    let children =
        plan.children().into_iter().map(|child| as_new(child, subqueries, looks)).collect::<Result<Vec<_>>>()?;
    subqueries.node(plan)?.replace_children(children, REPLACE)?.reset_state()
}
