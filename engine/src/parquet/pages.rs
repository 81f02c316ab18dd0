//! Selects the pages of a chunk for the device's decoder: the bytes to upload, and the positions of their rows.
//!
//!   chunk   [ dictionary │ page 0 │ page 1 │ page 2 ]        rows 25,000..40,000 are wanted
//!   up                     table             page 1 …         leading unwanted rows are skipped
//!
//! Dictionaries  of numbers are pages like others; strings are interned on the host, and a table of codes is uploaded.
//! Strings       decoded to texts may also have a dictionary: its offsets and bytes are uploaded after the host has
//!               checked them.
//! Refused       codecs and encodings without a kernel, and codes of chunks without a dictionary for all pages: the
//!               host decodes the column.

use std::ops::Range;

use datafusion::parquet::basic::{Compression, Encoding as PageEncoding, Type};
use millpond_kernels::codegen::ir::MAX_TEXT_BYTES;
use millpond_kernels::parquet::{Codec, Encoding, Source};
use millpond_parquet::{
    Conversion, Page, PageKind, Raw, ReadError, dictionary, dictionary_bytes, is_all_dictionary, snappy_blocks,
};

use crate::parquet::decode::{Decoding, Interning, NoCodes, Target, Undecoded};
use crate::parquet::file::ColumnSource;
use crate::parquet::unit::{Chunks, Part, Span, Unit, Units};

/// A column that the device decodes.
pub(crate) struct DeviceColumn {
    pub source: Source,
    /// Rows may be NULL: pages have levels.
    pub has_levels: bool,
    /// Texts must be valid UTF-8.
    pub is_utf8: bool,
    pub parts: Vec<DevicePart>,
    /// Maximum bytes of its texts.
    pub most_text_bytes: usize,
}

impl DeviceColumn {
    /// Largest string code in its tables.
    pub fn most_code(&self) -> u32 {
        let codes = self.parts.iter().filter_map(|part| part.table.as_ref());
        let codes = codes.flat_map(|table| table.bytes.as_chunks::<4>().0);
        codes.map(|code| u32::from_le_bytes(*code)).max().unwrap_or(0)
    }
}

/// Dictionary of a chunk.
pub(crate) struct Table {
    /// 32-bit codes; or 32-bit offsets, one more than entries, followed by text bytes; or the decompressed bytes of a
    /// large page of numbers.
    pub bytes: Vec<u8>,
    pub entries: usize,
    /// Page of numbers, as in the file or decompressed.
    pub page: Option<DevicePage>,
}

/// A chunk of the column.
pub(crate) struct DevicePart {
    /// Index of the unit.
    pub unit: usize,
    pub table: Option<Table>,
    pub pages: Vec<DevicePage>,
    /// Byte range of the chunk to upload.
    pub bytes: Range<usize>,
}

/// Selected rows of a page.
pub(crate) struct DevicePage {
    /// Range in the chunk.
    pub bytes: Range<usize>,
    pub raw_bytes: u32,
    pub codec: Codec,
    pub encoding: Encoding,
    pub level_bytes: Option<u32>,
    pub values: u32,
    pub skip: u32,
    pub rows: u32,
    pub first_row: u64,
    /// Blocks that are decompressed independently.
    pub blocks: Vec<(u32, u32)>,
}

/// Maximum bytes of a dictionary that is decompressed as a whole on the device; larger ones are decompressed by blocks,
/// or on the host.
const MOST_DICTIONARY: u32 = 1 << 16;
/// Bytes above which data pages are decompressed by blocks. The host has to scan a page once to find them: when a chunk
/// is decoded for the first time, it does so only for pages large enough to delay all others.
const LARGE_PAGE: u32 = 1 << 19;
const LARGE_KNOWN_PAGE: u32 = 1 << 17;
/// Maximum number of parts of one page that the device decodes.
const MOST_PARTS: usize = 4;

/// Minimum number of coded rows for deciding whether values are nearly all distinct.
const LEAST_CODED: usize = 1 << 12;

