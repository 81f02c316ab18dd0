//! DELTA_BINARY_PACKED: differences, less the least of their block, bit-packed by mini-block.
//!
//!   7 5 3 1 2 3 4 5   first 7   block: least −2, differences −2 −2 −2 1 1 1 1 ──► 0 0 0 3 3 3 3, 2 bits each
//!   header  values in a block │ mini-blocks in it │ values in all │ first
//!   block   least difference  │ a width for each mini-block │ mini-blocks
//!
//! Wraps around   as the encoding wants it; INT32 columns take the low half.

use crate::error::{PageError, Result};
use crate::rle::varint;
use crate::unpack::{unpack, wide_at};

const CUT_SHORT: PageError = PageError::Malformed("differences end before the values do");

/// A position in a stream of differences.
#[derive(Debug, Clone)]
pub(crate) struct Deltas {
    /// Where the next block, or the next mini-block, begins.
    at: usize,
    per_mini: usize,
    minis: usize,
    /// Values not yet read, including the pending first one.
    left: usize,
    is_first: bool,
    /// Width of the type in bits.
    bits: u8,
    last: i64,
    least: i64,
    /// Where the widths of the block are, and the mini-blocks of it that have begun.
    widths: usize,
    begun: usize,
    mini: Mini,
}

/// The current mini-block.
#[derive(Debug, Clone, Copy, Default)]
struct Mini {
    start: usize,
    width: u8,
    next: usize,
    left: usize,
}

/// A number of a type of 32 or 64 bits.
fn within(bits: u8, number: i64) -> Result<i64> {
    match bits {
        32 if i32::try_from(number).is_err() => Err(PageError::Malformed("a difference has more bits than its type")),
        _ => Ok(number),
    }
}

impl Deltas {
    /// Begins at byte `at`; the numbers have 32 or 64 `bits`. Some writers make differences of more: parquet's own
    /// reader refuses them.
    pub(crate) fn new(bytes: &[u8], at: usize, bits: u8) -> Result<Self> {
        let mut at = at;
        let mut number = || varint(bytes, &mut at).ok_or(CUT_SHORT);
        let (block, minis, values) = (number()?, number()?, number()?);
        let first = number()?;
        let is_sane = block > 0
            && minis > 0
            && block % 128 == 0
            && block % minis == 0
            && (block / minis) % 32 == 0
            && block <= 1 << 30;
        if !is_sane || minis > 1 << 20 || values > 1 << 32 {
            return Err(PageError::Malformed("blocks of differences have no sane size"));
        }
        Ok(Self {
            at,
            per_mini: (block / minis) as usize,
            minis: minis as usize,
            left: values as usize,
            is_first: true,
            bits,
            last: within(bits, unzigzag(first))?,
            least: 0,
            widths: 0,
            begun: minis as usize,
            mini: Mini::default(),
        })
    }

    /// Begins the next mini-block, and the next block if need be.
    fn advance(&mut self, bytes: &[u8]) -> Result<()> {
        if self.begun == self.minis {
            self.least = within(self.bits, unzigzag(varint(bytes, &mut self.at).ok_or(CUT_SHORT)?))?;
            self.widths = self.at;
            self.at += self.minis;
            self.begun = 0;
        }
        let width = *bytes.get(self.widths + self.begun).ok_or(CUT_SHORT)?;
        self.begun += 1;
        if width > self.bits {
            return Err(PageError::Malformed("differences are packed with more bits than their type has"));
        }
        let values = self.per_mini.min(self.left);
        // The last mini-block is padded, but not by every writer.
        let needed = (values * usize::from(width)).div_ceil(8);
        if self.at > bytes.len() || needed > bytes.len() - self.at {
            return Err(CUT_SHORT);
        }
        self.mini = Mini { start: self.at, width, next: 0, left: values };
        self.at = (self.at + self.per_mini / 8 * usize::from(width)).min(bytes.len());
        Ok(())
    }

