//! Summary statistics of many measurements: median, 99th percentile and minimum.
//!
//!   [ 900, 1000, 1100, 52000 ] ns → minimum 900, median 1000, p99 52000
//!
//! Ranks      nearest rank: every figure is a measured one.

/// Samples in nanoseconds, in the order of measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples(Vec<u64>);

/// Summary of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    pub count: u64,
    pub min_ns: u64,
    pub median_ns: u64,
    pub p99_ns: u64,
    /// Median absolute deviation: half of the samples are within this distance of the median.
    pub deviation_ns: u64,
}

impl Samples {
    pub fn push(&mut self, ns: u64) {
        self.0.push(ns);
    }

    pub fn extend(&mut self, others: impl IntoIterator<Item = u64>) {
        self.0.extend(others);
    }

    pub fn append(&mut self, mut others: Samples) {
        self.0.append(&mut others.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// `None` if there are no samples.
    pub fn summary(&self) -> Option<Summary> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let median_ns = rank(&sorted, 50)?;
        let mut distances: Vec<u64> = sorted.iter().map(|ns| ns.abs_diff(median_ns)).collect();
        distances.sort_unstable();
        Some(Summary {
            count: sorted.len() as u64,
            min_ns: sorted[0],
            median_ns,
            p99_ns: rank(&sorted, 99)?,
            deviation_ns: rank(&distances, 50)?,
        })
    }
}

/// Nearest-rank percentile of `sorted`.
fn rank(sorted: &[u64], percent: usize) -> Option<u64> {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(samples: impl IntoIterator<Item = u64>) -> Option<Summary> {
        let mut all = Samples::default();
        all.extend(samples);
        all.summary()
    }

    #[test]
    fn figures_are_among_the_samples() {
        assert_eq!(summary([]), None);
        let one = Summary { count: 1, min_ns: 7, median_ns: 7, p99_ns: 7, deviation_ns: 0 };
        assert_eq!(summary([7]), Some(one));
        let four = Summary { count: 4, min_ns: 900, median_ns: 1000, p99_ns: 52_000, deviation_ns: 100 };
        assert_eq!(summary([52_000, 1000, 900, 1100]), Some(four));
        let hundred = summary(1..=200).unwrap();
        assert_eq!((hundred.median_ns, hundred.p99_ns, hundred.deviation_ns), (100, 198, 50));
    }
}
