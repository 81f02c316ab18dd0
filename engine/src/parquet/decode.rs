//! Columns of a unit, decoded on the host in device layout.
//!
//!   chunk ─► numbers   in the column's width, minus its base; or bits          ─┐
//!         ─► strings   codes of the column's dictionary, or offsets and bytes   ├─► Decoded: rows, validity, facts
//!   value ─► repeated, for a partition column or one that the file lacks       ─┘
//!
//! NULL     a NULL row has value 0 and a cleared validity bit; a column without NULLs has no validity.
//! Checked  every valid integer is checked against the range of its column.

use std::sync::Arc;

use arrow::util::bit_mask;
use datafusion::arrow::array::ArrayRef;
use datafusion::common::ScalarValue;
use millpond_kernels::codegen::ir::{ColumnSpec, MAX_TEXT_BYTES, Physical, Range};
use millpond_memory::recorder;
use millpond_parquet::{Facts as PageFacts, Intern, Layout, Out, PageError, ReadError, Stopped};

use crate::column::facts::Facts;
use crate::column::layout::{ExtentLayout, Region, Shape, write_codes};
use crate::column::scalar_integer;
use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::parquet::file::ColumnSource;
use crate::parquet::scratch::{Scratch, ScratchPool};
use crate::parquet::unit::{Chunks, Part, Units};
use crate::profile::step;
use crate::program::interning::ReaderCodes;

/// Maximum bytes of texts that are allocated before decoding.
const MOST_AHEAD: usize = 1 << 28;

/// Target layout of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Numbers and bits. Every valid integer must be in the range.
    Fixed { physical: Physical, base: i64, range: Option<Range> },
    /// 32-bit codes.
    Codes,
    /// 32-bit offsets, and text bytes.
    Text,
}

/// Decoded rows of a column.
pub(crate) struct Decoded {
    pub values: Values,
    /// One bit per row, in whole 32-bit words.
    pub validity: Option<Scratch>,
    pub facts: Facts,
}

/// Values of a column.
pub(crate) enum Values {
    Fixed { physical: Physical, base: i64, bytes: Scratch },
    Codes(Scratch),
    Text { offsets: Scratch, bytes: Vec<u8> },
}

/// Why a column was not decoded.
pub(crate) enum Undecoded {
    /// The bytes are invalid, or of a kind that the decoder does not support.
    Page(PageError),
    /// A value is outside its range, or is an unexpected NULL.
    Range,
    /// The run has to end or to start again, mostly because strings could not be interned.
    Failed(Failure),
}

impl Target {
    /// This target as the page decoder's layout.
    pub fn layout(self) -> Layout {
        match self {
            Self::Codes => Layout::Codes,
            Self::Text => Layout::Texts,
            Self::Fixed { physical: Physical::Bit, .. } => Layout::Bits,
            Self::Fixed { physical: Physical::F32 | Physical::F64, .. } => Layout::Floats,
            Self::Fixed { physical, base, range } => {
                let range = range.map(|range| (range.low, range.high));
                Layout::Integers { width: physical.width() as u8, base, range }
            }
        }
    }

    /// Bytes of `rows` values; for texts, of their offsets.
    fn bytes(self, rows: usize) -> usize {
        match self {
            Self::Codes => rows * 4,
            Self::Text => (rows + 1) * 4,
            Self::Fixed { physical: Physical::Bit, .. } => bitmap_bytes(rows),
            Self::Fixed { physical, .. } => physical.width() as usize * rows,
        }
    }

    fn values(self, bytes: Scratch, texts: Vec<u8>) -> Values {
        match self {
            Self::Fixed { physical, base, .. } => Values::Fixed { physical, base, bytes },
            Self::Codes => Values::Codes(bytes),
            Self::Text => Values::Text { offsets: bytes, bytes: texts },
        }
    }
}

/// Bytes of a bitmap with one bit per row, in whole 32-bit words.
pub(crate) fn bitmap_bytes(rows: usize) -> usize {
    rows.div_ceil(32) * 4
}

/// Interns strings with a reader's own cache and the column's dictionary, until they are nearly all distinct.
pub(crate) struct Interning<'a> {
    codes: &'a mut ReaderCodes,
    /// Maximum number of dictionary values.
    most: usize,
    /// An expression requires codes, whatever the number of values.
    needed: bool,
    /// Rows that refer to the entries of the next dictionary page.
    coded_rows: usize,
    failure: Option<Failure>,
}

impl<'a> Interning<'a> {
    pub fn new(codes: &'a mut ReaderCodes, most: usize, needed: bool) -> Self {
        Self { codes, most, needed, coded_rows: 0, failure: None }
    }

