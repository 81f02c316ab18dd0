//! Writes one column to a file, and reads it back: as parquet does, and as chunks of bytes.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::WriterProperties;

/// A file of one column, and the type that it is read as.
pub struct File {
    pub bytes: Bytes,
    pub data_type: DataType,
    metadata: ArrowReaderMetadata,
}

/// A row of it: an integer or the bits of a float, a boolean, or a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Null,
    Number(i128),
    Flag(bool),
    Text(Vec<u8>),
}

impl File {
    pub fn write(array: &ArrayRef, is_nullable: bool, properties: WriterProperties) -> Self {
        let field = Field::new("x", array.data_type().clone(), is_nullable);
        let schema = Arc::new(Schema::new(vec![field]));
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, Arc::clone(&schema), Some(properties)).unwrap();
        writer.write(&RecordBatch::try_new(schema, vec![Arc::clone(array)]).unwrap()).unwrap();
        writer.close().unwrap();
        Self::of(bytes, None)
    }

    /// A file that is read as `data_type`, or as its own schema says.
    pub fn of(bytes: Vec<u8>, data_type: Option<DataType>) -> Self {
        let bytes = Bytes::from(bytes);
        let mut metadata = ArrowReaderMetadata::load(&bytes, ArrowReaderOptions::new()).unwrap();
        if let Some(data_type) = data_type {
            let field = metadata.schema().field(0).as_ref().clone().with_data_type(data_type);
            let options = ArrowReaderOptions::new().with_schema(Arc::new(Schema::new(vec![field])));
            metadata = ArrowReaderMetadata::load(&bytes, options).unwrap();
        }
        let data_type = metadata.schema().field(0).data_type().clone();
        Self { bytes, data_type, metadata }
    }

    /// All values, as parquet reads them.
    pub fn expected(&self) -> Vec<Value> {
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(self.bytes.clone(), self.metadata.clone());
        let batches: Vec<ArrayRef> =
            builder.build().unwrap().map(|batch| Arc::clone(batch.unwrap().column(0))).collect();
        let arrays: Vec<&dyn Array> = batches.iter().map(|array| array.as_ref()).collect();
        if arrays.is_empty() { Vec::new() } else { values(&concat(&arrays).unwrap()) }
    }

    /// The chunks of the column, with their metadata and rows.
    pub fn chunks(&self) -> Vec<(&[u8], &ColumnChunkMetaData, u64)> {
        let groups = self.metadata.metadata().row_groups().iter();
        groups
            .map(|group| {
                let (start, length) = group.column(0).byte_range();
                let bytes = &self.bytes[start as usize..(start + length) as usize];
                (bytes, group.column(0), group.num_rows() as u64)
            })
            .collect()
    }
}

/// An array's values.
pub fn values(array: &ArrayRef) -> Vec<Value> {
    let of = |row: usize| -> Value {
        if array.is_null(row) {
            return Value::Null;
        }
        match array.data_type() {
            DataType::Boolean => Value::Flag(array.as_boolean().value(row)),
            DataType::Utf8 => Value::Text(array.as_string::<i32>().value(row).into()),
            DataType::LargeUtf8 => Value::Text(array.as_string::<i64>().value(row).into()),
            DataType::Utf8View => Value::Text(array.as_string_view().value(row).into()),
            DataType::Binary => Value::Text(array.as_binary::<i32>().value(row).into()),
            DataType::LargeBinary => Value::Text(array.as_binary::<i64>().value(row).into()),
            DataType::BinaryView => Value::Text(array.as_binary_view().value(row).into()),
            DataType::FixedSizeBinary(_) => Value::Text(array.as_fixed_size_binary().value(row).into()),
            DataType::Dictionary(..) => {
                let dictionary = array.as_dictionary::<Int32Type>();
                let texts = dictionary.downcast_dict::<arrow::array::StringArray>().unwrap();
                Value::Text(texts.values().value(dictionary.key(row).unwrap()).into())
            }
            data_type => {
                let width = data_type.primitive_width().unwrap();
                let data = array.to_data();
                let at = (data.offset() + row) * width;
                let bytes = &data.buffers()[0].as_slice()[at..at + width];
                let is_unsigned = data_type.is_unsigned_integer() || data_type.is_floating();
                let sign = if is_unsigned || bytes[width - 1] < 128 { 0 } else { 0xff };
                let mut wide = [sign; 16];
                wide[..width].copy_from_slice(bytes);
                Value::Number(i128::from_le_bytes(wide))
            }
        }
    };
    (0..array.len()).map(of).collect()
}
