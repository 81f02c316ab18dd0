//! Skeleton: the signatures.

use arrow::array::ArrayRef;
use parquet::basic::CompressionCodec;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::schema::types::ColumnDescriptor;

use crate::conversion::Conversion;
use crate::error::{PageError, ReadError, Stopped};
use crate::facts::Facts;
use crate::out::Out;
use crate::pages::{Page, Pages};

/// How the rows of a column are to lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Booleans, a bit each.
    Bits,
    /// `value - base`, cut to `width` bytes: 1, 2, 4, 8 or 16. A valid value outside `range` is [`PageError::OutOfRange`].
    Integers { width: u8, base: i64, range: Option<(i128, i128)> },
    /// Floats of 4 or 8 bytes, each bit kept.
    Floats,
    /// Strings as codes of 4 bytes.
    Codes,
    /// Strings as offsets of 4 bytes, and bytes.
    Texts,
}

/// Gives codes to strings.
pub trait Intern {
    /// The code of each of `values`: a `StringArray` where the column is of strings, a `BinaryArray` otherwise, without
    /// NULLs. Called with a dictionary's entries once, and with the values of pages that use no dictionary page by page.
    fn codes(&mut self, values: &ArrayRef) -> Result<Vec<u32>, Stopped>;
}

/// Reads the rows of a column chunk, front to back.
pub struct ColumnReader<'a> {
    #[expect(dead_code, reason = "skeleton")]
    chunk: &'a [u8],
}

impl<'a> ColumnReader<'a> {
    /// # Errors
    /// [`PageError::Unsupported`] where `layout` does not fit `conversion`.
    pub fn new(
        chunk: &'a [u8],
        _pages: &'a Pages,
        _meta: &ColumnChunkMetaData,
        _column: &ColumnDescriptor,
        _conversion: &Conversion,
        _layout: Layout,
    ) -> Result<Self, PageError> {
        Ok(Self { chunk })
    }

    /// Passes over the next `rows` rows.
    pub fn skip(&mut self, _rows: u64) -> Result<(), ReadError> {
        Err(PageError::Unsupported("skeleton".into()).into())
    }

    /// Writes the next `rows` rows to rows `first..` of `out`.
    pub fn read(
        &mut self,
        _rows: u64,
        _first: u64,
        _out: &mut Out<'_>,
        _intern: &mut dyn Intern,
    ) -> Result<Facts, ReadError> {
        Err(PageError::Unsupported("skeleton".into()).into())
    }
}

/// The dictionary of a chunk as `layout` stores its entries: integers less the base and cut, floats, or codes of 4 bytes.
pub fn dictionary(
    _chunk: &[u8],
    _pages: &Pages,
    _meta: &ColumnChunkMetaData,
    _column: &ColumnDescriptor,
    _conversion: &Conversion,
    _layout: Layout,
    _intern: &mut dyn Intern,
) -> Result<Vec<u8>, ReadError> {
    Err(PageError::Unsupported("skeleton".into()).into())
}

/// The body of `page` decompressed, with its levels in front as they were.
pub fn decompress(_page: &Page, _chunk: &[u8], _codec: CompressionCodec, _into: &mut Vec<u8>) -> Result<(), PageError> {
    Err(PageError::Unsupported("skeleton".into()))
}
