//! Destinations of answers: standard output, a device or pipe, or a file that is replaced after all answers are
//! written.
//!
//! ```text
//!   -o FILE ─ links followed ─┬─ a file, or none yet ─► a temporary file beside it ─ commit ─► renamed to FILE
//!                             └─ a device, a pipe, /dev/stdout, /dev/fd/N ─► written directly
//! ```
//!
//! Before commit  FILE is unchanged; a drop removes the temporary file, and so does [`remove_temporary`] if no
//!                destructors run.
//! Kept           Mode and group, and the owner if permitted. Another hard link of FILE keeps the old content.
//! Not written    A read-only FILE, or one in a folder where no file can be created or renamed: it could not be
//!                replaced safely.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tempfile::{Builder, NamedTempFile};

use crate::error::CliError;
use crate::pager::Pager;
use crate::unfinished;

/// Destination of answers.
pub struct Output {
    sink: Sink,
    /// Name in messages: `standard output`, or the path in quotes.
    name: String,
    /// The first write error since the last [`take_failure`](Self::take_failure); the formats' own errors hide the
    /// reason.
    failed: Option<io::Error>,
}

enum Sink {
    /// Standard output or standard error.
    Standard(BufWriter<Box<dyn Write + Send>>),
    /// Standard output through a pager.
    Paged(Pager),
    /// A device, a pipe, or the target of a descriptor.
    Direct { file: BufWriter<File>, path: PathBuf },
    /// A file that replaces `target`.
    Staged { file: BufWriter<File>, temporary: NamedTempFile, target: PathBuf, only_new: bool },
}

/// Identity of a file on this machine, independent of its path: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        // Two statements may share a terminal or /dev/null, but not a file or a pipe.
        let counts = metadata.is_file() || metadata.file_type().is_fifo();
        counts.then(|| Self(metadata.dev(), metadata.ino()))
    }
}

/// A path after following its links.
enum Place {
    /// A descriptor, /proc/PID/fd/N, of this or another process.
    Descriptor(PathBuf),
    /// A path without links; it may not exist yet.
    Path(PathBuf),
}

/// Maximum number of links to follow; more than any system allows.
const MOST_LINKS: usize = 64;

/// Temporary files of this process, to remove when no destructors run.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes the temporary files of outputs whose `Drop` does not run.
pub fn remove_temporary() {
    unfinished::remove(TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).drain(..));
}

/// Unfinished files that COPY has created.
pub fn begun_by_copies() -> Vec<PathBuf> {
    let outputs = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
    unfinished::files().into_iter().filter(|path| !outputs.contains(path)).collect()
}

/// Registers further files for [`remove_temporary`]; they need not exist by then.
pub fn remove_at_end(files: Vec<PathBuf>) {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).extend(files);
}

impl Output {
    /// Standard output.
    pub fn standard() -> Self {
        Self::on(Sink::Standard(BufWriter::new(Box::new(io::stdout()))), "standard output".to_string())
    }

    /// Standard output, with long answers shown in a pager.
    pub fn paged(pager: Pager) -> Self {
        Self::on(Sink::Paged(pager), "standard output".to_string())
    }

