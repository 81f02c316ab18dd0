//! Columns that stay on the device between queries.
//!
//!   a scan ─► identity, fresh ─► table ─► columns there? ── yes ─► view: rows, columns, facts
//!                                                        └─ no ──► load ─► view          no room, no form ─► None: the scan is fed
//!
//! Right     a table is what its identity says: files as they are now, or the arrays themselves. It is looked at before a run, and after the
//!           last byte of a load; files that have changed are another table.
//! Once      two queries that want columns of one table load them one after the other, and the second finds them there.
//! Kin       files that another stored table has, too, are copied from there.
//! Tiers     the device, and pinned host memory for what leaves it.
//! Room      at most the session's `cache_bytes`. A new column takes the place of those that are worth less. When memory runs out,
//!           columns that no run reads leave before any query fails.
//! Threads   one lock around the list of tables, held for no work; a load holds its table's.

mod admit;
mod checks;
mod column;
mod entry;
pub(crate) mod functions;
mod host;
mod identity;
mod kept_lookups;
mod kin;
mod listings;
mod load;
mod lookups;
mod made;
mod owners;
mod room;
mod scan;
mod seen;
mod share;

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
pub(crate) use crate::store::listings::look;
pub(crate) use crate::store::owners::SessionMark;
pub(crate) use crate::store::scan::plain_source;
pub(crate) use crate::store::share::static_part;

use crate::column::{is_coded, is_string, plain_repr};
use crate::device::Engine;
use crate::options::Cache;
use crate::program::context::RunContext;
use crate::program::failure::Failure;
use crate::store::host::{HostColumn, HostTier};
use crate::store::identity::Identity;
use crate::store::owners::Owners;
use crate::store::room::{Candidate, Newcomers};

/// The stored columns of one device.
#[derive(Debug)]
pub struct Store {
    tables: Mutex<Vec<Arc<Table>>>,
    /// Tables that queries have made.
    made: Mutex<Vec<Weak<MadeRows>>>,
    /// Tables in memory that were seen, small ones: they are stored when they come again.
    seen: Mutex<Vec<Identity>>,
    numbers: AtomicU64,
    /// Bytes of columns that have room and are not in their tables yet.
    coming: Mutex<u64>,
    /// Ticks with each run that reads stored columns.
    clock: AtomicU64,
    participant: Participant,
    scope: Scope,
    host: HostTier,
}

/// A table of which columns are stored.
#[derive(Debug)]
struct Table {
    identity: Identity,
    stored: Mutex<Stored>,
    /// Held by who loads.
    loading: tokio::sync::Mutex<()>,
    /// A newer table has some of its files, changed: this one's rows are of yesterday.
    is_old: AtomicBool,
    /// Of a table in memory.
    owners: Owners,
}

#[derive(Debug, Default)]
struct Stored {
    /// Of each file.
    rows: Vec<u64>,
    columns: HashMap<(usize, ColumnForm), Arc<StoredColumn>>,
    /// Those that are in host memory instead.
    host: HashMap<(usize, ColumnForm), Arc<HostColumn>>,
    /// String columns that are better off without a dictionary.
    texts: HashSet<usize>,
    /// Columns that could not be stored.
    refused: HashMap<(usize, ColumnForm), Refused>,
}

/// A column that could not be stored, and for a while is not tried again.
#[derive(Debug, Clone, Copy)]
struct Refused {
    /// What it would take; [`NEVER`] if that is not the reason.
    bytes: u64,
    /// What it takes to read it, if that is known.
    effort: Option<u64>,
    at: u64,
}

/// More than any device has.
const NEVER: u64 = 1 << 50;
/// A column that could not be stored is tried again after so many runs that read stored columns.
const TRIED_AGAIN: u64 = 64;

/// Columns on the device for one run.
type Held = HashMap<(usize, ColumnForm), Arc<StoredColumn>>;

/// What a scan reads, stored: all columns of all its rows.
#[derive(Debug, Clone)]
pub struct View {
    pub rows: u64,
    /// By the scan's columns; `None` for those without a device form.
    pub columns: Vec<Option<Arc<StoredColumn>>>,
}

impl View {
    /// Equal for equal views.
    pub fn stamp(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.rows.hash(&mut hasher);
        self.columns.iter().for_each(|column| column.as_ref().map(|column| column.number).hash(&mut hasher));
        hasher.finish() | 1
    }
}