    /// Begins a chunk with `coded_rows` rows coded by its dictionary.
    pub(super) fn begin(&mut self, coded_rows: usize) {
        self.coded_rows = coded_rows;
    }

    /// Converts the error of a read with this interner.
    pub fn failed(&mut self, error: ReadError) -> Undecoded {
        match error {
            ReadError::Page(error) => Undecoded::of_page(error),
            ReadError::Stopped => {
                // Without a failure the values are nearly all distinct: the column is faster without codes.
                Undecoded::Failed(self.failure.take().unwrap_or_else(|| Failure::Texts(vec![])))
            }
        }
    }
}

impl Intern for Interning<'_> {
    fn codes(&mut self, values: &ArrayRef) -> Result<Vec<u32>, Stopped> {
        let _step = recorder::step(step::INTERN);
        // A dictionary page counts once for all its rows; other pages count each value.
        self.codes.count_rows(match std::mem::take(&mut self.coded_rows) {
            0 => values.len(),
            rows => rows,
        });
        match self.codes.of_values(values, self.most) {
            Ok(_) if !self.needed && self.codes.nearly_all_different() => Err(Stopped),
            Ok(codes) => Ok(codes),
            Err(failure) => {
                self.failure = Some(failure);
                Err(Stopped)
            }
        }
    }
}

impl Undecoded {
    /// Classifies a page error.
    pub fn of_page(error: PageError) -> Self {
        match error {
            PageError::OutOfRange | PageError::UnexpectedNull => Self::Range,
            error => Self::Page(error),
        }
    }

    /// Failure of the run where DataFusion does not read the rows instead.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Page(_) | Self::Range => Failure::Ranges,
            Self::Failed(failure) => failure,
        }
    }

    pub fn internal(what: &str) -> Self {
        Self::Failed(EngineError::internal(what).into())
    }
}

impl<F: Into<Failure>> From<F> for Undecoded {
    fn from(failure: F) -> Self {
        Self::Failed(failure.into())
    }
}

/// Interner of columns without codes.
pub(super) struct NoCodes;

impl Intern for NoCodes {
    fn codes(&mut self, _values: &ArrayRef) -> Result<Vec<u32>, Stopped> {
        Err(Stopped)
    }
}

/// Rows of a column across units.
#[derive(Clone, Copy)]
pub(crate) struct Decoding<'a> {
    pub units: &'a Units,
    /// Column chunks of each unit.
    pub chunks: &'a [Chunks],
    /// Row ranges and their units, and the total number of rows.
    pub parts: &'a [Part],
    /// First row, relative to the units' selected rows.
    pub first: u64,
    pub rows: usize,
    pub scratch: &'a Arc<ScratchPool>,
}

impl Decoding<'_> {
    /// Decodes rows of the scan's column `column`. With `may_be_null`, the rows may contain NULLs.
    pub fn column(
        &self,
        column: usize,
        (target, may_be_null): (Target, bool),
        codes: Option<&mut Interning<'_>>,
    ) -> Result<Decoded, Undecoded> {
        if let ColumnSource::Constant(value) = &self.units.file().columns[column] {
            return constant(value, self.rows, (target, may_be_null), codes, self.scratch);
        }
        let mut values = self.scratch.take(target.bytes(self.rows));
        let mut validity = may_be_null.then(|| self.scratch.take(bitmap_bytes(self.rows)));
        let mut texts = match target {
            Target::Text => Vec::with_capacity(self.units.text_bytes(column).saturating_mul(self.rows).min(MOST_AHEAD)),
            _ => Vec::new(),
        };
        let mut no_codes = NoCodes;
        let mut codes = codes;
        let (mut facts, mut first) = (Facts::default(), 0_u64);
        let mut out = Out::new(&mut values, validity.as_deref_mut(), Some(&mut texts));
        for part in self.parts {
            let reader = self.chunks[part.unit].reader(self.units.unit(part.unit), column, target.layout());
            let reader = reader.map_err(Undecoded::of_page)?;
            let mut reader = reader.ok_or_else(|| Undecoded::internal("a column that is read has a chunk"))?;
            if let Some(codes) = &mut codes {
                codes.begin(self.chunks[part.unit].coded_rows(column));
            }
            for span in &part.spans {
                let read = match reader.skip(span.skip) {
                    Ok(()) => match &mut codes {
                        Some(codes) => reader.read(span.rows, first, &mut out, &mut **codes),
                        None => reader.read(span.rows, first, &mut out, &mut no_codes),
                    },
                    Err(error) => Err(error),
                };
                match read {
                    Ok(of) => facts = facts.then(facts_of(target, &of)),
                    Err(ReadError::Page(error)) => return Err(Undecoded::of_page(error)),
                    Err(ReadError::Stopped) => {
                        let failed = codes.map(|codes| codes.failed(ReadError::Stopped));
                        let internal = || Undecoded::internal("a column of no strings asks for codes");
                        return Err(failed.unwrap_or_else(internal));
                    }
                }
                first += span.rows;
            }
        }
        if self.parts.is_empty() && target == Target::Text {
            values.fill(0);
        }
        let validity = validity.filter(|_| facts.nulls > 0);
        Ok(Decoded { values: target.values(values, texts), validity, facts })
    }
}

