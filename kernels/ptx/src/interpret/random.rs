//! Random numbers for the schedule and for the choice among allowed values of a load.
//!
//! splitmix64, so that a seed gives the same schedule on every machine.

#[derive(Debug, Clone)]
pub(super) struct Random {
    state: u64,
    /// Whether there is a seed.
    pub on: bool,
}

impl Random {
    pub fn new(seed: Option<u64>) -> Random {
        Random { state: seed.unwrap_or(0), on: seed.is_some() }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Mostly short, sometimes long: 1 up to about 2^`most`.
    pub fn span(&mut self, most: u64) -> u64 {
        let bits = self.below(most + 1);
        1 + self.below(1 << bits)
    }
}
