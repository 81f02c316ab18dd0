//! Files for tests: a temporary file beside the target, which is renamed. Their rules for users are the program's.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use millpond_parquet::file::FileError;
use millpond_parquet::rewrite::{self, Options, Progress, Target, Targets, Written};
use tempfile::NamedTempFile;

struct Beside;

struct Partial(NamedTempFile, PathBuf);

impl Targets for Beside {
    fn prepare(&self, path: &Path, force: bool) -> Result<(), FileError> {
        if !force && path.exists() {
            return Err(FileError::Exists { path: path.to_path_buf() });
        }
        std::fs::create_dir_all(path.parent().unwrap()).map_err(|error| FileError::Target(error.to_string()))
    }

    fn open(&self, path: &Path, _force: bool) -> Result<Box<dyn Target>, FileError> {
        Ok(Box::new(Partial(NamedTempFile::new_in(path.parent().unwrap()).unwrap(), path.to_path_buf())))
    }
}

impl Write for Partial {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Target for Partial {
    fn commit(self: Box<Self>) -> Result<(), FileError> {
        self.0.persist(&self.1).unwrap();
        Ok(())
    }
}

pub fn rewrite(from: &Path, to: &Path, options: &Options, progress: Progress<'_>) -> Result<Vec<Written>, FileError> {
    rewrite::rewrite(from, to, options, &Beside, progress)
}
