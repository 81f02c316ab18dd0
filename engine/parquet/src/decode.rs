//! Physical values as integers: PLAIN bytes, differences and strings of digits, by [`Kind`].
//!
//!   i32  Int32   i64  Int64, Days, Int96, Fixed64   i128  Fixed128, Variable128
//!   u32  UInt32, Float32 (its bits)   u64  UInt64, Float64 (its bits)

use crate::conversion::{Cut, Kind};
use crate::native::{Native, big_endian};

/// The day that INT96 calls 2,440,588 is 1970-01-01.
const EPOCH: i64 = 2_440_588;
const DAY_SECONDS: i64 = 86_400;
const DAY_MILLISECONDS: i64 = 86_400_000;

/// An integer type that some kinds decode to. The column chooses the kind; unsupported kinds yield zeros.
pub(crate) trait Decode: Native {
    /// `out.len()` PLAIN values, all of the same length.
    fn plain(kind: Kind, bytes: &[u8], out: &mut [Self]);

    fn of_delta(kind: Kind, delta: i64) -> Self;

    fn of_text(_text: &[u8]) -> Self {
        Self::default()
    }
}

/// Converts one value after the other.
#[inline(always)]
fn each<const BYTES: usize, N>(bytes: &[u8], out: &mut [N], convert: impl Fn([u8; BYTES]) -> N) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<BYTES>().0) {
        *out = convert(*bytes);
    }
}

#[inline(always)]
fn cut(cut: Cut, value: i32) -> i32 {
    match cut {
        Cut::None => value,
        Cut::I8 => (value as i8).into(),
        Cut::U8 => (value as u8).into(),
        Cut::I16 => (value as i16).into(),
        Cut::U16 => (value as u16).into(),
    }
}

impl Decode for i32 {
    fn plain(kind: Kind, bytes: &[u8], out: &mut [Self]) {
        each(bytes, out, Self::from_le_bytes);
        if let Kind::Int32(width) = kind
            && width != Cut::None
        {
            out.iter_mut().for_each(|value| *value = cut(width, *value));
        }
    }

    fn of_delta(kind: Kind, delta: i64) -> Self {
        match kind {
            Kind::Int32(width) => cut(width, delta as Self),
            _ => delta as Self,
        }
    }
}

impl Decode for u32 {
    fn plain(_: Kind, bytes: &[u8], out: &mut [Self]) {
        each(bytes, out, Self::from_le_bytes);
    }

    fn of_delta(_: Kind, delta: i64) -> Self {
        delta as Self
    }
}

impl Decode for u64 {
    fn plain(_: Kind, bytes: &[u8], out: &mut [Self]) {
        each(bytes, out, Self::from_le_bytes);
    }

    fn of_delta(_: Kind, delta: i64) -> Self {
        delta as Self
    }
}

impl Decode for i64 {
    fn plain(kind: Kind, bytes: &[u8], out: &mut [Self]) {
        match kind {
            Kind::Days => each(bytes, out, |bytes| Self::from(i32::from_le_bytes(bytes)) * DAY_MILLISECONDS),
            Kind::Int96 { per_second } => each(bytes, out, |bytes| int96(bytes, per_second)),
            Kind::Fixed64 { bytes: length } => fixed(length, bytes, out),
            _ => each(bytes, out, Self::from_le_bytes),
        }
    }

    fn of_delta(kind: Kind, delta: i64) -> Self {
        match kind {
            Kind::Days => Self::from(delta as i32) * DAY_MILLISECONDS,
            _ => delta,
        }
    }

    fn of_text(text: &[u8]) -> Self {
        big_endian(text) as Self
    }
}

impl Decode for i128 {
    fn plain(kind: Kind, bytes: &[u8], out: &mut [Self]) {
        if let Kind::Fixed128 { bytes: length } = kind {
            fixed_wide(length, bytes, out);
        }
    }

    fn of_delta(_: Kind, delta: i64) -> Self {
        delta.into()
    }

    fn of_text(text: &[u8]) -> Self {
        big_endian(text)
    }
}

/// Nanoseconds of the day, and the day: as many units as fit, wrapping around.
fn int96(bytes: [u8; 12], per_second: i64) -> i64 {
    let [nanos, rest @ ..] = [0, 4, 8].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i])));
    let day = i64::from(rest[1] as i32) - EPOCH;
    let nanos = i64::from(rest[0]) << 32 | i64::from(nanos);
    day.wrapping_mul(DAY_SECONDS * per_second).wrapping_add(nanos / (1_000_000_000 / per_second))
}

/// Big-endian numbers of 1 to 8 bytes, a length that the compiler knows: a shift takes away what lies behind them.
fn fixed(length: u8, bytes: &[u8], out: &mut [i64]) {
    macro_rules! of {
        ($($length:literal)*) => {
            match length {
                $($length => each(bytes, out, |bytes: [u8; $length]| high(&bytes)),)*
                _ => {}
            }
        };
    }
    of!(1 2 3 4 5 6 7 8)
}

/// Big-endian numbers of 9 to 16 bytes: the last 8 of them, and those in front.
fn fixed_wide(length: u8, bytes: &[u8], out: &mut [i128]) {
    macro_rules! of {
        ($($length:literal)*) => {
            match length {
                $($length => each(bytes, out, |bytes: [u8; $length]| {
                    let (front, low) = bytes.split_last_chunk().unwrap_or((&[], &[0; 8]));
                    i128::from(high(front)) << 64 | i128::from(u64::from_be_bytes(*low))
                }),)*
                _ => {}
            }
        };
    }
    of!(9 10 11 12 13 14 15 16)
}

/// A big-endian number of 1 to 8 bytes.
#[inline(always)]
fn high(bytes: &[u8]) -> i64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    i64::from_be_bytes(wide) >> (64 - 8 * bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_numbers_of_every_length() {
        for length in 1..=8_u8 {
            for value in [0_i64, 1, -1, 100, -128] {
                let bytes = &value.to_be_bytes()[8 - usize::from(length)..];
                let mut out = [7_i64; 2];
                i64::plain(Kind::Fixed64 { bytes: length }, &[bytes, bytes].concat(), &mut out);
                assert_eq!(out, [value; 2]);
            }
        }
    }

    #[test]
    fn int96_is_a_day_and_nanoseconds() {
        let bytes: Vec<u8> = [1_500_000_000_u32, 0, 2_440_589].iter().flat_map(|word| word.to_le_bytes()).collect();
        let bytes = *bytes.first_chunk().unwrap();
        assert_eq!([1, 1_000, 1_000_000_000].map(|per| int96(bytes, per)), [86_401, 86_401_500, 86_401_500_000_000]);
    }
}
