//! Writes Parquet files again in the layout that a device reads fast.
//!
//! ```text
//!   file ─► survey INT96 and decimals ─► types ─► probe the first rows ─► hints
//!        ─► [ row group: each leaf column read and encoded by a thread ] … ─► footer, compared with the old one ─►
//!                                                                             commit
//!                 └─ a dictionary overflowed? once more, without one
//! ```
//!
//! Rows      are the same, in the same order, byte by byte: values and levels are copied, whatever they mean.
//! Footer    schema with all annotations and field ids, key-value metadata and sorting columns are the same. What a
//!           writer cannot keep is refused by name. `types` has the two kinds of columns whose physical type changes.
//! Made anew statistics, page indexes, Bloom filters of the columns that had one. Bounding boxes of geometries are not.
//! Memory    a row group encoded, a batch of each column at work, and pages that values of a dictionary lie in.
//! Threads   one for each column at a time, as many as there are cores.
//! Files     one output for each input, written by the rules of [`Targets`]. None is replaced unless that is asked for.

mod layout;
mod leaf;
mod order;
mod probe;
mod target;
mod types;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaDataReader, SortingColumn};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

use crate::file::{FileError, Opened, list, plain};
use crate::footer::Footer;

pub use layout::{Codec, DICTIONARY_BYTES, Hint, PAGE_ROWS, ROW_GROUP_ROWS, STORED_ABOVE, writer_properties};
use leaf::{Chunk, Leaf};
pub use target::{Target, Targets};
use types::{Becomes, Survey, Surveys, Types, arrow_types};

/// Maximum number of rows that a probe inspects.
const PROBED_ROWS: usize = 1 << 20;
/// Bytes after the footer: its length, and the mark.
const TAIL: usize = 8;

/// Bounds of the rows of a row group.
pub const ROW_GROUP_ROWS_RANGE: std::ops::RangeInclusive<usize> = 1_024..=16 << 20;

/// How files are written.
#[derive(Debug, Clone)]
pub struct Options {
    pub codec: Codec,
    /// Rows of a row group, within [`ROW_GROUP_ROWS_RANGE`].
    pub row_group_rows: usize,
    /// Replace files that exist.
    pub force: bool,
    /// Cancels the work when set. Files that are complete by then stay.
    pub stop: Arc<AtomicBool>,
}

impl Default for Options {
    fn default() -> Self {
        Self { codec: Codec::default(), row_group_rows: ROW_GROUP_ROWS, force: false, stop: Arc::default() }
    }
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub from: PathBuf,
    pub path: PathBuf,
    pub num_rows: u64,
    pub num_row_groups: usize,
    pub bytes_before: u64,
    pub bytes: u64,
    /// Notes for the user: columns written with an unexpected type.
    pub notes: Vec<String>,
}

/// Called with the rows that were written since the last call, and those of all files.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Writes the file `from`, or the files below the folder that it is, to the file or folder `to`.
///
/// # Errors
/// [`FileError::Option`] of options that cannot be, [`FileError::Exists`] and [`FileError::Target`] before the work,
/// and those of reading and writing. Files that were written before an error stay.
pub fn rewrite(
    from: &Path,
    to: &Path,
    options: &Options,
    targets: &dyn Targets,
    progress: Progress<'_>,
) -> Result<Vec<Written>, FileError> {
    if !ROW_GROUP_ROWS_RANGE.contains(&options.row_group_rows) {
        return Err(FileError::Option(format!(
            "a row group cannot have {} rows: it has {} to {}",
            options.row_group_rows,
            ROW_GROUP_ROWS_RANGE.start(),
            ROW_GROUP_ROWS_RANGE.end()
        )));
    }
    let files = pairs(from, to)?;
    if let Some((_, path)) = files.iter().find(|(_, path)| path.is_dir()) {
        return Err(FileError::write(path, "it is a folder"));
    }
    // Reads all footers and tests all targets first, so that bad input fails before hours of work.
    let files: Vec<_> =
        files.into_iter().map(|(from, to)| Ok((Opened::open(&from, false)?, to))).collect::<Result<_, _>>()?;
    let sorted = files.iter().map(|(file, _)| sorting(file)).collect::<Result<Vec<_>, _>>()?;
    files.iter().try_for_each(|(_, to)| targets.prepare(to, options.force))?;
    let num_rows = files.iter().map(|(file, _)| file.rows()).sum();
    progress(0, num_rows);
    let surveys = surveys(files.iter().map(|(file, _)| file), options)?;
    let of_all = |rows| progress(rows, num_rows);
    let write = |((opened, to), sorting): (&(Opened, PathBuf), Vec<SortingColumn>)| {
        let types = Types::new(opened, &surveys).map_err(|error| FileError::read(&opened.path, plain(&error)))?;
        File { opened, options, types, sorting }.write(to, targets, &of_all)
    };
    files.iter().zip(sorted).map(write).collect()
}

