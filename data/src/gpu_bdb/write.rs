//! Writes tables as folders of Parquet files: row groups in parallel, each file in order.
//!
//! ```text
//!   jobs    store_sales 0 │ store_sales 1 │ … │ web_sales 0 │ …          one job per row group, taken in this order
//!   thread  units ─► batches ─► encoded, compressed columns ─► wait for the previous group ─► append to the file
//!   file    DIR/store_sales/part-00000.parquet, renamed to its final name when complete
//! ```
//!
//! Same     the rows of each group depend on scale and options, so files are equal byte by byte for any number of
//!          threads.
//! Memory   one batch and one encoded group per thread.
//! Errors   the first error by job order stops all threads; finished files are kept, partial files are not.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

use super::{DEFAULT_SEED, DataSet, Format, GENERATOR_VERSION, Kind, Table};
use crate::parquet::{Counted, Values, device_layout};
use crate::{Codec, DataError, Files, NewFile, Replaced, WrittenFile};

/// Row count above which a table has several row groups at any scale, so that threads and pruning have work.
const SEVERAL_GROUPS_ABOVE: u64 = 20_000;
const SEVERAL_GROUPS: u64 = 4;
/// Approximate maximum size of a file in bytes.
const FILE_BYTES: u64 = 768 << 20;

/// Options of a generation.
#[derive(Debug, Clone)]
pub struct Options {
    /// From [`super::LEAST_SCALE`] to [`super::MOST_SCALE`]; 1 is about 1 GB of raw text.
    pub scale: f64,
    /// Output folder; created if missing.
    pub out: PathBuf,
    /// The tables to write.
    pub tables: Vec<Table>,
    /// Generator threads; 0 means one per core.
    pub threads: usize,
    pub codec: Codec,
    pub format: Format,
    /// Seed; another seed gives other rows with equal distributions.
    pub seed: u64,
    /// True to plant rows that keep queries non-empty at small scales.
    pub plants: bool,
    /// Rules for existing files.
    pub files: Arc<dyn Files>,
    /// Set by the caller to end the generation with [`DataError::Stopped`].
    pub stop: Arc<AtomicBool>,
}

impl Options {
    /// All tables at `scale` into `out`.
    pub fn new(scale: f64, out: impl Into<PathBuf>) -> Self {
        Self {
            scale,
            out: out.into(),
            tables: Table::ALL.to_vec(),
            threads: 0,
            codec: Codec::default(),
            format: Format::default(),
            seed: DEFAULT_SEED,
            plants: true,
            files: Arc::new(Replaced),
            stop: Arc::default(),
        }
    }
}

/// Writes the tables and returns one entry per file, in the order of `options.tables`.
///
/// `progress` is called from any thread with the table and the rows just encoded.
///
/// # Errors
/// [`DataError`]; finished files are kept, partial files are not.
pub fn generate(options: &Options, progress: &(dyn Fn(Table, u64) + Sync)) -> Result<Vec<WrittenFile>, DataError> {
    let data = DataSet::new(options.scale, options.seed, options.plants)?;
    crate::parquet::make_folder(&options.out)?;
    let mut files = Vec::new();
    let mut jobs = Vec::new();
    for (place, &table) in options.tables.iter().enumerate() {
        // A table that is listed twice is written once.
        if !options.tables[..place].contains(&table) {
            plan(&data, table, options, &mut files, &mut jobs)?;
        }
    }
    files.iter().try_for_each(|file| options.files.prepare(&file.path))?;
    let planned: Vec<&Path> = files.iter().map(|file| file.path.as_path()).collect();
    for &table in &options.tables {
        leftovers(&options.out.join(table.name()), &planned).iter().try_for_each(|path| removable(path))?;
    }
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|error| DataError::Threads { threads: options.threads, reason: error.to_string() })?;

    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failure: Mutex<Option<(usize, DataError)>> = Mutex::new(None);
    pool.broadcast(|_| {
        while !stop.load(Ordering::Relaxed) && !options.stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else { break };
            if let Err(error) = job.run(&data, options, &files[job.file], progress, &stop) {
                stop.store(true, Ordering::Relaxed);
                let mut first = failure.lock().unwrap_or_else(PoisonError::into_inner);
                if first.as_ref().is_none_or(|(other, _)| index < *other) {
                    *first = Some((index, error));
                }
            }
        }
    });
    if let Some((_, error)) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let written: Vec<WrittenFile> = files.into_iter().map(TableFile::finished).collect::<Result<_, _>>()?;
    let kept: Vec<&Path> = written.iter().map(|file| file.path.as_path()).collect();
    for &table in &options.tables {
        for path in leftovers(&options.out.join(table.name()), &kept) {
            fs::remove_file(&path).map_err(DataError::io(&path))?;
        }
    }
    Ok(written)
}

/// Rows of a full row group: narrow tables have more; reviews, which are long, fewer.
fn group_rows(table: Table) -> u64 {
    match table {
        Table::Inventory | Table::WebClickstreams => 1 << 22,
        Table::ProductReviews => 1 << 19,
        _ => 1 << 20,
    }
}

