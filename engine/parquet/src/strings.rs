//! Offsets and lengths of the strings of a page, in order.
//!
//!   PLAIN          3 abc 1 d 0       ──► (4, 3) (11, 1) (16, 0)       start and length within the page
//!   DELTA_LENGTH   3 1 0 │ abcd      ──► (9, 3) (12, 1) (13, 0)
//!   DELTA_BYTE     0 2 │ 3 1 │ abcd  ──► abcabd, (0, 3) (3, 3)        written out: 2 bytes of the string before, and d

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, StringArray};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use parquet::basic::Encoding;

use crate::conversion::Kind;
use crate::delta::Deltas;
use crate::error::{PageError, Result};
use crate::pages::MOST_PAGE_BYTES;

/// Byte offset and byte length of a string.
pub(crate) type Piece = (u32, u32);

const CUT_SHORT: PageError = PageError::Malformed("strings end before the values do");

/// A position among the strings of a page. Every call must pass the same page bytes.
pub(crate) enum Strings {
    /// Each string is preceded by its length.
    Plain { at: usize },
    /// All have the same length.
    Fixed { at: usize, bytes: u32 },
    /// They were found when the page began; in bytes of their own where they had to be written out.
    Listed { pieces: Vec<Piece>, next: usize, own: Option<Vec<u8>> },
}

impl Strings {
    /// The `count` strings of a page whose values begin at byte `at`.
    pub(crate) fn new(kind: Kind, encoding: Encoding, bytes: &[u8], at: usize, count: usize) -> Result<Self> {
        let fixed = kind.fixed_bytes().map(|bytes| bytes as u32);
        let pieces = match (encoding, fixed) {
            (Encoding::PLAIN, None) => return Ok(Self::Plain { at }),
            (Encoding::PLAIN, Some(bytes)) => return Ok(Self::Fixed { at, bytes }),
            (Encoding::BYTE_STREAM_SPLIT, Some(length)) => {
                let mut own = Vec::new();
                unsplit(bytes.get(at..).unwrap_or(&[]), length as usize, 0, count, &mut own)?;
                return Ok(Self::Listed { pieces: same(length, count), next: 0, own: Some(own) });
            }
            (Encoding::DELTA_LENGTH_BYTE_ARRAY, None) => {
                let lengths = Deltas::new(bytes, at, 32)?;
                let start = lengths.end(bytes)?;
                (pieces_of(lengths.lengths(bytes, count)?, start, bytes.len())?, None)
            }
            (Encoding::DELTA_BYTE_ARRAY, _) => {
                let (pieces, own) = fronted(bytes, at, count)?;
                (pieces, Some(own))
            }
            _ => return Err(PageError::Unsupported(format!("strings coded as {encoding} are not read"))),
        };
        if fixed.is_some_and(|fixed| pieces.0.iter().any(|(_, length)| *length != fixed)) {
            return Err(PageError::Malformed("a value of fixed length has another length"));
        }
        Ok(Self::Listed { pieces: pieces.0, next: 0, own: pieces.1 })
    }

    /// The bytes that pieces are counted in, of a page of `bytes`.
    pub(crate) fn bytes<'b>(&'b self, bytes: &'b [u8]) -> &'b [u8] {
        match self {
            Self::Listed { own: Some(own), .. } => own,
            _ => bytes,
        }
    }

    /// Fills `out` with the next pieces, all of them within [`Self::bytes`].
    pub(crate) fn read(&mut self, bytes: &[u8], out: &mut [Piece]) -> Result<()> {
        match self {
            Self::Plain { at } => {
                for out in out {
                    let length = bytes.get(*at..).and_then(|rest| rest.first_chunk::<4>()).ok_or(CUT_SHORT)?;
                    let length = u32::from_le_bytes(*length);
                    *at += 4;
                    if length as usize > bytes.len() - *at {
                        return Err(CUT_SHORT);
                    }
                    *out = (*at as u32, length);
                    *at += length as usize;
                }
            }
            Self::Fixed { at, bytes: length } => {
                let left = bytes.len().saturating_sub(*at);
                if left / (*length).max(1) as usize + usize::from(*length == 0) * out.len() < out.len() {
                    return Err(CUT_SHORT);
                }
                for out in out {
                    *out = (*at as u32, *length);
                    *at += *length as usize;
                }
            }
            Self::Listed { pieces, next, .. } => {
                out.copy_from_slice(pieces.get(*next..*next + out.len()).ok_or(CUT_SHORT)?);
                *next += out.len();
            }
        }
        Ok(())
    }