fn facts_of(target: Target, of: &PageFacts) -> Facts {
    let range = of.range.map(|(low, high)| Range::new(low, high));
    match target {
        Target::Codes => {
            let most = range.map_or(0, |range| range.high.clamp(0, i128::from(u32::MAX)) as u32);
            Facts::of_codes(of.rows, of.nulls, most)
        }
        _ if range.is_none() && of.nulls < of.rows => Facts::of_others(of.rows, of.nulls),
        _ => Facts::decoded((of.rows, of.nulls, range), (of.sorted, of.ascending, of.steps), of.ends),
    }
}

impl Decoded {
    /// Width, base and range of a column as its pipeline reads it.
    pub fn stored(spec: &ColumnSpec, base: i64) -> (Physical, i64, Range) {
        (spec.physical, base, spec.ty.range.unwrap_or(Range::new(0, i128::from(u32::MAX))))
    }

    /// Bytes of host memory.
    pub fn bytes(&self) -> usize {
        let values = match &self.values {
            Values::Fixed { bytes, .. } | Values::Codes(bytes) => bytes.len(),
            Values::Text { offsets, bytes } => offsets.len() + bytes.len(),
        };
        values + self.validity.as_ref().map_or(0, |bits| bits.len())
    }

    /// Size of the rows `first..first + rows` in an extent.
    pub fn shape(&self, physical: Physical, first: usize, rows: usize) -> Shape {
        let text_bytes = match &self.values {
            Values::Text { offsets, .. } => {
                let (begin, end) = text_ends(offsets, first, rows);
                (rows + 1) * 4 + (end - begin) as usize
            }
            _ => 0,
        };
        Shape { physical, text_bytes, has_nulls: self.validity.is_some() }
    }

    /// Writes the rows `first..first + rows` into `region` of `out`, the buffer of the whole extent, in the given width
    /// and minus the base.
    ///
    /// # Errors
    /// [`Failure::Ranges`] for a code outside the range.
    pub fn write(
        &self,
        out: &mut [u8],
        region: &Region,
        (first, rows): (usize, usize),
        (physical, base, range): (Physical, i64, Range),
    ) -> Result<(), Failure> {
        if let Some((validity, bits)) = region.validity.as_ref().zip(self.validity.as_ref()) {
            copy_bits(&mut out[ExtentLayout::padded(validity)], bits, first, rows);
        }
        let values = &mut out[ExtentLayout::padded(&region.values)];
        let used = region.values.len();
        values[used..].fill(0);
        let values = &mut values[..used];
        match &self.values {
            Values::Fixed { physical: Physical::Bit, bytes, .. } => copy_bits(values, bytes, first, rows),
            Values::Fixed { physical: own, base: less, bytes } => {
                if (*own, *less) != (physical, base) {
                    return Err(EngineError::internal("a column is decoded as its pipeline reads it").into());
                }
                let width = physical.width() as usize;
                values.copy_from_slice(&bytes[first * width..(first + rows) * width]);
            }
            Values::Codes(codes) => {
                let codes = &codes[first * 4..(first + rows) * 4];
                let written = write_codes(values, codes, self.validity.as_deref(), first, (physical, base, range));
                return if written { Ok(()) } else { Err(Failure::Ranges) };
            }
            Values::Text { offsets, bytes } => {
                let (begin, end) = text_ends(offsets, first, rows);
                if values.len() > MAX_TEXT_BYTES as usize {
                    let why = format!("{} bytes of a string column in one extent", values.len());
                    return Err(EngineError::internal(format!("{why} are more than {MAX_TEXT_BYTES}")).into());
                }
                let (heads, texts) = values.split_at_mut((rows + 1) * 4);
                // Device offsets are relative to the start of the offsets.
                let more = ((rows + 1) * 4) as u32;
                let from = &offsets[first * 4..(first + rows + 1) * 4];
                for (head, offset) in heads.as_chunks_mut::<4>().0.iter_mut().zip(from.as_chunks::<4>().0) {
                    *head = (u32::from_le_bytes(*offset) - begin + more).to_le_bytes();
                }
                texts.copy_from_slice(&bytes[begin as usize..end as usize]);
            }
        }
        Ok(())
    }
}

