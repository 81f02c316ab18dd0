//! Columns that stay on the device between queries.
//!
//!   a scan ─► identity, fresh ─► table ─► columns there? ── yes ─► view: rows, columns, facts
//!                                                        └─ no ──► load ─► view          no room, no form ─► None: the scan is fed
//!
//! Right     a table is what its identity says: files as they are now, or the arrays themselves. It is looked at before a run, and after the
//!           last byte of a load; files that have changed are another table.
//! Once      two queries that want columns of one table load them one after the other, and the second finds them there.
//! Room      at most the session's `cache_bytes`. A new column takes the place of those that were used least of late. When memory runs out,
//!           columns that no run reads leave before any query fails.
//! Threads   one lock around the list of tables, held for no work; a load holds its table's.

mod column;
pub(crate) mod functions;
mod listings;
mod load;
mod scan;

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use datafusion::arrow::datatypes::DataType;
use datafusion::execution::TaskContext;
use millpond_memory::{ByteSize, MemoryError, Participant, Request, Scope, Spillable, Strategy};

pub use crate::store::column::{ColumnForm, StoredColumn};
pub use crate::store::scan::Scan;

pub(crate) use crate::store::listings::FreshListings;

use crate::column::{is_string, plain_repr};
use crate::device::Engine;
use crate::error::EngineError;
use crate::profile::step;
use crate::program::context::RunContext;
use crate::program::failure::Failure;
use crate::program::texts;
use crate::store::column::Whole;
use crate::store::load::{Read, Wanted};
use crate::store::scan::Identity;

/// The stored columns of one device.
#[derive(Debug)]
pub struct Store {
    tables: Mutex<Vec<Arc<Table>>>,
    /// Tables in memory that were seen, small ones: they are stored when they come again.
    seen: Mutex<Vec<Identity>>,
    numbers: AtomicU64,
    /// Bytes of columns that have room and are not in their tables yet.
    coming: Mutex<u64>,
    /// Ticks with each run that reads stored columns.
    clock: AtomicU64,
    participant: Participant,
    scope: Scope,
}

/// A table of which columns are stored.
#[derive(Debug)]
struct Table {
    identity: Identity,
    stored: Mutex<Stored>,
    /// Held by who loads.
    loading: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Stored {
    rows: u64,
    columns: HashMap<(usize, ColumnForm), Arc<StoredColumn>>,
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
    at: u64,
}

/// More than any device has.
const NEVER: u64 = 1 << 50;
/// A column that could not be stored is tried again after so many runs that read stored columns.
const TRIED_AGAIN: u64 = 64;

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

/// A stored column as `millpond_cache()` lists it.
#[derive(Debug, Clone)]
pub struct Entry {
    pub table: String,
    pub column: String,
    pub bytes: u64,
    /// Bytes of a value; none for bits and texts.
    pub width: Option<u32>,
    /// What is known of its values.
    pub facts: String,
    /// Runs that have read it.
    pub hits: u64,
    /// Since it was loaded.
    pub age: Duration,
}

/// Tables in memory of fewer rows are stored when they are seen a second time: constants of a query never are.
const ROWS_AT_ONCE: usize = 1 << 16;
/// Small tables in memory that are remembered.
const SEEN: usize = 1 << 10;
/// Rows of an extent, which the kernels number with 31 bits.
const MOST_ROWS: u64 = 1 << 31;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// The store of a device, made when it is first asked for.
    pub fn of(engine: &Engine) -> Arc<Self> {
        engine.beside(|engine| {
            let store = Arc::new(Self {
                tables: Mutex::default(),
                seen: Mutex::default(),
                numbers: AtomicU64::new(0),
                coming: Mutex::default(),
                clock: AtomicU64::new(1),
                participant: engine.governor().participant("store", 0),
                scope: engine.device().scope().child("store"),
            });
            engine.spiller().add(&(Arc::clone(&store) as Arc<dyn Spillable>));
            store
        })
    }

    /// Bytes of all stored columns.
    pub fn bytes(&self) -> u64 {
        lock(&self.tables).iter().map(|table| table.bytes()).sum()
    }

    /// The same as the pool counts them, with what fills its units.
    pub fn allocated_bytes(&self) -> u64 {
        self.columns().iter().map(|of| of.column.allocated).sum()
    }

    /// The columns of a view, or all there are, by table and name.
    pub fn entries(&self, of: Option<&View>) -> Vec<Entry> {
        let is_asked =
            |number: u64| of.is_none_or(|view| view.columns.iter().flatten().any(|column| column.number == number));
        let columns = self.columns().into_iter().filter(|of| is_asked(of.column.number));
        let mut entries: Vec<Entry> = columns.map(|of| of.column.entry(of.table.identity.name())).collect();
        entries.sort_by(|a, b| (&a.table, &a.column).cmp(&(&b.table, &b.column)));
        entries
    }