    pub(crate) fn skip(&mut self, bytes: &[u8], mut count: usize) -> Result<()> {
        let mut pieces = [(0, 0); 256];
        while count > 0 {
            let step = count.min(pieces.len());
            self.read(bytes, &mut pieces[..step])?;
            count -= step;
        }
        Ok(())
    }
}

/// Pieces of consecutive strings that start at byte `start` of a page of `end` bytes.
fn pieces_of(lengths: Vec<u32>, start: usize, end: usize) -> Result<Vec<Piece>> {
    let mut at = start;
    let piece = |length: u32| {
        let piece = (at as u32, length);
        at += length as usize;
        if at <= end { Ok(piece) } else { Err(CUT_SHORT) }
    };
    lengths.into_iter().map(piece).collect()
}

fn same(length: u32, count: usize) -> Vec<Piece> {
    (0..count as u32).map(|index| (index * length, length)).collect()
}

/// Strings that share a prefix with their predecessor, written out in full.
fn fronted(bytes: &[u8], at: usize, count: usize) -> Result<(Vec<Piece>, Vec<u8>)> {
    let fronts = Deltas::new(bytes, at, 32)?;
    let backs = fronts.end(bytes)?;
    let fronts = fronts.lengths(bytes, count)?;
    let backs = Deltas::new(bytes, backs, 32)?;
    let start = backs.end(bytes)?;
    let backs = pieces_of(backs.lengths(bytes, count)?, start, bytes.len())?;
    let total: u64 = fronts.iter().zip(&backs).map(|(front, (_, back))| u64::from(*front) + u64::from(*back)).sum();
    if total > MOST_PAGE_BYTES.into() {
        return Err(PageError::Unsupported(format!("the strings of a page have {total} bytes when written out")));
    }
    let (mut own, mut pieces): (Vec<u8>, Vec<Piece>) = (Vec::new(), Vec::with_capacity(count));
    let mut before = 0..0;
    for (front, (start, back)) in fronts.into_iter().zip(backs) {
        if front as usize > before.len() {
            return Err(PageError::Malformed("a string shares more than the one before it has"));
        }
        let at = own.len();
        own.extend_from_within(before.start..before.start + front as usize);
        own.extend_from_slice(&bytes[start as usize..start as usize + back as usize]);
        before = at..own.len();
        pieces.push((at as u32, front + back));
    }
    Ok((pieces, own))
}

/// Values `first..first + count` of BYTE_STREAM_SPLIT bytes, put together again: the k-th bytes of all values lie
/// together.
pub(crate) fn unsplit(bytes: &[u8], width: usize, first: usize, count: usize, out: &mut Vec<u8>) -> Result<()> {
    let values = bytes.len() / width.max(1);
    if first + count > values {
        return Err(PageError::Malformed("streams of bytes end before the values do"));
    }
    out.clear();
    out.resize(count * width, 0);
    let streams = || bytes.chunks_exact(values.max(1)).take(width).map(|stream| &stream[first..first + count]);
    match width {
        4 => meet::<4, u32>(streams(), out, |word, k, byte| word | u32::from(byte) << (8 * k), u32::to_le_bytes),
        8 => meet::<8, u64>(streams(), out, |word, k, byte| word | u64::from(byte) << (8 * k), u64::to_le_bytes),
        _ => {
            for (k, stream) in streams().enumerate() {
                out.chunks_exact_mut(width).zip(stream).for_each(|(value, byte)| value[k] = *byte);
            }
        }
    }
    Ok(())
}

/// Puts streams together as words, which takes a stream's bytes several at once.
fn meet<'b, const WIDTH: usize, W: Copy + Default>(
    streams: impl Iterator<Item = &'b [u8]> + Clone,
    out: &mut [u8],
    add: impl Fn(W, usize, u8) -> W,
    bytes: impl Fn(W) -> [u8; WIDTH],
) {
    const STEP: usize = 256;
    let mut words = [W::default(); STEP];
    for (step, out) in out.as_chunks_mut::<WIDTH>().0.chunks_mut(STEP).enumerate() {
        let words = &mut words[..out.len()];
        words.fill(W::default());
        for (k, stream) in streams.clone().enumerate() {
            let stream = &stream[step * STEP..];
            words.iter_mut().zip(stream).for_each(|(word, byte)| *word = add(*word, k, *byte));
        }
        out.iter_mut().zip(words).for_each(|(out, word)| *out = bytes(*word));
    }
}

