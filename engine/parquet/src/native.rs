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

    /// There are values of this type up to 2³² above `base`, from `base` on.
    fn has_near(base: i64) -> bool {
        Self::LEAST.wide() <= base.into() && i128::from(base) + (1 << 32) <= Self::MOST.wide()
    }

    /// Fills `out` with `values` less `base`, if all of them lie less than 2³² above it. Asks for [`Self::has_near`];
    /// narrow types never try.
    fn near(_values: &[Self], _base: i64, _out: &mut [u32]) -> bool {
        false
    }

    /// The value `distance` above `base`.
    fn at(_base: i64, _distance: u32) -> Self {
        Self::default()
    }
}

/// The least and the largest of `values`; the type's largest and least value if `values` is empty.
pub(crate) fn extremes<N: Native>(values: &[N]) -> (N, N) {
    let (mut least, mut most) = (N::MOST, N::LEAST);
    for value in values {
        least = if *value < least { *value } else { least };
        most = if *value > most { *value } else { most };
    }
    (least, most)
}

/// Wide integers near a base: comparing and cutting 32 bits takes half the work of 64, and there are vector
/// instructions for it on every machine.
macro_rules! near {
    ($wide:ty) => {
        #[inline]
        fn near(values: &[Self], base: i64, out: &mut [u32]) -> bool {
            let mut beyond = 0;
            for (out, value) in out.iter_mut().zip(values) {
                let distance = value.wrapping_sub(base as $wide as Self) as $wide;
                beyond |= distance;
                *out = distance as u32;
            }
            beyond >> 32 == 0
        }

        #[inline]
        fn at(base: i64, distance: u32) -> Self {
            (base as $wide as Self).wrapping_add(distance as Self)
        }
    };
}

macro_rules! native {
    ($($ty:ty $(as $wide:ty)?;)*) => {
        $(impl Native for $ty {
            $(near!($wide);)?

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
native!(i32; u32; i64 as u64; u64 as u64; i128 as u128;);

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

/// A big-endian two's complement number of at most 16 bytes; 0 if empty.
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
    fn near_is_less_than_32_bits_above() {
        let near = |values: &[i64], base| {
            let mut out = vec![0; values.len()];
            i64::near(values, base, &mut out).then_some(out)
        };
        assert_eq!(near(&[5, 7, 5 + 0xffff_ffff], 5), Some(vec![0, 2, 0xffff_ffff]));
        assert_eq!(near(&[5, 6 + 0xffff_ffff], 5), None);
        assert_eq!(near(&[4], 5), None);
        assert_eq!(near(&[i64::MIN + 3], i64::MIN), Some(vec![3]));
        assert_eq!((i64::has_near(i64::MAX), u64::has_near(-1), u64::has_near(1 << 62)), (false, false, true));
        assert_eq!((i64::at(-5, 7), u64::at(5, u32::MAX), i128::at(-5, 1)), (2, 5 + 0xffff_ffff, -4));
        assert!(i128::near(&[i128::from(i64::MIN)], i64::MIN, &mut [0]) && !i128::near(&[i128::MIN], 0, &mut [0]));
    }

    #[test]
    fn values_are_stored_less_a_base() {
        assert_eq!((u8::cut(1_200_i32, 1_000), u16::cut(-1_i64, 0), u64::cut(u64::MAX, 0)), (200, 0xffff, u64::MAX));
        assert_eq!(u128::cut(i128::MIN, 0), i128::MIN as u128);
        assert_eq!(u128::cut(-5_i32, 0), -5_i128 as u128);
    }
}
