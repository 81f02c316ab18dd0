//! Reports which parts of a Parquet layout limit a scan on a device, their cost, and the remedy.
//!
//! ```text
//!   footers ──► codecs, statistics, types, sizes ─┐
//!   page headers ──► pages, their encodings ──────┴─► a report per file ─► tables ─► findings, the costliest first
//! ```
//!
//! Tables    files with the same columns count as one table: their pages are decoded together, their findings reported
//!           once.
//! Cost      seconds of a scan of all columns, estimated from the constants of [`cost`].
//! Reads     every byte of the files, because page headers lie between pages; with [`Options::footers_only`] only
//!           footers.
//! Errors    a file that cannot be read, or whose pages are not what its footer says, is an error that names the file.

pub mod cost;
mod findings;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::{DataType, Schema};
use parquet::arrow::parquet_to_arrow_schema;
use parquet::basic::{CompressionCodec, Encoding, Type as Physical};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::OffsetIndexMetaData;

use crate::conversion::Conversion;
use crate::error::PageError;
use crate::file::{FileError, Opened, list, plain};
use crate::pages::{Page, Pages, walk};
use crate::rewrite::STORED_ABOVE;
use crate::statistics::is_all_dictionary;

pub use cost::Estimate;
pub use findings::{Finding, FindingKind, WayOut};
pub use text::{MOST_FINDINGS, ReportText};

/// Options of a check.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Do not read page headers.
    pub footers_only: bool,
    /// Cancels the check when set.
    pub stop: Arc<AtomicBool>,
}

/// Result of a check.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    pub files: Vec<FileReport>,
    pub tables: Vec<TableReport>,
    /// Findings of all tables, the costliest first.
    pub findings: Vec<Finding>,
}

/// A file, described by its footer and pages.
#[derive(Debug, Clone, PartialEq)]
pub struct FileReport {
    pub path: PathBuf,
    pub bytes: u64,
    pub rows: u64,
    pub row_groups: u64,
    /// Rows of the largest row group.
    pub most_group_rows: u64,
    pub created_by: Option<String>,
    pub columns: Vec<ColumnReport>,
    pub estimate: Estimate,
}

/// Files with the same columns.
#[derive(Debug, Clone, PartialEq)]
pub struct TableReport {
    /// Name of the file, or of the folder of the first file.
    pub name: String,
    pub files: u64,
    pub bytes: u64,
    pub rows: u64,
    pub row_groups: u64,
    /// Row groups in files that have more than one.
    pub groups_of_several: u64,
    pub rows_of_several: u64,
    pub most_group_rows: u64,
    pub columns: Vec<ColumnReport>,
    pub estimate: Estimate,
}

/// A leaf column, in one file or in all of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnReport {
    pub name: String,
    /// Physical type in the file, such as `INT64`.
    pub physical: String,
    /// Type after reading, such as `Decimal128(15, 2)`.
    pub data_type: String,
    /// Reason why the device does not read the column; `None` if it does.
    pub host_reason: Option<String>,
    pub is_text: bool,
    pub is_integer: bool,
    pub rows: u64,
    pub chunks: u64,
    pub compressed_bytes: u64,
    pub raw_bytes: u64,
    pub codecs: BTreeSet<String>,
    /// Number of data pages; `None` if headers were not read and no page index counts the pages.
    pub pages: Option<u64>,
    /// Number of data pages by encoding, or of chunks if page headers were not read.
    pub encodings: BTreeMap<String, u64>,
    /// Chunks whose writer abandoned the dictionary before the end.
    pub mixed_chunks: u64,
    /// Raw bytes of chunks in codecs that the host decompresses, and the codecs.
    pub host_codec_raw_bytes: u64,
    pub host_codec_bytes: u64,
    pub host_codecs: BTreeSet<String>,
    /// Bytes that a device has to decompress.
    pub device_compressed_bytes: u64,
    /// Bytes of compressed data pages that are hardly smaller than raw ones.
    pub hardly_compressed_bytes: u64,
    /// Raw bytes of chunks with pages that only the host decodes, and why.
    pub host_page_raw_bytes: u64,
    pub host_page_bytes: u64,
    pub host_page_reasons: BTreeSet<String>,
    pub chunks_without_statistics: u64,
    pub chunks_without_null_count: u64,
    pub chunks_without_page_index: u64,
    pub is_int96: bool,
    /// Bytes of each value of a decimal up to 18 digits that is not an integer in the file.
    pub decimal_bytes: Option<u32>,
    /// Seconds of the host for its codecs.
    pub(crate) host_decompression: f64,
}

