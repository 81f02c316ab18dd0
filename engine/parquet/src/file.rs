//! Parquet files as `check` and `rewrite` open them: read at positions, and refused with words that name the file.
//!
//! ```text
//!   PATH ─ a file ──────────────────────────► open ─► footer, chunks by positioned reads
//!        └ a folder ─► list: *.parquet below ─┘
//! ```
//!
//! Threads  a file has no position of its own here, so that threads may read one file at the same time.
//! Errors   a footer is tested before it is believed: its mark, its length, and that each chunk lies within the file.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};

use crate::footer::Footer;

/// Reason why a file was not checked or not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    #[error("cannot read '{}': {reason}", .path.display())]
    Read { path: PathBuf, reason: String },
    #[error("cannot write '{}': {reason}", .path.display())]
    Write { path: PathBuf, reason: String },
    /// The output exists and may not be replaced.
    #[error("cannot write '{}': it exists; --force replaces it", .path.display())]
    Exists { path: PathBuf },
    #[error("folder '{}' has no .parquet files", .path.display())]
    NoFiles { path: PathBuf },
    /// An option has an invalid value.
    #[error("{0}")]
    Option(String),
    /// An output file is refused; the message names it.
    #[error("{0}")]
    Target(String),
    /// The caller cancelled the work.
    #[error("interrupted")]
    Stopped,
}

impl FileError {
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Option(_))
    }

    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Stopped)
    }

    pub(crate) fn read(path: &Path, reason: impl Into<String>) -> Self {
        Self::Read { path: path.to_path_buf(), reason: reason.into() }
    }

    pub(crate) fn write(path: &Path, reason: impl Into<String>) -> Self {
        Self::Write { path: path.to_path_buf(), reason: reason.into() }
    }
}

const MARK: &[u8] = b"PAR1";
const ENCRYPTED: &[u8] = b"PARE";
/// The length of the metadata, and the mark.
const TAIL: u64 = 8;

/// A file that is read at positions.
#[derive(Debug, Clone)]
pub(crate) struct Positioned {
    file: Arc<File>,
    pub(crate) length: u64,
}

impl Positioned {
    /// The bytes from `start` on.
    pub(crate) fn bytes(&self, start: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }
}

/// Reads on from a position.
#[derive(Debug)]
pub(crate) struct At {
    file: Arc<File>,
    at: u64,
}

