//! Writes Parquet files again in the layout that a device reads fast.
//!
//! ```text
//!   file ─► probe the first rows ─► hints ─► [ row group: each column read and encoded by a thread ] … ─► temporary ─► rename
//!                                                       └─ a dictionary overflowed? once more, without one
//! ```
//!
//! Rows      are the same, in the same order; the Arrow schema and the key-value metadata stay. Decimals up to 18 digits become
//!           integers, INT96 becomes a timestamp of nanoseconds. Bloom filters are made anew; sorting columns are not noted.
//! Memory    a row group encoded, and a batch of each column at work.
//! Threads   one for each column at a time, as many as there are cores.
//! Files     one output for each input. A file appears when it is complete; none is replaced unless that is asked for.

mod layout;
mod probe;

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, RecordBatchReader};
use arrow::datatypes::{FieldRef, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::arrow::arrow_writer::{
    ArrowColumnChunk, ArrowColumnWriter, ArrowRowGroupWriterFactory, ArrowWriter, ArrowWriterOptions, compute_leaves,
};
use parquet::arrow::{ARROW_SCHEMA_META_KEY, ArrowSchemaConverter};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::SchemaDescriptor;

use crate::file::{FileError, Opened, Positioned, list, plain, reason_of};
use crate::statistics::is_all_dictionary;

pub use layout::{Codec, DICTIONARY_BYTES, Hint, PAGE_ROWS, ROW_GROUP_ROWS, STORED_ABOVE, writer_properties};
use probe::Probe;

/// Rows of a batch, where rows are short.
const BATCH_ROWS: usize = PAGE_ROWS;
/// Rows of a batch, where a row of a column has more than [`LONG_ROW_BYTES`].
const BATCH_OF_LONG_ROWS: usize = 1_024;
const LONG_ROW_BYTES: u64 = 4 << 10;
/// Rows that a probe looks at, at most.
const PROBED_ROWS: usize = 1 << 20;

/// Row groups may have so many rows.
pub const ROW_GROUP_ROWS_RANGE: std::ops::RangeInclusive<usize> = 1_024..=16 << 20;

/// How files are written.
#[derive(Debug, Clone)]
pub struct Options {
    pub codec: Codec,
    /// Rows of a row group, within [`ROW_GROUP_ROWS_RANGE`].
    pub row_group_rows: usize,
    /// Replace files that exist.
    pub force: bool,
    /// Ends the work when it is set. The files that are complete by then stay.
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
}

/// Is told how many rows were written since the last call, and how many there are in all.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Writes the file `from`, or the files below the folder that it is, to the file or folder `to`.
///
/// # Errors
/// [`FileError::Option`] of options that cannot be, [`FileError::Exists`] before anything is written, and those of reading and
/// writing. Files that were written before an error stay.
pub fn rewrite(from: &Path, to: &Path, options: &Options, progress: Progress<'_>) -> Result<Vec<Written>, FileError> {
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
    if let Some((_, path)) = files.iter().find(|(_, path)| !options.force && path.symlink_metadata().is_ok()) {
        return Err(FileError::Exists { path: path.clone() });
    }
    // All footers are read first: a bad file is found before the work of hours.
    let files: Vec<_> =
        files.into_iter().map(|(from, to)| Ok((Opened::open(&from, false)?, to))).collect::<Result<_, _>>()?;
    let num_rows = files.iter().map(|(file, _)| file.rows()).sum();
    progress(0, num_rows);
    let of_all = |rows| progress(rows, num_rows);
    files.iter().map(|(file, to)| File::open(file, options)?.write(to, &of_all)).collect()
}

/// Each input with its output.
fn pairs(from: &Path, to: &Path) -> Result<Vec<(PathBuf, PathBuf)>, FileError> {
    let files = list(from)?;
    if !from.is_dir() {
        let to = match (to.is_dir(), from.file_name()) {
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
    reader: ArrowReaderMetadata,
    schema: SchemaRef,
    /// The schema as it is written.
    descriptor: SchemaDescriptor,
}

/// A top-level column: its rows as they come, and its leaf columns.
struct Root {
    index: usize,
    field: FieldRef,
    leaves: Range<usize>,
    reader: ParquetRecordBatchReader,
    /// Rows that belong to the next row group.
    rest: Option<ArrayRef>,
}

impl<'a> File<'a> {
    fn open(opened: &'a Opened, options: &'a Options) -> Result<Self, FileError> {
        let refused = |error: ParquetError| FileError::read(&opened.path, plain(&error));
        let reader =
            ArrowReaderMetadata::try_new(Arc::clone(&opened.metadata), ArrowReaderOptions::new()).map_err(refused)?;
        let schema = Arc::clone(reader.schema());
        if schema.fields().is_empty() {
            return Err(FileError::read(&opened.path, "it has no columns"));
        }
        let descriptor = ArrowSchemaConverter::new().convert(&schema).map_err(refused)?;
        Ok(Self { opened, options, reader, schema, descriptor })
    }

    /// Writes it to `to`, which appears when it is complete.
    fn write(&self, to: &Path, progress: &(dyn Fn(u64) + Sync)) -> Result<Written, FileError> {
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let failed = |error: io::Error| FileError::write(to, reason_of(&error));
        fs::create_dir_all(folder).map_err(failed)?;
        // Tables over the folder skip names that end so.
        let mut builder = tempfile::Builder::new();
        builder.prefix(".millpond-").suffix("#1").permissions(Permissions::from_mode(0o666));
        let partial = builder.tempfile_in(folder).map_err(failed)?;
        let num_row_groups = self.write_to(partial.as_file(), to, progress)?;
        // A rename must not reach the disk before the bytes do.
        partial.as_file().sync_all().map_err(failed)?;
        if self.options.force {
            partial.persist(to).map_err(|error| failed(error.error))?;
        } else {
            partial.persist_noclobber(to).map_err(|error| match error.error.kind() {
                io::ErrorKind::AlreadyExists => FileError::Exists { path: to.to_path_buf() },
                _ => failed(error.error),
            })?;
        }
        Ok(Written {
            from: self.opened.path.clone(),
            path: to.to_path_buf(),
            num_rows: self.opened.rows(),
            num_row_groups,
            bytes_before: self.opened.file.length,
            bytes: fs::metadata(to).map_err(failed)?.len(),
        })
    }

    /// Writes it to `out`. Returns how many row groups there are.
    fn write_to(&self, out: impl Write + Send, to: &Path, progress: &(dyn Fn(u64) + Sync)) -> Result<usize, FileError> {
        let failed = |error: ParquetError| FileError::write(to, plain(&error));
        let mut hints = self.hints()?;
        let options = ArrowWriterOptions::new().with_properties(self.properties(&hints));
        let writer = ArrowWriter::try_new_with_options(out, Arc::clone(&self.schema), options).map_err(failed)?;
        let (mut writer, mut factory) = writer.into_serialized_writer().map_err(failed)?;
        let mut roots = self.roots()?;
        let (rows, most) = (self.opened.rows(), self.options.row_group_rows as u64);
        let mut num_row_groups = 0;
        for first in (0..rows).step_by(self.options.row_group_rows) {
            let group_rows = most.min(rows - first) as usize;
            let mut columns = self.encode(&factory, &mut roots, group_rows, num_row_groups, progress)?;
            let overflowed: Vec<usize> = columns.iter().flatten().enumerate().filter_map(mixed).collect();
            if !overflowed.is_empty() {
                // Once more, and from now on without a dictionary.
                overflowed.iter().for_each(|leaf| hints[*leaf].dictionary = Some(false));
                factory = self.factory(&hints)?;
                let again = |root: &&Root| overflowed.iter().any(|leaf| root.leaves.contains(leaf));
                let indices: Vec<usize> = roots.iter().filter(again).map(|root| root.index).collect();
                let mut again = indices.iter().map(|index| self.root(*index, first)).collect::<Result<Vec<_>, _>>()?;
                let encoded = self.encode(&factory, &mut again, group_rows, num_row_groups, &|_| {})?;
                indices.into_iter().zip(encoded).for_each(|(index, chunks)| columns[index] = chunks);
            }
            let mut group = writer.next_row_group().map_err(failed)?;
            for chunk in columns.into_iter().flatten() {
                chunk.append_to_row_group(&mut group).map_err(failed)?;
            }
            group.close().map_err(failed)?;
            num_row_groups += 1;
        }
        writer.close().map_err(failed)?;
        Ok(num_row_groups)
    }

    fn properties(&self, hints: &[Hint]) -> WriterProperties {
        let is_ours = |pair: &&KeyValue| pair.key == ARROW_SCHEMA_META_KEY;
        let pairs = self.opened.metadata.file_metadata().key_value_metadata();
        let pairs: Vec<KeyValue> = pairs.into_iter().flatten().filter(|pair| !is_ours(pair)).cloned().collect();
        writer_properties(&self.descriptor, self.options.codec, self.options.row_group_rows, hints)
            .set_key_value_metadata((!pairs.is_empty()).then_some(pairs))
            .build()
    }

    /// Makes writers of columns that follow `hints`, for the file that is open.
    fn factory(&self, hints: &[Hint]) -> Result<ArrowRowGroupWriterFactory, FileError> {
        let refused = |error: ParquetError| FileError::read(&self.opened.path, plain(&error));
        let properties = Arc::new(self.properties(hints));
        let nowhere = SerializedFileWriter::new(io::sink(), self.descriptor.root_schema_ptr(), properties);
        Ok(ArrowRowGroupWriterFactory::new(&nowhere.map_err(refused)?, Arc::clone(&self.schema)))
    }

    fn roots(&self) -> Result<Vec<Root>, FileError> {
        (0..self.schema.fields().len()).map(|index| self.root(index, 0)).collect()
    }

    /// Top-level column `index` from row `first` on.
    fn root(&self, index: usize, first: u64) -> Result<Root, FileError> {
        let refused = |error: ParquetError| FileError::read(&self.opened.path, plain(&error));
        let metadata = &self.opened.metadata;
        let from = metadata.file_metadata().schema_descr();
        let leaves: Vec<usize> =
            (0..from.num_columns()).filter(|leaf| from.get_column_root_idx(*leaf) == index).collect();
        let raw = metadata.row_groups().iter().flat_map(|group| leaves.iter().map(|leaf| group.column(*leaf)));
        let raw: u64 = raw.map(|chunk| chunk.uncompressed_size().max(0) as u64).sum();
        let is_long = raw / self.opened.rows().max(1) > LONG_ROW_BYTES;
        let (mut skipped, mut groups) = (0_u64, 0..metadata.num_row_groups());
        for group in metadata.row_groups() {
            if skipped + group.num_rows() as u64 > first {
                break;
            }
            skipped += group.num_rows() as u64;
            groups.start += 1;
        }
        let builder: ParquetRecordBatchReaderBuilder<Positioned> =
            ParquetRecordBatchReaderBuilder::new_with_metadata(self.opened.file.clone(), self.reader.clone());
        let reader = builder
            .with_projection(ProjectionMask::roots(from, [index]))
            .with_row_groups(groups.collect())
            .with_offset((first - skipped) as usize)
            .with_batch_size(if is_long { BATCH_OF_LONG_ROWS } else { BATCH_ROWS })
            .build()
            .map_err(refused)?;
        let written =
            (0..self.descriptor.num_columns()).filter(|leaf| self.descriptor.get_column_root_idx(*leaf) == index);
        let written: Vec<usize> = written.collect();
        let leaves = written.first().copied().unwrap_or(0)..written.last().map_or(0, |last| last + 1);
        let field = reader.schema().fields().first().map(Arc::clone);
        let field = field.ok_or_else(|| FileError::read(&self.opened.path, "a column has no type"))?;
        Ok(Root { index, field, leaves, reader, rest: None })
    }

    /// What the first rows show of each leaf column.
    fn hints(&self) -> Result<Vec<Hint>, FileError> {
        let mut roots = self.roots()?;
        let probed = self.each(&mut roots, |root| {
            let Some(mut probe) = Probe::new(root.field.data_type()) else { return Ok(None) };
            let mut rows = self.options.row_group_rows.min(PROBED_ROWS).min(self.opened.rows() as usize);
            while rows > 0 {
                self.go_on()?;
                let array = self.next(root, rows)?;
                rows -= array.len();
                let more = probe.see(&array).map_err(|error| FileError::read(&self.opened.path, error.to_string()))?;
                if !more {
                    break;
                }
            }
            Ok(Some(probe.hint()))
        })?;
        let mut hints = vec![Hint::default(); self.descriptor.num_columns()];
        for (root, hint) in roots.iter().zip(probed) {
            if let ([at], Some(hint)) = (&mut hints[root.leaves.clone()], hint) {
                *at = hint;
            }
        }
        let groups = self.opened.metadata.row_groups();
        let is_same = self.opened.metadata.file_metadata().schema_descr().num_columns() == hints.len();
        for (leaf, hint) in hints.iter_mut().enumerate().filter(|_| is_same) {
            hint.bloom_filter = groups.iter().any(|group| group.column(leaf).bloom_filter_offset().is_some());
        }
        Ok(hints)
    }

    /// The next row group of each of `roots`, encoded: the chunks of its leaf columns.
    fn encode(
        &self,
        factory: &ArrowRowGroupWriterFactory,
        roots: &mut [Root],
        rows: usize,
        group: usize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Vec<ArrowColumnChunk>>, FileError> {
        let refused = |error: ParquetError| FileError::read(&self.opened.path, plain(&error));
        let writers = factory.create_column_writers(group).map_err(refused)?;
        let writers: Vec<Mutex<Option<ArrowColumnWriter>>> =
            writers.into_iter().map(|writer| Mutex::new(Some(writer))).collect();
        let done = Done { rows: AtomicUsize::new(0), columns: roots.len(), told: Mutex::new(0), progress };
        self.each(roots, |root| {
            let taken = writers[root.leaves.clone()].iter();
            let mut writers: Vec<ArrowColumnWriter> =
                taken.filter_map(|writer| writer.lock().unwrap_or_else(PoisonError::into_inner).take()).collect();
            let mut left = rows;
            while left > 0 {
                self.go_on()?;
                // A batch ends where a page does, so that pages have the same rows whatever row groups the input has.
                let array = self.next(root, left.min(PAGE_ROWS - (rows - left) % PAGE_ROWS))?;
                let leaves = compute_leaves(&root.field, &array).map_err(refused)?;
                for (writer, leaf) in writers.iter_mut().zip(&leaves) {
                    writer.write(leaf).map_err(refused)?;
                }
                left -= array.len();
                done.add(array.len());
            }
            writers.into_iter().map(|writer| writer.close().map_err(refused)).collect()
        })
    }

    /// The next rows of a column, `most` at most.
    fn next(&self, root: &mut Root, most: usize) -> Result<ArrayRef, FileError> {
        let refused = |reason: String| FileError::read(&self.opened.path, reason);
        let array = match root.rest.take() {
            Some(rest) => rest,
            None => match root.reader.next() {
                Some(Ok(batch)) => Arc::clone(batch.column(0)),
                Some(Err(error)) => {
                    let text = error.to_string();
                    let text = text.strip_prefix("Parquet argument error: ").unwrap_or(&text);
                    return Err(refused(text.strip_prefix("Parquet error: ").unwrap_or(text).to_string()));
                }
                None => return Err(refused(format!("column {} has fewer rows than the file", root.field.name()))),
            },
        };
        if array.len() <= most {
            return Ok(array);
        }
        root.rest = Some(array.slice(most, array.len() - most));
        Ok(array.slice(0, most))
    }

    /// Does `work` for each of `roots`, on as many threads as there are cores.
    fn each<T: Send>(
        &self,
        roots: &mut [Root],
        work: impl Fn(&mut Root) -> Result<T, FileError> + Sync,
    ) -> Result<Vec<T>, FileError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(roots.len());
        // Wide columns take longest, and begin first where they come first; who is free takes the next.
        let jobs: Vec<_> = roots.iter_mut().map(|root| Mutex::new((root, None))).collect();
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
        // After an error some columns were not begun; it is among the others.
        results.collect()
    }

    fn go_on(&self) -> Result<(), FileError> {
        if self.options.stop.load(Ordering::Relaxed) { Err(FileError::Stopped) } else { Ok(()) }
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

/// The number of a column whose dictionary was given up in mid-chunk.
fn mixed((leaf, chunk): (usize, &ArrowColumnChunk)) -> Option<usize> {
    let metadata = &chunk.close().metadata;
    (metadata.dictionary_page_offset().is_some() && !is_all_dictionary(metadata)).then_some(leaf)
}
