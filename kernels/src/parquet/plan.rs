//! Plans a batch of pages: descriptors for the kernels, sizes of their buffers. Runs on the host and allocates nothing
//! on the device.

use millpond_memory::DeviceView;

use super::descriptors::{self as raw, FACT_BYTES, FACT_ROWS, NONE, SEGMENT, STATE_BYTES, Segment, TICKET_BYTES};
use super::{Codec, ColumnOutput, Dictionary, Encoding, PageInput, Result, Source, shape};
use crate::abi;
use crate::codegen::ir::Physical;

/// Alignment in bytes of a block's destination in the decompressed page.
const BLOCK_ALIGNMENT: u32 = 16;

/// Upper limit of a page's bytes (exclusive).
const MAX_PAGE_BYTES: u64 = 1 << 30;

/// Work list of one kernel: offset in the descriptors, and length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct List {
    pub(super) at: u32,
    pub(super) len: u32,
}

/// Pages and columns in the kernels' format.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(super) descriptors: Vec<u8>,
    pub(super) columns: Vec<ColumnOutput>,
    pub(super) dictionaries: Vec<Dictionary>,
    pub(super) num_pages: u32,
    pub(super) staging_bytes: u64,
    pub(super) scratch_bytes: u64,
    pub(super) facts: Vec<bool>,
    pub(super) lists: Lists,
}

/// Work lists of the kernels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lists {
    pub(super) snappy: List,
    pub(super) lz4: List,
    pub(super) deltas: List,
    pub(super) codes: List,
    pub(super) numbers: List,
    pub(super) texts: List,
    pub(super) text_columns: List,
    pub(super) text_segments: List,
    pub(super) fact_pieces: List,
}

impl Plan {
    /// Describes a batch. A column may have any number of pages, in any order; rows of the column in no page keep their
    /// contents.
    ///
    /// # Errors
    /// [`KernelError::Shape`](crate::KernelError::Shape) for a page that does not fit its column, or with an encoding
    /// that no kernel decodes.
    pub fn of(pages: &[PageInput], columns: &[ColumnOutput], dictionaries: &[Dictionary]) -> Result<Plan> {
        let mut scratch = Ranges { end: (pages.len() as u64 * STATE_BYTES).next_multiple_of(256) };
        let mut staging_bytes = 0;
        let mut described = Vec::with_capacity(pages.len());
        for (number, page) in pages.iter().enumerate() {
            let wrong = |why: String| shape(format!("page {number}: {why}"));
            let Some(column) = columns.get(page.column as usize) else {
                return Err(wrong(format!("column {} of {}", page.column, columns.len())));
            };
            page.check(column, dictionaries).map_err(wrong)?;
            staging_bytes = staging_bytes.max(page.bytes.end);
            described.push(page.described(column, &mut scratch));
        }
        let mut described_columns = Vec::with_capacity(columns.len());
        for (number, column) in columns.iter().enumerate() {
            let described = column.described();
            described_columns.push(described.map_err(|why| shape(format!("column {number}: {why}")))?);
        }

        let mut bytes = Writer(vec![0; size_of::<raw::Header>()]);
        let columns_at = bytes.part();
        bytes.0.resize(bytes.0.len() + columns.len() * size_of::<raw::Column>(), 0);
        let dictionaries_at = bytes.part();
        dictionaries.iter().for_each(|dictionary| dictionary.described().put(&mut bytes.0));
        let pages_at = bytes.part();
        described.iter().for_each(|page| page.put(&mut bytes.0));
        let lists = Lists::put(&mut bytes, pages, columns, &mut described_columns);

        let errors_at = TICKET_BYTES as u32;
        let header = raw::Header {
            columns: columns.len() as u32,
            columns_at,
            dictionaries: dictionaries.len() as u32,
            dictionaries_at,
            pages: pages.len() as u32,
            pages_at,
            errors_at,
            facts_at: (errors_at + 4 * pages.len() as u32).next_multiple_of(8),
        };
        let mut head = Vec::new();
        header.put(&mut head);
        bytes.0[..head.len()].copy_from_slice(&head);
        let mut of_columns = Vec::new();
        described_columns.iter().for_each(|column| column.put(&mut of_columns));
        bytes.0[columns_at as usize..columns_at as usize + of_columns.len()].copy_from_slice(&of_columns);
        if u32::try_from(bytes.0.len()).is_err() {
            return Err(shape(format!("{} bytes of descriptors are more than 4 GiB", bytes.0.len())));
        }
        Ok(Plan {
            descriptors: bytes.0,
            columns: columns.to_vec(),
            dictionaries: dictionaries.to_vec(),
            num_pages: pages.len() as u32,
            staging_bytes,
            scratch_bytes: scratch.end,
            facts: columns.iter().map(|column| column.facts).collect(),
            lists,
        })
    }

