//! Reads the rows of a column chunk, page by page and block by block.
//!
//!   pages     [ 0..20,000 ][ 20,000..40,000 ][ … ]        skip 25,000: the first is never decompressed
//!   page      levels ──► validity words, and how many values there are      a page without NULLs: none
//!             values ──► Column                                              in blocks of 1,024 rows
//!
//! After an error the reader's position is unspecified: drop it, and what it wrote.

use std::ops::Range;

use parquet::basic::{CompressionCodec, Encoding};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::schema::types::ColumnDescriptor;

use crate::codec::{decompress, stored};
use crate::column::{self, BLOCK, Block, Column, Intern, Layout, Values};
use crate::conversion::Conversion;
use crate::error::{PageError, ReadError, Result};
use crate::facts::Facts;
use crate::out::Out;
use crate::pages::{Page, PageKind, Pages};
use crate::rle::Runs;

/// Reads the rows of a column chunk, front to back.
pub struct ColumnReader<'a> {
    chunk: &'a [u8],
    pages: &'a Pages,
    codec: CompressionCodec,
    is_nullable: bool,
    column: Box<dyn Column>,
    has_dictionary: bool,
    /// Index of the next page.
    next: usize,
    open: Option<Open>,
    /// The body of the open page, if it had to be decompressed.
    raw: Vec<u8>,
    /// Rows to skip before the next read, and rows left after them.
    to_skip: u64,
    left: u64,
}

/// A page of which rows were read.
struct Open {
    page: usize,
    /// Rows not yet read.
    left: usize,
    /// Where the levels are, and the position among them; `None` if no row is NULL.
    levels: Option<(Range<usize>, Runs)>,
}

impl<'a> ColumnReader<'a> {
    /// A reader of the chunk's first row.
    ///
    /// # Errors
    /// [`PageError::Unsupported`] where `layout` does not fit `conversion`.
    pub fn new(
        chunk: &'a [u8],
        pages: &'a Pages,
        meta: &ColumnChunkMetaData,
        column: &ColumnDescriptor,
        conversion: &Conversion,
        layout: Layout,
    ) -> Result<Self> {
        Ok(Self {
            chunk,
            pages,
            codec: meta.compression_codec(),
            is_nullable: column.max_def_level() > 0,
            column: column::of(*conversion, layout)?,
            has_dictionary: false,
            next: 0,
            open: None,
            raw: Vec::new(),
            to_skip: 0,
            left: pages.data.iter().map(|page| u64::from(page.values)).sum(),
        })
    }

    /// Passes over the next `rows` rows. Pages that lie wholly among them are never decompressed.
    ///
    /// # Errors
    /// [`PageError::Shape`] where fewer rows are left. Damaged pages are found by the next read.
    pub fn skip(&mut self, rows: u64) -> std::result::Result<(), ReadError> {
        self.take(rows)?;
        self.to_skip += rows;
        Ok(())
    }

    /// Writes the next `rows` rows to rows `first..first + rows` of `out`, and returns their facts.
    ///
    /// # Errors
    /// [`PageError`], or [`ReadError::Stopped`] where `intern` stopped.
    pub fn read(
        &mut self,
        rows: u64,
        first: u64,
        out: &mut Out<'_>,
        intern: &mut dyn Intern,
    ) -> std::result::Result<Facts, ReadError> {
        self.take(rows)?;
        let end = first.checked_add(rows).ok_or_else(|| PageError::Shape("too many rows".into()))?;
        self.pass(intern)?;
        self.column.begin(first, end, out)?;
        if let Some((_, bits)) = &mut out.validity {
            bits.start(first)?;
        }
        let mut at = first;
        while at < end {
            at += self.block(end - at, at, out, intern)? as u64;
        }
        Ok(self.column.facts())
    }

    /// Takes `rows` from those that are left.
    fn take(&mut self, rows: u64) -> Result<()> {
        let left = self.left.checked_sub(rows);
        self.left =
            left.ok_or_else(|| PageError::Shape(format!("{rows} rows of a chunk that has {} left", self.left)))?;
        Ok(())
    }

