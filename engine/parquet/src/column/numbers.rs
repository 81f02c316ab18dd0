//! Integers and floats: decoded to the column's own type, then cut to the stored width.
//!
//!   PLAIN, DELTA, …   bytes ─► N ─► facts ─► value − base as S
//!   dictionary        codes ─► table of S                          the table is cut once for the chunk
//!                          └─► table of N ─► facts                 only until they cannot change any more

use parquet::basic::Encoding;

use super::{BLOCK, Block, Column, Intern, Layout, Spread, Values, look_up, window};
use crate::conversion::Kind;
use crate::decode::Decode;
use crate::delta::Deltas;
use crate::error::{PageError, ReadError, Result};
use crate::facts::{Facts, Tracker};
use crate::native::{Native, Stored, Words, extremes};
use crate::out::Out;
use crate::rle::Runs;
use crate::strings::{Piece, Strings, unsplit};

pub(crate) struct Numbers<N> {
    kind: Kind,
    width: u8,
    base: i64,
    range: Option<(i128, i128)>,
    /// False for floats, whose only fact is their number.
    is_integer: bool,
    source: Source,
    dictionary: Option<Dictionary<N>>,
    tracker: Tracker<N>,
    scratch: Scratch<N>,
    /// Whether 32 bits hold all values of the column so far, less the base.
    is_near: bool,
    spread: Spread,
}

/// The block of values that is being decoded.
struct Scratch<N> {
    codes: Box<[u32; BLOCK]>,
    values: Box<[N; BLOCK]>,
    /// Values less the base, while 32 bits hold them.
    near: Box<[u32; BLOCK]>,
    /// Values of BYTE_STREAM_SPLIT, put together.
    whole: Vec<u8>,
}

/// Where the values of the page come from.
enum Source {
    None,
    Plain { at: usize },
    Split { at: usize, next: usize },
    Deltas(Deltas),
    Digits(Strings),
    Codes(Runs),
}

/// The entries of the chunk's dictionary: as they are, and as they are stored.
struct Dictionary<N> {
    entries: Vec<N>,
    least: N,
    most: N,
    stored: Words,
}

impl<N: Decode + Send> Numbers<N> {
    pub(crate) fn integers(kind: Kind, layout: Layout) -> Self {
        let Layout::Integers { width, base, range } = layout else { return Self::floats(kind, 8) };
        Self {
            is_integer: true,
            is_near: N::has_near(base),
            base,
            range,
            tracker: Tracker::new(true, range),
            ..Self::floats(kind, width)
        }
    }

    pub(crate) fn floats(kind: Kind, width: u8) -> Self {
        Self {
            kind,
            width,
            base: 0,
            range: None,
            is_integer: false,
            source: Source::None,
            dictionary: None,
            tracker: Tracker::new(false, None),
            scratch: Scratch {
                codes: Box::new([0; BLOCK]),
                values: Box::new([N::default(); BLOCK]),
                near: Box::new([0; BLOCK]),
                whole: Vec::new(),
            },
            is_near: false,
            spread: Spread::default(),
        }
    }

    /// Fills the front of `self.scratch.values`.
    fn decode(&mut self, body: &[u8], count: usize) -> Result<()> {
        const CUT_SHORT: PageError = PageError::Malformed("values end before the rows do");
        let values = &mut self.scratch.values[..count];
        match &mut self.source {
            Source::Plain { at } => {
                let width = self.kind.fixed_bytes().unwrap_or(0);
                let bytes = body.get(*at..*at + count * width).ok_or(CUT_SHORT)?;
                N::plain(self.kind, bytes, values);
                *at += count * width;
            }
            Source::Split { at, next } => {
                let width = self.kind.fixed_bytes().unwrap_or(0);
                unsplit(body.get(*at..).ok_or(CUT_SHORT)?, width, *next, count, &mut self.scratch.whole)?;
                N::plain(self.kind, &self.scratch.whole, values);
                *next += count;
            }
            Source::Deltas(deltas) => {
                let mut block = [0; 256];
                for values in values.chunks_mut(block.len()) {
                    let block = &mut block[..values.len()];
                    deltas.read(body, block)?;
                    values.iter_mut().zip(block).for_each(|(value, delta)| *value = N::of_delta(self.kind, *delta));
                }
            }
            Source::Digits(strings) => {
                let mut block: [Piece; 256] = [(0, 0); 256];
                for values in values.chunks_mut(block.len()) {
                    let block = &mut block[..values.len()];
                    strings.read(body, block)?;
                    let bytes = strings.bytes(body);
                    for (value, (start, length)) in values.iter_mut().zip(block) {
                        if *length > 16 {
                            return Err(PageError::Malformed("a decimal has more than 16 bytes"));
                        }
                        *value = N::of_text(&bytes[*start as usize..(*start + *length) as usize]);
                    }
                }
            }
            Source::None | Source::Codes(_) => return Err(CUT_SHORT),
        }
        Ok(())
    }