    /// The output for `-o path`. Changes no existing data. Waits while a pipe has no reader.
    ///
    /// # Errors
    /// Exit 4, with the reason, if the path cannot be written or replaced.
    pub fn open(path: &Path) -> Result<Self, CliError> {
        let name = format!("'{}'", path.display());
        let cannot = |reason: &dyn std::fmt::Display| CliError::file(format!("cannot write {name}: {reason}"));
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(cannot(&"the name is that of a folder"));
        }
        let place = resolve(path).map_err(|error| cannot(&lower(&error)))?;
        let target = match place {
            Place::Descriptor(descriptor) => {
                match own_descriptor(&descriptor) {
                    Some("1") => return Ok(Self::standard()),
                    Some("2") => {
                        let errors: Box<dyn Write + Send> = Box::new(io::stderr());
                        return Ok(Self::on(Sink::Standard(BufWriter::new(errors)), "standard error".to_string()));
                    }
                    _ => {}
                }
                // Append, so that existing content stays regardless of the descriptor's position.
                let file = OpenOptions::new().append(true).open(&descriptor).map_err(|error| cannot(&lower(&error)))?;
                return Ok(Self::on(Sink::Direct { file: BufWriter::new(file), path: descriptor }, name));
            }
            Place::Path(target) => target,
        };
        let old = match fs::metadata(&target) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(cannot(&lower(&error))),
        };
        if let Some(old) = &old {
            if old.is_dir() {
                return Err(cannot(&"it is a folder"));
            }
            // Opening proves write permission on the file, although replacing it requires only that of its folder.
            let file = OpenOptions::new().write(true).open(&target).map_err(|error| cannot(&lower(&error)))?;
            if !old.is_file() {
                return Ok(Self::on(Sink::Direct { file: BufWriter::new(file), path: target }, name));
            }
        }
        let staged = stage(&target, old.as_ref()).and_then(|temporary| {
            let file = BufWriter::new(temporary.as_file().try_clone()?);
            Ok(Sink::Staged { file, temporary, target: target.clone(), only_new: false })
        });
        let sink = staged.map_err(|error| {
            let folder = folder_of(&target);
            if !folder.exists() {
                return cannot(&format!("folder '{}' does not exist", folder.display()));
            }
            cannot(&format!(
                "{}; it is written to a new file in folder '{}' and then renamed, so that a failure loses nothing: \
                 choose another folder, or redirect standard output to write the file in place",
                lower(&error),
                folder.display()
            ))
        })?;
        if let Sink::Staged { temporary, .. } = &sink {
            remove_at_end(vec![temporary.path().to_path_buf()]);
        }
        Ok(Self::on(sink, name))
    }

    /// Makes [`commit`](Self::commit) fail instead of replacing a file that was created meanwhile.
    pub fn only_new(mut self) -> Self {
        if let Sink::Staged { only_new, .. } = &mut self.sink {
            *only_new = true;
        }
        self
    }

    /// The file that will be created or replaced; `None` for standard output, devices and pipes.
    pub fn target(&self) -> Option<&Path> {
        match &self.sink {
            Sink::Staged { target, .. } => Some(target),
            Sink::Standard(_) | Sink::Paged(_) | Sink::Direct { .. } => None,
        }
    }

    fn on(sink: Sink, name: String) -> Self {
        Self { sink, name, failed: None }
    }

    /// The output's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns and clears the first write error since the previous call.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    /// True for an output named by `-o`; standard output has no path.
    pub fn has_path(&self) -> bool {
        !matches!(self.sink, Sink::Standard(_) | Sink::Paged(_))
    }

    /// True if `path` leads to this output's file, under any name.
    pub fn is_at(&self, path: &Path) -> bool {
        let written: &[&Path] = match &self.sink {
            Sink::Standard(_) | Sink::Paged(_) => return false,
            Sink::Direct { path, .. } => &[path],
            Sink::Staged { temporary, target, .. } => &[target, temporary.path()],
        };
        match FileId::of(path) {
            Some(id) => written.iter().any(|written| FileId::of(written) == Some(id)),
            None => matches!(resolve(path), Ok(Place::Path(path)) if written.contains(&path.as_path())),
        }
    }

    /// Like [`is_at`](Self::is_at), but false for outputs that several writers may share, such as devices.
    pub fn is_at_file(&self, path: &Path) -> bool {
        let is_other = fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.file_type().is_fifo());
        !is_other && self.is_at(path)
    }

    /// Number of bytes written so far, for [`cut_to`](Self::cut_to); `None` if the output cannot be truncated.
    ///
    /// # Errors
    /// Exit 4, see [`failure`](Self::failure).
    pub fn mark(&mut self) -> Result<Option<u64>, CliError> {
        let Sink::Staged { file, .. } = &mut self.sink else { return Ok(None) };
        let position = file.stream_position();
        self.written(position).map(Some)
    }

    /// Removes the bytes written after `mark`.
    ///
    /// # Errors
    /// Exit 4, see [`failure`](Self::failure).
    pub fn cut_to(&mut self, mark: Option<u64>) -> Result<(), CliError> {
        let (Sink::Staged { file, temporary, .. }, Some(length)) = (&mut self.sink, mark) else { return Ok(()) };
        let cut = (|| {
            let mut fresh = temporary.as_file().try_clone()?;
            fresh.set_len(length)?;
            fresh.seek(SeekFrom::Start(length))?;
            // Also drop the bytes still buffered after a full disk refused them.
            let _ = std::mem::replace(file, BufWriter::new(fresh)).into_parts();
            Ok(())
        })();
        self.written(cut)
    }

    /// Finishes the output: the written file replaces its target.
    ///
    /// # Errors
    /// Exit 4. The target is unchanged; a file that could not be renamed is kept, and named in the error.
    pub fn commit(mut self) -> Result<(), CliError> {
        let flushed = self.flush();
        self.written(flushed)?;
        let Sink::Staged { temporary, target, only_new, .. } = self.sink else { return Ok(()) };
        let cannot = |reason: String| CliError::file(format!("cannot write {}: {reason}", self.name));
        // The bytes must reach the disk before the rename does.
        temporary.as_file().sync_all().map_err(|error| cannot(lower(&error)))?;
        let staged = temporary.path().to_path_buf();
        let renamed = if only_new { temporary.persist_noclobber(&target) } else { temporary.persist(&target) };
        TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| *path != staged);
        match renamed {
            Ok(_) => Ok(()),
            Err(failed) => {
                if failed.error.kind() == io::ErrorKind::AlreadyExists {
                    return Err(cannot("it exists by now; --force replaces it".into()));
                }
                let reason = lower(&failed.error);
                Err(match failed.file.keep() {
                    Ok((_, kept)) => cannot(format!("{reason}; what was written is in '{}'", kept.display())),
                    Err(_) => cannot(reason),
                })
            }
        }
    }

    /// Ends an answer; with a pager, waits until the user leaves it.
    ///
    /// # Errors
    /// See [`failure`](Self::failure).
    pub fn end_answer(&mut self) -> Result<(), CliError> {
        let Sink::Paged(pager) = &mut self.sink else { return Ok(()) };
        let ended = pager.end();
        self.written(ended)
    }

    /// The error for a failed write: exit 4 with the reason, or [`CliError::reader_gone`].
    pub fn failure(&self, error: &io::Error) -> CliError {
        // As in `millpond … | head`: the reader may stop early, which is not an error.
        if error.kind() == io::ErrorKind::BrokenPipe {
            return CliError::reader_gone();
        }
        CliError::file(format!("cannot write to {}: {}", self.name, lower(error)))
    }

    fn written<T>(&self, result: io::Result<T>) -> Result<T, CliError> {
        result.map_err(|error| self.failure(&error))
    }

    fn sink(&mut self) -> &mut dyn Write {
        match &mut self.sink {
            Sink::Standard(out) => out,
            Sink::Paged(pager) => pager,
            Sink::Direct { file, .. } => file,
            Sink::Staged { file, .. } => file,
        }
    }

    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let again = io::Error::new(error.kind(), error.to_string());
            self.failed.get_or_insert(error);
            again
        })
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.sink().write(bytes);
        self.note(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.sink().flush();
        self.note(flushed)
    }
}