    /// Bytes to upload.
    pub fn descriptors(&self) -> &[u8] {
        &self.descriptors
    }

    /// Bytes of scratch for the kernels; the contents may be arbitrary.
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }

    /// Bytes of the buffer for error words and facts; the caller copies it to the host and reads it with
    /// [`Plan::outcome`].
    pub fn result_bytes(&self) -> u64 {
        self.facts_at() + FACT_BYTES * self.columns.len() as u64
    }

    /// Number of launches of [`decode`](super::decode).
    pub fn num_launches(&self) -> usize {
        let once = [
            self.lists.snappy,
            self.lists.lz4,
            self.lists.deltas,
            self.lists.codes,
            self.lists.numbers,
            self.lists.fact_pieces,
        ];
        let texts = if self.lists.texts.len > 0 { 3 } else { 0 };
        usize::from(self.num_pages > 0) + once.iter().filter(|list| list.len > 0).count() + texts
    }

    pub(super) fn facts_at(&self) -> u64 {
        (TICKET_BYTES + 4 * u64::from(self.num_pages)).next_multiple_of(8)
    }
}

/// Allocates consecutive ranges of a buffer.
struct Ranges {
    end: u64,
}

impl Ranges {
    fn take(&mut self, bytes: u64) -> u64 {
        let at = self.end;
        self.end = (at + bytes).next_multiple_of(16);
        at
    }
}

struct Writer(Vec<u8>);

impl Writer {
    /// Aligns the end and returns it as the offset of the next part.
    fn part(&mut self) -> u32 {
        self.0.resize(self.0.len().next_multiple_of(16), 0);
        self.0.len() as u32
    }

    fn words(&mut self, words: impl Iterator<Item = u32>) -> List {
        let at = self.part();
        words.for_each(|word| self.0.extend_from_slice(&word.to_le_bytes()));
        List { at, len: (self.0.len() as u32 - at) / 4 }
    }

    fn segments(&mut self, segments: impl Iterator<Item = Segment>) -> List {
        let (at, mut len) = (self.part(), 0);
        for segment in segments {
            segment.put(&mut self.0);
            len += 1;
        }
        List { at, len }
    }
}

