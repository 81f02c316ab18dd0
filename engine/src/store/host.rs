//! The second tier: columns in pinned host memory, which are restored by a copy instead of reading their files.
//!
//!   device ── eviction, or out of memory ──► pinned bytes ── a run needs it ──► device     `auto`, `cache_host_bytes`
//!             a load ends ─────────────────► pinned bytes ── each run ───────► device     `host`, for that run
//!
//! Order    copies run after the column's other uses on the device; the source is freed after them.
//! Memory   limited to the tier's bytes; the columns with the least benefit are dropped first.
//! Waits    never: copies are enqueued.
//! Lost     together with the device.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use millpond_memory::{
    ByteSize, Device, DeviceBuffer, DeviceView, HostKind, MemoryError, MemoryPool, Participant, PinnedBuffer,
    PinnedPool, Request, Scope, Stream,
};

use crate::error::failure::Failure;
use crate::options::{Cache, MillpondOptions};
use crate::store::column::{About, ColumnForm, StoredColumn};
use crate::store::{Store, Table, lock};

/// A column in pinned host memory.
pub(super) struct HostColumn {
    pub about: Arc<About>,
    /// Values, and validity if any.
    bytes: Mutex<Vec<PinnedBuffer>>,
    /// The column on the device, while a run reads it.
    on_device: Mutex<Weak<StoredColumn>>,
}

impl fmt::Debug for HostColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} bytes of host memory", self.about.name, self.about.bytes)
    }
}

/// Memory of the tier.
#[derive(Debug)]
pub(super) struct HostTier {
    device: Device,
    state: Mutex<State>,
    /// Held while a column is moved in, so that the bytes are counted consistently.
    coming: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Maximum bytes, as set by the session that read last.
    limit: u64,
    pinned: Option<PinnedPool>,
    stream: Option<Stream>,
}

impl HostTier {
    pub(super) fn new(device: &Device) -> Self {
        Self { device: device.clone(), state: Mutex::default(), coming: Mutex::default() }
    }

    /// Maximum bytes of the tier.
    pub(super) fn limit(&self) -> u64 {
        lock(&self.state).limit
    }

    /// Applies the options of a reading session.
    pub(super) fn allow(&self, options: &MillpondOptions) {
        let limit = match (options.cache, options.cache_host_bytes as u64) {
            (Cache::Host, 0) => PinnedPool::default_max_bytes().as_u64(),
            (_, bytes) => bytes,
        };
        let mut state = lock(&self.state);
        if state.limit != limit {
            // Existing columns return their memory to the old pool.
            state.pinned = None;
            state.limit = limit;
        }
    }

    /// Frees memory that no column uses.
    pub(super) fn trim(&self) {
        lock(&self.state).pinned = None;
    }

    /// Enqueues a copy of a column.
    ///
    /// # Errors
    /// The memory's: pinned memory is exhausted, or the device is lost.
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
    /// The column on the device: the one that another run still uses, or an enqueued copy.
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

    /// Copies a column of a table to host memory, evicting others if necessary; true if it was copied.
    pub(super) fn keep_on_host(&self, table: &Table, key: (usize, ColumnForm), column: &StoredColumn) -> bool {
        let limit = self.host.limit();
        let _coming = lock(&self.host.coming);
        if limit == 0 || !self.make_host_space(&column.about, limit) {
            return false;
        }
        match self.host.copy(column) {
            Ok(copy) => {
                lock(&table.stored).host.insert(key, Arc::new(copy));
                true
            }
            Err(error) => {
                tracing::debug!(column = column.about.name, %error, "not kept in host memory");
                false
            }
        }
    }

    /// Evicts columns with less benefit than `new` from host memory, until it fits.
    fn make_host_space(&self, new: &About, limit: u64) -> bool {
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
        // A column loaded by its first run counts as used by it.
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