/// Creates the file that will replace `target`, with the `old` file's permissions or those of any new file.
fn stage(target: &Path, old: Option<&fs::Metadata>) -> io::Result<NamedTempFile> {
    let folder = folder_of(target);
    // Tables over the folder skip names with this ending, as for unfinished files of COPY.
    let mut builder = Builder::new();
    builder.prefix(".millpond-").suffix("#1").permissions(Permissions::from_mode(0o666));
    let file = builder.tempfile_in(&folder)?;
    let Some(old) = old else { return Ok(file) };
    let new = file.as_file().metadata()?;
    let folder = fs::metadata(&folder)?;
    let sticky = folder.mode() & 0o1000 != 0;
    if sticky && ![0, old.uid(), folder.uid()].contains(&new.uid()) {
        let reason = "its folder lets only the owner of a file replace it";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        chown(file.path(), Some(old.uid()), Some(old.gid())).or_else(|_| chown(file.path(), None, Some(old.gid())))?;
    }
    file.as_file().set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
    Ok(file)
}

fn folder_of(path: &Path) -> PathBuf {
    path.parent().map_or_else(|| PathBuf::from("/"), Path::to_path_buf)
}

/// Follows the links of `path`; the last one may be dangling. Descriptors are not resolved to the file they are open
/// on.
fn resolve(path: &Path) -> io::Result<Place> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..MOST_LINKS {
        let Some(name) = path.file_name().map(ToOwned::to_owned) else {
            return Ok(Place::Path(fs::canonicalize(path)?));
        };
        let folder = fs::canonicalize(folder_of(&path))?;
        path = folder.join(&name);
        // /proc/PID/fd, or /proc/PID/task/TID/fd.
        if folder.starts_with("/proc") && folder.ends_with("fd") {
            return Ok(Place::Descriptor(path));
        }
        match fs::read_link(&path) {
            Ok(link) => path = folder.join(link),
            // Not a link, or it does not exist.
            Err(_) => return Ok(Place::Path(path)),
        }
    }
    Err(io::Error::other("too many links"))
}