impl ColumnReport {
    pub fn is_read_by_device(&self) -> bool {
        self.host_reason.is_none()
    }

    /// Bytes copied over the link: chunks decompressed on the host count with their raw size.
    fn device_bytes(&self) -> u64 {
        self.compressed_bytes - self.host_codec_bytes.min(self.compressed_bytes) + self.host_codec_raw_bytes
    }

    /// Number of pages; an estimate if it is unknown.
    fn likely_pages(&self) -> u64 {
        self.pages.unwrap_or_else(|| self.rows.div_ceil(20_000).max(self.chunks))
    }

    fn merge(&mut self, other: &Self) {
        self.host_reason = self.host_reason.take().or_else(|| other.host_reason.clone());
        self.rows += other.rows;
        self.chunks += other.chunks;
        self.compressed_bytes += other.compressed_bytes;
        self.raw_bytes += other.raw_bytes;
        self.codecs.extend(other.codecs.iter().cloned());
        self.pages = self.pages.zip(other.pages).map(|(pages, more)| pages + more);
        for (encoding, count) in &other.encodings {
            *self.encodings.entry(encoding.clone()).or_default() += count;
        }
        self.mixed_chunks += other.mixed_chunks;
        self.host_codec_raw_bytes += other.host_codec_raw_bytes;
        self.host_codec_bytes += other.host_codec_bytes;
        self.host_codecs.extend(other.host_codecs.iter().cloned());
        self.device_compressed_bytes += other.device_compressed_bytes;
        self.hardly_compressed_bytes += other.hardly_compressed_bytes;
        self.host_page_raw_bytes += other.host_page_raw_bytes;
        self.host_page_bytes += other.host_page_bytes;
        self.host_page_reasons.extend(other.host_page_reasons.iter().cloned());
        self.chunks_without_statistics += other.chunks_without_statistics;
        self.chunks_without_null_count += other.chunks_without_null_count;
        self.chunks_without_page_index += other.chunks_without_page_index;
        self.decimal_bytes = self.decimal_bytes.max(other.decimal_bytes);
        self.host_decompression += other.host_decompression;
    }
}

/// Checks the file `path`, or all files below the folder `path`. `progress` receives the bytes inspected since its last
/// call, and the total.
///
/// # Errors
/// [`FileError`] of the first file that cannot be read.
pub fn check(path: &Path, options: &Options, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Report, FileError> {
    let mut opened = Vec::new();
    for file in list(path)? {
        go_on(options)?;
        opened.push(Opened::open(&file, options.footers_only)?);
    }
    let mut files = opened.iter().map(begin).collect::<Result<Vec<_>, _>>()?;
    // One job per chunk, because files may be large or many.
    let jobs: Vec<Job> = opened.iter().enumerate().flat_map(|(file, opened)| Job::of(file, opened)).collect();
    let total: u64 = jobs.iter().map(|job| job.bytes).sum();
    progress(0, total);
    let found: Vec<Mutex<Option<Result<Chunk, FileError>>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len()).min(8);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(index) else { break };
                    let chunk = go_on(options).and_then(|()| look(&opened[job.file], job, options.footers_only));
                    if chunk.is_err() {
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                    *found[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(chunk);
                    progress(job.bytes, total);
                }
            });
        }
    });
    for (job, found) in jobs.iter().zip(found) {
        if let Some(chunk) = found.into_inner().unwrap_or_else(PoisonError::into_inner) {
            chunk?.add_to(&mut files[job.file].columns[job.column]);
        }
    }
    for file in &mut files {
        file.estimate = Estimate::of(&file.columns, file.rows);
    }
    let tables = tables(&files);
    let mut findings: Vec<Finding> = tables.iter().flat_map(findings::of).collect();
    findings.sort_by(|one, other| other.seconds.unwrap_or(0.0).total_cmp(&one.seconds.unwrap_or(0.0)));
    Ok(Report { files, tables, findings })
}

