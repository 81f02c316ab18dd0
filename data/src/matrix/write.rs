//! Writes a case with parquet-rs: by Arrow's writer, or column by column if Arrow has no type for a kind.
//!
//! ```text
//!   case ──rows──► record batch ──┬── ArrowWriter ─────────────────────────────┬──► bytes ──► file
//!                                 └── INT96: SerializedFileWriter, row groups ─┘
//! ```

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int32Type, Schema, TimestampNanosecondType};
use parquet::arrow::ArrowSchemaConverter;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{Int32Type as Int32Column, Int96, Int96Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, SchemaDescriptor, Type};

use super::choice::{Bloom, Dictionary, Encoding, Index, Nulls, Statistics};
use super::kind::Kind;
use super::values::Rows;
use super::{Case, Column, ROW_ID};
use crate::rng::ColumnRng;
use crate::{DataError, WrittenFile};

/// Seed of all values.
const SEED: u64 = 0x6d61_7472_6978;
const NANOSECONDS_A_DAY: i64 = 86_400_000_000_000;
/// 1970-01-01 in Julian days.
const EPOCH: i64 = 2_440_588;

/// Rows that a reader must find in the file of `case`: `row_id` first, then its columns.
///
/// # Errors
/// [`DataError::Arrow`] if the columns do not fit their types.
pub fn rows(case: &Case) -> Result<RecordBatch, DataError> {
    let error = |source| DataError::Arrow { table: case.name(), source };
    let mut fields = vec![Field::new(ROW_ID, DataType::Int32, false)];
    let mut arrays: Vec<ArrayRef> = vec![Arc::new(Int32Array::from_iter_values(0..case.num_rows as i32))];
    for (index, column) in case.columns.iter().enumerate() {
        let rng = ColumnRng::new(SEED ^ case.number as u64, index as u64);
        let rows = Rows { column, rng, num_rows: case.num_rows, page_rows: case.pages.limits().rows };
        fields.push(Field::new(column_name(index), column.kind.data_type(), column.nulls != Nulls::Required));
        arrays.push(rows.array().map_err(error)?);
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).map_err(error)
}

/// Writes the file of `case` to `path`.
///
/// # Errors
/// [`DataError`] with the path.
pub fn write(case: &Case, path: &Path) -> Result<WrittenFile, DataError> {
    let parquet_error = |source| DataError::Parquet { path: path.to_path_buf(), source };
    let (bytes, metadata) = encode(case, &rows(case)?).map_err(parquet_error)?;
    fs::write(path, &bytes).map_err(DataError::io(path))?;
    Ok(WrittenFile {
        path: path.to_path_buf(),
        num_rows: case.num_rows as u64,
        num_row_groups: metadata.num_row_groups(),
        bytes: bytes.len() as u64,
    })
}

/// Bytes of the file of `case`.
///
/// # Errors
/// [`DataError`] with the name of the case.
pub fn bytes(case: &Case) -> Result<Vec<u8>, DataError> {
    let parquet_error = |source| DataError::Parquet { path: case.name().into(), source };
    Ok(encode(case, &rows(case)?).map_err(parquet_error)?.0)
}

fn column_name(index: usize) -> String {
    format!("c{index}")
}

fn encode(case: &Case, batch: &RecordBatch) -> Result<(Vec<u8>, ParquetMetaData), ParquetError> {
    let mut bytes = Vec::new();
    let metadata = if case.columns.iter().any(|column| column.kind == Kind::Int96) {
        write_int96(case, batch, &mut bytes)?
    } else {
        let options = ArrowWriterOptions::new()
            .with_properties(properties(case))
            .with_parquet_schema(parquet_schema(case, &batch.schema())?);
        let mut writer = ArrowWriter::try_new_with_options(&mut bytes, batch.schema(), options)?;
        writer.write(batch)?;
        writer.close()?
    };
    Ok((bytes, metadata))
}

/// Schema of parquet-rs, with narrow decimals as FIXED_LEN_BYTE_ARRAY if the case requests them.
fn parquet_schema(case: &Case, schema: &Schema) -> Result<SchemaDescriptor, ParquetError> {
    let made = ArrowSchemaConverter::new().convert(schema)?;
    let mut fields = made.root_schema().get_fields().to_vec();
    for (index, column) in case.columns.iter().enumerate() {
        let Some(narrow) = column.kind.narrow_fixed() else { continue };
        let name = column_name(index);
        let field = Type::primitive_type_builder(&name, Physical::FIXED_LEN_BYTE_ARRAY)
            .with_repetition(repetition(column))
            .with_length(narrow.bytes)
            .with_logical_type(Some(LogicalType::decimal(narrow.scale, narrow.precision)))
            .with_precision(narrow.precision)
            .with_scale(narrow.scale);
        fields[index + 1] = Arc::new(field.build()?);
    }
    let root = Type::group_type_builder(made.root_schema().name()).with_fields(fields).build()?;
    Ok(SchemaDescriptor::new(Arc::new(root)))
}