/// Approximate bytes of a row in a file, with Snappy.
fn row_bytes(table: Table) -> u64 {
    match table {
        Table::StoreSales | Table::StoreReturns => 65,
        Table::WebSales | Table::WebReturns => 95,
        Table::WebClickstreams => 6,
        Table::Inventory => 3,
        Table::ProductReviews => 465,
        _ => 100,
    }
}

/// Job for one row group of a file.
struct Job {
    table: Table,
    file: usize,
    group: usize,
    units: Range<u64>,
}

/// A file to which groups are appended.
struct TableFile {
    path: PathBuf,
    num_groups: usize,
    schema: SchemaRef,
    properties: WriterProperties,
    state: Mutex<FileState>,
}

enum FileState {
    Planned,
    Open(Box<OpenFile>),
    Finished(WrittenFile),
    /// Closed after an error; the failed job reports it.
    Broken,
}

struct OpenFile {
    writer: SerializedFileWriter<Counted<Box<dyn NewFile>>>,
    factory: Arc<ArrowRowGroupWriterFactory>,
    /// Encoded groups that wait for an earlier group.
    waiting: BTreeMap<usize, Vec<ArrowColumnChunk>>,
    next: usize,
}

/// Adds the files of a table, and one job per row group.
fn plan(
    data: &DataSet,
    table: Table,
    options: &Options,
    files: &mut Vec<TableFile>,
    jobs: &mut Vec<Job>,
) -> Result<(), DataError> {
    let folder = options.out.join(table.name());
    crate::parquet::make_folder(&folder)?;
    let rows = data.approximate_rows(table);
    let least = if rows > SEVERAL_GROUPS_ABOVE { SEVERAL_GROUPS } else { 1 };
    let num_groups = rows.div_ceil(group_rows(table)).max(least);
    let per_file = (FILE_BYTES / (rows.div_ceil(num_groups) * row_bytes(table)).max(1)).max(1);
    let schema = data.schema(table, options.format);
    let properties = properties(table, &schema, options);
    let units = data.num_units(table);
    for group in 0..num_groups {
        let in_file = group % per_file;
        if in_file == 0 {
            files.push(TableFile {
                path: folder.join(part_name(group / per_file)),
                num_groups: per_file.min(num_groups - group) as usize,
                schema: schema.clone(),
                properties: properties.clone(),
                state: Mutex::new(FileState::Planned),
            });
        }
        let first = |group: u64| (u128::from(units) * u128::from(group) / u128::from(num_groups)) as u64;
        let units = first(group)..first(group + 1);
        jobs.push(Job { table, file: files.len() - 1, group: in_file as usize, units });
    }
    Ok(())
}

fn part_name(index: u64) -> String {
    format!("part-{index:05}.parquet")
}

fn properties(table: Table, schema: &SchemaRef, options: &Options) -> WriterProperties {
    let entry = |key: &str, value: String| KeyValue::new(format!("millpond.{key}"), value);
    let metadata = vec![
        entry("suite", "gpu-bdb".to_string()),
        entry("scale", options.scale.to_string()),
        entry("seed", options.seed.to_string()),
        entry("generator_version", GENERATOR_VERSION.to_string()),
        entry("plants", options.plants.to_string()),
    ];
    let columns = table.columns();
    let is_prose = |name: &str| columns.iter().any(|column| column.name == name && column.kind == Kind::Prose);
    let values = |name: &str| match name {
        // Keys count the rows.
        key if table.primary_key() == Some(key) => Values::Sorted,
        prose if is_prose(prose) => Values::Many,
        _ => Values::Few,
    };
    device_layout(schema, options.codec, values).set_key_value_metadata(Some(metadata)).build()
}

impl Job {
    fn run(
        &self,
        data: &DataSet,
        options: &Options,
        file: &TableFile,
        progress: &(dyn Fn(Table, u64) + Sync),
        stop: &AtomicBool,
    ) -> Result<(), DataError> {
        let error = |source| DataError::Parquet { path: file.path.clone(), source };
        let factory = file.factory(&*options.files)?;
        let mut writers = factory.create_column_writers(self.group).map_err(error)?;
        let mut encode = |batch: RecordBatch| {
            if stop.load(Ordering::Relaxed) || options.stop.load(Ordering::Relaxed) {
                return Err(DataError::Stopped);
            }
            for ((field, column), writer) in batch.schema_ref().fields().iter().zip(batch.columns()).zip(&mut writers) {
                for leaf in compute_leaves(field, column).map_err(error)? {
                    writer.write(&leaf).map_err(error)?;
                }
            }
            progress(self.table, batch.num_rows() as u64);
            Ok(())
        };
        match data.rows(self.table, self.units.clone(), options.format, &mut encode) {
            // Another job failed and reports its error, or the caller stopped all jobs.
            Err(DataError::Stopped) => return Ok(()),
            result => result?,
        }
        let chunks = writers.into_iter().map(|writer| writer.close()).collect::<Result<_, _>>().map_err(error)?;
        file.append(self.group, chunks)
    }
}

