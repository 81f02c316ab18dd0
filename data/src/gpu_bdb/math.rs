//! Logarithm, exponential and cosine with equal bits on every machine.
//!
//! ```text
//!   only + − × ÷ of IEEE 754, each correctly rounded, in a fixed order: no system library, no fused operations
//! ```
//!
//! Error    below 4 units in the last place for `ln` and `exp`, below 10⁻¹⁵ for `cos_turns`; the data needs far less.

use std::f64::consts::{LN_2, LOG2_E, PI, SQRT_2};

/// The natural logarithm of a positive, normal number.
///
/// x = 2ᵉ·m with m in √½..√2, and ln m = 2 artanh s = 2 (s + s³/3 + s⁵/5 + …) with s = (m − 1)/(m + 1), |s| < 0.172.
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if mantissa > SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for term in (0..13).rev() {
        sum = sum * square + 1.0 / f64::from(2 * term + 1);
    }
    exponent as f64 * LN_2 + 2.0 * s * sum
}

/// e to the power of `x`, for |x| below 700.
///
/// x = k·ln 2 + r with |r| < 0.35, and the Taylor series of eʳ.
pub(crate) fn exp(x: f64) -> f64 {
    let k = (x * LOG2_E + 0.5).floor();
    let r = x - k * LN_2;
    let mut sum = 1.0;
    for term in (1..18).rev() {
        sum = sum * r / f64::from(term) + 1.0;
    }
    sum * f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

/// cos(2π · `turns`) for `turns` in 0..1.
///
/// Quarter turns are subtracted exactly; the remainder is in −π/4..π/4, where the Taylor series are short.
pub(crate) fn cos_turns(turns: f64) -> f64 {
    let quarter = (turns * 4.0 + 0.5).floor();
    let angle = (turns - quarter * 0.25) * (2.0 * PI);
    let square = angle * angle;
    match quarter as i64 & 3 {
        0 => cosine(square),
        1 => -angle * sine_over_angle(square),
        2 => -cosine(square),
        _ => angle * sine_over_angle(square),
    }
}

fn cosine(square: f64) -> f64 {
    let mut sum = 1.0;
    for term in (1..10).rev() {
        sum = 1.0 - sum * square / f64::from((2 * term - 1) * (2 * term));
    }
    sum
}

fn sine_over_angle(square: f64) -> f64 {
    let mut sum = 1.0;
    for term in (1..10).rev() {
        sum = 1.0 - sum * square / f64::from((2 * term) * (2 * term + 1));
    }
    sum
}

/// The nearest integer, halves upwards.
pub(crate) fn round(x: f64) -> i64 {
    (x + 0.5).floor() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_and_exponential_agree_with_the_system_library() {
        for step in 1..20_000 {
            let x = f64::from(step) * 0.37 / 64.0;
            assert!((ln(x) - x.ln()).abs() <= 1e-15 * x.ln().abs().max(1.0), "ln {x}");
            let y = f64::from(step - 10_000) / 1_000.0;
            assert!((exp(y) / y.exp() - 1.0).abs() < 4e-15, "exp {y}");
        }
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert!((ln(1.0 / 9_007_199_254_740_992.0) + 53.0 * LN_2).abs() < 1e-13);
    }

    #[test]
    fn cosine_of_turns_agrees_with_the_system_library() {
        for step in 0..10_000 {
            let turns = f64::from(step) / 10_000.0;
            assert!((cos_turns(turns) - (2.0 * PI * turns).cos()).abs() < 2e-15, "{turns}");
        }
        assert_eq!((cos_turns(0.0), cos_turns(0.25).abs(), cos_turns(0.5)), (1.0, 0.0, -1.0));
    }

    #[test]
    fn halves_round_up() {
        assert_eq!((round(0.5), round(1.49), round(2.5), round(-0.5)), (1, 1, 3, 0));
    }
}
