//! Columns stored on the device between queries.
//!
//!   a scan ─► current identity ─► table ─► columns stored? ── yes ─► view: rows, columns, facts
//!                                                          └─ no ──► load ─► view      no space, no form ─► None: fed
//!
//! Right     a table is its identity: the current versions of files, or the arrays themselves. The identity is checked
//!           before a run, and after the last byte of a load; changed files form another table.
//! Once      two queries that need columns of one table load them one after the other, and the second query reuses the
//!           columns of the first.
//! Copied    files that another stored table also contains are copied from there.
//! Tiers     the device, and pinned host memory for evicted columns.
//! Capacity  at most the session's `cache_bytes`. A new column replaces columns with less benefit. When memory runs
//!           out, idle columns are evicted before any query fails.
//! Threads   one lock around the list of tables, held only for lookups; a load holds a lock of its table.

mod admit;
mod capacity;
mod checks;
mod column;
mod copied;
mod coverage;
mod entry;
pub(crate) mod functions;
mod host;
mod identity;
mod kept_lookups;
mod load;
mod lookups;
mod made;
mod owners;
mod refresh;
mod scan;
mod visibility;

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use datafusion::execution::TaskContext;
use datafusion::execution::config::SessionConfig;
use millpond_memory::{Participant, Scope, Spillable, Strategy};

pub use crate::store::column::{ColumnForm, StoredColumn};
pub use crate::store::entry::Entry;
pub use crate::store::made::{Keeper, MadeRows, MadeSource, MadeTable, Rows};
pub use crate::store::scan::Scan;

pub(crate) use crate::store::checks::{Age, Checks};
pub(crate) use crate::store::coverage::static_part;
pub(crate) use crate::store::owners::SessionMark;
pub(crate) use crate::store::refresh::refresh_listings;
pub(crate) use crate::store::scan::plain_source;

use crate::column::{is_coded, is_string, plain_repr};
use crate::device::Engine;
use crate::error::failure::Failure;
use crate::options::Cache;
use crate::program::context::RunContext;
use crate::store::capacity::{Candidate, Newcomers};
use crate::store::host::{HostColumn, HostTier};
use crate::store::identity::Identity;
use crate::store::owners::Owners;

/// Stored columns of one device.
#[derive(Debug)]
pub struct Store {
    tables: Mutex<Vec<Arc<Table>>>,
    /// Tables created by queries.
    made: Mutex<Vec<Weak<MadeRows>>>,
    /// Small in-memory tables seen so far: they are stored when they are seen again.
    seen: Mutex<Vec<Identity>>,
    numbers: AtomicU64,
    /// Bytes of columns with granted space that are not yet in their tables.
    coming: Mutex<u64>,
    /// Incremented by each run that reads stored columns.
    clock: AtomicU64,
    participant: Participant,
    scope: Scope,
    host: HostTier,
}

/// A table with stored columns.
#[derive(Debug)]
struct Table {
    identity: Identity,
    stored: Mutex<Stored>,
    /// Held during a load.
    loading: tokio::sync::Mutex<()>,
    /// Stale: a newer version of some of its files is stored.
    is_old: AtomicBool,
    /// Sessions that have read it, for an in-memory table.
    owners: Owners,
}

#[derive(Debug, Default)]
struct Stored {
    /// Number of rows of each file.
    rows: Vec<u64>,
    columns: HashMap<(usize, ColumnForm), Arc<StoredColumn>>,
    /// Columns in host memory instead.
    host: HashMap<(usize, ColumnForm), Arc<HostColumn>>,
    /// String columns that are better without a dictionary.
    texts: HashSet<usize>,
    /// Columns that could not be stored.
    refused: HashMap<(usize, ColumnForm), Refused>,
}

/// A column that could not be stored, and is not retried for some time.
#[derive(Debug, Clone, Copy)]
struct Refused {
    /// Bytes that it needs; [`NEVER`] if size is not the reason.
    bytes: u64,
    /// Cost of reading it, if known.
    effort: Option<u64>,
    at: u64,
}

