//! 16-bit floats: the device holds each as the equal 32-bit float.
//!
//!   0x3c01  1 00001 0000000001   ──►   0x3f80_2000   ──►   0x3c01
//!
//! Exact    subnormal numbers become normal ones; a NaN keeps its sign and its payload, in the upper bits of the wider
//!          payload, and is not made quiet, unlike in casts.
//! Order    preserved for numbers, zeros, infinities and NaNs, by IEEE 754 and by the total order.
//! Computed values of this type are rounded to 16 bits on the device (`FloatFunction::Narrow`): narrowing is exact.

use datafusion::arrow::array::ArrowPrimitiveType;
use datafusion::arrow::datatypes::Float16Type;

/// Arrow's 16-bit float.
pub(crate) type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// Significand bits that only the wider float has.
const MORE: u32 = 13;
/// Mask of a significand without its leading bit.
const FRACTION: u32 = (1 << 10) - 1;
/// Exponent of infinities and NaNs, in either width.
const SPECIAL: u32 = 0x1f;
const WIDE_SPECIAL: u32 = 0xff;

/// Widens a number to 32 bits.
pub(crate) fn widened(of: Half) -> f32 {
    let bits = u32::from(of.to_bits());
    if bits >> 10 & SPECIAL != SPECIAL {
        return of.to_f32();
    }
    f32::from_bits((bits >> 15) << 31 | WIDE_SPECIAL << 23 | (bits & FRACTION) << MORE)
}

/// Narrows a number that `widened` returned.
pub(crate) fn narrowed(of: f32) -> Half {
    let bits = of.to_bits();
    if bits >> 23 & WIDE_SPECIAL != WIDE_SPECIAL {
        return Half::from_f32(of);
    }
    Half::from_bits(((bits >> 31) << 15 | SPECIAL << 10 | bits >> MORE & FRACTION) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_comes_back_and_keeps_its_place() {
        let all = || (0..=u16::MAX).map(Half::from_bits);
        assert!(all().all(|half| narrowed(widened(half)).to_bits() == half.to_bits()));
        let mut halves: Vec<Half> = all().collect();
        halves.sort_by(Half::total_cmp);
        let wide: Vec<f32> = halves.iter().map(|half| widened(*half)).collect();
        assert!(wide.windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_lt()));
        let of_number = |half: Half| half.is_nan() || f64::from(widened(half)) == half.to_f64();
        assert!(all().all(of_number));
    }
}
