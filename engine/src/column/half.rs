//! Floats of 16 bits: on the device each is the float of 32 bits that it is.
//!
//!   0x3c01  1 00001 0000000001   ──►   0x3f80_2000   ──►   0x3c01
//!
//! Exact    subnormal numbers become normal ones; a NaN keeps its sign and its payload, in the upper bits of the wider one, and is not
//!          made quiet, as casts make it.
//! Order    the same: of numbers, zeros, infinities and NaNs, by IEEE 754 and by the total order.
//! Computed what has this type on the device is rounded to 16 bits there (`FloatFunction::Narrow`), so that nothing is lost here.

use datafusion::arrow::array::ArrowPrimitiveType;
use datafusion::arrow::datatypes::Float16Type;

/// Arrow's float of 16 bits.
pub(crate) type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// Bits of a significand that only the wider float has.
const MORE: u32 = 13;
/// A significand without its leading bit.
const FRACTION: u32 = (1 << 10) - 1;
/// The exponent of infinities and NaNs, in either width.
const SPECIAL: u32 = 0x1f;
const WIDE_SPECIAL: u32 = 0xff;

/// The same number, of 32 bits.
pub(crate) fn widened(of: Half) -> f32 {
    let bits = u32::from(of.to_bits());
    if bits >> 10 & SPECIAL != SPECIAL {
        return of.to_f32();
    }
    f32::from_bits((bits >> 15) << 31 | WIDE_SPECIAL << 23 | (bits & FRACTION) << MORE)
}

/// The number of 16 bits that was widened.
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
