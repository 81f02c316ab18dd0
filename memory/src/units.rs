//! Sizes that print with their unit.
//!
//!   ByteSize(1536) → "1.5 KiB"      ByteSize(268_435_456) → "256 MiB"
//!
//! Functions of this crate pass sizes as `ByteSize`; the length of a single buffer is a `usize` in bytes.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

impl ByteSize {
    pub const ZERO: ByteSize = ByteSize(0);
    pub const MAX: ByteSize = ByteSize(u64::MAX);

    pub const fn bytes(bytes: u64) -> Self {
        ByteSize(bytes)
    }

    pub const fn kib(n: u64) -> Self {
        ByteSize(n << 10)
    }

    pub const fn mib(n: u64) -> Self {
        ByteSize(n << 20)
    }

    pub const fn gib(n: u64) -> Self {
        ByteSize(n << 30)
    }

    pub const fn as_u64(self) -> u64 {
        self.0
    }

    pub fn saturating_sub(self, other: Self) -> Self {
        ByteSize(self.0.saturating_sub(other.0))
    }
}

impl From<usize> for ByteSize {
    fn from(bytes: usize) -> Self {
        ByteSize(bytes as u64)
    }
}

impl From<u64> for ByteSize {
    fn from(bytes: u64) -> Self {
        ByteSize(bytes)
    }
}

impl Add for ByteSize {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        ByteSize(self.0.saturating_add(other.0))
    }
}

impl AddAssign for ByteSize {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for ByteSize {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        ByteSize(self.0 - other.0)
    }
}

impl SubAssign for ByteSize {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for ByteSize {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(ByteSize::ZERO, Add::add)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 == u64::MAX {
            return f.pad("unlimited");
        }
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let text = if value >= 99.95 { format!("{value:.0}") } else { format!("{value:.1}") };
        f.pad(&format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), UNITS[unit]))
    }
}

impl fmt::Debug for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_the_largest_fitting_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (1 << 20, "1 MiB"),
            ((1 << 20) - 1, "1 MiB"),
            (268_435_456, "256 MiB"),
            (3_328_599_654, "3.1 GiB"),
            (u64::MAX, "unlimited"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text, "{bytes}");
        }
    }
}
