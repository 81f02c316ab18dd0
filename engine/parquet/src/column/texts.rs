//! Strings as offsets and bytes.
//!
//!   rows  ab NULL c   ──►   offsets 0 2 2 3   bytes abc
//!
//! Row `first` begins where the bytes so far end. Offsets have 32 bits, so longer texts are refused.

use parquet::basic::Encoding;

use super::numbers::coded;
use super::{BLOCK, Block, Column, Intern, Values, look_up, window};
use crate::conversion::Kind;
use crate::error::{PageError, ReadError, Result};
use crate::facts::Facts;
use crate::native::Stored;
use crate::out::Out;
use crate::rle::Runs;
use crate::strings::{Piece, Strings, append, check_utf8};

pub(crate) struct Texts {
    kind: Kind,
    source: Source,
    dictionary: Option<Dictionary>,
    codes: Box<[u32; BLOCK]>,
    pieces: Box<[Piece; BLOCK]>,
    ends: Box<[u32; BLOCK]>,
    rows: u64,
    nulls: u64,
}

enum Source {
    None,
    Runs(Runs),
    Strings(Strings),
}

/// The dictionary's entries, one behind the other and checked.
struct Dictionary {
    pieces: Vec<Piece>,
    bytes: Vec<u8>,
}

impl Texts {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            source: Source::None,
            dictionary: None,
            codes: Box::new([0; BLOCK]),
            pieces: Box::new([(0, 0); BLOCK]),
            ends: Box::new([0; BLOCK]),
            rows: 0,
            nulls: 0,
        }
    }

    fn is_utf8(&self) -> bool {
        self.kind == Kind::Text { utf8: true }
    }
}

impl Column for Texts {
    fn dictionary(&mut self, entries: &Values<'_>, _: &mut dyn Intern) -> std::result::Result<(), ReadError> {
        let mut strings = Strings::new(self.kind, entries.encoding, entries.body, entries.at, entries.count)?;
        let mut all = Dictionary { pieces: Vec::new(), bytes: Vec::new() };
        while all.pieces.len() < entries.count {
            let pieces = &mut self.pieces[..(entries.count - all.pieces.len()).min(BLOCK)];
            strings.read(entries.body, pieces)?;
            let mut at = all.bytes.len() as u32;
            append(&mut all.bytes, entries.body, pieces);
            for (_, length) in pieces {
                all.pieces.push((at, *length));
                at += *length;
            }
        }
        if self.is_utf8() {
            check_utf8(&all.bytes, all.pieces.iter().map(|(_, length)| *length))?;
        }
        self.dictionary = Some(all);
        Ok(())
    }

    fn table(&mut self) -> Result<Vec<u8>> {
        let Some(Dictionary { pieces, bytes }) = self.dictionary.take() else { return Ok(vec![0; 4]) };
        let ends = pieces.iter().map(|(start, length)| start + length);
        Ok(std::iter::once(0).chain(ends).flat_map(u32::to_le_bytes).chain(bytes).collect())
    }

    fn open(&mut self, values: &Values<'_>, _: &mut dyn Intern) -> std::result::Result<(), ReadError> {
        let Values { encoding, body, at, count } = *values;
        self.source = match encoding {
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => Source::Runs(coded(body, at)?),
            _ => Source::Strings(Strings::new(self.kind, encoding, body, at, count)?),
        };
        Ok(())
    }

    fn skip(&mut self, body: &[u8], valid: usize) -> Result<()> {
        match &mut self.source {
            Source::Runs(runs) => runs.skip(body, valid),
            Source::Strings(strings) => strings.skip(body, valid),
            Source::None => Ok(()),
        }
    }

    fn begin(&mut self, first: u64, end: u64, out: &mut Out<'_>) -> Result<()> {
        (self.rows, self.nulls) = (0, 0);
        let rows = usize::try_from(end - first).unwrap_or(usize::MAX);
        window(out.values, first.saturating_add(1), rows, 4)?;
        if out.texts.is_none() {
            return Err(PageError::Shape("offsets were asked for without bytes".into()));
        }
        if first == 0 {
            window(out.values, 0, 1, 4)?.fill(0);
        }
        Ok(())
    }

    fn block(&mut self, body: &[u8], block: &Block<'_>, first: u64, out: &mut Out<'_>) -> Result<()> {
        let is_utf8 = self.is_utf8();
        let Some(texts) = out.texts.as_deref_mut() else { return Ok(()) };
        let start = texts.len();
        let pieces = &mut self.pieces[..block.valid];
        let (bytes, is_checked) = match &mut self.source {
            _ if block.valid == 0 => (body, true),
            Source::Runs(runs) => {
                let none = || PageError::Malformed("codes without a dictionary");
                let dictionary = self.dictionary.as_ref().ok_or_else(none)?;
                let codes = &mut self.codes[..block.valid];
                runs.read(body, codes)?;
                look_up(&dictionary.pieces, codes, pieces)?;
                (&dictionary.bytes[..], true)
            }
            Source::Strings(strings) => {
                strings.read(body, pieces)?;
                (strings.bytes(body), !is_utf8)
            }
            Source::None => return Err(PageError::Malformed("strings end too early")),
        };
        let total: u64 = pieces.iter().map(|(_, length)| u64::from(*length)).sum();
        let end = start as u64 + total;
        if end > u32::MAX.into() {
            return Err(PageError::TextsTooLong { bytes: end });
        }
        append(texts, bytes, pieces);
        if !is_checked {
            check_utf8(&texts[start..], pieces.iter().map(|(_, length)| *length))?;
        }
        let ends = &mut self.ends[..block.rows];
        let mut at = start as u32;
        if block.valid == block.rows {
            for (end, (_, length)) in ends.iter_mut().zip(pieces) {
                at += *length;
                *end = at;
            }
        } else {
            let mut lengths = pieces.iter().map(|(_, length)| *length);
            for (row, end) in ends.iter_mut().enumerate() {
                if block.words[row / 32] >> (row % 32) & 1 == 1 {
                    at += lengths.next().unwrap_or(0);
                }
                *end = at;
            }
        }
        u32::write(ends, window(out.values, first.saturating_add(1), block.rows, 4)?);
        self.rows += block.rows as u64;
        self.nulls += (block.rows - block.valid) as u64;
        Ok(())
    }

    fn facts(&self) -> Facts {
        Facts::of_others(self.rows, self.nulls)
    }
}
