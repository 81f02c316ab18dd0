//! Pseudo-random numbers that a seed gives again on every machine (SplitMix64).

/// A stream of numbers, and another one aside.
#[derive(Debug, Clone)]
pub struct Rng(u64, u64);

impl Rng {
    /// The stream of one query, or of one table, of a run.
    pub fn new(seed: u64, number: u64) -> Self {
        let state = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut rng = Self(state, !state);
        rng.draw();
        rng
    }

    /// Result of `draw` on a separate stream; this stream continues as if nothing had been drawn.
    pub fn aside<T>(&mut self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        let mut rng = Self(self.1, self.0);
        // What is drawn further aside is drawn here.
        rng.1 = rng.draw();
        let drawn = draw(&mut rng);
        self.1 = rng.0;
        drawn
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is at least 1.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.draw() % limit as u64) as usize
    }

    /// A number from `low` to `high`, both possible.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + (self.draw() % (high - low + 1) as u64) as i64
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.draw() % 100 < percent
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
