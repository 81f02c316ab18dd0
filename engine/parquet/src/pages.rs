//! Locates the pages of a column chunk by their headers, without decompressing.
//!
//!   chunk   [ header | dictionary ][ header | page ][ header | page ] …
//!   V1      page = compress( length + definition levels, values )
//!   V2      page = repetition levels, definition levels, compress( values )       lengths are in the header
//!
//! Checked   sizes against the chunk and its metadata · the rows of all pages against the row group · known encodings.

use std::ops::Range;

use parquet::basic::{CompressionCodec, Encoding};
use parquet::file::metadata::ColumnChunkMetaData;

use crate::error::{PageError, Result};
use crate::thrift::{Compact, Field};

/// Maximum bytes per page; a larger size can only be damage.
pub const MOST_PAGE_BYTES: u32 = 1 << 30;
/// Some writers leave headers or a dictionary out of the chunk's size.
const SLACK: u64 = 64 << 10;

/// The pages of a column chunk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pages {
    pub dictionary: Option<Page>,
    pub data: Vec<Page>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    Dictionary,
    V1,
    V2,
}

/// A page, as its header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Its body within the chunk.
    pub bytes: Range<usize>,
    pub kind: PageKind,
    pub encoding: Encoding,
    /// With NULLs: rows of a data page, entries of a dictionary.
    pub values: u32,
    /// Bytes of the body, with the levels of V2.
    pub compressed: u32,
    /// Bytes of the body after decompression, with the levels of V2.
    pub raw: u32,
    /// Number of NULLs; only known for V2.
    pub nulls: Option<u32>,
    /// Bytes of repetition and definition levels in front of the values of V2, never compressed. 0 of V1.
    pub level_bytes: (u32, u32),
    /// False where the bytes lie in the file as they are.
    pub is_compressed: bool,
    /// How definition levels of V1 are coded.
    pub level_encoding: Encoding,
}

/// Finds the pages of `chunk`, which holds exactly the bytes of [`ColumnChunkMetaData::byte_range`].
///
/// # Errors
/// [`PageError::Header`] of damaged headers, [`PageError::Rows`] of pages that do not hold `rows` rows together, and
/// [`PageError::Unsupported`] of encodings that nothing here decodes.
pub fn walk(chunk: &[u8], meta: &ColumnChunkMetaData, rows: u64) -> Result<Pages> {
    let is_nullable = meta.column_descr().max_def_level() > 0;
    let is_stored = meta.compression_codec() == CompressionCodec::UNCOMPRESSED;
    let raw_limit = u64::try_from(meta.uncompressed_size()).unwrap_or(0).saturating_add(SLACK);
    let mut pages = Pages::default();
    let (mut at, mut found, mut raw_bytes) = (0, 0_u64, 0_u64);
    while at < chunk.len() {
        let (header, start) = Header::read(chunk, at)?;
        let refused = |what| PageError::Header { at, what };
        let end = start.checked_add(header.compressed as usize).filter(|end| *end <= chunk.len());
        let end = end.ok_or_else(|| refused("promises more bytes than the chunk has"))?;
        raw_bytes += u64::from(header.raw);
        if header.raw > MOST_PAGE_BYTES || raw_bytes > raw_limit {
            return Err(refused("promises more bytes than the chunk has when decompressed"));
        }
        if let Some(mut page) = header.page(start..end, at)? {
            page.is_compressed &= !is_stored;
            if !page.is_compressed && page.compressed != page.raw {
                return Err(refused("gives a stored page two sizes"));
            }
            if page.kind == PageKind::Dictionary {
                if pages.dictionary.is_some() || !pages.data.is_empty() {
                    return Err(refused("is of a second or late dictionary"));
                }
                pages.dictionary = Some(page);
            } else {
                let is_rle = page.kind == PageKind::V2 || page.level_encoding == Encoding::RLE;
                if is_nullable && !is_rle {
                    return Err(PageError::Unsupported("definition levels are not coded as RLE".into()));
                }
                found += u64::from(page.values);
                if found > rows {
                    return Err(PageError::Rows { found, rows });
                }
                pages.data.push(page);
            }
        }
        at = end;
    }
    if found != rows {
        return Err(PageError::Rows { found, rows });
    }
    Ok(pages)
}

/// Fields of a page header.
#[derive(Default)]
struct Header {
    kind: Option<i32>,
    raw: u32,
    compressed: u32,
    v1: Option<Body>,
    dictionary: Option<Body>,
    v2: Option<Body>,
}

#[derive(Default)]
struct Body {
    values: Option<u32>,
    encoding: Option<i32>,
    level_encoding: Option<i32>,
    nulls: Option<u32>,
    rows: Option<u32>,
    level_bytes: (u32, u32),
    is_stored: bool,
}

