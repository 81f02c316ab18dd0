//! Where files are written. The caller has the rules: what is followed, kept, replaced and refused.
//!
//! ```text
//!   prepare ─► … the work … ─► open ─► written to ─► commit
//!                                           └─ dropped: what was there is as it was
//! ```

use std::io::Write;
use std::path::Path;

use crate::file::FileError;

/// The files that are written, by the paths that name them.
pub trait Targets: Sync {
    /// Tests that the file at `path` can be written and makes its folder, before the work begins.
    ///
    /// # Errors
    /// [`FileError::Exists`] of a file that would be replaced without `force`, [`FileError::Target`] with the reason
    /// where it cannot be written.
    fn prepare(&self, path: &Path, force: bool) -> Result<(), FileError>;

    /// Begins to write the file at `path`, which was prepared. One that comes to be meanwhile is replaced with `force`
    /// alone.
    ///
    /// # Errors
    /// [`FileError::Target`] with the reason.
    fn open(&self, path: &Path, force: bool) -> Result<Box<dyn Target>, FileError>;
}

/// A file that is written from its first byte to its last. A drop without [`commit`](Self::commit) leaves what was
/// there.
pub trait Target: Write + Send {
    /// Moves the written file into its place.
    ///
    /// # Errors
    /// [`FileError::Target`] with the reason.
    fn commit(self: Box<Self>) -> Result<(), FileError>;
}