/// Appends the strings to `texts`.
pub(crate) fn append(texts: &mut Vec<u8>, bytes: &[u8], pieces: &[Piece]) {
    /// Strings up to this length are copied as a whole word, including the bytes that follow them.
    const SHORT: usize = 16;
    let mut at = texts.len();
    let total: usize = pieces.iter().map(|(_, length)| *length as usize).sum();
    texts.resize(at + total + SHORT, 0);
    for (start, length) in pieces {
        let (start, length) = (*start as usize, *length as usize);
        let short = bytes.get(start..).and_then(|from| from.first_chunk::<SHORT>()).filter(|_| length <= SHORT);
        match short {
            Some(short) => texts[at..at + SHORT].copy_from_slice(short),
            None => texts[at..at + length].copy_from_slice(&bytes[start..start + length]),
        }
        at += length;
    }
    texts.truncate(at);
}

/// The strings as an Arrow array, ready for dictionary encoding.
pub(crate) fn array(kind: Kind, bytes: &[u8], pieces: &[Piece]) -> Result<ArrayRef> {
    let mut values = Vec::new();
    append(&mut values, bytes, pieces);
    if i32::try_from(values.len()).is_err() {
        return Err(PageError::Unsupported(format!("the strings of a page have {} bytes", values.len())));
    }
    let mut at = 0;
    let ends = pieces.iter().map(|(_, length)| {
        at += *length as i32;
        at
    });
    let offsets: Vec<i32> = std::iter::once(0).chain(ends).collect();
    let (offsets, values) = (OffsetBuffer::new(ScalarBuffer::from(offsets)), Buffer::from_vec(values));
    Ok(match kind {
        Kind::Text { utf8: true } => {
            Arc::new(StringArray::try_new(offsets, values, None).map_err(|_| PageError::Utf8)?)
        }
        _ => Arc::new(BinaryArray::new(offsets, values, None)),
    })
}

/// Checks that all strings are UTF-8: the concatenated text, and each boundary between strings.
pub(crate) fn check_utf8(texts: &[u8], lengths: impl Iterator<Item = u32>) -> Result<()> {
    if texts.is_ascii() {
        return Ok(());
    }
    let whole = std::str::from_utf8(texts).map_err(|_| PageError::Utf8)?;
    let mut at = 0;
    for length in lengths {
        at += length as usize;
        if !whole.is_char_boundary(at) {
            return Err(PageError::Utf8);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: Kind = Kind::Text { utf8: true };

    fn all(mut strings: Strings, bytes: &[u8], count: usize) -> Result<Vec<u8>> {
        let mut pieces = vec![(0, 0); count];
        strings.read(bytes, &mut pieces)?;
        let mut texts = Vec::new();
        append(&mut texts, strings.bytes(bytes), &pieces);
        Ok(texts)
    }

    #[test]
    fn plain_strings_end_with_the_page() {
        let bytes = b"\x03\0\0\0abc\x01\0\0\0d\0\0\0\0\x14\0\0\0twenty bytes of text";
        let plain = || Strings::new(TEXT, Encoding::PLAIN, bytes, 0, 4).unwrap();
        assert_eq!(all(plain(), bytes, 4).unwrap(), b"abcdtwenty bytes of text");
        assert!(all(plain(), bytes, 5).is_err());
        assert!(all(plain(), &bytes[..bytes.len() - 1], 4).is_err());
    }

    #[test]
    fn a_character_in_two_strings_is_not_utf8() {
        let bytes = "é".as_bytes();
        assert_eq!(check_utf8(bytes, [2].into_iter()), Ok(()));
        assert_eq!(check_utf8(bytes, [1, 1].into_iter()), Err(PageError::Utf8));
        assert_eq!(check_utf8(&bytes[..1], [1].into_iter()), Err(PageError::Utf8));
    }

    #[test]
    fn streams_of_bytes_meet() {
        let mut out = Vec::new();
        unsplit(b"abcABC123", 3, 1, 2, &mut out).unwrap();
        assert_eq!(out, b"bB2cC3");
        assert!(unsplit(b"abcABC123", 3, 2, 2, &mut out).is_err());
    }
}
