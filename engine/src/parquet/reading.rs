//! The loop that reads row groups: decodes their rows on the host, or for the device, and passes them on.
//!
//!   row groups ─ read ─► chunks ─► some rows ─ decode ─► columns ─ put ─┬─► done: next rows
//!                                                                       ├─► short of pinned memory: chunks leave it
//!                                                                       └─► refused: the host decodes those columns
//!   invalid bytes, or values that contradict their statistics ─► Rest: DataFusion's scans of the remaining rows
//!
//! Destination  the store, or a segment of a program: it determines layouts, and how many rows are decoded at once.
//! Strings      coded columns are decoded first, because they may turn out to be better without codes.
//! Memory       the chunks' bytes, and what the destination adds, are counted in the session's pool until the rows are
//!              passed on.
//! Threads      readers share which columns the kernels have refused; all else is a reader's own.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::physical_plan::ExecutionPlan;
use millpond_memory::{PinnedPool, recorder};
use millpond_parquet::PageError;

use crate::device::Engine;
use crate::device::host_memory::HostHold;
use crate::device::workers::off_workers;
use crate::error::failure::Failure;
use crate::parquet::codes::{Codes, ColumnCodes};
use crate::parquet::decode::{Decoding, Interning, Target, Undecoded};
use crate::parquet::device::{Column, Columns, Outcome};
use crate::parquet::scan::ParquetScan;
use crate::parquet::scratch::ScratchPool;
use crate::parquet::unit::{Chunks, Units};
use crate::profile::step;

/// The read of one scan, shared by its readers.
pub(crate) struct Reading {
    pub scan: ParquetScan,
    pub scratch: Arc<ScratchPool>,
    /// Pages are uploaded as stored in the file, if the device has kernels for them.
    decodes: bool,
    /// By the scan's columns: set once the kernels have refused a page.
    on_host: Vec<AtomicBool>,
}

/// Private state of one reader.
pub(crate) struct Reader {
    pub codes: Codes,
    /// Host memory of the rows at hand.
    pub held: HostHold,
}

/// Layout of a column, and whether the device may decode it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ColumnLayout {
    pub target: Target,
    /// The rows may contain NULLs.
    pub may_be_null: bool,
    pub may_be_on_device: bool,
}

/// Destination of decoded rows.
pub(crate) trait Destination: Send {
    /// Whether decoded rows can be divided when memory is short. Otherwise they are decoded again after a refusal,
    /// fewer at a time.
    const DIVIDES: bool;

    /// Number of rows to decode next, of `left`, with their memory reserved; `None` if no more are needed.
    ///
    /// # Errors
    /// If the session's pool is too small for the minimum.
    fn rows(&mut self, left: usize, held: &mut HostHold) -> Result<Option<usize>, Failure>;

    /// Layouts of a column in the order in which they are tried: the second if a value contradicts the first. None for
    /// an unused column.
    fn layouts(&self, units: &Units, column: usize) -> [Option<ColumnLayout>; 2];

    /// True if a coded column is better without codes, judged before its values are interned.
    fn is_given_up(&self, _decoding: &Decoding<'_>, _column: usize) -> bool {
        false
    }

    /// Reads columns as texts instead of codes, see [`Codes::intern`].
    ///
    /// # Errors
    /// [`Failure::Texts`] if the read has to start again.
    fn give_up(&self, columns: &[usize]) -> Result<usize, Failure>;

    /// Counts decoded columns that [`rows`](Self::rows) has not reserved.
    fn count(&self, _columns: &Columns, _held: &mut HostHold) {}

    /// Takes the columns of the rows; only those that the host has decoded, once a refusal is divided.
    ///
    /// # Errors
    /// The device's, and those of work above.
    fn put(
        &mut self,
        decoding: &Decoding<'_>,
        columns: &mut Columns,
    ) -> impl Future<Output = Result<Outcome<()>, Failure>> + Send;
}

/// Rows that DataFusion has to read.
pub(crate) struct Rest {
    pub plans: Vec<Arc<dyn ExecutionPlan>>,
    /// Why bytes are invalid; `None` if a value contradicts its statistics.
    pub error: Option<PageError>,
}

impl Reading {
    /// A read of `columns` columns, on the device if it `decodes`.
    pub fn new(scan: ParquetScan, engine: &Engine, columns: usize, decodes: bool) -> Self {
        let on_host = (0..columns).map(|_| AtomicBool::new(false)).collect();
        Self { scan, scratch: ScratchPool::of(engine), decodes, on_host }
    }

    /// True if the device may decode some of the columns.
    pub fn may_decode(&self, units: &Units) -> bool {
        self.decodes && !(0..self.on_host.len()).all(|column| self.is_on_host(column)) && units.has_device_form()
    }

    fn is_on_host(&self, column: usize) -> bool {
        self.on_host[column].load(Ordering::Relaxed)
    }

