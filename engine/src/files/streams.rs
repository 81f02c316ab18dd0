//! Tables read from a pipe: standard input, and descriptors passed by a shell.
//!
//!   /dev/stdin, /dev/fd/N, /proc/self/fd/N ─ a file? ─► read like any other file
//!                                          └─ a pipe, a terminal ─► read to its end on first use, then kept
//!
//! Once     a pipe can be read only once: later statements, scans and sessions use the kept bytes.
//! Memory   host memory for all bytes of the stream until the process ends.
//! Waits    while the other side keeps the pipe open for writing.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path as FilePath;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use datafusion::object_store::ObjectMeta;
use datafusion::object_store::path::Path;

use crate::files::local::{Bytes, TAG};

/// `O_NONBLOCK`: opening a named pipe without a writer would block.
const NONBLOCK: i32 = 0o4000;
/// Delay between attempts to read from an empty pipe that has a writer.
const AGAIN: Duration = Duration::from_millis(2);

/// All bytes of a stream.
#[derive(Debug, Clone)]
pub(super) struct Streamed {
    /// Device and inode.
    id: (u64, u64),
    bytes: Bytes,
}

/// Keyed by device and inode. A stream's own lock is held while it is read.
type Streams = HashMap<(u64, u64), Arc<Mutex<Option<Bytes>>>>;

/// Name of the non-table reader of standard input, if any.
static TAKEN: OnceLock<&'static str> = OnceLock::new();

/// Records that a program has read standard input itself: from now on, a table that names it is an error.
pub fn standard_input_was_read_as(what: &'static str) {
    TAKEN.get_or_init(|| what);
}

static STREAMS: LazyLock<Mutex<Streams>> = LazyLock::new(Mutex::default);

/// Descriptor of this process that a path names.
fn descriptor(path: &FilePath) -> Option<u32> {
    let path = path.to_str()?;
    if path == "/dev/stdin" {
        return Some(0);
    }
    let number = path.strip_prefix("/dev/fd/").or_else(|| path.strip_prefix("/proc/self/fd/"))?;
    number.parse().ok()
}

/// True for a path that may name a stream.
pub(crate) fn is_name_of_stream(path: &FilePath) -> bool {
    descriptor(path).is_some()
}

/// Bytes of the stream at a path; `None` for another path, and for a path to a file.
///
/// # Errors
/// The system's.
pub(super) fn read(path: &FilePath) -> io::Result<Option<Streamed>> {
    let Some(number) = descriptor(path) else { return Ok(None) };
    let of = std::fs::metadata(path)?;
    let kind = of.file_type();
    if !kind.is_fifo() && !kind.is_char_device() && !kind.is_socket() {
        return Ok(None);
    }
    let id = (of.dev(), of.ino());
    let stream = {
        let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(streams.entry(id).or_default())
    };
    let mut kept = stream.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = match &*kept {
        Some(bytes) => bytes.clone(),
        None => kept.insert(Bytes::from(to_its_end(path, number)?)).clone(),
    };
    Ok(Some(Streamed { id, bytes }))
}

fn to_its_end(path: &FilePath, number: u32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if number == 0 {
        if let Some(what) = TAKEN.get() {
            let why = format!("standard input was read as {what}, and can be read once: give {what} in another way");
            return Err(io::Error::other(why));
        }
        io::stdin().lock().read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    let mut pipe = File::options().read(true).custom_flags(NONBLOCK).open(path)?;
    loop {
        // Bytes read before an attempt that would block are in `bytes`.
        match pipe.read_to_end(&mut bytes) {
            Ok(_) => return Ok(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(AGAIN),
            Err(error) => return Err(error),
        }
    }
}

impl Streamed {
    pub fn meta(&self, location: Path) -> ObjectMeta {
        let ((device, inode), size) = (self.id, self.bytes.len() as u64);
        // Not a tag of the local store: a stream never changes.
        let tag = format!("stream of {TAG}{device:x}-{inode:x}-{size:x}");
        ObjectMeta { location, last_modified: SystemTime::UNIX_EPOCH.into(), size, e_tag: Some(tag), version: None }
    }

    /// # Errors
    /// If the range extends beyond the stream's end.
    pub fn range(&self, range: &Range<u64>) -> io::Result<Bytes> {
        let (start, end) = (range.start as usize, range.end as usize);
        if start > end || end > self.bytes.len() {
            let what = format!("bytes {start} to {end} of a stream of {}", self.bytes.len());
            return Err(io::Error::new(ErrorKind::UnexpectedEof, what));
        }
        Ok(self.bytes.slice(start..end))
    }
}
