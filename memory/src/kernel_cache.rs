//! Cache of assembled kernels on disk, shared by successive processes.
//!
//!   PTX ─► key ─┬─ file ─ whole? ours? ─► code ─► module          nothing is assembled
//!               └─ none ─► driver assembles ─► code ─► module, and a file written beside and renamed
//!
//! Key      the PTX, the device's name and compute capability, and the driver's build. Another driver has separate
//!          files.
//! Folder   owned by this user and inaccessible to others; any other folder is refused. A file is trusted only if its
//!          checksum matches: a truncated, changed or foreign file is reassembled and rewritten.
//! Size     bounded: the least recently used files are removed first. Processes may share a folder. A crash leaves a
//!          file with a temporary name, which is removed when the folder is opened an hour or more later.
//! Errors   of the disk cost time, never a query: code that cannot be stored is assembled again in the next process.

use std::fs::{self, DirBuilder, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::device::DeviceLimits;
use crate::units::ByteSize;

/// First bytes of a file; the last byte is the format version.
const MAGIC: &[u8; 16] = b"millpond kernel\x01";
const HASH_BYTES: usize = 32;
const SUFFIX: &str = "kernel";
/// Age after which a temporary file counts as abandoned.
const LEFT_BEHIND: Duration = Duration::from_secs(3600);
/// Minimum interval between updates of a file's use time, so that reads rarely write.
const USED_AGAIN: Duration = Duration::from_secs(3600);

/// Work of a cache in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelCacheStatistics {
    /// Modules loaded from files.
    pub read: u64,
    /// Modules that the driver assembled.
    pub assembled: u64,
    /// Files written.
    pub written: u64,
    /// Files that were incomplete, or that the driver refused.
    pub refused: u64,
}

/// A folder of assembled kernels.
#[derive(Debug)]
pub struct KernelCache {
    folder: PathBuf,
    most: ByteSize,
    /// Total bytes of the files, as far as this process knows.
    bytes: AtomicU64,
    pub(crate) read: AtomicU64,
    pub(crate) assembled: AtomicU64,
    written: AtomicU64,
    refused: AtomicU64,
}

/// Hash that identifies the code in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key([u8; HASH_BYTES]);

impl Key {
    pub fn of(ptx: &str, device: &DeviceLimits, build: &str) -> Self {
        let mut hasher = Sha256::new();
        let (major, minor) = device.compute_capability;
        let target = format!("{} sm_{major}.{minor}", device.name);
        for part in [&MAGIC[..], build.as_bytes(), target.as_bytes(), ptx.as_bytes()] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(hasher.finalize().into())
    }

