//! A log of what happens to device memory: allocations, uses, waits, and what runs them again.
//!
//!   LoggingResourceAdaptor ── allocate, free, trim ──┐
//!   DeviceBuffer ──────────── use_read, use_write ───┼─► MemoryLog ─► a thread of its own ─► CSV ─► LogFile ─► replay
//!   Stream, Event, Device ─── record, wait, sync ────┘
//!
//! Columns    RMM's first (`record`), so that its tools read the log; ours after, so that a replay keeps streams and
//!            order.
//! Cost       one load and one branch per loggable call while no log is active.
//! Time       of day in UTC, and nanoseconds since the log began: of the call, not of the work on the device.
//! Threads    `Seq` is the order of the calls; lines are written by one thread and may come out of it.

mod read;
mod record;

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub use read::{LogError, LogFile};
pub use record::{Action, After, COLUMNS, Record};

use crate::driver::{Access, DevicePtr};
use crate::ids::StreamId;
use crate::order::Position;
use crate::stream::Stream;
use crate::units::ByteSize;

enum Message {
    Record(Record),
    Flush(mpsc::Sender<io::Result<()>>),
}

fn write_all(mut out: Box<dyn Write + Send>, messages: mpsc::Receiver<Message>) {
    let mut state = writeln!(out, "{}", header());
    for message in messages {
        match message {
            Message::Record(record) => {
                if state.is_ok() {
                    state = record.write(&mut *out);
                }
            }
            Message::Flush(done) => {
                let flushed = std::mem::replace(&mut state, Ok(())).and_then(|()| out.flush());
                // The requester may be gone.
                let _ = done.send(flushed);
            }
        }
    }
    if let Err(error) = state.and_then(|()| out.flush()) {
        tracing::warn!(%error, "the allocation log is not complete");
    }
}

/// The header, as it is the first line of a log.
fn header() -> String {
    COLUMNS.join(",")
}

/// Opens a log file without overwriting a file that is not a log.
fn open_for_log(path: &Path) -> io::Result<File> {
    let is_special = std::fs::metadata(path).is_ok_and(|found| !found.is_file());
    if is_special {
        return OpenOptions::new().write(true).open(path);
    }
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let header = header();
    let mut first = Vec::new();
    (&mut file).take(header.len() as u64).read_to_end(&mut first)?;
    if !first.is_empty() && first != header.as_bytes() {
        let words = "the file exists and is no allocation log; name a new file, or remove this one";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, words));
    }
    file.set_len(0)?;
    file.rewind()?;
    Ok(file)
}

/// A log that is being written. Complete when it is dropped, or after `flush`.
pub struct MemoryLog {
    began: Instant,
    began_at_us: u64,
    seq: AtomicU64,
    last_id: AtomicU64,
    ids: Mutex<HashMap<DevicePtr, u64>>,
    /// `None` once the log is closed.
    messages: Option<mpsc::Sender<Message>>,
    writer: Option<JoinHandle<()>>,
}

/// What most lines have nothing to say about.
#[derive(Default)]
struct Facts {
    ptr: DevicePtr,
    size: u64,
    alloc_id: u64,
    position: u64,
    after: Option<After>,
    tag: String,
}