    /// Reads the rows of row groups into `to`; their chunks into `pinned` memory, if given. Returns the rows that
    /// cannot be decoded.
    ///
    /// # Errors
    /// Those of the files, and of the destination.
    pub async fn read<D: Destination>(
        &self,
        (units, pinned): (&Units, Option<&PinnedPool>),
        reader: &mut Reader,
        to: &mut D,
    ) -> Result<Option<Rest>, Failure> {
        let mut done = 0;
        let read = self.decode_all((units, pinned), reader, to, &mut done).await;
        reader.held.free();
        let error = match read {
            Ok(()) => return Ok(None),
            Err(Undecoded::Failed(failure)) => return Err(failure),
            Err(Undecoded::Page(error)) => Some(error),
            Err(Undecoded::Range) => None,
        };
        Ok(Some(Rest { plans: units.rest(&self.scan, done, units.rows() - done), error }))
    }

    /// Decodes all rows; `done` counts those that the destination has taken.
    async fn decode_all<D: Destination>(
        &self,
        (units, pinned): (&Units, Option<&PinnedPool>),
        reader: &mut Reader,
        to: &mut D,
        done: &mut u64,
    ) -> Result<(), Undecoded> {
        let read = units.read(&self.scratch, pinned).await.map_err(Failure::Input)?;
        let mut chunks = read.map_err(Undecoded::Page)?;
        let bytes = chunks.iter().map(Chunks::bytes).sum();
        let mut on_device = self.decodes;
        while *done < units.rows() {
            // The bytes already exist, so they are counted even beyond the limit.
            reader.held.grow(bytes);
            let Some(rows) = to.rows((units.rows() - *done) as usize, &mut reader.held)? else { return Ok(()) };
            let parts = units.parts(*done, rows as u64);
            let mut columns = Columns::new(self.on_host.len());
            let mut decode = Some(on_device);
            loop {
                let decoding =
                    Decoding { units, chunks: &chunks, parts: &parts, first: *done, rows, scratch: &self.scratch };
                if let Some(on_device) = decode.take() {
                    off_workers(|| self.decode((&decoding, on_device), &mut columns, &mut reader.codes, to))?;
                    to.count(&columns, &mut reader.held);
                }
                match to.put(&decoding, &mut columns).await? {
                    Outcome::Done(()) => {
                        *done += rows as u64;
                        break;
                    }
                    Outcome::Unpin => chunks.iter_mut().for_each(|chunks| chunks.unpin(&self.scratch)),
                    Outcome::Refused(refused) => {
                        refused.columns.iter().for_each(|column| self.on_host[*column].store(true, Ordering::Relaxed));
                        if !D::DIVIDES {
                            on_device = !refused.columns.is_empty();
                            break;
                        }
                        columns.device.clear();
                        decode = Some(false);
                    }
                }
            }
            reader.held.free();
        }
        Ok(())
    }

    /// Decodes the columns that are still missing, or describes them for the device.
    fn decode<D: Destination>(
        &self,
        (decoding, on_device): (&Decoding<'_>, bool),
        columns: &mut Columns,
        codes: &mut Codes,
        to: &D,
    ) -> Result<(), Undecoded> {
        let _step = recorder::step(step::DECODE);
        let one = |column: usize, layout: ColumnLayout, mut codes: Option<&mut Interning<'_>>| {
            if on_device
                && layout.may_be_on_device
                && !self.is_on_host(column)
                && let Some(described) = decoding.on_device(column, layout.target, codes.as_deref_mut())?
            {
                return Ok(Column::Device(described));
            }
            decoding.column(column, (layout.target, layout.may_be_null), codes).map(Column::Host)
        };
        let intern = |column: usize, ColumnCodes { codes, most, needed }: &mut ColumnCodes| {
            let [Some(layout), _] = to.layouts(decoding.units, column) else { return Ok(None) };
            if columns.host[column].is_some() {
                return Ok(None);
            }
            if to.is_given_up(decoding, column) {
                return Err(Undecoded::Failed(Failure::Texts(vec![])));
            }
            one(column, layout, Some(&mut Interning::new(codes, *most, *needed))).map(Some)
        };
        let coded = codes.intern(|columns| to.give_up(columns), intern)?;
        for (column, coded) in coded.into_iter().enumerate() {
            let decoded = match (coded.flatten(), to.layouts(decoding.units, column)) {
                (Some(coded), _) => coded,
                (None, [Some(layout), other]) if columns.host[column].is_none() => {
                    match (one(column, layout, None), other) {
                        (Err(Undecoded::Range), Some(other)) => one(column, other, None)?,
                        (decoded, _) => decoded?,
                    }
                }
                _ => continue,
            };
            columns.set(column, decoded);
        }
        Ok(())
    }
}
