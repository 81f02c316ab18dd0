//! Random numbers as a function of their use, so that any row of any table can be generated alone.
//!
//! ```text
//!   seed ─► table, column ─► row ─► draw      word(seed, table, column, row, draw): no state, any order
//! ```
//!
//! Real      (word >> 11) · 2⁻⁵³, in 0..1. Integer in a..=b: a + floor(real · (b − a + 1)). Both exact IEEE operations.
//! Normal    √(−2 ln u) · cos 2πv with this crate's own ln and cos ([`super::math`]), equal on every machine.
//! After     Steele, Lea and Flood 2014 (the SplitMix64 finaliser); Box and Muller 1958

use super::math;
use crate::rng::mix;

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// All random numbers of one data set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Random {
    key: u64,
}

/// The random numbers of one column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ColumnRandom {
    key: u64,
}

/// The random numbers of one value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draws {
    key: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { key: mix(seed.wrapping_add(GAMMA)) }
    }

    /// Random numbers of column `column` of table `table`; hidden columns are numbered from 100.
    pub(crate) fn column(self, table: u64, column: u64) -> ColumnRandom {
        ColumnRandom { key: mix(self.key ^ mix((table << 32 | column).wrapping_mul(GAMMA))) }
    }
}

impl ColumnRandom {
    pub(crate) fn row(self, row: u64) -> Draws {
        Draws { key: mix(self.key.wrapping_add(row.wrapping_mul(GAMMA))) }
    }
}

impl Draws {
    pub(crate) fn word(self, draw: u64) -> u64 {
        mix(self.key.wrapping_add(draw.wrapping_add(1).wrapping_mul(GAMMA)))
    }

    /// Uniform in 0..1.
    pub(crate) fn real(self, draw: u64) -> f64 {
        (self.word(draw) >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// Uniform in `low..=high`.
    pub(crate) fn int(self, draw: u64, low: i64, high: i64) -> i64 {
        low + (self.real(draw) * (high - low + 1) as f64) as i64
    }

    /// Uniform index in `0..length`.
    pub(crate) fn index(self, draw: u64, length: usize) -> usize {
        (self.real(draw) * length as f64) as usize
    }

    /// A uniform real between `low` and `high` hundredths, rounded to hundredths: each end is half as likely as other
    /// values.
    pub(crate) fn hundredths(self, draw: u64, low: i64, high: i64) -> i64 {
        low + (self.real(draw) * (high - low) as f64 + 0.5) as i64
    }

    pub(crate) fn chance(self, draw: u64, probability: f64) -> bool {
        self.real(draw) < probability
    }

    /// A normally distributed number, from draws `draw` and `draw + 1`.
    pub(crate) fn normal(self, draw: u64, mean: f64, deviation: f64) -> f64 {
        let radius = (-2.0 * math::ln(1.0 - self.real(draw))).sqrt();
        mean + deviation * (radius * math::cos_turns(self.real(draw + 1)))
    }
}

/// A fixed pseudo-random permutation of `0..length`, evaluated one element at a time.
///
/// After Black and Rogaway 2002: a Feistel network on the next power of four, iterated until the result is in range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Permutation {
    length: u64,
    half_bits: u32,
    key: u64,
}

impl Permutation {
    /// The permutation selected by `numbers`.
    pub(crate) fn new(length: u64, numbers: ColumnRandom) -> Self {
        let bits = 64 - length.saturating_sub(1).leading_zeros();
        Self { length, half_bits: bits.div_ceil(2).max(1), key: numbers.key }
    }

    /// Image of `index`, which must be below the length.
    pub(crate) fn at(&self, index: u64) -> u64 {
        let mut value = index;
        loop {
            value = self.shuffle(value);
            if value < self.length {
                return value;
            }
        }
    }

    fn shuffle(&self, value: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..6_u64 {
            let mixed = mix(self.key ^ mix(right.wrapping_add((round + 1).wrapping_mul(GAMMA))));
            (left, right) = (right, (left ^ mixed) & mask);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutation_reaches_every_value_once() {
        for length in [1_u64, 2, 3, 5, 64, 900, 12_000] {
            let permutation = Permutation::new(length, Random::new(1).column(2, 3));
            let mut seen = vec![false; length as usize];
            for index in 0..length {
                let value = permutation.at(index) as usize;
                assert!(!std::mem::replace(&mut seen[value], true), "{value} of {length} twice");
            }
        }
    }

    #[test]
    fn integers_cover_their_range_evenly() {
        let column = Random::new(7).column(1, 1);
        let mut counts = [0_u32; 7];
        for row in 0..70_000 {
            counts[(column.row(row).int(0, -3, 3) + 3) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
    }

    #[test]
    fn normal_numbers_have_their_mean_and_deviation() {
        let column = Random::new(7).column(1, 2);
        let values: Vec<f64> = (0..100_000).map(|row| column.row(row).normal(0, 10.0, 2.0)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / values.len() as f64;
        assert!((mean - 10.0).abs() < 0.03 && (variance.sqrt() - 2.0).abs() < 0.03, "{mean} {variance}");
    }

    #[test]
    fn neighbouring_columns_rows_and_draws_differ() {
        let random = Random::new(7);
        let words = [
            random.column(1, 1).row(1).word(1),
            random.column(1, 1).row(1).word(2),
            random.column(1, 1).row(2).word(1),
            random.column(1, 2).row(1).word(1),
            random.column(2, 1).row(1).word(1),
            Random::new(8).column(1, 1).row(1).word(1),
        ];
        assert_eq!(words.iter().collect::<std::collections::HashSet<_>>().len(), words.len());
    }
}
