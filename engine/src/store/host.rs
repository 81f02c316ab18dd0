//! The second tier: columns in pinned host memory. They come back by a copy, not by reading their files.
//!
//!   device ── makes room, or memory runs out ──► pinned bytes ── a run wants it ──► device          `auto` with `cache_host_bytes`
//!             a load ends ─────────────────────► pinned bytes ── each run ────────► device, for that run   `host`
//!
//! Order    copies follow the column's other uses on the device; what is copied from is freed behind them.
//! Memory   at most the tier's bytes, in which those that are worth least leave first.
//! Waits    never: copies are enqueued.
//! Lost     with the device.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use millpond_memory::{
    ByteSize, Device, DeviceBuffer, DeviceView, HostKind, MemoryError, MemoryPool, Participant, PinnedBuffer,
    PinnedPool, Request, Scope, Stream,
};

use crate::options::{Cache, MillpondOptions};
use crate::program::failure::Failure;
use crate::store::column::{About, ColumnForm, StoredColumn};
use crate::store::{Store, Table, lock};

/// A column in pinned host memory.
pub(super) struct HostColumn {
    pub about: Arc<About>,
    /// Values, and validity.
    bytes: Mutex<Vec<PinnedBuffer>>,
    /// The same on the device, while a run reads it.
    on_device: Mutex<Weak<StoredColumn>>,
}

impl fmt::Debug for HostColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} bytes of host memory", self.about.name, self.about.bytes)
    }
}

/// The memory of the tier.
#[derive(Debug)]
pub(super) struct HostTier {
    device: Device,
    state: Mutex<State>,
    /// Held by who moves a column in: what others bring is counted.
    coming: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Most bytes, as the session that read last has set them.
    limit: u64,
    pinned: Option<PinnedPool>,
    stream: Option<Stream>,
}

impl HostTier {
    pub(super) fn new(device: &Device) -> Self {
        Self { device: device.clone(), state: Mutex::default(), coming: Mutex::default() }
    }

    /// Most bytes of the tier.
    pub(super) fn limit(&self) -> u64 {
        lock(&self.state).limit
    }

    /// A session reads that has these options.
    pub(super) fn allow(&self, options: &MillpondOptions) {
        let limit = match (options.cache, options.cache_host_bytes as u64) {
            (Cache::Host, 0) => PinnedPool::default_max_bytes().as_u64(),
            (_, bytes) => bytes,
        };
        let mut state = lock(&self.state);
        if state.limit != limit {
            // What is there goes back to the pool that it came from.
            state.pinned = None;
            state.limit = limit;
        }
    }

    /// Gives memory back that no column is in.
    pub(super) fn trim(&self) {
        lock(&self.state).pinned = None;
    }

    /// A copy of a column, enqueued.
    ///
    /// # Errors
    /// The memory's: there is no pinned memory, or the device is lost.
    fn copy(&self, column: &StoredColumn) -> Result<HostColumn, MemoryError> {
        let (pinned, stream) = {
            let mut state = lock(&self.state);
            let limit = ByteSize(state.limit);
            let pinned = state.pinned.get_or_insert_with(|| PinnedPool::builder(&self.device).max_bytes(limit).build());
            let pinned = pinned.clone();
            let stream = match &state.stream {
                Some(stream) => stream.clone(),
                None => state.stream.insert(Stream::new(&self.device)?).clone(),
            };
            (pinned, stream)
        };
        let mut bytes = Vec::new();
        for view in column.views() {
            let mut buffer = pinned.take_now(HostKind::Download, view.len())?;
            buffer.enqueue_to_host(0..view.len(), view, &stream)?;
            bytes.push(buffer);
        }
        Ok(HostColumn { about: Arc::clone(&column.about), bytes: Mutex::new(bytes), on_device: Mutex::default() })
    }
}

impl HostColumn {
    /// The column on the device, as long as somebody keeps it: the one that another run reads, or a copy, enqueued.
    pub(super) fn on_device(
        &self,
        pool: &MemoryPool,
        participant: &Participant,
        (stream, scope): (&Stream, &Scope),
    ) -> Result<Arc<StoredColumn>, Failure> {
        let mut known = lock(&self.on_device);
        if let Some(column) = known.upgrade() {
            return Ok(column);
        }
        let promise = participant.try_reserve(Request::device(ByteSize(self.about.bytes.next_multiple_of(256))))?;
        let mut allocated = 0;
        let mut views: Vec<DeviceView> = Vec::new();
        for bytes in lock(&self.bytes).iter_mut() {
            let buffer = DeviceBuffer::new(bytes.len(), &stream.with_scope(scope), pool)?;
            bytes.enqueue_to_device(0..bytes.len(), buffer.as_view(), stream)?;
            allocated += buffer.allocated_bytes().as_u64();
            views.push(buffer.as_view().clone());
        }
        let column = Arc::new(StoredColumn::back(Arc::clone(&self.about), views, allocated, promise)?);
        *known = Arc::downgrade(&column);
        Ok(column)
    }
}

impl Store {
    /// Bytes of columns in host memory.
    pub fn host_bytes(&self) -> u64 {
        lock(&self.tables).iter().map(|table| table.host_bytes()).sum()
    }

    /// Copies a column of a table to host memory, if there is room, or room is made: true if it is there.
    pub(super) fn keep_on_host(&self, table: &Table, key: (usize, ColumnForm), column: &StoredColumn) -> bool {
        let limit = self.host.limit();
        let _coming = lock(&self.host.coming);
        if limit == 0 || !self.make_host_room(column, limit) {
            return false;
        }
        match self.host.copy(column) {
            Ok(copy) => {
                lock(&table.stored).host.insert(key, Arc::new(copy));
                true
            }
            Err(error) => {
                tracing::debug!(column = column.name, %error, "not kept in host memory");
                false
            }
        }
    }

    /// Makes columns leave the host that are worth less than one that comes from the device, until it fits.
    fn make_host_room(&self, new: &StoredColumn, limit: u64) -> bool {
        let now = self.now();
        let tables = lock(&self.tables).clone();
        let mut columns = Vec::new();
        for table in &tables {
            let of = lock(&table.stored)
                .host
                .iter()
                .map(|(key, column)| (*key, Arc::clone(&column.about)))
                .collect::<Vec<_>>();
            columns.extend(of.into_iter().map(|(key, about)| (about.worth(now), about, table, key)));
        }
        let mut used: u64 = columns.iter().map(|(_, about, ..)| about.bytes).sum();
        // One that was loaded for the first run that reads it counts as read by it.
        let worth = new.worth(now).max(new.worth_when_new());
        columns.retain(|(of, ..)| *of < worth);
        let leaving: u64 = columns.iter().map(|(_, about, ..)| about.bytes).sum();
        if used - leaving + new.bytes > limit {
            return false;
        }
        columns.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
        for (_, about, table, key) in columns {
            if used + new.bytes <= limit {
                break;
            }
            used -= about.bytes;
            lock(&table.stored).host.remove(&key);
        }
        true
    }
}

impl Table {
    pub(super) fn host_bytes(&self) -> u64 {
        lock(&self.stored).host.values().map(|column| column.about.bytes).sum()
    }
}
