//! Run-length/bit-packed hybrid: the encoding of levels, dictionary codes and booleans.
//!
//!   header 2n      │ value            n times the value
//!   header 2g + 1  │ g × width bytes  8 g values, bit-packed
//!
//! Bounds   a header has at least a byte, so bytes bound the runs; a last run that is cut short gives what it has.

use crate::error::{PageError, Result};
use crate::unpack::{copy_bits, set_bits, unpack};

/// A position in a stream of runs. Every call must pass the same bytes.
#[derive(Debug, Clone)]
pub(crate) struct Runs {
    /// Byte offset of the next run.
    at: usize,
    width: u8,
    run: Run,
    /// Unread values of the current run.
    left: usize,
}

#[derive(Debug, Clone)]
enum Run {
    Repeated(u32),
    /// The run's first byte, and the values of it that are behind.
    Packed {
        start: usize,
        next: usize,
    },
}

impl Runs {
    /// Begins at byte `at`, with values of `width` bits.
    pub(crate) fn new(at: usize, width: u8) -> Result<Self> {
        match width {
            ..=32 => Ok(Self { at, width, run: Run::Repeated(0), left: 0 }),
            _ => Err(PageError::Malformed("numbers are packed with more than 32 bits")),
        }
    }

    /// Moves to the next run that has a value unless the current one has.
    fn advance(&mut self, bytes: &[u8]) -> Result<()> {
        const CUT_SHORT: PageError = PageError::Malformed("runs end before the values do");
        while self.left == 0 {
            let header = varint(bytes, &mut self.at).ok_or(CUT_SHORT)?;
            let rest = bytes.len() - self.at;
            let width = usize::from(self.width);
            if header & 1 == 1 {
                let groups = usize::try_from(header >> 1).unwrap_or(usize::MAX);
                let length = groups.saturating_mul(width).min(rest);
                // Some writers leave out the last bytes of the last group.
                self.left = match width {
                    0 => groups.saturating_mul(8),
                    width => groups.saturating_mul(8).min(length * 8 / width),
                };
                self.run = Run::Packed { start: self.at, next: 0 };
                self.at += length;
            } else {
                self.left = usize::try_from(header >> 1).unwrap_or(usize::MAX);
                let length = width.div_ceil(8);
                let value = bytes.get(self.at..self.at + length).ok_or(CUT_SHORT)?;
                let value = value.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
                if value >> width != 0 {
                    return Err(PageError::Malformed("a repeated number has more bits than its width"));
                }
                self.run = Run::Repeated(value as u32);
                self.at += length;
            }
        }
        Ok(())
    }

    /// Fills `out` with the next values.
    pub(crate) fn read(&mut self, bytes: &[u8], mut out: &mut [u32]) -> Result<()> {
        while !out.is_empty() {
            self.advance(bytes)?;
            let step = self.left.min(out.len());
            let (front, rest) = out.split_at_mut(step);
            match &mut self.run {
                Run::Repeated(value) => front.fill(*value),
                Run::Packed { start, next } => {
                    unpack(&bytes[*start..], self.width, *next, front);
                    *next += step;
                }
            }
            self.left -= step;
            out = rest;
        }
        Ok(())
    }

    pub(crate) fn skip(&mut self, bytes: &[u8], mut count: usize) -> Result<()> {
        while count > 0 {
            self.advance(bytes)?;
            let step = self.left.min(count);
            if let Run::Packed { next, .. } = &mut self.run {
                *next += step;
            }
            self.left -= step;
            count -= step;
        }
        Ok(())
    }

    /// Writes the next `count` 1-bit values to `words`, starting at bit 0; the bits above are 0.
    pub(crate) fn read_bits(&mut self, bytes: &[u8], words: &mut [u32], count: usize) -> Result<()> {
        words[..count.div_ceil(32)].fill(0);
        let mut done = 0;
        while done < count {
            self.advance(bytes)?;
            let step = self.left.min(count - done);
            match &mut self.run {
                Run::Repeated(0) => {}
                Run::Repeated(_) => set_bits(words, done, step),
                Run::Packed { start, next } => {
                    copy_bits(&bytes[*start..], *next, words, done, step);
                    *next += step;
                }
            }
            self.left -= step;
            done += step;
        }
        Ok(())
    }

    /// Number of ones among the next `count` 1-bit values.
    pub(crate) fn count_ones(&mut self, bytes: &[u8], count: usize) -> Result<usize> {
        const STEP: usize = 1 << 10;
        let (mut done, mut ones) = (0, 0);
        while done < count {
            self.advance(bytes)?;
            let mut step = self.left.min(count - done);
            match &mut self.run {
                Run::Repeated(value) => ones += *value as usize * step,
                Run::Packed { start, next } => {
                    step = step.min(STEP);
                    let mut words = [0; STEP / 32];
                    copy_bits(&bytes[*start..], *next, &mut words, 0, step);
                    ones += words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
                    *next += step;
                }
            }
            self.left -= step;
            done += step;
        }
        Ok(ones)
    }
}

/// An unsigned number of 7 bits a byte; `None` where it does not end, or has more than 64 bits.
pub(crate) fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_both_kinds() {
        // five times 3 · 8 values 0..8 of 3 bits · twice 1
        let bytes = [10, 3, 3, 0b1000_1000, 0b1100_0110, 0b1111_1010, 4, 1];
        let expected = [3, 3, 3, 3, 3, 0, 1, 2, 3, 4, 5, 6, 7, 1, 1];
        for piece in 1..=15 {
            let mut runs = Runs::new(0, 3).unwrap();
            let mut out = [9; 15];
            for out in out.chunks_mut(piece) {
                runs.read(&bytes, out).unwrap();
            }
            assert_eq!(out, expected);
            assert!(runs.read(&bytes, &mut [0]).is_err());
        }
        for skipped in 0..15 {
            let mut runs = Runs::new(0, 3).unwrap();
            runs.skip(&bytes, skipped).unwrap();
            let mut out = vec![9; 15 - skipped];
            runs.read(&bytes, &mut out).unwrap();
            assert_eq!(out, expected[skipped..]);
        }
    }

    #[test]
    fn bits_are_counted_as_they_are_read() {
        // 40 ones · 16 bits · 5 zeros
        let bytes = [80, 1, 5, 0b1010_1010, 0b0000_1111, 10, 0];
        assert_eq!(Runs::new(0, 1).unwrap().count_ones(&bytes, 61).unwrap(), 48);
        let mut words = [7; 2];
        Runs::new(0, 1).unwrap().read_bits(&bytes, &mut words, 61).unwrap();
        assert_eq!(words, [u32::MAX, 0b0000_1111_1010_1010_1111_1111]);
        assert!(Runs::new(0, 1).unwrap().count_ones(&bytes, 62).is_err());
    }

    #[test]
    fn damaged_runs_are_refused() {
        assert!(Runs::new(0, 33).is_err());
        assert!(Runs::new(0, 1).unwrap().read(&[10, 2], &mut [0]).is_err());
        assert!(Runs::new(0, 8).unwrap().read(&[10], &mut [0]).is_err());
        assert!(Runs::new(0, 8).unwrap().read(&[0xff; 20], &mut [0]).is_err());
        assert!(Runs::new(9, 8).unwrap().read(&[1], &mut [0]).is_err());
    }
}
