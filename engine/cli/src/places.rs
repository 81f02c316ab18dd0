//! Targets of `parquet rewrite` and `gen`, by the rules of `-o`.
//!
//! ```text
//!   prepare   folder created · links followed · is an existing target writable? ─► yes, or the reason, before the work
//!             a device or a pipe stays open from now on
//!   open      a temporary file beside the target, or the device or pipe
//!   commit    the temporary file is renamed
//! ```
//!
//! Twice    Two outputs of one run never share a file, under any names.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use millpond_data::{DataError, Files, NewFile};
use millpond_parquet::file::FileError;
use millpond_parquet::rewrite::{Target, Targets};

use crate::error::CliError;
use crate::output::{Output, lower};

/// The files of one command.
#[derive(Default)]
pub struct Places {
    /// Devices and pipes, open since their preparation.
    direct: Mutex<HashMap<PathBuf, Output>>,
    /// The files that will be replaced or created.
    targets: Mutex<HashSet<PathBuf>>,
    /// True if one of the outputs is standard output.
    is_standard: AtomicBool,
}

impl Places {
    /// True if data is written to standard output; then nothing else is printed there.
    pub fn is_standard(&self) -> bool {
        self.is_standard.load(Ordering::Relaxed)
    }

    /// Checks that `path` can be written. Returns whether a file will be replaced.
    fn prepared(&self, path: &Path) -> Result<bool, CliError> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(|error| {
                let reason = match folder.ancestors().find(|path| path.exists() && !path.is_dir()) {
                    Some(file) => format!("'{}' is a file", file.display()),
                    None => lower(&error),
                };
                CliError::file(format!("cannot make folder '{}': {reason}", folder.display()))
            })?;
        }
        let output = Output::open(path)?;
        if let Some(target) = output.target() {
            if self.targets.lock().unwrap_or_else(PoisonError::into_inner).insert(target.to_path_buf()) {
                return Ok(target.exists());
            }
            let target = target.display();
            return Err(CliError::file(format!(
                "cannot write '{}': another output is '{target}', too",
                path.display()
            )));
        }
        if !output.has_path() && output.name() == "standard output" {
            self.is_standard.store(true, Ordering::Relaxed);
        }
        self.direct.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_path_buf(), output);
        Ok(false)
    }

    fn begun(&self, path: &Path) -> Result<Output, CliError> {
        let direct = self.direct.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
        direct.map_or_else(|| Output::open(path), Ok)
    }
}

impl std::fmt::Debug for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Places").finish_non_exhaustive()
    }
}

impl Targets for Places {
    fn prepare(&self, path: &Path, force: bool) -> Result<(), FileError> {
        match self.prepared(path) {
            Ok(true) if !force => Err(FileError::Exists { path: path.to_path_buf() }),
            Ok(_) => Ok(()),
            Err(error) => Err(FileError::Target(error.message)),
        }
    }

    fn open(&self, path: &Path, force: bool) -> Result<Box<dyn Target>, FileError> {
        match self.begun(path) {
            Ok(output) if force => Ok(Box::new(output)),
            Ok(output) => Ok(Box::new(output.only_new())),
            Err(error) => Err(FileError::Target(error.message)),
        }
    }
}

impl Target for Output {
    fn commit(self: Box<Self>) -> Result<(), FileError> {
        Output::commit(*self).map_err(|error| FileError::Target(error.message))
    }
}

impl Files for Places {
    fn prepare(&self, path: &Path) -> Result<(), DataError> {
        self.prepared(path).map(|_| ()).map_err(|error| DataError::File(error.message))
    }

    fn create(&self, path: &Path) -> Result<Box<dyn NewFile>, DataError> {
        match self.begun(path) {
            Ok(output) => Ok(Box::new(output)),
            Err(error) => Err(DataError::File(error.message)),
        }
    }
}

impl NewFile for Output {
    fn commit(self: Box<Self>) -> Result<(), DataError> {
        Output::commit(*self).map_err(|error| DataError::File(error.message))
    }
}