fn repetition(column: &Column) -> Repetition {
    if column.nulls == Nulls::Required { Repetition::REQUIRED } else { Repetition::OPTIONAL }
}

fn properties(case: &Case) -> WriterProperties {
    let pages = case.pages.limits();
    // A dictionary's limit is checked as often as a page's.
    let limited = case.columns.iter().any(|column| column.dictionary.limit_bytes().is_some());
    let mut builder = WriterProperties::builder()
        .set_created_by("millpond matrix (parquet-rs)".to_string())
        .set_compression(case.codec.written())
        .set_writer_version(case.version.written())
        .set_data_page_row_count_limit(pages.rows)
        .set_data_page_size_limit(pages.bytes)
        .set_write_batch_size(if limited { pages.batch.min(50) } else { pages.batch })
        .set_max_row_group_row_count(Some(case.groups.rows()))
        .set_statistics_enabled(case.statistics.written())
        .set_write_page_header_statistics(case.statistics == Statistics::PageHeader)
        .set_offset_index_disabled(case.index == Index::Without)
        .set_column_dictionary_enabled(ColumnPath::from(ROW_ID), false);
    for (index, column) in case.columns.iter().enumerate() {
        builder = column_properties(builder, ColumnPath::from(column_name(index)), column);
    }
    builder.build()
}

fn column_properties(builder: WriterPropertiesBuilder, path: ColumnPath, column: &Column) -> WriterPropertiesBuilder {
    let mut builder = builder.set_column_dictionary_enabled(path.clone(), column.encoding == Encoding::Dictionary);
    if let Some(encoding) = column.encoding.written() {
        builder = builder.set_column_encoding(path.clone(), encoding);
    }
    if column.dictionary == Dictionary::Bytes1024ThenPlain {
        builder = builder.set_column_encoding(path.clone(), parquet::basic::Encoding::PLAIN);
    }
    if let Some(bytes) = column.dictionary.limit_bytes() {
        builder = builder.set_column_dictionary_page_size_limit(path.clone(), bytes);
    }
    if column.bloom == Bloom::With {
        // Sized for a hundred distinct values: a filter of some dozen bytes, whatever the number of values.
        builder =
            builder.set_column_bloom_filter_enabled(path.clone(), true).set_column_bloom_filter_max_ndv(path, 100);
    }
    builder
}

/// Writes a file whose columns are all INT96, except the row number.
fn write_int96(case: &Case, batch: &RecordBatch, bytes: &mut Vec<u8>) -> Result<ParquetMetaData, ParquetError> {
    let row_id = Type::primitive_type_builder(ROW_ID, Physical::INT32).with_repetition(Repetition::REQUIRED);
    let mut fields = vec![Arc::new(row_id.build()?)];
    for (index, column) in case.columns.iter().enumerate() {
        let name = column_name(index);
        let field = Type::primitive_type_builder(&name, Physical::INT96);
        fields.push(Arc::new(field.with_repetition(repetition(column)).build()?));
    }
    let root = Type::group_type_builder("schema").with_fields(fields).build()?;
    let mut writer = SerializedFileWriter::new(bytes, Arc::new(root), Arc::new(properties(case)))?;
    let group_rows = case.groups.rows();
    for first in (0..case.num_rows).step_by(group_rows) {
        let part = batch.slice(first, group_rows.min(case.num_rows - first));
        let mut group = writer.next_row_group()?;
        let mut column = group.next_column()?.expect("the row number");
        column.typed::<Int32Column>().write_batch(part.column(0).as_primitive::<Int32Type>().values(), None, None)?;
        column.close()?;
        for array in &part.columns()[1..] {
            let array = array.as_primitive::<TimestampNanosecondType>();
            let values: Vec<Int96> = array.iter().flatten().map(int96).collect();
            let levels: Vec<i16> = (0..array.len()).map(|row| i16::from(array.is_valid(row))).collect();
            let mut column = group.next_column()?.expect("a column for each array");
            column.typed::<Int96Type>().write_batch(&values, Some(&levels), None)?;
            column.close()?;
        }
        group.close()?;
    }
    writer.close()
}

/// Converts nanoseconds since 1970 to nanoseconds of a day and the Julian day.
fn int96(nanoseconds: i64) -> Int96 {
    let of_day = nanoseconds.rem_euclid(NANOSECONDS_A_DAY) as u64;
    let day = nanoseconds.div_euclid(NANOSECONDS_A_DAY) + EPOCH;
    let mut value = Int96::new();
    value.set_data(of_day as u32, (of_day >> 32) as u32, day as u32);
    value
}
