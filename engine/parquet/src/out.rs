//! Output of decoding: memory that is written from front to back and never read.
//!
//!   values     rows × width bytes │ bits in 32-bit words │ rows + 1 offsets, the strings' bytes apart
//!   validity   bits in 32-bit words, 1 = valid
//!   word       rows 0..20 read, rows 20..50 read:  the word of rows 0..32 is written twice, from `Bits::pending`
//!
//! The last word of a read is written with zeros above its rows, and kept. So a read must begin where the one before it
//! through the same [`Out`] stopped, or at a multiple of 32; this is only asked where there are bits to write.

use crate::error::{PageError, Result};

/// Output buffers. Row 0 is the first row of the whole output, not of one read.
///
/// | part       | length of `rows` rows                 | unit                                                     |
/// |------------|---------------------------------------|----------------------------------------------------------|
/// | `values`   | `rows × width`                        | words, as [`Layout`](crate::Layout) says                 |
/// |            | `rows.div_ceil(32) × 4` of `Bits`     | bits, least significant first                            |
/// |            | `(rows + 1) × 4` of `Texts`           | offset `i` is where the string of row `i` begins         |
/// | `validity` | `rows.div_ceil(32) × 4`               | bits; without it a NULL is `UnexpectedNull`              |
/// | `texts`    | grows                                 | bytes; of `Texts` only                                   |
pub struct Out<'a> {
    pub(crate) values: &'a mut [u8],
    pub(crate) texts: Option<&'a mut Vec<u8>>,
    pub(crate) value_bits: Bits,
    pub(crate) validity: Option<(&'a mut [u8], Bits)>,
}

impl<'a> Out<'a> {
    pub fn new(values: &'a mut [u8], validity: Option<&'a mut [u8]>, texts: Option<&'a mut Vec<u8>>) -> Self {
        let validity = validity.map(|validity| (validity, Bits::default()));
        Self { values, texts, value_bits: Bits::default(), validity }
    }
}

/// Bits that are written word by word.
#[derive(Debug, Default)]
pub(crate) struct Bits {
    /// Rows written, in full words or not.
    at: u64,
    /// The bits of the last word, if it is not full.
    pending: u32,
}

impl Bits {
    /// The next bits are those of row `first`.
    pub(crate) fn start(&mut self, first: u64) -> Result<()> {
        if first.is_multiple_of(32) {
            (self.at, self.pending) = (first, 0);
        }
        match first == self.at {
            true => Ok(()),
            false => Err(PageError::Shape(format!(
                "bits of rows from {first} cannot follow those of {} rows without being read",
                self.at
            ))),
        }
    }

    /// Appends the first `count` bits of `words`; bits above are 0.
    pub(crate) fn append(&mut self, out: &mut [u8], words: &[u32], count: usize) -> Result<()> {
        let shift = (self.at % 32) as u32;
        let first = (self.at / 32) as usize * 4;
        let end = (self.at + count as u64).div_ceil(32) as usize * 4;
        let too_small = || PageError::Shape(format!("bits end at byte {end} of a shorter buffer"));
        let out = out.get_mut(first..end).ok_or_else(too_small)?;
        let mut pending = u64::from(self.pending);
        let mut words = words[..count.div_ceil(32)].iter();
        for out in out.as_chunks_mut::<4>().0 {
            pending |= u64::from(words.next().copied().unwrap_or(0)) << shift;
            *out = (pending as u32).to_le_bytes();
            self.pending = pending as u32;
            pending >>= 32;
        }
        self.at += count as u64;
        if self.at.is_multiple_of(32) {
            self.pending = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_length_meet() {
        let bits: Vec<bool> = (0..500).map(|i| i % 3 == 0 || i % 7 == 2).collect();
        for piece in [1, 5, 31, 32, 33, 100] {
            let mut out = vec![0xaa; 64];
            let mut to = Bits::default();
            for (index, part) in bits.chunks(piece).enumerate() {
                let mut words = [0_u32; 4];
                part.iter().enumerate().for_each(|(i, bit)| words[i / 32] |= u32::from(*bit) << (i % 32));
                to.start((index * piece) as u64).unwrap();
                to.append(&mut out, &words, part.len()).unwrap();
            }
            let found: Vec<bool> = (0..500).map(|i| out[i / 8] >> (i % 8) & 1 == 1).collect();
            assert_eq!(found, bits, "in pieces of {piece}");
            assert!(to.start(501).is_err());
            assert!(to.append(&mut out, &[0; 4], 100).is_err());
        }
    }
}