fn go_on(options: &Options) -> Result<(), FileError> {
    if options.stop.load(Ordering::Relaxed) { Err(FileError::Stopped) } else { Ok(()) }
}

/// A column chunk to inspect.
struct Job {
    file: usize,
    group: usize,
    column: usize,
    bytes: u64,
}

impl Job {
    fn of(file: usize, opened: &Opened) -> impl Iterator<Item = Self> + '_ {
        opened.metadata.row_groups().iter().enumerate().flat_map(move |(group, row_group)| {
            let of_column = move |(column, chunk): (usize, &ColumnChunkMetaData)| Self {
                file,
                group,
                column,
                bytes: chunk.compressed_size().max(0) as u64,
            };
            row_group.columns().iter().enumerate().map(of_column)
        })
    }
}

/// Report of a file and its columns from the footer alone, before any chunk is inspected.
fn begin(opened: &Opened) -> Result<FileReport, FileError> {
    let metadata = opened.metadata.file_metadata();
    let schema = metadata.schema_descr();
    let arrow: Schema = parquet_to_arrow_schema(schema, metadata.key_value_metadata())
        .map_err(|error| FileError::read(&opened.path, plain(&error)))?;
    let columns = schema.columns().iter().enumerate().map(|(index, column)| {
        let data_type =
            arrow.fields().get(schema.get_column_root_idx(index)).map_or(&DataType::Null, |field| field.data_type());
        let conversion = Conversion::of(column, data_type);
        let is_short_decimal = matches!(
            data_type,
            DataType::Decimal32(precision, _) | DataType::Decimal64(precision, _) | DataType::Decimal128(precision, _)
                if *precision <= 18
        );
        let decimal_bytes = match column.physical_type() {
            Physical::FIXED_LEN_BYTE_ARRAY if is_short_decimal => u32::try_from(column.type_length()).ok(),
            // A length and a value.
            Physical::BYTE_ARRAY if is_short_decimal => Some(12),
            _ => None,
        };
        ColumnReport {
            name: column.path().string(),
            physical: column.physical_type().to_string(),
            data_type: data_type.to_string(),
            is_text: conversion.as_ref().is_ok_and(Conversion::is_text),
            is_integer: conversion.as_ref().is_ok_and(Conversion::is_integer),
            host_reason: conversion.err().map(|unsupported| unsupported.0),
            rows: opened.rows(),
            chunks: 0,
            compressed_bytes: 0,
            raw_bytes: 0,
            codecs: BTreeSet::new(),
            pages: Some(0),
            encodings: BTreeMap::new(),
            mixed_chunks: 0,
            host_codec_raw_bytes: 0,
            host_codec_bytes: 0,
            host_codecs: BTreeSet::new(),
            device_compressed_bytes: 0,
            hardly_compressed_bytes: 0,
            host_page_raw_bytes: 0,
            host_page_bytes: 0,
            host_page_reasons: BTreeSet::new(),
            chunks_without_statistics: 0,
            chunks_without_null_count: 0,
            chunks_without_page_index: 0,
            is_int96: column.physical_type() == Physical::INT96,
            decimal_bytes,
            host_decompression: 0.0,
        }
    });
    let groups = opened.metadata.row_groups();
    Ok(FileReport {
        path: opened.path.clone(),
        bytes: opened.file.length,
        rows: opened.rows(),
        row_groups: groups.len() as u64,
        most_group_rows: groups.iter().map(|group| group.num_rows().max(0) as u64).max().unwrap_or(0),
        created_by: metadata.created_by().map(str::to_string),
        columns: columns.collect(),
        estimate: Estimate::default(),
    })
}

