//! Values of any type as places in the chunk's dictionary, without a look at the entries.
//!
//!   page  2 0 0 1 ──► 2 0 0 1          a value that stands in no dictionary is refused

use parquet::basic::Encoding;

use super::numbers::coded;
use super::{BLOCK, Block, Column, Intern, Spread, Values, window};
use crate::error::{PageError, ReadError, Result};
use crate::facts::Facts;
use crate::out::Out;
use crate::rle::Runs;

#[derive(Default)]
pub(crate) struct Positions {
    /// Entries of the dictionary.
    entries: u32,
    runs: Option<Runs>,
    spread: Spread,
    rows: u64,
    nulls: u64,
}

impl Column for Positions {
    fn dictionary(&mut self, entries: &Values<'_>, _intern: &mut dyn Intern) -> std::result::Result<(), ReadError> {
        self.entries = u32::try_from(entries.count).unwrap_or(u32::MAX);
        Ok(())
    }

    fn table(&mut self) -> Result<Vec<u8>> {
        Ok((0..self.entries).flat_map(u32::to_le_bytes).collect())
    }

    fn open(&mut self, values: &Values<'_>, _intern: &mut dyn Intern) -> std::result::Result<(), ReadError> {
        self.runs = match values.encoding {
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => Some(coded(values.body, values.at)?),
            other => return Err(PageError::Unsupported(format!("{other} has no places in a dictionary")).into()),
        };
        Ok(())
    }

    fn skip(&mut self, body: &[u8], valid: usize) -> Result<()> {
        self.runs.as_mut().map_or(Ok(()), |runs| runs.skip(body, valid))
    }

    fn begin(&mut self, first: u64, end: u64, out: &mut Out<'_>) -> Result<()> {
        (self.rows, self.nulls) = (0, 0);
        window(out.values, first, usize::try_from(end - first).unwrap_or(usize::MAX), 4).map(|_| ())
    }

    fn block(&mut self, body: &[u8], block: &Block<'_>, first: u64, out: &mut Out<'_>) -> Result<()> {
        let out = window(out.values, first, block.rows, 4)?;
        let mut codes = [0; BLOCK];
        let codes = &mut codes[..block.valid];
        if block.valid > 0 {
            let runs = self.runs.as_mut().ok_or(PageError::Malformed("codes end too early"))?;
            runs.read(body, codes)?;
        }
        if codes.iter().any(|code| *code >= self.entries) {
            return Err(PageError::Malformed("a code lies behind the end of the dictionary"));
        }
        self.spread.dense::<u32>()[..block.valid].copy_from_slice(codes);
        self.rows += block.rows as u64;
        self.nulls += (block.rows - block.valid) as u64;
        self.spread.write::<u32>(block, out);
        Ok(())
    }

    fn facts(&self) -> Facts {
        Facts { range: Some((0, self.entries.into())), ..Facts::of_others(self.rows, self.nulls) }
    }
}