    /// Lets go of the columns of the table that a scan reads; gives what has gone.
    ///
    /// # Errors
    /// The files' store's, where they cannot be looked at.
    pub async fn clear_table(&self, scan: &Scan, context: &TaskContext) -> datafusion::error::Result<Vec<Entry>> {
        let identity = scan.identity(context).await?;
        let tables = lock(&self.tables).clone();
        let of = tables.into_iter().filter(|table| table.identity.is(&identity));
        let mut entries: Vec<Entry> = Vec::new();
        for table in of {
            let gone = std::mem::take(&mut lock(&table.stored).columns);
            entries.extend(gone.into_values().map(|column| column.entry(table.identity.name())));
        }
        self.forget();
        entries.sort_by(|a, b| a.column.cmp(&b.column));
        Ok(entries)
    }

    /// Lets go of all columns; runs that are reading some keep theirs until they end.
    pub fn clear(&self) {
        lock(&self.tables).iter().for_each(|table| {
            let mut stored = lock(&table.stored);
            (stored.columns, stored.refused) = Default::default();
        });
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
        let Ok(identity) = scan.identity(&context.task).await else { return Ok(None) };
        if scan.is_in_memory() && !self.is_worth_it(scan, &identity) {
            return Ok(None);
        }
        let table = self.table(identity);
        if let Some(view) = self.stored(&table, scan, needed) {
            return Ok(Some(view));
        }
        let _loading = table.loading.lock().await;
        // Who was waited for may have loaded them.
        if let Some(view) = self.stored(&table, scan, needed) {
            return Ok(Some(view));
        }
        match self.load(&table, scan, context, needed).await {
            Ok(true) => Ok(self.stored(&table, scan, needed)),
            Ok(false) => Ok(None),
            Err(failure) => match &failure {
                Failure::Trouble(trouble) if trouble.lost => Err(failure),
                Failure::Cancelled => Err(failure),
                _ => {
                    tracing::debug!(table = table.identity.name(), "not stored: {}", failure.lesson());
                    let (lacking, _) = table.lacking(scan, needed, self.now());
                    self.refuse(&table, lacking.into_iter().map(|(_, column, form)| ((column, form), NEVER)));
                    Ok(None)
                }
            },
        }
    }

    /// The same for columns that somebody has asked for by name: a small table in memory is stored at once.
    ///
    /// # Errors
    /// As of [`view`](Self::view).
    pub async fn warm(&self, scan: &Scan, context: &Arc<RunContext>) -> Result<Option<View>, Failure> {
        if scan.is_in_memory()
            && let Ok(identity) = scan.identity(&context.task).await
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
        // Files that have changed, and tables that were dropped, serve nobody any more.
        tables.retain(|table| !table.identity.is_gone() && !table.identity.is_replaced_by(&identity));
        if let Some(known) = tables.iter().find(|table| table.identity.is(&identity)) {
            return Arc::clone(known);
        }
        let table = Arc::new(Table { identity, stored: Mutex::default(), loading: tokio::sync::Mutex::default() });
        tables.push(Arc::clone(&table));
        table
    }

    /// Forgets tables of which nothing is stored.
    fn forget(&self) {
        lock(&self.tables).retain(|table| Arc::strong_count(table) > 1 || !lock(&table.stored).columns.is_empty());
    }

    /// The view of a scan, if all its columns are there.
    fn stored(&self, table: &Table, scan: &Scan, needed: &HashSet<usize>) -> Option<View> {
        let stored = lock(&table.stored);
        let mut columns = Vec::with_capacity(scan.columns.len());
        for key in stored.keys(scan, needed) {
            columns.push(match key {
                Some(key) => Some(Arc::clone(stored.columns.get(&key)?)),
                None => None,
            });
        }
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        columns.iter().flatten().for_each(|column| column.used(now));
        // Of a table without a column with a device form, rows are not known.
        columns.iter().any(Option::is_some).then_some(View { rows: stored.rows, columns })
    }