/// Tables in memory of fewer rows are stored when they are seen a second time: constants of a query never are.
const ROWS_AT_ONCE: usize = 1 << 16;
/// Small tables in memory that are remembered.
const SEEN: usize = 1 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// The store of a device, made when it is first asked for.
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

    /// The tables that queries have made, and that somebody still has.
    fn made(&self) -> Vec<Arc<MadeRows>> {
        let mut made = lock(&self.made);
        made.retain(|rows| rows.strong_count() > 0);
        made.iter().filter_map(Weak::upgrade).collect()
    }

    /// A table was made.
    fn keep_in_mind(&self, made: &Arc<MadeRows>) {
        lock(&self.made).push(Arc::downgrade(made));
    }

    /// Bytes of their columns on the device.
    fn made_bytes(&self) -> u64 {
        self.made().iter().map(|rows| rows.device_bytes()).sum()
    }

    /// The same as the pool counts them, with what fills its units.
    pub fn allocated_bytes(&self) -> u64 {
        self.columns().iter().map(|of| of.column.allocated_bytes()).sum::<u64>() + self.made_bytes()
    }

    /// The columns of a view, or all there are, by table and name.
    pub fn entries(&self, of: Option<&View>) -> Vec<Entry> {
        let made = self.made();
        let is_asked =
            |number: u64| of.is_none_or(|view| view.columns.iter().flatten().any(|column| column.number == number));
        let tables = lock(&self.tables).clone();
        let mut entries: Vec<Entry> = tables.iter().flat_map(|table| table.entries(&is_asked)).collect();
        entries.extend(made.iter().flat_map(|rows| rows.entries(is_asked)));
        entries.sort_by(|a, b| (&a.table, &a.column).cmp(&(&b.table, &b.column)));
        entries
    }

    /// Lets go of the columns of the table that a scan reads; gives what has gone. Those of a made table go to host memory.
    ///
    /// # Errors
    /// The files' store's, where they cannot be looked at.
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

    /// Lets go of all columns; runs that are reading some keep theirs until they end. Those of made tables go to host memory.
    pub fn clear(&self) {
        self.made().iter().for_each(|rows| rows.leave());
        lock(&self.tables).iter().for_each(|table| table.clear());
        self.forget();
    }

    /// The columns of a scan, loaded where they are not there. `None`: the scan is to be fed, because its columns have no room or its
    /// table is not one that stays; what is wrong with a file it will say itself. `needed` are its columns that need a dictionary.
    ///
    /// # Errors
    /// A device that is lost.
    pub async fn view(
        &self,
        scan: &Scan,
        context: &Arc<RunContext>,
        needed: &HashSet<usize>,
    ) -> Result<Option<View>, Failure> {
        // An arena takes nothing back while anything of it is in use.
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
        // Who was waited for may have loaded them.
        if let Some(view) = self.stored(&table, scan, needed, &held) {
            return Ok(Some(view));
        }
        let kin = self.kin(&table);
        let copies = !kin.is_empty();
        let mut loaded = self.load(&table, scan, context, needed, (kin, &mut held)).await;
        if copies && loaded.as_ref().is_err_and(Failure::is_out_of_memory) {
            // What is copied holds memory, too: all is read.
            loaded = self.load(&table, scan, context, needed, (vec![], &mut held)).await;
        }
        match loaded {
            Ok(true) => Ok(self.stored(&table, scan, needed, &held)),
            Ok(false) => {
                // Time passes for those that are there.
                self.clock.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
            Err(failure) => self.failed(&table, (scan, needed, &held), failure),
        }
    }

    /// What could not be loaded is fed, and for a while not tried again.
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

    /// The same for columns that somebody has asked for by name: a small table in memory is stored at once.
    ///
    /// # Errors
    /// As of [`view`](Self::view).
    pub async fn warm(&self, scan: &Scan, context: &Arc<RunContext>) -> Result<Option<View>, Failure> {
        if scan.is_in_memory()
            && let Ok(identity) = scan.identity(&context.task, Age::Lately).await
        {
            self.is_worth_it(scan, &identity);
        }
        self.view(scan, context, &HashSet::new()).await
    }

    /// False for a small table in memory that is seen for the first time; it is remembered.
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

    /// The table of these rows, new if they are not known.
    fn table(&self, identity: Identity) -> Arc<Table> {
        let mut tables = lock(&self.tables);
        // Tables that were dropped serve nobody any more.
        tables.retain(|table| !table.identity.is_gone());
        if let Some(known) = tables.iter().find(|table| table.identity.is(&identity)) {
            return Arc::clone(known);
        }
        // Of one with a file that has changed, what the others have can be copied.
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

    /// Forgets tables of which nothing is stored.
    fn forget(&self) {
        let is_known = |table: &Arc<Table>| Arc::strong_count(table) > 1 || !lock(&table.stored).is_empty();
        lock(&self.tables).retain(is_known);
        self.host.trim();
    }

    /// The view of a scan, if all its columns are there.
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
        columns.iter().flatten().for_each(|column| column.used(now));
        // Of a table without a column with a device form, rows are not known.
        columns.iter().any(Option::is_some).then(|| View { rows: stored.rows.iter().sum(), columns })
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Notes columns that could not be stored.
    fn refuse(&self, table: &Table, columns: impl Iterator<Item = ((usize, ColumnForm), u64, Option<u64>)>) {
        let at = self.now();
        let columns = columns.map(|(key, bytes, effort)| (key, Refused { bytes, effort, at }));
        lock(&table.stored).refused.extend(columns);
    }

    /// Every stored column, with the table that has it.
    fn columns(&self) -> Vec<Candidate> {
        let (tables, now) = (lock(&self.tables).clone(), self.now());
        let of = |table: Arc<Table>| {
            let columns: Vec<_> =
                lock(&table.stored).columns.iter().map(|(key, column)| (*key, Arc::clone(column))).collect();
            columns.into_iter().map(move |(key, column)| {
                // It may be used while others are compared with it.
                let (worth, bytes) = (column.worth(now), column.held_bytes());
                Candidate { table: Arc::clone(&table), key, column, worth, bytes }
            })
        };
        tables.into_iter().flat_map(of).collect()
    }
}

/// A column that is to be loaded: its place in the scan, its number in the table, its form.
type Lacking = (usize, usize, ColumnForm);

impl Table {
    /// The columns of a scan that are not there, and what they take at least, as far as that was found out of late.
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

    /// Its columns whose numbers are asked for.
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

    /// True for files, and for a table in memory that the session has read.
    fn is_seen_by(&self, session: &SessionConfig) -> bool {
        match self.identity {
            Identity::Files(_) => true,
            Identity::Batches(_) => self.owners.have(session),
        }
    }

    /// Lets go of its columns; what was refused may be tried again.
    fn clear(&self) {
        let mut stored = lock(&self.stored);
        (stored.columns, stored.host, stored.refused) = Default::default();
    }
}

impl Stored {
    fn is_empty(&self) -> bool {
        self.columns.is_empty() && self.host.is_empty()
    }

    /// Under which keys the columns of a scan are stored; `None` for those without a device form.
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
