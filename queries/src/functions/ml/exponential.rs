//! e^x, ln(1 + x) and ln x for probabilities, losses and likelihoods, from basic arithmetic only.
//!
//! ```text
//!   e^x        x = n · ln 2 + r, |r| ≤ ln 2 / 2     e^r by its series, 2^n by its bits
//!   ln(1 + x)  2 · artanh(x / (2 + x))              artanh by its series
//!   ln x       x = 2^n · m, √½ < m ≤ √2             n · ln 2 + 2 · artanh((m - 1) / (m + 1))
//! ```
//!
//! Same     the device executes the same steps (`kernels/cuda/learn.cu`, `bayes.cu`), each rounded as in IEEE 754, so
//!          both give equal bits. Functions of a system's math library do not.
//! Exact    within a few units in the last place.

const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// 0! to 14!
const FACTORIALS: [f64; 15] = {
    let mut all = [1.0; 15];
    let mut of = 1;
    while of < 15 {
        all[of] = all[of - 1] * of as f64;
        of += 1;
    }
    all
};

/// e^x for x ≤ 0.
pub(super) fn exp_below(x: f64) -> f64 {
    if x < -746.0 {
        return 0.0;
    }
    // For a NaN any number will do: the result is NaN anyway.
    let power = (x * std::f64::consts::LOG2_E - 0.5) as i32;
    let whole = f64::from(power);
    let rest = (x - whole * LN_2_HIGH) - whole * LN_2_LOW;
    let series = FACTORIALS[..14].iter().rev();
    let sum = series.fold(1.0 / FACTORIALS[14], |sum, factorial| 1.0 / factorial + rest * sum);
    // Two factors, because the result may be subnormal.
    let two_to = |power: i32| f64::from_bits(((i64::from(power) + 1023) as u64) << 52);
    let half = power / 2;
    sum * two_to(half) * two_to(power - half)
}

/// ln(1 + x) for x from 0 to 1.
pub(super) fn ln_1p_unit(x: f64) -> f64 {
    let ratio = x / (2.0 + x);
    let square = ratio * ratio;
    let terms = (1..=35).rev().step_by(2);
    let sum = terms.fold(1.0 / 37.0, |sum, term| 1.0 / f64::from(term) + square * sum);
    2.0 * ratio * sum
}

/// ln x for a positive, finite x.
pub(super) fn ln_positive(x: f64) -> f64 {
    let is_small = x < f64::MIN_POSITIVE;
    let (x, power) = if is_small { (x * 2_f64.powi(54), -1023 - 54) } else { (x, -1023) };
    let bits = x.to_bits();
    let power = power + (bits >> 52) as i32;
    let part = f64::from_bits(bits & 0xf_ffff_ffff_ffff | 0x3ff0_0000_0000_0000);
    let (part, power) = if part > std::f64::consts::SQRT_2 { (part * 0.5, power + 1) } else { (part, power) };
    let ratio = (part - 1.0) / (part + 1.0);
    let square = ratio * ratio;
    let terms = (1..=21).rev().step_by(2);
    let sum = terms.fold(1.0 / 23.0, |sum, term| 1.0 / f64::from(term) + square * sum);
    let whole = f64::from(power);
    whole * LN_2_HIGH + (whole * LN_2_LOW + 2.0 * ratio * sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64, what: f64) {
        let apart = (found - expected).abs();
        assert!(
            apart <= 4.0 * f64::EPSILON * expected.abs() + f64::from_bits(1),
            "{what}: {found}, expected {expected}"
        );
    }

    #[test]
    fn all_are_the_librarys_within_some_last_bits() {
        for step in 0..20_000 {
            let x = -f64::from(step) * 0.037_7;
            near(exp_below(x), x.exp(), x);
            let x = f64::from(step) / 20_000.0;
            near(ln_1p_unit(x), x.ln_1p(), x);
            let small = 0.5_f64.powi(step / 20);
            near(ln_1p_unit(small), small.ln_1p(), small);
            for x in [small, 1.0 / small, 1.0 + small, 1.0 - small / 2.0, f64::from(step) + 0.001, x + 0.5] {
                near(ln_positive(x), x.ln(), x);
            }
        }
    }

    #[test]
    fn ends_and_odd_values() {
        assert_eq!(
            (exp_below(0.0), exp_below(-0.0), exp_below(-1e300), exp_below(f64::NEG_INFINITY)),
            (1.0, 1.0, 0.0, 0.0)
        );
        assert_eq!((ln_1p_unit(0.0), ln_positive(1.0)), (0.0, 0.0));
        for x in [f64::MAX, f64::MIN_POSITIVE, f64::MIN_POSITIVE / 2.0, f64::from_bits(1), 2.0, 0.5, 0.707, 1.415] {
            near(ln_positive(x), x.ln(), x);
        }
        near(ln_1p_unit(1.0), std::f64::consts::LN_2, 1.0);
        assert!(exp_below(f64::NAN).is_nan() && ln_1p_unit(f64::NAN).is_nan());
    }
}