/// Bytes that exceed any device.
const NEVER: u64 = 1 << 50;
/// Number of runs on stored columns after which a refused column is retried.
const TRIED_AGAIN: u64 = 64;

/// Columns on the device for one run.
type Held = HashMap<(usize, ColumnForm), Arc<StoredColumn>>;

/// Stored data of a scan: all columns of all its rows.
#[derive(Debug, Clone)]
pub struct View {
    pub rows: u64,
    /// By the scan's columns; `None` for those without a device form.
    pub columns: Vec<Option<Arc<StoredColumn>>>,
}

impl View {
    /// Hash that is equal for equal views.
    pub fn stamp(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.rows.hash(&mut hasher);
        self.columns.iter().for_each(|column| column.as_ref().map(|column| column.about.number).hash(&mut hasher));
        hasher.finish() | 1
    }
}

/// Rows below which an in-memory table is stored only when seen a second time: constants of a query are never seen
/// twice.
const ROWS_AT_ONCE: usize = 1 << 16;
/// Maximum number of remembered small in-memory tables.
const SEEN: usize = 1 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// The store of a device, created on first use.
    pub fn of(engine: &Engine) -> Arc<Self> {
        engine.beside(|engine| {
            let store = Arc::new(Self {
                tables: Mutex::default(),
                made: Mutex::default(),
                seen: Mutex::default(),
                numbers: AtomicU64::new(0),
                coming: Mutex::default(),
                clock: AtomicU64::new(1),
                participant: engine.governor().participant("store", 0),
                scope: engine.device().scope().child("store"),
                host: HostTier::new(engine.device()),
            });
            engine.spiller().add(&(Arc::clone(&store) as Arc<dyn Spillable>));
            store
        })
    }

    /// Bytes of all stored columns.
    pub fn bytes(&self) -> u64 {
        lock(&self.tables).iter().map(|table| table.bytes()).sum::<u64>() + self.made_bytes()
    }

    /// Tables created by queries that are still referenced.
    fn made(&self) -> Vec<Arc<MadeRows>> {
        let mut made = lock(&self.made);
        made.retain(|rows| rows.strong_count() > 0);
        made.iter().filter_map(Weak::upgrade).collect()
    }

    /// Registers a table created by a query.
    fn keep_in_mind(&self, made: &Arc<MadeRows>) {
        lock(&self.made).push(Arc::downgrade(made));
    }

    /// Bytes of their columns on the device.
    fn made_bytes(&self) -> u64 {
        self.made().iter().map(|rows| rows.device_bytes()).sum()
    }

    /// Bytes of all stored columns as counted by the pool, including padding.
    pub fn allocated_bytes(&self) -> u64 {
        self.columns().iter().map(|of| of.column.allocated_bytes()).sum::<u64>() + self.made_bytes()
    }

    /// Descriptions of the columns of a view, or of all columns, by table and name.
    pub fn entries(&self, of: Option<&View>) -> Vec<Entry> {
        let made = self.made();
        let is_asked = |number: u64| {
            of.is_none_or(|view| view.columns.iter().flatten().any(|column| column.about.number == number))
        };
        let tables = lock(&self.tables).clone();
        let mut entries: Vec<Entry> = tables.iter().flat_map(|table| table.entries(&is_asked)).collect();
        entries.extend(made.iter().flat_map(|rows| rows.entries(is_asked)));
        entries.sort_by(|a, b| (&a.table, &a.column).cmp(&(&b.table, &b.column)));
        entries
    }

    /// Drops the stored columns of the table that a scan reads, and returns their descriptions. Those of a kept table
    /// are spilled to host memory.
    ///
    /// # Errors
    /// The object store's, if the files' metadata cannot be read.
    pub async fn clear_table(&self, scan: &Scan, context: &TaskContext) -> datafusion::error::Result<Vec<Entry>> {
        if let Some(made) = scan.made() {
            let entries = made.rows.entries(|_| true);
            made.rows.leave();
            return Ok(entries);
        }
        let identity = scan.identity(context, Age::Lately).await?;
        let tables = lock(&self.tables).clone();
        let shares = |table: &Identity| identity.files_in(table).iter().any(Option::is_some);
        let of = tables.into_iter().filter(|table| table.identity.is_still(&identity) || shares(&table.identity));
        let mut entries: Vec<Entry> = Vec::new();
        for table in of {
            entries.extend(table.entries(&|_| true));
            table.clear();
        }
        self.forget();
        entries.sort_by(|a, b| a.column.cmp(&b.column));
        Ok(entries)
    }

    /// Drops all columns; runs that are reading columns keep them until they end. Columns of kept tables are spilled to
    /// host memory.
    pub fn clear(&self) {
        self.made().iter().for_each(|rows| rows.leave());
        lock(&self.tables).iter().for_each(|table| table.clear());
        self.forget();
    }

    /// Columns of a scan, loaded if necessary. `None`: the scan must be fed, because its columns do not fit or its
    /// table is not stored; feeding also reports errors of files. `needed` are the columns that require a dictionary.
    ///
    /// # Errors
    /// If the device is lost.
    pub async fn view(
        &self,
        scan: &Scan,
        context: &Arc<RunContext>,
        needed: &HashSet<usize>,
    ) -> Result<Option<View>, Failure> {
        // An arena frees nothing while any part of it is in use.
        if context.engine.memory_resource() == Strategy::Arena {
            return Ok(None);
        }
        let session = context.task.session_config();
        if let Some(made) = scan.made() {
            made.rows.owners.add(session);
            return match made.rows.is_on(&context.engine) {
                true => made.rows.view(&made.columns, context, needed),
                false => Ok(None),
            };
        }
        let looks = context.looks.as_deref();
        let Ok(identity) = scan.identity_since(&context.task, Age::Lately, looks).await else { return Ok(None) };
        if scan.is_in_memory() && !self.is_worth_it(scan, &identity) {
            return Ok(None);
        }
        self.host.allow(&context.options);
        let table = self.table(identity);
        if matches!(table.identity, Identity::Batches(_)) {
            table.owners.add(session);
        }
        let mut held = Held::new();
        if let Some(view) = self.stored(&table, scan, needed, &held) {
            return Ok(Some(view));
        }
        let _loading = table.loading.lock().await;
        let keys: Vec<_> = lock(&table.stored).keys(scan, needed).into_iter().flatten().collect();
        match self.bring_up(&table, &keys, context, context.options.cache != Cache::Host) {
            Ok(up) => held = up,
            Err(failure) if failure.is_out_of_memory() => return Ok(None),
            Err(failure) => return self.failed(&table, (scan, needed, &held), failure),
        }
        // The previous holder of the lock may have loaded them.
        if let Some(view) = self.stored(&table, scan, needed, &held) {
            return Ok(Some(view));
        }
        let sources = self.copy_sources(&table);
        let copies = !sources.is_empty();
        let mut loaded = self.load(&table, scan, context, needed, (sources, &mut held)).await;
        if copies && loaded.as_ref().is_err_and(Failure::is_out_of_memory) {
            // The sources of copies also occupy memory: without copies, everything is read.
            loaded = self.load(&table, scan, context, needed, (vec![], &mut held)).await;
        }
        match loaded {
            Ok(true) => Ok(self.stored(&table, scan, needed, &held)),
            Ok(false) => {
                // Ages the stored columns even though this scan stored nothing.
                self.clock.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
            Err(failure) => self.failed(&table, (scan, needed, &held), failure),
        }
    }

    /// Feeds a scan that could not be loaded, and does not retry it for some time.
    fn failed(
        &self,
        table: &Table,
        (scan, needed, held): (&Scan, &HashSet<usize>, &Held),
        failure: Failure,
    ) -> Result<Option<View>, Failure> {
        match &failure {
            Failure::Trouble(trouble) if trouble.lost => Err(failure),
            Failure::Cancelled => Err(failure),
            _ => {
                tracing::debug!(table = table.identity.name(), "not stored: {}", failure.lesson());
                let (lacking, _) = table.lacking(scan, needed, held, self.now());
                self.refuse(table, lacking.into_iter().map(|(_, column, form)| ((column, form), NEVER, None)));
                Ok(None)
            }
        }
    }

    /// Like [`view`](Self::view), for columns requested by name: a small in-memory table is stored immediately.
    ///
    /// # Errors
    /// Like [`view`](Self::view).
    pub async fn warm(&self, scan: &Scan, context: &Arc<RunContext>) -> Result<Option<View>, Failure> {
        if scan.is_in_memory()
            && let Ok(identity) = scan.identity(&context.task, Age::Lately).await
        {
            self.is_worth_it(scan, &identity);
        }
        self.view(scan, context, &HashSet::new()).await
    }

    /// False for a small in-memory table that is seen for the first time; it is remembered.
    fn is_worth_it(&self, scan: &Scan, identity: &Identity) -> bool {
        if scan.rows_in_memory() >= ROWS_AT_ONCE {
            return true;
        }
        let mut seen = lock(&self.seen);
        seen.retain(|known| !known.is_gone());
        if seen.iter().any(|known| known.is(identity)) {
            return true;
        }
        if seen.len() >= SEEN {
            seen.clear();
        }
        seen.push(identity.clone());
        false
    }

    /// The table with these rows, created if unknown.
    fn table(&self, identity: Identity) -> Arc<Table> {
        let mut tables = lock(&self.tables);
        // In-memory tables that were dropped are no longer needed.
        tables.retain(|table| !table.identity.is_gone());
        if let Some(known) = tables.iter().find(|table| table.identity.is(&identity)) {
            return Arc::clone(known);
        }
        // From a table with a changed file, the columns of its other files can be copied.
        tables.retain(|table| {
            let is_old = table.identity.is_replaced_by(&identity);
            table.is_old.fetch_or(is_old, Ordering::Relaxed);
            !is_old || identity.files_in(&table.identity).iter().any(Option::is_some)
        });
        let table = Arc::new(Table {
            identity,
            stored: Mutex::default(),
            loading: tokio::sync::Mutex::default(),
            is_old: AtomicBool::new(false),
            owners: Owners::default(),
        });
        tables.push(Arc::clone(&table));
        table
    }

    /// Removes tables without stored columns.
    fn forget(&self) {
        let is_known = |table: &Arc<Table>| Arc::strong_count(table) > 1 || !lock(&table.stored).is_empty();
        lock(&self.tables).retain(is_known);
        self.host.trim();
    }

    /// The view of a scan, if all its columns are stored.
    fn stored(&self, table: &Table, scan: &Scan, needed: &HashSet<usize>, held: &Held) -> Option<View> {
        let stored = lock(&table.stored);
        let mut columns = Vec::with_capacity(scan.columns.len());
        for key in stored.keys(scan, needed) {
            columns.push(match key {
                Some(key) => Some(Arc::clone(stored.columns.get(&key).or_else(|| held.get(&key))?)),
                None => None,
            });
        }
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        columns.iter().flatten().for_each(|column| column.about.used(now));
        // The row count of a table without storable columns is unknown.
        columns.iter().any(Option::is_some).then(|| View { rows: stored.rows.iter().sum(), columns })
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Records columns that could not be stored.
    fn refuse(&self, table: &Table, columns: impl Iterator<Item = ((usize, ColumnForm), u64, Option<u64>)>) {
        let at = self.now();
        let columns = columns.map(|(key, bytes, effort)| (key, Refused { bytes, effort, at }));
        lock(&table.stored).refused.extend(columns);
    }

    /// All stored columns, with their tables.
    fn columns(&self) -> Vec<Candidate> {
        let (tables, now) = (lock(&self.tables).clone(), self.now());
        let of = |table: Arc<Table>| {
            let columns: Vec<_> =
                lock(&table.stored).columns.iter().map(|(key, column)| (*key, Arc::clone(column))).collect();
            columns.into_iter().map(move |(key, column)| {
                // The column may be used while others are compared with it.
                let (worth, bytes) = (column.about.worth(now), column.held_bytes());
                Candidate { table: Arc::clone(&table), key, column, worth, bytes }
            })
        };
        tables.into_iter().flat_map(of).collect()
    }
}

/// A column to load: its index in the scan, its index in the table, its form.
type Lacking = (usize, usize, ColumnForm);

impl Table {
    /// Columns of a scan that are not stored, and their known minimum requirements from recent refusals.
    fn lacking(&self, scan: &Scan, needed: &HashSet<usize>, held: &Held, now: u64) -> (Vec<Lacking>, Newcomers) {
        let stored = lock(&self.stored);
        let keys = stored.keys(scan, needed).into_iter().enumerate();
        let keys = keys.filter_map(|(at, key)| key.map(|key| (at, key)));
        let is_there = |key: &(usize, ColumnForm)| stored.columns.contains_key(key) || held.contains_key(key);
        let lacking: Vec<_> = keys.filter(|(_, key)| !is_there(key)).collect();
        let refused = lacking.iter().filter_map(|(_, key)| stored.refused.get(key));
        let refused: Vec<&Refused> = refused.filter(|refused| now < refused.at + TRIED_AGAIN).collect();
        let known = Newcomers {
            bytes: refused.iter().map(|refused| refused.bytes).sum(),
            effort: refused.iter().map(|refused| refused.effort).sum(),
        };
        (lacking.into_iter().map(|(at, (column, form))| (at, column, form)).collect(), known)
    }

    fn bytes(&self) -> u64 {
        lock(&self.stored).columns.values().map(|column| column.held_bytes()).sum()
    }

    /// Descriptions of the columns whose numbers are accepted.
    fn entries(&self, is_asked: &dyn Fn(u64) -> bool) -> Vec<Entry> {
        let stored = lock(&self.stored);
        let device = stored.columns.values().map(|column| (&column.about, "device", column.lookups.bytes()));
        let all = device.chain(stored.host.values().map(|column| (&column.about, "host", 0)));
        let asked = all.filter(|(about, ..)| is_asked(about.number));
        let entry = |(about, tier, lookups): (&Arc<column::About>, _, u64)| {
            let own = about.entry(self.identity.name(), tier);
            Entry { bytes: own.bytes + lookups, ..own }
        };
        asked.map(entry).collect()
    }

    /// True for files, and for an in-memory table that the session has read.
    fn is_seen_by(&self, session: &SessionConfig) -> bool {
        match self.identity {
            Identity::Files(_) => true,
            Identity::Batches(_) => self.owners.have(session),
        }
    }

    /// Drops its columns and records of refusals.
    fn clear(&self) {
        let mut stored = lock(&self.stored);
        (stored.columns, stored.host, stored.refused) = Default::default();
    }
}

impl Stored {
    fn is_empty(&self) -> bool {
        self.columns.is_empty() && self.host.is_empty()
    }

    /// Keys of a scan's columns; `None` for columns without a device form.
    fn keys(&self, scan: &Scan, needed: &HashSet<usize>) -> Vec<Option<(usize, ColumnForm)>> {
        let fields = scan.schema.fields().iter().zip(&scan.columns).enumerate();
        let key = |(at, (field, column)): (usize, (&Arc<datafusion::arrow::datatypes::Field>, &usize))| {
            let form = match field.data_type() {
                text if is_string(text) && self.texts.contains(column) && !needed.contains(&at) => ColumnForm::Text,
                coded if is_coded(coded) => ColumnForm::Codes,
                other => plain_repr(other).map(|_| ColumnForm::Plain)?,
            };
            Some((*column, form))
        };
        fields.map(key).collect()
    }
}
