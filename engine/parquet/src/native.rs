//! The integers that physical values become before they are narrowed, and the words they are stored in.
//!
//!   i32  INT32            u32  UINT_32           i64  INT64, INT96, FIXED(1..=8)
//!   u64  UINT_64          i128 FIXED(9..=16)     u8 u16 u32 u64 u128  what is stored: value − base, cut

/// An integer as the column's type has it.
pub(crate) trait Native: Copy + Default + PartialOrd + 'static {
    const LEAST: Self;
    const MOST: Self;

    fn wide(self) -> i128;

    /// The low 64 bits of `self - base`.
    fn less(self, base: i64) -> u64;

    /// All bits of `self - base`.
    fn less_wide(self, base: i64) -> u128 {
        self.wide().wrapping_sub(i128::from(base)) as u128
    }

    /// The least and the largest of `values`; if there are none, the largest and the least there are.
    fn extremes(values: &[Self]) -> (Self, Self) {
        extremes(values)
    }
}

#[inline(always)]
fn extremes<N: Native>(values: &[N]) -> (N, N) {
    let (mut least, mut most) = (N::MOST, N::LEAST);
    for value in values {
        least = if *value < least { *value } else { least };
        most = if *value > most { *value } else { most };
    }
    (least, most)
}

/// Extremes of wide integers by way of narrow ones, where they lie near the first of them: there are vector instructions
/// that compare 32 bits on every machine.
macro_rules! by_distance {
    () => {
        fn extremes(values: &[Self]) -> (Self, Self) {
            let middle: Self = 1 << 31;
            let Some(first) = values.first() else { return extremes(values) };
            let origin = first.wrapping_sub(middle);
            let mut beyond = 0;
            let (mut least, mut most) = (i32::MAX, i32::MIN);
            for value in values {
                let distance = value.wrapping_sub(origin);
                beyond |= distance >> 32;
                let low = distance as u32 as i32 ^ i32::MIN;
                least = if low < least { low } else { least };
                most = if low > most { low } else { most };
            }
            // Distances below 2³² keep the order, unless the type wraps around between them.
            if beyond != 0 || origin.checked_add(2 * middle).is_none() || first.checked_sub(middle).is_none() {
                return extremes(values);
            }
            let of = |low: i32| origin + Self::from((low ^ i32::MIN) as u32);
            (of(least), of(most))
        }
    };
}

macro_rules! native {
    ($($ty:ty $(, $extremes:ident)?;)*) => {
        $(impl Native for $ty {
            $($extremes!();)?

            const LEAST: Self = <$ty>::MIN;
            const MOST: Self = <$ty>::MAX;

            #[inline(always)]
            fn wide(self) -> i128 {
                self as i128
            }

            #[inline(always)]
            fn less(self, base: i64) -> u64 {
                (self as i64 as u64).wrapping_sub(base as u64)
            }
        })*
    };
}
native!(i32; u32; i64, by_distance; u64, by_distance; i128;);

/// Vectors of each width, of which a column uses one.
#[derive(Debug, Default)]
pub(crate) struct Words {
    of_1: Vec<u8>,
    of_2: Vec<u16>,
    of_4: Vec<u32>,
    of_8: Vec<u64>,
    of_16: Vec<u128>,
}

/// A word that a value is stored in, little-endian.
pub(crate) trait Stored: Copy + Default + 'static {
    const BYTES: usize;

    fn words(all: &mut Words) -> &mut Vec<Self>;

    /// `value - base`, cut.
    fn cut<N: Native>(value: N, base: i64) -> Self;

    /// Writes `values` to the front of `out`, one after the other.
    fn write(values: &[Self], out: &mut [u8]);
}

macro_rules! stored {
    ($($ty:ty => $cut:ident $words:ident),*) => {
        $(impl Stored for $ty {
            const BYTES: usize = size_of::<$ty>();

            fn words(all: &mut Words) -> &mut Vec<Self> {
                &mut all.$words
            }

            #[inline(always)]
            fn cut<N: Native>(value: N, base: i64) -> Self {
                value.$cut(base) as $ty
            }

            #[inline]
            fn write(values: &[Self], out: &mut [u8]) {
                for (out, value) in out.as_chunks_mut::<{ size_of::<$ty>() }>().0.iter_mut().zip(values) {
                    *out = value.to_le_bytes();
                }
            }
        })*
    };
}
stored!(u8 => less of_1, u16 => less of_2, u32 => less of_4, u64 => less of_8, u128 => less_wide of_16);

/// A big-endian two's complement number of at most 16 bytes; 0 of none.
pub(crate) fn big_endian(bytes: &[u8]) -> i128 {
    let sign = bytes.first().map_or(0, |first| (*first as i8 >> 7) as u8);
    let mut wide = [sign; 16];
    let length = bytes.len().min(16);
    wide[16 - length..].copy_from_slice(&bytes[bytes.len() - length..]);
    i128::from_be_bytes(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_endian_numbers_keep_their_sign() {
        assert_eq!([&[][..], &[0xff], &[0x01, 0x00], &[0xff, 0x00]].map(big_endian), [0, -1, 256, -256]);
        assert_eq!(big_endian(&i128::MIN.to_be_bytes()), i128::MIN);
    }

    #[test]
    fn extremes_near_and_far() {
        let of = |values: &[i64]| i64::extremes(values);
        assert_eq!(of(&[]), (i64::MAX, i64::MIN));
        assert_eq!(of(&[5, -3, 9]), (-3, 9));
        assert_eq!(of(&[0, 1 << 31]), (0, 1 << 31));
        assert_eq!(of(&[0, (1 << 31) - 1, -(1 << 31)]), (-(1 << 31), (1 << 31) - 1));
        assert_eq!(of(&[i64::MIN, i64::MAX, 7]), (i64::MIN, i64::MAX));
        assert_eq!(of(&[i64::MAX, i64::MAX - 1]), (i64::MAX - 1, i64::MAX));
        assert_eq!(u64::extremes(&[3, u64::MAX]), (3, u64::MAX));
        assert_eq!(u64::extremes(&[1 << 40, (1 << 40) + 9, (1 << 40) - 9]), ((1 << 40) - 9, (1 << 40) + 9));
    }

    #[test]
    fn values_are_stored_less_a_base() {
        assert_eq!((u8::cut(1_200_i32, 1_000), u16::cut(-1_i64, 0), u64::cut(u64::MAX, 0)), (200, 0xffff, u64::MAX));
        assert_eq!(u128::cut(i128::MIN, 0), i128::MIN as u128);
        assert_eq!(u128::cut(-5_i32, 0), -5_i128 as u128);
    }
}