/// True for targets that are written directly and never replaced: descriptors such as /dev/stdout, devices, pipes.
pub fn is_stream(path: &Path) -> bool {
    match resolve(path) {
        Ok(Place::Descriptor(_)) => true,
        Ok(Place::Path(path)) => fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()),
        Err(_) => false,
    }
}

/// The descriptor's number, for a descriptor of this process.
fn own_descriptor(path: &Path) -> Option<&str> {
    let own = Path::new("/proc").join(std::process::id().to_string());
    path.starts_with(own).then(|| path.file_name()?.to_str()).flatten()
}

/// The system's error text without its number: "no space left on device".
pub fn lower(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split_once(" (os error").map_or(text.as_str(), |(text, _)| text);
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_without_destructors_leaves_no_temporary_file() {
        let folder = tempfile::tempdir().expect("folder");
        let names = || fs::read_dir(folder.path()).expect("a folder").count();
        let mut output = Output::open(&folder.path().join("t.csv")).expect("an output");
        output.write_all(b"n\n1\n").expect("written");
        assert_eq!(names(), 1);
        remove_temporary();
        assert_eq!(names(), 0);
    }

    #[test]
    fn links_are_followed_to_what_is_not_there_yet_and_not_into_descriptors() {
        let folder = tempfile::tempdir().expect("folder");
        let root = fs::canonicalize(folder.path()).expect("path");
        fs::create_dir(root.join("deep")).expect("folder");
        std::os::unix::fs::symlink("deep/new.csv", root.join("link")).expect("link");
        std::os::unix::fs::symlink("link", root.join("second")).expect("link");
        let Ok(Place::Path(path)) = resolve(&root.join("second")) else { panic!("a path") };
        assert_eq!(path, root.join("deep/new.csv"));

        std::os::unix::fs::symlink("/dev/stdout", root.join("out")).expect("link");
        let Ok(Place::Descriptor(path)) = resolve(&root.join("out")) else { panic!("a descriptor") };
        assert!(path.ends_with("fd/1"), "{}", path.display());

        std::os::unix::fs::symlink("round", root.join("round")).expect("link");
        assert!(resolve(&root.join("round")).is_err());
    }
}