/// The sorting columns of a file, which nothing keeps from being written again.
fn sorting(opened: &Opened) -> Result<Vec<SortingColumn>, FileError> {
    let refused = |reason: String| FileError::read(&opened.path, reason);
    let schema = opened.metadata.file_metadata().schema_descr();
    if schema.num_columns() == 0 {
        return Err(refused("it has no columns".into()));
    }
    if let Some(name) = types::unknown(schema.root_schema()) {
        return Err(refused(format!(
            "{name} has a logical type that is newer than this program, which cannot keep it"
        )));
    }
    if let Some(obstacle) = opened.footer()?.obstacle() {
        return Err(refused(obstacle.into()));
    }
    order::sorting_columns(opened)
}

/// Reads the columns whose values decide what they become, in all files.
fn surveys<'a>(files: impl Iterator<Item = &'a Opened>, options: &Options) -> Result<Surveys, FileError> {
    let mut surveys = Surveys::new();
    for opened in files {
        let columns = opened.metadata.file_metadata().schema_descr().columns();
        let read_as = arrow_types(opened);
        let survey = |leaf: usize| Survey::of(&columns[leaf], read_as.as_ref().and_then(|types| types.get(leaf)));
        let mut jobs: Vec<(Leaf<'_>, Survey)> = (0..columns.len())
            .filter_map(|leaf| Some((Leaf::at(opened, leaf, Becomes::Same, 0), survey(leaf)?)))
            .collect();
        each(&mut jobs, |(leaf, survey)| leaf.survey(survey, &|| options.go_on()))?;
        for (leaf, survey) in jobs {
            let name = columns[leaf.index].path().parts().to_vec();
            surveys.entry(name).and_modify(|known| known.and(survey)).or_insert(survey);
        }
    }
    Ok(surveys)
}

/// Each input with its output.
fn pairs(from: &Path, to: &Path) -> Result<Vec<(PathBuf, PathBuf)>, FileError> {
    let files = list(from)?;
    if !from.is_dir() {
        let is_folder = to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/");
        let to = match (is_folder, from.file_name()) {
            (true, Some(name)) => to.join(name),
            _ => to.to_path_buf(),
        };
        return Ok(vec![(from.to_path_buf(), to)]);
    }
    if to.is_file() {
        return Err(FileError::write(to, format!("it is a file, and '{}' is a folder", from.display())));
    }
    let beside = |file: PathBuf| {
        let to = to.join(file.strip_prefix(from).unwrap_or(&file));
        (file, to)
    };
    Ok(files.into_iter().map(beside).collect())
}

/// A file that is being written again.
struct File<'a> {
    opened: &'a Opened,
    options: &'a Options,
    types: Types,
    sorting: Vec<SortingColumn>,
}

impl<'a> File<'a> {
    /// Writes the file to `to`, which is unchanged until the new file is complete.
    fn write(&self, to: &Path, targets: &dyn Targets, progress: &(dyn Fn(u64) + Sync)) -> Result<Written, FileError> {
        let mut target = targets.open(to, self.options.force)?;
        let (num_row_groups, bytes) = self.write_to(&mut target, to, progress)?;
        target.commit()?;
        Ok(Written {
            from: self.opened.path.clone(),
            path: to.to_path_buf(),
            num_rows: self.opened.rows(),
            num_row_groups,
            bytes_before: self.opened.file.length,
            bytes,
            notes: self.types.notes.clone(),
        })
    }