impl Decoding<'_> {
    /// True for a string column that is faster without codes, judging by its page headers.
    pub fn is_mostly_text(&self, column: usize) -> bool {
        self.parts.iter().any(|part| self.chunks[part.unit].is_mostly_text(column))
    }

    /// Prepares a column for the device; `None` if the host has to decode it.
    ///
    /// # Errors
    /// If a dictionary cannot be read.
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
        let (mut parts, mut first_row, mut most_text_bytes) = (Vec::with_capacity(self.parts.len()), 0, 0);
        for part in self.parts {
            let chunks = &self.chunks[part.unit];
            let on_device = chunks.on_device(
                (self.units, part, first_row),
                (column, *leaf, conversion),
                (source, target),
                codes.as_deref_mut(),
            );
            let Some(on_device) = on_device? else { return Ok(None) };
            if target == Target::Text {
                most_text_bytes += on_device.most_text_bytes(self.units.unit(part.unit), part, *leaf);
            }
            parts.push(on_device);
            first_row += part.rows();
        }
        let is_utf8 = target == Target::Text && conversion.is_utf8();
        let has_levels = descriptor.max_def_level() > 0;
        Ok(Some(DeviceColumn { source, has_levels, is_utf8, parts, most_text_bytes }))
    }
}

impl DevicePart {
    fn new(unit: usize, table: Option<Table>, pages: Vec<DevicePage>) -> Self {
        let of_file = |table: &&Table| table.bytes.is_empty();
        let table_page = || table.iter().filter(of_file).filter_map(|table| table.page.as_ref());
        let all = || table_page().chain(&pages).map(|page| &page.bytes);
        let (begin, end) = (all().map(|bytes| bytes.start).min(), all().map(|bytes| bytes.end).max());
        Self { unit, bytes: begin.unwrap_or(0)..end.unwrap_or(0), table, pages }
    }

    /// Upper bound of the column's text bytes: the page sizes, for dictionary pages the longest entry in each row,
    /// limited by the footer's total if all rows are read. More than an extent can hold is refused.
    fn most_text_bytes(&self, unit: &Unit, part: &Part, leaf: usize) -> usize {
        let meta = unit.file.chunk(unit.row_group, leaf);
        let known = meta.unencoded_byte_array_data_bytes().and_then(|bytes| usize::try_from(bytes).ok());
        let known = known.filter(|_| part.rows() == meta.num_values() as u64).unwrap_or(usize::MAX);
        let longest = self.table.as_ref().map_or(0, Table::longest);
        let bytes = |page: &DevicePage| match page.encoding {
            Encoding::Dictionary => longest.saturating_mul(page.values as usize),
            _ => page.raw_bytes as usize,
        };
        let total = self.pages.iter().map(bytes).fold(0, usize::saturating_add);
        known.min(total).min(MAX_TEXT_BYTES as usize)
    }
}

impl DevicePage {
    /// The entries of a dictionary, as a plain page.
    fn of_dictionary(page: &Page, codec: Codec) -> Self {
        Self {
            bytes: page.bytes.clone(),
            raw_bytes: page.raw,
            codec: if page.is_compressed { codec } else { Codec::Stored },
            encoding: Encoding::Plain,
            level_bytes: None,
            values: page.values,
            skip: 0,
            rows: page.values,
            first_row: 0,
            blocks: vec![],
        }
    }
}

