//! Booleans: bits in the file, and bits in the output.
//!
//!   PLAIN   bits, one behind the other          RLE   their length, and runs of 1 bit
//!   spread  1 0 1  over rows  v v N v   ──►     1 0 0 1

use parquet::basic::Encoding;

use super::{BLOCK, Block, Column, Intern, Values};
use crate::error::{PageError, ReadError, Result};
use crate::facts::Facts;
use crate::out::Out;
use crate::rle::Runs;
use crate::unpack::copy_bits;

pub(crate) struct Flags {
    source: Source,
    rows: u64,
    nulls: u64,
}

enum Source {
    None,
    /// The next bit.
    Plain {
        bit: usize,
    },
    Runs(Runs),
}

const CUT_SHORT: PageError = PageError::Malformed("booleans end before the rows do");

impl Flags {
    pub(crate) fn new() -> Self {
        Self { source: Source::None, rows: 0, nulls: 0 }
    }
}

impl Column for Flags {
    fn dictionary(&mut self, _: &Values<'_>, _: &mut dyn Intern) -> std::result::Result<(), ReadError> {
        Err(PageError::Unsupported("booleans with a dictionary are not read".into()).into())
    }

    fn table(&mut self) -> Result<Vec<u8>> {
        Err(PageError::Unsupported("booleans have no dictionary".into()))
    }

    fn open(&mut self, values: &Values<'_>, _: &mut dyn Intern) -> std::result::Result<(), ReadError> {
        self.source = match values.encoding {
            Encoding::PLAIN => Source::Plain { bit: values.at * 8 },
            // The runs begin behind their length.
            Encoding::RLE => Source::Runs(Runs::new(values.at + 4, 1)?),
            encoding => {
                return Err(PageError::Unsupported(format!("booleans coded as {encoding} are not read")).into());
            }
        };
        Ok(())
    }

    fn skip(&mut self, body: &[u8], valid: usize) -> Result<()> {
        match &mut self.source {
            Source::Plain { bit } => *bit += valid,
            Source::Runs(runs) => runs.skip(body, valid)?,
            Source::None => {}
        }
        Ok(())
    }

    fn begin(&mut self, first: u64, end: u64, out: &mut Out<'_>) -> Result<()> {
        (self.rows, self.nulls) = (0, 0);
        if (out.values.len() as u64) < end.div_ceil(32).saturating_mul(4) {
            return Err(PageError::Shape(format!("bits of {end} rows do not fit into {} bytes", out.values.len())));
        }
        out.value_bits.start(first)
    }

    fn block(&mut self, body: &[u8], block: &Block<'_>, _: u64, out: &mut Out<'_>) -> Result<()> {
        let mut dense = [0; BLOCK / 32];
        match &mut self.source {
            _ if block.valid == 0 => {}
            Source::Plain { bit } => {
                if body.len() * 8 < *bit + block.valid {
                    return Err(CUT_SHORT);
                }
                copy_bits(body, *bit, &mut dense, 0, block.valid);
                *bit += block.valid;
            }
            Source::Runs(runs) => runs.read_bits(body, &mut dense, block.valid)?,
            Source::None => return Err(CUT_SHORT),
        }
        self.rows += block.rows as u64;
        self.nulls += (block.rows - block.valid) as u64;
        if block.valid < block.rows {
            dense = spread(&dense, block.words);
        }
        out.value_bits.append(out.values, &dense, block.rows)
    }

    fn facts(&self) -> Facts {
        Facts::of_others(self.rows, self.nulls)
    }
}

/// The bits of `dense` at the places of the bits of `mask`.
fn spread(dense: &[u32; BLOCK / 32], mask: &[u32; BLOCK / 32]) -> [u32; BLOCK / 32] {
    let mut rows = [0; BLOCK / 32];
    let mut next = 0;
    for (row, mask) in rows.iter_mut().zip(mask) {
        let mut mask = *mask;
        while mask != 0 {
            let bit = dense.get(next / 32).map_or(0, |word| word >> (next % 32) & 1);
            *row |= bit << mask.trailing_zeros();
            mask &= mask - 1;
            next += 1;
        }
    }
    rows
}