    /// Reads up to `most` rows of one page; returns their number.
    fn block(
        &mut self,
        most: u64,
        first: u64,
        out: &mut Out<'_>,
        intern: &mut dyn Intern,
    ) -> std::result::Result<usize, ReadError> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.begin_page(intern)?,
        };
        let body = body(&self.pages.data[open.page], self.chunk, &self.raw)?;
        let rows = open.left.min(BLOCK).min(usize::try_from(most).unwrap_or(usize::MAX));
        let mut words = [u32::MAX; BLOCK / 32];
        let valid = match &mut open.levels {
            Some((range, runs)) => {
                runs.read_bits(&body[range.clone()], &mut words, rows)?;
                words[..rows.div_ceil(32)].iter().map(|word| word.count_ones() as usize).sum()
            }
            None => rows,
        };
        match &mut out.validity {
            Some((bytes, bits)) => bits.append(bytes, &masked(&words, rows), rows)?,
            None if valid < rows => return Err(PageError::UnexpectedNull.into()),
            None => {}
        }
        self.column.block(body, &Block { rows, valid, words: &words }, first, out)?;
        open.left -= rows;
        self.open = Some(open).filter(|open| open.left > 0);
        Ok(rows)
    }

    /// Skips the rows requested by `skip`.
    fn pass(&mut self, intern: &mut dyn Intern) -> std::result::Result<(), ReadError> {
        while self.to_skip > 0 {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => {
                    let page = self.pages.data.get(self.next).ok_or_else(ended)?;
                    if u64::from(page.values) <= self.to_skip {
                        self.to_skip -= u64::from(page.values);
                        self.next += 1;
                        continue;
                    }
                    self.begin_page(intern)?
                }
            };
            if open.left as u64 <= self.to_skip {
                self.to_skip -= open.left as u64;
                continue;
            }
            let rows = self.to_skip as usize;
            let body = body(&self.pages.data[open.page], self.chunk, &self.raw)?;
            let valid = match &mut open.levels {
                Some((range, runs)) => runs.count_ones(&body[range.clone()], rows)?,
                None => rows,
            };
            if valid > 0 {
                self.column.skip(body, valid)?;
            }
            open.left -= rows;
            (self.open, self.to_skip) = (Some(open), 0);
        }
        Ok(())
    }

    /// Begins the next page that has a row.
    fn begin_page(&mut self, intern: &mut dyn Intern) -> std::result::Result<Open, ReadError> {
        let (index, page) = loop {
            let page = self.pages.data.get(self.next).ok_or_else(ended)?;
            self.next += 1;
            if page.values > 0 {
                break (self.next - 1, page);
            }
        };
        let is_coded = matches!(page.encoding, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY);
        if is_coded && !self.has_dictionary {
            load_dictionary(self.chunk, self.pages, self.codec, &mut *self.column, intern)?;
            self.has_dictionary = true;
        }
        if page.is_compressed {
            decompress(page, self.chunk, self.codec, &mut self.raw)?;
        }
        let body = body(page, self.chunk, &self.raw)?;
        let rows = page.values as usize;
        let (levels, at) = levels(page, body, self.is_nullable)?;
        let valid = match &levels {
            Some(levels) => Runs::new(0, 1)?.count_ones(&body[levels.clone()], rows)?,
            None => rows,
        };
        if page.nulls.is_some_and(|nulls| nulls as usize != rows - valid) {
            return Err(PageError::Malformed("levels and header disagree about NULLs").into());
        }
        if valid > 0 {
            self.column.open(&Values { encoding: page.encoding, body, at, count: valid }, intern)?;
        }
        let levels = match levels.filter(|_| valid < rows) {
            Some(levels) => Some((levels, Runs::new(0, 1)?)),
            None => None,
        };
        Ok(Open { page: index, left: rows, levels })
    }
}

