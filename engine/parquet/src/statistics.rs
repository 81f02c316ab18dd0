//! Footer statistics of a column chunk, known before any of its bytes is read.
//!
//!   statistics   INT32 min 3, max 9, 2 NULLs  ──►  range 3..=9, nulls 2
//!   encodings    { RLE_DICTIONARY }           ──►  every data page is dictionary coded
//!
//! Statistics are hints: they may be wrong, so the reader checks each value against the range of its layout.
//! Ignored   INT96 (its order was never defined) · deprecated minima of unsigned numbers and of bytes (ordered as
//!           signed).

use parquet::basic::{Encoding, PageType};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::statistics::Statistics;

use crate::conversion::{Conversion, Cut, Kind};
use crate::native::big_endian;

/// Bounds of a chunk's values according to the footer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Every valid integer lies within, both ends included.
    pub range: Option<(i128, i128)>,
    pub nulls: Option<u64>,
}

/// Bounds of the values of `chunk` after `conversion`, according to the footer.
pub fn statistics(chunk: &ColumnChunkMetaData, conversion: &Conversion) -> Bounds {
    let Some(statistics) = chunk.statistics() else { return Bounds::default() };
    let range = range(statistics, conversion.kind).filter(|(low, high)| low <= high);
    Bounds { range, nulls: statistics.null_count_opt() }
}

fn range(statistics: &Statistics, kind: Kind) -> Option<(i128, i128)> {
    let is_ordered = !statistics.is_min_max_deprecated();
    match (statistics, kind) {
        (Statistics::Int32(of), _) => {
            let (low, high) = (*of.min_opt()?, *of.max_opt()?);
            match kind {
                Kind::Int32(Cut::None) => Some((low.into(), high.into())),
                // The minimum may have bits that the conversion cuts off; then it bounds nothing.
                Kind::Int32(cut) => {
                    let (least, most) = match cut {
                        Cut::I8 => (i8::MIN.into(), i8::MAX.into()),
                        Cut::I16 => (i16::MIN.into(), i16::MAX.into()),
                        Cut::U8 => (0, u8::MAX.into()),
                        Cut::U16 => (0, u16::MAX.into()),
                        Cut::None => (i32::MIN, i32::MAX),
                    };
                    (least <= low && high <= most).then_some((low.into(), high.into()))
                }
                Kind::UInt32 => is_ordered.then_some(((low as u32).into(), (high as u32).into())),
                Kind::Days => Some((i128::from(low) * 86_400_000, i128::from(high) * 86_400_000)),
                _ => None,
            }
        }
        (Statistics::Int64(of), _) => {
            let (low, high) = (*of.min_opt()?, *of.max_opt()?);
            match kind {
                Kind::Int64 => Some((low.into(), high.into())),
                Kind::UInt64 => is_ordered.then_some(((low as u64).into(), (high as u64).into())),
                _ => None,
            }
        }
        (Statistics::FixedLenByteArray(of), Kind::Fixed64 { bytes } | Kind::Fixed128 { bytes }) if is_ordered => {
            let whole = |value: &[u8]| (value.len() == usize::from(bytes)).then(|| big_endian(value));
            Some((whole(of.min_opt()?.data())?, whole(of.max_opt()?.data())?))
        }
        // Long minima may be truncated, and a truncated number is a different number.
        (Statistics::ByteArray(of), Kind::Variable128) if is_ordered && of.min_is_exact() && of.max_is_exact() => {
            let whole = |value: &[u8]| (value.len() <= 16).then(|| big_endian(value));
            Some((whole(of.min_opt()?.data())?, whole(of.max_opt()?.data())?))
        }
        _ => None,
    }
}

/// True if the footer proves that every data page of `chunk` is dictionary coded.
pub fn is_all_dictionary(chunk: &ColumnChunkMetaData) -> bool {
    let is_dictionary = |encoding: Encoding| matches!(encoding, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY);
    if chunk.dictionary_page_offset().is_none() {
        return false;
    }
    if let Some(mask) = chunk.page_encoding_stats_mask() {
        return mask.encodings().count() > 0 && mask.encodings().all(is_dictionary);
    }
    if let Some(pages) = chunk.page_encoding_stats() {
        let is_data = |of: PageType| matches!(of, PageType::DATA_PAGE | PageType::DATA_PAGE_V2);
        let mut data = pages.iter().filter(|page| is_data(page.page_type) && page.count > 0).peekable();
        return data.peek().is_some() && data.all(|page| is_dictionary(page.encoding));
    }
    // Older files list all encodings of the chunk together. PLAIN is then also that of the dictionary page itself,
    // unless that says PLAIN_DICTIONARY; RLE and BIT_PACKED are those of the levels.
    let mut encodings = chunk.encodings().peekable();
    let is_old = chunk.encodings().any(|encoding| encoding == Encoding::PLAIN_DICTIONARY);
    let is_level = |encoding: Encoding| {
        #[expect(deprecated, reason = "old files name it")]
        let bit_packed = Encoding::BIT_PACKED;
        encoding == Encoding::RLE || encoding == bit_packed
    };
    is_old && encodings.all(|encoding| is_level(encoding) || encoding == Encoding::PLAIN_DICTIONARY)
}
