//! Says whether a figure grows, from what was seen of it at even times.
//!
//! ```text
//!   seen at even times   ┌── warm-up ──┬── middle ──┬─── last ───┐
//!                        │  not judged │  median m  │  median l  │      grows if  l − m  >  max(least, share · m)
//! ```
//!
//! Noise     a median ignores peaks that last for less than half of a third, up and down.
//! Sawteeth  of a figure that rises and falls again within a third both medians differ by a step at most. One whose
//!           teeth are longer looks like growth, and only a longer run can tell.
//! Short     fewer than [`LEAST_SEEN`] sightings are not judged: [`Trend::Unknown`].
//! Missed    what grows by less than the bound from one third to the next. A run twice as long sees half of that.

/// Permitted growth of a figure from the middle third to the last: the larger of the two values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// In the figure's own unit.
    pub least: f64,
    /// Share of the middle third's median.
    pub share: f64,
}

impl Bound {
    /// The same, and `more` of the figure's unit.
    pub fn and(self, more: f64) -> Self {
        Self { least: self.least + more, ..self }
    }

    /// This number, for every figure.
    pub const fn of(least: f64) -> Self {
        Self { least, share: 0.0 }
    }
}

/// Sightings without which nothing is said: three for each third.
pub const LEAST_SEEN: usize = 9;

/// Trend of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trend {
    /// Seen too seldom.
    Unknown,
    Flat {
        middle: f64,
        last: f64,
        bound: f64,
    },
    Grows {
        middle: f64,
        last: f64,
        bound: f64,
    },
}

impl Trend {
    /// By how much the last third is above the middle one; 0 if it is not.
    pub fn gained(&self) -> f64 {
        match self {
            Trend::Unknown => 0.0,
            Trend::Flat { middle, last, .. } | Trend::Grows { middle, last, .. } => (last - middle).max(0.0),
        }
    }

    pub fn grows(&self) -> bool {
        matches!(self, Trend::Grows { .. })
    }
}

/// Judges a figure by all its sightings, oldest first.
pub fn judge(seen: &[f64], bound: Bound) -> Trend {
    if seen.len() < LEAST_SEEN {
        return Trend::Unknown;
    }
    let third = seen.len() / 3;
    // The remainder of the division by three belongs to the warm-up.
    let (middle, last) = (&seen[seen.len() - 2 * third..seen.len() - third], &seen[seen.len() - third..]);
    let (middle, last) = (median(middle), median(last));
    let bound = bound.least.max(bound.share * middle);
    match last - middle > bound {
        true => Trend::Grows { middle, last, bound },
        false => Trend::Flat { middle, last, bound },
    }
}

/// The middle one, or the mean of the two in the middle. `of` is not empty.
fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::rng::Rng;

    const BOUND: Bound = Bound { least: 10.0, share: 0.05 };

    fn series(of: impl FnMut(usize) -> f64) -> Vec<f64> {
        (0..60).map(of).collect()
    }

    fn judged(of: impl FnMut(usize) -> f64) -> Trend {
        judge(&series(of), BOUND)
    }

    #[test]
    fn a_flat_figure_does_not_grow() {
        assert_eq!(judged(|_| 100.0), Trend::Flat { middle: 100.0, last: 100.0, bound: 10.0 });
        assert!(!judged(|_| 0.0).grows());
    }

    #[test]
    fn a_figure_that_rises_steadily_grows() {
        // By one with each sighting: 20 from third to third.
        assert_eq!(judged(|n| 100.0 + n as f64), Trend::Grows { middle: 129.5, last: 149.5, bound: 10.0 });
    }

    #[test]
    fn growth_during_the_warm_up_is_not_judged() {
        assert!(!judged(|n| if n < 20 { 1000.0 * n as f64 } else { 20_000.0 }).grows());
    }

    #[test]
    fn growth_that_begins_late_is_seen() {
        assert!(judged(|n| if n < 40 { 100.0 } else { 130.0 }).grows());
    }

    #[test]
    fn a_share_of_a_large_figure_is_allowed() {
        assert!(!judged(|n| 1000.0 + n as f64).grows(), "20 of 1030 are less than 5 %");
        assert!(judged(|n| 1000.0 + 4.0 * n as f64).grows(), "80 of 1120 are more");
    }

    #[test]
    fn noise_and_single_peaks_do_not_grow() {
        let mut rng = Rng::new(1, 1);
        assert!(!judged(|_| 100.0 + rng.below(60) as f64).grows());
        assert!(!judged(|n| if n % 7 == 3 { 5000.0 } else { 100.0 }).grows());
        // Many peaks in the last third, but fewer than half.
        assert!(!judged(|n| if n > 50 { 5000.0 } else { 100.0 }).grows());
    }

    #[test]
    fn growth_is_seen_through_noise() {
        let mut rng = Rng::new(1, 2);
        assert!(judged(|n| 100.0 + 2.0 * n as f64 + rng.below(20) as f64).grows());
    }

    #[test]
    fn a_sawtooth_does_not_grow_and_one_on_a_slope_does() {
        let tooth = |n: usize| 8.0 * (n % 6) as f64;
        assert!(!judged(|n| 100.0 + tooth(n)).grows());
        assert!(judged(|n| 100.0 + tooth(n) + 2.0 * n as f64).grows());
    }

    #[test]
    fn what_shrinks_does_not_grow() {
        assert!(!judged(|n| 1000.0 - 10.0 * n as f64).grows());
    }

    #[test]
    fn a_third_handle_is_one_too_many() {
        let handles = |gained: f64| judge(&series(|n| 40.0 + if n < 40 { 0.0 } else { gained }), Bound::of(2.0));
        assert!(!handles(2.0).grows() && handles(3.0).grows());
    }

    #[test]
    fn what_is_allowed_beside_is_added() {
        let steady = series(|n| 100.0 + n as f64);
        assert_eq!(judge(&steady, BOUND).gained(), 20.0);
        assert!(judge(&steady, BOUND.and(5.0)).grows() && !judge(&steady, BOUND.and(10.0)).grows());
        assert_eq!(judge(&series(|n| -(n as f64)), BOUND).gained(), 0.0);
    }

    #[test]
    fn too_few_sightings_are_not_judged() {
        assert_eq!(judge(&series(|n| n as f64)[..LEAST_SEEN - 1], BOUND), Trend::Unknown);
        assert_ne!(judge(&series(|n| n as f64)[..LEAST_SEEN], BOUND), Trend::Unknown);
    }
}
