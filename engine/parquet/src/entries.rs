//! Entries of a dictionary as an Arrow array, for evaluating an expression once per distinct value.
//!
//!   dictionary page  DECIMAL 105 · 99 · 7 ──► Decimal128Array [1.05, 0.99, 0.07]

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, make_array, new_empty_array};
use arrow::buffer::Buffer;
use arrow::compute::cast;
use arrow::datatypes::DataType;
use parquet::file::metadata::ColumnChunkMetaData;

use crate::column::{Intern, Layout};
use crate::conversion::Conversion;
use crate::error::{PageError, ReadError, Result, Stopped};
use crate::pages::Pages;
use crate::reader::dictionary;

/// Collects strings and returns no codes.
#[derive(Default)]
struct Taken(Option<ArrayRef>);

impl Intern for Taken {
    fn codes(&mut self, values: &ArrayRef) -> std::result::Result<Vec<u32>, Stopped> {
        self.0 = Some(Arc::clone(values));
        Ok(vec![0; values.len()])
    }
}

/// The entries of a chunk's dictionary, of type `data_type`, whose conversion is `conversion`; none if the chunk has no
/// dictionary.
///
/// # Errors
/// If the dictionary cannot be read; [`PageError::Unsupported`] for types that are neither strings nor numbers.
pub fn entries(
    chunk: &[u8],
    pages: &Pages,
    meta: &ColumnChunkMetaData,
    (conversion, data_type): (&Conversion, &DataType),
) -> Result<ArrayRef> {
    let unsupported = || PageError::Unsupported(format!("entries are not read as {data_type}"));
    let count = match &pages.dictionary {
        Some(page) => page.values as usize,
        None => return Ok(new_empty_array(data_type)),
    };
    let mut taken = Taken::default();
    let layout = match data_type {
        _ if conversion.is_text() => Layout::Codes,
        DataType::Float32 | DataType::Float64 => Layout::Floats,
        _ => {
            let width = data_type.primitive_width().and_then(|width| u8::try_from(width).ok());
            Layout::Integers { width: width.ok_or_else(unsupported)?, base: 0, range: None }
        }
    };
    let read = dictionary(chunk, pages, meta, conversion, layout, &mut taken);
    let bytes = read.map_err(|error| match error {
        ReadError::Page(error) => error,
        ReadError::Stopped => unsupported(),
    })?;
    if let Some(texts) = taken.0 {
        return cast(&texts, data_type).map_err(|_| unsupported());
    }
    let data = ArrayData::builder(data_type.clone()).len(count).add_buffer(Buffer::from(bytes)).align_buffers(true);
    data.build().map(make_array).map_err(|_| unsupported())
}
