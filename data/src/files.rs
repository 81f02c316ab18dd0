//! Destination of generated files. [`Files`] lets a caller define its own rules for existing files.
//!
//! ```text
//!   prepare, for each file ─► … ─► create ─► written to ─► commit
//!                                      └─ dropped: an existing file is unchanged
//! ```

use std::fmt::Debug;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::DataError;

/// Output files of a generation, by path.
pub trait Files: Debug + Send + Sync {
    /// Tests before generation begins that the file at `path` can be written. Its folder exists.
    ///
    /// # Errors
    /// [`DataError`] with the path and the reason.
    fn prepare(&self, path: &Path) -> Result<(), DataError>;

    /// Begins to write the file at `path`; `prepare` was called for it.
    ///
    /// # Errors
    /// [`DataError`] with the path and the reason.
    fn create(&self, path: &Path) -> Result<Box<dyn NewFile>, DataError>;
}

/// A file that is written from start to end. Dropping it without [`commit`](Self::commit) keeps the existing file.
pub trait NewFile: Write + Send {
    /// Moves the written file into place.
    ///
    /// # Errors
    /// [`DataError`] with the path and the reason.
    fn commit(self: Box<Self>) -> Result<(), DataError>;
}

/// Writes to a temporary file beside the final path and renames it; replaces existing files.
#[derive(Debug, Clone, Copy, Default)]
pub struct Replaced;

struct Partial {
    file: NamedTempFile,
    path: PathBuf,
}

impl Files for Replaced {
    fn prepare(&self, _path: &Path) -> Result<(), DataError> {
        Ok(())
    }

    fn create(&self, path: &Path) -> Result<Box<dyn NewFile>, DataError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        builder.prefix(".millpond-").suffix("#1");
        // Other users may read the file, as far as the process's umask allows.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.tempfile_in(folder).map_err(DataError::io(path))?;
        Ok(Box::new(Partial { file, path: path.to_path_buf() }))
    }
}

impl Write for Partial {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl NewFile for Partial {
    fn commit(self: Box<Self>) -> Result<(), DataError> {
        let Partial { file, path } = *self;
        file.persist(&path).map_err(|error| DataError::io(&path)(error.error))?;
        Ok(())
    }
}