/// Copies the bits of rows to the front of `out`; the remaining bits are zeroed.
fn copy_bits(out: &mut [u8], bits: &[u8], first: usize, rows: usize) {
    out.fill(0);
    bit_mask::set_bits(out, bits, 0, first, rows);
}

/// Byte positions where the texts of the rows begin and end.
fn text_ends(offsets: &[u8], first: usize, rows: usize) -> (u32, u32) {
    let words = offsets.as_chunks::<4>().0;
    (u32::from_le_bytes(words[first]), u32::from_le_bytes(words[first + rows]))
}

/// `rows` copies of one value.
fn constant(
    value: &ScalarValue,
    rows: usize,
    (target, may_be_null): (Target, bool),
    codes: Option<&mut Interning<'_>>,
    scratch: &Arc<ScratchPool>,
) -> Result<Decoded, Undecoded> {
    let mut values = scratch.take(target.bytes(rows));
    values.fill(0);
    let null = value.is_null();
    if null && !may_be_null {
        return Err(Undecoded::Range);
    }
    let validity = (null && rows > 0).then(|| {
        let mut bits = scratch.take(bitmap_bytes(rows));
        bits.fill(0);
        bits
    });
    let nulls = if null { rows as u64 } else { 0 };
    let internal = Undecoded::internal;
    let array = || value.to_array_of_size(1).map_err(|error| Undecoded::Failed(Failure::Input(error)));
    let (mut texts, mut facts) = (Vec::new(), Facts::of_others(rows as u64, nulls));
    match target {
        _ if null => {}
        Target::Codes => {
            let codes = codes.ok_or_else(|| internal("a column of codes has a dictionary"))?;
            codes.codes.count_rows(rows);
            let found = codes.codes.of_values(&array()?, codes.most).map_err(Undecoded::Failed)?;
            let code = found.first().copied().unwrap_or(0);
            values.as_chunks_mut::<4>().0.iter_mut().for_each(|out| *out = code.to_le_bytes());
            facts = Facts::of_codes(rows as u64, 0, code);
        }
        Target::Text => {
            let bytes = bytes_of(value).ok_or_else(|| internal("a text has bytes"))?;
            for (row, out) in values.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let offset = u32::try_from(row * bytes.len()).map_err(|_| Undecoded::Range)?;
                *out = offset.to_le_bytes();
            }
            texts = bytes.repeat(rows);
        }
        Target::Fixed { physical: Physical::Bit, .. } => {
            if matches!(value, ScalarValue::Boolean(Some(true))) {
                set_bits(&mut values, rows);
            }
        }
        Target::Fixed { physical: Physical::F32 | Physical::F64, .. } => {
            let bits = match value {
                ScalarValue::Float32(Some(value)) => value.to_le_bytes().to_vec(),
                ScalarValue::Float64(Some(value)) => value.to_le_bytes().to_vec(),
                _ => return Err(internal("a float is one")),
            };
            values.chunks_exact_mut(bits.len()).for_each(|out| out.copy_from_slice(&bits));
        }
        Target::Fixed { physical, base, range } => {
            let integer = scalar_integer(value).ok_or_else(|| internal("a number is an integer"))?;
            if range.is_some_and(|range| !range.contains(Range::new(integer, integer))) {
                return Err(Undecoded::Range);
            }
            let bytes = (integer - i128::from(base)).to_le_bytes();
            let width = physical.width() as usize;
            values.chunks_exact_mut(width).for_each(|out| out.copy_from_slice(&bytes[..width]));
            facts = Facts::constant(rows as u64, integer);
        }
    }
    Ok(Decoded { values: target.values(values, texts), validity, facts })
}

/// Sets the first `rows` bits of zeroed bytes.
fn set_bits(bits: &mut [u8], rows: usize) {
    bits[..rows / 8].fill(0xff);
    if !rows.is_multiple_of(8) {
        bits[rows / 8] = (1 << (rows % 8)) - 1;
    }
}

/// Bytes of a string.
fn bytes_of(value: &ScalarValue) -> Option<Vec<u8>> {
    match value {
        ScalarValue::Utf8(text) | ScalarValue::LargeUtf8(text) | ScalarValue::Utf8View(text) => {
            text.as_ref().map(|text| text.as_bytes().to_vec())
        }
        ScalarValue::Binary(bytes) | ScalarValue::LargeBinary(bytes) | ScalarValue::BinaryView(bytes) => bytes.clone(),
        ScalarValue::FixedSizeBinary(_, bytes) => bytes.clone(),
        ScalarValue::Dictionary(_, value) | ScalarValue::RunEndEncoded(_, _, value) => bytes_of(value),
        _ => None,
    }
}
