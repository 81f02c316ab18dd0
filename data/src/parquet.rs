//! Writes generated parts as the row groups of one Parquet file.
//!
//! ```text
//!   part 0 ─┐ generated and encoded       a new file ──commit──► TABLE.parquet
//!   part 1 ─┤ in parallel,          ──►   row group 0 | row group 1 | …
//!   part 2 ─┘ a few at a time
//! ```
//!
//! Errors   a failed write leaves no half-written file under the final name.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::schema::types::ColumnPath;
use rayon::prelude::*;

use crate::{DataError, Files};

/// Compression of column chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Codec {
    /// No compression.
    None,
    /// Snappy, the default of most writers.
    #[default]
    Snappy,
    /// Zstandard at level 1.
    Zstd,
}

impl Codec {
    pub(crate) fn compression(self) -> Compression {
        match self {
            Codec::None => Compression::UNCOMPRESSED,
            Codec::Snappy => Compression::SNAPPY,
            Codec::Zstd => Compression::ZSTD(ZstdLevel::try_new(1).expect("1 is a Zstandard level")),
        }
    }
}

/// A finished file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFile {
    pub path: PathBuf,
    pub num_rows: u64,
    pub num_row_groups: usize,
    pub bytes: u64,
}

/// Bytes of the largest dictionary of a column chunk.
pub(crate) const DICTIONARY_BYTES: u64 = 1 << 20;

/// Encoding of a column, as far as its values decide it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// Ascending integers.
    Sorted,
    /// More distinct values than a dictionary of [`DICTIONARY_BYTES`] holds.
    Many,
    Few,
}

/// Writer properties for the layout of `millpond parquet rewrite`, which a device reads fast: V2 pages of 16,384 rows,
/// uncompressed if compression saves less than a tenth.
pub(crate) fn device_layout(
    schema: &SchemaRef,
    codec: Codec,
    values: impl Fn(&str) -> Values,
) -> WriterPropertiesBuilder {
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_compression(codec.compression())
        .set_dictionary_page_size_limit(DICTIONARY_BYTES as usize)
        .set_data_page_v2_compression_ratio_threshold(0.9)
        .set_data_page_row_count_limit(16_384)
        .set_statistics_enabled(EnabledStatistics::Page);
    for field in schema.fields() {
        let path = ColumnPath::from(field.name().as_str());
        let values = values(field.name());
        let encoding = match field.data_type() {
            _ if values == Values::Sorted => Encoding::DELTA_BINARY_PACKED,
            DataType::Utf8 | DataType::Utf8View => Encoding::DELTA_LENGTH_BYTE_ARRAY,
            _ => Encoding::PLAIN,
        };
        let has_dictionary = values == Values::Few && *field.data_type() != DataType::Boolean;
        properties =
            properties.set_column_dictionary_enabled(path.clone(), has_dictionary).set_column_encoding(path, encoding);
    }
    properties
}

/// Writes `part(0) … part(num_parts - 1)`, one row group each, and moves the file into place.
///
/// Parts are generated and encoded `threads_of_this_pool` at a time. `progress` is called with the row count of each
/// written part.
pub(crate) fn write_parts(
    files: &dyn Files,
    path: &Path,
    schema: &SchemaRef,
    properties: WriterProperties,
    num_parts: usize,
    part: impl Fn(usize) -> Result<Vec<RecordBatch>, DataError> + Sync,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<WrittenFile, DataError> {
    let mut file = files.create(path)?;
    let mut counted = Counted { out: &mut file, bytes: 0 };
    let num_rows = write_to(&mut counted, path, schema, properties, num_parts, part, progress)?;
    let bytes = counted.bytes;
    file.commit()?;
    Ok(WrittenFile { path: path.to_path_buf(), num_rows, num_row_groups: num_parts, bytes })
}

/// Creates a folder and its missing parents.
///
/// # Errors
/// [`DataError::NotAFolder`] if a file has its name, [`DataError::Io`] for other errors.
pub(crate) fn make_folder(folder: &Path) -> Result<(), DataError> {
    fs::create_dir_all(folder).map_err(|source| match folder.ancestors().find(|path| path.exists() && !path.is_dir()) {
        Some(file) => DataError::NotAFolder { path: file.to_path_buf() },
        None => DataError::io(folder)(source),
    })
}

/// Counts the bytes of a file; a device or a pipe does not report its size.
pub(crate) struct Counted<W> {
    pub(crate) out: W,
    pub(crate) bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn write_to(
    file: impl Write + Send,
    path: &Path,
    schema: &SchemaRef,
    properties: WriterProperties,
    num_parts: usize,
    part: impl Fn(usize) -> Result<Vec<RecordBatch>, DataError> + Sync,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<u64, DataError> {
    let parquet_error = |source| DataError::Parquet { path: path.to_path_buf(), source };
    let writer = ArrowWriter::try_new(file, schema.clone(), Some(properties)).map_err(parquet_error)?;
    let (mut writer, row_groups) = writer.into_serialized_writer().map_err(parquet_error)?;
    let encoded = |index| {
        let batches = part(index)?;
        let chunks = encode(&row_groups, index, schema, &batches).map_err(parquet_error)?;
        Ok::<_, DataError>((batches.iter().map(|batch| batch.num_rows() as u64).sum::<u64>(), chunks))
    };
    let mut num_rows = 0;
    let at_once = rayon::current_num_threads().max(1);
    for first in (0..num_parts).step_by(at_once) {
        let parts: Vec<_> =
            (first..num_parts.min(first + at_once)).into_par_iter().map(encoded).collect::<Result<_, _>>()?;
        for (part_rows, chunks) in parts {
            let mut row_group = writer.next_row_group().map_err(parquet_error)?;
            for chunk in chunks {
                chunk.append_to_row_group(&mut row_group).map_err(parquet_error)?;
            }
            row_group.close().map_err(parquet_error)?;
            num_rows += part_rows;
            progress(part_rows);
        }
    }
    writer.close().map_err(parquet_error)?;
    Ok(num_rows)
}

/// Compressed column chunks of a row group.
fn encode(
    row_groups: &ArrowRowGroupWriterFactory,
    index: usize,
    schema: &SchemaRef,
    batches: &[RecordBatch],
) -> parquet::errors::Result<Vec<ArrowColumnChunk>> {
    let mut writers = row_groups.create_column_writers(index)?;
    for batch in batches {
        let mut leaves = Vec::with_capacity(writers.len());
        for (field, column) in schema.fields().iter().zip(batch.columns()) {
            leaves.extend(compute_leaves(field, column)?);
        }
        for (writer, leaf) in writers.iter_mut().zip(&leaves) {
            writer.write(leaf)?;
        }
    }
    writers.into_iter().map(|writer| writer.close()).collect()
}