    /// Loads what a scan lacks; false if there is no room or no form for it.
    async fn load(
        &self,
        table: &Table,
        scan: &Scan,
        context: &Arc<RunContext>,
        needed: &HashSet<usize>,
    ) -> Result<bool, Failure> {
        let budget = budget(context);
        loop {
            // What is there stays meanwhile.
            let _there: Vec<Arc<StoredColumn>> = {
                let stored = lock(&table.stored);
                stored
                    .keys(scan, needed)
                    .into_iter()
                    .flatten()
                    .filter_map(|key| stored.columns.get(&key).cloned())
                    .collect()
            };
            let (lacking, bytes) = table.lacking(scan, needed, self.now());
            // Nothing lacks of a scan without columns that have a form.
            if lacking.is_empty() || !self.could_fit(bytes, budget) {
                return Ok(false);
            }
            let wanted: Vec<Wanted> =
                lacking.iter().map(|(at, _, form)| wanted(scan, *at, *form, context, needed)).collect();
            let positions: Vec<usize> = lacking.iter().map(|(at, ..)| *at).collect();
            // A table that is far too large is not read to find that out.
            let estimate = scan.estimated_bytes(&positions) / 2;
            if !self.could_fit(estimate, budget) {
                self.refuse(table, lacking.iter().map(|(_, column, form)| ((*column, *form), estimate)));
                return Ok(false);
            }
            let plan = scan.reading(&table.identity, &positions, &context.task).map_err(Failure::Input)?;
            let (rows, columns, promises) = match load::read(context, &plan, &wanted).await? {
                Read::Columns { rows, columns, promises } => (rows, columns, promises),
                Read::Text(column) => {
                    // What was read of the others is read again with it.
                    lock(&table.stored).texts.insert(lacking[column].1);
                    continue;
                }
            };
            // A file that was replaced while it was read may have given rows of both.
            let now = scan.identity(&context.task).await.map_err(Failure::Input)?;
            if !now.is(&table.identity) || rows > MOST_ROWS {
                return Ok(false);
            }
            {
                let stored = lock(&table.stored);
                if !stored.columns.is_empty() && stored.rows != rows {
                    return Err(EngineError::internal("a table gives as many rows each time it is read").into());
                }
            }
            let bytes = |column: &Whole| column.sizes().map_or(NEVER, |(values, validity)| values + validity);
            let bytes: Vec<u64> = columns.iter().map(bytes).collect();
            let Some(_room) = self.make_room(bytes.iter().sum(), budget) else {
                self.refuse(table, lacking.iter().map(|(_, column, form)| (*column, *form)).zip(bytes));
                return Ok(false);
            };
            let stream = context.engine.streams.take(&context.tags.extents)?;
            let mut made = Vec::with_capacity(columns.len());
            for ((whole, bytes), (_, column, form)) in columns.into_iter().zip(bytes).zip(&lacking) {
                let _step = millpond_memory::recorder::step(step::COPY);
                let promise = self.participant.try_reserve(Request::device(ByteSize(bytes.next_multiple_of(256))))?;
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                let stored = whole.store(number, promise, &context.engine, (&stream, &self.scope)).await?;
                made.push(((*column, *form), Arc::new(stored)));
            }
            // Chunks are freed behind the launches that read them.
            drop(promises);
            let mut stored = lock(&table.stored);
            stored.rows = rows;
            stored.columns.extend(made);
            return Ok(true);
        }
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Notes columns that could not be stored.
    fn refuse(&self, table: &Table, columns: impl Iterator<Item = ((usize, ColumnForm), u64)>) {
        let at = self.now();
        let columns = columns.map(|(key, bytes)| (key, Refused { bytes, at }));
        lock(&table.stored).refused.extend(columns);
    }

    /// True if `bytes` may become stored within the budget, whoever must leave for it.
    fn could_fit(&self, bytes: u64, budget: u64) -> bool {
        let staying: u64 = self.columns().iter().filter(|of| !of.may_leave()).map(|of| of.column.bytes).sum();
        staying + bytes <= budget
    }

    /// Makes columns leave that are worth less than new ones, until `bytes` fit into the budget beside what else is coming; `None` if
    /// they cannot.
    fn make_room(&self, bytes: u64, budget: u64) -> Option<Room<'_>> {
        let mut coming = lock(&self.coming);
        let wanted = bytes + *coming;
        if !self.could_fit(wanted, budget) {
            return None;
        }
        let mut columns = self.columns();
        columns.sort_by(|a, b| a.worth.total_cmp(&b.worth));
        let mut used = self.bytes();
        for of in columns.into_iter().filter(Candidate::may_leave) {
            if used + wanted <= budget {
                break;
            }
            used -= of.column.bytes;
            of.leave();
        }
        (used + wanted <= budget).then(|| {
            *coming = wanted;
            Room { store: self, bytes }
        })
    }