impl Lists {
    /// Writes all work lists, and links each column to its pages of texts.
    fn put(bytes: &mut Writer, pages: &[PageInput], columns: &[ColumnOutput], described: &mut [raw::Column]) -> Lists {
        // Pages of texts, ordered by column and row.
        let is_text = |page: &PageInput| columns[page.column as usize].stored == Physical::Text;
        let mut in_order: Vec<u32> = (0..pages.len() as u32).filter(|page| is_text(&pages[*page as usize])).collect();
        in_order.sort_by_key(|page| (pages[*page as usize].column, pages[*page as usize].first_row));
        for of_column in in_order.chunk_by(|a, b| pages[*a as usize].column == pages[*b as usize].column) {
            let column = &mut described[pages[of_column[0] as usize].column as usize];
            let list = bytes.words(of_column.iter().copied());
            (column.pages, column.pages_at) = (list.len, list.at);
        }
        let text_columns = (0..columns.len() as u32).filter(|column| described[*column as usize].pages > 0);
        let text_columns = bytes.words(text_columns);

        // Largest first: the pages that start last are short.
        let mut largest: Vec<u32> = (0..pages.len() as u32).collect();
        largest
            .sort_by_key(|page| std::cmp::Reverse(pages[*page as usize].bytes.end - pages[*page as usize].bytes.start));
        let mut list = |wanted: &dyn Fn(&PageInput) -> bool| {
            bytes.words(largest.iter().copied().filter(|page| wanted(&pages[*page as usize])))
        };
        let deltas = list(&|page| matches!(page.encoding, Encoding::DeltaBinary | Encoding::DeltaLength));
        let texts = list(&is_text);

        let mut pieces = |codec: Codec| {
            let of = |page: &u32| pages[*page as usize].pieces(*page);
            let with = |page: &&u32| pages[**page as usize].codec == codec;
            let mut all: Vec<raw::Piece> = largest.iter().filter(with).flat_map(of).collect();
            all.sort_by_key(|piece| std::cmp::Reverse(piece.bytes));
            let at = bytes.part();
            all.iter().for_each(|piece| piece.put(&mut bytes.0));
            List { at, len: all.len() as u32 }
        };
        let (snappy, lz4) = (pieces(Codec::Snappy), pieces(Codec::Lz4Raw));

        let mut segments = |wanted: &dyn Fn(&PageInput) -> bool| {
            let pages = pages.iter().enumerate().filter(|(_, page)| page.rows > 0 && wanted(page));
            bytes.segments(pages.flat_map(|(number, page)| {
                let first = page.skip / SEGMENT * SEGMENT;
                let firsts = (first..page.skip + page.rows).step_by(SEGMENT as usize);
                firsts.map(move |first| Segment { page: number as u32, first })
            }))
        };
        let is_code = |page: &PageInput| matches!(page.encoding, Encoding::Dictionary | Encoding::RleBoolean);
        let codes = segments(&|page| is_code(page) && !is_text(page));
        let numbers = segments(&|page| !is_code(page) && !is_text(page));
        let text_segments = segments(&is_text);

        let with_facts = columns.iter().enumerate().filter(|(_, column)| column.facts);
        let fact_pieces = bytes.segments(with_facts.flat_map(|(number, column)| {
            let firsts = 0..column.rows.div_ceil(FACT_ROWS) as u32;
            firsts.map(move |first| Segment { page: number as u32, first })
        }));
        Lists { snappy, lz4, deltas, codes, numbers, texts, text_columns, text_segments, fact_pieces }
    }
}

