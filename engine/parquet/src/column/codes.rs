//! Strings as codes assigned by the caller: once per dictionary entry, or string by string for pages without a
//! dictionary.
//!
//!   dictionary  a b c ──► 7 0 3 (Intern)      page  2 0 0 1 ──► 3 7 7 0
//!   PLAIN page  c c a ──► 3 3 7 (Intern)      page            ──► 3 3 7

use parquet::basic::Encoding;

use super::numbers::coded;
use super::{BLOCK, Block, Column, Intern, Spread, Values, look_up, window};
use crate::conversion::Kind;
use crate::error::{PageError, ReadError, Result};
use crate::facts::Facts;
use crate::out::Out;
use crate::rle::Runs;
use crate::strings::{Piece, Strings, array};

pub(crate) struct Codes {
    kind: Kind,
    source: Source,
    /// The caller's codes of the dictionary's entries, and the largest.
    dictionary: Option<Vec<u32>>,
    most: u32,
    codes: Box<[u32; BLOCK]>,
    spread: Spread,
    rows: u64,
    nulls: u64,
}

enum Source {
    None,
    /// Codes of the dictionary.
    Runs(Runs),
    /// The caller's codes of the page's values.
    Interned {
        codes: Vec<u32>,
        next: usize,
    },
}

impl Codes {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            source: Source::None,
            dictionary: None,
            most: 0,
            codes: Box::new([0; BLOCK]),
            spread: Spread::default(),
            rows: 0,
            nulls: 0,
        }
    }

    /// The caller's codes of all `values`.
    fn intern(&mut self, values: &Values<'_>, intern: &mut dyn Intern) -> std::result::Result<Vec<u32>, ReadError> {
        let mut strings = Strings::new(self.kind, values.encoding, values.body, values.at, values.count)?;
        let mut pieces = Vec::new();
        let mut block: [Piece; 256] = [(0, 0); 256];
        while pieces.len() < values.count {
            let count = (values.count - pieces.len()).min(block.len());
            strings.read(values.body, &mut block[..count])?;
            pieces.extend_from_slice(&block[..count]);
        }
        let codes = intern.codes(&array(self.kind, strings.bytes(values.body), &pieces)?)?;
        if codes.len() != values.count {
            let message = format!("{} codes were given to {} strings", codes.len(), values.count);
            return Err(PageError::Shape(message).into());
        }
        self.most = codes.iter().fold(self.most, |most, code| most.max(*code));
        Ok(codes)
    }
}

impl Column for Codes {
    fn dictionary(&mut self, entries: &Values<'_>, intern: &mut dyn Intern) -> std::result::Result<(), ReadError> {
        self.dictionary = Some(self.intern(entries, intern)?);
        Ok(())
    }

    fn table(&mut self) -> Result<Vec<u8>> {
        let codes = self.dictionary.as_deref().unwrap_or(&[]);
        Ok(codes.iter().flat_map(|code| code.to_le_bytes()).collect())
    }

    fn open(&mut self, values: &Values<'_>, intern: &mut dyn Intern) -> std::result::Result<(), ReadError> {
        self.source = match values.encoding {
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => Source::Runs(coded(values.body, values.at)?),
            _ => Source::Interned { codes: self.intern(values, intern)?, next: 0 },
        };
        Ok(())
    }

    fn skip(&mut self, body: &[u8], valid: usize) -> Result<()> {
        match &mut self.source {
            Source::Runs(runs) => runs.skip(body, valid)?,
            Source::Interned { next, .. } => *next += valid,
            Source::None => {}
        }
        Ok(())
    }

    fn begin(&mut self, first: u64, end: u64, out: &mut Out<'_>) -> Result<()> {
        (self.rows, self.nulls) = (0, 0);
        window(out.values, first, usize::try_from(end - first).unwrap_or(usize::MAX), 4).map(|_| ())
    }

    fn block(&mut self, body: &[u8], block: &Block<'_>, first: u64, out: &mut Out<'_>) -> Result<()> {
        let out = window(out.values, first, block.rows, 4)?;
        let dense = self.spread.dense::<u32>();
        match &mut self.source {
            _ if block.valid == 0 => {}
            Source::Runs(runs) => {
                let none = || PageError::Malformed("codes without a dictionary");
                let dictionary = self.dictionary.as_ref().ok_or_else(none)?;
                let codes = &mut self.codes[..block.valid];
                runs.read(body, codes)?;
                look_up(dictionary, codes, dense)?;
            }
            Source::Interned { codes, next } => {
                let codes = codes.get(*next..*next + block.valid);
                dense[..block.valid].copy_from_slice(codes.ok_or(PageError::Malformed("strings end too early"))?);
                *next += block.valid;
            }
            Source::None => return Err(PageError::Malformed("strings end too early")),
        }
        self.rows += block.rows as u64;
        self.nulls += (block.rows - block.valid) as u64;
        self.spread.write::<u32>(block, out);
        Ok(())
    }

    fn facts(&self) -> Facts {
        Facts { range: Some((0, self.most.into())), ..Facts::of_others(self.rows, self.nulls) }
    }
}
