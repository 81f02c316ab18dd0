//! Answers as Parquet and Arrow files; the bytes are written to the output as they are produced.
//!
//! ```text
//!   batch ─► writer of the format ─► bytes in memory ─► output      without seeking, so the output may be a pipe
//! ```
//!
//! Parquet  The layout of `parquet rewrite`. Memory: one row group.
//! Arrow    The file format (Feather 2), uncompressed. Memory: one batch.

use std::io::Write;

use millpond::datafusion::arrow::array::RecordBatch;
use millpond::datafusion::arrow::datatypes::{Schema, SchemaRef};
use millpond::datafusion::arrow::error::ArrowError;
use millpond::datafusion::arrow::ipc::writer::FileWriter;
use millpond::datafusion::parquet::arrow::{ArrowSchemaConverter, ArrowWriter};
use millpond_parquet::rewrite::{Codec, ROW_GROUP_ROWS, writer_properties};

/// Writes one answer.
pub enum BinaryWriter {
    Parquet(Box<ArrowWriter<Vec<u8>>>),
    Arrow(Box<FileWriter<Vec<u8>>>),
}

impl BinaryWriter {
    /// # Errors
    /// For a type that Parquet does not support.
    pub fn parquet(schema: &SchemaRef) -> Result<Self, ArrowError> {
        let columns = ArrowSchemaConverter::new().convert(schema)?;
        let properties = writer_properties(&columns, Codec::default(), ROW_GROUP_ROWS, &[]).build();
        Ok(Self::Parquet(Box::new(ArrowWriter::try_new(Vec::new(), SchemaRef::clone(schema), Some(properties))?)))
    }

    /// # Errors
    /// For a type that the format does not support.
    pub fn arrow(schema: &Schema) -> Result<Self, ArrowError> {
        Ok(Self::Arrow(Box::new(FileWriter::try_new(Vec::new(), schema)?)))
    }

    /// Writes the next batch.
    ///
    /// # Errors
    /// Errors of the format and of the output.
    pub fn write(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> Result<(), ArrowError> {
        let bytes = match self {
            Self::Parquet(writer) => {
                writer.write(batch)?;
                std::mem::take(writer.inner_mut())
            }
            Self::Arrow(writer) => {
                writer.write(batch)?;
                std::mem::take(writer.get_mut())
            }
        };
        Ok(out.write_all(&bytes)?)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub fn finish(&mut self, out: &mut dyn Write) -> Result<(), ArrowError> {
        let bytes = match self {
            Self::Parquet(writer) => {
                writer.finish()?;
                std::mem::take(writer.inner_mut())
            }
            Self::Arrow(writer) => {
                writer.finish()?;
                std::mem::take(writer.get_mut())
            }
        };
        Ok(out.write_all(&bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::datafusion::arrow::array::Int64Array;
    use millpond::datafusion::arrow::ipc::reader::FileReader;
    use millpond::datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    fn rows(from: i64) -> RecordBatch {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(from..from + 1000)) as _)])
            .expect("batch")
    }

    fn written(mut writer: BinaryWriter) -> Vec<u8> {
        let mut out = Vec::new();
        for from in [0, 1000, 2000] {
            writer.write(&rows(from), &mut out).expect("written");
        }
        writer.finish(&mut out).expect("finished");
        out
    }

    #[test]
    fn files_that_were_written_in_pieces_are_read_by_their_readers() {
        let bytes = written(BinaryWriter::parquet(&rows(0).schema()).expect("a writer"));
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), bytes).expect("written");
        let file = std::fs::File::open(file.path()).expect("a file");
        let read = ParquetRecordBatchReaderBuilder::try_new(file).expect("a footer").build().expect("a reader");
        assert_eq!(read.map(|batch| batch.expect("a batch").num_rows()).sum::<usize>(), 3000);

        let bytes = written(BinaryWriter::arrow(&rows(0).schema()).expect("a writer"));
        let read = FileReader::try_new(std::io::Cursor::new(bytes), None).expect("a reader");
        let batches: Vec<RecordBatch> = read.map(|batch| batch.expect("a batch")).collect();
        assert_eq!(batches, [rows(0), rows(1000), rows(2000)]);
    }
}