impl Read for At {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(bytes, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Length for Positioned {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Positioned {
    type T = BufReader<At>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::new(At { file: Arc::clone(&self.file), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        if start.saturating_add(length as u64) > self.length {
            return Err(ParquetError::EOF("the file ends before data that belongs to it".into()));
        }
        Ok(self.bytes(start, length)?.into())
    }
}

/// A file whose footer was read.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    pub(crate) file: Positioned,
    pub(crate) metadata: Arc<ParquetMetaData>,
}

impl Opened {
    /// Opens `path` and reads its footer; with `page_index`, also the page index.
    ///
    /// # Errors
    /// [`FileError::Read`] if the file cannot be read, is not a Parquet file, or has an invalid footer.
    pub(crate) fn open(path: &Path, page_index: bool) -> Result<Self, FileError> {
        let refused = |reason: String| FileError::read(path, reason);
        let failed = |error: io::Error| FileError::read(path, reason_of(&error));
        let found = fs::metadata(path).map_err(failed)?;
        if !found.is_file() {
            return Err(refused("it is no file".into()));
        }
        let file = Positioned { file: Arc::new(File::open(path).map_err(failed)?), length: found.len() };
        if let Some(reason) = false_footer(&file).map_err(failed)? {
            return Err(refused(reason));
        }
        let parse = |policy| {
            let reader = ParquetMetaDataReader::new().with_column_index_policy(PageIndexPolicy::Skip);
            reader.with_offset_index_policy(policy).parse_and_finish(&file)
        };
        let indexed = if page_index { parse(PageIndexPolicy::Optional).ok() } else { None };
        let metadata = match indexed {
            Some(metadata) => metadata,
            None => parse(PageIndexPolicy::Skip).map_err(|error| refused(plain(&error)))?,
        };
        let opened = Self { path: path.to_path_buf(), file, metadata: Arc::new(metadata) };
        opened.test_chunks()?;
        Ok(opened)
    }

    /// Tests that each column chunk lies within the file, before any offset is used.
    fn test_chunks(&self) -> Result<(), FileError> {
        let schema_columns = self.metadata.file_metadata().schema_descr().num_columns();
        for (group, row_group) in self.metadata.row_groups().iter().enumerate() {
            let refused = |what: String| {
                let damaged = "it is damaged, was cut short, or changed while it was written: write or copy it again";
                FileError::read(&self.path, format!("row group {group} {what}; {damaged}"))
            };
            if row_group.num_rows() < 0 || row_group.num_columns() != schema_columns {
                return Err(refused("does not have the columns and rows of its schema".into()));
            }
            for chunk in row_group.columns() {
                let is_within = place(chunk).is_some_and(|(start, length)| {
                    start.checked_add(length).is_some_and(|end| end <= self.file.length)
                });
                if !is_within || chunk.uncompressed_size() < 0 {
                    return Err(refused(format!(
                        "has bytes of column {} where the file has none",
                        chunk.column_path().string()
                    )));
                }
            }
        }
        Ok(())
    }

    /// The bytes of a column chunk.
    pub(crate) fn chunk(&self, chunk: &ColumnChunkMetaData) -> Result<Vec<u8>, FileError> {
        let (start, length) = place(chunk).unwrap_or_default();
        let length = usize::try_from(length).map_err(|_| FileError::read(&self.path, "a column chunk is too long"))?;
        self.file.bytes(start, length).map_err(|error| FileError::read(&self.path, reason_of(&error)))
    }

    /// Its footer, field by field.
    ///
    /// # Errors
    /// [`FileError::Read`] where it cannot be read.
    pub(crate) fn footer(&self) -> Result<Footer, FileError> {
        let failed = |error: io::Error| FileError::read(&self.path, reason_of(&error));
        let end = self.file.length.saturating_sub(TAIL);
        let tail = self.file.bytes(end, TAIL as usize).map_err(failed)?;
        let length = tail.first_chunk().map_or(0, |length| u32::from_le_bytes(*length));
        let start = end.saturating_sub(u64::from(length));
        let bytes = self.file.bytes(start, (end - start) as usize).map_err(failed)?;
        Footer::read(&bytes).map_err(|error| FileError::read(&self.path, error.to_string()))
    }

    pub(crate) fn rows(&self) -> u64 {
        self.metadata.row_groups().iter().map(|group| group.num_rows().max(0) as u64).sum()
    }
}

/// Where a chunk begins and how long it is, if its metadata make sense.
fn place(chunk: &ColumnChunkMetaData) -> Option<(u64, u64)> {
    let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
    Some((u64::try_from(start).ok()?, u64::try_from(chunk.compressed_size()).ok()?))
}

/// Describes a defect in the first and last bytes of a file.
fn false_footer(file: &Positioned) -> io::Result<Option<String>> {
    if file.length == 0 {
        return Ok(Some("the file is empty, and has no columns".into()));
    }
    let no_parquet = "it is no Parquet file: those begin and end with PAR1";
    let least = MARK.len() as u64 + TAIL;
    if file.length < least {
        return Ok(Some(format!("{no_parquet}, and it has {} bytes", file.length)));
    }
    let (head, tail) = (file.bytes(0, MARK.len())?, file.bytes(file.length - TAIL, TAIL as usize)?);
    let (claimed, mark) = tail.split_at(4);
    if mark == ENCRYPTED {
        return Ok(Some("its footer is encrypted, and Millpond has no keys".into()));
    }
    if head == MARK && mark != MARK {
        return Ok(Some("it begins as a Parquet file and does not end as one: it was cut short; copy it again".into()));
    }
    if head != MARK {
        return Ok(Some(no_parquet.into()));
    }
    let claimed = u64::from(u32::from_le_bytes(claimed.try_into().unwrap_or_default()));
    let is_false = claimed > file.length - least;
    Ok(is_false.then(|| {
        format!(
            "its last bytes claim {} of metadata, and the whole file has {}; it is damaged or was cut short: \
             write or copy it again",
            bytes(claimed),
            bytes(file.length)
        )
    }))
}

/// The Parquet files that `path` stands for, sorted: itself, or those below the folder that it is. Names that begin
/// with a dot are left out.
///
/// # Errors
/// [`FileError::Read`] of folders that cannot be read, [`FileError::NoFiles`] of those without a file.
pub fn list(path: &Path) -> Result<Vec<PathBuf>, FileError> {
    let found = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => FileError::read(path, "there is no such file or folder"),
        _ => FileError::read(path, reason_of(&error)),
    })?;
    if !found.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let (mut files, mut folders) = (Vec::new(), vec![path.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        let failed = |error: io::Error| FileError::read(&folder, reason_of(&error));
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
            // Links to folders are skipped: they may form a cycle.
            if kind.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "parquet") && path.is_file() {
                files.push(path);
            }
        }
    }
    if files.is_empty() {
        return Err(FileError::NoFiles { path: path.to_path_buf() });
    }
    files.sort();
    Ok(files)
}

