//! Cache of plans: by a statement's text, by its template, or by the optimized logical plan if DataFusion drives the
//! planning.
//!
//!   text ──────────┐
//!   template ──────┤
//!   logical plan ──┴► entry ─ options, rules, relations, functions identical? files, batches equal? ─ yes ─► a copy
//!                                                                                                   └─ no ──► planned
//!
//! Kept      queries over files and in-memory tables of DataFusion, with deterministic functions, whose operators above
//!           the device keep no state of a run. All other queries are planned each time, and a statement that defines
//!           or sets something empties the cache.
//! As new    a kept plan is never executed: each run gets a copy with its own metrics and subqueries, which shares
//!           prepared work.
//! Logical   plans are compared as trees, and their tables and functions by identity. An expression that DataFusion has
//!           folded, such as now(), is a constant by then, and differs the next time.
//! Threads   one lock around the entries, held only for lookups.

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

use crate::placement::contract::{DeviceOperator, Operators};
use crate::plan::node::REPLACE;
use crate::plan::snapshot::Looks;
use crate::plan::subqueries::Subqueries;
use crate::result::node::DownloadExec;
use crate::session::planned_by::{Called, Names, Planners};
use crate::store::{Checks, MadeSource, MadeTable, Rows};
use crate::tables;

/// Cached plans of one session.
#[derive(Default)]
pub(crate) struct PlanCache {
    known: Mutex<HashMap<Key, Known>>,
    clock: AtomicU64,
    /// Number of statements that used their own kept plan, and of those that used a template's plan.
    found: AtomicU64,
    by_template: AtomicU64,
}

/// Number of a session's statements that used a kept plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlansFound {
    /// Statements that used their own plan.
    pub kept: u64,
    /// Statements that used the plan of a template, which differs from them only in constants.
    pub by_template: u64,
}

/// Knowledge about a key.
enum Known {
    Plan(Arc<Entry>),
    /// A template that some statement had: the next one plans it.
    Seen,
    /// A template that cannot be planned without its constants, or not entirely on the device.
    Refused,
}

impl Known {
    fn plan(&self) -> Option<&Arc<Entry>> {
        match self {
            Self::Plan(entry) => Some(entry),
            Self::Seen | Self::Refused => None,
        }
    }
}

impl fmt::Debug for PlanCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanCache").field("plans", &self.kept()).finish()
    }
}

/// Maximum number of remembered templates without a plan; beyond it, all of them are forgotten.
const TEMPLATES: usize = 1 << 10;

/// Maximum number of kept plans; beyond it, the least recently used one is dropped.
const PLANS: usize = 256;

/// Key of a kept plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// A statement's text.
    Text(String),
    /// Hash of a logical plan, which the entry contains.
    Logical(u64),
    /// Hash of a template, which the entry contains as a logical plan.
    Template(u64),
}

/// A plan and the inputs of its planning.
struct Entry {
    plan: Arc<dyn ExecutionPlan>,
    made_of: MadeOf,
    used: AtomicU64,
}

/// Current state of a session.
#[derive(Clone, Copy)]
pub(crate) enum Now<'a> {
    Context(&'a SessionContext),
    State(&'a SessionState),
}

impl Now<'_> {
    /// Calls `look` with the session's state; a lock is held only during the call.
    fn with<T>(self, look: impl FnOnce(&SessionState) -> T) -> T {
        match self {
            Self::Context(context) => look(&context.state_ref().read()),
            Self::State(state) => look(state),
        }
    }
}

/// Tables with the names under which a query reads them.
type Named = Vec<(TableReference, Arc<dyn TableProvider>)>;

/// A query, looked up by its logical plan.
pub(crate) struct Asked {
    plan: LogicalPlan,
    tables: Named,
    functions: Called,
}

impl Asked {
    /// A query whose plan may be kept; `None` if it is not a query, or not deterministic.
    pub fn of(plan: &LogicalPlan) -> Option<Self> {
        Self::of_template(plan, plan)
    }

    /// The template `plan` of a query, with the query's tables and functions.
    pub fn of_template(query: &LogicalPlan, plan: &LogicalPlan) -> Option<Self> {
        let (tables, functions) = parts(query)?;
        Some(Self { plan: plan.clone(), tables, functions })
    }

    /// Key of its plan.
    pub fn key(&self) -> Key {
        let mut hasher = DefaultHasher::new();
        self.plan.hash(&mut hasher);
        Key::Logical(hasher.finish())
    }

    /// True if both are the same query over the same tables, with the same functions.
    fn is(&self, other: &Self) -> bool {
        let tables = self.tables.iter().zip(&other.tables);
        self.tables.len() == other.tables.len()
            && tables.into_iter().all(|((_, a), (_, b))| Arc::ptr_eq(a, b))
            && self.functions.are(&other.functions)
            && self.plan == other.plan
    }
}

/// Inputs of planning.
pub(crate) struct MadeOf {
    /// Options of the session, which are replaced by a new object when one is set.
    options: Arc<ConfigOptions>,
    /// Operators of placement, which are replaced by a new list when one is added.
    operators: Option<Arc<[Arc<dyn DeviceOperator>]>>,
    planners: Planners,
    /// The planned query, if the plan is kept by its logical plan.
    asked: Option<Asked>,
    /// Tables that the catalog returned for each name.
    named: Vec<(ResolvedTableReference, Arc<dyn TableProvider>)>,
    /// Tables that are read, with the version of their rows.
    read: Vec<(Arc<dyn TableProvider>, Version)>,
    functions: Names,
}

impl fmt::Debug for MadeOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MadeOf").field("tables", &self.named.iter().map(|(name, _)| name).collect::<Vec<_>>()).finish()
    }
}