    /// Writes the file to `out`. Returns the number of row groups and of bytes.
    fn write_to(
        &self,
        out: impl Write + Send,
        to: &Path,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(usize, u64), FileError> {
        let failed = |error: ParquetError| FileError::write(to, plain(&error));
        let mut hints = self.hints()?;
        let mut properties = Arc::new(self.properties(&hints));
        let out = Held { out, bytes: 0, held: None };
        let schema = self.types.schema.root_schema_ptr();
        let mut writer = SerializedFileWriter::new(out, schema, Arc::clone(&properties)).map_err(failed)?;
        let row_groups = order::row_groups(self.opened, &self.sorting, self.options.row_group_rows)?;
        let mut leaves: Vec<Leaf<'_>> = (0..hints.len()).map(|leaf| self.leaf(leaf, 0)).collect();
        for (first, rows) in &row_groups {
            let mut chunks = self.encode(&mut leaves, &properties, *rows, progress)?;
            let overflowed: Vec<usize> = (0..chunks.len()).filter(|leaf| chunks[*leaf].is_mixed()).collect();
            if !overflowed.is_empty() {
                // Once more, and from now on without a dictionary.
                overflowed.iter().for_each(|leaf| hints[*leaf].dictionary = Some(false));
                properties = Arc::new(self.properties(&hints));
                let mut again: Vec<Leaf<'_>> = overflowed.iter().map(|leaf| self.leaf(*leaf, *first)).collect();
                let encoded = self.encode(&mut again, &properties, *rows, &|_| {})?;
                overflowed.into_iter().zip(encoded).for_each(|(leaf, chunk)| chunks[leaf] = chunk);
            }
            let mut group = writer.next_row_group().map_err(failed)?;
            for chunk in chunks {
                let (bytes, closed) = chunk.into_parts();
                group.append_column(&bytes, closed).map_err(failed)?;
            }
            group.close().map_err(failed)?;
        }
        // The end is held back until it is verified: without it the output is not a Parquet file.
        writer.flush().map_err(|error| failed(error.into()))?;
        writer.inner_mut().held = Some(Vec::new());
        let mut out = writer.into_inner().map_err(failed)?;
        let end = out.held.take().unwrap_or_default();
        if let Some(reason) = self.is_lost(&end, row_groups.len()) {
            return Err(FileError::write(
                to,
                format!("{reason}; this is an error of Millpond's, and nothing was written"),
            ));
        }
        out.write_all(&end).and_then(|()| out.flush()).map_err(|error| failed(error.into()))?;
        Ok((row_groups.len(), out.bytes))
    }

    /// First part of the old footer that the new one, at the end of `end`, has lost.
    fn is_lost(&self, end: &[u8], num_row_groups: usize) -> Option<String> {
        let unread = |error: &dyn std::fmt::Display| Some(format!("its new footer cannot be read: {error}"));
        let bytes = &end[..end.len().saturating_sub(TAIL)];
        let length = end[bytes.len()..].first_chunk().map_or(0, |length| u32::from_le_bytes(*length)) as usize;
        let bytes = &bytes[bytes.len().saturating_sub(length)..];
        let new = match Footer::read(bytes) {
            Ok(new) => new,
            Err(error) => return unread(&error),
        };
        let metadata = match ParquetMetaDataReader::decode_metadata(bytes) {
            Ok(metadata) => metadata,
            Err(error) => return unread(&error),
        };
        let groups = metadata.row_groups();
        let rows: i64 = groups.iter().map(|group| group.num_rows()).sum();
        if groups.len() != num_row_groups || rows as u64 != self.opened.rows() {
            return Some(format!("it has {rows} rows in {} row groups", groups.len()));
        }
        match self.opened.footer() {
            Ok(old) => old.lost_in(&new, &self.types.converted()),
            Err(error) => Some(error.to_string()),
        }
    }

    fn properties(&self, hints: &[Hint]) -> WriterProperties {
        let pairs = self.opened.metadata.file_metadata().key_value_metadata().cloned();
        writer_properties(&self.types.schema, self.options.codec, self.options.row_group_rows, hints)
            .set_key_value_metadata(pairs)
            .set_sorting_columns((!self.sorting.is_empty()).then(|| self.sorting.clone()))
            .build()
    }

    /// Leaf column `leaf` from row `first` on.
    fn leaf(&self, leaf: usize, first: u64) -> Leaf<'a> {
        Leaf::at(self.opened, leaf, self.types.becomes[leaf], first)
    }

