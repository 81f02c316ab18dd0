//! Column types: how the values of a page become rows of the output, block by block.
//!
//!   page    open ─► block ─► block ─► …     body and position; the levels are already read
//!   block   valid values in L1 scratch ─► facts ─► cut to their width ─► spread over NULL rows ─► one copy to the
//!                                                                        output
//!
//! Numbers: integers and floats.  Flags: booleans.  Codes: strings by dictionary.  Texts: offsets and bytes.
//! Positions: places in a dictionary.

mod codes;
mod flags;
mod numbers;
mod positions;
mod texts;

use parquet::basic::Encoding;

use crate::conversion::{Conversion, Kind};
use crate::error::{PageError, ReadError, Result, Stopped};
use crate::facts::Facts;
use crate::native::{Stored, Words};
use crate::out::Out;
use arrow::array::ArrayRef;

/// Rows decoded together: few enough to keep all scratch in L1, enough to amortize the work per block.
pub(crate) const BLOCK: usize = 1_024;

/// Output layout of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Booleans, a bit each.
    Bits,
    /// `value - base`, cut to `width` bytes: 1, 2, 4, 8 or 16. A valid value outside `range` is
    /// [`PageError::OutOfRange`].
    Integers { width: u8, base: i64, range: Option<(i128, i128)> },
    /// Floats of 4 or 8 bytes, each bit kept.
    Floats,
    /// Strings as codes of 4 bytes.
    Codes,
    /// Strings as offsets of 4 bytes, and bytes.
    Texts,
    /// Places in the dictionary, of 4 bytes; of chunks whose values are all in it.
    Positions,
}

/// Assigns codes to strings.
pub trait Intern {
    /// The code of each of `values`: a `StringArray` where the column is of strings, a `BinaryArray` otherwise, without
    /// NULLs. Called with a dictionary's entries once, and with the values of pages that use no dictionary page by
    /// page.
    fn codes(&mut self, values: &ArrayRef) -> std::result::Result<Vec<u32>, Stopped>;
}

/// The valid values of a page: position and count.
pub(crate) struct Values<'b> {
    pub(crate) encoding: Encoding,
    pub(crate) body: &'b [u8],
    pub(crate) at: usize,
    pub(crate) count: usize,
}

/// Rows that are decoded together.
pub(crate) struct Block<'b> {
    pub(crate) rows: usize,
    /// Number of valid rows.
    pub(crate) valid: usize,
    /// A bit for each row; meaningless if all are valid.
    pub(crate) words: &'b [u32; BLOCK / 32],
}

