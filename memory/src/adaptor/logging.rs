//! Writes a line of CSV for each allocation and each free: RMM's columns first, so that its tools read the log; ours after.
//!
//!   Thread,Time,Action,Pointer,Size,Stream,Seq,TimeNs,AllocId,Position,Tag
//!   3,10:42:07.000123,allocate,0x7f0000000000,4096,0x2,17,1834000,9,41,query 7/sort
//!   3,10:42:07.000391,free,0x7f0000000000,4096,0x2,18,2102000,9,55,query 7/sort
//!
//! Stream     the number of the stream, in RMM's hexadecimal. `Position` is how much had been submitted to it, so that a
//!            replay keeps the order between streams.
//! AllocId    names an allocation for good; addresses come back.
//! Actions    RMM's words: `allocate`, `allocate failure`, `free`.
//! Time       of day in UTC, and nanoseconds since the log began: of the call, not of the work on the device.
//! Threads    lines are written by a thread of the log's own. `Seq` is the order of the calls; lines may come out of it.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::device::Device;
use crate::driver::{DevicePtr, Site};
use crate::error::Result;
use crate::resource::{DeviceMemoryResource, RawAllocation, ResourceStatistics};
use crate::stream::Stream;
use crate::units::ByteSize;

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream,Seq,TimeNs,AllocId,Position,Tag";

struct Line {
    thread: u64,
    time: SystemTime,
    action: &'static str,
    ptr: DevicePtr,
    bytes: usize,
    stream: u32,
    seq: u64,
    time_ns: u128,
    alloc_id: u64,
    position: u64,
    tag: String,
}

impl Line {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let since = self.time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, micros) = (since.as_secs() % 86_400, since.subsec_micros());
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let Line { thread, action, ptr, bytes, stream, seq, time_ns, alloc_id, position, .. } = self;
        write!(out, "{thread},{hour:02}:{minute:02}:{second:02}.{micros:06},{action},{ptr:?},{bytes},{stream:#x},")?;
        writeln!(out, "{seq},{time_ns},{alloc_id},{position},{}", quoted(&self.tag))
    }
}

/// A field of CSV: in quotes where it holds what would end it.
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_string(),
    }
}

enum Message {
    Line(Line),
    Flush(mpsc::Sender<io::Result<()>>),
}

fn write_all(mut out: Box<dyn Write + Send>, messages: mpsc::Receiver<Message>) {
    let mut state = writeln!(out, "{HEADER}");
    for message in messages {
        match message {
            Message::Line(line) => {
                if state.is_ok() {
                    state = line.write(&mut *out);
                }
            }
            Message::Flush(done) => {
                let flushed = std::mem::replace(&mut state, Ok(())).and_then(|()| out.flush());
                // Whoever asked may be gone.
                let _ = done.send(flushed);
            }
        }
    }
    if let Err(error) = state.and_then(|()| out.flush()) {
        tracing::warn!(%error, "the allocation log is not complete");
    }
}

pub struct LoggingResourceAdaptor {
    upstream: Arc<dyn DeviceMemoryResource>,
    began: Instant,
    seq: AtomicU64,
    last_id: AtomicU64,
    ids: Mutex<HashMap<DevicePtr, u64>>,
    /// `None` once the log is closed.
    lines: Option<mpsc::Sender<Message>>,
    writer: Option<JoinHandle<()>>,
}

impl LoggingResourceAdaptor {
    /// Logs to `out`, which is best buffered. Closed, and complete, when the adaptor is dropped.
    pub fn new(upstream: Arc<dyn DeviceMemoryResource>, out: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, messages) = mpsc::channel();
        let out: Box<dyn Write + Send> = Box::new(out);
        let writer =
            std::thread::Builder::new().name("allocation-log".into()).spawn(move || write_all(out, messages))?;
        Ok(LoggingResourceAdaptor {
            upstream,
            began: Instant::now(),
            seq: 0.into(),
            last_id: 0.into(),
            ids: Mutex::default(),
            lines: Some(lines),
            writer: Some(writer),
        })
    }

    /// Writes what was logged so far.
    ///
    /// # Errors
    /// What the writer met with since the last time.
    pub fn flush(&self) -> io::Result<()> {
        let (done, flushed) = mpsc::channel();
        let gone = || io::Error::other("the thread that writes the allocation log has ended");
        self.lines.as_ref().ok_or_else(gone)?.send(Message::Flush(done)).map_err(|_| gone())?;
        flushed.recv().map_err(|_| gone())?
    }

    fn log(&self, action: &'static str, ptr: DevicePtr, bytes: usize, stream: &Stream, alloc_id: u64) {
        let mut thread = DefaultHasher::new();
        std::thread::current().id().hash(&mut thread);
        let line = Line {
            thread: thread.finish(),
            time: SystemTime::now(),
            action,
            ptr,
            bytes,
            stream: stream.id().index,
            seq: self.seq.fetch_add(1, Relaxed),
            time_ns: self.began.elapsed().as_nanos(),
            alloc_id,
            position: stream.position().seq,
            tag: stream.scope().path(),
        };
        if let Some(lines) = &self.lines {
            // A writer that is gone has said why.
            let _ = lines.send(Message::Line(line));
        }
    }
}

impl fmt::Debug for LoggingResourceAdaptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LoggingResourceAdaptor").field(&self.upstream).finish()
    }
}

impl DeviceMemoryResource for LoggingResourceAdaptor {
    fn name(&self) -> &'static str {
        self.upstream.name()
    }

    fn device(&self) -> &Device {
        self.upstream.device()
    }

    fn allocate(&self, len: NonZeroUsize, stream: &Stream, site: Site) -> Result<RawAllocation> {
        let allocated = self.upstream.allocate(len, stream, site);
        match &allocated {
            Ok(raw) => {
                let id = self.last_id.fetch_add(1, Relaxed) + 1;
                self.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(raw.ptr, id);
                self.log("allocate", raw.ptr, len.get(), stream, id);
            }
            Err(_) => self.log("allocate failure", DevicePtr::NULL, len.get(), stream, 0),
        }
        allocated
    }

    fn deallocate(&self, raw: RawAllocation, stream: &Stream, site: Site) -> Result<()> {
        // Before the bytes can be somebody else's under the same address.
        let id = self.ids.lock().unwrap_or_else(PoisonError::into_inner).remove(&raw.ptr).unwrap_or(0);
        self.log("free", raw.ptr, raw.len.get(), stream, id);
        self.upstream.deallocate(raw, stream, site)
    }

    fn trim(&self, keep: ByteSize) -> Result<()> {
        self.upstream.trim(keep)
    }

    fn statistics(&self) -> Result<ResourceStatistics> {
        self.upstream.statistics()
    }

    fn reset_peaks(&self) -> Result<()> {
        self.upstream.reset_peaks()
    }
}

impl Drop for LoggingResourceAdaptor {
    fn drop(&mut self) {
        // The writer ends with the last sender.
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            // A panic of the writer was printed when it happened.
            let _ = writer.join();
        }
    }
}