impl PageInput {
    fn check(&self, column: &ColumnOutput, dictionaries: &[Dictionary]) -> std::result::Result<(), String> {
        let compressed = self.bytes.end.checked_sub(self.bytes.start).ok_or("bytes end before they begin")?;
        if compressed >= MAX_PAGE_BYTES
            || u64::from(self.raw_bytes) >= MAX_PAGE_BYTES
            || u64::from(self.values) >= MAX_PAGE_BYTES
        {
            return Err(format!("{compressed} bytes, {} decompressed: a GiB or more", self.raw_bytes));
        }
        let levels = u64::from(self.level_bytes.unwrap_or(0));
        if levels > compressed.min(self.raw_bytes.into()) {
            return Err(format!("{levels} bytes of levels are more than the page has"));
        }
        if self.codec == Codec::Stored && compressed != u64::from(self.raw_bytes) {
            return Err(format!("stored in {compressed} bytes instead of {}", self.raw_bytes));
        }
        if self.skip.checked_add(self.rows).is_none_or(|end| end > self.values) {
            return Err(format!("{} rows from {} on of {}", self.rows, self.skip, self.values));
        }
        if self.first_row.checked_add(self.rows.into()).is_none_or(|end| end > column.rows) {
            return Err(format!("{} rows from {} on, but the column has {}", self.rows, self.first_row, column.rows));
        }
        let (bytes, raw) = (compressed as u32 - levels as u32, self.raw_bytes - levels as u32);
        let ends = self.blocks.iter().skip(1).map(|(at, out)| (*at, *out)).chain([(bytes, raw)]);
        // Kernels store whole words at the beginning of a block.
        let grow = |((at, out), (end, raw)): (&(u32, u32), (u32, u32))| {
            *at > 0 && *at < end && *out < raw && out.is_multiple_of(BLOCK_ALIGNMENT)
        };
        let is_split = !self.blocks.is_empty();
        let begins = self.blocks.first().is_none_or(|(_, out)| *out == 0);
        if is_split && (self.codec != Codec::Snappy || !begins) || !self.blocks.iter().zip(ends).all(grow) {
            return Err(format!("no such blocks: {:?}", self.blocks));
        }
        let dictionary = match self.dictionary {
            None => None,
            Some(at) => {
                Some(dictionaries.get(at as usize).ok_or(format!("dictionary {at} of {}", dictionaries.len()))?)
            }
        };
        let no_kernel = || format!("no kernel for {:?} of {:?} as {:?}", self.encoding, column.source, column.stored);
        let fits = match (self.encoding, column.stored) {
            (Encoding::Dictionary, Physical::Text) => match dictionary {
                Some(Dictionary::Texts { offsets, .. }) => offsets.len() >= 4,
                _ => return Err("a dictionary of texts is needed".into()),
            },
            (Encoding::Dictionary, Physical::Bit) => false,
            (Encoding::Dictionary, stored) => match dictionary {
                Some(Dictionary::Table { values, entries }) => {
                    values.len() as u64 >= u64::from(*entries) * u64::from(stored.width())
                        && values.address().0.is_multiple_of(u64::from(stored.width()))
                }
                _ => return Err("a table is needed".into()),
            },
            (Encoding::RleBoolean, stored) => stored == Physical::Bit && column.source == Source::Boolean,
            (Encoding::Plain, Physical::Text) | (Encoding::DeltaLength, Physical::Text) => {
                column.source == Source::Text
            }
            (Encoding::Plain, stored) => {
                column.source != Source::Text && (column.source == Source::Boolean) == (stored == Physical::Bit)
            }
            (Encoding::DeltaBinary, stored) => {
                matches!(column.source, Source::Int32 | Source::Int64 | Source::UInt32)
                    && !matches!(stored, Physical::Bit | Physical::Text)
            }
            (Encoding::StreamSplit, stored) => {
                !matches!(column.source, Source::Boolean | Source::Text | Source::Int96)
                    && !matches!(stored, Physical::Bit | Physical::Text)
            }
            (Encoding::DeltaLength, _) => false,
        };
        if fits { Ok(()) } else { Err(no_kernel()) }
    }

    /// Parts of the page that blocks decompress independently.
    fn pieces(&self, page: u32) -> Vec<raw::Piece> {
        let levels = self.level_bytes.unwrap_or(0);
        let (bytes, raw) = ((self.bytes.end - self.bytes.start) as u32 - levels, self.raw_bytes - levels);
        let ends = self.blocks.iter().skip(1).copied().chain([(bytes, raw)]);
        let block = |((at, out), (end, raw_end)): (&(u32, u32), (u32, u32))| raw::Piece {
            page,
            at: *at,
            bytes: end - at,
            out: *out,
            raw: raw_end - out,
        };
        match self.blocks.is_empty() {
            true => vec![raw::Piece { page, at: 0, bytes, out: 0, raw }],
            false => self.blocks.iter().zip(ends).map(block).collect(),
        }
    }

    fn described(&self, column: &ColumnOutput, scratch: &mut Ranges) -> raw::Page {
        let levels = self.level_bytes.unwrap_or(0);
        let values = u64::from(self.values);
        let mut place = 0;
        if self.codec != Codec::Stored {
            // Kernels may read slightly beyond the end.
            place = scratch.take(u64::from(self.raw_bytes - levels) + 32);
        }
        let bits = if self.has_levels { values.div_ceil(128) * 16 } else { 0 };
        let prefixes = if self.has_levels { values.div_ceil(SEGMENT.into()).next_multiple_of(4) * 4 } else { 0 };
        let most_runs = match self.encoding {
            Encoding::Dictionary | Encoding::RleBoolean => (values / 4).min(u64::from(self.raw_bytes) / 2) + 2,
            _ => 0,
        };
        let starts = (bits + prefixes + most_runs * 8).next_multiple_of(16);
        let words = values.next_multiple_of(4) * 4;
        let behind = match (self.encoding, column.stored) {
            (Encoding::DeltaLength, _) => 3 * words,
            (_, Physical::Text) => 2 * words,
            (Encoding::DeltaBinary, _) => values * u64::from(column.source.width()),
            _ => 0,
        };
        raw::Page {
            source: self.bytes.start,
            scratch: place,
            work: scratch.take(starts + behind),
            first_row: self.first_row,
            compressed: (self.bytes.end - self.bytes.start) as u32,
            raw: self.raw_bytes,
            values: self.values,
            skip: self.skip,
            rows: self.rows,
            level_bytes: levels,
            column: self.column,
            dictionary: self.dictionary.unwrap_or(NONE),
            most_runs: most_runs as u32,
            starts: starts as u32,
            codec: self.codec as u8,
            encoding: self.encoding as u8,
            flags: if self.level_bytes.is_some() { raw::V2 } else { 0 }
                | if self.has_levels { raw::HAS_LEVELS } else { 0 },
            ..raw::Page::default()
        }
    }
}

