//! Where generated files go. A caller may have rules of its own for what is there already: [`Files`] brings them.
//!
//! ```text
//!   prepare, for each file ─► … ─► create ─► written to ─► commit
//!                                      └─ dropped: what was there is as it was
//! ```

use std::fmt::Debug;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::DataError;

/// The files of a generation, by the paths that name them.
pub trait Files: Debug + Send + Sync {
    /// Tests that the file at `path` can be written, before the work begins. Its folder is there.
    ///
    /// # Errors
    /// [`DataError`] with the path and the reason.
    fn prepare(&self, path: &Path) -> Result<(), DataError>;

    /// Begins to write the file at `path`, which was prepared.
    ///
    /// # Errors
    /// [`DataError`] with the path and the reason.
    fn create(&self, path: &Path) -> Result<Box<dyn NewFile>, DataError>;
}

/// A file that is written from its first byte to its last. A drop without [`commit`](Self::commit) leaves what was there.
pub trait NewFile: Write + Send {
    /// What was written takes its place.
    ///
    /// # Errors
    /// [`DataError`] with the path and the reason.
    fn commit(self: Box<Self>) -> Result<(), DataError>;
}

/// A temporary file beside each file, which is renamed. What is there is replaced.
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
        // Others may read it as far as the process's mask allows.
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