/// The operating system's reason without its number: "no space left on device".
pub(crate) fn reason_of(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split_once(" (os error").map_or(text.as_str(), |(text, _)| text);
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// The message of an error of the parquet crate, without the name of its kind.
pub(crate) fn plain(error: &ParquetError) -> String {
    match error {
        ParquetError::General(text) | ParquetError::NYI(text) | ParquetError::EOF(text) => text.clone(),
        ParquetError::External(error) => match error.downcast_ref::<io::Error>() {
            Some(error) => reason_of(error),
            None => error.to_string(),
        },
        other => other.to_string(),
    }
}

/// A number of bytes with the unit that suits it.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(bytes: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.parquet");
        fs::write(&path, bytes).unwrap();
        let message = Opened::open(&path, false).unwrap_err().to_string();
        assert!(message.starts_with(&format!("cannot read '{}': ", path.display())), "{message}");
        message
    }

    #[test]
    fn a_file_that_is_no_parquet_file_is_named_with_the_reason() {
        assert!(refused(b"").ends_with("the file is empty, and has no columns"));
        assert!(refused(b"PAR1").contains("it is no Parquet file") && refused(&[7; 100]).contains("no Parquet file"));
        assert!(refused(&[b"PAR1", &[0; 100][..]].concat()).contains("was cut short"));
        assert!(refused(&[b"PAR1", &[0; 100][..], &[9; 4], b"PARE"].concat()).contains("encrypted"));
        let claims = refused(&[b"PAR1", &[0; 100][..], &(1_u32 << 30).to_le_bytes(), b"PAR1"].concat());
        assert!(claims.contains("claim 1.0 GiB of metadata, and the whole file has 112 B"), "{claims}");
    }

    #[test]
    fn folders_are_listed_to_their_depth_and_without_hidden_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert_eq!(list(folder.path()), Err(FileError::NoFiles { path: folder.path().into() }));
        fs::create_dir_all(at("year=2024/b")).unwrap();
        for name in ["z.parquet", "year=2024/b/a.parquet", ".hidden.parquet", "notes.txt"] {
            fs::write(at(name), "").unwrap();
        }
        assert_eq!(list(folder.path()).unwrap(), [at("year=2024/b/a.parquet"), at("z.parquet")]);
        assert!(list(&at("nowhere")).unwrap_err().to_string().contains("there is no such file or folder"));
    }
}
