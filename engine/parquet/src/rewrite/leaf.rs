//! A leaf column of the file: its levels and values as they come, written as they are or as [`Becomes`] says.
//!
//! ```text
//!   pages ─► records, a batch at a time ─► definition and repetition levels ──────────────► pages of the new chunk
//!                                      └─► values ─► integers of decimals and instants ──┘
//! ```
//!
//! Nothing in between knows what the values mean, so that every type of the format, and nesting of any form, stays what
//! it is.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Type as Physical;
use parquet::column::reader::{ColumnReaderImpl, get_column_reader, get_typed_column_reader};
use parquet::column::writer::{ColumnCloseResult, ColumnWriterImpl, get_column_writer, get_typed_column_writer};
use parquet::data_type::{
    AsBytes, BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArray, FixedLenByteArrayType,
    FloatType, Int32Type, Int64Type, Int96, Int96Type,
};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterPropertiesPtr;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor};

use super::layout::{Hint, PAGE_ROWS};
use super::probe::Probe;
use super::types::{Becomes, Survey, instant, integer};
use crate::file::{FileError, Opened, plain};
use crate::statistics::is_all_dictionary;

/// Rows of a batch, where rows are short.
const BATCH_ROWS: usize = PAGE_ROWS;
/// Rows of a batch, where a row of a column has more than [`LONG_ROW_BYTES`].
const BATCH_OF_LONG_ROWS: usize = 1_024;
const LONG_ROW_BYTES: u64 = 4 << 10;

/// A leaf column, read from some row on.
pub(super) struct Leaf<'a> {
    opened: &'a Opened,
    pub(super) index: usize,
    becomes: Becomes,
    /// The [`ColumnReaderImpl`] of the chunk that is read, and how many of its rows are left.
    reader: Option<Box<dyn Any + Send>>,
    left: usize,
    next_group: usize,
    /// Rows of the next chunk that come before the first one.
    skipped: usize,
    batch_rows: usize,
}

/// A column chunk that was written.
pub(super) struct Chunk {
    bytes: Bytes,
    closed: ColumnCloseResult,
}

impl Chunk {
    /// Its dictionary was given up in mid-chunk.
    pub(super) fn is_mixed(&self) -> bool {
        let metadata = &self.closed.metadata;
        metadata.dictionary_page_offset().is_some() && !is_all_dictionary(metadata)
    }

    pub(super) fn into_parts(self) -> (Bytes, ColumnCloseResult) {
        (self.bytes, self.closed)
    }
}

/// Rows of a column: levels, and values where the row has one.
struct Batch<V> {
    values: Vec<V>,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
}

/// Runs `$work` with the type of values that the file has and the one that is written.
macro_rules! typed {
    ($leaf:expr, $work:ident $arguments:tt) => {
        match ($leaf.descriptor().physical_type(), $leaf.becomes) {
            (Physical::BOOLEAN, _) => typed!(@same $leaf, $work $arguments, BoolType),
            (Physical::INT32, _) => typed!(@same $leaf, $work $arguments, Int32Type),
            (Physical::INT64, _) => typed!(@same $leaf, $work $arguments, Int64Type),
            (Physical::FLOAT, _) => typed!(@same $leaf, $work $arguments, FloatType),
            (Physical::DOUBLE, _) => typed!(@same $leaf, $work $arguments, DoubleType),
            (Physical::INT96, Becomes::Instants { nanos }) => {
                typed!(@to $leaf, $work $arguments, Int96Type, Int64Type, move |value: &Int96| instant(value, nanos))
            }
            (Physical::INT96, _) => typed!(@same $leaf, $work $arguments, Int96Type),
            (Physical::BYTE_ARRAY, Becomes::Int32) => typed!(
                @to $leaf, $work $arguments, ByteArrayType, Int32Type,
                |value: &ByteArray| integer(value.data()).map(i32::from_be_bytes)
            ),
            (Physical::BYTE_ARRAY, Becomes::Int64) => typed!(
                @to $leaf, $work $arguments, ByteArrayType, Int64Type,
                |value: &ByteArray| integer(value.data()).map(i64::from_be_bytes)
            ),
            (Physical::BYTE_ARRAY, _) => typed!(@same $leaf, $work $arguments, ByteArrayType),
            (Physical::FIXED_LEN_BYTE_ARRAY, Becomes::Int32) => typed!(
                @to $leaf, $work $arguments, FixedLenByteArrayType, Int32Type,
                |value: &FixedLenByteArray| integer(value.data()).map(i32::from_be_bytes)
            ),
            (Physical::FIXED_LEN_BYTE_ARRAY, Becomes::Int64) => typed!(
                @to $leaf, $work $arguments, FixedLenByteArrayType, Int64Type,
                |value: &FixedLenByteArray| integer(value.data()).map(i64::from_be_bytes)
            ),
            (Physical::FIXED_LEN_BYTE_ARRAY, _) => typed!(@same $leaf, $work $arguments, FixedLenByteArrayType),
        }
    };
    (@same $leaf:expr, $work:ident ($($argument:expr),*), $type:ty) => {
        $leaf.$work::<$type, $type>($($argument,)* &Some)
    };
    (@to $leaf:expr, $work:ident ($($argument:expr),*), $from:ty, $to:ty, $convert:expr) => {
        $leaf.$work::<$from, $to>($($argument,)* &|values: Vec<_>| values.iter().map($convert).collect())
    };
}