/// Contribution of a chunk to the report of its column.
#[derive(Debug, Default)]
struct Chunk {
    compressed_bytes: u64,
    raw_bytes: u64,
    codec: Option<CompressionCodec>,
    pages: Option<u64>,
    encodings: BTreeMap<String, u64>,
    is_mixed: bool,
    hardly_compressed_bytes: u64,
    /// Bytes of pages that are stored as they are.
    stored_bytes: u64,
    host_reason: Option<String>,
    lacks_statistics: bool,
    lacks_null_count: bool,
    lacks_page_index: bool,
}

impl Chunk {
    fn add_to(self, column: &mut ColumnReport) {
        column.chunks += 1;
        column.compressed_bytes += self.compressed_bytes;
        column.raw_bytes += self.raw_bytes;
        column.pages = column.pages.zip(self.pages).map(|(pages, more)| pages + more);
        for (encoding, count) in self.encodings {
            *column.encodings.entry(encoding).or_default() += count;
        }
        if let Some(codec) = self.codec {
            column.codecs.insert(codec.to_string());
            match codec {
                CompressionCodec::UNCOMPRESSED => {}
                CompressionCodec::SNAPPY | CompressionCodec::LZ4_RAW => {
                    column.device_compressed_bytes += self.compressed_bytes.saturating_sub(self.stored_bytes);
                    column.hardly_compressed_bytes += self.hardly_compressed_bytes;
                }
                codec => {
                    column.host_codec_raw_bytes += self.raw_bytes;
                    column.host_codec_bytes += self.compressed_bytes;
                    column.host_codecs.insert(codec.to_string());
                    column.host_decompression +=
                        self.raw_bytes as f64 / (cost::host_decompression(codec) * cost::HOST_CORES);
                }
            }
        }
        if let Some(reason) = self.host_reason {
            column.host_page_raw_bytes += self.raw_bytes;
            column.host_page_bytes += self.compressed_bytes;
            column.host_page_reasons.insert(reason);
        }
        column.mixed_chunks += u64::from(self.is_mixed);
        column.chunks_without_statistics += u64::from(self.lacks_statistics);
        column.chunks_without_null_count += u64::from(self.lacks_null_count);
        column.chunks_without_page_index += u64::from(self.lacks_page_index);
    }
}

fn look(opened: &Opened, job: &Job, footers_only: bool) -> Result<Chunk, FileError> {
    let row_group = opened.metadata.row_group(job.group);
    let meta = row_group.column(job.column);
    let column = meta.column_descr();
    let is_flat = column.max_rep_level() == 0 && column.max_def_level() <= 1 && column.path().parts().len() == 1;
    let statistics = meta.statistics();
    let nulls = statistics.and_then(|statistics| statistics.null_count_opt());
    let is_bounded = statistics
        .is_some_and(|statistics| statistics.min_bytes_opt().is_some() || statistics.max_bytes_opt().is_some());
    let is_all_null = nulls == Some(meta.num_values().max(0) as u64);
    // Floats may all be NaN, and then have no bounds; the bounds of INT96 cannot be trusted.
    let has_bounds = match meta.column_type() {
        Physical::INT96 => true,
        Physical::FLOAT | Physical::DOUBLE => statistics.is_some(),
        _ => is_bounded || is_all_null,
    };
    let has_rows = row_group.num_rows() > 0;
    let mut chunk = Chunk {
        compressed_bytes: meta.compressed_size().max(0) as u64,
        raw_bytes: meta.uncompressed_size().max(0) as u64,
        codec: Some(meta.compression_codec()),
        lacks_statistics: is_flat && has_rows && !has_bounds,
        lacks_null_count: is_flat && has_rows && column.max_def_level() > 0 && nulls.is_none(),
        lacks_page_index: has_rows && meta.offset_index_offset().is_none(),
        ..Chunk::default()
    };
    if !is_flat && !footers_only {
        return Ok(chunk);
    }
    if footers_only {
        let index = opened.metadata.offset_index().and_then(|index| index.get(job.group)?.get(job.column));
        chunk.by_footer(meta, index);
        return Ok(chunk);
    }
    let bytes = opened.chunk(meta)?;
    match walk(&bytes, meta, row_group.num_rows() as u64) {
        Ok(pages) => chunk.by_pages(&pages),
        Err(PageError::Unsupported(reason)) => {
            chunk.host_reason = Some(reason);
            chunk.by_footer(meta, None);
        }
        Err(error) => {
            let place = format!("column {} of row group {}", column.path().string(), job.group);
            return Err(FileError::read(&opened.path, format!("{place}: {error}; write or copy the file again")));
        }
    }
    Ok(chunk)
}

