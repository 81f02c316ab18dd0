//! Rows of a table created by a query: columns without a file.
//!
//!   CREATE TABLE AS ─ run ─► result parts ─ Keeper ─► MadeRows ─┬─ view ─► runs on the device, without copies
//!                                                               └─ home ─► Arrow: CPU plans, INSERT, COPY, downloads
//!
//! Owned    by the table and by plans that read it: after the table is dropped or replaced, they are freed with the
//!          last of these. The store lists them and counts them in its budget.
//! Memory   never evicted: under memory pressure, beyond the budget and by `millpond_cache_clear` they are spilled to
//!          host memory, and restored when a run reads them. Rows converted to Arrow are cached as long as the
//!          session's memory pool allows.
//! Lost     with the device, except for rows cached as Arrow: reading others is an error that says so.

mod column;
mod keep;
mod scan;
mod table;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Statistics;
use datafusion::common::stats::Precision;
use datafusion::error::Result;
use datafusion::execution::TaskContext;

pub use crate::store::made::keep::Keeper;
pub use crate::store::made::scan::MadeSource;
pub use crate::store::made::table::{MadeTable, Rows};

use crate::device::Engine;
use crate::device::host_memory::HostHold;
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::program::context::RunContext;
use crate::store::made::column::MadeColumn;
use crate::store::owners::Owners;
use crate::store::{ColumnForm, Entry, Store, View, lock};

/// Rows converted to Arrow at once.
pub(super) const CHUNK_ROWS: u64 = 1 << 18;

/// Immutable rows of a kept table.
pub struct MadeRows {
    /// Unique number of the rows.
    pub number: u64,
    table: String,
    pub schema: SchemaRef,
    pub rows: u64,
    engine: Arc<Engine>,
    columns: Vec<MadeColumn>,
    pub(super) owners: Owners,
    home: Mutex<Home>,
}

/// Rows cached as Arrow.
#[derive(Default)]
struct Home {
    /// By column and chunk.
    chunks: HashMap<(usize, u64), ArrayRef>,
    /// Reservation in the memory pool of the session that first read them.
    held: Option<HostHold>,
}

impl fmt::Debug for MadeRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of made table {}", self.rows, self.table)
    }
}

impl MadeRows {
    /// True for the device that holds them; other devices get them as Arrow.
    pub(super) fn is_on(&self, engine: &Arc<Engine>) -> bool {
        Arc::ptr_eq(&self.engine, engine)
    }

    /// Columns `wanted` on the device for a run; `None` if they must be read as Arrow, because they do not fit or an
    /// expression requires a dictionary of texts. `needed` are the indices of such columns.
    ///
    /// # Errors
    /// If the device is lost.
    pub(super) fn view(
        &self,
        wanted: &[usize],
        context: &RunContext,
        needed: &HashSet<usize>,
    ) -> Result<Option<View>, Failure> {
        let columns: Vec<&MadeColumn> = wanted.iter().filter_map(|column| self.columns.get(*column)).collect();
        if needed.iter().any(|at| columns.get(*at).is_some_and(|column| column.about.form == ColumnForm::Text)) {
            return Ok(None);
        }
        let now = Store::of(&self.engine).clock.fetch_add(1, Ordering::Relaxed);
        let stream = self.engine.streams.take(&context.tags.extents)?;
        let mut lent = Vec::with_capacity(columns.len());
        for column in columns {
            match column.lend(now, &stream) {
                Ok(column) => lent.push(Some(Arc::new(column))),
                Err(failure) if failure.is_out_of_memory() => return Ok(None),
                Err(failure) => return Err(self.named(failure)),
            }
        }
        Ok(Some(View { rows: self.rows, columns: lent }))
    }