impl Dictionary {
    fn described(&self) -> raw::Dictionary {
        match self {
            Dictionary::Table { values, entries } => {
                raw::Dictionary { values: values.address().0, entries: *entries, ..raw::Dictionary::default() }
            }
            Dictionary::Texts { offsets, bytes } => raw::Dictionary {
                values: offsets.address().0,
                bytes: bytes.address().0,
                entries: (offsets.len() / 4 - 1) as u32,
                width: 0,
                capacity: bytes.len() as u64,
            },
        }
    }
}

impl ColumnOutput {
    fn described(&self) -> std::result::Result<raw::Column, String> {
        let at_least = |what: &str, view: &DeviceView, wanted: u64| match view.len() as u64 {
            found if found < wanted => Err(format!("{what} has {found} bytes but {wanted} are needed")),
            _ => Ok(()),
        };
        let is_text = self.stored == Physical::Text;
        let width = if is_text { 4 } else { self.stored.width() };
        if matches!(self.stored, Physical::View | Physical::LongText) {
            return Err(format!("no kernel for {:?}", self.stored));
        }
        let wanted = match self.stored {
            Physical::Bit => self.rows.div_ceil(32) * 4,
            stored => stored.value_bytes(self.rows),
        };
        let padded = if self.stored == Physical::Bit { self.values.padded() } else { self.values.clone() };
        at_least("values", &padded, wanted)?;
        if let Some(validity) = &self.validity {
            at_least("validity", &validity.padded(), self.rows.div_ceil(32) * 4)?;
        }
        let aligned = |view: &DeviceView, to: u64| view.address().0.is_multiple_of(to);
        if !aligned(&self.values, u64::from(width.max(4)))
            || self.validity.as_ref().is_some_and(|bits| !aligned(bits, 4))
        {
            return Err("not aligned".into());
        }
        if self.base != 0 && (width == 16 || is_text || !self.is_integer()) {
            return Err(format!("a base of {} for {:?}", self.base, self.stored));
        }
        let (low, high) = self.bounds();
        Ok(raw::Column {
            values: self.values.address().0,
            validity: self.validity.as_ref().map_or(0, |validity| validity.address().0),
            bytes: if is_text { self.values.address().0 + wanted } else { 0 },
            capacity: if is_text { self.values.len() as u64 - wanted } else { 0 },
            base: self.base,
            low,
            high,
            rows: self.rows,
            source: self.source.number(),
            width_in: self.source.width(),
            width_out: if self.stored == Physical::Bit { 0 } else { width },
            first_offset: if is_text { wanted as u32 } else { 0 },
            stored: abi::integer_kind(self.stored).unwrap_or(8),
            utf8: self.utf8.into(),
            ..raw::Column::default()
        })
    }

    fn is_integer(&self) -> bool {
        self.stored.bounds().is_some()
    }

    /// Range of a value before the base is subtracted: the intersection of the stored type's range and the statistics.
    fn bounds(&self) -> (i64, i64) {
        let all = (i64::MIN, i64::MAX);
        let Some(bounds) = self.stored.bounds().filter(|_| self.stored != Physical::I128) else { return all };
        if matches!(self.source, Source::Float | Source::Double) {
            return all;
        }
        let base = i128::from(self.base);
        let within = |bound: i128| (bound + base).clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        let (low, high) = self.range.unwrap_or(all);
        (low.max(within(bounds.low)), high.min(within(bounds.high)))
    }
}