    fn write<S: Stored>(&mut self, body: &[u8], block: &Block<'_>, out: &mut [u8]) -> Result<()> {
        let count = block.valid;
        self.tracker.count(block.rows, block.valid);
        if count == 0 {
            // Nothing may have been opened for it.
        } else if let Source::Codes(runs) = &mut self.source {
            let none = || PageError::Malformed("codes without a dictionary");
            let dictionary = self.dictionary.as_mut().ok_or_else(none)?;
            let codes = &mut self.scratch.codes[..count];
            runs.read(body, codes)?;
            if self.is_integer && !self.tracker.knows(dictionary.least, dictionary.most) {
                let values = &mut self.scratch.values[..count];
                look_up(&dictionary.entries, codes, values)?;
                self.tracker.see(values)?;
            }
            look_up(S::words(&mut dictionary.stored), codes, self.spread.dense())?;
        } else {
            self.decode(body, count)?;
            let (values, near) = (&self.scratch.values[..count], &mut self.scratch.near[..count]);
            // After one block of far values the fast path is disabled.
            self.is_near = self.is_near && N::near(values, self.base, near);
            if self.is_near {
                let between = || {
                    let (least, most) = extremes(near);
                    (N::at(self.base, least), N::at(self.base, most))
                };
                self.tracker.see_between(values, between)?;
                cut::<u32, S>(near, 0, self.spread.dense());
            } else {
                if self.is_integer {
                    self.tracker.see(values)?;
                }
                cut::<N, S>(values, self.base, self.spread.dense());
            }
        }
        self.spread.dense::<S>();
        self.spread.write::<S>(block, out);
        Ok(())
    }

    fn cut_dictionary<S: Stored>(&self, entries: &[N], stored: &mut Words) {
        let stored = S::words(stored);
        stored.resize(entries.len(), S::default());
        cut(entries, self.base, stored);
    }

    fn table_of<S: Stored>(words: &mut Words) -> Vec<u8> {
        let words = S::words(words);
        let mut bytes = vec![0; words.len() * S::BYTES];
        S::write(words, &mut bytes);
        bytes
    }
}

fn cut<N: Native, S: Stored>(values: &[N], base: i64, out: &mut [S]) {
    for (out, value) in out.iter_mut().zip(values) {
        *out = S::cut(*value, base);
    }
}

/// Calls a function for the stored type of a width.
macro_rules! by_width {
    ($width:expr, $call:ident :: $function:ident ( $($argument:expr),* )) => {
        match $width {
            1 => $call::$function::<u8>($($argument),*),
            2 => $call::$function::<u16>($($argument),*),
            4 => $call::$function::<u32>($($argument),*),
            8 => $call::$function::<u64>($($argument),*),
            _ => $call::$function::<u128>($($argument),*),
        }
    };
}