fn ended() -> PageError {
    PageError::Malformed("pages end before the rows do")
}

/// The body of a page whose decompressed form, if it has one, is `raw`.
fn body<'a>(page: &Page, chunk: &'a [u8], raw: &'a [u8]) -> Result<&'a [u8]> {
    if page.is_compressed { Ok(raw) } else { stored(page, chunk) }
}

/// Range of a page's definition levels, if any, and the start of its values.
fn levels(page: &Page, body: &[u8], is_nullable: bool) -> Result<(Option<Range<usize>>, usize)> {
    const CUT_SHORT: PageError = PageError::Malformed("levels are longer than the page");
    let (levels, at) = match page.kind {
        PageKind::V1 if is_nullable => {
            let (length, rest) = body.split_first_chunk::<4>().ok_or(CUT_SHORT)?;
            let length = u32::from_le_bytes(*length) as usize;
            if length > rest.len() {
                return Err(CUT_SHORT);
            }
            (4..4 + length, 4 + length)
        }
        PageKind::V1 | PageKind::Dictionary => (0..0, 0),
        PageKind::V2 => {
            let (repetition, definition) = (page.level_bytes.0 as usize, page.level_bytes.1 as usize);
            (repetition..repetition + definition, repetition + definition)
        }
    };
    if at > body.len() {
        return Err(CUT_SHORT);
    }
    Ok((Some(levels).filter(|_| is_nullable), at))
}

/// The first `rows` bits of `words`, and zeros.
fn masked(words: &[u32; BLOCK / 32], rows: usize) -> [u32; BLOCK / 32] {
    let mut masked = *words;
    if !rows.is_multiple_of(32) {
        masked[rows / 32] &= (1 << (rows % 32)) - 1;
    }
    masked
}

fn load_dictionary(
    chunk: &[u8],
    pages: &Pages,
    codec: CompressionCodec,
    column: &mut dyn Column,
    intern: &mut dyn Intern,
) -> std::result::Result<(), ReadError> {
    let missing = || PageError::Malformed("codes without a dictionary");
    let page = pages.dictionary.as_ref().ok_or_else(missing)?;
    let mut raw = Vec::new();
    if page.is_compressed {
        decompress(page, chunk, codec, &mut raw)?;
    }
    let body = body(page, chunk, &raw)?;
    column.dictionary(&Values { encoding: Encoding::PLAIN, body, at: 0, count: page.values as usize }, intern)
}

/// The bytes of a chunk's dictionary page, decompressed.
///
/// # Errors
/// If the page cannot be decompressed, or the chunk has no dictionary.
pub fn dictionary_bytes(chunk: &[u8], pages: &Pages, meta: &ColumnChunkMetaData) -> Result<Vec<u8>> {
    let page = pages.dictionary.as_ref().ok_or(PageError::Malformed("codes without a dictionary"))?;
    let mut raw = Vec::new();
    decompress(page, chunk, meta.compression_codec(), &mut raw)?;
    Ok(raw)
}

/// The entries of a chunk's dictionary as `layout` stores values: integers less the base and cut, floats, codes of
/// 4 bytes, or offsets of 4 bytes, one more than entries, with the bytes behind them. Nothing if the chunk has no
/// dictionary.
///
/// # Errors
/// [`PageError::OutOfRange`] if an entry lies outside the range, used or not. [`PageError::Unsupported`] of bits, which
/// have no such form.
pub fn dictionary(
    chunk: &[u8],
    pages: &Pages,
    meta: &ColumnChunkMetaData,
    conversion: &Conversion,
    layout: Layout,
    intern: &mut dyn Intern,
) -> std::result::Result<Vec<u8>, ReadError> {
    let mut column = column::of(*conversion, layout)?;
    if pages.dictionary.is_some() {
        load_dictionary(chunk, pages, meta.compression_codec(), &mut *column, intern)?;
    }
    Ok(column.table()?)
}