/// Version of a table's rows; differs whenever they change.
#[derive(PartialEq)]
enum Version {
    Files(Vec<ObjectMeta>, Stores),
    /// Addresses of all columns, because an update keeps unchanged columns, and row counts; the plan keeps the batches
    /// alive.
    Batches(Vec<(Vec<usize>, usize)>),
    /// Number of the rows of a kept table, which are immutable.
    Made(u64),
}

/// Object stores of a table's files, compared by identity, because a program may replace them.
struct Stores(Vec<Arc<dyn ObjectStore>>);

impl PartialEq for Stores {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

impl PlanCache {
    fn known(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of statements that used a kept plan.
    pub fn plans_found(&self) -> PlansFound {
        let (kept, by_template) = (&self.found, &self.by_template);
        PlansFound { kept: kept.load(Ordering::Relaxed), by_template: by_template.load(Ordering::Relaxed) }
    }

    /// Number of kept plans.
    pub fn kept(&self) -> usize {
        self.known().values().filter(|known| known.plan().is_some()).count()
    }

    /// Counts a statement that used the plan of a template.
    pub fn found_by_template(&self) {
        self.by_template.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops all plans.
    pub fn clear(&self) {
        self.known().clear();
    }

    /// The plan of a statement, ready to run; `None` if it is unknown or outdated.
    pub async fn find(&self, now: Now<'_>, key: &Key, asked: Option<&Asked>) -> Option<Arc<dyn ExecutionPlan>> {
        let entry = Arc::clone(self.known().get(key)?.plan()?);
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
        forget(&mut self.known(), key);
        None
    }

    /// True if an earlier statement had this template, and it is not refused; from now on it counts as seen.
    pub fn shares(&self, template: &Key) -> bool {
        let mut known = self.known();
        match known.get(template) {
            Some(Known::Plan(_) | Known::Seen) => true,
            Some(Known::Refused) => false,
            None => {
                if known.values().filter(|known| known.plan().is_none()).count() >= TEMPLATES {
                    known.retain(|_, known| known.plan().is_some());
                }
                known.insert(template.clone(), Known::Seen);
                false
            }
        }
    }

    /// Marks a template as unusable.
    pub fn refuse(&self, template: Key) {
        self.known().insert(template, Known::Refused);
    }

    /// Keeps the plan of a statement, if it may be run again. Its inputs were recorded before planning, so that a
    /// change in the meantime is detected the next time.
    pub fn keep(&self, key: Key, made_of: MadeOf, plan: &Arc<dyn ExecutionPlan>) {
        if !keeps_nothing(plan) {
            return;
        }
        // The plan itself is about to be executed.
        let Ok(plan) = as_new(plan, &Subqueries::default(), None) else { return };
        self.insert(key, made_of, plan);
    }

    /// Keeps a plan that is copied for each run, as the plan of a template is, before placement.
    pub fn keep_unplaced(&self, key: Key, made_of: MadeOf, plan: Arc<dyn ExecutionPlan>) {
        self.insert(key, made_of, plan);
    }

    fn insert(&self, key: Key, made_of: MadeOf, plan: Arc<dyn ExecutionPlan>) {
        let used = AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed));
        let mut known = self.known();
        let plans = || known.iter().filter_map(|(key, known)| Some((key, known.plan()?)));
        if plans().count() >= PLANS {
            let oldest = plans().min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed));
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.iter().for_each(|key| forget(&mut known, key));
        }
        known.insert(key, Known::Plan(Arc::new(Entry { plan, made_of, used })));
    }
}

/// Drops the plan of a key; a template remains seen.
fn forget(known: &mut HashMap<Key, Known>, key: &Key) {
    match known.get_mut(key) {
        Some(template) if matches!(key, Key::Template(_)) => *template = Known::Seen,
        _ => drop(known.remove(key)),
    }
}

impl MadeOf {
    /// Inputs of a statement that names these relations, recorded before planning; `None` if a relation does not exist.
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

    /// Adds the tables and functions of the query; `None` if the query's plan may not be run again.
    pub async fn read_by(self, now: Now<'_>, query: &LogicalPlan) -> Option<Self> {
        let (tables, called) = parts(query)?;
        let functions = now.with(|state| called.names(state));
        Self { functions, ..self }.reading(now, tables).await
    }

    /// Inputs of a query, recorded before planning; `None` if it reads a table outside the catalog, which exists only
    /// for this query.
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

    /// Current metadata of its files, if planning again would start from the same inputs.
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
        // Concurrently: a request for a file's metadata takes a switch to another thread, or a network round trip.
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

/// The current planning inputs of a session.
fn planned_with(state: &SessionState) -> PlannedWith {
    (options(state), operators(state), Planners::of(state))
}

fn resolved(name: &TableReference, options: &ConfigOptions) -> ResolvedTableReference {
    name.clone().resolve(&options.catalog.default_catalog, &options.catalog.default_schema)
}

/// The table that the catalog currently returns for a name.
async fn provider(now: Now<'_>, name: &ResolvedTableReference) -> Option<Arc<dyn TableProvider>> {
    let catalog = now.with(|state| state.catalog_list().catalog(&name.catalog))?;
    catalog.schema(&name.schema)?.table(&name.table).await.ok().flatten()
}

/// Files by the URL of their store.
type Seen = Vec<(String, Vec<ObjectMeta>)>;

/// Current version of a table's rows, and the files whose listed metadata equals that of a direct request; `None` for
/// other kinds of tables, and for files whose metadata cannot be read.
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
        // Remote stores may return less metadata in a listing.
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

/// Tables and functions of a query; `None` if it is not a query, or not deterministic.
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

/// True for a plan with a device part whose other operators keep no state between runs and update no dynamic filter.
/// Results of subqueries may differ between runs.
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