    fn hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl KernelCache {
    /// Opens a folder, created if missing, for files of at most `most` bytes in total.
    ///
    /// # Errors
    /// The folder cannot be created or read, belongs to another user, or is accessible to others.
    pub fn open(folder: &Path, most: ByteSize) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let found = fs::symlink_metadata(folder)?;
        // The owner of this process's `/proc` folder is the user it runs as.
        let user = fs::metadata("/proc/self")?.uid();
        let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        if !found.is_dir() {
            return refused(format!("{} is not a folder", folder.display()));
        }
        if found.uid() != user {
            return refused(format!("{} belongs to user {}, this is user {user}", folder.display(), found.uid()));
        }
        if found.mode() & 0o077 != 0 {
            let mode = found.mode() & 0o777;
            return refused(format!("{} is open to others (mode {mode:o}); chmod 700 closes it", folder.display()));
        }
        let cache = Self {
            folder: folder.to_path_buf(),
            most,
            bytes: 0.into(),
            read: 0.into(),
            assembled: 0.into(),
            written: 0.into(),
            refused: 0.into(),
        };
        for (path, found) in cache.files(|path| path.extension().is_none_or(|suffix| suffix != SUFFIX))? {
            if age(&found) > LEFT_BEHIND && is_temporary(&path) {
                let _ = fs::remove_file(path);
            }
        }
        cache.make_room(0);
        Ok(cache)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn statistics(&self) -> KernelCacheStatistics {
        KernelCacheStatistics {
            read: self.read.load(Ordering::Relaxed),
            assembled: self.assembled.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    fn path(&self, key: Key) -> PathBuf {
        self.folder.join(format!("{}.{SUFFIX}", key.hex()))
    }

    /// The code of a key, if its file is intact.
    pub(crate) fn get(&self, key: Key) -> Option<Vec<u8>> {
        let path = self.path(key);
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&path).ok()?;
        let mut bytes = Vec::new();
        let whole = file.metadata().is_ok_and(|found| found.is_file() && found.len() <= self.most.as_u64())
            && file.read_to_end(&mut bytes).is_ok();
        let code = whole.then(|| code_of(&bytes, key)).flatten().map(<[u8]>::to_vec);
        if code.is_none() {
            self.refuse(key);
        } else if file.metadata().is_ok_and(|found| age(&found) > USED_AGAIN) {
            let _ = file.set_modified(SystemTime::now());
        }
        code
    }

    /// Removes a file whose code is unusable.
    pub(crate) fn refuse(&self, key: Key) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let _ = fs::remove_file(self.path(key));
    }

    /// Stores code; on a disk error it is assembled again next time.
    pub(crate) fn put(&self, key: Key, code: &[u8]) {
        let len = (MAGIC.len() + 2 * HASH_BYTES + code.len()) as u64;
        if len > self.most.as_u64() {
            return;
        }
        let known = self.bytes.fetch_add(len, Ordering::Relaxed) + len;
        if known > self.most.as_u64() {
            self.make_room(len);
        }
        match self.write(key, code) {
            Ok(()) => {
                self.written.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::debug!("assembled kernels are not kept in {}: {error}", self.folder.display());
            }
        }
    }

    /// Writes a file under a unique temporary name and renames it.
    fn write(&self, key: Key, code: &[u8]) -> io::Result<()> {
        let mut file = tempfile::Builder::new()
            .prefix(&format!("{}.", key.hex()))
            .suffix(".tmp")
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(&self.folder)?;
        file.write_all(MAGIC)?;
        file.write_all(&key.0)?;
        file.write_all(&Sha256::digest(code))?;
        file.write_all(code)?;
        // A file with its final name is complete, even after a crash of the machine.
        file.as_file().sync_data()?;
        file.persist(self.path(key)).map_err(|error| error.error)?;
        Ok(())
    }

    /// Files of the folder for which `of` holds, with their metadata.
    fn files(&self, of: impl Fn(&Path) -> bool) -> io::Result<Vec<(PathBuf, Metadata)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            // Another process may just have removed it.
            if let (true, Ok(found)) = (of(&path), fs::symlink_metadata(&path))
                && found.is_file()
            {
                files.push((path, found));
            }
        }
        Ok(files)
    }

    /// Removes the least recently used files until there is space for `more` bytes and a quarter of the bound.
    fn make_room(&self, more: u64) {
        let Ok(mut files) = self.files(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX)) else { return };
        let mut bytes: u64 = files.iter().map(|(_, found)| found.len()).sum();
        let most = self.most.as_u64();
        if bytes + more > most {
            files.sort_by_key(|(_, found)| std::cmp::Reverse(age(found)));
            for (path, found) in files {
                if bytes + more <= most / 4 * 3 {
                    break;
                }
                if fs::remove_file(path).is_ok() {
                    bytes -= found.len();
                }
            }
        }
        self.bytes.store(bytes + more, Ordering::Relaxed);
    }
}

/// The code in a file's bytes, if they are intact and match the key.
fn code_of(bytes: &[u8], key: Key) -> Option<&[u8]> {
    let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(&key.0)?;
    let (hash, code) = rest.split_first_chunk::<HASH_BYTES>()?;
    (Sha256::digest(code)[..] == hash[..]).then_some(code)
}

fn is_temporary(path: &Path) -> bool {
    path.extension().is_some_and(|suffix| suffix == "tmp")
}

/// Time since a file was written or used; zero for a time in the future.
fn age(found: &Metadata) -> Duration {
    found.modified().ok().and_then(|then| then.elapsed().ok()).unwrap_or_default()
}