/// Converts values to rows. Each call receives the page's body, which does not change from `open` to the page's last
/// row.
pub(crate) trait Column: Send {
    /// Takes the entries of the chunk's dictionary.
    fn dictionary(&mut self, entries: &Values<'_>, intern: &mut dyn Intern) -> std::result::Result<(), ReadError>;

    /// The dictionary as it is stored, if the layout has such a form.
    fn table(&mut self) -> Result<Vec<u8>>;

    /// Begins a page that has at least one valid value.
    fn open(&mut self, values: &Values<'_>, intern: &mut dyn Intern) -> std::result::Result<(), ReadError>;

    /// Passes over valid values.
    fn skip(&mut self, body: &[u8], valid: usize) -> Result<()>;

    /// Begins a read and resets the facts. The read writes rows `first..end` of `out`.
    fn begin(&mut self, first: u64, end: u64, out: &mut Out<'_>) -> Result<()>;

    /// Writes the rows of `block` from row `first` of `out` on.
    fn block(&mut self, body: &[u8], block: &Block<'_>, first: u64, out: &mut Out<'_>) -> Result<()>;

    /// Facts about the rows since `begin`.
    fn facts(&self) -> Facts;
}

/// The column that stores `conversion`'s values as `layout`.
pub(crate) fn of(conversion: Conversion, layout: Layout) -> Result<Box<dyn Column>> {
    let kind = conversion.kind;
    Ok(match (layout, kind) {
        (Layout::Positions, _) => Box::new(positions::Positions::default()),
        (Layout::Bits, Kind::Bool) => Box::new(flags::Flags::new()),
        (Layout::Codes, _) if conversion.is_text() => Box::new(codes::Codes::new(kind)),
        (Layout::Texts, _) if conversion.is_text() => Box::new(texts::Texts::new(kind)),
        (Layout::Floats, Kind::Float32) => Box::new(numbers::Numbers::<u32>::floats(kind, 4)),
        (Layout::Floats, Kind::Float64) => Box::new(numbers::Numbers::<u64>::floats(kind, 8)),
        (Layout::Integers { width: 1 | 2 | 4 | 8 | 16, .. }, _) => match kind {
            Kind::Int32(_) => Box::new(numbers::Numbers::<i32>::integers(kind, layout)),
            Kind::UInt32 => Box::new(numbers::Numbers::<u32>::integers(kind, layout)),
            Kind::Int64 | Kind::Days | Kind::Int96 { .. } | Kind::Fixed64 { .. } => {
                Box::new(numbers::Numbers::<i64>::integers(kind, layout))
            }
            Kind::UInt64 => Box::new(numbers::Numbers::<u64>::integers(kind, layout)),
            Kind::Fixed128 { .. } | Kind::Variable128 => Box::new(numbers::Numbers::<i128>::integers(kind, layout)),
            _ => return Err(PageError::Unsupported(format!("{kind:?} has no layout {layout:?}"))),
        },
        _ => return Err(PageError::Unsupported(format!("{kind:?} has no layout {layout:?}"))),
    })
}

/// The bytes of `values` that are those of rows `first..first + rows`.
pub(crate) fn window(values: &mut [u8], first: u64, rows: usize, width: usize) -> Result<&mut [u8]> {
    let start = usize::try_from(first).ok().and_then(|first| first.checked_mul(width));
    let range = start.and_then(|start| Some(start..start.checked_add(rows.checked_mul(width)?)?));
    let too_small = || PageError::Shape(format!("rows {first}.. of {width} bytes lie behind the end of the output"));
    range.and_then(|range| values.get_mut(range)).ok_or_else(too_small)
}

/// Writes the `table` entry of each code to `out`; fails if a code is out of range.
pub(crate) fn look_up<T: Copy>(table: &[T], codes: &[u32], out: &mut [T]) -> Result<()> {
    let entries = u32::try_from(table.len()).unwrap_or(u32::MAX);
    // A separate pass without early exit, so that the compiler vectorizes it.
    if codes.iter().fold(false, |is_beyond, code| is_beyond | (*code >= entries)) {
        return Err(PageError::Malformed("a code lies behind the end of the dictionary"));
    }
    let (out, out_rest) = out[..codes.len()].as_chunks_mut::<8>();
    let (codes, codes_rest) = codes.as_chunks::<8>();
    // Eight at a time, because the compiler does not unroll this loop itself.
    for (out, codes) in out.iter_mut().zip(codes) {
        for i in 0..8 {
            out[i] = table[codes[i] as usize];
        }
    }
    for (out, code) in out_rest.iter_mut().zip(codes_rest) {
        *out = table[*code as usize];
    }
    Ok(())
}

/// Values that are ready to be written, and the rows they are spread over.
#[derive(Default)]
pub(crate) struct Spread {
    dense: Words,
    rows: Words,
}

impl Spread {
    /// Space for the valid values of a block, and one more.
    pub(crate) fn dense<S: Stored>(&mut self) -> &mut [S] {
        let dense = S::words(&mut self.dense);
        dense.resize(BLOCK + 1, S::default());
        dense
    }

    /// Writes the first values of [`Self::dense`] to the rows of `block` that are valid, and zeros to the others.
    pub(crate) fn write<S: Stored>(&mut self, block: &Block<'_>, out: &mut [u8]) {
        let dense = S::words(&mut self.dense);
        if block.valid == block.rows {
            S::write(&dense[..block.rows], out);
            return;
        }
        let rows = S::words(&mut self.rows);
        rows.resize(BLOCK, S::default());
        let mut next = 0;
        for (word, rows) in block.words.iter().zip(rows[..block.rows.next_multiple_of(32)].chunks_exact_mut(32)) {
            if *word == 0 {
                rows.fill(S::default());
                continue;
            }
            for (i, row) in rows.iter_mut().enumerate() {
                let is_valid = word >> i & 1 == 1;
                // Loaded unconditionally to avoid a branch: `dense` has space for one more value.
                let value = dense[next];
                *row = if is_valid { value } else { S::default() };
                next += usize::from(is_valid);
            }
        }
        S::write(&rows[..block.rows], out);
    }
}
