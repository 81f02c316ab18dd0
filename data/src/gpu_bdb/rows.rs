//! Collects rows value by value and emits record batches.
//!
//! ```text
//!   key(17) int(3) money(1_999) text("red") end()   ──►   one row;   every BATCH_ROWS rows   ──►   emit(batch)
//! ```
//!
//! Order    values are added in schema order; a value of the wrong kind is a bug and panics.
//! Memory   one batch.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Decimal128Builder, Float64Builder, Int32Builder, Int64Builder, RecordBatch, StringBuilder,
};
use arrow::datatypes::{DataType, SchemaRef};

use crate::DataError;

/// Rows per batch; the last batch of a part may be shorter.
pub(crate) const BATCH_ROWS: usize = 32_768;

/// Receiver of the batches.
pub(crate) type Emit<'a> = &'a mut dyn FnMut(RecordBatch) -> Result<(), DataError>;

enum Cells {
    Int64(Int64Builder),
    Int32(Int32Builder),
    Double(Float64Builder),
    Decimal(Decimal128Builder),
    Text(StringBuilder),
}

/// Rows of one part under construction.
pub(crate) struct Rows<'a> {
    table: &'static str,
    schema: SchemaRef,
    columns: Vec<Cells>,
    next: usize,
    num_rows: usize,
    emit: Emit<'a>,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(table: &'static str, schema: SchemaRef, emit: Emit<'a>) -> Self {
        let columns = schema
            .fields()
            .iter()
            .map(|field| match field.data_type() {
                DataType::Int64 => Cells::Int64(Int64Builder::new()),
                DataType::Int32 => Cells::Int32(Int32Builder::new()),
                DataType::Float64 => Cells::Double(Float64Builder::new()),
                decimal @ DataType::Decimal128(..) => {
                    Cells::Decimal(Decimal128Builder::new().with_data_type(decimal.clone()))
                }
                _ => Cells::Text(StringBuilder::new()),
            })
            .collect();
        Self { table, schema, columns, next: 0, num_rows: 0, emit }
    }

    fn cells(&mut self) -> &mut Cells {
        self.next += 1;
        &mut self.columns[self.next - 1]
    }

    fn integer(&mut self, value: Option<i64>) {
        let table = self.table;
        match self.cells() {
            Cells::Int64(cells) => cells.append_option(value),
            Cells::Int32(cells) => cells.append_option(
                value.map(|value| i32::try_from(value).expect("keys are written as INT32 only where all of them fit")),
            ),
            _ => panic!("a row of {table} has an integer where its schema has none"),
        }
    }

    pub(crate) fn key(&mut self, value: i64) {
        self.integer(Some(value));
    }

    pub(crate) fn key_or_null(&mut self, value: Option<i64>) {
        self.integer(value);
    }

    pub(crate) fn int(&mut self, value: i64) {
        self.integer(Some(value));
    }

    pub(crate) fn int_or_null(&mut self, value: Option<i64>) {
        self.integer(value);
    }

    /// Adds a number in hundredths.
    pub(crate) fn money(&mut self, hundredths: i64) {
        self.money_or_null(Some(hundredths));
    }

    pub(crate) fn money_or_null(&mut self, hundredths: Option<i64>) {
        let table = self.table;
        match self.cells() {
            // One correctly rounded division gives the double nearest to the decimal value.
            Cells::Double(cells) => cells.append_option(hundredths.map(|value| value as f64 / 100.0)),
            Cells::Decimal(cells) => cells.append_option(hundredths.map(i128::from)),
            _ => panic!("a row of {table} has money where its schema has none"),
        }
    }

    pub(crate) fn text(&mut self, value: &str) {
        self.text_or_null(Some(value));
    }

    pub(crate) fn text_or_null(&mut self, value: Option<&str>) {
        let table = self.table;
        match self.cells() {
            Cells::Text(cells) => cells.append_option(value),
            _ => panic!("a row of {table} has text where its schema has none"),
        }
    }

    /// Ends a row; emits a full batch.
    pub(crate) fn end(&mut self) -> Result<(), DataError> {
        assert_eq!(self.next, self.columns.len(), "a row of {} has values for every column", self.table);
        self.next = 0;
        self.num_rows += 1;
        if self.num_rows == BATCH_ROWS { self.flush() } else { Ok(()) }
    }

    /// Emits the remaining rows.
    pub(crate) fn finish(mut self) -> Result<(), DataError> {
        if self.num_rows > 0 { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), DataError> {
        let columns: Vec<ArrayRef> = self
            .columns
            .iter_mut()
            .map(|cells| match cells {
                Cells::Int64(cells) => Arc::new(cells.finish()) as ArrayRef,
                Cells::Int32(cells) => Arc::new(cells.finish()),
                Cells::Double(cells) => Arc::new(cells.finish()),
                Cells::Decimal(cells) => Arc::new(cells.finish()),
                Cells::Text(cells) => Arc::new(cells.finish()),
            })
            .collect();
        self.num_rows = 0;
        let batch = RecordBatch::try_new(self.schema.clone(), columns)
            .map_err(|source| DataError::Arrow { table: self.table.to_string(), source })?;
        (self.emit)(batch)
    }
}
