//! Pages of a chunk for the device's decoder: which of its bytes go up, and where their rows go.
//!
//!   chunk   [ dictionary │ page 0 │ page 1 │ page 2 ]        rows 25,000..40,000 are wanted
//!   up                     table             page 1 …         its first rows are left out
//!
//! On the host   dictionaries: strings are interned there, and a table of codes or narrowed numbers goes up.
//! Strings       without a dictionary are texts: those of characters have to be ASCII there, because no kernel checks UTF-8.
//! Refused       codecs and encodings without a kernel, and chunks of strings in several forms: the host decodes the column.

use std::ops::Range;

use datafusion::parquet::basic::{Compression, Encoding as PageEncoding, Type};
use millpond_kernels::parquet::{Codec, Encoding, Source};
use millpond_parquet::{Conversion, Page, PageKind, Raw, ReadError, dictionary, is_all_dictionary};

use crate::parquet::decode::{Decoding, Interning, NoCodes, Target, Undecoded};
use crate::parquet::file::ColumnSource;
use crate::parquet::unit::{Chunks, Part, Span, Units};

/// A column that the device decodes.
pub(crate) struct DeviceColumn {
    pub source: Source,
    /// Rows may be NULL: pages have levels.
    pub has_levels: bool,
    /// Texts, each byte of which has to be ASCII.
    pub is_ascii: bool,
    pub parts: Vec<DevicePart>,
}

impl DeviceColumn {
    /// Bytes of its texts, at most.
    pub fn most_text_bytes(&self) -> usize {
        self.parts.iter().flat_map(|part| &part.pages).map(|page| page.raw_bytes as usize).sum()
    }
}

/// A chunk of it.
pub(crate) struct DevicePart {
    /// The unit.
    pub unit: usize,
    /// What codes mean: numbers as they are stored, or codes of 32 bits.
    pub table: Option<Vec<u8>>,
    pub pages: Vec<DevicePage>,
    /// The bytes of the chunk that go up.
    pub bytes: Range<usize>,
}

/// Rows of a page.
pub(crate) struct DevicePage {
    /// In the chunk.
    pub bytes: Range<usize>,
    pub raw_bytes: u32,
    pub codec: Codec,
    pub encoding: Encoding,
    pub level_bytes: Option<u32>,
    pub values: u32,
    pub skip: u32,
    pub rows: u32,
    pub first_row: u64,
}

impl Decoding<'_> {
    /// The same column for the device; `None` where the host has to decode it.
    ///
    /// # Errors
    /// Why a dictionary cannot be read.
    pub fn on_device(
        &self,
        column: usize,
        target: Target,
        mut codes: Option<&mut Interning<'_>>,
    ) -> Result<Option<DeviceColumn>, Undecoded> {
        let ColumnSource::Leaf(leaf, conversion) = &self.units.file().columns[column] else { return Ok(None) };
        let descriptor = self.units.file().metadata.file_metadata().schema_descr().column(*leaf);
        let is_coded = |part: &Part| {
            let unit = self.units.unit(part.unit);
            is_all_dictionary(unit.file.chunk(unit.row_group, *leaf))
        };
        let source = match (target, conversion.raw()) {
            (Target::Codes, _) if conversion.is_text() && self.parts.iter().all(is_coded) => Source::Text,
            (Target::Text, _) if conversion.is_text() && descriptor.physical_type() == Type::BYTE_ARRAY => Source::Text,
            (Target::Fixed { .. }, Some(raw)) => source(raw),
            _ => return Ok(None),
        };
        let (mut parts, mut first_row) = (Vec::with_capacity(self.parts.len()), 0);
        for part in self.parts {
            let chunks = &self.chunks[part.unit];
            let on_device = chunks.on_device(
                (self.units, part, first_row),
                (column, *leaf, conversion),
                (source, target),
                codes.as_deref_mut(),
            );
            let Some(on_device) = on_device? else { return Ok(None) };
            parts.push(on_device);
            first_row += part.rows();
        }
        let is_ascii = target == Target::Text && conversion.is_utf8();
        Ok(Some(DeviceColumn { source, has_levels: descriptor.max_def_level() > 0, is_ascii, parts }))
    }
}