    /// Every stored column, with the table that has it.
    fn columns(&self) -> Vec<Candidate> {
        let (tables, now) = (lock(&self.tables).clone(), self.now());
        let of = |table: Arc<Table>| {
            let columns: Vec<_> =
                lock(&table.stored).columns.iter().map(|(key, column)| (*key, Arc::clone(column))).collect();
            columns.into_iter().map(move |(key, column)| {
                // It may be used while others are compared with it.
                let worth = column.worth(now);
                Candidate { table: Arc::clone(&table), key, column, worth }
            })
        };
        tables.into_iter().flat_map(of).collect()
    }
}

/// Room for columns on their way into a table, until they are there or have failed.
struct Room<'s> {
    store: &'s Store,
    bytes: u64,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        *lock(&self.store.coming) -= self.bytes;
    }
}

/// A column that may have to leave.
struct Candidate {
    table: Arc<Table>,
    key: (usize, ColumnForm),
    column: Arc<StoredColumn>,
    worth: f64,
}

impl Candidate {
    /// Nobody is reading it: the table has it, and this candidate.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.column) <= 2
    }

    /// It makes room for a column that comes.
    fn may_leave(&self) -> bool {
        self.is_idle() && self.worth < 1.0
    }

    fn leave(self) {
        lock(&self.table.stored).columns.remove(&self.key);
    }
}

impl Spillable for Store {
    fn tag(&self) -> String {
        "store".to_string()
    }

    fn spillable_bytes(&self) -> ByteSize {
        ByteSize(self.columns().iter().filter(|of| of.is_idle()).map(|of| of.column.bytes).sum())
    }

    /// Columns go before anything that a query is working on.
    fn priority(&self) -> i32 {
        -1
    }

    fn spill(&self, wanted: ByteSize) -> Result<ByteSize, MemoryError> {
        let mut idle: Vec<Candidate> = self.columns().into_iter().filter(Candidate::is_idle).collect();
        idle.sort_by(|a, b| a.worth.total_cmp(&b.worth));
        let mut freed = 0;
        for of in idle {
            if freed >= wanted.as_u64() {
                break;
            }
            freed += of.column.bytes;
            of.leave();
        }
        Ok(ByteSize(freed))
    }
}

/// A column that is to be loaded: its place in the scan, its number in the table, its form.
type Lacking = (usize, usize, ColumnForm);

impl Table {
    /// The columns of a scan that are not there, and what they take at least, as far as that was found out of late.
    fn lacking(&self, scan: &Scan, needed: &HashSet<usize>, now: u64) -> (Vec<Lacking>, u64) {
        let stored = lock(&self.stored);
        let keys = stored.keys(scan, needed).into_iter().enumerate();
        let keys = keys.filter_map(|(at, key)| key.map(|key| (at, key)));
        let lacking: Vec<_> = keys.filter(|(_, key)| !stored.columns.contains_key(key)).collect();
        let refused = lacking.iter().filter_map(|(_, key)| stored.refused.get(key));
        let bytes = refused.filter(|refused| now < refused.at + TRIED_AGAIN).map(|refused| refused.bytes).sum();
        (lacking.into_iter().map(|(at, (column, form))| (at, column, form)).collect(), bytes)
    }

    fn bytes(&self) -> u64 {
        lock(&self.stored).columns.values().map(|column| column.bytes).sum()
    }
}

impl Stored {
    /// Under which keys the columns of a scan are stored; `None` for those without a device form.
    fn keys(&self, scan: &Scan, needed: &HashSet<usize>) -> Vec<Option<(usize, ColumnForm)>> {
        let fields = scan.schema.fields().iter().zip(&scan.columns).enumerate();
        let key = |(at, (field, column)): (usize, (&Arc<datafusion::arrow::datatypes::Field>, &usize))| {
            let form = match field.data_type() {
                text if is_string(text) && self.texts.contains(column) && !needed.contains(&at) => ColumnForm::Text,
                text if is_string(text) => ColumnForm::Codes,
                other => plain_repr(other).map(|_| ColumnForm::Plain)?,
            };
            Some((*column, form))
        };
        fields.map(key).collect()
    }
}

/// How column `at` of a scan is to be read.
fn wanted(scan: &Scan, at: usize, form: ColumnForm, context: &RunContext, needed: &HashSet<usize>) -> Wanted {
    let data_type: DataType = scan.schema.field(at).data_type().clone();
    let needed = needed.contains(&at);
    let most = context.options.most_dictionary_values() * if needed { texts::IF_NEEDED } else { 1 };
    Wanted { name: scan.schema.field(at).name().clone(), data_type, form, most, needed }
}

/// Most bytes of stored columns.
fn budget(context: &RunContext) -> u64 {
    match context.options.cache_bytes as u64 {
        0 => context.engine.pool().limit().as_u64() / 10 * 6,
        bytes => bytes,
    }
}