impl TableFile {
    /// Opens the file unless it is open; returns the factory of its column writers.
    fn factory(&self, files: &dyn Files) -> Result<Arc<ArrowRowGroupWriterFactory>, DataError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, FileState::Planned) {
            *state = FileState::Open(Box::new(self.open(files)?));
        }
        match &*state {
            FileState::Open(open) => Ok(open.factory.clone()),
            _ => Err(DataError::Stopped),
        }
    }

    fn open(&self, files: &dyn Files) -> Result<OpenFile, DataError> {
        let file = Counted { out: files.create(&self.path)?, bytes: 0 };
        let (writer, factory) = ArrowWriter::try_new(file, self.schema.clone(), Some(self.properties.clone()))
            .and_then(ArrowWriter::into_serialized_writer)
            .map_err(|source| self.parquet_error(source))?;
        Ok(OpenFile { writer, factory: Arc::new(factory), waiting: BTreeMap::new(), next: 0 })
    }

    /// Appends a group, and the groups that waited for it; the last group finishes the file.
    fn append(&self, group: usize, chunks: Vec<ArrowColumnChunk>) -> Result<(), DataError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let FileState::Open(open) = &mut *state else { return Ok(()) };
        open.waiting.insert(group, chunks);
        let written = open.write_waiting().map_err(|source| self.parquet_error(source));
        let whole = open.next == self.num_groups;
        if written.is_ok() && !whole {
            return Ok(());
        }
        let FileState::Open(open) = std::mem::replace(&mut *state, FileState::Broken) else { return Ok(()) };
        written?;
        *state = FileState::Finished(self.finish(*open)?);
        Ok(())
    }

    fn finish(&self, open: OpenFile) -> Result<WrittenFile, DataError> {
        let num_rows = open.writer.flushed_row_groups().iter().map(|group| group.num_rows() as u64).sum();
        let Counted { out, bytes } = open.writer.into_inner().map_err(|source| self.parquet_error(source))?;
        out.commit()?;
        Ok(WrittenFile { path: self.path.clone(), num_rows, num_row_groups: self.num_groups, bytes })
    }

    fn parquet_error(&self, source: ParquetError) -> DataError {
        DataError::Parquet { path: self.path.clone(), source }
    }

    fn finished(self) -> Result<WrittenFile, DataError> {
        match self.state.into_inner().unwrap_or_else(PoisonError::into_inner) {
            FileState::Finished(written) => Ok(written),
            _ => Err(DataError::Stopped),
        }
    }
}

impl OpenFile {
    fn write_waiting(&mut self) -> Result<(), ParquetError> {
        while let Some(chunks) = self.waiting.remove(&self.next) {
            let mut group = self.writer.next_row_group()?;
            for chunk in chunks {
                chunk.append_to_row_group(&mut group)?;
            }
            group.close()?;
            self.next += 1;
        }
        Ok(())
    }
}

/// Parts left by an earlier, larger generation. They are removed: a table consists of all files in its folder.
fn leftovers(folder: &Path, kept: &[&Path]) -> Vec<PathBuf> {
    let parts = (0..).map(|index| folder.join(part_name(index)));
    let is_kept = |path: &PathBuf| kept.contains(&path.as_path());
    parts.take_while(|path| is_kept(path) || path.exists()).filter(|path| !is_kept(path)).collect()
}

/// # Errors
/// [`DataError::Io`] for a leftover that is not a file, or is read-only.
fn removable(path: &Path) -> Result<(), DataError> {
    let metadata = fs::metadata(path).map_err(DataError::io(path))?;
    if !metadata.is_file() {
        return Err(DataError::io(path)(std::io::Error::other("it is no file, and would be a part of the table")));
    }
    fs::OpenOptions::new().write(true).open(path).map_err(DataError::io(path)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_tables_become_several_files_whose_groups_cover_every_unit_once() {
        let folder = tempfile::tempdir().expect("folder");
        let options = Options::new(1_000.0, folder.path());
        let data = DataSet::new(options.scale, options.seed, options.plants).expect("data");
        for table in Table::ALL {
            let (mut files, mut jobs) = (Vec::new(), Vec::new());
            plan(&data, table, &options, &mut files, &mut jobs).expect("folders");
            let mut next = 0;
            for job in &jobs {
                assert_eq!(job.units.start, next, "{}", table.name());
                next = job.units.end;
            }
            assert_eq!(next, data.num_units(table), "{}", table.name());
            assert_eq!(files.iter().map(|file| file.num_groups).sum::<usize>(), jobs.len());
            let places: Vec<_> = jobs.iter().map(|job| (job.file, job.group)).collect();
            let expected = files
                .iter()
                .enumerate()
                .flat_map(|(file, planned)| (0..planned.num_groups).map(move |group| (file, group)));
            assert!(expected.eq(places), "{}", table.name());
            let large =
                matches!(table, Table::StoreSales | Table::WebSales | Table::WebClickstreams | Table::Inventory);
            assert_eq!(files.len() > 10, large, "{} has {} files", table.name(), files.len());
            assert!(files.iter().map(|file| &file.path).is_sorted(), "names sort like the rows");
        }
    }
}
