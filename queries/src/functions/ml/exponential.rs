//! e^x and ln(1 + x) where probabilities and losses need them, by additions, products and quotients alone.
//!
//! ```text
//!   e^x        x = n · ln 2 + r, |r| ≤ ln 2 / 2     e^r by its series, 2^n by its bits
//!   ln(1 + x)  2 · artanh(x / (2 + x))              artanh by its series
//! ```
//!
//! Same     the device takes the same steps (`kernels/cuda/learn.cu`), each rounded as IEEE 754 says: so do both give the same bits, which
//!          the functions of a system's library do not.
//! Exact    within some units of the last place.

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

/// e^x, for an x of at most 0.
pub(super) fn exp_below(x: f64) -> f64 {
    if x < -746.0 {
        return 0.0;
    }
    // Of a NaN any number: what follows is NaN whatever it is.
    let power = (x * std::f64::consts::LOG2_E - 0.5) as i32;
    let whole = f64::from(power);
    let rest = (x - whole * LN_2_HIGH) - whole * LN_2_LOW;
    let series = FACTORIALS[..14].iter().rev();
    let sum = series.fold(1.0 / FACTORIALS[14], |sum, factorial| 1.0 / factorial + rest * sum);
    // In two factors, since the result may be smaller than a normal number.
    let two_to = |power: i32| f64::from_bits(((i64::from(power) + 1023) as u64) << 52);
    let half = power / 2;
    sum * two_to(half) * two_to(power - half)
}

/// ln(1 + x), for an x from 0 to 1.
pub(super) fn ln_1p_unit(x: f64) -> f64 {
    let ratio = x / (2.0 + x);
    let square = ratio * ratio;
    let terms = (1..=35).rev().step_by(2);
    let sum = terms.fold(1.0 / 37.0, |sum, term| 1.0 / f64::from(term) + square * sum);
    2.0 * ratio * sum
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
    fn both_are_the_librarys_within_some_last_bits() {
        for step in 0..20_000 {
            let x = -f64::from(step) * 0.037_7;
            near(exp_below(x), x.exp(), x);
            let x = f64::from(step) / 20_000.0;
            near(ln_1p_unit(x), x.ln_1p(), x);
            let small = 0.5_f64.powi(step / 20);
            near(ln_1p_unit(small), small.ln_1p(), small);
        }
    }

    #[test]
    fn ends_and_odd_values() {
        assert_eq!(
            (exp_below(0.0), exp_below(-0.0), exp_below(-1e300), exp_below(f64::NEG_INFINITY)),
            (1.0, 1.0, 0.0, 0.0)
        );
        assert_eq!(ln_1p_unit(0.0), 0.0);
        near(ln_1p_unit(1.0), std::f64::consts::LN_2, 1.0);
        assert!(exp_below(f64::NAN).is_nan() && ln_1p_unit(f64::NAN).is_nan());
    }
}