impl Table {
    /// Bytes of its longest text.
    fn longest(&self) -> usize {
        let offsets = &self.bytes.as_chunks::<4>().0[..self.entries + 1];
        let lengths = offsets.windows(2).map(|ends| u32::from_le_bytes(ends[1]) - u32::from_le_bytes(ends[0]));
        lengths.max().unwrap_or(0) as usize
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
        let Some(codec) = codec(meta.compression()) else { return Ok(None) };
        let mut pages = Vec::new();
        let is_known = chunk.pages.decode_again();
        let cut = overlaps(&chunk.pages.data, &part.spans);
        // The device decompresses a page again for each of its parts; the host does so once.
        if cut.chunk_by(|a, b| a.0 == b.0).any(|parts| parts.len() > MOST_PARTS) {
            return Ok(None);
        }
        for (at, overlap) in cut {
            let of = Overlap { first_row: overlap.first_row + first_row, ..overlap };
            let page = &chunk.pages.data[at];
            let Some(mut device) = device_page(page, codec, (source, target), of) else { return Ok(None) };
            let least = if is_known { LARGE_KNOWN_PAGE } else { LARGE_PAGE };
            if device.codec == Codec::Snappy && device.raw_bytes > least {
                // In a page of version 2, the levels precede the compressed bytes.
                let from = page.bytes.start + device.level_bytes.unwrap_or(0) as usize;
                let find = || snappy_blocks(&chunk.bytes.as_slice()[from..page.bytes.end]).unwrap_or_default();
                device.blocks = chunk.pages.blocks(at, find).to_vec();
            }
            pages.push(device);
        }
        let table = match pages.iter().any(|page| page.encoding == Encoding::Dictionary) {
            false => None,
            true => {
                let (bytes, layout) = (chunk.bytes.as_slice(), target.layout());
                let Some(page) = &chunk.pages.dictionary else { return Ok(None) };
                let entries = page.values as usize;
                // The entry count is not verified yet, but determines an allocation.
                if page.values > page.raw {
                    return Ok(None);
                }
                let read = match codes {
                    _ if source != Source::Text => {
                        let mut page = DevicePage::of_dictionary(page, codec);
                        let mut decompressed = vec![];
                        // A single thread block would need long for it while all others wait.
                        let is_large = page.codec != Codec::Stored && page.raw_bytes > MOST_DICTIONARY;
                        if is_large && page.codec == Codec::Snappy {
                            let find = || snappy_blocks(&bytes[page.bytes.clone()]).unwrap_or_default();
                            page.blocks = chunk.pages.dictionary_blocks(find).to_vec();
                        }
                        if is_large && page.blocks.is_empty() {
                            decompressed = dictionary_bytes(bytes, &chunk.pages, meta).map_err(Undecoded::of_page)?;
                            (page.codec, page.bytes) = (Codec::Stored, 0..decompressed.len());
                        }
                        let table = Table { bytes: decompressed, entries, page: Some(page) };
                        return Ok(Some(DevicePart::new(part.unit, Some(table), pages)));
                    }
                    Some(codes) => {
                        codes.begin(self.coded_rows(column));
                        let read = dictionary(bytes, &chunk.pages, meta, conversion, layout, codes);
                        read.map_err(|error| codes.failed(error))
                    }
                    None => {
                        let read = dictionary(bytes, &chunk.pages, meta, conversion, layout, &mut NoCodes);
                        read.map_err(|error| match error {
                            ReadError::Page(error) => Undecoded::of_page(error),
                            ReadError::Stopped => Undecoded::internal("texts ask for codes"),
                        })
                    }
                };
                Some(Table { bytes: read?, entries, page: None })
            }
        };
        Ok(Some(DevicePart::new(part.unit, table, pages)))
    }

    /// True for a string column whose writer abandoned the dictionary after nearly all distinct values.
    fn is_mostly_text(&self, column: usize) -> bool {
        let Some(chunk) = &self.chunks[column] else { return false };
        let entries = chunk.pages.dictionary.as_ref().map_or(0, |page| page.values as usize);
        let rows: usize = chunk.pages.data.iter().map(|page| page.values as usize).sum();
        let coded = self.coded_rows(column);
        coded >= LEAST_CODED && coded < rows / 2 && entries > coded / 2
    }

    /// Bytes of a column's chunk.
    pub fn bytes_of(&self, column: usize, range: Range<usize>) -> &[u8] {
        self.chunks[column].as_ref().map_or(&[], |chunk| &chunk.bytes.as_slice()[range])
    }
}

/// The kernels' name of a codec; `None` if they do not support it.
pub(super) fn codec(of: Compression) -> Option<Codec> {
    match of {
        Compression::UNCOMPRESSED => Some(Codec::Stored),
        Compression::SNAPPY => Some(Codec::Snappy),
        Compression::LZ4_RAW => Some(Codec::Lz4Raw),
        _ => None,
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

/// Rows of a page that become output rows from `first_row` on.
struct Overlap {
    skip: u64,
    rows: u64,
    first_row: u64,
}

/// Pages with rows in the spans, which are relative to the chunk's first row.
fn overlaps(pages: &[Page], spans: &[Span]) -> Vec<(usize, Overlap)> {
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
    for (number, page) in pages.iter().enumerate() {
        let end = page_at + u64::from(page.values);
        loop {
            let (rows, first_row) = &span;
            let (low, high) = (rows.start.max(page_at), rows.end.min(end));
            if low < high {
                let first_row = first_row + (low - rows.start);
                found.push((number, Overlap { skip: low - page_at, rows: high - low, first_row }));
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

/// A page in the kernels' terms; `None` if they cannot decode it.
fn device_page(page: &Page, codec: Codec, (source, target): (Source, Target), of: Overlap) -> Option<DevicePage> {
    let encoding = match page.encoding {
        PageEncoding::PLAIN if target != Target::Codes => Encoding::Plain,
        PageEncoding::DELTA_LENGTH_BYTE_ARRAY if target == Target::Text => Encoding::DeltaLength,
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
        blocks: vec![],
    })
}