/// Makes the values that are written of those that were read; `None` where one does not fit.
type Convert<'a, S, D> = &'a dyn Fn(Vec<<S as DataType>::T>) -> Option<Vec<<D as DataType>::T>>;

impl<'a> Leaf<'a> {
    /// The column `index` from row `first` on.
    pub(super) fn at(opened: &'a Opened, index: usize, becomes: Becomes, first: u64) -> Self {
        let groups = opened.metadata.row_groups();
        let raw: u64 = groups.iter().map(|group| group.column(index).uncompressed_size().max(0) as u64).sum();
        let is_long = raw / opened.rows().max(1) > LONG_ROW_BYTES;
        let batch_rows = if is_long { BATCH_OF_LONG_ROWS } else { BATCH_ROWS };
        let (mut next_group, mut skipped) = (0, first);
        while let Some(group) = groups.get(next_group)
            && skipped >= group.num_rows() as u64
        {
            skipped -= group.num_rows() as u64;
            next_group += 1;
        }
        Self { opened, index, becomes, reader: None, left: 0, next_group, skipped: skipped as usize, batch_rows }
    }

    fn descriptor(&self) -> &'a ColumnDescriptor {
        &self.opened.metadata.file_metadata().schema_descr().columns()[self.index]
    }

    fn refused(&self, error: &ParquetError) -> FileError {
        let text = plain(error);
        let text = text.strip_prefix("Parquet argument error: ").unwrap_or(&text);
        let text = text.strip_prefix("Parquet error: ").unwrap_or(text);
        FileError::read(&self.opened.path, format!("column {}: {text}", self.descriptor().path().string()))
    }

    /// Reads. The decoders of some encodings panic over damaged pages.
    fn guarded<T>(&self, read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, FileError> {
        match catch_unwind(AssertUnwindSafe(read)) {
            Ok(read) => read.map_err(|error| self.refused(&error)),
            Err(_) => {
                Err(self.refused(&ParquetError::General("a page is damaged: write or copy the file again".into())))
            }
        }
    }

    fn is_short(&self) -> FileError {
        let name = self.descriptor().path().string();
        FileError::read(&self.opened.path, format!("column {name} has fewer rows than the file"))
    }

    /// Opens the next chunk.
    fn open<S: DataType>(&mut self) -> Result<(), FileError> {
        let metadata = &self.opened.metadata;
        let Some(group) = metadata.row_groups().get(self.next_group) else { return Err(self.is_short()) };
        let file = Arc::new(self.opened.file.clone());
        let (rows, skipped) = (group.num_rows() as usize, std::mem::take(&mut self.skipped));
        let pages = SerializedPageReader::new(file, group.column(self.index), rows, None);
        let pages = pages.map_err(|error| self.refused(&error))?;
        let descriptor = metadata.file_metadata().schema_descr().column(self.index);
        let mut reader: ColumnReaderImpl<S> = get_typed_column_reader(get_column_reader(descriptor, Box::new(pages)));
        if skipped > 0 && self.guarded(|| reader.skip_records(skipped))? != skipped {
            return Err(self.is_short());
        }
        self.reader = Some(Box::new(reader));
        self.left = rows - skipped;
        self.next_group += 1;
        Ok(())
    }

    /// The next rows: at least one, at most `most`.
    fn next<S: DataType>(&mut self, most: usize) -> Result<(Batch<S::T>, usize), FileError> {
        while self.left == 0 {
            self.open::<S>()?;
        }
        let rows = most.min(self.batch_rows).min(self.left);
        let reader = self.reader.take().and_then(|reader| reader.downcast::<ColumnReaderImpl<S>>().ok());
        let Some(mut reader) = reader else { return Err(self.is_short()) };
        let mut batch = Batch { values: Vec::new(), definitions: Vec::new(), repetitions: Vec::new() };
        let (definitions, repetitions) = (&mut batch.definitions, &mut batch.repetitions);
        let read = || reader.read_records(rows, Some(definitions), Some(repetitions), &mut batch.values);
        let (records, ..) = self.guarded(read)?;
        self.reader = Some(reader);
        let column = self.descriptor();
        let is_within = |levels: &[i16], most: i16| levels.iter().all(|level| (0..=most).contains(level));
        if !is_within(&batch.definitions, column.max_def_level())
            || !is_within(&batch.repetitions, column.max_rep_level())
        {
            let name = column.path().string();
            return Err(FileError::read(
                &self.opened.path,
                format!("column {name} has levels that its schema has not"),
            ));
        }
        let length = usize::try_from(column.type_length()).unwrap_or_default();
        let is_fixed = column.physical_type() == Physical::FIXED_LEN_BYTE_ARRAY;
        if is_fixed && batch.values.iter().any(|value| value.as_bytes().len() != length) {
            let name = column.path().string();
            return Err(FileError::read(
                &self.opened.path,
                format!("column {name} has values of another length than {length}"),
            ));
        }
        if records != rows {
            return Err(self.is_short());
        }
        self.left -= rows;
        Ok((batch, rows))
    }

    /// Inspects up to `most` of the first rows to choose how to write them.
    pub(super) fn hint(&mut self, most: usize, go_on: &dyn Fn() -> Result<(), FileError>) -> Result<Hint, FileError> {
        typed!(self, hint_of(most, go_on))
    }

    fn hint_of<S: DataType, D: DataType>(
        &mut self,
        most: usize,
        go_on: &dyn Fn() -> Result<(), FileError>,
        convert: Convert<'_, S, D>,
    ) -> Result<Hint, FileError> {
        let mut probe = Probe::<D::T>::new(D::get_physical_type());
        let mut left = most;
        while left > 0 {
            go_on()?;
            let (batch, rows) = self.next::<S>(left)?;
            left -= rows;
            let is_whole = batch.values.len() == rows && batch.repetitions.is_empty();
            let values = convert(batch.values).ok_or_else(|| self.has_changed())?;
            if !probe.see(&values, is_whole) {
                break;
            }
        }
        Ok(probe.hint())
    }

    /// Writes the next `rows` rows as a chunk. `done` is called with the rows of each batch.
    pub(super) fn encode(
        &mut self,
        descriptor: &ColumnDescPtr,
        properties: &WriterPropertiesPtr,
        rows: usize,
        go_on: &dyn Fn() -> Result<(), FileError>,
        done: &dyn Fn(usize),
    ) -> Result<Chunk, FileError> {
        typed!(self, encode_as(descriptor, properties, rows, go_on, done))
    }

    fn encode_as<S: DataType, D: DataType>(
        &mut self,
        descriptor: &ColumnDescPtr,
        properties: &WriterPropertiesPtr,
        rows: usize,
        go_on: &dyn Fn() -> Result<(), FileError>,
        done: &dyn Fn(usize),
        convert: Convert<'_, S, D>,
    ) -> Result<Chunk, FileError> {
        let mut sink = TrackedWrite::new(Vec::new());
        let pages = Box::new(SerializedPageWriter::new(&mut sink));
        let writer = get_column_writer(Arc::clone(descriptor), Arc::clone(properties), pages);
        let mut writer: ColumnWriterImpl<'_, D> = get_typed_column_writer(writer);
        let mut left = rows;
        while left > 0 {
            go_on()?;
            // A batch ends where a page does, so that pages have the same rows whatever row groups the input has.
            let (batch, read) = self.next::<S>(left.min(PAGE_ROWS - (rows - left) % PAGE_ROWS))?;
            let values = convert(batch.values).ok_or_else(|| self.has_changed())?;
            let definitions = (descriptor.max_def_level() > 0).then_some(&batch.definitions[..]);
            let repetitions = (descriptor.max_rep_level() > 0).then_some(&batch.repetitions[..]);
            writer.write_batch(&values, definitions, repetitions).map_err(|error| self.refused(&error))?;
            left -= read;
            done(read);
        }
        let closed = writer.close().map_err(|error| self.refused(&error))?;
        let bytes = sink.into_inner().map_err(|error| self.refused(&error))?;
        Ok(Chunk { bytes: bytes.into(), closed })
    }

    fn has_changed(&self) -> FileError {
        FileError::read(&self.opened.path, "it has changed while it was read")
    }

    /// Reads the whole column for `survey`.
    pub(super) fn survey(
        &mut self,
        survey: &mut Survey,
        go_on: &dyn Fn() -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let mut left = self.opened.rows();
        while left > 0 {
            go_on()?;
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            let rows = match self.descriptor().physical_type() {
                Physical::INT96 => {
                    let (batch, rows) = self.next::<Int96Type>(most)?;
                    batch.values.iter().for_each(|value| survey.see_instant(value));
                    rows
                }
                Physical::BYTE_ARRAY => {
                    let (batch, rows) = self.next::<ByteArrayType>(most)?;
                    batch.values.iter().for_each(|value| survey.see_decimal(value.data()));
                    rows
                }
                _ => {
                    let (batch, rows) = self.next::<FixedLenByteArrayType>(most)?;
                    batch.values.iter().for_each(|value| survey.see_decimal(value.data()));
                    rows
                }
            };
            left -= rows as u64;
        }
        Ok(())
    }

    /// The bytes of the next row's value, little-endian where it is a number; `None` of NULL.
    pub(super) fn value(&mut self) -> Result<Option<Vec<u8>>, FileError> {
        typed!(self, value_of())
    }

    fn value_of<S: DataType, D: DataType>(&mut self, _: Convert<'_, S, D>) -> Result<Option<Vec<u8>>, FileError> {
        let (batch, _) = self.next::<S>(1)?;
        Ok(batch.values.first().map(|value| value.as_bytes().to_vec()))
    }
}