impl Chunk {
    fn by_footer(&mut self, meta: &ColumnChunkMetaData, index: Option<&OffsetIndexMetaData>) {
        self.pages = index.map(|index| index.page_locations().len() as u64);
        // Without statistics of encodings it is unknown which of them the data pages have.
        let encodings: Option<Vec<Encoding>> = meta.page_encoding_stats_mask().map(|mask| mask.encodings().collect());
        for encoding in encodings.iter().flatten() {
            *self.encodings.entry(encoding.to_string()).or_default() += 1;
        }
        let has_dictionary = encodings.iter().flatten().any(|encoding| is_dictionary(*encoding));
        self.is_mixed = has_dictionary && meta.dictionary_page_offset().is_some() && !is_all_dictionary(meta);
        if meta.encodings().any(|encoding| encoding == Encoding::DELTA_BYTE_ARRAY) {
            self.host_reason.get_or_insert_with(delta_byte_array);
        }
    }

    fn by_pages(&mut self, pages: &Pages) {
        self.pages = Some(pages.data.len() as u64);
        let mut dictionaries = 0;
        for page in &pages.data {
            *self.encodings.entry(page.encoding.to_string()).or_default() += 1;
            dictionaries += usize::from(is_dictionary(page.encoding));
            if !page.is_compressed {
                self.stored_bytes += u64::from(page.compressed);
            } else if hardly_compressed(page) {
                self.hardly_compressed_bytes += u64::from(page.compressed);
            }
            if page.encoding == Encoding::DELTA_BYTE_ARRAY {
                self.host_reason.get_or_insert_with(delta_byte_array);
            }
        }
        self.is_mixed = dictionaries > 0 && dictionaries < pages.data.len();
    }
}

/// The V2 writer's own criterion: compressed values against the whole raw page.
fn hardly_compressed(page: &Page) -> bool {
    let (repetition, definition) = page.level_bytes;
    f64::from(page.compressed) - f64::from(repetition) - f64::from(definition) >= f64::from(page.raw) * STORED_ABOVE
}

fn delta_byte_array() -> String {
    "strings are coded as DELTA_BYTE_ARRAY".to_string()
}

fn is_dictionary(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY)
}

/// Files with the same columns, taken together.
fn tables(files: &[FileReport]) -> Vec<TableReport> {
    let mut tables: Vec<TableReport> = Vec::new();
    for file in files {
        let several = if file.row_groups > 1 { (file.row_groups, file.rows) } else { (0, 0) };
        let of_same_columns = |table: &&mut TableReport| {
            let mut pairs = table.columns.iter().zip(&file.columns);
            table.columns.len() == file.columns.len()
                && pairs.all(|(one, other)| one.name == other.name && one.data_type == other.data_type)
        };
        let Some(table) = tables.iter_mut().find(of_same_columns) else {
            tables.push(TableReport {
                name: file.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                files: 1,
                bytes: file.bytes,
                rows: file.rows,
                row_groups: file.row_groups,
                groups_of_several: several.0,
                rows_of_several: several.1,
                most_group_rows: file.most_group_rows,
                columns: file.columns.clone(),
                estimate: Estimate::default(),
            });
            continue;
        };
        if table.files == 1
            && let Some(folder) = file.path.parent().and_then(Path::file_name)
        {
            table.name = format!("{}/", folder.to_string_lossy());
        }
        table.files += 1;
        table.bytes += file.bytes;
        table.rows += file.rows;
        table.row_groups += file.row_groups;
        table.groups_of_several += several.0;
        table.rows_of_several += several.1;
        table.most_group_rows = table.most_group_rows.max(file.most_group_rows);
        for (column, more) in table.columns.iter_mut().zip(&file.columns) {
            column.merge(more);
        }
    }
    for table in &mut tables {
        table.estimate = Estimate::of(&table.columns, table.rows);
    }
    tables
}