impl<N: Decode + Send> Column for Numbers<N> {
    fn dictionary(&mut self, entries: &Values<'_>, _: &mut dyn Intern) -> std::result::Result<(), ReadError> {
        self.source = match self.kind.fixed_bytes() {
            Some(_) => Source::Plain { at: entries.at },
            None => Source::Digits(Strings::Plain { at: entries.at }),
        };
        // Bounds the allocation if the count is damaged: no more entries than the bytes can hold.
        let most = entries.body.len() / self.kind.fixed_bytes().unwrap_or(4);
        let mut all = Vec::with_capacity(entries.count.min(most));
        while all.len() < entries.count {
            let count = (entries.count - all.len()).min(BLOCK);
            self.decode(entries.body, count)?;
            all.extend_from_slice(&self.scratch.values[..count]);
        }
        let (least, most) = extremes(&all);
        let mut stored = Words::default();
        by_width!(self.width, Self::cut_dictionary(self, &all, &mut stored));
        self.dictionary = Some(Dictionary { entries: all, least, most, stored });
        Ok(())
    }

    fn table(&mut self) -> Result<Vec<u8>> {
        let Some(dictionary) = &mut self.dictionary else { return Ok(Vec::new()) };
        let (least, most) = (dictionary.least.wide(), dictionary.most.wide());
        let is_outside = self.range.is_some_and(|(low, high)| least < low || most > high);
        if is_outside && !dictionary.entries.is_empty() {
            return Err(PageError::OutOfRange);
        }
        Ok(by_width!(self.width, Self::table_of(&mut dictionary.stored)))
    }

    fn open(&mut self, values: &Values<'_>, _: &mut dyn Intern) -> std::result::Result<(), ReadError> {
        let Values { encoding, body, at, count } = *values;
        let unknown = || PageError::Unsupported(format!("{:?} coded as {encoding} is not read", self.kind));
        let is_whole = matches!(self.kind, Kind::Int32(_) | Kind::UInt32 | Kind::Days | Kind::Int64 | Kind::UInt64);
        let is_digits = matches!(self.kind, Kind::Fixed64 { .. } | Kind::Fixed128 { .. } | Kind::Variable128);
        self.source = match encoding {
            Encoding::PLAIN if self.kind.fixed_bytes().is_some() => Source::Plain { at },
            Encoding::BYTE_STREAM_SPLIT if self.kind.fixed_bytes().is_some_and(|bytes| bytes != 12) => {
                Source::Split { at, next: 0 }
            }
            Encoding::DELTA_BINARY_PACKED if is_whole => {
                let bits = if matches!(self.kind, Kind::Int64 | Kind::UInt64) { 64 } else { 32 };
                Source::Deltas(Deltas::new(body, at, bits)?)
            }
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => Source::Codes(coded(body, at)?),
            _ if is_digits => Source::Digits(Strings::new(self.kind, encoding, body, at, count)?),
            _ => return Err(unknown().into()),
        };
        Ok(())
    }

    fn skip(&mut self, body: &[u8], valid: usize) -> Result<()> {
        match &mut self.source {
            Source::Plain { at } => *at += valid * self.kind.fixed_bytes().unwrap_or(0),
            Source::Split { next, .. } => *next += valid,
            Source::Codes(runs) => runs.skip(body, valid)?,
            Source::Deltas(_) | Source::Digits(_) => {
                for skipped in (0..valid).step_by(BLOCK) {
                    self.decode(body, (valid - skipped).min(BLOCK))?;
                }
            }
            Source::None => {}
        }
        Ok(())
    }

    fn begin(&mut self, first: u64, end: u64, out: &mut Out<'_>) -> Result<()> {
        let rows = usize::try_from(end - first).unwrap_or(usize::MAX);
        window(out.values, first, rows, self.width.into())?;
        self.tracker = Tracker::new(self.tracker.is_sorted(), self.range);
        Ok(())
    }

    fn block(&mut self, body: &[u8], block: &Block<'_>, first: u64, out: &mut Out<'_>) -> Result<()> {
        let out = window(out.values, first, block.rows, self.width.into())?;
        by_width!(self.width, Self::write(self, body, block, out))
    }

    fn facts(&self) -> Facts {
        match self.is_integer {
            true => self.tracker.facts(),
            false => Facts::of_others(self.tracker.rows, self.tracker.nulls),
        }
    }
}

/// The codes of a page: a byte that says how many bits they have, and runs.
pub(super) fn coded(body: &[u8], at: usize) -> Result<Runs> {
    let width = *body.get(at).ok_or(PageError::Malformed("codes have no width"))?;
    Runs::new(at + 1, width)
}
