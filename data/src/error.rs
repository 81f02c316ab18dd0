//! Errors of data generation.

use std::path::{Path, PathBuf};

/// Reason why a generator failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The scale factor is not a positive, finite number within the generator's range.
    #[error("scale factor {scale} is not usable; give a number above 0 and at most {most}")]
    Scale { scale: f64, most: f64 },
    /// The scale factor is outside the suite's range.
    #[error("scale factor {scale} is not usable; give a number from {least} to {most}")]
    ScaleRange { scale: f64, least: f64, most: f64 },
    /// The suite has no table of that name.
    #[error("no table named '{name}'; the tables are {known}")]
    UnknownTable { name: String, known: String },
    /// A file or folder could not be created, written or moved into place.
    #[error("cannot write {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// A file has the name of a folder to create.
    #[error("cannot make the folder {}: a file has that name; give another folder, or move the file", path.display())]
    NotAFolder { path: PathBuf },
    /// The caller's [`Files`](crate::Files) rejected a file; the message names it.
    #[error("{0}")]
    File(String),
    /// The Parquet writer failed.
    #[error("cannot write {} as Parquet: {source}", path.display())]
    Parquet { path: PathBuf, source: ::parquet::errors::ParquetError },
    /// The rows of a generator do not fit their own schema.
    #[error("the generator of '{table}' failed: {source}")]
    Arrow { table: String, source: arrow::error::ArrowError },
    /// Another part of this generation has failed and reports the reason, or the caller has stopped it.
    #[error("generation has stopped before its end; files that were finished stay")]
    Stopped,
    /// The worker threads could not be started.
    #[error("cannot start {threads} generator threads: {reason}")]
    Threads { threads: usize, reason: String },
}

impl DataError {
    /// True if the error concerns a file or a folder.
    pub fn is_io(&self) -> bool {
        matches!(
            self,
            DataError::Io { .. } | DataError::NotAFolder { .. } | DataError::File(_) | DataError::Parquet { .. }
        )
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> DataError + '_ {
        move |source| DataError::Io { path: path.to_path_buf(), source }
    }
}