impl Header {
    /// The header at `at`, and where it ends.
    fn read(chunk: &[u8], at: usize) -> Result<(Self, usize)> {
        let mut header = Self::default();
        let (mut raw, mut compressed) = (None, None);
        let mut reader = Compact::new(chunk, at);
        reader.fields(|reader, field| {
            match field.id {
                1 => header.kind = Some(reader.i32(field)?),
                2 => raw = Some(reader.size(field)?),
                3 => compressed = Some(reader.size(field)?),
                5 => header.v1 = Some(Body::read(reader, field, Body::v1)?),
                7 => header.dictionary = Some(Body::read(reader, field, Body::dictionary)?),
                8 => header.v2 = Some(Body::read(reader, field, Body::v2)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let missing = || reader.malformed("has no sizes");
        header.raw = raw.ok_or_else(missing)?;
        header.compressed = compressed.ok_or_else(missing)?;
        Ok((header, reader.at))
    }

    /// The page whose body lies at `bytes`; `None` of index pages, which are not read.
    fn page(self, bytes: Range<usize>, at: usize) -> Result<Option<Page>> {
        let refused = |what| PageError::Header { at, what };
        let (kind, body) = match self.kind {
            Some(0) => (PageKind::V1, self.v1),
            Some(1) => return Ok(None),
            Some(2) => (PageKind::Dictionary, self.dictionary),
            Some(3) => (PageKind::V2, self.v2),
            _ => return Err(refused("is of an unknown kind of page")),
        };
        let body = body.ok_or_else(|| refused("does not describe its kind of page"))?;
        let values = body.values.ok_or_else(|| refused("does not say how many values there are"))?;
        let encoding = body.encoding.and_then(encoding).ok_or_else(|| refused("has an unknown encoding"))?;
        let level_encoding = match kind {
            PageKind::V1 => body.level_encoding.and_then(self::encoding),
            PageKind::V2 | PageKind::Dictionary => Some(Encoding::RLE),
        };
        let level_encoding = level_encoding.ok_or_else(|| refused("has an unknown encoding of levels"))?;
        let levels = u64::from(body.level_bytes.0) + u64::from(body.level_bytes.1);
        if levels > u64::from(self.raw.min(self.compressed)) {
            return Err(refused("has more levels than bytes"));
        }
        if kind == PageKind::V2 && (body.rows.is_some_and(|rows| rows != values) || body.nulls > Some(values)) {
            return Err(refused("counts rows, values and NULLs that do not agree"));
        }
        let known = match kind {
            PageKind::Dictionary => matches!(encoding, Encoding::PLAIN | Encoding::PLAIN_DICTIONARY),
            PageKind::V1 | PageKind::V2 => true,
        };
        if !known {
            return Err(PageError::Unsupported(format!("a dictionary is coded as {encoding}")));
        }
        Ok(Some(Page {
            bytes,
            kind,
            encoding,
            values,
            compressed: self.compressed,
            raw: self.raw,
            nulls: body.nulls,
            level_bytes: body.level_bytes,
            is_compressed: !body.is_stored,
            level_encoding,
        }))
    }
}

impl Body {
    fn read(
        reader: &mut Compact<'_>,
        field: Field,
        read: fn(&mut Self, &mut Compact<'_>, Field) -> Result<bool>,
    ) -> Result<Self> {
        let mut body = Self::default();
        reader.structure(field, |reader, field| read(&mut body, reader, field))?;
        Ok(body)
    }

    fn v1(&mut self, reader: &mut Compact<'_>, field: Field) -> Result<bool> {
        match field.id {
            1 => self.values = Some(reader.size(field)?),
            2 => self.encoding = Some(reader.i32(field)?),
            3 => self.level_encoding = Some(reader.i32(field)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn dictionary(&mut self, reader: &mut Compact<'_>, field: Field) -> Result<bool> {
        match field.id {
            1 => self.values = Some(reader.size(field)?),
            2 => self.encoding = Some(reader.i32(field)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn v2(&mut self, reader: &mut Compact<'_>, field: Field) -> Result<bool> {
        match field.id {
            1 => self.values = Some(reader.size(field)?),
            2 => self.nulls = Some(reader.size(field)?),
            3 => self.rows = Some(reader.size(field)?),
            4 => self.encoding = Some(reader.i32(field)?),
            5 => self.level_bytes.1 = reader.size(field)?,
            6 => self.level_bytes.0 = reader.size(field)?,
            7 => self.is_stored = !reader.bool(field)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn encoding(number: i32) -> Option<Encoding> {
    #[expect(deprecated, reason = "old files name it")]
    let bit_packed = Encoding::BIT_PACKED;
    Some(match number {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        4 => bit_packed,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        _ => return None,
    })
}