    /// Hints for each leaf column from its first rows.
    fn hints(&self) -> Result<Vec<Hint>, FileError> {
        let rows = self.options.row_group_rows.min(PROBED_ROWS).min(self.opened.rows() as usize);
        let mut leaves: Vec<Leaf<'_>> = (0..self.types.becomes.len()).map(|leaf| self.leaf(leaf, 0)).collect();
        let mut hints = each(&mut leaves, |leaf| leaf.hint(rows, &|| self.options.go_on()))?;
        let groups = self.opened.metadata.row_groups();
        for (leaf, hint) in hints.iter_mut().enumerate() {
            hint.bloom_filter = groups.iter().any(|group| group.column(leaf).bloom_filter_offset().is_some());
            hint.plain = self.types.dictionaries[leaf];
        }
        Ok(hints)
    }

    /// The next row group of each of `leaves`, encoded.
    fn encode(
        &self,
        leaves: &mut [Leaf<'_>],
        properties: &Arc<WriterProperties>,
        rows: usize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Chunk>, FileError> {
        let done = Done { rows: AtomicUsize::new(0), columns: leaves.len(), told: Mutex::new(0), progress };
        each(leaves, |leaf| {
            let column = self.types.schema.column(leaf.index);
            leaf.encode(&column, properties, rows, &|| self.options.go_on(), &|rows| done.add(rows))
        })
    }
}

impl Options {
    fn go_on(&self) -> Result<(), FileError> {
        if self.stop.load(Ordering::Relaxed) { Err(FileError::Stopped) } else { Ok(()) }
    }
}

/// Does `work` for each of `jobs`, on as many threads as there are cores.
fn each<J: Send, T: Send>(
    jobs: &mut [J],
    work: impl Fn(&mut J) -> Result<T, FileError> + Sync,
) -> Result<Vec<T>, FileError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    // Wide columns take longest, and begin first where they come first; a free thread takes the next.
    let jobs: Vec<_> = jobs.iter_mut().map(|job| Mutex::new((job, None))).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut job = job.lock().unwrap_or_else(PoisonError::into_inner);
                    let done = work(job.0);
                    let has_failed = done.is_err();
                    job.1 = Some(done);
                    if has_failed {
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let results = jobs.into_iter().filter_map(|job| job.into_inner().unwrap_or_else(PoisonError::into_inner).1);
    // After an error some jobs were not begun; it is among the others.
    results.collect()
}

/// Counts what is written, and holds back what comes once `held` is there.
struct Held<W> {
    out: W,
    bytes: u64,
    held: Option<Vec<u8>>,
}

impl<W: Write> Write for Held<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(held) = &mut self.held {
            return held.write(bytes);
        }
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Rows are done when all columns have them: each column's rows count for its share.
struct Done<'a> {
    rows: AtomicUsize,
    columns: usize,
    told: Mutex<usize>,
    progress: &'a (dyn Fn(u64) + Sync),
}

impl Done<'_> {
    fn add(&self, rows: usize) {
        let whole = (self.rows.fetch_add(rows, Ordering::Relaxed) + rows) / self.columns.max(1);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if whole > *told {
            (self.progress)((whole - *told) as u64);
            *told = whole;
        }
    }
}
