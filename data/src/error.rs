//! What can go wrong while data is generated.

use std::path::{Path, PathBuf};

/// Why a generator could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The scale factor is not a positive, finite number within the generator's range.
    #[error("scale factor {scale} is not usable; give a number above 0 and at most {most}")]
    Scale { scale: f64, most: f64 },
    /// The scale factor is outside the range that a suite can be generated at.
    #[error("scale factor {scale} is not usable; give a number from {least} to {most}")]
    ScaleRange { scale: f64, least: f64, most: f64 },
    /// No table of that name exists in the suite.
    #[error("no table named '{name}'; the tables are {known}")]
    UnknownTable { name: String, known: String },
    /// A file or folder could not be made, written or moved into place.
    #[error("cannot write {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// A file lies where a folder is to be.
    #[error("cannot make the folder {}: a file has that name; give another folder, or move the file", path.display())]
    NotAFolder { path: PathBuf },
    /// A file was refused by the rules of the caller's [`Files`](crate::Files), in words that name it.
    #[error("{0}")]
    File(String),
    /// The Parquet writer refused.
    #[error("cannot write {} as Parquet: {source}", path.display())]
    Parquet { path: PathBuf, source: ::parquet::errors::ParquetError },
    /// A generator gave rows that do not fit their own schema.
    #[error("the generator of '{table}' failed: {source}")]
    Arrow { table: String, source: arrow::error::ArrowError },
    /// Another part of the same generation has failed and says why, or the caller has stopped it.
    #[error("generation has stopped before its end; files that were finished stay")]
    Stopped,
    /// The worker threads could not be started.
    #[error("cannot start {threads} generator threads: {reason}")]
    Threads { threads: usize, reason: String },
}

impl DataError {
    /// True when a file or folder was the trouble.
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