    /// Fills `out` with the next values.
    pub(crate) fn read(&mut self, bytes: &[u8], mut out: &mut [i64]) -> Result<()> {
        if out.len() > self.left {
            return Err(CUT_SHORT);
        }
        if self.is_first && !out.is_empty() {
            let (front, rest) = out.split_at_mut(1);
            front[0] = self.last;
            self.is_first = false;
            self.left -= 1;
            out = rest;
        }
        let mut packed = [0_u32; 64];
        while !out.is_empty() {
            if self.mini.left == 0 {
                self.advance(bytes)?;
            }
            let Mini { start, width, next, left } = self.mini;
            let step = left.min(out.len()).min(packed.len());
            let (front, rest) = out.split_at_mut(step);
            let from = &bytes[start..];
            let (least, mut last) = (self.least, self.last);
            if width <= 32 {
                unpack(from, width, next, &mut packed[..step]);
                for (out, delta) in front.iter_mut().zip(&packed) {
                    last = last.wrapping_add(least).wrapping_add(i64::from(*delta));
                    *out = last;
                }
            } else {
                for (i, out) in front.iter_mut().enumerate() {
                    last = last.wrapping_add(least).wrapping_add(wide_at(from, width, next + i) as i64);
                    *out = last;
                }
            }
            self.last = last;
            self.mini.next += step;
            self.mini.left -= step;
            self.left -= step;
            out = rest;
        }
        Ok(())
    }

    /// Byte offset of the end of the stream. Call only before the first value is read.
    pub(crate) fn end(&self, bytes: &[u8]) -> Result<usize> {
        let mut all = self.clone();
        all.left = all.left.saturating_sub(1);
        while all.left > 0 {
            all.advance(bytes)?;
            all.left -= all.mini.left;
        }
        Ok(all.at)
    }

    /// All values as lengths: none is negative, and there are at least `count`.
    pub(crate) fn lengths(mut self, bytes: &[u8], count: usize) -> Result<Vec<u32>> {
        if count > self.left {
            return Err(CUT_SHORT);
        }
        let mut lengths = Vec::with_capacity(count);
        let mut block = [0_i64; 512];
        while lengths.len() < count {
            let block = &mut block[..(count - lengths.len()).min(512)];
            self.read(bytes, block)?;
            for length in block {
                lengths.push(u32::try_from(*length).map_err(|_| PageError::Malformed("a length is negative"))?);
            }
        }
        Ok(lengths)
    }
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_add_up() {
        // 128 values a block in 4 mini-blocks, 8 values: 7 5 3 1 2 3 4 5
        let mut bytes = vec![0x80, 0x01, 4, 8, 14, 3, 2, 0, 0, 0];
        bytes.extend([0b1100_0000, 0b1111_1111, 0b11, 0, 0, 0, 0, 0]);
        let mut deltas = Deltas::new(&bytes, 0, 64).unwrap();
        assert_eq!(deltas.end(&bytes).unwrap(), bytes.len());
        let mut out = [0; 8];
        deltas.read(&bytes, &mut out[..3]).unwrap();
        deltas.read(&bytes, &mut out[3..]).unwrap();
        assert_eq!((out, deltas.left), ([7, 5, 3, 1, 2, 3, 4, 5], 0));
        assert!(deltas.read(&bytes, &mut [0]).is_err());
        // The padding may be missing, the values may not.
        assert_eq!(Deltas::new(&bytes[..12], 0, 64).unwrap().lengths(&bytes[..12], 8).unwrap()[7], 5);
        assert!(Deltas::new(&bytes[..11], 0, 64).unwrap().lengths(&bytes[..11], 8).is_err());
    }

    #[test]
    fn damaged_headers_are_refused() {
        for bytes in [&[0x80, 0x01, 0, 8, 14][..], &[0, 4, 8, 14], &[0x80, 0x01, 3, 8, 14], &[0x80], &[]] {
            assert!(Deltas::new(bytes, 0, 64).is_err());
        }
        let negative = [0x80, 0x01, 4, 1, 1];
        assert!(Deltas::new(&negative, 0, 64).unwrap().lengths(&negative, 1).is_err());
    }
}