impl Chunks {
    fn on_device(
        &self,
        (units, part, first_row): (&Units, &Part, u64),
        (column, leaf, conversion): (usize, usize, &Conversion),
        (source, target): (Source, Target),
        codes: Option<&mut Interning<'_>>,
    ) -> Result<Option<DevicePart>, Undecoded> {
        let Some(chunk) = &self.chunks[column] else { return Ok(None) };
        let unit = units.unit(part.unit);
        let meta = unit.file.chunk(unit.row_group, leaf);
        let codec = match meta.compression() {
            Compression::UNCOMPRESSED => Codec::Stored,
            Compression::SNAPPY => Codec::Snappy,
            Compression::LZ4_RAW => Codec::Lz4Raw,
            _ => return Ok(None),
        };
        let mut pages = Vec::new();
        for (page, overlap) in overlaps(&chunk.pages.data, &part.spans) {
            let of = Overlap { first_row: overlap.first_row + first_row, ..overlap };
            let Some(page) = device_page(page, codec, (source, target), of) else { return Ok(None) };
            pages.push(page);
        }
        let table = match pages.iter().any(|page| page.encoding == Encoding::Dictionary) {
            false => None,
            true => {
                let (bytes, layout) = (chunk.bytes.as_slice(), target.layout());
                let read = match codes {
                    Some(codes) => {
                        codes.begin(self.coded_rows(column));
                        let read = dictionary(bytes, &chunk.pages, meta, conversion, layout, codes);
                        read.map_err(|error| codes.failed(error))
                    }
                    None => {
                        let read = dictionary(bytes, &chunk.pages, meta, conversion, layout, &mut NoCodes);
                        read.map_err(|error| match error {
                            ReadError::Page(error) => Undecoded::of_page(error),
                            ReadError::Stopped => Undecoded::internal("numbers ask for codes"),
                        })
                    }
                };
                match read {
                    // An entry that no row has may lie outside: the host looks at rows.
                    Err(Undecoded::Range) => return Ok(None),
                    read => Some(read?),
                }
            }
        };
        let begin = pages.iter().map(|page| page.bytes.start).min().unwrap_or(0);
        let end = pages.iter().map(|page| page.bytes.end).max().unwrap_or(0);
        Ok(Some(DevicePart { unit: part.unit, table, pages, bytes: begin..end }))
    }

    /// Bytes of a column's chunk.
    pub fn bytes_of(&self, column: usize, range: Range<usize>) -> &[u8] {
        self.chunks[column].as_ref().map_or(&[], |chunk| &chunk.bytes.as_slice()[range])
    }
}

fn source(raw: Raw) -> Source {
    match raw {
        Raw::Boolean => Source::Boolean,
        Raw::Int32 => Source::Int32,
        Raw::UInt32 => Source::UInt32,
        Raw::Int64 => Source::Int64,
        Raw::Float => Source::Float,
        Raw::Double => Source::Double,
        Raw::Int96 => Source::Int96,
        Raw::Fixed(bytes) => Source::Fixed(u32::from(bytes)),
    }
}

/// The rows of a page that become rows of the output from `first_row` on.
struct Overlap {
    skip: u64,
    rows: u64,
    first_row: u64,
}

/// Pages with rows in spans, which begin at the chunk's first row.
fn overlaps<'p>(pages: &'p [Page], spans: &[Span]) -> Vec<(&'p Page, Overlap)> {
    let mut found = Vec::new();
    let (mut at, mut first_row) = (0, 0);
    let mut wanted = spans.iter().map(|span| {
        at += span.skip;
        let of = (at..at + span.rows, first_row);
        at += span.rows;
        first_row += span.rows;
        of
    });
    let Some(mut span) = wanted.next() else { return found };
    let mut page_at = 0;
    for page in pages {
        let end = page_at + u64::from(page.values);
        loop {
            let (rows, first_row) = &span;
            let (low, high) = (rows.start.max(page_at), rows.end.min(end));
            if low < high {
                let first_row = first_row + (low - rows.start);
                found.push((page, Overlap { skip: low - page_at, rows: high - low, first_row }));
            }
            if rows.end > end {
                break;
            }
            match wanted.next() {
                Some(next) => span = next,
                None => return found,
            }
        }
        page_at = end;
    }
    found
}

/// A page as the kernels know it; `None` for one that they do not decode.
fn device_page(page: &Page, codec: Codec, (source, target): (Source, Target), of: Overlap) -> Option<DevicePage> {
    let encoding = match page.encoding {
        PageEncoding::PLAIN if target != Target::Codes => Encoding::Plain,
        PageEncoding::DELTA_LENGTH_BYTE_ARRAY if target == Target::Text => Encoding::DeltaLength,
        _ if source == Source::Text && target != Target::Codes => return None,
        PageEncoding::PLAIN_DICTIONARY | PageEncoding::RLE_DICTIONARY => Encoding::Dictionary,
        _ if source == Source::Text => return None,
        PageEncoding::RLE if source == Source::Boolean => Encoding::RleBoolean,
        PageEncoding::DELTA_BINARY_PACKED => Encoding::DeltaBinary,
        PageEncoding::BYTE_STREAM_SPLIT => Encoding::StreamSplit,
        _ => return None,
    };
    let level_bytes = match page.kind {
        PageKind::V1 if page.level_encoding != PageEncoding::RLE => return None,
        PageKind::V1 => None,
        PageKind::V2 if page.level_bytes.0 > 0 => return None,
        PageKind::V2 => Some(page.level_bytes.1),
        PageKind::Dictionary => return None,
    };
    Some(DevicePage {
        bytes: page.bytes.clone(),
        raw_bytes: page.raw,
        codec: if page.is_compressed { codec } else { Codec::Stored },
        encoding,
        level_bytes,
        values: page.values,
        skip: u32::try_from(of.skip).ok()?,
        rows: u32::try_from(of.rows).ok()?,
        first_row: of.first_row,
    })
}