impl MemoryLog {
    /// Logs to `out`, which is best buffered.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(out: impl Write + Send + 'static) -> io::Result<Arc<Self>> {
        let (sender, messages) = mpsc::channel();
        let out: Box<dyn Write + Send> = Box::new(out);
        let writer =
            std::thread::Builder::new().name("allocation-log".into()).spawn(move || write_all(out, messages))?;
        let of_day = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Arc::new(MemoryLog {
            began: Instant::now(),
            began_at_us: u64::try_from(of_day.as_micros() % 86_400_000_000).unwrap_or(0),
            seq: 0.into(),
            last_id: 0.into(),
            ids: Mutex::default(),
            messages: Some(sender),
            writer: Some(writer),
        }))
    }

    /// Logs to a file: a new or empty one, or one that a log was written to before, which it replaces. Devices and
    /// pipes are written to as they are.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`](io::ErrorKind::AlreadyExists) for a file that holds something else, which is left
    /// as it is; what the system says.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Arc<Self>> {
        Self::new(BufWriter::new(open_for_log(path.as_ref())?))
    }

    /// Writes what was logged so far.
    ///
    /// # Errors
    /// What the writer met with since the last time.
    pub fn flush(&self) -> io::Result<()> {
        let (done, flushed) = mpsc::channel();
        let gone = || io::Error::other("the thread that writes the allocation log has ended");
        self.messages.as_ref().ok_or_else(gone)?.send(Message::Flush(done)).map_err(|_| gone())?;
        flushed.recv().map_err(|_| gone())?
    }

    fn ids(&self) -> MutexGuard<'_, HashMap<DevicePtr, u64>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, action: Action, stream: u64, facts: Facts) {
        let mut thread = DefaultHasher::new();
        std::thread::current().id().hash(&mut thread);
        let elapsed = self.began.elapsed();
        let Facts { ptr, size, alloc_id, position, after, tag } = facts;
        let record = Record {
            thread: thread.finish(),
            time_us: (self.began_at_us + elapsed.as_micros() as u64) % 86_400_000_000,
            action,
            pointer: ptr.0,
            size,
            stream,
            seq: self.seq.fetch_add(1, Relaxed),
            time_ns: elapsed.as_nanos() as u64,
            alloc_id,
            position,
            after,
            tag,
        };
        if let Some(messages) = &self.messages {
            // A writer that is gone has said why.
            let _ = messages.send(Message::Record(record));
        }
    }

    pub(crate) fn allocated(&self, ptr: DevicePtr, bytes: usize, stream: &Stream) {
        let alloc_id = self.last_id.fetch_add(1, Relaxed) + 1;
        self.ids().insert(ptr, alloc_id);
        self.on(Action::Allocate, stream, Facts { ptr, size: bytes as u64, alloc_id, ..Facts::default() });
    }

    pub(crate) fn allocation_failed(&self, bytes: usize, stream: &Stream) {
        self.on(Action::AllocateFailure, stream, Facts { size: bytes as u64, ..Facts::default() });
    }

    /// Called before the address can be reused by another allocation.
    pub(crate) fn freed(&self, ptr: DevicePtr, bytes: usize, stream: &Stream) {
        let alloc_id = self.ids().remove(&ptr).unwrap_or(0);
        self.on(Action::Free, stream, Facts { ptr, size: bytes as u64, alloc_id, ..Facts::default() });
    }

    fn on(&self, action: Action, stream: &Stream, facts: Facts) {
        let (position, tag) = (stream.position().seq(), stream.scope().path());
        self.log(action, number(stream.id()), Facts { position, tag, ..facts });
    }

    /// Work up to `position` of the stream used the allocation at `ptr`.
    pub(crate) fn used(&self, access: Access, ptr: DevicePtr, bytes: usize, stream: &Stream, position: Position) {
        let action = match access {
            Access::Read => Action::UseRead,
            Access::Write | Access::ReadWrite => Action::UseWrite,
            Access::Atomic => Action::UseShare,
        };
        let alloc_id = self.ids().get(&ptr).copied().unwrap_or(0);
        let (position, tag) = (position.seq(), stream.scope().path());
        let facts = Facts { ptr, size: bytes as u64, alloc_id, position, tag, after: None };
        self.log(action, number(stream.id()), facts);
    }

    pub(crate) fn recorded(&self, stream: StreamId, position: u64) {
        self.log(Action::Record, number(stream), Facts { position, ..Facts::default() });
    }

    pub(crate) fn waited(&self, stream: StreamId, position: u64, on: Position) {
        let after = After::Place { stream: number(on.stream), position: on.seq() };
        self.log(Action::Wait, number(stream), Facts { position, after: Some(after), ..Facts::default() });
    }

    /// The host knows that everything up to `position` has finished.
    pub(crate) fn synchronized(&self, position: Position) {
        let (stream, position) = (number(position.stream), position.seq());
        let after = Some(After::Place { stream, position });
        self.log(Action::Sync, stream, Facts { position, after, ..Facts::default() });
    }

    pub(crate) fn synchronized_all(&self) {
        self.log(Action::Sync, 0, Facts { after: Some(After::All), ..Facts::default() });
    }

    pub(crate) fn trimmed(&self, keep: ByteSize) {
        self.log(Action::Trim, 0, Facts { size: keep.as_u64(), ..Facts::default() });
    }

    /// `bytes` of `tag` were moved out of device memory.
    pub fn spilled(&self, bytes: ByteSize, tag: &str) {
        self.log(Action::Spill, 0, Facts { size: bytes.as_u64(), tag: tag.into(), ..Facts::default() });
    }
}

/// The number of a stream in a log.
fn number(stream: StreamId) -> u64 {
    u64::from(stream.index)
}

impl fmt::Debug for MemoryLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryLog of {} lines", self.seq.load(Relaxed))
    }
}

impl Drop for MemoryLog {
    fn drop(&mut self) {
        // The writer ends with the last sender.
        self.messages = None;
        if let Some(writer) = self.writer.take() {
            // A panic of the writer was printed when it happened.
            let _ = writer.join();
        }
    }
}
