//! The values of a column: a function of (kind, distribution, row), so that the expected rows need no file.
//!
//! ```text
//!   number(row) in the type's range ──► Int8 … Decimal256, dates, times        bytes(row) ──► Utf8, Binary, Fixed
//!   bits(row)                       ──► Float16, Float32, Float64              NULLs as the pattern says
//! ```

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Decimal128Array, Decimal256Array, FixedSizeBinaryArray, Float16Array,
    Float32Array, Float64Array, PrimitiveArray, StringArray,
};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Float16Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time32MillisecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type, i256,
};
use arrow::error::ArrowError;

use super::Column;
use super::choice::{Nulls, Values};
use super::kind::Kind;
use crate::rng::ColumnRng;

type Float16 = <Float16Type as ArrowPrimitiveType>::Native;

/// A column of a file, while its rows are generated.
pub(super) struct Rows<'a> {
    pub column: &'a Column,
    /// Random words of this column; a column with this number in another file has different words.
    pub rng: ColumnRng,
    pub num_rows: usize,
    /// Rows of the first page.
    pub page_rows: usize,
}

impl Rows<'_> {
    /// The rows as an Arrow array.
    pub fn array(&self) -> Result<ArrayRef, ArrowError> {
        let decimal = |precision, scale| {
            let array: Decimal128Array = self.each(|row| self.number(row)).collect();
            Ok::<ArrayRef, ArrowError>(Arc::new(array.with_precision_and_scale(precision, scale)?))
        };
        Ok(match self.column.kind {
            Kind::Boolean => Arc::new(self.each(|row| self.boolean(row)).collect::<BooleanArray>()),
            Kind::Int8 => self.integers::<Int8Type>(|number| number as i8),
            Kind::Int16 => self.integers::<Int16Type>(|number| number as i16),
            Kind::Int32 => self.integers::<Int32Type>(|number| number as i32),
            Kind::UInt8 => self.integers::<UInt8Type>(|number| number as u8),
            Kind::UInt16 => self.integers::<UInt16Type>(|number| number as u16),
            Kind::UInt32 => self.integers::<UInt32Type>(|number| number as u32),
            Kind::Date32 => self.integers::<Date32Type>(|number| number as i32),
            Kind::Time32 => self.integers::<Time32MillisecondType>(|number| number as i32),
            Kind::Int64 => self.integers::<Int64Type>(|number| number as i64),
            Kind::UInt64 => self.integers::<UInt64Type>(|number| number as u64),
            Kind::Time64Micro => self.integers::<Time64MicrosecondType>(|number| number as i64),
            Kind::Time64Nano => self.integers::<Time64NanosecondType>(|number| number as i64),
            Kind::TimestampMilli | Kind::TimestampMilliUtc => {
                self.integers::<TimestampMillisecondType>(|number| number as i64)
            }
            Kind::TimestampMicro | Kind::TimestampMicroUtc => {
                self.integers::<TimestampMicrosecondType>(|number| number as i64)
            }
            Kind::TimestampNano | Kind::TimestampNanoUtc | Kind::Int96 => {
                self.integers::<TimestampNanosecondType>(|number| number as i64)
            }
            Kind::Decimal5Fixed => decimal(5, 2)?,
            Kind::Decimal9 => decimal(9, 2)?,
            Kind::Decimal18 | Kind::Decimal18Fixed => decimal(18, 4)?,
            Kind::Decimal20 => decimal(20, 0)?,
            Kind::Decimal28 => decimal(28, 6)?,
            Kind::Decimal38 => decimal(38, 10)?,
            Kind::Decimal50 => {
                // Twelve digits more than fit 128 bits.
                let wide = |row| i256::from_i128(self.number(row)).wrapping_mul(i256::from_i128(1_000_000_000_000));
                let array: Decimal256Array = self.each(wide).collect();
                Arc::new(array.with_precision_and_scale(50, 12)?)
            }
            Kind::Float16 => {
                let half = |row| Float16::from_bits(self.half_bits(row));
                Arc::new(self.each(half).collect::<Float16Array>())
            }
            Kind::Float32 => Arc::new(self.each(|row| f32::from_bits(self.single_bits(row))).collect::<Float32Array>()),
            Kind::Float64 => Arc::new(self.each(|row| f64::from_bits(self.double_bits(row))).collect::<Float64Array>()),
            Kind::Utf8 | Kind::Utf8Wide | Kind::Utf8Long => {
                let text = |row| String::from_utf8(self.bytes(row)).expect("texts are UTF-8");
                Arc::new(self.each(text).collect::<StringArray>())
            }
            Kind::Binary => Arc::new(self.each(|row| self.bytes(row)).collect::<BinaryArray>()),
            Kind::Fixed1 => self.fixed(1)?,
            Kind::Fixed7 => self.fixed(7)?,
            Kind::Fixed16 => self.fixed(16)?,
        })
    }

    /// One value per row, `None` for NULL.
    fn each<T>(&self, value: impl Fn(usize) -> T) -> impl Iterator<Item = Option<T>> {
        (0..self.num_rows).map(move |row| self.is_valid(row).then(|| value(row)))
    }

    fn integers<T: ArrowPrimitiveType>(&self, narrow: impl Fn(i128) -> T::Native) -> ArrayRef {
        let array: PrimitiveArray<T> = self.each(|row| narrow(self.number(row))).collect();
        match self.column.kind.data_type() {
            zoned @ DataType::Timestamp(_, Some(_)) => Arc::new(array.with_data_type(zoned)),
            _ => Arc::new(array),
        }
    }

    fn fixed(&self, width: usize) -> Result<ArrayRef, ArrowError> {
        let value = |row| {
            let position = self.word(row) % 6;
            match self.column.values {
                Values::Constant => [0xa5; 16],
                Values::Sorted => (row as u128).to_be_bytes(),
                Values::Repeats => (row as u128 / 13).to_be_bytes(),
                Values::Few => [position as u8 * 50; 16],
                Values::Random => (u128::from(self.word(row)) << 64 | u128::from(self.more(row))).to_be_bytes(),
                Values::Extremes => [if position.is_multiple_of(2) { 0 } else { 0xff }; 16],
            }
        };
        let values = self.each(|row| value(row)[16 - width..].to_vec());
        Ok(Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, width as i32)?))
    }

    fn is_valid(&self, row: usize) -> bool {
        match self.column.nulls {
            Nulls::Required | Nulls::Without => true,
            Nulls::Seventh => row % 7 != 3,
            Nulls::Half => self.more(row + (1 << 32)).is_multiple_of(2),
            Nulls::All => false,
            Nulls::Runs => {
                const LENGTHS: [usize; 9] = [1, 7, 8, 9, 31, 33, 64, 100, 200];
                let cycle: usize = LENGTHS.iter().sum();
                let mut place = row % cycle;
                let run = LENGTHS.iter().position(|&length| {
                    let inside = place < length;
                    place = place.saturating_sub(length);
                    inside
                });
                (run.expect("inside the cycle") + row / cycle).is_multiple_of(2)
            }
            Nulls::FirstPage => row >= self.page_rows,
        }
    }

    fn word(&self, row: usize) -> u64 {
        self.rng.word(row as u64)
    }

    /// A second random word of the row.
    fn more(&self, row: usize) -> u64 {
        self.rng.word(row as u64 + (1 << 40))
    }

    /// Rank of the row among ascending values; with repeats, thirteen rows share a rank.
    fn rank(&self, row: usize) -> usize {
        if self.column.values == Values::Repeats { row / 13 } else { row }
    }

    fn boolean(&self, row: usize) -> bool {
        match self.column.values {
            Values::Constant => true,
            Values::Sorted => row * 2 >= self.num_rows,
            Values::Repeats => (row / 13).is_multiple_of(2),
            Values::Few => self.word(row).is_multiple_of(9),
            Values::Random => self.word(row).is_multiple_of(2),
            Values::Extremes => row.is_multiple_of(2),
        }
    }

    /// Smallest and largest number of the kind.
    fn range(&self) -> (i128, i128) {
        let digits = |precision: u32| (1 - 10_i128.pow(precision), 10_i128.pow(precision) - 1);
        match self.column.kind {
            Kind::Int8 => (i8::MIN.into(), i8::MAX.into()),
            Kind::Int16 => (i16::MIN.into(), i16::MAX.into()),
            Kind::UInt8 => (0, u8::MAX.into()),
            Kind::UInt16 => (0, u16::MAX.into()),
            Kind::UInt32 => (0, u32::MAX.into()),
            Kind::Int32 | Kind::Date32 => (i32::MIN.into(), i32::MAX.into()),
            Kind::UInt64 => (0, u64::MAX.into()),
            Kind::Time32 => (0, 86_400_000 - 1),
            Kind::Time64Micro => (0, 86_400_000_000 - 1),
            Kind::Time64Nano => (0, 86_400_000_000_000 - 1),
            Kind::Decimal5Fixed => digits(5),
            Kind::Decimal9 => digits(9),
            Kind::Decimal18 | Kind::Decimal18Fixed => digits(18),
            Kind::Decimal20 => digits(20),
            Kind::Decimal28 => digits(28),
            Kind::Decimal38 | Kind::Decimal50 => digits(38),
            _ => (i64::MIN.into(), i64::MAX.into()),
        }
    }

    fn number(&self, row: usize) -> i128 {
        let (low, high) = self.range();
        let width = high.wrapping_sub(low) as u128; // one less than the count of numbers, which may not fit 128 bits
        let from_low = |distance: u128| low.wrapping_add(distance as i128);
        match self.column.values {
            Values::Constant => from_low(width / 3),
            Values::Sorted | Values::Repeats => {
                let step = (width / 4 / self.num_rows.max(1) as u128).clamp(1, 1_000);
                from_low(width / 4 + (self.rank(row) as u128 * step).min(width / 2))
            }
            Values::Few => from_low(width / 7 * u128::from(self.word(row) % 6)),
            Values::Random => {
                let bits = u128::from(self.word(row)) << 64 | u128::from(self.more(row));
                from_low(if width == u128::MAX { bits } else { bits % (width + 1) })
            }
            Values::Extremes => {
                [low, high, low + 1, high - 1, low.max(0), high.min(low.max(-1))][(self.word(row) % 6) as usize]
            }
        }
    }

    /// A value of a float kind, if it does not depend on the width.
    fn float(&self, row: usize) -> f64 {
        match self.column.values {
            Values::Constant => 2.5,
            Values::Few => [0.0, 1.5, -2.25, 100.0, 10_000.0, -0.001][(self.word(row) % 6) as usize],
            _ => self.rank(row) as f64 * 0.25,
        }
    }

    fn half_bits(&self, row: usize) -> u16 {
        // NaN of two payloads, −0.0, ±infinity, the largest and the smallest numbers.
        const EXTREMES: [u16; 9] = [0x7e00, 0xfe01, 0x8000, 0x0000, 0x7c00, 0xfc00, 0x7bff, 0xfbff, 0x0001];
        match self.column.values {
            Values::Random => self.word(row) as u16,
            Values::Extremes => EXTREMES[(self.word(row) % 9) as usize],
            _ => Float16::from_f64(self.float(row)).to_bits(),
        }
    }

    fn single_bits(&self, row: usize) -> u32 {
        const EXTREMES: [u32; 9] =
            [0x7fc0_0000, 0xffc0_0001, 0x8000_0000, 0, 0x7f80_0000, 0xff80_0000, 0x7f7f_ffff, 0xff7f_ffff, 1];
        match self.column.values {
            Values::Random => self.word(row) as u32,
            Values::Extremes => EXTREMES[(self.word(row) % 9) as usize],
            _ => (self.float(row) as f32).to_bits(),
        }
    }

    fn double_bits(&self, row: usize) -> u64 {
        const EXTREMES: [f64; 9] =
            [f64::NAN, -f64::NAN, -0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY, f64::MIN, f64::MAX, f64::MIN_POSITIVE];
        match self.column.values {
            Values::Random => self.word(row),
            Values::Extremes => EXTREMES[(self.word(row) % 9) as usize].to_bits(),
            _ => self.float(row).to_bits(),
        }
    }

    /// Bytes of a text or a binary value.
    fn bytes(&self, row: usize) -> Vec<u8> {
        let kind = self.column.kind;
        if kind == Kind::Utf8Long && row % 5 == 3 {
            return format!("{row:07}").repeat(10_000).into_bytes();
        }
        let words: [&[u8]; 8] = match kind {
            Kind::Utf8Wide => [
                "é".as_bytes(),
                b"",
                "水と".as_bytes(),
                "🦆🦆🦆".as_bytes(),
                "z\u{301}".as_bytes(),
                b"\0",
                b"~",
                "ß".as_bytes(),
            ],
            Kind::Binary => [b"\0", b"", b"\xff\xfe", b"\x80", b"PAR1", &[0; 40], &[0xff; 70], b"\0\x01"],
            _ => [b"kitchen", b"", b"a", b"kitchen and living", b"zz", b"\0", &[b'~'; 300], b" "],
        };
        match self.column.values {
            Values::Constant => words[3].to_vec(),
            Values::Sorted | Values::Repeats => {
                let mark = if kind == Kind::Utf8Wide { "n°" } else { "customer#" };
                format!("{mark}{:07}", self.rank(row)).into_bytes()
            }
            Values::Few => words[(self.word(row) % 6) as usize].to_vec(),
            Values::Extremes => words[(self.word(row) % 8) as usize].to_vec(),
            Values::Random => {
                // Mostly short, one in fifty up to 200 characters.
                let word = self.word(row);
                let length = if word.is_multiple_of(50) { (word >> 8) % 200 } else { (word >> 8) % 20 };
                let letter = |at: u64| self.rng.word(row as u64 * 256 + at + (1 << 48));
                match kind {
                    Kind::Binary => (0..length).map(|at| letter(at) as u8).collect(),
                    Kind::Utf8Wide => {
                        let wide = |at| ['é', 'ß', '水', '🦆', 'z'][(letter(at) % 5) as usize];
                        (0..length).map(wide).collect::<String>().into_bytes()
                    }
                    _ => (0..length).map(|at| b' ' + (letter(at) % 95) as u8).collect(),
                }
            }
        }
    }
}