    /// Adds the table's name to the failure of a lost device.
    fn named(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Trouble(mut trouble) if trouble.lost => {
                trouble.what = format!("table {} was on a device that is lost ({})", self.table, trouble.what);
                Failure::Trouble(trouble)
            }
            other => other,
        }
    }

    /// Bytes currently on the device.
    pub(super) fn device_bytes(&self) -> u64 {
        self.columns.iter().map(MadeColumn::device_bytes).sum()
    }

    /// Spills all columns except those that a run reads.
    pub(super) fn leave(&self) {
        for column in &self.columns {
            if let Err(error) = column.leave() {
                tracing::debug!(table = self.table, %error, "a column stays where it is");
            }
        }
    }

    /// Spills columns with less benefit than new ones, lowest first, until `enough` returns true.
    pub(super) fn leave_until(&self, now: u64, worth: f64, enough: impl Fn() -> bool) {
        let mut columns: Vec<&MadeColumn> =
            self.columns.iter().filter(|column| column.about.worth(now) < worth).collect();
        columns.sort_by(|a, b| a.about.worth(now).total_cmp(&b.about.worth(now)));
        for column in columns {
            if enough() {
                return;
            }
            // A column in use stays; a lost device is reported by its users.
            let _ = column.leave();
        }
    }

    /// Bytes on the device of columns that are not spilled for new ones.
    pub(super) fn staying_bytes(&self, now: u64, worth: f64) -> u64 {
        self.columns.iter().filter(|column| column.about.worth(now) >= worth).map(MadeColumn::device_bytes).sum()
    }

    /// Descriptions of the columns whose numbers are accepted.
    pub(super) fn entries(&self, is_asked: impl Fn(u64) -> bool) -> Vec<Entry> {
        let asked = self.columns.iter().filter(|column| is_asked(column.about.number));
        asked.map(|column| column.entry(&self.table)).collect()
    }

    /// Number of chunks for the conversion to Arrow.
    pub(super) fn chunks(&self) -> u64 {
        self.rows.div_ceil(CHUNK_ROWS)
    }

    fn chunk(&self, chunk: u64) -> Range<u64> {
        chunk * CHUNK_ROWS..((chunk + 1) * CHUNK_ROWS).min(self.rows)
    }

    /// Statistics of columns `wanted`.
    pub(super) fn statistics(&self, wanted: &[usize], schema: &SchemaRef) -> Statistics {
        let columns = wanted.iter().filter_map(|column| self.columns.get(*column));
        let mut known = Statistics {
            num_rows: Precision::Exact(self.rows as usize),
            total_byte_size: Precision::Absent,
            column_statistics: columns.map(MadeColumn::statistics).collect(),
        };
        known.calculate_total_byte_size(schema);
        known
    }

    /// A chunk of a column as Arrow, and the bytes downloaded for it; cached if the session's memory pool allows.
    ///
    /// # Errors
    /// For a lost device, with the table's name; other failures of the download.
    pub(super) async fn home(&self, column: usize, chunk: u64, context: &TaskContext) -> Result<(ArrayRef, u64)> {
        self.owners.add(context.session_config());
        if let Some(known) = lock(&self.home).chunks.get(&(column, chunk)) {
            return Ok((Arc::clone(known), 0));
        }
        let of = self.columns.get(column).ok_or_else(|| EngineError::internal("a made table has its columns"))?;
        let rows = self.chunk(chunk);
        let scope = self.engine.device().scope().child("made table");
        let array = of.home(rows.start, rows.end - rows.start, &self.engine, &scope).await;
        let array = array.map_err(|failure| self.error(failure))?;
        let mut home = lock(&self.home);
        let pool = &context.runtime_env().memory_pool;
        let held = home.held.get_or_insert_with(|| HostHold::new(&format!("millpond table {}", self.table), pool));
        if held.try_grow(array.get_array_memory_size()) {
            home.chunks.insert((column, chunk), Arc::clone(&array));
        }
        Ok((array, scope.counters().downloaded_bytes))
    }

    fn error(&self, failure: Failure) -> datafusion::error::DataFusionError {
        match failure {
            Failure::Input(error) => error,
            Failure::Trouble(trouble) => {
                let (lost, out_of_memory) = (trouble.lost, trouble.out_of_memory);
                let table = &self.table;
                let what = match lost {
                    true => format!("table {table} was on a device that is lost; make it again ({})", trouble.what),
                    false => format!("table {table} could not be read from the device: {}", trouble.what),
                };
                EngineError::DeviceTrouble { what, forbidden: false, lost, out_of_memory }.into()
            }
            other => EngineError::internal(other.lesson()).into(),
        }
    }
}
