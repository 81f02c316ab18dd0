//! Random words as a function of their use, so that any row can be generated alone.
//!
//! ```text
//!   word(seed, column, row) ── mix ──► 64 uniform bits      no state, any order
//! ```
//!
//! After   Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (the SplitMix64 finaliser)

/// The random words of one column.
#[derive(Debug, Clone, Copy)]
pub struct ColumnRng {
    key: u64,
}

impl ColumnRng {
    /// Random words of column `column` under `seed`.
    pub fn new(seed: u64, column: u64) -> Self {
        Self { key: mix(seed ^ mix(column.wrapping_add(1))) }
    }

    /// Word of `row`.
    pub fn word(self, row: u64) -> u64 {
        mix(self.key.wrapping_add(row.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// A number in `0..bound`, by multiplication (the bias is below bound / 2⁶⁴).
    pub fn below(self, row: u64, bound: u64) -> u64 {
        ((u128::from(self.word(row)) * u128::from(bound)) >> 64) as u64
    }
}

/// The finaliser: a bijection that makes neighbouring words unrelated.
pub(crate) fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_words_of_the_published_generator() {
        // SplitMix64 with state 1234567 starts with these words (Vigna's reference program).
        let state = 1_234_567_u64;
        let gamma = 0x9e37_79b9_7f4a_7c15_u64;
        assert_eq!(mix(state.wrapping_add(gamma)), 6_457_827_717_110_365_317);
        assert_eq!(mix(state.wrapping_add(gamma.wrapping_mul(2))), 3_203_168_211_198_807_973);
    }

    #[test]
    fn below_stays_below_and_reaches_every_value() {
        let rng = ColumnRng::new(7, 3);
        let mut seen = [false; 10];
        for row in 0..1_000 {
            seen[rng.below(row, 10) as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
    }
}
